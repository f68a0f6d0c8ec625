#define _DEFAULT_SOURCE
#include "grade.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"
#include "fence.h"
#include "process.h"

enum { SUITE_SECONDS = 60 };
#define TEST_SECONDS "5"

struct job {
    struct grade *grade;
    const struct workshop *workshop;
    struct bench bench;
    const char *source;         /* the attempt's directory */
    char *work;                 /* for objects, suites, reports */
    struct list objects;        /* of the attempt's files */
    struct list suites;         /* "suite_3", "suite_3b" */
};

static char *in_work(const struct job *job, const char *name)
{
    return text_format("%s/%s", job->work, name);
}

static bool problem(struct job *job, const char *what, char *said)
{
    if (job->grade->problem == NULL) {
        job->grade->problem = text_format("%s", what);
        job->grade->said = text_clean(said != NULL ? said
                                                   : text_format("%s", ""));
    } else
        free(said);
    return false;
}

static bool is_older(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec < b->st_mtim.tv_sec
        || (a->st_mtim.tv_sec == b->st_mtim.tv_sec
            && a->st_mtim.tv_nsec <= b->st_mtim.tv_nsec);
}

static bool is_fresh(const char *object, const char *from,
                     const char *directory)
{
    struct stat made, source;
    if (stat(object, &made) != 0 || stat(from, &source) != 0
        || is_older(&made, &source))
        return false;
    struct list headers = files_in(directory, ".h");
    bool fresh = true;
    for (size_t i = 0; i < headers.count; i++) {
        char *path = text_format("%s/%s", directory, headers.items[i]);
        if (stat(path, &source) == 0 && is_older(&made, &source))
            fresh = false;
        free(path);
    }
    list_free(&headers);
    return fresh;
}

static bool is_file(struct job *job, const char *path)
{
    struct stat about;
    return stat(path, &about) != 0 || S_ISREG(about.st_mode)
        || problem(job, "it does not compile",
                   text_format("%s: not a file\n", path));
}

static bool collect_compilers(struct job *job, const pid_t *children,
                              size_t count)
{
    char *said = text_format("%s", "");
    bool failed = false;
    for (size_t i = 0; i < count; i++) {
        const char *object = job->objects.items[i];
        char *output = text_format("%s.said", object);
        char *part = text_format("%s.part", object);
        if (children[i] != 0 && (process_wait(children[i]) != 0
                                 || rename(part, object) != 0))
            failed = true;
        char *words = file_read(output);
        char *longer = text_format("%s%s", said, words ? words : "");
        free(said);
        free(words);
        free(output);
        free(part);
        said = longer;
    }
    if (failed || job->grade->problem != NULL)
        return problem(job, "it does not compile", said);
    job->grade->said = text_clean(said);        /* warnings, if any */
    return true;
}

static bool compile(struct job *job)
{
    struct list files = files_in(job->source, ".c");
    pid_t *children = allocate((files.count + 1) * sizeof *children);
    char *include = text_format("%s/src", job->bench.prefix);
    char *blank = text_format("%s/plain/resolve/blank.h",
                              job->workshop->build);
    if (files.count == 0)
        problem(job, "no C files", text_format("in %s\n", job->source));
    for (size_t i = 0; i < files.count; i++) {
        char *from = text_format("%s/%s", job->source, files.items[i]);
        char *object = text_format("%s/%s.o", job->work, files.items[i]);
        char *output = text_format("%s.said", object);
        list_add(&job->objects, object);
        if (is_file(job, from) && !is_fresh(object, from, job->source)) {
            struct list argv = { 0 };
            remove(object);
            list_add_words(&argv, RESOLVE_CC " " RESOLVE_CFLAGS);
            list_add(&argv, text_format("-I%s", include));
            list_add(&argv, text_format("-include"));
            list_add(&argv, text_format("%s", blank));
            list_add(&argv, text_format("-c"));
            list_add(&argv, text_format("%s", from));
            list_add(&argv, text_format("-o"));
            list_add(&argv, text_format("%s.part", object));
            children[i] = process_start(&argv, output);
            list_free(&argv);
        }
        free(from);
        free(output);
    }
    bool done = collect_compilers(job, children, files.count);
    free(children);
    free(include);
    free(blank);
    list_free(&files);
    return done;
}

