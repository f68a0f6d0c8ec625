/* The re-solve tool from end to end: what a blank leaves, that a blank fails,
   and that the book's own code in its place passes. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ends.h"

/* ------------------------------------------------------ no line survives */

/* How often a text has the line, blanks at its ends apart. */
static int lines_equal(const char *text, const char *line, size_t length)
{
    int count = 0;
    for (const char *at = text; *at != '\0'; ) {
        at += strspn(at, " ");
        size_t size = strcspn(at, "\n");
        size_t used = size;
        while (used > 0 && at[used - 1] == ' ')
            used--;
        count += used == length && strncmp(at, line, length) == 0;
        at += size + (at[size] == '\n');
    }
    return count;
}

static char *joined(char *all, char *text)
{
    char *longer = text_format("%s%s\n", all, text);
    free(all);
    free(text);
    return longer;
}

static const char *declared_by(const char *chunk)
{
    for (size_t i = 0; i < stages.chapters.count; i++)
        for (size_t c = 0; c < stages.fronts[i].card_count; c++) {
            const struct card *card = &stages.fronts[i].cards[c];
            for (size_t b = 0; b < card->count; b++)
                if (strcmp(card->blanks[b].chunk, chunk) == 0)
                    return card->blanks[b].declares;
        }
    return NULL;
}

static bool is_telling(const char *line, size_t length, const char *declared)
{
    if (declared != NULL && strlen(declared) == length
        && strncmp(line, declared, length) == 0)
        return false;
    for (size_t i = 0; i < length; i++)
        if (isalpha((unsigned char)line[i]))
            return true;
    return false;
}

/* A line of the chunk may be there as often as the rest of the book's files
   has it. Returns how many lines were compared. */
static int expect_gone(const char *chunk, const char *body,
                       const char *attempt, const char *right)
{
    int compared = 0;
    for (const char *line = body; *line != '\0'; ) {
        line += strspn(line, " ");
        size_t size = strcspn(line, "\n"), length = size;
        while (length > 0 && line[length - 1] == ' ')
            length--;
        if (is_telling(line, length, declared_by(chunk))) {
            int others = lines_equal(right, line, length)
                - lines_equal(body, line, length);
            int left = lines_equal(attempt, line, length);
            ck_assert_msg(left <= (others > 0 ? others : 0),
                          "a line of <<%s>> survives: %.*s", chunk,
                          (int)length, line);
            compared++;
        }
        line += size + (line[size] == '\n');
    }
    return compared;
}

static void expect_no_line(const struct stage *stage)
{
    struct list files = files_in(folder_of(stage->key), ".c");
    char *attempt = text_format("%s", ""), *right = text_format("%s", "");
    int compared = 0;
    for (size_t i = 0; i < files.count; i++) {
        attempt = joined(attempt, read_from(stage->key, files.items[i]));
        right = joined(right, right_text(stage->chapter, files.items[i]));
    }
    for (size_t b = 0; b < stage->blanks.count; b++) {
        char *body = right_text(stage->chapter, stage->blanks.items[b]);
        compared += expect_gone(stage->blanks.items[b], body, attempt, right);
        free(body);
    }
    ck_assert_int_gt(compared, (int)stage->blanks.count);
    free(attempt);
    free(right);
    list_free(&files);
}

/* -------------------------------------------------- it compiles, it fails */

/* As an editor would: by compile_commands.json. */
static void expect_no_warning(const struct stage *stage)
{
    char *text = read_from(stage->key, "compile_commands.json");
    cJSON *commands = cJSON_Parse(text), *command, *word;
    ck_assert_int_gt(cJSON_GetArraySize(commands), 0);
    cJSON_ArrayForEach(command, commands) {
        char *line = text_format("cd '%s' &&", text_in(command, "directory"));
        cJSON_ArrayForEach(word, cJSON_GetObjectItem(command, "arguments"))
            line = replaced(text_format("%s '@'", line), "@",
                            word->valuestring);
        char *all = text_format("%s -fsyntax-only > '%s' 2>&1", line,
                                below("warnings"));
        int status = system(all);
        char *warnings = read_text(below("warnings"));
        ck_assert_msg(status == 0 && warnings[0] == '\0', "%s", warnings);
        free(warnings);
        free(all);
        free(line);
    }
    cJSON_Delete(commands);
    free(text);
}

