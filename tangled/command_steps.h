#ifndef COMMAND_STEPS_H
#define COMMAND_STEPS_H

#include "command.h"

extern const struct command command_steps;

#endif
