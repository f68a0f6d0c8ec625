#ifndef COMMAND_BATCHING_H
#define COMMAND_BATCHING_H

#include "command.h"

extern const struct command command_batching;

#endif
