/* What the re-solve tool shows of the score: tables, what comes next, the
   commands on the clock, the page. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "page.h"
#include "progress.h"
#include "summary.h"
#include "support/harness.h"
#include "tool/scripted.h"

#define STAGE(key, name, title, chapter, minutes) \
    { key, name, title, chapter, minutes, "", { NULL, 0 }, { NULL, 0 } }

static char keys[5][8] = { "1", "2", "5", "10.2", "13" };
static char names[5][16] = { "01", "02", "05", "10", "13" };
static char titles[5][64] = { "The contract", "The forward pass",
    "The rectangular mask", "Ä cache: refuse & look up <ids>", "Llama" };
static struct stage items[5] = {
    STAGE(keys[0], names[0], titles[0], 1, 10),
    STAGE(keys[1], names[1], titles[1], 2, 45),
    STAGE(keys[2], names[2], titles[2], 5, 45),
    STAGE(keys[3], names[3], titles[3], 10, 15),
    STAGE(keys[4], names[4], titles[4], 13, 120),
};
static const struct stages stages = { .items = items, .count = 5 };

/* ---------------------------------------------------------------- a history */

static int folders;

static void begin(struct score *score, const char *stage, const char *date,
                  enum level level)
{
    char folder[16], stamp[40];
    double budget = 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(keys[i], stage) == 0)
            budget = 60.0 * items[i].minutes;
    snprintf(folder, sizeof folder, "f%d", folders++);
    snprintf(stamp, sizeof stamp, "%sT20:31:05+01:00", date);
    on(stamp);
    ck_assert(score_start(score, stage, folder, level, budget));
}

static void grade(struct score *score, const char *stage, double seconds,
                  const char *owner)
{
    struct verdict verdict = { 4, owner != NULL, 7, &owner, owner != NULL,
                               NULL, NULL };
    wait_for(seconds);
    ck_assert(score_grade(score, score_latest(score, stage), &verdict));
}

static void reveal(struct score *score, const char *stage, const char *wrong)
{
    ck_assert(score_reveal(score, score_latest(score, stage), wrong));
}

static void pause_for(struct score *score, const char *stage, double seconds)
{
    ck_assert(score_pause(score, score_latest(score, stage)));
    wait_for(seconds);
    ck_assert(score_resume(score, score_latest(score, stage)));
}

/* Stage 1 is learned, 2 passed with a pause, 5 missed, 13 abandoned. */
static struct score *some_weeks(void)
{
    struct score *score = new_score();
    begin(score, "1", "2026-11-01", LEVEL_EMPTY);
    grade(score, "1", 220, NULL);
    begin(score, "2", "2026-11-03", LEVEL_CHUNK);
    grade(score, "2", 600, "scale the scores");
    grade(score, "2", 3400, NULL);
    begin(score, "1", "2026-11-04", LEVEL_EMPTY);
    grade(score, "1", 300, NULL);
    begin(score, "2", "2026-11-05", LEVEL_CHUNK);
    grade(score, "2", 60, "scale the scores");
    pause_for(score, "2", 400);
    now.since_boot += 30000;
    grade(score, "2", 2341, NULL);
    reveal(score, "2", "scaled\x1b[31m by d_model");
    begin(score, "5", "2026-11-20", LEVEL_FUNCTION);
    grade(score, "5", 1900, "place the first token");
    reveal(score, "5", "counted from the chunk's <start>");
    begin(score, "13", "2026-11-21", LEVEL_CHUNK);
    ck_assert(score_abandon(score, score_latest(score, "13")));
    return score;
}

static char *printed(void (*print)(FILE *, const struct score *),
                     const struct score *score)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    print(out, score);
    fclose(out);
    return text;
}

static void same(char *text, const char *expected)
{
    ck_assert_msg(strcmp(text, expected) == 0, "\n%s\nexpected\n%s", text,
                  expected);
    free(text);
}

/* ------------------------------------------------------------------- words */

