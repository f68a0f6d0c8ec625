#ifndef AUDIT_SUBJECT_H
#define AUDIT_SUBJECT_H

#include "checkpoint.h"
#include "ownership.h"
#include "shards.h"

struct audit_subject {
    const char *name;               /* borrowed: what the report calls it */
    enum checkpoint_format format;
    struct ownership ownership;     /* of the config, and of nothing else */
    struct stored_tensor *stored;   /* what the files hold */
    size_t stored_count, file_bytes;
    struct held_tensor *held;       /* the registry; NULL without a model */
    size_t held_count;
    struct causal_lm lm;            /* run is NULL without a model */
    const struct llama *llama;      /* when it has experts to watch */
    struct error refusal;           /* why there is no model */
    struct checkpoint *checkpoint;  /* whose names and model these are, */
    struct shards *shards;          /* or, without a model, whose names */
};

/* Opens what checkpoint_open opens. A directory that it refuses is still a
   subject, without a model, when its config can be read and its files can be
   listed. *subject is unchanged on error; otherwise the caller closes it. */
enum status audit_subject_open(struct audit_subject *subject,
                               const char *path, struct error *error);
void audit_subject_close(struct audit_subject *subject);    /* and empties */

const char *audit_format_title(enum checkpoint_format format);
#endif
