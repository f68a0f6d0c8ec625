#ifndef LLAMA_H
#define LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include "causal_lm.h"
#include "error.h"
#include "tensor.h"

struct llama_config {
    int vocab_size;          /* V */
    int context_length;      /* N: positions 0 … N-1 */
    int d_model;             /* C */
    int n_layers;            /* L */
    int n_heads;             /* H, of the queries */
    int n_kv_heads;          /* Hk, of keys and values: a divisor of H */
    int head_dim;            /* D, even; H·D need not be C */
    int d_ff;                /* F */
    double rms_norm_eps;     /* finite, > 0 */
    double rope_theta;       /* finite, > 0 */
    bool tie_word_embeddings;
    int n_experts, experts_per_token;    /* 0: one feed-forward layer */
};

enum { LLAMA_LAYERS_MAX = 65536 };

/* Refuses by field name. */
enum status llama_config_check(const struct llama_config *config,
                               struct error *error);
/* Parameters of a model with these (positive) sizes, a tied head counted
   once. False when their bytes do not fit a size_t. */
bool llama_config_floats(const struct llama_config *config, size_t *floats);

struct llama;    /* owns its config and its parameters */

/* Every float is zero. The caller owns it: llama_free, which nulls it.
   *model is unchanged on error. */
enum status llama_new(struct llama **model, const struct llama_config *config,
                      struct error *error);
void llama_free(struct llama **model);
const struct llama_config *llama_config(const struct llama *model);

struct llama_tensor {
    const char *name;     /* "model.layers.1.self_attn.k_proj.weight" */
    const char *owner;    /* "model.layers.1.self_attn.k_proj" */
    const struct tensor *tensor;    /* the owner of the model may write its
                                       data */
    bool alias;           /* a second name of another entry's tensor */
};
size_t llama_tensor_count(const struct llama *model);
/* index < count */
const struct llama_tensor *llama_tensor_at(const struct llama *model,
                                           size_t index);
/* NULL when there is none of that name. */
const struct llama_tensor *llama_tensor_find(const struct llama *model,
                                             const char *name);

struct causal_lm llama_causal_lm(const struct llama *model);

#endif
