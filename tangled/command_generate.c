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
#include "speaker.h"
#include "text_stream.h"

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
    const char *tokenizer;           /* NULL: beside the model */
    bool special;
    const struct speaker *speaker;   /* what was opened */
    struct engine_choice choice;
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
            status = command_int(command, "--eos", value, NO_EOS, INT_MAX,
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
        else if (command_option(argc, argv, &i, "--tokenizer", &value))
            status = command_text(command, "--tokenizer", value,
                                  &options->tokenizer);
        else if (strcmp(argv[i], "--special") == 0)
            options->special = true;
        else if (engine_option(command, argc, argv, &i, &options->choice, &status))
            ;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->model == NULL)
        status = command_usage_error(command, "--model DIR is needed");
    if (status == 0 && (options->text == NULL) == (options->ids == NULL))
        status = command_usage_error(command,
            "either --prompt TEXT or --prompt-ids IDS is needed");
    if (status == 0 && options->draft_tokens > 0 && options->draft == NULL)
        status = command_usage_error(command,
            "--draft-tokens K needs --speculative DIR");
    if (status == 0 && options->draft != NULL && options->prefill_chunk > 0)
        status = command_usage_error(command,
            "--speculative has chunks of its own: leave out --prefill-chunk");
    return status;
}

enum { EOS_OF_MODEL = -2 };

static enum status read_prompt(const struct options *options,
                               const struct tokenizer *tokenizer,
                               int32_t **ids, int *count,
                               struct error *error)
{
    const int flags = TOKENIZER_BEGIN
        | (options->special ? TOKENIZER_SPECIAL : 0);
    if (options->text == NULL)
        return STATUS_OK;
    return tokenizer_encode(tokenizer, options->text, strlen(options->text),
                            flags, ids, count, error);
}

struct stream {
    struct text_stream text;     /* without a tokenizer: not used */
    struct text_ends ends;
    int shown;
    int failed;                  /* errno of a write that failed, or 0 */
};

static bool write_text(void *context, const char *bytes, size_t length,
                       bool whole)
{
    (void)context, (void)whole;
    return fwrite(bytes, 1, length, stdout) == length;
}

static bool show(void *context, const int32_t *ids, int batch)
{
    struct stream *stream = context;
    (void)batch;                 /* one row */
    if (text_ends_with(&stream->ends, ids[0]))
        return false;
    if (stream->text.tokenizer != NULL)
        text_stream_add(&stream->text, ids[0]);
    else
        printf(stream->shown == 0 ? "%d" : " %d", (int)ids[0]);
    stream->shown++;
    stream->failed = fflush(stdout) == 0 ? 0 : errno;
    return stream->failed == 0;
}

/* For JSON, which is printed when all is there. */
static bool go_on(void *context, const int32_t *ids, int batch)
{
    const struct stream *stream = context;
    (void)batch;
    return !text_ends_with(&stream->ends, ids[0]);
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
        if (status == STATUS_OK) {
            struct error inner = {STATUS_OK, ""};
            status = choose(input, logits, vocab_size, id, &inner);
            if (status != STATUS_OK)
                error_set(error, status, "step %d, row 0: %s",
                          text->tokens - input->tokens, inner.message);
        }
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
                                      const struct causal_lm *lm,
                                      const struct generate_input *input,
                                      struct generate_output *output,
                                      struct statistics *statistics,
                                      struct error *error)
{
    const int tokens = input->tokens;
    if (input->max_new_tokens > lm->context_length - tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: %d prompt tokens and %d new ones "
                         "exceed context_length %d", tokens,
                         input->max_new_tokens, lm->context_length);
    if (!(input->temperature >= 0))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number >= 0, got %g",
                         input->temperature);
    if (input->eos_token_id >= lm->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d or [0, %d), got %d",
                         NO_EOS, lm->vocab_size, (int)input->eos_token_id);
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
    enum status status = request_new(&request, lm, 1, room, chunk_size,
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
                                          const struct causal_lm *target,
                                          const struct generate_input *input,
                                          struct generate_output *output,
                                          struct statistics *statistics,
                                          struct error *error)
{
    struct speaker small = {0};
    small.choice = options->choice;
    enum status status = speaker_open(&small, options->draft, NULL, false, error);
    if (status == STATUS_OK)
        status = speaker_check_same(options->speaker, &small, "--speculative",
                                    error);
    if (status != STATUS_OK) {
        speaker_close(&small);
        return status;
    }
    const struct causal_lm draft = small.lm;
    struct speculative_output made = {0};
    status = speculative_generate(target, &draft, input,
                                  options->draft_tokens > 0
                                      ? options->draft_tokens : DRAFT_TOKENS,
                                  &made, error);
    speaker_close(&small);
    if (status == STATUS_OK) {
        *output = (struct generate_output){made.ids, 1, made.tokens};
        statistics->speculated = true;
        statistics->speculation = made.counts;
    }
    return status;
}

