#include <stdlib.h>
#include <string.h>
#include "command_mask.h"
#include "generator.h"
#include "mask.h"
#include "mask_study.h"

enum { SIZE_MAX_OPTION = 4096 };

struct options {
    int past, tokens;
    bool wrong, errors, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--past", &value))
            status = command_int(command, "--past", value, 0, SIZE_MAX_OPTION,
                                 &options->past);
        else if (command_option(argc, argv, &i, "--tokens", &value))
            status = command_int(command, "--tokens", value, 1, SIZE_MAX_OPTION,
                                 &options->tokens);
        else if (strcmp(argv[i], "--wrong") == 0)
            options->wrong = true;
        else if (strcmp(argv[i], "--errors") == 0)
            options->errors = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->past < 0 || options->tokens < 0))
        status = command_usage_error(command,
                                     "--past P and --tokens T are needed");
    return status;
}

static enum status print_mask(const struct options *options, mask_rule *rule,
                              struct error *error)
{
    const int keys = options->past + options->tokens;
    bool *keep = calloc((size_t)options->tokens, (size_t)keys * sizeof *keep);
    if (keep == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a mask [%d, %d]", options->tokens,
                         keys);
    rule(options->past, options->tokens, keep);
    if (options->json)
        mask_print_json(stdout, keep, options->past, options->tokens);
    else
        mask_print(stdout, keep, options->tokens, keys);
    free(keep);
    return STATUS_OK;
}

static void print_rows(const struct options *options, const double *single,
                       const double *chunk)
{
    const int past = options->past, all = past + options->tokens;
    if (options->json)
        printf("{\"past\": %d, \"tokens\": %d, \"rows\": [", past,
               options->tokens);
    else
        printf("position  tokenwise  chunk\n");
    for (int t = past; t < all; t++) {
        if (options->json)
            printf("%s{\"position\": %d, \"tokenwise\": %.9g, \"chunk\": %.9g}",
                   t == past ? "" : ", ", t, single[t], chunk[t]);
        else
            printf("%8d  %9.3g  %.3g\n", t, single[t], chunk[t]);
    }
    if (options->json)
        printf("]}\n");
}

static enum status print_errors(const struct options *options,
                                mask_rule *rule, struct error *error)
{
    static int32_t ids[2 * SIZE_MAX_OPTION];
    static double single[2 * SIZE_MAX_OPTION], chunk[2 * SIZE_MAX_OPTION];
    const int past = options->past, all = past + options->tokens;
    struct tiny_gpt *model = NULL;
    struct generator generator;
    generator_seed(&generator, 5, 1);
    for (int t = 0; t < all; t++)
        ids[t] = (int32_t)(generator_next(&generator) % 23);
    enum status status = mask_study_model(&model, error);
    if (status == STATUS_OK)
        status = mask_errors(model, ids, all, past, 1, rule, single, error);
    if (status == STATUS_OK)
        status = mask_errors(model, ids, all, past, options->tokens, rule,
                             chunk, error);
    if (status == STATUS_OK)
        print_rows(options, single, chunk);
    tiny_gpt_free(&model);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.past = -1, .tokens = -1};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    mask_rule *rule = options.wrong ? upper_left_mask : causal_mask;
    if ((options.errors ? print_errors : print_mask)(&options, rule, &error)
        != STATUS_OK)
        return command_failure(command, &error);
    return 0;
}

const struct command command_mask = {
    "mask", "which keys a query sees, and what a wrong mask costs",
    "usage: tinygpt mask --past P --tokens T [--wrong] [--errors] [--json]\n"
    "\n"
    "Prints the mask of T new tokens behind P cached ones: a row for each\n"
    "query, a column for each key, 1 where the query may see the key.\n"
    "P and T are at most 4096.\n"
    "\n"
    "  --wrong   the triangle in the upper-left corner instead\n"
    "  --errors  run a small random model under this mask, the T tokens one\n"
    "            at a time and in one chunk, and print the largest error of\n"
    "            each token's logits (P + T at most 256)\n"
    "  --json    the same as JSON\n",
    run
};
