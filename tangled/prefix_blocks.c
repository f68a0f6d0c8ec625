#include "prefix_blocks.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "lru_index.h"
#include "prefix_class.h"

struct shared_block {
    struct lru_node node;
    int parent;                 /* NO_BLOCK: first of a text */
    struct prefix_key origin;   /* owned, of no ids; of a first block */
};

struct blocks {
    struct prefix_cache base;
    struct lru_index index;
    struct block_pool *pool;
    struct shared_block *blocks;       /* [E] */
    int32_t *ids;               /* [E,G] */
    float *rows;                /* [E,L,2,H,G,D] */
    struct lease *leases;           /* the live ones */
    uint64_t last_number;
};

static int number_of(const struct blocks *cache, const struct lru_node *node)
{
    return (int)((const struct shared_block *)node - cache->blocks);
}

static int32_t *ids_of(const struct blocks *cache, int block)
{
    const size_t size = (size_t)cache->base.options.block_size;
    return cache->ids + (size_t)block * size;
}

/* [H,G,D]: part 0 is the key, 1 the value. */
static float *rows_of(const struct blocks *cache, int block, int layer,
                      int part)
{
    const struct prefix_cache_options *options = &cache->base.options;
    const size_t slice = (size_t)options->shape.n_kv_heads
                         * (size_t)options->block_size
                         * (size_t)options->shape.head_dim;
    const size_t layers = (size_t)options->shape.n_layers;
    return cache->rows + (((size_t)block * layers + (size_t)layer) * 2
                          + (size_t)part) * slice;
}

/* The rows of one block of `block` tokens into place `k` of a tensor
   [1,H,S,D], or out of it. */
static void copy_block(float *rows, const struct tensor *tensor, int block,
                       int k, bool out)
{
    const size_t row = (size_t)tensor->shape[3];
    const size_t size = (size_t)block * row;
    for (int head = 0; head < tensor->shape[1]; head++) {
        float *here = rows + (size_t)head * size;
        float *there = tensor->data;
        const size_t slots = (size_t)tensor->shape[2];
        there += ((size_t)head * slots + (size_t)(k * block)) * row;
        memcpy(out ? there : here, out ? here : there, size * sizeof *here);
    }
}

static void copy_all(const struct blocks *cache, int block,
                     const struct past_key_values *past, int k, bool out)
{
    const int size = cache->base.options.block_size;
    for (int l = 0; l < past->n_layers; l++) {
        copy_block(rows_of(cache, block, l, 0), &past->layers[l].key, size, k,
                   out);
        copy_block(rows_of(cache, block, l, 1), &past->layers[l].value, size,
                   k, out);
    }
}

static int child_of(const struct blocks *cache, int parent, uint64_t hash,
                    const struct prefix_key *key, int k)
{
    const size_t size = (size_t)cache->base.options.block_size;
    const int32_t *ids = key->ids + (size_t)k * size;
    struct lru_node *node = lru_index_first(&cache->index, hash);
    for (; node != NULL; node = lru_index_next(node)) {
        const int number = number_of(cache, node);
        const struct shared_block *block = &cache->blocks[number];
        bool same;
        same = block->parent == parent
            && memcmp(ids_of(cache, number), ids, size * sizeof *ids) == 0
            && (parent != NO_BLOCK || prefix_same_origin(&block->origin, key));
        if (same)
            return number;
    }
    return NO_BLOCK;
}

struct walk {
    int leaf;                   /* the last block; NO_BLOCK so far */
    int count;                  /* blocks up to it */
    uint64_t hash;              /* of the text up to it */
};

static struct walk walk_down(const struct blocks *cache,
                             const struct prefix_key *key)
{
    const int size = cache->base.options.block_size;
    struct walk walk = {NO_BLOCK, 0, prefix_origin_hash(&cache->base, key)};
    for (int k = 0; k < key->tokens / size; k++) {
        uint64_t hash = prefix_block_hash(&cache->base, walk.hash, key->ids
                                          + (size_t)k * (size_t)size);
        int child = child_of(cache, walk.leaf, hash, key, k);
        if (child == NO_BLOCK)
            break;
        walk = (struct walk){child, k + 1, hash};
    }
    return walk;
}

static void hold(struct blocks *cache, int block)
{
    block_pool_retain(cache->pool, block);
    lru_index_hold(&cache->blocks[block].node);
}

