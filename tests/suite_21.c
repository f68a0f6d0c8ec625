/* Chapter 21: kernels. Every table that this processor runs is held against
   sums in double, written here, and against itself: another layout, other
   rows in the call, another number of threads, to the bit. */
#define _DEFAULT_SOURCE    /* MAP_ANONYMOUS */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "int8_row.h"
#include "kernels.h"
#include "support/compare.h"
#include "support/harness.h"
#include "support/noise.h"

#define U 0x1p-24    /* half of what floats around 1 are apart */

/* ------------------------------------------------------------------- tables */

static const struct kernels *tables[KERNELS_MAX];

/* One thread, until a test asks for more. */
static int find_tables(void)
{
    omp_set_num_threads(1);
    return kernels_available(tables);
}

#define EACH_TABLE(k) \
    for (int k##_at = 0, k##_end = find_tables(); k##_at < k##_end; k##_at++) \
        for (const struct kernels *k = tables[k##_at]; k != NULL; k = NULL)

/* -------------------------------------------------------------------- arrays */

enum { HELD_MAX = 400 };
static void *held[HELD_MAX];
static int held_count;

/* Exactly that many floats, freed by release. */
static float *room(size_t count)
{
    ck_assert_int_lt(held_count, HELD_MAX);
    float *floats = malloc(count * sizeof *floats);
    ck_assert_ptr_nonnull(floats);
    held[held_count++] = floats;
    return floats;
}

static void release(void)
{
    while (held_count > 0)
        free(held[--held_count]);
}

static float *random_floats(uint64_t *state, size_t count)
{
    float *floats = room(count);
    noise_floats(state, count, floats);
    return floats;
}

static float *copy_of(const float *from, size_t count)
{
    float *floats = room(count);
    memcpy(floats, from, count * sizeof *floats);
    return floats;
}

static void fill(float *floats, size_t count, float value)
{
    for (size_t k = 0; k < count; k++)
        floats[k] = value;
}

static void expect_near(const char *what, float got, double want, double most)
{
    if (!(fabs(got - want) <= most))
        ck_abort_msg("%s: expected %.9g within %.3g, got %.9g", what, want,
                     most, (double)got);
}

/* ---------------------------------------------------------------- references */

static double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }

static double tanh_argument(double x)
{
    return 0.79788456080286536 * (x + 0.044715 * x * x * x);
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(tanh_argument(x)));
}

static double silu(double x) { return x / (1 + exp(-x)); }

static double slope(enum activation f, double x)
{
    if (f == ACTIVATION_GELU)
        return 0.5 * erfc(-x * M_SQRT1_2)
               + x * exp(-x * x / 2) * 0.39894228040143268;
    if (f == ACTIVATION_GELU_TANH) {
        const double t = tanh(tanh_argument(x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286536
                               * (1 + 0.134145 * x * x);
    }
    const double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}

/* A linear layer and what is asked of it. */
struct layer {
    int out, in, rows;
    const float *weight, *bias, *input;
    size_t stride;                     /* of the input */
};

static struct layer layer_of(uint64_t *state, int out, int in, int rows)
{
    const size_t stride = (size_t)in + 3;
    return (struct layer){
        out, in, rows, random_floats(state, (size_t)out * (size_t)in),
        random_floats(state, (size_t)out),
        random_floats(state, (size_t)rows * stride + 1) + 1, stride};
}

static struct matrix rows_of(const struct layer *layer)
{
    return matrix_of_rows(layer->weight, layer->bias, layer->out, layer->in);
}

static struct matrix packed(const struct layer *layer, enum matrix_type type)
{
    size_t bytes, scales;
    ck_assert(matrix_packed_sizes(layer->out, layer->in, type, &bytes,
                                  &scales));
    return matrix_pack(layer->weight, layer->bias, layer->out, layer->in,
                       type, room((bytes + 3) / 4), room(scales / 4 + 1));
}

/* Output r,o in double, and the sum of magnitudes that its error depends on. */
static double exact_output(const struct layer *layer, int r, int o,
                           double *size)
{
    const float *w = layer->weight + (size_t)o * (size_t)layer->in;
    const float *x = layer->input + (size_t)r * layer->stride;
    double sum = layer->bias == NULL ? 0 : layer->bias[o];
    *size = fabs(sum);
    for (int k = 0; k < layer->in; k++) {
        sum += (double)w[k] * x[k];
        *size += fabs((double)w[k] * x[k]);
    }
    return sum;
}

/* What may become of it, and by how much it may be off: the bound of a chain
   of products, through a finish. */
static double exact_finish(enum finish finish, double y, double before,
                           double off, double *most)
{
    switch (finish) {
    case FINISH_STORE:
        *most = off;
        return y;
    case FINISH_ADD:
        *most = off + 2 * U * (fabs(before) + fabs(y));
        return before + y;
    case FINISH_GELU:
        *most = 1.13 * off + 10 * U * fabs(gelu(y)) + 1e-37;
        return gelu(y);
    case FINISH_GELU_TANH:
        *most = 1.13 * off + 6e-7 * fmax(1, fabs(y));
        return gelu_tanh(y);
    default:
        *most = fabs(silu(before)) * off + 4 * U * fabs(silu(before) * y);
        return silu(before) * y;
    }
}

enum { FINISHES = 5, TYPES = 3, FORMS = 4 };

/* Runs the layer on rows first … first + rows - 1 of its input, into an array
   whose rows have a guard of three floats behind them. */
static float *outputs(const struct kernels *k, const struct layer *layer,
                      const struct matrix *matrix, enum finish finish,
                      const float *before, int first, int rows)
{
    const size_t stride = (size_t)layer->out + 3;
    float *out = room((size_t)rows * stride);
    fill(out, (size_t)rows * stride, -77);
    for (int r = 0; r < rows; r++)
        memcpy(out + (size_t)r * stride,
               before + (size_t)(first + r) * (size_t)layer->out,
               (size_t)layer->out * sizeof *out);
    k->linear(matrix, layer->input + (size_t)first * layer->stride,
              layer->stride, rows, out, stride, finish);
    return out;
}

static void expect_layer(const struct kernels *k, const struct layer *layer,
                         const struct matrix *matrix, enum finish finish,
                         const float *before)
{
    const float *out = outputs(k, layer, matrix, finish, before, 0,
                               layer->rows);
    for (int r = 0; r < layer->rows; r++)
        for (int o = 0; o < layer->out; o++) {
            char what[96];
            double size, most;
            const double y = exact_output(layer, r, o, &size);
            const double want = exact_finish(finish, y,
                before[(size_t)r * (size_t)layer->out + (size_t)o],
                (layer->in + 2) * U * size, &most);
            snprintf(what, sizeof what, "%s, [%d,%d], %d rows, output %d,%d",
                     k->name, layer->out, layer->in, layer->rows, r, o);
            expect_near(what, out[(size_t)r * ((size_t)layer->out + 3)
                                  + (size_t)o], want, most);
        }
}

static void expect_same_outputs(const char *what, const struct layer *layer,
                                const float *a, const float *b, int rows)
{
    for (int r = 0; r < rows; r++)
        expect_same_bits(what, a + (size_t)r * ((size_t)layer->out + 3),
                         b + (size_t)r * ((size_t)layer->out + 3),
                         (size_t)layer->out * sizeof *a);
}

/* Every form of the weight in every table, against doubles and against each
   other. */
static void expect_forms(const struct layer *layer, enum finish finish)
{
    uint64_t state = noise_start(2100);
    const float *before = random_floats(&state, (size_t)layer->rows
                                                * (size_t)layer->out);
    EACH_TABLE(k) {
        const struct matrix rows = rows_of(layer);
        const struct matrix panels = packed(layer, MATRIX_F32);
        expect_layer(k, layer, &rows, finish, before);
        expect_same_outputs("panels and rows", layer,
            outputs(k, layer, &rows, finish, before, 0, layer->rows),
            outputs(k, layer, &panels, finish, before, 0, layer->rows),
            layer->rows);
    }
}

/* ------------------------------------------------------------------- matrices */

START_TEST(sixteen_bits_come_back_from_a_float)
{
    for (uint32_t high = 0; high < 65536; high++) {
        const float x = bf16_to_float((uint16_t)high);
        const uint32_t bits = high << 16;
        ck_assert_mem_eq(&x, &bits, sizeof x);
        if (!isnan(x))
            ck_assert_uint_eq(bf16_from_float(x), high);
    }
}
END_TEST

START_TEST(a_nan_stays_one_in_sixteen_bits)
{
    for (int bit = 0; bit < 23; bit++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            const uint32_t bits = sign << 31 | 0x7f800000u | 1u << bit;
            float x;
            memcpy(&x, &bits, sizeof x);
            ck_assert(isnan(bf16_to_float(bf16_from_float(x))));
        }
    const uint32_t full = 0x7fffffffu;
    float x;
    memcpy(&x, &full, sizeof x);
    ck_assert(isnan(bf16_to_float(bf16_from_float(x))));
}
END_TEST

START_TEST(a_float_becomes_the_nearest_of_sixteen_bits)
{
    uint64_t state = noise_start(2101);
    for (int round = 0; round < 20000; round++) {
        const uint32_t bits = (uint32_t)noise_next(&state) & 0xff7fffffu;
        float x;
        memcpy(&x, &bits, sizeof x);
        const uint32_t below = bits & 0xffff0000u;
        const uint32_t half = bits & 0xffffu;
        const bool up = half > 0x8000u
                        || (half == 0x8000u && (below >> 16 & 1));
        ck_assert_uint_eq(bf16_from_float(x),
                          (uint16_t)((below >> 16) + up));
    }
    ck_assert_uint_eq(bf16_from_float(1.00390625f), 0x3f80);  /* tie: even */
    ck_assert_uint_eq(bf16_from_float(1.01171875f), 0x3f82);
    ck_assert_uint_eq(bf16_from_float(FLT_MAX), 0x7f80);      /* infinity */
    ck_assert_uint_eq(bf16_from_float(-INFINITY), 0xff80);
}
END_TEST

START_TEST(panels_take_the_room_of_whole_panels)
{
    size_t data = 1, scales = 1;
    ck_assert(matrix_packed_sizes(33, 40, MATRIX_F32, &data, &scales));
    ck_assert_uint_eq(data, 64 * 40 * 4);
    ck_assert_uint_eq(scales, 0);
    ck_assert(matrix_packed_sizes(32, 40, MATRIX_BF16, &data, &scales));
    ck_assert_uint_eq(data, 32 * 40 * 2);
    ck_assert(matrix_packed_sizes(1, 33, MATRIX_INT8, &data, &scales));
    ck_assert_uint_eq(data, 32 * 36);
    ck_assert_uint_eq(scales, 32 * 2 * 4);
}
END_TEST

START_TEST(sizes_that_do_not_fit_are_refused)
{
    size_t data = 5, scales = 6;
    for (enum matrix_type t = MATRIX_F32; t <= MATRIX_INT8; t++) {
        ck_assert(!matrix_packed_sizes(0, 1, t, &data, &scales));
        ck_assert(!matrix_packed_sizes(1, 0, t, &data, &scales));
        ck_assert(!matrix_packed_sizes(-1, 1, t, &data, &scales));
    }
#if SIZE_MAX > 0xffffffff
    ck_assert(matrix_packed_sizes(INT_MAX, INT_MAX, MATRIX_BF16, &data,
                                  &scales));
    data = 5, scales = 6;
    ck_assert(!matrix_packed_sizes(INT_MAX, INT_MAX, MATRIX_F32, &data,
                                   &scales)
              || data == (size_t)INT_MAX * 4 * ((size_t)INT_MAX + 1));
#else
    ck_assert(!matrix_packed_sizes(INT_MAX, INT_MAX, MATRIX_INT8, &data,
                                   &scales));
    ck_assert_uint_eq(data, 5);
#endif
    data = 5;
    ck_assert(!matrix_packed_sizes(0, 1, MATRIX_F32, &data, &scales));
    ck_assert_uint_eq(data, 5);
}
END_TEST

START_TEST(a_panel_has_each_weight_in_its_place)
{
    uint64_t state = noise_start(2102);
    const struct layer layer = layer_of(&state, 71, 45, 1);
    const struct matrix m = packed(&layer, MATRIX_F32);
    const float *panels = m.data;
    ck_assert_int_eq(m.layout, MATRIX_PANELS);
    ck_assert_ptr_eq(m.bias, layer.bias);
    for (int o = 0; o < 96; o++)
        for (int i = 0; i < 45; i++)
            ck_assert_float_eq(panels[(o / 32 * 45 + i) * 32 + o % 32],
                               o < 71 ? layer.weight[o * 45 + i] : 0);
    release();
}
END_TEST

START_TEST(two_inputs_of_an_output_share_a_word)
{
    uint64_t state = noise_start(2136);
    const struct layer layer = layer_of(&state, 33, 45, 1);
    const struct matrix m = packed(&layer, MATRIX_BF16);
    const uint32_t *words = m.data;
    for (int o = 0; o < 64; o++)
        for (int i = 0; i < 46; i++)
            ck_assert_uint_eq(
                words[(o / 32 * 23 + i / 2) * 32 + o % 32] >> i % 2 * 16
                & 0xffff, o < 33 && i < 45
                ? bf16_from_float(layer.weight[o * 45 + i]) : 0);
    release();
}
END_TEST

START_TEST(an_int8_panel_has_the_codes_of_chapter_17)
{
    uint64_t state = noise_start(2103);
    const struct layer layer = layer_of(&state, 37, 75, 1);
    const struct matrix m = packed(&layer, MATRIX_INT8);
    const uint32_t *words = m.data;
    for (int o = 0; o < 37; o++)
        for (int first = 0; first < 75; first += 32) {
            const int count = 75 - first < 32 ? 75 - first : 32;
            const float *row = layer.weight + o * 75 + first;
            const float scale = int8_scale(row, count);
            int8_t want[32];
            int8_encode(row, count, scale, want);
            ck_assert_float_eq(m.scales[(o / 32 * 3 + first / 32) * 32
                                        + o % 32], scale);
            for (int i = 0; i < count; i++) {
                const uint32_t word = words[(o / 32 * 19 + (first + i) / 4)
                                            * 32 + o % 32];
                ck_assert_uint_eq(word >> i % 4 * 8 & 255,
                                  (uint8_t)want[i]);
            }
        }
    ck_assert_uint_eq(words[18 * 32] >> 24, 0);
    release();
}
END_TEST

START_TEST(a_weight_is_read_back_from_every_form)
{
    uint64_t state = noise_start(2104);
    const struct layer layer = layer_of(&state, 35, 70, 1);
    const struct matrix rows = rows_of(&layer);
    for (enum matrix_type t = MATRIX_F32; t <= MATRIX_INT8; t++) {
        const struct matrix m = packed(&layer, t);
        for (int o = 0; o < 35; o++)
            for (int i = 0; i < 70; i++) {
                const float w = layer.weight[o * 70 + i];
                ck_assert_float_eq(matrix_weight(&rows, o, i), w);
                expect_near("weight", matrix_weight(&m, o, i), w,
                            t == MATRIX_F32 ? 0 : t == MATRIX_BF16
                            ? 0x1p-9 : 1 / 253.9);
            }
    }
    release();
}
END_TEST

/* -------------------------------------------------------------------- choice */

START_TEST(tables_are_found_by_name)
{
    const int table_count = find_tables();
    ck_assert_int_ge(table_count, 2);
    ck_assert_str_eq(tables[table_count - 1]->name, "plain");
    ck_assert_str_eq(tables[table_count - 2]->name, "base");
    bool best = false;
    for (int i = 0; i < table_count; i++) {
        ck_assert_ptr_eq(kernels_named(tables[i]->name), tables[i]);
        best = best || kernels_best() == tables[i];
    }
    ck_assert(best);
    ck_assert_ptr_null(kernels_named("fastest"));
    ck_assert_ptr_null(kernels_named(""));
}
END_TEST

/* ------------------------------------------------------------ exp, activations */

enum { MANY = 4096 };

/* The next floats of a walk through all finite ones, every 3989th; 0: none */
static int next_floats(uint64_t *bits, float *x)
{
    int count = 0;
    for (; count < MANY && *bits <= UINT32_MAX; *bits += 3989) {
        const uint32_t now = (uint32_t)*bits;
        memcpy(x + count, &now, sizeof *x);
        count += isfinite(x[count]);
    }
    return count;
}

START_TEST(an_exponential_is_off_by_less_than_its_last_bit)
{
    EACH_TABLE(k) {
        float x[MANY], y[MANY];
        uint64_t bits = 0;
        for (int count; (count = next_floats(&bits, x)) > 0; ) {
            k->exponential(x, (size_t)count, y);
            for (int i = 0; i < count; i++) {
                const double want = exp(x[i]);
                if (isinf((float)want))
                    ck_assert(isinf(y[i]) && y[i] > 0);
                else
                    expect_near(k->name, y[i], want,
                                want < 0x1p-125 ? 0x1p-125 : 2 * U * want);
            }
        }
    }
}
END_TEST

START_TEST(exponentials_know_the_ends_of_the_range)
{
    EACH_TABLE(k) {
        const float x[] = {0, -0.0f, -INFINITY, INFINITY, NAN, 88.72f, 88.73f,
                           -3e38f, 3e38f};
        float y[9 + 32];    /* some behind, whatever happens there */
        k->exponential(x, 9, y);
        ck_assert_float_eq(y[0], 1);
        ck_assert_float_eq(y[1], 1);
        ck_assert_float_eq(y[2], 0);
        ck_assert(isinf(y[3]));
        ck_assert(isnan(y[4]));
        expect_near(k->name, y[5], exp(88.72f), 2 * U * exp(88.72f));
        ck_assert(isinf(y[6]));
        ck_assert_float_eq(y[7], 0);
        ck_assert(isinf(y[8]));
    }
}
END_TEST

/* The plain loops round the argument of exp and of erfcf as they please. */
static double units(const struct kernels *k, double fast, double plain)
{
    return (k == &kernels_plain ? plain : fast) * 2 * U;
}

START_TEST(the_exact_gelu_keeps_its_digits_on_both_sides)
{
    EACH_TABLE(k) {
        float x[MANY], y[MANY];
        uint64_t bits = 0;
        for (int count; (count = next_floats(&bits, x)) > 0; ) {
            k->activate(ACTIVATION_GELU, x, (size_t)count, y);
            for (int i = 0; i < count; i++) {
                const double want = gelu(x[i]);
                expect_near(k->name, y[i], want,
                            1e-36 + units(k, 5, 200) * fabs(want));
            }
        }
    }
}
END_TEST

START_TEST(the_gated_activations_are_close_everywhere)
{
    EACH_TABLE(k) {
        float x[MANY], y[MANY], z[MANY];
        uint64_t bits = 0;
        for (int count; (count = next_floats(&bits, x)) > 0; ) {
            k->activate(ACTIVATION_GELU_TANH, x, (size_t)count, y);
            k->activate(ACTIVATION_SILU, x, (size_t)count, z);
            for (int i = 0; i < count; i++) {
                const double size = fabs((double)x[i]);
                if (size > 1e12)
                    continue;
                expect_near(k->name, y[i], gelu_tanh(x[i]),
                            1e-36 + 3 * U * size);
                expect_near(k->name, z[i], silu(x[i]),
                            1e-36 + 4 * U * fabs(silu(x[i])));
            }
        }
    }
}
END_TEST

START_TEST(slopes_are_close_everywhere)
{
    float one[MANY];
    fill(one, MANY, 1);
    EACH_TABLE(k)
        for (enum activation f = ACTIVATION_GELU; f <= ACTIVATION_SILU; f++) {
            float x[MANY], d[MANY];
            uint64_t bits = 0;
            for (int count; (count = next_floats(&bits, x)) > 0; ) {
                fill(d, MANY, 0);
                k->activate_backward(f, x, one, (size_t)count, d);
                for (int i = 0; i < count; i++)
                    if (fabsf(x[i]) < 1e12f)
                        expect_near(k->name, d[i], slope(f, x[i]), 3e-7);
                    else if (k != &kernels_plain)
                        ck_assert_float_eq(d[i], x[i] > 0);
            }
        }
}
END_TEST

START_TEST(an_array_ends_where_it_ends)
{
    uint64_t state = noise_start(2105);
    EACH_TABLE(k)
        for (size_t count = 0; count < 70; count++) {
            const float *x = random_floats(&state, count + 1) + 1;
            float *y = room(count + 3);
            fill(y, count + 3, -77);
            k->activate(ACTIVATION_SILU, x, count, y);
            for (size_t i = 0; i < count; i++)
                expect_near(k->name, y[i], silu(x[i]), 1e-6);
            ck_assert_float_eq(y[count], -77);
            fill(y, count, 2);
            k->activate_backward(ACTIVATION_SILU, x, x, count, y);
            for (size_t i = 0; i < count; i++)
                expect_near(k->name, y[i],
                            2 + x[i] * slope(ACTIVATION_SILU, x[i]), 1e-6);
            ck_assert_float_eq(y[count], -77);
            k->exponential(x, count, y);
            for (size_t i = 0; i < count; i++)
                expect_near(k->name, y[i], exp(x[i]), 1e-6);
            ck_assert_float_eq(y[count], -77);
            ck_assert_float_eq(y[count + 2], -77);
            release();
        }
}
END_TEST

/* -------------------------------------------------------------- linear layers */

static const int out_edges[] = {1, 31, 32, 33, 63, 64, 65, 95, 97, 127, 128,
                                129, 160, 383, 384, 385, 767, 768, 769};
static const int in_edges[] = {1, 2, 3, 4, 5, 31, 32, 33, 63, 65, 255, 256,
                               257, 767, 768, 769, 1537,
                               /* 3 less than a multiple of 512 is a stride
                                  whose rows are copied */
                               509, 1533};
static const int row_edges[] = {1, 2, 5, 6, 7, 11, 12, 13, 23, 24, 25, 95, 96,
                                97, 263, 264, 265};

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

START_TEST(nothing_is_written_behind_the_last_output)
{
    uint64_t state = noise_start(2106);
    for (size_t e = 0; e < COUNT(out_edges); e++)
        for (int rows = 1; rows <= 13; rows += 6) {
            const struct layer layer = layer_of(&state, out_edges[e], 9,
                                                rows);
            const size_t stride = (size_t)layer.out + 3;
            const float *before = random_floats(&state, (size_t)rows * stride);
            EACH_TABLE(k)
                for (int form = 0; form < FORMS; form++) {
                    const struct matrix m = form == 0 ? rows_of(&layer)
                        : packed(&layer, (enum matrix_type)(form - 1));
                    const float *out = outputs(k, &layer, &m, FINISH_STORE,
                                               before, 0, rows);
                    for (int r = 0; r < rows; r++)
                        for (size_t i = stride - 3; i < stride; i++)
                            ck_assert_float_eq(out[(size_t)r * stride + i],
                                               -77);
                }
            release();
        }
}
END_TEST

START_TEST(a_row_takes_every_panel)
{
    uint64_t state = noise_start(2107);
    for (size_t e = 0; e < COUNT(out_edges); e++) {
        const struct layer layer = layer_of(&state, out_edges[e], 12, 1);
        EACH_TABLE(k) {
            const struct matrix m = packed(&layer, MATRIX_F32);
            expect_layer(k, &layer, &m, FINISH_STORE, layer.bias);
        }
        release();
    }
}
END_TEST

START_TEST(sums_go_on_through_blocks_of_inputs)
{
    uint64_t state = noise_start(2108);
    for (size_t e = 0; e < COUNT(in_edges); e++) {
        const struct layer layer = layer_of(&state, 37, in_edges[e], 14);
        expect_forms(&layer, FINISH_STORE);
        release();
    }
}
END_TEST

/* The matrix of floats that the panels stand for. */
static struct matrix meant(const struct matrix *m)
{
    float *weight = room((size_t)m->out * (size_t)m->in);
    for (int o = 0; o < m->out; o++)
        for (int i = 0; i < m->in; i++)
            weight[(size_t)o * (size_t)m->in + (size_t)i]
                = matrix_weight(m, o, i);
    return matrix_of_rows(weight, m->bias, m->out, m->in);
}

static const int few_bits[][3] = {{1, 1, 1}, {33, 31, 1}, {129, 65, 1},
    {257, 129, 1}, {70, 385, 2}, {31, 97, 12}, {65, 770, 13}, {300, 40, 25}};

START_TEST(sixteen_bits_compute_with_the_floats_that_they_mean)
{
    uint64_t state = noise_start(2109);
    for (size_t s = 0; s < COUNT(few_bits); s++) {
        const struct layer layer = layer_of(&state, few_bits[s][0],
                                            few_bits[s][1], few_bits[s][2]);
        const float *before = random_floats(&state, (size_t)layer.rows
                                                    * (size_t)layer.out);
        EACH_TABLE(k) {
            const struct matrix m = packed(&layer, MATRIX_BF16);
            const struct matrix w = meant(&m);
            expect_same_outputs(k->name, &layer,
                outputs(k, &layer, &m, FINISH_ADD, before, 0, layer.rows),
                outputs(k, &layer, &w, FINISH_ADD, before, 0, layer.rows),
                layer.rows);
        }
        release();
    }
}
END_TEST

START_TEST(each_group_of_eight_bits_has_its_scales)
{
    uint64_t state = noise_start(2129);
    for (size_t s = 0; s < COUNT(few_bits); s++) {
        struct layer layer = layer_of(&state, few_bits[s][0], few_bits[s][1],
                                      few_bits[s][2]);
        float *weight = copy_of(layer.weight, (size_t)layer.out
                                              * (size_t)layer.in);
        for (int k = 0; k < layer.out * layer.in; k++)
            weight[k] *= (float)(1 + k % layer.in / 32);
        layer.weight = weight;
        const float *before = random_floats(&state, (size_t)layer.rows
                                                    * (size_t)layer.out);
        EACH_TABLE(k) {
            const struct matrix m = packed(&layer, MATRIX_INT8);
            struct layer codes = layer;
            codes.weight = meant(&m).data;
            expect_layer(k, &codes, &m, FINISH_ADD, before);
        }
        release();
    }
}
END_TEST

START_TEST(outputs_of_any_number_agree_with_doubles)
{
    uint64_t state = noise_start(2110);
    for (size_t e = 0; e < COUNT(out_edges); e++)
        for (int rows = 1; rows <= 15; rows += 7) {
            const struct layer layer = layer_of(&state, out_edges[e], 34,
                                                rows);
            expect_forms(&layer, FINISH_STORE);
            release();
        }
}
END_TEST

START_TEST(rows_of_any_number_agree_with_doubles)
{
    uint64_t state = noise_start(2111);
    for (size_t e = 0; e < COUNT(row_edges); e++) {
        const struct layer layer = layer_of(&state, 41, 21, row_edges[e]);
        expect_forms(&layer, FINISH_STORE);
        release();
    }
}
END_TEST

START_TEST(outputs_are_finished_as_they_should_be)
{
    uint64_t state = noise_start(2112);
    for (int f = 0; f < FINISHES; f++)
        for (int rows = 1; rows <= 26; rows += 5) {
            struct layer layer = layer_of(&state, 45, 50, rows);
            expect_forms(&layer, (enum finish)f);
            layer.bias = NULL;
            expect_forms(&layer, (enum finish)f);
            release();
        }
}
END_TEST

START_TEST(a_long_sum_stays_within_its_bound)
{
    uint64_t state = noise_start(2113);
    for (int in = 4095; in <= 4097; in++)
        for (int rows = 1; rows <= 14; rows += 13) {
            struct layer layer = layer_of(&state, 3, in, rows);
            float *positive = copy_of(layer.weight, (size_t)in * 3);
            for (int k = 0; k < in * 3; k++)
                positive[k] = fabsf(positive[k]) + 1;
            layer.weight = positive;
            expect_forms(&layer, FINISH_STORE);
            release();
        }
}
END_TEST

START_TEST(a_row_has_the_same_bits_alone_and_among_others)
{
    uint64_t state = noise_start(2114);
    static const int sizes[][3] = {{45, 400, 29}, {131, 33, 13}, {64, 770, 3}};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        const struct layer layer = layer_of(&state, sizes[s][0], sizes[s][1],
                                            sizes[s][2]);
        const float *before = random_floats(&state, (size_t)layer.rows
                                                    * (size_t)layer.out);
        EACH_TABLE(k)
            for (int form = 0; form < FORMS; form++) {
                const struct matrix m = form == 0 ? rows_of(&layer)
                    : packed(&layer, (enum matrix_type)(form - 1));
                const float *all = outputs(k, &layer, &m, FINISH_GELU, before,
                                           0, layer.rows);
                for (int r = 0; r < layer.rows; r++) {
                    expect_same_outputs(k->name, &layer,
                        outputs(k, &layer, &m, FINISH_GELU, before, r, 1),
                        all + (size_t)r * ((size_t)layer.out + 3), 1);
                    free(held[--held_count]);
                }
            }
        release();
    }
}
END_TEST

START_TEST(what_is_no_number_stays_in_its_row_and_its_output)
{
    uint64_t state = noise_start(2115);
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int rows = 1; rows <= 14; rows += 13)
        for (int c = 0; c < 3; c++) {
            struct layer layer = layer_of(&state, 50, 40, rows);
            const float *before = random_floats(&state, (size_t)rows * 50);
            float *input = copy_of(layer.input, (size_t)rows * layer.stride);
            float *weight = copy_of(layer.weight, 50 * 40);
            const struct layer clean = layer;
            layer.input = input;
            layer.weight = weight;
            input[(size_t)(rows / 2) * layer.stride + 39] = strange[c];
            weight[49 * 40 + 3] = strange[c];
            EACH_TABLE(k)
                for (int form = 0; form < 3; form++) {
                    const struct matrix m = form == 0 ? rows_of(&layer)
                        : packed(&layer, (enum matrix_type)(form - 1));
                    const struct matrix w = form == 0 ? rows_of(&clean)
                        : packed(&clean, (enum matrix_type)(form - 1));
                    const float *got = outputs(k, &layer, &m, FINISH_STORE,
                                               before, 0, rows);
                    const float *want = outputs(k, &clean, &w, FINISH_STORE,
                                                before, 0, rows);
                    for (int r = 0; r < rows; r++)
                        for (int o = 0; o < 50; o++)
                            if (r == rows / 2 || o == 49)
                                ck_assert(!isfinite(got[r * 53 + o]));
                            else
                                ck_assert_float_eq(got[r * 53 + o],
                                                   want[r * 53 + o]);
                }
            release();
        }
}
END_TEST

/* -------------------------------------------------------------------- threads */

static const int teams[] = {1, 2, 5};

START_TEST(no_number_of_threads_changes_a_layer)
{
    uint64_t state = noise_start(2116);
    static const int sizes[][3] = {{600, 301, 1}, {600, 301, 5},
        {300, 400, 40}, {70, 420, 400}};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        const struct layer layer = layer_of(&state, sizes[s][0], sizes[s][1],
                                            sizes[s][2]);
        const float *before = random_floats(&state, (size_t)layer.rows
                                                    * (size_t)layer.out);
        EACH_TABLE(k) {
            const bool plain = k == &kernels_plain;    /* slow */
            for (int form = 0; form < FORMS; form++) {
                const int marked = held_count;
                const struct matrix m = form == 0 ? rows_of(&layer)
                    : packed(&layer, (enum matrix_type)(form - 1));
                const float *first = NULL;
                for (int again = 0; again < (plain ? 3 : 6); again++) {
                    omp_set_num_threads(teams[again % 3]);
                    const float *out = outputs(k, &layer, &m, FINISH_ADD,
                                               before, 0, layer.rows);
                    first = first == NULL ? out : first;
                    expect_same_outputs(k->name, &layer, out, first,
                                        layer.rows);
                }
                while (held_count > marked)
                    free(held[--held_count]);
            }
        }
        release();
    }
    omp_set_num_threads(1);
}
END_TEST

