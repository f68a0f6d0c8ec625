/* What suite 19a and its like share: hub directories and llama2.c files that
   are written here from models of noise, by tables of this file alone.
   Header only. */
#ifndef HUB_TEST_H
#define HUB_TEST_H

#include "half.h"
#include "support/files.h"
#include "support/llamas.h"

enum { HUB_MAX = 96 };

/* Tensors that will be a file; names and data are owned. */
struct hub_file {
    struct safetensors_entry entries[HUB_MAX];
    char names[HUB_MAX][96];
    size_t count;
};

static inline void hub_clear(struct hub_file *file)
{
    for (size_t k = 0; k < file->count; k++)
        free((void *)(uintptr_t)file->entries[k].data);
    file->count = 0;
}

/* Copies count numbers, as dtype says: F32, F16 or BF16. */
static inline struct safetensors_entry *
hub_add(struct hub_file *file, const char *name, enum dtype dtype, int rank,
        const int *shape, const float *data)
{
    struct safetensors_entry *entry = &file->entries[file->count];
    size_t count = 1;
    snprintf(file->names[file->count], sizeof file->names[0], "%s", name);
    *entry = (struct safetensors_entry){.name = file->names[file->count],
                                        .dtype = dtype, .rank = rank};
    ck_assert_uint_lt(++file->count, HUB_MAX);
    for (int k = 0; k < rank; k++) {
        entry->shape[k] = shape[k];
        count *= (size_t)shape[k];
    }
    entry->bytes = count * dtype_size(dtype);
    unsigned char *bytes = malloc(entry->bytes + 1);
    for (size_t k = 0; k < count; k++) {
        const uint16_t half = dtype == DTYPE_F16 ? f16_from_f32(data[k])
                              : bf16_from_f32(data[k]);
        if (dtype == DTYPE_F32)
            memcpy(bytes + 4 * k, &data[k], 4);
        else
            memcpy(bytes + 2 * k, &half, 2);
    }
    entry->data = bytes;
    return entry;
}

static inline size_t hub_index(const struct hub_file *file, const char *name)
{
    size_t k = 0;
    while (k < file->count && strcmp(file->names[k], name) != 0)
        k++;
    ck_assert_msg(k < file->count, "no %s", name);
    return k;
}

/* Lets go of tensor k. */
static inline void hub_drop(struct hub_file *file, size_t k)
{
    free((void *)(uintptr_t)file->entries[k].data);
    file->count--;
    for (; k < file->count; k++) {
        file->entries[k] = file->entries[k + 1];
        strcpy(file->names[k], file->names[k + 1]);
        file->entries[k].name = file->names[k];
    }
}

/* The tensor of another name; both belong to the caller's file. */
static inline void hub_rename(struct hub_file *file, size_t k,
                              const char *name)
{
    ck_assert_uint_lt(strlen(name), sizeof file->names[0]);
    memcpy(file->names[k], name, strlen(name) + 1);
}

static inline void hub_write(const struct hub_file *file,
                             const char *directory, const char *config)
{
    write_tensors(in(directory, "model.safetensors"), file->entries,
                  file->count);
    write_text(in(directory, "config.json"), config);
}

/* ------------------------------------------------------------------- GPT-2 */

/* Sizes that differ; F is not 4 C, and more than a strip of columns. */
static inline struct gpt_config small_gpt2_config(void)
{
    return (struct gpt_config){
        .vocab_size = 11, .context_length = 9, .d_model = 6, .n_layers = 2,
        .n_heads = 2, .d_ff = 70, .layer_norm_eps = 1e-3, .tanh_gelu = 1
    };
}

/* The hub's config of such a model, with more fields in front. */
static inline const char *gpt2_text(const struct gpt_config *config,
                                    const char *more)
{
    static char texts[4][2048];
    static int turn;
    char *text = texts[turn++ % 4];
    snprintf(text, sizeof texts[0], "{%s\"model_type\": \"gpt2\","
             " \"vocab_size\": %d, \"n_positions\": %d, \"n_embd\": %d,"
             " \"n_layer\": %d, \"n_head\": %d, \"n_inner\": %d,"
             " \"layer_norm_epsilon\": %.17g,"
             " \"activation_function\": \"%s\"}", more, config->vocab_size,
             config->context_length, config->d_model, config->n_layers,
             config->n_heads, config->d_ff, config->layer_norm_eps,
             config->tanh_gelu ? "gelu_new" : "gelu");
    return text;
}

