#include "model.h"
#include <stdlib.h>
#include "attention.h"
#include "embedding.h"
#include "gelu.h"
#include "linear.h"
#include "mask.h"
#include "norm.h"
#include "dropout.h"
#include "loss.h"
#include "mode.h"
#include <string.h>

struct tiny_gpt {
    struct parameters *parameters;
    enum mode mode;                  /* zero is evaluation */
};

enum status tiny_gpt_new(struct tiny_gpt **model,
                         const struct gpt_config *config,
                         struct error *error)
{
    if (model == NULL || config == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         model == NULL ? "model" : "config");
    struct tiny_gpt *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "model: no memory");
    enum status status = parameters_new(&made->parameters, config, error);
    if (status == STATUS_OK)
        *model = made;
    else
        free(made);
    return status;
}

void tiny_gpt_free(struct tiny_gpt **model)
{
    if (model == NULL || *model == NULL)
        return;
    parameters_free(&(*model)->parameters);
    free(*model);
    *model = NULL;
}

const struct gpt_config *tiny_gpt_config(const struct tiny_gpt *model)
{
    return &model->parameters->config;
}

struct parameters *tiny_gpt_parameters(struct tiny_gpt *model)
{
    return model->parameters;
}

const struct parameters *tiny_gpt_weights(const struct tiny_gpt *model)
{
    return model->parameters;
}

struct call {
    const struct tiny_gpt *model;
    const struct forward_input *input;
    const struct gpt_config *config;
    int rows;                        /* B·T */
    struct activations activations;
    struct forward_output output;
    struct tensor dropped_probs;     /* [B,H,T,S], or empty */
};

/* P, the tokens before this call. */
static int past_length(const struct forward_input *input)
{
    return past_key_values_length(input->past_key_values);
}

/* Whether forward calls of this model drop elements. */
static bool drops(const struct tiny_gpt *model)
{
    const double p = tiny_gpt_config(model)->dropout;
    return model->mode == MODE_TRAINING && p > 0;
}

static enum status make_like(const struct tensor *like, struct tensor *made,
                             struct error *error)
{
    return tensor_new(made, like->rank, like->shape, error);
}

static enum status make_masks(struct call *call, struct error *error)
{
    struct activations *act = &call->activations;
    enum status status = make_like(&act->embedding, &act->embedding_dropout,
                                   error);
    if (status == STATUS_OK)
        status = make_like(&act->blocks[0].probs, &call->dropped_probs,
                           error);
    for (int l = 0; l < act->n_layers; l++) {
        struct block_activations *block = &act->blocks[l];
        if (status == STATUS_OK)
            status = make_like(&block->probs, &block->probs_dropout, error);
        if (status == STATUS_OK)
            status = make_like(&block->attention, &block->attention_dropout, error);
        if (status == STATUS_OK)
            status = make_like(&block->down, &block->down_dropout, error);
    }
    return status;
}

/* Draws a mask, unless it is empty, and writes mask * in to out. */
static void drop(const struct call *call, struct tensor *mask,
                 const float *in, float *out)
{
    const size_t count = tensor_size(mask);
    if (count == 0)
        return;
    dropout_mask(call->input->generator, call->config->dropout, count,
                 mask->data);
    for (size_t i = 0; i < count; i++)
        out[i] = mask->data[i] * in[i];
}

static enum status check_ids(const struct forward_input *input,
                             int vocab_size, struct error *error)
{
    const int32_t *id = input->ids;
    for (int b = 0; b < input->batch; b++)
        for (int t = 0; t < input->tokens; t++, id++) {
            if (*id < 0 || *id >= vocab_size)
                return error_set(error, STATUS_INVALID,
                                 "ids[%d,%d]: expected 0..%d, got %ld",
                                 b, t, vocab_size - 1, (long)*id);
        }
    return STATUS_OK;
}

