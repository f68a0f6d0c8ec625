/* Chapter 20: per-step identity. A decoder without a model says what the loop
   feeds and when; then models of both families against recomputation, other
   computations and the oracle's rows; then decoders that are wrong somewhere,
   and what the comparison says about them. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "checkpoint.h"
#include "step_study.h"
#include "support/allocator.h"
#include "support/llama_plain.h"
#include "support/program.h"
#include "support/scripted.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

#define BEGIN "begin anew, and feed the prompt"
#define DOOR "refuse a position that is not the next"
#define FIT "refuse a text that does not fit"
#define TOKEN "refuse an id of the text that is none"
#define HANDOFF "hand the whole prompt over"
#define ORDER "record the prediction, then consume its token"
#define PLACE "consume token k at its place in the text"
#define COPY "copy the row to its place"
#define ORACLE "run the whole prefix from its beginning"
#define CACHE "hold the cache against the text"
#define BOUND "decide whether a number is the expected one"
#define JUDGE "judge the numbers of row k"
#define STOP "stop at the first row that differs"
#define LAYER "name the first layer that differs"

enum { V = 13, N = 24, TEXT = 24, FAMILIES = 3 };

/* The lab's bound, and the project's. */
static const struct allclose lab = {1e-3, 1e-2}, close_by = {1e-5, 1e-5};

/* A text of noise, cut behind `prompt` tokens. */
struct text_of_noise {
    int32_t ids[TEXT];
    struct generation generation;
};

static void noise_text(struct text_of_noise *text, unsigned stream,
                       int prompt, int steps)
{
    uint64_t state = noise_start(stream);
    noise_ids(&state, V, 1, TEXT, text->ids);
    text->generation = (struct generation){text->ids, prompt,
                                           text->ids + prompt, steps};
}

/* ------------------------------------------- a decoder that is only a diary */

enum { FAKE_CALLS = 64 };

struct fake {
    bool constant;               /* it says the same, whatever it has seen */
    int fail_at;                 /* the call that fails; 0: none */
    uint32_t hash;               /* of all ids in order */
    int tokens, calls;
    struct { int32_t id; int position, before, count; } call[FAKE_CALLS];
    float logits[V];
};

static void fake_says(uint32_t hash, bool constant, float *logits)
{
    uint64_t state = noise_mix(constant ? 7 : hash + 1000);
    noise_floats(&state, V, logits);
}

static uint32_t fake_hash(uint32_t hash, int32_t id)
{
    return (uint32_t)(noise_mix(hash * 64u + (uint32_t)id + 1) >> 32);
}

static enum status fake_take(struct fake *fake, const int32_t *ids, int count,
                             int position, const float **logits,
                             struct error *e)
{
    const int at = fake->calls++ % FAKE_CALLS;
    fake->call[at].id = ids[0];
    fake->call[at].position = position;
    fake->call[at].before = fake->tokens;
    fake->call[at].count = count;
    if (fake->calls == fake->fail_at)
        return error_set(e, STATUS_IO, "the fake fails");
    for (int t = 0; t < count; t++)
        fake->hash = fake_hash(fake->hash, ids[t]);
    fake->tokens += count;
    fake_says(fake->hash, fake->constant, fake->logits);
    *logits = fake->logits;
    return STATUS_OK;
}

static enum status fake_prefill(void *state, const int32_t *ids, int tokens,
                                const float **logits, struct error *e)
{
    struct fake *fake = state;
    fake->hash = 0;
    fake->tokens = 0;
    return fake_take(fake, ids, tokens, 0, logits, e);
}

static enum status fake_step(void *state, int32_t id, int position,
                             const float **logits, struct error *e)
{
    return fake_take(state, &id, 1, position, logits, e);
}

static struct kv_inputs fake_cache(void *state)
{
    (void)state;
    return (struct kv_inputs){NULL, NULL, NULL};
}

static struct decoder fake_decoder(struct fake *fake)
{
    return (struct decoder){
        .state = fake, .vocab_size = V, .room = N, .prefill = fake_prefill,
        .decode_step = fake_step, .cache = fake_cache
    };
}

/* ------------------------------------------------------- models and requests */

struct families {
    struct tiny_gpt *gpt;
    struct llama *llama, *moe;
    struct causal_lm lm[FAMILIES];
};

static struct families families_new(void)
{
    const struct gpt_config config = {
        .vocab_size = V, .context_length = N, .d_model = 10, .n_layers = 3,
        .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    const struct llama_config dense = small_llama_config();
    const struct llama_config experts = small_moe_config();
    struct families made = {noisy_model(&config, 200),
                            noisy_llama(&dense, 201),
                            noisy_llama(&experts, 202), {{0}}};
    made.lm[0] = tiny_gpt_causal_lm(made.gpt);
    made.lm[1] = llama_causal_lm(made.llama);
    made.lm[2] = llama_causal_lm(made.moe);
    return made;
}

static void families_free(struct families *families)
{
    tiny_gpt_free(&families->gpt);
    llama_free(&families->llama);
    llama_free(&families->moe);
}

static struct request *new_request(const struct causal_lm *lm, int capacity,
                                   int most)
{
    struct request *request = NULL;
    expect_ok(request_new(&request, lm, 1, capacity, most, &error), &error);
    return request;
}

static struct decoder decoder_of(struct request *request)
{
    struct decoder decoder = {.state = NULL};
    expect_ok(request_decoder(request, &decoder, &error), &error);
    return decoder;
}

/* Another decoder with something done to it. */
struct spoiler {
    struct decoder inner;
    struct request *request;
    int row;                     /* of the logits at hand */
    int prompt;                  /* P, as prefill was told */
    /* At row `at` (and each later one with onward) one number is another. */
    int at, id;
    bool onward;
    float put;
    /* Before row `before` is decoded, one row of the storage is another. */
    int before, layer, head, slot;
    bool value;
    /* What the first step found. */
    int steps, cached;
    bool last_row_filled, next_row_empty;
    float logits[V];
};

static float *stored(struct request *request, int layer, bool value, int head,
                     int slot)
{
    const struct layer_kv *pair =
        &kv_cache_storage(request_cache(request))->layers[layer];
    const struct tensor *tensor = value ? &pair->value : &pair->key;
    return tensor->data + (head * tensor->shape[2] + slot) * tensor->shape[3];
}

static enum status spoil(struct spoiler *spoiler, enum status status,
                         const float **logits)
{
    if (status != STATUS_OK)
        return status;
    memcpy(spoiler->logits, *logits, sizeof spoiler->logits);
    if (spoiler->row == spoiler->at
        || (spoiler->onward && spoiler->row > spoiler->at))
        spoiler->logits[spoiler->id] = spoiler->put;
    *logits = spoiler->logits;
    return STATUS_OK;
}

static enum status spoiled_prefill(void *state, const int32_t *ids,
                                   int tokens, const float **logits,
                                   struct error *e)
{
    struct spoiler *spoiler = state;
    spoiler->row = 0;
    spoiler->prompt = tokens;
    return spoil(spoiler, spoiler->inner.prefill(spoiler->inner.state, ids,
                                                 tokens, logits, e), logits);
}

/* One float of the row in each layer, key and value. */
static void look_at_hand_off(struct spoiler *spoiler)
{
    struct kv_cache *cache = request_cache(spoiler->request);
    const struct past_key_values *storage = kv_cache_storage(cache);
    const int p = spoiler->prompt;
    spoiler->cached = kv_cache_lengths(cache)[0];
    spoiler->last_row_filled = spoiler->next_row_empty = true;
    for (int l = 0; l < storage->n_layers; l++)
        for (int part = 0; part < 2; part++) {
            if (stored(spoiler->request, l, part, 0, p - 1)[0] == 0)
                spoiler->last_row_filled = false;
            if (p < kv_cache_capacity(cache)
                && stored(spoiler->request, l, part, 0, p)[0] != 0)
                spoiler->next_row_empty = false;
        }
}

static enum status spoiled_step(void *state, int32_t id, int position,
                                const float **logits, struct error *e)
{
    struct spoiler *spoiler = state;
    if (spoiler->steps++ == 0)
        look_at_hand_off(spoiler);
    spoiler->row++;
    if (spoiler->row == spoiler->before) {
        float *row = stored(spoiler->request, spoiler->layer, spoiler->value,
                            spoiler->head, spoiler->slot);
        const int dim = kv_cache_storage(request_cache(spoiler->request))
                            ->layers[0].key.shape[3];
        for (int d = 0; d < dim; d++)
            row[d] += (float)(d % 2 ? -2 : 3);
    }
    return spoil(spoiler,
                 spoiler->inner.decode_step(spoiler->inner.state, id,
                                            position, logits, e), logits);
}

static struct kv_inputs spoiled_cache(void *state)
{
    struct spoiler *spoiler = state;
    return spoiler->inner.cache(spoiler->inner.state);
}

static struct spoiler spoiler_new(const struct causal_lm *lm, int capacity)
{
    struct spoiler made = {.at = -1, .before = -1};
    made.request = new_request(lm, capacity, capacity < 5 ? capacity : 5);
    made.inner = decoder_of(made.request);
    return made;
}

static struct decoder spoiled(struct spoiler *spoiler)
{
    return (struct decoder){
        .state = spoiler, .vocab_size = spoiler->inner.vocab_size,
        .room = spoiler->inner.room, .prefill = spoiled_prefill,
        .decode_step = spoiled_step, .cache = spoiled_cache
    };
}

static struct identity compare_ok(const struct causal_lm *lm,
                                  const struct decoder *decoder,
                                  const struct generation *text,
                                  const struct allclose *bound,
                                  double *differences)
{
    struct identity found = {.verdict = IDENTICAL};
    expect_ok(per_step_compare(lm, decoder, text, bound, differences, &found,
                               &error), &error);
    return found;
}

/* ------------------------------------------------------------------- decoders */

START_TEST(a_prefill_begins_a_new_text)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++) {
        struct text_of_noise first, second;
        noise_text(&first, 203, 5, 4);
        noise_text(&second, 204, 6, 0);
        struct request *used = new_request(&families.lm[f], N, 8);
        struct request *fresh = new_request(&families.lm[f], N, 8);
        struct decoder decoder = decoder_of(used);
        const float *got = NULL, *want = NULL;
        expect_ok(decoder.prefill(decoder.state, first.ids, 5, &got, &error),
                  &error);
        for (int k = 0; k < 4; k++)
            expect_ok(decoder.decode_step(decoder.state, first.ids[5 + k],
                                          5 + k, &got, &error), &error);
        expect_ok(decoder.prefill(decoder.state, second.ids, 6, &got, &error),
                  &error);
        expect_ok(request_feed(fresh, second.ids, 6, true, &want, &error),
                  &error);
        ck_assert_int_eq(kv_cache_lengths(request_cache(used))[0], 6);
        expect_same_bits("logits of the second text", got, want,
                         V * sizeof *got);
        const struct past_key_values *a =
            kv_cache_storage(request_cache(used));
        const struct past_key_values *b =
            kv_cache_storage(request_cache(fresh));
        for (int l = 0; l < a->n_layers; l++) {
            expect_same_bits("keys", a->layers[l].key.data,
                             b->layers[l].key.data,
                             tensor_size(&a->layers[l].key) * sizeof *got);
            expect_same_bits("values", a->layers[l].value.data,
                             b->layers[l].value.data,
                             tensor_size(&a->layers[l].value) * sizeof *got);
        }
        request_free(&used);
        request_free(&fresh);
    }
    families_free(&families);
}
END_TEST

