#include "llama_training.h"
#include <string.h>
#include "attention.h"
#include "grouped_attention.h"
#include "layers_backward.h"
#include "linear.h"
#include "llama_layers_backward.h"
#include "llama_parts.h"
#include "loss.h"
#include "rms_norm.h"
#include "rope.h"
#include "swiglu.h"

static struct grouped_shape shape_of(const struct llama_workspace *w)
{
    return (struct grouped_shape){
        .heads = w->config.n_heads, .kv_heads = w->config.n_kv_heads,
        .tokens = w->tokens, .keys = w->tokens, .slots = w->tokens,
        .head_dim = w->config.head_dim
    };
}

static void attend(const struct llama_layer *weights,
                   struct llama_layer_kept *kept, struct llama_workspace *w)
{
    const struct grouped_shape shape = shape_of(w);
    const int rows = w->batch * w->tokens;
    rms_norm_forward(&weights->input_norm, w->config.rms_norm_eps,
                     kept->stream, rows, kept->norm);
    const struct {
        const struct linear *linear; float *to; int heads;
    } thirds[] = {
        { &weights->q_proj, kept->query, shape.heads },
        { &weights->k_proj, kept->key, shape.kv_heads },
        { &weights->v_proj, kept->value, shape.kv_heads },
    };
    for (int k = 0; k < 3; k++) {
        linear_forward(thirds[k].linear, kept->norm, rows, w->wide);
        heads_split(w->wide, thirds[k].heads * shape.head_dim, w->batch,
                    w->tokens, thirds[k].heads, shape.head_dim, thirds[k].to);
    }
    rope_turn(kept->query, w->batch * shape.heads, w->tokens, shape.head_dim,
              w->turns);
    rope_turn(kept->key, w->batch * shape.kv_heads, w->tokens,
              shape.head_dim, w->turns);
    const ptrdiff_t square = (ptrdiff_t)w->tokens * w->tokens;
    for (int b = 0; b < w->batch; b++) {
        const ptrdiff_t row = (ptrdiff_t)b * w->tokens * shape.head_dim;
        const ptrdiff_t q = row * shape.heads, kv = row * shape.kv_heads;
        grouped_attention_forward(&shape, kept->query + q, kept->key + kv,
                                  kept->value + kv, w->keep, w->squares,
                                  w->squares + square, w->context + q);
    }
    heads_merge(w->context, w->batch, shape.heads, w->tokens, shape.head_dim,
                kept->merged);
    linear_forward(&weights->o_proj, kept->merged, rows, w->branch);
    vector_add(kept->stream, w->branch,
               (size_t)rows * (size_t)w->config.d_model, kept->residual);
}

static void expert_forward(const struct moe_expert *expert, const float *in,
                           int rows, const struct moe_hidden *hidden,
                           float *out)
{
    const size_t width = (size_t)expert->w1.weight.shape[0];
    linear_forward(&expert->w1, in, rows, hidden->gate);
    linear_forward(&expert->w3, in, rows, hidden->up);
    swiglu_forward(hidden->gate, hidden->up, (size_t)rows * width,
                   hidden->gated);
    linear_forward(&expert->w2, hidden->gated, rows, out);
}

static struct moe_hidden rows_from(const struct moe_hidden *all,
                                   ptrdiff_t row, int width)
{
    return (struct moe_hidden){ all->gate + row * width,
                                all->up + row * width,
                                all->gated + row * width };
}

static void mix(const struct moe *moe, struct llama_layer_kept *kept,
                struct llama_workspace *w)
{
    struct moe_routing *routing = &kept->routing;
    const int width = w->config.d_model;
    linear_forward(&moe->gate, kept->post_norm, routing->rows,
                   routing->probs);
    moe_route(routing);
    moe_dispatch(routing);
    moe_gather(routing, kept->post_norm, width, w->gathered);
    for (int e = 0; e < routing->n_experts; e++) {
        const ptrdiff_t first = routing->offsets[e];
        const struct moe_hidden hidden = rows_from(&kept->hidden, first,
                                                   w->config.d_ff);
        expert_forward(&moe->experts[e], w->gathered + first * width,
                       routing->offsets[e + 1] - (int)first, &hidden,
                       kept->made + first * width);
    }
    moe_combine(routing, kept->made, width, w->branch);
}

static void feed_forward(const struct llama_layer *weights,
                         struct llama_layer_kept *kept,
                         struct llama_workspace *w, float *next)
{
    const int rows = w->batch * w->tokens;
    rms_norm_forward(&weights->post_norm, w->config.rms_norm_eps,
                     kept->residual, rows, kept->post_norm);
    if (w->config.n_experts == 0) {
        const struct moe_expert only = { weights->gate_proj, weights->up_proj,
                                         weights->down_proj };
        expert_forward(&only, kept->post_norm, rows, &kept->hidden, w->branch);
    } else
        mix(&weights->moe, kept, w);
    vector_add(kept->residual, w->branch,
               (size_t)rows * (size_t)w->config.d_model, next);
}

