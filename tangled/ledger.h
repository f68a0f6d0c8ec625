#ifndef LEDGER_H
#define LEDGER_H

#include <stddef.h>
#include "config.h"
#include "tensor.h"

enum state_owner {
    OWNER_PARAMETER,   /* the model; learned and saved */
    OWNER_BUFFER,      /* follows from T and P alone; never saved */
    OWNER_CALL,        /* one forward call */
    OWNER_REQUEST      /* the caller, from call to call: the cache */
};
enum { STATE_OWNERS = 4 };

/* "parameter", "buffer", "call", "request" */
const char *state_owner_name(enum state_owner owner);

enum { LEDGER_NAME_MAX = 48, LEDGER_DIMS_MAX = 24 };

struct ledger_row {
    char name[LEDGER_NAME_MAX];    /* "blocks.0.scores" */
    char dims[LEDGER_DIMS_MAX];    /* "B H T S" */
    enum state_owner owner;
    int rank;
    int shape[TENSOR_RANK_MAX];
    size_t bytes;                  /* 0 for an alias: stored elsewhere */
};

struct ledger { struct ledger_row *rows; int count; };

/* Every tensor of one forward call, parameters included: B rows of T new
   tokens after P cached ones. Refuses a bad config, and a call that
   gpt_config_check_call refuses. *ledger is unchanged on error. */
enum status ledger_new(struct ledger *ledger,
                       const struct gpt_config *config,
                       int batch, int tokens, int past,
                       struct error *error);
/* Frees and empties. NULL-safe; twice is fine. */
void ledger_free(struct ledger *ledger);
/* NULL when there is none of that name. */
const struct ledger_row *ledger_find(const struct ledger *ledger,
                                     const char *name);
/* The bytes of one owner's rows. */
size_t ledger_bytes(const struct ledger *ledger, enum state_owner owner);

#endif
