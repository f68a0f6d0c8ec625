/* Chapter 1: the contract. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/allocator.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/harness.h"
#include "command.h"
#include "config.h"
#include "dims.h"
#include "error.h"
#include "ledger.h"
#include "parameters.h"
#include "tensor.h"

/* The fields of this chapter: later ones, and what fills up the struct, come
   behind them. */
#define CONFIG_BYTES \
    (offsetof(struct gpt_config, layer_norm_eps) + sizeof (double))


/* A config of these eight numbers; what later chapters add is 0. */
#define EIGHT(v, n, c, l, h, f, p, e) { \
    .vocab_size = v, .context_length = n, .d_model = c, .n_layers = l, \
    .n_heads = h, .d_ff = f, .dropout = p, .layer_norm_eps = e }

/* The sizes of gpt_tiny.safetensors. */
static const struct gpt_config tiny = {
    .vocab_size = 23, .context_length = 12, .d_model = 16, .n_layers = 2,
    .n_heads = 4, .d_ff = 32, .dropout = 0.25, .layer_norm_eps = 1e-5
};
static const struct gpt_config gpt2_small = {
    .vocab_size = 50257, .context_length = 1024, .d_model = 768,
    .n_layers = 12, .n_heads = 12, .d_ff = 3072, .layer_norm_eps = 1e-5
};

static const char good_json[] =
    "{\"vocab_size\": 23, \"context_length\": 12, \"d_model\": 16,"
    " \"n_layers\": 2, \"n_heads\": 4, \"d_ff\": 32, \"dropout\": 0.25,"
    " \"layer_norm_eps\": 1e-5}";

/* Fails unless the message begins with what. */
static void expect_message(const struct error *error, const char *what)
{
    ck_assert_msg(strncmp(error->message, what, strlen(what)) == 0,
                  "expected a message that begins with \"%s\", got \"%s\"",
                  what, error->message);
}

static void expect_mention(const char *text, const char *what)
{
    ck_assert_msg(strstr(text, what) != NULL,
                  "expected \"%s\" somewhere in \"%s\"", what, text);
}

/* Fails unless the config is refused by the field's name, with and without
   a struct to write to, and is left alone. */
static void expect_refused(struct gpt_config config, const char *field)
{
    struct gpt_config before = config;
    struct error error = { STATUS_OK, "" };
    ck_assert_int_eq(gpt_config_check(&config, &error), STATUS_INVALID);
    ck_assert_int_eq(error.status, STATUS_INVALID);
    expect_message(&error, field);
    ck_assert_int_eq(error.message[strlen(field)], ':');
    ck_assert_int_eq(gpt_config_check(&config, NULL), STATUS_INVALID);
    expect_same_bits("config", &config, &before, CONFIG_BYTES);
}

static void expect_accepted(struct gpt_config config)
{
    struct error error = { STATUS_OK, "" };
    enum status status = gpt_config_check(&config, &error);
    ck_assert_msg(status == STATUS_OK, "refused: %s", error.message);
}

/* ------------------------------------------------------------- errors */

START_TEST(message_longer_than_its_room_is_cut)
{
    struct error error;
    char text[2 * ERROR_MESSAGE_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ck_assert_int_eq(error_set(&error, STATUS_IO, "d_ff: %s", text),
                     STATUS_IO);
    ck_assert_int_eq(error.status, STATUS_IO);
    ck_assert_uint_eq(strlen(error.message), ERROR_MESSAGE_MAX - 1);
    expect_message(&error, "d_ff: xxx");
    ck_assert_int_eq(error_set(NULL, STATUS_FORMAT, "%s", text),
                     STATUS_FORMAT);
}
END_TEST

START_TEST(message_stays_on_one_line)
{
    struct error error;
    error_set(&error, STATUS_INVALID, "a\nb\tc\rd\033e\177f\xc3\xa9");
    ck_assert_str_eq(error.message, "a?b?c?d?e?f\xc3\xa9");
}
END_TEST

/* ------------------------------------------------------------ tensors */

START_TEST(product_that_wraps_past_its_factors_is_refused)
{
    size_t product = 7;
    size_t root = (size_t)1 << (sizeof (size_t) * 4);
    ck_assert(!size_multiply(root + 1, root + 1, &product));
    ck_assert(!size_multiply(root, root, &product));
    ck_assert(!size_multiply(SIZE_MAX, 2, &product));
    ck_assert(!size_multiply(2, SIZE_MAX / 2 + 1, &product));
    ck_assert_uint_eq(product, 7);
}
END_TEST

START_TEST(products_and_sums_up_to_the_limit_fit)
{
    size_t result = 7;
    ck_assert(size_multiply(SIZE_MAX, 1, &result));
    ck_assert_uint_eq(result, SIZE_MAX);
    ck_assert(size_multiply(SIZE_MAX / 3, 3, &result));
    ck_assert_uint_eq(result, SIZE_MAX / 3 * 3);
    ck_assert(size_multiply(0, SIZE_MAX, &result) && result == 0);
    ck_assert(size_multiply(SIZE_MAX, 0, &result) && result == 0);
    ck_assert(size_add(SIZE_MAX - 4, 4, &result) && result == SIZE_MAX);
    ck_assert(!size_add(SIZE_MAX - 4, 5, &result) && result == SIZE_MAX);
}
END_TEST

START_TEST(shape_without_a_size_has_none)
{
    size_t size = 7;
    const int good[4] = { 2, 3, 4, 5 };
    const int huge[4] = { 65536, 65536, 65536, 65536 };
    const int bytes[4] = { 65536, 65536, 65536, 16384 };   /* 2^62 floats */
    for (int axis = 0; axis < 4; axis++) {
        int shape[4] = { 2, 3, 4, 5 };
        shape[axis] = 0;
        ck_assert(!shape_size(4, shape, &size));
        shape[axis] = -3;
        ck_assert(!shape_size(4, shape, &size));
    }
    ck_assert(!shape_size(0, good, &size));
    ck_assert(!shape_size(-1, good, &size));
    ck_assert(!shape_size(TENSOR_RANK_MAX + 1, good, &size));
    ck_assert(!shape_size(4, huge, &size));
    ck_assert(!shape_size(4, bytes, &size));
    ck_assert_uint_eq(size, 7);
    ck_assert(shape_size(4, good, &size) && size == 120);
    ck_assert(shape_size(1, good, &size) && size == 2);
}
END_TEST

START_TEST(tensor_of_a_bad_shape_is_refused)
{
    float number = 1;
    struct tensor tensor = { &number, 1, { 1, 0, 0, 0 } }, before = tensor;
    struct error error;
    ck_assert_int_eq(tensor_new(&tensor, SHAPE(2, 0, 3), &error),
                     STATUS_INVALID);
    expect_message(&error, "shape: ");
    expect_mention(error.message, "[2, 0, 3]");
    ck_assert_int_eq(tensor_new(&tensor, SHAPE(1, 2, 3, 4, 5), &error),
                     STATUS_INVALID);
    expect_message(&error, "rank: expected 1 to 4, got 5");
    ck_assert_int_eq(tensor_new(&tensor, 0, NULL, NULL), STATUS_INVALID);
    ck_assert_ptr_eq(tensor.data, &number);
    ck_assert_int_eq(tensor.rank, 1);
    expect_same_bits("shape", tensor.shape, before.shape,
                     sizeof before.shape);
}
END_TEST

START_TEST(tensor_is_zero_at_first_and_empty_at_last)
{
    struct tensor tensor = { 0 };
    ck_assert_uint_eq(tensor_size(&tensor), 0);
    ck_assert_int_eq(tensor_new(&tensor, SHAPE(2, 3, 5), NULL), STATUS_OK);
    ck_assert_int_eq(tensor.rank, 3);
    ck_assert_int_eq(tensor.shape[2], 5);
    ck_assert_int_eq(tensor.shape[3], 0);
    ck_assert_uint_eq(tensor_size(&tensor), 30);
    for (int i = 0; i < 30; i++)
        ck_assert(tensor.data[i] == 0);
    tensor_free(&tensor);
    ck_assert_ptr_null(tensor.data);
    ck_assert_int_eq(tensor.rank, 0);
    ck_assert_int_eq(tensor.shape[0], 0);
    tensor_free(&tensor);
    tensor_free(NULL);
}
END_TEST

START_TEST(tensor_without_memory_is_refused)
{
    struct tensor tensor = { 0 };
    struct error error;
    allocator_fail_at(1);
    ck_assert_int_eq(tensor_new(&tensor, SHAPE(2, 3), &error),
                     STATUS_NO_MEMORY);
    ck_assert(allocator_stop());
    expect_message(&error, "tensor: no memory for 6 floats");
    ck_assert_ptr_null(tensor.data);
    ck_assert_int_eq(tensor.rank, 0);
}
END_TEST

START_TEST(shapes_compare_and_print)
{
    char text[TENSOR_SHAPE_TEXT_MAX];
    struct tensor a = { NULL, 2, { 3, 4, 0, 0 } }, b = a;
    ck_assert(tensor_same_shape(&a, &b));
    b.shape[1] = 5;
    ck_assert(!tensor_same_shape(&a, &b));
    b = (struct tensor){ NULL, 3, { 3, 4, 1, 0 } };
    ck_assert(!tensor_same_shape(&a, &b));
    ck_assert_str_eq(shape_text(SHAPE(2, 3, 4), text), "[2, 3, 4]");
    ck_assert_str_eq(shape_text(0, NULL, text), "[]");
    ck_assert_str_eq(shape_text(SHAPE(INT_MIN, INT_MIN, INT_MIN, INT_MIN),
                                text),
                     "[-2147483648, -2147483648, -2147483648, -2147483648]");
}
END_TEST

/* ------------------------------------------------------------- config */

START_TEST(legal_configs_pass)
{
    struct gpt_config config = tiny;
    expect_accepted(tiny);
    expect_accepted(gpt2_small);
    config.dropout = 0;
    expect_accepted(config);
    config.dropout = nextafter(1, 0);
    expect_accepted(config);
    config.layer_norm_eps = 5e-324;
    expect_accepted(config);
    config.layer_norm_eps = 1e300;
    expect_accepted(config);
    config = (struct gpt_config)EIGHT(1, 1, 1, 1, 1, 1, 0, 1);
    expect_accepted(config);
}
END_TEST

START_TEST(heads_are_positive_before_they_divide)
{
    struct gpt_config config = tiny;
    struct error error;
    const int heads[] = { 0, -4, -1, INT_MIN };
    for (int i = 0; i < 4; i++) {
        config.n_heads = heads[i];
        ck_assert_int_eq(gpt_config_check(&config, &error), STATUS_INVALID);
        expect_message(&error, "n_heads: expected a positive size");
    }
}
END_TEST

START_TEST(sizes_not_positive_are_refused_by_name)
{
    const int bad[] = { 0, -1, INT_MIN };
    for (int i = 0; i < 3; i++) {
        struct gpt_config c;
        c = tiny; c.vocab_size = bad[i]; expect_refused(c, "vocab_size");
        c = tiny; c.context_length = bad[i];
        expect_refused(c, "context_length");
        c = tiny; c.d_model = bad[i]; expect_refused(c, "d_model");
        c = tiny; c.n_layers = bad[i]; expect_refused(c, "n_layers");
        c = tiny; c.n_heads = bad[i]; expect_refused(c, "n_heads");
        c = tiny; c.d_ff = bad[i]; expect_refused(c, "d_ff");
    }
}
END_TEST

START_TEST(heads_that_leave_a_remainder_are_refused)
{
    struct gpt_config config = tiny;
    struct error error;
    for (int heads = 1; heads <= 17; heads++) {
        config.n_heads = heads;
        if (16 / heads * heads == 16)
            expect_accepted(config);
        else
            expect_refused(config, "n_heads");
    }
    config.n_heads = 3;
    gpt_config_check(&config, &error);
    expect_facts(error.message,
                 "n_heads: expected a divisor of d_model 16, got 3");
}
END_TEST

START_TEST(dropout_outside_zero_to_one_is_refused)
{
    const double bad[] = { NAN, -NAN, 1, 1.5, -5e-324, -1, INFINITY,
                           -INFINITY };
    struct gpt_config config = tiny;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config.dropout = bad[i];
        expect_refused(config, "dropout");
    }
}
END_TEST

