#include "moe_backward.h"
#include <string.h>
#include "layers_backward.h"
#include "llama_layers_backward.h"
#include "vector.h"

void moe_combine_backward(const struct moe_routing *routing,
                          const float *made, const float *d_out, int width,
                          float *d_made, float *d_gates)
{
    const int32_t *place = routing->places;
    const float *gate = routing->gates;
    const size_t count = (size_t)width;
    for (int row = 0; row < routing->rows; row++, d_out += width)
        for (int j = 0; j < routing->chosen; j++, place++, gate++) {
            *d_gates = 0;
            if (*place != MOE_DROPPED) {
                const ptrdiff_t at = (ptrdiff_t)*place * width;
                *d_gates = vector_dot(made + at, d_out, count);
                memset(d_made + at, 0, count * sizeof *d_made);
                vector_add_scaled(d_made + at, *gate, d_out, count);
            }
            d_gates++;
        }
}

void moe_expert_backward(const struct moe_expert *expert, const float *in,
                         const struct moe_hidden *kept, const float *d_out,
                         int rows, const struct moe_hidden *d, float *d_in,
                         struct moe_expert *gradients)
{
    const size_t count = (size_t)rows * (size_t)expert->w1.weight.shape[0];
    memset(d->gated, 0, count * sizeof (float));
    memset(d->gate, 0, count * sizeof (float));
    memset(d->up, 0, count * sizeof (float));
    linear_backward(&expert->w2, kept->gated, d_out, rows, d->gated,
                    &gradients->w2);
    swiglu_backward(kept->gate, kept->up, d->gated, count, d->gate, d->up);
    linear_backward(&expert->w1, in, d->gate, rows, d_in, &gradients->w1);
    linear_backward(&expert->w3, in, d->up, rows, d_in, &gradients->w3);
}

void moe_gather_backward(const struct moe_routing *routing,
                         const float *d_gathered, int width, float *d_in)
{
    const int32_t *place = routing->places;
    for (int row = 0; row < routing->rows; row++, d_in += width)
        for (int j = 0; j < routing->chosen; j++, place++) {
            if (*place != MOE_DROPPED)
                vector_add_scaled(d_in, 1, d_gathered + (ptrdiff_t)*place * width,
                                  (size_t)width);
        }
}

void moe_route_backward(const struct moe_routing *routing,
                        const float *d_gates, float *d_logits)
{
    const int chosen = routing->chosen, count = routing->n_experts;
    const float *gates = routing->gates;
    const int32_t *experts = routing->experts;
    for (int row = 0; row < routing->rows; row++) {
        const float mean = vector_dot(gates, d_gates, (size_t)chosen);
        for (int j = 0; j < chosen; j++) {
            d_logits[experts[j]] += gates[j] * (d_gates[j] - mean);
        }
        gates += chosen, d_gates += chosen, experts += chosen;
        d_logits += count;
    }
}
