#ifndef BENCH_PRINT_H
#define BENCH_PRINT_H

#include <stdio.h>
#include "bench_error.h"
#include "bench_load.h"
#include "bench_rates.h"
#include "machine_name.h"

struct bench_report {
    struct machine_name machine;
    const struct bench_shape *shape;
    const struct bench_plan *plan;
    int lanes;                              /* of the limits */
    struct bench_machine_limits limits[BENCH_THREADS_MAX];
    struct bench_result *results;           /* [count] */
    int count;
    bool has_error[BENCH_WEIGHTS];
    struct bench_error errors[BENCH_WEIGHTS];
    struct bench_series open[BENCH_THREADS_MAX], first[BENCH_THREADS_MAX],
        again[BENCH_THREADS_MAX], decoded[BENCH_THREADS_MAX];
                                            /* of loads; count 0: none */
    struct bench_load load;                 /* the last of them */
};

void bench_print_text(FILE *out, const struct bench_report *report);
/* Each limit, result, error and load on a line of its own. */
void bench_print_json(FILE *out, const struct bench_report *report);
/* The work of the cases, before anything is measured. */
void bench_print_work(FILE *out, const struct bench_report *report);

#endif
