#include "embedding.h"
#include <stddef.h>

void embedding_forward(const struct parameters *parameters,
                       const int32_t *ids, int batch, int tokens, int past,
                       float *out)
{
    const int width = parameters->config.d_model;
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++, ids++, out += width) {
            const float *token = parameters->token_embedding.weight.data
                                 + (ptrdiff_t)*ids * width;
            const float *position = parameters->position_embedding.weight.data
                                    + (ptrdiff_t)(past + t) * width;
            for (int c = 0; c < width; c++)
                out[c] = token[c] + position[c];
        }
}
