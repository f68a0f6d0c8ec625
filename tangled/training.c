#include "training.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "file_map.h"
#include "hub_save.h"
#include "safetensors.h"
#include "training_record.h"

static enum status allocate(struct training *made,
                            const struct learner *learner,
                            struct error *error)
{
    const struct trainer_settings *settings = &made->settings;
    struct trainable *trainable = &made->trainable;
    size_t count, bytes;
    enum status status = learner_trainable(learner, trainable, error);
    if (status == STATUS_OK)
        status = trainer_settings_check(settings, trainable->context_length,
                                        error);
    if (status == STATUS_OK)
        status = token_text_check(made->text, settings->tokens,
                                  trainable->vocab_size, error);
    if (status == STATUS_OK)
        status = moments_new(&made->moments, trainable, error);
    if (status != STATUS_OK)
        return status;
    if (size_multiply((size_t)settings->batch, (size_t)settings->tokens,
                      &count)
        && size_multiply(count, sizeof *made->ids, &bytes))
        made->ids = malloc(bytes);
    return made->ids != NULL ? STATUS_OK
           : error_set(error, STATUS_NO_MEMORY, "ids: no memory for %d"
                       " windows of %d", settings->batch, settings->tokens);
}

enum status training_new(struct training *training, struct learner *learner,
                         const struct trainer_settings *settings,
                         const struct token_text *text,
                         const struct generator *generator,
                         struct error *error)
{
    struct training made = { .settings = *settings, .text = text,
                             .generator = *generator };
    made.adamw = (struct adamw){
        .learning_rate = settings->learning_rate, .beta1 = 0.9,
        .beta2 = 0.95, .eps = 1e-8, .weight_decay = settings->weight_decay };
    const enum status status = allocate(&made, learner, error);
    if (status != STATUS_OK) {
        training_free(&made);
        return status;
    }
    made.learner = *learner;
    *learner = (struct learner){ 0 };
    *training = made;
    return STATUS_OK;
}

void training_free(struct training *training)
{
    if (training == NULL)
        return;
    trainable_free(&training->trainable);
    moments_free(&training->moments);
    learner_free(&training->learner);
    free(training->ids);
    *training = (struct training){ 0 };
}

enum status training_step(struct training *training, float *loss,
                          struct error *error)
{
    const struct trainer_settings *settings = &training->settings;
    struct generator generator = training->generator;
    float batch_loss;
    token_text_batch(training->text, &generator, settings->batch,
                     settings->tokens, training->ids);
    const struct training_batch batch = {
        .ids = training->ids, .labels = training->ids,
        .batch = settings->batch, .tokens = settings->tokens,
        .generator = &generator };
    enum status status = trainable_loss_and_gradients(
        &training->trainable, &batch, &batch_loss, error);
    if (status == STATUS_OK && !isfinite(batch_loss))
        status = error_set(error, STATUS_INVALID, "loss: not finite at step %"
                           PRId64 "; a lower learning rate may help",
                           training->adamw.step + 1);
    if (status != STATUS_OK)
        return status;
    training->adamw.learning_rate =
        learning_rate_at(settings, training->adamw.step);
    trainable_step(&training->trainable, &training->adamw,
                   &training->moments);
    training->generator = generator;
    *loss = batch_loss;
    return STATUS_OK;
}

enum { HELD_OUT_WINDOWS = 64 };

static enum status window_loss(struct training *training, size_t at,
                               int tokens, float *loss, struct error *error)
{
    const int32_t *ids = training->text->ids + at;
    const struct training_batch batch = {
        .ids = ids, .labels = ids, .batch = 1, .tokens = tokens };
    return trainable_loss(&training->trainable, &batch, loss, error);
}

enum status training_held_out_loss(struct training *training, float *loss,
                                   struct error *error)
{
    const struct token_text *text = training->text;
    const size_t held_out = text->length - text->training;
    size_t width = (size_t)training->settings.tokens;
    if (width > held_out)
        width = held_out;
    size_t windows = held_out / width;
    if (windows > HELD_OUT_WINDOWS)
        windows = HELD_OUT_WINDOWS;
    double sum = 0;
    for (size_t i = 0; i < windows; i++) {
        float one;
        const size_t gap = windows > 1
            ? (held_out - width) * i / (windows - 1) : 0;
        const enum status status = window_loss(
            training, text->training + gap, (int)width, &one, error);
        if (status != STATUS_OK)
            return status;
        sum += one;
    }
    *loss = (float)(sum / (double)windows);
    return STATUS_OK;
}

