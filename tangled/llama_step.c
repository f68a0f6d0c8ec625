#include <string.h>
#include "attention.h"
#include "causal_lm.h"
#include "grouped_attention.h"
#include "linear.h"
#include "llama_parts.h"
#include "mixed_mask.h"
#include "rms_norm.h"
#include "rope.h"
#include "swiglu.h"

enum part {
    STREAM,     /* [B,T,C] */
    NORM,       /* [B,T,C] */
    TURNS,      /* [B,T,D] cosines and sines */
    QUERIES,    /* [B,T,HD], then the merged heads */
    KEYS,       /* [B,T,HkD] */
    VALUES,     /* [B,T,HkD] */
    QUERY,      /* [H,T,D] of one row */
    CONTEXT,    /* [B,H,T,D] */
    BRANCH,     /* [B,T,C] what is about to be added */
    GATE,       /* [B,T,F] */
    UP,         /* [B,T,F] */
    SCORES,     /* [T,S] of one head of one row */
    PROBS,      /* [T,S] */
    KEEP,       /* [T,S] of one row, bools */
    ROUTER,     /* [L,B,T,E] logits, then probabilities */
    CHOICES,    /* [L,B,T,k] experts, as int32_t */
    GATES,      /* [L,B,T,k] */
    PLACES,     /* [L,B,T,k] int32_t */
    OFFSETS,    /* [L,E+1] int32_t; each token has room for them */
    GATHERED,   /* [B,T,k,C] rows by expert */
    PARTS
};

