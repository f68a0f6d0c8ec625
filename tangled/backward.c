#include "backward.h"
#include "attention_backward.h"
#include "layers_backward.h"
#include "loss.h"
#include "vector.h"
#include <string.h>

/* d_in += mask * d_out, elementwise; an empty mask is all ones. */
static void dropout_backward(const struct tensor *mask,
                             const struct tensor *d_out,
                             struct tensor *d_in)
{
    size_t count = tensor_size(d_out);
    if (mask->data == NULL)
        vector_add_scaled(d_in->data, 1, d_out->data, count);
    else
        for (size_t i = 0; i < count; i++)
            d_in->data[i] += mask->data[i] * d_out->data[i];
}

static void mlp_backward(const struct block *block,
                         const struct gpt_config *config,
                         const struct block_activations *a,
                         struct block_activations *d,
                         struct block *gradients)
{
    int rows = a->output.shape[0] * a->output.shape[1];
    vector_add_scaled(d->residual.data, 1, d->output.data,
                      tensor_size(&d->output));
    dropout_backward(&a->down_dropout, &d->output, &d->down);
    linear_backward(&block->mlp.down_proj, a->gelu.data, d->down.data, rows,
                    d->gelu.data, &gradients->mlp.down_proj);
    config_gelu_backward(config, a->up.data, d->gelu.data, tensor_size(&a->up),
                         d->up.data);
    linear_backward(&block->mlp.up_proj, a->mlp_norm.data, d->up.data, rows,
                    d->mlp_norm.data, &gradients->mlp.up_proj);
    layer_norm_backward(&block->mlp_norm, config->layer_norm_eps,
                        a->residual.data, d->mlp_norm.data, rows,
                        d->residual.data, &gradients->mlp_norm);
}

static void heads_backward(const struct gpt_config *config,
                           const struct block_activations *a,
                           struct block_activations *d)
{
    int batch = a->query.shape[0], heads = config->n_heads;
    int tokens = a->query.shape[2], width = config->d_model;
    int head_dim = gpt_config_head_dim(config);
    const struct tensor *thirds[] = { &d->query, &d->key, &d->value };

    heads_merge_backward(d->merged.data, batch, heads, tokens, head_dim,
                         d->context.data);
    attention_backward(a->query.data, a->key.data, a->value.data,
                       a->probs.data, a->probs_dropout.data, d->context.data,
                       batch * heads, tokens, tokens, head_dim,
                       d->probs.data, d->scores.data,
                       d->query.data, d->key.data, d->value.data);
    for (int i = 0; i < 3; i++)
        heads_split_backward(thirds[i]->data, 3 * width, batch, tokens,
                             heads, head_dim, d->qkv.data + i * width);
}

static void attention_half_backward(const struct block *block,
                                    const struct gpt_config *config,
                                    const struct block_activations *a,
                                    const float *x,
                                    struct block_activations *d,
                                    struct tensor *d_x,
                                    struct block *gradients)
{
    int rows = d_x->shape[0] * d_x->shape[1];
    vector_add_scaled(d_x->data, 1, d->residual.data, tensor_size(d_x));
    dropout_backward(&a->attention_dropout, &d->residual, &d->attention);
    linear_backward(&block->attention.out_proj, a->merged.data,
                    d->attention.data, rows, d->merged.data,
                    &gradients->attention.out_proj);
    heads_backward(config, a, d);
    linear_backward(&block->attention.qkv_proj, a->attention_norm.data,
                    d->qkv.data, rows, d->attention_norm.data,
                    &gradients->attention.qkv_proj);
    layer_norm_backward(&block->attention_norm, config->layer_norm_eps,
                        x, d->attention_norm.data, rows, d_x->data,
                        &gradients->attention_norm);
}

/* The residual stream that enters block l; l = L: that leaves the last. */
static const float *stream(const struct activations *a, int l)
{
    return l == 0 ? a->embedding.data : a->blocks[l - 1].output.data;
}

