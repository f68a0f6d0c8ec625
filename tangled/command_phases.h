#ifndef COMMAND_PHASES_H
#define COMMAND_PHASES_H

#include "command.h"

extern const struct command command_phases;

#endif
