#include "trainer.h"
#include "backward.h"
#include "init.h"
#include "mode.h"
#include "model_file.h"
#include "safetensors.h"
#include "training_record.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double learning_rate_at(const struct trainer_settings *settings,
                        int64_t step)
{
    const double pi = 3.14159265358979323846;
    double warmup = settings->warmup, steps = settings->steps;
    double t = (double)step;
    if (t < warmup)
        return settings->learning_rate * (t + 1) / warmup;
    double done = t < steps ? (t - warmup) / (steps - warmup) : 1;
    return settings->learning_rate * (0.1 + 0.45 * (1 + cos(pi * done)));
}

enum status trainer_settings_check(const struct trainer_settings *settings,
                                   int context_length, struct error *error)
{
    if (settings->batch <= 0)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", settings->batch);
    if (settings->tokens < 2 || settings->tokens > context_length)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 2 to context_length %d, got %d",
                         context_length, settings->tokens);
    if (settings->steps < 1 || settings->warmup < 0)
        return error_set(error, STATUS_INVALID, "steps, warmup: expected at"
                         " least 1 and 0, got %d and %d", settings->steps,
                         settings->warmup);
    if (!isfinite(settings->learning_rate) || settings->learning_rate <= 0)
        return error_set(error, STATUS_INVALID,
                         "learning_rate: expected above 0, got %g",
                         settings->learning_rate);
    if (!isfinite(settings->weight_decay) || settings->weight_decay < 0)
        return error_set(error, STATUS_INVALID,
                         "weight_decay: expected 0 or more, got %g",
                         settings->weight_decay);
    return STATUS_OK;
}

static enum status new_batch(int32_t **ids,
                             const struct trainer_settings *settings,
                             struct error *error)
{
    size_t count, bytes;
    if (size_multiply((size_t)settings->batch, (size_t)settings->tokens,
                      &count)
        && size_multiply(count, sizeof **ids, &bytes))
        *ids = malloc(bytes);
    if (*ids == NULL)
        return error_set(error, STATUS_NO_MEMORY, "ids: no memory for %d"
                         " windows of %d", settings->batch,
                         settings->tokens);
    return STATUS_OK;
}

enum status trainer_new(struct trainer *trainer,
                        const struct gpt_config *config,
                        const struct trainer_settings *settings,
                        const struct corpus *corpus, uint64_t seed,
                        struct error *error)
{
    struct trainer made = { .settings = *settings, .corpus = corpus };
    enum status status = trainer_settings_check(
        settings, config->context_length, error);
    if (status == STATUS_OK && config->vocab_size < 256)
        status = error_set(error, STATUS_INVALID, "vocab_size: expected at least"
                           " 256 for bytes, got %d", config->vocab_size);
    if (status == STATUS_OK)
        status = corpus_check(corpus, settings->tokens, error);
    if (status == STATUS_OK)
        status = tiny_gpt_new(&made.model, config, error);
    if (status == STATUS_OK)
        status = parameters_new(&made.gradients, config, error);
    if (status == STATUS_OK)
        status = adamw_new(&made.adamw, config, settings->learning_rate,
                           settings->weight_decay, error);
    if (status == STATUS_OK)
        status = new_batch(&made.ids, settings, error);
    if (status != STATUS_OK) {
        trainer_free(&made);
        return status;
    }
    generator_seed(&made.generator, seed, 0);
    parameters_init(tiny_gpt_parameters(made.model), &made.generator);
    *trainer = made;
    return STATUS_OK;
}

void trainer_free(struct trainer *trainer)
{
    if (trainer == NULL)
        return;
    tiny_gpt_free(&trainer->model);
    parameters_free(&trainer->gradients);
    adamw_free(&trainer->adamw);
    free(trainer->ids);
    *trainer = (struct trainer){ 0 };
}

static void clear(struct parameters *gradients)
{
    memset(gradients->storage, 0,
           gradients->size * sizeof *gradients->storage);
}

static enum status batch_gradient(struct trainer *trainer,
                                  struct generator *generator, float *loss,
                                  struct error *error)
{
    struct activations activations = { 0 };
    struct forward_output output = { 0 };
    struct forward_input input = {
        .ids = trainer->ids, .labels = trainer->ids,
        .batch = trainer->settings.batch, .tokens = trainer->settings.tokens,
        .activations = &activations, .generator = generator };
    enum status status = tiny_gpt_forward(trainer->model, &input, &output,
                                          error);
    if (status == STATUS_OK && !isfinite(output.loss))
        status = error_set(error, STATUS_INVALID, "loss: not finite at step %"
                           PRId64 "; a lower learning rate may help",
                           trainer->adamw.step + 1);
    if (status == STATUS_OK) {
        clear(trainer->gradients);
        status = tiny_gpt_backward(trainer->model, &input, &activations, &output,
                                   trainer->gradients, error);
    }
    if (status == STATUS_OK)
        *loss = output.loss;
    forward_output_free(&output);
    activations_free(&activations);
    return status;
}

