/* check_checkpoint, used: directories with models and records that are right,
   and with one number of a record that is not. --program says where it is.

   The records of a run come from chapter 2's forward pass over the whole
   prefix, again for every token, and those of texts from the encoder by the
   definition: the checker has a cache and the library's encoder. */
#include <math.h>
#include "support/formats.h"
#include "support/program.h"
#include "support/tokenizers.h"

enum { V = 269, N = 280, RUN = 270, SHORT = 12 };

/* -------------------------------------------------------------- the models */

static struct tiny_gpt *gpt;        /* whose files are at hand */
static struct scored *scored;

/* GPT-2 as the hub has it, with llama2.c's tokenizer beside it: that one
   begins a text. */
static const char *new_gpt2(void)
{
    const struct gpt_config config = {
        .vocab_size = V, .context_length = N, .d_model = 12, .n_layers = 2,
        .n_heads = 2, .d_ff = 20, .layer_norm_eps = 1e-5, .tanh_gelu = 1
    };
    static const char *const words[] = {" ", "a", "b", "c", "\xC3\xA9", "ab",
                                        "bc", " a", "aa", "abc"};
    const char *directory = new_directory();
    struct hub_file file = {.count = 0};
    tiny_gpt_free(&gpt);
    gpt = noisy_model(&config, 1);
    gpt2_tensors(&file, gpt, DTYPE_F32, "");
    hub_write(&file, directory, gpt2_text(&config, ""));
    hub_clear(&file);
    scored = scored_bytes();
    for (int k = 0; k < 10; k++)
        scored_add(scored, words[k], (float)(k % 4) - 2);
    scored_write(scored);
    ck_assert_int_eq(scored->tokens, V);
    write_bytes(in(directory, "tokenizer.bin"), scored->file, scored->length);
    return directory;
}

static void models_free(void)
{
    tiny_gpt_free(&gpt);
    if (scored != NULL)
        scored_free(scored);
    scored = NULL;
}

/* A file of llama2.c, alone in its directory but for one that is no model. */
static const char *new_llama2c(float first)
{
    const struct llama_config config = {
        .vocab_size = 13, .context_length = N, .d_model = 24, .n_layers = 2,
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .d_ff = 7,
        .rms_norm_eps = 1e-5, .rope_theta = 10000
    };
    const char *directory = new_directory();
    struct llama *llama = noisy_llama(&config, 2);
    size_t length;
    llama_tensor_find(llama, "model.norm.weight")->tensor->data[0] = first;
    unsigned char *bytes = llama2c_bytes(llama, &length);
    write_bytes(in(directory, "model.bin"), bytes, length);
    write_text(in(directory, "other.bin"), "no model");
    free(bytes);
    llama_free(&llama);
    return directory;
}

/* --------------------------------------------------------------- the record */

struct ranked { int first, second, last; float margin; };

static struct ranked rank(const float *row)
{
    struct ranked r = {0, -1, 0, 0};
    for (int id = 1; id < V; id++) {
        if (row[id] > row[r.first]) {
            r.second = r.first;
            r.first = id;
        } else if (r.second < 0 || row[id] > row[r.second])
            r.second = id;
        r.last = row[id] < row[r.last] ? id : r.last;
    }
    r.margin = row[r.first] - row[r.second];
    return r;
}

/* The row [V] behind all of these ids. */
static void row_behind(const int32_t *ids, int count, float *row)
{
    const struct forward_input input = {.ids = ids, .batch = 1,
                                        .tokens = count};
    struct forward_output output = {0};
    expect_ok(tiny_gpt_forward(gpt, &input, &output, &error), &error);
    memcpy(row, output.logits.data + (count - 1) * V, V * sizeof *row);
    forward_output_free(&output);
}

static int32_t ids[RUN];
static float rows[RUN][V];

/* A prompt of three ids, then the greedy ones. Where the two largest logits
   are so near each other that rounding decides, the run is told another id:
   a record does not say where its prompt ends. */
static void run(int count)
{
    uint64_t state = noise_start(3);
    for (int k = 0; k < count; k++) {
        ids[k] = k < 3 ? noise_below(&state, V) : rank(rows[k - 1]).first;
        row_behind(ids, k + 1, rows[k]);
        while (rank(rows[k]).margin < 1e-4f) {
            ids[k] = (ids[k] + 1) % V;
            row_behind(ids, k + 1, rows[k]);
        }
    }
}

