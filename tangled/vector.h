#ifndef VECTOR_H
#define VECTOR_H

#include <stddef.h>

/* sum [count] += scale * term [count]; the two do not overlap. */
static inline void vector_add_scaled(float *sum, float scale,
                                     const float *term, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        sum[i] += scale * term[i];
}

static inline float vector_dot(const float *a, const float *b, size_t count)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

#endif
