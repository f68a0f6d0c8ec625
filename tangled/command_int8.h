#ifndef COMMAND_INT8_H
#define COMMAND_INT8_H

#include "command.h"

extern const struct command command_int8;

#endif
