#ifndef MASK_STUDY_H
#define MASK_STUDY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "model.h"

/* keep [T,S], T = queries, S = past + queries: as causal_mask. */
typedef void mask_rule(int past, int queries, bool *keep);

/* All ones for one query, else the triangle j <= i. Wrong for T > 1 with
   P > 0. */
void upper_left_mask(int past, int queries, bool *keep);

/* One line a query: "1 1 1 1 0". */
void mask_print(FILE *out, const bool *keep, int queries, int keys);
/* {"past": 3, "tokens": 2, "keep": [[1, 1, 1, 1, 0], ...]} */
void mask_print_json(FILE *out, const bool *keep, int past, int queries);

/* Runs ids [tokens] in calls of `first` tokens (none when 0), then of `step`
   tokens each, under the masks of `rule`, from cache to cache. Afterwards
   errors [tokens] has, for each token, the largest absolute difference over
   the vocabulary between its logits and those of one causal call over all.
   Refuses what tiny_gpt_forward refuses, first outside 0 to tokens, and
   step < 1; errors is unchanged then. */
enum status mask_errors(const struct tiny_gpt *model, const int32_t *ids,
                        int tokens, int first, int step, mask_rule *rule,
                        double *errors, struct error *error);

/* A small model for such measurements: V 23, N 256, C 16, L 2, H 4, F 32,
   weights N(0, 0.2) from a fixed seed, norms around 1. The caller frees it
   with tiny_gpt_free. */
enum status mask_study_model(struct tiny_gpt **model, struct error *error);

#endif
