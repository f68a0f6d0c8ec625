#ifndef COMMAND_SERVE_H
#define COMMAND_SERVE_H

#include "command.h"

extern const struct command command_serve;

#endif
