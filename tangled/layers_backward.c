#include "layers_backward.h"
#include "vector.h"
#include <math.h>

#include "kernels.h"

static void sum_columns(const float *rows, int count, int width, float *sums)
{
    for (int r = 0; r < count; r++)
        for (int c = 0; c < width; c++)
            sums[c] += rows[(ptrdiff_t)r * width + c];
}

void linear_backward(const struct linear *linear, const float *in,
                     const float *d_out, int rows,
                     float *d_in, struct linear *gradients)
{
    const int outputs = linear->weight.shape[0];
    const int inputs = linear->weight.shape[1];
    const struct kernels *kernels = kernels_best();
    kernels->product(&(struct product){
        .m = rows, .n = inputs, .k = outputs, .add = true,
        .a = d_out, .a_stride = (size_t)outputs,
        .b = linear->weight.data, .b_stride = (size_t)inputs,
        .c = d_in, .c_stride = (size_t)inputs
    });
    kernels->product(&(struct product){
        .m = outputs, .n = inputs, .k = rows, .add = true,
        .a = d_out, .a_stride = (size_t)outputs, .a_turned = true,
        .b = in, .b_stride = (size_t)inputs,
        .c = gradients->weight.data, .c_stride = (size_t)inputs
    });
    if (gradients->bias.data != NULL)
        sum_columns(d_out, rows, outputs, gradients->bias.data);
}

struct norm_row { double mean, inverse, shift, stretch; };

static struct norm_row average(const struct layer_norm *norm, double eps,
                               const float *x, const float *d_y, size_t size)
{
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
    return (struct norm_row){mean, inverse, shift, stretch};
}

enum { COLUMNS = 64 };

static void add_columns(const float *x, const float *d_y,
                        const struct norm_row *facts, int rows, size_t size,
                        size_t first, struct layer_norm *gradients)
{
    const size_t left = size - first;
    const size_t end = first + (left < COLUMNS ? left : COLUMNS);
    for (int r = 0; r < rows; r++)
        for (size_t c = first; c < end; c++) {
            const size_t at = (size_t)r * size + c;
            const double normal = (x[at] - facts[r].mean) * facts[r].inverse;
            gradients->weight.data[c] += (float)(d_y[at] * normal);
            gradients->bias.data[c] += d_y[at];
        }
}

void layer_norm_backward(const struct layer_norm *norm, double eps,
                         const float *in, const float *d_out, int rows,
                         float *d_in, struct layer_norm *gradients)
{
    enum { ROWS = 128 };
    struct norm_row facts[ROWS];
    const size_t size = (size_t)norm->weight.shape[0];
    for (int first = 0; first < rows; first += ROWS) {
        const int count = rows - first < ROWS ? rows - first : ROWS;
        const float *x = in + (size_t)first * size;
        const float *d_y = d_out + (size_t)first * size;
        float *d_x = d_in + (size_t)first * size;
        #pragma omp parallel for if ((size_t)count * size > 1 << 14)
        for (int r = 0; r < count; r++) {
            const size_t at = (size_t)r * size;
            const struct norm_row row = average(norm, eps, x + at, d_y + at, size);
            for (size_t c = 0; c < size; c++) {
                const double normal = (x[at + c] - row.mean) * row.inverse;
                const double g = (double)d_y[at + c] * norm->weight.data[c];
                d_x[at + c] += (float)(row.inverse * (g - row.shift
                                                      - normal * row.stretch));
            }
            facts[r] = row;
        }
        #pragma omp parallel for if ((size_t)count * size > 1 << 14)
        for (size_t c = 0; c < size; c += COLUMNS)
            add_columns(x, d_y, facts, count, size, c, gradients);
    }
}

#include "kernels.h"

void gelu_backward(const float *in, const float *d_out, size_t count,
                   float *d_in)
{
    kernels_best()->activate_backward(ACTIVATION_GELU, in, d_out, count,
                                      d_in);
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
