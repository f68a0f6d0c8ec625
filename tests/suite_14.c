/* Chapter 14: predictions of parameters, bytes and operations against models,
   files, storages and the allocator, against sums that are made here in the
   plainest way, and against numbers that others have published. What is timed
   is tested with a clock of the suite's own. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "agreement.h"
#include "cache_bytes.h"
#include "held.h"
#include "kv_cache.h"
#include "model_file.h"
#include "phase_print.h"
#include "request.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/llamas.h"
#include "support/program.h"

static struct error error;

/* ------------------------------------------------------------------ subjects */

static struct gpt_config some_gpt_config(uint64_t *state)
{
    const int heads = 1 + noise_below(state, 4);
    return (struct gpt_config){
        .vocab_size = 5 + noise_below(state, 30),
        .context_length = 9 + noise_below(state, 30),
        .d_model = heads * (1 + noise_below(state, 5)),
        .n_layers = 1 + noise_below(state, 4), .n_heads = heads,
        .d_ff = 1 + noise_below(state, 20), .layer_norm_eps = 1e-5
    };
}

static struct llama_config some_llama_config(uint64_t *state)
{
    const int group = 1 + noise_below(state, 4);
    const int kv = 1 + noise_below(state, 3);
    return (struct llama_config){
        .vocab_size = 5 + noise_below(state, 30),
        .context_length = 9 + noise_below(state, 30),
        .d_model = 1 + noise_below(state, 20),
        .n_layers = 1 + noise_below(state, 4), .n_heads = group * kv,
        .n_kv_heads = kv, .head_dim = 2 + 2 * noise_below(state, 4),
        .d_ff = 1 + noise_below(state, 20), .rms_norm_eps = 1e-5,
        .rope_theta = 100, .tie_word_embeddings = noise_below(state, 2) == 1
    };
}

static struct llama_config expert_config(void)
{
    struct llama_config config = small_llama_config();
    config.n_experts = 5;
    config.experts_per_token = 2;
    return config;
}

static struct ownership own_gpt(const struct gpt_config *config)
{
    struct ownership ownership;
    expect_ok(ownership_of_gpt(&ownership, config, &error), &error);
    return ownership;
}

static struct ownership own_llama(const struct llama_config *config)
{
    struct ownership ownership;
    expect_ok(ownership_of_llama(&ownership, config, &error), &error);
    return ownership;
}

static struct held_tensor *room(size_t count)
{
    struct held_tensor *list = calloc(count, sizeof *list);
    ck_assert_ptr_nonnull(list);
    return list;
}

/* The list is the prediction, in name, shape and sum. */
static void expect_held(const struct ownership *ownership,
                        const struct held_tensor *list, size_t count)
{
    expect_ok(ownership_check(ownership, list, count, &error), &error);
    const struct holding held = ownership_hold(ownership, list, count);
    for (int m = 0; m < MODULES; m++)
        ck_assert_msg(held.floats[m] == ownership->floats[m],
                      "%s: predicted %zu, held %zu",
                      module_name((enum module)m), ownership->floats[m],
                      held.floats[m]);
    ck_assert_uint_eq(held.total, ownership->total);
    ck_assert_uint_eq(held.unknown, 0);
}

/* ----------------------------------------------------------------- ownership */

/* All sizes differ, so that each product is its own. */
START_TEST(each_owner_of_a_gpt_has_its_part)
{
    const struct gpt_config config = {
        .vocab_size = 11, .context_length = 7, .d_model = 6, .n_layers = 3,
        .n_heads = 2, .d_ff = 5, .layer_norm_eps = 1e-5
    };
    const size_t want[MODULES] = {
        [MODULE_EMBEDDING] = 66, [MODULE_POSITION] = 42,
        [MODULE_NORM] = 3 * 24 + 12, [MODULE_QUERY] = 3 * (36 + 6),
        [MODULE_KEY] = 3 * (36 + 6), [MODULE_VALUE] = 3 * (36 + 6),
        [MODULE_OUTPUT] = 3 * (36 + 6),
        [MODULE_FEED_FORWARD] = 3 * (30 + 5 + 30 + 6)
    };
    const struct ownership own = own_gpt(&config);
    for (int m = 0; m < MODULES; m++)
        ck_assert_msg(own.floats[m] == want[m], "%s: expected %zu, got %zu",
                      module_name((enum module)m), want[m], own.floats[m]);
    ck_assert_uint_eq(own.total, 66 + 42 + 84 + 4 * 126 + 213);
    ck_assert_uint_eq(own.active, own.total);
}
END_TEST

START_TEST(queries_are_as_wide_as_all_their_heads)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    ck_assert_uint_eq(own.floats[MODULE_QUERY], 3 * 24 * 10);
    ck_assert_uint_eq(own.floats[MODULE_OUTPUT], 3 * 10 * 24);
}
END_TEST

START_TEST(each_owner_of_a_llama_has_its_part)
{
    const struct llama_config config = small_llama_config();
    const size_t want[MODULES] = {       /* V 13, C 10, L 3, HD 24, HkD 12 */
        [MODULE_EMBEDDING] = 130, [MODULE_NORM] = 3 * 20 + 10,
        [MODULE_QUERY] = 3 * 240, [MODULE_KEY] = 3 * 120,
        [MODULE_VALUE] = 3 * 120, [MODULE_OUTPUT] = 3 * 240,
        [MODULE_FEED_FORWARD] = 3 * 210, [MODULE_HEAD] = 130
    };
    const struct ownership own = own_llama(&config);
    size_t total = 0;
    for (int m = 0; m < MODULES; m++) {
        ck_assert_msg(own.floats[m] == want[m], "%s: expected %zu, got %zu",
                      module_name((enum module)m), want[m], own.floats[m]);
        total += want[m];
    }
    ck_assert_uint_eq(own.total, total);
    ck_assert_uint_eq(own.active, total);
}
END_TEST

START_TEST(a_tied_head_is_counted_once)
{
    struct llama_config config = small_llama_config();
    const struct ownership apart = own_llama(&config);
    config.tie_word_embeddings = true;
    const struct ownership tied = own_llama(&config);
    ck_assert_uint_eq(tied.floats[MODULE_HEAD], 0);
    ck_assert_uint_eq(tied.floats[MODULE_EMBEDDING], 130);
    ck_assert_uint_eq(apart.total - tied.total, 130);
    uint64_t state = noise_start(140);
    const struct gpt_config gpt = some_gpt_config(&state);
    ck_assert_uint_eq(own_gpt(&gpt).floats[MODULE_HEAD], 0);
}
END_TEST

START_TEST(every_expert_of_every_layer_is_stored)
{
    struct llama_config config = expert_config();
    for (int chosen = 1; chosen <= 5; chosen++) {
        config.experts_per_token = chosen;
        const struct ownership own = own_llama(&config);
        ck_assert_uint_eq(own.floats[MODULE_EXPERTS], 3 * 5 * 3 * 7 * 10);
        ck_assert_uint_eq(own.floats[MODULE_ROUTER], 3 * 5 * 10);
        ck_assert_uint_eq(own.floats[MODULE_FEED_FORWARD], 0);
    }
}
END_TEST

START_TEST(total_and_active_parameters_are_reported_apart)
{
    struct llama_config config = expert_config();
    const size_t one = 3 * 7 * 10;           /* 3FC */
    for (int chosen = 1; chosen <= 5; chosen++) {
        config.experts_per_token = chosen;
        const struct ownership own = own_llama(&config);
        ck_assert_uint_eq(own.total - own.active,
                          3 * (5 - (size_t)chosen) * one);
    }
}
END_TEST

/* As their authors give them. */
START_TEST(published_models_have_their_published_sizes)
{
    const struct gpt_config gpt2 = {
        .vocab_size = 50257, .context_length = 1024, .d_model = 768,
        .n_layers = 12, .n_heads = 12, .d_ff = 3072, .layer_norm_eps = 1e-5
    };
    struct llama_config llama = {
        .vocab_size = 128256, .context_length = 8192, .d_model = 4096,
        .n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128,
        .d_ff = 14336, .rms_norm_eps = 1e-5, .rope_theta = 500000
    };
    ck_assert_uint_eq(own_gpt(&gpt2).total, 124439808);
    ck_assert_uint_eq(own_llama(&llama).total, 8030261248);
    llama.vocab_size = 32000;
    llama.n_experts = 8;
    llama.experts_per_token = 2;
    ck_assert_uint_eq(own_llama(&llama).total, 46702792704);
    ck_assert_uint_eq(own_llama(&llama).active, 12879925248);
}
END_TEST

