#ifndef CONTRACT_H
#define CONTRACT_H

#include "workshop.h"

/* The paragraph before the chunk's heading in a marked stream, on one line
   and without Markdown's marks. To be freed; "" when there is none. */
char *contract_of(const char *stream, const char *chunk);

/* Prints text in lines of at most 76 columns: the first behind the prefix,
   the others behind as many blanks. */
void print_wrapped(const char *prefix, const char *text);

#endif
