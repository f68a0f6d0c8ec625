#ifndef FRAME_H
#define FRAME_H

#include "grade.h"
#include "score.h"

struct frame {
    int columns, rows;      /* of the screen */
    bool colour, utf8;      /* what it can show */
    bool keys;              /* somebody can press one */
    const struct stage *stage;
    const struct attempt *attempt;      /* its times are those of now */
    const char *path;           /* of its folder, as a compiler says it */
    const struct grade *grade;  /* the last one, or NULL */
    const char *graded;         /* when: "20:31:05" */
    double grading;             /* seconds since one began; or negative */
    const char *note;           /* in place of the keys, or NULL */
};

/* At most that many lines, of at most that many columns each, ended by '\n'.
   Colours are the only escape codes. To be freed. */
char *frame_text(const struct frame *frame);

#endif
