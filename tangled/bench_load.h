#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <stdio.h>
#include "bench_rounds.h"

enum { LOAD_PROMPT = 7, LOAD_STEPS = 8, LOAD_AGAIN = 5 };

struct bench_load {
    double open, first;       /* seconds: to map the file; of its first
                                 prompt */
    double again;             /* the median of the same prompt, repeated */
    double decode;            /* of a step */
    double weight_bytes, cache_bytes;
    double peak_bytes;        /* of the process, all in all */
};

/* Opens an engine's file, prefills and decodes. */
enum status bench_load_here(const char *path, const struct kernels *kernels,
                            const struct stopwatch *watch,
                            struct bench_load *load, struct error *error);
/* {"open": 0.001, …} on a line of its own */
void bench_load_print(FILE *out, const struct bench_load *load);

/* The same in a process of its own: this program's `bench --open`. Only where
   the system says which file this program is (Linux). */
enum status bench_load_apart(const char *path, const char *kernels,
                             int threads, struct bench_load *load,
                             struct error *error);

#endif
