#include "command_chat.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model_file.h"
#include "prefix_blocks.h"
#include "prefix_request.h"
#include "sampler.h"
#include "speaker.h"
#include "text_stream.h"

typedef enum status prefix_maker(struct prefix_cache **,
                                 const struct prefix_cache_options *,
                                 struct error *);

struct options {
    const char *model, *system;
    const char **prompts;        /* owned: [prompt_count] words of argv */
    int prompt_count;
    int max_new_tokens, block_size, capacity;
    prefix_maker *make;          /* NULL: no cache */
    bool stats;
    const char *tokenizer;           /* NULL: beside the model */
    struct engine_choice choice;
};

static int read_kind(const struct command *command, const char *value,
                     prefix_maker **make)
{
    if (value != NULL && strcmp(value, "snapshots") == 0)
        *make = prefix_snapshots_new;
    else if (value != NULL && strcmp(value, "blocks") == 0)
        *make = prefix_blocks_new;
    else if (value != NULL && strcmp(value, "none") == 0)
        *make = NULL;
    else
        return command_usage_error(command, "--prefix-cache: expected"
                                   " snapshots, blocks or none, got %s",
                                   value == NULL ? "nothing" : value);
    return 0;
}

static int read_option(const struct command *command, int argc, char **argv,
                       int *i, struct options *options)
{
    const char *value;
    if (command_option(argc, argv, i, "--model", &value))
        return command_text(command, "--model", value, &options->model);
    if (command_option(argc, argv, i, "--system", &value))
        return command_text(command, "--system", value, &options->system);
    if (command_option(argc, argv, i, "--prompt", &value))
        return command_text(command, "--prompt", value,
                            &options->prompts[options->prompt_count++]);
    if (command_option(argc, argv, i, "--max-new-tokens", &value))
        return command_int(command, "--max-new-tokens", value, 1, INT_MAX,
                           &options->max_new_tokens);
    if (command_option(argc, argv, i, "--prefix-cache", &value))
        return read_kind(command, value, &options->make);
    if (command_option(argc, argv, i, "--block-size", &value))
        return command_int(command, "--block-size", value, 1, 1 << 20,
                           &options->block_size);
    if (command_option(argc, argv, i, "--capacity", &value))
        return command_int(command, "--capacity", value, 1, 1 << 20,
                           &options->capacity);
    if (command_option(argc, argv, i, "--tokenizer", &value))
        return command_text(command, "--tokenizer", value, &options->tokenizer);
    int status = 0;
    if (engine_option(command, argc, argv, i, &options->choice, &status))
        return status;
    if (strcmp(argv[*i], "--stats") == 0)
        return options->stats = true, 0;
    return command_usage_error(command, "no option %s", argv[*i]);
}

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        status = read_option(command, argc, argv, &i, options);
    if (status == 0
        && (options->model == NULL || options->max_new_tokens == 0))
        status = command_usage_error(command,
            "--model DIR and --max-new-tokens N are needed");
    return status;
}

struct chat {
    const struct options *options;
    struct speaker speaker;
    struct causal_lm lm;
    struct request *request;
    struct prefix_runner runner;  /* whose cache is NULL for none */
    int32_t *text;                /* [N] */
    int count, opening;           /* tokens so far; of the system text */
};

static void chat_end(struct chat *chat)
{
    prefix_cache_free(&chat->runner.cache);
    request_free(&chat->request);
    speaker_close(&chat->speaker);
    free(chat->text);
}

static enum status chat_begin(struct chat *chat, struct error *error)
{
    const struct options *options = chat->options;
    chat->speaker.choice = options->choice;
    enum status status = speaker_open(&chat->speaker, options->model,
                                      options->tokenizer, true, error);
    if (status != STATUS_OK)
        return status;
    chat->lm = chat->speaker.lm;
    const int context = chat->lm.context_length;
    status = request_new(&chat->request, &chat->lm, 1, context, context,
                         error);
    chat->text = calloc((size_t)context, sizeof *chat->text);
    if (status == STATUS_OK && chat->text == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "no memory for %d tokens", context);
    const struct prefix_cache_options cache = {
        chat->lm.cache, options->block_size, options->capacity, NULL
    };
    chat->runner = (struct prefix_runner){
        &chat->lm, NULL, {options->model, ""}
    };
    if (status == STATUS_OK && options->make != NULL)
        status = options->make(&chat->runner.cache, &cache, error);
    return status;
}

static enum status chat_add(struct chat *chat, const char *text,
                            size_t length, struct error *error)
{
    const int context = chat->lm.context_length;
    const int new_tokens = chat->options->max_new_tokens;
    const int room = context - chat->count;
    int32_t *ids = NULL;
    int count = 0;
    enum status status = tokenizer_encode(chat->speaker.tokenizer, text,
        length, chat->count == 0 ? TOKENIZER_BEGIN : 0, &ids, &count, error);
    if (status == STATUS_OK && (new_tokens > room
                                || count > room - new_tokens))
        status = error_set(error, STATUS_INVALID,
                           "the conversation has %d tokens, and %d more with"
                           " a reply of %d do not fit the context of %d (an"
                           " empty turn starts over)", chat->count, count,
                           new_tokens, context);
    for (int k = 0; k < count && status == STATUS_OK; k++)
        chat->text[chat->count++] = ids[k];
    free(ids);
    return status;
}

static enum status run_prompt(struct chat *chat, const float **logits,
                              int *reused, struct error *error)
{
    if (chat->runner.cache == NULL)
        return request_feed(chat->request, chat->text, chat->count, true,
                            logits, error);
    return prefix_runner_feed(&chat->runner, chat->request, chat->text,
                              chat->count, logits, reused, error);
}

