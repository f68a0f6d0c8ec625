#include "sampler.h"

#include <math.h>
#include <stdlib.h>

enum status sampler_check(const float *logits, int vocab_size,
                          struct error *error)
{
    int finite = 0;
    for (int id = 0; id < vocab_size; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY)
            return error_set(error, STATUS_INVALID,
                             "logits[%d]: expected a number, got %g", id,
                             (double)logits[id]);
        finite += logits[id] > -INFINITY;
    }
    if (finite == 0)
        return error_set(error, STATUS_INVALID,
                         "logits: expected a finite one among %d, got none",
                         vocab_size);
    return STATUS_OK;
}

int32_t sampler_greedy(const float *logits, int vocab_size)
{
    int32_t best = 0;
    for (int32_t id = 1; id < vocab_size; id++) {
        if (logits[id] > logits[best])
            best = id;
    }
    return best;
}

static double weight(const float *logits, int32_t id, float max,
                     double temperature)
{
    return exp(((double)logits[id] - (double)max) / temperature);
}

enum status sampler_sample(const float *logits, int vocab_size,
                           double temperature, struct generator *generator,
                           int32_t *id, struct error *error)
{
    if (!(temperature > 0) || isinf(temperature))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number > 0, got %g",
                         temperature);
    if (generator == NULL)
        return error_set(error, STATUS_INVALID,
                         "generator: sampling needs one, got none");
    enum status status = sampler_check(logits, vocab_size, error);
    if (status != STATUS_OK)
        return status;
    float max = logits[sampler_greedy(logits, vocab_size)];
    double total = 0;
    for (int32_t i = 0; i < vocab_size; i++)
        total += weight(logits, i, max, temperature);
    double target = generator_uniform(generator) * total;
    int32_t chosen = 0;
    double reached = weight(logits, 0, max, temperature);
    while (reached <= target && chosen + 1 < vocab_size)
        reached += weight(logits, ++chosen, max, temperature);
    *id = chosen;
    return STATUS_OK;
}
