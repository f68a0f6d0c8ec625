#include <limits.h>
#include <math.h>
#include <stddef.h>
#include "schedule.h"

bool job_finished(const struct job *job)
{
    return job->fed == job->prompt + job->wanted - 1;
}

bool job_decodes(const struct job *job)
{
    return job->fed >= job->prompt && !job_finished(job);
}

int job_emitted(const struct job *job)
{
    return job->fed < job->prompt ? 0 : job->fed - job->prompt + 1;
}

static enum status job_check(const struct job *jobs, int j,
                             struct error *error)
{
    const struct job *job = &jobs[j];
    const double least = j > 0 ? jobs[j - 1].arrival : 0;
    if (!(job->arrival >= least) || isinf(job->arrival))
        return error_set(error, STATUS_INVALID,
                         "jobs[%d].arrival: expected at least %g, got %g", j,
                         least, job->arrival);
    if (job->prompt < 1)
        return error_set(error, STATUS_INVALID,
                         "jobs[%d].prompt: expected at least 1, got %d", j,
                         job->prompt);
    if (job->wanted < 1 || job->wanted > INT_MAX - job->prompt)
        return error_set(error, STATUS_INVALID,
                         "jobs[%d].wanted: expected 1 to %d, got %d", j,
                         INT_MAX - job->prompt, job->wanted);
    if (job->fed < 0 || job->fed > job->prompt + job->wanted - 1)
        return error_set(error, STATUS_INVALID,
                         "jobs[%d].fed: expected 0 to %d, got %d", j,
                         job->prompt + job->wanted - 1, job->fed);
    return STATUS_OK;
}

enum status schedule_check(const struct schedule_limits *limits,
                           const struct job *jobs, int count,
                           struct error *error)
{
    if (limits == NULL || jobs == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         limits == NULL ? "limits" : "jobs");
    if (limits->budget < 1)
        return error_set(error, STATUS_INVALID,
                         "budget: expected at least 1, got %d",
                         limits->budget);
    if (limits->slots < 1 || limits->slots > limits->budget)
        return error_set(error, STATUS_INVALID,
                         "slots: expected 1 to the budget %d, got %d",
                         limits->budget, limits->slots);
    if (count < 1)
        return error_set(error, STATUS_INVALID,
                         "count: expected at least 1, got %d", count);
    enum status status = STATUS_OK;
    for (int j = 0; j < count && status == STATUS_OK; j++)
        status = job_check(jobs, j, error);
    return status;
}

int schedule_step(const struct schedule_limits *limits,
                  const struct job *jobs, int arrived, struct share *shares)
{
    int left = limits->budget;   /* tokens */
    int used = 0;                /* shares, and as many slots */
    for (int j = 0; j < arrived; j++)
        if (job_decodes(&jobs[j])) {
            shares[used++] = (struct share){j, 1};
            left--;
        }
    for (int j = 0; j < arrived && left > 0 && used < limits->slots; j++)
        if (jobs[j].fed < jobs[j].prompt) {
            const int missing = jobs[j].prompt - jobs[j].fed;
            const int tokens = missing < left ? missing : left;
            shares[used++] = (struct share){j, tokens};
            left -= tokens;
        }
    return used;
}

void schedule_enter(struct job *jobs, const struct share *shares, int count)
{
    for (int k = 0; k < count; k++) {
        jobs[shares[k].job].fed += shares[k].tokens;
    }
}
