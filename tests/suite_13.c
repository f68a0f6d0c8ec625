/* Chapter 13: the parts of another family by hand and by plain arithmetic in
   double, the family against the oracle's numbers and against a second
   computation, and the caches of the second part around it. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "attention.h"
#include "grouped_attention.h"
#include "rms_norm.h"
#include "rope.h"
#include "rope_study.h"
#define LLAMA small_llama_config
#include "support/llama_matrix.h"
#include "support/program.h"
#include "swiglu.h"

/* ---------------------------------------------------------------- the norm */

static struct tensor vector_of(float *data, int width)
{
    return (struct tensor){data, 1, {width}};
}

/* The squares of (2,6,3,0) have the mean 49/4, that of (-1,1,1,1) is 1. */
START_TEST(a_row_is_divided_by_its_root_mean_square)
{
    const float in[] = {2, 6, 3, 0, -1, 1, 1, 1};
    float weights[] = {7, 14, 3.5f, 1}, out[8];
    const float want[] = {4, 24, 3, 0, -7, 14, 3.5f, 1};
    const struct tensor weight = vector_of(weights, 4);
    rms_norm_forward(&weight, 1e-12, in, 2, out);
    expect_close("out", out, want, 8, 1, (const int[]){8}, 3e-7);
}
END_TEST

START_TEST(the_mean_of_a_row_is_kept)
{
    const float in[] = {5, 5, 5, 5, -3, -3, -3, -3};
    float weights[] = {1, 2, 3, 4}, out[8];
    const float want[] = {1, 2, 3, 4, -1, -2, -3, -4};
    const struct tensor weight = vector_of(weights, 4);
    rms_norm_forward(&weight, 1e-12, in, 2, out);
    expect_close("out", out, want, 8, 1, (const int[]){8}, 3e-7);
}
END_TEST

START_TEST(a_row_of_zeros_stays_zero_and_its_neighbours_do_not_notice)
{
    uint64_t state = noise_start(130);
    float in[3 * 5] = {0}, weights[5], out[3 * 5], alone[2 * 5];
    noise_floats(&state, 5, weights);
    noise_floats(&state, 5, in);
    noise_floats(&state, 5, in + 10);
    const struct tensor weight = vector_of(weights, 5);
    rms_norm_forward(&weight, 1e-5, in, 3, out);
    rms_norm_forward(&weight, 1e-5, in, 1, alone);
    rms_norm_forward(&weight, 1e-5, in + 10, 1, alone + 5);
    for (int c = 0; c < 5; c++)
        ck_assert_float_eq(out[5 + c], 0);
    expect_same_bits("row 0", out, alone, 5 * sizeof *out);
    expect_same_bits("row 2", out + 10, alone + 5, 5 * sizeof *out);
}
END_TEST

/* A quiet row: 1e-3 / sqrt(1e-6 + 1e-5) = 0.3015. */
START_TEST(epsilon_stands_under_the_root)
{
    const float in[] = {1e-3f, -1e-3f};
    float weights[] = {1, 1}, out[2];
    const float want[] = {0.301511345f, -0.301511345f};
    const struct tensor weight = vector_of(weights, 2);
    rms_norm_forward(&weight, 1e-5, in, 1, out);
    expect_close("out", out, want, 2, 1, (const int[]){2}, 1e-6);
}
END_TEST

/* A long row of numbers of one size, which a running float sum rounds again
   and again; and numbers whose squares no float holds. */
START_TEST(the_mean_square_is_as_exact_as_a_float_can_say)
{
    enum { WIDTH = 65536 };
    float *in = malloc(WIDTH * sizeof *in), *out = malloc(WIDTH * sizeof *out);
    float *ones = malloc(WIDTH * sizeof *ones);
    uint64_t state = noise_start(131);
    const float sizes[] = {1, 1e20f, 1e-20f};
    const struct tensor weight = vector_of(ones, WIDTH);
    for (int s = 0; s < 3; s++) {
        long double square = 0;
        for (int c = 0; c < WIDTH; c++) {
            in[c] = sizes[s] * (1.5f + noise(&state));
            square += (long double)in[c] * in[c];
            ones[c] = 1;
        }
        rms_norm_forward(&weight, 1e-60, in, 1, out);
        const double root = (double)sqrtl(square / WIDTH);
        for (int c = 0; c < WIDTH; c++) {
            const double want = in[c] / root;
            if (fabs(out[c] - want) > 1.2e-7 * fabs(want))
                ck_abort_msg("size %g, column %d: %.9g, expected %.9g",
                             (double)sizes[s], c, (double)out[c], want);
        }
    }
    free(in), free(out), free(ones);
}
END_TEST

START_TEST(a_norm_may_write_over_its_input)
{
    uint64_t state = noise_start(132);
    float in[4 * 7], weights[7], out[4 * 7];
    noise_floats(&state, 28, in);
    noise_floats(&state, 7, weights);
    const struct tensor weight = vector_of(weights, 7);
    rms_norm_forward(&weight, 1e-5, in, 4, out);
    rms_norm_forward(&weight, 1e-5, in, 4, in);
    expect_same_bits("rows", in, out, sizeof out);
}
END_TEST

/* ------------------------------------------------------------------- turns */

/* Position 3, D = 4, theta = 100: angles 3 and 0.3. */
START_TEST(each_pair_turns_to_the_left_by_its_own_angle)
{
    float x[] = {1, 2, 3, 4};
    const float want[] = {-1.41335252f, 0.728592151f, -2.82885748f,
                          4.41238637f};
    const int32_t position = 3;
    rope_rotate(x, 1, 1, 4, &position, 100);
    expect_close("x", x, want, 4, 1, (const int[]){4}, 1e-6);
}
END_TEST

START_TEST(a_pair_is_a_column_of_each_half)
{
    const int32_t position = 2;
    for (int d = 0; d < 10; d++) {
        float x[10] = {0};
        x[d] = 1;
        rope_rotate(x, 1, 1, 10, &position, 100);
        for (int k = 0; k < 10; k++)
            ck_assert_msg((x[k] != 0) == (k % 5 == d % 5),
                          "column %d moves column %d to %g", d, k,
                          (double)x[k]);
    }
}
END_TEST

START_TEST(position_0_is_the_identity)
{
    uint64_t state = noise_start(133);
    float x[3 * 2 * 8], before[3 * 2 * 8];
    const int32_t positions[] = {0, 0};
    noise_floats(&state, 48, x);
    memcpy(before, x, sizeof x);
    rope_rotate(x, 3, 2, 8, positions, 10000);
    expect_same_bits("x", x, before, sizeof x);
}
END_TEST

/* Any position, far ones as well. */
START_TEST(a_pair_keeps_its_norm)
{
    uint64_t state = noise_start(134);
    for (int round = 0; round < 200; round++) {
        float x[12], before[12];
        const int32_t position = noise_below(&state, 10000000);
        noise_floats(&state, 12, x);
        memcpy(before, x, sizeof x);
        rope_rotate(x, 1, 1, 12, &position, 10000);
        for (int i = 0; i < 6; i++) {
            const double was = hypot(before[i], before[i + 6]);
            const double is = hypot(x[i], x[i + 6]);
            ck_assert_msg(fabs(is - was) <= 2e-7 * was,
                          "pair %d at %d: %.9g, expected %.9g", i,
                          (int)position, is, was);
        }
    }
}
END_TEST

/* Against angles of 64 bits of precision, up to the last position. */
START_TEST(an_angle_is_right_at_any_position)
{
    const int32_t positions[] = {1, 3, 255, 4095, 131071, 1000000, 16777217,
                                 INT32_MAX};
    float turns[8 * 16];
    rope_turns(positions, 8, 16, 500000, turns);
    for (int t = 0; t < 8; t++)
        for (int i = 0; i < 8; i++) {
            const long double turn = positions[t] * powl(500000, -i / 8.0L);
            const double c = turns[t * 16 + i] - (double)cosl(turn);
            const double s = turns[t * 16 + 8 + i] - (double)sinl(turn);
            ck_assert_msg(fabs(c) <= 1e-6 && fabs(s) <= 1e-6,
                          "pair %d at %d: the cosine is off by %g, the sine"
                          " by %g", i, (int)positions[t], c, s);
        }
}
END_TEST

