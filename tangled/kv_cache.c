#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "kv_cache.h"

enum { BATCH, HEADS, SLOTS, HEAD_DIM, DIMENSIONS };

static const char *const dimension_names[DIMENSIONS] = {
    "batch", "heads", "slots", "head_dim"
};

/* One dimension may differ, or none: -1. */
static enum status tensor_check(const char *name, const struct tensor *tensor,
                                const struct tensor *like, int free_dimension,
                                struct error *error)
{
    size_t size;
    if (tensor == NULL || tensor->data == NULL)
        return error_set(error, STATUS_INVALID, "%s: null tensor", name);
    if (tensor->rank != DIMENSIONS)
        return error_set(error, STATUS_INVALID, "%s: rank: expected %d, got"
                         " %d", name, DIMENSIONS, tensor->rank);
    if (!shape_size(tensor->rank, tensor->shape, &size))
        return error_set(error, STATUS_INVALID,
                         "%s: expected positive sizes", name);
    for (int d = 0; d < DIMENSIONS; d++)
        if (d != free_dimension && tensor->shape[d] != like->shape[d])
            return error_set(error, STATUS_INVALID,
                             "%s: %s: expected %d, got %d", name,
                             dimension_names[d], like->shape[d],
                             tensor->shape[d]);
    return STATUS_OK;
}

static enum status slots_check(const int32_t *slots,
                               const struct tensor *recent, int capacity,
                               struct error *error)
{
    const int tokens = recent->shape[SLOTS];
    if (slots == NULL)
        return error_set(error, STATUS_INVALID, "slots: is NULL");
    for (int b = 0; b < recent->shape[BATCH]; b++, slots += tokens) {
        int32_t highest = -1;
        for (int t = 0; t < tokens; t++) {
            if (slots[t] < 0 || slots[t] >= capacity)
                return error_set(error, STATUS_INVALID,
                                 "slots[%d][%d]: expected 0 to %d, got %d", b, t,
                                 capacity - 1, (int)slots[t]);
            if (slots[t] > highest)
                highest = slots[t];
            else
                for (int u = 0; u < t; u++)
                    if (slots[u] == slots[t])
                        return error_set(error, STATUS_INVALID,
                                         "slots[%d][%d]: %d is slots[%d][%d] again", b,
                                         t, (int)slots[t], b, u);
        }
    }
    return STATUS_OK;
}

static void rows_write(const struct tensor *recent, const int32_t *slots,
                       struct tensor *cache)
{
    const int heads = recent->shape[HEADS], tokens = recent->shape[SLOTS];
    const size_t capacity = (size_t)cache->shape[SLOTS];
    const size_t row = (size_t)recent->shape[HEAD_DIM];
    const float *from = recent->data;
    for (int b = 0; b < recent->shape[BATCH]; b++, slots += tokens)
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < tokens; t++, from += row) {
                const size_t slice = (size_t)b * (size_t)heads + (size_t)h;
                const size_t slot = (size_t)slots[t];
                memcpy(cache->data + (slice * capacity + slot) * row, from,
                       row * sizeof *from);
            }
}

enum status append_kv_cache(struct tensor *key_cache,
                            struct tensor *value_cache,
                            const struct tensor *key_new,
                            const struct tensor *value_new,
                            const int32_t *slots, struct error *error)
{
    enum status status =
        tensor_check("key_cache", key_cache, key_cache, SLOTS, error);
    if (status == STATUS_OK)
        status = tensor_check("value_cache", value_cache, key_cache, -1, error);
    if (status == STATUS_OK)
        status = tensor_check("key_new", key_new, key_cache, SLOTS, error);
    if (status == STATUS_OK)
        status = tensor_check("value_new", value_new, key_new, -1, error);
    if (status == STATUS_OK)
        status = slots_check(slots, key_new, key_cache->shape[SLOTS], error);
    if (status != STATUS_OK)
        return status;
    rows_write(key_new, slots, key_cache);
    rows_write(value_new, slots, value_cache);
    return STATUS_OK;
}

