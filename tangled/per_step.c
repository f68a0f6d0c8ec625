#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "per_step.h"

static enum status ids_check(const char *name, const int32_t *ids, int count,
                             int vocab_size, struct error *error)
{
    for (int i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return error_set(error, STATUS_INVALID,
                             "%s[%d]: expected 0 to %d, got %d", name, i,
                             vocab_size - 1, (int)ids[i]);
    }
    return STATUS_OK;
}

enum status generation_check(const struct generation *text, int vocab_size,
                             int room, struct error *error)
{
    if (text == NULL)
        return error_set(error, STATUS_INVALID, "text: is NULL");
    if (text->prompt_tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "prompt_tokens: expected at least 1, got %d",
                         text->prompt_tokens);
    if (text->steps < 0)
        return error_set(error, STATUS_INVALID,
                         "steps: expected at least 0, got %d", text->steps);
    if (text->prompt_tokens > room || text->steps > room - text->prompt_tokens)
        return error_set(error, STATUS_INVALID,
                         "steps: expected at most %d for a prompt of %d, got %d",
                         room - text->prompt_tokens, text->prompt_tokens,
                         text->steps);
    const char *missing = text->prompt == NULL ? "prompt"
                          : text->continuation == NULL && text->steps > 0
                          ? "continuation" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    enum status status = ids_check("prompt", text->prompt,
                                   text->prompt_tokens, vocab_size, error);
    if (status == STATUS_OK)
        status = ids_check("continuation", text->continuation, text->steps,
                           vocab_size, error);
    return status;
}

/* Is shown row k [V]; false ends the walk. */
typedef bool watch_rows(void *watcher, int k, const float *logits);

static enum status walk(const struct decoder *decoder,
                        const struct generation *text, watch_rows *watch,
                        void *watcher, struct error *error)
{
    const float *logits = NULL;
    enum status status;
    status = decoder->prefill(decoder->state, text->prompt, text->prompt_tokens,
                              &logits, error);
    for (int k = 0; k < text->steps && status == STATUS_OK; k++) {
        if (!watch(watcher, k, logits))
            break;
        status = decoder->decode_step(decoder->state, text->continuation[k],
                                      text->prompt_tokens + k, &logits, error);
    }
    return status;
}

static enum status rows_new(const struct generation *text, int vocab_size,
                            int room, const struct tensor *rows,
                            struct tensor *made, struct error *error)
{
    if (rows == NULL || rows->data != NULL)
        return error_set(error, STATUS_INVALID,
                         "rows: expected an empty tensor");
    enum status status = generation_check(text, vocab_size, room, error);
    if (status == STATUS_OK && text->steps > 0)
        status = tensor_new(made, SHAPE(text->steps, vocab_size), error);
    return status;
}

static bool record(void *watcher, int k, const float *logits)
{
    const struct tensor *rows = watcher;
    const size_t width = (size_t)rows->shape[1];
    memcpy(rows->data + (size_t)k * width, logits, width * sizeof *logits);
    return true;
}

enum status per_step_logits(const struct decoder *decoder,
                            const struct generation *text,
                            struct tensor *rows, struct error *error)
{
    struct tensor made = {0};
    if (decoder == NULL)
        return error_set(error, STATUS_INVALID, "decoder: is NULL");
    enum status status = rows_new(text, decoder->vocab_size, decoder->room,
                                  rows, &made, error);
    if (status == STATUS_OK)
        status = walk(decoder, text, record, &made, error);
    if (status == STATUS_OK)
        *rows = made;
    else
        tensor_free(&made);
    return status;
}

struct oracle {
    struct causal_lm lm;
    int prompt;                  /* P */
    int32_t *ids, *positions;    /* [P+n] the text, and 0, 1, … */
    struct past_key_values storage;   /* [1,Hk,P+n,D] */
    size_t scratch_floats;
    float *scratch, *logits;     /* logits [V] */
};

