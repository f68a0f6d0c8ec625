#ifndef LADDER_H
#define LADDER_H

#include <stdbool.h>
#include "limit.h"
#include "samples.h"

struct ladder_plan {
    int out, in, rows;       /* out: a multiple of 32 */
    int heads;               /* 0, or attention: in is D, rows is T, and
                                out H·D */
    int threads;             /* of the last rungs */
    int rounds;              /* 1 … SAMPLES_MAX */
    size_t limit_bytes;      /* an array several times the largest cache */
    struct stopwatch watch;
};

enum { RUNGS_MAX = 10 };

struct rung {
    const char *name;
    int threads;
    double amount;             /* of one run: operations, or bytes if rows
                                  is 1 */
    struct samples rates;      /* a second */
    struct samples fractions;  /* of the limit of the same round */
};

struct ladder {
    int count;
    struct rung rungs[RUNGS_MAX];
};

/* Runs every rung once a round, each beside the limit of its threads.
   Refuses sizes that the plan does not allow; *ladder is unchanged then.
   Later kernels use the plan's number of threads. */
enum status ladder_measure(const struct ladder_plan *plan,
                           struct ladder *ladder, struct error *error);

#endif
