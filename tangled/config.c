#include "config.h"
#include <limits.h>
#include <math.h>
#include "parameters.h"

static enum status check_products(const struct gpt_config *config,
                                  struct error *error)
{
    if (config->d_model > INT_MAX / 3)
        return error_set(error, STATUS_INVALID,
                         "d_model: expected at most %d (3 d_model is a size),"
                         " got %d", INT_MAX / 3, config->d_model);
    if (config->n_layers > N_LAYERS_MAX)
        return error_set(error, STATUS_INVALID,
                         "n_layers: expected at most %d, got %d",
                         (int)N_LAYERS_MAX, config->n_layers);
    size_t count;
    if (!parameters_formula(config, &count))
        return error_set(error, STATUS_INVALID,
                         "vocab_size, context_length, d_model, n_layers, d_ff:"
                         " the parameters' bytes do not fit a size_t");
    return STATUS_OK;
}

enum status gpt_config_check(const struct gpt_config *config,
                             struct error *error)
{
    const struct { const char *name; int size; } sizes[] = {
        { "vocab_size", config->vocab_size },
        { "context_length", config->context_length },
        { "d_model", config->d_model },
        { "n_layers", config->n_layers },
        { "n_heads", config->n_heads },
        { "d_ff", config->d_ff },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].size <= 0)
            return error_set(error, STATUS_INVALID,
                             "%s: expected a positive size, got %d",
                             sizes[i].name, sizes[i].size);
    if (config->d_model % config->n_heads != 0)
        return error_set(error, STATUS_INVALID,
                         "n_heads: expected a divisor of d_model %d, got %d",
                         config->d_model, config->n_heads);
    if (!(config->dropout >= 0 && config->dropout < 1))
        return error_set(error, STATUS_INVALID,
                         "dropout: expected 0 <= dropout < 1, got %g",
                         config->dropout);
    if (!(config->layer_norm_eps > 0 && isfinite(config->layer_norm_eps)))
        return error_set(error, STATUS_INVALID,
                         "layer_norm_eps: expected a positive finite number,"
                         " got %g", config->layer_norm_eps);
    if (config->tanh_gelu != 0 && config->tanh_gelu != 1)
        return error_set(error, STATUS_INVALID,
                         "tanh_gelu: expected 0 or 1, got %d",
                         config->tanh_gelu);
    return check_products(config, error);
}

int gpt_config_head_dim(const struct gpt_config *config)
{
    return config->d_model / config->n_heads;
}

enum status gpt_config_check_call(const struct gpt_config *config,
                                  int batch, int tokens, int past,
                                  struct error *error)
{
    if (batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", batch);
    if (tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d", tokens);
    if (past < 0)
        return error_set(error, STATUS_INVALID,
                         "past: expected at least 0, got %d", past);
    if (tokens > config->context_length - past)
        return error_set(error, STATUS_INVALID,
                         "past + tokens: expected at most context_length %d,"
                         " got %d + %d", config->context_length, past, tokens);
    if (batch > INT_MAX / tokens || batch > INT_MAX / config->n_heads)
        return error_set(error, STATUS_INVALID,
                         "batch: expected batch * tokens and batch * n_heads"
                         " to fit an int, got %d", batch);
    return STATUS_OK;
}
