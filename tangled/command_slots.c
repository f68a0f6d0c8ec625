#include "command_slots.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "generator.h"
#include "mask_study.h"
#include "mixed_mask.h"
#include "mixed_study.h"

enum { SLOTS_MAX = 4096 };

struct options {
    int32_t *lengths, *starts;   /* owned */
    int batch, start_count;
    int tokens, longest;
    bool errors, json;
};

static int read_option(const struct command *command, int argc, char **argv,
                       int *i, struct options *options)
{
    const char *value;
    if (command_option(argc, argv, i, "--lengths", &value)) {
        free(options->lengths);
        options->lengths = NULL;
        return command_ids(command, "--lengths", value, &options->lengths,
                           &options->batch);
    }
    if (command_option(argc, argv, i, "--starts", &value)) {
        free(options->starts);
        options->starts = NULL;
        return command_ids(command, "--starts", value, &options->starts,
                           &options->start_count);
    }
    if (command_option(argc, argv, i, "--tokens", &value))
        return command_int(command, "--tokens", value, 1, SLOTS_MAX,
                           &options->tokens);
    if (strcmp(argv[*i], "--errors") == 0)
        return options->errors = true, 0;
    if (strcmp(argv[*i], "--json") == 0)
        return options->json = true, 0;
    return command_usage_error(command, "no option %s", argv[*i]);
}

static int check_options(const struct command *command,
                         struct options *options)
{
    if (options->batch == 0 || options->tokens == 0)
        return command_usage_error(command,
                                   "--lengths and --tokens are needed");
    if (options->starts != NULL && options->start_count != options->batch)
        return command_usage_error(command, "--starts: expected %d numbers,"
                                   " got %d", options->batch,
                                   options->start_count);
    for (int b = 0; b < options->batch; b++) {
        const int length = options->lengths[b];
        const int start = options->starts == NULL ? 0 : options->starts[b];
        if (length < 0 || length > SLOTS_MAX || start < 0
            || start > SLOTS_MAX)
            return command_usage_error(command, "row %d: expected numbers"
                                       " from 0 to %d", b, SLOTS_MAX);
        if (length > options->longest)
            options->longest = length;
    }
    return 0;
}

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        status = read_option(command, argc, argv, &i, options);
    if (status == 0)
        status = check_options(command, options);
    return status;
}

static void draw_cells(const struct options *options, int t,
                       const bool *keep, int slots, int end)
{
    if (options->json)
        printf("%s[", t == 0 ? "" : ", ");
    for (int j = 0; j < slots; j++) {
        const char cell = keep[j] ? '1' : j < end ? '0' : '.';
        if (options->json)
            printf("%s%d", j == 0 ? "" : ", ", keep[j]);
        else
            printf("%s%c", j == 0 ? "" : " ", cell);
    }
    printf(options->json ? "]" : "\n");
}

static void draw_row(const struct options *options, int b, int slots,
                     int32_t *positions, bool *keep)
{
    const struct row_prefix prefix = {
        options->starts == NULL ? 0 : options->starts[b], options->lengths[b]
    };
    const int tokens = options->tokens;
    for (int t = 0; t < tokens; t++)
        positions[t] = prefix.start + prefix.length + t;
    mixed_mask(prefix, positions, tokens, slots, keep);
    printf(options->json ? "%s{\"start\": %d, \"length\": %d, \"keep\": ["
                         : "%s# start %d, length %d\n",
           b == 0 ? "" : options->json ? ", " : "\n\n", prefix.start,
           prefix.length);
    for (int t = 0; t < tokens; t++)
        draw_cells(options, t, keep + (ptrdiff_t)t * slots, slots,
                   prefix.length + tokens);
    if (options->json)
        printf("]}");
}

static enum status draw(const struct options *options, struct error *error)
{
    const int slots = options->longest + options->tokens;
    const size_t tokens = (size_t)options->tokens;
    bool *keep = calloc(tokens, (size_t)slots * sizeof *keep);
    int32_t *positions = calloc(tokens, sizeof *positions);
    if (keep == NULL || positions == NULL) {
        free(keep);
        free(positions);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a mask [%d, %d]", options->tokens,
                         slots);
    }
    if (options->json)
        printf("{\"tokens\": %d, \"slots\": %d, \"rows\": [",
               options->tokens, slots);
    for (int b = 0; b < options->batch; b++)
        draw_row(options, b, slots, positions, keep);
    if (options->json)
        printf("]}\n");
    free(keep);
    free(positions);
    return STATUS_OK;
}

static void print_errors(const struct options *options, const double *padded,
                         const double *mixed)
{
    if (options->json)
        printf("{\"tokens\": %d, \"rows\": [", options->tokens);
    else
        printf("row  prefix  padded  mixed\n");
    for (int b = 0; b < options->batch; b++)
        if (options->json)
            printf("%s{\"prefix\": %d, \"padded\": %.9g, \"mixed\": %.9g}",
                   b == 0 ? "" : ", ", (int)options->lengths[b], padded[b],
                   mixed[b]);
        else
            printf("%3d  %6d  %6.3g  %5.3g\n", b, (int)options->lengths[b],
                   padded[b], mixed[b]);
    if (options->json)
        printf("]}\n");
}

static enum status measure(const struct options *options, struct error *error)
{
    const size_t batch = (size_t)options->batch;
    const size_t each = (size_t)(options->longest + options->tokens);
    int32_t *ids = calloc(batch, each * sizeof *ids);
    double *errors = calloc(batch, 2 * sizeof *errors);
    struct tiny_gpt *model = NULL;
    enum status status = STATUS_OK;
    if (ids == NULL || errors == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %d texts",
                           options->batch);
    struct generator generator;
    generator_seed(&generator, 5, 1);
    for (size_t k = 0; status == STATUS_OK && k < batch * each; k++)
        ids[k] = (int32_t)(generator_next(&generator) % 23);
    if (status == STATUS_OK)
        status = mask_study_model(&model, error);
    if (status == STATUS_OK)
        status = mixed_errors(model, ids, options->lengths, options->batch,
                              options->tokens, errors, errors + batch, error);
    if (status == STATUS_OK)
        print_errors(options, errors, errors + batch);
    free(ids);
    free(errors);
    tiny_gpt_free(&model);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {0};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status == 0
        && (options.errors ? measure : draw)(&options, &error) != STATUS_OK)
        status = command_failure(command, &error);
    free(options.lengths);
    free(options.starts);
    return status;
}

const struct command command_slots = {
    "slots", "which slots the rows of a mixed batch see",
    "usage: tinygpt slots --lengths N,N,... [--starts P,P,...] --tokens T\n"
    "                     [--errors] [--json]\n"
    "\n"
    "Draws the mask of T new tokens behind rows of N cached ones: for each\n"
    "row of the batch a line a query and a column a slot, 1 where the query\n"
    "may see it, 0 where it comes later, a dot where there is nothing.\n"
    "Blank lines part the rows; lines with # name them.\n"
    "\n"
    "  --starts  the position of each row's slot 0 (0)\n"
    "  --errors  run a small random model: the largest error of each row's\n"
    "            logits with prefixes padded to one length, and as they are\n"
    "            (from position 0; N + T at most 256)\n"
    "  --json    the same as JSON\n",
    run
};
