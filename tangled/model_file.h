#ifndef MODEL_FILE_H
#define MODEL_FILE_H
#include "model.h"
#include "safetensors.h"

/* Fills entries, one for each unique parameter, under its path; the data are
   borrowed. entries holds parameters->count; returns how many were filled. */
size_t parameters_entries(const struct parameters *parameters,
                          struct safetensors_entry *entries);

/* Copies in the tensors that the file has under prefix + path ("" for none;
   names without the prefix are left alone). Strict: refuses, by name, a
   tensor that is missing, that is not a parameter, or that has another dtype
   than F32 or another shape. lm_head.weight may be there when it is the same
   bits as token_embedding.weight. A refused load changes nothing. */
enum status parameters_load(struct parameters *parameters,
                            const struct safetensors *file,
                            const char *prefix, struct error *error);

/* Writes config.json and model.safetensors, making the directory when only
   its last part is missing. Both are on disk before either is replaced. */
enum status tiny_gpt_save(const struct tiny_gpt *model,
                          const char *directory, struct error *error);

/* Reads them back. The caller owns *model, which evaluates; it is unchanged
   on error. Refuses what gpt_config_read, safetensors_open and
   parameters_load refuse, and files from two different saves. */
enum status tiny_gpt_load(struct tiny_gpt **model, const char *directory,
                          struct error *error);

#endif
