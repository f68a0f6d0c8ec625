#ifndef CORPUS_H
#define CORPUS_H

#include "error.h"
#include "generator.h"
#include <stddef.h>

/* The bytes of some files, one after the other. */
struct corpus {
    unsigned char *bytes;
    size_t length;
    size_t training;         /* bytes before the held-out twentieth */
    uint64_t fingerprint;    /* FNV-1a over all bytes */
};

/* Reads all files. Refuses, by name, a file that cannot be read or is empty.
   Owned by the caller: corpus_free. Unchanged on error. */
enum status corpus_read(struct corpus *corpus, const char *const *paths,
                        int count, struct error *error);
void corpus_free(struct corpus *corpus);    /* NULL-safe; twice is fine */
/* Refuses a text whose training part has no window of tokens bytes, or whose
   held-out part has less than a pair. */
enum status corpus_check(const struct corpus *corpus, int tokens,
                         struct error *error);
/* ids [tokens] = the bytes from at on; at + tokens <= length */
void corpus_window(const struct corpus *corpus, size_t at, int tokens,
                   int32_t *ids);
/* ids [batch, tokens], each row a window of the training part at a random
   place; tokens passed corpus_check */
void corpus_batch(const struct corpus *corpus, struct generator *generator,
                  int batch, int tokens, int32_t *ids);

#endif
