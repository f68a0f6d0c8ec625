/* Chapter 6: the sampler, the run, and the two commands.

   Three models serve. golden_model: the oracle's weights, with a greedy
   continuation computed by PyTorch. scripted_model: a decoder whose weights
   force the transitions that a test asks for. And logits written by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "generate.h"
#include "model.h"
#include "sampler.h"
#include "mode.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"

static struct error error;

#define expect_refusal(status, word) do { \
    ck_assert_int_eq(status, STATUS_INVALID); \
    ck_assert_msg(strstr(error.message, word) != NULL, \
                  "\"%s\" does not name %s", error.message, word); \
} while (0)

static void expect_same_generator(const struct generator *actual,
                                  const struct generator *expected)
{
    ck_assert_uint_eq(actual->state, expected->state);
    ck_assert_uint_eq(actual->increment, expected->increment);
}

static struct generator seeded(uint64_t seed)
{
    struct generator generator;
    generator_seed(&generator, seed, 6);
    return generator;
}

/* ---------------------------------------------------------------- models */

static struct tiny_gpt *golden_model(double dropout)
{
    const struct gpt_config config = {
        .vocab_size = 23, .context_length = 12, .d_model = 16,
        .n_layers = 2, .n_heads = 4, .d_ff = 32,
        .dropout = dropout, .layer_norm_eps = 1e-5,
    };
    struct tiny_gpt *model = NULL;
    ck_assert_int_eq(tiny_gpt_new(&model, &config, &error), STATUS_OK);
    struct golden *golden = golden_open("gpt_tiny");
    const struct parameters *parameters = tiny_gpt_parameters(model);
    for (int i = 0; i < parameters->count; i++) {
        const struct parameter *entry = &parameters->registry[i];
        if (entry->alias)
            continue;
        const struct golden_tensor *w = golden_get(golden, "w.%s",
                                                   entry->path);
        ck_assert_uint_eq(w->count, tensor_size(entry->tensor));
        memcpy(entry->tensor->data, w->f32, w->count * sizeof (float));
    }
    golden_close(golden);
    return model;
}

enum { SCRIPT_V = 6, SCRIPT_N = 9, SCRIPT_C = 8, SCRIPT_F = 6 };

static void fill(struct tensor *tensor, float value)
{
    for (size_t i = 0; i < tensor_size(tensor); i++)
        tensor->data[i] = value;
}

/* A model that says script[id] after id, whatever came before.
   Token rows are one-hot. Attention adds nothing: its weights are zero. In
   the MLP, unit f answers to a one at channel f alone (4 · 2.6 - 4 after the
   norm, -5.5 otherwise), and writes what it has, about 6.6, to channel
   script[f]: so that channel wins under the tied head. */
static struct tiny_gpt *scripted_model(const int script[SCRIPT_V])
{
    const struct gpt_config config = {
        .vocab_size = SCRIPT_V, .context_length = SCRIPT_N,
        .d_model = SCRIPT_C, .n_layers = 1, .n_heads = 2, .d_ff = SCRIPT_F,
        .layer_norm_eps = 1e-5,
    };
    struct tiny_gpt *model = NULL;
    ck_assert_int_eq(tiny_gpt_new(&model, &config, &error), STATUS_OK);
    struct parameters *p = tiny_gpt_parameters(model);
    fill(&p->blocks[0].mlp_norm.weight, 1);
    fill(&p->final_norm.weight, 1);
    fill(&p->blocks[0].mlp.up_proj.bias, -4);
    for (int id = 0; id < SCRIPT_V; id++) {
        p->token_embedding.weight.data[id * SCRIPT_C + id] = 1;
        p->blocks[0].mlp.up_proj.weight.data[id * SCRIPT_C + id] = 4;
        p->blocks[0].mlp.down_proj.weight.data[script[id] * SCRIPT_F + id]
            = 1;
    }
    return model;
}

/* 1 -> 0, 2 -> 3 -> 0, 0 -> 4 -> 5 -> 4: with EOS 0, the row that starts
   with 1 ends a step before the row that starts with 2. */
static const int staggered[SCRIPT_V] = { 4, 0, 3, 0, 5, 4 };

/* The logits after row[0..tokens) by one full forward call, no cache. */
static void full_logits(const struct tiny_gpt *model, const int32_t *row,
                        int tokens, float *logits)
{
    struct forward_input input = {
        .ids = row, .batch = 1, .tokens = tokens
    };
    struct forward_output output = { 0 };
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &output, &error),
                     STATUS_OK);
    int vocab_size = output.logits.shape[2];
    memcpy(logits, output.logits.data + (tokens - 1) * vocab_size,
           (size_t)vocab_size * sizeof *logits);
    forward_output_free(&output);
}

