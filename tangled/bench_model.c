#include "bench_model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "generator.h"

enum { CONTEXT = 1024 };

static const struct bench_shape shapes[] = {
    {"gpt2-124m", false,
     .gpt = {50257, CONTEXT, 768, 12, 12, 3072, 0, 1e-5, 1}},
    {"gpt2-355m", false,
     .gpt = {50257, CONTEXT, 1024, 24, 16, 4096, 0, 1e-5, 1}},
    {"llama-110m", true,
     .llama = {32000, CONTEXT, 768, 12, 12, 12, 64, 2048, 1e-5, 10000, true,
               0, 0}},
    {"llama-1b", true,
     .llama = {32000, 2 * CONTEXT, 2048, 22, 32, 4, 64, 5632, 1e-5, 10000,
               false, 0, 0}},
    {"tiny", false, .gpt = {99, CONTEXT, 24, 2, 3, 40, 0, 1e-5, 1}},
    {"tiny-llama", true,
     .llama = {99, CONTEXT, 24, 2, 4, 2, 8, 40, 1e-5, 10000, true, 0, 0}}
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static bool read_sizes(const char *text, struct llama_config *config)
{
    int n[9], count = 0;
    for (bool more = true; more; count++) {
        int used = 0;
        if (count == 9 || sscanf(text, "%9d%n", &n[count], &used) != 1)
            return false;
        more = text[used] == ',';
        text += used + more;
    }
    if (*text != '\0' || (count != 7 && count != 9))
        return false;
    *config = (struct llama_config){
        .vocab_size = n[0], .context_length = 4 * CONTEXT, .d_model = n[1],
        .n_layers = n[2], .n_heads = n[3], .n_kv_heads = n[4],
        .head_dim = n[5], .d_ff = n[6], .rms_norm_eps = 1e-5,
        .rope_theta = 10000, .n_experts = count == 9 ? n[7] : 0,
        .experts_per_token = count == 9 ? n[8] : 0
    };
    return true;
}

const char *bench_shape_names(void)
{
    return "gpt2-124m, gpt2-355m, llama-110m, llama-1b, tiny, tiny-llama";
}

enum status bench_shape_find(struct bench_shape *shape, const char *name,
                             struct error *error)
{
    struct bench_shape made = {.gated = true};
    bool found = false;
    for (int k = 0; k < SHAPES && !found; k++)
        if (strcmp(shapes[k].name, name) == 0) {
            made = shapes[k];
            found = true;
        }
    if (!found && !read_sizes(name, &made.llama))
        return error_set(error, STATUS_INVALID,
                         "shape: expected %s or V,C,L,H,Hk,D,F[,E,A], got %s",
                         bench_shape_names(), name);
    if (!found)
        snprintf(made.name, sizeof made.name, "%s", name);
    const enum status status = made.gated
        ? ownership_of_llama(&made.ownership, &made.llama, error)
        : ownership_of_gpt(&made.ownership, &made.gpt, error);
    if (status == STATUS_OK)
        *shape = made;
    return status;
}

static void fill(const char *name, const struct tensor *tensor,
                 struct generator *generator)
{
    static const char norm[] = "norm.weight";
    const size_t length = strlen(name), size = tensor_size(tensor);
    const bool ones = length >= sizeof norm - 1
        && strcmp(name + length - (sizeof norm - 1), norm) == 0;
    for (size_t k = 0; k < size; k++)
        tensor->data[k] = ones ? 1
            : (float)(0.07 * (generator_uniform(generator) - 0.5));
}

static void fill_all(struct bench_model *model)
{
    struct generator generator;
    generator_seed(&generator, 21, 3);
    if (model->gpt != NULL) {
        const struct parameters *weights = tiny_gpt_weights(model->gpt);
        for (int k = 0; k < weights->count; k++)
            if (!weights->registry[k].alias)
                fill(weights->registry[k].path, weights->registry[k].tensor,
                     &generator);
        return;
    }
    for (size_t k = 0; k < llama_tensor_count(model->llama); k++) {
        const struct llama_tensor *one = llama_tensor_at(model->llama, k);
        if (!one->alias)
            fill(one->name, one->tensor, &generator);
    }
}

enum status bench_model_open(struct bench_model *model,
                             const struct bench_shape *shape,
                             struct error *error)
{
    model->shape = *shape;
    const enum status status = shape->gated
        ? llama_new(&model->llama, &shape->llama, error)
        : tiny_gpt_new(&model->gpt, &shape->gpt, error);
    if (status != STATUS_OK)
        return status;
    fill_all(model);
    model->rows = shape->gated ? llama_stack(model->llama)
                               : tiny_gpt_stack(model->gpt);
    return STATUS_OK;
}

void bench_model_close(struct bench_model *model)
{
    for (int k = 0; k < BENCH_WEIGHTS; k++)
        engine_free(&model->engines[k]);
    tiny_gpt_free(&model->gpt);
    llama_free(&model->llama);
}

const char *bench_weights_name(enum bench_weights weights)
{
    static const char *const names[BENCH_WEIGHTS] = {
        "rows", "f32", "bf16", "int8"
    };
    return names[weights];
}

enum matrix_type bench_weights_type(enum bench_weights weights)
{
    return weights == WEIGHTS_BF16 ? MATRIX_BF16
         : weights == WEIGHTS_INT8 ? MATRIX_INT8 : MATRIX_F32;
}

enum status bench_model_weights(struct bench_model *model,
                                enum bench_weights weights,
                                struct error *error)
{
    if (weights == WEIGHTS_ROWS || model->engines[weights] != NULL)
        return STATUS_OK;
    return engine_new(&model->engines[weights], &model->rows,
                      bench_weights_type(weights), NULL, error);
}

const struct stack *bench_model_stack(const struct bench_model *model,
                                      enum bench_weights weights)
{
    return weights == WEIGHTS_ROWS ? &model->rows
                                   : engine_stack(model->engines[weights]);
}

static size_t scratch_size(const void *model, int batch, int tokens,
                           int slots)
{
    const struct on_kernels *on = model;
    (void)slots;
    return stack_scratch_size(on->stack, batch, tokens);
}

static void run(const void *model, const struct step *step, float *scratch)
{
    const struct on_kernels *on = model;
    stack_step(on->stack, on->kernels, step, scratch);
}

struct causal_lm on_kernels_causal_lm(const struct on_kernels *on)
{
    const struct stack *stack = on->stack;
    return (struct causal_lm){
        .model = on, .vocab_size = stack->vocab_size,
        .context_length = stack->context_length,
        .cache = {stack->n_layers, stack->n_kv_heads, stack->head_dim},
        .scratch_size = scratch_size, .run = run
    };
}
