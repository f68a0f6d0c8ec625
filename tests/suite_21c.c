/* Chapter 21c: the bench. Bytes and operations against sums that are made by
   hand, against chapter 14 and against what an engine holds; medians and
   fractions of numbers that are known; rounds whose clock is the suite's own.
   How long anything takes is not looked at. */
#include <cjson/cJSON.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "cache_bytes.h"
#include "limit_loops.h"
#include "request.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/llamas.h"
#include "support/program.h"
#include "thread_count.h"

static struct error error;

/* A clock that goes on by `step` at each look, and by `growth` times that at
   the next. */
static struct { double time, step, growth; int looks; } clock_now;

static double tick(void *state)
{
    (void)state;
    clock_now.looks++;
    clock_now.step *= clock_now.growth;
    return clock_now.time += clock_now.step;
}

static const struct stopwatch ticks = {tick, NULL};

static void clock_start(double step)
{
    clock_now.time = 0;
    clock_now.step = step;
    clock_now.growth = 1;
    clock_now.looks = 0;
}

static void expect_near(double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 1e-12 * fabs(want),
                  "expected %.17g, got %.17g", want, got);
}

/* ----------------------------------------------------------------- samples */

static struct samples samples_of(int count, const double *values)
{
    struct samples samples = {0};
    for (int k = 0; k < count; k++)
        samples_add(&samples, values[k]);
    return samples;
}

START_TEST(samples_are_sorted_however_they_come)
{
    uint64_t state = noise_start(1);
    double values[SAMPLES_MAX];
    for (int k = 0; k < SAMPLES_MAX; k++)
        values[k] = noise(&state);
    const struct samples samples = samples_of(SAMPLES_MAX, values);
    ck_assert_int_eq(samples.count, SAMPLES_MAX);
    double sum = 0, sorted = 0;
    for (int k = 0; k < SAMPLES_MAX; k++) {
        sum += values[k];
        sorted += samples.sorted[k];
        ck_assert(k == 0 || samples.sorted[k - 1] <= samples.sorted[k]);
    }
    ck_assert(fabs(sum - sorted) < 1e-9);
}
END_TEST

START_TEST(a_median_stands_in_the_middle_or_between_two)
{
    const double odd[] = {5, 1, 3}, even[] = {10, 1, 4, 2}, one[] = {7};
    struct samples samples = samples_of(3, odd);
    expect_near(samples_median(&samples), 3);
    samples = samples_of(4, even);
    expect_near(samples_median(&samples), 3);
    samples = samples_of(1, one);
    expect_near(samples_median(&samples), 7);
    expect_near(samples_spread(&samples), 0);
}
END_TEST

/* Of 1, 2, 4, 10: quartiles at 0.75 and 2.25 of the places 0 … 3. */
START_TEST(the_spread_is_the_distance_of_the_quartiles_by_the_median)
{
    const double values[] = {2, 10, 4, 1};
    const struct samples samples = samples_of(4, values);
    expect_near(samples_quantile(&samples, 0), 1);
    expect_near(samples_quantile(&samples, 0.25), 1.75);
    expect_near(samples_quantile(&samples, 0.75), 5.5);
    expect_near(samples_quantile(&samples, 1), 10);
    expect_near(samples_spread(&samples), 3.75 / 3);
}
END_TEST

START_TEST(one_outlier_moves_no_median)
{
    const double values[] = {12, 12.1, 100, 12.2, 11.9};
    const struct samples samples = samples_of(5, values);
    expect_near(samples_median(&samples), 12.1);
}
END_TEST

/* ------------------------------------------------------------------ limits */

/* The loops that run here: those whose kernels do. */
static int loops_here(const struct limit_loops *loops[3])
{
    const struct limit_loops *const all[] = {
        &limit_loops_avx512, &limit_loops_avx2, &limit_loops_base
    };
    int count = 0;
    for (int k = 0; k < 3; k++)
        if (kernels_named(all[k]->name) != NULL)
            loops[count++] = all[k];
    return count;
}

/* Small whole numbers: their sums are exact in any order. */
START_TEST(every_float_of_the_array_is_read_once)
{
    const struct limit_loops *loops[3];
    const int count = loops_here(loops);
    uint64_t state = noise_start(2);
    const size_t floats = 3 * LIMIT_BLOCK;
    float *array = aligned_alloc(64, floats * sizeof *array);
    double sum = 0;
    ck_assert_ptr_nonnull(array);
    for (size_t k = 0; k < floats; k++)
        sum += array[k] = (float)noise_below(&state, 1000);
    for (int l = 0; l < count; l++)
        for (int k = 0; k < LIMIT_STREAMS; k++)
            ck_assert_msg((double)loops[l]->read[k](array, floats) == sum,
                          "%s, %d streams", loops[l]->name, 1 << k);
    free(array);
}
END_TEST

/* With a factor of 1 each lane of each chain grows by the term. */
START_TEST(every_lane_of_every_chain_is_summed)
{
    const struct limit_loops *loops[3];
    const int count = loops_here(loops);
    float *seeds = aligned_alloc(64, LIMIT_SEEDS * sizeof *seeds);
    ck_assert_ptr_nonnull(seeds);
    for (int l = 0; l < count; l++) {
        double sum = 0;
        for (int k = 0; k < LIMIT_SEEDS; k++)
            seeds[k] = k < 16 ? 1 : k < 32 ? (float)(k - 15) : (float)(k % 7);
        for (int c = 0; c < LIMIT_CHAINS; c++)
            for (int k = 0; k < loops[l]->lanes; k++)
                sum += (double)seeds[16 * (c + 2) + k] + 10.0 * (k + 1);
        ck_assert_msg((double)loops[l]->multiply(seeds, 10) == sum, "%s",
                      loops[l]->name);
    }
    free(seeds);
}
END_TEST

static struct limits *new_limits(size_t bytes)
{
    struct limits *limits = NULL;
    expect_ok(limits_new(&limits, bytes, &error), &error);
    return limits;
}

/* Every burst takes a second of this clock, so rates are what was counted. */
START_TEST(the_bytes_are_those_that_all_threads_read)
{
    const size_t bytes = 5 * LIMIT_BLOCK * LIMIT_THREADS * sizeof (float);
    struct limits *limits = new_limits(bytes);
    for (int threads = 1; threads <= 5; threads++) {
        clock_start(1);
        const struct limit limit = limits_measure(limits, threads, &ticks);
        const double block = LIMIT_BLOCK * sizeof (float);
        ck_assert(limit.bytes <= (double)bytes);
        ck_assert(limit.bytes > (double)bytes - threads * block);
    }
    limits_free(&limits);
    ck_assert_ptr_null(limits);
}
END_TEST

START_TEST(the_operations_are_those_of_all_threads)
{
    struct limits *limits = new_limits((size_t)1 << 20);
    clock_start(1);
    const struct limit one = limits_measure(limits, 1, &ticks);
    const struct limit three = limits_measure(limits, 3, &ticks);
    const double round = 2.0 * LIMIT_CHAINS * limits_lanes(limits);
    expect_near(three.flops, 3 * one.flops);
    ck_assert(one.flops >= round && fmod(one.flops, round) == 0);
    limits_free(&limits);
}
END_TEST

/* A burst must not be shorter than what a clock can see. */
START_TEST(bursts_grow_until_they_can_be_timed)
{
    struct limits *limits = new_limits((size_t)1 << 20);
    clock_start(1);
    limits_measure(limits, 1, &ticks);
    const int looks = clock_now.looks;
    clock_start(1e-4);
    clock_now.growth = 2;        /* bursts of 4e-4 and 16e-4 are too short */
    limits_measure(limits, 1, &ticks);
    ck_assert_int_eq(clock_now.looks, looks + 4);
    limits_free(&limits);
}
END_TEST

