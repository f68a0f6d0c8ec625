/* Suite 3b: the backward pass, AdamW, and a training run.

   Gradients are held against three things that know nothing of the code: hand
   arithmetic, the oracle's g.*, and central differences of a forward pass
   that is written again here, plainly and in double precision. */
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"
#include "adamw.h"
#include "attention_backward.h"
#include "backward.h"
#include "corpus.h"
#include "layers_backward.h"
#include "mode.h"
#include "model.h"
#include "model_file.h"
#include "safetensors.h"
#include "trainer.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

/* ------------------------------------------------------ numbers and checks */

/* Fills both arrays with the same numbers, which a float holds exactly. */
static void fill(unsigned stream, size_t count, float *single, double *wide)
{
    uint64_t state = noise_start(stream);
    for (size_t i = 0; i < count; i++) {
        single[i] = noise(&state);
        wide[i] = (double)single[i];
    }
}

/* The same in rows of a given width that are spread over [-1, 1]: in each
   lies one number near the middle of each width-th of it. */
static void fill_spread(unsigned stream, size_t count, int width,
                        float *single, double *wide)
{
    uint64_t state = noise_start(stream);
    for (size_t i = 0; i < count; i += (size_t)width) {
        int32_t order[16];
        noise_order(&state, width, order);
        for (int k = 0; k < width; k++) {
            const float place = (float)order[k] + 0.25f * noise(&state);
            single[i + (size_t)k] = (2 * place + 1) / (float)width - 1;
            wide[i + (size_t)k] = (double)single[i + (size_t)k];
        }
    }
}

/* gradient [count] against central differences of f in x [count]. */
static void expect_slopes(const char *what, double (*f)(const void *),
                          const void *context, double *x, size_t count,
                          const float *gradient)
{
    const double h = 1e-5;
    for (size_t i = 0; i < count; i++) {
        double at = x[i];
        x[i] = at + h;
        double above = f(context);
        x[i] = at - h;
        double below = f(context);
        x[i] = at;
        double slope = (above - below) / (2 * h);
        double off = fabs((double)gradient[i] - slope);
        if (!(off <= TOLERANCE + TOLERANCE * fabs(slope)))
            ck_abort_msg("%s[%zu]: differences give %.9g, got %.9g", what, i,
                         slope, (double)gradient[i]);
    }
}

static struct tensor view(float *data, int rows, int columns)
{
    return (struct tensor){ data, 2, { rows, columns } };
}

static struct tensor row_view(float *data, int size)
{
    return (struct tensor){ data, 1, { size } };
}

/* ------------------------------------------------------------- one linear */

enum { ROWS = 5, IN = 4, OUT = 3 };

struct linear_case {
    double in[ROWS * IN], weight[OUT * IN], bias[OUT], d_out[ROWS * OUT];
    float in_f[ROWS * IN], weight_f[OUT * IN], bias_f[OUT];
    float d_out_f[ROWS * OUT];
    float d_in[ROWS * IN], d_weight[OUT * IN], d_bias[OUT];
};

static double linear_objective(const void *context)
{
    const struct linear_case *c = context;
    double sum = 0;
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double y = c->bias[o];
            for (int i = 0; i < IN; i++)
                y += c->in[r * IN + i] * c->weight[o * IN + i];
            sum += y * c->d_out[r * OUT + o];
        }
    return sum;
}

static void run_linear(struct linear_case *c, bool with_bias)
{
    memset(c, 0, sizeof *c);
    fill(1, COUNT(c->in), c->in_f, c->in);
    fill(2, COUNT(c->weight), c->weight_f, c->weight);
    fill(3, COUNT(c->bias), c->bias_f, c->bias);
    fill(4, COUNT(c->d_out), c->d_out_f, c->d_out);
    struct linear linear = { view(c->weight_f, OUT, IN), { 0 } };
    struct linear gradients = { view(c->d_weight, OUT, IN), { 0 } };
    if (with_bias) {
        linear.bias = row_view(c->bias_f, OUT);
        gradients.bias = row_view(c->d_bias, OUT);
    }
    linear_backward(&linear, c->in_f, c->d_out_f, ROWS, c->d_in, &gradients);
}

START_TEST(linear_sends_each_gradient_back_through_its_weights)
{
    struct linear_case c;
    run_linear(&c, true);
    expect_slopes("d_in", linear_objective, &c, c.in, COUNT(c.in), c.d_in);
}
END_TEST

START_TEST(linear_weight_gradient_is_a_sum_of_outer_products)
{
    struct linear_case c;
    run_linear(&c, true);
    expect_slopes("d_weight", linear_objective, &c, c.weight,
                  COUNT(c.weight), c.d_weight);
}
END_TEST

START_TEST(linear_bias_gradient_sums_over_all_rows)
{
    struct linear_case c;
    run_linear(&c, true);
    expect_slopes("d_bias", linear_objective, &c, c.bias, COUNT(c.bias),
                  c.d_bias);
}
END_TEST

START_TEST(linear_without_a_bias_has_no_bias_gradient)
{
    struct linear_case c;
    run_linear(&c, false);
    expect_slopes("d_weight", linear_objective, &c, c.weight,
                  COUNT(c.weight), c.d_weight);
    for (int o = 0; o < OUT; o++)
        ck_assert(c.d_bias[o] == 0);
}
END_TEST

/* ---------------------------------------------------------- one layer norm */

enum { WIDTH = 6 };

struct norm_case {
    double eps;
    double in[ROWS * WIDTH], weight[WIDTH], bias[WIDTH], d_out[ROWS * WIDTH];
    float in_f[ROWS * WIDTH], weight_f[WIDTH], bias_f[WIDTH];
    float d_out_f[ROWS * WIDTH];
    float d_in[ROWS * WIDTH], d_weight[WIDTH], d_bias[WIDTH];
};

static double norm_objective(const void *context)
{
    const struct norm_case *c = context;
    double sum = 0;
    for (int r = 0; r < ROWS; r++) {
        const double *x = c->in + r * WIDTH, *d_y = c->d_out + r * WIDTH;
        double mean = 0, square = 0;
        for (int k = 0; k < WIDTH; k++) {
            mean += x[k] / WIDTH;
            square += x[k] * x[k] / WIDTH;
        }
        double deviation = sqrt(square - mean * mean + c->eps);
        for (int k = 0; k < WIDTH; k++)
            sum += d_y[k] * (c->bias[k] + c->weight[k] * (x[k] - mean)
                             / deviation);
    }
    return sum;
}

static void run_norm(struct norm_case *c)
{
    memset(c, 0, sizeof *c);
    c->eps = 1e-2;
    fill_spread(11, COUNT(c->in), WIDTH, c->in_f, c->in);
    fill(12, COUNT(c->weight), c->weight_f, c->weight);
    fill(13, COUNT(c->bias), c->bias_f, c->bias);
    fill(14, COUNT(c->d_out), c->d_out_f, c->d_out);
    struct layer_norm norm = { row_view(c->weight_f, WIDTH),
                               row_view(c->bias_f, WIDTH) };
    struct layer_norm gradients = { row_view(c->d_weight, WIDTH),
                                    row_view(c->d_bias, WIDTH) };
    layer_norm_backward(&norm, c->eps, c->in_f, c->d_out_f, ROWS, c->d_in,
                        &gradients);
}

START_TEST(layer_norm_gradient_has_no_shift_and_no_stretch)
{
    /* the chapter's row: x = (1, 2, 6), d_y = (1, 0, 0), no eps */
    float ones[] = { 1, 1, 1 }, zeros[] = { 0, 0, 0 };
    float x[] = { 1, 2, 6 }, d_y[] = { 1, 0, 0 };
    float d_x[3] = { 0 }, d_gain[3] = { 0 }, d_offset[3] = { 0 };
    struct layer_norm norm = { row_view(ones, 3), row_view(zeros, 3) };
    struct layer_norm gradients = { row_view(d_gain, 3),
                                    row_view(d_offset, 3) };
    layer_norm_backward(&norm, 0, x, d_y, 1, d_x, &gradients);
    double shift = 0, stretch = 0;
    for (int k = 0; k < 3; k++) {
        shift += (double)d_x[k];
        stretch += (double)d_x[k] * ((double)x[k] - 3);
    }
    ck_assert_double_eq_tol(shift, 0, 1e-6);
    ck_assert_double_eq_tol(stretch, 0, 1e-6);
    /* 1/sigma = sqrt(3/14); 1 - 1/3 - 6/21 = 8/21, -1/3 - 3/21 = -10/21 */
    double inverse = sqrt(3.0 / 14);
    ck_assert_double_eq_tol((double)d_x[0], inverse * 8 / 21, 1e-6);
    ck_assert_double_eq_tol((double)d_x[1], inverse * -10 / 21, 1e-6);
    ck_assert_double_eq_tol((double)d_x[2], inverse * 2 / 21, 1e-6);
}
END_TEST

START_TEST(layer_norm_input_gradient_agrees_with_differences)
{
    struct norm_case c;
    run_norm(&c);
    expect_slopes("d_in", norm_objective, &c, c.in, COUNT(c.in), c.d_in);
}
END_TEST

START_TEST(layer_norm_gain_and_offset_gradients_agree_with_differences)
{
    struct norm_case c;
    run_norm(&c);
    expect_slopes("d_weight", norm_objective, &c, c.weight, WIDTH,
                  c.d_weight);
    expect_slopes("d_bias", norm_objective, &c, c.bias, WIDTH, c.d_bias);
}
END_TEST

/* ------------------------------------------------------------------- GELU */

START_TEST(gelu_slope_has_its_known_values)
{
    /* at 0: 1/2; at the minimum: 0; at sqrt 2: the largest; far away: 0, 1 */
    float x[] = { 0, -0.7517916f, 1.4142136f, -12, 12 };
    float ones[] = { 1, 1, 1, 1, 1 }, d_x[5] = { 0 };
    float expected[] = { 0.5f, 0, 1.1289042f, 0, 1 };
    gelu_backward(x, ones, 5, d_x);
    expect_close("slope", d_x, expected, 5, 0, NULL, 1e-6);
}
END_TEST

struct gelu_case { double x[40], d_y[40]; };

