#ifndef LLAMA_LAYERS_BACKWARD_H
#define LLAMA_LAYERS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "grouped_attention.h"
#include "tensor.h"

/* weight [C]; in, d_out [rows,C]. Adds to d_in [rows,C], d_weight [C]. */
void rms_norm_backward(const struct tensor *weight, double eps,
                       const float *in, const float *d_out, int rows,
                       float *d_in, struct tensor *d_weight);

/* d_x [H,T,D] is the gradient of what rope_turn wrote with this table, and
   becomes, in place, that of what it found. */
void rope_turn_backward(float *d_x, int heads, int tokens, int head_dim,
                        const float *turns);

/* gate, up, d_out [count]. Adds to d_gate, d_up [count]. */
void swiglu_backward(const float *gate, const float *up, const float *d_out,
                     size_t count, float *d_gate, float *d_up);

/* ids [rows], d_out [rows,C]. Adds to d_table [V,C]. */
void token_embedding_backward(const int32_t *ids, int rows,
                              const float *d_out, struct tensor *d_table);

/* One row of a batch, as in grouped_attention_forward. query, d_context
   [H,T,D]; key, value [Hk,slots,D]; keep [T,keys]. Adds to d_query [H,T,D]
   and d_key, d_value [Hk,slots,D]. scratch [4,T,keys]. */
void grouped_attention_backward(const struct grouped_shape *shape,
                                const float *query, const float *key,
                                const float *value, const bool *keep,
                                const float *d_context, float *scratch,
                                float *d_query, float *d_key,
                                float *d_value);

#endif
