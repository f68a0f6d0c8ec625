/* The lab's ten checks of a mixed-prefix model. They see a test_model and
   its handle, and nothing else of an implementation: ids 0 to 6, positions 0 to 8,
   caches by shape. A suite wraps each in a test of its own and brings the
   factory. Texts depend on harness_seed(). */
#ifndef ADAPTER_H
#define ADAPTER_H

#include <math.h>
#include <stdlib.h>
#include "cache_aware.h"
#include "support/compare.h"
#include "support/harness.h"
#include "support/models.h"
#include "test_models.h"

enum { ADAPTER_B = 2, ADAPTER_T = 6, ADAPTER_V = 7, ADAPTER_N = 9 };

typedef enum status adapter_factory(struct test_model *, struct error *);

static inline struct test_model adapter_made(adapter_factory *factory)
{
    struct test_model model = {0};
    struct error error = {STATUS_OK, ""};
    expect_ok(factory(&model, &error), &error);
    return model;
}

/* [B,T] ids, and positions from a start for each row. */
struct adapter_text {
    int batch, tokens;
    int32_t ids[ADAPTER_B * ADAPTER_N], positions[ADAPTER_B * ADAPTER_N];
};

static inline struct adapter_text adapter_text(int batch, int tokens,
                                               const int *starts)
{
    struct adapter_text text = {batch, tokens, {0}, {0}};
    uint64_t state = noise_start(8);
    noise_ids(&state, ADAPTER_V, batch, tokens, text.ids);
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++)
            text.positions[b * tokens + t] = starts[b] + t;
    return text;
}

/* Columns from … from+count-1 of the rows row … row+batch-1. */
static inline struct adapter_text adapter_part(const struct adapter_text *all,
                                               int row, int batch, int from,
                                               int count)
{
    struct adapter_text part = {batch, count, {0}, {0}};
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < count; t++) {
            const int at = (row + b) * all->tokens + from + t;
            part.ids[b * count + t] = all->ids[at];
            part.positions[b * count + t] = all->positions[at];
        }
    return part;
}

static inline struct cache_aware_input
adapter_input(const struct adapter_text *text,
              const struct cache_aware_output *past)
{
    return (struct cache_aware_input){
        .ids = text->ids, .positions = text->positions,
        .batch = text->batch, .tokens = text->tokens,
        .past = past ? &past->past_key_values : NULL,
        .cache_lengths = past ? past->cache_lengths : NULL,
        .cache_start_positions = past ? past->cache_start_positions : NULL,
        .use_cache = true
    };
}

static inline struct cache_aware_output
adapter_run(const struct causal_lm *lm, const struct adapter_text *text,
            const struct cache_aware_output *past)
{
    const struct cache_aware_input input = adapter_input(text, past);
    struct cache_aware_output output = {0};
    struct error error = {STATUS_OK, ""};
    expect_ok(cache_aware_forward(lm, &input, &output, &error), &error);
    return output;
}

/* Where slot s of head h of row b begins. */
static inline float *adapter_slot(const struct tensor *tensor, int b, int h,
                                  int s)
{
    const size_t slice = (size_t)(b * tensor->shape[1] + h);
    return tensor->data + (slice * (size_t)tensor->shape[2] + (size_t)s)
                          * (size_t)tensor->shape[3];
}

/* The first `slots` slots of row a of x against those of row b of y. */
static inline void expect_slots_close(const struct past_key_values *x, int a,
                                      const struct past_key_values *y, int b,
                                      int slots)
{
    ck_assert_int_eq(x->n_layers, y->n_layers);
    for (int l = 0; l < x->n_layers; l++)
        for (int h = 0; h < x->layers[l].key.shape[1]; h++) {
            const struct layer_kv *u = &x->layers[l], *v = &y->layers[l];
            const size_t count =
                (size_t)slots * (size_t)u->key.shape[3];
            expect_close("keys", adapter_slot(&u->key, a, h, 0),
                         adapter_slot(&v->key, b, h, 0), count, 0, NULL,
                         TOLERANCE);
            expect_close("values", adapter_slot(&u->value, a, h, 0),
                         adapter_slot(&v->value, b, h, 0), count, 0, NULL,
                         TOLERANCE);
        }
}

