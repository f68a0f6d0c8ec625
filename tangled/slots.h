#ifndef SLOTS_H
#define SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include "causal_lm.h"
#include "generate.h"
#include "slot_table.h"

enum { STOP_MAX = 16 };

enum slot_end {
    NOT_ENDED,
    ENDED_LENGTH,                /* all wanted tokens are there */
    ENDED_EOS,
    ENDED_STOP,                  /* its stop came, or on_token said so */
    ENDED_CANCELLED,
    ENDED_FAILED                 /* its logits were no numbers */
};
const char *slot_end_name(enum slot_end end);    /* "length", "eos", … */

struct slot_request {            /* zero-initialise, then set */
    const int32_t *ids;          /* [T] the prompt, each in [0,V) */
    int tokens;                  /* T >= 1 */
    int max_new_tokens;          /* n >= 0 */
    int32_t eos_token_id;        /* NO_EOS or in [0,V) */
    double temperature;          /* 0: greedy; finite and > 0: sampling */
    struct generator generator;  /* where its draws begin */
    const int32_t *stop;         /* ends when its last new ids are these, */
    int stop_tokens;             /* 1 … STOP_MAX of them; 0: no stop */
    /* Called with each new id, EOS included; false ends it. NULL: not. */
    bool (*on_token)(void *context, int32_t id);
    /* Called once, when it ends. error is NULL but with ENDED_FAILED. */
    void (*on_end)(void *context, enum slot_end end,
                   const struct error *error);
    void *context;
};

struct slots_limits {
    int slots;                   /* R >= 1 */
    int capacity;                /* S: tokens of a slot, 1 … N */
    int budget;                  /* M >= R: tokens of a step */
    int waiting;                 /* Q >= 0: requests beyond R */
};

/* All free. Nothing is allocated afterwards. Borrows the model. The caller
   owns it: slots_free, which nulls it and calls nobody, whoever is in.
   Refuses a missing lm, limits outside their bounds, and sizes for which
   there is no memory; *slots is unchanged on error. */
struct slots;
enum status slots_new(struct slots **slots, const struct causal_lm *lm,
                      const struct slots_limits *limits, struct error *error);
void slots_free(struct slots **slots);

/* At the end of the line; prompt and stop are copied. *ticket is its number,
   never used again. A request for no tokens ends within the call and takes no
   place. Refuses, by name: missing arguments, T below 1, n below 0, T + n
   above N or above S + 1 (the last new token is never fed), ids, eos_token_id
   and stop outside [0,V), stop_tokens outside 0 … STOP_MAX, a temperature
   that is negative or not finite, one above 0 with a generator that was never
   seeded; with STATUS_NO_MEMORY, a request when all R + Q places are
   taken. */
enum status slots_submit(struct slots *slots,
                         const struct slot_request *request, int64_t *ticket,
                         struct error *error);

/* Feeds one step: a token to each request that decodes, then prompts in the
   order of their arrival, in all at most M tokens. *more says whether anybody
   is in afterwards. */
enum status slots_step(struct slots *slots, bool *more, struct error *error);

/* Ends it now. Refuses a ticket that is not in. */
enum status slots_cancel(struct slots *slots, int64_t ticket,
                         struct error *error);

/* All three refuse to be called from within on_token or on_end. */

struct slots_counts {
    int waiting, seated;         /* requests now: without a slot, and with */
    int64_t steps, calls;        /* so far; a step is at least one call */
    int64_t fed, emitted;        /* tokens so far */
};
struct slots_counts slots_counts(const struct slots *slots);

/* What the slots do in the step that has run: [R], borrowed. */
const struct slot_share *slots_shares(const struct slots *slots);
/* L pairs [R,H,S,D] and the tokens in each row [R], borrowed. Behind its
   length a row is not read. */
const struct past_key_values *slots_storage(const struct slots *slots);
const int32_t *slots_lengths(const struct slots *slots);

#endif
