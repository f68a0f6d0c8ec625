#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "cache_study.h"
#include "command_cache.h"
#include "model.h"

enum { STEPS = 8, REPEATS = 15 };

struct options {
    const char *config;
    int batch;
    bool measure, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--config", &value))
            status = command_text(command, "--config", value,
                                  &options->config);
        else if (command_option(argc, argv, &i, "--batch", &value))
            status = command_int(command, "--batch", value, 1, INT_MAX,
                                 &options->batch);
        else if (strcmp(argv[i], "--measure") == 0)
            options->measure = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->config == NULL)
        status = command_usage_error(command, "--config FILE is needed");
    return status;
}

static void print_row(const struct options *options, int context,
                      const struct cache_traffic *traffic,
                      const struct cache_times *times, bool first)
{
    printf(options->json ? "%s{\"context\": %d, \"reads\": %.0f,"
                           " \"functional\": %.0f, \"in_place\": %.0f"
                         : "%s%7d  %13.0f  %13.0f  %13.0f",
           first || !options->json ? "" : ",\n ", context, traffic->reads,
           traffic->functional, traffic->in_place);
    if (times != NULL)
        printf(options->json ? ", \"functional_ms\": %.3f,"
                               " \"in_place_ms\": %.3f"
                             : "  %13.3f  %11.3f",
               1e3 * times->functional, 1e3 * times->in_place);
    printf(options->json ? "}" : "\n");
}

static enum status print_table(const struct options *options,
                               const struct gpt_config *config,
                               const struct tiny_gpt *model,
                               struct error *error)
{
    const struct cache_shape shape = {config->n_layers, config->n_heads,
                                      gpt_config_head_dim(config)};
    struct cache_times times[STEPS];
    int contexts[STEPS], count = 0;
    for (int k = 1; k <= STEPS; k++) {
        const int context = (int)((long long)config->context_length * k
                                  / STEPS);
        if (context >= 2)
            contexts[count++] = context;
    }
    for (int k = 0; model != NULL && k < count; k++) {
        const struct causal_lm lm = tiny_gpt_causal_lm(model);
        enum status status = cache_times_measure(&lm, options->batch, contexts[k],
                                                 REPEATS, &times[k], error);
        if (status != STATUS_OK)
            return status;
    }
    if (options->json)
        printf("{\"batch\": %d, \"rows\": [\n ", options->batch);
    else
        printf("context  attention rd  functional wr    in place wr%s\n",
               model ? "  functional ms  in place ms" : "");
    for (int k = 0; k < count; k++) {
        const struct cache_traffic traffic = cache_traffic(&shape, options->batch,
                                                           contexts[k]);
        print_row(options, contexts[k], &traffic, model ? &times[k] : NULL,
                  k == 0);
    }
    if (options->json)
        printf("\n]}\n");
    return STATUS_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.batch = 1};
    struct gpt_config config;
    struct tiny_gpt *model = NULL;
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    if (gpt_config_read(&config, options.config, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (options.measure && tiny_gpt_new(&model, &config, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (print_table(&options, &config, model, &error) != STATUS_OK)
        status = command_failure(command, &error);
    tiny_gpt_free(&model);
    return status;
}

const struct command command_cache = {
    "cache", "what a decoded token reads and writes in its cache",
    "usage: tinygpt cache --config FILE [--batch B] [--measure] [--json]\n"
    "\n"
    "For eight contexts up to the config's: the bytes of keys and values\n"
    "that one more token in each of B rows (1) makes attention read, and\n"
    "those that are written by a functional cache and by one in place.\n"
    "\n"
    "  --measure  run a model of zeros with this config, and print\n"
    "             milliseconds a token for both (median of 15)\n"
    "  --json     the same as JSON\n",
    run
};
