/* Chapter 5: the rectangular mask. The mask by literal rows and by its
   properties, then what follows from it: every split of a text into calls
   gives the same logits and caches, with the same bits. */
#include <math.h>
#include <stdio.h>
#include "mask.h"
#include "mask_study.h"
#include "model.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/program.h"

/* ------------------------------------------------------------------ the mask */

static void expect_mask(int past, int queries, const char *rows)
{
    bool keep[64];
    memset(keep, 7, sizeof keep);
    causal_mask(past, queries, keep);
    for (int k = 0; k < queries * (past + queries); k++)
        ck_assert_msg(keep[k] == (rows[k] == '1'),
                      "P %d, T %d: cell [%d,%d] is %d", past, queries,
                      k / (past + queries), k % (past + queries), keep[k]);
}

START_TEST(two_queries_behind_three_keys_see_four_and_five)
{
    expect_mask(3, 2, "11110"
                      "11111");
}
END_TEST

START_TEST(every_corner_of_past_and_queries_has_its_literal_rows)
{
    expect_mask(0, 1, "1");
    expect_mask(0, 3, "100" "110" "111");
    expect_mask(1, 1, "11");
    expect_mask(6, 1, "1111111");
    expect_mask(1, 2, "110" "111");
    expect_mask(2, 2, "1110" "1111");
    expect_mask(1, 4, "11000" "11100" "11110" "11111");
    expect_mask(4, 3, "1111100" "1111110" "1111111");
}
END_TEST

/* Row i: P+i+1 ones, then zeros. In all T(T-1)/2 zeros, whatever P is. */
START_TEST(row_i_shows_the_past_and_itself_and_hides_what_follows)
{
    for (int past = 0; past <= 17; past++)
        for (int queries = 1; queries <= 19; queries++) {
            const int keys = past + queries;
            bool keep[19 * 36];
            int hidden = 0;
            causal_mask(past, queries, keep);
            for (int i = 0; i < queries; i++) {
                int ones = 0;
                while (ones < keys && keep[i * keys + ones])
                    ones++;
                ck_assert_int_eq(ones, past + i + 1);
                for (int j = ones; j < keys; j++, hidden++)
                    ck_assert_msg(!keep[i * keys + j],
                                  "P %d, T %d: cell [%d,%d] is seen", past,
                                  queries, i, j);
            }
            ck_assert_int_eq(hidden, queries * (queries - 1) / 2);
        }
}
END_TEST

/* Under one another, the rectangles of a split are the triangle of the text. */
START_TEST(the_rows_of_every_split_stack_up_to_one_triangle)
{
    enum { N = 9 };
    for (unsigned cuts = 0; cuts < 1u << (N - 1); cuts++) {
        bool keep[N * N];
        for (int at = 0, next = 1; at < N; at = next++) {
            while (next < N && !(cuts >> (next - 1) & 1))
                next++;
            causal_mask(at, next - at, keep);
            for (int i = 0; i < next - at; i++)
                for (int j = 0; j < next; j++)
                    ck_assert_int_eq(keep[i * next + j], j <= at + i);
        }
    }
}
END_TEST

/* -------------------------------------------------------------- the printing */

