/* The main program of every suite.

       suite [--tier K] [--only NAME] [--chunks FILE] [--seed N]
             [--program PATH] [--timeout SECONDS] [--report FILE]
             [--expect-owner CHUNK]
       suite --list

   Prints the failures, each with the chunk that owns the mechanism, and one
   summary line. Exit status: 0 all passed, 1 something failed, 2 bad usage
   or no report.
   --list prints name, tier and owner of each test, separated by tabs.
   --chunks names a table "chunk <TAB> file:line" to say where an owner is.
   --seed is what the suite's made-up inputs depend on (1).
   --program is the tinygpt to run (the one beside the suite).
   --timeout is the time that a test may take (60 seconds). When three tests
   took all of it, the rest is not run.
   --report writes, once the tests are done, a line for each of them in the
   order of the table: name, tier, pass|fail|error, owner, file:line and
   message, separated by tabs, with \\t, \\n, \\r and \\\\ in the message; at
   the end "end <TAB> count". The file appears whole or not at all.
   --expect-owner turns the verdict around, for wrong paths: status 0 when a
   test failed and the first failure is owned by that chunk.

   A test passes when its function returned. Check alone would also count a
   test whose process ended with exit(0). */
#define _DEFAULT_SOURCE         /* MAP_ANONYMOUS */
#define _XOPEN_SOURCE 700       /* nftw */
#include "harness.h"
#include <errno.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUTS_MAX = 3, MESSAGE_MAX = 2000 };

struct options {
    bool list;
    const char *tier;
    const char *only;
    const char *chunks;
    const char *seed;
    const char *program;
    const char *timeout;
    const char *report;
    const char *expect_owner;
};

enum outcome { NOT_WANTED, PASS, FAIL, ERROR };

/* What became of a test. */
struct verdict {
    enum outcome outcome;
    bool timed_out;
    char file[256];
    int line;
    char message[MESSAGE_MAX + 1];
};

static unsigned long long seed = 1;
static char program[4096];
static char scratch[] = "/tmp/tinygpt-XXXXXX";
static double timeout = 60;
/* Memory that the process of a test shares with this one. */
static struct {
    atomic_size_t returned;             /* the last test that did */
    const char *_Atomic file;           /* the last assertion that held */
    atomic_int line;
} *shared;

unsigned long long harness_seed(void)
{
    return seed;
}

const char *harness_program(void)
{
    return program;
}

const char *harness_scratch(void)
{
    return scratch;
}

/* ---------------------------------------------------------- the options */

static int refuse(const char *option, const char *value)
{
    fprintf(stderr, "%s: cannot be \"%s\"\n", option, value);
    return 2;
}

static int set_seed(const char *text)
{
    char *end;
    errno = 0;
    seed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return refuse("--seed", text);
    return 0;
}

static int set_timeout(const char *text)
{
    char *end;
    timeout = strtod(text, &end);
    if (end == text || *end != '\0' || !(timeout > 0 && timeout < 1e6))
        return refuse("--timeout", text);
    return 0;
}

static int set_program(const char *path, const char *self)
{
    const char *slash = strrchr(self, '/');
    int length = path != NULL || slash == NULL ? 0 : (int)(slash + 1 - self);
    int size = snprintf(program, sizeof program, "%.*s%s", length, self,
                        path != NULL ? path : "tinygpt");
    return (size_t)size < sizeof program ? 0 : refuse("--program", path);
}

static const char **option_value(const char *name, struct options *options)
{
    return strcmp(name, "--tier") == 0 ? &options->tier :
           strcmp(name, "--only") == 0 ? &options->only :
           strcmp(name, "--chunks") == 0 ? &options->chunks :
           strcmp(name, "--seed") == 0 ? &options->seed :
           strcmp(name, "--program") == 0 ? &options->program :
           strcmp(name, "--timeout") == 0 ? &options->timeout :
           strcmp(name, "--report") == 0 ? &options->report :
           strcmp(name, "--expect-owner") == 0 ? &options->expect_owner :
           NULL;
}

