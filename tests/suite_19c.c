/* Suite 19c: a run of either family, from fresh weights or from a checkpoint,
   what it saves, and the command.

   A tiny GPT is trained by chapter 3's trainer beside it; a run that was
   stopped is compared with one that was not; and what was saved is opened by
   chapter 19's door. */
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checkpoint.h"
#include "corpus.h"
#include "hub_save.h"
#include "learner.h"
#include "safetensors.h"
#include "support/allocator.h"
#include "support/formats.h"
#include "support/program.h"
#include "token_text.h"
#include "tokenizer_files.h"
#include "trainer.h"
#include "training.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

#define COUNT(array) (sizeof (array) / sizeof (array)[0])

static struct error error;

/* ---------------------------------------------------- a directory for files */

static char directory[128];

static void make_directory(void)
{
    snprintf(directory, sizeof directory, "%s/19c-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}

/* A path below the test's directory; good for 64 calls. */
static const char *below(const char *name)
{
    static char paths[64][256];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t length)
{
    FILE *file = fopen(below(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static char *read_whole(const char *name, size_t *length)
{
    FILE *file = fopen(below(name), "rb");
    ck_assert_msg(file != NULL, "cannot open %s", name);
    char *bytes = malloc(1 << 22);
    *length = fread(bytes, 1, (1 << 22) - 1, file);
    bytes[*length] = '\0';
    fclose(file);
    return bytes;
}

static bool exists(const char *name)
{
    struct stat about;
    return stat(below(name), &about) == 0;
}

static bool same_file(const char *name, const char *other)
{
    size_t lengths[2];
    char *both[] = { read_whole(name, &lengths[0]),
                     read_whole(other, &lengths[1]) };
    const bool same = lengths[0] == lengths[1]
                      && memcmp(both[0], both[1], lengths[0]) == 0;
    free(both[0]);
    free(both[1]);
    return same;
}

/* --------------------------------------------------- texts and tokenizers */

enum { TEXT = 2400, DOUBLES = 128 };

/* A text that can be learned, and has doubled letters in it. */
static void make_text(char text[TEXT + 1])
{
    static const char *const lines[] = {
        "the quick fox will soon see all of the good books, yes ",
        "and three lazy bees feel too small to fall off it, no. ",
        "a happy kitten has too little butter for the muffin oo " };
    uint64_t state = noise_start(1900);
    text[0] = '\0';
    while (strlen(text) + 56 < TEXT)
        strcat(text, lines[noise_below(&state, 3)]);
    while (strlen(text) < TEXT)
        strcat(text, ".");
}

static void write_lines(const char *name)
{
    char text[TEXT + 1];
    make_text(text);
    write_file(name, text, TEXT);
}

static struct corpus corpus_of(const char *bytes, size_t length)
{
    struct corpus corpus = {0};
    write_file("corpus", bytes, length);
    const char *paths[] = { below("corpus") };
    expect_ok(corpus_read(&corpus, paths, 1, &error), &error);
    return corpus;
}

/* The character that stands for a byte in GPT-2's files, for JSON or not. */
static void put_byte(FILE *file, int byte, bool json)
{
    int code = 256;
    const bool plain = (byte >= '!' && byte <= '~')
                       || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    for (int k = 0; k < byte; k++)
        code += !((k >= '!' && k <= '~') || (k >= 0xa1 && k <= 0xac)
                  || k >= 0xae);
    code = plain ? byte : code;
    if (json && (code == '"' || code == '\\'))
        putc('\\', file);
    if (code >= 128) {
        putc(0xc0 | code >> 6, file);
        putc(0x80 | (code & 0x3f), file);
    } else
        putc(code, file);
}

/* Byte k is id k; two equal bytes k < 128 behind each other are 256 + k. */
static void write_vocabulary(void)
{
    FILE *vocab = fopen(below("vocab.json"), "w");
    FILE *merges = fopen(below("merges.txt"), "w");
    ck_assert(vocab != NULL && merges != NULL);
    fputs("{", vocab);
    for (int k = 0; k < 256 + DOUBLES; k++) {
        fputs(k == 0 ? "\"" : ", \"", vocab);
        put_byte(vocab, k % 256, true);
        if (k >= 256)
            put_byte(vocab, k % 256, true);
        fprintf(vocab, "\": %d", k);
        if (k >= 256) {
            put_byte(merges, k % 256, false);
            putc(' ', merges);
            put_byte(merges, k % 256, false);
            putc('\n', merges);
        }
    }
    fputs("}", vocab);
    ck_assert_int_eq(fclose(vocab), 0);
    ck_assert_int_eq(fclose(merges), 0);
}

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_open(&tokenizer, NULL, path, 0, &error), &error);
    return tokenizer;
}

/* What most tests train on. */
static struct corpus corpus;
static struct token_text text;

static void begin_text(const char *tokenizer_path)
{
    char bytes[TEXT + 1];
    make_directory();
    make_text(bytes);
    corpus = corpus_of(bytes, TEXT);
    if (tokenizer_path == NULL)
        write_vocabulary();
    struct tokenizer *tokenizer =
        open_tokenizer(tokenizer_path ? tokenizer_path : directory);
    expect_ok(token_text_new(&text, &corpus, tokenizer, &error), &error);
    tokenizer_close(&tokenizer);
}

static void end_text(void)
{
    token_text_free(&text);
    corpus_free(&corpus);
    remove_directory();
}

START_TEST(a_text_of_bytes_is_its_corpus)
{
    struct generator here, there;
    int32_t windows[5 * 7], expected[5 * 7];
    begin_text("bytes");
    ck_assert_uint_eq(text.length, corpus.length);
    ck_assert_uint_eq(text.training, corpus.training);
    ck_assert(text.fingerprint == corpus.fingerprint);
    for (size_t k = 0; k < text.length; k++)
        ck_assert_int_eq(text.ids[k], corpus.bytes[k]);
    generator_seed(&here, harness_seed(), 3);
    there = here;
    token_text_batch(&text, &here, 5, 7, windows);
    corpus_batch(&corpus, &there, 5, 7, expected);
    expect_same_bits("windows", windows, expected, sizeof windows);
    ck_assert(here.state == there.state);
    token_text_free(NULL);
    end_text();
}
END_TEST

/* Decoded, each part is its own bytes: no token crosses the border. */
START_TEST(no_token_lies_in_both_parts)
{
    make_directory();
    write_vocabulary();
    struct tokenizer *tokenizer = open_tokenizer(directory);
    for (int length = 20; length < 140; length += 20) {
        char bytes[140];
        memset(bytes, 'o', sizeof bytes);     /* each pair is a token */
        struct corpus joined = corpus_of(bytes, (size_t)length);
        struct token_text tokens = {0};
        expect_ok(token_text_new(&tokens, &joined, tokenizer, &error),
                  &error);
        size_t sums[2] = {0, 0};
        for (size_t k = 0; k < tokens.length; k++) {
            size_t part = 0;
            tokenizer_bytes(tokenizer, tokens.ids[k], &part);
            sums[k >= tokens.training] += part;
        }
        ck_assert_uint_eq(sums[0], joined.training);
        ck_assert_uint_eq(sums[1], joined.length - joined.training);
        ck_assert_uint_lt(tokens.length, joined.length);
        ck_assert_int_eq(tokens.most, 256 + 'o');
        token_text_free(&tokens);
        token_text_free(&tokens);
        corpus_free(&joined);
    }
    tokenizer_close(&tokenizer);
    remove_directory();
}
END_TEST

/* "aab" is 353, 98 and "ab…" begins with 97, 98. */
START_TEST(ids_that_agree_in_a_byte_have_other_fingerprints)
{
    make_directory();
    write_vocabulary();
    struct tokenizer *tokenizer = open_tokenizer(directory);
    static const char *const bytes[] = { "aabcdefghijklmnopqrstuv",
                                         "abcdefghijklmnopqrstuv" };
    struct token_text both[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        struct corpus one = corpus_of(bytes[k], strlen(bytes[k]));
        expect_ok(token_text_new(&both[k], &one, tokenizer, &error), &error);
        corpus_free(&one);
    }
    ck_assert_uint_eq(both[0].length, both[1].length);
    for (size_t k = 0; k < both[0].length; k++)
        ck_assert_int_eq(both[0].ids[k] % 256, both[1].ids[k] % 256);
    ck_assert(both[0].fingerprint != both[1].fingerprint);
    token_text_free(&both[0]);
    token_text_free(&both[1]);
    tokenizer_close(&tokenizer);
    remove_directory();
}
END_TEST

static void expect_bad_text(const struct token_text *bad, int tokens,
                            int vocab_size, const char *about)
{
    error = (struct error){0};
    ck_assert_int_eq(token_text_check(bad, tokens, vocab_size, &error),
                     STATUS_INVALID);
    expect_named(&error, about);
}

START_TEST(a_text_is_refused_that_is_short_or_of_another_vocabulary)
{
    const struct token_text good = { .length = 12, .training = 10,
                                     .most = 300 };
    struct token_text bad = good;
    expect_ok(token_text_check(&good, 10, 301, &error), &error);
    expect_bad_text(&good, 11, 301, "text: expected 11");
    expect_bad_text(&good, 10, 300, "vocab_size 300, got 300");
    bad.length = 11;
    expect_bad_text(&bad, 2, 301, "text");
}
END_TEST

START_TEST(a_text_without_memory_leaves_nothing)
{
    begin_text(NULL);
    struct tokenizer *tokenizer = open_tokenizer(directory);
    struct token_text made = {0};
    for (long n = 1;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = token_text_new(&made, &corpus, tokenizer,
                                                  &error);
        const long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert_ptr_null(made.ids);
    }
    token_text_free(&made);
    tokenizer_close(&tokenizer);
    end_text();
}
END_TEST

/* ------------------------------------------------------------ fresh weights */

static double deviation_of(const struct llama *model, const char *name)
{
    const struct tensor *tensor = llama_tensor_find(model, name)->tensor;
    double sum = 0, square = 0;
    const double count = (double)tensor_size(tensor);
    for (size_t k = 0; k < tensor_size(tensor); k++) {
        sum += (double)tensor->data[k];
        square += (double)tensor->data[k] * (double)tensor->data[k];
    }
    return sqrt(square / count - sum / count * sum / count);
}

static struct llama_config wide_config(int experts)
{
    return (struct llama_config){
        .vocab_size = 60, .context_length = 8, .d_model = 48, .n_layers = 2,
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 12, .d_ff = 64,
        .rms_norm_eps = 1e-5, .rope_theta = 100, .n_experts = experts,
        .experts_per_token = experts > 0 ? 2 : 0 };
}

START_TEST(fresh_branches_end_in_smaller_numbers)
{
    for (int experts = 0; experts <= 3; experts += 3) {
        const struct llama_config config = wide_config(experts);
        struct llama *model = new_llama(&config);
        struct generator generator;
        generator_seed(&generator, harness_seed(), 0);
        llama_init(model, &generator);
        for (size_t k = 0; k < llama_tensor_count(model); k++) {
            const struct llama_tensor *entry = llama_tensor_at(model, k);
            const char *name = entry->name;
            if (entry->tensor->rank == 1) {
                for (size_t n = 0; n < tensor_size(entry->tensor); n++)
                    ck_assert(entry->tensor->data[n] == 1);
                continue;
            }
            const bool ends = strstr(name, "o_proj") || strstr(name, "w2")
                              || strstr(name, "down_proj");
            const double want = ends ? 0.01 : 0.02;    /* 0.02 / sqrt(2L) */
            const double got = deviation_of(model, name);
            /* 144 numbers at least, so 6 % of it is one deviation */
            ck_assert_msg(fabs(got - want) < 0.3 * want,
                          "%s: deviation %g, expected %g", name, got, want);
        }
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_tied_table_is_drawn_once)
{
    struct llama_config config = wide_config(0);
    struct generator here, there;
    config.tie_word_embeddings = true;
    struct llama *model = new_llama(&config);
    size_t drawn = 0;
    generator_seed(&here, 7, 0);
    there = here;
    llama_init(model, &here);
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        if (!entry->alias && entry->tensor->rank == 2)
            drawn += tensor_size(entry->tensor);
    }
    for (size_t k = 0; k < drawn; k++)
        generator_normal(&there);
    ck_assert(here.state == there.state);
    llama_free(&model);
}
END_TEST

/* --------------------------------------------------------- hub directories */

static bool same_config(const struct llama_config *a,
                        const struct llama_config *b)
{
    return a->vocab_size == b->vocab_size && a->d_model == b->d_model
        && a->context_length == b->context_length
        && a->n_layers == b->n_layers && a->n_heads == b->n_heads
        && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim
        && a->d_ff == b->d_ff && a->rms_norm_eps == b->rms_norm_eps
        && a->rope_theta == b->rope_theta
        && a->tie_word_embeddings == b->tie_word_embeddings
        && a->n_experts == b->n_experts
        && a->experts_per_token == b->experts_per_token;
}

START_TEST(a_hub_config_says_whether_it_has_experts)
{
    for (int experts = 0; experts < 4; experts += 3) {
        const struct llama_config config = wide_config(experts);
        char *made = NULL;
        struct hub_config read;
        expect_ok(hub_llama_format(&config, &made, &error), &error);
        expect_ok(hub_config_parse(&read, made, strlen(made), &error),
                  &error);
        ck_assert_int_eq(read.format, experts > 0 ? FORMAT_MIXTRAL
                                                  : FORMAT_LLAMA);
        ck_assert_int_eq(read.llama.n_experts, experts);
        ck_assert_int_eq(read.llama.experts_per_token, experts > 0 ? 2 : 0);
        free(made);
    }
}
END_TEST

/* Sizes of no relation to each other, doubles of all digits. */
START_TEST(a_hub_config_reads_back_as_it_was)
{
    uint64_t state = noise_start(1901);
    for (int round = 0; round < 40; round++) {
        const int kv = 1 + noise_below(&state, 5);
        struct llama_config config = {
            .vocab_size = 2 + noise_below(&state, 500),
            .context_length = 1 + noise_below(&state, 90),
            .d_model = 1 + noise_below(&state, 90),
            .n_layers = 1 + noise_below(&state, 9),
            .n_heads = kv * (1 + noise_below(&state, 5)), .n_kv_heads = kv,
            .head_dim = 2 + 2 * noise_below(&state, 20),
            .d_ff = 1 + noise_below(&state, 200),
            .rms_norm_eps = 1e-5 * (1.5 + (double)noise(&state)),
            .rope_theta = 1e4 * (1.5 + (double)noise(&state)),
            .tie_word_embeddings = round % 2 == 0 };
        if (round % 3 == 0) {
            config.n_experts = 2 + noise_below(&state, 8);
            config.experts_per_token = 1 + noise_below(&state, 2);
        }
        char *made = NULL;
        struct hub_config read;
        expect_ok(hub_llama_format(&config, &made, &error), &error);
        expect_ok(hub_config_parse(&read, made, strlen(made), &error),
                  &error);
        ck_assert_msg(same_config(&read.llama, &config), "%s", made);
        free(made);
    }
}
END_TEST

static void expect_same_model(const struct llama *a, const struct llama *b)
{
    ck_assert_uint_eq(llama_tensor_count(a), llama_tensor_count(b));
    for (size_t k = 0; k < llama_tensor_count(a); k++) {
        const struct llama_tensor *x = llama_tensor_at(a, k);
        const struct llama_tensor *y = llama_tensor_at(b, k);
        ck_assert_str_eq(x->name, y->name);
        ck_assert(tensor_same_shape(x->tensor, y->tensor));
        expect_same_bits(x->name, x->tensor->data, y->tensor->data,
                         tensor_size(x->tensor) * sizeof (float));
    }
}

static size_t unique_tensors(const struct llama *model)
{
    size_t unique = 0;
    for (size_t k = 0; k < llama_tensor_count(model); k++)
        unique += !llama_tensor_at(model, k)->alias;
    return unique;
}

START_TEST(a_saved_llama_opens_with_the_same_bits)
{
    make_directory();
    for (int k = 0; k < 4; k++) {
        struct llama_config config = k < 2 ? small_llama_config()
                                           : small_moe_config();
        struct checkpoint *checkpoint = NULL;
        config.tie_word_embeddings = k % 2 == 1;
        struct llama *model = noisy_llama(&config, 1902 + (unsigned)k);
        expect_ok(hub_save_llama(model, below("hub"), &error), &error);
        expect_ok(checkpoint_open(&checkpoint, below("hub"), &error), &error);
        ck_assert_int_eq(checkpoint_format(checkpoint),
                         k < 2 ? FORMAT_LLAMA : FORMAT_MIXTRAL);
        ck_assert_uint_eq(checkpoint_tensor_count(checkpoint),
                          unique_tensors(model));
        expect_same_model(checkpoint_llama(checkpoint), model);
        checkpoint_close(&checkpoint);
        llama_free(&model);
    }
    remove_directory();
}
END_TEST

/* A tied head is a second name of the table, in the model and not in the
   file. */
START_TEST(a_llama_that_is_saved_read_and_saved_is_the_same_bytes)
{
    make_directory();
    for (int k = 0; k < 4; k++) {
        struct llama_config config = k < 2 ? small_llama_config()
                                           : small_moe_config();
        struct checkpoint *checkpoint = NULL;
        struct safetensors *file = NULL;
        config.tie_word_embeddings = k % 2 == 1;
        struct llama *model = noisy_llama(&config, 1906 + (unsigned)k);
        expect_ok(hub_save_llama(model, below("once"), &error), &error);
        llama_free(&model);
        expect_ok(checkpoint_open(&checkpoint, below("once"), &error),
                  &error);
        model = checkpoint_llama(checkpoint);
        const struct llama_tensor *head =
            llama_tensor_find(model, "lm_head.weight");
        const struct llama_tensor *table =
            llama_tensor_find(model, "model.embed_tokens.weight");
        ck_assert_int_eq(head->alias, k % 2 == 1);
        ck_assert(!table->alias);
        ck_assert_int_eq(head->tensor->data == table->tensor->data,
                         k % 2 == 1);
        expect_ok(hub_save_llama(model, below("twice"), &error), &error);
        checkpoint_close(&checkpoint);
        ck_assert(same_file("once/config.json", "twice/config.json"));
        ck_assert(same_file("once/model.safetensors",
                            "twice/model.safetensors"));
        expect_ok(safetensors_open(&file, below("twice/model.safetensors"),
                                   &error), &error);
        ck_assert_int_eq(safetensors_find(file, "lm_head.weight") == NULL,
                         k % 2 == 1);
        safetensors_close(&file);
    }
    remove_directory();
}
END_TEST

START_TEST(a_directory_of_shards_is_not_written_into)
{
    const struct llama_config config = small_llama_config();
    struct llama *model = noisy_llama(&config, 1903);
    struct learner learner = { .llama = model };
    make_directory();
    expect_ok(hub_save_check(below("absent"), &error), &error);
    expect_ok(hub_save_check(directory, &error), &error);
    write_file("model.safetensors.index.json", "{}", 2);
    ck_assert_int_eq(hub_save_check(directory, &error), STATUS_INVALID);
    expect_named(&error, "index.json");
    ck_assert_int_eq(learner_save(&learner, directory, &error),
                     STATUS_INVALID);
    ck_assert(!exists("config.json"));
    ck_assert(!exists("model.safetensors"));
    llama_free(&model);
    remove_directory();
}
END_TEST

START_TEST(a_save_without_memory_or_room_leaves_the_last_one)
{
    const struct llama_config config = small_moe_config();
    struct llama *model = noisy_llama(&config, 1904);
    struct rlimit limit, full;
    make_directory();
    expect_ok(hub_save_llama(model, below("hub"), &error), &error);
    expect_ok(hub_save_llama(model, below("was"), &error), &error);
    uint64_t state = noise_start(1905);
    const struct tensor *table = llama_tensor_at(model, 0)->tensor;
    noise_floats(&state, tensor_size(table), table->data);
    for (long n = 1;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = hub_save_llama(model, below("hub"),
                                                  &error);
        const long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert(same_file("hub/model.safetensors",
                            "was/model.safetensors"));
    }
    expect_ok(hub_save_llama(model, below("was"), &error), &error);
    noise_floats(&state, tensor_size(table), table->data);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    full = limit;
    full.rlim_cur = 5000;
    setrlimit(RLIMIT_FSIZE, &full);
    const enum status status = hub_save_llama(model, below("hub"), &error);
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(status, STATUS_IO);
    ck_assert(same_file("hub/model.safetensors", "was/model.safetensors"));
    ck_assert(same_file("hub/config.json", "was/config.json"));
    llama_free(&model);
    remove_directory();
}
END_TEST

/* --------------------------------------------------------- tokenizer files */

START_TEST(a_tokenizer_comes_along)
{
    make_directory();
    write_vocabulary();
    write_file("tokenizer.json", "{}", 2);
    write_file("unrelated", "x", 1);
    ck_assert_int_eq(mkdir(below("to"), 0777), 0);
    expect_ok(tokenizer_files_copy(directory, NULL, 384, below("to"), &error),
              &error);
    ck_assert(same_file("vocab.json", "to/vocab.json"));
    ck_assert(same_file("merges.txt", "to/merges.txt"));
    ck_assert(same_file("tokenizer.json", "to/tokenizer.json"));
    ck_assert(!exists("to/unrelated"));
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_open(&tokenizer, below("to"), NULL, 384, &error),
              &error);
    ck_assert_int_eq(tokenizer_count(tokenizer), 384);
    tokenizer_close(&tokenizer);
    remove_directory();
}
END_TEST

START_TEST(the_tokenizer_that_was_named_comes_along_alone)
{
    make_directory();
    write_vocabulary();
    write_file("tok9.bin", "nine", 4);
    write_file("tokenizer.bin", "other", 5);
    write_file("model.bin", "model", 5);
    write_file("named", "named", 5);
    const struct { const char *model, *named; int size; const char *made,
                   *source; } rows[] = {
        { "model.bin", NULL, 9, "tokenizer.bin", "tok9.bin" },
        { "model.bin", NULL, 8, "tokenizer.bin", "tokenizer.bin" },
        { "model.bin", "named", 9, "tokenizer.bin", "named" },
        { "model.bin", "vocab.json", 9, "merges.txt", "merges.txt" },
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        char to[32], made[64];
        snprintf(to, sizeof to, "to%zu", k);
        snprintf(made, sizeof made, "%s/%s", to, rows[k].made);
        ck_assert_int_eq(mkdir(below(to), 0777), 0);
        expect_ok(tokenizer_files_copy(
            below(rows[k].model), rows[k].named ? below(rows[k].named) : NULL,
            rows[k].size, below(to), &error), &error);
        ck_assert_msg(same_file(made, rows[k].source), "row %zu", k);
    }
    ck_assert(!exists("to2/vocab.json") && !exists("to3/tokenizer.bin"));
    ck_assert_int_eq(mkdir(below("none"), 0777), 0);
    expect_ok(tokenizer_files_copy(directory, "bytes", 9, below("none"),
                                   &error), &error);
    expect_ok(tokenizer_files_copy(NULL, NULL, 9, below("none"), &error),
              &error);
    ck_assert(!exists("none/vocab.json") && !exists("none/tokenizer.bin"));
    /* onto itself, and a file beside which there is nothing */
    expect_ok(tokenizer_files_copy(directory, NULL, 384, directory, &error),
              &error);
    ck_assert(same_file("vocab.json", "to3/vocab.json"));
    ck_assert_int_eq(tokenizer_files_copy(directory, NULL, 384,
                                          below("absent"), &error),
                     STATUS_IO);
    expect_named(&error, "absent");
    remove_directory();
}
END_TEST

START_TEST(a_tokenizer_without_memory_is_not_copied_in_part)
{
    make_directory();
    write_vocabulary();
    ck_assert_int_eq(mkdir(below("to"), 0777), 0);
    for (long n = 1;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = tokenizer_files_copy(
            directory, NULL, 384, below("to"), &error);
        const long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
        ck_assert(!exists("to/vocab.json")
                  || same_file("vocab.json", "to/vocab.json"));
    }
    remove_directory();
}
END_TEST

/* What lies in a directory, what is copied from another, and which file of
   the first is in the way; NULL: none is. */
START_TEST(a_directory_with_another_tokenizer_is_refused)
{
    static const struct { const char *there, *bytes, *named, *about; } rows[]
        = {
        { NULL, NULL, "whole", NULL },
        { "vocab.json", "whole", "whole", NULL },
        { "tokenizer.json", "other", "whole", "tokenizer.json" },
        { "vocab.json", "other", "whole", "vocab.json" },
        { "tokenizer.bin", "whole", "whole", "tokenizer.bin" },
        { "tok9.bin", "whole", "whole", "tok9.bin" },
        { "tok8.bin", "whole", "whole", NULL },
        { "vocab.json", "whole", "whole/vocab.json", NULL },
        { "vocab.json", "whole", "scores/one.bin", "vocab.json" },
        { "merges.txt", "whole", "scores/one.bin", "merges.txt" },
        { "tokenizer.bin", "one", "scores/one.bin", NULL },
        { "tokenizer.bin", "two", "scores/one.bin", "tokenizer.bin" },
        { "tok9.bin", "one", "scores/one.bin", NULL },
        { "tok9.bin", "two", "scores/one.bin", "tok9.bin" },
        { "tokenizer.json", "x", "scores/one.bin", "tokenizer.json" },
        { "merges.txt", "x", "bytes", "merges.txt" },
        { "tokenizer.bin", "x", "bytes", "tokenizer.bin" },
        { "tokenizer.model", "x", NULL, "tokenizer.model" },
        { "model.bin", "x", "bytes", NULL },
    };
    make_directory();
    ck_assert_int_eq(mkdir(below("whole"), 0777), 0);
    ck_assert_int_eq(mkdir(below("scores"), 0777), 0);
    write_file("whole/vocab.json", "whole", 5);
    write_file("whole/merges.txt", "whole", 5);
    write_file("scores/one.bin", "one", 3);
    for (size_t k = 0; k < COUNT(rows); k++) {
        char to[32], there[64];
        const char *named = rows[k].named;
        snprintf(to, sizeof to, "to%zu", k);
        ck_assert_int_eq(mkdir(below(to), 0777), 0);
        if (rows[k].there != NULL) {
            snprintf(there, sizeof there, "%s/%s", to, rows[k].there);
            write_file(there, rows[k].bytes, strlen(rows[k].bytes));
        }
        if (named != NULL && strcmp(named, "bytes") != 0)
            named = below(named);
        const enum status status =
            tokenizer_files_check(NULL, named, 9, below(to), &error);
        ck_assert_msg(status == (rows[k].about ? STATUS_INVALID : STATUS_OK),
                      "row %zu: status %d", k, (int)status);
        if (rows[k].about != NULL)
            expect_named(&error, rows[k].about);
    }
    expect_ok(tokenizer_files_check(below("whole"), NULL, 9, below("absent"),
                                    &error), &error);
    ck_assert(!exists("absent"));
    remove_directory();
}
END_TEST

/* A fresh model says its size when its tokenizer is open, and that was
   tokenizer.bin. */
START_TEST(a_fresh_model_gets_the_tokenizer_that_was_opened)
{
    make_directory();
    ck_assert_int_eq(mkdir(below("from"), 0777), 0);
    ck_assert_int_eq(mkdir(below("to"), 0777), 0);
    write_file("from/tok9.bin", "sized", 5);
    write_file("from/tokenizer.bin", "opened", 6);
    expect_ok(tokenizer_files_copy(NULL, below("from"), 9, below("to"),
                                   &error), &error);
    ck_assert(same_file("from/tokenizer.bin", "to/tokenizer.bin"));
    expect_ok(tokenizer_files_check(NULL, below("from"), 9, below("to"),
                                    &error), &error);
    remove_directory();
}
END_TEST

START_TEST(a_check_without_memory_leaves_nothing)
{
    make_directory();
    write_vocabulary();
    ck_assert_int_eq(mkdir(below("to"), 0777), 0);
    expect_ok(tokenizer_files_copy(directory, NULL, 384, below("to"), &error),
              &error);
    for (long n = 1;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = tokenizer_files_check(
            directory, NULL, 384, below("to"), &error);
        const long left = allocator_live();
        if (!allocator_stop())
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(left, live);
    }
    remove_directory();
}
END_TEST

/* ------------------------------------------------------------------- runs */

enum { FAMILIES = 3 };
static const char *const family_names[] = { "gpt", "llama", "mixtral" };

static const struct trainer_settings quick = {
    .batch = 3, .tokens = 16, .steps = 10, .warmup = 2,
    .learning_rate = 1e-2, .weight_decay = 0.1 };

/* A small config of the family; the GPT drops out. */
static struct hub_config family_config(int family, int vocab_size)
{
    struct hub_config config = {
        .format = family == 0 ? FORMAT_TINY_GPT
                  : family == 1 ? FORMAT_LLAMA : FORMAT_MIXTRAL,
        .gpt = { .vocab_size = vocab_size, .context_length = 16,
                 .d_model = 8, .n_layers = 2, .n_heads = 2, .d_ff = 12,
                 .dropout = 0.1, .layer_norm_eps = 1e-5 },
        .llama = { .vocab_size = vocab_size, .context_length = 20,
                   .d_model = 8, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2,
                   .head_dim = 4, .d_ff = 12, .rms_norm_eps = 1e-5,
                   .rope_theta = 1000,
                   .tie_word_embeddings = family == 2 } };
    if (family == 2) {
        config.llama.n_experts = 3;
        config.llama.experts_per_token = 2;
    }
    return config;
}

static uint64_t run_seed(void)
{
    uint64_t state = noise_start(1910);
    return noise_next(&state);
}

static void begin_run(struct training *training, int family, int vocab_size)
{
    const struct hub_config config = family_config(family, vocab_size);
    struct learner learner = {0};
    struct generator generator;
    generator_seed(&generator, run_seed(), 0);
    expect_ok(learner_new(&learner, &config, &generator, &error), &error);
    expect_ok(training_new(training, &learner, &quick, &text, &generator,
                           &error), &error);
    ck_assert(learner.gpt == NULL && learner.llama == NULL);
    learner_free(&learner);
    learner_free(NULL);
}

static void take_steps(struct training *training, int count, float *losses)
{
    for (int k = 0; k < count; k++)
        expect_ok(training_step(training, &losses[k], &error), &error);
}

static void expect_same_run(const struct training *a,
                            const struct training *b)
{
    const size_t bytes = a->trainable.size * sizeof (float);
    ck_assert_uint_eq(a->trainable.size, b->trainable.size);
    expect_same_bits("weights", a->trainable.weights, b->trainable.weights,
                     bytes);
    expect_same_bits("first", a->moments.first, b->moments.first, bytes);
    expect_same_bits("second", a->moments.second, b->moments.second, bytes);
    ck_assert_int_eq(a->adamw.step, b->adamw.step);
    ck_assert(a->generator.state == b->generator.state
              && a->generator.increment == b->generator.increment);
}

/* With everything decaying, as chapter 3 has it. */
static void let_all_decay(struct training *training)
{
    for (size_t k = 0; k < training->trainable.count; k++)
        training->trainable.tensors[k].decays = true;
}

START_TEST(a_tiny_gpt_trains_as_in_chapter_3)
{
    struct trainer old;
    struct training new;
    float losses[2][6], held_out[2];
    begin_text("bytes");
    const struct hub_config config = family_config(0, 256);
    expect_ok(trainer_new(&old, &config.gpt, &quick, &corpus, run_seed(),
                          &error), &error);
    begin_run(&new, 0, 256);
    let_all_decay(&new);
    for (int k = 0; k < 6; k++)
        expect_ok(trainer_step(&old, &losses[0][k], &error), &error);
    take_steps(&new, 6, losses[1]);
    expect_same_bits("losses", losses[1], losses[0], sizeof losses[0]);
    const size_t bytes = new.trainable.size * sizeof (float);
    expect_same_bits("weights", new.trainable.weights,
                     tiny_gpt_weights(old.model)->storage, bytes);
    expect_same_bits("first", new.moments.first, old.adamw.first->storage,
                     bytes);
    expect_same_bits("second", new.moments.second,
                     old.adamw.second->storage, bytes);
    ck_assert(new.generator.state == old.generator.state);
    expect_ok(trainer_held_out_loss(&old, &held_out[0], &error), &error);
    expect_ok(training_held_out_loss(&new, &held_out[1], &error), &error);
    expect_same_bits("held out", &held_out[1], &held_out[0], sizeof (float));
    trainer_free(&old);
    training_free(&new);
    end_text();
}
END_TEST

START_TEST(a_run_that_chapter_3_saved_goes_on_here)
{
    struct trainer old;
    struct training new;
    float losses[2][5], loss;
    begin_text("bytes");
    const struct hub_config config = family_config(0, 256);
    expect_ok(trainer_new(&old, &config.gpt, &quick, &corpus, run_seed(),
                          &error), &error);
    for (int k = 0; k < 4; k++)
        expect_ok(trainer_step(&old, &loss, &error), &error);
    expect_ok(trainer_save(&old, directory, &error), &error);
    expect_ok(training_load(&new, directory, &text, &error), &error);
    ck_assert_int_eq(new.adamw.step, 4);
    let_all_decay(&new);
    for (int k = 0; k < 5; k++)
        expect_ok(trainer_step(&old, &losses[0][k], &error), &error);
    take_steps(&new, 5, losses[1]);
    expect_same_bits("losses", losses[1], losses[0], sizeof losses[0]);
    trainer_free(&old);
    training_free(&new);
    end_text();
}
END_TEST

START_TEST(the_loss_falls_in_every_family)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        struct training run;
        float before, after, losses[200];
        begin_run(&run, family, 256);
        run.settings.steps = 200;
        expect_ok(training_held_out_loss(&run, &before, &error), &error);
        ck_assert_double_eq_tol((double)before, log(256), 0.2);
        take_steps(&run, 200, losses);
        expect_ok(training_held_out_loss(&run, &after, &error), &error);
        ck_assert_msg(after < before - 1.0f, "%s: held-out loss %g, then %g",
                      family_names[family], (double)before, (double)after);
        training_free(&run);
    }
    end_text();
}
END_TEST

