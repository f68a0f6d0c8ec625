#ifndef LLAMA_PARTS_H
#define LLAMA_PARTS_H

#include "llama.h"
#include "parameters.h"
#include "llama_experts.h"
#include "moe.h"

struct llama_layer {
    struct tensor input_norm;                        /* [C] */
    struct linear q_proj, k_proj, v_proj, o_proj;    /* [HD,C] [HkD,C] [HkD,C]
                                                        [C,HD] */
    struct tensor post_norm;                         /* [C] */
    struct linear gate_proj, up_proj, down_proj;     /* [F,C] [F,C] [C,F] */
    struct moe moe;    /* gate [E,C], and E experts; empty in a dense model */
};

struct llama {
    struct llama_config config;
    struct tensor embed_tokens;      /* [V,C] */
    struct llama_layer *layers;      /* [L] */
    struct tensor norm;              /* [C] */
    struct linear lm_head;           /* [V,C], no bias */

    struct llama_tensor *registry;   /* in the order of the stream */
    size_t count;
    float *storage;                  /* every tensor that is no alias */
    size_t floats;
    char *names;                     /* what the registry points into */
};

#endif
