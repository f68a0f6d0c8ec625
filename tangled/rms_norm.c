#include "rms_norm.h"
#include <math.h>

#include "kernels.h"

void rms_norm_forward(const struct tensor *weight, double eps,
                      const float *in, int rows, float *out)
{
    kernels_best()->rms_norm(in, rows, weight->shape[0], weight->data, eps,
                             out);
}
