#include "llama_experts.h"

bool llama_config_size(const struct llama_config *config,
                       struct llama_size *size)
{
    size_t total;
    if (!llama_config_floats(config, &total))
        return false;
    const size_t each = 3 * (size_t)config->d_ff * (size_t)config->d_model;
    const size_t left = (size_t)(config->n_experts - config->experts_per_token);
    const size_t idle = (size_t)config->n_layers * left * each;
    *size = (struct llama_size){total, total - idle};
    return true;
}
