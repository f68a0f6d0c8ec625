#ifndef ACTIVATIONS_H
#define ACTIVATIONS_H

#include <stdbool.h>
#include "config.h"
#include "tensor.h"

struct block_activations {
    struct tensor attention_norm;  /* [B,T,C] */
    struct tensor qkv;             /* [B,T,3C] */
    struct tensor query;           /* [B,H,T,D] */
    struct tensor key, value;      /* [B,H,S,D] */
    struct tensor scores;          /* [B,H,T,S], 0 where the mask hides */
    struct tensor probs;           /* [B,H,T,S] */
    struct tensor context;         /* [B,H,T,D] */
    struct tensor merged;          /* [B,T,C] */
    struct tensor attention;       /* [B,T,C] out_proj(merged) */
    struct tensor residual;        /* [B,T,C] stream + attention */
    struct tensor mlp_norm;        /* [B,T,C] */
    struct tensor up;              /* [B,T,F] */
    struct tensor gelu;            /* [B,T,F] */
    struct tensor down;            /* [B,T,C] */
    struct tensor output;          /* [B,T,C] residual + down */
    struct tensor probs_dropout;       /* [B,H,T,S] the masks: 0 or 1/(1-p); */
    struct tensor attention_dropout;   /* [B,T,C]   empty when nothing was */
    struct tensor down_dropout;        /* [B,T,C]   dropped */
};

struct activations {
    int batch, tokens, past;           /* B, T, P; S = P + T */
    int n_layers;
    struct tensor embedding;           /* [B,T,C] */
    struct block_activations *blocks;  /* [L] */
    struct tensor final_norm;          /* [B,T,C] */
    bool *keep;                        /* [T,S], true: may be seen */
    struct tensor embedding_dropout;   /* [B,T,C] mask, or empty */
};

/* Zero-filled tensors for one call. The caller owns them: activations_free.
   Refuses what gpt_config_check_call refuses; unchanged on error. */
enum status activations_new(struct activations *activations,
                            const struct gpt_config *config,
                            int batch, int tokens, int past,
                            struct error *error);
void activations_free(struct activations *activations);  /* NULL-safe */

/* "embedding", "blocks.1.scores", "final_norm"; NULL when there is none. */
const struct tensor *activations_find(const struct activations *activations,
                                      const char *name);

#endif