static double gelu_objective(const void *context)
{
    const struct gelu_case *c = context;
    double sum = 0;
    for (int i = 0; i < 40; i++)
        sum += c->d_y[i] * c->x[i] * 0.5 * erfc(-c->x[i] / sqrt(2));
    return sum;
}

START_TEST(gelu_gradient_agrees_with_differences)
{
    struct gelu_case c;
    float x[40], d_y[40], d_x[40] = { 0 };
    uint64_t state = noise_start(15);
    fill(16, 40, d_y, c.d_y);
    for (int i = 0; i < 40; i++) {      /* all of -4 … 4 */
        x[i] = ((float)(i - 20) + noise(&state)) / 5;
        c.x[i] = (double)x[i];
    }
    gelu_backward(x, d_y, 40, d_x);
    expect_slopes("d_x", gelu_objective, &c, c.x, 40, d_x);
}
END_TEST

/* -------------------------------------------------- embedding and reshapes */

START_TEST(embedding_rows_collect_every_use)
{
    struct gpt_config config = { .vocab_size = 5, .context_length = 4,
                                 .d_model = 2, .n_layers = 1, .n_heads = 1,
                                 .d_ff = 3, .layer_norm_eps = 1e-5 };
    struct parameters *g = NULL;
    ck_assert_int_eq(parameters_new(&g, &config, NULL), STATUS_OK);
    int32_t ids[] = { 3, 1, 3,  0, 3, 3 };
    float d[] = { 1, 10, 2, 20, 4, 40,  8, 80, 16, 160, 32, 320 };
    embedding_backward(ids, 2, 3, d, g);
    const float token[] = { 8, 80, 2, 20, 0, 0, 53, 530, 0, 0 };
    const float position[] = { 9, 90, 18, 180, 36, 360, 0, 0 };
    expect_close("token", g->token_embedding.weight.data, token, 10, 2,
                 (int[]){ 5, 2 }, TOLERANCE);
    expect_close("position", g->position_embedding.weight.data, position, 8,
                 2, (int[]){ 4, 2 }, TOLERANCE);
    parameters_free(&g);
}
END_TEST

START_TEST(split_heads_send_their_gradients_home)
{
    enum { B = 2, T = 3, H = 4, D = 2, STRIDE = 3 * H * D };
    float d_out[B * H * T * D], d_in[B * T * STRIDE] = { 0 };
    uint64_t state = noise_start(17);
    noise_distinct(&state, COUNT(d_out), d_out);
    heads_split_backward(d_out, STRIDE, B, T, H, D, d_in + H * D);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < STRIDE; c++) {
                int h = c / D - H, d = c % D;
                float want = h < 0 || h >= H ? 0
                    : d_out[((b * H + h) * T + t) * D + d];
                ck_assert(d_in[(b * T + t) * STRIDE + c] == want);
            }
}
END_TEST

START_TEST(merged_heads_send_their_gradients_home)
{
    enum { B = 2, T = 3, H = 4, D = 2, C = H * D };
    float d_out[B * T * C], d_in[B * H * T * D] = { 0 };
    uint64_t state = noise_start(18);
    noise_distinct(&state, COUNT(d_out), d_out);
    heads_merge_backward(d_out, B, H, T, D, d_in);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++)
                    ck_assert(d_in[((b * H + h) * T + t) * D + d]
                              == d_out[(b * T + t) * C + h * D + d]);
}
END_TEST

/* -------------------------------------------------------------- attention */

START_TEST(softmax_gradient_takes_out_the_mean)
{
    /* the chapter's row */
    float p[] = { 0.7f, 0.2f, 0.1f }, d_p[] = { 0, -1, 0 }, d_s[3] = { 0 };
    float expected[] = { 0.14f, -0.16f, 0.02f };
    softmax_backward(p, d_p, 3, d_s);
    expect_close("d_scores", d_s, expected, 3, 0, NULL, 1e-7);
    /* a liking for all keys alike moves nothing */
    float alike[] = { 3, 3, 3 }, still[3] = { 0 };
    softmax_backward(p, alike, 3, still);
    for (int k = 0; k < 3; k++)
        ck_assert_double_eq_tol((double)still[k], 0, 1e-6);
}
END_TEST

START_TEST(hidden_keys_and_empty_rows_get_exactly_zero)
{
    float p[] = { 0.6f, 0.4f, 0, 0 }, d_p[] = { 1, -2, 1e30f, -7 };
    float d_s[4] = { 0 };
    softmax_backward(p, d_p, 4, d_s);
    ck_assert(d_s[2] == 0 && d_s[3] == 0);
    float none[4] = { 0 }, empty[4] = { 0 };
    softmax_backward(none, d_p, 4, empty);
    for (int k = 0; k < 4; k++)
        ck_assert(empty[k] == 0);
}
END_TEST

enum { HEADS = 3, QUERIES = 4, KEYS = 5, DIM = 2 };

struct attention_case {
    bool keep[QUERIES * KEYS];
    double query[HEADS * QUERIES * DIM], key[HEADS * KEYS * DIM];
    double value[HEADS * KEYS * DIM], d_context[HEADS * QUERIES * DIM];
    double dropout[HEADS * QUERIES * KEYS];
    float query_f[HEADS * QUERIES * DIM], key_f[HEADS * KEYS * DIM];
    float value_f[HEADS * KEYS * DIM], d_context_f[HEADS * QUERIES * DIM];
    float probs[HEADS * QUERIES * KEYS], dropout_f[HEADS * QUERIES * KEYS];
    float d_probs[HEADS * QUERIES * KEYS], d_scores[HEADS * QUERIES * KEYS];
    float d_query[HEADS * QUERIES * DIM], d_key[HEADS * KEYS * DIM];
    float d_value[HEADS * KEYS * DIM];
};

/* probs [KEYS] of query i of head h */
static void plain_probs(const struct attention_case *c, int h, int i,
                        double *probs)
{
    double sum = 0;
    for (int j = 0; j < KEYS; j++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += c->query[(h * QUERIES + i) * DIM + d]
                     * c->key[(h * KEYS + j) * DIM + d];
        probs[j] = c->keep[i * KEYS + j] ? exp(score / sqrt(DIM)) : 0;
        sum += probs[j];
    }
    for (int j = 0; j < KEYS; j++)
        probs[j] /= sum;
}

static double attention_objective(const void *context)
{
    const struct attention_case *c = context;
    double total = 0, probs[KEYS];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < QUERIES; i++) {
            int row = h * QUERIES + i;
            plain_probs(c, h, i, probs);
            for (int j = 0; j < KEYS; j++)
                for (int d = 0; d < DIM; d++)
                    total += probs[j] * c->dropout[row * KEYS + j]
                             * c->value[(h * KEYS + j) * DIM + d]
                             * c->d_context[row * DIM + d];
        }
    return total;
}

/* Rectangular, causal to the lower right; drop: a mask with holes. */
static void run_attention(struct attention_case *c, bool drop)
{
    memset(c, 0, sizeof *c);
    fill(21, COUNT(c->query), c->query_f, c->query);
    fill(22, COUNT(c->key), c->key_f, c->key);
    fill(23, COUNT(c->value), c->value_f, c->value);
    fill(24, COUNT(c->d_context), c->d_context_f, c->d_context);
    for (int i = 0; i < QUERIES; i++)
        for (int j = 0; j < KEYS; j++)
            c->keep[i * KEYS + j] = j <= i + KEYS - QUERIES;
    /* a third is dropped: 20 of 60, of which the causal mask hides 18 */
    uint64_t state = noise_start(25);
    int32_t order[COUNT(c->dropout)];
    noise_order(&state, COUNT(c->dropout), order);
    for (size_t i = 0; i < COUNT(c->dropout); i++) {
        c->dropout_f[i] = !drop ? 1 : order[i] % 3 == 1 ? 0 : 1.5f;
        c->dropout[i] = (double)c->dropout_f[i];
    }
    for (int row = 0; row < HEADS * QUERIES; row++) {
        double probs[KEYS];
        plain_probs(c, row / QUERIES, row % QUERIES, probs);
        for (int j = 0; j < KEYS; j++)
            c->probs[row * KEYS + j] = (float)probs[j];
    }
    attention_backward(c->query_f, c->key_f, c->value_f, c->probs,
                       drop ? c->dropout_f : NULL, c->d_context_f, HEADS,
                       QUERIES, KEYS, DIM, c->d_probs, c->d_scores,
                       c->d_query, c->d_key, c->d_value);
}

START_TEST(attention_asks_each_probability_through_its_value)
{
    struct attention_case c;
    run_attention(&c, false);
    for (int row = 0; row < HEADS * QUERIES; row++)
        for (int j = 0; j < KEYS; j++) {
            double want = 0;
            for (int d = 0; d < DIM; d++)
                want += c.d_context[row * DIM + d]
                        * c.value[(row / QUERIES * KEYS + j) * DIM + d];
            ck_assert_double_eq_tol((double)c.d_probs[row * KEYS + j], want,
                                    1e-6);
        }
}
END_TEST

START_TEST(query_key_and_value_gradients_agree_with_differences)
{
    struct attention_case c;
    run_attention(&c, false);
    expect_slopes("d_query", attention_objective, &c, c.query,
                  COUNT(c.query), c.d_query);
    expect_slopes("d_key", attention_objective, &c, c.key, COUNT(c.key),
                  c.d_key);
    expect_slopes("d_value", attention_objective, &c, c.value,
                  COUNT(c.value), c.d_value);
}
END_TEST

START_TEST(attention_gradients_pass_the_recorded_dropout_mask)
{
    struct attention_case c;
    run_attention(&c, true);
    expect_slopes("d_query", attention_objective, &c, c.query,
                  COUNT(c.query), c.d_query);
    expect_slopes("d_key", attention_objective, &c, c.key, COUNT(c.key),
                  c.d_key);
    expect_slopes("d_value", attention_objective, &c, c.value,
                  COUNT(c.value), c.d_value);
}
END_TEST

/* ------------------------------------------- every function adds, none sets */