/* The prediction is made before there is a model. */
START_TEST(ownership_is_predicted_within_one_percent_and_in_fact_exactly)
{
    uint64_t state = noise_start(141);
    for (int round = 0; round < 20; round++) {
        const struct gpt_config config = some_gpt_config(&state);
        const struct ownership own = own_gpt(&config);
        struct tiny_gpt *model = new_model(&config);
        const struct parameters *weights = tiny_gpt_weights(model);
        struct held_tensor *list = room((size_t)weights->count);
        expect_held(&own, list, held_by_gpt(weights, list));
        ck_assert_uint_eq(own.total, weights->size);
        free(list);
        tiny_gpt_free(&model);
    }
    for (int round = 0; round < 20; round++) {
        const struct llama_config config = some_llama_config(&state);
        const struct ownership own = own_llama(&config);
        struct llama *model = new_llama(&config);
        struct held_tensor *list = room(llama_tensor_count(model));
        expect_held(&own, list, held_by_llama(model, list));
        free(list);
        llama_free(&model);
    }
}
END_TEST

/* A file of random size, as the book writes them: header, then data. */
START_TEST(a_files_bytes_are_the_predicted_ones)
{
    uint64_t state = noise_start(142);
    const struct gpt_config config = some_gpt_config(&state);
    const struct ownership own = own_gpt(&config);
    struct tiny_gpt *model = noisy_model(&config, 143);
    char path[512];
    snprintf(path, sizeof path, "%s/audit", harness_scratch());
    expect_ok(tiny_gpt_save(model, path, &error), &error);
    tiny_gpt_free(&model);
    snprintf(path, sizeof path, "%s/audit/model.safetensors",
             harness_scratch());
    struct safetensors *file = NULL;
    expect_ok(safetensors_open(&file, path, &error), &error);
    struct held_tensor *list = room(safetensors_count(file));
    expect_held(&own, list, held_by_file(file, list));
    free(list);
    size_t bytes = 0;
    for (size_t k = 0; k < safetensors_count(file); k++)
        bytes += safetensors_at(file, k)->bytes;
    ck_assert_uint_eq(bytes, own.total * sizeof (float));
    safetensors_close(&file);
    FILE *raw = fopen(path, "rb");
    unsigned char length[8];
    struct stat status;
    ck_assert_ptr_nonnull(raw);
    ck_assert_uint_eq(fread(length, 1, 8, raw), 8);
    ck_assert_int_eq(fstat(fileno(raw), &status), 0);
    fclose(raw);
    size_t header = 0;
    for (int k = 7; k >= 0; k--)
        header = 256 * header + length[k];
    ck_assert_uint_eq((size_t)status.st_size,
                      8 + header + own.total * sizeof (float));
}
END_TEST

/* The oracle's file has the names and shapes of Mixtral's. */
START_TEST(a_model_of_experts_holds_what_is_predicted)
{
    struct golden *golden = golden_open("llama_moe");
    struct llama_config config = golden_llama_config(golden);
    config.n_experts = (int)golden_number(golden, "experts");
    config.experts_per_token = (int)golden_number(golden,
                                                  "experts_per_token");
    const struct ownership own = own_llama(&config);
    struct held_tensor *list = room(golden->count);
    size_t count = 0;
    for (size_t k = 0; k < golden->count; k++) {
        const struct golden_tensor *t = &golden->tensors[k];
        if (strncmp(t->name, "w.", 2) == 0)
            list[count++] = (struct held_tensor){
                t->name + 2, t->rank, {t->shape[0], t->shape[1]}, false,
                (size_t)t->shape[0] * (size_t)(t->rank > 1 ? t->shape[1] : 1)
            };
    }
    expect_held(&own, list, count);
    ck_assert_uint_eq(own.total - own.active, 2 * 2 * 3 * 48 * 32);
    free(list);
    golden_close(golden);
}
END_TEST

START_TEST(a_pattern_stands_for_the_names_of_its_tensors_and_no_others)
{
    const struct llama_config config = expert_config();
    const struct ownership own = own_llama(&config);
    char name[OWNED_NAME_MAX];
    for (int r = 0; r < own.count; r++)
        for (int layer = 0; layer < 3; layer++)
            for (int e = 0; e < 5; e++) {
                owned_row_name(&own.rows[r], layer, e, name);
                ck_assert_ptr_eq(ownership_find(&own, name), &own.rows[r]);
            }
    owned_row_name(ownership_find(&own, "model.layers.0.block_sparse_moe"
                                        ".experts.0.w3.weight"), 2, 4, name);
    ck_assert_str_eq(name,
                     "model.layers.2.block_sparse_moe.experts.4.w3.weight");
    static const char *const none[] = {
        "", "model.norm", "model.norm.weight2", "model.norm.weigh",
        "model.layers.3.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight",
        "model.layers.00.input_layernorm.weight",
        "model.layers..input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight",
        "model.layers.99999999999999999999.input_layernorm.weight",
        "model.layers.*.input_layernorm.weight",
        "model.layers.1.block_sparse_moe.experts.5.w1.weight",
        "model.layers.1.block_sparse_moe.experts.w1.weight",
        "model.layers.1.mlp.up_proj.weight", "xmodel.norm.weight"
    };
    for (size_t k = 0; k < sizeof none / sizeof *none; k++)
        ck_assert_msg(ownership_find(&own, none[k]) == NULL,
                      "\"%s\" was found", none[k]);
}
END_TEST

START_TEST(a_tensor_that_nobody_predicted_is_refused)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    struct llama *model = new_llama(&config);
    const size_t count = llama_tensor_count(model);
    struct held_tensor *list = room(count + 1);
    held_by_llama(model, list);
    list[count] = (struct held_tensor){"model.extra.weight", 1, {3, 0},
                                       false, 3};
    ck_assert_int_eq(ownership_check(&own, list, count + 1, &error),
                     STATUS_INVALID);
    expect_named(&error, "model.extra.weight");
    const struct holding held = ownership_hold(&own, list, count + 1);
    ck_assert_uint_eq(held.unknown, 3);
    ck_assert_uint_eq(held.total, own.total);
    free(list);
    llama_free(&model);
}
END_TEST

/* GPT-2's buffers of the hub: [1,1,N,N]. */
START_TEST(a_buffer_of_rank_four_counts_all_its_elements)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    const float mask[16] = {0};
    const struct safetensors_entry buffer = {
        "h.0.attn.bias", DTYPE_F32, 4, {1, 1, 4, 4}, mask, sizeof mask
    };
    char path[512];
    snprintf(path, sizeof path, "%s/buffer", harness_scratch());
    expect_ok(safetensors_write(path, &buffer, 1, NULL, 0, &error), &error);
    struct safetensors *file = NULL;
    expect_ok(safetensors_open(&file, path, &error), &error);
    struct held_tensor held;
    ck_assert_uint_eq(held_by_file(file, &held), 1);
    ck_assert_int_eq(held.rank, 4);
    ck_assert_uint_eq(ownership_hold(&own, &held, 1).unknown, 16);
    safetensors_close(&file);
}
END_TEST

/* One tensor of the list is changed in each way that it can be. */
START_TEST(the_first_tensor_that_differs_is_named)
{
    uint64_t state = noise_start(144);
    struct llama_config config = some_llama_config(&state);
    config.tie_word_embeddings = false;
    const struct ownership own = own_llama(&config);
    struct llama *model = new_llama(&config);
    const size_t count = llama_tensor_count(model);
    struct held_tensor *list = room(count + 1);
    for (size_t k = 0; k < count; k++)
        for (int way = 0; way < 5; way++) {
            held_by_llama(model, list);
            struct held_tensor *t = &list[k];
            const char *name = t->name;
            size_t left = count;
            if (way == 0)
                t->name = "model.extra.weight";
            else if (way == 1)
                list[left++] = *t;
            else if (way == 2)
                t->shape[0]++;
            else if (way == 3 && t->rank == 2)
                t->shape[1]--;
            else
                t->rank++;
            error.message[0] = '\0';
            ck_assert_int_eq(ownership_check(&own, list, left, &error),
                             STATUS_INVALID);
            expect_named(&error, name);
        }
    free(list);
    llama_free(&model);
}
END_TEST

START_TEST(a_tied_head_may_be_stored_again_or_not_at_all)
{
    struct llama_config config = small_llama_config();
    config.tie_word_embeddings = true;
    const struct ownership own = own_llama(&config);
    struct llama *model = new_llama(&config);
    const size_t count = llama_tensor_count(model);
    struct held_tensor *list = room(count);
    held_by_llama(model, list);
    ck_assert_str_eq(list[count - 1].name, "lm_head.weight");
    expect_held(&own, list, count - 1);
    expect_held(&own, list, count);
    ck_assert_uint_eq(ownership_hold(&own, list, count).copied, 0);
    list[count - 1].alias = false;         /* a file's, which does not say */
    expect_held(&own, list, count);
    ck_assert_uint_eq(ownership_hold(&own, list, count).copied, 130);
    list[count - 1].shape[0]--;
    ck_assert_int_eq(ownership_check(&own, list, count, &error),
                     STATUS_INVALID);
    free(list);
    llama_free(&model);
}
END_TEST

