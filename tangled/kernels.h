#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "matrix.h"

/* What linear does with y, the sum of products and bias. */
enum finish {
    FINISH_STORE,           /* out = y */
    FINISH_ADD,             /* out = out + y: a residual */
    FINISH_GELU,            /* out = gelu(y), the exact one */
    FINISH_GELU_TANH,       /* out = gelu(y), the tanh formula */
    FINISH_SILU_MULTIPLY    /* out = silu(out) * y: a gate is there */
};

enum activation { ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_SILU };

/* C [M,N] = A [M,K] · B [K,N], or C += with add. Strides are in floats, from
   one row to the next. A turned operand is stored as [K,M], or [N,K]. C
   overlaps neither. Sizes are at least 0. */
struct product {
    int m, n, k;
    const float *a, *b;
    size_t a_stride, b_stride;
    bool a_turned, b_turned, add;
    float *c;
    size_t c_stride;
};

/* Causal attention of one row of a batch: query t of head h sees the slots
   0 … length + t of head h / (H/Hk), and weighs them with the softmax of
   query · key / √D. T is at least 1, length at least 0; heads wider than 256
   go by the plain loops. Where all scores are minus infinity the context is
   NaN. Float d of a vector is at
   query[t*query_token + h*query_head + d], key[slot*slot_stride +
   (its head)*head_stride + d], value likewise. Later slots are not read.
   context must not overlap the others. */
struct attention_call {
    int heads, kv_heads, head_dim;       /* H, Hk (divides H), D */
    int tokens, length;                  /* T queries; slots before them */
    const float *query;
    size_t query_token, query_head;
    const float *key, *value;
    size_t slot_stride, head_stride;
    float *context;
    size_t context_token, context_head;
};

struct kernels {
    const char *name;
    /* out [rows,O] = finish(in [rows,I] · weightᵀ + bias); rows >= 0.
       Strides are in floats. out overlaps nothing else. */
    void (*linear)(const struct matrix *weight, const float *in,
                   size_t in_stride, int rows, float *out,
                   size_t out_stride, enum finish finish);
    void (*product)(const struct product *product);
    /* count calls, alike in H, Hk, D and T */
    void (*attention)(const struct attention_call *calls, int count);
    /* in, out [rows,width]; out may be in */
    void (*layer_norm)(const float *in, int rows, int width,
                       const float *weight, const float *bias, double eps,
                       float *out);
    void (*rms_norm)(const float *in, int rows, int width,
                     const float *weight, double eps, float *out);
    /* out[k] = f(in[k]); out may be in */
    void (*activate)(enum activation f, const float *in, size_t count,
                     float *out);
    /* d_in[k] += d_out[k] * f'(in[k]) */
    void (*activate_backward)(enum activation f, const float *in,
                              const float *d_out, size_t count,
                              float *d_in);
    /* out[k] = exp(in[k]); out may be in. What is below 2^-125 may be 0. */
    void (*exponential)(const float *in, size_t count, float *out);
};

extern const struct kernels kernels_avx512, kernels_avx2, kernels_base,
    kernels_plain;

enum { KERNELS_MAX = 4 };

/* The fastest that this processor can run; what make KERNELS=name says, when
   the library was compiled so. */
const struct kernels *kernels_best(void);
/* The table of that name, or NULL when there is none that runs here. */
const struct kernels *kernels_named(const char *name);
/* All that run here, the fastest first; returns how many. */
int kernels_available(const struct kernels *tables[KERNELS_MAX]);

#endif