static void clear_block(struct block_activations *d)
{
    struct tensor *all[] = {
        &d->attention_norm, &d->qkv, &d->query, &d->key, &d->value,
        &d->scores, &d->probs, &d->context, &d->merged, &d->attention,
        &d->residual, &d->mlp_norm, &d->up, &d->gelu, &d->down, &d->output };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        memset(all[i]->data, 0, tensor_size(all[i]) * sizeof (float));
}

static void walk_back(const struct parameters *p, const int32_t *ids,
                      const struct activations *a, const float *d_logits,
                      struct activations *d, struct parameters *gradients)
{
    const struct gpt_config *config = &p->config;
    int rows = a->batch * a->tokens, last = config->n_layers;

    linear_backward(&p->lm_head, a->final_norm.data, d_logits, rows,
                    d->final_norm.data, &gradients->lm_head);
    layer_norm_backward(&p->final_norm, config->layer_norm_eps,
                        stream(a, last), d->final_norm.data, rows,
                        d->embedding.data, &gradients->final_norm);
    for (int l = last - 1; l >= 0; l--) {
        struct block_activations *d_block = &d->blocks[0];
        clear_block(d_block);
        struct tensor above = d->embedding;
        d->embedding = d_block->output;
        d_block->output = above;
        mlp_backward(&p->blocks[l], config, &a->blocks[l], d_block,
                     &gradients->blocks[l]);
        attention_half_backward(&p->blocks[l], config, &a->blocks[l],
                                stream(a, l), d_block, &d->embedding,
                                &gradients->blocks[l]);
    }
    if (a->embedding_dropout.data != NULL)
        for (size_t i = 0; i < tensor_size(&d->embedding); i++)
            d->embedding.data[i] *= a->embedding_dropout.data[i];
    embedding_backward(ids, a->batch, a->tokens, d->embedding.data, gradients);
}

static enum status check_call(const struct gpt_config *config,
                              const struct forward_input *input,
                              const struct activations *activations,
                              const struct forward_output *output,
                              const struct parameters *gradients,
                              struct error *error)
{
    if (input->labels == NULL || !output->has_loss)
        return error_set(error, STATUS_INVALID, "labels: expected those of"
                         " a forward call with a loss, got none");
    if (activations->batch != input->batch
        || activations->tokens != input->tokens || activations->past != 0)
        return error_set(error, STATUS_INVALID, "activations: expected batch %d,"
                         " tokens %d, past 0, got %d, %d, %d", input->batch,
                         input->tokens, activations->batch, activations->tokens,
                         activations->past);
    const struct gpt_config *of = &gradients->config;
    if (of->vocab_size != config->vocab_size || of->d_model != config->d_model
        || of->context_length != config->context_length
        || of->n_layers != config->n_layers || of->d_ff != config->d_ff)
        return error_set(error, STATUS_INVALID, "gradients: expected those of"
                         " the model's config, got another");
    return STATUS_OK;
}

enum status tiny_gpt_backward(const struct tiny_gpt *model,
                              const struct forward_input *input,
                              const struct activations *activations,
                              const struct forward_output *output,
                              struct parameters *gradients,
                              struct error *error)
{
    const struct gpt_config *config = tiny_gpt_config(model);
    int batch = input->batch, tokens = input->tokens;
    struct activations d = { 0 };
    struct tensor d_logits = { 0 };

    enum status status = check_call(config, input, activations, output,
                                    gradients, error);
    struct gpt_config one_block = *config;
    one_block.n_layers = 1;
    if (status == STATUS_OK)
        status = activations_new(&d, &one_block, batch, tokens, 0, error);
    if (status == STATUS_OK)
        status = tensor_new(&d_logits, SHAPE(batch, tokens, config->vocab_size),
                            error);
    float loss;
    if (status == STATUS_OK)
        status = cross_entropy(output->logits.data, input->labels, batch, tokens,
                               config->vocab_size, &loss, d_logits.data, error);
    if (status == STATUS_OK)
        walk_back(tiny_gpt_weights(model), input->ids, activations,
                  d_logits.data, &d, gradients);
    activations_free(&d);
    tensor_free(&d_logits);
    return status;
}