enum status trainer_step(struct trainer *trainer, float *loss,
                         struct error *error)
{
    const struct trainer_settings *settings = &trainer->settings;
    struct generator generator = trainer->generator;
    corpus_batch(trainer->corpus, &generator, settings->batch,
                 settings->tokens, trainer->ids);
    float batch_loss;
    tiny_gpt_set_mode(trainer->model, MODE_TRAINING);
    enum status status = batch_gradient(trainer, &generator, &batch_loss,
                                        error);
    tiny_gpt_set_mode(trainer->model, MODE_EVALUATION);
    if (status != STATUS_OK)
        return status;
    trainer->adamw.learning_rate =
        learning_rate_at(settings, trainer->adamw.step);
    adamw_step(&trainer->adamw, tiny_gpt_parameters(trainer->model),
               trainer->gradients);
    trainer->generator = generator;
    *loss = batch_loss;
    return STATUS_OK;
}

enum { HELD_OUT_WINDOWS = 64 };

static enum status window_loss(struct trainer *trainer, size_t at,
                               int tokens, float *loss, struct error *error)
{
    struct forward_output output = { 0 };
    struct forward_input input = { .ids = trainer->ids,
                                   .labels = trainer->ids,
                                   .batch = 1, .tokens = tokens };
    corpus_window(trainer->corpus, at, tokens, trainer->ids);
    enum status status = tiny_gpt_forward(trainer->model, &input, &output,
                                          error);
    if (status == STATUS_OK)
        *loss = output.loss;
    forward_output_free(&output);
    return status;
}

enum status trainer_held_out_loss(struct trainer *trainer, float *loss,
                                  struct error *error)
{
    const struct corpus *corpus = trainer->corpus;
    size_t held_out = corpus->length - corpus->training;
    size_t width = (size_t)trainer->settings.tokens;
    if (width > held_out)
        width = held_out;
    size_t windows = held_out / width;
    if (windows > HELD_OUT_WINDOWS)
        windows = HELD_OUT_WINDOWS;
    double sum = 0;
    for (size_t i = 0; i < windows; i++) {
        float one;
        size_t gap = windows > 1 ? (held_out - width) * i / (windows - 1) : 0;
        enum status status = window_loss(trainer, corpus->training + gap,
                                         (int)width, &one, error);
        if (status != STATUS_OK)
            return status;
        sum += one;
    }
    *loss = (float)(sum / (double)windows);
    return STATUS_OK;
}

static struct training_record record_of(const struct trainer *trainer)
{
    return (struct training_record){
        .settings = trainer->settings,
        .step = (uint64_t)trainer->adamw.step,
        .generator_state = trainer->generator.state,
        .generator_increment = trainer->generator.increment,
        .text_length = trainer->corpus->length,
        .text_fingerprint = trainer->corpus->fingerprint };
}

static void put_back(const struct training_record *record,
                     struct trainer *trainer)
{
    trainer->adamw.step = (int64_t)record->step;
    trainer->generator.state = record->generator_state;
    trainer->generator.increment = record->generator_increment;
}

enum { SET_COUNT = 3, TENSOR_NAME_MAX = 96 };
static const char *const prefixes[SET_COUNT] =
    { "model.", "first.", "second." };

struct listing {
    struct safetensors_entry *entries;
    char (*names)[TENSOR_NAME_MAX];
    size_t count;
};

static void list_set(const struct parameters *set, const char *prefix,
                     struct listing *listing)
{
    size_t end = listing->count
                 + parameters_entries(set, listing->entries + listing->count);
    for (size_t i = listing->count; i < end; i++) {
        snprintf(listing->names[i], TENSOR_NAME_MAX, "%s%s", prefix,
                 listing->entries[i].name);
        listing->entries[i].name = listing->names[i];
    }
    listing->count = end;
}

static void listing_free(struct listing *listing)
{
    free(listing->entries);
    free(listing->names);
}

