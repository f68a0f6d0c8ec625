/* Chapter 21b: the engine. One step for both families against the steps of
   chapters 8 and 13, weights in panels against the rows that they came from,
   and files of panels that hold what they say or are refused. */
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "stack.h"
#include "engine.h"
#include "file_map.h"
#include "llama_experts.h"
#include "safetensors.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/llamas.h"

static struct error error;

/* ----------------------------------------------------------------- models */

/* A model of one of the families, and its two handles. */
struct subject {
    const char *name;
    struct tiny_gpt *gpt;      /* or */
    struct llama *llama;
    struct stack stack;
    struct causal_lm lm, plain;
};

enum { SUBJECTS = 6 };

/* Sizes on both sides of a panel's 32 outputs, no two alike. */
static struct subject subject_gpt(const char *name, int wide, int tanh_gelu)
{
    const struct gpt_config config = {
        .vocab_size = wide ? 75 : 13, .context_length = wide ? 80 : 24,
        .d_model = wide ? 36 : 10, .n_layers = 2, .n_heads = 2,
        .d_ff = wide ? 97 : 7, .layer_norm_eps = 1e-5,
        .tanh_gelu = tanh_gelu
    };
    struct subject s = {.name = name, .gpt = noisy_model(&config, 31)};
    s.stack = tiny_gpt_stack(s.gpt);
    s.lm = tiny_gpt_causal_lm(s.gpt);
    s.plain = tiny_gpt_step_lm(s.gpt);
    return s;
}

static struct subject subject_llama(const char *name,
                                    struct llama_config config)
{
    struct subject s = {.name = name, .llama = noisy_llama(&config, 32)};
    s.stack = llama_stack(s.llama);
    s.lm = llama_causal_lm(s.llama);
    s.plain = llama_step_lm(s.llama);
    return s;
}

static struct subject subject_new(int which)
{
    struct llama_config config = small_llama_config();
    switch (which) {
    case 0: return subject_gpt("a tiny GPT", 0, 0);
    case 1: return subject_gpt("a tiny GPT with tanh", 0, 1);
    case 2: return subject_gpt("a wider GPT", 1, 0);
    case 3: return subject_llama("a llama", config);
    case 4: return subject_llama("experts", small_moe_config());
    default:
        config.tie_word_embeddings = true;
        config.n_kv_heads = 1;
        config.vocab_size = 67;
        return subject_llama("a tied llama", config);
    }
}

static void subject_free(struct subject *s)
{
    tiny_gpt_free(&s->gpt);
    llama_free(&s->llama);
}

static struct engine *engine_of(const struct subject *s,
                                enum matrix_type type,
                                const struct kernels *kernels)
{
    struct engine *engine = NULL;
    expect_ok(engine_new(&engine, &s->stack, type, kernels, &error),
              &error);
    return engine;
}

/* ------------------------------------------------------------------- runs */

enum { B = 3, T = 19, V_MAX = 80 };

/* B rows that stand at different lengths, and T new tokens for each. */
struct play {
    int vocab_size;
    int32_t ids[B][T], positions[B][T], lengths[B];
    struct past_key_values storage;
    float logits[B][T][V_MAX];
};

static const int before[B] = {0, 3, 1};

static struct step step_of(struct play *play, const int32_t *ids,
                           const int32_t *positions, int tokens, float *out)
{
    return (struct step){
        .ids = ids, .positions = positions, .batch = B, .tokens = tokens,
        .storage = &play->storage, .lengths = play->lengths, .logits = out
    };
}

static void take_step(const struct causal_lm *lm, const struct step *step)
{
    const size_t floats = lm->scratch_size(lm->model, step->batch,
        step->tokens, past_key_values_length(step->storage));
    float *scratch = malloc(floats * sizeof *scratch);
    ck_assert_ptr_nonnull(scratch);
    memset(scratch, 0x7f, floats * sizeof *scratch);    /* 3e38 */
    expect_ok(causal_lm_step(lm, step, scratch, floats, &error), &error);
    free(scratch);
}

/* Slots hold poison until they are written, but for the rows' first ones. */
static void storage_new(struct play *play, const struct causal_lm *lm,
                        float poison)
{
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    uint64_t state = noise_start(40);
    play->storage = (struct past_key_values){0};
    expect_ok(past_key_values_new(&play->storage, &shape, B, T + 4, &error),
              &error);
    const size_t row = (size_t)(T + 4) * (size_t)lm->cache.head_dim;
    for (int l = 0; l < play->storage.n_layers; l++)
        for (int part = 0; part < 2; part++) {
            struct tensor *slots = part == 0 ? &play->storage.layers[l].key
                                             : &play->storage.layers[l].value;
            for (size_t k = 0; k < tensor_size(slots); k++)
                slots->data[k] = poison;
            for (int b = 0; b < B; b++)
                for (int h = 0; h < lm->cache.n_kv_heads; h++)
                    noise_floats(&state, (size_t)before[b]
                                 * (size_t)lm->cache.head_dim,
                                 slots->data
                                 + (size_t)(b * lm->cache.n_kv_heads + h)
                                   * row);
        }
}