/* The last row of the logits of a few tokens. */
static void logits_of(const struct causal_lm *lm, float *logits)
{
    const int32_t ids[] = { 5, 1, 9, 3, 7 }, positions[] = { 0, 1, 2, 3, 4 };
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    struct past_key_values storage = {0};
    const int32_t length = 0;
    const size_t floats = lm->scratch_size(lm->model, 1, 5, 5);
    float *scratch = malloc(floats * sizeof *scratch);
    expect_ok(past_key_values_new(&storage, &shape, 1, 5, &error), &error);
    const struct step step = {
        .ids = ids, .positions = positions, .batch = 1, .tokens = 5,
        .storage = &storage, .lengths = &length, .logits = logits };
    expect_ok(causal_lm_step(lm, &step, scratch, floats, &error), &error);
    past_key_values_free(&storage);
    free(scratch);
}

static struct causal_lm learner_lm(const struct learner *learner)
{
    return learner->gpt != NULL ? tiny_gpt_causal_lm(learner->gpt)
                                : llama_causal_lm(learner->llama);
}

START_TEST(what_was_saved_opens_with_the_bits_of_what_was_trained)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        struct training run;
        struct checkpoint *checkpoint = NULL;
        float losses[20], trained[5 * 256], opened[5 * 256];
        begin_run(&run, family, 256);
        run.settings.steps = 20;
        take_steps(&run, 20, losses);
        const char *out = below(family_names[family]);
        ck_assert_int_eq(mkdir(out, 0777), 0);
        expect_ok(training_save(&run, out, &error), &error);
        expect_ok(checkpoint_open(&checkpoint, out, &error), &error);
        const struct causal_lm here = learner_lm(&run.learner);
        const struct causal_lm there = checkpoint_causal_lm(checkpoint);
        logits_of(&here, trained);
        logits_of(&there, opened);
        expect_same_bits("logits", opened, trained, sizeof trained);
        checkpoint_close(&checkpoint);
        training_free(&run);
    }
    end_text();
}
END_TEST