/* What the folder's blanks are called, and what blank has numbered. */
static struct list listed_blanks(const struct stage *stage, const char *page)
{
    struct list listed = { 0 }, files = files_in(folder_of(stage->key), ".c");
    for (size_t i = 0; i < files.count; i++) {
        char *text = read_from(stage->key, files.items[i]);
        for (char *at = text; (at = strstr(at, "BLANK(\"")) != NULL; at++)
            list_add(&listed, text_format("%.*s", (int)strcspn(at + 7, "\""),
                                          at + 7));
        free(text);
    }
    for (const char *at = page; (at = strchr(at, '\n')) != NULL; ) {
        int number = 0, skipped = 0;
        at++;
        if (sscanf(at, "%d  %n", &number, &skipped) == 1 && number > 0
            && at[0] == ' ' && skipped == 5)
            list_add(&listed, text_format("%.*s",
                                          (int)strcspn(at + 5, "\n"), at + 5));
    }
    list_free(&files);
    ck_assert_uint_gt(listed.count, 0);
    return listed;
}

/* Every blank that a test reached is one that was listed, and is named. */
static void expect_blanks_named(const struct stage *stage,
                                const struct list *listed)
{
    const char *stamp = strrchr(folder_of(stage->key), '/') + 1;
    char *text = file_read(below("build/resolve/%s/tries/%s/reached",
                                 stage->key, stamp));
    int named = 0;
    ck_assert_msg(text != NULL && text[0] != '\0', "no blank was reached");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        ck_assert_msg(list_has(listed, line), "reached, not listed: %s", line);
        ck_assert_msg(has_line(said, line), "reached, not named: %s\n%s",
                      line, said);
        named++;
    }
    ck_assert_int_gt(named, 0);
    free(text);
}

/* ------------------------------------------------------------- every level */

static void solve(const struct stage *stage, const char *level,
                  void (*paste)(const struct stage *stage))
{
    double blank, failing;
    ck_assert_msg(resolve("blank", stage->key, "--level", level, NULL) == 0,
                  "%s", complained);
    blank = took;
    struct list listed = listed_blanks(stage, said);
    expect_no_line(stage);
    if (strcmp(level, "empty") != 0)
        expect_no_warning(stage);
    ck_assert_msg(grade_on_known_data(stage->key) == 1, "%s%s", said,
                  complained);
    failing = took;
    expect_blanks_named(stage, &listed);
    expect_grade(-1, -1);
    ck_assert_ptr_null(strstr(said, "warning:"));
    ck_assert_int_eq(result_of(stage->key), RESULT_OPEN);
    paste(stage);
    ck_assert_msg(grade_on_known_data(stage->key) == 0, "stage %s: %s%s",
                  stage->key, said, complained);
    ck_assert_ptr_null(strstr(said, "warning:"));
    expect_grade(-1, 0);
    ck_assert_int_eq(result_of(stage->key), RESULT_CLEAN);
    if (getenv("ENDS_TIMES") != NULL)
        fprintf(stderr, "stage %s, %s: blank %.1f s, grade %.1f s, %.1f s\n",
                stage->key, level, blank, failing, took);
    list_free(&listed);
}

static void solve_every_stage(const char *level,
                              void (*paste)(const struct stage *stage))
{
    place_make();
    for (size_t i = 0; i < stages.count; i++)
        solve(&stages.items[i], level, paste);
    ck_assert_int_eq(log_count("start"), (int)stages.count);
    ck_assert_int_eq(log_count("grade"), 2 * (int)stages.count);
    place_remove();
}

START_TEST(blank_chunks_fail_and_the_books_chunks_pass)
{
    solve_every_stage("chunk", paste_chunks);
}
END_TEST

START_TEST(blank_functions_fail_and_the_books_functions_pass)
{
    solve_every_stage("function", paste_functions);
}
END_TEST

START_TEST(empty_files_fail_and_the_books_files_pass)
{
    solve_every_stage("empty", paste_files);
}
END_TEST

static const struct test tests[] = {
    TEST(blank_chunks_fail_and_the_books_chunks_pass, 0, "start an attempt"),
    TEST(blank_functions_fail_and_the_books_functions_pass, 0,
         "blank the functions of a text"),
    TEST(empty_files_fail_and_the_books_files_pass, 0,
         "find the functions to write from nothing"),
};
SUITE("re-solving, from blank to pass", tests);
