#include <stdlib.h>
#include <time.h>
#include "cache_aware.h"
#include "cache_study.h"
#include "request.h"

struct cache_traffic cache_traffic(const struct cache_shape *shape,
                                   int batch, int context)
{
    const double row = 2.0 * shape->n_layers * shape->n_kv_heads
                       * shape->head_dim * sizeof (float) * batch;
    return (struct cache_traffic){row * context, row * context, row};
}

enum { REPEATS_MAX = 99 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare);
    return times[count / 2];
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status functional_step(const struct causal_lm *lm,
                                   const struct cache_aware_input *input,
                                   double *time, struct error *error)
{
    struct cache_aware_output output = {0};
    const double began = seconds();
    enum status status = cache_aware_forward(lm, input, &output, error);
    cache_aware_output_free(&output);
    *time = seconds() - began;
    return status;
}

static enum status in_place_step(struct request *request, const int32_t *ids,
                                 const int32_t *lengths, double *time,
                                 struct error *error)
{
    const float *logits;
    const double began = seconds();
    enum status status = request_feed(request, ids, 1, false, &logits, error);
    *time = seconds() - began;
    if (status == STATUS_OK)
        status = kv_cache_truncate(request_cache(request), lengths, error);
    return status;
}

static enum status repeat(const struct causal_lm *lm, struct request *request,
                          int32_t *room, int repeats,
                          struct cache_times *times, struct error *error)
{
    const struct kv_inputs past = kv_cache_inputs(request_cache(request));
    const int batch = kv_cache_batch(request_cache(request));
    const int32_t *ids = room;
    int32_t *positions = room + batch, *lengths = positions + batch;
    double functional[REPEATS_MAX], in_place[REPEATS_MAX];
    enum status status = STATUS_OK;
    for (int b = 0; b < batch; b++)
        positions[b] = lengths[b] = past.lengths[b];
    const struct cache_aware_input input = {
        .ids = ids, .positions = positions, .batch = batch, .tokens = 1,
        .past = past.past, .cache_lengths = past.lengths,
        .cache_start_positions = past.starts, .use_cache = true
    };
    for (int n = 0; n < repeats && status == STATUS_OK; n++) {
        status = functional_step(lm, &input, &functional[n], error);
        if (status == STATUS_OK)
            status = in_place_step(request, ids, lengths, &in_place[n], error);
    }
    if (status == STATUS_OK)
        *times = (struct cache_times){median(functional, repeats),
                                      median(in_place, repeats)};
    return status;
}

enum status cache_times_measure(const struct causal_lm *lm, int batch,
                                int context, int repeats,
                                struct cache_times *times,
                                struct error *error)
{
    struct request *request = NULL;
    if (repeats < 1 || repeats > REPEATS_MAX || context < 2)
        return error_set(error, STATUS_INVALID,
                         "repeats, context: expected 1 to %d and at least 2,"
                         " got %d and %d", REPEATS_MAX, repeats, context);
    enum status status = request_new(&request, lm, batch, context, 1, error);
    if (status != STATUS_OK)
        return status;
    const size_t rows = (size_t)batch, past = (size_t)context - 1;
    int32_t *room = calloc(rows, (past + 3) * sizeof *room);
    if (room == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "no memory for %d rows of %d positions", batch,
                           context);
    else {
        int32_t *positions = room + 3 * rows;
        for (size_t at = 0; at < rows * past; at++)
            positions[at] = (int32_t)(at % past);
        status = kv_cache_advance(request_cache(request), positions,
                                  context - 1, error);
        if (status == STATUS_OK)
            status = repeat(lm, request, room, repeats, times, error);
    }
    free(room);
    request_free(&request);
    return status;
}
