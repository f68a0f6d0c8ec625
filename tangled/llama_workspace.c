#include "llama_workspace.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct layout {
    float *block;      /* NULL: count only */
    size_t floats;
    bool fits;
};

static void *place(struct layout *layout, size_t rows, size_t width)
{
    size_t count, bytes;
    const size_t begin = layout->floats;
    if (!size_multiply(rows, width, &count)
        || !size_add(begin, count, &layout->floats)
        || !size_multiply(layout->floats, sizeof (float), &bytes))
        layout->fits = false;
    return layout->block == NULL ? NULL : layout->block + begin;
}

static void lay_out_layer(const struct llama_config *config, size_t rows,
                          struct llama_layer_kept *kept,
                          struct layout *layout)
{
    const size_t c = (size_t)config->d_model, f = (size_t)config->d_ff;
    const size_t d = (size_t)config->head_dim;
    const size_t q = (size_t)config->n_heads * d;
    const size_t kv = (size_t)config->n_kv_heads * d;
    kept->stream = place(layout, rows, c);
    kept->norm = place(layout, rows, c);
    kept->query = place(layout, rows, q);
    kept->key = place(layout, rows, kv);
    kept->value = place(layout, rows, kv);
    kept->merged = place(layout, rows, q);
    kept->residual = place(layout, rows, c);
    kept->post_norm = place(layout, rows, c);
    const size_t chosen = (size_t)config->experts_per_token;
    const size_t each = chosen > 0 ? rows * chosen : rows;
    kept->hidden.gate = place(layout, each, f);
    kept->hidden.up = place(layout, each, f);
    kept->hidden.gated = place(layout, each, f);
    if (chosen > 0) {
        const size_t experts = (size_t)config->n_experts;
        kept->routing = (struct moe_routing){
            .rows = (int)rows, .n_experts = config->n_experts,
            .chosen = config->experts_per_token
        };
        kept->routing.probs = place(layout, rows, experts);
        kept->routing.experts = place(layout, rows, chosen);
        kept->routing.gates = place(layout, rows, chosen);
        kept->routing.places = place(layout, rows, chosen);
        kept->routing.offsets = place(layout, 1, experts + 1);
        kept->made = place(layout, each, c);
    }
}

static void lay_out(struct llama_workspace *w, struct layout *layout)
{
    const struct llama_config *config = &w->config;
    const size_t rows = (size_t)w->batch * (size_t)w->tokens;
    const size_t tokens = (size_t)w->tokens, d = (size_t)config->head_dim;
    const size_t c = (size_t)config->d_model, f = (size_t)config->d_ff;
    const size_t q = (size_t)config->n_heads * d;
    const size_t kv = (size_t)config->n_kv_heads * d;
    for (int l = 0; l < config->n_layers; l++)
        lay_out_layer(config, rows, &w->layers[l], layout);
    w->turns = place(layout, tokens, d);
    w->stream = place(layout, rows, c);
    w->norm = place(layout, rows, c);
    w->logits = place(layout, rows, (size_t)config->vocab_size);
    w->d_logits = place(layout, rows, (size_t)config->vocab_size);
    w->branch = place(layout, rows, c);
    w->d_stream = place(layout, rows, c);
    w->d_norm = place(layout, rows, c);
    w->wide = place(layout, rows, q);
    w->context = place(layout, rows, q);
    w->d_query = place(layout, rows, q);
    w->d_key = place(layout, rows, kv);
    w->d_value = place(layout, rows, kv);
    w->squares = place(layout, 4 * tokens, tokens);
    const size_t chosen = (size_t)config->experts_per_token;
    const size_t each = chosen > 0 ? rows * chosen : rows;
    w->d_hidden.gate = place(layout, each, f);
    w->d_hidden.up = place(layout, each, f);
    w->d_hidden.gated = place(layout, each, f);
    w->gathered = place(layout, rows * chosen, c);
    w->d_gathered = place(layout, rows * chosen, c);
    w->d_gates = place(layout, rows, chosen);
    w->d_router = place(layout, rows, (size_t)config->n_experts);
}

static enum status check_batch(const struct llama_config *config, int batch,
                               int tokens, struct error *error)
{
    const int widest = config->n_heads > tokens ? config->n_heads : tokens;
    if (tokens < 1 || tokens > config->context_length)
        return error_set(error, STATUS_INVALID, "tokens: expected 1 to"
                         " context_length %d, got %d",
                         config->context_length, tokens);
    if (batch < 1 || batch > INT_MAX / widest)
        return error_set(error, STATUS_INVALID,
                         "batch: expected 1 to %d, got %d", INT_MAX / widest,
                         batch);
    if (moe_assignments(batch, tokens, config->experts_per_token) == SIZE_MAX)
        return error_set(error, STATUS_INVALID, "batch: expected at most %d"
                         " assignments, got %d * %d * %d", (int)INT32_MAX,
                         batch, tokens, config->experts_per_token);
    return STATUS_OK;
}

static bool allocate(struct llama_workspace *made)
{
    const size_t tokens = (size_t)made->tokens;
    const size_t rows = (size_t)made->batch * tokens;
    struct layout layout = { .fits = true };
    made->positions = calloc(rows, sizeof *made->positions);
    made->keep = calloc(tokens, tokens * sizeof *made->keep);
    made->layers = calloc((size_t)made->config.n_layers,
                          sizeof *made->layers);
    if (made->positions == NULL || made->keep == NULL
        || made->layers == NULL)
        return false;
    lay_out(made, &layout);
    if (layout.fits)
        made->block = malloc(layout.floats * sizeof *made->block);
    if (made->block == NULL)
        return false;
    layout = (struct layout){ .block = made->block, .fits = true };
    lay_out(made, &layout);
    return true;
}

enum status llama_workspace_new(struct llama_workspace *workspace,
                                const struct llama_config *config,
                                int batch, int tokens, struct error *error)
{
    struct llama_workspace made = { .config = *config, .batch = batch,
                                    .tokens = tokens };
    enum status status = check_batch(config, batch, tokens, error);
    if (status != STATUS_OK)
        return status;
    if (!allocate(&made)) {
        llama_workspace_free(&made);
        return error_set(error, STATUS_NO_MEMORY, "workspace: no memory for"
                         " %d windows of %d tokens", batch, tokens);
    }
    for (int row = 0; row < batch * tokens; row++)
        made.positions[row] = row % tokens;
    for (int t = 0; t < tokens; t++)
        memset(made.keep + (size_t)t * (size_t)tokens, true, (size_t)t + 1);
    *workspace = made;
    return STATUS_OK;
}

void llama_workspace_free(struct llama_workspace *workspace)
{
    if (workspace == NULL)
        return;
    free(workspace->positions);
    free(workspace->keep);
    free(workspace->layers);
    free(workspace->block);
    *workspace = (struct llama_workspace){ 0 };
}
