#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "kv_cache.h"
#include "paged_cache.h"

struct sequence {
    bool open;
    int length;
    int32_t start;
};

struct paged_cache {
    struct cache_shape shape;
    struct paged_sizes sizes;
    int columns;
    struct past_key_values storage;    /* L pairs [1,H,EG,D] */
    struct block_pool *pool;
    struct sequence *sequences;        /* [sequences] */
    int32_t *tables;                   /* [sequences,columns] */
    int32_t *slots;                    /* [capacity], of one append */
};

void paged_cache_free(struct paged_cache **cache)
{
    if (cache == NULL || *cache == NULL)
        return;
    past_key_values_free(&(*cache)->storage);
    block_pool_free(&(*cache)->pool);
    free((*cache)->sequences);
    free((*cache)->tables);
    free((*cache)->slots);
    free(*cache);
    *cache = NULL;
}

static enum status sizes_check(const struct cache_shape *shape,
                               const struct paged_sizes *sizes,
                               struct error *error)
{
    const struct { const char *name; int size; } named[] = {
        {"n_layers", shape->n_layers}, {"n_kv_heads", shape->n_kv_heads},
        {"head_dim", shape->head_dim}, {"block_size", sizes->block_size},
        {"blocks", sizes->blocks}, {"sequences", sizes->sequences},
        {"capacity", sizes->capacity}
    };
    for (size_t k = 0; k < sizeof named / sizeof *named; k++)
        if (named[k].size < 1)
            return error_set(error, STATUS_INVALID,
                             "%s: expected at least 1, got %d",
                             named[k].name, named[k].size);
    if (shape->head_dim > INT_MAX / shape->n_kv_heads)
        return error_set(error, STATUS_INVALID,
                         "head_dim: expected at most %d for %d heads, got %d",
                         INT_MAX / shape->n_kv_heads, shape->n_kv_heads,
                         shape->head_dim);
    if (sizes->blocks > INT_MAX / sizes->block_size)
        return error_set(error, STATUS_INVALID,
                         "blocks: expected at most %d of %d slots, got %d",
                         INT_MAX / sizes->block_size, sizes->block_size,
                         sizes->blocks);
    return STATUS_OK;
}

static int blocks_for(const struct paged_sizes *sizes, int tokens)
{
    return tokens / sizes->block_size + (tokens % sizes->block_size > 0);
}

static enum status tables_new(struct paged_cache *made, struct error *error)
{
    const struct paged_sizes *sizes = &made->sizes;
    const int longest = blocks_for(sizes, sizes->capacity);
    made->columns = longest < sizes->blocks ? longest : sizes->blocks;
    made->sequences = calloc((size_t)sizes->sequences,
                             sizeof *made->sequences);
    made->tables = calloc((size_t)sizes->sequences,
                          ((size_t)made->columns + 1)
                          * sizeof *made->tables);
    made->slots = calloc((size_t)sizes->capacity, sizeof *made->slots);
    if (made->sequences == NULL || made->tables == NULL
        || made->slots == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %d tables of %d blocks",
                         sizes->sequences, made->columns);
    return STATUS_OK;
}

enum status paged_cache_new(struct paged_cache **cache,
                            const struct cache_shape *shape,
                            const struct paged_sizes *sizes,
                            struct error *error)
{
    enum status status = sizes_check(shape, sizes, error);
    if (status != STATUS_OK)
        return status;
    struct paged_cache *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a cache");
    *made = (struct paged_cache){.shape = *shape, .sizes = *sizes};
    const struct gpt_config config = cache_shape_config(shape);
    status = past_key_values_new(&made->storage, &config, 1,
                                 sizes->blocks * sizes->block_size, error);
    if (status == STATUS_OK)
        status = block_pool_new(&made->pool, sizes->blocks, error);
    if (status == STATUS_OK)
        status = tables_new(made, error);
    if (status == STATUS_OK)
        *cache = made;
    else
        paged_cache_free(&made);
    return status;
}

struct paged_sizes paged_cache_sizes(const struct paged_cache *cache)
{
    return cache->sizes;
}

struct cache_shape paged_cache_shape(const struct paged_cache *cache)
{
    return cache->shape;
}

const struct block_pool *paged_cache_pool(const struct paged_cache *cache)
{
    return cache->pool;
}

const struct past_key_values *
paged_cache_storage(const struct paged_cache *cache)
{
    return &cache->storage;
}

