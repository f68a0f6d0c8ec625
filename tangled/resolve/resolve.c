/* resolve: timed attempts at the stages of the book. See appendix C. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "attempt.h"
#include "grade.h"
#include "progress.h"
#include "reveal.h"
#include "watch.h"

struct command;

struct told {
    struct workshop workshop;
    const struct command *command;
    const char *key;                /* of a stage, or NULL */
    const struct stage *stage;
    const char *level, *only, *source, *seed, *wrong;
    bool restart, html;
};

struct command {
    const char *name;
    bool takes_stage;
    bool (*run)(const struct told *told, const struct stages *stages);
};

static bool run_blank(const struct told *told, const struct stages *stages)
{
    struct blank_request request = { .only = told->only,
                                     .restart = told->restart };
    if (told->level != NULL && !level_parse(&request.level, told->level))
        return complain("LEVEL: expected chunk, function or empty, got %s",
                        told->level);
    return command_blank(&told->workshop, stages, told->stage, &request);
}

static bool run_grade(const struct told *told, const struct stages *stages)
{
    return command_grade(&told->workshop, stages, told->stage, told->source,
                         told->seed);
}

static bool run_watch(const struct told *told, const struct stages *stages)
{
    return command_watch(&told->workshop, stages, told->stage);
}

static bool run_reveal(const struct told *told, const struct stages *stages)
{
    return command_reveal(&told->workshop, stages, told->stage, told->wrong);
}

static bool run_pause(const struct told *told, const struct stages *stages)
{
    (void)stages;
    return command_pause(&told->workshop, told->stage);
}

static bool run_resume(const struct told *told, const struct stages *stages)
{
    (void)stages;
    return command_resume(&told->workshop, told->stage);
}

static bool run_abandon(const struct told *told, const struct stages *stages)
{
    (void)stages;
    return command_abandon(&told->workshop, told->stage);
}

static bool run_history(const struct told *told, const struct stages *stages)
{
    (void)stages;
    return command_history(&told->workshop, told->stage);
}

static bool run_progress(const struct told *told, const struct stages *stages)
{
    return command_progress(&told->workshop, stages, told->html);
}

static bool run_next(const struct told *told, const struct stages *stages)
{
    struct score *score;
    char *why;
    bool now;
    struct blank_request request = { 0 };
    if (!score_open(&score, &told->workshop))
        return false;
    struct moment moment = moment_now();
    const struct stage *due =
        stage_due(score, stages, moment.date, &now, &why);
    if (due != NULL)
        request.level = level_due(score, due);
    score_close(&score);
    printf("%s\n%s", why, now ? "\n" : "");
    free(why);
    return !now || command_blank(&told->workshop, stages, due, &request);
}

static const struct command commands[] = {
    { "blank", true, run_blank },
    { "grade", true, run_grade },
    { "watch", true, run_watch },
    { "reveal", true, run_reveal },
    { "pause", true, run_pause },
    { "resume", true, run_resume },
    { "abandon", true, run_abandon },
    { "history", true, run_history },
    { "progress", false, run_progress },
    { "next", false, run_next },
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static bool usage(void)
{
    fputs("usage: resolve [--book DIR] [--attempts DIR] [--build DIR]"
          " COMMAND ...\n"
          "  blank STAGE [--level chunk|function|empty] [--only CHUNK]"
          " [--restart]\n"
          "  grade STAGE [--src DIR] [--seed N]\n"
          "  watch STAGE\n"
          "  reveal STAGE [--wrong TEXT]\n"
          "  pause, resume, abandon, history STAGE\n"
          "  progress [--html]\n"
          "  next\n"
          "A stage is 5, or 10.2 for a part of chapter 10.\n", stderr);
    return false;
}

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static const char **option_value(struct told *told, const char *name)
{
    const struct { const char *name, **value; } options[] = {
        { "--book", &told->workshop.book },
        { "--attempts", &told->workshop.attempts },
        { "--build", &told->workshop.build },
        { "--level", &told->level }, { "--only", &told->only },
        { "--src", &told->source }, { "--seed", &told->seed },
        { "--wrong", &told->wrong },
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (strcmp(name, options[i].name) == 0)
            return options[i].value;
    return NULL;
}

static bool read_options(struct told *told, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char **value = option_value(told, argv[i]);
        if (value != NULL && i + 1 < argc)
            *value = argv[++i];
        else if (strcmp(argv[i], "--restart") == 0)
            told->restart = true;
        else if (strcmp(argv[i], "--html") == 0)
            told->html = true;
        else if (argv[i][0] == '-')
            return usage();
        else if (told->command == NULL) {
            if ((told->command = find_command(argv[i])) == NULL)
                return usage();
        } else if (told->key == NULL && told->command->takes_stage)
            told->key = argv[i];
        else
            return usage();
    }
    return told->command != NULL
        && told->command->takes_stage == (told->key != NULL) ? true
                                                             : usage();
}

static bool find_stage(struct told *told, const struct stages *stages)
{
    if (told->key == NULL)
        return true;
    told->stage = stages_find(stages, told->key);
    if (told->stage != NULL)
        return true;
    complain("no stage %s; the book has", told->key);
    for (size_t i = 0; i < stages->count; i++)
        fprintf(stderr, "  %-5s %3d min  %s\n", stages->items[i].key,
                stages->items[i].minutes, stages->items[i].title);
    return false;
}

int main(int argc, char **argv)
{
    struct told told = { .workshop = { "book", "attempts", "build" } };
    struct stages stages;
    signal(SIGPIPE, SIG_IGN);       /* a write that fails is reported */
    signal(SIGXFSZ, SIG_IGN);
    if (!read_options(&told, argc, argv))
        return 2;
    bool done = stages_read(&stages, &told.workshop)
        && find_stage(&told, &stages)
        && told.command->run(&told, &stages);
    stages_free(&stages);
    if (fflush(stdout) != 0 || ferror(stdout))
        done = complain("standard output cannot be written");
    return done ? 0 : 1;
}