START_TEST(two_turns_are_one_turn_by_their_sum)
{
    uint64_t state = noise_start(136);
    for (int round = 0; round < 50; round++) {
        float twice[6], once[6];
        const int32_t first = noise_below(&state, 5000);
        const int32_t second = noise_below(&state, 5000);
        const int32_t sum = first + second;
        noise_floats(&state, 6, twice);
        memcpy(once, twice, sizeof once);
        rope_rotate(twice, 1, 1, 6, &first, 10000);
        rope_rotate(twice, 1, 1, 6, &second, 10000);
        rope_rotate(once, 1, 1, 6, &sum, 10000);
        expect_close("x", twice, once, 6, 1, (const int[]){6}, 5e-7);
    }
}
END_TEST

START_TEST(a_table_of_turns_turns_as_the_positions_do)
{
    uint64_t state = noise_start(137);
    float x[3 * 5 * 8], y[3 * 5 * 8], turns[5 * 8];
    int32_t positions[5];
    for (int t = 0; t < 5; t++)
        positions[t] = noise_below(&state, 100000);
    noise_floats(&state, 120, x);
    memcpy(y, x, sizeof x);
    rope_turns(positions, 5, 8, 10000, turns);
    rope_turn(x, 3, 5, 8, turns);
    rope_rotate(y, 3, 5, 8, positions, 10000);
    expect_same_bits("x", x, y, sizeof x);
    for (int k = 0; k < 5 * 8; k += 8)
        for (int i = 0; i < 4; i++)
            ck_assert_msg(fabs(hypot(turns[k + i], turns[k + 4 + i]) - 1)
                          < 1e-7, "turn %d", k + i);
}
END_TEST

START_TEST(each_token_of_each_head_turns_by_its_own_position)
{
    uint64_t state = noise_start(138);
    float x[3 * 4 * 6], alone[6];
    const int32_t positions[] = {7, 0, 300, 8};
    noise_floats(&state, 72, x);
    float before[72];
    memcpy(before, x, sizeof x);
    rope_rotate(x, 3, 4, 6, positions, 50);
    for (int h = 0; h < 3; h++)
        for (int t = 0; t < 4; t++) {
            memcpy(alone, before + (h * 4 + t) * 6, sizeof alone);
            rope_rotate(alone, 1, 1, 6, &positions[t], 50);
            expect_same_bits("row", x + (h * 4 + t) * 6, alone,
                             sizeof alone);
        }
}
END_TEST

/* The change of q·k when both move: flat in double; in float it grows with
   the offset and stays below the chapter's bound. */
START_TEST(a_dot_product_depends_on_the_distance_alone)
{
    for (int32_t offset = 1; offset <= 1000000; offset *= 10) {
        const struct rope_shift shift = rope_shift_errors(offset);
        ck_assert_msg(shift.doubles <= 1e-7, "offset %d: %g", (int)offset,
                      shift.doubles);
        ck_assert_msg(shift.floats <= 5e-7 + (offset + 64.0) / 8388608,
                      "offset %d: %g", (int)offset, shift.floats);
    }
    ck_assert_double_gt(rope_shift_errors(1000000).floats, 1e-4);
    ck_assert_double_eq(rope_shift_errors(0).doubles, 0);
}
END_TEST

/* 10^6 of a loop's own offsets, without the study. */
START_TEST(a_shifted_pair_keeps_its_dot_product)
{
    uint64_t state = noise_start(139);
    for (int round = 0; round < 300; round++) {
        float q[16], k[16], moved_q[16], moved_k[16];
        const int32_t distance = noise_below(&state, 512);
        const int32_t offset = noise_below(&state, 1000001);
        const int32_t near[] = {distance, 0};
        const int32_t far[] = {offset + distance, offset};
        noise_floats(&state, 16, q);
        noise_floats(&state, 16, k);
        memcpy(moved_q, q, sizeof q);
        memcpy(moved_k, k, sizeof k);
        rope_rotate(q, 1, 1, 16, &near[0], 10000);
        rope_rotate(k, 1, 1, 16, &near[1], 10000);
        rope_rotate(moved_q, 1, 1, 16, &far[0], 10000);
        rope_rotate(moved_k, 1, 1, 16, &far[1], 10000);
        double here = 0, there = 0, size = 0;
        for (int d = 0; d < 16; d++) {
            here += (double)q[d] * k[d];
            there += (double)moved_q[d] * moved_k[d];
            size += fabs((double)q[d]) * fabs((double)k[d]) + 0.1;
        }
        ck_assert_msg(fabs(here - there) <= 5e-7 * size,
                      "distance %d, offset %d: %.9g, expected %.9g",
                      (int)distance, (int)offset, there, here);
    }
}
END_TEST

START_TEST(a_head_without_pairs_and_a_theta_without_angles_are_refused)
{
    static const int dims[] = {-2, 0, 1, 3, 127};
    static const double thetas[] = {0, -1, NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 5; k++) {
        error = (struct error){0};
        ck_assert_int_eq(rope_check(dims[k], 10000, &error), STATUS_INVALID);
        expect_named(&error, "head_dim");
        ck_assert_int_eq(rope_check(8, thetas[k], &error), STATUS_INVALID);
        expect_named(&error, "rope_theta");
        ck_assert_int_eq(rope_check(8, thetas[k], NULL), STATUS_INVALID);
    }
    expect_ok(rope_check(2, 1, &error), &error);
    expect_ok(rope_check(128, 5e5, &error), &error);
}
END_TEST

/* ---------------------------------------------------------- grouped heads */

/* One key, so the context is its value: that of head h / (H/Hk). */
static void expect_heads(int heads, int kv_heads, const int *want)
{
    float query[8 * 2], key[8 * 2], value[8 * 2], context[8 * 2];
    float scores[1], probs[1];
    const bool keep[] = {true};
    uint64_t state = noise_start(140);
    noise_floats(&state, 16, query);
    noise_floats(&state, 16, key);
    for (int k = 0; k < 16; k++)
        value[k] = (float)(k / 2 * 10 + k % 2);
    const struct grouped_shape shape = {
        .heads = heads, .kv_heads = kv_heads, .tokens = 1, .keys = 1,
        .slots = 1, .head_dim = 2
    };
    grouped_attention_forward(&shape, query, key, value, keep, scores, probs,
                              context);
    for (int h = 0; h < heads; h++)
        for (int d = 0; d < 2; d++)
            ck_assert_float_eq(context[h * 2 + d],
                               (float)(want[h] * 10 + d));
}

START_TEST(neighbouring_query_heads_share_a_key_head)
{
    expect_heads(4, 2, (const int[]){0, 0, 1, 1});
    expect_heads(8, 8, (const int[]){0, 1, 2, 3, 4, 5, 6, 7});
    expect_heads(8, 2, (const int[]){0, 0, 0, 0, 1, 1, 1, 1});
    expect_heads(8, 1, (const int[]){0, 0, 0, 0, 0, 0, 0, 0});
    expect_heads(6, 3, (const int[]){0, 0, 1, 1, 2, 2});
}
END_TEST

/* Chapter 2's attention over keys and values that are written out H times.
   What is behind the keys in their slots is NaN. */
