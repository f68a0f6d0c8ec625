#ifndef SAMPLER_H
#define SAMPLER_H
#include <stdint.h>
#include "error.h"
#include "generator.h"

/* Refuses a row of logits [V] that no choice can be made from: a NaN or
   +inf (named by its id), or nothing but -inf. A -inf is an id ruled out. */
enum status sampler_check(const float *logits, int vocab_size,
                          struct error *error);

/* The id of the largest of V >= 1 checked logits; the lowest wins a tie. */
int32_t sampler_greedy(const float *logits, int vocab_size);

/* Draws *id from softmax(logits / temperature) with one generator_uniform.
   Refuses a temperature that is not finite and positive, and logits that
   sampler_check refuses: then *id and the generator are unchanged. */
enum status sampler_sample(const float *logits, int vocab_size,
                           double temperature, struct generator *generator,
                           int32_t *id, struct error *error);
#endif
