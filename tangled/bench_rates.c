#include "bench_rates.h"
#include <string.h>

struct least {
    double seconds;
    bool memory;
};

static struct least least_of(const struct bench_work *work, double bytes,
                             double flops)
{
    const double reading = bench_work_bytes(work) / bytes;
    const double computing = bench_work_flops(work) / flops;
    const struct least limit = reading > computing
        ? (struct least){reading, true} : (struct least){computing, false};
    return limit;
}

static double part_by_round(const struct bench_result *result, int t,
                            const struct bench_machine_limits *limits)
{
    const struct bench_series *seconds = &result->seconds[t];
    struct samples parts = {0};
    for (int k = 0; k < seconds->count; k++) {
        const struct least least = least_of(&result->work, limits->bytes.value[k],
                                            limits->flops.value[k]);
        samples_add(&parts, least.seconds / seconds->value[k]);
    }
    return samples_median(&parts);
}

struct bench_rates bench_rates(const struct bench_result *result, int t,
                               const struct bench_machine_limits *limits)
{
    const struct bench_work *work = &result->work;
    const struct samples seconds = bench_series_samples(&result->seconds[t]);
    const struct samples bytes = bench_series_samples(&limits->bytes);
    const struct samples flops = bench_series_samples(&limits->flops);
    const struct least least = least_of(work, samples_quantile(&bytes, 1),
                                        samples_quantile(&flops, 1));
    const double median = samples_median(&seconds);
    return (struct bench_rates){
        .seconds = median, .spread = samples_spread(&seconds),
        .tokens = result->is.batch * result->is.tokens / median,
        .bytes = bench_work_bytes(work) / median,
        .flops = bench_work_flops(work) / median,
        .memory = least.memory, .fraction = least.seconds / median,
        .by_round = part_by_round(result, t, limits),
        .linear = least.memory ? 0 : least.seconds / median
            * work->linear_flops / bench_work_flops(work)
    };
}

const struct bench_result *bench_find(const struct bench_result *results,
                                      int count,
                                      const struct bench_case *like)
{
    for (int k = 0; k < count; k++) {
        const struct bench_case *is = &results[k].is;
        if (strcmp(is->what, like->what) == 0 && is->weights == like->weights
            && is->kernels == like->kernels && is->batch == like->batch
            && is->tokens == like->tokens && is->context == like->context)
            return &results[k];
    }
    return NULL;
}
