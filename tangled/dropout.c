#include "dropout.h"

void dropout_mask(struct generator *generator, double p, size_t count,
                  float *mask)
{
    const float weight = (float)(1 / (1 - p));
    for (size_t i = 0; i < count; i++) {
        mask[i] = generator_uniform(generator) < p ? 0 : weight;
    }
}