static bool part_sizes(const struct llama_config *config, int batch,
                       int tokens, int slots, size_t sizes[PARTS])
{
    const size_t b = (size_t)batch, s = (size_t)slots;
    const size_t c = (size_t)config->d_model, f = (size_t)config->d_ff;
    const size_t d = (size_t)config->head_dim;
    const size_t q = (size_t)config->n_heads * d;
    const size_t kv = (size_t)config->n_kv_heads * d;
    const size_t table[PARTS][2] = {
        [STREAM] = {b, c}, [NORM] = {b, c}, [TURNS] = {b, d},
        [QUERIES] = {b, q}, [KEYS] = {b, kv}, [VALUES] = {b, kv},
        [QUERY] = {1, q}, [CONTEXT] = {b, q}, [BRANCH] = {b, c},
        [GATE] = {b, f}, [UP] = {b, f}, [SCORES] = {1, s}, [PROBS] = {1, s},
        [KEEP] = {1, s / sizeof (float) + 1},
        [ROUTER] = {b * (size_t)config->n_layers, (size_t)config->n_experts},
        [CHOICES] = {b * (size_t)config->n_layers,
                     (size_t)config->experts_per_token},
        [GATES] = {b * (size_t)config->n_layers,
                   (size_t)config->experts_per_token},
        [PLACES] = {b * (size_t)config->n_layers,
                    (size_t)config->experts_per_token},
        [OFFSETS] = {(size_t)config->n_layers,
                     config->n_experts > 0 ? (size_t)config->n_experts + 1 : 0},
        [GATHERED] = {moe_assignments(batch, tokens, config->experts_per_token), c},
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
    if (!part_sizes(llama_config(model), batch, tokens, slots, sizes))
        return SIZE_MAX;
    for (int p = 0; p < PARTS; p++)
        if (!size_add(sum, sizes[p], &sum))
            return SIZE_MAX;
    return size_multiply(sum, sizeof (float), &bytes) ? sum : SIZE_MAX;
}

struct pass {
    const struct llama *model;
    const struct llama_config *config;
    const struct step *step;
    int batch, tokens, rows;     /* B, T, B·T */
    int slots;                   /* S */
    float *part[PARTS];
};

static struct pass pass_begin(const struct llama *model,
                              const struct step *step, float *scratch)
{
    struct pass pass = {
        .model = model, .config = llama_config(model), .step = step,
        .batch = step->batch, .tokens = step->tokens,
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

#include "stack.h"

static struct moe_routing layer_routing(const struct pass *pass, int layer)
{
    const ptrdiff_t rows = (ptrdiff_t)layer * pass->rows;
    const int experts = pass->config->n_experts;
    const int chosen = pass->config->experts_per_token;
    int32_t *choices = (void *)pass->part[CHOICES];
    int32_t *places = (void *)pass->part[PLACES];
    int32_t *offsets = (void *)pass->part[OFFSETS];
    return (struct moe_routing){
        .rows = pass->rows, .n_experts = experts, .chosen = chosen,
        .probs = pass->part[ROUTER] + rows * experts,
        .experts = choices + rows * chosen,
        .gates = pass->part[GATES] + rows * chosen,
        .places = places + rows * chosen,
        .offsets = offsets + (ptrdiff_t)layer * (experts + 1)
    };
}

struct moe_routing llama_routing(const struct llama *model,
                                 const struct step *step, float *scratch,
                                 int layer)
{
    if (kernels_best() != &kernels_plain) {
        const struct stack stack = llama_stack(model);
        return stack_routing(&stack, step, scratch, layer);
    }
    const struct pass pass = pass_begin(model, step, scratch);
    return layer_routing(&pass, layer);
}

static void embed(struct pass *pass)
{
    const struct llama_config *config = pass->config;
    const size_t width = (size_t)config->d_model;
    for (int row = 0; row < pass->rows; row++)
        memcpy(pass->part[STREAM] + (size_t)row * width,
               pass->model->embed_tokens.data
                   + (size_t)pass->step->ids[row] * width,
               width * sizeof (float));
    rope_turns(pass->step->positions, pass->rows, config->head_dim,
               config->rope_theta, pass->part[TURNS]);
}

static void attend_in_row(struct pass *pass, const struct layer_kv *layer,
                          int b)
{
    const struct llama_config *config = pass->config;
    const int tokens = pass->tokens, head_dim = config->head_dim;
    const int length = pass->step->lengths[b];
    const ptrdiff_t row = (ptrdiff_t)b * tokens;
    const float *turns = pass->part[TURNS] + row * head_dim;
    const int32_t *positions = pass->step->positions + row;
    const struct row_prefix prefix = {positions[0] - length, length};
    const int keys = length + tokens;
    bool *keep = (void *)pass->part[KEEP];
    mixed_mask(prefix, positions, tokens, keys, keep);
    const int kv = config->n_kv_heads * head_dim;
    float *key = layer->key.data, *value = layer->value.data;
    key += (ptrdiff_t)b * pass->slots * kv;
    value += (ptrdiff_t)b * pass->slots * kv;
    for (int g = 0; g < config->n_kv_heads; g++) {
        const ptrdiff_t new_rows = ((ptrdiff_t)g * pass->slots + length)
                                   * head_dim;
        const ptrdiff_t column = row * kv + g * head_dim;
        heads_split(pass->part[KEYS] + column, kv, 1, tokens, 1, head_dim,
                    key + new_rows);
        heads_split(pass->part[VALUES] + column, kv, 1, tokens, 1, head_dim,
                    value + new_rows);
        rope_turn(key + new_rows, 1, tokens, head_dim, turns);
    }
    const int heads = config->n_heads, width = heads * head_dim;
    float *query = pass->part[QUERY];
    heads_split(pass->part[QUERIES] + row * width, width, 1, tokens, heads,
                head_dim, query);
    rope_turn(query, heads, tokens, head_dim, turns);
    const struct grouped_shape shape = {
        .heads = heads, .kv_heads = config->n_kv_heads, .tokens = tokens,
        .keys = keys, .slots = pass->slots, .head_dim = head_dim
    };
    grouped_attention_forward(&shape, query, key, value, keep,
                              pass->part[SCORES], pass->part[PROBS],
                              pass->part[CONTEXT] + row * width);
}

static void attend(struct pass *pass, int layer)
{
    const struct llama_layer *weights = &pass->model->layers[layer];
    const struct llama_config *config = pass->config;
    const int rows = pass->rows;
    float *stream = pass->part[STREAM], *branch = pass->part[BRANCH];
    float *norm = pass->part[NORM], *merged = pass->part[QUERIES];
    rms_norm_forward(&weights->input_norm, config->rms_norm_eps, stream, rows,
                     norm);
    linear_forward(&weights->q_proj, norm, rows, pass->part[QUERIES]);
    linear_forward(&weights->k_proj, norm, rows, pass->part[KEYS]);
    linear_forward(&weights->v_proj, norm, rows, pass->part[VALUES]);
    for (int b = 0; b < pass->batch; b++)
        attend_in_row(pass, &pass->step->storage->layers[layer], b);
    heads_merge(pass->part[CONTEXT], pass->batch, config->n_heads,
                pass->tokens, config->head_dim, merged);
    linear_forward(&weights->o_proj, merged, rows, branch);
    vector_add(stream, branch, (size_t)rows * (size_t)config->d_model,
               stream);
}

static void feed_forward(struct pass *pass, int layer)
{
    const struct llama_layer *weights = &pass->model->layers[layer];
    const struct llama_config *config = pass->config;
    const int rows = pass->rows;
    float *stream = pass->part[STREAM], *norm = pass->part[NORM];
    float *branch = pass->part[BRANCH];
    rms_norm_forward(&weights->post_norm, config->rms_norm_eps, stream, rows,
                     norm);
    float *gate = pass->part[GATE], *up = pass->part[UP];
    if (config->n_experts == 0) {
        const struct moe_expert only = {weights->gate_proj, weights->up_proj,
                                        weights->down_proj};
        moe_expert_forward(&only, norm, rows, gate, up, branch);
    } else {
        struct moe_routing routing = layer_routing(pass, layer);
        const struct moe_room room = {pass->part[GATHERED], gate, up};
        moe_forward(&weights->moe, norm, &routing, &room, branch);
    }
    vector_add(stream, branch, (size_t)rows * (size_t)config->d_model,
               stream);
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
    rms_norm_forward(&pass->model->norm, pass->config->rms_norm_eps, stream,
                     rows, norm);
    linear_forward(&pass->model->lm_head, norm, rows, pass->step->logits);
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

struct causal_lm llama_step_lm(const struct llama *model)
{
    const struct llama_config *config = llama_config(model);
    return (struct causal_lm){
        .model = model, .vocab_size = config->vocab_size,
        .context_length = config->context_length,
        .cache = {config->n_layers, config->n_kv_heads, config->head_dim},
        .scratch_size = scratch_size, .run = run
    };
}

static size_t stack_scratch(const void *model, int batch, int tokens,
                              int slots)
{
    const struct stack stack = llama_stack(model);
    (void)slots;
    return stack_scratch_size(&stack, batch, tokens);
}

static void run_stack(const void *model, const struct step *step,
                        float *scratch)
{
    const struct stack stack = llama_stack(model);
    stack_step(&stack, kernels_best(), step, scratch);
}

struct causal_lm llama_causal_lm(const struct llama *model)
{
    struct causal_lm lm = llama_step_lm(model);
    if (kernels_best() != &kernels_plain) {
        lm.scratch_size = stack_scratch;
        lm.run = run_stack;
    }
    return lm;
}