static void let_go(struct blocks *cache, int block)
{
    const int32_t list[1] = {block};
    enum status status = block_pool_release(cache->pool, list, 1, NULL);
    assert(status == STATUS_OK);
    (void)status;
    if (block_pool_references(cache->pool, block) == 1)
        lru_index_touch(&cache->index, &cache->blocks[block].node);
}

static void hold_chain(struct blocks *cache, int leaf)
{
    for (int block = leaf; block != NO_BLOCK;
         block = cache->blocks[block].parent)
        hold(cache, block);
}

static void let_chain_go(struct blocks *cache, int leaf)
{
    while (leaf != NO_BLOCK) {
        const int parent = cache->blocks[leaf].parent;
        let_go(cache, leaf);
        leaf = parent;
    }
}

static int room_for_block(struct blocks *cache)
{
    const int block = block_pool_take(cache->pool);
    struct lru_node *node = lru_index_oldest(&cache->index);
    if (block != NO_BLOCK || node == NULL)
        return block;
    const int32_t oldest[1] = {number_of(cache, node)};
    lru_index_remove(&cache->index, node);
    prefix_key_free(&cache->blocks[oldest[0]].origin);
    cache->base.stats.entries--;
    cache->base.stats.evictions++;
    cache->base.stats.kv_bytes -= prefix_kv_bytes(
        &cache->base, cache->base.options.block_size);
    block_pool_release(cache->pool, oldest, 1, NULL);
    return block_pool_take(cache->pool);
}

static void fill_block(struct blocks *cache, int number, struct walk *walk,
                       const struct prefix_key *key,
                       const struct past_key_values *past)
{
    const int size = cache->base.options.block_size;
    const int32_t *ids = key->ids + (size_t)walk->count * (size_t)size;
    struct shared_block *block = &cache->blocks[number];
    block->parent = walk->leaf;
    memcpy(ids_of(cache, number), ids, (size_t)size * sizeof *ids);
    copy_all(cache, number, past, walk->count, false);
    walk->hash = prefix_block_hash(&cache->base, walk->hash, ids);
    lru_index_add(&cache->index, &block->node, walk->hash);
    walk->leaf = number;
    walk->count++;
    cache->base.stats.entries++;
    cache->base.stats.insertions++;
    cache->base.stats.kv_bytes += prefix_kv_bytes(&cache->base, size);
}

static enum status store(struct prefix_cache *base,
                         const struct prefix_key *key,
                         const struct past_key_values *past,
                         struct error *error)
{
    struct blocks *cache = (struct blocks *)base;
    const int count = key->tokens / base->options.block_size;
    struct walk walk = walk_down(cache, key);
    struct prefix_key origin = {0};
    if (walk.leaf == NO_BLOCK && count > 0) {
        enum status status = prefix_key_copy(&origin, key, 0, error);
        if (status != STATUS_OK)
            return status;
    }
    hold_chain(cache, walk.leaf);
    while (walk.count < count) {
        const int block = room_for_block(cache);
        if (block == NO_BLOCK)
            break;
        cache->blocks[block].origin = origin;
        origin = (struct prefix_key){0};
        fill_block(cache, block, &walk, key, past);
        hold(cache, block);
    }
    let_chain_go(cache, walk.leaf);
    prefix_key_free(&origin);
    return STATUS_OK;
}

static enum status lookup(struct prefix_cache *base,
                          const struct prefix_key *key,
                          struct prefix_match *match, struct error *error)
{
    struct blocks *cache = (struct blocks *)base;
    const struct walk walk = walk_down(cache, key);
    const int length = walk.count * base->options.block_size;
    if (walk.count == 0)
        return STATUS_OK;
    const struct gpt_config shape = cache_shape_config(&base->options.shape);
    enum status status = past_key_values_new(&match->past, &shape, 1, length,
                                             error);
    if (status != STATUS_OK)
        return status;
    match->cache_length = length;
    hold_chain(cache, walk.leaf);
    int place = walk.count, block = walk.leaf;
    for (; block != NO_BLOCK; block = cache->blocks[block].parent)
        copy_all(cache, block, &match->past, --place, true);
    let_chain_go(cache, walk.leaf);
    return STATUS_OK;
}

struct lease {
    struct lease *next;
    uint64_t number;
    int leaf;
    int32_t blocks[];           /* [count] root first */
};

static void blocks_free(struct prefix_cache *base);
static const struct prefix_class blocks_class = {store, lookup, blocks_free};

static enum status blocks_check(const struct prefix_cache *base,
                                struct error *error)
{
    if (base->class != &blocks_class)
        return error_set(error, STATUS_INVALID,
                         "cache: expected one of blocks");
    return STATUS_OK;
}

