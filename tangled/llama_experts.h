#ifndef LLAMA_EXPERTS_H
#define LLAMA_EXPERTS_H

#include "llama.h"
#include "moe.h"

enum { LLAMA_EXPERTS_MAX = 65536 };

/* Parameters, a tied head counted once: all that are stored, and without the
   experts that a token does not choose. Embeddings count whole in both. */
struct llama_size { size_t total, active; };

/* For positive sizes. False, and nothing written, when the bytes do not fit
   a size_t. */
bool llama_config_size(const struct llama_config *config,
                       struct llama_size *size);

/* What a step of a model with experts has decided in one layer: views into
   the scratch that it ran with, until the next step. Its gates are as the
   layer used them. */
struct moe_routing llama_routing(const struct llama *model,
                                 const struct step *step, float *scratch,
                                 int layer);

#endif