/* What a printing function wrote, until the next call. */
static const char *printed(void (*print)(FILE *, const bool *, int, int),
                     const bool *keep, int a, int b)
{
    static char text[4096];
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    print(file, keep, a, b);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

START_TEST(a_printed_mask_has_a_row_for_each_query)
{
    const bool keep[] = {1, 1, 0, 1, 0, 1};
    ck_assert_str_eq(printed(mask_print, keep, 2, 3), "1 1 0\n1 0 1\n");
    ck_assert_str_eq(printed(mask_print, keep, 1, 1), "1\n");
}
END_TEST

START_TEST(a_mask_as_json_says_its_sizes)
{
    const bool keep[] = {1, 1, 0, 1, 1, 1};
    ck_assert_str_eq(printed(mask_print_json, keep, 1, 2),
                     "{\"past\": 1, \"tokens\": 2,"
                     " \"keep\": [[1, 1, 0], [1, 1, 1]]}\n");
}
END_TEST

START_TEST(the_upper_left_triangle_is_right_in_two_corners_only)
{
    bool keep[64], right[64];
    for (int past = 0; past < 5; past++)
        for (int queries = 1; queries < 4; queries++) {
            size_t cells = (size_t)(queries * (past + queries));
            upper_left_mask(past, queries, keep);
            causal_mask(past, queries, right);
            ck_assert_int_eq(memcmp(keep, right, cells) == 0,
                             past == 0 || queries == 1);
        }
    upper_left_mask(3, 2, keep);
    ck_assert_str_eq(printed(mask_print, keep, 2, 5),
                     "1 0 0 0 0\n1 1 0 0 0\n");
}
END_TEST

/* ------------------------------------------------------- positions and chunks */

START_TEST(a_chunk_is_embedded_at_its_place_in_the_text)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct activations activations = {0};
    struct forward_output output = {0};
    int32_t ids[8];
    cached_columns(&cached, 3, 4, ids);
    const struct forward_input input = {
        .ids = ids, .batch = 2, .tokens = 4, .activations = &activations,
        .past_key_values = &prefix.past_key_values
    };
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, NULL),
                     STATUS_OK);
    const float *token = golden_get(cached.golden,
                                    "w.token_embedding.weight")->f32;
    const float *position = golden_get(cached.golden,
                                       "w.position_embedding.weight")->f32;
    for (int k = 0; k < 8; k++)
        for (int c = 0; c < 16; c++)
            ck_assert_float_eq(activations.embedding.data[k * 16 + c],
                               token[ids[k] * 16 + c]
                               + position[(3 + k % 4) * 16 + c]);
    activations_free(&activations);
    forward_output_free(&output);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* A cache of the first `past` tokens in which one float is changed. */
static struct past_key_values with_changed_value(const struct cached *cached,
                                                 int past, int row)
{
    struct forward_output run = cached_run(cached, 0, past, NULL, true);
    struct past_key_values changed = run.past_key_values;
    struct tensor *value = &changed.layers[0].value;
    for (int s = 0; s < value->shape[0] * value->shape[1]; s++)
        value->data[(s * past + row) * value->shape[3]] += 1.0f;
    tensor_free(&run.logits);
    return changed;
}

