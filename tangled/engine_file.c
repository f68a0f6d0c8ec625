#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine_parts.h"
#include "json.h"
#include "llama_experts.h"

static const char KEY[] = "stack", FORMAT[] = "format",
    PANELS_1[] = "panels 1";

struct sizes {
    int vocab_size, context_length, d_model, n_layers, d_ff, n_heads,
        n_kv_heads, head_dim, n_experts, experts_per_token;
    int type, bend, tied, positions, norm_bias, linear_bias, gated;
    double norm_eps, rope_theta;
};

static const struct size_row {
    const char *name;
    size_t offset;
    int least, most;
} size_rows[] = {
#define ROW(name, least, most) \
    {#name, offsetof(struct sizes, name), least, most}
    ROW(vocab_size, 1, INT32_MAX), ROW(context_length, 1, INT32_MAX),
    ROW(d_model, 1, INT32_MAX), ROW(n_layers, 1, LLAMA_LAYERS_MAX),
    ROW(d_ff, 1, INT32_MAX), ROW(n_heads, 1, INT32_MAX),
    ROW(n_kv_heads, 1, INT32_MAX), ROW(head_dim, 1, INT32_MAX),
    ROW(n_experts, 0, LLAMA_EXPERTS_MAX),
    ROW(experts_per_token, 0, LLAMA_EXPERTS_MAX),
    ROW(type, MATRIX_F32, MATRIX_INT8),
    ROW(bend, FINISH_STORE, FINISH_SILU_MULTIPLY), ROW(tied, 0, 1),
    ROW(positions, 0, 1), ROW(norm_bias, 0, 1), ROW(linear_bias, 0, 1),
    ROW(gated, 0, 1)
#undef ROW
};
enum { SIZE_ROWS = sizeof size_rows / sizeof size_rows[0] };

struct tensors {
    enum matrix_type type;
    struct safetensors_entry *entries;    /* NULL: only count */
    char (*names)[PLACE_NAME_MAX];
    size_t count;
};

static void collect(struct tensors *tensors, const char *name,
                    const char *suffix, struct safetensors_entry entry)
{
    if (tensors->entries != NULL) {
        char *full = tensors->names[tensors->count];
        snprintf(full, PLACE_NAME_MAX, "%s%s", name, suffix);
        entry.name = full;
        tensors->entries[tensors->count] = entry;
    }
    tensors->count++;
}

static struct safetensors_entry panels_entry(const struct matrix *matrix,
                                             size_t bytes)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I8};
    const int each = matrix_word_inputs(matrix->type);
    return (struct safetensors_entry){
        .dtype = types[matrix->type], .rank = 3,
        .shape = {(matrix->out + PANEL - 1) / PANEL,
                  (matrix->in + each - 1) / each, PANEL * each},
        .data = matrix->data, .bytes = bytes
    };
}

static struct safetensors_entry scales_entry(const struct matrix *matrix,
                                             size_t bytes)
{
    return (struct safetensors_entry){
        .dtype = DTYPE_F32, .rank = 3,
        .shape = {(matrix->out + PANEL - 1) / PANEL,
                  (matrix->in + GROUP - 1) / GROUP, PANEL},
        .data = matrix->scales, .bytes = bytes
    };
}

static struct safetensors_entry vector_entry(const float *data, size_t floats)
{
    return (struct safetensors_entry){
        .dtype = DTYPE_F32, .rank = 1, .shape = {(int64_t)floats},
        .data = data, .bytes = floats * sizeof (float)
    };
}

static enum status collect_matrix(void *context, const char *name,
                                  struct matrix *matrix, struct error *error)
{
    struct tensors *tensors = context;
    size_t data, scales;
    (void)error;
    (void)matrix_packed_sizes(matrix->out, matrix->in, tensors->type, &data,
                              &scales);
    collect(tensors, name, "", panels_entry(matrix, data));
    if (scales > 0)
        collect(tensors, name, ".scales", scales_entry(matrix, scales));
    return STATUS_OK;
}

static size_t whole_lines(size_t floats)
{
    enum { LINE = 16 };
    return (floats + LINE - 1) / LINE * LINE;
}

static enum status collect_vector(void *context, const char *name,
                                  const float **vector, size_t floats,
                                  struct error *error)
{
    (void)error;
    collect(context, name, "", vector_entry(*vector, whole_lines(floats)));
    return STATUS_OK;
}

