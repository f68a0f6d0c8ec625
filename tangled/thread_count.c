#include "thread_count.h"
#ifdef _OPENMP
#include <omp.h>

void thread_count_use(int threads) { omp_set_num_threads(threads); }
int thread_count_available(void) { return omp_get_num_procs(); }
#else
void thread_count_use(int threads) { (void)threads; }
int thread_count_available(void) { return 1; }
#endif
