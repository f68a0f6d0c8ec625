/* Chapter 7: the lab's thirty-five checks, in the order of checks.def; their
   owners come from routes.def. Each is written against the public headers
   alone, and compares with the oracle's numbers, with arithmetic in double,
   or with the same thing computed another way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "backward.h"
#include "generate.h"
#include "loss.h"
#include "mode.h"
#include "model.h"
#include "model_file.h"
#include "routing.h"
#include "sampler.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/models.h"

enum { V = 23, N = 12, C = 16, L = 2, H = 4, D = 4, F = 32, B = 2, T = 7 };

static struct error error;

static const struct gpt_config tiny = {
    .vocab_size = V, .context_length = N, .d_model = C, .n_layers = L,
    .n_heads = H, .d_ff = F, .layer_norm_eps = 1e-5,
};

static void expect_refused(enum status status, const char *word)
{
    ck_assert_int_ne(status, STATUS_OK);
    expect_named(&error, word);
}

/* The oracle's weights and inputs, under a config that may differ in its
   dropout. */
static struct golden *golden;
static const int32_t *golden_ids;

static struct tiny_gpt *oracle_model(double dropout)
{
    if (golden == NULL)
        golden = golden_open("gpt_tiny");
    golden_ids = golden_get(golden, "in.ids")->ids;
    return golden_model(golden, dropout);
}

static void done(struct tiny_gpt *model)
{
    tiny_gpt_free(&model);
    if (golden != NULL)
        golden_close(golden);
    golden = NULL;
}

/* --------------------------------------------- tier 0: construction, shape */

START_TEST(config_refuses_each_nonpositive_size)
{
    static const char *const names[] = {
        "vocab_size", "context_length", "d_model", "n_layers", "n_heads",
        "d_ff"
    };
    const int bad[] = { 0, -1, -2147483647 - 1 };
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 3; k++) {
            struct gpt_config config = tiny;
            int *const fields[] = {
                &config.vocab_size, &config.context_length, &config.d_model,
                &config.n_layers, &config.n_heads, &config.d_ff
            };
            *fields[i] = bad[k];
            expect_refused(gpt_config_check(&config, &error), names[i]);
        }
    expect_ok(gpt_config_check(&tiny, &error), &error);
}
END_TEST

START_TEST(config_cuts_d_model_into_whole_heads)
{
    for (int heads = 1; heads <= C; heads++) {
        struct gpt_config config = tiny;
        config.n_heads = heads;
        if (C % heads != 0) {
            expect_refused(gpt_config_check(&config, &error), "n_heads");
            continue;
        }
        expect_ok(gpt_config_check(&config, &error), &error);
        ck_assert_int_eq(gpt_config_head_dim(&config), C / heads);
    }
}
END_TEST

START_TEST(config_refuses_dropout_outside_zero_to_one)
{
    const double bad[] = { -1e-9, 1, 1.5, NAN, INFINITY, -INFINITY };
    const double good[] = { 0, 0.5, 0.999 };
    for (int k = 0; k < 6; k++) {
        struct gpt_config config = tiny;
        config.dropout = bad[k];
        expect_refused(gpt_config_check(&config, &error), "dropout");
        config.dropout = good[k / 2];
        expect_ok(gpt_config_check(&config, &error), &error);
    }
}
END_TEST

START_TEST(config_refuses_an_invalid_epsilon)
{
    const double bad[] = { 0, -1e-5, NAN, INFINITY, -INFINITY };
    for (int k = 0; k < 5; k++) {
        struct gpt_config config = tiny;
        config.layer_norm_eps = bad[k];
        expect_refused(gpt_config_check(&config, &error), "layer_norm_eps");
    }
}
END_TEST

START_TEST(config_is_frozen_in_the_model)
{
    struct gpt_config config = tiny;
    struct tiny_gpt *model = new_model(&config);
    memset(&config, 0x55, sizeof config);
    const struct gpt_config *kept = tiny_gpt_config(model);
    ck_assert_ptr_ne(kept, &config);
    ck_assert_int_eq(kept->vocab_size, V);
    ck_assert_int_eq(kept->context_length, N);
    ck_assert_int_eq(kept->d_model, C);
    ck_assert_int_eq(kept->n_layers, L);
    ck_assert_int_eq(kept->n_heads, H);
    ck_assert_int_eq(kept->d_ff, F);
    ck_assert(kept->dropout == 0 && kept->layer_norm_eps == 1e-5);
    done(model);
}
END_TEST

START_TEST(every_tensor_is_registered_under_its_stable_path)
{
    static const struct { const char *path; int rows, columns; } expected[] = {
        { "token_embedding.weight", V, C },
        { "position_embedding.weight", N, C },
        { "blocks.%d.attention_norm.weight", C, 0 },
        { "blocks.%d.attention_norm.bias", C, 0 },
        { "blocks.%d.attention.qkv_proj.weight", 3 * C, C },
        { "blocks.%d.attention.qkv_proj.bias", 3 * C, 0 },
        { "blocks.%d.attention.out_proj.weight", C, C },
        { "blocks.%d.attention.out_proj.bias", C, 0 },
        { "blocks.%d.mlp_norm.weight", C, 0 },
        { "blocks.%d.mlp_norm.bias", C, 0 },
        { "blocks.%d.mlp.up_proj.weight", F, C },
        { "blocks.%d.mlp.up_proj.bias", F, 0 },
        { "blocks.%d.mlp.down_proj.weight", C, F },
        { "blocks.%d.mlp.down_proj.bias", C, 0 },
        { "final_norm.weight", C, 0 },
        { "final_norm.bias", C, 0 },
        { "lm_head.weight", V, C },
    };
    struct tiny_gpt *model = new_model(&tiny);
    const struct parameters *p = tiny_gpt_parameters(model);
    int found = 0;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        for (int l = 0; l < L; l++) {
            char path[64];
            const char *hole = strstr(expected[i].path, "%d");
            if (hole == NULL && l > 0)
                continue;
            if (hole == NULL)
                snprintf(path, sizeof path, "%s", expected[i].path);
            else
                snprintf(path, sizeof path, "%.*s%d%s",
                         (int)(hole - expected[i].path), expected[i].path, l,
                         hole + 2);
            const struct parameter *entry = parameters_find(p, path);
            ck_assert_msg(entry != NULL, "%s is not registered", path);
            ck_assert_int_eq(entry->tensor->shape[0], expected[i].rows);
            ck_assert_int_eq(entry->tensor->shape[1], expected[i].columns);
            found++;
        }
    ck_assert_int_eq(p->count, found);
    ck_assert_ptr_null(parameters_find(p, "blocks.2.mlp_norm.bias"));
    done(model);
}
END_TEST