START_TEST(a_config_that_is_no_models_is_refused_by_name)
{
    const struct ownership before = {.total = 12345};
    struct ownership own = before;
    const struct llama_config right = expert_config();
    const struct { size_t at; int value; const char *name; } faults[] = {
        {offsetof(struct llama_config, vocab_size), 0, "vocab_size"},
        {offsetof(struct llama_config, n_kv_heads), 3, "n_kv_heads"},
        {offsetof(struct llama_config, head_dim), 5, "head_dim"},
        {offsetof(struct llama_config, n_experts), -1, "n_experts"},
        {offsetof(struct llama_config, n_experts), 1, "experts_per_token"},
        {offsetof(struct llama_config, n_experts), 0, "experts_per_token"},
        {offsetof(struct llama_config, experts_per_token), 0,
         "experts_per_token"},
        {offsetof(struct llama_config, experts_per_token), -1,
         "experts_per_token"},
        {offsetof(struct llama_config, experts_per_token), 6,
         "experts_per_token"},
    };
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        struct llama_config config = right;
        memcpy((char *)&config + faults[k].at, &faults[k].value,
               sizeof (int));
        error.message[0] = '\0';
        ck_assert_int_eq(ownership_of_llama(&own, &config, &error),
                         STATUS_INVALID);
        expect_named(&error, faults[k].name);
        expect_same_bits("ownership", &own, &before, sizeof own);
    }
    const struct gpt_config gpt = {.vocab_size = 3};
    ck_assert_int_eq(ownership_of_gpt(&own, &gpt, &error), STATUS_INVALID);
    expect_named(&error, "context_length");
    expect_same_bits("ownership", &own, &before, sizeof own);
}
END_TEST

START_TEST(experts_whose_bytes_do_not_fit_are_refused)
{
    struct ownership own = {.total = 12345};
    struct llama_config config = expert_config();
    config.d_ff = config.d_model = 1000000;
    config.n_experts = 2147483647;
    ck_assert_int_eq(ownership_of_llama(&own, &config, &error),
                     STATUS_INVALID);
    expect_named(&error, "experts");
    ck_assert_uint_eq(own.total, 12345);
}
END_TEST

/* --------------------------------------------------------------- cache bytes */

START_TEST(cache_bytes_are_two_times_all_sizes)
{
    size_t bytes = 0;
    ck_assert(cache_bytes(&(struct cache_shape){3, 5, 7}, 11, 13, 2,
                          &bytes));
    ck_assert_uint_eq(bytes, 2 * 3 * 5 * 7 * 11 * 13 * 2);
    ck_assert(cache_bytes(&(struct cache_shape){32, 8, 128}, 64, 8192, 4,
                          &bytes));
    ck_assert_uint_eq(bytes, 137438953472);
    ck_assert(cache_bytes(&(struct cache_shape){32, 8, 128}, 64, 8192, 1,
                          &bytes));
    ck_assert_uint_eq(bytes, 34359738368);
    ck_assert(cache_bytes(&(struct cache_shape){4, 4, 24}, 1, 0, 4, &bytes));
    ck_assert_uint_eq(bytes, 0);
}
END_TEST

START_TEST(cache_bytes_that_do_not_fit_are_said_not_to)
{
    size_t bytes = 77;
    for (int k = 0; k < 6; k++) {
        int n[5] = {65535, 65535, 65535, 65535, 65535};
        size_t element = 65535;
        if (k < 5)
            n[k] = 2147483647;
        else
            element = SIZE_MAX / 2;
        ck_assert(!cache_bytes(&(struct cache_shape){n[0], n[1], n[2]}, n[3],
                               n[4], element, &bytes));
        ck_assert_uint_eq(bytes, 77);
    }
}
END_TEST

/* A cache asks for its keys, its values and its books; the books know nothing
   of heads. */
START_TEST(measured_kv_bytes_exactly_match_the_formula)
{
    uint64_t state = noise_start(160);
    for (int round = 0; round < 8; round++) {
        const int layers = 1 + noise_below(&state, 5);
        const int batch = 1 + noise_below(&state, 4);
        const int slots = 1 + noise_below(&state, 20);
        const int width = 1 + noise_below(&state, 9);
        long books = -1;
        for (int heads = 1; heads <= 6; heads++) {
            const struct cache_shape shape = {layers, heads, width};
            struct kv_cache *cache = NULL;
            size_t want = 0;
            const long before = allocator_asked();
            const enum status status = kv_cache_new(&cache, &shape, batch,
                                                    slots, &error);
            const long asked = allocator_asked() - before;
            expect_ok(status, &error);
            ck_assert(cache_bytes(&shape, batch, slots, sizeof (float),
                                  &want));
            ck_assert_uint_eq(want, (size_t)(8 * layers * batch * slots
                                             * heads * width));
            ck_assert_uint_eq(held_by_cache(kv_cache_storage(cache)), want);
            if (heads > 1)
                ck_assert_int_eq(asked - (long)want, books);
            books = asked - (long)want;
            ck_assert_int_ge(books, 0);
            kv_cache_free(&cache);
        }
    }
}
END_TEST

START_TEST(both_families_cache_what_their_config_says)
{
    uint64_t state = noise_start(145);
    for (int round = 0; round < 10; round++) {
        const struct llama_config config = some_llama_config(&state);
        const struct ownership own = own_llama(&config);
        struct llama *model = new_llama(&config);
        const struct causal_lm lm = llama_causal_lm(model);
        size_t want = 0, ours = 0;
        ck_assert(cache_bytes(&own.cache, 3, 5, sizeof (float), &want));
        struct kv_cache *cache = NULL;
        expect_ok(kv_cache_new(&cache, &lm.cache, 3, 5, &error), &error);
        ck_assert_uint_eq(held_by_cache(kv_cache_storage(cache)), want);
        ours = (size_t)(2 * config.n_layers * 3 * 5 * config.n_kv_heads
                        * config.head_dim) * sizeof (float);
        ck_assert_uint_eq(want, ours);
        kv_cache_free(&cache);
        llama_free(&model);
        const struct gpt_config gpt = some_gpt_config(&state);
        const struct ownership gpts = own_gpt(&gpt);
        ck_assert(cache_bytes(&gpts.cache, 2, 7, 4, &want));
        ck_assert_uint_eq(want, (size_t)(2 * gpt.n_layers * 2 * 7
                                         * gpt.d_model * 4));
    }
}
END_TEST

START_TEST(a_grouping_that_leaves_a_remainder_is_refused)
{
    const struct cache_shape shape = {3, 12, 8};
    for (int heads = 1; heads <= 24; heads++)
        for (int kv = 1; kv <= heads + 2; kv++) {
            size_t bytes = 99;
            error.message[0] = '\0';
            const enum status status = grouped_cache_bytes(
                &shape, heads, kv, 2, 5, 4, &bytes, &error);
            if (heads % kv == 0) {
                expect_ok(status, &error);
                ck_assert_uint_eq(bytes, (size_t)(2 * 3 * 2 * 5 * kv * 8
                                                  * 4));
                continue;
            }
            ck_assert_int_eq(status, STATUS_INVALID);
            ck_assert_uint_eq(bytes, 99);
            expect_named(&error, "n_kv_heads");
        }
}
END_TEST

START_TEST(a_sweep_has_every_grouping_that_divides_and_no_other)
{
    const struct cache_shape shape = {3, 12, 8};
    const int twelve[] = {12, 6, 4, 3, 2, 1};
    int at = 0;
    for (int kv = 12; kv > 0; kv = grouping_next(12, kv))
        ck_assert_int_eq(kv, twelve[at++]);
    ck_assert_int_eq(at, 6);
    ck_assert_str_eq(grouping_name(12, 12), "MHA");
    ck_assert_str_eq(grouping_name(12, 4), "GQA");
    ck_assert_str_eq(grouping_name(12, 1), "MQA");
    for (int heads = 1; heads <= 64; heads++) {
        int kv = heads;
        size_t all = 0;
        expect_ok(grouped_cache_bytes(&shape, heads, heads, 2, 5, 4, &all,
                                      &error), &error);
        for (int want = heads; want > 0; want--) {
            size_t bytes = 99;
            if (heads % want != 0)
                continue;
            ck_assert_int_eq(kv, want);
            expect_ok(grouped_cache_bytes(&shape, heads, want, 2, 5, 4,
                                          &bytes, &error), &error);
            ck_assert_uint_eq(bytes * (size_t)(heads / want), all);
            kv = grouping_next(heads, kv);
        }
        ck_assert_int_eq(kv, 0);
    }
}
END_TEST