/* The inverse CDF said another way: normalise first, in long double. */
static int32_t oracle_draw(const float *logits, int count,
                           double temperature, double uniform)
{
    long double max = logits[0], sum = 0, below = 0;
    for (int i = 1; i < count; i++)
        max = fmaxl(max, logits[i]);
    for (int i = 0; i < count; i++)
        sum += expl((logits[i] - max) / (long double)temperature);
    for (int i = 0; i < count; i++) {
        below += expl((logits[i] - max) / (long double)temperature) / sum;
        if (uniform < below)
            return i;
    }
    return count - 1;
}

static struct generate_output generate(struct tiny_gpt *model,
                                       struct generate_input input)
{
    struct generate_output output = { 0 };
    enum status status = tiny_gpt_generate(model, &input, &output, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.message);
    ck_assert_int_eq(output.batch, input.batch);
    return output;
}

static void expect_ids(const struct generate_output *output, int tokens,
                       const int32_t *expected)
{
    ck_assert_int_eq(output->tokens, tokens);
    for (int i = 0; i < output->batch * tokens; i++)
        ck_assert_msg(output->ids[i] == expected[i],
                      "ids[%d,%d]: expected %d, got %d", i / tokens,
                      i % tokens, expected[i], output->ids[i]);
}

/* --------------------------------------------------------------- sampler */

START_TEST(greedy_takes_the_lowest_of_equal_maxima)
{
    const float logits[] = { -2, 7, 7, 3, 7 };
    ck_assert_int_eq(sampler_greedy(logits, 5), 1);
    const float flat[] = { 0, 0, 0 };
    ck_assert_int_eq(sampler_greedy(flat, 3), 0);
    const float signs[] = { -1, -0.0f, 0.0f };
    ck_assert_int_eq(sampler_greedy(signs, 3), 1);
}
END_TEST

START_TEST(greedy_finds_the_maximum_wherever_it_is)
{
    for (int at = 0; at < 5; at++) {
        float logits[5] = { -9, -8, -INFINITY, -8, -9 };
        logits[at] = -7;
        ck_assert_int_eq(sampler_greedy(logits, 5), at);
    }
    const float one = -3;
    ck_assert_int_eq(sampler_greedy(&one, 1), 0);
}
END_TEST

START_TEST(logits_that_are_not_numbers_are_refused_by_id)
{
    const float bad[] = { NAN, -NAN, INFINITY };
    for (int at = 0; at < 4; at++)
        for (int k = 0; k < 3; k++) {
            float logits[] = { 1, -INFINITY, 2, 3 };
            char name[16];
            struct generator generator = seeded(1), before = generator;
            int32_t id = 77;
            logits[at] = bad[k];
            snprintf(name, sizeof name, "logits[%d]", at);
            expect_refusal(sampler_check(logits, 4, &error), name);
            expect_refusal(sampler_sample(logits, 4, 0.5, &generator, &id,
                                          &error), name);
            ck_assert_int_eq(id, 77);
            expect_same_generator(&generator, &before);
        }
}
END_TEST

START_TEST(logits_without_a_finite_one_are_refused)
{
    const float none[] = { -INFINITY, -INFINITY };
    struct generator generator = seeded(1), before = generator;
    int32_t id = 77;
    expect_refusal(sampler_check(none, 2, &error), "logits");
    expect_refusal(sampler_sample(none, 2, 1, &generator, &id, &error),
                   "logits");
    ck_assert_int_eq(id, 77);
    expect_same_generator(&generator, &before);
    const float one[] = { -INFINITY, -3, -INFINITY };
    ck_assert_int_eq(sampler_check(one, 3, &error), STATUS_OK);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(sampler_sample(one, 3, 1, &generator, &id, &error),
                         STATUS_OK);
        ck_assert_int_eq(id, 1);
    }
}
END_TEST

START_TEST(one_step_matches_the_inverse_cdf)
{
    const float logits[] = { 0.3f, -1.2f, 2.0f, 0.0f, -0.4f, 1.1f, 0.9f };
    const double temperatures[] = { 0.25, 0.7, 1, 3 };
    for (int k = 0; k < 4; k++) {
        struct generator generator = seeded(40 + (uint64_t)k);
        struct generator copy = generator;
        for (int i = 0; i < 2000; i++) {
            int32_t id = -1;
            ck_assert_int_eq(sampler_sample(logits, 7, temperatures[k],
                                            &generator, &id, &error),
                             STATUS_OK);
            ck_assert_int_eq(id, oracle_draw(logits, 7, temperatures[k],
                                             generator_uniform(&copy)));
        }
    }
}
END_TEST

