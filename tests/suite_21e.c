/* Chapter 21e: the program on engines. What is chosen, and that nothing
   chosen changes what is computed. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine_choice.h"
#include "engine_load.h"
#include "support/allocator.h"
#include "support/models.h"
#include "support/program.h"

static struct error error;

static const char model[] = "book/checkpoint";

/* A command line with the suite's scratch directory in the place of %s. */
static const char *with_scratch(const char *format)
{
    static char line[1024];
    snprintf(line, sizeof line, format, harness_scratch());
    return line;
}

static void pack(const char *type)
{
    char line[1024];
    snprintf(line, sizeof line, "pack --model %s --weights %s --out"
             " %s/%s.panels", model, type, harness_scratch(), type);
    const char *said = run_program(line, 0);
    ck_assert_ptr_nonnull(strstr(said, type));
}

START_TEST(names_are_looked_up_where_they_were_said)
{
    const struct kernels *kernels = NULL;
    enum matrix_type type = MATRIX_BF16;
    struct engine_choice choice = {0};
    unsetenv("TINYGPT_KERNELS");
    expect_ok(engine_choose(&choice, &kernels, &type, &error), &error);
    ck_assert_ptr_eq(kernels, kernels_best());
    ck_assert_int_eq(type, MATRIX_F32);
    setenv("TINYGPT_KERNELS", "plain", 1);
    expect_ok(engine_choose(&choice, &kernels, &type, &error), &error);
    ck_assert_ptr_eq(kernels, &kernels_plain);
    choice.kernels = "base";
    expect_ok(engine_choose(&choice, &kernels, &type, &error), &error);
    ck_assert_ptr_eq(kernels, &kernels_base);
    setenv("TINYGPT_KERNELS", "", 1);
    choice = (struct engine_choice){.weights = "int8", .threads = 3};
    expect_ok(engine_choose(&choice, &kernels, &type, &error), &error);
    ck_assert_ptr_eq(kernels, kernels_best());
    ck_assert_int_eq(type, MATRIX_INT8);
    ck_assert_int_eq(omp_get_max_threads(), 3);
    unsetenv("TINYGPT_KERNELS");
}
END_TEST

START_TEST(a_name_that_nobody_has_is_refused_by_who_said_it)
{
    const struct kernels *kernels = &kernels_base;
    enum matrix_type type = MATRIX_BF16;
    struct engine_choice choice = {.kernels = "avx9"};
    ck_assert_int_eq(engine_choose(&choice, &kernels, &type, &error),
                     STATUS_INVALID);
    expect_named(&error, "--kernels");
    choice = (struct engine_choice){.weights = "f64"};
    ck_assert_int_eq(engine_choose(&choice, &kernels, &type, &error),
                     STATUS_INVALID);
    expect_named(&error, "--weights");
    setenv("TINYGPT_KERNELS", "fast", 1);
    choice = (struct engine_choice){0};
    ck_assert_int_eq(engine_choose(&choice, &kernels, &type, &error),
                     STATUS_INVALID);
    expect_named(&error, "TINYGPT_KERNELS");
    ck_assert_ptr_eq(kernels, &kernels_base);
    ck_assert_int_eq(type, MATRIX_BF16);
    unsetenv("TINYGPT_KERNELS");
}
END_TEST

START_TEST(an_engine_is_loaded_from_a_model_and_from_its_panels)
{
    const enum matrix_type eight = MATRIX_INT8, sixteen = MATRIX_BF16;
    struct engine *engine = NULL;
    pack("int8");
    char path[512];
    snprintf(path, sizeof path, "%s/int8.panels", harness_scratch());
    expect_ok(engine_load(&engine, path, NULL, NULL, &error), &error);
    ck_assert_int_eq(engine_type(engine), MATRIX_INT8);
    const size_t bytes = engine_bytes(engine);
    engine_free(&engine);
    expect_ok(engine_load(&engine, path, &eight, NULL, &error), &error);
    engine_free(&engine);
    ck_assert_int_eq(engine_load(&engine, path, &sixteen, NULL, &error),
                     STATUS_INVALID);
    ck_assert_ptr_null(engine);
    expect_ok(engine_load(&engine, model, &eight, NULL, &error), &error);
    ck_assert_uint_eq(engine_bytes(engine), bytes);
    engine_free(&engine);
    ck_assert_int_ne(engine_load(&engine, "nowhere.panels", NULL, NULL,
                                 &error), STATUS_OK);
    expect_named(&error, "nowhere.panels");
    ck_assert_int_ne(engine_load(&engine, "nowhere", NULL, NULL, &error),
                     STATUS_OK);
    expect_named(&error, "nowhere");
    ck_assert(engine_is_panels("a.panels") && !engine_is_panels(".panels")
              && !engine_is_panels("a.panels.bin"));
}
END_TEST

START_TEST(loading_survives_each_failed_allocation)
{
    struct engine *engine = NULL;
    for (long n = 1; ; n += 1 + n / 20) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = engine_load(&engine, model, NULL, NULL,
                                               &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert(status == STATUS_NO_MEMORY || status == STATUS_FORMAT);
        ck_assert_ptr_null(engine);
        ck_assert_int_eq(left, 0);
    }
    engine_free(&engine);
}
END_TEST

