#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "int8_kv.h"
#include "int8_study.h"

struct ways {
    bool spare;
    struct request *whole, *floats, *codes;   /* codes is lent for steps */
    struct int8_kv *cache;
    int32_t *ids;                             /* [B] of one position */
    int32_t *starts, *zeros;                  /* [B], behind the ids */
    int8_t *row;                              /* [D] */
};

static void ways_end(struct ways *ways)
{
    request_free(&ways->whole);
    request_free(&ways->floats);
    request_free(&ways->codes);
    int8_kv_free(&ways->cache);
    free(ways->ids);
    free(ways->row);
}

static enum status start_at(const struct ways *ways, struct request *request,
                            struct error *error)
{
    struct kv_cache *cache = request_cache(request);
    return kv_cache_load(cache, kv_cache_storage(cache), ways->zeros,
                         ways->starts, error);
}

static enum status ways_begin(struct ways *ways, const struct causal_lm *lm,
                              const struct int8_texts *texts,
                              struct error *error)
{
    const int batch = texts->batch, tokens = texts->tokens;
    ways->spare = texts->spare;
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
    ways->row = calloc((size_t)lm->cache.head_dim, sizeof *ways->row);
    if (ways->ids == NULL || ways->row == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d ids", batch);
    ways->starts = ways->ids + batch;
    ways->zeros = ways->starts + batch;
    for (int b = 0; b < batch; b++)
        ways->starts[b] = texts->start;
    status = start_at(ways, ways->whole, error);
    if (status == STATUS_OK)
        status = start_at(ways, ways->floats, error);
    return status != STATUS_OK ? status
           : start_at(ways, ways->codes, error);
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

/* Row of slice s at a slot of a tensor [B,H,S,D]. */
static float *row_at(const struct tensor *tensor, int s, int slot)
{
    return tensor->data + ((size_t)s * (size_t)tensor->shape[2]
                           + (size_t)slot) * (size_t)tensor->shape[3];
}

static double mean_scale(const struct tensor *keys, int slot)
{
    const int slices = keys->shape[0] * keys->shape[1];
    double sum = 0;
    for (int s = 0; s < slices; s++)
        sum += int8_scale(row_at(keys, s, slot), keys->shape[3]);
    return sum / slices;
}

static void others_through_codes(const struct ways *ways, int slot)
{
    const struct past_key_values *storage =
        kv_cache_storage(request_cache(ways->codes));
    for (int k = 1; k < 2 * storage->n_layers; k++) {
        const struct layer_kv *layer = &storage->layers[k / 2];
        const struct tensor *tensor = k % 2 ? &layer->value : &layer->key;
        const int width = tensor->shape[3];
        for (int s = 0; s < tensor->shape[0] * tensor->shape[1]; s++) {
            float *row = row_at(tensor, s, slot);
            const float scale = int8_scale(row, width);
            int8_encode(row, width, scale, ways->row);
            int8_decode(ways->row, width, scale, row);
        }
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status coded(struct ways *ways, const float **codes,
                         struct error *error)
{
    const struct kv_cache *hand = request_cache(ways->codes);
    if (ways->spare) {
        const enum status status = request_feed(ways->codes, ways->ids, 1,
                                                true, codes, error);
        if (status == STATUS_OK)
            others_through_codes(ways, kv_cache_lengths(hand)[0] - 1);
        return status;
    }
    if (int8_kv_lengths(ways->cache)[0] == 0)
        return int8_kv_append(ways->cache, kv_cache_storage(
            request_cache(ways->floats)), NULL, ways->starts, 1, error);
    return int8_kv_feed(ways->cache, ways->codes, ways->ids, 1, true, codes,
                        error);
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
    if (status == STATUS_OK)
        status = coded(ways, codes, error);
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
    const struct kv_cache *kept = request_cache(ways->floats);
    loss->key_scale = mean_scale(&kv_cache_storage(kept)->layers[0].key,
                                 kv_cache_lengths(kept)[0] - 1);
    return STATUS_OK;
}

enum status int8_losses(const struct causal_lm *lm,
                        const struct int8_texts *texts,
                        struct int8_loss *losses, struct int8_times *times,
                        struct error *error)
{
    struct ways ways = {0};
    const float *whole;
    const int tokens = texts->tokens;
    *times = (struct int8_times){0, 0};
    enum status status = ways_begin(&ways, lm, texts, error);
    if (status == STATUS_OK)
        status = request_feed(ways.whole, texts->ids, tokens, false, &whole,
                              error);
    for (int t = 0; t < tokens && status == STATUS_OK; t++) {
        losses[t] = (struct int8_loss){.gap = INFINITY};
        for (int b = 0; b < texts->batch; b++)
            ways.ids[b] = texts->ids[(size_t)b * (size_t)tokens + (size_t)t];
        status = position(&ways, whole + (size_t)t * (size_t)lm->vocab_size,
                          lm->vocab_size, &losses[t], times, error);
    }
    ways_end(&ways);
    return status;
}
