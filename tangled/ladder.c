#include "ladder.h"
#include <stdlib.h>
#include <string.h>
#include "kernel_steps.h"
#include "kernels.h"
#include "pages.h"
#include "thread_count.h"

enum { LAYOUTS = 5 };    /* rows, turned, and panels of three types */

struct arrays {
    struct step_layer layer;
    float *floats[2];            /* rows, turned */
    void *data[3];
    float *scales;
    struct matrix matrix[LAYOUTS];
    struct attention_call call;
    void *rooms[8];              /* what is freed */
    int room_count;
};

static void *take(struct arrays *arrays, size_t bytes)
{
    void **room = &arrays->rooms[arrays->room_count];
    void *start = pages_new(bytes, room);
    arrays->room_count += start != NULL;
    return start;
}

static enum status take_attention(const struct ladder_plan *plan,
                                  struct arrays *arrays, struct error *error)
{
    const size_t token = (size_t)plan->heads * (size_t)plan->in;
    const size_t all = token * (size_t)plan->rows, d = (size_t)plan->in;
    float *query = take(arrays, 4 * all * sizeof *query);
    if (query == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %d tokens of %d heads", plan->rows,
                         plan->heads);
    for (size_t k = 0; k < 3 * all; k++)
        query[k] = (float)(k % 17) / 17 - 0.5f;
    arrays->call = (struct attention_call){
        .heads = plan->heads, .kv_heads = plan->heads, .head_dim = plan->in,
        .tokens = plan->rows, .query = query, .query_token = token,
        .query_head = d, .key = query + all, .value = query + 2 * all,
        .slot_stride = d, .head_stride = d * (size_t)plan->rows,
        .context = query + 3 * all, .context_token = token,
        .context_head = d};
    return STATUS_OK;
}

static void fill_arrays(struct arrays *arrays, float *input)
{
    const struct step_layer *layer = &arrays->layer;
    const size_t out = (size_t)layer->out, in = (size_t)layer->in;
    float *rows = arrays->floats[0], *turned = arrays->floats[1];
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++)
            turned[i * out + o] = rows[o * in + i]
                = (float)((o * 7 + i * 5) % 31) / 31 - 0.5f;
    for (size_t k = 0; k < (size_t)layer->rows * in; k++)
        input[k] = (float)(k % 17) / 17 - 0.5f;
    arrays->matrix[0] = matrix_of_rows(rows, NULL, layer->out, layer->in);
    for (int t = 0; t < 3; t++)
        arrays->matrix[1 + t] = matrix_pack(rows, NULL, layer->out, layer->in,
                                            (enum matrix_type)t,
                                            arrays->data[t], arrays->scales);
}

static enum status take_arrays(const struct ladder_plan *plan,
                               struct arrays *arrays, struct error *error)
{
    const size_t out = (size_t)plan->out, in = (size_t)plan->in;
    const size_t rows = (size_t)plan->rows;
    bool all = true;
    for (int t = 0; t < 3; t++) {
        size_t data = 0, scales = 0;
        all = all && matrix_packed_sizes(plan->out, plan->in,
                                         (enum matrix_type)t, &data, &scales)
              && (arrays->data[t] = take(arrays, data)) != NULL;
        if (scales > 0)
            all = all && (arrays->scales = take(arrays, scales)) != NULL;
    }
    for (int f = 0; f < 2; f++)
        all = all && (arrays->floats[f] = take(arrays, out * in * 4)) != NULL;
    float *input = all ? take(arrays, rows * in * 4) : NULL;
    float *output = input != NULL ? take(arrays, rows * out * 4) : NULL;
    if (output == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a layer [%d,%d] and %d rows",
                         plan->out, plan->in, plan->rows);
    arrays->layer = (struct step_layer){
        plan->out, plan->in, plan->rows, arrays->floats[0],
        arrays->floats[1], arrays->data[0], input, output};
    fill_arrays(arrays, input);
    return STATUS_OK;
}

static void free_arrays(struct arrays *arrays)
{
    while (arrays->room_count > 0)
        free(arrays->rooms[--arrays->room_count]);
}

enum form { STEP, FLOATS, BF16, INT8, PLAIN_ATTENTION, ATTENTION };

struct rung_kind {
    const char *name;
    kernel_step *step;
    enum form form;
    bool threads;
};

static const struct kernel_steps *steps_of(const struct kernels *kernels)
{
    return kernels == &kernels_avx512 ? &kernel_steps_avx512
         : kernels == &kernels_avx2 ? &kernel_steps_avx2
                                    : &kernel_steps_base;
}

static void plain_step(const struct step_layer *layer)
{
    const struct matrix matrix = matrix_of_rows(layer->weight, NULL,
                                                layer->out, layer->in);
    kernels_plain.linear(&matrix, layer->input, (size_t)layer->in,
                         layer->rows, layer->output, (size_t)layer->out,
                         FINISH_STORE);
}

