#include "engine_load.h"
#include <string.h>
#include "checkpoint.h"

static enum status load_panels(struct engine **engine, const char *path,
                               const enum matrix_type *type,
                               const struct kernels *kernels,
                               struct error *error)
{
    struct engine *opened;
    const enum status status = engine_open(&opened, path, kernels, error);
    if (status != STATUS_OK)
        return status;
    if (type != NULL && engine_type(opened) != *type) {
        engine_free(&opened);
        return error_set(error, STATUS_INVALID, "%.180s: its weights have"
                         " another type than the one asked for", path);
    }
    *engine = opened;
    return STATUS_OK;
}

static enum status load_checkpoint(struct engine **engine, const char *path,
                                   enum matrix_type type,
                                   const struct kernels *kernels,
                                   struct error *error)
{
    struct checkpoint *checkpoint;
    enum status status = checkpoint_open(&checkpoint, path, error);
    if (status != STATUS_OK)
        return status;
    const struct tiny_gpt *gpt = checkpoint_tiny_gpt(checkpoint);
    const struct stack stack = gpt != NULL ? tiny_gpt_stack(gpt)
        : llama_stack(checkpoint_llama(checkpoint));
    status = engine_new(engine, &stack, type, kernels, error);
    checkpoint_close(&checkpoint);
    return status;
}

bool engine_is_panels(const char *path)
{
    static const char end[] = ".panels";
    const size_t length = strlen(path), size = sizeof end - 1;
    return length > size && strcmp(path + length - size, end) == 0;
}

enum status engine_load(struct engine **engine, const char *path,
                        const enum matrix_type *type,
                        const struct kernels *kernels, struct error *error)
{
    if (engine_is_panels(path))
        return load_panels(engine, path, type, kernels, error);
    return load_checkpoint(engine, path, type != NULL ? *type : MATRIX_F32,
                           kernels, error);
}
