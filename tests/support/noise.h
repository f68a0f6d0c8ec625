/* Made-up numbers for the suites, from a generator that is not the one under
   test. They depend on the harness's seed, so that no attempt has seen them
   before; equal seeds give equal numbers everywhere. */
#ifndef NOISE_H
#define NOISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "support/harness.h"

/* The output function of SplitMix64 (Steele, Lea and Flood, 2014): one to
   one, and every bit of x reaches every bit of the result. */
static inline uint64_t noise_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A state for noise_next: a stream of its own for each number. */
static inline uint64_t noise_start(unsigned stream)
{
    return noise_mix(noise_mix(harness_seed()) + stream);
}

/* 64 bits */
static inline uint64_t noise_next(uint64_t *state)
{
    return noise_mix(*state += 0x9e3779b97f4a7c15u);
}

/* 24 bits */
static inline uint32_t noise_bits(uint64_t *state)
{
    return (uint32_t)(noise_next(state) >> 40);
}

/* A float of [-1, 1), exact in a double. */
static inline float noise(uint64_t *state)
{
    return (float)noise_bits(state) / 8388608.0f - 1.0f;
}

/* A whole number of 0 … count-1; count is at most 2^24. */
static inline int noise_below(uint64_t *state, int count)
{
    return (int)((uint64_t)noise_bits(state) * (uint64_t)count >> 24);
}

static inline void noise_floats(uint64_t *state, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = noise(state);
}

/* The numbers 0 … count-1 in some order. */
static inline void noise_order(uint64_t *state, int count, int32_t *out)
{
    for (int k = 0; k < count; k++) {
        const int at = noise_below(state, k + 1);
        out[k] = out[at];
        out[at] = k;
    }
}

/* The floats 1 … count in some order: no two are alike, and a copy that
   lands in another place shows. */
static inline void noise_distinct(uint64_t *state, int count, float *out)
{
    for (int k = 0; k < count; k++) {
        const int at = noise_below(state, k + 1);
        out[k] = out[at];
        out[at] = (float)(k + 1);
    }
}

/* Token ids below vocab_size [rows,tokens]: no id follows itself, and two
   rows do not have the same id in the same place. rows < vocab_size - 1. */
static inline void noise_ids(uint64_t *state, int vocab_size, int rows,
                             int tokens, int32_t *ids)
{
    for (int at = 0; at < rows * tokens; at++) {
        bool again = true;
        while (again) {
            ids[at] = noise_below(state, vocab_size);
            again = at % tokens > 0 && ids[at] == ids[at - 1];
            for (int above = at - tokens; above >= 0; above -= tokens)
                again = again || ids[at] == ids[above];
        }
    }
}

#endif
