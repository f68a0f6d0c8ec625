/* Chapter 2: the forward pass. Inner mechanisms first, then the golden's
   trace from the embedding to the logits, then the contract of the call. */
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "activations.h"
#include "attention.h"
#include "embedding.h"
#include "gelu.h"
#include "ledger.h"
#include "linear.h"
#include "mask.h"
#include "model.h"
#include "norm.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"

#define LENGTH(array) (sizeof (array) / sizeof *(array))
#define CLOSE(what, actual, expected) \
    expect_close(what, actual, expected, LENGTH(expected), 0, NULL, TOLERANCE)

/* ------------------------------------------------------------- materials */

static const struct gpt_config small = {
    .vocab_size = 11, .context_length = 9, .d_model = 12, .n_layers = 3,
    .n_heads = 2, .d_ff = 10, .dropout = 0, .layer_norm_eps = 1e-5
};

static struct forward_output run(const struct tiny_gpt *model,
                                 const int32_t *ids, int batch, int tokens,
                                 struct activations *activations)
{
    struct forward_input input = {
        .ids = ids, .batch = batch, .tokens = tokens,
        .activations = activations
    };
    struct forward_output output = {0};
    struct error error = {0};
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    return output;
}

/* Ids for small: three rows of a full context. */
static const int32_t *some_ids(void)
{
    static int32_t ids[3 * 9];
    uint64_t state = noise_start(1);
    noise_ids(&state, 11, 3, 9, ids);
    return ids;
}

/* --------------------------------------------------------- the embedding */

START_TEST(a_row_is_the_sum_of_its_token_and_its_position)
{
    const struct gpt_config config = {
        .vocab_size = 4, .context_length = 5, .d_model = 3, .n_layers = 1,
        .n_heads = 1, .d_ff = 2, .layer_norm_eps = 1e-5
    };
    struct parameters *p = NULL;
    ck_assert_int_eq(parameters_new(&p, &config, NULL), STATUS_OK);
    uint64_t state = noise_start(2);
    float *token = p->token_embedding.weight.data;
    float *position = p->position_embedding.weight.data;
    int32_t ids[6];
    float want[18], out[18];
    noise_ids(&state, 4, 2, 3, ids);
    noise_distinct(&state, 12, token);
    noise_distinct(&state, 15, position);
    for (int k = 0; k < 15; k++)
        position[k] *= 100;     /* so the hundreds say which position */
    for (int k = 0; k < 18; k++)
        want[k] = token[ids[k / 3] * 3 + k % 3]
                  + position[(2 + k / 3 % 3) * 3 + k % 3];
    embedding_forward(p, ids, 2, 3, 2, out);
    CLOSE("embedding with two tokens before", out, want);
    parameters_free(&p);
}
END_TEST

/* -------------------------------------------------------- the layer norm */

static void norm(const float *weight, const float *bias, int width,
                 double eps, const float *in, int rows, float *out)
{
    float w[8], b[8];
    memcpy(w, weight, (size_t)width * sizeof *w);
    memcpy(b, bias, (size_t)width * sizeof *b);
    const struct layer_norm layer = {
        .weight = {.data = w, .rank = 1, .shape = {width}},
        .bias = {.data = b, .rank = 1, .shape = {width}}
    };
    layer_norm_forward(&layer, eps, in, rows, out);
}

static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static const float zeros[8];

START_TEST(the_mean_of_a_row_becomes_the_bias)
{
    const float in[] = {-1, 1,  4, 6};     /* deviations -1, 1 each */
    const float weight[] = {2, 3}, bias[] = {10, 20};
    const float want[] = {8, 23,  8, 23};
    float out[4];
    norm(weight, bias, 2, 1e-12, in, 2, out);
    CLOSE("norm", out, want);
}
END_TEST

/* deviations -2, -1, 0, 3: variance 14/4, and not 14/3 */
START_TEST(the_variance_divides_by_the_width)
{
    const float in[] = {1, 2, 3, 6};
    const float r = (float)sqrt(3.5);
    const float want[] = {-2 / r, -1 / r, 0, 3 / r};
    float out[4];
    norm(ones, zeros, 4, 1e-12, in, 1, out);
    CLOSE("norm of 1 2 3 6", out, want);
}
END_TEST

/* The mean of squares, 1e8 and a bit, would swallow the variance 2. */
START_TEST(a_large_mean_does_not_drown_a_small_variance)
{
    const float in[] = {9998, 9999, 10000, 10001, 10002};
    const float r = (float)sqrt(2.0);
    const float want[] = {-2 / r, -1 / r, 0, 1 / r, 2 / r};
    float out[5];
    norm(ones, zeros, 5, 1e-12, in, 1, out);
    CLOSE("norm of 9998 … 10002", out, want);
}
END_TEST

/* variance 1e-6, eps 1e-5: 0.001/√1.1e-5, against 0.99 with eps outside */
START_TEST(eps_joins_the_variance_under_the_root)
{
    const float in[] = {0.001f, -0.001f};
    const float want[] = {0.30151134f, -0.30151134f};
    float out[2];
    norm(ones, zeros, 2, 1e-5, in, 1, out);
    CLOSE("norm of a quiet row", out, want);
}
END_TEST

START_TEST(eps_keeps_a_constant_row_finite)
{
    const float in[] = {7, 7, 7};
    const float bias[] = {1, 2, 3};
    float out[3];
    norm(ones, bias, 3, 1e-5, in, 1, out);
    CLOSE("norm of a constant row", out, bias);
}
END_TEST

START_TEST(the_norm_works_in_place)
{
    float row[] = {1, 2, 3, 6};
    const float want[] = {-1, -0.5f, 0, 1.5f};
    norm(ones, zeros, 4, 0.5, row, 1, row);     /* √(3.5 + 0.5) = 2 */
    CLOSE("norm in place", row, want);
}
END_TEST

/* ------------------------------------------------------ the linear layer */

START_TEST(a_linear_layer_multiplies_by_the_rows_of_its_weight)
{
    float weight[] = {1, 2, 3,  4, 5, 6}, bias[] = {100, 200};
    const struct linear layer = {
        .weight = {.data = weight, .rank = 2, .shape = {2, 3}},
        .bias = {.data = bias, .rank = 1, .shape = {2}}
    };
    const float in[] = {1, 10, 100,  0, 0, -1,  2, 0, 0};
    const float want[] = {421, 854,  97, 194,  102, 208};
    float out[6];
    linear_forward(&layer, in, 3, out);
    CLOSE("linear", out, want);
}
END_TEST

