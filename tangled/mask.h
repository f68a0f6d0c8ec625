#ifndef MASK_H
#define MASK_H

#include <stdbool.h>

/* keep [T,S], T = queries, S = past + queries: keep[i*S + j] is true when
   query i may see key j. */
void causal_mask(int past, int queries, bool *keep);

#endif
