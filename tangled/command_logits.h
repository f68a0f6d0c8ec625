#ifndef COMMAND_LOGITS_H
#define COMMAND_LOGITS_H

#include "command.h"

extern const struct command command_logits;

#endif
