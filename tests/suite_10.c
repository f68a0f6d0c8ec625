/* Chapter 10: the prefix cache. The index by itself, then snapshots against
   the acceptance matrix, a plain list and failing allocations, then the
   runner, the request's storage and the program. */
#include <stdio.h>
#include <sys/wait.h>
#include "lru_index.h"
#include "model_file.h"
#include "prefix_request.h"

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

/* --------------------------------------------------- the request's storage */

/* A text of the served model that was run from `start` on and is stored. */
static void run_text(const struct served *served, int start, int tokens)
{
    struct error error = {0};
    struct prefix_run run = {0};
    expect_ok(prefix_runner_run(&served->runner, start, served->cached.ids,
                                tokens, &run, &error), &error);
    prefix_run_free(&run);
}

static struct prefix_match match_of(const struct served *served, int start,
                                    int tokens)
{
    struct error error = {0};
    struct prefix_match match = {0};
    const struct prefix_key key = {ours, start, served->cached.ids, tokens};
    expect_ok(prefix_cache_lookup(served->runner.cache, &key, &match, &error),
              &error);
    return match;
}

/* From every start: a match of 4 tokens in storage for 7, then a suffix of 3
   behind it, then an append; and all is what one call would give. */
START_TEST(storage_continues_at_the_first_uncached_position)
{
    for (int start = 0; start <= 2; start++) {
        struct served served;
        struct error error = {0};
        struct kv_cache *storage = NULL;
        struct cache_aware_output output = {0};
        serve(&served, cached_noise(), 2);
        const int32_t *ids = served.cached.ids;
        run_text(&served, start, 5);
        struct prefix_match match = match_of(&served, start, 7);
        ck_assert_int_eq(match.cache_length, 4);
        expect_ok(prefix_match_load(&match, &served.lm.cache, 7, &storage,
                                    &error), &error);
        prefix_match_free(&match);
        ck_assert_int_eq(kv_cache_capacity(storage), 7);
        ck_assert_int_eq(kv_cache_lengths(storage)[0], 4);
        ck_assert_int_eq(kv_cache_starts(storage)[0], start);
        const struct kv_inputs view = kv_cache_inputs(storage);
        const int32_t positions[3] = {start + 4, start + 5, start + 6};
        const struct cache_aware_input input = {
            .ids = ids + 4, .positions = positions, .batch = 1, .tokens = 3,
            .past = view.past, .cache_lengths = view.lengths,
            .cache_start_positions = view.starts, .use_cache = true
        };
        expect_ok(cache_aware_forward(&served.lm, &input, &output, &error),
                  &error);
        struct cache_aware_output want = recomputed(&served, start, ids, 7);
        expect_same_bits("logits", output.logits.data,
                         want.logits.data + 4 * 13, 3 * 13 * sizeof (float));
        expect_equal_caches("cache", &output.past_key_values,
                            &want.past_key_values);
        cache_aware_output_free(&want);
        cache_aware_output_free(&output);
        kv_cache_free(&storage);
        serve_no_more(&served);
    }
}
END_TEST

START_TEST(storage_of_a_match_is_its_own)
{
    struct served served;
    struct error error = {0};
    struct kv_cache *storage = NULL;
    serve(&served, cached_noise(), 2);
    run_text(&served, 0, 5);
    struct prefix_match match = match_of(&served, 0, 5);
    expect_ok(prefix_match_load(&match, &served.lm.cache, 4, &storage,
                                &error), &error);
    struct tensor *key = &kv_cache_storage(storage)->layers[0].key;
    ck_assert_ptr_ne(key->data, match.past.layers[0].key.data);
    memset(key->data, 0x55, tensor_size(key) * sizeof (float));
    prefix_match_free(&match);
    kv_cache_free(&storage);
    expect_run(&served, 0, served.cached.ids, 5, 4);
    serve_no_more(&served);
}
END_TEST

