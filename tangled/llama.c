#include "llama.h"
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llama_parts.h"
#include "rope.h"

bool llama_config_floats(const struct llama_config *config, size_t *floats)
{
    const size_t layers = (size_t)config->n_layers;
    const size_t c = (size_t)config->d_model, f = (size_t)config->d_ff;
    const size_t d = (size_t)config->head_dim;
    const size_t v = (size_t)config->vocab_size;
    const size_t table[][3] = {
        {config->tie_word_embeddings ? 1 : 2, v, c},    /* in, out */
        {2 * layers + 1, 1, c},                         /* norms */
        {2 * layers, (size_t)config->n_heads * d, c},      /* q, o */
        {2 * layers, (size_t)config->n_kv_heads * d, c},   /* k, v */
        {3 * layers * (size_t)(config->n_experts > 0 ? config->n_experts : 1), f, c},
        {layers, (size_t)config->n_experts, c},
    };
    size_t sum = 0, bytes;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        size_t product;
        if (!size_multiply(table[k][0], table[k][1], &product)
            || !size_multiply(product, table[k][2], &product)
            || !size_add(sum, product, &sum)
            || !size_multiply(sum, sizeof (float), &bytes))
            return false;
    }
    *floats = sum;
    return true;
}

static enum status products_check(const struct llama_config *config,
                                  struct error *error)
{
    if (config->n_heads % config->n_kv_heads != 0)
        return error_set(error, STATUS_INVALID,
                         "n_kv_heads: expected a divisor of n_heads %d, got %d",
                         config->n_heads, config->n_kv_heads);
    const int experts = config->n_experts, chosen = config->experts_per_token;
    if (experts < 0 || experts > LLAMA_EXPERTS_MAX)
        return error_set(error, STATUS_INVALID,
                         "n_experts: expected 0 to %d, got %d",
                         (int)LLAMA_EXPERTS_MAX, experts);
    if (experts == 0 ? chosen != 0 : chosen < 1 || chosen > experts)
        return error_set(error, STATUS_INVALID,
                         "experts_per_token: expected %d to n_experts: %d, got"
                         " %d", experts > 0, experts, chosen);
    if (config->n_layers > LLAMA_LAYERS_MAX)
        return error_set(error, STATUS_INVALID,
                         "n_layers: expected at most %d, got %d",
                         (int)LLAMA_LAYERS_MAX, config->n_layers);
    if (config->n_heads > INT_MAX / config->head_dim)
        return error_set(error, STATUS_INVALID,
                         "n_heads: expected n_heads * head_dim to fit an"
                         " int, got %d * %d", config->n_heads,
                         config->head_dim);
    size_t floats;
    if (!llama_config_floats(config, &floats))
        return error_set(error, STATUS_INVALID,
                         "vocab_size, d_model, n_layers, n_heads, d_ff: the"
                         " parameters' bytes do not fit a size_t");
    return STATUS_OK;
}

enum status llama_config_check(const struct llama_config *config,
                               struct error *error)
{
    const struct { const char *name; int size; } sizes[] = {
        {"vocab_size", config->vocab_size},
        {"context_length", config->context_length},
        {"d_model", config->d_model}, {"n_layers", config->n_layers},
        {"n_heads", config->n_heads}, {"n_kv_heads", config->n_kv_heads},
        {"head_dim", config->head_dim}, {"d_ff", config->d_ff},
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        if (sizes[k].size <= 0)
            return error_set(error, STATUS_INVALID,
                             "%s: expected a positive size, got %d", sizes[k].name,
                             sizes[k].size);
    }
    if (!(config->rms_norm_eps > 0 && isfinite(config->rms_norm_eps)))
        return error_set(error, STATUS_INVALID,
                         "rms_norm_eps: expected a positive finite number, got"
                         " %g", config->rms_norm_eps);
    enum status status = rope_check(config->head_dim, config->rope_theta,
                                    error);
    if (status == STATUS_OK)
        status = products_check(config, error);
    return status;
}

enum { LLAMA_NAME_MAX = 96 };
#define LAYER "model.layers.%d."
#define ATTENTION LAYER "self_attn."

static void name_tensor(struct llama *made, size_t index, const char *format,
                        va_list arguments)
{
    char *name = made->names + index * 2 * LLAMA_NAME_MAX;
    char *owner = name + LLAMA_NAME_MAX;
    vsnprintf(name, LLAMA_NAME_MAX, format, arguments);
    memcpy(owner, name, (size_t)(strrchr(name, '.') - name));
    made->registry[index].name = name;
    made->registry[index].owner = owner;
}

/* columns is 0 for a vector. */
static void list(struct llama *made, struct tensor *tensor, int rows,
                 int columns, const char *format, ...) ERROR_PRINTF(5, 6);
static void list(struct llama *made, struct tensor *tensor, int rows,
                 int columns, const char *format, ...)
{
    const size_t index = made->count++;
    if (made->registry == NULL)
        return;
    struct llama_tensor *entry = &made->registry[index];
    entry->tensor = tensor;
    entry->alias = tensor->data != NULL;
    if (!entry->alias) {
        tensor->rank = columns == 0 ? 1 : 2;
        tensor->shape[0] = rows;
        tensor->shape[1] = columns;
        tensor->data = made->storage + made->floats;
        made->floats += tensor_size(tensor);
    }
    va_list arguments;
    va_start(arguments, format);
    name_tensor(made, index, format, arguments);
    va_end(arguments);
}

