#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "causal_lm.h"
#include "hub_config.h"
#include "llama.h"
#include "safetensors.h"

enum family { FAMILY_TINY_GPT, FAMILY_LLAMA };

struct checkpoint;      /* owns a model */

/* path is a directory with a config.json, ours or the hub's, or a .bin file
   of llama2.c. Errors name the file. *checkpoint is unchanged on error. */
enum status checkpoint_open(struct checkpoint **checkpoint, const char *path,
                            struct error *error);
void checkpoint_close(struct checkpoint **checkpoint);    /* and nulls */

enum family checkpoint_family(const struct checkpoint *checkpoint);
enum checkpoint_format checkpoint_format(const struct checkpoint *checkpoint);
const char *checkpoint_format_name(const struct checkpoint *checkpoint);
/* Alive as long as the checkpoint. */
struct causal_lm checkpoint_causal_lm(const struct checkpoint *checkpoint);
/* NULL for another family. */
struct tiny_gpt *checkpoint_tiny_gpt(struct checkpoint *checkpoint);
struct llama *checkpoint_llama(struct checkpoint *checkpoint);

/* What the files hold, in the order of the names, or of a file without
   names. The files themselves are closed by now: data is NULL. */
struct stored_tensor {
    struct safetensors_entry entry;
    bool used;              /* the model was filled from it */
};
size_t checkpoint_tensor_count(const struct checkpoint *checkpoint);
const struct stored_tensor *checkpoint_tensor_at(
    const struct checkpoint *checkpoint, size_t index);
/* Of all files with tensors, headers included. */
size_t checkpoint_file_bytes(const struct checkpoint *checkpoint);
#endif
