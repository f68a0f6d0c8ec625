#include "stack.h"
#include <string.h>
#include "rope.h"

enum part {
    STREAM,     /* [B,T,C] */
    NORM,       /* [B,T,C] */
    TURNS,      /* [B,T,D] cosines and sines */
    QUERIES,    /* [B,T,HD] */
    KEYS,       /* [B,T,HkD] */
    VALUES,     /* [B,T,HkD] */
    CONTEXT,    /* [B,T,HD] */
    HIDDEN,     /* [B,T,F] */
    ROUTER,     /* [L,B,T,E] logits, then probabilities */
    CHOICES,    /* [L,B,T,k] experts, as int32_t */
    GATES,      /* [L,B,T,k] */
    PLACES,     /* [L,B,T,k] int32_t */
    OFFSETS,    /* [L,E+1] int32_t; each token has room for them */
    GATHERED,   /* [B,T,k,C] rows by expert */
    PARTS
};

static bool part_sizes(const struct stack *stack, int batch, int tokens,
                       size_t sizes[PARTS])
{
    const size_t b = (size_t)batch, layers = (size_t)stack->n_layers;
    const size_t c = (size_t)stack->d_model, d = (size_t)stack->head_dim;
    const size_t q = (size_t)stack->n_heads * d;
    const size_t kv = (size_t)stack->n_kv_heads * d;
    const size_t e = (size_t)stack->n_experts;
    const size_t k = (size_t)stack->experts_per_token;
    const size_t table[PARTS][2] = {
        [STREAM] = {b, c}, [NORM] = {b, c},
        [TURNS] = {b, stack->rope_theta > 0 ? d : 0}, [QUERIES] = {b, q},
        [KEYS] = {b, kv}, [VALUES] = {b, kv}, [CONTEXT] = {b, q},
        [HIDDEN] = {b, (size_t)stack->d_ff}, [ROUTER] = {b * layers, e},
        [CHOICES] = {b * layers, k}, [GATES] = {b * layers, k},
        [PLACES] = {b * layers, k},
        [OFFSETS] = {layers, e > 0 ? e + 1 : 0},
        [GATHERED] = {moe_assignments(batch, tokens, (int)k), c}
    };
    for (int p = 0; p < PARTS; p++)
        if (!size_multiply((size_t)tokens, table[p][0], &sizes[p])
            || !size_multiply(sizes[p], table[p][1], &sizes[p]))
            return false;
    return true;
}

size_t stack_scratch_size(const struct stack *stack, int batch,
                            int tokens)
{
    size_t sizes[PARTS], sum = 0, bytes;
    if (!part_sizes(stack, batch, tokens, sizes))
        return SIZE_MAX;
    for (int p = 0; p < PARTS; p++)
        if (!size_add(sum, sizes[p], &sum))
            return SIZE_MAX;
    return size_multiply(sum, sizeof (float), &bytes) ? sum : SIZE_MAX;
}

struct pass {
    const struct stack *stack;
    const struct kernels *kernels;
    const struct step *step;
    int rows;                    /* B·T */
    size_t width;                /* C */
    float *part[PARTS];
};

static struct pass pass_begin(const struct stack *stack,
                              const struct kernels *kernels,
                              const struct step *step, float *scratch)
{
    struct pass pass = {
        .stack = stack, .kernels = kernels, .step = step,
        .rows = step->batch * step->tokens,
        .width = (size_t)stack->d_model
    };
    size_t sizes[PARTS];
    (void)part_sizes(stack, step->batch, step->tokens, sizes);
    for (int p = 0; p < PARTS; p++) {
        pass.part[p] = scratch;
        scratch += sizes[p];
    }
    return pass;
}

static void multiply(const struct pass *pass, const struct matrix *matrix,
                     const float *in, int rows, float *out,
                     enum finish finish)
{
    pass->kernels->linear(matrix, in, (size_t)matrix->in, rows, out,
                          (size_t)matrix->out, finish);
}

static void normalise(const struct pass *pass,
                      const struct stack_norm *norm, const float *in,
                      int rows, float *out)
{
    const struct stack *stack = pass->stack;
    if (norm->bias != NULL)
        pass->kernels->layer_norm(in, rows, stack->d_model, norm->weight,
                                  norm->bias, stack->norm_eps, out);
    else
        pass->kernels->rms_norm(in, rows, stack->d_model, norm->weight,
                                stack->norm_eps, out);
}

static void look_up(const struct matrix *table, int32_t id, float *out)
{
    const size_t width = (size_t)table->in;
    if (table->layout == MATRIX_ROWS)
        memcpy(out, (const float *)table->data + (size_t)id * width,
               width * sizeof *out);
    else
        for (int c = 0; c < table->in; c++)
            out[c] = matrix_weight(table, id, c);
}

