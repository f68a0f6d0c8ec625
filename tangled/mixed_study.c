#include "mixed_study.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cache_aware.h"

struct study {
    const struct tiny_gpt *model;
    const int32_t *lengths;
    int batch, tokens, longest;
    int32_t *ids, *positions, *starts;   /* [B,T], [B,T], [B] */
    struct past_key_values past;         /* [B,H,longest,D] */
    struct tensor alone;                 /* [B,T,V] what is right */
    double *errors;                      /* [2,B] padded, mixed */
};

static void study_free(struct study *study)
{
    free(study->ids);
    free(study->positions);
    free(study->starts);
    free(study->errors);
    past_key_values_free(&study->past);
    tensor_free(&study->alone);
}

static enum status study_new(struct study *study, struct error *error)
{
    const size_t batch = (size_t)study->batch;
    const size_t each = (size_t)study->tokens * sizeof *study->ids;
    const struct gpt_config *config = tiny_gpt_config(study->model);
    study->ids = calloc(batch, each);
    study->positions = calloc(batch, each);
    study->starts = calloc(batch, sizeof *study->starts);
    study->errors = calloc(batch, 2 * sizeof *study->errors);
    if (study->ids == NULL || study->positions == NULL
        || study->starts == NULL || study->errors == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "study: no memory for %d rows", study->batch);
    enum status status = tensor_new(&study->alone,
                                    SHAPE(study->batch, study->tokens,
                                          config->vocab_size), error);
    if (status == STATUS_OK && study->longest > 0)
        status = past_key_values_new(&study->past, config, study->batch,
                                     study->longest, error);
    return status;
}

static void copy_slots(const struct tensor *from, int length, int b,
                       struct tensor *to)
{
    const size_t dim = (size_t)from->shape[3];
    const size_t in = (size_t)from->shape[2] * dim;
    const size_t out = (size_t)to->shape[2] * dim;
    const size_t heads = (size_t)from->shape[1];
    for (size_t h = 0; h < heads; h++)
        memcpy(to->data + ((size_t)b * heads + h) * out, from->data + h * in,
               (size_t)length * dim * sizeof *to->data);
}

static enum status run_alone(struct study *study, const int32_t *ids, int b,
                             struct error *error)
{
    const int length = study->lengths[b], tokens = study->tokens;
    const struct forward_input input = {
        .ids = ids, .batch = 1, .tokens = length + tokens, .use_cache = true
    };
    struct forward_output output = {0};
    enum status status = tiny_gpt_forward(study->model, &input, &output,
                                          error);
    if (status != STATUS_OK)
        return status;
    const size_t width = (size_t)output.logits.shape[2];
    const size_t row = (size_t)b * (size_t)tokens;
    memcpy(study->ids + row, ids + length, (size_t)tokens * sizeof *ids);
    for (int t = 0; t < tokens; t++)
        study->positions[row + (size_t)t] = length + t;
    memcpy(study->alone.data + row * width,
           output.logits.data + (size_t)length * width,
           (size_t)tokens * width * sizeof *output.logits.data);
    for (int l = 0; l < study->past.n_layers; l++) {
        struct layer_kv *past = &study->past.layers[l];
        const struct layer_kv *made = &output.past_key_values.layers[l];
        copy_slots(&made->key, length, b, &past->key);
        copy_slots(&made->value, length, b, &past->value);
    }
    forward_output_free(&output);
    return STATUS_OK;
}

static void compare(const struct study *study, const struct tensor *logits,
                    double *errors)
{
    const size_t each = (size_t)logits->shape[1] * (size_t)logits->shape[2];
    for (int b = 0; b < study->batch; b++) {
        const float *got = logits->data + (size_t)b * each;
        const float *want = study->alone.data + (size_t)b * each;
        errors[b] = 0;
        for (size_t k = 0; k < each; k++)
            errors[b] = fmax(errors[b], fabs((double)got[k]
                                             - (double)want[k]));
    }
}

static enum status run_padded(struct study *study, struct error *error)
{
    const struct forward_input input = {
        .ids = study->ids, .batch = study->batch, .tokens = study->tokens,
        .past_key_values = study->longest > 0 ? &study->past : NULL
    };
    struct forward_output output = {0};
    enum status status = tiny_gpt_forward(study->model, &input, &output,
                                          error);
    if (status == STATUS_OK)
        compare(study, &output.logits, study->errors);
    forward_output_free(&output);
    return status;
}

static enum status run_mixed(struct study *study, struct error *error)
{
    const struct causal_lm lm = tiny_gpt_causal_lm(study->model);
    const bool past = study->longest > 0;
    const struct cache_aware_input input = {
        .ids = study->ids, .positions = study->positions,
        .batch = study->batch, .tokens = study->tokens,
        .past = past ? &study->past : NULL,
        .cache_lengths = past ? study->lengths : NULL,
        .cache_start_positions = past ? study->starts : NULL
    };
    struct cache_aware_output output = {0};
    enum status status = cache_aware_forward(&lm, &input, &output, error);
    if (status == STATUS_OK)
        compare(study, &output.logits, study->errors + study->batch);
    cache_aware_output_free(&output);
    return status;
}

enum status mixed_errors(const struct tiny_gpt *model, const int32_t *ids,
                         const int32_t *lengths, int batch, int tokens,
                         double *padded, double *mixed, struct error *error)
{
    struct study study = {.model = model, .lengths = lengths, .batch = batch,
                          .tokens = tokens};
    for (int b = 0; b < batch; b++)
        if (lengths[b] > study.longest)
            study.longest = lengths[b];
    enum status status = study_new(&study, error);
    for (int b = 0; b < batch && status == STATUS_OK; b++)
        status = run_alone(&study, ids + b * (study.longest + tokens), b,
                           error);
    if (status == STATUS_OK)
        status = run_padded(&study, error);
    if (status == STATUS_OK)
        status = run_mixed(&study, error);
    if (status == STATUS_OK) {
        memcpy(padded, study.errors, (size_t)batch * sizeof *padded);
        memcpy(mixed, study.errors + batch, (size_t)batch * sizeof *mixed);
    }
    study_free(&study);
    return status;
}
