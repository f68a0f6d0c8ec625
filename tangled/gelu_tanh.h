#ifndef GELU_TANH_H
#define GELU_TANH_H

#include <stddef.h>

/* out[k] = x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2 for x = in[k]: the
   approximation of GELU that GPT-2 was trained with. out may be in. */
void gelu_tanh_forward(const float *in, size_t count, float *out);
/* d_in[k] = its slope at in[k], times d_out[k] */
void gelu_tanh_backward(const float *in, const float *d_out, size_t count,
                        float *d_in);
#endif