enum { SET_COUNT = 3, STATE_NAME_MAX = 128 };
static const char *const prefixes[SET_COUNT] =
    { "model.", "first.", "second." };

struct blocks { float *set[SET_COUNT]; };

static struct blocks blocks_of(const struct training *training)
{
    return (struct blocks){ { training->trainable.weights,
                              training->moments.first,
                              training->moments.second } };
}

static enum status state_path(const char *directory, char **path,
                              struct error *error)
{
    const char *name = "/training.safetensors";
    const size_t size = strlen(directory) + strlen(name) + 1;
    *path = malloc(size);
    if (*path == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory",
                         directory);
    snprintf(*path, size, "%s%s", directory, name);
    return STATUS_OK;
}

static struct training_record record_of(const struct training *training)
{
    return (struct training_record){
        .settings = training->settings,
        .step = (uint64_t)training->adamw.step,
        .generator_state = training->generator.state,
        .generator_increment = training->generator.increment,
        .text_length = training->text->length,
        .text_fingerprint = training->text->fingerprint };
}

static void list_state(const struct training *training,
                       struct safetensors_entry *entries,
                       char (*names)[STATE_NAME_MAX])
{
    const struct trainable *trainable = &training->trainable;
    const struct blocks blocks = blocks_of(training);
    for (int set = 0; set < SET_COUNT; set++)
        for (size_t k = 0; k < trainable->count; k++, entries++, names++) {
            const struct trainable_tensor *entry = &trainable->tensors[k];
            const struct tensor *tensor = entry->tensor;
            const ptrdiff_t at = tensor->data - trainable->weights;
            snprintf(*names, STATE_NAME_MAX, "%s%s", prefixes[set],
                     entry->name);
            *entries = (struct safetensors_entry){
                .name = *names, .dtype = DTYPE_F32, .rank = tensor->rank,
                .data = blocks.set[set] + at,
                .bytes = tensor_size(tensor) * sizeof (float) };
            for (int d = 0; d < tensor->rank; d++)
                entries->shape[d] = tensor->shape[d];
        }
}

static enum status write_state(const struct training *training,
                               const char *path, const char *config,
                               struct error *error)
{
    const struct training_record record = record_of(training);
    char values[RECORD_FIELDS][RECORD_VALUE_MAX];
    struct safetensors_pair pairs[RECORD_FIELDS + 1] =
        { { "config", config } };
    const size_t count = SET_COUNT * training->trainable.count;
    struct safetensors_entry *entries = calloc(count, sizeof *entries);
    char (*names)[STATE_NAME_MAX] = calloc(count, sizeof *names);
    enum status status = STATUS_OK;
    training_record_write(&record, values, pairs + 1);
    if (entries == NULL || names == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "training state: no memory for its list");
    else
        list_state(training, entries, names);
    if (status == STATUS_OK)
        status = safetensors_write(path, entries, count, pairs,
                                   RECORD_FIELDS + 1, error);
    free(entries);
    free(names);
    return status;
}

enum status training_save(const struct training *training,
                          const char *directory, struct error *error)
{
    char *path = NULL, *config = NULL;
    enum status status = hub_save_check(directory, error);
    if (status == STATUS_OK)
        status = state_path(directory, &path, error);
    if (status == STATUS_OK)
        status = learner_format(&training->learner, &config, error);
    if (status == STATUS_OK)
        status = write_state(training, path, config, error);
    if (status == STATUS_OK)
        status = learner_save(&training->learner, directory, error);
    free(config);
    free(path);
    return status;
}

struct state {
    char *path;
    struct file_map map;
    struct safetensors *file;
    struct hub_config config;
};

static void close_state(struct state *state)
{
    safetensors_close(&state->file);
    file_map_close(&state->map);
    free(state->path);
}

static enum status read_config(struct state *state, struct error *error)
{
    const char *text = safetensors_metadata(state->file, "config");
    struct error inside = { 0 };
    if (text == NULL)
        return file_error(error, STATUS_FORMAT, state->path, "config:"
                          " missing; this is not the state of a training"
                          " run");
    const enum status status = hub_config_parse(&state->config, text,
                                                strlen(text), &inside);
    return status == STATUS_OK ? status
           : file_error(error, status, state->path, inside.message);
}

static enum status open_state(struct state *state, const char *directory,
                              struct error *error)
{
    *state = (struct state){ 0 };
    enum status status = state_path(directory, &state->path, error);
    if (status == STATUS_OK)
        status = file_map_open(&state->map, state->path, error);
    if (status == STATUS_OK)
        status = safetensors_parse(&state->file, state->path,
                                   state->map.bytes, state->map.length,
                                   error);
    if (status == STATUS_OK)
        status = read_config(state, error);
    if (status != STATUS_OK)
        close_state(state);
    return status;
}

