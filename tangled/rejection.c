#include "rejection.h"
#include <math.h>
#include "sampler.h"

void token_probabilities(const float *logits, int vocab_size,
                         double temperature, double *p)
{
    const double max = (double)logits[sampler_greedy(logits, vocab_size)];
    double sum = 0;
    for (int id = 0; id < vocab_size; id++)
        sum += p[id] = exp(((double)logits[id] - max) / temperature);
    for (int id = 0; id < vocab_size; id++)
        p[id] /= sum;
}

int32_t weighted_draw(const double *weights, int vocab_size,
                      struct generator *generator)
{
    double sum = 0;
    for (int id = 0; id < vocab_size; id++)
        sum += weights[id];
    const double target = generator_uniform(generator) * sum;
    int32_t id = 0;
    double reached = weights[0];
    while (reached <= target && id + 1 < vocab_size)
        reached += weights[++id];
    return id;
}

int32_t rejection_answer(const double *p, double *q, int vocab_size,
                         int32_t proposal, struct generator *generator)
{
    if (generator_uniform(generator) * q[proposal] < p[proposal])
        return proposal;
    double left = 0;
    for (int id = 0; id < vocab_size; id++)
        left += q[id] = p[id] > q[id] ? p[id] - q[id] : 0;
    return weighted_draw(left > 0 ? q : p, vocab_size, generator);
}
