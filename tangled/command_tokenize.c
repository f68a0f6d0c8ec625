#include "command_tokenize.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "checkpoint.h"
#include "file.h"
#include "text_stream.h"
#include "tokenizer.h"
#include "utf8.h"

struct options {
    const char *model, *tokenizer, *text, *file, *ids;
    bool decode, special, no_begin, pieces, json, steps;
};

static int read_option(const struct command *command, int argc, char **argv,
                       int *i, struct options *options)
{
    const struct { const char *name; const char **value; } values[] = {
        {"--model", &options->model}, {"--tokenizer", &options->tokenizer},
        {"--text", &options->text}, {"--file", &options->file},
        {"--ids", &options->ids}
    };
    const struct { const char *name; bool *flag; } flags[] = {
        {"--decode", &options->decode}, {"--special", &options->special},
        {"--no-begin", &options->no_begin}, {"--pieces", &options->pieces},
        {"--json", &options->json}, {"--steps", &options->steps}
    };
    const char *value;
    for (size_t k = 0; k < sizeof values / sizeof *values; k++)
        if (command_option(argc, argv, i, values[k].name, &value))
            return command_text(command, values[k].name, value,
                                values[k].value);
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
        if (strcmp(argv[*i], flags[k].name) == 0)
            return *flags[k].flag = true, 0;
    return command_usage_error(command, "no option %s", argv[*i]);
}

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        status = read_option(command, argc, argv, &i, options);
    if (status == 0 && options->model == NULL && options->tokenizer == NULL)
        status = command_usage_error(command, "--model DIR or --tokenizer"
                                     " FILE is needed");
    const bool text = options->text != NULL || options->file != NULL
        || options->pieces || options->json || options->steps;
    if (status == 0 && options->text != NULL && options->file != NULL)
        status = command_usage_error(command, "--text or --file, not both");
    if (status == 0 && options->decode && text)
        status = command_usage_error(command, "--decode takes --ids, and prints"
                                     " text");
    if (status == 0 && !options->decode && options->ids != NULL)
        status = command_usage_error(command, "--ids needs --decode");
    if (status == 0 && options->steps && !options->json)
        status = command_usage_error(command, "--steps needs --json");
    return status;
}

static enum status read_input(unsigned char **bytes, size_t *length,
                              struct error *error)
{
    size_t room = 0;
    *length = 0;
    do {
        if (*length == room) {
            room = room == 0 ? 65536 : 2 * room;
            unsigned char *longer = realloc(*bytes, room + 1);
            if (longer == NULL)
                return error_set(error, STATUS_NO_MEMORY,
                                 "no memory for %zu bytes", room);
            *bytes = longer;
        }
        *length += fread(*bytes + *length, 1, room - *length, stdin);
    } while (*length == room);
    (*bytes)[*length] = 0;
    return ferror(stdin) ? error_set(error, STATUS_IO, "cannot read: %s",
                                     strerror(errno)) : STATUS_OK;
}

