#include "lru_index.h"
#include <stdlib.h>

enum status lru_index_new(struct lru_index *index, int capacity,
                          struct error *error)
{
    size_t buckets = 1;
    while (buckets < (size_t)capacity)
        buckets *= 2;
    struct lru_node **made = calloc(buckets, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix cache: no memory for %zu buckets", buckets);
    index->buckets = made;
    index->mask = buckets - 1;
    index->ring.older = index->ring.newer = &index->ring;
    return STATUS_OK;
}

void lru_index_free(struct lru_index *index)
{
    free(index->buckets);
    index->buckets = NULL;
}

static struct lru_node *of_hash(struct lru_node *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash)
        node = node->next;
    return node;
}

struct lru_node *lru_index_first(const struct lru_index *index,
                                 uint64_t hash)
{
    return of_hash(index->buckets[hash & index->mask], hash);
}

struct lru_node *lru_index_next(const struct lru_node *node)
{
    return of_hash(node->next, node->hash);
}

void lru_index_hold(struct lru_node *node)
{
    if (node->newer == NULL)
        return;
    node->older->newer = node->newer;
    node->newer->older = node->older;
    node->older = node->newer = NULL;
}

void lru_index_touch(struct lru_index *index, struct lru_node *node)
{
    lru_index_hold(node);
    node->newer = &index->ring;
    node->older = index->ring.older;
    node->older->newer = node;
    index->ring.older = node;
}

struct lru_node *lru_index_oldest(const struct lru_index *index)
{
    struct lru_node *node = index->ring.newer;
    return node == &index->ring ? NULL : node;
}

void lru_index_add(struct lru_index *index, struct lru_node *node,
                   uint64_t hash)
{
    struct lru_node **bucket = &index->buckets[hash & index->mask];
    *node = (struct lru_node){.next = *bucket, .hash = hash};
    *bucket = node;
    lru_index_touch(index, node);
}

void lru_index_remove(struct lru_index *index, struct lru_node *node)
{
    struct lru_node **link = &index->buckets[node->hash & index->mask];
    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    lru_index_hold(node);
}
