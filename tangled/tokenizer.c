#include "tokenizer.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer_parts.h"

enum status tokenizer_make(struct tokenizer **tokenizer, int count,
                           size_t bytes, struct error *error)
{
    struct tokenizer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a tokenizer");
    made->bos = made->eos = -1;
    made->special = calloc((size_t)count + 1, sizeof *made->special);
    enum status status = made->special != NULL
        ? vocabulary_new(&made->vocabulary, count, bytes, error)
        : error_set(error, STATUS_NO_MEMORY,
                    "no memory for %d tokens", count);
    if (status == STATUS_OK)
        *tokenizer = made;
    else
        tokenizer_close(&made);
    return status;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    if (tokenizer == NULL || *tokenizer == NULL)
        return;
    if ((*tokenizer)->tables != NULL)
        (*tokenizer)->free_tables((*tokenizer)->tables);
    vocabulary_free(&(*tokenizer)->vocabulary);
    free((*tokenizer)->special);
    free(*tokenizer);
    *tokenizer = NULL;
}

enum status id_list_reserve(struct id_list *list, size_t more,
                            struct error *error)
{
    if (more > (size_t)(INT_MAX - list->count))
        return error_set(error, STATUS_NO_MEMORY,
                         "a text of more than %d ids", INT_MAX);
    const int needed = list->count + (int)more;
    if (needed <= list->room)
        return STATUS_OK;
    int room = list->room > INT_MAX / 2 ? INT_MAX : 2 * list->room;
    room = room > needed ? room : needed;
    int32_t *longer = realloc(list->ids, (size_t)room * sizeof *longer);
    if (longer == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d ids",
                         room);
    list->ids = longer;
    list->room = room;
    return STATUS_OK;
}

enum status tokenizer_encode_watched(const struct tokenizer *tokenizer,
                                     const char *bytes, size_t length,
                                     int options,
                                     const struct merge_watch *watch,
                                     int32_t **ids, int *count,
                                     struct error *error)
{
    struct id_list list = {NULL, 0, 0};
    const struct passage passage = {
        (const unsigned char *)(bytes == NULL ? "" : bytes), length, options,
        watch
    };
    enum status status = STATUS_OK;
    if ((options & TOKENIZER_BEGIN) != 0 && tokenizer->bos >= 0) {
        status = id_list_reserve(&list, 1, error);
        if (status == STATUS_OK)
            list.ids[list.count++] = tokenizer->bos;
    }
    if (status == STATUS_OK && length > 0)
        status = tokenizer->encode(tokenizer, &passage, &list, error);
    if (status != STATUS_OK) {
        free(list.ids);
        return status;
    }
    *ids = list.ids;
    *count = list.count;
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer,
                             const char *bytes, size_t length, int options,
                             int32_t **ids, int *count, struct error *error)
{
    return tokenizer_encode_watched(tokenizer, bytes, length, options, NULL,
                                    ids, count, error);
}

static bool is_token(const struct tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < vocabulary_count(tokenizer->vocabulary);
}

const unsigned char *tokenizer_bytes(const struct tokenizer *tokenizer,
                                     int32_t id, size_t *length)
{
    struct span bytes = {(const unsigned char *)"\xEF\xBF\xBD", 3};
    if (is_token(tokenizer, id))
        bytes = vocabulary_bytes(tokenizer->vocabulary, id);
    *length = bytes.length;
    return bytes.at;
}

bool tokenizer_special(const struct tokenizer *tokenizer, int32_t id)
{
    return is_token(tokenizer, id) && tokenizer->special[id];
}

bool tokenizer_prefixes(const struct tokenizer *tokenizer)
{
    return tokenizer->prefixes;
}

int tokenizer_count(const struct tokenizer *tokenizer)
{
    return vocabulary_count(tokenizer->vocabulary);
}

int tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

int tokenizer_difference(const struct tokenizer *one,
                         const struct tokenizer *other)
{
    const int counts[] = {tokenizer_count(one), tokenizer_count(other)};
    const int most = counts[0] > counts[1] ? counts[0] : counts[1];
    for (int32_t id = 0; id < most; id++) {
        size_t lengths[2];
        const unsigned char *a = tokenizer_bytes(one, id, &lengths[0]);
        const unsigned char *b = tokenizer_bytes(other, id, &lengths[1]);
        if (is_token(one, id) != is_token(other, id)
            || lengths[0] != lengths[1] || memcmp(a, b, lengths[0]) != 0
            || tokenizer_special(one, id) != tokenizer_special(other, id))
            return id;
    }
    return -1;
}

enum { BYTES = 256 };

static enum status encode_bytes(const struct tokenizer *tokenizer,
                                const struct passage *passage,
                                struct id_list *list, struct error *error)
{
    (void)tokenizer;
    enum status status = id_list_reserve(list, passage->length, error);
    for (size_t k = 0; k < passage->length && status == STATUS_OK; k++)
        list->ids[list->count++] = passage->bytes[k];
    return status;
}

enum status tokenizer_of_bytes(struct tokenizer **tokenizer,
                               struct error *error)
{
    struct tokenizer *made = NULL;
    enum status status = tokenizer_make(&made, BYTES, BYTES, error);
    if (status != STATUS_OK)
        return status;
    for (int k = 0; k < BYTES; k++) {
        const unsigned char byte = (unsigned char)k;
        vocabulary_set(made->vocabulary, k, (struct span){&byte, 1});
    }
    made->encode = encode_bytes;
    *tokenizer = made;
    return STATUS_OK;
}
