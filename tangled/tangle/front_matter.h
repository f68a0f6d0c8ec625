#ifndef FRONT_MATTER_H
#define FRONT_MATTER_H

#include <stdbool.h>
#include <stddef.h>

struct swap {
    char *chunk;    /* whose body is replaced */
    char *by;       /* whose body comes in its place */
    char *owner;    /* whom the first failing test must name */
    char *slug;     /* NULL when the swap is growth, not a wrong path */
};

/* What the tangler needs of a chapter's front matter. */
struct front_matter {
    char *key;              /* "5" of book/05-mask.nw, "A" of A-tangling.nw */
    struct swap *swaps;     /* supersedes first, then wrong */
    size_t count;
    char **blanks;          /* the chunks that a re-solve blanks */
    size_t blank_count;
};

/* Reads the block at the top of the file; a file without one has no swaps.
   False after a message on stderr. Free with front_matter_free. */
bool front_matter_read(struct front_matter *front, const char *path);
void front_matter_free(struct front_matter *front);

#endif
