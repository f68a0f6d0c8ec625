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
static int add_tests(Suite *check, const struct options *options)
{
    int added = 0;
    for (size_t i = 0; i < suite.count; i++) {
        if (!wanted(&suite.tests[i], options))
            continue;
        TCase *tcase = tcase_create(suite.tests[i].name);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, *suite.tests[i].test);
        suite_add_tcase(check, tcase);
        added++;
    }
    return added;
}

/* The first failure in the order of the table. */
static const struct test *first_failure(TestResult **failures, int count)
{
    const struct test *first = NULL;
    for (int i = 0; i < count; i++) {
        const struct test *test = test_of(failures[i]);
        if (first == NULL || test < first)
            first = test;
    }
    return first;
}

static int judge_owner(const struct test *first, const char *owner)
{
    if (first == NULL) {
        printf("not caught: no test failed; %s is wrong\n", owner);
        return 1;
    }
    if (strcmp(first->owner, owner) != 0) {
        printf("misrouted: first failure %s names \"%s\", expected \"%s\"\n",
               first->name, first->owner, owner);
        return 1;
    }
    printf("caught by %s\n", first->name);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = { 0 };
    if (parse_options(argc, argv, &options) != 0)
        return 2;
    if (options.list)
        return list_tests();
    Suite *check = suite_create(suite.title);
    int added = add_tests(check, &options);
    SRunner *runner = srunner_create(check);
    setvbuf(stdout, NULL, _IOLBF, 0);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    TestResult **failures = srunner_failures(runner);
    int status;
    if (options.expect_owner != NULL)
        status = judge_owner(first_failure(failures, failed),
                             options.expect_owner);
    else {
        for (int i = 0; i < failed; i++)
            print_failure(failures[i], &options);
        printf("%s: %d passed, %d failed\n", suite.title, added - failed,
               failed);
        status = failed != 0;
    }
    free(failures);
    srunner_free(runner);
    return status;
}
