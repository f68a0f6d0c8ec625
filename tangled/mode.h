#ifndef MODE_H
#define MODE_H
#include "model.h"

/* Training is the mode in which forward drops elements. A new model
   evaluates. (Seed: train() and eval().) */
enum mode { MODE_EVALUATION, MODE_TRAINING };
enum mode tiny_gpt_mode(const struct tiny_gpt *model);
void tiny_gpt_set_mode(struct tiny_gpt *model, enum mode mode);
#endif
