#ifndef THREAD_COUNT_H
#define THREAD_COUNT_H

/* From now on, for every kernel that this thread calls. At least 1. */
void thread_count_use(int threads);
/* Of the processor, as far as this process may use it; 1 without OpenMP. */
int thread_count_available(void);

#endif