static bool run_linker(struct job *job, struct list *argv, const char *what)
{
    char *output = in_work(job, "linker");
    bool done = process_run(argv, output);
    if (!done)
        problem(job, what, file_read(output));
    free(output);
    return done;
}

static bool isolate(struct job *job)
{
    struct list join = { 0 }, hide = { 0 };
    list_add_words(&join, "ld -r -o");
    list_add(&join, in_work(job, "attempt.o"));
    for (size_t i = 0; i < job->objects.count; i++)
        list_add(&join, text_format("%s", job->objects.items[i]));
    if (!run_linker(job, &join, "its files do not fit together"))
        return false;
    list_add_words(&hide, "objcopy");
    list_add(&hide, text_format("--keep-global-symbols=%s/link/public",
                                job->bench.directory));
    list_add(&hide, in_work(job, "attempt.o"));
    return run_linker(job, &hide, "its names cannot be hidden");
}

static bool find_unwritten(struct job *job)
{
    struct list argv = { 0 };
    char *output = in_work(job, "defined");
    list_add_words(&argv, "nm -g -P --defined-only");
    list_add(&argv, in_work(job, "attempt.o"));
    bool done = process_run(&argv, output);
    char *text = file_read(output);
    char *names = text_format("\n%s", text != NULL ? text : "");
    for (size_t i = 0; i < job->bench.task_count; i++) {
        const char *name = job->bench.tasks[i].name;
        char *line = text_format("\n%s ", name);
        if (strstr(names, line) == NULL)
            list_add(&job->grade->unwritten, text_format("%s", name));
        free(line);
    }
    free(names);
    free(text);
    free(output);
    return done || problem(job, "nm cannot read it", NULL);
}

static bool stand_in(struct job *job)
{
    struct list argv = { 0 };
    char *source = in_work(job, "stand-in.c");
    char *text = text_format("_Noreturn void blank_reached(const char *);\n");
    for (size_t i = 0; i < job->grade->unwritten.count; i++) {
        const char *name = job->grade->unwritten.items[i];
        char *longer = text_format("%svoid %s(void);\nvoid %s(void)"
                                   " { blank_reached(\"%s\"); }\n",
                                   text, name, name, name);
        free(text);
        text = longer;
    }
    bool done = file_write(source, text, 0666);
    list_add_words(&argv, RESOLVE_CC " -w -fno-builtin -c -o");
    list_add(&argv, in_work(job, "stand-in.o"));
    list_add(&argv, source);
    done = done && run_linker(job, &argv, "no stand-ins");
    free(text);
    return done;
}

static void find_suites(struct job *job, int chapter)
{
    struct list objects = files_in(job->bench.prefix, ".o");
    char *stem = text_format("suite_%d", chapter);
    for (size_t i = 0; i < objects.count; i++) {
        const char *name = objects.items[i];
        size_t length = strlen(stem);
        if (strncmp(name, stem, length) == 0
            && (strcmp(name + length, ".o") == 0
                || strcmp(name + length + 1, ".o") == 0)
            && (name[length] < '0' || name[length] > '9'))
            list_add(&job->suites, text_format("%.*s",
                                               (int)strlen(name) - 2, name));
    }
    list_free(&objects);
    free(stem);
}

static void add_objects(struct job *job, struct list *argv)
{
    char *own = text_format("%s/link/own", job->bench.directory);
    struct list names = files_in(own, ".o");
    list_add(argv, in_work(job, "attempt.o"));
    list_add(argv, in_work(job, "stand-in.o"));
    for (size_t i = 0; i < names.count; i++)
        list_add(argv, text_format("%s/%s", own, names.items[i]));
    list_add(argv, text_format("%s/link/rest.o", job->bench.directory));
    list_free(&names);
    free(own);
}

