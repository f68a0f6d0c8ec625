#ifndef SERVE_LINE_H
#define SERVE_LINE_H

#include "slots.h"
#include "speaker.h"

enum { STOP_BYTES_MAX = 64 };

struct serve_line {              /* zero-initialise; serve_line_free */
    char *id;                    /* as JSON; NULL: it gave none */
    char *cancel;                /* the id of another, as JSON; or NULL */
    struct slot_request request; /* without functions; borrows: */
    int32_t *ids, *stop_ids;
    struct text_ends ends;       /* the first of them is the request's EOS */
    char stop[STOP_BYTES_MAX];
    size_t stop_length;          /* 0: no stop */
};
void serve_line_free(struct serve_line *line);

/* Reads one line for this speaker. capacity is that of a slot. Refuses what
   is no JSON object in UTF-8 and any field that is not as the page says, by
   its name; then line->id is set all the same if there was one. What
   slots_submit refuses is left to it. */
enum status serve_line_parse(struct serve_line *line, const char *text,
                             size_t length, const struct speaker *speaker,
                             int capacity, struct error *error);

#endif
