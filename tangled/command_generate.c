#include "command_generate.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "generate.h"
#include "model_file.h"
#include "chunked_prefill.h"
#include "sampler.h"
#include "speculative.h"

struct options {
    const char *model, *text, *ids;
    int max_new_tokens;          /* -1: not said */
    double temperature;
    uint64_t seed;
    int eos;
    bool json, stats;
    int prefill_chunk;           /* 0: not said */
    const char *draft;               /* a directory, or NULL */
    int draft_tokens;                /* K, or 0 */
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--prompt", &value))
            status = command_text(command, "--prompt", value, &options->text);
        else if (command_option(argc, argv, &i, "--prompt-ids", &value))
            status = command_text(command, "--prompt-ids", value, &options->ids);
        else if (command_option(argc, argv, &i, "--max-new-tokens", &value))
            status = command_int(command, "--max-new-tokens", value, 0, INT_MAX,
                                 &options->max_new_tokens);
        else if (command_option(argc, argv, &i, "--temperature", &value))
            status = command_double(command, "--temperature", value,
                                    &options->temperature);
        else if (command_option(argc, argv, &i, "--seed", &value))
            status = command_seed(command, "--seed", value, &options->seed);
        else if (command_option(argc, argv, &i, "--eos", &value))
            status = command_int(command, "--eos", value, 0, INT_MAX,
                                 &options->eos);
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else if (strcmp(argv[i], "--stats") == 0)
            options->stats = true;
        else if (command_option(argc, argv, &i, "--prefill-chunk", &value))
            status = command_int(command, "--prefill-chunk", value, 1, INT_MAX,
                                 &options->prefill_chunk);
        else if (command_option(argc, argv, &i, "--speculative", &value))
            status = command_text(command, "--speculative", value, &options->draft);
        else if (command_option(argc, argv, &i, "--draft-tokens", &value))
            status = command_int(command, "--draft-tokens", value, 1, INT_MAX,
                                 &options->draft_tokens);
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->model == NULL)
        status = command_usage_error(command, "--model DIR is needed");
    if (status == 0 && (options->text == NULL) == (options->ids == NULL))
        status = command_usage_error(command,
            "either --prompt TEXT or --prompt-ids IDS is needed");
    if (status == 0 && options->max_new_tokens < 0)
        status = command_usage_error(command, "--max-new-tokens N is needed");
    if (status == 0 && options->draft_tokens > 0 && options->draft == NULL)
        status = command_usage_error(command,
            "--draft-tokens K needs --speculative DIR");
    if (status == 0 && options->draft != NULL && options->prefill_chunk > 0)
        status = command_usage_error(command,
            "--speculative has chunks of its own: leave out --prefill-chunk");
    return status;
}

enum { BYTES = 256 };

static int text_ids(const struct command *command, const char *text,
                    int vocab_size, int32_t **ids, int *count)
{
    struct error error;
    const size_t length = strlen(text);
    if (vocab_size != BYTES) {
        error_set(&error, STATUS_INVALID, "--prompt: text needs vocab_size %d,"
                  " this model has %d; give --prompt-ids", BYTES, vocab_size);
        return command_failure(command, &error);
    }
    *ids = malloc((length + 1) * sizeof **ids);
    if (*ids == NULL || length > INT_MAX) {
        error_set(&error, STATUS_NO_MEMORY,
                  "--prompt: no memory for %zu ids", length);
        return command_failure(command, &error);
    }
    for (size_t i = 0; i < length; i++)
        (*ids)[i] = (unsigned char)text[i];
    *count = (int)length;
    return 0;
}

struct stream {
    int vocab_size, eos, shown;
    int failed;                  /* errno of a write that failed, or 0 */
};

static bool show(void *context, const int32_t *ids, int batch)
{
    struct stream *stream = context;
    (void)batch;                 /* one row */
    if (ids[0] == stream->eos)
        return false;
    if (stream->vocab_size == BYTES)
        putchar(ids[0]);
    else
        printf(stream->shown == 0 ? "%d" : " %d", (int)ids[0]);
    stream->shown++;
    stream->failed = fflush(stdout) == 0 ? 0 : errno;
    return stream->failed == 0;
}

static void print_json(const struct generate_output *output, int prompt)
{
    printf("{\"tokens\":[");
    for (int t = prompt; t < output->tokens; t++)
        printf(t == prompt ? "%d" : ",%d", (int)output->ids[t]);
    printf("]}\n");
}

struct statistics {
    int prompt, generated;       /* tokens; an EOS is one */
    int prefill_calls, chunk_size, last_chunk;
    bool speculated;
    struct speculative_counts speculation;
};

