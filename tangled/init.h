#ifndef INIT_H
#define INIT_H
#include "generator.h"
#include "parameters.h"

/* Weights N(0, 0.02), those that write to the residual stream scaled by
   1/sqrt(2L); norms 1; biases 0. Draws in the order of the registry. */
void parameters_init(struct parameters *parameters,
                     struct generator *generator);
#endif
