#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schedule_study.h"

double call_keys(int before, int tokens)
{
    return (double)tokens * before + 0.5 * tokens * ((double)tokens + 1);
}

struct run {
    const struct simulation *simulation;
    struct job *jobs;            /* [count] and what they have been fed */
    struct share *shares;        /* [slots] of a step */
    struct timing *timings;      /* [count] */
    double now;
};

static double step_cost(const struct run *run, int count)
{
    const struct call_cost *cost = &run->simulation->cost;
    double time = cost->call;
    for (int k = 0; k < count; k++) {
        const struct share *share = &run->shares[k];
        time += share->tokens * cost->token
                + call_keys(run->jobs[share->job].fed, share->tokens)
                  * cost->pair;
    }
    return time;
}

static enum status simulation_check(const struct simulation *simulation,
                                    const struct timing *timings,
                                    struct error *error)
{
    if (simulation == NULL || timings == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         simulation == NULL ? "simulation" : "timings");
    const double costs[] = {simulation->cost.call, simulation->cost.token,
                            simulation->cost.pair};
    const char *const names[] = {"call", "token", "pair"};
    for (int k = 0; k < 3; k++)
        if (!(costs[k] >= 0) || isinf(costs[k]))
            return error_set(error, STATUS_INVALID, "cost.%s: expected a"
                             " finite number >= 0, got %g", names[k],
                             costs[k]);
    enum status status = schedule_check(&simulation->limits, simulation->jobs,
                                        simulation->count, error);
    for (int j = 0; j < simulation->count && status == STATUS_OK; j++)
        if (simulation->jobs[j].fed != 0)
            status = error_set(error, STATUS_INVALID, "jobs[%d].fed: expected"
                               " 0, got %d", j, simulation->jobs[j].fed);
    return status;
}

static void note(struct run *run, const struct share *share)
{
    const struct job *job = &run->jobs[share->job];
    struct timing *timing = &run->timings[share->job];
    if (job_emitted(job) == 1)
        timing->first = run->now;
    else if (job_emitted(job) > 1)
        timing->gap = fmax(timing->gap, run->now - timing->last);
    if (job_emitted(job) > 0)
        timing->last = run->now;
}

static void run_all(struct run *run)
{
    const struct simulation *simulation = run->simulation;
    int arrived = 0;
    for (;;) {
        while (arrived < simulation->count
               && run->jobs[arrived].arrival <= run->now)
            arrived++;
        const int count = schedule_step(&simulation->limits, run->jobs,
                                        arrived, run->shares);
        if (count > 0) {
            const double begin = run->now;
            run->now += step_cost(run, count);
            if (simulation->on_step != NULL)
                simulation->on_step(simulation->context, begin, run->now, run->jobs,
                                    run->shares, count);
            schedule_enter(run->jobs, run->shares, count);
            for (int k = 0; k < count; k++)
                note(run, &run->shares[k]);
        } else if (arrived < simulation->count) {
            run->now = run->jobs[arrived].arrival;
        } else {
            return;
        }
    }
}

enum status simulate(const struct simulation *simulation,
                     struct timing *timings, struct error *error)
{
    enum status status = simulation_check(simulation, timings, error);
    if (status != STATUS_OK)
        return status;
    const size_t count = (size_t)simulation->count;
    struct run run = {.simulation = simulation};
    run.jobs = calloc(count, sizeof *run.jobs);
    run.timings = calloc(count, sizeof *run.timings);
    const size_t slots = (size_t)simulation->limits.slots;
    run.shares = calloc(slots < count ? slots : count, sizeof *run.shares);
    if (run.jobs == NULL || run.timings == NULL || run.shares == NULL) {
        status = error_set(error, STATUS_NO_MEMORY,
                           "simulation: no memory for %zu jobs", count);
    } else {
        memcpy(run.jobs, simulation->jobs, count * sizeof *run.jobs);
        run_all(&run);
        memcpy(timings, run.timings, count * sizeof *timings);
    }
    free(run.jobs);
    free(run.timings);
    free(run.shares);
    return status;
}

struct latency latency_of(const struct job *jobs,
                          const struct timing *timings, int count)
{
    struct latency latency = {0};
    double first = 0, gaps = 0, waits = 0;
    for (int j = 0; j < count; j++) {
        const double wait = timings[j].first - jobs[j].arrival;
        first += wait;
        latency.first_worst = fmax(latency.first_worst, wait);
        gaps += jobs[j].wanted - 1;
        waits += timings[j].last - timings[j].first;
        latency.gap_worst = fmax(latency.gap_worst, timings[j].gap);
    }
    latency.first_mean = first / count;
    latency.gap_mean = gaps > 0 ? waits / gaps : 0;
    return latency;
}

static bool solve(double system[3][4])
{
    const double diagonal[3] = {system[0][0], system[1][1], system[2][2]};
    for (int p = 0; p < 3; p++) {
        if (!(system[p][p] > 1e-9 * diagonal[p]))
            return false;
        for (int c = 3; c >= p; c--)
            system[p][c] /= system[p][p];
        for (int r = 0; r < 3; r++) {
            if (r == p)
                continue;
            for (int c = 3; c >= p; c--)
                system[r][c] -= system[r][p] * system[p][c];
        }
    }
    return true;
}

enum status call_cost_fit(const struct call_sample *samples, int count,
                          struct call_cost *cost, struct error *error)
{
    double system[3][4] = {{0}};
    if (samples == NULL || cost == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         samples == NULL ? "samples" : "cost");
    for (int i = 0; i < count; i++) {
        if (samples[i].before < 0 || samples[i].tokens < 1 || !(samples[i].time > 0))
            return error_set(error, STATUS_INVALID, "samples[%d]: expected a call"
                             " that took time, got %d tokens behind %d in %g", i,
                             samples[i].tokens, samples[i].before, samples[i].time);
        const double row[4] = {
            1 / samples[i].time, samples[i].tokens / samples[i].time,
            call_keys(samples[i].before, samples[i].tokens) / samples[i].time, 1
        };
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 4; c++)
                system[r][c] += row[r] * row[c];
    }
    if (count < 3 || !solve(system))
        return error_set(error, STATUS_INVALID,
                         "samples: %d of them do not determine the three"
                         " constants", count);
    *cost = (struct call_cost){fmax(system[0][3], 0), fmax(system[1][3], 0),
                               fmax(system[2][3], 0)};
    return STATUS_OK;
}