static int32_t *table_of(const struct paged_cache *cache, int s)
{
    return cache->tables + (size_t)s * (size_t)cache->columns;
}

static int tail_block(const struct paged_cache *cache, int s)
{
    const int length = cache->sequences[s].length;
    const int fill = length % cache->sizes.block_size;
    return fill == 0 ? NO_BLOCK
                     : table_of(cache, s)[length / cache->sizes.block_size];
}

static void blocks_give(struct paged_cache *cache, const int32_t *blocks,
                        int count)
{
    const enum status status = block_pool_release(cache->pool, blocks, count,
                                                  NULL);
    assert(status == STATUS_OK);
    (void)status;
}

static bool is_open(const struct paged_cache *cache, int s)
{
    return s >= 0 && s < cache->sizes.sequences && cache->sequences[s].open;
}

static enum status open_check(const struct paged_cache *cache, int s,
                              struct error *error)
{
    return is_open(cache, s) ? STATUS_OK
        : error_set(error, STATUS_INVALID, "sequence %d: is not open", s);
}

static enum status length_check(const struct paged_cache *cache, int s,
                                int length, struct error *error)
{
    const int most = cache->sequences[s].length;
    if (length < 0 || length > most)
        return error_set(error, STATUS_INVALID,
                         "length: expected 0 to %d, got %d", most, length);
    return STATUS_OK;
}

enum status paged_cache_open(struct paged_cache *cache, int *sequence,
                             struct error *error)
{
    if (sequence == NULL)
        return error_set(error, STATUS_INVALID, "sequence: is NULL");
    for (int s = 0; s < cache->sizes.sequences; s++)
        if (!cache->sequences[s].open) {
            cache->sequences[s] = (struct sequence){.open = true};
            *sequence = s;
            return STATUS_OK;
        }
    return error_set(error, STATUS_NO_MEMORY,
                     "sequences: all %d are open", cache->sizes.sequences);
}

enum status paged_cache_fork(struct paged_cache *cache, int parent,
                             int length, int *child, struct error *error)
{
    int made = 0;
    enum status status = open_check(cache, parent, error);
    if (status != STATUS_OK)
        return status;
    status = length_check(cache, parent, length, error);
    if (status != STATUS_OK)
        return status;
    status = child == NULL
        ? error_set(error, STATUS_INVALID, "child: is NULL")
        : paged_cache_open(cache, &made, error);
    if (status != STATUS_OK)
        return status;
    const int count = blocks_for(&cache->sizes, length);
    for (int k = 0; k < count; k++) {
        table_of(cache, made)[k] = table_of(cache, parent)[k];
        block_pool_retain(cache->pool, table_of(cache, made)[k]);
    }
    cache->sequences[made].length = length;
    cache->sequences[made].start = cache->sequences[parent].start;
    *child = made;
    return STATUS_OK;
}

enum status paged_cache_close(struct paged_cache *cache, int sequence,
                              struct error *error)
{
    enum status status = open_check(cache, sequence, error);
    if (status == STATUS_OK) {
        blocks_give(cache, table_of(cache, sequence),
                    blocks_for(&cache->sizes, cache->sequences[sequence].length));
        cache->sequences[sequence] = (struct sequence){.open = false};
    }
    return status;
}

struct paged_sequence paged_cache_sequence(const struct paged_cache *cache,
                                           int sequence)
{
    if (!is_open(cache, sequence))
        return (struct paged_sequence){.open = false};
    const struct sequence *s = &cache->sequences[sequence];
    return (struct paged_sequence){true, s->length, s->start,
                                   blocks_for(&cache->sizes, s->length),
                                   table_of(cache, sequence)};
}

static enum status row_check(const struct paged_cache *cache,
                             const int *sequences, int b,
                             const int32_t *positions, int tokens,
                             struct error *error)
{
    const int s = sequences[b];
    const int32_t *row = positions + (size_t)b * (size_t)tokens;
    enum status status = open_check(cache, s, error);
    if (status != STATUS_OK)
        return status;
    for (int above = 0; above < b; above++)
        if (sequences[above] == s)
            return error_set(error, STATUS_INVALID,
                             "sequences[%d]: %d is sequences[%d] again", b, s,
                             above);
    const int length = cache->sequences[s].length;
    if (tokens > cache->sizes.capacity - length)
        return error_set(error, STATUS_INVALID,
                         "sequence %d: expected at most %d slots, got %d + %d", s,
                         cache->sizes.capacity, length, tokens);
    const int64_t start = length > 0 ? cache->sequences[s].start : row[0];
    for (int t = 0; t < tokens; t++)
        if (start < 0 || row[t] != start + length + t)
            return error_set(error, STATUS_INVALID,
                             "positions[%d][%d]: expected %lld, got %d", b, t,
                             start < 0 ? 0 : (long long)(start + length + t),
                             (int)row[t]);
    return STATUS_OK;
}