/* All T tokens of every row, `chunk` in a call. */
static struct play *play_new(const struct causal_lm *lm, int chunk,
                             float poison)
{
    struct play *play = calloc(1, sizeof *play);
    uint64_t state = noise_start(41);
    play->vocab_size = lm->vocab_size;
    noise_ids(&state, lm->vocab_size, B, T, play->ids[0]);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            play->positions[b][t] = before[b] + t;
    storage_new(play, lm, poison);
    memcpy(play->lengths, before, sizeof before);
    for (int t = 0; t < T; t += chunk) {
        const int count = T - t < chunk ? T - t : chunk;
        int32_t ids[B * T], positions[B * T];
        float out[B * T * V_MAX];
        for (int b = 0; b < B; b++)
            for (int i = 0; i < count; i++) {
                ids[b * count + i] = play->ids[b][t + i];
                positions[b * count + i] = play->positions[b][t + i];
            }
        const struct step step = step_of(play, ids, positions, count, out);
        take_step(lm, &step);
        for (int b = 0; b < B; b++)
            for (int i = 0; i < count; i++)
                memcpy(play->logits[b][t + i],
                       out + (size_t)(b * count + i)
                             * (size_t)lm->vocab_size,
                       (size_t)lm->vocab_size * sizeof (float));
        for (int b = 0; b < B; b++)
            play->lengths[b] += count;
    }
    return play;
}

static void play_free(struct play *play)
{
    past_key_values_free(&play->storage);
    free(play);
}

/* Logits within the tolerance. A logit is a sum whose terms are of the size
   of the row's largest one, whatever is left of them, and the two sums have
   other orders. */
static void expect_near(const char *what, const struct play *actual,
                        const struct play *expected, double tolerance)
{
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            double largest = 0;
            for (int v = 0; v < actual->vocab_size; v++)
                largest = fmax(largest, fabs(expected->logits[b][t][v]));
            for (int v = 0; v < actual->vocab_size; v++) {
                const double a = actual->logits[b][t][v];
                const double e = expected->logits[b][t][v];
                ck_assert_msg(fabs(a - e) <= tolerance * (1 + largest),
                              "%s: row %d, token %d, logit %d is %.9g,"
                              " expected %.9g", what, b, t, v, a, e);
            }
        }
}

/* Logits and written slots to the bit. */
static void expect_same(const char *what, const struct play *actual,
                        const struct play *expected)
{
    expect_same_bits(what, actual->logits, expected->logits,
                     sizeof actual->logits);
    for (int l = 0; l < actual->storage.n_layers; l++)
        expect_same_bits(what, actual->storage.layers[l].key.data,
                         expected->storage.layers[l].key.data,
                         tensor_size(&actual->storage.layers[l].key)
                         * sizeof (float));
}

/* The first layer's alone: later ones depend on attention. */
START_TEST(each_heads_new_tokens_stand_behind_its_old_ones)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct play *new = play_new(&s.lm, 5, 0);
        struct play *old = play_new(&s.plain, 5, 0);
        const struct layer_kv *a = &new->storage.layers[0];
        const struct layer_kv *b = &old->storage.layers[0];
        expect_close(s.name, a->key.data, b->key.data, tensor_size(&a->key),
                     4, a->key.shape, TOLERANCE);
        expect_close(s.name, a->value.data, b->value.data,
                     tensor_size(&a->value), 4, a->value.shape, TOLERANCE);
        play_free(new);
        play_free(old);
        subject_free(&s);
    }
}
END_TEST

static void expect_the_familys_logits(int which)
{
    struct subject s = subject_new(which);
    struct play *new = play_new(&s.lm, T, NAN);
    struct play *old = play_new(&s.plain, T, NAN);
    expect_near(s.name, new, old, TOLERANCE);
    play_free(new);
    play_free(old);
    subject_free(&s);
}

START_TEST(a_row_of_a_batch_reads_the_keys_of_its_own_heads)
{
    expect_the_familys_logits(3);
    expect_the_familys_logits(5);
}
END_TEST

START_TEST(the_experts_of_a_stack_give_the_logits_of_a_llamas_own)
{
    expect_the_familys_logits(4);
}
END_TEST

/* One float of relative difference 1e-5 in a logit of size 20 is the
   tolerance of the goldens; the two steps add in different orders. */
START_TEST(the_step_of_a_stack_gives_the_logits_of_its_familys_own_step)
{
    for (int which = 0; which < SUBJECTS; which++)
        expect_the_familys_logits(which);
}
END_TEST

START_TEST(a_chunk_of_any_size_gives_the_same_bits)
{
    static const int chunks[] = {1, 2, 5, 18};
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct play *whole = play_new(&s.lm, T, 1e30f);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            struct play *parts = play_new(&s.lm, chunks[k], 1e30f);
            expect_same(s.name, parts, whole);
            play_free(parts);
        }
        play_free(whole);
        subject_free(&s);
    }
}
END_TEST