static void embed(const struct pass *pass)
{
    const struct stack *stack = pass->stack;
    const size_t width = pass->width;
    for (size_t row = 0; row < (size_t)pass->rows; row++) {
        float *stream = pass->part[STREAM] + row * width;
        look_up(&stack->token_embedding, pass->step->ids[row], stream);
        if (stack->position_embedding == NULL)
            continue;
        const float *position = stack->position_embedding
            + (size_t)pass->step->positions[row] * width;
        for (size_t c = 0; c < width; c++)
            stream[c] += position[c];
    }
    if (stack->rope_theta > 0)
        rope_turns(pass->step->positions, pass->rows, stack->head_dim,
                   stack->rope_theta, pass->part[TURNS]);
}

static void turn_heads(const struct pass *pass, float *rows, int heads)
{
    const int head_dim = pass->stack->head_dim;
    const ptrdiff_t stride = (ptrdiff_t)heads * head_dim;
    if (pass->stack->rope_theta > 0)
        for (int row = 0; row < pass->rows; row++)
            for (int h = 0; h < heads; h++)
                rope_turn(rows + row * stride + h * head_dim, 1, 1, head_dim,
                          pass->part[TURNS] + (ptrdiff_t)row * head_dim);
}

static void store_heads(const struct pass *pass, const float *rows,
                        struct tensor *slots)
{
    const struct step *step = pass->step;
    const size_t dim = (size_t)pass->stack->head_dim;
    const size_t heads = (size_t)pass->stack->n_kv_heads;
    const size_t slot_count = (size_t)slots->shape[2];
    const size_t tokens = (size_t)step->tokens;
    for (size_t b = 0; b < (size_t)step->batch; b++)
        for (size_t h = 0; h < heads; h++) {
            float *to = slots->data + ((b * heads + h) * slot_count
                                       + (size_t)step->lengths[b]) * dim;
            const float *from = rows + (b * tokens * heads + h) * dim;
            for (size_t t = 0; t < tokens; t++)
                memcpy(to + t * dim, from + t * heads * dim, dim * sizeof *to);
        }
}

enum { ROWS_A_CALL = 16 };

static struct attention_call attention_of(const struct pass *pass,
                                          const struct layer_kv *cache,
                                          int b)
{
    const struct stack *stack = pass->stack;
    const size_t dim = (size_t)stack->head_dim;
    const size_t width = (size_t)stack->n_heads * dim;
    const size_t head = (size_t)cache->key.shape[2] * dim;
    const size_t first = (size_t)b * (size_t)stack->n_kv_heads * head;
    const size_t row = (size_t)b * (size_t)pass->step->tokens * width;
    return (struct attention_call){
        .heads = stack->n_heads, .kv_heads = stack->n_kv_heads,
        .head_dim = stack->head_dim, .tokens = pass->step->tokens,
        .length = pass->step->lengths[b],
        .query = pass->part[QUERIES] + row,
        .query_token = width, .query_head = dim,
        .key = cache->key.data + first, .value = cache->value.data + first,
        .slot_stride = dim, .head_stride = head,
        .context = pass->part[CONTEXT] + row,
        .context_token = width, .context_head = dim
    };
}

static void attend_in_rows(const struct pass *pass,
                           const struct layer_kv *cache)
{
    struct attention_call calls[ROWS_A_CALL];
    for (int b = 0; b < pass->step->batch; b += ROWS_A_CALL) {
        const int left = pass->step->batch - b;
        const int count = left < ROWS_A_CALL ? left : ROWS_A_CALL;
        for (int i = 0; i < count; i++)
            calls[i] = attention_of(pass, cache, b + i);
        pass->kernels->attention(calls, count);
    }
}

static void attend(const struct pass *pass, const struct stack_layer *layer,
                   struct layer_kv *cache)
{
    const int rows = pass->rows;
    float *stream = pass->part[STREAM], *norm = pass->part[NORM];
    float *queries = pass->part[QUERIES], *keys = pass->part[KEYS];
    float *values = pass->part[VALUES];
    normalise(pass, &layer->attention_norm, stream, rows, norm);
    multiply(pass, &layer->query, norm, rows, queries, FINISH_STORE);
    multiply(pass, &layer->key, norm, rows, keys, FINISH_STORE);
    multiply(pass, &layer->value, norm, rows, values, FINISH_STORE);
    turn_heads(pass, queries, pass->stack->n_heads);
    turn_heads(pass, keys, pass->stack->n_kv_heads);
    store_heads(pass, keys, &cache->key);
    store_heads(pass, values, &cache->value);
    attend_in_rows(pass, cache);
    multiply(pass, &layer->output, pass->part[CONTEXT], rows, stream,
             FINISH_ADD);
}

