#include "norm.h"
#include <math.h>

void layer_norm_forward(const struct layer_norm *norm, double eps,
                        const float *in, int rows, float *out)
{
    const int width = norm->weight.shape[0];
    for (int row = 0; row < rows; row++, in += width, out += width) {
        double mean = 0;
        for (int c = 0; c < width; c++)
            mean += in[c];
        mean /= width;
        double variance = 0;
        for (int c = 0; c < width; c++)
            variance += (in[c] - mean) * (in[c] - mean);
        variance /= width;
        const double scale = 1 / sqrt(variance + eps);
        for (int c = 0; c < width; c++)
            out[c] = norm->weight.data[c] * (float)((in[c] - mean) * scale)
                     + norm->bias.data[c];
    }
}