START_TEST(the_lanes_are_those_of_the_best_kernels)
{
    const struct limit_loops *loops[3];
    loops_here(loops);
    struct limits *limits = new_limits((size_t)1 << 20);
    ck_assert_int_eq(limits_lanes(limits), loops[0]->lanes);
    limits_free(&limits);
}
END_TEST

START_TEST(an_array_that_is_too_small_is_refused)
{
    struct limits *limits = NULL;
    ck_assert_int_eq(limits_new(&limits, 1000, &error), STATUS_INVALID);
    expect_named(&error, "bytes");
    ck_assert_ptr_null(limits);
    limits_free(&limits);
}
END_TEST

START_TEST(making_limits_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct limits *limits = NULL;
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = limits_new(&limits, (size_t)1 << 20,
                                              &error);
        const long left = allocator_live() - live;
        if (!allocator_stop()) {
            limits_free(&limits);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        ck_assert_ptr_null(limits);
    }
}
END_TEST

START_TEST(a_number_of_threads_is_what_openmp_says)
{
    ck_assert_int_ge(thread_count_available(), 1);
    for (int threads = 1; threads <= 5; threads += 2) {
        thread_count_use(threads);
        ck_assert_int_eq(omp_get_max_threads(), threads);
    }
}
END_TEST

/* -------------------------------------------------------------------- work */

static struct bench_work work_of(const struct ownership *ownership,
                                 int batch, int tokens, int past,
                                 enum matrix_type type)
{
    const struct phase phase = {batch, tokens, past, true};
    struct bench_work work;
    expect_ok(bench_work(ownership, &phase, type, &work, &error), &error);
    return work;
}

static struct bench_shape shape_of(const char *name)
{
    struct bench_shape shape;
    expect_ok(bench_shape_find(&shape, name, &error), &error);
    return shape;
}

/* V 99, C 24, L 2, H 3, D 8, F 40: matrices of 3·24², 24², 24·40 twice and
   the head, 24·99; vectors of 4·24, 3·24, 24, 40 and 24 a layer, and 2·24. */
START_TEST(the_bytes_of_a_small_model_are_the_sums_by_hand)
{
    const struct bench_shape shape = shape_of("tiny");
    const double layer = 3 * 576 + 576 + 2 * 960, head = 24 * 99;
    const double floats = 2 * (96 + 72 + 24 + 40 + 24) + 48;
    const double matrices = 2 * layer + head;
    const struct ownership *own = &shape.ownership;
    expect_near(work_of(own, 1, 1, 7, MATRIX_F32).weight_bytes,
                4 * (matrices + floats));
    expect_near(work_of(own, 1, 1, 7, MATRIX_BF16).weight_bytes,
                2 * matrices + 4 * floats);
    expect_near(work_of(own, 1, 1, 7, MATRIX_F32).cache_bytes,
                2.0 * 2 * 7 * 24 * 4);
    expect_near(work_of(own, 5, 1, 7, MATRIX_F32).cache_bytes,
                5 * 2.0 * 2 * 7 * 24 * 4);
}
END_TEST

/* One group of 24 inputs, or two of 40, each with a scale. */
START_TEST(eight_bits_have_a_scale_for_every_group_of_inputs)
{
    const struct bench_shape shape = shape_of("tiny");
    const double layer = 3 * 576 + 576 + 2 * 960, head = 24 * 99;
    const double scales = 2 * (72 + 24 + 40 + 2 * 24) + 99;
    const double floats = 2 * (96 + 72 + 24 + 40 + 24) + 48;
    expect_near(work_of(&shape.ownership, 1, 1, 1, MATRIX_INT8).weight_bytes,
                2 * layer + head + 4 * scales + 4 * floats);
}
END_TEST

START_TEST(a_matrix_of_whole_panels_has_the_bytes_that_an_engine_keeps)
{
    /* all sizes multiples of 32: nothing is padded */
    const struct bench_shape shape = shape_of("64,32,1,1,1,32,96");
    const int sizes[][2] = {{32, 32}, {32, 32}, {32, 32}, {32, 32},
                            {96, 32}, {96, 32}, {32, 96}, {64, 32}};
    for (int type = 0; type < 3; type++) {
        size_t sum = 3 * 32 * sizeof (float);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            size_t data, scales;
            ck_assert(matrix_packed_sizes(sizes[k][0], sizes[k][1],
                                          (enum matrix_type)type, &data,
                                          &scales));
            sum += data + scales;
        }
        expect_near(work_of(&shape.ownership, 1, 1, 1,
                            (enum matrix_type)type).weight_bytes,
                    (double)sum);
    }
}
END_TEST

START_TEST(floats_have_the_bytes_and_operations_of_the_audit)
{
    static const char *const names[] = {
        "gpt2-124m", "gpt2-355m", "llama-110m", "llama-1b", "tiny",
        "tiny-llama", "61,12,3,6,3,4,10", "61,12,3,6,3,4,10,5,2"
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const struct bench_shape shape = shape_of(names[k]);
        for (int tokens = 1; tokens < 40; tokens += 13) {
            const struct phase phase = {3, tokens, 17 * (tokens - 1), true};
            struct work audit;
            expect_ok(phase_work(&shape.ownership, &phase, &audit, &error),
                      &error);
            const struct bench_work work = work_of(
                &shape.ownership, 3, tokens, phase.past, MATRIX_F32);
            expect_near(work.weight_bytes, (double)audit.weight_bytes);
            expect_near(work.cache_bytes, (double)audit.cache_read);
            expect_near(bench_work_flops(&work), (double)audit.flops);
            expect_near(bench_work_bytes(&work),
                        (double)(audit.weight_bytes + audit.cache_read));
        }
    }
}
END_TEST

START_TEST(the_work_of_gpt2_is_the_one_in_the_book)
{
    const struct bench_shape shape = shape_of("gpt2-124m");
    const struct ownership *own = &shape.ownership;
    const struct bench_work decode = work_of(own, 1, 1, 64, MATRIX_F32);
    const struct bench_work prompt = work_of(own, 1, 512, 0, MATRIX_F32);
    const double layers = 12 * 12.0 * 768 * 768, head = 50257.0 * 768;
    ck_assert_uint_eq(own->total, 124439808);
    expect_near(decode.weight_bytes, 4 * (124439808.0 - 1024 * 768));
    expect_near(decode.cache_bytes, 8.0 * 12 * 768 * 64);
    expect_near(decode.linear_flops, 2 * (layers + head));
    expect_near(decode.attention_flops, 4.0 * 12 * 768 * 65);
    expect_near(prompt.linear_flops, 2 * (512 * layers + head));
    expect_near(prompt.attention_flops, 4.0 * 12 * 768 * 512 * 513 / 2);
    expect_near(prompt.cache_bytes, 0);
}
END_TEST

START_TEST(a_training_step_is_three_passes_with_all_logits)
{
    const struct bench_shape shape = shape_of("gpt2-124m");
    const double layers = 12 * 12.0 * 768 * 768, head = 50257.0 * 768;
    struct bench_work work;
    expect_ok(bench_training_work(&shape.ownership, 4, 64, &work, &error),
              &error);
    expect_near(work.linear_flops, 6 * 256 * (layers + head));
    expect_near(work.attention_flops, 3 * 4 * 4.0 * 12 * 768 * 64 * 65 / 2);
    expect_near(work.weight_bytes, 3 * 4 * (124439808.0 - 1024 * 768));
    expect_near(work.cache_bytes, 0);
}
END_TEST

