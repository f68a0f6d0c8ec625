#include <stdlib.h>
#include <string.h>
#include "lru_index.h"
#include "prefix_class.h"

struct entry {
    struct lru_node node;
    struct prefix_key key;          /* owned: m ids */
    struct past_key_values past;    /* owned: [1,H,m,D] */
};

struct snapshots {
    struct prefix_cache base;
    struct lru_index index;
};

static void entry_free(struct entry *entry)
{
    if (entry == NULL)
        return;
    prefix_key_free(&entry->key);
    past_key_values_free(&entry->past);
    free(entry);
}

static enum status entry_new(struct entry **entry,
                             const struct prefix_key *key, int tokens,
                             const struct past_key_values *past,
                             struct error *error)
{
    struct entry *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for an entry");
    enum status status = prefix_key_copy(&made->key, key, tokens, error);
    if (status == STATUS_OK)
        status = past_key_values_prefix(past, tokens, &made->past, error);
    if (status == STATUS_OK)
        *entry = made;
    else
        entry_free(made);
    return status;
}

static struct entry *find(const struct snapshots *cache, uint64_t hash,
                          const struct prefix_key *key, int tokens)
{
    struct lru_node *node = lru_index_first(&cache->index, hash);
    for (; node != NULL; node = lru_index_next(node)) {
        struct entry *entry = (struct entry *)node;
        bool same;
        same = entry->key.tokens == tokens
            && prefix_same_origin(&entry->key, key)
            && memcmp(entry->key.ids, key->ids,
                      (size_t)tokens * sizeof *key->ids) == 0;
        if (same)
            return entry;
    }
    return NULL;
}

struct boundary {
    uint64_t hash;          /* of the first (n + 1) G tokens */
    struct entry *entry;    /* found or made; NULL so far */
    bool made;
};

static enum status boundaries_new(const struct snapshots *cache,
                                  const struct prefix_key *key, int count,
                                  struct boundary **list,
                                  struct error *error)
{
    *list = count > 0 ? calloc((size_t)count, sizeof **list) : NULL;
    if (count > 0 && *list == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for %d boundaries", count);
    const int block = cache->base.options.block_size;
    uint64_t hash = prefix_origin_hash(&cache->base, key);
    for (int n = 0; n < count; n++) {
        hash = prefix_block_hash(&cache->base, hash,
                                 key->ids + (size_t)n * (size_t)block);
        (*list)[n].hash = hash;
    }
    return STATUS_OK;
}

static void publish(struct snapshots *cache, const struct boundary *boundary)
{
    struct entry *entry = boundary->entry;
    struct prefix_cache_stats *stats = &cache->base.stats;
    if (boundary->made) {
        lru_index_add(&cache->index, &entry->node, boundary->hash);
        stats->entries++;
        stats->insertions++;
        stats->kv_bytes += prefix_kv_bytes(&cache->base, entry->key.tokens);
    } else {
        lru_index_touch(&cache->index, &entry->node);
    }
}

static void evict(struct snapshots *cache)
{
    struct prefix_cache_stats *stats = &cache->base.stats;
    while (stats->entries > cache->base.options.capacity) {
        struct lru_node *node;
        node = lru_index_oldest(&cache->index);
        struct entry *entry = (struct entry *)node;
        lru_index_remove(&cache->index, node);
        stats->entries--;
        stats->evictions++;
        stats->kv_bytes -= prefix_kv_bytes(&cache->base, entry->key.tokens);
        entry_free(entry);
    }
}

static enum status store(struct prefix_cache *base,
                         const struct prefix_key *key,
                         const struct past_key_values *past,
                         struct error *error)
{
    struct snapshots *cache = (struct snapshots *)base;
    const int block = base->options.block_size;
    struct boundary *list;
    const int count = key->tokens / block;
    enum status status = boundaries_new(cache, key, count, &list, error);
    if (status != STATUS_OK)
        return status;
    const int room = base->options.capacity;
    const int first = count > room ? count - room : 0;
    for (int n = first; n < count && status == STATUS_OK; n++) {
        list[n].entry = find(cache, list[n].hash, key, (n + 1) * block);
        if (list[n].entry == NULL) {
            status = entry_new(&list[n].entry, key, (n + 1) * block, past, error);
            list[n].made = status == STATUS_OK;
        }
    }
    for (int n = first; n < count; n++) {
        if (status == STATUS_OK)
            publish(cache, &list[n]);
        else if (list[n].made)
            entry_free(list[n].entry);
    }
    if (status == STATUS_OK)
        evict(cache);
    free(list);
    return status;
}

static enum status lookup(struct prefix_cache *base,
                          const struct prefix_key *key,
                          struct prefix_match *match, struct error *error)
{
    struct snapshots *cache = (struct snapshots *)base;
    const int block = base->options.block_size;
    const int count = key->tokens / block;
    struct entry *entry = NULL;
    struct boundary *list;
    enum status status = boundaries_new(cache, key, count, &list, error);
    if (status != STATUS_OK)
        return status;
    for (int n = count; n > 0 && entry == NULL; n--)
        entry = find(cache, list[n - 1].hash, key, n * block);
    free(list);
    if (entry == NULL)
        return STATUS_OK;
    status = past_key_values_prefix(&entry->past, entry->key.tokens, &match->past,
                                    error);
    if (status == STATUS_OK) {
        match->cache_length = entry->key.tokens;
        lru_index_touch(&cache->index, &entry->node);
    }
    return status;
}

static void snapshots_free(struct prefix_cache *base)
{
    struct snapshots *cache = (struct snapshots *)base;
    struct lru_node *node;
    while ((node = lru_index_oldest(&cache->index)) != NULL) {
        lru_index_remove(&cache->index, node);
        entry_free((struct entry *)node);
    }
    lru_index_free(&cache->index);
    free(cache);
}

enum status prefix_snapshots_new(struct prefix_cache **cache,
                                 const struct prefix_cache_options *options,
                                 struct error *error)
{
    static const struct prefix_class class = {store, lookup, snapshots_free};
    enum status status = prefix_options_check(options, error);
    if (status != STATUS_OK)
        return status;
    struct snapshots *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for a cache");
    prefix_cache_init(&made->base, &class, options);
    status = lru_index_new(&made->index, options->capacity, error);
    if (status == STATUS_OK)
        *cache = &made->base;
    else
        free(made);
    return status;
}
