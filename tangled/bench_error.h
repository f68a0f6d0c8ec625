#ifndef BENCH_ERROR_H
#define BENCH_ERROR_H

#include "bench_model.h"

struct bench_error {
    double logits;         /* root of the mean square of the floats' logits */
    double difference;     /* of what these weights' logits differ by */
};

/* Of all logits of one prompt of some tokens, on these kernels. The weights
   of the model, and F32, are there. Refuses what a request refuses. */
enum status bench_error_of(const struct bench_model *model,
                           enum bench_weights weights,
                           const struct kernels *kernels, int tokens,
                           struct bench_error *measured, struct error *error);

#endif
