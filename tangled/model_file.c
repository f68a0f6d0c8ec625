#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "model_file.h"

size_t parameters_entries(const struct parameters *parameters,
                          struct safetensors_entry *entries)
{
    size_t filled = 0;
    for (int k = 0; k < parameters->count; k++) {
        const struct parameter *parameter = &parameters->registry[k];
        const struct tensor *tensor = parameter->tensor;
        if (parameter->alias)
            continue;
        struct safetensors_entry entry = {
            .name = parameter->path, .dtype = DTYPE_F32,
            .rank = tensor->rank, .data = tensor->data,
            .bytes = tensor_size(tensor) * sizeof (float)
        };
        for (int i = 0; i < tensor->rank; i++)
            entry.shape[i] = tensor->shape[i];
        entries[filled++] = entry;
    }
    return filled;
}

/* found[k]: what the file has for parameters->registry[k], or NULL. */
static enum status pair_up(const struct parameters *parameters,
                           const struct safetensors *file,
                           const char *prefix,
                           const struct safetensors_entry **found,
                           struct error *error)
{
    const size_t skip = strlen(prefix);
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_entry *entry = safetensors_at(file, i);
        if (strncmp(entry->name, prefix, skip) != 0)
            continue;
        const struct parameter *parameter =
            parameters_find(parameters, entry->name + skip);
        if (parameter == NULL)
            return error_set(error, STATUS_FORMAT, "unexpected tensor \"%s\"",
                             entry->name);
        found[parameter - parameters->registry] = entry;
    }
    return STATUS_OK;
}

static enum status check_pair(const struct parameter *parameter,
                              const struct safetensors_entry *entry,
                              struct error *error)
{
    if (entry == NULL)
        return parameter->alias ? STATUS_OK
               : error_set(error, STATUS_FORMAT, "missing tensor \"%s\"",
                           parameter->path);
    if (entry->dtype != DTYPE_F32)
        return error_set(error, STATUS_FORMAT, "tensor \"%s\": dtype: expected"
                         " F32, got %s", entry->name, dtype_name(entry->dtype));
    const struct tensor *tensor = parameter->tensor;
    bool same = entry->rank == tensor->rank;
    for (int i = 0; same && i < tensor->rank; i++)
        same = entry->shape[i] == tensor->shape[i];
    if (!same) {
        char expected[TENSOR_SHAPE_TEXT_MAX], got[256];
        size_t used = (size_t)snprintf(got, sizeof got, "[");
        for (int i = 0; i < entry->rank; i++)
            used += (size_t)snprintf(got + used, sizeof got - used, "%s%lld",
                                     i == 0 ? "" : ", ", (long long)entry->shape[i]);
        snprintf(got + used, sizeof got - used, "]");
        return error_set(error, STATUS_FORMAT, "tensor \"%s\": shape: expected"
                         " %s, got %s", entry->name,
                         shape_text(tensor->rank, tensor->shape, expected), got);
    }
    return STATUS_OK;
}

static enum status check_pairs(const struct parameters *parameters,
                               const struct safetensors_entry *const *found,
                               struct error *error)
{
    enum status status = STATUS_OK;
    for (int k = 0; k < parameters->count && status == STATUS_OK; k++) {
        const struct parameter *parameter = &parameters->registry[k];
        status = check_pair(parameter, found[k], error);
    }
    for (int k = 0; k < parameters->count && status == STATUS_OK; k++) {
        const struct parameter *parameter = &parameters->registry[k];
        for (int m = 0; m < k && parameter->alias && found[k] != NULL; m++)
            if (parameters->registry[m].tensor->data == parameter->tensor->data
                && memcmp(found[m]->data, found[k]->data, found[k]->bytes) != 0)
                return error_set(error, STATUS_FORMAT, "tensor \"%s\": differs from"
                                 " \"%s\", to which it is tied", found[k]->name,
                                 found[m]->name);
    }
    return status;
}

enum status parameters_load(struct parameters *parameters,
                            const struct safetensors *file,
                            const char *prefix, struct error *error)
{
    const struct safetensors_entry **found =
        calloc((size_t)parameters->count, sizeof *found);
    if (found == NULL)
        return error_set(error, STATUS_NO_MEMORY, "parameters: no memory");
    enum status status = pair_up(parameters, file, prefix, found, error);
    if (status == STATUS_OK)
        status = check_pairs(parameters, found, error);
    for (int k = 0; k < parameters->count && status == STATUS_OK; k++) {
        const struct parameter *parameter = &parameters->registry[k];
        if (found[k] != NULL)
            memcpy(parameter->tensor->data, found[k]->data, found[k]->bytes);
    }
    free(found);
    return status;
}

