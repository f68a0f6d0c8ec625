#include "chunked_prefill.h"
#include "decoder.h"

static enum status prefill(void *state, const int32_t *ids, int tokens,
                           const float **logits, struct error *error)
{
    struct request *request = state;
    kv_cache_reset(request_cache(request));
    return request_prefill(request, ids, tokens, request_max_tokens(request),
                           logits, error);
}

static enum status decode_step(void *state, int32_t id, int position,
                               const float **logits, struct error *error)
{
    struct request *request = state;
    struct kv_cache *cache = request_cache(request);
    const int next = kv_cache_starts(cache)[0] + kv_cache_lengths(cache)[0];
    if (position != next)
        return error_set(error, STATUS_INVALID,
                         "position: expected %d, got %d", next, position);
    return request_feed(request, &id, 1, true, logits, error);
}

static struct kv_inputs view(void *state)
{
    return kv_cache_inputs(request_cache(state));
}

enum status request_decoder(struct request *request, struct decoder *decoder,
                            struct error *error)
{
    if (request == NULL || decoder == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         request == NULL ? "request" : "decoder");
    const int batch = kv_cache_batch(request_cache(request));
    if (batch != 1)
        return error_set(error, STATUS_INVALID, "batch: expected 1, got %d",
                         batch);
    const struct causal_lm *lm = request_model(request);
    const int capacity = kv_cache_capacity(request_cache(request));
    *decoder = (struct decoder){
        .state = request, .vocab_size = lm->vocab_size,
        .room = capacity < lm->context_length ? capacity
                                              : lm->context_length,
        .prefill = prefill, .decode_step = decode_step, .cache = view
    };
    return STATUS_OK;
}