START_TEST(no_number_of_threads_changes_a_product)
{
    uint64_t state = noise_start(2117);
    enum { m = 230, n = 101, k = 70 };
    const float *a = random_floats(&state, m * k);
    const float *b = random_floats(&state, n * k);
    EACH_TABLE(t)
        for (int turns = 0; turns < 4; turns++) {
            float *c[6];
            for (int again = 0; again < 6; again++) {
                c[again] = room(m * n);
                fill(c[again], m * n, 0.5f);
                const struct product product = {m, n, k, a, b,
                    (size_t)(turns & 1 ? m : k), (size_t)(turns & 2 ? k : n),
                    turns & 1, turns & 2, true, c[again], n};
                omp_set_num_threads(teams[again % 3]);
                t->product(&product);
                expect_same_bits(t->name, c[again], c[0],
                                 sizeof (float) * m * n);
            }
        }
    omp_set_num_threads(1);
    release();
}
END_TEST

/* ------------------------------------------------------------------- products */

/* C = A·B of every turn and both ways, against doubles. */
static void expect_product(uint64_t *state, int m, int n, int k)
{
    const size_t a_stride = (size_t)(m > k ? m : k) + 2;
    const size_t b_stride = (size_t)(n > k ? n : k) + 1;
    const size_t c_stride = (size_t)n + 3, most = (size_t)(m > k ? m : k);
    const float *a = random_floats(state, most * a_stride);
    const float *b = random_floats(state, (size_t)(n > k ? n : k) * b_stride);
    const float *c0 = random_floats(state, (size_t)m * c_stride);
    EACH_TABLE(t)
        for (int way = 0; way < 8; way++) {
            float *c = copy_of(c0, (size_t)m * c_stride);
            const struct product product = {m, n, k, a, b, a_stride, b_stride,
                way & 1, way & 2, way & 4, c, c_stride};
            t->product(&product);
            for (int i = 0; i < m; i++)
                for (int j = 0; j < (int)c_stride; j++) {
                    const size_t at = (size_t)i * c_stride + (size_t)j;
                    double sum = way & 4 ? c0[at] : 0, size = fabs(sum);
                    for (int x = 0; x < k && j < n; x++) {
                        const double p = (double)
                            a[way & 1 ? (size_t)x * a_stride + (size_t)i
                                      : (size_t)i * a_stride + (size_t)x]
                            * b[way & 2 ? (size_t)j * b_stride + (size_t)x
                                        : (size_t)x * b_stride + (size_t)j];
                        sum += p;
                        size += fabs(p);
                    }
                    if (j < n)
                        expect_near(t->name, c[at], sum, (k + 1) * U * size);
                    else
                        ck_assert_float_eq(c[at], c0[at]);
                }
            free(held[--held_count]);
        }
    release();
}

