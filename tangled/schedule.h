#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdbool.h>
#include "error.h"

struct job {                     /* a request, in the order of arrival */
    double arrival;              /* on the caller's clock, >= 0 */
    int prompt, wanted;          /* T >= 1 tokens in, n >= 1 tokens out */
    int fed;                     /* 0 … T+n-1 */
};

struct schedule_limits {
    int budget;                  /* M: tokens that a step may feed */
    int slots;                   /* 1 … M: jobs under way at a time */
};

struct share {                   /* of one job in one step */
    int job;                     /* index */
    int tokens;                  /* >= 1 */
};

bool job_decodes(const struct job *job);
int job_emitted(const struct job *job);
bool job_finished(const struct job *job);

/* Refuses, by name: limits outside their bounds, no jobs, and a job that is
   out of order or bounds. */
enum status schedule_check(const struct schedule_limits *limits,
                           const struct job *jobs, int count,
                           struct error *error);

/* Writes what the first `arrived` jobs get in the next step to shares, which
   has room for `slots` of them; returns their number, 0 when nobody has
   anything to do. Limits and jobs are as schedule_check accepts them, and
   every job has been fed by such plans alone. */
int schedule_step(const struct schedule_limits *limits,
                  const struct job *jobs, int arrived, struct share *shares);

/* Adds the shares of a step to what its jobs have been fed. */
void schedule_enter(struct job *jobs, const struct share *shares, int count);

#endif