/* The text in chunks of `size` tokens against one call over all of it. */
static inline void adapter_chunks(const struct causal_lm *lm, int size)
{
    const int starts[ADAPTER_B] = {0, 2};
    const struct adapter_text text = adapter_text(ADAPTER_B, ADAPTER_T,
                                                  starts);
    struct cache_aware_output whole = adapter_run(lm, &text, NULL);
    struct cache_aware_output past = {0};
    for (int at = 0; at < ADAPTER_T; at += size) {
        const int count = at + size > ADAPTER_T ? ADAPTER_T - at : size;
        const struct adapter_text part = adapter_part(&text, 0, ADAPTER_B, at,
                                                      count);
        struct cache_aware_output next = adapter_run(lm, &part,
                                                     at > 0 ? &past : NULL);
        for (int b = 0; b < ADAPTER_B; b++) {
            expect_close("logits",
                         next.logits.data + b * count * ADAPTER_V,
                         whole.logits.data + (b * ADAPTER_T + at) * ADAPTER_V,
                         (size_t)(count * ADAPTER_V), 0, NULL, TOLERANCE);
            ck_assert_int_eq(next.cache_lengths[b], at + count);
            ck_assert_int_eq(next.cache_start_positions[b], starts[b]);
        }
        cache_aware_output_free(&past);
        past = next;
    }
    for (int b = 0; b < ADAPTER_B; b++)
        expect_slots_close(&past.past_key_values, b, &whole.past_key_values,
                           b, ADAPTER_T);
    cache_aware_output_free(&past);
    cache_aware_output_free(&whole);
}

/* 1 */
static inline void adapter_tokenwise(const struct test_model *model)
{
    adapter_chunks(&model->lm, 1);
}

/* 2 */
static inline void adapter_chunked(const struct test_model *model)
{
    for (int size = 2; size <= ADAPTER_T; size++)
        adapter_chunks(&model->lm, size);
}

/* Row 0: 3 tokens from position 1; row 1: 1 token from position 2. */
static const int adapter_lengths[ADAPTER_B] = {3, 1};
static const int adapter_starts[ADAPTER_B] = {1, 2};

/* One past [2,H,5,D] of two rows that were run alone; every slot behind a
   row's length is poison. solo [2] are the rows' own. */
static inline struct cache_aware_output
adapter_mixed(const struct causal_lm *lm, float poison,
              const struct adapter_text *text,
              struct cache_aware_output *solo)
{
    struct cache_aware_output mixed = {0};
    struct error error = {STATUS_OK, ""};
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    expect_ok(past_key_values_new(&mixed.past_key_values, &shape, ADAPTER_B,
                                  5, &error), &error);
    mixed.cache_lengths = calloc(ADAPTER_B, sizeof (int32_t));
    mixed.cache_start_positions = calloc(ADAPTER_B, sizeof (int32_t));
    for (int b = 0; b < ADAPTER_B; b++) {
        const struct adapter_text own = adapter_part(text, b, 1, 0,
                                                     adapter_lengths[b]);
        solo[b] = adapter_run(lm, &own, NULL);
        mixed.cache_lengths[b] = adapter_lengths[b];
        mixed.cache_start_positions[b] = adapter_starts[b];
        for (int k = 0; k < 2 * lm->cache.n_layers; k++)
            for (int h = 0; h < lm->cache.n_kv_heads; h++) {
                struct layer_kv *to = &mixed.past_key_values.layers[k / 2];
                struct layer_kv *from =
                    &solo[b].past_key_values.layers[k / 2];
                struct tensor *in = k % 2 ? &from->value : &from->key;
                float *out = adapter_slot(k % 2 ? &to->value : &to->key, b,
                                          h, 0);
                const int filled = adapter_lengths[b] * in->shape[3];
                memcpy(out, adapter_slot(in, 0, h, 0),
                       (size_t)filled * sizeof *out);
                for (int d = filled; d < 5 * in->shape[3]; d++)
                    out[d] = k % 2 ? -poison : poison;
            }
    }
    return mixed;
}

