#include "command_train.h"
#include "trainer.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct request {
    const char **texts;            /* [text_count], pointers into argv */
    int text_count;
    const char *out, *resume, *log;
    bool json;
    struct gpt_config config;
    struct trainer_settings settings;
    uint64_t seed;
    int save_every;
    const char *settled;           /* such an option that was given */
};

enum value_kind { PATH, WHOLE, NUMBER, SEED };

#define OPTION(name, kind, minimum, member, settled) \
    { name, kind, minimum, offsetof(struct request, member), settled }
static const struct option {
    const char *name;
    enum value_kind kind;
    long minimum;
    size_t offset;
    bool settled;
} options[] = {
    OPTION("--out", PATH, 0, out, false),
    OPTION("--resume", PATH, 0, resume, false),
    OPTION("--log", PATH, 0, log, false),
    OPTION("--steps", WHOLE, 1, settings.steps, false),
    OPTION("--save-every", WHOLE, 1, save_every, false),
    OPTION("--batch", WHOLE, 1, settings.batch, true),
    OPTION("--context", WHOLE, 2, config.context_length, true),
    OPTION("--d-model", WHOLE, 1, config.d_model, true),
    OPTION("--layers", WHOLE, 1, config.n_layers, true),
    OPTION("--heads", WHOLE, 1, config.n_heads, true),
    OPTION("--d-ff", WHOLE, 1, config.d_ff, true),
    OPTION("--warmup", WHOLE, 0, settings.warmup, true),
    OPTION("--learning-rate", NUMBER, 0, settings.learning_rate, true),
    OPTION("--weight-decay", NUMBER, 0, settings.weight_decay, true),
    OPTION("--dropout", NUMBER, 0, config.dropout, true),
    OPTION("--seed", SEED, 0, seed, true),
};

enum { OPTION_COUNT = sizeof options / sizeof *options,
       DEFAULT_STEPS = 1000 };

static int read_option(const struct command *command,
                       const struct option *option, const char *text,
                       struct request *request)
{
    const char *name = option->name;
    void *place = (char *)request + option->offset;
    if (option->settled)
        request->settled = name;
    switch (option->kind) {
    case WHOLE:
        return command_int(command, name, text, option->minimum, INT_MAX, place);
    case NUMBER:
        return command_double(command, name, text, place);
    case SEED:
        return command_seed(command, name, text, place);
    default:
        return command_text(command, name, text, place);
    }
}

static int collect_texts(const struct command *command, int argc,
                         char **argv, int *i, struct request *request)
{
    if (*i + 1 == argc || strncmp(argv[*i + 1], "--", 2) == 0)
        return command_usage_error(command, "--text: needs a value");
    while (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0)
        request->texts[request->text_count++] = argv[++*i];
    return 0;
}

static int read_argument(const struct command *command, int argc,
                         char **argv, int *i, struct request *request)
{
    const char *value;
    if (strcmp(argv[*i], "--json") == 0) {
        request->json = true;
        return 0;
    }
    if (strcmp(argv[*i], "--text") == 0)
        return collect_texts(command, argc, argv, i, request);
    for (int o = 0; o < OPTION_COUNT; o++)
        if (command_option(argc, argv, i, options[o].name, &value))
            return read_option(command, &options[o], value, request);
    return command_usage_error(command, "%s: unknown option", argv[*i]);
}

static int read_arguments(const struct command *command, int argc,
                          char **argv, struct request *request)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        status = read_argument(command, argc, argv, &i, request);
    if (status != 0)
        return status;
    if (request->text_count == 0)
        return command_usage_error(command, "--text: expected a file, got"
                                   " nothing");
    if (request->out == NULL && request->resume == NULL)
        return command_usage_error(command, "--out: expected a directory, got"
                                   " nothing");
    if (request->resume != NULL && request->settled != NULL)
        return command_usage_error(command, "%s: was settled when the run began"
                                   " and cannot go with --resume",
                                   request->settled);
    if (request->out == NULL)
        request->out = request->resume;
    if (request->config.d_ff == 0)
        request->config.d_ff = 4 * request->config.d_model;
    request->settings.tokens = request->config.context_length;
    if (request->resume == NULL && request->settings.steps == 0)
        request->settings.steps = DEFAULT_STEPS;
    if (request->settings.warmup < 0)
        request->settings.warmup = request->settings.steps < 1000
                                   ? request->settings.steps / 10 : 100;
    return 0;
}

