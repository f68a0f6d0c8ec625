#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include "kernels.h"
#include "phases.h"

struct bench_work {
    double linear_flops;       /* of products with weights */
    double attention_flops;    /* of scores and contexts behind the mask */
    double weight_bytes;       /* each weight once, as it is stored */
    double cache_bytes;        /* keys and values that were there before */
};

/* Of one call. Refuses what phase_work refuses. */
enum status bench_work(const struct ownership *ownership,
                       const struct phase *phase, enum matrix_type type,
                       struct bench_work *work, struct error *error);
/* Of a training step on such a call, floats, all logits: two operations for a
   multiply-add in a pass forward and two back. What a program computes anew
   is not counted. */
enum status bench_training_work(const struct ownership *ownership, int batch,
                                int tokens, struct bench_work *work,
                                struct error *error);

double bench_work_flops(const struct bench_work *work);
double bench_work_bytes(const struct bench_work *work);

#endif
