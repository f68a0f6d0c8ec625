#ifndef ENGINE_CHOICE_H
#define ENGINE_CHOICE_H

#include "command.h"
#include "engine.h"

struct engine_choice {           /* zero-initialise */
    const char *kernels;         /* NULL: TINYGPT_KERNELS, or the fastest */
    const char *weights;         /* NULL: f32 */
    int threads;                 /* 0: as OpenMP is set */
};

/* Whether argv[*i] is one of the options; then *status is 0, or the exit
   status after a message. */
bool engine_option(const struct command *command, int argc, char **argv,
                   int *i, struct engine_choice *choice, int *status);

/* Sets OpenMP's threads; refuses names that nobody has, by the option or the
   variable that said them. *kernels and *type are unchanged on error. */
enum status engine_choose(const struct engine_choice *choice,
                          const struct kernels **kernels,
                          enum matrix_type *type, struct error *error);

/* "f32", "bf16", "int8" */
const char *matrix_type_name(enum matrix_type type);

#endif
