/* Chapter 16: the paged cache. Blocks and tables by count, floats by hand,
   then random traces against plain arrays and chapter 9's cache, then models
   of both families in pages and in requests. */
#include <limits.h>
#include "kv_cache.h"
#include "page_study.h"
#include "paged_cache.h"
#include "paged_runner.h"
#include "request.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/llamas.h"
#include "support/program.h"

static struct error error;

enum { L = 2, H = 3, D = 2, Q = 5, CAPACITY = 13, G_MAX = 6 };
static const struct cache_shape shape = {L, H, D};

/* What a sequence should hold, by token. */
struct text {
    bool open;
    int length;
    int32_t start;
    float rows[L][2][CAPACITY][H][D];
};

/* A cache and what it should hold. */
struct world {
    struct paged_cache *cache;
    int size, blocks;
    struct text texts[Q];
    struct kv_cache *rows[Q];    /* NULL, or the same in chapter 9's form */
    uint64_t state;
};

static struct world world_new(int size, int blocks, unsigned stream)
{
    struct world world = {.size = size, .blocks = blocks,
                          .state = noise_start(stream)};
    const struct paged_sizes sizes = {size, blocks, Q, CAPACITY};
    expect_ok(paged_cache_new(&world.cache, &shape, &sizes, &error), &error);
    return world;
}

static void world_free(struct world *world)
{
    paged_cache_free(&world->cache);
    for (int s = 0; s < Q; s++)
        kv_cache_free(&world->rows[s]);
}

static int blocks_of(int tokens, int size)
{
    return (tokens + size - 1) / size;
}

static int used(const struct world *world)
{
    return world->blocks
           - block_pool_available(paged_cache_pool(world->cache));
}

static int references(const struct world *world, int block)
{
    return block_pool_references(paged_cache_pool(world->cache), block);
}

static struct paged_sequence look(const struct world *world, int s)
{
    return paged_cache_sequence(world->cache, s);
}

static struct past_key_values pairs_new(int batch, int slots)
{
    const struct gpt_config config = cache_shape_config(&shape);
    struct past_key_values pairs = {0};
    expect_ok(past_key_values_new(&pairs, &config, batch, slots, &error),
              &error);
    return pairs;
}

static void pairs_fill(struct past_key_values *pairs, uint64_t *state)
{
    for (int l = 0; l < pairs->n_layers; l++) {
        struct layer_kv *pair = &pairs->layers[l];
        noise_floats(state, tensor_size(&pair->key), pair->key.data);
        noise_floats(state, tensor_size(&pair->value), pair->value.data);
    }
}

static float *pairs_row(const struct past_key_values *pairs, int l, int part,
                        int b, int h, int slot)
{
    const struct tensor *tensor = part ? &pairs->layers[l].value
                                       : &pairs->layers[l].key;
    return tensor->data + ((b * H + h) * tensor->shape[2] + slot) * D;
}

static int world_open(struct world *world)
{
    int s = -1;
    expect_ok(paged_cache_open(world->cache, &s, &error), &error);
    ck_assert(s >= 0 && s < Q && !world->texts[s].open);
    memset(&world->texts[s], 0, sizeof world->texts[s]);
    world->texts[s].open = true;
    return s;
}

static void positions_behind(const struct world *world, const int *sequences,
                             int batch, int tokens, int32_t *positions)
{
    for (int b = 0; b < batch; b++) {
        const struct text *text = &world->texts[sequences[b]];
        for (int t = 0; t < tokens; t++)
            positions[b * tokens + t] = t + text->length
                + (text->length > 0 ? text->start : 3 + 10 * sequences[b]);
    }
}

/* The model's part of an append. */
static void texts_take(struct world *world, const int *sequences, int batch,
                       const struct past_key_values *recent,
                       const int32_t *positions, int tokens)
{
    for (int b = 0; b < batch; b++) {
        struct text *text = &world->texts[sequences[b]];
        if (text->length == 0)
            text->start = positions[b * tokens];
        for (int l = 0; l < L; l++)
            for (int part = 0; part < 2; part++)
                for (int t = 0; t < tokens; t++)
                    for (int h = 0; h < H; h++)
                        memcpy(text->rows[l][part][text->length + t][h],
                               pairs_row(recent, l, part, b, h, t),
                               D * sizeof (float));
        text->length += tokens;
    }
}

/* Appends noise to both. The status is the caller's to judge. */
static enum status world_append(struct world *world, const int *sequences,
                                int batch, int tokens)
{
    struct past_key_values recent = pairs_new(batch, tokens);
    int32_t positions[Q * CAPACITY];
    pairs_fill(&recent, &world->state);
    positions_behind(world, sequences, batch, tokens, positions);
    long calls = allocator_calls();
    enum status status = paged_cache_append(world->cache, sequences, batch,
                                            &recent, positions, &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(calls, 0);
    if (status == STATUS_OK) {
        texts_take(world, sequences, batch, &recent, positions, tokens);
        for (int b = 0; b < batch; b++) {
            struct kv_cache *rows = world->rows[sequences[b]];
            struct past_key_values one = pairs_new(1, tokens);
            for (int l = 0; l < L; l++)
                for (int part = 0; part < 2; part++)
                    memcpy(pairs_row(&one, l, part, 0, 0, 0),
                           pairs_row(&recent, l, part, b, 0, 0),
                           (size_t)(H * tokens * D) * sizeof (float));
            if (rows != NULL)
                expect_ok(kv_cache_append(rows, &one,
                                          positions + b * tokens, &error),
                          &error);
            past_key_values_free(&one);
        }
    }
    past_key_values_free(&recent);
    return status;
}

static void grow(struct world *world, int s, int tokens)
{
    expect_ok(world_append(world, &s, 1, tokens), &error);
}

static int world_fork(struct world *world, int parent, int length)
{
    int child = -1;
    expect_ok(paged_cache_fork(world->cache, parent, length, &child, &error),
              &error);
    ck_assert(child >= 0 && child < Q && !world->texts[child].open);
    world->texts[child] = world->texts[parent];
    world->texts[child].length = length;
    return child;
}

/* Row by row of the text, whatever stands behind it. */
static void expect_text_rows(const struct world *world, int s,
                             const struct past_key_values *rows)
{
    const struct text *text = &world->texts[s];
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int j = 0; j < text->length; j++)
                for (int h = 0; h < H; h++) {
                    const float *got = pairs_row(rows, l, part, 0, h, j);
                    const float *want = text->rows[l][part][j][h];
                    char what[80];
                    if (memcmp(got, want, D * sizeof *got) == 0)
                        continue;    /* an assertion has its price */
                    snprintf(what, sizeof what, "%s of layer %d, sequence"
                             " %d, head %d, token %d",
                             part ? "value" : "key", l, s, h, j);
                    expect_same_bits(what, got, want, D * sizeof *got);
                }
}

static void gather(const struct world *world, int s,
                   struct past_key_values *rows)
{
    int32_t length = -1, start = -1;
    expect_ok(paged_cache_gather(world->cache, &s, 1, rows, &length, &start,
                                 &error), &error);
    ck_assert_int_eq(length, world->texts[s].length);
    ck_assert_int_eq(start, world->texts[s].start);
}

static void expect_text(const struct world *world, int s)
{
    struct past_key_values rows = pairs_new(1, CAPACITY);
    uint64_t state = noise_start(1);
    pairs_fill(&rows, &state);
    gather(world, s, &rows);
    expect_text_rows(world, s, &rows);
    for (int l = 0; l < L; l++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < H; h++)
                for (int j = world->texts[s].length; j < CAPACITY; j++)
                    for (int d = 0; d < D; d++)
                        if (pairs_row(&rows, l, part, 0, h, j)[d] != 0)
                            ck_abort_msg("sequence %d, slot %d behind the"
                                         " length %d is not zero", s, j,
                                         world->texts[s].length);
    if (world->rows[s] != NULL)
        expect_equal_caches("chapter 9's rows", &rows,
                            kv_cache_storage(world->rows[s]));
    past_key_values_free(&rows);
}

