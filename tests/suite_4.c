/* Chapter 4: the functional cache. The append and the prefix by hand-made
   numbers, every refusal of the check, then the forward pass with a past:
   single steps only, since chunks behind a past belong to chapter 5. */
#include <limits.h>
#include "layer_kv.h"
#include "model.h"
#include "support/allocator.h"
#include "support/cached.h"

/* ------------------------------------------------------------- materials */

/* V 13, N 9, C 10, L 3, H 2, D 5 */
static const struct gpt_config config = {
    .vocab_size = 13, .context_length = 9, .d_model = 10, .n_layers = 3,
    .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
};
enum { B = 3, S = 4 };   /* of the cache below */

/* A cache in which every float differs: 1000 a layer, values from 500. The
   same in every call. */
static struct past_key_values numbered(void)
{
    struct past_key_values past = {0};
    struct error error = {0};
    uint64_t state = noise_start(5);
    ck_assert_msg(past_key_values_new(&past, &config, B, S, &error)
                  == STATUS_OK, "%s", error.message);
    for (int l = 0; l < past.n_layers; l++)
        for (int part = 0; part < 2; part++) {
            const struct tensor *tensor =
                part ? &past.layers[l].value : &past.layers[l].key;
            noise_distinct(&state, (int)tensor_size(tensor), tensor->data);
            for (size_t k = 0; k < tensor_size(tensor); k++)
                tensor->data[k] += (float)(1000 * l + 500 * part);
        }
    return past;
}