enum status paged_cache_check(const struct paged_cache *cache,
                              const int *sequences, int batch,
                              const int32_t *positions, int tokens,
                              struct error *error)
{
    if (sequences == NULL || positions == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         sequences == NULL ? "sequences" : "positions");
    if (batch < 1 || batch > cache->sizes.sequences)
        return error_set(error, STATUS_INVALID, "batch: expected 1 to %d, got %d",
                         cache->sizes.sequences, batch);
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    int64_t needed = 0;
    for (int b = 0; b < batch; b++) {
        enum status status = row_check(cache, sequences, b, positions, tokens,
                                       error);
        if (status != STATUS_OK)
            return status;
        {
            const int length = cache->sequences[sequences[b]].length;
            needed += blocks_for(&cache->sizes, length + tokens)
                      - blocks_for(&cache->sizes, length);
        }
        {
            const int tail = tail_block(cache, sequences[b]);
            int readers = block_pool_references(cache->pool, tail);
            for (int above = 0; above < b; above++)
                readers -= tail_block(cache, sequences[above]) == tail;
            needed += readers > 1;
        }
    }
    if (needed > block_pool_available(cache->pool))
        return error_set(error, STATUS_NO_MEMORY,
                         "blocks: needed %lld, %d are free", (long long)needed,
                         block_pool_available(cache->pool));
    return STATUS_OK;
}

static void block_copy(struct paged_cache *cache, int from, int to)
{
    const size_t size = (size_t)cache->sizes.block_size
                        * (size_t)cache->shape.head_dim;
    const size_t head = (size_t)cache->sizes.blocks * size;
    for (int l = 0; l < cache->shape.n_layers; l++) {
        float *key = cache->storage.layers[l].key.data;
        float *value = cache->storage.layers[l].value.data;
        for (int h = 0; h < cache->shape.n_kv_heads; h++) {
            const size_t source = (size_t)h * head + (size_t)from * size;
            const size_t target = (size_t)h * head + (size_t)to * size;
            memcpy(key + target, key + source, size * sizeof *key);
            memcpy(value + target, value + source, size * sizeof *value);
        }
    }
}

static int block_take(struct paged_cache *cache)
{
    const int block = block_pool_take(cache->pool);
    assert(block != NO_BLOCK);
    return block;
}

static void sequence_grow(struct paged_cache *cache, int s, int tokens)
{
    const int length = cache->sequences[s].length;
    const int32_t tail = tail_block(cache, s);
    if (block_pool_references(cache->pool, tail) > 1) {
        const int own = block_take(cache);
        block_copy(cache, tail, own);
        blocks_give(cache, &tail, 1);
        table_of(cache, s)[length / cache->sizes.block_size] = own;
    }
    const int before = blocks_for(&cache->sizes, length);
    const int after = blocks_for(&cache->sizes, length + tokens);
    for (int k = before; k < after; k++)
        table_of(cache, s)[k] = block_take(cache);
}

static struct tensor tensor_row(const struct tensor *tensor, int b)
{
    struct tensor row = *tensor;
    row.shape[0] = 1;
    row.data += (size_t)b * tensor_size(&row);
    return row;
}

static void row_write(struct paged_cache *cache, int s,
                      const struct past_key_values *recent, int b)
{
    const int tokens = past_key_values_length(recent);
    const int size = cache->sizes.block_size;
    for (int t = 0; t < tokens; t++) {
        const int slot = cache->sequences[s].length + t;
        cache->slots[t] = table_of(cache, s)[slot / size] * size + slot % size;
    }
    for (int l = 0; l < recent->n_layers; l++) {
        struct layer_kv *layer = &cache->storage.layers[l];
        const struct tensor key = tensor_row(&recent->layers[l].key, b);
        const struct tensor value = tensor_row(&recent->layers[l].value, b);
        const enum status status = append_kv_cache(
            &layer->key, &layer->value, &key, &value, cache->slots, NULL);
        assert(status == STATUS_OK);
        (void)status;
    }
}

