#ifndef KERNEL_STEPS_H
#define KERNEL_STEPS_H

/* A layer of a multiple of PANEL outputs, in three layouts. */
struct step_layer {
    int out, in, rows;
    const float *weight;     /* [O,I] */
    const float *turned;     /* [I,O] */
    const float *panels;     /* of MATRIX_F32 */
    const float *input;      /* [rows,I] */
    float *output;           /* [rows,O] */
};

typedef void kernel_step(const struct step_layer *layer);

struct kernel_steps {
    const char *name;        /* of the kernels with the same lanes */
    kernel_step *one_sum, *eight_sums, *tile, *panels, *blocks;
};

extern const struct kernel_steps kernel_steps_avx512, kernel_steps_avx2,
    kernel_steps_base;

#endif
