/* Chapter 19: checkpoints. Half floats by ldexp, the other GELU in double,
   files that are made here byte by byte, and the oracle's directories, row
   by row and token by token. */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checkpoint.h"
#include "file.h"
#include "half.h"
#include "hub.h"
#include "llama2c.h"
#include "model_file.h"
#include "request.h"
#include "shards.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"
#include "support/noise.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

static struct error error;

/* ------------------------------------------------------------ half floats */

/* The value of a half with E bits of exponent and M of fraction. */
static double by_ldexp(unsigned bits, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> fraction_bits)
                         & ((1 << exponent_bits) - 1);
    const int fraction = (int)bits & ((1 << fraction_bits) - 1);
    const double sign = bits >> (exponent_bits + fraction_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits),
                        exponent - bias - fraction_bits);
}

START_TEST(every_half_is_the_float_of_its_formula_and_comes_back)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        const uint16_t half = (uint16_t)bits;
        const double f16 = by_ldexp(bits, 5, 10);
        const double bf16 = by_ldexp(bits, 8, 7);
        ck_assert_msg(isnan(f16) ? isnan(f16_to_f32(half))
                      : f16_to_f32(half) == f16
                        && !signbit(f16_to_f32(half)) == !signbit(f16),
                      "F16 %04x: %g for %g", bits, f16_to_f32(half), f16);
        ck_assert_msg(isnan(bf16) ? isnan(bf16_to_f32(half))
                      : bf16_to_f32(half) == bf16
                        && !signbit(bf16_to_f32(half)) == !signbit(bf16),
                      "BF16 %04x: %g for %g", bits, bf16_to_f32(half), bf16);
        if (!isnan(f16))
            ck_assert_uint_eq(f16_from_f32(f16_to_f32(half)), half);
        if (!isnan(bf16))
            ck_assert_uint_eq(bf16_from_f32(bf16_to_f32(half)), half);
    }
}
END_TEST

/* ---------------------------------------------------------------- goldens */

static struct checkpoint *open_golden(const char *name)
{
    char path[256];
    struct checkpoint *checkpoint = NULL;
    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    expect_ok(checkpoint_open(&checkpoint, path, &error), &error);
    return checkpoint;
}

/* Every row that the golden has, and every token. */
static void expect_golden(const char *name, double tolerance)
{
    char path[256];
    struct checkpoint *checkpoint = open_golden(name);
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    snprintf(path, sizeof path, "%s/expected", name);
    struct golden *golden = golden_open(path);
    const struct golden_tensor *prompt = golden_get(golden, "in.prompt");
    const struct golden_tensor *greedy = golden_get(golden, "out.greedy");
    const struct golden_tensor *rows = golden_get(golden, "out.rows");
    struct request *request = NULL;
    const float *logits = NULL;
    const int v = lm.vocab_size, steps = greedy->shape[1];
    expect_ok(request_new(&request, &lm, 1, prompt->shape[1] + steps,
                          prompt->shape[1], &error), &error);
    const int32_t *ids = prompt->ids;
    int count = prompt->shape[1], row = 0;
    for (int k = 0; k < steps; k++, count = 1) {
        expect_ok(request_feed(request, ids, count, true, &logits, &error),
                  &error);
        const bool kept = rows->shape[0] == steps || k < 2 || k == steps - 1;
        if (kept)
            expect_close(name, logits, rows->f32 + (size_t)row++ * (size_t)v,
                         (size_t)v, 1, &v, tolerance);
        int best = 0;
        for (int i = 1; i < v; i++)
            if (logits[i] > logits[best])
                best = i;
        ck_assert_msg(best == greedy->ids[k], "%s: token %d is %d, not %d",
                      name, k, best, greedy->ids[k]);
        ids = &greedy->ids[k];
    }
    ck_assert_int_eq(row, rows->shape[0]);
    request_free(&request);
    golden_close(golden);
    checkpoint_close(&checkpoint);
}

START_TEST(gpt2_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny", TOLERANCE);
}
END_TEST

START_TEST(gpt2_in_f16_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny_f16", TOLERANCE);
}
END_TEST

START_TEST(gpt2_in_bf16_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny_bf16", TOLERANCE);
}
END_TEST

START_TEST(a_whole_vocabulary_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_vocab50257", TOLERANCE);
}
END_TEST

START_TEST(llama_gives_the_oracles_rows_and_tokens)
{
    expect_golden("llama_tiny", TOLERANCE);
}
END_TEST

static const struct test tests[] = {
    TEST(every_half_is_the_float_of_its_formula_and_comes_back, 2,
         "move the exponent to the bias of a float"),
    TEST(gpt2_gives_the_oracles_rows_and_tokens, 2,
         "let the row's part be a part of a column"),
    TEST(gpt2_in_f16_gives_the_oracles_rows_and_tokens, 2,
         "let the element be a float"),
    TEST(gpt2_in_bf16_gives_the_oracles_rows_and_tokens, 2,
         "let the element be a float"),
    TEST(a_whole_vocabulary_gives_the_oracles_rows_and_tokens, 2,
         "let the row's part be a part of a column"),
    TEST(llama_gives_the_oracles_rows_and_tokens, 2,
         "fill a model's tensors"),
};

SUITE("chapter 19, checkpoints", tests);
