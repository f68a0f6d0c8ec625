/* Chapter 21a: the ladder. Every step computes the layer that it says, for
   shapes that fill nothing evenly; rungs are climbed in rounds by the suite's
   own clock, and how long anything takes is not looked at. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernel_steps.h"
#include "kernels.h"
#include "ladder.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/noise.h"
#include "support/program.h"

static struct error error;

/* -------------------------------------------------------------------- steps */

enum { OUT = 96 };

static struct step_layer layer_of(uint64_t *state, int in, int rows,
                                  float *arrays[5])
{
    const size_t sizes[5] = {(size_t)in * OUT, (size_t)in * OUT,
                             (size_t)in * OUT, (size_t)(in * rows),
                             (size_t)rows * OUT};
    for (int k = 0; k < 5; k++) {
        arrays[k] = malloc(sizes[k] * sizeof *arrays[k]);
        noise_floats(state, sizes[k], arrays[k]);
    }
    for (int i = 0; i < in; i++)
        for (int o = 0; o < OUT; o++)
            arrays[1][i * OUT + o] = arrays[0][o * in + i];
    matrix_pack(arrays[0], NULL, OUT, in, MATRIX_F32, arrays[2], NULL);
    return (struct step_layer){OUT, in, rows, arrays[0], arrays[1], arrays[2],
                               arrays[3], arrays[4]};
}

static void expect_step(const char *name, kernel_step *step,
                        const struct step_layer *layer)
{
    step(layer);
    for (int r = 0; r < layer->rows; r++)
        for (int o = 0; o < OUT; o++) {
            double want = 0, size = 0;
            for (int i = 0; i < layer->in; i++) {
                const double p = (double)layer->weight[o * layer->in + i]
                                 * layer->input[r * layer->in + i];
                want += p;
                size += fabs(p);
            }
            const float got = layer->output[r * OUT + o];
            if (!(fabs(got - want) <= (layer->in + 8) * 0x1p-24 * size))
                ck_abort_msg("%s, %d inputs, %d rows, %d,%d: expected %g,"
                             " got %g", name, layer->in, layer->rows, r, o,
                             want, (double)got);
        }
}

START_TEST(every_step_computes_the_layer)
{
    static const int ins[] = {1, 7, 8, 15, 16, 127, 128, 129, 383, 385, 769};
    static const int rows[] = {1, 6, 12, 15};
    const struct kernel_steps *all[] = {&kernel_steps_avx512,
                                        &kernel_steps_avx2,
                                        &kernel_steps_base};
    uint64_t state = noise_start(2150);
    for (size_t i = 0; i < sizeof ins / sizeof *ins; i++)
        for (int r = 0; r < 4; r++) {
            float *arrays[5];
            const struct step_layer layer = layer_of(&state, ins[i], rows[r],
                                                     arrays);
            for (int k = 0; k < 3; k++) {
                const struct kernel_steps *s = all[k];
                if (kernels_named(s->name) == NULL)
                    continue;
                expect_step("one sum", s->one_sum, &layer);
                expect_step("eight sums", s->eight_sums, &layer);
                expect_step("tile", s->tile, &layer);
                expect_step("panels", s->panels, &layer);
                expect_step("blocks", s->blocks, &layer);
            }
            for (int k = 0; k < 5; k++)
                free(arrays[k]);
        }
}
END_TEST

/* ------------------------------------------------------------------- rounds */

static double now;

static double tick(void *state)
{
    (void)state;
    return now += 1e-2;    /* a burst of the limits is long enough */
}

static struct ladder_plan small_plan(int rows)
{
    return (struct ladder_plan){.out = 64, .in = 40, .rows = rows,
        .threads = 2, .rounds = 3, .limit_bytes = 1 << 18,
        .watch = {tick, NULL}};
}

START_TEST(every_rung_has_a_sample_of_every_round)
{
    for (int rows = 1; rows <= 4; rows += 3) {
        const struct ladder_plan plan = small_plan(rows);
        struct ladder ladder;
        ck_assert_int_eq(ladder_measure(&plan, &ladder, &error), STATUS_OK);
        ck_assert_int_eq(ladder.count, 8);
        for (int k = 0; k < ladder.count; k++) {
            const struct rung *rung = &ladder.rungs[k];
            ck_assert_int_eq(rung->rates.count, 3);
            ck_assert_int_eq(rung->fractions.count, 3);
            ck_assert(fabs(samples_median(&rung->rates) * 1e-2
                           - rung->amount) <= 1e-6 * rung->amount);
        }
        ck_assert_str_eq(ladder.rungs[0].name, "plain");
        ck_assert_int_eq(ladder.rungs[0].threads, 1);
        ck_assert_int_eq(ladder.rungs[7].threads, 2);
    }
}
END_TEST

