#ifndef CALENDAR_H
#define CALENDAR_H

#include <stdbool.h>
#include <stddef.h>
#include "workshop.h"

/* A date is "2026-11-29", from year 1 to 9999. */
bool calendar_valid(const char *date);

/* The date some days (0 or more) after a valid one. */
void calendar_add(char after[11], const char *date, int days);

/* How many days "to" is after "from"; negative when it is before. */
long calendar_between(const char *from, const char *to);

enum result { RESULT_OPEN, RESULT_CLEAN, RESULT_LATE, RESULT_REVEALED,
              RESULT_ABANDONED };

struct outcome {
    enum result result;
    enum level level;
    bool paused;
    char date[11];      /* of its end */
};

enum state { STATE_NEW, STATE_STARTED, STATE_PASSED, STATE_LEARNED };

struct standing {
    enum state state;
    enum level level;   /* of the next re-solve */
    int rung;           /* 0: no clean pass holds; 1 to 4: its interval */
    char due[11];       /* "": no result yet */
    char moved[11];     /* the last move on the ladder */
    char fell[11];      /* the last miss */
    char empty[11];     /* the first unpaused clean pass from empty */
};

struct standing calendar_standing(const struct outcome *items, size_t count);

#endif