START_TEST(a_resumed_run_repeats_an_uninterrupted_one)
{
    for (int family = 0; family < FAMILIES; family++) {
        struct training whole, part, resumed;
        float expected[10], losses[10];
        begin_text(NULL);     /* ids of two bytes */
        begin_run(&whole, family, 384);
        begin_run(&part, family, 384);
        take_steps(&whole, 10, expected);
        take_steps(&part, 4, losses);
        expect_ok(training_save(&part, directory, &error), &error);
        training_free(&part);
        training_free(&part);
        int vocab_size = 0;
        expect_ok(training_vocab_size(directory, &vocab_size, &error),
                  &error);
        ck_assert_int_eq(vocab_size, 384);
        expect_ok(training_load(&resumed, directory, &text, &error), &error);
        ck_assert_int_eq(resumed.adamw.step, 4);
        take_steps(&resumed, 6, losses + 4);
        expect_same_bits("losses", losses, expected, sizeof losses);
        expect_same_run(&resumed, &whole);
        training_free(&whole);
        training_free(&resumed);
        end_text();
    }
    training_free(NULL);
}
END_TEST

/* Saves the run in a new directory, and opens what was saved: a checkpoint of
   this format, whose logits are those of what was trained. */
static struct checkpoint *saved_run(const struct training *run,
                                    const char *out,
                                    enum checkpoint_format format)
{
    struct checkpoint *checkpoint = NULL;
    float trained[5 * 97], opened[5 * 97];
    expect_ok(training_save(run, out, &error), &error);
    expect_ok(checkpoint_open(&checkpoint, out, &error), &error);
    ck_assert_int_eq(checkpoint_format(checkpoint), format);
    const struct causal_lm here = learner_lm(&run->learner);
    const struct causal_lm there = checkpoint_causal_lm(checkpoint);
    ck_assert_int_le(here.vocab_size, 97);
    ck_assert_int_eq(there.vocab_size, here.vocab_size);
    logits_of(&here, trained);
    logits_of(&there, opened);
    expect_same_bits("logits", opened, trained,
                     (size_t)(5 * here.vocab_size) * sizeof (float));
    return checkpoint;
}

