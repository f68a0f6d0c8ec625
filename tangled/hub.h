#ifndef HUB_H
#define HUB_H

#include "llama.h"
#include "model.h"
#include "shards.h"

/* Make a model of a checked config and fill it from the files. Each tensor
   has to be there, in F32, F16 or BF16, in the shape that the config asks
   for, and nothing may be there besides, except buffers that are no weights.
   used [shards_count], all false, receives which tensors were taken. *model
   is unchanged on error. */
enum status hub_load_gpt2(struct tiny_gpt **model,
                          const struct gpt_config *config,
                          const struct shards *shards, bool *used,
                          struct error *error);
enum status hub_load_llama(struct llama **model,
                           const struct llama_config *config,
                           const struct shards *shards, bool *used,
                           struct error *error);
#endif
