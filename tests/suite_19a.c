/* Chapter 19, models of the hub. The other GELU in double precision, hub
   directories that are written from models of noise and have to give them
   back, and the oracle's directories, row by row and token by token. */
#include <limits.h>
#include <math.h>
#include "backward.h"
#include "checkpoint.h"
#include "gelu.h"
#include "gelu_tanh.h"
#include "hub.h"
#include "layers_backward.h"
#include "json.h"
#include "llama2c.h"
#include "model_file.h"
#include "request.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/hub.h"
#include "support/program.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif
#define LENGTH(array) (sizeof (array) / sizeof *(array))

static struct error error;

/* -------------------------------------------------------------------- GELU */

static double tanh_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846)
                               * (x + 0.044715 * x * x * x)));
}

START_TEST(both_gelus_have_their_own_values_at_two)
{
    const float in[] = {2, -2, 0, 1, -1};
    float exact[5], bent[5];
    gelu_forward(in, 5, exact);
    gelu_tanh_forward(in, 5, bent);
    ck_assert_double_lt(fabs(exact[0] - 1.9544997361), 2e-7);
    ck_assert_double_lt(fabs(exact[1] + 0.0455002639), 2e-8);
    ck_assert_double_lt(fabs(bent[0] - 1.9545976941), 2e-7);
    ck_assert_double_lt(fabs(bent[1] + 0.0454023059), 2e-8);
    ck_assert_float_eq(bent[2], 0);
    ck_assert_double_lt(fabs(bent[3] - 0.8411919906), 1e-7);
    ck_assert_double_lt(fabs(bent[4] + 0.1588080094), 1e-7);
}
END_TEST

START_TEST(the_tanh_form_is_its_formula_everywhere)
{
    uint64_t state = noise_start(200);
    for (int round = 0; round < 5000; round++) {
        const float x = ldexpf(noise(&state), noise_below(&state, 9) - 4);
        float y = x, z[2] = {x, x};
        gelu_tanh_forward(&y, 1, &y);
        gelu_tanh_forward(z, 2, z);
        ck_assert_double_lt(fabs(y - tanh_gelu(x)), 1e-6 * (1 + fabs(x)));
        ck_assert(y == z[0] && y == z[1]);
    }
    const float in[] = {1e30f, -1e30f, 30, -30, 3e38f, -3e38f};
    float out[6];
    gelu_tanh_forward(in, 6, out);
    for (int k = 0; k < 6; k++)
        ck_assert_float_eq(out[k], in[k] > 0 ? in[k] : 0);
}
END_TEST

START_TEST(the_slope_of_the_tanh_form_is_its_difference_quotient)
{
    uint64_t state = noise_start(201);
    for (int round = 0; round < 2000; round++) {
        const float x = 6 * noise(&state), up = noise(&state);
        const double h = 1e-5;
        const double want = (tanh_gelu(x + h) - tanh_gelu(x - h)) / (2 * h);
        float got;
        gelu_tanh_backward(&x, &up, 1, &got);
        ck_assert_msg(fabs(got - up * want) < 1e-6, "at %g: %g for %g", x,
                      got, up * want);
    }
    const float in[] = {1e30f, -1e30f, 3e38f, -3e38f}, one[] = {1, 1, 1, 1};
    float out[4];
    gelu_tanh_backward(in, one, 4, out);
    for (int k = 0; k < 4; k++)
        ck_assert_float_eq(out[k], in[k] > 0);
}
END_TEST

START_TEST(a_config_chooses_its_gelu)
{
    const float in[] = {-2, -0.5f, 0.3f, 2}, d_out[] = {1, 2, 3, 4};
    float got[4], want[4];
    struct gpt_config config = small_gpt2_config();
    config_gelu_forward(&config, in, 4, got);
    gelu_tanh_forward(in, 4, want);
    expect_same_bits("tanh", got, want, sizeof got);
    config_gelu_backward(&config, in, d_out, 4, got);
    gelu_tanh_backward(in, d_out, 4, want);
    expect_same_bits("tanh slope", got, want, sizeof got);
    config.tanh_gelu = 0;
    config_gelu_forward(&config, in, 4, got);
    gelu_forward(in, 4, want);
    expect_same_bits("exact", got, want, sizeof got);
    config_gelu_backward(&config, in, d_out, 4, got);
    gelu_backward(in, d_out, 4, want);
    expect_same_bits("exact slope", got, want, sizeof got);
}
END_TEST

START_TEST(the_ninth_number_is_zero_or_one_and_reads_back)
{
    struct gpt_config config = small_gpt2_config(), back;
    char *text = NULL;
    expect_ok(gpt_config_format(&config, &text, &error), &error);
    ck_assert_ptr_nonnull(strstr(text, "\"tanh_gelu\": 1"));
    expect_ok(gpt_config_parse(&back, text, strlen(text), &error), &error);
    ck_assert_int_eq(back.tanh_gelu, 1);
    free(text);
    config.tanh_gelu = 0;
    expect_ok(gpt_config_format(&config, &text, &error), &error);
    ck_assert_ptr_null(strstr(text, "tanh_gelu"));
    expect_ok(gpt_config_parse(&back, text, strlen(text), &error), &error);
    ck_assert_int_eq(back.tanh_gelu, 0);
    free(text);
    for (int k = -1; k < 3; k++) {
        config.tanh_gelu = k;
        const enum status status = gpt_config_check(&config, &error);
        ck_assert_int_eq(status, k == 0 || k == 1 ? STATUS_OK
                                                  : STATUS_INVALID);
        if (status != STATUS_OK)
            expect_named(&error, "tanh_gelu: ");
    }
}
END_TEST

/* Up-projections without weights: what is bent is their bias. */
static struct tiny_gpt *biased_model(void)
{
    struct gpt_config config = small_gpt2_config();
    config.n_layers = 1;
    struct tiny_gpt *model = noisy_model(&config, 202);
    struct block *block = tiny_gpt_parameters(model)->blocks;
    uint64_t state = noise_start(203);
    memset(block->mlp.up_proj.weight.data, 0,
           tensor_size(&block->mlp.up_proj.weight) * sizeof (float));
    for (int f = 0; f < config.d_ff; f++)
        block->mlp.up_proj.bias.data[f] = 2.5f * noise(&state);
    return model;
}