struct kv_cache {
    struct gpt_config shape;          /* n_layers, n_heads, d_model */
    int batch, capacity;
    struct past_key_values storage;   /* L pairs [B,H,S,D], for life */
    int32_t *lengths, *starts;        /* [B] */
    int32_t *slots;                   /* [B,S], of one append */
};

void kv_cache_free(struct kv_cache **cache)
{
    if (cache == NULL || *cache == NULL)
        return;
    past_key_values_free(&(*cache)->storage);
    free((*cache)->lengths);
    free(*cache);
    *cache = NULL;
}

static enum status sizes_check(const struct cache_shape *shape, int batch,
                               int capacity, struct error *error)
{
    const struct { const char *name; int size; } sizes[] = {
        {"n_layers", shape->n_layers}, {"n_kv_heads", shape->n_kv_heads},
        {"head_dim", shape->head_dim}, {"batch", batch},
        {"capacity", capacity}
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k].size < 1)
            return error_set(error, STATUS_INVALID,
                             "%s: expected at least 1, got %d",
                             sizes[k].name, sizes[k].size);
    if (shape->head_dim > INT_MAX / shape->n_kv_heads)
        return error_set(error, STATUS_INVALID,
                         "head_dim: expected at most %d for %d heads, got %d",
                         INT_MAX / shape->n_kv_heads, shape->n_kv_heads,
                         shape->head_dim);
    return STATUS_OK;
}

enum status kv_cache_new(struct kv_cache **cache,
                         const struct cache_shape *shape, int batch,
                         int capacity, struct error *error)
{
    enum status status = sizes_check(shape, batch, capacity, error);
    if (status != STATUS_OK)
        return status;
    struct kv_cache *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a cache");
    *made = (struct kv_cache){.shape = cache_shape_config(shape),
                              .batch = batch, .capacity = capacity};
    status = past_key_values_new(&made->storage, &made->shape, batch,
                                 capacity, error);
    if (status == STATUS_OK)
        {
            const size_t columns = (size_t)capacity + 2;
            made->lengths = calloc((size_t)batch, columns * sizeof *made->lengths);
            if (made->lengths == NULL)
                status = error_set(error, STATUS_NO_MEMORY,
                                   "no memory for %d rows of %d slots", batch,
                                   capacity);
            else {
                made->starts = made->lengths + batch;
                made->slots = made->starts + batch;
            }
        }
    if (status == STATUS_OK)
        *cache = made;
    else
        kv_cache_free(&made);
    return status;
}

int kv_cache_batch(const struct kv_cache *cache)
{
    return cache->batch;
}

int kv_cache_capacity(const struct kv_cache *cache)
{
    return cache->capacity;
}

const int32_t *kv_cache_lengths(const struct kv_cache *cache)
{
    return cache->lengths;
}

const int32_t *kv_cache_starts(const struct kv_cache *cache)
{
    return cache->starts;
}

const struct past_key_values *kv_cache_storage(const struct kv_cache *cache)
{
    return &cache->storage;
}

static int32_t row_start(const struct kv_cache *cache,
                         const int32_t *positions, int tokens, int b)
{
    return cache->lengths[b] > 0 ? cache->starts[b]
                                 : positions[(size_t)b * (size_t)tokens];
}
static enum status positions_check(const struct kv_cache *cache,
                                   const int32_t *positions, int tokens,
                                   struct error *error)
{
    if (positions == NULL)
        return error_set(error, STATUS_INVALID, "positions: is NULL");
    for (int b = 0; b < cache->batch; b++) {
        const int32_t *row = positions + (size_t)b * (size_t)tokens;
        const int64_t first = (int64_t)row_start(cache, positions, tokens, b)
                              + cache->lengths[b];
        if (tokens > cache->capacity - cache->lengths[b])
            return error_set(error, STATUS_INVALID,
                             "row %d: expected at most %d slots, got %d + %d", b,
                             cache->capacity, (int)cache->lengths[b], tokens);
        for (int t = 0; t < tokens; t++)
            if (row[t] != first + t || first < 0)
                return error_set(error, STATUS_INVALID,
                                 "positions[%d][%d]: expected %lld, got %d", b, t,
                                 first < 0 ? 0 : (long long)first + t, (int)row[t]);
    }
    return STATUS_OK;
}
static void rows_advance(struct kv_cache *cache, const int32_t *positions,
                         int tokens)
{
    for (int b = 0; b < cache->batch; b++) {
        cache->starts[b] = row_start(cache, positions, tokens, b);
        cache->lengths[b] += tokens;
    }
}