START_TEST(a_linear_layer_may_have_no_bias)
{
    float weight[] = {1, 2, 3,  4, 5, 6};
    const struct linear layer = {
        .weight = {.data = weight, .rank = 2, .shape = {3, 2}}
    };
    const float in[] = {1, 10}, want[] = {21, 43, 65};
    float out[3];
    linear_forward(&layer, in, 1, out);
    CLOSE("linear without bias", out, want);
}
END_TEST

/* 37 is prime: no vector width divides it, so the tail of the loop counts */
START_TEST(a_dot_product_counts_its_last_elements)
{
    float weight[37], in[37];
    double want = 0;
    uint64_t state = noise_start(5);
    for (int k = 0; k < 37; k++) {
        weight[k] = noise(&state);
        in[k] = noise(&state);
        want += (double)weight[k] * (double)in[k];
    }
    const struct linear layer = {
        .weight = {.data = weight, .rank = 2, .shape = {1, 37}}
    };
    float out[1], expected[1] = {(float)want};
    linear_forward(&layer, in, 1, out);
    CLOSE("37 products", out, expected);
}
END_TEST

START_TEST(a_sum_may_overwrite_an_operand)
{
    float a[] = {1, 2, 3};
    const float b[] = {10, 20, 30}, want[] = {11, 22, 33};
    vector_add(a, b, 3, a);
    CLOSE("vector_add", a, want);
}
END_TEST

/* -------------------------------------------------------------- the GELU */

/* x·Φ(x); the tanh form gives 1.9545977 and -0.0454023 at ±2. */
START_TEST(gelu_is_the_exact_one)
{
    const float in[] = {2, -2, 1, -1, 0.5f, 0, 10};
    const float want[] = {
        1.95449974f, -0.04550026f, 0.84134475f, -0.15865525f, 0.34573123f,
        0, 10
    };
    float out[7];
    gelu_forward(in, 7, out);
    CLOSE("gelu", out, want);
    ck_assert(fabsf(out[0] - 1.9545977f) > 9e-5f);
    ck_assert(fabsf(out[1] + 0.0454023f) > 9e-5f);
}
END_TEST

/* -6·Φ(-6) and -10·Φ(-10): 1 + erf would round to nothing */
START_TEST(gelu_keeps_its_left_tail)
{
    const float in[] = {-6, -10, -100, 100};
    float out[4];
    gelu_forward(in, 4, out);
    ck_assert(fabs(out[0] / -5.9195e-9 - 1) < 1e-4);
    ck_assert(fabs(out[1] / -7.6198530e-23 - 1) < 1e-4);
    ck_assert(out[2] == 0 && out[3] == 100);
}
END_TEST

/* -------------------------------------------------------------- the mask */

START_TEST(a_query_sees_itself_and_what_came_before)
{
    const bool want[] = {1, 0, 0, 0,  1, 1, 0, 0,  1, 1, 1, 0,  1, 1, 1, 1};
    bool keep[16];
    causal_mask(0, 4, keep);
    expect_same_bits("the mask of four tokens", keep, want, sizeof want);
    causal_mask(0, 1, keep);
    ck_assert(keep[0]);
}
END_TEST

/* ------------------------------------------------------------- the heads */

START_TEST(a_head_gets_its_own_slice_of_each_token)
{
    enum { B = 2, T = 3, H = 4, D = 5, C = H * D };
    float in[B * T * 3 * C], out[B * H * T * D];
    uint64_t state = noise_start(8);
    noise_distinct(&state, B * T * 3 * C, in);
    heads_split(in + C, 3 * C, B, T, H, D, out);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) {
                    float got = out[((b * H + h) * T + t) * D + d];
                    float want = in[(b * T + t) * 3 * C + C + h * D + d];
                    ck_assert_msg(got == want, "[%d,%d,%d,%d]: expected %g,"
                                  " got %g", b, h, t, d, want, got);
                }
}
END_TEST

START_TEST(merging_undoes_splitting)
{
    enum { B = 2, T = 3, H = 4, D = 5, C = H * D };
    float in[B * T * C], split[B * T * C], out[B * T * C];
    uint64_t state = noise_start(9);
    noise_distinct(&state, B * T * C, in);
    heads_split(in, C, B, T, H, D, split);
    heads_merge(split, B, H, T, D, out);
    expect_same_bits("merged heads", out, in, sizeof in);
}
END_TEST

/* ----------------------------------------------------------- the softmax */

static const bool all[8] = {1, 1, 1, 1, 1, 1, 1, 1};

/* e^x is 1, 2, 5: eighths */
START_TEST(softmax_divides_each_exponential_by_their_sum)
{
    const float scores[] = {0, (float)log(2), (float)log(5)};
    const float want[] = {0.125f, 0.25f, 0.625f};
    float probs[3];
    masked_softmax(scores, all, 3, probs);
    CLOSE("softmax of ln 1, ln 2, ln 5", probs, want);
}
END_TEST

START_TEST(softmax_survives_huge_scores)
{
    const float high[] = {1e4f, -1e4f, 1e4f}, low[] = {-1e4f, -1e4f};
    const float want_high[] = {0.5f, 0, 0.5f}, want_low[] = {0.5f, 0.5f};
    float probs[3];
    masked_softmax(high, all, 3, probs);
    CLOSE("softmax of 1e4, -1e4, 1e4", probs, want_high);
    masked_softmax(low, all, 2, probs);
    CLOSE("softmax of two times -1e4", probs, want_low);
}
END_TEST

/* Were it counted, e^(0 - 1e4) would leave nothing for the others. */
START_TEST(a_hidden_score_is_not_the_largest)
{
    const float scores[] = {0, 1e4f, 0}, want[] = {0.5f, 0, 0.5f};
    const bool keep[] = {true, false, true};
    float probs[3];
    masked_softmax(scores, keep, 3, probs);
    CLOSE("softmax beside a hidden 1e4", probs, want);
}
END_TEST

START_TEST(ties_share_and_a_single_key_takes_all)
{
    const float scores[] = {3, 3, 3, 3}, quarters[] = {.25f, .25f, .25f, .25f};
    const bool third[] = {false, false, true, false};
    const float want[] = {0, 0, 1, 0};
    float probs[4];
    masked_softmax(scores, all, 4, probs);
    CLOSE("softmax of a tie", probs, quarters);
    masked_softmax(scores, third, 4, probs);
    CLOSE("softmax of one key", probs, want);
}
END_TEST

START_TEST(a_row_that_sees_nothing_is_all_zeros)
{
    float probs[] = {5, 6, 7};
    const float scores[] = {1, 2, 3};
    const bool keep[3] = {false, false, false};
    masked_softmax(scores, keep, 3, probs);
    expect_same_bits("softmax of no key", probs, zeros, sizeof probs);
}
END_TEST

