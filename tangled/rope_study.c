#include "rope_study.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "generator.h"
#include "rope.h"

static void fill(const struct llama *model)
{
    struct generator generator;
    generator_seed(&generator, 13, 0);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct tensor *tensor = llama_tensor_at(model, k)->tensor;
        const double mean = tensor->rank == 1 ? 1 : 0;
        for (size_t n = 0; n < tensor_size(tensor); n++)
            tensor->data[n] =
                (float)(mean + 0.2 * generator_normal(&generator));
    }
}

enum status rope_study_model(struct llama **model, struct error *error)
{
    const struct llama_config config = {
        .vocab_size = 23, .context_length = 256, .d_model = 32,
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8,
        .d_ff = 48, .rms_norm_eps = 1e-5, .rope_theta = 10000
    };
    enum status status = llama_new(model, &config, error);
    if (status == STATUS_OK)
        fill(*model);
    return status;
}

enum { SPARE_SLOTS = 4 };

struct study {
    struct causal_lm lm;
    const int32_t *ids;
    int prompt, all;                  /* tokens, of prompt and text */
    int slots;                        /* all, and some to spare */
    struct past_key_values storage;   /* [1,Hk,slots,D] */
    size_t scratch_floats;
    float *scratch;
    int32_t *positions;               /* [all] 0, 1, … */
    float *whole, *logits;            /* [all,V] what is right; a run's */
};

static void study_free(struct study *study)
{
    past_key_values_free(&study->storage);
    free(study->scratch);
    free(study->positions);
    free(study->whole);
    free(study->logits);
}

static enum status study_new(struct study *study, struct error *error)
{
    const struct gpt_config shape = cache_shape_config(&study->lm.cache);
    const size_t all = (size_t)study->all;
    const size_t row = (size_t)study->lm.vocab_size * sizeof (float);
    study->scratch_floats = study->lm.scratch_size(
        study->lm.model, 1, study->all, study->slots);
    study->scratch = calloc(study->scratch_floats, sizeof *study->scratch);
    study->positions = calloc(all, sizeof *study->positions);
    study->whole = calloc(all, row);
    study->logits = calloc(all, row);
    if (study->scratch == NULL || study->positions == NULL
        || study->whole == NULL || study->logits == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "study: no memory for %d tokens", study->all);
    for (int t = 0; t < study->all; t++)
        study->positions[t] = t;
    return past_key_values_new(&study->storage, &shape, 1, study->slots,
                               error);
}

static enum status run_whole(struct study *study, struct error *error)
{
    const int32_t length = 0;
    const struct step step = {
        .ids = study->ids, .positions = study->positions, .batch = 1,
        .tokens = study->all, .storage = &study->storage, .lengths = &length,
        .logits = study->whole
    };
    return causal_lm_step(&study->lm, &step, study->scratch,
                          study->scratch_floats, error);
}

static void mark_storage(const struct past_key_values *storage)
{
    for (int l = 0; l < storage->n_layers; l++) {
        const struct layer_kv *layer = &storage->layers[l];
        const size_t bytes = tensor_size(&layer->key) * sizeof (float);
        memset(layer->key.data, 0xff, bytes);
        memset(layer->value.data, 0xff, bytes);
    }
}

static size_t bytes_changed(const struct tensor *tensor)
{
    size_t floats = 0;
    for (size_t k = 0; k < tensor_size(tensor); k++) {
        uint32_t bits;
        memcpy(&bits, &tensor->data[k], sizeof bits);
        floats += bits != UINT32_MAX;
    }
    return floats * sizeof (float);
}

static size_t bytes_written(const struct past_key_values *storage)
{
    size_t bytes = 0;
    for (int l = 0; l < storage->n_layers; l++)
        bytes += bytes_changed(&storage->layers[l].key)
                 + bytes_changed(&storage->layers[l].value);
    return bytes;
}