START_TEST(the_forward_pass_bends_as_the_config_says)
{
    static const int32_t ids[] = {3, 1, 4};
    struct tiny_gpt *model = biased_model();
    struct activations activations = {0};
    struct forward_output output = {0};
    const struct forward_input input = {
        .ids = ids, .batch = 1, .tokens = 3, .activations = &activations
    };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    const struct block_activations *block = &activations.blocks[0];
    for (size_t k = 0; k < tensor_size(&block->gelu); k++)
        ck_assert_double_lt(fabs(block->gelu.data[k]
                                 - tanh_gelu(block->up.data[k])), 1e-6);
    activations_free(&activations);
    forward_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

/* With up = b in each row, the gradient of b[f] is the slope at b[f] times
   what reaches it from the gradient of the down-projection's bias. */
START_TEST(the_gradient_goes_through_the_gelu_of_the_config)
{
    static const int32_t ids[] = {3, 1, 4, 1}, labels[] = {3, 1, 4, 1};
    struct tiny_gpt *model = biased_model();
    struct activations activations = {0};
    struct forward_output output = {0};
    struct parameters *gradients = NULL;
    const struct forward_input input = {
        .ids = ids, .labels = labels, .batch = 1, .tokens = 4,
        .activations = &activations
    };
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    expect_ok(parameters_new(&gradients, tiny_gpt_config(model), &error),
              &error);
    expect_ok(tiny_gpt_backward(model, &input, &activations, &output,
                                gradients, &error), &error);
    const struct mlp *mlp = &tiny_gpt_weights(model)->blocks[0].mlp;
    const struct mlp *d = &gradients->blocks[0].mlp;
    const int c = 6, f = 70;
    for (int k = 0; k < f; k++) {
        const double x = mlp->up_proj.bias.data[k], h = 1e-5;
        const double slope = (tanh_gelu(x + h) - tanh_gelu(x - h)) / (2 * h);
        double above = 0;
        for (int i = 0; i < c; i++)
            above += (double)mlp->down_proj.weight.data[i * f + k]
                     * d->down_proj.bias.data[i];
        const double got = d->up_proj.bias.data[k];
        ck_assert_msg(fabs(got - slope * above) < 1e-6 + 1e-5 * fabs(above),
                      "unit %d at %g: %g for %g", k, x, got, slope * above);
    }
    parameters_free(&gradients);
    activations_free(&activations);
    forward_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

/* Logits of a whole text, by one call of the handle. The caller frees. */
static float *logits_of(const struct causal_lm *lm, const int32_t *ids,
                        int tokens)
{
    struct request *request = NULL;
    const float *logits = NULL;
    const size_t count = (size_t)tokens * (size_t)lm->vocab_size;
    float *copy = malloc(count * sizeof *copy);
    expect_ok(request_new(&request, lm, 1, tokens, tokens, &error), &error);
    expect_ok(request_feed(request, ids, tokens, false, &logits, &error),
              &error);
    memcpy(copy, logits, count * sizeof *copy);
    request_free(&request);
    return copy;
}

START_TEST(a_step_bends_as_the_forward_pass_does)
{
    static const int32_t ids[] = {3, 1, 4, 1, 5, 9, 2};
    struct tiny_gpt *model = biased_model();
    struct forward_output output = {0};
    const struct forward_input input = {.ids = ids, .batch = 1, .tokens = 7};
    expect_ok(tiny_gpt_forward(model, &input, &output, &error), &error);
    const struct causal_lm lm = tiny_gpt_causal_lm(model);
    float *logits = logits_of(&lm, ids, 7);
    expect_close("logits", logits, output.logits.data, 77, 3,
                 (const int[]){1, 7, 11}, 1e-6);
    free(logits);
    forward_output_free(&output);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_saved_model_keeps_its_gelu)
{
    const char *directory = new_directory();
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 204), *back = NULL;
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    expect_ok(tiny_gpt_load(&back, directory, &error), &error);
    ck_assert_int_eq(tiny_gpt_config(back)->tanh_gelu, 1);
    tiny_gpt_free(&back);
    /* the other function under the same weights */
    char *text = NULL;
    struct gpt_config other = config;
    other.tanh_gelu = 0;
    expect_ok(gpt_config_format(&other, &text, &error), &error);
    write_text(in(directory, "config.json"), text);
    free(text);
    ck_assert_int_eq(tiny_gpt_load(&back, directory, &error), STATUS_FORMAT);
    expect_named(&error, "another config");
    ck_assert_ptr_null(back);
    tiny_gpt_free(&model);
}
END_TEST

/* ----------------------------------------------------------------- configs */

static enum status parse(struct hub_config *config, const char *text)
{
    return hub_config_parse(config, text, strlen(text), &error);
}

START_TEST(settings_that_change_the_function_are_refused_by_name)
{
    static const struct { bool llama; const char *name, *bad, *good; }
    table[] = {
        {false, "scale_attn_weights", "false", "true"},
        {false, "scale_attn_by_inverse_layer_idx", "true", "false"},
        {false, "reorder_and_upcast_attn", "true", "false"},
        {false, "add_cross_attention", "true", "false"},
        {false, "tie_word_embeddings", "false", "true"},
        {false, "quantization_config", "{\"bits\": 4}", "null"},
        {false, "reorder_and_upcast_attn", "\"no\"", "null"},
        {true, "attention_bias", "true", "false"},
        {true, "mlp_bias", "true", "false"},
        {true, "rope_scaling", "{\"type\": \"linear\"}", "null"},
        {true, "rope_parameters", "{\"rope_parameters\": 1}", "null"},
        {true, "rope_parameters", "{\"factor\": 2}", "{}"},
        {true, "rope_parameters", "7", "{\"rope_type\": \"default\"}"},
        {true, "sliding_window", "4096", "null"},
        {true, "quantization_config", "{}", "null"},
        {true, "attention_bias", "1", "null"},
    };
    const struct gpt_config gpt = small_gpt2_config();
    const struct llama_config llama = small_llama_config();
    for (size_t k = 0; k < LENGTH(table); k++) {
        char more[200];
        struct hub_config config;
        for (int good = 0; good < 2; good++) {
            snprintf(more, sizeof more, "\"%s\": %s, ", table[k].name,
                     good ? table[k].good : table[k].bad);
            const enum status status = parse(&config, table[k].llama
                                             ? llama_text(&llama, more)
                                             : gpt2_text(&gpt, more));
            ck_assert_msg(status == (good ? STATUS_OK : STATUS_FORMAT),
                          "%s: status %d", more, (int)status);
            if (!good)
                expect_named(&error, table[k].name);
        }
    }
}
END_TEST

START_TEST(what_does_not_matter_here_is_ignored)
{
    const struct gpt_config gpt = small_gpt2_config();
    const struct llama_config llama = small_llama_config();
    struct hub_config config;
    const char *more = "\"architectures\": [\"X\"], \"attn_pdrop\": 0.1,"
                       " \"n_ctx\": 9, \"bos_token_id\": 1, \"eos_token_id\""
                       ": [2, 3], \"torch_dtype\": \"bfloat16\","
                       " \"use_cache\": true, \"pretraining_tp\": 1,"
                       " \"task_specific_params\": {\"a\": {\"b\": 1}},"
                       " \"initializer_range\": 0.02, ";
    expect_ok(parse(&config, gpt2_text(&gpt, more)), &error);
    ck_assert_int_eq(config.format, FORMAT_GPT2);
    ck_assert_mem_eq(&config.gpt.vocab_size, &gpt.vocab_size,
                     6 * sizeof (int));
    ck_assert_double_eq(config.gpt.layer_norm_eps, gpt.layer_norm_eps);
    ck_assert_double_eq(config.gpt.dropout, 0);
    expect_ok(parse(&config, llama_text(&llama, more)), &error);
    ck_assert_int_eq(config.format, FORMAT_LLAMA);
    ck_assert_mem_eq(&config.llama.vocab_size, &llama.vocab_size,
                     8 * sizeof (int));
    ck_assert_double_eq(config.llama.rope_theta, llama.rope_theta);
    ck_assert_double_eq(config.llama.rms_norm_eps, llama.rms_norm_eps);
}
END_TEST

/* text without the field. */
static const char *without(const char *text, const char *field)
{
    static char rest[2048];
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", field);
    const char *at = strstr(text, key);
    ck_assert_msg(at != NULL, "no %s in %s", field, text);
    const char *end = at + strcspn(at, ",}");
    const bool last = *end == '}';
    const size_t head = (size_t)(at - text);
    memcpy(rest, text, head);
    strcpy(rest + head, last ? end : end + 1);
    if (last)
        *strrchr(rest, ',') = ' ';
    return rest;
}

/* text with another value for the field. */
static const char *with(const char *text, const char *field,
                        const char *value)
{
    static char changed[2200];
    const char *rest = without(text, field);
    snprintf(changed, sizeof changed, "{\"%s\": %s,%s", field, value,
             rest + 1);
    return changed;
}

START_TEST(a_size_is_there_and_is_one)
{
    static const char *const gpt_sizes[] = {
        "vocab_size", "n_positions", "n_embd", "n_layer", "n_head"
    };
    static const char *const llama_sizes[] = {
        "vocab_size", "max_position_embeddings", "hidden_size",
        "num_hidden_layers", "num_attention_heads", "intermediate_size"
    };
    static const char *const bad[] = {"0", "-1", "1.5", "\"7\"", "true",
                                      "[]", "2147483648", "1e999"};
    const struct gpt_config gpt = small_gpt2_config();
    const struct llama_config llama = small_llama_config();
    struct hub_config config;
    for (size_t k = 0; k < LENGTH(gpt_sizes) + LENGTH(llama_sizes); k++) {
        const bool first = k < LENGTH(gpt_sizes);
        const char *text = first ? gpt2_text(&gpt, "")
                                 : llama_text(&llama, "");
        const char *field = first ? gpt_sizes[k]
                                  : llama_sizes[k - LENGTH(gpt_sizes)];
        ck_assert_int_eq(parse(&config, without(text, field)),
                         STATUS_FORMAT);
        expect_named(&error, field);
        expect_named(&error, "missing");
        ck_assert_int_eq(parse(&config, with(text, field, "null")),
                         STATUS_FORMAT);
        expect_named(&error, "missing");
        for (size_t b = 0; b < LENGTH(bad); b++) {
            ck_assert_msg(parse(&config, with(text, field, bad[b]))
                          == STATUS_FORMAT, "%s: %s", field, bad[b]);
            expect_named(&error, field);
        }
    }
}
END_TEST

START_TEST(numbers_flags_and_names_are_of_their_type)
{
    static const struct { bool llama; const char *field, *value; } table[] = {
        {false, "layer_norm_epsilon", "\"x\""},
        {false, "layer_norm_epsilon", "0"},
        {false, "layer_norm_epsilon", "-1"},
        {false, "n_inner", "0"}, {false, "n_head", "4"},
        {false, "activation_function", "\"relu\""},
        {false, "activation_function", "7"},
        {false, "model_type", "\"bert\""}, {false, "model_type", "7"},
        {true, "rms_norm_eps", "[]"}, {true, "rms_norm_eps", "0"},
        {true, "rope_theta", "false"}, {true, "rope_theta", "0"},
        {true, "tie_word_embeddings", "1"}, {true, "head_dim", "5"},
        {true, "num_key_value_heads", "3"}, {true, "head_dim", "0"},
        {true, "hidden_act", "\"gelu\""}, {true, "hidden_act", "7"},
    };
    const struct gpt_config gpt = small_gpt2_config();
    const struct llama_config llama = small_llama_config();
    for (size_t k = 0; k < LENGTH(table); k++) {
        struct hub_config config;
        const char *text = table[k].llama ? llama_text(&llama, "")
                                          : gpt2_text(&gpt, "");
        memset(&config, 0x5a, sizeof config);
        const struct hub_config kept = config;
        ck_assert_msg(parse(&config, with(text, table[k].field,
                                          table[k].value)) != STATUS_OK,
                      "%s: %s", table[k].field, table[k].value);
        ck_assert_mem_eq(&config, &kept, sizeof kept);
    }
}
END_TEST

/* A config of GPT-2 that does not say so is none of ours, and lacks fields. */
START_TEST(a_type_is_a_string_under_its_own_name)
{
    static const char *const values[] = {"null", "7", "true", "[\"gpt2\"]"};
    const struct gpt_config gpt = small_gpt2_config();
    const struct llama_config llama = small_llama_config();
    for (int k = 0; k < 2; k++) {
        const char *text = k == 0 ? gpt2_text(&gpt, "")
                                  : llama_text(&llama, "");
        char *whole = malloc(strlen(text) + 1);
        struct hub_config config;
        strcpy(whole, text);
        for (size_t v = 0; v < LENGTH(values); v++) {
            ck_assert_int_eq(parse(&config, with(whole, "model_type",
                                                 values[v])), STATUS_FORMAT);
            ck_assert_str_eq(error.message, "model_type: expected a string");
        }
        char *key = strstr(whole, "model_type");
        ck_assert_ptr_nonnull(key);
        key[0] = 'M';
        ck_assert_int_eq(parse(&config, whole), STATUS_FORMAT);
        free(whole);
    }
}
END_TEST

START_TEST(a_width_of_the_feed_forward_layer_is_given_or_four_times)
{
    const struct gpt_config gpt = small_gpt2_config();
    struct hub_config config;
    const char *text = gpt2_text(&gpt, "");
    expect_ok(parse(&config, text), &error);
    ck_assert_int_eq(config.gpt.d_ff, 70);
    expect_ok(parse(&config, without(text, "n_inner")), &error);
    ck_assert_int_eq(config.gpt.d_ff, 24);
    expect_ok(parse(&config, with(text, "n_inner", "null")), &error);
    ck_assert_int_eq(config.gpt.d_ff, 24);
    struct gpt_config wide = gpt;
    wide.d_model = 715827882;
    ck_assert_int_ne(parse(&config, with(gpt2_text(&wide, ""), "n_inner",
                                         "null")), STATUS_OK);
}
END_TEST

START_TEST(gelu_has_the_name_that_the_config_gives_it)
{
    static const struct { const char *name; int tanh; } table[] = {
        {"\"gelu_new\"", 1}, {"\"gelu_pytorch_tanh\"", 1}, {"\"gelu\"", 0},
        {"null", 1}
    };
    const struct gpt_config gpt = small_gpt2_config();
    for (size_t k = 0; k < LENGTH(table); k++) {
        struct hub_config config;
        expect_ok(parse(&config, with(gpt2_text(&gpt, ""),
                                      "activation_function", table[k].name)),
                  &error);
        ck_assert_int_eq(config.gpt.tanh_gelu, table[k].tanh);
    }
}
END_TEST

START_TEST(heads_of_keys_are_given_or_one_for_each_query)
{
    const struct llama_config llama = small_llama_config();
    struct hub_config config;
    const char *text = llama_text(&llama, "");
    expect_ok(parse(&config, text), &error);
    ck_assert_int_eq(config.llama.n_kv_heads, 2);
    expect_ok(parse(&config, without(text, "num_key_value_heads")), &error);
    ck_assert_int_eq(config.llama.n_kv_heads, 4);
}
END_TEST

START_TEST(a_mixtures_heads_of_keys_are_given_or_eight_or_one_for_each)
{
    struct llama_config llama = small_llama_config();
    struct hub_config config;
    llama.n_experts = 4;
    llama.experts_per_token = 2;
    llama.n_heads = 16;
    llama.n_kv_heads = 4;
    char *text = malloc(4096);
    strcpy(text, llama_text(&llama, ""));
    expect_ok(parse(&config, text), &error);
    ck_assert_int_eq(config.format, FORMAT_MIXTRAL);
    ck_assert_int_eq(config.llama.n_kv_heads, 4);
    expect_ok(parse(&config, without(text, "num_key_value_heads")), &error);
    ck_assert_int_eq(config.llama.n_kv_heads, 8);
    expect_ok(parse(&config, with(text, "num_key_value_heads", "null")),
              &error);
    ck_assert_int_eq(config.llama.n_kv_heads, 16);
    /* eight do not fit four heads, and the default is not bent */
    llama.n_heads = 4;
    strcpy(text, llama_text(&llama, ""));
    ck_assert_int_eq(parse(&config, without(text, "num_key_value_heads")),
                     STATUS_INVALID);
    expect_named(&error, "n_kv_heads");
    free(text);
}
END_TEST

START_TEST(a_heads_width_is_given_or_the_quotient)
{
    struct llama_config llama = small_llama_config();
    struct hub_config config;
    expect_ok(parse(&config, llama_text(&llama, "")), &error);
    ck_assert_int_eq(config.llama.head_dim, 6);
    ck_assert_int_eq(parse(&config, without(llama_text(&llama, ""),
                                            "head_dim")), STATUS_FORMAT);
    expect_named(&error, "num_attention_heads");    /* 10 in 4 heads */
    llama.d_model = 16;
    expect_ok(parse(&config, without(llama_text(&llama, ""), "head_dim")),
              &error);
    ck_assert_int_eq(config.llama.head_dim, 4);
}
END_TEST

START_TEST(newer_files_keep_the_base_of_the_turns_elsewhere)
{
    const struct llama_config llama = small_llama_config();
    struct hub_config config;
    expect_ok(parse(&config, llama_text(&llama, "\"rope_parameters\": {"
                                        "\"rope_theta\": 500000.0,"
                                        " \"rope_type\": \"default\"}, ")),
              &error);
    ck_assert_double_eq(config.llama.rope_theta, 500000);
    expect_ok(parse(&config, llama_text(&llama, "\"rope_parameters\": {"
                                        "\"rope_type\": \"default\"}, ")),
              &error);
    ck_assert_double_eq(config.llama.rope_theta, 100);
    ck_assert_int_eq(parse(&config, llama_text(&llama, "\"rope_parameters\""
                                               ": {\"rope_type\":"
                                               " \"yarn\"}, ")),
                     STATUS_FORMAT);
    expect_named(&error, "rope_type");
    expect_named(&error, "yarn");
    ck_assert_int_eq(parse(&config, llama_text(&llama, "\"rope_parameters\""
                                               ": {\"rope_theta\": 0}, ")),
                     STATUS_INVALID);
}
END_TEST

START_TEST(what_a_config_leaves_out_is_the_public_default)
{
    const struct gpt_config gpt = small_gpt2_config();
    struct llama_config llama = small_llama_config();
    struct hub_config config;
    expect_ok(parse(&config, without(gpt2_text(&gpt, ""),
                                     "layer_norm_epsilon")), &error);
    ck_assert_double_eq(config.gpt.layer_norm_eps, 1e-5);
    expect_ok(parse(&config, without(llama_text(&llama, ""),
                                     "rms_norm_eps")), &error);
    ck_assert_double_eq(config.llama.rms_norm_eps, 1e-6);
    expect_ok(parse(&config, without(llama_text(&llama, ""), "rope_theta")),
              &error);
    ck_assert_double_eq(config.llama.rope_theta, 10000);
    expect_ok(parse(&config, without(llama_text(&llama, ""),
                                     "tie_word_embeddings")), &error);
    ck_assert(!config.llama.tie_word_embeddings);
    llama.n_experts = 8;
    llama.experts_per_token = 2;
    const char *text = llama_text(&llama, "");
    expect_ok(parse(&config, text), &error);
    ck_assert_int_eq(config.format, FORMAT_MIXTRAL);
    ck_assert_double_eq(config.llama.rms_norm_eps, llama.rms_norm_eps);
    ck_assert_double_eq(config.llama.rope_theta, llama.rope_theta);
    expect_ok(parse(&config, without(text, "num_local_experts")), &error);
    ck_assert_int_eq(config.llama.n_experts, 8);
    expect_ok(parse(&config, without(text, "num_experts_per_tok")), &error);
    ck_assert_int_eq(config.llama.experts_per_token, 2);
    expect_ok(parse(&config, without(text, "rms_norm_eps")), &error);
    ck_assert_double_eq(config.llama.rms_norm_eps, 1e-5);
    expect_ok(parse(&config, without(text, "rope_theta")), &error);
    ck_assert_double_eq(config.llama.rope_theta, 1e6);
}
END_TEST

/* ------------------------------------------------------------------- GPT-2 */

static struct checkpoint *open_checkpoint(const char *path)
{
    struct checkpoint *checkpoint = NULL;
    expect_ok(checkpoint_open(&checkpoint, path, &error), &error);
    return checkpoint;
}

static void expect_parameters(struct checkpoint *checkpoint,
                              const struct tiny_gpt *model)
{
    const struct parameters *want = tiny_gpt_weights(model);
    const struct tiny_gpt *made = checkpoint_tiny_gpt(checkpoint);
    ck_assert_ptr_nonnull(made);
    ck_assert_ptr_null(checkpoint_llama(checkpoint));
    const struct parameters *got = tiny_gpt_weights(made);
    ck_assert_int_eq(checkpoint_family(checkpoint), FAMILY_TINY_GPT);
    ck_assert_uint_eq(got->size, want->size);
    for (int k = 0; k < want->count; k++) {
        const struct tensor *tensor = want->registry[k].tensor;
        ck_assert(tensor_same_shape(tensor, got->registry[k].tensor));
        expect_same_bits(want->registry[k].path,
                         got->registry[k].tensor->data, tensor->data,
                         tensor_size(tensor) * sizeof (float));
    }
    ck_assert_ptr_eq(got->lm_head.weight.data,
                     got->token_embedding.weight.data);
}

/* A checkpoint of these tensors that has to be refused and leave nothing. */
static void expect_refused_in(const char *directory,
                              const struct hub_file *file, const char *text,
                              const char *named, const char *also)
{
    struct checkpoint *checkpoint = NULL;
    hub_write(file, directory, text);
    const int files = open_files();
    const long live = allocator_live();
    const enum status status = checkpoint_open(&checkpoint, directory,
                                               &error);
    const long left = allocator_live() - live;
    ck_assert_msg(status == STATUS_FORMAT && checkpoint == NULL,
                  "status %d, not refused for %s %s", (int)status, named,
                  also);
    expect_named(&error, named);
    expect_named(&error, also);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(open_files(), files);
}

static void expect_refused(const struct hub_file *file, const char *text,
                           const char *named, const char *also)
{
    expect_refused_in(new_directory(), file, text, named, also);
}

static struct hub_file hub;

START_TEST(each_matrix_is_turned_and_each_vector_kept)
{
    const char *directory = new_directory();
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 205);
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    hub_write(&hub, directory, gpt2_text(&config, ""));
    struct checkpoint *checkpoint = open_checkpoint(directory);
    expect_parameters(checkpoint, model);
    ck_assert_int_eq(checkpoint_format(checkpoint), FORMAT_GPT2);
    const struct gpt_config *got =
        tiny_gpt_config(checkpoint_tiny_gpt(checkpoint));
    ck_assert_mem_eq(&got->vocab_size, &config.vocab_size,
                     6 * sizeof (int));
    ck_assert_int_eq(got->tanh_gelu, 1);
    checkpoint_close(&checkpoint);
    ck_assert_ptr_null(checkpoint);
    checkpoint_close(&checkpoint);
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

/* Vectors and tables alone: whether matrices are turned is another matter. */
START_TEST(a_prefix_is_there_or_not)
{
    static const char *const prefixes[] = {"", "transformer."};
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 206);
    const struct parameters *p = tiny_gpt_weights(model);
    const struct tensor *table = &p->token_embedding.weight;
    for (int k = 0; k < 2; k++) {
        const char *directory = new_directory();
        gpt2_tensors(&hub, model, DTYPE_F32, prefixes[k]);
        hub_add(&hub, "lm_head.weight", DTYPE_F32, 2, table->shape,
                table->data);
        hub_write(&hub, directory, gpt2_text(&config, ""));
        struct checkpoint *checkpoint = open_checkpoint(directory);
        const struct parameters *got =
            tiny_gpt_weights(checkpoint_tiny_gpt(checkpoint));
        expect_same_bits("table", got->token_embedding.weight.data,
                         table->data, tensor_size(table) * 4);
        expect_same_bits("bias", got->blocks[1].mlp.up_proj.bias.data,
                         p->blocks[1].mlp.up_proj.bias.data, 70 * 4);
        checkpoint_close(&checkpoint);
        hub_clear(&hub);
    }
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(names_with_and_without_a_prefix_do_not_mix)
{
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 206);
    gpt2_tensors(&hub, model, DTYPE_F32, "transformer.");
    gpt2_add(&hub, "h.0.ln_1.bias", DTYPE_F32,
             &tiny_gpt_weights(model)->blocks[0].attention_norm.bias, false);
    expect_refused(&hub, gpt2_text(&config, ""), "unexpected",
                   "\"h.0.ln_1.bias\"");
    hub_drop(&hub, hub_index(&hub, "transformer.h.0.ln_1.bias"));
    expect_refused(&hub, gpt2_text(&config, ""), "missing 1 tensor",
                   "\"transformer.h.0.ln_1.bias\"");
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(buffers_are_no_weights)
{
    const char *directory = new_directory();
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 207);
    float mask[81];
    for (int k = 0; k < 81; k++)
        mask[k] = k % 9 <= k / 9;
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    hub_add(&hub, "h.0.attn.bias", DTYPE_F32, 4, (const int[]){1, 1, 9, 9},
            mask);
    hub_add(&hub, "h.1.attn.bias", DTYPE_F32, 4, (const int[]){1, 1, 9, 9},
            mask)->dtype = DTYPE_I32;
    hub_add(&hub, "h.1.attn.masked_bias", DTYPE_F32, 0, NULL, mask);
    hub_write(&hub, directory, gpt2_text(&config, ""));
    struct checkpoint *checkpoint = open_checkpoint(directory);
    expect_parameters(checkpoint, model);
    size_t unused = 0;
    for (size_t k = 0; k < checkpoint_tensor_count(checkpoint); k++)
        unused += !checkpoint_tensor_at(checkpoint, k)->used;
    ck_assert_uint_eq(unused, 3);
    checkpoint_close(&checkpoint);
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(nothing_is_there_that_the_config_does_not_ask_for)
{
    struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 208);
    const float one = 1;
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    config.n_layers = 1;
    expect_refused(&hub, gpt2_text(&config, ""), "unexpected", "\"h.1.");
    config.n_layers = 2;
    static const char *const names[] = {
        "score.weight", "h.0.attn.bias.x", "h.2.ln_1.weight", "bias", "",
        "transformer.wte.weight", "transformer.transformer.h.0.ln_1.bias"
    };
    for (size_t k = 0; k < LENGTH(names); k++) {
        hub_add(&hub, names[k], DTYPE_F32, 1, (const int[]){1}, &one);
        expect_refused(&hub, gpt2_text(&config, ""), "unexpected",
                       names[k]);
        hub_drop(&hub, hub.count - 1);
    }
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(each_tensor_is_missed_by_its_name)
{
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 209);
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    for (size_t k = 0; k < hub.count; k++) {
        char name[100], other[100];
        snprintf(name, sizeof name, "\"%s\"", hub.names[k]);
        snprintf(other, sizeof other, "%s.", hub.names[k]);
        char kept[96];
        strcpy(kept, hub.names[k]);
        hub_rename(&hub, k, other);
        expect_refused(&hub, gpt2_text(&config, ""), "missing",
                       strcmp(kept, "wte.weight") == 0
                       ? "wte.weight" : name);
        hub_rename(&hub, k, kept);
    }
    hub_drop(&hub, hub_index(&hub, "h.0.attn.c_proj.bias"));
    hub_drop(&hub, hub_index(&hub, "ln_f.bias"));
    hub_drop(&hub, hub_index(&hub, "h.1.mlp.c_fc.bias"));
    expect_refused(&hub, gpt2_text(&config, ""), "missing 3 tensors",
                   "\"h.1.mlp.c_fc.bias\"");
    expect_named(&error, "\"ln_f.bias\"");
    expect_named(&error, "\"h.0.attn.c_proj.bias\"");
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(each_size_of_the_config_is_held_against_the_tensors)
{
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 210);
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    for (int step = -1; step <= 1; step += 2) {
        struct gpt_config other = config;
        other.vocab_size += step;
        expect_refused(&hub, gpt2_text(&other, ""), "\"wte.weight\"",
                       step < 0 ? "asks for [10, 6], the file has [11, 6]"
                                : "asks for [12, 6], the file has [11, 6]");
        other = config;
        other.context_length += step;
        expect_refused(&hub, gpt2_text(&other, ""), "\"wpe.weight\"",
                       "the file has [9, 6]");
        other = config;
        other.d_model += 2 * step;
        expect_refused(&hub, gpt2_text(&other, ""), "\"wte.weight\"",
                       "the file has [11, 6]");
        other = config;
        other.d_ff += step;
        expect_refused(&hub, gpt2_text(&other, ""),
                       "\"h.0.mlp.c_fc.weight\"", "the file has [6, 70]");
        other = config;
        other.n_layers += step;
        expect_refused(&hub, gpt2_text(&other, ""), "tensor",
                       step < 0 ? "\"h.1." : "\"h.2.ln_1.weight\"");
    }
    struct gpt_config huge = config;
    huge.n_layers = 10000000;
    expect_refused(&hub, gpt2_text(&huge, ""), "missing tensor",
                   "h.2.ln_1.weight");
    huge = config;
    huge.d_ff = INT_MAX;
    expect_refused(&hub, gpt2_text(&huge, ""), "h.0.mlp.c_fc.weight",
                   "2147483647");
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

/* Each tensor of hub with a type of no weights, across, and with one size
   more and one less: refused by its name. */
static void expect_each_held(const char *text)
{
    const char *directory = new_directory();
    for (size_t k = 0; k < hub.count; k++) {
        struct safetensors_entry *entry = &hub.entries[k];
        const struct safetensors_entry kept = *entry;
        char name[100], flat[32];
        snprintf(name, sizeof name, "\"%s\"", entry->name);
        entry->dtype = DTYPE_I32;
        expect_refused_in(directory, &hub, text, name, "got I32");
        *entry = kept;
        if (entry->rank == 2 && entry->shape[0] != entry->shape[1]) {
            entry->shape[0] = kept.shape[1];
            entry->shape[1] = kept.shape[0];
            expect_refused_in(directory, &hub, text, name, "asks for");
            *entry = kept;
        }
        entry->shape[entry->rank++] = 1;
        expect_refused_in(directory, &hub, text, name, ", 1]");
        *entry = kept;
        if (entry->rank == 2) {
            entry->rank = 1;
            entry->shape[0] = kept.shape[0] * kept.shape[1];
            snprintf(flat, sizeof flat, "[%d]", (int)entry->shape[0]);
            expect_refused_in(directory, &hub, text, name, flat);
            *entry = kept;
        }
    }
}

START_TEST(each_tensor_has_its_shape_and_a_type_of_weights)
{
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 211);
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    expect_each_held(gpt2_text(&config, ""));
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_head_may_be_a_copy_and_nothing_else)
{
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 212);
    const struct tensor *table =
        &tiny_gpt_weights(model)->token_embedding.weight;
    gpt2_tensors(&hub, model, DTYPE_F32, "");
    struct safetensors_entry *head =
        hub_add(&hub, "lm_head.weight", DTYPE_F32, 2, table->shape,
                table->data);
    ((unsigned char *)(uintptr_t)head->data)[head->bytes - 4] ^= 1;
    expect_refused(&hub, gpt2_text(&config, ""), "\"lm_head.weight\"",
                   "\"wte.weight\"");
    hub_drop(&hub, hub.count - 1);
    hub_add(&hub, "lm_head.weight", DTYPE_F16, 2, table->shape, table->data);
    expect_refused(&hub, gpt2_text(&config, ""), "\"lm_head.weight\"",
                   "\"wte.weight\"");
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(halves_are_loaded_as_what_they_are)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16};
    const struct gpt_config config = small_gpt2_config();
    for (int t = 0; t < 2; t++) {
        const char *directory = new_directory();
        struct tiny_gpt *model = noisy_model(&config, 213);
        struct parameters *p = tiny_gpt_parameters(model);
        gpt2_tensors(&hub, model, types[t], "");
        for (size_t k = 0; k < p->size; k++)
            p->storage[k] = t == 0 ? f16_to_f32(f16_from_f32(p->storage[k]))
                                   : bf16_to_f32(bf16_from_f32(p->storage[k]));
        hub_write(&hub, directory, gpt2_text(&config, ""));
        struct checkpoint *checkpoint = open_checkpoint(directory);
        expect_parameters(checkpoint, model);
        checkpoint_close(&checkpoint);
        hub_clear(&hub);
        tiny_gpt_free(&model);
    }
}
END_TEST

