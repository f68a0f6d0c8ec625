#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "bench_work.h"
#include "engine.h"

struct bench_shape {
    char name[64];
    bool gated;                     /* of the llama family */
    struct gpt_config gpt;          /* one of the two */
    struct llama_config llama;
    struct ownership ownership;
};

/* "gpt2-124m", or sizes "V,C,L,H,Hk,D,F" or "V,C,L,H,Hk,D,F,E,A" of a llama.
   Refuses another name and sizes that no model can have. */
enum status bench_shape_find(struct bench_shape *shape, const char *name,
                             struct error *error);
/* "gpt2-124m, …" */
const char *bench_shape_names(void);

enum bench_weights { WEIGHTS_ROWS, WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_INT8 };
enum { BENCH_WEIGHTS = 4 };

const char *bench_weights_name(enum bench_weights weights);    /* "rows" */
enum matrix_type bench_weights_type(enum bench_weights weights);

struct bench_model {                /* zero-initialise */
    struct bench_shape shape;
    struct tiny_gpt *gpt;           /* one of the two */
    struct llama *llama;
    struct stack rows;              /* views of its weights */
    struct engine *engines[BENCH_WEIGHTS];    /* those that were asked for */
};

/* Closed by the caller, also after an error. */
enum status bench_model_open(struct bench_model *model,
                             const struct bench_shape *shape,
                             struct error *error);
void bench_model_close(struct bench_model *model);
/* Makes the engine, if it is not there. */
enum status bench_model_weights(struct bench_model *model,
                                enum bench_weights weights,
                                struct error *error);
/* Of weights that are there. */
const struct stack *bench_model_stack(const struct bench_model *model,
                                      enum bench_weights weights);
struct on_kernels {
    const struct stack *stack;
    const struct kernels *kernels;
};
/* Borrows *on. */
struct causal_lm on_kernels_causal_lm(const struct on_kernels *on);

#endif
