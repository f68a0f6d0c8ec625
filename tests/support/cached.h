/* What suites 4 and 5 share: the golden's model and its ids, calls that go on
   from a cache, and caches compared. Header only, since the other files here
   are linked into suites of chapters that have no model yet. */
#ifndef CACHED_H
#define CACHED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"

enum { TEXT_MAX = 512 };

/* A model and a text for it. */
struct cached {
    struct golden *golden;       /* NULL for a model of noise */
    struct tiny_gpt *model;
    const struct gpt_config *config;
    int32_t ids[TEXT_MAX];       /* [B,tokens] */
    int batch, tokens;
};

/* The model and the text of tests/golden/gpt_tiny.safetensors:
   V 23, N 12, C 16, L 2, H 4, D 4; B 2, 7 tokens. */
static inline struct cached cached_golden(void)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct cached cached = {.golden = golden,
                            .model = golden_model(golden, 0)};
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    cached.config = tiny_gpt_config(cached.model);
    cached.batch = ids->shape[0];
    cached.tokens = ids->shape[1];
    memcpy(cached.ids, ids->ids, ids->count * sizeof *ids->ids);
    return cached;
}

/* Another shape, all sizes distinct, with a batch of 3 and a full context:
   V 13, N 9, C 10, L 3, H 2, D 5. Weights and ids from a generator that is
   the test's own. */
static inline struct cached cached_noise(void)
{
    const struct gpt_config config = {
        .vocab_size = 13, .context_length = 9, .d_model = 10, .n_layers = 3,
        .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    struct cached cached = {.model = new_model(&config), .batch = 3,
                            .tokens = 9};
    uint64_t state = noise_start(4);
    noisy_weights(tiny_gpt_parameters(cached.model), &state);
    noise_ids(&state, 13, cached.batch, cached.tokens, cached.ids);
    cached.config = tiny_gpt_config(cached.model);
    return cached;
}

static inline void cached_close(struct cached *cached)
{
    tiny_gpt_free(&cached->model);
    if (cached->golden != NULL)
        golden_close(cached->golden);
}

/* ids [B,count] = columns from … from+count-1 of the text. */
static inline void cached_columns(const struct cached *cached, int from,
                                  int count, int32_t *ids)
{
    for (int b = 0; b < cached->batch; b++)
        memcpy(ids + b * count, cached->ids + b * cached->tokens + from,
               (size_t)count * sizeof *ids);
}

/* Runs tokens from … from+count-1 of the text behind `past`, or NULL. */
static inline struct forward_output
cached_run(const struct cached *cached, int from, int count,
           const struct past_key_values *past, bool use_cache)
{
    int32_t ids[TEXT_MAX];
    cached_columns(cached, from, count, ids);
    const struct forward_input input = {
        .ids = ids, .batch = cached->batch, .tokens = count,
        .past_key_values = past, .use_cache = use_cache
    };
    struct forward_output output = {0};
    struct error error = {0};
    expect_ok(tiny_gpt_forward(cached->model, &input, &output, &error),
              &error);
    return output;
}

/* out [B,count,V] = rows from … from+count-1 of logits [B,tokens,V]. */
static inline void cached_rows(const struct cached *cached,
                               const float *logits, int from, int count,
                               float *out)
{
    const size_t row = (size_t)cached->config->vocab_size;
    for (int b = 0; b < cached->batch; b++)
        memcpy(out + (size_t)(b * count) * row,
               logits + (size_t)(b * cached->tokens + from) * row,
               (size_t)count * row * sizeof *out);
}

/* All logits against rows from … of the expected [B,tokens,V]. */
static inline void expect_rows_close(const char *what,
                                     const struct cached *cached,
                                     const struct tensor *logits,
                                     const float *expected, int from)
{
    const int count = logits->shape[1];
    float *rows = malloc(tensor_size(logits) * sizeof *rows);
    cached_rows(cached, expected, from, count, rows);
    expect_close(what, logits->data, rows, tensor_size(logits), logits->rank,
                 logits->shape, TOLERANCE);
    free(rows);
}

/* Against the golden's tensors prefix.L.key and prefix.L.value. */
static inline void expect_golden_cache(const struct golden *golden,
                                       const char *prefix,
                                       const struct past_key_values *past)
{
    for (int l = 0; l < past->n_layers; l++)
        for (int part = 0; part < 2; part++) {
            char name[64];
            const struct tensor *tensor = part == 0 ? &past->layers[l].key
                                                    : &past->layers[l].value;
            snprintf(name, sizeof name, "%s.%d.%s", prefix, l,
                     part == 0 ? "key" : "value");
            const struct golden_tensor *want = golden_get(golden, "%s", name);
            ck_assert_int_eq(tensor->rank, want->rank);
            for (int d = 0; d < want->rank; d++)
                ck_assert_msg(tensor->shape[d] == want->shape[d],
                              "%s: dimension %d is %d, expected %d", name, d,
                              tensor->shape[d], want->shape[d]);
            expect_close(name, tensor->data, want->f32, want->count,
                         want->rank, want->shape, TOLERANCE);
        }
}

/* Same shapes, same bits, no storage in common. */
static inline void expect_equal_caches(const char *what,
                                       const struct past_key_values *a,
                                       const struct past_key_values *b)
{
    ck_assert_int_eq(a->n_layers, b->n_layers);
    for (int l = 0; l < a->n_layers; l++) {
        const struct layer_kv *x = &a->layers[l], *y = &b->layers[l];
        ck_assert(tensor_same_shape(&x->key, &y->key));
        ck_assert(tensor_same_shape(&x->value, &y->value));
        ck_assert_ptr_ne(x->key.data, y->key.data);
        ck_assert_ptr_ne(x->value.data, y->value.data);
        expect_same_bits(what, x->key.data, y->key.data,
                         tensor_size(&x->key) * sizeof (float));
        expect_same_bits(what, x->value.data, y->value.data,
                         tensor_size(&x->value) * sizeof (float));
    }
}

#endif