/* Half precision and a turned GPT-2 with its tanh; a file of llama2.c is in
   the test of the command. */
START_TEST(a_checkpoint_of_others_can_be_continued)
{
    static const struct { const char *name; enum checkpoint_format saved; }
    goldens[] = { { "gpt2_tiny_f16", FORMAT_TINY_GPT },
                  { "llama_tiny", FORMAT_LLAMA } };
    make_directory();
    write_lines("text");
    for (size_t k = 0; k < COUNT(goldens); k++) {
        char path[256];
        struct learner learner = {0};
        struct training run;
        struct generator generator = { 1, 3 };
        float losses[30];
        int32_t ids[400];
        snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, goldens[k].name);
        expect_ok(learner_open(&learner, path, &error), &error);
        const int vocab = checkpoint_causal_lm(learner.checkpoint).vocab_size;
        for (int n = 0; n < 400; n++)
            ids[n] = n * n % 11 % vocab;
        const struct token_text numbers = {
            .ids = ids, .length = 400, .training = 380, .most = 10 };
        struct trainer_settings settings = quick;
        settings.steps = 30;
        expect_ok(training_new(&run, &learner, &settings, &numbers,
                               &generator, &error), &error);
        take_steps(&run, 30, losses);
        ck_assert_msg(losses[29] < losses[0], "%s: %g, then %g",
                      goldens[k].name, (double)losses[0],
                      (double)losses[29]);
        const char *out = below(goldens[k].name);
        ck_assert_int_eq(mkdir(out, 0777), 0);
        struct checkpoint *checkpoint = saved_run(&run, out,
                                                  goldens[k].saved);
        if (run.learner.gpt != NULL)
            ck_assert_int_eq(tiny_gpt_config(
                checkpoint_tiny_gpt(checkpoint))->tanh_gelu, 1);
        checkpoint_close(&checkpoint);
        training_free(&run);
    }
    remove_directory();
}
END_TEST