static void run_steps(struct study *study, bool reset, struct rope_run *made)
{
    const size_t width = (size_t)study->lm.vocab_size;
    int32_t done = 0;
    mark_storage(&study->storage);
    while (done < study->all) {
        const int32_t first = done > 0 && reset ? 0 : done;
        const struct step step = {
            .ids = study->ids + done, .positions = study->positions + first,
            .batch = 1, .tokens = done == 0 ? study->prompt : 1,
            .storage = &study->storage, .lengths = &done,
            .logits = study->logits
        };
        study->lm.run(study->lm.model, &step, study->scratch);
        double worst = 0;
        for (size_t v = 0; v < width; v++) {
            const double error = fabs((double)study->logits[v]
                                      - study->whole[(size_t)done * width + v]);
            worst = isnan(error) ? INFINITY : fmax(worst, error);
        }
        if (done >= study->prompt)
            made->errors[done - study->prompt] = worst;
        done += step.tokens;
    }
    made->bytes_written = bytes_written(&study->storage);
}

enum status rope_step_errors(const struct llama *model, const int32_t *ids,
                             int prompt, int steps, struct rope_run *counted,
                             struct rope_run *reset, struct error *error)
{
    if (prompt < 1 || steps < 1 || steps > INT32_MAX - SPARE_SLOTS - prompt)
        return error_set(error, STATUS_INVALID,
                         "prompt, steps: expected at least 1, got %d, %d",
                         prompt, steps);
    struct study study = {.lm = llama_causal_lm(model), .ids = ids,
                          .prompt = prompt, .all = prompt + steps,
                          .slots = prompt + steps + SPARE_SLOTS};
    enum status status = study_new(&study, error);
    if (status == STATUS_OK)
        status = run_whole(&study, error);
    if (status == STATUS_OK) {
        run_steps(&study, false, counted);
        run_steps(&study, true, reset);
    }
    study_free(&study);
    return status;
}

enum { SHIFT_DIM = 64, SHIFT_PAIRS = SHIFT_DISTANCE_MAX + 1 };
static const double shift_theta = 10000;

static void rope_float(float *x, int32_t position)
{
    const int half = SHIFT_DIM / 2;
    for (int i = 0; i < half; i++) {
        const float frequency = (float)pow(shift_theta,
                                           -2.0 * i / SHIFT_DIM);
        const float turn = (float)position * frequency;
        const float a = x[i], b = x[i + half];
        x[i] = a * cosf(turn) - b * sinf(turn);
        x[i + half] = b * cosf(turn) + a * sinf(turn);
    }
}

typedef void turner(float *x, int32_t position);

static void rope_double(float *x, int32_t position)
{
    rope_rotate(x, 1, 1, SHIFT_DIM, &position, shift_theta);
}

static double dot(turner *turn, const float *q, const float *k,
                  int32_t query_position, int32_t key_position)
{
    float a[SHIFT_DIM], b[SHIFT_DIM];
    memcpy(a, q, sizeof a);
    memcpy(b, k, sizeof b);
    turn(a, query_position);
    turn(b, key_position);
    double sum = 0;
    for (int d = 0; d < SHIFT_DIM; d++)
        sum += (double)a[d] * b[d];
    return sum;
}

struct rope_shift rope_shift_errors(int32_t offset)
{
    struct rope_shift worst = {0, 0};
    struct generator generator;
    generator_seed(&generator, 13, 1);
    for (int n = 0; n < SHIFT_PAIRS; n++) {
        float q[SHIFT_DIM], k[SHIFT_DIM];
        double qq = 0, kk = 0;
        for (int d = 0; d < SHIFT_DIM; d++) {
            q[d] = (float)generator_normal(&generator);
            k[d] = (float)generator_normal(&generator);
            qq += (double)q[d] * q[d];
            kk += (double)k[d] * k[d];
        }
        const double size = sqrt(qq * kk);
        const double doubles = dot(rope_double, q, k, offset + n, offset)
                               - dot(rope_double, q, k, n, 0);
        const double floats = dot(rope_float, q, k, offset + n, offset)
                              - dot(rope_float, q, k, n, 0);
        worst.doubles = fmax(worst.doubles, fabs(doubles) / size);
        worst.floats = fmax(worst.floats, fabs(floats) / size);
    }
    return worst;
}