static int parse_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char **value = option_value(argv[i], options);
        if (strcmp(argv[i], "--list") == 0)
            options->list = true;
        else if (value != NULL && i + 1 < argc)
            *value = argv[++i];
        else {
            fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[i]);
            return 2;
        }
    }
    if (options->seed != NULL && set_seed(options->seed) != 0)
        return 2;
    if (options->timeout != NULL && set_timeout(options->timeout) != 0)
        return 2;
    return set_program(options->program, argv[0]);
}

static bool wanted(const struct test *test, const struct options *options)
{
    if (options->tier != NULL && atoi(options->tier) != test->tier)
        return false;
    return options->only == NULL || strcmp(options->only, test->name) == 0;
}

static int list_tests(void)
{
    for (size_t i = 0; i < suite.count; i++)
        printf("%s\t%d\t%s\n", suite.tests[i].name, suite.tests[i].tier,
               suite.tests[i].owner);
    return 0;
}

/* ------------------------------------------------------------- one test */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Check writes each assertion that holds to a file, a microsecond that a loop
   over a million numbers feels. The linker puts this in its place. */
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
    atomic_store_explicit(&shared->file, file, memory_order_relaxed);
    atomic_store_explicit(&shared->line, line, memory_order_relaxed);
}

/* Runs the i-th test, and notes that it came back: itself, and not a copy
   that it forked. */
static void run_and_return(int i)
{
    const pid_t self = getpid();
    (*suite.tests[i].test)->fn(0);
    if (getpid() == self)
        shared->returned = (size_t)i;
}

/* Check forgets the names with the runner. */
static void set_place(struct verdict *verdict, const char *file, int line)
{
    snprintf(verdict->file, sizeof verdict->file, "%s", file);
    verdict->line = line;
}

static void set_message(struct verdict *verdict, enum outcome outcome,
                        const char *message)
{
    size_t length = strlen(message);
    if (length > MESSAGE_MAX)
        for (length = MESSAGE_MAX; (message[length] & 0xc0) == 0x80; )
            length--;           /* not in the middle of a character */
    verdict->outcome = outcome;
    memcpy(verdict->message, message, length);
    verdict->message[length] = '\0';
}

static void judge(struct verdict *verdict, TestResult *result, size_t i)
{
    const int type = tr_rtype(result);
    const TTest *test = *suite.tests[i].test;
    if (type == CK_PASS)
        set_place(verdict, test->file, test->line);
    else if (type == CK_ERROR && shared->file != NULL)
        set_place(verdict, shared->file, shared->line);
    else
        set_place(verdict, tr_lfile(result), tr_lno(result));
    if (type == CK_PASS && shared->returned != i)
        set_message(verdict, ERROR, "the test ended early: something called"
                                    " exit or _exit");
    else
        set_message(verdict, type == CK_PASS ? PASS :
                             type == CK_FAILURE ? FAIL : ERROR,
                    type == CK_PASS ? "" : tr_msg(result));
}

/* A runner for each test, so that one verdict is known before the next test
   begins. */
static void run_test(size_t i, struct verdict *verdict)
{
    const TTest *test = *suite.tests[i].test;
    const TTest wrapped = { test->name, run_and_return, test->file,
                            test->line };
    TCase *tcase = tcase_create(suite.tests[i].name);
    tcase_set_timeout(tcase, timeout);
    tcase_add_loop_test(tcase, &wrapped, (int)i, (int)i + 1);
    Suite *check = suite_create(suite.title);
    suite_add_tcase(check, tcase);
    SRunner *runner = srunner_create(check);
    shared->returned = suite.count;
    shared->file = NULL;
    const double began = seconds();
    srunner_run_all(runner, CK_SILENT);
    TestResult **results = srunner_results(runner);
    judge(verdict, results[0], i);
    verdict->timed_out = verdict->outcome == ERROR
                         && seconds() - began >= timeout;
    free(results);
    srunner_free(runner);
}

/* ------------------------------------------------------------ the suite */

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

static void print_failure(const struct test *test,
                          const struct verdict *verdict, const char *chunks)
{
    printf("%s:%d: failed: %s\n    %s\n    ", verdict->file, verdict->line,
           test->name, verdict->message);
    print_place(chunks, test->owner);
    printf("owner: %s\n", test->owner);
}

