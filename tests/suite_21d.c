/* Chapter 21d: every pass on kernels. Each function against sums in double,
   at sizes on both sides of a tile, and its bits with one thread against
   those with more. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "adamw.h"
#include "attention.h"
#include "attention_backward.h"
#include "causal_lm.h"
#include "layers_backward.h"
#include "linear.h"
#include "loss.h"
#include "mask.h"
#include "support/compare.h"
#include "support/models.h"

static struct error error;

static float *floats(uint64_t *state, size_t count)
{
    float *made = malloc((count + 1) * sizeof *made);
    ck_assert_ptr_nonnull(made);
    noise_floats(state, count, made);
    return made;
}

static float *copy(const float *from, size_t count)
{
    float *made = malloc((count + 1) * sizeof *made);
    ck_assert_ptr_nonnull(made);
    memcpy(made, from, count * sizeof *made);
    return made;
}

/* Each element within 1e-5 of a sum in double, whose terms are of size 1. */
static void near(const char *what, const float *actual,
                 const double *expected, size_t count, double scale)
{
    for (size_t k = 0; k < count; k++)
        ck_assert_msg(fabs((double)actual[k] - expected[k])
                      <= 1e-5 * (scale + fabs(expected[k])),
                      "%s: element %zu is %.9g, expected %.9g", what, k,
                      (double)actual[k], expected[k]);
}

/* --------------------------------------------------------------- products */

/* Every output, input and row count on both sides of a tile or a panel. */
static const struct { int rows, in, out; } sizes[] = {
    {1, 1, 1}, {1, 33, 31}, {2, 7, 65}, {13, 31, 32}, {64, 32, 33},
    {129, 65, 70}, {37, 130, 3}
};

START_TEST(a_linear_layers_gradients_are_sums_over_rows_and_outputs)
{
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t state = noise_start(50 + (unsigned)k);
        const int rows = sizes[k].rows, in = sizes[k].in, out = sizes[k].out;
        const size_t r = (size_t)rows, i = (size_t)in, o = (size_t)out;
        float *x = floats(&state, r * i), *d_y = floats(&state, r * o);
        float *w = floats(&state, o * i), *d_x = floats(&state, r * i);
        float *d_w = floats(&state, o * i), *d_b = floats(&state, o);
        double *want_x = calloc(r * i, sizeof *want_x);
        double *want_w = calloc(o * i, sizeof *want_w);
        double *want_b = calloc(o, sizeof *want_b);
        for (size_t a = 0; a < r * i; a++)
            want_x[a] = d_x[a];
        for (size_t a = 0; a < o * i; a++)
            want_w[a] = d_w[a];
        for (size_t a = 0; a < o; a++)
            want_b[a] = d_b[a];
        for (size_t a = 0; a < r; a++)
            for (size_t b = 0; b < o; b++) {
                const double d = d_y[a * o + b];
                want_b[b] += d;
                for (size_t c = 0; c < i; c++) {
                    want_x[a * i + c] += d * w[b * i + c];
                    want_w[b * i + c] += d * x[a * i + c];
                }
            }
        const struct linear linear = {.weight = {w, 2, {out, in}}};
        struct linear gradients = {{d_w, 2, {out, in}}, {d_b, 1, {out}}};
        linear_backward(&linear, x, d_y, rows, d_x, &gradients);
        near("d_in", d_x, want_x, r * i, sqrt(out));
        near("weight", d_w, want_w, o * i, sqrt(rows));
        near("bias", d_b, want_b, o, sqrt(rows));
        free(x), free(d_y), free(w), free(d_x), free(d_w), free(d_b);
        free(want_x), free(want_w), free(want_b);
    }
}
END_TEST

/* ------------------------------------------------------------------ norms */

