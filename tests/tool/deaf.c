/* Loaded before a program, it takes the kernel's news of files away. */
#include <errno.h>

int inotify_init1(int flags);
int inotify_init1(int flags)
{
    (void)flags;
    errno = EMFILE;
    return -1;
}