static char directory[64];

static void save(const struct tiny_gpt *model)
{
    snprintf(directory, sizeof directory, "%s/7-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
}

static void remove_saved(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", directory);
    remove(path);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    remove(path);
    rmdir(directory);
}

static void expect_tied(struct tiny_gpt *model)
{
    const struct parameters *p = tiny_gpt_parameters(model);
    ck_assert_ptr_eq(p->lm_head.weight.data, p->token_embedding.weight.data);
    ck_assert_ptr_eq(parameters_find(p, "lm_head.weight")->tensor->data,
                     p->token_embedding.weight.data);
    ck_assert(parameters_find(p, "lm_head.weight")->alias);
    ck_assert_ptr_null(p->lm_head.bias.data);
}

START_TEST(tied_parameter_identity_survives_a_strict_load)
{
    struct tiny_gpt *model = oracle_model(0), *loaded = NULL;
    expect_tied(model);
    save(model);
    expect_ok(tiny_gpt_load(&loaded, directory, &error), &error);
    expect_tied(loaded);
    remove_saved();
    tiny_gpt_free(&loaded);
    done(model);
}
END_TEST

START_TEST(registered_floats_are_counted_once)
{
    struct tiny_gpt *model = NULL;
    size_t formula = 0, sum = 0;
    expect_ok(tiny_gpt_new(&model, &tiny, &error), &error);
    const struct parameters *p = tiny_gpt_parameters(model);
    for (int i = 0; i < p->count; i++)
        if (p->registry[i].tensor->data != p->token_embedding.weight.data)
            sum += tensor_size(p->registry[i].tensor);
    sum += V * C;
    /* 23·16 + 12·16 + 2·(2·32 + 48·17 + 16·17 + 32·17 + 16·33) + 32 */
    ck_assert_uint_eq(sum, 5040);
    ck_assert_uint_eq(p->size, sum);
    ck_assert(parameters_formula(&tiny, &formula));
    ck_assert_uint_eq(formula, sum);
    done(model);
}
END_TEST

START_TEST(forward_shape_is_batch_tokens_vocabulary)
{
    struct tiny_gpt *model = oracle_model(0);
    uint64_t state = noise_start(1);
    for (int batch = 1; batch <= 3; batch++)
        for (int tokens = 1; tokens <= N; tokens += 4) {
            int32_t ids[3 * N];
            noise_ids(&state, V, batch, tokens, ids);
            struct forward_input input = {
                .ids = ids, .batch = batch, .tokens = tokens
            };
            struct forward_output output = { 0 };
            expect_ok(tiny_gpt_forward(model, &input, &output, &error),
                      &error);
            ck_assert_int_eq(output.logits.rank, 3);
            ck_assert_int_eq(output.logits.shape[0], batch);
            ck_assert_int_eq(output.logits.shape[1], tokens);
            ck_assert_int_eq(output.logits.shape[2], V);
            forward_output_free(&output);
        }
    done(model);
}
END_TEST

/* One full forward call of the oracle's ids with its activations. */
static void trace(struct tiny_gpt *model, struct activations *activations)
{
    struct forward_input input = {
        .ids = golden_ids, .batch = B, .tokens = T,
        .activations = activations
    };
    struct forward_output output = { 0 };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    forward_output_free(&output);
}

START_TEST(forward_shape_splits_into_heads)
{
    struct tiny_gpt *model = oracle_model(0);
    struct activations act = { 0 };
    trace(model, &act);
    const float *qkv = act.blocks[1].qkv.data;
    const float *parts[] = { act.blocks[1].query.data,
                             act.blocks[1].key.data,
                             act.blocks[1].value.data };
    for (int part = 0; part < 3; part++)
        for (int b = 0; b < B; b++)
            for (int h = 0; h < H; h++)
                for (int t = 0; t < T; t++)
                    for (int d = 0; d < D; d++) {
                        float is = parts[part][((b * H + h) * T + t) * D + d];
                        float was = qkv[(b * T + t) * 3 * C + part * C
                                        + h * D + d];
                        ck_assert_msg(is == was, "part %d [%d,%d,%d,%d]",
                                      part, b, h, t, d);
                    }
    activations_free(&act);
    done(model);
}
END_TEST

START_TEST(forward_shape_merges_the_heads_back)
{
    struct tiny_gpt *model = oracle_model(0);
    struct activations act = { 0 };
    trace(model, &act);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) {
                    float is = act.blocks[1].merged.data[(b * T + t) * C
                                                         + h * D + d];
                    float was = act.blocks[1].context.data[
                        ((b * H + h) * T + t) * D + d];
                    ck_assert_msg(is == was, "[%d,%d,%d,%d]", b, h, t, d);
                }
    activations_free(&act);
    done(model);
}
END_TEST

