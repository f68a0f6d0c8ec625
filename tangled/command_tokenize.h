#ifndef COMMAND_TOKENIZE_H
#define COMMAND_TOKENIZE_H

#include "command.h"

extern const struct command command_tokenize;

#endif
