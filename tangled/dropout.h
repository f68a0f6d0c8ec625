#ifndef DROPOUT_H
#define DROPOUT_H
#include <stddef.h>
#include "generator.h"

/* mask[i] = 0 with probability p, else 1/(1-p); one draw each. p in [0,1). */
void dropout_mask(struct generator *generator, double p, size_t count,
                  float *mask);
#endif