START_TEST(every_backward_function_adds_to_its_gradients)
{
    struct linear_case l;
    run_linear(&l, true);
    struct linear_case once = l;
    struct linear linear = { view(l.weight_f, OUT, IN),
                             row_view(l.bias_f, OUT) };
    struct linear gradients = { view(l.d_weight, OUT, IN),
                                row_view(l.d_bias, OUT) };
    linear_backward(&linear, l.in_f, l.d_out_f, ROWS, l.d_in, &gradients);
    for (size_t i = 0; i < COUNT(l.d_in); i++)
        once.d_in[i] *= 2;
    for (size_t i = 0; i < COUNT(l.d_weight); i++)
        once.d_weight[i] *= 2;
    for (size_t i = 0; i < COUNT(l.d_bias); i++)
        once.d_bias[i] *= 2;
    expect_close("linear d_in", l.d_in, once.d_in, COUNT(l.d_in), 0, NULL,
                 TOLERANCE);
    expect_close("linear d_weight", l.d_weight, once.d_weight,
                 COUNT(l.d_weight), 0, NULL, TOLERANCE);
    expect_close("linear d_bias", l.d_bias, once.d_bias, COUNT(l.d_bias), 0,
                 NULL, TOLERANCE);

    float p[] = { 0.5f, 0.5f }, d_p[] = { 1, -1 }, d_s[] = { 7, 8 };
    softmax_backward(p, d_p, 2, d_s);
    ck_assert(d_s[0] == 7.5f && d_s[1] == 7.5f);
    float x = 0, one = 1, d_x = 3;
    gelu_backward(&x, &one, 1, &d_x);
    ck_assert(d_x == 3.5f);
    float d_heads[] = { 1, 2 }, d_rows[] = { 10, 20 };
    heads_split_backward(d_heads, 2, 1, 1, 1, 2, d_rows);
    ck_assert(d_rows[0] == 11 && d_rows[1] == 22);
    heads_merge_backward(d_rows, 1, 1, 1, 2, d_heads);
    ck_assert(d_heads[0] == 12 && d_heads[1] == 24);
}
END_TEST

/* ------------------------------------------------------------ whole models */

enum { BATCH = 2, TOKENS = 5 };

static const struct gpt_config small = {
    .vocab_size = 11, .context_length = 7, .d_model = 6, .n_layers = 2,
    .n_heads = 2, .d_ff = 10, .layer_norm_eps = 1e-5
};

static int32_t small_ids[BATCH * TOKENS], small_labels[BATCH * TOKENS];

/* An id is used twice in row 0 and once more in row 1; a label is ignored,
   and the last one is not an id of the text. */
static void make_ids(void)
{
    uint64_t state = noise_start(30);
    int32_t order[11];
    noise_order(&state, 11, order);
    memcpy(small_ids, order, sizeof small_ids);
    small_ids[3] = small_ids[9] = small_ids[1];
    memcpy(small_labels, small_ids, sizeof small_labels);
    small_labels[3] = -100;
    small_labels[9] = order[10];
}

/* A forward call with a loss and everything that the backward call needs. */
struct call {
    struct tiny_gpt *model;
    struct parameters *gradients;
    struct activations activations;
    struct forward_output output;
    struct forward_input input;
};

static void call_begin(struct call *call, const struct gpt_config *config)
{
    memset(call, 0, sizeof *call);
    make_ids();
    call->model = noisy_model(config, 31);
    ck_assert_int_eq(parameters_new(&call->gradients, config, NULL),
                     STATUS_OK);
    call->input = (struct forward_input){
        .ids = small_ids, .labels = small_labels, .batch = BATCH,
        .tokens = TOKENS, .activations = &call->activations };
}

static void call_forward(struct call *call)
{
    struct error error = { 0 };
    enum status status = tiny_gpt_forward(call->model, &call->input,
                                          &call->output, &error);
    expect_ok(status, &error);
}

static enum status call_backward(struct call *call, struct error *error)
{
    return tiny_gpt_backward(call->model, &call->input, &call->activations,
                             &call->output, call->gradients, error);
}

static void call_run(struct call *call)
{
    struct error error = { 0 };
    call_forward(call);
    enum status status = call_backward(call, &error);
    expect_ok(status, &error);
}

static void call_end(struct call *call)
{
    forward_output_free(&call->output);
    activations_free(&call->activations);
    parameters_free(&call->gradients);
    tiny_gpt_free(&call->model);
}

/* Branches that add nothing: blocks are the identity. */
static void silence_branches(struct parameters *p)
{
    for (int l = 0; l < p->config.n_layers; l++) {
        struct linear *ends[] = { &p->blocks[l].attention.out_proj,
                                  &p->blocks[l].mlp.down_proj };
        for (int e = 0; e < 2; e++) {
            memset(ends[e]->weight.data, 0,
                   tensor_size(&ends[e]->weight) * sizeof (float));
            memset(ends[e]->bias.data, 0,
                   tensor_size(&ends[e]->bias) * sizeof (float));
        }
    }
}

static void expect_alive(const char *what, const struct tensor *gradient)
{
    double sum = 0;
    for (size_t i = 0; i < tensor_size(gradient); i++)
        sum += fabs((double)gradient->data[i]);
    ck_assert_msg(sum > 1e-3, "%s: no gradient arrives", what);
}

/* With silent branches the bias at the end of a branch has the gradient of
   the stream there, summed over rows: the same at every height. */
static void expect_same_stream(const char *what, const struct tensor *above,
                               const struct tensor *below)
{
    expect_alive(what, above);
    expect_close(what, below->data, above->data, tensor_size(above), 0, NULL,
                 TOLERANCE);
}

START_TEST(gradient_passes_around_the_feed_forward_half)
{
    struct call call;
    call_begin(&call, &small);
    silence_branches(tiny_gpt_parameters(call.model));
    call_run(&call);
    const struct block *blocks = call.gradients->blocks;
    expect_same_stream("below the feed-forward half of block 1",
                       &blocks[1].mlp.down_proj.bias,
                       &blocks[1].attention.out_proj.bias);
    call_end(&call);
}
END_TEST

START_TEST(gradient_passes_around_the_attention_half)
{
    struct call call;
    call_begin(&call, &small);
    silence_branches(tiny_gpt_parameters(call.model));
    call_run(&call);
    const struct block *blocks = call.gradients->blocks;
    expect_same_stream("below the attention half of block 1",
                       &blocks[1].attention.out_proj.bias,
                       &blocks[0].mlp.down_proj.bias);
    expect_alive("positions, below block 0",
                 &call.gradients->position_embedding.weight);
    call_end(&call);
}
END_TEST

START_TEST(tied_table_receives_both_of_its_gradients)
{
    /* Zero gains: the state before the head is final_norm.bias in each row,
       whatever the embedding, so the embedding's use has no gradient and the
       table's is the head's alone: (softmax - one-hot)/n times the state. */
    struct call call;
    call_begin(&call, &small);
    struct parameters *p = tiny_gpt_parameters(call.model);
    memset(p->final_norm.weight.data, 0, 6 * sizeof (float));
    call_run(&call);
    const float *table = p->token_embedding.weight.data;
    const float *state = p->final_norm.bias.data;
    double probs[11], sum = 0;
    for (int v = 0; v < 11; v++) {
        double logit = 0;
        for (int c = 0; c < 6; c++)
            logit += (double)table[v * 6 + c] * (double)state[c];
        sum += probs[v] = exp(logit);
    }
    float expected[66];
    for (int v = 0; v < 11; v++) {
        double times = 0, counted = 0;    /* labels 1.. of each row */
        for (int i = 0; i < BATCH * TOKENS; i++)
            if (i % TOKENS != 0 && small_labels[i] >= 0) {
                counted++;
                times += small_labels[i] == v;
            }
        for (int c = 0; c < 6; c++)
            expected[v * 6 + c] = (float)((probs[v] / sum - times / counted)
                                          * (double)state[c]);
    }
    expect_close("the head's gradient of the table",
                 call.gradients->token_embedding.weight.data, expected, 66, 2,
                 (int[]){ 11, 6 }, TOLERANCE);
    ck_assert_ptr_eq(call.gradients->lm_head.weight.data,
                     call.gradients->token_embedding.weight.data);
    call_end(&call);
}
END_TEST

/* --------------------------- the forward pass once more, plainly, in double */

struct plain {
    const struct parameters *p;            /* for places, not for numbers */
    const struct activations *masks;       /* the recorded dropout, if any */
    double *w;                             /* as p->storage */
};

static const double *weights(const struct plain *plain,
                             const struct tensor *tensor)
{
    return plain->w + (tensor->data - plain->p->storage);
}

static void plain_linear(const struct plain *m, const struct linear *linear,
                         const double *x, double *y)
{
    int out = linear->weight.shape[0], in = linear->weight.shape[1];
    const double *w = weights(m, &linear->weight);
    for (int o = 0; o < out; o++) {
        y[o] = linear->bias.data ? weights(m, &linear->bias)[o] : 0;
        for (int i = 0; i < in; i++)
            y[o] += w[o * in + i] * x[i];
    }
}

static void plain_norm(const struct plain *m, const struct layer_norm *norm,
                       const double *x, double *y)
{
    int size = norm->weight.shape[0];
    double mean = 0, variance = m->p->config.layer_norm_eps;
    for (int c = 0; c < size; c++)
        mean += x[c] / size;
    for (int c = 0; c < size; c++)
        variance += (x[c] - mean) * (x[c] - mean) / size;
    for (int c = 0; c < size; c++)
        y[c] = weights(m, &norm->bias)[c] + weights(m, &norm->weight)[c]
               * (x[c] - mean) / sqrt(variance);
}

static double mask_at(const struct tensor *mask, int at)
{
    return mask->data == NULL ? 1 : (double)mask->data[at];
}

enum { WIDE = 32 };    /* no row of the small models is wider */