/* The mean over rows [B,T] of how unlikely each id is behind those before. */
static double mean_loss(const struct original *original, const int32_t *ids,
                        int batch, int tokens)
{
    float logits[PLAIN_T * 16];
    const int width = original->vocab_size;
    double sum = 0;
    for (int b = 0; b < batch; b++, ids += tokens) {
        original_logits(original, ids, tokens, logits);
        for (int t = 0; t + 1 < tokens; t++) {
            const float *row = logits + t * width;
            double all = 0;
            for (int id = 0; id < width; id++)
                all += exp((double)(row[id] - row[ids[t + 1]]));
            sum += log(all);
        }
    }
    return sum / (batch * (tokens - 1));
}

/* Vocabularies of 11 and 13 ids have no tokenizer: this is what the command
   does behind it. The first loss is that of the weights that were written. */
START_TEST(two_steps_begin_from_every_format)
{
    static int32_t ids[400];
    uint64_t state = noise_start(1930);
    const struct token_text numbers = {
        .ids = ids, .length = 400, .training = 380, .most = 10 };
    struct trainer_settings settings = quick;
    settings.tokens = 8;
    noise_ids(&state, 11, 1, 400, ids);
    for (enum written format = 0; format < FORMATS; format++) {
        const struct written_format *about = &written_formats[format];
        struct original original = original_of(format);
        struct learner learner = {0};
        struct training run;
        struct generator generator = { 1, 3 };
        float losses[2];
        expect_ok(learner_open(&learner, write_format(format), &error),
                  &error);
        ck_assert_int_eq(checkpoint_format(learner.checkpoint),
                         about->opens_as);
        expect_ok(training_new(&run, &learner, &settings, &numbers,
                               &generator, &error), &error);
        float before[5 * 16], after[5 * 16];
        const struct causal_lm lm = learner_lm(&run.learner);
        logits_of(&lm, before);
        take_steps(&run, 1, losses);
        const float wanted = (float)mean_loss(&original, run.ids, 3, 8);
        expect_close(about->name, losses, &wanted, 1, 1, (const int[]){1},
                     TOLERANCE);
        take_steps(&run, 1, losses + 1);
        logits_of(&lm, after);
        for (int k = 0; k < 5; k++)
            ck_assert_msg(memcmp(before + k * lm.vocab_size,
                                 after + k * lm.vocab_size,
                                 (size_t)lm.vocab_size * sizeof (float)) != 0,
                          "%s: two steps leave row %d", about->name, k);
        struct checkpoint *checkpoint = saved_run(&run, new_directory(),
                                                  about->saves_as);
        checkpoint_close(&checkpoint);
        training_free(&run);
        original_free(&original);
    }
}
END_TEST

/* ---------------------------------------------------------------- refusals */

START_TEST(a_run_refuses_what_it_cannot_train_by)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        const struct hub_config config = family_config(family, 256);
        struct learner learner = {0};
        struct training run = { .settings = { .batch = 77 } };
        struct generator generator = { 1, 3 };
        struct token_text other = text;
        expect_ok(learner_new(&learner, &config, NULL, &error), &error);
        struct trainer_settings bad[6] = { quick, quick, quick, quick, quick,
                                           quick };
        static const char *const about[] = { "batch", "tokens", "steps",
            "learning_rate", "weight_decay", "text" };
        bad[0].batch = 0;
        bad[1].tokens = 21;
        bad[2].steps = 0;
        bad[3].learning_rate = 0;
        bad[4].weight_decay = -1;
        other.most = 256;
        for (int k = 0; k < 6; k++) {
            error = (struct error){0};
            ck_assert_int_eq(training_new(&run, &learner, &bad[k],
                                          k == 5 ? &other : &text, &generator,
                                          &error), STATUS_INVALID);
            expect_named(&error, about[k]);
            ck_assert_int_eq(run.settings.batch, 77);
            ck_assert(learner.gpt != NULL || learner.llama != NULL);
        }
        learner_free(&learner);
        learner_free(&learner);
    }
    end_text();
}
END_TEST