static int kinds_of_attention(struct rung_kind kinds[RUNGS_MAX])
{
    const struct rung_kind all[] = {
        {"plain", NULL, PLAIN_ATTENTION, false},
        {"blocks", NULL, ATTENTION, false},
        {"threads", NULL, ATTENTION, true}};
    memcpy(kinds, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static int kinds_of_layer(const struct kernel_steps *s, bool single,
                          struct rung_kind kinds[RUNGS_MAX])
{
    const struct rung_kind many[] = {
        {"plain", plain_step, STEP, false},
        {"lanes", s->one_sum, STEP, false},
        {"eight sums", s->eight_sums, STEP, false},
        {"tile", s->tile, STEP, false},
        {"panels", s->panels, STEP, false},
        {"blocks", s->blocks, STEP, false},
        {"kernel", NULL, FLOATS, false},
        {"threads", NULL, FLOATS, true}};
    const struct rung_kind one[] = {
        {"plain", plain_step, STEP, false},
        {"lanes", s->one_sum, STEP, false},
        {"eight sums", s->eight_sums, STEP, false},
        {"panels", s->panels, STEP, false},
        {"kernel", NULL, FLOATS, false},
        {"threads", NULL, FLOATS, true},
        {"BF16", NULL, BF16, true},
        {"INT8", NULL, INT8, true}};
    memcpy(kinds, single ? one : many, sizeof many);
    return (int)(sizeof many / sizeof *many);
}

static double run_rung(const struct rung_kind *kind,
                       const struct arrays *arrays,
                       const struct kernels *kernels,
                       const struct stopwatch *watch)
{
    const struct step_layer *layer = &arrays->layer;
    const double began = watch->now(watch->state);
    if (kind->form == STEP)
        kind->step(layer);
    else if (kind->form == PLAIN_ATTENTION)
        kernels_plain.attention(&arrays->call, 1);
    else if (kind->form == ATTENTION)
        kernels->attention(&arrays->call, 1);
    else
        kernels->linear(&arrays->matrix[kind->form], layer->input,
                        (size_t)layer->in, layer->rows, layer->output,
                        (size_t)layer->out, FINISH_STORE);
    return watch->now(watch->state) - began;
}

static enum status check_plan(const struct ladder_plan *plan,
                              struct error *error)
{
    const struct { const char *name; int value, most; } sizes[] = {
        {"out", plan->out, 1 << 20}, {"in", plan->in, 1 << 20},
        {"rows", plan->rows, 1 << 16},
        {"threads", plan->threads, LIMIT_THREADS},
        {"rounds", plan->rounds, SAMPLES_MAX}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k].value < 1 || sizes[k].value > sizes[k].most)
            return error_set(error, STATUS_INVALID,
                             "%s: expected 1 to %d, got %d", sizes[k].name,
                             sizes[k].most, sizes[k].value);
    if (plan->heads < 0 || plan->heads > 1024)
        return error_set(error, STATUS_INVALID,
                         "heads: expected 0 to 1024, got %d", plan->heads);
    if (plan->out % PANEL != 0 && plan->heads == 0)
        return error_set(error, STATUS_INVALID,
                         "out: expected a multiple of %d, got %d", PANEL,
                         plan->out);
    return STATUS_OK;
}

static double amount_of(const struct ladder_plan *plan, enum form form)
{
    const enum matrix_type type = form == BF16 ? MATRIX_BF16
        : form == INT8 ? MATRIX_INT8 : MATRIX_F32;
    size_t data = 0, scales = 0;
    if (plan->heads > 0)
        return 2.0 * plan->heads * plan->in * plan->rows * (plan->rows + 1.0);
    if (plan->rows > 1)
        return 2.0 * plan->out * plan->in * plan->rows;
    matrix_packed_sizes(plan->out, plan->in, type, &data, &scales);
    return (double)data + (double)scales;
}

static void climb(const struct ladder_plan *plan, const struct arrays *arrays,
                  const struct limits *limits, bool warm,
                  struct ladder *ladder)
{
    const struct kernels *kernels = kernels_best();
    struct rung_kind kinds[RUNGS_MAX];
    const bool single = plan->rows == 1 && plan->heads == 0;
    ladder->count = plan->heads > 0 ? kinds_of_attention(kinds)
        : kinds_of_layer(steps_of(kernels), single, kinds);
    const struct limit limit[2] = {
        limits_measure(limits, 1, &plan->watch),
        limits_measure(limits, plan->threads, &plan->watch)};
    for (int k = 0; k < ladder->count; k++) {
        struct rung *rung = &ladder->rungs[k];
        const struct limit *of = &limit[kinds[k].threads];
        rung->name = kinds[k].name;
        rung->threads = kinds[k].threads ? plan->threads : 1;
        rung->amount = amount_of(plan, kinds[k].form);
        thread_count_use(rung->threads);
        const double took = run_rung(&kinds[k], arrays, kernels,
                                     &plan->watch);
        if (warm)
            continue;
        samples_add(&rung->rates, rung->amount / took);
        samples_add(&rung->fractions, rung->amount / took
                    / (single ? of->bytes : of->flops));
    }
}

enum status ladder_measure(const struct ladder_plan *plan,
                           struct ladder *ladder, struct error *error)
{
    struct arrays arrays = {0};
    struct limits *limits = NULL;
    struct ladder climbed = {0};
    enum status status = check_plan(plan, error);
    if (status == STATUS_OK)
        status = limits_new(&limits, plan->limit_bytes, error);
    if (status == STATUS_OK)
        status = (plan->heads > 0 ? take_attention : take_arrays)(
            plan, &arrays, error);
    if (status == STATUS_OK) {
        for (int round = -1; round < plan->rounds; round++)
            climb(plan, &arrays, limits, round < 0, &climbed);
        *ladder = climbed;
    }
    free_arrays(&arrays);
    limits_free(&limits);
    return status;
}
