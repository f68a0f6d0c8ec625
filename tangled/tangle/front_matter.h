#ifndef FRONT_MATTER_H
#define FRONT_MATTER_H

#include <stdbool.h>
#include <stddef.h>

struct swap {
    char *chunk;    /* whose body is replaced */
    char *by;       /* whose body comes in its place */
    char *owner;    /* whom the first failing test must name */
    char *slug;     /* NULL when the swap is growth, not a wrong path */
    char *mechanism;   /* what goes wrong, in a sentence, or NULL */
};

struct blank {
    char *chunk;
    char *declares;     /* C that the blank keeps, or NULL */
};

struct card {
    char *key;          /* "5", or "10.2" for a part of chapter 10 */
    char *title;
    int minutes;        /* 0 when another page has the budget */
    char *stop;         /* "" when there is none */
    struct blank *blanks;
    size_t count;
};

/* What the tools need of a chapter's front matter. */
struct front_matter {
    char *key;              /* "5" of book/05-mask.nw, "A" of A-tangling.nw */
    struct swap *swaps;     /* supersedes first, then wrong */
    size_t count;
    struct card *cards;     /* one, or one a part; none without a stage */
    size_t card_count;
    char **given;           /* files that an empty editor need not write */
    size_t given_count;
};

/* Reads the block at the top of the file; a file without one has no swaps.
   False after a message on stderr. Free with front_matter_free. */
bool front_matter_read(struct front_matter *front, const char *path);
void front_matter_free(struct front_matter *front);

#endif
