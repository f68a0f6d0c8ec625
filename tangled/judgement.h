#ifndef JUDGEMENT_H
#define JUDGEMENT_H

#include <stdbool.h>
#include <stddef.h>

enum judgement {
    HOLDS,          /* predicted, measured, and equal */
    DIFFERS,        /* not equal, or found and not predicted */
    UNMEASURED,     /* predicted, and nobody could look */
    DIAGNOSTIC,     /* a time */
    OBSERVED,       /* measured; no config predicts it */
    DERIVED         /* predicted; no instrument here counts it */
};
enum { JUDGEMENTS = 6 };

const char *judgement_name(enum judgement judgement);    /* "holds" */
bool judgement_fails(enum judgement judgement);

struct quantity {
    bool known, real;       /* real: it is the number, not the count */
    size_t count;
    double number;
};

struct quantity quantity_none(void);
struct quantity quantity_count(size_t count);
struct quantity quantity_real(double number);   /* unknown unless finite */

enum number_kind { NUMBER_EXACT, NUMBER_TIME, NUMBER_FREE, NUMBER_PAPER };

enum judgement judge(enum number_kind kind, const struct quantity *predicted,
                     const struct quantity *measured);

#endif
