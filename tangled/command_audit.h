#ifndef COMMAND_AUDIT_H
#define COMMAND_AUDIT_H

#include "command.h"

extern const struct command command_audit;

#endif
