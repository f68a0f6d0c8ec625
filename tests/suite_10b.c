/* Chapter 10, second page: shared blocks. The pool by itself, the acceptance
   matrix of chapter 10 for this implementation, then what only blocks have:
   leases, leaves that go first, one block for a shared branch, and bytes. */
#include <stdio.h>
#include <sys/wait.h>
#include "block_pool.h"
#include "model_file.h"
#include "prefix_blocks.h"

#define MAKE prefix_blocks_new
#include "support/prefix_matrix.h"

/* ------------------------------------------------------------------ the pool */

static struct block_pool *new_pool(int count)
{
    struct block_pool *pool = NULL;
    struct error error = {0};
    expect_ok(block_pool_new(&pool, count, &error), &error);
    return pool;
}

START_TEST(each_block_is_taken_once)
{
    struct block_pool *pool = new_pool(5);
    bool taken[5] = {false};
    for (int k = 0; k < 5; k++) {
        const int block = block_pool_take(pool);
        ck_assert(block >= 0 && block < 5 && !taken[block]);
        taken[block] = true;
        ck_assert_int_eq(block_pool_references(pool, block), 1);
        ck_assert_int_eq(block_pool_available(pool), 4 - k);
    }
    ck_assert_int_eq(block_pool_take(pool), NO_BLOCK);
    const int32_t list[5] = {3, 0, 4, 1, 2};
    ck_assert_int_eq(block_pool_release(pool, list, 5, NULL), STATUS_OK);
    ck_assert_int_eq(block_pool_available(pool), 5);
    block_pool_free(&pool);
    block_pool_free(&pool);
    block_pool_free(NULL);
}
END_TEST

