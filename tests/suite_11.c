/* Chapter 11: chunked prefill. The calls that a prompt is cut into, as the
   model sees them; their numbers against one call over the whole; a request
   that takes a prompt in chunks; then the scheduler by hand-made steps and by
   its promises, and its clock by hand-computed times. */
#include <limits.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>
#include "chunked_prefill.h"
#include "model_file.h"
#include "prefix_blocks.h"
#include "prefix_cache.h"
#include "schedule.h"
#include "schedule_study.h"
#include "support/allocator.h"
#include "support/cached.h"

static struct error error;

/* ------------------------------------------------------- a prompt and a model */

enum { B = 3, T = 7, V = 13, N = 24, S = 6, CALLS_MAX = 64 };

/* V 13, N 24, C 10, L 3, H 2, D 5; three prompts of seven tokens behind pasts
   of noise, whose slots behind the lengths are NaN. */
struct prompt {
    struct tiny_gpt *model;
    struct causal_lm lm;
    int32_t ids[B * T], positions[B * T];
    int32_t lengths[B], starts[B];
    struct past_key_values past;             /* [B,H,S,D] */
};

static void put_positions(struct prompt *prompt)
{
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            prompt->positions[b * T + t] =
                prompt->starts[b] + prompt->lengths[b] + t;
}

/* A cache of noise; NaN behind the lengths. */
static struct past_key_values noise_past(const struct causal_lm *lm,
                                         const int32_t *lengths,
                                         uint64_t *state)
{
    struct past_key_values past = {0};
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    expect_ok(past_key_values_new(&past, &shape, B, S, &error), &error);
    for (int l = 0; l < past.n_layers; l++)
        for (int part = 0; part < 2; part++) {
            struct tensor *tensor = part == 0 ? &past.layers[l].key
                                              : &past.layers[l].value;
            const int dim = tensor->shape[3];
            noise_floats(state, tensor_size(tensor), tensor->data);
            for (int k = 0; k < (int)tensor_size(tensor); k++)
                if (k / dim % S >= lengths[k / dim / S / tensor->shape[1]])
                    tensor->data[k] = NAN;
        }
    return past;
}

static struct prompt new_prompt(void)
{
    const struct gpt_config config = {
        .vocab_size = V, .context_length = N, .d_model = 10, .n_layers = 3,
        .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    struct prompt prompt = {
        .model = noisy_model(&config, 110),
        .lengths = {2, 0, 5}, .starts = {1, 6, 9}
    };
    uint64_t state = noise_start(111);
    prompt.lm = tiny_gpt_causal_lm(prompt.model);
    noise_ids(&state, V, B, T, prompt.ids);
    put_positions(&prompt);
    prompt.past = noise_past(&prompt.lm, prompt.lengths, &state);
    return prompt;
}

static void prompt_close(struct prompt *prompt)
{
    past_key_values_free(&prompt->past);
    tiny_gpt_free(&prompt->model);
}

/* All of the prompt, behind its past or as texts that begin where it does. */
static struct cache_aware_input whole(const struct prompt *prompt,
                                      bool with_past)
{
    struct cache_aware_input input = {
        .ids = prompt->ids, .positions = prompt->positions, .batch = B,
        .tokens = T, .use_cache = true
    };
    if (with_past) {
        input.past = &prompt->past;
        input.cache_lengths = prompt->lengths;
        input.cache_start_positions = prompt->starts;
    }
    return input;
}

static struct cache_aware_output in_one_call(const struct prompt *prompt,
                                             const struct cache_aware_input
                                             *input)
{
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(&prompt->lm, input, &output, &error),
              &error);
    return output;
}

static struct cache_aware_output in_chunks(const struct causal_lm *lm,
                                           const struct cache_aware_input
                                           *input, int chunk_size)
{
    struct cache_aware_output output = {0};
    expect_ok(chunked_prefill(lm, input, chunk_size, &output, &error),
              &error);
    return output;
}

static void expect_equal_outputs(const char *what,
                                 const struct cache_aware_output *a,
                                 const struct cache_aware_output *b)
{
    const size_t batch = (size_t)b->logits.shape[0];
    ck_assert_msg(tensor_same_shape(&a->logits, &b->logits),
                  "%s: logits of another shape", what);
    expect_same_bits(what, a->logits.data, b->logits.data,
                     tensor_size(&b->logits) * sizeof (float));
    expect_equal_caches(what, &a->past_key_values, &b->past_key_values);
    expect_same_bits(what, a->cache_lengths, b->cache_lengths,
                     batch * sizeof (int32_t));
    expect_same_bits(what, a->cache_start_positions, b->cache_start_positions,
                     batch * sizeof (int32_t));
}

/* ------------------------------------------------------------------- the calls */

/* A model that writes down what it is asked to run, and runs it. */
struct spy {
    struct causal_lm inner;
    int calls;
    int tokens[CALLS_MAX], batch[CALLS_MAX];
    bool last_only[CALLS_MAX];
    int32_t ids[CALLS_MAX][B * T], positions[CALLS_MAX][B * T];
    int32_t lengths[CALLS_MAX][B];
};

static size_t spy_size(const void *model, int batch, int tokens, int slots)
{
    const struct spy *spy = model;
    return spy->inner.scratch_size(spy->inner.model, batch, tokens, slots);
}

static void spy_run(const void *model, const struct step *step,
                    float *scratch)
{
    struct spy *spy = (void *)(uintptr_t)model;
    const size_t columns = (size_t)(step->batch * step->tokens);
    ck_assert_int_lt(spy->calls, CALLS_MAX);
    ck_assert_uint_le(columns, B * T);
    const int k = spy->calls++;
    spy->tokens[k] = step->tokens;
    spy->batch[k] = step->batch;
    spy->last_only[k] = step->last_only;
    memcpy(spy->ids[k], step->ids, columns * sizeof *step->ids);
    memcpy(spy->positions[k], step->positions,
           columns * sizeof *step->positions);
    memcpy(spy->lengths[k], step->lengths,
           (size_t)step->batch * sizeof *step->lengths);
    spy->inner.run(spy->inner.model, step, scratch);
}

static struct causal_lm spy_on(struct spy *spy, const struct causal_lm *lm)
{
    struct causal_lm spied = *lm;
    memset(spy, 0, sizeof *spy);
    spy->inner = *lm;
    spied.model = spy;
    spied.scratch_size = spy_size;
    spied.run = spy_run;
    return spied;
}

START_TEST(a_prompt_takes_as_many_calls_as_chunks_cover_it)
{
    const struct { int tokens, chunk_size, calls; } some[] = {
        {1, 1, 1}, {5, 2, 3}, {6, 2, 3}, {7, 2, 4}, {7, 7, 1}, {7, 8, 1},
        {1000, 256, 4}, {1024, 256, 4}, {1025, 256, 5}, {5, INT_MAX, 1},
        {INT_MAX, 1, INT_MAX}, {INT_MAX, INT_MAX, 1}, {INT_MAX, 2, 1 << 30},
    };
    for (size_t k = 0; k < sizeof some / sizeof *some; k++)
        ck_assert_int_eq(prefill_calls(some[k].tokens, some[k].chunk_size),
                         some[k].calls);
    for (int tokens = 1; tokens < 40; tokens++)
        for (int chunk_size = 1; chunk_size < 45; chunk_size++) {
            int calls = 0;
            for (int left = tokens; left > 0; left -= chunk_size)
                calls++;
            ck_assert_int_eq(prefill_calls(tokens, chunk_size), calls);
        }
}
END_TEST

/* Looks at the calls that are made, whatever becomes of the prompt. */
START_TEST(every_call_brings_its_own_columns_of_every_row)
{
    struct prompt prompt = new_prompt();
    for (int past = 0; past < 2; past++)
        for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
            struct spy spy;
            const struct causal_lm lm = spy_on(&spy, &prompt.lm);
            const struct cache_aware_input input = whole(&prompt, past);
            struct cache_aware_output output = {0};
            chunked_prefill(&lm, &input, chunk_size, &output, &error);
            ck_assert_int_ge(spy.calls, 1);
            for (int k = 0, at = 0; k < spy.calls; at += spy.tokens[k++]) {
                ck_assert_int_eq(spy.batch[k], B);
                ck_assert_int_le(at + spy.tokens[k], T);
                for (int at_b = 0; at_b < B * spy.tokens[k]; at_b++)
                    ck_assert_int_eq(spy.ids[k][at_b],
                                     prompt.ids[at_b / spy.tokens[k] * T + at
                                                + at_b % spy.tokens[k]]);
            }
            cache_aware_output_free(&output);
        }
    prompt_close(&prompt);
}
END_TEST

START_TEST(every_call_stands_behind_the_calls_before_it)
{
    struct prompt prompt = new_prompt();
    for (int past = 0; past < 2; past++)
        for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
            struct spy spy;
            const struct causal_lm lm = spy_on(&spy, &prompt.lm);
            const struct cache_aware_input input = whole(&prompt, past);
            struct cache_aware_output output = {0};
            expect_ok(chunked_prefill(&lm, &input, chunk_size, &output,
                                      &error), &error);
            for (int k = 0, at = 0; k < spy.calls; at += spy.tokens[k++])
                for (int b = 0; b < B; b++) {
                    const int before = past ? prompt.lengths[b] : 0;
                    ck_assert_int_eq(spy.lengths[k][b], before + at);
                    for (int t = 0; t < spy.tokens[k]; t++)
                        ck_assert_int_eq(
                            spy.positions[k][b * spy.tokens[k] + t],
                            prompt.positions[b * T + at + t]);
                }
            cache_aware_output_free(&output);
        }
    prompt_close(&prompt);
}
END_TEST

START_TEST(no_call_is_larger_than_a_chunk)
{
    struct prompt prompt = new_prompt();
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        struct spy spy;
        const struct causal_lm lm = spy_on(&spy, &prompt.lm);
        const struct cache_aware_input input = whole(&prompt, true);
        struct cache_aware_output output = in_chunks(&lm, &input, chunk_size);
        for (int k = 0; k < spy.calls; k++)
            ck_assert_int_le(spy.tokens[k], chunk_size);
        for (int k = 0; k + 1 < spy.calls; k++)
            ck_assert_int_eq(spy.tokens[k], chunk_size);
        cache_aware_output_free(&output);
    }
    prompt_close(&prompt);
}
END_TEST

START_TEST(the_calls_cover_the_prompt_to_its_last_token)
{
    struct prompt prompt = new_prompt();
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        struct spy spy;
        int tokens = 0;
        const struct causal_lm lm = spy_on(&spy, &prompt.lm);
        const struct cache_aware_input input = whole(&prompt, true);
        struct cache_aware_output output = in_chunks(&lm, &input, chunk_size);
        for (int k = 0; k < spy.calls; k++)
            tokens += spy.tokens[k];
        ck_assert_msg(tokens == T, "C %d: %d of %d tokens", chunk_size,
                      tokens, T);
        ck_assert_int_eq(spy.calls, (T + chunk_size - 1) / chunk_size);
        cache_aware_output_free(&output);
    }
    prompt_close(&prompt);
}
END_TEST

/* ----------------------------------------------------------------- the numbers */