START_TEST(epsilon_not_positive_and_finite_is_refused)
{
    const double bad[] = { 0, -0.0, -1e-5, NAN, INFINITY, -INFINITY };
    struct gpt_config config = tiny;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config.layer_norm_eps = bad[i];
        expect_refused(config, "layer_norm_eps");
    }
}
END_TEST

START_TEST(qkv_width_beyond_an_int_is_refused)
{
    struct gpt_config config = EIGHT(1, 1, 1, 1, 1, 1, 0, 1);
    const int bad[] = { INT_MAX / 3 + 1, 1431655766, INT_MAX };
    for (int i = 0; i < 3; i++) {
        config.d_model = bad[i];
        expect_refused(config, "d_model");
    }
    config.d_model = INT_MAX / 3;
    expect_accepted(config);
}
END_TEST

START_TEST(layers_beyond_the_names_are_refused)
{
    struct gpt_config config = EIGHT(1, 1, 1, 1, 1, 1, 0, 1);
    config.n_layers = N_LAYERS_MAX;
    expect_accepted(config);
    config.n_layers = N_LAYERS_MAX + 1;
    expect_refused(config, "n_layers");
    config.n_layers = INT_MAX;
    expect_refused(config, "n_layers");
}
END_TEST

START_TEST(parameters_beyond_all_addresses_are_refused)
{
    struct error error;
    struct gpt_config config = EIGHT(INT_MAX, INT_MAX, INT_MAX / 3,
                                     1, 1, INT_MAX, 0, 1);
    const char *const names[] = {
        "vocab_size", "context_length", "d_model", "n_layers", "d_ff"
    };
    ck_assert_int_eq(gpt_config_check(&config, &error), STATUS_INVALID);
    for (int i = 0; i < 5; i++)
        expect_mention(error.message, names[i]);
    config = tiny;
    config.d_model = 1 << 24;
    config.n_layers = N_LAYERS_MAX;
    ck_assert_int_eq(gpt_config_check(&config, &error), STATUS_INVALID);
}
END_TEST

START_TEST(head_width_is_the_quotient)
{
    ck_assert_int_eq(gpt_config_head_dim(&tiny), 4);
    ck_assert_int_eq(gpt_config_head_dim(&gpt2_small), 64);
}
END_TEST

static enum status ask(int batch, int tokens, int past, struct error *error)
{
    return gpt_config_check_call(&tiny, batch, tokens, past, error);
}

START_TEST(call_without_rows_or_tokens_is_refused)
{
    struct error error;
    const int none[] = { 0, -1, INT_MIN };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ask(none[i], 1, 0, &error), STATUS_INVALID);
        expect_message(&error, "batch:");
        ck_assert_int_eq(ask(1, none[i], 0, &error), STATUS_INVALID);
        expect_message(&error, "tokens:");
    }
    ck_assert_int_eq(ask(1, 1, -1, &error), STATUS_INVALID);
    expect_message(&error, "past:");
    ck_assert_int_eq(ask(1, 1, INT_MIN, &error), STATUS_INVALID);
    expect_message(&error, "past:");
}
END_TEST

START_TEST(context_is_full_at_its_length_and_not_before)
{
    struct error error;
    for (int past = 0; past <= 13; past++)
        for (int tokens = 1; tokens <= 14; tokens++)
            ck_assert_int_eq(ask(2, tokens, past, NULL),
                past + tokens <= 12 ? STATUS_OK : STATUS_INVALID);
    ck_assert_int_eq(ask(1, 1, 12, &error), STATUS_INVALID);
    expect_message(&error, "past + tokens: expected at most context_length"
                           " 12, got 12 + 1");
    ck_assert_int_eq(ask(1, 1, INT_MAX, NULL), STATUS_INVALID);
    ck_assert_int_eq(ask(1, INT_MAX, INT_MAX, NULL), STATUS_INVALID);
    ck_assert_int_eq(ask(1, INT_MAX, 0, NULL), STATUS_INVALID);
}
END_TEST

START_TEST(batch_whose_rows_overflow_is_refused)
{
    struct error error;
    ck_assert_int_eq(ask(INT_MAX / 12, 12, 0, NULL), STATUS_OK);
    ck_assert_int_eq(ask(INT_MAX / 12 + 1, 12, 0, &error), STATUS_INVALID);
    expect_message(&error, "batch:");
    ck_assert_int_eq(ask(INT_MAX / 4, 1, 0, NULL), STATUS_OK);
    ck_assert_int_eq(ask(INT_MAX / 4 + 1, 1, 0, &error), STATUS_INVALID);
    expect_message(&error, "batch:");
}
END_TEST

/* --------------------------------------------------------------- dims */

START_TEST(keys_are_the_cached_and_the_new)
{
    int rank, shape[TENSOR_RANK_MAX];
    struct dims dims = dims_of(&tiny, 2, 3, 4);
    dims_shape(&dims, "S", &rank, shape);
    ck_assert_int_eq(rank, 1);
    ck_assert_int_eq(shape[0], 7);
}
END_TEST

