#include "command_rope.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "generator.h"
#include "rope_study.h"

enum { TEXT_MAX = 256, OFFSET_MAX = 1000000 };

struct options {
    int prompt, steps;
    bool shift, json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--prompt", &value))
            status = command_int(command, "--prompt", value, 1, TEXT_MAX - 1,
                                 &options->prompt);
        else if (command_option(argc, argv, &i, "--steps", &value))
            status = command_int(command, "--steps", value, 1, TEXT_MAX - 1,
                                 &options->steps);
        else if (strcmp(argv[i], "--shift") == 0)
            options->shift = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    const bool text = options->prompt > 0 && options->steps > 0;
    const bool any = options->prompt > 0 || options->steps > 0;
    if (status == 0 && (options->shift ? any : !text))
        status = command_usage_error(command, "expected --prompt P and"
                                     " --steps T, or --shift");
    return status;
}

static void print_steps(const struct options *options,
                        const struct rope_run *counted,
                        const struct rope_run *reset)
{
    if (options->json)
        printf("{\"prompt\": %d, \"bytes_written\": {\"counted\": %zu,"
               " \"reset\": %zu}, \"steps\": [", options->prompt,
               counted->bytes_written, reset->bytes_written);
    else
        printf("# bytes of keys and values written: %zu counted, %zu reset\n"
               "step  position  counted  reset\n", counted->bytes_written,
               reset->bytes_written);
    for (int k = 0; k < options->steps; k++)
        if (options->json)
            printf("%s{\"position\": %d, \"counted\": %.9g, \"reset\":"
                   " %.9g}", k == 0 ? "" : ", ", options->prompt + k,
                   counted->errors[k], reset->errors[k]);
        else
            printf("%4d  %8d  %7.3g  %5.3g\n", k, options->prompt + k,
                   counted->errors[k], reset->errors[k]);
    if (options->json)
        printf("]}\n");
}

static enum status text_errors(const struct options *options,
                               struct error *error)
{
    int32_t ids[2 * TEXT_MAX];
    double errors[2][TEXT_MAX];
    struct rope_run counted = {errors[0], 0}, reset = {errors[1], 0};
    struct llama *model = NULL;
    struct generator generator;
    generator_seed(&generator, 13, 2);
    for (int t = 0; t < options->prompt + options->steps; t++)
        ids[t] = (int32_t)(generator_next(&generator) % 23);
    enum status status = rope_study_model(&model, error);
    if (status == STATUS_OK)
        status = rope_step_errors(model, ids, options->prompt, options->steps,
                                  &counted, &reset, error);
    if (status == STATUS_OK)
        print_steps(options, &counted, &reset);
    llama_free(&model);
    return status;
}

static enum status shift_errors(const struct options *options,
                                struct error *error)
{
    (void)error;
    printf(options->json ? "{\"offsets\": ["
                         : " offset   double    float  float's bound\n");
    for (int32_t offset = 1; offset <= OFFSET_MAX; offset *= 10) {
        const struct rope_shift shift = rope_shift_errors(offset);
        const double bound = (offset + SHIFT_DISTANCE_MAX) / 8388608.0;
        if (options->json)
            printf("%s{\"offset\": %d, \"double\": %.9g, \"float\": %.9g,"
                   " \"bound\": %.9g}", offset == 1 ? "" : ", ", (int)offset,
                   shift.doubles, shift.floats, bound);
        else
            printf("%7d  %7.2g  %7.2g  %13.2g\n", (int)offset, shift.doubles,
                   shift.floats, bound);
    }
    printf(options->json ? "]}\n" : "");
    return STATUS_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {0};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    if ((options.shift ? shift_errors : text_errors)(&options, &error)
        != STATUS_OK)
        return command_failure(command, &error);
    return 0;
}

const struct command command_rope = {
    "rope", "what positions do to a model that turns its keys",
    "usage: tinygpt rope --prompt P --steps T [--json]\n"
    "       tinygpt rope --shift [--json]\n"
    "\n"
    "Decodes T tokens behind a prompt of P with a small random model, each\n"
    "at its position and each at position 0, and prints the largest error\n"
    "of each token's logits against one call over the whole text (P + T at\n"
    "most 256), below the bytes of keys and values that each run wrote.\n"
    "\n"
    "  --shift  move queries and keys by offsets up to 10^6 instead: the\n"
    "           largest change of a dot product by |q||k|, with angles in\n"
    "           double and in float, and the bound for float\n"
    "  --json   the same as JSON\n",
    run
};