/* Logits alone: NaN in a slot would not compare equal, and is not read. */
START_TEST(what_lies_behind_a_row_is_not_read)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct play *zero = play_new(&s.lm, 4, 0);
        struct play *poison = play_new(&s.lm, 4, NAN);
        expect_same_bits(s.name, poison->logits, zero->logits,
                         sizeof zero->logits);
        play_free(zero);
        play_free(poison);
        subject_free(&s);
    }
}
END_TEST

START_TEST(the_last_logits_are_those_of_each_rows_last_token)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct play *all = play_new(&s.lm, T, 0);
        memcpy(all->lengths, before, sizeof before);
        float last[B][V_MAX] = {{0}};
        float packed[B * V_MAX];
        struct step step = step_of(all, all->ids[0], all->positions[0], T,
                                   packed);
        step.last_only = true;
        take_step(&s.lm, &step);
        for (int b = 0; b < B; b++) {
            memcpy(last[b], packed + b * s.lm.vocab_size,
                   (size_t)s.lm.vocab_size * sizeof (float));
            expect_same_bits(s.name, last[b], all->logits[b][T - 1],
                             sizeof last[b]);
        }
        play_free(all);
        subject_free(&s);
    }
}
END_TEST

START_TEST(the_bits_do_not_depend_on_the_number_of_threads)
{
    static const int threads[] = {2, 5};
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        omp_set_num_threads(1);
        struct play *one = play_new(&s.lm, 6, 0);
        for (int k = 0; k < 2; k++) {
            omp_set_num_threads(threads[k]);
            struct play *more = play_new(&s.lm, 6, 0);
            expect_same(s.name, more, one);
            play_free(more);
        }
        play_free(one);
        subject_free(&s);
    }
}
END_TEST

/* More rows than the kernel is given in one call. */
START_TEST(a_row_of_a_large_batch_is_the_row_alone)
{
    enum { ROWS = 35 };
    struct subject s = subject_new(3);
    const struct gpt_config shape = cache_shape_config(&s.lm.cache);
    struct past_key_values many = {0}, one = {0};
    expect_ok(past_key_values_new(&many, &shape, ROWS, 2, &error), &error);
    expect_ok(past_key_values_new(&one, &shape, 1, 2, &error), &error);
    int32_t ids[ROWS * 2], positions[ROWS * 2];
    const int32_t lengths[ROWS] = {0};
    float *batch = calloc(ROWS * 2 * V_MAX, sizeof *batch);
    float alone[2 * V_MAX] = {0};
    for (int k = 0; k < ROWS * 2; k++) {
        ids[k] = k * 7 % s.lm.vocab_size;
        positions[k] = k % 2;
    }
    const struct step step = {ids, positions, ROWS, 2, &many, lengths, false,
                              batch};
    take_step(&s.lm, &step);
    const size_t row = 2 * (size_t)s.lm.vocab_size;
    for (int b = 0; b < ROWS; b++) {
        const struct step single = {ids + 2 * b, positions, 1, 2, &one,
                                    lengths, false, alone};
        take_step(&s.lm, &single);
        expect_same_bits("the row", batch + (size_t)b * row, alone,
                         row * sizeof (float));
    }
    past_key_values_free(&many);
    past_key_values_free(&one);
    free(batch);
    subject_free(&s);
}
END_TEST

START_TEST(the_routing_of_a_step_is_that_of_the_plain_step)
{
    struct subject s = subject_new(4);
    struct play *play = play_new(&s.lm, T, 0);
    memcpy(play->lengths, before, sizeof before);
    float *logits = malloc(B * T * V_MAX * sizeof *logits);
    const struct step step = step_of(play, play->ids[0], play->positions[0],
                                     T, logits);
    const int slots = T + 4;
    const size_t a = s.lm.scratch_size(s.llama, B, T, slots);
    const size_t b = s.plain.scratch_size(s.llama, B, T, slots);
    float *mine = calloc(a, sizeof *mine), *plain = calloc(b, sizeof *plain);
    expect_ok(causal_lm_step(&s.lm, &step, mine, a, &error), &error);
    int32_t chosen[8][B * T * 2];
    for (int l = 0; l < s.stack.n_layers; l++)
        memcpy(chosen[l], llama_routing(s.llama, &step, mine, l).experts,
               sizeof chosen[l]);
    /* the plain step's, by its first layer's probabilities alone */
    const struct moe_routing first = stack_routing(&s.stack, &step, mine,
                                                     0);
    if (kernels_best() != &kernels_plain)
        expect_same_bits("views", chosen[0], first.experts,
                         sizeof chosen[0]);
    for (int row = 0; row < B * T; row++) {
        const struct moe_routing routing = llama_routing(s.llama, &step, mine,
                                                         0);
        float sum = 0;
        for (int k = 0; k < 2; k++)
            sum += routing.gates[row * 2 + k];
        ck_assert_msg(fabsf(sum - 1) < 1e-5f, "row %d: gates add up to %g",
                      row, (double)sum);
    }
    free(mine);
    free(plain);
    free(logits);
    play_free(play);
    subject_free(&s);
}
END_TEST

