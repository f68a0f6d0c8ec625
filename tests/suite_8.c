/* Chapter 8: rows with prefixes of their own in one batch. First the mask and
   what is refused, then the step and where it reads and writes, then the
   functional form against the golden, against runs of one row in chapter 2's
   pass, and through the lab's ten checks; last the generation. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include "cache_aware.h"
#include "causal_lm.h"
#include "mask.h"
#include "mask_study.h"
#include "mixed_mask.h"
#include "mixed_study.h"
#include "mode.h"
#include "support/adapter.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/program.h"

static struct error error;

/* ------------------------------------------------------------------ the mask */

static void expect_row(int start, int length, int first, int tokens,
                       int slots, const char *rows)
{
    int32_t positions[8];
    bool keep[64];
    memset(keep, 7, sizeof keep);
    for (int t = 0; t < tokens; t++)
        positions[t] = first + t;
    mixed_mask((struct row_prefix){start, length}, positions, tokens, slots,
               keep);
    for (int k = 0; k < tokens * slots; k++)
        ck_assert_msg(keep[k] == (rows[k] == '1'),
                      "start %d, length %d: cell [%d,%d] is %d", start,
                      length, k / slots, k % slots, keep[k]);
}

START_TEST(the_golden_batch_has_two_literal_masks)
{
    expect_row(1, 4, 5, 3, 7, "1111100" "1111110" "1111111");
    expect_row(3, 2, 5, 3, 7, "1110000" "1111000" "1111100");
}
END_TEST

START_TEST(an_empty_row_sees_its_own_tokens)
{
    expect_row(0, 0, 0, 3, 5, "10000" "11000" "11100");
    expect_row(6, 0, 6, 2, 3, "100" "110");
    expect_row(6, 0, 6, 1, 1, "1");
}
END_TEST

/* Wherever a row starts, its valid columns are chapter 5's rectangle. */
START_TEST(a_row_of_contiguous_positions_has_the_rectangle_of_its_length)
{
    for (int start = 0; start < 6; start++)
        for (int length = 0; length < 6; length++)
            for (int tokens = 1; tokens < 6; tokens++) {
                enum { SLOTS = 13 };
                bool keep[5 * SLOTS], right[5 * 10];
                int32_t positions[5];
                for (int t = 0; t < tokens; t++)
                    positions[t] = start + length + t;
                mixed_mask((struct row_prefix){start, length}, positions,
                           tokens, SLOTS, keep);
                causal_mask(length, tokens, right);
                for (int k = 0; k < tokens * SLOTS; k++) {
                    const int t = k / SLOTS, j = k % SLOTS;
                    const bool want = j < length + tokens
                                      && right[t * (length + tokens) + j];
                    ck_assert_int_eq(keep[k], want);
                }
            }
}
END_TEST

/* The storage's condition alone: a query late enough to see anything. */
START_TEST(a_late_query_sees_the_valid_slots_and_no_others)
{
    expect_row(0, 2, 50, 1, 6, "111000");
    expect_row(4, 3, 50, 2, 7, "1111100" "1111100");
}
END_TEST

/* ------------------------------------------------------------- what is run */

enum { V = 13, N = 14, L = 3, H = 2, D = 5, ROWS = 5, LONGEST = 4, NEW = 3 };

static const struct gpt_config noise_config = {
    .vocab_size = V, .context_length = N, .d_model = H * D, .n_layers = L,
    .n_heads = H, .d_ff = 7, .dropout = 0.5, .layer_norm_eps = 1e-5
};

/* Five texts of 7 tokens, each with a start of its own, and for each the five
   runs that one row alone can be: chapter 2's pass over its first n + NEW
   tokens, with a position table that begins at the row's start. */
struct bench {
    struct tiny_gpt *model;
    struct causal_lm lm;
    int32_t text[ROWS][LONGEST + NEW];
    int32_t starts[ROWS];
    struct forward_output alone[ROWS][LONGEST + 1];
};

/* The model with position p embedded as p + start. */
static struct tiny_gpt *shifted(const struct tiny_gpt *model, int start)
{
    struct tiny_gpt *made = new_model(tiny_gpt_config(model));
    const struct parameters *from = tiny_gpt_weights(model);
    struct parameters *to = tiny_gpt_parameters(made);
    const int width = from->config.d_model;
    memcpy(to->storage, from->storage, from->size * sizeof (float));
    float *table = to->position_embedding.weight.data;
    const int rows = from->config.context_length;
    memcpy(table, from->position_embedding.weight.data + start * width,
           (size_t)((rows - start) * width) * sizeof *table);
    return made;
}

static struct forward_output run_alone(const struct tiny_gpt *model,
                                       const int32_t *ids, int tokens)
{
    const struct forward_input input = {
        .ids = ids, .batch = 1, .tokens = tokens, .use_cache = true
    };
    struct forward_output output = {0};
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    return output;
}

/* The i-th of many. */
static struct bench bench_drawn(unsigned i)
{
    uint64_t state = noise_start(81 + 1000 * i);
    struct bench bench = {.model = noisy_model(&noise_config,
                                               82 + 1000 * i)};
    bench.lm = tiny_gpt_causal_lm(bench.model);
    noise_ids(&state, V, ROWS, LONGEST + NEW, bench.text[0]);
    for (int r = 0; r < ROWS; r++) {
        bench.starts[r] = (r * 3 + 2) % ROWS;     /* 2 0 3 1 4 */
        struct tiny_gpt *own = shifted(bench.model, bench.starts[r]);
        for (int n = 0; n <= LONGEST; n++)
            bench.alone[r][n] = run_alone(own, bench.text[r], n + NEW);
        tiny_gpt_free(&own);
    }
    return bench;
}

static struct bench bench_new(void)
{
    return bench_drawn(0);
}

static void bench_free(struct bench *bench)
{
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n <= LONGEST; n++)
            forward_output_free(&bench->alone[r][n]);
    tiny_gpt_free(&bench->model);
}

static struct past_key_values storage_new(const struct causal_lm *lm,
                                          int batch, int slots, float poison)
{
    struct past_key_values storage = {0};
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    expect_ok(past_key_values_new(&storage, &shape, batch, slots, &error),
              &error);
    for (int l = 0; l < storage.n_layers; l++)
        for (size_t k = 0; k < tensor_size(&storage.layers[l].key); k++) {
            storage.layers[l].key.data[k] = poison;
            storage.layers[l].value.data[k] = -poison;
        }
    return storage;
}

/* Rows 0 … batch-1 with these lengths, as arguments of a call. */
struct rows {
    int batch;
    int32_t lengths[ROWS], starts[ROWS];
    int32_t ids[ROWS * NEW], positions[ROWS * NEW];
    struct past_key_values storage;
};

static struct rows rows_new(const struct bench *bench, int batch,
                            const int *lengths, int slots, float poison)
{
    struct rows rows = {.batch = batch};
    rows.storage = storage_new(&bench->lm, batch, slots, poison);
    for (int b = 0; b < batch; b++) {
        const int n = lengths[b];
        rows.lengths[b] = n;
        rows.starts[b] = bench->starts[b];
        for (int t = 0; t < NEW; t++) {
            rows.ids[b * NEW + t] = bench->text[b][n + t];
            rows.positions[b * NEW + t] = bench->starts[b] + n + t;
        }
        for (int l = 0; l < L; l++)
            for (int h = 0; h < H; h++) {
                const struct layer_kv *from =
                    &bench->alone[b][n].past_key_values.layers[l];
                struct layer_kv *to = &rows.storage.layers[l];
                const size_t bytes = (size_t)n * D * sizeof (float);
                memcpy(adapter_slot(&to->key, b, h, 0),
                       adapter_slot(&from->key, 0, h, 0), bytes);
                memcpy(adapter_slot(&to->value, b, h, 0),
                       adapter_slot(&from->value, 0, h, 0), bytes);
            }
    }
    return rows;
}

static struct step rows_step(const struct rows *rows, float *logits)
{
    return (struct step){
        .ids = rows->ids, .positions = rows->positions, .batch = rows->batch,
        .tokens = NEW, .storage = &rows->storage, .lengths = rows->lengths,
        .logits = logits
    };
}

static struct cache_aware_input rows_input(const struct rows *rows)
{
    return (struct cache_aware_input){
        .ids = rows->ids, .positions = rows->positions, .batch = rows->batch,
        .tokens = NEW, .past = &rows->storage, .cache_lengths = rows->lengths,
        .cache_start_positions = rows->starts, .use_cache = true
    };
}

/* Runs it with a scratch of exactly the size that is asked for. */
static void run_step(const struct causal_lm *lm, const struct step *step)
{
    const size_t floats = lm->scratch_size(
        lm->model, step->batch, step->tokens,
        past_key_values_length(step->storage));
    float *scratch = malloc(floats * sizeof *scratch);
    memset(scratch, 0xff, floats * sizeof *scratch);
    expect_ok(causal_lm_step(lm, step, scratch, floats, &error), &error);
    free(scratch);
}

/* Logits of row b of a batch against those of the row alone. */
static void expect_row_logits(const struct bench *bench,
                              const struct rows *rows, int b,
                              const float *logits)
{
    char what[64];
    const int n = rows->lengths[b];
    snprintf(what, sizeof what, "row %d of %d, length %d", b, rows->batch, n);
    expect_same_bits(what, logits + b * NEW * V,
                     bench->alone[b][n].logits.data + n * V,
                     NEW * V * sizeof *logits);
}

