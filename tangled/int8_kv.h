#ifndef INT8_KV_H
#define INT8_KV_H

#include "causal_lm.h"
#include "int8_row.h"
#include "request.h"

struct int8_kv;

/* Bytes of codes and scales, which is all that grows with L, H, S or D. False
   when they do not fit; sizes are at least 1. */
bool int8_kv_bytes(const struct cache_shape *shape, int batch, int capacity,
                   size_t *bytes);

/* An empty cache of `capacity` slots a row; all that it will ever allocate.
   The caller owns it: int8_kv_free, which nulls it. Refuses sizes below 1 by
   name, and too many bytes; *cache is unchanged on error. */
enum status int8_kv_new(struct int8_kv **cache,
                        const struct cache_shape *shape, int batch,
                        int capacity, struct error *error);
void int8_kv_free(struct int8_kv **cache);

/* Borrowed, and at the same address for life; 0 behind a row's length. The
   second index of codes and scales is 0 for keys and 1 for values. */
const int8_t *int8_kv_codes(const struct int8_kv *cache);  /* [L,2,B,H,S,D] */
const float *int8_kv_scales(const struct int8_kv *cache);  /* [L,2,B,H,S] */
const int32_t *int8_kv_lengths(const struct int8_kv *cache);    /* [B] */
const int32_t *int8_kv_starts(const struct int8_kv *cache);     /* [B] */

/* Quantises T tokens of each row of the batch behind those that it has: slots
   from_b … from_b+T-1 of source [B,H,S',D], or 0 … T-1 when from is NULL. A
   row that has tokens goes on at positions[b] = start_b + length_b; an empty
   one starts there. Refuses missing arguments, tensors of another shape,
   slots that the source does not have, rows that would outgrow the capacity,
   other positions, and floats that are not finite; nothing has changed then.
   Allocates nothing. */
enum status int8_kv_append(struct int8_kv *cache,
                           const struct past_key_values *source,
                           const int32_t *from, const int32_t *positions,
                           int tokens, struct error *error);

/* Writes slots 0 … length_b-1 of each row into floats [B,H,S',D]; the slots
   behind them keep what they hold. Refuses tensors of another shape, and
   those with less slots than the longest row; nothing has been written then.
   Allocates nothing. */
enum status int8_kv_gather(const struct int8_kv *cache,
                           const struct past_key_values *floats,
                           struct error *error);

/* Cuts row b to lengths[b] tokens, at most what it has; what it loses is
   cleared. Refuses others, with nothing changed. */
enum status int8_kv_truncate(struct int8_kv *cache, const int32_t *lengths,
                             struct error *error);
void int8_kv_reset(struct int8_kv *cache);    /* as new */

/* Runs ids [B,T] behind the rows of the cache, which grows by them. The
   request lends its model and its room, and may serve any number of caches in
   turn; its own cache holds the rows as floats afterwards. *logits as for
   request_feed. Refuses what int8_kv_gather, request_feed and int8_kv_append
   refuse. Then the cache of codes and *logits are unchanged; the request's
   cache may not be. Allocates nothing. */
enum status int8_kv_feed(struct int8_kv *cache, struct request *request,
                         const int32_t *ids, int tokens, bool last_only,
                         const float **logits, struct error *error);

#endif