START_TEST(what_is_handed_over_has_the_shape_of_one_call)
{
    struct prompt prompt = new_prompt();
    const int shape[3] = {B, T, V};
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        const struct cache_aware_input input = whole(&prompt, true);
        struct cache_aware_output output = in_chunks(&prompt.lm, &input,
                                                     chunk_size);
        ck_assert_int_eq(output.logits.rank, 3);
        for (int d = 0; d < 3; d++)
            ck_assert_int_eq(output.logits.shape[d], shape[d]);
        ck_assert_int_eq(past_key_values_length(&output.past_key_values),
                         5 + T);
        for (int b = 0; b < B; b++) {
            ck_assert_int_eq(output.cache_lengths[b], prompt.lengths[b] + T);
            ck_assert_int_eq(output.cache_start_positions[b],
                             prompt.starts[b]);
        }
        cache_aware_output_free(&output);
    }
    prompt_close(&prompt);
}
END_TEST

START_TEST(the_logits_of_every_chunk_lie_where_one_call_puts_them)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        struct cache_aware_output output = in_chunks(&prompt.lm, &input,
                                                     chunk_size);
        for (int k = 0; k < B * T; k++)
            ck_assert_msg(memcmp(output.logits.data + k * V,
                                 one.logits.data + k * V,
                                 V * sizeof (float)) == 0,
                          "C %d: row %d, column %d differs", chunk_size,
                          k / T, k % T);
        cache_aware_output_free(&output);
    }
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

/* The same additions in the same order: logits, caches and books by bits. */
START_TEST(every_chunk_size_gives_the_bits_of_one_call)
{
    struct prompt prompt = new_prompt();
    for (int past = 0; past < 2; past++) {
        const struct cache_aware_input input = whole(&prompt, past);
        struct cache_aware_output one = in_one_call(&prompt, &input);
        for (int k = 1; k <= T + 2; k++) {
            char what[64];
            const int chunk_size = k == T + 2 ? INT_MAX : k;
            snprintf(what, sizeof what, "C %d, %s a past", chunk_size,
                     past ? "with" : "without");
            struct cache_aware_output output = in_chunks(&prompt.lm, &input,
                                                         chunk_size);
            expect_equal_outputs(what, &output, &one);
            cache_aware_output_free(&output);
        }
        cache_aware_output_free(&one);
    }
    prompt_close(&prompt);
}
END_TEST

/* Places of the text, lengths of the past: all drawn. */
START_TEST(rows_with_any_origins_and_pasts_give_the_bits_of_one_call)
{
    struct prompt prompt = new_prompt();
    uint64_t state = noise_start(112);
    for (int again = 0; again < 20; again++) {
        for (int b = 0; b < B; b++) {
            prompt.lengths[b] = noise_below(&state, S + 1);
            prompt.starts[b] = noise_below(&state, N - T - S + 1);
        }
        past_key_values_free(&prompt.past);
        prompt.past = noise_past(&prompt.lm, prompt.lengths, &state);
        put_positions(&prompt);
        const struct cache_aware_input input = whole(&prompt, true);
        struct cache_aware_output one = in_one_call(&prompt, &input);
        struct cache_aware_output output =
            in_chunks(&prompt.lm, &input, 1 + noise_below(&state, T));
        expect_equal_outputs("drawn rows", &output, &one);
        cache_aware_output_free(&output);
        cache_aware_output_free(&one);
    }
    prompt_close(&prompt);
}
END_TEST

/* Row b of the batch alone, which needs a past of its own. */
START_TEST(a_row_of_a_chunked_batch_equals_its_solo_run)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, false);
    struct cache_aware_output all = in_chunks(&prompt.lm, &input, 3);
    for (int b = 0; b < B; b++) {
        struct cache_aware_input row = input;
        row.batch = 1;
        row.ids += b * T;
        row.positions += b * T;
        struct cache_aware_output solo = in_chunks(&prompt.lm, &row, 2);
        expect_same_bits("logits of a row", solo.logits.data,
                         all.logits.data + b * T * V,
                         T * V * sizeof (float));
        ck_assert_int_eq(solo.cache_start_positions[0],
                         all.cache_start_positions[b]);
        cache_aware_output_free(&solo);
    }
    cache_aware_output_free(&all);
    prompt_close(&prompt);
}
END_TEST

START_TEST(the_golden_batch_has_the_golden_logits_and_caches_in_any_chunks)
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
    for (int chunk_size = 1; chunk_size <= 7; chunk_size++) {
        struct cache_aware_output output = in_chunks(&lm, &input, chunk_size);
        ck_assert_uint_eq(tensor_size(&output.logits), want->count);
        expect_close("logits", output.logits.data, want->f32, want->count,
                     want->rank, want->shape, TOLERANCE);
        expect_golden_cache(golden, "out.full.past",
                            &output.past_key_values);
        cache_aware_output_free(&output);
    }
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

/* Whose past is the golden's own, poisoned behind the lengths. */
START_TEST(the_golden_mixed_batch_is_continued_in_any_chunks)
{
    struct golden *golden = golden_open("cache_aware");
    struct tiny_gpt *model = golden_model(golden, 0);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    const struct gpt_config shape = cache_shape_config(&lm.cache);
    const struct golden_tensor *want = golden_get(golden, "out.mixed.logits");
    struct past_key_values past = {0};
    expect_ok(past_key_values_new(&past, &shape, 2, 4, &error), &error);
    for (int l = 0; l < 2; l++)
        for (int part = 0; part < 2; part++) {
            const struct golden_tensor *from = golden_get(
                golden, "in.mixed.past.%d.%s", l, part == 0 ? "key" : "value");
            memcpy((part == 0 ? past.layers[l].key
                              : past.layers[l].value).data, from->f32,
                   from->count * sizeof (float));
        }
    const struct cache_aware_input input = {
        .ids = golden_get(golden, "in.mixed.ids")->ids,
        .positions = golden_get(golden, "in.mixed.positions")->ids,
        .batch = 2, .tokens = 3, .past = &past,
        .cache_lengths = golden_get(golden, "in.mixed.lengths")->ids,
        .cache_start_positions = golden_get(golden, "in.mixed.starts")->ids,
        .use_cache = true
    };
    for (int chunk_size = 1; chunk_size <= 4; chunk_size++) {
        struct cache_aware_output output = in_chunks(&lm, &input, chunk_size);
        expect_close("logits", output.logits.data, want->f32, want->count,
                     want->rank, want->shape, TOLERANCE);
        expect_golden_cache(golden, "out.mixed.past",
                            &output.past_key_values);
        cache_aware_output_free(&output);
    }
    past_key_values_free(&past);
    tiny_gpt_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(without_use_cache_there_are_logits_only)
{
    struct prompt prompt = new_prompt();
    struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    input.use_cache = false;
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        struct cache_aware_output output = in_chunks(&prompt.lm, &input,
                                                     chunk_size);
        expect_same_bits("logits", output.logits.data, one.logits.data,
                         B * T * V * sizeof (float));
        ck_assert_ptr_null(output.past_key_values.layers);
        ck_assert_ptr_null(output.cache_lengths);
        ck_assert_ptr_null(output.cache_start_positions);
        cache_aware_output_free(&output);
    }
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

/* The text in two prompts, the second behind the output of the first. */
START_TEST(a_prompt_may_go_on_where_another_has_ended)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    for (int cut = 1; cut < T; cut++) {
        int32_t ids[2][B * T], positions[2][B * T];
        for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++) {
                const int part = t >= cut;
                const int at = part ? b * (T - cut) + t - cut : b * cut + t;
                ids[part][at] = prompt.ids[b * T + t];
                positions[part][at] = prompt.positions[b * T + t];
            }
        struct cache_aware_input first = input;
        first.ids = ids[0];
        first.positions = positions[0];
        first.tokens = cut;
        struct cache_aware_output before = in_chunks(&prompt.lm, &first, 2);
        const struct cache_aware_input second = {
            .ids = ids[1], .positions = positions[1], .batch = B,
            .tokens = T - cut, .past = &before.past_key_values,
            .cache_lengths = before.cache_lengths,
            .cache_start_positions = before.cache_start_positions,
            .use_cache = true
        };
        struct cache_aware_output after = in_chunks(&prompt.lm, &second, 3);
        expect_equal_caches("two prompts", &after.past_key_values,
                            &one.past_key_values);
        for (int b = 0; b < B; b++)
            expect_same_bits("logits of the second",
                             after.logits.data + b * (T - cut) * V,
                             one.logits.data + (b * T + cut) * V,
                             (size_t)((T - cut) * V) * sizeof (float));
        cache_aware_output_free(&before);
        cache_aware_output_free(&after);
    }
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

/* A prompt whose last token is at N-1; and one beyond it. */
START_TEST(a_prompt_may_fill_the_context_and_not_pass_it)
{
    struct prompt prompt = new_prompt();
    const int32_t lengths[B] = {2, 0, 5};
    for (int b = 0; b < B; b++)
        prompt.starts[b] = N - T - lengths[b];
    put_positions(&prompt);
    struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    struct cache_aware_output output = in_chunks(&prompt.lm, &input, 2);
    expect_equal_outputs("a full context", &output, &one);
    cache_aware_output_free(&output);
    cache_aware_output_free(&one);
    prompt.starts[2]++;
    put_positions(&prompt);
    ck_assert_int_eq(chunked_prefill(&prompt.lm, &input, 2, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "positions[2,6]");
    ck_assert_ptr_null(output.logits.data);
    prompt_close(&prompt);
}
END_TEST

START_TEST(what_the_caller_lends_is_only_read)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    int32_t positions[B * T], lengths[B], starts[B];
    memcpy(positions, prompt.positions, sizeof positions);
    memcpy(lengths, prompt.lengths, sizeof lengths);
    memcpy(starts, prompt.starts, sizeof starts);
    uint64_t state = noise_start(111);
    int32_t ids[B * T];
    noise_ids(&state, V, B, T, ids);
    struct past_key_values past = noise_past(&prompt.lm, prompt.lengths,
                                             &state);
    for (int chunk_size = 1; chunk_size <= T; chunk_size++) {
        struct cache_aware_output output = in_chunks(&prompt.lm, &input,
                                                     chunk_size);
        expect_equal_caches("the caller's past", &prompt.past, &past);
        expect_same_bits("ids", prompt.ids, ids, sizeof ids);
        expect_same_bits("positions", prompt.positions, positions,
                         sizeof positions);
        expect_same_bits("lengths", prompt.lengths, lengths, sizeof lengths);
        expect_same_bits("starts", prompt.starts, starts, sizeof starts);
        for (int l = 0; l < past.n_layers; l++)
            ck_assert_ptr_ne(output.past_key_values.layers[l].key.data,
                             prompt.past.layers[l].key.data);
        cache_aware_output_free(&output);
    }
    past_key_values_free(&past);
    prompt_close(&prompt);
}
END_TEST

/* ---------------------------------------------------------------- what is refused */

static void expect_empty(const struct cache_aware_output *output)
{
    ck_assert_ptr_null(output->logits.data);
    ck_assert_ptr_null(output->past_key_values.layers);
    ck_assert_ptr_null(output->cache_lengths);
    ck_assert_ptr_null(output->cache_start_positions);
}

