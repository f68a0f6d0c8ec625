#include "expert_study.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "causal_lm.h"
#include "expert_load.h"
#include "generator.h"

enum { STUDY_V = 256, STUDY_C = 32 };

static void fill(const struct llama *model, struct generator *generator)
{
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct tensor *tensor = llama_tensor_at(model, k)->tensor;
        for (size_t n = 0; n < tensor_size(tensor); n++)
            tensor->data[n] = tensor->rank == 1 ? 1
                : (float)(0.2 * generator_normal(generator));
    }
}

static void lean_router(const struct tensor *router, const float *direction,
                        double skew)
{
    const int experts = router->shape[0];
    for (int e = 0; e < experts; e++) {
        float *row = router->data + (ptrdiff_t)e * STUDY_C;
        const double side = experts > 1 ? 1 - 2.0 * e / (experts - 1) : 0;
        double along = 0, square = 0;
        for (int c = 0; c < STUDY_C; c++)
            along += row[c] * direction[c] / STUDY_C;
        for (int c = 0; c < STUDY_C; c++) {
            row[c] -= (float)(along * direction[c]);
            square += row[c] * row[c];
        }
        for (int c = 0; c < STUDY_C; c++)
            row[c] = (float)(row[c] / sqrt(square)
                             + skew * side / STUDY_C * direction[c]);
    }
}

static void lean(const struct llama *model, double skew,
                 struct generator *generator)
{
    float direction[STUDY_C];
    for (int c = 0; c < STUDY_C; c++)
        direction[c] = generator_uniform(generator) < 0.5 ? -1 : 1;
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        const struct tensor *tensor = entry->tensor;
        if (strstr(entry->name, "block_sparse_moe.gate") != NULL)
            lean_router(tensor, direction, skew);
        if (strstr(entry->name, "o_proj") != NULL)
            memset(tensor->data, 0, tensor_size(tensor) * sizeof (float));
        if (strstr(entry->name, "embed_tokens") != NULL)
            for (size_t n = 0; n < tensor_size(tensor); n++)
                tensor->data[n] = 5 * tensor->data[n] + direction[n % STUDY_C];
    }
}

struct call {
    struct llama *model;
    struct past_key_values storage;
    int32_t *ids, *positions;     /* [T] */
    float *logits, *scratch;      /* [T,V] */
    int32_t *places, *offsets;    /* [T,k] [E+1] of the second dispatch */
    size_t *counts;               /* [2,L,E] */
};

static void call_free(struct call *call)
{
    llama_free(&call->model);
    past_key_values_free(&call->storage);
    free(call->ids);
    free(call->positions);
    free(call->logits);
    free(call->scratch);
    free(call->places);
    free(call->offsets);
    free(call->counts);
}

static enum status call_room(struct call *call,
                             const struct expert_options *options,
                             struct generator *generator,
                             struct error *error)
{
    const struct causal_lm lm = llama_causal_lm(call->model);
    const struct gpt_config shape = cache_shape_config(&lm.cache);
    const size_t tokens = (size_t)options->tokens;
    const size_t experts = (size_t)options->n_experts;
    const size_t choices = tokens * (size_t)options->chosen;
    const size_t floats = lm.scratch_size(call->model, 1, options->tokens,
                                          options->tokens);
    call->ids = calloc(tokens, sizeof *call->ids);
    call->positions = calloc(tokens, sizeof *call->positions);
    call->logits = calloc(tokens * STUDY_V, sizeof *call->logits);
    call->scratch = calloc(floats, sizeof *call->scratch);
    call->places = calloc(choices, sizeof *call->places);
    call->offsets = calloc(experts + 1, sizeof *call->offsets);
    call->counts = calloc(2 * (size_t)lm.cache.n_layers * experts,
                          sizeof *call->counts);
    if (call->ids == NULL || call->positions == NULL || call->logits == NULL
        || call->scratch == NULL || call->places == NULL
        || call->offsets == NULL || call->counts == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "study: no memory for %d tokens", options->tokens);
    for (size_t t = 0; t < tokens; t++) {
        call->ids[t] = (int32_t)(generator_next(generator) % STUDY_V);
        call->positions[t] = (int32_t)t;
    }
    return past_key_values_new(&call->storage, &shape, 1, options->tokens,
                               error);
}

static enum status call_new(struct call *call,
                            const struct expert_options *options,
                            struct error *error)
{
    const struct llama_config config = {
        .vocab_size = STUDY_V, .context_length = 2048, .d_model = STUDY_C,
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8,
        .d_ff = 48, .rms_norm_eps = 1e-5, .rope_theta = 10000,
        .n_experts = options->n_experts, .experts_per_token = options->chosen
    };
    struct generator generator;
    generator_seed(&generator, 15, 0);
    if (options->n_experts < 1)
        return error_set(error, STATUS_INVALID,
                         "n_experts: expected at least 1, got %d",
                         options->n_experts);
    if (options->tokens < 1 || options->tokens > config.context_length)
        return error_set(error, STATUS_INVALID, "tokens: expected 1 to %d, got"
                         " %d", config.context_length, options->tokens);
    const enum status status = llama_new(&call->model, &config, error);
    if (status != STATUS_OK)
        return status;
    fill(call->model, &generator);
    lean(call->model, options->skew, &generator);
    return call_room(call, options, &generator, error);
}

static void count(struct call *call, const struct step *step, int layer,
                  int capacity)
{
    const struct llama_config *config = llama_config(call->model);
    const size_t experts = (size_t)config->n_experts;
    struct moe_routing routing = llama_routing(call->model, step,
                                               call->scratch, layer);
    struct expert_load load = {config->n_experts, call->counts, call->counts};
    load.routed += (size_t)layer * experts;
    load.kept += (size_t)(config->n_layers + layer) * experts;
    routing.capacity = capacity;
    routing.places = call->places;
    routing.offsets = call->offsets;
    moe_dispatch(&routing);
    expert_load_add(&load, &routing);
}

static enum status run_and_count(struct call *call, int tokens, int capacity,
                                 struct error *error)
{
    const struct causal_lm lm = llama_causal_lm(call->model);
    const int32_t length = 0;
    const struct step step = {
        .ids = call->ids, .positions = call->positions, .batch = 1,
        .tokens = tokens, .storage = &call->storage, .lengths = &length,
        .logits = call->logits
    };
    const enum status status = causal_lm_step(
        &lm, &step, call->scratch,
        lm.scratch_size(call->model, 1, tokens, tokens), error);
    for (int l = 0; l < lm.cache.n_layers && status == STATUS_OK; l++)
        count(call, &step, l, capacity);
    return status;
}

enum status expert_study_run(const struct expert_options *options,
                             struct expert_study *study,
                             struct error *error)
{
    struct call call = {0};
    int capacity = 0;
    enum status status = call_new(&call, options, error);
    if (status == STATUS_OK)
        status = moe_capacity(options->factor, options->tokens,
                              options->n_experts, options->chosen, &capacity,
                              error);
    if (status == STATUS_OK)
        status = run_and_count(&call, options->tokens, capacity, error);
    if (status == STATUS_OK) {
        const struct llama_config *config = llama_config(call.model);
        *study = (struct expert_study){
            .n_layers = config->n_layers, .n_experts = config->n_experts,
            .capacity = capacity, .routed = call.counts,
            .kept = call.counts + config->n_layers * config->n_experts
        };
        (void)llama_config_size(config, &study->size);
        call.counts = NULL;
    }
    call_free(&call);
    return status;
}

void expert_study_free(struct expert_study *study)
{
    free(study->routed);
    *study = (struct expert_study){.routed = NULL};
}