/* directory/name, to be freed; NULL when there is no memory. */
static char *join(const char *directory, const char *name)
{
    const size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", directory, name);
    return path;
}

static enum status draft_weights(struct file_draft *draft,
                                 const struct tiny_gpt *model,
                                 const char *config, const char *path,
                                 struct error *error)
{
    const struct parameters *parameters = tiny_gpt_weights(model);
    const struct safetensors_pair metadata = { "config", config };
    struct safetensors_entry *entries =
        malloc((size_t)parameters->count * sizeof *entries);
    if (entries == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    const size_t count = parameters_entries(parameters, entries);
    enum status status = safetensors_draft(draft, path, entries, count,
                                           &metadata, 1, error);
    free(entries);
    return status;
}
static enum status save_pair(const struct tiny_gpt *model,
                             const char *config, const char *config_path,
                             const char *weights_path, struct error *error)
{
    const struct file_part part = { config, strlen(config) };
    struct file_draft weights_draft, config_draft;
    enum status status = draft_weights(&weights_draft, model, config,
                                       weights_path, error);
    if (status != STATUS_OK)
        return status;
    status = file_draft_write(&config_draft, config_path, &part, 1, error);
    if (status != STATUS_OK) {
        file_draft_discard(&weights_draft);
        return status;
    }
    status = file_draft_publish(&weights_draft, error);
    if (status == STATUS_OK)
        return file_draft_publish(&config_draft, error);
    file_draft_discard(&config_draft);
    return status;
}

enum status tiny_gpt_save(const struct tiny_gpt *model,
                          const char *directory, struct error *error)
{
    char *config = NULL;
    char *config_path = join(directory, "config.json");
    char *weights_path = join(directory, "model.safetensors");
    enum status status;
    if (config_path == NULL || weights_path == NULL)
        status = file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    else
        status = gpt_config_format(tiny_gpt_config(model), &config, error);
    if (status == STATUS_OK && mkdir(directory, 0777) != 0 && errno != EEXIST)
        status = file_error(error, STATUS_IO, directory, strerror(errno));
    if (status == STATUS_OK)
        status = save_pair(model, config, config_path, weights_path, error);
    free(config);
    free(config_path);
    free(weights_path);
    return status;
}

static enum status check_same_save(const struct gpt_config *config,
                                   const char *text, struct error *error)
{
    struct gpt_config saved;
    enum status status = gpt_config_parse(&saved, text, strlen(text), error);
    if (status != STATUS_OK)
        return status;
    const bool same = saved.vocab_size == config->vocab_size
        && saved.context_length == config->context_length
        && saved.d_model == config->d_model
        && saved.n_layers == config->n_layers
        && saved.n_heads == config->n_heads && saved.d_ff == config->d_ff
        && saved.layer_norm_eps == config->layer_norm_eps
        && saved.tanh_gelu == config->tanh_gelu;
    return same ? STATUS_OK
           : error_set(error, STATUS_FORMAT, "weights were saved with another"
                       " config than config.json: %s", text);
}

static enum status load_pair(struct tiny_gpt *model,
                             const struct safetensors *weights,
                             struct error *error)
{
    const char *text = safetensors_metadata(weights, "config");
    enum status status = STATUS_OK;
    if (text != NULL)
        status = check_same_save(tiny_gpt_config(model), text, error);
    if (status == STATUS_OK)
        status = parameters_load(tiny_gpt_parameters(model), weights, "",
                                 error);
    return status;
}

static enum status load_from(struct tiny_gpt **model,
                             const char *config_path,
                             const char *weights_path, struct error *error)
{
    struct gpt_config config;
    struct safetensors *weights = NULL;
    struct tiny_gpt *made = NULL;
    struct error reason = { .status = STATUS_OK };
    enum status status = gpt_config_read(&config, config_path, error);
    if (status == STATUS_OK)
        status = safetensors_open(&weights, weights_path, error);
    if (status == STATUS_OK)
        status = tiny_gpt_new(&made, &config, error);
    if (status == STATUS_OK) {
        status = load_pair(made, weights, &reason);
        if (status != STATUS_OK)
            file_error(error, status, weights_path, reason.message);
    }
    safetensors_close(&weights);
    if (status == STATUS_OK)
        *model = made;
    else
        tiny_gpt_free(&made);
    return status;
}

enum status tiny_gpt_load(struct tiny_gpt **model, const char *directory,
                          struct error *error)
{
    char *config_path = join(directory, "config.json");
    char *weights_path = join(directory, "model.safetensors");
    enum status status;
    if (config_path == NULL || weights_path == NULL)
        status = file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    else
        status = load_from(model, config_path, weights_path, error);
    free(config_path);
    free(weights_path);
    return status;
}
