#include "process.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

pid_t process_start(const struct list *argv, const char *output)
{
    posix_spawn_file_actions_t actions;
    pid_t child = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, output,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    int error = posix_spawnp(&child, argv->items[0], &actions, NULL,
                             argv->items, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        complain("%s: %s", argv->items[0], strerror(error));
        return -1;
    }
    return child;
}

int process_wait(pid_t pid)
{
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    if (pid <= 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool process_run(struct list *argv, const char *output)
{
    int status = process_wait(process_start(argv, output));
    list_free(argv);
    return status == 0;
}
