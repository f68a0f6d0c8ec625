#include "dims.h"
#include <assert.h>
#include <string.h>
#include "tensor.h"

struct dims dims_of(const struct gpt_config *config,
                    int batch, int tokens, int past)
{
    struct dims dims = { .size = {
        ['B' - 'A'] = batch,
        ['T' - 'A'] = tokens,
        ['P' - 'A'] = past,
        ['S' - 'A'] = past + tokens,
        ['C' - 'A'] = config->d_model,
        ['H' - 'A'] = config->n_heads,
        ['D' - 'A'] = gpt_config_head_dim(config),
        ['F' - 'A'] = config->d_ff,
        ['V' - 'A'] = config->vocab_size,
        ['N' - 'A'] = config->context_length,
        ['L' - 'A'] = config->n_layers,
    } };
    return dims;
}

void dims_shape(const struct dims *dims, const char *text,
                int *rank, int *shape)
{
    memset(shape, 0, TENSOR_RANK_MAX * sizeof *shape);
    for (*rank = 0; *text != '\0'; (*rank)++) {
        assert(*rank < TENSOR_RANK_MAX);
        int factor = 1;
        if (*text >= '1' && *text <= '9')
            factor = *text++ - '0';
        assert(*text >= 'A' && *text <= 'Z');
        shape[*rank] = factor * dims->size[*text++ - 'A'];
        if (*text == ' ')
            text++;
    }
}
