#ifndef STEP_STUDY_H
#define STEP_STUDY_H

#include "per_step.h"

enum slip {
    SLIP_NONE,
    SLIP_COUNTER_K,      /* token k stands at position k */
    SLIP_COUNTER_0,      /* at position 0 */
    SLIP_COUNTER_P,      /* at position P */
    SLIP_SHORT,          /* P - 1 rows are cached at the hand-off */
    SLIP_LONG,           /* P + 1, the last of zeros */
    SLIP_LATE,           /* a row is recorded behind its token */
    SLIP_WINDOW,         /* from P + n/2 rows on the oldest is lost */
    SLIP_COUNT
};

/* "counter-k", …; NULL for what is no slip. */
const char *slip_name(enum slip slip);

struct slip_decoder;             /* owns storage and scratch */

/* For this text and no other, which it borrows with the model. Refuses what
   generation_check refuses; *made is unchanged on error. */
enum status slip_decoder_new(struct slip_decoder **made,
                             const struct causal_lm *lm,
                             const struct generation *text, enum slip slip,
                             struct error *error);
void slip_decoder_free(struct slip_decoder **made);   /* and nulls */
struct decoder slip_decoder(struct slip_decoder *made);

/* differences [n] = the largest of each row against recomputation, infinity
   where one is NaN. Refuses what per_step_logits and recompute_logits refuse;
   unchanged on error. */
enum status step_differences(const struct causal_lm *lm,
                             const struct decoder *decoder,
                             const struct generation *text,
                             double *differences, struct error *error);

#endif