static struct sizes sizes_of(const struct engine *engine)
{
    const struct stack *d = &engine->stack;
    const struct stack_layer *layer = &engine->layers[0];
    const struct stack_feed_forward *feed = d->n_experts > 0
        ? &engine->experts[0] : &layer->feed_forward;
    return (struct sizes){
        d->vocab_size, d->context_length, d->d_model, d->n_layers, d->d_ff,
        d->n_heads, d->n_kv_heads, d->head_dim, d->n_experts,
        d->experts_per_token, (int)engine->type, (int)d->bend,
        engine_tied(engine), d->position_embedding != NULL,
        layer->attention_norm.bias != NULL, layer->query.bias != NULL,
        feed->gate.out > 0, d->norm_eps, d->rope_theta
    };
}

static char *sizes_print(const struct engine *engine)
{
    const struct sizes sizes = sizes_of(engine);
    cJSON *object = cJSON_CreateObject();
    bool made = object != NULL;
    for (int r = 0; r < SIZE_ROWS && made; r++)
        made = cJSON_AddNumberToObject(object, size_rows[r].name,
            *(const int *)((const char *)&sizes + size_rows[r].offset));
    made = made && cJSON_AddNumberToObject(object, "norm_eps", sizes.norm_eps)
        && cJSON_AddNumberToObject(object, "rope_theta", sizes.rope_theta);
    char *text = made ? cJSON_PrintUnformatted(object) : NULL;
    cJSON_Delete(object);
    return text;
}

static enum status write(struct engine *engine, struct tensors *tensors,
                         const char *path, struct error *error)
{
    const struct visitor visitor = {tensors, collect_matrix, collect_vector};
    (void)engine_visit(engine, &visitor, error);    /* counts */
    tensors->entries = calloc(tensors->count, sizeof *tensors->entries);
    tensors->names = calloc(tensors->count, sizeof *tensors->names);
    char *sizes = sizes_print(engine);
    if (tensors->entries == NULL || tensors->names == NULL || sizes == NULL) {
        cJSON_free(sizes);
        return error_set(error, STATUS_NO_MEMORY, "engine: no memory for the"
                         " names of %zu tensors", tensors->count);
    }
    tensors->count = 0;
    (void)engine_visit(engine, &visitor, error);
    const struct safetensors_pair metadata[] = {{FORMAT, PANELS_1},
                                                {KEY, sizes}};
    const enum status status = safetensors_write(path, tensors->entries,
        tensors->count, metadata, sizeof metadata / sizeof *metadata, error);
    cJSON_free(sizes);
    return status;
}

enum status engine_save(const struct engine *engine, const char *path,
                        struct error *error)
{
    struct engine copy = *engine;    /* a visit may change views; not this */
    struct tensors tensors = {.type = engine->type};
    const enum status status = write(&copy, &tensors, path, error);
    free(tensors.names);
    free(tensors.entries);
    return status;
}

static enum status check_sizes(const struct sizes *s, struct error *error)
{
    if (s->n_heads % s->n_kv_heads != 0)
        return error_set(error, STATUS_FORMAT, "%s.n_kv_heads: expected a"
                         " divisor of n_heads %d, got %d", KEY, s->n_heads,
                         s->n_kv_heads);
    if (s->n_heads > INT32_MAX / s->head_dim)
        return error_set(error, STATUS_FORMAT, "%s.n_heads: expected at most"
                         " %d heads of %d, got %d", KEY,
                         INT32_MAX / s->head_dim, s->head_dim, s->n_heads);
    if (s->experts_per_token > s->n_experts
        || (s->n_experts > 0) != (s->experts_per_token > 0))
        return error_set(error, STATUS_FORMAT, "%s.experts_per_token:"
                         " expected 1 to n_experts %d, got %d", KEY,
                         s->n_experts, s->experts_per_token);
    if (!(s->norm_eps > 0 && s->norm_eps < HUGE_VAL))
        return error_set(error, STATUS_FORMAT, "%s.norm_eps: expected a positive"
                         " number, got %g", KEY, s->norm_eps);
    if (!(s->rope_theta >= 0 && s->rope_theta < HUGE_VAL)
        || (s->rope_theta > 0) == (s->positions == 1)
        || (s->rope_theta > 0 && s->head_dim % 2 != 0))
        return error_set(error, STATUS_FORMAT, "%s.rope_theta: expected 0 beside"
                         " a table of positions, or else a positive number and an"
                         " even head_dim, got %g", KEY, s->rope_theta);
    return STATUS_OK;
}

static enum status read_number(const cJSON *object, const char *name,
                               double *number, struct error *error)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item))
        return error_set(error, STATUS_FORMAT, "%s.%s: expected a number",
                         KEY, name);
    *number = item->valuedouble;
    return STATUS_OK;
}

