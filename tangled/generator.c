#include <math.h>
#include "generator.h"

uint32_t generator_next(struct generator *generator)
{
    const uint64_t old = generator->state;
    generator->state = old * 6364136223846793005u + generator->increment;
    const uint32_t word = (uint32_t)(((old >> 18) ^ old) >> 27);
    const unsigned turn = (unsigned)(old >> 59);
    return (word >> turn) | (word << (-turn & 31));
}

void generator_seed(struct generator *generator, uint64_t seed,
                    uint64_t stream)
{
    generator->state = 0;
    generator->increment = stream << 1 | 1;
    generator_next(generator);
    generator->state += seed;
    generator_next(generator);
}

double generator_uniform(struct generator *generator)
{
    return generator_next(generator) * 0x1p-32;
}

double generator_normal(struct generator *generator)
{
    const double full_turn = 6.283185307179586;
    const double radius = sqrt(-2 * log(1 - generator_uniform(generator)));
    return radius * cos(full_turn * generator_uniform(generator));
}
