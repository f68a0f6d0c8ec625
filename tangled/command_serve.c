#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "command_serve.h"
#include "server.h"

enum { WAITING = 64 };

struct options {
    const char *model, *tokenizer;
    struct slots_limits limits;
    bool stats;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    struct slots_limits *limits = &options->limits;
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value,
                                  &options->model);
        else if (command_option(argc, argv, &i, "--tokenizer", &value))
            status = command_text(command, "--tokenizer", value,
                                  &options->tokenizer);
        else if (command_option(argc, argv, &i, "--slots", &value))
            status = command_int(command, "--slots", value, 1, 4096,
                                 &limits->slots);
        else if (command_option(argc, argv, &i, "--capacity", &value))
            status = command_int(command, "--capacity", value, 1, INT_MAX,
                                 &limits->capacity);
        else if (command_option(argc, argv, &i, "--budget", &value))
            status = command_int(command, "--budget", value, 1, INT_MAX,
                                 &limits->budget);
        else if (strcmp(argv[i], "--stats") == 0)
            options->stats = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->model == NULL)
        status = command_usage_error(command, "--model DIR is needed");
    return status;
}

static void print_counts(const struct served *served)
{
    const struct slots_counts *counts = &served->counts;
    fprintf(stderr, "requests: %ld of %ld lines\nsteps: %lld, calls: %lld\n"
            "tokens: %lld fed, %lld said\n", served->requests,
            served->lines, (long long)counts->steps, (long long)counts->calls,
            (long long)counts->fed, (long long)counts->emitted);
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.limits = {.slots = 8, .waiting = WAITING}};
    struct slots_limits *limits = &options.limits;
    struct speaker speaker = {0};
    struct served served = {0};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    enum status done = speaker_open(&speaker, options.model,
                                    options.tokenizer, false, &error);
    if (limits->capacity == 0)
        limits->capacity = speaker.lm.context_length;
    if (limits->budget == 0)
        limits->budget = limits->slots > 64 ? limits->slots : 64;
    if (done == STATUS_OK)
        done = serve_lines(&speaker, limits, STDIN_FILENO, stdout, &served,
                           &error);
    if (done == STATUS_OK && options.stats)
        print_counts(&served);
    if (done == STATUS_OK && served.refused > 0)
        done = error_set(&error, STATUS_INVALID, "%ld of %ld lines were"
                         " refused", served.refused, served.lines);
    speaker_close(&speaker);
    return done == STATUS_OK ? 0 : command_failure(command, &error);
}

const struct command command_serve = {
    "serve", "answer requests that come as lines of JSON",
    "usage: tinygpt serve --model DIR [--tokenizer FILE] [--slots R]\n"
    "                     [--capacity S] [--budget M] [--stats]\n"
    "\n"
    "Reads requests from standard input, one JSON object a line, such as\n"
    "\n"
    "  {\"id\": \"a\", \"prompt\": \"The mask \", \"max_new_tokens\": 20,\n"
    "   \"temperature\": 0.8, \"seed\": 1, \"stop\": \".\"}\n"
    "\n"
    "(in one line) and writes each token as a line of JSON when it is there,\n"
    "and how the request has ended. Other fields: prompt_ids, eos, stop_ids.\n"
    "{\"cancel\": \"a\"} ends that request. A line that is refused is answered\n"
    "with an error, and the others go on; the status is then 1.\n"
    "\n"
    "R requests (8) are answered at a time, in slots of S tokens (the model's\n"
    "context), with at most M tokens a step (64 or R). --stats counts on\n"
    "standard error.\n"
    ,
    run
};
