#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "batching_study.h"
#include "command_batching.h"
#include "speaker.h"

enum { LIMIT = 65536, TIMES = 5 };

struct options {
    struct schedule_limits limits;
    int requests, prompt, mean, longest;
    int32_t *spreads;            /* [count] */
    int count;
    uint64_t seed;
    struct call_cost cost;
    const char *model;
    bool timeline, json;
};

static bool read_size(const struct command *command, int argc, char **argv,
                      int *i, struct options *options, int *status)
{
    const struct { const char *name; int *size; } sizes[] = {
        {"--slots", &options->limits.slots},
        {"--budget", &options->limits.budget},
        {"--requests", &options->requests}, {"--prompt", &options->prompt},
        {"--mean", &options->mean}, {"--longest", &options->longest}
    };
    const char *value;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (command_option(argc, argv, i, sizes[k].name, &value)) {
            *status = command_int(command, sizes[k].name, value, 1, LIMIT,
                                  sizes[k].size);
            return true;
        }
    return false;
}

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    const char *spreads = "0,25,50,75,100";
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (read_size(command, argc, argv, &i, options, &status))
            continue;
        if (command_option(argc, argv, &i, "--spread", &value))
            status = command_text(command, "--spread", value, &spreads);
        else if (command_option(argc, argv, &i, "--seed", &value))
            status = command_seed(command, "--seed", value, &options->seed);
        else if (command_option(argc, argv, &i, "--call", &value))
            status = command_double(command, "--call", value, &options->cost.call);
        else if (command_option(argc, argv, &i, "--token", &value))
            status = command_double(command, "--token", value, &options->cost.token);
        else if (command_option(argc, argv, &i, "--pair", &value))
            status = command_double(command, "--pair", value, &options->cost.pair);
        else if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (strcmp(argv[i], "--timeline") == 0)
            options->timeline = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0)
        status = command_ids(command, "--spread", spreads,
                             &options->spreads, &options->count);
    for (int k = 0; k < options->count && status == 0; k++)
        if (options->spreads[k] > 100)
            status = command_usage_error(command, "--spread: expected 0 to"
                                         " 100 percent, got %d",
                                         (int)options->spreads[k]);
    return status;
}

struct seat {
    int slot;
    long begin, answer, over, end;       /* steps; over = end: no wait */
};

static void note(void *context, int64_t step, int slot, int request,
                 bool prompt, bool over)
{
    struct seat *seat = (struct seat *)context + request;
    if (seat->end == 0)
        *seat = (struct seat){.slot = slot, .begin = step, .answer = step};
    seat->end = step + 1;
    if (prompt)
        seat->answer = step + 1;
    if (!over)
        seat->over = step + 1;
}

static enum status print_timeline(const struct options *options,
                                  const struct batch_load *load,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    for (int rule = 0; rule < 2 && status == STATUS_OK; rule++) {
        struct seat *seats = calloc((size_t)load->count, sizeof *seats);
        struct batch_count count;
        if (seats == NULL)
            return error_set(error, STATUS_NO_MEMORY,
                             "no memory for %d requests", load->count);
        status = batching_count((enum batch_rule)rule, &options->limits, load,
                                &options->cost, note, seats, &count, error);
        for (int k = 0; k < load->count && status == STATUS_OK; k++)
            printf("%d %d %d %ld %ld %ld %ld\n", rule, seats[k].slot, k,
                   seats[k].begin, seats[k].answer, seats[k].over,
                   seats[k].end);
        free(seats);
    }
    return status;
}

struct played {
    struct batch_count count[2];
    struct batch_time time[2];   /* the best of some */
};

static enum status play(const struct options *options,
                        const struct causal_lm *lm,
                        const struct batch_load *load, struct played *played,
                        struct error *error)
{
    enum status status = STATUS_OK;
    for (int rule = 0; rule < 2 && status == STATUS_OK; rule++)
        status = batching_count((enum batch_rule)rule, &options->limits, load,
                                &options->cost, NULL, NULL,
                                &played->count[rule], error);
    for (int n = 0; lm != NULL && n < 2 * TIMES && status == STATUS_OK; n++) {
        struct batch_time *best = &played->time[n % 2], time;
        status = batching_time((enum batch_rule)(n % 2), lm, &options->limits,
                               load, options->seed, &time, error);
        if (status == STATUS_OK && (n < 2 || time.seconds < best->seconds))
            *best = time;
    }
    return status;
}

