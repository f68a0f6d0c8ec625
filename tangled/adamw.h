#ifndef ADAMW_H
#define ADAMW_H

#include "parameters.h"
#include <stdint.h>

struct adamw {
    double learning_rate;        /* may change from step to step */
    double beta1, beta2, eps;    /* 0.9, 0.95, 1e-8 */
    double weight_decay;
    int64_t step;                /* steps taken */
    struct parameters *first;    /* m, laid out as the parameters */
    struct parameters *second;   /* v */
};

/* Zero moments for a model of this config; the fields may be changed before
   the first step. Owned by the caller: adamw_free. Unchanged on error. */
enum status adamw_new(struct adamw *adamw, const struct gpt_config *config,
                      double learning_rate, double weight_decay,
                      struct error *error);
void adamw_free(struct adamw *adamw);    /* NULL-safe; twice is fine */
/* One step on every parameter; all three have the config of adamw_new. */
void adamw_step(struct adamw *adamw, struct parameters *parameters,
                const struct parameters *gradients);
/* The arithmetic of step adamw->step on count floats that lie anywhere, with
   a decay of their own. first and second are their moments; those of adamw
   are not looked at. */
void adamw_floats(const struct adamw *adamw, double decay, size_t count,
                  float *weights, const float *gradients,
                  float *first, float *second);

#endif