static enum status lease_walk(struct blocks *cache,
                              const struct prefix_key *key,
                              struct prefix_lease *lease,
                              struct error *error)
{
    const struct walk walk = walk_down(cache, key);
    if (walk.count == 0)
        return STATUS_OK;
    struct lease *made = malloc(sizeof *made + (size_t)walk.count
                                               * sizeof made->blocks[0]);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "lease: no memory for %d blocks", walk.count);
    *made = (struct lease){cache->leases, ++cache->last_number, walk.leaf};
    int place = walk.count, block = walk.leaf;
    for (; block != NO_BLOCK; block = cache->blocks[block].parent)
        made->blocks[--place] = block;
    cache->leases = made;
    hold_chain(cache, walk.leaf);
    *lease = (struct prefix_lease){made->number, walk.count, made->blocks};
    return STATUS_OK;
}

enum status prefix_blocks_lease(struct prefix_cache *base,
                                const struct prefix_key *key,
                                struct prefix_lease *lease,
                                struct error *error)
{
    if (lease->number != 0)
        return error_set(error, STATUS_INVALID,
                         "lease: expected an empty struct, got one in use");
    enum status status = blocks_check(base, error);
    if (status == STATUS_OK)
        status = prefix_key_check(key, error);
    if (status == STATUS_OK)
        status = lease_walk((struct blocks *)base, key, lease, error);
    return status;
}

enum status prefix_blocks_release(struct prefix_cache *base,
                                  struct prefix_lease *lease,
                                  struct error *error)
{
    enum status status = blocks_check(base, error);
    if (status != STATUS_OK)
        return status;
    struct blocks *cache = (struct blocks *)base;
    struct lease **link = &cache->leases;
    while (*link != NULL && (*link)->number != lease->number)
        link = &(*link)->next;
    struct lease *record = *link;
    if (record == NULL)
        return error_set(error, STATUS_INVALID,
                         "lease: number %llu is not one, or no longer",
                         (unsigned long long)lease->number);
    let_chain_go(cache, record->leaf);
    *link = record->next;
    free(record);
    *lease = (struct prefix_lease){0};
    return STATUS_OK;
}

static const float *rows_in(const struct prefix_cache *base, int block,
                            int layer, int part)
{
    if (blocks_check(base, NULL) != STATUS_OK || block < 0 || layer < 0
        || block >= base->options.capacity
        || layer >= base->options.shape.n_layers)
        return NULL;
    return rows_of((const struct blocks *)base, block, layer, part);
}

const float *prefix_blocks_key(const struct prefix_cache *cache, int block,
                               int layer)
{
    return rows_in(cache, block, layer, 0);
}

const float *prefix_blocks_value(const struct prefix_cache *cache, int block,
                                 int layer)
{
    return rows_in(cache, block, layer, 1);
}

static void blocks_free(struct prefix_cache *base)
{
    struct blocks *cache = (struct blocks *)base;
    while (cache->leases != NULL) {
        struct lease *next = cache->leases->next;
        free(cache->leases);
        cache->leases = next;
    }
    for (int k = 0; cache->blocks != NULL && k < base->options.capacity; k++)
        prefix_key_free(&cache->blocks[k].origin);
    free(cache->blocks);
    free(cache->ids);
    free(cache->rows);
    block_pool_free(&cache->pool);
    lru_index_free(&cache->index);
    free(cache);
}

enum status prefix_blocks_new(struct prefix_cache **cache,
                              const struct prefix_cache_options *options,
                              struct error *error)
{
    enum status status = prefix_options_check(options, error);
    if (status != STATUS_OK)
        return status;
    struct blocks *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for a cache");
    prefix_cache_init(&made->base, &blocks_class, options);
    const size_t count = (size_t)options->capacity;
    const size_t tokens = count * (size_t)options->block_size;
    made->blocks = calloc(count, sizeof *made->blocks);
    made->ids = calloc(tokens, sizeof *made->ids);
    made->rows = malloc(count * prefix_kv_bytes(&made->base,
                                                options->block_size));
    if (made->blocks == NULL || made->ids == NULL || made->rows == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "prefix cache: no memory for %zu blocks", count);
    if (status == STATUS_OK)
        status = block_pool_new(&made->pool, options->capacity, error);
    if (status == STATUS_OK)
        status = lru_index_new(&made->index, options->capacity, error);
    if (status == STATUS_OK)
        *cache = &made->base;
    else
        blocks_free(&made->base);
    return status;
}
