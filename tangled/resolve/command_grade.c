#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "grade.h"
#include "verdict.h"

static bool read_seed(const char *text, unsigned long long *seed)
{
    char *end = NULL;
    errno = 0;
    *seed = text != NULL ? strtoull(text, &end, 10) : seed_new();
    if (text == NULL || (errno == 0 && end != text && *end == '\0'
                         && text[0] != '-'))
        return true;
    return complain("SEED: expected a number of at most 64 bits, got %s",
                    text);
}

static const struct attempt *attempt_of(const struct score *score,
                                        const char *folder)
{
    const struct attempt *items;
    for (size_t i = score_attempts(score, &items); i-- > 0; )
        if (strcmp(items[i].folder, folder) == 0)
            return &items[i];
    return NULL;
}

bool log_grade(const struct workshop *workshop, const struct stage *stage,
               const char *folder, const struct grade *grade,
               const struct moment *asked)
{
    struct score *score;
    struct list owners = { 0 };
    if (!score_open(&score, workshop))
        return false;
    for (size_t i = 0; i < grade->count; i++)
        if (!grade->tests[i].passed
            && !list_has(&owners, grade->tests[i].owner))
            list_add(&owners, text_format("%s", grade->tests[i].owner));
    struct verdict verdict = {
        .passed = grade->passed, .failed = grade->failed,
        .seed = grade->seed, .problem = grade->problem,
        .owners = (const char *const *)owners.items,
        .owner_count = owners.count, .asked = asked
    };
    const struct attempt *attempt = attempt_of(score, folder);
    bool done = attempt != NULL && score_grade(score, attempt, &verdict);
    if (done && stage != NULL)
        verdict_print(grade, stage, attempt_of(score, folder));
    score_close(&score);
    list_free(&owners);
    return done;
}

static bool latest_folder(const struct workshop *workshop,
                          const struct stage *stage, char **folder)
{
    struct score *score;
    if (!score_open(&score, workshop))
        return false;
    const struct attempt *latest = score_latest(score, stage->key);
    bool found = latest != NULL
        || complain("no attempt at stage %s yet: make blank-%s starts one",
                    stage->key, stage->key);
    if (found)
        *folder = text_format("%s", latest->folder);
    score_close(&score);
    return found;
}

static bool grade_other(const struct workshop *workshop,
                        const struct stages *stages,
                        const struct stage *stage, const char *source,
                        unsigned long long seed)
{
    struct grade grade;
    char *work = text_format("%s/resolve/%s/tries/src", workshop->build,
                             stage->key);
    struct list old = files_in(work, ".o");
    for (size_t i = 0; i < old.count; i++) {
        char *path = text_format("%s/%s", work, old.items[i]);
        remove(path);
        free(path);
    }
    bool done = grade_run(&grade, workshop, stages, stage, source, "src",
                          seed);
    if (done)
        verdict_print(&grade, stage, NULL);
    done = done && grade_is_pass(&grade);
    grade_free(&grade);
    list_free(&old);
    free(work);
    return done;
}

bool command_grade(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage,
                   const char *source, const char *seed_text)
{
    struct grade grade;
    unsigned long long seed;
    char *folder = NULL;
    if (!read_seed(seed_text, &seed))
        return false;
    if (source != NULL)
        return grade_other(workshop, stages, stage, source, seed);
    if (!latest_folder(workshop, stage, &folder))
        return false;
    char *path = text_format("%s/%s", workshop->attempts, folder);
    struct moment asked = moment_now();
    bool done = grade_run(&grade, workshop, stages, stage, path,
                          strrchr(folder, '/') + 1, seed)
        && log_grade(workshop, stage, folder, &grade, &asked);
    bool passed = done && grade_is_pass(&grade);
    grade_free(&grade);
    free(path);
    free(folder);
    return passed;
}