START_TEST(a_prompt_longer_than_a_call_is_fed_in_chunks)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int most = 1; most < 12; most++) {
            struct text_of_noise text;
            noise_text(&text, 205, 11, 0);
            struct request *request = new_request(&families.lm[f], N, most);
            struct decoder decoder = decoder_of(request);
            struct request *whole = new_request(&families.lm[f], N, 11);
            const float *got = NULL, *want = NULL;
            expect_ok(decoder.prefill(decoder.state, text.ids, 11, &got,
                                      &error), &error);
            expect_ok(request_feed(whole, text.ids, 11, true, &want, &error),
                      &error);
            expect_same_bits("logits", got, want, V * sizeof *got);
            request_free(&request);
            request_free(&whole);
        }
    families_free(&families);
}
END_TEST

START_TEST(a_decoder_refuses_a_position_that_is_not_its_next)
{
    struct families families = families_new();
    static const int wrong[] = {0, 1, 4, 6, 7, N, -1, INT_MAX, INT_MIN};
    for (int f = 0; f < FAMILIES; f++) {
        struct text_of_noise text;
        noise_text(&text, 206, 5, 3);
        struct request *request = new_request(&families.lm[f], N, 5);
        struct decoder decoder = decoder_of(request);
        const struct past_key_values *storage =
            kv_cache_storage(request_cache(request));
        const size_t size = tensor_size(&storage->layers[0].key);
        float *before = malloc(size * sizeof *before);
        const float *logits = NULL, *kept;
        expect_ok(decoder.prefill(decoder.state, text.ids, 5, &logits,
                                  &error), &error);
        memcpy(before, storage->layers[0].key.data, size * sizeof *before);
        kept = logits;
        for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
            char message[64];
            ck_assert_int_eq(decoder.decode_step(decoder.state, 3, wrong[k],
                                                 &logits, &error),
                             STATUS_INVALID);
            snprintf(message, sizeof message, "position: expected 5, got %d",
                     wrong[k]);
            expect_facts(error.message, message);
            ck_assert_ptr_eq(logits, kept);
            ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 5);
            expect_same_bits("keys", storage->layers[0].key.data, before,
                             size * sizeof *before);
        }
        expect_ok(decoder.decode_step(decoder.state, 3, 5, &logits, &error),
                  &error);
        ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 6);
        free(before);
        request_free(&request);
    }
    families_free(&families);
}
END_TEST

/* A text that somebody loaded may begin elsewhere. */
START_TEST(a_loaded_text_goes_on_at_its_own_positions)
{
    struct families families = families_new();
    struct request *request = new_request(&families.lm[0], N, 5);
    struct decoder decoder = decoder_of(request);
    struct past_key_values past = {0};
    const struct gpt_config shape =
        cache_shape_config(&families.lm[0].cache);
    const int32_t length = 2, start = 7;
    const float *logits = NULL;
    expect_ok(past_key_values_new(&past, &shape, 1, 2, &error), &error);
    expect_ok(kv_cache_load(request_cache(request), &past, &length, &start,
                            &error), &error);
    ck_assert_int_eq(decoder.decode_step(decoder.state, 3, 2, &logits,
                                         &error), STATUS_INVALID);
    expect_ok(decoder.decode_step(decoder.state, 3, 9, &logits, &error),
              &error);
    past_key_values_free(&past);
    request_free(&request);
    families_free(&families);
}
END_TEST

START_TEST(a_decoder_has_the_room_of_its_cache_and_of_the_model)
{
    struct families families = families_new();
    for (int capacity = N - 3; capacity <= N + 3; capacity++) {
        struct request *request = new_request(&families.lm[0], capacity, 4);
        struct decoder decoder = decoder_of(request);
        ck_assert_int_eq(decoder.vocab_size, V);
        ck_assert_int_eq(decoder.room, capacity < N ? capacity : N);
        ck_assert_ptr_null(decoder.cache(decoder.state).past);
        request_free(&request);
    }
    families_free(&families);
}
END_TEST

