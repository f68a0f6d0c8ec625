/* Chapter 17: a cache of eight bits. Rows of numbers by the inequalities of
   the derivation, the cache against rows that are quantised here and kept by
   token, then models of both families that run over it. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include "int8_kv.h"
#include "int8_study.h"
#include "model_file.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/llamas.h"
#include "support/program.h"

static struct error error;

/* --------------------------------------------------------------------- rows */

/* 127/64 makes the scale 1/64, so that every quotient is exact. */
START_TEST(a_row_has_the_scale_and_codes_of_the_worked_instance)
{
    const float row[] = {0.5f, -1.984375f, 0.0234375f, 0};
    int8_t codes[4];
    float back[4];
    const float scale = int8_scale(row, 4);
    ck_assert_float_eq(scale, 0.015625f);
    int8_encode(row, 4, scale, codes);
    ck_assert_int_eq(codes[0], 32);
    ck_assert_int_eq(codes[1], -127);
    ck_assert_int_eq(codes[2], 2);
    ck_assert_int_eq(codes[3], 0);
    int8_decode(codes, 4, scale, back);
    ck_assert_float_eq(back[0], 0.5f);
    ck_assert_float_eq(back[1], -1.984375f);
    ck_assert_float_eq(back[2], 0.03125f);
    ck_assert_float_eq(back[3], 0);
}
END_TEST

START_TEST(the_largest_magnitude_may_be_negative_and_stand_anywhere)
{
    uint64_t state = noise_start(170);
    for (int round = 0; round < 40; round++) {
        const int width = 1 + noise_below(&state, 9);
        const int at = noise_below(&state, width);
        float row[9], positive[9];
        noise_floats(&state, (size_t)width, row);
        row[at] = round % 2 ? 3.0f : -3.0f;
        for (int d = 0; d < width; d++)
            positive[d] = fabsf(row[width - 1 - d]);
        ck_assert_float_gt(int8_scale(row, width), 0);
        ck_assert_float_eq(int8_scale(row, width),
                           int8_scale(positive, width));
    }
}
END_TEST

START_TEST(a_float_is_its_code_times_the_scale)
{
    const int8_t codes[] = {0, 1, -1, 100, -100, 127, -127};
    float row[7];
    int8_decode(codes, 7, 0.25f, row);
    for (int d = 0; d < 7; d++)
        ck_assert_float_eq(row[d], 0.25f * (float)codes[d]);
}
END_TEST

START_TEST(the_largest_magnitude_has_the_last_code_of_its_sign)
{
    uint64_t state = noise_start(171);
    for (int round = 0; round < 40; round++) {
        float row[7];
        int8_t codes[7];
        noise_floats(&state, 7, row);
        row[3] = round % 2 ? 1.7f : -1.7f;
        int8_encode(row, 7, int8_scale(row, 7), codes);
        ck_assert_int_eq(codes[3], round % 2 ? 127 : -127);
    }
}
END_TEST

START_TEST(ties_go_to_the_even_code)
{
    const float row[] = {0.5f, 1.5f, 2.5f, 3.5f, 126.5f,
                         -0.5f, -1.5f, -2.5f, -3.5f, -126.5f};
    const int want[] = {0, 2, 2, 4, 126, 0, -2, -2, -4, -126};
    int8_t codes[10];
    int8_encode(row, 10, 1, codes);
    for (int d = 0; d < 10; d++)
        ck_assert_int_eq(codes[d], want[d]);
}
END_TEST

START_TEST(codes_saturate_at_127_on_both_sides)
{
    const float row[] = {127.4f, 127.5f, 128, 129, 255, 256, 1e30f, FLT_MAX};
    int8_t codes[8];
    for (int sign = -1; sign <= 1; sign += 2) {
        float signed_row[8];
        for (int d = 0; d < 8; d++)
            signed_row[d] = (float)sign * row[d];
        int8_encode(signed_row, 8, 1, codes);
        for (int d = 0; d < 8; d++)
            ck_assert_int_eq(codes[d], sign * 127);
    }
}
END_TEST

START_TEST(the_negative_of_a_row_has_the_negative_codes)
{
    uint64_t state = noise_start(172);
    float row[16], other[16];
    int8_t codes[16], others[16];
    noise_floats(&state, 16, row);
    for (int d = 0; d < 16; d++)
        other[d] = -row[d];
    const float scale = int8_scale(row, 16);
    ck_assert_float_eq(int8_scale(other, 16), scale);
    int8_encode(row, 16, scale, codes);
    int8_encode(other, 16, scale, others);
    for (int d = 0; d < 16; d++)
        ck_assert_int_eq(others[d], -codes[d]);
}
END_TEST

START_TEST(a_row_of_zeros_has_the_scale_zero_and_codes_of_zero)
{
    const float row[] = {0, -0.0f, 0, 0, -0.0f};
    int8_t codes[] = {9, 9, 9, 9, 9};
    float back[] = {NAN, NAN, NAN, NAN, NAN};
    const float scale = int8_scale(row, 5);
    ck_assert_float_eq(scale, 0);
    int8_encode(row, 5, scale, codes);
    int8_decode(codes, 5, scale, back);
    for (int d = 0; d < 5; d++) {
        ck_assert_int_eq(codes[d], 0);
        ck_assert_float_eq(back[d], 0);
    }
}
END_TEST

START_TEST(a_row_too_small_for_a_scale_counts_as_zeros)
{
    const float rows[] = {FLT_TRUE_MIN, 1e-44f, 1e-40f, FLT_MIN, 1e-37f,
                          126.9f * FLT_MIN};
    for (int k = 0; k < 6; k++) {
        const float row[] = {0, -rows[k], rows[k] / 3};
        int8_t codes[] = {9, 9, 9};
        ck_assert_float_eq(int8_scale(row, 3), 0);
        int8_encode(row, 3, 0, codes);
        for (int d = 0; d < 3; d++)
            ck_assert_int_eq(codes[d], 0);
    }
    const float row[] = {127 * FLT_MIN};
    ck_assert_float_eq(int8_scale(row, 1), FLT_MIN);
}
END_TEST

START_TEST(the_largest_floats_come_back_finite)
{
    float largest = FLT_MAX;
    for (int k = 0; k < 200; k++) {
        const float row[] = {k % 2 ? largest : -largest, 1};
        int8_t codes[2];
        float back[2];
        const float scale = int8_scale(row, 2);
        int8_encode(row, 2, scale, codes);
        int8_decode(codes, 2, scale, back);
        ck_assert_int_eq(codes[0], k % 2 ? 127 : -127);
        ck_assert(isfinite(back[0]));
        ck_assert_double_le(fabs((double)back[0] - row[0]), 1e-6 * largest);
        largest = nextafterf(largest, 0);
    }
}
END_TEST

/* The derivation's inequalities, without another tolerance. */
static void expect_within_bounds(const float *row, const float *back,
                                 int width, float scale)
{
    double largest = 0;
    for (int d = 0; d < width; d++)
        largest = fmax(largest, fabs((double)row[d]));
    for (int d = 0; d < width; d++) {
        const double off = fabs((double)row[d] - back[d]);
        ck_assert_msg(off <= (double)scale / 2 * (1 + ldexp(1, -16))
                      && off <= largest / 254 * (1 + ldexp(1, -15)),
                      "%g came back as %g: off by %g, with half a step of %g",
                      (double)row[d], (double)back[d], off,
                      (double)scale / 2);
    }
}

START_TEST(every_float_comes_back_within_half_a_step)
{
    uint64_t state = noise_start(173);
    for (int round = 0; round < 3000; round++) {
        const int width = 1 + noise_below(&state, 33);
        const int exponent = noise_below(&state, 235) - 116;
        float row[33], back[33];
        int8_t codes[33];
        for (int d = 0; d < width; d++)
            row[d] = ldexpf(noise(&state), exponent);
        if (round % 3 == 0)                        /* one outlier */
            row[noise_below(&state, width)] *= 100;
        row[noise_below(&state, width)] = ldexpf(1.5f, exponent);
        const float scale = int8_scale(row, width);
        int8_encode(row, width, scale, codes);
        int8_decode(codes, width, scale, back);
        expect_within_bounds(row, back, width, scale);
    }
}
END_TEST

