#ifndef ROPE_STUDY_H
#define ROPE_STUDY_H

#include <stddef.h>
#include <stdint.h>
#include "llama.h"

/* A small model of random weights from a fixed seed: V 23, N 256, C 32, L 2,
   H 4, Hk 2, D 8, F 48. The caller frees it with llama_free. */
enum status rope_study_model(struct llama **model, struct error *error);

/* One way to decode a text. */
struct rope_run {
    double *errors;          /* [steps] the caller's: the largest absolute
                                difference of each token's logits from those
                                of one call over the text; infinite for NaN */
    size_t bytes_written;    /* keys and values that the run, prompt and
                                steps, has put into its storage */
};

/* Runs ids [prompt + steps] in one call, then again from cache to cache: the
   prompt, and each other token by itself, at its position (counted) and at
   position 0 (reset). bytes_written is what changed in a storage that was
   marked before the run and has slots to spare, so it may come out as less or
   more than 2 L Hk (prompt + steps) D floats. Refuses sizes below 1 and what
   step_check refuses; on error nothing is written. */
enum status rope_step_errors(const struct llama *model, const int32_t *ids,
                             int prompt, int steps, struct rope_run *counted,
                             struct rope_run *reset, struct error *error);

enum { SHIFT_DISTANCE_MAX = 63 };

/* Turns 64 random queries and keys of D = 64, theta = 10000, at distances of
   0 … 63, with and without this offset to both positions. The result is the
   largest change of a dot product, relative to |q| |k|, with angles made in
   double (the model's) and in float. 0 <= offset < 2^31 - 64. */
struct rope_shift { double doubles, floats; };
struct rope_shift rope_shift_errors(int32_t offset);

#endif
