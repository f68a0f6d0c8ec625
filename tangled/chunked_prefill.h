#ifndef CHUNKED_PREFILL_H
#define CHUNKED_PREFILL_H

#include "cache_aware.h"
#include "request.h"

/* The calls that `tokens` >= 1 take in chunks of at most chunk_size >= 1. */
int prefill_calls(int tokens, int chunk_size);

/* cache_aware_forward in calls of at most chunk_size tokens a row: the same
   logits, cache, lengths and starts. Refuses a chunk_size below 1 and what
   cache_aware_forward refuses, before anything is computed. On an error the
   output is unchanged. Seed 000, chunked prefill. */
enum status chunked_prefill(const struct causal_lm *lm,
                            const struct cache_aware_input *input,
                            int chunk_size,
                            struct cache_aware_output *output,
                            struct error *error);

/* Feeds ids [B,T] behind the rows of the request, in calls of at most
   chunk_size tokens a row. *logits becomes [B,V], of each row's last token;
   borrowed until the next feed. Refuses, before the first call: what
   request_feed refuses of ids and logits, a prompt that outgrows the capacity
   or the model's context, and a chunk_size below 1 or whose chunks are larger
   than the calls of the request. Nothing is changed then. Allocates
   nothing. */
enum status request_prefill(struct request *request, const int32_t *ids,
                            int tokens, int chunk_size, const float **logits,
                            struct error *error);

#endif