START_TEST(softmax_works_in_place)
{
    float row[] = {0, (float)log(3)};
    const float want[] = {0.25f, 0.75f};
    masked_softmax(row, all, 2, row);
    CLOSE("softmax in place", row, want);
}
END_TEST

/* ------------------------------------------------------------- attention */

/* Two slices of D = 4: dot products 10 and 20, over √4. */
START_TEST(scores_are_divided_by_the_root_of_the_head_width)
{
    const float query[] = {1, 2, 3, 4,  1, 2, 3, 4};
    const float key[] = {1, 1, 1, 1,  2, 2, 2, 2};
    const float want[] = {5, 10};
    float scores[2];
    attention_scores(query, key, all, 2, 1, 1, 4, scores);
    CLOSE("scores", scores, want);
}
END_TEST

START_TEST(each_query_meets_each_key_of_its_own_slice)
{
    /* slices 2, T 2, S 3, D 1: score (s, i, j) is q[s,i]·k[s,j] */
    const float query[] = {1, 2,  3, 4}, key[] = {1, 10, 100,  2, 20, 200};
    const float want[] = {
        1, 10, 100,  2, 20, 200,   6, 60, 600,  8, 80, 800
    };
    float scores[12];
    attention_scores(query, key, all, 2, 2, 3, 1, scores);
    CLOSE("scores", scores, want);
}
END_TEST

/* NaN in a key and a value that nobody may see: a read would show. */
START_TEST(what_the_mask_hides_is_never_read)
{
    const float query[] = {1, 1};
    const float key[] = {0, 0,  NAN, NAN,  0, 0};
    const float value[] = {2, 4,  NAN, INFINITY,  4, 8};
    const bool keep[] = {true, false, true};
    const float want_scores[] = {0, 0, 0}, want_probs[] = {0.5f, 0, 0.5f};
    const float want[] = {3, 6};
    float scores[3] = {9, 9, 9}, probs[3], context[2];
    attention_forward(query, key, value, keep, 1, 1, 3, 2, scores, probs,
                      context);
    CLOSE("scores", scores, want_scores);
    CLOSE("probs", probs, want_probs);
    CLOSE("context", context, want);
}
END_TEST

START_TEST(the_context_is_the_weighted_sum_of_the_values)
{
    const float probs[] = {0.25f, 0.75f,  1, 0};     /* slices 2, T 1, S 2 */
    const float value[] = {4, 8, 12,  0, 4, 8,   1, 2, 3,  7, 7, 7};
    const float want[] = {1, 5, 9,  1, 2, 3};
    float context[6];
    attention_context(probs, value, all, 2, 1, 2, 3, context);
    CLOSE("context", context, want);
}
END_TEST

/* Attention of one query over any keys in double, by its definition. */
static void attend_in_double(const double *q, const double *k, const double *v,
                             const bool *keep, int keys, int dim, double *out)
{
    double weight[16], total = 0;
    for (int j = 0; j < keys; j++) {
        double s = 0;
        for (int d = 0; d < dim; d++)
            s += q[d] * k[j * dim + d];
        weight[j] = keep[j] ? exp(s / sqrt((double)dim)) : 0;
        total += weight[j];
    }
    for (int d = 0; d < dim; d++) {
        out[d] = 0;
        for (int j = 0; j < keys; j++)
            out[d] += total > 0 ? weight[j] / total * v[j * dim + d] : 0;
    }
}

/* A mask of no particular form: row i hides i + 1 keys, and row 2 hides all
   of them. */
START_TEST(attention_agrees_with_its_definition_in_double)
{
    enum { HEADS = 3, T = 4, S = 6, D = 5 };
    float q[HEADS * T * D], k[HEADS * S * D], v[HEADS * S * D];
    double q2[HEADS * T * D], k2[HEADS * S * D], v2[HEADS * S * D];
    float scores[HEADS * T * S], probs[HEADS * T * S], context[HEADS * T * D];
    float want[HEADS * T * D];
    bool keep[T * S];
    uint64_t state = noise_start(77);
    for (int n = 0; n < HEADS * T * D; n++)
        q2[n] = q[n] = 2 * noise(&state);
    for (int n = 0; n < HEADS * S * D; n++) {
        k2[n] = k[n] = 2 * noise(&state);
        v2[n] = v[n] = noise(&state);
    }
    for (int i = 0; i < T; i++) {
        int32_t order[S];
        noise_order(&state, S, order);
        for (int j = 0; j < S; j++)
            keep[i * S + j] = i != 2 && order[j] > i;
    }
    attention_forward(q, k, v, keep, HEADS, T, S, D, scores, probs, context);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < T; i++) {
            double out[D];
            attend_in_double(q2 + (h * T + i) * D, k2 + h * S * D,
                             v2 + h * S * D, keep + i * S, S, D, out);
            for (int d = 0; d < D; d++)
                want[(h * T + i) * D + d] = (float)out[d];
        }
    expect_close("context", context, want, LENGTH(want), 3,
                 (const int[]){HEADS, T, D}, TOLERANCE);
}
END_TEST

/* ----------------------------------------------------- the golden's trace */

struct trace {
    struct golden *golden;
    struct tiny_gpt *model;
    struct activations activations;
    struct forward_output output;
};

static struct trace trace_open(void)
{
    struct trace trace = {.golden = golden_open("gpt_tiny")};
    trace.model = golden_model(trace.golden, 0);
    const struct forward_input input = golden_input(trace.golden);
    trace.output = run(trace.model, input.ids, input.batch, input.tokens,
                       &trace.activations);
    return trace;
}

static void trace_close(struct trace *trace)
{
    forward_output_free(&trace->output);
    activations_free(&trace->activations);
    tiny_gpt_free(&trace->model);
    golden_close(trace->golden);
}

static void expect_tensor(const char *name, const struct tensor *actual,
                          const struct golden_tensor *want)
{
    ck_assert_msg(actual != NULL, "%s: there is no such activation", name);
    ck_assert_int_eq(actual->rank, want->rank);
    for (int k = 0; k < want->rank; k++)
        ck_assert_int_eq(actual->shape[k], want->shape[k]);
    expect_close(name, actual->data, want->f32, want->count, want->rank,
                 want->shape, TOLERANCE);
}

