#ifndef LAYERS_BACKWARD_H
#define LAYERS_BACKWARD_H

#include "parameters.h"
#include <stdint.h>

/* Each function adds to the gradients that it is given: d_in and those of the
   parameters. Letters as in the ledger; rows = B*T. */

/* in [rows, in], d_out [rows, out]; d_in [rows, in], weight and bias */
void linear_backward(const struct linear *linear, const float *in,
                     const float *d_out, int rows,
                     float *d_in, struct linear *gradients);
/* in, d_out, d_in [rows, C] */
void layer_norm_backward(const struct layer_norm *norm, double eps,
                         const float *in, const float *d_out, int rows,
                         float *d_in, struct layer_norm *gradients);
/* in, d_out, d_in [count] */
void gelu_backward(const float *in, const float *d_out, size_t count,
                   float *d_in);

/* ids [B, T] from position 0, d_out [B, T, C] */
void embedding_backward(const int32_t *ids, int batch, int tokens,
                        const float *d_out, struct parameters *gradients);
/* d_out [B, H, T, D]; d_in [B, T, ·], rows stride floats apart */
void heads_split_backward(const float *d_out, int stride, int batch,
                          int tokens, int n_heads, int head_dim,
                          float *d_in);
/* d_out [B, T, C]; d_in [B, H, T, D] */
void heads_merge_backward(const float *d_out, int batch, int n_heads,
                          int tokens, int head_dim, float *d_in);

/* in, d_out, d_in [count], of the GELU that the config asks for */
void config_gelu_backward(const struct gpt_config *config, const float *in,
                          const float *d_out, size_t count, float *d_in);
#endif