START_TEST(only_a_request_of_one_row_is_a_decoder)
{
    struct families families = families_new();
    struct request *request = NULL;
    struct decoder decoder = {.room = 77};
    expect_ok(request_new(&request, &families.lm[0], 2, N, 4, &error),
              &error);
    ck_assert_int_eq(request_decoder(request, &decoder, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "batch: expected 1, got 2");
    ck_assert_int_eq(request_decoder(NULL, &decoder, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "request: is NULL");
    ck_assert_int_eq(request_decoder(request, NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "decoder: is NULL");
    ck_assert_int_eq(decoder.room, 77);
    request_free(&request);
    families_free(&families);
}
END_TEST

/* ---------------------------------------------------------- what is refused */

static void refused(const struct generation *text, const char *message)
{
    struct fake fake = {.fail_at = 0};
    struct decoder decoder = fake_decoder(&fake);
    struct tensor rows = {0};
    ck_assert_int_eq(per_step_logits(&decoder, text, &rows, &error),
                     STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(fake.calls, 0);
    ck_assert_ptr_null(rows.data);
    ck_assert_int_eq(generation_check(text, V, N, &error), STATUS_INVALID);
}

START_TEST(a_continuation_that_is_one_too_long_is_refused)
{
    for (int prompt = 1; prompt <= N; prompt++) {
        char message[96];
        struct text_of_noise text;
        noise_text(&text, 207, prompt, N - prompt + 1);
        snprintf(message, sizeof message, "steps: expected at most %d for a"
                 " prompt of %d, got %d", N - prompt, prompt,
                 N - prompt + 1);
        refused(&text.generation, message);
        text.generation.steps--;
        expect_ok(generation_check(&text.generation, V, N, &error), &error);
    }
    struct text_of_noise text;
    noise_text(&text, 207, N, 0);
    text.generation.prompt_tokens = N + 1;
    refused(&text.generation, "steps: expected at most -1 for a prompt of 25,"
            " got 0");
    text.generation.prompt_tokens = INT_MAX;
    text.generation.steps = INT_MAX;
    ck_assert_int_eq(generation_check(&text.generation, V, N, &error),
                     STATUS_INVALID);
}
END_TEST

START_TEST(an_empty_prompt_and_a_negative_continuation_are_refused)
{
    struct text_of_noise text;
    noise_text(&text, 208, 4, 3);
    text.generation.prompt_tokens = 0;
    refused(&text.generation, "prompt_tokens: expected at least 1, got 0");
    text.generation.prompt_tokens = -3;
    refused(&text.generation, "prompt_tokens: expected at least 1, got -3");
    text.generation.prompt_tokens = 4;
    text.generation.steps = -1;
    refused(&text.generation, "steps: expected at least 0, got -1");
    text.generation.steps = 3;
    text.generation.continuation = NULL;
    refused(&text.generation, "continuation: is NULL");
    text.generation.prompt = NULL;
    refused(&text.generation, "prompt: is NULL");
    refused(NULL, "text: is NULL");
}
END_TEST

START_TEST(an_id_that_the_model_does_not_have_is_named_by_its_place)
{
    static const int32_t bad[] = {-1, V, INT32_MIN, INT32_MAX};
    for (int at = 0; at < 9; at++)
        for (int k = 0; k < 4; k++) {
            char message[96];
            struct text_of_noise text;
            noise_text(&text, 209, 4, 5);
            text.ids[at] = bad[k];
            snprintf(message, sizeof message,
                     "%s[%d]: expected 0 to 12, got %d",
                     at < 4 ? "prompt" : "continuation", at < 4 ? at : at - 4,
                     (int)bad[k]);
            refused(&text.generation, message);
        }
    struct text_of_noise text;
    noise_text(&text, 209, 4, 5);
    text.ids[9] = -1;
    text.ids[0] = 0;
    text.ids[8] = V - 1;
    expect_ok(generation_check(&text.generation, V, N, &error), &error);
}
END_TEST

START_TEST(rows_go_into_an_empty_tensor)
{
    struct fake fake = {.fail_at = 0};
    struct decoder decoder = fake_decoder(&fake);
    struct families families = families_new();
    struct text_of_noise text;
    struct tensor rows = {0};
    noise_text(&text, 210, 4, 5);
    expect_ok(tensor_new(&rows, SHAPE(2, 3), &error), &error);
    const float *data = rows.data;
    ck_assert_int_eq(per_step_logits(&decoder, &text.generation, &rows,
                                     &error), STATUS_INVALID);
    expect_named(&error, "rows");
    ck_assert_int_eq(per_step_logits(&decoder, &text.generation, NULL,
                                     &error), STATUS_INVALID);
    expect_named(&error, "rows");
    ck_assert_int_eq(recompute_logits(&families.lm[0], &text.generation,
                                      &rows, &error), STATUS_INVALID);
    ck_assert_ptr_eq(rows.data, data);
    tensor_free(&rows);
    ck_assert_int_eq(per_step_logits(NULL, &text.generation, &rows, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "decoder: is NULL");
    ck_assert_int_eq(recompute_logits(NULL, &text.generation, &rows, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(fake.calls, 0);
    families_free(&families);
}
END_TEST

/* ------------------------------------------------------------------ the walk */

/* A decoder that always says the same has the same row everywhere. */
START_TEST(each_row_is_copied_whole)
{
    for (int steps = 1; steps <= V; steps++) {
        struct fake fake = {.constant = true};
        struct decoder decoder = fake_decoder(&fake);
        struct text_of_noise text;
        struct tensor rows = {0};
        float want[V];
        noise_text(&text, 211, 4, steps);
        expect_ok(per_step_logits(&decoder, &text.generation, &rows, &error),
                  &error);
        ck_assert_int_eq(rows.rank, 2);
        ck_assert_int_eq(rows.shape[0], steps);
        ck_assert_int_eq(rows.shape[1], V);
        fake_says(0, true, want);
        for (int k = 0; k < steps; k++)
            expect_same_bits("row", rows.data + k * V, want, sizeof want);
        tensor_free(&rows);
    }
}
END_TEST

START_TEST(the_cache_holds_prompt_rows_per_layer_before_the_first_decode_step)
{
    struct families families = families_new();
    for (int prompt = 2; prompt < 9; prompt++) {
        struct text_of_noise text;
        struct fake fake = {.fail_at = 0};
        struct decoder decoder = fake_decoder(&fake);
        struct tensor rows = {0};
        noise_text(&text, 212, prompt, 4);
        (void)per_step_logits(&decoder, &text.generation, &rows, &error);
        tensor_free(&rows);
        ck_assert_int_eq(fake.call[0].count, prompt);
        ck_assert_int_eq(fake.call[0].id, text.ids[0]);
        ck_assert_int_eq(fake.call[1].before, prompt);
        ck_assert_int_eq(fake.call[1].id, text.ids[prompt]);
        for (int f = 0; f < FAMILIES; f++) {
            struct spoiler spy = spoiler_new(&families.lm[f], N);
            decoder = spoiled(&spy);
            (void)per_step_logits(&decoder, &text.generation, &rows, &error);
            tensor_free(&rows);
            ck_assert_int_ge(spy.steps, 1);
            ck_assert_int_eq(spy.prompt, prompt);
            ck_assert_int_eq(spy.cached, prompt);
            ck_assert(spy.last_row_filled);
            ck_assert(spy.next_row_empty);
            request_free(&spy.request);
        }
    }
    families_free(&families);
}
END_TEST

/* The fake's row depends on each id before it, and on no position. */
START_TEST(a_row_is_recorded_before_its_token_is_consumed)
{
    for (int prompt = 1; prompt < 5; prompt++) {
        struct fake fake = {.fail_at = 0};
        struct decoder decoder = fake_decoder(&fake);
        struct text_of_noise text;
        struct tensor rows = {0};
        uint32_t hash = 0;
        noise_text(&text, 213, prompt, 7);
        expect_ok(per_step_logits(&decoder, &text.generation, &rows, &error),
                  &error);
        for (int t = 0; t < prompt + 7; t++) {
            float want[V];
            fake_says(hash, false, want);
            if (t >= prompt)
                expect_same_bits("row", rows.data + (t - prompt) * V, want,
                                 sizeof want);
            hash = fake_hash(hash, text.ids[t]);
        }
        tensor_free(&rows);
    }
}
END_TEST

START_TEST(every_token_of_the_continuation_is_consumed)
{
    struct families families = families_new();
    for (int steps = 1; steps < 9; steps++) {
        struct fake fake = {.fail_at = 0};
        struct decoder decoder = fake_decoder(&fake);
        struct text_of_noise text;
        struct tensor rows = {0};
        noise_text(&text, 214, 3, steps);
        expect_ok(per_step_logits(&decoder, &text.generation, &rows, &error),
                  &error);
        ck_assert_int_eq(fake.calls, 1 + steps);
        ck_assert_int_eq(fake.tokens, 3 + steps);
        for (int k = 0; k < steps; k++) {
            ck_assert_int_eq(fake.call[1 + k].count, 1);
            ck_assert_int_eq(fake.call[1 + k].id, text.ids[3 + k]);
        }
        tensor_free(&rows);
    }
    families_free(&families);
}
END_TEST

START_TEST(the_token_of_step_k_sits_at_position_prompt_plus_k)
{
    for (int prompt = 1; prompt < 9; prompt++) {
        struct fake fake = {.fail_at = 0};
        struct decoder decoder = fake_decoder(&fake);
        struct text_of_noise text;
        struct tensor rows = {0};
        noise_text(&text, 215, prompt, 10);
        expect_ok(per_step_logits(&decoder, &text.generation, &rows, &error),
                  &error);
        for (int k = 0; k < 10; k++)
            ck_assert_int_eq(fake.call[1 + k].position, prompt + k);
        tensor_free(&rows);
    }
}
END_TEST

START_TEST(an_empty_continuation_has_no_rows)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++) {
        struct request *request = new_request(&families.lm[f], N, 4);
        struct decoder decoder = decoder_of(request);
        struct text_of_noise text;
        struct tensor rows = {0};
        double none = 77;
        noise_text(&text, 216, 6, 0);
        text.generation.continuation = NULL;
        expect_ok(per_step_logits(&decoder, &text.generation, &rows, &error),
                  &error);
        ck_assert_ptr_null(rows.data);
        ck_assert_int_eq(rows.rank, 0);
        ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 6);
        expect_ok(recompute_logits(&families.lm[f], &text.generation, &rows,
                                   &error), &error);
        ck_assert_ptr_null(rows.data);
        const struct identity found =
            compare_ok(&families.lm[f], &decoder, &text.generation, &lab,
                       &none);
        ck_assert_int_eq(found.verdict, IDENTICAL);
        ck_assert_int_eq(found.steps, 0);
        ck_assert_double_eq(none, 77);
        request_free(&request);
    }
    families_free(&families);
}
END_TEST

/* Every slot of a cache without one to spare, and every position. */
START_TEST(a_continuation_may_fill_the_context_to_its_end)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int capacity = N - 2; capacity <= N + 1; capacity++) {
            const int room = capacity < N ? capacity : N;
            struct request *request = new_request(&families.lm[f], capacity,
                                                  4);
            struct decoder decoder = decoder_of(request);
            struct text_of_noise text;
            noise_text(&text, 217, 5, room - 5);
            const struct identity found =
                compare_ok(&families.lm[f], &decoder, &text.generation,
                           &close_by, NULL);
            ck_assert_int_eq(found.verdict, IDENTICAL);
            ck_assert_int_eq(found.steps, room - 5);
            ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0],
                             room);
            request_free(&request);
        }
    families_free(&families);
}
END_TEST

