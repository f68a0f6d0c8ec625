#ifndef COMMAND_CACHE_H
#define COMMAND_CACHE_H

#include "command.h"

extern const struct command command_cache;

#endif
