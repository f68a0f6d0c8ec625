#ifndef PREFIX_REQUEST_H
#define PREFIX_REQUEST_H

#include "prefix_runner.h"
#include "request.h"

/* *storage holds the match, with room for `capacity` tokens, and goes on at
   the first position that the match does not have. A miss gives empty
   storage. The caller owns it; nothing is shared with the match. Refuses a
   capacity below 1 or below the match's length; unchanged on error. */
enum status prefix_match_load(const struct prefix_match *match,
                              const struct cache_shape *shape, int capacity,
                              struct kv_cache **storage,
                              struct error *error);

/* The same as prefix_runner_run from position 0, in the storage of a request
   of one row without tokens. *logits are the last token's [1,V], borrowed
   until the next feed; *tokens_reused is R. T - R tokens must fit one feed.
   On an error the request has no tokens, and the cache holds what it held. */
enum status prefix_runner_feed(const struct prefix_runner *runner,
                               struct request *request, const int32_t *ids,
                               int tokens, const float **logits,
                               int *tokens_reused, struct error *error);

/* Stores the text ids [tokens] out of a request that holds it, or more: for
   what was decoded behind the prompt. */
enum status prefix_runner_publish(const struct prefix_runner *runner,
                                  struct request *request,
                                  const int32_t *ids, int tokens,
                                  struct error *error);

#endif
