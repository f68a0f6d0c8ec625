#ifndef EMBEDDING_H
#define EMBEDDING_H

#include <stdint.h>
#include "parameters.h"

/* out [B,T,C]: row (b,t) is the row of its token plus the row of position
   past + t. The caller has checked that every id is in [0,V) and that
   past + tokens is at most N. */
void embedding_forward(const struct parameters *parameters,
                       const int32_t *ids, int batch, int tokens, int past,
                       float *out);

#endif
