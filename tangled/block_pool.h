#ifndef BLOCK_POOL_H
#define BLOCK_POOL_H

#include <stdint.h>
#include "error.h"

/* Blocks 0 … E-1, each free or with references. free + used = E. */
struct block_pool;

/* All free. The caller owns it. Refuses a count below 1. */
enum status block_pool_new(struct block_pool **pool, int count,
                           struct error *error);
void block_pool_free(struct block_pool **pool);

enum { NO_BLOCK = -1 };
/* A free block, which has one reference then; NO_BLOCK when none is free. */
int block_pool_take(struct block_pool *pool);
/* One reference more to a block that has some. */
void block_pool_retain(struct block_pool *pool, int block);
/* One reference less for each mention in the list; a block without any is
   free. Refuses the whole list, and changes nothing, when it has a number
   that is no block or mentions one more often than it has references. */
enum status block_pool_release(struct block_pool *pool,
                               const int32_t *blocks, int count,
                               struct error *error);

int block_pool_available(const struct block_pool *pool);
/* 0 for a free block, and for a number that is none. */
int block_pool_references(const struct block_pool *pool, int block);

#endif
