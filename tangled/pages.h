#ifndef PAGES_H
#define PAGES_H

#include <stddef.h>

/* At least bytes, all zero, at a multiple of 2 MiB, in large pages if the
   system has them; NULL without memory. What is freed is *room, by the
   caller. */
void *pages_new(size_t bytes, void **room);

#endif