START_TEST(products_of_every_turn_agree_with_doubles)
{
    uint64_t state = noise_start(2118);
    static const int edges[] = {1, 2, 11, 12, 13, 31, 32, 33, 65};
    for (size_t e = 0; e < COUNT(edges); e++) {
        const int size = edges[e];
        expect_product(&state, size, 35, 9);
        expect_product(&state, 7, size, 9);
        expect_product(&state, 7, 35, size);
    }
    expect_product(&state, 14, 34, 383);
    expect_product(&state, 14, 34, 385);
    expect_product(&state, 14, 34, 769);
    expect_product(&state, 263, 5, 10);
    expect_product(&state, 265, 5, 10);
    expect_product(&state, 5, 767, 10);
    expect_product(&state, 5, 769, 10);
}
END_TEST

START_TEST(an_empty_product_is_zero_or_changes_nothing)
{
    EACH_TABLE(t) {
        float c[6] = {1, 2, 3, 4, 5, 6};
        struct product product = {2, 2, 0, c, c, 0, 0, false, false, true, c,
                                  3};
        t->product(&product);
        ck_assert_float_eq(c[0], 1);
        product.add = false;
        t->product(&product);
        ck_assert_float_eq(c[0], 0);
        ck_assert_float_eq(c[1], 0);
        ck_assert_float_eq(c[2], 3);
        ck_assert_float_eq(c[4], 0);
        ck_assert_float_eq(c[5], 6);
        product.m = 0;
        c[0] = 1;
        t->product(&product);
        ck_assert_float_eq(c[0], 1);
    }
}
END_TEST

