#include <stdlib.h>
#include <string.h>
#include "paged_runner.h"

struct paged_runner {
    struct causal_lm lm;
    struct paged_cache *cache;             /* borrowed */
    int batch, max_tokens;
    struct past_key_values rows;           /* [batch,H,capacity,D] */
    struct past_key_values recent;         /* [batch,H,max_tokens,D] */
    struct tensor logits;                  /* [batch,max_tokens,V] */
    size_t scratch_floats;
    float *scratch;
    int32_t *lengths, *starts;             /* [batch] */
    int32_t *positions;                    /* [batch,max_tokens] */
};

void paged_runner_free(struct paged_runner **runner)
{
    if (runner == NULL || *runner == NULL)
        return;
    past_key_values_free(&(*runner)->rows);
    past_key_values_free(&(*runner)->recent);
    tensor_free(&(*runner)->logits);
    free((*runner)->scratch);
    free((*runner)->lengths);
    free(*runner);
    *runner = NULL;
}

static enum status make_room(struct paged_runner *runner, int capacity,
                             struct error *error)
{
    const struct causal_lm *lm = &runner->lm;
    const struct gpt_config config = cache_shape_config(&lm->cache);
    const int batch = runner->batch, tokens = runner->max_tokens;
    enum status status = past_key_values_new(&runner->rows, &config, batch,
                                             capacity, error);
    if (status == STATUS_OK)
        status = past_key_values_new(&runner->recent, &config, batch, tokens,
                                     error);
    if (status == STATUS_OK)
        status = tensor_new(&runner->logits,
                            SHAPE(batch, tokens, lm->vocab_size), error);
    if (status != STATUS_OK)
        return status;
    runner->scratch_floats = lm->scratch_size(lm->model, batch, tokens,
                                              capacity);
    runner->scratch = calloc(runner->scratch_floats, sizeof (float));
    runner->lengths = calloc((size_t)batch, ((size_t)tokens + 2)
                             * sizeof *runner->lengths);
    if (runner->scratch == NULL || runner->lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for calls of %d rows of %d tokens",
                         batch, tokens);
    runner->starts = runner->lengths + batch;
    runner->positions = runner->starts + batch;
    return STATUS_OK;
}

enum status paged_runner_new(struct paged_runner **runner,
                             const struct causal_lm *lm,
                             struct paged_cache *cache, int batch,
                             int max_tokens, struct error *error)
{
    if (lm == NULL || cache == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         lm == NULL ? "lm" : "cache");
    const struct paged_sizes sizes = paged_cache_sizes(cache);
    const struct cache_shape shape = paged_cache_shape(cache);
    if (shape.n_layers != lm->cache.n_layers
        || shape.n_kv_heads != lm->cache.n_kv_heads
        || shape.head_dim != lm->cache.head_dim)
        return error_set(error, STATUS_INVALID,
                         "cache: expected %d layers [%d,%d], got %d [%d,%d]",
                         lm->cache.n_layers, lm->cache.n_kv_heads,
                         lm->cache.head_dim, shape.n_layers, shape.n_kv_heads,
                         shape.head_dim);
    if (batch < 1 || batch > sizes.sequences)
        return error_set(error, STATUS_INVALID, "batch: expected 1 to %d, got %d",
                         sizes.sequences, batch);
    if (max_tokens < 1 || max_tokens > sizes.capacity)
        return error_set(error, STATUS_INVALID,
                         "max_tokens: expected 1 to the capacity %d, got %d",
                         sizes.capacity, max_tokens);
    struct paged_runner *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a runner");
    *made = (struct paged_runner){.lm = *lm, .cache = cache, .batch = batch,
                                  .max_tokens = max_tokens};
    const enum status status = make_room(made, sizes.capacity, error);
    if (status == STATUS_OK)
        *runner = made;
    else
        paged_runner_free(&made);
    return status;
}

