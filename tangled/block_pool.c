#include "block_pool.h"
#include <assert.h>
#include <stdlib.h>

struct block_pool {
    int count;                  /* E */
    int available;
    int32_t *stack;             /* [E] the first `available` are free */
    int32_t *references;        /* [E] */
};

enum status block_pool_new(struct block_pool **pool, int count,
                           struct error *error)
{
    if (count < 1)
        return error_set(error, STATUS_INVALID,
                         "blocks: expected at least 1, got %d", count);
    struct block_pool *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->count = made->available = count;
        made->stack = calloc((size_t)count, sizeof *made->stack);
        made->references = calloc((size_t)count, sizeof *made->references);
    }
    if (made == NULL || made->stack == NULL || made->references == NULL) {
        block_pool_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "blocks: no memory for %d counters", count);
    }
    for (int k = 0; k < count; k++)
        made->stack[k] = count - 1 - k;
    *pool = made;
    return STATUS_OK;
}

void block_pool_free(struct block_pool **pool)
{
    if (pool == NULL || *pool == NULL)
        return;
    free((*pool)->stack);
    free((*pool)->references);
    free(*pool);
    *pool = NULL;
}

int block_pool_available(const struct block_pool *pool)
{
    return pool->available;
}

int block_pool_references(const struct block_pool *pool, int block)
{
    return block < 0 || block >= pool->count ? 0 : pool->references[block];
}

int block_pool_take(struct block_pool *pool)
{
    if (pool->available == 0)
        return NO_BLOCK;
    int block = pool->stack[--pool->available];
    pool->references[block] = 1;
    return block;
}

void block_pool_retain(struct block_pool *pool, int block)
{
    assert(block_pool_references(pool, block) > 0);
    pool->references[block]++;
}

enum status block_pool_release(struct block_pool *pool,
                               const int32_t *blocks, int count,
                               struct error *error)
{
    for (int k = 0; k < count; k++) {
        if (block_pool_references(pool, blocks[k]) < 1) {
            for (int undo = 0; undo < k; undo++)
                pool->references[blocks[undo]]++;
            return error_set(error, STATUS_INVALID,
                             "blocks[%d]: block %ld has no reference to release", k,
                             (long)blocks[k]);
        }
        pool->references[blocks[k]]--;
    }
    for (int k = 0; k < count; k++) {
        if (pool->references[blocks[k]] == 0) {
            pool->references[blocks[k]] = -1;
            pool->stack[pool->available++] = blocks[k];
        }
    }
    return STATUS_OK;
}
