/* Chapter 6: the sampler, the run, and the two commands.

   Three models serve. oracle_model: the oracle's weights, with a greedy
   continuation computed by PyTorch. scripted_model: a decoder whose weights
   force the transitions that a test asks for. And logits written by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "generate.h"
#include "mode.h"
#include "model.h"
#include "model_file.h"
#include "sampler.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"

static struct error error;

#define expect_refusal(status, word) do { \
    ck_assert_int_eq(status, STATUS_INVALID); \
    expect_named(&error, word); \
} while (0)

static void expect_same_generator(const struct generator *actual,
                                  const struct generator *expected)
{
    ck_assert_uint_eq(actual->state, expected->state);
    ck_assert_uint_eq(actual->increment, expected->increment);
}

/* A generator in a state that no test has been given before; equal streams
   give equal states. */
static struct generator seeded(unsigned stream)
{
    struct generator generator;
    uint64_t state = noise_start(stream);
    generator_seed(&generator, noise_next(&state), 6);
    return generator;
}

/* ---------------------------------------------------------------- models */

static struct tiny_gpt *oracle_model(double dropout)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct tiny_gpt *model = golden_model(golden, dropout);
    golden_close(golden);
    return model;
}

enum { SCRIPT_V = 6, SCRIPT_N = 9, SCRIPT_C = 8, SCRIPT_F = 6 };

static void fill(struct tensor *tensor, float value)
{
    for (size_t i = 0; i < tensor_size(tensor); i++)
        tensor->data[i] = value;
}

/* The tests speak of ids 0 … 5 of a script; what the model calls them differs
   from seed to seed. */
static const int32_t *named(void)
{
    static int32_t names[SCRIPT_V];
    uint64_t state = noise_start(1);
    noise_order(&state, SCRIPT_V, names);
    return names;
}

