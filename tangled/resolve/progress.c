#include "progress.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "page.h"
#include "summary.h"

static const struct stage *find_due(const struct score *score,
                                    const struct stages *stages,
                                    char due[11])
{
    const struct stage *first = NULL;
    for (size_t i = 0; i < stages->count; i++) {
        struct standing standing =
            score_standing(score, stages->items[i].key);
        if (standing.due[0] != '\0'
            && (first == NULL || strcmp(standing.due, due) < 0)) {
            first = &stages->items[i];
            strcpy(due, standing.due);
        }
    }
    return first;
}

static const struct stage *find_open(const struct score *score,
                                     const struct stages *stages)
{
    for (size_t i = 0; i < stages->count; i++) {
        const struct attempt *latest =
            score_latest(score, stages->items[i].key);
        if (latest != NULL && latest->result == RESULT_OPEN)
            return &stages->items[i];
    }
    return NULL;
}

static const struct stage *find_new(const struct score *score,
                                    const struct stages *stages)
{
    for (size_t i = 0; i < stages->count; i++)
        if (score_standing(score, stages->items[i].key).due[0] == '\0')
            return &stages->items[i];
    return NULL;
}

const struct stage *stage_due(const struct score *score,
                              const struct stages *stages, const char *today,
                              bool *now, char **why)
{
    char due[11] = "", date[32];
    const struct stage *stage = find_open(score, stages);
    *now = stage == NULL;
    if (stage != NULL) {
        *why = text_format("stage %s has an open attempt: make grade-%s",
                           stage->key, stage->key);
        return stage;
    }
    const struct stage *first = find_due(score, stages, due);
    text_date(date, due, today);
    if (first != NULL && strcmp(due, today) <= 0) {
        *why = strcmp(due, today) == 0
            ? text_format("stage %s is due today", first->key)
            : text_format("stage %s was due on %s", first->key, date);
        return first;
    }
    stage = find_new(score, stages);
    *now = stage != NULL;
    *why = stage != NULL ? text_format("stage %s is new", stage->key)
        : first != NULL ? text_format("nothing is due today; stage %s is "
                                      "next, on %s", first->key, date)
        : text_format("the book has no stages yet");
    return stage != NULL ? stage : first;
}

enum level level_due(const struct score *score, const struct stage *stage)
{
    return score_standing(score, stage->key).level;
}

static int length_of(const char *text)
{
    int length = 0;
    for (; *text != '\0'; text++)
        length += ((unsigned char)*text & 0xC0) != 0x80;
    return length;
}

/* Fills the width, from the right when it is negative. */
static void cell(FILE *out, int width, const char *text)
{
    int fill = abs(width) - length_of(text);
    fprintf(out, "%*s", width < 0 && fill > 0 ? fill : 0, "");
    put_plain(out, text);
    fprintf(out, "%*s  ", width > 0 && fill > 0 ? fill : 0, "");
}

static void title_cell(FILE *out, int width, const char *title)
{
    size_t bytes = 0;
    for (int length = 0; title[bytes] != '\0' && length < width - 1; length++)
        do
            bytes++;
        while (((unsigned char)title[bytes] & 0xC0) == 0x80);
    char *cut = text_format("%.*s…", (int)bytes, title);
    cell(out, width, length_of(title) > width ? cut : title);
    free(cut);
}

static void print_row(FILE *out, const char *key, const char *title,
                      const struct line *line)
{
    cell(out, 5, key);
    title_cell(out, 20, title);
    cell(out, -5, line->tries);
    cell(out, 9, line->best);
    cell(out, 16, line->last);
    fprintf(out, "%-*s%s\n", line->due[0] != '\0' ? 9 : 0, line->state,
            line->due);
}

static void print_stages(FILE *out, const struct score *score,
                         const struct stages *stages, const char *today)
{
    static const struct line head = { "tries", "best/min", "last result",
                                      "state", "due" };
    print_row(out, "stage", "title", &head);
    for (size_t i = 0; i < stages->count; i++) {
        const struct stage *stage = &stages->items[i];
        struct summary summary = summary_of(score, stage);
        struct line line = line_of(&summary, today);
        print_row(out, stage->key, stage->title, &line);
    }
}

static void print_decisions(FILE *out, const struct score *score,
                            const char *today)
{
    size_t count;
    struct decision *items = decisions_of(score, &count);
    const char *owner = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct attempt *attempt = items[i].attempt;
        char date[32];
        if (i == 0)
            fprintf(out, "\nFirst wrong decisions\n");
        if (owner == NULL || strcmp(owner, attempt->first_owner) != 0) {
            owner = attempt->first_owner;
            fprintf(out, "\n  %zu×  ", items[i].same);
            put_plain(out, owner[0] != '\0' ? owner : "(no test failed)");
            putc('\n', out);
        }
        text_date(date, attempt->end_date, today);
        fprintf(out, "       %s, stage %s: ", date, attempt->stage);
        put_plain(out, attempt->wrong);
        putc('\n', out);
    }
    free(items);
}

static void print_marks(FILE *out, const struct score *score)
{
    const struct attempt *items;
    size_t count = score_attempts(score, &items);
    bool paused = false, uncertain = false;
    for (size_t i = 0; i < count; i++) {
        bool counts = items[i].result != RESULT_ABANDONED;
        paused = paused || (counts && items[i].pauses > 0);
        uncertain = uncertain || (counts && items[i].uncertain);
    }
    if (paused)
        fprintf(out, "* with a pause\n");
    if (uncertain)
        fprintf(out, "~ with a restart of the machine, by wall time\n");
}