static void expect_list_refused(struct block_pool *pool, const int32_t *list,
                                int count, const char *message)
{
    struct error error = {0};
    int before[4];
    for (int k = 0; k < 4; k++)
        before[k] = block_pool_references(pool, k);
    const int available = block_pool_available(pool);
    ck_assert_int_eq(block_pool_release(pool, list, count, &error),
                     STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(block_pool_available(pool), available);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(block_pool_references(pool, k), before[k]);
}

START_TEST(a_block_listed_twice_is_released_twice_or_not_at_all)
{
    struct block_pool *pool = new_pool(4);
    const int a = block_pool_take(pool), b = block_pool_take(pool);
    const int32_t twice[3] = {b, a, a};
    expect_list_refused(pool, twice, 3,
                        "blocks[2]: block 0 has no reference to release");
    block_pool_retain(pool, a);
    ck_assert_int_eq(block_pool_release(pool, twice, 3, NULL), STATUS_OK);
    ck_assert_int_eq(block_pool_available(pool), 4);
    int seen = 0;
    for (int k = 0; k < 4; k++)
        seen |= 1 << block_pool_take(pool);
    ck_assert_int_eq(seen, 15);
    ck_assert_int_eq(block_pool_take(pool), NO_BLOCK);
    block_pool_free(&pool);
}
END_TEST

START_TEST(a_released_block_cannot_be_released_again)
{
    struct block_pool *pool = new_pool(4);
    const int32_t list[1] = {block_pool_take(pool)};
    const int32_t bad[3][2] = {{0, 4}, {0, -1}, {0, INT32_MAX}};
    expect_list_refused(pool, bad[0], 2,
                        "blocks[1]: block 4 has no reference to release");
    expect_list_refused(pool, bad[1], 2,
                        "blocks[1]: block -1 has no reference to release");
    expect_list_refused(pool, bad[2], 2, "blocks[1]: block 2147483647 has no"
                        " reference to release");
    ck_assert_int_eq(block_pool_release(pool, list, 1, NULL), STATUS_OK);
    expect_list_refused(pool, list, 1,
                        "blocks[0]: block 0 has no reference to release");
    ck_assert_int_eq(block_pool_release(pool, list, 0, NULL), STATUS_OK);
    block_pool_free(&pool);
}
END_TEST

/* Random takes, retains and lists, against counters of the test's own. */
START_TEST(free_and_used_blocks_are_all_blocks_after_any_trace)
{
    enum { N = 7 };
    struct block_pool *pool = new_pool(N);
    int counts[N] = {0};
    uint64_t state = noise_start(1);
    for (int step = 0; step < 4000; step++) {
        const int what = noise_below(&state, 3), b = noise_below(&state, N);
        if (what == 0) {
            int free_blocks = 0;
            for (int k = 0; k < N; k++)
                free_blocks += counts[k] == 0;
            const int block = block_pool_take(pool);
            ck_assert_int_eq(block == NO_BLOCK, free_blocks == 0);
            if (block != NO_BLOCK)
                ck_assert_int_eq(counts[block]++, 0);
        } else if (what == 1 && counts[b] > 0) {
            block_pool_retain(pool, b);
            counts[b]++;
        } else if (what == 2) {
            int32_t list[4];
            int left[N];
            bool good = true;
            memcpy(left, counts, sizeof left);
            for (int k = 0; k < 4; k++) {
                list[k] = noise_below(&state, N);
                good = good && --left[list[k]] >= 0;
            }
            ck_assert_int_eq(block_pool_release(pool, list, 4, NULL)
                             == STATUS_OK, good);
            if (good)
                memcpy(counts, left, sizeof counts);
        }
        int used = 0;
        for (int k = 0; k < N; k++) {
            ck_assert_int_eq(block_pool_references(pool, k) > 0,
                             counts[k] > 0);
            used += counts[k] > 0;
        }
        ck_assert_int_eq(block_pool_available(pool) + used, N);
    }
    block_pool_free(&pool);
}
END_TEST

START_TEST(a_pool_refuses_no_blocks_and_survives_failed_allocations)
{
    struct block_pool *pool = NULL;
    ck_assert_int_eq(block_pool_new(&pool, 0, NULL), STATUS_INVALID);
    ck_assert_int_eq(block_pool_new(&pool, -1, NULL), STATUS_INVALID);
    for (long n = 1; n <= 3; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = block_pool_new(&pool, 4, NULL);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        ck_assert(failed);
        ck_assert_int_eq(left, 0);
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(pool);
    }
}
END_TEST

/* -------------------------------------------------------------------- leases */

static struct prefix_lease leased(struct prefix_cache *cache,
                                  const struct prefix_key *key, int blocks)
{
    struct prefix_lease lease = {0};
    struct error error = {0};
    expect_ok(prefix_blocks_lease(cache, key, &lease, &error), &error);
    ck_assert_int_eq(lease.count, blocks);
    ck_assert((lease.number != 0) == (blocks > 0));
    return lease;
}

static void release(struct prefix_cache *cache, struct prefix_lease *lease)
{
    struct error error = {0};
    expect_ok(prefix_blocks_release(cache, lease, &error), &error);
    ck_assert_uint_eq(lease->number, 0);
    ck_assert_ptr_null(lease->blocks);
}

/* Reads the rows through the page table, as an attention kernel would. */
static void expect_leased_rows(const struct prefix_cache *cache,
                               const struct prefix_lease *lease,
                               const struct prefix_key *key)
{
    for (int t = 0; t < lease->count * BLOCK; t++) {
        const uint64_t row = text_row(key, t);
        const int block = lease->blocks[t / BLOCK];
        for (int l = 0; l < 2; l++)
            for (int h = 0; h < 3; h++)
                for (int d = 0; d < 5; d++) {
                    const int at = (h * BLOCK + t % BLOCK) * 5 + d;
                    ck_assert_float_eq(prefix_blocks_key(cache, block, l)[at],
                                       text_float(row, l, 0, h, d));
                    ck_assert_float_eq(
                        prefix_blocks_value(cache, block, l)[at],
                        text_float(row, l, 1, h, d));
                }
    }
}

START_TEST(shared_branches_share_one_physical_block)
{
    struct prefix_cache *cache = prefix_made(MAKE, 20, NULL);
    int32_t ids[2][4 * BLOCK];
    struct prefix_key keys[2];
    struct prefix_lease leases[2];
    for (int k = 0; k < 2; k++) {
        text_ids(1, 4 * BLOCK, ids[k]);
        text_ids((unsigned)(2 + k), 2 * BLOCK, ids[k] + 2 * BLOCK);
        keys[k] = text(ids[k], 4 * BLOCK);
        store_text(cache, &keys[k]);
    }
    const struct prefix_cache_stats stats = prefix_cache_stats(cache);
    ck_assert_int_eq(stats.entries, 2 + 2 + 2);
    ck_assert_uint_eq(stats.kv_bytes, 6 * BLOCK * TOKEN_BYTES);
    for (int k = 0; k < 2; k++) {
        leases[k] = leased(cache, &keys[k], 4);
        expect_leased_rows(cache, &leases[k], &keys[k]);
    }
    for (int place = 0; place < 4; place++) {
        const int a = leases[0].blocks[place], b = leases[1].blocks[place];
        ck_assert_int_eq(a == b, place < 2);
        ck_assert((prefix_blocks_key(cache, a, 1)
                   == prefix_blocks_key(cache, b, 1)) == (place < 2));
    }
    release(cache, &leases[0]);
    expect_leased_rows(cache, &leases[1], &keys[1]);
    release(cache, &leases[1]);
    prefix_cache_free(&cache);
}
END_TEST

/* N = 3, a chain of 3: what is evicted is its end, so its beginning is found. */
START_TEST(eviction_takes_leaves_and_strands_no_child)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[3 * BLOCK], others[3][BLOCK];
    struct prefix_key chain, other[3];
    text_ids(1, 3 * BLOCK, ids);
    chain = text(ids, 3 * BLOCK);
    store_text(cache, &chain);
    for (int k = 0; k < 3; k++) {
        one_block((unsigned)(2 + k), others[k], &other[k]);
        store_text(cache, &other[k]);
        expect_found(cache, chain, (2 - k) * BLOCK);
        for (int j = 0; j <= k; j++)
            expect_found(cache, other[j], BLOCK);
    }
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 3);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(a_lease_prevents_eviction)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[2 * BLOCK], others[4][BLOCK];
    struct prefix_key other;
    text_ids(1, 2 * BLOCK, ids);
    const struct prefix_key key = text(ids, 2 * BLOCK);
    store_text(cache, &key);
    struct prefix_lease lease = leased(cache, &key, 2);
    for (int k = 0; k < 4; k++) {
        one_block((unsigned)(2 + k), others[k], &other);
        store_text(cache, &other);
        expect_found(cache, other, BLOCK);
        expect_leased_rows(cache, &lease, &key);
    }
    ck_assert_uint_eq(prefix_cache_stats(cache).evictions, 3);
    release(cache, &lease);
    for (int k = 0; k < 3; k++) {
        one_block((unsigned)(2 + k), others[k], &other);
        store_text(cache, &other);
    }
    expect_found(cache, key, 0);
    prefix_cache_free(&cache);
}
END_TEST