START_TEST(extreme_temperatures_stay_numbers)
{
    const float logits[] = { 88.5f, 3e38f, -3e38f, 2.9e38f, 1 };
    const float near[] = { 1, 5, 3, -2 };
    const double tiny[] = { 4.9e-324, 1e-300, 1e-30 };
    const double huge[] = { 1e30, 1.7e308 };
    struct generator generator = seeded(3);
    int32_t id = -1;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 50; i++) {
            ck_assert_int_eq(sampler_sample(near, 4, tiny[k], &generator,
                                            &id, &error), STATUS_OK);
            ck_assert_int_eq(id, 1);
            ck_assert_int_eq(sampler_sample(logits, 5, tiny[k], &generator,
                                            &id, &error), STATUS_OK);
            ck_assert_int_eq(id, 1);
        }
    for (int k = 0; k < 2; k++) {
        int seen[4] = { 0 };
        for (int i = 0; i < 4000; i++) {
            ck_assert_int_eq(sampler_sample(near, 4, huge[k], &generator,
                                            &id, &error), STATUS_OK);
            seen[id]++;
        }
        /* binomial(4000, 1/4): 1000, standard deviation 27.4; five of them */
        for (int i = 0; i < 4; i++)
            ck_assert_int_lt(abs(seen[i] - 1000), 137);
    }
}
END_TEST

START_TEST(a_tie_at_a_tiny_temperature_is_shared)
{
    const float logits[] = { 2, 4, 4, 1 };
    struct generator generator = seeded(4);
    int seen[4] = { 0 };
    for (int i = 0; i < 1000; i++) {
        int32_t id = -1;
        ck_assert_int_eq(sampler_sample(logits, 4, 1e-30, &generator, &id,
                                        &error), STATUS_OK);
        seen[id]++;
    }
    ck_assert_int_eq(seen[0] + seen[3], 0);
    /* binomial(1000, 1/2): 500, standard deviation 15.8; five of them */
    ck_assert_int_lt(abs(seen[1] - 500), 79);
}
END_TEST

START_TEST(a_target_of_zero_never_takes_an_impossible_id)
{
    const float logits[] = { -INFINITY, -INFINITY, 0, 1 };
    /* from this state PCG32 puts out zeros */
    struct generator generator = { .state = 0, .increment = 1 };
    struct generator copy = generator;
    ck_assert(generator_uniform(&copy) == 0);
    int32_t id = -1;
    ck_assert_int_eq(sampler_sample(logits, 4, 1, &generator, &id, &error),
                     STATUS_OK);
    ck_assert_int_eq(id, 2);
}
END_TEST

START_TEST(ruled_out_ids_are_never_drawn)
{
    const float logits[] = { -INFINITY, 0, -INFINITY, 1, -INFINITY };
    struct generator generator = seeded(5);
    for (int i = 0; i < 5000; i++) {
        int32_t id = -1;
        ck_assert_int_eq(sampler_sample(logits, 5, 2, &generator, &id,
                                        &error), STATUS_OK);
        ck_assert(id == 1 || id == 3);
    }
}
END_TEST

/* Pearson's statistic of n draws against the softmax. With k ids it has
   k - 1 degrees of freedom when the sampler is right. */