START_TEST(a_loss_that_is_not_finite_leaves_the_run_as_it_was)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        struct training run, same;
        float loss = 7;
        begin_run(&run, family, 256);
        begin_run(&same, family, 256);
        run.trainable.weights[5 * 8] = INFINITY;    /* of a token or byte */
        same.trainable.weights[5 * 8] = INFINITY;
        for (size_t k = 0; k < 8; k++)
            run.trainable.weights[k] = same.trainable.weights[k] = NAN;
        for (size_t k = 0; k < run.trainable.size; k++)
            if (run.trainable.weights[k] == 1)
                run.trainable.weights[k] = same.trainable.weights[k] = NAN;
        ck_assert_int_eq(training_step(&run, &loss, &error), STATUS_INVALID);
        expect_named(&error, "loss: not finite at step 1");
        ck_assert(loss == 7);
        expect_same_run(&run, &same);
        training_free(&run);
        training_free(&same);
    }
    end_text();
}
END_TEST

START_TEST(a_failed_step_can_be_taken_again)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        struct training whole, run;
        float expected[2], loss[2] = { 0 };
        begin_run(&whole, family, 256);
        begin_run(&run, family, 256);
        take_steps(&whole, 2, expected);
        long n = 1;
        for (int step = 0; step < 2; step++)
            for (n = 1;; n++) {
                const long live = allocator_live();
                allocator_fail_at(n);
                const enum status status = training_step(&run, &loss[step],
                                                         NULL);
                const long left = allocator_live();
                if (!allocator_stop())
                    break;
                ck_assert_int_eq(status, STATUS_NO_MEMORY);
                ck_assert_int_le(left, live);
                ck_assert(loss[step] == 0);
            }
        if (family > 0)     /* the workspace is made once */
            ck_assert_int_eq(n, 1);
        expect_same_bits("losses", expected, loss, sizeof loss);
        expect_same_run(&run, &whole);
        training_free(&whole);
        training_free(&run);
    }
    end_text();
}
END_TEST

/* Loading must fail, name what is wrong, leak nothing, and leave *run. */
static void expect_no_load(enum status expected, const char *about)
{
    struct training run = { .settings = { .batch = 77 } };
    error = (struct error){0};
    const long live = allocator_live();
    const enum status status = training_load(&run, directory, &text, &error);
    const long left = allocator_live();
    ck_assert_msg(status != STATUS_OK, "loaded, though %s", about);
    if (expected != STATUS_OK)
        ck_assert_msg(status == expected, "%s", error.message);
    expect_named(&error, about);
    ck_assert_int_eq(left, live);
    ck_assert_int_eq(run.settings.batch, 77);
}

/* Writes the state with a part of its header replaced; both have one
   length. */
static void replace_in_state(const char *bytes, size_t length,
                             const char *from, const char *to)
{
    char *copy = memcpy(malloc(length), bytes, length);
    const size_t part = strlen(from);
    size_t at = 0;
    ck_assert_uint_eq(part, strlen(to));
    while (at + part < length && memcmp(copy + at, from, part) != 0)
        at++;
    ck_assert_msg(at + part < length, "no %s in the state", from);
    memcpy(copy + at, to, part);
    write_file("training.safetensors", copy, length);
    free(copy);
}

START_TEST(a_damaged_state_is_refused)
{
    struct training run;
    size_t length;
    begin_text("bytes");
    expect_no_load(STATUS_IO, "training.safetensors");
    begin_run(&run, 1, 256);
    expect_ok(training_save(&run, directory, &error), &error);
    char *bytes = read_whole("training.safetensors", &length);
    const size_t header = (unsigned char)bytes[0]
                          + ((size_t)(unsigned char)bytes[1] << 8);
    const size_t cuts[] = { 0, 7, 8, 7 + header, 8 + header, 9 + header,
                            length / 2, length - 4, length - 1 };
    for (size_t k = 0; k < COUNT(cuts); k++) {
        write_file("training.safetensors", bytes, cuts[k]);
        expect_no_load(STATUS_OK, "training.safetensors");
    }
    const struct { const char *from, *to, *about; } rows[] = {
        { "\"config\":", "\"confi#\":", "config" },
        { "\"step\":", "\"ste#\":", "step" },
        { "\"batch\":\"3\"", "\"batch\":\"0\"", "batch" },
        { "model_type", "model_typ#", "" },
        { "\"first.model.norm.weight\"", "\"first.model.norm.weigh#\"",
          "first.model.norm.weight" },
        { "\"second.lm_head.weight\"", "\"second.lm_head.weigh#\"",
          "second.lm_head.weight" },
        { "q_proj.weight\":{\"dtype\":\"F32\",\"shape\":[16,8]",
          "q_proj.weight\":{\"dtype\":\"F32\",\"shape\":[8,16]",
          "q_proj.weight" },
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        replace_in_state(bytes, length, rows[k].from, rows[k].to);
        expect_no_load(STATUS_OK, rows[k].about);
    }
    free(bytes);
    training_free(&run);
    end_text();
}
END_TEST

START_TEST(a_state_with_more_tensors_than_the_model_is_refused)
{
    struct training run;
    begin_text("bytes");
    begin_run(&run, 1, 256);
    expect_ok(training_save(&run, directory, &error), &error);
    struct safetensors *file = NULL;
    expect_ok(safetensors_open(&file, below("training.safetensors"), &error),
              &error);
    const size_t count = safetensors_count(file);
    struct safetensors_entry *entries = calloc(count + 1, sizeof *entries);
    for (size_t k = 0; k < count; k++)
        entries[k] = *safetensors_at(file, k);
    entries[count] = entries[0];
    entries[count].name = "model.one.more";
    static const char *const keys[] = {
        "config", "batch", "tokens", "steps", "warmup", "learning_rate",
        "weight_decay", "step", "generator.state", "generator.increment",
        "text.length", "text.fingerprint" };
    struct safetensors_pair pairs[COUNT(keys)];
    for (size_t k = 0; k < COUNT(keys); k++)
        pairs[k] = (struct safetensors_pair){
            keys[k], safetensors_metadata(file, keys[k]) };
    for (size_t more = 0; more < 2; more++) {
        expect_ok(safetensors_write(below("training.safetensors"), entries,
                                    count + 1 - more, pairs, COUNT(keys),
                                    &error), &error);
        if (more == 0)
            expect_no_load(STATUS_FORMAT, "tensors");
    }
    struct training again;
    expect_ok(training_load(&again, directory, &text, &error), &error);
    training_free(&again);
    free(entries);
    safetensors_close(&file);
    training_free(&run);
    end_text();
}
END_TEST

START_TEST(another_text_does_not_continue_a_run)
{
    struct training run;
    begin_text("bytes");
    begin_run(&run, 2, 256);
    expect_ok(training_save(&run, directory, &error), &error);
    text.fingerprint ^= 1;
    expect_no_load(STATUS_INVALID, "text");
    text.fingerprint ^= 1;
    text.length--;
    expect_no_load(STATUS_INVALID, "text");
    text.length++;
    training_free(&run);
    end_text();
}
END_TEST

START_TEST(saving_and_loading_without_memory_leave_nothing)
{
    begin_text("bytes");
    for (int family = 0; family < FAMILIES; family++) {
        const struct hub_config config = family_config(family, 256);
        struct training run, loaded = {0};
        struct learner learner = {0};
        struct generator generator = { 1, 3 };
        begin_run(&run, family, 256);
        for (int call = 0; call < 5; call++)
            for (long n = 1;; n++) {
                int vocab_size;
                if (call == 3)
                    training_free(&loaded);
                const long live = allocator_live();
                allocator_fail_at(n);
                const enum status status =
                    call == 0 ? training_save(&run, directory, &error)
                    : call == 1 ? training_load(&loaded, directory, &text,
                                                &error)
                    : call == 2 ? learner_new(&learner, &config, NULL, &error)
                    : call == 3 ? training_new(&loaded, &learner, &quick,
                                               &text, &generator, &error)
                    : training_vocab_size(directory, &vocab_size, &error);
                const long left = allocator_live();
                if (!allocator_stop())
                    break;
                ck_assert_int_eq(status, STATUS_NO_MEMORY);
                ck_assert_int_eq(left, live);
                ck_assert(call == 0 || call == 4
                          || (call == 2 ? learner.gpt == NULL
                                          && learner.llama == NULL
                                        : loaded.ids == NULL));
            }
        training_free(&loaded);
        training_free(&run);
    }
    end_text();
}
END_TEST