/* ----------------------------------------- tier 1: numbers without a cache */

static void full_logits(const struct tiny_gpt *model, const int32_t *ids,
                        int batch, int tokens, float *logits)
{
    struct forward_input input = {
        .ids = ids, .batch = batch, .tokens = tokens
    };
    struct forward_output output = { 0 };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    memcpy(logits, output.logits.data,
           tensor_size(&output.logits) * sizeof *logits);
    forward_output_free(&output);
}

START_TEST(a_future_token_changes_no_earlier_logit)
{
    struct tiny_gpt *model = oracle_model(0);
    static float before[B * T * V], after[B * T * V];
    int32_t text[B * T], ids[B * T];
    uint64_t state = noise_start(2);
    noise_ids(&state, V, B, T, text);
    full_logits(model, text, B, T, before);
    for (int t = 1; t < T; t++) {
        memcpy(ids, text, sizeof ids);
        for (int b = 0; b < B; b++)
            ids[b * T + t] = (ids[b * T + t] + 1 + noise_below(&state, V - 1))
                             % V;
        full_logits(model, ids, B, T, after);
        for (int b = 0; b < B; b++) {
            expect_same_bits("logits before the changed token",
                             after + b * T * V, before + b * T * V,
                             (size_t)(t * V) * sizeof (float));
            ck_assert_int_ne(memcmp(after + (b * T + t) * V,
                                    before + (b * T + t) * V,
                                    V * sizeof (float)), 0);
        }
    }
    done(model);
}
END_TEST

/* Attention of one query over its keys in double, straight from qkv. */
static void attend_by_hand(const float *qkv, int t, int h, double *context)
{
    double weight[T], sum = 0, max = -INFINITY;
    for (int j = 0; j <= t; j++) {
        weight[j] = 0;
        for (int d = 0; d < D; d++)
            weight[j] += (double)qkv[t * 3 * C + h * D + d]
                         * (double)qkv[j * 3 * C + C + h * D + d];
        weight[j] /= sqrt(D);
        max = fmax(max, weight[j]);
    }
    for (int j = 0; j <= t; j++)
        sum += weight[j] = exp(weight[j] - max);
    for (int d = 0; d < D; d++) {
        context[d] = 0;
        for (int j = 0; j <= t; j++)
            context[d] += weight[j] / sum
                          * (double)qkv[j * 3 * C + 2 * C + h * D + d];
    }
}

/* out_proj of the merged heads, plus the residual, in double. */
static double residual_by_hand(const struct block *block,
                               const double *merged, float before, int o)
{
    double sum = (double)before + block->attention.out_proj.bias.data[o];
    for (int c = 0; c < C; c++)
        sum += merged[c] * block->attention.out_proj.weight.data[o * C + c];
    return sum;
}

START_TEST(first_block_matches_a_decomposed_causal_oracle)
{
    struct tiny_gpt *model = oracle_model(0);
    struct activations act = { 0 };
    trace(model, &act);
    const struct block *block = &tiny_gpt_parameters(model)->blocks[0];
    static float expected[B * T * C];
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            double merged[C];
            for (int h = 0; h < H; h++)
                attend_by_hand(act.blocks[0].qkv.data + b * T * 3 * C, t, h,
                               merged + h * D);
            for (int c = 0, at = (b * T + t) * C; c < C; c++)
                expected[at + c] = (float)residual_by_hand(
                    block, merged, act.embedding.data[at + c], c);
        }
    expect_close("residual after the first attention",
                 act.blocks[0].residual.data, expected, B * T * C, 3,
                 (const int[]){ B, T, C }, TOLERANCE);
    expect_close("the oracle's trace of it", act.blocks[0].residual.data,
                 golden_get(golden, "trace.blocks.0.residual")->f32,
                 B * T * C, 3, (const int[]){ B, T, C }, TOLERANCE);
    activations_free(&act);
    done(model);
}
END_TEST

/* -log softmax(row)[id], directly. */
static double surprise(const float *row, int32_t id)
{
    double sum = 0;
    for (int v = 0; v < V; v++)
        sum += exp((double)row[v]);
    return log(sum) - (double)row[id];
}

static float model_loss(const struct tiny_gpt *model, const int32_t *labels)
{
    struct forward_input input = {
        .ids = golden_ids, .batch = B, .tokens = T, .labels = labels
    };
    struct forward_output output = { 0 };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    ck_assert(output.has_loss);
    float loss = output.loss;
    forward_output_free(&output);
    return loss;
}

START_TEST(shifted_cross_entropy_matches_the_direct_formula)
{
    struct tiny_gpt *model = oracle_model(0);
    static float logits[B * T * V];
    double sum = 0;
    full_logits(model, golden_ids, B, T, logits);
    for (int b = 0; b < B; b++)
        for (int t = 0; t + 1 < T; t++)
            sum += surprise(logits + (b * T + t) * V,
                            golden_ids[b * T + t + 1]);
    float loss = model_loss(model, golden_ids);
    float expected = (float)(sum / (B * (T - 1)));
    expect_close("loss", &loss, &expected, 1, 0, NULL, TOLERANCE);
    done(model);
}
END_TEST

START_TEST(shifted_cross_entropy_leaves_out_ignored_labels)
{
    struct tiny_gpt *model = oracle_model(0);
    float loss = model_loss(model, golden_get(golden, "in.labels")->ids);
    expect_close("loss", &loss, golden_get(golden, "out.loss")->f32, 1, 0,
                 NULL, TOLERANCE);
    int32_t none[B * T];
    for (int i = 0; i < B * T; i++)
        none[i] = i % T == 0 ? 3 : IGNORE_INDEX;   /* a first label is unused */
    ck_assert(model_loss(model, none) == 0);
    done(model);
}
END_TEST