static void print_statistics(const struct statistics *statistics)
{
    fflush(stdout);              /* the text comes first */
    fprintf(stderr, "tokens: %d of the prompt, %d generated\n",
            statistics->prompt, statistics->generated);
    if (statistics->prefill_calls > 0)
        fprintf(stderr, "prefill: %d call%s of at most %d tokens, the last of"
                " %d\n", statistics->prefill_calls,
                statistics->prefill_calls == 1 ? "" : "s",
                statistics->chunk_size, statistics->last_chunk);
    if (statistics->speculated) {
        const struct speculative_counts *c = &statistics->speculation;
        fprintf(stderr, "speculation: %d of %d proposals accepted (%.1f %%)\n"
                "calls: %d of the target, %d of the draft\n", c->accepted,
                c->proposed, 100.0 * c->accepted
                                 / (c->proposed > 0 ? c->proposed : 1),
                c->target_calls, c->draft_calls);
    }
}

static enum status choose(const struct generate_input *input,
                          const float *logits, int vocab_size, int32_t *id,
                          struct error *error)
{
    if (input->temperature > 0)
        return sampler_sample(logits, vocab_size, input->temperature,
                              input->generator, id, error);
    enum status status = sampler_check(logits, vocab_size, error);
    if (status == STATUS_OK)
        *id = sampler_greedy(logits, vocab_size);
    return status;
}

static enum status decode_in_chunks(struct request *request, int chunk_size,
                                    const struct generate_input *input,
                                    struct generate_output *text,
                                    struct error *error)
{
    const int vocab_size = request_model(request)->vocab_size;
    const int end = input->tokens + input->max_new_tokens;
    const float *logits = NULL;
    enum status status = request_prefill(request, text->ids, input->tokens,
                                         chunk_size, &logits, error);
    bool more = true;
    while (status == STATUS_OK && more && text->tokens < end) {
        int32_t *id = &text->ids[text->tokens];
        if (text->tokens > input->tokens)
            status = request_feed(request, id - 1, 1, true, &logits, error);
        if (status == STATUS_OK)
            status = choose(input, logits, vocab_size, id, error);
        if (status == STATUS_OK) {
            text->tokens++;
            more = *id != input->eos_token_id;
            if (input->on_step != NULL && !input->on_step(input->context, id, 1))
                more = false;
        }
    }
    return status;
}

static enum status generate_in_chunks(const struct options *options,
                                      struct tiny_gpt *model,
                                      const struct generate_input *input,
                                      struct generate_output *output,
                                      struct statistics *statistics,
                                      struct error *error)
{
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const int tokens = input->tokens;
    if (input->max_new_tokens > lm.context_length - tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: %d prompt tokens and %d new ones "
                         "exceed context_length %d", tokens,
                         input->max_new_tokens, lm.context_length);
    if (!(input->temperature >= 0))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number >= 0, got %g",
                         input->temperature);
    if (input->eos_token_id >= lm.vocab_size)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d or [0, %d), got %d",
                         NO_EOS, lm.vocab_size, (int)input->eos_token_id);
    const int chunk_size = options->prefill_chunk < tokens
        ? options->prefill_chunk : tokens;
    const int room = tokens + input->max_new_tokens;
    struct request *request = NULL;
    struct generate_output made = {
        .ids = calloc((size_t)room, sizeof *made.ids), .batch = 1,
        .tokens = tokens
    };
    if (made.ids == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d ids", room);
    memcpy(made.ids, input->ids, (size_t)tokens * sizeof *made.ids);
    enum status status = request_new(&request, &lm, 1, room, chunk_size,
                                     error);
    if (status == STATUS_OK)
        status = decode_in_chunks(request, chunk_size, input, &made, error);
    statistics->prefill_calls = prefill_calls(tokens, chunk_size);
    statistics->chunk_size = options->prefill_chunk;
    statistics->last_chunk =
        tokens - (statistics->prefill_calls - 1) * chunk_size;
    request_free(&request);
    if (status == STATUS_OK)
        *output = made;
    else
        generate_output_free(&made);
    return status;
}
enum { DRAFT_TOKENS = 4 };

static enum status generate_speculatively(const struct options *options,
                                          const struct tiny_gpt *model,
                                          const struct generate_input *input,
                                          struct generate_output *output,
                                          struct statistics *statistics,
                                          struct error *error)
{
    struct tiny_gpt *small = NULL;
    enum status status = tiny_gpt_load(&small, options->draft, error);
    if (status != STATUS_OK)
        return status;
    const struct causal_lm target = tiny_gpt_causal_lm(model);
    const struct causal_lm draft = tiny_gpt_causal_lm(small);
    struct speculative_output made = {0};
    status = speculative_generate(&target, &draft, input,
                                  options->draft_tokens > 0
                                      ? options->draft_tokens : DRAFT_TOKENS,
                                  &made, error);
    tiny_gpt_free(&small);
    if (status == STATUS_OK) {
        *output = (struct generate_output){made.ids, 1, made.tokens};
        statistics->speculated = true;
        statistics->speculation = made.counts;
    }
    return status;
}

