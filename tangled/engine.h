#ifndef ENGINE_H
#define ENGINE_H

#include "stack.h"

struct engine;    /* owns its weights; or a file that it maps */

/* Copies and packs the weights of a stack whose matrices are rows. kernels
   runs here, and NULL is the best that does. In 8 bits a weight that is not
   finite is refused, by name. The caller owns *engine: engine_free, which
   nulls it; *engine is unchanged on error. */
enum status engine_new(struct engine **engine, const struct stack *stack,
                       enum matrix_type type, const struct kernels *kernels,
                       struct error *error);
void engine_free(struct engine **engine);

/* Alive as long as the engine. */
struct causal_lm engine_causal_lm(const struct engine *engine);
const struct stack *engine_stack(const struct engine *engine);
enum matrix_type engine_type(const struct engine *engine);
size_t engine_bytes(const struct engine *engine);    /* of all weights */

/* Replaces the file at path, atomically: a safetensors file of panels, with
   the stack's sizes in its metadata. */
enum status engine_save(const struct engine *engine, const char *path,
                        struct error *error);
/* Maps a file that engine_save wrote, and trusts nothing in it: each size is
   checked, each tensor is there with its type and its shape. Whoever makes
   the file shorter while it is mapped ends the process. The caller owns
   *engine; it is unchanged on error. */
enum status engine_open(struct engine **engine, const char *path,
                        const struct kernels *kernels, struct error *error);

#endif
