/* The re-solve tool from end to end: beginning, choosing, seeding, revealing,
   abandoning, what is refused, and what is never written. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ends.h"
#include "process.h"

static const char key[] = "5";
static const char blank_5[] =
    "BLANK(\"decide whether query i may see key j\");";
/* A body for that blank that shows what a chunk shifts. */
static const char wrong_body[] =
    "keep[i * (past + queries) + j] = j < past + i + zanzibar;";

static void blank(const char *level)
{
    ck_assert_msg(resolve("blank", key, "--level", level, NULL) == 0, "%s",
                  complained);
}

static void grade(int status)
{
    ck_assert_msg(resolve("grade", key, NULL) == status, "%s%s", said,
                  complained);
}

static void solve(void)
{
    blank("chunk");
    paste_chunks(stages_find(&stages, key));
    grade(0);
}

static void expect_last(const char *event)
{
    cJSON *last = log_last();
    ck_assert_ptr_nonnull(last);
    ck_assert_str_eq(text_in(last, "event"), event);
    cJSON_Delete(last);
}

static void expect_wrong(const char *wrong)
{
    cJSON *last = log_last();
    ck_assert_str_eq(text_in(last, "event"), "reveal");
    ck_assert_str_eq(text_in(last, "wrong"), wrong);
    cJSON_Delete(last);
}

/* Refused: no success, a word about it, and the log as before. */
static void expect_refused(int status, int expected)
{
    ck_assert_msg(status == expected, "%d: %s%s", status, said, complained);
    ck_assert_msg(complained[0] != '\0', "refused without a word");
}

/* ------------------------------------------------------------- the answer */

/* Every name in the chunk is on the page. */
static void expect_words_of(const char *root)
{
    char *body = right_text(5, root);
    for (char *at = body; *at != '\0'; ) {
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        char *word = text_format("%.*s", (int)length, at);
        if (length > 2)
            ck_assert_msg(strstr(said, word) != NULL, "no \"%s\" in: %s",
                          word, said);
        free(word);
        at += length > 0 ? length : 1;
    }
    free(body);
}

static void expect_whole_answer(void)
{
    const struct stage *stage = stages_find(&stages, key);
    for (size_t i = 0; i < stage->blanks.count; i++)
        expect_words_of(stage->blanks.items[i]);
}

START_TEST(an_answer_before_any_grade_is_refused_once)
{
    place_make();
    blank("chunk");
    expect_refused(resolve("reveal", key, "--wrong", "impatience", NULL), 1);
    ck_assert_ptr_null(strstr(said, "the book"));
    ck_assert_int_eq(result_of(key), RESULT_OPEN);
    expect_last("refuse");
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "impatience", NULL),
                     0);
    expect_whole_answer();
    expect_wrong("impatience");
    ck_assert_int_eq(result_of(key), RESULT_REVEALED);
    place_remove();
}
END_TEST

START_TEST(an_answer_asks_for_the_first_wrong_decision)
{
    place_make();
    blank("chunk");
    grade(1);
    expect_refused(resolve("reveal", key, NULL), 1);
    type_in("");
    expect_refused(resolve("reveal", key, NULL), 1);
    type_in("  \t \nlate");
    expect_refused(resolve("reveal", key, NULL), 1);
    expect_last("grade");
    ck_assert_int_eq(result_of(key), RESULT_OPEN);
    type_in("counted from the wrong corner\nand more\n");
    ck_assert_int_eq(resolve("reveal", key, NULL), 0);
    expect_wrong("counted from the wrong corner");
    expect_whole_answer();
    /* asked again, it answers without a question and without an event */
    ck_assert_int_eq(resolve("reveal", key, NULL), 0);
    expect_whole_answer();
    ck_assert_int_eq(log_count("reveal"), 1);
    place_remove();
}
END_TEST

START_TEST(the_readers_words_stand_beside_the_books)
{
    place_make();
    blank("chunk");
    write_into(key, "mask.c", replaced(read_from(key, "mask.c"), blank_5,
                                       wrong_body));
    grade(1);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    expect_says(said, "zanzibar");
    expect_whole_answer();
    ck_assert_ptr_null(strstr(said, "end of <<"));
    place_remove();
}
END_TEST