/* The oracle traces scores before the mask: above the diagonal ours are 0. */
static void expect_scores(const char *name, const struct tensor *actual,
                          const struct golden_tensor *want)
{
    const int tokens = want->shape[2], keys = want->shape[3];
    ck_assert_ptr_nonnull(actual);
    float *kept = malloc(want->count * sizeof *kept);
    for (size_t n = 0; n < want->count; n++) {
        int j = (int)(n % (size_t)keys);
        int i = (int)(n / (size_t)keys % (size_t)tokens);
        kept[n] = j <= i ? want->f32[n] : 0;
    }
    expect_close(name, actual->data, kept, want->count, want->rank,
                 want->shape, TOLERANCE);
    free(kept);
}

static void expect_trace(const struct trace *trace, const char *name)
{
    const struct tensor *actual = activations_find(&trace->activations, name);
    const struct golden_tensor *want =
        golden_get(trace->golden, "trace.%s", name);
    if (strstr(name, ".scores") != NULL)
        expect_scores(name, actual, want);
    else
        expect_tensor(name, actual, want);
}

/* One test for each step of the first block, in the order of the steps. */
#define TRACE_TEST(test, name)                  \
    START_TEST(test)                            \
    {                                           \
        struct trace trace = trace_open();      \
        expect_trace(&trace, name);             \
        trace_close(&trace);                    \
    }                                           \
    END_TEST

TRACE_TEST(trace_embedding, "embedding")
TRACE_TEST(trace_attention_norm, "blocks.0.attention_norm")
TRACE_TEST(trace_qkv, "blocks.0.qkv")
TRACE_TEST(trace_scores, "blocks.0.scores")
TRACE_TEST(trace_probs, "blocks.0.probs")
TRACE_TEST(trace_merged, "blocks.0.merged")
TRACE_TEST(trace_attention, "blocks.0.attention")
TRACE_TEST(trace_residual, "blocks.0.residual")
TRACE_TEST(trace_mlp_norm, "blocks.0.mlp_norm")
TRACE_TEST(trace_up, "blocks.0.up")
TRACE_TEST(trace_gelu, "blocks.0.gelu")
TRACE_TEST(trace_down, "blocks.0.down")

/* The oracle's cache of layer 0 is the key and value that we split. */
START_TEST(trace_key_and_value)
{
    struct trace trace = trace_open();
    const struct block_activations *block = trace.activations.blocks;
    expect_tensor("blocks.0.key", &block->key,
                  golden_get(trace.golden, "out.past.0.key"));
    expect_tensor("blocks.0.value", &block->value,
                  golden_get(trace.golden, "out.past.0.value"));
    trace_close(&trace);
}
END_TEST

START_TEST(trace_every_block)
{
    static const char *const steps[] = {
        "attention_norm", "qkv", "scores", "probs", "merged", "attention",
        "residual", "mlp_norm", "up", "gelu", "down"
    };
    struct trace trace = trace_open();
    for (int l = 0; l < 2; l++)
        for (size_t k = 0; k < LENGTH(steps); k++) {
            char name[64];
            snprintf(name, sizeof name, "blocks.%d.%s", l, steps[k]);
            expect_trace(&trace, name);
        }
    expect_tensor("blocks.1.key", &trace.activations.blocks[1].key,
                  golden_get(trace.golden, "out.past.1.key"));
    expect_tensor("blocks.1.value", &trace.activations.blocks[1].value,
                  golden_get(trace.golden, "out.past.1.value"));
    trace_close(&trace);
}
END_TEST

/* A tensor that the oracle traces and this suite forgets would be a gap. */
START_TEST(trace_has_nothing_that_we_do_not_compute)
{
    struct trace trace = trace_open();
    int compared = 0;
    for (size_t k = 0; k < trace.golden->count; k++) {
        const char *name = trace.golden->tensors[k].name;
        if (strncmp(name, "trace.", 6) != 0)
            continue;
        expect_trace(&trace, name + 6);
        compared++;
    }
    ck_assert_int_eq(compared, 24);
    trace_close(&trace);
}
END_TEST

TRACE_TEST(trace_final_norm, "final_norm")

START_TEST(trace_logits)
{
    struct trace trace = trace_open();
    expect_tensor("logits", &trace.output.logits,
                  golden_get(trace.golden, "out.logits"));
    trace_close(&trace);
}
END_TEST

START_TEST(a_prefix_gives_the_logits_of_the_prefix)
{
    struct trace trace = trace_open();
    const int32_t *ids = golden_get(trace.golden, "in.ids")->ids;
    const int32_t prefix[] = {
        ids[0], ids[1], ids[2],  ids[7], ids[8], ids[9]
    };
    struct forward_output output = run(trace.model, prefix, 2, 3, NULL);
    expect_tensor("prefix logits", &output.logits,
                  golden_get(trace.golden, "out.prefix.logits"));
    forward_output_free(&output);
    trace_close(&trace);
}
END_TEST

/* ------------------------------------------ the whole pass, in double */

static void norm_in_double(const struct layer_norm *norm, double eps,
                           const double *x, int width, double *out)
{
    double mean = 0, square = 0;
    for (int c = 0; c < width; c++)
        mean += x[c] / width;
    for (int c = 0; c < width; c++)
        square += pow(x[c] - mean, 2) / width;
    for (int c = 0; c < width; c++)
        out[c] = (x[c] - mean) / sqrt(square + eps)
                 * (double)norm->weight.data[c] + (double)norm->bias.data[c];
}

static void linear_in_double(const struct linear *linear, const double *x,
                             double *out)
{
    const int outputs = linear->weight.shape[0];
    const int inputs = linear->weight.shape[1];
    for (int o = 0; o < outputs; o++) {
        out[o] = linear->bias.data != NULL ? linear->bias.data[o] : 0;
        for (int i = 0; i < inputs; i++)
            out[o] += x[i] * (double)linear->weight.data[o * inputs + i];
    }
}

enum { MAX_T = 9, MAX_C = 12, MAX_F = 10, MAX_V = 11 };

/* Every head reads its columns of the fused rows where they lie: no split,
   no mask, only the keys up to i. x [T,C] grows by the attention. */
static void attention_in_double(const struct block *block, int heads,
                                double eps, double x[][MAX_C], int tokens,
                                int width)
{
    double n[MAX_C], qkv[MAX_T][3 * MAX_C], merged[MAX_T][MAX_C], a[MAX_C];
    const int dim = width / heads;
    for (int t = 0; t < tokens; t++) {
        norm_in_double(&block->attention_norm, eps, x[t], width, n);
        linear_in_double(&block->attention.qkv_proj, n, qkv[t]);
    }
    for (int i = 0; i < tokens; i++)
        for (int c = 0; c < width; c++) {
            const int first = c / dim * dim;
            double above = 0, below = 0;
            for (int j = 0; j <= i; j++) {
                double s = 0;
                for (int d = first; d < first + dim; d++)
                    s += qkv[i][d] * qkv[j][width + d];
                s = exp(s / sqrt((double)dim));
                above += s * qkv[j][2 * width + c];
                below += s;
            }
            merged[i][c] = above / below;
        }
    for (int t = 0; t < tokens; t++) {
        linear_in_double(&block->attention.out_proj, merged[t], a);
        for (int c = 0; c < width; c++)
            x[t][c] += a[c];
    }
}

