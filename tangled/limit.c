#include "limit.h"
#include <stdlib.h>
#include "kernels.h"
#include "limit_loops.h"
#include "pages.h"

struct limits {
    const struct limit_loops *loops;
    float *array;
    size_t floats;      /* a multiple of LIMIT_THREADS blocks */
    void *room;
};

static const struct limit_loops *widest_loops(void)
{
    const struct kernels *tables[KERNELS_MAX];
    kernels_available(tables);
    return tables[0] == &kernels_avx512 ? &limit_loops_avx512
         : tables[0] == &kernels_avx2 ? &limit_loops_avx2
                                      : &limit_loops_base;
}

enum status limits_new(struct limits **limits, size_t bytes,
                       struct error *error)
{
    const size_t step = (size_t)LIMIT_THREADS * LIMIT_BLOCK;
    const size_t floats = bytes / sizeof (float) / step * step;
    if (floats == 0)
        return error_set(error, STATUS_INVALID,
                         "bytes: expected at least %zu, got %zu",
                         step * sizeof (float), bytes);
    struct limits *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->array = pages_new(floats * sizeof (float), &made->room);
    if (made == NULL || made->array == NULL) {
        free(made);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for an array of %zu bytes", bytes);
    }
    made->loops = widest_loops();
    made->floats = floats;
    for (size_t k = 0; k < floats; k++)
        made->array[k] = 1e-3f;
    *limits = made;
    return STATUS_OK;
}

void limits_free(struct limits **limits)
{
    if (*limits != NULL)
        free((*limits)->room);
    free(*limits);
    *limits = NULL;
}

int limits_lanes(const struct limits *limits)
{
    return limits->loops->lanes;
}

static double read_seconds(const struct limits *limits, int streams,
                           int threads, const struct stopwatch *watch)
{
    float sum = 0;
    const size_t part = limits->floats / (size_t)threads / LIMIT_BLOCK
                        * LIMIT_BLOCK;
    const double began = watch->now(watch->state);
    #pragma omp parallel for num_threads(threads) schedule(static, 1) \
        reduction(+ : sum)
    for (int t = 0; t < threads; t++)
        sum += limits->loops->read[streams](limits->array + (size_t)t * part,
                                            part);
    const double took = watch->now(watch->state) - began;
    volatile float sink = sum;
    (void)sink;
    return took;
}

static double multiply_seconds(const struct limits *limits, size_t rounds,
                               int threads, const struct stopwatch *watch)
{
    _Alignas(64) float seeds[LIMIT_SEEDS];
    float sum = 0;
    for (int k = 0; k < LIMIT_SEEDS; k++)
        seeds[k] = k < 16 ? 0.999f : k < 32 ? 0.001f : 1 + 1e-3f * (float)k;
    const double began = watch->now(watch->state);
    #pragma omp parallel for num_threads(threads) schedule(static, 1) \
        reduction(+ : sum)
    for (int t = 0; t < threads; t++)
        sum += limits->loops->multiply(seeds, rounds);
    const double took = watch->now(watch->state) - began;
    volatile float sink = sum;
    (void)sink;
    return took;
}

static double fastest_multiply(const struct limits *limits, int threads,
                               const struct stopwatch *watch)
{
    enum { LEAST = 1 << 14, MOST = 1 << 28, MORE = 4 };
    double best = 0;
    size_t rounds = LEAST;
    for (int more = -1; more < MORE;) {
        const double took = multiply_seconds(limits, rounds, threads, watch);
        const double flops = 2.0 * LIMIT_CHAINS * limits->loops->lanes
                             * (double)rounds * threads;
        if (took > 0 && flops / took > best)
            best = flops / took;
        if (more < 0 && took < 2e-3 && rounds < MOST)
            rounds *= 2;
        else
            more++;
    }
    return best;
}

struct limit limits_measure(const struct limits *limits, int threads,
                            const struct stopwatch *watch)
{
    struct limit limit = {0, 1, fastest_multiply(limits, threads, watch)};
    const size_t part = limits->floats / (size_t)threads / LIMIT_BLOCK
                        * LIMIT_BLOCK;
    const double bytes = (double)(part * (size_t)threads * sizeof (float));
    for (int turn = 0; turn < 2; turn++)
        for (int k = 0; k < LIMIT_STREAMS; k++) {
            const double took = read_seconds(limits, k, threads, watch);
            if (took > 0 && bytes / took > limit.bytes) {
                limit.bytes = bytes / took;
                limit.streams = 1 << k;
            }
        }
    return limit;
}