START_TEST(a_decoder_that_fails_ends_the_walk)
{
    struct text_of_noise text;
    noise_text(&text, 218, 4, 6);
    for (int at = 1; at <= 7; at++) {
        struct fake fake = {.fail_at = at};
        struct decoder decoder = fake_decoder(&fake);
        struct tensor rows = {0};
        long live = allocator_live();
        enum status status = per_step_logits(&decoder, &text.generation,
                                             &rows, &error);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_IO);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(rows.data);
        ck_assert_int_eq(fake.calls, at);
    }
}
END_TEST

/* ---------------------------------------------------------------- the oracle */

START_TEST(the_oracle_runs_each_prefix_from_its_beginning)
{
    struct script script = {.vocab_size = V, .context_length = N,
                            .salt = noise_start(219)};
    const struct causal_lm lm = script_lm(&script);
    struct text_of_noise text;
    struct tensor rows = {0};
    noise_text(&text, 220, 4, 9);
    expect_ok(recompute_logits(&lm, &text.generation, &rows, &error),
              &error);
    ck_assert_int_eq(script.calls, 9);
    for (int k = 0; k < 9; k++) {
        ck_assert_int_eq(script.call[k].length, 0);
        ck_assert_int_eq(script.call[k].tokens, 4 + k);
    }
    uint32_t hash = 0;
    for (int t = 0; t < 12; t++) {
        float want[V];
        hash = script_hash(hash, text.ids[t], t);
        script_logits(&script, hash, t, want);
        if (t >= 3)
            expect_same_bits("row", rows.data + (t - 3) * V, want,
                             sizeof want);
    }
    tensor_free(&rows);
}
END_TEST

START_TEST(recomputed_rows_are_those_of_other_computations)
{
    struct families families = families_new();
    struct text_of_noise text;
    int32_t positions[TEXT];
    noise_text(&text, 221, 3, 14);
    for (int t = 0; t < TEXT; t++)
        positions[t] = t;
    for (int f = 0; f < FAMILIES; f++) {
        struct tensor rows = {0};
        static float plain_rows[PLAIN_T * V];
        expect_ok(recompute_logits(&families.lm[f], &text.generation, &rows,
                                   &error), &error);
        for (int k = 0; k < 14; k++) {
            const struct forward_input input = {.ids = text.ids, .batch = 1,
                                                .tokens = 3 + k};
            struct forward_output output = {0};
            const float *want = plain_rows + (2 + k) * V;
            if (f == 0) {
                expect_ok(tiny_gpt_forward(families.gpt, &input, &output,
                                           &error), &error);
                want = output.logits.data + (2 + k) * V;
            } else {
                const struct llama *model = f == 1 ? families.llama
                                                   : families.moe;
                const struct plain plain = {
                    .model = model, .config = llama_config(model),
                    .ids = text.ids, .positions = positions,
                    .tokens = 3 + k
                };
                plain_forward(&plain, plain_rows);
            }
            expect_close("row", rows.data + k * V, want, V, 1,
                         (const int[]){V}, TOLERANCE);
            forward_output_free(&output);
        }
        tensor_free(&rows);
    }
    families_free(&families);
}
END_TEST

/* -------------------------------------------------------------- the identity */

START_TEST(every_row_equals_the_recompute_oracle_at_its_prefix)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int prompt = 1; prompt < N; prompt++) {
            struct text_of_noise text;
            struct tensor rows = {0}, want = {0};
            double differences[TEXT];
            noise_text(&text, 222, prompt, N - prompt);
            struct request *request = new_request(&families.lm[f], N,
                                                  1 + prompt / 2);
            struct decoder decoder = decoder_of(request);
            expect_ok(per_step_logits(&decoder, &text.generation, &rows,
                                      &error), &error);
            expect_ok(recompute_logits(&families.lm[f], &text.generation,
                                       &want, &error), &error);
            ck_assert(tensor_same_shape(&rows, &want));
            expect_same_bits("rows", rows.data, want.data,
                             tensor_size(&rows) * sizeof *rows.data);
            const struct identity found =
                compare_ok(&families.lm[f], &decoder, &text.generation, &lab,
                           differences);
            ck_assert_int_eq(found.verdict, IDENTICAL);
            ck_assert_int_eq(found.steps, N - prompt);
            ck_assert_double_eq(found.largest, 0);
            for (int k = 0; k < N - prompt; k++)
                ck_assert_double_eq(differences[k], 0);
            tensor_free(&rows);
            tensor_free(&want);
            request_free(&request);
        }
    families_free(&families);
}
END_TEST

static void expect_allclose(const char *name, const float *got,
                            const float *want, int count)
{
    for (int v = 0; v < count; v++)
        ck_assert_msg(fabs((double)got[v] - want[v])
                      <= 1e-3 + 1e-2 * fabs((double)want[v]),
                      "%s: [%d] is %g, expected %g", name, v,
                      (double)got[v], (double)want[v]);
    expect_close(name, got, want, (size_t)count, 1, &count, TOLERANCE);
}

/* The oracle keeps three whole rows of the large vocabulary; of all forty the
   logarithm of the sum, and the first eight ids. */
static void expect_summary(const struct golden *golden, int k,
                           const float *row, int count)
{
    const float *sums = golden_get(golden, "out.rows.logsumexp")->f32;
    const int32_t *top = golden_get(golden, "out.rows.top8")->ids + k * 8;
    double largest = row[0], sum = 0;
    for (int v = 1; v < count; v++)
        largest = fmax(largest, row[v]);
    for (int v = 0; v < count; v++)
        sum += exp(row[v] - largest);
    const float got = (float)(largest + log(sum));
    expect_close("logsumexp", &got, sums + k, 1, 1, (const int[]){1},
                 TOLERANCE);
    for (int n = 0; n < 8; n++) {
        int above = 0;
        for (int v = 0; v < count; v++)
            above += row[v] > row[top[n]];
        ck_assert_msg(above <= n, "row %d: %d ids are above the %dth, %d", k,
                      above, n, (int)top[n]);
    }
}

static void expect_golden_rows(const char *name)
{
    char path[256];
    struct checkpoint *checkpoint = NULL;
    struct request *request = NULL;
    struct decoder decoder;
    struct tensor rows = {0};
    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    expect_ok(checkpoint_open(&checkpoint, path, &error), &error);
    snprintf(path, sizeof path, "%s/expected", name);
    struct golden *golden = golden_open(path);
    const struct golden_tensor *prompt = golden_get(golden, "in.prompt");
    const struct golden_tensor *greedy = golden_get(golden, "out.greedy");
    const struct golden_tensor *want = golden_get(golden, "out.rows");
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    const struct generation text = {prompt->ids, prompt->shape[1],
                                    greedy->ids, greedy->shape[1]};
    expect_ok(request_new(&request, &lm, 1, text.prompt_tokens + text.steps,
                          4, &error), &error);
    decoder = decoder_of(request);
    expect_ok(per_step_logits(&decoder, &text, &rows, &error), &error);
    ck_assert_int_eq(rows.shape[0], text.steps);
    const bool all = want->shape[0] == text.steps;
    for (int n = 0; n < want->shape[0]; n++) {
        const int k = all ? n : golden_get(golden, "out.rows.index")->ids[n];
        expect_allclose(name, rows.data + (ptrdiff_t)k * lm.vocab_size,
                        want->f32 + (ptrdiff_t)n * lm.vocab_size,
                        lm.vocab_size);
    }
    for (int k = 0; !all && k < text.steps; k++)
        expect_summary(golden, k, rows.data + (ptrdiff_t)k * lm.vocab_size,
                       lm.vocab_size);
    const struct identity found = compare_ok(&lm, &decoder, &text, &close_by,
                                             NULL);
    ck_assert_int_eq(found.verdict, IDENTICAL);
    ck_assert_int_eq(found.steps, text.steps);
    ck_assert_double_le(found.largest, 1e-5);
    tensor_free(&rows);
    request_free(&request);
    golden_close(golden);
    checkpoint_close(&checkpoint);
}

