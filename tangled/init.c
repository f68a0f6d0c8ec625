#include <math.h>
#include "init.h"

static void fill_normal(struct tensor *tensor, double deviation,
                        struct generator *generator)
{
    for (size_t i = 0; i < tensor_size(tensor); i++)
        tensor->data[i] = (float)(deviation * generator_normal(generator));
}

static void fill(struct tensor *tensor, float value)
{
    for (size_t i = 0; i < tensor_size(tensor); i++)
        tensor->data[i] = value;
}

static void init_norm(struct layer_norm *norm)
{
    fill(&norm->weight, 1);
    fill(&norm->bias, 0);
}

static void init_linear(struct linear *linear, double deviation,
                        struct generator *generator)
{
    fill_normal(&linear->weight, deviation, generator);
    fill(&linear->bias, 0);
}

void parameters_init(struct parameters *parameters,
                     struct generator *generator)
{
    const double deviation = 0.02;
    const int layers = parameters->config.n_layers;
    const double small = deviation / sqrt(2.0 * layers);
    fill_normal(&parameters->token_embedding.weight, deviation, generator);
    fill_normal(&parameters->position_embedding.weight, deviation, generator);
    for (int l = 0; l < layers; l++) {
        struct block *block = &parameters->blocks[l];
        init_norm(&block->attention_norm);
        init_linear(&block->attention.qkv_proj, deviation, generator);
        init_linear(&block->attention.out_proj, small, generator);
        init_norm(&block->mlp_norm);
        init_linear(&block->mlp.up_proj, deviation, generator);
        init_linear(&block->mlp.down_proj, small, generator);
    }
    init_norm(&parameters->final_norm);
}