START_TEST(a_rung_is_counted_in_operations_or_in_bytes)
{
    struct ladder ladder;
    struct ladder_plan plan = small_plan(4);
    ck_assert_int_eq(ladder_measure(&plan, &ladder, &error), STATUS_OK);
    for (int k = 0; k < ladder.count; k++)
        ck_assert_double_eq(ladder.rungs[k].amount, 2.0 * 64 * 40 * 4);
    plan.heads = 3;
    ck_assert_int_eq(ladder_measure(&plan, &ladder, &error), STATUS_OK);
    ck_assert_int_eq(ladder.count, 3);
    ck_assert_double_eq(ladder.rungs[2].amount, 4.0 * 3 * 40 * 10);
    plan.heads = 0;
    plan.rows = 1;
    ck_assert_int_eq(ladder_measure(&plan, &ladder, &error), STATUS_OK);
    ck_assert_double_eq(ladder.rungs[0].amount, 4.0 * 64 * 40);
    ck_assert_str_eq(ladder.rungs[6].name, "BF16");
    ck_assert_double_eq(ladder.rungs[6].amount, 2.0 * 64 * 40);
    ck_assert_str_eq(ladder.rungs[7].name, "INT8");
    ck_assert_double_eq(ladder.rungs[7].amount, 64.0 * 40 + 4 * 64 * 2);
}
END_TEST

START_TEST(a_plan_is_refused_by_the_name_of_its_size)
{
    struct ladder ladder;
    memset(&ladder, 7, sizeof ladder);
    const struct ladder before = ladder;
    const struct { size_t offset; int value; const char *facts; } bad[] = {
        {offsetof(struct ladder_plan, out), 0, "out: 1 1048576 0"},
        {offsetof(struct ladder_plan, out), 48, "out: 32 48"},
        {offsetof(struct ladder_plan, in), 0, "in: 1 1048576 0"},
        {offsetof(struct ladder_plan, heads), -1, "heads: 0 1024 -1"},
        {offsetof(struct ladder_plan, rows), 65537, "rows: 1 65536 65537"},
        {offsetof(struct ladder_plan, threads), 65, "threads: 1 64 65"},
        {offsetof(struct ladder_plan, rounds), 101, "rounds: 1 100 101"}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct ladder_plan plan = small_plan(2);
        *(int *)((char *)&plan + bad[k].offset) = bad[k].value;
        ck_assert_int_eq(ladder_measure(&plan, &ladder, &error),
                         STATUS_INVALID);
        expect_facts(error.message, bad[k].facts);
        expect_same_bits("the ladder", &ladder, &before, sizeof ladder);
    }
}
END_TEST

START_TEST(a_ladder_survives_each_failed_allocation)
{
    struct ladder_plan plan = small_plan(2);
    struct ladder ladder;
    for (long n = 1; ; n++) {
        plan.heads = 0;
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = ladder_measure(&plan, &ladder, &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        plan.heads = 2;
        const long before = allocator_live();
        allocator_fail_at(n);
        ladder_measure(&plan, &ladder, &error);
        const long after = allocator_live() - before;
        allocator_stop();
        ck_assert_int_eq(after, 0);
    }
}
END_TEST

/* ------------------------------------------------------------------ command */

START_TEST(the_command_prints_a_ladder)
{
    cJSON *json = cJSON_Parse(run_program(
        "kernels --outputs 64 --inputs 33 --rows 5 --rounds 1 --mb 1 --json",
        0));
    ck_assert_ptr_nonnull(json);
    const cJSON *ladders = cJSON_GetObjectItem(json, "ladders");
    ck_assert_int_eq(cJSON_GetArraySize(ladders), 1);
    const cJSON *rungs = cJSON_GetObjectItem(cJSON_GetArrayItem(ladders, 0),
                                             "rungs");
    ck_assert_int_eq(cJSON_GetArraySize(rungs), 8);
    cJSON_Delete(json);
    const char *text = run_program("kernels --outputs 64 --inputs 33 --rows 1"
                                   " --rounds 1 --mb 1 --threads 1", 0);
    ck_assert_ptr_nonnull(strstr(text, "eight sums"));
    ck_assert_ptr_nonnull(strstr(text, "GB/s"));
}
END_TEST

START_TEST(the_command_refuses_what_is_no_ladder)
{
    ck_assert_ptr_nonnull(strstr(run_program("kernels --outputs 64", 2),
                                 "three"));
    ck_assert_ptr_nonnull(strstr(run_program("kernels --fast", 2), "--fast"));
    ck_assert_ptr_nonnull(strstr(run_program("kernels --rounds 0", 2),
                                 "--rounds"));
    ck_assert_ptr_nonnull(strstr(run_program(
        "kernels --outputs 40 --inputs 8 --rows 1", 1), "out"));
}
END_TEST

static const struct test tests[] = {
    TEST(every_step_computes_the_layer, 2, "add what is left of the row"),
    TEST(every_rung_has_a_sample_of_every_round, 2, "climb once"),
    TEST(a_rung_is_counted_in_operations_or_in_bytes, 2,
         "say what a rung does"),
    TEST(a_plan_is_refused_by_the_name_of_its_size, 2,
         "check the plan of a ladder"),
    TEST(a_ladder_survives_each_failed_allocation, 2,
         "take room for every layout"),
    TEST(the_command_prints_a_ladder, 2, "print a ladder"),
    TEST(the_command_refuses_what_is_no_ladder, 2,
         "the options of the kernels command"),
};

SUITE("chapter 21a, the ladder", tests);
