#ifndef MIXED_MASK_H
#define MIXED_MASK_H

#include <stdbool.h>
#include <stdint.h>

/* One row of a batch: slot j holds the key of position start + j, and slots
   0 … length-1 are valid before the call, 0 … length+T-1 within it. */
struct prefix {
    int start, length;
};

/* keep [T,slots]: whether the query at positions[t] may see slot j. */
void mixed_mask(struct prefix prefix, const int32_t *positions, int tokens,
                int slots, bool *keep);

#endif
