/* Chapter 3, first half: the generator, the loss, dropout, and files that
   are whole or refused. Inner mechanisms first. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "dropout.h"
#include "file.h"
#include "generator.h"
#include "init.h"
#include "loss.h"
#include "mode.h"
#include "model.h"
#include "model_file.h"
#include "safetensors.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif
#define LENGTH(array) (sizeof (array) / sizeof *(array))

/* ------------------------------------------------------------- materials */

/* With this dropout a mask of the smallest size, 48, is all zeros or without
   one in less than one of 10^9 draws. */
static const struct gpt_config small = {
    .vocab_size = 11, .context_length = 7, .d_model = 6, .n_layers = 2,
    .n_heads = 3, .d_ff = 10, .dropout = 0.625, .layer_norm_eps = 1e-5
};

/* Ids and labels for small: B = 2, T = 4; all ids differ, and all labels do;
   one label is ignored. */
static int32_t some_ids[11], some_labels[11];
enum { SOME_BATCH = 2, SOME_TOKENS = 4 };

static struct forward_input some_input(void)
{
    uint64_t state = noise_start(1);
    noise_order(&state, small.vocab_size, some_ids);
    noise_order(&state, small.vocab_size, some_labels);
    some_labels[2] = -100;
    return (struct forward_input){
        .ids = some_ids, .batch = SOME_BATCH, .tokens = SOME_TOKENS
    };
}

/* A generator of the book in a state that this test has never been given. */
static struct generator seeded(unsigned stream)
{
    struct generator generator;
    uint64_t state = noise_start(1000 + stream);
    const uint64_t seed = noise_next(&state);
    generator_seed(&generator, seed, noise_next(&state));
    return generator;
}

/* A directory of the test's own; scratch_remove wants nothing below it but
   files, and fails when a file is there that the test did not expect. */
static char scratch[64];

