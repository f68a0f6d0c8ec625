#include "cache_bytes.h"

bool cache_bytes(const struct cache_shape *shape, int batch, int tokens,
                 size_t element_bytes, size_t *bytes)
{
    const int sizes[] = {shape->n_layers, batch, tokens, shape->n_kv_heads,
                         shape->head_dim};
    size_t product = 2;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (!size_multiply(product, (size_t)sizes[k], &product))
            return false;
    return size_multiply(product, element_bytes, bytes);
}

int grouping_next(int n_heads, int kv_heads)
{
    int next = kv_heads - 1;
    while (next > 0 && n_heads % next != 0)
        next--;
    return next;
}

const char *grouping_name(int n_heads, int kv_heads)
{
    return kv_heads == n_heads ? "MHA" : kv_heads == 1 ? "MQA" : "GQA";
}

enum status grouped_cache_bytes(const struct cache_shape *shape, int n_heads,
                                int kv_heads, int batch, int tokens,
                                size_t element_bytes, size_t *bytes,
                                struct error *error)
{
    struct cache_shape other = *shape;
    const struct { const char *name; int size; } sizes[] = {
        {"n_layers", shape->n_layers}, {"head_dim", shape->head_dim},
        {"n_heads", n_heads}, {"n_kv_heads", kv_heads}, {"batch", batch},
        {"tokens", tokens}, {"element_bytes", element_bytes > 0}
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k].size < 1)
            return error_set(error, STATUS_INVALID,
                             "%s: expected at least 1, got %d", sizes[k].name,
                             sizes[k].size);
    if (n_heads % kv_heads != 0)
        return error_set(error, STATUS_INVALID,
                         "n_kv_heads: expected a divisor of n_heads %d, got %d",
                         n_heads, kv_heads);
    other.n_kv_heads = kv_heads;
    if (!cache_bytes(&other, batch, tokens, element_bytes, bytes))
        return error_set(error, STATUS_INVALID,
                         "batch, tokens: the bytes of a cache do not fit a"
                         " size_t");
    return STATUS_OK;
}
