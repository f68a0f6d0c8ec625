#include <stdlib.h>
#include <string.h>
#include "layer_kv.h"

enum { BATCH, HEADS, LENGTH, HEAD_DIM, DIMENSIONS };

static const char *const dimension_names[DIMENSIONS] = {
    "batch", "heads", "length", "head_dim"
};

int past_key_values_length(const struct past_key_values *past)
{
    return past == NULL || past->layers == NULL || past->n_layers < 1
        ? 0 : past->layers[0].key.shape[LENGTH];
}

void past_key_values_free(struct past_key_values *past)
{
    if (past == NULL)
        return;
    for (int l = 0; past->layers != NULL && l < past->n_layers; l++) {
        tensor_free(&past->layers[l].key);
        tensor_free(&past->layers[l].value);
    }
    free(past->layers);
    *past = (struct past_key_values){0};
}

static enum status caches_new(struct past_key_values *past, int n_layers,
                              const int *shape, struct error *error)
{
    struct past_key_values made = {n_layers, NULL};
    enum status status = STATUS_OK;
    made.layers = calloc((size_t)n_layers, sizeof *made.layers);
    if (made.layers == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "past_key_values: no memory for %d layers", n_layers);
    for (int l = 0; status == STATUS_OK && l < n_layers; l++) {
        status = tensor_new(&made.layers[l].key, DIMENSIONS, shape, error);
        if (status == STATUS_OK)
            status = tensor_new(&made.layers[l].value, DIMENSIONS, shape, error);
    }
    if (status == STATUS_OK)
        *past = made;
    else
        past_key_values_free(&made);
    return status;
}

enum status past_key_values_new(struct past_key_values *past,
                                const struct gpt_config *config,
                                int batch, int length, struct error *error)
{
    const int shape[DIMENSIONS] = {batch, config->n_heads, length,
                                   gpt_config_head_dim(config)};
    return caches_new(past, config->n_layers, shape, error);
}

static enum status tensor_check(const struct tensor *tensor, int layer,
                                const char *part, const int *shape,
                                struct error *error)
{
    if (tensor->data == NULL)
        return error_set(error, STATUS_INVALID,
                         "past_key_values[%d].%s: null tensor", layer, part);
    if (tensor->rank != DIMENSIONS)
        return error_set(error, STATUS_INVALID,
                         "past_key_values[%d].%s: rank: expected %d, got %d",
                         layer, part, DIMENSIONS, tensor->rank);
    for (int d = 0; d < DIMENSIONS; d++)
        if (tensor->shape[d] != shape[d])
            return error_set(error, STATUS_INVALID,
                             "past_key_values[%d].%s: %s: expected %d, got %d",
                             layer, part, dimension_names[d], shape[d],
                             tensor->shape[d]);
    return STATUS_OK;
}
static enum status layers_check(const struct past_key_values *past,
                                const int *shape, struct error *error)
{
    if (past->layers == NULL)
        return error_set(error, STATUS_INVALID,
                         "past_key_values.layers: null");
    enum status status = STATUS_OK;
    for (int l = 0; status == STATUS_OK && l < past->n_layers; l++) {
        status = tensor_check(&past->layers[l].key, l, "key", shape, error);
        if (status == STATUS_OK)
            status = tensor_check(&past->layers[l].value, l, "value", shape, error);
    }
    if (status == STATUS_OK && shape[LENGTH] < 1)
        status = error_set(error, STATUS_INVALID,
                           "past_key_values: length: expected at least 1, got %d"
                           " (pass NULL for no past)", shape[LENGTH]);
    return status;
}

enum status past_key_values_check(const struct past_key_values *past,
                                  const struct gpt_config *config, int batch,
                                  struct error *error)
{
    if (past == NULL)
        return error_set(error, STATUS_INVALID, "past_key_values: null");
    if (past->n_layers != config->n_layers)
        return error_set(error, STATUS_INVALID,
                         "past_key_values: expected %d layers, got %d",
                         config->n_layers, past->n_layers);
    if (batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", batch);
    const int shape[DIMENSIONS] = {batch, config->n_heads,
                                   past_key_values_length(past),
                                   gpt_config_head_dim(config)};
    return layers_check(past, shape, error);
}

void kv_append(const float *past, int past_length,
               const float *recent, int recent_length,
               int slices, int head_dim, float *out)
{
    const size_t old = (size_t)past_length * (size_t)head_dim;
    const size_t new = (size_t)recent_length * (size_t)head_dim;
    for (int s = 0; s < slices; s++) {
        if (old > 0)
            memcpy(out, past + (size_t)s * old, old * sizeof *out);
        memcpy(out + old, recent + (size_t)s * new, new * sizeof *out);
        out += old + new;
    }
}

static void rows_keep(const struct tensor *in, struct tensor *out)
{
    const size_t row = (size_t)in->shape[HEAD_DIM];
    const size_t from = (size_t)in->shape[LENGTH] * row;
    const size_t to = (size_t)out->shape[LENGTH] * row;
    const int slices = in->shape[BATCH] * in->shape[HEADS];
    for (int s = 0; s < slices; s++)
        memcpy(out->data + (size_t)s * to, in->data + (size_t)s * from,
               to * sizeof *out->data);
}

enum status past_key_values_prefix(const struct past_key_values *past,
                                   int length,
                                   struct past_key_values *prefix,
                                   struct error *error)
{
    if (past == NULL || past->layers == NULL || past->n_layers < 1)
        return error_set(error, STATUS_INVALID, "past_key_values: no layers");
    int shape[DIMENSIONS];
    memcpy(shape, past->layers[0].key.shape, sizeof shape);
    enum status status = layers_check(past, shape, error);
    if (status != STATUS_OK)
        return status;
    if (length < 1 || length > shape[LENGTH])
        return error_set(error, STATUS_INVALID,
                         "length: expected 1 to %d, got %d", shape[LENGTH],
                         length);
    struct past_key_values made;
    shape[LENGTH] = length;
    status = caches_new(&made, past->n_layers, shape, error);
    if (status != STATUS_OK)
        return status;
    for (int l = 0; l < made.n_layers; l++) {
        rows_keep(&past->layers[l].key, &made.layers[l].key);
        rows_keep(&past->layers[l].value, &made.layers[l].value);
    }
    *prefix = made;
    return STATUS_OK;
}