/* ---------------------------------------------------------------------- norms */

static const int widths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65,
                             100, 769};

/* Rows of noise · scale + shift, against doubles. */
static void expect_norms(uint64_t *state, int rows, int width, float shift,
                         float scale, double eps)
{
    const size_t count = (size_t)rows * (size_t)width;
    float *x = random_floats(state, count + 1) + 1;
    const float *w = random_floats(state, (size_t)width);
    const float *b = random_floats(state, (size_t)width);
    for (size_t i = 0; i < count; i++)
        x[i] = x[i] * scale + shift;
    EACH_TABLE(k) {
        float *layer = room(count + 2) + 1, *rms = copy_of(x, count);
        layer[-1] = layer[count] = -77;
        k->layer_norm(x, rows, width, w, b, eps, layer);
        k->rms_norm(rms, rows, width, w, eps, rms);
        ck_assert_float_eq(layer[-1], -77);
        ck_assert_float_eq(layer[count], -77);
        for (int r = 0; r < rows; r++) {
            const float *row = x + r * width;
            double mean = 0, variance = 0, square = 0;
            for (int i = 0; i < width; i++)
                mean += (double)row[i] / width;
            for (int i = 0; i < width; i++) {
                variance += (row[i] - mean) * (row[i] - mean) / width;
                square += (double)row[i] * row[i] / width;
            }
            for (int i = 0; i < width; i++) {
                const double n = (row[i] - mean) / sqrt(variance + eps);
                const double m = row[i] / sqrt(square + eps);
                expect_near(k->name, layer[r * width + i], n * w[i] + b[i],
                            4 * U * (fabs(n * w[i]) + fabs(b[i])) + 1e-12);
                expect_near(k->name, rms[r * width + i], m * w[i],
                            4 * U * fabs(m * w[i]));
            }
        }
    }
    release();
}