START_TEST(work_that_no_model_can_have_is_refused)
{
    const struct bench_shape shape = shape_of("tiny");
    const struct phase long_one = {1, 1, 1024, true};
    struct bench_work work = {1, 2, 3, 4};
    ck_assert_int_eq(bench_work(&shape.ownership, &long_one, MATRIX_F32,
                                &work, &error), STATUS_INVALID);
    expect_named(&error, "context_length");
    ck_assert_int_eq(bench_training_work(&shape.ownership, 1, 1025, &work,
                                         &error), STATUS_INVALID);
    ck_assert_int_eq(bench_training_work(&shape.ownership, 0, 1, &work,
                                         &error), STATUS_INVALID);
    ck_assert(work.linear_flops == 1 && work.cache_bytes == 4);
}
END_TEST

/* ------------------------------------------------------------------ models */

START_TEST(every_shape_has_the_parameters_of_its_name)
{
    ck_assert_uint_eq(shape_of("gpt2-124m").ownership.total, 124439808);
    ck_assert_uint_eq(shape_of("gpt2-355m").ownership.total, 354823168);
    ck_assert_uint_eq(shape_of("llama-110m").ownership.total, 109529856);
    ck_assert_uint_eq(shape_of("llama-1b").ownership.total, 1100048384);
    const struct bench_shape shape = shape_of("11,6,2,4,2,2,5");
    ck_assert(shape.gated);
    ck_assert_str_eq(shape.name, "11,6,2,4,2,2,5");
    ck_assert_int_eq(shape.llama.vocab_size, 11);
    ck_assert_int_eq(shape.llama.d_ff, 5);
}
END_TEST

START_TEST(a_shape_that_is_none_is_refused)
{
    static const char *const names[] = {
        "gpt3", "", "1,2,3", "11,6,2,4,2,2", "11,6,2,4,2,2,5,",
        "11,6,2,4,2,2,5,1", "11,6,2,4,2,2,x", "11,6,2,4,3,2,5",
        "11,6,2,4,2,2,0", "11,6,2,4,2,2,5,3,4", "11 6 2 4 2 2 5",
        "11,6,2,4,2,2,5,3,2,1", "11,6,2,4,2,2,5x"
    };
    struct bench_shape shape = {.name = "as it was"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        ck_assert_msg(bench_shape_find(&shape, names[k], &error)
                      == STATUS_INVALID, "%s", names[k]);
        ck_assert_str_eq(shape.name, "as it was");
    }
}
END_TEST

static void open_model(struct bench_model *model, const char *name)
{
    const struct bench_shape shape = shape_of(name);
    memset(model, 0, sizeof *model);
    expect_ok(bench_model_open(model, &shape, &error), &error);
    for (int w = 0; w < BENCH_WEIGHTS; w++)
        expect_ok(bench_model_weights(model, (enum bench_weights)w, &error),
                  &error);
}

START_TEST(made_up_weights_are_small_and_norms_are_one)
{
    struct bench_model model;
    open_model(&model, "tiny");
    const struct parameters *weights = tiny_gpt_weights(model.gpt);
    double square = 0;
    for (size_t k = 0; k < weights->size; k++) {
        const float w = weights->storage[k];
        ck_assert(w == 1 || (fabsf(w) <= 0.035f && w != 0));
        square += w == 1 ? 0 : (double)w * w;
    }
    const double deviation = sqrt(square / (double)weights->size);
    ck_assert(deviation > 0.015 && deviation < 0.025);
    ck_assert_float_eq(weights->final_norm.weight.data[3], 1);
    ck_assert_float_eq(weights->blocks[1].mlp_norm.weight.data[0], 1);
    ck_assert_float_ne(weights->blocks[1].mlp_norm.bias.data[0], 0);
    bench_model_close(&model);
    open_model(&model, "tiny-llama");
    const struct llama_tensor *norm = llama_tensor_find(
        model.llama, "model.layers.1.post_attention_layernorm.weight");
    ck_assert_float_eq(norm->tensor->data[5], 1);
    bench_model_close(&model);
}
END_TEST

/* The logits of a prompt of T tokens, by a request of the suite's own. */
static float *logits_of(const struct causal_lm *lm, int tokens)
{
    const size_t count = (size_t)tokens * (size_t)lm->vocab_size;
    float *copy = malloc(count * sizeof *copy);
    struct request *request = NULL;
    const float *logits;
    ck_assert_ptr_nonnull(copy);
    expect_ok(request_new(&request, lm, 1, tokens, tokens, &error), &error);
    int32_t *ids = request_columns(request);
    for (int t = 0; t < tokens; t++)
        ids[t] = (5 * t + 3) % lm->vocab_size;
    expect_ok(request_feed(request, ids, tokens, false, &logits, &error),
              &error);
    memcpy(copy, logits, count * sizeof *copy);
    request_free(&request);
    return copy;
}

START_TEST(rows_and_panels_on_any_kernels_give_the_models_logits)
{
    static const char *const names[] = {"tiny", "tiny-llama",
                                        "37,12,2,4,2,6,20,3,2"};
    const struct kernels *tables[KERNELS_MAX];
    const int count = kernels_available(tables);
    for (int n = 0; n < 3; n++) {
        struct bench_model model;
        open_model(&model, names[n]);
        const struct causal_lm own = model.gpt != NULL
            ? tiny_gpt_step_lm(model.gpt) : llama_step_lm(model.llama);
        float *want = logits_of(&own, 9);
        for (int k = 0; k < 2 * count; k++) {
            const struct on_kernels on = {
                bench_model_stack(&model, k < count ? WEIGHTS_ROWS
                                                    : WEIGHTS_F32),
                tables[k % count]
            };
            const struct causal_lm lm = on_kernels_causal_lm(&on);
            float *got = logits_of(&lm, 9);
            for (int v = 0; v < 9 * lm.vocab_size; v++)
                ck_assert_msg(fabsf(got[v] - want[v]) < 1e-5f, "%s on %s",
                              names[n], tables[k % count]->name);
            free(got);
        }
        free(want);
        bench_model_close(&model);
    }
}
END_TEST

START_TEST(opening_a_model_survives_each_failed_allocation)
{
    const struct bench_shape shape = shape_of("tiny");
    for (long n = 1; ; n++) {
        struct bench_model model = {.gpt = NULL};
        const long live = allocator_live();
        allocator_fail_at(n);
        enum status status = bench_model_open(&model, &shape, &error);
        if (status == STATUS_OK)
            status = bench_model_weights(&model, WEIGHTS_INT8, &error);
        bench_model_close(&model);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
    }
}
END_TEST

/* ------------------------------------------------------------------- cases */

static struct bench_case case_of(const char *what, int batch, int tokens,
                                 int context)
{
    return (struct bench_case){what, WEIGHTS_F32, kernels_best(), batch,
                               tokens, context};
}

/* Each look at the clock takes a second, and a feed has two. */
START_TEST(a_decoded_token_has_the_same_context_every_time)
{
    struct bench_model model;
    open_model(&model, "tiny");
    const struct bench_case one = case_of("decode", 3, 1, 5);
    struct bench_task task = {0};
    double seconds = 0;
    expect_ok(bench_task_new(&task, &model, &one, &error), &error);
    for (int k = 0; k < 3; k++) {
        clock_start(1);
        expect_ok(task.once(task.state, &ticks, &seconds, &error), &error);
        ck_assert_int_eq(clock_now.looks, 2 * BENCH_DECODE_STEPS);
        expect_near(seconds, 1);
    }
    bench_task_free(&task);
    bench_task_free(&task);
    bench_model_close(&model);
}
END_TEST

