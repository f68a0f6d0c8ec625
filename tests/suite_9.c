/* Chapter 9: the cache that a request owns. Rows to slots by hand-made
   numbers, then the cache against a mirror in another layout, then models
   that run in its storage against the functional cache of chapter 8. */
#include <limits.h>
#include <math.h>
#include "cache_aware.h"
#include "cache_study.h"
#include "kv_cache.h"
#include "request.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/program.h"

static struct error error;

/* ------------------------------------------------------------- the primitive */

static struct tensor new_tensor(int batch, int heads, int slots, int head_dim)
{
    struct tensor tensor = {0};
    expect_ok(tensor_new(&tensor, SHAPE(batch, heads, slots, head_dim),
                         &error), &error);
    return tensor;
}

/* Four tensors that fit each other, all of noise. */
struct four {
    struct tensor cache[2], recent[2];    /* key and value */
};

static struct four four_new(int batch, int heads, int capacity, int tokens,
                            int head_dim, uint64_t *state)
{
    struct four four;
    for (int part = 0; part < 2; part++) {
        four.cache[part] = new_tensor(batch, heads, capacity, head_dim);
        four.recent[part] = new_tensor(batch, heads, tokens, head_dim);
        noise_floats(state, tensor_size(&four.cache[part]),
                     four.cache[part].data);
        noise_floats(state, tensor_size(&four.recent[part]),
                     four.recent[part].data);
    }
    return four;
}

static void four_free(struct four *four)
{
    for (int part = 0; part < 2; part++) {
        tensor_free(&four->cache[part]);
        tensor_free(&four->recent[part]);
    }
}

static enum status four_append(struct four *four, const int32_t *slots)
{
    return append_kv_cache(&four->cache[0], &four->cache[1], &four->recent[0],
                           &four->recent[1], slots, &error);
}

/* Row t of slice s of the new keys holds 10 s + t + 1; values 100 more. */
START_TEST(rows_go_to_the_slots_that_are_named)
{
    float keys[2 * 2 * 5] = {0}, values[2 * 2 * 5] = {0};
    float new_keys[] = {1, 2, 11, 12, 21, 22, 31, 32};
    float new_values[] = {101, 102, 111, 112, 121, 122, 131, 132};
    struct tensor key = {keys, 4, {2, 2, 5, 1}};
    struct tensor value = {values, 4, {2, 2, 5, 1}};
    const struct tensor key_new = {new_keys, 4, {2, 2, 2, 1}};
    const struct tensor value_new = {new_values, 4, {2, 2, 2, 1}};
    const int32_t slots[] = {3, 0,  1, 4};
    const float want[] = {2, 0, 0, 1, 0,     12, 0, 0, 11, 0,
                          0, 21, 0, 0, 22,   0, 31, 0, 0, 32};
    expect_ok(append_kv_cache(&key, &value, &key_new, &value_new, slots,
                              &error), &error);
    expect_same_bits("keys", keys, want, sizeof want);
    for (int k = 0; k < 20; k++)
        ck_assert_float_eq(values[k], want[k] > 0 ? want[k] + 100 : 0);
}
END_TEST

/* Any shape and any slots: each float of the cache is either the new row's
   whose slot it is, or what it was. */
START_TEST(every_other_float_keeps_its_bits)
{
    uint64_t state = noise_start(90);
    for (int round = 0; round < 60; round++) {
        const int batch = 1 + noise_below(&state, 3);
        const int heads = 1 + noise_below(&state, 4);
        const int capacity = 1 + noise_below(&state, 8);
        const int tokens = 1 + noise_below(&state, capacity);
        const int dim = 1 + noise_below(&state, 4);
        struct four four = four_new(batch, heads, capacity, tokens, dim,
                                    &state);
        struct four before = four_new(batch, heads, capacity, tokens, dim,
                                      &state);
        int32_t slots[3 * 8], order[8];
        for (int b = 0; b < batch; b++) {
            noise_order(&state, capacity, order);
            memcpy(slots + b * tokens, order,
                   (size_t)tokens * sizeof *slots);
        }
        for (int part = 0; part < 2; part++)
            memcpy(before.cache[part].data, four.cache[part].data,
                   tensor_size(&four.cache[part]) * sizeof (float));
        expect_ok(four_append(&four, slots), &error);
        for (int part = 0; part < 2; part++)
            for (int k = 0; k < (int)tensor_size(&four.cache[part]); k++) {
                const int d = k % dim, slot = k / dim % capacity;
                const int slice = k / dim / capacity, b = slice / heads;
                float want = before.cache[part].data[k];
                for (int t = 0; t < tokens; t++)
                    if (slots[b * tokens + t] == slot)
                        want = four.recent[part].data[(slice * tokens + t)
                                                      * dim + d];
                ck_assert_float_eq(four.cache[part].data[k], want);
            }
        four_free(&four);
        four_free(&before);
    }
}
END_TEST

START_TEST(writing_to_slots_allocates_nothing)
{
    uint64_t state = noise_start(91);
    struct four four = four_new(2, 3, 7, 2, 5, &state);
    const int32_t slots[] = {3, 4, 6, 0};
    long calls = allocator_calls();
    enum status status = four_append(&four, slots);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(calls, 0);
    four_free(&four);
}
END_TEST

static void expect_write_refused(struct four *four, const int32_t *slots,
                                 const char *message)
{
    struct tensor copy[2];
    for (int part = 0; part < 2; part++) {
        const struct tensor *cache = &four->cache[part];
        copy[part] = new_tensor(2, 3, 7, 5);
        if (cache->data != NULL)
            memcpy(copy[part].data, cache->data, 210 * sizeof (float));
    }
    error = (struct error){0};
    ck_assert_int_eq(four_append(four, slots), STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(append_kv_cache(&four->cache[0], &four->cache[1],
                                     &four->recent[0], &four->recent[1],
                                     slots, NULL), STATUS_INVALID);
    for (int part = 0; part < 2; part++) {
        if (four->cache[part].data != NULL)
            expect_same_bits("the cache", four->cache[part].data,
                             copy[part].data, 210 * sizeof (float));
        tensor_free(&copy[part]);
    }
}

static const int32_t good_slots[] = {3, 4, 6, 0};

START_TEST(null_arguments_of_a_write_are_refused)
{
    static const char *const names[] = {"key_cache", "value_cache", "key_new",
                                        "value_new"};
    uint64_t state = noise_start(92);
    struct four four = four_new(2, 3, 7, 2, 5, &state);
    struct tensor *const tensors[] = {&four.cache[0], &four.cache[1],
                                      &four.recent[0], &four.recent[1]};
    for (int k = 0; k < 4; k++) {
        char message[64];
        float *data = tensors[k]->data;
        snprintf(message, sizeof message, "%s: null tensor", names[k]);
        tensors[k]->data = NULL;
        expect_write_refused(&four, good_slots, message);
        tensors[k]->data = data;
        struct tensor *given[] = {tensors[0], tensors[1], tensors[2],
                                  tensors[3]};
        given[k] = NULL;
        ck_assert_int_eq(append_kv_cache(given[0], given[1], given[2],
                                         given[3], good_slots, &error),
                         STATUS_INVALID);
        expect_facts(error.message, message);
        tensors[k]->rank = 3;
        snprintf(message, sizeof message, "%s: rank: expected 4, got 3",
                 names[k]);
        expect_write_refused(&four, good_slots, message);
        tensors[k]->rank = 4;
    }
    expect_write_refused(&four, NULL, "slots: is NULL");
    four_free(&four);
}
END_TEST

/* The key cache sets the sizes; three of them for the new tensors. */
START_TEST(tensors_that_disagree_are_refused)
{
    static const char *const dimensions[] = {"batch", "heads", "slots",
                                             "head_dim"};
    static const char *const names[] = {"value_cache", "key_new",
                                        "value_new"};
    uint64_t state = noise_start(93);
    struct four four = four_new(2, 3, 7, 2, 5, &state);
    struct tensor *const tensors[] = {&four.cache[1], &four.recent[0],
                                      &four.recent[1]};
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < 4; d++) {
            char message[96];
            const int right = tensors[k]->shape[d];
            if (k == 1 && d == 2)
                continue;
            tensors[k]->shape[d] = right - 1;
            snprintf(message, sizeof message, "%s: %s: expected %d, got %d",
                     names[k], dimensions[d], right, right - 1);
            expect_write_refused(&four, good_slots, message);
            tensors[k]->shape[d] = right;
        }
    four.cache[0].shape[1] = 0;
    expect_write_refused(&four, good_slots,
                         "key_cache: expected positive sizes");
    four.cache[0].shape[1] = 3;
    four_free(&four);
}
END_TEST

START_TEST(a_slot_that_the_row_does_not_have_is_refused)
{
    uint64_t state = noise_start(94);
    struct four four = four_new(2, 3, 7, 2, 5, &state);
    const int32_t wrong[] = {-1, 7, 8, INT32_MAX, INT32_MIN};
    for (int at = 0; at < 4; at++)
        for (int k = 0; k < 5; k++) {
            int32_t slots[4];
            char message[96];
            memcpy(slots, good_slots, sizeof slots);
            slots[at] = wrong[k];
            snprintf(message, sizeof message,
                     "slots[%d][%d]: expected 0 to 6, got %d", at / 2, at % 2,
                     (int)wrong[k]);
            expect_write_refused(&four, slots, message);
        }
    four_free(&four);
}
END_TEST

START_TEST(a_slot_that_is_named_twice_is_refused)
{
    uint64_t state = noise_start(95);
    struct four four = four_new(2, 3, 7, 3, 5, &state);
    const int32_t next[] = {1, 2, 3,  4, 5, 5};
    expect_write_refused(&four, next, "slots[1][2]: 5");
    const int32_t apart[] = {2, 6, 2,  4, 5, 6};
    expect_write_refused(&four, apart, "slots[0][2]: 2");
    const int32_t below[] = {1, 2, 3,  6, 0, 0};
    expect_write_refused(&four, below, "slots[1][2]: 0");
    four_free(&four);
}
END_TEST

START_TEST(two_rows_may_name_the_same_slot)
{
    uint64_t state = noise_start(96);
    struct four four = four_new(2, 3, 7, 2, 5, &state);
    const int32_t slots[] = {5, 2, 5, 2};
    expect_ok(four_append(&four, slots), &error);
    four_free(&four);
}
END_TEST

/* ------------------------------------------------ the cache and its mirror */