static enum status read_sizes(const cJSON *object, struct sizes *sizes,
                              struct error *error)
{
    double number = 0;
    enum status status = STATUS_OK;
    for (int r = 0; r < SIZE_ROWS && status == STATUS_OK; r++) {
        const struct size_row *row = &size_rows[r];
        status = read_number(object, row->name, &number, error);
        if (status == STATUS_OK && !(number >= row->least && number <= row->most
                                     && number == (double)(int)number))
            status = error_set(error, STATUS_FORMAT, "%s.%s: expected %d to %d, got"
                               " %g", KEY, row->name, row->least, row->most, number);
        if (status == STATUS_OK)
            *(int *)((char *)sizes + row->offset) = (int)number;
    }
    if (status == STATUS_OK)
        status = read_number(object, "norm_eps", &sizes->norm_eps, error);
    if (status == STATUS_OK)
        status = read_number(object, "rope_theta", &sizes->rope_theta, error);
    return status != STATUS_OK ? status : check_sizes(sizes, error);
}

static const float expected[1];    /* a part that the file must have */

static struct matrix expect_matrix(const struct sizes *sizes, int out, int in,
                                   bool bias)
{
    return (struct matrix){
        .out = out, .in = in, .layout = MATRIX_PANELS,
        .type = (enum matrix_type)sizes->type, .data = expected,
        .bias = bias ? expected : NULL
    };
}

static struct stack_norm expect_norm(const struct sizes *sizes)
{
    return (struct stack_norm){expected,
                                 sizes->norm_bias ? expected : NULL};
}

static struct stack_feed_forward expect_feed_forward(
    const struct sizes *sizes)
{
    const int width = sizes->d_model, wide = sizes->d_ff;
    const bool bias = sizes->linear_bias;
    struct stack_feed_forward parts = {
        .up = expect_matrix(sizes, wide, width, bias),
        .down = expect_matrix(sizes, width, wide, bias)
    };
    if (sizes->gated)
        parts.gate = expect_matrix(sizes, wide, width, bias);
    return parts;
}

static struct stack_layer expect_layer(const struct sizes *sizes)
{
    const int width = sizes->d_model;
    const int q = sizes->n_heads * sizes->head_dim;
    const int kv = sizes->n_kv_heads * sizes->head_dim;
    const bool bias = sizes->linear_bias;
    struct stack_layer layer = {
        .attention_norm = expect_norm(sizes),
        .feed_forward_norm = expect_norm(sizes),
        .query = expect_matrix(sizes, q, width, bias),
        .key = expect_matrix(sizes, kv, width, bias),
        .value = expect_matrix(sizes, kv, width, bias),
        .output = expect_matrix(sizes, width, q, bias)
    };
    if (sizes->n_experts > 0)
        layer.router = expect_matrix(sizes, sizes->n_experts, width, false);
    else
        layer.feed_forward = expect_feed_forward(sizes);
    return layer;
}

static struct stack expect_stack(const struct sizes *sizes)
{
    static const float other[1];       /* an embedding of its own */
    struct stack stack = {
        .vocab_size = sizes->vocab_size,
        .context_length = sizes->context_length, .d_model = sizes->d_model,
        .n_layers = sizes->n_layers, .d_ff = sizes->d_ff,
        .n_heads = sizes->n_heads, .n_kv_heads = sizes->n_kv_heads,
        .head_dim = sizes->head_dim, .n_experts = sizes->n_experts,
        .experts_per_token = sizes->experts_per_token,
        .norm_eps = sizes->norm_eps, .rope_theta = sizes->rope_theta,
        .bend = (enum finish)sizes->bend,
        .position_embedding = sizes->positions ? expected : NULL,
        .final_norm = expect_norm(sizes),
        .head = expect_matrix(sizes, sizes->vocab_size, sizes->d_model, false)
    };
    stack.token_embedding = stack.head;
    if (!sizes->tied)
        stack.token_embedding.data = other;
    return stack;
}