START_TEST(a_pass_stays_a_pass_when_the_answer_is_seen)
{
    place_make();
    solve();
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    ck_assert_int_eq(resolve("reveal", key, NULL), 0);
    expect_words_of("decide whether query i may see key j");
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    ck_assert_int_eq(log_count("reveal"), 0);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "late", NULL), 0);
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    place_remove();
}
END_TEST

static void reveal_at(const char *level, const char *code)
{
    place_make();
    blank(level);
    char *text = read_from(key, "mask.c");
    char *at = strstr(text, "BLANK(");
    char *fresh = at == NULL ? text_format("%s%s", text, code)
        : text_format("%.*sint zanzibar = 1; %s", (int)(at - text), text, at);
    write_into(key, "mask.c", fresh);
    grade(1);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    expect_says(said, "zanzibar");
    expect_whole_answer();
    ck_assert_int_eq(result_of(key), RESULT_REVEALED);
    free(text);
    free(fresh);
    place_remove();
}

START_TEST(blank_functions_are_answered_whole)
{
    reveal_at("function", "");
}
END_TEST

START_TEST(empty_files_are_answered_by_function)
{
    reveal_at("empty", "#include \"mask.h\"\nvoid causal_mask(int past, int"
              " queries, bool *keep)\n{ int zanzibar = past; keep[0] ="
              " queries > zanzibar; }\n");
}
END_TEST

START_TEST(without_marks_the_books_is_shown)
{
    place_make();
    blank("chunk");
    write_into(key, "mask.c", "int zanzibar;\n");
    grade(1);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    expect_whole_answer();
    place_remove();
}
END_TEST

START_TEST(without_a_folder_the_books_is_shown)
{
    place_make();
    blank("function");
    grade(1);
    ck_assert_int_eq(rename(folder_of(key), below("elsewhere")), 0);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    expect_whole_answer();
    place_remove();
}
END_TEST

START_TEST(any_word_for_the_wrong_decision_leaves_the_log_whole)
{
    static char long_word[5000];
    memset(long_word, 'x', sizeof long_word - 1);
    const char *const words[] = {
        "a \"quoted\" \\ word", "tab\there", "\xff\xfe not UTF-8",
        "\xe2\x80\xa6 UTF-8", "%s %n", "{\"event\":\"start\"}", long_word
    };
    place_make();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ck_assert_int_eq(resolve("blank", "1", NULL), 0);
        resolve("reveal", "1", "--wrong", words[i], NULL);
        ck_assert_msg(resolve("reveal", "1", "--wrong", words[i], NULL) == 0,
                      "%s", complained);
        ck_assert_int_eq(result_of("1"), RESULT_REVEALED);
        cJSON_Delete(log_read());
    }
    ck_assert_int_eq(log_count("reveal"), 7);
    place_remove();
}
END_TEST

/* ---------------------------------------------------- beginning and ending */

