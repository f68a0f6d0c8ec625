#include "thread_wait.h"
#include <stdlib.h>
#include <unistd.h>

void thread_wait_for_a_moment(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") == NULL && getenv("GOMP_SPINCOUNT") == NULL
        && setenv("GOMP_SPINCOUNT", "5000", 0) == 0)
        (void)execv("/proc/self/exe", argv);
}
