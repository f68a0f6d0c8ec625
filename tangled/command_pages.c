#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "command_pages.h"
#include "config.h"
#include "page_study.h"

enum { SIZE_LIMIT = 16384, ROWS = 16, REPEATS = 15 };

struct options {
    int sequences, longest;
    uint64_t seed;
    const char *config;
    bool json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--sequences", &value))
            status = command_int(command, "--sequences", value, 1,
                                 SIZE_LIMIT, &options->sequences);
        else if (command_option(argc, argv, &i, "--longest", &value))
            status = command_int(command, "--longest", value, 1, SIZE_LIMIT,
                                 &options->longest);
        else if (command_option(argc, argv, &i, "--seed", &value))
            status = command_seed(command, "--seed", value, &options->seed);
        else if (command_option(argc, argv, &i, "--config", &value))
            status = command_text(command, "--config", value,
                                  &options->config);
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    return status;
}

static void print_row(const struct options *options, int block_size,
                      const struct page_waste *waste, double gather,
                      bool first)
{
    const double held = waste->waste + waste->tokens;
    printf(options->json ? "%s{\"block_size\": %d, \"blocks\": %.0f,"
                           " \"waste\": %.0f, \"formula\": %.1f,"
                           " \"percent\": %.2f"
                         : "%s%10d  %7.0f  %8.0f  %9.1f  %7.2f",
           first || !options->json ? "" : ",\n ", block_size, waste->blocks,
           waste->waste, waste->formula, 100 * waste->waste / held);
    if (options->config != NULL)
        printf(options->json ? ", \"gather_ms\": %.3f" : "  %9.3f",
               1e3 * gather);
    printf(options->json ? "}" : "\n");
}

static enum status measure(const struct options *options, const int *sizes,
                           int count, struct page_waste *waste,
                           double *gather, struct error *error)
{
    struct gpt_config config = {0};
    enum status status = STATUS_OK;
    if (options->config != NULL)
        status = gpt_config_read(&config, options->config, error);
    for (int k = 0; status == STATUS_OK && k < count; k++) {
        status = page_waste_measure(sizes[k], options->sequences,
                                    options->longest, options->seed,
                                    &waste[k], error);
        if (status == STATUS_OK && options->config != NULL) {
            const struct cache_shape shape = {config.n_layers, config.n_heads,
                                              gpt_config_head_dim(&config)};
            status = page_gather_measure(&shape, sizes[k], options->longest,
                                         REPEATS, &gather[k], error);
        }
    }
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {256, 1024, 1, NULL, false};
    struct page_waste waste[ROWS];
    double gather[ROWS] = {0};
    struct error error;
    int sizes[ROWS], count = 0;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    for (int size = 1; size < options.longest; size *= 2)
        sizes[count++] = size;
    sizes[count++] = options.longest;
    if (measure(&options, sizes, count, waste, gather, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (options.json)
        printf("{\"sequences\": %d, \"longest\": %d, \"tokens\": %.0f,"
               " \"rows\": [\n ", options.sequences, options.longest,
               waste[0].tokens);
    else
        printf("block size   blocks     waste    formula  percent%s\n",
               options.config != NULL ? "  gather ms" : "");
    for (int k = 0; k < count; k++)
        print_row(&options, sizes[k], &waste[k], gather[k], k == 0);
    if (options.json)
        printf("\n]}\n");
    return 0;
}

const struct command command_pages = {
    "pages", "what blocks of a paged cache hold and do not use",
    "usage: tinygpt pages [--sequences Q] [--longest N] [--seed S]\n"
    "                     [--config FILE] [--json]\n"
    "\n"
    "Appends Q texts (256) of 1 to N tokens (1024) to paged caches with\n"
    "block sizes 1, 2, 4 ... N, and prints the blocks that are used, the\n"
    "slots in them without a token, what the formula Q (G - 1) / 2 says,\n"
    "and the waste in percent of all slots held. Both are at most 16384.\n"
    "\n"
    "  --config FILE  times a gather of N tokens too, in ms (median of 15),\n"
    "                 from a cache of this shape\n"
    "  --json         the same as JSON\n",
    run
};
