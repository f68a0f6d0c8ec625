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

void adamw_step(struct adamw *adamw, struct parameters *parameters,
                const struct parameters *gradients)
{
    double rate = adamw->learning_rate, decay = adamw->weight_decay;
    double beta1 = adamw->beta1, beta2 = adamw->beta2;
    adamw->step++;
    double whole1 = 1 - pow(beta1, (double)adamw->step);
    double whole2 = 1 - pow(beta2, (double)adamw->step);
    for (size_t i = 0; i < parameters->size; i++) {
        double g = gradients->storage[i], w = parameters->storage[i];
        w *= 1 - rate * decay;
        double m = beta1 * adamw->first->storage[i] + (1 - beta1) * g;
        double v = beta2 * adamw->second->storage[i] + (1 - beta2) * g * g;
        adamw->first->storage[i] = (float)m;
        adamw->second->storage[i] = (float)v;
        double scale = sqrt(v / whole2) + adamw->eps;
        parameters->storage[i] = (float)(w - rate * (m / whole1) / scale);
    }
}