/* 3 */
static inline void adapter_poisoned(const struct test_model *model)
{
    const float poisons[] = {1e4f, INFINITY, NAN};
    const struct adapter_text text = adapter_text(ADAPTER_B, 5,
                                                  adapter_starts);
    for (int k = 0; k < 3; k++) {
        struct cache_aware_output solo[ADAPTER_B];
        struct cache_aware_output past = adapter_mixed(&model->lm, poisons[k],
                                                       &text, solo);
        struct adapter_text both = {ADAPTER_B, 2, {0}, {0}};
        for (int b = 0; b < ADAPTER_B; b++)
            for (int t = 0; t < 2; t++) {
                const int at = b * 5 + adapter_lengths[b] + t;
                both.ids[b * 2 + t] = text.ids[at];
                both.positions[b * 2 + t] = text.positions[at];
            }
        struct cache_aware_output got = adapter_run(&model->lm, &both, &past);
        ck_assert_int_eq(past_key_values_length(&got.past_key_values), 5);
        for (int b = 0; b < ADAPTER_B; b++) {
            const struct adapter_text own = adapter_part(&both, b, 1, 0, 2);
            struct cache_aware_output want = adapter_run(&model->lm, &own,
                                                         &solo[b]);
            expect_close("logits", got.logits.data + b * 2 * ADAPTER_V,
                         want.logits.data, 2 * ADAPTER_V, 0, NULL,
                         TOLERANCE);
            expect_slots_close(&got.past_key_values, b,
                               &want.past_key_values, 0,
                               adapter_lengths[b] + 2);
            ck_assert_int_eq(got.cache_lengths[b], adapter_lengths[b] + 2);
            ck_assert_int_eq(got.cache_start_positions[b], adapter_starts[b]);
            cache_aware_output_free(&want);
            cache_aware_output_free(&solo[b]);
        }
        cache_aware_output_free(&got);
        cache_aware_output_free(&past);
    }
}

/* 4: run twice from one past, with other tokens in between. */
static inline void adapter_ownership(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 0};
    const struct adapter_text text = adapter_text(ADAPTER_B, ADAPTER_T,
                                                  starts);
    const struct adapter_text head = adapter_part(&text, 0, 2, 0, 4);
    const struct adapter_text tail = adapter_part(&text, 0, 2, 4, 2);
    struct cache_aware_output past = adapter_run(&model->lm, &head, NULL);
    struct cache_aware_output copy = adapter_run(&model->lm, &head, NULL);
    struct cache_aware_output got = adapter_run(&model->lm, &tail, &past);
    for (int l = 0; l < past.past_key_values.n_layers; l++) {
        struct layer_kv *a = &past.past_key_values.layers[l];
        struct layer_kv *b = &copy.past_key_values.layers[l];
        struct layer_kv *c = &got.past_key_values.layers[l];
        const size_t bytes = tensor_size(&a->key) * sizeof (float);
        expect_same_bits("the caller's keys", a->key.data, b->key.data,
                         bytes);
        expect_same_bits("the caller's values", a->value.data, b->value.data,
                         bytes);
        ck_assert_ptr_ne(a->key.data, c->key.data);
        ck_assert_ptr_ne(a->value.data, c->value.data);
    }
    for (int b = 0; b < ADAPTER_B; b++) {
        ck_assert_int_eq(past.cache_lengths[b], 4);
        ck_assert_int_eq(past.cache_start_positions[b], 0);
    }
    cache_aware_output_free(&past);
    cache_aware_output_free(&copy);
    struct cache_aware_output whole = adapter_run(&model->lm, &text, NULL);
    for (int b = 0; b < ADAPTER_B; b++)     /* got owns all that it has */
        expect_slots_close(&got.past_key_values, b, &whole.past_key_values,
                           b, ADAPTER_T);
    cache_aware_output_free(&whole);
    cache_aware_output_free(&got);
}