/* Refused with this status and name, by a model that was never run. */
static void expect_prefill_refused(const struct prompt *prompt,
                                   const struct cache_aware_input *input,
                                   int chunk_size, const char *name)
{
    struct spy spy;
    const struct causal_lm lm = spy_on(&spy, &prompt->lm);
    struct cache_aware_output output = {0};
    const long live = allocator_live();
    const enum status status = chunked_prefill(&lm, input, chunk_size,
                                               &output, &error);
    const long left = allocator_live() - live;
    ck_assert_msg(status == STATUS_INVALID, "%s: status %d", name, status);
    expect_named(&error, name);
    expect_empty(&output);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(spy.calls, 0);
}

START_TEST(a_chunk_size_below_one_is_refused)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    const int sizes[] = {0, -1, -7, INT_MIN};
    for (int k = 0; k < 4; k++)
        expect_prefill_refused(&prompt, &input, sizes[k], "chunk_size");
    prompt_close(&prompt);
}
END_TEST

START_TEST(missing_arguments_and_a_full_output_are_refused)
{
    struct prompt prompt = new_prompt();
    struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output output = {0};
    ck_assert_int_eq(chunked_prefill(NULL, &input, 2, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "lm");
    ck_assert_int_eq(chunked_prefill(&prompt.lm, NULL, 2, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "input");
    ck_assert_int_eq(chunked_prefill(&prompt.lm, &input, 2, NULL, NULL),
                     STATUS_INVALID);
    input.ids = NULL;
    expect_prefill_refused(&prompt, &input, 2, "ids");
    input = whole(&prompt, true);
    input.positions = NULL;
    expect_prefill_refused(&prompt, &input, 2, "positions");
    input = whole(&prompt, true);
    output = in_chunks(&prompt.lm, &input, 2);
    const struct cache_aware_output before = output;
    ck_assert_int_eq(chunked_prefill(&prompt.lm, &input, 2, &output, &error),
                     STATUS_INVALID);
    expect_named(&error, "output");
    ck_assert_ptr_eq(output.logits.data, before.logits.data);
    ck_assert_ptr_eq(output.past_key_values.layers,
                     before.past_key_values.layers);
    ck_assert_ptr_eq(output.cache_lengths, before.cache_lengths);
    cache_aware_output_free(&output);
    prompt_close(&prompt);
}
END_TEST

/* In the first chunk, in the middle, and in the last. */
START_TEST(a_bad_token_in_any_chunk_is_refused_before_the_first_call)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    for (int chunk_size = 1; chunk_size <= T; chunk_size++)
        for (int k = 0; k < B * T; k++) {
            char name[64];
            const int32_t id = prompt.ids[k], position = prompt.positions[k];
            snprintf(name, sizeof name, "ids[%d,%d]", k / T, k % T);
            prompt.ids[k] = k % 2 == 0 ? V : -1;
            expect_prefill_refused(&prompt, &input, chunk_size, name);
            prompt.ids[k] = id;
            if (k % T == 0)
                continue;
            snprintf(name, sizeof name, "positions[%d,%d]", k / T, k % T);
            prompt.positions[k] += k % 2 == 0 ? 1 : -1;
            expect_prefill_refused(&prompt, &input, chunk_size, name);
            prompt.positions[k] = position;
        }
    prompt_close(&prompt);
}
END_TEST

START_TEST(sizes_and_books_that_one_call_refuses_are_refused)
{
    struct prompt prompt = new_prompt();
    struct cache_aware_input input = whole(&prompt, true);
    input.batch = 0;
    expect_prefill_refused(&prompt, &input, 2, "batch");
    input.batch = B - 1;
    expect_prefill_refused(&prompt, &input, 2, "batch");
    input = whole(&prompt, true);
    input.tokens = 0;
    expect_prefill_refused(&prompt, &input, 2, "tokens");
    input.tokens = N + 1;
    expect_prefill_refused(&prompt, &input, 2, "tokens");
    input = whole(&prompt, true);
    input.cache_lengths = NULL;
    expect_prefill_refused(&prompt, &input, 2, "cache_lengths");
    input = whole(&prompt, true);
    input.cache_start_positions = NULL;
    expect_prefill_refused(&prompt, &input, 2, "cache_start_positions");
    input = whole(&prompt, true);
    input.past = NULL;
    expect_prefill_refused(&prompt, &input, 2, "cache_lengths");
    input = whole(&prompt, true);
    for (int b = 0; b < B; b++) {
        char name[64];
        snprintf(name, sizeof name, "cache_start_positions[%d]", b);
        prompt.starts[b]++;
        expect_prefill_refused(&prompt, &input, 2, name);
        prompt.starts[b]--;
        snprintf(name, sizeof name, "cache_lengths[%d]", b);
        const int32_t length = prompt.lengths[b];
        prompt.lengths[b] = S + 1;
        if (prompt.positions[b * T] >= S + 1)
            expect_prefill_refused(&prompt, &input, 2, name);
        prompt.lengths[b] = -1;
        expect_prefill_refused(&prompt, &input, 2, name);
        prompt.lengths[b] = length;
    }
    prompt_close(&prompt);
}
END_TEST

START_TEST(each_failed_allocation_leaves_nothing_behind)
{
    struct prompt prompt = new_prompt();
    for (int past = 0; past < 2; past++) {
        const struct cache_aware_input input = whole(&prompt, past);
        long reached = 0;
        for (long n = 1; ; n++) {
            struct cache_aware_output output = {0};
            const long live = allocator_live();
            allocator_fail_at(n);
            enum status status = chunked_prefill(&prompt.lm, &input, 3,
                                                 &output, &error);
            const bool failed = allocator_stop();
            const long left = allocator_live() - live;
            reached = n;
            if (!failed) {
                expect_ok(status, &error);
                cache_aware_output_free(&output);
                break;
            }
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
            ck_assert_int_eq(left, 0);
            expect_empty(&output);
        }
        ck_assert_int_gt(reached, 20);
    }
    prompt_close(&prompt);
}
END_TEST

/* ------------------------------------------------------------------- the request */

enum { ROOM = S + T };

/* The prompt's past in the storage of a request. */
static struct request *request_with(const struct prompt *prompt,
                                    const struct causal_lm *lm, bool past,
                                    int capacity, int max_tokens)
{
    struct request *request = NULL;
    expect_ok(request_new(&request, lm, B, capacity, max_tokens, &error),
              &error);
    if (past)
        expect_ok(kv_cache_load(request_cache(request), &prompt->past,
                                prompt->lengths, prompt->starts, &error),
                  &error);
    return request;
}

/* What a request holds, as chapter 9 hands it out. */
struct held {
    struct past_key_values past;
    int32_t lengths[B], starts[B];
};

static struct held hold(struct request *request)
{
    struct held held = {0};
    expect_ok(kv_cache_snapshot(request_cache(request), &held.past,
                                held.lengths, held.starts, &error), &error);
    return held;
}

static void expect_held(const char *what, struct request *request,
                        const struct held *held)
{
    struct held now = hold(request);
    expect_same_bits(what, now.lengths, held->lengths, sizeof now.lengths);
    expect_same_bits(what, now.starts, held->starts, sizeof now.starts);
    expect_equal_caches(what, &now.past, &held->past);
    past_key_values_free(&now.past);
}

/* Last rows, cache and books of the request are those of the one call. */
static void expect_prefilled(const char *what, struct request *request,
                             const float *logits,
                             const struct cache_aware_output *one)
{
    for (int b = 0; b < B; b++)
        expect_same_bits(what, logits + b * V,
                         one->logits.data + ((b + 1) * T - 1) * V,
                         V * sizeof (float));
    struct held held = hold(request);
    expect_same_bits(what, held.lengths, one->cache_lengths,
                     sizeof held.lengths);
    expect_same_bits(what, held.starts, one->cache_start_positions,
                     sizeof held.starts);
    expect_equal_caches(what, &held.past, &one->past_key_values);
    past_key_values_free(&held.past);
}

START_TEST(a_request_takes_a_prompt_in_any_chunks)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
        char what[64];
        struct spy spy;
        const float *logits = NULL;
        const struct causal_lm lm = spy_on(&spy, &prompt.lm);
        struct request *request = request_with(&prompt, &lm, true, ROOM,
                                               chunk_size);
        snprintf(what, sizeof what, "C %d", chunk_size);
        expect_ok(request_prefill(request, prompt.ids, T, chunk_size,
                                  &logits, &error), &error);
        expect_prefilled(what, request, logits, &one);
        ck_assert_int_eq(spy.calls, (T + chunk_size - 1) / chunk_size);
        for (int k = 0; k < spy.calls; k++)
            ck_assert_int_eq(spy.tokens[k], k + 1 < spy.calls ? chunk_size
                             : T - k * chunk_size);
        request_free(&request);
    }
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

/* The head is not run for tokens whose logits nobody asks for. */
START_TEST(a_request_asks_each_call_for_its_last_logits_alone)
{
    struct prompt prompt = new_prompt();
    struct spy spy;
    const float *logits = NULL;
    const struct causal_lm lm = spy_on(&spy, &prompt.lm);
    struct request *request = request_with(&prompt, &lm, true, ROOM, T);
    expect_ok(request_prefill(request, prompt.ids, T, 3, &logits, &error),
              &error);
    for (int k = 0; k < spy.calls; k++)
        ck_assert(spy.last_only[k]);
    request_free(&request);
    prompt_close(&prompt);
}
END_TEST

/* From nothing: the rows are texts from their beginning. */
START_TEST(an_empty_request_takes_a_prompt_from_position_zero)
{
    struct prompt prompt = new_prompt();
    for (int b = 0; b < B; b++)
        prompt.lengths[b] = prompt.starts[b] = 0;
    put_positions(&prompt);
    const struct cache_aware_input input = whole(&prompt, false);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    struct request *request = request_with(&prompt, &prompt.lm, false, T, 4);
    for (int again = 0; again < 3; again++) {
        const float *logits = NULL;
        expect_ok(request_prefill(request, prompt.ids, T, 4 - again, &logits,
                                  &error), &error);
        expect_prefilled("an empty request", request, logits, &one);
        kv_cache_reset(request_cache(request));
    }
    request_free(&request);
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

START_TEST(a_prompt_and_the_tokens_after_it_allocate_nothing)
{
    struct prompt prompt = new_prompt();
    struct request *request = request_with(&prompt, &prompt.lm, true,
                                           ROOM + 4, 3);
    for (int again = 0; again < 2; again++) {
        const float *logits = NULL;
        enum status status = STATUS_OK;
        const long calls = allocator_calls();
        for (int chunk_size = 1; chunk_size <= 3; chunk_size++) {
            status = kv_cache_load(request_cache(request), &prompt.past,
                                   prompt.lengths, prompt.starts, &error);
            if (status == STATUS_OK)
                status = request_prefill(request, prompt.ids, T, chunk_size,
                                         &logits, &error);
            for (int step = 0; step < 3 && status == STATUS_OK; step++)
                status = request_feed(request, prompt.ids, 1, true, &logits,
                                      &error);
        }
        const long allocated = allocator_calls() - calls;
        expect_ok(status, &error);
        ck_assert_int_eq(allocated, 0);
    }
    request_free(&request);
    prompt_close(&prompt);
}
END_TEST

START_TEST(a_chunk_size_above_the_calls_will_do_when_the_prompt_fits)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    const int sizes[] = {T, T + 1, 100, INT_MAX};
    for (int k = 0; k < 4; k++) {
        const float *logits = NULL;
        struct request *request = request_with(&prompt, &prompt.lm, true,
                                               ROOM, T);
        expect_ok(request_prefill(request, prompt.ids, T, sizes[k], &logits,
                                  &error), &error);
        expect_prefilled("no chunks", request, logits, &one);
        request_free(&request);
    }
    cache_aware_output_free(&one);
    prompt_close(&prompt);
}
END_TEST

