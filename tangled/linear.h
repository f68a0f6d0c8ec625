#ifndef LINEAR_H
#define LINEAR_H

#include <stddef.h>
#include "parameters.h"

/* out [rows,O] = in [rows,I] · weightᵀ + bias, with weight [O,I]; bias [O],
   or none when that tensor is empty. in and out do not overlap. */
void linear_forward(const struct linear *linear, const float *in, int rows,
                    float *out);

/* out[k] = a[k] + b[k]; out may be a or b. */
void vector_add(const float *a, const float *b, size_t count, float *out);

#endif
