#ifndef ROPE_H
#define ROPE_H

#include <stdint.h>
#include "error.h"

/* Refuses an odd or too small head_dim, and a theta that is not positive and
   finite. The other functions rely on it. */
enum status rope_check(int head_dim, double theta, struct error *error);

/* turns [T,D]: for each position the cosines of its D/2 angles, then their
   sines. Pair i turns by position * theta^(-2i/D). */
void rope_turns(const int32_t *positions, int tokens, int head_dim,
                double theta, float *turns);

/* Turns x [H,T,D] in place: in each row, (x[i], x[i + D/2]) is pair i. */
void rope_turn(float *x, int heads, int tokens, int head_dim,
               const float *turns);

/* The same for positions [T], without a table. */
void rope_rotate(float *x, int heads, int tokens, int head_dim,
                 const int32_t *positions, double theta);

#endif
