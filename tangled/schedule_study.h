#ifndef SCHEDULE_STUDY_H
#define SCHEDULE_STUDY_H

#include "schedule.h"

struct call_cost { double call, token, pair; };   /* each >= 0, one unit */

struct call_sample {             /* one call that was measured */
    int before, tokens;          /* tokens of the row, before and in it */
    double time;                 /* > 0 */
};

/* The cost whose relative errors over the samples have the least squares.
   Refuses fewer than three samples, and such as do not determine it. A
   constant that comes out below zero becomes zero. *cost is unchanged on
   error. */
enum status call_cost_fit(const struct call_sample *samples, int count,
                          struct call_cost *cost, struct error *error);

/* tokens behind `before` in one row. */
double call_keys(int before, int tokens);

struct simulation {
    struct schedule_limits limits;
    struct call_cost cost;       /* in the unit of the arrivals */
    const struct job *jobs;      /* [count] none of them fed */
    int count;
    /* Called after each step with the jobs as it found them. NULL: not. */
    void (*on_step)(void *context, double begin, double end,
                    const struct job *jobs, const struct share *shares,
                    int count);
    void *context;
};

struct timing {                  /* of one job, on the clock of arrivals */
    double first, last;          /* its first and its last token */
    double gap;                  /* the longest wait between two; 0 if one */
};

/* Runs all jobs to their ends. timings [count]. Refuses what schedule_check
   refuses, jobs that have been fed, costs that are not finite or negative. On
   error timings is unchanged. */
enum status simulate(const struct simulation *simulation,
                     struct timing *timings, struct error *error);

struct latency {
    double first_mean, first_worst;   /* arrival to first token */
    double gap_mean, gap_worst;       /* token to token, 0 without any */
};

/* Over `count` >= 1 jobs; for some of them, pass pointers to these. */
struct latency latency_of(const struct job *jobs,
                          const struct timing *timings, int count);

#endif