/* Filled slots of row b against those of the row alone. */
static void expect_row_slots(const struct bench *bench,
                             const struct rows *rows, int b,
                             const struct past_key_values *cache)
{
    const int n = rows->lengths[b];
    const size_t bytes = (size_t)(n + NEW) * D * sizeof (float);
    for (int l = 0; l < L; l++)
        for (int h = 0; h < H; h++) {
            const struct layer_kv *got = &cache->layers[l];
            const struct layer_kv *want =
                &bench->alone[b][n].past_key_values.layers[l];
            expect_same_bits("keys", adapter_slot(&got->key, b, h, 0),
                             adapter_slot(&want->key, 0, h, 0), bytes);
            expect_same_bits("values", adapter_slot(&got->value, b, h, 0),
                             adapter_slot(&want->value, 0, h, 0), bytes);
        }
}

/* -------------------------------------------------------- what is refused */

/* A step that is fine, to be spoiled: 2 rows of 2 tokens, 6 slots. */
struct spoiled {
    struct tiny_gpt *model;
    struct causal_lm lm;
    int32_t ids[4], positions[4], lengths[2], starts[2];
    struct past_key_values storage;
    float logits[4 * V];
    struct step step;
};

static struct spoiled *spoiled_new(void)
{
    struct spoiled *s = calloc(1, sizeof *s);
    *s = (struct spoiled){
        .model = noisy_model(&noise_config, 83),
        .ids = {1, 0, V - 1, 5}, .positions = {6, 7, 2, 3},
        .lengths = {4, 1}, .starts = {2, 1}
    };
    s->lm = tiny_gpt_causal_lm(s->model);
    s->storage = storage_new(&s->lm, 2, 6, 0.5f);
    s->step = (struct step){
        .ids = s->ids, .positions = s->positions, .batch = 2, .tokens = 2,
        .storage = &s->storage, .lengths = s->lengths, .logits = s->logits
    };
    return s;
}

static void spoiled_free(struct spoiled *s)
{
    past_key_values_free(&s->storage);
    tiny_gpt_free(&s->model);
    free(s);
}

static void expect_unwritten(const struct spoiled *s)
{
    for (int k = 0; k < 4 * V; k++)
        ck_assert_float_eq(s->logits[k], 0);
    for (int l = 0; l < L; l++)
        for (size_t k = 0; k < tensor_size(&s->storage.layers[l].key); k++) {
            ck_assert_float_eq(s->storage.layers[l].key.data[k], 0.5f);
            ck_assert_float_eq(s->storage.layers[l].value.data[k], -0.5f);
        }
}

