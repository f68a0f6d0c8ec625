/* What must hold for a llama of any feed-forward layer in the runtime of the
   second part: steps in place, requests, chunks, stored prefixes, drafts, the
   lab's checks. Include it once, with LLAMA naming a function that makes the
   config: that of small_llama_config, but for experts. Suites 13 and 15. */
#ifndef LLAMA_MATRIX_H
#define LLAMA_MATRIX_H

#include <stdlib.h>
#include "chunked_prefill.h"
#include "prefix_blocks.h"
#include "prefix_runner.h"
#include "request.h"
#include "speculative.h"
#include "support/adapter.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/llama_plain.h"

/* ---------------------------------------------------------- a step in place */

/* Storage of NaN with a text's first tokens in it, scratch of NaN with a
   guard behind it. */
struct bench {
    struct llama *model;
    struct causal_lm lm;
    struct past_key_values storage;       /* [2,Hk,9,D] */
    int32_t ids[2 * 8], positions[2 * 8];
    struct cache_aware_output all;
    float *scratch, logits[2 * 8 * 13];
    size_t floats;
};

static inline struct bench bench_new(void)
{
    uint64_t state = noise_start(210);
    const struct llama_config config = LLAMA();
    struct bench bench = {.model = noisy_llama(&config, 211)};
    bench.lm = llama_causal_lm(bench.model);
    const struct gpt_config shape = cache_shape_config(&bench.lm.cache);
    text_of(&state, 2, 8, (const int[]){3, 0}, bench.ids, bench.positions);
    bench.all = whole(&bench.lm, bench.ids, bench.positions, 2, 8);
    expect_ok(past_key_values_new(&bench.storage, &shape, 2, 9, &error),
              &error);
    for (int l = 0; l < 3; l++)
        for (int k = 0; k < 2 * 2 * 9 * 6; k++)
            bench.storage.layers[l].key.data[k] =
                bench.storage.layers[l].value.data[k] = NAN;
    bench.floats = bench.lm.scratch_size(bench.model, 2, 8, 9);
    bench.scratch = malloc((bench.floats + 8) * sizeof (float));
    for (size_t k = 0; k < bench.floats + 8; k++)
        bench.scratch[k] = NAN;
    return bench;
}

static inline void bench_free(struct bench *bench)
{
    llama_free(&bench->model);
    past_key_values_free(&bench->storage);
    cache_aware_output_free(&bench->all);
    free(bench->scratch);
}

static inline void bench_step(struct bench *bench, int from, int count, bool last)
{
    int32_t ids[16], positions[16];
    const int32_t lengths[] = {from, from};
    for (int k = 0; k < 2 * count; k++) {
        ids[k] = bench->ids[k / count * 8 + from + k % count];
        positions[k] = bench->positions[k / count * 8 + from + k % count];
    }
    const struct step step = {ids, positions, 2, count, &bench->storage,
                              lengths, last, bench->logits};
    const size_t floats = bench->lm.scratch_size(bench->model, 2, count, 9);
    long calls = allocator_calls();
    enum status status = causal_lm_step(&bench->lm, &step, bench->scratch,
                                        floats, &error);
    calls = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(calls, 0);
    for (int k = 0; k < 8; k++)
        ck_assert(isnan(bench->scratch[bench->floats + (size_t)k]));
}

START_TEST(a_step_reads_and_writes_its_own_slots_and_allocates_nothing)
{
    struct bench bench = bench_new();
    const int sizes[] = {3, 1, 4};
    int done = 0;
    for (int call = 0; call < 3; done += sizes[call++]) {
        bench_step(&bench, done, sizes[call], false);
        for (int b = 0; b < 2; b++)
            expect_same_bits("logits", bench.logits + b * sizes[call] * 13,
                             bench.all.logits.data + (b * 8 + done) * 13,
                             (size_t)(sizes[call] * 13) * sizeof (float));
        const int end = done + sizes[call];
        for (int k = 0; k < 3 * 2 * 2 * 9 * 6; k++) {
            const struct layer_kv *l = &bench.storage.layers[k / 216];
            ck_assert(isnan(l->key.data[k % 216]) == (k / 6 % 9 >= end));
            ck_assert(isnan(l->value.data[k % 216]) == (k / 6 % 9 >= end));
        }
    }
    bench_free(&bench);
}
END_TEST

START_TEST(the_last_rows_alone_are_the_last_of_all)
{
    struct bench bench = bench_new();
    bench_step(&bench, 0, 8, true);
    for (int b = 0; b < 2; b++)
        expect_same_bits("logits", bench.logits + b * 13,
                         bench.all.logits.data + (b * 8 + 7) * 13,
                         13 * sizeof (float));
    bench_free(&bench);
}
END_TEST