START_TEST(times_and_dates_are_short)
{
    static const struct { double seconds; const char *text; } times[] = {
        { 0, "0:00" }, { 59.99, "0:59" }, { 751, "12:31" },
        { 5999.9, "99:59" }, { 6000, "1h40" }, { 7500, "2h05" },
        { 86400, "24h00" }, { -3, "0:00" }, { 1e300, "83333h20" } };
    static const struct { const char *date, *text; } dates[] = {
        { "2026-11-29", "Nov 29" }, { "2026-01-02", "Jan 2" },
        { "2025-12-31", "2025-12-31" }, { "2027-01-01", "2027-01-01" } };
    char text[32];
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        text_time(text, times[i].seconds);
        ck_assert_str_eq(text, times[i].text);
    }
    for (size_t i = 0; i < sizeof dates / sizeof dates[0]; i++) {
        text_date(text, dates[i].date, "2026-11-30");
        ck_assert_str_eq(text, dates[i].text);
    }
}
END_TEST

/* ------------------------------------------------------------------- tables */

static void print_progress(FILE *out, const struct score *score)
{
    progress_print(out, score, &stages, "2026-11-21");
}

START_TEST(progress_shows_every_stage)
{
    struct score *score = some_weeks();
    same(printed(print_progress, score),
"stage  title                 tries  best/min   last result       state    due\n"
"1      The contract              2  3:40/10    clean Nov 4       learned  now\n"
"2      The forward pass          2  40:01*/45  clean* Nov 5      passed   now\n"
"5      The rectangular mask      1             revealed Nov 20   started  now\n"
"10.2   Ä cache: refuse & l…      0                               new\n"
"13     Llama                     0                               new\n"
"* with a pause\n"
"\n"
"make next: stage 2 was due on Nov 6\n"
"\n"
"First wrong decisions\n"
"\n"
"  1×  place the first token\n"
"       Nov 20, stage 5: counted from the chunk's <start>\n"
"\n"
"  1×  scale the scores\n"
"       Nov 5, stage 2: scaled [31m by d_model\n");
    score_close(&score);
}
END_TEST

START_TEST(progress_shows_the_clock_of_an_open_attempt)
{
    struct score *score = some_weeks();
    begin(score, "10.2", "2026-11-21", LEVEL_CHUNK);
    wait_for(751);
    score = reopen(score);
    char *text = printed(print_progress, score);
    ck_assert_ptr_nonnull(strstr(text, "\n10.2   Ä cache: refuse & l…      1 "
        "            open 12:31        started\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nmake next: stage 10.2 has an open "
                                 "attempt: make grade-10.2\n"));
    free(text);
    ck_assert(score_pause(score, score_latest(score, "10.2")));
    text = printed(print_progress, score);
    ck_assert_ptr_nonnull(strstr(text, " paused 12:31 "));
    free(text);
    score_close(&score);
}
END_TEST

static void print_history(FILE *out, const struct score *score)
{
    history_print(out, score, &items[1], "2026-11-21");
}

START_TEST(history_tells_what_the_clock_did_not_count)
{
    struct score *score = some_weeks();
    on("2026-11-21T08:00:00+01:00");
    ck_assert(score_start(score, "2", "again", LEVEL_FUNCTION, 2700));
    same(printed(print_history, score),
"Stage 2, The forward pass: 45 min, passed, due now\n"
"  1  2026-11-03 20:31  chunk     late          66:40  graded 2×\n"
"  2  2026-11-05 20:31  chunk     clean*        40:01  graded 2×, paused 1×,"
" 6:40, asleep for 8h20\n"
"     first wrong decision: scaled [31m by d_model\n"
"  3  2026-11-21 08:00  function  open           0:00  graded 0×\n");
    score_close(&score);
    score = new_score();
    same(printed(print_history, score),
"Stage 2, The forward pass: 45 min, new\n"
"no attempts yet: make blank-2 starts one\n");
    score_close(&score);
}
END_TEST

