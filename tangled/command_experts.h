#ifndef COMMAND_EXPERTS_H
#define COMMAND_EXPERTS_H

#include "command.h"

extern const struct command command_experts;

#endif
