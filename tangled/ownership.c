#include "ownership.h"
#include <stdio.h>
#include <string.h>

const char *module_name(enum module module)
{
    static const char *const names[MODULES] = {
        "embedding", "position", "norm", "query", "key", "value", "output",
        "feed-forward", "router", "experts", "head"
    };
    return names[module];
}

static struct owned_row *own(struct ownership *ownership, const char *pattern,
                             enum module module, int rows, int columns)
{
    struct owned_row *row = &ownership->rows[ownership->count++];
    *row = (struct owned_row){.pattern = pattern, .module = module,
                              .rows = rows, .columns = columns};
    return row;
}
int owned_row_stars(const struct owned_row *row)
{
    int stars = 0;
    for (const char *c = row->pattern; *c != '\0'; c++)
        stars += *c == '*';
    return stars;
}

static bool add(struct ownership *o, const struct owned_row *row)
{
    const size_t width = row->columns > 0 ? (size_t)row->columns : 1;
    size_t floats, bytes;
    size_t copies = 1;
    const int stars = owned_row_stars(row);
    if (stars > 0)
        copies = (size_t)o->cache.n_layers;
    if (stars > 1 && !size_multiply(copies, (size_t)o->n_experts, &copies))
        return false;
    if (!size_multiply((size_t)row->rows, width, &floats)
        || !size_multiply(floats, copies, &floats))
        return false;
    if (row->alias)
        return true;
    if (row->fused)
        for (enum module m = MODULE_QUERY; m <= MODULE_VALUE; m++)
            o->floats[m] += floats / 3;
    else
        o->floats[row->module] += floats;
    size_t active = floats;
    if (row->module == MODULE_EXPERTS)
        active = floats / (size_t)o->n_experts * (size_t)o->experts_per_token;
    o->active += active;    /* at most total */
    return size_add(o->total, floats, &o->total)
        && size_multiply(o->total, sizeof (float), &bytes);
}

static enum status finish(struct ownership *ownership,
                          struct ownership *made, struct error *error)
{
    for (int r = 0; r < made->count; r++)
        if (!add(made, &made->rows[r]))
            return error_set(error, STATUS_INVALID,
                             "%s: the bytes of all such tensors do not fit a"
                             " size_t", made->rows[r].pattern);
    *ownership = *made;
    return STATUS_OK;
}

#define BLOCK "blocks.*."

static void list_block(struct ownership *o, int c, int f)
{
    own(o, BLOCK "attention_norm.weight", MODULE_NORM, c, 0);
    own(o, BLOCK "attention_norm.bias", MODULE_NORM, c, 0);
    own(o, BLOCK "attention.qkv_proj.weight", MODULE_QUERY, 3 * c, c)
        ->fused = true;
    own(o, BLOCK "attention.qkv_proj.bias", MODULE_QUERY, 3 * c, 0)
        ->fused = true;
    own(o, BLOCK "attention.out_proj.weight", MODULE_OUTPUT, c, c);
    own(o, BLOCK "attention.out_proj.bias", MODULE_OUTPUT, c, 0);
    own(o, BLOCK "mlp_norm.weight", MODULE_NORM, c, 0);
    own(o, BLOCK "mlp_norm.bias", MODULE_NORM, c, 0);
    own(o, BLOCK "mlp.up_proj.weight", MODULE_FEED_FORWARD, f, c);
    own(o, BLOCK "mlp.up_proj.bias", MODULE_FEED_FORWARD, f, 0);
    own(o, BLOCK "mlp.down_proj.weight", MODULE_FEED_FORWARD, c, f);
    own(o, BLOCK "mlp.down_proj.bias", MODULE_FEED_FORWARD, c, 0);
}

enum status ownership_of_gpt(struct ownership *ownership,
                             const struct gpt_config *config,
                             struct error *error)
{
    const enum status status = gpt_config_check(config, error);
    if (status != STATUS_OK)
        return status;
    const int c = config->d_model, v = config->vocab_size;
    struct ownership made = {
        .vocab_size = v, .context_length = config->context_length,
        .d_model = c, .n_heads = config->n_heads,
        .cache = {config->n_layers, config->n_heads,
                  gpt_config_head_dim(config)}
    };
    own(&made, "token_embedding.weight", MODULE_EMBEDDING, v, c);
    own(&made, "position_embedding.weight", MODULE_POSITION,
        config->context_length, c);
    list_block(&made, c, config->d_ff);
    own(&made, "final_norm.weight", MODULE_NORM, c, 0);
    own(&made, "final_norm.bias", MODULE_NORM, c, 0);
    own(&made, "lm_head.weight", MODULE_HEAD, v, c)->alias = true;
    return finish(ownership, &made, error);
}