START_TEST(wrong_decisions_are_ordered_by_their_owners)
{
    struct score *score = new_score();
    static const struct { const char *owner, *wrong; } rows[] = {
        { "b", "b one" }, { "c", "c one" }, { "a", "a one" },
        { "c", "c two" }, { NULL, "none" }, { "b", "" }, { "c", "c three" },
    };
    static const char *const order[] = { "c three", "c two", "c one", "none",
                                         "a one", "b one" };
    for (size_t i = 0; i < 7; i++) {
        begin(score, "1", "2026-11-01", LEVEL_CHUNK);
        if (rows[i].owner != NULL)
            grade(score, "1", 1, rows[i].owner);
        grade(score, "1", 1, rows[i].owner != NULL ? "another" : NULL);
        reveal(score, "1", rows[i].wrong);
    }
    size_t count;
    struct decision *decisions = decisions_of(score, &count);
    ck_assert_uint_eq(count, 6);
    for (size_t i = 0; i < 6; i++) {
        ck_assert_str_eq(decisions[i].attempt->wrong, order[i]);
        ck_assert_uint_eq(decisions[i].same, i < 3 ? 3 : 1);
    }
    free(decisions);
    score_close(&score);
}
END_TEST

/* --------------------------------------------------------------------- next */

static void expect_next(const struct score *score, const char *today,
                        const char *key, bool begins, const char *expected)
{
    bool begin_now;
    char *why = NULL;
    const struct stage *stage = stage_due(score, &stages, today, &begin_now,
                                          &why);
    ck_assert_str_eq(why, expected);
    ck_assert_ptr_nonnull(stage);
    ck_assert_str_eq(stage->key, key);
    ck_assert_int_eq(begin_now, begins);
    free(why);
}

START_TEST(next_is_the_most_overdue_then_the_new_then_the_soonest)
{
    struct score *score = new_score();
    const char *last[] = { "1", "2", "5", "10.2", "13" };
    expect_next(score, "2026-11-01", "1", true, "stage 1 is new");
    begin(score, "2", "2026-11-01", LEVEL_CHUNK);
    expect_next(score, "2026-11-01", "2", false,
                "stage 2 has an open attempt: make grade-2");
    grade(score, "2", 60, NULL);
    expect_next(score, "2026-11-01", "1", true, "stage 1 is new");
    expect_next(score, "2026-11-02", "2", true, "stage 2 is due today");
    begin(score, "1", "2026-11-03", LEVEL_CHUNK);
    reveal(score, "1", "w");
    expect_next(score, "2026-11-04", "2", true, "stage 2 was due on Nov 2");
    begin(score, "2", "2026-11-04", LEVEL_FUNCTION);
    grade(score, "2", 60, NULL);            /* due on the 7th */
    expect_next(score, "2026-11-04", "1", true, "stage 1 is due today");
    begin(score, "1", "2026-11-04", LEVEL_CHUNK);
    grade(score, "1", 60, NULL);            /* due on the 5th */
    expect_next(score, "2026-11-04", "5", true, "stage 5 is new");
    for (int i = 2; i < 5; i++) {
        begin(score, last[i], "2026-11-04", LEVEL_CHUNK);
        ck_assert(score_abandon(score, score_latest(score, last[i])));
    }
    expect_next(score, "2026-11-04", "5", true, "stage 5 is new");
    for (int i = 2; i < 5; i++) {
        begin(score, last[i], "2026-11-05", LEVEL_CHUNK);
        grade(score, last[i], 60, NULL);    /* due on the 6th */
    }
    begin(score, "1", "2026-11-05", LEVEL_CHUNK);
    grade(score, "1", 60, NULL);            /* due on the 8th */
    expect_next(score, "2026-11-05", "5", false,
                "nothing is due today; stage 5 is next, on Nov 6");
    expect_next(score, "2026-11-30", "5", true, "stage 5 was due on Nov 6");
    expect_next(score, "2027-01-02", "5", true,
                "stage 5 was due on 2026-11-06");
    bool begin_now;
    char *why;
    struct stages none = { 0 };
    ck_assert_ptr_null(stage_due(score, &none, "2026-11-05", &begin_now,
                                 &why));
    ck_assert(!begin_now);
    free(why);
    score_close(&score);
}
END_TEST