static double chi_square(const float *logits, int count, double temperature,
                         int draws, uint64_t seed)
{
    int seen[8] = { 0 };
    double weights[8], total = 0, statistic = 0;
    struct generator generator = seeded(seed);
    for (int i = 0; i < draws; i++) {
        int32_t id = -1;
        ck_assert_int_eq(sampler_sample(logits, count, temperature,
                                        &generator, &id, &error), STATUS_OK);
        seen[id]++;
    }
    for (int i = 0; i < count; i++)
        total += weights[i] = exp(logits[i] / temperature);
    for (int i = 0; i < count; i++) {
        double expected = draws * weights[i] / total;
        ck_assert_double_ge(expected, 5);
        statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return statistic;
}

/* Six ids, 5 degrees of freedom: the quantiles 0.001 and 0.999 of chi-square
   are 0.2102 and 20.515. Outside on either side is a failure: frequencies
   that fit too well are not random either. The seeds are fixed, so that the
   test says the same every day. */
START_TEST(frequencies_pass_chi_square_against_the_softmax)
{
    const float logits[] = { 0.5f, -1, 1.5f, 0, -0.25f, 2 };
    const double temperatures[] = { 0.6, 1, 2.5 };
    for (int k = 0; k < 3; k++) {
        double statistic = chi_square(logits, 6, temperatures[k], 20000,
                                      100 + (uint64_t)k);
        ck_assert_double_gt(statistic, 0.2102);
        ck_assert_double_lt(statistic, 20.515);
    }
}
END_TEST

START_TEST(one_id_costs_one_uniform_draw)
{
    const float logits[] = { 0, 1, 2 };
    const double temperatures[] = { 1e-30, 1, 1e30 };
    for (int k = 0; k < 3; k++) {
        struct generator generator = seeded(9), expected = generator;
        int32_t id;
        (void)generator_uniform(&expected);
        ck_assert_int_eq(sampler_sample(logits, 3, temperatures[k],
                                        &generator, &id, &error), STATUS_OK);
        expect_same_generator(&generator, &expected);
    }
}
END_TEST

START_TEST(what_cannot_be_sampled_from_is_refused)
{
    const float logits[] = { 0, 1, 2 };
    const double bad[] = { 0, -0.0, -1, NAN, INFINITY, -INFINITY };
    for (int k = 0; k < 6; k++) {
        struct generator generator = seeded(1), before = generator;
        int32_t id = 77;
        expect_refusal(sampler_sample(logits, 3, bad[k], &generator, &id,
                                      &error), "temperature");
        ck_assert_int_eq(id, 77);
        expect_same_generator(&generator, &before);
    }
    int32_t id = 77;
    expect_refusal(sampler_sample(logits, 3, 1, NULL, &id, &error),
                   "generator");
    ck_assert_int_eq(id, 77);
    ck_assert_int_eq(sampler_sample(logits, 3, NAN, NULL, &id, NULL),
                     STATUS_INVALID);
}
END_TEST

/* --------------------------------------------------------------- the run */

static int steps_seen;
static int32_t seen_ids[64];

/* Notes what each step says; stops after *context steps. */
static bool watch(void *context, const int32_t *ids, int batch)
{
    memcpy(seen_ids + steps_seen * batch, ids, (size_t)batch * sizeof *ids);
    return ++steps_seen < *(const int *)context;
}

/* A refused call: names the argument; output, generator, mode and stream are
   untouched. */
static void refused(struct tiny_gpt *model, struct generate_input input,
                    const char *word)
{
    struct generator generator = seeded(8), before = generator;
    struct generate_output output = { 0 };
    int all = 100;
    steps_seen = 0;
    if (input.generator != NULL)
        input.generator = &generator;
    input.on_step = watch;
    input.context = &all;
    tiny_gpt_set_mode(model, MODE_TRAINING);
    expect_refusal(tiny_gpt_generate(model, &input, &output, &error), word);
    ck_assert_int_eq(tiny_gpt_generate(model, &input, &output, NULL),
                     STATUS_INVALID);
    ck_assert_int_eq(tiny_gpt_mode(model), MODE_TRAINING);
    ck_assert_ptr_null(output.ids);
    ck_assert_int_eq(steps_seen, 0);
    expect_same_generator(&generator, &before);
}

static const int32_t two_rows[] = { 1, 2 };
static struct generator any;

static struct generate_input staggered_input(void)
{
    return (struct generate_input){
        .ids = two_rows, .batch = 2, .tokens = 1, .max_new_tokens = 5,
        .eos_token_id = 0,
    };
}

START_TEST(missing_arguments_are_refused)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct generate_input input = staggered_input();
    struct generate_output output = { 0 };
    expect_refusal(tiny_gpt_generate(NULL, &input, &output, &error),
                   "model");
    expect_refusal(tiny_gpt_generate(model, NULL, &output, &error), "input");
    expect_refusal(tiny_gpt_generate(model, &input, NULL, &error), "output");
    int32_t occupied = 5;
    output.ids = &occupied;
    expect_refusal(tiny_gpt_generate(model, &input, &output, &error),
                   "output");
    ck_assert_ptr_eq(output.ids, &occupied);
    input.ids = NULL;
    refused(model, input, "ids");
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(prompts_without_rows_or_tokens_are_refused)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int bad[] = { 0, -1, -2147483647 - 1 };
    for (int k = 0; k < 3; k++) {
        struct generate_input input = staggered_input();
        input.batch = bad[k];
        refused(model, input, "batch");
        input = staggered_input();
        input.tokens = bad[k];
        refused(model, input, "tokens");
        input = staggered_input();
        input.max_new_tokens = bad[k] - (bad[k] == 0);
        refused(model, input, "max_new_tokens");
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_context_is_checked_before_the_first_step)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[SCRIPT_N + 1] = { 0 };
    for (int tokens = 1; tokens <= SCRIPT_N; tokens++) {
        struct generate_input input = {
            .ids = ids, .batch = 1, .tokens = tokens,
            .eos_token_id = NO_EOS,
        };
        for (int room = -1; room <= 0; room++) {
            input.max_new_tokens = SCRIPT_N - tokens + room;
            if (input.max_new_tokens < 0)
                continue;
            struct generate_output output = generate(model, input);
            ck_assert_int_eq(output.tokens, SCRIPT_N + room);
            generate_output_free(&output);
        }
        input.max_new_tokens = SCRIPT_N - tokens + 1;
        refused(model, input, "context_length");
        input.temperature = 1;
        input.generator = &any;
        refused(model, input, "context_length");
        input.max_new_tokens = 2147483647;
        refused(model, input, "context_length");
    }
    struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = SCRIPT_N + 1,
        .eos_token_id = NO_EOS,
    };
    refused(model, input, "context_length");
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(prompt_ids_outside_the_vocabulary_are_refused_by_index)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t bad[] = { -1, SCRIPT_V, 2147483647, -2147483647 - 1 };
    for (int k = 0; k < 4; k++)
        for (int n = 0; n <= 2; n += 2) {
            int32_t ids[] = { 0, 1, 2, 3, bad[k], 5 };
            struct generate_input input = {
                .ids = ids, .batch = 2, .tokens = 3, .max_new_tokens = n,
                .eos_token_id = NO_EOS,
            };
            refused(model, input, "ids[1,1]");
        }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(options_out_of_range_are_refused)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const double temperatures[] = { -1e-300, -1, NAN, INFINITY, -INFINITY };
    for (int k = 0; k < 5; k++) {
        struct generate_input input = staggered_input();
        input.temperature = temperatures[k];
        input.generator = &any;
        refused(model, input, "temperature");
    }
    struct generate_input input = staggered_input();
    input.temperature = 1;
    refused(model, input, "generator");
    const int32_t eos[] = { -2, SCRIPT_V, 2147483647 };
    for (int k = 0; k < 3; k++) {
        input = staggered_input();
        input.eos_token_id = eos[k];
        refused(model, input, "eos_token_id");
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_prompt_is_answered_at_its_last_position)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[] = { 2, 1, 4, 3, 0, 2 };
    struct generate_output output = generate(model, (struct generate_input){
        .ids = ids, .batch = 2, .tokens = 3, .max_new_tokens = 1,
        .eos_token_id = NO_EOS });
    const int32_t expected[] = { 2, 1, 4, 5, 3, 0, 2, 3 };
    expect_ids(&output, 4, expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(zero_new_tokens_return_a_copy)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[] = { 2, 1, 4, 3, 0, 2 };
    for (int temperature = 0; temperature < 2; temperature++) {
        struct generator generator = seeded(1), before = generator;
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = 2, .tokens = 3, .eos_token_id = 2,
                .temperature = temperature, .generator = &generator });
        ck_assert_ptr_ne(output.ids, ids);
        expect_ids(&output, 3, ids);
        expect_same_generator(&generator, &before);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(greedy_matches_the_golden_continuation)
{
    struct tiny_gpt *model = golden_model(0);
    struct golden *golden = golden_open("gpt_tiny");
    const struct golden_tensor *greedy = golden_get(golden, "out.greedy");
    const int32_t *ids = golden_get(golden, "in.ids")->ids;
    int32_t prompt[8];
    for (int b = 0; b < 2; b++)
        memcpy(prompt + 4 * b, ids + 7 * b, 4 * sizeof *prompt);
    struct generate_output output = generate(model, (struct generate_input){
        .ids = prompt, .batch = 2, .tokens = 4, .max_new_tokens = 8,
        .eos_token_id = NO_EOS });
    expect_ids(&output, 12, greedy->ids);
    generate_output_free(&output);
    golden_close(golden);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(greedy_equals_recomputing_the_whole_prefix)
{
    struct tiny_gpt *model = golden_model(0);
    for (int tokens = 1; tokens < 12; tokens += 2) {
        int32_t row[12] = { 3, 17, 0, 22, 9, 9, 14, 1, 20, 5, 11 };
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = row, .batch = 1, .tokens = tokens,
                .max_new_tokens = 12 - tokens, .eos_token_id = NO_EOS });
        for (int t = tokens; t < 12; t++) {
            float logits[23];
            full_logits(model, row, t, logits);
            row[t] = sampler_greedy(logits, 23);
        }
        expect_ids(&output, 12, row);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(greedy_draws_nothing)
{
    struct tiny_gpt *model = golden_model(0);
    struct generator generator = seeded(2), before = generator;
    const double zeros[] = { 0, -0.0 };
    for (int k = 0; k < 2; k++) {
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = two_rows, .batch = 2, .tokens = 1,
                .max_new_tokens = 4, .eos_token_id = NO_EOS,
                .temperature = zeros[k], .generator = &generator });
        expect_same_generator(&generator, &before);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_generator_advances_one_draw_a_row_and_step)
{
    struct tiny_gpt *model = golden_model(0);
    const int32_t ids[] = { 4, 9, 13 };
    for (int batch = 1; batch <= 3; batch++)
        for (int steps = 0; steps <= 5; steps++) {
            struct generator generator = seeded(77), expected = generator;
            struct generate_output output = generate(model,
                (struct generate_input){
                    .ids = ids, .batch = batch, .tokens = 1,
                    .max_new_tokens = steps, .eos_token_id = NO_EOS,
                    .temperature = 1, .generator = &generator });
            for (int i = 0; i < batch * steps; i++)
                (void)generator_uniform(&expected);
            expect_same_generator(&generator, &expected);
            generate_output_free(&output);
        }
    tiny_gpt_free(&model);
}
END_TEST

