#ifndef BENCH_CASE_H
#define BENCH_CASE_H

#include "bench_model.h"
#include "phase_study.h"

struct bench_case {
    const char *what;         /* "decode", "batch", "prefill", "train";
                                 static */
    enum bench_weights weights;
    const struct kernels *kernels;
    int batch, tokens;        /* B, T */
    int context;              /* P: tokens in the cache of each row */
};

/* A training step is one of its model's floats, all logits asked for. */
bool bench_case_trains(const struct bench_case *one);
enum status bench_case_work(const struct ownership *ownership,
                            const struct bench_case *one,
                            struct bench_work *work, struct error *error);

enum { BENCH_DECODE_STEPS = 4 };     /* calls whose mean is one sample */

/* Something that can be timed. */
struct bench_task {
    void *state;
    /* *seconds that it took, once; preparations are not counted */
    enum status (*once)(void *state, const struct stopwatch *watch,
                        double *seconds, struct error *error);
    void (*release)(void *state);
};

/* Borrows the model, whose weights are there; bench_task_free. Refuses what a
   request refuses; *task is unchanged on error. */
enum status bench_task_new(struct bench_task *task,
                           const struct bench_model *model,
                           const struct bench_case *one,
                           struct error *error);
void bench_task_free(struct bench_task *task);    /* twice is fine */

#endif
