#ifndef AUDIT_LOOP_H
#define AUDIT_LOOP_H

#include "llama.h"
#include "per_step.h"
#include "phase_study.h"

struct audit_plan {              /* borrowed */
    const int32_t *prompt;       /* [P] */
    int prompt_tokens, steps;    /* P, n >= 1 */
    int repeats;                 /* runs; the least time of a phase counts */
    struct allclose bound;       /* between a row and the recomputed one */
    struct stopwatch watch;      /* now is NULL: take no time */
};

enum { PREFILL, DECODE, PHASES };

struct audit_run {
    int32_t *continuation;              /* [n] */
    size_t calls[PHASES], rows[PHASES];
    double seconds[PHASES];             /* infinite when none were taken */
    size_t storage_bytes;               /* of the floats of the cache */
    /* Bytes of it that were written: after the prompt, after the first step,
       after the last. */
    size_t prompt_bytes, step_bytes, all_bytes;
    int cached;                         /* tokens, as the cache counts */
    int n_layers, n_experts;
    size_t *loads;                      /* [L,E] assignments; NULL: none */
    struct identity identity;
    double *differences;                /* [n], of `compared` rows */
    int compared;
};

/* Runs the plan on lm, and holds it against recomputation by lm. llama is
   lm's own model when it has experts, else NULL. Refuses numbers below 1,
   what per_step_compare refuses, and a text that does not fit; *run is
   unchanged on error. The caller frees it. That rows differ is no error. */
enum status audit_run_new(struct audit_run *run, const struct causal_lm *lm,
                          const struct llama *llama,
                          const struct audit_plan *plan,
                          struct error *error);
void audit_run_free(struct audit_run *run);    /* and empties */

#endif