START_TEST(eval_is_deterministic_whatever_the_dropout)
{
    struct tiny_gpt *plain = oracle_model(0), *model = oracle_model(0.5);
    static float expected[B * T * V];
    struct generator generator;
    uint64_t state = noise_start(3);
    generator_seed(&generator, noise_next(&state), 2);
    full_logits(plain, golden_ids, B, T, expected);
    for (int call = 0; call < 3; call++) {
        const struct generator before = generator;
        struct forward_input input = {
            .ids = golden_ids, .batch = B, .tokens = T,
            .generator = &generator
        };
        struct forward_output output = { 0 };
        expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
        expect_same_bits("logits in evaluation", output.logits.data,
                         expected, sizeof expected);
        ck_assert_uint_eq(generator.state, before.state);
        forward_output_free(&output);
    }
    tiny_gpt_free(&plain);
    done(model);
}
END_TEST

START_TEST(state_dict_roundtrip_is_exact_to_the_bit)
{
    struct tiny_gpt *model = oracle_model(0.25), *loaded = NULL;
    static float expected[B * T * V], logits[B * T * V];
    save(model);
    expect_ok(tiny_gpt_load(&loaded, directory, &error), &error);
    remove_saved();
    const struct parameters *a = tiny_gpt_parameters(model);
    const struct parameters *b = tiny_gpt_parameters(loaded);
    ck_assert_uint_eq(a->size, b->size);
    expect_same_bits("parameters", b->storage, a->storage,
                     a->size * sizeof (float));
    ck_assert(tiny_gpt_config(loaded)->dropout == 0.25);
    full_logits(model, golden_ids, B, T, expected);
    full_logits(loaded, golden_ids, B, T, logits);
    expect_same_bits("logits", logits, expected, sizeof expected);
    tiny_gpt_free(&loaded);
    done(model);
}
END_TEST

/* Saves the model's tensors with one name changed, or one left out. */
static void save_spoiled(struct tiny_gpt *model, const char *drop,
                         const char *add)
{
    const struct parameters *p = tiny_gpt_parameters(model);
    struct safetensors_entry entries[64];
    char path[128];
    size_t count = parameters_entries(p, entries), kept = 0;
    struct safetensors_entry extra = entries[0];
    for (size_t i = 0; i < count; i++)
        if (drop == NULL || strcmp(entries[i].name, drop) != 0)
            entries[kept++] = entries[i];
    if (add != NULL) {
        extra.name = add;
        entries[kept++] = extra;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    expect_ok(safetensors_write(path, entries, kept, NULL, 0, &error), &error);
}

START_TEST(state_dict_roundtrip_refuses_missing_and_unknown_names)
{
    struct tiny_gpt *model = oracle_model(0), *loaded = NULL;
    save(model);
    const char *const missing[] = {
        "token_embedding.weight", "blocks.1.mlp.down_proj.bias",
        "final_norm.bias"
    };
    for (int k = 0; k < 3; k++) {
        save_spoiled(model, missing[k], NULL);
        expect_refused(tiny_gpt_load(&loaded, directory, &error),
                       missing[k]);
        ck_assert_ptr_null(loaded);
    }
    save_spoiled(model, NULL, "blocks.2.mlp_norm.bias");
    expect_refused(tiny_gpt_load(&loaded, directory, &error),
                   "blocks.2.mlp_norm.bias");
    ck_assert_ptr_null(loaded);
    remove_saved();
    done(model);
}
END_TEST

START_TEST(backward_gives_every_parameter_its_finite_gradient)
{
    struct tiny_gpt *model = oracle_model(0);
    struct parameters *gradients = NULL;
    struct activations act = { 0 };
    struct forward_input input = {
        .ids = golden_ids, .batch = B, .tokens = T,
        .labels = golden_get(golden, "in.labels")->ids, .activations = &act
    };
    struct forward_output output = { 0 };
    expect_ok(parameters_new(&gradients, &tiny, &error), &error);
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    input.activations = NULL;
    expect_ok(tiny_gpt_backward(model, &input, &act, &output, gradients,
                                &error), &error);
    for (int i = 0; i < gradients->count; i++) {
        const struct parameter *g = &gradients->registry[i];
        if (g->alias)
            continue;
        expect_close(g->path, g->tensor->data,
                     golden_get(golden, "g.%s", g->path)->f32,
                     tensor_size(g->tensor), g->tensor->rank,
                     g->tensor->shape, TOLERANCE);
        double norm = 0;
        for (size_t k = 0; k < tensor_size(g->tensor); k++)
            norm += fabs((double)g->tensor->data[k]);
        ck_assert_msg(isfinite(norm) && norm > 0, "%s: sum %g", g->path,
                      norm);
    }
    forward_output_free(&output);
    activations_free(&act);
    parameters_free(&gradients);
    done(model);
}
END_TEST

/* --------------------------------------------------------- tier 2: the cache */

/* Feeds columns from..to of the oracle's ids behind the past; the caller owns
   what comes back. */
static struct forward_output feed(const struct tiny_gpt *model,
                                  const struct past_key_values *past,
                                  int from, int to, bool use_cache)
{
    int32_t ids[B * N];
    for (int b = 0; b < B; b++)
        memcpy(ids + b * (to - from), golden_ids + b * T + from,
               (size_t)(to - from) * sizeof *ids);
    struct forward_input input = {
        .ids = ids, .batch = B, .tokens = to - from,
        .past_key_values = past, .use_cache = use_cache
    };
    struct forward_output output = { 0 };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    return output;
}

static void expect_cache(const struct past_key_values *cache, int length)
{
    ck_assert_int_eq(cache->n_layers, L);
    ck_assert_int_eq(past_key_values_length(cache), length);
    const int shape[] = { B, H, length, D };
    for (int l = 0; l < L; l++)
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(cache->layers[l].key.rank, 4);
            ck_assert_int_eq(cache->layers[l].value.rank, 4);
            ck_assert_int_eq(cache->layers[l].key.shape[i], shape[i]);
            ck_assert_int_eq(cache->layers[l].value.shape[i], shape[i]);
        }
}