START_TEST(grouped_heads_equal_repeated_ones)
{
    uint64_t state = noise_start(141);
    for (int round = 0; round < 40; round++) {
        const int kv = 1 + noise_below(&state, 3);
        const int group = 1 + noise_below(&state, 4), heads = kv * group;
        const int tokens = 1 + noise_below(&state, 3);
        const int keys = tokens + noise_below(&state, 5);
        const int slots = keys + noise_below(&state, 3), dim = 6;
        float query[12 * 3 * 6], key[3 * 9 * 6], value[3 * 9 * 6];
        float long_key[12 * 7 * 6], long_value[12 * 7 * 6];
        float scores[12 * 3 * 7], probs[12 * 3 * 7];
        float got[12 * 3 * 6], want[12 * 3 * 6];
        bool keep[3 * 7];
        noise_floats(&state, 12 * 3 * 6, query);
        noise_floats(&state, 3 * 9 * 6, key);
        noise_floats(&state, 3 * 9 * 6, value);
        for (int k = 0; k < tokens * keys; k++)
            keep[k] = noise_below(&state, 4) > 0;
        for (int k = 0; k < kv * slots * dim; k++)
            if (k / dim % slots >= keys)
                key[k] = value[k] = NAN;
        for (int h = 0; h < heads; h++) {
            const size_t bytes = (size_t)(keys * dim) * sizeof *key;
            memcpy(long_key + h * keys * dim,
                   key + h / group * slots * dim, bytes);
            memcpy(long_value + h * keys * dim,
                   value + h / group * slots * dim, bytes);
        }
        const struct grouped_shape shape = {heads, kv, tokens, keys, slots,
                                            dim};
        grouped_attention_forward(&shape, query, key, value, keep, scores,
                                  probs, got);
        attention_forward(query, long_key, long_value, keep, heads, tokens,
                          keys, dim, scores, probs, want);
        expect_same_bits("context", got, want,
                         (size_t)(heads * tokens * dim) * sizeof *got);
    }
}
END_TEST

START_TEST(a_query_that_sees_nothing_gets_zeros_and_its_neighbours_theirs)
{
    uint64_t state = noise_start(143);
    float query[4 * 3 * 6], key[2 * 5 * 6], value[2 * 5 * 6];
    float context[4 * 3 * 6], seen[4 * 3 * 6], scores[3 * 5], probs[3 * 5];
    const struct grouped_shape shape = {4, 2, 3, 5, 5, 6};
    bool keep[15];
    noise_floats(&state, 72, query);
    noise_floats(&state, 60, key);
    noise_floats(&state, 60, value);
    for (int k = 0; k < 15; k++)
        keep[k] = true;
    grouped_attention_forward(&shape, query, key, value, keep, scores, probs,
                              seen);
    memset(keep + 5, 0, 5 * sizeof *keep);
    grouped_attention_forward(&shape, query, key, value, keep, scores, probs,
                              context);
    for (int k = 0; k < 72; k++)
        ck_assert_float_eq(context[k], k / 6 % 3 == 1 ? 0 : seen[k]);
}
END_TEST

/* ------------------------------------------------------------------- gates */

START_TEST(the_gate_is_a_sigmoid_of_itself_times_itself)
{
    const float gate[] = {0, 1, -1, 2, 20, -20};
    const float up[] = {5, 3, 3, -1, 0.5f, 1e6f};
    const float want[] = {0, 2.19317574f, -0.806824264f, -1.76159416f,
                          9.99999998f, -0.0412230722f};
    float out[6];
    swiglu_forward(gate, up, 6, out);
    expect_close("out", out, want, 6, 1, (const int[]){6}, 1e-6);
}
END_TEST

START_TEST(a_gate_is_finite_and_exact_far_from_zero)
{
    uint64_t state = noise_start(142);
    float gate[400], up[400], out[400];
    for (int k = 0; k < 400; k++) {
        gate[k] = 120 * noise(&state);
        up[k] = noise(&state);
    }
    gate[0] = -1e30f, gate[1] = 1e30f, gate[2] = -88, gate[3] = -89;
    swiglu_forward(gate, up, 400, out);
    for (int k = 0; k < 400; k++) {
        const double want = gate[k] / (1 + exp(-(double)gate[k])) * up[k];
        ck_assert_msg(fabs(out[k] - want) <= 1e-30 + 5e-7 * fabs(want),
                      "gate %g: %.9g, expected %.9g", (double)gate[k],
                      (double)out[k], want);
    }
    swiglu_forward(gate, up, 400, up);
    expect_same_bits("over up", up, out, sizeof out);
}
END_TEST

/* --------------------------------------------------------- config and names */

START_TEST(every_field_of_a_config_is_refused_by_its_name)
{
    const struct llama_config good = small_llama_config();
    struct llama_config c[32];
    const char *names[32];
    int n = 0;
    for (int k = 0; k < 32; k++)
        c[k] = good;
#define REFUSED(field, value, says) \
    c[n].field = value, names[n++] = says
    REFUSED(vocab_size, 0, "vocab_size: ");
    REFUSED(context_length, 0, "context_length: ");
    REFUSED(d_model, -1, "d_model: ");
    REFUSED(n_layers, 0, "n_layers: ");
    REFUSED(n_layers, LLAMA_LAYERS_MAX + 1, "n_layers: ");
    REFUSED(n_heads, 0, "n_heads: ");
    REFUSED(n_heads, INT_MAX / 6 / 2 * 2 + 2, "n_heads: ");
    REFUSED(n_kv_heads, 0, "n_kv_heads: ");
    REFUSED(head_dim, 0, "head_dim: ");
    REFUSED(head_dim, 5, "head_dim: ");
    REFUSED(d_ff, INT_MIN, "d_ff: ");
    REFUSED(rms_norm_eps, 0, "rms_norm_eps: ");
    REFUSED(rms_norm_eps, -1e-5, "rms_norm_eps: ");
    REFUSED(rms_norm_eps, NAN, "rms_norm_eps: ");
    REFUSED(rms_norm_eps, INFINITY, "rms_norm_eps: ");
    REFUSED(rope_theta, 0, "rope_theta: ");
    REFUSED(rope_theta, -1, "rope_theta: ");
    REFUSED(rope_theta, NAN, "rope_theta: ");
    REFUSED(rope_theta, INFINITY, "rope_theta: ");
    REFUSED(n_experts, -1, "n_experts: ");
    REFUSED(experts_per_token, 1, "n_experts: ");
#undef REFUSED
    for (int k = 0; k < n; k++) {
        struct llama *model = NULL;
        error = (struct error){0};
        ck_assert_msg(llama_config_check(&c[k], &error) == STATUS_INVALID,
                      "case %d, %s", k, names[k]);
        expect_named(&error, names[k]);
        long live = allocator_live();
        enum status status = llama_new(&model, &c[k], NULL);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        ck_assert_ptr_null(model);
        ck_assert_int_eq(live, 0);
    }
    expect_ok(llama_config_check(&good, &error), &error);
}
END_TEST

START_TEST(key_heads_that_leave_a_remainder_are_refused)
{
    struct llama_config config = small_llama_config();
    config.n_heads = 12;
    for (int kv = 1; kv <= 25; kv++) {
        config.n_kv_heads = kv;
        error = (struct error){0};
        const enum status status = llama_config_check(&config, &error);
        ck_assert_msg((status == STATUS_OK) == (kv <= 12 && 12 % kv == 0),
                      "12 heads, %d of keys: status %d", kv, (int)status);
        if (status != STATUS_OK)
            expect_named(&error, "n_kv_heads: ");
    }
}
END_TEST

START_TEST(sizes_whose_bytes_do_not_fit_are_refused)
{
    struct llama_config config = small_llama_config();
    size_t floats = 17;
    config.vocab_size = config.d_model = config.d_ff = INT_MAX;
    config.n_layers = LLAMA_LAYERS_MAX;
    ck_assert(!llama_config_floats(&config, &floats));
    ck_assert_uint_eq(floats, 17);
    ck_assert_int_eq(llama_config_check(&config, &error), STATUS_INVALID);
    expect_named(&error, "d_model");
}
END_TEST

static const char *const layer_names[] = {
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
};

static void expect_entry(const struct llama *model, size_t index,
                         const char *owner, int rows, int columns)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", owner);
    const struct llama_tensor *entry = llama_tensor_at(model, index);
    ck_assert_str_eq(entry->name, name);
    ck_assert_str_eq(entry->owner, owner);
    ck_assert_ptr_eq(llama_tensor_find(model, name), entry);
    ck_assert_int_eq(entry->tensor->rank, columns == 0 ? 1 : 2);
    ck_assert_int_eq(entry->tensor->shape[0], rows);
    ck_assert_int_eq(entry->tensor->shape[1], columns);
    for (size_t n = 0; n < tensor_size(entry->tensor); n++)
        ck_assert_float_eq(entry->tensor->data[n], 0);
}