#define LAYER "model.layers.*."

static void list_feed_forward(struct ownership *o,
                              const struct llama_config *config)
{
    const int c = config->d_model, f = config->d_ff;
    if (config->n_experts == 0) {
        own(o, LAYER "mlp.gate_proj.weight", MODULE_FEED_FORWARD, f, c);
        own(o, LAYER "mlp.up_proj.weight", MODULE_FEED_FORWARD, f, c);
        own(o, LAYER "mlp.down_proj.weight", MODULE_FEED_FORWARD, c, f);
        return;
    }
    own(o, LAYER "block_sparse_moe.gate.weight", MODULE_ROUTER,
        config->n_experts, c);
    own(o, LAYER "block_sparse_moe.experts.*.w1.weight", MODULE_EXPERTS, f,
        c);
    own(o, LAYER "block_sparse_moe.experts.*.w3.weight", MODULE_EXPERTS, f,
        c);
    own(o, LAYER "block_sparse_moe.experts.*.w2.weight", MODULE_EXPERTS, c,
        f);
}

static void list_layer(struct ownership *o, const struct llama_config *config)
{
    const int c = config->d_model;
    const int q = config->n_heads * config->head_dim;
    own(o, LAYER "input_layernorm.weight", MODULE_NORM, c, 0);
    own(o, LAYER "self_attn.q_proj.weight", MODULE_QUERY, q, c);
    const int kv = config->n_kv_heads * config->head_dim;
    own(o, LAYER "self_attn.k_proj.weight", MODULE_KEY, kv, c);
    own(o, LAYER "self_attn.v_proj.weight", MODULE_VALUE, kv, c);
    own(o, LAYER "self_attn.o_proj.weight", MODULE_OUTPUT, c, q);
    own(o, LAYER "post_attention_layernorm.weight", MODULE_NORM, c, 0);
    list_feed_forward(o, config);
}

static enum status check_experts(const struct llama_config *config,
                                 struct error *error)
{
    struct llama_config dense = *config;
    const int experts = config->n_experts, chosen = config->experts_per_token;
    dense.n_experts = dense.experts_per_token = 0;
    const enum status status = llama_config_check(&dense, error);
    if (status != STATUS_OK)
        return status;
    if (experts < 0)
        return error_set(error, STATUS_INVALID,
                         "n_experts: expected at least 0, got %d", experts);
    if (chosen < (experts > 0) || chosen > experts)
        return error_set(error, STATUS_INVALID,
                         "experts_per_token: expected %d to n_experts %d, got"
                         " %d", experts > 0, experts, chosen);
    return STATUS_OK;
}

enum status ownership_of_llama(struct ownership *ownership,
                               const struct llama_config *config,
                               struct error *error)
{
    const enum status status = check_experts(config, error);
    if (status != STATUS_OK)
        return status;
    const int c = config->d_model, v = config->vocab_size;
    struct ownership made = {
        .vocab_size = v, .context_length = config->context_length,
        .d_model = c, .n_heads = config->n_heads,
        .n_experts = config->n_experts,
        .experts_per_token = config->experts_per_token, .gated = true,
        .cache = {config->n_layers, config->n_kv_heads, config->head_dim}
    };
    own(&made, "model.embed_tokens.weight", MODULE_EMBEDDING, v, c);
    list_layer(&made, config);
    own(&made, "model.norm.weight", MODULE_NORM, c, 0);
    own(&made, "lm_head.weight", MODULE_HEAD, v, c)->alias =
        config->tie_word_embeddings;
    return finish(ownership, &made, error);
}

