#include "command_pack.h"
#include <stdio.h>
#include "engine_choice.h"
#include "engine_load.h"

struct options { const char *model, *out; struct engine_choice choice; };

static int read_options(const struct command *command, int argc, char **argv,
                        struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--out", &value))
            status = command_text(command, "--out", value, &options->out);
        else if (!engine_option(command, argc, argv, &i, &options->choice,
                                &status))
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL || options->out == NULL))
        status = command_usage_error(command,
            "--model PATH and --out FILE.panels are needed");
    if (status == 0 && !engine_is_panels(options->out))
        status = command_usage_error(command,
            "--out: expected a name that ends in .panels, got %s",
            options->out);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {0};
    struct engine *engine = NULL;
    struct error error;
    const struct kernels *kernels;
    enum matrix_type type = MATRIX_F32;
    int exit_status = read_options(command, argc, argv, &options);
    if (exit_status != 0)
        return exit_status;
    enum status status = engine_choose(&options.choice, &kernels, &type,
                                       &error);
    if (status == STATUS_OK)
        status = engine_load(&engine, options.model, &type, kernels, &error);
    if (status == STATUS_OK)
        status = engine_save(engine, options.out, &error);
    if (status == STATUS_OK)
        printf("%s: %zu bytes of weights in %s\n", options.out,
               engine_bytes(engine), matrix_type_name(type));
    engine_free(&engine);
    return status == STATUS_OK ? 0 : command_failure(command, &error);
}

const struct command command_pack = {
    "pack", "store a model's weights as the kernels read them",
    "usage: tinygpt pack --model PATH --out FILE.panels [--weights TYPE]\n"
    "                    [--threads N]\n"
    "\n"
    "Writes a safetensors file of panels, which the other commands map as\n"
    "it is: --model FILE.panels. The tokenizer is looked for beside it.\n"
    "\n"
    "  --weights TYPE  f32 (default: the same bits), bf16 (half the bytes)\n"
    "                  or int8 (a quarter, and a scale for 32 weights)\n",
    run
};
