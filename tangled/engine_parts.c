#include "engine_parts.h"
#include <stdio.h>
#include <stdlib.h>

static const struct place { const char *name; size_t offset; }
layer_matrices[] = {
    {"query", offsetof(struct stack_layer, query)},
    {"key", offsetof(struct stack_layer, key)},
    {"value", offsetof(struct stack_layer, value)},
    {"output", offsetof(struct stack_layer, output)},
    {"router", offsetof(struct stack_layer, router)}
}, feed_forward_matrices[] = {
    {"gate", offsetof(struct stack_feed_forward, gate)},
    {"up", offsetof(struct stack_feed_forward, up)},
    {"down", offsetof(struct stack_feed_forward, down)}
};

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

static struct matrix *matrix_in(void *parts, const struct place *place)
{
    return (void *)((char *)parts + place->offset);
}

static enum status visit_matrix(const struct visitor *visitor,
                                const char *prefix, const char *name,
                                struct matrix *matrix, struct error *error)
{
    char full[PLACE_NAME_MAX];
    if (matrix->out == 0)
        return STATUS_OK;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    enum status status = visitor->matrix(visitor->context, full, matrix,
                                         error);
    if (status != STATUS_OK || matrix->bias == NULL)
        return status;
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    return visitor->vector(visitor->context, full, &matrix->bias,
                           (size_t)matrix->out, error);
}

static enum status visit_norm(const struct engine *engine,
                              const struct visitor *visitor,
                              const char *prefix, const char *name,
                              struct stack_norm *norm, struct error *error)
{
    char full[PLACE_NAME_MAX];
    const size_t width = (size_t)engine->stack.d_model;
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    enum status status = visitor->vector(visitor->context, full,
                                         &norm->weight, width, error);
    if (status != STATUS_OK || norm->bias == NULL)
        return status;
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    return visitor->vector(visitor->context, full, &norm->bias, width, error);
}

static enum status visit_feed_forward(const struct visitor *visitor,
                                      const char *prefix,
                                      struct stack_feed_forward *parts,
                                      struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < COUNT(feed_forward_matrices)
                       && status == STATUS_OK; i++)
        status = visit_matrix(visitor, prefix, feed_forward_matrices[i].name,
                              matrix_in(parts, &feed_forward_matrices[i]),
                              error);
    return status;
}

static enum status visit_experts(struct engine *engine,
                                 const struct visitor *visitor, int layer,
                                 struct error *error)
{
    char prefix[PREFIX_MAX];
    const int count = engine->stack.n_experts;
    enum status status = STATUS_OK;
    for (int e = 0; e < count && status == STATUS_OK; e++) {
        snprintf(prefix, sizeof prefix, "layers.%d.experts.%d.", layer, e);
        status = visit_feed_forward(visitor, prefix,
            &engine->experts[(size_t)layer * (size_t)count + (size_t)e],
            error);
    }
    return status;
}

static enum status visit_layer(struct engine *engine,
                               const struct visitor *visitor, int index,
                               struct error *error)
{
    char prefix[PREFIX_MAX];
    struct stack_layer *layer = &engine->layers[index];
    snprintf(prefix, sizeof prefix, "layers.%d.", index);
    enum status status = visit_norm(engine, visitor, prefix, "attention_norm",
                                    &layer->attention_norm, error);
    for (size_t i = 0; i < COUNT(layer_matrices) && status == STATUS_OK; i++)
        status = visit_matrix(visitor, prefix, layer_matrices[i].name,
                              matrix_in(layer, &layer_matrices[i]), error);
    if (status == STATUS_OK)
        status = visit_norm(engine, visitor, prefix, "feed_forward_norm",
                            &layer->feed_forward_norm, error);
    if (status == STATUS_OK)
        status = visit_feed_forward(visitor, prefix, &layer->feed_forward,
                                    error);
    if (status == STATUS_OK)
        status = visit_experts(engine, visitor, index, error);
    return status;
}

bool engine_tied(const struct engine *engine)
{
    return engine->stack.token_embedding.data == engine->stack.head.data;
}

enum status engine_visit(struct engine *engine, const struct visitor *visitor,
                         struct error *error)
{
    struct stack *stack = &engine->stack;
    const bool tied = engine_tied(engine);
    enum status status = STATUS_OK;
    for (int l = 0; l < stack->n_layers && status == STATUS_OK; l++)
        status = visit_layer(engine, visitor, l, error);
    if (status == STATUS_OK)
        status = visit_norm(engine, visitor, "", "final_norm",
                            &stack->final_norm, error);
    if (status == STATUS_OK)
        status = visit_matrix(visitor, "", "head", &stack->head, error);
    if (status == STATUS_OK && !tied)
        status = visit_matrix(visitor, "", "token_embedding",
                              &stack->token_embedding, error);
    else if (status == STATUS_OK)
        stack->token_embedding = stack->head;
    if (status == STATUS_OK && stack->position_embedding != NULL)
        status = visitor->vector(visitor->context, "position_embedding",
                                 &stack->position_embedding,
                                 (size_t)stack->context_length
                                 * (size_t)stack->d_model, error);
    return status;
}

static struct stack_layer layer_of(const void *weights, int layer)
{
    const struct engine *engine = weights;
    return engine->layers[layer];
}

static struct stack_feed_forward expert_of(const void *weights, int layer,
                                             int expert)
{
    const struct engine *engine = weights;
    const size_t row = (size_t)layer * (size_t)engine->stack.n_experts;
    return engine->experts[row + (size_t)expert];
}

enum status engine_make(struct engine **engine, const struct stack *stack,
                        enum matrix_type type, const struct kernels *kernels,
                        struct error *error)
{
    const size_t layers = (size_t)stack->n_layers;
    const size_t experts = (size_t)stack->n_experts;
    struct engine *made = calloc(1, sizeof *made);
    if (made != NULL) {
        *made = (struct engine){
            .stack = *stack, .type = type,
            .kernels = kernels != NULL ? kernels : kernels_best(),
            .layers = calloc(layers, sizeof *made->layers),
            .experts = experts == 0 ? NULL
                : calloc(layers, experts * sizeof *made->experts)
        };
        made->stack.weights = made;
        made->stack.layer = layer_of;
        made->stack.expert = expert_of;
    }
    if (made == NULL || made->layers == NULL
        || (experts > 0 && made->experts == NULL)) {
        engine_free(&made);
        return error_set(error, STATUS_NO_MEMORY, "engine: no memory for the"
                         " views of %zu layers", layers);
    }
    *engine = made;
    return STATUS_OK;
}