/* Which also says the order of the draws: step by step, row by row. */
START_TEST(sampling_equals_an_explicit_loop_over_whole_prefixes)
{
    struct tiny_gpt *model = golden_model(0);
    const double temperatures[] = { 0.3, 1, 4 };
    for (int k = 0; k < 3; k++) {
        int32_t rows[3][9] = { { 4, 8 }, { 9, 0 }, { 13, 21 } };
        const int32_t prompt[] = { 4, 8, 9, 0, 13, 21 };
        struct generator generator = seeded(11), copy = generator;
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = prompt, .batch = 3, .tokens = 2, .max_new_tokens = 7,
                .eos_token_id = NO_EOS, .temperature = temperatures[k],
                .generator = &generator });
        for (int t = 2; t < 9; t++)
            for (int b = 0; b < 3; b++) {
                float logits[23];
                full_logits(model, rows[b], t, logits);
                rows[b][t] = oracle_draw(logits, 23, temperatures[k],
                                         generator_uniform(&copy));
            }
        expect_ids(&output, 9, rows[0]);
        expect_same_generator(&generator, &copy);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(equal_seeds_give_equal_tokens)
{
    struct tiny_gpt *model = golden_model(0);
    struct generate_output outputs[3];
    const uint64_t seeds[] = { 5, 5, 6 };
    for (int k = 0; k < 3; k++) {
        struct generator generator = seeded(seeds[k]);
        outputs[k] = generate(model, (struct generate_input){
            .ids = two_rows, .batch = 2, .tokens = 1, .max_new_tokens = 11,
            .eos_token_id = NO_EOS, .temperature = 2,
            .generator = &generator });
    }
    expect_ids(&outputs[1], 12, outputs[0].ids);
    ck_assert_int_ne(memcmp(outputs[2].ids, outputs[0].ids,
                            24 * sizeof (int32_t)), 0);
    for (int k = 0; k < 3; k++)
        generate_output_free(&outputs[k]);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_batch_row_says_what_it_says_alone)
{
    struct tiny_gpt *model = golden_model(0);
    const int32_t ids[] = { 4, 8, 9, 0, 13, 21 };
    struct generate_input input = {
        .ids = ids, .batch = 3, .tokens = 2, .max_new_tokens = 6,
        .eos_token_id = NO_EOS };
    struct generate_output together = generate(model, input);
    input.batch = 1;
    for (int b = 0; b < 3; b++) {
        input.ids = ids + 2 * b;
        struct generate_output alone = generate(model, input);
        expect_ids(&alone, 8, together.ids + 8 * b);
        generate_output_free(&alone);
    }
    generate_output_free(&together);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_run_ends_with_the_last_row)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct generate_input input = staggered_input();
    int all = 100;
    steps_seen = 0;
    input.on_step = watch;
    input.context = &all;
    struct generate_output output = generate(model, input);
    ck_assert_int_eq(steps_seen, 2);
    ck_assert_int_eq(output.tokens, 3);
    ck_assert_int_eq(seen_ids[1], 3);   /* row 1 at step 0 */
    ck_assert_int_eq(seen_ids[3], 0);   /* row 1 at step 1 */
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(an_eos_in_the_prompt_finishes_nothing)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[] = { 0, 0, 4, 0 };
    struct generate_output output = generate(model, (struct generate_input){
        .ids = ids, .batch = 2, .tokens = 2, .max_new_tokens = 3,
        .eos_token_id = 0 });
    const int32_t expected[] = { 0, 0, 4, 5, 4, 4, 0, 4, 5, 4 };
    expect_ids(&output, 5, expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_finished_row_is_filled_with_eos)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct generate_input input = staggered_input();
    struct generate_output output = generate(model, input);
    const int32_t expected[] = { 1, 0, 0, 2, 3, 0 };
    expect_ids(&output, 3, expected);
    generate_output_free(&output);
    /* an EOS that row 1 never says: row 0 is filled to the end */
    const int32_t others[] = { 3, 4 };
    input.ids = others;
    input.max_new_tokens = 4;
    output = generate(model, input);
    const int32_t filled[] = { 3, 0, 0, 0, 0, 4, 5, 4, 5, 4 };
    expect_ids(&output, 5, filled);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_finished_row_still_uses_its_draw)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct generator generator = seeded(12), expected = generator;
    struct generate_input input = staggered_input();
    input.temperature = 1e-3;           /* follows the script all the same */
    input.generator = &generator;
    struct generate_output output = generate(model, input);
    const int32_t ids[] = { 1, 0, 0, 2, 3, 0 };
    expect_ids(&output, 3, ids);
    for (int i = 0; i < 2 * 2; i++)
        (void)generator_uniform(&expected);
    expect_same_generator(&generator, &expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(rows_that_stop_early_are_closed_up)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[] = { 5, 1, 4, 3, 3, 1 };
    struct generate_output output = generate(model, (struct generate_input){
        .ids = ids, .batch = 3, .tokens = 2, .max_new_tokens = 7,
        .eos_token_id = 0 });
    const int32_t expected[] = { 5, 1, 0, 4, 3, 0, 3, 1, 0 };
    expect_ids(&output, 3, expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_caller_sees_each_step_and_can_stop)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t expected[] = { 2, 3, 0, 4, 5, 4, 1, 0, 4, 5, 4, 5 };
    const int32_t ids[] = { 2, 1 };
    for (int limit = 1; limit <= 6; limit++) {
        struct generator generator = seeded(3), draws = generator;
        int steps = limit > 5 ? 5 : limit;
        steps_seen = 0;
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = 2, .tokens = 1, .max_new_tokens = 5,
                .eos_token_id = NO_EOS, .temperature = 1e-3,
                .generator = &generator, .on_step = watch,
                .context = &limit });
        ck_assert_int_eq(steps_seen, steps);
        ck_assert_int_eq(output.tokens, 1 + steps);
        for (int s = 0; s < steps; s++)
            for (int b = 0; b < 2; b++) {
                ck_assert_int_eq(seen_ids[2 * s + b],
                                 expected[6 * b + 1 + s]);
                ck_assert_int_eq(output.ids[b * (1 + steps) + 1 + s],
                                 expected[6 * b + 1 + s]);
                (void)generator_uniform(&draws);
            }
        expect_same_generator(&generator, &draws);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(generation_ignores_dropout)
{
    struct tiny_gpt *plain = golden_model(0), *model = golden_model(0.5);
    struct generate_input input = {
        .ids = two_rows, .batch = 2, .tokens = 1, .max_new_tokens = 8,
        .eos_token_id = NO_EOS };
    struct generate_output expected = generate(plain, input);
    tiny_gpt_set_mode(model, MODE_TRAINING);
    struct generate_output output = generate(model, input);
    expect_ids(&output, 9, expected.ids);
    generate_output_free(&expected);
    generate_output_free(&output);
    tiny_gpt_free(&plain);
    tiny_gpt_free(&model);
}
END_TEST