static void expect_step_refused(const struct spoiled *s, const char *message)
{
    enum { ROOM = 4096 };
    float *scratch = malloc(ROOM * sizeof *scratch);
    error = (struct error){0};
    ck_assert_int_eq(causal_lm_step(&s->lm, &s->step, scratch, ROOM, &error),
                     STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(step_check(&s->lm, &s->step, NULL), STATUS_INVALID);
    free(scratch);
    expect_unwritten(s);
}

START_TEST(a_step_that_is_fine_is_accepted)
{
    struct spoiled *s = spoiled_new();
    expect_ok(step_check(&s->lm, &s->step, &error), &error);
    run_step(&s->lm, &s->step);
    spoiled_free(s);
}
END_TEST

START_TEST(positions_that_are_not_contiguous_are_refused)
{
    struct spoiled *s = spoiled_new();
    s->positions[1] = 8;
    expect_step_refused(s, "positions[0,1]: expected 7, got 8");
    s->positions[1] = 6;
    expect_step_refused(s, "positions[0,1]: expected 7, got 6");
    s->positions[1] = 7, s->positions[3] = 1;
    expect_step_refused(s, "positions[1,1]: expected 3, got 1");
    s->positions[3] = INT32_MIN;
    expect_step_refused(s, "positions[1,1]: expected 3, got -2147483648");
    spoiled_free(s);
}
END_TEST

START_TEST(positions_outside_the_context_are_refused)
{
    struct spoiled *s = spoiled_new();
    s->positions[0] = N - 2, s->positions[1] = N - 1;
    expect_ok(step_check(&s->lm, &s->step, &error), &error);
    s->positions[0] = N - 1, s->positions[1] = N;
    expect_step_refused(s, "positions[0,1]: expected 0 to 13, got 14");
    s->positions[0] = -1, s->positions[1] = 0;
    expect_step_refused(s, "positions[0,0]: expected 0 to 13, got -1");
    s->positions[0] = INT32_MAX;
    expect_step_refused(s, "positions[0,0]: expected 0 to 13, got"
                        " 2147483647");
    spoiled_free(s);
}
END_TEST

START_TEST(ids_outside_the_vocabulary_are_refused)
{
    struct spoiled *s = spoiled_new();
    s->ids[3] = V;
    expect_step_refused(s, "ids[1,1]: expected 0 to 12, got 13");
    s->ids[3] = 0, s->ids[0] = -1;
    expect_step_refused(s, "ids[0,0]: expected 0 to 12, got -1");
    spoiled_free(s);
}
END_TEST

START_TEST(sizes_that_no_call_can_have_are_refused)
{
    struct spoiled *s = spoiled_new();
    const struct step good = s->step;
    s->step.batch = 0;
    expect_step_refused(s, "batch: expected at least 1, got 0");
    s->step = good, s->step.tokens = 0;
    expect_step_refused(s, "tokens: expected 1 to 14, got 0");
    s->step.tokens = N + 1;
    expect_step_refused(s, "tokens: expected 1 to 14, got 15");
    s->step = good, s->step.batch = INT_MAX;
    expect_step_refused(s, "batch: 2147483647 rows of 2 tokens are too many");
    s->step = good, s->step.batch = 1;
    expect_step_refused(s, "past_key_values[0].key: batch: expected 1, got 2");
    spoiled_free(s);
}
END_TEST

START_TEST(a_missing_argument_of_a_step_is_named)
{
    struct spoiled *s = spoiled_new();
    const struct step good = s->step;
    s->step.ids = NULL;
    expect_step_refused(s, "ids: is NULL");
    s->step = good, s->step.positions = NULL;
    expect_step_refused(s, "positions: is NULL");
    s->step = good, s->step.storage = NULL;
    expect_step_refused(s, "storage: is NULL");
    s->step = good, s->step.lengths = NULL;
    expect_step_refused(s, "lengths: is NULL");
    s->step = good, s->step.logits = NULL;
    expect_step_refused(s, "logits: is NULL");
    ck_assert_int_eq(step_check(NULL, &good, &error), STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(step_check(&s->lm, NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "step: is NULL");
    spoiled_free(s);
}
END_TEST

START_TEST(storage_of_another_shape_is_refused)
{
    struct spoiled *s = spoiled_new();
    s->lm.cache.n_layers = L + 1;
    expect_step_refused(s, "past_key_values: expected 4 layers, got 3");
    s->lm.cache = (struct cache_shape){L, 1, D};
    expect_step_refused(s, "past_key_values[0].key: heads: expected 1, got 2");
    s->lm.cache = (struct cache_shape){L, H, D + 1};
    expect_step_refused(s, "past_key_values[0].key: head_dim: expected 6,"
                        " got 5");
    s->lm.cache = (struct cache_shape){L, H, D};
    s->storage.layers[2].value.shape[2] = 5;
    expect_step_refused(s, "past_key_values[2].value: length: expected 6,"
                        " got 5");
    spoiled_free(s);
}
END_TEST

START_TEST(a_length_without_room_behind_it_is_refused)
{
    struct spoiled *s = spoiled_new();
    s->lengths[0] = 5;
    expect_step_refused(s, "lengths[0]: expected 0 to 4 (6 slots less 2 new"
                        " tokens), got 5");
    s->lengths[0] = 4, s->lengths[1] = -1;
    expect_step_refused(s, "lengths[1]: expected 0 to 4 (6 slots less 2 new"
                        " tokens), got -1");
    s->lengths[1] = INT32_MAX;
    expect_step_refused(s, "lengths[1]: expected 0 to 4 (6 slots less 2 new"
                        " tokens), got 2147483647");
    s->lengths[1] = 2;
    expect_ok(step_check(&s->lm, &s->step, &error), &error);
    s->lengths[1] = 3;
    expect_step_refused(s, "positions[1,0]: expected at least the length 3,"
                        " got 2");
    spoiled_free(s);
}
END_TEST

START_TEST(a_scratch_that_is_too_small_is_refused)
{
    struct spoiled *s = spoiled_new();
    const size_t floats = s->lm.scratch_size(s->lm.model, 2, 2, 6);
    float *scratch = malloc(floats * sizeof *scratch);
    ck_assert_int_eq(causal_lm_step(&s->lm, &s->step, scratch, floats - 1,
                                    &error), STATUS_INVALID);
    char message[128];
    snprintf(message, sizeof message, "scratch: expected at least %zu floats,"
             " got %zu", floats, floats - 1);
    expect_facts(error.message, message);
    ck_assert_int_eq(causal_lm_step(&s->lm, &s->step, NULL, floats, &error),
                     STATUS_INVALID);
    expect_named(&error, "scratch");
    expect_unwritten(s);
    ck_assert_int_eq(causal_lm_step(&s->lm, &s->step, scratch, floats,
                                    &error), STATUS_OK);
    free(scratch);
    spoiled_free(s);
}
END_TEST

START_TEST(a_scratch_that_does_not_fit_has_the_largest_size)
{
    struct spoiled *s = spoiled_new();
    ck_assert_uint_eq(s->lm.scratch_size(s->lm.model, INT_MAX, INT_MAX,
                                         INT_MAX), SIZE_MAX);
    /* at most a score, a probability and a bool for each slot more; a kernel
       that never writes a score needs none of them */
    const size_t one = s->lm.scratch_size(s->lm.model, 1, 4, 4);
    ck_assert_uint_le(s->lm.scratch_size(s->lm.model, 1, 4, 8) - one,
                      4 * (4 + 4 + 1));
    spoiled_free(s);
}
END_TEST

/* --------------------------------------------------------------- the step */

START_TEST(rows_are_embedded_at_positions_of_their_own)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.full.logits");
    struct past_key_values storage = storage_new(&lm, 2, 6, 0);
    float *logits = malloc(want->count * sizeof *logits);
    const int32_t lengths[2] = {0, 0};
    const struct step step = {
        .ids = golden_get(golden, "in.full.ids")->ids,
        .positions = golden_get(golden, "in.full.positions")->ids,
        .batch = 2, .tokens = 6, .storage = &storage, .lengths = lengths,
        .logits = logits
    };
    run_step(&lm, &step);
    expect_close("logits", logits, want->f32, want->count, want->rank,
                 want->shape, TOLERANCE);
    expect_golden_cache(golden, "out.full.past", &storage);
    free(logits);
    past_key_values_free(&storage);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

/* Floats of a storage that differ from poison lie in these slots, and all
   floats of these slots do. */
static void expect_written(const struct past_key_values *storage,
                           float poison, const int32_t *lengths, int tokens)
{
    for (int l = 0; l < storage->n_layers; l++) {
        const struct tensor *part[2] = {&storage->layers[l].key,
                                        &storage->layers[l].value};
        const int *shape = part[0]->shape;
        for (int k = 0; k < 2 * shape[0] * shape[1] * shape[2]; k++) {
            const int s = k / 2 % shape[2], h = k / 2 / shape[2] % shape[1];
            const int b = k / 2 / shape[2] / shape[1];
            const float *slot = adapter_slot(part[k % 2], b, h, s);
            const bool mine = s >= lengths[b] && s < lengths[b] + tokens;
            for (int d = 0; d < shape[3]; d++)
                ck_assert_msg((slot[d] != (k % 2 ? -poison : poison)) == mine,
                              "layer %d, row %d, head %d, slot %d %s written",
                              l, b, h, s, mine ? "is not" : "is");
        }
    }
}

/* One row of one head: nothing but the length decides where. */
START_TEST(new_keys_and_values_go_right_behind_the_length)
{
    const struct gpt_config config = {
        .vocab_size = V, .context_length = N, .d_model = 5, .n_layers = 2,
        .n_heads = 1, .d_ff = 3, .layer_norm_eps = 1e-5
    };
    struct tiny_gpt *model = noisy_model(&config, 84);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const int32_t ids[2] = {3, 8};
    float logits[2 * V];
    for (int32_t length = 0; length <= 5; length++) {
        struct past_key_values storage = storage_new(&lm, 1, 7, 0.75f);
        const int32_t positions[2] = {length + 1, length + 2};
        const struct step step = {
            .ids = ids, .positions = positions, .batch = 1, .tokens = 2,
            .storage = &storage, .lengths = &length, .logits = logits
        };
        run_step(&lm, &step);
        expect_written(&storage, 0.75f, &length, 2);
        past_key_values_free(&storage);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_step_writes_the_slots_behind_each_length_and_no_others)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    float logits[ROWS * NEW * V];
    struct rows rows = rows_new(&bench, ROWS, lengths, 9, 0.25f);
    struct past_key_values clean = storage_new(&bench.lm, ROWS, 9, 0.25f);
    for (int l = 0; l < L; l++) {   /* old slots as poison, too */
        const size_t bytes = tensor_size(&clean.layers[l].key)
                             * sizeof (float);
        memcpy(rows.storage.layers[l].key.data, clean.layers[l].key.data,
               bytes);
        memcpy(rows.storage.layers[l].value.data, clean.layers[l].value.data,
               bytes);
    }
    const struct step step = rows_step(&rows, logits);
    run_step(&bench.lm, &step);
    expect_written(&rows.storage, 0.25f, rows.lengths, NEW);
    past_key_values_free(&clean);
    past_key_values_free(&rows.storage);
    bench_free(&bench);
}
END_TEST

static void expect_rows_alone(const struct bench *bench, int batch,
                              const int *lengths, int slots, float poison)
{
    float logits[ROWS * NEW * V];
    struct rows rows = rows_new(bench, batch, lengths, slots, poison);
    const struct step step = rows_step(&rows, logits);
    run_step(&bench->lm, &step);
    for (int b = 0; b < batch; b++) {
        expect_row_logits(bench, &rows, b, logits);
        expect_row_slots(bench, &rows, b, &rows.storage);
    }
    past_key_values_free(&rows.storage);
}

START_TEST(numbers_behind_a_length_change_no_bit)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    for (int slots = 7; slots <= 11; slots += 2) {
        expect_rows_alone(&bench, ROWS, lengths, slots, 0);
        expect_rows_alone(&bench, ROWS, lengths, slots, 1e4f);
        expect_rows_alone(&bench, ROWS, lengths, slots, -1e4f);
    }
    bench_free(&bench);
}
END_TEST

/* 0 · NaN is NaN: what is hidden must not be read at all. */
START_TEST(nan_and_infinity_behind_a_length_change_no_bit)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    for (int slots = 7; slots <= 11; slots += 2) {
        expect_rows_alone(&bench, ROWS, lengths, slots, NAN);
        expect_rows_alone(&bench, ROWS, lengths, slots, INFINITY);
        expect_rows_alone(&bench, ROWS, lengths, slots, -INFINITY);
    }
    bench_free(&bench);
}
END_TEST

START_TEST(the_golden_mixed_batch_has_the_golden_logits)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.mixed.logits");
    struct past_key_values storage = storage_new(&lm, 2, 7, NAN);
    for (int l = 0; l < 2; l++)
        for (int b = 0; b < 2; b++)
            for (int h = 0; h < 4; h++) {
                const size_t from = (size_t)(b * 4 + h) * 4 * 4;
                struct layer_kv *to = &storage.layers[l];
                memcpy(adapter_slot(&to->key, b, h, 0),
                       golden_get(golden, "in.mixed.past.%d.key", l)->f32
                       + from, 16 * sizeof (float));
                memcpy(adapter_slot(&to->value, b, h, 0),
                       golden_get(golden, "in.mixed.past.%d.value", l)->f32
                       + from, 16 * sizeof (float));
            }
    float *logits = malloc(want->count * sizeof *logits);
    const struct step step = {
        .ids = golden_get(golden, "in.mixed.ids")->ids,
        .positions = golden_get(golden, "in.mixed.positions")->ids,
        .batch = 2, .tokens = 3, .storage = &storage,
        .lengths = golden_get(golden, "in.mixed.lengths")->ids,
        .logits = logits
    };
    run_step(&lm, &step);
    expect_close("logits", logits, want->f32, want->count, want->rank,
                 want->shape, TOLERANCE);
    free(logits);
    past_key_values_free(&storage);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

/* A token of row 2 changes: earlier rows of its text and the other texts
   keep every bit. */
START_TEST(a_changed_token_changes_no_earlier_logit_and_no_neighbour)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    float before[ROWS * NEW * V], after[ROWS * NEW * V];
    for (int k = 0; k < NEW; k++) {
        struct rows rows = rows_new(&bench, ROWS, lengths, 8, 9.0f);
        struct step step = rows_step(&rows, before);
        run_step(&bench.lm, &step);
        rows.ids[2 * NEW + k] = (rows.ids[2 * NEW + k] + 1) % V;
        step.logits = after;
        run_step(&bench.lm, &step);
        for (int row = 0; row < ROWS * NEW; row++) {
            const bool same = memcmp(before + row * V, after + row * V,
                                     V * sizeof (float)) == 0;
            const bool want = row / NEW != 2 || row % NEW < k;
            ck_assert_msg(same == want, "token %d of row 2 changed, and row"
                          " %d's token %d %s", k, row / NEW, row % NEW,
                          same ? "did not" : "did too");
        }
        past_key_values_free(&rows.storage);
    }
    bench_free(&bench);
}
END_TEST

/* A, B, A in one storage: each as in a fresh one. */
START_TEST(storage_that_is_used_again_forgets_what_it_held)
{
    struct bench bench = bench_new();
    float logits[NEW * V];
    struct past_key_values storage = storage_new(&bench.lm, 1, 8, NAN);
    const int order[] = {0, 3, 0, 4, 3};
    for (int k = 0; k < 5; k++) {
        const int r = order[k];
        const int32_t start = bench.starts[r];
        const int32_t at[2] = {0, NEW};
        for (int call = 0; call < 2; call++) {
            int32_t positions[NEW];
            for (int t = 0; t < NEW; t++)
                positions[t] = start + at[call] + t;
            const struct step step = {
                .ids = bench.text[r] + at[call], .positions = positions,
                .batch = 1, .tokens = NEW, .storage = &storage,
                .lengths = &at[call], .logits = logits
            };
            run_step(&bench.lm, &step);
            expect_same_bits("logits", logits,
                             bench.alone[r][at[call]].logits.data
                             + at[call] * V, sizeof logits);
        }
    }
    past_key_values_free(&storage);
    bench_free(&bench);
}
END_TEST

START_TEST(the_last_logits_alone_are_the_last_of_all)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {1, 4, 0, 2, 3};
    float all[ROWS * NEW * V], last[ROWS * V + 1];
    struct rows rows = rows_new(&bench, ROWS, lengths, 7, NAN);
    struct step step = rows_step(&rows, all);
    run_step(&bench.lm, &step);
    step.last_only = true;
    step.logits = last;
    last[ROWS * V] = 42;
    run_step(&bench.lm, &step);
    for (int b = 0; b < ROWS; b++)
        expect_same_bits("last logits", last + b * V,
                         all + ((b + 1) * NEW - 1) * V, V * sizeof (float));
    ck_assert_float_eq(last[ROWS * V], 42);
    past_key_values_free(&rows.storage);
    bench_free(&bench);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {1, 4, 0, 2, 3};
    float logits[ROWS * NEW * V];
    struct rows rows = rows_new(&bench, ROWS, lengths, 7, NAN);
    const struct step step = rows_step(&rows, logits);
    const size_t floats = bench.lm.scratch_size(bench.model, ROWS, NEW, 7);
    float *scratch = malloc(floats * sizeof *scratch);
    const long calls = allocator_calls();
    enum status status = causal_lm_step(&bench.lm, &step, scratch, floats,
                                        &error);
    const long made = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(made, 0);
    free(scratch);
    past_key_values_free(&rows.storage);
    bench_free(&bench);
}
END_TEST

