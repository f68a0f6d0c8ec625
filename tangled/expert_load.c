#include "expert_load.h"

void expert_load_add(struct expert_load *load,
                     const struct moe_routing *routing)
{
    const ptrdiff_t count = (ptrdiff_t)routing->rows * routing->chosen;
    for (ptrdiff_t n = 0; n < count; n++)
        load->routed[routing->experts[n]]++;
    for (int e = 0; e < routing->n_experts; e++)
        load->kept[e] += (size_t)(routing->offsets[e + 1]
                                  - routing->offsets[e]);
}

size_t expert_load_sum(const size_t *counts, int n_experts)
{
    size_t sum = 0;
    for (int e = 0; e < n_experts; e++)
        sum += counts[e];
    return sum;
}

double expert_load_peak(const size_t *counts, int n_experts)
{
    const size_t sum = expert_load_sum(counts, n_experts);
    size_t most = 0;
    for (int e = 0; e < n_experts; e++)
        if (counts[e] > most)
            most = counts[e];
    return sum == 0 ? 0 : (double)most * n_experts / (double)sum;
}