/* ------------------------------------------------------------------- Llama */

static void expect_tensors(struct checkpoint *checkpoint,
                           const struct llama *model)
{
    const struct llama *made = checkpoint_llama(checkpoint);
    ck_assert_ptr_nonnull(made);
    ck_assert_ptr_null(checkpoint_tiny_gpt(checkpoint));
    ck_assert_int_eq(checkpoint_family(checkpoint), FAMILY_LLAMA);
    ck_assert_uint_eq(llama_tensor_count(made), llama_tensor_count(model));
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *want = llama_tensor_at(model, k);
        const struct llama_tensor *got = llama_tensor_at(made, k);
        ck_assert_str_eq(got->name, want->name);
        ck_assert(tensor_same_shape(got->tensor, want->tensor));
        ck_assert_int_eq(got->alias, want->alias);
        expect_same_bits(want->name, got->tensor->data, want->tensor->data,
                         tensor_size(want->tensor) * sizeof (float));
    }
}

START_TEST(a_llama_comes_back_from_a_directory_tied_or_not_with_experts_or_not)
{
    for (int kind = 0; kind < 4; kind++) {
        const char *directory = new_directory();
        struct llama_config config = kind < 2 ? small_llama_config()
                                              : small_moe_config();
        config.tie_word_embeddings = kind % 2 == 1;
        struct llama *model = noisy_llama(&config, 214);
        llama_tensors(&hub, model, DTYPE_F32);
        const float old[3] = {1, 0.1f, 0.01f};
        hub_add(&hub, "model.layers.0.self_attn.rotary_emb.inv_freq",
                DTYPE_F32, 1, (const int[]){3}, old);
        hub_write(&hub, directory, llama_text(&config, ""));
        struct checkpoint *checkpoint = open_checkpoint(directory);
        expect_tensors(checkpoint, model);
        ck_assert_int_eq(checkpoint_format(checkpoint),
                         kind < 2 ? FORMAT_LLAMA : FORMAT_MIXTRAL);
        checkpoint_close(&checkpoint);
        hub_clear(&hub);
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_llamas_head_is_there_unless_it_is_tied)
{
    struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 215);
    llama_tensors(&hub, model, DTYPE_F32);
    config.tie_word_embeddings = true;
    expect_refused(&hub, llama_text(&config, ""), "\"lm_head.weight\"",
                   "\"model.embed_tokens.weight\"");
    hub_drop(&hub, hub_index(&hub, "lm_head.weight"));
    config.tie_word_embeddings = false;
    expect_refused(&hub, llama_text(&config, ""), "missing 1 tensor",
                   "\"lm_head.weight\"");
    hub_clear(&hub);
    llama_free(&model);
}
END_TEST

