#ifndef COMMAND_CONFIG_H
#define COMMAND_CONFIG_H

#include "command.h"

extern const struct command command_config;

#endif
