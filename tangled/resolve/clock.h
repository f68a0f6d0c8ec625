#ifndef CLOCK_H
#define CLOCK_H

#include <stdbool.h>

struct moment {
    char stamp[40];     /* local wall time: 2026-11-29T20:31:05+01:00 */
    char date[11];      /* its date where it happened: 2026-11-29 */
    double wall;        /* seconds since the epoch */
    double awake;       /* monotonic: stands still while the machine sleeps */
    double since_boot;  /* goes on while the machine sleeps */
    char boot[40];      /* names the boot that the last two count from;
                           "" when the system has no name for it */
};

struct moment moment_now(void);

struct span {
    double awake;       /* seconds that count, never negative */
    double slept;       /* seconds that the machine was asleep */
    bool uncertain;     /* a reboot between: awake is wall time */
    bool backwards;     /* "to" is the earlier of the two */
};
struct span moment_span(const struct moment *from, const struct moment *to);

#endif