START_TEST(a_sweep_refuses_sizes_by_name)
{
    const struct { int n[7]; const char *name; } faults[] = {
        {{0, 4, 4, 2, 1, 1, 4}, "n_layers"}, {{3, 0, 4, 2, 1, 1, 4},
                                              "head_dim"},
        {{3, 4, 0, 2, 1, 1, 4}, "n_heads"}, {{3, 4, 4, 0, 1, 1, 4},
                                             "n_kv_heads"},
        {{3, 4, 4, -2, 1, 1, 4}, "n_kv_heads"},
        {{3, 4, 4, 8, 1, 1, 4}, "n_kv_heads"},
        {{3, 4, 4, 2, 0, 1, 4}, "batch"}, {{3, 4, 4, 2, 1, 0, 4}, "tokens"},
        {{3, 4, 4, 2, 1, 1, 0}, "element_bytes"},
        {{2147483647, 2147483647, 4, 2, 2147483647, 1, 4}, "bytes"},
    };
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        const int *n = faults[k].n;
        const struct cache_shape shape = {n[0], 1, n[1]};
        size_t bytes = 99;
        error.message[0] = '\0';
        ck_assert_int_eq(grouped_cache_bytes(&shape, n[2], n[3], n[4], n[5],
                                             (size_t)n[6], &bytes, &error),
                         STATUS_INVALID);
        expect_named(&error, faults[k].name);
        ck_assert_uint_eq(bytes, 99);
    }
}
END_TEST

START_TEST(a_sweep_does_not_touch_an_initialised_model)
{
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 146);
    struct causal_lm lm = llama_causal_lm(model), was = lm;
    const struct tensor *first = llama_tensor_at(model, 1)->tensor;
    float copy[10];
    memcpy(copy, first->data, sizeof copy);
    for (int kv = 4; kv > 0; kv = grouping_next(4, kv)) {
        size_t bytes;
        expect_ok(grouped_cache_bytes(&lm.cache, 4, kv, 1, 9, 4, &bytes,
                                      &error), &error);
        ck_assert_uint_eq(bytes, (size_t)(2 * 3 * 9 * kv * 6 * 4));
    }
    expect_same_bits("handle", &lm.cache, &was.cache, sizeof lm.cache);
    expect_same_bits("config", llama_config(model), &config,
                     offsetof(struct llama_config, tie_word_embeddings));
    expect_same_bits("weights", first->data, copy, sizeof copy);
    llama_free(&model);
}
END_TEST

/* -------------------------------------------------------------------- phases */

static struct work work_of(const struct ownership *own, int batch, int tokens,
                           int past, bool last_only)
{
    struct work work;
    const struct phase phase = {batch, tokens, past, last_only};
    expect_ok(phase_work(own, &phase, &work, &error), &error);
    return work;
}

static void expect_products(const struct work *work,
                            const struct phase_product *want, int count)
{
    ck_assert_int_eq(work->count, count);
    for (int p = 0; p < count; p++) {
        const struct phase_product *got = &work->products[p];
        ck_assert_msg(strcmp(got->name, want[p].name) == 0
                      && got->m == want[p].m && got->k == want[p].k
                      && got->n == want[p].n && got->times == want[p].times
                      && got->macs == want[p].macs,
                      "product %d: expected %s, [%zu,%zu] times [%zu,%zu],"
                      " %zu times, %zu multiply-adds, got %s, [%zu,%zu]"
                      " times [%zu,%zu], %zu times, %zu", p, want[p].name,
                      want[p].m, want[p].k, want[p].k, want[p].n,
                      want[p].times, want[p].macs, got->name, got->m, got->k,
                      got->k, got->n, got->times, got->macs);
    }
}

static struct gpt_config phase_gpt(void)     /* D 3 */
{
    return (struct gpt_config){
        .vocab_size = 11, .context_length = 17, .d_model = 6, .n_layers = 3,
        .n_heads = 2, .d_ff = 5, .layer_norm_eps = 1e-5
    };
}

START_TEST(prefill_has_the_products_of_all_its_rows)
{
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    const struct work work = work_of(&own, 2, 4, 0, true);
    const struct phase_product want[] = {
        {"qkv_proj", 8, 6, 18, 3, 3 * 8 * 6 * 18},
        {"out_proj", 8, 6, 6, 3, 3 * 8 * 36},
        {"up_proj", 8, 6, 5, 3, 3 * 8 * 30},
        {"down_proj", 8, 5, 6, 3, 3 * 8 * 30},
        {"lm_head", 2, 6, 11, 1, 132},
        {"scores", 4, 3, 4, 12, 12 * 3 * 10},
        {"context", 4, 4, 3, 12, 12 * 3 * 10},
    };
    expect_products(&work, want, 7);
    ck_assert_uint_eq(work.rows, 8);
    const struct work all = work_of(&own, 2, 4, 0, false);
    ck_assert_uint_eq(all.products[4].m, 8);
    ck_assert_uint_eq(all.products[4].macs, 8 * 66);
}
END_TEST

START_TEST(a_decoded_step_has_one_row_for_each_row_of_the_batch)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    const struct work work = work_of(&own, 3, 1, 8, true);
    const struct phase_product want[] = {
        {"q_proj", 3, 10, 24, 3, 9 * 240}, {"k_proj", 3, 10, 12, 3, 9 * 120},
        {"v_proj", 3, 10, 12, 3, 9 * 120}, {"o_proj", 3, 24, 10, 3, 9 * 240},
        {"gate_proj", 3, 10, 7, 3, 9 * 70}, {"up_proj", 3, 10, 7, 3, 9 * 70},
        {"down_proj", 3, 7, 10, 3, 9 * 70}, {"lm_head", 3, 10, 13, 1, 390},
        {"scores", 1, 6, 9, 36, 36 * 6 * 9},
        {"context", 1, 9, 6, 36, 36 * 6 * 9},
    };
    expect_products(&work, want, 10);
    ck_assert_uint_eq(work.rows, 3);
}
END_TEST

START_TEST(only_pairs_that_the_mask_lets_through_are_counted)
{
    uint64_t state = noise_start(147);
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    for (int round = 0; round < 40; round++) {
        const int past = noise_below(&state, 12);
        const int tokens = 1 + noise_below(&state, 17 - past);
        const int batch = 1 + noise_below(&state, 3);
        size_t pairs = 0;
        for (int i = 0; i < tokens; i++)
            for (int j = 0; j < past + tokens; j++)
                pairs += j <= past + i;
        const struct work work = work_of(&own, batch, tokens, past, true);
        for (int p = 5; p < 7; p++)
            ck_assert_uint_eq(work.products[p].macs,
                              pairs * 3 * 3 * 2 * (size_t)batch);
    }
}
END_TEST

START_TEST(an_operation_is_half_a_multiply_add)
{
    uint64_t state = noise_start(148);
    const struct llama_config config = some_llama_config(&state);
    const struct ownership own = own_llama(&config);
    const struct work work = work_of(&own, 2, 3, 4, false);
    size_t macs = 0;
    for (int p = 0; p < work.count; p++)
        macs += work.products[p].macs;
    ck_assert_uint_eq(work.flops, 2 * macs);
}
END_TEST

/* Every weight but the tables; a tied head is read, though not owned. */
START_TEST(weights_are_read_once_a_call_whatever_its_rows)
{
    struct llama_config config = small_llama_config();
    for (int tied = 0; tied < 2; tied++) {
        config.tie_word_embeddings = tied == 1;
        const struct ownership own = own_llama(&config);
        const size_t want = 4 * (own.total - 130 + (tied ? 130 : 0));
        ck_assert_uint_eq(work_of(&own, 1, 1, 3, true).weight_bytes, want);
        ck_assert_uint_eq(work_of(&own, 5, 9, 3, false).weight_bytes, want);
    }
    const struct gpt_config gpt = phase_gpt();
    const struct ownership own = own_gpt(&gpt);
    ck_assert_uint_eq(work_of(&own, 2, 4, 0, true).weight_bytes,
                      4 * (own.total - 17 * 6));
}
END_TEST

START_TEST(the_past_is_read_and_the_new_written_by_cached_heads)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    const struct work work = work_of(&own, 2, 3, 5, true);
    ck_assert_uint_eq(work.cache_read, 2 * 3 * 2 * 5 * 2 * 6 * 4);
    ck_assert_uint_eq(work.cache_written, 2 * 3 * 2 * 3 * 2 * 6 * 4);
    ck_assert_uint_eq(work_of(&own, 2, 3, 0, true).cache_read, 0);
}
END_TEST

START_TEST(the_edge_is_what_enters_and_what_leaves)
{
    const struct llama_config llama = small_llama_config();
    const struct gpt_config gpt = phase_gpt();
    const struct ownership a = own_llama(&llama), b = own_gpt(&gpt);
    ck_assert_uint_eq(work_of(&a, 2, 3, 5, true).edge_bytes,
                      4 * (2 * 3 * 10 + 2 * 13));
    ck_assert_uint_eq(work_of(&a, 2, 3, 5, false).edge_bytes,
                      4 * (2 * 3 * 10 + 6 * 13));
    ck_assert_uint_eq(work_of(&b, 2, 3, 5, true).edge_bytes,
                      4 * (2 * 3 * 6 * 2 + 2 * 11));
    const struct work work = work_of(&b, 2, 3, 5, true);
    ck_assert_uint_eq(work.bytes, work.weight_bytes + work.cache_read
                                  + work.cache_written + work.edge_bytes);
}
END_TEST

