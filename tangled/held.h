#ifndef HELD_H
#define HELD_H

#include "ownership.h"
#include "safetensors.h"

/* Fill held and return how many entries there are: parameters->count,
   llama_tensor_count, safetensors_count. Names are borrowed. */
size_t held_by_gpt(const struct parameters *parameters,
                   struct held_tensor *held);
size_t held_by_llama(const struct llama *model, struct held_tensor *held);
size_t held_by_file(const struct safetensors *file, struct held_tensor *held);

/* Bytes of the floats that a storage has allocated. */
size_t held_by_cache(const struct past_key_values *storage);

#endif
