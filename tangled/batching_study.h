#ifndef BATCHING_STUDY_H
#define BATCHING_STUDY_H

#include <stdint.h>
#include "causal_lm.h"
#include "schedule_study.h"

enum batch_rule { BATCH_STATIC, BATCH_CONTINUOUS };

struct batch_load {
    int prompt;                  /* T of each request */
    const int *wanted;           /* [count] n of each, >= 1 */
    int count;
};

enum { GEOMETRIC = -1 };

/* count lengths, from this seed: whole numbers of mean ± spread percent, each
   as likely as the others (0 <= spread <= 100), or with GEOMETRIC such that a
   text ends with the same chance at each token. None is below 1 or above
   `longest`; then it is that. */
void batch_lengths(uint64_t seed, int mean, int spread, int longest,
                   int count, int *wanted);

struct batch_count {
    int64_t steps;
    int64_t tokens;              /* that somebody wanted */
    int64_t busy;                /* slots, over all steps */
    double time;                 /* by the costs of a call */
};

/* Called for each slot that is fed. `over` says that its text has ended. */
typedef void batch_watcher(void *context, int64_t step, int slot, int request,
                           bool prompt, bool over);

/* BATCH_STATIC takes `slots` requests at a time, and the next ones when the
   longest of these has ended. BATCH_CONTINUOUS hands slots on. watcher may be
   NULL. Refuses what schedule_check refuses and a load of nothing; *result is
   unchanged on error. */
enum status batching_count(enum batch_rule rule,
                           const struct schedule_limits *limits,
                           const struct batch_load *load,
                           const struct call_cost *cost,
                           batch_watcher *watcher, void *context,
                           struct batch_count *result, struct error *error);

struct batch_time {
    double seconds;
    int64_t steps, calls, tokens;        /* tokens that somebody wanted */
};

/* Made-up prompts from the seed. Refuses what slots_new and slots_submit
   refuse; *result is unchanged on error. */
enum status batching_time(enum batch_rule rule, const struct causal_lm *lm,
                          const struct schedule_limits *limits,
                          const struct batch_load *load, uint64_t seed,
                          struct batch_time *result, struct error *error);

#endif