START_TEST(the_gradients_of_a_norm_do_not_depend_on_the_threads)
{
    enum { ROWS = 300, C = 130 };
    uint64_t state = noise_start(60);
    float *x = floats(&state, ROWS * C), *d_y = floats(&state, ROWS * C);
    float *gain = floats(&state, C);
    float *made[3][3];
    static const int threads[] = {1, 2, 5};
    for (int k = 0; k < 3; k++) {
        omp_set_num_threads(threads[k]);
        float zero[C] = {0};
        const struct layer_norm norm = {{gain, 1, {C}}, {zero, 1, {C}}};
        for (int part = 0; part < 3; part++)
            made[k][part] = calloc(ROWS * C, sizeof (float));
        struct layer_norm gradients = {{made[k][1], 1, {C}},
                                       {made[k][2], 1, {C}}};
        layer_norm_backward(&norm, 1e-5, x, d_y, ROWS, made[k][0],
                            &gradients);
        for (int part = 0; part < 3; part++)
            expect_same_bits("threads", made[k][part], made[0][part],
                             ROWS * C * sizeof (float));
    }
    double sums[C] = {0};
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < C; c++)
            sums[c] += d_y[r * C + c];
    near("offset", made[0][2], sums, C, sqrt(ROWS));
    for (int k = 0; k < 3; k++)
        for (int part = 0; part < 3; part++)
            free(made[k][part]);
    free(x), free(d_y), free(gain);
}
END_TEST

/* -------------------------------------------------------------- attention */

struct attention_case { int heads, queries, keys, head_dim; bool drop; };

static const struct attention_case cases[] = {
    {1, 1, 1, 1, false}, {2, 5, 5, 7, false}, {1, 63, 65, 8, true},
    {3, 64, 64, 10, false}, {2, 65, 70, 33, true}, {1, 130, 130, 16, false}
};

/* Causal probabilities of some slices. */
static float *probabilities(const struct attention_case *c, uint64_t *state)
{
    const size_t cells = (size_t)c->heads * (size_t)c->queries
                         * (size_t)c->keys;
    float *probs = floats(state, cells);
    for (int r = 0; r < c->heads * c->queries; r++) {
        const int seen = c->keys - c->queries + r % c->queries + 1;
        float sum = 0;
        for (int j = 0; j < c->keys; j++) {
            float *p = &probs[(ptrdiff_t)r * c->keys + j];
            *p = j < seen ? *p * *p + 0.01f : 0;
            sum += *p;
        }
        for (int j = 0; j < c->keys; j++)
            probs[(ptrdiff_t)r * c->keys + j] /= sum;
    }
    return probs;
}

/* By the formulas, one number after the other; arrays of double. */
static void attention_by_hand(const struct attention_case *c,
                              const float *q, const float *k, const float *v,
                              const float *p, const float *drop,
                              const float *d_o, double *d_q, double *d_k,
                              double *d_v)
{
    const double scale = 1 / sqrt(c->head_dim);
    for (int h = 0; h < c->heads; h++)
        for (int i = 0; i < c->queries; i++) {
            const ptrdiff_t row = ((ptrdiff_t)h * c->queries + i);
            double mean = 0, *d_p = calloc((size_t)c->keys, sizeof *d_p);
            for (int j = 0; j < c->keys; j++) {
                const ptrdiff_t cell = row * c->keys + j;
                const ptrdiff_t kv = ((ptrdiff_t)h * c->keys + j)
                                     * c->head_dim;
                for (int d = 0; d < c->head_dim; d++) {
                    d_p[j] += (double)d_o[row * c->head_dim + d] * v[kv + d];
                    d_v[kv + d] += (double)p[cell]
                        * (drop != NULL ? drop[cell] : 1)
                        * d_o[row * c->head_dim + d];
                }
                d_p[j] *= drop != NULL ? drop[cell] : 1;
                mean += p[cell] * d_p[j];
            }
            for (int j = 0; j < c->keys; j++) {
                const double d_s = scale * p[row * c->keys + j]
                                   * (d_p[j] - mean);
                const ptrdiff_t kv = ((ptrdiff_t)h * c->keys + j)
                                     * c->head_dim;
                for (int d = 0; d < c->head_dim; d++) {
                    d_q[row * c->head_dim + d] += d_s * k[kv + d];
                    d_k[kv + d] += d_s * q[row * c->head_dim + d];
                }
            }
            free(d_p);
        }
}

