#ifndef FENCE_H
#define FENCE_H

#include "workshop.h"

enum { SAID_MAX = 4096 };

struct fenced {
    int status;                 /* exit status, or 128 + signal */
    bool timed_out;
    size_t printed;             /* bytes on stdout and stderr */
    char said[SAID_MAX + 1];    /* the first of them */
};

/* Runs a program in a session of its own, without a terminal, with limits on
   memory (2 GiB), file sizes and processor time, for at most that long.
   Nothing that it started is left when this returns. False after a complaint
   when it could not be started. */
bool fence_run(const struct list *argv, int seconds, struct fenced *result);
/* Kills a group and all children of this process, and waits for them. */
void fence_kill(pid_t group);

#endif