/* Every reference recounted from the tables; free + used = E. */
static void expect_counts(const struct world *world)
{
    int mentions[64] = {0}, in_use = 0;
    for (int s = 0; s < Q; s++) {
        const struct paged_sequence view = look(world, s);
        ck_assert_int_eq(view.open, world->texts[s].open);
        if (!view.open)
            continue;
        ck_assert_int_eq(view.length, world->texts[s].length);
        ck_assert_int_eq(view.count, blocks_of(view.length, world->size));
        for (int k = 0; k < view.count; k++) {
            if (view.table[k] < 0 || view.table[k] >= world->blocks)
                ck_abort_msg("sequence %d: table[%d] is %d", s, k,
                             (int)view.table[k]);
            mentions[view.table[k]]++;
            for (int m = 0; m < k; m++)
                if (view.table[k] == view.table[m])
                    ck_abort_msg("sequence %d: block %d comes twice", s,
                                 (int)view.table[k]);
        }
    }
    for (int e = 0; e < world->blocks; e++) {
        const int counted = references(world, e);
        if (mentions[e] != (counted > 0 ? counted : 0))
            ck_abort_msg("block %d: %d mentions, %d references", e,
                         mentions[e], counted);
        in_use += mentions[e] > 0;
    }
    ck_assert_int_eq(used(world), in_use);
}

static void expect_world(const struct world *world)
{
    expect_counts(world);
    for (int s = 0; s < Q; s++)
        if (world->texts[s].open)
            expect_text(world, s);
}

/* ------------------------------------------------------------ made, freed */

START_TEST(a_paged_cache_of_nothing_is_refused_by_name)
{
    static const char *const names[] = {"n_layers", "n_kv_heads", "head_dim",
                                        "block_size", "blocks", "sequences",
                                        "capacity"};
    for (int k = 0; k < 7; k++)
        for (int size = -1; size < 1; size++) {
            int n[] = {L, H, D, 4, 6, Q, CAPACITY};
            char message[64];
            n[k] = size;
            struct paged_cache *cache = NULL;
            const struct cache_shape wrong = {n[0], n[1], n[2]};
            const struct paged_sizes sizes = {n[3], n[4], n[5], n[6]};
            long calls = allocator_calls();
            enum status status = paged_cache_new(&cache, &wrong, &sizes,
                                                 &error);
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

START_TEST(pages_that_no_int_counts_are_refused)
{
    struct paged_cache *cache = NULL;
    const struct cache_shape wide = {1, 65536, 65536};
    const struct paged_sizes small = {4, 6, Q, CAPACITY};
    const struct paged_sizes many = {65536, 32768, Q, CAPACITY};
    const struct paged_sizes large = {65536, 32767, INT_MAX, INT_MAX};
    const struct cache_shape heavy = {1, 32768, 32768};
    ck_assert_int_eq(paged_cache_new(&cache, &wide, &small, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "head_dim: expected at most 32767 for"
                 " 65536 heads, got 65536");
    ck_assert_int_eq(paged_cache_new(&cache, &shape, &many, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "blocks: expected at most 32767 of 65536"
                 " slots, got 32768");
    long live = allocator_live();
    enum status status = paged_cache_new(&cache, &heavy, &large, &error);
    live = allocator_live() - live;
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(cache);
}
END_TEST

START_TEST(making_pages_survives_each_failed_allocation)
{
    const struct paged_sizes sizes = {4, 6, Q, CAPACITY};
    for (long n = 1; ; n++) {
        struct paged_cache *cache = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = paged_cache_new(&cache, &shape, &sizes, &error);
        bool failed = allocator_stop();
        if (!failed)
            paged_cache_free(&cache);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(cache);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed) {
            ck_assert_int_gt(n, 7 + 2 * L);
            break;
        }
    }
    struct paged_cache *none = NULL;
    paged_cache_free(&none);
    paged_cache_free(NULL);
}
END_TEST

START_TEST(a_new_paged_cache_is_free_and_closed)
{
    struct world world = world_new(4, 6, 160);
    const struct past_key_values *storage = paged_cache_storage(world.cache);
    const int want[] = {1, H, 24, D};
    expect_counts(&world);
    ck_assert_int_eq(used(&world), 0);
    for (int l = 0; l < L; l++)
        for (int d = 0; d < 4; d++) {
            ck_assert_int_eq(storage->layers[l].key.shape[d], want[d]);
            ck_assert_int_eq(storage->layers[l].value.shape[d], want[d]);
        }
    ck_assert_int_eq(paged_cache_sizes(world.cache).capacity, CAPACITY);
    ck_assert_int_eq(paged_cache_shape(world.cache).n_kv_heads, H);
    ck_assert(!look(&world, -1).open && !look(&world, Q).open);
    world_free(&world);
}
END_TEST

START_TEST(as_many_sequences_open_as_there_may_be)
{
    struct world world = world_new(4, 6, 161);
    int s = 77;
    for (int k = 0; k < Q; k++)
        world_open(&world);
    ck_assert_int_eq(paged_cache_open(world.cache, &s, &error),
                     STATUS_NO_MEMORY);
    expect_facts(error.message, "sequences: all 5 are open");
    ck_assert_int_eq(paged_cache_fork(world.cache, 1, 0, &s, &error),
                     STATUS_NO_MEMORY);
    ck_assert_int_eq(s, 77);
    ck_assert_int_eq(paged_cache_open(world.cache, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "sequence: is NULL");
    world_free(&world);
}
END_TEST

/* ----------------------------------------------------- blocks by counting */

START_TEST(a_sequence_holds_the_blocks_of_its_tokens)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 1; n <= CAPACITY; n++) {
            struct world world = world_new(size, 40, 162);
            const int s = world_open(&world);
            grow(&world, s, n);
            ck_assert_int_eq(look(&world, s).count, blocks_of(n, size));
            ck_assert_int_eq(used(&world), blocks_of(n, size));
            world_free(&world);
        }
}
END_TEST

START_TEST(the_last_block_is_filled_before_another_is_taken)
{
    for (int size = 1; size <= G_MAX; size++) {
        struct world world = world_new(size, 40, 163);
        const int s = world_open(&world);
        for (int n = 1; n <= CAPACITY; n++) {
            grow(&world, s, 1);
            ck_assert_int_eq(used(&world), blocks_of(n, size));
        }
        world_free(&world);
    }
}
END_TEST

/* Two texts in turns, so that no table is 0, 1, 2 … */
static void grow_in_turns(struct world *world, int *a, int *b, int tokens)
{
    *a = world_open(world);
    *b = world_open(world);
    for (int n = 0; n < tokens; n++) {
        grow(world, *b, 1);
        grow(world, *a, 1);
    }
}

START_TEST(a_token_lives_where_its_table_says)
{
    for (int size = 1; size <= G_MAX; size++) {
        struct world world = world_new(size, 40, 164);
        int pair[2];
        grow_in_turns(&world, &pair[0], &pair[1], 7);
        for (int k = 0; k < 2; k++) {
            const int s = pair[k];
            grow(&world, s, 4);
            for (int j = 0; j < 11; j++) {
                const int slot = look(&world, s).table[j / size] * size
                                 + j % size;
                for (int l = 0; l < L; l++)
                    for (int part = 0; part < 2; part++)
                        for (int h = 0; h < H; h++)
                            expect_same_bits(
                                "the storage",
                                pairs_row(paged_cache_storage(world.cache),
                                          l, part, 0, h, slot),
                                world.texts[s].rows[l][part][j][h],
                                D * sizeof (float));
            }
        }
        world_free(&world);
    }
}
END_TEST

START_TEST(a_gather_joins_the_blocks_in_the_order_of_the_table)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 1; n <= CAPACITY; n++) {
            struct world world = world_new(size, 40, 165);
            struct past_key_values rows = pairs_new(1, CAPACITY);
            int a, b;
            grow_in_turns(&world, &a, &b, n);
            gather(&world, a, &rows);
            expect_text_rows(&world, a, &rows);
            gather(&world, b, &rows);
            expect_text_rows(&world, b, &rows);
            past_key_values_free(&rows);
            world_free(&world);
        }
}
END_TEST