START_TEST(a_token_meets_the_experts_that_it_is_sent_to)
{
    const struct llama_config config = expert_config();
    const struct ownership own = own_llama(&config);
    const struct work work = work_of(&own, 3, 4, 2, true);
    const struct phase_product want[] = {
        {"q_proj", 12, 10, 24, 3, 36 * 240},
        {"k_proj", 12, 10, 12, 3, 36 * 120},
        {"v_proj", 12, 10, 12, 3, 36 * 120},
        {"o_proj", 12, 24, 10, 3, 36 * 240},
        {"gate", 12, 10, 5, 3, 36 * 50}, {"w1", 24, 10, 7, 3, 72 * 70},
        {"w3", 24, 10, 7, 3, 72 * 70}, {"w2", 24, 7, 10, 3, 72 * 70},
        {"lm_head", 3, 10, 13, 1, 390},
        {"scores", 4, 6, 6, 36, 36 * 6 * 18},
        {"context", 4, 6, 6, 36, 36 * 6 * 18},
    };
    expect_products(&work, want, 11);
    ck_assert_uint_eq(work.weight_bytes, 4 * (own.active - 130));
}
END_TEST

/* Cutting a text into calls moves bytes and no operation. */
START_TEST(chunks_do_the_operations_of_the_whole)
{
    uint64_t state = noise_start(149);
    const struct llama_config config = some_llama_config(&state);
    const struct ownership own = own_llama(&config);
    const int all = config.context_length;
    const struct work whole = work_of(&own, 2, all, 0, false);
    size_t flops = 0, written = 0, weights = 0;
    int calls = 0;
    for (int past = 0, tokens; past < all; past += tokens, calls++) {
        tokens = 1 + noise_below(&state, all - past);
        const struct work part = work_of(&own, 2, tokens, past, false);
        flops += part.flops;
        written += part.cache_written;
        weights += part.weight_bytes;
    }
    ck_assert_uint_eq(flops, whole.flops);
    ck_assert_uint_eq(written, whole.cache_written);
    ck_assert_uint_eq(weights, (size_t)calls * whole.weight_bytes);
}
END_TEST

START_TEST(each_step_of_a_decode_has_a_token_more_behind_it)
{
    const struct llama_config config = small_llama_config();
    const struct ownership own = own_llama(&config);
    const size_t token = 2 * 3 * 2 * 6 * 4;      /* 2 L Hk D, of floats */
    struct work work;
    expect_ok(decode_work(&own, 1, 7, 4, &work, &error), &error);
    ck_assert_uint_eq(work.cache_read, (7 + 8 + 9 + 10) * token);
    ck_assert_uint_eq(work.cache_written, 4 * token);
}
END_TEST

START_TEST(a_decode_is_the_sum_of_its_steps)
{
    uint64_t state = noise_start(150);
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    const int past = noise_below(&state, 6), steps = 2 + noise_below(&state, 9);
    struct work sum, first = work_of(&own, 3, 1, past, true);
    size_t n[7] = {0}, macs[7] = {0}, times[7] = {0};
    for (int k = 0; k < steps; k++) {
        const struct work one = work_of(&own, 3, 1, past + k, true);
        const size_t parts[] = {one.rows, one.flops, one.weight_bytes,
                                one.cache_read, one.cache_written,
                                one.edge_bytes, one.bytes};
        for (int p = 0; p < 7; p++) {
            n[p] += parts[p];
            macs[p] += one.products[p].macs;
            times[p] += one.products[p].times;
        }
    }
    expect_ok(decode_work(&own, 3, past, steps, &sum, &error), &error);
    const size_t got[] = {sum.rows, sum.flops, sum.weight_bytes,
                          sum.cache_read, sum.cache_written, sum.edge_bytes,
                          sum.bytes};
    for (int p = 0; p < 7; p++) {
        ck_assert_uint_eq(got[p], n[p]);
        ck_assert_uint_eq(sum.products[p].macs, macs[p]);
        ck_assert_uint_eq(sum.products[p].times, times[p]);
        ck_assert_uint_eq(sum.products[p].n, first.products[p].n);
    }
}
END_TEST

START_TEST(a_machine_needs_the_longer_of_its_two_times)
{
    const struct work work = {.flops = 600, .bytes = 200};
    ck_assert_double_eq(work_intensity(&work), 3);
    ck_assert_double_eq(work_seconds(&work, 100, 1000), 6);
    ck_assert_double_eq(work_seconds(&work, 1000, 100), 2);
    ck_assert_double_eq(work_seconds(&work, 300, 100), 2);
}
END_TEST

START_TEST(a_call_that_no_model_could_answer_is_refused_by_name)
{
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    const struct { struct phase phase; const char *name; } faults[] = {
        {{0, 1, 0, true}, "batch"}, {{-1, 1, 0, true}, "batch"},
        {{1, 0, 0, true}, "tokens"}, {{1, -3, 0, true}, "tokens"},
        {{1, 1, -1, true}, "past"}, {{1, 18, 0, true}, "context_length"},
        {{1, 2, 16, true}, "context_length"},
        {{1, 1, 2147483647, true}, "context_length"},
        {{2147483647, 2, 0, true}, "batch"},
    };
    struct work work = {.flops = 7}, sum = {.flops = 7};
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        error.message[0] = '\0';
        ck_assert_int_eq(phase_work(&own, &faults[k].phase, &work, &error),
                         STATUS_INVALID);
        expect_named(&error, faults[k].name);
        ck_assert_uint_eq(work.flops, 7);
    }
    expect_ok(phase_work(&own, &(struct phase){1, 1, 16, true}, &work,
                         &error), &error);
    ck_assert_int_eq(decode_work(&own, 1, 4, 0, &sum, &error),
                     STATUS_INVALID);
    expect_named(&error, "steps");
    ck_assert_int_eq(decode_work(&own, 1, 10, 8, &sum, &error),
                     STATUS_INVALID);
    expect_named(&error, "context_length");
    ck_assert_uint_eq(sum.flops, 7);
}
END_TEST

START_TEST(work_that_does_not_fit_is_refused)
{
    const struct llama_config config = {
        .vocab_size = 1000000, .context_length = 2000000000,
        .d_model = 1000000, .n_layers = 60000, .n_heads = 1000,
        .n_kv_heads = 1000, .head_dim = 1000, .d_ff = 1000000,
        .rms_norm_eps = 1e-5, .rope_theta = 100
    };
    const struct ownership own = own_llama(&config);
    struct work work = {.flops = 7};
    ck_assert_int_eq(phase_work(&own, &(struct phase){1, 1000000, 0, true},
                                &work, &error), STATUS_INVALID);
    expect_named(&error, "tokens");
    ck_assert_uint_eq(work.flops, 7);
    expect_ok(phase_work(&own, &(struct phase){1, 1, 0, true}, &work,
                         &error), &error);
}
END_TEST

/* --------------------------------------------------------- a clock of our own */

/* A model that takes 100 for a token of a prompt and 7 for a step, and one
   more each time it is asked: in all its time is known. */
enum { FAKE_CALLS = 512 };
static struct {
    double time;
    int calls, clocks;
    long allocations[FAKE_CALLS];            /* at each look at the clock */
    struct { int tokens, length; bool last_only; } call[FAKE_CALLS];
    int wrong_at;               /* a position at which a step says nonsense */
    float nonsense;
} fake;

static size_t fake_scratch(const void *model, int batch, int tokens,
                           int slots)
{
    (void)model, (void)batch, (void)tokens, (void)slots;
    return 1;
}

static void fake_run(const void *model, const struct step *step,
                     float *scratch)
{
    (void)model, (void)scratch;
    if (fake.calls == FAKE_CALLS)      /* Check's assertions allocate */
        fake.calls = 0;
    fake.call[fake.calls].tokens = step->tokens;
    fake.call[fake.calls].length = step->lengths[0];
    fake.call[fake.calls].last_only = step->last_only;
    fake.time += step->tokens > 1 ? 100 * step->tokens : 7;
    fake.time += fake.calls++;
    float *logits = step->logits;
    for (int row = 0; row < step->batch * step->tokens; row++) {
        const int t = row % step->tokens;
        if (step->last_only && t < step->tokens - 1)
            continue;
        for (int v = 0; v < 5; v++)
            *logits++ = (float)(step->positions[row] * 8 + v);
        if (step->tokens == 1 && step->positions[row] == fake.wrong_at)
            logits[-2] = fake.nonsense;
    }
}

static struct causal_lm fake_lm(void)
{
    memset(&fake, 0, sizeof fake);
    return (struct causal_lm){
        .model = &fake, .vocab_size = 5, .context_length = 200,
        .cache = {1, 1, 2}, .scratch_size = fake_scratch, .run = fake_run
    };
}

static double fake_now(void *state)
{
    (void)state;
    if (fake.clocks == FAKE_CALLS)
        fake.clocks = 0;
    fake.allocations[fake.clocks++] = allocator_calls();
    return fake.time;
}

static const struct stopwatch fake_watch = {fake_now, NULL};

