#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "half.h"
#include "hub.h"

enum { HUB_NAME_MAX = 128 };

struct wanted {
    char name[HUB_NAME_MAX];
    const struct tensor *tensor;    /* of the model, to be filled */
    bool turned;                    /* the file has [in, out] */
    bool alias;                     /* may be absent */
    const struct safetensors_entry *entry;
};

struct wanted_list {
    struct wanted *items;
    size_t count;
};

static char *entry_shape_text(const struct safetensors_entry *entry,
                              char text[TENSOR_SHAPE_TEXT_MAX])
{
    size_t used = 1;
    strcpy(text, "[");
    for (int k = 0; k < entry->rank && used < TENSOR_SHAPE_TEXT_MAX; k++)
        used += (size_t)snprintf(text + used, TENSOR_SHAPE_TEXT_MAX - used,
                                 "%s%lld", k == 0 ? "" : ", ",
                                 (long long)entry->shape[k]);
    if (used < TENSOR_SHAPE_TEXT_MAX)
        snprintf(text + used, TENSOR_SHAPE_TEXT_MAX - used, "]");
    return text;
}

static enum status check_entry(const struct safetensors_entry *entry,
                               int rank, const int *shape,
                               struct error *error)
{
    char expected[TENSOR_SHAPE_TEXT_MAX], got[TENSOR_SHAPE_TEXT_MAX];
    if (!dtype_is_weight(entry->dtype))
        return error_set(error, STATUS_FORMAT, "tensor \"%.96s\": dtype:"
                         " expected F32, F16 or BF16, got %s", entry->name,
                         dtype_name(entry->dtype));
    bool same;
    same = entry->rank == rank;
    for (int k = 0; same && k < rank; k++)
        same = entry->shape[k] == shape[k];
    return same ? STATUS_OK
           : error_set(error, STATUS_FORMAT, "tensor \"%.96s\": the config"
                       " asks for %s, the file has %s", entry->name,
                       shape_text(rank, shape, expected),
                       entry_shape_text(entry, got));
}

static enum status refuse_missing(const struct wanted_list *list,
                                  size_t missing, struct error *error)
{
    char names[160] = "";
    size_t filled = 0;
    for (size_t k = 0; k < list->count && filled < sizeof names; k++)
        if (list->items[k].entry == NULL && !list->items[k].alias)
            filled += (size_t)snprintf(names + filled,
                                       sizeof names - filled, " \"%s\"",
                                       list->items[k].name);
    return error_set(error, STATUS_FORMAT, "missing %zu tensor%s:%s%s",
                     missing, missing == 1 ? "" : "s", names,
                     filled >= sizeof names ? "..." : "");
}

static enum status find_wanted(struct wanted_list *list,
                               const struct shards *shards, bool *used,
                               struct error *error)
{
    size_t missing = 0;
    for (size_t k = 0; k < list->count; k++) {
        struct wanted *wanted = &list->items[k];
        const size_t index = shards_find(shards, wanted->name);
        if (index < shards_count(shards)) {
            wanted->entry = shards_at(shards, index);
            used[index] = true;
        } else if (!wanted->alias)
            missing++;
    }
    return missing == 0 ? STATUS_OK : refuse_missing(list, missing, error);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), part = strlen(end);
    return length >= part && strcmp(name + length - part, end) == 0;
}

static enum status refuse_unwanted(const struct shards *shards,
                                   const bool *used, struct error *error)
{
    for (size_t k = 0; k < shards_count(shards); k++) {
        const char *name = shards_at(shards, k)->name;
        if (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias")
            || ends_with(name, ".rotary_emb.inv_freq"))
            continue;
        if (!used[k])
            return error_set(error, STATUS_FORMAT, "unexpected tensor \"%.128s\"",
                             name);
    }
    return STATUS_OK;
}

enum { TURNED_AT_ONCE = 64 };

/* entry [I,O] into out [O,I] */
static void copy_turned(const struct safetensors_entry *entry, float *out)
{
    const size_t rows = (size_t)entry->shape[0];
    const size_t columns = (size_t)entry->shape[1];
    const size_t size = dtype_size(entry->dtype);
    const unsigned char *data = entry->data;
    for (size_t first = 0; first < columns; first += TURNED_AT_ONCE) {
        const size_t left = columns - first;
        const size_t count = left < TURNED_AT_ONCE ? left : TURNED_AT_ONCE;
        for (size_t i = 0; i < rows; i++) {
            float part[TURNED_AT_ONCE];
            floats_from(entry->dtype, data + (i * columns + first) * size,
                        count, part);
            for (size_t k = 0; k < count; k++)
                out[(first + k) * rows + i] = part[k];
        }
    }
}