/* Position 3 is not a number: a prompt of two breaks down in step 2. */
static struct tiny_gpt *breaking_model(void)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct parameters *p = tiny_gpt_parameters(model);
    p->position_embedding.weight.data[3 * SCRIPT_C] = NAN;
    return model;
}

static struct generate_input breaking_input(void)
{
    static const int32_t ids[] = { 5, 4, 4, 5 };
    return (struct generate_input){
        .ids = ids, .batch = 2, .tokens = 2, .max_new_tokens = 6,
        .eos_token_id = NO_EOS };
}

START_TEST(the_mode_is_restored_on_success_and_on_error)
{
    const enum mode modes[] = { MODE_TRAINING, MODE_EVALUATION };
    for (int k = 0; k < 2; k++) {
        struct tiny_gpt *model = breaking_model();
        struct generate_input input = breaking_input();
        struct generate_output output = { 0 };
        tiny_gpt_set_mode(model, modes[k]);
        input.max_new_tokens = 2;
        output = generate(model, input);
        ck_assert_int_eq(tiny_gpt_mode(model), modes[k]);
        generate_output_free(&output);
        input.max_new_tokens = 6;
        ck_assert_int_ne(tiny_gpt_generate(model, &input, &output, &error),
                         STATUS_OK);
        ck_assert_int_eq(tiny_gpt_mode(model), modes[k]);
        tiny_gpt_free(&model);
    }
}
END_TEST