static void mlp_in_double(const struct block *block, double eps, double *x,
                          int width)
{
    double n[MAX_C], up[MAX_F], down[MAX_C];
    norm_in_double(&block->mlp_norm, eps, x, width, n);
    linear_in_double(&block->mlp.up_proj, n, up);
    for (int f = 0; f < block->mlp.up_proj.weight.shape[0]; f++)
        up[f] *= (1 + erf(up[f] / sqrt(2.0))) / 2;
    linear_in_double(&block->mlp.down_proj, up, down);
    for (int c = 0; c < width; c++)
        x[c] += down[c];
}

/* logits [T,V] of one row of ids */
static void forward_in_double(const struct parameters *p, const int32_t *ids,
                              int tokens, float *logits)
{
    const int width = p->config.d_model, vocab = p->config.vocab_size;
    const double eps = p->config.layer_norm_eps;
    double x[MAX_T][MAX_C], n[MAX_C], out[MAX_V];
    for (int t = 0; t < tokens; t++)
        for (int c = 0; c < width; c++)
            x[t][c] = (double)p->token_embedding.weight.data[ids[t] * width + c]
                + (double)p->position_embedding.weight.data[t * width + c];
    for (int l = 0; l < p->config.n_layers; l++) {
        attention_in_double(&p->blocks[l], p->config.n_heads, eps, x, tokens,
                            width);
        for (int t = 0; t < tokens; t++)
            mlp_in_double(&p->blocks[l], eps, x[t], width);
    }
    for (int t = 0; t < tokens; t++) {
        norm_in_double(&p->final_norm, eps, x[t], width, n);
        linear_in_double(&p->lm_head, n, out);
        for (int v = 0; v < vocab; v++)
            logits[t * vocab + v] = (float)out[v];
    }
}

static void expect_double(int heads)
{
    struct gpt_config config = small;
    config.n_heads = heads;
    struct tiny_gpt *model = noisy_model(&config, 2);
    struct forward_output output = run(model, some_ids(), 3, 9, NULL);
    float want[3 * 9 * 11];
    for (int b = 0; b < 3; b++)
        forward_in_double(tiny_gpt_parameters(model), some_ids() + 9 * b, 9,
                          want + b * 99);
    char what[32];
    snprintf(what, sizeof what, "logits with %d heads", heads);
    expect_close(what, output.logits.data, want, LENGTH(want), 3,
                 (const int[]){3, 9, 11}, TOLERANCE);
    forward_output_free(&output);
    tiny_gpt_free(&model);
}

START_TEST(the_pass_agrees_with_a_second_one_in_double) { expect_double(2); }
END_TEST

START_TEST(any_number_of_heads_agrees_with_it)
{
    const int heads[] = {1, 3, 4, 6, 12};
    for (size_t k = 0; k < LENGTH(heads); k++)
        expect_double(heads[k]);
}
END_TEST

/* -------------------------------------------------------- who sees whom */

/* For every position t: change the token there, and all logits before t are
   the same bits, while those at t are not. */
START_TEST(a_changed_future_token_leaves_earlier_logits_alone)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_output before = run(model, some_ids(), 1, 9, NULL);
    uint64_t state = noise_start(4);
    for (int t = 0; t < 9; t++) {
        int32_t ids[9];
        memcpy(ids, some_ids(), sizeof ids);
        ids[t] = (ids[t] + 1 + noise_below(&state, 10)) % 11;
        struct forward_output after = run(model, ids, 1, 9, NULL);
        const float *a = before.logits.data, *b = after.logits.data;
        char what[48];
        snprintf(what, sizeof what, "logits before position %d", t);
        expect_same_bits(what, b, a, (size_t)t * 11 * sizeof *a);
        for (int i = t; i < 9; i++)
            ck_assert_msg(memcmp(a + i * 11, b + i * 11, 11 * sizeof *a) != 0,
                          "token %d does not reach the logits at %d", t, i);
        forward_output_free(&after);
    }
    forward_output_free(&before);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_row_of_the_batch_gives_the_same_bits_alone)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_output together = run(model, some_ids(), 3, 9, NULL);
    for (int b = 0; b < 3; b++) {
        struct forward_output alone = run(model, some_ids() + 9 * b, 1, 9, NULL);
        expect_same_bits("logits of a row", together.logits.data + b * 99,
                         alone.logits.data, 99 * sizeof (float));
        forward_output_free(&alone);
    }
    forward_output_free(&together);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_prefix_gives_the_same_bits_as_the_whole)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_output whole = run(model, some_ids(), 1, 9, NULL);
    for (int t = 1; t < 9; t++) {
        struct forward_output part = run(model, some_ids(), 1, t, NULL);
        expect_same_bits("logits of a prefix", part.logits.data,
                         whole.logits.data, (size_t)t * 11 * sizeof (float));
        forward_output_free(&part);
    }
    forward_output_free(&whole);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_same_call_twice_gives_the_same_bits)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    const struct parameters *p = tiny_gpt_weights(model);
    float *copy = malloc(p->size * sizeof *copy);
    memcpy(copy, p->storage, p->size * sizeof *copy);
    struct forward_output one = run(model, some_ids(), 3, 9, NULL);
    struct activations activations = {0};
    struct forward_output two = run(model, some_ids(), 3, 9, &activations);
    expect_same_bits("logits", two.logits.data, one.logits.data,
                     tensor_size(&one.logits) * sizeof (float));
    expect_same_bits("weights", p->storage, copy, p->size * sizeof *copy);
    activations_free(&activations);
    forward_output_free(&one);
    forward_output_free(&two);
    free(copy);
    tiny_gpt_free(&model);
}
END_TEST

/* -------------------------------------------------------- shapes, owners */