static enum status continue_prompt(const struct options *options,
                                   const struct generate_input *input,
                                   struct generate_output *output,
                                   struct statistics *statistics,
                                   struct error *error)
{
    const struct causal_lm *lm = &options->speaker->lm;
    if (options->draft != NULL)
        return generate_speculatively(options, lm, input, output, statistics,
                                      error);
    if (options->prefill_chunk > 0)
        return generate_in_chunks(options, lm, input, output, statistics,
                                  error);
    struct options usual = *options;
    struct statistics unsaid = *statistics;
    usual.prefill_chunk = PROMPT_CHUNK;
    return generate_in_chunks(&usual, lm, input, output, &unsaid, error);
}

enum { SAMPLING_STREAM = 6 };

static int generate(const struct command *command,
                    const struct options *options, const int32_t *ids,
                    int count)
{
    const struct speaker *speaker = options->speaker;
    const int room = speaker->lm.context_length - count;
    struct generator generator;
    struct stream stream = {
        .text = {.tokenizer = speaker->tokenizer, .show = write_text,
                 .previous = count > 0 ? ids[count - 1] : -1},
        .ends = speaker->ends,
    };
    if (options->eos != EOS_OF_MODEL)
        stream.ends = (struct text_ends){options->eos >= 0, {options->eos}};
    struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = count,
        .max_new_tokens = options->max_new_tokens >= 0 ? options->max_new_tokens
            : room > 0 ? room : 0,
        .temperature = options->temperature,
        .eos_token_id = stream.ends.count > 0 ? stream.ends.ids[0] : NO_EOS,
        .generator = &generator, .on_step = options->json ? go_on : show,
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
    if (continue_prompt(options, &input, &output, &statistics, &error)
        != STATUS_OK)
        return command_failure(command, &error);
    if (stream.failed == 0 && !options->json && speaker->tokenizer != NULL) {
        text_stream_end(&stream.text);
        stream.failed = fflush(stdout) == 0 ? 0 : errno;
    }
    if (stream.failed != 0)
        error_set(&error, STATUS_IO, "cannot write: %s", strerror(stream.failed));
    else if (options->json)
        print_json(&output, count);
    else if (speaker->tokenizer == NULL || options->stats
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
    struct speaker speaker = {0};
    struct options options = {.max_new_tokens = -1, .eos = EOS_OF_MODEL,
                              .speaker = &speaker};
    struct error error;
    int32_t *ids = NULL;
    int count = 0, status = read_options(command, argc, argv, &options);
    if (status == 0 && options.ids != NULL)
        status = command_ids(command, "--prompt-ids", options.ids, &ids,
                             &count);
    speaker.choice = options.choice;
    if (status == 0
        && (speaker_open(&speaker, options.model, options.tokenizer,
                         options.text != NULL, &error) != STATUS_OK
            || read_prompt(&options, speaker.tokenizer, &ids, &count, &error)
               != STATUS_OK))
        status = command_failure(command, &error);
    if (status == 0)
        status = generate(command, &options, ids, count);
    free(ids);
    speaker_close(&speaker);
    return status;
}

const struct command command_generate = {
    "generate", "continue a prompt",
    "usage: tinygpt generate --model DIR (--prompt TEXT | --prompt-ids IDS)\n"
    "                        [--max-new-tokens N] [--temperature X]\n"
    "                        [--seed S] [--eos ID] [--json] [--stats]\n"
    "                        [--prefill-chunk C]\n"
    "                        [--speculative DIR [--draft-tokens K]]\n"
    "                        [--tokenizer FILE] [--special]\n"
    "                        [--weights TYPE] [--threads N] [--kernels NAME]\n"
    "\n"
    "Continues the prompt by N tokens at most (default: by as many as the\n"
    "context has room for), greedily (temperature 0) or by sampling with\n"
    "the numbers of seed S (0). IDS are like 1,2,3.\n"
    "TEXT is for the model's tokenizer: that of --tokenizer (a directory with\n"
    "vocab.json and merges.txt, a tokenizer.bin, or the word bytes), or the one\n"
    "beside the model, or bytes when it has 256 ids; with --special, names like\n"
    "<|endoftext|> in it are meant. DIR may be a model of the hub, or a .bin\n"
    "file of llama2.c. Generation stops at the eos_token_id of the model's\n"
    "config, or at the tokenizer's EOS, or only at the id of --eos (-1: none).\n"
    "Text or ids appear as they are generated; --json gives\n"
    "{\"tokens\":[...]} with the new ids at the end. --stats counts on\n"
    "standard error.\n"
    "\n"
    "--prefill-chunk feeds the prompt in calls of at most C tokens and decodes\n"
    "in the storage of one request. The tokens are the same.\n"
    "\n"
    "--speculative lets the model in DIR propose up to K tokens (4) at a time,\n"
    "which --model checks in one call. At temperature 0 the text is the same as\n"
    "without it, above 0 it is as likely.\n"
    "DIR may be a file of tinygpt pack, FILE.panels. --weights f32, bf16 or\n"
    "int8 packs another model's weights so; the kernels are the fastest that\n"
    "run here, or TINYGPT_KERNELS.\n"
    ,
    run
};