/* ------------------------------------------- what attention makes of an error */

enum { KEYS = 40, WIDTH = 12 };

struct head {
    float query[WIDTH], keys[KEYS][WIDTH], values[KEYS][WIDTH];
};

/* Scores and context in double. */
static void attend(const struct head *head, int count, double *scores,
                   double *context)
{
    double sum = 0, most = -INFINITY;
    for (int j = 0; j < count; j++) {
        scores[j] = 0;
        for (int d = 0; d < WIDTH; d++)
            scores[j] += (double)head->query[d] * head->keys[j][d]
                         / sqrt(WIDTH);
        most = fmax(most, scores[j]);
    }
    for (int j = 0; j < count; j++)
        sum += exp(scores[j] - most);
    for (int d = 0; d < WIDTH; d++) {
        context[d] = 0;
        for (int j = 0; j < count; j++)
            context[d] += exp(scores[j] - most) / sum * head->values[j][d];
    }
}

static float through_codes(float *row)
{
    int8_t codes[WIDTH];
    const float scale = int8_scale(row, WIDTH);
    int8_encode(row, WIDTH, scale, codes);
    int8_decode(codes, WIDTH, scale, row);
    return scale;
}

START_TEST(scores_and_contexts_stay_within_their_bounds)
{
    uint64_t state = noise_start(174);
    for (int round = 0; round < 200; round++) {
        const int count = 1 + noise_below(&state, KEYS);
        const float size = ldexpf(1, noise_below(&state, 5) - 1);
        struct head head, coded;
        double scores[KEYS], others[KEYS], context[WIDTH], other[WIDTH];
        double one = 0, epsilon = 0, largest = 0, half = 0;
        noise_floats(&state, sizeof head / sizeof (float), head.query);
        for (int j = 0; j < count; j++)
            for (int d = 0; d < WIDTH; d++) {
                head.keys[j][d] *= size;
                largest = fmax(largest, fabs((double)head.values[j][d]));
            }
        coded = head;
        for (int d = 0; d < WIDTH; d++)
            one += fabs((double)head.query[d]);
        const double slack = 1 + ldexp(1, -16);
        for (int j = 0; j < count; j++) {
            epsilon = fmax(epsilon, through_codes(coded.keys[j]) / 2 * slack
                                    * one / sqrt(WIDTH));
            half = fmax(half, through_codes(coded.values[j]) / 2 * slack);
        }
        attend(&head, count, scores, context);
        attend(&coded, count, others, other);
        for (int j = 0; j < count; j++)
            ck_assert_double_le(fabs(scores[j] - others[j]), epsilon + 1e-12);
        for (int d = 0; d < WIDTH; d++)
            ck_assert_double_le(fabs(context[d] - other[d]),
                                half + epsilon * largest + 1e-12);
    }
}
END_TEST

/* ------------------------------------------------ the cache and its mirror */

enum { L = 3, B = 3, H = 2, S = 7, D = 5 };
static const struct cache_shape shape = {L, H, D};

/* A quantiser of the suite's own: nearest code by search. */
static float own_codes(const float *row, int width, int *codes)
{
    float most = 0;
    for (int d = 0; d < width; d++)
        if (row[d] > most || -row[d] > most)
            most = row[d] > 0 ? row[d] : -row[d];
    const float scale = most / 127.0f;
    for (int d = 0; d < width; d++) {
        codes[d] = 0;
        for (int code = -127; code <= 127 && most > 0; code++) {
            const double here = fabs((double)row[d] / scale - code);
            const double best = fabs((double)row[d] / scale - codes[d]);
            if (here < best || (here == best && code % 2 == 0))
                codes[d] = code;
        }
    }
    return scale;
}

/* What was appended, by token. */
struct mirror {
    float rows[L][2][B][S][H][D];
    int32_t lengths[B], starts[B];
};

static struct int8_kv *new_codes(int capacity)
{
    struct int8_kv *cache = NULL;
    expect_ok(int8_kv_new(&cache, &shape, B, capacity, &error), &error);
    return cache;
}

/* Pairs [B,H,slots,D] of noise, some rows of zeros and some outliers. */
static struct past_key_values noise_pairs(int slots, uint64_t *state)
{
    const struct gpt_config config = cache_shape_config(&shape);
    struct past_key_values pairs = {0};
    expect_ok(past_key_values_new(&pairs, &config, B, slots, &error), &error);
    for (int k = 0; k < 2 * L; k++) {
        struct layer_kv *pair = &pairs.layers[k / 2];
        struct tensor *tensor = k % 2 ? &pair->value : &pair->key;
        noise_floats(state, tensor_size(tensor), tensor->data);
        for (int r = 0; r < B * H * slots; r++) {
            const int kind = noise_below(state, 8);
            for (int d = 0; d < D; d++)
                tensor->data[r * D + d] *= kind == 0 ? 0.0f
                                           : ldexpf(1, 2 * kind - 8);
        }
    }
    return pairs;
}

static float *pairs_row(const struct past_key_values *pairs, int l, int part,
                        int b, int h, int slot)
{
    const struct tensor *tensor = part ? &pairs->layers[l].value
                                       : &pairs->layers[l].key;
    return tensor->data + ((b * H + h) * tensor->shape[2] + slot) * D;
}

static void expect_codes(const struct int8_kv *cache,
                         const struct mirror *mirror, int capacity)
{
    expect_same_bits("lengths", int8_kv_lengths(cache), mirror->lengths,
                     sizeof mirror->lengths);
    expect_same_bits("starts", int8_kv_starts(cache), mirror->starts,
                     sizeof mirror->starts);
    for (int l = 0; l < L; l++)
        for (int k = 0; k < 2 * B * H * capacity; k++) {
            const int s = k % capacity, h = k / capacity % H;
            const int b = k / capacity / H % B, part = k / capacity / H / B;
            const int row = l * 2 * B * H * capacity + k;
            float scale = 0;
            int codes[D] = {0};
            if (s < mirror->lengths[b])
                scale = own_codes(mirror->rows[l][part][b][s][h], D, codes);
            ck_assert_msg(int8_kv_scales(cache)[row] == scale,
                          "layer %d, %s, row %d, head %d, slot %d: expected"
                          " the scale %g, got %g", l, part ? "value" : "key",
                          b, h, s, (double)scale,
                          (double)int8_kv_scales(cache)[row]);
            for (int d = 0; d < D; d++)
                ck_assert_msg(int8_kv_codes(cache)[row * D + d] == codes[d],
                              "layer %d, %s, row %d, head %d, slot %d,"
                              " channel %d: expected the code %d, got %d", l,
                              part ? "value" : "key", b, h, s, d, codes[d],
                              int8_kv_codes(cache)[row * D + d]);
        }
}

/* Appends tokens from slots of a larger source to both. */
static void append_to(struct int8_kv *cache, struct mirror *mirror,
                      int tokens, int first, uint64_t *state)
{
    const int slots = tokens + noise_below(state, 4);
    struct past_key_values source = noise_pairs(slots, state);
    int32_t from[B], positions[B];
    for (int b = 0; b < B; b++) {
        from[b] = slots > tokens ? noise_below(state, slots - tokens + 1) : 0;
        positions[b] = mirror->lengths[b] > 0
            ? mirror->starts[b] + mirror->lengths[b] : first + 3 * b;
        if (mirror->lengths[b] == 0)
            mirror->starts[b] = positions[b];
        for (int k = 0; k < L * 2 * H * tokens; k++) {
            const int t = k % tokens, h = k / tokens % H;
            const int part = k / tokens / H % 2, l = k / tokens / H / 2;
            memcpy(mirror->rows[l][part][b][mirror->lengths[b] + t][h],
                   pairs_row(&source, l, part, b, h, from[b] + t),
                   D * sizeof (float));
        }
        mirror->lengths[b] += tokens;
    }
    expect_ok(int8_kv_append(cache, &source, slots == tokens ? NULL : from,
                             positions, tokens, &error), &error);
    past_key_values_free(&source);
}

