#ifndef WATCH_H
#define WATCH_H

#include "stages.h"

/* make watch-N: grades the latest attempt at once and on every save, until
   somebody quits. */
bool command_watch(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage);

#endif