/* 5 */
static inline void adapter_no_cache(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 1};
    const struct adapter_text text = adapter_text(ADAPTER_B, ADAPTER_T,
                                                  starts);
    const struct adapter_text head = adapter_part(&text, 0, 2, 0, 4);
    const struct adapter_text tail = adapter_part(&text, 0, 2, 4, 2);
    struct cache_aware_output past = adapter_run(&model->lm, &head, NULL);
    struct cache_aware_output with = adapter_run(&model->lm, &tail, &past);
    for (int behind = 0; behind < 2; behind++) {
        struct cache_aware_input input =
            adapter_input(behind ? &tail : &head, behind ? &past : NULL);
        struct cache_aware_output output = {0};
        input.use_cache = false;
        ck_assert_int_eq(cache_aware_forward(&model->lm, &input, &output,
                                             NULL), STATUS_OK);
        ck_assert_ptr_null(output.past_key_values.layers);
        ck_assert_ptr_null(output.cache_lengths);
        ck_assert_ptr_null(output.cache_start_positions);
        const struct tensor *want = behind ? &with.logits : &past.logits;
        expect_same_bits("logits", output.logits.data, want->data,
                         tensor_size(want) * sizeof (float));
        cache_aware_output_free(&output);
    }
    cache_aware_output_free(&with);
    cache_aware_output_free(&past);
}

static inline void adapter_refuses(const struct causal_lm *lm,
                                   const struct cache_aware_input *input,
                                   const char *why)
{
    struct cache_aware_output output = {0};
    ck_assert_msg(cache_aware_forward(lm, input, &output, NULL)
                  == STATUS_INVALID, "accepted: %s", why);
    ck_assert_ptr_null(output.logits.data);
    ck_assert_ptr_null(output.past_key_values.layers);
    ck_assert_ptr_null(output.cache_lengths);
    ck_assert_ptr_null(output.cache_start_positions);
}

/* 6 */
static inline void adapter_metadata(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 0};
    const struct causal_lm *lm = &model->lm;
    const struct adapter_text text = adapter_text(ADAPTER_B, ADAPTER_T,
                                                  starts);
    const struct adapter_text head = adapter_part(&text, 0, 2, 0, 4);
    const struct adapter_text tail = adapter_part(&text, 0, 2, 4, 2);
    struct cache_aware_output past = adapter_run(lm, &head, NULL);
    const struct cache_aware_input good = adapter_input(&tail, &past);
    struct cache_aware_input bad = good;
    bad.cache_lengths = NULL;
    adapter_refuses(lm, &bad, "a cache without lengths");
    bad = good;
    bad.cache_start_positions = NULL;
    adapter_refuses(lm, &bad, "a cache without starts");
    bad.cache_lengths = NULL;
    adapter_refuses(lm, &bad, "a cache without metadata");
    bad = good;
    bad.past = NULL;
    adapter_refuses(lm, &bad, "metadata without a cache");
    for (int b = 0; b < ADAPTER_B; b++) {
        past.cache_lengths[b] = 5;      /* and the positions would fit */
        past.cache_start_positions[b] = -1;
        adapter_refuses(lm, &good, "a length beyond the storage");
        past.cache_lengths[b] = -1;
        past.cache_start_positions[b] = 5;
        adapter_refuses(lm, &good, "a negative length");
        past.cache_lengths[b] = 4;
        past.cache_start_positions[b] = 0;
    }
    cache_aware_output_free(&past);
}

/* 7 */
static inline void adapter_positions(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 0};
    const struct causal_lm *lm = &model->lm;
    const struct adapter_text text = adapter_text(ADAPTER_B, ADAPTER_T,
                                                  starts);
    const struct adapter_text head = adapter_part(&text, 0, 2, 0, 4);
    struct adapter_text tail = adapter_part(&text, 0, 2, 4, 2);
    struct cache_aware_output past = adapter_run(lm, &head, NULL);
    const struct cache_aware_input input = adapter_input(&tail, &past);
    for (int b = 0; b < ADAPTER_B; b++) {
        int32_t *positions = tail.positions + b * 2;
        positions[1] = 6;
        adapter_refuses(lm, &input, "positions 4 6");
        positions[1] = 4;
        adapter_refuses(lm, &input, "positions 4 4");
        positions[0] = 5, positions[1] = 6;
        adapter_refuses(lm, &input, "a gap of one position");
        positions[0] = 0, positions[1] = 1;
        adapter_refuses(lm, &input, "positions that begin again");
        positions[0] = 4, positions[1] = 5;
    }
    past.cache_start_positions[1] = 4;
    tail.positions[2] = 8, tail.positions[3] = 9;
    adapter_refuses(lm, &input, "a position beyond the last");
    cache_aware_output_free(&past);
}

