/* Suite 15b: the backward pass of a llama, dense and with experts, and what
   can be trained whatever its family is.

   Gradients are held against hand arithmetic, the oracle's g.*, and central
   differences of forward passes that are written again here, plainly and in
   double precision, in shapes that the seed chooses. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include "adamw.h"
#include "attention_backward.h"
#include "backward.h"
#include "llama_layers_backward.h"
#include "llama_parts.h"
#include "llama_training.h"
#include "loss.h"
#include "mode.h"
#include "moe_backward.h"
#include "rope.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/llamas.h"
#include "trainable.h"

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

static struct error error;

/* ------------------------------------------------------ numbers and checks */

/* The same numbers in both precisions. */
static void fill(uint64_t *state, size_t count, float *single, double *wide)
{
    for (size_t k = 0; k < count; k++) {
        single[k] = noise(state);
        wide[k] = (double)single[k];
    }
}

/* gradient [count] against central differences of f in x [count]. */
static void expect_slopes(const char *what, double (*f)(const void *),
                          const void *context, double *x, size_t count,
                          const float *gradient)
{
    const double h = 1e-5;
    for (size_t k = 0; k < count; k++) {
        const double at = x[k];
        x[k] = at + h;
        const double above = f(context);
        x[k] = at - h;
        const double below = f(context);
        x[k] = at;
        const double slope = (above - below) / (2 * h);
        const double off = fabs((double)gradient[k] - slope);
        if (!(off <= TOLERANCE + TOLERANCE * fabs(slope)))
            ck_abort_msg("%s[%zu]: differences give %.9g, got %.9g", what, k,
                         slope, (double)gradient[k]);
    }
}

static struct tensor vector_of(float *data, int width)
{
    return (struct tensor){data, 1, {width}};
}

static struct tensor matrix_of(float *data, int rows, int columns)
{
    return (struct tensor){data, 2, {rows, columns}};
}

/* ---------------------------------------------------------------- the norm */

enum { ROWS = 5, WIDTH = 7 };

struct norm_case {
    double eps, in[ROWS * WIDTH], weight[WIDTH], d_out[ROWS * WIDTH];
    float in_f[ROWS * WIDTH], weight_f[WIDTH], d_out_f[ROWS * WIDTH];
    float d_in[ROWS * WIDTH], d_weight[WIDTH];
};

static double norm_objective(const void *context)
{
    const struct norm_case *c = context;
    double sum = 0;
    for (int r = 0; r < ROWS; r++) {
        double square = c->eps;
        for (int k = 0; k < WIDTH; k++)
            square += c->in[r * WIDTH + k] * c->in[r * WIDTH + k] / WIDTH;
        for (int k = 0; k < WIDTH; k++)
            sum += c->d_out[r * WIDTH + k] * c->weight[k]
                   * c->in[r * WIDTH + k] / sqrt(square);
    }
    return sum;
}

static void run_norm(struct norm_case *c)
{
    uint64_t state = noise_start(1501);
    memset(c, 0, sizeof *c);
    c->eps = 1e-2;
    fill(&state, COUNT(c->in), c->in_f, c->in);
    fill(&state, WIDTH, c->weight_f, c->weight);
    fill(&state, COUNT(c->d_out), c->d_out_f, c->d_out);
    const struct tensor weight = vector_of(c->weight_f, WIDTH);
    struct tensor d_weight = vector_of(c->d_weight, WIDTH);
    rms_norm_backward(&weight, c->eps, c->in_f, c->d_out_f, ROWS, c->d_in,
                      &d_weight);
}

/* The chapter's row. */
START_TEST(a_norm_sends_no_gradient_along_its_row)
{
    float x[] = {2, 6, 3, 0}, ones[] = {1, 1, 1, 1}, d_y[] = {1, 0, 0, 0};
    float d_x[4] = {0}, d_gain[4] = {0};
    const float want[] = {90.0f / 343, -24.0f / 343, -12.0f / 343, 0};
    const struct tensor weight = vector_of(ones, 4);
    struct tensor d_weight = vector_of(d_gain, 4);
    rms_norm_backward(&weight, 1e-12, x, d_y, 1, d_x, &d_weight);
    expect_close("d_x", d_x, want, 4, 1, (const int[]){4}, 1e-6);
    double along = 0;
    for (int k = 0; k < 4; k++)
        along += (double)d_x[k] * (double)x[k];
    ck_assert_double_eq_tol(along, 0, 1e-6);
}
END_TEST

START_TEST(a_norms_gain_hears_the_normalised_rows)
{
    struct norm_case c;
    run_norm(&c);
    expect_slopes("d_weight", norm_objective, &c, c.weight, WIDTH,
                  c.d_weight);
}
END_TEST

START_TEST(a_norms_gradient_agrees_with_differences)
{
    struct norm_case c;
    run_norm(&c);
    expect_slopes("d_in", norm_objective, &c, c.in, COUNT(c.in), c.d_in);
}
END_TEST

/* A row of zeros is scaled by 1/sqrt(eps), and so is its gradient. */
START_TEST(a_row_of_zeros_has_a_finite_gradient)
{
    float x[3] = {0}, weights[] = {1, -2, 3}, d_y[] = {1, 2, 3};
    float d_x[3] = {0}, d_gain[3] = {0};
    const float want[] = {100, -400, 900};
    const struct tensor weight = vector_of(weights, 3);
    struct tensor d_weight = vector_of(d_gain, 3);
    rms_norm_backward(&weight, 1e-4, x, d_y, 1, d_x, &d_weight);
    expect_close("d_x", d_x, want, 3, 1, (const int[]){3}, TOLERANCE);
    for (int k = 0; k < 3; k++)
        ck_assert(d_gain[k] == 0);
}
END_TEST

/* ---------------------------------------------------------------- the turn */

START_TEST(a_gradient_is_turned_by_the_negative_angle)
{
    /* the chapter's: one pair, one radian */
    const int32_t one = 1;
    float turns[2], d[] = {1, 0};
    const float want[] = {0.540302306f, -0.841470985f};
    rope_turns(&one, 1, 2, 10000, turns);
    rope_turn_backward(d, 1, 1, 2, turns);
    expect_close("d_x", d, want, 2, 1, (const int[]){2}, 1e-6);
}
END_TEST

/* <Rx, y> = <x, R'y>, for every head and position at once. */
START_TEST(a_turn_backwards_is_the_transpose)
{
    enum { H = 3, T = 4, D = 6, N = H * T * D };
    uint64_t state = noise_start(1502);
    for (int round = 0; round < 20; round++) {
        float x[N], y[N], turned[N], back[N], turns[T * D];
        int32_t positions[T];
        for (int t = 0; t < T; t++)
            positions[t] = noise_below(&state, 1000);
        noise_floats(&state, N, x);
        noise_floats(&state, N, y);
        memcpy(turned, x, sizeof x);
        memcpy(back, y, sizeof y);
        rope_turns(positions, T, D, 100, turns);
        rope_turn(turned, H, T, D, turns);
        rope_turn_backward(back, H, T, D, turns);
        double there = 0, here = 0;
        for (int k = 0; k < N; k++) {
            there += (double)turned[k] * (double)y[k];
            here += (double)x[k] * (double)back[k];
        }
        ck_assert_double_eq_tol(there, here, 1e-5);
        for (int t = 0; t < T; t++)
            positions[t] = -positions[t];
        rope_rotate(y, H, T, D, positions, 100);
        expect_close("d_x", back, y, N, 3, (const int[]){H, T, D}, 1e-6);
    }
}
END_TEST

/* ---------------------------------------------------------- grouped heads */

enum { HEADS = 6, TOKENS = 4, KEYS = 6, SLOTS = 8, DIM = 4 };

struct group_case {
    struct grouped_shape shape;
    bool keep[TOKENS * KEYS];
    double query[HEADS * TOKENS * DIM], key[HEADS * SLOTS * DIM];
    double value[HEADS * SLOTS * DIM], d_context[HEADS * TOKENS * DIM];
    float query_f[HEADS * TOKENS * DIM], key_f[HEADS * SLOTS * DIM];
    float value_f[HEADS * SLOTS * DIM], d_context_f[HEADS * TOKENS * DIM];
    float scratch[4 * TOKENS * KEYS];
    float d_query[HEADS * TOKENS * DIM], d_key[HEADS * SLOTS * DIM];
    float d_value[HEADS * SLOTS * DIM];
};

