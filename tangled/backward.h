#ifndef BACKWARD_H
#define BACKWARD_H

#include "model.h"

/* Adds the gradient of output->loss in every parameter to gradients, which
   has the model's config (a tied table receives both of its gradients).
   input and output are those of the forward call: labels set, no past;
   activations are the ones that the call recorded, dropout masks included.
   Refuses, by name, what does not belong together, and STATUS_NO_MEMORY;
   gradients are unchanged on error. */
enum status tiny_gpt_backward(const struct tiny_gpt *model,
                              const struct forward_input *input,
                              const struct activations *activations,
                              const struct forward_output *output,
                              struct parameters *gradients,
                              struct error *error);

#endif
