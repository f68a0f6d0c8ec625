#ifndef GENERATOR_H
#define GENERATOR_H
#include <stdint.h>

/* PCG32 (M. E. O'Neill 2014, XSH RR 64/32). All state is in the struct: a
   copy of it repeats the same numbers, on every platform. */
struct generator { uint64_t state, increment; };

/* Any seed and any stream will do; streams differ in their lower 63 bits. */
void generator_seed(struct generator *generator, uint64_t seed,
                    uint64_t stream);
uint32_t generator_next(struct generator *generator);
/* [0, 1) in steps of 2^-32; one draw. */
double generator_uniform(struct generator *generator);
/* Normal with mean 0 and variance 1; two draws, nothing kept between. */
double generator_normal(struct generator *generator);
#endif
