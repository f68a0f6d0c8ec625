#ifndef HALF_H
#define HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "safetensors.h"

/* Exact: every half is a float. A NaN stays one, with its payload. */
float f16_to_f32(uint16_t half);
float bf16_to_f32(uint16_t half);
/* The nearest, ties to even, whatever the rounding mode of the processor;
   beyond the range infinity. A NaN stays one, and becomes quiet. */
uint16_t f16_from_f32(float number);
uint16_t bf16_from_f32(float number);

/* Whether tensors of that type can be weights: F32, F16, BF16. */
bool dtype_is_weight(enum dtype dtype);
/* out[k] = element k of data, of such a type, little-endian, unaligned. */
void floats_from(enum dtype dtype, const void *data, size_t count,
                 float *out);
#endif
