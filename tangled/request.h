#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include "kv_cache.h"

struct request;    /* owns a cache, scratch and logits; borrows the model */

/* Room for `batch` rows of `capacity` tokens that come in calls of at most
   max_tokens a row. Nothing is allocated afterwards. The caller owns it:
   request_free, which nulls it. Refuses sizes that kv_cache_new refuses,
   max_tokens outside 1 … capacity, and a scratch whose size does not fit;
   *request is unchanged on error. */
enum status request_new(struct request **request, const struct causal_lm *lm,
                        int batch, int capacity, int max_tokens,
                        struct error *error);
void request_free(struct request **request);

/* Borrowed, for loads, cuts, resets and looks between feeds. */
struct kv_cache *request_cache(struct request *request);

/* Runs ids [B,T] behind the rows of the cache, which grows by them.
   *logits becomes [B,T,V], or [B,V] of each row's last token with last_only;
   it is borrowed until the next feed. Refuses missing arguments, T outside
   1 … max_tokens, ids outside [0,V), and rows that would outgrow the capacity
   or the model's context. A refused feed changes nothing: not a slot, not a
   length, not the logits. */
enum status request_feed(struct request *request, const int32_t *ids,
                         int tokens, bool last_only, const float **logits,
                         struct error *error);

/* What it runs and the most tokens a row of one call; borrowed. */
const struct causal_lm *request_model(const struct request *request);
int request_max_tokens(const struct request *request);
/* Room for the ids [B,max_tokens] of a call. A feed does not touch it. */
int32_t *request_columns(struct request *request);

#endif