START_TEST(a_prompt_begins_in_an_empty_cache_every_time)
{
    struct bench_model model;
    open_model(&model, "tiny-llama");
    const struct bench_case one = case_of("prefill", 1, 11, 0);
    struct bench_task task = {0};
    double seconds = 0;
    expect_ok(bench_task_new(&task, &model, &one, &error), &error);
    for (int k = 0; k < 3; k++) {
        clock_start(3);
        expect_ok(task.once(task.state, &ticks, &seconds, &error), &error);
        ck_assert_int_eq(clock_now.looks, 2);
        expect_near(seconds, 3);
    }
    bench_task_free(&task);
    bench_model_close(&model);
}
END_TEST

START_TEST(a_step_of_training_is_timed_and_leaves_the_weights)
{
    static const char *const names[] = {"tiny", "tiny-llama"};
    for (int n = 0; n < 2; n++) {
        struct bench_model model;
        open_model(&model, names[n]);
        const struct causal_lm lm = model.gpt != NULL
            ? tiny_gpt_step_lm(model.gpt) : llama_step_lm(model.llama);
        const struct bench_case one = case_of("train", 2, 5, 0);
        struct bench_task task = {0};
        double seconds = 0;
        float *before = logits_of(&lm, 4);
        expect_ok(bench_task_new(&task, &model, &one, &error), &error);
        for (int k = 0; k < 2; k++) {
            clock_start(2);
            expect_ok(task.once(task.state, &ticks, &seconds, &error),
                      &error);
            expect_near(seconds, 2);
        }
        float *after = logits_of(&lm, 4);
        for (int v = 0; v < 4 * lm.vocab_size; v++)
            ck_assert(fabsf(before[v] - after[v]) < 1e-6f);
        free(before);
        free(after);
        bench_task_free(&task);
        bench_model_close(&model);
    }
}
END_TEST

START_TEST(making_a_task_survives_each_failed_allocation)
{
    static const char *const whats[] = {"decode", "train"};
    struct bench_model model;
    open_model(&model, "tiny");
    for (int w = 0; w < 2; w++) {
        const struct bench_case one = case_of(whats[w], 2, w == 0 ? 1 : 3,
                                              w == 0 ? 4 : 0);
        for (long n = 1; ; n++) {
            struct bench_task task = {0};
            const long live = allocator_live();
            allocator_fail_at(n);
            const enum status status = bench_task_new(&task, &model, &one,
                                                      &error);
            const long left = allocator_live() - live;
            const bool failed = allocator_stop();
            if (!failed) {
                bench_task_free(&task);
                break;
            }
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
            ck_assert_int_eq(left, 0);
            ck_assert_ptr_null(task.state);
        }
    }
    bench_model_close(&model);
}
END_TEST

START_TEST(a_case_has_the_work_of_its_kind)
{
    const struct bench_shape shape = shape_of("tiny");
    struct bench_case one = case_of("batch", 8, 1, 64);
    struct bench_work got, want;
    one.weights = WEIGHTS_INT8;
    expect_ok(bench_case_work(&shape.ownership, &one, &got, &error), &error);
    want = work_of(&shape.ownership, 8, 1, 64, MATRIX_INT8);
    ck_assert(memcmp(&got, &want, sizeof got) == 0);
    one = case_of("train", 2, 7, 0);
    expect_ok(bench_case_work(&shape.ownership, &one, &got, &error), &error);
    expect_ok(bench_training_work(&shape.ownership, 2, 7, &want, &error),
              &error);
    ck_assert(memcmp(&got, &want, sizeof got) == 0);
}
END_TEST

/* ------------------------------------------------------------------ rounds */

/* Tasks that note when they were called, and with how many threads. */
enum { NOTES = 64 };
static struct {
    int count, fail_at;
    struct { int task, threads, looks; } note[NOTES];
} notes;

static enum status note_once(void *state, const struct stopwatch *watch,
                             double *seconds, struct error *why)
{
    (void)watch;
    if (notes.count == notes.fail_at)
        return error_set(why, STATUS_INVALID, "as it should be");
    notes.note[notes.count].task = (int)(intptr_t)state;
    notes.note[notes.count].threads = omp_get_max_threads();
    notes.note[notes.count].looks = clock_now.looks;
    *seconds = ++notes.count;
    clock_now.step *= 1.5;
    return STATUS_OK;
}

static void show_nothing(void *state, int round, int threads,
                         const char *what)
{
    (void)round, (void)threads, (void)what;
    ++*(int *)state;
}

struct noted {
    struct bench_machine_limits limits[BENCH_THREADS_MAX];
    struct bench_result results[2];
    int shown;
};

static enum status note_rounds(const struct bench_plan *plan,
                               struct noted *noted)
{
    const struct bench_task tasks[] = {
        {(void *)(intptr_t)1, note_once, NULL},
        {(void *)(intptr_t)2, note_once, NULL}
    };
    struct limits *limits = new_limits((size_t)1 << 18);
    memset(noted, 0, sizeof *noted);
    noted->results[0].is.what = noted->results[1].is.what = "decode";
    const struct bench_progress progress = {show_nothing, &noted->shown};
    clock_start(1);
    const enum status status = bench_rounds(
        plan, limits, tasks, 2, &ticks, &progress, noted->limits,
        noted->results, &error);
    limits_free(&limits);
    return status;
}

static const struct bench_plan two_rounds = {2, {1, 3}, 2};

START_TEST(every_round_runs_all_tasks_with_all_numbers_of_threads)
{
    struct noted noted;
    notes.count = 0;
    notes.fail_at = -1;
    expect_ok(note_rounds(&two_rounds, &noted), &error);
    ck_assert_int_eq(notes.count, 3 * 2 * 2);
    for (int k = 0; k < notes.count; k++) {
        ck_assert_int_eq(notes.note[k].task, 1 + k % 2);
        ck_assert_int_eq(notes.note[k].threads, k / 2 % 2 == 0 ? 1 : 3);
    }
    ck_assert_int_eq(noted.shown, 3 * 2 * 3);
}
END_TEST

START_TEST(the_first_round_is_not_kept)
{
    struct noted noted;
    notes.count = 0;
    notes.fail_at = -1;
    expect_ok(note_rounds(&two_rounds, &noted), &error);
    for (int k = 0; k < 2; k++)
        for (int t = 0; t < 2; t++) {
            const struct bench_series *seconds = &noted.results[k].seconds[t];
            ck_assert_int_eq(seconds->count, 2);
            for (int round = 1; round <= 2; round++)
                expect_near(seconds->value[round - 1],
                            1 + 4 * round + 2 * t + k);
            ck_assert_int_eq(noted.limits[t].bytes.count, 2);
            ck_assert_int_eq(noted.limits[t].flops.count, 2);
        }
}
END_TEST

/* Each task slows the clock down, so a limit says when it was measured. */
START_TEST(limits_are_measured_anew_right_before_the_tasks)
{
    struct noted noted;
    notes.count = 0;
    notes.fail_at = -1;
    expect_ok(note_rounds(&two_rounds, &noted), &error);
    for (int k = 0; k < notes.count; k += 2) {
        const int before = k == 0 ? 0 : notes.note[k - 1].looks;
        ck_assert_int_gt(notes.note[k].looks, before);
        ck_assert_int_eq(notes.note[k + 1].looks, notes.note[k].looks);
    }
    for (int t = 0; t < 2; t++)
        expect_near(noted.limits[t].bytes.value[1] * pow(1.5, 4),
                    noted.limits[t].bytes.value[0]);
}
END_TEST

