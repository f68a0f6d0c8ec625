#ifndef MATRIX_H
#define MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PANEL = 32, GROUP = 32 };    /* outputs; inputs that share a scale */

enum matrix_layout { MATRIX_ROWS, MATRIX_PANELS };
enum matrix_type { MATRIX_F32, MATRIX_BF16, MATRIX_INT8 };

/* A weight [O,I] and its bias; a borrowed view of arrays that somebody else
   owns. Rows are F32 [O,I]. Panels are [ceil(O/32)][ceil(I/n)][32] words
   of 32 bits, each with n inputs of one output, the first in the lowest
   bits: one of F32, two of BF16, or four codes of INT8. INT8 has a scale
   for each output and 32 inputs, [ceil(O/32)][ceil(I/32)][32]. What pads is
   0. Panels are fastest at addresses that are a multiple of 64. */
struct matrix {
    int out, in;                 /* O, I; both at least 1 */
    enum matrix_layout layout;
    enum matrix_type type;       /* of rows: F32 */
    const void *data;
    const float *scales;         /* INT8 alone */
    const float *bias;           /* [O], or NULL */
};

/* To the nearest, ties to even; NaN stays NaN. */
uint16_t bf16_from_float(float x);
float bf16_to_float(uint16_t high);

/* The view of a weight [O,I] and a bias [O] (or NULL) as they are stored. */
struct matrix matrix_of_rows(const float *weight, const float *bias,
                             int out, int in);

/* Inputs of an output that share a word of a panel: 1, 2 or 4. */
int matrix_word_inputs(enum matrix_type type);

/* Bytes of the panels and of the scales (0 but for INT8). False, and nothing
   written, when a size is below 1 or a product does not fit. */
bool matrix_packed_sizes(int out, int in, enum matrix_type type,
                         size_t *data_bytes, size_t *scale_bytes);

/* Writes the panels, and for INT8 the scales, of rows [O,I] into room of that
   size, and returns their view. INT8 weights are finite. */
struct matrix matrix_pack(const float *rows, const float *bias, int out,
                          int in, enum matrix_type type, void *data,
                          float *scales);

/* The float that weight o,i of any form stands for. */
float matrix_weight(const struct matrix *matrix, int o, int i);

#endif
