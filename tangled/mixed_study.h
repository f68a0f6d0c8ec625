#ifndef MIXED_STUDY_H
#define MIXED_STUDY_H

#include "model.h"

/* Runs T new tokens behind lengths[b] >= 0 cached ones in each row, from
   position 0, in one batch: padded to the longest with zeros under chapter
   5's mask, and as mixed prefixes. ids [B,longest + T]; row b uses its first
   lengths[b] + T. Afterwards padded [B] and mixed [B] have the largest
   difference of each row's new logits from those of the row alone. They are
   unchanged on error; refuses what the model refuses. */
enum status mixed_errors(const struct tiny_gpt *model, const int32_t *ids,
                         const int32_t *lengths, int batch, int tokens,
                         double *padded, double *mixed, struct error *error);

#endif