START_TEST(cache_pairs_are_batch_heads_length_head_dim)
{
    struct tiny_gpt *model = oracle_model(0);
    struct forward_output first = feed(model, NULL, 0, 3, true);
    expect_cache(&first.past_key_values, 3);
    struct forward_output second = feed(model, &first.past_key_values, 3, 7,
                                        true);
    expect_cache(&second.past_key_values, 7);
    forward_output_free(&first);
    forward_output_free(&second);
    done(model);
}
END_TEST

START_TEST(cache_is_absent_unless_asked_for)
{
    struct tiny_gpt *model = oracle_model(0);
    struct forward_output first = feed(model, NULL, 0, 3, true);
    struct forward_output without = feed(model, NULL, 0, 3, false);
    struct forward_output consumed = feed(model, &first.past_key_values, 3,
                                          7, false);
    ck_assert_ptr_null(without.past_key_values.layers);
    ck_assert_int_eq(without.past_key_values.n_layers, 0);
    ck_assert_ptr_null(consumed.past_key_values.layers);
    ck_assert_int_eq(consumed.past_key_values.n_layers, 0);
    forward_output_free(&first);
    forward_output_free(&without);
    forward_output_free(&consumed);
    done(model);
}
END_TEST

/* The first rows of every slice of a longer cache are the shorter one's. */
static void expect_prefix(const struct tensor *longer,
                          const struct tensor *shorter, const char *what)
{
    const int length = longer->shape[2], prefix = shorter->shape[2];
    for (int slice = 0; slice < B * H; slice++)
        expect_same_bits(what, longer->data + slice * length * D,
                         shorter->data + slice * prefix * D,
                         (size_t)(prefix * D) * sizeof (float));
}

START_TEST(cache_grows_behind_what_it_held)
{
    struct tiny_gpt *model = oracle_model(0);
    for (int cut = 1; cut < T; cut++) {
        struct forward_output first = feed(model, NULL, 0, cut, true);
        struct past_key_values *past = &first.past_key_values;
        struct past_key_values kept = { 0 };
        expect_ok(past_key_values_prefix(past, cut, &kept, &error), &error);
        struct forward_output second = feed(model, past, cut, T, true);
        for (int l = 0; l < L; l++) {
            const struct layer_kv *made = &second.past_key_values.layers[l];
            expect_prefix(&made->key, &kept.layers[l].key, "keys");
            expect_prefix(&made->value, &kept.layers[l].value, "values");
        }
        past_key_values_free(&kept);
        forward_output_free(&first);
        forward_output_free(&second);
    }
    done(model);
}
END_TEST

START_TEST(cache_that_went_in_is_unchanged_to_the_bit)
{
    struct tiny_gpt *model = oracle_model(0);
    struct forward_output first = feed(model, NULL, 0, 3, true);
    enum { SIZE = B * H * 3 * D };
    static float copies[L][2][SIZE];
    struct layer_kv structs[L];
    for (int l = 0; l < L; l++) {
        structs[l] = first.past_key_values.layers[l];
        memcpy(copies[l][0], structs[l].key.data, sizeof copies[l][0]);
        memcpy(copies[l][1], structs[l].value.data, sizeof copies[l][1]);
    }
    for (int to = 4; to <= T; to++) {
        struct forward_output next = feed(model, &first.past_key_values, 3,
                                          to, true);
        for (int l = 0; l < L; l++) {
            const struct layer_kv *now = &first.past_key_values.layers[l];
            ck_assert_ptr_eq(now->key.data, structs[l].key.data);
            ck_assert_ptr_eq(now->value.data, structs[l].value.data);
            ck_assert_ptr_ne(next.past_key_values.layers[l].key.data,
                             now->key.data);
            expect_same_bits("keys", now->key.data, copies[l][0],
                             sizeof copies[l][0]);
            expect_same_bits("values", now->value.data, copies[l][1],
                             sizeof copies[l][1]);
        }
        forward_output_free(&next);
    }
    forward_output_free(&first);
    done(model);
}
END_TEST

static void expect_logits(const char *what, const struct tensor *logits,
                          const float *full, int from)
{
    const int tokens = logits->shape[1];
    for (int b = 0; b < B; b++)
        expect_close(what, logits->data + b * tokens * V,
                     full + (b * T + from) * V, (size_t)(tokens * V), 2,
                     (const int[]){ tokens, V }, TOLERANCE);
}

START_TEST(tokenwise_cache_equals_full_forward)
{
    struct tiny_gpt *model = oracle_model(0);
    struct forward_output last = { 0 };
    const float *full = golden_get(golden, "out.logits")->f32;
    for (int t = 0; t < T; t++) {
        struct forward_output next = feed(model,
            t == 0 ? NULL : &last.past_key_values, t, t + 1, true);
        expect_logits("logits of the token", &next.logits, full, t);
        forward_output_free(&last);
        last = next;
    }
    forward_output_free(&last);
    done(model);
}
END_TEST