static struct list suite_command(struct job *job, const char *suite)
{
    struct list argv = { 0 };
    char *support = text_format("%s/support", job->bench.prefix);
    struct list helpers = files_in(support, ".o");
    list_add_words(&argv, RESOLVE_CC " " RESOLVE_WRAP " -o");
    list_add(&argv, in_work(job, suite));
    list_add(&argv, text_format("%s/%s.o", job->bench.prefix, suite));
    for (size_t i = 0; i < helpers.count; i++)
        list_add(&argv, text_format("%s/%s", support, helpers.items[i]));
    add_objects(job, &argv);
    list_add(&argv, text_format("%s/tool/resolve/blank_suite.o",
                                job->workshop->build));
    list_add_words(&argv, RESOLVE_CHECK_LIBS " " RESOLVE_LIBS);
    list_free(&helpers);
    free(support);
    return argv;
}

static struct list program_command(struct job *job)
{
    struct list argv = { 0 };
    list_add_words(&argv, RESOLVE_CC " -o");
    list_add(&argv, in_work(job, "tinygpt"));
    list_add(&argv, text_format("%s/obj/tinygpt.o", job->bench.prefix));
    add_objects(job, &argv);
    list_add(&argv, text_format("%s/tool/resolve/blank_program.o",
                                job->workshop->build));
    list_add_words(&argv, RESOLVE_LIBS);
    return argv;
}

static bool link_all(struct job *job)
{
    size_t count = job->suites.count + 1;
    pid_t *children = allocate(count * sizeof *children);
    char *said = text_format("%s", "");
    bool failed = false;
    for (size_t i = 0; i < count; i++) {
        struct list argv = i < job->suites.count
            ? suite_command(job, job->suites.items[i]) : program_command(job);
        char *output = text_format("%s/linker.%zu", job->work, i);
        children[i] = process_start(&argv, output);
        list_free(&argv);
        free(output);
    }
    for (size_t i = 0; i < count; i++)
        if (process_wait(children[i]) != 0 && !failed) {
            char *output = text_format("%s/linker.%zu", job->work, i);
            free(said);
            said = file_read(output);
            free(output);
            failed = true;
        }
    free(children);
    if (failed)
        return problem(job, "it does not link", said);
    free(said);
    return true;
}

static char *next_field(char **rest)
{
    char *field = *rest != NULL ? *rest : "";
    char *tab = *rest != NULL ? strchr(*rest, '\t') : NULL;
    if (tab != NULL)
        *tab = '\0';
    *rest = tab != NULL ? tab + 1 : NULL;
    return text_format("%s", field);
}

/* Undoes the escapes of the report, in place. */
static char *unescaped(char *text)
{
    char *out = text;
    for (const char *at = text; *at != '\0'; at++)
        if (*at == '\\' && at[1] != '\0')
            *out++ = *++at == 'n' ? '\n' : *at == 't' ? '\t'
                   : *at == 'r' ? ' ' : *at;
        else
            *out++ = *at;
    *out = '\0';
    return text;
}

static void add_outcome(struct grade *grade, char *line)
{
    struct tested *longer = allocate((grade->count + 1) * sizeof *longer);
    if (grade->count > 0)
        memcpy(longer, grade->tests, grade->count * sizeof *longer);
    free(grade->tests);
    grade->tests = longer;
    struct tested *outcome = &longer[grade->count++];
    outcome->name = next_field(&line);
    char *tier = next_field(&line), *verdict = next_field(&line);
    outcome->tier = atoi(tier);
    outcome->passed = strcmp(verdict, "pass") == 0;
    outcome->owner = next_field(&line);
    outcome->place = next_field(&line);
    outcome->message = text_clean(unescaped(next_field(&line)));
    grade->passed += outcome->passed;
    grade->failed += !outcome->passed;
    free(tier);
    free(verdict);
}

/* Whether the report is there, and whole. */
static bool read_report(struct grade *grade, const char *path)
{
    char *text = file_read(path), *next;
    size_t before = grade->count;
    bool whole = false;
    for (char *line = text; line != NULL && *line != '\0'; line = next) {
        next = line + strcspn(line, "\n");
        if (*next == '\n')
            *next++ = '\0';
        if (strncmp(line, "end\t", 4) == 0)
            whole = (size_t)atol(line + 4) == grade->count - before;
        else
            add_outcome(grade, line);
    }
    free(text);
    return whole;
}

