#ifndef TOKENIZER_PARTS_H
#define TOKENIZER_PARTS_H

#include "merging.h"
#include "tokenizer.h"
#include "vocabulary.h"

struct id_list { int32_t *ids; int count, room; };

/* Room for `more` ids behind the last. */
enum status id_list_reserve(struct id_list *list, size_t more,
                            struct error *error);

struct passage {
    const unsigned char *bytes;
    size_t length;
    int options;
    const struct merge_watch *watch;     /* or NULL */
};

struct tokenizer {
    struct vocabulary *vocabulary;
    bool *special;               /* [count] */
    int bos, eos;                /* -1: none */
    bool prefixes;
    void *tables;                /* of the kind; NULL: none */
    void (*free_tables)(void *tables);
    /* Puts the ids of a passage behind the list. */
    enum status (*encode)(const struct tokenizer *tokenizer,
                          const struct passage *passage,
                          struct id_list *list, struct error *error);
};

/* With a vocabulary of empty tokens, of which none is special, and without
   BOS, EOS or tables. */
enum status tokenizer_make(struct tokenizer **tokenizer, int count,
                           size_t bytes, struct error *error);

#endif