START_TEST(a_scratch_that_does_not_fit_is_refused)
{
    struct subject s = subject_new(4);
    struct stack huge = s.stack;
    huge.d_ff = huge.d_model = INT32_MAX;
    ck_assert_uint_eq(stack_scratch_size(&huge, INT32_MAX, INT32_MAX),
                      SIZE_MAX);
    ck_assert_uint_lt(stack_scratch_size(&s.stack, 1, 1), 10000);
    subject_free(&s);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct engine *engine = engine_of(&s, MATRIX_F32, NULL);
        const struct causal_lm handles[] = {s.lm, engine_causal_lm(engine)};
        for (int k = 0; k < 2; k++) {
            struct play *play = play_new(&handles[k], T, 0);
            memcpy(play->lengths, before, sizeof before);
            float *logits = malloc(B * T * V_MAX * sizeof *logits);
            const struct step step = step_of(play, play->ids[0],
                                             play->positions[0], T, logits);
            const size_t floats = handles[k].scratch_size(handles[k].model,
                                                          B, T, T + 4);
            float *scratch = malloc(floats * sizeof *scratch);
            const long calls = allocator_calls();
            handles[k].run(handles[k].model, &step, scratch);
            ck_assert_int_eq(allocator_calls(), calls);
            free(scratch);
            free(logits);
            play_free(play);
        }
        engine_free(&engine);
        subject_free(&s);
    }
}
END_TEST

/* ---------------------------------------------------------------- engines */

START_TEST(panels_give_the_bits_of_the_rows_they_came_from)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        const struct kernels *tables[KERNELS_MAX];
        const int count = kernels_available(tables);
        for (int k = 0; k < count; k++) {
            struct engine *engine = engine_of(&s, MATRIX_F32, tables[k]);
            const struct causal_lm lm = engine_causal_lm(engine);
            ck_assert_int_eq(lm.vocab_size, s.lm.vocab_size);
            ck_assert_int_eq(lm.context_length, s.lm.context_length);
            ck_assert_int_eq(lm.cache.n_kv_heads, s.lm.cache.n_kv_heads);
            struct play *packed = play_new(&lm, 7, 0);
            struct play *rows = play_new(&s.lm, 7, 0);
            if (tables[k] == kernels_best() && tables[k] != &kernels_plain)
                expect_same(s.name, packed, rows);
            else
                expect_near(s.name, packed, rows, TOLERANCE);
            play_free(packed);
            play_free(rows);
            engine_free(&engine);
        }
        subject_free(&s);
    }
}
END_TEST

START_TEST(a_tied_embedding_is_the_packed_head)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct engine *engine = engine_of(&s, MATRIX_F32, NULL);
        const struct stack *made = engine_stack(engine);
        const bool tied = s.stack.token_embedding.data == s.stack.head.data;
        ck_assert_int_eq(made->token_embedding.data == made->head.data, tied);
        ck_assert_ptr_ne(made->token_embedding.data,
                         s.stack.token_embedding.data);
        engine_free(&engine);
        subject_free(&s);
    }
}
END_TEST

START_TEST(an_engine_needs_the_model_no_longer)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct engine *engine = engine_of(&s, MATRIX_F32, NULL);
        const struct causal_lm lm = engine_causal_lm(engine);
        struct play *first = play_new(&lm, T, 0);
        subject_free(&s);
        struct play *second = play_new(&lm, T, 0);
        expect_same("after the model", second, first);
        play_free(first);
        play_free(second);
        engine_free(&engine);
        engine_free(&engine);
    }
}
END_TEST

/* Replaces a model's matrix by what its panels of a type mean. */
static void round_matrix(struct matrix matrix, enum matrix_type type)
{
    size_t data, scales;
    if (matrix.out == 0)
        return;
    ck_assert(matrix_packed_sizes(matrix.out, matrix.in, type, &data,
                                  &scales));
    void *panels = malloc(data);
    float *factors = malloc(scales + 1), *rows = (float *)matrix.data;
    const struct matrix packed = matrix_pack(rows, NULL, matrix.out,
                                             matrix.in, type, panels,
                                             factors);
    for (int o = 0; o < matrix.out; o++)
        for (int i = 0; i < matrix.in; i++)
            rows[(size_t)o * (size_t)matrix.in + (size_t)i]
                = matrix_weight(&packed, o, i);
    free(panels);
    free(factors);
}

