#ifndef ENGINE_PARTS_H
#define ENGINE_PARTS_H

#include "engine.h"
#include "file_map.h"
#include "safetensors.h"

struct engine {
    struct stack stack;                  /* its weights: this struct */
    struct stack_layer *layers;            /* [L] */
    struct stack_feed_forward *experts;    /* [L,E], or NULL */
    enum matrix_type type;
    const struct kernels *kernels;
    size_t bytes;
    void *room;                              /* the weights, or NULL */
    struct safetensors *file;                /* where they are, or NULL */
    struct file_map map;                     /* of that file */
};

/* Arrays for the stack's layers, empty but for its sizes. */
enum status engine_make(struct engine **engine, const struct stack *stack,
                        enum matrix_type type, const struct kernels *kernels,
                        struct error *error);

enum { PLACE_NAME_MAX = 64, PREFIX_MAX = 40 };

struct visitor {
    void *context;
    enum status (*matrix)(void *context, const char *name,
                          struct matrix *matrix, struct error *error);
    /* a matrix's bias too, after it; never one that is NULL */
    enum status (*vector)(void *context, const char *name,
                          const float **vector, size_t floats,
                          struct error *error);
};

/* Every part in a fixed order, until one is not STATUS_OK. */
enum status engine_visit(struct engine *engine, const struct visitor *visitor,
                         struct error *error);
/* Whether the embedding is the head. */
bool engine_tied(const struct engine *engine);

#endif