enum status kv_cache_advance(struct kv_cache *cache, const int32_t *positions,
                             int tokens, struct error *error)
{
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    enum status status = positions_check(cache, positions, tokens, error);
    if (status == STATUS_OK)
        rows_advance(cache, positions, tokens);
    return status;
}

enum status kv_cache_append(struct kv_cache *cache,
                            const struct past_key_values *recent,
                            const int32_t *positions, struct error *error)
{
    const int tokens = past_key_values_length(recent);
    enum status status =
        past_key_values_check(recent, &cache->shape, cache->batch, error);
    if (status == STATUS_OK)
        status = positions_check(cache, positions, tokens, error);
    if (status != STATUS_OK)
        return status;
    for (int b = 0; b < cache->batch; b++) {
        const int32_t start = row_start(cache, positions, tokens, b);
        for (int t = 0; t < tokens; t++) {
            const size_t at = (size_t)b * (size_t)tokens + (size_t)t;
            cache->slots[at] = positions[at] - start;
        }
    }
    for (int l = 0; l < cache->storage.n_layers; l++) {
        rows_write(&recent->layers[l].key, cache->slots,
                   &cache->storage.layers[l].key);
        rows_write(&recent->layers[l].value, cache->slots,
                   &cache->storage.layers[l].value);
    }
    rows_advance(cache, positions, tokens);
    return STATUS_OK;
}

static enum status books_check(const struct kv_cache *cache,
                               const int32_t *lengths, const int32_t *starts,
                               int there, struct error *error)
{
    const int most = there < cache->capacity ? there : cache->capacity;
    if (lengths == NULL || starts == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         lengths == NULL ? "cache_lengths"
                                         : "cache_start_positions");
    for (int b = 0; b < cache->batch; b++) {
        if (lengths[b] < 0 || lengths[b] > most)
            return error_set(error, STATUS_INVALID,
                             "cache_lengths[%d]: expected 0 to %d, got %d", b, most,
                             (int)lengths[b]);
        if (starts[b] < 0 || starts[b] > INT32_MAX - lengths[b])
            return error_set(error, STATUS_INVALID,
                             "cache_start_positions[%d]: expected 0 to %d, got %d",
                             b, (int)(INT32_MAX - lengths[b]), (int)starts[b]);
    }
    return STATUS_OK;
}
static void rows_load(const struct kv_cache *cache, const struct tensor *past,
                      const int32_t *lengths, struct tensor *storage)
{
    const size_t row = (size_t)past->shape[HEAD_DIM];
    const size_t from = (size_t)past->shape[SLOTS] * row;
    const size_t to = (size_t)cache->capacity * row;
    const int heads = past->shape[HEADS];
    for (int s = 0; s < cache->batch * heads; s++) {
        const int b = s / heads;
        const float *source = past->data + (size_t)s * from;
        float *slice = storage->data + (size_t)s * to;
        const size_t kept = (size_t)lengths[b] * row;
        const size_t used = (size_t)cache->lengths[b] * row;
        memmove(slice, source, kept * sizeof *slice);
        if (used > kept)
            memset(slice + kept, 0, (used - kept) * sizeof *slice);
    }
}

enum status kv_cache_load(struct kv_cache *cache,
                          const struct past_key_values *past,
                          const int32_t *cache_lengths,
                          const int32_t *cache_start_positions,
                          struct error *error)
{
    enum status status =
        past_key_values_check(past, &cache->shape, cache->batch, error);
    if (status == STATUS_OK)
        status = books_check(cache, cache_lengths, cache_start_positions,
                             past_key_values_length(past), error);
    if (status != STATUS_OK)
        return status;
    for (int l = 0; l < cache->storage.n_layers; l++) {
        struct layer_kv *layer = &cache->storage.layers[l];
        rows_load(cache, &past->layers[l].key, cache_lengths, &layer->key);
        rows_load(cache, &past->layers[l].value, cache_lengths,
                  &layer->value);
    }
    for (int b = 0; b < cache->batch; b++) {
        cache->lengths[b] = cache_lengths[b];
        cache->starts[b] = cache_start_positions[b];
    }
    return STATUS_OK;
}

