#ifndef PAGE_STUDY_H
#define PAGE_STUDY_H

#include <stdint.h>
#include "causal_lm.h"

/* For `sequences` texts of 1 … longest tokens, each length as likely. */
struct page_waste {
    double tokens;      /* in all */
    double blocks;      /* used, as the pool counts */
    double waste;       /* slots of these blocks without a token */
    double formula;     /* sequences (G - 1) / 2 */
};
/* Refuses what paged_cache_new refuses; *waste is unchanged on error. */
enum status page_waste_measure(int block_size, int sequences, int longest,
                               uint64_t seed, struct page_waste *waste,
                               struct error *error);

/* Seconds to gather a text of `tokens` tokens out of shuffled blocks; the
   median of `repeats` (1 … 99). Refuses what paged_cache_new refuses, and
   another number of repeats. */
enum status page_gather_measure(const struct cache_shape *shape,
                                int block_size, int tokens, int repeats,
                                double *seconds, struct error *error);

#endif