static void scratch_make(void)
{
    snprintf(scratch, sizeof scratch, "%s/3-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static const char *inside(const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static int entries_in(const char *directory)
{
    int count = 0;
    DIR *open = opendir(directory);
    ck_assert_ptr_nonnull(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL; )
        count += strcmp(entry->d_name, ".") != 0
                 && strcmp(entry->d_name, "..") != 0;
    closedir(open);
    return count;
}

static void empty_directory(const char *directory)
{
    DIR *open = opendir(directory);
    ck_assert_ptr_nonnull(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL; ) {
        char path[512];
        if (strcmp(entry->d_name, ".") == 0
            || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (unlink(path) != 0 && rmdir(path) != 0) {
            empty_directory(path);
            rmdir(path);
        }
    }
    closedir(open);
}

static void scratch_remove(void)
{
    empty_directory(scratch);
    ck_assert_int_eq(rmdir(scratch), 0);
}

/* Plain stdio, so that no file under test is written by the code under
   test. */
static void put_file(const char *path, const void *bytes, size_t length)
{
    remove(path);       /* ext4 waits for the disk when a file is cut to 0 */
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static size_t get_file(const char *path, unsigned char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is not there", path);
    const size_t length = fread(bytes, 1, room, file);
    ck_assert_msg(length < room, "%s is larger than the test", path);
    fclose(file);
    return length;
}

static void expect_file(const char *path, const void *bytes, size_t length)
{
    static unsigned char found[1 << 20];
    ck_assert_uint_eq(get_file(path, found, sizeof found), length);
    expect_same_bits(path, found, bytes, length);
}

/* The disk is full after so many bytes of a file. */
static struct rlimit unlimited;

static void fill_disk_after(rlim_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    const struct rlimit limit = { bytes, unlimited.rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void empty_disk(void)
{
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    signal(SIGXFSZ, SIG_DFL);
}

/* ------------------------------------------------------------- generator */

START_TEST(generator_gives_the_numbers_of_its_reference)
{
    static const uint32_t expected[] = {
        0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b,
        0xcbed606e
    };
    struct generator generator;
    generator_seed(&generator, 42, 54);
    for (size_t i = 0; i < LENGTH(expected); i++)
        ck_assert_uint_eq(generator_next(&generator), expected[i]);
}
END_TEST

START_TEST(generator_state_can_be_copied_and_streams_differ)
{
    struct generator first, second, other;
    uint64_t state = noise_start(2);
    const uint64_t seed = noise_next(&state);
    const uint64_t stream = noise_next(&state);
    generator_seed(&first, seed, stream);
    generator_next(&first);
    second = first;
    generator_seed(&other, seed, stream + 1);
    generator_next(&other);
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        const uint32_t number = generator_next(&first);
        ck_assert_uint_eq(generator_next(&second), number);
        same += generator_next(&other) == number;
    }
    ck_assert_int_le(same, 1);
}
END_TEST

/* A uniform number has mean 1/2 and variance 1/12; the mean of n of them is
   within eight standard errors of 1/2 for all but one seed in 10^15. So are
   the bins, and the moments and shares below. */
START_TEST(uniform_numbers_fill_the_unit_interval)
{
    enum { COUNT = 256000, BINS = 16 };
    struct generator generator = seeded(1);
    int bins[BINS] = { 0 };
    double sum = 0;
    for (int i = 0; i < COUNT; i++) {
        const double u = generator_uniform(&generator);
        /* a call of ck_assert is a line to a file: too much for each u */
        if (u < 0 || u >= 1 || u * 4294967296.0 != floor(u * 4294967296.0))
            ck_abort_msg("%.17g is no 32-bit fraction", u);
        sum += u;
        bins[(int)(u * BINS)]++;
    }
    ck_assert_double_le(fabs(sum / COUNT - 0.5), 8 / sqrt(12.0 * COUNT));
    for (int k = 0; k < BINS; k++)
        ck_assert_double_le(fabs(bins[k] - COUNT / (double)BINS),
                            8 * sqrt(COUNT / (double)BINS));
}
END_TEST

/* Moments of N(0,1): 0, 1, 0, 3; variances of their estimates 1, 2, 15, 96
   over n. */
START_TEST(normal_numbers_have_the_moments_of_a_normal)
{
    enum { COUNT = 256000 };
    static const double expected[] = { 0, 1, 0, 3 };
    static const double variance[] = { 1, 2, 15, 96 };
    struct generator generator = seeded(2);
    double moments[4] = { 0 };
    for (int i = 0; i < COUNT; i++) {
        const double z = generator_normal(&generator);
        if (!isfinite(z))
            ck_abort_msg("number %d is %g", i, z);
        for (int k = 0; k < 4; k++)
            moments[k] += pow(z, k + 1) / COUNT;
    }
    for (int k = 0; k < 4; k++)
        ck_assert_double_le(fabs(moments[k] - expected[k]),
                            8 * sqrt(variance[k] / COUNT));
}
END_TEST

START_TEST(a_normal_number_takes_two_draws)
{
    struct generator generator = seeded(3), copy = generator;
    generator_normal(&generator);
    generator_next(&copy);
    generator_next(&copy);
    expect_same_bits("state", &generator, &copy, sizeof copy);
}
END_TEST

/* ------------------------------------------------------------------ loss */

/* Two logits 0 and ln 3 have the probabilities 1/4 and 3/4. */
START_TEST(logits_at_t_are_held_against_the_label_at_t_plus_1)
{
    const float logits[] = { 0, logf(3), 5, -7 };
    const int32_t labels[] = { 0, 1 };
    struct error error = { STATUS_OK, "" };
    float loss = -1;
    expect_ok(cross_entropy(logits, labels, 1, 2, 2, &loss, NULL, &error),
              &error);
    ck_assert_double_eq_tol(loss, -log(0.75), 1e-6);

    const int32_t other[] = { 1, 0 };
    expect_ok(cross_entropy(logits, other, 1, 2, 2, &loss, NULL, &error),
              &error);
    ck_assert_double_eq_tol(loss, -log(0.25), 1e-6);
}
END_TEST

/* A row that puts everything on its target loses nothing; one that puts
   everything elsewhere loses the distance. */
START_TEST(logits_of_ten_thousand_give_a_finite_loss)
{
    const float certain[] = { -1e4f, 1e4f, -1e4f,  0, 0, 0 };
    const float wrong[] = { 1e4f, -1e4f, 1e4f,  0, 0, 0 };
    const int32_t labels[] = { 0, 1 };
    struct error error = { STATUS_OK, "" };
    float loss = -1, gradient[6];
    expect_ok(cross_entropy(certain, labels, 1, 2, 3, &loss, gradient,
                            &error), &error);
    ck_assert_float_eq(loss, 0);
    expect_ok(cross_entropy(wrong, labels, 1, 2, 3, &loss, gradient,
                            &error), &error);
    ck_assert_double_eq_tol(loss, 2e4 + log(2), 2e-2);
    ck_assert_double_eq_tol(gradient[0], 0.5, 1e-6);
    ck_assert_double_eq_tol(gradient[1], -1, 1e-6);
    for (int k = 0; k < 6; k++)
        ck_assert(isfinite(gradient[k]));
}
END_TEST

START_TEST(the_mean_is_over_the_labels_that_count)
{
    /* three positions have a target; the middle one is ignored */
    const float logits[] = { 0, logf(3),  9, -9,  0, logf(3),  1, 1 };
    const int32_t labels[] = { 0, 1, -100, 0 };
    struct error error = { STATUS_OK, "" };
    float loss = -1;
    expect_ok(cross_entropy(logits, labels, 1, 4, 2, &loss, NULL, &error),
              &error);
    ck_assert_double_eq_tol(loss, (-log(0.75) - log(0.25)) / 2, 1e-6);
}
END_TEST

static void expect_nothing(const int32_t *labels, int batch, int tokens)
{
    float logits[12], gradient[12], loss = -1;
    uint64_t state = noise_start(3);
    struct error error = { STATUS_OK, "" };
    for (int k = 0; k < 12; k++) {
        logits[k] = noise(&state);
        gradient[k] = NAN;
    }
    expect_ok(cross_entropy(logits, labels, batch, tokens, 3, &loss,
                            gradient, &error), &error);
    ck_assert_float_eq(loss, 0);
    for (int k = 0; k < batch * tokens * 3; k++)
        ck_assert_float_eq(gradient[k], 0);
}

START_TEST(no_label_that_counts_gives_zero_and_a_zero_gradient)
{
    const int32_t ignored[] = { 2, -100, 1, -100 };
    const int32_t single[] = { 2, 0, 1 };
    expect_nothing(ignored, 2, 2);
    expect_nothing(single, 3, 1);
}
END_TEST

/* The loss once more: in double, by the softmax as it is written. */
static double direct_loss(const double *logits, const int32_t *labels,
                          int batch, int tokens, int vocab_size)
{
    double total = 0, counted = 0;
    for (int b = 0; b < batch; b++)
        for (int t = 1; t < tokens; t++) {
            const double *row = logits + (b * tokens + t - 1) * vocab_size;
            const int32_t label = labels[b * tokens + t];
            double sum = 0;
            if (label < 0)
                continue;
            for (int j = 0; j < vocab_size; j++)
                sum += exp(row[j]);
            total -= log(exp(row[label]) / sum);
            counted += 1;
        }
    return total / counted;
}

START_TEST(the_gradient_of_the_loss_agrees_with_finite_differences)
{
    enum { B = 2, T = 4, V = 5, COUNT = B * T * V };
    int32_t labels[B * T];
    float logits[COUNT], gradient[COUNT], expected[COUNT], loss;
    double nudged[COUNT];
    uint64_t state = noise_start(8);
    struct error error = { STATUS_OK, "" };
    noise_ids(&state, V, B, T, labels);
    labels[2] = -100;
    for (int k = 0; k < COUNT; k++)
        nudged[k] = logits[k] = 3 * noise(&state);
    expect_ok(cross_entropy(logits, labels, B, T, V, &loss, gradient,
                            &error), &error);
    ck_assert_double_eq_tol(loss, direct_loss(nudged, labels, B, T, V),
                            1e-6);
    for (int k = 0; k < COUNT; k++) {
        const double nudge = 1e-5;
        nudged[k] = logits[k] + nudge;
        const double above = direct_loss(nudged, labels, B, T, V);
        nudged[k] = logits[k] - nudge;
        const double below = direct_loss(nudged, labels, B, T, V);
        nudged[k] = logits[k];
        expected[k] = (float)((above - below) / (2 * nudge));
    }
    expect_close("d_logits", gradient, expected, COUNT, 3,
                 (const int[]){ B, T, V }, TOLERANCE);
    for (int v = 0; v < V; v++) {
        ck_assert_float_eq(gradient[1 * V + v], 0);       /* ignored */
        ck_assert_float_eq(gradient[3 * V + v], 0);       /* the last */
        ck_assert_float_eq(gradient[7 * V + v], 0);
    }
}
END_TEST

START_TEST(a_label_outside_the_vocabulary_is_refused_by_its_index)
{
    static const int32_t bad[] = {
        -1, -99, -101, 3, INT32_MAX, INT32_MIN
    };
    const float logits[18] = { 0 };
    for (size_t i = 0; i < LENGTH(bad); i++)
        for (int at = 0; at < 6; at++) {
            int32_t labels[] = { 0, 1, 2, 0, 1, -100 };
            float loss = 77, gradient[18] = { 5 };
            char name[32];
            struct error error = { STATUS_OK, "" };
            labels[at] = bad[i];
            ck_assert_int_eq(cross_entropy(logits, labels, 2, 3, 3, &loss,
                                           gradient, &error),
                             STATUS_INVALID);
            snprintf(name, sizeof name, "labels[%d,%d]", at / 3, at % 3);
            expect_named(&error, name);
            ck_assert_float_eq(loss, 77);
            ck_assert_float_eq(gradient[0], 5);
        }
}
END_TEST

START_TEST(the_loss_of_the_golden_logits_is_the_golden_loss)
{
    struct golden *golden = golden_open("gpt_tiny");
    const struct golden_tensor *logits = golden_get(golden, "out.logits");
    const struct golden_tensor *labels = golden_get(golden, "in.labels");
    const struct golden_tensor *expected = golden_get(golden, "out.loss");
    struct error error = { STATUS_OK, "" };
    float loss = -1;
    expect_ok(cross_entropy(logits->f32, labels->ids, logits->shape[0],
                            logits->shape[1], logits->shape[2], &loss, NULL,
                            &error), &error);
    expect_close("loss", &loss, expected->f32, 1, 0, NULL, TOLERANCE);
    golden_close(golden);
}
END_TEST

/* --------------------------------------------------------------- dropout */

enum { MASK = 102400 };
static float mask[MASK], other_mask[MASK];

START_TEST(a_dropout_mask_has_mean_one)
{
    static const double rates[] = { 0.1, 0.25, 0.5, 0.9 };
    for (size_t i = 0; i < LENGTH(rates); i++) {
        const double p = rates[i];
        struct generator generator = seeded(10 + (unsigned)i);
        double sum = 0;
        dropout_mask(&generator, p, MASK, mask);
        for (int k = 0; k < MASK; k++) {
            if (mask[k] != 0 && mask[k] != (float)(1 / (1 - p)))
                ck_abort_msg("mask[%d] is %g for p = %g", k, mask[k], p);
            sum += mask[k];
        }
        /* one element has variance p / (1 - p) */
        ck_assert_double_le(fabs(sum / MASK - 1),
                            8 * sqrt(p / (1 - p) / MASK));
    }
}
END_TEST

START_TEST(a_dropout_mask_drops_a_share_of_p_without_a_pattern)
{
    const double p = 0.3;
    int dropped = 0, both = 0;
    struct generator generator = seeded(20);
    dropout_mask(&generator, p, MASK, mask);
    for (int k = 0; k < MASK; k++)
        dropped += mask[k] == 0;
    for (int k = 1; k < MASK; k++)
        both += mask[k] == 0 && mask[k - 1] == 0;
    ck_assert_double_le(fabs(dropped - p * MASK),
                        8 * sqrt(p * (1 - p) * MASK));
    /* neighbours are independent: p² of the pairs; pairs overlap, so the
       variance of independent pairs grows by 2(p³ - p⁴) for each */
    ck_assert_double_le(fabs(both - p * p * MASK),
                        8 * sqrt((p * p * (1 - p * p)
                                  + 2 * p * p * p * (1 - p)) * MASK));
}
END_TEST

START_TEST(equal_seeds_give_equal_masks_and_other_seeds_others)
{
    struct generator generator = seeded(21);
    dropout_mask(&generator, 0.5, MASK, mask);
    generator = seeded(21);
    dropout_mask(&generator, 0.5, MASK, other_mask);
    expect_same_bits("mask", mask, other_mask, sizeof mask);
    generator = seeded(22);
    dropout_mask(&generator, 0.5, MASK, other_mask);
    int same = 0;
    for (int k = 0; k < MASK; k++)
        same += mask[k] == other_mask[k];
    ck_assert_double_le(fabs(same - 0.5 * MASK), 8 * sqrt(0.25 * MASK));
}
END_TEST

/* --------------------------------------------------- the forward call */

START_TEST(a_new_model_evaluates_and_its_mode_can_be_set)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    ck_assert_int_eq(tiny_gpt_mode(model), MODE_EVALUATION);
    tiny_gpt_set_mode(model, MODE_TRAINING);
    ck_assert_int_eq(tiny_gpt_mode(model), MODE_TRAINING);
    tiny_gpt_set_mode(model, MODE_EVALUATION);
    ck_assert_int_eq(tiny_gpt_mode(model), MODE_EVALUATION);
    tiny_gpt_free(&model);
}
END_TEST

static struct forward_output run(const struct tiny_gpt *model,
                                 const struct forward_input *input)
{
    struct forward_output output = {0};
    struct error error = { STATUS_OK, "" };
    expect_ok(tiny_gpt_forward(model, input, &output, &error), &error);
    return output;
}

static void expect_same_logits(const struct forward_output *a,
                               const struct forward_output *b)
{
    ck_assert(tensor_same_shape(&a->logits, &b->logits));
    expect_same_bits("logits", a->logits.data, b->logits.data,
                     tensor_size(&a->logits) * sizeof (float));
}

START_TEST(evaluation_drops_nothing_and_draws_nothing)
{
    struct gpt_config without = small;
    without.dropout = 0;
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct tiny_gpt *plain = noisy_model(&without, 3);
    struct generator generator = seeded(30), before = generator;
    struct forward_input input = some_input();
    struct forward_output expected = run(plain, &input);
    input.generator = &generator;
    struct forward_output once = run(model, &input);
    struct forward_output again = run(model, &input);
    expect_same_bits("generator", &generator, &before, sizeof before);
    expect_same_logits(&once, &expected);
    expect_same_logits(&once, &again);
    input.generator = NULL;
    struct forward_output alone = run(model, &input);
    expect_same_logits(&once, &alone);
    forward_output_free(&expected);
    forward_output_free(&once);
    forward_output_free(&again);
    forward_output_free(&alone);
    tiny_gpt_free(&model);
    tiny_gpt_free(&plain);
}
END_TEST

START_TEST(training_without_dropout_equals_evaluation)
{
    struct gpt_config config = small;
    config.dropout = 0;
    struct tiny_gpt *model = noisy_model(&config, 3);
    struct generator generator = seeded(31), before = generator;
    struct activations activations = {0};
    struct forward_input input = some_input();
    struct forward_output expected = run(model, &input);
    tiny_gpt_set_mode(model, MODE_TRAINING);
    struct forward_output alone = run(model, &input);
    input.generator = &generator;
    input.activations = &activations;
    struct forward_output trained = run(model, &input);
    expect_same_logits(&expected, &alone);
    expect_same_logits(&expected, &trained);
    expect_same_bits("generator", &generator, &before, sizeof before);
    ck_assert_int_eq(activations.embedding_dropout.rank, 0);
    for (int l = 0; l < config.n_layers; l++) {
        ck_assert_int_eq(activations.blocks[l].probs_dropout.rank, 0);
        ck_assert_int_eq(activations.blocks[l].attention_dropout.rank, 0);
        ck_assert_int_eq(activations.blocks[l].down_dropout.rank, 0);
    }
    activations_free(&activations);
    forward_output_free(&expected);
    forward_output_free(&alone);
    forward_output_free(&trained);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(training_with_dropout_needs_a_generator)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct activations activations = {0};
    struct forward_input input = some_input();
    struct forward_output output = {0};
    struct error error = { STATUS_OK, "" };
    tiny_gpt_set_mode(model, MODE_TRAINING);
    input.activations = &activations;
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "generator");
    ck_assert_ptr_null(output.logits.data);
    ck_assert_ptr_null(activations.blocks);
    tiny_gpt_free(&model);
}
END_TEST

/* A training call of small, with all that it recorded. */
static struct {
    struct tiny_gpt *model;
    struct activations activations;
    struct forward_output output;
    struct generator after;
} trained;

static void train_once(unsigned stream)
{
    struct forward_input input = some_input();
    trained.model = noisy_model(&small, 3);
    tiny_gpt_set_mode(trained.model, MODE_TRAINING);
    trained.after = seeded(stream);
    input.generator = &trained.after;
    input.labels = some_labels;
    input.activations = &trained.activations;
    trained.output = run(trained.model, &input);
}

static void train_forget(void)
{
    activations_free(&trained.activations);
    forward_output_free(&trained.output);
    tiny_gpt_free(&trained.model);
}

static void expect_mask(const char *what, const struct tensor *drawn,
                        const struct tensor *of)
{
    const float kept = 1 / (1 - 0.625f);
    int zeros = 0;
    ck_assert_msg(tensor_same_shape(drawn, of), "%s: shape", what);
    for (size_t i = 0; i < tensor_size(drawn); i++) {
        ck_assert_msg(drawn->data[i] == 0 || drawn->data[i] == kept,
                      "%s[%zu] is %g", what, i, (double)drawn->data[i]);
        zeros += drawn->data[i] == 0;
    }
    ck_assert_msg(zeros > 0, "%s: nothing dropped", what);
    ck_assert_msg((size_t)zeros < tensor_size(drawn), "%s: nothing kept",
                  what);
}

/* expected[i] = mask[i] * value[i], value computed here in double */
static void expect_linear(const char *what, const struct tensor *out,
                          const struct tensor *dropout,
                          const struct linear *linear,
                          const struct tensor *in)
{
    const int width = linear->weight.shape[1], rows = 8;
    const int features = linear->weight.shape[0];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < features; o++) {
            double sum = linear->bias.data[o];
            for (int c = 0; c < width; c++)
                sum += (double)linear->weight.data[o * width + c]
                       * in->data[r * width + c];
            const float expected =
                (float)(sum * dropout->data[r * features + o]);
            expect_close(what, &out->data[r * features + o], &expected, 1, 0,
                         NULL, TOLERANCE);
        }
}

START_TEST(the_embedding_is_dropped_where_its_mask_is_zero)
{
    train_once(41);
    const struct activations *act = &trained.activations;
    const struct parameters *p = tiny_gpt_weights(trained.model);
    const int width = small.d_model;
    expect_mask("embedding_dropout", &act->embedding_dropout,
                &act->embedding);
    for (int i = 0; i < 8 * width; i++) {
        const int row = i / width, c = i % width;
        const float sum =
            p->token_embedding.weight.data[some_ids[row] * width + c]
            + p->position_embedding.weight.data[row % 4 * width + c];
        const float expected = sum * act->embedding_dropout.data[i];
        expect_close("embedding", &act->embedding.data[i], &expected, 1, 0,
                     NULL, TOLERANCE);
    }
    train_forget();
}
END_TEST

START_TEST(the_probabilities_are_recorded_whole_and_used_dropped)
{
    train_once(42);
    for (int l = 0; l < small.n_layers; l++) {
        const struct block_activations *act = &trained.activations.blocks[l];
        const int D = 2, T = 4;
        expect_mask("probs_dropout", &act->probs_dropout, &act->probs);
        for (int row = 0; row < 2 * 3 * T; row++) {
            const float *probs = act->probs.data + row * T;
            const float *drawn = act->probs_dropout.data + row * T;
            double sum = 0;
            for (int j = 0; j < T; j++)
                sum += probs[j];
            ck_assert_double_eq_tol(sum, 1, 1e-5);
            for (int d = 0; d < D; d++) {
                double mixed = 0;
                for (int j = 0; j < T; j++)
                    mixed += (double)drawn[j] * probs[j]
                             * act->value.data[(row / T * T + j) * D + d];
                const float expected = (float)mixed;
                expect_close("context", &act->context.data[row * D + d],
                             &expected, 1, 0, NULL, TOLERANCE);
            }
        }
    }
    train_forget();
}
END_TEST

START_TEST(the_attention_is_dropped_before_it_is_added)
{
    train_once(43);
    const struct activations *act = &trained.activations;
    for (int l = 0; l < small.n_layers; l++) {
        const struct block_activations *block = &act->blocks[l];
        expect_mask("attention_dropout", &block->attention_dropout,
                    &block->attention);
        expect_linear("attention", &block->attention,
                      &block->attention_dropout,
                      &tiny_gpt_weights(trained.model)
                           ->blocks[l].attention.out_proj, &block->merged);
        const struct tensor *x = l == 0 ? &act->embedding
                                        : &act->blocks[l - 1].output;
        for (size_t i = 0; i < tensor_size(x); i++)
            ck_assert_float_eq(block->residual.data[i],
                               x->data[i] + block->attention.data[i]);
    }
    train_forget();
}
END_TEST

START_TEST(the_feed_forward_output_is_dropped_before_it_is_added)
{
    train_once(44);
    for (int l = 0; l < small.n_layers; l++) {
        const struct block_activations *act = &trained.activations.blocks[l];
        expect_mask("down_dropout", &act->down_dropout, &act->down);
        expect_linear("down", &act->down, &act->down_dropout,
                      &tiny_gpt_weights(trained.model)
                           ->blocks[l].mlp.down_proj, &act->gelu);
        for (size_t i = 0; i < tensor_size(&act->output); i++)
            ck_assert_float_eq(act->output.data[i],
                               act->residual.data[i] + act->down.data[i]);
    }
    train_forget();
}
END_TEST

START_TEST(a_training_call_draws_once_for_each_element_of_its_masks)
{
    train_once(45);
    struct generator expected = seeded(45);
    /* embedding [2,4,6]; in each of 2 blocks probs [2,3,4,4] and twice
       [2,4,6] */
    for (int i = 0; i < 48 + 2 * (96 + 2 * 48); i++)
        generator_next(&expected);
    expect_same_bits("generator", &trained.after, &expected,
                     sizeof expected);
    train_forget();
}
END_TEST

START_TEST(equal_seeds_give_equal_training_calls_and_other_seeds_others)
{
    train_once(46);
    struct forward_output first = trained.output;
    trained.output = (struct forward_output){0};
    train_forget();
    train_once(46);
    expect_same_logits(&first, &trained.output);
    train_forget();
    train_once(47);
    ck_assert(memcmp(first.logits.data, trained.output.logits.data,
                     tensor_size(&first.logits) * sizeof (float)) != 0);
    forward_output_free(&first);
    train_forget();
}
END_TEST

START_TEST(forward_with_labels_gives_the_golden_loss)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct tiny_gpt *model = golden_model(golden, 0);
    struct forward_input input = golden_input(golden);
    struct forward_output output = run(model, &input);
    ck_assert(!output.has_loss);
    forward_output_free(&output);
    input.labels = golden_get(golden, "in.labels")->ids;
    output = run(model, &input);
    ck_assert(output.has_loss);
    expect_close("loss", &output.loss, golden_get(golden, "out.loss")->f32,
                 1, 0, NULL, TOLERANCE);
    forward_output_free(&output);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(forward_refuses_a_label_by_its_index_and_changes_nothing)
{
    int32_t labels[8];
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct generator generator = seeded(50), before = generator;
    struct forward_input input = some_input();
    struct forward_output output = {0};
    struct error error = { STATUS_OK, "" };
    tiny_gpt_set_mode(model, MODE_TRAINING);
    memcpy(labels, some_labels, sizeof labels);
    labels[6] = small.vocab_size;
    input.labels = labels;
    input.generator = &generator;
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "labels[1,2]");
    ck_assert_ptr_null(output.logits.data);
    ck_assert(!output.has_loss);
    expect_same_bits("generator", &generator, &before, sizeof before);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_training_call_without_memory_leaves_no_trace)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct generator generator = seeded(51), before = generator;
    struct activations activations = {0};
    struct forward_input input = some_input();
    struct forward_output output = {0};
    tiny_gpt_set_mode(model, MODE_TRAINING);
    input.generator = &generator;
    input.labels = some_labels;
    input.activations = &activations;
    long n = 1;
    for (; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = tiny_gpt_forward(model, &input, &output,
                                                    NULL);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        ck_assert_ptr_null(output.logits.data);
        ck_assert_ptr_null(activations.blocks);
        expect_same_bits("generator", &generator, &before, sizeof before);
    }
    ck_assert_int_gt(n, 8);
    activations_free(&activations);
    forward_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

/* -------------------------------------------------------- initialisation */

/* The mean of n weights has the variance deviation²/n; their squares, over
   deviation², have the variance 2/n. Eight standard errors, as above. */
static void expect_spread(const char *what, const struct tensor *tensor,
                          double deviation)
{
    const double count = (double)tensor_size(tensor);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < tensor_size(tensor); i++) {
        sum += tensor->data[i];
        squares += (double)tensor->data[i] * tensor->data[i];
    }
    ck_assert_msg(fabs(sum / count) <= 8 * deviation / sqrt(count),
                  "%s: mean %g", what, sum / count);
    ck_assert_msg(fabs(squares / count / deviation / deviation - 1)
                  <= 8 * sqrt(2 / count), "%s: deviation %g, not %g", what,
                  sqrt(squares / count), deviation);
}

