#ifndef PREFIX_RUNNER_H
#define PREFIX_RUNNER_H

#include "cache_aware.h"
#include "prefix_cache.h"

struct prefix_runner {          /* borrows all three */
    const struct causal_lm *lm;
    struct prefix_cache *cache;
    struct prefix_cache_namespace namespace;
};

/* Tokens of a prompt that may come from a cache: G * floor((T-1)/G), which
   leaves at least one to run. 0 for no tokens. */
int prefix_reusable(int tokens, int block_size);

struct prefix_run {             /* zero-initialise; the caller owns it */
    int tokens_reused;          /* R, a multiple of G below T */
    struct cache_aware_output output;   /* logits [1,T-R,V] of the last T-R
                                    tokens, past_key_values [1,H,T,D] */
};

/* Runs the prompt ids [tokens] from absolute position start on behind its
   longest stored prefix, and stores its own. Refuses a cache of another
   shape, what cache_aware_forward refuses, and a run that is in use; on an
   error it is unchanged, and the cache holds what it held. */
enum status prefix_runner_run(const struct prefix_runner *runner,
                              int32_t start, const int32_t *ids, int tokens,
                              struct prefix_run *run, struct error *error);
void prefix_run_free(struct prefix_run *run);

#endif
