#ifndef LINE_READER_H
#define LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include "error.h"

enum line_kind {
    LINE_NONE,                   /* not now */
    LINE_GIVEN,
    LINE_TOO_LONG,               /* all of it has been passed over */
    LINE_OVER,                   /* there will be none */
    LINE_FAILED                  /* errno says why; there will be none */
};

/* Borrows the descriptor. Allocates once, for lines of up to `longest` >= 1
   bytes. The caller owns it: line_reader_free, which nulls it. */
struct line_reader;
enum status line_reader_new(struct line_reader **reader, int descriptor,
                            size_t longest, struct error *error);
void line_reader_free(struct line_reader **reader);

/* The next line, without its end; borrowed until the next call. The last one
   needs no newline. wait: LINE_NONE does not occur. */
enum line_kind line_reader_next(struct line_reader *reader, bool wait,
                                const char **line, size_t *length);

#endif
