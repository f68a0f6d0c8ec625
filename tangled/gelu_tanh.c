#include "gelu_tanh.h"
#include <math.h>
#include "config.h"
#include "gelu.h"
#include "layers_backward.h"

static const double root = 0.79788456080286536, cubic = 0.044715;

#include "kernels.h"

void gelu_tanh_forward(const float *in, size_t count, float *out)
{
    kernels_best()->activate(ACTIVATION_GELU_TANH, in, count, out);
}

void gelu_tanh_backward(const float *in, const float *d_out, size_t count,
                        float *d_in)
{
    for (size_t k = 0; k < count; k++) {
        const double x = in[k];
        const double twice = 2 * root * (x + cubic * x * x * x);
        const double twice_slope = 2 * root * (1 + 3 * cubic * x * x);
        const double share = 1 / (1 + exp(-twice));
        const double slope = share + x * share * (1 - share) * twice_slope;
        d_in[k] = (float)(slope * d_out[k]);
    }
}

void config_gelu_forward(const struct gpt_config *config, const float *in,
                         size_t count, float *out)
{
    (config->tanh_gelu ? gelu_tanh_forward : gelu_forward)(in, count, out);
}

void config_gelu_backward(const struct gpt_config *config, const float *in,
                          const float *d_out, size_t count, float *d_in)
{
    (config->tanh_gelu ? gelu_tanh_backward
                       : gelu_backward)(in, d_out, count, d_in);
}
