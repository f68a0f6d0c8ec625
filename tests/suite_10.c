/* Chapter 10: the prefix cache. The index by itself, then snapshots against
   the acceptance matrix, a plain list and failing allocations, then the
   runner, the request's storage and the program. */
#include <stdio.h>
#include <sys/wait.h>
#include "lru_index.h"

#define MAKE prefix_snapshots_new
#include "support/prefix_matrix.h"

/* ----------------------------------------------------------------- the index */

enum { NODES = 12 };

static void expect_oldest(struct lru_index *index, const struct lru_node *node)
{
    ck_assert_ptr_eq(lru_index_oldest(index), node);
}

START_TEST(nodes_leave_in_the_order_of_their_use)
{
    struct lru_index index;
    struct lru_node nodes[NODES];
    int32_t order[NODES];
    uint64_t state = noise_start(1);
    ck_assert_int_eq(lru_index_new(&index, 5, NULL), STATUS_OK);
    expect_oldest(&index, NULL);
    for (int k = 0; k < NODES; k++) {
        lru_index_add(&index, &nodes[k], noise_next(&state));
        expect_oldest(&index, &nodes[0]);
    }
    noise_order(&state, NODES, order);
    for (int k = 0; k < NODES; k++)
        lru_index_touch(&index, &nodes[order[k]]);
    for (int k = 0; k < NODES; k++) {
        expect_oldest(&index, &nodes[order[k]]);
        lru_index_remove(&index, &nodes[order[k]]);
    }
    expect_oldest(&index, NULL);
    lru_index_free(&index);
    lru_index_free(&index);
}
END_TEST

START_TEST(a_held_node_is_found_and_is_never_the_oldest)
{
    struct lru_index index;
    struct lru_node nodes[3];
    ck_assert_int_eq(lru_index_new(&index, 4, NULL), STATUS_OK);
    for (int k = 0; k < 3; k++)
        lru_index_add(&index, &nodes[k], 100 + (uint64_t)k);
    lru_index_hold(&nodes[0]);
    lru_index_hold(&nodes[0]);
    expect_oldest(&index, &nodes[1]);
    ck_assert_ptr_eq(lru_index_first(&index, 100), &nodes[0]);
    lru_index_hold(&nodes[1]);
    lru_index_hold(&nodes[2]);
    expect_oldest(&index, NULL);
    lru_index_touch(&index, &nodes[2]);
    lru_index_touch(&index, &nodes[0]);
    expect_oldest(&index, &nodes[2]);
    lru_index_remove(&index, &nodes[2]);
    expect_oldest(&index, &nodes[0]);
    lru_index_remove(&index, &nodes[1]);
    ck_assert_ptr_null(lru_index_first(&index, 101));
    lru_index_free(&index);
}
END_TEST

/* Capacity 1, so one bucket for all: each hash finds its own nodes, all of
   them, and no others, while nodes come and go. */
START_TEST(every_node_of_a_hash_is_a_candidate)
{
    struct lru_index index;
    struct lru_node nodes[NODES];
    bool there[NODES] = {false};
    uint64_t state = noise_start(2);
    ck_assert_int_eq(lru_index_new(&index, 1, NULL), STATUS_OK);
    for (int step = 0; step < 300; step++) {
        const int k = noise_below(&state, NODES);
        if (there[k])
            lru_index_remove(&index, &nodes[k]);
        else
            lru_index_add(&index, &nodes[k], 50 + (uint64_t)(k % 3));
        there[k] = !there[k];
        for (int hash = 0; hash < 4; hash++) {
            int want = 0, got = 0;
            for (int j = 0; j < NODES; j++)
                want += there[j] && j % 3 == hash;
            for (struct lru_node *node =
                     lru_index_first(&index, 50 + (uint64_t)hash);
                 node != NULL; node = lru_index_next(node), got++)
                ck_assert(there[node - nodes] && (node - nodes) % 3 == hash);
            ck_assert_int_eq(got, want);
        }
    }
    lru_index_free(&index);
}
END_TEST

