/* What the suites from chapter 13 on share: models of the other family, of
   noise and with the oracle's weights. Header only, like models.h. */
#ifndef LLAMAS_H
#define LLAMAS_H

#include <string.h>
#include "llama.h"
#include "support/models.h"

/* All weights zero. Free with llama_free. */
static inline struct llama *new_llama(const struct llama_config *config)
{
    struct llama *model = NULL;
    struct error error = {STATUS_OK, ""};
    expect_ok(llama_new(&model, config, &error), &error);
    return model;
}

/* Matrices of noise that keep the stream's size, norms around 1, each from
   this stream. */
static inline struct llama *noisy_llama(const struct llama_config *config,
                                        unsigned stream)
{
    struct llama *model = new_llama(config);
    uint64_t state = noise_start(stream);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        const struct tensor *tensor = entry->tensor;
        const bool norm = tensor->rank == 1;
        for (size_t n = 0; !entry->alias && n < tensor_size(tensor); n++)
            tensor->data[n] = norm ? 1 + 0.3f * noise(&state)
                                   : 0.6f * noise(&state);
    }
    return model;
}

/* Sizes as different from each other as they may be; H·D is not C. */
static inline struct llama_config small_llama_config(void)
{
    return (struct llama_config){
        .vocab_size = 13, .context_length = 24, .d_model = 10, .n_layers = 3,
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .d_ff = 7,
        .rms_norm_eps = 1e-5, .rope_theta = 100
    };
}

/* The same with five experts in each layer, of which a token chooses two. */
static inline struct llama_config small_moe_config(void)
{
    struct llama_config config = small_llama_config();
    config.n_experts = 5;
    config.experts_per_token = 2;
    return config;
}

/* The config in the golden's metadata. */
static inline struct llama_config
golden_llama_config(const struct golden *golden)
{
    return (struct llama_config){
        .vocab_size = (int)golden_number(golden, "vocab_size"),
        .context_length = (int)golden_number(golden,
                                             "max_position_embeddings"),
        .d_model = (int)golden_number(golden, "hidden_size"),
        .n_layers = (int)golden_number(golden, "num_hidden_layers"),
        .n_heads = (int)golden_number(golden, "num_attention_heads"),
        .n_kv_heads = (int)golden_number(golden, "num_key_value_heads"),
        .head_dim = (int)golden_number(golden, "head_dim"),
        .d_ff = (int)golden_number(golden, "intermediate_size"),
        .rms_norm_eps = golden_number(golden, "rms_norm_eps"),
        .rope_theta = golden_number(golden, "rope_theta")
    };
}

/* Copies the golden's "w.*" over every tensor that is no alias. */
static inline void golden_llama_weights(const struct golden *golden,
                                        const struct llama *model)
{
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        const struct tensor *tensor = entry->tensor;
        if (entry->alias)
            continue;
        const struct golden_tensor *w = golden_get(golden, "w.%s",
                                                   entry->name);
        ck_assert_int_eq(tensor->rank, w->rank);
        for (int d = 0; d < w->rank; d++)
            ck_assert_msg(tensor->shape[d] == w->shape[d],
                          "%s: dimension %d is %d, expected %d", entry->name,
                          d, tensor->shape[d], w->shape[d]);
        memcpy(tensor->data, w->f32, w->count * sizeof (float));
    }
}

/* The golden with experts. */
static inline struct llama *golden_moe(const struct golden *golden)
{
    struct llama_config config = golden_llama_config(golden);
    config.n_experts = (int)golden_number(golden, "experts");
    config.experts_per_token = (int)golden_number(golden,
                                                  "experts_per_token");
    struct llama *model = new_llama(&config);
    golden_llama_weights(golden, model);
    return model;
}

/* Does not need the golden any more, and is freed by itself. */
static inline struct llama *golden_llama(const struct golden *golden)
{
    const struct llama_config config = golden_llama_config(golden);
    struct llama *model = new_llama(&config);
    golden_llama_weights(golden, model);
    return model;
}

#endif