START_TEST(a_norm_subtracts_without_rounding)
{
    uint64_t state = noise_start(2119);
    for (size_t e = 3; e < COUNT(widths); e++)
        expect_norms(&state, 2, widths[e], 10000, 2, 1e-5);
}
END_TEST

START_TEST(norms_of_any_width_agree_with_doubles)
{
    uint64_t state = noise_start(2120);
    for (size_t e = 0; e < COUNT(widths); e++) {
        expect_norms(&state, 3, widths[e], 0, 1, 1e-5);
        expect_norms(&state, 1, widths[e], 0.5f, 1e-4f, 1e-6);
    }
}
END_TEST

START_TEST(a_quiet_row_becomes_the_bias)
{
    float x[37], y[37], w[37], b[37];
    uint64_t state = noise_start(2121);
    noise_floats(&state, 37, w);
    noise_floats(&state, 37, b);
    EACH_TABLE(k) {
        fill(x, 37, 3);
        k->layer_norm(x, 1, 37, w, b, 1e-5, y);
        for (int i = 0; i < 37; i++)
            ck_assert_float_eq(y[i], b[i]);
        fill(x, 37, 0);
        k->rms_norm(x, 1, 37, w, 1e-5, y);
        for (int i = 0; i < 37; i++)
            ck_assert_float_eq(y[i], 0);
    }
}
END_TEST

