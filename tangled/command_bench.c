#include "command_bench.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench.h"
#include "kept_memory.h"
#include "thread_count.h"

struct options {
    const char *shape, *open;
    struct bench_wishes wishes;
    struct bench_sizes threads;
    int repeats, array;
    bool predict, json;
};

static const char *what_word(int k)
{
    return bench_what_name((enum bench_what)k);
}

static const char *weights_word(int k)
{
    return bench_weights_name((enum bench_weights)k);
}

static int read_words(const struct command *command, const char *option,
                      const char *text, const char *(*word)(int), int words,
                      bool *chosen)
{
    memset(chosen, 0, (size_t)words * sizeof *chosen);
    for (const char *at = text; at != NULL;) {
        const size_t length = strcspn(at, ",");
        int k = 0;
        while (k < words && (strlen(word(k)) != length
                             || strncmp(word(k), at, length) != 0))
            k++;
        if (k == words)
            return command_usage_error(command, "%s: no %.*s; see --help",
                                       option, (int)length, at);
        chosen[k] = true;
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return text != NULL ? 0
        : command_usage_error(command, "%s: needs a value", option);
}

static int read_kernels(const struct command *command, const char *option,
                        const char *text, struct bench_wishes *wishes)
{
    wishes->kernel_count = 0;
    if (text != NULL && strcmp(text, "all") == 0) {
        wishes->kernel_count = kernels_available(wishes->kernels);
        return 0;
    }
    for (const char *at = text; at != NULL;) {
        char name[16];
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length % 16, at);
        const struct kernels *table = kernels_named(name);
        if (table == NULL || wishes->kernel_count == KERNELS_MAX)
            return command_usage_error(command, "%s: no %.*s that runs here",
                                       option, (int)length, at);
        wishes->kernels[wishes->kernel_count++] = table;
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return text != NULL ? 0
        : command_usage_error(command, "%s: needs a value", option);
}

static int read_sizes(const struct command *command, const char *option,
                      const char *text, int most, struct bench_sizes *sizes)
{
    int32_t *ids = NULL;
    int count = 0;
    int status = command_ids(command, option, text, &ids, &count);
    if (status == 0 && (count < 1 || count > BENCH_SIZES_MAX))
        status = command_usage_error(command, "%s: expected 1 to %d numbers,"
                                     " got %d", option, (int)BENCH_SIZES_MAX,
                                     count);
    for (int k = 0; k < count && status == 0; k++) {
        if (ids[k] < 1 || ids[k] > most)
            status = command_usage_error(command, "%s: expected 1 to %d, got"
                                         " %d", option, most, ids[k]);
        sizes->size[k] = ids[k];
    }
    sizes->count = count;
    free(ids);
    return status;
}

static bool read_number(const struct command *command, int argc, char **argv,
                        int *i, struct options *options, int *status)
{
    const struct { const char *name; int most, *number; } numbers[] = {
        {"--slots", 64, &options->wishes.slots},
        {"--repeats", SAMPLES_MAX, &options->repeats},
        {"--array", 1 << 16, &options->array}
    };
    const char *value;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (command_option(argc, argv, i, numbers[k].name, &value)) {
            *status = command_int(command, numbers[k].name, value, 1,
                                  numbers[k].most, numbers[k].number);
            return true;
        }
    return false;
}

static bool read_list(const struct command *command, int argc, char **argv,
                      int *i, struct options *options, int *status)
{
    struct bench_wishes *wishes = &options->wishes;
    const char *value;
    if (command_option(argc, argv, i, "--what", &value))
        *status = read_words(command, "--what", value, what_word, BENCH_WHATS,
                             wishes->what);
    else if (command_option(argc, argv, i, "--weights", &value))
        *status = read_words(command, "--weights", value, weights_word,
                             BENCH_WEIGHTS, wishes->weights);
    else if (command_option(argc, argv, i, "--kernels", &value))
        *status = read_kernels(command, "--kernels", value, wishes);
    else if (command_option(argc, argv, i, "--threads", &value))
        *status = read_sizes(command, "--threads", value, LIMIT_THREADS,
                             &options->threads);
    else if (command_option(argc, argv, i, "--context", &value))
        *status = read_sizes(command, "--context", value, 1 << 20,
                             &wishes->contexts);
    else if (command_option(argc, argv, i, "--prompt", &value))
        *status = read_sizes(command, "--prompt", value, 1 << 20,
                             &wishes->prompts);
    else
        return false;
    return true;
}

static int read_options(const struct command *command, int argc, char **argv,
                        struct options *options)
{
    const char *kernels = getenv("TINYGPT_KERNELS");
    int status = 0;
    if (kernels != NULL && kernels[0] != '\0')
        status = read_kernels(command, "TINYGPT_KERNELS", kernels,
                              &options->wishes);
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--shape", &value))
            status = command_text(command, "--shape", value, &options->shape);
        else if (command_option(argc, argv, &i, "--open", &value))
            status = command_text(command, "--open", value, &options->open);
        else if (strcmp(argv[i], "--predict") == 0)
            options->predict = true;
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else if (!read_number(command, argc, argv, &i, options, &status)
                 && !read_list(command, argc, argv, &i, options, &status))
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    return status;
}

struct place {
    bool terminal;
    int rounds;
};

static void show(void *state, int round, int threads, const char *what)
{
    const struct place *place = state;
    if (place->terminal)
        fprintf(stderr, "\r\033[Kround %d of %d, %d thread%s: %s", round,
                place->rounds, threads, threads == 1 ? "" : "s", what);
}

static void show_end(const struct place *place)
{
    if (place->terminal)
        fprintf(stderr, "\r\033[K");
}

static void set_defaults(struct options *options)
{
    const int all = thread_count_available();
    *options = (struct options){
        .shape = "gpt2-124m", .repeats = 7, .array = 512,
        .threads = {all > 1 ? 2 : 1, {1, all < LIMIT_THREADS ? all
                                                        : LIMIT_THREADS}},
        .wishes = {
            .what = {[BENCH_DECODE] = true, [BENCH_PREFILL] = true,
                     [BENCH_BATCH] = true},
            .weights = {[WEIGHTS_F32] = true},
            .kernels = {kernels_best()}, .kernel_count = 1,
            .contexts = {2, {64, 512}}, .prompts = {3, {64, 512, 1024}},
            .slots = 8, .batch = 4, .tokens = 64
        }
    };
}

static enum status run_open(const struct options *options,
                            struct error *error)
{
    const struct stopwatch watch = stopwatch_monotonic();
    struct bench_load load;
    thread_count_use(options->threads.size[0]);
    const enum status status = bench_load_here(
        options->open, options->wishes.kernels[0], &watch, &load, error);
    if (status == STATUS_OK)
        bench_load_print(stdout, &load);
    return status;
}

static enum status report_on(struct options *options,
                             struct bench_report *report, struct error *error)
{
    const struct stopwatch watch = stopwatch_monotonic();
    struct place place = {isatty(STDERR_FILENO), options->repeats};
    const struct bench_progress progress = {show, &place};
    struct bench_shape shape;
    struct bench_plan plan = {options->repeats, {0}, options->threads.count};
    for (int t = 0; t < plan.thread_count; t++)
        plan.threads[t] = options->threads.size[t];
    options->wishes.array_bytes = (size_t)options->array << 20;
    enum status status = bench_shape_find(&shape, options->shape, error);
    if (status == STATUS_OK)
        status = bench_predict(&options->wishes, &shape, &plan, report,
                               error);
    if (status == STATUS_OK && !options->predict) {
        status = bench_run(&options->wishes, &watch, &progress, report,
                           error);
        show_end(&place);
    }
    if (status == STATUS_OK)
        (options->predict ? bench_print_work
         : options->json ? bench_print_json : bench_print_text)(stdout,
                                                                report);
    return status;
}

static enum status run_bench(struct options *options, struct error *error)
{
    struct bench_report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a report");
    const enum status status = report_on(options, report, error);
    bench_report_free(report);
    free(report);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options;
    struct error error;
    enum status done;
    set_defaults(&options);
    const int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    if (options.wishes.what[BENCH_TRAIN])
        kept_memory();
    done = options.open != NULL ? run_open(&options, &error)
                                : run_bench(&options, &error);
    return done == STATUS_OK ? 0 : command_failure(command, &error);
}

const struct command command_bench = {
    "bench", "what this machine can do, and what part of it a model reaches",
    "usage: tinygpt bench [OPTION...]\n"
    "\n"
    "Measures how fast memory is read and numbers are multiplied and added,\n"
    "and in the same rounds a model of made-up weights. Each time is the\n"
    "median of R rounds, behind one that does not count; spread is the\n"
    "distance of the quartiles by the median; limit is the least time that\n"
    "the best limit of all rounds allows, as a part of the median, in\n"
    "percent; round is the same with the limit of each round.\n"
    "\n"
    "  --shape NAME    gpt2-124m, gpt2-355m, llama-110m, llama-1b, tiny,\n"
    "                  tiny-llama, or V,C,L,H,Hk,D,F[,E,A] (gpt2-124m)\n"
    "  --what LIST     decode, prefill, batch, train, load\n"
    "                  (decode,prefill,batch)\n"
    "  --threads LIST  numbers of threads (1 and all)\n"
    "  --weights LIST  rows, f32, bf16, int8 (f32)\n"
    "  --kernels LIST  avx512, avx2, base, plain, or all that run here\n"
    "                  (TINYGPT_KERNELS, or the best)\n"
    "  --context LIST  tokens before a decoded one (64,512)\n"
    "  --prompt LIST   tokens of a prompt (64,512,1024)\n"
    "  --slots B       rows of a batch (8)\n"
    "  --repeats R     rounds (7)\n"
    "  --array MB      of memory to measure reading on (512)\n"
    "  --predict       print the work of each case, and measure nothing\n"
    "  --open FILE     open an engine's file in this process, prefill and\n"
    "                  decode, and print times and memory as JSON; with\n"
    "                  --kernels and --threads, nothing else\n"
    "  --json          the same as JSON\n",
    run
};
