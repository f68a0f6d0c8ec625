#ifndef REJECTION_H
#define REJECTION_H

#include <stdint.h>
#include "generator.h"

/* p [V] = softmax(logits / temperature), for logits that sampler_check
   accepts and a temperature > 0. */
void token_probabilities(const float *logits, int vocab_size,
                         double temperature, double *p);

/* An id, each with its share of the sum of weights [V], which is positive and
   finite. One draw; never an id of weight 0. */
int32_t weighted_draw(const double *weights, int vocab_size,
                      struct generator *generator);

/* For a proposal drawn from q [V]: an id that is distributed as p [V] and
   equals the proposal as often as any such id can. One draw, and another one
   when the proposal is refused; q is overwritten. */
int32_t rejection_answer(const double *p, double *q, int vocab_size,
                         int32_t proposal, struct generator *generator);

#endif
