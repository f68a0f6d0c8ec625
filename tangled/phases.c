#include "phases.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "cache_bytes.h"

static enum status check(const struct ownership *ownership,
                         const struct phase *phase, struct error *error)
{
    const int batch = phase->batch, tokens = phase->tokens;
    if (batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", batch);
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    if (phase->past < 0)
        return error_set(error, STATUS_INVALID,
                         "past: expected at least 0, got %d", phase->past);
    if (tokens > ownership->context_length - phase->past)
        return error_set(error, STATUS_INVALID,
                         "past + tokens: expected at most context_length %d,"
                         " got %d + %d", ownership->context_length,
                         phase->past, tokens);
    if (batch > INT_MAX / tokens)
        return error_set(error, STATUS_INVALID,
                         "batch: expected batch * tokens to fit an int, got"
                         " %d * %d", batch, tokens);
    return STATUS_OK;
}

/* k and n are at least 1; macs is what one of them does. */
static bool enter(struct work *work, const char *name, const size_t shape[3],
                  size_t times, size_t macs)
{
    struct phase_product *product = &work->products[work->count++];
    size_t flops;
    snprintf(product->name, sizeof product->name, "%s", name);
    product->m = shape[0];
    product->k = shape[1];
    product->n = shape[2];
    product->times = times;
    if (!size_multiply(macs, times, &product->macs))
        return false;
    if (!size_multiply(product->macs, 2, &flops))
        return false;
    return size_add(work->flops, flops, &work->flops);
}

static void product_name(const char *pattern, char *name)
{
    const char *end = strrchr(pattern, '.'), *start = end;
    while (start > pattern && start[-1] != '.')
        start--;
    snprintf(name, PRODUCT_NAME_MAX, "%.*s", (int)(end - start), start);
}

static bool meet(const struct ownership *ownership,
                 const struct owned_row *row, const struct phase *phase,
                 struct work *work)
{
    const size_t width = row->columns > 0 ? (size_t)row->columns : 1;
    size_t floats, macs;
    if (row->module == MODULE_EMBEDDING || row->module == MODULE_POSITION)
        return true;
    if (!size_multiply((size_t)row->rows, width, &floats))
        return false;
    size_t read = 1, weights;
    if (owned_row_stars(row) > 0)
        read = (size_t)ownership->cache.n_layers;
    if (row->module == MODULE_EXPERTS)
        read *= (size_t)ownership->experts_per_token;
    if (!size_multiply(floats, read, &weights)
        || !size_multiply(weights, sizeof (float), &weights)
        || !size_add(work->weight_bytes, weights, &work->weight_bytes))
        return false;
    if (row->columns == 0)
        return true;
    size_t m = work->rows;
    if (row->module == MODULE_EXPERTS)
        m *= (size_t)ownership->experts_per_token;
    if (row->module == MODULE_HEAD && phase->last_only)
        m = (size_t)phase->batch;
    const size_t times = owned_row_stars(row) > 0
        ? (size_t)ownership->cache.n_layers : 1;
    char name[PRODUCT_NAME_MAX];
    product_name(row->pattern, name);
    return size_multiply(m, floats, &macs)
        && enter(work, name, (size_t[]){m, width, (size_t)row->rows}, times,
                 macs);
}

static bool attend(const struct ownership *ownership,
                   const struct phase *phase, struct work *work)
{
    const size_t t = (size_t)phase->tokens, p = (size_t)phase->past;
    const size_t d = (size_t)ownership->cache.head_dim;
    const size_t pairs = t * p + t * (t + 1) / 2;
    size_t macs, times;
    return size_multiply(pairs, d, &macs)
        && size_multiply((size_t)ownership->n_heads, (size_t)phase->batch,
                         &times)
        && size_multiply(times, (size_t)ownership->cache.n_layers, &times)
        && enter(work, "scores", (size_t[]){t, d, p + t}, times, macs)
        && enter(work, "context", (size_t[]){t, p + t, d}, times, macs);
}

static bool move(const struct ownership *ownership,
                 const struct phase *phase, struct work *work)
{
    const struct cache_shape *shape = &ownership->cache;
    if (!cache_bytes(shape, phase->batch, phase->past, sizeof (float),
                     &work->cache_read)
        || !cache_bytes(shape, phase->batch, phase->tokens, sizeof (float),
                        &work->cache_written))
        return false;
    const bool positions = !ownership->gated;
    const size_t asked = phase->last_only ? (size_t)phase->batch : work->rows;
    size_t in, out;
    if (!size_multiply(work->rows * (positions ? 2 : 1),
                       (size_t)ownership->d_model, &in)
        || !size_multiply(asked, (size_t)ownership->vocab_size, &out)
        || !size_add(in, out, &work->edge_bytes)
        || !size_multiply(work->edge_bytes, sizeof (float), &work->edge_bytes))
        return false;
    return size_add(work->weight_bytes, work->cache_read, &work->bytes)
        && size_add(work->bytes, work->cache_written, &work->bytes)
        && size_add(work->bytes, work->edge_bytes, &work->bytes);
}

enum status phase_work(const struct ownership *ownership,
                       const struct phase *phase, struct work *work,
                       struct error *error)
{
    const enum status status = check(ownership, phase, error);
    if (status != STATUS_OK)
        return status;
    struct work made = {
        .rows = (size_t)phase->batch * (size_t)phase->tokens
    };
    bool fits = true;
    for (int r = 0; r < ownership->count && fits; r++)
        fits = meet(ownership, &ownership->rows[r], phase, &made);
    if (!fits || !attend(ownership, phase, &made)
        || !move(ownership, phase, &made))
        return error_set(error, STATUS_INVALID,
                         "batch, tokens: the work of a call does not fit a"
                         " size_t");
    *work = made;
    return STATUS_OK;
}

static bool add(struct work *sum, const struct work *one)
{
    const size_t *const from[] = {
        &one->rows, &one->flops, &one->weight_bytes, &one->cache_read,
        &one->cache_written, &one->edge_bytes, &one->bytes
    };
    size_t *const to[] = {
        &sum->rows, &sum->flops, &sum->weight_bytes, &sum->cache_read,
        &sum->cache_written, &sum->edge_bytes, &sum->bytes
    };
    if (sum->count == 0) {
        *sum = *one;
        return true;
    }
    for (int p = 0; p < sum->count; p++) {
        sum->products[p].times += one->products[p].times;
        sum->products[p].macs += one->products[p].macs;
    }
    for (size_t k = 0; k < sizeof to / sizeof *to; k++)
        if (!size_add(*to[k], *from[k], to[k]))
            return false;
    return true;
}

enum status decode_work(const struct ownership *ownership, int batch,
                        int past, int steps, struct work *work,
                        struct error *error)
{
    struct work sum = {.count = 0};
    if (steps < 1)
        return error_set(error, STATUS_INVALID,
                         "steps: expected at least 1, got %d", steps);
    for (int k = 0; k < steps; k++) {
        struct work one;
        const struct phase phase = {batch, 1, past + k, true};
        const enum status status = phase_work(ownership, &phase, &one, error);
        if (status != STATUS_OK)
            return status;
        if (!add(&sum, &one))
            return error_set(error, STATUS_INVALID,
                             "steps: the work of %d steps does not fit a"
                             " size_t", steps);
    }
    *work = sum;
    return STATUS_OK;
}

double work_intensity(const struct work *work)
{
    return (double)work->flops / (double)work->bytes;
}

double work_seconds(const struct work *work, double flops, double bytes)
{
    const double computing = (double)work->flops / flops;
    const double moving = (double)work->bytes / bytes;
    return computing > moving ? computing : moving;
}