START_TEST(a_call_survives_each_failed_allocation)
{
    struct bench bench = bench_new();
    const struct cache_aware_input input = {
        .ids = bench.ids, .positions = bench.positions, .batch = 2,
        .tokens = 8, .use_cache = true
    };
    for (long n = 1; ; n++) {
        struct cache_aware_output output = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = cache_aware_forward(&bench.lm, &input, &output,
                                                 &error);
        live = allocator_live() - live;
        if (!allocator_stop()) {
            expect_ok(status, &error);
            cache_aware_output_free(&output);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(live, 0);
    }
    bench_free(&bench);
}
END_TEST

/* ----------------------------------------- the second part, with no change */

static inline struct request *new_request(const struct causal_lm *lm, int batch,
                                   int capacity, int tokens)
{
    struct request *request = NULL;
    expect_ok(request_new(&request, lm, batch, capacity, tokens, &error),
              &error);
    return request;
}

/* Columns from … of the bench's text; borrowed logits. */
static inline const float *feed(struct request *request, const struct bench *bench,
                         int from, int count)
{
    int32_t ids[16];
    const float *logits = NULL;
    for (int k = 0; k < 2 * count; k++)
        ids[k] = bench->ids[k / count * 8 + from + k % count];
    long calls = allocator_calls();
    enum status status = request_feed(request, ids, count, false, &logits,
                                      &error);
    calls = allocator_calls() - calls;
    expect_ok(status, &error);
    ck_assert_int_eq(calls, 0);
    return logits;
}

/* A prefix that the functional form made, loaded with its starts 3 and 0,
   and fed on. */
START_TEST(a_request_goes_on_behind_a_loaded_prefix_for_every_length)
{
    struct bench bench = bench_new();
    for (int prefix = 1; prefix < 8; prefix++) {
        struct request *request = new_request(&bench.lm, 2, 9, 7);
        const int32_t lengths[] = {prefix, prefix}, starts[] = {3, 0};
        expect_ok(kv_cache_load(request_cache(request),
                                &bench.all.past_key_values, lengths, starts,
                                &error), &error);
        const float *logits = feed(request, &bench, prefix, 8 - prefix);
        for (int b = 0; b < 2; b++)
            expect_same_bits("logits", logits + b * (8 - prefix) * 13,
                             bench.all.logits.data + (b * 8 + prefix) * 13,
                             (size_t)((8 - prefix) * 13) * sizeof (float));
        struct past_key_values copy = {0};
        int32_t counts[2], firsts[2];
        expect_ok(kv_cache_snapshot(request_cache(request), &copy, counts,
                                    firsts, &error), &error);
        expect_equal_caches("final keys and values", &copy,
                            &bench.all.past_key_values);
        past_key_values_free(&copy);
        request_free(&request);
    }
    bench_free(&bench);
}
END_TEST

/* Rows of lengths 6 and 2 in one request; each equals itself alone. */
START_TEST(rows_of_different_lengths_run_as_they_do_alone)
{
    struct bench bench = bench_new();
    struct request *request = new_request(&bench.lm, 2, 9, 2);
    const int32_t lengths[] = {6, 2}, starts[] = {3, 0};
    const int32_t ids[] = {bench.ids[6], bench.ids[7],
                           bench.ids[8 + 2], bench.ids[8 + 3]};
    const float *logits;
    expect_ok(kv_cache_load(request_cache(request),
                            &bench.all.past_key_values, lengths, starts,
                            &error), &error);
    expect_ok(request_feed(request, ids, 2, false, &logits, &error), &error);
    expect_same_bits("row 0", logits, bench.all.logits.data + 6 * 13,
                     2 * 13 * sizeof (float));
    expect_same_bits("row 1", logits + 2 * 13,
                     bench.all.logits.data + (8 + 2) * 13,
                     2 * 13 * sizeof (float));
    request_free(&request);
    bench_free(&bench);
}
END_TEST

START_TEST(a_cut_request_goes_on_as_if_it_had_gone_no_further)
{
    struct bench bench = bench_new();
    struct request *request = new_request(&bench.lm, 2, 9, 5);
    const int32_t all[] = {5, 5}, cut[] = {3, 3}, starts[] = {3, 0};
    expect_ok(kv_cache_load(request_cache(request),
                            &bench.all.past_key_values, all, starts, &error),
              &error);
    feed(request, &bench, 0, 3);             /* guesses that were wrong */
    expect_ok(kv_cache_truncate(request_cache(request), cut, &error), &error);
    const float *logits = feed(request, &bench, 3, 5);
    for (int b = 0; b < 2; b++)
        expect_same_bits("logits", logits + b * 5 * 13,
                         bench.all.logits.data + (b * 8 + 3) * 13,
                         5 * 13 * sizeof (float));
    request_free(&request);
    bench_free(&bench);
}
END_TEST

START_TEST(a_prompt_in_chunks_of_any_size_gives_the_same_bits)
{
    struct bench bench = bench_new();
    const struct cache_aware_input input = {
        .ids = bench.ids, .positions = bench.positions, .batch = 2,
        .tokens = 8, .use_cache = true
    };
    for (int size = 1; size <= 9; size++) {
        struct cache_aware_output output = {0};
        expect_ok(chunked_prefill(&bench.lm, &input, size, &output, &error),
                  &error);
        expect_same_bits("logits", output.logits.data,
                         bench.all.logits.data, 2 * 8 * 13 * sizeof (float));
        expect_equal_caches("cache", &output.past_key_values,
                            &bench.all.past_key_values);
        cache_aware_output_free(&output);
    }
    bench_free(&bench);
}
END_TEST

/* Three ways to the same tokens: plain arithmetic over the growing text, the
   functional loop, and a request. */
START_TEST(greedy_tokens_are_those_of_a_model_without_a_cache)
{
    uint64_t state = noise_start(220);
    const struct llama_config config = LLAMA();
    struct llama *model = noisy_llama(&config, 221);
    const struct causal_lm lm = llama_causal_lm(model);
    int32_t ids[24], positions[24];
    text_of(&state, 1, 4, &(const int){0}, ids, positions);
    struct request *request = new_request(&lm, 1, 24, 4);
    struct generate_output output = {0};
    const struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = 4, .max_new_tokens = 12,
        .eos_token_id = NO_EOS
    };
    expect_ok(cache_aware_generate(&lm, &input, NULL, &output, &error),
              &error);
    const float *row = NULL;
    expect_ok(request_feed(request, ids, 4, true, &row, &error), &error);
    for (int n = 4; n < 16; n++) {
        float logits[24 * 13];
        int32_t best = 0, next = 0;
        for (int t = 0; t < n; t++)
            positions[t] = t;
        const struct plain plain = {model, &config, ids, positions, n, false};
        plain_forward(&plain, logits);
        for (int32_t v = 1; v < 13; v++) {
            if (logits[(n - 1) * 13 + v] > logits[(n - 1) * 13 + best])
                best = v;
            if (row[v] > row[next])
                next = v;
        }
        ck_assert_int_eq(next, best);
        ck_assert_int_eq(output.ids[n], best);
        ids[n] = best;
        expect_ok(request_feed(request, ids + n, 1, true, &row, &error),
                  &error);
    }
    generate_output_free(&output);
    request_free(&request);
    llama_free(&model);
}
END_TEST