START_TEST(chunked_cache_equals_full_forward)
{
    struct tiny_gpt *model = oracle_model(0);
    const float *full = golden_get(golden, "out.logits")->f32;
    for (int a = 1; a < T - 1; a++)
        for (int b = a + 1; b < T; b++) {
            struct forward_output x = feed(model, NULL, 0, a, true);
            struct forward_output y = feed(model, &x.past_key_values, a, b,
                                           true);
            struct forward_output z = feed(model, &y.past_key_values, b, T,
                                           false);
            expect_logits("logits of the first chunk", &x.logits, full, 0);
            expect_logits("logits of the second chunk", &y.logits, full, a);
            expect_logits("logits of the third chunk", &z.logits, full, b);
            forward_output_free(&x);
            forward_output_free(&y);
            forward_output_free(&z);
        }
    done(model);
}
END_TEST

static void expect_final(const struct past_key_values *cache)
{
    for (int l = 0; l < L; l++) {
        const int shape[] = { B, H, T, D };
        expect_close("final keys", cache->layers[l].key.data,
                     golden_get(golden, "out.past.%d.key", l)->f32,
                     B * H * T * D, 4, shape, TOLERANCE);
        expect_close("final values", cache->layers[l].value.data,
                     golden_get(golden, "out.past.%d.value", l)->f32,
                     B * H * T * D, 4, shape, TOLERANCE);
    }
}

START_TEST(final_caches_are_equal_whichever_way)
{
    struct tiny_gpt *model = oracle_model(0);
    for (int chunk = 1; chunk <= T; chunk++) {
        struct forward_output last = { 0 };
        for (int from = 0; from < T; from += chunk) {
            int to = from + chunk < T ? from + chunk : T;
            struct forward_output next = feed(model,
                from == 0 ? NULL : &last.past_key_values, from, to, true);
            forward_output_free(&last);
            last = next;
        }
        expect_cache(&last.past_key_values, T);
        expect_final(&last.past_key_values);
        forward_output_free(&last);
    }
    done(model);
}
END_TEST

/* A cache of the model's shape, to be spoiled. */
static struct past_key_values some_cache(int layers, int batch, int heads,
                                         int length, int width)
{
    struct past_key_values past = {
        .n_layers = layers, .layers = calloc((size_t)layers,
                                             sizeof *past.layers)
    };
    const int shape[] = { batch, heads, length, width };
    for (int l = 0; l < layers; l++) {
        expect_ok(tensor_new(&past.layers[l].key, 4, shape, &error), &error);
        expect_ok(tensor_new(&past.layers[l].value, 4, shape, &error), &error);
    }
    return past;
}

static void refuses(struct tiny_gpt *model, struct past_key_values past)
{
    const int32_t ids[] = { 1, 2 };
    struct forward_input input = {
        .ids = ids, .batch = B, .tokens = 1, .past_key_values = &past,
        .use_cache = true
    };
    struct forward_output output = { 0 };
    expect_refused(tiny_gpt_forward(model, &input, &output, &error), "past");
    ck_assert_ptr_null(output.logits.data);
    ck_assert_ptr_null(output.past_key_values.layers);
    past_key_values_free(&past);
}

START_TEST(malformed_cache_is_refused_and_nothing_changes)
{
    struct tiny_gpt *model = oracle_model(0);
    refuses(model, some_cache(L - 1, B, H, 3, D));
    refuses(model, some_cache(L + 1, B, H, 3, D));
    refuses(model, some_cache(L, B + 1, H, 3, D));
    refuses(model, some_cache(L, B, H - 1, 3, D));
    refuses(model, some_cache(L, B, H, 3, D + 1));
    for (int l = 0; l < L; l++)
        for (int value = 0; value < 2; value++) {
            struct past_key_values past = some_cache(L, B, H, 3, D);
            struct tensor *tensor = value ? &past.layers[l].value
                                          : &past.layers[l].key;
            tensor_free(tensor);
            expect_ok(tensor_new(tensor, 4, (const int[]){ B, H, 2, D },
                                 &error), &error);
            refuses(model, past);
            past = some_cache(L, B, H, 3, D);
            tensor_free(value ? &past.layers[l].value : &past.layers[l].key);
            refuses(model, past);
        }
    done(model);
}
END_TEST

START_TEST(context_overflow_is_refused_with_and_without_a_past)
{
    struct tiny_gpt *model = oracle_model(0);
    const int32_t ids[B * (N + 1)] = { 0 };
    for (int length = 0; length <= N; length++)
        for (int tokens = 1; tokens <= N + 1; tokens++) {
            struct past_key_values past = { 0 };
            struct forward_input input = {
                .ids = ids, .batch = B, .tokens = tokens, .use_cache = true
            };
            struct forward_output output = { 0 };
            if (length > 0) {
                past = some_cache(L, B, H, length, D);
                input.past_key_values = &past;
            }
            enum status status = tiny_gpt_forward(model, &input, &output,
                                                  &error);
            ck_assert_int_eq(status == STATUS_OK, length + tokens <= N);
            if (status != STATUS_OK) {
                expect_refused(status, "context_length 12");
                ck_assert_ptr_null(output.logits.data);
            }
            forward_output_free(&output);
            past_key_values_free(&past);
        }
    done(model);
}
END_TEST

/* ------------------------------------------------------- tier 3: generation */

static struct generate_output generate(struct tiny_gpt *model,
                                       struct generate_input input)
{
    struct generate_output output = { 0 };
    expect_ok(tiny_gpt_generate(model, &input, &output, &error), &error);
    return output;
}

/* The largest of row t of a row's logits by whole-prefix recomputation. clear
   stays true when a hundred tolerances separate it from the second. */
