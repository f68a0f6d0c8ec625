/* The picture of the watching screen, through frame.h: every frame has to fit
   its screen, whatever is in it. The widths of characters are checked against
   the C library's. */
#define _XOPEN_SOURCE 700       /* wcwidth */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include "frame.h"
#include "support/harness.h"

/* ------------------------------------------------------- what is drawn from */

static char stage_key[] = "5", stage_title[200] = "The rectangular mask";
static struct stage stage = { .key = stage_key, .title = stage_title,
                              .chapter = 7, .minutes = 45 };
static struct attempt attempt;
static struct tested tests[200];
static struct grade grade;
static struct frame frame;
static char *text;

static char *copy(const char *of)
{
    return text_format("%s", of);
}

static void begin(int columns, int rows)
{
    attempt = (struct attempt){ .budget = 2700, .elapsed = 724.6 };
    grade = (struct grade){ .tests = tests, .seed = 18446744073709551615ull };
    frame = (struct frame){ .columns = columns, .rows = rows, .utf8 = true,
                            .keys = true, .stage = &stage,
                            .attempt = &attempt, .grade = &grade,
                            .path = "attempts/05-mask/2026-11-29T20-31-05",
                            .graded = "20:43:09", .grading = -1 };
    snprintf(stage_title, sizeof stage_title, "The rectangular mask");
}

static void add(const char *name, int tier, bool passed, const char *owner,
                const char *message)
{
    tests[grade.count++] = (struct tested){
        copy(name), copy(owner), copy("tests/suite_5.c:120"), copy(message),
        tier, passed };
    grade.passed += passed;
    grade.failed += !passed;
}

static void add_some(void)
{
    for (int i = 0; i < 12; i++)
        add("a_row_of_ones", i % 4, true, "an owner", "");
    add("row_one_of_a_chunk_sees_the_past", 1, false,
        "decide whether query i may see key j",
        "the cell M[1][4] of the mask: expected 1, got 0, because of what "
        "the position of the query was taken to be at the time");
    add("another_row", 2, false, "another owner", "x is not y");
    add("a_third", 3, false, "an owner", "reached the blank \"a blank\"");
    list_add(&grade.reached, copy("a blank"));
    list_add(&grade.unwritten, copy("mask_print"));
}

/* ------------------------------------------------------- what has to be true */

/* Takes colours out, in place, and refuses every other control. */
static void take_colours(char *line)
{
    char *out = line;
    for (const char *at = line; *at != '\0'; at++)
        if (*at == '\33') {
            ck_assert_msg(frame.colour, "an escape without colour");
            at += strcspn(at, "m");
            ck_assert_int_eq(*at, 'm');
        } else
            *out++ = *at;
    *out = '\0';
}

static void check_line(const char *line)
{
    wchar_t wide[4096];
    size_t count = mbstowcs(wide, line, 4096);
    ck_assert_msg(count != (size_t)-1, "not UTF-8: %s", line);
    int width = 0;
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(wcwidth(wide[i]) >= 0, "a control: %s", line);
        ck_assert_msg(frame.utf8 || wide[i] < 128, "not ASCII: %s", line);
        width += wcwidth(wide[i]);
    }
    ck_assert_msg(width <= frame.columns, "%d columns: %s", width, line);
}

/* Draws; the text is then without colours. */
static void draw(void)
{
    int rows = 0;
    ck_assert_ptr_nonnull(setlocale(LC_CTYPE, "C.UTF-8"));
    free(text);
    text = frame_text(&frame);
    take_colours(text);
    char *whole = copy(text);
    for (char *line = strtok(whole, "\n"); line; line = strtok(NULL, "\n"))
        check_line(line);
    for (const char *at = text; *at != '\0'; at++)
        rows += *at == '\n';
    ck_assert_int_le(rows, frame.rows);
    if (frame.rows >= 6)
        ck_assert_int_eq(rows, frame.rows);
    free(whole);
}

static void shows(const char *what)
{
    ck_assert_msg(strstr(text, what) != NULL, "no \"%s\" in\n%s", what, text);
}

static void hides(const char *what)
{
    ck_assert_msg(strstr(text, what) == NULL, "\"%s\" in\n%s", what, text);
}

/* ------------------------------------------------------------------ the tests */

START_TEST(a_usual_screen_shows_all_of_a_verdict)
{
    begin(80, 24);
    add_some();
    draw();
    shows("Stage 5 \u00b7 The rectangular mask\n");
    shows("32:56 left   12:04 of 45:00\n");
    shows("tier 0    3 of   3  \u2713\u2713\u2713\n");
    shows("tier 1    3 of   4  \u2713\u2713\u2713\u2717\n");
    shows("tier 3    3 of   4  \u2713\u2713\u2713\u25cb\n");
    shows("first of 2 failures\n  \u2717 row_one_of_a_chunk_sees_the_past\n");
    shows("    tests/suite_5.c:120\n");
    shows("    owner   decide whether query i may see key j\n");
    shows("    repair  ");
    shows("12 passed, 3 failed \u00b7 20:43:09 \u00b7 1 blank");
    shows("\ng grade   p pause   r reveal   q quit\n");
}
END_TEST