void progress_print(FILE *out, const struct score *score,
                    const struct stages *stages, const char *today)
{
    bool now;
    char *why;
    stage_due(score, stages, today, &now, &why);
    print_stages(out, score, stages, today);
    print_marks(out, score);
    fprintf(out, "\nmake next: %s\n", why);
    print_decisions(out, score, today);
    free(why);
}

static void print_uncounted(FILE *out, const struct attempt *attempt)
{
    char time[32];
    if (attempt->pauses > 0) {
        text_time(time, attempt->paused);
        fprintf(out, ", paused %d×, %s", attempt->pauses, time);
    }
    if (attempt->slept >= 60) {
        text_time(time, attempt->slept);
        fprintf(out, ", asleep for %s", time);
    }
    if (attempt->uncertain)
        fprintf(out, ", restarted");
}

static void print_attempt(FILE *out, size_t number,
                          const struct attempt *attempt)
{
    char *result = text_format("%s%s", text_result(attempt),
                               text_marks(attempt));
    char time[32];
    text_time(time, attempt->elapsed);
    fprintf(out, "%3zu  %.10s %.5s  ", number, attempt->began.stamp,
            attempt->began.stamp + 11);
    cell(out, 8, level_name(attempt->level));
    cell(out, 11, result);
    cell(out, -6, time);
    fprintf(out, "graded %d×", attempt->grades);
    print_uncounted(out, attempt);
    if (attempt->wrong[0] != '\0') {
        fprintf(out, "\n     first wrong decision: ");
        put_plain(out, attempt->wrong);
    }
    putc('\n', out);
    free(result);
}

void history_print(FILE *out, const struct score *score,
                   const struct stage *stage, const char *today)
{
    const struct attempt *items;
    size_t count = score_attempts(score, &items), number = 0;
    struct summary summary = summary_of(score, stage);
    struct line line = line_of(&summary, today);
    fprintf(out, "Stage %s, ", stage->key);
    put_plain(out, stage->title);
    fprintf(out, ": %d min, %s%s%s\n", stage->minutes, line.state,
            line.due[0] != '\0' ? ", due " : "", line.due);
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i].stage, stage->key) == 0)
            print_attempt(out, ++number, &items[i]);
    if (number == 0)
        fprintf(out, "no attempts yet: make blank-%s starts one\n",
                stage->key);
}

static bool printed(void)
{
    return (fflush(stdout) == 0 && !ferror(stdout))
        || complain("standard output: %s", strerror(errno));
}

bool command_progress(const struct workshop *workshop,
                      const struct stages *stages, bool html)
{
    struct score *score;
    struct moment now = moment_now();
    if (!score_open(&score, workshop))
        return false;
    bool done = true;
    if (!html)
        progress_print(stdout, score, stages, now.date);
    else if ((done = page_write(workshop, score, stages, now.date)))
        printf("%s/progress.html\n", workshop->build);
    score_close(&score);
    return done && printed();
}

bool command_history(const struct workshop *workshop,
                     const struct stage *stage)
{
    struct score *score;
    struct moment now = moment_now();
    if (!score_open(&score, workshop))
        return false;
    history_print(stdout, score, stage, now.date);
    score_close(&score);
    return printed();
}

static const struct attempt *open_attempt(const struct score *score,
                                          const struct stage *stage)
{
    const struct attempt *latest = score_latest(score, stage->key);
    if (latest != NULL && latest->result == RESULT_OPEN)
        return latest;
    if (latest == NULL)
        complain("stage %s was never begun: make blank-%s begins it",
                 stage->key, stage->key);
    else
        complain("the last attempt at stage %s is over (%s): make blank-%s "
                 "begins another", stage->key, text_result(latest),
                 stage->key);
    return NULL;
}

static bool set_paused(const struct workshop *workshop,
                       const struct stage *stage, bool pause)
{
    struct score *score;
    char time[32];
    if (!score_open(&score, workshop))
        return false;
    const struct attempt *attempt = open_attempt(score, stage);
    bool done = attempt != NULL;
    if (done && attempt->is_paused == pause)
        done = complain(pause
            ? "stage %s is paused already: make resume-%s lets it go on"
            : "stage %s is not paused: make pause-%s stops its clock",
            stage->key, stage->key);
    done = done && (pause ? score_pause : score_resume)(score, attempt);
    if (done) {
        text_time(time, attempt->elapsed);
        printf("stage %s: %s at %s of %d min%s%s\n", stage->key,
               pause ? "paused" : "goes on", time, stage->minutes,
               pause ? "; to go on: make resume-" : "",
               pause ? stage->key : "");
    }
    score_close(&score);
    return done && printed();
}

bool command_pause(const struct workshop *workshop, const struct stage *stage)
{
    return set_paused(workshop, stage, true);
}

bool command_resume(const struct workshop *workshop,
                    const struct stage *stage)
{
    return set_paused(workshop, stage, false);
}

bool command_abandon(const struct workshop *workshop,
                     const struct stage *stage)
{
    struct score *score;
    if (!score_open(&score, workshop))
        return false;
    const struct attempt *attempt = open_attempt(score, stage);
    bool done = attempt != NULL && score_abandon(score, attempt);
    if (done)
        printf("stage %s: abandoned, and will not count; the files stay in "
               "%s/%s\n", stage->key, workshop->attempts, attempt->folder);
    score_close(&score);
    return done && printed();
}
