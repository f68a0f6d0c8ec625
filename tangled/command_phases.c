#include "command_phases.h"
#include <stdlib.h>
#include <string.h>
#include "cache_bytes.h"
#include "held.h"
#include "phase_print.h"
#include "checkpoint.h"

struct options {
    const char *model, *shape;
    struct phase_plan plan;
    int element_bytes;
    bool predict, machine, owners, sweep, json;
};

static bool read_flag(const char *word, struct options *options)
{
    const struct { const char *name; bool *flag; } flags[] = {
        {"--predict", &options->predict}, {"--machine", &options->machine},
        {"--owners", &options->owners}, {"--sweep", &options->sweep},
        {"--json", &options->json}
    };
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
        if (strcmp(word, flags[k].name) == 0)
            return *flags[k].flag = true;
    return false;
}

static bool read_number(const struct command *command, int argc, char **argv,
                        int *i, struct options *options, int *status)
{
    struct phase_plan *plan = &options->plan;
    const struct { const char *name; int most, *number; } numbers[] = {
        {"--batch", 4096, &plan->batch},
        {"--prompt", 1 << 20, &plan->prompt},
        {"--steps", 4096, &plan->steps},
        {"--repeats", 1000, &plan->repeats},
        {"--element-bytes", 8, &options->element_bytes}
    };
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        const char *value;
        if (!command_option(argc, argv, i, numbers[k].name, &value))
            continue;
        *status = command_int(command, numbers[k].name, value, 1,
                              numbers[k].most, numbers[k].number);
        return true;
    }
    return false;
}

static int read_options(const struct command *command, int argc, char **argv,
                        struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--llama", &value))
            status = command_text(command, "--llama", value, &options->shape);
        else if (!read_flag(argv[i], options)
                 && !read_number(command, argc, argv, &i, options, &status))
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL) == (options->shape == NULL))
        status = command_usage_error(command, "either --model or --llama is"
                                     " needed");
    if (status == 0 && options->owners && options->sweep)
        status = command_usage_error(command, "--owners and --sweep are two"
                                     " questions");
    return status;
}

struct subject {
    const char *name;
    struct ownership ownership;
    struct llama_config config;      /* of a shape */
    struct llama *llama;             /* one of the two, or none */
    struct causal_lm lm;
    struct checkpoint *checkpoint;
};

static enum status subject_open(struct subject *subject, const char *path,
                                struct error *error)
{
    enum status status = checkpoint_open(&subject->checkpoint, path, error);
    if (status != STATUS_OK)
        return status;
    subject->lm = checkpoint_causal_lm(subject->checkpoint);
    const struct tiny_gpt *gpt = checkpoint_tiny_gpt(subject->checkpoint);
    const struct llama *llama = checkpoint_llama(subject->checkpoint);
    return gpt != NULL
        ? ownership_of_gpt(&subject->ownership, tiny_gpt_config(gpt), error)
        : ownership_of_llama(&subject->ownership, llama_config(llama), error);
}

static void subject_close(struct subject *subject)
{
    checkpoint_close(&subject->checkpoint);
    llama_free(&subject->llama);
}

/* Entries of the registry; list may be NULL. */
static size_t subject_tensors(const struct subject *subject,
                              struct held_tensor *list)
{
    struct tiny_gpt *gpt = checkpoint_tiny_gpt(subject->checkpoint);
    const struct llama *llama = checkpoint_llama(subject->checkpoint);
    if (list == NULL)
        return gpt != NULL ? (size_t)tiny_gpt_weights(gpt)->count
                           : llama_tensor_count(llama);
    return gpt != NULL ? held_by_gpt(tiny_gpt_weights(gpt), list)
                       : held_by_llama(llama, list);
}

enum { SHAPE_CONTEXT = 1 << 21 };

static int subject_shape(const struct command *command,
                         struct subject *subject, const char *text)
{
    int32_t *n = NULL;
    int count = 0;
    struct error error;
    int status = command_ids(command, "--llama", text, &n, &count);
    if (status == 0 && count != 7 && count != 9)
        status = command_usage_error(command, "--llama: expected 7 or 9"
                                     " numbers, got %d", count);
    if (status == 0) {
        subject->config = (struct llama_config){
            .vocab_size = n[0], .context_length = SHAPE_CONTEXT,
            .d_model = n[1], .n_layers = n[2], .n_heads = n[3],
            .n_kv_heads = n[4], .head_dim = n[5], .d_ff = n[6],
            .n_experts = count == 9 ? n[7] : 0,
            .experts_per_token = count == 9 ? n[8] : 0,
            .rms_norm_eps = 1e-5, .rope_theta = 10000
        };
        if (ownership_of_llama(&subject->ownership, &subject->config, &error)
            != STATUS_OK)
            status = command_failure(command, &error);
    }
    free(n);
    return status;
}

static enum status subject_make(struct subject *subject, struct error *error)
{
    const enum status status = llama_new(&subject->llama, &subject->config,
                                         error);
    if (status != STATUS_OK)
        return status;
    for (size_t k = 0; k < llama_tensor_count(subject->llama); k++) {
        const struct tensor *tensor =
            llama_tensor_at(subject->llama, k)->tensor;
        for (size_t j = 0; j < tensor_size(tensor); j++)
            tensor->data[j] = (float)((int)(j % 61) - 30) / 1024;
    }
    subject->lm = llama_causal_lm(subject->llama);
    return STATUS_OK;
}

