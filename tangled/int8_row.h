#ifndef INT8_ROW_H
#define INT8_ROW_H

#include <stdint.h>

enum { INT8_STEPS = 127 };    /* codes are -127 … 127 */

/* The largest magnitude of the row over 127. It is 0 for a row of zeros, and
   for one whose scale would be below FLT_MIN. 127 times it is finite. The
   floats are finite, width >= 1. */
float int8_scale(const float *row, int width);

/* codes[d] = row[d] / scale, rounded to the nearest integer, ties to even,
   and saturated at ±127. All codes are 0 with scale 0. The scale may be
   another than the row's own. */
void int8_encode(const float *row, int width, float scale, int8_t *codes);

/* row[d] = scale * codes[d] */
void int8_decode(const int8_t *codes, int width, float scale, float *row);

#endif
