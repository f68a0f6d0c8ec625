#ifndef NORM_H
#define NORM_H

#include "parameters.h"

/* out [rows,C] = weight * (in - mean) / sqrt(variance + eps) + bias, where
   mean and (biased) variance are those of the row. out may be in. */
void layer_norm_forward(const struct layer_norm *norm, double eps,
                        const float *in, int rows, float *out);

#endif