/* x [TOKENS][C] of batch row b through block l */
static void plain_block(const struct plain *m, int b, int l,
                        double (*x)[WIDE])
{
    const struct block *block = &m->p->blocks[l];
    const struct block_activations *masks = &m->masks->blocks[l];
    int C = m->p->config.d_model, H = m->p->config.n_heads, D = C / H;
    double norm[WIDE], qkv[TOKENS][WIDE], merged[TOKENS][WIDE];
    double branch[WIDE], up[WIDE];
    for (int t = 0; t < TOKENS; t++) {
        plain_norm(m, &block->attention_norm, x[t], norm);
        plain_linear(m, &block->attention.qkv_proj, norm, qkv[t]);
    }
    for (int h = 0; h < H; h++)
        for (int t = 0; t < TOKENS; t++) {
            double p[TOKENS], sum = 0;
            for (int j = 0; j <= t; j++) {
                double score = 0;
                for (int d = h * D; d < h * D + D; d++)
                    score += qkv[t][d] * qkv[j][C + d];
                sum += p[j] = exp(score / sqrt(D));
            }
            for (int d = h * D; d < h * D + D; d++) {
                merged[t][d] = 0;
                for (int j = 0; j <= t; j++)
                    merged[t][d] += p[j] / sum * qkv[j][2 * C + d]
                        * mask_at(&masks->probs_dropout,
                                  ((b * H + h) * TOKENS + t) * TOKENS + j);
            }
        }
    for (int t = 0; t < TOKENS; t++) {
        int row = (b * TOKENS + t) * C;
        plain_linear(m, &block->attention.out_proj, merged[t], branch);
        for (int c = 0; c < C; c++)
            x[t][c] += branch[c] * mask_at(&masks->attention_dropout,
                                           row + c);
        plain_norm(m, &block->mlp_norm, x[t], norm);
        plain_linear(m, &block->mlp.up_proj, norm, up);
        for (int f = 0; f < m->p->config.d_ff; f++)
            up[f] *= 0.5 * erfc(-up[f] / sqrt(2));
        plain_linear(m, &block->mlp.down_proj, up, branch);
        for (int c = 0; c < C; c++)
            x[t][c] += branch[c] * mask_at(&masks->down_dropout, row + c);
    }
}

static double plain_loss(const void *context)
{
    const struct plain *m = context;
    int C = m->p->config.d_model;
    double loss = 0, x[TOKENS][WIDE], state[WIDE], logits[WIDE];
    int counted = 0;
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < C; c++)
                x[t][c] = mask_at(&m->masks->embedding_dropout,
                                  (b * TOKENS + t) * C + c)
                    * (weights(m, &m->p->token_embedding.weight)
                           [small_ids[b * TOKENS + t] * C + c]
                       + weights(m, &m->p->position_embedding.weight)
                           [t * C + c]);
        for (int l = 0; l < m->p->config.n_layers; l++)
            plain_block(m, b, l, x);
        for (int t = 0; t + 1 < TOKENS; t++) {
            int32_t label = small_labels[b * TOKENS + t + 1];
            if (label < 0)
                continue;
            double sum = 0;
            plain_norm(m, &m->p->final_norm, x[t], state);
            plain_linear(m, &m->p->lm_head, state, logits);
            for (int v = 0; v < m->p->config.vocab_size; v++)
                sum += exp(logits[v]);
            loss += log(sum) - logits[label];
            counted++;
        }
    }
    return loss / counted;
}

static void expect_model_slopes(struct call *call)
{
    const struct parameters *p = tiny_gpt_parameters(call->model);
    struct plain plain = { p, &call->activations,
                           malloc(p->size * sizeof *plain.w) };
    for (size_t i = 0; i < p->size; i++)
        plain.w[i] = (double)p->storage[i];
    ck_assert_double_eq_tol((double)call->output.loss, plain_loss(&plain),
                            1e-5);
    for (int i = 0; i < p->count; i++) {
        const struct tensor *tensor = p->registry[i].tensor;
        size_t at = (size_t)(tensor->data - p->storage);
        expect_slopes(p->registry[i].path, plain_loss, &plain, plain.w + at,
                      tensor_size(tensor), call->gradients->storage + at);
    }
    free(plain.w);
}

START_TEST(every_gradient_agrees_with_differences_of_a_plain_forward)
{
    struct call call;
    call_begin(&call, &small);
    call_run(&call);
    expect_model_slopes(&call);
    call_end(&call);
}
END_TEST

START_TEST(every_gradient_passes_the_recorded_dropout_masks)
{
    struct gpt_config config = small;
    struct generator generator;
    struct call call;
    config.dropout = 0.3;
    call_begin(&call, &config);
    uint64_t state = noise_start(32);
    generator_seed(&generator, noise_next(&state), 0);
    call.input.generator = &generator;
    tiny_gpt_set_mode(call.model, MODE_TRAINING);
    call_run(&call);
    ck_assert_ptr_nonnull(call.activations.embedding_dropout.data);
    ck_assert_ptr_nonnull(call.activations.blocks[1].down_dropout.data);
    expect_model_slopes(&call);
    call_end(&call);
}
END_TEST

/* ------------------------------------------------------------- the goldens */

/* Every tensor of p against prefix.path; key biases are left out on wish. */
static void expect_tensors(const struct golden *golden, const char *prefix,
                           const struct parameters *p, bool key_bias)
{
    size_t width = (size_t)p->config.d_model;
    for (int i = 0; i < p->count; i++) {
        const struct parameter *parameter = &p->registry[i];
        if (parameter->alias)
            continue;
        const struct golden_tensor *want =
            golden_get(golden, "%s.%s", prefix, parameter->path);
        const float *got = parameter->tensor->data;
        if (strstr(parameter->path, "qkv_proj.bias") && !key_bias) {
            expect_close(parameter->path, got, want->f32, width, 0, NULL,
                         TOLERANCE);
            expect_close(parameter->path, got + 2 * width,
                         want->f32 + 2 * width, width, 0, NULL, TOLERANCE);
        } else
            expect_close(parameter->path, got, want->f32, want->count,
                         want->rank, want->shape, TOLERANCE);
    }
}

START_TEST(every_gradient_agrees_with_the_oracle)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct gpt_config config = golden_config(golden);
    struct call call;
    call_begin(&call, &config);
    golden_weights(golden, tiny_gpt_parameters(call.model));
    call.input.ids = golden_get(golden, "in.ids")->ids;
    call.input.labels = golden_get(golden, "in.labels")->ids;
    call.input.tokens = golden_get(golden, "in.ids")->shape[1];
    call_run(&call);
    expect_tensors(golden, "g", call.gradients, true);
    call_end(&call);
    golden_close(golden);
}
END_TEST

START_TEST(key_biases_have_no_gradient)
{
    struct call call;
    call_begin(&call, &small);
    call_run(&call);
    for (int l = 0; l < 2; l++) {
        const float *bias =
            call.gradients->blocks[l].attention.qkv_proj.bias.data;
        for (int c = 6; c < 12; c++)
            ck_assert_double_eq_tol((double)bias[c], 0, 1e-7);
    }
    call_end(&call);
}
END_TEST

START_TEST(a_second_call_adds_its_gradient_to_the_first)
{
    struct call call;
    call_begin(&call, &small);
    call_run(&call);
    size_t size = call.gradients->size;
    float *twice = malloc(size * sizeof *twice);
    for (size_t i = 0; i < size; i++)
        twice[i] = 2 * call.gradients->storage[i];
    ck_assert_int_eq(call_backward(&call, NULL), STATUS_OK);
    expect_close("sum", call.gradients->storage, twice, size, 0, NULL,
                 TOLERANCE);
    free(twice);
    call_end(&call);
}
END_TEST

static void expect_zero_gradients(struct call *call)
{
    call_run(call);
    ck_assert(call->output.loss == 0);
    for (size_t i = 0; i < call->gradients->size; i++)
        ck_assert(call->gradients->storage[i] == 0);
}

START_TEST(ignored_labels_give_exactly_zero_gradients)
{
    int32_t labels[BATCH * TOKENS];
    struct call call;
    for (int i = 0; i < BATCH * TOKENS; i++)
        labels[i] = -100;
    call_begin(&call, &small);
    call.input.labels = labels;
    expect_zero_gradients(&call);
    call_end(&call);
    call_begin(&call, &small);
    call.input.tokens = 1;       /* nothing to predict */
    expect_zero_gradients(&call);
    call_end(&call);
}
END_TEST

static void expect_refusal(struct call *call, const char *about)
{
    struct error error = { 0 };
    for (size_t i = 0; i < call->gradients->size; i++)
        call->gradients->storage[i] = 7;
    ck_assert_int_eq(call_backward(call, &error), STATUS_INVALID);
    expect_named(&error, about);
    for (size_t i = 0; i < call->gradients->size; i++)
        ck_assert(call->gradients->storage[i] == 7);
}

START_TEST(what_does_not_belong_together_is_refused_by_name)
{
    struct gpt_config other = small;
    struct call call;
    call_begin(&call, &small);
    call_forward(&call);
    call.input.labels = NULL;
    expect_refusal(&call, "labels");
    call.input.labels = small_labels;
    call.output.has_loss = false;
    expect_refusal(&call, "labels");
    call.output.has_loss = true;
    call.input.batch = 1;
    expect_refusal(&call, "activations");
    call.input.batch = BATCH;
    call.input.tokens = 4;
    expect_refusal(&call, "activations");
    call.input.tokens = TOKENS;
    call.activations.past = 1;
    expect_refusal(&call, "activations");
    call.activations.past = 0;
    int *fields[] = { &other.vocab_size, &other.context_length,
                      &other.n_layers, &other.d_ff };
    for (size_t i = 0; i < COUNT(fields); i++) {
        parameters_free(&call.gradients);
        ++*fields[i];
        ck_assert_int_eq(parameters_new(&call.gradients, &other, NULL),
                         STATUS_OK);
        --*fields[i];
        expect_refusal(&call, "gradients");
    }
    call_end(&call);
}
END_TEST

START_TEST(backward_without_memory_changes_nothing)
{
    struct call call;
    struct error error;
    call_begin(&call, &small);
    call_forward(&call);
    long n = 1;
    for (;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = call_backward(&call, &error);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        for (size_t i = 0; i < call.gradients->size; i++)
            ck_assert(call.gradients->storage[i] == 0);
    }
    ck_assert_int_gt(n, 5);
    call_end(&call);
}
END_TEST

/* ------------------------------------------------------------------- AdamW */

static const struct gpt_config least = {
    .vocab_size = 2, .context_length = 1, .d_model = 1, .n_layers = 1,
    .n_heads = 1, .d_ff = 1, .layer_norm_eps = 1e-5
};