START_TEST(a_full_disk_leaves_the_last_state)
{
    struct training run;
    struct rlimit limit, full;
    float loss;
    begin_text("bytes");
    begin_run(&run, 1, 256);
    expect_ok(training_save(&run, directory, &error), &error);
    ck_assert_int_eq(mkdir(below("was"), 0777), 0);
    expect_ok(training_save(&run, below("was"), &error), &error);
    take_steps(&run, 1, &loss);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    full = limit;
    full.rlim_cur = 10000;
    setrlimit(RLIMIT_FSIZE, &full);
    const enum status status = training_save(&run, directory, &error);
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(status, STATUS_IO);
    expect_named(&error, "training.safetensors");
    ck_assert(same_file("training.safetensors", "was/training.safetensors"));
    ck_assert(same_file("model.safetensors", "was/model.safetensors"));
    training_free(&run);
    end_text();
}
END_TEST

/* ------------------------------------------------------------- the command */

static const char *train(int expected, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static const char *train(int expected, const char *format, ...)
{
    char arguments[2000], all[2100];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(all, sizeof all, "train %s", arguments);
    return run_program(all, expected);
}

#define TINY "--context 16 --d-model 8 --layers 1 --heads 2 --batch 2 "

/* The losses that a log reports. */
static int read_losses(const char *name, char losses[][32])
{
    FILE *file = fopen(below(name), "r");
    char line[256];
    int count = 0, step;
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "{\"step\":%d,\"loss\":%31[^,]", &step,
                   losses[count]) == 2)
            ck_assert_int_eq(step, ++count);
    fclose(file);
    return count;
}

/* During the warm-up the rate does not depend on the run's length, so one of
   4 steps that is made longer is one of 10. */
START_TEST(train_makes_each_family_and_resumes_exactly)
{
    char whole[16][32], parts[16][32];
    make_directory();
    write_lines("text");
    for (int family = 0; family < FAMILIES; family++) {
        const char *name = family_names[family];
        struct checkpoint *checkpoint = NULL;
        train(0, "--text %s --family %s --out %s --log %s --steps 10 "
              "--warmup 20 " TINY, below("text"), name, below(name),
              below("whole.log"));
        train(0, "--text %s --family %s --out %s --log %s --steps 4 "
              "--warmup 20 " TINY, below("text"), name, below("part"),
              below("part.log"));
        train(0, "--text %s --resume %s --steps 10 --log %s", below("text"),
              below("part"), below("part.log"));
        ck_assert_int_eq(read_losses("whole.log", whole), 10);
        ck_assert_int_eq(read_losses("part.log", parts), 10);
        for (int k = 0; k < 10; k++)
            ck_assert_str_eq(whole[k], parts[k]);
        char model[64];
        snprintf(model, sizeof model, "%s/model.safetensors", name);
        ck_assert(same_file(model, "part/model.safetensors"));
        expect_ok(checkpoint_open(&checkpoint, below(name), &error), &error);
        ck_assert_int_eq(checkpoint_format(checkpoint),
                         family == 0 ? FORMAT_TINY_GPT
                         : family == 1 ? FORMAT_LLAMA : FORMAT_MIXTRAL);
        checkpoint_close(&checkpoint);
    }
    remove_directory();
}
END_TEST

START_TEST(train_goes_on_from_a_checkpoint_and_brings_its_tokenizer)
{
    make_directory();
    write_lines("text");
    write_vocabulary();
    const char *said = train(0, "--text %s --family llama --tied --tokenizer "
        "%s --kv-heads 1 --out %s --steps 3 " TINY, below("text"), directory,
        below("a"));
    ck_assert_ptr_nonnull(strstr(said, "bits a byte"));
    ck_assert(!exists("a/tokenizer.bin"));
    ck_assert(same_file("vocab.json", "a/vocab.json"));
    ck_assert(same_file("merges.txt", "a/merges.txt"));
    train(0, "--text %s --from %s --out %s --steps 3 --context 8",
          below("text"), below("a"), below("b"));
    ck_assert(same_file("vocab.json", "b/vocab.json"));
    ck_assert(same_file("a/config.json", "b/config.json"));
    ck_assert(!same_file("a/model.safetensors", "b/model.safetensors"));
    train(0, "--text %s --resume %s --out %s --steps 5", below("text"),
          below("b"), below("c"));
    ck_assert(same_file("merges.txt", "c/merges.txt"));
    /* another tokenizer makes other ids of the same text */
    said = train(1, "--text %s --resume %s --tokenizer bytes", below("text"),
                 below("b"));
    ck_assert_ptr_nonnull(strstr(said, "text"));
    remove_directory();
}
END_TEST

/* A file of llama2.c: seven numbers, then tensors of one kind after the
   other. */
static void write_llama2c(const char *name)
{
    enum { C = 8, F = 12, L = 2, H = 2, V = 256, N = 16, D = C / H };
    const int32_t header[] = { C, F, L, H, H, V, N };
    const size_t floats = V * C + L * (2 * C + 4 * C * C + 3 * F * C) + C
                          + N * D;
    float *all = malloc(floats * sizeof *all);
    FILE *file = fopen(below(name), "wb");
    uint64_t state = noise_start(1920);
    noise_floats(&state, floats, all);
    ck_assert_ptr_nonnull(file);
    fwrite(header, sizeof header, 1, file);
    fwrite(all, sizeof *all, floats, file);
    ck_assert_int_eq(fclose(file), 0);
    free(all);
}

START_TEST(train_goes_on_from_a_file_of_llama2c)
{
    struct checkpoint *both[2] = { NULL, NULL };
    make_directory();
    write_lines("text");
    write_llama2c("model.bin");
    /* a rate of next to nothing: what is saved is what was read */
    train(0, "--text %s --from %s --out %s --steps 1 --learning-rate 1e-30 "
          "--weight-decay 0 --batch 1", below("text"), below("model.bin"),
          below("out"));
    expect_ok(checkpoint_open(&both[0], below("model.bin"), &error), &error);
    expect_ok(checkpoint_open(&both[1], below("out"), &error), &error);
    ck_assert_int_eq(checkpoint_format(both[0]), FORMAT_LLAMA2C);
    ck_assert_int_eq(checkpoint_format(both[1]), FORMAT_LLAMA);
    expect_same_model(checkpoint_llama(both[1]), checkpoint_llama(both[0]));
    checkpoint_close(&both[0]);
    checkpoint_close(&both[1]);
    remove_directory();
}
END_TEST

static void expect_said(int expected, const char *about, const char *options)
{
    char all[2000];
    snprintf(all, sizeof all, "--text %s %s", below("text"), options);
    const char *said = train(expected, "%s", all);
    ck_assert_msg(strstr(said, about) != NULL, "no word of \"%s\" in: %s",
                  about, said);
}

START_TEST(train_refuses_options_that_do_not_go_together)
{
    make_directory();
    write_lines("text");
    static const struct { const char *about, *options; } rows[] = {
        { "--family", "--out x --family bert" },
        { "--kv-heads", "--out x --kv-heads 2" },
        { "--tied", "--out x --tied" },
        { "--experts", "--out x --experts 2" },
        { "--experts", "--out x --family llama --experts 2" },
        { "--dropout", "--out x --family llama --dropout 0.1" },
        { "--d-model", "--out x --from y --d-model 8" },
        { "--family", "--out x --from y --family gpt" },
        { "--from", "--resume x --from y" },
        { "--batch", "--resume x --batch 2" },
        { "--tied", "--resume x --family llama --tied" },
    };
    for (size_t k = 0; k < COUNT(rows); k++)
        expect_said(2, rows[k].about, rows[k].options);
    remove_directory();
}
END_TEST

START_TEST(train_refuses_bad_input_of_any_family)
{
    char options[1200];
    make_directory();
    write_lines("text");
    write_llama2c("model.bin");
    const char *o = below("out");
    static const struct { const char *about, *options; } rows[] = {
        { "n_kv_heads", "--family llama --kv-heads 3" },
        { "head_dim", "--family llama --d-model 12 --heads 4" },
        { "experts_per_token", "--family mixtral --experts 2"
                               " --experts-per-token 3" },
        { "absent", "--from absent" },
        { "absent", "--tokenizer absent" },
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        snprintf(options, sizeof options, "--out %s %s", o, rows[k].options);
        expect_said(1, rows[k].about, options);
        ck_assert(!exists("out"));
    }
    snprintf(options, sizeof options, "--out %s --from %s --context 17", o,
             below("model.bin"));
    expect_said(1, "tokens", options);
    ck_assert(!exists("out"));
    ck_assert_int_eq(mkdir(o, 0777), 0);
    write_file("out/model.safetensors.index.json", "{}", 2);
    snprintf(options, sizeof options, "--out %s --family llama " TINY, o);
    expect_said(1, "index.json", options);
    ck_assert(!exists("out/config.json"));
    remove_directory();
}
END_TEST

