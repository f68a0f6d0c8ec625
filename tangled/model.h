#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>
#include "activations.h"
#include "parameters.h"
#include "generator.h"
#include "layer_kv.h"

struct tiny_gpt;    /* owns its parameters, and with them the frozen config */

/* All weights zero. The caller owns *model: tiny_gpt_free, which nulls it.
   Refuses what gpt_config_check refuses; *model is unchanged on error. */
enum status tiny_gpt_new(struct tiny_gpt **model,
                         const struct gpt_config *config,
                         struct error *error);
void tiny_gpt_free(struct tiny_gpt **model);

/* Borrowed, alive as long as the model. The tensors' data may be written. */
const struct gpt_config *tiny_gpt_config(const struct tiny_gpt *model);
struct parameters *tiny_gpt_parameters(struct tiny_gpt *model);
const struct parameters *tiny_gpt_weights(const struct tiny_gpt *model);

struct forward_input {               /* zero-initialise, then set */
    const int32_t *ids;              /* [B,T], each in [0,V) */
    int batch, tokens;               /* B, T */
    struct activations *activations; /* NULL, or an empty struct: receives
                                        the call's; the caller frees them */
    const int32_t *labels;           /* [B,T] in [0,V) or -100; NULL: no
                                        loss is computed */
    struct generator *generator;     /* needed in training mode when
                                        dropout > 0; else never touched */
    /* NULL, or the cache of the P tokens before these; it is only read.
       Positions are then P … P+T-1, and P + T <= context_length. */
    const struct past_key_values *past_key_values;
    bool use_cache;                  /* return a cache of the P + T tokens */
    /* NULL: causal. Else [T,P+T], row-major: keep[i*(P+T) + j] says whether
       query i may see key j, in every layer, head and row of the batch. A query
       that sees nothing gets a context of zeros. */
    const bool *keep;
};

struct forward_output {              /* zero-initialise; the caller owns it */
    struct tensor logits;            /* [B,T,V] */
    bool has_loss;                   /* labels were given */
    float loss;
    struct past_key_values past_key_values;   /* new tensors [B,H,P+T,D];
                                                 zeros without use_cache */
};
void forward_output_free(struct forward_output *output);  /* empties */

/* Refuses, by name: a missing argument, a batch or length that the config
   does not allow, an id outside [0,V) (by its index), output or activations
   that are not empty. On error output and activations are unchanged. */
enum status tiny_gpt_forward(const struct tiny_gpt *model,
                             const struct forward_input *input,
                             struct forward_output *output,
                             struct error *error);

#endif
