#include <stdio.h>
#include <string.h>
#include "half.h"
#include "llama2c.h"

enum { V, N, C, L, H, HK, D, F, HD, HKD, HALF, ONE, SIZES };

/* Each is [layers] of [rows, columns]; a row without a name is skipped. */
static const struct llama2c_row {
    const char *stored, *name;    /* name in the registry, behind a layer */
    int layers, rows, columns;
} rows[LLAMA2C_TENSORS] = {
    {"token_embedding_table", "model.embed_tokens.weight", ONE, V, C},
    {"rms_att_weight", "input_layernorm.weight", L, ONE, C},
    {"wq", "self_attn.q_proj.weight", L, HD, C},
    {"wk", "self_attn.k_proj.weight", L, HKD, C},
    {"wv", "self_attn.v_proj.weight", L, HKD, C},
    {"wo", "self_attn.o_proj.weight", L, C, HD},
    {"rms_ffn_weight", "post_attention_layernorm.weight", L, ONE, C},
    {"w1", "mlp.gate_proj.weight", L, F, C},
    {"w2", "mlp.down_proj.weight", L, C, F},
    {"w3", "mlp.up_proj.weight", L, F, C},
    {"rms_final_weight", "model.norm.weight", ONE, ONE, C},
    {"freq_cis_real", NULL, ONE, N, HALF},
    {"freq_cis_imag", NULL, ONE, N, HALF},
    {"wcls", "lm_head.weight", ONE, V, C},
};

bool llama2c_used(const struct llama2c *file, int k)
{
    return k < file->count && rows[k].name != NULL;
}

static int32_t read_int(const unsigned char *at)
{
    const uint32_t bits = (uint32_t)at[0] | (uint32_t)at[1] << 8
        | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    int32_t number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static enum status read_header(struct llama_config *config,
                               const unsigned char *bytes,
                               struct error *error)
{
    const int32_t vocab_size = read_int(bytes + 20);
    *config = (struct llama_config){
        .d_model = read_int(bytes), .d_ff = read_int(bytes + 4),
        .n_layers = read_int(bytes + 8), .n_heads = read_int(bytes + 12),
        .n_kv_heads = read_int(bytes + 16),
        .context_length = read_int(bytes + 24),
        .rms_norm_eps = 1e-5, .rope_theta = 10000
    };
    if (vocab_size == INT32_MIN)
        return error_set(error, STATUS_FORMAT, "vocab_size: got %d", vocab_size);
    config->tie_word_embeddings = vocab_size > 0;
    config->vocab_size = vocab_size > 0 ? vocab_size : -vocab_size;
    if (config->n_heads < 1 || config->d_model % config->n_heads != 0)
        return error_set(error, STATUS_FORMAT, "n_heads: expected a divisor of"
                         " dim %d, got %d", config->d_model, config->n_heads);
    config->head_dim = config->d_model / config->n_heads;
    return llama_config_check(config, error);
}

static void fill_sizes(const struct llama_config *config, int sizes[SIZES])
{
    const int h = config->n_heads, hk = config->n_kv_heads;
    const int d = config->head_dim;
    const int values[SIZES] = {
        [V] = config->vocab_size, [N] = config->context_length,
        [C] = config->d_model, [L] = config->n_layers, [H] = h, [HK] = hk,
        [D] = d, [F] = config->d_ff, [HD] = h * d, [HKD] = hk * d,
        [HALF] = d / 2, [ONE] = 1
    };
    memcpy(sizes, values, sizeof values);
}

static bool place(struct safetensors_entry *entry, int k,
                  const int sizes[SIZES], const unsigned char *bytes,
                  size_t length, size_t *at)
{
    const int shape[] = {sizes[rows[k].layers], sizes[rows[k].rows],
                         sizes[rows[k].columns]};
    size_t size = sizeof (float);
    *entry = (struct safetensors_entry){
        .name = rows[k].stored, .dtype = DTYPE_F32, .data = bytes + *at
    };
    for (int d = 0; d < 3; d++) {
        if (shape[d] != 1 || (d == 2))
            entry->shape[entry->rank++] = shape[d];
        if (!size_multiply(size, (size_t)shape[d], &size))
            return false;
    }
    if (size > length - *at)
        return false;
    entry->bytes = size;
    *at += size;
    return true;
}

enum status llama2c_parse(struct llama2c *file, const void *bytes,
                          size_t length, struct error *error)
{
    struct llama2c made = {.count = 0};
    if (length < 28)
        return error_set(error, STATUS_FORMAT, "%zu bytes are too few: the"
                         " header alone takes 28", length);
    enum status status = read_header(&made.config, bytes, error);
    if (status != STATUS_OK)
        return status;
    int sizes[SIZES];
    size_t at = 28;
    fill_sizes(&made.config, sizes);
    made.count = LLAMA2C_TENSORS - made.config.tie_word_embeddings;
    for (int k = 0; k < made.count; k++)
        if (!place(&made.tensors[k], k, sizes, bytes, length, &at))
            return error_set(error, STATUS_FORMAT, "%s: ends behind the"
                             " file's %zu bytes", rows[k].stored, length);
    if (at != length)
        return error_set(error, STATUS_FORMAT, "%zu bytes after the last"
                         " tensor", length - at);
    *file = made;
    return STATUS_OK;
}

/* data [R,I], whose rows are heads of neighbouring pairs, into out [R,I] */
static void part_pairs(const unsigned char *data, int count, int columns,
                       int head_dim, float *out)
{
    const size_t row_bytes = (size_t)columns * sizeof (float);
    for (int r = 0; r < count; r++, out += columns) {
        const int i = r % head_dim, first = r - i;
        const int half = head_dim / 2;
        const int source = first + (i < half ? 2 * i : 2 * (i - half) + 1);
        floats_from(DTYPE_F32, data + (size_t)source * row_bytes,
                    (size_t)columns, out);
    }
}

static void copy_tensor(const struct llama *model, int k, int l, int layers,
                        const struct safetensors_entry *entry)
{
    char name[64];
    if (rows[k].layers == L)
        snprintf(name, sizeof name, "model.layers.%d.%s", l, rows[k].name);
    else
        snprintf(name, sizeof name, "%s", rows[k].name);
    const struct tensor *tensor = llama_tensor_find(model, name)->tensor;
    const unsigned char *data = entry->data;
    data += (size_t)l * (entry->bytes / (size_t)layers);
    bool pairs;
    pairs = strcmp(entry->name, "wq") == 0 || strcmp(entry->name, "wk") == 0;
    if (pairs)
        part_pairs(data, tensor->shape[0], tensor->shape[1],
                   llama_config(model)->head_dim, tensor->data);
    else
        floats_from(DTYPE_F32, data, tensor_size(tensor), tensor->data);
}

enum status llama2c_load(struct llama **model, const struct llama2c *file,
                         struct error *error)
{
    struct llama *made = NULL;
    const enum status status = llama_new(&made, &file->config, error);
    if (status != STATUS_OK)
        return status;
    for (int k = 0; k < file->count; k++) {
        const int layers = rows[k].layers == L ? file->config.n_layers : 1;
        for (int l = 0; l < layers && llama2c_used(file, k); l++)
            copy_tensor(made, k, l, layers, &file->tensors[k]);
    }
    *model = made;
    return STATUS_OK;
}
