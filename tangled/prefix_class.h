#ifndef PREFIX_CLASS_H
#define PREFIX_CLASS_H

#include <stdbool.h>
#include "prefix_cache.h"

struct prefix_class {
    enum status (*store)(struct prefix_cache *cache,
                         const struct prefix_key *key,
                         const struct past_key_values *past,
                         struct error *error);
    /* fills cache_length and past, or leaves them on a miss */
    enum status (*lookup)(struct prefix_cache *cache,
                          const struct prefix_key *key,
                          struct prefix_match *match, struct error *error);
    void (*free)(struct prefix_cache *cache);
};

struct prefix_cache {           /* first member of an implementation's own */
    const struct prefix_class *class;
    struct prefix_cache_options options;
    struct prefix_cache_stats stats;
};

/* Refuses sizes below 1 and bytes that do not fit. */
enum status prefix_options_check(const struct prefix_cache_options *options,
                                 struct error *error);
void prefix_cache_init(struct prefix_cache *cache,
                       const struct prefix_class *class,
                       const struct prefix_cache_options *options);

/* Refuses strings and ids that are missing, and positions below 0 or beyond
   an int32_t. */
enum status prefix_key_check(const struct prefix_key *key,
                             struct error *error);

/* Bytes of K/V for this many tokens. */
size_t prefix_kv_bytes(const struct prefix_cache *cache, int tokens);

/* The hash of no tokens yet, and of one block more. */
uint64_t prefix_origin_hash(const struct prefix_cache *cache,
                            const struct prefix_key *key);
uint64_t prefix_block_hash(const struct prefix_cache *cache, uint64_t before,
                           const int32_t *ids);

/* Whether two texts are of one namespace and begin at one position. */
bool prefix_same_origin(const struct prefix_key *a,
                        const struct prefix_key *b);

/* *copy owns its strings and its first `tokens` ids: prefix_key_free. */
enum status prefix_key_copy(struct prefix_key *copy,
                            const struct prefix_key *key, int tokens,
                            struct error *error);
void prefix_key_free(struct prefix_key *copy);

#endif
