#include "prefix_runner.h"
#include <stdlib.h>
#include <string.h>

int prefix_reusable(int tokens, int block_size)
{
    int limit;
    limit = tokens < 1 ? 0 : (tokens - 1) / block_size * block_size;
    return limit;
}

static enum status runner_check(const struct prefix_runner *runner,
                                const int32_t *ids, int tokens,
                                struct error *error)
{
    const struct cache_shape *lm = &runner->lm->cache;
    const struct cache_shape *own =
        &prefix_cache_options(runner->cache)->shape;
    if (lm->n_layers != own->n_layers || lm->n_kv_heads != own->n_kv_heads
        || lm->head_dim != own->head_dim)
        return error_set(error, STATUS_INVALID,
                         "prefix cache: made for [%d,%d,%d] (layers, heads,"
                         " head_dim), the model has [%d,%d,%d]",
                         own->n_layers, own->n_kv_heads, own->head_dim,
                         lm->n_layers, lm->n_kv_heads, lm->head_dim);
    if (ids == NULL || tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d",
                         ids == NULL ? 0 : tokens);
    return STATUS_OK;
}

static enum status run_suffix(const struct prefix_runner *runner,
                              const struct prefix_key *key,
                              const struct prefix_match *match,
                              struct cache_aware_output *output,
                              struct error *error)
{
    const int reused = match->cache_length, suffix = key->tokens - reused;
    int32_t *positions = malloc((size_t)suffix * sizeof *positions);
    if (positions == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "prefix runner: no memory for %d positions", suffix);
    for (int t = 0; t < suffix; t++) {
        positions[t] = key->start + reused + t;
    }
    const bool hit = reused > 0;
    const struct cache_aware_input input = {
        .ids = key->ids + reused, .positions = positions,
        .batch = 1, .tokens = suffix,
        .past = hit ? &match->past : NULL,
        .cache_lengths = hit ? &match->cache_length : NULL,
        .cache_start_positions = hit ? &match->cache_start_position : NULL,
        .use_cache = true
    };
    enum status status = cache_aware_forward(runner->lm, &input, output, error);
    free(positions);
    return status;
}

void prefix_run_free(struct prefix_run *run)
{
    if (run == NULL)
        return;
    cache_aware_output_free(&run->output);
    *run = (struct prefix_run){0};
}

enum status prefix_runner_run(const struct prefix_runner *runner,
                              int32_t start, const int32_t *ids, int tokens,
                              struct prefix_run *run, struct error *error)
{
    const struct prefix_key key = {runner->namespace, start, ids, tokens};
    struct prefix_match match = {0};
    struct prefix_run made = {0};
    if (run->output.logits.data != NULL)
        return error_set(error, STATUS_INVALID,
                         "run: expected an empty struct, got one in use");
    enum status status = runner_check(runner, ids, tokens, error);
    struct prefix_key limited = key;
    limited.tokens = prefix_reusable(
        tokens, prefix_cache_options(runner->cache)->block_size);
    if (status == STATUS_OK)
        status = prefix_cache_lookup(runner->cache, &limited, &match, error);
    if (status == STATUS_OK)
        status = run_suffix(runner, &key, &match, &made.output, error);
    if (status == STATUS_OK)
        made.tokens_reused = match.cache_length;
    if (status == STATUS_OK)
        status = prefix_cache_store(runner->cache, &key,
                                    &made.output.past_key_values, error);
    prefix_match_free(&match);
    if (status == STATUS_OK)
        *run = made;
    else
        prefix_run_free(&made);
    return status;
}