static inline void gpt2_add(struct hub_file *file, const char *name,
                            enum dtype dtype, const struct tensor *tensor,
                            bool turned)
{
    const int rows = tensor->shape[0], columns = tensor->shape[1];
    if (!turned) {
        hub_add(file, name, dtype, tensor->rank, tensor->shape,
                tensor->data);
        return;
    }
    float *across = malloc(tensor_size(tensor) * sizeof *across);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            across[c * rows + r] = tensor->data[r * columns + c];
    hub_add(file, name, dtype, 2, (const int[]){columns, rows}, across);
    free(across);
}

/* Every tensor under the hub's name behind prefix. */
static inline void gpt2_tensors(struct hub_file *file,
                                const struct tiny_gpt *model,
                                enum dtype dtype, const char *prefix)
{
    const struct parameters *p = tiny_gpt_weights(model);
    char name[96];
    #define ADD(tensor, turned, ...) \
        snprintf(name, sizeof name, __VA_ARGS__); \
        gpt2_add(file, name, dtype, &(tensor), turned)
    ADD(p->token_embedding.weight, false, "%swte.weight", prefix);
    ADD(p->position_embedding.weight, false, "%swpe.weight", prefix);
    ADD(p->final_norm.weight, false, "%sln_f.weight", prefix);
    ADD(p->final_norm.bias, false, "%sln_f.bias", prefix);
    for (int l = 0; l < p->config.n_layers; l++) {
        const struct block *b = &p->blocks[l];
        #define LAYER(tensor, turned, theirs) \
            ADD(tensor, turned, "%sh.%d." theirs, prefix, l)
        LAYER(b->attention_norm.weight, false, "ln_1.weight");
        LAYER(b->attention_norm.bias, false, "ln_1.bias");
        LAYER(b->attention.qkv_proj.weight, true, "attn.c_attn.weight");
        LAYER(b->attention.qkv_proj.bias, false, "attn.c_attn.bias");
        LAYER(b->attention.out_proj.weight, true, "attn.c_proj.weight");
        LAYER(b->attention.out_proj.bias, false, "attn.c_proj.bias");
        LAYER(b->mlp_norm.weight, false, "ln_2.weight");
        LAYER(b->mlp_norm.bias, false, "ln_2.bias");
        LAYER(b->mlp.up_proj.weight, true, "mlp.c_fc.weight");
        LAYER(b->mlp.up_proj.bias, false, "mlp.c_fc.bias");
        LAYER(b->mlp.down_proj.weight, true, "mlp.c_proj.weight");
        LAYER(b->mlp.down_proj.bias, false, "mlp.c_proj.bias");
        #undef LAYER
    }
    #undef ADD
}

/* ------------------------------------------------------------------- Llama */

/* The hub's config of such a model, with more fields in front. */
static inline const char *llama_text(const struct llama_config *config,
                                     const char *more)
{
    static char texts[4][2048];
    static int turn;
    char *text = texts[turn++ % 4];
    char experts[96] = "";
    if (config->n_experts > 0)
        snprintf(experts, sizeof experts, "\"num_local_experts\": %d,"
                 " \"num_experts_per_tok\": %d,", config->n_experts,
                 config->experts_per_token);
    snprintf(text, sizeof texts[0], "{%s%s\"model_type\": \"%s\","
             " \"vocab_size\": %d, \"max_position_embeddings\": %d,"
             " \"hidden_size\": %d, \"num_hidden_layers\": %d,"
             " \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
             " \"head_dim\": %d, \"intermediate_size\": %d,"
             " \"rms_norm_eps\": %.17g, \"rope_theta\": %.17g,"
             " \"hidden_act\": \"silu\", \"tie_word_embeddings\": %s}", more,
             experts, config->n_experts > 0 ? "mixtral" : "llama",
             config->vocab_size, config->context_length, config->d_model,
             config->n_layers, config->n_heads, config->n_kv_heads,
             config->head_dim, config->d_ff, config->rms_norm_eps,
             config->rope_theta,
             config->tie_word_embeddings ? "true" : "false");
    return text;
}

