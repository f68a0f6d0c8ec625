#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "causal_lm.h"
#include "command_schedule.h"
#include "model_file.h"
#include "schedule_study.h"

struct options {
    const char *measure;
    int32_t *budgets;            /* [count] */
    int count, slots, chats, prompts;
    double every;                /* milliseconds */
    struct call_cost cost;       /* microseconds */
    bool steps, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    const char *budgets = "8,12,16,24,32,48,64,96,128";
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--budget", &value))
            status = command_text(command, "--budget", value, &budgets);
        else if (command_option(argc, argv, &i, "--slots", &value))
            status = command_int(command, "--slots", value, 1, 1024,
                                 &options->slots);
        else if (command_option(argc, argv, &i, "--chats", &value))
            status = command_int(command, "--chats", value, 0, 1024,
                                 &options->chats);
        else if (command_option(argc, argv, &i, "--prompts", &value))
            status = command_int(command, "--prompts", value, 0, 1024,
                                 &options->prompts);
        else if (command_option(argc, argv, &i, "--every", &value))
            status = command_double(command, "--every", value, &options->every);
        else if (command_option(argc, argv, &i, "--call", &value))
            status = command_double(command, "--call", value, &options->cost.call);
        else if (command_option(argc, argv, &i, "--token", &value))
            status = command_double(command, "--token", value, &options->cost.token);
        else if (command_option(argc, argv, &i, "--pair", &value))
            status = command_double(command, "--pair", value, &options->cost.pair);
        else if (command_option(argc, argv, &i, "--measure", &value))
            status = command_text(command, "--measure", value, &options->measure);
        else if (strcmp(argv[i], "--steps") == 0)
            options->steps = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0)
        status = command_ids(command, "--budget", budgets, &options->budgets,
                             &options->count);
    if (status == 0 && options->count < 1)
        status = command_usage_error(command, "--budget: expected a number");
    if (status == 0 && options->steps && options->count > 1)
        status = command_usage_error(command, "--steps needs one --budget");
    return status;
}

static void set_scene(const struct options *options, struct job *jobs)
{
    for (int j = 0; j < options->chats; j++)
        jobs[j] = (struct job){.prompt = 8, .wanted = 120};
    for (int k = 0; k < options->prompts; k++)
        jobs[options->chats + k] = (struct job){
            .arrival = (k + 1) * options->every, .prompt = 96, .wanted = 16
        };
}

static void print_step(void *context, double begin, double end,
                       const struct job *jobs, const struct share *shares,
                       int count)
{
    bool *started = context;
    int decoded = 0, prompt = 0;
    for (int k = 0; k < count; k++)
        if (job_decodes(&jobs[shares[k].job]))
            decoded++;
        else
            prompt += shares[k].tokens;
    if (!*started)
        printf(" begin ms   step ms   chats prompts\n");
    *started = true;
    printf("%9.3f %9.3f %7d %7d\n", begin, end - begin, decoded, prompt);
}

struct played {
    struct latency prompts, chats;
};

static enum status play(const struct options *options, struct job *jobs,
                        struct timing *timings, struct played *played,
                        struct error *error)
{
    const int chats = options->chats, prompts = options->prompts;
    bool started = false;
    struct simulation simulation = {
        .limits = {.slots = options->slots},
        .cost = {options->cost.call / 1000, options->cost.token / 1000,
                 options->cost.pair / 1000},
        .jobs = jobs, .count = chats + prompts,
        .on_step = options->steps ? print_step : NULL, .context = &started
    };
    enum status status = STATUS_OK;
    for (int k = 0; k < options->count && status == STATUS_OK; k++) {
        simulation.limits.budget = options->budgets[k];
        status = simulate(&simulation, timings, error);
        if (status == STATUS_OK && chats > 0)
            played[k].chats = latency_of(jobs, timings, chats);
        if (status == STATUS_OK && prompts > 0)
            played[k].prompts = latency_of(jobs + chats, timings + chats,
                                           prompts);
    }
    return status;
}

static void print_played(const struct options *options,
                         const struct played *played)
{
    const char *row = options->json
        ? "%s{\"budget\": %d, \"first_mean\": %.9g, \"first_worst\": %.9g,"
          " \"gap_mean\": %.9g, \"gap_worst\": %.9g}"
        : "%s%6d %11.3f %11.3f %9.3f %9.3f\n";
    printf(options->json ? "{\"budgets\": [" : "budget  first mean"
           "       worst  gap mean     worst\n");
    for (int k = 0; k < options->count; k++) {
        const struct latency *prompts = &played[k].prompts;
        const struct latency *chats = &played[k].chats;
        printf(row, options->json && k > 0 ? ", " : "", options->budgets[k],
               prompts->first_mean, prompts->first_worst, chats->gap_mean,
               chats->gap_worst);
    }
    if (options->json)
        printf("]}\n");
}

static enum status play_scene(const struct options *options,
                              struct error *error)
{
    const size_t count = (size_t)options->chats + (size_t)options->prompts;
    struct job *jobs = calloc(count + 1, sizeof *jobs);
    struct timing *timings = calloc(count + 1, sizeof *timings);
    struct played *played = calloc((size_t)options->count, sizeof *played);
    enum status status;
    if (jobs == NULL || timings == NULL || played == NULL) {
        status = error_set(error, STATUS_NO_MEMORY,
                           "no memory for %zu requests", count);
    } else {
        set_scene(options, jobs);
        status = play(options, jobs, timings, played, error);
    }
    if (status == STATUS_OK && !options->steps)
        print_played(options, played);
    free(jobs);
    free(timings);
    free(played);
    return status;
}

enum { SAMPLES_MAX = 4 * 31, ROUNDS = 30 };

