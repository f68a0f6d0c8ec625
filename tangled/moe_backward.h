#ifndef MOE_BACKWARD_H
#define MOE_BACKWARD_H

#include "moe.h"

/* What is inside of an expert, or its gradients: each [rows,F]. */
struct moe_hidden { float *gate, *up, *gated; };

/* in, d_out [rows,C]. Adds to d_in [rows,C] and gradients; d is overwritten
   and may not be kept. */
void moe_expert_backward(const struct moe_expert *expert, const float *in,
                         const struct moe_hidden *kept, const float *d_out,
                         int rows, const struct moe_hidden *d, float *d_in,
                         struct moe_expert *gradients);

/* made, d_made: a row of C at each place; d_out [R,C]. Writes d_made and
   d_gates [R,k]; a dropped assignment has a gate without influence: 0. */
void moe_combine_backward(const struct moe_routing *routing,
                          const float *made, const float *d_out, int width,
                          float *d_made, float *d_gates);

/* d_gates [R,k]. Adds to d_logits [R,E]. */
void moe_route_backward(const struct moe_routing *routing,
                        const float *d_gates, float *d_logits);

/* d_gathered: a row of C at each place. Adds to d_in [R,C]. */
void moe_gather_backward(const struct moe_routing *routing,
                         const float *d_gathered, int width, float *d_in);

#endif
