#ifndef OWNERSHIP_H
#define OWNERSHIP_H

#include <stdint.h>
#include "causal_lm.h"
#include "llama.h"

enum module {
    MODULE_EMBEDDING, MODULE_POSITION, MODULE_NORM, MODULE_QUERY, MODULE_KEY,
    MODULE_VALUE, MODULE_OUTPUT, MODULE_FEED_FORWARD, MODULE_ROUTER,
    MODULE_EXPERTS, MODULE_HEAD
};
enum { MODULES = 11 };

const char *module_name(enum module module);    /* "feed-forward" */

enum { OWNED_ROWS_MAX = 20, OWNED_NAME_MAX = 96 };

struct owned_row {
    const char *pattern;     /* "blocks.*.mlp.up_proj.weight": the first star
                                is the layer, a second one the expert */
    enum module module;
    int rows, columns;       /* [rows,columns]; [rows] with columns 0 */
    bool fused;              /* equal parts of query, key and value, whatever
                                module says */
    bool alias;              /* another row's storage */
};

struct ownership {
    struct owned_row rows[OWNED_ROWS_MAX];
    int count;
    int vocab_size, context_length, d_model, n_heads;
    int n_experts, experts_per_token;    /* 0, 0 without experts */
    bool gated;                          /* of the llama family */
    struct cache_shape cache;
    size_t floats[MODULES];  /* by owner; a tied head owns none */
    size_t total;            /* of them all: what a file holds */
    size_t active;           /* with experts_per_token of n_experts */
};

/* Refuse what the config's own check refuses, and too many bytes. Experts may
   be given whether or not a model with experts can be made: 1 …
   n_experts of them for a token. *ownership is unchanged on error. */
enum status ownership_of_gpt(struct ownership *ownership,
                             const struct gpt_config *config,
                             struct error *error);
enum status ownership_of_llama(struct ownership *ownership,
                               const struct llama_config *config,
                               struct error *error);

/* Stars of the row's pattern: 0, 1 or 2. */
int owned_row_stars(const struct owned_row *row);
/* Writes the name of one of the row's tensors into OWNED_NAME_MAX bytes. */
void owned_row_name(const struct owned_row *row, int layer, int expert,
                    char *name);
/* The row that a name belongs to; NULL when there is none. */
const struct owned_row *ownership_find(const struct ownership *ownership,
                                       const char *name);

struct held_tensor {
    const char *name;
    int rank;
    int64_t shape[2];    /* of rank 1 or 2; another rank is no parameter */
    bool alias;          /* known to be another one's storage */
    size_t elements;     /* of any rank */
};

/* STATUS_OK when the list is the prediction: each tensor once, in its shape,
   and no other. A tied head may be missing. The error names the first tensor
   that is not so. */
enum status ownership_check(const struct ownership *ownership,
                            const struct held_tensor *held, size_t count,
                            struct error *error);

struct holding {
    size_t floats[MODULES];
    size_t total;        /* of them all */
    size_t copied;       /* of a tied head that is stored again */
    size_t unknown;      /* of names that the prediction does not know */
};
/* Adds the list up, by owner. */
struct holding ownership_hold(const struct ownership *ownership,
                              const struct held_tensor *held, size_t count);

#endif
