#ifndef COMMAND_KERNELS_H
#define COMMAND_KERNELS_H

#include "command.h"

extern const struct command command_kernels;

#endif