static enum status show_phases(const struct options *options,
                               struct subject *subject, struct error *error)
{
    const struct stopwatch watch = stopwatch_monotonic();
    struct phase_report report = {
        .model = subject->name, .plan = options->plan,
        .timed = !options->predict, .machine_known = options->machine
    };
    enum status status = phase_predict(&subject->ownership, &report, error);
    if (status == STATUS_OK && report.timed && subject->lm.run == NULL)
        status = subject_make(subject, error);
    if (status == STATUS_OK && report.timed)
        status = phase_time(&subject->lm, &report.plan, &watch,
                            &report.seconds, error);
    if (status == STATUS_OK && report.machine_known)
        status = machine_measure((size_t)1 << 28, 0.5, &report.machine,
                                 error);
    if (status == STATUS_OK)
        (options->json ? phase_print_json : phase_print_text)(stdout,
                                                              &report);
    return status;
}

static enum status show_owners(const struct options *options,
                               const struct subject *subject,
                               struct error *error)
{
    const struct ownership *ownership = &subject->ownership;
    void (*const print)(FILE *, const struct ownership *,
                        const struct holding *) =
        options->json ? ownership_print_json : ownership_print_text;
    if (options->model == NULL) {
        print(stdout, ownership, NULL);
        return STATUS_OK;
    }
    const size_t count = subject_tensors(subject, NULL);
    struct held_tensor *list = calloc(count, sizeof *list);
    if (list == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a list of %zu tensors", count);
    subject_tensors(subject, list);
    const struct holding held = ownership_hold(ownership, list, count);
    const enum status status = ownership_check(ownership, list, count, error);
    print(stdout, ownership, &held);
    free(list);
    return status;
}

static enum status show_sweep(const struct options *options,
                              const struct subject *subject,
                              struct error *error)
{
    const int heads = subject->ownership.n_heads;
    const struct phase_plan *plan = &options->plan;
    const char *between = "";
    printf(options->json ? "{\"groupings\": ["
                         : "      key heads  heads a group  bytes\n");
    for (int kv = heads; kv > 0; kv = grouping_next(heads, kv)) {
        size_t bytes = 0;
        const enum status status = grouped_cache_bytes(
            &subject->ownership.cache, heads, kv, plan->batch, plan->prompt,
            (size_t)options->element_bytes, &bytes, error);
        if (status != STATUS_OK)
            return status;
        printf(options->json
               ? "%s\n  {\"name\": \"%s\", \"kv_heads\": %d, \"group\": %d,"
                 " \"bytes\": %zu}"
               : "%.0s%s  %10d  %13d  %zu\n", between,
               grouping_name(heads, kv), kv, heads / kv, bytes);
        between = ",";
    }
    printf(options->json ? "]}\n" : "");
    return STATUS_OK;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {
        .plan = {1, 64, PHASE_DECODE_STEPS, 5}, .element_bytes = 4
    };
    struct subject subject = {0};
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    subject.name = options.model != NULL ? options.model : options.shape;
    if (options.shape != NULL)
        status = subject_shape(command, &subject, options.shape);
    else if (subject_open(&subject, options.model, &error) != STATUS_OK)
        status = command_failure(command, &error);
    if (status == 0
        && (options.owners ? show_owners(&options, &subject, &error)
            : options.sweep ? show_sweep(&options, &subject, &error)
                            : show_phases(&options, &subject, &error))
           != STATUS_OK)
        status = command_failure(command, &error);
    subject_close(&subject);
    return status;
}

const struct command command_phases = {
    "phases", "what prefill and decode should take, and what they take",
    "usage: tinygpt phases --model PATH [OPTION...]\n"
    "       tinygpt phases --llama V,C,L,H,Hk,D,F[,E,A] [OPTION...]\n"
    "\n"
    "Predicts the matrix products, operations and bytes of a prompt and of\n"
    "the steps behind it from the config, then times both (the least of R\n"
    "runs, one thread). --llama takes a shape and made-up weights, with E\n"
    "experts, A for a token, in place of one feed-forward layer. Operations\n"
    "are two a multiply-add. Bytes are the least that can be: every weight\n"
    "once a call, the cache read and written, rows that enter, logits.\n"
    "\n"
    "  --batch B          rows (1)\n"
    "  --prompt T         tokens of the prompt (64)\n"
    "  --steps K          decoded tokens (32)\n"
    "  --repeats R        runs (5)\n"
    "  --predict          do not run the model\n"
    "  --machine          measure this machine, too: bandwidth and peak\n"
    "  --owners           print parameters by owner instead, predicted and\n"
    "                     as the model has them\n"
    "  --sweep            print the bytes of the cache instead, with every\n"
    "                     grouping of the heads, for B rows of T tokens\n"
    "  --element-bytes E  of an element of the sweep's cache (4)\n"
    "  --json             the same as JSON\n",
    run
};