START_TEST(the_level_rises_with_clean_passes)
{
    struct score *score = new_score();
    ck_assert_int_eq(level_due(score, &items[0]), LEVEL_CHUNK);
    begin(score, "1", "2026-11-01", LEVEL_CHUNK);
    grade(score, "1", 601, NULL);
    ck_assert_int_eq(level_due(score, &items[0]), LEVEL_CHUNK);
    begin(score, "1", "2026-11-02", LEVEL_CHUNK);
    grade(score, "1", 60, NULL);
    ck_assert_int_eq(level_due(score, &items[0]), LEVEL_FUNCTION);
    begin(score, "1", "2026-11-03", LEVEL_FUNCTION);
    grade(score, "1", 60, NULL);
    ck_assert_int_eq(level_due(score, &items[0]), LEVEL_EMPTY);
    begin(score, "1", "2026-11-04", LEVEL_EMPTY);
    grade(score, "1", 60, NULL);
    begin(score, "1", "2026-11-05", LEVEL_CHUNK);
    grade(score, "1", 60, NULL);
    ck_assert_int_eq(level_due(score, &items[0]), LEVEL_EMPTY);
    ck_assert_int_eq(level_due(score, &items[1]), LEVEL_CHUNK);
    score_close(&score);
}
END_TEST

/* ----------------------------------------------------------------- commands */

static char shown[65536];

/* Runs a command with its standard output in a file, and reads that. */
static bool run(bool (*command)(const struct workshop *,
                                const struct stage *),
                const struct stage *stage)
{
    char path[128];
    snprintf(path, sizeof path, "%.60s/shown", place);
    say_nothing();
    fflush(stdout);
    int saved = dup(1), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    ck_assert_int_ge(saved, 0);
    ck_assert_int_eq(dup2(file, 1), 1);
    bool done = command(&workshop, stage);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    close(file);
    shown[slurp(path, shown, sizeof shown - 1)] = '\0';
    return done;
}

START_TEST(pause_resume_and_abandon_say_what_holds)
{
    const struct stage *stage = &items[2];
    struct score *score;
    new_place();
    ck_assert(!run(command_pause, stage));
    ck_assert_str_eq(said,
        "stage 5 was never begun: make blank-5 begins it\n");
    ck_assert(!run(command_resume, stage));
    ck_assert(!run(command_abandon, stage));
    ck_assert(score_open(&score, &workshop));
    ck_assert(score_start(score, "5", "05-mask/now", LEVEL_CHUNK, 2700));
    score_close(&score);
    ck_assert(!run(command_resume, stage));
    ck_assert_str_eq(said,
        "stage 5 is not paused: make pause-5 stops its clock\n");
    ck_assert(run(command_pause, stage));
    ck_assert_int_eq(strncmp(shown, "stage 5: paused at 0:0", 22), 0);
    ck_assert_ptr_nonnull(strstr(shown,
                                 " of 45 min; to go on: make resume-5\n"));
    ck_assert(!run(command_pause, stage));
    ck_assert_str_eq(said, "stage 5 is paused already: make resume-5 lets it "
                     "go on\n");
    ck_assert_str_eq(shown, "");
    ck_assert(run(command_resume, stage));
    ck_assert_int_eq(strncmp(shown, "stage 5: goes on at 0:0", 23), 0);
    ck_assert(run(command_abandon, stage));
    ck_assert_ptr_nonnull(strstr(shown, "/attempts/05-mask/now\n"));
    ck_assert(!run(command_abandon, stage));
    ck_assert_str_eq(said, "the last attempt at stage 5 is over (abandoned): "
                     "make blank-5 begins another\n");
    ck_assert(run(command_history, stage));
    ck_assert_ptr_nonnull(strstr(shown, "abandoned*"));
    struct stat status;
    ck_assert_int_ne(stat(workshop.build, &status), 0);
}
END_TEST

START_TEST(output_that_cannot_be_written_is_a_failure)
{
    score_close(&(struct score *){ some_weeks() });
    say_nothing();
    int saved = dup(1), full = open("/dev/full", O_WRONLY);
    ck_assert_int_eq(dup2(full, 1), 1);
    bool done = command_progress(&workshop, &stages, false);
    clearerr(stdout);
    dup2(saved, 1);
    ck_assert(!done);
    ck_assert_str_eq(said, "standard output: No space left on device\n");
}
END_TEST