static enum status list_run(const struct trainer *trainer,
                            struct listing *listing, struct error *error)
{
    const struct parameters *sets[SET_COUNT] =
        { tiny_gpt_weights(trainer->model), trainer->adamw.first,
          trainer->adamw.second };
    size_t most = SET_COUNT * (size_t)sets[0]->count;
    listing->entries = calloc(most, sizeof *listing->entries);
    listing->names = calloc(most, sizeof *listing->names);
    if (listing->entries == NULL || listing->names == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "training state: no memory for its list");
    for (int i = 0; i < SET_COUNT; i++)
        list_set(sets[i], prefixes[i], listing);
    return STATUS_OK;
}

static enum status state_path(const char *directory, char **path,
                              struct error *error)
{
    const char *name = "/training.safetensors";
    size_t size = strlen(directory) + strlen(name) + 1;
    *path = malloc(size);
    if (*path == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory",
                         directory);
    snprintf(*path, size, "%s%s", directory, name);
    return STATUS_OK;
}

static enum status write_state(const struct trainer *trainer,
                               const char *path, const char *config,
                               const struct listing *listing,
                               struct error *error)
{
    const struct training_record record = record_of(trainer);
    char values[RECORD_FIELDS][RECORD_VALUE_MAX];
    struct safetensors_pair pairs[RECORD_FIELDS + 1] =
        { { "config", config } };
    training_record_write(&record, values, pairs + 1);
    return safetensors_write(path, listing->entries, listing->count, pairs,
                             RECORD_FIELDS + 1, error);
}

enum status trainer_save(const struct trainer *trainer,
                         const char *directory, struct error *error)
{
    struct listing listing = { 0 };
    char *path = NULL, *config = NULL;
    enum status status = state_path(directory, &path, error);
    if (status == STATUS_OK)
        status = gpt_config_format(tiny_gpt_config(trainer->model), &config,
                                   error);
    if (status == STATUS_OK)
        status = list_run(trainer, &listing, error);
    if (status == STATUS_OK)
        status = write_state(trainer, path, config, &listing, error);
    if (status == STATUS_OK)
        status = tiny_gpt_save(trainer->model, directory, error);
    listing_free(&listing);
    free(config);
    free(path);
    return status;
}

static enum status check_text(const struct training_record *record,
                              const struct corpus *corpus,
                              struct error *error)
{
    if (record->text_length != corpus->length)
        return error_set(error, STATUS_INVALID, "text: expected the %" PRIu64
                         " bytes that the run began with, got %zu",
                         record->text_length, corpus->length);
    if (record->text_fingerprint != corpus->fingerprint)
        return error_set(error, STATUS_INVALID, "text: expected the one that"
                         " the run began with, got another of its length");
    return STATUS_OK;
}

static enum status rebuild(struct trainer *made,
                           const struct safetensors *file,
                           const struct corpus *corpus, struct error *error)
{
    const char *text = safetensors_metadata(file, "config");
    struct gpt_config config;
    struct training_record record;
    if (text == NULL)
        return error_set(error, STATUS_FORMAT, "config: missing; this is not"
                         " the state of a training run");
    enum status status = gpt_config_parse(&config, text, strlen(text),
                                          error);
    if (status == STATUS_OK)
        status = training_record_read(&record, file, error);
    if (status == STATUS_OK)
        status = check_text(&record, corpus, error);
    if (status == STATUS_OK)
        status = trainer_new(made, &config, &record.settings, corpus, 0,
                             error);
    if (status != STATUS_OK)
        return status;
    struct parameters *sets[SET_COUNT] =
        { tiny_gpt_parameters(made->model), made->adamw.first,
          made->adamw.second };
    for (int i = 0; i < SET_COUNT && status == STATUS_OK; i++)
        status = parameters_load(sets[i], file, prefixes[i], error);
    if (status == STATUS_OK)
        put_back(&record, made);
    else
        trainer_free(made);
    return status;
}

enum status trainer_load(struct trainer *trainer, const char *directory,
                         const struct corpus *corpus, struct error *error)
{
    struct safetensors *file = NULL;
    struct trainer made = { 0 };
    struct error inside = { 0 };
    char *path = NULL;
    enum status status = state_path(directory, &path, error);
    if (status == STATUS_OK)
        status = safetensors_open(&file, path, error);
    if (status == STATUS_OK) {
        status = rebuild(&made, file, corpus, &inside);
        if (status == STATUS_OK)
            *trainer = made;
        else
            error_set(error, status, "%s: %s", path, inside.message);
    }
    safetensors_close(&file);
    free(path);
    return status;
}
