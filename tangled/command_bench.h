#ifndef COMMAND_BENCH_H
#define COMMAND_BENCH_H

#include "command.h"

extern const struct command command_bench;

#endif