static double group_objective(const void *context)
{
    const struct group_case *c = context;
    const struct grouped_shape *s = &c->shape;
    double total = 0, p[KEYS];
    for (int h = 0; h < s->heads; h++)
        for (int i = 0; i < s->tokens; i++) {
            const int g = h * s->kv_heads / s->heads;
            const double *q = c->query + (h * s->tokens + i) * s->head_dim;
            double sum = 0;
            for (int j = 0; j < s->keys; j++) {
                double score = 0;
                for (int d = 0; d < s->head_dim; d++)
                    score += q[d] * c->key[(g * s->slots + j) * s->head_dim
                                           + d];
                p[j] = c->keep[i * s->keys + j]
                       ? exp(score / sqrt(s->head_dim)) : 0;
                sum += p[j];
            }
            for (int j = 0; j < s->keys; j++)
                for (int d = 0; d < s->head_dim; d++)
                    total += p[j] / sum
                        * c->value[(g * s->slots + j) * s->head_dim + d]
                        * c->d_context[(h * s->tokens + i) * s->head_dim
                                       + d];
        }
    return total;
}

/* Fewer keys than slots, and more than queries. */
static void make_group(struct group_case *c, unsigned stream, int kv_heads,
                       int group)
{
    uint64_t state = noise_start(stream);
    memset(c, 0, sizeof *c);
    const int tokens = 1 + noise_below(&state, TOKENS);
    const int keys = tokens + noise_below(&state, KEYS - TOKENS + 1);
    c->shape = (struct grouped_shape){
        .heads = kv_heads * group, .kv_heads = kv_heads, .tokens = tokens,
        .keys = keys, .slots = keys + noise_below(&state, SLOTS - KEYS + 1),
        .head_dim = 2 + noise_below(&state, DIM - 1)
    };
    fill(&state, COUNT(c->query), c->query_f, c->query);
    fill(&state, COUNT(c->key), c->key_f, c->key);
    fill(&state, COUNT(c->value), c->value_f, c->value);
    fill(&state, COUNT(c->d_context), c->d_context_f, c->d_context);
    for (int i = 0; i < tokens; i++)
        for (int j = 0; j < keys; j++)
            c->keep[i * keys + j] = j <= i + keys - tokens;
    for (size_t k = 0; k < COUNT(c->scratch); k++)
        c->scratch[k] = NAN;
}

static void run_group(struct group_case *c)
{
    grouped_attention_backward(&c->shape, c->query_f, c->key_f, c->value_f,
                               c->keep, c->d_context_f, c->scratch,
                               c->d_query, c->d_key, c->d_value);
}

/* Each query head alone with its key head, into gradients of its own: their
   sum is what the shared head has. */
START_TEST(a_shared_key_hears_every_head_of_its_group)
{
    struct group_case all, one;
    make_group(&all, 1503, 2, 3);
    make_group(&one, 1503, 2, 3);
    run_group(&all);
    const int slice = one.shape.tokens * one.shape.head_dim;
    const int stored = one.shape.slots * one.shape.head_dim;
    one.shape.heads = one.shape.kv_heads = 1;
    for (int h = 0; h < 6; h++) {
        float d_key[SLOTS * DIM] = {0}, d_value[SLOTS * DIM] = {0};
        const int shared = h / 3 * stored;
        grouped_attention_backward(
            &one.shape, one.query_f + h * slice, one.key_f + shared,
            one.value_f + shared, one.keep, one.d_context_f + h * slice,
            one.scratch, one.d_query + h * slice, d_key, d_value);
        for (int k = 0; k < stored; k++) {
            one.d_key[shared + k] += d_key[k];
            one.d_value[shared + k] += d_value[k];
        }
    }
    expect_close("d_query", all.d_query, one.d_query, COUNT(one.d_query), 0,
                 NULL, TOLERANCE);
    expect_close("d_key", all.d_key, one.d_key, COUNT(one.d_key), 0, NULL,
                 TOLERANCE);
    expect_close("d_value", all.d_value, one.d_value, COUNT(one.d_value), 0,
                 NULL, TOLERANCE);
}
END_TEST

START_TEST(grouped_gradients_agree_with_differences)
{
    static const int groups[][2] = {{1, 1}, {1, 4}, {2, 2}, {3, 2}, {2, 3},
                                    {3, 1}};
    for (unsigned k = 0; k < COUNT(groups); k++) {
        struct group_case c;
        make_group(&c, 1510 + k, groups[k][0], groups[k][1]);
        run_group(&c);
        expect_slopes("d_query", group_objective, &c, c.query,
                      COUNT(c.query), c.d_query);
        expect_slopes("d_key", group_objective, &c, c.key, COUNT(c.key),
                      c.d_key);
        expect_slopes("d_value", group_objective, &c, c.value,
                      COUNT(c.value), c.d_value);
    }
}
END_TEST

/* -------------------------------------------------------------- the gate */

START_TEST(silu_has_its_known_slopes)
{
    /* half at 0, none at the minimum, the largest at 2.3994 */
    const float x[] = {0, -1.27846454f, 2.39935728f, 1, -200, 200};
    const float up[] = {1, 1, 1, 2, 1, 1}, d_y[] = {1, 1, 1, 1, 1, 1};
    const float want[] = {0.5f, 0, 1.09983932f, 1.85534102f, 0, 1};
    const float want_up[] = {0, -0.27846454f, 2.19967864f, 0.731058579f, 0,
                             200};
    float d_gate[6] = {0}, d_up[6] = {0};
    swiglu_backward(x, up, d_y, 6, d_gate, d_up);
    expect_close("d_gate", d_gate, want, 6, 0, NULL, 2e-6);
    expect_close("d_up", d_up, want_up, 6, 0, NULL, 2e-6);
}
END_TEST

struct gate_case { double gate[40], up[40], d_y[40]; };

static double gate_objective(const void *context)
{
    const struct gate_case *c = context;
    double sum = 0;
    for (int k = 0; k < 40; k++)
        sum += c->d_y[k] * c->gate[k] / (1 + exp(-c->gate[k])) * c->up[k];
    return sum;
}

START_TEST(gated_gradients_agree_with_differences)
{
    struct gate_case c;
    float gate[40], up[40], d_y[40], d_gate[40] = {0}, d_up[40] = {0};
    uint64_t state = noise_start(1504);
    fill(&state, 40, up, c.up);
    fill(&state, 40, d_y, c.d_y);
    for (int k = 0; k < 40; k++) {      /* all of -6 … 6 */
        gate[k] = 0.3f * ((float)(k - 20) + noise(&state));
        c.gate[k] = (double)gate[k];
    }
    swiglu_backward(gate, up, d_y, 40, d_gate, d_up);
    expect_slopes("d_gate", gate_objective, &c, c.gate, 40, d_gate);
    expect_slopes("d_up", gate_objective, &c, c.up, 40, d_up);
}
END_TEST

/* ------------------------------------------------------------- the table */

