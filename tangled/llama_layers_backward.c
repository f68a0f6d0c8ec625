#include "llama_layers_backward.h"
#include <math.h>
#include <string.h>
#include "attention.h"
#include "attention_backward.h"
#include "vector.h"

void rms_norm_backward(const struct tensor *weight, double eps,
                       const float *in, const float *d_out, int rows,
                       float *d_in, struct tensor *d_weight)
{
    const int width = weight->shape[0];
    for (int row = 0; row < rows; row++) {
        double square = 0;
        for (int c = 0; c < width; c++)
            square += (double)in[c] * in[c];
        square /= width;
        const double scale = 1 / sqrt(square + eps);
        double stretch = 0;
        for (int c = 0; c < width; c++)
            stretch += (double)d_out[c] * weight->data[c] * (in[c] * scale);
        stretch /= width;
        for (int c = 0; c < width; c++) {
            const double normal = in[c] * scale;
            const double g = (double)d_out[c] * weight->data[c];
            d_in[c] += (float)(scale * (g - normal * stretch));
            d_weight->data[c] += (float)(d_out[c] * normal);
        }
        in += width;
        d_out += width;
        d_in += width;
    }
}

void rope_turn_backward(float *d_x, int heads, int tokens, int head_dim,
                        const float *turns)
{
    const int half = head_dim / 2;
    for (int h = 0; h < heads; h++) {
        const float *turn = turns;
        for (int t = 0; t < tokens; t++, d_x += head_dim, turn += head_dim)
            for (int i = 0; i < half; i++) {
                const float cosine = turn[i], sine = turn[half + i];
                const float first = d_x[i], second = d_x[i + half];
                d_x[i] = first * cosine + second * sine;
                d_x[i + half] = second * cosine - first * sine;
            }
    }
}

void grouped_attention_backward(const struct grouped_shape *shape,
                                const float *query, const float *key,
                                const float *value, const bool *keep,
                                const float *d_context, float *scratch,
                                float *d_query, float *d_key,
                                float *d_value)
{
    const int tokens = shape->tokens, keys = shape->keys;
    const int head_dim = shape->head_dim;
    const size_t square = (size_t)tokens * (size_t)keys;
    const ptrdiff_t slice = (ptrdiff_t)tokens * head_dim;
    const ptrdiff_t stored = (ptrdiff_t)shape->slots * head_dim;
    float *const probs = scratch, *const d_probs = probs + square;
    float *const d_scores = d_probs + square;
    for (int h = 0; h < shape->heads; h++) {
        const int shared = h / (shape->heads / shape->kv_heads);
        float *const scores = d_scores + square;
        attention_scores(query + h * slice, key + shared * stored, keep, 1, tokens,
                         keys, head_dim, scores);
        attention_probs(scores, keep, 1, tokens, keys, probs);
        memset(d_probs, 0, 2 * square * sizeof *d_probs);
        attention_backward(query + h * slice, key + shared * stored,
                           value + shared * stored, probs, NULL,
                           d_context + h * slice, 1, tokens, keys, head_dim,
                           d_probs, d_scores, d_query + h * slice,
                           d_key + shared * stored, d_value + shared * stored);
    }
}

void swiglu_backward(const float *gate, const float *up, const float *d_out,
                     size_t count, float *d_gate, float *d_up)
{
    for (size_t k = 0; k < count; k++) {
        const float x = gate[k], open = 1 / (1 + expf(-x));
        d_up[k] += d_out[k] * x * open;
        d_gate[k] += d_out[k] * up[k] * open * (1 + x * (1 - open));
    }
}

void token_embedding_backward(const int32_t *ids, int rows,
                              const float *d_out, struct tensor *d_table)
{
    const size_t width = (size_t)d_table->shape[1];
    for (int row = 0; row < rows; row++, d_out += width) {
        vector_add_scaled(d_table->data + (size_t)ids[row] * width, 1, d_out, width);
    }
}