/* C 10, H 4, Hk 2, D 6, F 7, V 13: no two of 10, 24, 12, 7 and 13 are equal. */
START_TEST(tensors_have_the_names_and_shapes_of_checkpoints)
{
    static const int rows[] = {10, 24, 12, 12, 10, 10, 7, 7, 10};
    static const int columns[] = {0, 10, 10, 10, 24, 0, 10, 10, 7};
    const struct llama_config config = small_llama_config();
    struct llama *model = new_llama(&config);
    ck_assert_uint_eq(llama_tensor_count(model), 3 + 3 * 9);
    expect_entry(model, 0, "model.embed_tokens", 13, 10);
    for (int l = 0; l < 3; l++)
        for (int k = 0; k < 9; k++) {
            char owner[96];
            snprintf(owner, sizeof owner, "model.layers.%d.%s", l,
                     layer_names[k]);
            expect_entry(model, (size_t)(1 + l * 9 + k), owner, rows[k],
                         columns[k]);
        }
    expect_entry(model, 28, "model.norm", 10, 0);
    expect_entry(model, 29, "lm_head", 13, 10);
    ck_assert_ptr_null(llama_tensor_find(model, "model.norm"));
    ck_assert_ptr_null(llama_tensor_find(model,
                                         "model.layers.3.mlp.up_proj.weight"));
    llama_free(&model);
    ck_assert_ptr_null(model);
    llama_free(&model);
    llama_free(NULL);
}
END_TEST

START_TEST(the_formula_counts_what_is_stored)
{
    for (int tied = 0; tied < 2; tied++) {
        struct llama_config config = small_llama_config();
        config.tie_word_embeddings = tied;
        struct llama *model = new_llama(&config);
        size_t floats, sum = 0;
        for (size_t k = 0; k < llama_tensor_count(model); k++)
            if (!llama_tensor_at(model, k)->alias)
                sum += tensor_size(llama_tensor_at(model, k)->tensor);
        ck_assert(llama_config_floats(&config, &floats));
        ck_assert_uint_eq(floats, sum);
        ck_assert_uint_eq(sum, (size_t)(tied ? 130 : 260) + 7 * 10
                               + 3 * (2 * 240 + 2 * 120 + 3 * 70));
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_tied_head_is_the_embedding_under_another_name)
{
    struct llama_config config = small_llama_config();
    config.tie_word_embeddings = true;
    struct llama *model = new_llama(&config);
    const struct llama_tensor *head = llama_tensor_find(model,
                                                        "lm_head.weight");
    const struct llama_tensor *embedding =
        llama_tensor_find(model, "model.embed_tokens.weight");
    ck_assert(head->alias && !embedding->alias);
    ck_assert_str_eq(head->owner, "lm_head");
    ck_assert_ptr_eq(head->tensor->data, embedding->tensor->data);
    ck_assert(tensor_same_shape(head->tensor, embedding->tensor));
    llama_free(&model);
    config.tie_word_embeddings = false;
    model = new_llama(&config);
    head = llama_tensor_find(model, "lm_head.weight");
    ck_assert(!head->alias);
    ck_assert_ptr_ne(head->tensor->data,
                     llama_tensor_at(model, 0)->tensor->data);
    llama_free(&model);
}
END_TEST

START_TEST(a_model_keeps_a_config_of_its_own)
{
    struct llama_config config = small_llama_config();
    struct llama *model = new_llama(&config);
    config.n_layers = 99;
    ck_assert_int_eq(llama_config(model)->n_layers, 3);
    const struct causal_lm lm = llama_causal_lm(model);
    ck_assert_ptr_eq(lm.model, model);
    ck_assert_int_eq(lm.vocab_size, 13);
    ck_assert_int_eq(lm.context_length, 24);
    ck_assert_int_eq(lm.cache.n_layers, 3);
    ck_assert_int_eq(lm.cache.n_kv_heads, 2);
    ck_assert_int_eq(lm.cache.head_dim, 6);
    llama_free(&model);
}
END_TEST

START_TEST(making_a_model_survives_each_failed_allocation)
{
    const struct llama_config config = small_llama_config();
    for (long n = 1; ; n++) {
        struct llama *model = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = llama_new(&model, &config, &error);
        live = allocator_live() - live;
        if (!allocator_stop()) {
            expect_ok(status, &error);
            llama_free(&model);
            ck_assert_int_gt(n, 4);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(model);
        ck_assert_int_eq(live, 0);
    }
}
END_TEST

/* ------------------------------------------------------------- the model */

/* The chapter's ledger: C 2, H 2, Hk 1, D 2, F 1, two tokens. */
START_TEST(one_layer_agrees_with_a_calculation_by_hand)
{
    const struct llama_config config = {
        .vocab_size = 3, .context_length = 4, .d_model = 2, .n_layers = 1,
        .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .d_ff = 1,
        .rms_norm_eps = 1e-12, .rope_theta = 10000
    };
    static const float given[][9] = {
        {1, 1, 1, -1, 2, 0},            /* embed_tokens */
        {1, 2},                         /* input_layernorm */
        {1, 0, 0, 1, 0, 1, 1, 0},       /* q: as it is; exchanged */
        {1, 0, 0, 1},                   /* k */
        {1, 0, 1, 1},                   /* v */
        {0.5f, 0, 0, 0.5f, 0, 1, 0.5f, 0},   /* o */
        {1, 1},                         /* post_attention_layernorm */
        {1, 1}, {1, -1}, {1, 2},        /* gate, up, down */
        {1, 1},                         /* norm */
        {1, 0, 0, 1, 1, 1}              /* lm_head */
    };
    const float keys[] = {1, 2, 2.22324428f, -0.239133627f};
    const float values[] = {1, 3, 1, -1};
    const float want[] = {0.839761927f, 1.13789275f, 1.97765468f,
                          1.41368418f, 0.0386915618f, 1.45237574f};
    struct llama *model = new_llama(&config);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct tensor *tensor = llama_tensor_at(model, k)->tensor;
        memcpy(tensor->data, given[k], tensor_size(tensor) * sizeof (float));
    }
    const struct causal_lm lm = llama_causal_lm(model);
    const int32_t ids[] = {0, 1}, positions[] = {0, 1};
    struct cache_aware_output output = whole(&lm, ids, positions, 1, 2);
    const struct layer_kv *layer = &output.past_key_values.layers[0];
    expect_close("keys", layer->key.data, keys, 4, 4, layer->key.shape, 1e-6);
    expect_close("values", layer->value.data, values, 4, 4,
                 layer->value.shape, 1e-6);
    expect_close("logits", output.logits.data, want, 6, 3,
                 output.logits.shape, 2e-6);
    cache_aware_output_free(&output);
    llama_free(&model);
}
END_TEST

static const int groupings[][2] = {{4, 4}, {4, 2}, {4, 1}, {6, 3}, {8, 1}};
enum { GROUPINGS = 5 };

static struct llama_config grouped_config(int k)
{
    struct llama_config config = small_llama_config();
    config.n_heads = groupings[k][0];
    config.n_kv_heads = groupings[k][1];
    config.tie_word_embeddings = k % 2 == 1;
    config.rms_norm_eps = k == 2 ? 0.1 : 1e-6;
    return config;
}

START_TEST(every_grouping_agrees_with_plain_arithmetic)
{
    for (int k = 0; k < GROUPINGS; k++) {
        uint64_t state = noise_start(150 + (unsigned)k);
        const struct llama_config config = grouped_config(k);
        struct llama *model = noisy_llama(&config, 160 + (unsigned)k);
        const struct causal_lm lm = llama_causal_lm(model);
        const int starts[] = {0, 13};
        int32_t ids[2 * 11], positions[2 * 11];
        float want[2 * 11 * 13];
        text_of(&state, 2, 11, starts, ids, positions);
        for (int b = 0; b < 2; b++) {
            const struct plain plain = {model, &config, ids + b * 11,
                                        positions + b * 11, 11, false};
            plain_forward(&plain, want + b * 11 * 13);
        }
        struct cache_aware_output output = whole(&lm, ids, positions, 2, 11);
        expect_close("logits", output.logits.data, want, 2 * 11 * 13, 3,
                     output.logits.shape, TOLERANCE);
        cache_aware_output_free(&output);
        llama_free(&model);
    }
}
END_TEST

/* Rows of q_proj and k_proj of each head in the order 0, 2, 4, …, 1, 3, 5. */
static void part_neighbours(const struct llama *model)
{
    const struct llama_config *c = llama_config(model);
    const int dim = c->head_dim, width = c->d_model;
    float *row = malloc((size_t)(dim * width) * sizeof *row);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        if (strstr(entry->name, "q_proj") == NULL
            && strstr(entry->name, "k_proj") == NULL)
            continue;
        float *data = entry->tensor->data;
        for (int h = 0; h < entry->tensor->shape[0] / dim; h++) {
            for (int i = 0; i < dim; i++) {
                const int from = i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1;
                memcpy(row + i * width, data + (h * dim + from) * width,
                       (size_t)width * sizeof *row);
            }
            memcpy(data + h * dim * width, row,
                   (size_t)(dim * width) * sizeof *row);
        }
    }
    free(row);
}