enum { L = 3, B = 3, H = 2, S = 7, D = 5 };
static const struct cache_shape shape = {L, H, D};

/* What a cache should hold, by token and not by slice. */
struct mirror {
    float rows[L][2][B][S][H][D];
    int32_t lengths[B], starts[B];
};

static struct kv_cache *new_cache(void)
{
    struct kv_cache *cache = NULL;
    expect_ok(kv_cache_new(&cache, &shape, B, S, &error), &error);
    return cache;
}

/* Pairs [B,H,slots,D] of noise. */
static struct past_key_values noise_pairs(int slots, uint64_t *state)
{
    const struct gpt_config config = cache_shape_config(&shape);
    struct past_key_values pairs = {0};
    expect_ok(past_key_values_new(&pairs, &config, B, slots, &error), &error);
    for (int l = 0; l < L; l++) {
        struct layer_kv *pair = &pairs.layers[l];
        noise_floats(state, tensor_size(&pair->key), pair->key.data);
        noise_floats(state, tensor_size(&pair->value), pair->value.data);
    }
    return pairs;
}

static float *pairs_row(const struct past_key_values *pairs, int l, int part,
                        int b, int h, int slot)
{
    const struct tensor *tensor = part ? &pairs->layers[l].value
                                       : &pairs->layers[l].key;
    return tensor->data + ((b * H + h) * tensor->shape[2] + slot) * D;
}

/* Slots from … from+count-1 of row b become the pairs' first ones. */
static void mirror_take(struct mirror *mirror, int b, int from, int count,
                        const struct past_key_values *pairs)
{
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < H; h++)
                for (int t = 0; t < count; t++)
                    memcpy(mirror->rows[l][part][b][from + t][h],
                           pairs_row(pairs, l, part, b, h, t),
                           D * sizeof (float));
}

static void mirror_cut(struct mirror *mirror, int b, int length)
{
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            memset(mirror->rows[l][part][b][length], 0,
                   (size_t)(S - length) * H * D * sizeof (float));
    mirror->lengths[b] = length;
}

static void mirror_append(struct mirror *mirror,
                          const struct past_key_values *recent,
                          const int32_t *positions, int tokens)
{
    for (int b = 0; b < B; b++) {
        if (mirror->lengths[b] == 0)
            mirror->starts[b] = positions[b * tokens];
        mirror_take(mirror, b, mirror->lengths[b], tokens, recent);
        mirror->lengths[b] += tokens;
    }
}

static void mirror_load(struct mirror *mirror,
                        const struct past_key_values *past,
                        const int32_t *lengths, const int32_t *starts)
{
    for (int b = 0; b < B; b++) {
        mirror_cut(mirror, b, 0);
        mirror_take(mirror, b, 0, lengths[b], past);
        mirror->lengths[b] = lengths[b];
        mirror->starts[b] = starts[b];
    }
}

/* The whole storage, padding and all, and the books. */
static void expect_mirror(const struct kv_cache *cache,
                          const struct mirror *mirror)
{
    const struct past_key_values *storage = kv_cache_storage(cache);
    for (int b = 0; b < B; b++)
        ck_assert_msg(kv_cache_lengths(cache)[b] == mirror->lengths[b]
                      && kv_cache_starts(cache)[b] == mirror->starts[b],
                      "row %d: expected length %d and start %d, got %d and %d",
                      b, (int)mirror->lengths[b], (int)mirror->starts[b],
                      (int)kv_cache_lengths(cache)[b],
                      (int)kv_cache_starts(cache)[b]);
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int b = 0; b < B; b++)
                for (int s = 0; s < S; s++)
                    for (int h = 0; h < H; h++) {
                        char what[80];
                        snprintf(what, sizeof what,
                                 "%s of layer %d, row %d, head %d, slot %d",
                                 part ? "value" : "key", l, b, h, s);
                        expect_same_bits(what,
                                         pairs_row(storage, l, part, b, h, s),
                                         mirror->rows[l][part][b][s][h],
                                         D * sizeof (float));
                    }
}

/* positions [B,tokens] that go on behind each row of the mirror; empty rows
   start at first + 10 b. */
static void positions_behind(const struct mirror *mirror, int first,
                             int tokens, int32_t *positions)
{
    for (int b = 0; b < B; b++)
        for (int t = 0; t < tokens; t++)
            positions[b * tokens + t] = t + mirror->lengths[b]
                + (mirror->lengths[b] > 0 ? mirror->starts[b]
                                          : first + 10 * b);
}

START_TEST(a_new_cache_is_empty_and_zero)
{
    struct kv_cache *cache = new_cache();
    const struct mirror mirror = {0};
    const struct past_key_values *storage = kv_cache_storage(cache);
    ck_assert_int_eq(kv_cache_batch(cache), B);
    ck_assert_int_eq(kv_cache_capacity(cache), S);
    ck_assert_int_eq(storage->n_layers, L);
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++) {
            const struct tensor *tensor = part ? &storage->layers[l].value
                                               : &storage->layers[l].key;
            const int want[] = {B, H, S, D};
            ck_assert_int_eq(tensor->rank, 4);
            for (int d = 0; d < 4; d++)
                ck_assert_int_eq(tensor->shape[d], want[d]);
        }
    expect_mirror(cache, &mirror);
    kv_cache_free(&cache);
}
END_TEST

START_TEST(a_cache_of_nothing_is_refused_by_name)
{
    static const char *const names[] = {"n_layers", "n_kv_heads", "head_dim",
                                        "batch", "capacity"};
    for (int k = 0; k < 5; k++)
        for (int size = -1; size < 1; size++) {
            int sizes[] = {L, H, D, B, S};
            char message[64];
            struct kv_cache *cache = NULL;
            sizes[k] = size;
            const struct cache_shape wrong = {sizes[0], sizes[1], sizes[2]};
            long calls = allocator_calls();
            enum status status = kv_cache_new(&cache, &wrong, sizes[3],
                                              sizes[4], &error);
            calls = allocator_calls() - calls;
            ck_assert_int_eq(status, STATUS_INVALID);
            ck_assert_int_eq(calls, 0);
            ck_assert_ptr_null(cache);
            snprintf(message, sizeof message,
                     "%s: expected at least 1, got %d", names[k], size);
            expect_facts(error.message, message);
        }
}
END_TEST

START_TEST(a_cache_too_large_for_its_numbers_is_refused)
{
    struct kv_cache *cache = NULL;
    const struct cache_shape wide = {1, 65536, 65536};
    ck_assert_int_eq(kv_cache_new(&cache, &wide, 1, 1, &error),
                     STATUS_INVALID);
    expect_facts(error.message,
                 "head_dim: expected at most 32767 for 65536 heads, got"
                 " 65536");
    const struct cache_shape large = {1, 32768, 32768};
    long live = allocator_live();
    enum status status = kv_cache_new(&cache, &large, INT_MAX, INT_MAX,
                                      &error);
    live = allocator_live() - live;
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(cache);
}
END_TEST

START_TEST(freeing_a_cache_nulls_it_and_may_be_repeated)
{
    long live = allocator_live();
    struct kv_cache *cache = NULL;
    enum status status = kv_cache_new(&cache, &shape, B, S, NULL);
    kv_cache_free(&cache);
    live = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(cache);
    kv_cache_free(&cache);
    kv_cache_free(NULL);
}
END_TEST

START_TEST(making_a_cache_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct kv_cache *cache = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = kv_cache_new(&cache, &shape, B, S, &error);
        bool failed = allocator_stop();
        if (!failed)
            kv_cache_free(&cache);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(cache);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed) {
            ck_assert_int_gt(n, 2 + 2 * L);
            break;
        }
    }
}
END_TEST

/* -------------------------------------------------------------------- load */

/* What is behind the lengths, in the prefix and in what it replaces. */
static void poison(struct past_key_values *past, const int32_t *lengths,
                   float with)
{
    const int slots = past_key_values_length(past);
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int b = 0; b < B; b++)
                for (int h = 0; h < H; h++)
                    for (int s = lengths[b]; s < slots; s++)
                        for (int d = 0; d < D; d++)
                            pairs_row(past, l, part, b, h, s)[d] = with;
}

START_TEST(a_load_takes_over_lengths_and_starts)
{
    uint64_t state = noise_start(128);
    const int32_t lengths[B] = {2, 0, 4}, starts[B] = {5, 1, 3};
    struct past_key_values past = noise_pairs(4, &state);
    struct kv_cache *cache = new_cache();
    expect_ok(kv_cache_load(cache, &past, lengths, starts, &error), &error);
    expect_same_bits("lengths", kv_cache_lengths(cache), lengths,
                     sizeof lengths);
    expect_same_bits("starts", kv_cache_starts(cache), starts, sizeof starts);
    past_key_values_free(&past);
    kv_cache_free(&cache);
}
END_TEST

START_TEST(each_row_of_a_load_has_its_prefix_and_then_zeros)
{
    uint64_t state = noise_start(97);
    const int32_t starts[B] = {4, 0, 9};
    for (int slots = 1; slots <= S + 3; slots++) {
        const int most = slots < S ? slots : S;
        const int32_t lengths[B] = {most, 0, (most + 1) / 2};
        struct past_key_values past = noise_pairs(slots, &state);
        struct kv_cache *cache = new_cache();
        struct mirror mirror = {0};
        poison(&past, lengths, NAN);
        expect_ok(kv_cache_load(cache, &past, lengths, starts, &error),
                  &error);
        mirror_load(&mirror, &past, lengths, starts);
        expect_mirror(cache, &mirror);
        past_key_values_free(&past);
        kv_cache_free(&cache);
    }
}
END_TEST

START_TEST(a_load_clears_what_was_there_before)
{
    uint64_t state = noise_start(98);
    struct past_key_values past = noise_pairs(S, &state);
    struct past_key_values other = noise_pairs(5, &state);
    const int32_t full[B] = {S, S, S}, zeros[B] = {0};
    const int32_t lengths[B] = {2, 5, 0}, starts[B] = {1, 2, 3};
    struct kv_cache *cache = new_cache();
    struct mirror mirror = {0};
    expect_ok(kv_cache_load(cache, &past, full, zeros, &error), &error);
    expect_ok(kv_cache_load(cache, &other, lengths, starts, &error), &error);
    mirror_load(&mirror, &other, lengths, starts);
    expect_mirror(cache, &mirror);
    past_key_values_free(&past);
    past_key_values_free(&other);
    kv_cache_free(&cache);
}
END_TEST

