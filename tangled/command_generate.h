#ifndef COMMAND_GENERATE_H
#define COMMAND_GENERATE_H

#include "command.h"

extern const struct command command_generate;

#endif