static void not_run(size_t i, struct verdict *verdict)
{
    const TTest *test = *suite.tests[i].test;
    set_place(verdict, test->file, test->line);
    set_message(verdict, ERROR,
                "not run: three tests ran into the time limit");
}

/* Runs the tests in the order of the table. Returns how many did not pass,
   and how many there were. */
static size_t run_tests(const struct options *options,
                        struct verdict *verdicts, size_t *count)
{
    size_t failed = 0;
    int timeouts = 0;
    for (size_t i = 0; i < suite.count; i++) {
        if (!wanted(&suite.tests[i], options))
            continue;
        ++*count;
        if (timeouts < TIMEOUTS_MAX)
            run_test(i, &verdicts[i]);
        else
            not_run(i, &verdicts[i]);
        timeouts += verdicts[i].timed_out;
        if (verdicts[i].outcome == PASS)
            continue;
        failed++;
        print_failure(&suite.tests[i], &verdicts[i], options->chunks);
    }
    return failed;
}

static void write_escaped(FILE *file, const char *text)
{
    static const char plain[] = "\t\n\r\\", letter[] = "tnr\\";
    for (; *text != '\0'; text++) {
        const char *at = strchr(plain, *text);
        if (at == NULL)
            putc(*text, file);
        else
            fprintf(file, "\\%c", letter[at - plain]);
    }
}

static void write_verdicts(FILE *file, const struct verdict *verdicts,
                           size_t count)
{
    static const char *const words[] = { "", "pass", "fail", "error" };
    for (size_t i = 0; i < suite.count; i++) {
        if (verdicts[i].outcome == NOT_WANTED)
            continue;
        fprintf(file, "%s\t%d\t%s\t%s\t%s:%d\t", suite.tests[i].name,
                suite.tests[i].tier, words[verdicts[i].outcome],
                suite.tests[i].owner, verdicts[i].file, verdicts[i].line);
        write_escaped(file, verdicts[i].message);
        putc('\n', file);
    }
    fprintf(file, "end\t%zu\n", count);
}

static bool write_report(const char *path, const struct verdict *verdicts,
                         size_t count)
{
    char part[4096];
    int size = snprintf(part, sizeof part, "%s.new", path);
    errno = ENAMETOOLONG;
    FILE *file = (size_t)size < sizeof part ? fopen(part, "w") : NULL;
    bool whole = file != NULL;
    if (file != NULL) {
        write_verdicts(file, verdicts, count);
        whole = !ferror(file);
        whole = fclose(file) == 0 && whole && rename(part, path) == 0;
    }
    if (!whole)
        fprintf(stderr, "%s: cannot write the report: %s\n", path,
                strerror(errno));
    return whole;
}

static int run_suite(const struct options *options)
{
    struct verdict *verdicts = calloc(suite.count, sizeof *verdicts);
    size_t count = 0;
    if (verdicts == NULL) {
        fprintf(stderr, "no memory for %zu verdicts\n", suite.count);
        return 2;
    }
    size_t failed = run_tests(options, verdicts, &count);
    bool reported = options->report == NULL
                    || write_report(options->report, verdicts, count);
    free(verdicts);
    printf("%s: %zu passed, %zu failed", suite.title, count - failed, failed);
    if (options->seed != NULL)
        printf(" (seed %llu)", seed);
    printf("\n");
    return !reported ? 2 : failed != 0;
}

/* Runs the tests in the order of the table, up to the first that fails. */
static int judge_owner(const char *owner)
{
    static struct verdict verdict;
    size_t i = 0;
    for (; i < suite.count; i++) {
        run_test(i, &verdict);
        if (verdict.outcome != PASS)
            break;
    }
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

static int remove_entry(const char *path, const struct stat *about, int kind,
                        struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

int main(int argc, char **argv)
{
    struct options options = { 0 };
    if (parse_options(argc, argv, &options) != 0)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (options.list)
        return list_tests();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("memory to share with the tests");
        return 2;
    }
    if (mkdtemp(scratch) == NULL) {
        perror(scratch);
        return 2;
    }
    int status = options.expect_owner != NULL
        ? judge_owner(options.expect_owner) : run_suite(&options);
    nftw(scratch, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return status;
}
