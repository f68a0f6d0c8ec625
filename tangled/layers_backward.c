#include "layers_backward.h"
#include "vector.h"
#include <math.h>

void linear_backward(const struct linear *linear, const float *in,
                     const float *d_out, int rows,
                     float *d_in, struct linear *gradients)
{
    size_t outputs = (size_t)linear->weight.shape[0];
    size_t inputs = (size_t)linear->weight.shape[1];
    size_t count = (size_t)rows;

    for (size_t r = 0; r < count; r++)
        for (size_t o = 0; o < outputs; o++)
            vector_add_scaled(d_in + r * inputs, d_out[r * outputs + o],
                              linear->weight.data + o * inputs, inputs);
    for (size_t o = 0; o < outputs; o++)
        for (size_t r = 0; r < count; r++)
            vector_add_scaled(gradients->weight.data + o * inputs,
                              d_out[r * outputs + o],
                              in + r * inputs, inputs);
    if (gradients->bias.data != NULL)
        for (size_t r = 0; r < count; r++)
            vector_add_scaled(gradients->bias.data, 1, d_out + r * outputs,
                              outputs);
}

void layer_norm_backward(const struct layer_norm *norm, double eps,
                         const float *in, const float *d_out, int rows,
                         float *d_in, struct layer_norm *gradients)
{
    size_t size = (size_t)norm->weight.shape[0];
    for (size_t r = 0; r < (size_t)rows; r++) {
        const float *x = in + r * size, *d_y = d_out + r * size;
        float *d_x = d_in + r * size;

        double mean = 0, variance = 0;
        for (size_t c = 0; c < size; c++)
            mean += x[c];
        mean /= (double)size;
        for (size_t c = 0; c < size; c++)
            variance += (x[c] - mean) * (x[c] - mean);
        double inverse = 1 / sqrt(variance / (double)size + eps);
        double shift = 0, stretch = 0;
        for (size_t c = 0; c < size; c++) {
            double g = (double)d_y[c] * norm->weight.data[c];
            shift += g;
            stretch += g * (x[c] - mean) * inverse;
        }
        shift /= (double)size;
        stretch /= (double)size;
        for (size_t c = 0; c < size; c++) {
            double normal = (x[c] - mean) * inverse;
            double g = (double)d_y[c] * norm->weight.data[c];
            d_x[c] += (float)(inverse * (g - shift - normal * stretch));
            gradients->weight.data[c] += (float)(d_y[c] * normal);
            gradients->bias.data[c] += d_y[c];
        }
    }
}

void gelu_backward(const float *in, const float *d_out, size_t count,
                   float *d_in)
{
    const float root_half = 0.70710678118654752f;       /* sqrt(1/2) */
    const float density_at_0 = 0.39894228040143268f;    /* 1/sqrt(2 pi) */
    for (size_t i = 0; i < count; i++) {
        float x = in[i];
        float below = 0.5f * erfcf(-x * root_half);
        float density = density_at_0 * expf(-0.5f * x * x);
        d_in[i] += d_out[i] * (below + x * density);
    }
}

void embedding_backward(const int32_t *ids, int batch, int tokens,
                        const float *d_out, struct parameters *gradients)
{
    size_t size = (size_t)gradients->config.d_model;
    float *token = gradients->token_embedding.weight.data;
    float *position = gradients->position_embedding.weight.data;
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++) {
            size_t row = (size_t)b * (size_t)tokens + (size_t)t;
            vector_add_scaled(token + (size_t)ids[row] * size, 1,
                              d_out + row * size, size);
            vector_add_scaled(position + (size_t)t * size, 1,
                              d_out + row * size, size);
        }
}

void heads_split_backward(const float *d_out, int stride, int batch,
                          int tokens, int n_heads, int head_dim,
                          float *d_in)
{
    size_t size = (size_t)head_dim;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < n_heads; h++)
            for (int t = 0; t < tokens; t++) {
                size_t row = (size_t)b * (size_t)tokens + (size_t)t;
                vector_add_scaled(d_in + row * (size_t)stride
                                  + (size_t)h * size, 1, d_out, size);
                d_out += size;
            }
}

void heads_merge_backward(const float *d_out, int batch, int n_heads,
                          int tokens, int head_dim, float *d_in)
{
    size_t size = (size_t)head_dim, stride = (size_t)n_heads * size;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < n_heads; h++)
            for (int t = 0; t < tokens; t++) {
                size_t row = (size_t)b * (size_t)tokens + (size_t)t;
                vector_add_scaled(d_in, 1, d_out + row * stride
                                  + (size_t)h * size, size);
                d_in += size;
            }
}