static int32_t greedy_by_hand(const struct tiny_gpt *model,
                              const int32_t *row, int tokens, bool *clear)
{
    static float logits[N * V];
    full_logits(model, row, 1, tokens, logits);
    const float *last = logits + (tokens - 1) * V;
    const int32_t id = sampler_greedy(last, V);
    for (int v = 0; v < V; v++)
        *clear = *clear && (v == id
                            || last[v] < last[id] - 100 * (float)TOLERANCE);
    return id;
}

/* A text of which `tokens` are the prompt and the rest is what greedy
   decoding makes of it, by whole prefixes and with no near tie; and where
   there is a second step, it says something there that the last token alone
   would not have made it say. */
static void greedy_text(const struct tiny_gpt *model, unsigned stream,
                        int tokens, int32_t *text)
{
    uint64_t state = noise_start(stream);
    bool clear = false, remembers = false;
    for (int n = 0; !(clear && remembers) && n < 1000; n++) {
        clear = true;
        remembers = N < tokens + 2;
        noise_ids(&state, V, 1, tokens, text);
        for (int t = tokens; t < N; t++) {
            text[t] = greedy_by_hand(model, text, t, &clear);
            remembers = remembers || (t > tokens && text[t]
                        != greedy_by_hand(model, &text[t - 1], 1, &clear));
        }
    }
}

START_TEST(greedy_generation_equals_whole_prefix_recomputation)
{
    struct tiny_gpt *model = oracle_model(0);
    int32_t text[N], prompt[B * 4];
    for (int tokens = 1; tokens < N; tokens++) {
        greedy_text(model, 10 + (unsigned)tokens, tokens, text);
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = text, .batch = 1, .tokens = tokens,
                .max_new_tokens = N - tokens, .eos_token_id = NO_EOS });
        ck_assert_int_eq(output.tokens, N);
        for (int t = 0; t < N; t++)
            ck_assert_int_eq(output.ids[t], text[t]);
        generate_output_free(&output);
    }
    for (int b = 0; b < B; b++)
        memcpy(prompt + 4 * b, golden_ids + T * b, 4 * sizeof *prompt);
    struct generate_output output = generate(model, (struct generate_input){
        .ids = prompt, .batch = B, .tokens = 4, .max_new_tokens = 8,
        .eos_token_id = NO_EOS });
    const int32_t *expected = golden_get(golden, "out.greedy")->ids;
    for (int i = 0; i < B * 12; i++)
        ck_assert_int_eq(output.ids[i], expected[i]);
    generate_output_free(&output);
    done(model);
}
END_TEST

/* Softmax first, then the running sum: the textbook's inverse CDF. margin
   shrinks to the distance of uniform from the next interval. */
static int32_t draw_by_hand(const float *logits, double temperature,
                            double uniform, double *margin)
{
    double p[V], sum = 0, reached = 0;
    int32_t id = 0;
    for (int v = 0; v < V; v++)
        sum += p[v] = exp((double)logits[v] / temperature);
    for (int v = 0; v + 1 < V; v++) {
        reached += p[v] / sum;
        id += uniform >= reached;
        *margin = fmin(*margin, fabs(uniform - reached));
    }
    return id;
}

START_TEST(one_step_sampling_matches_an_explicit_generator)
{
    struct tiny_gpt *model = oracle_model(0);
    static float logits[B * T * V];
    uint64_t state = noise_start(4);
    int32_t ids[B * T];
    noise_ids(&state, V, B, T, ids);
    full_logits(model, ids, B, T, logits);
    for (int k = 0; k < 50; k++) {
        struct generator generator, copy;
        generator_seed(&generator, noise_next(&state), 1);
        copy = generator;
        struct generate_output output = generate(model,
            (struct generate_input){
                .ids = ids, .batch = B, .tokens = T,
                .max_new_tokens = 1, .temperature = 1.7,
                .eos_token_id = NO_EOS, .generator = &generator });
        for (int b = 0; b < B; b++) {
            double margin = 1;
            int32_t id = draw_by_hand(logits + (b * T + T - 1) * V, 1.7,
                                      generator_uniform(&copy), &margin);
            if (margin > 1e-4)      /* else the logits' rounding may decide */
                ck_assert_int_eq(output.ids[(T + 1) * b + T], id);
        }
        ck_assert_uint_eq(generator.state, copy.state);
        generate_output_free(&output);
    }
    done(model);
}
END_TEST

START_TEST(sampling_repeats_under_equal_seeds)
{
    struct tiny_gpt *model = oracle_model(0);
    struct generate_output outputs[3];
    uint64_t state = noise_start(5);
    const uint64_t one = noise_next(&state), other = noise_next(&state);
    const uint64_t seeds[] = { one, one, other };
    for (int k = 0; k < 3; k++) {
        struct generator generator;
        generator_seed(&generator, seeds[k], 1);
        outputs[k] = generate(model, (struct generate_input){
            .ids = golden_ids, .batch = B, .tokens = 2,
            .max_new_tokens = 10, .temperature = 1.3,
            .eos_token_id = NO_EOS, .generator = &generator });
    }
    size_t bytes = B * 12 * sizeof *outputs[0].ids;
    ck_assert_int_eq(memcmp(outputs[0].ids, outputs[1].ids, bytes), 0);
    ck_assert_int_ne(memcmp(outputs[0].ids, outputs[2].ids, bytes), 0);
    for (int k = 0; k < 3; k++)
        generate_output_free(&outputs[k]);
    done(model);
}
END_TEST

/* Where eos first stands in each row of a run [3,12], or 12; returns the
   number of steps that a run with this EOS takes. */