START_TEST(each_size_of_a_llama_is_held_against_the_tensors)
{
    for (int moe = 0; moe < 2; moe++) {
        const struct llama_config config = moe ? small_moe_config()
                                               : small_llama_config();
        struct llama *model = noisy_llama(&config, 216);
        llama_tensors(&hub, model, DTYPE_F32);
        for (int step = -1; step <= 1; step += 2) {
            #define REFUSED(field, by, name) do { \
                struct llama_config other = config; \
                other.field += by * step; \
                expect_refused(&hub, llama_text(&other, ""), name, \
                               "tensor"); \
            } while (0)
            REFUSED(vocab_size, 1, "\"model.embed_tokens.weight\"");
            REFUSED(d_model, 2, "\"model.embed_tokens.weight\"");
            REFUSED(n_heads, 2, "self_attn.q_proj.weight\"");
            REFUSED(head_dim, 2, "self_attn.q_proj.weight\"");
            REFUSED(d_ff, 1, moe ? "w1.weight\"" : "gate_proj.weight\"");
            REFUSED(n_layers, 1, step < 0 ? "\"model.layers.2."
                    : "\"model.layers.3.input_layernorm.weight\"");
            if (moe)
                REFUSED(n_experts, 1, "block_sparse_moe.gate.weight\"");
            #undef REFUSED
        }
        struct llama_config other = config;
        other.n_kv_heads = 1;
        expect_refused(&hub, llama_text(&other, ""),
                       "self_attn.k_proj.weight\"", "the file has [12, 10]");
        hub_clear(&hub);
        llama_free(&model);
    }
}
END_TEST

