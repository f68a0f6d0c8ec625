#define _GNU_SOURCE
#include "fence.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OPEN_FILES = 64 };       /* the tool opens a handful */

static void limit(int what, rlim_t most)
{
    struct rlimit now;
    if (getrlimit((__rlimit_resource_t)what, &now) != 0)
        return;
    if (now.rlim_max < most)
        most = now.rlim_max;
    now.rlim_cur = now.rlim_max = most;
    setrlimit((__rlimit_resource_t)what, &now);
}

static void become(const struct list *argv, int out, int seconds)
{
    int in = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    limit(RLIMIT_AS, (rlim_t)2 << 30);
    limit(RLIMIT_FSIZE, (rlim_t)256 << 20);
    limit(RLIMIT_CPU, (rlim_t)seconds + 5);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NPROC, 4096);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    fcntl(1, F_SETFL, 0);
    for (int file = 3; file < OPEN_FILES; file++)
        close(file);
    execvp(argv->items[0], argv->items);
    _exit(127);
}

static void drain(int from, struct fenced *result)
{
    char part[65536];
    for (ssize_t got; (got = read(from, part, sizeof part)) > 0; ) {
        size_t room = result->printed < SAID_MAX ? SAID_MAX - result->printed
                                                 : 0;
        size_t kept = (size_t)got < room ? (size_t)got : room;
        memcpy(result->said + SAID_MAX - room, part, kept);
        result->printed += (size_t)got;
    }
}

static void kill_children(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/children",
             (long)getpid());
    FILE *file = fopen(path, "r");
    long child;
    while (file != NULL && fscanf(file, "%ld", &child) == 1)
        kill((pid_t)child, SIGKILL);
    if (file != NULL)
        fclose(file);
}

void fence_kill(pid_t group)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    kill(-group, SIGKILL);
    for (int round = 0; round < 5000; round++) {
        pid_t gone = waitpid(-1, NULL, WNOHANG);
        if (gone < 0)
            return;             /* no children */
        if (gone == 0) {
            kill_children();
            nanosleep(&moment, NULL);
        }
    }
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void watch_child(pid_t child, int from, int seconds,
                        struct fenced *result)
{
    const double end = seconds_now() + seconds;
    int status = 0;
    pid_t gone;
    while ((gone = waitpid(child, &status, WNOHANG)) == 0) {
        struct pollfd pipe = { .fd = from, .events = POLLIN };
        if (poll(&pipe, 1, 5) > 0 && (pipe.revents & POLLIN) == 0)
            poll(NULL, 0, 5);   /* closed early: do not spin */
        drain(from, result);
        if (seconds_now() > end && !result->timed_out) {
            result->timed_out = true;
            kill(child, SIGKILL);
        }
    }
    fence_kill(child);
    drain(from, result);
    result->status = gone < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status)
                                   : 128 + WTERMSIG(status);
}

bool fence_run(const struct list *argv, int seconds, struct fenced *result)
{
    int ends[2];
    memset(result, 0, sizeof *result);
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return complain("pipe: %s", strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t child = fork();
    if (child == 0)
        become(argv, ends[1], seconds);
    close(ends[1]);
    if (child > 0)
        watch_child(child, ends[0], seconds, result);
    close(ends[0]);
    return child > 0 || complain("fork: %s", strerror(errno));
}
