#ifndef TEST_MODELS_H
#define TEST_MODELS_H

#include "causal_lm.h"

struct test_model {
    struct causal_lm lm;         /* borrows owner */
    void *owner;
    /* Both NULL for a model without modes. */
    void (*set_training)(void *owner, bool training);
    bool (*is_training)(const void *owner);
    void (*release)(void *owner);
};

/* Deterministic, in evaluation mode, ids 0 … 6, positions 0 … 8. */
enum status make_test_model(struct test_model *made, struct error *error);
/* The same sizes, and greedy transitions of its own: with EOS 0, the rows [1]
   and [2] at position 0 become [1 0 0] and [2 3 0]. */
enum status make_eos_test_model(struct test_model *made, struct error *error);
/* Frees and empties. */
void test_model_free(struct test_model *model);

#endif