static enum status positions_follow(struct paged_runner *runner,
                                    const int *sequences, int batch,
                                    int tokens, struct error *error)
{
    const int context = runner->lm.context_length;
    int32_t *position = runner->positions;
    for (int b = 0; b < batch; b++) {
        const struct paged_sequence row =
            paged_cache_sequence(runner->cache, sequences[b]);
        if (row.start > context - tokens
            || row.length > context - tokens - row.start)
            return error_set(error, STATUS_INVALID,
                             "sequence %d: expected positions below %d, got"
                             " %d + %d + %d", sequences[b], context,
                             (int)row.start, row.length, tokens);
        for (int t = 0; t < tokens; t++)
            *position++ = row.start + row.length + t;
    }
    return STATUS_OK;
}

static void cut_to(struct past_key_values *pairs, int batch, int slots)
{
    for (int l = 0; l < pairs->n_layers; l++) {
        pairs->layers[l].key.shape[0] = batch;
        pairs->layers[l].key.shape[2] = slots;
        pairs->layers[l].value.shape[0] = batch;
        pairs->layers[l].value.shape[2] = slots;
    }
}

static int longest_of(const struct paged_runner *runner,
                      const int *sequences, int batch)
{
    int longest = 0;
    for (int b = 0; b < batch; b++) {
        const int length = paged_cache_sequence(runner->cache,
                                                sequences[b]).length;
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void take_tensor(const struct tensor *rows, const int32_t *lengths,
                        struct tensor *recent)
{
    const int heads = rows->shape[1], tokens = recent->shape[2];
    const size_t row = (size_t)rows->shape[3];
    const size_t floats = (size_t)tokens * row;
    for (int b = 0; b < rows->shape[0]; b++)
        for (int h = 0; h < heads; h++) {
            const size_t slice = (size_t)b * (size_t)heads + (size_t)h;
            float *to = recent->data + slice * floats;
            const size_t slot = slice * (size_t)rows->shape[2] + (size_t)lengths[b];
            memcpy(to, rows->data + slot * row, floats * sizeof *to);
        }
}

static void take_recent(struct paged_runner *runner)
{
    for (int l = 0; l < runner->rows.n_layers; l++) {
        struct layer_kv *recent = &runner->recent.layers[l];
        take_tensor(&runner->rows.layers[l].key, runner->lengths,
                    &recent->key);
        take_tensor(&runner->rows.layers[l].value, runner->lengths,
                    &recent->value);
    }
}

static enum status gather_and_step(struct paged_runner *runner,
                                   const int *sequences, int batch,
                                   const int32_t *ids, int tokens,
                                   bool last_only, struct error *error)
{
    cut_to(&runner->rows, batch,
           longest_of(runner, sequences, batch) + tokens);
    cut_to(&runner->recent, batch, tokens);
    enum status status = paged_cache_gather(runner->cache, sequences, batch,
                                            &runner->rows, runner->lengths,
                                            runner->starts, error);
    if (status != STATUS_OK)
        return status;
    const struct step step = {
        .ids = ids, .positions = runner->positions, .batch = batch,
        .tokens = tokens, .storage = &runner->rows,
        .lengths = runner->lengths, .last_only = last_only,
        .logits = runner->logits.data
    };
    return causal_lm_step(&runner->lm, &step, runner->scratch,
                          runner->scratch_floats, error);
}

enum status paged_runner_feed(struct paged_runner *runner,
                              const int *sequences, int batch,
                              const int32_t *ids, int tokens, bool last_only,
                              const float **logits, struct error *error)
{
    if (sequences == NULL || ids == NULL || logits == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         sequences == NULL ? "sequences"
                         : ids == NULL ? "ids" : "logits");
    if (batch < 1 || batch > runner->batch)
        return error_set(error, STATUS_INVALID, "batch: expected 1 to %d, got %d",
                         runner->batch, batch);
    if (tokens < 1 || tokens > runner->max_tokens)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d", runner->max_tokens,
                         tokens);
    enum status status = positions_follow(runner, sequences, batch, tokens,
                                          error);
    if (status == STATUS_OK)
        status = paged_cache_check(runner->cache, sequences, batch,
                                   runner->positions, tokens, error);
    if (status == STATUS_OK)
        status = gather_and_step(runner, sequences, batch, ids, tokens,
                                 last_only, error);
    if (status == STATUS_OK) {
        take_recent(runner);
        status = paged_cache_append(runner->cache, sequences, batch,
                                    &runner->recent, runner->positions,
                                    error);
    }
    if (status == STATUS_OK)
        *logits = runner->logits.data;
    return status;
}