START_TEST(a_model_of_neighbouring_pairs_runs_with_its_rows_parted)
{
    uint64_t state = noise_start(170);
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 171);
    const struct causal_lm lm = llama_causal_lm(model);
    const int start = 4;
    int32_t ids[9], positions[9];
    float want[9 * 13], worst = 0;
    text_of(&state, 1, 9, &start, ids, positions);
    const struct plain plain = {model, &config, ids, positions, 9, true};
    plain_forward(&plain, want);
    struct cache_aware_output output = whole(&lm, ids, positions, 1, 9);
    for (int k = 0; k < 9 * 13; k++)
        worst = fmaxf(worst, fabsf(output.logits.data[k] - want[k]));
    ck_assert_float_gt(worst, 1e-3f);
    cache_aware_output_free(&output);
    part_neighbours(model);
    output = whole(&lm, ids, positions, 1, 9);
    expect_close("logits", output.logits.data, want, 9 * 13, 3,
                 output.logits.shape, TOLERANCE);
    cache_aware_output_free(&output);
    llama_free(&model);
}
END_TEST

/* Eight letters. A letter is a one in its channel, its key in head g is 4g + 4
   in its column, and its value 8g + 8: C 16, D 16, and no turn leaves a pair,
   columns v and v + 8. Queries are zero, so a token weighs alike what it
   sees. Every head adds that to channel 8 + v, which logit v reads. */
struct letters {
    struct llama *model;
    struct causal_lm lm;
    struct past_key_values storage;      /* [2,Hk,9,16] of NaN */
    int32_t ids[2][8];                   /* each row in an order of its own */
    float logits[2 * 3 * 8];
};

static void set_matrix(const struct llama *model, const char *name, int row,
                       int column, float value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct tensor *tensor = llama_tensor_find(model, full)->tensor;
    tensor->data[row * tensor->shape[1] + column] = value;
}

static struct letters letters_new(unsigned stream, int heads, int kv_heads)
{
    const struct llama_config config = {
        .vocab_size = 8, .context_length = 24, .d_model = 16, .n_layers = 1,
        .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = 16, .d_ff = 1,
        .rms_norm_eps = 1e-12, .rope_theta = 100
    };
    uint64_t state = noise_start(stream);
    struct letters letters = {.model = new_llama(&config)};
    letters.lm = llama_causal_lm(letters.model);
    for (size_t k = 0; k < llama_tensor_count(letters.model); k++) {
        const struct tensor *tensor =
            llama_tensor_at(letters.model, k)->tensor;
        for (int c = 0; tensor->rank == 1 && c < 16; c++)
            tensor->data[c] = 1;
    }
    for (int v = 0; v < 8; v++) {
        set_matrix(letters.model, "model.embed_tokens", v, v, 1);
        set_matrix(letters.model, "lm_head", v, 8 + v, 1);
        for (int g = 0; g < kv_heads; g++) {
            set_matrix(letters.model, "model.layers.0.self_attn.k_proj",
                       g * 16 + v, v, (float)(g + 1));
            set_matrix(letters.model, "model.layers.0.self_attn.v_proj",
                       g * 16 + v, v, (float)(2 * g + 2));
        }
        for (int h = 0; h < heads; h++)
            set_matrix(letters.model, "model.layers.0.self_attn.o_proj",
                       8 + v, h * 16 + v, 1);
    }
    const struct gpt_config shape = cache_shape_config(&letters.lm.cache);
    expect_ok(past_key_values_new(&letters.storage, &shape, 2, 9, &error),
              &error);
    const struct layer_kv *layer = &letters.storage.layers[0];
    for (size_t k = 0; k < tensor_size(&layer->key); k++)
        layer->key.data[k] = layer->value.data[k] = NAN;
    noise_order(&state, 8, letters.ids[0]);
    noise_order(&state, 8, letters.ids[1]);
    return letters;
}

static void letters_free(struct letters *letters)
{
    llama_free(&letters->model);
    past_key_values_free(&letters->storage);
}

/* Behind a call of 3 tokens row 1 goes back by two, so that the rows go on
   at different lengths. */
enum { LETTER_CALLS = 4 };
static const struct { int32_t lengths[2]; int tokens; } letter_calls[] = {
    {{0, 0}, 3}, {{3, 1}, 2}, {{5, 3}, 1}, {{6, 4}, 2}
};
static const int letter_starts[] = {13, 0};

static void letters_step(struct letters *letters, int call)
{
    const int32_t *lengths = letter_calls[call].lengths;
    const int tokens = letter_calls[call].tokens;
    int32_t ids[2 * 3], positions[2 * 3];
    for (int k = 0; k < 2 * tokens; k++) {
        const int b = k / tokens, at = lengths[b] + k % tokens;
        ids[k] = letters->ids[b][at];
        positions[k] = letter_starts[b] + at;
    }
    const struct step step = {ids, positions, 2, tokens, &letters->storage,
                              lengths, false, letters->logits};
    const size_t floats = letters->lm.scratch_size(letters->model, 2, tokens,
                                                   9);
    float *scratch = malloc(floats * sizeof *scratch);
    expect_ok(causal_lm_step(&letters->lm, &step, scratch, floats, &error),
              &error);
    free(scratch);
}

/* In slot j of head g, and NaN where there is none. */
static void expect_letter(const char *what, const float *slot, int g, int j,
                          int letter, double size)
{
    for (int i = 0; i < 8; i++) {
        const double is = hypot(slot[i], slot[i + 8]);
        const double want = letter < 0 ? NAN : letter == i ? size : 0;
        if (letter < 0 ? !isnan(is) : !(fabs(is - want) <= 1e-5 * size))
            ck_abort_msg("%s of head %d, slot %d, letter %d: %g, expected %g",
                         what, g, j, i, is, want);
    }
}

START_TEST(slot_j_of_every_head_holds_key_and_value_of_token_j)
{
    struct letters letters = letters_new(144, 4, 2);
    for (int call = 0; call < LETTER_CALLS; call++) {
        letters_step(&letters, call);
        for (int k = 0; k < 2 * 2 * 9; k++) {
            const int b = k / 18, g = k / 9 % 2, j = k % 9;
            const int end = letter_calls[call].lengths[b]
                            + letter_calls[call].tokens;
            const int letter = j < end ? (int)letters.ids[b][j] : -1;
            const struct layer_kv *layer = &letters.storage.layers[0];
            expect_letter("key", layer->key.data + k * 16, g, j, letter,
                          4 * g + 4);
            expect_letter("value", layer->value.data + k * 16, g, j, letter,
                          8 * g + 8);
        }
    }
    letters_free(&letters);
}
END_TEST

/* The mean of n values is 8/n in each of n columns, and two heads add it. The
   stream's squares are 1 of the letter's own channel and n of (16/n)^2. */