enum status paged_cache_append(struct paged_cache *cache,
                               const int *sequences, int batch,
                               const struct past_key_values *recent,
                               const int32_t *positions,
                               struct error *error)
{
    const int tokens = past_key_values_length(recent);
    const struct gpt_config config = cache_shape_config(&cache->shape);
    enum status status = past_key_values_check(recent, &config, batch, error);
    if (status == STATUS_OK)
        status = paged_cache_check(cache, sequences, batch, positions, tokens,
                                   error);
    if (status != STATUS_OK)
        return status;
    for (int b = 0; b < batch; b++) {
        struct sequence *sequence = &cache->sequences[sequences[b]];
        if (sequence->length == 0)
            sequence->start = positions[(size_t)b * (size_t)tokens];
        sequence_grow(cache, sequences[b], tokens);
        row_write(cache, sequences[b], recent, b);
        sequence->length += tokens;
    }
    return STATUS_OK;
}

enum status paged_cache_truncate(struct paged_cache *cache, int sequence,
                                 int length, struct error *error)
{
    enum status status = open_check(cache, sequence, error);
    if (status == STATUS_OK)
        status = length_check(cache, sequence, length, error);
    if (status == STATUS_OK) {
        struct sequence *cut = &cache->sequences[sequence];
        const int kept = blocks_for(&cache->sizes, length);
        blocks_give(cache, table_of(cache, sequence) + kept,
                    blocks_for(&cache->sizes, cut->length) - kept);
        cut->length = length;
    }
    return status;
}

static enum status gather_check(const struct paged_cache *cache,
                                const int *sequences, int batch,
                                const struct past_key_values *storage,
                                struct error *error)
{
    const struct gpt_config config = cache_shape_config(&cache->shape);
    const int slots = past_key_values_length(storage);
    if (sequences == NULL)
        return error_set(error, STATUS_INVALID, "sequences: is NULL");
    enum status status = past_key_values_check(storage, &config, batch,
                                               error);
    for (int b = 0; status == STATUS_OK && b < batch; b++) {
        status = open_check(cache, sequences[b], error);
        if (status == STATUS_OK
            && cache->sequences[sequences[b]].length > slots)
            status = error_set(error, STATUS_INVALID,
                               "sequence %d: expected at most %d slots, got"
                               " %d", sequences[b], slots,
                               cache->sequences[sequences[b]].length);
    }
    return status;
}
static void row_gather(const struct paged_cache *cache, int s,
                       const struct tensor *pages, const struct tensor *out,
                       int b)
{
    const int size = cache->sizes.block_size;
    const int length = cache->sequences[s].length;
    const int count = blocks_for(&cache->sizes, length);
    const size_t row = (size_t)cache->shape.head_dim;
    const size_t slots = (size_t)out->shape[2];
    for (int h = 0; h < cache->shape.n_kv_heads; h++) {
        const size_t slice = (size_t)b * (size_t)out->shape[1] + (size_t)h;
        const float *from = pages->data
                            + (size_t)h * (size_t)pages->shape[2] * row;
        float *to = out->data + slice * slots * row;
        for (int k = 0; k < count; k++) {
            const int first = k * size, left = length - first;
            const size_t floats = (size_t)(left < size ? left : size) * row;
            const size_t block = (size_t)table_of(cache, s)[k] * (size_t)size;
            memcpy(to + (size_t)first * row, from + block * row,
                   floats * sizeof *to);
        }
        memset(to + (size_t)length * row, 0,
               (slots - (size_t)length) * row * sizeof *to);
    }
}

enum status paged_cache_gather(const struct paged_cache *cache,
                               const int *sequences, int batch,
                               const struct past_key_values *storage,
                               int32_t *lengths, int32_t *starts,
                               struct error *error)
{
    enum status status = gather_check(cache, sequences, batch, storage,
                                      error);
    if (status == STATUS_OK && (lengths == NULL || starts == NULL))
        status = error_set(error, STATUS_INVALID, "%s: is NULL",
                           lengths == NULL ? "lengths" : "starts");
    for (int b = 0; status == STATUS_OK && b < batch; b++) {
        for (int l = 0; l < storage->n_layers; l++) {
            const struct layer_kv *pages = &cache->storage.layers[l];
            const struct layer_kv *layer = &storage->layers[l];
            row_gather(cache, sequences[b], &pages->key, &layer->key, b);
            row_gather(cache, sequences[b], &pages->value, &layer->value, b);
        }
        lengths[b] = cache->sequences[sequences[b]].length;
        starts[b] = cache->sequences[sequences[b]].start;
    }
    return status;
}
