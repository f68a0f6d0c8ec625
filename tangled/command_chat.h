#ifndef COMMAND_CHAT_H
#define COMMAND_CHAT_H

#include "command.h"

extern const struct command command_chat;

#endif
