#ifndef LOSS_H
#define LOSS_H
#include <stdint.h>
#include "error.h"

enum { IGNORE_INDEX = -100 };   /* a label that takes no part */

/* labels [B,T]: refuses, by index, what is neither in [0,V) nor
   IGNORE_INDEX. */
enum status labels_check(const int32_t *labels, int batch, int tokens,
                         int vocab_size, struct error *error);

/* The mean of -log softmax(logits[b,t])[labels[b,t+1]] over the positions
   whose label counts; 0 when none does. logits [B,T,V], labels [B,T].
   d_logits [B,T,V], or NULL: receives the gradient of the loss, zero where
   nothing counted. Refuses what labels_check refuses; then loss and d_logits
   are unchanged. (Seed: forward(labels=...), ignore_index -100.) */
enum status cross_entropy(const float *logits, const int32_t *labels,
                          int batch, int tokens, int vocab_size,
                          float *loss, float *d_logits, struct error *error);
#endif