START_TEST(no_number_of_threads_changes_a_norm)
{
    uint64_t state = noise_start(2122);
    const int rows = 41, width = 601;
    const size_t count = (size_t)rows * (size_t)width;
    const float *x = random_floats(&state, count);
    const float *w = random_floats(&state, (size_t)width);
    EACH_TABLE(k) {
        float *layer[6], *rms[6];
        for (int again = 0; again < 6; again++) {
            layer[again] = room(count);
            rms[again] = room(count);
            omp_set_num_threads(teams[again % 3]);
            k->layer_norm(x, rows, width, w, w, 1e-5, layer[again]);
            k->rms_norm(x, rows, width, w, 1e-5, rms[again]);
            expect_same_bits(k->name, layer[again], layer[0], count * 4);
            expect_same_bits(k->name, rms[again], rms[0], count * 4);
        }
        k->layer_norm(x, 1, width, w, w, 1e-5, layer[1]);
        expect_same_bits(k->name, layer[1], layer[0], (size_t)width * 4);
    }
    omp_set_num_threads(1);
    release();
}
END_TEST

/* ------------------------------------------------------------------ attention */

/* One row of a batch with its arrays; slots has some behind the last. */
struct scene {
    int heads, kv_heads, dim, tokens, length, slots;
    float *query, *key, *value;
    struct attention_call call;    /* without context */
};

/* Strides are odd on purpose; behind each length there is poison. */
static struct scene scene_of(uint64_t *state, int heads, int kv_heads, int dim,
                             int tokens, int length)
{
    struct scene s = {.heads = heads, .kv_heads = kv_heads, .dim = dim,
                      .tokens = tokens, .length = length,
                      .slots = length + tokens + 5};
    const bool apart = noise_below(state, 2);
    const size_t d = (size_t)dim, slot = d + (apart ? 3 : 0);
    const size_t head = slot * (size_t)s.slots + 7;
    const size_t token = d * (size_t)heads + 5;
    s.query = random_floats(state, token * (size_t)tokens);
    s.key = random_floats(state, head * (size_t)kv_heads);
    s.value = random_floats(state, head * (size_t)kv_heads);
    for (int h = 0; h < kv_heads; h++)
        for (int j = length + tokens; j < s.slots; j++)
            for (size_t i = 0; i < slot; i++) {
                s.key[(size_t)h * head + (size_t)j * slot + i] = NAN;
                s.value[(size_t)h * head + (size_t)j * slot + i] = INFINITY;
            }
    s.call = (struct attention_call){
        .heads = heads, .kv_heads = kv_heads, .head_dim = dim,
        .tokens = tokens, .length = length, .query = s.query,
        .query_token = token, .query_head = d, .key = s.key,
        .value = s.value, .slot_stride = slot, .head_stride = head,
        .context_token = d * (size_t)heads, .context_head = d};
    return s;
}

static size_t context_size(const struct scene *s)
{
    return (size_t)s->tokens * (size_t)s->heads * (size_t)s->dim;
}

static float *attended(const struct kernels *k, const struct scene *s)
{
    float *context = room(context_size(s) + 1);
    context[context_size(s)] = -77;
    struct attention_call call = s->call;
    call.context = context;
    k->attention(&call, 1);
    ck_assert_float_eq(context[context_size(s)], -77);
    return context;
}

/* Scores and softmax of query t of head h in double: weights [length + t + 1]
   that sum to 1, and the error that a score may have. */
static void exact_weights(const struct scene *s, int t, int h,
                          double *weights, double *off)
{
    const struct attention_call *c = &s->call;
    const float *q = c->query + (size_t)t * c->query_token
                     + (size_t)h * c->query_head;
    const float *key = c->key + (size_t)(h / (s->heads / s->kv_heads))
                                * c->head_stride;
    const int seen = s->length + t + 1;
    double max = -INFINITY, sum = 0, largest = 0;
    *off = 0;
    for (int j = 0; j < seen; j++) {
        double score = 0, size = 0;
        for (int i = 0; i < s->dim; i++) {
            const double p = (double)q[i]
                             * key[(size_t)j * c->slot_stride + (size_t)i];
            score += p;
            size += fabs(p);
        }
        weights[j] = score / sqrt(s->dim);
        max = fmax(max, weights[j]);
        if (isfinite(size)) {
            *off = fmax(*off, (s->dim + 4) * U * size / sqrt(s->dim));
            largest = fmax(largest, fabs(weights[j]));
        }
    }
    *off += 2 * U * largest;
    for (int j = 0; j < seen; j++)
        sum += weights[j] = exp(weights[j] - max);
    for (int j = 0; j < seen; j++)
        weights[j] /= sum;
}

static void expect_attention(const struct kernels *k, const struct scene *s)
{
    const struct attention_call *c = &s->call;
    const float *context = attended(k, s);
    double *weights = malloc(sizeof *weights
                             * (size_t)(s->length + s->tokens));
    for (int t = 0; t < s->tokens; t++)
        for (int h = 0; h < s->heads; h++) {
            double off;
            exact_weights(s, t, h, weights, &off);
            const int seen = s->length + t + 1;
            const float *value = c->value
                + (size_t)(h / (s->heads / s->kv_heads)) * c->head_stride;
            for (int i = 0; i < s->dim; i++) {
                char what[80];
                double sum = 0, size = 0;
                for (int j = 0; j < seen; j++) {
                    const double v = weights[j]
                        * value[(size_t)j * c->slot_stride + (size_t)i];
                    sum += weights[j] > 0 ? v : 0;
                    size += weights[j] > 0 ? fabs(v) : 0;
                }
                snprintf(what, sizeof what, "%s, D = %d, %d after %d, %d,%d,%d",
                         k->name, s->dim, s->tokens, s->length, t, h, i);
                expect_near(what, context[((size_t)t * (size_t)s->heads
                    + (size_t)h) * (size_t)s->dim + (size_t)i], sum,
                    (2 * off + (seen + 24) * U) * size + 2 * off * 1e-3
                    + 1e-37);
            }
        }
    free(weights);
}

START_TEST(heads_of_a_group_share_their_own_keys)
{
    uint64_t state = noise_start(2123);
    static const int heads[][2] = {{1, 1}, {4, 4}, {4, 2}, {6, 2}, {6, 1},
                                   {12, 3}};
    for (size_t g = 0; g < COUNT(heads); g++) {
        const struct scene s = scene_of(&state, heads[g][0], heads[g][1], 10,
                                        3, 4);
        EACH_TABLE(k)
            expect_attention(k, &s);
        release();
    }
}
END_TEST

START_TEST(a_query_does_not_see_what_comes_later)
{
    uint64_t state = noise_start(2124);
    for (int tokens = 2; tokens <= 60; tokens += 19) {
        const struct scene s = scene_of(&state, 2, 1, 12, tokens, 3);
        EACH_TABLE(k)
            expect_attention(k, &s);
        release();
    }
}
END_TEST

/* Of the queries that see a multiple of sixteen slots, since for the others
   there is another mechanism. The next score is always far above. */
START_TEST(a_hidden_score_of_any_size_weighs_nothing)
{
    uint64_t state = noise_start(2125);
    enum { TOKENS = 60 };
    struct scene s = scene_of(&state, 1, 1, 2, TOKENS, 0);
    for (int t = 0; t < TOKENS; t++) {
        float *q = s.query + (size_t)t * s.call.query_token;
        float *key = s.key + (size_t)t * s.call.slot_stride;
        q[0] = 1;
        key[0] = 300 * (float)t;
        q[1] = key[1] = 0;
    }
    EACH_TABLE(k) {
        const float *context = attended(k, &s);
        for (int t = 15; t < TOKENS; t += 16)
            for (int i = 0; i < 2; i++)
                ck_assert_float_eq(context[t * 2 + i],
                    s.value[(size_t)t * s.call.slot_stride + (size_t)i]);
    }
    release();
}
END_TEST

