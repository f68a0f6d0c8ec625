#ifndef THREAD_WAIT_H
#define THREAD_WAIT_H

/* For the beginning of main: has threads wait for a moment and then sleep,
   unless the environment says how they wait. The process is replaced by the
   same program with the same arguments; returns when that is not needed or
   not possible. */
void thread_wait_for_a_moment(char **argv);

#endif