START_TEST(a_cache_may_load_its_own_view)
{
    uint64_t state = noise_start(99);
    struct past_key_values past = noise_pairs(S, &state);
    const int32_t lengths[B] = {5, 3, 4}, starts[B] = {1, 2, 3};
    const int32_t fewer[B] = {5, 1, 0};
    struct kv_cache *cache = new_cache();
    struct mirror mirror = {0};
    expect_ok(kv_cache_load(cache, &past, lengths, starts, &error), &error);
    const struct kv_inputs inputs = kv_cache_inputs(cache);
    expect_ok(kv_cache_load(cache, inputs.past, inputs.lengths,
                            inputs.starts, &error), &error);
    mirror_load(&mirror, &past, lengths, starts);
    expect_mirror(cache, &mirror);
    expect_ok(kv_cache_load(cache, inputs.past, fewer, inputs.starts,
                            &error), &error);
    mirror_load(&mirror, &past, fewer, starts);
    expect_mirror(cache, &mirror);
    past_key_values_free(&past);
    kv_cache_free(&cache);
}
END_TEST

/* A cache with something in it, and its mirror. */
struct pair {
    struct kv_cache *cache;
    struct mirror mirror;
};

static struct pair loaded(const int32_t *lengths, const int32_t *starts,
                          uint64_t *state)
{
    struct past_key_values past = noise_pairs(S, state);
    struct pair pair = {.cache = new_cache()};
    expect_ok(kv_cache_load(pair.cache, &past, lengths, starts, &error),
              &error);
    mirror_load(&pair.mirror, &past, lengths, starts);
    expect_mirror(pair.cache, &pair.mirror);
    past_key_values_free(&past);
    return pair;
}

static const int32_t some_lengths[B] = {3, 0, 5}, some_starts[B] = {2, 7, 0};

