#include "bench_work.h"
#include <string.h>

static double matrix_bytes(double outputs, double inputs,
                           enum matrix_type type)
{
    static const double each[] = {
        [MATRIX_F32] = 4, [MATRIX_BF16] = 2, [MATRIX_INT8] = 1
    };
    double bytes = 0;
    bytes = outputs * inputs * each[type];
    if (type == MATRIX_INT8)
        bytes += outputs * 4 * (double)(((int)inputs + GROUP - 1) / GROUP);
    return bytes;
}

static double weight_bytes(const struct ownership *ownership,
                           enum matrix_type type)
{
    double sum = 0;
    for (int r = 0; r < ownership->count; r++) {
        const struct owned_row *row = &ownership->rows[r];
        double copies = 1;
        if (row->module == MODULE_EMBEDDING || row->module == MODULE_POSITION)
            continue;
        if (owned_row_stars(row) > 0)
            copies = ownership->cache.n_layers;
        if (row->module == MODULE_EXPERTS)
            copies *= ownership->experts_per_token;
        sum += copies * (row->columns > 0
                         ? matrix_bytes(row->rows, row->columns, type)
                         : 4.0 * row->rows);
    }
    return sum;
}

enum status bench_work(const struct ownership *ownership,
                       const struct phase *phase, enum matrix_type type,
                       struct bench_work *work, struct error *error)
{
    struct work counted;
    struct bench_work made = {0};
    const enum status status = phase_work(ownership, phase, &counted, error);
    if (status != STATUS_OK)
        return status;
    for (int p = 0; p < counted.count; p++) {
        const struct phase_product *product = &counted.products[p];
        const bool attention = strcmp(product->name, "scores") == 0
            || strcmp(product->name, "context") == 0;
        *(attention ? &made.attention_flops : &made.linear_flops)
            += 2 * (double)product->macs;
    }
    made.weight_bytes = weight_bytes(ownership, type);
    made.cache_bytes = (double)counted.cache_read;
    *work = made;
    return STATUS_OK;
}

enum status bench_training_work(const struct ownership *ownership, int batch,
                                int tokens, struct bench_work *work,
                                struct error *error)
{
    const struct phase phase = {batch, tokens, 0, false};
    struct bench_work made;
    const enum status status = bench_work(ownership, &phase, MATRIX_F32,
                                          &made, error);
    if (status != STATUS_OK)
        return status;
    made.linear_flops *= 3;
    made.attention_flops *= 3;
    made.weight_bytes *= 3;
    *work = made;
    return STATUS_OK;
}

double bench_work_flops(const struct bench_work *work)
{
    return work->linear_flops + work->attention_flops;
}

double bench_work_bytes(const struct bench_work *work)
{
    return work->weight_bytes + work->cache_bytes;
}
