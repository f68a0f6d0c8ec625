#ifndef COMMAND_ROUTE_H
#define COMMAND_ROUTE_H

#include "command.h"

extern const struct command command_route;

#endif