START_TEST(behind_a_gathered_row_there_are_zeros)
{
    for (int n = 0; n <= CAPACITY; n++) {
        struct world world = world_new(4, 40, 166);
        int a, b;
        grow_in_turns(&world, &a, &b, n);
        expect_text(&world, a);
        expect_text(&world, b);
        world_free(&world);
    }
}
END_TEST

START_TEST(a_batch_is_gathered_with_strides_of_its_own)
{
    struct world world = world_new(3, 40, 167);
    int a, b;
    grow_in_turns(&world, &a, &b, 5);
    grow(&world, b, 3);
    const int order[] = {b, a, b};
    int32_t lengths[3], starts[3];
    struct past_key_values rows = pairs_new(3, 9);
    expect_ok(paged_cache_gather(world.cache, order, 3, &rows, lengths,
                                 starts, &error), &error);
    for (int r = 0; r < 3; r++) {
        const struct text *text = &world.texts[order[r]];
        ck_assert_int_eq(lengths[r], text->length);
        ck_assert_int_eq(starts[r], text->start);
        for (int l = 0; l < L; l++)
            for (int part = 0; part < 2; part++)
                for (int h = 0; h < H; h++)
                    for (int j = 0; j < 9; j++) {
                        const float zeros[D] = {0};
                        expect_same_bits("a row of the batch",
                                         pairs_row(&rows, l, part, r, h, j),
                                         j < text->length
                                             ? text->rows[l][part][j][h]
                                             : zeros, sizeof zeros);
                    }
    }
    past_key_values_free(&rows);
    world_free(&world);
}
END_TEST

START_TEST(a_gather_refuses_what_does_not_fit_and_writes_nothing)
{
    struct world world = world_new(3, 40, 168);
    int a, b;
    grow_in_turns(&world, &a, &b, 5);
    struct past_key_values rows = pairs_new(2, 5), copy = pairs_new(2, 5);
    struct past_key_values small = pairs_new(2, 4);
    const int both[] = {a, b}, closed[] = {a, 4};
    int32_t lengths[2] = {-1, -1}, starts[2] = {-1, -1};
    const struct { const int *sequences; struct past_key_values *rows;
                   int batch; int32_t *lengths, *starts; const char *says; }
        wrong[] = {
        {NULL, &rows, 2, lengths, starts, "sequences: is NULL"},
        {both, NULL, 2, lengths, starts, "past_key_values: null"},
        {both, &rows, 1, lengths, starts, "past_key_values[0].key: batch:"
         " expected 1, got 2"},
        {both, &rows, 2, NULL, starts, "lengths: is NULL"},
        {both, &rows, 2, lengths, NULL, "starts: is NULL"},
        {closed, &rows, 2, lengths, starts, "sequence 4: is not open"},
        {both, &small, 2, lengths, starts, "sequence 0: expected at most 4"
         " slots, got 5"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        ck_assert_int_eq(paged_cache_gather(world.cache, wrong[k].sequences,
                                            wrong[k].batch, wrong[k].rows,
                                            wrong[k].lengths,
                                            wrong[k].starts, &error),
                         STATUS_INVALID);
        expect_facts(error.message, wrong[k].says);
        ck_assert_int_eq(lengths[0], -1);
        ck_assert_int_eq(starts[1], -1);
        expect_equal_caches("refused rows", &rows, &copy);
    }
    past_key_values_free(&rows);
    past_key_values_free(&copy);
    past_key_values_free(&small);
    world_free(&world);
}
END_TEST

START_TEST(closing_gives_every_block_back_and_ends_the_number)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 0; n <= CAPACITY; n++) {
            struct world world = world_new(size, 40, 169);
            const int other = world_open(&world), s = world_open(&world);
            grow(&world, other, 3);
            if (n > 0)
                grow(&world, s, n);
            expect_ok(paged_cache_close(world.cache, s, &error), &error);
            ck_assert_int_eq(used(&world), blocks_of(3, size));
            world.texts[s].open = false;
            ck_assert(!look(&world, s).open);
            ck_assert_int_eq(paged_cache_close(world.cache, s, &error),
                             STATUS_INVALID);
            expect_facts(error.message, "sequence 1: is not open");
            expect_world(&world);
            ck_assert_int_eq(world_open(&world), s);
            expect_world(&world);
            world_free(&world);
        }
}
END_TEST

START_TEST(a_cut_keeps_the_blocks_of_what_is_left)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 1; n <= CAPACITY; n++)
            for (int m = 0; m <= n; m++) {
                struct world world = world_new(size, 40, 170);
                const int s = world_open(&world);
                grow(&world, s, n);
                expect_ok(paged_cache_truncate(world.cache, s, m, &error),
                          &error);
                world.texts[s].length = m;
                ck_assert_int_eq(used(&world), blocks_of(m, size));
                expect_world(&world);
                if (m < CAPACITY)
                    grow(&world, s, 1);
                expect_world(&world);
                world_free(&world);
            }
}
END_TEST

START_TEST(a_length_that_a_sequence_has_not_reached_is_refused)
{
    struct world world = world_new(4, 40, 171);
    const int s = world_open(&world);
    const int wrong[] = {-1, 7, INT_MAX, INT_MIN};
    grow(&world, s, 6);
    for (int k = 0; k < 4; k++) {
        char message[64];
        int child = 77;
        snprintf(message, sizeof message, "length: expected 0 to 6, got %d",
                 wrong[k]);
        ck_assert_int_eq(paged_cache_truncate(world.cache, s, wrong[k],
                                              &error), STATUS_INVALID);
        expect_facts(error.message, message);
        ck_assert_int_eq(paged_cache_fork(world.cache, s, wrong[k], &child,
                                          &error), STATUS_INVALID);
        expect_facts(error.message, message);
        ck_assert_int_eq(child, 77);
        expect_world(&world);
    }
    const int closed[] = {-1, 1, Q, INT_MAX};
    for (int k = 0; k < 4; k++) {
        char message[64];
        int child = 77;
        snprintf(message, sizeof message, "sequence: %d", closed[k]);
        ck_assert_int_eq(paged_cache_truncate(world.cache, closed[k], 0,
                                              &error), STATUS_INVALID);
        expect_facts(error.message, message);
        ck_assert_int_eq(paged_cache_close(world.cache, closed[k], &error),
                         STATUS_INVALID);
        expect_facts(error.message, message);
        ck_assert_int_eq(paged_cache_fork(world.cache, closed[k], 0, &child,
                                          &error), STATUS_INVALID);
        expect_facts(error.message, message);
        ck_assert_int_eq(child, 77);
    }
    ck_assert_int_eq(paged_cache_fork(world.cache, s, 6, NULL, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "child: is NULL");
    expect_world(&world);
    world_free(&world);
}
END_TEST

/* ------------------------------------------------------------------ forks */

START_TEST(a_fork_reads_the_blocks_of_its_parent)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 1; n <= CAPACITY; n++)
            for (int m = 0; m <= n; m++) {
                struct world world = world_new(size, 40, 172);
                const int parent = world_open(&world);
                grow(&world, parent, n);
                const int child = world_fork(&world, parent, m);
                const struct paged_sequence one = look(&world, parent),
                                            two = look(&world, child);
                ck_assert_int_eq(used(&world), blocks_of(n, size));
                for (int k = 0; k < two.count; k++)
                    ck_assert_int_eq(two.table[k], one.table[k]);
                for (int k = 0; k < one.count; k++)
                    ck_assert_int_eq(references(&world, one.table[k]),
                                     k * size < m ? 2 : 1);
                expect_world(&world);
                world_free(&world);
            }
}
END_TEST

