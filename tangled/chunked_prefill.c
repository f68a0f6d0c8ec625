#include <stdlib.h>
#include <string.h>
#include "chunked_prefill.h"

int prefill_calls(int tokens, int chunk_size)
{
    return (tokens - 1) / chunk_size + 1;
}

struct prefill {
    const struct causal_lm *lm;
    const struct cache_aware_input *whole;
    int chunk_size;                   /* C <= T */
    int32_t *ids, *positions;         /* [B,C] the columns of a chunk */
    struct cache_aware_output last;   /* the cache behind the chunks so far */
    struct tensor logits;             /* [B,T,V] theirs, zeros behind */
};

static enum status make_room(struct prefill *prefill, struct error *error)
{
    const int batch = prefill->whole->batch;
    const size_t room = (size_t)batch * (size_t)prefill->chunk_size;
    prefill->ids = calloc(room, sizeof *prefill->ids);
    prefill->positions = calloc(room, sizeof *prefill->positions);
    if (prefill->ids == NULL || prefill->positions == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "chunk_size: no memory for chunks of [%d,%d]", batch,
                         prefill->chunk_size);
    return tensor_new(&prefill->logits, SHAPE(batch, prefill->whole->tokens,
                                              prefill->lm->vocab_size),
                      error);
}

static enum status run_chunk(struct prefill *prefill, int at,
                             struct error *error)
{
    const struct cache_aware_input *whole = prefill->whole;
    const int left = whole->tokens - at;
    const int count = left < prefill->chunk_size ? left : prefill->chunk_size;
    for (int b = 0; b < whole->batch; b++) {
        memcpy(prefill->ids + b * count, whole->ids + b * whole->tokens + at,
               (size_t)count * sizeof *prefill->ids);
    }
    struct cache_aware_input input = *whole;
    input.ids = prefill->ids;
    input.positions = prefill->positions;
    input.tokens = count;
    input.use_cache = true;
    for (int b = 0; b < whole->batch; b++)
        memcpy(prefill->positions + b * count,
               whole->positions + b * whole->tokens + at,
               (size_t)count * sizeof *prefill->positions);
    if (at > 0) {
        input.past = &prefill->last.past_key_values;
        input.cache_lengths = prefill->last.cache_lengths;
        input.cache_start_positions = prefill->last.cache_start_positions;
    }
    struct cache_aware_output output = {0};
    enum status status = cache_aware_forward(prefill->lm, &input, &output,
                                             error);
    if (status != STATUS_OK)
        return status;
    for (int b = 0; b < whole->batch; b++) {
        const size_t width = (size_t)prefill->lm->vocab_size;
        memcpy(prefill->logits.data
                   + ((size_t)b * (size_t)whole->tokens + (size_t)at) * width,
               output.logits.data + (size_t)b * (size_t)count * width,
               (size_t)count * width * sizeof (float));
    }
    tensor_free(&output.logits);
    cache_aware_output_free(&prefill->last);
    prefill->last = output;
    return STATUS_OK;
}

static enum status prompt_check(const struct causal_lm *lm,
                                const struct cache_aware_input *input,
                                int chunk_size,
                                const struct cache_aware_output *output,
                                struct error *error)
{
    const char *missing = lm == NULL ? "lm"
                          : input == NULL ? "input"
                          : output == NULL ? "output"
                          : input->ids == NULL ? "ids"
                          : input->positions == NULL ? "positions" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (output->logits.data != NULL || output->past_key_values.layers != NULL
        || output->cache_lengths != NULL
        || output->cache_start_positions != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct");
    if (chunk_size < 1)
        return error_set(error, STATUS_INVALID,
                         "chunk_size: expected at least 1, got %d", chunk_size);
    return tokens_check(lm, input->ids, input->positions, input->batch,
                        input->tokens, error);
}

enum status chunked_prefill(const struct causal_lm *lm,
                            const struct cache_aware_input *input,
                            int chunk_size,
                            struct cache_aware_output *output,
                            struct error *error)
{
    enum status status = prompt_check(lm, input, chunk_size, output, error);
    if (status != STATUS_OK)
        return status;
    struct prefill prefill = {.lm = lm, .whole = input};
    prefill.chunk_size = chunk_size < input->tokens ? chunk_size
                                                    : input->tokens;
    status = make_room(&prefill, error);
    for (int at = 0; status == STATUS_OK && at < input->tokens;
         at += prefill.chunk_size)
        status = run_chunk(&prefill, at, error);
    if (status == STATUS_OK) {
        if (input->use_cache) {
            *output = prefill.last;
            prefill.last = (struct cache_aware_output){0};
        }
        output->logits = prefill.logits;
        prefill.logits = (struct tensor){0};
    }
    free(prefill.ids);
    free(prefill.positions);
    tensor_free(&prefill.logits);
    cache_aware_output_free(&prefill.last);
    return status;
}

static enum status row_check(struct request *request, const int32_t *ids,
                             int b, int tokens, struct error *error)
{
    const struct causal_lm *lm = request_model(request);
    const struct kv_cache *cache = request_cache(request);
    const int length = kv_cache_lengths(cache)[b];
    const int start = kv_cache_starts(cache)[b];
    const int slots = kv_cache_capacity(cache) - length;
    const int places = lm->context_length - start - length;
    if (tokens > slots || tokens > places)
        return error_set(error, STATUS_INVALID,
                         "tokens: row %d has %d slots and %d positions left,"
                         " got %d", b, slots, places > 0 ? places : 0,
                         tokens);
    for (int t = 0; t < tokens; t++)
        if (ids[t] < 0 || ids[t] >= lm->vocab_size)
            return error_set(error, STATUS_INVALID,
                             "ids[%d,%d]: expected 0 to %d, got %ld", b, t,
                             lm->vocab_size - 1, (long)ids[t]);
    return STATUS_OK;
}

static enum status request_check(struct request *request, const int32_t *ids,
                                 int tokens, int chunk_size,
                                 const float **logits, struct error *error)
{
    const char *missing = request == NULL ? "request"
                          : ids == NULL ? "ids"
                          : logits == NULL ? "logits" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    const int most = request_max_tokens(request);
    if (chunk_size < 1 || (chunk_size > most && tokens > most))
        return error_set(error, STATUS_INVALID,
                         "chunk_size: expected 1 to %d, got %d", most,
                         chunk_size);
    enum status status = STATUS_OK;
    const int batch = kv_cache_batch(request_cache(request));
    for (int b = 0; b < batch && status == STATUS_OK; b++)
        status = row_check(request, ids + (size_t)b * (size_t)tokens, b,
                           tokens, error);
    return status;
}

enum status request_prefill(struct request *request, const int32_t *ids,
                            int tokens, int chunk_size, const float **logits,
                            struct error *error)
{
    enum status status = request_check(request, ids, tokens, chunk_size, logits,
                                       error);
    if (status != STATUS_OK)
        return status;
    const int batch = kv_cache_batch(request_cache(request));
    int32_t *columns = request_columns(request);
    int count = chunk_size;
    for (int at = 0; at < tokens && status == STATUS_OK; at += count) {
        count = count < tokens - at ? count : tokens - at;
        for (int b = 0; b < batch; b++)
            memcpy(columns + (size_t)b * (size_t)count,
                   ids + (size_t)b * (size_t)tokens + at,
                   (size_t)count * sizeof *columns);
        status = request_feed(request, columns, count, true, logits, error);
    }
    return status;
}
