#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>
#include "score.h"
#include "stages.h"

struct summary {
    const struct stage *stage;
    int attempts;                   /* not counting abandoned ones */
    const struct attempt *best;     /* the fastest clean one, or NULL */
    const struct attempt *last;     /* the last one with a result, or NULL */
    const struct attempt *open;     /* the one that runs, or NULL */
    struct standing standing;
};

struct summary summary_of(const struct score *score,
                          const struct stage *stage);

struct line {
    char tries[12];
    char best[64];      /* "12:31/45": a clean time, and the budget */
    char last[64];      /* "clean* Nov 29" */
    char state[12];
    char due[32];       /* "now", "Dec 2", "" */
};

struct line line_of(const struct summary *summary, const char *today);

struct decision {
    const struct attempt *attempt;  /* its wrong and its first_owner */
    size_t same;        /* how many decisions have this owner */
};

/* The owner with most decisions first, then the newest decision; to be
   freed. */
struct decision *decisions_of(const struct score *score, size_t *count);

void text_time(char text[32], double seconds);  /* 12:31, or 2h05 */
void text_date(char text[32], const char *date, const char *today);
const char *text_result(const struct attempt *attempt);
/* "", or "*" for a pause, "~" for a reboot, "*~" for both */
const char *text_marks(const struct attempt *attempt);
void put_plain(FILE *out, const char *text);

#endif
