#ifndef LIMIT_H
#define LIMIT_H

#include "phase_study.h"

struct limit {
    double bytes;      /* a second, read from memory */
    int streams;       /* a thread, that were the fastest */
    double flops;      /* a second, two for a multiply-add */
};

struct limits;         /* owns an array to read */

/* The array should be several times as large as the largest cache. At least 4
   KiB for each of 64 threads; *limits is unchanged on error. */
enum status limits_new(struct limits **limits, size_t bytes,
                       struct error *error);
void limits_free(struct limits **limits);    /* NULL-safe; nulls it */
/* Of the widest registers that the processor has. */
int limits_lanes(const struct limits *limits);

/* What 1 … LIMIT_THREADS threads reach now: the best of a few bursts. */
enum { LIMIT_THREADS = 64 };
struct limit limits_measure(const struct limits *limits, int threads,
                            const struct stopwatch *watch);

#endif
