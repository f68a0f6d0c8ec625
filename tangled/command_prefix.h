#ifndef COMMAND_PREFIX_H
#define COMMAND_PREFIX_H

#include "command.h"

extern const struct command command_prefix;

#endif