START_TEST(letters_become_sizes)
{
    int rank, shape[TENSOR_RANK_MAX];
    struct dims dims = dims_of(&tiny, 2, 3, 4);
    static const struct { const char *text; int rank, shape[4]; } all[] = {
        { "B H T S", 4, { 2, 4, 3, 7 } }, { "B H S D", 4, { 2, 4, 7, 4 } },
        { "B T 3C", 3, { 2, 3, 48, 0 } }, { "3C C", 2, { 48, 16, 0, 0 } },
        { "F C", 2, { 32, 16, 0, 0 } },   { "V N", 2, { 23, 12, 0, 0 } },
        { "L P", 2, { 2, 4, 0, 0 } },     { "3C", 1, { 48, 0, 0, 0 } },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        memset(shape, 0x55, sizeof shape);
        dims_shape(&dims, all[i].text, &rank, shape);
        ck_assert_msg(rank == all[i].rank, "%s: rank %d", all[i].text, rank);
        expect_same_bits(all[i].text, shape, all[i].shape, sizeof shape);
    }
}
END_TEST

/* --------------------------------------------------------- parameters */

static struct parameters *make(const struct gpt_config *config)
{
    struct parameters *parameters = NULL;
    struct error error = { STATUS_OK, "" };
    enum status status = parameters_new(&parameters, config, &error);
    ck_assert_msg(status == STATUS_OK, "refused: %s", error.message);
    return parameters;
}

static size_t count(struct gpt_config config)
{
    size_t n = 0;
    ck_assert(parameters_formula(&config, &n));
    return n;
}

START_TEST(one_more_layer_is_one_more_block)
{
    struct gpt_config more = tiny;
    more.n_layers++;
    /* two norms, qkv, out, up, down: by hand for C = 16, F = 32 */
    ck_assert_uint_eq(count(more) - count(tiny),
                      2 * (16 + 16) + (48 * 16 + 48) + (16 * 16 + 16)
                      + (32 * 16 + 32) + (16 * 32 + 16));
    more = gpt2_small;
    more.n_layers++;
    ck_assert_uint_eq(count(more) - count(gpt2_small), 7087872);
}
END_TEST

START_TEST(formula_gives_the_published_size)
{
    ck_assert_uint_eq(count(tiny), 5040);
    ck_assert_uint_eq(count(gpt2_small), 124439808);
}
END_TEST

START_TEST(formula_says_when_it_overflows)
{
    size_t n = 7;
    struct gpt_config config = EIGHT(INT_MAX, INT_MAX, INT_MAX,
                                     INT_MAX, 1, INT_MAX, 0, 1);
    ck_assert(!parameters_formula(&config, &n));
    config.n_layers = 1;    /* 2^64 bytes and more, though fewer floats */
    config.vocab_size = config.context_length = config.d_ff = 1;
    config.d_model = 1 << 30;
    ck_assert(!parameters_formula(&config, &n));
    ck_assert_uint_eq(n, 7);
    config.d_model = 1 << 29;
    ck_assert(parameters_formula(&config, &n));
}
END_TEST

START_TEST(every_block_is_registered)
{
    struct parameters *p = make(&tiny);
    static const char *const paths[] = {
        "blocks.0.attention_norm.weight", "blocks.1.attention_norm.weight",
        "blocks.1.attention.qkv_proj.weight", "blocks.1.mlp.down_proj.bias",
    };
    const struct tensor *const tensors[] = {
        &p->blocks[0].attention_norm.weight,
        &p->blocks[1].attention_norm.weight,
        &p->blocks[1].attention.qkv_proj.weight,
        &p->blocks[1].mlp.down_proj.bias,
    };
    for (int i = 0; i < 4; i++) {
        const struct parameter *found = parameters_find(p, paths[i]);
        ck_assert_msg(found != NULL, "%s is not registered", paths[i]);
        ck_assert_ptr_eq(found->tensor, tensors[i]);
    }
    ck_assert_int_eq(p->count, 12 * 2 + 4 + 1);
    ck_assert_ptr_null(parameters_find(p, "blocks.2.mlp.down_proj.bias"));
    ck_assert_ptr_null(parameters_find(p, "blocks.1.mlp.down_proj"));
    ck_assert_ptr_null(parameters_find(p, "lm_head.bias"));
    ck_assert_ptr_null(parameters_find(p, ""));
    parameters_free(&p);
}
END_TEST

START_TEST(every_tensor_is_owned_by_its_module)
{
    struct parameters *p = make(&tiny);
    static const char *const pairs[][2] = {
        { "token_embedding.weight", "token_embedding" },
        { "blocks.1.mlp.down_proj.bias", "blocks.1.mlp.down_proj" },
        { "blocks.0.attention.qkv_proj.weight",
          "blocks.0.attention.qkv_proj" },
        { "blocks.0.mlp_norm.bias", "blocks.0.mlp_norm" },
        { "final_norm.bias", "final_norm" },
        { "lm_head.weight", "lm_head" },
    };
    for (int i = 0; i < 6; i++) {
        const struct parameter *found = parameters_find(p, pairs[i][0]);
        ck_assert_ptr_nonnull(found);
        ck_assert_str_eq(found->owner, pairs[i][1]);
    }
    for (int i = 0; i < p->count; i++) {
        const struct parameter *entry = &p->registry[i];
        size_t owner = strlen(entry->owner);
        ck_assert(strncmp(entry->path, entry->owner, owner) == 0);
        ck_assert(strcmp(entry->path + owner, ".weight") == 0
                  || strcmp(entry->path + owner, ".bias") == 0);
    }
    parameters_free(&p);
}
END_TEST

START_TEST(paths_and_shapes_are_those_of_the_oracle)
{
    struct golden *golden = golden_open("gpt_tiny");
    struct parameters *p = make(&tiny);
    int weights = 0;
    for (size_t i = 0; i < golden->count; i++) {
        const struct golden_tensor *theirs = &golden->tensors[i];
        if (strncmp(theirs->name, "w.", 2) != 0)
            continue;
        const struct parameter *ours = parameters_find(p, theirs->name + 2);
        ck_assert_msg(ours != NULL, "no parameter %s", theirs->name + 2);
        ck_assert_int_eq(ours->tensor->rank, theirs->rank);
        for (int axis = 0; axis < theirs->rank; axis++)
            ck_assert_msg(ours->tensor->shape[axis] == theirs->shape[axis],
                          "%s: axis %d", ours->path, axis);
        ck_assert(!ours->alias);
        weights++;
    }
    ck_assert_int_eq(weights, p->count - 1);    /* the head is an alias */
    parameters_free(&p);
    golden_close(golden);
}
END_TEST

START_TEST(registry_has_the_order_of_the_tree)
{
    static const char *const order[] = {
        "token_embedding.weight", "position_embedding.weight",
        "blocks.0.attention_norm.weight", "blocks.0.attention_norm.bias",
        "blocks.0.attention.qkv_proj.weight",
        "blocks.0.attention.qkv_proj.bias",
        "blocks.0.attention.out_proj.weight",
        "blocks.0.attention.out_proj.bias",
        "blocks.0.mlp_norm.weight", "blocks.0.mlp_norm.bias",
        "blocks.0.mlp.up_proj.weight", "blocks.0.mlp.up_proj.bias",
        "blocks.0.mlp.down_proj.weight", "blocks.0.mlp.down_proj.bias",
        "final_norm.weight", "final_norm.bias", "lm_head.weight",
    };
    struct gpt_config config = tiny;
    config.n_layers = 1;
    struct parameters *p = make(&config);
    ck_assert_int_eq(p->count, 17);
    for (int i = 0; i < 17; i++) {
        ck_assert_str_eq(p->registry[i].path, order[i]);
        ck_assert(p->registry[i].alias == (i == 16));
    }
    parameters_free(&p);
}
END_TEST

START_TEST(tied_tensor_is_counted_once)
{
    struct parameters *p = make(&tiny);
    ck_assert_uint_eq(p->size, 5040);
    parameters_free(&p);
    /* sizes that are all different, against the formula */
    struct gpt_config config = EIGHT(7, 5, 6, 3, 2, 11, 0, 1e-5);
    p = make(&config);
    ck_assert_uint_eq(p->size, count(config));
    parameters_free(&p);
}
END_TEST

START_TEST(tensors_share_one_storage_without_gaps)
{
    struct parameters *p = make(&tiny);
    const float *next = p->storage;
    for (int i = 0; i + 1 < p->count; i++) {
        ck_assert_ptr_eq(p->registry[i].tensor->data, next);
        next += tensor_size(p->registry[i].tensor);
    }
    ck_assert_ptr_eq(next, p->storage + p->size);
    for (size_t i = 0; i < p->size; i++)
        ck_assert(p->storage[i] == 0);
    parameters_free(&p);
}
END_TEST

START_TEST(head_and_embedding_are_one_storage)
{
    struct parameters *p = make(&tiny);
    const struct parameter *head = parameters_find(p, "lm_head.weight");
    ck_assert_ptr_nonnull(head);
    ck_assert_ptr_eq(p->lm_head.weight.data, p->token_embedding.weight.data);
    ck_assert_ptr_eq(head->tensor->data, p->token_embedding.weight.data);
    ck_assert(tensor_same_shape(&p->lm_head.weight,
                                &p->token_embedding.weight));
    p->token_embedding.weight.data[5] = 42;
    ck_assert(p->lm_head.weight.data[5] == 42);
    ck_assert_int_eq(p->lm_head.bias.rank, 0);
    ck_assert_ptr_null(p->lm_head.bias.data);
    parameters_free(&p);
}
END_TEST

