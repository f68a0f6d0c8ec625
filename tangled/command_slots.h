#ifndef COMMAND_SLOTS_H
#define COMMAND_SLOTS_H

#include "command.h"

extern const struct command command_slots;

#endif