START_TEST(logits_have_a_row_of_the_vocabulary_for_each_token)
{
    const int sizes[][2] = {{1, 1}, {3, 9}, {2, 4}, {5, 1}, {1, 9}};
    struct tiny_gpt *model = noisy_model(&small, 2);
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        const int batch = sizes[k][0], tokens = sizes[k][1];
        struct forward_output output = run(model, some_ids(), batch, tokens,
                                           NULL);
        ck_assert_int_eq(output.logits.rank, 3);
        ck_assert_int_eq(output.logits.shape[0], batch);
        ck_assert_int_eq(output.logits.shape[1], tokens);
        ck_assert_int_eq(output.logits.shape[2], 11);
        forward_output_free(&output);
        ck_assert_ptr_null(output.logits.data);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_head_is_the_token_embedding)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct parameters *p = tiny_gpt_parameters(model);
    ck_assert_ptr_eq(p->lm_head.weight.data, p->token_embedding.weight.data);
    ck_assert_ptr_null(p->lm_head.bias.data);
    ck_assert_ptr_eq(tiny_gpt_weights(model), p);
    ck_assert_ptr_eq(tiny_gpt_config(model), &p->config);
    /* the third id is not among the inputs: only its logit may move */
    uint64_t state = noise_start(3);
    int32_t ids[11];
    noise_order(&state, 11, ids);
    struct forward_output before = run(model, ids, 1, 2, NULL);
    p->token_embedding.weight.data[ids[2] * 12 + 5] += 1;
    struct forward_output after = run(model, ids, 1, 2, NULL);
    for (int n = 0; n < 22; n++)
        ck_assert_int_eq(before.logits.data[n] != after.logits.data[n],
                         n % 11 == ids[2]);
    forward_output_free(&after);
    /* written through the head, the first changes what goes in: all move */
    p->lm_head.weight.data[ids[0] * 12 + 5] += 1;
    after = run(model, ids, 1, 2, NULL);
    for (int n = 0; n < 22; n++)
        ck_assert(before.logits.data[n] != after.logits.data[n]);
    forward_output_free(&after);
    forward_output_free(&before);
    tiny_gpt_free(&model);
}
END_TEST


static const char *const block_names[] = {
    "attention_norm", "qkv", "query", "key", "value", "scores", "probs",
    "context", "merged", "attention", "residual", "mlp_norm", "up", "gelu",
    "down", "output"
};

START_TEST(every_activation_is_found_by_its_name)
{
    struct activations a = {0};
    ck_assert_int_eq(activations_new(&a, &small, 2, 3, 4, NULL), STATUS_OK);
    ck_assert_ptr_eq(activations_find(&a, "embedding"), &a.embedding);
    ck_assert_ptr_eq(activations_find(&a, "final_norm"), &a.final_norm);
    for (int l = 0; l < 3; l++)
        for (size_t k = 0; k < LENGTH(block_names); k++) {
            char name[64];
            snprintf(name, sizeof name, "blocks.%d.%s", l, block_names[k]);
            const struct tensor *first = &a.blocks[l].attention_norm;
            ck_assert_ptr_eq(activations_find(&a, name), first + k);
        }
    const char *const unknown[] = {
        "", "blocks", "blocks.", "blocks.3.qkv", "blocks.0.", "blocks.0.qk",
        "blocks.0.qkvs", "blocks.00.qkv", "blocks.-1.qkv", "qkv", "logits",
        "embedding2"
    };
    for (size_t k = 0; k < LENGTH(unknown); k++)
        ck_assert_msg(activations_find(&a, unknown[k]) == NULL, "\"%s\"",
                      unknown[k]);
    ck_assert_int_eq(a.blocks[0].scores.shape[3], 7);
    activations_free(&a);
    ck_assert_ptr_null(a.blocks);
    activations_free(&a);
    activations_free(NULL);
}
END_TEST

/* ---------------------------------------------- the ledger and the pass */

static void expect_row(const struct ledger *ledger, const char *name,
                       const struct tensor *tensor)
{
    const struct ledger_row *row = ledger_find(ledger, name);
    ck_assert_msg(row != NULL, "the ledger has no row %s", name);
    ck_assert_msg(tensor != NULL, "the pass makes no %s", name);
    ck_assert_int_eq(row->owner, OWNER_CALL);
    ck_assert_int_eq(row->rank, tensor->rank);
    for (int k = 0; k < row->rank; k++)
        ck_assert_msg(row->shape[k] == tensor->shape[k],
                      "%s: dimension %d is %d in the ledger, %d in the pass",
                      name, k, row->shape[k], tensor->shape[k]);
    ck_assert_uint_eq(row->bytes, tensor_size(tensor) * sizeof (float));
}

