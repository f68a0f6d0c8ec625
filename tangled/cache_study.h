#ifndef CACHE_STUDY_H
#define CACHE_STUDY_H

#include <stddef.h>
#include "causal_lm.h"

/* Bytes of keys and values for one new token in each of `batch` rows, the
   token being the context-th of its row. In doubles: exact up to 2^53. */
struct cache_traffic {
    double reads;        /* by attention, in either form */
    double functional;   /* written by cache_aware_forward into its output */
    double in_place;     /* written by a request into its slots */
};
struct cache_traffic cache_traffic(const struct cache_shape *shape,
                                   int batch, int context);

/* Seconds for that token, the median of `repeats` (1 … 99) of each form.
   The cached keys are zeros; no time depends on them. Refuses what a request
   of context + repeats slots refuses, and another number of repeats; *times
   is unchanged on error. */
struct cache_times {
    double functional, in_place;
};
enum status cache_times_measure(const struct causal_lm *lm, int batch,
                                int context, int repeats,
                                struct cache_times *times,
                                struct error *error);

#endif
