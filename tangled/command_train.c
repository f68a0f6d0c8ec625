#include "command_train.h"
#include "hub_save.h"
#include "tokenizer.h"
#include "tokenizer_files.h"
#include "training.h"
#include "kept_memory.h"
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
    const char *from, *tokenizer;  /* as for the two functions that open */
    const char *family;            /* "gpt", "llama", "mixtral"; or NULL */
    bool json, tied;
    struct gpt_config config;      /* sizes of a fresh model of any family */
    int kv_heads, experts, experts_per_token;    /* 0: not said */
    struct trainer_settings settings;
    uint64_t seed;
    int save_every;
    const char *settled;           /* such an option that was given */
    const char *shapes;            /* one that is about fresh weights */
    const char *llamas, *mixtures; /* one that only this family has */
};

enum value_kind { PATH, WHOLE, NUMBER, SEED };
enum option_time { ALWAYS, AT_BEGIN, FRESH, FRESH_LLAMA, FRESH_MIXTRAL };

#define OPTION(name, kind, minimum, member, when) \
    { name, kind, minimum, offsetof(struct request, member), when }
static const struct option {
    const char *name;
    enum value_kind kind;
    long minimum;
    size_t offset;
    enum option_time when;
} options[] = {
    OPTION("--out", PATH, 0, out, ALWAYS),
    OPTION("--resume", PATH, 0, resume, ALWAYS),
    OPTION("--log", PATH, 0, log, ALWAYS),
    OPTION("--tokenizer", PATH, 0, tokenizer, ALWAYS),
    OPTION("--steps", WHOLE, 1, settings.steps, ALWAYS),
    OPTION("--save-every", WHOLE, 1, save_every, ALWAYS),
    OPTION("--from", PATH, 0, from, AT_BEGIN),
    OPTION("--batch", WHOLE, 1, settings.batch, AT_BEGIN),
    OPTION("--context", WHOLE, 2, settings.tokens, AT_BEGIN),
    OPTION("--warmup", WHOLE, 0, settings.warmup, AT_BEGIN),
    OPTION("--learning-rate", NUMBER, 0, settings.learning_rate, AT_BEGIN),
    OPTION("--weight-decay", NUMBER, 0, settings.weight_decay, AT_BEGIN),
    OPTION("--seed", SEED, 0, seed, AT_BEGIN),
    OPTION("--family", PATH, 0, family, FRESH),
    OPTION("--d-model", WHOLE, 1, config.d_model, FRESH),
    OPTION("--layers", WHOLE, 1, config.n_layers, FRESH),
    OPTION("--heads", WHOLE, 1, config.n_heads, FRESH),
    OPTION("--d-ff", WHOLE, 1, config.d_ff, FRESH),
    OPTION("--dropout", NUMBER, 0, config.dropout, FRESH),
    OPTION("--kv-heads", WHOLE, 1, kv_heads, FRESH_LLAMA),
    OPTION("--experts", WHOLE, 1, experts, FRESH_MIXTRAL),
    OPTION("--experts-per-token", WHOLE, 1, experts_per_token,
           FRESH_MIXTRAL),
};

enum { OPTION_COUNT = sizeof options / sizeof *options,
       DEFAULT_STEPS = 1000, DEFAULT_CONTEXT = 128 };

static void note_time(enum option_time when, const char *name,
                      struct request *request)
{
    if (when != ALWAYS)
        request->settled = name;
    if (when >= FRESH)
        request->shapes = name;
    if (when == FRESH_LLAMA)
        request->llamas = name;
    if (when == FRESH_MIXTRAL)
        request->mixtures = name;
}