static bool write_text(void *context, const char *bytes, size_t length,
                       bool whole)
{
    (void)context, (void)whole;
    return fwrite(bytes, 1, length, stdout) == length;
}

static enum status choose_reply(struct chat *chat, const float *logits,
                                struct text_stream *stream,
                                struct error *error)
{
    const int vocab_size = chat->lm.vocab_size;
    const int last = chat->options->max_new_tokens - 1;
    enum status status = STATUS_OK;
    for (int k = 0; k <= last && status == STATUS_OK; k++) {
        int32_t *id = &chat->text[chat->count];
        status = sampler_check(logits, vocab_size, error);
        if (status != STATUS_OK)
            return status;
        *id = sampler_greedy(logits, vocab_size);
        if (text_ends_with(&chat->speaker.ends, *id))
            return STATUS_OK;
        chat->count++;
        text_stream_add(stream, *id);
        if (k < last)
            status = request_feed(chat->request, id, 1, true, &logits, error);
    }
    return status;
}

static enum status reply(struct chat *chat, const float *logits,
                         struct error *error)
{
    struct text_stream stream = {
        .tokenizer = chat->speaker.tokenizer, .show = write_text,
        .previous = chat->text[chat->count - 1]
    };
    enum status status = choose_reply(chat, logits, &stream, error);
    text_stream_end(&stream);
    putchar('\n');
    if (status == STATUS_OK && fflush(stdout) != 0)
        status = error_set(error, STATUS_IO, "cannot write: %s",
                           strerror(errno));
    return status;
}

static enum status turn(struct chat *chat, const char *line, size_t length,
                        struct error *error)
{
    const float *logits = NULL;
    int reused = 0;
    enum status status = STATUS_OK;
    char *whole = malloc(length + 1);
    if (whole == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the line");
    const size_t newline = chat->count > chat->opening ? 1 : 0;
    whole[0] = '\n';
    memcpy(whole + newline, line, length);
    status = chat_add(chat, whole, newline + length, error);
    free(whole);
    const int prompt = chat->count;
    if (status == STATUS_OK)
        status = run_prompt(chat, &logits, &reused, error);
    if (status == STATUS_OK)
        status = reply(chat, logits, error);
    if (status == STATUS_OK && chat->runner.cache != NULL)
        status = prefix_runner_publish(&chat->runner, chat->request, chat->text,
                                       chat->count - 1, error);
    kv_cache_reset(request_cache(chat->request));
    if (status == STATUS_OK && chat->options->stats)
        fprintf(stderr, "[prompt %d tokens: %d reused, %d run]\n", prompt,
                reused, prompt - reused);
    return status;
}

static enum status next_turn(struct chat *chat, const char *line,
                             size_t length, struct error *error)
{
    if (length > 0)
        return turn(chat, line, length, error);
    chat->count = chat->opening;
    return STATUS_OK;
}

static enum status read_turns(struct chat *chat, struct error *error)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    enum status status = STATUS_OK;
    while (status == STATUS_OK
           && (length = getline(&line, &room, stdin)) >= 0) {
        if (length > 0 && line[length - 1] == '\n')
            length--;
        status = next_turn(chat, line, (size_t)length, error);
    }
    if (status == STATUS_OK && ferror(stdin))
        status = error_set(error, STATUS_IO, "cannot read: %s",
                           strerror(errno));
    free(line);
    return status;
}

static enum status turns(struct chat *chat, struct error *error)
{
    const struct options *options = chat->options;
    enum status status = chat_add(chat, options->system,
                                  strlen(options->system), error);
    chat->opening = chat->count;
    for (int k = 0; k < options->prompt_count && status == STATUS_OK; k++)
        status = next_turn(chat, options->prompts[k],
                           strlen(options->prompts[k]), error);
    if (status == STATUS_OK && options->prompt_count == 0)
        status = read_turns(chat, error);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {
        .system = "", .block_size = 16, .capacity = 64,
        .prompts = calloc((size_t)argc, sizeof *options.prompts)
    };
    struct chat chat = {.options = &options};
    struct error error;
    int status = 0;
    if (options.prompts == NULL) {
        error_set(&error, STATUS_NO_MEMORY, "no memory for %d words", argc);
        return command_failure(command, &error);
    }
    status = read_options(command, argc, argv, &options);
    if (status == 0 && (chat_begin(&chat, &error) != STATUS_OK
                        || turns(&chat, &error) != STATUS_OK))
        status = command_failure(command, &error);
    chat_end(&chat);
    free(options.prompts);
    return status;
}

const struct command command_chat = {
    "chat", "a conversation whose prompts share their prefix",
    "usage: tinygpt chat --model DIR --max-new-tokens N [--system TEXT]\n"
    "                    [--prompt TEXT]... [--prefix-cache KIND]\n"
    "                    [--block-size G] [--capacity E] [--stats]\n"
    "\n"
    "Each --prompt, or else each line of standard input, is a turn. It is\n"
    "put behind the conversation so far, all of that is the prompt, and a\n"
    "reply of N tokens is chosen greedily. An empty turn starts over behind\n"
    "the system TEXT. A conversation must fit the model's context.\n"
    "Text is for the tokenizer of --tokenizer FILE, or the one beside the\n"
    "model. A reply ends before its N tokens where the model says EOS.\n"
    "\n"
    "  --prefix-cache  keep K/V from turn to turn: snapshots, blocks or\n"
    "                  none (none); the replies are the same\n"
    "  --block-size    tokens that are kept or run together (16)\n"
    "  --capacity      snapshots or blocks at most (64)\n"
    "  --stats         say on standard error how many tokens were reused\n",
    run
};
