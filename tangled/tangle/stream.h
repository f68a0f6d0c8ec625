#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stdio.h>
#include "front_matter.h"

enum { SWAPS_MAX = 256, MARKS_MAX = 128 };

struct mark {
    const char *chunk;
    const char *declares;   /* or NULL */
    bool blank;             /* put a blank in the body's place */
};

/* What to do to a stream. Swaps are applied in order: a later swap of the
   same chunk wins. Marks name chunks as they are called after the swaps. */
struct changes {
    const struct swap *swaps[SWAPS_MAX];
    size_t swap_count;
    struct mark marks[MARKS_MAX];
    size_t mark_count;
    bool lines;         /* weave #line directives in */
};

/* Copies the stream of noweb's markup from in to out. Each chunk's first
   place goes to places as "name <TAB> file:line". False after a message when
   the stream holds an error, or a change names a chunk that is not there. */
bool stream_copy(FILE *in, FILE *out, const struct changes *changes,
                 FILE *places);

#endif