/* Refused with this name; the request and the pointer are as they were. */
static void expect_request_refused(struct request *request,
                                   const int32_t *ids, int tokens,
                                   int chunk_size, const char *name)
{
    const float mark = 0, *logits = &mark;
    struct held before = hold(request);
    const enum status status = request_prefill(request, ids, tokens,
                                               chunk_size, &logits, &error);
    ck_assert_msg(status == STATUS_INVALID, "%s: status %d", name, status);
    expect_named(&error, name);
    ck_assert_ptr_eq(logits, &mark);
    expect_held(name, request, &before);
    past_key_values_free(&before.past);
}

START_TEST(a_request_refuses_a_prompt_whole)
{
    struct prompt prompt = new_prompt();
    struct request *request = request_with(&prompt, &prompt.lm, true, ROOM,
                                           3);
    for (int chunk_size = 1; chunk_size <= 3; chunk_size++)
        for (int k = 0; k < B * T; k++) {
            char name[64];
            const int32_t id = prompt.ids[k];
            snprintf(name, sizeof name, "ids[%d,%d]", k / T, k % T);
            prompt.ids[k] = k % 2 == 0 ? V : -1;
            expect_request_refused(request, prompt.ids, T, chunk_size, name);
            prompt.ids[k] = id;
        }
    expect_request_refused(request, prompt.ids, T, 0, "chunk_size");
    expect_request_refused(request, prompt.ids, T, -1, "chunk_size");
    expect_request_refused(request, prompt.ids, T, INT_MIN, "chunk_size");
    expect_request_refused(request, prompt.ids, T, 4, "chunk_size");
    expect_request_refused(request, prompt.ids, T, INT_MAX, "chunk_size");
    expect_request_refused(request, prompt.ids, 0, 2, "tokens");
    expect_request_refused(request, prompt.ids, -1, 2, "tokens");
    expect_request_refused(request, prompt.ids, INT_MAX, 2, "tokens");
    expect_request_refused(request, NULL, T, 2, "ids");
    ck_assert_int_eq(request_prefill(request, prompt.ids, T, 2, NULL, &error),
                     STATUS_INVALID);
    expect_named(&error, "logits");
    const float *logits = NULL;
    ck_assert_int_eq(request_prefill(NULL, prompt.ids, T, 2, &logits, NULL),
                     STATUS_INVALID);
    request_free(&request);
    prompt_close(&prompt);
}
END_TEST

/* The longest row has 5 tokens; 12 slots hold the prompt, 11 do not. */
START_TEST(a_prompt_may_fill_the_request_and_not_outgrow_it)
{
    struct prompt prompt = new_prompt();
    const struct cache_aware_input input = whole(&prompt, true);
    struct cache_aware_output one = in_one_call(&prompt, &input);
    const float *logits = NULL;
    struct request *request = request_with(&prompt, &prompt.lm, true, 12, 3);
    expect_ok(request_prefill(request, prompt.ids, T, 3, &logits, &error),
              &error);
    expect_prefilled("a full request", request, logits, &one);
    expect_request_refused(request, prompt.ids, 1, 1, "tokens");
    request_free(&request);
    request = request_with(&prompt, &prompt.lm, true, 11, 3);
    expect_request_refused(request, prompt.ids, T, 3, "tokens");
    request_free(&request);
    cache_aware_output_free(&one);
    prompt.starts[2] = N - 5 - T + 1;    /* one position short */
    request = request_with(&prompt, &prompt.lm, true, 12, 3);
    expect_request_refused(request, prompt.ids, T, 3, "tokens");
    request_free(&request);
    prompt_close(&prompt);
}
END_TEST


/* ------------------------------------------------- behind a prefix of another */

enum { START = 3, SHARED = 5, BLOCK = 2, MATCH = 4, LONG = T + 3 };

/* Row 0's prompt has been computed and stored; another text shares its first
   five tokens, of which blocks of two leave four. */
struct reuse {
    struct prompt prompt;
    struct prefix_cache *cache;
    struct prefix_key key;
    struct prefix_match match;
    int32_t ids[LONG], positions[LONG];
    struct cache_aware_output cold;          /* of all LONG tokens */
};

static struct cache_aware_input text_of(const struct reuse *reuse, int from,
                                        int to)
{
    return (struct cache_aware_input){
        .ids = reuse->ids + from, .positions = reuse->positions + from,
        .batch = 1, .tokens = to - from, .use_cache = true
    };
}

static void store_stranger(struct reuse *reuse)
{
    int32_t positions[T];
    for (int t = 0; t < T; t++)
        positions[t] = START + t;
    const struct cache_aware_input input = {
        .ids = reuse->prompt.ids, .positions = positions, .batch = 1,
        .tokens = T, .use_cache = true
    };
    struct cache_aware_output output = in_one_call(&reuse->prompt, &input);
    struct prefix_key key = reuse->key;
    key.ids = reuse->prompt.ids;
    key.tokens = T;
    expect_ok(prefix_cache_store(reuse->cache, &key, &output.past_key_values,
                                 &error), &error);
    cache_aware_output_free(&output);
}

static void reuse_open(struct reuse *reuse, bool blocks)
{
    *reuse = (struct reuse){
        .prompt = new_prompt(),
        .key = {.namespace = {"suite 11", ""}, .start = START}
    };
    const struct prefix_cache_options options = {
        .shape = reuse->prompt.lm.cache, .block_size = BLOCK, .capacity = 8
    };
    expect_ok((blocks ? prefix_blocks_new : prefix_snapshots_new)(
                  &reuse->cache, &options, &error), &error);
    store_stranger(reuse);
    for (int t = 0; t < LONG; t++) {
        reuse->positions[t] = START + t;
        reuse->ids[t] = t < SHARED ? reuse->prompt.ids[t]
            : (reuse->prompt.ids[t % T] + 1) % V;
    }
    reuse->key.ids = reuse->ids;
    reuse->key.tokens = T - 1;               /* one is left to run */
    expect_ok(prefix_cache_lookup(reuse->cache, &reuse->key, &reuse->match,
                                  &error), &error);
    ck_assert_int_eq(reuse->match.cache_length, MATCH);
    ck_assert_int_eq(reuse->match.cache_start_position, START);
    const struct cache_aware_input whole_text = text_of(reuse, 0, LONG);
    reuse->cold = in_one_call(&reuse->prompt, &whole_text);
}

static void reuse_close(struct reuse *reuse)
{
    cache_aware_output_free(&reuse->cold);
    prefix_match_free(&reuse->match);
    prefix_cache_free(&reuse->cache);
    prompt_close(&reuse->prompt);
}

/* Rows from … of the cold run. */
static void expect_cold_logits(const struct reuse *reuse, const float *logits,
                               int from, int count)
{
    expect_same_bits("logits", logits, reuse->cold.logits.data + from * V,
                     (size_t)(count * V) * sizeof (float));
}

START_TEST(chunks_go_on_behind_a_prefix_match)
{
    for (int blocks = 0; blocks < 2; blocks++) {
        struct reuse reuse;
        reuse_open(&reuse, blocks);
        for (int chunk_size = 1; chunk_size <= LONG - MATCH + 1;
             chunk_size++) {
            struct cache_aware_input rest = text_of(&reuse, MATCH, LONG);
            rest.past = &reuse.match.past;
            rest.cache_lengths = &reuse.match.cache_length;
            rest.cache_start_positions = &reuse.match.cache_start_position;
            struct cache_aware_output output =
                in_chunks(&reuse.prompt.lm, &rest, chunk_size);
            expect_cold_logits(&reuse, output.logits.data, MATCH,
                               LONG - MATCH);
            expect_equal_caches("behind a match", &output.past_key_values,
                                &reuse.cold.past_key_values);
            cache_aware_output_free(&output);
        }
        reuse_close(&reuse);
    }
}
END_TEST

/* What the request holds is the cold run's first `tokens` tokens. */
static void expect_cold_cache(const struct reuse *reuse,
                              const struct kv_cache *cache, int tokens)
{
    struct past_key_values now = {0}, prefix = {0};
    int32_t length, start;
    expect_ok(kv_cache_snapshot(cache, &now, &length, &start, &error),
              &error);
    expect_ok(past_key_values_prefix(&reuse->cold.past_key_values, tokens,
                                     &prefix, &error), &error);
    ck_assert_int_eq(length, tokens);
    ck_assert_int_eq(start, START);
    expect_equal_caches("the request's cache", &now, &prefix);
    past_key_values_free(&now);
    past_key_values_free(&prefix);
}

/* Prefix cache, request, chunks, then token by token. */
START_TEST(a_request_goes_on_from_a_prefix_match_in_chunks_and_tokens)
{
    for (int blocks = 0; blocks < 2; blocks++) {
        struct reuse reuse;
        struct request *request = NULL;
        reuse_open(&reuse, blocks);
        expect_ok(request_new(&request, &reuse.prompt.lm, 1, LONG, 2,
                              &error), &error);
        for (int chunk_size = 1; chunk_size <= 2; chunk_size++) {
            const float *logits = NULL;
            expect_ok(kv_cache_load(request_cache(request), &reuse.match.past,
                                    &reuse.match.cache_length,
                                    &reuse.match.cache_start_position,
                                    &error), &error);
            expect_ok(request_prefill(request, reuse.ids + MATCH, T - MATCH,
                                      chunk_size, &logits, &error), &error);
            expect_cold_logits(&reuse, logits, T - 1, 1);
            expect_cold_cache(&reuse, request_cache(request), T);
            for (int t = T; t < LONG; t++) {
                expect_ok(request_feed(request, reuse.ids + t, 1, true,
                                       &logits, &error), &error);
                expect_cold_logits(&reuse, logits, t, 1);
            }
            expect_cold_cache(&reuse, request_cache(request), LONG);
        }
        request_free(&request);
        reuse_close(&reuse);
    }
}
END_TEST

/* recent [1,H,count,D] = slots from … of past [1,H,LONG,D]. */
static struct past_key_values slots_of(const struct causal_lm *lm,
                                       const struct past_key_values *past,
                                       int from, int count)
{
    struct past_key_values recent = {0};
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    const int dim = lm->cache.head_dim;
    expect_ok(past_key_values_new(&recent, &shape, 1, count, &error), &error);
    for (int l = 0; l < past->n_layers; l++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < lm->cache.n_kv_heads; h++) {
                const struct layer_kv *in = &past->layers[l];
                const struct tensor *source = part ? &in->value : &in->key;
                const struct layer_kv *out = &recent.layers[l];
                memcpy((part ? out->value : out->key).data + h * count * dim,
                       source->data + (h * source->shape[2] + from) * dim,
                       (size_t)(count * dim) * sizeof (float));
            }
    return recent;
}

