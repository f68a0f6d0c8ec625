#ifndef COMMAND_TRAIN_H
#define COMMAND_TRAIN_H

#include "command.h"

extern const struct command command_train;

#endif