START_TEST(model_keeps_its_own_config)
{
    struct gpt_config config = tiny;
    struct parameters *p = make(&config);
    config.n_layers = 99;
    config.dropout = NAN;
    expect_same_bits("config", &p->config, &tiny, CONFIG_BYTES);
    parameters_free(&p);
    ck_assert_ptr_null(p);
    parameters_free(&p);
    parameters_free(NULL);
}
END_TEST

START_TEST(parameters_of_a_bad_config_are_refused)
{
    struct parameters *p = NULL;
    struct error error;
    struct gpt_config config = tiny;
    config.n_heads = 3;
    ck_assert_int_eq(parameters_new(&p, &config, &error), STATUS_INVALID);
    expect_message(&error, "n_heads:");
    ck_assert_ptr_null(p);
}
END_TEST

START_TEST(parameters_survive_every_failed_allocation)
{
    struct parameters *p = NULL;
    struct error error;
    long failures = 0;
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = parameters_new(&p, &tiny, &error);
        long after = allocator_live();    /* Check frees memory too */
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        expect_message(&error, "parameters: no memory");
        ck_assert_int_eq(after, live);
        ck_assert_ptr_null(p);
        failures++;
    }
    ck_assert_int_eq(failures, 5);
    parameters_free(&p);
}
END_TEST

/* ------------------------------------------------------------- ledger */

static struct ledger open_ledger(const struct gpt_config *config, int batch,
                                 int tokens, int past)
{
    struct ledger ledger = { 0 };
    struct error error = { STATUS_OK, "" };
    enum status status = ledger_new(&ledger, config, batch, tokens, past,
                                    &error);
    ck_assert_msg(status == STATUS_OK, "refused: %s", error.message);
    return ledger;
}

START_TEST(ledger_lists_a_call_from_ids_to_logits)
{
    static const struct {
        const char *name, *dims;
        enum state_owner owner;
        int rank, shape[4];
        size_t bytes;
    } rows[] = {
        { "keep", "T S", OWNER_BUFFER, 2, { 3, 7, 0, 0 }, 21 },
        { "ids", "B T", OWNER_CALL, 2, { 2, 3, 0, 0 }, 24 },
        { "embedding", "B T C", OWNER_CALL, 3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.attention_norm", "B T C", OWNER_CALL,
          3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.qkv", "B T 3C", OWNER_CALL, 3, { 2, 3, 48, 0 }, 1152 },
        { "blocks.0.query", "B H T D", OWNER_CALL, 4, { 2, 4, 3, 4 }, 384 },
        { "blocks.0.key", "B H S D", OWNER_CALL, 4, { 2, 4, 7, 4 }, 896 },
        { "blocks.0.value", "B H S D", OWNER_CALL, 4, { 2, 4, 7, 4 }, 896 },
        { "blocks.0.scores", "B H T S", OWNER_CALL, 4, { 2, 4, 3, 7 }, 672 },
        { "blocks.0.probs", "B H T S", OWNER_CALL, 4, { 2, 4, 3, 7 }, 672 },
        { "blocks.0.context", "B H T D", OWNER_CALL,
          4, { 2, 4, 3, 4 }, 384 },
        { "blocks.0.merged", "B T C", OWNER_CALL, 3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.attention", "B T C", OWNER_CALL,
          3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.residual", "B T C", OWNER_CALL,
          3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.mlp_norm", "B T C", OWNER_CALL,
          3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.up", "B T F", OWNER_CALL, 3, { 2, 3, 32, 0 }, 768 },
        { "blocks.0.gelu", "B T F", OWNER_CALL, 3, { 2, 3, 32, 0 }, 768 },
        { "blocks.0.down", "B T C", OWNER_CALL, 3, { 2, 3, 16, 0 }, 384 },
        { "blocks.0.output", "B T C", OWNER_CALL, 3, { 2, 3, 16, 0 }, 384 },
        { "final_norm", "B T C", OWNER_CALL, 3, { 2, 3, 16, 0 }, 384 },
        { "logits", "B T V", OWNER_CALL, 3, { 2, 3, 23, 0 }, 552 },
        { "past_key_values.0.key", "B H S D", OWNER_REQUEST,
          4, { 2, 4, 7, 4 }, 896 },
        { "past_key_values.0.value", "B H S D", OWNER_REQUEST,
          4, { 2, 4, 7, 4 }, 896 },
    };
    struct gpt_config config = tiny;
    config.n_layers = 1;
    struct ledger ledger = open_ledger(&config, 2, 3, 4);
    const int first = 17;                 /* after the parameters */
    ck_assert_int_eq(ledger.count, first + 23);
    for (int i = 0; i < 23; i++) {
        const struct ledger_row *row = &ledger.rows[first + i];
        ck_assert_str_eq(row->name, rows[i].name);
        ck_assert_str_eq(row->dims, rows[i].dims);
        ck_assert_int_eq(row->owner, rows[i].owner);
        ck_assert_int_eq(row->rank, rows[i].rank);
        expect_same_bits(row->name, row->shape, rows[i].shape,
                         sizeof row->shape);
        ck_assert_uint_eq(row->bytes, rows[i].bytes);
    }
    ledger_free(&ledger);
}
END_TEST

START_TEST(ledger_and_registry_have_the_same_parameters)
{
    struct ledger ledger = open_ledger(&tiny, 1, 1, 0);
    struct parameters *p = make(&tiny);
    ck_assert_int_eq(ledger.count, 30 * tiny.n_layers + 10);
    for (int i = 0; i < p->count; i++) {
        const struct ledger_row *row = ledger_find(&ledger,
                                                   p->registry[i].path);
        const struct tensor *tensor = p->registry[i].tensor;
        ck_assert_ptr_eq(row, &ledger.rows[i]);
        ck_assert_int_eq(row->owner, OWNER_PARAMETER);
        ck_assert_int_eq(row->rank, tensor->rank);
        expect_same_bits(row->name, row->shape, tensor->shape,
                         sizeof row->shape);
        ck_assert_uint_eq(row->bytes, p->registry[i].alias ? 0
                          : tensor_size(tensor) * sizeof (float));
    }
    ck_assert_int_eq(ledger.rows[p->count].owner, OWNER_BUFFER);
    parameters_free(&p);
    ledger_free(&ledger);
}
END_TEST

START_TEST(every_block_has_its_rows)
{
    struct gpt_config config = tiny;
    config.n_layers = 11;
    struct ledger ledger = open_ledger(&config, 1, 2, 3);
    ck_assert_ptr_nonnull(ledger_find(&ledger, "blocks.10.output"));
    ck_assert_ptr_nonnull(ledger_find(&ledger, "blocks.10.mlp_norm.bias"));
    ck_assert_ptr_nonnull(ledger_find(&ledger, "past_key_values.10.value"));
    ck_assert_ptr_null(ledger_find(&ledger, "blocks.11.output"));
    ck_assert_ptr_null(ledger_find(&ledger, ""));
    for (int i = 0; i < ledger.count; i++)
        ck_assert_ptr_eq(ledger_find(&ledger, ledger.rows[i].name),
                         &ledger.rows[i]);
    ledger_free(&ledger);
    ck_assert_ptr_null(ledger.rows);
    ledger_free(&ledger);
    ledger_free(NULL);
}
END_TEST

START_TEST(ledger_sums_are_those_of_the_formulas)
{
    const size_t B = 3, T = 5, P = 2, S = 7;
    const size_t V = 23, C = 16, L = 2, H = 4, F = 32;
    struct ledger ledger = open_ledger(&tiny, 3, 5, 2);
    ck_assert_uint_eq(P + T, S);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_PARAMETER), 4 * 5040);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_BUFFER), T * S);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_REQUEST),
                      8 * L * B * S * C);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_CALL),
        4 * B * (T + T * C + L * (12 * T * C + 2 * S * C + 2 * H * T * S
                                  + 2 * T * F) + T * C + T * V));
    ledger_free(&ledger);
    ledger = open_ledger(&gpt2_small, 1, 1024, 0);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_CALL), 2250579968);
    ck_assert_uint_eq(ledger_bytes(&ledger, OWNER_REQUEST), 75497472);
    ledger_free(&ledger);
}
END_TEST

START_TEST(owners_have_names)
{
    ck_assert_str_eq(state_owner_name(OWNER_PARAMETER), "parameter");
    ck_assert_str_eq(state_owner_name(OWNER_BUFFER), "buffer");
    ck_assert_str_eq(state_owner_name(OWNER_CALL), "call");
    ck_assert_str_eq(state_owner_name(OWNER_REQUEST), "request");
}
END_TEST

