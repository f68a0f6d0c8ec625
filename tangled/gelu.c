#include "gelu.h"
#include <math.h>

void gelu_forward(const float *in, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++) {
        const float x = in[k];
        out[k] = 0.5f * x * erfcf(-x * 0.70710678118654752f);    /* x / √2 */
    }
}