/* Every tensor that is no alias. */
static inline void llama_tensors(struct hub_file *file,
                                 const struct llama *model, enum dtype dtype)
{
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        if (!entry->alias)
            hub_add(file, entry->name, dtype, entry->tensor->rank,
                    entry->tensor->shape, entry->tensor->data);
    }
}

/* ---------------------------------------------------------------- llama2.c */

static inline void put_floats(unsigned char **at, const float *data,
                              size_t count)
{
    memcpy(*at, data, count * sizeof *data);    /* this machine's order */
    *at += count * sizeof *data;
}

/* One tensor of all layers; with pairs, the rows of each head in the order
   of neighbouring pairs. */
static inline void put_layers(unsigned char **at, const struct llama *model,
                              const char *name, bool pairs)
{
    const struct llama_config *config = llama_config(model);
    for (int l = 0; l < config->n_layers; l++) {
        char full[96];
        snprintf(full, sizeof full, "model.layers.%d.%s.weight", l, name);
        const struct tensor *tensor = llama_tensor_find(model, full)->tensor;
        const int rows = tensor->rank == 2 ? tensor->shape[0] : 1;
        const size_t width = tensor_size(tensor) / (size_t)rows;
        for (int r = 0; r < rows; r++) {
            const int d = config->head_dim, i = r % d;
            /* pair i/2 is columns i/2 and i/2 + D/2 of ours */
            const int ours = pairs ? r - i + i / 2 + i % 2 * (d / 2) : r;
            put_floats(at, tensor->data + (size_t)ours * width, width);
        }
    }
}

/* The file's bytes, which the caller frees. */
static inline unsigned char *llama2c_bytes(const struct llama *model,
                                           size_t *length)
{
    const struct llama_config *c = llama_config(model);
    const int sign = c->tie_word_embeddings ? 1 : -1;
    const int32_t header[7] = {c->d_model, c->d_ff, c->n_layers, c->n_heads,
                               c->n_kv_heads, sign * c->vocab_size,
                               c->context_length};
    size_t floats = 0;
    ck_assert(llama_config_floats(c, &floats));
    const size_t table = (size_t)(c->context_length * (c->head_dim / 2));
    unsigned char *bytes = malloc(28 + 4 * (floats + 2 * table) + 8);
    unsigned char *at = bytes + 28;
    memcpy(bytes, header, 28);
    const struct tensor *in_table =
        llama_tensor_find(model, "model.embed_tokens.weight")->tensor;
    const struct tensor *norm =
        llama_tensor_find(model, "model.norm.weight")->tensor;
    put_floats(&at, in_table->data, tensor_size(in_table));
    put_layers(&at, model, "input_layernorm", false);
    put_layers(&at, model, "self_attn.q_proj", true);
    put_layers(&at, model, "self_attn.k_proj", true);
    put_layers(&at, model, "self_attn.v_proj", false);
    put_layers(&at, model, "self_attn.o_proj", false);
    put_layers(&at, model, "post_attention_layernorm", false);
    put_layers(&at, model, "mlp.gate_proj", false);
    put_layers(&at, model, "mlp.down_proj", false);
    put_layers(&at, model, "mlp.up_proj", false);
    put_floats(&at, norm->data, tensor_size(norm));
    memset(at, 0x7f, 8 * table);    /* nobody reads them */
    at += 8 * table;
    if (!c->tie_word_embeddings) {
        const struct tensor *head =
            llama_tensor_find(model, "lm_head.weight")->tensor;
        put_floats(&at, head->data, tensor_size(head));
    }
    *length = (size_t)(at - bytes);
    return bytes;
}
#endif
