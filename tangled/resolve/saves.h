#ifndef SAVES_H
#define SAVES_H

#include "workshop.h"

/* A file that can be read when something happens in the folder; -1 where the
   system has none. */
int saves_open(const char *folder);
void saves_read(int file);      /* takes what is there, and drops it */
/* Changes with every save of a .c or .h file in the folder. */
unsigned long long saves_print(const char *folder);

#endif
