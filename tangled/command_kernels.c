#include <stdio.h>
#include <string.h>
#include "command_kernels.h"
#include "kernels.h"
#include "ladder.h"
#include "thread_count.h"

enum { SIZE_MOST = 1 << 20, MEGABYTES_MOST = 1 << 20 };

struct options {
    int out, in, rows, threads, rounds, megabytes;
    bool json;
};

static int read_options(const struct command *command, int argc, char **argv,
                        struct options *options)
{
    const struct { const char *name; int most, *to; } numbers[] = {
        {"--outputs", SIZE_MOST, &options->out},
        {"--inputs", SIZE_MOST, &options->in},
        {"--rows", 1 << 16, &options->rows},
        {"--threads", LIMIT_THREADS, &options->threads},
        {"--rounds", SAMPLES_MAX, &options->rounds},
        {"--mb", MEGABYTES_MOST, &options->megabytes}};
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        bool found = strcmp(argv[i], "--json") == 0;
        options->json = options->json || found;
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers && !found; k++)
            if (command_option(argc, argv, &i, numbers[k].name, &value)) {
                status = command_int(command, numbers[k].name, value, 1,
                                     numbers[k].most, numbers[k].to);
                found = true;
            }
        if (!found)
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    const int sizes = (options->out > 0) + (options->in > 0)
                      + (options->rows > 0);
    if (status == 0 && sizes % 3 != 0)
        status = command_usage_error(command, "expected three sizes or none,"
                                     " got %d", sizes);
    return status;
}

static void print_rung(const struct rung *rung, bool single, bool json,
                       bool first)
{
    const double rate = samples_median(&rung->rates) / 1e9;
    const double part = samples_median(&rung->fractions);
    if (json)
        printf("%s{\"rung\": \"%s\", \"threads\": %d, \"rate\": %.4g,"
               " \"fraction\": %.4g, \"spread\": %.3g}",
               first ? "" : ",\n ", rung->name, rung->threads, rate, part,
               samples_spread(&rung->fractions));
    else
        printf("%-10s  %7d  %8.1f %-8s  %5.1f %%\n", rung->name,
               rung->threads, rate, single ? "GB/s" : "GFLOP/s", 100 * part);
}

static void print_ladder(const struct ladder_plan *plan,
                         const struct ladder *ladder, bool json)
{
    const bool single = plan->rows == 1 && plan->heads == 0;
    if (json)
        printf("{\"outputs\": %d, \"inputs\": %d, \"rows\": %d,"
               " \"heads\": %d, \"unit\": \"%s\", \"rungs\": [\n ",
               plan->out, plan->in, plan->rows, plan->heads,
               single ? "GB/s" : "GFLOP/s");
    else if (plan->heads > 0)
        printf("attention, %d heads of %d, tokens: %d\n", plan->heads,
               plan->in, plan->rows);
    else
        printf("[%d,%d], rows: %d\n", plan->out, plan->in, plan->rows);
    if (!json)
        printf("rung        threads      rate                 limit\n");
    for (int k = 0; k < ladder->count; k++)
        print_rung(&ladder->rungs[k], single, json, k == 0);
    if (json)
        printf("\n]}");
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.rounds = 9, .megabytes = 256};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    const int available = thread_count_available();
    const struct ladder_plan plan = {
        .out = 768, .in = 3072, .rows = 256,
        .threads = options.threads > 0 ? options.threads
                   : available < LIMIT_THREADS ? available : LIMIT_THREADS,
        .rounds = options.rounds,
        .limit_bytes = (size_t)options.megabytes << 20,
        .watch = stopwatch_monotonic()};
    struct ladder_plan plans[] = {plan, plan, plan};
    plans[1].out = 49152;
    plans[1].in = 768;
    plans[1].rows = 1;
    plans[2].heads = 12;
    plans[2].in = 64;
    plans[2].rows = 512;
    const int count = options.out > 0 ? 1 : 3;
    if (options.out > 0) {
        plans[0].out = options.out;
        plans[0].in = options.in;
        plans[0].rows = options.rows;
    }
    if (options.json)
        printf("{\"kernels\": \"%s\", \"ladders\": [\n",
               kernels_best()->name);
    for (int k = 0; k < count; k++) {
        struct ladder ladder;
        if (ladder_measure(&plans[k], &ladder, &error) != STATUS_OK)
            return command_failure(command, &error);
        if (k > 0)
            printf(options.json ? ",\n" : "\n");
        print_ladder(&plans[k], &ladder, options.json);
    }
    if (options.json)
        printf("\n]}\n");
    return 0;
}

const struct command command_kernels = {
    "kernels", "what each idea of the kernels gains",
    "usage: tinygpt kernels [--outputs O --inputs I --rows R] [--threads N]\n"
    "                       [--rounds K] [--mb M] [--json]\n"
    "\n"
    "Computes one layer by the plain loop, by each idea of the kernels in\n"
    "turn and by the kernels, and prints what part of the machine's limit\n"
    "that is: of its arithmetic for several rows, of its bandwidth for one.\n"
    "Without sizes two layers, 768 outputs of 3072 inputs for 256 rows and\n"
    "49152 of 768 for one, and attention of 12 heads of 64 to 512 tokens.\n"
    "O is a multiple of 32.\n"
    "\n"
    "  --threads N  of the last rungs (all that there are, at most 64)\n"
    "  --rounds K   medians of K rounds (9), at most 100\n"
    "  --mb M       bytes that the bandwidth is measured with (256), in MB\n"
    "  --json       the same as JSON, with quartiles\n",
    run
};