START_TEST(a_larger_score_scales_down_what_was_there)
{
    uint64_t state = noise_start(2126);
    for (int sign = -1; sign <= 1; sign += 2) {
        struct scene s = scene_of(&state, 2, 2, 33, 4, 300);
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < 304; j++) {
                float *key = s.key + (size_t)h * s.call.head_stride
                             + (size_t)j * s.call.slot_stride;
                key[0] = (float)(sign * j) * 0.3f;
            }
        for (int t = 0; t < 4; t++)
            s.query[(size_t)t * s.call.query_token] = 1.5f;
        EACH_TABLE(k)
            expect_attention(k, &s);
        release();
    }
}
END_TEST

START_TEST(a_score_of_minus_infinity_weighs_nothing)
{
    uint64_t state = noise_start(2127);
    struct scene s = scene_of(&state, 1, 1, 2, 1, 200);
    for (int j = 0; j < 200; j++)
        if (j < 64 || j % 3 == 0)
            s.key[(size_t)j * s.call.slot_stride] = -INFINITY;
    s.query[0] = 1;
    EACH_TABLE(k)
        expect_attention(k, &s);
    release();
}
END_TEST

START_TEST(equal_scores_weigh_alike)
{
    uint64_t state = noise_start(2128);
    struct scene s = scene_of(&state, 2, 1, 5, 2, 131);
    for (size_t i = 0; i < s.call.query_token * 2; i++)
        s.query[i] = 0;
    EACH_TABLE(k)
        expect_attention(k, &s);
    release();
}
END_TEST

START_TEST(huge_scores_do_not_overflow)
{
    uint64_t state = noise_start(2129);
    struct scene s = scene_of(&state, 2, 1, 8, 40, 60);
    for (size_t i = 0; i < s.call.query_token * 40; i++)
        s.query[i] *= 1e18f;
    for (int j = 0; j < 100; j++)
        for (int i = 0; i < 8; i++)
            s.key[(size_t)j * s.call.slot_stride + (size_t)i]
                = i == j % 8 ? 1e18f : 0;
    EACH_TABLE(k) {
        const float *context = attended(k, &s);
        for (size_t i = 0; i < context_size(&s); i++)
            ck_assert(fabsf(context[i]) <= 1.0001f);
    }
    release();
}
END_TEST

START_TEST(poison_in_a_later_slot_reaches_no_earlier_query)
{
    uint64_t state = noise_start(2130);
    for (int c = 0; c < 2; c++) {
        struct scene s = scene_of(&state, 4, 2, 20, 90, 11);
        const struct scene clean = s;
        const size_t bad = 11 + 47, slot = s.call.slot_stride;
        s.key = copy_of(s.key, s.call.head_stride * 2);
        s.value = copy_of(s.value, s.call.head_stride * 2);
        s.call.key = s.key;
        s.call.value = s.value;
        s.value[bad * slot + 7] = c ? INFINITY : NAN;
        s.key[s.call.head_stride + bad * slot + 2] = NAN;
        EACH_TABLE(k) {
            const float *want = attended(k, &clean);
            const float *got = attended(k, &s);
            for (int t = 0; t < 90; t++)
                for (int h = 0; h < 4; h++)
                    for (int i = 0; i < 20; i++) {
                        const int at = (t * 4 + h) * 20 + i;
                        if (t >= 47 && (h >= 2 || i == 7))
                            ck_assert(!isfinite(got[at]));
                        else
                            ck_assert_float_eq(got[at], want[at]);
                    }
        }
        release();
    }
}
END_TEST

START_TEST(pieces_of_a_call_have_the_bits_of_the_whole)
{
    uint64_t state = noise_start(2131);
    static const int dims[] = {10, 64, 70};
    for (int d = 0; d < 3; d++)
        for (int length = 0; length <= 90; length += 45) {
            const struct scene s = scene_of(&state, 6, 2, dims[d], 75, length);
            const size_t token = (size_t)(6 * dims[d]);
            EACH_TABLE(k) {
                const float *whole = attended(k, &s);
                for (int first = 0, count; first < 75; first += count) {
                    count = 1 + noise_below(&state, 75 - first);
                    struct scene piece = s;
                    piece.tokens = piece.call.tokens = count;
                    piece.call.length = length + first;
                    piece.call.query += (size_t)first * s.call.query_token;
                    const float *got = attended(k, &piece);
                    expect_same_bits(k->name, got,
                                     whole + (size_t)first * token,
                                     context_size(&piece) * sizeof *got);
                    free(held[--held_count]);
                }
            }
            release();
        }
}
END_TEST

START_TEST(attention_of_any_width_and_place_agrees_with_doubles)
{
    uint64_t state = noise_start(2132);
    static const int dims[] = {1, 2, 10, 33, 64, 65, 128, 256, 300};
    static const int places[][3] = {    /* group, tokens, length */
        {1, 1, 0}, {1, 1, 62}, {1, 1, 63}, {1, 1, 64}, {3, 1, 127},
        {3, 1, 129}, {2, 47, 0}, {2, 48, 17}, {2, 49, 1}, {1, 13, 60},
        {6, 2, 190}};
    for (size_t p = 0; p < COUNT(places); p++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            if ((p + d) % 3 != 0 && places[p][1] > 20)
                continue;
            const struct scene s = scene_of(&state, places[p][0], 1, dims[d],
                                            places[p][1], places[p][2]);
            EACH_TABLE(k)
                expect_attention(k, &s);
            release();
        }
}
END_TEST

START_TEST(no_number_of_threads_and_no_neighbour_changes_a_context)
{
    uint64_t state = noise_start(2133);
    enum { CALLS = 3 };
    struct scene s[CALLS];
    struct attention_call calls[CALLS];
    for (int c = 0; c < CALLS; c++)
        s[c] = scene_of(&state, 4, 2, 21, 100, 13 * c);
    EACH_TABLE(k) {
        const float *alone[CALLS];
        omp_set_num_threads(1);
        for (int c = 0; c < CALLS; c++)
            alone[c] = attended(k, &s[c]);
        for (int again = 0; again < 6; again++) {
            omp_set_num_threads(teams[again % 3]);
            for (int c = 0; c < CALLS; c++) {
                calls[c] = s[c].call;
                calls[c].context = room(context_size(&s[c]));
            }
            k->attention(calls, CALLS);
            for (int c = 0; c < CALLS; c++)
                expect_same_bits(k->name, calls[c].context, alone[c],
                                 context_size(&s[c]) * sizeof (float));
        }
    }
    omp_set_num_threads(1);
    EACH_TABLE(k)
        k->attention(calls, 0);
    release();
}
END_TEST

/* --------------------------------------------------------------- all together */

START_TEST(two_widths_of_register_give_the_same_bits)
{
    const struct kernels *wide = kernels_named("avx512");
    const struct kernels *narrow = kernels_named("avx2");
    if (wide == NULL || narrow == NULL)
        return;
    uint64_t state = noise_start(2134);
    const struct layer layer = layer_of(&state, 150, 410, 30);
    const float *before = random_floats(&state, 30 * 150);
    for (int f = 0; f < FINISHES; f++)
        for (int form = 0; form < FORMS; form++) {
            const struct matrix m = form == 0 ? rows_of(&layer)
                : packed(&layer, (enum matrix_type)(form - 1));
            for (int rows = 1; rows <= 30; rows += 29)
                expect_same_outputs("avx512 and avx2", &layer,
                    outputs(wide, &layer, &m, (enum finish)f, before, 0, rows),
                    outputs(narrow, &layer, &m, (enum finish)f, before, 0,
                            rows), rows);
        }
    const struct scene s = scene_of(&state, 6, 2, 50, 70, 30);
    expect_same_bits("contexts", attended(wide, &s), attended(narrow, &s),
                     context_size(&s) * 4);
    float *a = room(30 * 150), *b = room(30 * 150);
    wide->layer_norm(before, 30, 150, layer.weight, layer.bias, 1e-5, a);
    narrow->layer_norm(before, 30, 150, layer.weight, layer.bias, 1e-5, b);
    expect_same_bits("layer norm", a, b, 30 * 150 * 4);
    wide->rms_norm(before, 30, 150, layer.weight, 1e-5, a);
    narrow->rms_norm(before, 30, 150, layer.weight, 1e-5, b);
    expect_same_bits("RMS norm", a, b, 30 * 150 * 4);
    for (enum activation f = ACTIVATION_GELU; f <= ACTIVATION_SILU; f++) {
        wide->activate_backward(f, before, before, 30 * 150, a);
        narrow->activate_backward(f, before, before, 30 * 150, b);
        expect_same_bits("slopes", a, b, 30 * 150 * 4);
    }
    release();
}
END_TEST