static void expect_refused(const struct past_key_values *past, int batch,
                           const char *message)
{
    struct error error = {0};
    ck_assert_int_eq(past_key_values_check(past, &config, batch, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(error.status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(past_key_values_check(past, &config, batch, NULL),
                     STATUS_INVALID);
}

/* One wrong number of the shape of one tensor. */
static void expect_size_refused(struct past_key_values *past, int layer,
                                bool value, int dimension, int size,
                                const char *message)
{
    struct layer_kv *pair = &past->layers[layer];
    int *place = &(value ? &pair->value : &pair->key)->shape[dimension];
    int right = *place;
    *place = size;
    expect_refused(past, B, message);
    *place = right;
    ck_assert_int_eq(past_key_values_check(past, &config, B, NULL), STATUS_OK);
}

/* ------------------------------------------------------ the cache by itself */

START_TEST(a_new_cache_has_one_pair_of_zeros_a_layer)
{
    struct past_key_values past = {0};
    ck_assert_int_eq(past_key_values_new(&past, &config, B, S, NULL),
                     STATUS_OK);
    ck_assert_int_eq(past.n_layers, 3);
    ck_assert_int_eq(past_key_values_length(&past), S);
    for (int l = 0; l < 3; l++)
        for (int part = 0; part < 2; part++) {
            const struct tensor *tensor =
                part ? &past.layers[l].value : &past.layers[l].key;
            const int shape[] = {B, 2, S, 5};
            ck_assert_int_eq(tensor->rank, 4);
            for (int d = 0; d < 4; d++)
                ck_assert_int_eq(tensor->shape[d], shape[d]);
            for (size_t k = 0; k < tensor_size(tensor); k++)
                ck_assert_float_eq(tensor->data[k], 0.0f);
        }
    past_key_values_free(&past);
}
END_TEST

START_TEST(freeing_empties_and_may_be_repeated)
{
    struct past_key_values past = {0};
    long live = allocator_live();
    past_key_values_new(&past, &config, B, S, NULL);
    long made = allocator_live() - live;
    past_key_values_free(&past);
    live = allocator_live() - live;
    ck_assert_int_eq(made, 1 + 2 * 3);
    ck_assert_int_eq(live, 0);
    ck_assert_ptr_null(past.layers);
    ck_assert_int_eq(past.n_layers, 0);
    past_key_values_free(&past);
    past_key_values_free(NULL);
}
END_TEST

START_TEST(no_cache_has_length_zero)
{
    const struct past_key_values none = {0};
    ck_assert_int_eq(past_key_values_length(NULL), 0);
    ck_assert_int_eq(past_key_values_length(&none), 0);
}
END_TEST

START_TEST(a_new_cache_refuses_sizes_below_one)
{
    const int sizes[][2] = {{0, S}, {-1, S}, {B, 0}, {B, -1}};
    for (size_t k = 0; k < 4; k++) {
        struct past_key_values past = {0};
        long live = allocator_live();
        enum status status = past_key_values_new(&past, &config, sizes[k][0],
                                                 sizes[k][1], NULL);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(past.layers);
    }
}
END_TEST

START_TEST(a_new_cache_survives_each_failed_allocation)
{
    for (long n = 1; ; n++) {
        struct past_key_values past = {0};
        struct error error = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status =
            past_key_values_new(&past, &config, B, S, &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        if (!failed) {
            ck_assert_int_eq(n, 1 + 1 + 2 * 3);
            past_key_values_free(&past);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(error.status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(past.layers);
        ck_assert_int_eq(live, 0);
    }
}
END_TEST

/* Cuts a tensor [slices,past+recent,width] behind row `past` of each slice,
   and expects kv_append to put it together again. */
static void expect_joined(unsigned stream, int slices, int past, int recent,
                          int width)
{
    float whole[64], first[64], then[64], out[64];
    const int length = (past + recent) * width, cut = past * width;
    uint64_t state = noise_start(stream);
    noise_distinct(&state, slices * length, whole);
    for (int s = 0; s < slices; s++) {
        memcpy(first + s * cut, whole + s * length,
               (size_t)cut * sizeof *first);
        memcpy(then + s * (length - cut), whole + s * length + cut,
               (size_t)(length - cut) * sizeof *then);
    }
    kv_append(past > 0 ? first : NULL, past, then, recent, slices, width,
              out);
    expect_same_bits("joined", out, whole,
                     (size_t)(slices * length) * sizeof *out);
}

START_TEST(each_slice_keeps_its_past_and_gets_its_new_rows_behind_it)
{
    expect_joined(11, 3, 3, 2, 2);
    expect_joined(12, 2, 1, 4, 5);
}
END_TEST

START_TEST(appending_one_row_to_one_slice_is_a_join)
{
    expect_joined(13, 1, 2, 1, 3);
}
END_TEST

START_TEST(appending_to_nothing_is_a_copy)
{
    expect_joined(14, 2, 0, 2, 2);
}
END_TEST

/* ---------------------------------------------------------------- refusals */

START_TEST(a_fitting_cache_passes_the_check)
{
    struct past_key_values past = numbered();
    struct error error = {0};
    ck_assert_msg(past_key_values_check(&past, &config, B, &error)
                  == STATUS_OK, "%s", error.message);
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_missing_cache_and_a_wrong_layer_count_are_refused)
{
    struct past_key_values past = numbered(), other = past;
    expect_refused(NULL, B, "past_key_values: null");
    other = (struct past_key_values){0};
    expect_refused(&other, B, "past_key_values: expected 3 layers, got 0");
    other = (struct past_key_values){2, past.layers};
    expect_refused(&other, B, "past_key_values: expected 3 layers, got 2");
    other = (struct past_key_values){4, past.layers};
    expect_refused(&other, B, "past_key_values: expected 3 layers, got 4");
    other = (struct past_key_values){-1, past.layers};
    expect_refused(&other, B, "past_key_values: expected 3 layers, got -1");
    other = (struct past_key_values){3, NULL};
    expect_refused(&other, B, "past_key_values.layers: null");
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_batch_below_one_is_refused)
{
    struct past_key_values past = numbered();
    expect_refused(&past, 0, "batch: expected at least 1, got 0");
    expect_refused(&past, -1, "batch: expected at least 1, got -1");
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_null_tensor_is_refused)
{
    struct past_key_values past = numbered();
    struct tensor key = past.layers[0].key;
    past.layers[0].key.data = NULL;
    expect_refused(&past, B, "past_key_values[0].key: null tensor");
    past.layers[0].key = (struct tensor){0};
    expect_refused(&past, B, "past_key_values[0].key: null tensor");
    past.layers[0].key = key;
    past_key_values_free(&past);
}
END_TEST

START_TEST(another_rank_is_refused)
{
    struct past_key_values past = numbered();
    past.layers[0].key.rank = 3;
    expect_refused(&past, B, "past_key_values[0].key: rank: expected 4, got 3");
    past.layers[0].key.rank = 4;
    past_key_values_free(&past);
}
END_TEST

START_TEST(another_batch_is_refused)
{
    struct past_key_values past = numbered();
    expect_refused(&past, B + 1,
                   "past_key_values[0].key: batch: expected 4, got 3");
    expect_size_refused(&past, 0, false, 0, 2,
                        "past_key_values[0].key: batch: expected 3, got 2");
    past_key_values_free(&past);
}
END_TEST

START_TEST(another_number_of_heads_is_refused)
{
    struct past_key_values past = numbered();
    expect_size_refused(&past, 0, false, 1, 1,
                        "past_key_values[0].key: heads: expected 2, got 1");
    expect_size_refused(&past, 0, false, 1, 4,
                        "past_key_values[0].key: heads: expected 2, got 4");
    past_key_values_free(&past);
}
END_TEST

START_TEST(another_head_dim_is_refused)
{
    struct past_key_values past = numbered();
    expect_size_refused(&past, 0, false, 3, 4,
                        "past_key_values[0].key: head_dim: expected 5, got 4");
    expect_size_refused(&past, 0, false, 3, 10,
                        "past_key_values[0].key: head_dim: expected 5, got 10");
    past_key_values_free(&past);
}
END_TEST

START_TEST(an_empty_cache_is_refused)
{
    struct past_key_values past = numbered();
    for (int l = 0; l < 3; l++)
        past.layers[l].key.shape[2] = past.layers[l].value.shape[2] = 0;
    expect_refused(&past, B, "past_key_values: length: expected at least 1,"
                   " got 0 (pass NULL for no past)");
    for (int l = 0; l < 3; l++)
        past.layers[l].key.shape[2] = past.layers[l].value.shape[2] = -2;
    expect_refused(&past, B, "past_key_values: length: expected at least 1,"
                   " got -2 (pass NULL for no past)");
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_value_that_differs_from_its_key_is_refused)
{
    struct past_key_values past = numbered();
    expect_size_refused(&past, 0, true, 0, 2,
                        "past_key_values[0].value: batch: expected 3, got 2");
    expect_size_refused(&past, 0, true, 1, 4,
                        "past_key_values[0].value: heads: expected 2, got 4");
    expect_size_refused(&past, 0, true, 2, S - 1,
                        "past_key_values[0].value: length: expected 4, got 3");
    expect_size_refused(&past, 0, true, 2, S + 1,
                        "past_key_values[0].value: length: expected 4, got 5");
    expect_size_refused(&past, 0, true, 3, 4,
                        "past_key_values[0].value: head_dim: expected 5,"
                        " got 4");
    past_key_values_free(&past);
}
END_TEST

START_TEST(layers_of_unequal_length_are_refused)
{
    struct past_key_values past = numbered();
    expect_size_refused(&past, 1, false, 2, S - 1,
                        "past_key_values[1].key: length: expected 4, got 3");
    expect_size_refused(&past, 2, false, 2, S + 1,
                        "past_key_values[2].key: length: expected 4, got 5");
    expect_size_refused(&past, 2, true, 2, S - 1,
                        "past_key_values[2].value: length: expected 4, got 3");
    past.layers[1].key.shape[2] = past.layers[1].value.shape[2] = S - 1;
    expect_refused(&past, B,
                   "past_key_values[1].key: length: expected 4, got 3");
    past_key_values_free(&past);
}
END_TEST

START_TEST(every_layer_is_held_against_every_rule)
{
    struct past_key_values past = numbered();
    struct tensor value = past.layers[2].value;
    expect_size_refused(&past, 2, true, 0, 1,
                        "past_key_values[2].value: batch: expected 3, got 1");
    expect_size_refused(&past, 1, true, 1, 1,
                        "past_key_values[1].value: heads: expected 2, got 1");
    expect_size_refused(&past, 1, false, 3, 6,
                        "past_key_values[1].key: head_dim: expected 5, got 6");
    past.layers[2].value.data = NULL;
    expect_refused(&past, B, "past_key_values[2].value: null tensor");
    past.layers[2].value = value;
    past.layers[2].value.rank = 2;
    expect_refused(&past, B,
                   "past_key_values[2].value: rank: expected 4, got 2");
    past.layers[2].value = value;
    past_key_values_free(&past);
}
END_TEST

/* As many floats as there should be, in another order. */
START_TEST(a_right_size_with_exchanged_dimensions_is_refused)
{
    struct past_key_values past = numbered();
    past.layers[1].key.shape[1] = S;
    past.layers[1].key.shape[2] = 2;
    expect_refused(&past, B,
                   "past_key_values[1].key: heads: expected 2, got 4");
    past.layers[1].key.shape[1] = 2;
    past.layers[1].key.shape[2] = S;
    past_key_values_free(&past);
}
END_TEST

/* ------------------------------------------------------------------- prefix */

START_TEST(a_prefix_is_the_first_rows_of_every_slice)
{
    struct past_key_values past = numbered(), prefix = {0};
    ck_assert_uint_eq(tensor_size(&past.layers[0].key), B * 2 * S * 5);
    for (int length = 1; length < S; length++) {
        ck_assert_int_eq(past_key_values_prefix(&past, length, &prefix, NULL),
                         STATUS_OK);
        ck_assert_int_eq(prefix.n_layers, 3);
        ck_assert_int_eq(past_key_values_check(&prefix, &config, B, NULL),
                         STATUS_OK);
        ck_assert_int_eq(past_key_values_length(&prefix), length);
        for (int l = 0; l < 3; l++)
            for (int slice = 0; slice < B * 2; slice++)
                for (int k = 0; k < length * 5; k++) {
                    int from = slice * S * 5 + k;
                    int at = slice * length * 5 + k;
                    ck_assert_float_eq(prefix.layers[l].key.data[at],
                                       past.layers[l].key.data[from]);
                    ck_assert_float_eq(prefix.layers[l].value.data[at],
                                       past.layers[l].value.data[from]);
                }
        past_key_values_free(&prefix);
    }
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_prefix_shares_no_storage_even_at_full_length)
{
    struct past_key_values past = numbered(), again = numbered();
    struct past_key_values prefix = {0};
    ck_assert_int_eq(past_key_values_prefix(&past, S, &prefix, NULL),
                     STATUS_OK);
    ck_assert_ptr_ne(prefix.layers, past.layers);
    expect_equal_caches("full prefix", &prefix, &past);
    prefix.layers[1].value.data[7] = -1;
    expect_equal_caches("the original", &past, &again);
    past_key_values_free(&past);
    ck_assert_float_eq(prefix.layers[1].value.data[7], -1);
    past_key_values_free(&prefix);
    past_key_values_free(&again);
}
END_TEST

START_TEST(a_prefix_refuses_lengths_that_the_cache_does_not_have)
{
    struct past_key_values past = numbered(), prefix = {0};
    struct error error = {0};
    const int lengths[] = {0, -1, S + 1, INT_MAX, INT_MIN};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        char message[64];
        snprintf(message, sizeof message, "length: expected 1 to 4, got %d",
                 lengths[k]);
        long calls = allocator_calls();
        enum status status = past_key_values_prefix(&past, lengths[k],
                                                    &prefix, &error);
        calls = allocator_calls() - calls;
        ck_assert_int_eq(status, STATUS_INVALID);
        ck_assert_int_eq(calls, 0);
        expect_facts(error.message, message);
        ck_assert_ptr_null(prefix.layers);
    }
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_prefix_of_a_malformed_cache_is_refused)
{
    struct past_key_values past = numbered(), prefix = {0};
    const struct past_key_values none = {0};
    struct error error = {0};
    ck_assert_int_eq(past_key_values_prefix(NULL, 1, &prefix, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "past_key_values: no layers");
    ck_assert_int_eq(past_key_values_prefix(&none, 1, &prefix, &error),
                     STATUS_INVALID);
    past.layers[2].key.shape[2] = S - 1;
    ck_assert_int_eq(past_key_values_prefix(&past, 1, &prefix, &error),
                     STATUS_INVALID);
    expect_facts(error.message,
                 "past_key_values[2].key: length: expected 4, got 3");
    past.layers[2].key.shape[2] = S;
    ck_assert_ptr_null(prefix.layers);
    past_key_values_free(&past);
}
END_TEST

START_TEST(a_prefix_survives_each_failed_allocation)
{
    struct past_key_values past = numbered(), again = numbered();
    for (long n = 1; ; n++) {
        struct past_key_values prefix = {0};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = past_key_values_prefix(&past, 2, &prefix, NULL);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        if (!failed) {
            ck_assert_int_gt(n, 6);
            past_key_values_free(&prefix);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(prefix.layers);
        ck_assert_int_eq(live, 0);
    }
    expect_equal_caches("the original", &past, &again);
    past_key_values_free(&past);
    past_key_values_free(&again);
}
END_TEST

/* ------------------------------------------------------- the call with a past */

/* Row t of the embedding is the sum of two rows, in the test's own words. */
START_TEST(new_tokens_are_embedded_at_their_place_in_the_text)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 5, NULL, true);
    struct activations activations = {0};
    struct forward_output output = {0};
    int32_t ids[2];
    cached_columns(&cached, 5, 1, ids);
    const struct forward_input input = {
        .ids = ids, .batch = 2, .tokens = 1, .activations = &activations,
        .past_key_values = &prefix.past_key_values
    };
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, NULL),
                     STATUS_OK);
    ck_assert_int_eq(activations.past, 5);
    const float *token = golden_get(cached.golden,
                                    "w.token_embedding.weight")->f32;
    const float *position = golden_get(cached.golden,
                                       "w.position_embedding.weight")->f32;
    for (int b = 0; b < 2; b++)
        for (int c = 0; c < 16; c++)
            ck_assert_float_eq(activations.embedding.data[b * 16 + c],
                               token[ids[b] * 16 + c] + position[5 * 16 + c]);
    activations_free(&activations);
    forward_output_free(&output);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* Each slice of the joined tensors: the caller's rows, then the projection's,
   found by their place in qkv [B,T,3C]. */
START_TEST(attention_gets_the_keys_and_values_of_past_and_present)
{
    struct cached cached = cached_noise();
    struct forward_output prefix = cached_run(&cached, 0, 4, NULL, true);
    struct activations activations = {0};
    struct forward_output output = {0};
    int32_t ids[3];
    cached_columns(&cached, 4, 1, ids);
    const struct forward_input input = {
        .ids = ids, .batch = 3, .tokens = 1, .activations = &activations,
        .past_key_values = &prefix.past_key_values
    };
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, NULL),
                     STATUS_OK);
    for (int l = 0; l < 3; l++)
        for (int part = 0; part < 2; part++) {
            const struct block_activations *act = &activations.blocks[l];
            const struct layer_kv *pair = &prefix.past_key_values.layers[l];
            const float *joined = part ? act->value.data : act->key.data;
            const float *past = part ? pair->value.data : pair->key.data;
            ck_assert_int_eq(act->key.shape[2], 5);
            for (int b = 0; b < 3; b++)
                for (int h = 0; h < 2; h++) {
                    const int slice = b * 2 + h;
                    const char *what = part ? "values" : "keys";
                    expect_same_bits(what, joined + slice * 25,
                                     past + slice * 20, 20 * sizeof (float));
                    expect_same_bits(what, joined + slice * 25 + 20,
                                     act->qkv.data + b * 30 + (part + 1) * 10
                                     + h * 5, 5 * sizeof (float));
                }
        }
    activations_free(&activations);
    forward_output_free(&output);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

START_TEST(a_call_without_use_cache_returns_none)
{
    struct cached cached = cached_golden();
    struct forward_output plain = cached_run(&cached, 0, 4, NULL, false);
    struct forward_output prefix = cached_run(&cached, 0, 4, NULL, true);
    struct forward_output last = cached_run(&cached, 4, 1,
                                            &prefix.past_key_values, false);
    ck_assert_ptr_null(plain.past_key_values.layers);
    ck_assert_int_eq(plain.past_key_values.n_layers, 0);
    ck_assert_ptr_null(last.past_key_values.layers);
    ck_assert_int_eq(last.past_key_values.n_layers, 0);
    forward_output_free(&plain);
    forward_output_free(&prefix);
    forward_output_free(&last);
    cached_close(&cached);
}
END_TEST

START_TEST(a_call_with_use_cache_returns_one_pair_a_layer)
{
    struct cached cached = cached_golden();
    struct forward_output all = cached_run(&cached, 0, 7, NULL, true);
    ck_assert_int_eq(all.past_key_values.n_layers, 2);
    ck_assert_int_eq(past_key_values_length(&all.past_key_values), 7);
    ck_assert_int_eq(past_key_values_check(&all.past_key_values,
                                           cached.config, 2, NULL), STATUS_OK);
    forward_output_free(&all);
    cached_close(&cached);
}
END_TEST

START_TEST(returned_caches_equal_the_golden)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    expect_golden_cache(cached.golden, "out.prefix.past",
                        &prefix.past_key_values);
    struct forward_output all = cached_run(&cached, 0, 7, NULL, true);
    expect_golden_cache(cached.golden, "out.past", &all.past_key_values);
    forward_output_free(&prefix);
    forward_output_free(&all);
    cached_close(&cached);
}
END_TEST

START_TEST(asking_for_a_cache_changes_no_logit)
{
    struct cached cached = cached_golden();
    struct forward_output with = cached_run(&cached, 0, 7, NULL, true);
    struct forward_output without = cached_run(&cached, 0, 7, NULL, false);
    expect_same_bits("logits", with.logits.data, without.logits.data,
                     tensor_size(&with.logits) * sizeof (float));
    forward_output_free(&with);
    forward_output_free(&without);
    cached_close(&cached);
}
END_TEST

/* A cache and the activations can both be asked for, and each is freed. */
START_TEST(the_returned_cache_is_apart_from_the_activations)
{
    struct cached cached = cached_golden();
    struct activations activations = {0};
    struct forward_output output = {0};
    const struct forward_input input = {
        .ids = cached.ids, .batch = 2, .tokens = 7,
        .activations = &activations, .use_cache = true
    };
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, NULL),
                     STATUS_OK);
    struct past_key_values seen = {2, calloc(2, sizeof *seen.layers)};
    for (int l = 0; l < 2; l++)
        seen.layers[l] = (struct layer_kv){activations.blocks[l].key,
                                           activations.blocks[l].value};
    expect_equal_caches("activations", &output.past_key_values, &seen);
    free(seen.layers);
    activations_free(&activations);
    expect_golden_cache(cached.golden, "out.past", &output.past_key_values);
    forward_output_free(&output);
    cached_close(&cached);
}
END_TEST