/* No matrix of these has two equal sizes, so that each is tried across. */
START_TEST(each_tensor_of_a_llama_has_its_shape_and_a_type_of_weights)
{
    for (int kind = 0; kind < 3; kind++) {
        struct llama_config config = kind < 2 ? small_llama_config()
                                              : small_moe_config();
        config.n_layers = 1;
        config.tie_word_embeddings = kind == 1;
        struct llama *model = noisy_llama(&config, 228);
        llama_tensors(&hub, model, DTYPE_F32);
        for (size_t k = 0; k < hub.count; k++)
            ck_assert(hub.entries[k].rank == 1
                      || hub.entries[k].shape[0] != hub.entries[k].shape[1]);
        expect_each_held(llama_text(&config, ""));
        hub_clear(&hub);
        llama_free(&model);
    }
}
END_TEST

START_TEST(each_tensor_of_a_mixture_is_missed_by_its_name)
{
    const struct llama_config config = small_moe_config();
    struct llama *model = noisy_llama(&config, 217);
    llama_tensors(&hub, model, DTYPE_F32);
    for (size_t k = 0; k < hub.count; k++) {
        char name[100], kept[96];
        snprintf(kept, sizeof kept, "%s", hub.names[k]);
        snprintf(name, sizeof name, "\"%s\"", kept);
        hub_rename(&hub, k, "x");
        expect_refused(&hub, llama_text(&config, ""), "missing", name);
        hub_rename(&hub, k, kept);
    }
    hub_clear(&hub);
    llama_free(&model);
}
END_TEST

/* ---------------------------------------------------------------- llama2.c */

static struct llama_config llama2c_config(int head_dim, bool tied)
{
    return (struct llama_config){
        .vocab_size = 13, .context_length = 8, .d_model = 4 * head_dim,
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim,
        .d_ff = 7, .rms_norm_eps = 1e-5, .rope_theta = 10000,
        .tie_word_embeddings = tied
    };
}