typedef enum status cache_maker(struct prefix_cache **cache,
                                const struct prefix_cache_options *options,
                                struct error *e);

/* Turned keys belong to their positions: a prompt finds them again where they
   stand, and not elsewhere. */
START_TEST(a_stored_prefix_is_used_again_at_its_own_positions)
{
    cache_maker *const makers[] = {prefix_snapshots_new, prefix_blocks_new};
    struct bench bench = bench_new();
    for (int k = 0; k < 2; k++) {
        const struct prefix_cache_options options = {
            .shape = bench.lm.cache, .block_size = 3, .capacity = 8
        };
        struct prefix_cache *cache = NULL;
        expect_ok(makers[k](&cache, &options, &error), &error);
        const struct prefix_runner runner = {&bench.lm, cache,
                                             {"llama", ""}};
        const int32_t starts[] = {3, 3, 4};
        const int reused[] = {0, 6, 0};
        for (int n = 0; n < 3; n++) {
            struct prefix_run run = {0};
            expect_ok(prefix_runner_run(&runner, starts[n], bench.ids, 8,
                                        &run, &error), &error);
            ck_assert_int_eq(run.tokens_reused, reused[n]);
            if (n < 2)
                expect_same_bits("logits", run.output.logits.data,
                                 bench.all.logits.data + reused[n] * 13,
                                 (size_t)((8 - reused[n]) * 13)
                                     * sizeof (float));
            prefix_run_free(&run);
        }
        prefix_cache_free(&cache);
    }
    bench_free(&bench);
}
END_TEST

/* A draft of the family, the target itself, and a draft of the other
   family. */
