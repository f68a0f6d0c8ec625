#define _GNU_SOURCE             /* memfd_create, pipe2 */
#include "grader.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "fence.h"
#include "process.h"

static void put_text(FILE *file, const char *text)
{
    if (text == NULL)
        fprintf(file, "-1 ");
    else
        fprintf(file, "%zu %s", strlen(text), text);
}

static void put_list(FILE *file, const struct list *list)
{
    fprintf(file, "%zu ", list->count);
    for (size_t i = 0; i < list->count; i++)
        put_text(file, list->items[i]);
}

static void put_grade(FILE *file, const struct grade *grade)
{
    fprintf(file, "%zu %d %d %llu %zu ", grade->count, grade->passed,
            grade->failed, grade->seed, grade->printed);
    put_text(file, grade->problem);
    put_text(file, grade->said);
    put_list(file, &grade->reached);
    put_list(file, &grade->unwritten);
    for (size_t i = 0; i < grade->count; i++) {
        const struct tested *test = &grade->tests[i];
        fprintf(file, "%d %d ", test->tier, test->passed);
        put_text(file, test->name);
        put_text(file, test->owner);
        put_text(file, test->place);
        put_text(file, test->message);
    }
}

static unsigned long long get_number(FILE *file)
{
    char digits[24] = "";
    if (fscanf(file, "%23[-0-9]", digits) != 1 || getc(file) != ' ')
        return 0;
    return digits[0] == '-' ? ~0ull : strtoull(digits, NULL, 10);
}

static char *get_text(FILE *file)
{
    unsigned long long length = get_number(file);
    if (length == ~0ull)
        return NULL;
    char *text = allocate((size_t)length + 1);
    text[fread(text, 1, (size_t)length, file)] = '\0';
    return text;
}

static void get_list(FILE *file, struct list *list)
{
    for (size_t left = (size_t)get_number(file); left > 0; left--)
        list_add(list, get_text(file));
}

static void get_grade(FILE *file, struct grade *grade)
{
    *grade = (struct grade){ .count = (size_t)get_number(file) };
    grade->passed = (int)get_number(file);
    grade->failed = (int)get_number(file);
    grade->seed = get_number(file);
    grade->printed = (size_t)get_number(file);
    grade->problem = get_text(file);
    grade->said = get_text(file);
    get_list(file, &grade->reached);
    get_list(file, &grade->unwritten);
    grade->tests = allocate(grade->count * sizeof *grade->tests);
    for (size_t i = 0; i < grade->count; i++) {
        struct tested *test = &grade->tests[i];
        test->tier = (int)get_number(file);
        test->passed = get_number(file) != 0;
        test->name = get_text(file);
        test->owner = get_text(file);
        test->place = get_text(file);
        test->message = get_text(file);
    }
}

static void be_child(const struct grader *grader,
                     const struct workshop *workshop,
                     const struct stages *stages, const struct stage *stage)
{
    struct grade grade;
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char *source = text_format("%s/%s", workshop->attempts, grader->folder);
    FILE *file = fdopen(grader->result, "w");
    bool done = grade_run(&grade, workshop, stages, stage, source,
                          strrchr(grader->folder, '/') + 1, seed_new());
    if (done && file != NULL)
        put_grade(file, &grade);
    _exit(done && file != NULL && fflush(file) == 0 ? 0 : 1);
}

bool grader_start(struct grader *grader, const struct workshop *workshop,
                  const struct stages *stages, const struct stage *stage,
                  const char *folder)
{
    int ends[2] = { -1, -1 };
    grader_stop(grader);
    grader->asked = moment_now();
    grader->folder = text_format("%s", folder);
    grader->result = memfd_create("grade", MFD_CLOEXEC);
    if (grader->result < 0 || pipe2(ends, O_CLOEXEC) != 0)
        return complain("no grading: %s", strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(stdout);
    grader->child = fork();
    if (grader->child == 0)
        be_child(grader, workshop, stages, stage);
    close(ends[1]);
    grader->end = ends[0];
    if (grader->child > 0)
        return true;
    complain("fork: %s", strerror(errno));
    grader_stop(grader);
    return false;
}

static void close_files(struct grader *grader)
{
    if (grader->end >= 0)
        close(grader->end);
    if (grader->result >= 0)
        close(grader->result);
    grader->end = grader->result = -1;
    grader->child = 0;
}

bool grader_finish(struct grader *grader, struct grade *grade)
{
    bool done = process_wait(grader->child) == 0;
    FILE *file = done ? fdopen(dup(grader->result), "r") : NULL;
    *grade = (struct grade){ 0 };
    if (file != NULL) {
        rewind(file);
        get_grade(file, grade);
        fclose(file);
    }
    close_files(grader);
    return file != NULL;
}

void grader_stop(struct grader *grader)
{
    if (grader->child > 0)
        fence_kill(grader->child);
    close_files(grader);
    free(grader->folder);
    grader->folder = NULL;
}
