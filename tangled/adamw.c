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

#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__
#define WIDER __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WIDER
#endif

WIDER
static void adamw_block(const struct adamw *adamw, double decay,
                        size_t count, float *weights, const float *gradients,
                        float *first, float *second)
{
    const double rate = adamw->learning_rate;
    const double beta1 = adamw->beta1, beta2 = adamw->beta2;
    double whole1 = 1 - pow(beta1, (double)adamw->step);
    double whole2 = 1 - pow(beta2, (double)adamw->step);
    const float old1 = (float)beta1, new1 = (float)(1 - beta1);
    const float old2 = (float)beta2, new2 = (float)(1 - beta2);
    const float pull = (float)(rate * decay), eps = (float)adamw->eps;
    const float step = (float)(rate / whole1), undo = (float)(1 / whole2);
    #pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const float g = gradients[i], w = weights[i];
        const float m = old1 * first[i] + new1 * g;
        const float v = old2 * second[i] + new2 * g * g;
        first[i] = m;
        second[i] = v;
        weights[i] = w - (pull * w + step * m / (sqrtf(v * undo) + eps));
    }
}

void adamw_floats(const struct adamw *adamw, double decay, size_t count,
                  float *weights, const float *gradients,
                  float *first, float *second)
{
    enum { BLOCK = 1 << 14 };
    #pragma omp parallel for if (count > 4 * BLOCK)
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t left = count - i;
        adamw_block(adamw, decay, left < BLOCK ? left : BLOCK, weights + i,
                    gradients + i, first + i, second + i);
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
