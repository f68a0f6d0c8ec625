#ifndef PROCESS_H
#define PROCESS_H

#include <sys/types.h>
#include "workshop.h"

/* Starts a program found on the PATH; stdout and stderr go to the file.
   -1 after a complaint. */
pid_t process_start(const struct list *argv, const char *output);
/* The exit status, 128 + n after signal n, or -1. */
int process_wait(pid_t pid);
/* Both; frees the arguments. False, without a word, unless it is 0. */
bool process_run(struct list *argv, const char *output);

#endif