START_TEST(whoever_closes_first_leaves_the_blocks_to_the_other)
{
    for (int first = 0; first < 2; first++) {
        struct world world = world_new(4, 4, 173);
        int pair[2];
        pair[0] = world_open(&world);
        grow(&world, pair[0], 10);
        pair[1] = world_fork(&world, pair[0], 6);
        expect_ok(paged_cache_close(world.cache, pair[first], &error),
                  &error);
        world.texts[pair[first]].open = false;
        expect_world(&world);
        const int other = world_open(&world);
        grow(&world, other, 4);
        expect_world(&world);
        expect_ok(paged_cache_close(world.cache, pair[1 - first], &error),
                  &error);
        world.texts[pair[1 - first]].open = false;
        expect_world(&world);
        ck_assert_int_eq(used(&world), 1);
        world_free(&world);
    }
}
END_TEST

START_TEST(a_full_block_is_shared_for_good)
{
    for (int size = 1; size <= G_MAX; size++) {
        struct world world = world_new(size, 40, 174);
        const int parent = world_open(&world);
        grow(&world, parent, 2 * size);
        const int child = world_fork(&world, parent, 2 * size);
        grow(&world, child, 1);
        grow(&world, parent, 1);
        ck_assert_int_eq(used(&world), 4);
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(look(&world, child).table[k],
                             look(&world, parent).table[k]);
            ck_assert_int_eq(references(&world,
                                        look(&world, child).table[k]), 2);
        }
        ck_assert_int_ne(look(&world, child).table[2],
                         look(&world, parent).table[2]);
        world_free(&world);
    }
}
END_TEST

/* Counts, and of the floats only the first head's key. */
START_TEST(a_shared_tail_is_left_by_who_writes)
{
    for (int writer = 0; writer < 2; writer++)
        for (int fill = 1; fill < 4; fill++) {
            struct world world = world_new(4, 40, 175);
            int pair[2];
            pair[0] = world_open(&world);
            grow(&world, pair[0], 4 + fill);
            pair[1] = world_fork(&world, pair[0], 4 + fill);
            const int old = look(&world, pair[0]).table[1];
            grow(&world, pair[writer], 1);
            const struct paged_sequence wrote = look(&world, pair[writer]);
            ck_assert_int_ne(wrote.table[1], old);
            ck_assert_int_eq(look(&world, pair[1 - writer]).table[1], old);
            ck_assert_int_eq(references(&world, old), 1);
            ck_assert_int_eq(references(&world, wrote.table[1]), 1);
            ck_assert_int_eq(references(&world, wrote.table[0]), 2);
            ck_assert_int_eq(used(&world), 3);
            expect_same_bits("a copied row",
                             pairs_row(paged_cache_storage(world.cache), 0, 0,
                                       0, 0, 4 * wrote.table[1]),
                             world.texts[pair[writer]].rows[0][0][4][0],
                             D * sizeof (float));
            world_free(&world);
        }
}
END_TEST

START_TEST(a_copied_tail_has_every_row_of_the_old_one)
{
    for (int size = 2; size <= G_MAX; size++)
        for (int n = 1; n <= CAPACITY - 2; n++)
            for (int m = 1; m <= n; m++) {
                struct world world = world_new(size, 40, 176);
                const int parent = world_open(&world);
                grow(&world, parent, n);
                const int child = world_fork(&world, parent, m);
                grow(&world, child, 2);
                expect_world(&world);
                grow(&world, parent, 1);
                expect_world(&world);
                world_free(&world);
            }
}
END_TEST

START_TEST(of_all_who_share_a_tail_one_stays)
{
    struct world world = world_new(4, 40, 177);
    int all[Q];
    all[0] = world_open(&world);
    grow(&world, all[0], 6);
    const int old = look(&world, all[0]).table[1];
    for (int k = 1; k < Q; k++)
        all[k] = world_fork(&world, all[0], 6 - k % 2);
    expect_ok(world_append(&world, all, Q, 1), &error);
    expect_world(&world);
    ck_assert_int_eq(used(&world), 1 + Q);
    ck_assert_int_eq(look(&world, all[Q - 1]).table[1], old);
    world_free(&world);
}
END_TEST

/* ---------------------------------------------------------- what is taken */

