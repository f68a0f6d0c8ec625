#include "command_logits.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model_file.h"
#include "request.h"
#include "speaker.h"

struct options {
    const char *model, *tokenizer;
    const char *prompt, *continuation;           /* ids */
    const char *prompt_text, *continuation_text;
    bool no_cache, json;
    struct engine_choice choice;
};

static int read_option(const struct command *command, int argc, char **argv,
                       int *i, struct options *options)
{
    const struct { const char *name; const char **value; } values[] = {
        {"--model", &options->model}, {"--tokenizer", &options->tokenizer},
        {"--prompt-ids", &options->prompt},
        {"--continuation-ids", &options->continuation},
        {"--prompt", &options->prompt_text},
        {"--continuation", &options->continuation_text}
    };
    const char *value;
    for (size_t k = 0; k < sizeof values / sizeof *values; k++)
        if (command_option(argc, argv, i, values[k].name, &value))
            return command_text(command, values[k].name, value,
                                values[k].value);
    if (strcmp(argv[*i], "--no-cache") == 0)
        return options->no_cache = true, 0;
    if (strcmp(argv[*i], "--json") == 0)
        return options->json = true, 0;
    int status = 0;
    if (engine_option(command, argc, argv, i, &options->choice, &status))
        return status;
    return command_usage_error(command, "no option %s", argv[*i]);
}

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        status = read_option(command, argc, argv, &i, options);
    if (status == 0
        && (options->model == NULL
            || (options->prompt == NULL) == (options->prompt_text == NULL)
            || (options->continuation == NULL)
               == (options->continuation_text == NULL)))
        status = command_usage_error(command, "--model DIR, --prompt-ids"
                                     " IDS and --continuation-ids IDS are"
                                     " needed, or text for them");
    return status;
}

struct sequence {
    int32_t *ids;                /* the prompt, then the continuation */
    int prompt, continuation;    /* tokens of each */
    int vocab_size;
    float *rows;                 /* [continuation, V] */
};

static int read_either(const struct command *command,
                       const struct tokenizer *tokenizer, const char *option,
                       const char *list, const char *text, int flags,
                       int32_t **ids, int *count)
{
    struct error error;
    if (text == NULL)
        return command_ids(command, option, list, ids, count);
    if (tokenizer_encode(tokenizer, text, strlen(text), flags, ids, count,
                         &error) != STATUS_OK)
        return command_failure(command, &error);
    return 0;
}

static int read_sequence(const struct command *command,
                         const struct options *options,
                         const struct tokenizer *tokenizer,
                         struct sequence *sequence)
{
    int32_t *tail = NULL;
    int status = read_either(command, tokenizer, "--prompt-ids",
                             options->prompt, options->prompt_text,
                             TOKENIZER_BEGIN, &sequence->ids,
                             &sequence->prompt);
    if (status == 0)
        status = read_either(command, tokenizer, "--continuation-ids",
                             options->continuation,
                             options->continuation_text, 0, &tail,
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
                                  const struct causal_lm *config,
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
                            const float *logits, struct error *error)
{
    const size_t width = (size_t)sequence->vocab_size;
    for (size_t v = 0; v < width; v++) {
        if (!isfinite(logits[v]))
            return error_set(error, STATUS_INVALID, "row %d: logits[%zu]: "
                             "expected a number, got %g", k, v,
                             (double)logits[v]);
        sequence->rows[(size_t)k * width + v] = logits[v];
    }
    return STATUS_OK;
}

static enum status compute_rows(const struct causal_lm *lm, bool cached,
                                struct sequence *sequence,
                                struct error *error)
{
    struct request *request = NULL;
    const int tokens = sequence->prompt + sequence->continuation;
    const float *logits = NULL;
    enum status status = request_new(&request, lm, 1, tokens, tokens, error);
    for (int k = 0; k < sequence->continuation && status == STATUS_OK; k++) {
        const int seen = cached && k > 0 ? sequence->prompt + k - 1 : 0;
        if (seen == 0)
            kv_cache_reset(request_cache(request));
        status = request_feed(request, sequence->ids + seen,
                              sequence->prompt + k - seen, true, &logits,
                              error);
        if (status == STATUS_OK)
            status = take_row(sequence, k, logits, error);
    }
    request_free(&request);
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
                        const struct causal_lm *config,
                        struct sequence *sequence)
{
    struct error error;
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
        status = compute_rows(config, !options->no_cache, sequence, &error);
    if (status != STATUS_OK)
        return command_failure(command, &error);
    print_rows(sequence, options->json);
    return 0;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = { 0 };
    struct sequence sequence = { 0 };
    struct speaker speaker = { 0 };
    struct error error;
    int status = read_options(command, argc, argv, &options);
    const bool text = options.prompt_text != NULL
        || options.continuation_text != NULL;
    speaker.choice = options.choice;
    if (status == 0 && !text)
        status = read_sequence(command, &options, NULL, &sequence);
    if (status == 0
        && speaker_open(&speaker, options.model, options.tokenizer, text,
                        &error) != STATUS_OK)
        status = command_failure(command, &error);
    if (status == 0 && text)
        status = read_sequence(command, &options, speaker.tokenizer,
                               &sequence);
    if (status == 0)
        status = print_logits(command, &options, &speaker.lm, &sequence);
    free(sequence.ids);
    free(sequence.rows);
    speaker_close(&speaker);
    return status;
}

const struct command command_logits = {
    "logits", "the rows that predict each id of a continuation",
    "usage: tinygpt logits --model DIR (--prompt TEXT | --prompt-ids IDS)\n"
    "                      (--continuation TEXT | --continuation-ids IDS)\n"
    "                      [--tokenizer FILE] [--no-cache] [--json]\n"
    "\n"
    "Prints one row of logits for each id of the continuation, as predicted\n"
    "before that id is fed. IDS are like 1,2,3. The rows come through the\n"
    "cache, or with --no-cache from the whole prefix each time. --json\n"
    "gives {\"rows\":[[...]]}; without it a row is a line. The numbers read\n"
    "back exactly.\n",
    run
};