/* A GPT's query, key and value rows are rounded apart, as they are packed. */
static void round_model(const struct stack *d, enum matrix_type type)
{
    for (int l = 0; l < d->n_layers; l++) {
        const struct stack_layer layer = d->layer(d->weights, l);
        round_matrix(layer.query, type);
        round_matrix(layer.key, type);
        round_matrix(layer.value, type);
        round_matrix(layer.output, type);
        round_matrix(layer.router, type);
        for (int e = 0; e < (d->n_experts > 0 ? d->n_experts : 1); e++) {
            const struct stack_feed_forward feed = d->n_experts > 0
                ? d->expert(d->weights, l, e) : layer.feed_forward;
            round_matrix(feed.gate, type);
            round_matrix(feed.up, type);
            round_matrix(feed.down, type);
        }
    }
    round_matrix(d->head, type);
    if (d->token_embedding.data != d->head.data)
        round_matrix(d->token_embedding, type);
}

START_TEST(sixteen_and_eight_bits_compute_with_the_weights_they_mean)
{
    for (int type = MATRIX_BF16; type <= MATRIX_INT8; type++)
        for (int which = 0; which < SUBJECTS; which++) {
            struct subject s = subject_new(which);
            struct engine *engine = engine_of(&s, (enum matrix_type)type,
                                              NULL);
            const struct causal_lm lm = engine_causal_lm(engine);
            round_model(&s.stack, (enum matrix_type)type);
            struct play *packed = play_new(&lm, 7, 0);
            struct play *rounded = play_new(&s.plain, 7, 0);
            expect_near(s.name, packed, rounded, TOLERANCE);
            play_free(packed);
            play_free(rounded);
            engine_free(&engine);
            subject_free(&s);
        }
}
END_TEST

START_TEST(chunks_and_threads_give_the_same_bits_in_every_type)
{
    for (int type = MATRIX_F32; type <= MATRIX_INT8; type++)
        for (int which = 2; which < 5; which++) {
            struct subject s = subject_new(which);
            struct engine *engine = engine_of(&s, (enum matrix_type)type,
                                              NULL);
            const struct causal_lm lm = engine_causal_lm(engine);
            omp_set_num_threads(1);
            struct play *whole = play_new(&lm, T, 0);
            omp_set_num_threads(3);
            struct play *single = play_new(&lm, 1, 0);
            expect_same(s.name, single, whole);
            play_free(whole);
            play_free(single);
            engine_free(&engine);
            subject_free(&s);
        }
}
END_TEST

/* By hand: C 36 takes 2 panels of outputs, F 97 takes 4, V 75 takes 3. */
START_TEST(an_engine_says_how_many_bytes_its_weights_have)
{
    struct subject s = subject_new(2);
    struct engine *engine = engine_of(&s, MATRIX_F32, NULL);
    const size_t matrices = 4 * (2 * 64 * 36     /* q k v o: 64 x 36 each */
                                 * 4 + 2 * (128 * 36 + 64 * 97)
                                 + 96 * 36);
    /* vectors are rounded up to 16 floats: 48 for 36, 112 for 97 */
    const size_t vectors = 4 * (2 * (4 * 48 + 4 * 48 + 112 + 48) + 2 * 48
                                + 80 * 36);
    ck_assert_uint_eq(engine_bytes(engine), matrices + vectors);
    ck_assert_int_eq(engine_type(engine), MATRIX_F32);
    engine_free(&engine);
    subject_free(&s);
}
END_TEST

START_TEST(eight_bits_refuse_a_weight_that_is_not_finite)
{
    struct subject s = subject_new(3);
    struct engine *engine = NULL;
    struct matrix up = s.stack.layer(s.stack.weights, 1).feed_forward.up;
    ((float *)up.data)[5] = INFINITY;
    ck_assert_int_eq(engine_new(&engine, &s.stack, MATRIX_INT8, NULL,
                                &error), STATUS_INVALID);
    expect_named(&error, "layers.1.up");
    ck_assert_ptr_null(engine);
    engine = engine_of(&s, MATRIX_BF16, NULL);
    engine_free(&engine);
    subject_free(&s);
}
END_TEST

START_TEST(making_an_engine_survives_each_failed_allocation)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct engine *engine = NULL;
        for (long n = 1; ; n++) {
            const long live = allocator_live();
            allocator_fail_at(n);
            const enum status status = engine_new(&engine, &s.stack,
                                                  MATRIX_INT8, NULL, &error);
            const long left = allocator_live() - live;
            if (!allocator_stop())
                break;
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
            ck_assert_ptr_null(engine);
            ck_assert_int_eq(left, 0);
        }
        engine_free(&engine);
        subject_free(&s);
    }
}
END_TEST

/* ------------------------------------------------------------------ files */

static const char *in_scratch(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", harness_scratch(), name);
    return path;
}

