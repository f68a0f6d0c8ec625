#include <string.h>
#include "attention.h"
#include "causal_lm.h"
#include "embedding.h"
#include "gelu.h"
#include "linear.h"
#include "mixed_mask.h"
#include "norm.h"

enum part {
    STREAM,     /* [B,T,C] */
    NORM,       /* [B,T,C], then the merged heads */
    QKV,        /* [B,T,3C] */
    QUERY,      /* [T,D] of one head of one row */
    CONTEXT,    /* [B,H,T,D] */
    BRANCH,     /* [B,T,C] what is about to be added */
    UP,         /* [B,T,F] */
    SCORES,     /* [T,S] of one head of one row */
    PROBS,      /* [T,S] */
    KEEP,       /* [T,S] of one row, bools */
    PARTS
};

static bool part_sizes(const struct gpt_config *config, int batch,
                       int tokens, int slots, size_t sizes[PARTS])
{
    const size_t b = (size_t)batch, s = (size_t)slots;
    const size_t c = (size_t)config->d_model, f = (size_t)config->d_ff;
    const size_t d = (size_t)gpt_config_head_dim(config);
    const size_t table[PARTS][2] = {
        [STREAM] = {b, c}, [NORM] = {b, c}, [QKV] = {b, 3 * c},
        [QUERY] = {1, d}, [CONTEXT] = {b, c}, [BRANCH] = {b, c},
        [UP] = {b, f}, [SCORES] = {1, s}, [PROBS] = {1, s},
        [KEEP] = {1, s / sizeof (float) + 1}
    };
    for (int p = 0; p < PARTS; p++)
        if (!size_multiply((size_t)tokens, table[p][0], &sizes[p])
            || !size_multiply(sizes[p], table[p][1], &sizes[p]))
            return false;
    return true;
}

static size_t scratch_size(const void *model, int batch, int tokens,
                           int slots)
{
    size_t sizes[PARTS], sum = 0, bytes;
    if (!part_sizes(tiny_gpt_config(model), batch, tokens, slots, sizes))
        return SIZE_MAX;
    for (int p = 0; p < PARTS; p++)
        if (!size_add(sum, sizes[p], &sum))
            return SIZE_MAX;
    return size_multiply(sum, sizeof (float), &bytes) ? sum : SIZE_MAX;
}

struct pass {
    const struct parameters *weights;
    const struct gpt_config *config;
    const struct step *step;
    int batch, tokens, rows;     /* B, T, B·T */
    int slots;                   /* S */
    float *part[PARTS];
};

static struct pass pass_begin(const struct tiny_gpt *model,
                              const struct step *step, float *scratch)
{
    struct pass pass = {
        .weights = tiny_gpt_weights(model), .config = tiny_gpt_config(model),
        .step = step, .batch = step->batch, .tokens = step->tokens,
        .rows = step->batch * step->tokens,
        .slots = past_key_values_length(step->storage)
    };
    size_t sizes[PARTS];
    (void)part_sizes(pass.config, pass.batch, pass.tokens, pass.slots, sizes);
    for (int p = 0; p < PARTS; p++) {
        pass.part[p] = scratch;
        scratch += sizes[p];
    }
    return pass;
}

static void embed(struct pass *pass)
{
    const int tokens = pass->tokens, width = pass->config->d_model;
    for (int b = 0; b < pass->batch; b++) {
        const ptrdiff_t row = (ptrdiff_t)b * tokens;
        embedding_forward(pass->weights, pass->step->ids + row, 1, tokens,
                          pass->step->positions[row],
                          pass->part[STREAM] + row * width);
    }
}

static void attend_in_row(struct pass *pass, const struct layer_kv *layer,
                          int b)
{
    const int tokens = pass->tokens, width = pass->config->d_model;
    const int heads = pass->config->n_heads, head_dim = width / heads;
    const int length = pass->step->lengths[b];
    const int32_t *positions = pass->step->positions + (ptrdiff_t)b * tokens;
    const struct row_prefix prefix = {positions[0] - length, length};
    const int keys = length + tokens;
    bool *keep = (void *)pass->part[KEEP];
    mixed_mask(prefix, positions, tokens, keys, keep);
    const float *qkv = pass->part[QKV] + (ptrdiff_t)b * tokens * 3 * width;
    for (int h = 0; h < heads; h++, qkv += head_dim) {
        const ptrdiff_t slice = (ptrdiff_t)b * heads + h;
        const ptrdiff_t first = slice * pass->slots * head_dim;
        float *key = layer->key.data + first;
        float *value = layer->value.data + first;
        const ptrdiff_t end = (ptrdiff_t)length * head_dim;
        heads_split(qkv + width, 3 * width, 1, tokens, 1, head_dim, key + end);
        heads_split(qkv + 2 * width, 3 * width, 1, tokens, 1, head_dim, value + end);
        float *query = pass->part[QUERY];
        heads_split(qkv, 3 * width, 1, tokens, 1, head_dim, query);
        attention_forward(query, key, value, keep, 1, tokens, keys, head_dim,
                          pass->part[SCORES], pass->part[PROBS],
                          pass->part[CONTEXT] + slice * tokens * head_dim);
    }
}