START_TEST(a_tokens_row_collects_every_use_and_keeps_what_it_had)
{
    float table[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    struct tensor d_table = matrix_of(table, 5, 2);
    const int32_t ids[] = {3, 1, 3, 0};
    const float d[] = {100, 200, 10, 20, 300, 600, 50, 60};
    const float want[] = {51, 62, 13, 24, 5, 6, 407, 808, 9, 10};
    token_embedding_backward(ids, 4, d, &d_table);
    expect_close("d_table", table, want, 10, 2, (const int[]){5, 2},
                 TOLERANCE);
}
END_TEST

/* ------------------------------------------------------------- the experts */

enum { R = 5, E = 4, K = 2, C = 3, F = 5 };

/* A routing of R rows, its arrays, and numbers for both precisions. */
struct mix_case {
    struct moe_routing routing;
    float probs[R * E], gates[R * K];
    int32_t experts[R * K], places[R * K], offsets[E + 1];
    double logits[R * E], made[R * K * C], d_out[R * C];
    float made_f[R * K * C], d_out_f[R * C];
};

static void make_mix(struct mix_case *c, unsigned stream, int chosen,
                     int capacity)
{
    uint64_t state = noise_start(stream);
    memset(c, 0, sizeof *c);
    fill(&state, COUNT(c->logits), c->probs, c->logits);
    fill(&state, COUNT(c->made), c->made_f, c->made);
    fill(&state, COUNT(c->d_out), c->d_out_f, c->d_out);
    c->routing = (struct moe_routing){
        .rows = R, .n_experts = E, .chosen = chosen, .capacity = capacity,
        .probs = c->probs, .experts = c->experts, .gates = c->gates,
        .places = c->places, .offsets = c->offsets
    };
    moe_route(&c->routing);
    moe_dispatch(&c->routing);
}

/* The sum of gate times made times d_out, for the choices as they are. */
static double mix_objective(const void *context)
{
    const struct mix_case *c = context;
    const int k = c->routing.chosen;
    double total = 0;
    for (int row = 0; row < R; row++) {
        double sum = 0;
        for (int j = 0; j < k; j++)
            sum += exp(c->logits[row * E + c->experts[row * k + j]]);
        for (int j = 0; j < k; j++) {
            const int32_t place = c->places[row * k + j];
            const double gate =
                exp(c->logits[row * E + c->experts[row * k + j]]) / sum;
            for (int d = 0; d < C && place != MOE_DROPPED; d++)
                total += gate * c->made[place * C + d]
                         * c->d_out[row * C + d];
        }
    }
    return total;
}

START_TEST(two_gates_move_against_each_other)
{
    /* the chapter's */
    float probs[4] = {0}, gates[] = {0.7f, 0.3f}, d_gates[] = {1, 0};
    int32_t experts[] = {2, 0};
    float d_logits[] = {5, 6, 7, 8};
    const float want[] = {4.79f, 6, 7.21f, 8};
    const struct moe_routing routing = {
        .rows = 1, .n_experts = 4, .chosen = 2, .probs = probs,
        .experts = experts, .gates = gates
    };
    moe_route_backward(&routing, d_gates, d_logits);
    expect_close("d_logits", d_logits, want, 4, 0, NULL, 1e-6);
    /* a liking for all chosen alike moves nothing */
    const float alike[] = {3, 3};
    float still[4] = {0};
    moe_route_backward(&routing, alike, still);
    for (int e = 0; e < 4; e++)
        ck_assert_double_eq_tol((double)still[e], 0, 1e-6);
}
END_TEST

START_TEST(a_choice_of_one_leaves_the_router_without_a_gradient)
{
    struct mix_case c;
    float d_made[R * K * C], d_gates[R * K], d_logits[R * E] = {0};
    make_mix(&c, 1505, 1, 0);
    moe_combine_backward(&c.routing, c.made_f, c.d_out_f, C, d_made, d_gates);
    moe_route_backward(&c.routing, d_gates, d_logits);
    for (int k = 0; k < R * E; k++)
        ck_assert(d_logits[k] == 0);
}
END_TEST

START_TEST(experts_hear_rows_by_their_gates)
{
    for (unsigned k = 0; k < 6; k++) {
        struct mix_case c;
        float d_made[R * K * C] = {0}, d_gates[R * K];
        make_mix(&c, 1520 + k, k < 4 ? 2 : 1, k % 2 == 0 ? 0 : 1 + (int)k);
        moe_combine_backward(&c.routing, c.made_f, c.d_out_f, C, d_made,
                             d_gates);
        expect_slopes("d_made", mix_objective, &c, c.made, COUNT(c.made),
                      d_made);
    }
}
END_TEST

START_TEST(a_routers_gradient_agrees_with_differences)
{
    for (unsigned k = 0; k < 6; k++) {
        struct mix_case c;
        float d_made[R * K * C], d_gates[R * K], d_logits[R * E] = {0};
        make_mix(&c, 1530 + k, k < 4 ? 2 : 1, k % 2 == 0 ? 0 : 1 + (int)k);
        moe_combine_backward(&c.routing, c.made_f, c.d_out_f, C, d_made,
                             d_gates);
        moe_route_backward(&c.routing, d_gates, d_logits);
        expect_slopes("d_logits", mix_objective, &c, c.logits,
                      COUNT(c.logits), d_logits);
    }
}
END_TEST

START_TEST(a_row_hears_every_place_that_it_was_copied_to)
{
    int32_t places[] = {3, 0, 1, MOE_DROPPED, MOE_DROPPED, 2};
    const struct moe_routing routing = {
        .rows = 3, .n_experts = E, .chosen = 2, .places = places
    };
    const float d[] = {10, 11, 20, 21, 30, 31, 40, 41};
    float d_in[] = {1, 2, 3, 4, 5, 6};
    const float want[] = {51, 54, 23, 25, 35, 37};
    moe_gather_backward(&routing, d, 2, d_in);
    expect_close("d_in", d_in, want, 6, 2, (const int[]){3, 2}, TOLERANCE);
}
END_TEST

struct expert_case {
    double in[R * C], w1[F * C], w3[F * C], w2[C * F], d_out[R * C];
    float in_f[R * C], w1_f[F * C], w3_f[F * C], w2_f[C * F];
    float d_out_f[R * C];
    float d_in[R * C], d_w1[F * C], d_w3[F * C], d_w2[C * F];
};

static double expert_objective(const void *context)
{
    const struct expert_case *c = context;
    double total = 0;
    for (int row = 0; row < R; row++)
        for (int f = 0; f < F; f++) {
            double gate = 0, up = 0;
            for (int k = 0; k < C; k++) {
                gate += c->w1[f * C + k] * c->in[row * C + k];
                up += c->w3[f * C + k] * c->in[row * C + k];
            }
            for (int k = 0; k < C; k++)
                total += c->d_out[row * C + k] * c->w2[k * F + f]
                         * gate / (1 + exp(-gate)) * up;
        }
    return total;
}

static void run_expert(struct expert_case *c)
{
    uint64_t state = noise_start(1506);
    float gate[R * F], up[R * F], gated[R * F];
    float d_gate[R * F], d_up[R * F], d_gated[R * F];
    memset(c, 0, sizeof *c);
    fill(&state, COUNT(c->in), c->in_f, c->in);
    fill(&state, COUNT(c->w1), c->w1_f, c->w1);
    fill(&state, COUNT(c->w3), c->w3_f, c->w3);
    fill(&state, COUNT(c->w2), c->w2_f, c->w2);
    fill(&state, COUNT(c->d_out), c->d_out_f, c->d_out);
    for (int row = 0; row < R; row++)
        for (int f = 0; f < F; f++) {
            double g = 0, u = 0;
            for (int k = 0; k < C; k++) {
                g += c->w1[f * C + k] * c->in[row * C + k];
                u += c->w3[f * C + k] * c->in[row * C + k];
            }
            gate[row * F + f] = (float)g;
            up[row * F + f] = (float)u;
            gated[row * F + f] = (float)(g / (1 + exp(-g)) * u);
            d_gate[row * F + f] = d_up[row * F + f] = NAN;
            d_gated[row * F + f] = NAN;
        }
    const struct moe_expert expert = {
        {matrix_of(c->w1_f, F, C), {0}}, {matrix_of(c->w3_f, F, C), {0}},
        {matrix_of(c->w2_f, C, F), {0}}
    };
    struct moe_expert gradients = {
        {matrix_of(c->d_w1, F, C), {0}}, {matrix_of(c->d_w3, F, C), {0}},
        {matrix_of(c->d_w2, C, F), {0}}
    };
    const struct moe_hidden kept = {gate, up, gated};
    const struct moe_hidden d = {d_gate, d_up, d_gated};
    moe_expert_backward(&expert, c->in_f, &kept, c->d_out_f, R, &d, c->d_in,
                        &gradients);
}

START_TEST(an_experts_gradients_agree_with_differences)
{
    struct expert_case c;
    run_expert(&c);
    expect_slopes("w1", expert_objective, &c, c.w1, F * C, c.d_w1);
    expect_slopes("w3", expert_objective, &c, c.w3, F * C, c.d_w3);
    expect_slopes("w2", expert_objective, &c, c.w2, C * F, c.d_w2);
    expect_slopes("d_in", expert_objective, &c, c.in, R * C, c.d_in);
}
END_TEST

/* ------------------------------------------------------------ whole models */

/* A batch through a model, with gradients. */
struct call {
    struct llama *model, *gradients;
    struct llama_workspace workspace;
    int32_t *ids, *labels;
    float loss;
};

static void call_begin(struct call *call, const struct llama_config *config,
                       int batch, int tokens, unsigned stream)
{
    uint64_t state = noise_start(stream + 1000);
    const int rows = batch * tokens;
    memset(call, 0, sizeof *call);
    call->model = noisy_llama(config, stream);
    call->gradients = new_llama(config);
    expect_ok(llama_workspace_new(&call->workspace, config, batch, tokens,
                                  &error), &error);
    call->ids = malloc((size_t)rows * sizeof *call->ids);
    call->labels = malloc((size_t)rows * sizeof *call->labels);
    for (int row = 0; row < rows; row++) {
        call->ids[row] = noise_below(&state, config->vocab_size);
        call->labels[row] = noise_below(&state, config->vocab_size);
    }
    call->labels[rows - 1 - (rows > 2)] = IGNORE_INDEX;
}

static void call_run(struct call *call)
{
    expect_ok(llama_loss_and_gradients(call->model, call->ids, call->labels,
                                       &call->workspace, &call->loss,
                                       call->gradients, &error), &error);
}

static void call_end(struct call *call)
{
    llama_free(&call->model);
    llama_free(&call->gradients);
    llama_workspace_free(&call->workspace);
    free(call->ids);
    free(call->labels);
}

/* A model of whatever sizes the seed has; with experts on wish. */
static struct llama_config random_config(uint64_t *state, bool experts)
{
    /* A row near zero makes a norm's slope steep, and float loses digits that
       differences in double keep. This eps allows a slope of 4.5 at most. */
    const int kv = 1 + noise_below(state, 2);
    struct llama_config config = {
        .vocab_size = 5 + noise_below(state, 4), .context_length = 9,
        .d_model = 3 + noise_below(state, 4),
        .n_layers = 1 + noise_below(state, 2),
        .n_heads = kv * (1 + noise_below(state, 3)), .n_kv_heads = kv,
        .head_dim = 2 * (1 + noise_below(state, 2)),
        .d_ff = 3 + noise_below(state, 4), .rms_norm_eps = 0.05,
        .rope_theta = 50, .tie_word_embeddings = noise_below(state, 2) == 0
    };
    if (experts) {
        config.n_experts = 2 + noise_below(state, 3);
        config.experts_per_token = 1 + noise_below(state, 2);
    }
    return config;
}

/* The logits of the batch through the handle of chapter 8. */
static void expect_the_bits_of_inference(struct call *call)
{
    const struct llama_workspace *w = &call->workspace;
    const struct causal_lm lm = llama_causal_lm(call->model);
    const struct gpt_config shape = cache_shape_config(&lm.cache);
    struct past_key_values storage = {0};
    const size_t rows = (size_t)w->batch * (size_t)w->tokens;
    const size_t floats = lm.scratch_size(lm.model, w->batch, w->tokens,
                                          w->tokens);
    float *logits = malloc(rows * (size_t)lm.vocab_size * sizeof *logits);
    float *scratch = malloc(floats * sizeof *scratch);
    int32_t *lengths = calloc((size_t)w->batch, sizeof *lengths);
    expect_ok(past_key_values_new(&storage, &shape, w->batch, w->tokens,
                                  &error), &error);
    const struct step step = {
        .ids = call->ids, .positions = w->positions, .batch = w->batch,
        .tokens = w->tokens, .storage = &storage, .lengths = lengths,
        .logits = logits
    };
    expect_ok(causal_lm_step(&lm, &step, scratch, floats, &error), &error);
    expect_same_bits("logits", w->logits, logits,
                     rows * (size_t)lm.vocab_size * sizeof *logits);
    past_key_values_free(&storage);
    free(logits);
    free(scratch);
    free(lengths);
}

static void expect_inference(bool experts, unsigned stream)
{
    uint64_t state = noise_start(stream);
    for (unsigned round = 0; round < 8; round++) {
        const struct llama_config config = random_config(&state, experts);
        struct call call;
        call_begin(&call, &config, 1 + noise_below(&state, 3),
                   1 + noise_below(&state, 9), stream + 1 + round);
        call_run(&call);
        expect_the_bits_of_inference(&call);
        call_end(&call);
    }
}

START_TEST(the_training_forward_has_the_bits_of_inference)
{
    expect_inference(false, 1540);
}
END_TEST

START_TEST(the_training_forward_with_experts_has_the_bits_of_inference)
{
    expect_inference(true, 1550);
}
END_TEST

static size_t workspace_floats(const struct llama_workspace *w)
{
    /* the last part that is placed, and its size */
    const size_t rows = (size_t)w->batch * (size_t)w->tokens;
    return (size_t)(w->d_router - w->block)
           + rows * (size_t)w->config.n_experts;
}

START_TEST(nothing_that_was_in_the_workspace_matters)
{
    uint64_t state = noise_start(1560);
    for (unsigned round = 0; round < 4; round++) {
        const struct llama_config config = random_config(&state, round % 2);
        struct call call;
        call_begin(&call, &config, 2, 3, 1561 + round);
        call_run(&call);
        const float loss = call.loss;
        const size_t size = call.gradients->floats;
        float *once = malloc(size * sizeof *once);
        memcpy(once, call.gradients->storage, size * sizeof *once);
        memset(call.gradients->storage, 0, size * sizeof *once);
        for (size_t k = 0; k < workspace_floats(&call.workspace); k++)
            call.workspace.block[k] = NAN;
        call_run(&call);
        expect_same_bits("loss", &loss, &call.loss, sizeof loss);
        expect_same_bits("gradients", call.gradients->storage, once,
                         size * sizeof *once);
        free(once);
        call_end(&call);
    }
}
END_TEST

/* Branches that add nothing: the stream, and its gradient, go straight
   through, however many layers there are. */
START_TEST(the_streams_gradient_passes_around_every_branch)
{
    struct llama_config config = small_llama_config();
    float *d_table[2];
    const size_t bytes = 13 * 10 * sizeof (float);
    for (int k = 0; k < 2; k++) {
        struct call call;
        config.n_layers = 1 + 2 * k;
        call_begin(&call, &config, 2, 5, 1570);
        const struct llama *model = call.model;
        uint64_t state = noise_start(1571);
        noise_floats(&state, 130, model->embed_tokens.data);
        noise_floats(&state, 130, model->lm_head.weight.data);
        noise_floats(&state, 10, model->norm.data);
        for (int l = 0; l < config.n_layers; l++) {
            const struct tensor *ends[] = {
                &model->layers[l].o_proj.weight,
                &model->layers[l].down_proj.weight };
            for (int e = 0; e < 2; e++)
                memset(ends[e]->data, 0,
                       tensor_size(ends[e]) * sizeof (float));
        }
        call_run(&call);
        d_table[k] = memcpy(malloc(bytes), call.gradients->embed_tokens.data,
                            bytes);
        call_end(&call);
    }
    double sum = 0;
    for (int k = 0; k < 130; k++)
        sum += fabs((double)d_table[0][k]);
    ck_assert_msg(sum > 1e-3, "no gradient arrives at the table");
    expect_same_bits("the table's gradient", d_table[1], d_table[0], bytes);
    free(d_table[0]);
    free(d_table[1]);
}
END_TEST

/* ------------------------- the forward pass once more, plainly, in double */

struct plain {
    const struct llama *model;       /* for places, not for numbers */
    const struct call *call;
    double *w;                       /* as model->storage */
};

enum { WIDE = 32, LONG = 9 };        /* no row and no text here is wider */

static const double *weights(const struct plain *m,
                             const struct tensor *tensor)
{
    return m->w + (tensor->data - m->model->storage);
}

static void plain_linear(const struct plain *m, const struct linear *linear,
                         const double *x, double *y)
{
    const int out = linear->weight.shape[0], in = linear->weight.shape[1];
    const double *w = weights(m, &linear->weight);
    for (int o = 0; o < out; o++) {
        y[o] = 0;
        for (int k = 0; k < in; k++)
            y[o] += w[o * in + k] * x[k];
    }
}

static void plain_norm(const struct plain *m, const struct tensor *gain,
                       const double *x, double *y)
{
    const int width = gain->shape[0];
    double square = m->model->config.rms_norm_eps;
    for (int c = 0; c < width; c++)
        square += x[c] * x[c] / width;
    for (int c = 0; c < width; c++)
        y[c] = weights(m, gain)[c] * x[c] / sqrt(square);
}

static void plain_turn(const struct plain *m, int t, double *x)
{
    const int D = m->model->config.head_dim;
    for (int i = 0; i < D / 2; i++) {
        const double angle = t * pow(m->model->config.rope_theta,
                                     -2.0 * i / D);
        const double a = x[i], b = x[i + D / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + D / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void plain_attention(const struct plain *m, int l, int tokens,
                            double (*x)[WIDE])
{
    const struct llama_config *config = &m->model->config;
    const struct llama_layer *layer = &m->model->layers[l];
    const int H = config->n_heads, Hk = config->n_kv_heads;
    const int D = config->head_dim;
    double norm[WIDE], q[LONG][WIDE], k[LONG][WIDE], v[LONG][WIDE];
    double merged[WIDE], branch[WIDE], p[LONG];
    for (int t = 0; t < tokens; t++) {
        plain_norm(m, &layer->input_norm, x[t], norm);
        plain_linear(m, &layer->q_proj, norm, q[t]);
        plain_linear(m, &layer->k_proj, norm, k[t]);
        plain_linear(m, &layer->v_proj, norm, v[t]);
        for (int h = 0; h < H; h++)
            plain_turn(m, t, q[t] + h * D);
        for (int h = 0; h < Hk; h++)
            plain_turn(m, t, k[t] + h * D);
    }
    for (int t = 0; t < tokens; t++) {
        for (int h = 0; h < H; h++) {
            const int g = h * Hk / H;
            double sum = 0;
            for (int j = 0; j <= t; j++) {
                double score = 0;
                for (int d = 0; d < D; d++)
                    score += q[t][h * D + d] * k[j][g * D + d];
                sum += p[j] = exp(score / sqrt(D));
            }
            for (int d = 0; d < D; d++) {
                merged[h * D + d] = 0;
                for (int j = 0; j <= t; j++)
                    merged[h * D + d] += p[j] / sum * v[j][g * D + d];
            }
        }
        plain_linear(m, &layer->o_proj, merged, branch);
        for (int c = 0; c < config->d_model; c++)
            x[t][c] += branch[c];
    }
}

static void plain_gated(const struct plain *m,
                        const struct moe_expert *expert, const double *norm,
                        double *branch)
{
    double gate[WIDE], up[WIDE];
    plain_linear(m, &expert->w1, norm, gate);
    plain_linear(m, &expert->w3, norm, up);
    for (int f = 0; f < m->model->config.d_ff; f++)
        gate[f] *= up[f] / (1 + exp(-gate[f]));
    plain_linear(m, &expert->w2, gate, branch);
}

/* The choices are those of the call: they have no derivative. */
static void plain_feed_forward(const struct plain *m, int l, int row,
                               double *x)
{
    const struct llama_config *config = &m->model->config;
    const struct llama_layer *layer = &m->model->layers[l];
    const int k = config->experts_per_token;
    double norm[WIDE], branch[WIDE], logits[WIDE], sum = 0;
    plain_norm(m, &layer->post_norm, x, norm);
    if (config->n_experts == 0) {
        const struct moe_expert only = {layer->gate_proj, layer->up_proj,
                                        layer->down_proj};
        plain_gated(m, &only, norm, branch);
        for (int c = 0; c < config->d_model; c++)
            x[c] += branch[c];
        return;
    }
    const int32_t *chosen =
        m->call->workspace.layers[l].routing.experts + row * k;
    plain_linear(m, &layer->moe.gate, norm, logits);
    for (int j = 0; j < k; j++)
        sum += exp(logits[chosen[j]]);
    for (int j = 0; j < k; j++) {
        plain_gated(m, &layer->moe.experts[chosen[j]], norm, branch);
        for (int c = 0; c < config->d_model; c++)
            x[c] += exp(logits[chosen[j]]) / sum * branch[c];
    }
}

static double plain_loss(const void *context)
{
    const struct plain *m = context;
    const struct llama_config *config = &m->model->config;
    const struct llama_workspace *w = &m->call->workspace;
    double loss = 0, x[LONG][WIDE], norm[WIDE], logits[WIDE];
    int counted = 0;
    for (int b = 0; b < w->batch; b++) {
        const int32_t *ids = m->call->ids + b * w->tokens;
        const int32_t *labels = m->call->labels + b * w->tokens;
        for (int t = 0; t < w->tokens; t++)
            for (int c = 0; c < config->d_model; c++)
                x[t][c] = weights(m, &m->model->embed_tokens)
                              [ids[t] * config->d_model + c];
        for (int l = 0; l < config->n_layers; l++) {
            plain_attention(m, l, w->tokens, x);
            for (int t = 0; t < w->tokens; t++)
                plain_feed_forward(m, l, b * w->tokens + t, x[t]);
        }
        for (int t = 0; t + 1 < w->tokens; t++) {
            if (labels[t + 1] == IGNORE_INDEX)
                continue;
            double sum = 0;
            plain_norm(m, &m->model->norm, x[t], norm);
            plain_linear(m, &m->model->lm_head, norm, logits);
            for (int v = 0; v < config->vocab_size; v++)
                sum += exp(logits[v]);
            loss += log(sum) - logits[labels[t + 1]];
            counted++;
        }
    }
    return loss / counted;
}

/* Only tensors whose names have this in them, or all. */
static void expect_model_slopes(struct call *call, const char *part)
{
    const struct llama *model = call->model;
    struct plain plain = {model, call,
                          malloc(model->floats * sizeof *plain.w)};
    for (size_t k = 0; k < model->floats; k++)
        plain.w[k] = (double)model->storage[k];
    ck_assert_double_eq_tol((double)call->loss, plain_loss(&plain), 1e-5);
    for (size_t k = 0; k < model->count; k++) {
        const struct tensor *tensor = model->registry[k].tensor;
        const ptrdiff_t at = tensor->data - model->storage;
        if (part == NULL || strstr(model->registry[k].name, part) != NULL)
            expect_slopes(model->registry[k].name, plain_loss, &plain,
                          plain.w + at, tensor_size(tensor),
                          call->gradients->storage + at);
    }
    free(plain.w);
}

static void expect_slopes_of_random_models(bool experts, unsigned stream,
                                           const char *part)
{
    uint64_t state = noise_start(stream);
    for (unsigned round = 0; round < 4; round++) {
        const struct llama_config config = random_config(&state, experts);
        struct call call;
        call_begin(&call, &config, 1 + noise_below(&state, 2),
                   4 + noise_below(&state, 3), stream + 1 + round);
        call_run(&call);
        expect_model_slopes(&call, part);
        call_end(&call);
    }
}

START_TEST(queries_and_keys_hear_what_was_asked_of_turned_ones)
{
    expect_slopes_of_random_models(false, 1580, "q_proj");
    expect_slopes_of_random_models(false, 1580, "k_proj");
}
END_TEST

START_TEST(a_row_hears_the_router_that_read_it)
{
    expect_slopes_of_random_models(true, 1590, "post_attention_layernorm");
}
END_TEST

START_TEST(every_gradient_of_a_dense_model_agrees_with_differences)
{
    expect_slopes_of_random_models(false, 1600, NULL);
}
END_TEST

START_TEST(every_gradient_of_a_model_with_experts_agrees_with_differences)
{
    expect_slopes_of_random_models(true, 1610, NULL);
}
END_TEST

/* ------------------------------------------------------------- the goldens */

static struct llama_config training_config(const struct golden *golden)
{
    struct llama_config config = golden_llama_config(golden);
    config.tie_word_embeddings =
        golden_number(golden, "tie_word_embeddings") != 0;
    config.n_experts = (int)golden_number(golden, "experts");
    config.experts_per_token = (int)golden_number(golden,
                                                  "experts_per_token");
    return config;
}

static void expect_tensors(const struct golden *golden, const char *prefix,
                           const struct llama *model)
{
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        if (entry->alias)
            continue;
        const struct golden_tensor *want = golden_get(golden, "%s.%s", prefix,
                                                      entry->name);
        expect_close(entry->name, entry->tensor->data, want->f32,
                     want->count, want->rank, want->shape, TOLERANCE);
    }
}

static void expect_the_oracles_gradients(const char *name)
{
    struct golden *golden = golden_open(name);
    const struct llama_config config = training_config(golden);
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    const struct golden_tensor *logits = golden_get(golden, "out.logits");
    struct call call;
    call_begin(&call, &config, ids->shape[0], ids->shape[1], 1620);
    golden_llama_weights(golden, call.model);
    memcpy(call.ids, ids->ids, ids->count * sizeof *call.ids);
    memcpy(call.labels, golden_get(golden, "in.labels")->ids,
           ids->count * sizeof *call.labels);
    call_run(&call);
    expect_close("logits", call.workspace.logits, logits->f32, logits->count,
                 3, logits->shape, TOLERANCE);
    expect_close("loss", &call.loss, golden_get(golden, "out.loss")->f32, 1,
                 0, NULL, TOLERANCE);
    expect_tensors(golden, "g", call.gradients);
    call_end(&call);
    golden_close(golden);
}

START_TEST(gradients_of_shared_heads_agree_with_the_oracle)
{
    expect_the_oracles_gradients("llama_gradients_dense");
}
END_TEST

START_TEST(gradients_of_a_tied_table_agree_with_the_oracle)
{
    expect_the_oracles_gradients("llama_gradients_tied");
}
END_TEST

START_TEST(gradients_of_experts_agree_with_the_oracle)
{
    expect_the_oracles_gradients("llama_gradients_moe");
}
END_TEST

/* -------------------------------------------------------- sums and refusals */

START_TEST(a_second_call_adds_its_gradient_to_the_first)
{
    uint64_t state = noise_start(1630);
    for (unsigned round = 0; round < 2; round++) {
        const struct llama_config config = random_config(&state, round == 1);
        struct call call;
        call_begin(&call, &config, 2, 4, 1631 + round);
        call_run(&call);
        const size_t size = call.gradients->floats;
        float *twice = malloc(size * sizeof *twice);
        for (size_t k = 0; k < size; k++)
            twice[k] = 2 * call.gradients->storage[k];
        call_run(&call);
        expect_close("sum", call.gradients->storage, twice, size, 0, NULL,
                     TOLERANCE);
        free(twice);
        call_end(&call);
    }
}
END_TEST

START_TEST(without_gradients_the_loss_is_the_same)
{
    const struct llama_config config = small_llama_config();
    struct call call;
    float loss = 0;
    call_begin(&call, &config, 2, 5, 1640);
    call_run(&call);
    expect_ok(llama_loss_and_gradients(call.model, call.ids, call.labels,
                                       &call.workspace, &loss, NULL, &error),
              &error);
    expect_same_bits("loss", &loss, &call.loss, sizeof loss);
    call_end(&call);
}
END_TEST

START_TEST(ignored_labels_give_exactly_zero_gradients)
{
    const struct llama_config config = small_moe_config();
    const int sizes[][2] = {{2, 5}, {3, 1}};
    for (int k = 0; k < 2; k++) {
        struct call call;
        call_begin(&call, &config, sizes[k][0], sizes[k][1], 1641);
        for (int row = 0; row < sizes[k][0] * sizes[k][1]; row++)
            if (k == 0)
                call.labels[row] = IGNORE_INDEX;
        call.loss = 7;
        call_run(&call);
        ck_assert(call.loss == 0);
        for (size_t n = 0; n < call.gradients->floats; n++)
            ck_assert(call.gradients->storage[n] == 0);
        call_end(&call);
    }
}
END_TEST

static void expect_refusal(struct call *call, const char *about)
{
    error = (struct error){0};
    call->loss = 7;
    for (size_t k = 0; k < call->gradients->floats; k++)
        call->gradients->storage[k] = 7;
    ck_assert_int_eq(llama_loss_and_gradients(
        call->model, call->ids, call->labels, &call->workspace, &call->loss,
        call->gradients, &error), STATUS_INVALID);
    expect_named(&error, about);
    ck_assert(call->loss == 7);
    for (size_t k = 0; k < call->gradients->floats; k++)
        ck_assert(call->gradients->storage[k] == 7);
}

START_TEST(what_does_not_belong_together_is_refused_by_name)
{
    const struct llama_config config = small_llama_config();
    struct call call;
    call_begin(&call, &config, 2, 3, 1642);
    int32_t *const places[] = {&call.ids[4], &call.labels[4]};
    for (int k = 0; k < 2; k++)
        for (int bad = 0; bad < 2; bad++) {
            const int32_t was = *places[k];
            *places[k] = bad == 0 ? 13 : -7;
            expect_refusal(&call, k == 0 ? "ids" : "labels");
            *places[k] = was;
        }
    struct llama_config *const of[] = {&call.workspace.config,
                                       &call.gradients->config};
    for (int k = 0; k < 2; k++) {
        int *const fields[] = {
            &of[k]->vocab_size, &of[k]->context_length, &of[k]->d_model,
            &of[k]->n_layers, &of[k]->n_heads, &of[k]->n_kv_heads,
            &of[k]->head_dim, &of[k]->d_ff, &of[k]->n_experts,
            &of[k]->experts_per_token };
        const char *name = k == 0 ? "workspace" : "gradients";
        for (size_t f = 0; f < COUNT(fields); f++) {
            ++*fields[f];
            expect_refusal(&call, name);
            --*fields[f];
        }
        of[k]->rope_theta *= 2;
        expect_refusal(&call, name);
        of[k]->rope_theta /= 2;
        of[k]->rms_norm_eps *= 2;
        expect_refusal(&call, name);
        of[k]->rms_norm_eps /= 2;
        of[k]->tie_word_embeddings ^= true;
        expect_refusal(&call, name);
        of[k]->tie_word_embeddings ^= true;
    }
    call_end(&call);
}
END_TEST

START_TEST(a_workspace_refuses_what_the_config_cannot_answer)
{
    struct llama_config config = small_llama_config();
    struct llama_workspace workspace = {.batch = 77};
    static const struct { int batch, tokens; const char *about; } rows[] = {
        {0, 3, "batch"}, {-1, 3, "batch"}, {INT_MAX / 3, 4, "batch"},
        {INT_MAX / 2, 3, "batch"}, {2, 0, "tokens"}, {2, -1, "tokens"},
        {2, 25, "tokens"}, {2, INT_MAX, "tokens"},
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        error = (struct error){0};
        ck_assert_int_eq(llama_workspace_new(&workspace, &config,
                                             rows[k].batch, rows[k].tokens,
                                             &error), STATUS_INVALID);
        expect_named(&error, rows[k].about);
        ck_assert_int_eq(workspace.batch, 77);
        ck_assert_ptr_null(workspace.block);
    }
    config = small_moe_config();
    config.experts_per_token = 5;
    ck_assert_int_eq(llama_workspace_new(&workspace, &config, INT_MAX / 4 / 4,
                                         4, &error), STATUS_INVALID);
    expect_named(&error, "batch");
    llama_workspace_free(NULL);
}
END_TEST

START_TEST(a_workspace_without_memory_leaves_nothing)
{
    const struct llama_config configs[] = {small_llama_config(),
                                           small_moe_config()};
    for (int k = 0; k < 2; k++) {
        struct llama_workspace workspace = {0};
        for (long n = 1;; n++) {
            const long live = allocator_live();
            allocator_fail_at(n);
            const enum status status = llama_workspace_new(
                &workspace, &configs[k], 2, 3, &error);
            const long left = allocator_live();
            if (!allocator_stop())
                break;
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
            ck_assert_int_eq(left, live);
            ck_assert_ptr_null(workspace.block);
        }
        llama_workspace_free(&workspace);
        llama_workspace_free(&workspace);
    }
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    const struct llama_config config = small_moe_config();
    struct call call;
    call_begin(&call, &config, 2, 3, 1643);
    const long calls = allocator_calls();
    const enum status status = llama_loss_and_gradients(
        call.model, call.ids, call.labels, &call.workspace, &call.loss,
        call.gradients, &error);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(made, 0);
    call_end(&call);
}
END_TEST

/* ------------------------------------------------------ what can be trained */

static const struct gpt_config small_gpt = {
    .vocab_size = 11, .context_length = 7, .d_model = 6, .n_layers = 2,
    .n_heads = 2, .d_ff = 10, .layer_norm_eps = 1e-5
};

/* A llama, and what trains it. */
struct pupil {
    struct llama *model;
    struct trainable trainable;
    int32_t ids[12];
    struct training_batch batch;
};

static void pupil_begin(struct pupil *pupil,
                        const struct llama_config *config, unsigned stream)
{
    uint64_t state = noise_start(stream + 1);
    pupil->model = noisy_llama(config, stream);
    expect_ok(llama_trainable(&pupil->trainable, pupil->model, &error),
              &error);
    noise_ids(&state, config->vocab_size, 3, 4, pupil->ids);
    pupil->batch = (struct training_batch){
        .ids = pupil->ids, .labels = pupil->ids, .batch = 3, .tokens = 4 };
}

static void pupil_end(struct pupil *pupil)
{
    trainable_free(&pupil->trainable);
    trainable_free(&pupil->trainable);
    llama_free(&pupil->model);
}

START_TEST(matrices_decay_and_norms_and_biases_do_not)
{
    const struct llama_config config = small_moe_config();
    struct pupil pupil;
    struct trainable gpt;
    struct tiny_gpt *model = noisy_model(&small_gpt, 1651);
    pupil_begin(&pupil, &config, 1650);
    expect_ok(tiny_gpt_trainable(&gpt, model, &error), &error);
    const struct trainable *both[] = {&pupil.trainable, &gpt};
    for (int k = 0; k < 2; k++)
        for (size_t n = 0; n < both[k]->count; n++) {
            const char *name = both[k]->tensors[n].name;
            const bool vector = strstr(name, "norm") != NULL
                                || strstr(name, "bias") != NULL;
            ck_assert_msg(both[k]->tensors[n].decays == !vector,
                          "%s %s", name, vector ? "decays" : "does not decay");
        }
    trainable_free(&gpt);
    tiny_gpt_free(&model);
    pupil_end(&pupil);
}
END_TEST

/* Names, places, and together the whole block, each tensor once. */
static void expect_whole_block(const struct trainable *trainable)
{
    size_t next = 0;
    for (size_t k = 0; k < trainable->count; k++) {
        const struct tensor *tensor = trainable->tensors[k].tensor;
        ck_assert_ptr_eq(tensor->data, trainable->weights + next);
        next += tensor_size(tensor);
    }
    ck_assert_uint_eq(next, trainable->size);
}

START_TEST(the_list_is_the_block_of_weights)
{
    struct llama_config config = small_llama_config();
    struct tiny_gpt *model = noisy_model(&small_gpt, 1652);
    struct trainable gpt;
    expect_ok(tiny_gpt_trainable(&gpt, model, &error), &error);
    expect_whole_block(&gpt);
    ck_assert_ptr_eq(gpt.weights, tiny_gpt_weights(model)->storage);
    ck_assert_int_eq(gpt.vocab_size, 11);
    ck_assert_int_eq(gpt.context_length, 7);
    trainable_free(&gpt);
    tiny_gpt_free(&model);
    for (int k = 0; k < 2; k++) {
        struct pupil pupil;
        config.tie_word_embeddings = k == 1;
        pupil_begin(&pupil, &config, 1653);
        expect_whole_block(&pupil.trainable);
        ck_assert_int_eq(pupil.trainable.vocab_size, 13);
        ck_assert_int_eq(pupil.trainable.context_length, 24);
        pupil_end(&pupil);
    }
    trainable_free(NULL);
}
END_TEST

START_TEST(a_batchs_gradient_replaces_the_last_one)
{
    const struct llama_config config = small_llama_config();
    struct pupil pupil;
    float loss, again;
    pupil_begin(&pupil, &config, 1654);
    struct trainable *trainable = &pupil.trainable;
    const size_t bytes = trainable->size * sizeof (float);
    expect_ok(trainable_loss_and_gradients(trainable, &pupil.batch, &loss,
                                           &error), &error);
    float *once = memcpy(malloc(bytes), trainable->gradients, bytes);
    expect_ok(trainable_loss_and_gradients(trainable, &pupil.batch, &again,
                                           &error), &error);
    expect_same_bits("gradients", trainable->gradients, once, bytes);
    expect_same_bits("loss", &loss, &again, sizeof loss);
    free(once);
    pupil_end(&pupil);
}
END_TEST

/* Batches of three sizes through one handle, as through workspaces of their
   own. */
START_TEST(a_batch_of_another_size_gets_another_workspace)
{
    const struct llama_config config = small_moe_config();
    static const int sizes[][2] = {{3, 4}, {1, 4}, {1, 3}, {3, 4}};
    struct pupil pupil;
    pupil_begin(&pupil, &config, 1655);
    for (size_t k = 0; k < COUNT(sizes); k++) {
        struct call call;
        float loss = 0, alone = 0;
        struct training_batch batch = pupil.batch;
        batch.batch = sizes[k][0];
        batch.tokens = sizes[k][1];
        call_begin(&call, &config, batch.batch, batch.tokens, 1656);
        expect_ok(llama_loss_and_gradients(
            pupil.model, batch.ids, batch.labels, &call.workspace, &alone,
            call.gradients, &error), &error);
        expect_ok(trainable_loss_and_gradients(&pupil.trainable, &batch,
                                               &loss, &error), &error);
        expect_same_bits("loss", &loss, &alone, sizeof loss);
        expect_same_bits("gradients", pupil.trainable.gradients,
                         call.gradients->storage,
                         pupil.trainable.size * sizeof (float));
        expect_ok(trainable_loss(&pupil.trainable, &batch, &loss, &error),
                  &error);
        expect_same_bits("loss", &loss, &alone, sizeof loss);
        call_end(&call);
    }
    pupil_end(&pupil);
}
END_TEST

/* Dropout and all: the handle's gradients are chapter 3's. */
START_TEST(a_tiny_gpt_has_the_gradients_of_chapter_3)
{
    struct gpt_config config = small_gpt;
    config.dropout = 0.3;
    struct tiny_gpt *model = noisy_model(&config, 1660);
    struct parameters *gradients = NULL;
    struct activations activations = {0};
    struct forward_output output = {0};
    struct generator here, there;
    struct trainable trainable;
    int32_t ids[10];
    float loss = 0;
    uint64_t state = noise_start(1661);
    noise_ids(&state, 11, 2, 5, ids);
    generator_seed(&here, 5, 0);
    there = here;
    expect_ok(parameters_new(&gradients, &config, &error), &error);
    tiny_gpt_set_mode(model, MODE_TRAINING);
    const struct forward_input input = {
        .ids = ids, .labels = ids, .batch = 2, .tokens = 5,
        .activations = &activations, .generator = &here };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    expect_ok(tiny_gpt_backward(model, &input, &activations, &output,
                                gradients, &error), &error);
    tiny_gpt_set_mode(model, MODE_EVALUATION);

    expect_ok(tiny_gpt_trainable(&trainable, model, &error), &error);
    const struct training_batch batch = {ids, ids, 2, 5, &there};
    expect_ok(trainable_loss_and_gradients(&trainable, &batch, &loss, &error),
              &error);
    expect_same_bits("loss", &loss, &output.loss, sizeof loss);
    expect_same_bits("gradients", trainable.gradients, gradients->storage,
                     gradients->size * sizeof (float));
    ck_assert(here.state == there.state);
    ck_assert_int_eq(tiny_gpt_mode(model), MODE_EVALUATION);
    expect_ok(trainable_loss(&trainable, &batch, &loss, &error), &error);
    ck_assert(here.state == there.state);
    forward_output_free(&output);
    activations_free(&activations);
    parameters_free(&gradients);
    trainable_free(&trainable);
    tiny_gpt_free(&model);
}
END_TEST

/* One step by hand for a matrix and for a gain: both move by the learning
   rate, and the matrix shrinks by a twentieth before. */
START_TEST(a_step_moves_each_tensor_by_its_own_decay)
{
    const struct llama_config config = small_llama_config();
    struct pupil pupil;
    struct moments moments = {0};
    struct adamw adamw = {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.95,
                          .eps = 1e-8, .weight_decay = 0.5};
    pupil_begin(&pupil, &config, 1662);
    struct trainable *trainable = &pupil.trainable;
    expect_ok(moments_new(&moments, trainable, &error), &error);
    float *gain = pupil.model->norm.data;
    float *weight = pupil.model->layers[1].k_proj.weight.data;
    gain[2] = weight[3] = 2;
    memset(trainable->gradients, 0, trainable->size * sizeof (float));
    trainable->gradients[gain + 2 - trainable->weights] = 3;
    trainable->gradients[weight + 3 - trainable->weights] = -3;
    trainable_step(trainable, &adamw, &moments);
    ck_assert_int_eq(adamw.step, 1);
    ck_assert_double_eq_tol((double)gain[2], 1.9, 1e-6);
    ck_assert_double_eq_tol((double)weight[3], 2 * 0.95 + 0.1, 1e-6);
    moments_free(&moments);
    moments_free(&moments);
    moments_free(NULL);
    pupil_end(&pupil);
}
END_TEST

START_TEST(ten_steps_agree_with_the_oracle)
{
    struct golden *golden = golden_open("llama_adamw");
    const struct llama_config config = training_config(golden);
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    struct llama *model = new_llama(&config);
    struct trainable trainable;
    struct moments moments = {0};
    struct adamw adamw = {
        .learning_rate = golden_number(golden, "lr"),
        .beta1 = golden_number(golden, "beta1"),
        .beta2 = golden_number(golden, "beta2"),
        .eps = golden_number(golden, "eps"),
        .weight_decay = golden_number(golden, "weight_decay")
    };
    float losses[10];
    golden_llama_weights(golden, model);
    expect_ok(llama_trainable(&trainable, model, &error), &error);
    expect_ok(moments_new(&moments, &trainable, &error), &error);
    const struct training_batch batch = {
        .ids = ids->ids, .labels = ids->ids, .batch = ids->shape[0],
        .tokens = ids->shape[1] };
    for (int k = 0; k < 10; k++) {
        expect_ok(trainable_loss_and_gradients(&trainable, &batch, &losses[k],
                                               &error), &error);
        trainable_step(&trainable, &adamw, &moments);
    }
    expect_close("losses", losses, golden_get(golden, "out.losses")->f32, 10,
                 0, NULL, TOLERANCE);
    expect_tensors(golden, "out.w", model);
    moments_free(&moments);
    trainable_free(&trainable);
    llama_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(a_batch_that_is_refused_leaves_the_loss)
{
    const struct llama_config config = small_llama_config();
    struct pupil pupil;
    struct trainable gpt;
    struct tiny_gpt *model = noisy_model(&small_gpt, 1664);
    pupil_begin(&pupil, &config, 1663);
    expect_ok(tiny_gpt_trainable(&gpt, model, &error), &error);
    const int32_t good[] = {0, 1, 2, 3, 4, 5}, bad[] = {0, 1, 2, 3, 4, 99};
    const struct { struct training_batch batch; const char *about; } rows[] = {
        {{bad, good, 2, 3, NULL}, "ids"}, {{good, bad, 2, 3, NULL}, "labels"},
        {{good, good, 0, 3, NULL}, "batch"},
        {{good, good, 2, 99, NULL}, "tokens"},
        {{good, good, 2, 0, NULL}, "tokens"},
    };
    struct trainable *both[] = {&gpt, &pupil.trainable};
    for (size_t k = 0; k < COUNT(rows); k++)
        for (int n = 0; n < 2; n++) {
            float loss = 7;
            ck_assert_int_eq(trainable_loss_and_gradients(
                both[n], &rows[k].batch, &loss, &error), STATUS_INVALID);
            expect_named(&error, rows[k].about);
            ck_assert_int_eq(trainable_loss(both[n], &rows[k].batch, &loss,
                                            &error), STATUS_INVALID);
            ck_assert(loss == 7);
        }
    trainable_free(&gpt);
    tiny_gpt_free(&model);
    pupil_end(&pupil);
}
END_TEST

/* Whatever fails, the same call succeeds afterwards. */
START_TEST(training_without_memory_leaves_nothing)
{
    const struct llama_config config = small_moe_config();
    struct llama *llama = noisy_llama(&config, 1670);
    struct tiny_gpt *gpt = noisy_model(&small_gpt, 1671);
    const int32_t ids[] = {0, 1, 2, 3, 4, 5};
    const struct training_batch batch = {ids, ids, 2, 3, NULL};
    for (int family = 0; family < 2; family++) {
        struct trainable trainable = {0};
        struct moments moments = {0};
        for (int call = 0; call < 3; call++)
            for (long n = 1;; n++) {
                float loss = 7;
                const long live = allocator_live();
                allocator_fail_at(n);
                const enum status status =
                    call == 2 ? trainable_loss_and_gradients(
                                    &trainable, &batch, &loss, &error)
                    : call == 1 ? moments_new(&moments, &trainable, &error)
                    : family == 0 ? llama_trainable(&trainable, llama, &error)
                    : tiny_gpt_trainable(&trainable, gpt, &error);
                const long left = allocator_live();
                if (!allocator_stop())
                    break;
                ck_assert_int_eq(status, STATUS_NO_MEMORY);
                ck_assert_int_eq(left, live);
                ck_assert(loss == 7);
                ck_assert(call > 0 || trainable.model == NULL);
                ck_assert(call > 1 || moments.first == NULL);
            }
        moments_free(&moments);
        trainable_free(&trainable);
    }
    llama_free(&llama);
    tiny_gpt_free(&gpt);
}
END_TEST

static const struct test tests[] = {
    TEST(a_norm_sends_no_gradient_along_its_row, 1,
         "average what the row's scale holds fixed"),
    TEST(a_norms_gain_hears_the_normalised_rows, 1,
         "add the two-term gradient of the row"),
    TEST(a_norms_gradient_agrees_with_differences, 1,
         "add the two-term gradient of the row"),
    TEST(a_row_of_zeros_has_a_finite_gradient, 1,
         "add the two-term gradient of the row"),
    TEST(a_gradient_is_turned_by_the_negative_angle, 1,
         "turn the gradient back"),
    TEST(a_turn_backwards_is_the_transpose, 1, "turn the gradient back"),
    TEST(a_shared_key_hears_every_head_of_its_group, 1,
         "let the shared head hear query head h"),
    TEST(grouped_gradients_agree_with_differences, 1,
         "let the shared head hear query head h"),
    TEST(silu_has_its_known_slopes, 1,
         "multiply by the slopes of the gated product"),
    TEST(gated_gradients_agree_with_differences, 1,
         "multiply by the slopes of the gated product"),
    TEST(a_tokens_row_collects_every_use_and_keeps_what_it_had, 1,
         "give each row's gradient to the token it came from"),
    TEST(two_gates_move_against_each_other, 1,
         "let the chosen logit hear its gate"),
    TEST(a_choice_of_one_leaves_the_router_without_a_gradient, 1,
         "let mean be the gates' mean gradient"),
    TEST(experts_hear_rows_by_their_gates, 1,
         "ask the gate and the expert to move"),
    TEST(a_routers_gradient_agrees_with_differences, 1,
         "let the chosen logit hear its gate"),
    TEST(a_row_hears_every_place_that_it_was_copied_to, 1,
         "let the row hear from this place"),
    TEST(an_experts_gradients_agree_with_differences, 1,
         "take the gradient through the gate"),
    TEST(the_training_forward_has_the_bits_of_inference, 2,
         "the forward pass that keeps what it makes"),
    TEST(the_training_forward_with_experts_has_the_bits_of_inference, 2,
         "mix the experts and keep what they make"),
    TEST(nothing_that_was_in_the_workspace_matters, 2,
         "clear the room that gradients share"),
    TEST(the_streams_gradient_passes_around_every_branch, 2,
         "add the norm's gradient to that of the stream"),
    TEST(queries_and_keys_hear_what_was_asked_of_turned_ones, 2,
         "turn the gradients of queries and keys back"),
    TEST(a_row_hears_the_router_that_read_it, 2,
         "take the gates' gradient through the router"),
    TEST(every_gradient_of_a_dense_model_agrees_with_differences, 2,
         "the walk from the logits to the table"),
    TEST(every_gradient_of_a_model_with_experts_agrees_with_differences, 2,
         "take the stream's gradient through the experts"),
    TEST(gradients_of_shared_heads_agree_with_the_oracle, 2,
         "the walk from the logits to the table"),
    TEST(gradients_of_a_tied_table_agree_with_the_oracle, 2,
         "give each row's gradient to the token it came from"),
    TEST(gradients_of_experts_agree_with_the_oracle, 2,
         "take the stream's gradient through the experts"),
    TEST(a_second_call_adds_its_gradient_to_the_first, 2,
         "the walk from the logits to the table"),
    TEST(without_gradients_the_loss_is_the_same, 2,
         "the loss and the gradients of a batch"),
    TEST(ignored_labels_give_exactly_zero_gradients, 2,
         "the loss and the gradients of a batch"),
    TEST(what_does_not_belong_together_is_refused_by_name, 2,
         "refuse what does not belong to one model"),
    TEST(a_workspace_refuses_what_the_config_cannot_answer, 2,
         "refuse a batch that the config cannot answer"),
    TEST(a_workspace_without_memory_leaves_nothing, 2,
         "make and free the room of a step"),
    TEST(a_step_allocates_nothing, 2,
         "the loss and the gradients of a batch"),
    TEST(matrices_decay_and_norms_and_biases_do_not, 2,
         "let matrices decay and nothing else"),
    TEST(the_list_is_the_block_of_weights, 2, "list what decays"),
    TEST(a_batchs_gradient_replaces_the_last_one, 2,
         "begin the batch's gradient with zeros"),
    TEST(a_batch_of_another_size_gets_another_workspace, 2,
         "make another workspace for a batch of another size"),
    TEST(a_tiny_gpt_has_the_gradients_of_chapter_3, 2,
         "the loss of a tiny GPT"),
    TEST(a_step_moves_each_tensor_by_its_own_decay, 2,
         "make, free and move the moments"),
    TEST(ten_steps_agree_with_the_oracle, 3,
         "make, free and move the moments"),
    TEST(a_batch_that_is_refused_leaves_the_loss, 2,
         "ask for a loss or for more"),
    TEST(training_without_memory_leaves_nothing, 2,
         "train a llama"),
};

SUITE("15b: the backward pass of a llama", tests);
