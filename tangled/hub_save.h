#ifndef HUB_SAVE_H
#define HUB_SAVE_H

#include "error.h"
#include "llama.h"

/* The text of a config.json, of model_type llama or mixtral, which the caller
   frees; every number reads back exactly. *text is unchanged on error. */
enum status hub_llama_format(const struct llama_config *config, char **text,
                             struct error *error);
/* Writes config.json and model.safetensors (F32), making the directory when
   only its last part is missing. Both are on disk before either is
   replaced. */
enum status hub_save_llama(const struct llama *model, const char *directory,
                           struct error *error);
/* Refuses a directory with an index of shards: a reader would follow it past
   the file that is about to be written. One that is missing is fine. */
enum status hub_save_check(const char *directory, struct error *error);

#endif
