#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "command_int8.h"
#include "file.h"
#include "int8_kv.h"
#include "int8_study.h"
#include "model_file.h"

enum { MOST = 4096 };

struct options {
    const char *model, *text;
    int windows, tokens, start, every;    /* tokens 0: the context */
    bool spare, measure, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--text", &value))
            status = command_text(command, "--text", value, &options->text);
        else if (command_option(argc, argv, &i, "--windows", &value))
            status = command_int(command, "--windows", value, 1, MOST,
                                 &options->windows);
        else if (command_option(argc, argv, &i, "--tokens", &value))
            status = command_int(command, "--tokens", value, 1, MOST,
                                 &options->tokens);
        else if (command_option(argc, argv, &i, "--start", &value))
            status = command_int(command, "--start", value, 0, MOST,
                                 &options->start);
        else if (command_option(argc, argv, &i, "--every", &value))
            status = command_int(command, "--every", value, 1, MOST,
                                 &options->every);
        else if (strcmp(argv[i], "--spare") == 0)
            options->spare = true;
        else if (strcmp(argv[i], "--measure") == 0)
            options->measure = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL || options->text == NULL))
        status = command_usage_error(command, "--model DIR and --text FILE"
                                     " are needed");
    return status;
}

static enum status read_texts(const struct options *options, int tokens,
                              int32_t **ids, struct error *error)
{
    unsigned char *bytes = NULL;
    size_t length;
    const size_t count = (size_t)options->windows * (size_t)tokens;
    const enum status status = file_read(options->text, &bytes, &length,
                                         error);
    if (status != STATUS_OK)
        return status;
    int32_t *made = calloc(count, sizeof *made);
    enum status made_status = STATUS_OK;
    if (made == NULL)
        made_status = error_set(error, STATUS_NO_MEMORY,
                                "no memory for %zu ids", count);
    else if (length < count) {
        char reason[80];
        snprintf(reason, sizeof reason, "expected at least %zu bytes, got"
                 " %zu", count, length);
        made_status = file_error(error, STATUS_INVALID, options->text,
                                 reason);
    }
    for (size_t k = 0; made_status == STATUS_OK && k < count; k++)
        made[k] = bytes[k];
    free(bytes);
    if (made_status == STATUS_OK)
        *ids = made;
    else
        free(made);
    return made_status;
}

static void print_bytes(const struct options *options,
                        const struct causal_lm *lm, int tokens,
                        const struct int8_times *times)
{
    size_t codes = 0;
    (void)int8_kv_bytes(&lm->cache, options->windows, tokens, &codes);
    const size_t width = (size_t)lm->cache.head_dim;
    const size_t rows = codes / (width + sizeof (float));
    const double count = tokens;
    printf(options->json
           ? "{\"float_bytes\": %zu, \"int8_bytes\": %zu,"
             " \"scale_bytes\": %zu"
           : "float_bytes %zu  int8_bytes %zu  of them scales %zu",
           rows * width * sizeof (float), codes, rows * sizeof (float));
    if (options->measure)
        printf(options->json
               ? ", \"float_ms\": %.3f, \"int8_ms\": %.3f"
               : "  float ms %.3f  int8 ms %.3f",
               1e3 * times->floats / count, 1e3 * times->codes / count);
    printf(options->json ? ", \"rows\": [" : "\n");
}

static void print_losses(const struct options *options,
                         const struct int8_loss *losses, int tokens)
{
    const char *between = "\n ";
    if (!options->json)
        printf("position  floats off  codes off  rms      least lead"
               "  key scale  changed\n");
    for (int t = options->every - 1; t < tokens; t += options->every) {
        const struct int8_loss *loss = &losses[t];
        printf(options->json
               ? "%s{\"position\": %d, \"floats\": %.9g, \"codes\": %.9g,"
                 " \"rms\": %.9g, \"lead\": %.9g, \"key_scale\": %.9g,"
                 " \"changed\": %d}"
               : "%.0s%8d  %10.5f  %9.5f  %7.5f  %10.5f  %9.5f  %7d\n",
               between, options->start + t, loss->floats, loss->codes,
               loss->root_mean_square, loss->gap, loss->key_scale,
               loss->changed);
        between = ",\n ";
    }
    if (options->json)
        printf("\n]}\n");
}

static enum status study(const struct options *options,
                         const struct tiny_gpt *model, struct error *error)
{
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const int tokens = options->tokens > 0 ? options->tokens
                                           : lm.context_length;
    struct int8_times times;
    int32_t *ids = NULL;
    enum status status = read_texts(options, tokens, &ids, error);
    struct int8_loss *losses = calloc((size_t)tokens, sizeof *losses);
    if (status == STATUS_OK && losses == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "no memory for %d positions", tokens);
    const struct int8_texts texts = {ids, options->windows, tokens,
                                     options->start, options->spare};
    if (status == STATUS_OK)
        status = int8_losses(&lm, &texts, losses, &times, error);
    if (status == STATUS_OK) {
        print_bytes(options, &lm, tokens, &times);
        print_losses(options, losses, tokens);
    }
    free(losses);
    free(ids);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.windows = 1, .every = 16};
    struct tiny_gpt *model = NULL;
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    if (tiny_gpt_load(&model, options.model, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (study(&options, model, &error) != STATUS_OK)
        status = command_failure(command, &error);
    tiny_gpt_free(&model);
    return status;
}

const struct command command_int8 = {
    "int8", "what a cache of eight bits saves and loses",
    "usage: tinygpt int8 --model DIR --text FILE [--windows B]\n"
    "                    [--tokens T] [--start P] [--every K] [--spare]\n"
    "                    [--measure] [--json]\n"
    "\n"
    "Cuts B texts (1) of T bytes (the model's context) from the file and\n"
    "runs them through the model token by token from position P (0), with\n"
    "a cache of floats and with one of int8 codes. Prints the bytes of\n"
    "both, and for every K-th position (16): the largest difference of a\n"
    "logit with floats from a call without a cache, with codes from\n"
    "floats, its root mean square, the least lead of a greedy token, the\n"
    "mean scale of the first layer's keys, and how many of the B greedy\n"
    "tokens are others.\n"
    "\n"
    "  --spare    keep the first layer's keys as floats\n"
    "  --measure  print milliseconds a token for both, too\n"
    "  --json     the same as JSON\n",
    run
};
