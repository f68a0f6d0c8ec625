#ifndef TEXT_STREAM_H
#define TEXT_STREAM_H

#include "tokenizer.h"

/* Ids go in one by one, and characters come out, as soon as they are whole.
   Bytes that can be no character come out as they are, at the latest when the
   next byte shows it: all that comes out, together, is the bytes of all that
   went in. Special tokens are no text and are left out. */
struct text_stream {
    const struct tokenizer *tokenizer;
    int32_t previous;            /* id; -1: a text begins here */
    bool special;                /* the names of special tokens, too */
    /* Takes a character, or a byte that belongs to none; false: it could not,
       and neither will what comes. `whole` is false for such a byte. */
    bool (*show)(void *context, const char *bytes, size_t length, bool whole);
    void *context;
    unsigned char held[4];       /* of a character that has not ended */
    size_t count;                /* starts as 0 */
};

/* False when show was. */
bool text_stream_add(struct text_stream *stream, int32_t id);
/* Lets out what will never be whole. */
bool text_stream_end(struct text_stream *stream);

#endif
