#include "kernels.h"
#include <math.h>
#include <string.h>
#include "parameters.h"
#include "vector.h"

static void plain_gelu(const float *in, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++) {
        const float x = in[k];
        out[k] = 0.5f * x * erfcf(-x * 0.70710678118654752f);    /* x / √2 */
    }
}

static void plain_gelu_backward(const float *in, const float *d_out,
                                size_t count, float *d_in)
{
    const float root_half = 0.70710678118654752f;
    const float density_at_0 = 0.39894228040143268f;
    for (size_t i = 0; i < count; i++) {
        const float x = in[i];
        float below = 0.5f * erfcf(-x * root_half);
        float density = density_at_0 * expf(-0.5f * x * x);
        d_in[i] += d_out[i] * (below + x * density);
    }
}

static const double root = 0.79788456080286536, cubic = 0.044715;

static void plain_gelu_tanh(const float *in, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++) {
        const float x = in[k], slope = (float)(-2 * root);
        const float twice = slope * (x + (float)cubic * x * x * x);
        out[k] = x / (1 + expf(twice));
    }
}

static void plain_gate(const float *gate, const float *up, size_t count,
                       float *out)
{
    for (size_t k = 0; k < count; k++) {
        const float x = gate[k];
        out[k] = x / (1 + expf(-x)) * up[k];
    }
}

static void plain_activate(enum activation f, const float *in, size_t count,
                           float *out)
{
    const float one = 1;
    if (f == ACTIVATION_GELU)
        plain_gelu(in, count, out);
    else if (f == ACTIVATION_GELU_TANH)
        plain_gelu_tanh(in, count, out);
    else
        for (size_t k = 0; k < count; k++)
            plain_gate(in + k, &one, 1, out + k);
}

static float slope_of_gelu_tanh(double x)
{
    const double s = 1 / (1 + exp(-2 * root * (x + cubic * x * x * x)));
    return (float)(s + x * s * (1 - s) * 2 * root * (1 + 3 * cubic * x * x));
}

static float slope_of_silu(double x)
{
    const double s = 1 / (1 + exp(-x));
    return (float)(s * (1 + x * (1 - s)));
}

static void plain_activate_backward(enum activation f, const float *in,
                                    const float *d_out, size_t count,
                                    float *d_in)
{
    if (f == ACTIVATION_GELU)
        plain_gelu_backward(in, d_out, count, d_in);
    else
        for (size_t k = 0; k < count; k++)
            d_in[k] += d_out[k] * (f == ACTIVATION_SILU
                                   ? slope_of_silu(in[k])
                                   : slope_of_gelu_tanh(in[k]));
}

static void plain_exponential(const float *in, size_t count, float *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = expf(in[k]);
}

static float finished(enum finish finish, float y, float out)
{
    switch (finish) {
    case FINISH_STORE:
        break;
    case FINISH_ADD:
        return out + y;
    case FINISH_GELU:
        plain_gelu(&y, 1, &y);
        break;
    case FINISH_GELU_TANH:
        plain_gelu_tanh(&y, 1, &y);
        break;
    case FINISH_SILU_MULTIPLY:
        plain_gate(&out, &y, 1, &y);
        break;
    }
    return y;
}

enum { PLAIN_INPUTS = 4096 };

/* Inputs i … i + count - 1 of output o; room is for panels. */
static const float *weights(const struct matrix *weight, int o, int i,
                            int count, float room[PLAIN_INPUTS])
{
    if (weight->layout == MATRIX_ROWS)
        return (const float *)weight->data
               + (size_t)o * (size_t)weight->in + (size_t)i;
    for (int k = 0; k < count; k++)
        room[k] = matrix_weight(weight, o, i + k);
    return room;
}

static float plain_output(const struct matrix *weight, const float *in, int o)
{
    float room[PLAIN_INPUTS], sum = 0;
    for (int i = 0; i < weight->in; i += PLAIN_INPUTS) {
        const int left = weight->in - i;
        const int count = left < PLAIN_INPUTS ? left : PLAIN_INPUTS;
        sum += vector_dot(in + i, weights(weight, o, i, count, room),
                          (size_t)count);
    }
    return weight->bias == NULL ? sum : sum + weight->bias[o];
}

