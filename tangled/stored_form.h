#ifndef STORED_FORM_H
#define STORED_FORM_H

#include "hub_config.h"
#include "ownership.h"

enum { STORED_NAME_MAX = 128, STORED_RANK_MAX = 3 };

/* One tensor that a file of some format should hold. */
struct stored_form {
    char name[STORED_NAME_MAX];
    const struct owned_row *row;    /* of the ownership: whose it is */
    int rank;
    int64_t shape[STORED_RANK_MAX];
    size_t elements;
    bool optional;                  /* a tied head: another one's copy */
};

/* Writes the forms into list, or counts them with list NULL. prefix stands
   before the names of FORMAT_GPT2, "" or "transformer.". The registries of
   our models have the names and shapes of FORMAT_TINY_GPT, whatever their
   family. */
size_t stored_forms(const struct ownership *ownership,
                    enum checkpoint_format format, const char *prefix,
                    struct stored_form *list);
#endif
