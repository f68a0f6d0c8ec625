#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "error.h"

struct tokenizer;    /* constant once it is made: any thread may use it */

/* tokenizer_path: a directory with vocab.json and merges.txt, or with
   tokenizer.bin; a file vocab.json; any other file, as a tokenizer.bin; or
   the word "bytes". NULL: looks beside the model, which is a directory or
   a file, for vocab.json and merges.txt, then for tok<V>.bin, then for
   tokenizer.bin; without any of them a model of 256 ids speaks bytes.
   vocab_size is the model's V, or 0 when there is no model. Refuses a
   tokenizer that has more ids than the model, and one of llama2.c that has
   not as many. STATUS_INVALID when there is none; *tokenizer is unchanged on
   error. */
enum status tokenizer_open(struct tokenizer **tokenizer,
                           const char *model_path,
                           const char *tokenizer_path, int vocab_size,
                           struct error *error);
void tokenizer_close(struct tokenizer **tokenizer);

enum { TEXT_ENDS_MAX = 16 };
struct text_ends {               /* ids behind which nothing is said */
    int count;
    int32_t ids[TEXT_ENDS_MAX];
};
/* Of the model at the path: eos_token_id of the generation_config.json beside
   it, or else of its config.json, or else the tokenizer's EOS (tokenizer may
   be NULL). A .bin file has no config. Ids outside [0, vocab_size) are never
   said, and left out. Refuses, with the name of the file, a file that is not
   JSON, and an eos_token_id that is no id, not null, and no list of at most
   TEXT_ENDS_MAX ids. *ends is unchanged on error. */
enum status text_ends_read(struct text_ends *ends, const char *model_path,
                           const struct tokenizer *tokenizer, int vocab_size,
                           struct error *error);
bool text_ends_with(const struct text_ends *ends, int32_t id);

/* Id k is byte k. */
enum status tokenizer_of_bytes(struct tokenizer **tokenizer,
                               struct error *error);
/* vocab.json and merges.txt of GPT-2's family. */
enum status tokenizer_of_merges(struct tokenizer **tokenizer,
                                const char *vocab, size_t vocab_length,
                                const char *merges, size_t merges_length,
                                struct error *error);
/* tokenizer.bin of llama2.c, for exactly vocab_size tokens; 0: as many as
   there are. */
enum status tokenizer_of_scores(struct tokenizer **tokenizer,
                                const unsigned char *file, size_t length,
                                int vocab_size, struct error *error);

enum {
    TOKENIZER_BEGIN = 1,      /* this is the beginning of a text: BOS first,
                                 where the family has one */
    TOKENIZER_SPECIAL = 2     /* what spells a special token is that token */
};
/* Any bytes, invalid UTF-8 and zeros too: decoding the ids gives them back.
   The caller frees *ids, which is NULL when there are none. Unchanged on
   error. */
enum status tokenizer_encode(const struct tokenizer *tokenizer,
                             const char *bytes, size_t length, int options,
                             int32_t **ids, int *count,
                             struct error *error);

/* Sees each merge as it happens, in order. left and right say where the two
   begin: the first of their bytes in the text, or in llama2.c's family the
   first of their characters. */
struct merge_watch {
    void (*step)(void *context, size_t left, size_t right, int32_t joined);
    void *context;
};
enum status tokenizer_encode_watched(const struct tokenizer *tokenizer,
                                     const char *bytes, size_t length,
                                     int options,
                                     const struct merge_watch *watch,
                                     int32_t **ids, int *count,
                                     struct error *error);

/* What the id stands for, borrowed. For an id that no token has, such as
   those that fill a model's table up to a round number: U+FFFD. */
const unsigned char *tokenizer_bytes(const struct tokenizer *tokenizer,
                                     int32_t id, size_t *length);
/* No part of any text: BOS, EOS, <|endoftext|>. Its bytes are its name. */
bool tokenizer_special(const struct tokenizer *tokenizer, int32_t id);
/* Whether a text begins with a space that is not its own. */
bool tokenizer_prefixes(const struct tokenizer *tokenizer);
int tokenizer_count(const struct tokenizer *tokenizer);
/* The id that begins a text, and the one after which a text is over: -1 when
   there is none. */
int tokenizer_bos(const struct tokenizer *tokenizer);
int tokenizer_eos(const struct tokenizer *tokenizer);
/* The first id that is another token in the one than in the other; -1 when
   all are alike. Two models can read each other's ids only then. */
int tokenizer_difference(const struct tokenizer *one,
                         const struct tokenizer *other);

#endif