/* The next id by one call over the whole text, without a cache. */
static inline int32_t adapter_next(const struct causal_lm *lm,
                                   const int32_t *ids, int tokens)
{
    const int start = 0;
    struct adapter_text text = adapter_text(1, tokens, &start);
    memcpy(text.ids, ids, (size_t)tokens * sizeof *ids);
    struct cache_aware_input input = adapter_input(&text, NULL);
    input.use_cache = false;
    struct cache_aware_output output = {0};
    ck_assert_int_eq(cache_aware_forward(lm, &input, &output, NULL),
                     STATUS_OK);
    const float *row = output.logits.data + (tokens - 1) * ADAPTER_V;
    int32_t best = 0;
    for (int v = 1; v < ADAPTER_V; v++)
        if (row[v] > row[best])
            best = v;
    cache_aware_output_free(&output);
    return best;
}

/* 8 */
static inline void adapter_greedy(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 0};
    const struct adapter_text text = adapter_text(ADAPTER_B, 3, starts);
    const struct generate_input input = {
        .ids = text.ids, .batch = ADAPTER_B, .tokens = 3,
        .max_new_tokens = 6, .eos_token_id = NO_EOS
    };
    struct generate_output output = {0};
    ck_assert_int_eq(cache_aware_generate(&model->lm, &input, text.positions,
                                          &output, NULL), STATUS_OK);
    ck_assert_int_eq(output.batch, ADAPTER_B);
    ck_assert_int_eq(output.tokens, 9);
    for (int b = 0; b < ADAPTER_B; b++) {
        const int32_t *row = output.ids + b * 9;
        expect_same_bits("prompt", row, text.ids + b * 3, 3 * sizeof *row);
        for (int t = 3; t < 9; t++)
            ck_assert_int_eq(row[t], adapter_next(&model->lm, row, t));
    }
    generate_output_free(&output);
}

/* 9: with the other factory. */
static inline void adapter_eos(const struct test_model *model)
{
    const int32_t ids[2] = {1, 2}, positions[2] = {0, 0};
    const int32_t want[6] = {1, 0, 0, 2, 3, 0};
    for (int budget = 2; budget <= 8; budget++) {
        const struct generate_input input = {
            .ids = ids, .batch = 2, .tokens = 1, .max_new_tokens = budget,
            .eos_token_id = 0
        };
        struct generate_output output = {0};
        ck_assert_int_eq(cache_aware_generate(&model->lm, &input, positions,
                                              &output, NULL), STATUS_OK);
        ck_assert_int_eq(output.tokens, 3);
        for (int k = 0; k < 6; k++)
            ck_assert_int_eq(output.ids[k], want[k]);
        generate_output_free(&output);
    }
}

/* 10: a model without modes has nothing to restore. */
static inline void adapter_mode(const struct test_model *model)
{
    const int starts[ADAPTER_B] = {0, 0};
    const struct adapter_text text = adapter_text(ADAPTER_B, 3, starts);
    struct generate_output want = {0}, got = {0};
    struct generate_input input = {
        .ids = text.ids, .batch = ADAPTER_B, .tokens = 3,
        .max_new_tokens = 6, .eos_token_id = NO_EOS
    };
    if (model->set_training == NULL)
        return;
    ck_assert(!model->is_training(model->owner));
    ck_assert_int_eq(cache_aware_generate(&model->lm, &input, NULL, &want,
                                          NULL), STATUS_OK);
    ck_assert(!model->is_training(model->owner));
    model->set_training(model->owner, true);
    ck_assert_int_eq(cache_aware_generate(&model->lm, &input, NULL, &got,
                                          NULL), STATUS_OK);
    ck_assert(model->is_training(model->owner));
    expect_same_bits("ids", got.ids, want.ids, 2 * 9 * sizeof *got.ids);
    input.max_new_tokens = 7;
    generate_output_free(&got);
    ck_assert_int_eq(cache_aware_generate(&model->lm, &input, NULL, &got,
                                          NULL), STATUS_INVALID);
    ck_assert(model->is_training(model->owner));
    generate_output_free(&want);
}

#endif
