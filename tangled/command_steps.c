#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cache_aware.h"
#include "checkpoint.h"
#include "command_steps.h"
#include "step_study.h"

struct options {
    const char *model, *prompt, *continuation;
    int greedy;                  /* -1: not given */
    struct allclose bound;
    int slip;                    /* -1: the request's own decoder */
    bool all, json;
};

static int slip_option(const struct command *command, const char *text,
                       int *slip)
{
    const char *name;
    int status = command_text(command, "--slip", text, &name);
    for (int k = 0; status == 0 && k < SLIP_COUNT; k++)
        if (strcmp(name, slip_name((enum slip)k)) == 0) {
            *slip = k;
            return 0;
        }
    return status != 0 ? status
        : command_usage_error(command, "--slip: no slip is named %s", name);
}

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
        else if (command_option(argc, argv, &i, "--greedy", &value))
            status = command_int(command, "--greedy", value, 0, INT32_MAX,
                                 &options->greedy);
        else if (command_option(argc, argv, &i, "--atol", &value))
            status = command_double(command, "--atol", value,
                                    &options->bound.absolute);
        else if (command_option(argc, argv, &i, "--rtol", &value))
            status = command_double(command, "--rtol", value,
                                    &options->bound.relative);
        else if (command_option(argc, argv, &i, "--slip", &value))
            status = slip_option(command, value, &options->slip);
        else if (strcmp(argv[i], "--all") == 0)
            options->all = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL || options->prompt == NULL))
        status = command_usage_error(command, "--model PATH and --prompt-ids"
                                     " IDS are needed");
    if (status == 0
        && (options->continuation == NULL) == (options->greedy < 0))
        status = command_usage_error(command, "--continuation-ids IDS or"
                                     " --greedy N is needed, and not both");
    return status;
}

struct text {
    int32_t *prompt, *continuation;
    struct generation generation;
};

static int read_text(const struct command *command,
                     const struct options *options, struct text *text)
{
    struct generation *generation = &text->generation;
    int status = command_ids(command, "--prompt-ids", options->prompt,
                             &text->prompt, &generation->prompt_tokens);
    if (status == 0 && options->continuation != NULL)
        status = command_ids(command, "--continuation-ids",
                             options->continuation, &text->continuation,
                             &generation->steps);
    generation->prompt = text->prompt;
    generation->continuation = text->continuation;
    return status;
}

static enum status continue_text(const struct causal_lm *lm, int steps,
                                 struct text *text, struct error *error)
{
    struct generation *generation = &text->generation;
    const struct generate_input input = {
        .ids = generation->prompt, .batch = 1,
        .tokens = generation->prompt_tokens, .max_new_tokens = steps,
        .eos_token_id = NO_EOS
    };
    struct generate_output output = {0};
    enum status status = generation_check(generation, lm->vocab_size,
                                          lm->context_length, error);
    if (status == STATUS_OK)
        status = cache_aware_generate(lm, &input, NULL, &output, error);
    if (status != STATUS_OK)
        return status;
    free(text->prompt);
    text->prompt = output.ids;
    generation->prompt = output.ids;
    generation->continuation = output.ids + generation->prompt_tokens;
    generation->steps = steps;
    return STATUS_OK;
}

static void print_row(const struct options *options, int k, int position,
                      double difference)
{
    if (!options->json)
        printf("%4d  %8d  %.3g\n", k, position, difference);
    else if (isfinite(difference))
        printf("%s{\"step\": %d, \"position\": %d, \"difference\": %.9g}",
               k == 0 ? "" : ", ", k, position, difference);
    else
        printf("%s{\"step\": %d, \"position\": %d, \"difference\": null}",
               k == 0 ? "" : ", ", k, position);
}

static void print_cache(const struct options *options,
                        const struct identity *found, int prompt)
{
    printf(options->json
           ? ", \"mismatch\": {\"step\": %d, \"cached\": %d, \"expected\":"
             " %d}"
           : "step %d: the cache holds %d tokens, expected %d\n",
           found->steps, found->cached, prompt + found->steps);
}

static void print_logits(const struct options *options,
                         const struct identity *found, int layers)
{
    printf(options->json ? ", \"mismatch\": {\"step\": %d, \"id\": %d"
                         : "step %d: logit %d is", found->steps, found->id);
    if (!options->json)
        printf(" %.6g, recomputed %.6g\n", (double)found->got,
               (double)found->expected);
    if (found->layer < layers)
        printf(options->json
               ? ", \"layer\": %d, \"position\": %d, \"head\": %d,"
                 " \"part\": \"%s\"}"
               : "the caches part in layer %d at position %d: head %d, %s\n",
               found->layer, found->position, found->head,
               found->value ? "value" : "key");
    else
        printf(options->json
               ? ", \"layer\": %d, \"position\": %d}"
               : "the caches of all %d layers agree up to position %d\n",
               found->layer, found->position);
}