/* Steps the first weight of the least model through the given gradients. */
static double step_one(double weight, double decay, const double *gradients,
                       int count)
{
    struct parameters *p = NULL, *g = NULL;
    struct adamw adamw = { 0 };
    ck_assert_int_eq(parameters_new(&p, &least, NULL), STATUS_OK);
    ck_assert_int_eq(parameters_new(&g, &least, NULL), STATUS_OK);
    ck_assert_int_eq(adamw_new(&adamw, &least, 0.01, decay, NULL),
                     STATUS_OK);
    p->storage[0] = (float)weight;
    for (int i = 0; i < count; i++) {
        g->storage[0] = (float)gradients[i];
        adamw_step(&adamw, p, g);
    }
    double result = (double)p->storage[0];
    ck_assert_int_eq(adamw.step, count);
    adamw_free(&adamw);
    adamw_free(&adamw);
    adamw_free(NULL);
    parameters_free(&p);
    parameters_free(&g);
    return result;
}

START_TEST(first_step_moves_by_the_whole_learning_rate)
{
    double one[] = { 4 };
    ck_assert_double_eq_tol(step_one(1, 0, one, 1), 0.99, 1e-6);
    double small_one[] = { -4e-4 };
    ck_assert_double_eq_tol(step_one(1, 0, small_one, 1), 1.01, 1e-6);
}
END_TEST

START_TEST(second_step_averages_by_hand)
{
    /* g = 2, -1: m = 0.2, 0.08; v = 0.2, 0.24;
       corrected: 0.08/0.19 over sqrt(0.24/0.0975) */
    double both[] = { 2, -1 };
    double moved = 0.01 + 0.01 * (0.08 / 0.19) / sqrt(0.24 / 0.0975);
    ck_assert_double_eq_tol(step_one(1, 0, both, 2), 1 - moved, 1e-6);
}
END_TEST

START_TEST(steps_do_not_depend_on_the_gradient_scale)
{
    double plain[] = { 2, -1, 3 }, tall[] = { 2000, -1000, 3000 };
    ck_assert_double_eq_tol(step_one(1, 0, plain, 3), step_one(1, 0, tall, 3),
                            1e-6);
}
END_TEST

START_TEST(weight_decay_ignores_the_gradient)
{
    double none[] = { 0 }, tall[] = { 1000 };
    ck_assert_double_eq_tol(step_one(8, 0.5, none, 1), 8 * 0.995, 1e-6);
    ck_assert_double_eq_tol(step_one(8, 0.5, tall, 1), 8 * 0.995 - 0.01,
                            1e-6);
}
END_TEST

START_TEST(ten_steps_agree_with_the_oracle)
{
    struct golden *golden = golden_open("gpt_adamw");
    struct gpt_config config = golden_config(golden);
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    struct adamw adamw = { 0 };
    struct call call;
    float losses[10];
    call_begin(&call, &config);
    golden_weights(golden, tiny_gpt_parameters(call.model));
    call.input.ids = call.input.labels = ids->ids;
    call.input.batch = ids->shape[0];
    call.input.tokens = ids->shape[1];
    ck_assert_int_eq(adamw_new(&adamw, &config, golden_number(golden, "lr"),
                               golden_number(golden, "weight_decay"), NULL),
                     STATUS_OK);
    adamw.beta1 = golden_number(golden, "beta1");
    adamw.beta2 = golden_number(golden, "beta2");
    adamw.eps = golden_number(golden, "eps");
    for (int i = 0; i < 10; i++) {
        memset(call.gradients->storage, 0,
               call.gradients->size * sizeof (float));
        call_run(&call);
        losses[i] = call.output.loss;
        adamw_step(&adamw, tiny_gpt_parameters(call.model), call.gradients);
        forward_output_free(&call.output);
        activations_free(&call.activations);
    }
    expect_close("losses", losses, golden_get(golden, "out.losses")->f32, 10,
                 0, NULL, TOLERANCE);
    expect_tensors(golden, "out.w", tiny_gpt_parameters(call.model), false);
    adamw_free(&adamw);
    call_end(&call);
    golden_close(golden);
}
END_TEST

START_TEST(moments_without_memory_leave_nothing)
{
    struct adamw adamw = { 0 };
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = adamw_new(&adamw, &small, 1, 0, NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(adamw.first);
        ck_assert_ptr_null(adamw.second);
    }
    adamw_free(&adamw);
}
END_TEST

/* -------------------------------------------------------------------- text */

static char directory[64];

static void make_directory(void)
{
    snprintf(directory, sizeof directory, "%s/3b-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}

/* A path below the test's directory; good for 64 calls. */
static const char *below(const char *name)
{
    static char paths[64][192];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const char *bytes, size_t length)
{
    FILE *file = fopen(below(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static char *read_whole(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    char *bytes = malloc(1 << 22);
    *length = fread(bytes, 1, (1 << 22) - 1, file);
    bytes[*length] = '\0';
    fclose(file);
    return bytes;
}

/* A text that can be learned: 1,920 bytes, in an alphabet that differs from
   seed to seed. To a model of bytes all alphabets are the same. */
static void write_text(const char *name)
{
    char text[1921] = "";
    int32_t letters[256];
    uint64_t state = noise_start(40);
    noise_order(&state, 256, letters);
    for (int i = 0; i < 40; i++)
        strcat(text, i % 3 ? "the quick brown fox jumps over the lazy dog, yes"
                           : "and the lazy dog looks at it, once more, and no.");
    for (int i = 0; i < 1920; i++)
        text[i] = (char)letters[(unsigned char)text[i]];
    write_file(name, text, 1920);
}

START_TEST(corpus_joins_its_files_in_order)
{
    static char large[100000];
    struct corpus corpus = { 0 };
    struct error error = { 0 };
    make_directory();
    uint64_t state = noise_start(41);
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (char)noise_below(&state, 256);
    write_file("one", large, sizeof large);
    write_file("two", "\xff\x00z", 3);
    const char *paths[] = { below("one"), below("two"), below("one") };
    ck_assert_int_eq(corpus_read(&corpus, paths, 3, &error), STATUS_OK);
    ck_assert_uint_eq(corpus.length, 200003);
    ck_assert_uint_eq(corpus.training, 200003 - 10000);
    expect_same_bits("first", corpus.bytes, large, sizeof large);
    expect_same_bits("second", corpus.bytes + 100000, "\xff\x00z", 3);
    expect_same_bits("third", corpus.bytes + 100003, large, sizeof large);
    int32_t ids[3];
    corpus_window(&corpus, 100000, 3, ids);
    ck_assert(ids[0] == 255 && ids[1] == 0 && ids[2] == 'z');
    struct corpus other = { 0 };
    const char *turned[] = { below("two"), below("one"), below("one") };
    ck_assert_int_eq(corpus_read(&other, turned, 3, &error), STATUS_OK);
    ck_assert(other.fingerprint != corpus.fingerprint);
    corpus_free(&other);
    corpus_free(&corpus);
    corpus_free(&corpus);
    corpus_free(NULL);
    remove_directory();
}
END_TEST

START_TEST(files_without_text_are_refused_by_name)
{
    struct corpus corpus = { .length = 77 };
    struct error error;
    make_directory();
    write_file("full", "text", 4);
    write_file("empty", "", 0);
    struct { const char *path, *about; enum status status; } rows[] = {
        { below("absent"), "absent", STATUS_IO },
        { below("empty"), "empty", STATUS_INVALID },
        { directory, directory, STATUS_IO },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *paths[] = { below("full"), rows[i].path };
        long live = allocator_live();
        enum status status = corpus_read(&corpus, paths, 2, &error);
        long left = allocator_live();
        ck_assert_int_eq(status, rows[i].status);
        expect_named(&error, rows[i].about);
        ck_assert_uint_eq(corpus.length, 77);
        ck_assert_int_eq(left, live);
    }
    remove_directory();
}
END_TEST

START_TEST(text_must_hold_a_window_and_a_held_out_pair)
{
    struct error error = { 0 };
    struct corpus corpus = { .length = 40, .training = 38 };
    ck_assert_int_eq(corpus_check(&corpus, 38, NULL), STATUS_OK);
    ck_assert_int_eq(corpus_check(&corpus, 39, &error), STATUS_INVALID);
    expect_named(&error, "text");
    corpus = (struct corpus){ .length = 39, .training = 38 };
    ck_assert_int_eq(corpus_check(&corpus, 8, &error), STATUS_INVALID);
}
END_TEST

START_TEST(batches_reach_every_window_and_stay_out_of_the_held_out_text)
{
    unsigned char bytes[100];
    struct corpus corpus = { .bytes = bytes, .length = 100, .training = 95 };
    struct generator generator;
    bool seen[100] = { false };
    int32_t ids[3 * 10];
    for (int i = 0; i < 100; i++)
        bytes[i] = (unsigned char)i;
    uint64_t state = noise_start(42);
    generator_seed(&generator, noise_next(&state), 0);
    for (int draw = 0; draw < 1000; draw++) {
        corpus_batch(&corpus, &generator, 3, 10, ids);
        for (int b = 0; b < 3; b++) {
            for (int t = 1; t < 10; t++)
                ck_assert_int_eq(ids[b * 10 + t], ids[b * 10] + t);
            ck_assert_int_lt(ids[b * 10 + 9], 95);
            seen[ids[b * 10]] = true;
        }
    }
    /* 3000 draws leave one of 86 out with probability 86 · e^-35 */
    for (int at = 0; at <= 85; at++)
        ck_assert_msg(seen[at], "no window starts at %d", at);
}
END_TEST

START_TEST(corpus_without_memory_leaves_nothing)
{
    struct corpus corpus = { 0 };
    make_directory();
    write_text("text");
    const char *paths[] = { below("text") };
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = corpus_read(&corpus, paths, 1, NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(corpus.bytes);
    }
    corpus_free(&corpus);
    remove_directory();
}
END_TEST

/* ---------------------------------------------------------- a training run */

static const struct gpt_config byte_config = {
    .vocab_size = 256, .context_length = 16, .d_model = 8, .n_layers = 2,
    .n_heads = 2, .d_ff = 12, .dropout = 0.1, .layer_norm_eps = 1e-5
};

static const struct trainer_settings quick = {
    .batch = 3, .tokens = 16, .steps = 10, .warmup = 2,
    .learning_rate = 1e-2, .weight_decay = 0.1
};

static struct corpus text;

/* Of the run that a test begins with. */
static uint64_t run_seed(void)
{
    uint64_t state = noise_start(43);
    return noise_next(&state);
}

static void begin_run(struct trainer *trainer)
{
    struct error error = { 0 };
    make_directory();
    write_text("text");
    const char *paths[] = { below("text") };
    ck_assert_int_eq(corpus_read(&text, paths, 1, &error), STATUS_OK);
    enum status status = trainer_new(trainer, &byte_config, &quick, &text,
                                     run_seed(), &error);
    expect_ok(status, &error);
}

static void end_run(struct trainer *trainer)
{
    trainer_free(trainer);
    corpus_free(&text);
    remove_directory();
}

static void take_steps(struct trainer *trainer, int count, float *losses)
{
    struct error error = { 0 };
    for (int i = 0; i < count; i++) {
        enum status status = trainer_step(trainer, &losses[i], &error);
        expect_ok(status, &error);
    }
}

static void expect_same_run(const struct trainer *a, const struct trainer *b)
{
    size_t bytes = a->gradients->size * sizeof (float);
    expect_same_bits("weights", tiny_gpt_weights(a->model)->storage,
                     tiny_gpt_weights(b->model)->storage, bytes);
    expect_same_bits("first", a->adamw.first->storage,
                     b->adamw.first->storage, bytes);
    expect_same_bits("second", a->adamw.second->storage,
                     b->adamw.second->storage, bytes);
    ck_assert_int_eq(a->adamw.step, b->adamw.step);
    ck_assert(a->generator.state == b->generator.state);
    ck_assert(a->generator.increment == b->generator.increment);
}

START_TEST(learning_rate_rises_and_falls_by_hand)
{
    struct trainer_settings s = { .steps = 110, .warmup = 10,
                                  .learning_rate = 2 };
    ck_assert_double_eq_tol(learning_rate_at(&s, 0), 0.2, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 9), 2, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 10), 2, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 60), 1.1, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 110), 0.2, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 999), 0.2, 1e-12);
    s.warmup = 200;          /* longer than the run */
    ck_assert_double_eq_tol(learning_rate_at(&s, 109), 1.1, 1e-12);
    ck_assert_double_eq_tol(learning_rate_at(&s, 300), 0.2, 1e-12);
}
END_TEST

