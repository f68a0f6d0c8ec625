#ifndef KV_CACHE_H
#define KV_CACHE_H

#include <stdint.h>
#include "causal_lm.h"
#include "layer_kv.h"

/* Writes rows in place: row t of key_new in each head of row b goes to slot
   slots[b*T + t] of key_cache, and value_new to value_cache likewise. The
   caches are [B,H,S,D], the new tensors [B,H,T,D], slots [B,T]. No other
   float changes. No two of the four overlap. Refuses null arguments, tensors
   that disagree, a slot outside 0 … S-1, and one that is named twice in a row
   of the batch; nothing has been written then. Allocates nothing. */
enum status append_kv_cache(struct tensor *key_cache,
                            struct tensor *value_cache,
                            const struct tensor *key_new,
                            const struct tensor *value_new,
                            const int32_t *slots, struct error *error);

struct kv_cache;   /* L pairs [B,H,S,D], a length and a start for each row */

/* An empty cache of `capacity` slots a row; all that it will ever allocate.
   The caller owns it: kv_cache_free, which nulls it. Refuses sizes below 1 by
   name; *cache is unchanged on error. */
enum status kv_cache_new(struct kv_cache **cache,
                         const struct cache_shape *shape, int batch,
                         int capacity, struct error *error);
void kv_cache_free(struct kv_cache **cache);

int kv_cache_batch(const struct kv_cache *cache);
int kv_cache_capacity(const struct kv_cache *cache);
/* Borrowed, and at the same address for life. A row without tokens has the
   length 0; its next append says where it starts. */
const int32_t *kv_cache_lengths(const struct kv_cache *cache);   /* [B] */
const int32_t *kv_cache_starts(const struct kv_cache *cache);    /* [B] */
/* The pairs themselves [B,H,S,D], also when empty. Every slot at or behind
   its row's length is zero. Who writes there counts with kv_cache_advance. */
const struct past_key_values *kv_cache_storage(const struct kv_cache *cache);

/* Copies recent [B,H,T,D] of each layer behind its rows. positions [B,T] must
   go on where each row ends: start_b + length_b + t; a row without tokens
   starts at its positions[b][0]. Refuses, for all layers and rows before the
   first float is written: what past_key_values_check refuses of recent,
   length_b + T > S, and a position that does not follow. */
enum status kv_cache_append(struct kv_cache *cache,
                            const struct past_key_values *recent,
                            const int32_t *positions, struct error *error);

/* The same for T tokens that are in the storage already. */
enum status kv_cache_advance(struct kv_cache *cache, const int32_t *positions,
                             int tokens, struct error *error);

/* Replaces what the cache holds by the first cache_lengths[b] slots of each
   row of past [B,H,S',D], for any S'. What is behind them there is not read.
   Refuses what past_key_values_check refuses, a length outside
   0 … min(S', S), a start below 0 or too large for int32 positions. */
enum status kv_cache_load(struct kv_cache *cache,
                          const struct past_key_values *past,
                          const int32_t *cache_lengths,
                          const int32_t *cache_start_positions,
                          struct error *error);

/* A new cache of this capacity with that in it; L, B, H and D are past's. */
enum status kv_cache_from_past(struct kv_cache **cache,
                               const struct past_key_values *past,
                               const int32_t *cache_lengths,
                               const int32_t *cache_start_positions,
                               int capacity, struct error *error);

/* What cache_aware_forward takes. Borrowed: the storage itself, bounded by
   the lengths. All NULL when no row has a token. */
struct kv_inputs {
    const struct past_key_values *past;       /* [B,H,S,D] */
    const int32_t *lengths, *starts;          /* [B] */
};
struct kv_inputs kv_cache_inputs(const struct kv_cache *cache);

/* A cache of the caller's own, [B,H,S',D] with S' the largest length (1 when
   all are 0) and zeros behind each row's, and its books: lengths and starts
   have room for [B]. All three are unchanged on error. kv_cache_load takes
   them back. */
enum status kv_cache_snapshot(const struct kv_cache *cache,
                              struct past_key_values *copy, int32_t *lengths,
                              int32_t *starts, struct error *error);

/* Each row keeps its first lengths[b] tokens. Refuses, before any row is cut,
   a length outside 0 … the present one. */
enum status kv_cache_truncate(struct kv_cache *cache, const int32_t *lengths,
                              struct error *error);
/* As new: no tokens, starts 0. The storage stays where it is. */
void kv_cache_reset(struct kv_cache *cache);

#endif
