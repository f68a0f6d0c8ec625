#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stdio.h>
#include "front_matter.h"

/* Copies the stream of noweb's markup from in to out. swaps are applied in
   order: a later swap of the same chunk wins. With lines, #line directives
   are woven in. Each chunk's first place goes to places as
   "name <TAB> file:line" unless that is NULL. False after a message when the
   stream holds an error, or a swap names a chunk that does not exist. */
bool stream_copy(FILE *in, FILE *out, const struct swap *const *swaps,
                 size_t count, bool lines, FILE *places);

#endif
