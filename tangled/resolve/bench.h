#ifndef BENCH_H
#define BENCH_H

#include "pieces.h"
#include "stages.h"

/* A function that an empty editor has to write. */
struct task {
    char *file, *name;
};

struct bench {
    char *directory;        /* build/resolve/5 */
    char *prefix;           /* build/5: what make built for the chapter */
    char *stream;           /* noweb's stream of the chapters, marked */
    struct list sources;    /* all files that the chapters give */
    struct list files;      /* the C files that hold a blank */
    struct list own;        /* those that begin in this chapter */
    struct task *tasks;
    size_t task_count;
    int lock;               /* one grader of a stage at a time */
};

/* Waits for the lock, tangles, reads. False after a complaint. */
bool bench_open(struct bench *bench, const struct workshop *workshop,
                const struct stages *stages, const struct stage *stage);
void bench_close(struct bench *bench);
/* Makes the object code to link over, unless it is up to date. */
bool bench_link(struct bench *bench);
/* The marked text of a file of the book. To be freed. */
char *bench_text(const struct bench *bench, const char *file);
/* Whether one of the stage's blanks lies in the function. */
bool holds_blank(const char *text, const struct function *function,
                 const struct stage *stage);
/* Tangles the chapters of a stage, with an option before each chunk. */
bool tangle(const struct workshop *workshop, const struct stages *stages,
            int chapter, const char *option, const struct list *chunks,
            const char *directory);

#endif
