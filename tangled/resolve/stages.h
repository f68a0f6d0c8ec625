#ifndef STAGES_H
#define STAGES_H

#include "tangle/front_matter.h"
#include "workshop.h"

struct stage {
    char *key;              /* "5", or "10.2" */
    char *name;             /* "05-mask": its folder below attempts/ */
    char *title;
    int chapter;
    int minutes;            /* the budget */
    char *stop;             /* the stop condition */
    struct list blanks;     /* chunk names */
    struct list given;      /* files that an empty editor need not write */
};

struct stages {
    struct stage *items;    /* in reading order */
    size_t count;
    struct list chapters;   /* paths of all chapter files, in that order */
    struct front_matter *fronts;    /* one for each of them */
};

/* False after a complaint. Free with stages_free. */
bool stages_read(struct stages *stages, const struct workshop *workshop);
void stages_free(struct stages *stages);
/* NULL when no stage has that key. */
const struct stage *stages_find(const struct stages *stages,
                                const char *key);
/* The number of a chapter file: 3 of "book/03b-backward.nw". */
int chapter_number(const char *path);

#endif
