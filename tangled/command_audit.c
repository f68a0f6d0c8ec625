#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "command_audit.h"
#include "generator.h"
#include "report_print.h"

struct options {
    const char *model, *prompt, *page;
    int prompt_tokens, steps, repeats;
    uint64_t seed;
    struct allclose bound;
    bool machine, untimed, json;
};

static bool read_flag(const char *word, struct options *options)
{
    const struct { const char *name; bool *flag; } flags[] = {
        {"--machine", &options->machine}, {"--untimed", &options->untimed},
        {"--json", &options->json}
    };
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
        if (strcmp(word, flags[k].name) == 0)
            return *flags[k].flag = true;
    return false;
}
static bool read_value(const struct command *command, int argc, char **argv,
                       int *i, struct options *options, int *status)
{
    const char *value;
    const struct { const char *name, **text; } texts[] = {
        {"--model", &options->model}, {"--prompt-ids", &options->prompt},
        {"--html", &options->page}
    };
    const struct { const char *name; int most, *number; } numbers[] = {
        {"--prompt-tokens", 1 << 20, &options->prompt_tokens},
        {"--steps", 1 << 20, &options->steps},
        {"--repeats", 1000, &options->repeats}
    };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (command_option(argc, argv, i, texts[k].name, &value)) {
            *status = command_text(command, texts[k].name, value,
                                   texts[k].text);
            return true;
        }
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (command_option(argc, argv, i, numbers[k].name, &value)) {
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
        if (command_option(argc, argv, &i, "--seed", &value))
            status = command_seed(command, "--seed", value, &options->seed);
        else if (command_option(argc, argv, &i, "--atol", &value))
            status = command_double(command, "--atol", value,
                                    &options->bound.absolute);
        else if (command_option(argc, argv, &i, "--rtol", &value))
            status = command_double(command, "--rtol", value,
                                    &options->bound.relative);
        else if (!read_flag(argv[i], options)
                 && !read_value(command, argc, argv, &i, options, &status))
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->model == NULL)
        status = command_usage_error(command, "--model PATH is needed");
    if (status == 0 && options->prompt != NULL && options->prompt_tokens > 0)
        status = command_usage_error(command, "--prompt-ids and"
                                     " --prompt-tokens are two prompts");
    return status;
}

enum { PROMPT_TOKENS = 16, STEPS = 32 };

static int make_prompt(const struct command *command,
                       const struct options *options, int context_length,
                       int vocab_size, int32_t **ids, int *count)
{
    struct generator generator;
    if (options->prompt != NULL)
        return command_ids(command, "--prompt-ids", options->prompt, ids,
                           count);
    const int third = context_length < 3 ? 1 : context_length / 3;
    *count = options->prompt_tokens > 0 ? options->prompt_tokens
             : third < PROMPT_TOKENS ? third : PROMPT_TOKENS;
    *ids = malloc((size_t)*count * sizeof **ids);
    if (*ids == NULL)
        return command_failure(command, &(struct error){
            STATUS_NO_MEMORY, "no memory for the ids"});
    generator_seed(&generator, options->seed, 22);
    for (int k = 0; k < *count; k++)
        (*ids)[k] = (int32_t)(generator_uniform(&generator) * vocab_size);
    return 0;
}

static struct audit_plan choose_plan(const struct options *options,
                                     const struct ownership *ownership,
                                     const int32_t *prompt, int count)
{
    const int room = ownership->context_length - count;
    struct audit_plan plan = {
        .prompt = prompt, .prompt_tokens = count, .steps = options->steps,
        .repeats = options->untimed ? 1 : options->repeats,
        .bound = options->bound
    };
    if (plan.steps == 0)
        plan.steps = room < 1 ? 1 : room < STEPS ? room : STEPS;
    if (!options->untimed)
        plan.watch = stopwatch_monotonic();
    return plan;
}

static int show(const struct command *command, const struct options *options,
                const struct report *report)
{
    struct error error = {.status = STATUS_OK};
    (options->json ? report_print_json : report_print_text)(stdout, report);
    if (options->page != NULL
        && report_write_page(report, options->page, &error) != STATUS_OK)
        return command_failure(command, &error);
    return report_exit_status(report);
}

static int audit(const struct command *command,
                 const struct options *options,
                 const struct audit_subject *subject)
{
    const struct ownership *ownership = &subject->ownership;
    struct machine machine;
    struct report report;
    struct error error;
    int32_t *prompt = NULL;
    int count = 0;
    int result = make_prompt(command, options, ownership->context_length,
                             ownership->vocab_size, &prompt, &count);
    if (result != 0)
        return result;
    const struct audit_plan plan = choose_plan(options, ownership, prompt,
                                               count);
    enum status status = STATUS_OK;
    if (options->machine)
        status = machine_measure((size_t)1 << 28, 0.5, &machine, &error);
    if (status == STATUS_OK)
        status = report_new(&report, subject, &plan,
                            options->machine ? &machine : NULL, &error);
    if (status == STATUS_OK) {
        result = show(command, options, &report);
        report_free(&report);
    } else
        result = command_failure(command, &error);
    free(prompt);
    return result;
}
static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {
        .seed = 1, .repeats = 3, .bound = {1e-3, 1e-2}
    };
    struct audit_subject subject;
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    if (audit_subject_open(&subject, options.model, &error) != STATUS_OK)
        return command_failure(command, &error);
    status = audit(command, &options, &subject);
    audit_subject_close(&subject);
    return status;
}

const struct command command_audit = {
    "audit", "five views of one loop, each number beside its prediction",
    "usage: tinygpt audit --model PATH [--prompt-ids IDS | --prompt-tokens P]\n"
    "                     [--steps N] [--seed S] [--repeats R] [--atol A]\n"
    "                     [--rtol R] [--machine] [--untimed] [--json]\n"
    "                     [--html FILE]\n"
    "\n"
    "Opens a model of any family and format, predicts from its config alone,\n"
    "runs one greedy loop, and prints both sides of each number with a\n"
    "verdict: tensor shapes, parameter ownership, cache bytes, phase timing,\n"
    "and each row of logits against recomputation. Exits with status 1 when a\n"
    "number is not as predicted. Times are diagnostic and cannot fail. IDS are\n"
    "like 1,2,3.\n"
    "\n"
    "  --prompt-tokens P  a prompt of P made-up ids (16, or what fits)\n"
    "  --steps N          tokens that the model adds (32, or what fits)\n"
    "  --seed S           what the made-up ids depend on (1)\n"
    "  --repeats R        runs; the least time of each phase counts (3)\n"
    "  --atol, --rtol     rows are equal when |x - x'| <= A + R |x'|\n"
    "                     (1e-3, 1e-2)\n"
    "  --machine          measure this machine, too, for the least times\n"
    "  --untimed          take no times: equal runs, equal reports\n"
    "  --json             print JSON instead of text\n"
    "  --html FILE        write a page besides\n",
    run
};