START_TEST(the_error_of_a_task_ends_the_rounds)
{
    struct noted noted;
    notes.count = 0;
    notes.fail_at = 5;
    ck_assert_int_eq(note_rounds(&two_rounds, &noted), STATUS_INVALID);
    ck_assert_int_eq(notes.count, 5);
    expect_named(&error, "as it should be");
}
END_TEST

/* --------------------------------------------------------------- fractions */

static void series_set(struct bench_series *series, int count,
                       const double *values)
{
    series->count = 0;
    for (int k = 0; k < count; k++)
        bench_series_add(series, values[k]);
}

/* 600 bytes and 40 operations; the machine has 100 to 300 of the first and
   10 to 40 of the second a second. */
static void some_result(struct bench_result *result,
                        struct bench_machine_limits *limits)
{
    memset(result, 0, sizeof *result);
    memset(limits, 0, sizeof *limits);
    result->is = case_of("decode", 8, 1, 64);
    result->work = (struct bench_work){32, 8, 500, 100};
    series_set(&result->seconds[1], 3, (const double[]){4, 8, 2.5});
    series_set(&limits->bytes, 3, (const double[]){200, 100, 300});
    series_set(&limits->flops, 3, (const double[]){40, 10, 20});
}

START_TEST(a_fraction_is_the_least_time_by_the_median)
{
    struct bench_result result;
    struct bench_machine_limits limits;
    some_result(&result, &limits);
    const struct bench_rates rates = bench_rates(&result, 1, &limits);
    expect_near(rates.seconds, 4);
    expect_near(rates.spread, (6 - 3.25) / 4);
    expect_near(rates.tokens, 2);
    expect_near(rates.bytes, 150);
    expect_near(rates.flops, 10);
    ck_assert(rates.memory);
    expect_near(rates.fraction, 600.0 / 300 / 4);
    expect_near(rates.linear, 0);
}
END_TEST

/* At least 3, 6 and 2 seconds, of 6, 8 and 2.5. */
START_TEST(the_fraction_of_a_round_is_by_its_own_limit)
{
    struct bench_result result;
    struct bench_machine_limits limits;
    some_result(&result, &limits);
    series_set(&result.seconds[1], 3, (const double[]){6, 8, 2.5});
    expect_near(bench_rates(&result, 1, &limits).by_round, 0.75);
    series_set(&limits.bytes, 3, (const double[]){200, 100, 200});
    series_set(&result.seconds[1], 3, (const double[]){3.75, 12, 6});
    expect_near(bench_rates(&result, 1, &limits).by_round, 0.5);
}
END_TEST

START_TEST(a_call_waits_for_what_takes_longer)
{
    struct bench_result result;
    struct bench_machine_limits limits;
    some_result(&result, &limits);
    result.work = (struct bench_work){90, 30, 500, 100};
    const struct bench_rates rates = bench_rates(&result, 1, &limits);
    ck_assert(!rates.memory);
    expect_near(rates.fraction, 120.0 / 40 / 4);
    expect_near(rates.linear, 90.0 / 40 / 4);
    /* by its own limit: 3 of 4, 12 of 8, 6 of 2.5 */
    expect_near(rates.by_round, 1.5);
}
END_TEST

START_TEST(a_case_is_found_by_all_that_it_is)
{
    struct bench_result *results = calloc(4, sizeof *results);
    ck_assert_ptr_nonnull(results);
    for (int k = 0; k < 4; k++)
        results[k].is = case_of("decode", 1, 1, 64);
    results[1].is.context = 512;
    results[2].is.weights = WEIGHTS_INT8;
    results[3].is = case_of("batch", 8, 1, 64);
    for (int k = 0; k < 4; k++) {
        const struct bench_case like = results[k].is;
        ck_assert_ptr_eq(bench_find(results, 4, &like), &results[k]);
    }
    struct bench_case like = results[0].is;
    like.kernels = NULL;
    ck_assert_ptr_null(bench_find(results, 4, &like));
    like = results[0].is;
    like.tokens = 2;
    ck_assert_ptr_null(bench_find(results, 4, &like));
    free(results);
}
END_TEST

/* -------------------------------------------------------- errors and loads */

START_TEST(the_error_of_short_weights_is_that_of_their_logits)
{
    struct bench_model model;
    open_model(&model, "tiny-llama");
    const struct on_kernels floats = {
        bench_model_stack(&model, WEIGHTS_F32), &kernels_plain
    };
    const struct causal_lm lm = on_kernels_causal_lm(&floats);
    float *want = logits_of(&lm, 16);
    for (int w = WEIGHTS_F32; w < BENCH_WEIGHTS; w++) {
        const struct on_kernels on = {
            bench_model_stack(&model, (enum bench_weights)w), &kernels_plain
        };
        const struct causal_lm other = on_kernels_causal_lm(&on);
        float *got = logits_of(&other, 16);
        double off = 0, square = 0;
        struct bench_error measured;
        for (int v = 0; v < 16 * 99; v++) {
            off += pow((double)got[v] - (double)want[v], 2);
            square += pow(want[v], 2);
        }
        expect_ok(bench_error_of(&model, (enum bench_weights)w,
                                 &kernels_plain, 16, &measured, &error),
                  &error);
        ck_assert(fabs(measured.logits - sqrt(square / (16 * 99))) < 1e-9);
        ck_assert(fabs(measured.difference - sqrt(off / (16 * 99))) < 1e-9);
        ck_assert((measured.difference > 0) == (w != WEIGHTS_F32));
        ck_assert(measured.difference < 0.05 * measured.logits);
        free(got);
    }
    free(want);
    bench_model_close(&model);
}
END_TEST

static const char *saved_engine(void)
{
    static char path[512];
    struct bench_model model;
    open_model(&model, "tiny");
    snprintf(path, sizeof path, "%s/21c.panels", harness_scratch());
    expect_ok(engine_save(model.engines[WEIGHTS_F32], path, &error), &error);
    bench_model_close(&model);
    return path;
}

START_TEST(a_load_is_timed_in_its_parts)
{
    struct bench_load load;
    struct bench_model model;
    open_model(&model, "tiny");
    const double bytes = (double)engine_bytes(model.engines[WEIGHTS_F32]);
    bench_model_close(&model);
    clock_start(1);
    expect_ok(bench_load_here(saved_engine(), kernels_best(), &ticks, &load,
                              &error), &error);
    expect_near(load.open, 1);
    expect_near(load.first, 1);
    expect_near(load.again, 1);
    expect_near(load.decode, 1.0 / LOAD_STEPS);
    expect_near(load.weight_bytes, bytes);
    expect_near(load.cache_bytes,
                2.0 * 2 * 24 * (LOAD_PROMPT + LOAD_STEPS) * 4);
    ck_assert(load.peak_bytes > load.cache_bytes);
}
END_TEST