static void forward(const struct llama *model, const int32_t *ids,
                    struct llama_workspace *w)
{
    const struct llama_config *config = &model->config;
    const size_t width = (size_t)config->d_model;
    const int rows = w->batch * w->tokens, last = config->n_layers - 1;
    for (int row = 0; row < rows; row++)
        memcpy(w->layers[0].stream + (size_t)row * width,
               model->embed_tokens.data + (size_t)ids[row] * width,
               width * sizeof (float));
    rope_turns(w->positions, w->tokens, config->head_dim, config->rope_theta,
               w->turns);
    for (int l = 0; l <= last; l++) {
        attend(&model->layers[l], &w->layers[l], w);
        feed_forward(&model->layers[l], &w->layers[l], w,
                     l == last ? w->stream : w->layers[l + 1].stream);
    }
    rms_norm_forward(&model->norm, config->rms_norm_eps, w->stream, rows,
                     w->norm);
    linear_forward(&model->lm_head, w->norm, rows, w->logits);
}

static void clear(float *part, size_t rows, int width)
{
    memset(part, 0, rows * (size_t)width * sizeof *part);
}

static void unmix(const struct moe *moe, const struct llama_layer_kept *kept,
                  struct llama_workspace *w, struct moe *gradients)
{
    const struct moe_routing *routing = &kept->routing;
    const int width = w->config.d_model;
    moe_gather(routing, kept->post_norm, width, w->gathered);
    moe_combine_backward(routing, kept->made, w->d_stream, width, w->d_gathered,
                         w->d_gates);
    for (int e = 0; e < routing->n_experts; e++) {
        const ptrdiff_t first = routing->offsets[e];
        const int rows = routing->offsets[e + 1] - (int)first;
        const struct moe_hidden hidden = rows_from(&kept->hidden, first,
                                                   w->config.d_ff);
        float *own = w->d_gathered + first * width;
        float *d_made = w->branch;
        memcpy(d_made, own, (size_t)rows * (size_t)width * sizeof *own);
        clear(own, (size_t)rows, width);
        moe_expert_backward(&moe->experts[e], w->gathered + first * width,
                            &hidden, d_made, rows, &w->d_hidden, own,
                            &gradients->experts[e]);
    }
    moe_gather_backward(routing, w->d_gathered, width, w->d_norm);
    clear(w->d_router, (size_t)routing->rows, routing->n_experts);
    moe_route_backward(routing, w->d_gates, w->d_router);
    linear_backward(&moe->gate, kept->post_norm, w->d_router, routing->rows,
                    w->d_norm, &gradients->gate);
}

static void feed_forward_backward(const struct llama_layer *weights,
                                  const struct llama_layer_kept *kept,
                                  struct llama_workspace *w,
                                  struct llama_layer *gradients)
{
    const int rows = w->batch * w->tokens;
    const size_t count = (size_t)rows;
    clear(w->d_norm, count, w->config.d_model);
    if (w->config.n_experts == 0) {
        const struct moe_expert only = { weights->gate_proj, weights->up_proj,
                                         weights->down_proj };
        struct moe_expert d_only = { gradients->gate_proj, gradients->up_proj,
                                     gradients->down_proj };
        moe_expert_backward(&only, kept->post_norm, &kept->hidden, w->d_stream,
                            rows, &w->d_hidden, w->d_norm, &d_only);
    } else
        unmix(&weights->moe, kept, w, &gradients->moe);
    rms_norm_backward(&weights->post_norm, w->config.rms_norm_eps,
                      kept->residual, w->d_norm, rows, w->d_stream,
                      &gradients->post_norm);
}