static void expect_all(const struct tensor *tensor, float value)
{
    for (size_t i = 0; i < tensor_size(tensor); i++)
        ck_assert_float_eq(tensor->data[i], value);
}

START_TEST(a_model_starts_with_small_weights_unit_norms_and_no_biases)
{
    const struct gpt_config config = {
        .vocab_size = 80, .context_length = 70, .d_model = 52, .n_layers = 3,
        .n_heads = 4, .d_ff = 76, .layer_norm_eps = 1e-5
    };
    struct tiny_gpt *model = noisy_model(&config, 3);
    struct parameters *p = tiny_gpt_parameters(model);
    struct generator generator = seeded(60);
    parameters_init(p, &generator);
    expect_spread("token_embedding", &p->token_embedding.weight, 0.02);
    expect_spread("position_embedding", &p->position_embedding.weight, 0.02);
    for (int l = 0; l < config.n_layers; l++) {
        const struct block *block = &p->blocks[l];
        const double small_deviation = 0.02 / sqrt(6);
        expect_spread("qkv_proj", &block->attention.qkv_proj.weight, 0.02);
        expect_spread("up_proj", &block->mlp.up_proj.weight, 0.02);
        expect_spread("out_proj", &block->attention.out_proj.weight,
                      small_deviation);
        expect_spread("down_proj", &block->mlp.down_proj.weight,
                      small_deviation);
        expect_all(&block->attention_norm.weight, 1);
        expect_all(&block->attention_norm.bias, 0);
        expect_all(&block->mlp_norm.weight, 1);
        expect_all(&block->mlp_norm.bias, 0);
        expect_all(&block->attention.qkv_proj.bias, 0);
        expect_all(&block->attention.out_proj.bias, 0);
        expect_all(&block->mlp.up_proj.bias, 0);
        expect_all(&block->mlp.down_proj.bias, 0);
    }
    expect_all(&p->final_norm.weight, 1);
    expect_all(&p->final_norm.bias, 0);
    ck_assert_ptr_eq(p->lm_head.weight.data, p->token_embedding.weight.data);
    tiny_gpt_free(&model);
}
END_TEST

/* ----------------------------------------------------------------- files */