static void copy_wanted(const struct wanted *wanted)
{
    float *out = wanted->tensor->data;
    if (wanted->turned)
        copy_turned(wanted->entry, out);
    else
        floats_from(wanted->entry->dtype, wanted->entry->data,
                    tensor_size(wanted->tensor), out);
}

static enum status check_aliases(const struct wanted_list *list,
                                 struct error *error)
{
    for (size_t k = 0; k < list->count; k++) {
        const struct wanted *alias = &list->items[k], *first = list->items;
        if (!alias->alias || alias->entry == NULL)
            continue;
        while (first->tensor->data != alias->tensor->data)
            first++;
        if (first->entry->dtype != alias->entry->dtype
            || memcmp(first->entry->data, alias->entry->data,
                      alias->entry->bytes) != 0)
            return error_set(error, STATUS_FORMAT, "tensor \"%.64s\": differs from"
                             " \"%.64s\", to which it is tied", alias->name,
                             first->name);
    }
    return STATUS_OK;
}

static enum status check_wanted(const struct wanted *wanted,
                                struct error *error)
{
    const int *shape = wanted->tensor->shape;
    const int turned[2] = {shape[1], shape[0]};
    if (wanted->entry == NULL)
        return STATUS_OK;
    return check_entry(wanted->entry, wanted->tensor->rank,
                       wanted->turned ? turned : shape, error);
}

static enum status fill_wanted(struct wanted_list *list,
                               const struct shards *shards, bool *used,
                               struct error *error)
{
    enum status status = find_wanted(list, shards, used, error);
    for (size_t k = 0; k < list->count && status == STATUS_OK; k++)
        status = check_wanted(&list->items[k], error);
    if (status == STATUS_OK)
        status = check_aliases(list, error);
    if (status == STATUS_OK)
        status = refuse_unwanted(shards, used, error);
    for (size_t k = 0; k < list->count && status == STATUS_OK; k++)
        if (list->items[k].entry != NULL)
            copy_wanted(&list->items[k]);
    return status;
}

static const struct gpt2_name {
    const char *ours, *theirs;
    bool turned;            /* of its matrix */
} gpt2_names[] = {
    {"token_embedding", "wte", false},
    {"position_embedding", "wpe", false},
    {"final_norm", "ln_f", false},
    {"attention_norm", "ln_1", false},
    {"attention.qkv_proj", "attn.c_attn", true},
    {"attention.out_proj", "attn.c_proj", true},
    {"mlp_norm", "ln_2", false},
    {"mlp.up_proj", "mlp.c_fc", true},
    {"mlp.down_proj", "mlp.c_proj", true},
};

static void want_gpt2(struct wanted *wanted, const char *prefix,
                      const struct parameter *parameter)
{
    const char *path = parameter->path;
    const char *leaf = strrchr(path, '.');
    int layer = -1, skip = 0;
    *wanted = (struct wanted){.tensor = parameter->tensor,
                              .alias = parameter->alias};
    if (sscanf(path, "blocks.%d.%n", &layer, &skip) == 1)
        path += skip;
    if (parameter->alias) {
        snprintf(wanted->name, sizeof wanted->name, "%s", path);
        return;
    }
    const struct gpt2_name *name = gpt2_names;
    while (strncmp(path, name->ours, (size_t)(leaf - path)) != 0
           || name->ours[leaf - path] != '\0')
        name++;
    char block[24] = "";
    if (layer >= 0)
        snprintf(block, sizeof block, "h.%d.", layer);
    snprintf(wanted->name, sizeof wanted->name, "%s%s%s%s", prefix, block,
             name->theirs, leaf);
    wanted->turned = name->turned && parameter->tensor->rank == 2;
}

/* A tensor of rows and columns (0: any shape), before there is a model. */
static enum status look_at(const struct shards *shards, int rows,
                           int columns, struct error *error,
                           const char *format, ...) ERROR_PRINTF(5, 6);