enum status kv_cache_from_past(struct kv_cache **cache,
                               const struct past_key_values *past,
                               const int32_t *cache_lengths,
                               const int32_t *cache_start_positions,
                               int capacity, struct error *error)
{
    if (past == NULL || past->layers == NULL || past->n_layers < 1)
        return error_set(error, STATUS_INVALID,
                         "past_key_values: no layers");
    const int *size = past->layers[0].key.shape;
    const struct cache_shape shape = {past->n_layers, size[HEADS],
                                      size[HEAD_DIM]};
    struct kv_cache *made = NULL;
    enum status status = kv_cache_new(&made, &shape, size[BATCH], capacity,
                                      error);
    if (status == STATUS_OK)
        status = kv_cache_load(made, past, cache_lengths,
                               cache_start_positions, error);
    if (status == STATUS_OK)
        *cache = made;
    else
        kv_cache_free(&made);
    return status;
}

struct kv_inputs kv_cache_inputs(const struct kv_cache *cache)
{
    int longest = 0;
    for (int b = 0; b < cache->batch; b++)
        if (cache->lengths[b] > longest)
            longest = cache->lengths[b];
    if (longest == 0)
        return (struct kv_inputs){NULL, NULL, NULL};
    return (struct kv_inputs){&cache->storage, cache->lengths,
                              cache->starts};
}

enum status kv_cache_snapshot(const struct kv_cache *cache,
                              struct past_key_values *copy, int32_t *lengths,
                              int32_t *starts, struct error *error)
{
    if (copy == NULL || lengths == NULL || starts == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         copy == NULL ? "copy" :
                         lengths == NULL ? "lengths" : "starts");
    int longest = 1;
    for (int b = 0; b < cache->batch; b++)
        if (cache->lengths[b] > longest)
            longest = cache->lengths[b];
    enum status status = past_key_values_prefix(&cache->storage, longest, copy,
                                                error);
    if (status != STATUS_OK)
        return status;
    const size_t bytes = (size_t)cache->batch * sizeof *lengths;
    memcpy(lengths, cache->lengths, bytes);
    memcpy(starts, cache->starts, bytes);
    return STATUS_OK;
}

static void row_cut(struct kv_cache *cache, int b, int length)
{
    for (int l = 0; l < cache->storage.n_layers; l++) {
        const struct layer_kv *layer = &cache->storage.layers[l];
        const int heads = layer->key.shape[HEADS];
        const size_t row = (size_t)layer->key.shape[HEAD_DIM];
        const size_t lost = (size_t)(cache->lengths[b] - length) * row;
        for (int h = 0; h < heads; h++) {
            const size_t slice = (size_t)b * (size_t)heads + (size_t)h;
            const size_t at = (slice * (size_t)cache->capacity
                               + (size_t)length) * row;
            memset(layer->key.data + at, 0, lost * sizeof (float));
            memset(layer->value.data + at, 0, lost * sizeof (float));
        }
    }
    cache->lengths[b] = length;
}

enum status kv_cache_truncate(struct kv_cache *cache, const int32_t *lengths,
                              struct error *error)
{
    if (lengths == NULL)
        return error_set(error, STATUS_INVALID, "lengths: is NULL");
    for (int b = 0; b < cache->batch; b++) {
        if (lengths[b] < 0 || lengths[b] > cache->lengths[b])
            return error_set(error, STATUS_INVALID,
                             "lengths[%d]: expected 0 to %d, got %d", b,
                             (int)cache->lengths[b], (int)lengths[b]);
    }
    for (int b = 0; b < cache->batch; b++) {
        row_cut(cache, b, lengths[b]);
    }
    return STATUS_OK;
}

void kv_cache_reset(struct kv_cache *cache)
{
    for (int b = 0; b < cache->batch; b++) {
        row_cut(cache, b, 0);
        cache->starts[b] = 0;
    }
}
