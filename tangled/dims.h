#ifndef DIMS_H
#define DIMS_H

#include "config.h"

/* One size for each dimension letter; 0 for a letter that means none. */
struct dims {
    int size['Z' - 'A' + 1];    /* size['C' - 'A'] is d_model */
};

/* The letters of a checked config and a checked call. */
struct dims dims_of(const struct gpt_config *config,
                    int batch, int tokens, int past);
/* "B H T S" or "3C C" to rank and shape (TENSOR_RANK_MAX entries, unused
   ones 0). The text is one of ours, so a fault in it is a bug. */
void dims_shape(const struct dims *dims, const char *text,
                int *rank, int *shape);

#endif