START_TEST(a_load_that_fails_says_so_and_leaks_nothing)
{
    struct bench_load load = {.open = 7};
    ck_assert_int_ne(bench_load_here("no/such/file", kernels_best(), &ticks,
                                     &load, &error), STATUS_OK);
    expect_named(&error, "no/such/file");
    const char *path = saved_engine();
    clock_start(1);
    for (long n = 1; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = bench_load_here(path, kernels_best(),
                                                   &ticks, &load, &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(left, 0);
        ck_assert(status != STATUS_OK || load.open == 1);
    }
}
END_TEST

static cJSON *parsed(const char *text)
{
    cJSON *object = cJSON_Parse(text);
    ck_assert_msg(object != NULL, "no JSON: %.400s", text);
    return object;
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsNumber(item), "no number %s", name);
    return item->valuedouble;
}

static const char *string(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsString(item), "no text %s", name);
    return item->valuestring;
}

START_TEST(another_process_says_what_its_load_took)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments, "bench --open '%s' --threads 2",
             saved_engine());
    cJSON *load = parsed(run_program(arguments, 0));
    static const char *const names[] = {
        "open", "first", "again", "decode", "weight_bytes", "cache_bytes",
        "peak_bytes"
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        ck_assert(number(load, names[k]) > 0);
    cJSON_Delete(load);
    run_program("bench --open no/such/file", 1);
}
END_TEST

START_TEST(a_machine_has_a_name)
{
    const struct machine_name name = machine_name_now();
    ck_assert(name.processor[0] != '\0' && name.processor[0] != ' ');
    ck_assert(strchr(name.processor, '\n') == NULL);
    ck_assert_int_eq(name.cores, thread_count_available());
    ck_assert(strstr(name.compiler, "gcc") == name.compiler
              || strstr(name.compiler, "clang") == name.compiler);
    ck_assert(name.pages[0] != '\0' && strchr(name.pages, ']') == NULL);
}
END_TEST

/* ----------------------------------------------------------- lists, reports */

static struct bench_wishes some_wishes(void)
{
    return (struct bench_wishes){
        .what = {[BENCH_DECODE] = true, [BENCH_PREFILL] = true,
                 [BENCH_BATCH] = true, [BENCH_TRAIN] = true},
        .weights = {[WEIGHTS_F32] = true, [WEIGHTS_INT8] = true},
        .kernels = {&kernels_base, &kernels_plain}, .kernel_count = 2,
        .contexts = {2, {6, 5}}, .prompts = {1, {7}}, .slots = 3, .batch = 2,
        .tokens = 4, .array_bytes = (size_t)1 << 20
    };
}

START_TEST(a_list_has_every_case_that_was_wished_for)
{
    struct bench_wishes wishes = some_wishes();
    struct bench_case cases[32];
    ck_assert_int_eq(bench_list(&wishes, NULL), 2 * 2 * 4 + 1);
    ck_assert_int_eq(bench_list(&wishes, cases), 2 * 2 * 4 + 1);
    const struct bench_case want[] = {
        {"decode", WEIGHTS_F32, &kernels_base, 1, 1, 6},
        {"decode", WEIGHTS_F32, &kernels_base, 1, 1, 5},
        {"prefill", WEIGHTS_F32, &kernels_base, 1, 7, 0},
        {"batch", WEIGHTS_F32, &kernels_base, 3, 1, 6}
    };
    for (int k = 0; k < 16; k++) {
        struct bench_case one = want[k % 4];
        one.kernels = k / 4 % 2 == 0 ? &kernels_base : &kernels_plain;
        one.weights = k < 8 ? WEIGHTS_F32 : WEIGHTS_INT8;
        ck_assert_str_eq(cases[k].what, one.what);
        ck_assert_ptr_eq(cases[k].kernels, one.kernels);
        ck_assert_int_eq(cases[k].weights, one.weights);
        ck_assert_int_eq(cases[k].batch, one.batch);
        ck_assert_int_eq(cases[k].tokens, one.tokens);
        ck_assert_int_eq(cases[k].context, one.context);
    }
    ck_assert_str_eq(cases[16].what, "train");
    ck_assert_int_eq(cases[16].batch, 2);
    ck_assert_int_eq(cases[16].tokens, 4);
    ck_assert_int_eq(cases[16].weights, WEIGHTS_ROWS);
}
END_TEST

START_TEST(a_batch_brings_the_slot_that_it_is_compared_with)
{
    struct bench_wishes wishes = some_wishes();
    struct bench_case cases[8];
    memset(wishes.what, 0, sizeof wishes.what);
    wishes.what[BENCH_BATCH] = true;
    wishes.weights[WEIGHTS_INT8] = false;
    wishes.kernel_count = 1;
    ck_assert_int_eq(bench_list(&wishes, cases), 2);
    ck_assert_str_eq(cases[0].what, "decode");
    ck_assert_int_eq(cases[0].batch, 1);
    ck_assert_int_eq(cases[0].context, cases[1].context);
    ck_assert_int_eq(cases[1].batch, 3);
    memset(wishes.what, 0, sizeof wishes.what);
    ck_assert_int_eq(bench_list(&wishes, NULL), 0);
}
END_TEST

/* Everything but loads, by a clock of the suite's own. */
START_TEST(a_run_fills_its_report)
{
    const struct bench_wishes wishes = some_wishes();
    const struct bench_shape shape = shape_of("tiny");
    const struct bench_plan plan = {3, {1, 2}, 2};
    struct bench_report *report = calloc(1, sizeof *report);
    int shown = 0;
    const struct bench_progress progress = {show_nothing, &shown};
    ck_assert_ptr_nonnull(report);
    expect_ok(bench_predict(&wishes, &shape, &plan, report, &error), &error);
    clock_start(1);
    expect_ok(bench_run(&wishes, &ticks, &progress, report, &error), &error);
    ck_assert_int_eq(report->count, 17);
    for (int k = 0; k < report->count; k++)
        for (int t = 0; t < 2; t++) {
            ck_assert_int_eq(report->results[k].seconds[t].count, 3);
            expect_near(report->results[k].seconds[t].value[2], 1);
        }
    ck_assert(report->has_error[WEIGHTS_INT8]);
    ck_assert(!report->has_error[WEIGHTS_BF16]);
    ck_assert_int_eq(omp_get_max_threads(), thread_count_available());
    bench_report_free(report);
    free(report);
}
END_TEST

START_TEST(a_run_survives_failed_allocations)
{
    struct bench_wishes wishes = some_wishes();
    const struct bench_shape shape = shape_of("tiny");
    const struct bench_plan plan = {1, {1}, 1};
    struct bench_report *report = calloc(1, sizeof *report);
    int shown = 0;
    const struct bench_progress progress = {show_nothing, &shown};
    ck_assert_ptr_nonnull(report);
    wishes.kernel_count = 1;
    wishes.kernels[0] = kernels_best();
    wishes.what[BENCH_TRAIN] = wishes.what[BENCH_PREFILL] = false;
    wishes.weights[WEIGHTS_F32] = false;
    for (long n = 1; ; n += 1 + n / 8) {
        memset(report, 0, sizeof *report);
        clock_start(1);
        const long live = allocator_live();
        allocator_fail_at(n);
        enum status status = bench_predict(&wishes, &shape, &plan, report,
                                           &error);
        if (status == STATUS_OK)
            status = bench_run(&wishes, &ticks, &progress, report, &error);
        bench_report_free(report);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(left, 0);
        /* what the name of the machine cannot read, it does not know */
        ck_assert(status == STATUS_NO_MEMORY || status == STATUS_OK);
    }
    free(report);
}
END_TEST

/* ----------------------------------------------------------------- command */

#define TINY "--shape tiny --context 5 --prompt 3 --slots 2 --repeats 2" \
    " --array 1 --threads 1,2 "