START_TEST(the_callers_cache_keeps_every_bit)
{
    struct cached cached = cached_golden();
    struct past_key_values copy = {0};
    struct forward_output prefix = cached_run(&cached, 0, 6, NULL, true);
    ck_assert_int_eq(past_key_values_prefix(&prefix.past_key_values, 6, &copy,
                                            NULL), STATUS_OK);
    struct layer_kv *layers = prefix.past_key_values.layers;
    const float *key = layers[1].key.data;
    struct forward_output next = cached_run(&cached, 6, 1,
                                            &prefix.past_key_values, true);
    ck_assert_ptr_eq(prefix.past_key_values.layers, layers);
    ck_assert_ptr_eq(layers[1].key.data, key);
    expect_equal_caches("the caller's cache", &prefix.past_key_values, &copy);
    for (int l = 0; l < 2; l++) {
        ck_assert_ptr_ne(next.past_key_values.layers[l].key.data,
                         layers[l].key.data);
        ck_assert_ptr_ne(next.past_key_values.layers[l].value.data,
                         layers[l].value.data);
    }
    forward_output_free(&next);
    expect_equal_caches("after the free", &prefix.past_key_values, &copy);
    forward_output_free(&prefix);
    past_key_values_free(&copy);
    cached_close(&cached);
}
END_TEST

