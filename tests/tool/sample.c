/* A suite whose tests end in every way that the harness has to tell apart;
   suite_harness.c runs it. Compiled with EARLY it ends before main. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/harness.h"

#ifdef EARLY
__attribute__((constructor)) static void end(void)
{
    exit(0);
}
#endif

START_TEST(returns) { ck_assert(harness_seed() != 0); }
END_TEST

START_TEST(calls_exit) { exit(0); }
END_TEST

START_TEST(calls_underscore_exit) { _exit(0); }
END_TEST

/* The copy returns, and not the test. */
START_TEST(returns_in_a_copy)
{
    const pid_t child = fork();
    if (child == 0)
        return;
    waitpid(child, NULL, 0);
    _exit(0);
}
END_TEST

START_TEST(fails_with_marks) { ck_abort_msg("a\tb\\c\nd"); }
END_TEST

START_TEST(fails_at_length)
{
    char text[4002] = "x";          /* an odd number of bytes before */
    for (size_t at = 1; at + 2 < sizeof text; at += 2)
        memcpy(text + at, "é", 3);
    ck_abort_msg("%s", text);
}
END_TEST

START_TEST(crashes) { raise(SIGSEGV); }
END_TEST

START_TEST(aborts) { abort(); }
END_TEST

START_TEST(crashes_behind_an_assertion)
{
    ck_assert_int_gt(printf("line %d\n", __LINE__), 0);

    raise(SIGSEGV);
}
END_TEST

/* It would keep the suite's output open for an hour. */
START_TEST(leaves_a_child)
{
    if (fork() == 0)
        sleep(3600);
}
END_TEST

START_TEST(writes_megabytes)
{
    static char line[1024];
    memset(line, '.', sizeof line - 1);
    for (int k = 0; k < 4096; k++)
        puts(line);
}
END_TEST

START_TEST(asks_for_the_program)
{
    ck_abort_msg("%s, seed %llu", harness_program(), harness_seed());
}
END_TEST

static void loop(void)
{
    for (volatile int k = 0; k >= 0; k = 1)
        ;
}

START_TEST(loops) { loop(); }
END_TEST

START_TEST(loops_too) { loop(); }
END_TEST

START_TEST(loops_as_well) { loop(); }
END_TEST

START_TEST(would_return) { }
END_TEST

static const struct test tests[] = {
    TEST(returns, 0, "a good end"),
    TEST(calls_exit, 0, "an early end"),
    TEST(calls_underscore_exit, 0, "an early end"),
    TEST(returns_in_a_copy, 0, "an early end"),
    TEST(fails_with_marks, 1, "a failure"),
    TEST(fails_at_length, 1, "a failure"),
    TEST(crashes, 1, "a crash"),
    TEST(aborts, 1, "a crash"),
    TEST(crashes_behind_an_assertion, 1, "a crash"),
    TEST(leaves_a_child, 2, "a good end"),
    TEST(writes_megabytes, 2, "a good end"),
    TEST(asks_for_the_program, 2, "a failure"),
    TEST(loops, 3, "no end"),
    TEST(loops_too, 3, "no end"),
    TEST(loops_as_well, 3, "no end"),
    TEST(would_return, 3, "a good end"),
};
SUITE("the sample", tests);