START_TEST(a_file_is_read_whole_with_a_zero_after_it)
{
    static const char bytes[] = "one\0two\n";
    unsigned char *found = NULL;
    size_t length = 0;
    struct error error = { STATUS_OK, "" };
    scratch_make();
    put_file(inside("some"), bytes, sizeof bytes - 1);
    expect_ok(file_read(inside("some"), &found, &length, &error), &error);
    ck_assert_uint_eq(length, sizeof bytes - 1);
    expect_same_bits("contents", found, bytes, sizeof bytes);
    free(found);
    put_file(inside("none"), "", 0);
    expect_ok(file_read(inside("none"), &found, &length, &error), &error);
    ck_assert_uint_eq(length, 0);
    ck_assert_uint_eq(found[0], 0);
    free(found);
    scratch_remove();
}
END_TEST

START_TEST(what_is_not_a_file_is_refused_by_its_path)
{
    unsigned char *found = NULL;
    size_t length = 77;
    char longer[600];
    scratch_make();
    put_file(inside("plain"), "x", 1);
    memset(longer, 'x', sizeof longer - 1);
    strcpy(longer + sizeof longer - 5, "/end");
    const char *paths[] = {
        scratch, inside("absent"), inside("plain/below"), "/dev/null", "",
        longer
    };
    const char *says[] = {
        "is a directory", "absent: ", "plain/below: ", "not a regular",
        ": ", "/end: "
    };
    for (size_t i = 0; i < LENGTH(paths); i++) {
        struct error error = { STATUS_OK, "" };
        ck_assert_int_eq(file_read(paths[i], &found, &length, &error),
                         STATUS_IO);
        expect_named(&error, says[i]);
        ck_assert_ptr_null(found);
        ck_assert_uint_eq(length, 77);
    }
    scratch_remove();
}
END_TEST

/* Linux says 4096 bytes of a file below /sys that has a line. Where there is
   no such file, there is nothing to see. */
START_TEST(a_file_that_ends_before_its_size_is_refused)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    unsigned char *found = NULL, bytes[8192];
    size_t length = 77;
    struct stat facts;
    struct error error = { STATUS_OK, "" };
    if (access(path, R_OK) != 0 || stat(path, &facts) != 0
        || (size_t)facts.st_size <= get_file(path, bytes, sizeof bytes))
        return;
    ck_assert_int_eq(file_read(path, &found, &length, &error), STATUS_IO);
    expect_named(&error, "enabled: ");
    ck_assert_ptr_null(found);
    ck_assert_uint_eq(length, 77);
}
END_TEST

START_TEST(a_write_replaces_the_whole_file_and_leaves_nothing_else)
{
    struct error error = { STATUS_OK, "" };
    scratch_make();
    expect_ok(file_write_atomic(inside("f"), "first, and long", 15, &error),
              &error);
    expect_file(inside("f"), "first, and long", 15);
    expect_ok(file_write_atomic(inside("f"), "second", 6, &error), &error);
    expect_file(inside("f"), "second", 6);
    expect_ok(file_write_atomic(inside("f"), NULL, 0, &error), &error);
    expect_file(inside("f"), "", 0);
    ck_assert_int_eq(entries_in(scratch), 1);
    scratch_remove();
}
END_TEST

START_TEST(a_full_disk_leaves_the_old_file_as_it_was)
{
    static char large[50000];
    struct error error = { STATUS_OK, "" };
    scratch_make();
    put_file(inside("f"), "old", 3);
    fill_disk_after(20000);
    const enum status status = file_write_atomic(inside("f"), large,
                                                 sizeof large, &error);
    empty_disk();
    ck_assert_int_eq(status, STATUS_IO);
    expect_named(&error, "/f: ");
    expect_file(inside("f"), "old", 3);
    ck_assert_int_eq(entries_in(scratch), 1);
    scratch_remove();
}
END_TEST

START_TEST(a_write_that_cannot_be_is_refused_by_its_path)
{
    scratch_make();
    put_file(inside("plain"), "x", 1);
    ck_assert_int_eq(mkdir(inside("folder"), 0777), 0);
    const char *paths[] = {
        inside("no/f"), inside("plain/f"), inside("folder")
    };
    for (size_t i = 0; i < LENGTH(paths); i++) {
        struct error error = { STATUS_OK, "" };
        ck_assert_int_eq(file_write_atomic(paths[i], "new", 3, &error),
                         STATUS_IO);
        expect_named(&error, paths[i]);
        ck_assert_int_eq(entries_in(scratch), 2);
    }
    struct error error = { STATUS_OK, "" };
    ck_assert_int_eq(file_write_atomic("", "new", 3, &error), STATUS_IO);
    expect_file(inside("plain"), "x", 1);
    scratch_remove();
}
END_TEST

START_TEST(a_draft_steps_aside_for_one_that_was_left_behind)
{
    char stale[300];
    struct error error = { STATUS_OK, "" };
    scratch_make();
    snprintf(stale, sizeof stale, "%s/f.%ld-0.tmp", scratch, (long)getpid());
    put_file(stale, "of a crash", 10);
    expect_ok(file_write_atomic(inside("f"), "new", 3, &error), &error);
    expect_file(inside("f"), "new", 3);
    expect_file(stale, "of a crash", 10);
    scratch_remove();
}
END_TEST

START_TEST(a_draft_shows_only_when_it_is_published)
{
    const struct file_part parts[] = { { "ab", 2 }, { "", 0 }, { "cd", 2 } };
    struct file_draft kept, dropped;
    struct error error = { STATUS_OK, "" };
    scratch_make();
    put_file(inside("f"), "old", 3);
    put_file(inside("g"), "old", 3);
    expect_ok(file_draft_write(&kept, inside("f"), parts, 3, &error),
              &error);
    expect_ok(file_draft_write(&dropped, inside("g"), parts, 3, &error),
              &error);
    expect_file(inside("f"), "old", 3);
    expect_ok(file_draft_publish(&kept, &error), &error);
    file_draft_discard(&dropped);
    expect_file(inside("f"), "abcd", 4);
    expect_file(inside("g"), "old", 3);
    ck_assert_int_eq(entries_in(scratch), 2);
    scratch_remove();
}
END_TEST

START_TEST(files_without_memory_are_refused_and_leave_nothing)
{
    unsigned char *found = NULL;
    size_t length = 0;
    struct error error = { STATUS_OK, "" };
    scratch_make();
    put_file(inside("f"), "old", 3);
    const char *path = inside("f");
    for (long n = 1; n <= 2; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = file_write_atomic(path, "new", 3, &error);
        const long left = allocator_live() - live;
        ck_assert(allocator_stop());
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        expect_named(&error, path);
    }
    allocator_fail_at(1);
    const enum status status = file_read(path, &found, &length, &error);
    ck_assert(allocator_stop());
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_ptr_null(found);
    expect_file(inside("f"), "old", 3);
    ck_assert_int_eq(entries_in(scratch), 1);
    scratch_remove();
}
END_TEST

/* ----------------------------------------------------------- safetensors */

static void put_tensors_file(const char *path, uint64_t announced,
                             const char *header, size_t length,
                             size_t data_size)
{
    static unsigned char bytes[1 << 16];
    ck_assert_uint_lt(8 + length + data_size, sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(announced >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_size; i++)
        bytes[8 + length + i] = (unsigned char)(i + 1);
    put_file(path, bytes, 8 + length + data_size);
}

static void expect_refused_file(const char *path, const char *says)
{
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    const enum status status = safetensors_open(&file, path, &error);
    ck_assert_msg(status == STATUS_FORMAT, "status %d, expected a refusal "
                  "that says \"%s\"", (int)status, says);
    ck_assert_ptr_null(file);
    expect_named(&error, path);
    expect_named(&error, says);
}

struct bad { const char *header; size_t data_size; const char *says; };

static void expect_refused(const struct bad *bad, size_t count)
{
    scratch_make();
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(bad[i].header);
        put_tensors_file(inside("bad"), length, bad[i].header, length,
                         bad[i].data_size);
        expect_refused_file(inside("bad"), bad[i].says);
    }
    scratch_remove();
}

#define F32(shape, offsets) \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static struct safetensors *open_header(const char *header, size_t data_size)
{
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    put_tensors_file(inside("good"), strlen(header), header, strlen(header),
                     data_size);
    expect_ok(safetensors_open(&file, inside("good"), &error), &error);
    return file;
}

START_TEST(a_header_length_beyond_the_file_is_refused)
{
    static const char header[] = "{\"a\":" F32("[1]", "[0,4]") "}";
    const size_t length = sizeof header - 1;
    const uint64_t lengths[] = {
        length + 5, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 6,
        (uint64_t)1 << 63, (uint64_t)1 << 32, length + 4 + 8
    };
    scratch_make();
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        put_tensors_file(inside("f"), lengths[i], header, length, 4);
        expect_refused_file(inside("f"), "announced");
    }
    for (size_t size = 0; size < 8; size++) {
        put_file(inside("f"), "\0\0\0\0\0\0\0\0", size);
        expect_refused_file(inside("f"), "too few");
    }
    put_file(inside("f"), "\0\0\0\0\0\0\0\0", 8);
    expect_refused_file(inside("f"), "object");
    scratch_remove();
}
END_TEST

START_TEST(a_header_that_is_not_one_json_object_is_refused)
{
    static const struct bad bad[] = {
        { "[]", 0, "object" }, { "\"a\"", 0, "object" },
        { "1", 0, "object" }, { "null", 0, "object" },
        { " {}", 0, "object" }, { "\xef\xbb\xbf{}", 0, "object" },
        { "{", 0, "JSON" }, { "{\"a\"}", 0, "JSON" },
        { "{\"a\":}", 0, "JSON" }, { "{'a':1}", 0, "JSON" },
        { "{} x", 0, "space" }, { "{}{}", 0, "space" },
        { "{}\n", 0, "space" },
        { "{\"a\":" F32("[1]", "[0,4]") ",}", 4, "JSON" },
    };
    expect_refused(bad, LENGTH(bad));

    static char deep[20000];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"a\":", 5);
    static const struct bad nested[] = { { deep, 0, "JSON" } };
    expect_refused(nested, 1);
    for (size_t i = 5; i < sizeof deep - 5; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    expect_refused(nested, 1);
}
END_TEST

