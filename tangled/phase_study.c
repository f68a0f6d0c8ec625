#include "phase_study.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "request.h"

static double monotonic(void *state)
{
    struct timespec now;
    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct stopwatch stopwatch_monotonic(void)
{
    return (struct stopwatch){monotonic, NULL};
}

static enum status check(const struct phase_plan *plan, struct error *error)
{
    const struct { const char *name; int size; } sizes[] = {
        {"batch", plan->batch}, {"prompt", plan->prompt},
        {"steps", plan->steps}, {"repeats", plan->repeats}
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k].size < 1)
            return error_set(error, STATUS_INVALID,
                             "%s: expected at least 1, got %d",
                             sizes[k].name, sizes[k].size);
    if (plan->steps > INT_MAX - plan->prompt
        || plan->batch > INT_MAX / plan->prompt)
        return error_set(error, STATUS_INVALID,
                         "prompt: expected prompt + steps and batch * prompt"
                         " to fit an int, got %d", plan->prompt);
    return STATUS_OK;
}

static enum status time_once(struct request *request, const int32_t *ids,
                             const struct phase_plan *plan,
                             const struct stopwatch *watch,
                             struct phase_seconds *seconds,
                             struct error *error)
{
    const float *logits;
    enum status status = STATUS_OK;
    double began, ended;
    kv_cache_reset(request_cache(request));
    began = watch->now(watch->state);
    status = request_feed(request, ids, plan->prompt, true, &logits, error);
    ended = watch->now(watch->state);
    seconds->prefill = fmin(seconds->prefill, ended - began);
    began = watch->now(watch->state);
    for (int k = 0; k < plan->steps && status == STATUS_OK; k++)
        status = request_feed(request, ids, 1, true, &logits, error);
    ended = watch->now(watch->state);
    seconds->decode = fmin(seconds->decode, ended - began);
    return status;
}

enum status phase_time(const struct causal_lm *lm,
                       const struct phase_plan *plan,
                       const struct stopwatch *watch,
                       struct phase_seconds *seconds, struct error *error)
{
    struct phase_seconds best = {INFINITY, INFINITY};
    struct request *request = NULL;
    enum status status = check(plan, error);
    if (status == STATUS_OK)
        status = request_new(&request, lm, plan->batch,
                             plan->prompt + plan->steps, plan->prompt, error);
    if (status != STATUS_OK)
        return status;
    const int count = plan->batch * plan->prompt;
    int32_t *ids = request_columns(request);
    for (int k = 0; k < count; k++)
        ids[k] = (int32_t)((5 * (int64_t)k + 3) % lm->vocab_size);
    for (int k = 0; k < plan->repeats && status == STATUS_OK; k++)
        status = time_once(request, ids, plan, watch, &best, error);
    if (status == STATUS_OK)
        *seconds = best;
    request_free(&request);
    return status;
}