/* The golden's row P, from a cache of P tokens and one new one. */
START_TEST(one_step_behind_every_prefix_equals_the_golden_row)
{
    struct cached cached = cached_golden();
    const float *rows = golden_get(cached.golden, "out.logits")->f32;
    for (int past = 1; past < 7; past++) {
        struct forward_output prefix = cached_run(&cached, 0, past, NULL,
                                                  true);
        struct forward_output step = cached_run(&cached, past, 1,
                                                &prefix.past_key_values,
                                                false);
        ck_assert_int_eq(step.logits.shape[1], 1);
        expect_rows_close("logits", &cached, &step.logits, rows, past);
        forward_output_free(&step);
        forward_output_free(&prefix);
    }
    cached_close(&cached);
}
END_TEST

/* Token by token from nothing, logits and caches. */
static void decode_everything(const struct cached *cached)
{
    struct forward_output all = cached_run(cached, 0, cached->tokens, NULL,
                                           true);
    struct past_key_values past = {0};
    for (int t = 0; t < cached->tokens; t++) {
        struct past_key_values prefix = {0};
        struct forward_output step = cached_run(cached, t, 1,
                                                t == 0 ? NULL : &past, true);
        ck_assert_int_eq(past_key_values_length(&step.past_key_values),
                         t + 1);
        expect_rows_close("logits", cached, &step.logits, all.logits.data, t);
        ck_assert_int_eq(past_key_values_prefix(&all.past_key_values, t + 1,
                                                &prefix, NULL), STATUS_OK);
        expect_equal_caches("the cache of the step", &step.past_key_values,
                            &prefix);
        past_key_values_free(&prefix);
        past_key_values_free(&past);
        past = step.past_key_values;
        tensor_free(&step.logits);
    }
    past_key_values_free(&past);
    forward_output_free(&all);
}