START_TEST(a_zero_character_in_the_header_is_refused)
{
    static const char raw[] = "{\"a\0b\":" F32("[1]", "[0,4]") "}";
    static const struct bad bad[] = {
        { "{\"a\\u0000b\":" F32("[1]", "[0,4]") "}", 4, "zero" },
        { "{\"\\\\\\u0000\":" F32("[1]", "[0,4]") "}", 4, "zero" },
        { "{\"a\":{\"dtype\":\"F32\\u0000\",\"shape\":[1],"
          "\"data_offsets\":[0,4]}}", 4, "zero" },
        { "{\"a\\nb\":" F32("[1]", "[0,4]") "}", 4, "control" },
    };
    scratch_make();
    put_tensors_file(inside("f"), sizeof raw - 1, raw, sizeof raw - 1, 4);
    expect_refused_file(inside("f"), "zero");
    /* an escaped backslash before u0000 is not a zero */
    struct safetensors *file =
        open_header("{\"\\\\u0000\":" F32("[1]", "[0,4]") "}", 4);
    ck_assert_ptr_nonnull(safetensors_find(file, "\\u0000"));
    safetensors_close(&file);
    scratch_remove();
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(a_name_that_occurs_twice_is_refused)
{
    static const struct bad bad[] = {
        { "{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[1]", "[4,8]")
          ",\"a\":" F32("[1]", "[8,12]") "}", 12, "\"a\"" },
        { "{\"a\":" F32("[0]", "[0,0]") ",\"\\u0061\":" F32("[0]", "[0,0]")
          "}", 0, "\"a\"" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__" },
        { "{\"__metadata__\":{\"k\":\"1\",\"l\":\"2\",\"k\":\"1\"}}", 0,
          "\"k\"" },
        { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1]}}", 4,
          "\"a\"" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(an_entry_of_another_form_is_refused_by_its_name)
{
    static const struct bad bad[] = {
        { "{\"a\":1}", 0, "\"a\"" }, { "{\"a\":[]}", 0, "\"a\"" },
        { "{\"a\":null}", 0, "\"a\"" }, { "{\"a\":{}}", 0, "\"a\"" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"a\"" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
          "\"more\":1}}", 4, "\"a\"" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"Data_Offsets\":[0,4]}}",
          4, "\"a\": data_offsets" },
        { "{\"__metadata__\":[]}", 0, "__metadata__" },
        { "{\"__metadata__\":{\"k\":1}}", 0, "\"k\"" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(an_unknown_type_is_refused_by_its_name)
{
    static const struct bad bad[] = {
        { "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, "\"F31\"" },
        { "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, "\"f32\"" },
        { "{\"a\":{\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, "\"a\": dtype" },
        { "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, "\"a\": dtype" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(a_number_that_is_no_size_is_refused)
{
    static const char *const numbers[] = {
        "-1", "0.5", "1e999", "9007199254740994", "1e300", "-1e-9", "\"1\"",
        "null", "true", "[1]", "{}"
    };
    static const char *const forms[] = {
        "{\"a\":" F32("[2,%s]", "[0,4]") "}",
        "{\"a\":" F32("[1]", "[%s,4]") "}",
        "{\"a\":" F32("[1]", "[0,%s]") "}",
    };
    for (size_t i = 0; i < LENGTH(numbers); i++)
        for (size_t k = 0; k < LENGTH(forms); k++) {
            char header[200];
            const struct bad bad = {
                header, 4, k == 0 ? "\"a\": shape" : "\"a\": data_offsets"
            };
            snprintf(header, sizeof header, forms[k], numbers[i]);
            expect_refused(&bad, 1);
        }
    static const struct bad more[] = {
        { "{\"a\":" F32("4", "[0,4]") "}", 4, "shape" },
        { "{\"a\":" F32("\"[1]\"", "[0,4]") "}", 4, "shape" },
        { "{\"a\":" F32("[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "shape" },
        { "{\"a\":" F32("[1]", "[0]") "}", 4, "data_offsets" },
        { "{\"a\":" F32("[1]", "[]") "}", 4, "data_offsets" },
        { "{\"a\":" F32("[1]", "[0,4,4]") "}", 4, "data_offsets" },
        { "{\"a\":" F32("[1]", "4") "}", 4, "data_offsets" },
        { "{\"a\":" F32("[1]", "{\"0\":0,\"1\":4}") "}", 4,
          "data_offsets" },
    };
    expect_refused(more, LENGTH(more));
}
END_TEST

START_TEST(a_shape_whose_product_wraps_is_refused)
{
    static const struct bad bad[] = {
        { "{\"a\":" F32("[4294967296,4294967296]", "[0,0]") "}", 0,
          "\"a\": shape" },
        { "{\"a\":" F32("[4611686018427387904]", "[0,0]") "}", 0,
          "\"a\": shape" },
        { "{\"a\":" F32("[2147483648,2147483648,1]", "[0,0]") "}", 0,
          "\"a\": shape" },
        { "{\"a\":" F32("[4294967296,4294967297]", "[0,4]") "}", 4,
          "\"a\": " },
        { "{\"a\":" F32("[65536,65536,65536,65536,0]", "[0,0]") "}", 0,
          "\"a\": shape" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(a_span_outside_the_data_is_refused)
{
    static const struct bad bad[] = {
        { "{\"a\":" F32("[1]", "[4,0]") "}", 4, "4 to 0 of 4" },
        { "{\"a\":" F32("[1]", "[4,8]") "}", 4, "4 to 8 of 4" },
        { "{\"a\":" F32("[1]", "[1,5]") "}", 4, "1 to 5 of 4" },
        { "{\"a\":" F32("[0]", "[5,5]") "}", 4, "5 to 5 of 4" },
        { "{\"a\":" F32("[1]", "[9007199254740988,9007199254740992]") "}", 4,
          "of 4 bytes" },
        { "{\"a\":" F32("[0]", "[0,4]") "}", 4, "4 bytes" },
        { "{\"a\":" F32("[2]", "[0,4]") "}", 4, "4 bytes" },
        { "{\"a\":" F32("[1,2,3]", "[0,20]") "}", 20, "24" },
        { "{\"a\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,12]"
          "}}", 12, "6" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(spans_that_overlap_or_leave_holes_are_refused)
{
    static const struct bad bad[] = {
        /* an overlap and a hole that cancel */
        { "{\"a\":" F32("[2]", "[0,8]") ",\"b\":" F32("[2]", "[4,12]") "}",
          16, "\"b\": data_offsets: overlaps" },
        { "{\"a\":" F32("[2]", "[0,8]") ",\"b\":" F32("[2]", "[0,8]") "}",
          16, "overlaps" },
        { "{\"a\":" F32("[2]", "[0,8]") ",\"b\":" F32("[2]", "[0,8]") "}",
          8, "overlaps" },
        { "{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[1]", "[8,12]") "}",
          12, "\"b\": data_offsets: leaves a hole" },
        { "{\"a\":" F32("[1]", "[4,8]") "}", 8, "hole" },
        { "{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[0]", "[3,3]") "}",
          4, "overlaps" },
        { "{\"a\":" F32("[1]", "[0,4]") "}", 5, "1 bytes after" },
        { "{}", 3, "3 bytes after" },
    };
    expect_refused(bad, LENGTH(bad));
}
END_TEST

START_TEST(unusual_files_that_are_right_are_read)
{
    scratch_make();
    struct safetensors *file = open_header("{}", 0);
    ck_assert_uint_eq(safetensors_count(file), 0);
    ck_assert_ptr_null(safetensors_find(file, "a"));
    ck_assert_ptr_null(safetensors_metadata(file, "k"));
    safetensors_close(&file);
    ck_assert_ptr_null(file);
    safetensors_close(&file);

    /* out of order, empty tensors, a scalar, spaces, an odd header length */
    file = open_header("{ \"z\" : " F32("[]", "[0,4]") ",\n"
                       "\"empty\":" F32("[3,0]", "[4,4]") ","
                       "\"b\":{\"data_offsets\":[4,6],\"shape\":[1,2],"
                       "\"dtype\":\"I8\"},\"also\":" F32("[0]", "[0,0]")
                       ",\"__metadata__\":{\"k\":\"v\\\"\"}}   ", 6);
    static const char *const names[] = { "also", "b", "empty", "z" };
    ck_assert_uint_eq(safetensors_count(file), 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(safetensors_at(file, i)->name, names[i]);
    const struct safetensors_entry *b = safetensors_find(file, "b");
    ck_assert_int_eq(b->dtype, DTYPE_I8);
    ck_assert_int_eq(b->rank, 2);
    ck_assert_int_eq(b->shape[0], 1);
    ck_assert_int_eq(b->shape[1], 2);
    ck_assert_uint_eq(b->bytes, 2);
    ck_assert_uint_eq(*(const unsigned char *)b->data, 5);
    ck_assert_int_eq(safetensors_find(file, "z")->rank, 0);
    ck_assert_uint_eq(safetensors_find(file, "z")->bytes, 4);
    ck_assert_uint_eq(safetensors_find(file, "empty")->bytes, 0);
    ck_assert_str_eq(safetensors_metadata(file, "k"), "v\"");
    ck_assert_ptr_null(safetensors_metadata(file, "K"));
    safetensors_close(&file);
    scratch_remove();
}
END_TEST

START_TEST(every_type_has_its_size)
{
    static const struct { const char *name; size_t size; } types[] = {
        { "F32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "I32", 4 },
        { "I64", 8 }, { "F64", 8 }, { "U8", 1 }, { "I8", 1 }, { "U16", 2 },
        { "I16", 2 }, { "U32", 4 }, { "U64", 8 }, { "BOOL", 1 }
    };
    scratch_make();
    for (size_t i = 0; i < LENGTH(types); i++) {
        char header[120];
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":"
                 "[3],\"data_offsets\":[0,%zu]}}", types[i].name,
                 3 * types[i].size);
        struct safetensors *file = open_header(header, 3 * types[i].size);
        const enum dtype dtype = safetensors_at(file, 0)->dtype;
        ck_assert_str_eq(dtype_name(dtype), types[i].name);
        ck_assert_uint_eq(dtype_size(dtype), types[i].size);
        safetensors_close(&file);
    }
    scratch_remove();
}
END_TEST

/* A file of two tensors and metadata, as bytes. */
static unsigned char sample[1024];
static size_t sample_header, sample_length;

static void make_sample(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"layer.bias\":" F32("[3]", "[0,12]") ","
        "\"layer.weight\":" F32("[3,2]", "[12,36]") "}  ";
    sample_header = sizeof header - 1;
    put_tensors_file(inside("sample"), sample_header, header, sample_header,
                     36);
    sample_length = get_file(inside("sample"), sample, sizeof sample);
}

START_TEST(a_file_cut_short_or_grown_anywhere_is_refused)
{
    scratch_make();
    make_sample();
    for (size_t length = 0; length < sample_length; length++) {
        put_file(inside("cut"), sample, length);
        expect_refused_file(inside("cut"), "cut: ");
    }
    sample[sample_length] = 0;
    put_file(inside("cut"), sample, sample_length + 1);
    expect_refused_file(inside("cut"), "1 bytes after");
    scratch_remove();
}
END_TEST

/* In place: some file systems flush a file that is truncated and rewritten. */
static void put_byte(const char *path, size_t at, unsigned char value)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, (long)at, SEEK_SET), 0);
    ck_assert_int_eq(fputc(value, file), value);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(no_single_wrong_byte_does_harm)
{
    static const unsigned char values[] = {
        0, 1, ' ', '"', '\\', '0', '9', '-', '[', '{', '}', ',', 0x7f, 0xff
    };
    int accepted = 0, refused = 0;
    scratch_make();
    make_sample();
    put_file(inside("f"), sample, sample_length);
    for (size_t at = 0; at < 8 + sample_header; at++) {
        for (size_t k = 0; k < LENGTH(values); k++) {
            struct safetensors *file = NULL;
            put_byte(inside("f"), at, values[k]);
            const enum status status =
                safetensors_open(&file, inside("f"), NULL);
            if ((status != STATUS_OK && status != STATUS_FORMAT)
                || (file != NULL) != (status == STATUS_OK))
                ck_abort_msg("byte %zu as %d: status %d", at, values[k],
                             status);
            accepted += status == STATUS_OK;
            refused += status != STATUS_OK;
            size_t sum = 0;     /* every byte of every tensor can be read */
            for (size_t i = 0; file && i < safetensors_count(file); i++) {
                const struct safetensors_entry *entry =
                    safetensors_at(file, i);
                for (size_t j = 0; j < entry->bytes; j++)
                    sum += ((const unsigned char *)entry->data)[j];
            }
            /* 1 + ... + 36: all the data, and each byte once */
            if (status == STATUS_OK && sum != 666)
                ck_abort_msg("byte %zu as %d: sum %zu", at, values[k], sum);
            safetensors_close(&file);
        }
        put_byte(inside("f"), at, sample[at]);
    }
    ck_assert_int_gt(accepted, 0);      /* another letter in a name */
    ck_assert_int_gt(refused, accepted);
    scratch_remove();
}
END_TEST

START_TEST(the_golden_file_reads_as_the_golden_reader_says)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    expect_ok(safetensors_open(&file, GOLDEN_DIR "/gpt_tiny.safetensors",
                               &error), &error);
    ck_assert_uint_eq(safetensors_count(file), golden->count);
    for (size_t i = 0; i < golden->count; i++) {
        const struct golden_tensor *expected = &golden->tensors[i];
        const struct safetensors_entry *entry =
            safetensors_find(file, expected->name);
        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(entry->rank, expected->rank);
        for (int k = 0; k < entry->rank; k++)
            ck_assert_int_eq(entry->shape[k], expected->shape[k]);
        ck_assert_int_eq(entry->dtype,
                         expected->f32 ? DTYPE_F32 : DTYPE_I64);
        if (expected->f32)
            expect_same_bits(entry->name, entry->data, expected->f32,
                             entry->bytes);
    }
    ck_assert_str_eq(safetensors_metadata(file, "vocab_size"), "23");
    safetensors_close(&file);
    golden_close(golden);
}
END_TEST

/* The goldens were written by another program, after the format's own
   description: names sorted, no spaces, header padded to eight bytes. */
START_TEST(a_golden_file_written_again_is_the_same_bytes)
{
    static const char *const keys[] = {
        "vocab_size", "context_length", "d_model", "n_layers", "n_heads",
        "d_ff", "layer_norm_eps"
    };
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    struct safetensors_pair pairs[LENGTH(keys)];
    unsigned char *golden = NULL;
    size_t length = 0;
    scratch_make();
    expect_ok(safetensors_open(&file, GOLDEN_DIR "/gpt_tiny.safetensors",
                               &error), &error);
    for (size_t i = 0; i < LENGTH(keys); i++)
        pairs[i] = (struct safetensors_pair){
            keys[i], safetensors_metadata(file, keys[i])
        };
    const size_t count = safetensors_count(file);
    struct safetensors_entry *entries = calloc(count, sizeof *entries);
    for (size_t i = 0; i < count; i++)      /* backwards: it has to sort */
        entries[count - 1 - i] = *safetensors_at(file, i);
    expect_ok(safetensors_write(inside("copy"), entries, count, pairs,
                                LENGTH(keys), &error), &error);
    expect_ok(file_read(GOLDEN_DIR "/gpt_tiny.safetensors", &golden, &length,
                        &error), &error);
    expect_file(inside("copy"), golden, length);
    free(golden);
    free(entries);
    safetensors_close(&file);
    scratch_remove();
}
END_TEST

START_TEST(names_and_metadata_of_any_kind_survive)
{
    static const char *const names[] = {
        "", "\"quoted\"", "a\\b", "blocks.0", "h\xc3\xa9", "{\"a\":1}"
    };
    static const char text[] = "{\n\t\"k\": \"\\\"\x01\x1f\"\r\n}";
    struct safetensors_entry entries[LENGTH(names)];
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    uint64_t state = noise_start(4);
    const float number = noise(&state);
    scratch_make();
    for (size_t i = 0; i < LENGTH(names); i++)
        entries[i] = (struct safetensors_entry){
            .name = names[i], .dtype = DTYPE_F32, .rank = (int)(i % 2),
            .shape = { 1 }, .data = &number, .bytes = 4
        };
    const struct safetensors_pair pairs[] = {
        { "config", text }, { "\n", "" }
    };
    expect_ok(safetensors_write(inside("f"), entries, LENGTH(names), pairs,
                                2, &error), &error);
    expect_ok(safetensors_open(&file, inside("f"), &error), &error);
    for (size_t i = 0; i < LENGTH(names); i++) {
        const struct safetensors_entry *entry =
            safetensors_find(file, names[i]);
        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(entry->rank, (int)(i % 2));
        expect_same_bits(names[i], entry->data, &number, 4);
    }
    ck_assert_str_eq(safetensors_metadata(file, "config"), text);
    ck_assert_str_eq(safetensors_metadata(file, "\n"), "");
    safetensors_close(&file);
    scratch_remove();
}
END_TEST

START_TEST(a_writer_refuses_what_the_reader_would)
{
    static const float numbers[6];
    static const struct safetensors_entry good = {
        .name = "a", .dtype = DTYPE_F32, .rank = 2, .shape = { 2, 3 },
        .data = numbers, .bytes = 24
    };
    static const char *const says[] = {
        "name: is NULL", "control", "reserved", "dtype", "rank", "rank",
        "shape", "shape", "bytes", "bytes", "data"
    };
    scratch_make();
    put_file(inside("f"), "old", 3);
    for (size_t i = 0; i < LENGTH(says); i++) {
        struct safetensors_entry entry = good;
        struct error error = { STATUS_OK, "" };
        switch (i) {
        case 0: entry.name = NULL; break;
        case 1: entry.name = "a\nb"; break;
        case 2: entry.name = "__metadata__"; break;
        case 3: entry.dtype = (enum dtype)99; break;
        case 4: entry.rank = -1; break;
        case 5: entry.rank = SAFETENSORS_RANK_MAX + 1; break;
        case 6: entry.shape[1] = -3; break;
        case 7: entry.shape[0] = ((int64_t)1 << 53) + 1; break;
        case 8: entry.bytes = 23; break;
        case 9: entry.shape[0] = entry.shape[1] = (int64_t)1 << 32; break;
        case 10: entry.data = NULL; break;
        }
        ck_assert_int_eq(safetensors_write(inside("f"), &entry, 1, NULL, 0,
                                           &error), STATUS_INVALID);
        expect_named(&error, says[i]);
    }
    const struct safetensors_entry twice[] = { good, good };
    const struct safetensors_pair pairs[] = {
        { "k", "1" }, { "l", "2" }, { "k", "3" }
    };
    struct error error = { STATUS_OK, "" };
    ck_assert_int_eq(safetensors_write(inside("f"), twice, 2, NULL, 0,
                                       &error), STATUS_INVALID);
    expect_named(&error, "duplicate");
    ck_assert_int_eq(safetensors_write(inside("f"), &good, 1, pairs, 3,
                                       &error), STATUS_INVALID);
    expect_named(&error, "\"k\"");
    expect_file(inside("f"), "old", 3);
    ck_assert_int_eq(entries_in(scratch), 1);
    scratch_remove();
}
END_TEST

START_TEST(reading_and_writing_without_memory_change_nothing)
{
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    long n = 1;
    scratch_make();
    make_sample();
    for (; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status =
            safetensors_open(&file, inside("sample"), &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(file);
        ck_assert_int_eq(left, 0);
    }
    ck_assert_int_gt(n, 4);
    const struct safetensors_pair pair = { "format", "pt" };
    put_file(inside("out"), "old", 3);
    for (n = 1; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status =
            safetensors_write(inside("out"), safetensors_at(file, 0), 2,
                              &pair, 1, &error);
        const long left = allocator_live() - live;
        const bool failed = allocator_stop();
        ck_assert_int_eq(left, 0);
        if (!failed)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        expect_file(inside("out"), "old", 3);
        ck_assert_int_eq(entries_in(scratch), 2);
    }
    ck_assert_int_gt(n, 4);
    safetensors_close(&file);
    scratch_remove();
}
END_TEST

/* ----------------------------------------------------------- model files */

enum { PARAMETERS_MAX = 40 };

/* The parameters of a model as entries that a test then spoils. */
static struct safetensors_entry entries[PARAMETERS_MAX + 2];

static size_t list_entries(const struct tiny_gpt *model)
{
    const size_t count = parameters_entries(tiny_gpt_weights(model),
                                            entries);
    ck_assert_uint_eq(count, 4 + 12 * (size_t)small.n_layers);
    return count;
}

static struct safetensors_entry *entry_named(const char *name)
{
    size_t i = 0;
    while (strcmp(entries[i].name, name) != 0)
        i++;
    return &entries[i];
}

/* Writes the entries to a file and expects that loading it into other
   weights is refused by these words, with not a bit changed. */
static void expect_load_refused(size_t count, const char *says)
{
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct parameters *p = tiny_gpt_parameters(model);
    for (size_t k = 0; k < p->size; k++)
        p->storage[k] += 1;
    float *before = malloc(p->size * sizeof *before);
    memcpy(before, p->storage, p->size * sizeof *before);
    expect_ok(safetensors_write(inside("w"), entries, count, NULL, 0,
                                &error), &error);
    expect_ok(safetensors_open(&file, inside("w"), &error), &error);
    ck_assert_msg(parameters_load(p, file, "", &error) == STATUS_FORMAT,
                  "accepted, expected a refusal that says %s", says);
    expect_named(&error, says);
    expect_same_bits("parameters", p->storage, before,
                     p->size * sizeof *before);
    free(before);
    safetensors_close(&file);
    tiny_gpt_free(&model);
}

START_TEST(a_missing_tensor_is_refused_by_its_name)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    const size_t count = list_entries(model);
    for (size_t i = 0; i < count; i++) {
        char says[100];
        list_entries(model);
        snprintf(says, sizeof says, "missing tensor \"%s\"",
                 entries[i].name);
        entries[i] = entries[count - 1];
        expect_load_refused(count - 1, says);
    }
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(an_unexpected_tensor_is_refused_by_its_name)
{
    static const char *const names[] = {
        "blocks.2.mlp_norm.weight", "blocks.0.attention.bias",
        "lm_head.bias", "weight", ""
    };
    const float number = 1;
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    for (size_t i = 0; i < LENGTH(names); i++) {
        char says[100];
        const size_t count = list_entries(model);
        entries[count] = (struct safetensors_entry){
            .name = names[i], .dtype = DTYPE_F32, .data = &number, .bytes = 4
        };
        snprintf(says, sizeof says, "unexpected tensor \"%s\"", names[i]);
        expect_load_refused(count + 1, says);
    }
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_tensor_of_another_type_is_refused)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    const size_t count = list_entries(model);
    struct safetensors_entry *entry = entry_named("blocks.1.mlp_norm.bias");
    entry->dtype = DTYPE_I32;
    expect_load_refused(count, "\"blocks.1.mlp_norm.bias\": dtype: expected"
                        " F32, got I32");
    entry->dtype = DTYPE_F16;
    entry->bytes /= 2;
    expect_load_refused(count, "got F16");
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_tensor_of_another_shape_is_refused)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    const size_t count = list_entries(model);
    struct safetensors_entry *up = entry_named("blocks.0.mlp.up_proj.weight");
    ck_assert_int_eq(up->shape[0], 10);
    up->shape[0] = 6;          /* turned */
    up->shape[1] = 10;
    expect_load_refused(count, "\"blocks.0.mlp.up_proj.weight\": shape:"
                        " expected [10, 6], got [6, 10]");
    up->shape[0] = 60;
    up->rank = 1;
    expect_load_refused(count, "got [60]");
    up->rank = 3;
    up->shape[1] = up->shape[2] = 1;
    expect_load_refused(count, "got [60, 1, 1]");
    *up = (struct safetensors_entry){
        .name = up->name, .dtype = DTYPE_F32, .rank = 8,
        .shape = { 1L << 53, 1, 1, 1, 1, 1, 1, 0 }, .bytes = 0
    };
    expect_load_refused(count, "got [9007199254740992, 1, 1, 1, 1, 1, 1, 0]");
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_head_that_differs_from_the_embedding_is_refused)
{
    float head[66];
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    const size_t count = list_entries(model);
    entries[count] = *entry_named("token_embedding.weight");
    entries[count].name = "lm_head.weight";
    memcpy(head, entries[count].data, sizeof head);
    head[65] = nextafterf(head[65], 9);
    entries[count].data = head;
    expect_load_refused(count + 1, "\"lm_head.weight\": differs from"
                        " \"token_embedding.weight\"");
    entries[count].shape[0] = 6;
    entries[count].shape[1] = 11;
    expect_load_refused(count + 1, "\"lm_head.weight\": shape");
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(after_any_load_head_and_embedding_are_one_storage)
{
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    for (size_t extra = 0; extra <= 1; extra++) {
        struct tiny_gpt *other = NULL;
        const size_t count = list_entries(model);
        entries[count] = *entry_named("token_embedding.weight");
        entries[count].name = "lm_head.weight";
        expect_ok(safetensors_write(inside("w"), entries, count + extra,
                                    NULL, 0, &error), &error);
        expect_ok(safetensors_open(&file, inside("w"), &error), &error);
        expect_ok(tiny_gpt_new(&other, &small, &error), &error);
        struct parameters *p = tiny_gpt_parameters(other);
        expect_ok(parameters_load(p, file, "", &error), &error);
        ck_assert_ptr_eq(p->lm_head.weight.data,
                         p->token_embedding.weight.data);
        expect_same_bits("parameters", p->storage,
                         tiny_gpt_weights(model)->storage,
                         p->size * sizeof (float));
        safetensors_close(&file);
        tiny_gpt_free(&other);
    }
    scratch_remove();
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_prefix_chooses_among_the_tensors_of_a_file)
{
    struct golden *golden = golden_open("gpt_adamw");
    struct tiny_gpt *expected = golden_model(golden, 0);
    struct tiny_gpt *model = noisy_model(tiny_gpt_config(expected), 3);
    struct parameters *p = tiny_gpt_parameters(model);
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    expect_ok(safetensors_open(&file, GOLDEN_DIR "/gpt_adamw.safetensors",
                               &error), &error);
    expect_ok(parameters_load(p, file, "w.", &error), &error);
    expect_same_bits("w.", p->storage, tiny_gpt_weights(expected)->storage,
                     p->size * sizeof (float));
    expect_ok(parameters_load(p, file, "out.w.", &error), &error);
    const struct golden_tensor *last =
        golden_get(golden, "out.w.final_norm.bias");
    expect_same_bits("out.w.", p->final_norm.bias.data, last->f32,
                     last->count * sizeof (float));
    ck_assert_int_eq(parameters_load(p, file, "out.", &error),
                     STATUS_FORMAT);
    expect_named(&error, "unexpected tensor \"out.losses\"");
    safetensors_close(&file);
    tiny_gpt_free(&model);
    tiny_gpt_free(&expected);
    golden_close(golden);
}
END_TEST

START_TEST(a_saved_model_loads_and_saves_to_the_same_bytes)
{
    static unsigned char bytes[1 << 16];
    struct tiny_gpt *model = noisy_model(&small, 3), *loaded = NULL;
    struct error error = { STATUS_OK, "" };
    scratch_make();
    expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
    ck_assert_int_eq(entries_in(inside("a")), 2);
    expect_ok(tiny_gpt_load(&loaded, inside("a"), &error), &error);
    ck_assert_int_eq(tiny_gpt_mode(loaded), MODE_EVALUATION);
    ck_assert(tiny_gpt_config(loaded)->dropout == small.dropout);
    expect_ok(tiny_gpt_save(loaded, inside("b"), &error), &error);
    size_t length = get_file(inside("a/model.safetensors"), bytes,
                             sizeof bytes);
    expect_file(inside("b/model.safetensors"), bytes, length);
    length = get_file(inside("a/config.json"), bytes, sizeof bytes);
    expect_file(inside("b/config.json"), bytes, length);

    struct forward_input input = some_input();
    struct forward_output expected = run(model, &input);
    struct forward_output output = run(loaded, &input);
    expect_same_logits(&output, &expected);
    forward_output_free(&expected);
    forward_output_free(&output);
    tiny_gpt_free(&model);
    tiny_gpt_free(&loaded);
    scratch_remove();
}
END_TEST

START_TEST(tied_weights_are_stored_once)
{
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct safetensors *file = NULL;
    struct error error = { STATUS_OK, "" };
    scratch_make();
    expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
    expect_ok(safetensors_open(&file, inside("a/model.safetensors"),
                               &error), &error);
    ck_assert_uint_eq(safetensors_count(file), 4 + 2 * 12);
    ck_assert_ptr_null(safetensors_find(file, "lm_head.weight"));
    ck_assert_ptr_nonnull(safetensors_find(file, "token_embedding.weight"));
    safetensors_close(&file);
    tiny_gpt_free(&model);
    scratch_remove();
}
END_TEST

/* Writes a config.json into a saved directory and loads it. */
static enum status load_with(const char *text, struct error *error)
{
    struct tiny_gpt *model = NULL;
    put_file(inside("a/config.json"), text, strlen(text));
    const enum status status = tiny_gpt_load(&model, inside("a"), error);
    ck_assert((model != NULL) == (status == STATUS_OK));
    tiny_gpt_free(&model);
    return status;
}

START_TEST(files_of_two_different_saves_are_refused)
{
    static const char form[] =
        "{\"vocab_size\":11,\"context_length\":7,\"d_model\":6,"
        "\"n_layers\":2,\"n_heads\":%d,\"d_ff\":10,\"dropout\":%g,"
        "\"layer_norm_eps\":%g}";
    char text[300];
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct error error = { STATUS_OK, "" };
    scratch_make();
    expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
    snprintf(text, sizeof text, form, 3, 0.625, 1e-5);
    expect_ok(load_with(text, &error), &error);
    snprintf(text, sizeof text, form, 3, 0.0, 1e-5);   /* means the same */
    expect_ok(load_with(text, &error), &error);
    snprintf(text, sizeof text, form, 2, 0.625, 1e-5);  /* fits, but is not */
    ck_assert_int_eq(load_with(text, &error), STATUS_FORMAT);
    expect_named(&error, "config");
    snprintf(text, sizeof text, form, 3, 0.625, 1e-4);
    ck_assert_int_eq(load_with(text, &error), STATUS_FORMAT);
    expect_named(&error, "config");

    /* weights that say nothing about a config are taken as they are */
    const size_t count = list_entries(model);
    expect_ok(safetensors_write(inside("a/model.safetensors"), entries,
                                count, NULL, 0, &error), &error);
    expect_ok(load_with(text, &error), &error);
    const struct safetensors_pair pair = { "config", "{}" };
    expect_ok(safetensors_write(inside("a/model.safetensors"), entries,
                                count, &pair, 1, &error), &error);
    ck_assert_int_eq(load_with(text, &error), STATUS_FORMAT);
    expect_named(&error, "model.safetensors");
    tiny_gpt_free(&model);
    scratch_remove();
}
END_TEST

START_TEST(a_directory_without_a_model_is_refused_by_file)
{
    static const char *const files[] = { "config.json", "model.safetensors" };
    struct tiny_gpt *model = noisy_model(&small, 3);
    scratch_make();
    for (int k = 0; k < 2; k++)
        for (int how = 0; how < 3; how++) {
            char path[300];
            struct tiny_gpt *loaded = NULL;
            struct error error = { STATUS_OK, "" };
            expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
            snprintf(path, sizeof path, "%s/a/%s", scratch, files[k]);
            if (how == 0)
                ck_assert_int_eq(unlink(path), 0);
            else
                put_file(path, "{\"x\"", how == 1 ? 0 : 4);
            ck_assert_int_ne(tiny_gpt_load(&loaded, inside("a"), &error),
                             STATUS_OK);
            expect_named(&error, path);
            ck_assert_ptr_null(loaded);
        }
    struct tiny_gpt *loaded = NULL;
    struct error error = { STATUS_OK, "" };
    ck_assert_int_eq(tiny_gpt_load(&loaded, inside("none"), &error),
                     STATUS_IO);
    tiny_gpt_free(&model);
    scratch_remove();
}
END_TEST

START_TEST(a_save_that_fails_leaves_the_old_model)
{
    static unsigned char weights[1 << 16], config[1024];
    struct gpt_config changed = small;
    changed.n_heads = 2;
    struct tiny_gpt *model = noisy_model(&small, 3);
    struct tiny_gpt *other = noisy_model(&changed, 3);
    struct error error = { STATUS_OK, "" };
    scratch_make();
    expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
    const size_t length = get_file(inside("a/model.safetensors"), weights,
                                   sizeof weights);
    const size_t config_length = get_file(inside("a/config.json"), config,
                                          sizeof config);
    for (rlim_t room = 0; room < length; room += length / 7) {
        fill_disk_after(room);
        const enum status status = tiny_gpt_save(other, inside("a"), &error);
        empty_disk();
        ck_assert_int_eq(status, STATUS_IO);
        expect_named(&error, "a/model.safetensors");
        ck_assert_int_eq(entries_in(inside("a")), 2);
        expect_file(inside("a/model.safetensors"), weights, length);
        expect_file(inside("a/config.json"), config, config_length);
    }
    /* a directory in the way of the weights */
    ck_assert_int_eq(unlink(inside("a/model.safetensors")), 0);
    ck_assert_int_eq(mkdir(inside("a/model.safetensors"), 0777), 0);
    ck_assert_int_eq(tiny_gpt_save(other, inside("a"), &error), STATUS_IO);
    ck_assert_int_eq(entries_in(inside("a")), 2);
    expect_file(inside("a/config.json"), config, config_length);
    /* a directory that is a file, and one whose parent is not there */
    put_file(inside("plain"), "x", 1);
    ck_assert_int_eq(tiny_gpt_save(other, inside("plain"), &error),
                     STATUS_IO);
    expect_named(&error, "plain");
    ck_assert_int_eq(tiny_gpt_save(other, inside("no/such"), &error),
                     STATUS_IO);
    expect_named(&error, "no/such");
    expect_file(inside("plain"), "x", 1);
    tiny_gpt_free(&model);
    tiny_gpt_free(&other);
    scratch_remove();
}
END_TEST

START_TEST(saving_and_loading_without_memory_change_nothing)
{
    static unsigned char before[1 << 16];
    struct tiny_gpt *model = noisy_model(&small, 3), *loaded = NULL;
    struct error error = { STATUS_OK, "" };
    long n = 1;
    scratch_make();
    expect_ok(tiny_gpt_save(model, inside("a"), &error), &error);
    const size_t length = get_file(inside("a/model.safetensors"), before,
                                   sizeof before);
    tiny_gpt_parameters(model)->storage[0] = 9;
    for (; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = tiny_gpt_save(model, inside("a"), &error);
        const long left = allocator_live() - live;
        const bool failed = allocator_stop();
        ck_assert_int_eq(left, 0);
        if (!failed)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(entries_in(inside("a")), 2);
        expect_file(inside("a/model.safetensors"), before, length);
    }
    ck_assert_int_gt(n, 8);
    for (n = 1; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = tiny_gpt_load(&loaded, inside("a"),
                                                 &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(loaded);
        ck_assert_int_eq(left, 0);
    }
    ck_assert_int_gt(n, 10);
    tiny_gpt_free(&model);
    tiny_gpt_free(&loaded);
    scratch_remove();
}
END_TEST

static const struct test tests[] = {
    TEST(generator_gives_the_numbers_of_its_reference, 1,
         "draw a permuted output from the old state"),
    TEST(generator_state_can_be_copied_and_streams_differ, 1,
         "seed a generator"),
    TEST(uniform_numbers_fill_the_unit_interval, 1,
         "shape the draws into distributions"),
    TEST(normal_numbers_have_the_moments_of_a_normal, 1,
         "shape the draws into distributions"),
    TEST(a_normal_number_takes_two_draws, 1,
         "shape the draws into distributions"),
    TEST(logits_at_t_are_held_against_the_label_at_t_plus_1, 1,
         "pair the logits at t with the label at t + 1"),
    TEST(logits_of_ten_thousand_give_a_finite_loss, 1,
         "add the exponentials without leaving the range"),
    TEST(the_mean_is_over_the_labels_that_count, 1,
         "average over the labels that counted"),
    TEST(no_label_that_counts_gives_zero_and_a_zero_gradient, 1,
         "average over the labels that counted"),
    TEST(the_gradient_of_the_loss_agrees_with_finite_differences, 1,
         "write the gradient of the row"),
    TEST(a_label_outside_the_vocabulary_is_refused_by_its_index, 1,
         "refuse a label that is neither an id nor the mark"),
    TEST(the_loss_of_the_golden_logits_is_the_golden_loss, 1,
         "the loss over a batch"),
    TEST(a_dropout_mask_has_mean_one, 1,
         "let weight restore the mean of what survives"),
    TEST(a_dropout_mask_drops_a_share_of_p_without_a_pattern, 1,
         "drop element i, or keep it"),
    TEST(equal_seeds_give_equal_masks_and_other_seeds_others, 1,
         "drop element i, or keep it"),
    TEST(a_new_model_evaluates_and_its_mode_can_be_set, 0,
         "mode.h"),
    TEST(evaluation_drops_nothing_and_draws_nothing, 1,
         "decide whether a call drops elements"),
    TEST(training_without_dropout_equals_evaluation, 1,
         "decide whether a call drops elements"),
    TEST(training_with_dropout_needs_a_generator, 1,
         "refuse labels that cannot be, and dropout without a generator"),
    TEST(the_embedding_is_dropped_where_its_mask_is_zero, 1,
         "drop elements of the embedding"),
    TEST(the_probabilities_are_recorded_whole_and_used_dropped, 1,
         "drop elements of the probabilities"),
    TEST(the_attention_is_dropped_before_it_is_added, 1,
         "drop elements of the attention's output"),
    TEST(the_feed_forward_output_is_dropped_before_it_is_added, 1,
         "drop elements of the feed-forward output"),
    TEST(a_training_call_draws_once_for_each_element_of_its_masks, 1,
         "one draw of dropout"),
    TEST(equal_seeds_give_equal_training_calls_and_other_seeds_others, 1,
         "one draw of dropout"),
    TEST(forward_with_labels_gives_the_golden_loss, 1,
         "compute the loss if there are labels"),
    TEST(forward_refuses_a_label_by_its_index_and_changes_nothing, 1,
         "refuse labels that cannot be, and dropout without a generator"),
    TEST(a_training_call_without_memory_leaves_no_trace, 1,
         "room for the masks"),
    TEST(a_model_starts_with_small_weights_unit_norms_and_no_biases, 1,
         "initialise the parts of a model"),
    TEST(a_file_is_read_whole_with_a_zero_after_it, 1,
         "read an open file"),
    TEST(what_is_not_a_file_is_refused_by_its_path, 1,
         "refuse what is not a regular file"),
    TEST(a_file_that_ends_before_its_size_is_refused, 1,
         "read bytes until the file ends"),
    TEST(a_write_replaces_the_whole_file_and_leaves_nothing_else, 1,
         "write, publish, discard a draft"),
    TEST(a_full_disk_leaves_the_old_file_as_it_was, 1,
         "write the draft under a name of its own"),
    TEST(a_write_that_cannot_be_is_refused_by_its_path, 1,
         "take the failed draft away"),
    TEST(a_draft_steps_aside_for_one_that_was_left_behind, 1,
         "write the draft under a name of its own"),
    TEST(a_draft_shows_only_when_it_is_published, 1,
         "write, publish, discard a draft"),
    TEST(files_without_memory_are_refused_and_leave_nothing, 1,
         "make an empty draft for a path"),
    TEST(a_header_length_beyond_the_file_is_refused, 1,
         "refuse a header that is longer than the file"),
    TEST(a_header_that_is_not_one_json_object_is_refused, 1,
         "parse the header"),
    TEST(a_zero_character_in_the_header_is_refused, 1,
         "zero characters, however they are spelled"),
    TEST(a_name_that_occurs_twice_is_refused, 1,
         "refuse the first key that equals its neighbour"),
    TEST(an_entry_of_another_form_is_refused_by_its_name, 1,
         "one entry of the header"),
    TEST(an_unknown_type_is_refused_by_its_name, 1, "read a type"),
    TEST(a_number_that_is_no_size_is_refused, 1,
         "numbers that must be whole"),
    TEST(a_shape_whose_product_wraps_is_refused, 1,
         "let size be the bytes that the shape asks for"),
    TEST(a_span_outside_the_data_is_refused, 1,
         "refuse a span that leaves the data"),
    TEST(spans_that_overlap_or_leave_holes_are_refused, 1,
         "refuse a tensor that does not start where the last one ended"),
    TEST(unusual_files_that_are_right_are_read, 1,
         "look things up in an open file"),
    TEST(every_type_has_its_size, 1, "names and sizes of the types"),
    TEST(a_file_cut_short_or_grown_anywhere_is_refused, 1,
         "refuse data that belong to no tensor"),
    TEST(no_single_wrong_byte_does_harm, 1, "one entry of the header"),
    TEST(the_golden_file_reads_as_the_golden_reader_says, 1,
         "open and close"),
    TEST(a_golden_file_written_again_is_the_same_bytes, 1,
         "write the header"),
    TEST(names_and_metadata_of_any_kind_survive, 1,
         "spell a character that JSON does not allow in a string"),
    TEST(a_writer_refuses_what_the_reader_would, 1,
         "say what is wrong with an entry"),
    TEST(reading_and_writing_without_memory_change_nothing, 1,
         "write the file as a draft"),
    TEST(a_missing_tensor_is_refused_by_its_name, 1,
         "refuse a parameter that the file lacks"),
    TEST(an_unexpected_tensor_is_refused_by_its_name, 1,
         "refuse a tensor that is no parameter"),
    TEST(a_tensor_of_another_type_is_refused, 1,
         "refuse a tensor of another type"),
    TEST(a_tensor_of_another_shape_is_refused, 1,
         "refuse a tensor of another shape"),
    TEST(a_head_that_differs_from_the_embedding_is_refused, 1,
         "refuse a head that is not the embedding"),
    TEST(after_any_load_head_and_embedding_are_one_storage, 1,
         "copy the tensors into the parameters"),
    TEST(a_prefix_chooses_among_the_tensors_of_a_file, 1,
         "pair the tensors of a file with the parameters"),
    TEST(a_saved_model_loads_and_saves_to_the_same_bytes, 1,
         "save a model"),
    TEST(tied_weights_are_stored_once, 1,
         "list the parameters as tensors of a file"),
    TEST(files_of_two_different_saves_are_refused, 1,
         "refuse files from two different saves"),
    TEST(a_directory_without_a_model_is_refused_by_file, 1,
         "load a model"),
    TEST(a_save_that_fails_leaves_the_old_model, 1,
         "draft both files, then publish both"),
    TEST(saving_and_loading_without_memory_change_nothing, 1,
         "save a model"),
};

SUITE("chapter 3, loss, dropout and files", tests);
