#ifndef LLAMA2C_H
#define LLAMA2C_H

#include "llama.h"
#include "safetensors.h"

enum { LLAMA2C_TENSORS = 14 };

struct llama2c {
    struct llama_config config;
    struct safetensors_entry tensors[LLAMA2C_TENSORS];    /* in file order,
                                             their data in the file */
    int count;                   /* of them: 13, or 14 with a head apart */
};

/* A file of version 0 as bytes: seven int32 and floats, little-endian. The
   size has to be exact. *file is unchanged on error. */
enum status llama2c_parse(struct llama2c *file, const void *bytes,
                          size_t length, struct error *error);
/* Whether the model reads tensor k; two old tables are skipped. */
bool llama2c_used(const struct llama2c *file, int k);
/* A model with the file's weights, whose queries and keys are put into the
   order of split halves. *model is unchanged on error. */
enum status llama2c_load(struct llama **model, const struct llama2c *file,
                         struct error *error);
#endif