/* Whatever is in it before, and up to its last float. */
START_TEST(a_scratch_is_written_before_it_is_read_and_not_outgrown)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {0, 3, 4, 1, 2};
    for (int batch = 1; batch <= ROWS; batch++)
        for (int slots = 7; slots <= 10; slots++) {
            const size_t floats = bench.lm.scratch_size(bench.model, batch,
                                                        NEW, slots);
            float *scratch = malloc((floats + 4) * sizeof *scratch);
            for (int fill = 0; fill <= 0xff; fill += 0xff) {
                float logits[ROWS * NEW * V];
                struct rows rows = rows_new(&bench, batch, lengths, slots,
                                            NAN);
                const struct step step = rows_step(&rows, logits);
                memset(scratch, fill, floats * sizeof *scratch);
                memset(scratch + floats, 0x5a, 4 * sizeof *scratch);
                expect_ok(causal_lm_step(&bench.lm, &step, scratch, floats,
                                         &error), &error);
                for (size_t k = 0; k < 4 * sizeof *scratch; k++)
                    ck_assert_int_eq(((char *)(scratch + floats))[k], 0x5a);
                for (int b = 0; b < batch; b++)
                    expect_row_logits(&bench, &rows, b, logits);
                past_key_values_free(&rows.storage);
            }
            free(scratch);
        }
    bench_free(&bench);
}
END_TEST

START_TEST(a_step_evaluates_in_training_mode_too)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {0, 3, 4, 1, 2};
    tiny_gpt_set_mode(bench.model, MODE_TRAINING);
    expect_rows_alone(&bench, ROWS, lengths, 8, NAN);
    ck_assert_int_eq(tiny_gpt_mode(bench.model), MODE_TRAINING);
    bench_free(&bench);
}
END_TEST

START_TEST(the_handle_says_the_sizes_of_its_model)
{
    struct bench bench = bench_new();
    ck_assert_ptr_eq(bench.lm.model, bench.model);
    ck_assert_int_eq(bench.lm.vocab_size, V);
    ck_assert_int_eq(bench.lm.context_length, N);
    ck_assert_int_eq(bench.lm.cache.n_layers, L);
    ck_assert_int_eq(bench.lm.cache.n_kv_heads, H);
    ck_assert_int_eq(bench.lm.cache.head_dim, D);
    const struct gpt_config shape = cache_shape_config(&bench.lm.cache);
    ck_assert_int_eq(shape.n_layers, L);
    ck_assert_int_eq(shape.n_heads, H);
    ck_assert_int_eq(gpt_config_head_dim(&shape), D);
    bench_free(&bench);
}
END_TEST

/* ---------------------------------------------------- the functional form */

static struct cache_aware_output run_rows(const struct causal_lm *lm,
                                          const struct cache_aware_input *in)
{
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(lm, in, &output, &error), &error);
    return output;
}

/* The golden's past: 4 slots, ±1e4 behind row 1's two. */
struct mixed {
    struct golden *golden;
    struct tiny_gpt *model;
    struct causal_lm lm;
    struct past_key_values past;
    struct cache_aware_input input;
};

static struct mixed mixed_golden(void)
{
    struct mixed m = {.golden = golden_open("cache_aware")};
    m.model = golden_model(m.golden, 0);
    m.lm = tiny_gpt_causal_lm(m.model);
    m.past = storage_new(&m.lm, 2, 4, 0);
    for (int l = 0; l < m.past.n_layers; l++) {
        const size_t bytes = tensor_size(&m.past.layers[l].key)
                             * sizeof (float);
        memcpy(m.past.layers[l].key.data,
               golden_get(m.golden, "in.mixed.past.%d.key", l)->f32, bytes);
        memcpy(m.past.layers[l].value.data,
               golden_get(m.golden, "in.mixed.past.%d.value", l)->f32, bytes);
    }
    m.input = (struct cache_aware_input){
        .ids = golden_get(m.golden, "in.mixed.ids")->ids,
        .positions = golden_get(m.golden, "in.mixed.positions")->ids,
        .batch = 2, .tokens = 3,
        .cache_lengths = golden_get(m.golden, "in.mixed.lengths")->ids,
        .cache_start_positions = golden_get(m.golden, "in.mixed.starts")->ids,
        .use_cache = true
    };
    return m;
}

static void mixed_close(struct mixed *m)
{
    past_key_values_free(&m->past);
    tiny_gpt_free(&m->model);
    golden_close(m->golden);
}