START_TEST(tokenwise_decoding_equals_the_full_forward)
{
    struct cached cached = cached_golden();
    decode_everything(&cached);
    cached_close(&cached);
    cached = cached_noise();
    decode_everything(&cached);
    cached_close(&cached);
}
END_TEST

/* Rows of a batch know nothing of one another. */
START_TEST(a_batch_decodes_as_its_rows_do_alone)
{
    struct cached cached = cached_noise(), solo = cached;
    struct forward_output prefix = cached_run(&cached, 0, 5, NULL, true);
    struct forward_output step = cached_run(&cached, 5, 1,
                                            &prefix.past_key_values, true);
    solo.batch = 1;
    for (int b = 0; b < cached.batch; b++) {
        memcpy(solo.ids, cached.ids + b * cached.tokens,
               (size_t)cached.tokens * sizeof *solo.ids);
        struct forward_output before = cached_run(&solo, 0, 5, NULL, true);
        struct forward_output alone = cached_run(&solo, 5, 1,
                                                 &before.past_key_values,
                                                 true);
        expect_same_bits("logits", step.logits.data + b * 13,
                         alone.logits.data, 13 * sizeof (float));
        for (int l = 0; l < 3; l++)
            expect_same_bits("keys",
                             step.past_key_values.layers[l].key.data
                             + b * 60,
                             alone.past_key_values.layers[l].key.data,
                             60 * sizeof (float));
        forward_output_free(&alone);
        forward_output_free(&before);
    }
    forward_output_free(&step);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* ------------------------------------------------------ refusals of the call */

/* The call is refused before any work: not one allocation, and output,
   activations and cache are as they were. */
static void expect_call_refused(const struct cached *cached, int tokens,
                                const struct past_key_values *past,
                                const char *message)
{
    const int32_t ids[TEXT_MAX] = {0};
    struct activations activations = {0};
    struct forward_output output = {0};
    struct error error = {0};
    const struct forward_input input = {
        .ids = ids, .batch = cached->batch, .tokens = tokens,
        .activations = &activations, .past_key_values = past,
        .use_cache = true
    };
    long calls = allocator_calls();
    enum status status = tiny_gpt_forward(cached->model, &input, &output,
                                          &error);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(status, STATUS_INVALID);
    expect_facts(error.message, message);
    ck_assert_int_eq(calls, 0);
    ck_assert_ptr_null(output.logits.data);
    ck_assert_ptr_null(output.past_key_values.layers);
    ck_assert_ptr_null(activations.blocks);
}

START_TEST(a_malformed_cache_is_refused_before_any_work)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct past_key_values *past = &prefix.past_key_values;
    cached.batch = 1;
    expect_call_refused(&cached, 1, past,
                        "past_key_values[0].key: batch: expected 1, got 2");
    cached.batch = 2;
    past->n_layers = 1;
    expect_call_refused(&cached, 1, past,
                        "past_key_values: expected 2 layers, got 1");
    past->n_layers = 2;
    past->layers[0].key.shape[1] = 2;
    past->layers[0].key.shape[2] = 6;
    expect_call_refused(&cached, 1, past,
                        "past_key_values[0].key: heads: expected 4, got 2");
    past->layers[0].key.shape[1] = 4;
    past->layers[0].key.shape[2] = 3;
    past->layers[1].value.shape[2] = 2;
    expect_call_refused(&cached, 1, past,
                        "past_key_values[1].value: length: expected 3, got 2");
    past->layers[1].value.shape[2] = 3;
    const struct past_key_values none = {0};
    expect_call_refused(&cached, 1, &none,
                        "past_key_values: expected 2 layers, got 0");
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* N = 12: eleven tokens leave room for one, twelve for none. */
START_TEST(the_context_ends_where_past_and_new_tokens_fill_it)
{
    struct cached cached = cached_golden();
    uint64_t state = noise_start(6);
    noise_ids(&state, 23, 2, 12, cached.ids);
    cached.tokens = 12;
    struct forward_output eleven = cached_run(&cached, 0, 11, NULL, true);
    expect_call_refused(&cached, 2, &eleven.past_key_values,
                        "past + tokens: expected at most context_length 12,"
                        " got 11 + 2");
    ck_assert_int_eq(past_key_values_length(&eleven.past_key_values), 11);
    struct forward_output twelve = cached_run(&cached, 11, 1,
                                              &eleven.past_key_values, true);
    ck_assert_int_eq(past_key_values_length(&twelve.past_key_values), 12);
    expect_call_refused(&cached, 1, &twelve.past_key_values,
                        "past + tokens: expected at most context_length 12,"
                        " got 12 + 1");
    ck_assert_int_eq(past_key_values_length(&twelve.past_key_values), 12);
    forward_output_free(&twelve);
    forward_output_free(&eleven);
    cached_close(&cached);
}
END_TEST

START_TEST(a_cache_longer_than_the_context_is_refused)
{
    struct cached cached = cached_golden();
    struct past_key_values past = {0};
    ck_assert_int_eq(past_key_values_new(&past, cached.config, 2, 13, NULL),
                     STATUS_OK);
    expect_call_refused(&cached, 1, &past,
                        "past + tokens: expected at most context_length 12,"
                        " got 13 + 1");
    past_key_values_free(&past);
    cached_close(&cached);
}
END_TEST

START_TEST(an_output_that_holds_a_cache_is_refused)
{
    struct cached cached = cached_golden();
    struct forward_output output = cached_run(&cached, 0, 3, NULL, true);
    struct error error = {0};
    int32_t ids[2];
    cached_columns(&cached, 3, 1, ids);
    tensor_free(&output.logits);
    const struct forward_input input = {
        .ids = ids, .batch = 2, .tokens = 1,
        .past_key_values = &output.past_key_values, .use_cache = true
    };
    ck_assert_int_eq(tiny_gpt_forward(cached.model, &input, &output, &error),
                     STATUS_INVALID);
    expect_facts(error.message,
                 "output: expected an empty struct, got a cache");
    ck_assert_int_eq(past_key_values_length(&output.past_key_values), 3);
    forward_output_free(&output);
    cached_close(&cached);
}
END_TEST

START_TEST(a_step_survives_each_failed_allocation)
{
    struct cached cached = cached_golden();
    struct forward_output prefix = cached_run(&cached, 0, 3, NULL, true);
    struct past_key_values copy = {0};
    int32_t ids[2];
    cached_columns(&cached, 3, 1, ids);
    past_key_values_prefix(&prefix.past_key_values, 3, &copy, NULL);
    for (long n = 1; ; n++) {
        struct forward_output output = {0};
        struct activations activations = {0};
        struct error error = {0};
        const struct forward_input input = {
            .ids = ids, .batch = 2, .tokens = 1,
            .activations = &activations,
            .past_key_values = &prefix.past_key_values, .use_cache = true
        };
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tiny_gpt_forward(cached.model, &input, &output,
                                              &error);
        bool failed = allocator_stop();
        if (!failed) {
            activations_free(&activations);
            forward_output_free(&output);
        }
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        if (!failed) {
            ck_assert_int_eq(status, STATUS_OK);
            ck_assert_int_gt(n, 5);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(error.status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(output.logits.data);
        ck_assert_ptr_null(output.past_key_values.layers);
        ck_assert_ptr_null(activations.blocks);
    }
    expect_equal_caches("the caller's cache", &prefix.past_key_values, &copy);
    past_key_values_free(&copy);
    forward_output_free(&prefix);
    cached_close(&cached);
}
END_TEST

/* -------------------------------------------------------------------- table */

#define MAKE "allocate every pair, or none"
#define APPEND "copy the slice's past and then its new rows"
#define DIMS "refuse a tensor that differs from the expected shape"
#define LAYERS "refuse the first layer that does not fit"
#define PREFIX "copy the first rows of every slice"
#define OWN "make a cache of its own for the prefix"
#define ROOM "make room for a cache when one is asked for"
#define COPY "copy the joined keys and values into the new cache"
#define JOIN "join the past keys and values to the new ones"
#define CHECKED "check the past before any work"
#define MASK "decide whether query i may see key j"

static const struct test tests[] = {
    TEST(a_new_cache_has_one_pair_of_zeros_a_layer, 0, MAKE),
    TEST(freeing_empties_and_may_be_repeated, 0, "a cache is made and freed"),
    TEST(no_cache_has_length_zero, 0, "the dimensions of a cache"),
    TEST(a_new_cache_refuses_sizes_below_one, 0, MAKE),
    TEST(a_new_cache_survives_each_failed_allocation, 2, MAKE),
    TEST(each_slice_keeps_its_past_and_gets_its_new_rows_behind_it, 2,
         APPEND),
    TEST(appending_one_row_to_one_slice_is_a_join, 2, APPEND),
    TEST(appending_to_nothing_is_a_copy, 2, APPEND),
    TEST(a_fitting_cache_passes_the_check, 2, DIMS),
    TEST(a_missing_cache_and_a_wrong_layer_count_are_refused, 2,
         "refuse a missing cache and a wrong number of layers"),
    TEST(a_batch_below_one_is_refused, 2, "refuse a batch of nothing"),
    TEST(a_null_tensor_is_refused, 2, "check one tensor"),
    TEST(another_rank_is_refused, 2, "check one tensor"),
    TEST(another_batch_is_refused, 2, DIMS),
    TEST(another_number_of_heads_is_refused, 2, DIMS),
    TEST(another_head_dim_is_refused, 2, DIMS),
    TEST(an_empty_cache_is_refused, 2, "refuse a cache of no tokens"),
    TEST(a_value_that_differs_from_its_key_is_refused, 2, LAYERS),
    TEST(layers_of_unequal_length_are_refused, 2, LAYERS),
    TEST(every_layer_is_held_against_every_rule, 2, LAYERS),
    TEST(a_right_size_with_exchanged_dimensions_is_refused, 2, DIMS),
    TEST(a_prefix_is_the_first_rows_of_every_slice, 2, PREFIX),
    TEST(a_prefix_shares_no_storage_even_at_full_length, 2, OWN),
    TEST(a_prefix_refuses_lengths_that_the_cache_does_not_have, 2,
         "refuse a cache that is not one, and a length that it does not have"),
    TEST(a_prefix_of_a_malformed_cache_is_refused, 2,
         "refuse a cache that is not one, and a length that it does not have"),
    TEST(a_prefix_survives_each_failed_allocation, 2, OWN),
    TEST(a_malformed_cache_is_refused_before_any_work, 2, CHECKED),
    TEST(new_tokens_are_embedded_at_their_place_in_the_text, 2,
         "let first be the position of the call's first token"),
    TEST(a_call_without_use_cache_returns_none, 2, ROOM),
    TEST(a_call_with_use_cache_returns_one_pair_a_layer, 2, ROOM),
    TEST(the_returned_cache_is_apart_from_the_activations, 2, COPY),
    TEST(returned_caches_equal_the_golden, 2, COPY),
    TEST(asking_for_a_cache_changes_no_logit, 2, COPY),
    TEST(attention_gets_the_keys_and_values_of_past_and_present, 2, JOIN),
    TEST(the_callers_cache_keeps_every_bit, 2, JOIN),
    TEST(one_step_behind_every_prefix_equals_the_golden_row, 2, MASK),
    TEST(tokenwise_decoding_equals_the_full_forward, 2, MASK),
    TEST(a_batch_decodes_as_its_rows_do_alone, 2, JOIN),
    TEST(the_context_ends_where_past_and_new_tokens_fill_it, 2,
         "hold the whole text against the context"),
    TEST(a_cache_longer_than_the_context_is_refused, 2,
         "hold the whole text against the context"),
    TEST(an_output_that_holds_a_cache_is_refused, 2,
         "checks of later chapters"),
    TEST(a_step_survives_each_failed_allocation, 2, ROOM),
};

SUITE("chapter 4, the functional cache", tests);
