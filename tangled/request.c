#include <stdlib.h>
#include "request.h"

struct request {
    struct causal_lm lm;         /* whose model is the caller's */
    struct kv_cache *cache;
    int max_tokens;
    size_t scratch_floats;
    float *scratch;
    struct tensor logits;        /* [B,max_tokens,V] */
    int32_t *positions;          /* [B,max_tokens] */
    int32_t *columns;            /* [B,max_tokens] ids of a chunk */
};

struct kv_cache *request_cache(struct request *request)
{
    return request->cache;
}

void request_free(struct request **request)
{
    if (request == NULL || *request == NULL)
        return;
    kv_cache_free(&(*request)->cache);
    free((*request)->scratch);
    tensor_free(&(*request)->logits);
    free((*request)->positions);
    free((*request)->columns);
    free(*request);
    *request = NULL;
}

static enum status make_room(struct request *request, struct error *error)
{
    const int batch = kv_cache_batch(request->cache);
    const int tokens = request->max_tokens;
    request->scratch_floats = request->lm.scratch_size(
        request->lm.model, batch, tokens, kv_cache_capacity(request->cache));
    enum status status =
        tensor_new(&request->logits,
                   SHAPE(batch, tokens, request->lm.vocab_size), error);
    if (status != STATUS_OK)
        return status;
    request->scratch = calloc(request->scratch_floats,
                              sizeof *request->scratch);
    request->positions = calloc((size_t)batch, (size_t)tokens
                                * sizeof *request->positions);
    if (request->scratch == NULL || request->positions == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for calls of %d rows of %d tokens", batch,
                         tokens);
    request->columns = calloc((size_t)batch, (size_t)tokens
                              * sizeof *request->columns);
    if (request->columns == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for the ids of %d rows of %d tokens", batch,
                         tokens);
    return STATUS_OK;
}

enum status request_new(struct request **request, const struct causal_lm *lm,
                        int batch, int capacity, int max_tokens,
                        struct error *error)
{
    if (lm == NULL)
        return error_set(error, STATUS_INVALID, "lm: is NULL");
    if (max_tokens < 1 || max_tokens > capacity)
        return error_set(error, STATUS_INVALID,
                         "max_tokens: expected 1 to the capacity %d, got %d",
                         capacity, max_tokens);
    struct request *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a request");
    made->lm = *lm;
    made->max_tokens = max_tokens;
    enum status status = kv_cache_new(&made->cache, &lm->cache, batch,
                                      capacity, error);
    if (status == STATUS_OK)
        status = make_room(made, error);
    if (status == STATUS_OK)
        *request = made;
    else
        request_free(&made);
    return status;
}

static enum status positions_follow(struct request *request, int tokens,
                                    struct error *error)
{
    const int context = request->lm.context_length;
    const int32_t *lengths = kv_cache_lengths(request->cache);
    const int32_t *starts = kv_cache_starts(request->cache);
    int32_t *position = request->positions;
    for (int b = 0; b < kv_cache_batch(request->cache); b++) {
        if (starts[b] > context - tokens || lengths[b] > context - tokens - starts[b])
            return error_set(error, STATUS_INVALID,
                             "row %d: expected positions below %d, got %d + %d + %d",
                             b, context, (int)starts[b], (int)lengths[b], tokens);
        for (int t = 0; t < tokens; t++, position++) {
            *position = starts[b] + lengths[b] + t;
        }
    }
    return STATUS_OK;
}

static enum status step_in_place(struct request *request, const int32_t *ids,
                                 int tokens, bool last_only,
                                 struct error *error)
{
    const struct step step = {
        .ids = ids, .positions = request->positions,
        .batch = kv_cache_batch(request->cache), .tokens = tokens,
        .storage = kv_cache_storage(request->cache),
        .lengths = kv_cache_lengths(request->cache),
        .last_only = last_only, .logits = request->logits.data
    };
    return causal_lm_step(&request->lm, &step, request->scratch,
                          request->scratch_floats, error);
}

enum status request_feed(struct request *request, const int32_t *ids,
                         int tokens, bool last_only, const float **logits,
                         struct error *error)
{
    if (ids == NULL || logits == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         ids == NULL ? "ids" : "logits");
    if (tokens < 1 || tokens > request->max_tokens)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d", request->max_tokens,
                         tokens);
    enum status status = positions_follow(request, tokens, error);
    if (status == STATUS_OK)
        status = step_in_place(request, ids, tokens, last_only, error);
    if (status == STATUS_OK)
        status = kv_cache_advance(request->cache, request->positions, tokens,
                                  error);
    if (status == STATUS_OK)
        *logits = request->logits.data;
    return status;
}


const struct causal_lm *request_model(const struct request *request)
{
    return &request->lm;
}

int request_max_tokens(const struct request *request)
{
    return request->max_tokens;
}

int32_t *request_columns(struct request *request)
{
    return request->columns;
}