/* Output to a file: there is more of it than run_program returns. */
static cJSON *run_json(const char *arguments)
{
    char line[1200], path[400];
    snprintf(path, sizeof path, "%s/21c.json", harness_scratch());
    snprintf(line, sizeof line, "bench %s --json > '%s'", arguments, path);
    const char *said = run_program(line, 0);
    ck_assert_str_eq(said, "");
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    static char text[1 << 17];
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return parsed(text);
}

static const cJSON *array(const cJSON *object, const char *name, int count)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsArray(item), "no array %s", name);
    ck_assert_msg(cJSON_GetArraySize(item) == count, "%s: expected %d, got"
                  " %d", name, count, cJSON_GetArraySize(item));
    return item;
}

START_TEST(the_commands_json_has_every_field)
{
    cJSON *all = run_json(TINY "--what decode,prefill,batch,train,load"
                          " --weights f32,bf16,int8");
    const cJSON *machine = cJSON_GetObjectItemCaseSensitive(all, "machine");
    string(machine, "processor");
    string(machine, "compiler");
    string(machine, "large_pages");
    ck_assert(number(machine, "cores") >= 1);
    number(machine, "load");
    number(machine, "lanes");
    ck_assert_str_eq(string(all, "shape"), "tiny");
    ck_assert(number(all, "parameters") > 0);
    ck_assert(number(all, "rounds") == 2);
    const cJSON *item;
    cJSON_ArrayForEach(item, array(all, "limits", 2)) {
        ck_assert(number(item, "bytes_per_second") > 0);
        ck_assert(number(item, "flops_per_second") > 0);
        number(item, "threads");
        number(item, "streams");
        array(item, "bytes_rounds", 2);
        array(item, "flops_rounds", 2);
    }
    static const char *const numbers[] = {
        "slots", "tokens", "context", "threads", "weight_bytes",
        "cache_bytes", "linear_flops", "attention_flops", "seconds", "spread",
        "tokens_per_second", "bytes_per_second", "flops_per_second",
        "fraction", "fraction_by_round", "fraction_linear"
    };
    int batches = 0, threads = 0, shorts = 0;
    cJSON_ArrayForEach(item, array(all, "results", 2 * (3 * 3 + 1))) {
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            ck_assert(isfinite(number(item, numbers[k])));
        string(item, "what");
        string(item, "weights");
        string(item, "kernels");
        string(item, "waits_for");
        array(item, "rounds", 2);
        batches += cJSON_HasObjectItem(item, "times_one_slot");
        threads += cJSON_HasObjectItem(item, "times_one_thread");
        shorts += cJSON_HasObjectItem(item, "times_f32");
    }
    ck_assert_int_eq(batches, 6);
    ck_assert_int_eq(threads, 10);
    ck_assert_int_eq(shorts, 12);
    cJSON_ArrayForEach(item, array(all, "errors", 2)) {
        ck_assert(number(item, "difference") > 0);
        ck_assert(number(item, "logits") > number(item, "difference"));
        string(item, "weights");
    }
    cJSON_ArrayForEach(item, array(all, "loads", 2)) {
        ck_assert(number(item, "peak_bytes") > number(item, "cache_bytes"));
        ck_assert(number(item, "weight_bytes") > 0);
        number(item, "threads");
        number(item, "tokens");
        array(item, "open", 2);
        array(item, "first", 2);
        array(item, "again", 2);
    }
    cJSON_Delete(all);
}
END_TEST

/* Numbers of the same result agree with each other. */
START_TEST(the_commands_numbers_are_consistent)
{
    cJSON *all = run_json(TINY "--what batch,prefill");
    const cJSON *item, *limits = array(all, "limits", 2);
    cJSON_ArrayForEach(item, array(all, "results", 2 * 3)) {
        const double seconds = number(item, "seconds");
        const double bytes = number(item, "weight_bytes")
                             + number(item, "cache_bytes");
        const double flops = number(item, "linear_flops")
                             + number(item, "attention_flops");
        const cJSON *limit = cJSON_GetArrayItem(
            limits, (int)number(item, "threads") - 1);
        const double least = fmax(
            bytes / number(limit, "bytes_per_second"),
            flops / number(limit, "flops_per_second"));
        ck_assert(fabs(number(item, "bytes_per_second") * seconds / bytes - 1)
                  < 1e-6);
        ck_assert(fabs(number(item, "flops_per_second") * seconds / flops - 1)
                  < 1e-6);
        ck_assert(fabs(number(item, "tokens_per_second") * seconds
                       - number(item, "slots") * number(item, "tokens"))
                  < 1e-6);
        ck_assert(fabs(number(item, "fraction") * seconds / least - 1)
                  < 1e-4);
        const bool memory = strcmp(string(item, "waits_for"), "memory") == 0;
        ck_assert((number(item, "fraction_linear") == 0) == memory);
    }
    cJSON_Delete(all);
}
END_TEST

START_TEST(the_command_prints_a_line_for_each_result)
{
    char line[400];
    snprintf(line, sizeof line, "bench %s --weights rows,int8 --kernels"
             " base,plain", TINY);
    const char *text = run_program(line, 0);
    ck_assert_ptr_nonnull(strstr(text, "limits, 2 threads"));
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines += strncmp(at, "\ndecode", 7) == 0
            || strncmp(at, "\nprefill", 8) == 0
            || strncmp(at, "\nbatch", 6) == 0;
    ck_assert_int_eq(lines, 2 * 2 * 2 * 3);
    ck_assert_ptr_nonnull(strstr(text, "int8: logits of "));
    ck_assert_ptr_nonnull(strstr(text, " x one slot"));
    ck_assert_ptr_nonnull(strstr(text, " x one thread"));
}
END_TEST

/* An emulator may hide lanes from this suite that the program has: those come
   in between. */
START_TEST(all_kernels_are_those_that_run_here)
{
    const struct kernels *tables[KERNELS_MAX];
    const int count = kernels_available(tables);
    int seen = 0;
    cJSON *all = run_json("--shape tiny --what prefill --prompt 2 --threads 1"
                          " --array 1 --repeats 1 --kernels all");
    const cJSON *result, *results = cJSON_GetObjectItem(all, "results");
    ck_assert_int_le(cJSON_GetArraySize(results), KERNELS_MAX);
    cJSON_ArrayForEach(result, results)
        seen += seen < count
            && strcmp(string(result, "kernels"), tables[seen]->name) == 0;
    cJSON_Delete(all);
    ck_assert_int_eq(seen, count);
}
END_TEST

START_TEST(the_command_predicts_without_a_model)
{
    const char *text = run_program("bench --predict --weights f32,int8", 0);
    ck_assert_ptr_nonnull(strstr(text, "gpt2-124m"));
    ck_assert_ptr_nonnull(strstr(text, "499.332"));
    ck_assert_ptr_nonnull(strstr(text, "91.892"));
    ck_assert_ptr_nonnull(strstr(text, "144.178"));
    text = run_program("bench --predict --shape 32000,4096,32,32,8,128,14336",
                       0);
    ck_assert_ptr_nonnull(strstr(text, "prefill"));
}
END_TEST