/* One number in all of the source, in the first token of some slice. */
START_TEST(each_slice_of_a_source_goes_to_its_own)
{
    uint64_t state = noise_start(188);
    for (int k = 0; k < L * 2 * B * H; k++) {
        const int h = k % H, b = k / H % B, part = k / H / B % 2;
        const int l = k / H / B / 2, slots = 1 + noise_below(&state, S + 3);
        const int tokens = slots < S ? slots : S;
        struct int8_kv *cache = new_codes(S);
        struct past_key_values source = noise_pairs(slots, &state);
        const int32_t positions[B] = {0};
        for (int layer = 0; layer < L; layer++) {
            const size_t bytes = (size_t)(B * H * slots * D) * sizeof (float);
            memset(source.layers[layer].key.data, 0, bytes);
            memset(source.layers[layer].value.data, 0, bytes);
        }
        pairs_row(&source, l, part, b, h, 0)[D - 1] = 2;
        expect_ok(int8_kv_append(cache, &source, NULL, positions, tokens,
                                 &error), &error);
        for (int at = 0; at < L * 2 * B * H * S * D; at++)
            ck_assert_int_eq(int8_kv_codes(cache)[at],
                             at == k * S * D + D - 1 ? 127 : 0);
        past_key_values_free(&source);
        int8_kv_free(&cache);
    }
}
END_TEST

START_TEST(each_row_has_the_codes_and_the_scale_that_it_has_alone)
{
    uint64_t state = noise_start(175);
    struct int8_kv *cache = new_codes(S);
    struct mirror mirror = {0};
    append_to(cache, &mirror, 3, 0, &state);
    expect_codes(cache, &mirror, S);
    append_to(cache, &mirror, 1, 0, &state);
    append_to(cache, &mirror, 3, 0, &state);
    expect_codes(cache, &mirror, S);
    int8_kv_free(&cache);
}
END_TEST

/* 100 in one head of one token; every other row keeps its bound. */
START_TEST(an_outlier_costs_its_own_row_and_no_other)
{
    uint64_t state = noise_start(176);
    struct int8_kv *cache = new_codes(S);
    struct past_key_values source = noise_pairs(4, &state);
    struct past_key_values back = noise_pairs(4, &state);
    const int32_t positions[B] = {0};
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            pairs_row(&source, l, part, 0, 0, 1)[2] = 100;
    expect_ok(int8_kv_append(cache, &source, NULL, positions, 4, &error),
              &error);
    expect_ok(int8_kv_gather(cache, &back, &error), &error);
    for (int l = 0; l < L; l++)
        for (int k = 0; k < 2 * B * H * 4; k++) {
            const int s = k % 4, h = k / 4 % H, b = k / 4 / H % B;
            const int part = k / 4 / H / B;
            const float *row = pairs_row(&source, l, part, b, h, s);
            int codes[D];
            expect_within_bounds(row, pairs_row(&back, l, part, b, h, s), D,
                                 own_codes(row, D, codes));
        }
    past_key_values_free(&source);
    past_key_values_free(&back);
    int8_kv_free(&cache);
}
END_TEST

static void expect_gathered(const struct int8_kv *cache,
                            const struct mirror *mirror, int slots,
                            uint64_t *state)
{
    struct past_key_values floats = noise_pairs(slots, state);
    struct past_key_values before = {0};
    expect_ok(past_key_values_prefix(&floats, slots, &before, &error),
              &error);
    long calls = allocator_calls();
    enum status status = int8_kv_gather(cache, &floats, &error);
    calls = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(calls, 0);
    for (int l = 0; l < L; l++)
        for (int k = 0; k < 2 * B * H * slots; k++) {
            const int s = k % slots, h = k / slots % H;
            const int b = k / slots / H % B, part = k / slots / H / B;
            float *got = pairs_row(&floats, l, part, b, h, s);
            float *want = pairs_row(&before, l, part, b, h, s);
            int codes[D];
            if (s < mirror->lengths[b]) {
                const float *row = mirror->rows[l][part][b][s][h];
                const float scale = own_codes(row, D, codes);
                expect_within_bounds(row, got, D, scale);
                for (int d = 0; d < D; d++)
                    ck_assert_float_eq(got[d], scale * (float)codes[d]);
            } else
                expect_same_bits("a slot behind the length", got, want,
                                 D * sizeof (float));
        }
    past_key_values_free(&floats);
    past_key_values_free(&before);
}

START_TEST(a_gather_writes_the_rows_and_nothing_behind_them)
{
    uint64_t state = noise_start(177);
    struct int8_kv *cache = new_codes(S);
    struct mirror mirror = {0};
    const int32_t cut[B] = {5, 0, 2};
    append_to(cache, &mirror, 5, 2, &state);
    expect_gathered(cache, &mirror, S, &state);
    expect_ok(int8_kv_truncate(cache, cut, &error), &error);
    memcpy(mirror.lengths, cut, sizeof cut);
    for (int slots = 5; slots <= S + 3; slots++)
        expect_gathered(cache, &mirror, slots, &state);
    int8_kv_free(&cache);
}
END_TEST

START_TEST(what_is_behind_a_length_is_zero_through_any_sequence_of_calls)
{
    uint64_t state = noise_start(178);
    struct int8_kv *cache = new_codes(S);
    const float *scales = int8_kv_scales(cache);
    const int8_t *codes = int8_kv_codes(cache);
    struct mirror mirror = {0};
    for (int round = 0; round < 120; round++) {
        int longest = 0;
        for (int b = 0; b < B; b++)
            if (mirror.lengths[b] > longest)
                longest = mirror.lengths[b];
        if (longest < S && noise_below(&state, 3) > 0)
            append_to(cache, &mirror, 1 + noise_below(&state, S - longest),
                      noise_below(&state, 50), &state);
        else if (noise_below(&state, 6) == 0) {
            int8_kv_reset(cache);
            memset(mirror.lengths, 0, sizeof mirror.lengths);
            memset(mirror.starts, 0, sizeof mirror.starts);
        } else {
            for (int b = 0; b < B; b++)
                mirror.lengths[b] = noise_below(&state,
                                                mirror.lengths[b] + 1);
            expect_ok(int8_kv_truncate(cache, mirror.lengths, &error),
                      &error);
        }
        expect_codes(cache, &mirror, S);
        ck_assert_ptr_eq(int8_kv_scales(cache), scales);
        ck_assert_ptr_eq(int8_kv_codes(cache), codes);
    }
    int8_kv_free(&cache);
}
END_TEST

START_TEST(a_cut_clears_scales_and_codes)
{
    uint64_t state = noise_start(179);
    struct int8_kv *cache = new_codes(S);
    struct mirror mirror = {0};
    const int32_t cut[B] = {4, 0, 1};
    append_to(cache, &mirror, 6, 0, &state);
    expect_ok(int8_kv_truncate(cache, cut, &error), &error);
    memcpy(mirror.lengths, cut, sizeof cut);
    expect_codes(cache, &mirror, S);
    int8_kv_free(&cache);
}
END_TEST

START_TEST(a_row_goes_on_from_its_own_start)
{
    uint64_t state = noise_start(180);
    struct int8_kv *cache = new_codes(S);
    struct mirror mirror = {0};
    const int32_t starts[B] = {4, 7, 10};
    append_to(cache, &mirror, 2, 4, &state);
    append_to(cache, &mirror, 2, 0, &state);
    expect_same_bits("starts", int8_kv_starts(cache), starts, sizeof starts);
    int8_kv_free(&cache);
}
END_TEST