static int folders_of(const char *name)
{
    DIR *open = opendir(below("attempts/%s", name));
    int count = 0;
    ck_assert_ptr_nonnull(open);
    for (struct dirent *entry; (entry = readdir(open)) != NULL; )
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

START_TEST(a_running_attempt_is_begun_anew_only_when_asked)
{
    place_make();
    blank("chunk");
    write_into(key, "mask.c", "/* mine */\n");
    unsigned long long before = tree_sum(below("attempts"), NULL);
    expect_refused(resolve("blank", key, NULL), 1);
    expect_refused(resolve("blank", key, "--level", "empty", NULL), 1);
    ck_assert(before == tree_sum(below("attempts"), NULL));
    char first[8192];
    snprintf(first, sizeof first, "%s", folder_of(key));
    before = tree_sum(first, NULL);
    ck_assert_int_eq(resolve("blank", key, "--restart", NULL), 0);
    ck_assert_int_eq(log_count("abandon"), 1);
    ck_assert_int_eq(log_count("start"), 2);
    ck_assert_str_ne(first, folder_of(key));
    ck_assert(before == tree_sum(first, NULL));
    /* another stage is not in the way */
    ck_assert_int_eq(resolve("blank", "4", NULL), 0);
    place_remove();
}
END_TEST

START_TEST(attempts_within_a_second_have_folders_of_their_own)
{
    place_make();
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(resolve("blank", "1", "--restart", NULL), 0);
    ck_assert_int_eq(folders_of("01-contract"), 6);
    ck_assert_int_eq(log_count("start"), 6);
    ck_assert_int_eq(log_count("abandon"), 5);
    place_remove();
}
END_TEST

START_TEST(an_abandoned_attempt_keeps_its_folder_and_no_result)
{
    place_make();
    blank("chunk");
    unsigned long long before = tree_sum(folder_of(key), NULL);
    ck_assert_int_eq(resolve("abandon", key, NULL), 0);
    ck_assert_int_eq(result_of(key), RESULT_ABANDONED);
    ck_assert(before == tree_sum(folder_of(key), NULL));
    expect_refused(resolve("abandon", key, NULL), 1);
    blank("chunk");
    ck_assert_int_eq(result_of(key), RESULT_OPEN);
    place_remove();
}
END_TEST

START_TEST(a_pause_is_logged_and_ends_with_a_grade)
{
    place_make();
    blank("chunk");
    ck_assert_int_eq(resolve("pause", key, NULL), 0);
    expect_last("pause");
    expect_refused(resolve("pause", key, NULL), 1);
    ck_assert_int_eq(resolve("resume", key, NULL), 0);
    expect_last("resume");
    expect_refused(resolve("resume", key, NULL), 1);
    ck_assert_int_eq(resolve("pause", key, NULL), 0);
    grade(1);
    ck_assert_int_eq(log_count("resume"), 2);
    expect_last("grade");
    ck_assert_int_eq(resolve("history", key, NULL), 0);
    ck_assert_int_eq(resolve("progress", NULL), 0);
    place_remove();
}
END_TEST

START_TEST(a_finished_attempt_can_be_graded_again)
{
    place_make();
    solve();
    grade(0);
    expect_grade(-1, 0);
    write_into(key, "mask.c", "");
    grade(1);
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    ck_assert_int_eq(log_count("grade"), 3);
    place_remove();
}
END_TEST

/* --------------------------------------------------------- one chunk only */

static void expect_one_blank(const char *name)
{
    struct list files = files_in(folder_of(key), ".c");
    char *expected = text_format("BLANK(\"%s\")", name);
    int blanks = 0, named = 0;
    for (size_t i = 0; i < files.count; i++) {
        char *text = read_from(key, files.items[i]);
        for (char *at = text; (at = strstr(at, "BLANK(")) != NULL; at++) {
            blanks++;
            named += strncmp(at, expected, strlen(expected)) == 0;
        }
        free(text);
    }
    ck_assert_int_eq(blanks, 1);
    ck_assert_int_eq(named, 1);
    free(expected);
    list_free(&files);
}

START_TEST(a_single_function_or_file_is_enough)
{
    place_make();
    ck_assert_int_eq(resolve("blank", key, "--level", "function", "--only",
                             "row of query", NULL), 0);
    expect_one_blank("mask_print");
    grade(1);
    paste_functions(stages_find(&stages, key));
    grade(0);
    ck_assert_int_eq(resolve("blank", key, "--level", "empty", "--only",
                             "row of query", NULL), 0);
    char *text = read_from(key, "mask_study.c");
    ck_assert_str_eq(text, "");
    free(text);
    grade(1);
    ck_assert(has_line(said, "mask_print"));
    ck_assert(!has_line(said, "causal_mask"));
    paste_files(stages_find(&stages, key));
    grade(0);
    place_remove();
}
END_TEST

/* The answer to one chunk is not the answer to the others. */
START_TEST(the_answer_to_a_single_chunk_is_short)
{
    const struct stage *stage;
    place_make();
    stage = stages_find(&stages, key);
    ck_assert_int_eq(resolve("blank", key, "--only", "row of query", NULL),
                     0);
    grade(1);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    expect_words_of("print the row of query i");
    for (size_t i = 0; i < stage->blanks.count; i++)
        ck_assert_int_eq(strstr(said, stage->blanks.items[i]) != NULL,
                         strcmp(stage->blanks.items[i],
                                "print the row of query i") == 0);
    place_remove();
}
END_TEST

START_TEST(a_single_chunk_is_blanked_and_solved)
{
    const struct stage *stage;
    place_make();
    stage = stages_find(&stages, key);
    for (size_t i = 0; i < stage->blanks.count; i++) {
        const char *chunk = stage->blanks.items[i];
        ck_assert_int_eq(resolve("blank", key, "--only", chunk, NULL), 0);
        expect_one_blank(chunk);
        grade(1);
        ck_assert(has_line(said, chunk));
        paste_chunks(stage);
        grade(0);
        ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    }
    place_remove();
}
END_TEST

START_TEST(part_of_a_name_will_do_and_a_vague_one_will_not)
{
    const struct stage *stage;
    place_make();
    stage = stages_find(&stages, key);
    expect_refused(resolve("blank", key, "--only", "qqq", NULL), 1);
    for (size_t i = 0; i < stage->blanks.count; i++)
        ck_assert(has_line(complained, stage->blanks.items[i]));
    expect_refused(resolve("blank", key, "--only", "query", NULL), 1);
    for (size_t i = 0; i < stage->blanks.count; i++)
        ck_assert_int_eq(has_line(complained, stage->blanks.items[i]),
                         strstr(stage->blanks.items[i], "query") != NULL);
    ck_assert_ptr_null(log_read());
    ck_assert_int_eq(resolve("blank", key, "--only", "the row of", NULL), 0);
    char *text = read_from(key, "mask_study.c");
    expect_says(text, "BLANK(\"print the row of query i\")");
    free(text);
    place_remove();
}
END_TEST

/* -------------------------------------------------------------------- seed */

static char *report_of(const char *seed)
{
    ck_assert_int_eq(resolve("grade", "2", "--seed", seed, NULL), 1);
    cJSON *last = log_last();
    ck_assert_str_eq(text_in(last, "seed"), seed);
    cJSON_Delete(last);
    return read_text(below("build/resolve/2/tries/%s/suite_2.report",
                           strrchr(folder_of("2"), '/') + 1));
}

/* A mean that is a little small: the report says how much, on its data. */
START_TEST(a_seed_repeats_the_verdict_and_its_data)
{
    place_make();
    ck_assert_int_eq(resolve("blank", "2", NULL), 0);
    paste_chunks(stages_find(&stages, "2"));
    char *text = read_from("2", "norm.c");
    write_into("2", "norm.c",
               replaced(text, "mean /= width;", "mean /= width + 0.01;"));
    char *once = report_of("7"), *twice = report_of("7");
    char *other = report_of("18446744073709551615");
    ck_assert_msg(strcmp(once, twice) == 0, "the data differ");
    ck_assert_msg(strcmp(once, other) != 0, "the data are the same");
    free(once);
    free(twice);
    free(other);
    place_remove();
}
END_TEST

START_TEST(every_grading_has_a_seed_of_its_own)
{
    char first[32];
    place_make();
    blank("chunk");
    grade(1);
    cJSON *last = log_last();
    snprintf(first, sizeof first, "%s", text_in(last, "seed"));
    expect_says(said, first);
    cJSON_Delete(last);
    grade(1);
    last = log_last();
    ck_assert_str_ne(text_in(last, "seed"), first);
    cJSON_Delete(last);
    place_remove();
}
END_TEST

/* ----------------------------------------------------------------- refused */

START_TEST(without_an_attempt_there_is_nothing_to_grade)
{
    const char *const commands[] = { "grade", "reveal", "pause", "resume",
                                     "abandon" };
    place_make();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect_refused(resolve(commands[i], key, NULL), 1);
    ck_assert_ptr_null(log_read());
    place_remove();
}
END_TEST

START_TEST(what_cannot_be_understood_is_refused)
{
    const char *const seeds[] = { "", "x", "-1", "1x", "0x10",
                                  "18446744073709551616", "1.5" };
    const char *const stage_keys[] = { "0", "99", "", "5.", "5.1", "A",
                                       "../5", "05", "-5x", "5 " };
    place_make();
    blank("chunk");
    int lines = log_count("start");
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        expect_refused(resolve("grade", key, "--seed", seeds[i], NULL), 1);
    for (size_t i = 0; i < sizeof stage_keys / sizeof *stage_keys; i++) {
        int status = resolve("grade", stage_keys[i], NULL);
        ck_assert_msg(status == 1 || status == 2, "%s", stage_keys[i]);
        expect_refused(status, status);
        status = resolve("blank", stage_keys[i], NULL);
        ck_assert_msg(status == 1 || status == 2, "%s", stage_keys[i]);
    }
    expect_refused(resolve("blank", "4", "--level", "chunks", NULL), 1);
    expect_refused(resolve("blank", "4", "--level", "", NULL), 1);
    ck_assert_int_eq(log_count("start"), lines);
    ck_assert_int_eq(log_count("grade"), 0);
    place_remove();
}
END_TEST

START_TEST(bad_usage_has_a_status_of_its_own)
{
    place_make();
    expect_refused(resolve(NULL), 2);
    expect_refused(resolve("bland", "5", NULL), 2);
    expect_refused(resolve("blank", NULL), 2);
    expect_refused(resolve("blank", "5", "6", NULL), 2);
    expect_refused(resolve("blank", "5", "--level", NULL), 2);
    expect_refused(resolve("grade", "5", "--seeds", "1", NULL), 2);
    expect_refused(resolve("progress", "5", NULL), 2);
    expect_refused(resolve("--attempts", NULL), 2);
    ck_assert_int_ne(access(below("attempts"), F_OK), 0);
    place_remove();
}
END_TEST

START_TEST(another_directory_is_told_apart_from_the_book)
{
    place_make();
    ck_assert_int_eq(mkdir(below("empty"), 0777), 0);
    expect_refused(resolve("--book", below("empty"), "blank", "5", NULL), 1);
    expect_refused(resolve("--book", below("absent"), "blank", "5", NULL), 1);
    expect_refused(resolve("--build", below("empty"), "blank", "5", NULL), 1);
    ck_assert_ptr_null(log_read());
    place_remove();
}
END_TEST

START_TEST(attempts_that_cannot_be_written_are_refused)
{
    place_make();
    write_text(below("file"), "");
    expect_refused(resolve("--attempts", below("file"), "blank", "5", NULL),
                   1);
    expect_refused(resolve("--attempts", "/dev/null/x", "blank", "5", NULL),
                   1);
    expect_refused(resolve("--attempts", "/proc/x", "blank", "5", NULL), 1);
    place_remove();
}
END_TEST

/* ------------------------------------------------ nothing written elsewhere */

/* Only the build directory's resolve/ and attempts/ change, and what the
   tool calls home or temporary stays as it is. */
START_TEST(nothing_is_written_but_attempts_and_the_bench)
{
    place_make();
    char home[8192], temporary[8192];
    snprintf(home, sizeof home, "%s", below("home"));
    snprintf(temporary, sizeof temporary, "%s", below("tmp"));
    ck_assert_int_eq(mkdir(home, 0777), 0);
    ck_assert_int_eq(mkdir(temporary, 0777), 0);
    unsigned long long before[4] = { tree_sum("book", NULL),
        tree_sum("tests", NULL), tree_sum("tangled", NULL),
        tree_sum("build/plain", NULL) };
    setenv("HOME", home, 1);
    setenv("TMPDIR", temporary, 1);
    setenv("XDG_CONFIG_HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
    blank("chunk");
    unsigned long long attempt = tree_sum(folder_of(key), NULL);
    grade(1);
    ck_assert_int_eq(resolve("pause", key, NULL), 0);
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    ck_assert_int_eq(resolve("progress", "--html", NULL), 0);
    ck_assert_int_eq(resolve("history", key, NULL), 0);
    ck_assert(attempt == tree_sum(folder_of(key), NULL));
    ck_assert(before[0] == tree_sum("book", NULL));
    ck_assert(before[1] == tree_sum("tests", NULL));
    ck_assert(before[2] == tree_sum("tangled", NULL));
    ck_assert(before[3] == tree_sum("build/plain", NULL));
    ck_assert_msg(rmdir(home) == 0, "something is in $HOME");
    ck_assert_msg(rmdir(temporary) == 0, "something is in $TMPDIR");
    place_remove();
}
END_TEST

/* The names alone: other suites run at the same time. */
START_TEST(no_name_appears_beside_the_projects)
{
    place_make();
    const char *const line = "ls -A . \"$0\"; ls -d \"$1\"/*";
    struct list listings = { 0 };
    for (int i = 0; i < 2; i++) {
        struct list argv = { 0 };
        list_add_words(&argv, "sh -c");
        list_add(&argv, text_format("%s", line));
        list_add(&argv, text_format("%s", below("build")));
        list_add(&argv, text_format("%s", below("build/5")));
        if (i == 1) {
            blank("chunk");
            grade(1);
        }
        pid_t child = process_start(&argv, below("listing"));
        process_wait(child);
        list_free(&argv);
        list_add(&listings, read_text(below("listing")));
    }
    char *without = replaced(text_format("%s", listings.items[1]),
                             "\nresolve\n", "\n");
    ck_assert_str_eq(listings.items[0], without);
    free(without);
    list_free(&listings);
    place_remove();
}
END_TEST

static const struct test tests[] = {
    TEST(an_answer_before_any_grade_is_refused_once, 0,
         "end the attempt in the log"),
    TEST(an_answer_asks_for_the_first_wrong_decision, 0,
         "ask for the first wrong decision"),
    TEST(the_readers_words_stand_beside_the_books, 0, "compare the chunks"),
    TEST(a_pass_stays_a_pass_when_the_answer_is_seen, 0,
         "end the attempt in the log"),
    TEST(blank_functions_are_answered_whole, 0, "compare the functions"),
    TEST(empty_files_are_answered_by_function, 0, "compare the functions"),
    TEST(without_marks_the_books_is_shown, 0, "compare the chunks"),
    TEST(without_a_folder_the_books_is_shown, 0, "compare the functions"),
    TEST(any_word_for_the_wrong_decision_leaves_the_log_whole, 0,
         "end the attempt in the log"),
    TEST(a_running_attempt_is_begun_anew_only_when_asked, 1,
         "start an attempt"),
    TEST(attempts_within_a_second_have_folders_of_their_own, 1,
         "make the folder"),
    TEST(an_abandoned_attempt_keeps_its_folder_and_no_result, 1,
         "start an attempt"),
    TEST(a_pause_is_logged_and_ends_with_a_grade, 1, "log a grade"),
    TEST(a_finished_attempt_can_be_graded_again, 1, "log a grade"),
    TEST(a_single_chunk_is_blanked_and_solved, 1, "choose the chunks"),
    TEST(a_single_function_or_file_is_enough, 1, "write the files of an attempt"),
    TEST(the_answer_to_a_single_chunk_is_short, 1, "compare the chunks"),
    TEST(part_of_a_name_will_do_and_a_vague_one_will_not, 1,
         "choose the chunks"),
    TEST(a_seed_repeats_the_verdict_and_its_data, 1, "run the suites"),
    TEST(every_grading_has_a_seed_of_its_own, 1, "run the suites"),
    TEST(without_an_attempt_there_is_nothing_to_grade, 2,
         "where the latest attempt is"),
    TEST(what_cannot_be_understood_is_refused, 2, "read a seed"),
    TEST(bad_usage_has_a_status_of_its_own, 2, "read resolve's options"),
    TEST(another_directory_is_told_apart_from_the_book, 2,
         "read every chapter's cards"),
    TEST(attempts_that_cannot_be_written_are_refused, 2, "make the folder"),
    TEST(nothing_is_written_but_attempts_and_the_bench, 2, "make the folder"),
    TEST(no_name_appears_beside_the_projects, 2, "make the folder"),
};
SUITE("re-solving, from the first blank to the answer", tests);
