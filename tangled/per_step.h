#ifndef PER_STEP_H
#define PER_STEP_H

#include "decoder.h"

struct generation {              /* borrowed */
    const int32_t *prompt;       /* [P] */
    int prompt_tokens;           /* P >= 1 */
    const int32_t *continuation; /* [n]; not read when n = 0 */
    int steps;                   /* n >= 0 */
};

/* Refuses, by name: what is NULL, P < 1, n < 0, P + n > room, and an id
   outside [0,V) by its index. */
enum status generation_check(const struct generation *text, int vocab_size,
                             int room, struct error *error);

/* rows becomes [n,V], or empty when n = 0; the caller frees it. Row k has
   seen the prompt and continuation[0 … k-1]. Afterwards the decoder's cache
   holds P + n tokens. Refuses what generation_check refuses, and rows that
   are not empty, before the decoder is touched. rows is unchanged on error.
   Seed 003, runPerStepLogits. */
enum status per_step_logits(const struct decoder *decoder,
                            const struct generation *text,
                            struct tensor *rows, struct error *error);

/* The same rows, each by one call over its whole prefix without a past. */
enum status recompute_logits(const struct causal_lm *lm,
                             const struct generation *text,
                             struct tensor *rows, struct error *error);

/* x is x' when |x - x'| <= absolute + relative |x'|. */
struct allclose {
    double absolute, relative;   /* finite, >= 0 */
};

enum verdict {
    IDENTICAL,                   /* every row is the recomputed one */
    CACHE_DIFFERS,               /* in its number of tokens */
    LOGITS_DIFFER
};

struct identity {
    enum verdict verdict;
    int steps;                   /* rows that agree; with n of them all do,
                                    else row `steps` is the first that does
                                    not */
    double largest;              /* difference of a logit among these */
    int cached;                  /* CACHE_DIFFERS: tokens, where P + steps
                                    were expected */
    int id;                      /* LOGITS_DIFFER: the first such element */
    float got, expected;
    int layer;                   /* the first whose cache differs; L: none */
    int position, head;          /* of the first such key or value */
    bool value;                  /* it is a value, and the key agrees */
};

/* Walks the text with the decoder, recomputes each row with lm, and stops at
   the first that differs. differences [n], or NULL: gets the largest
   difference of each row that was compared; infinity where one is NaN. The
   decoder is left where it stopped. Refuses what per_step_logits refuses, a
   decoder of another vocabulary, and a bound that is negative or not finite;
   and, when logits have differed, a decoder with a cache of another shape,
   which has been walked by then. *identity is unchanged on error. */
enum status per_step_compare(const struct causal_lm *lm,
                             const struct decoder *decoder,
                             const struct generation *text,
                             const struct allclose *bound,
                             double *differences, struct identity *identity,
                             struct error *error);

#endif
