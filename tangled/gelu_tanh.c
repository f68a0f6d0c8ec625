#include "gelu_tanh.h"
#include <math.h>
#include "config.h"
#include "gelu.h"
#include "layers_backward.h"

#include "kernels.h"

void gelu_tanh_forward(const float *in, size_t count, float *out)
{
    kernels_best()->activate(ACTIVATION_GELU_TANH, in, count, out);
}

#include <string.h>

void gelu_tanh_backward(const float *in, const float *d_out, size_t count,
                        float *d_in)
{
    enum { BLOCK = 256 };
    for (size_t k = 0; k < count; k += BLOCK) {
        const size_t left = count - k, size = left < BLOCK ? left : BLOCK;
        float made[BLOCK] = {0};
        kernels_best()->activate_backward(ACTIVATION_GELU_TANH, in + k,
                                          d_out + k, size, made);
        memcpy(d_in + k, made, size * sizeof *made);
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
