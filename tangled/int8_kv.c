#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "int8_kv.h"

struct int8_kv {
    struct cache_shape shape;
    int batch, capacity;
    float *scales;               /* [L,2,B,H,S]; owns the codes as well */
    int8_t *codes;               /* [L,2,B,H,S,D] */
    int32_t *lengths, *starts;   /* [B] */
    int32_t *next;               /* [B] positions that a feed goes on at */
};

void int8_kv_free(struct int8_kv **cache)
{
    if (cache == NULL || *cache == NULL)
        return;
    free((*cache)->scales);
    free((*cache)->lengths);
    free(*cache);
    *cache = NULL;
}

static bool count_rows(const struct cache_shape *shape, int batch,
                       int capacity, size_t *rows)
{
    return size_multiply(2 * (size_t)shape->n_layers, (size_t)batch, rows)
           && size_multiply(*rows, (size_t)shape->n_kv_heads, rows)
           && size_multiply(*rows, (size_t)capacity, rows);
}

bool int8_kv_bytes(const struct cache_shape *shape, int batch, int capacity,
                   size_t *bytes)
{
    size_t rows;
    if (!count_rows(shape, batch, capacity, &rows))
        return false;
    return size_multiply(rows, (size_t)shape->head_dim + sizeof (float), bytes);
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

static enum status allocate(struct int8_kv *cache, struct error *error)
{
    size_t bytes, rows;
    const size_t batch = (size_t)cache->batch;
    if (int8_kv_bytes(&cache->shape, cache->batch, cache->capacity, &bytes)
        && count_rows(&cache->shape, cache->batch, cache->capacity, &rows)) {
        cache->scales = calloc(1, bytes);
        if (cache->scales != NULL)
            cache->codes = (int8_t *)(cache->scales + rows);
    }
    cache->lengths = calloc(batch, 3 * sizeof *cache->lengths);
    if (cache->scales == NULL || cache->lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %d rows of %d slots", cache->batch,
                         cache->capacity);
    cache->starts = cache->lengths + batch;
    cache->next = cache->starts + batch;
    return STATUS_OK;
}

enum status int8_kv_new(struct int8_kv **cache,
                        const struct cache_shape *shape, int batch,
                        int capacity, struct error *error)
{
    enum status status = sizes_check(shape, batch, capacity, error);
    if (status != STATUS_OK)
        return status;
    struct int8_kv *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a cache");
    *made = (struct int8_kv){.shape = *shape, .batch = batch,
                             .capacity = capacity};
    status = allocate(made, error);
    if (status == STATUS_OK)
        *cache = made;
    else
        int8_kv_free(&made);
    return status;
}

const int8_t *int8_kv_codes(const struct int8_kv *cache)
{
    return cache->codes;
}

const float *int8_kv_scales(const struct int8_kv *cache)
{
    return cache->scales;
}

const int32_t *int8_kv_lengths(const struct int8_kv *cache)
{
    return cache->lengths;
}

const int32_t *int8_kv_starts(const struct int8_kv *cache)
{
    return cache->starts;
}

static size_t count_heads(const struct int8_kv *cache)     /* B·H */
{
    return (size_t)cache->batch * (size_t)cache->shape.n_kv_heads;
}

static size_t count_slices(const struct int8_kv *cache)
{
    return 2 * (size_t)cache->shape.n_layers * count_heads(cache);
}

/* The row of the batch that slice s belongs to. */
static size_t slice_row(const struct int8_kv *cache, size_t s)
{
    return s % count_heads(cache) / (size_t)cache->shape.n_kv_heads;
}

/* Slice s in a tensor [B,H,S',D] of its layer. */
static float *slice_floats(const struct int8_kv *cache,
                           const struct past_key_values *floats, size_t s)
{
    const size_t part = s / count_heads(cache), head = s % count_heads(cache);
    const struct layer_kv *layer = &floats->layers[part / 2];
    const struct tensor *tensor = part % 2 == 0 ? &layer->key : &layer->value;
    return tensor->data + head * (size_t)tensor->shape[2]
                          * (size_t)tensor->shape[3];
}

static enum status books_check(const struct int8_kv *cache,
                               const int32_t *positions, int tokens,
                               struct error *error)
{
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    for (int b = 0; b < cache->batch; b++) {
        const int32_t length = cache->lengths[b];
        const int64_t next = (int64_t)cache->starts[b] + length;
        if (tokens > cache->capacity - length)
            return error_set(error, STATUS_INVALID,
                             "row %d: expected at most %d slots, got %d + %d", b,
                             cache->capacity, (int)length, tokens);
        if (length > 0 ? positions[b] != next
                       : positions[b] < 0 || positions[b] > INT32_MAX - tokens)
            return error_set(error, STATUS_INVALID,
                             "positions[%d]: expected %lld, got %d", b,
                             length > 0 ? (long long)next : 0, (int)positions[b]);
    }
    return STATUS_OK;
}

static enum status slots_check(const struct int8_kv *cache,
                               const struct past_key_values *source,
                               const int32_t *from, int tokens,
                               struct error *error)
{
    const int last = past_key_values_length(source) - tokens;
    for (int b = 0; b < cache->batch; b++)
        if (last < 0 || (from != NULL && (from[b] < 0 || from[b] > last)))
            return error_set(error, STATUS_INVALID,
                             "from[%d]: expected 0 to %d, got %d", b, last,
                             from == NULL ? 0 : (int)from[b]);
    return STATUS_OK;
}

static enum status finite_check(const struct int8_kv *cache,
                                const struct past_key_values *source,
                                const int32_t *from, int tokens,
                                struct error *error)
{
    const size_t row = (size_t)cache->shape.head_dim;
    for (size_t s = 0; s < count_slices(cache); s++) {
        const size_t b = slice_row(cache, s);
        const float *floats = slice_floats(cache, source, s)
                              + (size_t)(from ? from[b] : 0) * row;
        const size_t part = s / count_heads(cache);
        for (size_t k = 0; k < (size_t)tokens * row; k++) {
            if (!isfinite(floats[k]))
                return error_set(error, STATUS_INVALID,
                                 "past_key_values[%zu].%s: row %zu: expected finite"
                                 " floats, got %g", part / 2, part % 2 ? "value" : "key",
                                 b, (double)floats[k]);
        }
    }
    return STATUS_OK;
}

static void quantise(struct int8_kv *cache, size_t slice, int slot,
                     const float *floats)
{
    const int width = cache->shape.head_dim;
    const size_t row = slice * (size_t)cache->capacity + (size_t)slot;
    float *scale = cache->scales + row;
    int8_t *codes = cache->codes + row * (size_t)width;
    *scale = int8_scale(floats, width);
    int8_encode(floats, width, *scale, codes);
}

enum status int8_kv_append(struct int8_kv *cache,
                           const struct past_key_values *source,
                           const int32_t *from, const int32_t *positions,
                           int tokens, struct error *error)
{
    if (cache == NULL || positions == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         cache == NULL ? "cache" : "positions");
    const struct gpt_config shape = cache_shape_config(&cache->shape);
    enum status status = past_key_values_check(source, &shape, cache->batch,
                                               error);
    if (status == STATUS_OK)
        status = books_check(cache, positions, tokens, error);
    if (status == STATUS_OK)
        status = slots_check(cache, source, from, tokens, error);
    if (status == STATUS_OK)
        status = finite_check(cache, source, from, tokens, error);
    if (status != STATUS_OK)
        return status;
    for (size_t s = 0; s < count_slices(cache); s++) {
        const size_t b = slice_row(cache, s);
        const float *floats = slice_floats(cache, source, s)
            + (size_t)(from ? from[b] : 0) * (size_t)cache->shape.head_dim;
        for (int t = 0; t < tokens; t++)
            quantise(cache, s, cache->lengths[b] + t,
                     floats + t * cache->shape.head_dim);
    }
    for (int b = 0; b < cache->batch; b++) {
        if (cache->lengths[b] == 0)
            cache->starts[b] = positions[b];
        cache->lengths[b] += tokens;
    }
    return STATUS_OK;
}

static enum status room_check(const struct int8_kv *cache,
                              const struct past_key_values *floats,
                              struct error *error)
{
    if (cache == NULL)
        return error_set(error, STATUS_INVALID, "cache: is NULL");
    const struct gpt_config shape = cache_shape_config(&cache->shape);
    enum status status = past_key_values_check(floats, &shape, cache->batch,
                                               error);
    const int slots = past_key_values_length(floats);
    for (int b = 0; b < cache->batch && status == STATUS_OK; b++)
        if (cache->lengths[b] > slots)
            status = error_set(error, STATUS_INVALID,
                               "row %d: expected at most %d slots, got %d",
                               b, slots, (int)cache->lengths[b]);
    return status;
}

enum status int8_kv_gather(const struct int8_kv *cache,
                           const struct past_key_values *floats,
                           struct error *error)
{
    const enum status status = room_check(cache, floats, error);
    if (status != STATUS_OK)
        return status;
    const int width = cache->shape.head_dim;
    for (size_t s = 0; s < count_slices(cache); s++) {
        const int length = cache->lengths[slice_row(cache, s)];
        const float *scale = cache->scales + s * (size_t)cache->capacity;
        const int8_t *codes = cache->codes
            + s * (size_t)cache->capacity * (size_t)width;
        float *out = slice_floats(cache, floats, s);
        for (int slot = 0; slot < length; slot++, codes += width, out += width)
            int8_decode(codes, width, scale[slot], out);
    }
    return STATUS_OK;
}

static void row_cut(struct int8_kv *cache, size_t b, int length)
{
    const size_t width = (size_t)cache->shape.head_dim;
    const size_t lost = (size_t)(cache->lengths[b] - length);
    for (size_t s = 0; s < count_slices(cache); s++)
        if (slice_row(cache, s) == b) {
            const size_t row = s * (size_t)cache->capacity + (size_t)length;
            memset(cache->scales + row, 0, lost * sizeof *cache->scales);
            memset(cache->codes + row * width, 0, lost * width);
        }
    cache->lengths[b] = length;
}

enum status int8_kv_truncate(struct int8_kv *cache, const int32_t *lengths,
                             struct error *error)
{
    if (cache == NULL || lengths == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         cache == NULL ? "cache" : "lengths");
    for (int b = 0; b < cache->batch; b++)
        if (lengths[b] < 0 || lengths[b] > cache->lengths[b])
            return error_set(error, STATUS_INVALID,
                             "lengths[%d]: expected 0 to %d, got %d", b,
                             (int)cache->lengths[b], (int)lengths[b]);
    for (int b = 0; b < cache->batch; b++)
        row_cut(cache, (size_t)b, lengths[b]);
    return STATUS_OK;
}

void int8_kv_reset(struct int8_kv *cache)
{
    for (int b = 0; b < cache->batch; b++) {
        row_cut(cache, (size_t)b, 0);
        cache->starts[b] = 0;
    }
}

static enum status feed_check(struct int8_kv *cache,
                              const struct request *request,
                              const float *const *logits, int tokens,
                              struct error *error)
{
    const char *missing = cache == NULL ? "cache"
                          : request == NULL ? "request"
                          : logits == NULL ? "logits" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    for (int b = 0; b < cache->batch; b++)
        cache->next[b] = cache->lengths[b] > INT32_MAX - cache->starts[b]
            ? INT32_MAX : cache->starts[b] + cache->lengths[b];
    return books_check(cache, cache->next, tokens, error);
}

static enum status hold(struct kv_cache *floats, const struct int8_kv *cache,
                        struct error *error)
{
    const struct past_key_values *storage = kv_cache_storage(floats);
    const enum status status = int8_kv_gather(cache, storage, error);
    return status != STATUS_OK ? status
           : kv_cache_load(floats, storage, cache->lengths, cache->starts,
                           error);
}

enum status int8_kv_feed(struct int8_kv *cache, struct request *request,
                         const int32_t *ids, int tokens, bool last_only,
                         const float **logits, struct error *error)
{
    const float *computed = NULL;
    enum status status = feed_check(cache, request, logits, tokens, error);
    if (status != STATUS_OK)
        return status;
    struct kv_cache *floats = request_cache(request);
    status = hold(floats, cache, error);
    if (status == STATUS_OK)
        status = request_feed(request, ids, tokens, last_only, &computed,
                              error);
    if (status == STATUS_OK) {
        status = int8_kv_append(cache, kv_cache_storage(floats), cache->lengths,
                                cache->next, tokens, error);
    }
    if (status == STATUS_OK)
        *logits = computed;
    return status;
}