static enum status find(const struct safetensors *file, const char *name,
                        const char *suffix,
                        const struct safetensors_entry *like,
                        const void **data, struct error *error)
{
    char full[PLACE_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    const struct safetensors_entry *entry = safetensors_find(file, full);
    if (entry == NULL)
        return error_set(error, STATUS_FORMAT, "%s: missing", full);
    bool same = entry->dtype == like->dtype && entry->rank == like->rank;
    for (int r = 0; r < like->rank && same; r++)
        same = entry->shape[r] == like->shape[r];
    if (!same)
        return error_set(error, STATUS_FORMAT, "%s: expected %s of %zu bytes,"
                         " got %s of %zu in another shape", full,
                         dtype_name(like->dtype), like->bytes,
                         dtype_name(entry->dtype), entry->bytes);
    *data = entry->data;
    return STATUS_OK;
}

struct finder { const struct safetensors *file; size_t bytes; };

static enum status aligned(const char *name, const void *data,
                           struct error *error)
{
    if ((uintptr_t)data % sizeof (float) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_FORMAT, "%s: expected to begin at a"
                     " multiple of %zu bytes", name, sizeof (float));
}

static enum status find_matrix(void *context, const char *name,
                               struct matrix *matrix, struct error *error)
{
    struct finder *finder = context;
    size_t bytes, scale_bytes;
    const void *scales = NULL;
    if (!matrix_packed_sizes(matrix->out, matrix->in, matrix->type, &bytes,
                             &scale_bytes))
        return error_set(error, STATUS_FORMAT, "%s: its size does not fit",
                         name);
    const struct safetensors_entry like = panels_entry(matrix, bytes);
    const struct safetensors_entry beside = scales_entry(matrix, scale_bytes);
    enum status status = find(finder->file, name, "", &like, &matrix->data,
                              error);
    if (status == STATUS_OK && scale_bytes > 0)
        status = find(finder->file, name, ".scales", &beside, &scales, error);
    if (status == STATUS_OK)
        status = aligned(name, matrix->data, error);
    if (status == STATUS_OK)
        status = aligned(name, scales, error);
    matrix->scales = scales;
    finder->bytes += bytes + scale_bytes;
    return status;
}

static enum status find_vector(void *context, const char *name,
                               const float **vector, size_t floats,
                               struct error *error)
{
    struct finder *finder = context;
    const struct safetensors_entry like = vector_entry(NULL,
                                                       whole_lines(floats));
    const void *data = NULL;
    enum status status = find(finder->file, name, "", &like, &data, error);
    if (status == STATUS_OK)
        status = aligned(name, data, error);
    *vector = data;
    finder->bytes += like.bytes;
    return status;
}

static enum status file_sizes(const struct safetensors *file,
                              struct sizes *sizes, struct error *error)
{
    const char *format = safetensors_metadata(file, FORMAT);
    const char *text = safetensors_metadata(file, KEY);
    if (format == NULL || strcmp(format, PANELS_1) != 0 || text == NULL)
        return error_set(error, STATUS_FORMAT, "expected a file of panels"
                         " (%s \"%s\")", FORMAT, PANELS_1);
    cJSON *object;
    enum status status = json_parse(&object, text, strlen(text), error);
    if (status != STATUS_OK)
        return status;
    status = read_sizes(object, sizes, error);
    cJSON_Delete(object);
    return status;
}

static enum status open_parts(struct engine **engine,
                              const struct safetensors *file,
                              const struct kernels *kernels,
                              struct error *error)
{
    struct sizes sizes = {0};
    enum status status = file_sizes(file, &sizes, error);
    if (status != STATUS_OK)
        return status;
    const struct stack stack = expect_stack(&sizes);
    status = engine_make(engine, &stack, (enum matrix_type)sizes.type,
                         kernels, error);
    if (status != STATUS_OK)
        return status;
    struct engine *made = *engine;
    for (int l = 0; l < sizes.n_layers; l++)
        made->layers[l] = expect_layer(&sizes);
    for (int e = 0; e < sizes.n_layers * sizes.n_experts; e++)
        made->experts[e] = expect_feed_forward(&sizes);
    struct finder finder = {file, 0};
    const struct visitor visitor = {&finder, find_matrix, find_vector};
    status = engine_visit(made, &visitor, error);
    made->bytes = finder.bytes;
    return status;
}

enum status engine_open(struct engine **engine, const char *path,
                        const struct kernels *kernels, struct error *error)
{
    struct file_map map;
    struct safetensors *file = NULL;
    struct engine *made = NULL;
    struct error reason;
    enum status status = file_map_open(&map, path, error);
    if (status != STATUS_OK)
        return status;
    status = safetensors_parse(&file, path, map.bytes, map.length, error);
    if (status == STATUS_OK) {
        status = open_parts(&made, file, kernels, &reason);
        if (status != STATUS_OK)
            (void)file_error(error, status, path, reason.message);
    }
    if (status == STATUS_OK) {
        made->file = file;
        made->map = map;
        *engine = made;
    } else {
        engine_free(&made);
        safetensors_close(&file);
        file_map_close(&map);
    }
    return status;
}
