#ifndef PAGED_RUNNER_H
#define PAGED_RUNNER_H

#include "paged_cache.h"

/* Owns the contiguous rows of one call, scratch and logits; borrows the model
   and the cache. */
struct paged_runner;

/* Room for calls of at most `batch` sequences and max_tokens tokens each;
   nothing is allocated afterwards. Refuses sizes outside 1 … what the cache
   may have open, and 1 … its capacity, and a model of another cache shape.
   *runner is unchanged on error. */
enum status paged_runner_new(struct paged_runner **runner,
                             const struct causal_lm *lm,
                             struct paged_cache *cache, int batch,
                             int max_tokens, struct error *error);
void paged_runner_free(struct paged_runner **runner);

/* Runs ids [B,T] behind these sequences [B], which grow by them. *logits
   becomes [B,T,V], or [B,V] with last_only, borrowed until the next feed.
   Refuses missing arguments, more than there is room for, ids outside [0,V),
   positions outside the model's context, and what paged_cache_check refuses,
   out of blocks included. A refused feed changes nothing. */
enum status paged_runner_feed(struct paged_runner *runner,
                              const int *sequences, int batch,
                              const int32_t *ids, int tokens, bool last_only,
                              const float **logits, struct error *error);

#endif
