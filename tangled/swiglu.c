#include "swiglu.h"
#include <math.h>

void swiglu_forward(const float *gate, const float *up, size_t count,
                    float *out)
{
    for (size_t k = 0; k < count; k++) {
        const float x = gate[k];
        out[k] = x / (1 + expf(-x)) * up[k];
    }
}