/* Greedy tokens of the same model, however it is held. */
START_TEST(the_program_says_the_same_from_rows_panels_and_any_threads)
{
    static const char *const ways[] = {
        "generate --model book/checkpoint --threads 1",
        "generate --model book/checkpoint --threads 3",
        "generate --model book/checkpoint --weights f32",
        "generate --model %s/f32.panels --tokenizer bytes",
        "generate --model %s/f32.panels --tokenizer bytes --threads 5"
    };
    char first[4096] = "";
    pack("f32");
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char line[2048];
        snprintf(line, sizeof line, "%s --prompt 'The mask ' --json"
                 " --max-new-tokens 40", with_scratch(ways[k]));
        const char *said = run_program(line, 0);
        if (k == 0)
            snprintf(first, sizeof first, "%s", said);
        ck_assert_str_eq(said, first);
    }
}
END_TEST

START_TEST(rows_of_logits_and_a_chat_come_from_panels_too)
{
    char rows[1 << 16];
    pack("f32");
    snprintf(rows, sizeof rows, "%s",
             run_program("logits --model book/checkpoint --prompt-ids 84,104"
                         " --continuation-ids 101,32 --json", 0));
    ck_assert_str_eq(run_program(with_scratch("logits --model %s/f32.panels"
        " --threads 2 --prompt-ids 84,104 --continuation-ids 101,32"
        " --json"), 0), rows);
    run_program(with_scratch("chat --model %s/f32.panels --tokenizer bytes"
                             " --prompt hello --max-new-tokens 5"), 0);
}
END_TEST

START_TEST(fewer_bits_speak_too_and_do_not_mix)
{
    pack("bf16");
    run_program("generate --model book/checkpoint --weights int8 --prompt a"
                " --max-new-tokens 5", 0);
    run_program(with_scratch("generate --model %s/bf16.panels --tokenizer"
                             " bytes --prompt a --max-new-tokens 5"), 0);
    ck_assert_ptr_nonnull(strstr(run_program(with_scratch("generate --model"
        " %s/bf16.panels --weights int8 --tokenizer bytes --prompt a"), 1),
        "type"));
    run_program("generate --model book/checkpoint --speculative book/draft"
                " --weights bf16 --prompt a --max-new-tokens 9", 0);
}
END_TEST

START_TEST(the_pack_command_refuses_what_it_cannot_write)
{
    static const char *const usage[] = {
        "pack", "pack --model book/checkpoint", "pack --out x.panels",
        "pack --model book/checkpoint --out x.bin",
        "pack --model book/checkpoint --out x.panels --threads 0",
        "pack --model book/checkpoint --out x.panels --bits 4"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt pack"));
    run_program("pack --model nowhere --out x.panels", 1);
    run_program("pack --model book/checkpoint --out nowhere/x.panels", 1);
    run_program("pack --model book/checkpoint --weights f64 --out x.panels",
                1);
    ck_assert_ptr_nonnull(strstr(run_program("pack --help", 0), "int8"));
}
END_TEST

/* How often the library of OpenMP says, when it starts, that a thread asks
   5000 times; -1 if it is one that does not say such things. */
static int starts_that_ask_5000_times(const char *environment)
{
    char line[1200], said[256];
    snprintf(line, sizeof line, "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT"
             " OMP_DISPLAY_ENV=verbose %s '%s' --help 2>&1 | grep SPINCOUNT",
             environment, harness_program());
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    int lines = 0, count = 0;
    while (fgets(said, sizeof said, pipe) != NULL) {
        lines++;
        count += strstr(said, "'5000'") != NULL;
    }
    pclose(pipe);
    return lines == 0 ? -1 : count;
}

START_TEST(threads_wait_for_a_moment_unless_somebody_says_how)
{
    const int begun_again = starts_that_ask_5000_times("");
    if (begun_again < 0)
        return;
    ck_assert_int_eq(begun_again, 1);
    ck_assert_int_eq(starts_that_ask_5000_times("GOMP_SPINCOUNT=77"), 0);
    ck_assert_int_eq(starts_that_ask_5000_times("OMP_WAIT_POLICY=passive"),
                     0);
}
END_TEST

static const struct test tests[] = {
    TEST(names_are_looked_up_where_they_were_said, 2,
         "let the environment speak where no option does"),
    TEST(a_name_that_nobody_has_is_refused_by_who_said_it, 2,
         "find the table of that name"),
    TEST(an_engine_is_loaded_from_a_model_and_from_its_panels, 2,
         "open a file of panels of that type"),
    TEST(loading_survives_each_failed_allocation, 2, "pack a checkpoint"),
    TEST(the_program_says_the_same_from_rows_panels_and_any_threads, 2,
         "let the speaker's lm be an engine"),
    TEST(rows_of_logits_and_a_chat_come_from_panels_too, 2,
         "let the speaker's lm be an engine"),
    TEST(fewer_bits_speak_too_and_do_not_mix, 2,
         "let the speaker's lm be an engine"),
    TEST(threads_wait_for_a_moment_unless_somebody_says_how, 2,
         "settle how threads wait"),
    TEST(the_pack_command_refuses_what_it_cannot_write, 2,
         "read the options of the pack command"),
};

SUITE("chapter 21e, the program on engines", tests);
