#include "activations.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dims.h"

struct entry {
    const char *name;
    size_t offset;      /* of the tensor in its struct */
    const char *dims;   /* "B T 3C"; empty: only some calls have it */
};

#define IN_BLOCK(name) #name, offsetof(struct block_activations, name)
static const struct entry block_entries[] = {
    {IN_BLOCK(attention_norm), "B T C"}, {IN_BLOCK(qkv), "B T 3C"},
    {IN_BLOCK(query), "B H T D"},        {IN_BLOCK(key), "B H S D"},
    {IN_BLOCK(value), "B H S D"},        {IN_BLOCK(scores), "B H T S"},
    {IN_BLOCK(probs), "B H T S"},        {IN_BLOCK(context), "B H T D"},
    {IN_BLOCK(merged), "B T C"},         {IN_BLOCK(attention), "B T C"},
    {IN_BLOCK(residual), "B T C"},       {IN_BLOCK(mlp_norm), "B T C"},
    {IN_BLOCK(up), "B T F"},             {IN_BLOCK(gelu), "B T F"},
    {IN_BLOCK(down), "B T C"},           {IN_BLOCK(output), "B T C"},
    {IN_BLOCK(probs_dropout), ""},     {IN_BLOCK(attention_dropout), ""},
    {IN_BLOCK(down_dropout), ""},
};

#define IN_CALL(name) #name, offsetof(struct activations, name)
static const struct entry call_entries[] = {
    {IN_CALL(embedding), "B T C"},
    {IN_CALL(final_norm), "B T C"},
    {IN_CALL(embedding_dropout), ""},
};

enum {
    BLOCK_ENTRIES = sizeof block_entries / sizeof *block_entries,
    CALL_ENTRIES = sizeof call_entries / sizeof *call_entries
};

static enum status allocate(void *owner, const struct entry *entries,
                            int count, const struct dims *dims,
                            struct error *error)
{
    enum status status = STATUS_OK;
    for (int k = 0; k < count && status == STATUS_OK; k++) {
        struct tensor *tensor = (void *)((char *)owner + entries[k].offset);
        int rank, shape[TENSOR_RANK_MAX];
        dims_shape(dims, entries[k].dims, &rank, shape);
        if (rank > 0)
            status = tensor_new(tensor, rank, shape, error);
    }
    return status;
}

static void release(void *owner, const struct entry *entries, int count)
{
    for (int k = 0; k < count; k++)
        tensor_free((void *)((char *)owner + entries[k].offset));
}

void activations_free(struct activations *activations)
{
    if (activations == NULL)
        return;
    for (int l = 0; l < activations->n_layers; l++)
        release(&activations->blocks[l], block_entries, BLOCK_ENTRIES);
    release(activations, call_entries, CALL_ENTRIES);
    free(activations->blocks);
    free(activations->keep);
    *activations = (struct activations){0};
}

static enum status allocate_all(struct activations *call,
                                const struct gpt_config *config,
                                struct error *error)
{
    const struct dims dims = dims_of(config, call->batch, call->tokens,
                                     call->past);
    size_t size = 0;
    if (size_multiply((size_t)call->tokens,
                      (size_t)(call->past + call->tokens), &size))
        call->keep = malloc(size * sizeof *call->keep);
    call->blocks = calloc((size_t)config->n_layers, sizeof *call->blocks);
    if (call->keep == NULL || call->blocks == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "activations: no memory for %d blocks and a mask of %zu",
                         config->n_layers, size);
    call->n_layers = config->n_layers;
    enum status status = allocate(call, call_entries, CALL_ENTRIES, &dims,
                                  error);
    for (int l = 0; l < call->n_layers && status == STATUS_OK; l++)
        status = allocate(&call->blocks[l], block_entries, BLOCK_ENTRIES,
                          &dims, error);
    return status;
}

enum status activations_new(struct activations *activations,
                            const struct gpt_config *config,
                            int batch, int tokens, int past,
                            struct error *error)
{
    struct activations made = {
        .batch = batch, .tokens = tokens, .past = past
    };
    enum status status = gpt_config_check_call(config, batch, tokens, past,
                                               error);
    if (status == STATUS_OK)
        status = allocate_all(&made, config, error);
    if (status == STATUS_OK)
        *activations = made;
    else
        activations_free(&made);
    return status;
}

static const struct tensor *find(const void *owner,
                                 const struct entry *entries, int count,
                                 const char *name)
{
    for (int k = 0; k < count; k++) {
        const char *place = (const char *)owner + entries[k].offset;
        const struct tensor *tensor = (const void *)place;
        if (strcmp(entries[k].name, name) == 0)
            return tensor->rank > 0 ? tensor : NULL;
    }
    return NULL;
}

const struct tensor *activations_find(const struct activations *activations,
                                      const char *name)
{
    for (int l = 0; l < activations->n_layers; l++) {
        char prefix[24];
        int length = snprintf(prefix, sizeof prefix, "blocks.%d.", l);
        if (strncmp(name, prefix, (size_t)length) == 0)
            return find(&activations->blocks[l], block_entries, BLOCK_ENTRIES,
                        name + length);
    }
    return find(activations, call_entries, CALL_ENTRIES, name);
}
