#include "prefix_request.h"

enum status prefix_match_load(const struct prefix_match *match,
                              const struct cache_shape *shape, int capacity,
                              struct kv_cache **storage,
                              struct error *error)
{
    enum status status;
    if (match->cache_length == 0)
        return kv_cache_new(storage, shape, 1, capacity, error);
    status = kv_cache_from_past(storage, &match->past, &match->cache_length,
                                &match->cache_start_position, capacity, error);
    return status;
}

enum status prefix_runner_publish(const struct prefix_runner *runner,
                                  struct request *request,
                                  const int32_t *ids, int tokens,
                                  struct error *error)
{
    const struct kv_cache *storage = request_cache(request);
    const int32_t length = kv_cache_lengths(storage)[0];
    if (tokens > length)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at most %ld (the request's), got"
                         " %d", (long)length, tokens);
    const struct prefix_key key = {
        runner->namespace, kv_cache_starts(storage)[0], ids, tokens
    };
    return prefix_cache_store(runner->cache, &key, kv_cache_storage(storage),
                              error);
}

static enum status load_prefix(const struct prefix_runner *runner,
                               struct kv_cache *storage, const int32_t *ids,
                               int tokens, int *reused, struct error *error)
{
    struct prefix_match match = {0};
    const struct prefix_key limited = {
        runner->namespace, 0, ids, prefix_reusable(
            tokens, prefix_cache_options(runner->cache)->block_size)
    };
    enum status status = prefix_cache_lookup(runner->cache, &limited, &match,
                                             error);
    if (status == STATUS_OK && match.cache_length > 0)
        status = kv_cache_load(storage, &match.past, &match.cache_length,
                               &match.cache_start_position, error);
    *reused = match.cache_length;
    prefix_match_free(&match);
    return status;
}

enum status prefix_runner_feed(const struct prefix_runner *runner,
                               struct request *request, const int32_t *ids,
                               int tokens, const float **logits,
                               int *tokens_reused, struct error *error)
{
    struct kv_cache *storage = request_cache(request);
    int reused = 0;
    if (kv_cache_batch(storage) != 1 || kv_cache_lengths(storage)[0] != 0)
        return error_set(error, STATUS_INVALID,
                         "request: expected one row without tokens, got %d"
                         " (%ld tokens in the first)", kv_cache_batch(storage),
                         (long)kv_cache_lengths(storage)[0]);
    enum status status = load_prefix(runner, storage, ids, tokens, &reused,
                                     error);
    if (status == STATUS_OK)
        status = request_feed(request, ids + reused, tokens - reused, true,
                              logits, error);
    if (status == STATUS_OK)
        status = prefix_runner_publish(runner, request, ids, tokens, error);
    if (status == STATUS_OK)
        *tokens_reused = reused;
    else
        kv_cache_reset(storage);
    return status;
}
