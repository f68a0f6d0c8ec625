/* The harness, seen from outside: verdicts, reports and exit statuses of
   sample.c. --program says where that is; with "-early" behind it, it is the
   one that ends before main. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/harness.h"

static char report_path[64], report[1 << 16], said[1 << 23];

/* Runs the sample; said is its output, report what it reported, or "". */
static int sample(const char *before, const char *arguments)
{
    char line[6000];
    snprintf(report_path, sizeof report_path, "/tmp/harness-%ld.report",
             (long)getpid());
    snprintf(line, sizeof line, "%s'%s'%s --report %s 2>&1", before,
             harness_program(), arguments, report_path);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
    const int status = pclose(pipe);
    FILE *file = fopen(report_path, "r");
    report[0] = '\0';
    if (file != NULL) {
        report[fread(report, 1, sizeof report - 1, file)] = '\0';
        fclose(file);
    }
    remove(report_path);
    strcat(report_path, ".new");
    ck_assert_int_ne(access(report_path, F_OK), 0);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The test's line of the report, without its name. */
static const char *line_of(const char *name)
{
    static char line[4096];
    const size_t length = strlen(name);
    const char *at = report;
    while (*at != '\0' && (strncmp(at, name, length) != 0
                           || at[length] != '\t'))
        at += strcspn(at, "\n") + 1;
    ck_assert_msg(*at != '\0', "no line for %s in:\n%s", name, report);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    return line + length + 1;
}

/* tier, outcome and owner at the beginning of the line; file and message. */
static void expect_line(const char *name, const char *begins,
                        const char *message)
{
    const char *line = line_of(name);
    ck_assert_msg(strncmp(line, begins, strlen(begins)) == 0, "%s: %s", name,
                  line);
    line += strlen(begins);
    ck_assert_msg(strncmp(line, "\ttests/tool/sample.c:", 21) == 0
                  && strtol(line + 21, NULL, 10) > 10, "%s:%s", name, line);
    line += 21 + strspn(line + 21, "0123456789");
    ck_assert_msg(*line == '\t', "%s:%s", name, line);
    ck_assert_msg(strstr(line, message) != NULL, "%s:%s", name, line);
    if (message[0] == '\0')
        ck_assert_str_eq(line + 1, "");
}

static void expect_end(const char *count)
{
    const size_t length = strlen(report);
    const char *last = report + length - strlen(count) - 5;
    ck_assert_msg(length > 10 && strncmp(last, "end\t", 4) == 0
                  && strncmp(last + 4, count, strlen(count)) == 0
                  && report[length - 1] == '\n', "%s", report);
}

static void expect_last_words(const char *words)
{
    const size_t length = strlen(said), size = strlen(words);
    ck_assert_msg(length >= size && strcmp(said + length - size, words) == 0,
                  "expected \"%s\" at the end of: %s", words,
                  said + (length > 400 ? length - 400 : 0));
}

START_TEST(only_a_test_that_returned_has_passed)
{
    static const char early[] =
        "the test ended early: something called exit or _exit";
    ck_assert_int_eq(sample("", " --tier 0"), 1);
    expect_line("returns", "0\tpass\ta good end", "");
    expect_line("calls_exit", "0\terror\tan early end", early);
    expect_line("calls_underscore_exit", "0\terror\tan early end", early);
    expect_line("returns_in_a_copy", "0\terror\tan early end", early);
    expect_end("4");
    expect_last_words("the sample: 1 passed, 3 failed\n");
}
END_TEST

START_TEST(failures_and_crashes_are_told_apart)
{
    ck_assert_int_eq(sample("", " --tier 1 --seed 12"), 1);
    expect_line("fails_with_marks", "1\tfail\ta failure",
                "\ta\\tb\\\\c\\nd");
    expect_line("crashes", "1\terror\ta crash", "signal 11");
    expect_line("aborts", "1\terror\ta crash", "signal 6");
    expect_end("5");
    expect_last_words("the sample: 0 passed, 5 failed (seed 12)\n");
}
END_TEST

START_TEST(a_crash_is_behind_the_last_assertion_that_held)
{
    ck_assert_int_eq(sample("", " --only crashes_behind_an_assertion"), 1);
    const char *line = strstr(said, "line "),
               *place = strstr(line_of("crashes_behind_an_assertion"), ".c:");
    ck_assert(line != NULL && place != NULL);
    ck_assert_int_gt(strtol(line + 5, NULL, 10), 0);
    ck_assert_int_eq(strtol(place + 3, NULL, 10), strtol(line + 5, NULL, 10));
}
END_TEST

START_TEST(a_long_message_is_cut_between_characters)
{
    ck_assert_int_eq(sample("", " --only fails_at_length"), 1);
    const char *message = strrchr(line_of("fails_at_length"), '\t') + 1;
    ck_assert_uint_eq(strlen(message), 1999);
    ck_assert_str_eq(message + 1997, "é");
    expect_end("1");
}
END_TEST

/* The sample's output ends when nobody has it open any more. */
START_TEST(a_child_left_behind_is_stopped)
{
    ck_assert_int_eq(sample("", " --only leaves_a_child"), 0);
    expect_line("leaves_a_child", "2\tpass\ta good end", "");
    expect_last_words("the sample: 1 passed, 0 failed\n");
}
END_TEST

START_TEST(megabytes_of_output_leave_the_report_alone)
{
    ck_assert_int_eq(sample("", " --only writes_megabytes"), 0);
    ck_assert_uint_gt(strlen(said), 4096 * 1024);
    expect_line("writes_megabytes", "2\tpass\ta good end", "");
    expect_end("1");
    expect_last_words("the sample: 1 passed, 0 failed\n");
}
END_TEST

START_TEST(three_endless_tests_are_enough)
{
    ck_assert_int_eq(sample("", " --tier 3 --timeout 0.2"), 1);
    expect_line("loops", "3\terror\tno end", "imeout");
    expect_line("loops_too", "3\terror\tno end", "imeout");
    expect_line("loops_as_well", "3\terror\tno end", "imeout");
    expect_line("would_return", "3\terror\ta good end",
                "not run: three tests ran into the time limit");
    expect_end("4");
    expect_last_words("the sample: 0 passed, 4 failed\n");
}
END_TEST

START_TEST(two_endless_tests_are_not)
{
    ck_assert_int_eq(sample("", " --only loops --timeout 0.2"), 1);
    ck_assert_int_eq(sample("", " --only would_return --timeout 0.2"), 0);
    expect_line("would_return", "3\tpass\ta good end", "");
}
END_TEST

START_TEST(what_ends_before_main_leaves_no_report)
{
    ck_assert_int_eq(sample("", "-early"), 0);
    ck_assert_str_eq(report, "");
    ck_assert_str_eq(said, "");
}
END_TEST

/* The table's first failure is calls_exit. */
START_TEST(an_early_end_is_a_failure_for_a_wrong_path_too)
{
    ck_assert_int_eq(sample("", " --expect-owner 'an early end'"), 0);
    ck_assert_str_eq(said, "caught by calls_exit\n");
    ck_assert_int_eq(sample("", " --expect-owner 'a failure'"), 1);
    ck_assert_str_eq(said, "misrouted: first failure calls_exit names"
                           " \"an early end\", expected \"a failure\"\n");
}
END_TEST

START_TEST(seed_and_program_reach_the_tests)
{
    sample("", " --only asks_for_the_program --program x/y"
               " --seed 18446744073709551615");
    expect_line("asks_for_the_program", "2\tfail\ta failure",
                "\tx/y, seed 18446744073709551615");
    char beside[6000];
    snprintf(beside, sizeof beside, "\t%.*stinygpt, seed 1",
             (int)(strrchr(harness_program(), '/') + 1 - harness_program()),
             harness_program());
    sample("", " --only asks_for_the_program");
    expect_line("asks_for_the_program", "2\tfail\ta failure", beside);
}
END_TEST

START_TEST(without_fork_the_verdict_is_the_same)
{
    ck_assert_int_eq(sample("CK_FORK=no ", " --only returns"), 0);
    expect_line("returns", "0\tpass\ta good end", "");
    ck_assert_int_eq(sample("CK_FORK=no ", " --only fails_with_marks"), 1);
    expect_line("fails_with_marks", "1\tfail\ta failure", "\ta\\tb");
    expect_end("1");
}
END_TEST

START_TEST(bad_options_are_refused)
{
    const char *const bad[] = {
        " --seed -1", " --seed 1x", " --seed 18446744073709551616",
        " --seed ''", " --timeout 0", " --timeout -1", " --timeout nan",
        " --timeout 1s", " --sed 1"
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        ck_assert_msg(sample("", bad[k]) == 2, "%s", bad[k]);
        ck_assert_str_eq(report, "");
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
}
END_TEST

START_TEST(a_report_that_cannot_be_written_is_an_error)
{
    char line[6000];
    snprintf(line, sizeof line, "'%s' --only returns --report /absent/r "
             ">/dev/null 2>&1", harness_program());
    const int status = system(line);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}
END_TEST

static const struct test tests[] = {
    TEST(only_a_test_that_returned_has_passed, 0, "harness"),
    TEST(failures_and_crashes_are_told_apart, 0, "harness"),
    TEST(a_crash_is_behind_the_last_assertion_that_held, 0, "harness"),
    TEST(a_long_message_is_cut_between_characters, 0, "harness"),
    TEST(a_child_left_behind_is_stopped, 0, "harness"),
    TEST(megabytes_of_output_leave_the_report_alone, 0, "harness"),
    TEST(three_endless_tests_are_enough, 0, "harness"),
    TEST(two_endless_tests_are_not, 0, "harness"),
    TEST(what_ends_before_main_leaves_no_report, 0, "harness"),
    TEST(an_early_end_is_a_failure_for_a_wrong_path_too, 0, "harness"),
    TEST(seed_and_program_reach_the_tests, 0, "harness"),
    TEST(without_fork_the_verdict_is_the_same, 0, "harness"),
    TEST(bad_options_are_refused, 0, "harness"),
    TEST(a_report_that_cannot_be_written_is_an_error, 0, "harness"),
};
SUITE("the harness", tests);
