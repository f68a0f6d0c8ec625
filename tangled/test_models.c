#include "test_models.h"
#include <string.h>
#include "generator.h"
#include "mode.h"

static void set_training(void *owner, bool training)
{
    tiny_gpt_set_mode(owner, training ? MODE_TRAINING : MODE_EVALUATION);
}

static bool is_training(const void *owner)
{
    return tiny_gpt_mode(owner) == MODE_TRAINING;
}

static void release(void *owner)
{
    struct tiny_gpt *model = owner;
    tiny_gpt_free(&model);
}

static void fill_noise(struct parameters *parameters)
{
    struct generator generator;
    generator_seed(&generator, 8, 0);
    for (int k = 0; k < parameters->count; k++) {
        const struct parameter *p = &parameters->registry[k];
        const double mean = strstr(p->path, "norm.weight") ? 1 : 0;
        for (size_t n = 0; !p->alias && n < tensor_size(p->tensor); n++)
            p->tensor->data[n] =
                (float)(mean + 0.3 * generator_normal(&generator));
    }
}

static void fill_transitions(struct parameters *p)
{
    static const int next[] = {0, 0, 3, 0, 5, 6, 4};
    const int c = p->config.d_model, f = p->config.d_ff;
    struct block *block = &p->blocks[0];
    for (int k = 0; k < c; k++)
        p->final_norm.weight.data[k] = block->mlp_norm.weight.data[k] = 1;
    for (int i = 0; i < p->config.vocab_size; i++) {
        p->token_embedding.weight.data[i * c + i] = 1;
        block->mlp.up_proj.weight.data[i * c + i] = 4;
        block->mlp.up_proj.bias.data[i] = -4;
        block->mlp.down_proj.weight.data[next[i] * f + i] = 1;
    }
}

static enum status make(struct test_model *made,
                        void (*fill)(struct parameters *parameters),
                        struct error *error)
{
    const struct gpt_config config = {
        .vocab_size = 7, .context_length = 9, .d_model = 8, .n_layers = 3,
        .n_heads = 2, .d_ff = 10, .dropout = 0.25, .layer_norm_eps = 1e-5
    };
    struct tiny_gpt *model = NULL;
    enum status status = tiny_gpt_new(&model, &config, error);
    if (status != STATUS_OK)
        return status;
    fill(tiny_gpt_parameters(model));
    *made = (struct test_model){tiny_gpt_causal_lm(model), model,
                                set_training, is_training, release};
    return STATUS_OK;
}

enum status make_test_model(struct test_model *made, struct error *error)
{
    return make(made, fill_noise, error);
}

enum status make_eos_test_model(struct test_model *made, struct error *error)
{
    return make(made, fill_transitions, error);
}

void test_model_free(struct test_model *model)
{
    if (model->release != NULL)
        model->release(model->owner);
    *model = (struct test_model){0};
}