START_TEST(a_failed_run_leaves_the_generator_alone)
{
    struct tiny_gpt *model = breaking_model();
    struct generate_input input = breaking_input();
    struct generate_output output = { 0 };
    struct generator generator = seeded(21), before = generator;
    input.temperature = 1;
    input.generator = &generator;
    ck_assert_int_ne(tiny_gpt_generate(model, &input, &output, &error),
                     STATUS_OK);
    expect_same_generator(&generator, &before);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(logits_that_break_down_name_step_and_row)
{
    struct tiny_gpt *model = breaking_model();
    struct generate_input input = breaking_input();
    struct generate_output output = { 0 };
    int all = 100;
    steps_seen = 0;
    input.on_step = watch;
    input.context = &all;
    long live = allocator_live();
    enum status status = tiny_gpt_generate(model, &input, &output, &error);
    live -= allocator_live();
    ck_assert_int_eq(live, 0);
    expect_refusal(status, "step 2, row 0: logits[0]");
    ck_assert_int_eq(steps_seen, 2);
    ck_assert_ptr_null(output.ids);
    ck_assert_int_eq(output.batch, 0);
    ck_assert_int_eq(tiny_gpt_generate(model, &input, &output, NULL),
                     STATUS_INVALID);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct tiny_gpt *model = scripted_model(staggered);
    struct generator generator = seeded(31), before = generator;
    struct generate_input input = staggered_input();
    struct generate_output output = { 0 };
    input.temperature = 1e-3;
    input.generator = &generator;
    tiny_gpt_set_mode(model, MODE_TRAINING);
    long n = 1;
    for (;; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tiny_gpt_generate(model, &input, &output,
                                               &error);
        live -= allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(output.ids);
        ck_assert_int_eq(tiny_gpt_mode(model), MODE_TRAINING);
        expect_same_generator(&generator, &before);
    }
    ck_assert_int_gt(n, 10);
    const int32_t ids[] = { 1, 0, 0, 2, 3, 0 };
    expect_ids(&output, 3, ids);
    generate_output_free(&output);
    ck_assert_ptr_null(output.ids);
    generate_output_free(&output);
    generate_output_free(NULL);
    tiny_gpt_free(&model);
}
END_TEST

/* ------------------------------------------------------------- the table */

static const struct test tests[] = {
    TEST(greedy_takes_the_lowest_of_equal_maxima, 3,
         "keep the first of equal maxima"),
    TEST(greedy_finds_the_maximum_wherever_it_is, 3,
         "choose the largest logit"),
    TEST(logits_that_are_not_numbers_are_refused_by_id, 3,
         "refuse logits that are not numbers"),
    TEST(logits_without_a_finite_one_are_refused, 3,
         "check a row of logits"),
    TEST(one_step_matches_the_inverse_cdf, 3,
         "weigh an id at this temperature"),
    TEST(extreme_temperatures_stay_numbers, 3,
         "weigh an id at this temperature"),
    TEST(a_tie_at_a_tiny_temperature_is_shared, 3,
         "weigh an id at this temperature"),
    TEST(a_target_of_zero_never_takes_an_impossible_id, 3,
         "walk up the weights until they pass target"),
    TEST(ruled_out_ids_are_never_drawn, 3,
         "walk up the weights until they pass target"),
    TEST(frequencies_pass_chi_square_against_the_softmax, 3,
         "let total be the sum of the weights"),
    TEST(one_id_costs_one_uniform_draw, 3, "draw from the softmax"),
    TEST(what_cannot_be_sampled_from_is_refused, 3,
         "refuse what cannot be sampled from"),
    TEST(missing_arguments_are_refused, 3,
         "refuse missing or occupied arguments"),
    TEST(prompts_without_rows_or_tokens_are_refused, 3,
         "refuse a prompt without rows or tokens"),
    TEST(the_context_is_checked_before_the_first_step, 3,
         "refuse a request that the context cannot hold"),
    TEST(prompt_ids_outside_the_vocabulary_are_refused_by_index, 3,
         "refuse prompt ids outside the vocabulary"),
    TEST(options_out_of_range_are_refused, 3, "refuse options out of range"),
    TEST(zero_new_tokens_return_a_copy, 3,
         "copy the prompts to the beginning of each row"),
    TEST(a_prompt_is_answered_at_its_last_position, 3,
         "let logits be the row's at the last position"),
    TEST(greedy_matches_the_golden_continuation, 3,
         "feed the prompt once, then one id a row"),
    TEST(greedy_equals_recomputing_the_whole_prefix, 3,
         "feed the prompt once, then one id a row"),
    TEST(greedy_draws_nothing, 3,
         "choose the largest logit and draw nothing"),
    TEST(the_generator_advances_one_draw_a_row_and_step, 3,
         "choose and append for every row"),
    TEST(sampling_equals_an_explicit_loop_over_whole_prefixes, 3,
         "choose and append for every row"),
    TEST(equal_seeds_give_equal_tokens, 3, "describe the run"),
    TEST(a_batch_row_says_what_it_says_alone, 3,
         "choose and append for every row"),
    TEST(the_run_ends_with_the_last_row, 3,
         "say whether every row has finished"),
    TEST(an_eos_in_the_prompt_finishes_nothing, 3,
         "note the rows that just emitted EOS"),
    TEST(a_finished_row_is_filled_with_eos, 3,
         "fill a finished row with EOS"),
    TEST(a_finished_row_still_uses_its_draw, 3,
         "use up the finished row's draw"),
    TEST(rows_that_stop_early_are_closed_up, 3, "close the rows up"),
    TEST(the_caller_sees_each_step_and_can_stop, 3,
         "stop when the caller or every row says so"),
    TEST(generation_ignores_dropout, 3, "decode in evaluation mode"),
    TEST(the_mode_is_restored_on_success_and_on_error, 3,
         "restore the mode"),
    TEST(a_failed_run_leaves_the_generator_alone, 3,
         "hand the generator's state back"),
    TEST(logits_that_break_down_name_step_and_row, 3,
         "choose and append for every row"),
    TEST(every_allocation_may_fail, 3,
         "allocate the run's arrays, all or none"),
};

SUITE("chapter 6, generation", tests);