START_TEST(a_prompt_is_one_call)
{
    const struct causal_lm lm = fake_lm();
    const struct phase_plan plan = {2, 9, 32, 1};
    struct phase_seconds seconds;
    expect_ok(phase_time(&lm, &plan, &fake_watch, &seconds, &error), &error);
    ck_assert_int_eq(fake.calls, 33);
    for (int k = 0; k < 33; k++) {
        ck_assert_int_eq(fake.call[k].tokens, k == 0 ? 9 : 1);
        ck_assert_int_eq(fake.call[k].length, k == 0 ? 0 : 8 + k);
        ck_assert(fake.call[k].last_only);
    }
}
END_TEST

START_TEST(prefill_and_decode_are_timed_separately)
{
    const struct causal_lm lm = fake_lm();
    const struct phase_plan plan = {2, 9, 32, 1};
    struct phase_seconds seconds;
    expect_ok(phase_time(&lm, &plan, &fake_watch, &seconds, &error), &error);
    ck_assert_double_eq(seconds.prefill, 900);
    ck_assert_double_eq(seconds.decode, 32 * 7 + 32 * 33 / 2);
    for (int k = 1; k < fake.clocks; k++)
        ck_assert_int_eq(fake.allocations[k], fake.allocations[0]);
}
END_TEST

START_TEST(each_repeat_is_fresh_and_the_least_time_counts)
{
    const struct causal_lm lm = fake_lm();
    const struct phase_plan plan = {1, 6, 4, 3};
    struct phase_seconds seconds;
    expect_ok(phase_time(&lm, &plan, &fake_watch, &seconds, &error), &error);
    ck_assert_int_eq(fake.calls, 15);
    for (int k = 0; k < 15; k++) {
        ck_assert_int_eq(fake.call[k].tokens, k % 5 == 0 ? 6 : 1);
        ck_assert_int_eq(fake.call[k].length, k % 5 == 0 ? 0 : 5 + k % 5);
    }
    ck_assert_double_eq(seconds.prefill, 600);       /* the first was least */
    ck_assert_double_eq(seconds.decode, 4 * 7 + 1 + 2 + 3 + 4);
}
END_TEST

START_TEST(a_plan_is_refused_by_name_before_anything_runs)
{
    const struct causal_lm lm = fake_lm();
    const struct { struct phase_plan plan; const char *name; } faults[] = {
        {{0, 9, 4, 1}, "batch"}, {{1, 0, 4, 1}, "prompt"},
        {{1, 9, 0, 1}, "steps"}, {{1, 9, 4, 0}, "repeats"},
        {{1, 9, -1, 1}, "steps"},
        {{1, 2147483647, 4, 1}, "prompt"}, {{1073741824, 2, 4, 1}, "prompt"},
    };
    struct phase_seconds seconds = {-1, -2};
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        error.message[0] = '\0';
        ck_assert_int_eq(phase_time(&lm, &faults[k].plan, &fake_watch,
                                    &seconds, &error), STATUS_INVALID);
        expect_named(&error, faults[k].name);
    }
    ck_assert_int_ne(phase_time(&lm, &(struct phase_plan){1, 190, 32, 2},
                                &fake_watch, &seconds, &error), STATUS_OK);
    ck_assert_double_eq(seconds.prefill, -1);
    ck_assert_double_eq(seconds.decode, -2);
}
END_TEST

START_TEST(timing_survives_each_failed_allocation)
{
    const struct causal_lm lm = fake_lm();
    const struct phase_plan plan = {2, 3, 2, 1};
    for (long n = 1; ; n++) {
        struct phase_seconds seconds = {-1, -2};
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = phase_time(&lm, &plan, &fake_watch,
                                              &seconds, &error);
        const long left = allocator_live() - live;
        const bool failed = allocator_stop();
        ck_assert_int_eq(left, 0);
        if (!failed) {
            expect_ok(status, &error);
            ck_assert_int_gt(n, 1);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_double_eq(seconds.prefill, -1);
        fake.clocks = fake.calls = 0;
    }
}
END_TEST

START_TEST(real_models_of_both_families_take_time_in_both_phases)
{
    uint64_t state = noise_start(151);
    struct gpt_config gpt = some_gpt_config(&state);
    struct llama_config llama = some_llama_config(&state);
    gpt.context_length = llama.context_length = 40;
    struct tiny_gpt *a = noisy_model(&gpt, 152);
    struct llama *b = noisy_llama(&llama, 153);
    const struct causal_lm lms[] = {tiny_gpt_causal_lm(a),
                                    llama_causal_lm(b)};
    const struct phase_plan plan = {2, 8, PHASE_DECODE_STEPS, 2};
    const struct stopwatch watch = stopwatch_monotonic();
    for (int k = 0; k < 2; k++) {
        struct phase_seconds seconds = {0, 0};
        expect_ok(phase_time(&lms[k], &plan, &watch, &seconds, &error),
                  &error);
        ck_assert(seconds.prefill > 0 && seconds.decode > 0);
        ck_assert(isfinite(seconds.prefill) && isfinite(seconds.decode));
    }
    tiny_gpt_free(&a);
    llama_free(&b);
}
END_TEST

/* ------------------------------------------------------------------- machine */

START_TEST(a_machine_has_a_bandwidth_and_a_peak)
{
    struct machine machine = {0};
    expect_ok(machine_measure(1 << 16, 1e-3, &machine, &error), &error);
    const double rates[] = {machine.bytes_per_second, machine.build_flops,
                            machine.peak_flops};
    for (int k = 0; k < 3; k++)
        ck_assert(rates[k] > 0 && isfinite(rates[k]));
    ck_assert_ptr_nonnull(machine.widest);
}
END_TEST

START_TEST(a_machine_is_not_measured_with_nothing)
{
    struct machine machine = {.build_flops = 3};
    const double none[] = {0, -1, INFINITY, NAN};
    ck_assert_int_eq(machine_measure(4095, 1e-3, &machine, &error),
                     STATUS_INVALID);
    expect_named(&error, "bytes");
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(machine_measure(4096, none[k], &machine, &error),
                         STATUS_INVALID);
        expect_named(&error, "seconds");
    }
    const long live = allocator_live();
    allocator_fail_at(1);
    const enum status status = machine_measure(4096, 1e-3, &machine, &error);
    const long left = allocator_live() - live;
    ck_assert(allocator_stop());
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    ck_assert_int_eq(left, 0);
    ck_assert_double_eq(machine.build_flops, 3);
}
END_TEST

/* ----------------------------------------------------------------- agreement */

START_TEST(full_and_cached_outputs_agree_after_every_token)
{
    uint64_t state = noise_start(154);
    struct gpt_config gpt = some_gpt_config(&state);
    struct llama_config llama = some_llama_config(&state);
    gpt.context_length = llama.context_length = 12;
    struct tiny_gpt *a = noisy_model(&gpt, 155);
    struct llama *b = noisy_llama(&llama, 156);
    const struct causal_lm lms[] = {tiny_gpt_causal_lm(a),
                                    llama_causal_lm(b)};
    for (int k = 0; k < 2; k++)
        for (int prompt = 1; prompt <= 12; prompt++) {
            int32_t ids[12];
            struct agreement got = {0};
            for (int t = 0; t < 12; t++)
                ids[t] = noise_below(&state, lms[k].vocab_size);
            expect_ok(agreement_of(&lms[k], ids, 12, prompt, TOLERANCE, &got,
                                   &error), &error);
            ck_assert(got.agrees);
            ck_assert_int_eq(got.compared, 13 - prompt);
            ck_assert_double_le(got.largest, 1e-5);
        }
    tiny_gpt_free(&a);
    llama_free(&b);
}
END_TEST

/* At the last token, so that nothing comes behind it. */
START_TEST(a_nan_never_agrees_and_a_small_difference_does)
{
    const int32_t ids[9] = {1, 2, 3, 4, 0, 1, 2, 3, 4};
    const struct causal_lm lm = fake_lm();
    struct agreement got = {.agrees = true};
    fake.wrong_at = 8;
    fake.nonsense = NAN;
    expect_ok(agreement_of(&lm, ids, 9, 3, TOLERANCE, &got, &error), &error);
    ck_assert(!got.agrees);
    ck_assert_int_eq(got.column, 3);
    fake.nonsense = 67.0006f;           /* of 67: within the tolerance */
    expect_ok(agreement_of(&lm, ids, 9, 3, TOLERANCE, &got, &error), &error);
    ck_assert(got.agrees);
    ck_assert_double_eq_tol(got.largest, 6e-4, 1e-5);
    fake.nonsense = 67.0008f;
    expect_ok(agreement_of(&lm, ids, 9, 3, TOLERANCE, &got, &error), &error);
    ck_assert(!got.agrees);
}
END_TEST