START_TEST(ledger_of_an_impossible_call_is_refused)
{
    struct ledger_row row = { .name = "mine" };
    struct ledger ledger = { &row, 1 };
    struct gpt_config bad = tiny;
    struct error error;
    ck_assert_int_eq(ledger_new(&ledger, &tiny, 0, 1, 0, &error),
                     STATUS_INVALID);
    expect_message(&error, "batch:");
    ck_assert_int_eq(ledger_new(&ledger, &tiny, 1, 5, 8, &error),
                     STATUS_INVALID);
    expect_message(&error, "past + tokens:");
    bad.d_ff = 0;
    ck_assert_int_eq(ledger_new(&ledger, &bad, 1, 1, 0, &error),
                     STATUS_INVALID);
    expect_message(&error, "d_ff:");
    ck_assert_ptr_eq(ledger.rows, &row);
    ck_assert_int_eq(ledger.count, 1);
}
END_TEST

START_TEST(ledger_whose_bytes_overflow_names_the_row)
{
    struct gpt_config wide = EIGHT(1, 1024, 1, 2, 1, INT_MAX, 0, 1);
    struct ledger ledger = { 0 };
    struct error error;
    long live = allocator_live();
    enum status status = ledger_new(&ledger, &wide, 1 << 20, 1024, 0,
                                    &error);
    live -= allocator_live();
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    expect_message(&error, "blocks.0.gelu:");    /* up alone fits */
    ck_assert_ptr_null(ledger.rows);
    ck_assert_int_eq(live, 0);
}
END_TEST

START_TEST(ledger_survives_a_failed_allocation)
{
    struct ledger ledger = { 0 };
    struct error error;
    allocator_fail_at(1);
    ck_assert_int_eq(ledger_new(&ledger, &tiny, 1, 1, 0, &error),
                     STATUS_NO_MEMORY);
    ck_assert(allocator_stop());
    expect_message(&error, "ledger: no memory for 70 rows");
    ck_assert_ptr_null(ledger.rows);
}
END_TEST

/* -------------------------------------------------------- config.json */

static enum status parse(struct gpt_config *config, const char *text,
                         struct error *error)
{
    return gpt_config_parse(config, text, strlen(text), error);
}

/* good_json without the member that begins so, and with more before its
   closing brace. */
static const char *json_with(const char *without, const char *more)
{
    static char text[1024];
    const char *from = without == NULL ? NULL : strstr(good_json, without);
    const char *rest = from == NULL ? NULL : strpbrk(from, ",}");
    if (from == NULL)
        snprintf(text, sizeof text, "%.*s%s}",
                 (int)strlen(good_json) - 1, good_json, more);
    else
        snprintf(text, sizeof text, "%.*s%s", (int)(from - good_json),
                 good_json, *rest == ',' ? rest + 1 : rest);
    if (from != NULL)
        snprintf(text + strlen(text) - 1, sizeof text - strlen(text),
                 "%s}", more);
    return text;
}

/* Fails unless the text is refused with a message that begins so, and the
   config is left alone. */
static void expect_bad_json(const char *text, enum status status,
                            const char *message)
{
    struct gpt_config config = gpt2_small;
    struct error error = { STATUS_OK, "" };
    enum status came = parse(&config, text, &error);
    ck_assert_msg(came == status, "status %d (%s) for %s", (int)came,
                  error.message, text);
    expect_message(&error, message);
    expect_same_bits("config", &config, &gpt2_small, CONFIG_BYTES);
}

START_TEST(config_is_read_field_by_field)
{
    struct gpt_config config;
    struct error error = { STATUS_OK, "" };
    memset(&config, 0x55, sizeof config);
    ck_assert_msg(parse(&config, good_json, &error) == STATUS_OK, "%s",
                  error.message);
    ck_assert_int_eq(config.vocab_size, 23);
    ck_assert_int_eq(config.context_length, 12);
    ck_assert_int_eq(config.d_model, 16);
    ck_assert_int_eq(config.n_layers, 2);
    ck_assert_int_eq(config.n_heads, 4);
    ck_assert_int_eq(config.d_ff, 32);
    ck_assert(config.dropout == 0.25 && config.layer_norm_eps == 1e-5);
    ck_assert_int_eq(parse(&config, "\xef\xbb\xbf { \"d_ff\":1e2,\n\"n_heads\""
        ": 2.0, \"n_layers\":3,\t\"d_model\":4, \"context_length\":5,\r\n"
        "\"vocab_size\":6 }\n\n ", NULL), STATUS_OK);
    ck_assert_int_eq(config.d_ff, 100);
    ck_assert_int_eq(config.n_heads, 2);
    ck_assert(config.dropout == 0 && config.layer_norm_eps == 1e-5);
}
END_TEST

START_TEST(size_that_is_not_an_int_is_refused)
{
    static const char *const bad[] = {
        "2.5", "1e300", "-1e300", "2147483648", "-2147483649", "1e-3",
        "4294967298", "9223372036854775808"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char more[64];
        snprintf(more, sizeof more, ", \"n_layers\": %s", bad[i]);
        expect_bad_json(json_with("\"n_layers\"", more), STATUS_FORMAT,
                        "n_layers: expected an integer");
    }
}
END_TEST

START_TEST(number_beyond_a_double_is_refused)
{
    expect_bad_json(json_with("\"dropout\"", ", \"dropout\": 1e999"),
                    STATUS_FORMAT, "dropout: expected a finite number");
    expect_bad_json(json_with("\"d_ff\"", ", \"d_ff\": -1e999"),
                    STATUS_FORMAT, "d_ff: expected a finite number");
}
END_TEST

START_TEST(value_of_another_type_is_refused)
{
    static const char *const pairs[][2] = {
        { "\"4\"", "n_heads: expected a number, got a string" },
        { "true", "n_heads: expected a number, got true or false" },
        { "false", "n_heads: expected a number, got true or false" },
        { "null", "n_heads: expected a number, got null" },
        { "[4]", "n_heads: expected a number, got an array" },
        { "{\"n_heads\": 4}", "n_heads: expected a number, got an object" },
    };
    for (int i = 0; i < 6; i++) {
        char more[64];
        snprintf(more, sizeof more, ", \"n_heads\": %s", pairs[i][0]);
        expect_bad_json(json_with("\"n_heads\"", more), STATUS_FORMAT,
                        pairs[i][1]);
    }
}
END_TEST

START_TEST(field_given_twice_is_refused)
{
    expect_bad_json(json_with(NULL, ", \"n_heads\": 8"), STATUS_FORMAT,
                    "n_heads: given twice");
    expect_bad_json(json_with(NULL, ", \"dropout\": 0.25"), STATUS_FORMAT,
                    "dropout: given twice");
    expect_bad_json(json_with(NULL, ", \"d\\u005fff\": 32"), STATUS_FORMAT,
                    "d_ff: given twice");
}
END_TEST

START_TEST(field_that_does_not_exist_is_refused)
{
    expect_bad_json(json_with(NULL, ", \"layernorm_eps\": 1e-6"),
                    STATUS_FORMAT, "layernorm_eps: no such field");
    expect_bad_json(json_with("\"n_heads\"", ", \"N_Heads\": 4"),
                    STATUS_FORMAT, "N_Heads: no such field");
    expect_bad_json(json_with(NULL, ", \"\": 1"), STATUS_FORMAT,
                    ": no such field");
    expect_bad_json(json_with(NULL, ", \"a\\nb\": 1"), STATUS_FORMAT,
                    "a?b: no such field");
}
END_TEST

START_TEST(field_that_is_missing_is_named)
{
    static const char *const required[] = {
        "vocab_size", "context_length", "d_model", "n_layers", "n_heads",
        "d_ff"
    };
    for (int i = 0; i < 6; i++) {
        char member[32], message[32];
        snprintf(member, sizeof member, "\"%s\"", required[i]);
        snprintf(message, sizeof message, "%s: missing", required[i]);
        expect_bad_json(json_with(member, ""), STATUS_FORMAT, message);
    }
    expect_bad_json("{}", STATUS_FORMAT, "vocab_size: missing");
}
END_TEST

START_TEST(illegal_config_in_a_file_is_refused_by_field)
{
    expect_bad_json(json_with("\"n_heads\"", ", \"n_heads\": 3"),
                    STATUS_INVALID, "n_heads: expected a divisor");
    expect_bad_json(json_with("\"dropout\"", ", \"dropout\": 1"),
                    STATUS_INVALID, "dropout: expected 0 <=");
    expect_bad_json(json_with("\"vocab_size\"", ", \"vocab_size\": -23"),
                    STATUS_INVALID, "vocab_size: expected a positive");
}
END_TEST