static bool run_suite(struct job *job, const char *suite)
{
    struct list argv = { 0 };
    struct fenced fenced;
    char *report = text_format("%s/%s.report", job->work, suite);
    int failed = job->grade->failed;
    remove(report);
    list_add(&argv, in_work(job, suite));
    list_add_words(&argv, "--timeout " TEST_SECONDS " --seed");
    list_add(&argv, text_format("%llu", job->grade->seed));
    list_add(&argv, text_format("--program"));
    list_add(&argv, in_work(job, "tinygpt"));
    list_add(&argv, text_format("--report"));
    list_add(&argv, text_format("%s", report));
    bool done = fence_run(&argv, SUITE_SECONDS, &fenced);
    bool whole = done && read_report(job->grade, report);
    bool agree = (fenced.status == 0) == (job->grade->failed == failed);
    job->grade->printed += fenced.printed;
    if (done && (!whole || !agree)) {
        char *what = fenced.timed_out
            ? text_format("it ran for %d seconds and was stopped",
                          SUITE_SECONDS)
            : text_format("%s ended without a verdict (status %d): the code"
                          " of the attempt ended it", suite, fenced.status);
        problem(job, what, text_format("%s", fenced.said));
        free(what);
    }
    list_free(&argv);
    free(report);
    return done;
}

static bool run_suites(struct job *job)
{
    char *reached = in_work(job, "reached");
    bool done = true;
    remove(reached);
    setenv("RESOLVE_REACHED", reached, 1);
    for (size_t i = 0; done && i < job->suites.count; i++)
        done = run_suite(job, job->suites.items[i]);
    char *text = file_read(reached);
    for (char *line = text; line != NULL && *line != '\0'; ) {
        size_t length = strcspn(line, "\n");
        char *name = text_format("%.*s", (int)length, line);
        if (list_has(&job->grade->reached, name))
            free(name);
        else
            list_add(&job->grade->reached, name);
        line += length + (line[length] == '\n');
    }
    free(text);
    free(reached);
    return done;
}

bool grade_run(struct grade *grade, const struct workshop *workshop,
               const struct stages *stages, const struct stage *stage,
               const char *source, const char *work,
               unsigned long long seed)
{
    struct job job = { .grade = grade, .workshop = workshop,
                       .source = source };
    *grade = (struct grade){ .seed = seed };
    bool done = bench_open(&job.bench, workshop, stages, stage);
    if (done) {
        job.work = text_format("%s/tries/%s", job.bench.directory, work);
        find_suites(&job, stage->chapter);
        done = bench_link(&job.bench) && directory_make(job.work)
            && (job.suites.count > 0
                || complain("no suite of chapter %d in %s: make grade-%s"
                            " builds it", stage->chapter, job.bench.prefix,
                            stage->key));
    }
    if (done && compile(&job) && isolate(&job) && find_unwritten(&job)
        && stand_in(&job) && link_all(&job))
        done = run_suites(&job);
    bench_close(&job.bench);
    list_free(&job.objects);
    list_free(&job.suites);
    free(job.work);
    return done;
}

void grade_free(struct grade *grade)
{
    for (size_t i = 0; i < grade->count; i++) {
        free(grade->tests[i].name);
        free(grade->tests[i].owner);
        free(grade->tests[i].place);
        free(grade->tests[i].message);
    }
    free(grade->tests);
    free(grade->problem);
    free(grade->said);
    list_free(&grade->reached);
    list_free(&grade->unwritten);
    *grade = (struct grade){ 0 };
}

bool grade_is_pass(const struct grade *grade)
{
    return grade->problem == NULL && grade->count > 0 && grade->failed == 0;
}

bool tested_blank(const struct tested *test)
{
    return strstr(test->message, "reached the blank") != NULL;
}

const struct tested *grade_first_failure(const struct grade *grade)
{
    for (size_t i = 0; i < grade->count; i++)
        if (!grade->tests[i].passed
            && !tested_blank(&grade->tests[i]))
            return &grade->tests[i];
    return NULL;
}

unsigned long long seed_new(void)
{
    unsigned long long seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (unsigned long long)time(NULL) ^ (unsigned long long)getpid();
    return seed;
}