START_TEST(the_comparison_stops_at_the_first_mismatch)
{
    const int32_t ids[9] = {1, 2, 3, 4, 0, 1, 2, 3, 4};
    const float nonsense[] = {-3, INFINITY, 43.1f};
    for (int wrong = 4; wrong < 9; wrong++)
        for (int k = 0; k < 3; k++) {
            const struct causal_lm lm = fake_lm();
            struct agreement got = {.agrees = true};
            fake.wrong_at = wrong;
            fake.nonsense = nonsense[k];
            expect_ok(agreement_of(&lm, ids, 9, 3, TOLERANCE, &got, &error),
                      &error);
            ck_assert(!got.agrees);
            ck_assert_int_eq(got.token, wrong);
            ck_assert_int_eq(got.column, 3);
            ck_assert_int_eq(got.compared, wrong - 1);
            ck_assert_double_eq(got.full, wrong * 8 + 3);
            ck_assert_double_eq(got.cached, nonsense[k]);
            ck_assert_int_eq(fake.calls, wrong);    /* and nothing behind */
        }
}
END_TEST

START_TEST(a_comparison_without_a_prompt_is_refused)
{
    const int32_t ids[3] = {1, 2, 9};
    const struct causal_lm lm = fake_lm();
    struct agreement got = {.compared = 77};
    const int prompts[] = {0, -1, 4};
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(agreement_of(&lm, ids, 3, prompts[k], TOLERANCE,
                                      &got, &error), STATUS_INVALID);
        expect_named(&error, "prompt");
    }
    ck_assert_int_ne(agreement_of(&lm, ids, 3, 1, TOLERANCE, &got, &error),
                     STATUS_OK);        /* id 9 of 5 */
    ck_assert_int_eq(got.compared, 77);
}
END_TEST

START_TEST(a_comparison_survives_each_failed_allocation)
{
    const int32_t ids[4] = {1, 2, 3, 4};
    for (long n = 1; ; n++) {
        const struct causal_lm lm = fake_lm();
        struct agreement got = {.compared = 77};
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = agreement_of(&lm, ids, 4, 2, TOLERANCE,
                                                &got, &error);
        const long left = allocator_live() - live;
        const bool failed = allocator_stop();
        ck_assert_int_eq(left, 0);
        if (!failed) {
            expect_ok(status, &error);
            ck_assert_int_gt(n, 2);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(got.compared, 77);
    }
}
END_TEST

/* Step 2 of the lab, for both families in the bits of every earlier row. */
START_TEST(changing_a_future_token_leaves_earlier_outputs_bit_equal)
{
    uint64_t state = noise_start(157);
    struct gpt_config gpt = some_gpt_config(&state);
    struct llama_config llama = some_llama_config(&state);
    gpt.context_length = llama.context_length = 10;
    /* a norm of one or two channels leaves nothing, or a sign */
    gpt.d_model = 4 * gpt.n_heads;
    llama.d_model = 8;
    struct tiny_gpt *a = noisy_model(&gpt, 158);
    struct llama *b = noisy_llama(&llama, 159);
    const struct causal_lm lms[] = {tiny_gpt_causal_lm(a),
                                    llama_causal_lm(b)};
    for (int k = 0; k < 2; k++) {
        const size_t width = (size_t)lms[k].vocab_size;
        struct request *one = NULL, *other = NULL;
        expect_ok(request_new(&one, &lms[k], 1, 10, 10, &error), &error);
        expect_ok(request_new(&other, &lms[k], 1, 10, 10, &error), &error);
        int32_t ids[10];
        noise_ids(&state, lms[k].vocab_size, 1, 10, ids);
        const float *before, *after;
        expect_ok(request_feed(one, ids, 10, false, &before, &error),
                  &error);
        for (int t = 0; t < 10; t++) {
            const int32_t was = ids[t];
            ids[t] = (was + 1) % lms[k].vocab_size;
            kv_cache_reset(request_cache(other));
            expect_ok(request_feed(other, ids, 10, false, &after, &error),
                      &error);
            expect_same_bits("earlier rows", after, before,
                             (size_t)t * width * sizeof (float));
            ck_assert(memcmp(after + (size_t)t * width,
                             before + (size_t)t * width,
                             width * sizeof (float)) != 0);
            ids[t] = was;
        }
        request_free(&one);
        request_free(&other);
    }
    tiny_gpt_free(&a);
    llama_free(&b);
}
END_TEST

/* ------------------------------------------------------------------ the study */

static struct phase_report some_report(void)
{
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    struct phase_report report = {
        .model = "a \"model\"", .plan = {2, 4, 3, 5}, .timed = true,
        .machine_known = true, .seconds = {0.5, 0.25},
        .machine = {1e9, 2e9, 8e9, "AVX"}
    };
    expect_ok(phase_predict(&own, &report, &error), &error);
    return report;
}

static char *printed(void (*print)(FILE *, const struct phase_report *),
                     const struct phase_report *report)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    print(out, report);
    fclose(out);
    return text;
}

START_TEST(a_report_predicts_the_prompt_and_the_steps_behind_it)
{
    const struct gpt_config config = phase_gpt();
    const struct ownership own = own_gpt(&config);
    const struct phase_report report = some_report();
    const struct work prefill = work_of(&own, 2, 4, 0, true);
    struct work decode;
    expect_ok(decode_work(&own, 2, 4, 3, &decode, &error), &error);
    ck_assert_uint_eq(report.prefill.flops, prefill.flops);
    ck_assert_uint_eq(report.prefill.bytes, prefill.bytes);
    ck_assert_uint_eq(report.decode.flops, decode.flops);
    ck_assert_uint_eq(report.decode.bytes, decode.bytes);
    ck_assert_uint_eq(report.decode.products[5].n, 5);
    struct phase_report long_one = report;
    long_one.plan.prompt = 15;
    ck_assert_int_eq(phase_predict(&own, &long_one, &error), STATUS_INVALID);
    ck_assert_uint_eq(long_one.prefill.flops, prefill.flops);
}
END_TEST

START_TEST(results_of_a_cpu_are_labelled_diagnostic)
{
    struct phase_report report = some_report();
    for (int timed = 0; timed < 2; timed++) {
        report.timed = timed == 1;
        report.machine_known = timed == 1;
        char *text = printed(phase_print_text, &report);
        ck_assert_ptr_nonnull(strstr(text, "CPU, diagnostic"));
        free(text);
        text = printed(phase_print_json, &report);
        cJSON *json = cJSON_Parse(text);
        ck_assert_ptr_nonnull(json);
        const cJSON *label = cJSON_GetObjectItem(json, "label");
        ck_assert_str_eq(cJSON_GetStringValue(label), "CPU, diagnostic");
        cJSON_Delete(json);
        free(text);
    }
}
END_TEST

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);
    ck_assert_msg(cJSON_IsNumber(item), "no number %s", name);
    return cJSON_GetNumberValue(item);
}

START_TEST(both_phases_are_reported_with_their_matrix_shapes)
{
    const struct phase_report report = some_report();
    char *text = printed(phase_print_json, &report);
    cJSON *json = cJSON_Parse(text);
    ck_assert_ptr_nonnull(json);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json, "model")),
                     report.model);
    for (int k = 0; k < 2; k++) {
        const struct work *work = k ? &report.decode : &report.prefill;
        const cJSON *phase = cJSON_GetObjectItem(json, k ? "decode"
                                                         : "prefill");
        const cJSON *list = cJSON_GetObjectItem(phase, "products");
        ck_assert_int_eq(cJSON_GetArraySize(list), work->count);
        for (int p = 0; p < work->count; p++) {
            const cJSON *item = cJSON_GetArrayItem(list, p);
            const struct phase_product *product = &work->products[p];
            ck_assert_str_eq(cJSON_GetStringValue(
                cJSON_GetObjectItem(item, "name")), product->name);
            ck_assert_double_eq(number(item, "m"), (double)product->m);
            ck_assert_double_eq(number(item, "k"), (double)product->k);
            ck_assert_double_eq(number(item, "n"), (double)product->n);
            ck_assert_double_eq(number(item, "times"),
                                (double)product->times);
            ck_assert_double_eq(number(item, "macs"), (double)product->macs);
        }
        ck_assert_double_eq(number(phase, "rows"), (double)work->rows);
        ck_assert_double_eq(number(phase, "flops"), (double)work->flops);
        ck_assert_double_eq(number(phase, "bytes"), (double)work->bytes);
        ck_assert_double_eq(number(phase, "seconds"), k ? 0.25 : 0.5);
        ck_assert_double_eq_tol(number(phase, "flops_per_second"),
                                (double)work->flops * (k ? 4 : 2), 1e-3);
        ck_assert_double_eq_tol(number(phase, "bytes_per_second"),
                                (double)work->bytes * (k ? 4 : 2), 1e-3);
    }
    cJSON_Delete(json);
    free(text);
    text = printed(phase_print_text, &report);
    ck_assert_ptr_nonnull(strstr(text, "qkv_proj"));
    ck_assert_ptr_nonnull(strstr(text, "prefill"));
    ck_assert_ptr_nonnull(strstr(text, "decode"));
    free(text);
}
END_TEST

