#ifndef MIXED_MASK_H
#define MIXED_MASK_H

#include <stdbool.h>
#include <stdint.h>

/* One row of a batch: slot j holds the token at position start + j. Slots
   before `length` are valid before a call, T more after it. */
struct row_prefix {
    int start, length;
};

/* keep [T,slots]: keep[t*slots + j] says whether the query at positions[t]
   may see slot j. */
void mixed_mask(struct row_prefix prefix, const int32_t *positions,
                int tokens, int slots, bool *keep);

#endif
