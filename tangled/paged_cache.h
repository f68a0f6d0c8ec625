#ifndef PAGED_CACHE_H
#define PAGED_CACHE_H

#include <stdbool.h>
#include "block_pool.h"
#include "causal_lm.h"

struct paged_sizes {
    int block_size;      /* G, slots */
    int blocks;          /* E */
    int sequences;       /* open at a time */
    int capacity;        /* most tokens of a sequence */
};

/* All blocks free, no sequence open; all that it will ever allocate. The
   caller owns it. Refuses, by name, sizes below 1 and more slots in all than
   an int holds; *cache is unchanged on error. */
struct paged_cache;
enum status paged_cache_new(struct paged_cache **cache,
                            const struct cache_shape *shape,
                            const struct paged_sizes *sizes,
                            struct error *error);
void paged_cache_free(struct paged_cache **cache);

struct paged_sizes paged_cache_sizes(const struct paged_cache *cache);
struct cache_shape paged_cache_shape(const struct paged_cache *cache);
/* For its counts, and what a paged kernel would read: L pairs [1,H,EG,D]. */
const struct block_pool *paged_cache_pool(const struct paged_cache *cache);
const struct past_key_values *
paged_cache_storage(const struct paged_cache *cache);

/* A sequence without tokens. Refuses, with STATUS_NO_MEMORY, when as many
   are open as may be. */
enum status paged_cache_open(struct paged_cache *cache, int *sequence,
                             struct error *error);

/* Opens one that has the first `length` tokens of its parent, in the same
   blocks; none is taken. Refuses a parent that is not open and a length
   outside 0 … the parent's, too. */
enum status paged_cache_fork(struct paged_cache *cache, int parent,
                             int length, int *child, struct error *error);

/* Gives its blocks back. Refuses a sequence that is not open. */
enum status paged_cache_close(struct paged_cache *cache, int sequence,
                              struct error *error);

/* Zeros for a sequence that is not open. */
struct paged_sequence {
    bool open;
    int length;              /* n tokens */
    int32_t start;           /* position of the first */
    int count;               /* blocks */
    const int32_t *table;    /* [count], borrowed until the next change */
};
struct paged_sequence paged_cache_sequence(const struct paged_cache *cache,
                                           int sequence);

/* Whether `tokens` more tokens in each of these sequences [B] can be
   appended. Refuses missing arguments, a batch outside 1 … the sequences that
   may be open, tokens below 1, a sequence that is not open or is named twice,
   one that would outgrow its capacity, and positions [B,T] that do not go on
   where their sequence ends (one without tokens may start anywhere); with
   STATUS_NO_MEMORY, more blocks than are free. */
enum status paged_cache_check(const struct paged_cache *cache,
                              const int *sequences, int batch,
                              const int32_t *positions, int tokens,
                              struct error *error);

/* Copies row b of recent [B,H,T,D] of each layer behind sequences[b]. Refuses
   what past_key_values_check refuses of recent, and the above. Unchanged on
   error: all rows of all layers, or none. */
enum status paged_cache_append(struct paged_cache *cache,
                               const int *sequences, int batch,
                               const struct past_key_values *recent,
                               const int32_t *positions,
                               struct error *error);

/* Keeps the first `length` tokens. Refuses a sequence that is not open and a
   length outside 0 … the present one. */
enum status paged_cache_truncate(struct paged_cache *cache, int sequence,
                                 int length, struct error *error);

/* Row b of storage [B,H,S,D] becomes what sequences[b] holds, with zeros
   behind its length, in every layer; lengths and starts have room for [B]. A
   sequence may be named twice. Refuses missing arguments, storage of another
   shape or batch, a sequence that is not open, and one longer than S. */
enum status paged_cache_gather(const struct paged_cache *cache,
                               const int *sequences, int batch,
                               const struct past_key_values *storage,
                               int32_t *lengths, int32_t *starts,
                               struct error *error);

#endif
