#include "machine.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { LEAST_BYTES = 4096, BURSTS = 5 };

enum { CHAINS = 12 };

/* Rounds of CHAINS times LANES multiply-adds. */
#define KERNEL(NAME, LANES, STEP, TARGET)                                    \
    TARGET static float NAME(const float *array, size_t rounds)              \
    {                                                                        \
        const float a = 0.999f, b = array[0];                                \
        float x[CHAINS][LANES] = {{0}}, sum = 0;                             \
        for (size_t r = 0; r < rounds; r++)                                  \
            UNROLL for (int c = 0; c < CHAINS; c++)                          \
                SIMD for (int k = 0; k < LANES; k++)                         \
                    x[c][k] = STEP(x[c][k], a, b);                           \
        for (int c = 0; c < CHAINS; c++)                                     \
            for (int k = 0; k < LANES; k++)                                  \
                sum += x[c][k];                                              \
        return sum;                                                          \
    }
#define UNROLL _Pragma("GCC unroll 12")
#define SIMD _Pragma("omp simd")
#define TWO_STEPS(x, a, b) ((x) * (a) + (b))
#define ONE_STEP(x, a, b) fmaf(x, a, b)

#ifdef FP_FAST_FMAF    /* the build may use the fused instruction */
KERNEL(build_kernel, 4, ONE_STEP, )
#else
KERNEL(build_kernel, 4, TWO_STEPS, )
#endif

typedef float kernel(const float *array, size_t rounds);

struct kernel_choice {
    kernel *run;
    int lanes;
    const char *name;
};

#if defined __x86_64__ && defined __GNUC__
KERNEL(avx2_kernel, 8, ONE_STEP, __attribute__((target("avx2,fma"))))
KERNEL(avx512_kernel, 16, ONE_STEP, __attribute__((target("avx512f,fma"))))

static struct kernel_choice widest(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return (struct kernel_choice){avx512_kernel, 16, "AVX-512"};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct kernel_choice){avx2_kernel, 8, "AVX2"};
    return (struct kernel_choice){build_kernel, 4, "the build's"};
}
#else
static struct kernel_choice widest(void)
{
    return (struct kernel_choice){build_kernel, 4, "the build's"};
}
#endif

/* The array has LEAST_BYTES times `rounds`. */
static float read_kernel(const float *array, size_t rounds)
{
    float x[8][4] = {{0}}, sum = 0;
    const size_t step = 8 * 4, count = rounds * (LEAST_BYTES / sizeof *array);
    for (size_t at = 0; at < count; at += step)
        _Pragma("GCC unroll 8")
        for (size_t c = 0; c < 8; c++)
            _Pragma("omp simd")
            for (size_t k = 0; k < 4; k++)
                x[c][k] += array[at + 4 * c + k];
    for (int c = 0; c < 8; c++)
        for (int k = 0; k < 4; k++)
            sum += x[c][k];
    return sum;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The most rounds a second of some bursts; each has at least that many. */
static double fastest(kernel *run, const float *array, size_t rounds,
                      double seconds)
{
    double best = 0;
    volatile float sink = 0;
    for (int burst = 0; burst < BURSTS; burst++) {
        const double began = now();
        double took = 0, done = 0;
        do {
            sink = sink + run(array, rounds);
            done += (double)rounds;
            took = now() - began;
        } while (took < seconds / BURSTS);
        best = fmax(best, took > 0 ? done / took : 0);
    }
    return best;
}

enum status machine_measure(size_t bytes, double seconds,
                            struct machine *machine, struct error *error)
{
    enum { ROUNDS = 100000 };
    if (bytes < LEAST_BYTES)
        return error_set(error, STATUS_INVALID,
                         "bytes: expected at least %d, got %zu",
                         (int)LEAST_BYTES, bytes);
    if (!(seconds > 0 && isfinite(seconds)))
        return error_set(error, STATUS_INVALID,
                         "seconds: expected a positive finite number, got"
                         " %g", seconds);
    const size_t rounds = bytes / LEAST_BYTES;
    float *array = malloc(bytes);
    if (array == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for an array of %zu bytes", bytes);
    for (size_t k = 0; k < bytes / sizeof *array; k++)
        array[k] = 1e-3f;
    const struct kernel_choice wide = widest();
    const double each = 2.0 * CHAINS;
    *machine = (struct machine){
        LEAST_BYTES * fastest(read_kernel, array, rounds, seconds),
        4 * each * fastest(build_kernel, array, ROUNDS, seconds),
        wide.lanes * each * fastest(wide.run, array, ROUNDS, seconds),
        wide.name
    };
    free(array);
    return STATUS_OK;
}
