#include "command_logits.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model_file.h"

struct options {
    const char *model, *prompt, *continuation;
    bool no_cache, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--prompt-ids", &value))
            status = command_text(command, "--prompt-ids", value, &options->prompt);
        else if (command_option(argc, argv, &i, "--continuation-ids", &value))
            status = command_text(command, "--continuation-ids", value,
                                  &options->continuation);
        else if (strcmp(argv[i], "--no-cache") == 0)
            options->no_cache = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL || options->prompt == NULL
                        || options->continuation == NULL))
        status = command_usage_error(command, "--model DIR, --prompt-ids"
                                     " IDS and --continuation-ids IDS are"
                                     " needed");
    return status;
}

struct sequence {
    int32_t *ids;                /* the prompt, then the continuation */
    int prompt, continuation;    /* tokens of each */
    int vocab_size;
    float *rows;                 /* [continuation, V] */
};

static int read_sequence(const struct command *command,
                         const struct options *options,
                         struct sequence *sequence)
{
    int32_t *tail = NULL;
    int status = command_ids(command, "--prompt-ids", options->prompt,
                             &sequence->ids, &sequence->prompt);
    if (status == 0)
        status = command_ids(command, "--continuation-ids",
                             options->continuation, &tail,
                             &sequence->continuation);
    size_t room = (size_t)sequence->prompt + (size_t)sequence->continuation;
    int32_t *joined = status != 0 ? NULL
        : realloc(sequence->ids, (room + 1) * sizeof *joined);
    if (joined != NULL) {
        sequence->ids = joined;
        for (int k = 0; k < sequence->continuation; k++)
            joined[sequence->prompt + k] = tail[k];
    } else if (status == 0) {
        fprintf(stderr, "tinygpt %s: no memory for %zu ids\n", command->name,
                room);
        status = 1;
    }
    free(tail);
    return status;
}

static enum status check_sequence(const struct sequence *sequence,
                                  const struct gpt_config *config,
                                  struct error *error)
{
    if (sequence->prompt < 1)
        return error_set(error, STATUS_INVALID, "the prompt is empty: "
                         "expected at least one token");
    if (sequence->continuation > config->context_length - sequence->prompt)
        return error_set(error, STATUS_INVALID, "%d prompt tokens and a "
                         "continuation of %d exceed context_length %d",
                         sequence->prompt, sequence->continuation,
                         config->context_length);
    for (int t = 0; t < sequence->prompt + sequence->continuation; t++) {
        const int32_t id = sequence->ids[t];
        const bool given = t < sequence->prompt;
        if (id < 0 || id >= config->vocab_size)
            return error_set(error, STATUS_INVALID,
                             "%s[%d]: expected [0, %d), got %d",
                             given ? "--prompt-ids" : "--continuation-ids",
                             given ? t : t - sequence->prompt,
                             config->vocab_size, (int)id);
    }
    return STATUS_OK;
}

static enum status take_row(struct sequence *sequence, int k,
                            const struct tensor *logits,
                            struct error *error)
{
    const size_t width = (size_t)sequence->vocab_size;
    const float *last = logits->data + (size_t)(logits->shape[1] - 1) * width;
    for (size_t v = 0; v < width; v++) {
        if (!isfinite(last[v]))
            return error_set(error, STATUS_INVALID, "row %d: logits[%zu]: "
                             "expected a number, got %g", k, v,
                             (double)last[v]);
        sequence->rows[(size_t)k * width + v] = last[v];
    }
    return STATUS_OK;
}

static enum status compute_rows(const struct tiny_gpt *model, bool cached,
                                struct sequence *sequence,
                                struct error *error)
{
    struct forward_output last = { 0 };
    enum status status = STATUS_OK;
    for (int k = 0; k < sequence->continuation && status == STATUS_OK; k++) {
        struct forward_input input = { .batch = 1, .use_cache = cached };
        struct forward_output output = { 0 };
        const int seen = cached && k > 0 ? sequence->prompt + k - 1 : 0;
        input.ids = sequence->ids + seen;
        input.tokens = sequence->prompt + k - seen;
        input.past_key_values = seen > 0 ? &last.past_key_values : NULL;
        status = tiny_gpt_forward(model, &input, &output, error);
        forward_output_free(&last);
        last = output;
        if (status == STATUS_OK)
            status = take_row(sequence, k, &last.logits, error);
    }
    forward_output_free(&last);
    return status;
}

static void print_row(const float *row, int width, const char *between)
{
    for (int v = 0; v < width; v++)
        printf("%s%.9g", v == 0 ? "" : between, (double)row[v]);
}

static void print_rows(const struct sequence *sequence, bool json)
{
    const int width = sequence->vocab_size;
    if (json)
        printf("{\"rows\":[");
    for (int k = 0; k < sequence->continuation; k++) {
        if (json)
            printf(k == 0 ? "[" : ",[");
        print_row(sequence->rows + (size_t)k * (size_t)width, width,
                  json ? "," : " ");
        printf(json ? "]" : "\n");
    }
    if (json)
        printf("]}\n");
}

static int print_logits(const struct command *command,
                        const struct options *options,
                        const struct tiny_gpt *model,
                        struct sequence *sequence)
{
    struct error error;
    const struct gpt_config *config = tiny_gpt_config(model);
    enum status status = check_sequence(sequence, config, &error);
    sequence->vocab_size = config->vocab_size;
    if (status == STATUS_OK) {
        sequence->rows = calloc((size_t)sequence->continuation + 1,
                                (size_t)config->vocab_size * sizeof (float));
        if (sequence->rows == NULL)
            status = error_set(&error, STATUS_NO_MEMORY,
                               "no memory for %d rows of %d logits",
                               sequence->continuation, config->vocab_size);
    }
    if (status == STATUS_OK)
        status = compute_rows(model, !options->no_cache, sequence, &error);
    if (status != STATUS_OK)
        return command_failure(command, &error);
    print_rows(sequence, options->json);
    return 0;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = { 0 };
    struct sequence sequence = { 0 };
    struct tiny_gpt *model = NULL;
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status == 0)
        status = read_sequence(command, &options, &sequence);
    if (status == 0
        && tiny_gpt_load(&model, options.model, &error) != STATUS_OK)
        status = command_failure(command, &error);
    if (status == 0)
        status = print_logits(command, &options, model, &sequence);
    free(sequence.ids);
    free(sequence.rows);
    tiny_gpt_free(&model);
    return status;
}

const struct command command_logits = {
    "logits", "the rows that predict each id of a continuation",
    "usage: tinygpt logits --model DIR --prompt-ids IDS\n"
    "                      --continuation-ids IDS [--no-cache] [--json]\n"
    "\n"
    "Prints one row of logits for each id of the continuation, as predicted\n"
    "before that id is fed. IDS are like 1,2,3. The rows come through the\n"
    "cache, or with --no-cache from the whole prefix each time. --json\n"
    "gives {\"rows\":[[...]]}; without it a row is a line. The numbers read\n"
    "back exactly.\n",
    run
};