/* Nothing changes, and nothing is allocated. */
static void expect_append_refused(struct int8_kv *cache,
                                  const struct mirror *mirror,
                                  const struct past_key_values *source,
                                  const int32_t *from,
                                  const int32_t *positions, int tokens,
                                  const char *message)
{
    long calls = allocator_calls();
    enum status status = int8_kv_append(cache, source, from, positions,
                                        tokens, &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(calls, 0);
    ck_assert_int_eq(int8_kv_append(cache, source, from, positions, tokens,
                                    NULL), STATUS_INVALID);
    expect_codes(cache, mirror, S);
}

/* Rows of 4, 2 and 3 tokens from 2, 5 and 8. */
static struct int8_kv *some_codes(struct mirror *mirror, uint64_t *state)
{
    struct int8_kv *cache = new_codes(S);
    const int32_t lengths[B] = {4, 2, 3};
    append_to(cache, mirror, 4, 2, state);
    expect_ok(int8_kv_truncate(cache, lengths, &error), &error);
    memcpy(mirror->lengths, lengths, sizeof lengths);
    return cache;
}

START_TEST(each_row_is_held_against_the_capacity)
{
    uint64_t state = noise_start(181);
    for (int full = 0; full < B; full++) {
        struct mirror mirror = {0};
        struct int8_kv *cache = new_codes(S);
        int32_t lengths[B] = {2, 1, 3}, positions[B];
        char message[80];
        lengths[full] = 5;
        append_to(cache, &mirror, 5, 0, &state);
        expect_ok(int8_kv_truncate(cache, lengths, &error), &error);
        memcpy(mirror.lengths, lengths, sizeof lengths);
        for (int b = 0; b < B; b++)
            positions[b] = mirror.starts[b] + lengths[b];
        struct past_key_values source = noise_pairs(3, &state);
        snprintf(message, sizeof message,
                 "row %d: expected at most 7 slots, got 5 + 3", full);
        ck_assert_int_eq(int8_kv_append(cache, &source, NULL, positions, 3,
                                        &error), STATUS_INVALID);
        expect_facts(error.message, message);
        expect_same_bits("lengths", int8_kv_lengths(cache), lengths,
                         sizeof lengths);
        append_to(cache, &mirror, 2, 0, &state);
        ck_assert_int_eq(int8_kv_lengths(cache)[full], S);
        past_key_values_free(&source);
        int8_kv_free(&cache);
    }
}
END_TEST

START_TEST(a_position_that_does_not_follow_is_refused)
{
    uint64_t state = noise_start(182);
    struct mirror mirror = {0};
    struct int8_kv *cache = some_codes(&mirror, &state);
    struct past_key_values source = noise_pairs(2, &state);
    const int32_t right[B] = {6, 7, 11};
    for (int b = 0; b < B; b++)
        for (int off = -2; off <= 2; off++) {
            int32_t wrong[B];
            char message[80];
            memcpy(wrong, right, sizeof wrong);
            wrong[b] += off;
            if (off == 0)
                continue;
            snprintf(message, sizeof message,
                     "positions[%d]: expected %d, got %d", b, (int)right[b],
                     (int)wrong[b]);
            expect_append_refused(cache, &mirror, &source, NULL, wrong, 2,
                                  message);
        }
    int8_kv_reset(cache);
    mirror = (struct mirror){0};
    const int32_t negative[B] = {0, -1, 0}, late[B] = {INT32_MAX - 1, 0, 0};
    expect_append_refused(cache, &mirror, &source, NULL, negative, 2,
                          "positions[1]: expected 0, got -1");
    expect_append_refused(cache, &mirror, &source, NULL, late, 2,
                          "positions[0]: expected 0, got 2147483646");
    past_key_values_free(&source);
    int8_kv_free(&cache);
}
END_TEST

START_TEST(a_number_that_is_not_finite_is_refused_wherever_it_stands)
{
    uint64_t state = noise_start(183);
    struct mirror mirror = {0};
    struct int8_kv *cache = some_codes(&mirror, &state);
    struct past_key_values source = noise_pairs(6, &state);
    const int32_t positions[B] = {6, 7, 11}, from[B] = {0, 3, 1};
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < L * 2 * B * H; k++) {
        const int h = k % H, b = k / H % B, part = k / H / B % 2;
        const int l = k / H / B / 2;
        for (int at = 0; at < 6 * D; at++) {
            float *x = pairs_row(&source, l, part, b, h, 0) + at;
            const bool read = at / D >= from[b] && at / D < from[b] + 2;
            const float right = *x;
            char message[96];
            *x = wrong[(k + at) % 3];
            snprintf(message, sizeof message, "past_key_values[%d].%s: row"
                     " %d: expected finite floats, got %g", l,
                     part ? "value" : "key", b, (double)*x);
            if (read && (at % 4 == 0 || isnan(*x)))
                expect_append_refused(cache, &mirror, &source, from,
                                      positions, 2, message);
            if (read)
                *x = right;    /* what is not read may stay */
        }
    }
    expect_ok(int8_kv_append(cache, &source, from, positions, 2, &error),
              &error);
    past_key_values_free(&source);
    int8_kv_free(&cache);
}
END_TEST