/* The test that an upper-left triangle fails by itself. */
START_TEST(every_query_of_a_chunk_sees_every_key_of_the_past)
{
    struct cached cached = cached_noise();
    const size_t row = (size_t)cached.config->vocab_size;
    struct forward_output prefix = cached_run(&cached, 0, 5, NULL, true);
    struct forward_output before = cached_run(&cached, 5, 4,
                                              &prefix.past_key_values, false);
    for (int key = 0; key < 5; key++) {
        struct past_key_values past = with_changed_value(&cached, 5, key);
        struct forward_output after = cached_run(&cached, 5, 4, &past, false);
        for (int k = 0; k < cached.batch * 4; k++)
            ck_assert_msg(memcmp(before.logits.data + (size_t)k * row,
                                 after.logits.data + (size_t)k * row,
                                 row * sizeof (float)) != 0,
                          "query %d does not see key %d", k % 4, key);
        forward_output_free(&after);
        past_key_values_free(&past);
    }
    forward_output_free(&before);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* Token k of the chunk changes; rows before it keep every bit, row k not. */
static void perturb_tokens(const struct cached *original, int past)
{
    struct cached cached = *original;
    const int chunk = cached.tokens - past;
    uint64_t state = noise_start(1 + (unsigned)past);
    const int by = 1 + noise_below(&state, cached.config->vocab_size - 1);
    const size_t row = (size_t)cached.config->vocab_size;
    struct forward_output prefix = {0};
    if (past > 0)
        prefix = cached_run(&cached, 0, past, NULL, true);
    const struct past_key_values *cache =
        past > 0 ? &prefix.past_key_values : NULL;
    struct forward_output before = cached_run(&cached, past, chunk, cache,
                                              false);
    for (int k = 0; k < chunk; k++) {
        for (int b = 0; b < cached.batch; b++) {
            int32_t *id = &cached.ids[b * cached.tokens + past + k];
            *id = (*id + by) % cached.config->vocab_size;
        }
        struct forward_output after = cached_run(&cached, past, chunk, cache,
                                                 false);
        for (int b = 0; b < cached.batch; b++)
            for (int t = 0; t <= k; t++) {
                size_t at = (size_t)(b * chunk + t) * row;
                bool same = memcmp(before.logits.data + at,
                                   after.logits.data + at,
                                   row * sizeof (float)) == 0;
                ck_assert_msg(same == (t < k), "P %d: token %d changed and"
                              " row %d %s", past, k, t,
                              same ? "did not" : "did too");
            }
        forward_output_free(&after);
        memcpy(cached.ids, original->ids, sizeof cached.ids);
    }
    forward_output_free(&before);
    forward_output_free(&prefix);
}

START_TEST(a_changed_token_changes_no_earlier_row_of_its_chunk)
{
    struct cached cached = cached_noise();
    for (int past = 0; past < cached.tokens; past++)
        perturb_tokens(&cached, past);
    cached_close(&cached);
}
END_TEST

START_TEST(the_golden_chunk_has_the_golden_logits_and_caches)
{
    struct cached cached = cached_golden();
    const struct golden_tensor *first =
        golden_get(cached.golden, "out.prefix.logits");
    const struct golden_tensor *then =
        golden_get(cached.golden, "out.chunk.logits");
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    expect_close("prefix logits", prefix.logits.data, first->f32,
                 first->count, first->rank, first->shape, TOLERANCE);
    expect_golden_cache(cached.golden, "out.prefix.past",
                        &prefix.past_key_values);
    struct forward_output chunk = cached_run(&cached, 3, 4,
                                             &prefix.past_key_values, true);
    expect_close("chunk logits", chunk.logits.data, then->f32, then->count,
                 then->rank, then->shape, TOLERANCE);
    expect_golden_cache(cached.golden, "out.past", &chunk.past_key_values);
    forward_output_free(&chunk);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* Runs the text in calls: bit t of cuts is a cut behind token t. The logits
   of all calls are put together in logits [B,tokens,V]. */
static struct past_key_values run_split(const struct cached *cached,
                                        unsigned cuts, float *logits)
{
    struct past_key_values past = {0};
    const size_t row = (size_t)cached->config->vocab_size;
    for (int at = 0, next = 1; at < cached->tokens; at = next++) {
        while (next < cached->tokens && !(cuts >> (next - 1) & 1))
            next++;
        struct forward_output output =
            cached_run(cached, at, next - at, at > 0 ? &past : NULL, true);
        for (int b = 0; b < cached->batch; b++)
            memcpy(logits + (size_t)(b * cached->tokens + at) * row,
                   output.logits.data + (size_t)(b * (next - at)) * row,
                   (size_t)(next - at) * row * sizeof *logits);
        past_key_values_free(&past);
        past = output.past_key_values;
        tensor_free(&output.logits);
    }
    return past;
}

/* The same loops in the same order: every split must give the same bits. */
static void expect_splits_equal_whole(const struct cached *cached)
{
    struct forward_output whole = cached_run(cached, 0, cached->tokens, NULL,
                                             true);
    const size_t size = tensor_size(&whole.logits);
    float *logits = malloc(size * sizeof *logits);
    for (unsigned cuts = 0; cuts < 1u << (cached->tokens - 1); cuts++) {
        char what[64];
        snprintf(what, sizeof what, "split %#x", cuts);
        struct past_key_values past = run_split(cached, cuts, logits);
        expect_same_bits(what, logits, whole.logits.data,
                         size * sizeof *logits);
        expect_equal_caches(what, &past, &whole.past_key_values);
        past_key_values_free(&past);
    }
    free(logits);
    forward_output_free(&whole);
}

START_TEST(every_split_of_the_golden_text_has_the_golden_logits_and_caches)
{
    struct cached cached = cached_golden();
    const struct golden_tensor *want = golden_get(cached.golden,
                                                  "out.logits");
    float *logits = malloc(want->count * sizeof *logits);
    for (unsigned cuts = 0; cuts < 1u << 6; cuts++) {
        char what[64];
        snprintf(what, sizeof what, "split %#x", cuts);
        struct past_key_values past = run_split(&cached, cuts, logits);
        expect_close(what, logits, want->f32, want->count, want->rank,
                     want->shape, TOLERANCE);
        expect_golden_cache(cached.golden, "out.past", &past);
        past_key_values_free(&past);
    }
    free(logits);
    cached_close(&cached);
}
END_TEST

START_TEST(every_split_of_the_golden_text_has_the_same_bits)
{
    struct cached cached = cached_golden();
    expect_splits_equal_whole(&cached);
    cached_close(&cached);
}
END_TEST

START_TEST(every_split_of_a_full_context_has_the_same_bits)
{
    struct cached cached = cached_noise();
    expect_splits_equal_whole(&cached);
    cached_close(&cached);
}
END_TEST

START_TEST(rows_of_a_chunked_batch_equal_their_solo_runs)
{
    struct cached cached = cached_noise(), solo = cached;
    float all[3 * 9 * 13], one[9 * 13];
    struct past_key_values past = run_split(&cached, 0x14, all);
    solo.batch = 1;
    for (int b = 0; b < 3; b++) {
        memcpy(solo.ids, cached.ids + b * 9, 9 * sizeof *solo.ids);
        struct past_key_values alone = run_split(&solo, 0x14, one);
        expect_same_bits("logits", all + b * 9 * 13, one, sizeof one);
        expect_same_bits("values", past.layers[2].value.data + b * 90,
                         alone.layers[2].value.data, 90 * sizeof (float));
        past_key_values_free(&alone);
    }
    past_key_values_free(&past);
    cached_close(&cached);
}
END_TEST

/* ------------------------------------------------------- prefixes and the end */

/* Logits of the tokens from `edit` on, behind a cache of `kept` tokens of the
   text before the edit. */
static struct forward_output after_edit(const struct cached *edited,
                                        const struct past_key_values *old,
                                        int edit, int kept)
{
    struct past_key_values prefix = {0};
    ck_assert_int_eq(past_key_values_prefix(old, kept, &prefix, NULL),
                     STATUS_OK);
    struct forward_output output = cached_run(edited, kept,
                                              edited->tokens - kept, &prefix,
                                              true);
    ck_assert_int_le(edit, edited->tokens);
    past_key_values_free(&prefix);
    return output;
}

START_TEST(an_edited_prompt_reuses_its_common_prefix_and_equals_a_cold_run)
{
    struct cached cached = cached_noise(), edited = cached;
    struct forward_output old = cached_run(&cached, 0, 9, NULL, true);
    uint64_t state = noise_start(20);
    for (int edit = 1; edit < 9; edit++) {
        memcpy(edited.ids, cached.ids, sizeof edited.ids);
        for (int b = 0; b < 3; b++) {
            int32_t *id = &edited.ids[b * 9 + edit];
            *id = (*id + 1 + noise_below(&state, 12)) % 13;
        }
        struct forward_output cold = cached_run(&edited, 0, 9, NULL, true);
        struct forward_output warm = after_edit(&edited, &old.past_key_values,
                                                edit, edit);
        expect_rows_close("logits", &edited, &warm.logits, cold.logits.data,
                          edit);
        expect_equal_caches("caches", &warm.past_key_values,
                            &cold.past_key_values);
        forward_output_free(&warm);
        forward_output_free(&cold);
    }
    forward_output_free(&old);
    cached_close(&cached);
}
END_TEST

/* How far the logits behind the edit are off when the edited tokens
   themselves, number `edit` of each row, are reused. */
static float staleness(const struct cached *cached,
                       const struct past_key_values *old, int edit, int by)
{
    struct cached edited = *cached;
    float rows[3 * 9 * 13], worst = 0;
    for (int b = 0; b < 3; b++)
        edited.ids[b * 9 + edit] = (cached->ids[b * 9 + edit] + by) % 13;
    struct forward_output cold = cached_run(&edited, 0, 9, NULL, true);
    struct forward_output stale = after_edit(&edited, old, edit, edit + 1);
    cached_rows(&edited, cold.logits.data, edit + 1, 8 - edit, rows);
    for (int k = 0; k < 3 * (8 - edit) * 13; k++)
        worst = fmaxf(worst, fabsf(stale.logits.data[k] - rows[k]));
    forward_output_free(&stale);
    forward_output_free(&cold);
    return worst;
}

/* It must show, at least for one of the places and of the other ids. */
START_TEST(a_prefix_that_reaches_past_the_edit_is_stale)
{
    struct cached cached = cached_noise();
    struct forward_output old = cached_run(&cached, 0, 9, NULL, true);
    float worst = 0;
    for (int edit = 0; edit < 8; edit++)
        for (int by = 1; by < 13; by++)
            worst = fmaxf(worst, staleness(&cached, &old.past_key_values,
                                           edit, by));
    ck_assert_float_gt(worst, 1e-2f);
    forward_output_free(&old);
    cached_close(&cached);
}
END_TEST

/* N = 9. A chunk may end at 8 and at 9, not at 10; what is refused leaves the
   cache as long as it was, and usable. */
START_TEST(a_chunk_may_fill_the_context_and_not_pass_it)
{
    struct cached cached = cached_noise();
    struct forward_output prefix = cached_run(&cached, 0, 5, NULL, true);
    struct past_key_values *past = &prefix.past_key_values;
    for (int count = 3; count <= 4; count++) {
        struct forward_output output = cached_run(&cached, 5, count, past,
                                                  true);
        ck_assert_int_eq(past_key_values_length(&output.past_key_values),
                         5 + count);
        forward_output_free(&output);
    }
    const int32_t ids[15] = {0};
    const struct forward_input input = {
        .ids = ids, .batch = 3, .tokens = 5, .past_key_values = past,
        .use_cache = true
    };
    struct forward_output output = {0};
    struct error error = {0};
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "past + tokens: expected at most"
                     " context_length 9, got 5 + 5");
    ck_assert_ptr_null(output.logits.data);
    ck_assert_ptr_null(output.past_key_values.layers);
    ck_assert_int_eq(past_key_values_length(past), 5);
    struct forward_output whole = cached_run(&cached, 0, 9, NULL, true);
    struct forward_output rest = cached_run(&cached, 5, 4, past, true);
    expect_equal_caches("after the refusal", &rest.past_key_values,
                        &whole.past_key_values);
    forward_output_free(&rest);
    forward_output_free(&whole);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* ------------------------------------------------------ a mask of the caller's */

/* The golden's chunk of 4 behind 3 under a mask of the caller's. */
static struct forward_output run_masked(const struct cached *cached,
                                        const struct past_key_values *past,
                                        const bool *keep)
{
    int32_t ids[8];
    cached_columns(cached, 3, 4, ids);
    const struct forward_input input = {
        .ids = ids, .batch = 2, .tokens = 4, .past_key_values = past,
        .use_cache = true, .keep = keep
    };
    struct forward_output output = {0};
    ck_assert_int_eq(tiny_gpt_forward(cached->model, &input, &output, NULL),
                     STATUS_OK);
    return output;
}

START_TEST(a_causal_mask_of_the_callers_changes_no_bit)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct forward_output causal = cached_run(&cached, 3, 4,
                                              &prefix.past_key_values, true);
    bool keep[28];
    for (int k = 0; k < 28; k++)
        keep[k] = k % 7 <= 3 + k / 7;
    struct forward_output output = run_masked(&cached,
                                              &prefix.past_key_values, keep);
    expect_same_bits("logits", output.logits.data, causal.logits.data,
                     tensor_size(&causal.logits) * sizeof (float));
    expect_equal_caches("caches", &output.past_key_values,
                        &causal.past_key_values);
    forward_output_free(&output);
    forward_output_free(&causal);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* Hide key 1 of the past from query 2: row 2 changes; rows 0 and 1 do not. */
START_TEST(a_key_that_the_caller_hides_is_hidden)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct forward_output causal = cached_run(&cached, 3, 4,
                                              &prefix.past_key_values, true);
    bool keep[28];
    for (int k = 0; k < 28; k++)
        keep[k] = k % 7 <= 3 + k / 7 && k != 2 * 7 + 1;
    struct forward_output output = run_masked(&cached,
                                              &prefix.past_key_values, keep);
    for (int t = 0; t <= 2; t++) {
        bool same = memcmp(output.logits.data + t * 23,
                           causal.logits.data + t * 23,
                           23 * sizeof (float)) == 0;
        ck_assert_msg(same == (t < 2), "row %d", t);
    }
    forward_output_free(&output);
    forward_output_free(&causal);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

START_TEST(a_query_that_sees_nothing_gives_finite_logits)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct forward_output causal = cached_run(&cached, 3, 4,
                                              &prefix.past_key_values, true);
    bool keep[28];
    for (int k = 0; k < 28; k++)
        keep[k] = k % 7 <= 3 + k / 7 && k / 7 != 3;
    struct forward_output output = run_masked(&cached,
                                              &prefix.past_key_values, keep);
    for (size_t k = 0; k < tensor_size(&output.logits); k++)
        ck_assert(isfinite(output.logits.data[k]));
    expect_same_bits("rows 0 to 2", output.logits.data, causal.logits.data,
                     3 * 23 * sizeof (float));
    forward_output_free(&output);
    forward_output_free(&causal);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* -------------------------------------------------------------- the measurement */

static int32_t text[12];

static struct tiny_gpt *study_model(void)
{
    struct tiny_gpt *model = NULL;
    uint64_t state = noise_start(21);
    noise_ids(&state, 23, 1, 12, text);
    ck_assert_int_eq(mask_study_model(&model, NULL), STATUS_OK);
    return model;
}

START_TEST(the_causal_mask_has_no_error_in_any_chunks)
{
    struct tiny_gpt *model = study_model();
    double errors[12];
    for (int first = 0; first <= 12; first++)
        for (int step = 1; step <= 12; step++) {
            for (int t = 0; t < 12; t++)
                errors[t] = -1;
            ck_assert_int_eq(mask_errors(model, text, 12, first, step,
                                         causal_mask, errors, NULL),
                             STATUS_OK);
            for (int t = 0; t < 12; t++)
                ck_assert_double_eq(errors[t], 0);
        }
    tiny_gpt_free(&model);
}
END_TEST

/* Chapter 4's mask, on the model of the figure: exact token by token, and no
   row right in a chunk. */
START_TEST(the_upper_left_triangle_passes_tokenwise_and_fails_in_a_chunk)
{
    struct tiny_gpt *model = study_model();
    double single[12], chunk[12];
    ck_assert_int_eq(mask_errors(model, text, 12, 5, 1, upper_left_mask,
                                 single, NULL), STATUS_OK);
    ck_assert_int_eq(mask_errors(model, text, 12, 5, 7, upper_left_mask,
                                 chunk, NULL), STATUS_OK);
    for (int t = 0; t < 12; t++) {
        ck_assert_double_eq(single[t], 0);
        if (t < 5)
            ck_assert_double_eq(chunk[t], 0);
        else
            ck_assert_double_gt(chunk[t], 1e-2);
    }
    tiny_gpt_free(&model);
}
END_TEST

/* A rule for two tokens: the second does not see itself. */
static void first_key_only(int past, int queries, bool *keep)
{
    for (int k = 0; k < queries * (past + queries); k++)
        keep[k] = k % (past + queries) == 0;
}

/* Under that rule every token but the first goes wrong, so a token without an
   error is one that was not run. */
START_TEST(each_chunk_goes_on_where_the_one_before_it_ended)
{
    struct tiny_gpt *model = study_model();
    double errors[12];
    for (int step = 1; step <= 12; step++) {
        ck_assert_int_eq(mask_errors(model, text, 12, 2, step, first_key_only,
                                     errors, NULL), STATUS_OK);
        for (int t = 1; t < 12; t++)
            ck_assert_msg(errors[t] > 1e-3, "step %d: token %d: error %g",
                          step, t, errors[t]);
    }
    tiny_gpt_free(&model);
}
END_TEST

/* The same difference, found from two calls of the test's own. */
START_TEST(errors_are_the_largest_differences_of_each_row)
{
    struct tiny_gpt *model = study_model();
    const bool keep[4] = {1, 0, 1, 0};
    double errors[2], worst = 0;
    struct forward_output whole = {0}, masked = {0};
    struct forward_input input = {.ids = text, .batch = 1, .tokens = 2};
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &whole, NULL),
                     STATUS_OK);
    input.keep = keep;
    ck_assert_int_eq(tiny_gpt_forward(model, &input, &masked, NULL),
                     STATUS_OK);
    ck_assert_int_eq(mask_errors(model, text, 2, 0, 2, first_key_only, errors,
                                 NULL), STATUS_OK);
    for (int v = 23; v < 46; v++)
        worst = fmax(worst, fabs((double)whole.logits.data[v]
                                 - (double)masked.logits.data[v]));
    ck_assert_double_gt(worst, 1e-2);
    ck_assert_double_eq(errors[0], 0);
    ck_assert_double_eq(errors[1], worst);
    forward_output_free(&masked);
    forward_output_free(&whole);
    tiny_gpt_free(&model);
}
END_TEST