static unsigned char *contents(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    unsigned char *bytes = malloc(1 << 20);
    *length = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void rewrite(const char *path, const unsigned char *bytes,
                    size_t length)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

START_TEST(a_saved_engine_opens_with_the_same_bits)
{
    for (int type = MATRIX_F32; type <= MATRIX_INT8; type++)
        for (int which = 0; which < SUBJECTS; which++) {
            struct subject s = subject_new(which);
            struct engine *made = engine_of(&s, (enum matrix_type)type, NULL);
            const char *path = in_scratch("engine.panels");
            struct engine *opened = NULL;
            expect_ok(engine_save(made, path, &error), &error);
            expect_ok(engine_open(&opened, path, NULL, &error), &error);
            const struct causal_lm a = engine_causal_lm(made);
            const struct causal_lm b = engine_causal_lm(opened);
            struct play *before_save = play_new(&a, 4, 0);
            struct play *after_open = play_new(&b, 4, 0);
            expect_same(s.name, after_open, before_save);
            ck_assert_uint_eq(engine_bytes(opened), engine_bytes(made));
            ck_assert_int_eq(engine_type(opened), type);
            play_free(before_save);
            play_free(after_open);
            engine_free(&made);
            engine_free(&opened);
            subject_free(&s);
        }
}
END_TEST

START_TEST(an_opened_engine_saves_the_same_bytes)
{
    for (int which = 0; which < SUBJECTS; which++) {
        struct subject s = subject_new(which);
        struct engine *made = engine_of(&s, MATRIX_BF16, NULL);
        struct engine *opened = NULL;
        size_t first, second;
        expect_ok(engine_save(made, in_scratch("a.panels"), &error), &error);
        expect_ok(engine_open(&opened, in_scratch("a.panels"), NULL, &error),
                  &error);
        expect_ok(engine_save(opened, in_scratch("b.panels"), &error),
                  &error);
        unsigned char *a = contents(in_scratch("a.panels"), &first);
        unsigned char *b = contents(in_scratch("b.panels"), &second);
        ck_assert_uint_eq(first, second);
        expect_same_bits(s.name, a, b, first);
        free(a);
        free(b);
        engine_free(&made);
        engine_free(&opened);
        subject_free(&s);
    }
}
END_TEST

/* So that a mapped panel begins where a cache line does. */
START_TEST(the_panels_of_a_file_begin_at_lines)
{
    for (int run = 0; run < 3 * SUBJECTS; run++) {
        struct subject s = subject_new(run / 3);
        struct engine *made = engine_of(&s, (enum matrix_type)(run % 3), NULL);
        expect_ok(engine_save(made, in_scratch("lines.panels"), &error),
                  &error);
        struct safetensors *file = NULL;
        struct file_map map;
        expect_ok(file_map_open(&map, in_scratch("lines.panels"), &error),
                  &error);
        expect_ok(safetensors_parse(&file, "lines.panels", map.bytes,
                                    map.length, &error), &error);
        for (size_t k = 0; k < safetensors_count(file); k++) {
            const struct safetensors_entry *entry = safetensors_at(file, k);
            ck_assert_msg((uintptr_t)entry->data % 64 == 0,
                          "%s: begins %d bytes behind a line", entry->name,
                          (int)((uintptr_t)entry->data % 64));
        }
        safetensors_close(&file);
        file_map_close(&map);
        engine_free(&made);
        subject_free(&s);
    }
}
END_TEST

static void expect_refused(const char *path, const char *name)
{
    struct engine *engine = NULL;
    const long live = allocator_live();
    const enum status status = engine_open(&engine, path, NULL, &error);
    const long left = allocator_live() - live;
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_int_eq(left, 0);
    ck_assert_ptr_null(engine);
    expect_named(&error, name);
}

/* Swaps one text for another of the same length in the header. */
static void swap(unsigned char *bytes, size_t length, const char *from,
                 const char *to)
{
    const size_t size = strlen(from);
    ck_assert_uint_eq(size, strlen(to));
    for (size_t k = 0; k + size <= length; k++)
        if (memcmp(bytes + k, from, size) == 0) {
            memcpy(bytes + k, to, size);
            return;
        }
    ck_abort_msg("no %s in the file", from);
}

/* The same tensors, with another text in the metadata. */
static void lie(const char *from, const char *to, const char *old,
                const char *new)
{
    struct safetensors *file = NULL;
    struct safetensors_entry entries[64];
    char text[1024];
    expect_ok(safetensors_open(&file, in_scratch(from), &error), &error);
    const size_t count = safetensors_count(file);
    for (size_t k = 0; k < count; k++)
        entries[k] = *safetensors_at(file, k);
    const char *sizes = safetensors_metadata(file, "stack");
    const char *at = strstr(sizes, old);
    ck_assert_ptr_nonnull(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sizes), sizes, new,
             at + strlen(old));
    const struct safetensors_pair metadata[] = {{"format", "panels 1"},
                                                {"stack", text}};
    expect_ok(safetensors_write(in_scratch(to), entries, count, metadata, 2,
                                &error), &error);
    safetensors_close(&file);
}

