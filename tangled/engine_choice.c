#include "engine_choice.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024 };

bool engine_option(const struct command *command, int argc, char **argv,
                   int *i, struct engine_choice *choice, int *status)
{
    const char *value;
    if (command_option(argc, argv, i, "--kernels", &value))
        *status = command_text(command, "--kernels", value, &choice->kernels);
    else if (command_option(argc, argv, i, "--weights", &value))
        *status = command_text(command, "--weights", value, &choice->weights);
    else if (command_option(argc, argv, i, "--threads", &value))
        *status = command_int(command, "--threads", value, 1, THREADS_MAX,
                              &choice->threads);
    else
        return false;
    return true;
}

static enum status choose_kernels(const struct engine_choice *choice,
                                  const struct kernels **kernels,
                                  struct error *error)
{
    const char *source = "--kernels", *name = choice->kernels;
    const struct kernels *tables[KERNELS_MAX];
    if (name == NULL) {
        source = "TINYGPT_KERNELS";
        name = getenv(source);
    }
    if (name == NULL || name[0] == '\0') {
        *kernels = kernels_best();
        return STATUS_OK;
    }
    *kernels = kernels_named(name);
    const int count = kernels_available(tables);
    return *kernels != NULL ? STATUS_OK
        : error_set(error, STATUS_INVALID, "%s: expected one of the %d tables"
                    " that run here, %s to %s, got %.40s", source, count,
                    tables[0]->name, tables[count - 1]->name, name);
}

static const char *const type_names[] = {
    [MATRIX_F32] = "f32", [MATRIX_BF16] = "bf16", [MATRIX_INT8] = "int8"
};

const char *matrix_type_name(enum matrix_type type)
{
    return type_names[type];
}

static enum status choose_type(const struct engine_choice *choice,
                               enum matrix_type *type, struct error *error)
{
    if (choice->weights == NULL)
        return STATUS_OK;
    for (int t = MATRIX_F32; t <= MATRIX_INT8; t++)
        if (strcmp(choice->weights, type_names[t]) == 0) {
            *type = (enum matrix_type)t;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INVALID, "--weights: expected f32, bf16 or"
                     " int8, got %.40s", choice->weights);
}

enum status engine_choose(const struct engine_choice *choice,
                          const struct kernels **kernels,
                          enum matrix_type *type, struct error *error)
{
    const struct kernels *table = NULL;
    enum matrix_type made = MATRIX_F32;
    enum status status = choose_kernels(choice, &table, error);
    if (status == STATUS_OK)
        status = choose_type(choice, &made, error);
    if (status != STATUS_OK)
        return status;
    if (choice->threads > 0)
        omp_set_num_threads(choice->threads);
    *kernels = table;
    *type = made;
    return STATUS_OK;
}
