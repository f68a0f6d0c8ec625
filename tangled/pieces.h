#ifndef PIECES_H
#define PIECES_H

#include <stddef.h>
#include "error.h"

struct pieces;               /* the compiled pattern; constant */
struct piece_cutter;         /* a text that is being cut */

enum status pieces_new(struct pieces **pieces, struct error *error);
void pieces_free(struct pieces **pieces);

/* The text and the pieces live as long as the cutter. */
enum status piece_cutter_new(struct piece_cutter **cutter,
                             const struct pieces *pieces,
                             const unsigned char *text, size_t length,
                             struct error *error);
void piece_cutter_free(struct piece_cutter **cutter);
/* The length of the next piece, 0 at the end. The pieces are the text. */
enum status piece_cutter_next(struct piece_cutter *cutter, size_t *length,
                              struct error *error);

#endif
