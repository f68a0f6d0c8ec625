#ifndef LIMIT_LOOPS_H
#define LIMIT_LOOPS_H

#include <stddef.h>

enum {
    LIMIT_STREAMS = 4,      /* 1, 2, 4 and 8 */
    LIMIT_CHAINS = 12,
    LIMIT_BLOCK = 1024,     /* floats */
    LIMIT_SEEDS = 16 * (LIMIT_CHAINS + 2)
};

struct limit_loops {
    const char *name;       /* of the kernels with the same lanes */
    int lanes;
    /* The sum of an array, read at 1, 2, 4 or 8 places at once. floats is a
       multiple of LIMIT_BLOCK. */
    float (*read[LIMIT_STREAMS])(const float *array, size_t floats);
    /* rounds times LIMIT_CHAINS * lanes multiply-adds */
    float (*multiply)(const float seeds[LIMIT_SEEDS], size_t rounds);
};

extern const struct limit_loops limit_loops_avx512, limit_loops_avx2,
    limit_loops_base;

#endif
