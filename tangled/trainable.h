#ifndef TRAINABLE_H
#define TRAINABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "adamw.h"
#include "generator.h"
#include "llama.h"
#include "model.h"

struct trainable_tensor {
    const char *name;               /* as in the family's registry */
    const struct tensor *tensor;    /* its data are in the block of weights */
    bool decays;
};

struct training_batch {
    const int32_t *ids, *labels;      /* [B,T] */
    int batch, tokens;                /* B, T */
    struct generator *generator;      /* advanced by what dropout draws */
};

struct trainable {
    int vocab_size, context_length;
    size_t count;
    struct trainable_tensor *tensors;    /* [count] in the block's order; a
                                            tied tensor once */
    size_t size;
    float *weights;       /* [size] the model's own */
    float *gradients;     /* [size] */

    void *model;          /* borrowed */
    void *gradient_set;   /* what gradients points into */
    void *workspace;      /* of the family, or NULL */
    enum status (*loss)(struct trainable *trainable,
                        const struct training_batch *batch,
                        bool with_gradients, float *loss,
                        struct error *error);
    void (*release)(struct trainable *trainable);
};

/* Owned by the caller: trainable_free. Unchanged on error. */
enum status tiny_gpt_trainable(struct trainable *trainable,
                               struct tiny_gpt *model, struct error *error);
enum status llama_trainable(struct trainable *trainable, struct llama *model,
                            struct error *error);
void trainable_free(struct trainable *trainable);    /* NULL-safe */

/* *loss of the batch, and its gradient in place of the one before. Refuses,
   by name, what the family's forward pass refuses; STATUS_NO_MEMORY. Then
   *loss is as it was, and the gradients are those of no batch. */
enum status trainable_loss_and_gradients(struct trainable *trainable,
                                         const struct training_batch *batch,
                                         float *loss, struct error *error);
/* *loss alone. Never drops anything out. */
enum status trainable_loss(struct trainable *trainable,
                           const struct training_batch *batch, float *loss,
                           struct error *error);

struct moments { float *first, *second; };    /* [size] each */

/* Zeros. Owned by the caller: moments_free. Unchanged on error. */
enum status moments_new(struct moments *moments,
                        const struct trainable *trainable,
                        struct error *error);
void moments_free(struct moments *moments);    /* NULL-safe; twice is fine */
/* One step along the gradients; adamw needs no moments of its own. */
void trainable_step(struct trainable *trainable, struct adamw *adamw,
                    struct moments *moments);

#endif