START_TEST(the_command_predicts_before_it_measures)
{
    const char *text = run_program("phases --model book/checkpoint --predict"
                                   " --prompt 16 --steps 3", 0);
    ck_assert_ptr_nonnull(strstr(text, "CPU, diagnostic"));
    ck_assert_ptr_null(strstr(text, "GFLOP/s"));
    text = run_program("phases --model book/checkpoint --prompt 8 --steps 2"
                       " --repeats 1 --json", 0);
    cJSON *json = cJSON_Parse(text);
    ck_assert_ptr_nonnull(json);
    ck_assert_double_gt(number(cJSON_GetObjectItem(json, "decode"),
                               "seconds"), 0);
    cJSON_Delete(json);
    text = run_program("phases --llama 11,6,2,4,2,2,5 --prompt 3 --steps 2"
                       " --repeats 1", 0);
    ck_assert_ptr_nonnull(strstr(text, "GFLOP/s"));
}
END_TEST

START_TEST(the_command_shows_owners_and_groupings)
{
    const char *text = run_program("phases --model book/checkpoint --owners"
                                   " --json", 0);
    cJSON *json = cJSON_Parse(text);
    ck_assert_double_eq(number(json, "total"), 484416);
    ck_assert_double_eq(number(json, "held"), 484416);
    cJSON_Delete(json);
    text = run_program("phases --llama 32000,4096,32,32,8,128,14336,8,2"
                       " --owners", 0);
    ck_assert_ptr_nonnull(strstr(text, "46702792704"));
    ck_assert_ptr_nonnull(strstr(text, "12879925248"));
    text = run_program("phases --llama 99,8,3,12,4,8,5 --sweep --prompt 100"
                       " --batch 2 --element-bytes 2 --json", 0);
    json = cJSON_Parse(text);
    const cJSON *list = cJSON_GetObjectItem(json, "groupings");
    ck_assert_int_eq(cJSON_GetArraySize(list), 6);
    ck_assert_double_eq(number(cJSON_GetArrayItem(list, 2), "bytes"),
                        2 * 3 * 2 * 100 * 4 * 8 * 2);
    cJSON_Delete(json);
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_answer)
{
    run_program("phases", 2);
    run_program("phases --model book/checkpoint --llama 1,2,3,4,5,6,7", 2);
    run_program("phases --model book/checkpoint --owners --sweep", 2);
    run_program("phases --model book/checkpoint --steps 0", 2);
    run_program("phases --llama 1,2,3", 2);
    run_program("phases --model book/checkpoint --nothing", 2);
    run_program("phases --llama 11,6,2,4,3,2,5", 1);
    run_program("phases --model no/such/model", 1);
    run_program("phases --model book/checkpoint --prompt 128", 1);
}
END_TEST

/* ---------------------------------------------------------------------- table */

#define COPIES "let copies be the tensors of the row"
#define TIED "count a tied head for nothing"
#define OWNERS "give the floats to their owners"
#define ACTIVE "count the experts that a token uses"
#define KEYS "own keys and values by their own heads"
#define LISTED "list what a gpt owns"
#define BYTES "let product be the elements of keys and values"
#define NEXT "let next be the largest divisor below kv_heads"
#define DIVIDES "refuse a grouping that leaves a remainder"
#define ROWS "let m be the rows that meet the weight"
#define PAIRS "let pairs be the queries and keys that meet"
#define FLOPS "let flops be the product's operations"
#define ONCE "read each weight of the row once"
#define MOVED "read the past and write the new"
#define EDGE "count what crosses the edge of the model"
#define STEPS "time the steps behind it"
#define STOP "compare the row, and stop at the first that differs"

static const struct test tests[] = {
    TEST(a_tied_head_is_counted_once, 1, TIED),
    TEST(each_owner_of_a_gpt_has_its_part, 1, OWNERS),
    TEST(queries_are_as_wide_as_all_their_heads, 1,
         "let q be the width of all query heads"),
    TEST(each_owner_of_a_llama_has_its_part, 1, KEYS),
    TEST(every_expert_of_every_layer_is_stored, 1, COPIES),
    TEST(total_and_active_parameters_are_reported_apart, 1, ACTIVE),
    TEST(published_models_have_their_published_sizes, 1, COPIES),
    TEST(a_pattern_stands_for_the_names_of_its_tensors_and_no_others, 1,
         "match names with patterns"),
    TEST(a_tied_head_may_be_stored_again_or_not_at_all, 1, TIED),
    TEST(a_tensor_that_nobody_predicted_is_refused, 1,
         "refuse what is held and not predicted"),
    TEST(a_buffer_of_rank_four_counts_all_its_elements, 1,
         "list the tensors of a file"),
    TEST(the_first_tensor_that_differs_is_named, 1,
         "compare a list with the prediction"),
    TEST(ownership_is_predicted_within_one_percent_and_in_fact_exactly, 2,
         LISTED),
    TEST(a_files_bytes_are_the_predicted_ones, 2, LISTED),
    TEST(a_model_of_experts_holds_what_is_predicted, 2, COPIES),
    TEST(a_config_that_is_no_models_is_refused_by_name, 1,
         "check a config that may have experts"),
    TEST(experts_whose_bytes_do_not_fit_are_refused, 1, "add one row"),
    TEST(cache_bytes_are_two_times_all_sizes, 1, BYTES),
    TEST(cache_bytes_that_do_not_fit_are_said_not_to, 1, BYTES),
    TEST(measured_kv_bytes_exactly_match_the_formula, 2, BYTES),
    TEST(both_families_cache_what_their_config_says, 2, BYTES),
    TEST(a_sweep_refuses_sizes_by_name, 1,
         "refuse a size of a sweep below 1"),
    TEST(a_grouping_that_leaves_a_remainder_is_refused, 1, DIVIDES),
    TEST(a_sweep_has_every_grouping_that_divides_and_no_other, 1, NEXT),
    TEST(a_sweep_does_not_touch_an_initialised_model, 2,
         "the bytes of another grouping"),
    TEST(an_operation_is_half_a_multiply_add, 1, FLOPS),
    TEST(only_pairs_that_the_mask_lets_through_are_counted, 1, PAIRS),
    TEST(a_decoded_step_has_one_row_for_each_row_of_the_batch, 1, ROWS),
    TEST(prefill_has_the_products_of_all_its_rows, 1, ROWS),
    TEST(weights_are_read_once_a_call_whatever_its_rows, 1, ONCE),
    TEST(a_token_meets_the_experts_that_it_is_sent_to, 1, ROWS),
    TEST(the_past_is_read_and_the_new_written_by_cached_heads, 1, MOVED),
    TEST(the_edge_is_what_enters_and_what_leaves, 1, EDGE),
    TEST(chunks_do_the_operations_of_the_whole, 1, PAIRS),
    TEST(each_step_of_a_decode_has_a_token_more_behind_it, 1,
         "let phase be the k-th step"),
    TEST(a_decode_is_the_sum_of_its_steps, 1, "add the work of a step"),
    TEST(a_machine_needs_the_longer_of_its_two_times, 1,
         "return the longer of computing and moving"),
    TEST(a_call_that_no_model_could_answer_is_refused_by_name, 1,
         "check a phase"),
    TEST(work_that_does_not_fit_is_refused, 1, "the work of one call"),
    TEST(a_prompt_is_one_call, 2, "time the call of the prompt"),
    TEST(prefill_and_decode_are_timed_separately, 2, STEPS),
    TEST(each_repeat_is_fresh_and_the_least_time_counts, 2,
         "begin with an empty cache"),
    TEST(a_plan_is_refused_by_name_before_anything_runs, 2, "check a plan"),
    TEST(timing_survives_each_failed_allocation, 2, "time a plan"),
    TEST(real_models_of_both_families_take_time_in_both_phases, 2,
         "the clock of the system"),
    TEST(a_machine_has_a_bandwidth_and_a_peak, 2,
         "measure bandwidth and peaks"),
    TEST(a_machine_is_not_measured_with_nothing, 2,
         "measure bandwidth and peaks"),
    TEST(a_nan_never_agrees_and_a_small_difference_does, 2,
         "pass over a logit that agrees"),
    TEST(the_comparison_stops_at_the_first_mismatch, 2, STOP),
    TEST(full_and_cached_outputs_agree_after_every_token, 2,
         "go through the text token by token"),
    TEST(a_comparison_without_a_prompt_is_refused, 2,
         "run the text in both ways"),
    TEST(a_comparison_survives_each_failed_allocation, 2,
         "run the text in both ways"),
    TEST(changing_a_future_token_leaves_earlier_outputs_bit_equal, 2,
         "let keep say which keys of the row a query sees"),
    TEST(a_report_predicts_the_prompt_and_the_steps_behind_it, 2,
         "predict both phases"),
    TEST(results_of_a_cpu_are_labelled_diagnostic, 2, "label the times"),
    TEST(both_phases_are_reported_with_their_matrix_shapes, 2,
         "print the work of a phase as JSON"),
    TEST(the_command_predicts_before_it_measures, 3,
         "print the phases of a subject"),
    TEST(the_command_shows_owners_and_groupings, 3,
         "print the owners of a subject"),
    TEST(the_command_refuses_what_it_cannot_answer, 3,
         "read all options of the phases command"),
};
SUITE("chapter 14: the audit", tests);
