#ifndef SWIGLU_H
#define SWIGLU_H

#include <stddef.h>

/* out[k] = silu(gate[k]) * up[k], where silu(x) = x / (1 + e^-x). out may be
   either input. */
void swiglu_forward(const float *gate, const float *up, size_t count,
                    float *out);

#endif
