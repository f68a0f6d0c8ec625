/* The re-solve tool from end to end: every wrong path of every chapter as an
   attempt. Its grade fails, and the first owner in the log is whom the path
   names. Two processes share the work, each with a place of its own. With
   ENDS_SHARE=N in the environment one path in N is tried, from a first one
   that follows from DRAW, or from the clock. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "ends.h"
#include "process.h"

enum { WORKERS = 2 };

struct shared {
    atomic_size_t next;     /* the first path that nobody has taken */
    size_t step;            /* from there to the one after it */
    atomic_int graded;
    char failures[1 << 16];     /* a worker's half each */
};

/* The stages' chapters from 1 to the path's, tangled into a directory. */
static void tangle_into(const char *directory, const char *wrong, int chapter)
{
    struct list argv = { 0 };
    list_add_words(&argv, "build/bin/tangle");
    if (wrong != NULL) {
        list_add_words(&argv, "--wrong");
        list_add(&argv, text_format("%s", wrong));
    }
    list_add_words(&argv, "--out");
    list_add(&argv, text_format("%s", directory));
    for (size_t i = 0; i < stages.chapters.count; i++)
        if (chapter_number(stages.chapters.items[i]) <= chapter)
            list_add(&argv, text_format("%s", stages.chapters.items[i]));
    ck_assert(directory_make(directory));
    ck_assert_msg(process_run(&argv, below("tangled")), "tangle: %s", wrong);
}

static const struct stage *stage_of(const char *slug)
{
    for (size_t i = 0; i < stages.count; i++)
        if (stages.items[i].chapter == atoi(slug))
            return &stages.items[i];
    return NULL;
}

static struct list wrong_paths(void)
{
    struct list argv = { 0 }, paths = { 0 };
    list_add_words(&argv, "build/bin/tangle --list-wrong");
    for (size_t i = 0; i < stages.chapters.count; i++)
        list_add(&argv, text_format("%s", stages.chapters.items[i]));
    ck_assert(process_run(&argv, below("paths")));
    char *text = read_text(below("paths"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (stage_of(line) != NULL)
            list_add(&paths, text_format("%s", line));
    free(text);
    return paths;
}

/* An attempt at the path's stage that is right as yet. */
static void prepare(const struct stage *stage)
{
    if (access(below("book-%s", stage->key), F_OK) == 0)
        return;
    tangle_into(below("book-%s", stage->key), NULL, stage->chapter);
    ck_assert_int_eq(resolve("blank", stage->key, NULL), 0);
    paste_files(stage);
}

/* Puts the path's files into the attempt. Returns which differ. */
static struct list exchange(const struct stage *stage, const char *wrong)
{
    struct list files = files_in(wrong, ".c"), changed = { 0 };
    for (size_t i = 0; i < files.count; i++) {
        char *text = read_text(below("wrong/%s", files.items[i]));
        char *right = read_text(below("book-%s/%s", stage->key,
                                      files.items[i]));
        if (strcmp(text, right) != 0) {
            write_into(stage->key, files.items[i], text);
            list_add(&changed, text_format("%s", files.items[i]));
        }
        free(text);
        free(right);
    }
    list_free(&files);
    return changed;
}

static void put_back(const struct stage *stage, const struct list *changed)
{
    for (size_t i = 0; i < changed->count; i++) {
        char *right = read_text(below("book-%s/%s", stage->key,
                                      changed->items[i]));
        write_into(stage->key, changed->items[i], right);
        free(right);
    }
}

/* "" when all is well, or what is not. */
static char *try_path(const char *slug)
{
    const struct stage *stage = stage_of(slug);
    prepare(stage);
    tangle_into(below("wrong"), slug, stage->chapter);
    struct list changed = exchange(stage, below("wrong"));
    int status = grade_on_known_data(stage->key);
    char *owner = read_text(below("wrong/.owner"));
    owner[strcspn(owner, "\n")] = '\0';
    cJSON *last = log_last();
    const cJSON *owners = cJSON_GetObjectItem(last, "owners");
    const char *first = cJSON_GetStringValue(cJSON_GetArrayItem(owners, 0));
    bool well = changed.count > 0 && status == 1
        && strcmp(text_in(last, "event"), "grade") == 0
        && number_in(last, "failed") > 0 && first != NULL
        && strcmp(first, owner) == 0;
    char *said_so = well ? text_format("%s", "")
        : text_format("%s: status %d, first owner \"%s\", not \"%s\"%s%s\n",
                      slug, status, first ? first : "", owner,
                      text_in(last, "problem"),
                      changed.count > 0 ? "" : ", nothing changed");
    put_back(stage, &changed);
    list_free(&changed);
    cJSON_Delete(last);
    free(owner);
    return said_so;
}

/* Takes paths until there are none; its failures go to its half. */
static void work(struct shared *shared, int worker)
{
    const size_t room = sizeof shared->failures / WORKERS;
    char *failures = shared->failures + (size_t)worker * room;
    place_make();
    struct list paths = wrong_paths();
    for (size_t i;
         (i = atomic_fetch_add(&shared->next, shared->step)) < paths.count; ) {
        char *failure = try_path(paths.items[i]);
        if (getenv("ENDS_TIMES") != NULL)
            fprintf(stderr, "%s: %.1f s\n", paths.items[i], took);
        size_t used = strlen(failures);
        snprintf(failures + used, room - used, "%s", failure);
        atomic_fetch_add(&shared->graded, 1);
        free(failure);
    }
    list_free(&paths);
    place_remove();
}

START_TEST(every_wrong_path_is_routed_to_its_owner)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *share = getenv("ENDS_SHARE"), *drawn = getenv("DRAW");
    int status, broken = 0;
    ck_assert(shared != MAP_FAILED);
    shared->step = share != NULL && atoi(share) > 1 ? (size_t)atoi(share) : 1;
    shared->next = (drawn != NULL ? (size_t)strtoul(drawn, NULL, 10)
                                  : (size_t)time(NULL)) % shared->step;
    for (int worker = 0; worker < WORKERS; worker++) {
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            work(shared, worker);
            _exit(0);
        }
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        wait(&status);
        broken += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    ck_assert_msg(shared->failures[0] == '\0', "%s", shared->failures);
    const char *others = shared->failures + sizeof shared->failures / WORKERS;
    ck_assert_msg(*others == '\0', "%s", others);
    if (broken > 0)
        exit(1);        /* the worker has said why */
    ck_assert_uint_gt((size_t)shared->graded * shared->step, 400);
}
END_TEST

static const struct test tests[] = {
    TEST(every_wrong_path_is_routed_to_its_owner, 0, "log a grade"),
};
SUITE("re-solving, wrong paths as attempts", tests);