static volatile sig_atomic_t interrupted;    /* the signal, 0: none */

static void interrupt(int signal_number)
{
    if (interrupted)
        _exit(128 + signal_number);
    interrupted = signal_number;
}

static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = interrupt,
                                .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

struct run {
    struct request request;
    struct corpus corpus;
    struct trainer trainer;
    FILE *log;                  /* --log, or NULL */
    bool terminal;              /* stderr is one */
    float loss;                 /* of the last step */
    double began, shown;        /* when: this run, its last progress line */
    int64_t first, saved;       /* steps: where this run began, last saved */
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double tokens_per_second(const struct run *run)
{
    const struct trainer_settings *settings = &run->trainer.settings;
    double steps = (double)(run->trainer.adamw.step - run->first);
    return steps * settings->batch * settings->tokens
           / (now() - run->began);
}

static enum status log_line(const struct run *run, const char *line,
                            struct error *error)
{
    FILE *const files[] = { run->log, run->request.json ? stdout : NULL };
    for (int i = 0; i < 2; i++)
        if (files[i] != NULL
            && (fputs(line, files[i]) < 0 || fflush(files[i]) != 0))
            return error_set(error, STATUS_IO, "%s: %s",
                             i == 0 ? run->request.log : "standard output",
                             strerror(errno));
    return STATUS_OK;
}

static enum status log_step(const struct run *run, struct error *error)
{
    char line[160];
    snprintf(line, sizeof line, "{\"step\":%" PRId64 ",\"loss\":%.9g,"
             "\"learning_rate\":%.9g,\"tokens_per_second\":%.0f}\n",
             run->trainer.adamw.step, (double)run->loss,
             run->trainer.adamw.learning_rate, tokens_per_second(run));
    return log_line(run, line, error);
}

static void show_step(struct run *run)
{
    double time = now(), pause = run->terminal ? 0.1 : 10;
    if (time - run->shown < pause)
        return;
    run->shown = time;
    int64_t step = run->trainer.adamw.step;
    int left = (int)((double)(run->trainer.settings.steps - step)
                     * (time - run->began) / (double)(step - run->first));
    fprintf(stderr, "%sstep %" PRId64 "/%d  loss %.4f  %.0f tokens/s  "
            "%d:%02d:%02d left%s", run->terminal ? "\r" : "", step,
            run->trainer.settings.steps, (double)run->loss,
            tokens_per_second(run), left / 3600, left / 60 % 60, left % 60,
            run->terminal ? "\033[K" : "\n");
}

static enum status checkpoint(struct run *run, struct error *error)
{
    int64_t step = run->trainer.adamw.step;
    float loss;
    enum status status = trainer_held_out_loss(&run->trainer, &loss, error);
    if (status == STATUS_OK)
        status = trainer_save(&run->trainer, run->request.out, error);
    if (status != STATUS_OK)
        return status;
    run->saved = step;
    fprintf(stderr, "%sstep %" PRId64 ": held-out loss %.4f (%.2f bits a"
            " byte), saved in %s\n", run->terminal ? "\r\033[K" : "", step,
            (double)loss, (double)loss / log(2), run->request.out);
    char line[96];
    snprintf(line, sizeof line, "{\"step\":%" PRId64
             ",\"held_out_loss\":%.9g}\n", step, (double)loss);
    return log_line(run, line, error);
}

static enum status train(struct run *run, struct error *error)
{
    struct trainer *trainer = &run->trainer;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !interrupted
           && trainer->adamw.step < trainer->settings.steps) {
        status = trainer_step(trainer, &run->loss, error);
        if (status == STATUS_OK)
            status = log_step(run, error);
        if (status == STATUS_OK)
            show_step(run);
        if (status == STATUS_OK
            && trainer->adamw.step % run->request.save_every == 0)
            status = checkpoint(run, error);
    }
    if (status == STATUS_OK && run->saved != trainer->adamw.step)
        status = checkpoint(run, error);
    return status;
}

