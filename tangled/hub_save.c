#include "hub_save.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file.h"
#include "safetensors.h"

enum { CONFIG_TEXT_MAX = 1024 };

enum status hub_llama_format(const struct llama_config *config, char **text,
                             struct error *error)
{
    char *made = malloc(CONFIG_TEXT_MAX);
    const bool experts = config->n_experts > 0;
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "config: no memory");
    int used = 0;
    used += snprintf(made + used, CONFIG_TEXT_MAX - (size_t)used,
        "{\n  \"vocab_size\": %d,\n  \"max_position_embeddings\": %d,\n"
        "  \"hidden_size\": %d,\n  \"num_hidden_layers\": %d,\n"
        "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
        "  \"head_dim\": %d,\n  \"intermediate_size\": %d,\n"
        "  \"rms_norm_eps\": %.17g,\n  \"rope_theta\": %.17g,\n"
        "  \"tie_word_embeddings\": %s,\n  \"hidden_act\": \"silu\",\n",
        config->vocab_size, config->context_length, config->d_model,
        config->n_layers, config->n_heads, config->n_kv_heads,
        config->head_dim, config->d_ff, config->rms_norm_eps,
        config->rope_theta, config->tie_word_embeddings ? "true" : "false");
    used += snprintf(made + used, CONFIG_TEXT_MAX - (size_t)used,
        "  \"model_type\": \"%s\",\n  \"architectures\": [\"%s\"],\n",
        experts ? "mixtral" : "llama",
        experts ? "MixtralForCausalLM" : "LlamaForCausalLM");
    if (experts)
        used += snprintf(made + used, CONFIG_TEXT_MAX - (size_t)used,
            "  \"num_local_experts\": %d,\n  \"num_experts_per_tok\": %d,\n",
            config->n_experts, config->experts_per_token);
    snprintf(made + used, CONFIG_TEXT_MAX - (size_t)used,
             "  \"torch_dtype\": \"float32\"\n}\n");
    *text = made;
    return STATUS_OK;
}

/* To be freed; NULL when there is no memory. */
static char *join(const char *directory, const char *name)
{
    const size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", directory, name);
    return path;
}

enum status hub_save_check(const char *directory, struct error *error)
{
    struct stat about;
    char *path = join(directory, "model.safetensors.index.json");
    if (path == NULL)
        return file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    const bool there = lstat(path, &about) == 0;
    enum status status = STATUS_OK;
    if (there)
        status = file_error(error, STATUS_INVALID, path, "a model in shards is"
                            " here; save into another directory");
    free(path);
    return status;
}

static size_t list_tensors(const struct llama *model,
                           struct safetensors_entry *entries)
{
    size_t filled = 0;
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *named = llama_tensor_at(model, k);
        const struct tensor *tensor = named->tensor;
        struct safetensors_entry entry = {
            .name = named->name, .dtype = DTYPE_F32, .rank = tensor->rank,
            .data = tensor->data,
            .bytes = tensor_size(tensor) * sizeof (float)
        };
        for (int d = 0; d < tensor->rank; d++)
            entry.shape[d] = tensor->shape[d];
        if (!named->alias)
            entries[filled++] = entry;
    }
    return filled;
}

static enum status draft_weights(struct file_draft *draft,
                                 const struct llama *model, const char *path,
                                 struct error *error)
{
    const struct safetensors_pair metadata = { "format", "pt" };
    struct safetensors_entry *entries =
        calloc(llama_tensor_count(model), sizeof *entries);
    if (entries == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    const size_t count = list_tensors(model, entries);
    const enum status status = safetensors_draft(draft, path, entries, count,
                                                 &metadata, 1, error);
    free(entries);
    return status;
}

static enum status save_pair(const struct llama *model, const char *config,
                             const char *config_path,
                             const char *weights_path, struct error *error)
{
    const struct file_part part = { config, strlen(config) };
    struct file_draft weights_draft, config_draft;
    enum status status = draft_weights(&weights_draft, model, weights_path,
                                       error);
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

enum status hub_save_llama(const struct llama *model, const char *directory,
                           struct error *error)
{
    char *config = NULL;
    char *config_path = join(directory, "config.json");
    char *weights_path = join(directory, "model.safetensors");
    enum status status;
    if (config_path == NULL || weights_path == NULL)
        status = file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    else
        status = hub_llama_format(llama_config(model), &config, error);
    if (status == STATUS_OK && mkdir(directory, 0777) != 0 && errno != EEXIST)
        status = file_error(error, STATUS_IO, directory, strerror(errno));
    if (status == STATUS_OK)
        status = save_pair(model, config, config_path, weights_path, error);
    free(config);
    free(config_path);
    free(weights_path);
    return status;
}