START_TEST(attention_goes_backwards_at_every_edge_of_a_tile)
{
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const struct attention_case *c = &cases[n];
        uint64_t state = noise_start(70 + (unsigned)n);
        const size_t rows = (size_t)c->heads * (size_t)c->queries
                            * (size_t)c->head_dim;
        const size_t slots = (size_t)c->heads * (size_t)c->keys
                             * (size_t)c->head_dim;
        const size_t cells = (size_t)c->heads * (size_t)c->queries
                             * (size_t)c->keys;
        float *q = floats(&state, rows), *d_o = floats(&state, rows);
        float *k = floats(&state, slots), *v = floats(&state, slots);
        float *p = probabilities(c, &state), *drop = floats(&state, cells);
        for (size_t a = 0; a < cells; a++)
            drop[a] = drop[a] > 0 ? 2 : 0;
        float *made[2][5];
        double *want[3] = {calloc(rows, 8), calloc(slots, 8),
                           calloc(slots, 8)};
        attention_by_hand(c, q, k, v, p, c->drop ? drop : NULL, d_o, want[0],
                          want[1], want[2]);
        for (int t = 0; t < 2; t++) {
            omp_set_num_threads(t == 0 ? 1 : 3);
            const size_t counts[] = {cells, cells, rows, slots, slots};
            for (int part = 0; part < 5; part++)
                made[t][part] = calloc(counts[part], sizeof (float));
            attention_backward(q, k, v, p, c->drop ? drop : NULL, d_o,
                               c->heads, c->queries, c->keys, c->head_dim,
                               made[t][0], made[t][1], made[t][2],
                               made[t][3], made[t][4]);
            for (int part = 0; part < 5; part++)
                expect_same_bits("threads", made[t][part], made[0][part],
                                 counts[part] * sizeof (float));
        }
        near("d_query", made[0][2], want[0], rows, 1);
        near("d_key", made[0][3], want[1], slots, 1);
        near("d_value", made[0][4], want[2], slots, 1);
        for (int part = 0; part < 5; part++)
            free(made[0][part]), free(made[1][part]);
        free(want[0]), free(want[1]), free(want[2]);
        free(q), free(k), free(v), free(p), free(drop), free(d_o);
    }
}
END_TEST

/* The last query's row hides a key; the others are causal. */
START_TEST(a_row_of_the_mask_changes_no_bit_of_another)
{
    enum { HEADS = 18, Q = 5, S = 8, D = 6 };
    uint64_t state = noise_start(80);
    float *q = floats(&state, HEADS * Q * D);
    float *k = floats(&state, HEADS * S * D);
    float *v = floats(&state, HEADS * S * D);
    float scores[HEADS * Q * S], probs[HEADS * Q * S];
    float whole[HEADS * Q * D], part[HEADS * Q * D];
    bool keep[Q * S];
    causal_mask(S - Q, Q, keep);
    attention_forward(q, k, v, keep, HEADS, Q, S, D, scores, probs, whole);
    keep[2 * S + 1] = false;
    attention_forward(q, k, v, keep, HEADS, Q, S, D, scores, probs, part);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < Q; i++) {
            const int at = (h * Q + i) * D;
            ck_assert_msg((memcmp(whole + at, part + at,
                                  D * sizeof *part) == 0) == (i != 2),
                          "head %d, query %d", h, i);
        }
    /* and that row is what its probabilities say */
    for (int h = 0; h < HEADS; h++) {
        double want[D] = {0};
        for (int j = 0; j < S; j++)
            for (int d = 0; d < D; d++)
                want[d] += (double)probs[(h * Q + 2) * S + j]
                           * v[(h * S + j) * D + d];
        near("context", part + (h * Q + 2) * D, want, D, 1);
    }
    free(q), free(k), free(v);
}
END_TEST