static enum status look_at(const struct shards *shards, int rows,
                           int columns, struct error *error,
                           const char *format, ...)
{
    char name[HUB_NAME_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const size_t index = shards_find(shards, name);
    if (index == shards_count(shards))
        return error_set(error, STATUS_FORMAT, "missing tensor \"%s\"",
                         name);
    if (rows == 0)
        return STATUS_OK;
    return check_entry(shards_at(shards, index), SHAPE(rows, columns),
                       error);
}

static enum status look_at_gpt2(const struct gpt_config *config,
                                const char *prefix,
                                const struct shards *shards,
                                struct error *error)
{
    const int c = config->d_model;
    enum status status = look_at(shards, config->vocab_size, c, error,
                                 "%swte.weight", prefix);
    if (status == STATUS_OK)
        status = look_at(shards, config->context_length, c, error,
                         "%swpe.weight", prefix);
    if (status == STATUS_OK)
        status = look_at(shards, c, config->d_ff, error,
                         "%sh.0.mlp.c_fc.weight", prefix);
    for (int l = 0; l < config->n_layers && status == STATUS_OK; l++)
        status = look_at(shards, 0, 0, error, "%sh.%d.ln_1.weight", prefix,
                         l);
    return status;
}

static enum status fill_gpt2(struct tiny_gpt *model, const char *prefix,
                             const struct shards *shards, bool *used,
                             struct error *error)
{
    const struct parameters *parameters = tiny_gpt_weights(model);
    struct wanted_list list = {.count = (size_t)parameters->count};
    list.items = calloc(list.count, sizeof *list.items);
    if (list.items == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to load it");
    for (size_t k = 0; k < list.count; k++)
        want_gpt2(&list.items[k], prefix, &parameters->registry[k]);
    const enum status status = fill_wanted(&list, shards, used, error);
    free(list.items);
    return status;
}

enum status hub_load_gpt2(struct tiny_gpt **model,
                          const struct gpt_config *config,
                          const struct shards *shards, bool *used,
                          struct error *error)
{
    struct tiny_gpt *made = NULL;
    const bool bare = shards_find(shards, "wte.weight") < shards_count(shards);
    const char *prefix = bare ? "" : "transformer.";
    enum status status = look_at_gpt2(config, prefix, shards, error);
    if (status == STATUS_OK)
        status = tiny_gpt_new(&made, config, error);
    if (status == STATUS_OK)
        status = fill_gpt2(made, prefix, shards, used, error);
    if (status == STATUS_OK)
        *model = made;
    else
        tiny_gpt_free(&made);
    return status;
}

#define LAYER "model.layers.%d."

static enum status look_at_llama(const struct llama_config *config,
                                 const struct shards *shards,
                                 struct error *error)
{
    const int c = config->d_model, d = config->head_dim;
    enum status status = look_at(shards, config->vocab_size, c, error,
                                 "model.embed_tokens.weight");
    if (status == STATUS_OK)
        status = look_at(shards, config->n_heads * d, c, error,
                         LAYER "self_attn.q_proj.weight", 0);
    if (status == STATUS_OK)
        status = look_at(shards, config->n_kv_heads * d, c, error,
                         LAYER "self_attn.k_proj.weight", 0);
    if (status == STATUS_OK && config->n_experts == 0)
        status = look_at(shards, config->d_ff, c, error,
                         LAYER "mlp.gate_proj.weight", 0);
    if (status == STATUS_OK && config->n_experts > 0)
        status = look_at(shards, config->n_experts, c, error,
                         LAYER "block_sparse_moe.gate.weight", 0);
    for (int l = 0; l < config->n_layers && status == STATUS_OK; l++)
        status = look_at(shards, 0, 0, error,
                         LAYER "input_layernorm.weight", l);
    for (int l = 0; l < config->n_layers; l++)
        for (int e = 0; e < config->n_experts && status == STATUS_OK; e++)
            status = look_at(shards, config->d_ff, c, error, LAYER
                             "block_sparse_moe.experts.%d.w1.weight", l, e);
    return status;
}

static enum status fill_llama(struct llama *model,
                              const struct shards *shards, bool *used,
                              struct error *error)
{
    struct wanted_list list = {.count = llama_tensor_count(model)};
    list.items = calloc(list.count, sizeof *list.items);
    if (list.items == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to load it");
    for (size_t k = 0; k < list.count; k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        struct wanted *wanted = &list.items[k];
        wanted->tensor = entry->tensor;
        wanted->alias = entry->alias;
        snprintf(wanted->name, sizeof wanted->name, "%s", entry->name);
    }
    const enum status status = fill_wanted(&list, shards, used, error);
    free(list.items);
    return status;
}

enum status hub_load_llama(struct llama **model,
                           const struct llama_config *config,
                           const struct shards *shards, bool *used,
                           struct error *error)
{
    struct llama *made = NULL;
    enum status status = look_at_llama(config, shards, error);
    if (status == STATUS_OK)
        status = llama_new(&made, config, error);
    if (status == STATUS_OK)
        status = fill_llama(made, shards, used, error);
    if (status == STATUS_OK)
        *model = made;
    else
        llama_free(&made);
    return status;
}