START_TEST(zero_byte_is_refused_wherever_it_hides)
{
    struct gpt_config config = gpt2_small;
    struct error error;
    char text[sizeof good_json];
    for (size_t at = 0; at < sizeof good_json - 1; at++) {
        memcpy(text, good_json, sizeof text);
        text[at] = '\0';
        ck_assert_int_eq(gpt_config_parse(&config, text, sizeof text - 1,
                                          &error), STATUS_FORMAT);
        expect_message(&error, "a zero byte at offset ");
    }
    /* the string's own terminator, taken for text */
    ck_assert_int_eq(gpt_config_parse(&config, good_json, sizeof good_json,
                                      &error), STATUS_FORMAT);
    expect_bad_json(json_with(NULL, ", \"n_heads\\u0000\": 4"),
                    STATUS_FORMAT, "a zero byte at offset ");
    expect_same_bits("config", &config, &gpt2_small, CONFIG_BYTES);
}
END_TEST

START_TEST(text_that_is_not_one_object_is_refused)
{
    expect_bad_json("", STATUS_FORMAT, "empty: expected a JSON object");
    expect_bad_json(" \n", STATUS_FORMAT, "line ");
    expect_bad_json("[]", STATUS_FORMAT, "expected a JSON object");
    expect_bad_json("16", STATUS_FORMAT, "expected a JSON object");
    expect_bad_json("{\n\"d_ff\": 3,\n?\n}", STATUS_FORMAT,
                    "line 3: not JSON");
    expect_bad_json("{\"d_ff\": 0x10}", STATUS_FORMAT, "line 1: not JSON");
    expect_bad_json("{\"d_ff\": NaN}", STATUS_FORMAT, "line 1: not JSON");
    static char text[1024];
    snprintf(text, sizeof text, "%s\n\n}", good_json);
    expect_bad_json(text, STATUS_FORMAT, "line 3: something follows");
    snprintf(text, sizeof text, "%s %s", good_json, good_json);
    expect_bad_json(text, STATUS_FORMAT, "line 1: something follows");
    static char deep[100001];
    memset(deep, '[', sizeof deep - 1);
    expect_bad_json(deep, STATUS_FORMAT, "line 1: not JSON");
}
END_TEST

START_TEST(truncated_text_is_refused_at_every_length)
{
    struct gpt_config config = gpt2_small;
    for (size_t length = 0; length < sizeof good_json - 1; length++) {
        char *text = malloc(length + 1);    /* a read past the end shows */
        ck_assert_ptr_nonnull(text);
        memcpy(text, good_json, length);
        enum status status = gpt_config_parse(&config, text, length, NULL);
        free(text);
        ck_assert_msg(status == STATUS_FORMAT, "%zu bytes accepted", length);
    }
    expect_same_bits("config", &config, &gpt2_small, CONFIG_BYTES);
}
END_TEST

static char directory[64];
static char path_text[512];

static void make_directory(void)
{
    snprintf(directory, sizeof directory, "%s/1-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static const char *in_directory(const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", directory, name);
    return path_text;
}

static void write_file(const char *name, const char *text, size_t length)
{
    FILE *file = fopen(in_directory(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_directory(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(config_file_is_read_or_refused_by_path)
{
    struct gpt_config config = gpt2_small;
    struct error error;
    char expected[600];
    make_directory();
    ck_assert_int_eq(gpt_config_read(&config, in_directory("absent"),
                                     &error), STATUS_IO);
    snprintf(expected, sizeof expected, "%s: No such file", path_text);
    expect_message(&error, expected);
    ck_assert_int_eq(gpt_config_read(&config, directory, &error), STATUS_IO);
    snprintf(expected, sizeof expected, "%s: Is a directory", directory);
    expect_message(&error, expected);
    write_file("empty.json", "", 0);
    ck_assert_int_eq(gpt_config_read(&config, in_directory("empty.json"),
                                     &error), STATUS_FORMAT);
    snprintf(expected, sizeof expected, "%s: empty", path_text);
    expect_message(&error, expected);
    expect_same_bits("config", &config, &gpt2_small, CONFIG_BYTES);
    write_file("good.json", good_json, sizeof good_json - 1);
    ck_assert_int_eq(gpt_config_read(&config, in_directory("good.json"),
                                     NULL), STATUS_OK);
    ck_assert_int_eq(config.d_ff, 32);
    remove_directory();
}
END_TEST

START_TEST(long_path_leaves_room_for_the_field)
{
    struct gpt_config config = gpt2_small;
    struct error error;
    char name[200];
    make_directory();
    memset(name, 'p', sizeof name);
    snprintf(name + 180, sizeof name - 180, "/config.json");
    name[180] = '\0';
    ck_assert_int_eq(mkdir(in_directory(name), 0700), 0);
    name[180] = '/';
    const char *bad = json_with("\"n_heads\"", ", \"n_heads\": 3");
    write_file(name, bad, strlen(bad));
    ck_assert_int_eq(gpt_config_read(&config, in_directory(name), &error),
                     STATUS_INVALID);
    expect_mention(error.message, "ppp/config.json: n_heads: expected a"
                                  " divisor of d_model 16, got 3");
    expect_message(&error, "...");
    remove_directory();
}
END_TEST

START_TEST(file_longer_than_any_config_is_refused)
{
    enum { LIMIT = 65536 };
    struct gpt_config config = gpt2_small;
    struct error error;
    char *text = malloc(LIMIT + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, ' ', LIMIT + 1);
    memcpy(text, good_json, sizeof good_json - 1);
    make_directory();
    write_file("long.json", text, LIMIT + 1);
    ck_assert_int_eq(gpt_config_read(&config, in_directory("long.json"),
                                     &error), STATUS_FORMAT);
    expect_mention(error.message, "longer than 65536 bytes");
    write_file("long.json", text, LIMIT);
    ck_assert_int_eq(gpt_config_read(&config, in_directory("long.json"),
                                     &error), STATUS_OK);
    allocator_fail_at(1);
    ck_assert_int_eq(gpt_config_read(&config, path_text, &error),
                     STATUS_NO_MEMORY);
    ck_assert(allocator_stop());
    expect_mention(error.message, "long.json: no memory");
    free(text);
    remove_directory();
}
END_TEST

START_TEST(written_config_reads_back_exactly)
{
    static const double numbers[] = {
        1e-5, 0.1, 1.0 / 3, 0.30000000000000004, 5e-324, 2.2250738585072014e-308,
        1 - 1.1102230246251565e-16
    };
    struct gpt_config config = tiny, back;
    char *text = NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        config.dropout = config.layer_norm_eps = numbers[i];
        ck_assert_int_eq(gpt_config_format(&config, &text, NULL), STATUS_OK);
        ck_assert_int_eq(parse(&back, text, NULL), STATUS_OK);
        expect_same_bits("config", &back, &config, CONFIG_BYTES);
        free(text);
    }
    config = (struct gpt_config)EIGHT(INT_MAX, INT_MAX, 715827882,
                                      1, 715827882, INT_MAX, 0, 1e-5);
    if (gpt_config_check(&config, NULL) != STATUS_OK)
        config.vocab_size = config.context_length = config.d_ff = 1;
    ck_assert_int_eq(gpt_config_format(&config, &text, NULL), STATUS_OK);
    ck_assert_int_eq(parse(&back, text, NULL), STATUS_OK);
    expect_same_bits("config", &back, &config, CONFIG_BYTES);
    free(text);
}
END_TEST

START_TEST(written_config_is_short_and_legal)
{
    char *text = NULL;
    struct error error;
    struct gpt_config bad = tiny;
    ck_assert_int_eq(gpt_config_format(&tiny, &text, NULL), STATUS_OK);
    ck_assert_str_eq(text,
        "{\n  \"vocab_size\": 23,\n  \"context_length\": 12,\n"
        "  \"d_model\": 16,\n  \"n_layers\": 2,\n  \"n_heads\": 4,\n"
        "  \"d_ff\": 32,\n  \"dropout\": 0.25,\n"
        "  \"layer_norm_eps\": 1e-05\n}\n");
    free(text);
    text = NULL;
    bad.layer_norm_eps = NAN;
    ck_assert_int_eq(gpt_config_format(&bad, &text, &error), STATUS_INVALID);
    expect_message(&error, "layer_norm_eps:");
    allocator_fail_at(1);
    ck_assert_int_eq(gpt_config_format(&tiny, &text, &error),
                     STATUS_NO_MEMORY);
    ck_assert(allocator_stop());
    ck_assert_ptr_null(text);
}
END_TEST

/* -------------------------------------------------------- the program */

static const struct command test_command = { "try", "", "", NULL };

/* What command_… prints on stderr goes to a file meanwhile. */
static char printed[1024];
static int saved_stderr;

static void catch_stderr(void)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    dup2(fileno(file), STDERR_FILENO);
    fclose(file);
}

static void release_stderr(void)
{
    fflush(stderr);
    lseek(STDERR_FILENO, 0, SEEK_SET);
    ssize_t length = read(STDERR_FILENO, printed, sizeof printed - 1);
    printed[length < 0 ? 0 : length] = '\0';
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
}

START_TEST(option_is_found_in_both_forms)
{
    char *line[] = { "try", "--batch", "2", "--batch=3", "--batches", "--bat",
                     "--batch=", "--batch", NULL };
    const char *value = NULL;
    int index = 1;
    ck_assert(command_option(8, line, &index, "--batch", &value));
    ck_assert_int_eq(index, 2);
    ck_assert_str_eq(value, "2");
    index = 3;
    ck_assert(command_option(8, line, &index, "--batch", &value));
    ck_assert_int_eq(index, 3);
    ck_assert_str_eq(value, "3");
    index = 4;
    ck_assert(!command_option(8, line, &index, "--batch", &value));
    index = 5;
    ck_assert(!command_option(8, line, &index, "--batch", &value));
    index = 6;
    ck_assert(command_option(8, line, &index, "--batch", &value));
    ck_assert_str_eq(value, "");
    index = 7;
    ck_assert(command_option(8, line, &index, "--batch", &value));
    ck_assert_ptr_null(value);
    ck_assert_int_eq(index, 7);
}
END_TEST

START_TEST(number_is_read_whole_or_refused)
{
    static const char *const ints[] = {
        NULL, "", " 3", "3 ", "3x", "x", "0", "11", "-1", "1e1", "0x3",
        "99999999999999999999", "\t3"
    };
    static const char *const doubles[] = {
        NULL, "", " 1", "1 ", "nan", "inf", "-inf", "1e999", "one", "1,5"
    };
    int number = 7;
    double real = 7;
    catch_stderr();
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        ck_assert_msg(command_int(&test_command, "--n", ints[i], 1, 10,
                                  &number) == 2, "%s accepted", ints[i]);
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        ck_assert_msg(command_double(&test_command, "--x", doubles[i], &real)
                      == 2, "%s accepted", doubles[i]);
    release_stderr();
    expect_mention(printed, "tinygpt try: --n: expected an integer from 1 to"
                            " 10, got nothing");
    ck_assert(number == 7 && real == 7);
    ck_assert_int_eq(command_int(&test_command, "--n", "10", 1, 10, &number),
                     0);
    ck_assert_int_eq(command_double(&test_command, "--x", "-2.5e-3", &real),
                     0);
    ck_assert(number == 10 && real == -2.5e-3);
}
END_TEST

START_TEST(seed_is_any_number_of_64_bits)
{
    static const char *const bad[] = {
        NULL, "", "-1", " 1", "1.5", "18446744073709551616", "1 ", "ten"
    };
    uint64_t seed = 7;
    catch_stderr();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(command_seed(&test_command, "--seed", bad[i], &seed)
                      == 2, "%s accepted", bad[i]);
    release_stderr();
    expect_mention(printed, "--seed: expected an integer from 0 to 2^64 - 1");
    ck_assert_uint_eq(seed, 7);
    ck_assert_int_eq(command_seed(&test_command, "--seed",
                                  "18446744073709551615", &seed), 0);
    ck_assert_uint_eq(seed, UINT64_MAX);
}
END_TEST

START_TEST(ids_are_read_or_refused_by_number)
{
    static const char *const bad[] = {
        NULL, ",", "1,", ",1", "1,,2", "1;2", "1,-2", "1, 2", "1,2147483648",
        "a", "1,2x"
    };
    int32_t *ids = NULL;
    int size = 7;
    catch_stderr();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        long live = allocator_live();
        int status = command_ids(&test_command, "--ids", bad[i], &ids,
                                 &size);
        live -= allocator_live();
        ck_assert_msg(status == 2, "%s accepted", bad[i]);
        ck_assert_int_eq(live, 0);
    }
    release_stderr();
    expect_mention(printed, "number 1 is not one");
    catch_stderr();
    allocator_fail_at(1);
    ck_assert_int_eq(command_ids(&test_command, "--ids", "1", &ids, &size),
                     1);
    ck_assert(allocator_stop());
    release_stderr();
    ck_assert_str_eq(printed, "tinygpt try: no memory for the ids\n");
    ck_assert(ids == NULL && size == 7);
    ck_assert_int_eq(command_ids(&test_command, "--ids", "", &ids, &size),
                     0);
    ck_assert(ids == NULL && size == 0);
    ck_assert_int_eq(command_ids(&test_command, "--ids", "0,2147483647,5",
                                 &ids, &size), 0);
    ck_assert(size == 3 && ids[0] == 0 && ids[1] == INT32_MAX
              && ids[2] == 5);
    free(ids);
}
END_TEST

START_TEST(text_option_needs_a_value)
{
    const char *value = NULL;
    catch_stderr();
    ck_assert_int_eq(command_text(&test_command, "--out", NULL, &value), 2);
    release_stderr();
    ck_assert_str_eq(printed, "tinygpt try: --out: needs a value"
                              " (tinygpt try --help says more)\n");
    ck_assert_int_eq(command_text(&test_command, "--out", "", &value), 0);
    ck_assert_str_eq(value, "");
}
END_TEST

/* Runs the program through the shell; all it prints is in output. */
static char output[16384];

static int tinygpt(const char *format, ...)
{
    char line[6000];
    int at = snprintf(line, sizeof line, "'%s' ", harness_program());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + at, sizeof line - (size_t)at, format, arguments);
    va_end(arguments);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status), "killed: %s", line);
    return WEXITSTATUS(status);
}

