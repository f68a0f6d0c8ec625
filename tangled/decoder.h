#ifndef DECODER_H
#define DECODER_H

#include "request.h"

struct decoder {                 /* borrowed; small */
    void *state;
    int vocab_size;              /* V */
    int room;                    /* tokens that a text may have */
    /* Each gives *logits [V] behind the last token, borrowed until the next
       call. prefill begins a new text, whatever was there before. */
    enum status (*prefill)(void *state, const int32_t *ids, int tokens,
                           const float **logits, struct error *error);
    enum status (*decode_step)(void *state, int32_t id, int position,
                               const float **logits, struct error *error);
    /* The storage, and how many slots of it are in use; a batch of one. */
    struct kv_inputs (*cache)(void *state);
};

/* Alive as long as the request. Prompts longer than a call are fed in chunks.
   Its prefill leaves an empty cache when it is refused; its decode_step
   refuses a position that is not the next one, and changes nothing then.
   Refuses NULL and a batch that is not 1; *decoder is unchanged on error. */
enum status request_decoder(struct request *request, struct decoder *decoder,
                            struct error *error);

#endif
