#ifndef COMMAND_SCHEDULE_H
#define COMMAND_SCHEDULE_H

#include "command.h"

extern const struct command command_schedule;

#endif