START_TEST(program_explains_itself)
{
    ck_assert_int_eq(tinygpt("--help 2>/dev/null"), 0);
    expect_mention(output, "usage: tinygpt COMMAND");
    expect_mention(output, "  config ");
    expect_mention(output, "  ledger ");
    ck_assert_int_eq(tinygpt("config --help 2>/dev/null"), 0);
    expect_mention(output, "usage: tinygpt config --check FILE");
    ck_assert_int_eq(tinygpt("ledger --batch 2 --help 2>/dev/null"), 0);
    expect_mention(output, "usage: tinygpt ledger");
    ck_assert_int_eq(tinygpt("2>/dev/null"), 2);
    ck_assert_str_eq(output, "");
    ck_assert_int_eq(tinygpt("2>&1"), 2);
    expect_mention(output, "usage: tinygpt COMMAND");
    ck_assert_int_eq(tinygpt("conifg 2>&1 >/dev/null"), 2);
    expect_mention(output, "tinygpt: no command conifg\n");
}
END_TEST

START_TEST(program_says_when_it_cannot_write)
{
    if (access("/dev/full", W_OK) != 0)
        return;
    ck_assert_int_eq(tinygpt("--help 2>&1 >/dev/full"), 1);
    expect_mention(output, "tinygpt: cannot write: ");
}
END_TEST

START_TEST(config_command_checks_a_file)
{
    make_directory();
    write_file("good.json", good_json, sizeof good_json - 1);
    ck_assert_int_eq(tinygpt("config --check %s/good.json 2>&1", directory),
                     0);
    expect_mention(output, "/good.json: fine\nhead_dim 4\n"
                           "parameters 5040 (20160 bytes)\n");
    const char *bad = json_with(NULL, ", \"n_heads\": 4");
    write_file("bad.json", bad, strlen(bad));
    ck_assert_int_eq(tinygpt("config --check=%s/bad.json 2>&1", directory),
                     1);
    expect_mention(output, "tinygpt config: /tmp/");
    expect_mention(output, "/bad.json: n_heads: given twice\n");
    ck_assert_int_eq(tinygpt("config --check %s 2>&1", directory), 1);
    expect_mention(output, ": Is a directory\n");
    ck_assert_int_eq(tinygpt("config 2>&1"), 2);
    ck_assert_int_eq(tinygpt("config --check 2>&1"), 2);
    ck_assert_int_eq(tinygpt("config --chekc x 2>&1"), 2);
    expect_mention(output, "no option --chekc");
    remove_directory();
}
END_TEST

START_TEST(ledger_command_prints_a_table)
{
    make_directory();
    write_file("config.json", good_json, sizeof good_json - 1);
    ck_assert_int_eq(tinygpt("ledger --model %s --batch 2 --tokens 3"
                             " --past=4 2>&1", directory), 0);
    expect_mention(output, "\nblocks.1.scores ");
    expect_mention(output, "  B H T S  [2, 4, 3, 7]         672  call\n");
    expect_mention(output, "      43669  all\n");
    ck_assert_int_eq(tinygpt("ledger --config %s/config.json 2>&1",
                             directory), 0);
    expect_mention(output, "  B H T S  [1, 4, 1, 1] ");
    remove_directory();
}
END_TEST

