#ifndef GROUPED_ATTENTION_H
#define GROUPED_ATTENTION_H

#include <stdbool.h>

struct grouped_shape {
    int heads, kv_heads;    /* H, and Hk: a divisor of H */
    int tokens;             /* T queries a head */
    int keys;               /* the first slots of a head: those that count */
    int slots;              /* from one head of the storage to the next */
    int head_dim;           /* D */
};

/* Attention in one row of a batch. query [H,T,D]; key, value [Hk,slots,D], of
   which slots from `keys` on are not read; keep [T,keys]. Query head h reads
   head h / (H/Hk). context [H,T,D]; scores, probs [T,keys] are scratch. */
void grouped_attention_forward(const struct grouped_shape *shape,
                               const float *query, const float *key,
                               const float *value, const bool *keep,
                               float *scores, float *probs, float *context);

#endif