/* The model that the bytes are, or a failure of the test. */
static void expect_llama2c(const struct llama *model,
                           const unsigned char *bytes, size_t length)
{
    const char *path = in(new_directory(), "model.bin");
    write_bytes(path, bytes, length);
    struct checkpoint *checkpoint = open_checkpoint(path);
    ck_assert_int_eq(checkpoint_format(checkpoint), FORMAT_LLAMA2C);
    ck_assert_mem_eq(&llama_config(checkpoint_llama(checkpoint))->vocab_size,
                     &llama_config(model)->vocab_size, 8 * sizeof (int));
    expect_tensors(checkpoint, model);
    checkpoint_close(&checkpoint);
}

START_TEST(a_negative_vocabulary_means_a_head_of_its_own)
{
    for (int tied = 0; tied < 2; tied++) {
        size_t length;
        struct llama2c file;
        const struct llama_config config = llama2c_config(2, tied);
        struct llama *model = noisy_llama(&config, 218);
        unsigned char *bytes = llama2c_bytes(model, &length);
        expect_ok(llama2c_parse(&file, bytes, length, &error), &error);
        ck_assert_int_eq(file.config.tie_word_embeddings, tied);
        ck_assert_int_eq(file.config.vocab_size, 13);
        ck_assert_int_eq(file.count, 14 - tied);
        free(bytes);
        llama_free(&model);
    }
}
END_TEST

START_TEST(pairs_of_queries_and_keys_are_parted_at_every_width)
{
    for (int d = 2; d <= 10; d += 2)
        for (int tied = 0; tied < 2; tied++) {
            size_t length;
            const struct llama_config config = llama2c_config(d, tied);
            struct llama *model = noisy_llama(&config, 219);
            unsigned char *bytes = llama2c_bytes(model, &length);
            struct llama *made = NULL;
            struct llama2c file;
            expect_ok(llama2c_parse(&file, bytes, length, &error), &error);
            expect_ok(llama2c_load(&made, &file, &error), &error);
            static const char *const names[] = {"q", "k"};
            for (int k = 0; k < 4; k++) {
                char name[96];
                snprintf(name, sizeof name, "model.layers.%d.self_attn."
                         "%s_proj.weight", k / 2, names[k % 2]);
                const struct tensor *want =
                    llama_tensor_find(model, name)->tensor;
                expect_same_bits(name,
                                 llama_tensor_find(made, name)->tensor->data,
                                 want->data, tensor_size(want) * 4);
            }
            free(bytes);
            llama_free(&made);
            llama_free(&model);
        }
}
END_TEST

START_TEST(a_llama_comes_back_from_a_file_without_names)
{
    for (int round = 0; round < 4; round++) {
        size_t length;
        const struct llama_config config =
            llama2c_config(2 + round / 2 * 6, round % 2);
        struct llama *model = noisy_llama(&config, 220);
        unsigned char *bytes = llama2c_bytes(model, &length);
        expect_llama2c(model, bytes, length);
        free(bytes);
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_file_without_names_has_its_exact_size)
{
    size_t length;
    const struct llama_config config = llama2c_config(2, false);
    struct llama *model = noisy_llama(&config, 221);
    unsigned char *bytes = llama2c_bytes(model, &length);
    struct llama2c file = {.count = 77};
    for (size_t cut = 0; cut < length; cut++) {
        unsigned char *part = malloc(cut + 1);
        memcpy(part, bytes, cut);
        ck_assert_int_eq(llama2c_parse(&file, part, cut, &error),
                         STATUS_FORMAT);
        free(part);
    }
    for (size_t more = 1; more <= 8; more++)
        ck_assert_int_eq(llama2c_parse(&file, bytes, length + more, &error),
                         STATUS_FORMAT);
    ck_assert_int_eq(file.count, 77);
    free(bytes);
    llama_free(&model);
}
END_TEST

START_TEST(a_header_of_seven_numbers_is_checked)
{
    size_t length;
    const struct llama_config config = llama2c_config(2, true);
    struct llama *model = noisy_llama(&config, 222);
    unsigned char *bytes = llama2c_bytes(model, &length);
    static const int32_t bad[] = {0, -1, INT32_MIN, INT32_MAX, 65537, 1 << 30};
    for (int field = 0; field < 7; field++)
        for (size_t k = 0; k < LENGTH(bad); k++) {
            unsigned char kept[4];
            struct llama2c file = {.count = 77};
            memcpy(kept, bytes + 4 * field, 4);
            memcpy(bytes + 4 * field, &bad[k], 4);
            ck_assert_msg(llama2c_parse(&file, bytes, length, &error)
                          != STATUS_OK, "field %d: %d", field, bad[k]);
            ck_assert_int_eq(file.count, 77);
            memcpy(bytes + 4 * field, kept, 4);
        }
    expect_llama2c(model, bytes, length);
    free(bytes);
    llama_free(&model);
}
END_TEST

/* ---------------------------------------------------------------- goldens */

/* Every row that the golden has, and every token. */
static void expect_golden(const char *name)
{
    char path[256];
    struct checkpoint *checkpoint =
        open_checkpoint(in(GOLDEN_DIR, name));
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    snprintf(path, sizeof path, "%s/expected", name);
    struct golden *golden = golden_open(path);
    const struct golden_tensor *prompt = golden_get(golden, "in.prompt");
    const struct golden_tensor *greedy = golden_get(golden, "out.greedy");
    const struct golden_tensor *rows = golden_get(golden, "out.rows");
    struct request *request = NULL;
    const float *logits = NULL;
    const int v = lm.vocab_size, steps = greedy->shape[1];
    expect_ok(request_new(&request, &lm, 1, prompt->shape[1] + steps,
                          prompt->shape[1], &error), &error);
    const int32_t *ids = prompt->ids;
    int count = prompt->shape[1], row = 0;
    for (int k = 0; k < steps; k++, count = 1) {
        expect_ok(request_feed(request, ids, count, true, &logits, &error),
                  &error);
        if (rows->shape[0] == steps || k < 2 || k == steps - 1)
            expect_close(name, logits, rows->f32 + (size_t)row++ * (size_t)v,
                         (size_t)v, 1, &v, TOLERANCE);
        int best = 0;
        for (int i = 1; i < v; i++)
            if (logits[i] > logits[best])
                best = i;
        ck_assert_msg(best == greedy->ids[k], "%s: token %d is %d, not %d",
                      name, k, best, greedy->ids[k]);
        ids = &greedy->ids[k];
    }
    ck_assert_int_eq(row, rows->shape[0]);
    ck_assert_int_eq(steps, 40);
    request_free(&request);
    golden_close(golden);
    checkpoint_close(&checkpoint);
}

START_TEST(gpt2_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny");
}
END_TEST

START_TEST(gpt2_in_f16_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny_f16");
}
END_TEST

START_TEST(gpt2_in_bf16_gives_the_oracles_rows_and_tokens)
{
    expect_golden("gpt2_tiny_bf16");
}
END_TEST

START_TEST(a_whole_vocabulary_gives_the_oracles_rows_and_tokens)
{
    struct golden *golden = golden_open("gpt2_vocab50257/expected");
    const struct golden_tensor *kept = golden_get(golden, "out.rows.index");
    ck_assert(kept->ids[0] == 0 && kept->ids[1] == 1 && kept->ids[2] == 39);
    golden_close(golden);
    expect_golden("gpt2_vocab50257");
}
END_TEST

START_TEST(llama_gives_the_oracles_rows_and_tokens)
{
    expect_golden("llama_tiny");
}
END_TEST

START_TEST(a_mixture_gives_the_oracles_rows)
{
    const char *directory = new_directory();
    struct golden *golden = golden_open("llama_moe");
    for (size_t k = 0; k < golden->count; k++) {
        const struct golden_tensor *tensor = &golden->tensors[k];
        if (strncmp(tensor->name, "w.", 2) == 0)
            hub_add(&hub, tensor->name + 2, DTYPE_F32, tensor->rank,
                    tensor->shape, tensor->f32);
    }
    struct llama_config config = golden_llama_config(golden);
    config.n_experts = (int)golden_number(golden, "experts");
    config.experts_per_token = 2;
    hub_write(&hub, directory, llama_text(&config, ""));
    struct checkpoint *checkpoint = open_checkpoint(directory);
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    const struct golden_tensor *ids = golden_get(golden, "in.ids");
    const struct golden_tensor *want = golden_get(golden, "out.logits");
    const int tokens = ids->shape[1], v = lm.vocab_size;
    for (int b = 0; b < ids->shape[0]; b++) {
        float *logits = logits_of(&lm, ids->ids + b * tokens, tokens);
        expect_close("mixture", logits, want->f32 + b * tokens * v,
                     (size_t)(tokens * v), 2, (const int[]){tokens, v},
                     TOLERANCE);
        free(logits);
    }
    checkpoint_close(&checkpoint);
    hub_clear(&hub);
    golden_close(golden);
}
END_TEST

/* The golden's tensors, dealt out to two files. */
START_TEST(shards_give_the_bits_of_one_file)
{
    struct shards *whole = NULL;
    const char *directory = new_directory();
    const char *golden = GOLDEN_DIR "/llama_tiny";
    struct checkpoint *one = open_checkpoint(golden);
    char index[4096] = "{\"weight_map\": {";
    expect_ok(shards_open(&whole, golden, &error), &error);
    for (int f = 0; f < 2; f++) {
        struct safetensors_entry part[HUB_MAX];
        size_t count = 0;
        for (size_t k = (size_t)f; k < shards_count(whole); k += 2) {
            part[count++] = *shards_at(whole, k);
            snprintf(index + strlen(index), sizeof index - strlen(index),
                     "%s\"%s\": \"part-%d.safetensors\"",
                     f == 0 && k == 0 ? "" : ",", shards_at(whole, k)->name,
                     f);
        }
        write_tensors(in(directory, f == 0 ? "part-0.safetensors"
                                           : "part-1.safetensors"), part,
                      count);
    }
    strcat(index, "}}");
    write_text(in(directory, "model.safetensors.index.json"), index);
    unsigned char *config = NULL;
    size_t length;
    expect_ok(file_read(in(golden, "config.json"), &config, &length, &error),
              &error);
    write_bytes(in(directory, "config.json"), config, length);
    struct checkpoint *two = open_checkpoint(directory);
    expect_tensors(two, checkpoint_llama(one));
    free(config);
    shards_close(&whole);
    checkpoint_close(&one);
    checkpoint_close(&two);
}
END_TEST

/* -------------------------------------------------------------- checkpoint */

START_TEST(a_model_of_our_own_opens_by_the_same_door)
{
    const char *directory = new_directory();
    struct gpt_config config = small_gpt2_config();
    config.tanh_gelu = 0;
    struct tiny_gpt *model = noisy_model(&config, 223);
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    struct checkpoint *checkpoint = open_checkpoint(directory);
    expect_parameters(checkpoint, model);
    ck_assert_int_eq(checkpoint_format(checkpoint), FORMAT_TINY_GPT);
    ck_assert_str_eq(checkpoint_format_name(checkpoint), "tiny GPT");
    const struct causal_lm lm = checkpoint_causal_lm(checkpoint);
    ck_assert_int_eq(lm.vocab_size, 11);
    ck_assert_ptr_eq(lm.model, checkpoint_tiny_gpt(checkpoint));
    checkpoint_close(&checkpoint);
    tiny_gpt_free(&model);
}
END_TEST

START_TEST(a_checkpoint_knows_what_its_files_held)
{
    const char *directory = new_directory();
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 224);
    llama_tensors(&hub, model, DTYPE_BF16);
    hub_write(&hub, directory, llama_text(&config, ""));
    struct stat facts;
    ck_assert_int_eq(stat(in(directory, "model.safetensors"), &facts), 0);
    struct checkpoint *checkpoint = open_checkpoint(directory);
    ck_assert_uint_eq(checkpoint_file_bytes(checkpoint),
                      (size_t)facts.st_size);
    ck_assert_uint_eq(checkpoint_tensor_count(checkpoint), hub.count);
    size_t bytes = 0, floats;
    for (size_t k = 0; k < hub.count; k++) {
        const struct stored_tensor *stored =
            checkpoint_tensor_at(checkpoint, k);
        const struct safetensors_entry *want =
            &hub.entries[hub_index(&hub, stored->entry.name)];
        ck_assert(stored->used);
        ck_assert_int_eq(stored->entry.dtype, DTYPE_BF16);
        ck_assert_int_eq(stored->entry.rank, want->rank);
        ck_assert_mem_eq(stored->entry.shape, want->shape,
                         sizeof want->shape);
        ck_assert_uint_eq(stored->entry.bytes, want->bytes);
        ck_assert_ptr_null(stored->entry.data);
        bytes += stored->entry.bytes;
    }
    ck_assert(llama_config_floats(&config, &floats));
    ck_assert_uint_eq(bytes, 2 * floats);
    checkpoint_close(&checkpoint);
    hub_clear(&hub);
    llama_free(&model);
}
END_TEST