START_TEST(a_miss_gives_empty_storage)
{
    struct served served;
    struct error error = {0};
    struct kv_cache *storage = NULL;
    serve(&served, cached_noise(), 2);
    struct prefix_match match = match_of(&served, 3, 5);
    ck_assert_int_eq(match.cache_length, 0);
    expect_ok(prefix_match_load(&match, &served.lm.cache, 6, &storage,
                                &error), &error);
    ck_assert_int_eq(kv_cache_lengths(storage)[0], 0);
    ck_assert_int_eq(kv_cache_capacity(storage), 6);
    ck_assert_ptr_null(kv_cache_inputs(storage).past);
    kv_cache_free(&storage);
    serve_no_more(&served);
}
END_TEST

START_TEST(storage_that_is_too_small_is_refused)
{
    struct served served;
    struct error error = {0};
    struct kv_cache *storage = NULL;
    serve(&served, cached_noise(), 2);
    run_text(&served, 0, 5);
    struct prefix_match match = match_of(&served, 0, 5);
    for (int capacity = -1; capacity < 4; capacity++)
        ck_assert_int_eq(prefix_match_load(&match, &served.lm.cache, capacity,
                                           &storage, &error), STATUS_INVALID);
    for (long n = 1; ; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = prefix_match_load(
            &match, &served.lm.cache, 4, &storage, NULL);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        if (!failed)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, 0);
        ck_assert_ptr_null(storage);
    }
    kv_cache_free(&storage);
    prefix_match_free(&match);
    serve_no_more(&served);
}
END_TEST

/* --------------------------------------------------------- requests served */

static struct request *new_request(const struct served *served)
{
    struct request *request = NULL;
    struct error error = {0};
    const int context = served->lm.context_length;
    expect_ok(request_new(&request, &served->lm, 1, context, context, &error),
              &error);
    return request;
}

/* Feeds a prompt, expects that many reused and the last logits of one call;
   the request holds the prompt afterwards. */
static void expect_fed(const struct served *served, struct request *request,
                       const int32_t *ids, int tokens, int reused)
{
    struct error error = {0};
    const float *logits = NULL;
    int got = -1;
    expect_ok(prefix_runner_feed(&served->runner, request, ids, tokens,
                                 &logits, &got, &error), &error);
    ck_assert_int_eq(got, reused);
    struct cache_aware_output want = recomputed(served, 0, ids, tokens);
    const int vocab_size = served->lm.vocab_size;
    expect_same_bits("logits", logits,
                     want.logits.data + (tokens - 1) * vocab_size,
                     (size_t)vocab_size * sizeof (float));
    ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], tokens);
    cache_aware_output_free(&want);
}

START_TEST(a_request_is_fed_what_its_match_lacks)
{
    struct served served;
    serve(&served, cached_noise(), 3);
    struct request *request = new_request(&served);
    const int32_t *ids = served.cached.ids;
    const int prompts[][3] = {{0, 7, 0}, {0, 7, 6}, {0, 6, 3}, {9, 8, 0},
                              {9, 4, 3}, {0, 9, 6}, {0, 9, 6}, {9, 1, 0}};
    for (int k = 0; k < 8; k++) {
        expect_fed(&served, request, ids + prompts[k][0], prompts[k][1],
                   prompts[k][2]);
        kv_cache_reset(request_cache(request));
    }
    request_free(&request);
    serve_no_more(&served);
}
END_TEST

/* Token by token behind a prompt, then stored: the next prompt, which
   contains both, reuses both. */
START_TEST(what_was_decoded_is_published_too)
{
    struct served served;
    struct error error = {0};
    serve(&served, cached_noise(), 2);
    struct request *request = new_request(&served);
    int32_t ids[9];
    memcpy(ids, served.cached.ids, sizeof ids);
    expect_fed(&served, request, ids, 3, 0);
    for (int t = 3; t < 8; t++) {
        const float *logits;
        expect_ok(request_feed(request, ids + t, 1, true, &logits, &error),
                  &error);
    }
    ck_assert_int_eq(prefix_runner_publish(&served.runner, request, ids, 9,
                                           &error), STATUS_INVALID);
    expect_named(&error, "tokens");
    expect_ok(prefix_runner_publish(&served.runner, request, ids, 8, &error),
              &error);
    kv_cache_reset(request_cache(request));
    expect_fed(&served, request, ids, 9, 8);
    request_free(&request);
    serve_no_more(&served);
}
END_TEST

