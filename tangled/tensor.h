#ifndef TENSOR_H
#define TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include "error.h"

enum { TENSOR_RANK_MAX = 4 };

/* A float32 array, row-major and contiguous: the last index moves fastest. */
struct tensor {
    float *data;
    int rank;                      /* 0 when empty */
    int shape[TENSOR_RANK_MAX];    /* unused entries are 0 */
};

/* tensor_new(&t, SHAPE(B, T, C), error) */
#define SHAPE(...) \
    (int)(sizeof (int[]){ __VA_ARGS__ } / sizeof (int)), \
    (const int[]){ __VA_ARGS__ }

/* *product = a * b, *sum = a + b. False, and nothing written, when the result
   does not fit. */
bool size_multiply(size_t a, size_t b, size_t *product);
bool size_add(size_t a, size_t b, size_t *sum);

/* Elements of a shape. False, and nothing written, when the rank is not in
   [1, TENSOR_RANK_MAX], a size is not positive, or the bytes of that many
   floats do not fit a size_t. */
bool shape_size(int rank, const int *shape, size_t *size);

/* Allocates a zero-filled tensor, which the caller frees. Refuses what
   shape_size refuses; *tensor is unchanged on error. */
enum status tensor_new(struct tensor *tensor, int rank, const int *shape,
                       struct error *error);
/* Frees and empties. NULL-safe; twice is fine. */
void tensor_free(struct tensor *tensor);

/* Elements; 0 when empty. */
size_t tensor_size(const struct tensor *tensor);
bool tensor_same_shape(const struct tensor *a, const struct tensor *b);

/* Writes "[2, 3, 4]" into text, which has TENSOR_SHAPE_TEXT_MAX bytes;
   returns text. */
enum { TENSOR_SHAPE_TEXT_MAX = 64 };
char *shape_text(int rank, const int *shape, char *text);

#endif