/* --------------------------------------------------------------------- page */

static char page[1 << 20];

static void write_the_page(const struct score *score)
{
    char path[160];
    ck_assert(page_write(&workshop, score, &stages, "2026-11-21"));
    snprintf(path, sizeof path, "%s/progress.html", workshop.build);
    size_t length = slurp(path, page, sizeof page - 1);
    ck_assert(length != (size_t)-1);
    page[length] = '\0';
    snprintf(path, sizeof path, "%s/progress.html.new", workshop.build);
    ck_assert_int_ne(access(path, F_OK), 0);
}

static int count_of(const char *what)
{
    int count = 0;
    for (const char *at = page; (at = strstr(at, what)) != NULL; at++)
        count++;
    return count;
}

/* Every id of the page is there once, and every use of one has it. */
static void check_ids(void)
{
    char id[64], wanted[80];
    for (const char *at = page; (at = strstr(at, "id=")) != NULL; at++) {
        snprintf(id, sizeof id, "%.*s", (int)strcspn(at + 4, "'\""), at + 4);
        snprintf(wanted, sizeof wanted, "id=%c%s%c", at[3], id, at[3]);
        ck_assert_msg(count_of(wanted) == 1, "%s", wanted);
    }
    for (const char *at = page; (at = strstr(at, "href='#")) != NULL; at++) {
        snprintf(wanted, sizeof wanted, "id='%.*s'",
                 (int)strcspn(at + 7, "'"), at + 7);
        ck_assert_msg(count_of(wanted) == 1, "%s", wanted);
    }
}

START_TEST(the_page_has_a_chart_for_each_stage_with_results)
{
    struct score *score = some_weeks();
    if (system("command -v gnuplot > /dev/null") != 0)
        return;
    write_the_page(score);
    ck_assert_str_eq(said, "");
    ck_assert_int_eq(count_of("<svg"), 3);
    ck_assert_int_eq(count_of("</svg>"), 3);
    ck_assert_int_eq(count_of("<figure>"), 3);
    ck_assert_int_eq(count_of("<?xml"), 0);
    check_ids();
    ck_assert_int_eq(count_of("<script"), 0);
    ck_assert_int_eq(count_of("src="), 0);
    ck_assert_int_eq(count_of("url("), 0);
    ck_assert_int_eq(count_of("aria-label=\"Stage 2: time against the budget "
        "of 45 minutes, 2026-11-03 to 2026-11-05\""), 1);
    ck_assert_int_eq(count_of(">Nov 20<"), 1);
    ck_assert_int_eq(count_of(">45<") + count_of("> 45<"), 2);
    score_close(&score);
}
END_TEST

START_TEST(the_page_shows_text_as_text)
{
    struct score *score = some_weeks();
    write_the_page(score);
    ck_assert_int_eq(count_of("Ä cache: refuse &amp; look up &lt;ids&gt;"), 1);
    ck_assert_int_eq(count_of("counted from the chunk's &lt;start&gt;"), 1);
    ck_assert_int_eq(count_of("<start>"), 0);
    ck_assert_int_eq(count_of("\x1b"), 0);
    ck_assert_int_eq(count_of("<td data-name=\"best/min\">40:01*/45</td>"), 1);
    ck_assert_int_eq(count_of("class=\"learned now\""), 1);
    ck_assert_int_eq(count_of("<dt>"), 2);
    score_close(&score);
}
END_TEST