START_TEST(a_file_without_names_is_listed_by_its_places)
{
    size_t length;
    const struct llama_config config = llama2c_config(4, false);
    struct llama *model = noisy_llama(&config, 225);
    unsigned char *bytes = llama2c_bytes(model, &length);
    const char *path = in(new_directory(), "model.bin");
    write_bytes(path, bytes, length);
    struct checkpoint *checkpoint = open_checkpoint(path);
    ck_assert_uint_eq(checkpoint_file_bytes(checkpoint), length);
    ck_assert_uint_eq(checkpoint_tensor_count(checkpoint), 14);
    size_t sum = 28, floats;
    for (size_t k = 0; k < 14; k++) {
        const struct stored_tensor *stored =
            checkpoint_tensor_at(checkpoint, k);
        sum += stored->entry.bytes;
        ck_assert_int_eq(stored->used, k != 11 && k != 12);
    }
    ck_assert_uint_eq(sum, length);
    ck_assert(llama_config_floats(&config, &floats));
    ck_assert_uint_eq(sum, 28 + 4 * (floats + 2 * 8 * 2));
    const struct stored_tensor *keys = checkpoint_tensor_at(checkpoint, 3);
    ck_assert_str_eq(keys->entry.name, "wk");
    ck_assert(keys->entry.rank == 3 && keys->entry.shape[0] == 2
              && keys->entry.shape[1] == 8 && keys->entry.shape[2] == 16);
    checkpoint_close(&checkpoint);
    free(bytes);
    llama_free(&model);
}
END_TEST

START_TEST(what_is_no_checkpoint_is_refused)
{
    const char *directory = new_directory();
    struct checkpoint *checkpoint = NULL;
    struct { const char *path, *named; } table[] = {
        {in(directory, "absent"), "absent: "},
        {directory, "config.json: "}, {"/dev/null", "/dev/null: "},
        {in(directory, "pipe"), "pipe: "}, {"", ""},
        {in(directory, "text"), "text: "}
    };
    ck_assert_int_eq(mkfifo(in(directory, "pipe"), 0600), 0);
    write_text(in(directory, "text"), "this is not a model of any kind");
    alarm(10);
    for (size_t k = 0; k < LENGTH(table); k++) {
        ck_assert_msg(checkpoint_open(&checkpoint, table[k].path, &error)
                      != STATUS_OK, "%s", table[k].path);
        expect_named(&error, table[k].named);
        ck_assert_ptr_null(checkpoint);
    }
    static const char *const configs[] = {"", "{", "[]", "{}", "7",
                                          "{\"model_type\": \"t5\"}"};
    for (size_t k = 0; k < LENGTH(configs); k++) {
        write_text(in(directory, "config.json"), configs[k]);
        ck_assert_int_eq(checkpoint_open(&checkpoint, directory, &error),
                         STATUS_FORMAT);
        expect_named(&error, "config.json: ");
    }
    const struct gpt_config config = small_gpt2_config();
    write_text(in(directory, "config.json"), gpt2_text(&config, ""));
    ck_assert_int_eq(checkpoint_open(&checkpoint, directory, &error),
                     STATUS_IO);
    expect_named(&error, "model.safetensors: ");
    unlink(in(directory, "config.json"));
    ck_assert_int_eq(mkfifo(in(directory, "config.json"), 0600), 0);
    ck_assert_int_eq(checkpoint_open(&checkpoint, directory, &error),
                     STATUS_IO);
    alarm(0);
    ck_assert_ptr_null(checkpoint);
}
END_TEST