static void print_row(const struct options *options, int spread,
                      const struct played *played, bool first)
{
    const double slots = options->limits.slots;
    if (options->json)
        printf(first ? "{\"spread_percent\": " : ",\n {\"spread_percent\": ");
    if (spread != GEOMETRIC)
        printf(options->json ? "%d" : "%6d", spread);
    else
        printf(options->json ? "null" : " geom.");
    for (int rule = 0; rule < 2; rule++) {
        const struct batch_count *count = &played->count[rule];
        const double steps = (double)count->steps;
        if (options->json)
            printf(", \"%s\": {\"steps\": ",
                   rule == 0 ? "static" : "continuous");
        printf(options->json ? "%.0f, \"tokens_a_step\": %.3f,"
                               " \"busy_percent\": %.2f}"
                             : "   %8.0f %7.2f %6.1f",
               steps, (double)count->tokens / steps,
               100 * (double)count->busy / (slots * steps));
    }
    printf(options->json ? ", \"faster\": %.3f" : "   %6.2f",
           played->count[0].time / played->count[1].time);
    if (options->model != NULL)
        printf(options->json ? ", \"static_tokens_a_second\": %.1f,"
               " \"continuous_tokens_a_second\": %.1f" : "   %7.0f %7.0f",
               (double)played->time[0].tokens / played->time[0].seconds,
               (double)played->time[1].tokens / played->time[1].seconds);
    printf(options->json ? "}" : "\n");
}

static void print_head(const struct options *options)
{
    if (options->json) {
        printf("[");
        return;
    }
    printf("        waits for the longest      handed on at once\n"
           "spread      steps  a step  busy %%      steps  a step  busy %%"
           "   faster%s\n",
           options->model != NULL ? "   tokens a second" : "");
}

static enum status print_all(const struct options *options,
                             const struct causal_lm *lm, struct error *error)
{
    int *wanted = calloc((size_t)options->requests, sizeof *wanted);
    enum status status = STATUS_OK;
    if (wanted == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d lengths",
                         options->requests);
    const struct batch_load load = {options->prompt, wanted,
                                    options->requests};
    for (int k = options->timeline ? options->count : 0;
         k <= options->count && status == STATUS_OK; k++) {
        const int spread = k < options->count ? options->spreads[k]
                                              : GEOMETRIC;
        batch_lengths(options->seed, options->mean, spread, options->longest,
                      options->requests, wanted);
        struct played played;
        if (options->timeline) {
            status = print_timeline(options, &load, error);
        } else {
            status = play(options, lm, &load, &played, error);
            if (status == STATUS_OK && k == 0)
                print_head(options);
            if (status == STATUS_OK)
                print_row(options, spread, &played, k == 0);
        }
    }
    if (status == STATUS_OK && options->json && !options->timeline)
        printf("]\n");
    free(wanted);
    return status;
}

static enum status with_model(const struct options *options,
                              struct error *error)
{
    struct speaker speaker = {0};
    enum status status = speaker_open(&speaker, options->model, NULL, false,
                                      error);
    if (status == STATUS_OK)
        status = print_all(options, &speaker.lm, error);
    speaker_close(&speaker);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {
        .limits = {64, 8}, .requests = 256, .prompt = 8, .mean = 24,
        .longest = 120, .seed = 1, .cost = {8, 42, 0.17}
    };
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status == 0
        && (options.model != NULL ? with_model(&options, &error)
            : print_all(&options, NULL, &error)) != STATUS_OK)
        status = command_failure(command, &error);
    free(options.spreads);
    return status;
}

const struct command command_batching = {
    "batching", "slots that wait for the longest text, and slots handed on",
    "usage: tinygpt batching [--slots R] [--budget M] [--requests K]\n"
    "                        [--prompt T] [--mean N] [--longest N]\n"
    "                        [--spread PERCENT,...] [--seed S] [--call US]\n"
    "                        [--token US] [--pair US] [--model DIR]\n"
    "                        [--timeline] [--json]\n"
    "\n"
    "K requests (256) with prompts of T tokens (8) are served in R slots\n"
    "(8) with M tokens a step (64). They want N tokens in the mean (24) and\n"
    "at most 120: spread evenly around the mean (0,25,50,75,100 percent),\n"
    "and in the last row by a geometric law. Printed, for batches that wait\n"
    "for their longest text and for slots that are handed on: steps, tokens\n"
    "a step, percent of the slots that work; and how many times faster the\n"
    "second is, if a call costs 8, a token 42 and a key 0.17 microseconds.\n"
    "\n"
    "  --model DIR  runs it on a model too, in tokens a second\n"
    "  --timeline   the last row, to be drawn: rule (0: waits), slot,\n"
    "               request, and the steps in which the prompt begins, the\n"
    "               answer begins, the waiting begins, and all ends\n",
    run
};
