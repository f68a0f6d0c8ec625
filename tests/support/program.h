/* Runs tinygpt, as a reader would from the shell. */
#ifndef PROGRAM_H
#define PROGRAM_H

/* Fails the running test unless the program ends with the expected status.
   Returns what it wrote to stdout and stderr, up to 8 KB of it, in a buffer
   that the next call overwrites. */
const char *run_program(const char *arguments, int expected);

#endif