START_TEST(the_golden_batch_has_the_golden_logits_and_caches)
{
    struct mixed m = mixed_golden();
    const struct golden_tensor *want = golden_get(m.golden,
                                                  "out.mixed.logits");
    m.input.past = &m.past;
    struct cache_aware_output got = run_rows(&m.lm, &m.input);
    expect_close("logits", got.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    expect_golden_cache(m.golden, "out.mixed.past", &got.past_key_values);
    cache_aware_output_free(&got);
    mixed_close(&m);
}
END_TEST

START_TEST(lengths_come_back_advanced_by_the_new_tokens)
{
    struct mixed m = mixed_golden();
    m.input.past = &m.past;
    struct cache_aware_output got = run_rows(&m.lm, &m.input);
    expect_same_bits("lengths", got.cache_lengths,
                     golden_get(m.golden, "out.mixed.lengths")->ids,
                     2 * sizeof (int32_t));
    cache_aware_output_free(&got);
    mixed_close(&m);
}
END_TEST

START_TEST(starts_come_back_as_they_were)
{
    struct mixed m = mixed_golden();
    m.input.past = &m.past;
    struct cache_aware_output got = run_rows(&m.lm, &m.input);
    expect_same_bits("starts", got.cache_start_positions,
                     m.input.cache_start_positions, 2 * sizeof (int32_t));
    cache_aware_output_free(&got);
    mixed_close(&m);
}
END_TEST

START_TEST(a_row_without_a_past_starts_where_its_first_token_stands)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.full.logits");
    const struct cache_aware_input input = {
        .ids = golden_get(golden, "in.full.ids")->ids,
        .positions = golden_get(golden, "in.full.positions")->ids,
        .batch = 2, .tokens = 6, .use_cache = true
    };
    struct cache_aware_output got = run_rows(&lm, &input);
    const int32_t lengths[2] = {6, 6}, starts[2] = {0, 5};
    expect_close("logits", got.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    expect_golden_cache(golden, "out.full.past", &got.past_key_values);
    expect_same_bits("lengths", got.cache_lengths, lengths, sizeof lengths);
    expect_same_bits("starts", got.cache_start_positions, starts,
                     sizeof starts);
    cache_aware_output_free(&got);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

static bool all_zero(const float *data, int count)
{
    for (int k = 0; k < count; k++)
        if (data[k] != 0)
            return false;
    return true;
}

/* 7 slots came in, up to 4 of them filled; as many are needed. */
START_TEST(slots_behind_a_row_come_back_as_zeros)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    struct rows rows = rows_new(&bench, ROWS, lengths, 7, NAN);
    const struct cache_aware_input input = rows_input(&rows);
    struct cache_aware_output got = run_rows(&bench.lm, &input);
    ck_assert_int_eq(past_key_values_length(&got.past_key_values), 7);
    for (int b = 0; b < ROWS; b++) {
        expect_row_logits(&bench, &rows, b, got.logits.data);
        expect_row_slots(&bench, &rows, b, &got.past_key_values);
        const int end = lengths[b] + NEW;
        for (int k = 0; k < L * H; k++) {
            const struct layer_kv *layer =
                &got.past_key_values.layers[k / H];
            const int left = (7 - end) * D;
            if (left == 0)
                continue;
            ck_assert(all_zero(adapter_slot(&layer->key, b, k % H, end),
                               left));
            ck_assert(all_zero(adapter_slot(&layer->value, b, k % H, end),
                               left));
        }
    }
    cache_aware_output_free(&got);
    past_key_values_free(&rows.storage);
    bench_free(&bench);
}
END_TEST

/* However much storage comes in, what is needed goes out. */
START_TEST(the_returned_cache_is_as_wide_as_its_longest_row)
{
    struct bench bench = bench_new();
    for (int slots = 4; slots <= 12; slots++)
        for (int n = 0; n <= 4; n++) {
            const int lengths[2] = {n / 2, n};
            struct rows rows = rows_new(&bench, 2, lengths, slots, NAN);
            const struct cache_aware_input input = rows_input(&rows);
            struct cache_aware_output got = run_rows(&bench.lm, &input);
            ck_assert_int_eq(past_key_values_length(&got.past_key_values),
                             n + NEW);
            for (int b = 0; b < 2; b++) {
                expect_row_logits(&bench, &rows, b, got.logits.data);
                expect_row_slots(&bench, &rows, b, &got.past_key_values);
            }
            cache_aware_output_free(&got);
            past_key_values_free(&rows.storage);
        }
    bench_free(&bench);
}
END_TEST

/* With room for the new tokens in it, and without. */
START_TEST(nothing_that_came_in_is_written)
{
    struct bench bench = bench_new();
    const int lengths[ROWS] = {4, 0, 2, 3, 1};
    for (int slots = 4; slots <= 12; slots += 4) {
        struct rows rows = rows_new(&bench, ROWS, lengths, slots, 1e4f);
        struct rows copy = rows_new(&bench, ROWS, lengths, slots, 1e4f);
        const struct cache_aware_input input = rows_input(&rows);
        struct cache_aware_output got = run_rows(&bench.lm, &input);
        expect_equal_caches("the past", &rows.storage, &copy.storage);
        expect_same_bits("lengths", rows.lengths, copy.lengths,
                         sizeof rows.lengths);
        expect_same_bits("starts", rows.starts, copy.starts,
                         sizeof rows.starts);
        expect_same_bits("ids", rows.ids, copy.ids, sizeof rows.ids);
        expect_same_bits("positions", rows.positions, copy.positions,
                         sizeof rows.positions);
        cache_aware_output_free(&got);
        past_key_values_free(&rows.storage);
        past_key_values_free(&copy.storage);
    }
    bench_free(&bench);
}
END_TEST

START_TEST(no_cache_comes_back_unasked)
{
    struct bench bench = bench_new();
    const int lengths[2] = {3, 1};
    struct rows rows = rows_new(&bench, 2, lengths, 4, NAN);
    struct cache_aware_input input = rows_input(&rows);
    for (int behind = 0; behind < 2; behind++) {
        struct cache_aware_output got = {0};
        input.use_cache = false;
        const long live = allocator_live();
        enum status status = cache_aware_forward(&bench.lm, &input, &got,
                                                 &error);
        const long left = allocator_live() - live;
        expect_ok(status, &error);
        ck_assert_int_eq(left, 1);      /* the logits */
        ck_assert_ptr_null(got.past_key_values.layers);
        ck_assert_int_eq(got.past_key_values.n_layers, 0);
        ck_assert_ptr_null(got.cache_lengths);
        ck_assert_ptr_null(got.cache_start_positions);
        cache_aware_output_free(&got);
        input.past = NULL;
        input.cache_lengths = input.cache_start_positions = NULL;
    }
    past_key_values_free(&rows.storage);
    bench_free(&bench);
}
END_TEST

/* 5 + 25 + 125 + 625 + 3125 batches. */
START_TEST(every_mix_of_lengths_equals_its_rows_alone)
{
    struct bench bench = bench_new();
    const float poison[] = {NAN, 1e4f, INFINITY, -1e4f, -INFINITY, 0};
    for (int batch = 1, mixes = 5; batch <= ROWS; batch++, mixes *= 5)
        for (int mix = 0; mix < mixes; mix++) {
            int lengths[ROWS];
            for (int b = 0, rest = mix; b < batch; b++, rest /= 5)
                lengths[b] = rest % 5;
            struct rows rows = rows_new(&bench, batch, lengths, 4 + mix % 2,
                                        poison[mix % 6]);
            const struct cache_aware_input input = rows_input(&rows);
            struct cache_aware_output got = run_rows(&bench.lm, &input);
            for (int b = 0; b < batch; b++) {
                expect_row_logits(&bench, &rows, b, got.logits.data);
                expect_row_slots(&bench, &rows, b, &got.past_key_values);
                ck_assert_int_eq(got.cache_lengths[b], lengths[b] + NEW);
                ck_assert_int_eq(got.cache_start_positions[b],
                                 bench.starts[b]);
            }
            cache_aware_output_free(&got);
            past_key_values_free(&rows.storage);
        }
    bench_free(&bench);
}
END_TEST

/* ------------------------------------- what the functional form refuses */

static struct cache_aware_input spoiled_input(const struct spoiled *s)
{
    return (struct cache_aware_input){
        .ids = s->ids, .positions = s->positions, .batch = 2, .tokens = 2,
        .past = &s->storage, .cache_lengths = s->lengths,
        .cache_start_positions = s->starts, .use_cache = true
    };
}

/* The same fields, pointer by pointer. */
static void expect_unchanged(const struct cache_aware_output *output,
                             const struct cache_aware_output *before)
{
    ck_assert_ptr_eq(output->logits.data, before->logits.data);
    ck_assert_int_eq(output->logits.rank, before->logits.rank);
    ck_assert_ptr_eq(output->past_key_values.layers,
                     before->past_key_values.layers);
    ck_assert_int_eq(output->past_key_values.n_layers,
                     before->past_key_values.n_layers);
    ck_assert_ptr_eq(output->cache_lengths, before->cache_lengths);
    ck_assert_ptr_eq(output->cache_start_positions,
                     before->cache_start_positions);
}

static void expect_call_refused(const struct spoiled *s,
                                const struct cache_aware_input *input,
                                const char *message)
{
    struct cache_aware_output output = {0}, empty = {0};
    error = (struct error){0};
    const long calls = allocator_calls();
    enum status status = cache_aware_forward(&s->lm, input, &output, &error);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(made, 0);
    expect_unchanged(&output, &empty);
    ck_assert_int_eq(cache_aware_forward(&s->lm, input, &output, NULL),
                     STATUS_INVALID);
    expect_unwritten(s);
}

START_TEST(half_a_past_is_refused)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input good = spoiled_input(s);
    const char *both = "cache_lengths, cache_start_positions: expected both"
                       " with a past";
    const char *neither = "cache_lengths, cache_start_positions: expected"
                          " neither without a past";
    struct cache_aware_input bad = good;
    bad.past = NULL;
    expect_call_refused(s, &bad, neither);
    bad.cache_lengths = NULL;
    expect_call_refused(s, &bad, neither);
    bad = good, bad.past = NULL, bad.cache_start_positions = NULL;
    expect_call_refused(s, &bad, neither);
    bad = good, bad.cache_lengths = NULL;
    expect_call_refused(s, &bad, both);
    bad = good, bad.cache_start_positions = NULL;
    expect_call_refused(s, &bad, both);
    bad.cache_lengths = NULL;
    expect_call_refused(s, &bad, both);
    spoiled_free(s);
}
END_TEST

START_TEST(lengths_that_the_storage_does_not_have_are_refused)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input input = spoiled_input(s);
    s->positions[2] = 8, s->positions[3] = 9;
    s->lengths[1] = 7, s->starts[1] = 1;
    expect_call_refused(s, &input, "cache_lengths[1]: expected 0 to 6, got 7");
    s->lengths[1] = -1, s->starts[1] = 9;
    expect_call_refused(s, &input,
                        "cache_lengths[1]: expected 0 to 6, got -1");
    s->lengths[1] = INT32_MIN;
    expect_call_refused(s, &input,
                        "cache_lengths[1]: expected 0 to 6, got -2147483648");
    s->lengths[1] = 6, s->starts[1] = 2;
    struct cache_aware_output got = run_rows(&s->lm, &input);
    ck_assert_int_eq(past_key_values_length(&got.past_key_values), 8);
    cache_aware_output_free(&got);
    spoiled_free(s);
}
END_TEST

START_TEST(a_gap_behind_the_cached_tokens_is_refused)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input input = spoiled_input(s);
    s->positions[2] = 3, s->positions[3] = 4;
    expect_call_refused(s, &input, "cache_start_positions[1]: expected 2"
                        " (position 3 behind 1 cached tokens), got 1");
    s->positions[2] = 1, s->positions[3] = 2;
    expect_call_refused(s, &input, "cache_start_positions[1]: expected 0"
                        " (position 1 behind 1 cached tokens), got 1");
    s->positions[2] = 0, s->positions[3] = 1, s->starts[1] = -1;
    expect_call_refused(s, &input, "cache_start_positions[1]: expected -1"
                        " (position 0 behind 1 cached tokens), got -1");
    s->starts[1] = INT32_MAX;
    expect_call_refused(s, &input, "cache_start_positions[1]: expected -1"
                        " (position 0 behind 1 cached tokens), got"
                        " 2147483647");
    spoiled_free(s);
}
END_TEST

START_TEST(what_a_step_refuses_a_call_refuses_too)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input good = spoiled_input(s);
    struct cache_aware_input bad = good;
    bad.ids = NULL;
    expect_call_refused(s, &bad, "ids: is NULL");
    bad = good, bad.positions = NULL;
    expect_call_refused(s, &bad, "positions: is NULL");
    bad = good, bad.batch = 0;
    expect_call_refused(s, &bad, "batch: expected at least 1, got 0");
    bad = good, bad.tokens = -1;
    expect_call_refused(s, &bad, "tokens: expected 1 to 14, got -1");
    bad = good, bad.batch = 1;
    expect_call_refused(s, &bad, "past_key_values[0].key: batch: expected 1,"
                        " got 2");
    s->ids[2] = V;
    expect_call_refused(s, &good, "ids[1,0]: expected 0 to 12, got 13");
    s->ids[2] = 0, s->positions[1] = 9;
    expect_call_refused(s, &good, "positions[0,1]: expected 7, got 9");
    s->positions[1] = 7, s->lm.cache.n_kv_heads = 3;
    expect_call_refused(s, &good, "past_key_values[0].key: heads: expected 3,"
                        " got 2");
    spoiled_free(s);
}
END_TEST

