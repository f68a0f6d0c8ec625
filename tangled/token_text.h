#ifndef TOKEN_TEXT_H
#define TOKEN_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include "corpus.h"
#include "error.h"
#include "generator.h"
#include "tokenizer.h"

struct token_text {
    int32_t *ids;            /* [length] */
    size_t length;
    size_t training;         /* ids before the held-out part */
    int32_t most;            /* the largest id */
    uint64_t fingerprint;    /* of all ids */
};

/* The ids of a corpus; a text of bytes has the corpus's fingerprint. Owned
   by the caller: token_text_free. Unchanged on error. */
enum status token_text_new(struct token_text *text,
                           const struct corpus *corpus,
                           const struct tokenizer *tokenizer,
                           struct error *error);
void token_text_free(struct token_text *text);    /* NULL-safe */
/* Refuses, by name, a text without a window of tokens ids to train on, or
   without a pair held out, and ids that are not below vocab_size. */
enum status token_text_check(const struct token_text *text, int tokens,
                             int vocab_size, struct error *error);
/* ids [batch,tokens], each row a window of the training part at a random
   place; tokens passed token_text_check. */
void token_text_batch(const struct token_text *text,
                      struct generator *generator, int batch, int tokens,
                      int32_t *ids);

#endif