START_TEST(a_file_whose_sizes_lie_is_refused_by_name)
{
    static const struct { const char *from, *to, *name; } lies[] = {
        {"\"vocab_size\":75", "\"vocab_size\":99", "head"},
        {"\"vocab_size\":75", "\"vocab_size\":-5", "vocab_size"},
        {"\"vocab_size\":75", "\"vocab_size\":75.5", "vocab_size"},
        {"\"vocab_size\":75", "\"vocab_size\":1e300", "vocab_size"},
        {"\"vocab_size\":75", "\"vocab_size\":\"75\"", "vocab_size"},
        {"\"vocab_size\":75,", "", "vocab_size"},
        {"\"d_model\":36", "\"d_model\":37", "query"},
        {"\"n_layers\":2", "\"n_layers\":3", "layers.2"},
        {"\"n_layers\":2", "\"n_layers\":0", "n_layers"},
        {"\"n_layers\":2", "\"n_layers\":1000000", "n_layers"},
        {"\"d_ff\":97", "\"d_ff\":98", "down"},
        {"\"n_heads\":2", "\"n_heads\":4", "query"},
        {"\"n_heads\":2", "\"n_heads\":2000000000", "n_heads"},
        {"\"n_kv_heads\":2", "\"n_kv_heads\":1", "key"},
        {"\"n_kv_heads\":2", "\"n_kv_heads\":3", "n_kv_heads"},
        {"\"head_dim\":18", "\"head_dim\":16", "query"},
        {"\"type\":0", "\"type\":1", "query"},
        {"\"type\":0", "\"type\":7", "type"},
        {"\"bend\":2", "\"bend\":9", "bend"},
        {"\"tied\":1", "\"tied\":0", "token_embedding"},
        {"\"gated\":0", "\"gated\":1", "gate"},
        {"\"positions\":1", "\"positions\":0", "rope_theta"},
        {"\"rope_theta\":0", "\"rope_theta\":1e4", "rope_theta"},
        {"\"norm_eps\":1", "\"norm_eps\":-1", "norm_eps"},
        {"\"n_experts\":0", "\"n_experts\":4", "experts_per_token"},
        {"{", "", "JSON"}
    };
    struct subject s = subject_new(2);
    struct engine *made = engine_of(&s, MATRIX_F32, NULL);
    expect_ok(engine_save(made, in_scratch("true.panels"), &error), &error);
    for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
        lie("true.panels", "lie.panels", lies[k].from, lies[k].to);
        expect_refused(in_scratch("lie.panels"), lies[k].name);
        expect_named(&error, "lie.panels");
    }
    engine_free(&made);
    subject_free(&s);
}
END_TEST

START_TEST(a_file_without_a_part_is_refused_by_its_name)
{
    static const char *const names[] = {
        "\"layers.1.query\"", "\"layers.0.up.bias\"", "\"head\"",
        "\"final_norm.bias\"", "\"position_embedding\"",
        "\"layers.1.down.scales\""
    };
    struct subject s = subject_new(2);
    struct engine *made = engine_of(&s, MATRIX_INT8, NULL);
    size_t length;
    expect_ok(engine_save(made, in_scratch("whole.panels"), &error), &error);
    unsigned char *good = contents(in_scratch("whole.panels"), &length);
    unsigned char *bad = malloc(length);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char other[64], plain[64];
        snprintf(other, sizeof other, "%s", names[k]);
        other[1] = 'z';
        snprintf(plain, sizeof plain, "%s", names[k] + 1);
        plain[strlen(plain) - 1] = '\0';
        memcpy(bad, good, length);
        swap(bad, length, names[k], other);
        rewrite(in_scratch("part.panels"), bad, length);
        expect_refused(in_scratch("part.panels"), plain);
    }
    free(good);
    free(bad);
    engine_free(&made);
    subject_free(&s);
}
END_TEST

/* As many bytes, in another order of sizes. */
START_TEST(a_part_of_another_shape_is_refused)
{
    struct subject s = subject_new(2);
    struct engine *made = engine_of(&s, MATRIX_F32, NULL);
    struct safetensors *file = NULL;
    struct safetensors_entry entries[64];
    expect_ok(engine_save(made, in_scratch("shape.panels"), &error), &error);
    expect_ok(safetensors_open(&file, in_scratch("shape.panels"), &error),
              &error);
    const size_t count = safetensors_count(file);
    for (size_t k = 0; k < count; k++) {
        entries[k] = *safetensors_at(file, k);
        if (strcmp(entries[k].name, "layers.1.down") == 0) {
            const int64_t panels = entries[k].shape[0];
            entries[k].shape[0] = entries[k].shape[1];
            entries[k].shape[1] = panels;
        }
    }
    const struct safetensors_pair metadata[] = {
        {"format", "panels 1"},
        {"stack", safetensors_metadata(file, "stack")}
    };
    expect_ok(safetensors_write(in_scratch("turned.panels"), entries, count,
                                metadata, 2, &error), &error);
    expect_refused(in_scratch("turned.panels"), "layers.1.down");
    safetensors_close(&file);
    engine_free(&made);
    subject_free(&s);
}
END_TEST

