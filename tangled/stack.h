#ifndef STACK_H
#define STACK_H

#include "causal_lm.h"
#include "kernels.h"
#include "llama.h"
#include "moe.h"

struct stack_norm {
    const float *weight, *bias;    /* [C]; no bias: an RMS norm */
};

struct stack_feed_forward {
    struct matrix gate;            /* [F,C]; none: up goes through a GELU */
    struct matrix up, down;        /* [F,C] [C,F] */
};

struct stack_layer {
    struct stack_norm attention_norm, feed_forward_norm;
    struct matrix query, key, value, output;    /* [HD,C] [HkD,C] [HkD,C]
                                                   [C,HD] */
    struct stack_feed_forward feed_forward;   /* none beside a router */
    struct matrix router;                       /* [E,C], or none */
};

/* What a step reads of a model. Borrowed: alive as long as the model. */
struct stack {
    int vocab_size, context_length;        /* V, N */
    int d_model, n_layers, d_ff;           /* C, L, F */
    int n_heads, n_kv_heads, head_dim;     /* H, Hk, D */
    int n_experts, experts_per_token;      /* E, k; 0: dense */
    double norm_eps;
    double rope_theta;                     /* with a position_embedding: 0 */
    enum finish bend;                      /* of a layer without a gate */
    struct matrix token_embedding;         /* [V,C] */
    const float *position_embedding;       /* [N,C], or NULL */
    struct stack_norm final_norm;
    struct matrix head;                    /* [V,C] */
    const void *weights;                   /* what the functions are given */
    struct stack_layer (*layer)(const void *weights, int layer);
    struct stack_feed_forward (*expert)(const void *weights, int layer,
                                          int expert);
};

/* Floats of scratch; SIZE_MAX when their bytes do not fit. */
size_t stack_scratch_size(const struct stack *stack, int batch,
                            int tokens);

/* A step that step_check accepts. Allocates nothing. */
void stack_step(const struct stack *stack,
                  const struct kernels *kernels, const struct step *step,
                  float *scratch);

/* What the step decided in one layer with experts: views into its scratch. */
struct moe_routing stack_routing(const struct stack *stack,
                                   const struct step *step, float *scratch,
                                   int layer);

/* Views of the model's own weights, row-major. */
struct stack tiny_gpt_stack(const struct tiny_gpt *model);
struct stack llama_stack(const struct llama *model);

/* The steps of chapters 8 and 13, which compute with plain loops. */
struct causal_lm tiny_gpt_step_lm(const struct tiny_gpt *model);
struct causal_lm llama_step_lm(const struct llama *model);

#endif