static void feed(const struct pass *pass,
                 const struct stack_feed_forward *layer, const float *in,
                 int rows, float *out, enum finish finish)
{
    float *hidden = pass->part[HIDDEN];
    if (layer->gate.data != NULL) {
        multiply(pass, &layer->gate, in, rows, hidden, FINISH_STORE);
        multiply(pass, &layer->up, in, rows, hidden, FINISH_SILU_MULTIPLY);
    } else {
        multiply(pass, &layer->up, in, rows, hidden, pass->stack->bend);
    }
    multiply(pass, &layer->down, hidden, rows, out, finish);
}

static struct moe_routing routing_of(const struct pass *pass, int layer)
{
    const int experts = pass->stack->n_experts;
    const int chosen = pass->stack->experts_per_token;
    const ptrdiff_t rows = (ptrdiff_t)layer * pass->rows;
    int32_t *choices = (void *)pass->part[CHOICES];
    int32_t *places = (void *)pass->part[PLACES];
    int32_t *offsets = (void *)pass->part[OFFSETS];
    return (struct moe_routing){
        .rows = pass->rows, .n_experts = experts, .chosen = chosen,
        .probs = pass->part[ROUTER] + rows * experts,
        .experts = choices + rows * chosen,
        .gates = pass->part[GATES] + rows * chosen,
        .places = places + rows * chosen,
        .offsets = offsets + (ptrdiff_t)layer * (experts + 1)
    };
}

static void feed_experts(const struct pass *pass, int index,
                         const struct stack_layer *layer)
{
    const struct stack *stack = pass->stack;
    const float *norm = pass->part[NORM];
    float *gathered = pass->part[GATHERED];
    struct moe_routing routing = routing_of(pass, index);
    multiply(pass, &layer->router, norm, pass->rows, routing.probs,
             FINISH_STORE);
    moe_route(&routing);
    moe_dispatch(&routing);
    moe_gather(&routing, norm, stack->d_model, gathered);
    for (int e = 0; e < stack->n_experts; e++) {
        const int32_t first = routing.offsets[e];
        const struct stack_feed_forward expert
            = stack->expert(stack->weights, index, e);
        float *rows = gathered + (size_t)first * pass->width;
        feed(pass, &expert, rows, routing.offsets[e + 1] - first, rows, FINISH_STORE);
    }
    float *sum = pass->part[NORM], *stream = pass->part[STREAM];
    moe_combine(&routing, gathered, stack->d_model, sum);
    for (size_t i = 0; i < (size_t)pass->rows * pass->width; i++)
        stream[i] += sum[i];
}

static void feed_forward(const struct pass *pass, int index,
                         const struct stack_layer *layer)
{
    normalise(pass, &layer->feed_forward_norm, pass->part[STREAM],
              pass->rows, pass->part[NORM]);
    if (layer->router.data != NULL)
        feed_experts(pass, index, layer);
    else
        feed(pass, &layer->feed_forward, pass->part[NORM], pass->rows,
             pass->part[STREAM], FINISH_ADD);
}

static void predict(const struct pass *pass)
{
    const struct step *step = pass->step;
    const size_t width = pass->width, tokens = (size_t)step->tokens;
    float *stream = pass->part[STREAM], *norm = pass->part[NORM];
    int rows = pass->rows;
    if (step->last_only) {
        rows = step->batch;
        for (size_t b = 0; b < (size_t)step->batch; b++) {
            memmove(stream + b * width, stream + (b * tokens + tokens - 1) * width,
                    width * sizeof *stream);
        }
    }
    normalise(pass, &pass->stack->final_norm, stream, rows, norm);
    multiply(pass, &pass->stack->head, norm, rows, step->logits,
             FINISH_STORE);
}

void stack_step(const struct stack *stack,
                  const struct kernels *kernels, const struct step *step,
                  float *scratch)
{
    const struct pass pass = pass_begin(stack, kernels, step, scratch);
    embed(&pass);
    for (int l = 0; l < stack->n_layers; l++) {
        const struct stack_layer layer
            = stack->layer(stack->weights, l);
        attend(&pass, &layer, &step->storage->layers[l]);
        feed_forward(&pass, l, &layer);
    }
    predict(&pass);
}

struct moe_routing stack_routing(const struct stack *stack,
                                   const struct step *step, float *scratch,
                                   int layer)
{
    const struct pass pass = pass_begin(stack, NULL, step, scratch);
    return routing_of(&pass, layer);
}