static enum status get_text(const struct options *options,
                            unsigned char **bytes, size_t *length,
                            struct error *error)
{
    const char *word = options->decode ? options->ids : options->text;
    if (options->file != NULL)
        return file_read(options->file, bytes, length, error);
    if (word == NULL)
        return read_input(bytes, length, error);
    *length = strlen(word);
    *bytes = malloc(*length + 1);
    if (*bytes == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the text");
    memcpy(*bytes, word, *length + 1);
    return STATUS_OK;
}

static void print_character(const unsigned char *bytes, size_t size)
{
    if (bytes[0] == '"' || bytes[0] == '\\')
        printf("\\%c", bytes[0]);
    else if (bytes[0] == '\n')
        fputs("\\n", stdout);
    else if (bytes[0] < ' ' || bytes[0] == 127)
        printf("\\u%04x", bytes[0]);
    else
        fwrite(bytes, 1, size, stdout);
}

static void print_quoted(const unsigned char *bytes, size_t length)
{
    putchar('"');
    while (length > 0) {
        const int size = utf8_next(bytes, length);
        const size_t taken = size > 0 ? (size_t)size
            : size < 0 ? (size_t)-size : length;
        if (size > 0)
            print_character(bytes, taken);
        else
            fputs("\xEF\xBF\xBD", stdout);
        bytes += taken;
        length -= taken;
    }
    putchar('"');
}

static void print_step(void *context, size_t left, size_t right,
                       int32_t joined)
{
    bool *first = context;
    printf("%s{\"left\":%zu,\"right\":%zu,\"id\":%d}", *first ? "" : ",",
           left, right, (int)joined);
    *first = false;
}

static void print_json(const struct tokenizer *tokenizer, const int32_t *ids,
                       int count)
{
    printf("\"ids\":[");
    for (int k = 0; k < count; k++)
        printf(k == 0 ? "%d" : ",%d", (int)ids[k]);
    printf("],\"pieces\":[");
    for (int k = 0; k < count; k++) {
        size_t length;
        const unsigned char *bytes = tokenizer_bytes(tokenizer, ids[k],
                                                     &length);
        printf("%s{\"text\":", k == 0 ? "" : ",");
        print_quoted(bytes, length);
        printf(",\"hex\":\"");
        for (size_t j = 0; j < length; j++)
            printf("%02x", bytes[j]);
        printf("\",\"special\":%s}",
               tokenizer_special(tokenizer, ids[k]) ? "true" : "false");
    }
    printf("]}\n");
}

static void print_ids(const struct options *options,
                      const struct tokenizer *tokenizer, const int32_t *ids,
                      int count)
{
    size_t length;
    for (int k = 0; k < count && options->pieces; k++) {
        const unsigned char *bytes = tokenizer_bytes(tokenizer, ids[k],
                                                     &length);
        printf("%6d  ", (int)ids[k]);
        print_quoted(bytes, length);
        putchar('\n');
    }
    for (int k = 0; k < count && !options->pieces; k++)
        printf(k == 0 ? "%d" : ",%d", (int)ids[k]);
    if (!options->pieces)
        putchar('\n');
}

static enum status next_id(char **list, int limit, int32_t *ids, int *count,
                           struct error *error)
{
    char *end = *list;
    *list += strspn(*list, ", \t\r\n");
    if (**list == '\0')
        return STATUS_OK;
    errno = 0;
    const long id = isdigit((unsigned char)**list) ? strtol(*list, &end, 10)
                                                   : -1;
    if (id < 0 || errno != 0 || id >= limit
        || strchr(", \t\r\n", *end) == NULL)
        return error_set(error, STATUS_INVALID, "ids: number %d: expected one"
                         " from 0 to %d, got %.20s", *count, limit - 1,
                         *list);
    ids[(*count)++] = (int32_t)id;
    *list = end;
    return STATUS_OK;
}

static bool write_bytes(void *context, const char *bytes, size_t length,
                        bool whole)
{
    (void)context, (void)whole;
    return fwrite(bytes, 1, length, stdout) == length;
}

static void print_text(const struct options *options,
                       const struct tokenizer *tokenizer, const int32_t *ids,
                       int count)
{
    struct text_stream stream = {
        .tokenizer = tokenizer, .show = write_bytes,
        .previous = options->no_begin ? INT32_MAX : -1,
        .special = options->special
    };
    bool well = true;
    for (int k = 0; k < count && well; k++)
        well = text_stream_add(&stream, ids[k]);
    if (well)
        text_stream_end(&stream);
}

static enum status decode(const struct options *options,
                          const struct tokenizer *tokenizer, char *list,
                          struct error *error)
{
    int32_t *ids = malloc((strlen(list) / 2 + 1) * sizeof *ids);
    int count = 0;
    enum status status = ids != NULL ? STATUS_OK
        : error_set(error, STATUS_NO_MEMORY, "no memory for the ids");
    while (status == STATUS_OK && *list != '\0')
        status = next_id(&list, tokenizer_count(tokenizer), ids, &count,
                         error);
    if (status == STATUS_OK)
        print_text(options, tokenizer, ids, count);
    free(ids);
    return status;
}

static enum status open_tokenizer(const struct options *options,
                                  struct tokenizer **tokenizer,
                                  struct error *error)
{
    struct checkpoint *checkpoint = NULL;
    int vocab_size = 0;
    if (options->model != NULL) {
        enum status status = checkpoint_open(&checkpoint, options->model,
                                             error);
        if (status != STATUS_OK)
            return status;
        vocab_size = checkpoint_causal_lm(checkpoint).vocab_size;
        checkpoint_close(&checkpoint);
    }
    return tokenizer_open(tokenizer, options->model, options->tokenizer,
                          vocab_size, error);
}

static enum status encode(const struct options *options,
                          const struct tokenizer *tokenizer,
                          const unsigned char *bytes, size_t length,
                          struct error *error)
{
    int32_t *ids = NULL;
    int count = 0;
    bool first = true;
    const struct merge_watch watch = {print_step, &first};
    const int flags = (options->no_begin ? 0 : TOKENIZER_BEGIN)
        | (options->special ? TOKENIZER_SPECIAL : 0);
    if (options->steps)
        printf("{\"steps\":[");
    enum status status = tokenizer_encode_watched(tokenizer,
        (const char *)bytes, length, flags, options->steps ? &watch : NULL,
        &ids, &count, error);
    if (options->steps)
        printf("],");
    else if (status == STATUS_OK && options->json)
        putchar('{');
    if (status == STATUS_OK && options->json)
        print_json(tokenizer, ids, count);
    else if (status == STATUS_OK)
        print_ids(options, tokenizer, ids, count);
    free(ids);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {0};
    struct tokenizer *tokenizer = NULL;
    struct error error;
    unsigned char *bytes = NULL;
    size_t length = 0;
    int failed = read_options(command, argc, argv, &options);
    if (failed != 0)
        return failed;
    enum status status = open_tokenizer(&options, &tokenizer, &error);
    if (status == STATUS_OK)
        status = get_text(&options, &bytes, &length, &error);
    if (status == STATUS_OK && options.decode)
        status = decode(&options, tokenizer, (char *)bytes, &error);
    else if (status == STATUS_OK)
        status = encode(&options, tokenizer, bytes, length, &error);
    free(bytes);
    tokenizer_close(&tokenizer);
    return status == STATUS_OK ? 0 : command_failure(command, &error);
}

const struct command command_tokenize = {
    "tokenize", "text to ids, and back",
    "usage: tinygpt tokenize (--model DIR | --tokenizer FILE)\n"
    "                        [--text TEXT | --file FILE] [--special]\n"
    "                        [--no-begin] [--pieces | --json [--steps]]\n"
    "       tinygpt tokenize --decode (--model DIR | --tokenizer FILE)\n"
    "                        [--ids IDS] [--special] [--no-begin]\n"
    "\n"
    "Prints the ids of TEXT, of a FILE, or of standard input, like 1,2,3;\n"
    "with --decode the bytes of IDS, or of the ids on standard input.\n"
    "--tokenizer is a directory with vocab.json and merges.txt, llama2.c's\n"
    "tokenizer.bin, or the word bytes; without it the model's own is used.\n"
    "\n"
    "  --special   <|endoftext|> in the text is that token, and is printed\n"
    "  --no-begin  the text goes on: no id that begins a text\n"
    "  --pieces    a line for each id, with what it stands for\n"
    "  --json      ids and pieces, in bytes as well (hex)\n"
    "  --steps     and each merge: where both sides begin, and the new id\n",
    run
};