static int read_option(const struct command *command,
                       const struct option *option, const char *text,
                       struct request *request)
{
    const char *name = option->name;
    void *place = (char *)request + option->offset;
    note_time(option->when, name, request);
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
    if (strcmp(argv[*i], "--tied") == 0) {
        note_time(FRESH_LLAMA, "--tied", request);
        request->tied = true;
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
    if (request->from != NULL && request->shapes != NULL)
        return command_usage_error(command, "%s: was settled by the model of"
                                   " --from", request->shapes);
    const char *family = request->family != NULL ? request->family : "gpt";
    const bool gpt = strcmp(family, "gpt") == 0;
    const bool mixtral = strcmp(family, "mixtral") == 0;
    if (!gpt && !mixtral && strcmp(family, "llama") != 0)
        return command_usage_error(command, "--family: expected gpt, llama or"
                                   " mixtral, got %s", family);
    const char *foreign = gpt && request->llamas ? request->llamas
        : !mixtral && request->mixtures ? request->mixtures
        : !gpt && request->config.dropout > 0 ? "--dropout" : NULL;
    if (foreign != NULL)
        return command_usage_error(command, "%s: is not an option of family %s",
                                   foreign, family);
    if (request->out == NULL)
        request->out = request->resume;
    if (request->config.d_ff == 0 && request->config.d_model < INT_MAX / 8)
        request->config.d_ff = gpt ? 4 * request->config.d_model
            : (8 * request->config.d_model / 3 + 7) / 8 * 8;
    if (request->settings.tokens == 0 && request->from == NULL)
        request->settings.tokens = DEFAULT_CONTEXT;
    request->config.context_length = request->settings.tokens;
    if (isnan(request->settings.learning_rate))
        request->settings.learning_rate = request->from ? 1e-4 : 2e-3;
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
    struct tokenizer *tokenizer;
    struct token_text text;
    struct training trainer;
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

static double bits_a_byte(const struct run *run, float loss)
{
    const struct corpus *corpus = &run->corpus;
    const double ids = (double)(run->text.length - run->text.training);
    const double bytes = (double)(corpus->length - corpus->training);
    return (double)loss / log(2) * ids / bytes;
}

static enum status checkpoint(struct run *run, struct error *error)
{
    int64_t step = run->trainer.adamw.step;
    float loss;
    enum status status = training_held_out_loss(&run->trainer, &loss, error);
    if (status == STATUS_OK)
        status = training_save(&run->trainer, run->request.out, error);
    if (status != STATUS_OK)
        return status;
    run->saved = step;
    fprintf(stderr, "%sstep %" PRId64 ": held-out loss %.4f (%.2f bits a"
            " byte), saved in %s\n", run->terminal ? "\r\033[K" : "", step,
            (double)loss, bits_a_byte(run, loss), run->request.out);
    char line[96];
    snprintf(line, sizeof line, "{\"step\":%" PRId64
             ",\"held_out_loss\":%.9g}\n", step, (double)loss);
    return log_line(run, line, error);
}

static enum status train(struct run *run, struct error *error)
{
    struct training *trainer = &run->trainer;
    enum status status = STATUS_OK;
    kept_memory();
    while (status == STATUS_OK && !interrupted
           && trainer->adamw.step < trainer->settings.steps) {
        status = training_step(trainer, &run->loss, error);
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

static enum status read_text(struct run *run, const char *path,
                             int vocab_size, struct error *error)
{
    const char *named = run->request.tokenizer;
    if (path == NULL && named == NULL)
        named = "bytes";
    enum status status = tokenizer_open(&run->tokenizer, path, named,
                                        vocab_size, error);
    if (status == STATUS_OK)
        status = token_text_new(&run->text, &run->corpus, run->tokenizer,
                                error);
    return status;
}

static struct hub_config fresh_config(const struct request *request,
                                      int vocab_size)
{
    const struct gpt_config *sizes = &request->config;
    const char *family = request->family ? request->family : "gpt";
    const bool mixtral = strcmp(family, "mixtral") == 0;
    const int heads = sizes->n_heads;
    struct hub_config config = {
        .format = strcmp(family, "gpt") == 0 ? FORMAT_TINY_GPT
                  : mixtral ? FORMAT_MIXTRAL : FORMAT_LLAMA,
        .gpt = *sizes
    };
    config.gpt.vocab_size = vocab_size;
    config.llama = (struct llama_config){
        .vocab_size = vocab_size, .context_length = sizes->context_length,
        .d_model = sizes->d_model, .n_layers = sizes->n_layers,
        .n_heads = heads, .head_dim = sizes->d_model / heads,
        .n_kv_heads = request->kv_heads ? request->kv_heads
                      : heads % 2 == 0 ? heads / 2 : heads,
        .d_ff = sizes->d_ff, .rms_norm_eps = 1e-5, .rope_theta = 10000,
        .tie_word_embeddings = request->tied };
    if (mixtral) {
        config.llama.n_experts = request->experts ? request->experts : 4;
        config.llama.experts_per_token =
            request->experts_per_token ? request->experts_per_token
            : config.llama.n_experts < 2 ? config.llama.n_experts : 2;
    }
    return config;
}

static enum status begin_fresh(struct run *run, struct error *error)
{
    const struct request *request = &run->request;
    struct learner learner = { 0 };
    struct generator generator;
    struct hub_config config;
    enum status status = read_text(run, NULL, 0, error);
    generator_seed(&generator, request->seed, 0);
    if (status == STATUS_OK) {
        config = fresh_config(request, tokenizer_count(run->tokenizer));
        status = learner_new(&learner, &config, &generator, error);
    }
    if (status == STATUS_OK)
        status = training_new(&run->trainer, &learner, &request->settings,
                              &run->text, &generator, error);
    learner_free(&learner);
    return status;
}

static enum status begin_from(struct run *run, struct error *error)
{
    struct request *request = &run->request;
    struct trainer_settings *settings = &request->settings;
    struct learner learner = { 0 };
    struct generator generator;
    struct causal_lm lm = { 0 };
    generator_seed(&generator, request->seed, 0);
    enum status status = learner_open(&learner, request->from, error);
    if (status == STATUS_OK) {
        lm = checkpoint_causal_lm(learner.checkpoint);
        status = read_text(run, request->from, lm.vocab_size, error);
    }
    if (settings->tokens == 0)
        settings->tokens = lm.context_length < DEFAULT_CONTEXT
                           ? lm.context_length : DEFAULT_CONTEXT;
    if (status == STATUS_OK)
        status = training_new(&run->trainer, &learner, settings, &run->text,
                              &generator, error);
    learner_free(&learner);
    return status;
}

static enum status take_up(struct run *run, struct error *error)
{
    const char *directory = run->request.resume;
    int vocab_size;
    enum status status = training_vocab_size(directory, &vocab_size, error);
    if (status == STATUS_OK)
        status = read_text(run, directory, vocab_size, error);
    if (status == STATUS_OK)
        status = training_load(&run->trainer, directory, &run->text, error);
    return status;
}

static enum status begin(struct run *run, struct error *error)
{
    struct request *request = &run->request;
    const char *source = request->resume ? request->resume : request->from;
    enum status status = corpus_read(&run->corpus, request->texts,
                                     request->text_count, error);
    if (status == STATUS_OK)
        status = request->resume != NULL ? take_up(run, error)
                 : request->from != NULL ? begin_from(run, error)
                                         : begin_fresh(run, error);
    struct stat from, out;
    if (status == STATUS_OK && request->from != NULL
        && stat(request->from, &from) == 0 && stat(request->out, &out) == 0
        && from.st_dev == out.st_dev && from.st_ino == out.st_ino)
        status = error_set(error, STATUS_INVALID, "--out: expected another"
                           " directory than --from");
    if (status == STATUS_OK)
        status = hub_save_check(request->out, error);
    if (status == STATUS_OK)
        status = tokenizer_files_check(source, request->tokenizer,
                                       run->trainer.trainable.vocab_size,
                                       request->out, error);
    if (status == STATUS_OK)
        status = make_directory(request->out, error);
    if (status == STATUS_OK && request->log != NULL) {
        run->log = fopen(request->log, request->resume ? "a" : "w");
        if (run->log == NULL)
            status = error_set(error, STATUS_IO, "%s: %s", request->log,
                               strerror(errno));
    }
    if (status == STATUS_OK)
        status = tokenizer_files_copy(source, request->tokenizer,
                                      run->trainer.trainable.vocab_size,
                                      request->out, error);
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
    .config = { .d_model = 96, .n_layers = 4, .n_heads = 4,
                .layer_norm_eps = 1e-5 },
    .settings = { .batch = 8, .warmup = -1, .learning_rate = NAN,
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
    training_free(&run.trainer);
    token_text_free(&run.text);
    tokenizer_close(&run.tokenizer);
    corpus_free(&run.corpus);
    free(run.request.texts);
    return status;
}

const struct command command_train = {
    "train", "train a model on text",
    "usage: tinygpt train --text FILE... --out DIR [option...]\n"
    "       tinygpt train --text FILE... --from PATH --out DIR [option...]\n"
    "       tinygpt train --text FILE... --resume DIR [--out DIR] [--steps N]\n"
    "\n"
    "Trains a model on the files and writes it into DIR: a fresh one, or that\n"
    "of a checkpoint (a directory of ours or of the hub, or a llama2.c file).\n"
    "The last twentieth of the text is held out. Ctrl-C saves and stops.\n"
    "\n"
    "  --text FILE...      the text, files one after the other\n"
    "  --out DIR           where to save; made when missing\n"
    "  --from PATH         begin with the weights of a checkpoint\n"
    "  --resume DIR        go on with the run saved there\n"
    "  --tokenizer PATH    instead of the one beside the model; \"bytes\"\n"
    "  --steps N           length of the run (1000)\n"
    "  --save-every N      steps between checkpoints (250)\n"
    "  --log FILE          write each step as a line of JSON\n"
    "  --json              the same on standard output\n"
    "settled when the run begins:\n"
    "  --context N         tokens in a window, and of a fresh context (128)\n"
    "  --batch B           windows per step (8)\n"
    "  --learning-rate X   the highest (0.002; with --from 0.0001)\n"
    "  --warmup N          steps to reach it (a tenth, at most 100)\n"
    "  --weight-decay X    of matrices (0.1)\n"
    "  --seed S            of weights, batches and dropout (1)\n"
    "of fresh weights:\n"
    "  --family F          gpt, llama or mixtral (gpt)\n"
    "  --d-model C --layers L --heads H --d-ff F\n"
    "                      sizes (96, 4, 4, 4C; llama: 8/3 C)\n"
    "  --dropout P         gpt (0)\n"
    "  --kv-heads N        llama, mixtral: heads of keys and values (H/2)\n"
    "  --tied              llama, mixtral: one table for both ends\n"
    "  --experts E --experts-per-token K\n"
    "                      mixtral (4, 2)\n",
    run_train
};