/* An array that ends where the process may not read any more. */
static float *at_the_edge(const float *from, size_t count)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = count * sizeof *from;
    const size_t whole = (bytes + page - 1) / page * page;
    char *start = mmap(NULL, whole + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(start, MAP_FAILED);
    ck_assert_int_eq(mprotect(start + whole, page, PROT_NONE), 0);
    return memcpy(start + whole - bytes, from, bytes);
}

static void unmap(const float *array, size_t count)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t whole = (count * sizeof *array + page - 1) / page * page;
    munmap((char *)(uintptr_t)array + count * sizeof *array - whole,
           whole + page);
}

START_TEST(nothing_is_read_behind_what_there_is)
{
    uint64_t state = noise_start(2135);
    for (int rows = 1; rows <= 25; rows += 6) {
        struct layer layer = layer_of(&state, 45, 61, rows);
        const size_t inputs = (size_t)rows * 61, weights = 45 * 61;
        const float *before = random_floats(&state, (size_t)rows * 45);
        layer.stride = 61;
        layer.input = at_the_edge(layer.input, inputs);
        layer.weight = at_the_edge(layer.weight, weights);
        layer.bias = at_the_edge(layer.bias, 45);
        EACH_TABLE(k)
            for (int form = 0; form < FORMS; form++) {
                struct matrix m = form == 0 ? rows_of(&layer)
                    : packed(&layer, (enum matrix_type)(form - 1));
                const size_t room_of[] = {weights, 64 * 61, 64 * 31, 64 * 16};
                float *data = at_the_edge(m.data, room_of[form]);
                m.data = data;
                outputs(k, &layer, &m, FINISH_STORE, before, 0, rows);
                unmap(data, room_of[form]);
            }
        unmap(layer.input, inputs);
        unmap(layer.weight, weights);
        unmap(layer.bias, 45);
        release();
    }
    for (int dim = 31; dim <= 33; dim++) {
        struct scene s = scene_of(&state, 2, 1, dim, 3, 70);
        const size_t count = s.call.slot_stride * 72 + (size_t)dim;
        const float *key = at_the_edge(s.key, count);
        const float *value = at_the_edge(s.value, count);
        s.call.key = key;
        s.call.value = value;
        EACH_TABLE(k)
            attended(k, &s);
        unmap(key, count);
        unmap(value, count);
        release();
    }
}
END_TEST

#define SUMS "continue the chains of the inputs before"
#define PIECES "let the slots at hand end at a multiple of 64"
#define SCALES "scale down what the row has so far"

static const struct test tests[] = {
    TEST(a_nan_stays_one_in_sixteen_bits, 2, "keep a NaN a NaN"),
    TEST(sixteen_bits_come_back_from_a_float, 2,
         "round to the nearest of 16 bits"),
    TEST(a_float_becomes_the_nearest_of_sixteen_bits, 2,
         "round to the nearest of 16 bits"),
    TEST(panels_take_the_room_of_whole_panels, 2,
         "let outputs be those of whole panels"),
    TEST(sizes_that_do_not_fit_are_refused, 2, "the sizes of panels"),
    TEST(a_panel_has_each_weight_in_its_place, 2, "pack one panel"),
    TEST(two_inputs_of_an_output_share_a_word, 2, "the bits of a weight"),
    TEST(an_int8_panel_has_the_codes_of_chapter_17, 2,
         "give a row of the block a scale and codes"),
    TEST(a_weight_is_read_back_from_every_form, 2, "read one weight"),
    TEST(tables_are_found_by_name, 2, "answer with a table"),
    TEST(nothing_is_written_behind_the_last_output, 2,
         "store the lanes that there are"),
    TEST(an_array_ends_where_it_ends, 2, "store the lanes that there are"),
    TEST(an_exponential_is_off_by_less_than_its_last_bit, 2,
         "let p be the polynomial of e to the r"),
    TEST(exponentials_know_the_ends_of_the_range, 2,
         "exponentials of any number and of none above 0"),
    TEST(the_exact_gelu_keeps_its_digits_on_both_sides, 2,
         "let e be e to the minus z squared over 2"),
    TEST(the_gated_activations_are_close_everywhere, 2,
         "activations in lanes"),
    TEST(slopes_are_close_everywhere, 2, "the slope of x times a sigmoid"),
    TEST(nothing_is_read_behind_what_there_is, 2,
         "fetch a line that is read later"),
    TEST(a_row_takes_every_panel, 2, "take a panel that is left over"),
    TEST(sums_go_on_through_blocks_of_inputs, 2, SUMS),
    TEST(sixteen_bits_compute_with_the_floats_that_they_mean, 2,
         "add the inputs of one word in each stream"),
    TEST(each_group_of_eight_bits_has_its_scales, 2,
         "add the group to the groups before"),
    TEST(outputs_of_any_number_agree_with_doubles, 2,
         "finish the outputs of a panel"),
    TEST(rows_of_any_number_agree_with_doubles, 2,
         "a tile of up to MR rows"),
    TEST(outputs_are_finished_as_they_should_be, 2,
         "finish the outputs of a row"),
    TEST(a_long_sum_stays_within_its_bound, 2,
         "add the products of one input"),
    TEST(a_row_has_the_same_bits_alone_and_among_others, 2, SUMS),
    TEST(what_is_no_number_stays_in_its_row_and_its_output, 2,
         "a block of a panel as floats"),
    TEST(no_number_of_threads_changes_a_layer, 2,
         "let each thread have room of its own"),
    TEST(products_of_every_turn_agree_with_doubles, 2,
         "a block of an operand"),
    TEST(an_empty_product_is_zero_or_changes_nothing, 2,
         "a product by threads"),
    TEST(no_number_of_threads_changes_a_product, 2,
         "share rows and columns, and never a sum"),
    TEST(a_norm_subtracts_without_rounding, 2, "subtract in double"),
    TEST(norms_of_any_width_agree_with_doubles, 2,
         "sum a row in sixteen parts"),
    TEST(a_quiet_row_becomes_the_bias, 2, "normalise a row"),
    TEST(no_number_of_threads_changes_a_norm, 2,
         "normalise rows by threads"),
    TEST(a_hidden_score_of_any_size_weighs_nothing, 2,
         "let here be the largest score that the row sees"),
    TEST(a_query_does_not_see_what_comes_later, 2,
         "hide what the row does not see"),
    TEST(heads_of_a_group_share_their_own_keys, 2,
         "let the head be one of those that share the keys"),
    TEST(a_larger_score_scales_down_what_was_there, 2, SCALES),
    TEST(a_score_of_minus_infinity_weighs_nothing, 2,
         "let base be what is subtracted from each score"),
    TEST(equal_scores_weigh_alike, 2, "scores to weights, and their sum"),
    TEST(huge_scores_do_not_overflow, 2, "scores to weights, and their sum"),
    TEST(poison_in_a_later_slot_reaches_no_earlier_query, 2,
         "let seen be what every row of the tile sees"),
    TEST(pieces_of_a_call_have_the_bits_of_the_whole, 2, PIECES),
    TEST(attention_of_any_width_and_place_agrees_with_doubles, 2,
         "values in whole tiles"),
    TEST(no_number_of_threads_and_no_neighbour_changes_a_context, 2,
         "attention by threads"),
    TEST(two_widths_of_register_give_the_same_bits, 2,
         "sixteen parts of a sum"),
};

SUITE("chapter 21, kernels", tests);
