#ifndef BENCH_RATES_H
#define BENCH_RATES_H

#include "bench_rounds.h"

struct bench_rates {
    double seconds, spread;     /* median, and quartiles by the median */
    double tokens;              /* a second */
    double bytes, flops;        /* a second: least traffic, all products */
    bool memory;                /* it waits for memory, else for arithmetic */
    double fraction;            /* the limit's time, by the best limit of all
                                   rounds, as a part of the median */
    double by_round;            /* the median of the same, each round by its
                                   own limit */
    double linear;              /* as fraction, but for the operations of
                                   linear layers alone; with memory: 0 */
};

/* Of a result with at least one round, with one number of threads. */
struct bench_rates bench_rates(const struct bench_result *result, int t,
                               const struct bench_machine_limits *limits);

/* The same case with other weights, batch or context; NULL when it was not
   measured. */
const struct bench_result *bench_find(const struct bench_result *results,
                                      int count,
                                      const struct bench_case *like);

#endif
