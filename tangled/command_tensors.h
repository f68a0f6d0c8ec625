#ifndef COMMAND_TENSORS_H
#define COMMAND_TENSORS_H

#include "command.h"

extern const struct command command_tensors;

#endif
