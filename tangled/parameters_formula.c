#include "parameters.h"

/* *sum += a * b * c */
static bool add_product(size_t *sum, size_t a, size_t b, size_t c)
{
    size_t product;
    return size_multiply(a, b, &product)
        && size_multiply(product, c, &product)
        && size_add(*sum, product, sum);
}

bool parameters_formula(const struct gpt_config *config, size_t *count)
{
    size_t V = (size_t)config->vocab_size, N = (size_t)config->context_length;
    size_t C = (size_t)config->d_model, F = (size_t)config->d_ff;
    size_t L = (size_t)config->n_layers;
    size_t block = 0, total = 0, bytes;
    if (!add_product(&block, 4, C, C) || !add_product(&block, 2, F, C)
        || !add_product(&block, 9, C, 1) || !add_product(&block, 1, F, 1))
        return false;
    if (!add_product(&total, V, C, 1) || !add_product(&total, N, C, 1)
        || !add_product(&total, L, block, 1) || !add_product(&total, 2, C, 1))
        return false;
    if (!size_multiply(total, sizeof (float), &bytes))
        return false;
    *count = total;
    return true;
}
