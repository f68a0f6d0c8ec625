#include "engine.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "engine_parts.h"
#include "pages.h"

static void look_at(struct engine *engine, const struct stack *stack)
{
    const size_t experts = (size_t)stack->n_experts;
    for (int l = 0; l < stack->n_layers; l++) {
        engine->layers[l] = stack->layer(stack->weights, l);
        for (size_t e = 0; e < experts; e++)
            engine->experts[(size_t)l * experts + e]
                = stack->expert(stack->weights, l, (int)e);
    }
}

enum { LINE = 64 };

static bool add_bytes(size_t *sum, size_t bytes)
{
    return size_add(*sum, bytes, sum)
        && size_add(*sum, (LINE - bytes % LINE) % LINE, sum);
}

struct count { enum matrix_type type; size_t bytes; };

static enum status too_large(const char *name, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "%s: its panels do not fit the"
                     " memory that can be addressed", name);
}

static enum status count_matrix(void *context, const char *name,
                                struct matrix *matrix, struct error *error)
{
    struct count *count = context;
    size_t data, scales;
    if (!matrix_packed_sizes(matrix->out, matrix->in, count->type, &data,
                             &scales)
        || !add_bytes(&count->bytes, data)
        || !add_bytes(&count->bytes, scales))
        return too_large(name, error);
    const float *weights = matrix->data;
    const size_t size = (size_t)matrix->out * (size_t)matrix->in;
    for (size_t k = 0; k < size && count->type == MATRIX_INT8; k++)
        if (!isfinite(weights[k]))
            return error_set(error, STATUS_INVALID, "%s: expected finite weights"
                             " for 8 bits, got %g at %zu", name,
                             (double)weights[k], k);
    return STATUS_OK;
}

static enum status count_vector(void *context, const char *name,
                                const float **vector, size_t floats,
                                struct error *error)
{
    struct count *count = context;
    size_t bytes;
    (void)vector;
    if (!size_multiply(floats, sizeof (float), &bytes)
        || !add_bytes(&count->bytes, bytes))
        return too_large(name, error);
    return STATUS_OK;
}

struct mover { enum matrix_type type; unsigned char *next; };

static void *take(struct mover *mover, size_t bytes)
{
    void *taken = mover->next;
    mover->next += bytes + (LINE - bytes % LINE) % LINE;
    return taken;
}

static enum status move_matrix(void *context, const char *name,
                               struct matrix *matrix, struct error *error)
{
    struct mover *mover = context;
    size_t data, scales;
    (void)name;
    (void)error;
    (void)matrix_packed_sizes(matrix->out, matrix->in, mover->type, &data,
                              &scales);
    void *panels = take(mover, data);
    *matrix = matrix_pack(matrix->data, matrix->bias, matrix->out, matrix->in,
                          mover->type, panels, take(mover, scales));
    return STATUS_OK;
}

static enum status move_vector(void *context, const char *name,
                               const float **vector, size_t floats,
                               struct error *error)
{
    struct mover *mover = context;
    float *moved = take(mover, floats * sizeof (float));
    (void)name;
    (void)error;
    memcpy(moved, *vector, floats * sizeof (float));
    *vector = moved;
    return STATUS_OK;
}

static enum status pack(struct engine *engine, struct error *error)
{
    struct count count = {engine->type, 0};
    const struct visitor counter = {&count, count_matrix, count_vector};
    enum status status = engine_visit(engine, &counter, error);
    if (status != STATUS_OK)
        return status;
    unsigned char *weights = pages_new(count.bytes, &engine->room);
    if (weights == NULL)
        return error_set(error, STATUS_NO_MEMORY, "engine: no memory for %zu"
                         " bytes of weights", count.bytes);
    struct mover move = {engine->type, weights};
    const struct visitor mover = {&move, move_matrix, move_vector};
    engine->bytes = count.bytes;
    return engine_visit(engine, &mover, error);
}

enum status engine_new(struct engine **engine, const struct stack *stack,
                       enum matrix_type type, const struct kernels *kernels,
                       struct error *error)
{
    struct engine *made;
    enum status status = engine_make(&made, stack, type, kernels, error);
    if (status != STATUS_OK)
        return status;
    look_at(made, stack);
    status = pack(made, error);
    if (status == STATUS_OK)
        *engine = made;
    else
        engine_free(&made);
    return status;
}

void engine_free(struct engine **engine)
{
    if (*engine == NULL)
        return;
    if ((*engine)->file != NULL) {
        safetensors_close(&(*engine)->file);
        file_map_close(&(*engine)->map);
    }
    free((*engine)->room);
    free((*engine)->experts);
    free((*engine)->layers);
    free(*engine);
    *engine = NULL;
}

static size_t scratch_size(const void *model, int batch, int tokens,
                           int slots)
{
    const struct engine *engine = model;
    (void)slots;
    return stack_scratch_size(&engine->stack, batch, tokens);
}

static void run(const void *model, const struct step *step, float *scratch)
{
    const struct engine *engine = model;
    stack_step(&engine->stack, engine->kernels, step, scratch);
}

struct causal_lm engine_causal_lm(const struct engine *engine)
{
    const struct stack *stack = &engine->stack;
    return (struct causal_lm){
        .model = engine, .vocab_size = stack->vocab_size,
        .context_length = stack->context_length,
        .cache = {stack->n_layers, stack->n_kv_heads, stack->head_dim},
        .scratch_size = scratch_size, .run = run
    };
}

const struct stack *engine_stack(const struct engine *engine)
{
    return &engine->stack;
}

enum matrix_type engine_type(const struct engine *engine)
{
    return engine->type;
}

size_t engine_bytes(const struct engine *engine)
{
    return engine->bytes;
}
