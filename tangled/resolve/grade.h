#ifndef GRADE_H
#define GRADE_H

#include "stages.h"

struct tested {
    char *name, *owner, *place, *message;
    int tier;
    bool passed;
};

struct grade {
    char *problem;          /* why there is no verdict, or NULL */
    char *said;             /* the compiler's or the suite's words on it */
    struct tested *tests;  /* in the order of the suites */
    size_t count;
    int passed, failed;
    unsigned long long seed;
    struct list reached;    /* blanks that a test ran into */
    struct list unwritten;  /* functions of the stage that are not there */
    size_t printed;         /* bytes that the attempt wrote to stdout */
};

/* Compiles the C files of a directory, links them over the book, and runs
   the suites of the stage's chapter on data of that seed. `work` names the
   place for object files. False after a complaint when the tool itself
   failed; an attempt that fails is a grade. Free with grade_free. */
bool grade_run(struct grade *grade, const struct workshop *workshop,
               const struct stages *stages, const struct stage *stage,
               const char *source, const char *work,
               unsigned long long seed);
void grade_free(struct grade *grade);
bool grade_is_pass(const struct grade *grade);
/* Whether the test failed because it ran into a blank. */
bool tested_blank(const struct tested *test);
/* The first failed test that did not merely run into a blank, or NULL. */
const struct tested *grade_first_failure(const struct grade *grade);

/* make grade-N. source NULL: the latest attempt, and the log. */
bool command_grade(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage,
                   const char *source, const char *seed);
unsigned long long seed_new(void);      /* from the system's generator */

#endif