START_TEST(the_forward_pass_has_the_bits_of_a_step)
{
    const struct gpt_config config = {
        .vocab_size = 75, .context_length = 80, .d_model = 36, .n_layers = 2,
        .n_heads = 2, .d_ff = 97, .layer_norm_eps = 1e-5
    };
    struct tiny_gpt *model = noisy_model(&config, 81);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct gpt_config shape = cache_shape_config(&lm.cache);
    struct past_key_values storage = {0};
    struct forward_output output = {0};
    uint64_t state = noise_start(82);
    int32_t ids[70], positions[70];
    noise_ids(&state, 75, 1, 70, ids);
    for (int t = 0; t < 70; t++)
        positions[t] = t;
    const struct forward_input input = {.ids = ids, .batch = 1, .tokens = 70};
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    expect_ok(past_key_values_new(&storage, &shape, 1, 70, &error), &error);
    const int32_t length = 0;
    float *logits = malloc(70 * 75 * sizeof *logits);
    const struct step step = {ids, positions, 1, 70, &storage, &length,
                              false, logits};
    const size_t room = lm.scratch_size(lm.model, 1, 70, 70);
    float *scratch = malloc(room * sizeof *scratch);
    expect_ok(causal_lm_step(&lm, &step, scratch, room, &error), &error);
    expect_same_bits("logits", output.logits.data, logits,
                     70 * 75 * sizeof *logits);
    free(scratch), free(logits);
    forward_output_free(&output);
    past_key_values_free(&storage);
    tiny_gpt_free(&model);
}
END_TEST

/* ------------------------------------------------------------------- loss */

START_TEST(the_loss_of_a_large_vocabulary_is_a_sum_in_double)
{
    enum { B = 2, T = 5, V = 1500 };
    uint64_t state = noise_start(90);
    float *logits = floats(&state, B * T * V);
    for (size_t k = 0; k < B * T * V; k++)
        logits[k] *= 20;
    int32_t labels[B * T];
    noise_ids(&state, V, B, T, labels);
    labels[3] = IGNORE_INDEX;
    float *made[2], loss[2];
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k == 0 ? 1 : 4);
        made[k] = floats(&state, B * T * V);    /* to be written over */
        expect_ok(cross_entropy(logits, labels, B, T, V, &loss[k], made[k],
                                &error), &error);
    }
    expect_same_bits("gradient", made[1], made[0], B * T * V * sizeof (float));
    expect_same_bits("loss", &loss[1], &loss[0], sizeof *loss);
    float alone;
    expect_ok(cross_entropy(logits, labels, B, T, V, &alone, NULL, &error),
              &error);
    expect_same_bits("loss", &alone, &loss[0], sizeof alone);
    double total = 0;
    const int counted = B * (T - 1) - 1;
    double *want = calloc(B * T * V, sizeof *want);
    for (int b = 0; b < B; b++)
        for (int t = 0; t + 1 < T; t++) {
            const float *row = logits + (b * T + t) * V;
            const int32_t target = labels[b * T + t + 1];
            double sum = 0;
            for (int j = 0; j < V; j++)
                sum += exp(row[j] - 20.0);
            if (target == IGNORE_INDEX)
                continue;
            total += log(sum) + 20 - row[target];
            for (int j = 0; j < V; j++)
                want[(b * T + t) * V + j]
                    = (exp(row[j] - 20.0) / sum - (j == target)) / counted;
        }
    const double mean = total / counted;
    near("loss", loss, &mean, 1, 1);
    near("gradient", made[0], want, B * T * V, 0.01);
    free(made[0]), free(made[1]), free(logits), free(want);
}
END_TEST

START_TEST(a_logit_that_is_not_a_number_is_not_lost)
{
    enum { V = 700 };
    float logits[2 * V] = {0}, loss;
    const int32_t labels[] = {1, 2};
    logits[600] = NAN;
    expect_ok(cross_entropy(logits, labels, 1, 2, V, &loss, NULL, &error),
              &error);
    ck_assert(isnan(loss));
    logits[600] = -INFINITY;
    expect_ok(cross_entropy(logits, labels, 1, 2, V, &loss, NULL, &error),
              &error);
    ck_assert_msg(fabsf(loss - logf(V - 1)) < 1e-4f, "%g", (double)loss);
}
END_TEST

/* -------------------------------------------------------------- optimizer */