/* Both ways: each row is made, and all that is made has a row. */
START_TEST(the_ledger_lists_what_the_pass_makes)
{
    const int sizes[][2] = {{1, 1}, {3, 9}, {2, 5}, {4, 2}};
    struct tiny_gpt *model = noisy_model(&small, 2);
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        const int batch = sizes[k][0], tokens = sizes[k][1];
        struct activations activations = {0};
        struct forward_output output = run(model, some_ids(), batch, tokens,
                                           &activations);
        struct ledger ledger = {0};
        ck_assert_int_eq(ledger_new(&ledger, &small, batch, tokens, 0, NULL),
                         STATUS_OK);
        int rows = 0;
        for (int r = 0; r < ledger.count; r++) {
            const char *name = ledger.rows[r].name;
            if (ledger.rows[r].owner != OWNER_CALL
                || strcmp(name, "ids") == 0)
                continue;
            expect_row(&ledger, name, strcmp(name, "logits") == 0
                       ? &output.logits : activations_find(&activations, name));
            rows++;
        }
        ck_assert_int_eq(rows, 3 + 3 * (int)LENGTH(block_names));
        ck_assert_uint_eq(ledger_find(&ledger, "keep")->bytes,
                          (size_t)tokens * (size_t)tokens * sizeof (bool));
        ledger_free(&ledger);
        activations_free(&activations);
        forward_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

/* ------------------------------------------------------ what is refused */

/* A refused call sets status and message and leaves everything else. */
static void expect_refused(const struct tiny_gpt *model,
                           const struct forward_input *input,
                           enum status status, const char *message)
{
    struct forward_output output = {0}, empty = {0};
    struct error error = {0};
    struct activations none = {0};
    long live = allocator_live();
    enum status got = tiny_gpt_forward(model, input, &output, &error);
    live -= allocator_live();       /* before Check allocates for itself */
    ck_assert_int_eq(live, 0);
    ck_assert_int_eq(got, status);
    ck_assert_int_eq(error.status, status);
    expect_facts(error.message, message);
    expect_same_bits("output", &output, &empty, sizeof output);
    if (input != NULL && input->activations != NULL)
        expect_same_bits("activations", input->activations, &none,
                         sizeof none);
    ck_assert_int_eq(tiny_gpt_forward(model, input, &output, NULL), status);
}

START_TEST(an_id_outside_the_vocabulary_is_named_by_its_index)
{
    const struct {
        int at;
        int32_t id;
        const char *message;
    } cases[] = {
        {0, -1, "ids[0,0]: expected 0..10, got -1"},
        {3, 11, "ids[0,3]: expected 0..10, got 11"},
        {4, 12, "ids[1,0]: expected 0..10, got 12"},
        {7, INT32_MAX, "ids[1,3]: expected 0..10, got 2147483647"},
        {6, INT32_MIN, "ids[1,2]: expected 0..10, got -2147483648"}
    };
    struct tiny_gpt *model = noisy_model(&small, 2);
    for (size_t k = 0; k < LENGTH(cases); k++) {
        struct activations activations = {0};
        int32_t ids[8] = {0, 10, 0, 10, 10, 0, 10, 0};
        ids[cases[k].at] = cases[k].id;
        const struct forward_input input = {
            .ids = ids, .batch = 2, .tokens = 4, .activations = &activations
        };
        expect_refused(model, &input, STATUS_INVALID, cases[k].message);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_context_is_full_at_its_length_and_not_before)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_output output = run(model, some_ids(), 2, 9, NULL);
    const struct forward_input input = {
        .ids = some_ids(), .batch = 2, .tokens = 10
    };
    expect_refused(model, &input, STATUS_INVALID,
                   "past + tokens: expected at most context_length 9,"
                   " got 0 + 10");
    forward_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(an_empty_or_boundless_batch_is_refused)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_input input = {.ids = some_ids(), .batch = 0, .tokens = 3};
    expect_refused(model, &input, STATUS_INVALID,
                   "batch: expected at least 1, got 0");
    input.batch = -2;
    expect_refused(model, &input, STATUS_INVALID,
                   "batch: expected at least 1, got -2");
    input.batch = 2;
    input.tokens = 0;
    expect_refused(model, &input, STATUS_INVALID,
                   "tokens: expected at least 1, got 0");
    input.tokens = INT_MIN;
    expect_refused(model, &input, STATUS_INVALID,
                   "tokens: expected at least 1, got -2147483648");
    input.tokens = 3;
    input.batch = INT_MAX;      /* refused before an id is read */
    expect_refused(model, &input, STATUS_INVALID,
                   "batch: expected batch * tokens and batch * n_heads"
                   " to fit an int, got 2147483647");
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_missing_argument_is_named)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_input input = {.ids = some_ids(), .batch = 1, .tokens = 3};
    struct error error = {0};
    expect_refused(NULL, &input, STATUS_INVALID, "model: is NULL");
    expect_refused(model, NULL, STATUS_INVALID, "input: is NULL");
    ck_assert_int_eq(tiny_gpt_forward(model, &input, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "output: is NULL");
    input.ids = NULL;
    expect_refused(model, &input, STATUS_INVALID, "ids: is NULL");
    ck_assert_int_eq(tiny_gpt_new(NULL, &small, &error), STATUS_INVALID);
    expect_facts(error.message, "model: is NULL");
    tiny_gpt_free(&model);
    ck_assert_ptr_null(model);
    tiny_gpt_free(&model);
    tiny_gpt_free(NULL);
    forward_output_free(NULL);
}
END_TEST

/* An output that still holds a tensor would lose it. */
START_TEST(results_must_be_empty)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct activations activations = {0};
    struct forward_output output = run(model, some_ids(), 2, 4, &activations);
    const struct forward_output before = output;
    const struct activations activations_before = activations;
    struct forward_input input = {.ids = some_ids(), .batch = 2, .tokens = 4};
    struct error error = {0};
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &output, &error),
                     STATUS_INVALID);
    expect_facts(error.message,
                 "output: expected an empty struct, got logits");
    expect_same_bits("output", &output, &before, sizeof output);
    forward_output_free(&output);
    input.activations = &activations;
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &output, &error),
                     STATUS_INVALID);
    expect_facts(error.message,
                 "activations: expected an empty struct, got 3 blocks");
    expect_same_bits("activations", &activations, &activations_before,
                     sizeof activations);
    activations_free(&activations);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_config_that_is_refused_makes_no_model)
{
    struct gpt_config config = small;
    struct tiny_gpt *model = NULL;
    struct error error = {0};
    config.n_heads = 5;
    long live = allocator_live();
    enum status status = tiny_gpt_new(&model, &config, &error);
    live -= allocator_live();
    ck_assert_int_eq(live, 0);
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert(strncmp(error.message, "n_heads: ", 9) == 0);
    ck_assert_ptr_null(model);
}
END_TEST

