#include "adamw.h"
#include <math.h>
#include <stddef.h>

enum status adamw_new(struct adamw *adamw, const struct gpt_config *config,
                      double learning_rate, double weight_decay,
                      struct error *error)
{
    struct adamw made = { .learning_rate = learning_rate, .beta1 = 0.9,
                          .beta2 = 0.95, .eps = 1e-8,
                          .weight_decay = weight_decay };
    enum status status = parameters_new(&made.first, config, error);
    if (status == STATUS_OK)
        status = parameters_new(&made.second, config, error);
    if (status == STATUS_OK)
        *adamw = made;
    else
        adamw_free(&made);
    return status;
}

void adamw_free(struct adamw *adamw)
{
    if (adamw == NULL)
        return;
    parameters_free(&adamw->first);
    parameters_free(&adamw->second);
    *adamw = (struct adamw){ 0 };
}

void adamw_floats(const struct adamw *adamw, double decay, size_t count,
                  float *weights, const float *gradients,
                  float *first, float *second)
{
    double rate = adamw->learning_rate;
    double beta1 = adamw->beta1, beta2 = adamw->beta2;
    double whole1 = 1 - pow(beta1, (double)adamw->step);
    double whole2 = 1 - pow(beta2, (double)adamw->step);
    for (size_t i = 0; i < count; i++) {
        double g = gradients[i], w = weights[i];
        w *= 1 - rate * decay;
        double m = beta1 * first[i] + (1 - beta1) * g;
        double v = beta2 * second[i] + (1 - beta2) * g * g;
        first[i] = (float)m;
        second[i] = (float)v;
        double scale = sqrt(v / whole2) + adamw->eps;
        weights[i] = (float)(w - rate * (m / whole1) / scale);
    }
}

void adamw_step(struct adamw *adamw, struct parameters *parameters,
                const struct parameters *gradients)
{
    adamw->step++;
    adamw_floats(adamw, adamw->weight_decay, parameters->size,
                 parameters->storage, gradients->storage,
                 adamw->first->storage, adamw->second->storage);
}
