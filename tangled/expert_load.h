#ifndef EXPERT_LOAD_H
#define EXPERT_LOAD_H

#include "moe.h"

/* Assignments of each expert, added up over calls. Zero-initialise the
   arrays, which are the caller's. */
struct expert_load {
    int n_experts;
    size_t *routed;    /* [E] what the router asked for */
    size_t *kept;      /* [E] what was computed: without the dropped */
};

/* Adds a routing that was dispatched; it has as many experts. */
void expert_load_add(struct expert_load *load,
                     const struct moe_routing *routing);

size_t expert_load_sum(const size_t *counts, int n_experts);
/* The largest count over the mean: 1 when all are equal, E when one has
   everything, 0 when there is nothing. */
double expert_load_peak(const size_t *counts, int n_experts);

#endif
