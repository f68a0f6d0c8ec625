#ifndef PARAMETERS_H
#define PARAMETERS_H

#include <stdbool.h>
#include <stddef.h>
#include "config.h"
#include "tensor.h"

struct linear     { struct tensor weight, bias; };  /* [out,in], [out] */
struct layer_norm { struct tensor weight, bias; };  /* [C], [C] */
struct embedding  { struct tensor weight; };        /* [rows,C] */
struct attention  { struct linear qkv_proj, out_proj; };
struct mlp        { struct linear up_proj, down_proj; };

struct block {
    struct layer_norm attention_norm;
    struct attention attention;
    struct layer_norm mlp_norm;
    struct mlp mlp;
};

/* path is relative to the model, or to blocks.l for a row of a block; offset
   is that of the tensor in struct parameters, or in struct block. */
struct parameter_row {
    const char *path;
    const char *dims;    /* "3C C" */
    size_t offset;
};

enum {
    FIRST_ROWS = 2,      /* before the blocks: the two embeddings */
    BLOCK_ROWS = 12,     /* in each block */
    LAST_ROWS = 2,       /* after the blocks: the final norm */
    ALIAS_ROWS = 1,      /* the tied head */
    N_LAYERS_MAX = 10000000,
    PARAMETER_PATH_MAX = 48
};
extern const struct parameter_row first_rows[FIRST_ROWS];
extern const struct parameter_row block_rows[BLOCK_ROWS];
extern const struct parameter_row last_rows[LAST_ROWS];
extern const struct parameter_row alias_rows[ALIAS_ROWS];

struct parameter {
    const char *path;              /* "blocks.1.mlp.down_proj.bias" */
    const char *owner;             /* its module: "blocks.1.mlp.down_proj" */
    const struct tensor *tensor;   /* borrowed */
    bool alias;                    /* a second name of a tied tensor */
};

struct parameters {
    const struct gpt_config config;        /* own copy, frozen */
    struct embedding token_embedding;      /* [V,C] */
    struct embedding position_embedding;   /* [N,C] */
    struct block *blocks;                  /* [L] */
    struct layer_norm final_norm;
    struct linear lm_head;    /* weight is token_embedding.weight: one
                                 storage; no bias (an empty tensor) */

    struct parameter *registry;   /* in the order above; aliases last */
    int count;                    /* entries, aliases included */
    float *storage;               /* every unique parameter, contiguous, in
                                     registry order */
    size_t size;                  /* unique parameters, in floats */
    char *names;                  /* what path and owner point into */
};

/* Checks and copies the config; every float is zero. Gradients and moments
   have the same layout: make another one. *parameters is unchanged on
   error. */
enum status parameters_new(struct parameters **parameters,
                           const struct gpt_config *config,
                           struct error *error);
/* Frees, and makes the pointer NULL. NULL-safe; twice is fine. */
void parameters_free(struct parameters **parameters);
/* NULL when there is none of that path. */
const struct parameter *parameters_find(const struct parameters *parameters,
                                        const char *path);
/* Unique parameters by the closed formula of this chapter, of positive
   sizes. False when their bytes do not fit a size_t. */
bool parameters_formula(const struct gpt_config *config, size_t *count);

#endif