static enum status make_directory(const char *path, struct error *error)
{
    struct stat about;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    if (stat(path, &about) != 0 || access(path, W_OK | X_OK) != 0)
        return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(about.st_mode))
        return error_set(error, STATUS_IO, "%s: is not a directory", path);
    return STATUS_OK;
}

static enum status begin(struct run *run, struct error *error)
{
    struct request *request = &run->request;
    enum status status = corpus_read(&run->corpus, request->texts,
                                     request->text_count, error);
    if (status == STATUS_OK && request->resume != NULL)
        status = trainer_load(&run->trainer, request->resume, &run->corpus,
                              error);
    else if (status == STATUS_OK)
        status = trainer_new(&run->trainer, &request->config,
                             &request->settings, &run->corpus,
                             request->seed, error);
    if (status == STATUS_OK)
        status = make_directory(request->out, error);
    if (status == STATUS_OK && request->log != NULL) {
        run->log = fopen(request->log, request->resume ? "a" : "w");
        if (run->log == NULL)
            status = error_set(error, STATUS_IO, "%s: %s", request->log,
                               strerror(errno));
    }
    if (request->resume != NULL && request->settings.steps > 0)
        run->trainer.settings.steps = request->settings.steps;
    run->terminal = isatty(STDERR_FILENO);
    run->first = run->trainer.adamw.step;
    bool here = request->resume && strcmp(request->resume, request->out) == 0;
    run->saved = here ? run->first : -1;
    run->began = now();
    return status;
}

static const struct request default_request = {
    .config = { .vocab_size = 256, .context_length = 128, .d_model = 96,
                .n_layers = 4, .n_heads = 4, .layer_norm_eps = 1e-5 },
    .settings = { .batch = 8, .warmup = -1, .learning_rate = 2e-3,
                  .weight_decay = 0.1 },
    .seed = 1, .save_every = 250
};

static int say_how_to_go_on(const struct run *run)
{
    fprintf(stderr, "stopped after step %" PRId64 "; go on with:\n"
            "  tinygpt train --resume %s --text", run->trainer.adamw.step,
            run->request.out);
    for (int i = 0; i < run->request.text_count; i++)
        fprintf(stderr, " %s", run->request.texts[i]);
    fputs("\n", stderr);
    return 128 + interrupted;
}

static int run_train(const struct command *command, int argc, char **argv)
{
    struct run run = { .request = default_request };
    struct error error = { 0 };
    run.request.texts = malloc((size_t)argc * sizeof *run.request.texts);
    if (run.request.texts == NULL)
        return 1;
    int status = read_arguments(command, argc, argv, &run.request);
    if (status == 0) {
        catch_signals();
        if (begin(&run, &error) != STATUS_OK
            || train(&run, &error) != STATUS_OK)
            status = command_failure(command, &error);
        else if (interrupted)
            status = say_how_to_go_on(&run);
    }
    if (run.log != NULL)
        fclose(run.log);
    trainer_free(&run.trainer);
    corpus_free(&run.corpus);
    free(run.request.texts);
    return status;
}

const struct command command_train = {
    "train", "train a byte-level model on text",
    "usage: tinygpt train --text FILE... --out DIR [option...]\n"
    "       tinygpt train --text FILE... --resume DIR [--out DIR] [--steps N]\n"
    "\n"
    "Trains a GPT on the bytes of the files and writes the model into DIR.\n"
    "The last twentieth of the text is held out. Ctrl-C saves and stops.\n"
    "\n"
    "  --text FILE...      the text, files one after the other\n"
    "  --out DIR           where to save; made when missing\n"
    "  --resume DIR        go on with the run saved there\n"
    "  --steps N           length of the run (1000)\n"
    "  --save-every N      steps between checkpoints (250)\n"
    "  --log FILE          write each step as a line of JSON\n"
    "  --json              the same on standard output\n"
    "settled when the run begins:\n"
    "  --context N         context length in bytes (128)\n"
    "  --d-model C --layers L --heads H --d-ff F\n"
    "                      the model's size (96, 4, 4, 4C)\n"
    "  --batch B           windows per step (8)\n"
    "  --learning-rate X   the highest (0.002)\n"
    "  --warmup N          steps to reach it (a tenth, at most 100)\n"
    "  --weight-decay X    (0.1)\n"
    "  --dropout P         (0)\n"
    "  --seed S            of weights, batches and dropout (1)\n",
    run_train
};
