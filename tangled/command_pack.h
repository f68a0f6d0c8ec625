#ifndef COMMAND_PACK_H
#define COMMAND_PACK_H

#include "command.h"

extern const struct command command_pack;

#endif
