#ifndef COMMAND_LEDGER_H
#define COMMAND_LEDGER_H

#include "command.h"

extern const struct command command_ledger;

#endif