START_TEST(the_optimizer_moves_each_element_as_doubles_would)
{
    enum { N = 100003 };    /* several blocks, and part of one */
    uint64_t state = noise_start(95);
    float *w = floats(&state, N), *g = floats(&state, N);
    float *m = floats(&state, N), *v = floats(&state, N);
    for (int k = 0; k < N; k++) {
        v[k] = v[k] * v[k] * 1e-4f;
        g[k] *= 0.01f, m[k] *= 0.01f;
    }
    const struct adamw adamw = {.learning_rate = 1e-3, .beta1 = 0.9,
                                .beta2 = 0.95, .eps = 1e-8, .step = 7,
                                .weight_decay = 0.1};
    /* half a unit of the weight's last place, and of the change six: two
       products and a sum in each moment, the root, the product and the
       quotient, measured by terms that may cancel */
    double *want = malloc(N * sizeof *want), *slack = malloc(N * sizeof *slack);
    for (int k = 0; k < N; k++) {
        const double first = 0.9 * m[k] + 0.1 * g[k];
        const double second = 0.95 * v[k] + 0.05 * g[k] * (double)g[k];
        slack[k] = 1e-3 * (0.9 * fabs(m[k]) + 0.1 * fabs(g[k]))
            / (1 - pow(0.9, 7)) / (sqrt(second / (1 - pow(0.95, 7))) + 1e-8);
        want[k] = w[k] * (1 - 1e-3 * 0.1)
            - 1e-3 * (first / (1 - pow(0.9, 7)))
              / (sqrt(second / (1 - pow(0.95, 7))) + 1e-8);
    }
    float *other[3] = {copy(w, N), copy(m, N), copy(v, N)};
    omp_set_num_threads(1);
    adamw_floats(&adamw, 0.1, N, w, g, m, v);
    omp_set_num_threads(3);
    adamw_floats(&adamw, 0.1, N, other[0], g, other[1], other[2]);
    expect_same_bits("threads", other[0], w, N * sizeof *w);
    expect_same_bits("threads", other[1], m, N * sizeof *m);
    expect_same_bits("threads", other[2], v, N * sizeof *v);
    for (int k = 0; k < N; k++)
        ck_assert_msg(fabs(w[k] - want[k])
                      <= ldexp(fabs(want[k]) + 6 * slack[k], -24),
                      "element %d is %.9g, expected %.9g", k, (double)w[k],
                      want[k]);
    free(other[0]), free(other[1]), free(other[2]);
    free(w), free(g), free(m), free(v), free(want), free(slack);
}
END_TEST

/* A thousand steps without a gradient: 0.99999 to that power. */
START_TEST(a_small_decay_is_not_rounded_away)
{
    float w[16], g[16] = {0}, m[16] = {0}, v[16] = {0};
    const struct adamw adamw = {.learning_rate = 1e-4, .beta1 = 0.9,
                                .beta2 = 0.95, .eps = 1e-8, .step = 1};
    for (int k = 0; k < 16; k++)
        w[k] = 1;
    for (int step = 0; step < 1000; step++)
        adamw_floats(&adamw, 0.1, 16, w, g, m, v);
    const double want = pow(1 - 1e-5, 1000);
    for (int k = 0; k < 16; k++)
        ck_assert_msg(fabs(w[k] - want) < 1.1e-5, "%.9g for %.9g",
                      (double)w[k], want);
}
END_TEST

/* ------------------------------------------------------------------ table */

static const struct test tests[] = {
    TEST(a_linear_layers_gradients_are_sums_over_rows_and_outputs, 2,
         "add the weight's outer products by a product"),
    TEST(the_gradients_of_a_norm_do_not_depend_on_the_threads, 2,
         "add the gradients of some columns"),
    TEST(attention_goes_backwards_at_every_edge_of_a_tile, 2,
         "note whether the tile asks for anything"),
    TEST(a_row_of_the_mask_changes_no_bit_of_another, 2,
         "let row say whether its keys are those of a causal row"),
    TEST(the_forward_pass_has_the_bits_of_a_step, 2,
         "mix some rows by the kernel"),
    TEST(the_loss_of_a_large_vocabulary_is_a_sum_in_double, 2,
         "write the gradient of a row that does not count"),
    TEST(a_logit_that_is_not_a_number_is_not_lost, 2,
         "the loss of one row, and its gradient"),
    TEST(a_small_decay_is_not_rounded_away, 2,
         "change the weight and round once"),
    TEST(the_optimizer_moves_each_element_as_doubles_would, 2,
         "step over a block of floats"),
};

SUITE("chapter 21d, every pass on kernels", tests);
