#ifndef LLAMA_WORKSPACE_H
#define LLAMA_WORKSPACE_H

#include <stdbool.h>
#include <stdint.h>
#include "llama.h"
#include "moe_backward.h"

struct llama_layer_kept {
    float *stream;         /* [B,T,C] what enters the layer */
    float *norm;           /* [B,T,C] */
    float *query;          /* [B,H,T,D] turned */
    float *key, *value;    /* [B,Hk,T,D] keys turned */
    float *merged;         /* [B,T,HD] */
    float *residual;       /* [B,T,C] stream + attention */
    float *post_norm;      /* [B,T,C] */
    struct moe_hidden hidden;    /* [B,T,F], or [B,T,k,F] by expert */
    struct moe_routing routing;  /* with experts: rows = B*T */
    float *made;                 /* [B,T,k,C] what the experts made */
};

struct llama_workspace {
    struct llama_config config;         /* own copy */
    int batch, tokens;                  /* B, T */
    int32_t *positions;                 /* [B,T] 0 … T-1 in each row */
    bool *keep;                         /* [T,T] causal */
    struct llama_layer_kept *layers;    /* [L] */
    float *turns;                       /* [T,D] */
    float *stream, *norm;               /* [B,T,C] behind the last layer */
    float *logits, *d_logits;           /* [B,T,V] */

    float *branch, *d_stream, *d_norm;       /* [B,T,C] */
    float *wide;                             /* [B,T,HD] */
    float *context, *d_query;                /* [B,H,T,D] */
    float *d_key, *d_value;                  /* [B,Hk,T,D] */
    float *squares;                          /* [4,T,T] */
    struct moe_hidden d_hidden;              /* as in a layer */
    float *gathered, *d_gathered;            /* [B,T,k,C] with experts */
    float *d_gates, *d_router;               /* [B,T,k] [B,T,E] */
    float *block;                            /* every float above */
};

/* Refuses, by name, a batch or length that a model of this (checked) config
   cannot answer; STATUS_NO_MEMORY. Owned by the caller:
   llama_workspace_free. Unchanged on error. */
enum status llama_workspace_new(struct llama_workspace *workspace,
                                const struct llama_config *config,
                                int batch, int tokens, struct error *error);
/* NULL-safe; twice is fine. */
void llama_workspace_free(struct llama_workspace *workspace);

#endif
