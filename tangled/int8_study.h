#ifndef INT8_STUDY_H
#define INT8_STUDY_H

#include "causal_lm.h"

/* At one position, over all rows of the batch: the logits of a cache of
   floats against those of one call without a cache, and those of a cache of
   codes against those of the floats. */
struct int8_loss {
    double floats, codes;    /* largest absolute difference */
    double root_mean_square; /* of codes */
    double gap;              /* least lead of the greedy token's logit */
    double key_scale;        /* mean scale of the first layer's keys there */
    int changed;             /* rows whose greedy token is another */
};
struct int8_times {
    double floats, codes;    /* seconds for all tokens, one at a time */
};

struct int8_texts {
    const int32_t *ids;      /* [B,T] */
    int batch, tokens;
    int start;               /* position of each text's first token */
    bool spare;              /* keep the first layer's keys as floats */
};

/* losses [T]. Refuses what a request of T slots and calls of T tokens
   refuses, and a negative start. */
enum status int8_losses(const struct causal_lm *lm,
                        const struct int8_texts *texts,
                        struct int8_loss *losses, struct int8_times *times,
                        struct error *error);

#endif