static enum status check_empty(const struct forward_input *input,
                               const struct forward_output *output,
                               struct error *error)
{
    if (output->logits.data != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct, got logits");
    if (input->activations != NULL && input->activations->blocks != NULL)
        return error_set(error, STATUS_INVALID,
                         "activations: expected an empty struct, got %d blocks",
                         input->activations->n_layers);
    return STATUS_OK;
}

static enum status check(const struct tiny_gpt *model,
                         const struct forward_input *input,
                         const struct forward_output *output,
                         struct error *error)
{
    const char *missing = model == NULL ? "model"
                          : input == NULL ? "input"
                          : output == NULL ? "output"
                          : input->ids == NULL ? "ids" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    const struct gpt_config *config = tiny_gpt_config(model);
    enum status status = gpt_config_check_call(config, input->batch,
                                               input->tokens, 0, error);
    if (status == STATUS_OK && input->past_key_values != NULL)
        status = past_key_values_check(input->past_key_values, config,
                                       input->batch, error);
    if (status == STATUS_OK)
        status = gpt_config_check_call(config, input->batch, input->tokens,
                                       past_length(input), error);
    if (status == STATUS_OK)
        status = check_ids(input, config->vocab_size, error);
    if (status == STATUS_OK && input->labels != NULL)
        status = labels_check(input->labels, input->batch, input->tokens,
                              config->vocab_size, error);
    if (status == STATUS_OK && drops(model) && input->generator == NULL)
        status = error_set(error, STATUS_INVALID, "generator: is NULL, but"
                           " training with dropout %g draws from it",
                           config->dropout);
    if (status == STATUS_OK && output->past_key_values.layers != NULL)
        status = error_set(error, STATUS_INVALID,
                           "output: expected an empty struct, got a cache");
    if (status == STATUS_OK)
        status = check_empty(input, output, error);
    return status;
}

static enum status make_room(struct call *call, struct error *error)
{
    const struct forward_input *input = call->input;
    const int shape[] = {
        input->batch, input->tokens, call->config->vocab_size
    };
    enum status status = tensor_new(&call->output.logits, 3, shape, error);
    if (status == STATUS_OK)
        status = activations_new(&call->activations, call->config,
                                 input->batch, input->tokens,
                                 past_length(input), error);
    if (status == STATUS_OK && drops(call->model))
        status = make_masks(call, error);
    if (status == STATUS_OK && input->use_cache)
        status = past_key_values_new(&call->output.past_key_values, call->config,
                                     input->batch,
                                     past_length(input) + input->tokens, error);
    return status;
}

void forward_output_free(struct forward_output *output)
{
    if (output == NULL)
        return;
    tensor_free(&output->logits);
    past_key_values_free(&output->past_key_values);
    *output = (struct forward_output){0};
}

static const float *embed(struct call *call)
{
    const struct forward_input *input = call->input;
    struct activations *act = &call->activations;
    const int first = act->past;
    embedding_forward(call->model->parameters, input->ids, input->batch,
                      input->tokens, first, act->embedding.data);
    drop(call, &act->embedding_dropout, act->embedding.data,
         act->embedding.data);
    const size_t cells = (size_t)act->tokens * (size_t)(act->past + act->tokens);
    if (input->keep != NULL)
        memcpy(act->keep, input->keep, cells * sizeof *act->keep);
    else
        causal_mask(act->past, act->tokens, act->keep);
    return act->embedding.data;
}

static void attend(struct call *call, int layer)
{
    const struct attention *attention =
        &call->model->parameters->blocks[layer].attention;
    struct block_activations *act = &call->activations.blocks[layer];
    const int batch = call->activations.batch;
    const int tokens = call->activations.tokens;
    const int keys = call->activations.past + tokens;
    const int heads = call->config->n_heads;
    const int head_dim = gpt_config_head_dim(call->config);
    const bool *keep = call->activations.keep;

    linear_forward(&attention->qkv_proj, act->attention_norm.data, call->rows,
                   act->qkv.data);
    const int width = call->config->d_model;
    const float *qkv = act->qkv.data;
    heads_split(qkv, 3 * width, batch, tokens, heads, head_dim, act->query.data);
    static const struct layer_kv none;
    const struct past_key_values *before = call->input->past_key_values;
    const struct layer_kv *past = before ? &before->layers[layer] : &none;
    const int length = call->activations.past;
    float *recent = act->context.data;
    heads_split(qkv + width, 3 * width, batch, tokens, heads, head_dim, recent);
    kv_append(past->key.data, length, recent, tokens, batch * heads, head_dim,
              act->key.data);
    heads_split(qkv + 2 * width, 3 * width, batch, tokens, heads, head_dim,
                recent);
    kv_append(past->value.data, length, recent, tokens, batch * heads, head_dim,
              act->value.data);
    attention_scores(act->query.data, act->key.data, keep, batch * heads, tokens,
                     keys, head_dim, act->scores.data);
    attention_probs(act->scores.data, keep, batch * heads, tokens, keys,
                    act->probs.data);
    const float *probs = act->probs.data;
    drop(call, &act->probs_dropout, probs, call->dropped_probs.data);
    if (call->dropped_probs.data != NULL)
        probs = call->dropped_probs.data;
    attention_mix(act->query.data, act->key.data, act->value.data, probs,
                  probs != act->probs.data, keep, batch * heads, tokens, keys,
                  head_dim, act->context.data);
    heads_merge(act->context.data, batch, heads, tokens, head_dim,
                act->merged.data);
    linear_forward(&attention->out_proj, act->merged.data, call->rows,
                   act->attention.data);
    drop(call, &act->attention_dropout, act->attention.data,
         act->attention.data);
}

static void feed_forward(struct call *call, int layer)
{
    const struct mlp *mlp = &call->model->parameters->blocks[layer].mlp;
    struct block_activations *act = &call->activations.blocks[layer];
    linear_forward(&mlp->up_proj, act->mlp_norm.data, call->rows,
                   act->up.data);
    config_gelu_forward(call->config, act->up.data, tensor_size(&act->up),
                        act->gelu.data);
    linear_forward(&mlp->down_proj, act->gelu.data, call->rows,
                   act->down.data);
    drop(call, &act->down_dropout, act->down.data, act->down.data);
}

static const float *run_block(struct call *call, int layer,
                              const float *stream)
{
    const struct block *block = &call->model->parameters->blocks[layer];
    struct block_activations *act = &call->activations.blocks[layer];
    const size_t size = tensor_size(&act->output);
    const double eps = call->config->layer_norm_eps;
    layer_norm_forward(&block->attention_norm, eps, stream, call->rows,
                       act->attention_norm.data);
    attend(call, layer);
    vector_add(stream, act->attention.data, size, act->residual.data);
    layer_norm_forward(&block->mlp_norm, eps, act->residual.data, call->rows,
                       act->mlp_norm.data);
    feed_forward(call, layer);
    vector_add(act->residual.data, act->down.data, size, act->output.data);
    return act->output.data;
}

static void predict(struct call *call, const float *stream)
{
    const struct parameters *parameters = call->model->parameters;
    float *final_norm = call->activations.final_norm.data;
    layer_norm_forward(&parameters->final_norm, call->config->layer_norm_eps,
                       stream, call->rows, final_norm);
    linear_forward(&parameters->lm_head, final_norm, call->rows,
                   call->output.logits.data);
}

static void compute(struct call *call)
{
    const float *stream = embed(call);
    for (int layer = 0; layer < call->config->n_layers; layer++)
        stream = run_block(call, layer, stream);
    predict(call, stream);
}

enum status tiny_gpt_forward(const struct tiny_gpt *model,
                             const struct forward_input *input,
                             struct forward_output *output,
                             struct error *error)
{
    enum status status = check(model, input, output, error);
    if (status != STATUS_OK)
        return status;
    struct call call = {
        .model = model, .input = input, .config = tiny_gpt_config(model),
        .rows = input->batch * input->tokens
    };
    status = make_room(&call, error);
    if (status == STATUS_OK)
        compute(&call);
    if (status == STATUS_OK && input->labels != NULL) {
        call.output.has_loss = true;
        status = cross_entropy(call.output.logits.data, input->labels,
                               input->batch, input->tokens,
                               call.config->vocab_size, &call.output.loss, NULL,
                               error);
    }
    for (int l = 0; l < call.output.past_key_values.n_layers; l++) {
        struct layer_kv *made = &call.output.past_key_values.layers[l];
        struct block_activations *act = &call.activations.blocks[l];
        const size_t bytes = tensor_size(&act->key) * sizeof *act->key.data;
        memcpy(made->key.data, act->key.data, bytes);
        memcpy(made->value.data, act->value.data, bytes);
    }
    tensor_free(&call.dropped_probs);
    if (status == STATUS_OK)
        *output = call.output;
    else
        forward_output_free(&call.output);
    if (status == STATUS_OK && input->activations != NULL)
        *input->activations = call.activations;
    else
        activations_free(&call.activations);
    return status;
}


enum mode tiny_gpt_mode(const struct tiny_gpt *model)
{
    return model->mode;
}

void tiny_gpt_set_mode(struct tiny_gpt *model, enum mode mode)
{
    model->mode = mode;
}