START_TEST(a_token_weighs_itself_and_all_before_it_alike_and_none_behind)
{
    struct letters letters = letters_new(145, 2, 1);
    for (int call = 0; call < LETTER_CALLS; call++) {
        const int tokens = letter_calls[call].tokens;
        letters_step(&letters, call);
        for (int k = 0; k < 2 * tokens; k++) {
            const int b = k / tokens;
            const int last = letter_calls[call].lengths[b] + k % tokens;
            const double n = last + 1;
            for (int j = 0; j < 8; j++) {
                const float is = letters.logits[k * 8 + letters.ids[b][j]];
                const double want =
                    j <= last ? 64 / n / sqrt(1 + 256 / n) : 0;
                ck_assert_msg(fabs(is - want) <= 1e-5,
                              "row %d, token %d, of token %d: %g, expected"
                              " %g", b, last, j, (double)is, want);
            }
        }
    }
    letters_free(&letters);
}
END_TEST

/* One layer whose stream is the embedding, so that keys and values can be
   had by one product. Positions 0 … 5, one row. */
START_TEST(keys_are_turned_and_values_are_not)
{
    uint64_t state = noise_start(172);
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 173);
    const struct causal_lm lm = llama_causal_lm(model);
    int32_t ids[6], positions[6];
    text_of(&state, 1, 6, &(const int){0}, ids, positions);
    struct cache_aware_output output = whole(&lm, ids, positions, 1, 6);
    const struct plain plain = {model, &config, ids, positions, 6, false};
    const float *table = weights(&plain, -1, "model.embed_tokens");
    for (int t = 0; t < 6; t++) {
        double x[10], norm[10], key[12], value[12];
        for (int c = 0; c < 10; c++)
            x[c] = table[ids[t] * 10 + c];
        plain_norm(&plain, weights(&plain, 0, "input_layernorm"), x, norm);
        plain_linear(weights(&plain, 0, "self_attn.k_proj"), norm, 12, 10,
                     key);
        plain_linear(weights(&plain, 0, "self_attn.v_proj"), norm, 12, 10,
                     value);
        for (int g = 0; g < 2; g++) {
            plain_turn(&plain, key + g * 6, t);
            for (int d = 0; d < 6; d++) {
                const struct layer_kv *l = &output.past_key_values.layers[0];
                const int at = (g * 6 + t) * 6 + d;
                ck_assert_double_eq_tol(l->key.data[at], key[g * 6 + d],
                                        2e-6);
                ck_assert_double_eq_tol(l->value.data[at], value[g * 6 + d],
                                        2e-6);
            }
        }
    }
    cache_aware_output_free(&output);
    llama_free(&model);
}
END_TEST

/* One text in three rows, at 0, at 13 and at 2: the keys of layer 0 are those
   of row 0, turned by the rows' starts. */
START_TEST(a_row_is_turned_by_its_own_positions)
{
    uint64_t state = noise_start(174);
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 175);
    const struct causal_lm lm = llama_causal_lm(model);
    const int32_t starts[] = {0, 13, 2};
    int32_t ids[3 * 5], positions[3 * 5];
    noise_ids(&state, 13, 1, 5, ids);
    for (int k = 0; k < 15; k++) {
        ids[k] = ids[k % 5];
        positions[k] = starts[k / 5] + k % 5;
    }
    struct cache_aware_output output = whole(&lm, ids, positions, 3, 5);
    const float *keys = output.past_key_values.layers[0].key.data;
    for (int b = 1; b < 3; b++)
        for (int row = 0; row < 2 * 5; row++) {
            float want[6];
            memcpy(want, keys + row * 6, sizeof want);
            rope_rotate(want, 1, 1, 6, &starts[b], config.rope_theta);
            expect_close("key", keys + (b * 10 + row) * 6, want, 6, 1,
                         (const int[]){6}, 2e-6);
        }
    cache_aware_output_free(&output);
    llama_free(&model);
}
END_TEST

/* Without attention and with one layer, the rest is norm and gate. */
START_TEST(the_gate_passes_through_the_sigmoid_and_up_does_not)
{
    uint64_t state = noise_start(176);
    struct llama_config config = small_llama_config();
    config.n_layers = 1;
    struct llama *model = noisy_llama(&config, 177);
    const struct causal_lm lm = llama_causal_lm(model);
    const struct tensor *o =
        llama_tensor_find(model,
                          "model.layers.0.self_attn.o_proj.weight")->tensor;
    memset(o->data, 0, tensor_size(o) * sizeof (float));
    int32_t ids[6], positions[6];
    float want[6 * 13];
    text_of(&state, 1, 6, &(const int){0}, ids, positions);
    const struct plain plain = {model, &config, ids, positions, 6, false};
    plain_forward(&plain, want);
    struct cache_aware_output output = whole(&lm, ids, positions, 1, 6);
    expect_close("logits", output.logits.data, want, 6 * 13, 3,
                 output.logits.shape, TOLERANCE);
    cache_aware_output_free(&output);
    llama_free(&model);
}
END_TEST

/* ------------------------------------------------------------ the goldens */

/* Rows at 0 … 8 and at 11 … 19, without a past. */
static void expect_golden(const char *name)
{
    struct golden *golden = golden_open(name);
    struct llama *model = golden_llama(golden);
    const struct causal_lm lm = llama_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.logits");
    struct cache_aware_output output =
        whole(&lm, golden_get(golden, "in.ids")->ids,
              golden_get(golden, "in.positions")->ids, want->shape[0],
              want->shape[1]);
    expect_golden_cache(golden, "out.past", &output.past_key_values);
    expect_close("logits", output.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    cache_aware_output_free(&output);
    llama_free(&model);
    golden_close(golden);
}

START_TEST(a_key_head_for_each_query_head_has_the_golden_numbers)
{
    expect_golden("llama_gqa1");
}
END_TEST

START_TEST(a_key_head_for_four_query_heads_has_the_golden_numbers)
{
    expect_golden("llama_gqa4");
}
END_TEST

START_TEST(one_key_head_for_all_query_heads_has_the_golden_numbers)
{
    expect_golden("llama_gqa8");
}
END_TEST

/* --------------------------------------------------- behind a past of its own */
START_TEST(cached_tokens_agree_with_the_golden_one_by_one)
{
    static const char *const names[] = {"llama_gqa1", "llama_gqa4",
                                        "llama_gqa8"};
    for (int k = 0; k < 3; k++) {
        struct golden *golden = golden_open(names[k]);
        struct llama *model = golden_llama(golden);
        const struct causal_lm lm = llama_causal_lm(model);
        const struct text text = {
            &lm, golden_get(golden, "in.ids")->ids,
            golden_get(golden, "in.positions")->ids, 2, 9,
            golden_get(golden, "out.logits")->f32
        };
        expect_split(&text, TOKENWISE, false);
        expect_split(&text, 0x1c7, false);
        expect_split(&text, 0x00f, false);
        llama_free(&model);
        golden_close(golden);
    }
}
END_TEST

/* 128 splits for each grouping, in equal bits. */
START_TEST(every_split_into_cached_chunks_gives_the_same_bits)
{
    for (int k = 0; k < GROUPINGS; k++) {
        uint64_t state = noise_start(180 + (unsigned)k);
        const struct llama_config config = grouped_config(k);
        struct llama *model = noisy_llama(&config, 190 + (unsigned)k);
        const struct causal_lm lm = llama_causal_lm(model);
        const int starts[] = {0, 5};
        int32_t ids[2 * 8], positions[2 * 8];
        text_of(&state, 2, 8, starts, ids, positions);
        struct cache_aware_output output = whole(&lm, ids, positions, 2, 8);
        const struct text text = {&lm, ids, positions, 2, 8,
                                  output.logits.data};
        for (unsigned split = 0; split < 128; split++)
            expect_split(&text, split, true);
        cache_aware_output_free(&output);
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_changed_token_changes_no_row_before_it)
{
    uint64_t state = noise_start(200);
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 201);
    const struct causal_lm lm = llama_causal_lm(model);
    const int start = 0;
    int32_t ids[10], positions[10];
    text_of(&state, 1, 10, &start, ids, positions);
    struct cache_aware_output before = whole(&lm, ids, positions, 1, 10);
    for (int t = 0; t < 10; t++) {
        const int32_t was = ids[t];
        ids[t] = (was + 1 + noise_below(&state, 12)) % 13;
        struct cache_aware_output after = whole(&lm, ids, positions, 1, 10);
        expect_same_bits("rows before", after.logits.data, before.logits.data,
                         (size_t)(t * 13) * sizeof (float));
        ck_assert_int_ne(memcmp(after.logits.data + 9 * 13,
                                before.logits.data + 9 * 13,
                                13 * sizeof (float)), 0);
        cache_aware_output_free(&after);
        ids[t] = was;
    }
    cache_aware_output_free(&before);
    llama_free(&model);
}
END_TEST

/* Only distances count, so a text that begins elsewhere says the same. */
START_TEST(a_text_may_begin_at_any_position)
{
    uint64_t state = noise_start(202);
    struct llama_config config = small_llama_config();
    config.context_length = 2000000;
    struct llama *model = noisy_llama(&config, 203);
    const struct causal_lm lm = llama_causal_lm(model);
    const int starts[] = {1, 17, 1000, 31415, 1000000, 1999990};
    int32_t ids[10], positions[10];
    text_of(&state, 1, 10, &(const int){0}, ids, positions);
    struct cache_aware_output at_0 = whole(&lm, ids, positions, 1, 10);
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++) {
        for (int t = 0; t < 10; t++)
            positions[t] = starts[k] + t;
        struct cache_aware_output moved = whole(&lm, ids, positions, 1, 10);
        expect_close("logits", moved.logits.data, at_0.logits.data, 130, 3,
                     at_0.logits.shape, TOLERANCE);
        ck_assert_int_ne(memcmp(moved.past_key_values.layers[0].key.data,
                                at_0.past_key_values.layers[0].key.data,
                                10 * 6 * sizeof (float)), 0);
        expect_same_bits("values of layer 0",
                         moved.past_key_values.layers[0].value.data,
                         at_0.past_key_values.layers[0].value.data,
                         2 * 10 * 6 * sizeof (float));
        cache_aware_output_free(&moved);
    }
    cache_aware_output_free(&at_0);
    llama_free(&model);
}
END_TEST