/* A request that began elsewhere is published where it began. */
START_TEST(a_request_is_published_at_its_own_start)
{
    struct served served;
    struct error error = {0};
    const float *logits;
    serve(&served, cached_noise(), 2);
    struct request *request = new_request(&served);
    const int32_t *ids = served.cached.ids;
    run_text(&served, 2, 5);
    struct prefix_match match = match_of(&served, 2, 5);
    expect_ok(kv_cache_load(request_cache(request), &match.past,
                            &match.cache_length, &match.cache_start_position,
                            &error), &error);
    prefix_match_free(&match);
    expect_ok(request_feed(request, ids + 4, 2, true, &logits, &error),
              &error);
    expect_ok(prefix_runner_publish(&served.runner, request, ids, 6, &error),
              &error);
    expect_run(&served, 2, ids, 7, 6);
    expect_run(&served, 0, ids, 7, 0);
    request_free(&request);
    serve_no_more(&served);
}
END_TEST

START_TEST(a_request_under_way_is_left_alone)
{
    struct served served;
    struct error error = {0};
    const float *logits = NULL;
    int reused = -1;
    serve(&served, cached_noise(), 2);
    struct request *request = new_request(&served);
    int32_t ids[10];
    memcpy(ids, served.cached.ids, 9 * sizeof *ids);
    expect_fed(&served, request, ids, 3, 0);
    ck_assert_int_eq(prefix_runner_feed(&served.runner, request, ids, 3,
                                        &logits, &reused, &error),
                     STATUS_INVALID);
    expect_named(&error, "request");
    ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 3);
    kv_cache_reset(request_cache(request));
    ids[4] = 13;
    const int tokens[4] = {0, -1, 5, 10};
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(prefix_runner_feed(&served.runner, request, ids,
                                            tokens[k], &logits, &reused,
                                            &error), STATUS_INVALID);
        ck_assert_int_eq(reused, -1);
        ck_assert_int_eq(kv_cache_lengths(request_cache(request))[0], 0);
    }
    expect_fed(&served, request, ids, 3, 2);
    request_free(&request);
    serve_no_more(&served);
}
END_TEST

START_TEST(a_served_request_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct served served;
        const float *logits = NULL;
        int reused = -1;
        serve(&served, cached_noise(), 2);
        struct request *request = new_request(&served);
        const int32_t *ids = served.cached.ids;
        run_text(&served, 0, 5);
        const struct prefix_cache_stats before =
            prefix_cache_stats(served.runner.cache);
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = prefix_runner_feed(
            &served.runner, request, ids, 8, &logits, &reused, NULL);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (failed) {
            const struct prefix_cache_stats after =
                prefix_cache_stats(served.runner.cache);
            ck_assert_int_eq(left, 0);
            ck_assert_int_eq(reused, -1);
            ck_assert_int_eq(before.entries, after.entries);
            expect_fed(&served, request, ids, 8, 4);
        }
        request_free(&request);
        serve_no_more(&served);
        if (!failed)
            break;
    }
}
END_TEST

/* --------------------------------------------------------------- the command */

/* Writes a model of noise that speaks bytes into a directory of the test's;
   V 256, N 64. */
