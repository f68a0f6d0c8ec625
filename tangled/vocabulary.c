#include "vocabulary.h"
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct vocabulary {
    int count;
    unsigned char *store;        /* [room] */
    size_t used, room;
    struct span *tokens;         /* [count], in the store */
    int32_t *table;              /* [table_size] ids, or NO_TOKEN */
    size_t table_size;           /* a power of two */
};

static size_t table_size(int count)
{
    size_t size = 4;
    while (size < 2 * (size_t)count)
        size *= 2;
    return size;
}

enum status vocabulary_new(struct vocabulary **vocabulary, int count,
                           size_t bytes, struct error *error)
{
    struct vocabulary *made = calloc(1, sizeof *made);
    if (made != NULL && bytes < SIZE_MAX) {
        made->count = count;
        made->room = bytes;
        made->table_size = table_size(count);
        made->store = malloc(bytes + 1);
        made->tokens = calloc((size_t)count + 1, sizeof *made->tokens);
        made->table = malloc(made->table_size * sizeof *made->table);
    }
    if (made == NULL || made->store == NULL || made->tokens == NULL
        || made->table == NULL) {
        vocabulary_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a vocabulary of %d tokens", count);
    }
    for (size_t k = 0; k < made->table_size; k++)
        made->table[k] = NO_TOKEN;
    *vocabulary = made;
    return STATUS_OK;
}

void vocabulary_free(struct vocabulary **vocabulary)
{
    if (vocabulary == NULL || *vocabulary == NULL)
        return;
    free((*vocabulary)->store);
    free((*vocabulary)->tokens);
    free((*vocabulary)->table);
    free(*vocabulary);
    *vocabulary = NULL;
}

void vocabulary_set(struct vocabulary *vocabulary, int32_t id,
                    struct span bytes)
{
    assert(id >= 0 && id < vocabulary->count
           && bytes.length <= vocabulary->room - vocabulary->used);
    unsigned char *at = vocabulary->store + vocabulary->used;
    memcpy(at, bytes.at, bytes.length);
    vocabulary->used += bytes.length;
    vocabulary->tokens[id] = (struct span){at, bytes.length};
}

int vocabulary_count(const struct vocabulary *vocabulary)
{
    return vocabulary->count;
}

struct span vocabulary_bytes(const struct vocabulary *vocabulary, int32_t id)
{
    assert(id >= 0 && id < vocabulary->count);
    return vocabulary->tokens[id];
}

static uint64_t hash_on(uint64_t hash, struct span bytes)
{
    for (size_t k = 0; k < bytes.length; k++)
        hash = (hash ^ bytes.at[k]) * UINT64_C(0x100000001b3);
    return hash;
}

static bool is_both(struct span token, struct span first, struct span second)
{
    return token.length == first.length + second.length
        && memcmp(token.at, first.at, first.length) == 0
        && memcmp(token.at + first.length, second.at, second.length) == 0;
}

/* The place of the token with these bytes, or the free one where it would
   be. */
static size_t place(const struct vocabulary *vocabulary, struct span first,
                    struct span second)
{
    const size_t mask = vocabulary->table_size - 1;
    uint64_t hash = hash_on(UINT64_C(0xcbf29ce484222325), first);
    hash = hash_on(hash, second);
    size_t at = (size_t)(hash ^ hash >> 32) & mask;
    while (vocabulary->table[at] != NO_TOKEN
           && !is_both(vocabulary->tokens[vocabulary->table[at]], first,
                       second))
        at = (at + 1) & mask;
    return at;
}

static const struct span nothing = {(const unsigned char *)"", 0};

int32_t vocabulary_enter(struct vocabulary *vocabulary, int32_t id)
{
    int32_t *found = &vocabulary->table[
        place(vocabulary, vocabulary_bytes(vocabulary, id), nothing)];
    if (*found != NO_TOKEN)
        return *found;
    *found = id;
    return NO_TOKEN;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary,
                        struct span first, struct span second)
{
    return vocabulary->table[place(vocabulary, first, second)];
}
