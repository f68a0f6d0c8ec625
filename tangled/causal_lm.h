#ifndef CAUSAL_LM_H
#define CAUSAL_LM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "model.h"

struct cache_shape {
    int n_layers, n_kv_heads, head_dim;    /* L, H (of the cache), D */
};

/* For past_key_values_new and past_key_values_check: n_layers, n_heads and
   d_model = n_kv_heads * head_dim; every other field is 0. */
struct gpt_config cache_shape_config(const struct cache_shape *shape);

/* All arrays are the caller's. In each layer, slots length_b … length_b+T-1
   of row b are written, and those before them are read; the slots behind
   them are neither. */
struct step {
    const int32_t *ids;          /* [B,T] */
    const int32_t *positions;    /* [B,T] start_b + length_b + t */
    int batch, tokens;           /* B, T */
    const struct past_key_values *storage;   /* L layers of [B,H,S,D], whose
                                                data is written */
    const int32_t *lengths;      /* [B] valid slots, length_b + T <= S */
    bool last_only;              /* logits of each row's last token alone */
    float *logits;               /* [B,T,V], or [B,V] with last_only */
};

struct causal_lm {               /* alive as long as the model */
    const void *model;
    int vocab_size;              /* V */
    int context_length;          /* N: positions are 0 … N-1 */
    struct cache_shape cache;
    /* Floats that a step over `slots` slots a row needs beside its storage;
       SIZE_MAX when their number does not fit. */
    size_t (*scratch_size)(const void *model, int batch, int tokens,
                           int slots);
    /* Runs a step that step_check accepts. Allocates nothing. The scratch is
       allocated memory: part of it will hold bools. */
    void (*run)(const void *model, const struct step *step, float *scratch);
};

/* Evaluates, whatever the model's mode is, and does not touch the mode. */
struct causal_lm tiny_gpt_causal_lm(const struct tiny_gpt *model);

/* Refuses, by name: a batch or length below 1, more than N tokens, ids
   outside [0,V), and positions that are not contiguous in their row or leave
   [0,N). No argument is NULL. */
enum status tokens_check(const struct causal_lm *lm, const int32_t *ids,
                         const int32_t *positions, int batch, int tokens,
                         struct error *error);

/* The same, and: missing arguments, storage of another shape, lengths below
   0 or without room for T more, and a row that would begin before position
   0. */
enum status step_check(const struct causal_lm *lm, const struct step *step,
                       struct error *error);

/* Check and run. scratch has at least scratch_size floats; allocates
   nothing. On an error storage and logits are unchanged. */
enum status causal_lm_step(const struct causal_lm *lm,
                           const struct step *step, float *scratch,
                           size_t scratch_floats, struct error *error);

#endif