START_TEST(an_append_that_does_not_fit_changes_nothing)
{
    uint64_t state = noise_start(184);
    struct mirror mirror = {0};
    struct int8_kv *cache = some_codes(&mirror, &state);
    struct past_key_values source = noise_pairs(3, &state);
    const int32_t at[B] = {6, 7, 11}, far[B] = {0, 2, 1}, below[B] = {0, 0,
                                                                       -1};
    ck_assert_int_eq(int8_kv_append(NULL, &source, NULL, at, 2, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "cache: is NULL");
    expect_append_refused(cache, &mirror, NULL, NULL, at, 2,
                          "past_key_values: null");
    expect_append_refused(cache, &mirror, &source, NULL, NULL, 2,
                          "positions: is NULL");
    expect_append_refused(cache, &mirror, &source, NULL, at, 0,
                          "tokens: expected at least 1, got 0");
    expect_append_refused(cache, &mirror, &source, far, at, 2,
                          "from[1]: expected 0 to 1, got 2");
    expect_append_refused(cache, &mirror, &source, below, at, 2,
                          "from[2]: expected 0 to 1, got -1");
    source.layers[L - 1].value.shape[3] = D - 1;
    expect_append_refused(cache, &mirror, &source, NULL, at, 2,
                          "past_key_values[2].value: head_dim: expected 5,"
                          " got 4");
    source.layers[L - 1].value.shape[3] = D;
    past_key_values_free(&source);
    source = noise_pairs(1, &state);
    expect_append_refused(cache, &mirror, &source, NULL, at, 2,
                          "from[0]: expected 0 to -1, got 0");
    past_key_values_free(&source);
    int8_kv_free(&cache);
}
END_TEST

START_TEST(a_gather_and_a_cut_refuse_what_does_not_fit)
{
    uint64_t state = noise_start(185);
    struct mirror mirror = {0};
    struct int8_kv *cache = some_codes(&mirror, &state);
    struct past_key_values floats = noise_pairs(3, &state), before = {0};
    expect_ok(past_key_values_prefix(&floats, 3, &before, &error), &error);
    ck_assert_int_eq(int8_kv_gather(cache, &floats, &error), STATUS_INVALID);
    expect_facts(error.message, "row 0: expected at most 3 slots, got 4");
    expect_same_bits("floats", floats.layers[0].key.data,
                     before.layers[0].key.data, B * H * 3 * D * 4);
    ck_assert_int_eq(int8_kv_gather(NULL, &floats, &error), STATUS_INVALID);
    expect_facts(error.message, "cache: is NULL");
    ck_assert_int_eq(int8_kv_gather(cache, NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "past_key_values: null");
    const int32_t wrong[][B] = {{5, 2, 3}, {4, 3, 3}, {4, 2, -1}};
    const char *const messages[] = {"lengths[0]: expected 0 to 4, got 5",
                                    "lengths[1]: expected 0 to 2, got 3",
                                    "lengths[2]: expected 0 to 3, got -1"};
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(int8_kv_truncate(cache, wrong[k], &error),
                         STATUS_INVALID);
        expect_facts(error.message, messages[k]);
        expect_codes(cache, &mirror, S);
    }
    ck_assert_int_eq(int8_kv_truncate(cache, NULL, &error), STATUS_INVALID);
    ck_assert_int_eq(int8_kv_truncate(NULL, wrong[0], &error),
                     STATUS_INVALID);
    past_key_values_free(&floats);
    past_key_values_free(&before);
    int8_kv_free(&cache);
}
END_TEST

/* -------------------------------------------------------------------- sizes */

/* Beside codes and scales a cache has a struct and its books. */
START_TEST(the_bytes_are_those_of_the_allocator)
{
    const struct { struct cache_shape shape; int capacity; } sizes[] = {
        {{3, 2, 6}, 1}, {{1, 1, 20}, 3}, {{2, 3, 14}, 5}, {{3, 5, 22}, 7},
        {{5, 1, 8}, 9}, {{1, 4, 64}, 11}
    };
    for (int size = 0; size < 6; size++) {
        const struct cache_shape *s = &sizes[size].shape;
        const int slots = sizes[size].capacity;
        const size_t want = (size_t)(2 * s->n_layers * 3 * s->n_kv_heads
                                     * slots * (s->head_dim + 4));
        struct int8_kv *cache = NULL;
        size_t bytes = 0;
        long before = allocator_bytes();
        enum status status = int8_kv_new(&cache, s, 3, slots, &error);
        const long whole = allocator_bytes() - before;
        expect_ok(status, &error);
        ck_assert(int8_kv_bytes(s, 3, slots, &bytes));
        ck_assert_uint_eq(bytes, want);
        int8_kv_free(&cache);
        before = allocator_bytes();
        void *volatile block = calloc(1, want);  /* as the system rounds it */
        const long rounded = allocator_bytes() - before;
        free(block);
        ck_assert_int_ge(whole, rounded);
        ck_assert_int_lt(whole, rounded + 300);     /* struct and books */
    }
    size_t bytes = 0;
    ck_assert(int8_kv_bytes(&(struct cache_shape){4, 4, 24}, 8, 128, &bytes));
    ck_assert_uint_eq(bytes, 917504);
}
END_TEST

START_TEST(more_slots_cost_what_the_formula_says_to_the_byte)
{
    const struct cache_shape s = {1, 1, 4};      /* 16 bytes a slot, B = 1 */
    for (int slots = 2; slots < 40; slots++) {
        long bytes[2];
        for (int k = 0; k < 2; k++) {
            struct int8_kv *cache = NULL;
            long before = allocator_bytes();
            enum status status = int8_kv_new(&cache, &s, 1, slots + k,
                                             &error);
            bytes[k] = allocator_bytes() - before;
            expect_ok(status, &error);
            int8_kv_free(&cache);
        }
        ck_assert_int_eq(bytes[1] - bytes[0], 16);
    }
}
END_TEST

START_TEST(a_cache_of_nothing_or_of_too_much_is_refused)
{
    const struct { struct cache_shape shape; int batch, capacity;
                   const char *message; } wrong[] = {
        {{0, 1, 1}, 1, 1, "n_layers: expected at least 1, got 0"},
        {{1, 0, 1}, 1, 1, "n_kv_heads: expected at least 1, got 0"},
        {{1, 1, -1}, 1, 1, "head_dim: expected at least 1, got -1"},
        {{1, 1, 1}, 0, 1, "batch: expected at least 1, got 0"},
        {{1, 1, 1}, 1, 0, "capacity: expected at least 1, got 0"},
        {{1, 65536, 65536}, 1, 1, "head_dim: expected at most 32767 for"
                                  " 65536 heads, got 65536"},
    };
    struct int8_kv *cache = NULL;
    for (int k = 0; k < 6; k++) {
        ck_assert_int_eq(int8_kv_new(&cache, &wrong[k].shape, wrong[k].batch,
                                     wrong[k].capacity, &error),
                         STATUS_INVALID);
        expect_facts(error.message, wrong[k].message);
        ck_assert_ptr_null(cache);
    }
    const struct cache_shape large = {INT_MAX, 1, INT_MAX};
    size_t bytes = 5;
    ck_assert(!int8_kv_bytes(&large, INT_MAX, INT_MAX, &bytes));
    long live = allocator_live();
    enum status status = int8_kv_new(&cache, &large, INT_MAX, INT_MAX,
                                     &error);
    live = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(cache);
}
END_TEST

START_TEST(making_a_cache_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct int8_kv *cache = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = int8_kv_new(&cache, &shape, B, S, &error);
        bool failed = allocator_stop();
        if (!failed)
            int8_kv_free(&cache);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(cache);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
    }
    struct int8_kv *none = NULL;
    int8_kv_free(&none);
    int8_kv_free(NULL);
}
END_TEST

/* ---------------------------------------------------- models over the cache */

enum { TEXT = 9, MOST_FLOATS = 3 * TEXT * 13 };

/* One of the two families, 2 with experts, with a text of 3 rows. V is 13 in both. */
struct served {
    struct cached cached;        /* of the tiny GPT */
    struct llama *llama;
    struct causal_lm lm;
    int32_t ids[3 * TEXT];
};

static struct served served(int llama)
{
    struct served made = {.llama = NULL};
    if (llama) {
        const struct llama_config config =
            llama == 1 ? small_llama_config() : small_moe_config();
        made.llama = noisy_llama(&config, 186);
        made.lm = llama_causal_lm(made.llama);
    } else {
        made.cached = cached_noise();
        made.lm = tiny_gpt_causal_lm(made.cached.model);
    }
    uint64_t state = noise_start(187);
    noise_ids(&state, 13, 3, TEXT, made.ids);
    return made;
}

static void served_end(struct served *made)
{
    if (made->llama != NULL)
        llama_free(&made->llama);
    else
        cached_close(&made->cached);
}

static struct request *new_request(const struct causal_lm *lm, int capacity,
                                   int max_tokens)
{
    struct request *request = NULL;
    expect_ok(request_new(&request, lm, 3, capacity, max_tokens, &error),
              &error);
    return request;
}

static struct int8_kv *cache_for(const struct causal_lm *lm, int capacity)
{
    struct int8_kv *cache = NULL;
    expect_ok(int8_kv_new(&cache, &lm->cache, 3, capacity, &error), &error);
    return cache;
}

/* Columns from … from+count-1 of the text, shifted by `other` ids. */
static void columns(const struct served *made, int from, int count, int other,
                    int32_t *ids)
{
    for (int b = 0; b < 3; b++)
        for (int t = 0; t < count; t++)
            ids[b * count + t] = (made->ids[b * TEXT + from + t] + other)
                                 % 13;
}

static const float *feed_codes(struct int8_kv *cache, struct request *request,
                               const struct served *made, int from, int count,
                               int other)
{
    int32_t ids[3 * TEXT];
    const float *logits = NULL;
    columns(made, from, count, other, ids);
    expect_ok(int8_kv_feed(cache, request, ids, count, false, &logits,
                           &error), &error);
    return logits;
}

/* A feed of floats whose new rows are replaced by what their codes mean. */
static const float *feed_by_hand(struct request *request,
                                 const struct served *made, int from,
                                 int count, int other)
{
    int32_t ids[3 * TEXT], before[3];
    const float *logits = NULL;
    struct kv_cache *cache = request_cache(request);
    const struct past_key_values *storage = kv_cache_storage(cache);
    const int heads = made->lm.cache.n_kv_heads;
    const int width = made->lm.cache.head_dim;
    memcpy(before, kv_cache_lengths(cache), sizeof before);
    columns(made, from, count, other, ids);
    expect_ok(request_feed(request, ids, count, false, &logits, &error),
              &error);
    for (int k = 0; k < made->lm.cache.n_layers * 2 * 3 * heads; k++) {
        const struct layer_kv *layer = &storage->layers[k / heads / 3 / 2];
        const struct tensor *tensor = k / heads / 3 % 2 ? &layer->value
                                                        : &layer->key;
        const int b = k / heads % 3;
        for (int t = 0; t < count; t++) {
            float *row = tensor->data
                + ((b * heads + k % heads) * tensor->shape[2] + before[b] + t)
                  * width;
            int codes[16];
            const float scale = own_codes(row, width, codes);
            for (int d = 0; d < width; d++)
                row[d] = scale * (float)codes[d];
        }
    }
    return logits;
}

