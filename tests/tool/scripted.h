/* The workshop of a tool's suite: what is said is collected, the place is a
   new directory, and the clock is a script. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include <stddef.h>
#include "clock.h"
#include "score.h"
#include "workshop.h"

extern char said[65536];        /* what was said through complain */
extern int complaints;          /* how often */
void say_nothing(void);

extern char place[64], attempts[128], log_path[160], torn_path[160];
extern struct workshop workshop;    /* below place; build is not made */
void new_place(void);

extern struct moment now;
struct moment scripted(void);
void begin_clock(void);
void on(const char *stamp);     /* sets stamp and date, and no clock */
void wait_for(double seconds);

/* Closes the score and opens it again at the scripted moment. */
struct score *reopen(struct score *score);
struct score *new_score(void);  /* in a new place, at the first moment */

size_t slurp(const char *path, char *bytes, size_t room);   /* -1: no file */
void spit(const char *path, const char *bytes, size_t length);

#endif
