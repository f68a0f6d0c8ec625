#include "rms_norm.h"
#include <math.h>

void rms_norm_forward(const struct tensor *weight, double eps,
                      const float *in, int rows, float *out)
{
    const int width = weight->shape[0];
    for (int row = 0; row < rows; row++, in += width, out += width) {
        double square = 0;
        for (int c = 0; c < width; c++)
            square += (double)in[c] * in[c];
        square /= width;
        const double scale = 1 / sqrt(square + eps);
        for (int c = 0; c < width; c++)
            out[c] = (float)(weight->data[c] * (in[c] * scale));
    }
}
