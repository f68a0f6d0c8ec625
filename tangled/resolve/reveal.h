#ifndef REVEAL_H
#define REVEAL_H

#include "stages.h"

/* make reveal-N: ends the latest attempt and shows it beside the book.
   wrong: the first wrong decision, or NULL to ask for it. */
bool command_reveal(const struct workshop *workshop,
                    const struct stages *stages, const struct stage *stage,
                    const char *wrong);

#endif