START_TEST(a_file_cut_anywhere_is_refused)
{
    struct subject s = subject_new(0);
    struct engine *made = engine_of(&s, MATRIX_BF16, NULL);
    size_t length;
    expect_ok(engine_save(made, in_scratch("long.panels"), &error), &error);
    unsigned char *good = contents(in_scratch("long.panels"), &length);
    for (size_t cut = 0; cut < length; cut += cut < 4096 ? 61 : 1013) {
        rewrite(in_scratch("cut.panels"), good, cut);
        expect_refused(in_scratch("cut.panels"), "cut.panels");
    }
    expect_refused(in_scratch("none.panels"), "none.panels");
    expect_refused(harness_scratch(), harness_scratch());
    free(good);
    engine_free(&made);
    subject_free(&s);
}
END_TEST

START_TEST(saving_and_opening_survive_each_failed_allocation)
{
    struct subject s = subject_new(4);
    struct engine *made = engine_of(&s, MATRIX_INT8, NULL);
    struct engine *opened = NULL;
    const char *path = in_scratch("memory.panels");
    for (int opening = 0; opening < 2; opening++)
        for (long n = 1; ; n++) {
            const long live = allocator_live();
            allocator_fail_at(n);
            const enum status status = opening
                ? engine_open(&opened, path, NULL, &error)
                : engine_save(made, path, &error);
            const long left = allocator_live() - live;
            if (!allocator_stop())
                break;
            /* the JSON library cannot tell its lack of memory from bad
               syntax */
            ck_assert(status == STATUS_NO_MEMORY
                      || (opening && status == STATUS_FORMAT));
            ck_assert_int_eq(left, 0);
            ck_assert_ptr_null(opened);
        }
    engine_free(&opened);
    engine_free(&made);
    subject_free(&s);
}
END_TEST

/* ------------------------------------------------------------------ table */

static const struct test tests[] = {
    TEST(each_heads_new_tokens_stand_behind_its_old_ones, 2,
         "copy the row's new tokens of the head"),
    TEST(a_row_of_a_batch_reads_the_keys_of_its_own_heads, 2,
         "let first be where the row's keys begin"),
    TEST(the_experts_of_a_stack_give_the_logits_of_a_llamas_own, 2,
         "feed the rows of expert e forward, in place"),
    TEST(the_step_of_a_stack_gives_the_logits_of_its_familys_own_step, 2,
         "run the layers in order"),
    TEST(a_chunk_of_any_size_gives_the_same_bits, 2,
         "copy the row's new tokens of the head"),
    TEST(what_lies_behind_a_row_is_not_read, 2,
         "describe the attention of one row"),
    TEST(the_last_logits_are_those_of_each_rows_last_token, 2,
         "let the last token of each row be its stream"),
    TEST(the_bits_do_not_depend_on_the_number_of_threads, 2,
         "attend to the slots of each row"),
    TEST(a_row_of_a_large_batch_is_the_row_alone, 2,
         "describe the rows of one call"),
    TEST(the_routing_of_a_step_is_that_of_the_plain_step, 2,
         "view the routing of a layer in the scratch"),
    TEST(a_scratch_that_does_not_fit_is_refused, 2,
         "add up the stack's scratch"),
    TEST(a_step_allocates_nothing, 2, "run the layers in order"),
    TEST(panels_give_the_bits_of_the_rows_they_came_from, 2,
         "move the parts into the room"),
    TEST(a_tied_embedding_is_the_packed_head, 2,
         "visit the embedding, unless it is the head"),
    TEST(an_engine_needs_the_model_no_longer, 2, "move a vector"),
    TEST(sixteen_and_eight_bits_compute_with_the_weights_they_mean, 2,
         "move the parts into the room"),
    TEST(chunks_and_threads_give_the_same_bits_in_every_type, 2,
         "move the parts into the room"),
    TEST(an_engine_says_how_many_bytes_its_weights_have, 2,
         "count the bytes of the parts"),
    TEST(eight_bits_refuse_a_weight_that_is_not_finite, 2,
         "refuse a weight that no scale brings to a byte"),
    TEST(making_an_engine_survives_each_failed_allocation, 2,
         "make and free an engine"),
    TEST(a_saved_engine_opens_with_the_same_bits, 2,
         "find a matrix and a vector"),
    TEST(an_opened_engine_saves_the_same_bytes, 2,
         "collect a matrix and a vector"),
    TEST(the_panels_of_a_file_begin_at_lines, 2,
         "collect a matrix and a vector"),
    TEST(a_file_whose_sizes_lie_is_refused_by_name, 2,
         "refuse a size out of its bounds"),
    TEST(a_file_without_a_part_is_refused_by_its_name, 2,
         "find each part in the file"),
    TEST(a_part_of_another_shape_is_refused, 2,
         "compare the tensor with what was expected"),
    TEST(a_file_cut_anywhere_is_refused, 2, "open an engine"),
    TEST(saving_and_opening_survive_each_failed_allocation, 2,
         "open an engine"),
};

SUITE("chapter 21b, the engine", tests);
