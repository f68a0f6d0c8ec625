#ifndef ATTENTION_H
#define ATTENTION_H

#include <stdbool.h>

/* in [B,T,·], with stride floats from one token to the next, of which the
   first C = H·D are split -> out [B,H,T,D]. */
void heads_split(const float *in, int stride, int batch, int tokens,
                 int n_heads, int head_dim, float *out);

/* in [B,H,T,D] -> out [B,T,C]: undoes a split. */
void heads_merge(const float *in, int batch, int n_heads, int tokens,
                 int head_dim, float *out);

/* probs [count]: softmax over the scores whose keep is true, 0 elsewhere;
   all zeros when none is. probs may be scores. */
void masked_softmax(const float *scores, const bool *keep, int count,
                    float *probs);

/* The steps of attention, over heads = B·H independent slices that share
   keep [T,S], T = queries, S = keys. No array overlaps another.
   scores [T,S] = query [T,D] · key [S,D]ᵀ / √D, and 0 where keep is false;
   probs [T,S] = the softmax of each row over its kept keys;
   context [T,D] = probs [T,S] · value [S,D], summed over kept keys. */
void attention_scores(const float *query, const float *key, const bool *keep,
                      int heads, int queries, int keys, int head_dim,
                      float *scores);
void attention_probs(const float *scores, const bool *keep,
                     int heads, int queries, int keys, float *probs);
void attention_context(const float *probs, const float *value,
                       const bool *keep,
                       int heads, int queries, int keys, int head_dim,
                       float *context);

/* All three in order. */
void attention_forward(const float *query, const float *key,
                       const float *value, const bool *keep,
                       int heads, int queries, int keys, int head_dim,
                       float *scores, float *probs, float *context);

/* context [T,D] of heads = B·H independent slices that share keep [T,S], as
   attention_context makes it. Rows of keep that are causal, for the last T of
   S slots, are made by the kernel from queries and keys; none is when the
   probs are dropped ones. */
void attention_mix(const float *query, const float *key, const float *value,
                   const float *probs, bool dropped, const bool *keep,
                   int heads, int queries, int keys, int head_dim,
                   float *context);

#endif