static void oracle_free(struct oracle *oracle)
{
    free(oracle->ids);
    free(oracle->positions);
    past_key_values_free(&oracle->storage);
    free(oracle->scratch);
    free(oracle->logits);
}

static enum status oracle_new(struct oracle *oracle,
                              const struct causal_lm *lm,
                              const struct generation *text,
                              struct error *error)
{
    const int tokens = text->prompt_tokens + text->steps;
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    oracle->lm = *lm;
    oracle->prompt = text->prompt_tokens;
    oracle->scratch_floats = lm->scratch_size(lm->model, 1, tokens, tokens);
    oracle->ids = calloc((size_t)tokens, sizeof *oracle->ids);
    oracle->positions = calloc((size_t)tokens, sizeof *oracle->positions);
    oracle->scratch = calloc(oracle->scratch_floats, sizeof *oracle->scratch);
    oracle->logits = calloc((size_t)lm->vocab_size, sizeof *oracle->logits);
    if (oracle->ids == NULL || oracle->positions == NULL
        || oracle->scratch == NULL || oracle->logits == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory to recompute %d tokens", tokens);
    for (int t = 0; t < tokens; t++) {
        oracle->ids[t] = t < text->prompt_tokens
                         ? text->prompt[t]
                         : text->continuation[t - text->prompt_tokens];
        oracle->positions[t] = t;
    }
    return past_key_values_new(&oracle->storage, &shape, 1, tokens, error);
}

static enum status oracle_row(struct oracle *oracle, int k,
                              struct error *error)
{
    const int32_t length = 0;
    const struct step step = {
        .ids = oracle->ids, .positions = oracle->positions, .batch = 1,
        .tokens = oracle->prompt + k, .storage = &oracle->storage,
        .lengths = &length, .last_only = true, .logits = oracle->logits
    };
    return causal_lm_step(&oracle->lm, &step, oracle->scratch,
                          oracle->scratch_floats, error);
}

enum status recompute_logits(const struct causal_lm *lm,
                             const struct generation *text,
                             struct tensor *rows, struct error *error)
{
    struct tensor made = {0};
    struct oracle oracle = {.prompt = 0};
    if (lm == NULL)
        return error_set(error, STATUS_INVALID, "lm: is NULL");
    enum status status = rows_new(text, lm->vocab_size, lm->context_length,
                                  rows, &made, error);
    if (status == STATUS_OK)
        status = oracle_new(&oracle, lm, text, error);
    for (int k = 0; status == STATUS_OK && k < text->steps; k++) {
        status = oracle_row(&oracle, k, error);
        if (status == STATUS_OK)
            (void)record(&made, k, oracle.logits);
    }
    oracle_free(&oracle);
    if (status == STATUS_OK)
        *rows = made;
    else
        tensor_free(&made);
    return status;
}

struct comparison {
    const struct decoder *decoder;
    const struct generation *text;
    struct allclose bound;
    struct oracle oracle;
    double *differences;         /* [n], or NULL */
    struct identity found;
    enum status status;          /* of the watcher */
    struct error *error;
};

static bool is_expected(const struct allclose *bound, float got,
                        float expected)
{
    const double difference = fabs((double)got - (double)expected);
    return isfinite(difference)
           && difference <= bound->absolute
                            + bound->relative * fabs((double)expected);
}

static const float *slot_row(const struct past_key_values *past, int layer,
                             bool value, int head, int slot)
{
    const struct tensor *tensor = value ? &past->layers[layer].value
                                        : &past->layers[layer].key;
    return tensor->data + ((ptrdiff_t)head * tensor->shape[2] + slot)
                          * tensor->shape[3];
}

static bool same_row(const struct comparison *comparison, const float *got,
                     const float *expected)
{
    for (int d = 0; d < comparison->oracle.lm.cache.head_dim; d++)
        if (!is_expected(&comparison->bound, got[d], expected[d]))
            return false;
    return true;
}

static enum status look_for_layer(struct comparison *comparison,
                                  const struct kv_inputs *cache, int tokens)
{
    struct identity *found = &comparison->found;
    const struct past_key_values *storage = &comparison->oracle.storage;
    const struct gpt_config shape =
        cache_shape_config(&comparison->oracle.lm.cache);
    enum status status = past_key_values_check(cache->past, &shape, 1,
                                               comparison->error);
    if (status != STATUS_OK)
        return status;
    for (int layer = 0; layer < storage->n_layers; layer++)
        for (int slot = 0; slot < tokens; slot++)
            for (int part = 0; part < 2; part++)
                for (int head = 0; head < shape.n_heads; head++) {
                    if (same_row(comparison,
                                 slot_row(cache->past, layer, part, head, slot),
                                 slot_row(storage, layer, part, head, slot)))
                        continue;
                    found->layer = layer;
                    found->position = slot;
                    found->head = head;
                    found->value = part;
                    return STATUS_OK;
                }
    found->layer = storage->n_layers;
    found->position = tokens - 1;
    return STATUS_OK;
}

static bool compare(void *watcher, int k, const float *logits)
{
    struct comparison *comparison = watcher;
    const struct decoder *decoder = comparison->decoder;
    const struct kv_inputs cache = decoder->cache(decoder->state);
    const int tokens = comparison->text->prompt_tokens + k;
    double worst = 0;
    int beyond = -1;
    const int cached = cache.past == NULL ? 0 : cache.lengths[0];
    if (cached != tokens) {
        comparison->found.verdict = CACHE_DIFFERS;
        comparison->found.cached = cached;
        return false;
    }
    comparison->status = oracle_row(&comparison->oracle, k,
                                    comparison->error);
    if (comparison->status != STATUS_OK)
        return false;
    const float *expected = comparison->oracle.logits;
    for (int v = 0; v < decoder->vocab_size; v++) {
        const double difference = fabs((double)logits[v] - (double)expected[v]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
        if (beyond < 0
            && !is_expected(&comparison->bound, logits[v], expected[v]))
            beyond = v;
    }
    if (comparison->differences != NULL)
        comparison->differences[k] = worst;
    struct identity *found = &comparison->found;
    if (beyond >= 0) {
        found->verdict = LOGITS_DIFFER;
        found->id = beyond;
        found->got = logits[beyond];
        found->expected = expected[beyond];
        comparison->status = look_for_layer(comparison, &cache, tokens);
        return false;
    }
    found->largest = fmax(found->largest, worst);
    found->steps = k + 1;
    return true;
}

enum status per_step_compare(const struct causal_lm *lm,
                             const struct decoder *decoder,
                             const struct generation *text,
                             const struct allclose *bound,
                             double *differences, struct identity *identity,
                             struct error *error)
{
    const char *missing = lm == NULL ? "lm" : decoder == NULL ? "decoder"
                          : bound == NULL ? "bound"
                          : identity == NULL ? "identity" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (decoder->vocab_size != lm->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "vocab_size: expected %d, got %d", lm->vocab_size,
                         decoder->vocab_size);
    if (!isfinite(bound->absolute) || bound->absolute < 0
        || !isfinite(bound->relative) || bound->relative < 0)
        return error_set(error, STATUS_INVALID,
                         "bound: expected finite numbers from 0, got %g and %g",
                         bound->absolute, bound->relative);
    const int room = decoder->room < lm->context_length ? decoder->room
                                                        : lm->context_length;
    enum status checked = generation_check(text, lm->vocab_size, room, error);
    if (checked != STATUS_OK)
        return checked;
    struct comparison comparison = {
        .decoder = decoder, .text = text, .bound = *bound,
        .differences = differences, .error = error
    };
    enum status status = oracle_new(&comparison.oracle, lm, text, error);
    if (status == STATUS_OK)
        status = walk(decoder, text, compare, &comparison, error);
    if (status == STATUS_OK)
        status = comparison.status;
    if (status == STATUS_OK)
        *identity = comparison.found;
    oracle_free(&comparison.oracle);
    return status;
}
