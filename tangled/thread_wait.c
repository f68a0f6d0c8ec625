#include "thread_wait.h"
#include <stdlib.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

void thread_wait_for_a_moment(char **argv)
{
    char path[PATH_ROOM];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL)
        return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (length <= 0 || length == sizeof path
        || setenv("GOMP_SPINCOUNT", "5000", 0) != 0)
        return;
    path[length] = '\0';
    (void)execv(path, argv);
}