START_TEST(the_command_refuses_bad_options)
{
    static const char *const usage[] = {
        "--nothing", "--what", "--what walk", "--what decode,", "--weights f16",
        "--kernels none", "--kernels avx512,", "--kernels", "--threads 0",
        "--threads 1,65", "--threads 1,2,3,4,5,6,7,8,9", "--threads",
        "--threads ''", "--repeats 0", "--repeats 101", "--slots 65",
        "--context 0", "--context x", "--prompt 1,,2", "--array 0", "--shape",
        "--open"
    };
    static const char *const input[] = {
        "--shape gpt3", "--shape 1,2,3", "--shape tiny --prompt 1025",
        "--shape tiny --context 64,1024", "--predict --shape ''"
    };
    char line[200];
    setenv("TINYGPT_KERNELS", "none", 1);
    ck_assert_ptr_nonnull(strstr(run_program("bench --predict", 2),
                                 "TINYGPT_KERNELS: no none"));
    setenv("TINYGPT_KERNELS", "", 1);
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++) {
        snprintf(line, sizeof line, "bench %s", usage[k]);
        ck_assert_ptr_nonnull(strstr(run_program(line, 2), "tinygpt bench: "));
    }
    for (size_t k = 0; k < sizeof input / sizeof *input; k++) {
        snprintf(line, sizeof line, "bench %s", input[k]);
        ck_assert_ptr_nonnull(strstr(run_program(line, 1), "tinygpt bench: "));
    }
}
END_TEST

/* A name with quotes is printed without them. */
START_TEST(a_report_of_any_machine_is_json)
{
    struct bench_report *report = calloc(1, sizeof *report);
    const struct bench_shape shape = shape_of("tiny");
    const struct bench_plan plan = {1, {4}, 1};
    char text[4096];
    ck_assert_ptr_nonnull(report);
    report->machine = (struct machine_name){"a \"fast\\\tone\"", 2, "cc", "",
                                            -1};
    report->shape = &shape;
    report->plan = &plan;
    bench_series_add(&report->limits[0].bytes, 2);
    bench_series_add(&report->limits[0].flops, 3);
    FILE *file = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(file);
    bench_print_json(file, report);
    fclose(file);
    cJSON *all = parsed(text);
    ck_assert_str_eq(string(cJSON_GetObjectItem(all, "machine"), "processor"),
                     "a fastone");
    array(all, "results", 0);
    array(all, "errors", 0);
    array(all, "loads", 0);
    cJSON_Delete(all);
    free(report);
}
END_TEST

/* ------------------------------------------------------------------- table */

static const struct test tests[] = {
    TEST(samples_are_sorted_however_they_come, 2,
         "enter the value where it belongs"),
    TEST(a_median_stands_in_the_middle_or_between_two, 2,
         "let rank be the place of the quantile"),
    TEST(the_spread_is_the_distance_of_the_quartiles_by_the_median, 2,
         "let rank be the place of the quantile"),
    TEST(one_outlier_moves_no_median, 2,
         "let rank be the place of the quantile"),
    TEST(every_float_of_the_array_is_read_once, 2, "read at several places"),
    TEST(every_lane_of_every_chain_is_summed, 2,
         "multiply and add in chains"),
    TEST(the_bytes_are_those_that_all_threads_read, 2,
         "count the bytes of all threads"),
    TEST(the_operations_are_those_of_all_threads, 2,
         "count the operations of all threads"),
    TEST(bursts_grow_until_they_can_be_timed, 2, "measure both limits"),
    TEST(the_lanes_are_those_of_the_best_kernels, 2,
         "choose the widest loops"),
    TEST(an_array_that_is_too_small_is_refused, 2,
         "make and free an array to read"),
    TEST(making_limits_survives_each_failed_allocation, 2,
         "make and free an array to read"),
    TEST(a_number_of_threads_is_what_openmp_says, 2, "thread_count.c"),
    TEST(the_bytes_of_a_small_model_are_the_sums_by_hand, 2,
         "read a tied head once"),
    TEST(eight_bits_have_a_scale_for_every_group_of_inputs, 2,
         "add the bytes of one matrix"),
    TEST(a_matrix_of_whole_panels_has_the_bytes_that_an_engine_keeps, 2,
         "add the bytes of one matrix"),
    TEST(floats_have_the_bytes_and_operations_of_the_audit, 2,
         "split the operations of a call"),
    TEST(the_work_of_gpt2_is_the_one_in_the_book, 2,
         "split the operations of a call"),
    TEST(a_training_step_is_three_passes_with_all_logits, 2,
         "let a training step be three passes"),
    TEST(work_that_no_model_can_have_is_refused, 2,
         "split the operations of a call"),
    TEST(every_shape_has_the_parameters_of_its_name, 2,
         "the shapes that have a name"),
    TEST(a_shape_that_is_none_is_refused, 2, "read a shape from numbers"),
    TEST(made_up_weights_are_small_and_norms_are_one, 2,
         "fill a model with numbers"),
    TEST(rows_and_panels_on_any_kernels_give_the_models_logits, 2,
         "a handle on kernels of the bench's choice"),
    TEST(opening_a_model_survives_each_failed_allocation, 2,
         "open and close a bench's model"),
    TEST(a_decoded_token_has_the_same_context_every_time, 2,
         "cut the cache back"),
    TEST(a_prompt_begins_in_an_empty_cache_every_time, 2,
         "forget the prompt before"),
    TEST(a_step_of_training_is_timed_and_leaves_the_weights, 2,
         "time one step of training"),
    TEST(making_a_task_survives_each_failed_allocation, 2, "make a task"),
    TEST(a_case_has_the_work_of_its_kind, 2, "the work of a case"),
    TEST(the_first_round_is_not_kept, 2,
         "keep what was measured, but for the first round"),
    TEST(every_round_runs_all_tasks_with_all_numbers_of_threads, 2,
         "all rounds"),
    TEST(limits_are_measured_anew_right_before_the_tasks, 2,
         "measure the limits, then everything once"),
    TEST(the_error_of_a_task_ends_the_rounds, 2,
         "measure the limits, then everything once"),
    TEST(a_fraction_is_the_least_time_by_the_median, 2,
         "the least time of some work"),
    TEST(the_fraction_of_a_round_is_by_its_own_limit, 2,
         "divide by the limit of the same round"),
    TEST(a_call_waits_for_what_takes_longer, 2,
         "let limit be what the call waits for"),
    TEST(a_case_is_found_by_all_that_it_is, 2, "find a case like another"),
    TEST(the_error_of_short_weights_is_that_of_their_logits, 2,
         "compare with the logits of the floats"),
    TEST(a_load_is_timed_in_its_parts, 2, "open, prefill and decode"),
    TEST(a_load_that_fails_says_so_and_leaks_nothing, 2,
         "open, prefill and decode"),
    TEST(another_process_says_what_its_load_took, 2,
         "say what was measured"),
    TEST(a_machine_has_a_name, 2, "find a line of a file"),
    TEST(a_list_has_every_case_that_was_wished_for, 2, "list all cases"),
    TEST(a_batch_brings_the_slot_that_it_is_compared_with, 2,
         "list the cases of some kernels and weights"),
    TEST(a_run_fills_its_report, 2, "measure everything"),
    TEST(a_run_survives_failed_allocations, 2, "measure everything"),
    TEST(a_report_of_any_machine_is_json, 2,
         "print a series and a head as JSON"),
    TEST(the_commands_json_has_every_field, 2, "print a report as JSON"),
    TEST(the_commands_numbers_are_consistent, 2,
         "print the rates of a result as JSON"),
    TEST(the_command_prints_a_line_for_each_result, 2,
         "print a report as text"),
    TEST(all_kernels_are_those_that_run_here, 2, "read names of kernels"),
    TEST(the_command_predicts_without_a_model, 2,
         "print the work of the cases"),
    TEST(the_command_refuses_bad_options, 2,
         "read all options of the bench command"),
};

SUITE("chapter 21c, the bench", tests);
