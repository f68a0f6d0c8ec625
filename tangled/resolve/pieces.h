#ifndef PIECES_H
#define PIECES_H

#include "workshop.h"

/* A piece of a text, as offsets. begin == end: not there. */
struct piece {
    size_t begin, end;
};

/* The lines between the two marks of a chunk, without them. */
struct piece piece_chunk(const char *text, const char *chunk);

struct function {
    char *name;
    bool is_static;
    struct piece comment;   /* directly before it */
    struct piece head;      /* from its first word to its last parenthesis */
    struct piece whole;     /* from its first word to its closing brace */
    struct piece body;      /* between the braces; a prototype has none */
};

struct functions {
    struct function *items;
    size_t count;
};

/* The functions that a C text defines or declares, in order. Any layout. */
struct functions functions_in(const char *text);
void functions_free(struct functions *functions);

/* Whether the piece of text holds the word as an identifier. */
bool piece_has_word(const char *text, struct piece piece, const char *word);

#endif