struct bench {
    struct causal_lm lm;
    struct past_key_values storage;      /* [1,H,N,D] */
    int32_t *ids, *positions;            /* [N] */
    float *logits, *scratch;             /* [V] and what a step needs */
    size_t floats;
};

static enum status bench_new(struct bench *bench, const struct causal_lm *lm,
                             struct error *error)
{
    const int context = lm->context_length;
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    bench->lm = *lm;
    bench->floats = lm->scratch_size(lm->model, 1, context, context);
    bench->ids = calloc((size_t)context, sizeof *bench->ids);
    bench->positions = calloc((size_t)context, sizeof *bench->positions);
    bench->logits = calloc((size_t)lm->vocab_size, sizeof *bench->logits);
    bench->scratch = calloc(bench->floats, sizeof *bench->scratch);
    if (bench->ids == NULL || bench->positions == NULL
        || bench->logits == NULL || bench->scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a call of %d tokens", context);
    return past_key_values_new(&bench->storage, &shape, 1, context, error);
}

static void bench_free(struct bench *bench)
{
    past_key_values_free(&bench->storage);
    free(bench->ids);
    free(bench->positions);
    free(bench->logits);
    free(bench->scratch);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status time_call(struct bench *bench,
                             struct call_sample *sample, struct error *error)
{
    const int32_t length = sample->before;
    const struct step step = {
        .ids = bench->ids, .positions = bench->positions, .batch = 1,
        .tokens = sample->tokens, .storage = &bench->storage,
        .lengths = &length, .last_only = true, .logits = bench->logits
    };
    for (int t = 0; t < sample->tokens; t++)
        bench->positions[t] = length + t;
    const double begin = seconds();
    enum status status = causal_lm_step(&bench->lm, &step, bench->scratch,
                                        bench->floats, error);
    sample->time = fmin(sample->time, 1e6 * (seconds() - begin));
    return status;
}

static int choose_calls(int context, struct call_sample *samples)
{
    int count = 0;
    for (int quarter = 0; quarter < 4; quarter++) {
        const int before = context / 4 * quarter;
        for (int power = 0; power < 31; power++)
            if (1 << power <= context - before)
                samples[count++] = (struct call_sample){
                    before, 1 << power, HUGE_VAL
                };
    }
    return count;
}

static enum status time_calls(struct bench *bench,
                              struct call_sample *samples, int count,
                              struct error *error)
{
    enum status status = STATUS_OK;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count && status == STATUS_OK; i++)
            status = time_call(bench, &samples[i], error);
    return status;
}

static void print_cost(const struct call_cost *cost,
                       const struct call_sample *samples, int count,
                       bool json)
{
    double worst = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        const struct call_sample *sample = &samples[i];
        const double fitted = cost->call + sample->tokens * cost->token
            + call_keys(sample->before, sample->tokens) * cost->pair;
        const double off = fabs(fitted / sample->time - 1);
        worst = fmax(worst, off);
        sum += off * off;
    }
    printf(json ? "{\"call\": %.9g, \"token\": %.9g, \"pair\": %.9g,"
           " \"samples\": %d, \"rms_error\": %.3g, \"worst_error\": %.3g}\n"
           : "--call %.1f --token %.2f --pair %.4f\n%d calls, relative error"
           " %.3f root mean square, %.3f at worst\n", cost->call, cost->token,
           cost->pair, count, sqrt(sum / count), worst);
}

static enum status measure(const struct options *options, struct error *error)
{
    struct tiny_gpt *model = NULL;
    struct bench bench = {0};
    struct call_sample samples[SAMPLES_MAX];
    struct call_cost cost;
    int count = 0;
    enum status status = tiny_gpt_load(&model, options->measure, error);
    if (status == STATUS_OK) {
        const struct causal_lm lm = tiny_gpt_causal_lm(model);
        status = bench_new(&bench, &lm, error);
    }
    if (status == STATUS_OK) {
        count = choose_calls(bench.lm.context_length, samples);
        status = time_calls(&bench, samples, count, error);
    }
    if (status == STATUS_OK)
        status = call_cost_fit(samples, count, &cost, error);
    if (status == STATUS_OK)
        print_cost(&cost, samples, count, options->json);
    bench_free(&bench);
    tiny_gpt_free(&model);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {
        .slots = 8, .chats = 4, .prompts = 3, .every = 10,
        .cost = {8, 42, 0.17}
    };
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status == 0
        && (options.measure != NULL ? measure : play_scene)(&options, &error)
           != STATUS_OK)
        status = command_failure(command, &error);
    free(options.budgets);
    return status;
}

const struct command command_schedule = {
    "schedule", "who waits how long when prompts share the steps with chats",
    "usage: tinygpt schedule [--budget M,M,...] [--slots R] [--chats D]\n"
    "                        [--prompts P] [--every MS] [--call US]\n"
    "                        [--token US] [--pair US] [--steps] [--json]\n"
    "       tinygpt schedule --measure DIR [--json]\n"
    "\n"
    "D chats (4) have prompts of 8 tokens at time 0 and want 120 each. P\n"
    "prompts (3) of 96 tokens follow, one every MS milliseconds (10), and want\n"
    "16. A step feeds at most M tokens, to at most R requests (8). Printed, for\n"
    "each M: from arrival to the first token, for the prompts; from token to\n"
    "token, for the chats; mean and worst, in milliseconds.\n"
    "\n"
    "  --call, --token, --pair  what a step costs (8), a token in it (42), and\n"
    "                           each key that it sees (0.17), in microseconds\n"
    "  --steps                  each step of one budget instead: when, how\n"
    "                           long, how many tokens of chats and of prompts\n"
    "  --measure DIR            the three costs of the model in DIR, here\n"
    ,
    run
};