static void list_layer(struct llama *made, int l)
{
    const struct llama_config *config = &made->config;
    const int c = config->d_model;
    const int q = config->n_heads * config->head_dim;
    const int kv = config->n_kv_heads * config->head_dim;
    struct llama_layer *layer = &made->layers[l];
    list(made, &layer->input_norm, c, 0, LAYER "input_layernorm.weight", l);
    list(made, &layer->q_proj.weight, q, c, ATTENTION "q_proj.weight", l);
    list(made, &layer->k_proj.weight, kv, c, ATTENTION "k_proj.weight", l);
    list(made, &layer->v_proj.weight, kv, c, ATTENTION "v_proj.weight", l);
    list(made, &layer->o_proj.weight, c, q, ATTENTION "o_proj.weight", l);
    list(made, &layer->post_norm, c, 0,
         LAYER "post_attention_layernorm.weight", l);
    const int f = config->d_ff;
    if (config->n_experts == 0) {
        list(made, &layer->gate_proj.weight, f, c, LAYER "mlp.gate_proj.weight", l);
        list(made, &layer->up_proj.weight, f, c, LAYER "mlp.up_proj.weight", l);
        list(made, &layer->down_proj.weight, c, f, LAYER "mlp.down_proj.weight", l);
    } else {
        list(made, &layer->moe.gate.weight, config->n_experts, c,
             LAYER "block_sparse_moe.gate.weight", l);
        for (int e = 0; e < config->n_experts; e++) {
            struct moe_expert *expert = &layer->moe.experts[e];
            list(made, &expert->w1.weight, f, c,
                 LAYER "block_sparse_moe.experts.%d.w1.weight", l, e);
            list(made, &expert->w3.weight, f, c,
                 LAYER "block_sparse_moe.experts.%d.w3.weight", l, e);
            list(made, &expert->w2.weight, c, f,
                 LAYER "block_sparse_moe.experts.%d.w2.weight", l, e);
        }
    }
}

static void list_all(struct llama *made)
{
    const struct llama_config *config = &made->config;
    const int v = config->vocab_size, c = config->d_model;
    made->count = made->floats = 0;
    list(made, &made->embed_tokens, v, c, "model.embed_tokens.weight");
    for (int l = 0; l < config->n_layers; l++)
        list_layer(made, l);
    list(made, &made->norm, c, 0, "model.norm.weight");
    if (config->tie_word_embeddings)
        made->lm_head.weight = made->embed_tokens;
    list(made, &made->lm_head.weight, v, c, "lm_head.weight");
}

void llama_free(struct llama **model)
{
    if (model == NULL || *model == NULL)
        return;
    if ((*model)->layers != NULL)
        free((*model)->layers[0].moe.experts);
    free((*model)->layers);
    free((*model)->registry);
    free((*model)->storage);
    free((*model)->names);
    free(*model);
    *model = NULL;
}

static bool allocate(struct llama *made)
{
    size_t floats;
    made->layers = calloc((size_t)made->config.n_layers,
                          sizeof *made->layers);
    if (made->layers == NULL || !llama_config_floats(&made->config, &floats))
        return false;
    if (made->config.n_experts > 0) {
        const size_t each = (size_t)made->config.n_experts;
        struct moe_expert *experts = calloc((size_t)made->config.n_layers,
                                            each * sizeof *experts);
        if (experts == NULL)
            return false;
        for (int l = 0; l < made->config.n_layers; l++)
            made->layers[l].moe.experts = experts + (size_t)l * each;
    }
    list_all(made);
    made->registry = calloc(made->count, sizeof *made->registry);
    made->names = calloc(made->count, 2 * LLAMA_NAME_MAX);
    made->storage = calloc(floats, sizeof *made->storage);
    if (made->registry == NULL || made->names == NULL
        || made->storage == NULL)
        return false;
    list_all(made);
    assert(made->floats == floats);
    return true;
}

enum status llama_new(struct llama **model, const struct llama_config *config,
                      struct error *error)
{
    enum status status = llama_config_check(config, error);
    if (status != STATUS_OK)
        return status;
    struct llama *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->config = *config;
    if (made == NULL || !allocate(made)) {
        llama_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "llama: no memory for this config's model");
    }
    *model = made;
    return STATUS_OK;
}

const struct llama_config *llama_config(const struct llama *model)
{
    return &model->config;
}

size_t llama_tensor_count(const struct llama *model)
{
    return model->count;
}

const struct llama_tensor *llama_tensor_at(const struct llama *model,
                                           size_t index)
{
    return &model->registry[index];
}

const struct llama_tensor *llama_tensor_find(const struct llama *model,
                                             const char *name)
{
    for (size_t k = 0; k < model->count; k++)
        if (strcmp(model->registry[k].name, name) == 0)
            return &model->registry[k];
    return NULL;
}