START_TEST(gpt2_of_the_whole_vocabulary_gives_the_goldens_rows)
{
    expect_golden_rows("gpt2_vocab50257");
}
END_TEST

START_TEST(a_small_gpt2_gives_the_goldens_rows)
{
    expect_golden_rows("gpt2_tiny");
}
END_TEST

START_TEST(a_small_llama_gives_the_goldens_rows)
{
    expect_golden_rows("llama_tiny");
}
END_TEST

/* A model that was trained, and a text that fills its context to the end:
   logits that are far apart, where those of noise are near each other. Every
   row is one of chapter 2's pass over the whole text; the first rows and the
   last are recomputed from their own prefixes as well. */
enum { TRAINED_N = 128, TRAINED_V = 256, TRAINED_FIRST = 12,
       TRAINED_LAST = 4 };
static const char trained_text[] =
    "A cache holds the keys and the values of every token so far, so that"
    " the next one asks them, and none is computed from the beginning again.";

START_TEST(a_trained_model_gives_every_row_to_the_end_of_its_context)
{
    struct checkpoint *checkpoint = NULL;
    struct forward_output output = {0};
    struct tensor rows = {0};
    int32_t ids[TRAINED_N];
    uint64_t state = noise_start(265);
    const int prompt = 1 + noise_below(&state, 40);
    ck_assert_uint_ge(strlen(trained_text), TRAINED_N);
    for (int t = 0; t < TRAINED_N; t++)
        ids[t] = (unsigned char)trained_text[t];
    expect_ok(checkpoint_open(&checkpoint, "book/checkpoint", &error),
              &error);
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    ck_assert_int_eq(lm.vocab_size, TRAINED_V);
    ck_assert_int_eq(lm.context_length, TRAINED_N);
    struct request *request = new_request(&lm, TRAINED_N, 16);
    struct decoder decoder = decoder_of(request);
    struct generation text = {ids, prompt, ids + prompt, TRAINED_N - prompt};
    expect_ok(per_step_logits(&decoder, &text, &rows, &error), &error);
    const struct forward_input input = {.ids = ids, .batch = 1,
                                        .tokens = TRAINED_N};
    expect_ok(tiny_gpt_forward(checkpoint_tiny_gpt(checkpoint), &input,
                               &output, &error), &error);
    for (int k = 0; k < text.steps; k++) {
        char name[32];
        snprintf(name, sizeof name, "row %d of %d", k, text.steps);
        expect_allclose(name, rows.data + k * TRAINED_V,
                        output.logits.data + (prompt - 1 + k) * TRAINED_V,
                        TRAINED_V);
    }
    for (int last = 0; last < 2; last++) {
        const int from = last ? TRAINED_N - TRAINED_LAST : prompt;
        text = (struct generation){ids, from, ids + from,
                                   last ? TRAINED_LAST : TRAINED_FIRST};
        const struct identity found = compare_ok(&lm, &decoder, &text,
                                                 &close_by, NULL);
        ck_assert_int_eq(found.verdict, IDENTICAL);
        ck_assert_int_eq(found.steps, text.steps);
    }
    tensor_free(&rows);
    forward_output_free(&output);
    request_free(&request);
    checkpoint_close(&checkpoint);
}
END_TEST

/* ------------------------------------------------------------ the comparison */

enum { SPOILED_P = 4, SPOILED_N = 13 };

/* One number of row `at` that is not the largest, the spoiler at hand. */
struct spoiled_row {
    struct text_of_noise text;
    struct spoiler spoiler;
    struct tensor rows;          /* as they should be */
    float was;
    int best;
};

static struct spoiled_row spoil_row(const struct causal_lm *lm,
                                    unsigned stream, int at)
{
    struct spoiled_row made = {.spoiler = spoiler_new(lm, N)};
    uint64_t state = noise_start(stream);
    noise_text(&made.text, stream, SPOILED_P, SPOILED_N);
    expect_ok(recompute_logits(lm, &made.text.generation, &made.rows,
                               &error), &error);
    const float *row = made.rows.data + at * V;
    for (int v = 1; v < V; v++)
        made.best = row[v] > row[made.best] ? v : made.best;
    made.spoiler.at = at;
    made.spoiler.id = (made.best + 1 + noise_below(&state, V - 1)) % V;
    made.was = made.spoiler.put = row[made.spoiler.id];
    return made;
}

static void spoiled_row_free(struct spoiled_row *made)
{
    request_free(&made->spoiler.request);
    tensor_free(&made->rows);
}

static struct identity compare_spoiled(const struct causal_lm *lm,
                                       struct spoiled_row *made,
                                       const struct allclose *bound)
{
    struct generation text = made->text.generation;
    text.prompt = made->text.ids;    /* the struct has moved */
    text.continuation = made->text.ids + SPOILED_P;
    const struct decoder decoder = spoiled(&made->spoiler);
    return compare_ok(lm, &decoder, &text, bound, NULL);
}

START_TEST(one_wrong_number_of_a_row_is_enough)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int at = 0; at < 9; at += 4) {
            struct spoiled_row made = spoil_row(&families.lm[f],
                                                230 + (unsigned)at, at);
            const double bound = 1e-3 + 1e-2 * fabs((double)made.was);
            made.spoiler.put = (float)(made.was - 2 * bound);
            struct identity found = compare_spoiled(&families.lm[f], &made,
                                                    &lab);
            ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
            ck_assert_int_eq(found.steps, at);
            ck_assert_int_eq(found.id, made.spoiler.id);
            ck_assert_float_eq(found.got, made.spoiler.put);
            ck_assert_float_eq(found.expected, made.was);
            ck_assert_double_eq(found.largest, 0);
            spoiled_row_free(&made);
        }
    families_free(&families);
}
END_TEST

START_TEST(a_difference_may_be_as_large_as_its_bound)
{
    static const struct allclose wide = {0.5, 0.25}, exact = {0, 0};
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (unsigned try = 0; try < 8; try++) {
            struct spoiled_row made = spoil_row(&families.lm[f], 240 + try,
                                                (int)try);
            const double bound = 0.5 + 0.25 * fabs((double)made.was);
            const double away = made.was < 0 ? -1 : 1;
            static const struct { double by; enum verdict verdict; } way[] = {
                {0.999, IDENTICAL}, {1.001, LOGITS_DIFFER},
                {-0.999, IDENTICAL}, {-1.001, LOGITS_DIFFER},
                {1.2, LOGITS_DIFFER}
            };
            for (int k = 0; k < 5; k++) {
                made.spoiler.put = (float)(made.was
                                           + away * way[k].by * bound);
                ck_assert_int_eq(compare_spoiled(&families.lm[f], &made,
                                                 &wide).verdict,
                                 way[k].verdict);
            }
            made.spoiler.put = made.was;
            ck_assert_int_eq(compare_spoiled(&families.lm[f], &made,
                                             &exact).verdict, IDENTICAL);
            made.spoiler.put = nextafterf(made.was, 100);
            ck_assert_int_eq(compare_spoiled(&families.lm[f], &made,
                                             &exact).verdict, LOGITS_DIFFER);
            spoiled_row_free(&made);
        }
    families_free(&families);
}
END_TEST

START_TEST(what_is_no_number_differs_from_every_number)
{
    static const struct allclose widest = {1e300, 1e300};
    struct families families = families_new();
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        struct spoiled_row made = spoil_row(&families.lm[0], 250, 6);
        double differences[SPOILED_N];
        struct generation text = made.text.generation;
        text.prompt = made.text.ids;
        text.continuation = made.text.ids + SPOILED_P;
        made.spoiler.put = bad[k];
        const struct decoder decoder = spoiled(&made.spoiler);
        const struct identity found = compare_ok(&families.lm[0], &decoder,
                                                 &text, &widest,
                                                 differences);
        ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
        ck_assert_int_eq(found.steps, 6);
        ck_assert(isinf(differences[6]));
        spoiled_row_free(&made);
    }
    families_free(&families);
}
END_TEST

