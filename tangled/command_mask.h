#ifndef COMMAND_MASK_H
#define COMMAND_MASK_H

#include "command.h"

extern const struct command command_mask;

#endif