/* What is altered in a record; the line of a run, or none. */
enum fault {
    NONE, ID_IN, ID_OUT, FIRST_LOGIT, SECOND_ID, SECOND_LOGIT, LOGIT_OF_ALL,
    PLACE_OF_ALL, ID_OF_TEXT, ID_MORE, ID_LESS, PROMPT_ID, GREEDY_ID,
    ROW_LOGIT, ROW_PLACE
};

static void write_greedy(const char *directory, int count, enum fault fault,
                         int at)
{
    FILE *file = fopen(in(directory, "greedy_ids.txt"), "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "a run of another program\n");
    for (int k = 0; k < count; k++) {
        const struct ranked r = rank(rows[k]);
        const enum fault here = k == at ? fault : NONE;
        fprintf(file, "%d %d %d %.9g %d %.9g\n", k,
                here == ID_IN ? (ids[k] + 1) % V : (int)ids[k],
                here == ID_OUT ? r.second : r.first,
                (double)rows[k][r.first] + (here == FIRST_LOGIT ? 0.01 : 0),
                here == SECOND_ID ? r.last : r.second,
                (double)rows[k][r.second] - (here == SECOND_LOGIT ? 0.01 : 0));
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* Positions `from` and each third behind it. */
static void write_logits(const char *directory, const char *name, int from,
                         int count, enum fault fault)
{
    FILE *file = fopen(in(directory, name), "w");
    ck_assert_ptr_nonnull(file);
    for (int k = from; k < count; k += 3) {
        const bool last = k + 3 >= count;
        fprintf(file, "# pos %d\n",
                last && fault == PLACE_OF_ALL ? count : k);
        for (int id = 0; id < V; id++)
            fprintf(file, "%d %.9g\n", id, (double)rows[k][id]
                    + (last && id == V - 1 && fault == LOGIT_OF_ALL));
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void write_texts(const char *directory, enum fault fault)
{
    static const char *const texts[] = {
        "", "abc", "ab a\n", "\xC3\xA9\xE2\x82\xAC", "\377aab", " ", "x"
    };
    FILE *file = fopen(in(directory, "encode_ids.txt"), "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "# text in hex | ids\n");
    for (int k = 0; k < 7; k++) {
        int32_t made[64] = {1};
        const int length = (int)strlen(texts[k]);
        int count = 1 + slow_scores(scored, texts[k], length, true, made + 1);
        if (k == 4 && fault == ID_OF_TEXT)
            made[count - 1]++;
        if (k == 4 && fault == ID_MORE)
            made[count++] = 5;
        if (k == 4 && fault == ID_LESS)
            count--;
        for (int at = 0; at < length; at++)
            fprintf(file, "%02x", (unsigned)(unsigned char)texts[k][at]);
        fprintf(file, "%s |", length == 0 ? "-" : "");
        for (int at = 0; at < count; at++)
            fprintf(file, " %d", (int)made[at]);
        fprintf(file, "\n");
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* Six steps behind two ids, chosen so that no rounding decides. */
static void write_expected(const char *directory, bool all, enum fault fault)
{
    enum { P = 2, STEPS = 6 };
    int64_t prompt[P], greedy[STEPS], index[] = {0, 1, STEPS - 1};
    float made[STEPS][V];
    int32_t text[P + STEPS];
    uint64_t state = noise_start(4);
    for (int k = 0; k < STEPS; k++) {
        for (int p = 0; k == 0 && p < P; p++)
            prompt[p] = text[p] = noise_below(&state, V);
        row_behind(text, P + k, made[k]);
        greedy[k] = text[P + k] = rank(made[k]).first;
        if (rank(made[k]).margin < 1e-4f)
            k = -1;
    }
    const struct ranked last = rank(made[STEPS - 1]);
    if (!all)
        for (int n = 0; n < 3; n++)
            memmove(made[n], made[index[n]], sizeof made[0]);
    const int kept = all ? STEPS : 3;
    prompt[P - 1] += fault == PROMPT_ID ? (prompt[P - 1] == 0 ? 1 : -1) : 0;
    greedy[STEPS - 1] = fault == GREEDY_ID ? last.second
                                           : greedy[STEPS - 1];
    made[kept - 1][V / 2] += fault == ROW_LOGIT ? 0.01f : 0;
    index[1] += fault == ROW_PLACE;
    const struct safetensors_entry entries[] = {
        {"in.prompt", DTYPE_I64, 2, {1, P}, prompt, sizeof prompt},
        {"out.greedy", DTYPE_I64, 2, {1, STEPS}, greedy, sizeof greedy},
        {"out.rows", DTYPE_F32, 2, {kept, V}, made,
         (size_t)kept * sizeof made[0]},
        {"out.rows.index", DTYPE_I64, 1, {3}, index, sizeof index}
    };
    write_tensors(in(directory, "expected.safetensors"), entries,
                  all ? 3 : 4);
}

/* -------------------------------------------------------------- the verdict */

/* What it says of what is at path, ending with this status. */
static const char *verdict(const char *path, int status)
{
    char quoted[600];
    snprintf(quoted, sizeof quoted, "'%s'", path);
    return run_program(quoted, status);
}

static void expect_line(const char *said, const char *line)
{
    ck_assert_msg(strstr(said, line) != NULL, "no \"%s\" in: %s", line, said);
}

/* Of all kinds of records this one differs; the others do not. */
static void expect_differs(const char *directory, int kinds,
                           const char *what)
{
    char line[100];
    const char *said = verdict(directory, 1), *differs;
    snprintf(line, sizeof line, "\n%d of %d records agree: NOT the same"
             " model\n", kinds - 1, kinds);
    expect_line(said, line);
    differs = strstr(said, "DIFFERS ");
    ck_assert_ptr_nonnull(differs);
    ck_assert_ptr_null(strstr(differs + 1, "DIFFERS "));
    ck_assert_msg(strstr(differs, what) != NULL
                  && strstr(differs, what) < strchr(differs, '\n'),
                  "expected \"%s\" to differ: %s", what, said);
}

START_TEST(every_right_record_agrees)
{
    const char *directory = new_gpt2();
    run(RUN);
    write_greedy(directory, RUN, NONE, 0);
    write_logits(directory, "logits.txt", 0, RUN, NONE);
    write_logits(directory, "logits-of-both-ends.txt", RUN - 1, RUN, NONE);
    write_texts(directory, NONE);
    write_expected(directory, true, NONE);
    const char *said = verdict(directory, 0);
    expect_line(said, ": GPT-2, 269 ids, 28 tensors in ");
    expect_line(said, "\nok      270 recorded greedy tokens (");
    expect_line(said, "\nok      24210 logits of 90 positions in logits.txt");
    expect_line(said, "\nok      269 logits of 1 positions in"
                " logits-of-both-ends.txt");
    expect_line(said, "\nok      ids of 7 texts\n");
    expect_line(said, "\nok      6 greedy tokens and 6 rows of"
                " expected.safetensors");
    expect_line(said, "\n5 of 5 records agree\n");
    ck_assert_ptr_null(strstr(said, "cached greedy tokens"));
    write_expected(directory, false, NONE);
    expect_line(verdict(directory, 0), "6 greedy tokens and 3 rows of");
    models_free();
}
END_TEST

START_TEST(one_number_of_a_greedy_run_is_enough)
{
    static const enum fault faults[] = {ID_IN, ID_OUT, FIRST_LOGIT, SECOND_ID,
                                        SECOND_LOGIT};
    const char *directory = new_gpt2();
    run(SHORT);
    for (int f = 0; f < 5; f++)
        for (int at = 0; at < SHORT; at += SHORT - 1) {
            write_greedy(directory, SHORT, faults[f], at);
            expect_differs(directory, 1, "12 recorded greedy tokens");
        }
    write_greedy(directory, SHORT, ID_OUT, 5);
    expect_line(verdict(directory, 1), ": 1 of them differ;");
    write_greedy(directory, 0, NONE, 0);
    expect_differs(directory, 1, "0 recorded greedy tokens");
    write_greedy(directory, SHORT, NONE, 0);
    verdict(directory, 0);
    models_free();
}
END_TEST

START_TEST(one_logit_of_a_position_is_enough)
{
    static const enum fault faults[] = {LOGIT_OF_ALL, PLACE_OF_ALL};
    const char *directory = new_gpt2();
    run(SHORT);
    write_greedy(directory, SHORT, NONE, 0);
    write_logits(directory, "logits.txt", 0, SHORT, NONE);
    for (int f = 0; f < 2; f++) {
        write_logits(directory, "logits2.txt", 2, SHORT, faults[f]);
        expect_differs(directory, 3, "positions in logits2.txt");
    }
    write_text(in(directory, "logits2.txt"), "# pos 0\n");
    expect_differs(directory, 3, "0 logits of 1 positions in logits2.txt");
    models_free();
}
END_TEST

START_TEST(one_id_of_a_text_is_enough)
{
    static const enum fault faults[] = {ID_OF_TEXT, ID_MORE, ID_LESS};
    const char *directory = new_gpt2();
    run(SHORT);
    write_greedy(directory, SHORT, NONE, 0);
    for (int f = 0; f < 3; f++) {
        write_texts(directory, faults[f]);
        expect_differs(directory, 2, "ids of 7 texts: 1 of them differ");
    }
    write_text(in(directory, "encode_ids.txt"), "# nothing\n");
    expect_differs(directory, 2, "ids of 0 texts");
    models_free();
}
END_TEST

START_TEST(one_number_of_the_oracle_is_enough)
{
    static const enum fault faults[] = {PROMPT_ID, GREEDY_ID, ROW_LOGIT,
                                        ROW_PLACE};
    const char *directory = new_gpt2();
    for (int f = 0; f < 4; f++)
        for (int all = faults[f] != ROW_PLACE; all >= 0; all--) {
            write_expected(directory, all, faults[f]);
            expect_differs(directory, 1, "of expected.safetensors");
        }
    models_free();
}
END_TEST

/* Where nothing is recorded, or texts alone. */
START_TEST(a_model_without_a_record_is_held_against_itself)
{
    static const char *const line = "\nok      256 cached greedy tokens"
        " against one call over all of them (nothing is recorded here);";
    const char *directory = new_gpt2(), *said = verdict(directory, 0);
    expect_line(said, line);
    expect_line(said, "\n1 of 1 records agree\n");
    write_texts(directory, NONE);
    said = verdict(directory, 0);
    expect_line(said, line);
    expect_line(said, "\n2 of 2 records agree\n");
    write_texts(directory, ID_MORE);
    expect_differs(directory, 2, "ids of 7 texts");
    models_free();
    said = verdict(write_format(OWN), 0);
    expect_line(said, "\nok      9 cached greedy tokens against one call");
}
END_TEST

/* Both ways through such a model say the same nothing. */
START_TEST(a_model_that_says_no_numbers_is_not_itself)
{
    const char *directory = new_llama2c(NAN);
    expect_differs(directory, 1, "256 cached greedy tokens");
    expect_line(verdict(directory, 1), "largest difference of a logit inf");
}
END_TEST

START_TEST(a_file_of_llama2c_is_found_in_its_directory)
{
    const char *directory = new_llama2c(1);
    const char *const paths[] = {directory, in(directory, "model.bin")};
    for (int k = 0; k < 2; k++) {
        const char *said = verdict(paths[k], 0);
        expect_line(said, "/model.bin: ");
        expect_line(said, ", 13 ids, ");
        expect_line(said, "\nok      256 cached greedy tokens");
    }
    write_text(in(directory, "encode_ids.txt"), "- | 1\n");
    expect_line(verdict(paths[1], 1), "tokenizer");
}
END_TEST

START_TEST(what_is_no_model_is_told)
{
    const char *directory = new_directory();
    expect_line(run_program("", 2), "usage: check_checkpoint DIRECTORY");
    expect_line(run_program("one two", 2), "usage: ");
    expect_line(verdict("no/such/model", 1), "no/such/model");
    write_text(in(directory, "other.bin"), "no model");
    expect_line(verdict(directory, 1), "no config.json, and no .bin file");
    expect_line(verdict(in(directory, "other.bin"), 1), "other.bin");
}
END_TEST

static const struct test tests[] = {
    TEST(what_is_no_model_is_told, 0, "check_checkpoint"),
    TEST(a_file_of_llama2c_is_found_in_its_directory, 0, "check_checkpoint"),
    TEST(a_model_without_a_record_is_held_against_itself, 0,
         "check_checkpoint"),
    TEST(a_model_that_says_no_numbers_is_not_itself, 0, "check_checkpoint"),
    TEST(every_right_record_agrees, 0, "check_checkpoint"),
    TEST(one_number_of_a_greedy_run_is_enough, 0, "check_checkpoint"),
    TEST(one_logit_of_a_position_is_enough, 0, "check_checkpoint"),
    TEST(one_id_of_a_text_is_enough, 0, "check_checkpoint"),
    TEST(one_number_of_the_oracle_is_enough, 0, "check_checkpoint"),
};

SUITE("check_checkpoint", tests);