static enum status check_text(const struct training_record *record,
                              const struct token_text *text,
                              struct error *error)
{
    if (record->text_length != text->length)
        return error_set(error, STATUS_INVALID, "text: expected the %" PRIu64
                         " tokens that the run began with, got %zu",
                         record->text_length, text->length);
    if (record->text_fingerprint != text->fingerprint)
        return error_set(error, STATUS_INVALID, "text: expected the one that"
                         " the run began with, got another of its length");
    return STATUS_OK;
}

static enum status fill_one(const struct safetensors *file,
                            const char *prefix,
                            const struct trainable_tensor *wanted,
                            float *to, struct error *error)
{
    const struct tensor *tensor = wanted->tensor;
    char name[STATE_NAME_MAX];
    snprintf(name, sizeof name, "%s%s", prefix, wanted->name);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    if (entry == NULL)
        return error_set(error, STATUS_FORMAT, "missing tensor \"%s\"", name);
    bool fits = entry->dtype == DTYPE_F32 && entry->rank == tensor->rank;
    for (int d = 0; fits && d < tensor->rank; d++)
        fits = entry->shape[d] == tensor->shape[d];
    if (!fits) {
        char expected[TENSOR_SHAPE_TEXT_MAX];
        return error_set(error, STATUS_FORMAT, "tensor \"%s\": expected F32 %s",
                         name, shape_text(tensor->rank, tensor->shape, expected));
    }
    memcpy(to, entry->data, entry->bytes);
    return STATUS_OK;
}

static enum status fill(struct training *made, const struct safetensors *file,
                        struct error *error)
{
    const struct trainable *trainable = &made->trainable;
    const struct blocks blocks = blocks_of(made);
    enum status status = STATUS_OK;
    int sets = SET_COUNT;
    sets = SET_COUNT;
    for (int set = 0; set < sets; set++)
        for (size_t k = 0; k < trainable->count && status == STATUS_OK; k++) {
            const struct trainable_tensor *entry = &trainable->tensors[k];
            status = fill_one(file, prefixes[set], entry,
                              blocks.set[set] + (entry->tensor->data
                                                 - trainable->weights),
                              error);
        }
    if (status == STATUS_OK
        && safetensors_count(file) != SET_COUNT * trainable->count)
        status = error_set(error, STATUS_FORMAT, "expected %zu tensors, got"
                           " %zu", SET_COUNT * trainable->count,
                           safetensors_count(file));
    return status;
}

static enum status make_run(struct training *made,
                            const struct hub_config *config,
                            const struct training_record *record,
                            const struct token_text *text,
                            struct error *error)
{
    const struct generator generator = { record->generator_state,
                                         record->generator_increment };
    struct learner learner = { 0 };
    enum status status = learner_new(&learner, config, NULL, error);
    if (status == STATUS_OK)
        status = training_new(made, &learner, &record->settings, text,
                              &generator, error);
    learner_free(&learner);
    if (status == STATUS_OK)
        made->adamw.step = (int64_t)record->step;
    return status;
}

static enum status rebuild(struct training *made, const struct state *state,
                           const struct token_text *text,
                           struct error *error)
{
    struct training_record record;
    enum status status = training_record_read(&record, state->file, error);
    if (status == STATUS_OK)
        status = check_text(&record, text, error);
    if (status == STATUS_OK)
        status = make_run(made, &state->config, &record, text, error);
    if (status == STATUS_OK)
        status = fill(made, state->file, error);
    if (status != STATUS_OK)
        training_free(made);
    return status;
}

enum status training_load(struct training *training, const char *directory,
                          const struct token_text *text, struct error *error)
{
    struct state state;
    struct training made = { 0 };
    struct error inside = { 0 };
    enum status status = open_state(&state, directory, error);
    if (status != STATUS_OK)
        return status;
    status = rebuild(&made, &state, text, &inside);
    if (status == STATUS_OK)
        *training = made;
    else
        file_error(error, status, state.path, inside.message);
    close_state(&state);
    return status;
}

enum status training_vocab_size(const char *directory, int *vocab_size,
                                struct error *error)
{
    struct state state;
    const enum status status = open_state(&state, directory, error);
    if (status != STATUS_OK)
        return status;
    *vocab_size = learner_is_gpt(&state.config) ? state.config.gpt.vocab_size
                                        : state.config.llama.vocab_size;
    close_state(&state);
    return STATUS_OK;
}