/* The way of the lab: the functional form over the request's views, and its
   suffix appended at explicit positions; then the whole is stored again. */
START_TEST(a_suffix_in_chunks_is_appended_to_the_cache_that_it_read)
{
    for (int blocks = 0; blocks < 2; blocks++) {
        struct reuse reuse;
        struct kv_cache *cache = NULL;
        reuse_open(&reuse, blocks);
        expect_ok(kv_cache_from_past(&cache, &reuse.match.past,
                                     &reuse.match.cache_length,
                                     &reuse.match.cache_start_position, LONG,
                                     &error), &error);
        const struct kv_inputs inputs = kv_cache_inputs(cache);
        struct cache_aware_input rest = text_of(&reuse, MATCH, LONG);
        rest.past = inputs.past;
        rest.cache_lengths = inputs.lengths;
        rest.cache_start_positions = inputs.starts;
        struct cache_aware_output output = in_chunks(&reuse.prompt.lm, &rest,
                                                     2);
        expect_cold_cache(&reuse, cache, MATCH);
        struct past_key_values recent = slots_of(
            &reuse.prompt.lm, &output.past_key_values, MATCH, LONG - MATCH);
        expect_ok(kv_cache_append(cache, &recent, reuse.positions + MATCH,
                                  &error), &error);
        expect_cold_cache(&reuse, cache, LONG);
        struct prefix_match again = {0};
        reuse.key.tokens = LONG;
        expect_ok(prefix_cache_store(reuse.cache, &reuse.key,
                                     &output.past_key_values, &error),
                  &error);
        expect_ok(prefix_cache_lookup(reuse.cache, &reuse.key, &again,
                                      &error), &error);
        ck_assert_int_eq(again.cache_length, LONG / BLOCK * BLOCK);
        prefix_match_free(&again);
        past_key_values_free(&recent);
        cache_aware_output_free(&output);
        kv_cache_free(&cache);
        reuse_close(&reuse);
    }
}
END_TEST

/* ------------------------------------------------------------------ the scheduler */

enum { JOBS_MAX = 40 };

static struct job job(double arrival, int prompt, int wanted, int fed)
{
    return (struct job){arrival, prompt, wanted, fed};
}

static int share_of(const struct share *shares, int count, int j)
{
    int tokens = 0;
    for (int k = 0; k < count; k++)
        tokens += shares[k].job == j ? shares[k].tokens : 0;
    return tokens;
}

static int sum_of(const struct share *shares, int count)
{
    int tokens = 0;
    for (int k = 0; k < count; k++)
        tokens += shares[k].tokens;
    return tokens;
}

START_TEST(one_counter_tells_the_phase_of_a_job)
{
    const struct { int fed, emitted; bool decodes, finished; } rows[] = {
        {0, 0, false, false}, {1, 0, false, false}, {2, 0, false, false},
        {3, 1, true, false}, {4, 2, true, false}, {5, 3, true, false},
        {6, 4, false, true},
    };
    for (int k = 0; k < 7; k++) {
        const struct job one = job(0, 3, 4, rows[k].fed);
        ck_assert_int_eq(job_emitted(&one), rows[k].emitted);
        ck_assert_int_eq(job_decodes(&one), rows[k].decodes);
        ck_assert_int_eq(job_finished(&one), rows[k].finished);
    }
    const struct job single = job(0, 3, 1, 3);
    ck_assert(job_finished(&single) && !job_decodes(&single));
}
END_TEST

/* Three decode, a prompt of ten waits, and the step has four tokens. */
static int mixed_step(struct share *shares)
{
    const struct job jobs[] = {
        job(0, 3, 9, 5), job(0, 10, 2, 0), job(0, 1, 9, 1), job(0, 2, 9, 9)
    };
    const struct schedule_limits limits = {4, 4};
    return schedule_step(&limits, jobs, 4, shares);
}

START_TEST(who_decodes_gets_a_token_before_any_prompt)
{
    struct share shares[4];
    const int count = mixed_step(shares);
    ck_assert_int_le(count, 4);
    ck_assert_int_eq(share_of(shares, count, 0), 1);
    ck_assert_int_eq(share_of(shares, count, 2), 1);
    ck_assert_int_eq(share_of(shares, count, 3), 1);
}
END_TEST

START_TEST(a_token_of_who_decodes_is_a_token_of_the_budget)
{
    struct share shares[4];
    const int count = mixed_step(shares);
    ck_assert_int_eq(sum_of(shares, count), 4);
    ck_assert_int_eq(share_of(shares, count, 1), 1);
}
END_TEST

START_TEST(the_first_prompt_gets_what_it_can_use_and_the_next_the_rest)
{
    const struct job jobs[] = {
        job(0, 6, 2, 2), job(1, 9, 2, 0), job(2, 4, 1, 0), job(3, 1, 1, 0)
    };
    struct share shares[4];
    struct schedule_limits limits = {6, 4};
    int count = schedule_step(&limits, jobs, 3, shares);
    ck_assert_int_eq(count, 2);
    ck_assert_int_eq(share_of(shares, count, 0), 4);
    ck_assert_int_eq(share_of(shares, count, 1), 2);
    limits.budget = 100;                    /* the slots are not enough */
    limits.slots = 2;
    count = schedule_step(&limits, jobs, 4, shares);
    ck_assert_int_eq(count, 2);
    ck_assert_int_eq(share_of(shares, count, 1), 9);
    limits.slots = 4;                       /* job 3 has not come yet */
    count = schedule_step(&limits, jobs, 3, shares);
    ck_assert_int_eq(count, 3);
    ck_assert_int_eq(share_of(shares, count, 2), 4);
}
END_TEST

START_TEST(a_step_adds_what_it_has_fed)
{
    struct job jobs[] = {job(0, 9, 3, 2), job(0, 1, 3, 1), job(0, 4, 1, 0)};
    const struct share shares[] = {{1, 1}, {0, 4}, {2, 4}};
    schedule_enter(jobs, shares, 3);
    ck_assert_int_eq(jobs[0].fed, 6);
    ck_assert_int_eq(jobs[1].fed, 2);
    ck_assert_int_eq(jobs[2].fed, 4);
}
END_TEST

/* The table of the chapter. */
static const struct job hand_made[] = {
    {0, 2, 4, 0}, {0, 7, 2, 0}, {0, 1, 1, 0}
};

START_TEST(a_schedule_by_hand_is_the_schedule)
{
    const struct schedule_limits limits = {4, 2};
    const int steps[5][3] = {
        {2, 2, 0}, {1, 3, 0}, {1, 2, 0}, {1, 1, 0}, {0, 0, 1}
    };
    struct job jobs[3];
    struct share shares[2];
    memcpy(jobs, hand_made, sizeof jobs);
    for (int step = 0; step < 5; step++) {
        const int count = schedule_step(&limits, jobs, 3, shares);
        for (int j = 0; j < 3; j++)
            ck_assert_msg(share_of(shares, count, j) == steps[step][j],
                          "step %d, job %d: %d tokens, expected %d", step + 1,
                          j, share_of(shares, count, j), steps[step][j]);
        schedule_enter(jobs, shares, count);
    }
    ck_assert_int_eq(schedule_step(&limits, jobs, 3, shares), 0);
}
END_TEST

/* A trace of jobs that come at any time, in any size. */
struct trace {
    struct schedule_limits limits;
    struct job jobs[JOBS_MAX];
    int count;
};

static struct trace random_trace(uint64_t *state)
{
    struct trace trace = {.count = 1 + noise_below(state, JOBS_MAX)};
    trace.limits.slots = 1 + noise_below(state, 9);
    trace.limits.budget = trace.limits.slots + noise_below(state, 20);
    double now = 0;
    for (int j = 0; j < trace.count; j++) {
        now += noise_below(state, 3) == 0 ? noise_below(state, 30) : 0;
        trace.jobs[j] = job(now, 1 + noise_below(state, 40),
                            1 + noise_below(state, 12), 0);
    }
    return trace;
}

static bool half_done(const struct job *one)
{
    return one->fed > 0 && one->fed < one->prompt;
}

/* One step of the trace against each promise. Returns its shares. */
static int expect_promises(const struct trace *trace, int arrived,
                           struct share *shares)
{
    const struct job *jobs = trace->jobs;
    const int count = schedule_step(&trace->limits, jobs, arrived, shares);
    bool given[JOBS_MAX] = {false};
    int halves = 0, under_way = 0, first = -1;
    ck_assert_int_le(count, trace->limits.slots);
    ck_assert_int_le(sum_of(shares, count), trace->limits.budget);
    for (int k = 0; k < count; k++) {
        ck_assert_int_ge(shares[k].job, 0);
        ck_assert_int_lt(shares[k].job, arrived);
        ck_assert_int_ge(shares[k].tokens, 1);
        ck_assert(!given[shares[k].job]);
        given[shares[k].job] = true;
    }
    for (int j = 0; j < arrived; j++) {
        const int tokens = share_of(shares, count, j);
        const bool waits = jobs[j].fed < jobs[j].prompt;
        const int after = jobs[j].fed + tokens;
        if (job_decodes(&jobs[j]))
            ck_assert_int_eq(tokens, 1);             /* never left out */
        if (job_finished(&jobs[j]))
            ck_assert_int_eq(tokens, 0);
        if (waits) {
            ck_assert_int_le(after, jobs[j].prompt);
            halves += after > 0 && after < jobs[j].prompt;
            if (first < 0)
                first = j;
            else if (tokens > 0)    /* all before it have all their tokens */
                for (int i = 0; i < j; i++)
                    ck_assert(jobs[i].fed + share_of(shares, count, i)
                              >= jobs[i].prompt);
        }
        under_way += after > 0 && !job_finished(&jobs[j]);
    }
    ck_assert_int_le(halves, 1);
    ck_assert_int_le(under_way, trace->limits.slots);
    if (first >= 0 && half_done(&jobs[first]))
        ck_assert_int_ge(share_of(shares, count, first), 1);
    return count;
}

/* All steps of a trace, one unit of time each. */
static void run_trace(struct trace *trace)
{
    struct share shares[JOBS_MAX];
    int fed[JOBS_MAX] = {0}, emitted[JOBS_MAX] = {0};
    double now = 0;
    for (int arrived = 0, idle = 0; idle == 0 || arrived < trace->count;
         now++) {
        while (arrived < trace->count && trace->jobs[arrived].arrival <= now)
            arrived++;
        const int count = expect_promises(trace, arrived, shares);
        for (int k = 0; k < count; k++) {
            const int j = shares[k].job;
            fed[j] += shares[k].tokens;
            emitted[j] -= job_emitted(&trace->jobs[j]);
        }
        schedule_enter(trace->jobs, shares, count);
        for (int k = 0; k < count; k++) {
            const int j = shares[k].job;
            emitted[j] += job_emitted(&trace->jobs[j]);
            ck_assert_int_eq(fed[j], trace->jobs[j].fed);
        }
        idle = count == 0;
        ck_assert_double_lt(now, 1e5);
    }
    for (int j = 0; j < trace->count; j++) {
        ck_assert_int_eq(fed[j], trace->jobs[j].prompt
                                 + trace->jobs[j].wanted - 1);
        ck_assert_int_eq(emitted[j], trace->jobs[j].wanted);
        ck_assert(job_finished(&trace->jobs[j]));
    }
}

