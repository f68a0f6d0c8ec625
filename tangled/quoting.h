#ifndef QUOTING_H
#define QUOTING_H

#include <stdio.h>

enum { SHOWN_MAX = 256 };    /* bytes of a text that people look at */

/* For a terminal, cut to SHOWN_MAX: no control characters. */
void put_plain(FILE *out, const char *text);
/* For HTML, in an element or between double quotes; cut to SHOWN_MAX. */
void put_html(FILE *out, const char *text);
/* A JSON string with its quotes, whole. */
void put_json(FILE *out, const char *text);
#endif
