#ifndef UTF8_H
#define UTF8_H

#include <stddef.h>

/* What these bytes begin with. n > 0: a character of n bytes. -n: n bytes
   that begin no character, whatever comes. 0: all of them begin a character
   that has not ended; also without any bytes. */
int utf8_next(const unsigned char *bytes, size_t length);

/* As much of a text as fits into limit bytes without breaking a character:
   the precision of a "%.*s". */
int utf8_cut(const void *bytes, size_t length, int limit);

#endif