void owned_row_name(const struct owned_row *row, int layer, int expert,
                    char *name)
{
    const int numbers[] = {layer, expert};
    size_t length = 0, star = 0;
    for (const char *c = row->pattern; *c != '\0'; c++)
        if (*c == '*')
            length += (size_t)snprintf(name + length,
                                       OWNED_NAME_MAX - length, "%d",
                                       numbers[star++]);
        else
            name[length++] = *c;
    name[length] = '\0';
}
/* What follows a number below bound; NULL when there is none. */
static const char *skip_number(const char *text, int bound)
{
    int64_t number = 0;
    const char *end = text;
    while (*end >= '0' && *end <= '9' && number < bound)
        number = 10 * number + (*end++ - '0');
    const bool padded = *text == '0' && end - text > 1;
    return end == text || padded || number >= bound ? NULL : end;
}

static bool matches(const struct ownership *o, const char *pattern,
                    const char *name)
{
    int bound = o->cache.n_layers;
    for (; *pattern != '\0' && name != NULL; pattern++)
        if (*pattern == '*') {
            name = skip_number(name, bound);
            bound = o->n_experts;
        } else
            name = *name == *pattern ? name + 1 : NULL;
    return name != NULL && *name == '\0';
}
const struct owned_row *ownership_find(const struct ownership *ownership,
                                       const char *name)
{
    for (int r = 0; r < ownership->count; r++)
        if (matches(ownership, ownership->rows[r].pattern, name))
            return &ownership->rows[r];
    return NULL;
}

static enum status find_one(const struct owned_row *row, const char *name,
                            const struct held_tensor *held, size_t count,
                            struct error *error)
{
    const int rank = row->columns > 0 ? 2 : 1;
    int found = 0;
    for (size_t k = 0; k < count; k++) {
        if (strcmp(held[k].name, name) != 0)
            continue;
        found++;
        const struct held_tensor *h = &held[k];
        if (h->rank != rank || h->shape[0] != row->rows
            || (rank == 2 && h->shape[1] != row->columns))
            return error_set(error, STATUS_INVALID,
                             "%s: expected rank %d, [%d, %d], got rank %d,"
                             " [%lld, %lld]", name, rank, row->rows, row->columns,
                             h->rank, (long long)h->shape[0],
                             (long long)(h->rank == 2 ? h->shape[1] : 0));
    }
    if (found > 1 || (found == 0 && !row->alias))
        return error_set(error, STATUS_INVALID,
                         "%s: expected once, got %d", name, found);
    return STATUS_OK;
}

static enum status find_row(const struct ownership *o,
                            const struct owned_row *row,
                            const struct held_tensor *held, size_t count,
                            struct error *error)
{
    const int stars = owned_row_stars(row);
    const int layers = stars > 0 ? o->cache.n_layers : 1;
    const int experts = stars > 1 ? o->n_experts : 1;
    enum status status = STATUS_OK;
    for (int layer = 0; layer < layers; layer++)
        for (int e = 0; e < experts && status == STATUS_OK; e++) {
            char name[OWNED_NAME_MAX];
            owned_row_name(row, layer, e, name);
            status = find_one(row, name, held, count, error);
        }
    return status;
}

enum status ownership_check(const struct ownership *ownership,
                            const struct held_tensor *held, size_t count,
                            struct error *error)
{
    for (int r = 0; r < ownership->count; r++) {
        const enum status status = find_row(ownership, &ownership->rows[r],
                                            held, count, error);
        if (status != STATUS_OK)
            return status;
    }
    for (size_t k = 0; k < count; k++)
        if (ownership_find(ownership, held[k].name) == NULL)
            return error_set(error, STATUS_INVALID,
                             "%s: expected no such tensor", held[k].name);
    return STATUS_OK;
}

struct holding ownership_hold(const struct ownership *ownership,
                              const struct held_tensor *held, size_t count)
{
    struct holding sum = {.total = 0};
    for (size_t k = 0; k < count; k++) {
        const struct owned_row *row = ownership_find(ownership, held[k].name);
        const size_t floats = held[k].elements;
        if (held[k].alias)
            continue;
        if (row == NULL)
            sum.unknown += floats;
        else if (row->alias)
            sum.copied += floats;
        else {
            sum.total += floats;
            for (enum module m = MODULE_QUERY; m <= MODULE_VALUE && row->fused; m++)
                sum.floats[m] += floats / 3;
            if (!row->fused)
                sum.floats[row->module] += floats;
        }
    }
    return sum;
}
