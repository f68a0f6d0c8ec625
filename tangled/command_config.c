#include "command_config.h"
#include <stdio.h>
#include "config.h"
#include "parameters.h"

static int run(const struct command *command, int argc, char **argv)
{
    const char *path = NULL, *value;
    struct gpt_config config;
    struct error error;
    size_t count = 0;
    for (int i = 1; i < argc; i++) {
        if (!command_option(argc, argv, &i, "--check", &value))
            return command_usage_error(command, "no option %s", argv[i]);
        if (command_text(command, "--check", value, &path) != 0)
            return 2;
    }
    if (path == NULL)
        return command_usage_error(command, "--check FILE is needed");
    if (gpt_config_read(&config, path, &error) != STATUS_OK)
        return command_failure(command, &error);
    parameters_formula(&config, &count);
    printf("%s: fine\nhead_dim %d\nparameters %zu (%zu bytes)\n", path,
           gpt_config_head_dim(&config), count, count * sizeof (float));
    return 0;
}

const struct command command_config = {
    "config", "check a config.json",
    "usage: tinygpt config --check FILE\n"
    "\n"
    "Reads a config.json, refuses what no model can be built from, and\n"
    "prints what follows from it: the width of a head and the number of\n"
    "parameters.\n",
    run
};
