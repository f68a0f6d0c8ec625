#ifndef COMMAND_ROPE_H
#define COMMAND_ROPE_H

#include "command.h"

extern const struct command command_rope;

#endif