static void save_model(char *directory)
{
    const struct gpt_config config = {
        .vocab_size = 256, .context_length = 64, .d_model = 10, .n_layers = 2,
        .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    struct error error = {0};
    struct tiny_gpt *model = noisy_model(&config, 10);
    sprintf(directory, "%s/10-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    tiny_gpt_free(&model);
}

static void remove_model(const char *directory)
{
    char line[200];
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    ck_assert_int_eq(system(line), 0);
}

/* Runs a shell line with the program as $P and the model as $M; returns what
   it wrote to both streams, and its exit status in *status. */
static size_t run_line(const char *directory, const char *line, char *output,
                       size_t size, int *status)
{
    char whole[2000];
    snprintf(whole, sizeof whole, "P='%s'; M='%s'; { %s; } 2>&1",
             harness_program(), directory, line);
    FILE *pipe = popen(whole, "r");
    ck_assert_ptr_nonnull(pipe);
    const size_t length = fread(output, 1, size - 1, pipe);
    output[length] = '\0';
    const int ended = pclose(pipe);
    ck_assert(WIFEXITED(ended));
    *status = WEXITSTATUS(ended);
    return length;
}

#define TURNS "printf 'one two\\nthree\\n\\none two four\\n' | $P chat --model $M" \
    " --system 'open the ' --max-new-tokens 5 "

START_TEST(replies_are_the_same_with_and_without_a_cache)
{
    static const char *const kinds[] = {
        "--prefix-cache none", "--prefix-cache snapshots --block-size 1",
        "--prefix-cache=snapshots --block-size 3 --capacity 2"
    };      /* blocks: suite_10b.c */
    char directory[64], line[500];
    char want[4000], got[4000];
    int status;
    save_model(directory);
    const size_t length = run_line(directory, TURNS, want, sizeof want,
                                   &status);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(length, 3 * 6);
    for (int k = 0; k < 3; k++) {
        snprintf(line, sizeof line, TURNS "%s", kinds[k]);
        ck_assert_uint_eq(run_line(directory, line, got, sizeof got, &status),
                          length);
        ck_assert_int_eq(status, 0);
        expect_same_bits(kinds[k], got, want, length);
    }
    remove_model(directory);
}
END_TEST

/* 16 tokens, all run; then 27, of which 16 + 4 are stored; then 21, which
   share 16 with the first. */
START_TEST(the_command_says_how_much_was_reused)
{
    static const char *const kinds[2] = {"snapshots", "blocks"};
    static const char *const want =
        "[prompt 16 tokens: 0 reused, 16 run]\n"
        "[prompt 27 tokens: 20 reused, 7 run]\n"
        "[prompt 21 tokens: 16 reused, 5 run]\n";
    char directory[64], line[500], got[4000];
    int status;
    save_model(directory);
    for (int k = 0; k < 2; k++) {
        snprintf(line, sizeof line, TURNS "--prefix-cache %s --block-size 4"
                 " --stats > /dev/null", kinds[k]);
        run_line(directory, line, got, sizeof got, &status);
        ck_assert_int_eq(status, 0);
        ck_assert_str_eq(got, want);
        snprintf(line, sizeof line, "$P chat --model $M --system 'open the '"
                 " --max-new-tokens 5 --prompt 'one two' --prompt three"
                 " --prompt '' --prompt 'one two four' --prefix-cache %s"
                 " --block-size 4 --stats > /dev/null", kinds[k]);
        run_line(directory, line, got, sizeof got, &status);
        ck_assert_int_eq(status, 0);
        ck_assert_str_eq(got, want);
    }
    remove_model(directory);
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_do)
{
    static const struct { const char *line, *word; int status; } bad[] = {
        {"$P chat --max-new-tokens 5 < /dev/null", "--model", 2},
        {"$P chat --model $M < /dev/null", "--max-new-tokens", 2},
        {"$P chat --model $M --max-new-tokens 0", "--max-new-tokens", 2},
        {"$P chat --model $M --max-new-tokens 5 --prefix-cache tree",
         "snapshots, blocks or none, got tree", 2},
        {"$P chat --model $M --max-new-tokens 5 --prefix-cache", "nothing", 2},
        {"$P chat --model $M --max-new-tokens 5 --block-size 0",
         "--block-size", 2},
        {"$P chat --model $M --max-new-tokens 5 --capacity x", "--capacity",
         2},
        {"$P chat --model $M --max-new-tokens 5 --nonsense", "--nonsense", 2},
        {"$P chat --model /nowhere --max-new-tokens 5 < /dev/null",
         "/nowhere", 1},
        {"$P chat --model $M --max-new-tokens 60 --prompt abcde",
         "do not fit the context of 64", 1},
        {"$P chat --model $M --max-new-tokens 65 < /dev/null",
         "do not fit the context of 64", 1},
    };
    char directory[64], got[4000];
    int status;
    save_model(directory);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        run_line(directory, bad[k].line, got, sizeof got, &status);
        ck_assert_msg(status == bad[k].status && strstr(got, bad[k].word),
                      "%s: status %d: %s", bad[k].line, status, got);
    }
    remove_model(directory);
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
#define SUFFIX "run the suffix behind the match"
#define PUBLISH "publish the whole prompt"
#define BEGIN "begin the storage with the match"
#define FEED "feed what the match does not have"
#define OWN_PLACE "store the request's tokens at their place"
#define REPLY "publish the reply as well"

static const struct test tests[] = {
    TEST(a_held_node_is_found_and_is_never_the_oldest, 2,
         "let both neighbours meet"),
    TEST(nodes_leave_in_the_order_of_their_use, 2, RING),
    TEST(every_node_of_a_hash_is_a_candidate, 2, NODE),
    TEST(an_index_survives_a_failed_allocation, 2, "buckets are made"),
    TEST(a_cache_refuses_sizes_below_one_and_those_that_do_not_fit, 2,
         "refuse a block whose bytes do not fit"),
    TEST(a_new_cache_survives_each_failed_allocation, 2,
         "make an empty cache of snapshots"),
    TEST(source_tensors_cannot_change_what_is_stored, 2, COPIES),
    TEST(returned_matches_cannot_change_what_is_stored, 2, HANDOUT),
    TEST(partial_tails_create_no_entry, 2, COUNT),
    TEST(ids_that_agree_in_a_byte_are_different_ids, 2, WHOLE),
    TEST(namespace_and_absolute_start_are_part_of_the_key, 2, ORIGIN),
    TEST(lookup_returns_the_longest_complete_aligned_prefix, 2, LONGEST),
    TEST(branched_prompts_find_their_exact_common_prefix, 2, LONGEST),
    TEST(equal_hashes_do_not_make_equal_prefixes, 2, WHOLE),
    TEST(equal_blocks_behind_different_ones_are_not_shared, 2,
         "hash the text up to each boundary"),
    TEST(without_a_use_the_first_in_is_the_first_out, 2, OLDEST),
    TEST(a_longer_prefix_is_found_when_a_shorter_one_has_gone, 2, LONGEST),
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
    TEST(a_prompt_is_published_whole, 2, PUBLISH),
    TEST(a_whole_prompt_hit_still_recomputes_one_block, 2, LOOK),
    TEST(cached_suffix_logits_match_the_golden, 2, SUFFIX),
    TEST(the_runner_keeps_namespaces_and_starts_apart, 2, PUBLISH),
    TEST(the_runner_refuses_what_the_model_would, 2, "a prompt is checked"),
    TEST(a_run_that_is_in_use_is_refused, 2, "look up, run, publish"),
    TEST(a_run_survives_each_failed_allocation, 2, PUBLISH),
    TEST(storage_continues_at_the_first_uncached_position, 2, BEGIN),
    TEST(storage_of_a_match_is_its_own, 2, BEGIN),
    TEST(a_miss_gives_empty_storage, 2, "a match becomes storage"),
    TEST(storage_that_is_too_small_is_refused, 2, BEGIN),
    TEST(a_request_is_fed_what_its_match_lacks, 2, FEED),
    TEST(what_was_decoded_is_published_too, 2, "a request is published"),
    TEST(a_request_is_published_at_its_own_start, 2, OWN_PLACE),
    TEST(a_request_under_way_is_left_alone, 2,
         "refuse a request that is under way"),
    TEST(a_served_request_survives_each_failed_allocation, 2,
         "a request is served"),
    TEST(replies_are_the_same_with_and_without_a_cache, 3, REPLY),
    TEST(the_command_says_how_much_was_reused, 3, REPLY),
    TEST(the_command_refuses_what_it_cannot_do, 3,
         "the options of the chat command"),
};

SUITE("chapter 10, the prefix cache", tests);
