/* Chapter 13: the parts of another family by plain arithmetic in double, the
   family against the oracle's numbers, and the caches of the second part
   around it. */
#include <math.h>
#include "cache_aware.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/llamas.h"

static struct error error;

/* ------------------------------------------------------------ the goldens */

/* Rows at 0 … 8 and at 11 … 19, without a past. */
static void expect_golden(const char *name)
{
    struct golden *golden = golden_open(name);
    struct llama *model = golden_llama(golden);
    const struct causal_lm lm = llama_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.logits");
    const struct cache_aware_input input = {
        .ids = golden_get(golden, "in.ids")->ids,
        .positions = golden_get(golden, "in.positions")->ids,
        .batch = want->shape[0], .tokens = want->shape[1], .use_cache = true
    };
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(&lm, &input, &output, &error), &error);
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

#define SHARED "let shared be the storage's head for query head h"

static const struct test tests[] = {
    TEST(a_key_head_for_each_query_head_has_the_golden_numbers, 2,
         "write the row's new keys, turned, and its new values"),
    TEST(a_key_head_for_four_query_heads_has_the_golden_numbers, 2, SHARED),
    TEST(one_key_head_for_all_query_heads_has_the_golden_numbers, 2, SHARED),
};

SUITE("chapter 13, a model of another family", tests);