START_TEST(activations_that_do_not_fit_are_refused)
{
    struct gpt_config config = small;
    config.context_length = INT_MAX;
    config.d_model = config.d_ff = INT_MAX / 3;
    config.n_heads = 1;
    struct activations activations = {0}, empty = {0};
    struct error error = {0};
    /* each product fits an int; the mask alone would be 70 terabytes */
    long live = allocator_live();
    enum status status = activations_new(&activations, &config, 32768, 32768,
                                         INT_MAX - 40000, &error);
    live -= allocator_live();
    ck_assert_int_eq(live, 0);
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_int_eq(activations_new(&activations, &small, 0, 1, 0, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(activations_new(&activations, &small, 1, 1, 9, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(activations_new(&activations, &small, 1, 1, -1, &error),
                     STATUS_INVALID);
    expect_same_bits("activations", &activations, &empty, sizeof empty);
}
END_TEST

/* --------------------------------------------------- when memory runs out */

START_TEST(a_model_that_cannot_be_allocated_leaves_nothing)
{
    struct tiny_gpt *model = NULL;
    long n = 1;
    for (; ; n++) {
        struct error error = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tiny_gpt_new(&model, &small, &error);
        if (!allocator_stop())
            break;
        live -= allocator_live();
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(error.status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(model);
    }
    ck_assert_int_gt(n, 2);
    tiny_gpt_free(&model);
}
END_TEST

static void expect_no_leak(const struct forward_input *input)
{
    struct tiny_gpt *model = noisy_model(&small, 2);
    struct forward_output output = {0}, empty = {0};
    struct activations none = {0};
    long n = 1;
    for (; ; n++) {
        struct error error = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tiny_gpt_forward(model, input, &output, &error);
        live -= allocator_live();
        if (!allocator_stop()) {
            ck_assert_int_eq(status, STATUS_OK);
            break;
        }
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(error.status, STATUS_NO_MEMORY);
        expect_same_bits("output", &output, &empty, sizeof output);
        if (input->activations != NULL)
            expect_same_bits("activations", input->activations, &none,
                             sizeof none);
    }
    ck_assert_int_gt(n, 3 * (long)LENGTH(block_names));
    forward_output_free(&output);
    tiny_gpt_free(&model);
}

START_TEST(a_call_that_runs_out_of_memory_leaves_nothing)
{
    struct activations activations = {0};
    struct forward_input input = {.ids = some_ids(), .batch = 2, .tokens = 4};
    expect_no_leak(&input);
    input.activations = &activations;
    expect_no_leak(&input);
    activations_free(&activations);
}
END_TEST

static const struct test tests[] = {
    TEST(a_row_is_the_sum_of_its_token_and_its_position, 1,
         "let token and position be the rows to add"),
    TEST(the_variance_divides_by_the_width, 1,
         "let variance be the average squared deviation"),
    TEST(a_large_mean_does_not_drown_a_small_variance, 1,
         "let variance be the average squared deviation"),
    TEST(eps_joins_the_variance_under_the_root, 1,
         "let scale turn a deviation into standard deviations"),
    TEST(eps_keeps_a_constant_row_finite, 1,
         "let scale turn a deviation into standard deviations"),
    TEST(the_mean_of_a_row_becomes_the_bias, 1,
         "scale and shift every element of the row"),
    TEST(the_norm_works_in_place, 1,
         "scale and shift every element of the row"),
    TEST(a_linear_layer_multiplies_by_the_rows_of_its_weight, 1,
         "multiply the input row by weight row o"),
    TEST(a_linear_layer_may_have_no_bias, 1,
         "multiply the input row by weight row o"),
    TEST(a_dot_product_counts_its_last_elements, 1,
         "let sum be the dot product of a and b"),
    TEST(a_sum_may_overwrite_an_operand, 1, "add two vectors"),
    TEST(gelu_is_the_exact_one, 1,
         "evaluate x times its standard normal probability"),
    TEST(gelu_keeps_its_left_tail, 1,
         "evaluate x times its standard normal probability"),
    TEST(a_query_sees_itself_and_what_came_before, 1,
         "decide whether query i may see key j"),
    TEST(a_head_gets_its_own_slice_of_each_token, 0,
         "copy head h of token t"),
    TEST(merging_undoes_splitting, 0, "copy token t of head h"),
    TEST(softmax_divides_each_exponential_by_their_sum, 1,
         "exponentiate, and let sum be the total"),
    TEST(softmax_survives_huge_scores, 1,
         "let max be the largest kept score"),
    TEST(a_hidden_score_is_not_the_largest, 1,
         "let max be the largest kept score"),
    TEST(ties_share_and_a_single_key_takes_all, 1,
         "exponentiate, and let sum be the total"),
    TEST(a_row_that_sees_nothing_is_all_zeros, 1,
         "give zeros to a row that sees nothing"),
    TEST(softmax_works_in_place, 1, "exponentiate, and let sum be the total"),
    TEST(scores_are_divided_by_the_root_of_the_head_width, 1,
         "let scale bring the scores back to unit variance"),
    TEST(each_query_meets_each_key_of_its_own_slice, 1,
         "score the keys that query i may see"),
    TEST(what_the_mask_hides_is_never_read, 1,
         "score the keys that query i may see"),
    TEST(the_context_is_the_weighted_sum_of_the_values, 1,
         "add up the values that query i may see"),
    TEST(attention_agrees_with_its_definition_in_double, 1,
         "attention from queries to context"),
    TEST(trace_embedding, 1, "embed the tokens"),
    TEST(trace_attention_norm, 1, "run one block"),
    TEST(trace_qkv, 1, "attend"),
    TEST(trace_key_and_value, 1, "split queries, keys and values into heads"),
    TEST(trace_scores, 1, "weigh the keys and mix the values"),
    TEST(trace_probs, 1, "weigh the keys and mix the values"),
    TEST(trace_merged, 1, "weigh the keys and mix the values"),
    TEST(trace_attention, 1, "attend"),
    TEST(trace_residual, 1, "add the attention to the stream"),
    TEST(trace_mlp_norm, 1, "run one block"),
    TEST(trace_up, 1, "expand, bend and contract each token"),
    TEST(trace_gelu, 1, "expand, bend and contract each token"),
    TEST(trace_down, 1, "expand, bend and contract each token"),
    TEST(trace_every_block, 1, "add the feed-forward output to the stream"),
    TEST(trace_final_norm, 1, "turn the stream into logits"),
    TEST(trace_logits, 1, "turn the stream into logits"),
    TEST(trace_has_nothing_that_we_do_not_compute, 1,
         "names, places and shapes of the activations"),
    TEST(a_prefix_gives_the_logits_of_the_prefix, 1,
         "decide whether query i may see key j"),
    TEST(the_pass_agrees_with_a_second_one_in_double, 1, "run one block"),
    TEST(any_number_of_heads_agrees_with_it, 1, "copy head h of token t"),
    TEST(a_changed_future_token_leaves_earlier_logits_alone, 1,
         "decide whether query i may see key j"),
    TEST(a_row_of_the_batch_gives_the_same_bits_alone, 1,
         "copy head h of token t"),
    TEST(a_prefix_gives_the_same_bits_as_the_whole, 1,
         "decide whether query i may see key j"),
    TEST(the_same_call_twice_gives_the_same_bits, 1, "the forward pass"),
    TEST(logits_have_a_row_of_the_vocabulary_for_each_token, 0,
         "make room for the results"),
    TEST(the_head_is_the_token_embedding, 0, "turn the stream into logits"),
    TEST(every_activation_is_found_by_its_name, 0,
         "find an activation by its name"),
    TEST(the_ledger_lists_what_the_pass_makes, 0,
         "names, places and shapes of the activations"),
    TEST(an_id_outside_the_vocabulary_is_named_by_its_index, 0,
         "refuse ids outside the vocabulary"),
    TEST(the_context_is_full_at_its_length_and_not_before, 0,
         "refuse what the contract does not allow"),
    TEST(an_empty_or_boundless_batch_is_refused, 0,
         "refuse what the contract does not allow"),
    TEST(a_missing_argument_is_named, 0, "refuse missing arguments"),
    TEST(results_must_be_empty, 0, "refuse results that are not empty"),
    TEST(a_config_that_is_refused_makes_no_model, 0, "create a model"),
    TEST(activations_that_do_not_fit_are_refused, 0,
         "allocate the activations"),
    TEST(a_model_that_cannot_be_allocated_leaves_nothing, 0, "create a model"),
    TEST(a_call_that_runs_out_of_memory_leaves_nothing, 0,
         "hand the results over, or nothing"),
};
SUITE("chapter 2, the forward pass", tests);
