#include "linear.h"

#include "kernels.h"

void linear_forward(const struct linear *linear, const float *in, int rows,
                    float *out)
{
    const int outputs = linear->weight.shape[0];
    const int inputs = linear->weight.shape[1];
    const struct matrix matrix = matrix_of_rows(
        linear->weight.data, linear->bias.data, outputs, inputs);
    kernels_best()->linear(&matrix, in, (size_t)inputs, rows, out,
                           (size_t)outputs, FINISH_STORE);
}

void vector_add(const float *a, const float *b, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = a[k] + b[k];
}