START_TEST(settings_are_refused_by_name)
{
    struct trainer trainer;
    begin_run(&trainer);
    struct trainer other = { .ids = NULL };
    struct { struct trainer_settings settings; const char *about; } rows[] = {
        { quick, "batch" }, { quick, "tokens" }, { quick, "tokens" },
        { quick, "steps" }, { quick, "warmup" }, { quick, "learning_rate" },
        { quick, "learning_rate" }, { quick, "weight_decay" },
        { quick, "weight_decay" },
    };
    rows[0].settings.batch = 0;
    rows[1].settings.tokens = 1;
    rows[2].settings.tokens = 17;
    rows[3].settings.steps = 0;
    rows[4].settings.warmup = -1;
    rows[5].settings.learning_rate = 0;
    rows[6].settings.learning_rate = (double)NAN;
    rows[7].settings.weight_decay = -0.1;
    rows[8].settings.weight_decay = (double)INFINITY;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error error = { 0 };
        long live = allocator_live();
        enum status status = trainer_new(&other, &byte_config,
                                         &rows[i].settings, &text,
                                         run_seed(), &error);
        long left = allocator_live();
        ck_assert_int_eq(status, STATUS_INVALID);
        expect_named(&error, rows[i].about);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(other.model);
    }
    struct gpt_config narrow = byte_config;
    struct error error = { 0 };
    narrow.vocab_size = 255;
    ck_assert_int_eq(trainer_new(&other, &narrow, &quick, &text, run_seed(),
                                 &error), STATUS_INVALID);
    expect_named(&error, "vocab_size");
    end_run(&trainer);
}
END_TEST

START_TEST(training_lowers_the_loss)
{
    struct trainer trainer;
    float losses[60], before, after, last = 0;
    begin_run(&trainer);
    trainer.settings.steps = 60;
    ck_assert_int_eq(trainer_held_out_loss(&trainer, &before, NULL),
                     STATUS_OK);
    take_steps(&trainer, 60, losses);
    ck_assert_int_eq(trainer_held_out_loss(&trainer, &after, NULL),
                     STATUS_OK);
    ck_assert_double_eq_tol((double)losses[0], log(256), 0.2);
    ck_assert_double_eq_tol((double)before, log(256), 0.2);
    /* one batch is 45 tokens: ten of them say it with less noise */
    for (int i = 50; i < 60; i++)
        last += losses[i] / 10;
    ck_assert(last < 3.5f);
    ck_assert(after < 3.5f);
    ck_assert_int_eq(tiny_gpt_mode(trainer.model), MODE_EVALUATION);
    end_run(&trainer);
}
END_TEST

START_TEST(held_out_loss_covers_its_windows_and_changes_nothing)
{
    struct trainer trainer;
    float first, again, sum = 0;
    begin_run(&trainer);
    struct generator before = trainer.generator;
    ck_assert_int_eq(trainer_held_out_loss(&trainer, &first, NULL),
                     STATUS_OK);
    ck_assert_int_eq(trainer_held_out_loss(&trainer, &again, NULL),
                     STATUS_OK);
    expect_same_bits("loss", &first, &again, sizeof first);
    ck_assert(before.state == trainer.generator.state);
    /* 96 held-out bytes are six windows of 16, side by side */
    ck_assert_uint_eq(text.length - text.training, 96);
    for (int i = 0; i < 6; i++) {
        int32_t ids[16];
        struct forward_output output = { 0 };
        struct forward_input input = { .ids = ids, .labels = ids,
                                       .batch = 1, .tokens = 16 };
        corpus_window(&text, text.training + 16 * (size_t)i, 16, ids);
        ck_assert_int_eq(tiny_gpt_forward(trainer.model, &input, &output,
                                          NULL), STATUS_OK);
        sum += output.loss;
        forward_output_free(&output);
    }
    ck_assert_double_eq_tol((double)first, (double)sum / 6, 1e-6);
    end_run(&trainer);
}
END_TEST

START_TEST(equal_seeds_train_equal_models)
{
    struct trainer a, b = { .ids = NULL }, c = { .ids = NULL };
    float losses[3][4];
    begin_run(&a);
    ck_assert_int_eq(trainer_new(&b, &byte_config, &quick, &text,
                                 run_seed(), NULL), STATUS_OK);
    ck_assert_int_eq(trainer_new(&c, &byte_config, &quick, &text,
                                 run_seed() + 1, NULL), STATUS_OK);
    take_steps(&a, 4, losses[0]);
    take_steps(&b, 4, losses[1]);
    take_steps(&c, 4, losses[2]);
    expect_same_bits("losses", losses[0], losses[1], sizeof losses[0]);
    ck_assert(memcmp(losses[0], losses[2], sizeof losses[0]) != 0);
    expect_same_run(&a, &b);
    trainer_free(&b);
    trainer_free(&c);
    trainer_free(NULL);
    end_run(&a);
}
END_TEST

START_TEST(a_failed_step_can_be_taken_again)
{
    struct trainer a, b = { .ids = NULL };
    float expected[2], loss[2] = { 0 };
    begin_run(&a);
    ck_assert_int_eq(trainer_new(&b, &byte_config, &quick, &text,
                                 run_seed(), NULL), STATUS_OK);
    take_steps(&a, 2, expected);
    take_steps(&b, 1, loss);
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = trainer_step(&b, &loss[1], NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert(loss[1] == 0);
    }
    expect_same_bits("losses", expected, loss, sizeof loss);
    expect_same_run(&a, &b);
    trainer_free(&b);
    end_run(&a);
}
END_TEST

START_TEST(a_loss_that_is_not_finite_leaves_the_weights_alone)
{
    struct trainer trainer;
    struct error error = { 0 };
    float loss;
    begin_run(&trainer);
    struct parameters *p = tiny_gpt_parameters(trainer.model);
    p->final_norm.bias.data[0] = INFINITY;
    struct generator before = trainer.generator;
    float weight = p->blocks[0].mlp.up_proj.weight.data[0];
    ck_assert_int_eq(trainer_step(&trainer, &loss, &error), STATUS_INVALID);
    expect_named(&error, "loss: not finite at step 1");
    ck_assert(p->blocks[0].mlp.up_proj.weight.data[0] == weight);
    ck_assert_int_eq(trainer.adamw.step, 0);
    ck_assert(before.state == trainer.generator.state);
    ck_assert_int_eq(tiny_gpt_mode(trainer.model), MODE_EVALUATION);
    end_run(&trainer);
}
END_TEST

START_TEST(a_resumed_run_repeats_an_uninterrupted_one)
{
    struct trainer a, b = { .ids = NULL }, c = { .ids = NULL };
    struct error error = { 0 };
    float expected[10], losses[10];
    begin_run(&a);
    take_steps(&a, 10, expected);
    ck_assert_int_eq(trainer_new(&b, &byte_config, &quick, &text,
                                 run_seed(), NULL), STATUS_OK);
    take_steps(&b, 4, losses);
    enum status status = trainer_save(&b, directory, &error);
    expect_ok(status, &error);
    trainer_free(&b);
    status = trainer_load(&c, directory, &text, &error);
    expect_ok(status, &error);
    ck_assert_int_eq(c.adamw.step, 4);
    ck_assert_mem_eq(&c.settings, &quick, sizeof quick);
    ck_assert(tiny_gpt_config(c.model)->dropout == 0.1);
    take_steps(&c, 6, losses + 4);
    expect_same_bits("losses", losses, expected, sizeof losses);
    expect_same_run(&a, &c);
    trainer_free(&c);
    end_run(&a);
}
END_TEST

START_TEST(the_saved_directory_is_a_model_directory)
{
    struct trainer trainer;
    struct tiny_gpt *model = NULL;
    float losses[2];
    begin_run(&trainer);
    take_steps(&trainer, 2, losses);
    ck_assert_int_eq(trainer_save(&trainer, directory, NULL), STATUS_OK);
    ck_assert_int_eq(tiny_gpt_load(&model, directory, NULL), STATUS_OK);
    expect_same_bits("weights", tiny_gpt_weights(model)->storage,
                     tiny_gpt_weights(trainer.model)->storage,
                     trainer.gradients->size * sizeof (float));
    tiny_gpt_free(&model);
    end_run(&trainer);
}
END_TEST

