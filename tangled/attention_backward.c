#include "attention_backward.h"
#include "vector.h"
#include <math.h>
#include <stddef.h>

void softmax_backward(const float *probs, const float *d_probs, int count,
                      float *d_scores)
{
    float mean = vector_dot(probs, d_probs, (size_t)count);
    for (int k = 0; k < count; k++)
        d_scores[k] += probs[k] * (d_probs[k] - mean);
}

void attention_backward(const float *query, const float *key,
                        const float *value, const float *probs,
                        const float *dropout, const float *d_context,
                        int heads, int queries, int keys, int head_dim,
                        float *d_probs, float *d_scores,
                        float *d_query, float *d_key, float *d_value)
{
    size_t size = (size_t)head_dim, count = (size_t)keys;
    size_t rows = (size_t)heads * (size_t)queries;
    float scale = 1 / sqrtf((float)head_dim);
    for (size_t i = 0; i < rows; i++) {
        size_t first = i / (size_t)queries * count;   /* this head's keys */
        size_t row = i * count;                       /* this row's probs */

        for (size_t j = 0; j < count; j++) {
            float mask = dropout == NULL ? 1 : dropout[row + j];
            d_probs[row + j] += mask * vector_dot(d_context + i * size,
                                                  value + (first + j) * size, size);
        }
        softmax_backward(probs + row, d_probs + row, keys, d_scores + row);
        for (size_t j = 0; j < count; j++) {
            size_t at = (first + j) * size;
            float slope = scale * d_scores[row + j];
            float weight = dropout == NULL ? probs[row + j]
                                           : probs[row + j] * dropout[row + j];
            vector_add_scaled(d_query + i * size, slope, key + at, size);
            vector_add_scaled(d_key + at, slope, query + i * size, size);
            vector_add_scaled(d_value + at, weight, d_context + i * size, size);
        }
    }
}
