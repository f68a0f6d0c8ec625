#ifndef PREFIX_BLOCKS_H
#define PREFIX_BLOCKS_H

#include "block_pool.h"
#include "prefix_cache.h"

/* Blocks that prefixes share; capacity is their number E. The caller owns the
   cache. A store keeps the beginning of a text when leases leave no room for
   all of it. Refuses a size below 1; unchanged on error. */
enum status prefix_blocks_new(struct prefix_cache **cache,
                              const struct prefix_cache_options *options,
                              struct error *error);

struct prefix_lease {           /* zero-initialise */
    uint64_t number;            /* 0: none */
    int count;                  /* blocks; count * G tokens */
    const int32_t *blocks;      /* [count] borrowed until the release */
};

/* Holds the longest stored prefix of the key's whole blocks: its blocks stay
   what they are until they are released. On a miss the lease is empty, and
   need not be released. Refuses a lease that is in use and a cache that is
   not made of blocks. */
enum status prefix_blocks_lease(struct prefix_cache *cache,
                                const struct prefix_key *key,
                                struct prefix_lease *lease,
                                struct error *error);

/* Gives the blocks back and empties the lease. Refuses, and changes nothing,
   what is not a lease of this cache, or no longer one. */
enum status prefix_blocks_release(struct prefix_cache *cache,
                                  struct prefix_lease *lease,
                                  struct error *error);

/* [H,G,D] of one block in one layer; NULL when there is no such block or
   layer. */
const float *prefix_blocks_key(const struct prefix_cache *cache, int block,
                               int layer);
const float *prefix_blocks_value(const struct prefix_cache *cache, int block,
                                 int layer);

#endif