START_TEST(every_step_of_random_traces_keeps_the_promises)
{
    uint64_t state = noise_start(113);
    for (int again = 0; again < 300; again++) {
        struct trace trace = random_trace(&state);
        expect_ok(schedule_check(&trace.limits, trace.jobs, trace.count,
                                 &error), &error);
        run_trace(&trace);
    }
}
END_TEST

/* Prompts end in the order in which they came. */
START_TEST(first_tokens_come_in_the_order_of_arrival)
{
    uint64_t state = noise_start(114);
    for (int again = 0; again < 100; again++) {
        struct trace trace = random_trace(&state);
        struct timing timings[JOBS_MAX];
        const struct simulation simulation = {
            .limits = trace.limits, .cost = {1, 0.5, 0.01},
            .jobs = trace.jobs, .count = trace.count
        };
        expect_ok(simulate(&simulation, timings, &error), &error);
        for (int j = 1; j < trace.count; j++)
            ck_assert_double_ge(timings[j].first, timings[j - 1].first);
    }
}
END_TEST

static void expect_schedule_refused(struct schedule_limits limits,
                                    const struct job *jobs, int count,
                                    const char *name)
{
    ck_assert_int_eq(schedule_check(&limits, jobs, count, &error),
                     STATUS_INVALID);
    expect_named(&error, name);
}

START_TEST(limits_and_jobs_out_of_bounds_are_refused)
{
    const struct schedule_limits limits = {4, 2};
    struct job jobs[3];
    memcpy(jobs, hand_made, sizeof jobs);
    expect_ok(schedule_check(&limits, jobs, 3, &error), &error);
    expect_schedule_refused((struct schedule_limits){0, 1}, jobs, 3, "budget");
    expect_schedule_refused((struct schedule_limits){-4, -4}, jobs, 3,
                            "budget");
    expect_schedule_refused((struct schedule_limits){4, 0}, jobs, 3, "slots");
    expect_schedule_refused((struct schedule_limits){4, 5}, jobs, 3, "slots");
    expect_schedule_refused(limits, jobs, 0, "count");
    expect_schedule_refused(limits, NULL, 3, "jobs");
    ck_assert_int_eq(schedule_check(NULL, jobs, 3, &error), STATUS_INVALID);
    expect_named(&error, "limits");
    const struct { struct job job; const char *name; } bad[] = {
        {{-1, 1, 1, 0}, "arrival"}, {{1, 1, 1, 0}, "arrival"},
        {{NAN, 1, 1, 0}, "arrival"}, {{INFINITY, 1, 1, 0}, "arrival"},
        {{2, 0, 1, 0}, "prompt"}, {{2, -1, 1, 0}, "prompt"},
        {{2, 1, 0, 0}, "wanted"}, {{2, 2, INT_MAX - 1, 0}, "wanted"},
        {{2, 3, 4, -1}, "fed"}, {{2, 3, 4, 7}, "fed"},
    };
    jobs[0].arrival = jobs[1].arrival = 2;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        jobs[2] = bad[k].job;
        expect_schedule_refused(limits, jobs, 3, bad[k].name);
        expect_named(&error, "jobs[2]");
    }
    jobs[2] = job(2, 1, INT_MAX - 1, INT_MAX - 1);
    expect_ok(schedule_check(&limits, jobs, 3, &error), &error);
}
END_TEST

/* --------------------------------------------------------------------- the clock */

static void expect_timing(const struct timing *timing, double first,
                          double last, double gap)
{
    ck_assert_double_eq(timing->first, first);
    ck_assert_double_eq(timing->last, last);
    ck_assert_double_eq(timing->gap, gap);
}

/* Steps of 4, 4, 3, 2 and 1 tokens, 10 and 1 each: ends 14, 28, 41, 53, 64. */
START_TEST(a_schedule_by_hand_has_the_times_by_hand)
{
    struct timing timings[3];
    const struct simulation simulation = {
        .limits = {4, 2}, .cost = {10, 1, 0}, .jobs = hand_made, .count = 3
    };
    expect_ok(simulate(&simulation, timings, &error), &error);
    expect_timing(&timings[0], 14, 53, 14);
    expect_timing(&timings[1], 41, 53, 12);
    expect_timing(&timings[2], 64, 64, 0);
}
END_TEST

/* A prompt of 5 in chunks of 2: 1+2, 3+4, 5 keys, then 6, then 7. */
START_TEST(a_token_pays_for_each_key_that_it_sees)
{
    struct timing timing;
    const struct job one = job(3, 5, 3, 0);
    const struct simulation simulation = {
        .limits = {2, 1}, .cost = {0, 0, 1}, .jobs = &one, .count = 1
    };
    expect_ok(simulate(&simulation, &timing, &error), &error);
    expect_timing(&timing, 3 + 15, 3 + 28, 7);
    ck_assert_double_eq(call_keys(0, 1), 1);
    ck_assert_double_eq(call_keys(4, 1), 5);
    ck_assert_double_eq(call_keys(2, 3), 3 + 4 + 5);
    ck_assert_double_eq(call_keys(0, 1 << 20), 0x1p19 * (0x1p20 + 1));
}
END_TEST

/* Nobody is there between 12 and 100, and nobody has come at 0. */
START_TEST(the_clock_jumps_to_the_next_arrival)
{
    struct timing timings[2];
    const struct job jobs[] = {job(10, 2, 1, 0), job(100, 3, 2, 0)};
    const struct simulation simulation = {
        .limits = {8, 8}, .cost = {0, 1, 0}, .jobs = jobs, .count = 2
    };
    expect_ok(simulate(&simulation, timings, &error), &error);
    expect_timing(&timings[0], 12, 12, 0);
    expect_timing(&timings[1], 103, 104, 1);
}
END_TEST

/* Adds up what on_step was shown. */
struct watch {
    int steps;
    double end;
    int fed[JOBS_MAX];
};

static void watch_step(void *context, double begin, double end,
                       const struct job *jobs, const struct share *shares,
                       int count)
{
    struct watch *watch = context;
    ck_assert_double_ge(begin, watch->end);
    ck_assert_double_ge(end, begin);
    watch->end = end;
    watch->steps++;
    for (int k = 0; k < count; k++) {
        ck_assert_int_eq(jobs[shares[k].job].fed, watch->fed[shares[k].job]);
        watch->fed[shares[k].job] += shares[k].tokens;
    }
}

START_TEST(every_token_of_a_simulation_is_fed_once)
{
    uint64_t state = noise_start(115);
    for (int again = 0; again < 50; again++) {
        struct trace trace = random_trace(&state);
        struct timing timings[JOBS_MAX], plain[JOBS_MAX];
        struct watch watch = {0};
        struct simulation simulation = {
            .limits = trace.limits, .cost = {1, 0.25, 0.01},
            .jobs = trace.jobs, .count = trace.count
        };
        expect_ok(simulate(&simulation, plain, &error), &error);
        simulation.on_step = watch_step;
        simulation.context = &watch;
        expect_ok(simulate(&simulation, timings, &error), &error);
        expect_same_bits("timings", timings, plain,
                         (size_t)trace.count * sizeof *timings);
        double end = 0;
        for (int j = 0; j < trace.count; j++) {
            const struct job *one = &trace.jobs[j];
            ck_assert_int_eq(one->fed, 0);           /* the caller's */
            ck_assert_int_eq(watch.fed[j], one->prompt + one->wanted - 1);
            ck_assert_double_gt(timings[j].first, one->arrival);
            ck_assert_double_ge(timings[j].last, timings[j].first);
            ck_assert_double_le(timings[j].gap,
                                timings[j].last - timings[j].first);
            end = fmax(end, timings[j].last);
        }
        ck_assert_double_eq(end, watch.end);
    }
}
END_TEST

START_TEST(a_simulation_refuses_what_it_cannot_run)
{
    struct timing timings[3] = {{1, 2, 3}}, before[3];
    struct job jobs[3];
    memcpy(jobs, hand_made, sizeof jobs);
    memcpy(before, timings, sizeof before);
    const struct simulation good = {
        .limits = {4, 2}, .cost = {1, 1, 1}, .jobs = jobs, .count = 3
    };
    const double bad[] = {-1, NAN, INFINITY};
    const char *const names[] = {"cost.call", "cost.token", "cost.pair"};
    for (int part = 0; part < 3; part++)
        for (int k = 0; k < 3; k++) {
            struct simulation simulation = good;
            *(part == 0 ? &simulation.cost.call
              : part == 1 ? &simulation.cost.token
              : &simulation.cost.pair) = bad[k];
            ck_assert_int_eq(simulate(&simulation, timings, &error),
                             STATUS_INVALID);
            expect_named(&error, names[part]);
        }
    struct simulation simulation = good;
    simulation.limits.budget = 1;
    ck_assert_int_eq(simulate(&simulation, timings, &error), STATUS_INVALID);
    expect_named(&error, "slots");
    jobs[1].fed = 1;
    ck_assert_int_eq(simulate(&good, timings, &error), STATUS_INVALID);
    expect_named(&error, "jobs[1].fed");
    ck_assert_int_eq(simulate(NULL, timings, &error), STATUS_INVALID);
    expect_named(&error, "simulation");
    ck_assert_int_eq(simulate(&good, NULL, &error), STATUS_INVALID);
    expect_named(&error, "timings");
    expect_same_bits("timings", timings, before, sizeof timings);
}
END_TEST