static enum status check(const struct world *world, const int *sequences,
                         int batch, int tokens)
{
    int32_t positions[Q * CAPACITY];
    positions_behind(world, sequences, batch, tokens, positions);
    long calls = allocator_calls();
    enum status status = paged_cache_check(world->cache, sequences, batch,
                                           positions, tokens, &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(calls, 0);
    return status;
}

START_TEST(what_is_free_in_the_last_block_costs_nothing)
{
    for (int size = 1; size <= G_MAX; size++)
        for (int n = 0; n < CAPACITY; n++)
            for (int extra = 0; extra < 3; extra++) {
                const int blocks = blocks_of(n, size) + extra;
                if (blocks == 0)
                    continue;
                struct world world = world_new(size, blocks, 178);
                const int s = world_open(&world);
                for (int k = 0; k < n; k++) {
                    /* one by one: an append of n could be refused by what
                       this test is about */
                    ck_assert_int_eq(world_append(&world, &s, 1, 1),
                                     STATUS_OK);
                }
                for (int t = 1; t <= CAPACITY - n; t++)
                    ck_assert_int_eq(check(&world, &s, 1, t),
                                     blocks_of(n + t, size) <= blocks
                                         ? STATUS_OK : STATUS_NO_MEMORY);
                world_free(&world);
            }
}
END_TEST

START_TEST(all_copies_but_the_last_readers_are_counted)
{
    for (int readers = 1; readers <= 4; readers++)
        for (int rows = 1; rows <= readers; rows++)
            for (int left = 0; left <= 5; left++) {
                struct world world = world_new(4, 2 + left, 179);
                int all[4];
                all[0] = world_open(&world);
                grow(&world, all[0], 6);
                for (int k = 1; k < readers; k++)
                    all[k] = world_fork(&world, all[0], 6);
                const int copies = rows < readers ? rows : readers - 1;
                ck_assert_int_eq(check(&world, all, rows, 2),
                                 copies <= left ? STATUS_OK
                                                : STATUS_NO_MEMORY);
                ck_assert_int_eq(check(&world, all, rows, 3),
                                 copies + rows <= left ? STATUS_OK
                                                       : STATUS_NO_MEMORY);
                world_free(&world);
            }
}
END_TEST

/* One has the tail in its middle, the other behind its end. */
START_TEST(a_block_that_is_full_for_one_may_be_the_tail_of_another)
{
    struct world world = world_new(4, 4, 180);
    int pair[2];
    pair[0] = world_open(&world);
    grow(&world, pair[0], 8);
    pair[1] = world_fork(&world, pair[0], 7);
    ck_assert_int_eq(check(&world, pair, 2, 1), STATUS_OK);
    expect_ok(world_append(&world, pair, 2, 1), &error);
    ck_assert_int_eq(used(&world), 4);
    expect_world(&world);
    world_free(&world);
}
END_TEST

START_TEST(a_growth_is_refused_whole_when_blocks_run_out)
{
    struct world world = world_new(4, 5, 181);
    int three[3];
    three[0] = world_open(&world);
    grow(&world, three[0], 6);
    three[1] = world_fork(&world, three[0], 6);
    three[2] = world_open(&world);
    grow(&world, three[2], 4);
    ck_assert_int_eq(check(&world, three, 3, 1), STATUS_OK);
    ck_assert_int_eq(check(&world, three, 3, 3), STATUS_NO_MEMORY);
    expect_facts(error.message, "blocks: needed 4, 2 are free");
    expect_world(&world);
    world_free(&world);
}
END_TEST

START_TEST(an_append_that_finds_no_blocks_changes_no_row)
{
    struct world world = world_new(4, 4, 182);
    int three[3];
    for (int k = 0; k < 3; k++) {
        three[k] = world_open(&world);
        grow(&world, three[k], 4 - (k == 1));
    }
    ck_assert_int_eq(world_append(&world, three, 3, 2), STATUS_NO_MEMORY);
    expect_facts(error.message, "blocks: needed 3, 1 are free");
    expect_world(&world);
    expect_ok(paged_cache_close(world.cache, three[2], &error), &error);
    world.texts[three[2]].open = false;
    expect_ok(world_append(&world, three, 2, 2), &error);
    expect_world(&world);
    world_free(&world);
}
END_TEST

static void expect_append_refused(struct world *world, const int *sequences,
                                  int batch,
                                  const struct past_key_values *recent,
                                  const int32_t *positions,
                                  const char *message)
{
    ck_assert_int_eq(paged_cache_append(world->cache, sequences, batch,
                                        recent, positions, &error),
                     STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(paged_cache_append(world->cache, sequences, batch,
                                        recent, positions, NULL),
                     STATUS_INVALID);
    expect_world(world);
}

START_TEST(every_argument_of_an_append_is_looked_at)
{
    struct world world = world_new(4, 40, 183);
    int two[2];
    grow_in_turns(&world, &two[0], &two[1], 5);
    struct past_key_values recent = pairs_new(2, 2);
    struct past_key_values many = pairs_new(Q + 1, 2);
    struct past_key_values longer = pairs_new(2, 9);
    int32_t right[4], wrong[18];
    pairs_fill(&recent, &world.state);
    positions_behind(&world, two, 2, 2, right);
    expect_append_refused(&world, NULL, 2, &recent, right,
                          "sequences: is NULL");
    expect_append_refused(&world, two, 2, &recent, NULL,
                          "positions: is NULL");
    expect_append_refused(&world, two, 2, NULL, right,
                          "past_key_values: null");
    expect_append_refused(&world, two, 1, &recent, right,
                          "past_key_values[0].key: batch: expected 1, got"
                          " 2");
    expect_append_refused(&world, two, Q + 1, &many, right,
                          "batch: expected 1 to 5, got 6");
    recent.layers[L - 1].value.shape[2] = 1;
    expect_append_refused(&world, two, 2, &recent, right,
                          "past_key_values[1].value: length: expected 2, got"
                          " 1");
    recent.layers[L - 1].value.shape[2] = 2;
    recent.layers[L - 1].key.shape[1] = H - 1;
    expect_append_refused(&world, two, 2, &recent, right,
                          "past_key_values[1].key: heads: expected 3, got"
                          " 2");
    recent.layers[L - 1].key.shape[1] = H;
    const int again[] = {two[1], two[1]};
    expect_append_refused(&world, again, 2, &recent, right,
                          "positions[0][0]: expected 18, got 8");
    positions_behind(&world, again, 2, 2, wrong);
    expect_append_refused(&world, again, 2, &recent, wrong,
                          "sequences[1]: 1");
    const int closed[] = {two[0], -1};
    expect_append_refused(&world, closed, 2, &recent, right,
                          "sequence: -1");
    positions_behind(&world, two, 2, 9, wrong);
    expect_append_refused(&world, two, 2, &longer, wrong,
                          "sequence 0: expected at most 13 slots, got 5 +"
                          " 9");
    for (int at = 0; at < 4; at++) {
        char message[80];
        memcpy(wrong, right, sizeof right);
        wrong[at]++;
        snprintf(message, sizeof message,
                 "positions[%d][%d]: expected %d, got %d", at / 2, at % 2,
                 (int)right[at], (int)wrong[at]);
        expect_append_refused(&world, two, 2, &recent, wrong, message);
    }
    int fresh[2] = {world_open(&world), two[1]};
    positions_behind(&world, fresh, 2, 2, wrong);
    wrong[0] = -1;
    wrong[1] = 0;
    expect_append_refused(&world, fresh, 2, &recent, wrong,
                          "positions[0][0]: expected 0, got -1");
    wrong[0] = INT32_MAX;
    wrong[1] = INT32_MIN;
    expect_append_refused(&world, fresh, 2, &recent, wrong,
                          "positions[0][1]: expected 2147483648, got"
                          " -2147483648");
    ck_assert_int_eq(paged_cache_check(world.cache, two, 2, right, 0,
                                       &error), STATUS_INVALID);
    expect_facts(error.message, "tokens: expected at least 1, got 0");
    past_key_values_free(&recent);
    past_key_values_free(&many);
    past_key_values_free(&longer);
    world_free(&world);
}
END_TEST

/* ---------------------------------------------------------- random traces */

static int some_open(struct world *world, int *open)
{
    int32_t order[Q];
    int count = 0;
    noise_order(&world->state, Q, order);
    for (int k = 0; k < Q; k++)
        if (world->texts[order[k]].open)
            open[count++] = order[k];
    return count;
}

/* By setting, not by division: one step for each token of each row in turn,
   in a copy of the tables. */
static int blocks_needed(const struct world *world, const int *sequences,
                         int batch, int tokens)
{
    int readers[64], needed = 0;
    for (int e = 0; e < world->blocks; e++)
        readers[e] = references(world, e) > 0 ? references(world, e) : 0;
    for (int b = 0; b < batch; b++) {
        const struct paged_sequence view = look(world, sequences[b]);
        int place = view.length - (view.count - 1) * world->size;
        bool mine = false;
        if (view.count == 0)
            place = world->size;
        for (int t = 0; t < tokens; t++) {
            if (place == world->size) {
                needed++;
                place = 0;
                mine = true;
            } else if (!mine) {
                const int block = view.table[view.count - 1];
                if (readers[block] > 1) {
                    readers[block]--;
                    needed++;
                }
                mine = true;
            }
            place++;
        }
    }
    return needed;
}

static void random_append(struct world *world)
{
    int open[Q];
    const int count = some_open(world, open);
    const int tokens = 1 + noise_below(&world->state, 5);
    bool fits = true;
    if (count == 0)
        return;
    const int batch = 1 + noise_below(&world->state, count);
    for (int b = 0; b < batch; b++)
        fits = fits && world->texts[open[b]].length + tokens <= CAPACITY;
    const int needed = fits ? blocks_needed(world, open, batch, tokens) : 0;
    const int left = world->blocks - used(world);
    ck_assert_int_eq(world_append(world, open, batch, tokens),
                     !fits ? STATUS_INVALID
                     : needed > left ? STATUS_NO_MEMORY : STATUS_OK);
}

static void rows_begin(struct world *world, int s, int parent)
{
    expect_ok(kv_cache_new(&world->rows[s], &shape, 1, CAPACITY, &error),
              &error);
    if (parent >= 0) {
        const int32_t length = world->texts[s].length;
        expect_ok(kv_cache_load(world->rows[s],
                                kv_cache_storage(world->rows[parent]),
                                &length, &world->texts[s].start, &error),
                  &error);
    }
}

static void random_sequence(struct world *world)
{
    int open[Q];
    const int count = some_open(world, open);
    const bool fork = count > 0 && noise_below(&world->state, 3) > 0;
    int s = -1;
    if (count == Q) {
        ck_assert_int_eq(paged_cache_open(world->cache, &s, &error),
                         STATUS_NO_MEMORY);
        ck_assert_int_eq(paged_cache_fork(world->cache, open[0], 0, &s,
                                          &error), STATUS_NO_MEMORY);
    } else if (fork) {
        s = world_fork(world, open[0],
                       noise_below(&world->state,
                                   world->texts[open[0]].length + 1));
        rows_begin(world, s, open[0]);
    } else
        rows_begin(world, world_open(world), -1);
}

static void random_end(struct world *world)
{
    int open[Q];
    const int count = some_open(world, open);
    if (count == 0)
        return;
    const int s = open[0];
    if (noise_below(&world->state, 3) == 0) {
        expect_ok(paged_cache_close(world->cache, s, &error), &error);
        world->texts[s].open = false;
        kv_cache_free(&world->rows[s]);
    } else {
        const int32_t length = noise_below(&world->state,
                                           world->texts[s].length + 1);
        expect_ok(paged_cache_truncate(world->cache, s, length, &error),
                  &error);
        expect_ok(kv_cache_truncate(world->rows[s], &length, &error),
                  &error);
        world->texts[s].length = length;
    }
}

START_TEST(random_traces_equal_plain_arrays_and_every_reference_is_counted)
{
    for (int round = 0; round < 18; round++) {
        const int size = 1 + round % G_MAX;
        uint64_t state = noise_start(185 + (unsigned)round);
        const int enough = Q * blocks_of(CAPACITY, size);
        const int blocks = 1 + noise_below(&state, enough < 64 ? enough
                                                               : 63);
        struct world world = world_new(size, blocks,
                                       300 + (unsigned)round);
        for (int n = 0; n < 150; n++) {
            const int what = noise_below(&world.state, 8);
            if (what < 4)
                random_append(&world);
            else if (what < 6)
                random_sequence(&world);
            else
                random_end(&world);
            expect_world(&world);
        }
        for (int s = 0; s < Q; s++)
            if (world.texts[s].open)
                expect_ok(paged_cache_close(world.cache, s, &error), &error);
        ck_assert_int_eq(used(&world), 0);
        world_free(&world);
    }
}
END_TEST

/* ------------------------------------------------------------- the runner */

/* A model of one family or the other, or of the other with experts. */
struct family {
    struct tiny_gpt *gpt;
    struct llama *llama;
    struct causal_lm lm;
};

static struct family family_new(int which)
{
    struct family family = {0};
    if (which == 0) {
        const struct gpt_config config = {
            .vocab_size = 13, .context_length = 24, .d_model = 10,
            .n_layers = 3, .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
        };
        family.gpt = noisy_model(&config, 190);
        family.lm = tiny_gpt_causal_lm(family.gpt);
    } else {
        const struct llama_config config =
            which == 1 ? small_llama_config() : small_moe_config();
        family.llama = noisy_llama(&config, 191);
        family.lm = llama_causal_lm(family.llama);
    }
    return family;
}

static void family_free(struct family *family)
{
    tiny_gpt_free(&family->gpt);
    llama_free(&family->llama);
}

enum { V = 13, CONTEXT = 24, ROWS = 4 };

/* A runner, and a request of one row for each of its sequences. */
struct served {
    struct family family;
    struct paged_cache *cache;
    struct paged_runner *runner;
    struct request *alone[ROWS];
    uint64_t state;
};

static struct served served_new(int which, int size, int blocks)
{
    struct served served = {.family = family_new(which),
                            .state = noise_start(192)};
    const struct paged_sizes sizes = {size, blocks, ROWS, 20};
    expect_ok(paged_cache_new(&served.cache, &served.family.lm.cache, &sizes,
                              &error), &error);
    expect_ok(paged_runner_new(&served.runner, &served.family.lm,
                               served.cache, ROWS, 6, &error), &error);
    for (int s = 0; s < ROWS; s++)
        expect_ok(request_new(&served.alone[s], &served.family.lm, 1, 20, 6,
                              &error), &error);
    return served;
}

static void served_free(struct served *served)
{
    for (int s = 0; s < ROWS; s++)
        request_free(&served->alone[s]);
    paged_runner_free(&served->runner);
    paged_cache_free(&served->cache);
    family_free(&served->family);
}

/* Feeds the same ids to pages and to each request; equal bits. */
static void feed_both(struct served *served, const int *sequences, int batch,
                      int tokens, bool last_only)
{
    int32_t ids[ROWS * 6];
    const float *logits = NULL, *want = NULL;
    for (int k = 0; k < batch * tokens; k++)
        ids[k] = noise_below(&served->state, V);
    long calls = allocator_calls();
    enum status status = paged_runner_feed(served->runner, sequences, batch,
                                           ids, tokens, last_only, &logits,
                                           &error);
    calls = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(calls, 0);
    for (int b = 0; b < batch; b++) {
        const int rows = last_only ? 1 : tokens;
        expect_ok(request_feed(served->alone[sequences[b]],
                               ids + b * tokens, tokens, last_only, &want,
                               &error), &error);
        expect_same_bits("logits", logits + b * rows * V, want,
                         (size_t)(rows * V) * sizeof (float));
    }
}

/* The pages against the request's storage. */
static void expect_rows_of(struct served *served, int s)
{
    const struct kv_cache *alone = request_cache(served->alone[s]);
    const struct gpt_config config =
        cache_shape_config(&served->family.lm.cache);
    struct past_key_values rows = {0};
    int32_t length, start;
    expect_ok(past_key_values_new(&rows, &config, 1, 20, &error), &error);
    expect_ok(paged_cache_gather(served->cache, &s, 1, &rows, &length, &start,
                                 &error), &error);
    ck_assert_int_eq(length, kv_cache_lengths(alone)[0]);
    ck_assert_int_eq(start, kv_cache_starts(alone)[0]);
    expect_equal_caches("keys and values", &rows, kv_cache_storage(alone));
    past_key_values_free(&rows);
}

static int open_in(struct served *served)
{
    int s = -1;
    expect_ok(paged_cache_open(served->cache, &s, &error), &error);
    return s;
}

START_TEST(a_runner_refuses_what_no_call_would_fit)
{
    struct family family = family_new(0), other = family_new(1);
    const struct paged_sizes sizes = {4, 6, ROWS, 20};
    struct paged_cache *cache = NULL;
    struct paged_runner *runner = NULL;
    expect_ok(paged_cache_new(&cache, &family.lm.cache, &sizes, &error),
              &error);
    const struct { const struct causal_lm *lm; struct paged_cache *cache;
                   int batch, tokens; const char *says; } wrong[] = {
        {NULL, cache, 1, 1, "lm: is NULL"},
        {&family.lm, NULL, 1, 1, "cache: is NULL"},
        {&other.lm, cache, 1, 1, "cache: expected 3 layers [2,6], got 3"
         " [2,5]"},
        {&family.lm, cache, 0, 1, "batch: expected 1 to 4, got 0"},
        {&family.lm, cache, 5, 1, "batch: expected 1 to 4, got 5"},
        {&family.lm, cache, 1, 0, "max_tokens: expected 1 to the capacity"
         " 20, got 0"},
        {&family.lm, cache, 1, 21, "max_tokens: expected 1 to the capacity"
         " 20, got 21"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        ck_assert_int_eq(paged_runner_new(&runner, wrong[k].lm,
                                          wrong[k].cache, wrong[k].batch,
                                          wrong[k].tokens, &error),
                         STATUS_INVALID);
        expect_facts(error.message, wrong[k].says);
        ck_assert_ptr_null(runner);
    }
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = paged_runner_new(&runner, &family.lm, cache, 2,
                                              3, &error);
        bool failed = allocator_stop();
        if (!failed)
            paged_runner_free(&runner);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(runner);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed)
            break;
    }
    paged_runner_free(&runner);
    paged_runner_free(NULL);
    paged_cache_free(&cache);
    family_free(&family);
    family_free(&other);
}
END_TEST

START_TEST(a_feed_appends_what_the_step_wrote)
{
    for (int which = 0; which < 3; which++) {
        struct served served = served_new(which, 4, 20);
        const int two[] = {open_in(&served), open_in(&served)};
        feed_both(&served, two, 2, 3, false);
        for (int n = 0; n < 6; n++)
            feed_both(&served, two, 2, 1 + n % 3, n % 2 == 0);
        expect_rows_of(&served, 0);
        expect_rows_of(&served, 1);
        served_free(&served);
    }
}
END_TEST

/* Any batch of rows, of any lengths, in any order; a fork goes on as its
   parent would have. */
START_TEST(both_families_continue_and_fork_as_their_requests_do)
{
    for (int which = 0; which < 3; which++)
        for (int size = 1; size <= 5; size++) {
            struct served served = served_new(which, size, 80);
            const int parent = open_in(&served), other = open_in(&served);
            int child = -1;
            feed_both(&served, &parent, 1, 5, true);
            feed_both(&served, &other, 1, 2, false);
            const int both[] = {other, parent};
            feed_both(&served, both, 2, 2, false);
            expect_ok(paged_cache_fork(served.cache, parent, 6, &child,
                                       &error), &error);
            const int32_t length = 6, start = 0;
            expect_ok(kv_cache_load(request_cache(served.alone[child]),
                                    kv_cache_storage(request_cache(
                                        served.alone[parent])), &length,
                                    &start, &error), &error);
            const int three[] = {child, other, parent};
            for (int n = 0; n < 4; n++)
                feed_both(&served, three, 3, 1 + n % 3, n % 2 == 1);
            const int32_t cut = 4;
            expect_ok(paged_cache_truncate(served.cache, parent, cut,
                                           &error), &error);
            expect_ok(kv_cache_truncate(request_cache(served.alone[parent]),
                                        &cut, &error), &error);
            feed_both(&served, three, 3, 2, false);
            for (int k = 0; k < 3; k++)
                expect_rows_of(&served, three[k]);
            served_free(&served);
        }
}
END_TEST

/* Slot state must not survive: A, B, A on one number and its blocks. */
START_TEST(nothing_of_a_closed_sequence_shows_in_the_next)
{
    struct served served = served_new(1, 4, 5);
    int32_t ids[6];
    float first[6 * V];
    for (int k = 0; k < 6; k++)
        ids[k] = noise_below(&served.state, V);
    for (int round = 0; round < 3; round++) {
        const int s = open_in(&served);
        const float *logits = NULL;
        if (round == 1) {
            feed_both(&served, &s, 1, 6, false);
            feed_both(&served, &s, 1, 6, false);
        } else {
            expect_ok(paged_runner_feed(served.runner, &s, 1, ids, 6, false,
                                        &logits, &error), &error);
            if (round == 0)
                memcpy(first, logits, sizeof first);
            else
                expect_same_bits("logits", logits, first, sizeof first);
        }
        expect_ok(paged_cache_close(served.cache, s, &error), &error);
    }
    served_free(&served);
}
END_TEST

START_TEST(a_refused_feed_changes_nothing)
{
    struct served served = served_new(1, 4, 3);
    const int s = open_in(&served), other = open_in(&served);
    const int two[] = {s, other}, closed[] = {s, 3}, again[] = {s, s};
    int32_t ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, bad[2] = {1, V};
    const float *logits = NULL;
    float before[6 * V];
    expect_ok(paged_runner_feed(served.runner, &s, 1, ids, 6, false, &logits,
                                &error), &error);
    expect_ok(request_feed(served.alone[s], ids, 6, false, &logits, &error),
              &error);
    expect_ok(paged_runner_feed(served.runner, &other, 1, ids, 1, true,
                                &logits, &error), &error);
    expect_ok(paged_cache_truncate(served.cache, other, 0, &error), &error);
    memcpy(before, logits, sizeof before);
    const struct { const int *sequences; int batch; const int32_t *ids;
                   int tokens; enum status status; const char *says; }
        wrong[] = {
        {NULL, 1, ids, 1, STATUS_INVALID, "sequences: is NULL"},
        {&s, 1, NULL, 1, STATUS_INVALID, "ids: is NULL"},
        {&s, 0, ids, 1, STATUS_INVALID, "batch: expected 1 to 4, got 0"},
        {&s, 5, ids, 1, STATUS_INVALID, "batch: expected 1 to 4, got 5"},
        {&s, 1, ids, 0, STATUS_INVALID, "tokens: expected 1 to 6, got 0"},
        {&s, 1, ids, 7, STATUS_INVALID, "tokens: expected 1 to 6, got 7"},
        {closed, 2, ids, 1, STATUS_INVALID, "sequence 3: is not open"},
        {again, 2, ids, 1, STATUS_INVALID,
         "sequences[1]: 0"},
        {two, 2, ids, 5, STATUS_NO_MEMORY, "blocks: needed 3, 1 are free"},
        {&s, 1, bad, 2, STATUS_INVALID, NULL}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        const float *out = NULL;
        ck_assert_int_eq(paged_runner_feed(served.runner, wrong[k].sequences,
                                           wrong[k].batch, wrong[k].ids,
                                           wrong[k].tokens, false, &out,
                                           &error), wrong[k].status);
        if (wrong[k].says != NULL)
            expect_facts(error.message, wrong[k].says);
        ck_assert_ptr_null(out);
        expect_same_bits("logits", logits, before, sizeof before);
        ck_assert_int_eq(paged_cache_sequence(served.cache, other).length,
                         0);
        ck_assert_int_eq(block_pool_available(
                             paged_cache_pool(served.cache)), 1);
        expect_rows_of(&served, s);
    }
    ck_assert_int_eq(paged_runner_feed(served.runner, &s, 1, ids, 1, true,
                                       NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "logits: is NULL");
    served_free(&served);
}
END_TEST

START_TEST(a_sequence_meets_the_end_of_the_context)
{
    struct served served = served_new(0, 4, 20);
    const int s = open_in(&served);
    const struct gpt_config config =
        cache_shape_config(&served.family.lm.cache);
    struct past_key_values one = {0};
    const int32_t position = CONTEXT - 3, ids[3] = {1, 2, 3};
    const float *logits = NULL;
    expect_ok(past_key_values_new(&one, &config, 1, 1, &error), &error);
    expect_ok(paged_cache_append(served.cache, &s, 1, &one, &position,
                                 &error), &error);
    ck_assert_int_eq(paged_runner_feed(served.runner, &s, 1, ids, 3, true,
                                       &logits, &error), STATUS_INVALID);
    expect_facts(error.message, "sequence 0: expected positions below"
                 " 24, got 21 + 1 + 3");
    expect_ok(paged_runner_feed(served.runner, &s, 1, ids, 2, true, &logits,
                                &error), &error);
    ck_assert_int_eq(paged_runner_feed(served.runner, &s, 1, ids, 1, true,
                                       &logits, &error), STATUS_INVALID);
    past_key_values_free(&one);
    served_free(&served);
}
END_TEST

/* Opens, forks, feeds, cuts and closes. */
START_TEST(the_paged_loop_allocates_nothing)
{
    for (int which = 0; which < 3; which++) {
        struct served served = served_new(which, 4, 20);
        const int32_t ids[6] = {1, 2, 3, 4, 5, 6};
        const float *logits = NULL;
        int s = -1, child = -1;
        enum status status = STATUS_OK;
        long calls = allocator_calls();
        status |= paged_cache_open(served.cache, &s, &error);
        status |= paged_runner_feed(served.runner, &s, 1, ids, 6, true,
                                    &logits, &error);
        status |= paged_cache_fork(served.cache, s, 5, &child, &error);
        for (int n = 0; n < 9; n++) {
            const int two[] = {child, s};
            status |= paged_runner_feed(served.runner, two, 2, ids, 1, true,
                                        &logits, &error);
        }
        status |= paged_cache_truncate(served.cache, child, 3, &error);
        status |= paged_cache_close(served.cache, s, &error);
        calls = allocator_calls() - calls;
        ck_assert_int_eq(status, STATUS_OK);
        ck_assert_int_eq(calls, 0);
        served_free(&served);
    }
}
END_TEST

/* -------------------------------------------------- waste and the command */

START_TEST(waste_is_counted_and_agrees_with_its_formula)
{
    const int sizes[] = {1, 2, 8, 64};
    double tokens = 0;
    for (int k = 0; k < 4; k++) {
        struct page_waste waste;
        expect_ok(page_waste_measure(sizes[k], 400, 64, harness_seed(),
                                     &waste, &error), &error);
        if (k == 0)
            tokens = waste.tokens;
        ck_assert_double_eq(waste.tokens, tokens);
        ck_assert_double_eq(waste.waste,
                            waste.blocks * sizes[k] - waste.tokens);
        ck_assert_double_eq(waste.formula, 400 * (sizes[k] - 1) / 2.0);
        ck_assert_msg(waste.waste >= waste.formula
                          - 0.2 * 400 * (sizes[k] - 1) / 2
                      && waste.waste <= waste.formula
                          + 0.2 * 400 * (sizes[k] - 1) / 2,
                      "block size %d: %g is far from %g", sizes[k],
                      waste.waste, waste.formula);
    }
}
END_TEST

START_TEST(a_study_is_made_or_nothing_is_changed)
{
    const int wrong[][3] = {{0, 4, 8}, {2, 0, 8}, {2, 4, 0},
                            {2, INT_MAX, INT_MAX}};
    struct page_waste waste = {-1, -1, -1, -1};
    double seconds = -1;
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(page_waste_measure(wrong[k][0], wrong[k][1],
                                            wrong[k][2], 1, &waste, &error),
                         STATUS_INVALID);
    ck_assert_int_eq(page_gather_measure(&shape, 4, 9, 0, &seconds, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(page_gather_measure(&shape, 4, 9, 100, &seconds,
                                         &error), STATUS_INVALID);
    ck_assert_int_eq(page_gather_measure(&shape, 0, 9, 1, &seconds, &error),
                     STATUS_INVALID);
    ck_assert_double_eq(waste.tokens, -1);
    ck_assert_double_eq(seconds, -1);
    for (int what = 0; what < 2; what++)
        for (long n = 1; ; n++) {
            long live = allocator_live();
            allocator_fail_at(n);
            enum status status = what
                ? page_gather_measure(&shape, 2, 5, 3, &seconds, &error)
                : page_waste_measure(2, 3, 5, 1, &waste, &error);
            bool failed = allocator_stop();
            live = allocator_live() - live;
            ck_assert_int_eq(live, 0);
            ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
            if (!failed)
                break;
            ck_assert_double_eq(what ? seconds : waste.tokens, -1);
        }
    ck_assert_double_ge(seconds, 0);
}
END_TEST

START_TEST(the_pages_command_prints_waste_beside_its_formula)
{
    int size, blocks;
    double waste, formula, percent;
    const char *table = run_program("pages --sequences 10 --longest 12", 0);
    const char *row = strchr(table, '\n');
    ck_assert_ptr_nonnull(row);
    ck_assert_int_eq(sscanf(row, "%d %d %lf %lf %lf", &size, &blocks, &waste,
                            &formula, &percent), 5);
    ck_assert_int_eq(size, 1);
    ck_assert_double_eq(waste, 0);
    const char *last = strrchr(table, '\n');
    while (last > table && last[-1] != '\n')
        last--;
    ck_assert_int_eq(sscanf(last, "%d %d %lf %lf %lf", &size, &blocks, &waste,
                            &formula, &percent), 5);
    ck_assert_int_eq(size, 12);
    ck_assert_int_eq(blocks, 10);
    ck_assert_double_eq(formula, 55);
    ck_assert_ptr_nonnull(strstr(run_program(
        "pages --longest 4 --config figures/01-tiny.json", 0),
        "gather ms"));
    const char *json = run_program("pages --longest 4 --json --seed 3"
                                   " --config figures/01-tiny.json", 0);
    ck_assert_ptr_nonnull(strstr(json, "{\"sequences\": 256, \"longest\": 4,"
                                 " \"tokens\": "));
    ck_assert_ptr_nonnull(strstr(json, "{\"block_size\": 4, \"blocks\": 256,"
                                 " \"waste\": "));
    ck_assert_ptr_nonnull(strstr(json, "\"gather_ms\": "));
}
END_TEST

START_TEST(the_pages_command_refuses_what_it_cannot_count)
{
    const char *const usage[] = {
        "pages --sequences 0", "pages --longest", "pages --longest 16385",
        "pages --seed x", "pages --config", "pages --rows 2"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt pages"));
    ck_assert_ptr_nonnull(strstr(run_program("pages --config nowhere.json",
                                             1), "nowhere.json"));
    ck_assert_ptr_nonnull(strstr(run_program("pages --help", 0),
                                 "--longest"));
}
END_TEST

/* ------------------------------------------------------------------ table */

#define BLOCKS "let a number of tokens be a number of blocks"
#define TAKE "take the blocks that the new tokens need"
#define SLOT "let the token's slot be its block's and its place"
#define JOIN "copy the rows of one block"
#define CLEAR "clear what is behind the row"
#define CLOSE "give back every block of the sequence"
#define CUT "give back the blocks behind the cut"
#define SHARE "share the blocks of the first tokens"
#define TAIL "let the tail be the block that the next token enters"
#define OWN "make the tail the sequence's own"
#define COPY "copy the tail's rows"
#define COUNT "count the blocks that the row will take"
#define COPIES "count the copy of a tail that others read"
#define COVER "refuse a growth that the free blocks do not cover"
#define WHOLE "refuse the append of all rows or of none"
#define NEW_ROWS "take the new rows out of their slots"
#define BEFORE "refuse a feed before anything runs"
#define OPENED "sequences are opened and closed"

static const struct test tests[] = {
    TEST(a_paged_cache_of_nothing_is_refused_by_name, 2,
         "the sizes of a paged cache"),
    TEST(pages_that_no_int_counts_are_refused, 2,
         "refuse pages that no int counts"),
    TEST(making_pages_survives_each_failed_allocation, 2, "make the pages"),
    TEST(a_new_paged_cache_is_free_and_closed, 2, "make the pages"),
    TEST(as_many_sequences_open_as_there_may_be, 2, OPENED),
    TEST(a_sequence_holds_the_blocks_of_its_tokens, 2, BLOCKS),
    TEST(the_last_block_is_filled_before_another_is_taken, 2, TAKE),
    TEST(a_token_lives_where_its_table_says, 2, SLOT),
    TEST(a_gather_joins_the_blocks_in_the_order_of_the_table, 2, JOIN),
    TEST(behind_a_gathered_row_there_are_zeros, 2, CLEAR),
    TEST(a_batch_is_gathered_with_strides_of_its_own, 2,
         "gather one row of a tensor"),
    TEST(a_gather_refuses_what_does_not_fit_and_writes_nothing, 2,
         "check a gather"),
    TEST(closing_gives_every_block_back_and_ends_the_number, 2, CLOSE),
    TEST(a_cut_keeps_the_blocks_of_what_is_left, 2, CUT),
    TEST(a_length_that_a_sequence_has_not_reached_is_refused, 2,
         "refuse what is not open"),
    TEST(a_fork_reads_the_blocks_of_its_parent, 2, SHARE),
    TEST(whoever_closes_first_leaves_the_blocks_to_the_other, 2, SHARE),
    TEST(a_full_block_is_shared_for_good, 2, TAIL),
    TEST(a_shared_tail_is_left_by_who_writes, 2, OWN),
    TEST(a_copied_tail_has_every_row_of_the_old_one, 2, COPY),
    TEST(of_all_who_share_a_tail_one_stays, 2, OWN),
    TEST(what_is_free_in_the_last_block_costs_nothing, 2, COUNT),
    TEST(all_copies_but_the_last_readers_are_counted, 2, COPIES),
    TEST(a_block_that_is_full_for_one_may_be_the_tail_of_another, 2, COPIES),
    TEST(a_growth_is_refused_whole_when_blocks_run_out, 2, COVER),
    TEST(an_append_that_finds_no_blocks_changes_no_row, 2, WHOLE),
    TEST(every_argument_of_an_append_is_looked_at, 2,
         "check one row of a growth"),
    TEST(random_traces_equal_plain_arrays_and_every_reference_is_counted, 2,
         "a sequence grows"),
    TEST(a_runner_refuses_what_no_call_would_fit, 2,
         "refuse a runner that no call would fit"),
    TEST(a_feed_appends_what_the_step_wrote, 2, NEW_ROWS),
    TEST(both_families_continue_and_fork_as_their_requests_do, 2,
         "gather and step"),
    TEST(nothing_of_a_closed_sequence_shows_in_the_next, 2,
         "gather and step"),
    TEST(a_refused_feed_changes_nothing, 2, BEFORE),
    TEST(a_sequence_meets_the_end_of_the_context, 2,
         "positions come from the sequences"),
    TEST(the_paged_loop_allocates_nothing, 2, "a runner is fed"),
    TEST(waste_is_counted_and_agrees_with_its_formula, 2,
         "measure the waste of random lengths"),
    TEST(a_study_is_made_or_nothing_is_changed, 2, "measure a gather"),
    TEST(the_pages_command_prints_waste_beside_its_formula, 2,
         "print one block size"),
    TEST(the_pages_command_refuses_what_it_cannot_count, 2,
         "the options of the pages command"),
};

SUITE("chapter 16, the paged cache", tests);
