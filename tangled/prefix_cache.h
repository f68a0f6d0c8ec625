#ifndef PREFIX_CACHE_H
#define PREFIX_CACHE_H

#include <stddef.h>
#include <stdint.h>
#include "causal_lm.h"
#include "layer_kv.h"

struct prefix_cache_namespace {
    const char *model;  /* the weights, and all else that decides K/V */
    const char *salt;   /* those who may share; "" for everybody */
};

struct prefix_key {
    struct prefix_cache_namespace namespace;
    int32_t start;      /* absolute position of ids[0], at least 0 */
    const int32_t *ids; /* [tokens]; NULL when there are none */
    int tokens;         /* at least 0 */
};

/* A hash of the bytes that goes on from the hash of what comes before. */
typedef uint64_t prefix_hash(uint64_t before, const void *bytes,
                             size_t size);

struct prefix_cache_options {
    struct cache_shape shape;   /* of every K/V in it */
    int block_size;             /* G, in tokens */
    int capacity;               /* entries at most: snapshots, or blocks */
    prefix_hash *hash;          /* NULL: a good one */
};

struct prefix_cache;

/* Snapshots of whole prefixes. The caller owns the cache. Refuses a size
   below 1; unchanged on error. */
enum status prefix_snapshots_new(struct prefix_cache **cache,
                                 const struct prefix_cache_options *options,
                                 struct error *error);
void prefix_cache_free(struct prefix_cache **cache);
const struct prefix_cache_options *
prefix_cache_options(const struct prefix_cache *cache);

/* Keeps the prefixes of G, 2G, ... <= tokens ids. past [1,H,S,D] holds the
   rows of all of them, tokens <= S; it is copied. Prefixes that are there
   already become the most recently used. Refuses a malformed key and a past
   of another shape; on an error the cache holds what it held. */
enum status prefix_cache_store(struct prefix_cache *cache,
                               const struct prefix_key *key,
                               const struct past_key_values *past,
                               struct error *error);

struct prefix_match {       /* zero-initialise; the caller owns it */
    int32_t cache_length;   /* tokens found: a multiple of G, or 0 */
    int32_t cache_start_position;
    struct past_key_values past;   /* [1,H,cache_length,D]; empty on a miss */
};

/* The longest stored prefix of the key's first G*floor(tokens/G) ids, as a
   copy of its own. A miss is no error. Refuses a malformed key and a match
   that is in use, which is unchanged then. */
enum status prefix_cache_lookup(struct prefix_cache *cache,
                                const struct prefix_key *key,
                                struct prefix_match *match,
                                struct error *error);
void prefix_match_free(struct prefix_match *match);

struct prefix_cache_stats {
    int entries;                /* now: snapshots, or blocks */
    size_t kv_bytes;            /* now: keys and values in them */
    uint64_t insertions, evictions;
    uint64_t lookups, hits, tokens_reused;
};
struct prefix_cache_stats
prefix_cache_stats(const struct prefix_cache *cache);

#endif