START_TEST(a_simulation_survives_each_failed_allocation)
{
    const struct simulation simulation = {
        .limits = {4, 2}, .cost = {1, 1, 1}, .jobs = hand_made, .count = 3
    };
    for (long n = 1; ; n++) {
        struct timing timings[3] = {{42, 42, 42}};
        const long live = allocator_live();
        allocator_fail_at(n);
        enum status status = simulate(&simulation, timings, &error);
        const bool failed = allocator_stop();
        const long left = allocator_live() - live;
        ck_assert_int_eq(left, 0);
        if (!failed) {
            expect_ok(status, &error);
            ck_assert_int_eq(n, 4);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        expect_timing(&timings[0], 42, 42, 42);
    }
}
END_TEST

START_TEST(latencies_are_means_and_worsts)
{
    const struct job jobs[] = {job(1, 9, 3, 0), job(2, 9, 1, 0),
                               job(6, 9, 4, 0)};
    const struct timing timings[] = {{4, 10, 5}, {12, 12, 0}, {8, 17, 4}};
    struct latency all = latency_of(jobs, timings, 3);
    ck_assert_double_eq_tol(all.first_mean, (3 + 10 + 2) / 3.0, 1e-12);
    ck_assert_double_eq(all.first_worst, 10);
    ck_assert_double_eq(all.gap_mean, (6 + 0 + 9) / 5.0);
    ck_assert_double_eq(all.gap_worst, 5);
    struct latency single = latency_of(jobs + 1, timings + 1, 1);
    ck_assert_double_eq(single.first_mean, 10);
    ck_assert_double_eq(single.gap_mean, 0);
    ck_assert_double_eq(single.gap_worst, 0);
}
END_TEST

/* With one prompt behind D chats it is read in steps of M - D tokens. */
START_TEST(the_budget_trades_the_first_token_against_the_gaps)
{
    const struct job jobs[] = {
        job(0, 1, 400, 0), job(0, 1, 400, 0), job(50, 96, 1, 0)
    };
    double first = INFINITY, gap = 0;
    for (int budget = 3; budget <= 98; budget++) {
        struct timing timings[3];
        const struct simulation simulation = {
            .limits = {budget, 3}, .cost = {0.5, 0.25, 0}, .jobs = jobs,
            .count = 3
        };
        const int steps = (96 + budget - 3) / (budget - 2);
        expect_ok(simulate(&simulation, timings, &error), &error);
        const struct latency chats = latency_of(jobs, timings, 2);
        const struct latency prompt = latency_of(jobs + 2, timings + 2, 1);
        ck_assert_double_eq(chats.gap_worst, 0.5 + 0.25 * budget);
        ck_assert_double_eq(prompt.first_mean,
                            steps * 1.0 + 96 * 0.25);
        ck_assert_double_le(prompt.first_mean, first);
        ck_assert_double_gt(chats.gap_worst, gap);
        first = prompt.first_mean;
        gap = chats.gap_worst;
    }
}
END_TEST

START_TEST(a_fit_finds_the_constants_of_its_samples)
{
    const struct call_cost known[] = {
        {7, 40, 0.25}, {0, 40, 0.25}, {3000, 1, 0}, {0, 0, 1}
    };
    for (int k = 0; k < 4; k++) {
        struct call_sample samples[12];
        struct call_cost cost = {-1, -1, -1};
        for (int i = 0; i < 12; i++) {
            samples[i] = (struct call_sample){i / 4 * 50, 1 << i % 4 * 2, 0};
            samples[i].time = known[k].call
                + samples[i].tokens * known[k].token
                + call_keys(samples[i].before, samples[i].tokens)
                  * known[k].pair;
        }
        expect_ok(call_cost_fit(samples, 12, &cost, &error), &error);
        ck_assert_double_eq_tol(cost.call, known[k].call, 1e-4);
        ck_assert_double_eq_tol(cost.token, known[k].token, 1e-4);
        ck_assert_double_eq_tol(cost.pair, known[k].pair, 1e-4);
        ck_assert(cost.call >= 0 && cost.token >= 0 && cost.pair >= 0);
    }
}
END_TEST

/* Three calls, each measured a tenth too short and a tenth too long: a pair
   is met best, in relative errors, a little below its middle. */
START_TEST(a_fit_weighs_relative_errors)
{
    const struct call_cost known = {2, 5, 3};
    const double part[] = {0.9, 1.1};
    const double at = (1 / 0.9 + 1 / 1.1) / (1 / 0.81 + 1 / 1.21);
    struct call_sample samples[6] = {{0, 1, 10}, {0, 2, 21}, {9, 1, 37},
                                     {0, 1, 10}, {0, 2, 21}, {9, 1, 37}};
    struct call_cost cost;
    for (int i = 0; i < 6; i++)
        samples[i].time *= part[i / 3];
    expect_ok(call_cost_fit(samples, 6, &cost, &error), &error);
    ck_assert_double_eq_tol(cost.call, at * known.call, 1e-9);
    ck_assert_double_eq_tol(cost.token, at * known.token, 1e-9);
    ck_assert_double_eq_tol(cost.pair, at * known.pair, 1e-9);
}
END_TEST

START_TEST(samples_that_determine_nothing_are_refused)
{
    struct call_cost cost = {1, 2, 3};
    const struct call_sample same[] = {{5, 2, 1}, {5, 2, 1}, {5, 2, 2}};
    const struct call_sample two[] = {{0, 1, 1}, {0, 2, 3}, {0, 1, 1}};
    const struct call_sample bad[] = {{0, 1, 0}, {0, 0, 1}, {-1, 1, 1},
                                      {0, 1, NAN}};
    ck_assert_int_eq(call_cost_fit(same, 3, &cost, &error), STATUS_INVALID);
    ck_assert_int_eq(call_cost_fit(two, 3, &cost, &error), STATUS_INVALID);
    ck_assert_int_eq(call_cost_fit(two, 2, &cost, &error), STATUS_INVALID);
    ck_assert_int_eq(call_cost_fit(NULL, 3, &cost, &error), STATUS_INVALID);
    ck_assert_int_eq(call_cost_fit(two, 3, NULL, &error), STATUS_INVALID);
    for (int k = 0; k < 4; k++) {
        struct call_sample samples[4] = {{0, 1, 1}, {0, 2, 3}, {9, 1, 2}};
        samples[3] = bad[k];
        ck_assert_int_eq(call_cost_fit(samples, 4, &cost, &error),
                         STATUS_INVALID);
        expect_named(&error, "samples[3]");
    }
    ck_assert(cost.call == 1 && cost.token == 2 && cost.pair == 3);
}
END_TEST

/* ------------------------------------------------------------------- the program */

static char directory[64], said[65536];

static void put_on_disk(struct tiny_gpt *model)
{
    snprintf(directory, sizeof directory, "%s/11-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
}

static void take_off_disk(void)
{
    char path[128];
    const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        remove(path);
    }
    rmdir(directory);
}

/* Runs "tinygpt NAME ARGUMENTS", expects the status, returns the output. */
static const char *tinygpt(const char *arguments, int expected)
{
    char line[6000];
    snprintf(line, sizeof line, "'%s' %s", harness_program(), arguments);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
    const int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == expected,
                  "%s: status %d, \"%s\"", arguments, status, said);
    return said;
}

/* Runs generate with these options; to is what it writes. */
static void generate(const struct prompt *prompt, const char *options,
                     int expected, char *to, size_t size)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "generate --model %s %s"
                        " --prompt-ids ", directory, options);
    for (int t = 0; t < T; t++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%d",
                         t == 0 ? "" : ",", prompt->ids[t]);
    snprintf(line + used, sizeof line - (size_t)used, " 2>&1");
    snprintf(to, size, "%s", tinygpt(line, expected));
}

START_TEST(generate_says_the_same_in_any_chunks)
{
    struct prompt prompt = new_prompt();
    const char *const ways[] = {
        "--max-new-tokens 17 --temperature 0",
        "--max-new-tokens 17 --temperature 0 --json",
        "--max-new-tokens 9 --temperature 0.9 --seed 5",
        "--max-new-tokens 9 --temperature 2.5 --seed 6 --json",
        "--max-new-tokens 1", "--max-new-tokens 0 --json",
        "--max-new-tokens 0",
    };
    put_on_disk(prompt.model);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char plain[1024], chunked[1024], options[128];
        generate(&prompt, ways[k], 0, plain, sizeof plain);
        for (int chunk_size = 1; chunk_size <= T + 1; chunk_size++) {
            snprintf(options, sizeof options, "%s --prefill-chunk %d",
                     ways[k], chunk_size);
            generate(&prompt, options, 0, chunked, sizeof chunked);
            ck_assert_str_eq(chunked, plain);
        }
    }
    take_off_disk();
    prompt_close(&prompt);
}
END_TEST

START_TEST(generate_in_chunks_stops_at_eos)
{
    struct prompt prompt = new_prompt();
    char plain[1024], chunked[1024], options[128];
    put_on_disk(prompt.model);
    for (int eos = 0; eos < V; eos++) {
        snprintf(options, sizeof options, "--max-new-tokens 8 --json"
                 " --temperature 1.5 --seed 3 --eos %d", eos);
        generate(&prompt, options, 0, plain, sizeof plain);
        strcat(options, " --prefill-chunk 2");
        generate(&prompt, options, 0, chunked, sizeof chunked);
        ck_assert_str_eq(chunked, plain);
    }
    take_off_disk();
    prompt_close(&prompt);
}
END_TEST

START_TEST(statistics_say_how_the_prompt_was_cut)
{
    struct prompt prompt = new_prompt();
    const struct { int chunk; const char *line; } some[] = {
        {1, "prefill: 7 calls of at most 1 tokens, the last of 1\n"},
        {3, "prefill: 3 calls of at most 3 tokens, the last of 1\n"},
        {4, "prefill: 2 calls of at most 4 tokens, the last of 3\n"},
        {7, "prefill: 1 call of at most 7 tokens, the last of 7\n"},
        {99, "prefill: 1 call of at most 99 tokens, the last of 7\n"},
    };
    put_on_disk(prompt.model);
    for (int k = 0; k < 5; k++) {
        char options[128], text[1024];
        snprintf(options, sizeof options, "--max-new-tokens 2 --stats"
                 " --prefill-chunk %d", some[k].chunk);
        generate(&prompt, options, 0, text, sizeof text);
        ck_assert_msg(strstr(text, some[k].line) != NULL, "%s: \"%s\"",
                      options, text);
        ck_assert_ptr_nonnull(strstr(text, "tokens: 7 of the prompt, 2"));
    }
    char text[1024];
    generate(&prompt, "--max-new-tokens 2 --stats", 0, text, sizeof text);
    ck_assert_ptr_null(strstr(text, "prefill"));
    take_off_disk();
    prompt_close(&prompt);
}
END_TEST

START_TEST(generate_in_chunks_refuses_what_generate_refuses)
{
    struct prompt prompt = new_prompt();
    const char *const bad[] = {
        "--max-new-tokens 18", "--max-new-tokens 1 --eos 13",
        "--max-new-tokens 1 --temperature -1",
    };
    char plain[1024], chunked[1024], options[128];
    put_on_disk(prompt.model);
    for (int k = 0; k < 3; k++) {
        generate(&prompt, bad[k], 1, plain, sizeof plain);
        snprintf(options, sizeof options, "%s --prefill-chunk 2", bad[k]);
        generate(&prompt, options, 1, chunked, sizeof chunked);
        ck_assert_str_eq(chunked, plain);
    }
    prompt.ids[5] = V;
    for (int n = 0; n < 2; n++) {
        snprintf(options, sizeof options, "--max-new-tokens %d"
                 " --prefill-chunk 2", n);
        generate(&prompt, options, 1, chunked, sizeof chunked);
        ck_assert_ptr_nonnull(strstr(chunked, "ids[0,5]"));
        ck_assert_ptr_eq(strchr(chunked, '\n'),
                         chunked + strlen(chunked) - 1);
    }
    generate(&prompt, "--max-new-tokens 1 --prefill-chunk 0", 2, chunked,
             sizeof chunked);
    ck_assert_ptr_nonnull(strstr(chunked, "--prefill-chunk"));
    take_off_disk();
    prompt_close(&prompt);
}
END_TEST

