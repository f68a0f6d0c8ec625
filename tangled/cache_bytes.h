#ifndef CACHE_BYTES_H
#define CACHE_BYTES_H

#include "causal_lm.h"

/* 2 L B T Hk D element_bytes, for `tokens` slots a row; no size is negative.
   False, and nothing written, when it does not fit a size_t. */
bool cache_bytes(const struct cache_shape *shape, int batch, int tokens,
                 size_t element_bytes, size_t *bytes);

/* The key heads of the next grouping: the largest divisor of n_heads below
   kv_heads, 0 after 1. A sweep begins with kv_heads = n_heads. */
int grouping_next(int n_heads, int kv_heads);
/* "MHA", "GQA" or "MQA" */
const char *grouping_name(int n_heads, int kv_heads);

/* What a cache of this shape would take with another number of key heads.
   Refuses sizes below 1, kv_heads that do not divide n_heads, and too many
   bytes; *bytes is unchanged then. A question about a shape: no model is
   asked, and none is changed. */
enum status grouped_cache_bytes(const struct cache_shape *shape, int n_heads,
                                int kv_heads, int batch, int tokens,
                                size_t element_bytes, size_t *bytes,
                                struct error *error);

#endif
