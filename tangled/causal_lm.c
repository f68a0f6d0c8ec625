#include "causal_lm.h"
#include <limits.h>

struct gpt_config cache_shape_config(const struct cache_shape *shape)
{
    return (struct gpt_config){
        .n_layers = shape->n_layers,
        .n_heads = shape->n_kv_heads,
        .d_model = shape->n_kv_heads * shape->head_dim,
    };
}

static enum status token_check(const struct causal_lm *lm,
                               const int32_t *ids, const int32_t *positions,
                               int b, int t, struct error *error)
{
    if (ids[t] < 0 || ids[t] >= lm->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "ids[%d,%d]: expected 0 to %d, got %ld", b, t,
                         lm->vocab_size - 1, (long)ids[t]);
    if (t > 0 && positions[t] != (int64_t)positions[0] + t)
        return error_set(error, STATUS_INVALID,
                         "positions[%d,%d]: expected %lld, got %ld", b, t,
                         (long long)positions[0] + t, (long)positions[t]);
    if (positions[t] < 0 || positions[t] >= lm->context_length)
        return error_set(error, STATUS_INVALID,
                         "positions[%d,%d]: expected 0 to %d, got %ld", b, t,
                         lm->context_length - 1, (long)positions[t]);
    return STATUS_OK;
}

enum status tokens_check(const struct causal_lm *lm, const int32_t *ids,
                         const int32_t *positions, int batch, int tokens,
                         struct error *error)
{
    if (batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", batch);
    if (tokens < 1 || tokens > lm->context_length)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d", lm->context_length,
                         tokens);
    if (batch > INT_MAX / tokens)
        return error_set(error, STATUS_INVALID,
                         "batch: %d rows of %d tokens are too many", batch,
                         tokens);
    enum status status = STATUS_OK;
    for (int b = 0; b < batch; b++, ids += tokens, positions += tokens)
        for (int t = 0; t < tokens && status == STATUS_OK; t++)
            status = token_check(lm, ids, positions, b, t, error);
    return status;
}

static enum status lengths_check(const struct step *step,
                                 struct error *error)
{
    const int slots = past_key_values_length(step->storage);
    for (int b = 0; b < step->batch; b++) {
        const long length = step->lengths[b];
        const long first = step->positions[b * step->tokens];
        if (length < 0 || length > slots - step->tokens)
            return error_set(error, STATUS_INVALID,
                             "lengths[%d]: expected 0 to %d (%d slots less %d new"
                             " tokens), got %ld", b, slots - step->tokens, slots,
                             step->tokens, length);
        if (first < length)
            return error_set(error, STATUS_INVALID,
                             "positions[%d,0]: expected at least the length"
                             " %ld, got %ld", b, length, first);
    }
    return STATUS_OK;
}

enum status step_check(const struct causal_lm *lm, const struct step *step,
                       struct error *error)
{
    const char *missing = lm == NULL ? "lm"
                          : step == NULL ? "step"
                          : step->ids == NULL ? "ids"
                          : step->positions == NULL ? "positions"
                          : step->storage == NULL ? "storage"
                          : step->lengths == NULL ? "lengths"
                          : step->logits == NULL ? "logits" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    enum status status = tokens_check(lm, step->ids, step->positions,
                                      step->batch, step->tokens, error);
    if (status == STATUS_OK)
        status = past_key_values_check(step->storage, &shape, step->batch,
                                       error);
    if (status == STATUS_OK)
        status = lengths_check(step, error);
    return status;
}

enum status causal_lm_step(const struct causal_lm *lm,
                           const struct step *step, float *scratch,
                           size_t scratch_floats, struct error *error)
{
    enum status status = step_check(lm, step, error);
    if (status != STATUS_OK)
        return status;
    const size_t needed = lm->scratch_size(lm->model, step->batch, step->tokens,
                                           past_key_values_length(step->storage));
    if (scratch == NULL || scratch_floats < needed)
        return error_set(error, STATUS_INVALID,
                         "scratch: expected at least %zu floats, got %zu",
                         needed, scratch == NULL ? 0 : scratch_floats);
    lm->run(lm->model, step, scratch);
    return STATUS_OK;
}