START_TEST(an_output_that_is_not_empty_is_refused)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input input = spoiled_input(s);
    struct cache_aware_output full = run_rows(&s->lm, &input);
    struct cache_aware_output kept = full;
    ck_assert_int_eq(cache_aware_forward(&s->lm, &input, &full, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "output: expected an empty struct");
    expect_unchanged(&full, &kept);
    struct cache_aware_output one = {.cache_lengths = full.cache_lengths};
    ck_assert_int_eq(cache_aware_forward(&s->lm, &input, &one, &error),
                     STATUS_INVALID);
    one = (struct cache_aware_output){.past_key_values =
                                          full.past_key_values};
    ck_assert_int_eq(cache_aware_forward(&s->lm, &input, &one, &error),
                     STATUS_INVALID);
    one = (struct cache_aware_output){
        .cache_start_positions = full.cache_start_positions};
    ck_assert_int_eq(cache_aware_forward(&s->lm, &input, &one, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(cache_aware_forward(NULL, &input, &one, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(cache_aware_forward(&s->lm, NULL, &one, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "input: is NULL");
    ck_assert_int_eq(cache_aware_forward(&s->lm, &input, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "output: is NULL");
    cache_aware_output_free(&full);
    cache_aware_output_free(&full);
    cache_aware_output_free(NULL);
    spoiled_free(s);
}
END_TEST

START_TEST(a_call_survives_each_failed_allocation)
{
    struct spoiled *s = spoiled_new();
    const struct cache_aware_input input = spoiled_input(s);
    const struct cache_aware_output empty = {0};
    long reached = 0;
    for (long n = 1; ; n++) {
        struct cache_aware_output output = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = cache_aware_forward(&s->lm, &input, &output,
                                                 &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        reached = n;
        if (!failed) {
            expect_ok(status, &error);
            cache_aware_output_free(&output);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(live, 0);
        expect_unchanged(&output, &empty);
        expect_unwritten(s);
    }
    ck_assert_int_eq(reached, 2 + 1 + 2 * L + 1 + 1 + 1);
    spoiled_free(s);
}
END_TEST

/* ------------------------------------------------- the lab's ten checks */

#define ADAPTER_TEST(name, factory, check) \
    START_TEST(name) \
    { \
        struct test_model model = adapter_made(factory); \
        check(&model); \
        test_model_free(&model); \
    } \
    END_TEST

ADAPTER_TEST(lab_1_tokenwise_calls_equal_one_call, make_test_model,
             adapter_tokenwise)
ADAPTER_TEST(lab_2_chunked_calls_equal_one_call, make_test_model,
             adapter_chunked)
ADAPTER_TEST(lab_3_mixed_prefixes_ignore_poisoned_padding, make_test_model,
             adapter_poisoned)
ADAPTER_TEST(lab_4_caches_belong_to_whom_they_did, make_test_model,
             adapter_ownership)
ADAPTER_TEST(lab_5_without_use_cache_there_are_logits_only, make_test_model,
             adapter_no_cache)
ADAPTER_TEST(lab_6_malformed_metadata_is_refused, make_test_model,
             adapter_metadata)
ADAPTER_TEST(lab_7_positions_that_do_not_continue_are_refused,
             make_test_model, adapter_positions)
ADAPTER_TEST(lab_8_greedy_tokens_equal_those_of_whole_prefixes,
             make_test_model, adapter_greedy)
ADAPTER_TEST(lab_9_rows_end_at_eos_at_different_steps, make_eos_test_model,
             adapter_eos)
ADAPTER_TEST(lab_10_generation_leaves_the_mode_alone, make_test_model,
             adapter_mode)

START_TEST(the_test_models_are_those_that_the_lab_asks_for)
{
    adapter_factory *const factories[] = {make_test_model,
                                          make_eos_test_model};
    for (int k = 0; k < 2; k++) {
        struct test_model a = adapter_made(factories[k]);
        struct test_model b = adapter_made(factories[k]);
        ck_assert_int_eq(a.lm.vocab_size, 7);
        ck_assert_int_eq(a.lm.context_length, 9);
        ck_assert(!a.is_training(a.owner));
        const struct parameters *p = tiny_gpt_weights(a.owner);
        const struct parameters *q = tiny_gpt_weights(b.owner);
        expect_same_bits("weights", p->storage, q->storage,
                         p->size * sizeof (float));
        ck_assert_ptr_ne(a.owner, b.owner);
        test_model_free(&a);
        test_model_free(&b);
        test_model_free(&a);
        ck_assert_ptr_null(a.owner);
    }
}
END_TEST

START_TEST(a_test_model_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct test_model model = {0};
        const long live = allocator_live();
        allocator_fail_at(n);
        enum status status = make_test_model(&model, &error);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        if (!failed) {
            expect_ok(status, &error);
            test_model_free(&model);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        ck_assert_ptr_null(model.owner);
    }
}
END_TEST

/* ------------------------------------------------------------- generation */

/* What row r says, by chapter 2's pass over the whole text each time. */
static void say_alone(const struct bench *bench, int r, int tokens, int new,
                      int32_t *ids)
{
    struct tiny_gpt *own = shifted(bench->model, bench->starts[r]);
    memcpy(ids, bench->text[r], (size_t)tokens * sizeof *ids);
    for (int t = tokens; t < tokens + new; t++) {
        struct forward_output output = run_alone(own, ids, t);
        const float *row = output.logits.data + (t - 1) * V;
        ids[t] = 0;
        for (int v = 1; v < V; v++)
            if (row[v] > row[ids[t]])
                ids[t] = v;
        forward_output_free(&output);
    }
    tiny_gpt_free(&own);
}

/* The first `tokens` tokens of the bench's rows as a prompt. */
struct prompt {
    int32_t ids[ROWS * LONGEST], positions[ROWS * LONGEST];
    struct generate_input input;
};

static void prompt_fill(struct prompt *prompt, const struct bench *bench,
                        int batch, int tokens, int new)
{
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++) {
            prompt->ids[b * tokens + t] = bench->text[b][t];
            prompt->positions[b * tokens + t] = bench->starts[b] + t;
        }
    prompt->input = (struct generate_input){
        .ids = prompt->ids, .batch = batch, .tokens = tokens,
        .max_new_tokens = new, .eos_token_id = NO_EOS
    };
}

START_TEST(rows_that_begin_anywhere_speak_as_they_do_alone)
{
    struct bench bench = bench_new();
    for (int batch = 1; batch <= ROWS; batch++)
        for (int tokens = 1; tokens <= LONGEST; tokens++) {
            struct prompt prompt;
            struct generate_output got = {0};
            prompt_fill(&prompt, &bench, batch, tokens, 6);
            expect_ok(cache_aware_generate(&bench.lm, &prompt.input,
                                           prompt.positions, &got, &error),
                      &error);
            ck_assert_int_eq(got.batch, batch);
            ck_assert_int_eq(got.tokens, tokens + 6);
            for (int b = 0; b < batch; b++) {
                int32_t want[LONGEST + 6];
                say_alone(&bench, b, tokens, 6, want);
                expect_same_bits("ids", got.ids + b * (tokens + 6), want,
                                 (size_t)(tokens + 6) * sizeof *want);
            }
            generate_output_free(&got);
        }
    bench_free(&bench);
}
END_TEST

START_TEST(texts_without_positions_speak_as_in_chapter_6)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    struct generate_output want = {0}, got = {0};
    prompt_fill(&prompt, &bench, ROWS, 3, N - 3);
    for (int32_t eos = NO_EOS; eos < V; eos++) {
        prompt.input.eos_token_id = eos;
        expect_ok(tiny_gpt_generate(bench.model, &prompt.input, &want,
                                    &error), &error);
        expect_ok(cache_aware_generate(&bench.lm, &prompt.input, NULL, &got,
                                       &error), &error);
        ck_assert_int_eq(got.tokens, want.tokens);
        expect_same_bits("ids", got.ids, want.ids,
                         (size_t)(ROWS * want.tokens) * sizeof *got.ids);
        generate_output_free(&want);
        generate_output_free(&got);
    }
    bench_free(&bench);
}
END_TEST

enum { SAID = 2, STEPS = 7 };     /* tokens of a prompt, and after it */

/* The steps of a run of the rows in plain with this EOS; ends[b] is the one
   in which row b says it, or STEPS + 1. */
static int steps_until(int32_t plain[ROWS][SAID + STEPS], int32_t eos,
                       int ends[ROWS])
{
    int steps = 0;
    for (int b = 0; b < ROWS; b++) {
        for (ends[b] = 1; ends[b] <= STEPS
                          && plain[b][SAID + ends[b] - 1] != eos; ends[b]++)
            ;
        const int own = ends[b] > STEPS ? STEPS : ends[b];
        steps = own > steps ? own : steps;
    }
    return steps;
}

/* Whether some id, taken for EOS, ends a row that would go on to say another
   id while the others still speak. */
static bool a_row_would_speak_on(int32_t plain[ROWS][SAID + STEPS])
{
    for (int32_t eos = 0; eos < V; eos++) {
        int ends[ROWS];
        const int steps = steps_until(plain, eos, ends);
        for (int b = 0; b < ROWS; b++)
            if (ends[b] < steps && plain[b][SAID + ends[b]] != eos)
                return true;
    }
    return false;
}

/* Each id that the rows say, taken for EOS: a row is cut at its first and
   filled; the run ends with the last row, or with the budget. Models are
   drawn until the filling matters, since many soon repeat themselves. */
START_TEST(each_row_ends_at_its_own_eos)
{
    struct bench bench = {0};
    int32_t plain[ROWS][SAID + STEPS];
    bool speaks_on = false;
    for (unsigned n = 0; !speaks_on && n < 200; n++) {
        bench_free(&bench);
        bench = bench_drawn(n);
        for (int b = 0; b < ROWS; b++)
            say_alone(&bench, b, SAID, STEPS, plain[b]);
        speaks_on = a_row_would_speak_on(plain);
    }
    struct prompt prompt;
    prompt_fill(&prompt, &bench, ROWS, SAID, STEPS);
    for (int32_t eos = 0; eos < V; eos++) {
        int ends[ROWS];
        const int length = SAID + steps_until(plain, eos, ends);
        struct generate_output got = {0};
        prompt.input.eos_token_id = eos;
        expect_ok(cache_aware_generate(&bench.lm, &prompt.input,
                                       prompt.positions, &got, &error),
                  &error);
        ck_assert_int_eq(got.tokens, length);
        for (int b = 0; b < ROWS; b++)
            for (int t = 0; t < length; t++)
                ck_assert_int_eq(got.ids[b * length + t],
                                 t < SAID + ends[b] ? plain[b][t] : eos);
        generate_output_free(&got);
    }
    bench_free(&bench);
}
END_TEST

static bool stop_at_two(void *context, const int32_t *ids, int batch)
{
    int *steps = context;
    ck_assert_int_eq(batch, 2);
    ck_assert_int_ge(ids[1], 0);
    return ++*steps < 2;
}

START_TEST(a_caller_who_has_seen_enough_stops_the_run)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    struct generate_output got = {0};
    int steps = 0;
    prompt_fill(&prompt, &bench, 2, 3, 5);
    prompt.input.on_step = stop_at_two;
    prompt.input.context = &steps;
    expect_ok(cache_aware_generate(&bench.lm, &prompt.input, prompt.positions,
                                   &got, &error), &error);
    ck_assert_int_eq(steps, 2);
    ck_assert_int_eq(got.tokens, 5);
    for (int b = 0; b < 2; b++) {
        int32_t want[5];
        say_alone(&bench, b, 3, 2, want);
        expect_same_bits("ids", got.ids + b * 5, want, sizeof want);
    }
    generate_output_free(&got);
    bench_free(&bench);
}
END_TEST

START_TEST(a_run_of_no_steps_returns_a_copy_of_its_prompt)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    struct generate_output got = {0};
    prompt_fill(&prompt, &bench, 3, 4, 0);
    expect_ok(cache_aware_generate(&bench.lm, &prompt.input, prompt.positions,
                                   &got, &error), &error);
    ck_assert_int_eq(got.tokens, 4);
    ck_assert_ptr_ne(got.ids, prompt.ids);
    expect_same_bits("ids", got.ids, prompt.ids, 12 * sizeof *got.ids);
    generate_output_free(&got);
    bench_free(&bench);
}
END_TEST

static void expect_request_refused(const struct bench *bench,
                                   const struct prompt *prompt,
                                   const char *message)
{
    struct generate_output output = {0};
    const long live = allocator_live();
    enum status status = cache_aware_generate(&bench->lm, &prompt->input,
                                              prompt->positions, &output,
                                              &error);
    const long left = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(left, 0);
    ck_assert_ptr_null(output.ids);
}

/* Row 4 begins at 4, and 4 + 3 + 7 is N. */
START_TEST(a_row_may_fill_the_context_and_not_pass_it)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    struct generate_output got = {0};
    prompt_fill(&prompt, &bench, ROWS, 3, 7);
    expect_ok(cache_aware_generate(&bench.lm, &prompt.input, prompt.positions,
                                   &got, &error), &error);
    ck_assert_int_eq(got.tokens, 10);
    generate_output_free(&got);
    prompt.input.max_new_tokens = 8;
    expect_request_refused(&bench, &prompt, "max_new_tokens: row 4 ends at"
                           " position 6 of 13 and cannot take 8 more");
    bench_free(&bench);
}
END_TEST

START_TEST(what_greedy_decoding_does_not_have_is_refused)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    prompt_fill(&prompt, &bench, 2, 3, 4);
    const struct generate_input good = prompt.input;
    prompt.input.temperature = 0.5;
    expect_request_refused(&bench, &prompt, "temperature: expected 0, got"
                           " 0.5");
    prompt.input = good, prompt.input.max_new_tokens = -1;
    expect_request_refused(&bench, &prompt, "max_new_tokens: expected 0 to"
                           " 11, got -1");
    prompt.input.max_new_tokens = 12;
    expect_request_refused(&bench, &prompt, "max_new_tokens: expected 0 to"
                           " 11, got 12");
    prompt.input = good, prompt.input.eos_token_id = V;
    expect_request_refused(&bench, &prompt, "eos_token_id: expected -1 to 12,"
                           " got 13");
    prompt.input.eos_token_id = -2;
    expect_request_refused(&bench, &prompt, "eos_token_id: expected -1 to 12,"
                           " got -2");
    prompt.input = good, prompt.input.batch = 0;
    expect_request_refused(&bench, &prompt, "batch: expected at least 1,"
                           " got 0");
    prompt.input = good, prompt.input.tokens = 0;
    expect_request_refused(&bench, &prompt, "tokens: expected 1 to 14, got"
                           " 0");
    prompt.input.tokens = N + 1;
    expect_request_refused(&bench, &prompt, "tokens: expected 1 to 14, got"
                           " 15");
    prompt.input = good, prompt.input.ids = NULL;
    expect_request_refused(&bench, &prompt, "ids: is NULL");
    prompt.input = good, prompt.positions[4] = 9;
    expect_request_refused(&bench, &prompt, "positions[1,1]: expected 1, got"
                           " 9");
    prompt.positions[4] = 1, prompt.ids[5] = -1;
    expect_request_refused(&bench, &prompt, "ids[1,2]: expected 0 to 12, got"
                           " -1");
    prompt.ids[5] = 0, prompt.input.max_new_tokens = 0;
    prompt.ids[0] = V;              /* with no step to take, too */
    expect_request_refused(&bench, &prompt, "ids[0,0]: expected 0 to 12, got"
                           " 13");
    bench_free(&bench);
}
END_TEST

START_TEST(a_request_with_something_missing_is_refused)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    int32_t old[1] = {7};
    struct generate_output full = {.ids = old, .batch = 1, .tokens = 1};
    struct generate_output output = {0};
    prompt_fill(&prompt, &bench, 2, 3, 4);
    ck_assert_int_eq(cache_aware_generate(NULL, &prompt.input, NULL, &output,
                                          &error), STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(cache_aware_generate(&bench.lm, NULL, NULL, &output,
                                          &error), STATUS_INVALID);
    expect_facts(error.message, "input: is NULL");
    ck_assert_int_eq(cache_aware_generate(&bench.lm, &prompt.input, NULL,
                                          NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "output: is NULL");
    ck_assert_int_eq(cache_aware_generate(&bench.lm, &prompt.input, NULL,
                                          &full, &error), STATUS_INVALID);
    expect_facts(error.message, "output: expected an empty struct");
    ck_assert_ptr_eq(full.ids, old);
    bench_free(&bench);
}
END_TEST

START_TEST(logits_that_cannot_be_chosen_from_end_the_run)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    prompt_fill(&prompt, &bench, 2, 3, 4);
    tiny_gpt_parameters(bench.model)->final_norm.bias.data[0] = NAN;
    expect_request_refused(&bench, &prompt,
                           "logits[0]: expected a number, got"
                           " nan");
    bench_free(&bench);
}
END_TEST

START_TEST(generation_survives_each_failed_allocation)
{
    struct bench bench = bench_new();
    struct prompt prompt;
    long reached = 0;
    prompt_fill(&prompt, &bench, 2, 3, 2);
    for (long n = 1; ; n++) {
        struct generate_output output = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = cache_aware_generate(&bench.lm, &prompt.input,
                                                  prompt.positions, &output,
                                                  &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        reached = n;
        if (!failed) {
            expect_ok(status, &error);
            generate_output_free(&output);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(output.ids);
    }
    ck_assert_int_gt(reached, 20);
    bench_free(&bench);
}
END_TEST

/* ------------------------------------------------- the study, the command */

START_TEST(a_padded_batch_is_wrong_where_a_mixed_one_is_right)
{
    struct tiny_gpt *model = NULL;
    expect_ok(mask_study_model(&model, &error), &error);
    const int32_t lengths[3] = {2, 5, 0};
    int32_t ids[3 * 8];
    uint64_t state = noise_start(85);
    noise_ids(&state, 23, 3, 8, ids);
    double padded[3], mixed[3];
    expect_ok(mixed_errors(model, ids, lengths, 3, 3, padded, mixed, &error),
              &error);
    for (int b = 0; b < 3; b++) {
        ck_assert_double_eq(mixed[b], 0);
        if (lengths[b] == 5)
            ck_assert_double_eq(padded[b], 0);
        else
            ck_assert_double_gt(padded[b], 1e-2);
    }
    const int32_t none[3] = {0, 0, 0};
    expect_ok(mixed_errors(model, ids, none, 3, 3, padded, mixed, &error),
              &error);
    for (int b = 0; b < 3; b++) {
        ck_assert_double_eq(mixed[b], 0);
        ck_assert_double_eq(padded[b], 0);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_study_of_rows_survives_each_failed_allocation)
{
    struct tiny_gpt *model = NULL;
    expect_ok(mask_study_model(&model, &error), &error);
    const int32_t lengths[2] = {2, 1}, ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (long n = 1; ; n++) {
        double padded[2] = {42, 42}, mixed[2] = {42, 42};
        const long live = allocator_live();
        allocator_fail_at(n);
        enum status status = mixed_errors(model, ids, lengths, 2, 2, padded,
                                          mixed, &error);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        ck_assert_int_eq(left, 0);
        if (!failed) {
            expect_ok(status, &error);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_double_eq(padded[0] + mixed[1], 84);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(the_command_draws_a_mask_for_each_row)
{
    ck_assert_str_eq(run_program("slots --starts 1,3 --lengths 4,2"
                                 " --tokens 3", 0),
                     "# start 1, length 4\n"
                     "1 1 1 1 1 0 0\n"
                     "1 1 1 1 1 1 0\n"
                     "1 1 1 1 1 1 1\n"
                     "\n\n"
                     "# start 3, length 2\n"
                     "1 1 1 0 0 . .\n"
                     "1 1 1 1 0 . .\n"
                     "1 1 1 1 1 . .\n");
    ck_assert_str_eq(run_program("slots --lengths=1,0 --tokens=1 --json", 0),
                     "{\"tokens\": 1, \"slots\": 2, \"rows\":"
                     " [{\"start\": 0, \"length\": 1, \"keep\": [[1, 1]]},"
                     " {\"start\": 0, \"length\": 0, \"keep\":"
                     " [[1, 0]]}]}\n");
}
END_TEST

START_TEST(the_command_measures_a_batch)
{
    int prefix;
    double padded, mixed;
    const char *text = run_program("slots --lengths 4,2 --tokens 3 --errors",
                                   0);
    ck_assert_int_eq(strncmp(text, "row  prefix  padded  mixed\n"
                                   "  0       4       0      0\n"
                                   "  1       2  ", 65), 0);
    ck_assert_int_eq(sscanf(text + 54, " 1 %d %lf %lf", &prefix, &padded,
                            &mixed), 3);
    ck_assert_double_gt(padded, 0.1);
    ck_assert_double_eq(mixed, 0);
    ck_assert_str_eq(run_program("slots --lengths 1 --tokens 2 --errors"
                                 " --json", 0),
                     "{\"tokens\": 2, \"rows\": [{\"prefix\": 1, \"padded\":"
                     " 0, \"mixed\": 0}]}\n");
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_draw)
{
    const char *const usage[] = {
        "slots", "slots --lengths 3", "slots --tokens 2",
        "slots --lengths 3 --tokens 0", "slots --lengths 3 --tokens 4097",
        "slots --lengths -1 --tokens 2", "slots --lengths 4097 --tokens 2",
        "slots --lengths x --tokens 2", "slots --lengths 1,2 --tokens",
        "slots --lengths 1,2 --starts 3 --tokens 2",
        "slots --lengths 1 --starts -3 --tokens 2",
        "slots --lengths 1 --starts 4097 --tokens 2",
        "slots --lengths 1 --tokens 2 --down"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt slots"));
    ck_assert_ptr_nonnull(strstr(
        run_program("slots --lengths 255 --tokens 2 --errors", 1),
        "context_length 256"));
    ck_assert_ptr_nonnull(strstr(run_program("slots --help", 0), "--starts"));
    ck_assert_str_eq(run_program("slots --lengths 9 --lengths 1 --starts 8"
                                 " --starts 0 --tokens 1", 0),
                     "# start 0, length 1\n1 1\n");
}
END_TEST

/* -------------------------------------------------------------------- table */

#define MASK "decide whether the query may see slot j"
#define FOLLOW "refuse a position that does not continue the row"
#define PLACE "refuse a position that the model does not have"
#define ROOM "refuse a length without room behind it"
#define SCRATCH "refuse a scratch that is too small"
#define SIZES "let sizes be the floats of each part"
#define EMBED "embed row b at its own positions"
#define KEEP "let keep say which of the row's keys its queries see"
#define SLOTS "let key and value be the slots of the head"
#define WRITE "write the new keys and values behind the row's length"
#define WEIGH "weigh the keys of the row and mix their values"
#define LAST "let stream be the last token of each row"
#define RUN "run a step of the tiny GPT"
#define HALF "refuse a past without metadata, and metadata without a past"
#define LENGTH "refuse a length that the storage does not have"
#define GAP "refuse a gap between the cached tokens and the new ones"
#define BEGIN "let row b go on from its length and start"
#define COPY "copy the valid slots of row b"
#define STORAGE "let storage be a copy of the past with room behind it"
#define ADVANCE "advance the length of row b"
#define HAND "hand over what the caller asked for"
#define LIMIT "refuse more tokens than there are positions behind the row"
#define THREAD "go on from the cache and its metadata"
#define SAY "let row b say its next id, or EOS again"
#define SPEAKING "say whether a row is still speaking"

static const struct test tests[] = {
    TEST(the_golden_batch_has_two_literal_masks, 2, MASK),
    TEST(an_empty_row_sees_its_own_tokens, 2, MASK),
    TEST(a_row_of_contiguous_positions_has_the_rectangle_of_its_length, 2,
         MASK),
    TEST(a_late_query_sees_the_valid_slots_and_no_others, 2, MASK),
    TEST(the_handle_says_the_sizes_of_its_model, 2,
         "hand out the tiny GPT"),
    TEST(positions_that_are_not_contiguous_are_refused, 2, FOLLOW),
    TEST(positions_outside_the_context_are_refused, 2, PLACE),
    TEST(ids_outside_the_vocabulary_are_refused, 2, "check the token at [b,t]"),
    TEST(sizes_that_no_call_can_have_are_refused, 2,
         "refuse sizes that no call can have"),
    TEST(a_missing_argument_of_a_step_is_named, 2,
         "refuse a step with something missing"),
    TEST(storage_of_another_shape_is_refused, 2, "check a step"),
    TEST(a_length_without_room_behind_it_is_refused, 2, ROOM),
    TEST(a_scratch_that_is_too_small_is_refused, 2, SCRATCH),
    TEST(a_scratch_that_does_not_fit_has_the_largest_size, 2,
         "add up the floats of the scratch"),
    TEST(a_step_that_is_fine_is_accepted, 2, "run a checked step"),
    TEST(rows_are_embedded_at_positions_of_their_own, 2, EMBED),
    TEST(new_keys_and_values_go_right_behind_the_length, 2, WRITE),
    TEST(a_step_writes_the_slots_behind_each_length_and_no_others, 2, SLOTS),
    TEST(numbers_behind_a_length_change_no_bit, 2, KEEP),
    TEST(nan_and_infinity_behind_a_length_change_no_bit, 2, WEIGH),
    TEST(the_golden_mixed_batch_has_the_golden_logits, 2, MASK),
    TEST(a_changed_token_changes_no_earlier_logit_and_no_neighbour, 2, MASK),
    TEST(storage_that_is_used_again_forgets_what_it_held, 2, KEEP),
    TEST(the_last_logits_alone_are_the_last_of_all, 2, LAST),
    TEST(a_step_allocates_nothing, 2, RUN),
    TEST(a_scratch_is_written_before_it_is_read_and_not_outgrown, 2, SIZES),
    TEST(a_step_evaluates_in_training_mode_too, 2, RUN),
    TEST(half_a_past_is_refused, 2, HALF),
    TEST(lengths_that_the_storage_does_not_have_are_refused, 2, LENGTH),
    TEST(a_gap_behind_the_cached_tokens_is_refused, 2, GAP),
    TEST(what_a_step_refuses_a_call_refuses_too, 2,
         "check a cache-aware call"),
    TEST(lengths_come_back_advanced_by_the_new_tokens, 2, ADVANCE),
    TEST(starts_come_back_as_they_were, 2, BEGIN),
    TEST(a_row_without_a_past_starts_where_its_first_token_stands, 2, BEGIN),
    TEST(nothing_that_came_in_is_written, 2, STORAGE),
    TEST(the_golden_batch_has_the_golden_logits_and_caches, 2, COPY),
    TEST(slots_behind_a_row_come_back_as_zeros, 2, COPY),
    TEST(the_returned_cache_is_as_wide_as_its_longest_row, 2,
         "make room for the longest row"),
    TEST(no_cache_comes_back_unasked, 2, HAND),
    TEST(an_output_that_is_not_empty_is_refused, 2,
         "refuse an output that is not empty"),
    TEST(every_mix_of_lengths_equals_its_rows_alone, 2, KEEP),
    TEST(a_call_survives_each_failed_allocation, 2, "one cache-aware call"),
    TEST(lab_1_tokenwise_calls_equal_one_call, 2, ADVANCE),
    TEST(lab_2_chunked_calls_equal_one_call, 2, MASK),
    TEST(lab_3_mixed_prefixes_ignore_poisoned_padding, 2, KEEP),
    TEST(lab_4_caches_belong_to_whom_they_did, 2, STORAGE),
    TEST(lab_5_without_use_cache_there_are_logits_only, 2, HAND),
    TEST(lab_6_malformed_metadata_is_refused, 2, HALF),
    TEST(lab_7_positions_that_do_not_continue_are_refused, 2, GAP),
    TEST(the_test_models_are_those_that_the_lab_asks_for, 2,
         "make and free a test model"),
    TEST(a_test_model_survives_each_failed_allocation, 2,
         "make and free a test model"),
    TEST(rows_that_begin_anywhere_speak_as_they_do_alone, 3, THREAD),
    TEST(a_row_may_fill_the_context_and_not_pass_it, 3, LIMIT),
    TEST(lab_9_rows_end_at_eos_at_different_steps, 3, SPEAKING),
    TEST(texts_without_positions_speak_as_in_chapter_6, 3, SAY),
    TEST(each_row_ends_at_its_own_eos, 3, SAY),
    TEST(a_caller_who_has_seen_enough_stops_the_run, 3,
         "decode until nothing is left to do"),
    TEST(a_run_of_no_steps_returns_a_copy_of_its_prompt, 3,
         "close the rows up and hand them over"),
    TEST(what_greedy_decoding_does_not_have_is_refused, 3,
         "refuse options that greedy decoding does not have"),
    TEST(a_request_with_something_missing_is_refused, 3,
         "check a request for greedy tokens"),
    TEST(logits_that_cannot_be_chosen_from_end_the_run, 3,
         "choose the next id of every row"),
    TEST(generation_survives_each_failed_allocation, 3,
         "begin and end greedy decoding"),
    TEST(lab_8_greedy_tokens_equal_those_of_whole_prefixes, 3, THREAD),
    TEST(lab_10_generation_leaves_the_mode_alone, 3, RUN),
    TEST(a_padded_batch_is_wrong_where_a_mixed_one_is_right, 2,
         "the errors of a mixed batch"),
    TEST(a_study_of_rows_survives_each_failed_allocation, 2,
         "the errors of a mixed batch"),
    TEST(the_command_draws_a_mask_for_each_row, 2,
         "drawing the masks of a batch"),
    TEST(the_command_measures_a_batch, 2, "measuring a batch"),
    TEST(the_command_refuses_what_it_cannot_draw, 2,
         "the options of the slots command"),
};

SUITE("chapter 8, mixed prefixes", tests);
