#include "bench_error.h"
#include <math.h>
#include <stdlib.h>
#include "request.h"

static enum status logits_of(const struct bench_model *model,
                             enum bench_weights weights,
                             const struct kernels *kernels, int tokens,
                             float **copy, struct error *error)
{
    const struct on_kernels on = {bench_model_stack(model, weights), kernels};
    const struct causal_lm lm = on_kernels_causal_lm(&on);
    const size_t count = (size_t)tokens * (size_t)lm.vocab_size;
    struct request *request = NULL;
    const float *logits;
    enum status status = request_new(&request, &lm, 1, tokens, tokens, error);
    if (status != STATUS_OK)
        return status;
    int32_t *ids = request_columns(request);
    for (int t = 0; t < tokens; t++)
        ids[t] = (int32_t)((5 * (int64_t)t + 3) % lm.vocab_size);
    status = request_feed(request, ids, tokens, false, &logits, error);
    float *made = malloc(count * sizeof *made);
    if (status == STATUS_OK && made == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for logits");
    for (size_t k = 0; k < count && status == STATUS_OK; k++)
        made[k] = logits[k];
    request_free(&request);
    if (status == STATUS_OK)
        *copy = made;
    else
        free(made);
    return status;
}

static struct bench_error compare(const float *floats, const float *other,
                                  size_t count)
{
    double square = 0, off = 0;
    for (size_t k = 0; k < count; k++) {
        square += (double)floats[k] * floats[k];
        const double difference = (double)other[k] - floats[k];
        off += difference * difference;
    }
    return (struct bench_error){sqrt(square / (double)count),
                                sqrt(off / (double)count)};
}

enum status bench_error_of(const struct bench_model *model,
                           enum bench_weights weights,
                           const struct kernels *kernels, int tokens,
                           struct bench_error *measured, struct error *error)
{
    float *floats = NULL, *other = NULL;
    enum status status = logits_of(model, WEIGHTS_F32, kernels, tokens,
                                   &floats, error);
    if (status == STATUS_OK)
        status = logits_of(model, weights, kernels, tokens, &other, error);
    if (status == STATUS_OK)
        *measured = compare(floats, other,
                            (size_t)tokens * (size_t)model->rows.vocab_size);
    free(floats);
    free(other);
    return status;
}
