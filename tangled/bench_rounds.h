#ifndef BENCH_ROUNDS_H
#define BENCH_ROUNDS_H

#include "bench_case.h"
#include "limit.h"
#include "samples.h"

enum { BENCH_THREADS_MAX = 8 };

struct bench_plan {
    int repeats;                        /* rounds, 1 … SAMPLES_MAX */
    int threads[BENCH_THREADS_MAX];     /* each 1 … LIMIT_THREADS */
    int thread_count;
};

/* One number of each round, in their order. */
struct bench_series {
    int count;
    double value[SAMPLES_MAX];
};
/* There is room for SAMPLES_MAX. */
void bench_series_add(struct bench_series *series, double value);
struct samples bench_series_samples(const struct bench_series *series);

struct bench_machine_limits {           /* with one number of threads */
    struct bench_series bytes, flops;   /* a second, of each round */
    int streams;                        /* those of the best round */
};

struct bench_result {
    struct bench_case is;
    struct bench_work work;
    struct bench_series seconds[BENCH_THREADS_MAX];
};

/* Where it stands; rounds are counted from 0, which is the warm-up. */
struct bench_progress {
    void (*show)(void *state, int round, int threads, const char *what);
    void *state;
};

/* repeats + 1 rounds over all tasks, results[k] of tasks[k]; the first round
   is not kept. limits [thread_count] and seconds of results are zeros before.
   An error of a task ends it. */
enum status bench_rounds(const struct bench_plan *plan,
                         const struct limits *limits,
                         const struct bench_task *tasks, int count,
                         const struct stopwatch *watch,
                         const struct bench_progress *progress,
                         struct bench_machine_limits *measured,
                         struct bench_result *results, struct error *error);

#endif
