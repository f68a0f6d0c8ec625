/* The acceptance matrix of seed 000 for the prefix cache, and what else must
   hold for anything behind prefix_cache.h: snapshots in suite 10, blocks in
   suite 10b. Include it once, with MAKE naming the constructor. */
#ifndef PREFIX_MATRIX_H
#define PREFIX_MATRIX_H

#include "prefix_runner.h"
#include "support/cached.h"
#include "support/prefix.h"

/* ------------------------------------------------------------------ the key */

START_TEST(partial_tails_create_no_entry)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[PREFIX_TEXT_MAX];
    text_ids(1, PREFIX_TEXT_MAX, ids);
    for (int tokens = 0; tokens <= 3 * BLOCK + 1; tokens++) {
        struct prefix_key key = text(ids, tokens);
        store_text(cache, &key);
        ck_assert_int_eq(prefix_cache_stats(cache).entries, tokens / BLOCK);
    }
    struct prefix_key tail = text(ids + 1, BLOCK - 1);
    store_text(cache, &tail);
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 3);
    expect_found(cache, tail, 0);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(lookup_returns_the_longest_complete_aligned_prefix)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[PREFIX_TEXT_MAX], longer[PREFIX_TEXT_MAX];
    text_ids(1, PREFIX_TEXT_MAX, ids);
    const struct prefix_key whole = text(ids, 3 * BLOCK + 2);
    store_text(cache, &whole);
    for (int tokens = 0; tokens <= PREFIX_TEXT_MAX; tokens++) {
        const struct prefix_key key = text(ids, tokens);
        const int blocks = tokens / BLOCK;
        expect_found(cache, key, (blocks < 3 ? blocks : 3) * BLOCK);
    }
    for (int edit = 0; edit < 3 * BLOCK; edit++) {
        memcpy(longer, ids, sizeof longer);
        longer[edit]++;
        const struct prefix_key key = text(longer, PREFIX_TEXT_MAX);
        expect_found(cache, key, edit / BLOCK * BLOCK);
    }
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(branched_prompts_find_their_exact_common_prefix)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[4][PREFIX_TEXT_MAX];
    for (int k = 0; k < 4; k++) {
        text_ids(1, PREFIX_TEXT_MAX, ids[k]);
        text_ids((unsigned)(2 + k), PREFIX_TEXT_MAX - 2 * BLOCK,
                 ids[k] + 2 * BLOCK);
        if (k < 3) {
            const struct prefix_key key = text(ids[k], 4 * BLOCK);
            store_text(cache, &key);
        }
    }
    for (int k = 0; k < 3; k++) {
        const struct prefix_key key = text(ids[k], 4 * BLOCK + 3);
        expect_found(cache, key, 4 * BLOCK);
    }
    const struct prefix_key other = text(ids[3], 4 * BLOCK);
    expect_found(cache, other, 2 * BLOCK);
    memcpy(ids[3] + 2 * BLOCK, ids[1] + 2 * BLOCK,
           (BLOCK + 2) * sizeof (int32_t));
    expect_found(cache, other, 3 * BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

/* The last block of one text behind the first of another. */
START_TEST(equal_blocks_behind_different_ones_are_not_shared)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[3][2 * BLOCK];
    for (int k = 0; k < 3; k++) {
        text_ids((unsigned)(2 + k), BLOCK, ids[k]);
        text_ids(1, BLOCK, ids[k] + BLOCK);
    }
    const struct prefix_key keys[3] = {
        text(ids[0], 2 * BLOCK), text(ids[1], 2 * BLOCK),
        text(ids[2], 2 * BLOCK)
    };
    const struct prefix_key alone = text(ids[1], BLOCK);
    const struct prefix_key last = text(ids[0] + BLOCK, BLOCK);
    store_text(cache, &keys[0]);
    store_text(cache, &alone);
    expect_found(cache, keys[0], 2 * BLOCK);
    expect_found(cache, keys[1], BLOCK);
    expect_found(cache, keys[2], 0);
    expect_found(cache, last, 0);
    store_text(cache, &keys[1]);
    expect_found(cache, keys[1], 2 * BLOCK);
    expect_found(cache, keys[0], 2 * BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

static void keep_origins_apart(prefix_hash *hash)
{
    struct prefix_cache *cache = prefix_made(MAKE, 40, hash);
    int32_t ids[BLOCK];
    text_ids(1, BLOCK, ids);
    const struct prefix_key keys[] = {
        {{"ab", "c"}, 0, ids, BLOCK}, {{"a", "bc"}, 0, ids, BLOCK},
        {{"ab", ""}, 0, ids, BLOCK}, {{"", "c"}, 0, ids, BLOCK},
        {{"ab", "c"}, 1, ids, BLOCK}, {{"ab", "c"}, 4, ids, BLOCK},
        {{"c", "ab"}, 0, ids, BLOCK}, {{"ab", "d"}, 0, ids, BLOCK}
    };
    for (int k = 0; k < 8; k++) {
        for (int j = k; j < 8; j++)
            expect_found(cache, keys[j], 0);
        store_text(cache, &keys[k]);
        for (int j = 0; j <= k; j++)
            expect_found(cache, keys[j], BLOCK);
    }
    char model[] = "ab", salt[] = "c";
    const struct prefix_key again = {{model, salt}, 0, ids, BLOCK};
    expect_found(cache, again, BLOCK);
    prefix_cache_free(&cache);
}

START_TEST(namespace_and_absolute_start_are_part_of_the_key)
{
    keep_origins_apart(NULL);
    keep_origins_apart(equal_hashes);
}
END_TEST

/* All of the key counts, whatever the hash says. */
START_TEST(equal_hashes_do_not_make_equal_prefixes)
{
    struct prefix_cache *cache = prefix_made(MAKE, 40, equal_hashes);
    int32_t ids[6][3 * BLOCK];
    struct prefix_key keys[6];
    for (int k = 0; k < 6; k++) {
        text_ids(1, 3 * BLOCK, ids[k]);
        if (k > 0)
            ids[k][2 * k] += 1;
        keys[k] = text(ids[k], 3 * BLOCK);
    }
    keys[4] = keys[0];
    keys[4].start = 5;
    keys[5] = keys[0];
    keys[5].namespace.salt = "another";
    const int common[6] = {0, 0, BLOCK, BLOCK, 0, 0};
    for (int k = 0; k < 6; k++) {
        expect_found(cache, keys[k], common[k]);
        store_text(cache, &keys[k]);
        for (int j = 0; j <= k; j++)
            expect_found(cache, keys[j], 3 * BLOCK);
    }
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(ids_that_agree_in_a_byte_are_different_ids)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, equal_hashes);
    int32_t ids[BLOCK], other[BLOCK];
    text_ids(1, BLOCK, ids);
    const struct prefix_key key = text(ids, BLOCK), near = text(other, BLOCK);
    store_text(cache, &key);
    const int32_t steps[] = {256, 65536, 1 << 24};
    for (int k = 0; k < 3; k++)
        for (int t = 0; t < BLOCK; t++) {
            memcpy(other, ids, sizeof other);
            other[t] += steps[k];
            expect_found(cache, near, 0);
        }
    expect_found(cache, key, BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

/* ---------------------------------------------------------------- ownership */

/* Matches are freed only if the cache does not hand out the same twice: that
   is the business of the next test. */
START_TEST(source_tensors_cannot_change_what_is_stored)
{
    struct error error = {0};
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    struct prefix_match match = {0}, again = {0};
    int32_t ids[BLOCK], lent[BLOCK];
    char model[] = "weights", salt[] = "tenant";
    text_ids(1, BLOCK, ids);
    memcpy(lent, ids, sizeof lent);
    const struct prefix_key key = text(ids, BLOCK);
    const struct prefix_key source = {{model, salt}, 0, lent, BLOCK};
    struct past_key_values past = text_past(&key, BLOCK + 2);
    expect_ok(prefix_cache_store(cache, &source, &past, &error), &error);
    for (int l = 0; l < past.n_layers; l++)
        for (size_t k = 0; k < tensor_size(&past.layers[l].key); k++)
            past.layers[l].key.data[k] = past.layers[l].value.data[k] = -1;
    memset(lent, 0x55, sizeof lent);
    model[0] = salt[0] = 'x';
    expect_ok(prefix_cache_lookup(cache, &key, &match, &error), &error);
    ck_assert_int_eq(match.cache_length, BLOCK);
    expect_rows(&key, BLOCK, &match.past);
    past_key_values_free(&past);
    expect_ok(prefix_cache_lookup(cache, &key, &again, &error), &error);
    ck_assert_int_eq(again.cache_length, BLOCK);
    expect_rows(&key, BLOCK, &again.past);
    if (match.past.layers != again.past.layers) {
        prefix_match_free(&match);
        prefix_match_free(&again);
        prefix_cache_free(&cache);
    }
}
END_TEST

START_TEST(returned_matches_cannot_change_what_is_stored)
{
    struct error error = {0};
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[BLOCK];
    text_ids(1, BLOCK, ids);
    const struct prefix_key key = text(ids, BLOCK);
    struct prefix_match match = {0}, other = {0};
    store_text(cache, &key);
    expect_ok(prefix_cache_lookup(cache, &key, &match, &error), &error);
    expect_ok(prefix_cache_lookup(cache, &key, &other, &error), &error);
    for (int l = 0; l < 2; l++)
        for (int k = 0; k < 3 * BLOCK * 5; k++)
            match.past.layers[l].key.data[k] =
                match.past.layers[l].value.data[k] = -1;
    expect_rows(&key, BLOCK, &other.past);
    expect_found(cache, key, BLOCK);
    prefix_match_free(&match);
    expect_found(cache, key, BLOCK);
    prefix_cache_free(&cache);
    expect_rows(&key, BLOCK, &other.past);
    prefix_match_free(&other);
}
END_TEST

/* ---------------------------------------------------------------------- LRU */

static void one_block(unsigned stream, int32_t *ids, struct prefix_key *key)
{
    text_ids(stream, BLOCK, ids);
    *key = text(ids, BLOCK);
}

START_TEST(the_least_recently_used_entry_is_removed)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    int32_t ids[3][BLOCK];
    struct prefix_key a, b, c;
    one_block(1, ids[0], &a);
    one_block(2, ids[1], &b);
    one_block(3, ids[2], &c);
    store_text(cache, &a);
    store_text(cache, &b);
    expect_found(cache, a, BLOCK);
    store_text(cache, &c);
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 2);
    expect_found(cache, b, 0);
    expect_found(cache, a, BLOCK);
    expect_found(cache, c, BLOCK);
    ck_assert_uint_eq(prefix_cache_stats(cache).evictions, 1);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(storing_again_is_a_use)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    int32_t ids[3][BLOCK];
    struct prefix_key a, b, c;
    one_block(1, ids[0], &a);
    one_block(2, ids[1], &b);
    one_block(3, ids[2], &c);
    store_text(cache, &a);
    store_text(cache, &b);
    store_text(cache, &a);
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 2);
    ck_assert_uint_eq(prefix_cache_stats(cache).insertions, 2);
    store_text(cache, &c);
    expect_found(cache, b, 0);
    expect_found(cache, a, BLOCK);
    expect_found(cache, c, BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(without_a_use_the_first_in_is_the_first_out)
{
    enum { TEXTS = 7, ROOM = 3 };
    struct prefix_cache *cache = prefix_made(MAKE, ROOM, NULL);
    int32_t ids[TEXTS][BLOCK];
    struct prefix_key keys[TEXTS];
    for (int k = 0; k < TEXTS; k++) {
        one_block((unsigned)k, ids[k], &keys[k]);
        store_text(cache, &keys[k]);
    }
    for (int k = 0; k < TEXTS; k++)
        expect_found(cache, keys[k], k < TEXTS - ROOM ? 0 : BLOCK);
    ck_assert_uint_eq(prefix_cache_stats(cache).insertions, TEXTS);
    ck_assert_uint_eq(prefix_cache_stats(cache).evictions, TEXTS - ROOM);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(lookups_are_counted)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[3 * BLOCK];
    text_ids(1, 3 * BLOCK, ids);
    const struct prefix_key two = text(ids, 2 * BLOCK);
    const struct prefix_key three = text(ids, 3 * BLOCK);
    const struct prefix_key none = text(NULL, 0);
    store_text(cache, &two);
    expect_found(cache, three, 2 * BLOCK);
    expect_found(cache, three, 2 * BLOCK);
    expect_found(cache, none, 0);
    const struct prefix_cache_stats stats = prefix_cache_stats(cache);
    ck_assert_uint_eq(stats.lookups, 3);
    ck_assert_uint_eq(stats.hits, 2);
    ck_assert_uint_eq(stats.tokens_reused, 4 * BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

/* ----------------------------------------------------------------- refusals */

static void expect_new_refused(const struct prefix_cache_options *options,
                               enum status want, const char *name)
{
    struct prefix_cache *cache = NULL;
    struct error error = {0};
    const long calls = allocator_calls();
    const enum status status = MAKE(&cache, options, &error);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(status, want);
    ck_assert_int_eq(made, 0);
    ck_assert_ptr_null(cache);
    expect_named(&error, name);
}

START_TEST(a_cache_refuses_sizes_below_one_and_those_that_do_not_fit)
{
    const struct prefix_cache_options good = {prefix_shape, BLOCK, 3, NULL};
    static const char *const names[5] = {
        "shape.n_layers", "shape.n_kv_heads", "shape.head_dim", "block_size",
        "capacity"
    };
    for (int k = 0; k < 5; k++)
        for (int size = 0; size >= -1; size--) {
            struct prefix_cache_options bad = good;
            int *const sizes[5] = {
                &bad.shape.n_layers, &bad.shape.n_kv_heads,
                &bad.shape.head_dim, &bad.block_size, &bad.capacity
            };
            *sizes[k] = size;
            expect_new_refused(&bad, STATUS_INVALID, names[k]);
        }
    struct prefix_cache_options bad = good;
    bad.shape.n_kv_heads = bad.shape.head_dim = 1 << 16;
    expect_new_refused(&bad, STATUS_INVALID, "shape");
    bad.shape.n_layers = 1 << 30;
    expect_new_refused(&bad, STATUS_NO_MEMORY, "do not fit");
}
END_TEST

/* Both calls refuse the key, and nothing moves. */
static void expect_key_refused(struct prefix_cache *cache,
                               const struct prefix_key *key,
                               const struct past_key_values *past,
                               const char *message)
{
    struct error error = {0};
    struct prefix_match match = {0};
    const long calls = allocator_calls();
    const enum status stored = prefix_cache_store(cache, key, past, &error);
    const enum status looked = prefix_cache_lookup(cache, key, &match, NULL);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(stored, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(looked, STATUS_INVALID);
    ck_assert_int_eq(made, 0);
    ck_assert_ptr_null(match.past.layers);
    ck_assert_int_eq(match.cache_start_position, 0);
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 1);
    ck_assert_uint_eq(prefix_cache_stats(cache).lookups, 0);
}

START_TEST(a_malformed_key_is_refused)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[BLOCK];
    struct prefix_key good;
    one_block(1, ids, &good);
    struct past_key_values past = text_past(&good, BLOCK);
    store_text(cache, &good);
    struct prefix_key key = good;
    key.namespace.model = NULL;
    expect_key_refused(cache, &key, &past, "namespace.model: is NULL");
    key = good;
    key.namespace.salt = NULL;
    expect_key_refused(cache, &key, &past, "namespace.salt: is NULL");
    key = good;
    key.start = -1;
    expect_key_refused(cache, &key, &past,
                       "start: expected at least 0, got -1");
    key = good;
    key.tokens = -1;
    expect_key_refused(cache, &key, &past,
                       "tokens: expected 0 to 2147483647, got -1");
    key = good;
    key.start = INT32_MAX - BLOCK + 1;
    expect_key_refused(cache, &key, &past, "tokens: expected 0 to 3, got 4");
    key = good;
    key.ids = NULL;
    expect_key_refused(cache, &key, &past, "ids: is NULL");
    expect_found(cache, good, BLOCK);
    past_key_values_free(&past);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(a_past_of_another_shape_is_refused)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    struct error error = {0};
    int32_t ids[2 * BLOCK];
    text_ids(1, 2 * BLOCK, ids);
    const struct prefix_key key = text(ids, BLOCK), two = text(ids, 2 * BLOCK);
    struct past_key_values past = text_past(&key, BLOCK);
    const long calls = allocator_calls();
    enum status status = prefix_cache_store(cache, &two, &past, &error);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_int_eq(made, 0);
    expect_facts(error.message, "past_key_values: length: expected at"
                 " least 8 (tokens), got 4");
    ck_assert_int_eq(prefix_cache_store(cache, &key, NULL, &error),
                     STATUS_INVALID);
    past.n_layers = 1;
    ck_assert_int_eq(prefix_cache_store(cache, &key, &past, &error),
                     STATUS_INVALID);
    past.n_layers = 2;
    int *const sizes[] = {
        &past.layers[0].key.shape[0], &past.layers[1].value.shape[1],
        &past.layers[1].key.shape[2], &past.layers[0].value.shape[3]
    };
    for (int k = 0; k < 4; k++) {
        ++*sizes[k];
        status = prefix_cache_store(cache, &key, &past, &error);
        --*sizes[k];
        ck_assert_int_eq(status, STATUS_INVALID);
    }
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 0);
    past_key_values_free(&past);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(a_match_that_is_in_use_is_refused)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    struct error error = {0};
    struct prefix_match match = {0};
    int32_t ids[BLOCK];
    struct prefix_key key;
    one_block(1, ids, &key);
    store_text(cache, &key);
    expect_ok(prefix_cache_lookup(cache, &key, &match, &error), &error);
    ck_assert_int_eq(prefix_cache_lookup(cache, &key, &match, &error),
                     STATUS_INVALID);
    expect_named(&error, "match");
    expect_rows(&key, BLOCK, &match.past);
    ck_assert_uint_eq(prefix_cache_stats(cache).lookups, 1);
    prefix_match_free(&match);
    prefix_match_free(&match);
    prefix_match_free(NULL);
    prefix_cache_free(&cache);
    prefix_cache_free(&cache);
    prefix_cache_free(NULL);
}
END_TEST

/* ------------------------------------------------------- failed allocations */

START_TEST(a_new_cache_survives_each_failed_allocation)
{
    const struct prefix_cache_options options = {prefix_shape, BLOCK, 5, NULL};
    for (long n = 1; ; n++) {
        struct prefix_cache *cache = NULL;
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = MAKE(&cache, &options, NULL);
        const bool failed = allocator_stop();
        if (!failed)
            prefix_cache_free(&cache);
        const long left = allocator_live() - live;
        ck_assert_int_eq(left, 0);
        if (!failed)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(cache);
    }
}
END_TEST

/* A cache of 4 that is full: of a, of the first half of ab, of c. */
struct full {
    struct prefix_cache *cache;
    int32_t ids[4][3 * BLOCK];
    struct prefix_key a, ab, c, d;
};

static void fill(struct full *full)
{
    full->cache = prefix_made(MAKE, 4, NULL);
    for (int k = 0; k < 4; k++)
        text_ids((unsigned)k, 3 * BLOCK, full->ids[k]);
    full->a = text(full->ids[0], 2 * BLOCK);
    full->ab = text(full->ids[0], 3 * BLOCK);
    full->c = text(full->ids[2], BLOCK);
    full->d = text(full->ids[3], 2 * BLOCK);
    store_text(full->cache, &full->c);
    store_text(full->cache, &full->ab);
}

static void expect_full(struct full *full)
{
    expect_found(full->cache, full->c, BLOCK);
    expect_found(full->cache, full->a, 2 * BLOCK);
    expect_found(full->cache, full->ab, 3 * BLOCK);
    expect_found(full->cache, full->d, 0);
}

START_TEST(a_store_survives_each_failed_allocation)
{
    struct full full;
    for (long n = 1; ; n++) {
        fill(&full);
        const struct prefix_cache_stats before =
            prefix_cache_stats(full.cache);
        struct past_key_values past = text_past(&full.d, 2 * BLOCK);
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = prefix_cache_store(full.cache, &full.d,
                                                      &past, NULL);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        past_key_values_free(&past);
        if (!failed) {
            ck_assert_int_eq(status, STATUS_OK);
            expect_found(full.cache, full.d, 2 * BLOCK);
            prefix_cache_free(&full.cache);
            ck_assert_int_gt(n, 1);
            break;
        }
        const struct prefix_cache_stats after = prefix_cache_stats(full.cache);
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        ck_assert_int_eq(memcmp(&before, &after, sizeof before), 0);
        expect_full(&full);
        prefix_cache_free(&full.cache);
    }
}
END_TEST

/* Nor does it count as a use: c stays the oldest, and goes next. */
START_TEST(a_lookup_survives_each_failed_allocation)
{
    struct full full;
    for (long n = 1; ; n++) {
        fill(&full);
        struct prefix_match match = {0};
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = prefix_cache_lookup(full.cache, &full.c,
                                                       &match, NULL);
        const bool failed = allocator_stop();
        prefix_match_free(&match);
        const long left = allocator_live() - live;
        ck_assert_int_eq(left, 0);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        ck_assert_uint_eq(prefix_cache_stats(full.cache).lookups, !failed);
        const struct prefix_key one = text(full.ids[3], BLOCK);
        store_text(full.cache, &one);
        expect_found(full.cache, full.c, failed ? 0 : BLOCK);
        prefix_cache_free(&full.cache);
        if (!failed)
            break;
    }
}
END_TEST

/* ---------------------------------------------------------------- the runner */

/* A model with a prefix cache before it, and the text of row 0. */
struct served {
    struct cached cached;
    struct causal_lm lm;
    struct prefix_runner runner;
};

static void serve(struct served *served, struct cached cached, int block)
{
    struct error error = {0};
    served->cached = cached;
    served->lm = tiny_gpt_causal_lm(cached.model);
    served->runner = (struct prefix_runner){&served->lm, NULL, ours};
    const struct prefix_cache_options options = {
        served->lm.cache, block, 64, NULL
    };
    expect_ok(MAKE(&served->runner.cache, &options, &error), &error);
}

static void serve_no_more(struct served *served)
{
    prefix_cache_free(&served->runner.cache);
    cached_close(&served->cached);
}

/* The same prompt in one call without any cache. */
static struct cache_aware_output recomputed(const struct served *served,
                                            int start, const int32_t *ids,
                                            int tokens)
{
    int32_t positions[TEXT_MAX];
    struct cache_aware_output output = {0};
    struct error error = {0};
    for (int t = 0; t < tokens; t++)
        positions[t] = start + t;
    const struct cache_aware_input input = {
        .ids = ids, .positions = positions, .batch = 1, .tokens = tokens,
        .use_cache = true
    };
    expect_ok(cache_aware_forward(&served->lm, &input, &output, &error),
              &error);
    return output;
}

/* Runs a prompt, expects that many tokens reused and otherwise the numbers
   of a full recomputation, to the last bit. */
static void expect_run(const struct served *served, int start,
                       const int32_t *ids, int tokens, int reused)
{
    struct error error = {0};
    struct prefix_run run = {0};
    struct cache_aware_output want = recomputed(served, start, ids, tokens);
    const int vocab_size = served->lm.vocab_size;
    expect_ok(prefix_runner_run(&served->runner, start, ids, tokens, &run,
                                &error), &error);
    ck_assert_int_eq(run.tokens_reused, reused);
    ck_assert_int_eq(run.output.logits.shape[1], tokens - reused);
    expect_same_bits("logits of the suffix", run.output.logits.data,
                     want.logits.data + reused * vocab_size,
                     (size_t)((tokens - reused) * vocab_size)
                     * sizeof (float));
    expect_equal_caches("final cache", &run.output.past_key_values,
                        &want.past_key_values);
    ck_assert_int_eq(run.output.cache_lengths[0], tokens);
    ck_assert_int_eq(run.output.cache_start_positions[0], start);
    cache_aware_output_free(&want);
    prefix_run_free(&run);
}

START_TEST(cached_suffix_and_final_kv_match_full_recomputation)
{
    for (int block = 1; block <= 4; block++)
        for (int common = 0; common < 8; common++) {
            struct served served;
            serve(&served, cached_noise(), block);
            int32_t ids[2][8];
            memcpy(ids[0], served.cached.ids, sizeof ids[0]);
            memcpy(ids[1], served.cached.ids + 9, sizeof ids[1]);
            memcpy(ids[1], ids[0], (size_t)common * sizeof (int32_t));
            ids[1][common] = (ids[0][common] + 1) % 13;
            expect_run(&served, 1, ids[0], 8, 0);
            expect_run(&served, 1, ids[1], 8, common / block * block);
            expect_run(&served, 0, ids[0], 8, 0);
            serve_no_more(&served);
        }
}
END_TEST

/* The same against another program's numbers. */
START_TEST(cached_suffix_logits_match_the_golden)
{
    for (int block = 1; block <= 6; block++) {
        struct served served;
        struct error error = {0};
        serve(&served, cached_golden(), block);
        const float *want = golden_get(served.cached.golden,
                                       "out.logits")->f32;
        for (int again = 0; again < 2; again++) {
            struct prefix_run run = {0};
            expect_ok(prefix_runner_run(&served.runner, 0, served.cached.ids,
                                        7, &run, &error), &error);
            const int reused = again ? 6 / block * block : 0;
            ck_assert_int_eq(run.tokens_reused, reused);
            expect_close("logits", run.output.logits.data,
                         want + reused * 23, (size_t)((7 - reused) * 23), 3,
                         run.output.logits.shape, TOLERANCE);
            prefix_run_free(&run);
        }
        serve_no_more(&served);
    }
}
END_TEST

START_TEST(a_whole_prompt_hit_still_recomputes_one_block)
{
    for (int block = 1; block <= 4; block++) {
        struct served served;
        serve(&served, cached_noise(), block);
        const int32_t *ids = served.cached.ids;
        expect_run(&served, 0, ids, 2 * block, 0);
        expect_run(&served, 0, ids, 2 * block, block);
        expect_run(&served, 0, ids, 2 * block + 1, 2 * block);
        expect_run(&served, 0, ids, 1, 0);
        serve_no_more(&served);
    }
}
END_TEST

/* What was run behind a match is stored with what is before it, and under
   no other name. */
START_TEST(a_prompt_is_published_whole)
{
    for (int block = 1; block <= 3; block++) {
        struct served served;
        serve(&served, cached_noise(), block);
        int32_t ids[8];
        const int reused = 4 / block * block;
        memcpy(ids, served.cached.ids, sizeof ids);
        ids[reused] = (ids[0] + 1) % 13;
        expect_run(&served, 0, ids, 4, 0);
        ids[7] = (ids[7] + 1) % 13;
        expect_run(&served, 0, ids, 8, reused);
        ids[7] = (ids[7] + 1) % 13;
        expect_run(&served, 0, ids, 8, 7 / block * block);
        expect_run(&served, 0, ids + reused, 8 - reused, 0);
        serve_no_more(&served);
    }
}
END_TEST

START_TEST(the_runner_keeps_namespaces_and_starts_apart)
{
    struct served served;
    serve(&served, cached_noise(), 2);
    const int32_t *ids = served.cached.ids;
    expect_run(&served, 2, ids, 7, 0);
    expect_run(&served, 3, ids, 6, 0);
    served.runner.namespace.salt = "another";
    expect_run(&served, 2, ids, 7, 0);
    served.runner.namespace.salt = "tenant";
    served.runner.namespace.model = "other weights";
    expect_run(&served, 2, ids, 7, 0);
    expect_run(&served, 2, ids, 7, 6);
    serve_no_more(&served);
}
END_TEST

START_TEST(the_runner_refuses_what_the_model_would)
{
    struct served served, other;
    struct error error = {0};
    struct prefix_run run = {0};
    serve(&served, cached_noise(), 2);
    serve(&other, cached_golden(), 2);
    int32_t ids[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    expect_run(&served, 0, ids, 5, 0);
    const struct prefix_cache_stats before =
        prefix_cache_stats(served.runner.cache);
    const struct { int start, tokens; const int32_t *ids; const char *name; }
    bad[] = {
        {0, 0, ids, "tokens"}, {0, -1, ids, "tokens"}, {0, 3, NULL, "tokens"},
        {-1, 3, ids, "start"}, {0, 10, ids, "positions"}, {9, 1, ids, "positions"}
    };
    for (int k = 0; k < 6; k++) {
        ck_assert_int_eq(prefix_runner_run(&served.runner, bad[k].start,
                                           bad[k].ids, bad[k].tokens, &run,
                                           &error), STATUS_INVALID);
        expect_named(&error, bad[k].name);
        ck_assert_ptr_null(run.output.logits.data);
    }
    ids[5] = 13;
    ck_assert_int_eq(prefix_runner_run(&served.runner, 0, ids, 6, &run,
                                       &error), STATUS_INVALID);
    expect_named(&error, "ids");
    const struct prefix_cache_stats after =
        prefix_cache_stats(served.runner.cache);
    ck_assert_int_eq(before.entries, after.entries);
    ck_assert_uint_eq(before.insertions, after.insertions);
    const struct prefix_runner mixed = {&served.lm, other.runner.cache, ours};
    ck_assert_int_eq(prefix_runner_run(&mixed, 0, ids, 5, &run, &error),
                     STATUS_INVALID);
    expect_named(&error, "prefix cache");
    serve_no_more(&other);
    serve_no_more(&served);
}
END_TEST

START_TEST(a_run_that_is_in_use_is_refused)
{
    struct served served;
    struct error error = {0};
    struct prefix_run run = {0};
    serve(&served, cached_noise(), 2);
    const int32_t *ids = served.cached.ids;
    expect_ok(prefix_runner_run(&served.runner, 0, ids, 5, &run, &error),
              &error);
    const float *logits = run.output.logits.data;
    ck_assert_int_eq(prefix_runner_run(&served.runner, 0, ids, 5, &run,
                                       &error), STATUS_INVALID);
    expect_named(&error, "run");
    ck_assert_ptr_eq(run.output.logits.data, logits);
    prefix_run_free(&run);
    prefix_run_free(&run);
    prefix_run_free(NULL);
    serve_no_more(&served);
}
END_TEST

START_TEST(a_run_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct served served;
        struct prefix_run run = {0};
        serve(&served, cached_noise(), 2);
        int32_t ids[8];
        memcpy(ids, served.cached.ids, sizeof ids);
        expect_run(&served, 0, ids, 5, 0);
        ids[5] = (ids[5] + 1) % 13;
        const struct prefix_cache_stats before =
            prefix_cache_stats(served.runner.cache);
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = prefix_runner_run(&served.runner, 0, ids,
                                                     8, &run, NULL);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        if (failed) {
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
            ck_assert_int_eq(left, 0);
            ck_assert_ptr_null(run.output.logits.data);
        } else {
            expect_ok(status, &(struct error){0});
            ck_assert_int_eq(run.tokens_reused, 4);
        }
        prefix_run_free(&run);
        if (failed) {
            const struct prefix_cache_stats after =
                prefix_cache_stats(served.runner.cache);
            ck_assert_int_eq(before.entries, after.entries);
            ck_assert_uint_eq(before.insertions, after.insertions);
            ck_assert_uint_eq(before.evictions, after.evictions);
            expect_run(&served, 0, served.cached.ids, 5, 4);
            expect_run(&served, 0, ids, 8, 4);
        }
        serve_no_more(&served);
        if (!failed)
            break;
    }
}
END_TEST

#endif
