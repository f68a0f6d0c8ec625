#include "prefix_cache.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "prefix_class.h"

enum status prefix_options_check(const struct prefix_cache_options *options,
                                 struct error *error)
{
    const struct { const char *name; int size; } sizes[] = {
        {"shape.n_layers", options->shape.n_layers},
        {"shape.n_kv_heads", options->shape.n_kv_heads},
        {"shape.head_dim", options->shape.head_dim},
        {"block_size", options->block_size},
        {"capacity", options->capacity},
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k].size < 1)
            return error_set(error, STATUS_INVALID,
                             "%s: expected at least 1, got %d",
                             sizes[k].name, sizes[k].size);
    size_t bytes = 2 * sizeof (float);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (!size_multiply(bytes, (size_t)sizes[k].size, &bytes))
            return error_set(error, STATUS_NO_MEMORY,
                             "%s: %d of them do not fit", sizes[k].name,
                             sizes[k].size);
    if (options->shape.n_kv_heads > INT_MAX / options->shape.head_dim)
        return error_set(error, STATUS_INVALID,
                         "shape: %d heads of %d are too wide",
                         options->shape.n_kv_heads, options->shape.head_dim);
    return STATUS_OK;
}

static uint64_t fnv(uint64_t before, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t k = 0; k < size; k++)
        before = (before ^ at[k]) * 0x100000001b3u;
    return before;
}

void prefix_cache_init(struct prefix_cache *cache,
                       const struct prefix_class *class,
                       const struct prefix_cache_options *options)
{
    cache->class = class;
    cache->options = *options;
    if (options->hash == NULL)
        cache->options.hash = fnv;
}

void prefix_cache_free(struct prefix_cache **cache)
{
    if (cache != NULL && *cache != NULL) {
        (*cache)->class->free(*cache);
        *cache = NULL;
    }
}

const struct prefix_cache_options *
prefix_cache_options(const struct prefix_cache *cache)
{
    return &cache->options;
}

struct prefix_cache_stats prefix_cache_stats(const struct prefix_cache *cache)
{
    return cache->stats;
}

size_t prefix_kv_bytes(const struct prefix_cache *cache, int tokens)
{
    const struct cache_shape *shape = &cache->options.shape;
    return 2 * sizeof (float) * (size_t)shape->n_layers
           * (size_t)shape->n_kv_heads * (size_t)shape->head_dim
           * (size_t)tokens;
}

uint64_t prefix_origin_hash(const struct prefix_cache *cache,
                            const struct prefix_key *key)
{
    prefix_hash *hash = cache->options.hash;
    uint64_t before = 0xcbf29ce484222325u;
    const char *model = key->namespace.model, *salt = key->namespace.salt;
    before = hash(before, model, strlen(model) + 1);
    before = hash(before, salt, strlen(salt) + 1);
    before = hash(before, &key->start, sizeof key->start);
    return before;
}

uint64_t prefix_block_hash(const struct prefix_cache *cache, uint64_t before,
                           const int32_t *ids)
{
    return cache->options.hash(before, ids, (size_t)cache->options.block_size
                                            * sizeof *ids);
}

bool prefix_same_origin(const struct prefix_key *a,
                        const struct prefix_key *b)
{
    const bool same = a->start == b->start
        && strcmp(a->namespace.model, b->namespace.model) == 0
        && strcmp(a->namespace.salt, b->namespace.salt) == 0;
    return same;
}

enum status prefix_key_copy(struct prefix_key *copy,
                            const struct prefix_key *key, int tokens,
                            struct error *error)
{
    const size_t ids = (size_t)tokens * sizeof *key->ids;
    const size_t model = strlen(key->namespace.model) + 1;
    const size_t salt = strlen(key->namespace.salt) + 1;
    char *bytes = malloc(ids + model + salt);
    if (bytes == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for a key of %d ids",
                         tokens);
    if (ids > 0)
        memcpy(bytes, key->ids, ids);
    memcpy(bytes + ids, key->namespace.model, model);
    memcpy(bytes + ids + model, key->namespace.salt, salt);
    *copy = (struct prefix_key){
        {bytes + ids, bytes + ids + model}, key->start,
        (const int32_t *)(void *)bytes, tokens
    };
    return STATUS_OK;
}

void prefix_key_free(struct prefix_key *copy)
{
    free((void *)(uintptr_t)copy->ids);
    *copy = (struct prefix_key){0};
}

enum status prefix_key_check(const struct prefix_key *key,
                             struct error *error)
{
    if (key->namespace.model == NULL || key->namespace.salt == NULL)
        return error_set(error, STATUS_INVALID, "namespace.%s: is NULL",
                         key->namespace.model == NULL ? "model" : "salt");
    if (key->start < 0)
        return error_set(error, STATUS_INVALID,
                         "start: expected at least 0, got %ld",
                         (long)key->start);
    if (key->tokens < 0 || key->tokens > INT32_MAX - key->start)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 0 to %ld, got %d",
                         (long)INT32_MAX - (long)key->start, key->tokens);
    if (key->ids == NULL && key->tokens > 0)
        return error_set(error, STATUS_INVALID, "ids: is NULL");
    return STATUS_OK;
}

static enum status past_check(const struct prefix_cache *cache,
                              const struct prefix_key *key,
                              const struct past_key_values *past,
                              struct error *error)
{
    const struct gpt_config shape = cache_shape_config(&cache->options.shape);
    enum status status = past_key_values_check(past, &shape, 1, error);
    const int length = past_key_values_length(past);
    if (status == STATUS_OK && length < key->tokens)
        status = error_set(error, STATUS_INVALID,
                           "past_key_values: length: expected at least %d"
                           " (tokens), got %d", key->tokens, length);
    return status;
}

enum status prefix_cache_store(struct prefix_cache *cache,
                               const struct prefix_key *key,
                               const struct past_key_values *past,
                               struct error *error)
{
    enum status status = prefix_key_check(key, error);
    if (status == STATUS_OK)
        status = past_check(cache, key, past, error);
    if (status == STATUS_OK)
        status = cache->class->store(cache, key, past, error);
    return status;
}

enum status prefix_cache_lookup(struct prefix_cache *cache,
                                const struct prefix_key *key,
                                struct prefix_match *match,
                                struct error *error)
{
    struct prefix_match found = {.cache_start_position = key->start};
    if (match->past.layers != NULL)
        return error_set(error, STATUS_INVALID,
                         "match: expected an empty struct, got one in use");
    enum status status = prefix_key_check(key, error);
    if (status == STATUS_OK)
        status = cache->class->lookup(cache, key, &found, error);
    if (status != STATUS_OK)
        return status;
    cache->stats.lookups++;
    cache->stats.hits += found.cache_length > 0;
    cache->stats.tokens_reused += (uint64_t)found.cache_length;
    *match = found;
    return STATUS_OK;
}

void prefix_match_free(struct prefix_match *match)
{
    if (match == NULL)
        return;
    past_key_values_free(&match->past);
    *match = (struct prefix_match){0};
}