START_TEST(one_divergent_row_fails_the_whole_step)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int at = 0; at < SPOILED_N; at++) {
            struct spoiled_row made = spoil_row(&families.lm[f], 251, at);
            made.spoiler.put = made.was + 1;
            struct identity found = compare_spoiled(&families.lm[f], &made,
                                                    &lab);
            ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
            ck_assert_int_eq(found.steps, at);
            spoiled_row_free(&made);
        }
    families_free(&families);
}
END_TEST

START_TEST(the_first_row_that_differs_is_named_and_ends_the_walk)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int at = 0; at < SPOILED_N; at++) {
            struct spoiled_row made = spoil_row(&families.lm[f], 252, at);
            made.spoiler.put = made.was + 9;
            made.spoiler.onward = true;
            struct identity found = compare_spoiled(&families.lm[f], &made,
                                                    &lab);
            ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
            ck_assert_int_eq(found.steps, at);
            ck_assert_int_eq(made.spoiler.steps, at);
            ck_assert_int_eq(
                kv_cache_lengths(request_cache(made.spoiler.request))[0],
                SPOILED_P + at);
            spoiled_row_free(&made);
        }
    families_free(&families);
}
END_TEST

START_TEST(a_row_within_its_bound_counts_among_the_largest)
{
    struct families families = families_new();
    struct spoiled_row made = spoil_row(&families.lm[1], 253, 5);
    made.spoiler.put = made.was + 0.25f;
    const struct allclose bound = {0.5, 0};
    const struct identity found = compare_spoiled(&families.lm[1], &made,
                                                  &bound);
    ck_assert_int_eq(found.verdict, IDENTICAL);
    ck_assert_int_eq(found.steps, SPOILED_N);
    ck_assert_double_eq(found.largest,
                        fabs((double)made.spoiler.put - made.was));
    spoiled_row_free(&made);
    families_free(&families);
}
END_TEST

/* The row of logits is spoiled as well: attention may give the spoiled key no
   weight, and the walk would go on to a later row. */
START_TEST(the_first_layer_that_differs_is_named)
{
    struct families families = families_new();
    uint64_t state = noise_start(254);
    for (int f = 0; f < FAMILIES; f++) {
        const struct causal_lm *lm = &families.lm[f];
        for (int layer = 0; layer < lm->cache.n_layers; layer++)
            for (int part = 0; part < 2; part++) {
                struct text_of_noise text;
                struct spoiler spoiler = spoiler_new(lm, N);
                noise_text(&text, 255, 4, 9);
                spoiler.before = spoiler.at = 1 + noise_below(&state, 7);
                spoiler.put = 1e6f;
                spoiler.layer = layer;
                spoiler.value = part;
                spoiler.head = noise_below(&state, lm->cache.n_kv_heads);
                spoiler.slot = noise_below(&state, 4 + spoiler.before - 1);
                const struct decoder decoder = spoiled(&spoiler);
                const struct identity found =
                    compare_ok(lm, &decoder, &text.generation, &close_by,
                               NULL);
                ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
                ck_assert_int_eq(found.steps, spoiler.before);
                ck_assert_int_eq(found.layer, layer);
                ck_assert_int_eq(found.value, part);
                ck_assert_int_eq(found.head, spoiler.head);
                ck_assert_int_eq(found.position, spoiler.slot);
                request_free(&spoiler.request);
            }
    }
    families_free(&families);
}
END_TEST

/* Rotary positions are in keys; learned ones in all that follows. */
START_TEST(a_slip_of_position_is_found_in_the_first_layers_key)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++) {
        struct slip_decoder *slip = NULL;
        struct text_of_noise text;
        noise_text(&text, 256, 5, 8);
        expect_ok(slip_decoder_new(&slip, &families.lm[f], &text.generation,
                                   SLIP_COUNTER_P, &error), &error);
        const struct decoder decoder = slip_decoder(slip);
        const struct identity found =
            compare_ok(&families.lm[f], &decoder, &text.generation, &close_by,
                       NULL);
        ck_assert_int_eq(found.verdict, LOGITS_DIFFER);
        ck_assert_int_eq(found.steps, 2);
        ck_assert_int_eq(found.layer, 0);
        ck_assert_int_eq(found.position, 6);
        ck_assert(!found.value);
        slip_decoder_free(&slip);
    }
    families_free(&families);
}
END_TEST

START_TEST(logits_that_differ_behind_equal_caches_are_behind_every_layer)
{
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++) {
        struct spoiled_row made = spoil_row(&families.lm[f], 257, 7);
        made.spoiler.put = made.was + 1;
        const struct identity found = compare_spoiled(&families.lm[f], &made,
                                                      &lab);
        ck_assert_int_eq(found.layer, families.lm[f].cache.n_layers);
        ck_assert_int_eq(found.position, SPOILED_P + 7 - 1);
        spoiled_row_free(&made);
    }
    families_free(&families);
}
END_TEST

static struct identity compare_slip(const struct causal_lm *lm,
                                    const struct generation *text,
                                    enum slip slip)
{
    struct slip_decoder *made = NULL;
    expect_ok(slip_decoder_new(&made, lm, text, slip, &error), &error);
    const struct decoder decoder = slip_decoder(made);
    const struct identity found = compare_ok(lm, &decoder, text, &close_by,
                                             NULL);
    slip_decoder_free(&made);
    return found;
}

START_TEST(a_hand_off_that_is_off_by_one_is_found_before_the_first_step)
{
    struct families families = families_new();
    struct text_of_noise text;
    for (int f = 0; f < FAMILIES; f++)
        for (int prompt = 1; prompt < 7; prompt++) {
            noise_text(&text, 258, prompt, 6);
            struct identity found = compare_slip(
                &families.lm[f], &text.generation, SLIP_SHORT);
            ck_assert_int_eq(found.verdict, CACHE_DIFFERS);
            ck_assert_int_eq(found.steps, 0);
            ck_assert_int_eq(found.cached, prompt - 1);
            found = compare_slip(&families.lm[f], &text.generation,
                                 SLIP_LONG);
            ck_assert_int_eq(found.verdict, CACHE_DIFFERS);
            ck_assert_int_eq(found.steps, 0);
            ck_assert_int_eq(found.cached, prompt + 1);
        }
    noise_text(&text, 258, 4, 6);
    const struct identity found = compare_slip(&families.lm[0],
                                               &text.generation, SLIP_WINDOW);
    ck_assert_int_eq(found.verdict, CACHE_DIFFERS);
    ck_assert_int_eq(found.steps, 4);
    ck_assert_int_eq(found.cached, 7);
    families_free(&families);
}
END_TEST

