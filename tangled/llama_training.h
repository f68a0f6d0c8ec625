#ifndef LLAMA_TRAINING_H
#define LLAMA_TRAINING_H

#include <stdint.h>
#include "llama.h"
#include "llama_workspace.h"

/* The loss of a batch that begins at position 0, as cross_entropy defines it,
   and its gradient in every parameter, which is added to gradients, a llama
   of the model's config (a tied table receives both of its gradients). With
   gradients NULL the loss alone. ids, labels [B,T]. The workspace is one for
   this config; what the call computed stays in it until the next, its logits
   with the bits of a step in an empty cache. Refuses, by name, ids, labels,
   and a workspace or gradients of another config: then loss and gradients
   are unchanged. Allocates nothing. */
enum status llama_loss_and_gradients(const struct llama *model,
                                     const int32_t *ids,
                                     const int32_t *labels,
                                     struct llama_workspace *workspace,
                                     float *loss, struct llama *gradients,
                                     struct error *error);

#endif
