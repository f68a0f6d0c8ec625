#ifndef RMS_NORM_H
#define RMS_NORM_H

#include "tensor.h"

/* out [rows,C] = weight [C] * in / sqrt(mean square of the row + eps). A row
   of zeros gives zeros. out may be in. */
void rms_norm_forward(const struct tensor *weight, double eps,
                      const float *in, int rows, float *out);

#endif