static void plain_linear(const struct matrix *weight, const float *in,
                         size_t in_stride, int rows, float *out,
                         size_t out_stride, enum finish finish)
{
    for (int r = 0; r < rows; r++, in += in_stride, out += out_stride)
        for (int o = 0; o < weight->out; o++)
            out[o] = finished(finish, plain_output(weight, in, o), out[o]);
}

static void plain_product(const struct product *p)
{
    const size_t a_m = p->a_turned ? 1 : p->a_stride;
    const size_t a_k = p->a_turned ? p->a_stride : 1;
    const size_t b_k = p->b_turned ? 1 : p->b_stride;
    const size_t b_n = p->b_turned ? p->b_stride : 1;
    for (size_t m = 0; m < (size_t)p->m; m++)
        for (size_t n = 0; n < (size_t)p->n; n++) {
            float sum = p->add ? p->c[m * p->c_stride + n] : 0;
            for (size_t k = 0; k < (size_t)p->k; k++)
                sum += p->a[m * a_m + k * a_k] * p->b[k * b_k + n * b_n];
            p->c[m * p->c_stride + n] = sum;
        }
}

static float plain_score(const struct attention_call *call,
                         const float *query, const float *key, int slot)
{
    return vector_dot(query, key + (size_t)slot * call->slot_stride,
                      (size_t)call->head_dim)
           * (1 / sqrtf((float)call->head_dim));
}

static void plain_query(const struct attention_call *call, int t, int h)
{
    const size_t head = (size_t)(h / (call->heads / call->kv_heads))
                        * call->head_stride;
    const float *query = call->query + (size_t)t * call->query_token
                         + (size_t)h * call->query_head;
    float *context = call->context + (size_t)t * call->context_token
                     + (size_t)h * call->context_head;
    const int seen = call->length + t + 1;
    float max = -INFINITY;
    for (int j = 0; j < seen; j++) {
        const float score = plain_score(call, query, call->key + head, j);
        max = score > max ? score : max;
    }
    double sum = 0;
    for (int j = 0; j < seen; j++)
        sum += expf(plain_score(call, query, call->key + head, j) - max);
    memset(context, 0, (size_t)call->head_dim * sizeof *context);
    for (int j = 0; j < seen; j++) {
        const float e = expf(plain_score(call, query, call->key + head, j)
                             - max);
        vector_add_scaled(context, sum == 0 ? e : (float)(e / sum),
                          call->value + head + (size_t)j * call->slot_stride,
                          (size_t)call->head_dim);
    }
}

static void plain_attention(const struct attention_call *calls, int count)
{
    for (int c = 0; c < count; c++)
        for (int t = 0; t < calls[c].tokens; t++)
            for (int h = 0; h < calls[c].heads; h++)
                plain_query(&calls[c], t, h);
}

static void plain_layer_norm(const float *in, int rows, int width,
                             const float *weight, const float *bias,
                             double eps, float *out)
{
    const struct layer_norm view = {{(float *)weight, 1, {width}},
                                    {(float *)bias, 1, {width}}};
    const struct layer_norm *norm = &view;
    for (int row = 0; row < rows; row++, in += width, out += width) {
        double mean = 0;
        for (int c = 0; c < width; c++)
            mean += in[c];
        mean /= width;
        double variance = 0;
        for (int c = 0; c < width; c++)
            variance += (in[c] - mean) * (in[c] - mean);
        variance /= width;
        const double scale = 1 / sqrt(variance + eps);
        for (int c = 0; c < width; c++)
            out[c] = norm->weight.data[c] * (float)((in[c] - mean) * scale)
                     + norm->bias.data[c];
    }
}

static void plain_rms_norm(const float *in, int rows, int width,
                           const float *weights, double eps, float *out)
{
    const struct tensor view = {(float *)weights, 1, {width}};
    const struct tensor *weight = &view;
    for (int row = 0; row < rows; row++, in += width, out += width) {
        double square = 0;
        for (int c = 0; c < width; c++)
            square += (double)in[c] * in[c];
        square /= width;
        const double scale = 1 / sqrt(square + eps);
        for (int c = 0; c < width; c++)
            out[c] = (float)(weight->data[c] * (in[c] * scale));
    }
}

const struct kernels kernels_plain = {
    "plain", plain_linear, plain_product, plain_attention, plain_layer_norm,
    plain_rms_norm, plain_activate, plain_activate_backward,
    plain_exponential};