static void expect_study_refused(const struct tiny_gpt *model, int tokens,
                                 int first, int step, const char *message)
{
    double errors[12] = {42};
    struct error error = {0};
    ck_assert_int_eq(mask_errors(model, text, tokens, first, step,
                                 causal_mask, errors, &error),
                     STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_double_eq(errors[0], 42);
}

START_TEST(chunks_that_do_not_make_up_the_text_are_refused)
{
    struct tiny_gpt *model = study_model();
    expect_study_refused(model, 12, -1, 1,
                         "first: expected 0 to 12, got -1");
    expect_study_refused(model, 12, 13, 1,
                         "first: expected 0 to 12, got 13");
    expect_study_refused(model, 12, 3, 0, "step: expected at least 1, got 0");
    expect_study_refused(model, 0, 0, 1, "tokens: expected at least 1, got 0");
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_study_survives_each_failed_allocation)
{
    struct tiny_gpt *model = study_model();
    long reached = 0;
    for (long n = 1; ; n++) {
        double errors[5] = {42};
        struct error error = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = mask_errors(model, text, 5, 2, 3, causal_mask,
                                         errors, &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        reached = n;
        if (!failed) {
            ck_assert_int_eq(status, STATUS_OK);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_double_eq(errors[0], 42);
    }
    ck_assert_int_gt(reached, 20);
    tiny_gpt_free(&model);
}
END_TEST

/* --------------------------------------------------------------- the command */

START_TEST(the_command_prints_the_literal_mask)
{
    ck_assert_str_eq(run_program("mask --past 3 --tokens 2", 0),
                     "1 1 1 1 0\n1 1 1 1 1\n");
    ck_assert_str_eq(run_program("mask --past 3 --tokens 2 --wrong", 0),
                     "1 0 0 0 0\n1 1 0 0 0\n");
    ck_assert_str_eq(run_program("mask --past=3 --tokens=2 --json", 0),
                     "{\"past\": 3, \"tokens\": 2, \"keep\":"
                     " [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]}\n");
}
END_TEST

START_TEST(the_command_measures_errors)
{
    ck_assert_str_eq(run_program("mask --past 2 --tokens 2 --errors", 0),
                     "position  tokenwise  chunk\n"
                     "       2          0  0\n"
                     "       3          0  0\n");
    ck_assert_str_eq(
        run_program("mask --past 2 --tokens 2 --errors --json", 0),
        "{\"past\": 2, \"tokens\": 2, \"rows\":"
        " [{\"position\": 2, \"tokenwise\": 0, \"chunk\": 0},"
        " {\"position\": 3, \"tokenwise\": 0, \"chunk\": 0}]}\n");
    const char *wrong = run_program("mask --past 2 --tokens 2 --errors"
                                    " --wrong", 0);
    int position;
    double single, chunk;
    ck_assert_int_eq(sscanf(wrong, "position tokenwise chunk %d %lf %lf",
                            &position, &single, &chunk), 3);
    ck_assert_int_eq(position, 2);
    ck_assert_double_eq(single, 0);
    ck_assert_double_gt(chunk, 1e-2);
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_print)
{
    const char *const usage[] = {
        "mask", "mask --past 3", "mask --tokens 2", "mask --past -1 --tokens 2",
        "mask --past 3 --tokens 0", "mask --past 3 --tokens 4097",
        "mask --past x --tokens 2", "mask --past 3 --tokens",
        "mask --past 3 --tokens 2 --down"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2), "tinygpt mask"));
    const char *full = run_program("mask --past 255 --tokens 2 --errors", 1);
    ck_assert_ptr_nonnull(strstr(full, "context_length 256"));
    ck_assert_ptr_nonnull(strstr(run_program("mask --help", 0), "--wrong"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define MASK "decide whether query i may see key j"
#define OWN "let the mask say which keys each query sees"
#define ROW "print the row of query i"
#define NEXT "make the chunk's past the past of the next"
#define STUDY "the errors of a text in chunks"

static const struct test tests[] = {
    TEST(two_queries_behind_three_keys_see_four_and_five, 2, MASK),
    TEST(every_corner_of_past_and_queries_has_its_literal_rows, 2, MASK),
    TEST(row_i_shows_the_past_and_itself_and_hides_what_follows, 2, MASK),
    TEST(the_rows_of_every_split_stack_up_to_one_triangle, 2, MASK),
    TEST(a_printed_mask_has_a_row_for_each_query, 2, ROW),
    TEST(a_mask_as_json_says_its_sizes, 2, "print a mask as JSON"),
    TEST(the_upper_left_triangle_is_right_in_two_corners_only, 2,
         "the mask of chapter 4"),
    TEST(a_chunk_is_embedded_at_its_place_in_the_text, 2,
         "let first be the position of the call's first token"),
    TEST(every_query_of_a_chunk_sees_every_key_of_the_past, 2, MASK),
    TEST(a_changed_token_changes_no_earlier_row_of_its_chunk, 2, MASK),
    TEST(the_golden_chunk_has_the_golden_logits_and_caches, 2, MASK),
    TEST(every_split_of_the_golden_text_has_the_golden_logits_and_caches, 2,
         MASK),
    TEST(every_split_of_the_golden_text_has_the_same_bits, 2, MASK),
    TEST(every_split_of_a_full_context_has_the_same_bits, 2, MASK),
    TEST(rows_of_a_chunked_batch_equal_their_solo_runs, 2,
         "join the past keys and values to the new ones"),
    TEST(an_edited_prompt_reuses_its_common_prefix_and_equals_a_cold_run, 2,
         "copy the first rows of every slice"),
    TEST(a_prefix_that_reaches_past_the_edit_is_stale, 2,
         "copy the first rows of every slice"),
    TEST(a_chunk_may_fill_the_context_and_not_pass_it, 2,
         "hold the whole text against the context"),
    TEST(a_causal_mask_of_the_callers_changes_no_bit, 2, OWN),
    TEST(a_key_that_the_caller_hides_is_hidden, 2, OWN),
    TEST(a_query_that_sees_nothing_gives_finite_logits, 2, OWN),
    TEST(each_chunk_goes_on_where_the_one_before_it_ended, 2, NEXT),
    TEST(the_causal_mask_has_no_error_in_any_chunks, 2, NEXT),
    TEST(errors_are_the_largest_differences_of_each_row, 2,
         "let errors be the largest difference of each row"),
    TEST(the_upper_left_triangle_passes_tokenwise_and_fails_in_a_chunk, 2,
         STUDY),
    TEST(chunks_that_do_not_make_up_the_text_are_refused, 2, STUDY),
    TEST(a_study_survives_each_failed_allocation, 2, STUDY),
    TEST(the_command_prints_the_literal_mask, 2, "printing one mask"),
    TEST(the_command_measures_errors, 2,
         "printing what a mask does to the logits"),
    TEST(the_command_refuses_what_it_cannot_print, 2,
         "the options of the mask command"),
};

SUITE("chapter 5, the rectangular mask", tests);
