#include "parameters.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dims.h"

#define MODEL_ROW(member, dims) \
    { #member, dims, offsetof(struct parameters, member) }
#define BLOCK_ROW(member, dims) \
    { #member, dims, offsetof(struct block, member) }

const struct parameter_row first_rows[FIRST_ROWS] = {
    MODEL_ROW(token_embedding.weight, "V C"),
    MODEL_ROW(position_embedding.weight, "N C"),
};
const struct parameter_row last_rows[LAST_ROWS] = {
    MODEL_ROW(final_norm.weight, "C"),
    MODEL_ROW(final_norm.bias, "C"),
};
const struct parameter_row alias_rows[ALIAS_ROWS] = {
    MODEL_ROW(lm_head.weight, "V C"),
};
const struct parameter_row block_rows[BLOCK_ROWS] = {
    BLOCK_ROW(attention_norm.weight, "C"),
    BLOCK_ROW(attention_norm.bias, "C"),
    BLOCK_ROW(attention.qkv_proj.weight, "3C C"),
    BLOCK_ROW(attention.qkv_proj.bias, "3C"),
    BLOCK_ROW(attention.out_proj.weight, "C C"),
    BLOCK_ROW(attention.out_proj.bias, "C"),
    BLOCK_ROW(mlp_norm.weight, "C"),
    BLOCK_ROW(mlp_norm.bias, "C"),
    BLOCK_ROW(mlp.up_proj.weight, "F C"),
    BLOCK_ROW(mlp.up_proj.bias, "F"),
    BLOCK_ROW(mlp.down_proj.weight, "C F"),
    BLOCK_ROW(mlp.down_proj.bias, "C"),
};

/* base is the struct that the row's offset counts from. */
static void register_tensor(struct parameters *parameters,
                            const char *prefix,
                            const struct parameter_row *row, void *base)
{
    struct tensor *tensor = (void *)((char *)base + row->offset);
    struct dims dims = dims_of(&parameters->config, 1, 1, 0);
    int index = parameters->count++;
    struct parameter *entry = &parameters->registry[index];
    char *path = parameters->names + (size_t)index * 2 * PARAMETER_PATH_MAX;
    char *owner = path + PARAMETER_PATH_MAX;
    snprintf(path, PARAMETER_PATH_MAX, "%s%s", prefix, row->path);
    memcpy(owner, path, (size_t)(strrchr(path, '.') - path));
    entry->path = path;
    entry->owner = owner;
    dims_shape(&dims, row->dims, &tensor->rank, tensor->shape);
    entry->tensor = tensor;
}

static bool grow_tree(struct parameters *made)
{
    size_t layers = (size_t)made->config.n_layers;
    size_t entries = FIRST_ROWS + layers * BLOCK_ROWS + LAST_ROWS + ALIAS_ROWS;
    made->blocks = calloc(layers, sizeof *made->blocks);
    made->registry = calloc(entries, sizeof *made->registry);
    made->names = calloc(entries, 2 * PARAMETER_PATH_MAX);
    if (made->blocks == NULL || made->registry == NULL || made->names == NULL)
        return false;
    for (int row = 0; row < FIRST_ROWS; row++)
        register_tensor(made, "", &first_rows[row], made);
    for (int layer = 0; layer < made->config.n_layers; layer++) {
        char prefix[PARAMETER_PATH_MAX];
        snprintf(prefix, sizeof prefix, "blocks.%d.", layer);
        for (int row = 0; row < BLOCK_ROWS; row++)
            register_tensor(made, prefix, &block_rows[row],
                            &made->blocks[layer]);
    }
    for (int row = 0; row < LAST_ROWS; row++)
        register_tensor(made, "", &last_rows[row], made);
    for (int row = 0; row < ALIAS_ROWS; row++) {
        register_tensor(made, "", &alias_rows[row], made);
        made->registry[made->count - 1].alias = true;
    }
    return true;
}

static bool give_storage(struct parameters *made)
{
    for (int i = 0; i < made->count; i++)
        if (!made->registry[i].alias)
            made->size += tensor_size(made->registry[i].tensor);
    made->storage = calloc(made->size, sizeof *made->storage);
    if (made->storage == NULL)
        return false;
    float *next = made->storage;
    for (int i = 0; i < made->count; i++) {
        struct tensor *tensor = (struct tensor *)made->registry[i].tensor;
        if (made->registry[i].alias)
            continue;
        tensor->data = next;
        next += tensor_size(tensor);
    }
    made->lm_head.weight = made->token_embedding.weight;
    return true;
}

enum status parameters_new(struct parameters **parameters,
                           const struct gpt_config *config,
                           struct error *error)
{
    enum status status = gpt_config_check(config, error);
    if (status != STATUS_OK)
        return status;
    struct parameters *made = calloc(1, sizeof *made);
    if (made != NULL)
        memcpy((void *)&made->config, config, sizeof *config);
    if (made == NULL || !grow_tree(made) || !give_storage(made)) {
        parameters_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "parameters: no memory for this config's model");
    }
    *parameters = made;
    return STATUS_OK;
}

void parameters_free(struct parameters **parameters)
{
    if (parameters == NULL || *parameters == NULL)
        return;
    free((*parameters)->storage);
    free((*parameters)->names);
    free((*parameters)->registry);
    free((*parameters)->blocks);
    free(*parameters);
    *parameters = NULL;
}

const struct parameter *parameters_find(const struct parameters *parameters,
                                        const char *path)
{
    for (int i = 0; i < parameters->count; i++)
        if (strcmp(parameters->registry[i].path, path) == 0)
            return &parameters->registry[i];
    return NULL;
}
