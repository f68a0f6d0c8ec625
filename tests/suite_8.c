/* Chapter 8: rows with prefixes of their own in one batch. */
#include <math.h>
#include "cache_aware.h"
#include "causal_lm.h"
#include "mixed_mask.h"
#include "support/allocator.h"
#include "support/cached.h"

static struct error error;

/* A cache of the golden's tensors prefix.L.key and prefix.L.value. */
static struct past_key_values golden_past(const struct golden *golden,
                                          const struct causal_lm *lm,
                                          const char *prefix)
{
    struct past_key_values past = {0};
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    const struct golden_tensor *first = golden_get(golden, "%s.0.key",
                                                   prefix);
    expect_ok(past_key_values_new(&past, &shape, first->shape[0],
                                  first->shape[2], &error), &error);
    for (int l = 0; l < past.n_layers; l++) {
        const struct golden_tensor *key = golden_get(golden, "%s.%d.key",
                                                     prefix, l);
        const struct golden_tensor *value = golden_get(golden, "%s.%d.value",
                                                       prefix, l);
        memcpy(past.layers[l].key.data, key->f32,
               key->count * sizeof (float));
        memcpy(past.layers[l].value.data, value->f32,
               value->count * sizeof (float));
    }
    return past;
}

START_TEST(rows_that_begin_anywhere_have_the_golden_logits_and_caches)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.full.logits");
    const struct cache_aware_input input = {
        .ids = golden_get(golden, "in.full.ids")->ids,
        .positions = golden_get(golden, "in.full.positions")->ids,
        .batch = 2, .tokens = 6, .use_cache = true
    };
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(&lm, &input, &output, &error), &error);
    expect_close("logits", output.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    expect_golden_cache(golden, "out.full.past", &output.past_key_values);
    const int32_t lengths[2] = {6, 6}, starts[2] = {0, 5};
    expect_same_bits("lengths", output.cache_lengths, lengths,
                     sizeof lengths);
    expect_same_bits("starts", output.cache_start_positions, starts,
                     sizeof starts);
    cache_aware_output_free(&output);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(the_golden_mixed_batch_has_the_golden_logits_and_caches)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    struct past_key_values past = golden_past(golden, &lm, "in.mixed.past");
    const struct golden_tensor *want = golden_get(golden, "out.mixed.logits");
    const struct cache_aware_input input = {
        .ids = golden_get(golden, "in.mixed.ids")->ids,
        .positions = golden_get(golden, "in.mixed.positions")->ids,
        .batch = 2, .tokens = 3, .past = &past,
        .cache_lengths = golden_get(golden, "in.mixed.lengths")->ids,
        .cache_start_positions = golden_get(golden, "in.mixed.starts")->ids,
        .use_cache = true
    };
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(&lm, &input, &output, &error), &error);
    expect_close("logits", output.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    expect_golden_cache(golden, "out.mixed.past", &output.past_key_values);
    expect_same_bits("lengths", output.cache_lengths,
                     golden_get(golden, "out.mixed.lengths")->ids,
                     2 * sizeof (int32_t));
    expect_same_bits("starts", output.cache_start_positions,
                     golden_get(golden, "in.mixed.starts")->ids,
                     2 * sizeof (int32_t));
    cache_aware_output_free(&output);
    past_key_values_free(&past);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(greedy_tokens_are_those_of_chapter_6)
{
    struct cached cached = cached_noise();
    const struct causal_lm lm = tiny_gpt_causal_lm(cached.model);
    int32_t ids[3 * 4];
    cached_columns(&cached, 0, 4, ids);
    const struct generate_input input = {
        .ids = ids, .batch = 3, .tokens = 4, .max_new_tokens = 5,
        .eos_token_id = NO_EOS
    };
    struct generate_output expected = {0}, output = {0};
    expect_ok(tiny_gpt_generate(cached.model, &input, &expected, &error),
              &error);
    expect_ok(cache_aware_generate(&lm, &input, NULL, &output, &error),
              &error);
    ck_assert_int_eq(output.tokens, expected.tokens);
    expect_same_bits("ids", output.ids, expected.ids,
                     3 * 9 * sizeof *output.ids);
    generate_output_free(&output);
    generate_output_free(&expected);
    cached_close(&cached);
}
END_TEST

static const struct test tests[] = {
    TEST(rows_that_begin_anywhere_have_the_golden_logits_and_caches, 2,
         "embed row b at its own positions"),
    TEST(the_golden_mixed_batch_has_the_golden_logits_and_caches, 2,
         "decide whether the query may see slot j"),
    TEST(greedy_tokens_are_those_of_chapter_6, 3,
         "let row b say its next id, or EOS again"),
};

SUITE("chapter 8, mixed prefixes", tests);
