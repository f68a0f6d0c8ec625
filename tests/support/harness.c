/* The main program of every suite.

       suite [--tier K] [--only NAME] [--chunks FILE] [--expect-owner CHUNK]
       suite --list

   Prints the failures, each with the chunk that owns the mechanism, and one
   summary line. Exit status: 0 all passed, 1 something failed, 2 bad usage.
   --list prints name, tier and owner of each test, separated by tabs.
   --chunks names a table "chunk <TAB> file:line" to say where an owner is.
   --expect-owner turns the verdict around, for wrong paths: status 0 when a
   test failed and the first failure is owned by that chunk. */
#include "harness.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    bool list;
    const char *tier;
    const char *only;
    const char *chunks;
    const char *expect_owner;
};

static const struct test *test_of(TestResult *result)
{
    for (size_t i = 0; i < suite.count; i++)
        if (strcmp(suite.tests[i].name, tr_tcname(result)) == 0)
            return &suite.tests[i];
    return NULL;
}

/* Prints where the table says that a chunk is, if it says so. */
static void print_place(const char *chunks, const char *chunk)
{
    FILE *file = chunks ? fopen(chunks, "r") : NULL;
    char line[1024];
    size_t length = strlen(chunk);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, chunk, length) == 0 && line[length] == '\t') {
            printf("%.*s: ", (int)strcspn(line + length + 1, "\n"),
                   line + length + 1);
            break;
        }
    if (file)
        fclose(file);
}

static void print_failure(TestResult *result,
                          const struct options *options)
{
    const struct test *test = test_of(result);
    printf("%s:%d: failed: %s\n    %s\n", tr_lfile(result),
           tr_lno(result), tr_tcname(result), tr_msg(result));
    if (test != NULL) {
        printf("    ");
        print_place(options->chunks, test->owner);
        printf("owner: %s\n", test->owner);
    }
}

static int list_tests(void)
{
    for (size_t i = 0; i < suite.count; i++)
        printf("%s\t%d\t%s\n", suite.tests[i].name, suite.tests[i].tier,
               suite.tests[i].owner);
    return 0;
}

static int parse_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char **value =
            strcmp(argv[i], "--tier") == 0 ? &options->tier :
            strcmp(argv[i], "--only") == 0 ? &options->only :
            strcmp(argv[i], "--chunks") == 0 ? &options->chunks :
            strcmp(argv[i], "--expect-owner") == 0 ? &options->expect_owner :
            NULL;
        if (strcmp(argv[i], "--list") == 0)
            options->list = true;
        else if (value != NULL && i + 1 < argc)
            *value = argv[++i];
        else {
            fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[i]);
            return 2;
        }
    }
    return 0;
}

static bool wanted(const struct test *test, const struct options *options)
{
    if (options->tier != NULL && atoi(options->tier) != test->tier)
        return false;
    return options->only == NULL || strcmp(options->only, test->name) == 0;
}

/* One case a test, so that a result leads back to its row of the table. */
static void add_test(Suite *check, const struct test *test)
{
    TCase *tcase = tcase_create(test->name);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, *test->test);
    suite_add_tcase(check, tcase);
}

static bool fails(const struct test *test)
{
    Suite *check = suite_create(suite.title);
    add_test(check, test);
    SRunner *runner = srunner_create(check);
    srunner_run_all(runner, CK_SILENT);
    bool failed = srunner_ntests_failed(runner) > 0;
    srunner_free(runner);
    return failed;
}

/* Runs the tests in the order of the table, up to the first that fails. */
static int judge_owner(const char *owner)
{
    size_t i = 0;
    while (i < suite.count && !fails(&suite.tests[i]))
        i++;
    if (i == suite.count)
        printf("not caught: no test failed; %s is wrong\n", owner);
    else if (strcmp(suite.tests[i].owner, owner) != 0)
        printf("misrouted: first failure %s names \"%s\", expected \"%s\"\n",
               suite.tests[i].name, suite.tests[i].owner, owner);
    else {
        printf("caught by %s\n", suite.tests[i].name);
        return 0;
    }
    return 1;
}

static int run_suite(const struct options *options)
{
    Suite *check = suite_create(suite.title);
    int added = 0;
    for (size_t i = 0; i < suite.count; i++)
        if (wanted(&suite.tests[i], options)) {
            add_test(check, &suite.tests[i]);
            added++;
        }
    SRunner *runner = srunner_create(check);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    TestResult **failures = srunner_failures(runner);
    for (int i = 0; i < failed; i++)
        print_failure(failures[i], options);
    printf("%s: %d passed, %d failed\n", suite.title, added - failed, failed);
    free(failures);
    srunner_free(runner);
    return failed != 0;
}

int main(int argc, char **argv)
{
    struct options options = { 0 };
    if (parse_options(argc, argv, &options) != 0)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (options.list)
        return list_tests();
    if (options.expect_owner != NULL)
        return judge_owner(options.expect_owner);
    return run_suite(&options);
}