START_TEST(the_schedule_command_plays_its_scene)
{
    const struct job jobs[] = {
        job(0, 8, 120, 0), job(0, 8, 120, 0), job(4, 96, 16, 0)
    };
    struct timing timings[3];
    const int budgets[] = {3, 20};
    const char *row = strchr(tinygpt(
        "schedule --chats 2 --prompts 1 --every 4 --slots 3 --call 100"
        " --token 20 --pair 0.5 --budget 3,20", 0), '\n');
    for (int k = 0; k < 2; k++) {
        struct simulation simulation = {
            .limits = {budgets[k], 3}, .cost = {0.1, 0.02, 0.0005},
            .jobs = jobs, .count = 3
        };
        int budget;
        double first[2], gap[2];
        expect_ok(simulate(&simulation, timings, &error), &error);
        const struct latency chats = latency_of(jobs, timings, 2);
        const struct latency prompts = latency_of(jobs + 2, timings + 2, 1);
        ck_assert_int_eq(sscanf(row, "%d %lf %lf %lf %lf", &budget, &first[0],
                                &first[1], &gap[0], &gap[1]), 5);
        row = strchr(row + 1, '\n');
        ck_assert_int_eq(budget, budgets[k]);
        ck_assert_double_eq_tol(first[0], prompts.first_mean, 0.001);
        ck_assert_double_eq_tol(first[1], prompts.first_worst, 0.001);
        ck_assert_double_eq_tol(gap[0], chats.gap_mean, 0.001);
        ck_assert_double_eq_tol(gap[1], chats.gap_worst, 0.001);
    }
    const char *json = tinygpt("schedule --chats 0 --prompts 1 --budget 8"
                               " --call 0 --token 1000 --pair 0 --json", 0);
    ck_assert_str_eq(json, "{\"budgets\": [{\"budget\": 8, \"first_mean\": 96,"
                     " \"first_worst\": 96, \"gap_mean\": 0,"
                     " \"gap_worst\": 0}]}\n");
}
END_TEST

START_TEST(the_schedule_command_lists_steps_that_add_up)
{
    const char *row = strchr(tinygpt("schedule --steps --budget 11", 0),
                             '\n');
    int decoded = 0, prompt = 0, chats, prompts;
    double begin, step, end = 0;
    while (sscanf(row, "%lf %lf %d %d", &begin, &step, &chats, &prompts)
           == 4) {
        ck_assert_double_ge(begin, end - 0.002);
        ck_assert_int_le(chats + prompts, 11);
        end = begin + step;
        decoded += chats;
        prompt += prompts;
        row = strchr(row + 1, '\n');
    }
    ck_assert_int_eq(decoded, 4 * 119 + 3 * 15);
    ck_assert_int_eq(prompt, 4 * 8 + 3 * 96);
}
END_TEST

START_TEST(the_schedule_command_refuses_what_it_cannot_play)
{
    const struct { const char *line; int status; const char *word; } bad[] = {
        {"--budget 7", 1, "slots"}, {"--budget 8,7", 1, "slots"},
        {"--budget 0", 1, "budget"}, {"--chats 0 --prompts 0", 1, "count"},
        {"--call -1", 1, "cost.call"}, {"--token nan", 2, "--token"},
        {"--every -5", 1, "arrival"}, {"--budget x", 2, "--budget"},
        {"--budget ''", 2, "--budget"}, {"--steps", 2, "--budget"},
        {"--slots 0", 2, "--slots"}, {"--nothing", 2, "--nothing"},
        {"--measure /nonexistent", 1, "/nonexistent"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        char line[128];
        snprintf(line, sizeof line, "schedule %s 2>/dev/null", bad[k].line);
        ck_assert_str_eq(tinygpt(line, bad[k].status), "");
        snprintf(line, sizeof line, "schedule %s 2>&1", bad[k].line);
        ck_assert_msg(strstr(tinygpt(line, bad[k].status), bad[k].word),
                      "%s: \"%s\"", bad[k].line, said);
    }
    ck_assert_ptr_nonnull(strstr(tinygpt("schedule --help", 0), "--measure"));
}
END_TEST

START_TEST(the_schedule_command_measures_a_model)
{
    struct prompt prompt = new_prompt();
    char line[128];
    double call, token, pair, rms, worst;
    int samples;
    put_on_disk(prompt.model);
    snprintf(line, sizeof line, "schedule --measure %s", directory);
    ck_assert_int_eq(sscanf(tinygpt(line, 0), "--call %lf --token %lf --pair"
                            " %lf %d calls", &call, &token, &pair, &samples),
                     4);
    ck_assert(call >= 0 && token >= 0 && pair >= 0);
    ck_assert_int_eq(samples, 5 + 5 + 4 + 3);   /* N 24: 24, 18, 12, 6 left */
    strcat(line, " --json");
    ck_assert_int_eq(sscanf(tinygpt(line, 0), "{\"call\": %lf, \"token\": %lf,"
                            " \"pair\": %lf, \"samples\": %d, \"rms_error\":"
                            " %lf, \"worst_error\": %lf}", &call, &token,
                            &pair, &samples, &rms, &worst), 6);
    ck_assert(rms >= 0 && rms <= worst);
    take_off_disk();
    prompt_close(&prompt);
}
END_TEST

/* ------------------------------------------------------------------------- table */

#define STAND "let the chunk stand behind the chunks before it"
#define WHOLE "run chunk after chunk and hand over the whole"
#define FEED "feed chunk after chunk"
#define REFUSE "refuse the prompt whole"
#define CHECK_PROMPT "check a prompt and its chunks"
#define PROMPTS "give what is left to prompts in the order of arrival"
#define CLOCK "step until all jobs are finished"
#define NOTE "note the tokens that the step has emitted"
#define FIT "fit the cost of a call"
#define RUNS "generate runs of later chapters"

static const struct test tests[] = {
    TEST(a_prompt_takes_as_many_calls_as_chunks_cover_it, 2,
         "let the calls be the chunks that cover the prompt"),
    TEST(every_call_brings_its_own_columns_of_every_row, 2,
         "copy the chunk's columns of row b"),
    TEST(every_call_stands_behind_the_calls_before_it, 2, STAND),
    TEST(no_call_is_larger_than_a_chunk, 2,
         "let count be the tokens of this chunk"),
    TEST(the_calls_cover_the_prompt_to_its_last_token, 2,
         "run chunk after chunk"),
    TEST(what_is_handed_over_has_the_shape_of_one_call, 2,
         "hand over the whole"),
    TEST(the_logits_of_every_chunk_lie_where_one_call_puts_them, 2,
         "put the chunk's logits in their place in row b"),
    TEST(every_chunk_size_gives_the_bits_of_one_call, 2,
         "let the chunk's output be what the next one reads"),
    TEST(rows_with_any_origins_and_pasts_give_the_bits_of_one_call, 2, STAND),
    TEST(a_row_of_a_chunked_batch_equals_its_solo_run, 2, STAND),
    TEST(the_golden_batch_has_the_golden_logits_and_caches_in_any_chunks, 2,
         STAND),
    TEST(the_golden_mixed_batch_is_continued_in_any_chunks, 2, STAND),
    TEST(without_use_cache_there_are_logits_only, 2, "hand over the whole"),
    TEST(a_prompt_may_go_on_where_another_has_ended, 2, STAND),
    TEST(a_chunk_size_below_one_is_refused, 2,
         "refuse a prompt that cannot be cut"),
    TEST(a_prompt_may_fill_the_context_and_not_pass_it, 2, CHECK_PROMPT),
    TEST(what_the_caller_lends_is_only_read, 2, WHOLE),
    TEST(missing_arguments_and_a_full_output_are_refused, 2, CHECK_PROMPT),
    TEST(a_bad_token_in_any_chunk_is_refused_before_the_first_call, 2,
         CHECK_PROMPT),
    TEST(sizes_and_books_that_one_call_refuses_are_refused, 2, CHECK_PROMPT),
    TEST(each_failed_allocation_leaves_nothing_behind, 2, WHOLE),
    TEST(a_request_takes_a_prompt_in_any_chunks, 2, FEED),
    TEST(an_empty_request_takes_a_prompt_from_position_zero, 2, FEED),
    TEST(a_request_asks_each_call_for_its_last_logits_alone, 2, FEED),
    TEST(a_prompt_and_the_tokens_after_it_allocate_nothing, 2, FEED),
    TEST(a_chunk_size_above_the_calls_will_do_when_the_prompt_fits, 2,
         REFUSE),
    TEST(a_request_refuses_a_prompt_whole, 2, REFUSE),
    TEST(a_prompt_may_fill_the_request_and_not_outgrow_it, 2, REFUSE),
    TEST(chunks_go_on_behind_a_prefix_match, 2, STAND),
    TEST(a_request_goes_on_from_a_prefix_match_in_chunks_and_tokens, 2, FEED),
    TEST(a_suffix_in_chunks_is_appended_to_the_cache_that_it_read, 2, WHOLE),
    TEST(one_counter_tells_the_phase_of_a_job, 2, "the phases of a job"),
    TEST(who_decodes_gets_a_token_before_any_prompt, 2, "spend the budget"),
    TEST(a_token_of_who_decodes_is_a_token_of_the_budget, 2,
         "give each decoding job its token"),
    TEST(the_first_prompt_gets_what_it_can_use_and_the_next_the_rest, 2,
         PROMPTS),
    TEST(a_step_adds_what_it_has_fed, 2, "enter what the step has fed"),
    TEST(a_schedule_by_hand_is_the_schedule, 2, PROMPTS),
    TEST(every_step_of_random_traces_keeps_the_promises, 2, PROMPTS),
    TEST(limits_and_jobs_out_of_bounds_are_refused, 2,
         "check what is to be scheduled"),
    TEST(a_schedule_by_hand_has_the_times_by_hand, 2, NOTE),
    TEST(a_token_pays_for_each_key_that_it_sees, 2,
         "count the keys that a share sees"),
    TEST(the_clock_jumps_to_the_next_arrival, 2, CLOCK),
    TEST(every_token_of_a_simulation_is_fed_once, 2, CLOCK),
    TEST(first_tokens_come_in_the_order_of_arrival, 2, PROMPTS),
    TEST(a_simulation_refuses_what_it_cannot_run, 2, "check a simulation"),
    TEST(a_simulation_survives_each_failed_allocation, 2,
         "begin and end a run of the clock"),
    TEST(latencies_are_means_and_worsts, 2, "sum up what the users notice"),
    TEST(the_budget_trades_the_first_token_against_the_gaps, 2, CLOCK),
    TEST(a_fit_finds_the_constants_of_its_samples, 2, FIT),
    TEST(a_fit_weighs_relative_errors, 2,
         "add sample i to the normal equations"),
    TEST(samples_that_determine_nothing_are_refused, 2, FIT),
    TEST(generate_says_the_same_in_any_chunks, 3, RUNS),
    TEST(generate_in_chunks_stops_at_eos, 3, RUNS),
    TEST(statistics_say_how_the_prompt_was_cut, 3,
         "count the calls of the prompt"),
    TEST(generate_in_chunks_refuses_what_generate_refuses, 3, RUNS),
    TEST(the_schedule_command_plays_its_scene, 2,
         "playing the scene with each budget"),
    TEST(the_schedule_command_lists_steps_that_add_up, 2,
         "printing the steps of a schedule"),
    TEST(the_schedule_command_refuses_what_it_cannot_play, 2,
         "the options of the schedule command"),
    TEST(the_schedule_command_measures_a_model, 2,
         "measuring the calls of a model"),
};

SUITE("chapter 11, chunked prefill", tests);