START_TEST(an_index_survives_a_failed_allocation)
{
    struct lru_index index = {0};
    struct error error = {0};
    allocator_fail_at(1);
    const enum status status = lru_index_new(&index, 4, &error);
    ck_assert(allocator_stop());
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_ptr_null(index.buckets);
    expect_named(&error, "buckets");
}
END_TEST

/* ---------------------------------------------------------- snapshots alone */

START_TEST(entries_are_counted_and_weighed)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[3 * BLOCK + 2], other[2 * BLOCK];
    text_ids(1, 3 * BLOCK + 2, ids);
    memcpy(other, ids, sizeof other);
    other[BLOCK]++;
    const struct prefix_key key = text(ids, 3 * BLOCK + 2);
    const struct prefix_key branch = text(other, 2 * BLOCK);
    store_text(cache, &key);
    struct prefix_cache_stats stats = prefix_cache_stats(cache);
    ck_assert_int_eq(stats.entries, 3);
    ck_assert_uint_eq(stats.kv_bytes, (1 + 2 + 3) * BLOCK * TOKEN_BYTES);
    store_text(cache, &branch);
    stats = prefix_cache_stats(cache);
    ck_assert_int_eq(stats.entries, 4);
    ck_assert_uint_eq(stats.kv_bytes, (1 + 2 + 3 + 2) * BLOCK * TOKEN_BYTES);
    ck_assert_uint_eq(stats.insertions, 4);
    prefix_cache_free(&cache);
}
END_TEST

/* A text longer than the cache leaves its longest prefixes. */
START_TEST(a_long_text_leaves_its_longest_prefixes)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    int32_t ids[5 * BLOCK];
    text_ids(1, 5 * BLOCK, ids);
    for (int blocks = 1; blocks <= 5; blocks++) {
        const struct prefix_key key = text(ids, blocks * BLOCK);
        store_text(cache, &key);
        ck_assert_int_eq(prefix_cache_stats(cache).entries,
                         blocks < 2 ? blocks : 2);
    }
    for (int blocks = 1; blocks <= 5; blocks++) {
        const struct prefix_key key = text(ids, blocks * BLOCK);
        expect_found(cache, key, blocks < 4 ? 0 : blocks * BLOCK);
    }
    prefix_cache_free(&cache);
}
END_TEST

