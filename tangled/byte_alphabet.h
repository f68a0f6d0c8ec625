#ifndef BYTE_ALPHABET_H
#define BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

/* Turns text of the alphabet into the bytes that it stands for, at most as
   many as the text has; false when a character is not of the alphabet. */
bool byte_alphabet_read(const unsigned char *text, size_t length,
                        unsigned char *bytes, size_t *count);

#endif
