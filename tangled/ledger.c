#include "ledger.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dims.h"
#include "parameters.h"

struct call_row {
    const char *name, *dims;
    size_t element;             /* bytes of one */
};

static const struct call_row buffer_rows[] = {
    { "keep", "T S", sizeof (bool) },
};
static const struct call_row entry_rows[] = {
    { "ids", "B T", sizeof (int32_t) },
    { "embedding", "B T C", sizeof (float) },
};
static const struct call_row within_block_rows[] = {
    { "attention_norm", "B T C", sizeof (float) },
    { "qkv", "B T 3C", sizeof (float) },
    { "query", "B H T D", sizeof (float) },
    { "key", "B H S D", sizeof (float) },
    { "value", "B H S D", sizeof (float) },
    { "scores", "B H T S", sizeof (float) },
    { "probs", "B H T S", sizeof (float) },
    { "context", "B H T D", sizeof (float) },
    { "merged", "B T C", sizeof (float) },
    { "attention", "B T C", sizeof (float) },
    { "residual", "B T C", sizeof (float) },
    { "mlp_norm", "B T C", sizeof (float) },
    { "up", "B T F", sizeof (float) },
    { "gelu", "B T F", sizeof (float) },
    { "down", "B T C", sizeof (float) },
    { "output", "B T C", sizeof (float) },
};
static const struct call_row exit_rows[] = {
    { "final_norm", "B T C", sizeof (float) },
    { "logits", "B T V", sizeof (float) },
};
static const struct call_row request_rows[] = {
    { "key", "B H S D", sizeof (float) },
    { "value", "B H S D", sizeof (float) },
};

struct builder {
    struct ledger ledger;
    struct dims dims;
    size_t bytes;          /* of all rows so far */
};

/* False when the bytes do not fit a size_t. */
static bool add_row(struct builder *builder, enum state_owner owner,
                    const char *prefix, const char *name, const char *dims,
                    size_t element)
{
    struct ledger_row *row = &builder->ledger.rows[builder->ledger.count++];
    size_t size;
    snprintf(row->name, sizeof row->name, "%s%s", prefix, name);
    snprintf(row->dims, sizeof row->dims, "%s", dims);
    row->owner = owner;
    dims_shape(&builder->dims, dims, &row->rank, row->shape);
    return shape_size(row->rank, row->shape, &size)
        && size_multiply(size, element, &row->bytes)
        && size_add(builder->bytes, row->bytes, &builder->bytes);
}

static bool add_parameters(struct builder *builder, const char *prefix,
                           const struct parameter_row *rows, int count,
                           size_t element)
{
    bool fits = true;
    for (int i = 0; i < count && fits; i++)
        fits = add_row(builder, OWNER_PARAMETER, prefix, rows[i].path,
                       rows[i].dims, element);
    return fits;
}

#define COUNT(rows) (sizeof (rows) / sizeof (rows)[0])

static bool add_rows(struct builder *builder, enum state_owner owner,
                     const char *prefix, const struct call_row *rows,
                     size_t count)
{
    bool fits = true;
    for (size_t i = 0; i < count && fits; i++)
        fits = add_row(builder, owner, prefix, rows[i].name, rows[i].dims,
                       rows[i].element);
    return fits;
}

static bool add_model(struct builder *builder, int layers)
{
    char prefix[LEDGER_NAME_MAX];
    bool fits = add_parameters(builder, "", first_rows, FIRST_ROWS,
                               sizeof (float));
    for (int layer = 0; layer < layers && fits; layer++) {
        snprintf(prefix, sizeof prefix, "blocks.%d.", layer);
        fits = add_parameters(builder, prefix, block_rows, BLOCK_ROWS,
                              sizeof (float));
    }
    return fits
        && add_parameters(builder, "", last_rows, LAST_ROWS, sizeof (float))
        && add_parameters(builder, "", alias_rows, ALIAS_ROWS, 0);
}

static bool add_call(struct builder *builder, int layers)
{
    char prefix[LEDGER_NAME_MAX];
    bool fits = add_rows(builder, OWNER_BUFFER, "", buffer_rows,
                         COUNT(buffer_rows))
        && add_rows(builder, OWNER_CALL, "", entry_rows, COUNT(entry_rows));
    for (int layer = 0; layer < layers && fits; layer++) {
        snprintf(prefix, sizeof prefix, "blocks.%d.", layer);
        fits = add_rows(builder, OWNER_CALL, prefix, within_block_rows,
                        COUNT(within_block_rows));
    }
    return fits
        && add_rows(builder, OWNER_CALL, "", exit_rows, COUNT(exit_rows));
}

static bool add_cache(struct builder *builder, int layers)
{
    char prefix[LEDGER_NAME_MAX];
    bool fits = true;
    for (int layer = 0; layer < layers && fits; layer++) {
        snprintf(prefix, sizeof prefix, "past_key_values.%d.", layer);
        fits = add_rows(builder, OWNER_REQUEST, prefix, request_rows,
                        COUNT(request_rows));
    }
    return fits;
}

enum status ledger_new(struct ledger *ledger,
                       const struct gpt_config *config,
                       int batch, int tokens, int past,
                       struct error *error)
{
    struct builder builder = { .bytes = 0 };
    enum status status = gpt_config_check(config, error);
    if (status == STATUS_OK)
        status = gpt_config_check_call(config, batch, tokens, past, error);
    if (status != STATUS_OK)
        return status;
    builder.dims = dims_of(config, batch, tokens, past);
    size_t rows = FIRST_ROWS + LAST_ROWS + ALIAS_ROWS + COUNT(buffer_rows)
        + COUNT(entry_rows) + COUNT(exit_rows) + (size_t)config->n_layers
        * (BLOCK_ROWS + COUNT(within_block_rows) + COUNT(request_rows));
    builder.ledger.rows = calloc(rows, sizeof *builder.ledger.rows);
    if (builder.ledger.rows == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "ledger: no memory for %zu rows", rows);
    if (!add_model(&builder, config->n_layers)
        || !add_call(&builder, config->n_layers)
        || !add_cache(&builder, config->n_layers)) {
        struct ledger_row last = builder.ledger.rows[builder.ledger.count - 1];
        free(builder.ledger.rows);
        return error_set(error, STATUS_NO_MEMORY,
                         "%s: the bytes up to here do not fit a size_t",
                         last.name);
    }
    *ledger = builder.ledger;
    return STATUS_OK;
}

void ledger_free(struct ledger *ledger)
{
    if (ledger == NULL)
        return;
    free(ledger->rows);
    *ledger = (struct ledger){ 0 };
}

const struct ledger_row *ledger_find(const struct ledger *ledger,
                                     const char *name)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->rows[i].name, name) == 0)
            return &ledger->rows[i];
    return NULL;
}

size_t ledger_bytes(const struct ledger *ledger, enum state_owner owner)
{
    size_t bytes = 0;
    for (int i = 0; i < ledger->count; i++)
        if (ledger->rows[i].owner == owner)
            bytes += ledger->rows[i].bytes;
    return bytes;
}

const char *state_owner_name(enum state_owner owner)
{
    static const char *const names[STATE_OWNERS] = {
        "parameter", "buffer", "call", "request"
    };
    return names[owner];
}
