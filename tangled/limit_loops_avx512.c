#include "limit_loops.h"

enum { LANES = 16 };

typedef float lanes __attribute__((vector_size(4 * LANES), may_alias));

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE lanes lanes_at(const float *array)
{
    return *(const lanes *)array;
}

INLINE float lanes_sum(const lanes *vectors, int count)
{
    float sum = 0;
    for (int v = 0; v < count; v++)
        for (int k = 0; k < LANES; k++)
            sum += vectors[v][k];
    return sum;
}

/* array is aligned as a vector; streams is a constant. */
INLINE float read_streams(const float *array, size_t floats, int streams)
{
    enum { SUMS = 8 };
    const size_t far = floats / (size_t)streams;
    const int each = streams < 4 ? 64 / streams : 16;
    lanes sums[SUMS] = {{0}};
    for (size_t at = 0; at < far; at += (size_t)each)
        UNROLL for (int s = 0; s < streams; s++)
            UNROLL for (int k = 0; k < each; k += LANES)
                sums[(s * each + k) / LANES % SUMS] +=
                    lanes_at(array + (size_t)s * far + at + (size_t)k);
    return lanes_sum(sums, SUMS);
}

static float read_1(const float *array, size_t floats)
{
    return read_streams(array, floats, 1);
}

static float read_2(const float *array, size_t floats)
{
    return read_streams(array, floats, 2);
}

static float read_4(const float *array, size_t floats)
{
    return read_streams(array, floats, 4);
}

static float read_8(const float *array, size_t floats)
{
    return read_streams(array, floats, 8);
}

static float multiply(const float seeds[LIMIT_SEEDS], size_t rounds)
{
    const lanes factor = lanes_at(seeds), term = lanes_at(seeds + 16);
    lanes chains[LIMIT_CHAINS];
    for (int c = 0; c < LIMIT_CHAINS; c++)
        chains[c] = lanes_at(seeds + 16 * (c + 2));
    for (size_t r = 0; r < rounds; r++)
        UNROLL for (int c = 0; c < LIMIT_CHAINS; c++)
            chains[c] = chains[c] * factor + term;
    return lanes_sum(chains, LIMIT_CHAINS);
}

const struct limit_loops limit_loops_avx512 = {
    "avx512", LANES, {read_1, read_2, read_4, read_8}, multiply
};