START_TEST(drafts_of_either_family_change_no_token)
{
    uint64_t state = noise_start(222);
    const struct llama_config config = LLAMA();
    struct llama_config less = config;
    less.n_layers = 1;
    const struct gpt_config other = {
        .vocab_size = 13, .context_length = 24, .d_model = 8, .n_layers = 2,
        .n_heads = 2, .d_ff = 9, .layer_norm_eps = 1e-5
    };
    struct llama *model = noisy_llama(&config, 223);
    struct llama *small = noisy_llama(&less, 224);
    struct tiny_gpt *gpt = noisy_model(&other, 225);
    const struct causal_lm target = llama_causal_lm(model);
    const struct causal_lm drafts[] = {llama_causal_lm(small), target,
                                       tiny_gpt_causal_lm(gpt)};
    int32_t ids[4], positions[4];
    text_of(&state, 1, 4, &(const int){0}, ids, positions);
    const struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = 4, .max_new_tokens = 19,
        .eos_token_id = NO_EOS
    };
    struct generate_output want = {0};
    expect_ok(cache_aware_generate(&target, &input, NULL, &want, &error),
              &error);
    for (int d = 0; d < 3; d++)
        for (int k = 1; k < 6; k++) {
            struct speculative_output got = {0};
            expect_ok(speculative_generate(&target, &drafts[d], &input, k,
                                           &got, &error), &error);
            ck_assert_int_eq(got.tokens, want.tokens);
            expect_same_bits("ids", got.ids, want.ids,
                             (size_t)want.tokens * sizeof *want.ids);
            if (d == 1)
                ck_assert_int_eq(got.counts.replaced, 0);
            speculative_output_free(&got);
        }
    generate_output_free(&want);
    llama_free(&model);
    llama_free(&small);
    tiny_gpt_free(&gpt);
}
END_TEST

static inline void release_llama(void *owner)
{
    struct llama *model = owner;
    llama_free(&model);
}

/* The lab's ids and positions. */
static inline struct llama_config lab_llama(void)
{
    struct llama_config config = LLAMA();
    config.vocab_size = 7, config.context_length = 9, config.d_model = 8;
    config.n_heads = 6, config.head_dim = 4, config.d_ff = 10;
    config.rope_theta = 10000;
    return config;
}

static inline enum status make_noise(struct test_model *made, struct error *e)
{
    (void)e;
    const struct llama_config config = lab_llama();
    struct llama *model = noisy_llama(&config, 230);
    *made = (struct test_model){llama_causal_lm(model), model, NULL, NULL,
                                release_llama};
    return STATUS_OK;
}

/* A token is a one at its channel; gate i sees channel i and writes the
   channel of what follows. All experts of a layer do so alike. */
static inline enum status make_transitions(struct test_model *made,
                                           struct error *e)
{
    static const int next[] = {0, 0, 3, 0, 5, 6, 4};
    const struct llama_config config = lab_llama();
    struct llama *model = new_llama(&config);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        const char *name = entry->name;
        const bool layer_0 = strstr(name, "layers.0.") != NULL;
        float *data = entry->tensor->data;
        for (int c = 0; entry->tensor->rank == 1 && c < 8; c++)
            data[c] = 1;
        for (int i = 0; i < 7; i++) {
            if (strstr(name, "embed") || strstr(name, "head"))
                data[i * 8 + i] = 1;
            if (layer_0 && (strstr(name, "gate_proj") || strstr(name, ".w1")))
                data[i * 8 + i] = 4;
            if (layer_0 && (strstr(name, "up_proj") || strstr(name, ".w3")))
                data[i * 8 + i] = 1;
            if (layer_0 && (strstr(name, "down_proj") || strstr(name, ".w2")))
                data[next[i] * 10 + i] = 1;
        }
    }
    *made = (struct test_model){llama_causal_lm(model), model, NULL, NULL,
                                release_llama};
    (void)e;
    return STATUS_OK;
}

#define ADAPTER(name, check, factory) \
    START_TEST(name) \
    { \
        struct test_model model = adapter_made(factory); \
        check(&model); \
        test_model_free(&model); \
    } \
    END_TEST

ADAPTER(the_labs_check_of_single_tokens, adapter_tokenwise, make_noise)
ADAPTER(the_labs_check_of_chunks, adapter_chunked, make_noise)
ADAPTER(the_labs_check_of_poisoned_padding, adapter_poisoned, make_noise)
ADAPTER(the_labs_check_of_ownership, adapter_ownership, make_noise)
ADAPTER(the_labs_check_without_a_cache, adapter_no_cache, make_noise)
ADAPTER(the_labs_check_of_metadata, adapter_metadata, make_noise)
ADAPTER(the_labs_check_of_positions, adapter_positions, make_noise)
ADAPTER(the_labs_check_of_greedy_tokens, adapter_greedy, make_noise)
ADAPTER(the_labs_check_of_ended_rows, adapter_eos, make_transitions)

#endif
