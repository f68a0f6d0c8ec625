#ifndef VOCABULARY_H
#define VOCABULARY_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

struct vocabulary;           /* the bytes of ids 0 … count-1 */
struct span { const unsigned char *at; size_t length; };

/* Ids that are empty, and room for `bytes` bytes of them in all. */
enum status vocabulary_new(struct vocabulary **vocabulary, int count,
                           size_t bytes, struct error *error);
void vocabulary_free(struct vocabulary **vocabulary);

/* Gives an id its bytes, once; copies them. */
void vocabulary_set(struct vocabulary *vocabulary, int32_t id,
                    struct span bytes);
enum { NO_TOKEN = -1 };
/* From now on the id is found by its bytes. If another one is already, its id
   is the result, and nothing is changed; else NO_TOKEN. */
int32_t vocabulary_enter(struct vocabulary *vocabulary, int32_t id);

int vocabulary_count(const struct vocabulary *vocabulary);
struct span vocabulary_bytes(const struct vocabulary *vocabulary,
                             int32_t id);
/* The id that has these bytes, those of first and then those of second;
   NO_TOKEN. */
int32_t vocabulary_find(const struct vocabulary *vocabulary,
                        struct span first, struct span second);

#endif
