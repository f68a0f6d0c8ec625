#include "grouped_attention.h"
#include <stddef.h>
#include "attention.h"

void grouped_attention_forward(const struct grouped_shape *shape,
                               const float *query, const float *key,
                               const float *value, const bool *keep,
                               float *scores, float *probs, float *context)
{
    const ptrdiff_t slice = (ptrdiff_t)shape->tokens * shape->head_dim;
    const ptrdiff_t stored = (ptrdiff_t)shape->slots * shape->head_dim;
    for (int h = 0; h < shape->heads; h++) {
        const int shared = h / (shape->heads / shape->kv_heads);
        attention_forward(query + h * slice, key + shared * stored,
                          value + shared * stored, keep, 1, shape->tokens,
                          shape->keys, shape->head_dim, scores, probs,
                          context + h * slice);
    }
}
