#include "swiglu.h"
#include <math.h>

#include "kernels.h"

void swiglu_forward(const float *gate, const float *up, size_t count,
                    float *out)
{
    enum { BLOCK = 256 };
    float open[BLOCK];
    for (size_t k = 0; k < count; k += BLOCK) {
        const size_t left = count - k, size = left < BLOCK ? left : BLOCK;
        kernels_best()->activate(ACTIVATION_SILU, gate + k, size, open);
        for (size_t i = 0; i < size; i++)
            out[k + i] = open[i] * up[k + i];
    }
}
