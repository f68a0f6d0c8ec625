#ifndef CACHE_AWARE_H
#define CACHE_AWARE_H

#include "causal_lm.h"
#include "generate.h"

struct cache_aware_input {       /* zero-initialise, then set */
    const int32_t *ids;          /* [B,T] */
    const int32_t *positions;    /* [B,T] start_b + length_b + t; without a
                                    past start_b is the first of the row */
    int batch, tokens;           /* B, T */
    const struct past_key_values *past;   /* NULL, or [B,H,S,D]: only slots
                                             before length_b are read */
    const int32_t *cache_lengths;         /* [B] 0 … S; with past only */
    const int32_t *cache_start_positions; /* [B]; with past only */
    bool use_cache;
};

struct cache_aware_output {      /* zero-initialise; the caller owns it */
    struct tensor logits;        /* [B,T,V] */
    struct past_key_values past_key_values;   /* new: [B,H,W,D] with W the
                                    largest length_b + T; zeros behind each
                                    row's length */
    int32_t *cache_lengths;           /* [B] length_b + T */
    int32_t *cache_start_positions;   /* [B] as they were */
    /* without use_cache there are logits only */
};
void cache_aware_output_free(struct cache_aware_output *output);

/* Refuses what tokens_check refuses, a cache of another shape, a cache
   without metadata and metadata without a cache, lengths outside 0 to S, a
   row whose first position is not start + length, and an output that is not
   empty. On error the output is unchanged. */
enum status cache_aware_forward(const struct causal_lm *lm,
                                const struct cache_aware_input *input,
                                struct cache_aware_output *output,
                                struct error *error);

/* Greedy: temperature must be 0, the generator is not touched. positions
   [B,T] are those of the prompt, NULL for 0 … T-1 in each row. Rows stop at
   EOS and are filled with it, as in tiny_gpt_generate. Refuses a row whose
   last new token would stand beyond N-1. */
enum status cache_aware_generate(const struct causal_lm *lm,
                                 const struct generate_input *input,
                                 const int32_t *positions,
                                 struct generate_output *output,
                                 struct error *error);

#endif