static int first_places(const struct generate_output *run, int32_t eos,
                        int first[3])
{
    int steps = 0;
    for (int b = 0; b < 3; b++) {
        for (first[b] = 1; first[b] < 12; first[b]++)
            if (run->ids[12 * b + first[b]] == eos)
                break;
        int row = first[b] < 11 ? first[b] : 11;
        steps = row > steps ? row : steps;
    }
    return steps;
}

/* How many ids come at different steps in the three rows. */
static int staggered_ids(const struct generate_output *run)
{
    int count = 0, first[3];
    for (int32_t eos = 0; eos < V; eos++) {
        first_places(run, eos, first);
        count += first[0] != first[1] || first[1] != first[2];
    }
    return count;
}

/* EOS by row, on whatever the model says by itself: the greedy run without
   EOS tells where each id comes first. Prompts are drawn until two ids and
   more would end the rows at different steps. */
START_TEST(generation_stops_when_every_row_has_said_eos)
{
    struct tiny_gpt *model = oracle_model(0);
    int32_t prompt[3];
    uint64_t state = noise_start(6);
    struct generate_input input = {
        .ids = prompt, .batch = 3, .tokens = 1, .max_new_tokens = 11,
        .eos_token_id = NO_EOS
    };
    struct generate_output free_run = { 0 };
    for (int n = 0; n < 100 && (n == 0 || staggered_ids(&free_run) < 2); n++) {
        generate_output_free(&free_run);
        noise_ids(&state, V, 3, 1, prompt);
        free_run = generate(model, input);
    }
    ck_assert_int_ge(staggered_ids(&free_run), 2);
    for (int32_t eos = 0; eos < V; eos++) {
        int first[3];
        const int steps = first_places(&free_run, eos, first);
        input.eos_token_id = eos;
        struct generate_output output = generate(model, input);
        ck_assert_int_eq(output.tokens, 1 + steps);
        for (int b = 0; b < 3; b++)
            for (int t = 0; t <= steps; t++)
                ck_assert_int_eq(output.ids[b * (1 + steps) + t],
                                 t > first[b] ? eos
                                 : free_run.ids[12 * b + t]);
        generate_output_free(&output);
    }
    generate_output_free(&free_run);
    done(model);
}
END_TEST

static int steps_seen;

static bool count_step(void *context, const int32_t *ids, int batch)
{
    (void)context, (void)ids, (void)batch;
    return ++steps_seen > 0;
}

START_TEST(generation_refuses_overflow_before_anything_changes)
{
    struct tiny_gpt *model = oracle_model(0);
    struct generator generator;
    generator_seed(&generator, 4, 1);
    const struct generator before = generator;
    for (int tokens = 1; tokens <= 3; tokens++)
        for (int over = 1; over <= 3; over++) {
            struct generate_input input = {
                .ids = golden_ids, .batch = 1, .tokens = tokens,
                .max_new_tokens = N - tokens + over, .temperature = 1,
                .eos_token_id = NO_EOS, .generator = &generator,
                .on_step = count_step
            };
            struct generate_output output = { 0 };
            steps_seen = 0;
            expect_refused(tiny_gpt_generate(model, &input, &output, &error),
                           "context_length 12");
            ck_assert_int_eq(steps_seen, 0);
            ck_assert_ptr_null(output.ids);
            ck_assert_uint_eq(generator.state, before.state);
            input.max_new_tokens = N - tokens;
            input.temperature = 0;
            output = generate(model, input);
            ck_assert_int_eq(output.tokens, N);
            generate_output_free(&output);
        }
    done(model);
}
END_TEST

START_TEST(generation_of_no_tokens_returns_a_copy)
{
    struct tiny_gpt *model = oracle_model(0);
    struct generate_output output = generate(model, (struct generate_input){
        .ids = golden_ids, .batch = B, .tokens = T,
        .eos_token_id = NO_EOS });
    ck_assert_ptr_nonnull(output.ids);
    ck_assert_ptr_ne(output.ids, golden_ids);
    ck_assert_int_eq(output.batch, B);
    ck_assert_int_eq(output.tokens, T);
    for (int i = 0; i < B * T; i++)
        ck_assert_int_eq(output.ids[i], golden_ids[i]);
    generate_output_free(&output);
    done(model);
}
END_TEST

START_TEST(generation_restores_the_mode)
{
    const enum mode modes[] = { MODE_TRAINING, MODE_EVALUATION };
    for (int k = 0; k < 2; k++) {
        struct tiny_gpt *model = oracle_model(0.5);
        struct generate_input input = {
            .ids = golden_ids, .batch = B, .tokens = 2,
            .max_new_tokens = 3, .eos_token_id = NO_EOS
        };
        struct generate_output output = { 0 };
        tiny_gpt_set_mode(model, modes[k]);
        output = generate(model, input);
        ck_assert_int_eq(tiny_gpt_mode(model), modes[k]);
        generate_output_free(&output);
        tiny_gpt_parameters(model)->final_norm.bias.data[0] = NAN;
        ck_assert_int_ne(tiny_gpt_generate(model, &input, &output, &error),
                         STATUS_OK);
        ck_assert_int_eq(tiny_gpt_mode(model), modes[k]);
        done(model);
    }
}
END_TEST

/* ------------------------------------------------------------- the table */

#define ROUTE(id, chapter, owner, failure, repair) \
    static const char owner_##id[] = owner;
#include "routes.def"
#undef ROUTE

#define CHECK(name, tier, route) TEST(name, tier, owner_##route),
static const struct test tests[CHECK_COUNT] = {
#include "checks.def"
};

SUITE("chapter 7, the test block", tests);
