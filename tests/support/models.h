/* What the suites from chapter 2 on share: models of noise, models with the
   oracle's weights, and calls that must succeed or say why they did not.
   Header only, like cached.h, and for chapters 1 and 2 alone: every later
   suite may include it. Any trouble fails the running test. */
#ifndef MODELS_H
#define MODELS_H

#include <check.h>
#include <stdint.h>
#include <string.h>
#include "config.h"
#include "model.h"
#include "parameters.h"
#include "support/golden.h"
#include "support/noise.h"

/* The message of error is the reason when status is not STATUS_OK. */
static inline void expect_ok(enum status status, const struct error *error)
{
    ck_assert_msg(status == STATUS_OK, "status %d: %s", (int)status,
                  error->message);
}

/* A refusal names what it refuses. */
static inline void expect_named(const struct error *error, const char *name)
{
    ck_assert_msg(strstr(error->message, name) != NULL,
                  "the message \"%s\" does not say \"%s\"", error->message,
                  name);
}

/* Every weight in [-1/2, 1/2): large enough that each of them matters. */
static inline void noisy_weights(struct parameters *p, uint64_t *state)
{
    for (size_t k = 0; k < p->size; k++)
        p->storage[k] = 0.5f * noise(state);
}

/* All weights zero, as tiny_gpt_new makes it. Free with tiny_gpt_free. */
static inline struct tiny_gpt *new_model(const struct gpt_config *config)
{
    struct tiny_gpt *model = NULL;
    struct error error = { STATUS_OK, "" };
    expect_ok(tiny_gpt_new(&model, config, &error), &error);
    return model;
}

/* All weights noise from this stream. */
static inline struct tiny_gpt *noisy_model(const struct gpt_config *config,
                                           unsigned stream)
{
    struct tiny_gpt *model = new_model(config);
    uint64_t state = noise_start(stream);
    noisy_weights(tiny_gpt_parameters(model), &state);
    return model;
}

/* The config in the golden's metadata, which knows no dropout. */
static inline struct gpt_config golden_config(const struct golden *golden)
{
    return (struct gpt_config){
        .vocab_size = (int)golden_number(golden, "vocab_size"),
        .context_length = (int)golden_number(golden, "context_length"),
        .d_model = (int)golden_number(golden, "d_model"),
        .n_layers = (int)golden_number(golden, "n_layers"),
        .n_heads = (int)golden_number(golden, "n_heads"),
        .d_ff = (int)golden_number(golden, "d_ff"),
        .layer_norm_eps = golden_number(golden, "layer_norm_eps")
    };
}

/* Copies the golden's "w.*" over every weight. */
static inline void golden_weights(const struct golden *golden,
                                  struct parameters *p)
{
    for (int k = 0; k < p->count; k++) {
        if (p->registry[k].alias)
            continue;
        const struct golden_tensor *w =
            golden_get(golden, "w.%s", p->registry[k].path);
        ck_assert_uint_eq(w->count, tensor_size(p->registry[k].tensor));
        memcpy(p->registry[k].tensor->data, w->f32,
               w->count * sizeof (float));
    }
}

/* The golden's model, but for the dropout. It does not need the golden any
   more, and is freed by itself. */
static inline struct tiny_gpt *golden_model(const struct golden *golden,
                                            double dropout)
{
    struct gpt_config config = golden_config(golden);
    config.dropout = dropout;
    struct tiny_gpt *model = new_model(&config);
    golden_weights(golden, tiny_gpt_parameters(model));
    return model;
}

/* A call with the golden's "in.ids", which stay the golden's. */
static inline struct forward_input golden_input(const struct golden *golden)
{
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    return (struct forward_input){
        .ids = ids->ids, .batch = ids->shape[0], .tokens = ids->shape[1]
    };
}

#endif
