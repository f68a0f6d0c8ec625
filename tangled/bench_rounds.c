#include "bench_rounds.h"
#include "thread_count.h"

struct samples bench_series_samples(const struct bench_series *series)
{
    struct samples samples = {0};
    for (int k = 0; k < series->count; k++)
        samples_add(&samples, series->value[k]);
    return samples;
}

void bench_series_add(struct bench_series *series, double value)
{
    series->value[series->count++] = value;
}

static void keep_limit(struct bench_machine_limits *measured,
                       const struct limit *limit)
{
    double best = 0;
    for (int k = 0; k < measured->bytes.count; k++)
        if (measured->bytes.value[k] > best)
            best = measured->bytes.value[k];
    if (limit->bytes > best)
        measured->streams = limit->streams;
    bench_series_add(&measured->bytes, limit->bytes);
    bench_series_add(&measured->flops, limit->flops);
}

struct rounds {
    const struct bench_plan *plan;
    const struct limits *limits;
    const struct bench_task *tasks;
    int count;
    const struct stopwatch *watch;
    const struct bench_progress *progress;
    struct bench_machine_limits *measured;
    struct bench_result *results;
};

static enum status one_round(const struct rounds *all, int round, int t,
                             struct error *error)
{
    const int threads = all->plan->threads[t];
    const struct bench_progress *progress = all->progress;
    const bool keep = round > 0;
    progress->show(progress->state, round, threads, "limits");
    const struct limit limit = limits_measure(all->limits, threads, all->watch);
    if (keep)
        keep_limit(&all->measured[t], &limit);
    for (int k = 0; k < all->count; k++) {
        double seconds = 0;
        progress->show(progress->state, round, threads, all->results[k].is.what);
        const enum status status = all->tasks[k].once(
            all->tasks[k].state, all->watch, &seconds, error);
        if (status != STATUS_OK)
            return status;
        if (keep)
            bench_series_add(&all->results[k].seconds[t], seconds);
    }
    return STATUS_OK;
}

enum status bench_rounds(const struct bench_plan *plan,
                         const struct limits *limits,
                         const struct bench_task *tasks, int count,
                         const struct stopwatch *watch,
                         const struct bench_progress *progress,
                         struct bench_machine_limits *measured,
                         struct bench_result *results, struct error *error)
{
    const struct rounds all = {plan, limits, tasks, count, watch, progress,
                               measured, results};
    for (int round = 0; round <= plan->repeats; round++)
        for (int t = 0; t < plan->thread_count; t++) {
            thread_count_use(plan->threads[t]);
            const enum status status = one_round(&all, round, t, error);
            if (status != STATUS_OK)
                return status;
        }
    return STATUS_OK;
}
