#include "command_experts.h"
#include <stdio.h>
#include <string.h>
#include "expert_load.h"
#include "expert_study.h"

static int read_options(const struct command *command, int argc,
                        char **argv, struct expert_options *options,
                        bool *json)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--experts", &value))
            status = command_int(command, "--experts", value, 1, 1024,
                                 &options->n_experts);
        else if (command_option(argc, argv, &i, "--choose", &value))
            status = command_int(command, "--choose", value, 1, 1024,
                                 &options->chosen);
        else if (command_option(argc, argv, &i, "--tokens", &value))
            status = command_int(command, "--tokens", value, 1, 2048,
                                 &options->tokens);
        else if (command_option(argc, argv, &i, "--skew", &value))
            status = command_double(command, "--skew", value, &options->skew);
        else if (command_option(argc, argv, &i, "--capacity", &value))
            status = command_double(command, "--capacity", value,
                                    &options->factor);
        else if (strcmp(argv[i], "--json") == 0)
            *json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    return status;
}

static void print_layer(const struct expert_study *study, int layer)
{
    const int experts = study->n_experts;
    const size_t *routed = study->routed + (ptrdiff_t)layer * experts;
    const size_t *kept = study->kept + (ptrdiff_t)layer * experts;
    const size_t all = expert_load_sum(routed, experts);
    for (int e = 0; e < experts; e++)
        printf("%5d  %6d  %6zu  %6zu\n", layer, e, routed[e], kept[e]);
    printf("# layer %d: maximum to mean %.3f routed, %.3f kept; %zu of %zu"
           " dropped\n", layer, expert_load_peak(routed, experts),
           expert_load_peak(kept, experts),
           all - expert_load_sum(kept, experts), all);
}

static void print_counts(const char *name, const size_t *counts, int experts)
{
    printf("\"%s\": [", name);
    for (int e = 0; e < experts; e++)
        printf("%s%zu", e > 0 ? ", " : "", counts[e]);
    printf("], \"%s_max_to_mean\": %.9g", name,
           expert_load_peak(counts, experts));
}

static void print_layer_json(const struct expert_study *study, int layer)
{
    const ptrdiff_t first = (ptrdiff_t)layer * study->n_experts;
    printf("%s{", layer > 0 ? ",\n " : "\n ");
    print_counts("routed", study->routed + first, study->n_experts);
    printf(", ");
    print_counts("kept", study->kept + first, study->n_experts);
    printf("}");
}

static void print_study(const struct expert_study *study, bool json)
{
    printf(json ? "{\"total_parameters\": %zu, \"active_parameters\": %zu,"
                  " \"capacity\": %d, \"layers\": ["
                : "# parameters: %zu stored, %zu active for a token;"
                  " capacity %d\nlayer  expert  routed    kept\n",
           study->size.total, study->size.active, study->capacity);
    for (int l = 0; l < study->n_layers; l++)
        (json ? print_layer_json : print_layer)(study, l);
    printf(json ? "\n]}\n" : "");
}

static int run(const struct command *command, int argc, char **argv)
{
    struct expert_options options = {.n_experts = 8, .chosen = 2,
                                     .tokens = 512};
    struct expert_study study;
    struct error error;
    bool json = false;
    const int status = read_options(command, argc, argv, &options, &json);
    if (status != 0)
        return status;
    if (expert_study_run(&options, &study, &error) != STATUS_OK)
        return command_failure(command, &error);
    print_study(&study, json);
    expert_study_free(&study);
    return 0;
}

const struct command command_experts = {
    "experts", "how evenly a router loads its experts",
    "usage: tinygpt experts [--experts E] [--choose K] [--tokens T]\n"
    "                       [--skew S] [--capacity F] [--json]\n"
    "\n"
    "Runs one call of T random tokens (512) through a small random model\n"
    "with E experts (8) in each of 2 layers, of which a token chooses K\n"
    "(2). Prints the parameters that are stored and those that a token\n"
    "uses, and for each layer the assignments of each expert, and the\n"
    "largest number over the mean.\n"
    "\n"
    "  --skew S      let what all tokens share add S to the first expert's\n"
    "                logit, and take it from the last one's (0)\n"
    "  --capacity F  an expert keeps F times its even share (0: all)\n"
    "  --json        the same as JSON\n",
    run
};
