#ifndef LRU_INDEX_H
#define LRU_INDEX_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

/* First member of what is indexed: a node's address is its owner's. */
struct lru_node {
    struct lru_node *older, *newer;   /* NULL: not in the order of use */
    struct lru_node *next;            /* of the same bucket */
    uint64_t hash;
};

struct lru_index {
    struct lru_node **buckets;        /* a power of two of them */
    size_t mask;                      /* their number, less 1 */
    struct lru_node ring;             /* so an index must not be moved */
};

/* For about `capacity` nodes: more make it slower. Unchanged on error. */
enum status lru_index_new(struct lru_index *index, int capacity,
                          struct error *error);
void lru_index_free(struct lru_index *index);

/* The first node of this hash, then the next of the same hash; or NULL. */
struct lru_node *lru_index_first(const struct lru_index *index,
                                 uint64_t hash);
struct lru_node *lru_index_next(const struct lru_node *node);

/* The node becomes the newest. */
void lru_index_add(struct lru_index *index, struct lru_node *node,
                   uint64_t hash);
void lru_index_remove(struct lru_index *index, struct lru_node *node);
/* Makes a node the newest that is in the index, in the order or not. */
void lru_index_touch(struct lru_index *index, struct lru_node *node);
/* Takes a node out of the order: it is found and never the oldest. */
void lru_index_hold(struct lru_node *node);
/* NULL when there is none. */
struct lru_node *lru_index_oldest(const struct lru_index *index);

#endif
