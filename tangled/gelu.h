#ifndef GELU_H
#define GELU_H

#include <stddef.h>

/* out[k] = x·Φ(x) for x = in[k], Φ the distribution function of the standard
   normal: the exact GELU, not its tanh approximation. out may be in. */
void gelu_forward(const float *in, size_t count, float *out);

struct gpt_config;
void config_gelu_forward(const struct gpt_config *config, const float *in,
                         size_t count, float *out);

#endif
