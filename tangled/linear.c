#include "linear.h"

void linear_forward(const struct linear *linear, const float *in, int rows,
                    float *out)
{
    const int outputs = linear->weight.shape[0];
    const int inputs = linear->weight.shape[1];
    for (int row = 0; row < rows; row++, in += inputs, out += outputs)
        for (int o = 0; o < outputs; o++) {
            const float *bias = linear->bias.data;
            const float *a = in, *b = linear->weight.data + (ptrdiff_t)o * inputs;
            const int count = inputs;
            float sum = 0;
            #pragma omp simd reduction(+ : sum)
            for (int k = 0; k < count; k++)
                sum += a[k] * b[k];
            out[o] = bias == NULL ? sum : sum + bias[o];
        }
}

void vector_add(const float *a, const float *b, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = a[k] + b[k];
}
