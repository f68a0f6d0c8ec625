#include <stdlib.h>
#include <time.h>
#include "generator.h"
#include "page_study.h"
#include "paged_cache.h"

static enum status append_zeros(struct paged_cache *cache, int sequence,
                                int tokens, struct error *error)
{
    const struct cache_shape shape = paged_cache_shape(cache);
    const struct gpt_config config = cache_shape_config(&shape);
    struct past_key_values zeros = {0};
    int32_t *positions = calloc((size_t)tokens, sizeof *positions);
    const int from = paged_cache_sequence(cache, sequence).length;
    enum status status = positions != NULL
        ? past_key_values_new(&zeros, &config, 1, tokens, error)
        : error_set(error, STATUS_NO_MEMORY, "no memory for %d positions",
                    tokens);
    if (status == STATUS_OK) {
        for (int t = 0; t < tokens; t++)
            positions[t] = from + t;
        status = paged_cache_append(cache, &sequence, 1, &zeros, positions,
                                    error);
    }
    past_key_values_free(&zeros);
    free(positions);
    return status;
}

enum status page_waste_measure(int block_size, int sequences, int longest,
                               uint64_t seed, struct page_waste *waste,
                               struct error *error)
{
    const struct cache_shape shape = {1, 1, 1};
    struct paged_cache *cache = NULL;
    struct generator generator;
    double total = 0;
    int64_t enough = 0;
    if (block_size > 0 && longest > 0 && sequences > 0)
        enough = ((int64_t)longest + block_size - 1) / block_size * sequences;
    const int blocks = enough <= INT32_MAX ? (int)enough : 0;
    enum status status = paged_cache_new(
        &cache, &shape, &(struct paged_sizes){block_size, blocks, sequences,
                                              longest}, error);
    generator_seed(&generator, seed, 0);
    for (int n = 0; status == STATUS_OK && n < sequences; n++) {
        const int tokens = 1 + (int)(generator_uniform(&generator) * longest);
        int sequence = 0;
        status = paged_cache_open(cache, &sequence, error);
        if (status == STATUS_OK)
            status = append_zeros(cache, sequence, tokens, error);
        total += tokens;
    }
    if (status == STATUS_OK) {
        const int used = blocks - block_pool_available(
                                      paged_cache_pool(cache));
        *waste = (struct page_waste){total, used,
                                     (double)used * block_size - total,
                                     sequences * (block_size - 1) / 2.0};
    }
    paged_cache_free(&cache);
    return status;
}

enum { REPEATS_MAX = 99 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static enum status grow_in_turns(struct paged_cache *cache, int tokens,
                                 struct error *error)
{
    const int size = paged_cache_sizes(cache).block_size;
    int texts[2] = {0, 0};
    enum status status = paged_cache_open(cache, &texts[0], error);
    if (status == STATUS_OK)
        status = paged_cache_open(cache, &texts[1], error);
    for (int from = 0; status == STATUS_OK && from < tokens;) {
        const int count = tokens - from < size ? tokens - from : size;
        for (int k = 0; k < 2 && status == STATUS_OK; k++)
            status = append_zeros(cache, texts[k], count, error);
        from += count;
    }
    return status;
}

static enum status gather_times(const struct paged_cache *cache, int tokens,
                                int repeats, double *seconds,
                                struct error *error)
{
    const struct cache_shape shape = paged_cache_shape(cache);
    const struct gpt_config config = cache_shape_config(&shape);
    struct past_key_values rows = {0};
    double times[REPEATS_MAX];
    const int first = 0;
    int32_t length, start;
    enum status status = past_key_values_new(&rows, &config, 1, tokens,
                                             error);
    for (int n = 0; status == STATUS_OK && n < repeats; n++) {
        times[n] = now();
        status = paged_cache_gather(cache, &first, 1, &rows, &length, &start,
                                    error);
        times[n] = now() - times[n];
    }
    if (status == STATUS_OK) {
        qsort(times, (size_t)repeats, sizeof *times, compare);
        *seconds = times[repeats / 2];
    }
    past_key_values_free(&rows);
    return status;
}

enum status page_gather_measure(const struct cache_shape *shape,
                                int block_size, int tokens, int repeats,
                                double *seconds, struct error *error)
{
    struct paged_cache *cache = NULL;
    int64_t blocks = 0;
    if (repeats < 1 || repeats > REPEATS_MAX)
        return error_set(error, STATUS_INVALID,
                         "repeats: expected 1 to %d, got %d", REPEATS_MAX,
                         repeats);
    if (block_size > 0 && tokens > 0)
        blocks = 2 * (((int64_t)tokens + block_size - 1) / block_size);
    enum status status = paged_cache_new(
        &cache, shape, &(struct paged_sizes){
            block_size, blocks <= INT32_MAX ? (int)blocks : 0, 2, tokens},
        error);
    if (status == STATUS_OK)
        status = grow_in_turns(cache, tokens, error);
    if (status == STATUS_OK)
        status = gather_times(cache, tokens, repeats, seconds, error);
    paged_cache_free(&cache);
    return status;
}