/* Loading must fail, name what is wrong, leak nothing, and leave *trainer. */
static void expect_no_load(enum status expected, const char *about)
{
    struct trainer trainer = { .settings = { .batch = 77 } };
    struct error error = { 0 };
    long live = allocator_live();
    enum status status = trainer_load(&trainer, directory, &text, &error);
    long left = allocator_live();
    ck_assert_msg(status != STATUS_OK, "loaded, though %s", about);
    if (expected != STATUS_OK)
        ck_assert_msg(status == expected, "%s", error.message);
    expect_named(&error, about);
    ck_assert_int_eq(left, live);
    ck_assert_int_eq(trainer.settings.batch, 77);
    ck_assert_ptr_null(trainer.model);
}

START_TEST(a_damaged_state_is_refused)
{
    struct trainer trainer;
    size_t length, part;
    begin_run(&trainer);
    expect_no_load(STATUS_IO, "training.safetensors");
    ck_assert_int_eq(trainer_save(&trainer, directory, NULL), STATUS_OK);
    char *bytes = read_whole(below("training.safetensors"), &length);
    size_t header = (unsigned char)bytes[0]
                    + ((size_t)(unsigned char)bytes[1] << 8);
    size_t cuts[] = { 0, 7, 8, 9, 7 + header, 8 + header, 9 + header,
                      length / 2, length - 4, length - 1 };
    for (size_t i = 0; i < COUNT(cuts); i++) {
        write_file("training.safetensors", bytes, cuts[i]);
        expect_no_load(STATUS_OK, "training.safetensors");
    }
    /* rename what must be there; every name keeps its length */
    const char *names[] = { "config", "batch", "warmup", "learning_rate",
                            "step", "generator.state", "text.fingerprint",
                            "first.token_embedding.weight",
                            "second.blocks.1.mlp.up_proj.bias",
                            "model.final_norm.bias" };
    for (size_t i = 0; i < COUNT(names); i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\":", names[i]);
        char *copy = memcpy(malloc(length), bytes, length);
        bool found = false;
        part = strlen(quoted);
        for (size_t at = 0; !found && at + part < length; at++)
            if (memcmp(copy + at, quoted, part) == 0) {
                copy[at + part - 3] = '#';
                found = true;
            }
        ck_assert_msg(found, "the state has no %s", names[i]);
        write_file("training.safetensors", copy, length);
        free(copy);
        snprintf(quoted, sizeof quoted, "%.*s", (int)strlen(names[i]) - 1,
                 names[i]);
        expect_no_load(STATUS_FORMAT, quoted);
    }
    free(bytes);
    end_run(&trainer);
}
END_TEST

START_TEST(numbers_of_the_state_must_be_numbers)
{
    struct trainer trainer;
    size_t length;
    begin_run(&trainer);
    ck_assert_int_eq(trainer_save(&trainer, directory, NULL), STATUS_OK);
    char *bytes = read_whole(below("training.safetensors"), &length);
    struct { const char *good, *bad, *about; } rows[] = {
        { "\"batch\":\"3\"", "\"batch\":\"x\"", "batch" },
        { "\"batch\":\"3\"", "\"batch\":\"0\"", "batch" },
        { "\"tokens\":\"16\"", "\"tokens\":\"1x\"", "tokens" },
        { "\"step\":\"0\"", "\"step\":\"-\"", "step" },
        { "\"warmup\":\"2\"", "\"warmup\":\" \"", "warmup" },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *copy = memcpy(malloc(length), bytes, length);
        size_t part = strlen(rows[i].good), at = 0;
        while (at + part < length && memcmp(copy + at, rows[i].good, part))
            at++;
        ck_assert_msg(at + part < length, "no %s", rows[i].good);
        memcpy(copy + at, rows[i].bad, part);
        write_file("training.safetensors", copy, length);
        free(copy);
        expect_no_load(STATUS_OK, rows[i].about);
    }
    free(bytes);
    end_run(&trainer);
}
END_TEST

START_TEST(another_text_does_not_continue_a_run)
{
    struct trainer trainer;
    begin_run(&trainer);
    ck_assert_int_eq(trainer_save(&trainer, directory, NULL), STATUS_OK);
    text.fingerprint ^= 1;
    expect_no_load(STATUS_INVALID, "text");
    text.fingerprint ^= 1;
    text.length--;
    expect_no_load(STATUS_INVALID, "text");
    text.length++;
    end_run(&trainer);
}
END_TEST

START_TEST(saving_and_loading_without_memory_leave_nothing)
{
    struct trainer trainer, loaded = { .ids = NULL };
    begin_run(&trainer);
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = trainer_save(&trainer, directory, NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
    }
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = trainer_load(&loaded, directory, &text, NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(loaded.model);
    }
    trainer_free(&loaded);
    for (long n = 1;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = trainer_new(&loaded, &byte_config, &quick, &text,
                                         run_seed(), NULL);
        long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(loaded.model);
    }
    trainer_free(&loaded);
    end_run(&trainer);
}
END_TEST

START_TEST(a_full_disk_leaves_the_last_checkpoint)
{
    struct trainer trainer;
    struct error error = { 0 };
    struct rlimit limit, full;
    float losses[1];
    size_t length, again;
    begin_run(&trainer);
    ck_assert_int_eq(trainer_save(&trainer, directory, NULL), STATUS_OK);
    char *before = read_whole(below("training.safetensors"), &length);
    take_steps(&trainer, 1, losses);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    full = limit;
    full.rlim_cur = 10000;
    setrlimit(RLIMIT_FSIZE, &full);
    enum status status = trainer_save(&trainer, directory, &error);
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(status, STATUS_IO);
    expect_named(&error, "training.safetensors");
    char *after = read_whole(below("training.safetensors"), &again);
    ck_assert_uint_eq(length, again);
    expect_same_bits("the checkpoint", before, after, length);
    char listing[256];
    snprintf(listing, sizeof listing, "test \"$(ls -A '%s' | wc -l)\" = 4",
             directory);
    ck_assert_int_eq(system(listing), 0);    /* text and three files */
    free(before);
    free(after);
    end_run(&trainer);
}
END_TEST

/* ------------------------------------------------------------- the command */

/* Runs "tinygpt train ARGUMENTS" in a shell and returns its status; what it
   printed on both streams is in said. */
static char said[8192];

static int run_train(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

static int run_train(const char *format, ...)
{
    char arguments[1024], command[6000];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "'%s' train %s > '%s' 2>&1",
             harness_program(), arguments, below("said"));
    int status = system(command);
    size_t length;
    char *bytes = read_whole(below("said"), &length);
    snprintf(said, sizeof said, "%s", bytes);
    free(bytes);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define TINY "--context 16 --d-model 8 --layers 1 --heads 2 --batch 2 "

static void expect_said(int status, int expected, const char *about)
{
    ck_assert_msg(status == expected && strstr(said, about) != NULL,
                  "status %d, expected %d and word of \"%s\": %s", status,
                  expected, about, said);
}

static bool exists(const char *name)
{
    struct stat about;
    return stat(below(name), &about) == 0;
}

START_TEST(train_refuses_bad_usage)
{
    make_directory();
    write_text("text");
    const char *t = below("text"), *o = below("out");
    expect_said(run_train("--out %s", o), 2, "--text");
    expect_said(run_train("--text %s", t), 2, "--out");
    expect_said(run_train("--text %s --out", t), 2, "--out");
    expect_said(run_train("--text %s --out %s --stepz 3", t, o), 2,
                "--stepz");
    expect_said(run_train("--text %s --out %s --steps 0", t, o), 2,
                "--steps");
    expect_said(run_train("--text %s --out %s --learning-rate x", t, o), 2,
                "--learning-rate");
    expect_said(run_train("--text %s --out %s --seed -1", t, o), 2,
                "--seed");
    expect_said(run_train("--text %s --resume %s --heads 2", t, o), 2,
                "--heads");
    ck_assert(!exists("out"));
    remove_directory();
}
END_TEST

START_TEST(train_refuses_bad_input_and_leaves_nothing)
{
    make_directory();
    write_text("text");
    write_file("empty", "", 0);
    write_file("short", "too short", 9);
    const char *t = below("text"), *o = below("out");
    expect_said(run_train("--text %s --out %s", below("absent"), o), 1,
                "absent");
    expect_said(run_train("--text %s --out %s", below("empty"), o), 1,
                "empty");
    expect_said(run_train("--text %s --out %s", below("short"), o), 1,
                "text");
    expect_said(run_train("--text %s --out %s --d-model 7", t, o), 1,
                "n_heads");
    expect_said(run_train("--text %s --out %s --dropout 1", t, o), 1,
                "dropout");
    expect_said(run_train("--text %s --out %s --learning-rate 0", t, o), 1,
                "learning_rate");
    expect_said(run_train("--text %s --resume %s", t, o), 1,
                "training.safetensors");
    ck_assert(!exists("out"));
    expect_said(run_train("--text %s --out %s", t, t), 1, "text");
    expect_said(run_train("--text %s --out %s/no/out", t, o), 1, "no/out");
    expect_said(run_train("--text %s --out %s --log %s/no/log " TINY, t, o,
                          directory), 1, "no/log");
    ck_assert(!exists("out/model.safetensors"));
    expect_said(run_train("--text %s --out %s --log /dev/full --steps 2 "
                          TINY, t, o), 1, "/dev/full");
    ck_assert(!exists("out/model.safetensors"));
    remove_directory();
}
END_TEST

/* The losses that a log reports, and how many. */
static int read_losses(const char *name, char losses[][32])
{
    FILE *file = fopen(below(name), "r");
    char line[256];
    int count = 0;
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        int step;
        if (sscanf(line, "{\"step\":%d,\"loss\":%31[^,]", &step,
                   losses[count]) == 2)
            ck_assert_int_eq(step, ++count);
    }
    fclose(file);
    return count;
}

