#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "step_study.h"

static const char *const names[SLIP_COUNT] = {
    "none", "counter-k", "counter-0", "counter-p", "handoff-short",
    "handoff-long", "late", "window"
};

const char *slip_name(enum slip slip)
{
    return (unsigned)slip < SLIP_COUNT ? names[slip] : NULL;
}

struct slip_decoder {
    struct causal_lm lm;
    const struct generation *text;
    enum slip slip;
    struct past_key_values storage;   /* [1,Hk,P+n+1,D] */
    int32_t length, start;            /* slots in use; 0 */
    int32_t *positions;               /* [P+n] of a call */
    size_t scratch_floats;
    float *scratch, *logits;          /* logits [V] */
};

void slip_decoder_free(struct slip_decoder **made)
{
    if (made == NULL || *made == NULL)
        return;
    past_key_values_free(&(*made)->storage);
    free((*made)->positions);
    free((*made)->scratch);
    free((*made)->logits);
    free(*made);
    *made = NULL;
}

static enum status make_room(struct slip_decoder *made, struct error *error)
{
    const struct causal_lm *lm = &made->lm;
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    const int tokens = made->text->prompt_tokens + made->text->steps;
    made->scratch_floats = lm->scratch_size(
        lm->model, 1, made->text->prompt_tokens, tokens + 1);
    made->positions = calloc((size_t)tokens, sizeof *made->positions);
    made->scratch = calloc(made->scratch_floats, sizeof *made->scratch);
    made->logits = calloc((size_t)lm->vocab_size, sizeof *made->logits);
    if (made->positions == NULL || made->scratch == NULL
        || made->logits == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a decoder of %d tokens", tokens);
    return past_key_values_new(&made->storage, &shape, 1, tokens + 1, error);
}

enum status slip_decoder_new(struct slip_decoder **made,
                             const struct causal_lm *lm,
                             const struct generation *text, enum slip slip,
                             struct error *error)
{
    if (made == NULL || lm == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         made == NULL ? "made" : "lm");
    enum status status = generation_check(text, lm->vocab_size,
                                          lm->context_length, error);
    if (status != STATUS_OK)
        return status;
    struct slip_decoder *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a decoder");
    fresh->lm = *lm;
    fresh->text = text;
    fresh->slip = slip;
    status = make_room(fresh, error);
    if (status == STATUS_OK)
        *made = fresh;
    else
        slip_decoder_free(&fresh);
    return status;
}

static enum status feed(struct slip_decoder *made, const int32_t *ids,
                        int tokens, int position, struct error *error)
{
    const int most = made->text->prompt_tokens;
    const int room = most + made->text->steps + 1 - made->length;
    if (tokens < 1 || tokens > most || tokens > room)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d",
                         most < room ? most : room, tokens);
    for (int t = 0; t < tokens; t++)
        made->positions[t] = position + t;
    enum status status = tokens_check(&made->lm, ids, made->positions, 1,
                                      tokens, error);
    if (status != STATUS_OK)
        return status;
    const struct step step = {
        .ids = ids, .positions = made->positions, .batch = 1,
        .tokens = tokens, .storage = &made->storage,
        .lengths = &made->length, .last_only = true, .logits = made->logits
    };
    made->lm.run(made->lm.model, &step, made->scratch);
    made->length += tokens;
    return STATUS_OK;
}

static enum status prefill(void *state, const int32_t *ids, int tokens,
                           const float **logits, struct error *error)
{
    struct slip_decoder *made = state;
    made->length = 0;
    enum status status = feed(made, ids, tokens, 0, error);
    if (status != STATUS_OK)
        return status;
    if (made->slip == SLIP_SHORT)
        made->length--;
    if (made->slip == SLIP_LONG)
        made->length++;
    if (made->slip == SLIP_LATE && made->text->steps > 0)
        status = feed(made, made->text->continuation, 1, tokens, error);
    *logits = made->logits;
    return status;
}

static void lose_oldest(struct slip_decoder *made)
{
    for (int layer = 0; layer < made->storage.n_layers; layer++)
        for (int part = 0; part < 2; part++) {
            const struct layer_kv *pair = &made->storage.layers[layer];
            const struct tensor *tensor = part ? &pair->value : &pair->key;
            const size_t row = (size_t)tensor->shape[3];
            const size_t slice = (size_t)tensor->shape[2] * row;
            for (int head = 0; head < tensor->shape[1]; head++) {
                float *first = tensor->data + (size_t)head * slice;
                memmove(first, first + row,
                        (slice - row) * sizeof *first);
            }
        }
    made->length--;
}

static enum status decode_step(void *state, int32_t id, int position,
                               const float **logits, struct error *error)
{
    struct slip_decoder *made = state;
    const struct generation *text = made->text;
    const int k = position - text->prompt_tokens;
    const int window = text->prompt_tokens + text->steps / 2;
    enum status status = STATUS_OK;
    if (made->slip == SLIP_WINDOW && made->length >= window)
        lose_oldest(made);
    if (made->slip != SLIP_LATE)
        status = feed(made, &id, 1,
                      made->slip == SLIP_COUNTER_K ? k
                      : made->slip == SLIP_COUNTER_0 ? 0
                      : made->slip == SLIP_COUNTER_P ? text->prompt_tokens
                      : position, error);
    else if (k + 1 < text->steps)
        status = feed(made, text->continuation + k + 1, 1, position + 1, error);
    *logits = made->logits;
    return status;
}

static struct kv_inputs view(void *state)
{
    const struct slip_decoder *made = state;
    if (made->length == 0)
        return (struct kv_inputs){NULL, NULL, NULL};
    return (struct kv_inputs){&made->storage, &made->length, &made->start};
}

struct decoder slip_decoder(struct slip_decoder *made)
{
    return (struct decoder){
        .state = made, .vocab_size = made->lm.vocab_size,
        .room = made->text->prompt_tokens + made->text->steps,
        .prefill = prefill, .decode_step = decode_step, .cache = view
    };
}

enum status step_differences(const struct causal_lm *lm,
                             const struct decoder *decoder,
                             const struct generation *text,
                             double *differences, struct error *error)
{
    struct tensor rows = {0}, expected = {0};
    enum status status = per_step_logits(decoder, text, &rows, error);
    if (status == STATUS_OK)
        status = recompute_logits(lm, text, &expected, error);
    if (status == STATUS_OK && rows.shape[1] != expected.shape[1])
        status = error_set(error, STATUS_INVALID,
                           "vocab_size: expected %d, got %d",
                           expected.shape[1], rows.shape[1]);
    for (int k = 0; status == STATUS_OK && k < text->steps; k++) {
        const size_t width = (size_t)rows.shape[1];
        differences[k] = 0;
        for (size_t v = (size_t)k * width; v < (size_t)(k + 1) * width; v++) {
            const double difference = fabs((double)rows.data[v]
                                           - (double)expected.data[v]);
            differences[k] = isnan(difference)
                             ? INFINITY : fmax(differences[k], difference);
        }
    }
    tensor_free(&rows);
    tensor_free(&expected);
    return status;
}
