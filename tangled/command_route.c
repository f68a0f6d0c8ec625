#include "command_route.h"
#include <stdio.h>
#include <string.h>
#include "routing.h"

static void list_checks(void)
{
    for (int i = 0; i < CHECK_COUNT; i++)
        printf("%d  %s\n", checks[i].tier, checks[i].name);
}

static int print_route(const struct command *command, const char *name)
{
    const struct route *route = route_find(name);
    if (route == NULL) {
        struct error error;
        error_set(&error, STATUS_INVALID, "no check or owner is named %s;"
                  " tinygpt route lists the checks", name);
        return command_failure(command, &error);
    }
    printf("failure  %s\n", route->failure);
    printf("owner    %s (chapter %d)\n", route->owner, route->chapter);
    printf("repair   %s\n", route->repair);
    return 0;
}

static int run(const struct command *command, int argc, char **argv)
{
    if (argc > 1 && strncmp(argv[1], "--", 2) == 0)
        return command_usage_error(command, "no option %s", argv[1]);
    if (argc > 2)
        return command_usage_error(command, "one name at a time");
    if (argc == 2)
        return print_route(command, argv[1]);
    list_checks();
    return 0;
}

const struct command command_route = {
    "route", "from a failing check to the chunk that owns it",
    "usage: tinygpt route [NAME]\n"
    "\n"
    "NAME is a check of the test block, or a chunk that owns one. Prints\n"
    "the failure, its owner and what to repair there. Without a name:\n"
    "every check, with its tier.\n",
    run
};