static void attend(struct pass *pass, int layer)
{
    const struct block *block = &pass->weights->blocks[layer];
    const int heads = pass->config->n_heads, rows = pass->rows;
    float *stream = pass->part[STREAM], *branch = pass->part[BRANCH];
    float *norm = pass->part[NORM], *merged = norm;
    layer_norm_forward(&block->attention_norm, pass->config->layer_norm_eps,
                       stream, rows, norm);
    linear_forward(&block->attention.qkv_proj, norm, rows, pass->part[QKV]);
    for (int b = 0; b < pass->batch; b++)
        attend_in_row(pass, &pass->step->storage->layers[layer], b);
    heads_merge(pass->part[CONTEXT], pass->batch, heads, pass->tokens,
                pass->config->d_model / heads, merged);
    linear_forward(&block->attention.out_proj, merged, rows, branch);
    vector_add(stream, branch,
               (size_t)rows * (size_t)pass->config->d_model, stream);
}

static void feed_forward(struct pass *pass, int layer)
{
    const struct block *block = &pass->weights->blocks[layer];
    const struct gpt_config *config = pass->config;
    const size_t rows = (size_t)pass->rows;
    float *stream = pass->part[STREAM], *norm = pass->part[NORM];
    float *up = pass->part[UP], *branch = pass->part[BRANCH];
    layer_norm_forward(&block->mlp_norm, config->layer_norm_eps, stream,
                       pass->rows, norm);
    linear_forward(&block->mlp.up_proj, norm, pass->rows, up);
    config_gelu_forward(config, up, rows * (size_t)config->d_ff, up);
    linear_forward(&block->mlp.down_proj, up, pass->rows, branch);
    vector_add(stream, branch, rows * (size_t)config->d_model, stream);
}

static void predict(struct pass *pass)
{
    int rows = pass->rows;
    const float *stream = pass->part[STREAM];
    float *norm = pass->part[NORM];
    if (pass->step->last_only) {
        float *last = pass->part[BRANCH];
        const size_t width = (size_t)pass->config->d_model;
        const size_t tokens = (size_t)pass->tokens;
        for (size_t b = 0; b < (size_t)pass->batch; b++)
            memcpy(last + b * width, stream + (b * tokens + tokens - 1) * width,
                   width * sizeof *last);
        stream = last;
        rows = pass->batch;
    }
    layer_norm_forward(&pass->weights->final_norm,
                       pass->config->layer_norm_eps, stream, rows, norm);
    linear_forward(&pass->weights->lm_head, norm, rows, pass->step->logits);
}

static void run(const void *model, const struct step *step, float *scratch)
{
    struct pass pass = pass_begin(model, step, scratch);
    embed(&pass);
    for (int layer = 0; layer < pass.config->n_layers; layer++) {
        attend(&pass, layer);
        feed_forward(&pass, layer);
    }
    predict(&pass);
}

#include "stack.h"

struct causal_lm tiny_gpt_step_lm(const struct tiny_gpt *model)
{
    const struct gpt_config *config = tiny_gpt_config(model);
    return (struct causal_lm){
        .model = model, .vocab_size = config->vocab_size,
        .context_length = config->context_length,
        .cache = {config->n_layers, config->n_heads,
                  gpt_config_head_dim(config)},
        .scratch_size = scratch_size, .run = run
    };
}

static size_t stack_scratch(const void *model, int batch, int tokens,
                              int slots)
{
    const struct stack stack = tiny_gpt_stack(model);
    (void)slots;
    return stack_scratch_size(&stack, batch, tokens);
}

static void run_stack(const void *model, const struct step *step,
                        float *scratch)
{
    const struct stack stack = tiny_gpt_stack(model);
    stack_step(&stack, kernels_best(), step, scratch);
}

struct causal_lm tiny_gpt_causal_lm(const struct tiny_gpt *model)
{
    struct causal_lm lm = tiny_gpt_step_lm(model);
    if (kernels_best() != &kernels_plain) {
        lm.scratch_size = stack_scratch;
        lm.run = run_stack;
    }
    return lm;
}