/* Keys and values of the first layer depend on no cache. */
START_TEST(new_rows_are_kept_behind_the_old_ones)
{
    for (int llama = 0; llama < 3; llama++) {
        struct served made = served(llama);
        struct request *request = new_request(&made.lm, TEXT, TEXT);
        struct request *floats = new_request(&made.lm, TEXT, TEXT);
        struct int8_kv *cache = cache_for(&made.lm, TEXT);
        const int width = made.lm.cache.head_dim;
        const int rows = 3 * made.lm.cache.n_kv_heads * TEXT;
        const float *logits;
        feed_codes(cache, request, &made, 0, 4, 0);
        feed_codes(cache, request, &made, 4, 3, 0);
        feed_codes(cache, request, &made, 7, 2, 0);
        expect_ok(request_feed(floats, made.ids, TEXT, false, &logits,
                               &error), &error);
        const struct layer_kv *first =
            kv_cache_storage(request_cache(floats))->layers;
        for (int k = 0; k < 2 * rows; k++) {
            const struct tensor *tensor = k < rows ? &first->key
                                                   : &first->value;
            int codes[16];
            (void)own_codes(tensor->data + k % rows * width, width, codes);
            for (int d = 0; d < width; d++)
                ck_assert_int_eq(int8_kv_codes(cache)[k * width + d],
                                 codes[d]);
        }
        int8_kv_free(&cache);
        request_free(&floats);
        request_free(&request);
        served_end(&made);
    }
}
END_TEST

/* Every split of nine tokens into feeds. */
static void expect_splits(int llama)
{
    struct served made = served(llama);
    struct request *request = new_request(&made.lm, TEXT + 2, TEXT);
    struct request *hand = new_request(&made.lm, TEXT, TEXT);
    struct int8_kv *cache = cache_for(&made.lm, TEXT + 1);
    for (int split = 0; split < 256; split += 1 + split % 5) {
        for (int from = 0, to; from < TEXT; from = to) {
            for (to = from + 1; to < TEXT && (split >> (to - 1) & 1) == 0;)
                to++;
            const float *want = feed_by_hand(hand, &made, from, to - from, 0);
            const float *got = feed_codes(cache, request, &made, from,
                                          to - from, 0);
            expect_same_bits("logits", got, want,
                             (size_t)(3 * (to - from) * 13)
                             * sizeof (float));
        }
        kv_cache_reset(request_cache(hand));
        int8_kv_reset(cache);
    }
    int8_kv_free(&cache);
    request_free(&hand);
    request_free(&request);
    served_end(&made);
}

START_TEST(a_feed_runs_over_what_the_codes_mean)
{
    expect_splits(0);
}
END_TEST

START_TEST(the_other_family_runs_over_what_its_codes_mean)
{
    expect_splits(1);
    expect_splits(2);
}
END_TEST

START_TEST(a_prompt_in_one_call_has_the_bits_of_floats)
{
    for (int llama = 0; llama < 3; llama++) {
        struct served made = served(llama);
        struct request *request = new_request(&made.lm, TEXT, TEXT);
        struct request *floats = new_request(&made.lm, TEXT, TEXT);
        struct int8_kv *cache = cache_for(&made.lm, TEXT);
        const float *want;
        expect_ok(request_feed(floats, made.ids, TEXT, false, &want, &error),
                  &error);
        expect_same_bits("logits",
                         feed_codes(cache, request, &made, 0, TEXT, 0), want,
                         MOST_FLOATS * sizeof (float));
        int8_kv_free(&cache);
        request_free(&floats);
        request_free(&request);
        served_end(&made);
    }
}
END_TEST

/* Rows of 4, 1 and 3 tokens go on together. */
START_TEST(rows_of_unequal_length_go_on_together)
{
    for (int llama = 0; llama < 3; llama++) {
        struct served made = served(llama);
        struct request *request = new_request(&made.lm, TEXT, TEXT);
        struct request *hand = new_request(&made.lm, TEXT, TEXT);
        struct int8_kv *cache = cache_for(&made.lm, TEXT);
        const int32_t cut[3] = {4, 1, 3};
        feed_by_hand(hand, &made, 0, 4, 0);
        feed_codes(cache, request, &made, 0, 4, 0);
        expect_ok(kv_cache_truncate(request_cache(hand), cut, &error),
                  &error);
        expect_ok(int8_kv_truncate(cache, cut, &error), &error);
        for (int at = 4; at < 9; at += 2) {
            const int count = at < 8 ? 2 : 1;
            const float *want = feed_by_hand(hand, &made, at, count, 0);
            expect_same_bits("logits", feed_codes(cache, request, &made, at,
                                                  count, 0), want,
                             (size_t)(3 * count * 13) * sizeof (float));
        }
        int8_kv_free(&cache);
        request_free(&hand);
        request_free(&request);
        served_end(&made);
    }
}
END_TEST

/* Rows from 3, 0 and 2, whose first keys come from another request. */
START_TEST(a_row_that_starts_late_goes_on_at_its_positions)
{
    for (int llama = 0; llama < 3; llama++) {
        struct served made = served(llama);
        struct request *request = new_request(&made.lm, TEXT, TEXT);
        struct request *hand = new_request(&made.lm, TEXT, TEXT);
        struct int8_kv *cache = cache_for(&made.lm, TEXT);
        const int32_t starts[3] = {3, 0, 2}, zeros[3] = {0};
        struct kv_cache *floats = request_cache(hand);
        expect_ok(kv_cache_load(floats, kv_cache_storage(floats), zeros,
                                starts, &error), &error);
        feed_by_hand(hand, &made, 0, 2, 0);
        expect_ok(int8_kv_append(cache, kv_cache_storage(floats), NULL,
                                 starts, 2, &error), &error);
        const float *want = feed_by_hand(hand, &made, 2, 3, 0);
        expect_same_bits("logits", feed_codes(cache, request, &made, 2, 3,
                                              0), want,
                         3 * 3 * 13 * sizeof (float));
        int8_kv_free(&cache);
        request_free(&hand);
        request_free(&request);
        served_end(&made);
    }
}
END_TEST

/* Two texts in turn on one request, of the same lengths, then of others. */
START_TEST(caches_in_turn_on_one_request_are_as_each_alone)
{
    struct served made = served(true);
    struct request *lent = new_request(&made.lm, TEXT, TEXT);
    struct request *own[2];
    struct int8_kv *caches[2];
    for (int k = 0; k < 2; k++) {
        own[k] = new_request(&made.lm, TEXT, TEXT);
        caches[k] = cache_for(&made.lm, TEXT);
    }
    for (int at = 0; at < 8; at++)
        for (int k = 0; k < 2; k++) {
            const int count = at == 3 && k == 1 ? 2 : 1;
            const int from = at > 3 && k == 1 ? at + 1 : at;
            const float *want = feed_by_hand(own[k], &made, from, count,
                                             5 * k);
            expect_same_bits("logits", feed_codes(caches[k], lent, &made,
                                                  from, count, 5 * k), want,
                             (size_t)(3 * count * 13) * sizeof (float));
        }
    for (int k = 0; k < 2; k++) {
        int8_kv_free(&caches[k]);
        request_free(&own[k]);
    }
    request_free(&lent);
    served_end(&made);
}
END_TEST

START_TEST(the_token_loop_allocates_nothing)
{
    for (int llama = 0; llama < 3; llama++) {
        struct served made = served(llama);
        struct request *request = new_request(&made.lm, TEXT, 4);
        struct int8_kv *cache = cache_for(&made.lm, TEXT);
        const int32_t cut[3] = {3, 2, 5};
        int32_t ids[3];
        const float *logits;
        feed_codes(cache, request, &made, 0, 4, 0);
        long calls = allocator_calls();
        enum status status = STATUS_OK;
        for (int t = 4; t < TEXT && status == STATUS_OK; t++) {
            columns(&made, t, 1, 0, ids);
            status = int8_kv_feed(cache, request, ids, 1, true, &logits,
                                  &error);
        }
        if (status == STATUS_OK)
            status = int8_kv_truncate(cache, cut, &error);
        int8_kv_reset(cache);
        calls = allocator_calls() - calls;
        expect_ok(status, &error);
        ck_assert_int_eq(calls, 0);
        int8_kv_free(&cache);
        request_free(&request);
        served_end(&made);
    }
}
END_TEST

