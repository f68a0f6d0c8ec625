#include "stack.h"

static struct matrix rows_of(const struct linear *linear, int first, int out)
{
    const int in = (int)linear->weight.shape[1];
    return matrix_of_rows(linear->weight.data + (ptrdiff_t)first * in,
                          linear->bias.data + first, out, in);
}

static struct matrix matrix_of(const struct linear *linear)
{
    return rows_of(linear, 0, (int)linear->weight.shape[0]);
}

static struct stack_norm norm_of(const struct layer_norm *norm)
{
    return (struct stack_norm){norm->weight.data, norm->bias.data};
}

static struct stack_layer layer(const void *weights, int index)
{
    const struct parameters *parameters = weights;
    const struct block *block = &parameters->blocks[index];
    const struct linear *qkv = &block->attention.qkv_proj;
    const int width = parameters->config.d_model;
    return (struct stack_layer){
        .attention_norm = norm_of(&block->attention_norm),
        .feed_forward_norm = norm_of(&block->mlp_norm),
        .query = rows_of(qkv, 0, width),
        .key = rows_of(qkv, width, width),
        .value = rows_of(qkv, 2 * width, width),
        .output = matrix_of(&block->attention.out_proj),
        .feed_forward = {.up = matrix_of(&block->mlp.up_proj),
                         .down = matrix_of(&block->mlp.down_proj)}
    };
}

struct stack tiny_gpt_stack(const struct tiny_gpt *model)
{
    const struct gpt_config *config = tiny_gpt_config(model);
    const struct parameters *weights = tiny_gpt_weights(model);
    const int head_dim = gpt_config_head_dim(config);
    return (struct stack){
        .vocab_size = config->vocab_size,
        .context_length = config->context_length,
        .d_model = config->d_model, .n_layers = config->n_layers,
        .d_ff = config->d_ff, .n_heads = config->n_heads,
        .n_kv_heads = config->n_heads, .head_dim = head_dim,
        .norm_eps = config->layer_norm_eps,
        .bend = config->tanh_gelu ? FINISH_GELU_TANH : FINISH_GELU,
        .token_embedding = matrix_of_rows(weights->token_embedding.weight.data, NULL,
                                          config->vocab_size, config->d_model),
        .position_embedding = weights->position_embedding.weight.data,
        .final_norm = norm_of(&weights->final_norm),
        .head = matrix_of_rows(weights->lm_head.weight.data, NULL,
                               config->vocab_size, config->d_model),
        .weights = weights, .layer = layer
    };
}