/* The shortest entry goes first; the longer one is found without it. */
START_TEST(a_longer_prefix_is_found_when_a_shorter_one_has_gone)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[3 * BLOCK], other[BLOCK];
    text_ids(1, 3 * BLOCK, ids);
    text_ids(2, BLOCK, other);
    const struct prefix_key one = text(ids, BLOCK);
    const struct prefix_key three = text(ids, 3 * BLOCK);
    const struct prefix_key apart = text(other, BLOCK);
    store_text(cache, &three);
    store_text(cache, &apart);
    expect_found(cache, one, 0);
    expect_found(cache, three, 3 * BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

/* A text is a number of blocks of 0 or 1: bit k is the id of block k. */
struct simple {
    int bits, blocks, start;
    const char *salt;
};

static struct prefix_key simple_key(const struct simple *simple, int32_t *ids)
{
    for (int t = 0; t < simple->blocks * BLOCK; t++)
        ids[t] = simple->bits >> t / BLOCK & 1;
    return (struct prefix_key){
        {"weights", simple->salt}, simple->start, ids, simple->blocks * BLOCK
    };
}

static struct simple any_text(uint64_t *state)
{
    static const char *const salts[2] = {"", "s"};
    const int blocks = noise_below(state, 5);
    return (struct simple){
        noise_below(state, 1 << blocks), blocks,
        noise_below(state, 5) == 0 ? 4 : 0,
        salts[noise_below(state, 4) == 0]
    };
}

/* The oldest first. */
struct list {
    struct simple items[64];
    int count;
};

/* The item becomes the newest; false when it is not there. */
static bool list_use(struct list *list, const struct simple *text, int blocks)
{
    for (int k = 0; k < list->count; k++) {
        struct simple item = list->items[k];
        if (item.blocks != blocks || item.start != text->start
            || strcmp(item.salt, text->salt) != 0
            || item.bits != (text->bits & ((1 << blocks) - 1)))
            continue;
        memmove(&list->items[k], &list->items[k + 1],
                (size_t)(list->count - k - 1) * sizeof item);
        list->items[list->count - 1] = item;
        return true;
    }
    return false;
}

static void list_store(struct list *list, const struct simple *text,
                       int capacity)
{
    for (int blocks = 1; blocks <= text->blocks; blocks++) {
        if (list_use(list, text, blocks))
            continue;
        struct simple item = *text;
        item.blocks = blocks;
        item.bits &= (1 << blocks) - 1;
        if (list->count == capacity)
            memmove(list->items, list->items + 1,
                    (size_t)--list->count * sizeof item);
        list->items[list->count++] = item;
    }
}

static void trace(int capacity, prefix_hash *hash, unsigned stream)
{
    struct prefix_cache *cache = prefix_made(MAKE, capacity, hash);
    struct list list = {.count = 0};
    uint64_t state = noise_start(stream);
    int32_t ids[5 * BLOCK];
    for (int step = 0; step < 400; step++) {
        const struct simple text = any_text(&state);
        const struct prefix_key key = simple_key(&text, ids);
        if (noise_below(&state, 2) == 0) {
            store_text(cache, &key);
            list_store(&list, &text, capacity);
        } else {
            int blocks = text.blocks;
            while (blocks > 0 && !list_use(&list, &text, blocks))
                blocks--;
            expect_found(cache, key, blocks * BLOCK);
        }
        int tokens = 0;
        for (int k = 0; k < list.count; k++)
            tokens += list.items[k].blocks * BLOCK;
        const struct prefix_cache_stats stats = prefix_cache_stats(cache);
        ck_assert_int_eq(stats.entries, list.count);
        ck_assert_uint_eq(stats.kv_bytes, (size_t)(tokens * TOKEN_BYTES));
        ck_assert_uint_eq(stats.insertions - stats.evictions,
                          (uint64_t)list.count);
    }
    prefix_cache_free(&cache);
}

START_TEST(random_traces_equal_a_plain_list)
{
    for (int capacity = 1; capacity <= 13; capacity += 3)
        trace(capacity, NULL, (unsigned)capacity);
}
END_TEST

START_TEST(random_traces_with_equal_hashes_equal_a_plain_list)
{
    for (int capacity = 1; capacity <= 13; capacity += 4)
        trace(capacity, equal_hashes, (unsigned)capacity);
}
END_TEST

/* ---------------------------------------------------------------- the limit */

START_TEST(reuse_is_limited_to_whole_blocks_before_the_last_token)
{
    for (int block = 1; block < 9; block++)
        for (int tokens = 0; tokens < 40; tokens++) {
            int want = 0;
            while (want + block < tokens)
                want += block;
            ck_assert_int_eq(prefix_reusable(tokens, block), want);
        }
    ck_assert_int_eq(prefix_reusable(7, 3), 6);
    ck_assert_int_eq(prefix_reusable(6, 3), 3);
}
END_TEST

/* -------------------------------------------------------------------- table */

#define RING "link the node in as the newest"
#define NODE "nodes are found"
#define COUNT "let count be the number of complete blocks"
#define MADE "make the snapshots that the cache lacks"
#define WHOLE "compare the whole key"
#define ORIGIN "decide whether two texts begin at the same place"
#define LONGEST "search from the longest boundary down"
#define COPIES "fill the entry with copies"
#define HANDOUT "hand out a copy of the entry's rows"
#define HIT "move the hit to the newest place"
#define AGAIN "move the entry that was there to the newest place"
#define OLDEST "let node be the one to go"
#define BOTH "publish every boundary, or none"
#define LIMIT "leave at least one token to run"
#define LOOK "look for what may be reused"
#define PLACE "let the position of suffix token t follow the match"
#define SUFFIX "run the suffix behind the match"
#define PUBLISH "publish the whole prompt"

static const struct test tests[] = {
    TEST(nodes_leave_in_the_order_of_their_use, 2, RING),
    TEST(a_held_node_is_found_and_is_never_the_oldest, 2,
         "let both neighbours meet"),
    TEST(every_node_of_a_hash_is_a_candidate, 2, NODE),
    TEST(an_index_survives_a_failed_allocation, 2, "buckets are made"),
    TEST(a_cache_refuses_sizes_below_one_and_those_that_do_not_fit, 2,
         "refuse a block whose bytes do not fit"),
    TEST(a_new_cache_survives_each_failed_allocation, 2,
         "make an empty cache of snapshots"),
    TEST(partial_tails_create_no_entry, 2, COUNT),
    TEST(source_tensors_cannot_change_what_is_stored, 2, COPIES),
    TEST(returned_matches_cannot_change_what_is_stored, 2, HANDOUT),
    TEST(namespace_and_absolute_start_are_part_of_the_key, 2, ORIGIN),
    TEST(ids_that_agree_in_a_byte_are_different_ids, 2, WHOLE),
    TEST(equal_hashes_do_not_make_equal_prefixes, 2, WHOLE),
    TEST(lookup_returns_the_longest_complete_aligned_prefix, 2, LONGEST),
    TEST(branched_prompts_find_their_exact_common_prefix, 2, LONGEST),
    TEST(equal_blocks_behind_different_ones_are_not_shared, 2,
         "hash the text up to each boundary"),
    TEST(a_longer_prefix_is_found_when_a_shorter_one_has_gone, 2, LONGEST),
    TEST(without_a_use_the_first_in_is_the_first_out, 2, OLDEST),
    TEST(the_least_recently_used_entry_is_removed, 2, HIT),
    TEST(storing_again_is_a_use, 2, AGAIN),
    TEST(a_long_text_leaves_its_longest_prefixes, 2, MADE),
    TEST(entries_are_counted_and_weighed, 2, "publish what was made, or take"
         " it back"),
    TEST(lookups_are_counted, 2, "look up and count"),
    TEST(a_malformed_key_is_refused, 2, "arguments are checked"),
    TEST(a_past_of_another_shape_is_refused, 2, "check the rows of a text"),
    TEST(a_match_that_is_in_use_is_refused, 2, "look up and count"),
    TEST(a_store_survives_each_failed_allocation, 2, BOTH),
    TEST(a_lookup_survives_each_failed_allocation, 2, HIT),
    TEST(random_traces_equal_a_plain_list, 2, HIT),
    TEST(random_traces_with_equal_hashes_equal_a_plain_list, 2, WHOLE),
    TEST(reuse_is_limited_to_whole_blocks_before_the_last_token, 2, LIMIT),
    TEST(cached_suffix_and_final_kv_match_full_recomputation, 2, SUFFIX),
    TEST(cached_suffix_logits_match_the_golden, 2, SUFFIX),
    TEST(a_whole_prompt_hit_still_recomputes_one_block, 2, LOOK),
    TEST(the_runner_keeps_namespaces_and_starts_apart, 2, PUBLISH),
    TEST(the_runner_refuses_what_the_model_would, 2, "a prompt is checked"),
    TEST(a_run_that_is_in_use_is_refused, 2, "look up, run, publish"),
    TEST(a_run_survives_each_failed_allocation, 2, PUBLISH),
};

SUITE("chapter 10, the prefix cache", tests);
