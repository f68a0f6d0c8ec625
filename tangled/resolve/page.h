#ifndef PAGE_H
#define PAGE_H

#include <stdbool.h>
#include "score.h"
#include "stages.h"

/* Writes progress.html into the build directory for a reader whose date is
   today. False after a complaint. */
bool page_write(const struct workshop *workshop, const struct score *score,
                const struct stages *stages, const char *today);

#endif