/* The model's names of a script's ids; good for four calls. */
static const int32_t *names(const int32_t *ids, int count)
{
    static int32_t rooms[4][16];
    static int turn;
    int32_t *room = rooms[turn++ % 4];
    for (int i = 0; i < count; i++)
        room[i] = named()[ids[i]];
    return room;
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
    struct tiny_gpt *model = new_model(&config);
    struct parameters *p = tiny_gpt_parameters(model);
    fill(&p->blocks[0].mlp_norm.weight, 1);
    fill(&p->final_norm.weight, 1);
    fill(&p->blocks[0].mlp.up_proj.bias, -4);
    for (int k = 0; k < SCRIPT_V; k++) {
        const int id = named()[k], next = named()[script[k]];
        p->token_embedding.weight.data[id * SCRIPT_C + id] = 1;
        p->blocks[0].mlp.up_proj.weight.data[id * SCRIPT_C + id] = 4;
        p->blocks[0].mlp.down_proj.weight.data[next * SCRIPT_F + id] = 1;
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

/* The inverse CDF said another way: normalise first, in long double. margin,
   if any, shrinks to the distance of uniform from the next interval. */
static int32_t oracle_draw(const float *logits, int count,
                           double temperature, double uniform, double *margin)
{
    long double max = logits[0], sum = 0, below = 0;
    for (int i = 1; i < count; i++)
        max = fmaxl(max, logits[i]);
    for (int i = 0; i < count; i++)
        sum += expl((logits[i] - max) / (long double)temperature);
    int32_t id = 0;
    for (int i = 0; i + 1 < count; i++) {
        below += expl((logits[i] - max) / (long double)temperature) / sum;
        id += uniform >= below;
        *margin = fmin(*margin, (double)fabsl(uniform - below));
    }
    return id;
}

/* The largest of the logits after row[0..tokens); clear stays true when a
   hundred tolerances separate it from the second, so that no rounding can
   exchange them. */
static int32_t greedy_id(const struct tiny_gpt *model, const int32_t *row,
                         int tokens, bool *clear)
{
    float logits[23];
    full_logits(model, row, tokens, logits);
    const int32_t best = sampler_greedy(logits, 23);
    for (int id = 0; id < 23; id++)
        *clear = *clear && (id == best || logits[id]
                            < logits[best] - 100 * (float)TOLERANCE);
    return best;
}

/* Ids of the oracle's vocabulary [rows,tokens] that greedy decoding takes to
   `length` tokens a row with no near tie on the way; and where there is a
   second step, some row says something there that its last token alone
   would not have made it say. */
static void clear_prompt(const struct tiny_gpt *model, unsigned stream,
                         int rows, int tokens, int length, int32_t *ids)
{
    uint64_t state = noise_start(stream);
    bool clear = false, remembers = false;
    for (int n = 0; !(clear && remembers) && n < 1000; n++) {
        noise_ids(&state, 23, rows, tokens, ids);
        clear = true;
        remembers = length < tokens + 2;
        for (int b = 0; b < rows; b++) {
            int32_t row[12];
            memcpy(row, ids + b * tokens, (size_t)tokens * sizeof *row);
            for (int t = tokens; t < length; t++) {
                row[t] = greedy_id(model, row, t, &clear);
                remembers = remembers || (t > tokens && row[t]
                            != greedy_id(model, &row[t - 1], 1, &clear));
            }
        }
    }
}

static struct generate_output generate(struct tiny_gpt *model,
                                       struct generate_input input)
{
    struct generate_output output = { 0 };
    enum status status = tiny_gpt_generate(model, &input, &output, &error);
    expect_ok(status, &error);
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

/* The same, expected in the words of the script. */
static void expect_names(const struct generate_output *output, int tokens,
                         const int32_t *expected)
{
    expect_ids(output, tokens, names(expected, output->batch * tokens));
}

/* --------------------------------------------------------------- sampler */

/* The same logits in an order that differs from seed to seed; order[i] says
   where logits[i] went. */
static void shuffle(unsigned stream, const float *logits, int count,
                    int32_t *order, float *shuffled)
{
    uint64_t state = noise_start(stream);
    noise_order(&state, count, order);
    for (int i = 0; i < count; i++)
        shuffled[order[i]] = logits[i];
}

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
    uint64_t state = noise_start(2);
    for (int at = 0; at < 5; at++) {
        float logits[5];
        noise_floats(&state, 5, logits);
        logits[(at + 2) % 5] = -INFINITY;
        logits[at] = 1.25f;
        for (int i = 0; i < 5; i++)
            logits[i] -= 8;
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
            char name[32];
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
    const double temperatures[] = { 0.25, 0.7, 1, 3 };
    for (int k = 0; k < 4; k++) {
        struct generator generator = seeded(40 + (unsigned)k);
        struct generator copy = generator;
        uint64_t state = noise_start(50 + (unsigned)k);
        float logits[7];
        noise_floats(&state, 7, logits);
        for (int i = 0; i < 7; i++)
            logits[i] *= 2;
        for (int i = 0; i < 2000; i++) {
            int32_t id = -1;
            double margin = 1;
            ck_assert_int_eq(sampler_sample(logits, 7, temperatures[k],
                                            &generator, &id, &error),
                             STATUS_OK);
            int32_t expected = oracle_draw(logits, 7, temperatures[k],
                                           generator_uniform(&copy), &margin);
            if (margin > 1e-12)     /* else rounding may decide */
                ck_assert_int_eq(id, expected);
        }
    }
}
END_TEST

START_TEST(extreme_temperatures_stay_numbers)
{
    const float wide[] = { 88.5f, 3e38f, -3e38f, 2.9e38f, 1 };
    const float close[] = { 1, 5, 3, -2 };
    float logits[5], near[4];
    int32_t order[5], places[4];
    shuffle(60, wide, 5, order, logits);
    shuffle(61, close, 4, places, near);
    const double tiny[] = { 4.9e-324, 1e-300, 1e-30 };
    const double huge[] = { 1e30, 1.7e308 };
    struct generator generator = seeded(3);
    int32_t id = -1;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 50; i++) {
            ck_assert_int_eq(sampler_sample(near, 4, tiny[k], &generator,
                                            &id, &error), STATUS_OK);
            ck_assert_int_eq(id, places[1]);
            ck_assert_int_eq(sampler_sample(logits, 5, tiny[k], &generator,
                                            &id, &error), STATUS_OK);
            ck_assert_int_eq(id, order[1]);
        }
    for (int k = 0; k < 2; k++) {
        int seen[4] = { 0 };
        for (int i = 0; i < 10240; i++) {
            ck_assert_int_eq(sampler_sample(near, 4, huge[k], &generator,
                                            &id, &error), STATUS_OK);
            seen[id]++;
        }
        /* binomial(10240, 1/4): 2560, standard deviation 43.8; eight of them
           are missed by one seed in 10^15 */
        for (int i = 0; i < 4; i++)
            ck_assert_int_lt(abs(seen[i] - 2560), 350);
    }
}
END_TEST

START_TEST(a_tie_at_a_tiny_temperature_is_shared)
{
    const float tied[] = { 2, 4, 4, 1 };
    struct generator generator = seeded(4);
    int seen[4] = { 0 };
    float logits[4];
    int32_t order[4];
    shuffle(62, tied, 4, order, logits);
    for (int i = 0; i < 2560; i++) {
        int32_t id = -1;
        ck_assert_int_eq(sampler_sample(logits, 4, 1e-30, &generator, &id,
                                        &error), STATUS_OK);
        seen[id]++;
    }
    ck_assert_int_eq(seen[order[0]] + seen[order[3]], 0);
    /* binomial(2560, 1/2): 1280, standard deviation 25.3; eight of them */
    ck_assert_int_lt(abs(seen[order[1]] - 1280), 202);
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
    const float few[] = { -INFINITY, 0, -INFINITY, 1, -INFINITY };
    struct generator generator = seeded(5);
    float logits[5];
    int32_t order[5];
    shuffle(63, few, 5, order, logits);
    for (int i = 0; i < 5000; i++) {
        int32_t id = -1;
        ck_assert_int_eq(sampler_sample(logits, 5, 2, &generator, &id,
                                        &error), STATUS_OK);
        ck_assert(id == order[1] || id == order[3]);
    }
}
END_TEST

/* Pearson's statistic of what was seen in n draws against the softmax. With k
   ids it has k - 1 degrees of freedom when the sampler is right. */
static double chi_square(const float *logits, int count, double temperature,
                         const int *seen, int draws)
{
    double weights[8], total = 0, statistic = 0;
    for (int i = 0; i < count; i++)
        total += weights[i] = exp(logits[i] / temperature);
    for (int i = 0; i < count; i++) {
        double expected = draws * weights[i] / total;
        ck_assert_double_ge(expected, 5);
        statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return statistic;
}

/* Six ids, 5 degrees of freedom for 80,000 draws together: chi-square is
   above 70 with a probability of 10^-13. And for 40 parts of 2,000 draws, of
   which the sum has 200: below 80 or above 390 with less than that.
   Below is a failure too: frequencies that fit too well are not random. */
START_TEST(frequencies_pass_chi_square_against_the_softmax)
{
    enum { PARTS = 40, DRAWS = 2000 };
    const float values[] = { 0.5f, -1, 1.5f, 0, -0.25f, 2 };
    const double temperatures[] = { 0.6, 1, 2.5 };
    for (int k = 0; k < 3; k++) {
        struct generator generator = seeded(100 + (unsigned)k);
        int seen[6] = { 0 };
        double sum = 0;
        float logits[6];
        int32_t order[6];
        shuffle(64 + (unsigned)k, values, 6, order, logits);
        for (int part = 0; part < PARTS; part++) {
            int here[6] = { 0 };
            for (int i = 0; i < DRAWS; i++) {
                int32_t id = -1;
                ck_assert_int_eq(sampler_sample(logits, 6, temperatures[k],
                                                &generator, &id, &error),
                                 STATUS_OK);
                here[id]++;
                seen[id]++;
            }
            sum += chi_square(logits, 6, temperatures[k], here, DRAWS);
        }
        ck_assert_double_lt(chi_square(logits, 6, temperatures[k], seen,
                                       PARTS * DRAWS), 70);
        ck_assert_double_gt(sum, 80);
        ck_assert_double_lt(sum, 390);
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

static struct generator any;

static struct generate_input staggered_input(void)
{
    static int32_t rows[2];
    rows[0] = named()[1];
    rows[1] = named()[2];
    return (struct generate_input){
        .ids = rows, .batch = 2, .tokens = 1, .max_new_tokens = 5,
        .eos_token_id = named()[0],
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
        .ids = names(ids, 6), .batch = 2, .tokens = 3, .max_new_tokens = 1,
        .eos_token_id = NO_EOS });
    const int32_t expected[] = { 2, 1, 4, 5, 3, 0, 2, 3 };
    expect_names(&output, 4, expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(zero_new_tokens_return_a_copy)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t script_ids[] = { 2, 1, 4, 3, 0, 2 };
    const int32_t *ids = names(script_ids, 6);
    for (int temperature = 0; temperature < 2; temperature++) {
        struct generator generator = seeded(1), before = generator;
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = 2, .tokens = 3, .eos_token_id = ids[0],
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
    struct tiny_gpt *model = oracle_model(0);
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
    struct tiny_gpt *model = oracle_model(0);
    for (int tokens = 1; tokens < 12; tokens += 2) {
        int32_t row[12];
        clear_prompt(model, 10 + (unsigned)tokens, 1, tokens, 12, row);
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
    struct tiny_gpt *model = oracle_model(0);
    struct generator generator = seeded(2), before = generator;
    const double zeros[] = { 0, -0.0 };
    uint64_t state = noise_start(30);
    int32_t ids[2];
    noise_ids(&state, 23, 2, 1, ids);
    for (int k = 0; k < 2; k++) {
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = 2, .tokens = 1,
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
    struct tiny_gpt *model = oracle_model(0);
    int32_t ids[3];
    uint64_t state = noise_start(31);
    noise_ids(&state, 23, 3, 1, ids);
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

/* Draws every row by whole prefixes. Returns how near a draw came to another
   id: see clear_prompt. */
static double draw_rows(const struct tiny_gpt *model, double temperature,
                        struct generator *generator, int32_t rows[3][9])
{
    double margin = 1;
    for (int t = 2; t < 9; t++)
        for (int b = 0; b < 3; b++) {
            float logits[23];
            full_logits(model, rows[b], t, logits);
            rows[b][t] = oracle_draw(logits, 23, temperature,
                                     generator_uniform(generator), &margin);
        }
    return margin;
}

/* Which also says the order of the draws: step by step, row by row. The
   first generator that comes near to no edge is taken. */
START_TEST(sampling_equals_an_explicit_loop_over_whole_prefixes)
{
    struct tiny_gpt *model = oracle_model(0);
    const double temperatures[] = { 0.3, 1, 4 };
    uint64_t state = noise_start(32);
    for (int k = 0; k < 3; k++) {
        int32_t rows[3][9], prompt[6];
        struct generator generator, copy;
        double margin = 0;
        noise_ids(&state, 23, 3, 2, prompt);
        for (int b = 0; b < 3; b++)
            memcpy(rows[b], prompt + 2 * b, 2 * sizeof *prompt);
        for (unsigned n = 0; margin < 1e-4 && n < 1000; n++) {
            copy = generator = seeded(1000 * (unsigned)(k + 1) + n);
            margin = draw_rows(model, temperatures[k], &copy, rows);
        }
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = prompt, .batch = 3, .tokens = 2, .max_new_tokens = 7,
                .eos_token_id = NO_EOS, .temperature = temperatures[k],
                .generator = &generator });
        expect_ids(&output, 9, rows[0]);
        expect_same_generator(&generator, &copy);
        generate_output_free(&output);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(equal_seeds_give_equal_tokens)
{
    struct tiny_gpt *model = oracle_model(0);
    struct generate_output outputs[3];
    const unsigned streams[] = { 5, 5, 6 };
    uint64_t state = noise_start(33);
    int32_t ids[2];
    noise_ids(&state, 23, 2, 1, ids);
    for (int k = 0; k < 3; k++) {
        struct generator generator = seeded(streams[k]);
        outputs[k] = generate(model, (struct generate_input){
            .ids = ids, .batch = 2, .tokens = 1, .max_new_tokens = 11,
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
    struct tiny_gpt *model = oracle_model(0);
    int32_t ids[6];
    clear_prompt(model, 34, 3, 2, 8, ids);
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
    ck_assert_int_eq(seen_ids[1], named()[3]);   /* row 1 at step 0 */
    ck_assert_int_eq(seen_ids[3], named()[0]);   /* row 1 at step 1 */
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(an_eos_in_the_prompt_finishes_nothing)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t ids[] = { 0, 0, 4, 0 };
    struct generate_output output = generate(model, (struct generate_input){
        .ids = names(ids, 4), .batch = 2, .tokens = 2, .max_new_tokens = 3,
        .eos_token_id = named()[0] });
    const int32_t expected[] = { 0, 0, 4, 5, 4, 4, 0, 4, 5, 4 };
    expect_names(&output, 5, expected);
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
    expect_names(&output, 3, expected);
    generate_output_free(&output);
    /* an EOS that row 1 never says: row 0 is filled to the end */
    const int32_t others[] = { 3, 4 };
    input.ids = names(others, 2);
    input.max_new_tokens = 4;
    output = generate(model, input);
    const int32_t filled[] = { 3, 0, 0, 0, 0, 4, 5, 4, 5, 4 };
    expect_names(&output, 5, filled);
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
    expect_names(&output, 3, ids);
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
        .ids = names(ids, 6), .batch = 3, .tokens = 2, .max_new_tokens = 7,
        .eos_token_id = named()[0] });
    const int32_t expected[] = { 5, 1, 0, 4, 3, 0, 3, 1, 0 };
    expect_names(&output, 3, expected);
    generate_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_caller_sees_each_step_and_can_stop)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t script[] = { 2, 3, 0, 4, 5, 4, 1, 0, 4, 5, 4, 5 };
    const int32_t *expected = names(script, 12);
    const int32_t ids[] = { expected[0], expected[6] };
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
    struct tiny_gpt *plain = oracle_model(0), *model = oracle_model(0.5);
    uint64_t state = noise_start(35);
    int32_t ids[2];
    noise_ids(&state, 23, 2, 1, ids);
    struct generate_input input = {
        .ids = ids, .batch = 2, .tokens = 1, .max_new_tokens = 8,
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
        .ids = names(ids, 4), .batch = 2, .tokens = 2, .max_new_tokens = 6,
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
    expect_names(&output, 3, ids);
    generate_output_free(&output);
    ck_assert_ptr_null(output.ids);
    generate_output_free(&output);
    generate_output_free(NULL);
    tiny_gpt_free(&model);
}
END_TEST

/* ----------------------------------------------------------- the commands */

static char directory[64], said[65536];

/* Saves the model where the commands can find it. */
static void put_on_disk(struct tiny_gpt *model)
{
    snprintf(directory, sizeof directory, "%s/6-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    enum status status = tiny_gpt_save(model, directory, &error);
    expect_ok(status, &error);
}

static void take_off_disk(void)
{
    char path[128];
    const char *const files[] = { "config.json", "model.safetensors" };
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        remove(path);
    }
    rmdir(directory);
}

/* Runs a line of the shell; said receives its output. Returns the status. */
static int shell(const char *line)
{
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(said, 1, sizeof said - 1, pipe);
    said[length] = '\0';
    int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status), "%s: killed", line);
    return WEXITSTATUS(status);
}

/* Runs "tinygpt ARGUMENTS", with DIR standing for the directory. */
static int tinygpt(const char *arguments)
{
    char line[6000];
    const char *hole = strstr(arguments, "DIR");
    if (hole == NULL)
        snprintf(line, sizeof line, "'%s' %s", harness_program(), arguments);
    else
        snprintf(line, sizeof line, "'%s' %.*s%s%s", harness_program(),
                 (int)(hole - arguments), arguments, directory, hole + 3);
    return shell(line);
}

/* Bad input: status 1, one line on stderr that has the word, no output. */
static void complains(const char *arguments, int status, const char *word)
{
    char both[512];
    snprintf(both, sizeof both, "%s 2>/dev/null", arguments);
    ck_assert_int_eq(tinygpt(both), status);
    ck_assert_msg(said[0] == '\0', "%s: output \"%s\"", arguments, said);
    snprintf(both, sizeof both, "%s 2>&1 >/dev/null", arguments);
    ck_assert_int_eq(tinygpt(both), status);
    ck_assert_msg(strstr(said, word) != NULL, "%s: \"%s\" does not say %s",
                  arguments, said, word);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1,
                  "%s: not one line: \"%s\"", arguments, said);
}

START_TEST(the_generate_command_says_what_the_library_says)
{
    struct tiny_gpt *model = oracle_model(0);
    uint64_t state = noise_start(36);
    int32_t ids[3];
    clear_prompt(model, 37, 1, 3, 9, ids);
    put_on_disk(model);
    for (int temperature = 0; temperature < 2; temperature++) {
        char line[256], expected[256] = "{\"tokens\":[", plain[256] = "";
        struct generator generator;
        const uint64_t seed = noise_next(&state);
        generator_seed(&generator, seed, 6);
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = 1, .tokens = 3, .max_new_tokens = 6,
                .eos_token_id = NO_EOS, .temperature = temperature,
                .generator = &generator });
        for (int t = 3; t < 9; t++) {
            size_t a = strlen(expected), b = strlen(plain);
            snprintf(expected + a, sizeof expected - a, t == 3 ? "%d" : ",%d",
                     output.ids[t]);
            snprintf(plain + b, sizeof plain - b, t == 3 ? "%d" : " %d",
                     output.ids[t]);
        }
        strcat(expected, "]}\n");
        strcat(plain, "\n");
        snprintf(line, sizeof line, "generate --model DIR --prompt-ids "
                 "%d,%d,%d --max-new-tokens 6 --temperature %d --seed %llu "
                 "--json", ids[0], ids[1], ids[2], temperature,
                 (unsigned long long)seed);
        ck_assert_int_eq(tinygpt(line), 0);
        ck_assert_str_eq(said, expected);
        *strstr(line, "--json") = '\0';
        ck_assert_int_eq(tinygpt(line), 0);
        ck_assert_str_eq(said, plain);
        generate_output_free(&output);
    }
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

/* Runs "tinygpt generate" after prompt, a line of the model's own ids. */
static void expect_generated(const char *prompt, int count,
                             const char *options, const char *expected)
{
    char line[256];
    snprintf(line, sizeof line, "generate --model DIR --prompt-ids %s "
             "--max-new-tokens %d %s", prompt, count, options);
    ck_assert_int_eq(tinygpt(line), 0);
    ck_assert_str_eq(said, expected);
}

START_TEST(the_generate_command_stops_at_eos)
{
    struct tiny_gpt *model = scripted_model(staggered);
    char eos[2][32], two[8], both[16], json[32], plain[8];
    const int32_t *name = named();
    put_on_disk(model);
    snprintf(eos[0], sizeof eos[0], "--eos %d --json", name[0]);
    snprintf(eos[1], sizeof eos[1], "--eos=%d", name[0]);
    snprintf(two, sizeof two, "%d", name[2]);
    snprintf(both, sizeof both, "%d,%d", name[2], name[3]);
    snprintf(json, sizeof json, "{\"tokens\":[%d,%d]}\n", name[3], name[0]);
    snprintf(plain, sizeof plain, "%d\n", name[3]);
    expect_generated(two, 7, eos[0], json);
    expect_generated(two, 7, eos[1], plain);    /* the mark is not shown */
    expect_generated(both, 0, "--json", "{\"tokens\":[]}\n");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(statistics_count_tokens_and_leave_the_output_alone)
{
    struct tiny_gpt *model = scripted_model(staggered);
    const int32_t *name = named();
    char line[128], plain[8];
    put_on_disk(model);
    snprintf(plain, sizeof plain, "%d\n", name[3]);
    snprintf(line, sizeof line, "generate --model DIR --prompt-ids %d "
             "--max-new-tokens 7 --eos %d --stats 2>/dev/null", name[2],
             name[0]);
    ck_assert_int_eq(tinygpt(line), 0);
    ck_assert_str_eq(said, plain);
    strcpy(strstr(line, "2>"), "2>&1 >/dev/null");
    ck_assert_int_eq(tinygpt(line), 0);          /* the EOS is counted */
    ck_assert_str_eq(said, "tokens: 1 of the prompt, 2 generated\n");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

/* 256 ids, all weights zero but the token rows, which are one-hot in one of
   two channels: the model repeats what it read. */
static struct tiny_gpt *byte_model(void)
{
    const struct gpt_config config = {
        .vocab_size = 256, .context_length = 20, .d_model = 256,
        .n_layers = 1, .n_heads = 1, .d_ff = 1, .layer_norm_eps = 1e-5,
    };
    struct tiny_gpt *model = new_model(&config);
    struct parameters *p = tiny_gpt_parameters(model);
    fill(&p->final_norm.weight, 1);
    for (int id = 0; id < 256; id++)
        p->token_embedding.weight.data[257 * id] = 1;
    return model;
}

START_TEST(a_run_without_a_number_fills_the_context)
{
    struct tiny_gpt *model = byte_model();
    put_on_disk(model);
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt abc"), 0);
    ck_assert_str_eq(said, "ccccccccccccccccc");
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt-ids 97"
                             " --eos 98 --prompt-ids 99 --json"), 0);
    ck_assert_int_eq((int)strlen(said), 12 + 3 * 19 + 1);
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt 01234567890123"
                             "456789"), 0);
    ck_assert_str_eq(said, "");
    complains("generate --model DIR --prompt 012345678901234567890", 1,
              "context_length 20");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(text_goes_in_and_comes_out_as_bytes)
{
    struct tiny_gpt *model = byte_model();
    put_on_disk(model);
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt abc "
                             "--max-new-tokens 4"), 0);
    ck_assert_str_eq(said, "cccc");
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt-ids 97,233 "
                             "--max-new-tokens 2"), 0);
    ck_assert_str_eq(said, "\xe9\xe9");
    ck_assert_int_eq(tinygpt("generate --model DIR --prompt \xc3\xa9 "
                             "--max-new-tokens 1 --json"), 0);
    ck_assert_str_eq(said, "{\"tokens\":[169]}\n");
    complains("generate --model DIR --prompt '' --max-new-tokens 1", 1,
              "prompt is empty");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

/* Reads {"rows":[[…]]} of width floats a row; exact, as %.9g promises. */
static int read_rows(float *rows, int width)
{
    const char *at = said;
    int count = 0;
    ck_assert_msg(strncmp(at, "{\"rows\":[", 9) == 0, "%s", said);
    for (at += 9; *at == '[' || *at == ','; count++) {
        at += *at == ',';
        for (int v = 0; v < width; v++) {
            char *end;
            ck_assert_int_eq(*at, v == 0 ? '[' : ',');
            rows[count * width + v] = strtof(at + 1, &end);
            at = end;
        }
        ck_assert_int_eq(*at++, ']');
    }
    ck_assert_str_eq(at, "]}\n");
    return count;
}

START_TEST(the_logits_command_gives_the_rows_that_predict)
{
    struct tiny_gpt *model = oracle_model(0);
    struct golden *golden = golden_open("gpt_tiny");
    const int32_t *ids = golden_get(golden, "in.ids")->ids;
    const float *expected = golden_get(golden, "out.logits")->f32 + 2 * 23;
    static float rows[2][8 * 23];
    put_on_disk(model);
    for (int k = 0; k < 2; k++) {
        char line[256];
        snprintf(line, sizeof line, "logits --model DIR --prompt-ids "
                 "%d,%d,%d --continuation-ids %d,%d,%d,%d --json%s", ids[0],
                 ids[1], ids[2], ids[3], ids[4], ids[5], ids[6],
                 k == 0 ? "" : " --no-cache");
        ck_assert_int_eq(tinygpt(line), 0);
        ck_assert_int_eq(read_rows(rows[k], 23), 4);
        expect_close("rows", rows[k], expected, 4 * 23, 2,
                     (const int[]){ 4, 23 }, TOLERANCE);
    }
    float last[23];
    full_logits(model, ids, 6, last);
    expect_same_bits("the last row without a cache", rows[1] + 3 * 23, last,
                     sizeof last);
    golden_close(golden);
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_commands_refuse_bad_input_in_one_line)
{
    struct tiny_gpt *model = oracle_model(0);
    put_on_disk(model);
    complains("generate --model DIR --prompt hi --max-new-tokens 1", 1,
              "vocab_size 256");
    complains("generate --model DIR --prompt-ids '' --max-new-tokens 1", 1,
              "prompt is empty");
    complains("generate --model DIR --prompt-ids 1,23 --max-new-tokens 1", 1,
              "ids[0,1]");
    complains("generate --model DIR --prompt-ids 1,2 --max-new-tokens 11", 1,
              "context_length 12");
    complains("generate --model DIR --prompt-ids 1 --max-new-tokens 1 "
              "--temperature -1", 1, "temperature");
    complains("generate --model DIR --prompt-ids 1 --max-new-tokens 1 "
              "--eos 23", 1, "eos_token_id");
    complains("generate --model /nonexistent --prompt-ids 1 "
              "--max-new-tokens 1", 1, "/nonexistent");
    complains("generate --model DIR --max-new-tokens 1", 2, "--prompt");
    complains("generate --model DIR --prompt a --prompt-ids 1 "
              "--max-new-tokens 1", 2, "--prompt");
    complains("generate --prompt-ids 1 --max-new-tokens 1", 2, "--model");
    complains("generate --model DIR --frobnicate", 2, "--frobnicate");
    complains("logits --model DIR --prompt-ids '' --continuation-ids 1", 1,
              "prompt is empty");
    complains("logits --model DIR --prompt-ids 1,99 --continuation-ids 1", 1,
              "--prompt-ids[1]");
    complains("logits --model DIR --prompt-ids 1 --continuation-ids 1,23",
              1, "--continuation-ids[1]");
    complains("logits --model DIR --prompt-ids 1,2,3,4,5,6 "
              "--continuation-ids 1,2,3,4,5,6,7", 1, "context_length 12");
    complains("logits --model DIR --prompt-ids 1", 2, "--continuation-ids");
    complains("logits --frobnicate", 2, "--frobnicate");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_commands_refuse_a_damaged_checkpoint)
{
    struct tiny_gpt *model = oracle_model(0);
    char path[128];
    put_on_disk(model);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    ck_assert_int_eq(truncate(path, 5000), 0);
    complains("generate --model DIR --prompt-ids 1 --max-new-tokens 1", 1,
              "model.safetensors");
    complains("logits --model DIR --prompt-ids 1 --continuation-ids 1", 1,
              "model.safetensors");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(logits_that_are_not_numbers_are_not_printed)
{
    struct tiny_gpt *model = breaking_model();
    put_on_disk(model);
    complains("logits --model DIR --prompt-ids 5,4 "
              "--continuation-ids 5,4,5,4", 1, "row 2: logits[0]");
    complains("generate --model DIR --prompt-ids 5,4 --max-new-tokens 4 "
              "--json", 1, "step 2, row 0");
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(an_output_that_cannot_be_written_is_an_error)
{
    struct tiny_gpt *model = oracle_model(0);
    put_on_disk(model);
    const char *const lines[] = {
        "generate --model DIR --prompt-ids 1 --max-new-tokens 9",
        "generate --model DIR --prompt-ids 1 --max-new-tokens 9 --json",
        "logits --model DIR --prompt-ids 1 --continuation-ids 1,2 --json",
        "generate --model book/checkpoint --prompt a --max-new-tokens 9",
    };
    for (size_t k = 0; k < sizeof lines / sizeof lines[0]; k++) {
        char line[256];
        snprintf(line, sizeof line, "%s 2>&1 >/dev/full", lines[k]);
        ck_assert_int_eq(tinygpt(line), 1);
        ck_assert_msg(strstr(said, "cannot write: No space") != NULL, "%s",
                      said);
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
    take_off_disk();
    tiny_gpt_free(&model);
}
END_TEST

/* A pipe without a reader, made of a FIFO: opened for both, then for writing,
   then closed for reading. */
START_TEST(a_reader_that_went_away_is_an_error)
{
    struct tiny_gpt *model = oracle_model(0);
    put_on_disk(model);
    const char *const lines[] = {
        "generate --max-new-tokens 9",
        "generate --max-new-tokens 9 --json",
        "logits --continuation-ids 1,2 --json",
    };
    for (int k = 0; k < 3; k++) {
        char line[6000];
        snprintf(line, sizeof line, "cd %s && mkfifo f && exec 3<>f 4>f 3<&- "
                 "&& rm f && cd - >/dev/null && '%s' %s --model %s "
                 "--prompt-ids 1 2>&1 >&4", directory, harness_program(),
                 lines[k], directory);
        ck_assert_int_eq(shell(line), 1);
        ck_assert_msg(strstr(said, "cannot write: Broken pipe") != NULL,
                      "%s", said);
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
    take_off_disk();
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
    TEST(one_id_costs_one_uniform_draw, 3,
         "let target be a uniform point below total"),
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
    TEST(the_generate_command_says_what_the_library_says, 3,
         "generating with a model of the disk"),
    TEST(the_generate_command_stops_at_eos, 3, "showing what is generated"),
    TEST(statistics_count_tokens_and_leave_the_output_alone, 3,
         "counting what was generated"),
    TEST(a_run_without_a_number_fills_the_context, 2,
         "describe the request"),
    TEST(text_goes_in_and_comes_out_as_bytes, 3, "reading a prompt"),
    TEST(the_logits_command_gives_the_rows_that_predict, 3,
         "feed what row k has not seen"),
    TEST(the_commands_refuse_bad_input_in_one_line, 3,
         "insist on what has no default"),
    TEST(the_commands_refuse_a_damaged_checkpoint, 3,
         "generating with a model of the disk"),
    TEST(logits_that_are_not_numbers_are_not_printed, 3,
         "take the row of the last position"),
    TEST(an_output_that_cannot_be_written_is_an_error, 3,
         "showing what is generated"),
    TEST(a_reader_that_went_away_is_an_error, 3,
         "let a reader that went away be an error like any other"),
};

SUITE("chapter 6, generation", tests);