START_TEST(what_is_blank_is_listed_by_name)
{
    begin(100, 40);
    add_some();
    draw();
    shows("not written yet\n  \u25cb mask_print\n");
    shows("blank, and reached by a test\n  \u25cb a blank\n");
}
END_TEST

START_TEST(a_small_screen_keeps_clock_marks_failure_and_keys)
{
    begin(40, 15);
    add_some();
    draw();
    shows("32:56 left   12:04 of 45:00\n");
    shows("\u2713\u2713\u2713\u2717\n");
    shows("row_one_of_a_chunk_sees_the_past\n");
    shows("12 passed, 3 failed \u00b7 20:43:09");
    shows("g grade   p pause   r reveal   q quit\n");
}
END_TEST

START_TEST(a_large_screen_has_its_keys_at_the_bottom)
{
    begin(200, 60);
    add_some();
    draw();
    shows("because of what the position of the query was taken to be at the"
          " time\n");
    ck_assert_str_eq(text + strlen(text) - 7, "q quit\n");
}
END_TEST

START_TEST(every_size_of_a_screen_fits)
{
    for (int columns = 1; columns <= 130; columns += 3)
        for (int rows = 1; rows <= 40; rows += 3)
            for (int kind = 0; kind < 4; kind++) {
                begin(columns, rows);
                frame.utf8 = kind % 2 == 0;
                frame.colour = kind / 2 == 0;
                add_some();
                frame.note = rows % 2 ? "a note of some words, which may be"
                                        " longer than the line" : NULL;
                draw();
            }
}
END_TEST

START_TEST(more_tests_than_columns_go_on_below)
{
    begin(40, 30);
    for (int i = 0; i < 50; i++)
        add("one_of_many", 2, true, "an owner", "");
    draw();
    shows("tier 2   50 of  50  \u2713");
    shows("\n                    \u2713");
    shows("All 50 tests passed.");
}
END_TEST

START_TEST(long_names_and_wide_characters_are_cut_at_the_edge)
{
    begin(40, 24);
    snprintf(stage_title, sizeof stage_title, "%s",
             "\u6ce8\u610f\u529b\u306e\u30de\u30b9\u30af\u306f\u4e0b\u4e09"
             "\u89d2\u3067\u3042\u308b\u3068\u306f\u9650\u3089\u306a\u3044");
    add("a_name_that_is_so_long_that_no_line_of_this_screen_could_hold_it", 0,
        false, "q\u1d62 = p + i, e\u0301 and \U0001f600 in an owner's name",
        "\u00fcber_\u00e9t\u00e9_na\u00efve_\u4e2d\u6587_0123456789_01234567"
        "89_0123456789_0123456789");
    draw();
    shows("Stage 5 \u00b7 \u6ce8\u610f\u529b");
    shows("\u2026");
    shows("a_name_that_is_so_long_that_no_line\u2026\n");
}
END_TEST

START_TEST(nothing_that_an_attempt_says_controls_the_terminal)
{
    begin(80, 40);
    add("a_test", 0, false, "an owner",
        "\33[2J\33]0;title\7 \x9b" "2J \xc2\x9b" "2J \xff\xfe \xe2\x80\xae"
        " \xf0\x9f torn \xc3");
    grade.said = copy("suite: \33[31mred\33[0m\rover\ttab \x80\n");
    draw();
    shows("?[2J?]0;title?");
    shows("torn ?");
    shows("suite: ?[31mred?[0m over tab ?");
}
END_TEST

START_TEST(without_a_verdict_the_screen_says_so)
{
    begin(80, 24);
    frame.grade = NULL;
    frame.grading = 0.3;
    draw();
    shows("no verdict yet\ngrading\u2026\n");
    frame.grading = 7.9;
    draw();
    shows("grading\u2026 7 s\n");
}
END_TEST

START_TEST(a_compile_error_is_at_the_attempts_own_line)
{
    begin(40, 24);
    grade.problem = copy("it does not compile");
    grade.said = copy(
        "attempts/05-mask/2026-11-29T20-31-05/mask.c: In function \u2018f"
        "\u2019:\nattempts/05-mask/2026-11-29T20-31-05/mask.c:12:5: error: "
        "expected \u2018;\u2019 before the token that follows\n"
        "   12 |     a line of the source that is longer than this screen;\n"
        "      |     ^~~~\n");
    draw();
    shows("it does not compile\nmask.c: In function \u2018f\u2019:\n");
    shows("mask.c:12:5: error: expected \u2018;\u2019 before\n"
          "the token that follows\n");
    shows("   12 |     a line of the source that i\u2026\n");
    shows("no verdict \u00b7 20:43:09\n");
    hides("attempts/");
    hides("tier");
}
END_TEST

