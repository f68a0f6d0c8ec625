#ifndef EXPERT_STUDY_H
#define EXPERT_STUDY_H

#include "llama_experts.h"

struct expert_options {
    int n_experts, chosen, tokens;    /* E; k; T of one call */
    double skew;      /* what the shared direction adds to the logit of the
                         first expert, and takes from the last one's */
    double factor;    /* of the capacity; 0: no limit */
};

/* A small random model: V 256, N 2048, C 32, L 2, H 4, Hk 2, D 8, F 48. */
struct expert_study {
    struct llama_size size;
    int n_layers, n_experts, capacity;    /* L, E; 0: no limit */
    size_t *routed, *kept;    /* [L,E]; expert_study_free */
};

/* Runs one call of random tokens. The model routes without a limit, and each
   layer's choices are dispatched once more with the capacity. Refuses what a
   config, a step and moe_capacity refuse; on error *study is unchanged. */
enum status expert_study_run(const struct expert_options *options,
                             struct expert_study *study,
                             struct error *error);
void expert_study_free(struct expert_study *study);

#endif