static void attention_half_backward(const struct llama_layer *weights,
                                    const struct llama_layer_kept *kept,
                                    struct llama_workspace *w,
                                    struct llama_layer *gradients)
{
    const struct grouped_shape shape = shape_of(w);
    const int rows = w->batch * w->tokens, head_dim = shape.head_dim;
    const size_t count = (size_t)rows;
    clear(w->wide, count, shape.heads * head_dim);
    linear_backward(&weights->o_proj, kept->merged, w->d_stream, rows, w->wide,
                    &gradients->o_proj);
    heads_split(w->wide, shape.heads * head_dim, w->batch, w->tokens,
                shape.heads, head_dim, w->context);
    clear(w->d_query, count, shape.heads * head_dim);
    clear(w->d_key, count, shape.kv_heads * head_dim);
    clear(w->d_value, count, shape.kv_heads * head_dim);
    for (int b = 0; b < w->batch; b++) {
        const ptrdiff_t row = (ptrdiff_t)b * w->tokens * head_dim;
        const ptrdiff_t q = row * shape.heads, kv = row * shape.kv_heads;
        grouped_attention_backward(&shape, kept->query + q, kept->key + kv,
                                   kept->value + kv, w->keep, w->context + q,
                                   w->squares, w->d_query + q, w->d_key + kv,
                                   w->d_value + kv);
    }
    rope_turn_backward(w->d_query, w->batch * shape.heads, w->tokens, head_dim,
                       w->turns);
    rope_turn_backward(w->d_key, w->batch * shape.kv_heads, w->tokens, head_dim,
                       w->turns);
    const struct {
        const struct linear *linear; const float *from; int heads;
        struct linear *gradients;
    } thirds[] = {
        { &weights->q_proj, w->d_query, shape.heads, &gradients->q_proj },
        { &weights->k_proj, w->d_key, shape.kv_heads, &gradients->k_proj },
        { &weights->v_proj, w->d_value, shape.kv_heads, &gradients->v_proj },
    };
    clear(w->d_norm, count, w->config.d_model);
    for (int k = 0; k < 3; k++) {
        heads_merge(thirds[k].from, w->batch, thirds[k].heads, w->tokens,
                    head_dim, w->wide);
        linear_backward(thirds[k].linear, kept->norm, w->wide, rows, w->d_norm,
                        thirds[k].gradients);
    }
    rms_norm_backward(&weights->input_norm, w->config.rms_norm_eps, kept->stream,
                      w->d_norm, rows, w->d_stream, &gradients->input_norm);
}

static void walk_back(const struct llama *model, const int32_t *ids,
                      struct llama_workspace *w, struct llama *gradients)
{
    const int rows = w->batch * w->tokens, width = model->config.d_model;
    clear(w->d_norm, (size_t)rows, width);
    linear_backward(&model->lm_head, w->norm, w->d_logits, rows, w->d_norm,
                    &gradients->lm_head);
    memset(w->d_stream, 0, (size_t)rows * (size_t)width * sizeof (float));
    rms_norm_backward(&model->norm, model->config.rms_norm_eps, w->stream,
                      w->d_norm, rows, w->d_stream, &gradients->norm);
    for (int l = model->config.n_layers - 1; l >= 0; l--) {
        feed_forward_backward(&model->layers[l], &w->layers[l], w,
                              &gradients->layers[l]);
        attention_half_backward(&model->layers[l], &w->layers[l], w,
                                &gradients->layers[l]);
    }
    token_embedding_backward(ids, rows, w->d_stream,
                             &gradients->embed_tokens);
}

static bool same_config(const struct llama_config *a,
                        const struct llama_config *b)
{
    return a->vocab_size == b->vocab_size && a->d_model == b->d_model
        && a->context_length == b->context_length
        && a->n_layers == b->n_layers && a->n_heads == b->n_heads
        && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim
        && a->d_ff == b->d_ff && a->rms_norm_eps == b->rms_norm_eps
        && a->rope_theta == b->rope_theta
        && a->tie_word_embeddings == b->tie_word_embeddings
        && a->n_experts == b->n_experts
        && a->experts_per_token == b->experts_per_token;
}

static enum status check(const struct llama *model, const int32_t *ids,
                         const struct llama_workspace *w,
                         const struct llama *gradients, struct error *error)
{
    const struct causal_lm lm = llama_causal_lm(model);
    if (!same_config(&w->config, &model->config))
        return error_set(error, STATUS_INVALID, "workspace: expected one for"
                         " the model's config, got another");
    if (gradients != NULL && !same_config(&gradients->config, &model->config))
        return error_set(error, STATUS_INVALID, "gradients: expected those"
                         " of the model's config, got another");
    return tokens_check(&lm, ids, w->positions, w->batch, w->tokens, error);
}

enum status llama_loss_and_gradients(const struct llama *model,
                                     const int32_t *ids,
                                     const int32_t *labels,
                                     struct llama_workspace *workspace,
                                     float *loss, struct llama *gradients,
                                     struct error *error)
{
    struct llama_workspace *w = workspace;
    enum status status = check(model, ids, w, gradients, error);
    if (status == STATUS_OK)
        status = labels_check(labels, w->batch, w->tokens,
                              model->config.vocab_size, error);
    if (status != STATUS_OK)
        return status;
    forward(model, ids, w);
    status = cross_entropy(w->logits, labels, w->batch, w->tokens,
                           model->config.vocab_size, loss,
                           gradients == NULL ? NULL : w->d_logits, error);
    if (status == STATUS_OK && gradients != NULL)
        walk_back(model, ids, w, gradients);
    return status;
}
