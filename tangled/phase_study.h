#ifndef PHASE_STUDY_H
#define PHASE_STUDY_H

#include "causal_lm.h"

enum { PHASE_DECODE_STEPS = 32 };

struct phase_plan {
    int batch, prompt;    /* rows, and tokens of each in the first call */
    int steps;            /* calls of one token a row behind it */
    int repeats;          /* of all that: the least time of each phase */
};

/* Seconds since some moment. */
struct stopwatch {
    double (*now)(void *state);
    void *state;
};
struct stopwatch stopwatch_monotonic(void);

struct phase_seconds {
    double prefill;       /* of the one call */
    double decode;        /* of all steps together */
};

/* Runs the plan on a request of its own with made-up ids. Refuses numbers
   below 1, and what a request refuses; *seconds is unchanged then. The clock
   is read outside of every allocation. */
enum status phase_time(const struct causal_lm *lm,
                       const struct phase_plan *plan,
                       const struct stopwatch *watch,
                       struct phase_seconds *seconds, struct error *error);

#endif