START_TEST(ledger_command_prints_json)
{
    make_directory();
    write_file("config.json", good_json, sizeof good_json - 1);
    ck_assert_int_eq(tinygpt("ledger --model %s --batch 2 --tokens 3"
                             " --past 4 --json 2>&1", directory), 0);
    expect_mention(output, "{\"batch\": 2, \"tokens\": 3, \"past\": 4, "
                           "\"rows\": [\n");
    expect_mention(output, "{\"name\": \"blocks.0.scores\", \"dims\": "
        "\"B H T S\", \"shape\": [2, 4, 3, 7], \"bytes\": 672, \"owner\": "
        "\"call\"},\n");
    expect_mention(output, "\"totals\": {\"parameter\": 20160, \"buffer\": "
        "21, \"call\": 19904, \"request\": 3584}}\n");
    remove_directory();
}
END_TEST

START_TEST(ledger_command_refuses_a_full_context)
{
    make_directory();
    write_file("config.json", good_json, sizeof good_json - 1);
    ck_assert_int_eq(tinygpt("ledger --model %s --past 12 2>&1", directory),
                     1);
    expect_mention(output, "tinygpt ledger: past + tokens: expected at most"
                           " context_length 12, got 12 + 1\n");
    ck_assert_int_eq(tinygpt("ledger --model %s --past 11 2>&1", directory),
                     0);
    remove_directory();
}
END_TEST

START_TEST(ledger_command_refuses_bad_usage)
{
    static const char *const lines[][2] = {
        { "", "either --model DIR or --config FILE" },
        { "--model a --config b", "either --model DIR or --config FILE" },
        { "--config", "--config: needs a value" },
        { "--config x --batch 0", "--batch: expected an integer from 1" },
        { "--config x --tokens 1.5", "--tokens: expected an integer" },
        { "--config x --past -1", "--past: expected an integer from 0" },
        { "--config x --json=1", "no option --json=1" },
        { "x", "no option x" },
        { "--model $(printf '%05000d' 0)", "--model: the path is too long" },
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        ck_assert_msg(tinygpt("ledger %s 2>&1", lines[i][0]) == 2,
                      "ledger %s: %s", lines[i][0], output);
        expect_mention(output, lines[i][1]);
    }
    ck_assert_int_eq(tinygpt("ledger --model /nonexistent 2>&1"), 1);
    expect_mention(output, "/nonexistent/config.json: No such file");
}
END_TEST

static const struct test tests[] = {
    TEST(message_longer_than_its_room_is_cut, 0, "error.c"),
    TEST(message_stays_on_one_line, 0, "keep the message on one line"),
    TEST(product_that_wraps_past_its_factors_is_refused, 0,
         "refuse a product that does not fit"),
    TEST(products_and_sums_up_to_the_limit_fit, 0,
         "multiplying and adding sizes"),
    TEST(shape_without_a_size_has_none, 0, "the elements of a shape"),
    TEST(tensor_of_a_bad_shape_is_refused, 0,
         "refuse a shape that has no size"),
    TEST(tensor_is_zero_at_first_and_empty_at_last, 0,
         "making and freeing a tensor"),
    TEST(tensor_without_memory_is_refused, 0, "making and freeing a tensor"),
    TEST(shapes_compare_and_print, 0, "comparing and printing shapes"),

    TEST(one_more_layer_is_one_more_block, 0, "add up one block"),
    TEST(formula_gives_the_published_size, 0, "add up the model"),
    TEST(formula_says_when_it_overflows, 0,
         "adding a product that may not fit"),
    TEST(legal_configs_pass, 0, "config.c"),
    TEST(heads_are_positive_before_they_divide, 0,
         "refuse sizes that cannot be cut into heads"),
    TEST(sizes_not_positive_are_refused_by_name, 0,
         "refuse a size that is not positive"),
    TEST(heads_that_leave_a_remainder_are_refused, 0,
         "refuse heads that do not divide d_model"),
    TEST(dropout_outside_zero_to_one_is_refused, 0,
         "refuse a dropout outside zero to one"),
    TEST(epsilon_not_positive_and_finite_is_refused, 0,
         "refuse an epsilon that is not positive and finite"),
    TEST(qkv_width_beyond_an_int_is_refused, 0,
         "refuse a qkv width that does not fit an int"),
    TEST(layers_beyond_the_names_are_refused, 0,
         "refuse more names than an int counts"),
    TEST(parameters_beyond_all_addresses_are_refused, 0,
         "refuse more parameters than memory has addresses"),
    TEST(head_width_is_the_quotient, 0, "the width of a head"),
    TEST(call_without_rows_or_tokens_is_refused, 0,
         "refuse an empty batch or an empty chunk"),
    TEST(context_is_full_at_its_length_and_not_before, 0,
         "refuse a context that is too long"),
    TEST(batch_whose_rows_overflow_is_refused, 0,
         "refuse a batch whose rows do not fit an int"),

    TEST(config_is_read_field_by_field, 0,
         "the fields of a config as a table"),
    TEST(size_that_is_not_an_int_is_refused, 0,
         "refuse a size that is not an int"),
    TEST(number_beyond_a_double_is_refused, 0,
         "refuse a number that no double holds"),
    TEST(value_of_another_type_is_refused, 0,
         "refuse a value that is not a number"),
    TEST(field_given_twice_is_refused, 0,
         "refuse a field that was given before"),
    TEST(field_that_does_not_exist_is_refused, 0, "refuse an unknown field"),
    TEST(field_that_is_missing_is_named, 0,
         "refuse to go on without a required field"),
    TEST(illegal_config_in_a_file_is_refused_by_field, 0,
         "parsing a config"),
    TEST(zero_byte_is_refused_wherever_it_hides, 0,
         "refuse a text with a zero byte in it"),
    TEST(text_that_is_not_one_object_is_refused, 0,
         "refuse a text that is not one JSON object"),
    TEST(truncated_text_is_refused_at_every_length, 0,
         "refuse a text that is not one JSON object"),
    TEST(config_file_is_read_or_refused_by_path, 0,
         "reading a config from a file"),
    TEST(long_path_leaves_room_for_the_field, 0,
         "put the path before the message"),
    TEST(file_longer_than_any_config_is_refused, 0,
         "reading a text file that is small"),
    TEST(written_config_reads_back_exactly, 0,
         "write the shortest number that reads back"),
    TEST(written_config_is_short_and_legal, 0, "formatting a config"),

    TEST(keys_are_the_cached_and_the_new, 0, "the size behind S"),
    TEST(letters_become_sizes, 0, "reading a shape off its letters"),
    TEST(every_block_is_registered, 0, "register the tensors of every block"),
    TEST(every_tensor_is_owned_by_its_module, 0,
         "write the path and the owner"),
    TEST(paths_and_shapes_are_those_of_the_oracle, 0, "the rows of a block"),
    TEST(registry_has_the_order_of_the_tree, 0, "growing the tree"),
    TEST(tied_tensor_is_counted_once, 0, "count the unique floats"),
    TEST(tensors_share_one_storage_without_gaps, 0,
         "give every unique tensor its part"),
    TEST(head_and_embedding_are_one_storage, 0,
         "tie the head to the token embedding"),
    TEST(model_keeps_its_own_config, 0, "making and freeing the parameters"),
    TEST(parameters_of_a_bad_config_are_refused, 0,
         "making and freeing the parameters"),
    TEST(parameters_survive_every_failed_allocation, 0,
         "making and freeing the parameters"),

    TEST(ledger_lists_a_call_from_ids_to_logits, 0, "the rows of a call"),
    TEST(ledger_and_registry_have_the_same_parameters, 0,
         "adding the parameters"),
    TEST(every_block_has_its_rows, 0, "adding what a call makes"),
    TEST(ledger_sums_are_those_of_the_formulas, 0, "asking a ledger"),
    TEST(owners_have_names, 0, "asking a ledger"),
    TEST(ledger_of_an_impossible_call_is_refused, 0,
         "making and freeing a ledger"),
    TEST(ledger_whose_bytes_overflow_names_the_row, 0,
         "add the rows, or say which does not fit"),
    TEST(ledger_survives_a_failed_allocation, 0, "allocate the rows"),

    TEST(option_is_found_in_both_forms, 0, "finding an option"),
    TEST(number_is_read_whole_or_refused, 0, "reading a number"),
    TEST(seed_is_any_number_of_64_bits, 0, "reading a seed"),
    TEST(ids_are_read_or_refused_by_number, 0, "reading a list of ids"),
    TEST(text_option_needs_a_value, 0, "finding an option"),
    TEST(program_explains_itself, 0, "running one command"),
    TEST(program_says_when_it_cannot_write, 0,
         "complain when the results could not be written"),
    TEST(config_command_checks_a_file, 0, "checking a config file"),
    TEST(ledger_command_prints_a_table, 0, "printing a ledger as a table"),
    TEST(ledger_command_prints_json, 0, "printing a ledger as JSON"),
    TEST(ledger_command_refuses_a_full_context, 0,
         "making and printing the ledger"),
    TEST(ledger_command_refuses_bad_usage, 0,
         "read one option of the ledger command"),
};

SUITE("chapter 1, the contract", tests);