START_TEST(a_comparison_refuses_what_it_cannot_judge)
{
    struct families families = families_new();
    struct request *request = new_request(&families.lm[0], N - 3, 5);
    struct decoder decoder = decoder_of(request);
    const struct causal_lm *lm = &families.lm[0];
    struct text_of_noise text;
    struct identity found = {.steps = 77};
    static const struct { double absolute, relative; } bad[] = {
        {-1, 0}, {0, -1e-9}, {INFINITY, 0}, {0, INFINITY}, {NAN, 0}, {0, NAN}
    };
    noise_text(&text, 259, 4, 6);
    const struct generation *t = &text.generation;
    ck_assert_int_eq(per_step_compare(NULL, &decoder, t, &lab, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(per_step_compare(lm, NULL, t, &lab, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "decoder: is NULL");
    ck_assert_int_eq(per_step_compare(lm, &decoder, NULL, &lab, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "text: is NULL");
    ck_assert_int_eq(per_step_compare(lm, &decoder, t, NULL, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "bound: is NULL");
    ck_assert_int_eq(per_step_compare(lm, &decoder, t, &lab, NULL, NULL,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "identity: is NULL");
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        const struct allclose bound = {bad[k].absolute, bad[k].relative};
        ck_assert_int_eq(per_step_compare(lm, &decoder, t, &bound, NULL,
                                          &found, &error), STATUS_INVALID);
        expect_named(&error, "bound");
    }
    struct causal_lm other = *lm;
    other.vocab_size = V - 1;
    ck_assert_int_eq(per_step_compare(&other, &decoder, t, &lab, NULL,
                                      &found, &error), STATUS_INVALID);
    expect_facts(error.message, "vocab_size: expected 12, got 13");
    text.generation.steps = N - 4;
    ck_assert_int_eq(per_step_compare(lm, &decoder, t, &lab, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_facts(error.message, "steps: expected at most 17 for a prompt of"
                 " 4, got 20");
    other = *lm;
    other.context_length = 8;
    text.generation.steps = 5;
    ck_assert_int_eq(per_step_compare(&other, &decoder, t, &lab, NULL,
                                      &found, &error), STATUS_INVALID);
    expect_facts(error.message, "steps: expected at most 4 for a prompt of"
                 " 4, got 5");
    ck_assert_int_eq(found.steps, 77);
    ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 0);
    request_free(&request);
    families_free(&families);
}
END_TEST

/* Two models differ; their caches have other shapes, which is an error. */
START_TEST(a_cache_of_another_shape_is_refused_where_layers_are_sought)
{
    struct families families = families_new();
    struct request *request = new_request(&families.lm[1], N, 5);
    struct decoder decoder = decoder_of(request);
    struct text_of_noise text;
    struct identity found = {.steps = 77};
    noise_text(&text, 260, 4, 6);
    ck_assert_int_eq(per_step_compare(&families.lm[0], &decoder,
                                      &text.generation, &lab, NULL, &found,
                                      &error), STATUS_INVALID);
    expect_named(&error, "past_key_values");
    ck_assert_int_eq(found.steps, 77);
    request_free(&request);
    families_free(&families);
}
END_TEST

/* ----------------------------------------------------------------- the slips */

START_TEST(each_slip_is_right_up_to_its_first_row_and_wrong_there)
{
    static const int first[SLIP_COUNT] = {
        [SLIP_NONE] = 12, [SLIP_COUNTER_K] = 1, [SLIP_COUNTER_0] = 1,
        [SLIP_COUNTER_P] = 2, [SLIP_SHORT] = 1, [SLIP_LONG] = 1,
        [SLIP_LATE] = 0, [SLIP_WINDOW] = 7
    };
    struct families families = families_new();
    for (int f = 0; f < FAMILIES; f++)
        for (int s = 0; s < SLIP_COUNT; s++) {
            struct slip_decoder *made = NULL;
            struct text_of_noise text;
            double differences[12];
            noise_text(&text, 261, 5, 12);
            expect_ok(slip_decoder_new(&made, &families.lm[f],
                                       &text.generation, (enum slip)s,
                                       &error), &error);
            const struct decoder decoder = slip_decoder(made);
            expect_ok(step_differences(&families.lm[f], &decoder,
                                       &text.generation, differences,
                                       &error), &error);
            for (int k = 0; k < first[s]; k++)
                ck_assert_msg(differences[k] == 0, "%s, family %d: row %d is"
                              " off by %g", slip_name((enum slip)s), f, k,
                              differences[k]);
            if (first[s] < 12)
                ck_assert_msg(differences[first[s]] > 1e-4, "%s, family %d:"
                              " row %d is off by %g only",
                              slip_name((enum slip)s), f, first[s],
                              differences[first[s]]);
            slip_decoder_free(&made);
        }
    ck_assert_ptr_null(slip_name(SLIP_COUNT));
    families_free(&families);
}
END_TEST

START_TEST(a_slipping_decoder_refuses_what_is_not_its_text)
{
    struct families families = families_new();
    struct slip_decoder *made = NULL;
    struct text_of_noise text;
    noise_text(&text, 262, 5, 8);
    ck_assert_int_eq(slip_decoder_new(NULL, &families.lm[0],
                                      &text.generation, SLIP_NONE, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(slip_decoder_new(&made, NULL, &text.generation,
                                      SLIP_NONE, &error), STATUS_INVALID);
    text.generation.steps = N;
    ck_assert_int_eq(slip_decoder_new(&made, &families.lm[0],
                                      &text.generation, SLIP_NONE, &error),
                     STATUS_INVALID);
    ck_assert_ptr_null(made);
    text.generation.steps = 8;
    expect_ok(slip_decoder_new(&made, &families.lm[0], &text.generation,
                               SLIP_NONE, &error), &error);
    const struct decoder decoder = slip_decoder(made);
    const float *logits = NULL;
    ck_assert_ptr_null(decoder.cache(decoder.state).past);
    ck_assert_int_eq(decoder.prefill(decoder.state, text.ids, 6, &logits,
                                     &error), STATUS_INVALID);
    ck_assert_int_eq(decoder.prefill(decoder.state, text.ids, 0, &logits,
                                     &error), STATUS_INVALID);
    expect_ok(decoder.prefill(decoder.state, text.ids, 5, &logits, &error),
              &error);
    ck_assert_int_eq(decoder.decode_step(decoder.state, V, 5, &logits,
                                         &error), STATUS_INVALID);
    ck_assert_int_eq(decoder.decode_step(decoder.state, 1, N, &logits,
                                         &error), STATUS_INVALID);
    for (int k = 0; k < 9; k++)
        expect_ok(decoder.decode_step(decoder.state, 1, 5 + k, &logits,
                                      &error), &error);
    ck_assert_int_eq(decoder.decode_step(decoder.state, 1, 14, &logits,
                                         &error), STATUS_INVALID);
    slip_decoder_free(&made);
    slip_decoder_free(&made);
    slip_decoder_free(NULL);
    families_free(&families);
}
END_TEST

/* --------------------------------------------------------------- allocations */

START_TEST(every_failed_allocation_is_an_error_and_leaves_nothing)
{
    struct families families = families_new();
    struct text_of_noise text;
    noise_text(&text, 263, 5, 6);
    for (int f = 0; f < FAMILIES; f++)
        for (int part = 0; part < 5; part++) {
            const struct causal_lm *lm = &families.lm[f];
            struct request *request = new_request(lm, N, 4);
            struct decoder decoder = decoder_of(request);
            for (long n = 1; ; n++) {
                struct tensor rows = {0};
                struct slip_decoder *slip = NULL;
                struct identity found = {.steps = 77};
                double differences[6];
                const long live = allocator_live();
                allocator_fail_at(n);
                const enum status status =
                    part == 0 ? per_step_logits(&decoder, &text.generation,
                                                &rows, &error)
                    : part == 1 ? recompute_logits(lm, &text.generation,
                                                   &rows, &error)
                    : part == 2 ? per_step_compare(lm, &decoder,
                                                   &text.generation, &lab,
                                                   NULL, &found, &error)
                    : part == 3 ? slip_decoder_new(&slip, lm,
                                                   &text.generation,
                                                   SLIP_NONE, &error)
                    : step_differences(lm, &decoder, &text.generation,
                                       differences, &error);
                const bool failed = allocator_stop();
                if (!failed) {
                    expect_ok(status, &error);
                    tensor_free(&rows);
                    slip_decoder_free(&slip);
                    ck_assert_int_gt(n, part == 0 ? 1 : 4);
                    break;
                }
                const long left = allocator_live() - live;
                ck_assert_int_eq(status, STATUS_NO_MEMORY);
                ck_assert_int_eq(left, 0);
                ck_assert_ptr_null(rows.data);
                ck_assert_ptr_null(slip);
                ck_assert_int_eq(found.steps, 77);
            }
            request_free(&request);
        }
    families_free(&families);
}
END_TEST

/* The rows are all that a walk allocates. */
START_TEST(the_steps_of_a_walk_allocate_nothing)
{
    struct families families = families_new();
    struct text_of_noise text;
    noise_text(&text, 264, 5, 12);
    struct request *request = new_request(&families.lm[1], N, 4);
    struct decoder decoder = decoder_of(request);
    struct tensor rows = {0};
    long calls = allocator_calls();
    const enum status status = per_step_logits(&decoder, &text.generation,
                                               &rows, &error);
    calls = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(calls, 1);
    tensor_free(&rows);
    request_free(&request);
    families_free(&families);
}
END_TEST

/* --------------------------------------------------------------- the command */

#define GPT2 "steps --model " GOLDEN_DIR "/gpt2_tiny --prompt-ids 3,1,4,1,5 "

START_TEST(the_command_finds_the_goldens_identical)
{
    const char *out = run_program(GPT2 "--greedy 12", 0);
    ck_assert_ptr_nonnull(strstr(out, "\n  11        16  0\n"));
    ck_assert_ptr_nonnull(strstr(out, "rows that agree: 12 of 12, largest"
                                 " difference 0\n"));
    out = run_program("steps --model " GOLDEN_DIR "/llama_tiny --prompt-ids"
                      " 3,1 --continuation-ids 4,1,5 --json", 0);
    ck_assert_ptr_nonnull(strstr(out, "{\"prompt\": 2, \"steps\": 3,"));
    ck_assert_ptr_nonnull(strstr(out, "{\"step\": 2, \"position\": 4,"
                                 " \"difference\": 0}]"));
    ck_assert_ptr_nonnull(strstr(out, "\"identical\": true, \"agree\": 3,"));
    out = run_program("steps --model " GOLDEN_DIR "/gpt2_vocab50257"
                      " --prompt-ids 50256,0 --greedy 3", 0);
    ck_assert_ptr_nonnull(strstr(out, "rows that agree: 3 of 3"));
    out = run_program(GPT2 "--continuation-ids ''", 0);
    ck_assert_ptr_nonnull(strstr(out, "rows that agree: 0 of 0"));
}
END_TEST

START_TEST(the_command_names_the_first_row_that_differs)
{
    const char *out = run_program(GPT2 "--greedy 8 --slip counter-p", 1);
    ck_assert_ptr_nonnull(strstr(out, "rows that agree: 2 of 8"));
    ck_assert_ptr_nonnull(strstr(out, "\nstep 2: logit "));
    ck_assert_ptr_nonnull(strstr(out, "the caches part in layer 0 at"
                                 " position 6: head 0, key\n"));
    ck_assert_ptr_null(strstr(out, "\n   3 "));
    out = run_program(GPT2 "--greedy 8 --slip counter-p --all", 1);
    ck_assert_ptr_nonnull(strstr(out, "\n   7        12  "));
    out = run_program(GPT2 "--greedy 8 --slip handoff-short", 1);
    ck_assert_ptr_nonnull(strstr(out, "step 0: the cache holds 4 tokens,"
                                 " expected 5\n"));
    out = run_program(GPT2 "--greedy 8 --slip handoff-long --json", 1);
    ck_assert_ptr_nonnull(strstr(out, "\"identical\": false, \"agree\": 0,"));
    ck_assert_ptr_nonnull(strstr(out, "\"mismatch\": {\"step\": 0,"
                                 " \"cached\": 6, \"expected\": 5}}"));
    out = run_program(GPT2 "--greedy 8 --slip counter-k --json", 1);
    ck_assert_ptr_nonnull(strstr(out, "\"mismatch\": {\"step\": 1,"));
    ck_assert_ptr_nonnull(strstr(out, "\"part\": \"key\"}}"));
    run_program(GPT2 "--greedy 8 --slip counter-k --atol 1000", 0);
    run_program(GPT2 "--greedy 8 --slip none --atol 0 --rtol 0", 0);
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_audit)
{
    static const char *const usage[][2] = {
        {"steps --prompt-ids 1 --greedy 2", "--model"},
        {"steps --model x --greedy 2", "--prompt-ids"},
        {"steps --model x --prompt-ids 1", "--greedy"},
        {"steps --model x --prompt-ids 1 --greedy 2 --continuation-ids 3",
         "--greedy"},
        {"steps --model x --prompt-ids 1 --greedy 2 --slip drift", "drift"},
        {"steps --model x --prompt-ids 1 --greedy 2 --slip", "--slip"},
        {"steps --model x --prompt-ids 1 --greedy 2 --wrong", "--wrong"}
    };
    static const char *const input[][2] = {
        {"steps --model /nowhere --prompt-ids 1 --greedy 2", "/nowhere"},
        {GPT2 "--greedy 60", "60"},
        {GPT2 "--continuation-ids 97", "continuation[0]"},
        {GPT2 "--continuation-ids 1 --atol -1", "bound"},
        {"steps --model " GOLDEN_DIR "/gpt2_tiny --prompt-ids ''"
         " --continuation-ids 1", "prompt"},
        {"steps --model " GOLDEN_DIR "/gpt2_tiny --prompt-ids ''"
         " --greedy 1", "prompt"}
    };
    for (size_t k = 0; k < sizeof usage / sizeof usage[0]; k++)
        ck_assert_msg(strstr(run_program(usage[k][0], 2), usage[k][1])
                      != NULL, "%s", usage[k][0]);
    for (size_t k = 0; k < sizeof input / sizeof input[0]; k++)
        ck_assert_msg(strstr(run_program(input[k][0], 1), input[k][1])
                      != NULL, "%s", input[k][0]);
    ck_assert_ptr_nonnull(strstr(run_program("steps --help", 0), "--slip"));
}
END_TEST

static const struct test tests[] = {
    TEST(a_prefill_begins_a_new_text, 2, BEGIN),
    TEST(a_prompt_longer_than_a_call_is_fed_in_chunks, 2, BEGIN),
    TEST(a_decoder_refuses_a_position_that_is_not_its_next, 2, DOOR),
    TEST(a_loaded_text_goes_on_at_its_own_positions, 2, DOOR),
    TEST(a_decoder_has_the_room_of_its_cache_and_of_the_model, 2,
         "hand out a request"),
    TEST(only_a_request_of_one_row_is_a_decoder, 2,
         "refuse what is not one text"),
    TEST(a_continuation_that_is_one_too_long_is_refused, 2, FIT),
    TEST(an_empty_prompt_and_a_negative_continuation_are_refused, 2, FIT),
    TEST(an_id_that_the_model_does_not_have_is_named_by_its_place, 2, TOKEN),
    TEST(rows_go_into_an_empty_tensor, 2, "check a text for its rows"),
    TEST(each_row_is_copied_whole, 2, COPY),
    TEST(the_cache_holds_prompt_rows_per_layer_before_the_first_decode_step,
         2, HANDOFF),
    TEST(a_row_is_recorded_before_its_token_is_consumed, 2, ORDER),
    TEST(every_token_of_the_continuation_is_consumed, 2, ORDER),
    TEST(the_token_of_step_k_sits_at_position_prompt_plus_k, 2, PLACE),
    TEST(a_decoder_that_fails_ends_the_walk, 2, "walk through a text"),
    TEST(an_empty_continuation_has_no_rows, 2, "walk through a text"),
    TEST(the_oracle_runs_each_prefix_from_its_beginning, 2, ORACLE),
    TEST(recomputed_rows_are_those_of_other_computations, 2, ORACLE),
    TEST(one_wrong_number_of_a_row_is_enough, 2, JUDGE),
    TEST(a_difference_may_be_as_large_as_its_bound, 2, BOUND),
    TEST(what_is_no_number_differs_from_every_number, 2, BOUND),
    TEST(one_divergent_row_fails_the_whole_step, 2, STOP),
    TEST(the_first_row_that_differs_is_named_and_ends_the_walk, 2, STOP),
    TEST(a_row_within_its_bound_counts_among_the_largest, 2, STOP),
    TEST(the_first_layer_that_differs_is_named, 2, LAYER),
    TEST(a_slip_of_position_is_found_in_the_first_layers_key, 2, LAYER),
    TEST(logits_that_differ_behind_equal_caches_are_behind_every_layer, 2,
         "look for the layer"),
    TEST(a_hand_off_that_is_off_by_one_is_found_before_the_first_step, 2,
         CACHE),
    TEST(a_comparison_refuses_what_it_cannot_judge, 2,
         "refuse a comparison without its parts"),
    TEST(a_cache_of_another_shape_is_refused_where_layers_are_sought, 2,
         "look for the layer"),
    TEST(every_row_equals_the_recompute_oracle_at_its_prefix, 2, ORDER),
    TEST(a_continuation_may_fill_the_context_to_its_end, 2, FIT),
    TEST(gpt2_of_the_whole_vocabulary_gives_the_goldens_rows, 2, ORDER),
    TEST(a_small_gpt2_gives_the_goldens_rows, 2, ORDER),
    TEST(a_small_llama_gives_the_goldens_rows, 2, ORDER),
    TEST(a_trained_model_gives_every_row_to_the_end_of_its_context, 2, ORDER),
    TEST(each_slip_is_right_up_to_its_first_row_and_wrong_there, 2,
         "slip in a step"),
    TEST(a_slipping_decoder_refuses_what_is_not_its_text, 2,
         "feed without a door"),
    TEST(every_failed_allocation_is_an_error_and_leaves_nothing, 2,
         "allocate for the longest prefix"),
    TEST(the_steps_of_a_walk_allocate_nothing, 2, "walk through a text"),
    TEST(the_command_finds_the_goldens_identical, 2, "audit a decoder"),
    TEST(the_command_names_the_first_row_that_differs, 2,
         "print what the steps command found"),
    TEST(the_command_refuses_what_it_cannot_audit, 2,
         "the options of the steps command"),
};

SUITE("chapter 20, per-step identity", tests);