START_TEST(a_long_compile_error_leaves_the_foot_where_it_was)
{
    char said[20000] = "";
    begin(80, 24);
    grade.problem = copy("it does not compile");
    for (int i = 0; i < 200; i++)
        snprintf(said + strlen(said), sizeof said - strlen(said),
                 "mask.c:%d:1: error: this one\n", i);
    grade.said = said;
    draw();
    shows("mask.c:0:1: error: this one\n");
    shows("\n\u2026\nno verdict \u00b7 20:43:09\ng grade");
}
END_TEST

START_TEST(a_pass_is_clean_or_late)
{
    begin(80, 24);
    for (int i = 0; i < 30; i++)
        add("a_test", 2, true, "an owner", "");
    attempt.result = RESULT_CLEAN;
    draw();
    shows("clean pass   12:04 of 45:00\n");
    shows("All 30 tests passed.\nA clean pass.\n");
    attempt.pauses = 1;
    draw();
    shows("A clean pass, with a pause.\n");
    attempt.result = RESULT_LATE;
    attempt.elapsed = 2765;
    draw();
    shows("passed late   46:05 of 45:00\n");
    shows("Passed, 1:05 over the budget.\n");
}
END_TEST

START_TEST(the_clock_counts_down_and_then_up)
{
    begin(40, 15);
    attempt.elapsed = 2699.99;
    draw();
    shows("0:01 left   44:59 of 45:00\n");
    attempt.elapsed = 2700;
    draw();
    shows("0:00 left   45:00 of 45:00\n");
    attempt.elapsed = 2701.2;
    draw();
    shows("0:01 over   45:01 of 45:00\n");
    attempt.elapsed = 100 * 3600;
    attempt.is_paused = true;
    draw();
    shows("5955:00 over   6000:00 of 45:00   paused");
    shows("p resume");
}
END_TEST

/* How often the bar's line has that character. */
static int cells(const char *cell)
{
    int count = 0;
    const char *bar = strchr(strchr(text, '\n') + 1, '\n') + 1;
    const char *end = strchr(bar, '\n');
    for (const char *at = bar; (at = strstr(at, cell)) != NULL && at < end; )
        count++, at += strlen(cell);
    return count;
}

START_TEST(the_bar_fills_and_is_divided_when_time_is_over)
{
    begin(60, 15);
    attempt.elapsed = 0;
    draw();
    ck_assert_int_eq(cells("\u2588"), 0);
    ck_assert_int_eq(cells("\u2591"), 60);
    attempt.elapsed = 1350;
    draw();
    ck_assert_int_eq(cells("\u2588"), 30);
    ck_assert_int_eq(cells("\u2591"), 30);
    attempt.elapsed = 2 * 2700;
    draw();
    ck_assert_int_eq(cells("\u2588"), 30);
    ck_assert_int_eq(cells("\u2593"), 30);
    attempt.elapsed = attempt.budget = 0;
    draw();
}
END_TEST

START_TEST(colours_are_there_only_when_asked_for)
{
    begin(80, 24);
    add_some();
    frame.colour = true;
    char *coloured = frame_text(&frame);
    ck_assert_ptr_nonnull(strstr(coloured, "\33[31m"));
    draw();
    char *plain = copy(text);
    frame.colour = false;
    draw();
    ck_assert_str_eq(text, plain);
    free(coloured);
    free(plain);
}
END_TEST

START_TEST(a_screen_without_utf8_gets_ascii)
{
    begin(80, 24);
    add_some();
    frame.utf8 = false;
    draw();
    shows("tier 1    3 of   4  +++x\n");
    shows("##########");
    shows("Stage 5 - The");
}
END_TEST

#define OWNER_LINE "put text on the line"
static const struct test suite_tests[] = {
    TEST(a_usual_screen_shows_all_of_a_verdict, 0, "the text of a frame"),
    TEST(what_is_blank_is_listed_by_name, 0, "show what is still blank"),
    TEST(a_small_screen_keeps_clock_marks_failure_and_keys, 0,
         "fit the body between head and foot"),
    TEST(a_large_screen_has_its_keys_at_the_bottom, 0,
         "fit the body between head and foot"),
    TEST(every_size_of_a_screen_fits, 1, OWNER_LINE),
    TEST(more_tests_than_columns_go_on_below, 1, "show the tests of a tier"),
    TEST(long_names_and_wide_characters_are_cut_at_the_edge, 1, OWNER_LINE),
    TEST(nothing_that_an_attempt_says_controls_the_terminal, 1,
         "one character of UTF-8"),
    TEST(without_a_verdict_the_screen_says_so, 1, "show the keys"),
    TEST(a_compile_error_is_at_the_attempts_own_line, 1,
         "show what a compiler said"),
    TEST(a_long_compile_error_leaves_the_foot_where_it_was, 1,
         "fit the body between head and foot"),
    TEST(a_pass_is_clean_or_late, 1, "show a pass"),
    TEST(the_clock_counts_down_and_then_up, 1, "show the clock"),
    TEST(the_bar_fills_and_is_divided_when_time_is_over, 1,
         "show the budget as a bar"),
    TEST(colours_are_there_only_when_asked_for, 1, OWNER_LINE),
    TEST(a_screen_without_utf8_gets_ascii, 1, OWNER_LINE),
};

SUITE("the frame", suite_tests);