static void expect_survival(const char *path, int least)
{
    struct checkpoint *checkpoint = NULL;
    const int files = open_files();
    long n = 1;
    for (;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = checkpoint_open(&checkpoint, path,
                                                   &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_msg(status == STATUS_NO_MEMORY, "allocation %ld: status"
                      " %d: %s", n, (int)status, error.message);
        ck_assert_ptr_null(checkpoint);
        ck_assert_int_eq(left, 0);
        ck_assert_int_eq(open_files(), files);
    }
    ck_assert_int_gt(n, least);
    checkpoint_close(&checkpoint);
}

START_TEST(opening_survives_each_failed_allocation_and_mapping)
{
    const char *directory = new_directory(), *own = new_directory();
    const struct gpt_config config = small_gpt2_config();
    struct tiny_gpt *model = noisy_model(&config, 226);
    gpt2_tensors(&hub, model, DTYPE_F16, "");
    hub_write(&hub, directory, gpt2_text(&config, ""));
    expect_survival(directory, 15);
    expect_ok(tiny_gpt_save(model, own, &error), &error);
    expect_survival(own, 15);
    expect_survival(GOLDEN_DIR "/llama_tiny", 15);
    size_t length;
    const struct llama_config llama = llama2c_config(4, false);
    struct llama *other = noisy_llama(&llama, 227);
    unsigned char *bytes = llama2c_bytes(other, &length);
    write_bytes(in(own, "model.bin"), bytes, length);
    expect_survival(in(own, "model.bin"), 6);
    free(bytes);
    llama_free(&other);
    hub_clear(&hub);
    tiny_gpt_free(&model);
}
END_TEST

/* ----------------------------------------------------------------- command */

START_TEST(the_command_lists_what_the_files_hold)
{
    const char *out = run_program("tensors --model " GOLDEN_DIR
                                  "/llama_tiny", 0);
    ck_assert_ptr_nonnull(strstr(out, "Llama\n"));
    ck_assert_ptr_nonnull(strstr(out, "model.layers.1.self_attn.k_proj"));
    ck_assert_ptr_nonnull(strstr(out, "[16, 32]"));
    ck_assert_ptr_nonnull(strstr(out, "79792"));
    out = run_program("tensors --model " GOLDEN_DIR "/gpt2_tiny_f16 --json",
                      0);
    cJSON *json = cJSON_Parse(out);
    ck_assert_ptr_nonnull(json);
    ck_assert_int_eq(cJSON_GetArraySize(
        cJSON_GetObjectItem(json, "tensors")), 40);
    ck_assert_double_eq(cJSON_GetObjectItem(json, "unused_bytes")
                            ->valuedouble, 0);
    ck_assert_double_eq(cJSON_GetObjectItem(json, "file_bytes")->valuedouble,
                        188536);
    cJSON_Delete(json);
}
END_TEST

/* The command of chapter 14, through the one door. */
START_TEST(the_audit_predicts_every_family)
{
    static const struct { const char *path; int floats; } models[] = {
        {"tests/golden/gpt2_tiny", 92640},
        {"tests/golden/gpt2_tiny_bf16", 92640},
        {"tests/golden/llama_tiny", 19424}, {"book/checkpoint", 484416}
    };
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        char line[160], want[64];
        snprintf(line, sizeof line, "phases --model %s --owners --json",
                 models[k].path);
        const char *text = run_program(line, 0);
        snprintf(want, sizeof want, "\"total\": %d", models[k].floats);
        ck_assert_ptr_nonnull(strstr(text, want));
        snprintf(want, sizeof want, "\"held\": %d, \"copied\"",
                 models[k].floats);
        ck_assert_ptr_nonnull(strstr(text, want));
    }
    const char *text = run_program("phases --model tests/golden/llama_tiny"
                                   " --prompt 4 --steps 2 --repeats 1", 0);
    ck_assert_ptr_nonnull(strstr(text, "CPU, diagnostic"));
    ck_assert_ptr_nonnull(strstr(text, "gate_proj"));
}
END_TEST

START_TEST(the_command_refuses_in_one_line)
{
    const char *out = run_program("tensors --model /dev/null", 1);
    ck_assert_ptr_nonnull(strstr(out, "tinygpt tensors: /dev/null: "));
    ck_assert_ptr_eq(strchr(out, '\n'), out + strlen(out) - 1);
    run_program("tensors", 2);
    run_program("tensors --model", 2);
    run_program("tensors --models x", 2);
    run_program("tensors --help", 0);
}
END_TEST

#define BEND "evaluate x times the sigmoid of twice the argument"
#define SLOPE "multiply by the slope of the tanh form"
#define SETTING "refuse a setting that is not computed here"
#define INNER "let the feed-forward width be four times the model's"
#define KEYS "let each head have keys of its own unless the config says" \
    " otherwise"
#define WIDTH "let the heads share the width unless the config says otherwise"
#define TURN "let the row's part be a part of a column"
#define PREFIX "let prefix be what the names begin with"
#define SHAPE_HELD "hold the shape against the config's"
#define LEFT "refuse a tensor that no parameter is filled from"
#define TIED "refuse what differs from what it is tied to"
#define SIGN "let the sign of the vocabulary say whether the head is tied"
#define SOURCE "let source be the row that belongs at r"

static const struct test tests[] = {
    TEST(both_gelus_have_their_own_values_at_two, 2, BEND),
    TEST(the_tanh_form_is_its_formula_everywhere, 2, BEND),
    TEST(the_slope_of_the_tanh_form_is_its_difference_quotient, 2, SLOPE),
    TEST(a_config_chooses_its_gelu, 2, "choose the GELU"),
    TEST(the_ninth_number_is_zero_or_one_and_reads_back, 1,
         "refuse what the numbers of later chapters may not be"),
    TEST(the_forward_pass_bends_as_the_config_says, 2,
         "bend each element of the widened rows"),
    TEST(the_gradient_goes_through_the_gelu_of_the_config, 2,
         "send the gradient through GELU"),
    TEST(a_step_bends_as_the_forward_pass_does, 2,
         "bend each element in place"),
    TEST(a_saved_model_keeps_its_gelu, 1, "let same say whether the weights"
         " mean the same under both configs"),
    TEST(a_heads_width_is_given_or_the_quotient, 1, WIDTH),
    TEST(settings_that_change_the_function_are_refused_by_name, 1, SETTING),
    TEST(what_does_not_matter_here_is_ignored, 1, INNER),
    TEST(a_size_is_there_and_is_one, 1,
         "refuse what is no number, or no size"),
    TEST(a_type_is_a_string_under_its_own_name, 1,
         "let a config without a type be one of ours"),
    TEST(a_width_of_the_feed_forward_layer_is_given_or_four_times, 1, INNER),
    TEST(gelu_has_the_name_that_the_config_gives_it, 1,
         "the config of GPT-2"),
    TEST(heads_of_keys_are_given_or_one_for_each_query, 1, KEYS),
    TEST(a_mixtures_heads_of_keys_are_given_or_eight_or_one_for_each, 1,
         "let a mixture that does not say have eight heads of keys"),
    TEST(newer_files_keep_the_base_of_the_turns_elsewhere, 1,
         "the turns of newer files"),
    TEST(what_a_config_leaves_out_is_the_public_default, 1,
         "what a mixture has besides"),
    TEST(numbers_flags_and_names_are_of_their_type, 1,
         "take the fields of a family"),
    TEST(a_prefix_is_there_or_not, 2, PREFIX),
    TEST(each_matrix_is_turned_and_each_vector_kept, 2, TURN),
    TEST(buffers_are_no_weights, 2, "pass over a buffer that is no weight"),
    TEST(nothing_is_there_that_the_config_does_not_ask_for, 1, LEFT),
    TEST(names_with_and_without_a_prefix_do_not_mix, 1, PREFIX),
    TEST(each_tensor_is_missed_by_its_name, 1, "list what is missing"),
    TEST(each_tensor_has_its_shape_and_a_type_of_weights, 1, SHAPE_HELD),
    TEST(each_size_of_the_config_is_held_against_the_tensors, 1,
         "look before making a GPT-2"),
    TEST(a_head_may_be_a_copy_and_nothing_else, 1, TIED),
    TEST(halves_are_loaded_as_what_they_are, 2, "let the element be a float"),
    TEST(a_llama_comes_back_from_a_directory_tied_or_not_with_experts_or_not,
         2, "load a Llama"),
    TEST(a_llamas_head_is_there_unless_it_is_tied, 1, TIED),
    TEST(each_size_of_a_llama_is_held_against_the_tensors, 1,
         "look before making a Llama"),
    TEST(each_tensor_of_a_mixture_is_missed_by_its_name, 1,
         "look at the feed-forward layer of a Llama"),
    TEST(each_tensor_of_a_llama_has_its_shape_and_a_type_of_weights, 1,
         SHAPE_HELD),
    TEST(a_negative_vocabulary_means_a_head_of_its_own, 2, SIGN),
    TEST(pairs_of_queries_and_keys_are_parted_at_every_width, 2, SOURCE),
    TEST(a_llama_comes_back_from_a_file_without_names, 2,
         "part the pairs of queries and keys alone"),
    TEST(a_file_without_names_has_its_exact_size, 1,
         "one tensor of a llama2.c file"),
    TEST(a_header_of_seven_numbers_is_checked, 1,
         "refuse a width that the heads do not divide"),
    TEST(gpt2_gives_the_oracles_rows_and_tokens, 2, TURN),
    TEST(gpt2_in_f16_gives_the_oracles_rows_and_tokens, 2,
         "let the element be a float"),
    TEST(gpt2_in_bf16_gives_the_oracles_rows_and_tokens, 2,
         "let the element be a float"),
    TEST(a_whole_vocabulary_gives_the_oracles_rows_and_tokens, 2, TURN),
    TEST(llama_gives_the_oracles_rows_and_tokens, 2, "load a Llama"),
    TEST(a_mixture_gives_the_oracles_rows, 2, "load a Llama"),
    TEST(shards_give_the_bits_of_one_file, 2, "sort what all files hold"),
    TEST(a_model_of_our_own_opens_by_the_same_door, 2,
         "fill from the config and the tensors"),
    TEST(a_checkpoint_knows_what_its_files_held, 2,
         "write down all tensors of shards"),
    TEST(a_file_without_names_is_listed_by_its_places, 2,
         "fill a checkpoint from a llama2.c file"),
    TEST(what_is_no_checkpoint_is_refused, 1,
         "open and close a checkpoint"),
    TEST(opening_survives_each_failed_allocation_and_mapping, 1,
         "open and close a checkpoint"),
    TEST(the_command_lists_what_the_files_hold, 3, "print the sums"),
    TEST(the_audit_predicts_every_family, 3,
         "open a subject through the one door"),
    TEST(the_command_refuses_in_one_line, 3, "run the tensors command"),
};

SUITE("chapter 19, models of the hub", tests);
