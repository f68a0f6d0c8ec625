#include "moe.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include "linear.h"
#include "swiglu.h"

enum status moe_routing_check(const struct moe_routing *routing,
                              struct error *error)
{
    const int rows = routing->rows, chosen = routing->chosen;
    if (rows < 0)
        return error_set(error, STATUS_INVALID,
                         "rows: expected at least 0, got %d", rows);
    if (routing->n_experts < 1)
        return error_set(error, STATUS_INVALID,
                         "n_experts: expected at least 1, got %d",
                         routing->n_experts);
    if (chosen < 1 || chosen > routing->n_experts)
        return error_set(error, STATUS_INVALID,
                         "chosen: expected 1 to n_experts %d, got %d",
                         routing->n_experts, chosen);
    if (rows > INT32_MAX / chosen)
        return error_set(error, STATUS_INVALID,
                         "rows, chosen: expected at most %d assignments, got"
                         " %d * %d", (int)INT32_MAX, rows, chosen);
    if (routing->capacity < 0)
        return error_set(error, STATUS_INVALID,
                         "capacity: expected at least 0, got %d",
                         routing->capacity);
    return STATUS_OK;
}

size_t moe_assignments(int batch, int tokens, int chosen)
{
    const size_t each = (size_t)batch * (size_t)chosen;
    if (each > 0 && each > (size_t)INT32_MAX / (size_t)tokens)
        return SIZE_MAX;
    return each;
}

enum status moe_capacity(double factor, int rows, int n_experts, int chosen,
                         int *capacity, struct error *error)
{
    if (!(factor >= 0 && isfinite(factor)))
        return error_set(error, STATUS_INVALID,
                         "capacity factor: expected 0 or a positive finite"
                         " number, got %g", factor);
    const double share = ceil(factor * rows * chosen / n_experts);
    *capacity = factor == 0 ? 0 : share < 1 ? 1
                : share > rows ? rows : (int)share;
    return STATUS_OK;
}

static void softmax(float *row, int count)
{
    float max = -INFINITY;
    for (int e = 0; e < count; e++)
        if (row[e] > max)
            max = row[e];
    double sum = 0;
    for (int e = 0; e < count; e++) {
        row[e] = row[e] == max ? 1 : expf(row[e] - max);
        sum += row[e];
    }
    for (int e = 0; e < count; e++)
        row[e] = (float)(row[e] / sum);
}

static int32_t choose(const float *probs, int count, const int32_t *before,
                      int chosen)
{
    int32_t best = -1;
    for (int32_t e = 0; e < count; e++) {
        bool taken = false;
        for (int j = 0; j < chosen; j++)
            taken = taken || before[j] == e;
        if (!taken && (best < 0 || probs[e] > probs[best]))
            best = e;
    }
    return best;
}

void moe_route(struct moe_routing *routing)
{
    const int count = routing->n_experts, chosen = routing->chosen;
    float *probs = routing->probs, *gates = routing->gates;
    int32_t *experts = routing->experts;
    for (int row = 0; row < routing->rows; row++) {
        softmax(probs, count);
        double sum = 0;
        for (int j = 0; j < chosen; j++) {
            experts[j] = choose(probs, count, experts, j);
            sum += probs[experts[j]];
        }
        for (int j = 0; j < chosen; j++)
            gates[j] = (float)(probs[experts[j]] / sum);
        probs += count, experts += chosen, gates += chosen;
    }
}

void moe_dispatch(struct moe_routing *routing)
{
    const int chosen = routing->chosen, count = routing->n_experts;
    const int32_t rows = routing->rows, assignments = rows * chosen;
    int32_t *taken = routing->offsets + 1;    /* by expert, to begin with */
    memset(routing->offsets, 0, ((size_t)count + 1) * sizeof *taken);
    for (int32_t k = 0; k < assignments; k++) {
        const int32_t n = k % rows * chosen + k / rows;
        const int32_t e = routing->experts[n];
        const bool full = routing->capacity > 0 && taken[e] == routing->capacity;
        routing->places[n] = full ? MOE_DROPPED : taken[e]++;
    }
    for (int e = 0; e < count; e++)
        routing->offsets[e + 1] += routing->offsets[e];
    for (int32_t n = 0; n < assignments; n++)
        if (routing->places[n] != MOE_DROPPED)
            routing->places[n] += routing->offsets[routing->experts[n]];
}

void moe_gather(const struct moe_routing *routing, const float *in,
                int width, float *gathered)
{
    const int32_t assignments = routing->rows * routing->chosen;
    for (int32_t n = 0; n < assignments; n++) {
        const ptrdiff_t place = routing->places[n];
        if (place != MOE_DROPPED) {
            memcpy(gathered + place * width,
                   in + (ptrdiff_t)(n / routing->chosen) * width,
                   (size_t)width * sizeof *gathered);
        }
    }
}

void moe_expert_forward(const struct moe_expert *expert, const float *in,
                        int rows, float *gate, float *up, float *out)
{
    const size_t count = (size_t)rows * (size_t)expert->w1.weight.shape[0];
    linear_forward(&expert->w1, in, rows, gate);
    linear_forward(&expert->w3, in, rows, up);
    swiglu_forward(gate, up, count, gate);
    linear_forward(&expert->w2, gate, rows, out);
}

void moe_combine(const struct moe_routing *routing, const float *made,
                 int width, float *out)
{
    const int32_t *place = routing->places;
    const float *gate = routing->gates;
    for (int row = 0; row < routing->rows; row++, out += width) {
        memset(out, 0, (size_t)width * sizeof *out);
        for (int j = 0; j < routing->chosen; j++, place++, gate++) {
            if (*place == MOE_DROPPED)
                continue;
            const float *from = made + (ptrdiff_t)*place * width;
            for (int c = 0; c < width; c++)
                out[c] += *gate * from[c];
        }
    }
}

void moe_forward(const struct moe *moe, const float *in,
                 struct moe_routing *routing, const struct moe_room *room,
                 float *out)
{
    const int width = moe->gate.weight.shape[1];
    linear_forward(&moe->gate, in, routing->rows, routing->probs);
    moe_route(routing);
    moe_dispatch(routing);
    moe_gather(routing, in, width, room->gathered);
    for (int e = 0; e < routing->n_experts; e++) {
        const int32_t first = routing->offsets[e];
        const int rows = routing->offsets[e + 1] - first;
        float *own = room->gathered + (ptrdiff_t)first * width;
        moe_expert_forward(&moe->experts[e], own, rows, room->gate,
                           room->up, own);
    }
    moe_combine(routing, room->gathered, width, out);
}
