#include "stack.h"
#include "llama_parts.h"

static struct matrix matrix_of(const struct linear *linear)
{
    return matrix_of_rows(linear->weight.data, NULL,
                          (int)linear->weight.shape[0],
                          (int)linear->weight.shape[1]);
}

static struct stack_feed_forward expert(const void *weights, int layer,
                                          int index)
{
    const struct llama *model = weights;
    const struct moe_expert *one = &model->layers[layer].moe.experts[index];
    return (struct stack_feed_forward){
        matrix_of(&one->w1), matrix_of(&one->w3), matrix_of(&one->w2)
    };
}

static struct stack_layer layer(const void *weights, int index)
{
    const struct llama *model = weights;
    const struct llama_layer *parts = &model->layers[index];
    struct stack_layer layer = {
        .attention_norm = {parts->input_norm.data, NULL},
        .feed_forward_norm = {parts->post_norm.data, NULL},
        .query = matrix_of(&parts->q_proj), .key = matrix_of(&parts->k_proj),
        .value = matrix_of(&parts->v_proj),
        .output = matrix_of(&parts->o_proj)
    };
    if (model->config.n_experts > 0)
        layer.router = matrix_of(&parts->moe.gate);
    else
        layer.feed_forward = (struct stack_feed_forward){
            matrix_of(&parts->gate_proj), matrix_of(&parts->up_proj),
            matrix_of(&parts->down_proj)
        };
    return layer;
}

struct stack llama_stack(const struct llama *model)
{
    const struct llama_config *config = llama_config(model);
    return (struct stack){
        .vocab_size = config->vocab_size,
        .context_length = config->context_length,
        .d_model = config->d_model, .n_layers = config->n_layers,
        .d_ff = config->d_ff, .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads, .head_dim = config->head_dim,
        .n_experts = config->n_experts,
        .experts_per_token = config->experts_per_token,
        .norm_eps = config->rms_norm_eps, .rope_theta = config->rope_theta,
        .token_embedding = matrix_of_rows(model->embed_tokens.data, NULL,
                                          config->vocab_size,
                                          config->d_model),
        .final_norm = {model->norm.data, NULL},
        .head = matrix_of(&model->lm_head),
        .weights = model, .layer = layer, .expert = expert
    };
}
