#ifndef SCREEN_H
#define SCREEN_H

#include <termios.h>
#include "workshop.h"

struct screen {
    bool entered;
    bool keys;              /* standard input is a terminal */
    bool colour, utf8;
    struct termios before;
    int said;               /* a file in memory: what stderr was told */
    int stderr_before;
    char *shown;            /* the last text, to be drawn only once */
};

/* Whether standard output is a terminal that can place its cursor. */
bool screen_possible(void);
/* Whether this process is in the foreground of its terminal. */
bool screen_is_ours(void);
void screen_enter(struct screen *screen);
/* Puts everything back. Complaints that were kept are printed. */
void screen_leave(struct screen *screen);
void screen_size(int *columns, int *rows);
/* Draws the lines of a text, by one write. False: the terminal is gone. */
bool screen_draw(struct screen *screen, const char *text);
/* The first line of what was complained of, or NULL. To be freed. */
char *screen_complaint(const struct screen *screen);
void screen_forget(struct screen *screen);      /* the complaints so far */

#endif