static enum status continue_prompt(const struct options *options,
                                   struct tiny_gpt *model,
                                   const struct generate_input *input,
                                   struct generate_output *output,
                                   struct statistics *statistics,
                                   struct error *error)
{
    (void)options;               /* says which of the runs it is to be */
    (void)statistics;
    if (options->prefill_chunk > 0)
        return generate_in_chunks(options, model, input, output, statistics,
                                  error);
    if (options->draft != NULL)
        return generate_speculatively(options, model, input, output, statistics,
                                      error);
    return tiny_gpt_generate(model, input, output, error);
}

enum { SAMPLING_STREAM = 6 };

static int generate(const struct command *command,
                    const struct options *options, struct tiny_gpt *model,
                    const int32_t *ids, int count)
{
    struct generator generator;
    struct stream stream = {
        .vocab_size = tiny_gpt_config(model)->vocab_size,
        .eos = options->eos,
    };
    struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = count,
        .max_new_tokens = options->max_new_tokens,
        .temperature = options->temperature,
        .eos_token_id = options->eos,
        .generator = &generator,
        .on_step = options->json ? NULL : show,
        .context = &stream,
    };
    generator_seed(&generator, options->seed, SAMPLING_STREAM);
    struct generate_output output = { 0 };
    struct statistics statistics = { .prompt = count };
    struct error error;
    if (count == 0) {
        error_set(&error, STATUS_INVALID,
                  "the prompt is empty: expected at least one token");
        return command_failure(command, &error);
    }
    if (continue_prompt(options, model, &input, &output, &statistics,
                        &error) != STATUS_OK)
        return command_failure(command, &error);
    if (stream.failed != 0)
        error_set(&error, STATUS_IO, "cannot write: %s", strerror(stream.failed));
    else if (options->json)
        print_json(&output, count);
    else if (stream.vocab_size != BYTES || options->stats
             || isatty(STDOUT_FILENO))
        putchar('\n');
    statistics.generated = output.tokens - count;
    if (options->stats && stream.failed == 0)
        print_statistics(&statistics);
    generate_output_free(&output);
    return stream.failed == 0 ? 0 : command_failure(command, &error);
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = { .max_new_tokens = -1, .eos = NO_EOS };
    struct tiny_gpt *model = NULL;
    struct error error;
    int32_t *ids = NULL;
    int count = 0, status = read_options(command, argc, argv, &options);
    if (status == 0 && options.ids != NULL)
        status = command_ids(command, "--prompt-ids", options.ids, &ids,
                             &count);
    if (status == 0
        && tiny_gpt_load(&model, options.model, &error) != STATUS_OK)
        status = command_failure(command, &error);
    if (status == 0 && options.text != NULL)
        status = text_ids(command, options.text,
                          tiny_gpt_config(model)->vocab_size, &ids, &count);
    if (status == 0)
        status = generate(command, &options, model, ids, count);
    free(ids);
    tiny_gpt_free(&model);
    return status;
}

const struct command command_generate = {
    "generate", "continue a prompt",
    "usage: tinygpt generate --model DIR (--prompt TEXT | --prompt-ids IDS)\n"
    "                        --max-new-tokens N [--temperature X]\n"
    "                        [--seed S] [--eos ID] [--json] [--stats]\n"
    "                        [--prefill-chunk C]\n"
    "                        [--speculative DIR [--draft-tokens K]]\n"
    "\n"
    "Continues the prompt by up to N tokens, greedily (temperature 0) or by\n"
    "sampling with the numbers of seed S (0). --eos stops at that id. TEXT\n"
    "is bytes and needs a vocabulary of 256; IDS are like 1,2,3. Text or\n"
    "ids appear as they are generated; --json gives {\"tokens\":[...]} with\n"
    "the new ids at the end. --stats counts on standard error.\n"
    "\n"
    "--prefill-chunk feeds the prompt in calls of at most C tokens and decodes\n"
    "in the storage of one request. The tokens are the same.\n"
    "\n"
    "--speculative lets the model in DIR propose up to K tokens (4) at a time,\n"
    "which --model checks in one call. At temperature 0 the text is the same as\n"
    "without it, above 0 it is as likely.\n"
    ,
    run
};
