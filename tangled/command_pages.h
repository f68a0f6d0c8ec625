#ifndef COMMAND_PAGES_H
#define COMMAND_PAGES_H

#include "command.h"

extern const struct command command_pages;

#endif