START_TEST(train_makes_a_model_and_resumes_exactly)
{
    char whole[16][32], parts[16][32];
    make_directory();
    write_text("text");
    const char *t = below("text");
    expect_said(run_train("--text %s --out %s --log %s --steps 10 "
                          "--dropout 0.1 " TINY, t, below("a"),
                          below("a.log")), 0, "held-out loss");
    ck_assert(exists("a/config.json") && exists("a/model.safetensors")
              && exists("a/training.safetensors"));
    ck_assert_int_eq(read_losses("a.log", whole), 10);
    /* the same run once more says the same, whatever it is asked to print */
    expect_said(run_train("--text %s --out %s --json --steps 10 --save-every "
                          "5 --dropout 0.1 " TINY, t, below("b")), 0,
                "\"held_out_loss\"");
    ck_assert_ptr_nonnull(strstr(said, whole[9]));
    /* a finished run has nothing left to do */
    expect_said(run_train("--text %s --resume %s --log %s", t, below("a"),
                          below("a.log")), 0, "");
    ck_assert_int_eq(read_losses("a.log", parts), 10);
    expect_said(run_train("--text %s --resume %s --out %s --log %s --steps 12",
                          t, below("a"), below("c"), below("a.log")), 0,
                "step 12");
    ck_assert_int_eq(read_losses("a.log", parts), 12);
    ck_assert(exists("c/model.safetensors"));
    remove_directory();
}
END_TEST

/* Starts a run of 100000 steps in out, or takes it up; it logs to out.log. */
static pid_t start_train(const char *out, bool resume)
{
    static char text_path[192], directory_path[192], log[200];
    strcpy(text_path, below("text"));
    strcpy(directory_path, below(out));
    snprintf(log, sizeof log, "%s.log", directory_path);
    char *words[] = { (char *)harness_program(), "train", "--text",
        text_path, "--log", log, resume ? "--resume" : "--out",
        directory_path, "--steps", "100000", resume ? NULL : "--context", "16", "--d-model", "8",
        "--layers", "1", "--heads", "2", "--batch", "2", "--dropout", "0.1",
        NULL };
    char *environment[] = { NULL };
    posix_spawn_file_actions_t actions;
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, below("said"),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert_int_eq(posix_spawn(&child, words[0], &actions, NULL, words,
                                 environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

static off_t size_of(const char *name)
{
    struct stat about;
    return stat(below(name), &about) == 0 ? about.st_size : 0;
}

/* Lets the run log some steps more, and then asks it to stop. */
static void stop_train(pid_t child, const char *log, int signal_number)
{
    struct timespec pause = { .tv_nsec = 5000000 };
    off_t size = size_of(log);
    int status;
    for (int i = 0; i < 6000 && size_of(log) < size + 500; i++) {
        ck_assert_msg(waitpid(child, &status, WNOHANG) == 0,
                      "the run ended by itself");
        nanosleep(&pause, NULL);
    }
    ck_assert_int_ge(size_of(log), size + 500);
    kill(child, signal_number);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 128 + signal_number);
}

START_TEST(an_interrupted_run_saves_and_says_how_to_go_on)
{
    make_directory();
    write_text("text");
    stop_train(start_train("a", false), "a.log", SIGTERM);
    size_t length;
    char *bytes = read_whole(below("said"), &length);
    ck_assert_ptr_nonnull(strstr(bytes, "stopped after step"));
    ck_assert_ptr_nonnull(strstr(bytes, "--resume"));
    free(bytes);
    ck_assert(exists("a/model.safetensors"));
    ck_assert(exists("a/training.safetensors"));
    remove_directory();
}
END_TEST

START_TEST(an_interrupted_run_goes_on_bit_for_bit)
{
    static char once[100001][32], twice[100001][32];
    make_directory();
    write_text("text");
    stop_train(start_train("a", false), "a.log", SIGINT);
    stop_train(start_train("a", true), "a.log", SIGINT);
    stop_train(start_train("b", false), "b.log", SIGINT);
    stop_train(start_train("b", true), "b.log", SIGINT);
    int steps = read_losses("a.log", twice), others = read_losses("b.log", once);
    for (int i = 0; i < steps && i < others; i++)
        ck_assert_str_eq(once[i], twice[i]);
    ck_assert_int_ge(steps, 10);
    ck_assert_int_ge(others, 10);
    remove_directory();
}
END_TEST

static const struct test tests[] = {
    TEST(linear_sends_each_gradient_back_through_its_weights, 1,
         "send each output's gradient back through its row of weights"),
    TEST(linear_weight_gradient_is_a_sum_of_outer_products, 1,
         "add the outer products of the rows to the weight's gradient"),
    TEST(linear_bias_gradient_sums_over_all_rows, 1,
         "sum the output's gradient over the rows into the bias's gradient"),
    TEST(linear_without_a_bias_has_no_bias_gradient, 1,
         "sum the output's gradient over the rows into the bias's gradient"),
    TEST(layer_norm_gradient_has_no_shift_and_no_stretch, 1,
         "average what the row's normalisation holds fixed"),
    TEST(layer_norm_input_gradient_agrees_with_differences, 1,
         "add the three-term gradient of the row"),
    TEST(layer_norm_gain_and_offset_gradients_agree_with_differences, 1,
         "add the three-term gradient of the row"),
    TEST(gelu_slope_has_its_known_values, 1,
         "multiply by the slope of GELU"),
    TEST(gelu_gradient_agrees_with_differences, 1,
         "multiply by the slope of GELU"),
    TEST(embedding_rows_collect_every_use, 1,
         "give each row's gradient to its token and its position"),
    TEST(split_heads_send_their_gradients_home, 1,
         "the backward pass of the two reshapes"),
    TEST(merged_heads_send_their_gradients_home, 1,
         "the backward pass of the two reshapes"),
    TEST(softmax_gradient_takes_out_the_mean, 1,
         "take the mean gradient out of the row"),
    TEST(hidden_keys_and_empty_rows_get_exactly_zero, 1,
         "take the mean gradient out of the row"),
    TEST(attention_asks_each_probability_through_its_value, 1,
         "ask how each probability of query i should move"),
    TEST(query_key_and_value_gradients_agree_with_differences, 1,
         "add what query i asks of the keys and the values"),
    TEST(attention_gradients_pass_the_recorded_dropout_mask, 1,
         "ask how each probability of query i should move"),
    TEST(every_backward_function_adds_to_its_gradients, 1,
         "add a scaled vector to a sum"),
    TEST(gradient_passes_around_the_feed_forward_half, 1,
         "send the output's gradient around the feed-forward half"),
    TEST(gradient_passes_around_the_attention_half, 1,
         "send the residual's gradient around the attention"),
    TEST(tied_table_receives_both_of_its_gradients, 1,
         "add the embedding's use of the tied table"),
    TEST(every_gradient_agrees_with_differences_of_a_plain_forward, 1,
         "walk the blocks from the last to the first"),
    TEST(every_gradient_agrees_with_the_oracle, 1,
         "walk the blocks from the last to the first"),
    TEST(key_biases_have_no_gradient, 1,
         "take the context's gradient through attention"),
    TEST(every_gradient_passes_the_recorded_dropout_masks, 1,
         "carry a gradient past dropout"),
    TEST(a_second_call_adds_its_gradient_to_the_first, 1,
         "start the walk with the gradient of the logits"),
    TEST(ignored_labels_give_exactly_zero_gradients, 1,
         "start the walk with the gradient of the logits"),
    TEST(what_does_not_belong_together_is_refused_by_name, 1,
         "refuse calls that do not belong together"),
    TEST(backward_without_memory_changes_nothing, 1,
         "make room for the gradients of activations and logits"),
    TEST(first_step_moves_by_the_whole_learning_rate, 1,
         "let the bias corrections undo the zero start"),
    TEST(second_step_averages_by_hand, 1,
         "average the gradient and its square"),
    TEST(steps_do_not_depend_on_the_gradient_scale, 1,
         "move each element by its own scale"),
    TEST(weight_decay_ignores_the_gradient, 1,
         "let the weight decay on its own"),
    TEST(ten_steps_agree_with_the_oracle, 1,
         "move each element by its own scale"),
    TEST(moments_without_memory_leave_nothing, 1,
         "make and free the moments"),
    TEST(corpus_joins_its_files_in_order, 1, "read a corpus of several files"),
    TEST(files_without_text_are_refused_by_name, 1,
         "append a file to the corpus"),
    TEST(text_must_hold_a_window_and_a_held_out_pair, 1,
         "refuse a text that is too short"),
    TEST(batches_reach_every_window_and_stay_out_of_the_held_out_text, 1,
         "draw windows of text"),
    TEST(corpus_without_memory_leaves_nothing, 1,
         "put the bytes behind those that are there"),
    TEST(learning_rate_rises_and_falls_by_hand, 1,
         "the schedule of the learning rate"),
    TEST(settings_are_refused_by_name, 1, "refuse settings of a run"),
    TEST(training_lowers_the_loss, 1, "one step of a run"),
    TEST(held_out_loss_covers_its_windows_and_changes_nothing, 1,
         "the loss on held-out text"),
    TEST(equal_seeds_train_equal_models, 1, "one step of a run"),
    TEST(a_failed_step_can_be_taken_again, 1,
         "move the weights and publish the step"),
    TEST(a_loss_that_is_not_finite_leaves_the_weights_alone, 1,
         "refuse a loss that is not finite"),
    TEST(a_resumed_run_repeats_an_uninterrupted_one, 1,
         "take and put back the record of a run"),
    TEST(the_saved_directory_is_a_model_directory, 1, "save a run"),
    TEST(a_damaged_state_is_refused, 1, "load a run"),
    TEST(numbers_of_the_state_must_be_numbers, 1,
         "refuse a value that is not a number of its kind"),
    TEST(another_text_does_not_continue_a_run, 1,
         "refuse a text that the run did not begin with"),
    TEST(saving_and_loading_without_memory_leave_nothing, 1, "save a run"),
    TEST(a_full_disk_leaves_the_last_checkpoint, 1, "write the state file"),
    TEST(train_refuses_bad_usage, 1, "read the arguments of train"),
    TEST(train_refuses_bad_input_and_leaves_nothing, 1,
         "begin a run or take one up"),
    TEST(train_makes_a_model_and_resumes_exactly, 1,
         "train until the end or an interruption"),
    TEST(an_interrupted_run_saves_and_says_how_to_go_on, 1,
         "stop after the step that is running"),
    TEST(an_interrupted_run_goes_on_bit_for_bit, 1,
         "train until the end or an interruption"),
};

SUITE("chapter 3b, the backward pass", tests);
