#include <float.h>
#include <math.h>
#include <string.h>
#include "int8_row.h"

float int8_scale(const float *row, int width)
{
    float largest = 0;
    for (int d = 0; d < width; d++) {
        largest = fmaxf(largest, fabsf(row[d]));
    }
    float scale = largest / INT8_STEPS;
    if (isinf(INT8_STEPS * scale))
        scale = nextafterf(scale, 0);
    if (scale < FLT_MIN)
        scale = 0;
    return scale;
}

void int8_encode(const float *row, int width, float scale, int8_t *codes)
{
    if (scale == 0) {
        memset(codes, 0, (size_t)width);
        return;
    }
    for (int d = 0; d < width; d++) {
        const double steps = (double)row[d] / scale;
        codes[d] = (int8_t)lrint(fmax(-INT8_STEPS, fmin(INT8_STEPS, steps)));
    }
}

void int8_decode(const int8_t *codes, int width, float scale, float *row)
{
    for (int d = 0; d < width; d++) {
        row[d] = scale * (float)codes[d];
    }
}
