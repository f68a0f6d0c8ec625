#ifndef UTF8_H
#define UTF8_H

#include <stddef.h>

/* What these bytes begin with. n > 0: a character of n bytes. -n: n bytes
   that begin no character, whatever comes. 0: all of them begin a character
   that has not ended; also without any bytes. */
int utf8_next(const unsigned char *bytes, size_t length);

#endif