START_TEST(train_does_not_write_over_what_it_began_from)
{
    char options[1200];
    make_directory();
    write_lines("text");
    train(0, "--text %s --family llama --out %s --steps 1 " TINY,
          below("text"), below("a"));
    train(0, "--text %s --family llama --out %s --steps 1 " TINY,
          below("text"), below("was"));
    snprintf(options, sizeof options, "--from %s --out %s/. --steps 1",
             below("a"), below("a"));
    expect_said(1, "--from", options);
    ck_assert(same_file("a/model.safetensors", "was/model.safetensors"));
    remove_directory();
}
END_TEST

/* A tokenizer of llama2.c's: three tokens that are no text, and the bytes. */
static void write_scores(const char *name)
{
    static const char *const first[] = { "<unk>", "\n<s>\n", "\n</s>\n" };
    FILE *file = fopen(below(name), "wb");
    const int32_t longest = 6;
    const float score = 0;
    ck_assert_ptr_nonnull(file);
    fwrite(&longest, sizeof longest, 1, file);
    for (int id = 0; id < 259; id++) {
        char token[8];
        if (id < 3)
            snprintf(token, sizeof token, "%s", first[id]);
        else
            snprintf(token, sizeof token, "<0x%02X>", (unsigned)(id - 3));
        const int32_t length = (int32_t)strlen(token);
        fwrite(&score, sizeof score, 1, file);
        fwrite(&length, sizeof length, 1, file);
        fwrite(token, 1, (size_t)length, file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* tokenizer_open would take the pair of the first run for the second's. */
START_TEST(train_refuses_a_directory_of_another_tokenizer)
{
    char options[1200];
    make_directory();
    write_lines("text");
    write_vocabulary();
    write_scores("scores.bin");
    for (int again = 0; again < 2; again++)
        train(0, "--text %s --tokenizer %s --out %s --steps 1 " TINY,
              below("text"), below("vocab.json"), below("a"));
    train(0, "--text %s --tokenizer %s --out %s --steps 1 " TINY,
          below("text"), below("vocab.json"), below("was"));
    for (int named = 0; named < 2; named++) {
        char tokenizer[300] = "";
        if (named)
            snprintf(tokenizer, sizeof tokenizer, "--tokenizer %s",
                     below("scores.bin"));
        snprintf(options, sizeof options, "%s --out %s --steps 1 " TINY,
                 tokenizer, below("a"));
        expect_said(1, "vocab.json", options);
        expect_said(1, "another tokenizer", options);
        ck_assert(!exists("a/tokenizer.bin"));
        ck_assert(same_file("a/vocab.json", "was/vocab.json"));
        ck_assert(same_file("a/model.safetensors", "was/model.safetensors"));
    }
    /* what goes on with its own tokenizer is not in its own way */
    train(0, "--text %s --resume %s --steps 2", below("text"), below("a"));
    train(0, "--text %s --resume %s --out %s --steps 3", below("text"),
          below("a"), below("b"));
    train(0, "--text %s --resume %s --tokenizer %s --steps 4", below("text"),
          below("b"), below("vocab.json"));
    remove_directory();
}
END_TEST

/* A log may lie in the directory, which is made for it. */
START_TEST(train_is_refused_before_it_writes)
{
    char options[1200];
    make_directory();
    write_lines("text");
    write_vocabulary();
    ck_assert_int_eq(mkdir(below("out"), 0777), 0);
    snprintf(options, sizeof options, "--tokenizer %s --out %s --log %s "
             "--steps 1 " TINY, below("vocab.json"), below("out"),
             below("absent/log"));
    expect_said(1, "absent/log", options);
    /* not a file was left: a directory that is empty can be removed */
    ck_assert_int_eq(rmdir(below("out")), 0);
    snprintf(options, sizeof options, "--tokenizer %s --out %s --log %s "
             "--steps 1 " TINY, below("vocab.json"), below("out"),
             below("out/log"));
    expect_said(0, "saved", options);
    ck_assert(exists("out/log"));
    ck_assert(same_file("vocab.json", "out/vocab.json"));
    remove_directory();
}
END_TEST

static const struct test tests[] = {
    TEST(a_text_of_bytes_is_its_corpus, 2, "draw windows of tokens"),
    TEST(no_token_lies_in_both_parts, 2,
         "encode the training part and the rest apart"),
    TEST(ids_that_agree_in_a_byte_have_other_fingerprints, 2,
         "add an id to the fingerprint"),
    TEST(a_text_is_refused_that_is_short_or_of_another_vocabulary, 2,
         "refuse a text with an id that the model does not have"),
    TEST(a_text_without_memory_leaves_nothing, 2, "encode a text"),
    TEST(fresh_branches_end_in_smaller_numbers, 2,
         "let deviation be that of a tensor of this name"),
    TEST(a_tied_table_is_drawn_once, 2, "fresh weights of a llama"),
    TEST(a_hub_config_says_whether_it_has_experts, 2,
         "write the fields that experts have"),
    TEST(a_hub_config_reads_back_as_it_was, 2,
         "write the fields that a config has"),
    TEST(a_saved_llama_opens_with_the_same_bits, 2,
         "list the tensor once, and not its second name"),
    TEST(a_llama_that_is_saved_read_and_saved_is_the_same_bytes, 2,
         "list the tensor once, and not its second name"),
    TEST(a_directory_of_shards_is_not_written_into, 2,
         "refuse a directory in which something else would win"),
    TEST(a_save_without_memory_or_room_leaves_the_last_one, 2,
         "publish a pair of drafts"),
    TEST(a_tokenizer_comes_along, 2, "copy what lies beside the model"),
    TEST(the_tokenizer_that_was_named_comes_along_alone, 2,
         "copy the one tokenizer that was named"),
    TEST(a_tokenizer_without_memory_is_not_copied_in_part, 2,
         "copy one file"),
    TEST(a_directory_with_another_tokenizer_is_refused, 2,
         "compare the bytes of a file and its original"),
    TEST(a_fresh_model_gets_the_tokenizer_that_was_opened, 2,
         "name the candidates"),
    TEST(a_check_without_memory_leaves_nothing, 2,
         "refuse a file that is no copy"),
    TEST(a_tiny_gpt_trains_as_in_chapter_3, 2, "one step of any family"),
    TEST(a_run_that_chapter_3_saved_goes_on_here, 2,
         "take the moments of the record as well"),
    TEST(the_loss_falls_in_every_family, 2, "one step of any family"),
    TEST(what_was_saved_opens_with_the_bits_of_what_was_trained, 3,
         "save a run of any family"),
    TEST(a_resumed_run_repeats_an_uninterrupted_one, 3,
         "take the moments of the record as well"),
    TEST(a_checkpoint_of_others_can_be_continued, 3, "make a learner"),
    TEST(two_steps_begin_from_every_format, 3, "make a learner"),
    TEST(a_run_refuses_what_it_cannot_train_by, 2,
         "make and free a run of any family"),
    TEST(a_loss_that_is_not_finite_leaves_the_run_as_it_was, 2,
         "refuse to follow a loss that is not finite"),
    TEST(a_failed_step_can_be_taken_again, 2, "one step of any family"),
    TEST(a_damaged_state_is_refused, 2,
         "refuse a tensor that the state lacks or has in another shape"),
    TEST(a_state_with_more_tensors_than_the_model_is_refused, 2,
         "fill the three blocks from a state"),
    TEST(another_text_does_not_continue_a_run, 2,
         "refuse another text than the run's"),
    TEST(saving_and_loading_without_memory_leave_nothing, 2,
         "load a run of any family"),
    TEST(a_full_disk_leaves_the_last_state, 2, "save a run of any family"),
    TEST(train_makes_each_family_and_resumes_exactly, 3,
         "begin a run from one of three places"),
    TEST(train_goes_on_from_a_checkpoint_and_brings_its_tokenizer, 3,
         "bring the tokenizer along"),
    TEST(train_goes_on_from_a_file_of_llama2c, 3,
         "begin with the weights of a checkpoint"),
    TEST(train_refuses_options_that_do_not_go_together, 2,
         "refuse options that the family does not have"),
    TEST(train_refuses_bad_input_of_any_family, 2,
         "the config of fresh weights"),
    TEST(train_does_not_write_over_what_it_began_from, 2,
         "refuse to write over the model that was read"),
    TEST(train_refuses_a_directory_of_another_tokenizer, 3,
         "refuse a directory that would not open as what is saved"),
    TEST(train_is_refused_before_it_writes, 3,
         "prepare what the run writes into"),
};

SUITE("19c: training any of them", tests);
