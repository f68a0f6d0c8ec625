#include "held.h"

static struct held_tensor held(const char *name, const struct tensor *tensor,
                               bool alias)
{
    return (struct held_tensor){name, tensor->rank,
                                {tensor->shape[0], tensor->shape[1]}, alias,
                                tensor_size(tensor)};
}

size_t held_by_gpt(const struct parameters *parameters,
                   struct held_tensor *list)
{
    const struct parameter *registry = parameters->registry;
    const size_t count = (size_t)parameters->count;
    for (size_t k = 0; k < count; k++)
        list[k] = held(registry[k].path, registry[k].tensor,
                       registry[k].alias);
    return count;
}

size_t held_by_llama(const struct llama *model, struct held_tensor *list)
{
    const size_t count = llama_tensor_count(model);
    for (size_t k = 0; k < count; k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        list[k] = held(entry->name, entry->tensor, entry->alias);
    }
    return count;
}

size_t held_by_file(const struct safetensors *file, struct held_tensor *list)
{
    const size_t count = safetensors_count(file);
    for (size_t k = 0; k < count; k++) {
        const struct safetensors_entry *entry = safetensors_at(file, k);
        size_t elements = 1;
        for (int axis = 0; axis < entry->rank; axis++)
            elements *= (size_t)entry->shape[axis];
        list[k] = (struct held_tensor){
            entry->name, entry->rank,
            {entry->rank > 0 ? entry->shape[0] : 1,
             entry->rank > 1 ? entry->shape[1] : 1}, false, elements
        };
    }
    return count;
}

size_t held_by_cache(const struct past_key_values *storage)
{
    size_t floats = 0;
    for (int l = 0; l < storage->n_layers; l++)
        floats += tensor_size(&storage->layers[l].key)
                  + tensor_size(&storage->layers[l].value);
    return floats * sizeof (float);
}
