#ifndef MOE_H
#define MOE_H

#include <stddef.h>
#include <stdint.h>
#include "parameters.h"

struct moe_expert { struct linear w1, w3, w2; };   /* [F,C] [F,C] [C,F] */

struct moe {
    struct linear gate;             /* the router, [E,C], no bias */
    struct moe_expert *experts;     /* [E] */
};

struct moe_routing {
    int rows, n_experts, chosen;    /* R, E, k */
    int capacity;        /* of an expert, in assignments; 0: no limit */
    float *probs;        /* [R,E] logits, then probabilities */
    int32_t *experts;    /* [R,k] the first choice first */
    float *gates;        /* [R,k] of a row: their sum is 1 */
    int32_t *places;     /* [R,k] row of the gathered; MOE_DROPPED */
    int32_t *offsets;    /* [E+1] expert e has the places offsets[e] …
                            offsets[e+1]-1 */
};

enum { MOE_DROPPED = -1 };

/* Refuses, by name: sizes below 1 (0 rows are fine), more choices than
   experts, assignments that are more than an int32_t counts, and a capacity
   below 0. The functions below rely on it. */
enum status moe_routing_check(const struct moe_routing *routing,
                              struct error *error);

/* B·k, the assignments for each of the T tokens of a row; SIZE_MAX when all
   B·T·k are more than an int32_t counts. tokens >= 1. */
size_t moe_assignments(int batch, int tokens, int chosen);

/* The capacity of an expert: its even share of R·k assignments times the
   factor, rounded up, and at least 1. Factor 0: no limit, and 0. Refuses a
   factor that is negative or not finite. */
enum status moe_capacity(double factor, int rows, int n_experts, int chosen,
                         int *capacity, struct error *error);

/* probs: from logits to probabilities. Then the k experts of each row that
   have the largest ones, of equals the one with the lowest number; and their
   gates. A row with a NaN has NaN for gates, and chooses 0 … k-1. */
void moe_route(struct moe_routing *routing);

/* Which row of the gathered each assignment has. All first choices come
   before all second ones, each in the order of rows; what finds its expert
   full is dropped. */
void moe_dispatch(struct moe_routing *routing);

/* gathered [places,C]: the rows of in [R,C], grouped by expert. */
void moe_gather(const struct moe_routing *routing, const float *in,
                int width, float *gathered);

/* out [rows,C] may be in; gate and up [rows,F] are scratch. */
void moe_expert_forward(const struct moe_expert *expert, const float *in,
                        int rows, float *gate, float *up, float *out);

/* out [R,C]: for each row the sum of gate times made [places,C], over its
   choices from the first to the last. A dropped one adds nothing. */
void moe_combine(const struct moe_routing *routing, const float *made,
                 int width, float *out);

struct moe_room { float *gathered, *gate, *up; };   /* [R·k,C] [R,F] [R,F] */

/* All of it: out [R,C] from in [R,C]. They do not overlap. */
void moe_forward(const struct moe *moe, const float *in,
                 struct moe_routing *routing, const struct moe_room *room,
                 float *out);

#endif