/* A slot more costs at most a score, a probability and a bool for each
   token, whatever the heads are: nothing of the cache is repeated in
   scratch. */
START_TEST(scratch_has_no_room_for_repeated_heads)
{
    for (int k = 0; k < GROUPINGS; k++) {
        const struct llama_config config = grouped_config(k);
        struct llama *model = new_llama(&config);
        const struct causal_lm lm = llama_causal_lm(model);
        const size_t less = lm.scratch_size(model, 3, 5, 1000);
        const size_t more = lm.scratch_size(model, 3, 5, 1100);
        ck_assert_uint_le(more - less, 5 * (100 + 100 + 25));
        ck_assert_uint_eq(lm.scratch_size(model, INT_MAX, INT_MAX, INT_MAX),
                          SIZE_MAX);
        llama_free(&model);
    }
}
END_TEST

/* ------------------------------------------------------------ measurements */

/* Either run writes 2 L Hk T D floats, prompt and steps, and their logits
   differ. Single steps may be right by chance, when the tokens in reach are
   equals, so steps are averaged. */
START_TEST(positions_reset_at_each_step_leave_the_bytes_and_not_the_logits)
{
    uint64_t state = noise_start(240);
    struct llama *model = NULL;
    expect_ok(rope_study_model(&model, &error), &error);
    const struct llama_config *config = llama_config(model);
    int32_t ids[30];
    for (int t = 0; t < 30; t++)
        ids[t] = noise_below(&state, 23);
    ids[1] = (ids[0] + 1) % 23;     /* between equals, no position matters */
    for (int prompt = 1; prompt < 12; prompt += 5) {
        double errors[2][20], sum = 0;
        struct rope_run counted = {errors[0], 0}, reset = {errors[1], 0};
        const int steps = 30 - prompt < 20 ? 30 - prompt : 20;
        const int bytes = 2 * config->n_layers * config->n_kv_heads
                          * (prompt + steps) * config->head_dim * 4;
        expect_ok(rope_step_errors(model, ids, prompt, steps, &counted,
                                   &reset, &error), &error);
        ck_assert_uint_eq(counted.bytes_written, (size_t)bytes);
        ck_assert_uint_eq(reset.bytes_written, (size_t)bytes);
        for (int k = 0; k < steps; k++) {
            ck_assert_double_le(errors[0][k], 1e-5);
            sum += errors[1][k];
        }
        ck_assert_double_gt(sum / steps, 0.1);
        ck_assert(isfinite(sum));
    }
    llama_free(&model);
}
END_TEST

/* One column of the head is NaN, and the others are what they were. */
START_TEST(logits_that_are_no_numbers_are_infinitely_wrong)
{
    struct llama *model = NULL;
    expect_ok(rope_study_model(&model, &error), &error);
    const int32_t ids[] = {1, 2, 3, 4, 5};
    double errors[2][3];
    struct rope_run counted = {errors[0], 0}, reset = {errors[1], 0};
    llama_tensor_find(model, "lm_head.weight")->tensor->data[0] = NAN;
    expect_ok(rope_step_errors(model, ids, 2, 3, &counted, &reset, &error),
              &error);
    for (int k = 0; k < 3; k++)
        ck_assert(isinf(errors[0][k]) && isinf(errors[1][k]));
    llama_free(&model);
}
END_TEST

START_TEST(a_study_that_fails_writes_nothing)
{
    struct llama *model = NULL;
    expect_ok(rope_study_model(&model, &error), &error);
    const int32_t ids[6] = {1, 2, 3, 4, 5, 22}, bad[6] = {1, 2, 23, 4, 5, 6};
    double errors[2][4] = {{7, 7, 7, 7}, {7, 7, 7, 7}};
    struct rope_run counted = {errors[0], 7}, reset = {errors[1], 7};
    const struct { const int32_t *ids; int prompt, steps; } wrong[] = {
        {ids, 0, 4}, {ids, 2, 0}, {ids, 2, INT_MAX}, {ids, 2, INT_MAX - 3},
        {bad, 2, 4}, {ids, 200, 100}
    };
    static int32_t zeros[300];
    for (int k = 0; k < 6; k++) {
        long live = allocator_live();
        enum status status = rope_step_errors(
            model, k == 5 ? zeros : wrong[k].ids, wrong[k].prompt,
            wrong[k].steps, &counted, &reset, &error);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        ck_assert_int_eq(live, 0);
    }
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = rope_step_errors(model, ids, 2, 4, &counted,
                                              &reset, &error);
        live = allocator_live() - live;
        if (!allocator_stop()) {
            expect_ok(status, &error);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(live, 0);
        ck_assert(counted.bytes_written == 7 && reset.bytes_written == 7);
        ck_assert(errors[0][0] == 7 && errors[1][3] == 7);
    }
    ck_assert(counted.bytes_written != 7 && reset.bytes_written != 7);
    ck_assert(errors[0][0] != 7 && errors[1][3] != 7);
    llama_free(&model);
}
END_TEST

START_TEST(the_command_prints_errors_by_step_and_by_offset)
{
    const char *text = run_program("rope --prompt 3 --steps 5", 0);
    ck_assert_ptr_nonnull(strstr(
        text, "# bytes of keys and values written: 2048 counted, 2048 reset\n"));
    const char *row = strstr(text, "\n   4         7 ");
    double counted, reset;
    ck_assert_ptr_nonnull(row);
    ck_assert_int_eq(sscanf(row, "%*d %*d %lf %lf", &counted, &reset), 2);
    ck_assert_double_le(counted, 1e-5);
    ck_assert_double_gt(reset, 0.01);
    ck_assert_ptr_nonnull(strstr(run_program("rope --prompt 3 --steps 5"
                                             " --json", 0),
        "{\"prompt\": 3, \"bytes_written\": {\"counted\": 2048, \"reset\":"
        " 2048}, \"steps\": [{\"position\": 3, "));
    row = strstr(run_program("rope --shift", 0), "\n1000000 ");
    double doubles, floats, bound;
    ck_assert_ptr_nonnull(row);
    ck_assert_int_eq(sscanf(row, "%*d %lf %lf %lf", &doubles, &floats,
                            &bound), 3);
    ck_assert_double_le(doubles, 1e-7);
    ck_assert_double_gt(floats, 1e-4);
    ck_assert_double_gt(bound, floats);
    ck_assert_ptr_nonnull(strstr(run_program("rope --shift --json", 0),
                                 "{\"offset\": 1000000, \"double\": "));
}
END_TEST