/* Others come and go on a chain that is leased. */
START_TEST(a_lookup_does_not_end_a_lease)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[2 * BLOCK], others[4][BLOCK];
    struct prefix_key other;
    text_ids(1, 2 * BLOCK, ids);
    const struct prefix_key key = text(ids, 2 * BLOCK);
    store_text(cache, &key);
    struct prefix_lease lease = leased(cache, &key, 2);
    for (int k = 0; k < 4; k++) {
        struct prefix_lease second = leased(cache, &key, 2);
        expect_found(cache, key, 2 * BLOCK);
        store_text(cache, &key);
        release(cache, &second);
        for (int n = 0; n < 2; n++) {
            one_block((unsigned)(2 + 2 * k + n), others[k], &other);
            store_text(cache, &other);
            expect_found(cache, other, BLOCK);
            expect_leased_rows(cache, &lease, &key);
        }
        expect_found(cache, key, 2 * BLOCK);
    }
    release(cache, &lease);
    prefix_cache_free(&cache);
}
END_TEST

/* With every block leased there is no room, and none is made. */
START_TEST(a_store_keeps_what_fits_beside_the_leases)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[2][4 * BLOCK], one[BLOCK];
    struct prefix_key keys[2], other;
    for (int k = 0; k < 2; k++) {
        text_ids((unsigned)k, 4 * BLOCK, ids[k]);
        keys[k] = text(ids[k], 4 * BLOCK);
    }
    one_block(5, one, &other);
    store_text(cache, &keys[0]);
    ck_assert_int_eq(prefix_cache_stats(cache).entries, 3);
    struct prefix_lease lease = leased(cache, &keys[0], 3);
    struct past_key_values past = text_past(&keys[1], 4 * BLOCK);
    const long live = allocator_live();
    const enum status status = prefix_cache_store(cache, &keys[1], &past,
                                                  NULL);
    const long left = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(left, 0);
    past_key_values_free(&past);
    store_text(cache, &other);
    expect_found(cache, other, 0);
    expect_found(cache, keys[0], 3 * BLOCK);
    release(cache, &lease);
    store_text(cache, &keys[1]);
    expect_found(cache, keys[1], 3 * BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

/* The chain that grows is the oldest text of a full cache. */
START_TEST(a_growing_chain_does_not_evict_itself)
{
    struct prefix_cache *cache = prefix_made(MAKE, 3, NULL);
    int32_t ids[3 * BLOCK], one[BLOCK];
    struct prefix_key other;
    text_ids(1, 3 * BLOCK, ids);
    one_block(2, one, &other);
    const struct prefix_key two = text(ids, 2 * BLOCK);
    const struct prefix_key three = text(ids, 3 * BLOCK);
    store_text(cache, &two);
    store_text(cache, &other);
    store_text(cache, &three);
    expect_found(cache, three, 3 * BLOCK);
    expect_found(cache, other, 0);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(a_second_release_is_refused)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    struct error error = {0};
    int32_t ids[2 * BLOCK], one[BLOCK];
    struct prefix_key other;
    text_ids(1, 2 * BLOCK, ids);
    one_block(2, one, &other);
    const struct prefix_key key = text(ids, 2 * BLOCK);
    store_text(cache, &key);
    struct prefix_lease mine = leased(cache, &key, 2);
    struct prefix_lease theirs = leased(cache, &key, 2), copy = mine;
    release(cache, &mine);
    ck_assert_int_eq(prefix_blocks_release(cache, &mine, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(prefix_blocks_release(cache, &copy, &error),
                     STATUS_INVALID);
    expect_named(&error, "lease: number 1");
    store_text(cache, &other);
    expect_found(cache, other, 0);
    expect_leased_rows(cache, &theirs, &key);
    release(cache, &theirs);
    store_text(cache, &other);
    expect_found(cache, other, BLOCK);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(leases_refuse_what_they_cannot_hold)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    struct prefix_cache *snapshots = prefix_made(prefix_snapshots_new, 2,
                                                 NULL);
    struct error error = {0};
    struct prefix_lease lease = {0};
    int32_t ids[BLOCK];
    struct prefix_key key;
    one_block(1, ids, &key);
    store_text(cache, &key);
    store_text(snapshots, &key);
    ck_assert_int_eq(prefix_blocks_lease(snapshots, &key, &lease, &error),
                     STATUS_INVALID);
    expect_named(&error, "cache: expected one of blocks");
    ck_assert_int_eq(prefix_blocks_release(snapshots, &lease, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(prefix_blocks_release(cache, &lease, &error),
                     STATUS_INVALID);
    ck_assert_ptr_null(prefix_blocks_key(snapshots, 0, 0));
    key.start = -1;
    ck_assert_int_eq(prefix_blocks_lease(cache, &key, &lease, &error),
                     STATUS_INVALID);
    expect_named(&error, "start");
    ck_assert_uint_eq(lease.number, 0);
    key.start = 0;
    lease = leased(cache, &key, 1);
    ck_assert_int_eq(prefix_blocks_lease(cache, &key, &lease, &error),
                     STATUS_INVALID);
    expect_named(&error, "lease");
    const int block = lease.blocks[0];
    ck_assert_ptr_nonnull(prefix_blocks_key(cache, block, 1));
    ck_assert_ptr_null(prefix_blocks_key(cache, block, 2));
    ck_assert_ptr_null(prefix_blocks_key(cache, block, -1));
    ck_assert_ptr_null(prefix_blocks_value(cache, -1, 0));
    ck_assert_ptr_null(prefix_blocks_value(cache, 2, 0));
    prefix_cache_free(&snapshots);
    prefix_cache_free(&cache);
}
END_TEST

START_TEST(a_lease_survives_a_failed_allocation)
{
    struct full full;
    fill(&full);
    struct prefix_lease lease = {0};
    const long live = allocator_live();
    allocator_fail_at(1);
    const enum status status = prefix_blocks_lease(full.cache, &full.a,
                                                   &lease, NULL);
    const bool failed = allocator_stop();
    const long left = allocator_live() - live;
    ck_assert(failed);
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_int_eq(left, 0);
    ck_assert_uint_eq(lease.number, 0);
    expect_full(&full);
    store_text(full.cache, &full.d);
    expect_found(full.cache, full.d, 2 * BLOCK);
    prefix_cache_free(&full.cache);
}
END_TEST

/* A miss copies nothing and needs no release. */
START_TEST(a_lease_of_nothing_is_empty)
{
    struct prefix_cache *cache = prefix_made(MAKE, 2, NULL);
    int32_t ids[BLOCK];
    struct prefix_key key;
    one_block(1, ids, &key);
    const long calls = allocator_calls();
    struct prefix_lease lease = {0};
    const enum status status = prefix_blocks_lease(cache, &key, &lease, NULL);
    const long made = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(made, 0);
    ck_assert_uint_eq(lease.number, 0);
    ck_assert_int_eq(lease.count, 0);
    prefix_cache_free(&cache);
}
END_TEST

/* ---------------------------------------------------------------- the traces */

/* A plain list of what is there: each item a prefix, `blocks` blocks of 0 or 1
   in bits, with the time of its last use and the number of its leases. */
struct item {
    int bits, blocks;
    long used;
    int leases;
};

struct list {
    struct item items[32];
    int count;
    long now;
};

enum { LEASES = 4 };

static int list_find(const struct list *list, int bits, int blocks)
{
    for (int k = 0; k < list->count; k++)
        if (list->items[k].blocks == blocks
            && list->items[k].bits == (bits & ((1 << blocks) - 1)))
            return k;
    return -1;
}

static int list_known(const struct list *list, int bits, int blocks)
{
    int known = 0;
    while (known < blocks && list_find(list, bits, known + 1) >= 0)
        known++;
    return known;
}

static void list_use(struct list *list, int bits, int blocks, int leases)
{
    list->now++;
    for (int n = 1; n <= blocks; n++) {
        struct item *item = &list->items[list_find(list, bits, n)];
        item->used = list->now;
        item->leases += leases;
    }
}

/* The oldest item that is not leased, not of this text, and begins no other;
   false when there is none. */
static bool list_evict(struct list *list, int bits, int blocks)
{
    int oldest = -1;
    for (int k = 0; k < list->count; k++) {
        const struct item *item = &list->items[k];
        bool goes = item->leases == 0
                    && list_find(list, bits, item->blocks) != k;
        goes = goes || (item->leases == 0 && item->blocks > blocks);
        for (int j = 0; j < list->count; j++)
            goes = goes && (list->items[j].blocks != item->blocks + 1
                            || (list->items[j].bits
                                & ((1 << item->blocks) - 1)) != item->bits);
        if (goes && (oldest < 0 || item->used < list->items[oldest].used))
            oldest = k;
    }
    if (oldest >= 0)
        list->items[oldest] = list->items[--list->count];
    return oldest >= 0;
}

static void list_store(struct list *list, int bits, int blocks, int capacity)
{
    int n = list_known(list, bits, blocks);
    while (n < blocks
           && (list->count < capacity || list_evict(list, bits, n))) {
        n++;
        list->items[list->count++] =
            (struct item){bits & ((1 << n) - 1), n, 0, 0};
    }
    list_use(list, bits, n, 0);
}

static struct prefix_key bits_text(int bits, int blocks, int32_t *ids)
{
    for (int t = 0; t < blocks * BLOCK; t++)
        ids[t] = bits >> t / BLOCK & 1;
    return text(ids, blocks * BLOCK);
}

static void trace(int capacity, prefix_hash *hash, unsigned stream)
{
    struct prefix_cache *cache = prefix_made(MAKE, capacity, hash);
    struct list list = {.count = 0};
    struct prefix_lease leases[LEASES] = {{0}};
    int lease_bits[LEASES];
    uint64_t state = noise_start(stream);
    int32_t ids[5 * BLOCK];
    for (int step = 0; step < 1500; step++) {
        const int blocks = noise_below(&state, 6);
        const int bits = noise_below(&state, 1 << blocks);
        const int what = noise_below(&state, 4);
        const int which = noise_below(&state, LEASES);
        struct prefix_lease *lease = &leases[which];
        const struct prefix_key key = bits_text(bits, blocks, ids);
        const int known = list_known(&list, bits, blocks);
        if (what == 0) {
            expect_found(cache, key, known * BLOCK);
            list_use(&list, bits, known, 0);
        } else if (what <= 1 + (capacity > 4)) {
            store_text(cache, &key);
            list_store(&list, bits, blocks, capacity);
        } else if (lease->number == 0) {
            *lease = leased(cache, &key, known);
            lease_bits[which] = bits;
            list_use(&list, bits, known, 1);
        } else {
            const struct prefix_key held = bits_text(lease_bits[which],
                                                     lease->count, ids);
            expect_leased_rows(cache, lease, &held);
            list_use(&list, lease_bits[which], lease->count, -1);
            release(cache, lease);
        }
        const struct prefix_cache_stats stats = prefix_cache_stats(cache);
        ck_assert_int_eq(stats.entries, list.count);
        ck_assert_int_le(stats.entries, capacity);
        ck_assert_uint_eq(stats.kv_bytes,
                          (size_t)(list.count * BLOCK * TOKEN_BYTES));
        ck_assert_uint_eq(stats.insertions - stats.evictions,
                          (uint64_t)list.count);
    }
    prefix_cache_free(&cache);
}

START_TEST(random_traces_equal_a_plain_list)
{
    for (int capacity = 1; capacity <= 13; capacity += 2)
        trace(capacity, NULL, (unsigned)capacity);
}
END_TEST

START_TEST(random_traces_with_equal_hashes_equal_a_plain_list)
{
    for (int capacity = 1; capacity <= 13; capacity += 3)
        trace(capacity, equal_hashes, (unsigned)capacity);
}
END_TEST

/* --------------------------------------------------------------- the bytes */

/* K texts of s shared and t own blocks; returns what the allocator gave out
   for cache and rows, less the book-keeping that a cache of capacity entries
   with rows of no bytes would need, as an upper bound a piece. */
static long bytes_of(prefix_maker *make, int s, int t, int branches,
                     int entries, size_t *kv_bytes)
{
    int32_t ids[PREFIX_TEXT_MAX];
    const long before = allocator_bytes();
    struct prefix_cache *cache = prefix_made(make, entries, NULL);
    text_ids(0, PREFIX_TEXT_MAX, ids);
    for (int k = 0; k < branches; k++) {
        text_ids((unsigned)(k + 1), t * BLOCK, ids + s * BLOCK);
        const struct prefix_key key = text(ids, (s + t) * BLOCK);
        struct past_key_values past = text_past(&key, (s + t) * BLOCK);
        ck_assert_int_eq(prefix_cache_store(cache, &key, &past, NULL),
                         STATUS_OK);
        past_key_values_free(&past);
    }
    const long bytes = allocator_bytes() - before;
    const struct prefix_cache_stats stats = prefix_cache_stats(cache);
    ck_assert_int_eq(stats.entries, entries);
    ck_assert_uint_eq(stats.evictions, 0);
    *kv_bytes = stats.kv_bytes;
    prefix_cache_free(&cache);
    return bytes;
}

/* The allocator's count is the formula, and for each entry less than 1 kB of
   keys, nodes and rounding. */
START_TEST(branching_prompts_need_the_bytes_of_the_formulas)
{
    const size_t block = BLOCK * TOKEN_BYTES;
    for (int s = 0; s <= 4; s += 2)
        for (int t = 1; t <= 3; t++)
            for (int branches = 1; branches <= 6; branches++) {
                const int entries = s + branches * t;
                size_t kv_bytes;
                size_t want = (size_t)(s * (s + 1) / 2 + branches
                                       * (s * t + t * (t + 1) / 2)) * block;
                long bytes = bytes_of(prefix_snapshots_new, s, t, branches,
                                      entries, &kv_bytes);
                ck_assert_uint_eq(kv_bytes, want);
                ck_assert_int_ge(bytes, (long)want);
                ck_assert_int_le(bytes, (long)want + 1024 * entries + 1024);
                want = (size_t)entries * block;
                bytes = bytes_of(prefix_blocks_new, s, t, branches, entries,
                                 &kv_bytes);
                ck_assert_uint_eq(kv_bytes, want);
                ck_assert_int_ge(bytes, (long)want);
                ck_assert_int_le(bytes, (long)want + 256 * entries + 1024);
            }
}
END_TEST

START_TEST(the_command_prints_both_and_their_formulas)
{
    static const char *const want =
        "branches  snapshots    formula     blocks    formula\n"
        "       1       8960       8960       3584       3584\n"
        "       2      15232      15232       5376       5376\n";
    char directory[64], line[300], got[1000];
    const struct gpt_config config = {
        .vocab_size = 11, .context_length = 4, .d_model = 14, .n_layers = 2,
        .n_heads = 2, .d_ff = 3, .layer_norm_eps = 1e-5
    };
    struct error error = {0};
    struct tiny_gpt *model = noisy_model(&config, 10);
    sprintf(directory, "%s/10b-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    tiny_gpt_free(&model);
    snprintf(line, sizeof line, "'%s' prefix --model '%s' --block-size 4"
             " --shared 8 --tail 10 --branches 2", harness_program(),
             directory);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    got[fread(got, 1, sizeof got - 1, pipe)] = '\0';
    const int status = pclose(pipe);
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    ck_assert_int_eq(system(line), 0);
    ck_assert_int_eq(status, 0);
    ck_assert_str_eq(got, want);
    snprintf(line, sizeof line, "'%s' prefix --branches 0 2> /dev/null",
             harness_program());
    ck_assert_int_eq(WEXITSTATUS(system(line)), 2);
    snprintf(line, sizeof line, "'%s' prefix 2> /dev/null",
             harness_program());
    ck_assert_int_eq(WEXITSTATUS(system(line)), 2);
}
END_TEST

/* Three turns of a chat with these options; returns how many bytes they say. */
static size_t chat(const char *directory, const char *options, char *said,
                   size_t size)
{
    char line[600];
    snprintf(line, sizeof line, "printf 'one two\\nthree\\n\\none two four"
             "\\n' | '%s' chat --model '%s' --system 'open the '"
             " --max-new-tokens 5 %s", harness_program(), directory, options);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    const size_t length = fread(said, 1, size, pipe);
    ck_assert_int_eq(pclose(pipe), 0);
    return length;
}

START_TEST(replies_are_the_same_from_shared_blocks)
{
    char directory[64], line[100], want[1000], got[1000];
    const struct gpt_config config = {
        .vocab_size = 256, .context_length = 64, .d_model = 10, .n_layers = 2,
        .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    struct error error = {0};
    struct tiny_gpt *model = noisy_model(&config, 10);
    sprintf(directory, "%s/10b-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    tiny_gpt_free(&model);
    const size_t length = chat(directory, "--prefix-cache none", want,
                               sizeof want);
    ck_assert_uint_eq(length, 3 * 6);
    for (int k = 0; k < 2; k++) {
        const char *options = k == 0 ? "--prefix-cache=blocks --block-size 4"
            : "--prefix-cache blocks --block-size 2 --capacity 5";
        ck_assert_uint_eq(chat(directory, options, got, sizeof got), length);
        expect_same_bits(options, got, want, length);
    }
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    ck_assert_int_eq(system(line), 0);
}
END_TEST

/* -------------------------------------------------------------------- table */

#define ONCE "free a block that has no reference left, once"
#define UNDO "refuse a mention without a reference, and undo those before it"
#define CHILD "compare parent and tokens"
#define WALK "walk down as far as the text is known"
#define PLACE "let there be the block's place in this head"
#define LEAF "let go from the leaf to the root"
#define ORDER "put a block that nobody holds into the order of use"
#define OLDEST "take the oldest block out of the tree"
#define ADD "add the block behind the chain"
#define HOLD "hold what is leased"
#define FORGET "forget the lease"
#define ARRAYS "make the arrays of a cache of blocks"

static const struct test tests[] = {
    TEST(each_block_is_taken_once, 2, "a block is taken and retained"),
    TEST(a_released_block_cannot_be_released_again, 2, UNDO),
    TEST(a_block_listed_twice_is_released_twice_or_not_at_all, 2, ONCE),
    TEST(free_and_used_blocks_are_all_blocks_after_any_trace, 2, UNDO),
    TEST(a_pool_refuses_no_blocks_and_survives_failed_allocations, 2,
         "a pool is made and freed"),
    TEST(a_cache_refuses_sizes_below_one_and_those_that_do_not_fit, 2,
         "refuse a block whose bytes do not fit"),
    TEST(a_new_cache_survives_each_failed_allocation, 2, ARRAYS),
    TEST(source_tensors_cannot_change_what_is_stored, 2, PLACE),
    TEST(returned_matches_cannot_change_what_is_stored, 2,
         "a chain is copied out"),
    TEST(partial_tails_create_no_entry, 2, "a text becomes a chain"),
    TEST(namespace_and_absolute_start_are_part_of_the_key, 2, CHILD),
    TEST(ids_that_agree_in_a_byte_are_different_ids, 2, CHILD),
    TEST(equal_hashes_do_not_make_equal_prefixes, 2, CHILD),
    TEST(equal_blocks_behind_different_ones_are_not_shared, 2, CHILD),
    TEST(lookup_returns_the_longest_complete_aligned_prefix, 2, WALK),
    TEST(branched_prompts_find_their_exact_common_prefix, 2, WALK),
    TEST(without_a_use_the_first_in_is_the_first_out, 2, OLDEST),
    TEST(the_least_recently_used_entry_is_removed, 2, ORDER),
    TEST(storing_again_is_a_use, 2, ORDER),
    TEST(lookups_are_counted, 2, "look up and count"),
    TEST(a_malformed_key_is_refused, 2, "arguments are checked"),
    TEST(a_past_of_another_shape_is_refused, 2, "check the rows of a text"),
    TEST(a_match_that_is_in_use_is_refused, 2, "look up and count"),
    TEST(eviction_takes_leaves_and_strands_no_child, 2, LEAF),
    TEST(a_growing_chain_does_not_evict_itself, 2, ADD),
    TEST(a_lease_prevents_eviction, 2, HOLD),
    TEST(a_lookup_does_not_end_a_lease, 2, ORDER),
    TEST(shared_branches_share_one_physical_block, 2, WALK),
    TEST(a_store_keeps_what_fits_beside_the_leases, 2, HOLD),
    TEST(a_second_release_is_refused, 2, FORGET),
    TEST(leases_refuse_what_they_cannot_hold, 2,
         "only a cache of blocks has leases"),
    TEST(a_lease_of_nothing_is_empty, 2, "lease what is found"),
    TEST(a_lease_survives_a_failed_allocation, 2, "lease what is found"),
    TEST(a_store_survives_each_failed_allocation, 2,
         "own the origin of a text that is new"),
    TEST(a_lookup_survives_each_failed_allocation, 2,
         "a chain is copied out"),
    TEST(random_traces_equal_a_plain_list, 2, LEAF),
    TEST(random_traces_with_equal_hashes_equal_a_plain_list, 2, CHILD),
    TEST(cached_suffix_and_final_kv_match_full_recomputation, 2,
         "a chain is copied out"),
    TEST(cached_suffix_logits_match_the_golden, 2, "a chain is copied out"),
    TEST(a_prompt_is_published_whole, 2, "publish the whole prompt"),
    TEST(a_whole_prompt_hit_still_recomputes_one_block, 2,
         "look for what may be reused"),
    TEST(the_runner_keeps_namespaces_and_starts_apart, 2, CHILD),
    TEST(the_runner_refuses_what_the_model_would, 2, "a prompt is checked"),
    TEST(a_run_that_is_in_use_is_refused, 2, "look up, run, publish"),
    TEST(a_run_survives_each_failed_allocation, 2, "publish the whole prompt"),
    TEST(branching_prompts_need_the_bytes_of_the_formulas, 2, ARRAYS),
    TEST(the_command_prints_both_and_their_formulas, 2,
         "what the formulas say"),
    TEST(replies_are_the_same_from_shared_blocks, 3,
         "publish the reply as well"),
};

SUITE("chapter 10, shared blocks", tests);
