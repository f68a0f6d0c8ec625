#ifndef AGREEMENT_H
#define AGREEMENT_H

#include "causal_lm.h"

struct agreement {
    bool agrees;
    int compared;       /* tokens, the one that differs among them */
    double largest;     /* difference of two logits so far */
    /* where it does not agree: the token, its logit, and both values */
    int token, column;
    double full, cached;
};

/* Compares the logits behind tokens prompt-1 … tokens-1 of ids [tokens]: one
   call over all of them against a cache that has the prompt in one call and
   every other token by itself. They agree when |full - cached| <= tolerance +
   tolerance |full|; NaN never does. Stops at the first token that does not.
   Refuses a prompt outside 1 … tokens, and what a request refuses; *agreement
   is unchanged then. That they do not agree is no error. */
enum status agreement_of(const struct causal_lm *lm, const int32_t *ids,
                         int tokens, int prompt, double tolerance,
                         struct agreement *agreement, struct error *error);

#endif
