#ifndef GRADER_H
#define GRADER_H

#include "clock.h"
#include "grade.h"

struct grader {
    pid_t child;            /* 0: nothing is being graded */
    int end;                /* can be read when the child has ended; or -1 */
    int result;             /* a file in memory, where it leaves the grade */
    char *folder;           /* of the attempt, below attempts/ */
    struct moment asked;
};

/* Begins to grade an attempt. False after a complaint. */
bool grader_start(struct grader *grader, const struct workshop *workshop,
                  const struct stages *stages, const struct stage *stage,
                  const char *folder);
/* Waits, and takes the grade. False when the tool failed. The folder stays
   until the next start or stop. */
bool grader_finish(struct grader *grader, struct grade *grade);
/* Kills it, with everything that it started. */
void grader_stop(struct grader *grader);

#endif