static void expect_load_refused(const struct pair *pair,
                                const struct past_key_values *past,
                                const int32_t *lengths, const int32_t *starts,
                                const char *message)
{
    long calls = allocator_calls();
    enum status status = kv_cache_load(pair->cache, past, lengths, starts,
                                       &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(calls, 0);
    expect_mirror(pair->cache, &pair->mirror);
}

START_TEST(a_length_that_one_of_the_two_does_not_hold_is_refused)
{
    uint64_t state = noise_start(100);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values small = noise_pairs(4, &state);
    struct past_key_values large = noise_pairs(S + 2, &state);
    const int32_t starts[B] = {0};
    for (int b = 0; b < B; b++) {
        const int32_t wrong[] = {-1, 5, S + 1, INT32_MIN, INT32_MAX};
        for (int k = 0; k < 5; k++) {
            int32_t lengths[B] = {1, 2, 3};
            char message[96];
            lengths[b] = wrong[k];
            snprintf(message, sizeof message,
                     "cache_lengths[%d]: expected 0 to 4, got %d", b,
                     (int)wrong[k]);
            expect_load_refused(&pair, &small, lengths, starts, message);
        }
        int32_t lengths[B] = {S, S, S};
        char message[96];
        lengths[b] = S + 1;
        snprintf(message, sizeof message,
                 "cache_lengths[%d]: expected 0 to 7, got 8", b);
        expect_load_refused(&pair, &large, lengths, starts, message);
    }
    past_key_values_free(&small);
    past_key_values_free(&large);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_start_that_no_text_has_is_refused)
{
    uint64_t state = noise_start(101);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values past = noise_pairs(4, &state);
    const int32_t lengths[B] = {1, 4, 2};
    int32_t starts[B] = {0, -1, 0};
    expect_load_refused(&pair, &past, lengths, starts,
                        "cache_start_positions[1]: expected 0 to 2147483643,"
                        " got -1");
    starts[1] = INT32_MAX - 3;
    expect_load_refused(&pair, &past, lengths, starts,
                        "cache_start_positions[1]: expected 0 to 2147483643,"
                        " got 2147483644");
    starts[1] = INT32_MAX - 4;
    expect_ok(kv_cache_load(pair.cache, &past, lengths, starts, &error),
              &error);
    past_key_values_free(&past);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_load_that_does_not_fit_changes_no_layer)
{
    uint64_t state = noise_start(102);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values past = noise_pairs(4, &state);
    const int32_t lengths[B] = {1, 4, 2}, starts[B] = {0};
    expect_load_refused(&pair, NULL, lengths, starts,
                        "past_key_values: null");
    expect_load_refused(&pair, &past, NULL, starts, "cache_lengths: is NULL");
    expect_load_refused(&pair, &past, lengths, NULL,
                        "cache_start_positions: is NULL");
    past.layers[L - 1].value.shape[2] = 3;
    expect_load_refused(&pair, &past, lengths, starts,
                        "past_key_values[2].value: length: expected 4, got"
                        " 3");
    past.layers[L - 1].value.shape[2] = 4;
    past.layers[L - 1].value.shape[1] = 3;
    expect_load_refused(&pair, &past, lengths, starts,
                        "past_key_values[2].value: heads: expected 2, got 3");
    past.layers[L - 1].value.shape[1] = H;
    past.n_layers = L - 1;
    expect_load_refused(&pair, &past, lengths, starts,
                        "past_key_values: expected 3 layers, got 2");
    past.n_layers = L;
    past_key_values_free(&past);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_cache_is_made_around_a_prefix)
{
    uint64_t state = noise_start(103);
    struct past_key_values past = noise_pairs(5, &state);
    const int32_t lengths[B] = {5, 1, 0}, starts[B] = {0, 3, 8};
    struct kv_cache *cache = NULL;
    struct mirror mirror = {0};
    expect_ok(kv_cache_from_past(&cache, &past, lengths, starts, S, &error),
              &error);
    mirror_load(&mirror, &past, lengths, starts);
    ck_assert_int_eq(kv_cache_batch(cache), B);
    ck_assert_int_eq(kv_cache_capacity(cache), S);
    past_key_values_free(&past);
    expect_mirror(cache, &mirror);
    kv_cache_free(&cache);
}
END_TEST

static void expect_from_past_refused(const struct past_key_values *past,
                                     int capacity, const char *message)
{
    const int32_t lengths[B] = {5, 1, 0}, starts[B] = {0, 3, 8};
    struct kv_cache *cache = NULL;
    long live = allocator_live();
    enum status status = kv_cache_from_past(&cache, past, lengths, starts,
                                            capacity, &error);
    live = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(cache);
}

START_TEST(a_cache_around_a_prefix_refuses_what_does_not_fit)
{
    uint64_t state = noise_start(104);
    struct past_key_values past = noise_pairs(5, &state);
    const struct past_key_values none = {0};
    expect_from_past_refused(NULL, S, "past_key_values: no layers");
    expect_from_past_refused(&none, S, "past_key_values: no layers");
    expect_from_past_refused(&past, 0,
                             "capacity: expected at least 1, got 0");
    expect_from_past_refused(&past, 4,
                             "cache_lengths[0]: expected 0 to 4, got 5");
    past.layers[1].key.shape[3] = 4;
    expect_from_past_refused(&past, S, "past_key_values[1].key: head_dim:"
                             " expected 5, got 4");
    past.layers[1].key.shape[3] = D;
    past.layers[0].key.shape[1] = 0;
    expect_from_past_refused(&past, S,
                             "n_kv_heads: expected at least 1, got 0");
    past.layers[0].key.shape[1] = H;
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_cache_around_a_prefix_survives_each_failed_allocation)
{
    uint64_t state = noise_start(105);
    struct past_key_values past = noise_pairs(5, &state);
    const int32_t lengths[B] = {5, 1, 0}, starts[B] = {0, 3, 8};
    for (long n = 1; ; n++) {
        struct kv_cache *cache = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = kv_cache_from_past(&cache, &past, lengths,
                                                starts, S, &error);
        bool failed = allocator_stop();
        if (!failed)
            kv_cache_free(&cache);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(cache);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
    }
    past_key_values_free(&past);
}
END_TEST

/* ------------------------------------------------------------------ append */

/* Appends to both, and compares. */
static void append_to(struct pair *pair, int first, int tokens,
                      uint64_t *state)
{
    struct past_key_values recent = noise_pairs(tokens, state);
    int32_t positions[B * S];
    positions_behind(&pair->mirror, first, tokens, positions);
    expect_ok(kv_cache_append(pair->cache, &recent, positions, &error),
              &error);
    mirror_append(&pair->mirror, &recent, positions, tokens);
    expect_mirror(pair->cache, &pair->mirror);
    past_key_values_free(&recent);
}

/* The floats are where they should be, whatever the books say. */
START_TEST(a_position_lives_at_its_distance_from_the_rows_start)
{
    uint64_t state = noise_start(106);
    const int32_t lengths[B] = {1, 1, 1}, starts[B] = {0, 3, 1};
    struct pair pair = loaded(lengths, starts, &state);
    struct past_key_values recent = noise_pairs(2, &state);
    const int32_t positions[] = {1, 2, 4, 5, 2, 3};
    expect_ok(kv_cache_append(pair.cache, &recent, positions, &error),
              &error);
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int l = 0; l < L; l++)
                for (int h = 0; h < H; h++) {
                    const float zeros[D] = {0};
                    const float *want =
                        s == 0 ? pair.mirror.rows[l][1][b][0][h]
                        : s < 3 ? pairs_row(&recent, l, 1, b, h, s - 1)
                        : zeros;
                    expect_same_bits("values",
                                     pairs_row(kv_cache_storage(pair.cache),
                                               l, 1, b, h, s),
                                     want, D * sizeof (float));
                }
    past_key_values_free(&recent);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(each_row_ends_behind_its_own_tokens)
{
    uint64_t state = noise_start(129);
    const int32_t lengths[B] = {3, 1, 4}, starts[B] = {2, 7, 0};
    const int32_t after[B] = {5, 3, 6};
    struct pair pair = loaded(lengths, starts, &state);
    append_to(&pair, 0, 2, &state);
    expect_same_bits("lengths", kv_cache_lengths(pair.cache), after,
                     sizeof after);
    expect_same_bits("starts", kv_cache_starts(pair.cache), starts,
                     sizeof starts);
    append_to(&pair, 0, 1, &state);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(an_empty_row_starts_where_its_first_token_stands)
{
    uint64_t state = noise_start(107);
    struct pair pair = {.cache = new_cache()};
    append_to(&pair, 4, 2, &state);
    const int32_t starts[B] = {4, 14, 24};
    expect_same_bits("starts", kv_cache_starts(pair.cache), starts,
                     sizeof starts);
    append_to(&pair, 0, 1, &state);
    expect_same_bits("starts", kv_cache_starts(pair.cache), starts,
                     sizeof starts);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(full_and_empty_rows_grow_together)
{
    uint64_t state = noise_start(108);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    append_to(&pair, 40, 1, &state);
    const int32_t lengths[B] = {4, 1, 6}, starts[B] = {2, 50, 0};
    expect_same_bits("lengths", kv_cache_lengths(pair.cache), lengths,
                     sizeof lengths);
    expect_same_bits("starts", kv_cache_starts(pair.cache), starts,
                     sizeof starts);
    append_to(&pair, 0, 1, &state);
    kv_cache_free(&pair.cache);
}
END_TEST

static void expect_append_refused(const struct pair *pair,
                                  const struct past_key_values *recent,
                                  const int32_t *positions,
                                  const char *message)
{
    long calls = allocator_calls();
    enum status status = kv_cache_append(pair->cache, recent, positions,
                                         &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(calls, 0);
    expect_mirror(pair->cache, &pair->mirror);
    const int tokens = past_key_values_length(recent);
    if (tokens > 0 && strncmp(message, "past", 4) != 0) {
        ck_assert_int_eq(kv_cache_advance(pair->cache, positions, tokens,
                                          &error), STATUS_INVALID);
        expect_facts(error.message, message);
        expect_mirror(pair->cache, &pair->mirror);
    }
}

START_TEST(each_row_is_held_against_the_capacity)
{
    uint64_t state = noise_start(109);
    for (int full = 0; full < B; full++) {
        int32_t lengths[B] = {2, 1, 3}, positions[B * S];
        char message[96];
        lengths[full] = S - 2;
        struct pair pair = loaded(lengths, some_starts, &state);
        struct past_key_values recent = noise_pairs(3, &state);
        positions_behind(&pair.mirror, 0, 3, positions);
        snprintf(message, sizeof message,
                 "row %d: expected at most 7 slots, got 5 + 3", full);
        expect_append_refused(&pair, &recent, positions, message);
        append_to(&pair, 0, 2, &state);
        ck_assert_int_eq(kv_cache_lengths(pair.cache)[full], S);
        past_key_values_free(&recent);
        kv_cache_free(&pair.cache);
    }
}
END_TEST

START_TEST(more_tokens_than_slots_are_refused_at_once)
{
    uint64_t state = noise_start(110);
    struct pair pair = {.cache = new_cache()};
    struct past_key_values recent = noise_pairs(S + 1, &state);
    int32_t positions[B * (S + 1)];
    positions_behind(&pair.mirror, 0, S + 1, positions);
    expect_append_refused(&pair, &recent, positions,
                          "row 0: expected at most 7 slots, got 0 + 8");
    append_to(&pair, 0, S, &state);
    past_key_values_free(&recent);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_position_that_does_not_follow_is_refused)
{
    uint64_t state = noise_start(111);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values recent = noise_pairs(2, &state);
    int32_t right[B * 2], wrong[B * 2];
    positions_behind(&pair.mirror, 5, 2, right);
    for (int at = 0; at < B * 2; at++)
        for (int off = -2; off <= 2; off++) {
            char message[96];
            const bool first = at == 2;    /* of the row that is empty */
            memcpy(wrong, right, sizeof wrong);
            wrong[at] += off;
            if (off == 0)
                continue;
            snprintf(message, sizeof message,
                     "positions[%d][%d]: expected %d, got %d", at / 2,
                     first ? 1 : at % 2,
                     first ? wrong[2] + 1 : right[at],
                     first ? right[3] : wrong[at]);
            expect_append_refused(&pair, &recent, wrong, message);
        }
    memcpy(wrong, right, sizeof wrong);
    wrong[2] = -1;
    wrong[3] = 0;
    expect_append_refused(&pair, &recent, wrong,
                          "positions[1][0]: expected 0, got -1");
    wrong[2] = INT32_MAX;
    wrong[3] = INT32_MIN;
    expect_append_refused(&pair, &recent, wrong,
                          "positions[1][1]: expected 2147483648, got"
                          " -2147483648");
    expect_append_refused(&pair, &recent, NULL, "positions: is NULL");
    past_key_values_free(&recent);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(an_append_that_does_not_fit_changes_no_layer)
{
    uint64_t state = noise_start(112);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values recent = noise_pairs(2, &state);
    const struct past_key_values none = {0};
    int32_t positions[B * 2];
    positions_behind(&pair.mirror, 5, 2, positions);
    recent.layers[L - 1].value.shape[2] = 1;
    expect_append_refused(&pair, &recent, positions,
                          "past_key_values[2].value: length: expected 2, got"
                          " 1");
    recent.layers[L - 1].value.shape[2] = 2;
    recent.layers[L - 1].key.shape[3] = D - 1;
    expect_append_refused(&pair, &recent, positions,
                          "past_key_values[2].key: head_dim: expected 5, got"
                          " 4");
    recent.layers[L - 1].key.shape[3] = D;
    recent.layers[0].key.shape[0] = B - 1;
    expect_append_refused(&pair, &recent, positions,
                          "past_key_values[0].key: batch: expected 3, got 2");
    recent.layers[0].key.shape[0] = B;
    recent.n_layers = L - 1;
    expect_append_refused(&pair, &recent, positions,
                          "past_key_values: expected 3 layers, got 2");
    recent.n_layers = L;
    expect_append_refused(&pair, NULL, positions, "past_key_values: null");
    expect_append_refused(&pair, &none, positions,
                          "past_key_values: expected 3 layers, got 0");
    past_key_values_free(&recent);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(tokens_written_in_place_are_counted_as_appended_ones)
{
    uint64_t state = noise_start(113);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    int32_t positions[B * 2];
    positions_behind(&pair.mirror, 5, 2, positions);
    ck_assert_int_eq(kv_cache_advance(pair.cache, positions, 0, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "tokens: expected at least 1, got 0");
    expect_ok(kv_cache_advance(pair.cache, positions, 2, &error), &error);
    const int32_t lengths[B] = {5, 2, 7}, starts[B] = {2, 15, 0};
    expect_same_bits("lengths", kv_cache_lengths(pair.cache), lengths,
                     sizeof lengths);
    expect_same_bits("starts", kv_cache_starts(pair.cache), starts,
                     sizeof starts);
    kv_cache_free(&pair.cache);
}
END_TEST

/* -------------------------------------------------------- views and copies */

START_TEST(an_empty_cache_has_no_view)
{
    uint64_t state = noise_start(114);
    const int32_t one[B] = {0, 0, 1}, starts[B] = {0};
    struct pair pair = {.cache = new_cache()};
    struct kv_inputs inputs = kv_cache_inputs(pair.cache);
    ck_assert_ptr_null(inputs.past);
    ck_assert_ptr_null(inputs.lengths);
    ck_assert_ptr_null(inputs.starts);
    kv_cache_free(&pair.cache);
    pair = loaded(one, starts, &state);
    ck_assert_ptr_nonnull(kv_cache_inputs(pair.cache).past);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_view_is_the_storage_itself)
{
    uint64_t state = noise_start(115);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    long calls = allocator_calls();
    struct kv_inputs inputs = kv_cache_inputs(pair.cache);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(calls, 0);
    ck_assert_ptr_eq(inputs.past, kv_cache_storage(pair.cache));
    ck_assert_ptr_eq(inputs.lengths, kv_cache_lengths(pair.cache));
    ck_assert_ptr_eq(inputs.starts, kv_cache_starts(pair.cache));
    append_to(&pair, 0, 1, &state);
    ck_assert_int_eq(inputs.lengths[0], some_lengths[0] + 1);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_snapshot_is_a_copy_of_the_longest_row_and_its_neighbours)
{
    uint64_t state = noise_start(116);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values copy = {0};
    int32_t lengths[B], starts[B];
    expect_ok(kv_cache_snapshot(pair.cache, &copy, lengths, starts, &error),
              &error);
    ck_assert_int_eq(past_key_values_length(&copy), 5);
    const struct gpt_config config = cache_shape_config(&shape);
    expect_ok(past_key_values_check(&copy, &config, B, &error), &error);
    expect_same_bits("lengths", lengths, some_lengths, sizeof lengths);
    expect_same_bits("starts", starts, some_starts, sizeof starts);
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int b = 0; b < B; b++)
                for (int h = 0; h < H; h++)
                    for (int s = 0; s < 5; s++)
                        expect_same_bits("the copy",
                                         pairs_row(&copy, l, part, b, h, s),
                                         pair.mirror.rows[l][part][b][s][h],
                                         D * sizeof (float));
    past_key_values_free(&copy);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_snapshot_and_its_cache_live_apart)
{
    uint64_t state = noise_start(117);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    const struct mirror before = pair.mirror;
    struct past_key_values copy = {0};
    int32_t lengths[B], starts[B];
    expect_ok(kv_cache_snapshot(pair.cache, &copy, lengths, starts, &error),
              &error);
    append_to(&pair, 0, 2, &state);
    kv_cache_reset(pair.cache);
    expect_ok(kv_cache_load(pair.cache, &copy, lengths, starts, &error),
              &error);
    expect_mirror(pair.cache, &before);
    for (int l = 0; l < L; l++)
        copy.layers[l].key.data[0] = NAN;
    expect_mirror(pair.cache, &before);
    past_key_values_free(&copy);
    expect_mirror(pair.cache, &before);
    kv_cache_free(&pair.cache);
}
END_TEST

/* Neighbours of unequal lengths, full ones and none: what comes out goes in. */
START_TEST(every_snapshot_can_be_loaded_again)
{
    uint64_t state = noise_start(118);
    for (int k = 0; k < 8 * 8; k++) {
        const int32_t lengths[B] = {k % 8, k / 8, (k * 5) % 8};
        struct pair pair = loaded(lengths, some_starts, &state);
        struct past_key_values copy = {0};
        struct kv_cache *again = NULL;
        int32_t counts[B], starts[B];
        expect_ok(kv_cache_snapshot(pair.cache, &copy, counts, starts,
                                    &error), &error);
        expect_ok(kv_cache_from_past(&again, &copy, counts, starts, S,
                                     &error), &error);
        expect_mirror(again, &pair.mirror);
        past_key_values_free(&copy);
        kv_cache_free(&again);
        kv_cache_free(&pair.cache);
    }
}
END_TEST

START_TEST(a_snapshot_refuses_missing_room_and_survives_failed_allocations)
{
    uint64_t state = noise_start(119);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    struct past_key_values copy = {0};
    int32_t lengths[B] = {41, 42, 43}, starts[B] = {44, 45, 46};
    ck_assert_int_eq(kv_cache_snapshot(pair.cache, NULL, lengths, starts,
                                       &error), STATUS_INVALID);
    expect_facts(error.message, "copy: is NULL");
    ck_assert_int_eq(kv_cache_snapshot(pair.cache, &copy, NULL, starts,
                                       &error), STATUS_INVALID);
    expect_facts(error.message, "lengths: is NULL");
    ck_assert_int_eq(kv_cache_snapshot(pair.cache, &copy, lengths, NULL,
                                       &error), STATUS_INVALID);
    expect_facts(error.message, "starts: is NULL");
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = kv_cache_snapshot(pair.cache, &copy, lengths,
                                               starts, &error);
        bool failed = allocator_stop();
        if (!failed)
            past_key_values_free(&copy);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(copy.layers);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
        ck_assert_int_eq(lengths[0], 41);
        ck_assert_int_eq(starts[2], 46);
    }
    expect_mirror(pair.cache, &pair.mirror);
    kv_cache_free(&pair.cache);
}
END_TEST

/* --------------------------------------------------------------------- cut */

START_TEST(each_row_is_cut_to_its_own_length)
{
    uint64_t state = noise_start(130);
    const int32_t full[B] = {7, 4, 6}, lengths[B] = {2, 4, 5};
    struct pair pair = loaded(full, some_starts, &state);
    expect_ok(kv_cache_truncate(pair.cache, lengths, &error), &error);
    expect_same_bits("lengths", kv_cache_lengths(pair.cache), lengths,
                     sizeof lengths);
    expect_same_bits("starts", kv_cache_starts(pair.cache), some_starts,
                     sizeof some_starts);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_cut_keeps_the_first_slots_and_clears_the_others)
{
    uint64_t state = noise_start(120);
    const int32_t full[B] = {7, 4, 6};
    for (int k = 0; k < 8 * 5 * 7; k++) {
        const int32_t lengths[B] = {k % 8, k / 8 % 5, k / 40};
        struct pair pair = loaded(full, some_starts, &state);
        expect_ok(kv_cache_truncate(pair.cache, lengths, &error), &error);
        for (int b = 0; b < B; b++)
            mirror_cut(&pair.mirror, b, lengths[b]);
        expect_mirror(pair.cache, &pair.mirror);
        kv_cache_free(&pair.cache);
    }
}
END_TEST

START_TEST(a_cut_row_goes_on_at_the_position_of_its_cut)
{
    uint64_t state = noise_start(121);
    const int32_t full[B] = {7, 4, 6}, lengths[B] = {5, 1, 2};
    struct pair pair = loaded(full, some_starts, &state);
    expect_ok(kv_cache_truncate(pair.cache, lengths, &error), &error);
    for (int b = 0; b < B; b++)
        mirror_cut(&pair.mirror, b, lengths[b]);
    append_to(&pair, 0, 2, &state);
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_length_that_a_row_has_not_reached_is_refused)
{
    uint64_t state = noise_start(122);
    struct pair pair = loaded(some_lengths, some_starts, &state);
    for (int b = 0; b < B; b++) {
        const int32_t wrong[] = {-1, some_lengths[b] + 1, INT32_MAX,
                                 INT32_MIN};
        for (int k = 0; k < 4; k++) {
            int32_t lengths[B] = {0};
            char message[96];
            lengths[b] = wrong[k];
            ck_assert_int_eq(kv_cache_truncate(pair.cache, lengths, &error),
                             STATUS_INVALID);
            snprintf(message, sizeof message,
                     "lengths[%d]: expected 0 to %d, got %d", b,
                     (int)some_lengths[b], (int)wrong[k]);
            expect_facts(error.message, message);
            expect_mirror(pair.cache, &pair.mirror);
        }
    }
    ck_assert_int_eq(kv_cache_truncate(pair.cache, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "lengths: is NULL");
    kv_cache_free(&pair.cache);
}
END_TEST

START_TEST(a_reset_cache_is_as_new)
{
    uint64_t state = noise_start(123);
    const struct mirror empty = {0};
    struct pair pair = loaded(some_lengths, some_starts, &state);
    kv_cache_reset(pair.cache);
    expect_mirror(pair.cache, &empty);
    ck_assert_ptr_null(kv_cache_inputs(pair.cache).past);
    kv_cache_reset(pair.cache);
    expect_mirror(pair.cache, &empty);
    pair.mirror = empty;
    append_to(&pair, 3, 4, &state);
    kv_cache_free(&pair.cache);
}
END_TEST

/* ------------------------------------------------------------- in any order */

/* Where everything is. */
struct addresses {
    const void *storage, *lengths, *starts, *data[L][2];
};

static struct addresses addresses_of(const struct kv_cache *cache)
{
    struct addresses at = {.storage = kv_cache_storage(cache),
                           .lengths = kv_cache_lengths(cache),
                           .starts = kv_cache_starts(cache)};
    for (int l = 0; l < L; l++) {
        at.data[l][0] = kv_cache_storage(cache)->layers[l].key.data;
        at.data[l][1] = kv_cache_storage(cache)->layers[l].value.data;
    }
    return at;
}

static void random_append(struct pair *pair, uint64_t *state)
{
    const int tokens = 1 + noise_below(state, 3);
    struct past_key_values recent = noise_pairs(tokens, state);
    int32_t positions[B * S];
    bool fits = true;
    positions_behind(&pair->mirror, noise_below(state, 9), tokens, positions);
    for (int b = 0; b < B; b++)
        fits = fits && pair->mirror.lengths[b] + tokens <= S;
    long calls = allocator_calls();
    enum status status = kv_cache_append(pair->cache, &recent, positions,
                                         &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, fits ? STATUS_OK : STATUS_INVALID);
    ck_assert_int_eq(calls, 0);
    if (fits)
        mirror_append(&pair->mirror, &recent, positions, tokens);
    past_key_values_free(&recent);
}

static void random_load(struct pair *pair, uint64_t *state)
{
    const int slots = 1 + noise_below(state, S);
    struct past_key_values past = noise_pairs(slots, state);
    int32_t lengths[B], starts[B];
    for (int b = 0; b < B; b++) {
        lengths[b] = noise_below(state, slots + 1);
        starts[b] = noise_below(state, 9);
    }
    expect_ok(kv_cache_load(pair->cache, &past, lengths, starts, &error),
              &error);
    mirror_load(&pair->mirror, &past, lengths, starts);
    past_key_values_free(&past);
}

static void random_cut(struct pair *pair, uint64_t *state)
{
    int32_t lengths[B];
    for (int b = 0; b < B; b++)
        lengths[b] = noise_below(state, pair->mirror.lengths[b] + 1);
    expect_ok(kv_cache_truncate(pair->cache, lengths, &error), &error);
    for (int b = 0; b < B; b++)
        mirror_cut(&pair->mirror, b, lengths[b]);
}

START_TEST(storage_stays_where_it_is_through_any_sequence_of_calls)
{
    uint64_t state = noise_start(124);
    struct pair pair = {.cache = new_cache()};
    const struct addresses before = addresses_of(pair.cache);
    for (int step = 0; step < 400; step++) {
        const int what = noise_below(&state, 8);
        if (what < 5)
            random_append(&pair, &state);
        else if (what == 5)
            random_cut(&pair, &state);
        else if (what == 6)
            random_load(&pair, &state);
        else {
            kv_cache_reset(pair.cache);
            pair.mirror = (struct mirror){0};
        }
        const struct addresses now = addresses_of(pair.cache);
        expect_same_bits("addresses", &now, &before, sizeof now);
        expect_mirror(pair.cache, &pair.mirror);
    }
    kv_cache_free(&pair.cache);
}
END_TEST

/* ----------------------------------------------------------------- requests */

/* A model and a text, as a handle. */
struct served {
    struct cached cached;
    struct causal_lm lm;
};

/* V 13, N 9, C 10, L 3, H 2, D 5; three rows of nine tokens: cached_noise has
   the sizes of this suite's caches, but for S, which is N - 2. */
static struct served served_noise(void)
{
    struct served served = {.cached = cached_noise()};
    served.lm = tiny_gpt_causal_lm(served.cached.model);
    return served;
}

static struct request *new_request(const struct causal_lm *lm, int batch,
                                   int capacity, int max_tokens)
{
    struct request *request = NULL;
    expect_ok(request_new(&request, lm, batch, capacity, max_tokens, &error),
              &error);
    return request;
}

/* Columns from … of the text; returns the borrowed logits. */
static const float *feed(struct request *request, const struct cached *cached,
                         int from, int count, bool last_only)
{
    int32_t ids[TEXT_MAX];
    const float *logits = NULL;
    cached_columns(cached, from, count, ids);
    expect_ok(request_feed(request, ids, count, last_only, &logits, &error),
              &error);
    return logits;
}

/* The functional form over columns from … of the text, positions from 0. */
static struct cache_aware_output
functional(const struct served *served, int from, int count,
           const struct kv_inputs *past)
{
    int32_t ids[TEXT_MAX], positions[TEXT_MAX];
    struct cache_aware_output output = {0};
    cached_columns(&served->cached, from, count, ids);
    for (int k = 0; k < served->cached.batch * count; k++)
        positions[k] = from + k % count;
    const struct cache_aware_input input = {
        .ids = ids, .positions = positions, .batch = served->cached.batch,
        .tokens = count, .past = past ? past->past : NULL,
        .cache_lengths = past ? past->lengths : NULL,
        .cache_start_positions = past ? past->starts : NULL,
        .use_cache = true
    };
    expect_ok(cache_aware_forward(&served->lm, &input, &output, &error),
              &error);
    return output;
}

/* Rows from … of all logits [B,tokens,V] have the bits of some. */
static void expect_logit_rows(const struct cached *cached, const float *some,
                              const float *all, int from, int count)
{
    const int size = cached->config->vocab_size;
    for (int b = 0; b < cached->batch; b++)
        expect_same_bits("logits", some + b * count * size,
                         all + (b * cached->tokens + from) * size,
                         (size_t)(count * size) * sizeof (float));
}

/* What a request's cache holds, as the caller's own copy. */
static void expect_held(struct request *request,
                        const struct past_key_values *want,
                        const int32_t *lengths, const int32_t *starts)
{
    struct past_key_values copy = {0};
    int32_t counts[B], firsts[B];
    expect_ok(kv_cache_snapshot(request_cache(request), &copy, counts, firsts,
                                &error), &error);
    expect_equal_caches("keys and values", &copy, want);
    const size_t bytes = (size_t)want->layers[0].key.shape[0]
                         * sizeof *lengths;
    expect_same_bits("lengths", counts, lengths, bytes);
    expect_same_bits("starts", firsts, starts, bytes);
    past_key_values_free(&copy);
}

START_TEST(a_request_refuses_what_cannot_be_served)
{
    struct served served = served_noise();
    struct request *request = NULL;
    const struct { int batch, capacity, tokens; const char *message; } wrong[]
        = {{0, 8, 4, "batch: expected at least 1, got 0"},
           {2, 0, 1, "max_tokens: expected 1 to the capacity 0, got 1"},
           {2, 8, 0, "max_tokens: expected 1 to the capacity 8, got 0"},
           {2, 8, 9, "max_tokens: expected 1 to the capacity 8, got 9"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        long live = allocator_live();
        enum status status =
            request_new(&request, &served.lm, wrong[k].batch,
                        wrong[k].capacity, wrong[k].tokens, &error);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        expect_facts(error.message, wrong[k].message);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(request);
    }
    ck_assert_int_eq(request_new(&request, NULL, 1, 1, 1, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    request_free(&request);
    request_free(NULL);
    cached_close(&served.cached);
}
END_TEST

static size_t no_size(const void *model, int batch, int tokens, int slots)
{
    (void)model, (void)batch, (void)tokens, (void)slots;
    return SIZE_MAX;
}

START_TEST(a_scratch_that_does_not_fit_is_an_error)
{
    struct served served = served_noise();
    struct request *request = NULL;
    served.lm.scratch_size = no_size;
    long live = allocator_live();
    enum status status = request_new(&request, &served.lm, 1, 4, 2, &error);
    live = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(request);
    cached_close(&served.cached);
}
END_TEST

START_TEST(admission_survives_each_failed_allocation)
{
    struct served served = served_noise();
    for (long n = 1; ; n++) {
        struct request *request = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = request_new(&request, &served.lm, 3, 9, 4,
                                         &error);
        bool failed = allocator_stop();
        if (!failed)
            request_free(&request);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(request);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
        ck_assert_int_eq(error.status, STATUS_NO_MEMORY);
    }
    cached_close(&served.cached);
}
END_TEST

/* One call has the logits of chapter 5's forward pass, bit for bit: the same
   loops run over slots that lie elsewhere. */
START_TEST(one_feed_equals_the_full_forward)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 9);
    struct forward_output all = cached_run(&served.cached, 0, 9, NULL, true);
    const int32_t lengths[B] = {9, 9, 9}, starts[B] = {0};
    expect_logit_rows(&served.cached, feed(request, &served.cached, 0, 9,
                                           false), all.logits.data, 0, 9);
    expect_held(request, &all.past_key_values, lengths, starts);
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

START_TEST(last_only_gives_the_last_row_of_each)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 4);
    struct forward_output all = cached_run(&served.cached, 0, 9, NULL, false);
    for (int from = 0; from < 9; from += 4) {
        const int count = from == 8 ? 1 : 4;
        expect_logit_rows(&served.cached,
                          feed(request, &served.cached, from, count, true),
                          all.logits.data, from + count - 1, 1);
    }
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* All 2^8 ways to cut nine tokens into feeds. */
START_TEST(every_split_into_feeds_gives_the_same_rows)
{
    struct served served = served_noise();
    struct forward_output all = cached_run(&served.cached, 0, 9, NULL, true);
    struct request *request = new_request(&served.lm, 3, 9, 9);
    const int32_t lengths[B] = {9, 9, 9}, starts[B] = {0};
    for (unsigned cuts = 0; cuts < 1u << 8; cuts++) {
        for (int at = 0, next = 1; at < 9; at = next++) {
            while (next < 9 && !(cuts >> (next - 1) & 1))
                next++;
            expect_logit_rows(&served.cached,
                              feed(request, &served.cached, at, next - at,
                                   false), all.logits.data, at, next - at);
        }
        expect_held(request, &all.past_key_values, lengths, starts);
        kv_cache_reset(request_cache(request));
    }
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* The golden's two rows have prefixes of unequal lengths and starts, padded
   with poison by the oracle. */
START_TEST(a_padded_mixed_load_goes_on_with_the_golden_logits_and_caches)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct gpt_config config = cache_shape_config(&lm.cache);
    const struct golden_tensor *want = golden_get(golden, "out.mixed.logits");
    const struct golden_tensor *padded = golden_get(golden,
                                                    "in.mixed.past.0.key");
    struct past_key_values past = {0}, final = {0};
    expect_ok(past_key_values_new(&past, &config, 2, padded->shape[2],
                                  &error), &error);
    for (int l = 0; l < past.n_layers; l++) {
        memcpy(past.layers[l].key.data,
               golden_get(golden, "in.mixed.past.%d.key", l)->f32,
               padded->count * sizeof (float));
        memcpy(past.layers[l].value.data,
               golden_get(golden, "in.mixed.past.%d.value", l)->f32,
               padded->count * sizeof (float));
    }
    struct request *request = new_request(&lm, 2, 10, 3);
    const float *logits = NULL;
    int32_t lengths[2], starts[2];
    expect_ok(kv_cache_load(request_cache(request), &past,
                            golden_get(golden, "in.mixed.lengths")->ids,
                            golden_get(golden, "in.mixed.starts")->ids,
                            &error), &error);
    expect_ok(request_feed(request, golden_get(golden, "in.mixed.ids")->ids,
                           3, false, &logits, &error), &error);
    expect_close("logits", logits, want->f32, want->count, want->rank,
                 want->shape, TOLERANCE);
    expect_ok(kv_cache_snapshot(request_cache(request), &final, lengths,
                                starts, &error), &error);
    expect_golden_cache(golden, "out.mixed.past", &final);
    expect_same_bits("lengths", lengths,
                     golden_get(golden, "out.mixed.lengths")->ids,
                     sizeof lengths);
    past_key_values_free(&past);
    past_key_values_free(&final);
    request_free(&request);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

/* A prefix that the functional form computed seeds the storage; the suffix
   then has the logits, and the cache the keys and values, of a cold run. */
START_TEST(a_prefix_match_seeds_a_request_that_equals_a_cold_run)
{
    struct served served = served_noise();
    struct cache_aware_output all = functional(&served, 0, 9, NULL);
    for (int prefix = 1; prefix < 9; prefix++) {
        struct cache_aware_output match = functional(&served, 0, prefix,
                                                     NULL);
        struct request *request = new_request(&served.lm, 3, 9, 8);
        expect_ok(kv_cache_load(request_cache(request),
                                &match.past_key_values, match.cache_lengths,
                                match.cache_start_positions, &error),
                  &error);
        cache_aware_output_free(&match);
        expect_logit_rows(&served.cached,
                          feed(request, &served.cached, prefix, 9 - prefix,
                               false), all.logits.data, prefix, 9 - prefix);
        expect_held(request, &all.past_key_values, all.cache_lengths,
                    all.cache_start_positions);
        request_free(&request);
    }
    cache_aware_output_free(&all);
    cached_close(&served.cached);
}
END_TEST

/* The other way to go on: the functional form runs from the view, and what it
   returned for the new tokens is appended at their positions. */
START_TEST(suffixes_of_the_functional_form_can_be_appended)
{
    struct served served = served_noise();
    struct cache_aware_output all = functional(&served, 0, 9, NULL);
    struct kv_cache *cache = NULL;
    expect_ok(kv_cache_new(&cache, &served.lm.cache, 3, 9, &error), &error);
    for (int at = 0, count = 1; at < 9; at += count, count = 2) {
        const struct kv_inputs inputs = kv_cache_inputs(cache);
        struct cache_aware_output output =
            functional(&served, at, count, at == 0 ? NULL : &inputs);
        struct past_key_values recent = noise_pairs(count, &(uint64_t){1});
        int32_t positions[B * 2];
        for (int k = 0; k < B * count; k++)
            positions[k] = at + k % count;
        for (int l = 0; l < L; l++)
            for (int row = 0; row < 2 * B * H * count; row++) {
                const int part = row % 2, t = row / 2 % count;
                const int h = row / 2 / count % H, b = row / 2 / count / H;
                memcpy(pairs_row(&recent, l, part, b, h, t),
                       pairs_row(&output.past_key_values, l, part, b, h,
                                 at + t), D * sizeof (float));
            }
        expect_logit_rows(&served.cached, output.logits.data, all.logits.data,
                          at, count);
        expect_ok(kv_cache_append(cache, &recent, positions, &error), &error);
        past_key_values_free(&recent);
        cache_aware_output_free(&output);
    }
    struct past_key_values copy = {0};
    int32_t lengths[B], starts[B];
    expect_ok(kv_cache_snapshot(cache, &copy, lengths, starts, &error),
              &error);
    expect_equal_caches("final keys and values", &copy,
                        &all.past_key_values);
    past_key_values_free(&copy);
    cache_aware_output_free(&all);
    kv_cache_free(&cache);
    cached_close(&served.cached);
}
END_TEST

/* Rows of 0, 2 and 4 tokens that start at 0, 3 and 1, against each alone. */
START_TEST(each_row_of_a_mixed_request_runs_as_it_does_alone)
{
    struct served served = served_noise();
    const int32_t lengths[B] = {0, 2, 4}, starts[B] = {0, 3, 1};
    uint64_t state = noise_start(125);
    struct past_key_values past = noise_pairs(4, &state);
    poison(&past, lengths, INFINITY);
    struct request *request = new_request(&served.lm, 3, 6, 2);
    expect_ok(kv_cache_load(request_cache(request), &past, lengths, starts,
                            &error), &error);
    const float *logits = feed(request, &served.cached, 0, 2, false);
    for (int b = 0; b < B; b++) {
        struct request *alone = new_request(&served.lm, 1, 6, 2);
        struct past_key_values one = {0};
        const struct gpt_config config = cache_shape_config(&shape);
        const float *solo = NULL;
        expect_ok(past_key_values_new(&one, &config, 1, 4, &error), &error);
        for (int l = 0; l < L; l++) {
            const size_t floats = H * 4 * D;
            memcpy(one.layers[l].key.data, past.layers[l].key.data
                   + (size_t)b * floats, floats * sizeof (float));
            memcpy(one.layers[l].value.data, past.layers[l].value.data
                   + (size_t)b * floats, floats * sizeof (float));
        }
        expect_ok(kv_cache_load(request_cache(alone), &one, lengths + b,
                                starts + b, &error), &error);
        expect_ok(request_feed(alone, served.cached.ids + b * 9, 2, false,
                               &solo, &error), &error);
        expect_same_bits("logits", logits + b * 2 * 13, solo,
                         2 * 13 * sizeof (float));
        past_key_values_free(&one);
        request_free(&alone);
    }
    past_key_values_free(&past);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

START_TEST(what_is_behind_the_lengths_is_not_read)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 4);
    struct forward_output all = cached_run(&served.cached, 0, 6, NULL, false);
    feed(request, &served.cached, 0, 4, false);
    const struct past_key_values *storage =
        kv_cache_storage(request_cache(request));
    for (int l = 0; l < L; l++)
        for (int slice = 0; slice < B * H; slice++)
            for (int k = 6 * D; k < 9 * D; k++)
                storage->layers[l].key.data[slice * 9 * D + k] =
                    storage->layers[l].value.data[slice * 9 * D + k] = NAN;
    served.cached.tokens = 9;
    const float *logits = feed(request, &served.cached, 4, 2, false);
    for (int b = 0; b < B; b++)
        expect_same_bits("logits", logits + b * 2 * 13,
                         all.logits.data + (b * 6 + 4) * 13,
                         2 * 13 * sizeof (float));
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

START_TEST(the_token_loop_allocates_nothing)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 4);
    const struct kv_cache *cache = request_cache(request);
    const float *key = kv_cache_storage(cache)->layers[L - 1].key.data;
    const float *seen[6];
    enum status status[6];
    int32_t prompt[B * 4], next[B] = {1, 2, 3};
    cached_columns(&served.cached, 0, 4, prompt);
    long calls = allocator_calls();
    status[0] = request_feed(request, prompt, 4, true, &seen[0], &error);
    for (int n = 1; n < 6; n++)
        status[n] = request_feed(request, next, 1, true, &seen[n], &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(calls, 0);
    for (int n = 0; n < 6; n++) {
        ck_assert_int_eq(status[n], STATUS_OK);
        ck_assert_ptr_eq(seen[n], seen[0]);
    }
    ck_assert_ptr_eq(request_cache(request), cache);
    ck_assert_ptr_eq(kv_cache_storage(cache)->layers[L - 1].key.data, key);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* Chapter 6's greedy tokens from a loop over a request. */
START_TEST(greedy_tokens_are_those_of_the_functional_loop)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 4);
    int32_t ids[B * 4], next[B];
    cached_columns(&served.cached, 0, 4, ids);
    const struct generate_input input = {
        .ids = ids, .batch = B, .tokens = 4, .max_new_tokens = 5,
        .eos_token_id = NO_EOS
    };
    struct generate_output want = {0};
    expect_ok(cache_aware_generate(&served.lm, &input, NULL, &want, &error),
              &error);
    const float *logits = feed(request, &served.cached, 0, 4, true);
    for (int t = 4; t < 9; t++) {
        for (int b = 0; b < B; b++) {
            next[b] = 0;
            for (int v = 1; v < 13; v++)
                if (logits[b * 13 + v] > logits[b * 13 + next[b]])
                    next[b] = v;
            ck_assert_int_eq(next[b], want.ids[b * 9 + t]);
        }
        expect_ok(request_feed(request, next, 1, true, &logits, &error),
                  &error);
    }
    generate_output_free(&want);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* Nothing changes: lengths, starts, every float, the logits and their
   address. Then the right feed goes on as if nothing had been asked. */
static void expect_feed_refused(struct request *request, const int32_t *ids,
                                int tokens, const char *message)
{
    struct kv_cache *cache = request_cache(request);
    const struct tensor *key = &kv_cache_storage(cache)->layers[0].key;
    const size_t floats = tensor_size(key);
    float before[2 * L][1024];
    int32_t lengths[B];
    const size_t rows = (size_t)kv_cache_batch(cache) * sizeof *lengths;
    const float here = 0, *logits = &here;
    for (int l = 0; l < L; l++) {
        const struct layer_kv *pair = &kv_cache_storage(cache)->layers[l];
        memcpy(before[2 * l], pair->key.data, floats * sizeof (float));
        memcpy(before[2 * l + 1], pair->value.data, floats * sizeof (float));
    }
    memcpy(lengths, kv_cache_lengths(cache), rows);
    long calls = allocator_calls();
    enum status status = request_feed(request, ids, tokens, false, &logits,
                                      &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_named(&error, message);
    ck_assert_int_eq(calls, 0);
    ck_assert_ptr_eq(logits, &here);
    expect_same_bits("lengths", kv_cache_lengths(cache), lengths, rows);
    for (int l = 0; l < L; l++) {
        const struct layer_kv *pair = &kv_cache_storage(cache)->layers[l];
        expect_same_bits("keys", pair->key.data, before[2 * l],
                         floats * sizeof (float));
        expect_same_bits("values", pair->value.data, before[2 * l + 1],
                         floats * sizeof (float));
    }
}

START_TEST(a_refused_feed_changes_nothing)
{
    struct served served = served_noise();
    struct forward_output all = cached_run(&served.cached, 0, 9, NULL, false);
    struct request *request = new_request(&served.lm, 3, 9, 4);
    int32_t ids[B * 4] = {0};
    const float *logits = feed(request, &served.cached, 0, 4, false);
    ck_assert_int_eq(request_feed(request, ids, 1, false, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "logits: is NULL");
    expect_feed_refused(request, NULL, 1, "ids: is NULL");
    expect_feed_refused(request, ids, 0, "tokens: expected 1 to 4, got 0");
    expect_feed_refused(request, ids, 5, "tokens: expected 1 to 4, got 5");
    ids[B * 2 - 1] = 13;
    expect_feed_refused(request, ids, 2, "ids[2,1]: expected 0 to 12, got 13");
    ids[B * 2 - 1] = -1;
    expect_feed_refused(request, ids, 2, "ids[2,1]: expected 0 to 12, got -1");
    expect_logit_rows(&served.cached, logits, all.logits.data, 0, 4);
    expect_logit_rows(&served.cached,
                      feed(request, &served.cached, 4, 4, false),
                      all.logits.data, 4, 4);
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* S - 1 slots used, S, and one more; N - 1 positions, N, and one more. */
START_TEST(a_feed_fills_the_slots_and_the_context_and_not_more)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, S, 4);
    const int32_t ids[B * 4] = {0};
    feed(request, &served.cached, 0, 4, false);
    feed(request, &served.cached, 4, 2, false);
    expect_feed_refused(request, ids, 2, "lengths[0]: expected 0 to 5");
    feed(request, &served.cached, 6, 1, false);
    expect_feed_refused(request, ids, 1, "lengths[0]: expected 0 to 6");
    request_free(&request);
    request = new_request(&served.lm, 3, 20, 4);
    feed(request, &served.cached, 0, 4, false);
    feed(request, &served.cached, 4, 4, false);
    expect_feed_refused(request, ids, 2,
                        "row 0: expected positions below 9, got 0 + 8 + 2");
    feed(request, &served.cached, 8, 1, false);
    expect_feed_refused(request, ids, 1,
                        "row 0: expected positions below 9, got 0 + 9 + 1");
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

START_TEST(a_row_that_starts_late_meets_the_context_early)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, S, 3);
    uint64_t state = noise_start(126);
    struct past_key_values past = noise_pairs(2, &state);
    const int32_t ids[B * 3] = {0}, lengths[B] = {0, 2, 1};
    int32_t starts[B] = {0, 5, 1};
    expect_ok(kv_cache_load(request_cache(request), &past, lengths, starts,
                            &error), &error);
    expect_feed_refused(request, ids, 3,
                        "row 1: expected positions below 9, got 5 + 2 + 3");
    feed(request, &served.cached, 0, 2, false);
    expect_feed_refused(request, ids, 1,
                        "row 1: expected positions below 9, got 5 + 4 + 1");
    starts[1] = INT32_MAX - 2;
    expect_ok(kv_cache_load(request_cache(request), &past, lengths, starts,
                            &error), &error);
    expect_feed_refused(request, ids, 3, "row 1: expected positions below 9,"
                        " got 2147483645 + 2 + 3");
    past_key_values_free(&past);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* Refused guesses: rows are cut to unequal lengths and go on otherwise. */
START_TEST(a_cut_request_goes_on_as_if_it_had_never_gone_further)
{
    struct served served = served_noise();
    struct request *request = new_request(&served.lm, 3, 9, 5);
    const int32_t cut[B] = {3, 3, 3}, starts[B] = {0}, nine[B] = {9, 9, 9};
    struct forward_output all = cached_run(&served.cached, 0, 9, NULL, true);
    int32_t guesses[B * 4];
    const float *logits;
    feed(request, &served.cached, 0, 3, false);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < B * 4; k++)
            guesses[k] = (int32_t)((k * 5 + round) % 13);
        expect_ok(request_feed(request, guesses, 4, false, &logits, &error),
                  &error);
        expect_ok(kv_cache_truncate(request_cache(request), cut, &error),
                  &error);
    }
    expect_logit_rows(&served.cached,
                      feed(request, &served.cached, 3, 4, false),
                      all.logits.data, 3, 4);
    feed(request, &served.cached, 7, 2, false);
    expect_held(request, &all.past_key_values, nine, starts);
    forward_output_free(&all);
    request_free(&request);
    cached_close(&served.cached);
}
END_TEST

/* A, B, A on one request; the second A began elsewhere and longer before. */
START_TEST(nothing_of_a_request_shows_in_the_next)
{
    struct served served = served_noise();
    struct request *used = new_request(&served.lm, 3, S, 4);
    uint64_t state = noise_start(127);
    struct past_key_values past = noise_pairs(3, &state);
    const int32_t lengths[B] = {3, 1, 0}, starts[B] = {1, 4, 2};
    struct forward_output all = cached_run(&served.cached, 0, 4, NULL, true);
    for (int round = 0; round < 3; round++) {
        const int32_t four[B] = {4, 4, 4}, zeros[B] = {0};
        expect_logit_rows(&(struct cached){.config = served.cached.config,
                                           .batch = B, .tokens = 4},
                          feed(used, &served.cached, 0, 4, false),
                          all.logits.data, 0, 4);
        expect_held(used, &all.past_key_values, four, zeros);
        kv_cache_reset(request_cache(used));
        expect_ok(kv_cache_load(request_cache(used), &past, lengths, starts,
                                &error), &error);
        feed(used, &served.cached, 5, 3, false);
        kv_cache_reset(request_cache(used));
    }
    past_key_values_free(&past);
    forward_output_free(&all);
    request_free(&used);
    cached_close(&served.cached);
}
END_TEST

/* -------------------------------------------------------------- the command */

START_TEST(traffic_is_what_the_formula_says)
{
    const struct cache_shape sizes = {3, 2, 5};
    const struct cache_traffic traffic = cache_traffic(&sizes, 7, 11);
    ck_assert_double_eq(traffic.in_place, 2.0 * 3 * 2 * 5 * 4 * 7);
    ck_assert_double_eq(traffic.functional, 11 * traffic.in_place);
    ck_assert_double_eq(traffic.reads, traffic.functional);
}
END_TEST

START_TEST(times_are_measured_or_nothing_is_changed)
{
    struct served served = served_noise();
    struct cache_times times = {-1, -1};
    const int wrong[][2] = {{5, 0}, {5, 100}, {1, 3}, {10, 3}};
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(cache_times_measure(&served.lm, 2, wrong[k][0],
                                             wrong[k][1], &times, &error),
                         STATUS_INVALID);
        ck_assert_double_eq(times.functional, -1);
    }
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = cache_times_measure(&served.lm, 2, 5, 3, &times,
                                                 &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
        ck_assert_double_eq(times.in_place, -1);
    }
    ck_assert_double_ge(times.functional, 0);
    ck_assert_double_ge(times.in_place, 0);
    cached_close(&served.cached);
}
END_TEST

START_TEST(the_command_prints_the_traffic)
{
    const char *table = run_program("cache --config figures/01-tiny.json"
                                    " --batch 3", 0);
    int context;
    double reads, functional, in_place;
    ck_assert_ptr_nonnull(strstr(table, "context"));
    const char *last = strrchr(table, '\n');
    while (last > table && last[-1] != '\n')
        last--;
    ck_assert_int_eq(sscanf(last, "%d %lf %lf %lf", &context, &reads,
                            &functional, &in_place), 4);
    ck_assert_int_eq(context, 12);
    ck_assert_double_eq(in_place, 3 * 256);
    ck_assert_double_eq(functional, 12 * 3 * 256);
    const char *json = run_program("cache --config figures/01-tiny.json"
                                   " --measure --json", 0);
    ck_assert_ptr_nonnull(strstr(json, "{\"batch\": 1, \"rows\": ["));
    ck_assert_ptr_nonnull(strstr(json, "{\"context\": 12, \"reads\": 3072,"
                                 " \"functional\": 3072, \"in_place\": 256,"
                                 " \"functional_ms\": "));
    ck_assert_ptr_nonnull(strstr(run_program(
        "cache --config figures/01-tiny.json --measure", 0),
        "in place ms"));
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_count)
{
    const char *const usage[] = {
        "cache", "cache --config",
        "cache --config figures/01-tiny.json --batch 0",
        "cache --config figures/01-tiny.json --rows 2"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt cache"));
    ck_assert_ptr_nonnull(strstr(run_program("cache --config nowhere.json",
                                             1), "nowhere.json"));
    ck_assert_ptr_nonnull(strstr(run_program("cache --help", 0),
                                 "--measure"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define WRITE "write the row to its slot"
#define PAIRS "refuse a tensor that disagrees with its pair"
#define TWICE "refuse a slot that the row has named before"
#define MAKE "make a cache"
#define LOAD "copy the row's prefix and clear what was behind it"
#define AROUND "make a cache around a prefix"
#define SLOT "let the slot be the distance from the row's start"
#define START "let the row's start be known or be given"
#define ENTER "enter the row's start and its new length"
#define HOLD "refuse a row that its slots do not hold"
#define COPY "copy the used slots of every layer"
#define CUT "cut the row to its own length"
#define ROOM "make room for the calls"
#define CLEAR "clear what the row loses in layer l"
#define RUN "run the step in the cache's own slots"
#define FOLLOW "let the token stand behind its row's past"
#define FED "run the step, and count its tokens when it has run"
#define OUTGROW "refuse a row that outgrows the context"

static const struct test tests[] = {
    TEST(rows_go_to_the_slots_that_are_named, 2, WRITE),
    TEST(two_rows_may_name_the_same_slot, 2, TWICE),
    TEST(every_other_float_keeps_its_bits, 2, WRITE),
    TEST(writing_to_slots_allocates_nothing, 2, WRITE),
    TEST(tensors_that_disagree_are_refused, 2, "refuse the write whole"),
    TEST(null_arguments_of_a_write_are_refused, 2,
         "check two tensors against each other"),
    TEST(a_slot_that_the_row_does_not_have_is_refused, 2,
         "refuse a slot that the row does not have"),
    TEST(a_slot_that_is_named_twice_is_refused, 2, TWICE),
    TEST(a_new_cache_is_empty_and_zero, 2, MAKE),
    TEST(a_cache_of_nothing_is_refused_by_name, 2, "the sizes of a cache"),
    TEST(a_cache_too_large_for_its_numbers_is_refused, 2,
         "refuse a width that no int holds"),
    TEST(freeing_a_cache_nulls_it_and_may_be_repeated, 2, "free a cache"),
    TEST(making_a_cache_survives_each_failed_allocation, 2, MAKE),
    TEST(a_load_takes_over_lengths_and_starts, 2,
         "take over the row's length and its start"),
    TEST(each_row_of_a_load_has_its_prefix_and_then_zeros, 2, LOAD),
    TEST(a_load_clears_what_was_there_before, 2, LOAD),
    TEST(a_length_that_one_of_the_two_does_not_hold_is_refused, 2,
         "refuse a length that one of the two does not hold"),
    TEST(a_start_that_no_text_has_is_refused, 2,
         "refuse a start that no text has"),
    TEST(a_load_that_does_not_fit_changes_no_layer, 2,
         "refuse the load whole"),
    TEST(a_cache_is_made_around_a_prefix, 2, AROUND),
    TEST(a_cache_around_a_prefix_refuses_what_does_not_fit, 2, AROUND),
    TEST(a_cache_around_a_prefix_survives_each_failed_allocation, 2, AROUND),
    TEST(a_position_lives_at_its_distance_from_the_rows_start, 2, SLOT),
    TEST(each_row_ends_behind_its_own_tokens, 2, ENTER),
    TEST(an_empty_row_starts_where_its_first_token_stands, 2, START),
    TEST(full_and_empty_rows_grow_together, 2, START),
    TEST(each_row_is_held_against_the_capacity, 2, HOLD),
    TEST(more_tokens_than_slots_are_refused_at_once, 2, HOLD),
    TEST(a_position_that_does_not_follow_is_refused, 2,
         "refuse a position that does not follow"),
    TEST(an_append_that_does_not_fit_changes_no_layer, 2,
         "refuse the append whole"),
    TEST(tokens_written_in_place_are_counted_as_appended_ones, 2,
         "count new tokens"),
    TEST(each_row_is_cut_to_its_own_length, 2, CUT),
    TEST(a_cut_keeps_the_first_slots_and_clears_the_others, 2, CLEAR),
    TEST(a_cut_row_goes_on_at_the_position_of_its_cut, 2, CUT),
    TEST(a_length_that_a_row_has_not_reached_is_refused, 2,
         "refuse a length that the row has not reached"),
    TEST(a_reset_cache_is_as_new, 2, "make the row as new"),
    TEST(an_empty_cache_has_no_view, 2, "views and copies go out"),
    TEST(a_view_is_the_storage_itself, 2, "views and copies go out"),
    TEST(a_cache_may_load_its_own_view, 2, LOAD),
    TEST(a_snapshot_is_a_copy_of_the_longest_row_and_its_neighbours, 2, COPY),
    TEST(a_snapshot_and_its_cache_live_apart, 2, COPY),
    TEST(every_snapshot_can_be_loaded_again, 2, "copy a cache for its caller"),
    TEST(a_snapshot_refuses_missing_room_and_survives_failed_allocations, 2,
         "copy a cache for its caller"),
    TEST(storage_stays_where_it_is_through_any_sequence_of_calls, 2,
         "write the recent rows of layer l"),
    TEST(a_request_refuses_what_cannot_be_served, 2,
         "refuse a request that cannot be served"),
    TEST(a_scratch_that_does_not_fit_is_an_error, 2, ROOM),
    TEST(admission_survives_each_failed_allocation, 2, ROOM),
    TEST(one_feed_equals_the_full_forward, 2, RUN),
    TEST(every_split_into_feeds_gives_the_same_rows, 2, FOLLOW),
    TEST(last_only_gives_the_last_row_of_each, 2, RUN),
    TEST(each_row_of_a_mixed_request_runs_as_it_does_alone, 2, FOLLOW),
    TEST(a_padded_mixed_load_goes_on_with_the_golden_logits_and_caches, 2,
         FOLLOW),
    TEST(a_prefix_match_seeds_a_request_that_equals_a_cold_run, 2, RUN),
    TEST(suffixes_of_the_functional_form_can_be_appended, 2, SLOT),
    TEST(what_is_behind_the_lengths_is_not_read, 2, RUN),
    TEST(the_token_loop_allocates_nothing, 2, RUN),
    TEST(a_refused_feed_changes_nothing, 2, FED),
    TEST(a_feed_fills_the_slots_and_the_context_and_not_more, 2, OUTGROW),
    TEST(a_row_that_starts_late_meets_the_context_early, 2, OUTGROW),
    TEST(greedy_tokens_are_those_of_the_functional_loop, 2, RUN),
    TEST(a_cut_request_goes_on_as_if_it_had_never_gone_further, 2,
         CLEAR),
    TEST(nothing_of_a_request_shows_in_the_next, 2, "make the row as new"),
    TEST(traffic_is_what_the_formula_says, 2, "count the bytes of a token"),
    TEST(times_are_measured_or_nothing_is_changed, 2, "measure both"),
    TEST(the_command_prints_the_traffic, 2, "print every row of the table"),
    TEST(the_command_refuses_what_it_cannot_count, 2,
         "the options of the cache command"),
};

SUITE("chapter 9, the cache that a request owns", tests);