static void print_found(const struct options *options,
                        const struct generation *text,
                        const double *differences, int rows,
                        const struct identity *found, int layers)
{
    if (options->json)
        printf("{\"prompt\": %d, \"steps\": %d, \"atol\": %.9g, \"rtol\":"
               " %.9g, \"rows\": [", text->prompt_tokens, text->steps,
               options->bound.absolute, options->bound.relative);
    else
        printf("step  position  difference\n");
    for (int k = 0; k < rows; k++)
        print_row(options, k, text->prompt_tokens + k, differences[k]);
    if (options->json)
        printf("], \"identical\": %s, \"agree\": %d, \"largest\": %.9g",
               found->verdict == IDENTICAL ? "true" : "false", found->steps,
               found->largest);
    else
        printf("rows that agree: %d of %d, largest difference %.3g\n",
               found->steps, text->steps, found->largest);
    if (found->verdict == CACHE_DIFFERS)
        print_cache(options, found, text->prompt_tokens);
    else if (found->verdict == LOGITS_DIFFER)
        print_logits(options, found, layers);
    if (options->json)
        printf("}\n");
}

static enum status audit(const struct options *options,
                         const struct causal_lm *lm,
                         const struct decoder *decoder,
                         const struct generation *text,
                         struct identity *found, struct error *error)
{
    double *differences = calloc((size_t)text->steps + 1,
                                 sizeof *differences);
    if (differences == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d steps",
                         text->steps);
    enum status status = per_step_compare(lm, decoder, text, &options->bound,
                                          differences, found, error);
    int rows = status == STATUS_OK ? found->steps : 0;
    if (status == STATUS_OK && found->verdict == LOGITS_DIFFER)
        rows++;
    if (status == STATUS_OK && options->all) {
        status = step_differences(lm, decoder, text, differences, error);
        rows = text->steps;
    }
    if (status == STATUS_OK)
        print_found(options, text, differences, rows, found,
                    lm->cache.n_layers);
    free(differences);
    return status;
}

enum { CALL_MAX = 64 };

static enum status audit_text(const struct options *options,
                              const struct causal_lm *lm,
                              const struct generation *text,
                              struct identity *found, struct error *error)
{
    struct request *request = NULL;
    struct slip_decoder *slip = NULL;
    struct decoder decoder;
    enum status status = generation_check(text, lm->vocab_size,
                                          lm->context_length, error);
    if (status == STATUS_OK && options->slip >= 0) {
        status = slip_decoder_new(&slip, lm, text, (enum slip)options->slip,
                                  error);
        if (status == STATUS_OK)
            decoder = slip_decoder(slip);
    } else if (status == STATUS_OK) {
        const int tokens = text->prompt_tokens + text->steps;
        status = request_new(&request, lm, 1, tokens,
                             tokens < CALL_MAX ? tokens : CALL_MAX, error);
        if (status == STATUS_OK)
            status = request_decoder(request, &decoder, error);
    }
    if (status == STATUS_OK)
        status = audit(options, lm, &decoder, text, found, error);
    request_free(&request);
    slip_decoder_free(&slip);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {.greedy = -1, .slip = -1,
                              .bound = {1e-3, 1e-2}};
    struct text text = {0};
    struct checkpoint *checkpoint = NULL;
    struct identity found = {.verdict = IDENTICAL};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status == 0)
        status = read_text(command, &options, &text);
    if (status == 0) {
        enum status done = checkpoint_open(&checkpoint, options.model, &error);
        if (done == STATUS_OK) {
            const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
            if (options.greedy >= 0)
                done = continue_text(&lm, options.greedy, &text, &error);
            if (done == STATUS_OK)
                done = audit_text(&options, &lm, &text.generation, &found, &error);
        }
        status = done != STATUS_OK ? command_failure(command, &error)
                                   : found.verdict != IDENTICAL;
    }
    if (options.greedy < 0)
        free(text.continuation);
    free(text.prompt);
    checkpoint_close(&checkpoint);
    return status;
}

const struct command command_steps = {
    "steps", "whether each row of a generation is what recomputation gives",
    "usage: tinygpt steps --model PATH --prompt-ids IDS\n"
    "                     [--continuation-ids IDS | --greedy N]\n"
    "                     [--atol A] [--rtol R] [--slip NAME] [--all]\n"
    "                     [--json]\n"
    "\n"
    "Prefills the prompt, consumes the continuation token by token through\n"
    "the cache, and holds each row of logits against a computation of its\n"
    "whole prefix without a cache: |x - x'| <= A + R |x'|, with A = 1e-3\n"
    "and R = 1e-2. Prints the largest difference of each row. Stops at the\n"
    "first row beyond the bound, says where the caches part, and exits\n"
    "with status 1. IDS are like 1,2,3.\n"
    "\n"
    "  --greedy N   the continuation is what the model says, N tokens\n"
    "  --slip NAME  decode with a mistake: counter-k, counter-0, counter-p,\n"
    "               handoff-short, handoff-long, late, window, or none\n"
    "  --all        print the rows behind the first mismatch as well\n"
    "  --json       the same as JSON\n",
    run
};