START_TEST(the_page_without_gnuplot_has_its_tables)
{
    struct score *score = some_weeks();
    char stale[160];
    ck_assert(directory_make(workshop.build));
    snprintf(stale, sizeof stale, "%s/progress", workshop.build);
    ck_assert(directory_make(stale));
    snprintf(stale, sizeof stale, "%s/progress/5.svg", workshop.build);
    spit(stale, "<svg>stale</svg>\n", 17);
    setenv("PATH", "/nowhere", 1);
    write_the_page(score);
    setenv("PATH", "/usr/bin:/bin", 1);
    ck_assert_str_eq(said, "gnuplot: No such file or directory: the page has "
                     "no charts\n");
    ck_assert_int_eq(count_of("<svg"), 0);
    ck_assert_int_eq(count_of("No chart: "), 3);
    ck_assert_int_eq(count_of("40:01*/45"), 1);
    score_close(&score);
}
END_TEST

START_TEST(a_gnuplot_that_fails_is_named)
{
    struct score *score = some_weeks();
    char path[128];
    snprintf(path, sizeof path, "%.60s/gnuplot", place);
    spit(path, "#!/bin/sh\nexit 3\n", 17);
    ck_assert_int_eq(chmod(path, 0755), 0);
    setenv("PATH", place, 1);
    write_the_page(score);
    setenv("PATH", "/usr/bin:/bin", 1);
    ck_assert_int_eq(strncmp(said, "gnuplot failed on ", 18), 0);
    ck_assert_int_eq(count_of("<svg"), 0);
    score_close(&score);
}
END_TEST

START_TEST(a_page_of_nothing_is_a_page)
{
    struct score *score = new_score();
    write_the_page(score);
    ck_assert_int_eq(count_of("<svg"), 0);
    ck_assert_int_eq(count_of("<figure>"), 0);
    ck_assert_int_eq(count_of("<h2>"), 0);
    ck_assert_int_eq(count_of("stage 1 is new"), 1);
    ck_assert_int_eq(count_of("<tr class=\"new\">"), 5);
    score_close(&score);
}
END_TEST

START_TEST(a_page_that_cannot_be_written_is_a_failure)
{
    struct score *score = some_weeks();
    spit(workshop.build, "", 0);
    ck_assert(!page_write(&workshop, score, &stages, "2026-11-21"));
    ck_assert_ptr_nonnull(strstr(said, "progress.html: Not a directory"));
    score_close(&score);
}
END_TEST

START_TEST(the_build_directory_may_have_any_name)
{
    struct score *score = some_weeks();
    char odd[160];
    if (system("command -v gnuplot > /dev/null") != 0)
        return;
    snprintf(odd, sizeof odd, "%s/it's \"odd\" `x` %%s", place);
    workshop.build = odd;
    write_the_page(score);
    ck_assert_str_eq(said, "");
    ck_assert_int_eq(count_of("<svg"), 3);
    score_close(&score);
}
END_TEST

static const struct test tests[] = {
    TEST(times_and_dates_are_short, 0, "words for times and dates"),
    TEST(progress_shows_every_stage, 0, "the table of the stages"),
    TEST(progress_shows_the_clock_of_an_open_attempt, 0,
         "say what happened last, and what is due"),
    TEST(history_tells_what_the_clock_did_not_count, 0,
         "the list of a stage's attempts"),
    TEST(wrong_decisions_are_ordered_by_their_owners, 0,
         "sort the first wrong decisions"),
    TEST(next_is_the_most_overdue_then_the_new_then_the_soonest, 1,
         "choose the next stage and say why"),
    TEST(the_level_rises_with_clean_passes, 1, "what a clean pass changes"),
    TEST(pause_resume_and_abandon_say_what_holds, 2,
         "the commands on the clock"),
    TEST(output_that_cannot_be_written_is_a_failure, 2,
         "the end of what was printed"),
    TEST(the_page_has_a_chart_for_each_stage_with_results, 3,
         "copy a chart into the page"),
    TEST(the_page_shows_text_as_text, 3, "a text in a page"),
    TEST(the_page_without_gnuplot_has_its_tables, 3, "run gnuplot"),
    TEST(a_gnuplot_that_fails_is_named, 3, "run gnuplot"),
    TEST(a_page_of_nothing_is_a_page, 3, "put the page in its place"),
    TEST(a_page_that_cannot_be_written_is_a_failure, 3,
         "put the page in its place"),
    TEST(the_build_directory_may_have_any_name, 3, "a path in a script"),
};

SUITE("progress", tests);