START_TEST(the_command_refuses_half_a_question)
{
    const char *const usage[] = {
        "rope", "rope --prompt 3", "rope --steps 3", "rope --prompt 0",
        "rope --prompt 3 --steps 256", "rope --shift --prompt 3",
        "rope --offset 3"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt rope"));
    ck_assert_ptr_nonnull(strstr(run_program(
        "rope --prompt 200 --steps 100", 1), "256"));
    ck_assert_ptr_nonnull(strstr(run_program("rope --help", 0), "--shift"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define SQUARE "let square be the mean square of the row"
#define SCALE "let scale bring the row to a mean square of one"
#define NORMED "scale the row and its columns"
#define ANGLE "multiply the position by the pair's frequency"
#define PAIR "let a and b be the coordinates of pair i"
#define TURN "turn the pair"
#define SHARED "let shared be the storage's head for query head h"
#define GATED "let the gate decide how much of up goes on"
#define TURNS "make the turns of every new token"
#define KEYS "write the row's new keys, turned, and its new values"
#define SEEN "let keep say which keys of the row a query sees"
#define GROUP "let each query head attend to its group's keys"
#define HANDLE "hand out a llama"
#define LAYERS "list the tensors of one layer"

static const struct test tests[] = {
    TEST(the_mean_of_a_row_is_kept, 0, SQUARE),
    TEST(the_mean_square_is_as_exact_as_a_float_can_say, 0, SQUARE),
    TEST(a_row_of_zeros_stays_zero_and_its_neighbours_do_not_notice, 0,
         SCALE),
    TEST(epsilon_stands_under_the_root, 0, SCALE),
    TEST(a_row_is_divided_by_its_root_mean_square, 0, NORMED),
    TEST(a_norm_may_write_over_its_input, 0, NORMED),
    TEST(an_angle_is_right_at_any_position, 0, ANGLE),
    TEST(position_0_is_the_identity, 0, TURN),
    TEST(a_pair_is_a_column_of_each_half, 0, PAIR),
    TEST(a_pair_keeps_its_norm, 0, TURN),
    TEST(each_pair_turns_to_the_left_by_its_own_angle, 0, TURN),
    TEST(two_turns_are_one_turn_by_their_sum, 0, TURN),
    TEST(a_table_of_turns_turns_as_the_positions_do, 0,
         "turn every row by the table"),
    TEST(each_token_of_each_head_turns_by_its_own_position, 0,
         "turn every row by its position"),
    TEST(a_shifted_pair_keeps_its_dot_product, 0, ANGLE),
    TEST(a_dot_product_depends_on_the_distance_alone, 0, ANGLE),
    TEST(a_head_without_pairs_and_a_theta_without_angles_are_refused, 0,
         "refuse what has no pairs or no angles"),
    TEST(neighbouring_query_heads_share_a_key_head, 0, SHARED),
    TEST(grouped_heads_equal_repeated_ones, 0, SHARED),
    TEST(a_query_that_sees_nothing_gets_zeros_and_its_neighbours_theirs, 0,
         "grouped_attention.c"),
    TEST(the_gate_is_a_sigmoid_of_itself_times_itself, 0, GATED),
    TEST(a_gate_is_finite_and_exact_far_from_zero, 0, GATED),
    TEST(key_heads_that_leave_a_remainder_are_refused, 1,
         "refuse key heads that do not divide the query heads"),
    TEST(every_field_of_a_config_is_refused_by_its_name, 1,
         "check that the sizes of a llama fit together"),
    TEST(sizes_whose_bytes_do_not_fit_are_refused, 1,
         "add a row of the table to sum, or say that it does not fit"),
    TEST(tensors_have_the_names_and_shapes_of_checkpoints, 1, LAYERS),
    TEST(a_tied_head_is_the_embedding_under_another_name, 1,
         "list the head, which may be the embedding"),
    TEST(the_formula_counts_what_is_stored, 1,
         "count the parameters of a llama"),
    TEST(a_model_keeps_a_config_of_its_own, 1, HANDLE),
    TEST(making_a_model_survives_each_failed_allocation, 1,
         "make and free a llama"),
    TEST(slot_j_of_every_head_holds_key_and_value_of_token_j, 2, KEYS),
    TEST(keys_are_turned_and_values_are_not, 2,
         "turn the new keys of the head"),
    TEST(a_token_weighs_itself_and_all_before_it_alike_and_none_behind, 2,
         SEEN),
    TEST(a_row_is_turned_by_its_own_positions, 2, TURNS),
    TEST(the_gate_passes_through_the_sigmoid_and_up_does_not, 2,
         "let branch be what the feed-forward layer makes of norm"),
    TEST(a_step_reads_and_writes_its_own_slots_and_allocates_nothing, 2,
         GROUP),
    TEST(one_layer_agrees_with_a_calculation_by_hand, 2, KEYS),
    TEST(every_grouping_agrees_with_plain_arithmetic, 2, GROUP),
    TEST(a_model_of_neighbouring_pairs_runs_with_its_rows_parted, 2, PAIR),
    TEST(a_key_head_for_each_query_head_has_the_golden_numbers, 2, KEYS),
    TEST(a_key_head_for_four_query_heads_has_the_golden_numbers, 2, SHARED),
    TEST(one_key_head_for_all_query_heads_has_the_golden_numbers, 2, SHARED),
    TEST(cached_tokens_agree_with_the_golden_one_by_one, 2, TURNS),
    TEST(every_split_into_cached_chunks_gives_the_same_bits, 2, TURNS),
    TEST(a_changed_token_changes_no_row_before_it, 2, SEEN),
    TEST(a_text_may_begin_at_any_position, 2, TURNS),
    TEST(the_last_rows_alone_are_the_last_of_all, 2,
         "let stream be the last token of each of the llama's rows"),
    TEST(scratch_has_no_room_for_repeated_heads, 2,
         "let sizes be the floats of each part of the scratch"),
    TEST(a_call_survives_each_failed_allocation, 2, HANDLE),
    TEST(the_labs_check_of_single_tokens, 3, TURNS),
    TEST(the_labs_check_of_chunks, 3, TURNS),
    TEST(the_labs_check_of_poisoned_padding, 3, GROUP),
    TEST(the_labs_check_of_ownership, 3, HANDLE),
    TEST(the_labs_check_without_a_cache, 3, HANDLE),
    TEST(the_labs_check_of_metadata, 3, HANDLE),
    TEST(the_labs_check_of_positions, 3, HANDLE),
    TEST(the_labs_check_of_greedy_tokens, 3, TURNS),
    TEST(the_labs_check_of_ended_rows, 3,
         "let branch be what the feed-forward layer makes of norm"),
    TEST(a_request_goes_on_behind_a_loaded_prefix_for_every_length, 3, TURNS),
    TEST(rows_of_different_lengths_run_as_they_do_alone, 3, TURNS),
    TEST(a_cut_request_goes_on_as_if_it_had_gone_no_further, 3, TURNS),
    TEST(a_prompt_in_chunks_of_any_size_gives_the_same_bits, 3, TURNS),
    TEST(a_stored_prefix_is_used_again_at_its_own_positions, 3, TURNS),
    TEST(greedy_tokens_are_those_of_a_model_without_a_cache, 3, TURNS),
    TEST(drafts_of_either_family_change_no_token, 3, TURNS),
    TEST(positions_reset_at_each_step_leave_the_bytes_and_not_the_logits, 3,
         TURNS),
    TEST(logits_that_are_no_numbers_are_infinitely_wrong, 3,
         "compare the step's logits when it is behind the prompt"),
    TEST(a_study_that_fails_writes_nothing, 3,
         "compare both ways of counting"),
    TEST(the_command_prints_errors_by_step_and_by_offset, 3,
         "print the errors of a text"),
    TEST(the_command_refuses_half_a_question, 3,
         "the options of the rope command"),
};

SUITE("chapter 13, a model of another family", tests);
