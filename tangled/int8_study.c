#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "int8_kv.h"
#include "int8_study.h"

struct ways {
    struct request *whole, *floats, *codes;   /* codes is lent for steps */
    struct int8_kv *cache;
    int32_t *ids;                             /* [B] of one position */
    int32_t *starts, *zeros;                  /* [B], behind the ids */
};

static void ways_end(struct ways *ways)
{
    request_free(&ways->whole);
    request_free(&ways->floats);
    request_free(&ways->codes);
    int8_kv_free(&ways->cache);
    free(ways->ids);
}

static enum status start_at(const struct ways *ways, struct request *request,
                            struct error *error)
{
    struct kv_cache *cache = request_cache(request);
    return kv_cache_load(cache, kv_cache_storage(cache), ways->zeros,
                         ways->starts, error);
}

static enum status ways_begin(struct ways *ways, const struct causal_lm *lm,
                              int batch, int tokens, int start,
                              struct error *error)
{
    enum status status = request_new(&ways->whole, lm, batch, tokens, tokens,
                                     error);
    if (status == STATUS_OK)
        status = request_new(&ways->floats, lm, batch, tokens, 1, error);
    if (status == STATUS_OK)
        status = request_new(&ways->codes, lm, batch, tokens, 1, error);
    if (status == STATUS_OK)
        status = int8_kv_new(&ways->cache, &lm->cache, batch, tokens, error);
    if (status != STATUS_OK)
        return status;
    ways->ids = calloc((size_t)batch, 3 * sizeof *ways->ids);
    if (ways->ids == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d ids",
                         batch);
    ways->starts = ways->ids + batch;
    ways->zeros = ways->starts + batch;
    for (int b = 0; b < batch; b++)
        ways->starts[b] = start;
    status = start_at(ways, ways->whole, error);
    return status != STATUS_OK ? status
           : start_at(ways, ways->floats, error);
}

static int greedy(const float *logits, int count, double *gap)
{
    int best = 0;
    for (int v = 1; v < count; v++)
        if (logits[v] > logits[best])
            best = v;
    *gap = INFINITY;
    for (int v = 0; v < count; v++)
        if (v != best)
            *gap = fmin(*gap, (double)logits[best] - logits[v]);
    return best;
}

static void compare(const float *whole, const float *floats,
                    const float *codes, int count, struct int8_loss *loss)
{
    double gap, other, square = 0;
    for (int v = 0; v < count; v++) {
        const double off = (double)codes[v] - floats[v];
        loss->floats = fmax(loss->floats, fabs((double)floats[v] - whole[v]));
        loss->codes = fmax(loss->codes, fabs(off));
        square += off * off;
    }
    loss->changed += greedy(floats, count, &gap)
                     != greedy(codes, count, &other);
    loss->gap = fmin(loss->gap, gap);
    loss->root_mean_square += square / count;   /* until the rows are done */
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status both(struct ways *ways, const float **floats,
                        const float **codes, struct int8_times *times,
                        struct error *error)
{
    const double began = seconds();
    enum status status = request_feed(ways->floats, ways->ids, 1, true,
                                      floats, error);
    const double between = seconds();
    *codes = *floats;
    if (status == STATUS_OK && int8_kv_lengths(ways->cache)[0] == 0)
        status = int8_kv_append(ways->cache, kv_cache_storage(
            request_cache(ways->floats)), NULL, ways->starts, 1, error);
    else if (status == STATUS_OK)
        status = int8_kv_feed(ways->cache, ways->codes, ways->ids, 1, true,
                              codes, error);
    times->floats += between - began;
    times->codes += seconds() - between;
    return status;
}

static enum status position(struct ways *ways, const float *whole,
                            int vocab_size, struct int8_loss *loss,
                            struct int8_times *times, struct error *error)
{
    const float *floats = NULL, *codes = NULL;
    const struct kv_cache *cache = request_cache(ways->whole);
    const size_t tokens = (size_t)kv_cache_capacity(cache);
    const int batch = kv_cache_batch(cache);
    const enum status status = both(ways, &floats, &codes, times, error);
    if (status != STATUS_OK)
        return status;
    for (int b = 0; b < batch; b++)
        compare(whole + (size_t)b * tokens * (size_t)vocab_size,
                floats + (size_t)b * (size_t)vocab_size,
                codes + (size_t)b * (size_t)vocab_size, vocab_size, loss);
    loss->root_mean_square = sqrt(loss->root_mean_square / batch);
    return STATUS_OK;
}

enum status int8_losses(const struct causal_lm *lm, const int32_t *ids,
                        int batch, int tokens, int start,
                        struct int8_loss *losses, struct int8_times *times,
                        struct error *error)
{
    struct ways ways = {0};
    const float *whole;
    *times = (struct int8_times){0, 0};
    enum status status = ways_begin(&ways, lm, batch, tokens,
                                    start, error);
    if (status == STATUS_OK)
        status = request_feed(ways.whole, ids, tokens, false, &whole, error);
    for (int t = 0; t < tokens && status == STATUS_OK; t++) {
        losses[t] = (struct int8_loss){.gap = INFINITY};
        for (int b = 0; b < batch; b++)
            ways.ids[b] = ids[(size_t)b * (size_t)tokens + (size_t)t];
        status = position(&ways, whole + (size_t)t * (size_t)lm->vocab_size,
                          lm->vocab_size, &losses[t], times, error);
    }
    ways_end(&ways);
    return status;
}