/* Codes, scales, books and *logits are as they were. */
static void expect_feed_refused(struct int8_kv *cache, const struct served *of,
                                int capacity, struct request *request,
                                const int32_t *ids, int tokens,
                                const char *message)
{
    static int8_t codes[8192];
    static float scales[2048];
    int32_t books[6];
    size_t bytes = 0;
    ck_assert(int8_kv_bytes(&of->lm.cache, 3, capacity, &bytes));
    const size_t rows = bytes / (size_t)(of->lm.cache.head_dim + 4);
    const size_t count = rows * (size_t)of->lm.cache.head_dim;
    const float here = 0, *logits = &here;
    memcpy(codes, int8_kv_codes(cache), count);
    memcpy(scales, int8_kv_scales(cache), rows * sizeof *scales);
    memcpy(books, int8_kv_lengths(cache), 3 * sizeof *books);
    memcpy(books + 3, int8_kv_starts(cache), 3 * sizeof *books);
    long calls = allocator_calls();
    enum status status = int8_kv_feed(cache, request, ids, tokens, false,
                                      &logits, &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_named(&error, message);
    ck_assert_int_eq(calls, 0);
    ck_assert_ptr_eq(logits, &here);
    expect_same_bits("codes", int8_kv_codes(cache), codes, count);
    expect_same_bits("scales", int8_kv_scales(cache), scales,
                     rows * sizeof *scales);
    expect_same_bits("lengths", int8_kv_lengths(cache), books,
                     3 * sizeof *books);
    expect_same_bits("starts", int8_kv_starts(cache), books + 3,
                     3 * sizeof *books);
}

START_TEST(a_refused_feed_changes_nothing)
{
    struct served made = served(false);
    struct request *request = new_request(&made.lm, 20, 4);
    struct request *small = new_request(&made.lm, 3, 3), *narrow = NULL;
    struct int8_kv *cache = cache_for(&made.lm, 8);
    struct int8_kv *deep = cache_for(&made.lm, 20);
    int32_t ids[3 * TEXT] = {0};
    const float *logits;
    expect_ok(request_new(&narrow, &made.lm, 2, 9, 4, &error), &error);
    feed_codes(cache, request, &made, 0, 4, 0);
    feed_codes(deep, request, &made, 0, 4, 0);
    feed_codes(deep, request, &made, 4, 4, 0);
    ck_assert_int_eq(int8_kv_feed(NULL, request, ids, 1, true, &logits,
                                  &error), STATUS_INVALID);
    expect_facts(error.message, "cache: is NULL");
    ck_assert_int_eq(int8_kv_feed(cache, request, ids, 1, true, NULL,
                                  &error), STATUS_INVALID);
    expect_facts(error.message, "logits: is NULL");
    expect_feed_refused(cache, &made, 8, NULL, ids, 1, "request: is NULL");
    expect_feed_refused(cache, &made, 8, request, NULL, 1, "ids: is NULL");
    expect_feed_refused(cache, &made, 8, request, ids, 0,
                        "tokens: expected at least 1, got 0");
    expect_feed_refused(cache, &made, 8, request, ids, 5,
                        "expected at most 8 slots, got 4 + 5");
    expect_feed_refused(deep, &made, 20, request, ids, 2,
                        "expected positions below 9, got 0 + 8 + 2");
    expect_feed_refused(deep, &made, 20, request, ids, 5,
                        "tokens: expected 1 to 4, got 5");
    expect_feed_refused(cache, &made, 8, small, ids, 1,
                        "row 0: expected at most 3 slots, got 4");
    expect_feed_refused(cache, &made, 8, narrow, ids, 1, "batch: expected 3");
    ids[5] = 13;
    expect_feed_refused(cache, &made, 8, request, ids, 2, "ids[2,1]");
    request_free(&narrow);
    request_free(&small);
    request_free(&request);
    int8_kv_free(&deep);
    int8_kv_free(&cache);
    served_end(&made);
}
END_TEST

START_TEST(a_model_that_computes_nan_is_refused)
{
    struct served made = served(false);
    struct request *request = new_request(&made.lm, TEXT, TEXT);
    struct int8_kv *cache = cache_for(&made.lm, TEXT);
    int32_t ids[3];
    feed_codes(cache, request, &made, 0, 4, 0);
    struct parameters *weights = tiny_gpt_parameters(made.cached.model);
    for (size_t k = 0; k < weights->size; k++)
        weights->storage[k] = NAN;
    columns(&made, 4, 1, 0, ids);
    expect_feed_refused(cache, &made, TEXT, request, ids, 1,
                        "expected finite floats, got");
    request_free(&request);
    int8_kv_free(&cache);
    served_end(&made);
}
END_TEST

START_TEST(a_reset_cache_is_as_new)
{
    struct served made = served(true);
    struct request *request = new_request(&made.lm, TEXT, TEXT);
    struct int8_kv *used = cache_for(&made.lm, TEXT);
    struct int8_kv *fresh = cache_for(&made.lm, TEXT);
    float want[3 * 13];
    size_t bytes = 0;
    ck_assert(int8_kv_bytes(&made.lm.cache, 3, TEXT, &bytes));
    feed_codes(used, request, &made, 0, 7, 3);
    int8_kv_reset(used);
    expect_same_bits("scales and codes", int8_kv_scales(used),
                     int8_kv_scales(fresh), bytes);
    feed_codes(fresh, request, &made, 0, 2, 0);
    memcpy(want, feed_codes(fresh, request, &made, 2, 1, 0), sizeof want);
    feed_codes(used, request, &made, 0, 2, 0);
    expect_same_bits("logits", feed_codes(used, request, &made, 2, 1, 0),
                     want, sizeof want);
    expect_same_bits("scales and codes", int8_kv_scales(used),
                     int8_kv_scales(fresh), bytes);
    int8_kv_free(&fresh);
    int8_kv_free(&used);
    request_free(&request);
    served_end(&made);
}
END_TEST

/* ---------------------------------------------------------- what it costs */

static const char text[] =
    "The mask of a row says which slots its queries may see. A slot is valid"
    " when it holds a token, and causal when the token is not later.";

/* The trained model on a text of its kind. */
START_TEST(the_checkpoint_loses_little_at_every_position)
{
    struct tiny_gpt *model = NULL;
    int32_t ids[128];
    struct int8_loss losses[128], spared[128];
    struct int8_times times;
    double square = 0, less = 0;
    int changed = 0;
    expect_ok(tiny_gpt_load(&model, "book/checkpoint", &error), &error);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    ck_assert_uint_ge(sizeof text, 129);
    for (int t = 0; t < 128; t++)
        ids[t] = (unsigned char)text[t];
    const struct int8_texts with = {ids, 1, 128, 0, true};
    expect_ok(int8_losses(&lm, &with, spared, &times, &error), &error);
    const struct int8_texts texts = {ids, 1, 128, 0, false};
    expect_ok(int8_losses(&lm, &texts, losses, &times, &error), &error);
    for (int t = 0; t < 128; t++) {
        ck_assert_double_le(losses[t].floats, 1e-4);
        ck_assert_double_le(losses[t].codes, 1);
        ck_assert_double_le(losses[t].root_mean_square, 0.2);
        ck_assert_double_ge(losses[t].codes, losses[t].root_mean_square);
        ck_assert_int_ge(losses[t].changed, 0);
        changed += losses[t].changed;
        ck_assert_double_gt(losses[t].key_scale, 0);
        square += losses[t].root_mean_square * losses[t].root_mean_square;
        less += spared[t].root_mean_square * spared[t].root_mean_square;
    }
    ck_assert_double_eq(losses[0].codes, 0);
    ck_assert_double_gt(losses[1].codes, 0);
    ck_assert_int_le(changed, 6);
    ck_assert_double_gt(less, 0);
    ck_assert_double_lt(less, square / 2);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_study_survives_each_failed_allocation)
{
    struct served made = served(true);
    struct int8_loss losses[TEXT];
    struct int8_times times;
    const int wrong[][2] = {{0, 0}, {TEXT, -1}, {TEXT, 25 - TEXT}};
    struct int8_texts texts = {made.ids, 3, 0, 0, false};
    for (int k = 0; k < 3; k++) {
        texts.tokens = wrong[k][0];
        texts.start = wrong[k][1];
        ck_assert_int_eq(int8_losses(&made.lm, &texts, losses, &times,
                                     &error), STATUS_INVALID);
    }
    texts.start = 24 - TEXT;
    expect_ok(int8_losses(&made.lm, &texts, losses, &times, &error), &error);
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        texts.spare = n % 2;
        enum status status = int8_losses(&made.lm, &texts, losses, &times,
                                         &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
    }
    for (int t = 0; t < TEXT; t++)
        ck_assert_double_le(losses[t].floats, 1e-4);
    served_end(&made);
}
END_TEST

#define INT8 "int8 --model book/checkpoint "

START_TEST(the_command_prints_bytes_and_losses)
{
    const char *table = run_program(INT8 "--text README.md --windows 2"
                                    " --tokens 16 --every 8", 0);
    int position, rows = 0;
    ck_assert_ptr_nonnull(strstr(table, "float_bytes 98304  int8_bytes 28672"
                                        "  of them scales 4096\n"));
    for (const char *at = strchr(table, '\n'); at != NULL;
         at = strchr(at + 1, '\n'))
        if (sscanf(at, " %d", &position) == 1)
            ck_assert_int_eq(position, 8 * ++rows - 1);
    ck_assert_int_eq(rows, 2);
    const char *json = run_program(INT8 "--text=README.md --tokens 4"
                                   " --start 7 --every 1 --spare --measure"
                                   " --json", 0);
    ck_assert_ptr_nonnull(strstr(json, "{\"float_bytes\": 12288, \"int8_"
                                       "bytes\": 3584, \"scale_bytes\": 512,"
                                       " \"float_ms\": "));
    ck_assert_ptr_nonnull(strstr(json, "{\"position\": 10, \"floats\": "));
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_study)
{
    const char *const usage[] = {
        "int8", INT8, "int8 --text README.md", INT8 "--text",
        INT8 "--text README.md --windows 0",
        INT8 "--text README.md --tokens 0",
        INT8 "--text README.md --every 0", INT8 "--text README.md --rows 2"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt int8"));
    ck_assert_ptr_nonnull(strstr(run_program("int8 --model nowhere --text"
                                             " README.md", 1), "nowhere"));
    ck_assert_ptr_nonnull(strstr(run_program(INT8 "--text nowhere.txt", 1),
                                 "nowhere.txt"));
    ck_assert_ptr_nonnull(strstr(run_program(INT8 "--text figures/01-tiny"
                                             ".json --windows 99", 1),
                                 "expected at least 12672 bytes"));
    run_program(INT8 "--text README.md --tokens 129", 1);
    run_program(INT8 "--text README.md --tokens 32 --start 97", 1);
    ck_assert_ptr_nonnull(strstr(run_program("int8 --help", 0), "--every"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define LARGEST "let largest be the largest magnitude so far"
#define STEPS "let 127 steps reach the largest magnitude"
#define NEAREST "let the code be the nearest, and saturate"
#define ZERO "let a row without a scale have codes of zero"
#define ROW "quantise the row with a scale of its own"
#define DECODE "decode the slots that the row has"
#define SLICE "let the slice begin where its tensor has it"
#define BYTES "count the bytes of each row"
#define LAY "lay the cached rows out as floats"
#define KEEP "keep the new rows as codes"
#define CLEAR "clear the scales and codes that the slice loses"
#define BOOKS "enter where the row starts and ends"

static const struct test tests[] = {
    TEST(the_largest_magnitude_may_be_negative_and_stand_anywhere, 2,
         LARGEST),
    TEST(a_row_of_zeros_has_the_scale_zero_and_codes_of_zero, 2, ZERO),
    TEST(codes_saturate_at_127_on_both_sides, 2, NEAREST),
    TEST(ties_go_to_the_even_code, 2, NEAREST),
    TEST(a_float_is_its_code_times_the_scale, 2,
         "let the float be so many steps"),
    TEST(a_row_has_the_scale_and_codes_of_the_worked_instance, 2, STEPS),
    TEST(the_largest_magnitude_has_the_last_code_of_its_sign, 2, STEPS),
    TEST(the_negative_of_a_row_has_the_negative_codes, 2, NEAREST),
    TEST(a_row_too_small_for_a_scale_counts_as_zeros, 2,
         "give a row of next to nothing the scale 0"),
    TEST(the_largest_floats_come_back_finite, 2,
         "keep 127 steps below infinity"),
    TEST(every_float_comes_back_within_half_a_step, 2,
         "let the float be so many steps"),
    TEST(scores_and_contexts_stay_within_their_bounds, 2,
         "let the float be so many steps"),
    TEST(the_bytes_are_those_of_the_allocator, 2, BYTES),
    TEST(more_slots_cost_what_the_formula_says_to_the_byte, 2, BYTES),
    TEST(a_cache_of_nothing_or_of_too_much_is_refused, 2,
         "refuse a size below 1"),
    TEST(making_a_cache_survives_each_failed_allocation, 2,
         "allocate codes, scales and books"),
    TEST(a_row_goes_on_from_its_own_start, 2, BOOKS),
    TEST(each_row_is_held_against_the_capacity, 2,
         "refuse codes behind the capacity"),
    TEST(each_slice_of_a_source_goes_to_its_own, 2, SLICE),
    TEST(each_row_has_the_codes_and_the_scale_that_it_has_alone, 2, ROW),
    TEST(a_cut_clears_scales_and_codes, 2, CLEAR),
    TEST(a_gather_writes_the_rows_and_nothing_behind_them, 2, DECODE),
    TEST(an_outlier_costs_its_own_row_and_no_other, 2, ROW),
    TEST(what_is_behind_a_length_is_zero_through_any_sequence_of_calls, 2,
         CLEAR),
    TEST(a_position_that_does_not_follow_is_refused, 2,
         "refuse codes of another position"),
    TEST(a_number_that_is_not_finite_is_refused_wherever_it_stands, 2,
         "refuse a number that is not finite"),
    TEST(an_append_that_does_not_fit_changes_nothing, 2,
         "refuse to quantise"),
    TEST(a_gather_and_a_cut_refuse_what_does_not_fit, 2,
         "check that floats have room for the rows"),
    TEST(a_prompt_in_one_call_has_the_bits_of_floats, 2,
         "feed through a request"),
    TEST(new_rows_are_kept_behind_the_old_ones, 2, KEEP),
    TEST(caches_in_turn_on_one_request_are_as_each_alone, 2, LAY),
    TEST(a_feed_runs_over_what_the_codes_mean, 2, KEEP),
    TEST(the_other_family_runs_over_what_its_codes_mean, 2, KEEP),
    TEST(rows_of_unequal_length_go_on_together, 2, KEEP),
    TEST(a_row_that_starts_late_goes_on_at_its_positions, 2, LAY),
    TEST(the_token_loop_allocates_nothing, 2, "feed through a request"),
    TEST(a_refused_feed_changes_nothing, 2, "check a feed of codes"),
    TEST(a_model_that_computes_nan_is_refused, 2,
         "refuse a number that is not finite"),
    TEST(a_reset_cache_is_as_new, 2, "forget the codes of every row"),
    TEST(the_checkpoint_loses_little_at_every_position, 2,
         "take the texts through"),
    TEST(the_study_survives_each_failed_allocation, 2,
         "the ways that are compared"),
    TEST(the_command_prints_bytes_and_losses, 2,
         "print the losses by position"),
    TEST(the_command_refuses_what_it_cannot_study, 2,
         "the options of the int8 command"),
};

SUITE("chapter 17, a cache of eight bits", tests);
