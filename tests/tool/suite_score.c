/* The re-solve tool's memory: clock, log, calendar and score, through their
   headers. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "calendar.h"
#include "clock.h"
#include "log.h"
#include "score.h"
#include "support/harness.h"
#include "tool/scripted.h"

static const struct attempt *start(struct score *score, const char *folder)
{
    ck_assert_msg(score_start(score, "5", folder, LEVEL_CHUNK, 600), "%s",
                  said);
    return score_latest(score, "5");
}

static bool grade(struct score *score, int passed, int failed)
{
    const char *owners[] = { "the first owner", "another owner" };
    struct verdict verdict = { passed, failed, 0, owners,
                               failed < 2 ? (size_t)failed : 2, NULL, NULL };
    return score_grade(score, score_latest(score, "5"), &verdict);
}

#define NEAR(actual, expected) ck_assert_double_eq_tol(actual, expected, 2e-3)

/* ------------------------------------------------------------------- clock */

START_TEST(a_moment_carries_the_local_offset)
{
    static const struct { const char *zone, *offset; } rows[] = {
        { "UTC0", "+00:00" }, { "XST-5:45", "+05:45" },
        { "NST3:30", "-03:30" }, { "LINT-14", "+14:00" },
        { "SST11", "-11:00" }, { "AKA-1AKB-1,J1,J2", "+01:00" },
    };
    char dates[6][11];
    for (int i = 0; i < 6; i++) {
        setenv("TZ", rows[i].zone, 1);
        struct moment moment = moment_now();
        ck_assert_uint_eq(strlen(moment.stamp), 25);
        ck_assert_str_eq(moment.stamp + 19, rows[i].offset);
        ck_assert_int_eq(moment.stamp[10], 'T');
        ck_assert_int_eq(strncmp(moment.stamp, moment.date, 10), 0);
        ck_assert(calendar_valid(moment.date));
        memcpy(dates[i], moment.date, 11);
    }
    /* twenty-five hours apart, so never on the same date */
    ck_assert_int_gt(strcmp(dates[3], dates[4]), 0);
}
END_TEST

START_TEST(the_clocks_of_a_moment_go_on)
{
    struct moment first = moment_now();
    struct timespec rest = { 0, 30000000 };
    nanosleep(&rest, NULL);
    struct moment second = moment_now();
    ck_assert_double_ge(second.awake, first.awake + 0.028);
    ck_assert_double_ge(second.since_boot, second.awake - 0.002);
    ck_assert_double_ge(second.wall, (double)time(NULL) - 5);
    ck_assert_str_eq(first.boot, second.boot);
    struct span span = moment_span(&first, &second);
    ck_assert_double_eq(span.slept, 0);
    ck_assert(!span.uncertain);
    ck_assert(!span.backwards);
}
END_TEST

START_TEST(only_work_within_a_boot_counts)
{
    static const struct {
        const char *what;
        struct moment from, to;
        double awake, slept;
        bool uncertain, backwards;
    } rows[] = {
        { "plain", { "", "", 100, 10, 10, "a" }, { "", "", 130, 40, 40, "a" },
          30, 0, false, false },
        { "asleep for an hour", { "", "", 100, 10, 10, "a" },
          { "", "", 3760, 70, 3670, "a" }, 60, 3600, false, false },
        { "wall set back", { "", "", 9000, 10, 10, "a" },
          { "", "", 10, 15, 15, "a" }, 5, 0, false, false },
        { "wall set forward", { "", "", 10, 10, 10, "a" },
          { "", "", 99999, 15, 15, "a" }, 5, 0, false, false },
        { "noise", { "", "", 10, 10, 10.05, "a" },
          { "", "", 11, 11, 11.1, "a" }, 1, 0, false, false },
        { "late event", { "", "", 20, 20, 20, "a" },
          { "", "", 15, 15, 15, "a" }, 0, 0, false, true },
        { "reboot", { "", "", 1000, 900, 900, "a" },
          { "", "", 1500, 20, 20, "b" }, 500, 0, true, false },
        { "reboot, wall set back", { "", "", 1000, 900, 900, "a" },
          { "", "", 500, 20, 20, "b" }, 0, 0, true, false },
        { "no names, no reboot", { "", "", 10, 10, 10, "" },
          { "", "", 12, 12, 12, "" }, 2, 0, false, false },
        { "no names, reboot", { "", "", 1000, 900, 900, "" },
          { "", "", 1060, 20, 20, "" }, 60, 0, true, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct span span = moment_span(&rows[i].from, &rows[i].to);
        ck_assert_msg(span.awake == rows[i].awake
                      && span.slept == rows[i].slept
                      && span.uncertain == rows[i].uncertain
                      && span.backwards == rows[i].backwards,
                      "%s: awake %g, slept %g, uncertain %d, backwards %d",
                      rows[i].what, span.awake, span.slept, span.uncertain,
                      span.backwards);
    }
}
END_TEST

/* ---------------------------------------------------------------- calendar */

START_TEST(only_dates_of_the_calendar_are_valid)
{
    static const char *const good[] = {
        "2026-11-29", "2028-02-29", "2000-02-29", "0001-01-01", "9999-12-31",
        "2026-04-30", "2026-12-31" };
    static const char *const bad[] = {
        "", "2026", "2026-11-2", "2026-11-290", "2026-1-29", "2026/11/29",
        "2026-02-29", "1900-02-29", "2026-00-10", "2026-13-01", "2026-04-31",
        "2026-01-00", "2026-01-32", "0000-01-01", "-026-01-01",
        "2026-11-29T", "20a6-11-29", " 2026-11-29" };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(calendar_valid(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!calendar_valid(bad[i]), "%s", bad[i]);
}
END_TEST

START_TEST(days_are_added_over_months_and_years)
{
    static const struct { const char *from; int days; const char *to; }
    rows[] = {
        { "2026-11-29", 0, "2026-11-29" }, { "2026-11-29", 1, "2026-11-30" },
        { "2026-11-29", 3, "2026-12-02" }, { "2026-12-31", 1, "2027-01-01" },
        { "2026-12-25", 7, "2027-01-01" }, { "2026-12-15", 21, "2027-01-05" },
        { "2028-02-28", 1, "2028-02-29" }, { "2028-02-28", 2, "2028-03-01" },
        { "2027-02-28", 1, "2027-03-01" }, { "2028-02-29", 21, "2028-03-21" },
        { "2028-02-29", 365, "2029-02-28" },
        { "2028-02-29", 1461, "2032-02-29" },
        { "2100-02-28", 1, "2100-03-01" }, { "2000-02-28", 1, "2000-02-29" },
        { "1970-01-01", 20786, "2026-11-29" },
        { "9999-12-31", 1, "9999-12-31" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char to[11];
        calendar_add(to, rows[i].from, rows[i].days);
        ck_assert_msg(strcmp(to, rows[i].to) == 0, "%s + %d is %s, not %s",
                      rows[i].from, rows[i].days, rows[i].to, to);
    }
}
END_TEST

START_TEST(days_between_dates_are_counted)
{
    static const struct { const char *from, *to; long days; } rows[] = {
        { "2026-11-29", "2026-11-29", 0 }, { "2026-11-29", "2026-12-02", 3 },
        { "2026-12-02", "2026-11-29", -3 }, { "2026-12-31", "2027-01-01", 1 },
        { "2028-02-28", "2028-03-01", 2 }, { "2027-02-28", "2027-03-01", 1 },
        { "1970-01-01", "2026-11-29", 20786 },
        { "2000-01-01", "2400-01-01", 146097 },
        { "0001-01-01", "1970-01-01", 719162 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_int_eq(calendar_between(rows[i].from, rows[i].to),
                         rows[i].days);
    char day[11] = "1896-01-01", next[11];
    for (int i = 0; i < 100000; i++) {
        calendar_add(next, day, 1);
        ck_assert_int_eq(calendar_between(day, next), 1);
        ck_assert(calendar_valid(next));
        memcpy(day, next, sizeof day);
    }
    ck_assert_str_eq(day, "2169-10-16");
}
END_TEST

/* A history is a list of results: C clean, L late, M missed, A abandoned,
   O open; then the level, c, f or e; then p if it was paused; then the day of
   January 2026, or a whole date. */
static size_t read_history(const char *history, struct outcome *items)
{
    size_t count = 0;
    char list[256];
    snprintf(list, sizeof list, "%s", history);
    for (char *word = strtok(list, " "); word; word = strtok(NULL, " ")) {
        struct outcome *item = &items[count++];
        memset(item, 0, sizeof *item);
        item->result = (enum result)(strchr("OCLMA", word[0]) - "OCLMA");
        item->level = (enum level)(strchr("cfe", word[1]) - "cfe");
        item->paused = word[2] == 'p';
        const char *date = word + 2 + item->paused;
        snprintf(item->date, sizeof item->date, "%s%s",
                 strlen(date) == 2 ? "2026-01-" : "", date);
    }
    return count;
}

static const struct row {
    const char *history;
    char state;         /* N new, S started, P passed, L learned */
    int rung;
    const char *due;
    char level;
} standings[] = {
    { "", 'N', 0, "", 'c' },
    { "Oc", 'S', 0, "", 'c' },
    { "Ac01", 'N', 0, "", 'c' },
    { "Ac01 Oc", 'S', 0, "", 'c' },
    { "Mc01", 'S', 0, "2026-01-02", 'c' },
    { "Mc01 Mc01", 'S', 0, "2026-01-02", 'c' },
    { "Mc01 Mc04", 'S', 0, "2026-01-05", 'c' },
    { "Lc01", 'P', 0, "2026-01-02", 'c' },
    { "Cc01", 'P', 1, "2026-01-02", 'f' },
    { "Cf01", 'P', 1, "2026-01-02", 'e' },
    { "Ce01", 'P', 1, "2026-01-02", 'e' },
    { "Cc01 Cc01", 'P', 1, "2026-01-02", 'f' },
    { "Cc01 Cf01", 'P', 1, "2026-01-02", 'e' },
    { "Cc01 Cc02", 'P', 2, "2026-01-05", 'f' },
    { "Cc01 Cf02 Ce05", 'P', 3, "2026-01-12", 'e' },
    { "Cc01 Cf02 Ce05 Ce12", 'L', 4, "2026-02-02", 'e' },
    { "Cc01 Cf02 Ce05 Ce12 Ce2026-02-02", 'L', 4, "2026-02-23", 'e' },
    { "Ce01 Cc02", 'P', 2, "2026-01-05", 'e' },
    /* learned */
    { "Ce01 Ce01", 'P', 1, "2026-01-02", 'e' },
    { "Ce01 Ce02", 'L', 2, "2026-01-05", 'e' },
    { "Ce02 Ce01", 'P', 1, "2026-01-03", 'e' },
    { "Cep01 Ce02", 'P', 2, "2026-01-05", 'e' },
    { "Ce01 Cep02", 'P', 2, "2026-01-05", 'e' },
    { "Cep01 Ce02 Ce03", 'L', 3, "2026-01-10", 'e' },
    { "Ce01 Le02", 'P', 1, "2026-01-03", 'e' },
    { "Ce01 Ce02 Me05", 'L', 1, "2026-01-06", 'e' },
    /* late */
    { "Cc01 Cc02 Lf05", 'P', 2, "2026-01-06", 'f' },
    { "Cc01 Lc01", 'P', 1, "2026-01-02", 'f' },
    { "Lc01 Cc01", 'P', 1, "2026-01-02", 'f' },
    { "Lc01 Cc02", 'P', 1, "2026-01-03", 'f' },
    /* missed */
    { "Ce01 Ce02 Ce05 Me12", 'L', 2, "2026-01-13", 'e' },
    { "Ce01 Ce02 Ce05 Me12 Ce12", 'L', 2, "2026-01-13", 'e' },
    { "Ce01 Ce02 Ce05 Me12 Ce13", 'L', 3, "2026-01-20", 'e' },
    { "Ce01 Ce02 Me05 Me05", 'L', 1, "2026-01-06", 'e' },
    { "Ce01 Ce02 Me05 Me06", 'L', 0, "2026-01-07", 'e' },
    { "Ce01 Ce02 Me05 Me06 Me07", 'L', 0, "2026-01-08", 'e' },
    { "Cc01 Mc01", 'P', 0, "2026-01-02", 'f' },
    { "Cc01 Mc01 Cc01", 'P', 0, "2026-01-02", 'f' },
    { "Mc01 Cc01", 'P', 0, "2026-01-02", 'f' },
    { "Mc01 Cc02", 'P', 1, "2026-01-03", 'f' },
    /* abandoned, open, and a calendar set back */
    { "Cc01 Ac02", 'P', 1, "2026-01-02", 'f' },
    { "Cc01 Of", 'P', 1, "2026-01-02", 'f' },
    { "Cc05 Cc04", 'P', 1, "2026-01-06", 'f' },
    /* month and year ends */
    { "Cc31", 'P', 1, "2026-02-01", 'f' },
    { "Cc2026-12-31", 'P', 1, "2027-01-01", 'f' },
    { "Cc2028-02-28", 'P', 1, "2028-02-29", 'f' },
    { "Cc2028-02-26 Cc2028-02-27", 'P', 2, "2028-03-01", 'f' },
    { "Cc2027-02-26 Cc2027-02-27", 'P', 2, "2027-03-02", 'f' },
    { "Mc2028-02-29", 'S', 0, "2028-03-01", 'c' },
};

START_TEST(a_history_leads_to_state_rung_and_date)
{
    for (size_t i = 0; i < sizeof standings / sizeof standings[0]; i++) {
        const struct row *row = &standings[i];
        struct outcome items[16];
        size_t count = read_history(row->history, items);
        struct standing standing = calendar_standing(items, count);
        ck_assert_msg("NSPL"[standing.state] == row->state
                      && standing.rung == row->rung
                      && strcmp(standing.due, row->due) == 0
                      && "cfe"[standing.level] == row->level,
                      "%s: %c, rung %d, due %s, level %c", row->history,
                      "NSPL"[standing.state], standing.rung, standing.due,
                      "cfe"[standing.level]);
    }
}
END_TEST

/* --------------------------------------------------------- time in attempts */

START_TEST(the_first_pass_within_the_budget_is_clean)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    ck_assert_str_eq(attempt->folder, "05-mask/one");
    ck_assert_int_eq(attempt->level, LEVEL_CHUNK);
    NEAR(attempt->budget, 600);
    ck_assert_int_eq(attempt->result, RESULT_OPEN);
    wait_for(200);
    ck_assert(grade(score, 7, 3));
    ck_assert_int_eq(attempt->result, RESULT_OPEN);
    ck_assert_int_eq(attempt->grades, 1);
    ck_assert_int_eq(attempt->passed, 7);
    ck_assert_int_eq(attempt->failed, 3);
    ck_assert_uint_eq(attempt->owner_count, 2);
    ck_assert_str_eq(attempt->owners[1], "another owner");
    wait_for(400);
    ck_assert(grade(score, 10, 0));
    wait_for(100);
    ck_assert(grade(score, 9, 1));
    score = reopen(score);
    attempt = score_latest(score, "5");
    ck_assert_int_eq(attempt->result, RESULT_CLEAN);
    NEAR(attempt->elapsed, 600);
    ck_assert_int_eq(attempt->grades, 3);
    ck_assert_int_eq(attempt->passed, 9);
    ck_assert_str_eq(attempt->end_date, "2026-11-29");
    ck_assert_str_eq(attempt->first_owner, "the first owner");
    ck_assert_str_eq(attempt->began.stamp, "2026-11-29T20:31:05+01:00");
    NEAR(attempt->last.awake, 1700.25);
    ck_assert_ptr_null(score_latest(score, "4"));
    score_close(&score);
    ck_assert_ptr_null(score);
    ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(a_pass_needs_a_test_that_passed_and_no_problem)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    struct verdict verdict = { 0, 0, 0, NULL, 0, NULL, NULL };
    ck_assert(score_grade(score, attempt, &verdict));
    verdict = (struct verdict){ 5, 0, 0, NULL, 0, "no verdict", NULL };
    ck_assert(score_grade(score, attempt, &verdict));
    ck_assert_str_eq(attempt->problem, "no verdict");
    verdict = (struct verdict){ 5, 1, 0, NULL, 0, NULL, NULL };
    ck_assert(score_grade(score, attempt, &verdict));
    ck_assert_int_eq(attempt->result, RESULT_OPEN);
    ck_assert_str_eq(attempt->problem, "");
    wait_for(600.01);
    verdict = (struct verdict){ 6, 0, 18446744073709551615ull, NULL, 0, NULL,
                                NULL };
    ck_assert(score_grade(score, attempt, &verdict));
    score = reopen(score);
    attempt = score_latest(score, "5");
    ck_assert_int_eq(attempt->result, RESULT_LATE);
    ck_assert(attempt->seed == 18446744073709551615ull);
    score_close(&score);
}
END_TEST

START_TEST(a_reveal_is_a_miss_only_before_a_pass)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    ck_assert(score_refuse_reveal(score, attempt));
    ck_assert(attempt->reveal_refused);
    ck_assert_int_eq(attempt->result, RESULT_OPEN);
    ck_assert_str_eq(attempt->wrong, "");
    ck_assert(score_reveal(score, attempt, "took \"i\"\nfor a position"));
    ck_assert(score_reveal(score, attempt, ""));
    ck_assert(grade(score, 5, 0));
    ck_assert(score_abandon(score, attempt));
    score = reopen(score);
    attempt = score_latest(score, "5");
    ck_assert_int_eq(attempt->result, RESULT_REVEALED);
    ck_assert_str_eq(attempt->wrong, "took \"i\"\nfor a position");
    attempt = start(score, "05-mask/two");
    ck_assert(grade(score, 5, 0));
    ck_assert(score_reveal(score, attempt, "none"));
    ck_assert_int_eq(attempt->result, RESULT_CLEAN);
    ck_assert_str_eq(attempt->wrong, "none");
    attempt = start(score, "05-mask/three");
    ck_assert(score_abandon(score, attempt));
    ck_assert_int_eq(attempt->result, RESULT_ABANDONED);
    ck_assert(grade(score, 5, 0));
    ck_assert_int_eq(attempt->result, RESULT_ABANDONED);
    const struct attempt *items;
    ck_assert_uint_eq(score_attempts(score, &items), 3);
    ck_assert_str_eq(items[1].folder, "05-mask/two");
    ck_assert_int_eq(items[2].result, RESULT_ABANDONED);
    score_close(&score);
}
END_TEST

START_TEST(a_pause_is_not_counted)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    wait_for(100);
    ck_assert(score_pause(score, attempt));
    ck_assert(attempt->is_paused);
    wait_for(5000);
    now.since_boot += 1000;     /* asleep while paused */
    ck_assert(score_pause(score, attempt));
    wait_for(1);
    score = reopen(score);
    attempt = score_latest(score, "5");
    ck_assert(attempt->is_paused);
    ck_assert_int_eq(attempt->pauses, 1);
    NEAR(attempt->elapsed, 100);
    NEAR(attempt->paused, 6001);
    NEAR(attempt->slept, 0);
    ck_assert(score_resume(score, attempt));
    ck_assert(!attempt->is_paused);
    wait_for(50);
    ck_assert(score_resume(score, attempt));
    ck_assert(score_pause(score, attempt));
    wait_for(7);
    ck_assert(grade(score, 4, 0));      /* resumes */
    ck_assert(!attempt->is_paused);
    ck_assert_int_eq(attempt->result, RESULT_CLEAN);
    ck_assert(score_pause(score, attempt));
    score = reopen(score);
    attempt = score_latest(score, "5");
    ck_assert(!attempt->is_paused);
    NEAR(attempt->elapsed, 150);
    NEAR(attempt->paused, 6008);
    ck_assert_int_eq(attempt->pauses, 2);
    char text[16384] = "";
    slurp(log_path, text, sizeof text - 1);
    const char *resumes = strstr(text, "\"resume\"");
    ck_assert_ptr_nonnull(resumes = strstr(resumes + 1, "\"resume\""));
    ck_assert_ptr_nonnull(resumes = strstr(resumes + 1, "\"resume\""));
    ck_assert_ptr_nonnull(strstr(resumes, "\"grade\""));
    score_close(&score);
}
END_TEST

START_TEST(time_goes_on_from_the_last_event)
{
    struct score *score = new_score();
    struct attempt copy = *start(score, "05-mask/one");
    wait_for(10);
    ck_assert(grade(score, 1, 1));
    copy = *score_latest(score, "5");
    for (int i = 1; i <= 5; i++) {
        wait_for(1);
        attempt_advance(&copy, &now);
        NEAR(copy.elapsed, 10 + i);
        score = reopen(score);
        NEAR(score_latest(score, "5")->elapsed, 10 + i);
    }
    score_close(&score);
}
END_TEST

START_TEST(a_verdict_counts_from_when_it_was_asked_for)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    wait_for(590);
    struct moment asked = now;
    wait_for(30);
    ck_assert(grade(score, 1, 1));      /* another, asked later: logged first */
    struct verdict verdict = { 9, 1, 0, NULL, 0, NULL, &asked };
    ck_assert(score_grade(score, attempt, &verdict));
    NEAR(attempt->elapsed, 620);        /* time never goes back */
    verdict.failed = 0;
    wait_for(10);
    ck_assert(grade(score, 1, 1));
    NEAR(attempt->elapsed, 630);
    ck_assert(score_grade(score, attempt, &verdict));
    ck_assert_int_eq(attempt->result, RESULT_LATE);
    attempt = start(score, "05-mask/two");
    wait_for(600);
    asked = now;
    wait_for(30);
    ck_assert(score_grade(score, attempt, &verdict));
    NEAR(attempt->elapsed, 600);
    ck_assert_int_eq(attempt->result, RESULT_CLEAN);
    score_close(&score);
}
END_TEST

START_TEST(wall_time_sleep_and_reboots_do_not_spoil_an_attempt)
{
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "05-mask/one");
    wait_for(60);
    on("2026-10-25T02:59:59+02:00");    /* summer time ends */
    ck_assert(grade(score, 1, 1));
    wait_for(2);
    on("2026-10-25T02:00:01+01:00");
    ck_assert(grade(score, 1, 1));
    NEAR(attempt->elapsed, 62);
    now.wall -= 365 * 86400.0;          /* the clock set back a year */
    wait_for(3);
    on("2025-10-25T02:00:04+01:00");
    ck_assert(grade(score, 1, 1));
    NEAR(attempt->elapsed, 65);
    now.since_boot += 30000;            /* the lid was closed */
    now.wall += 30000;
    wait_for(5);
    ck_assert(grade(score, 1, 1));
    NEAR(attempt->elapsed, 70);
    NEAR(attempt->slept, 30000);
    ck_assert(!attempt->uncertain);
    now.wall += 100;                    /* a reboot, 100 s by the wall */
    now.awake = now.since_boot = 12;
    snprintf(now.boot, sizeof now.boot, "boot-b");
    score = reopen(score);
    attempt = score_latest(score, "5");
    NEAR(attempt->elapsed, 170);
    ck_assert(attempt->uncertain);
    ck_assert(grade(score, 1, 1));
    wait_for(30);
    on("2026-11-30T00:00:20+01:00");    /* past midnight */
    ck_assert(grade(score, 2, 0));
    score = reopen(score);
    attempt = score_latest(score, "5");
    NEAR(attempt->elapsed, 200);
    NEAR(attempt->slept, 30000);
    ck_assert(attempt->uncertain);
    ck_assert_int_eq(attempt->result, RESULT_CLEAN);
    ck_assert_str_eq(attempt->end_date, "2026-11-30");
    score_close(&score);
}
END_TEST

START_TEST(an_attempt_may_change_its_time_zone)
{
    new_place();
    struct score *score;
    setenv("TZ", "SST11", 1);
    ck_assert(score_open(&score, &workshop));
    const struct attempt *attempt = start(score, "05-mask/one");
    setenv("TZ", "LINT-14", 1);
    ck_assert(grade(score, 1, 0));
    ck_assert_str_eq(attempt->began.stamp + 19, "-11:00");
    ck_assert_str_eq(attempt->last.stamp + 19, "+14:00");
    ck_assert_int_gt(strcmp(attempt->end_date, attempt->began.date), 0);
    ck_assert_double_ge(attempt->elapsed, 0);
    ck_assert_double_lt(attempt->elapsed, 10);
    score_close(&score);
}
END_TEST

START_TEST(a_new_start_abandons_the_open_attempt_of_its_stage)
{
    struct score *score = new_score();
    start(score, "05-mask/one");
    ck_assert(score_start(score, "10.2", "10-prefix/one", LEVEL_EMPTY, 60));
    wait_for(30);
    start(score, "05-mask/two");
    wait_for(30);
    score = reopen(score);
    const struct attempt *items;
    ck_assert_uint_eq(score_attempts(score, &items), 3);
    ck_assert_int_eq(items[0].result, RESULT_ABANDONED);
    NEAR(items[0].elapsed, 30);
    ck_assert_int_eq(items[1].result, RESULT_OPEN);
    NEAR(items[1].elapsed, 60);
    ck_assert_ptr_eq(score_latest(score, "5"), &items[2]);
    ck_assert_ptr_eq(score_latest(score, "10.2"), &items[1]);
    ck_assert_ptr_null(score_latest(score, "10"));
    ck_assert(!score_start(score, "5", "05-mask/one", LEVEL_CHUNK, 600));
    ck_assert(!score_start(score, "5", "../outside", LEVEL_CHUNK, 600));
    ck_assert(!score_start(score, "5", "/tmp/x", LEVEL_CHUNK, 600));
    ck_assert_int_eq(complaints, 3);
    ck_assert_uint_eq(score_attempts(score, &items), 3);
    score_close(&score);
}
END_TEST

START_TEST(results_count_in_the_order_of_their_ends)
{
    struct score *score = new_score();
    on("2026-01-01T10:00:00+00:00");
    ck_assert(score_start(score, "5", "a", LEVEL_EMPTY, 600));
    ck_assert(grade(score, 3, 0));
    struct standing standing = score_standing(score, "5");
    ck_assert_int_eq(standing.state, STATE_PASSED);
    ck_assert_str_eq(standing.due, "2026-01-02");
    on("2026-01-02T10:00:00+00:00");
    ck_assert(score_start(score, "5", "b", LEVEL_EMPTY, 600));
    ck_assert(grade(score, 3, 0));
    ck_assert(score_start(score, "5", "c", LEVEL_EMPTY, 600));
    standing = score_standing(score, "5");
    ck_assert_int_eq(standing.state, STATE_LEARNED);
    ck_assert_str_eq(standing.due, "2026-01-05");
    ck_assert_int_eq(standing.rung, 2);
    on("2026-01-03T10:00:00+00:00");
    ck_assert(score_reveal(score, score_latest(score, "5"), "w"));
    standing = score_standing(score, "5");
    ck_assert_str_eq(standing.due, "2026-01-04");
    ck_assert_int_eq(standing.rung, 1);
    ck_assert_int_eq(score_standing(score, "6").state, STATE_NEW);
    for (int day = 1; day <= 2; day++) {    /* a pause each: not learned */
        on(day == 1 ? "2026-01-01T10:00:00" : "2026-01-02T10:00:00");
        ck_assert(score_start(score, "6", day == 1 ? "d" : "e", LEVEL_EMPTY,
                              600));
        ck_assert(score_pause(score, score_latest(score, "6")));
        struct verdict verdict = { 1, 0, 0, NULL, 0, NULL, NULL };
        ck_assert(score_grade(score, score_latest(score, "6"), &verdict));
    }
    ck_assert_int_eq(score_standing(score, "6").state, STATE_PASSED);
    ck_assert_int_eq(score_standing(score, "6").rung, 2);
    score_close(&score);
}
END_TEST

/* ----------------------------------------------------------------- the file */

static char whole[65536];

/* Three lines; returns the length of the text and where the last one starts. */
static size_t three_lines(size_t *last)
{
    struct score *score = new_score();
    start(score, "05-mask/one");
    wait_for(10);
    ck_assert(grade(score, 3, 2));
    *last = slurp(log_path, whole, sizeof whole);
    wait_for(10);
    ck_assert(grade(score, 5, 0));
    score_close(&score);
    ck_assert_str_eq(said, "");
    return slurp(log_path, whole, sizeof whole);
}

static void check_cut(size_t cut, size_t last, size_t length)
{
    static char text[65536];
    bool torn = cut > last && cut < length - 1;
    say_nothing();
    unlink(torn_path);
    spit(log_path, whole, cut);
    struct score *score = reopen(NULL);
    ck_assert_int_eq(score_latest(score, "5")->grades,
                     cut >= length - 1 ? 2 : 1);
    ck_assert_int_eq(complaints, torn);
    if (torn)
        ck_assert_ptr_nonnull(strstr(said, "log.jsonl:3: "));
    size_t kept = slurp(log_path, text, sizeof text);
    ck_assert_uint_eq(kept, cut >= length - 1 ? length : last);
    ck_assert_int_eq(memcmp(text, whole, kept), 0);
    size_t aside = slurp(torn_path, text, sizeof text);
    ck_assert_uint_eq(aside, torn ? cut - last + 1 : (size_t)-1);
    if (torn)
        ck_assert_int_eq(memcmp(text, whole + last, cut - last), 0);
    ck_assert(score_reveal(score, score_latest(score, "5"), "w"));
    score = reopen(score);
    ck_assert_str_eq(score_latest(score, "5")->wrong, "w");
    ck_assert_int_eq(complaints, torn);
    score_close(&score);
}

START_TEST(a_last_line_torn_at_any_byte_is_moved_aside)
{
    size_t last, length = three_lines(&last);
    for (size_t cut = last; cut <= length; cut++)
        check_cut(cut, last, length);
}
END_TEST

START_TEST(torn_lines_gather_and_are_never_lost)
{
    size_t last, length = three_lines(&last);
    spit(log_path, whole, last + 5);
    score_close(&(struct score *){ reopen(NULL) });
    spit(log_path, whole, length);
    FILE *file = fopen(log_path, "ab");
    fwrite("\0\0\0\0\n", 1, 5, file);   /* zeros, as after a power cut */
    fclose(file);
    score_close(&(struct score *){ reopen(NULL) });
    static char text[65536];
    ck_assert_uint_eq(slurp(torn_path, text, sizeof text), 12);
    ck_assert_int_eq(memcmp(text, whole + last, 5), 0);
    ck_assert_int_eq(memcmp(text + 5, "\n\0\0\0\0\n\n", 7), 0);
    ck_assert_uint_eq(slurp(log_path, text, sizeof text), length);
    ck_assert_int_eq(complaints, 2);
}
END_TEST

/* What stands between the second and the third line, and how often the
   opening complains of it. */
static const struct { const char *line; size_t length; int complaints; }
middles[] = {
    { "\n", 1, 0 }, { " \t\r\n", 4, 0 },
    { "{\"event\":\"gra\n", 14, 1 },
    { "not JSON at all\n", 16, 1 },
    { "{\"event\":\"party\"} {}\n", 21, 1 }, { "[1,2]\n", 6, 1 }, { "5\n", 2, 1 },
    { "{}\n", 3, 1 }, { "{\"event\":5}\n", 12, 1 },
    { "{\"event\":\"party\",\"a\":\"\0\"}\n", 26, 1 }, { "\0\n", 2, 1 },
    { "\xff\xfe\n", 3, 1 },
    { "{\"event\":\"party\",\"guests\":[1,{}]}\n", 34, 0 },
    { "{\"event\":\"grade\"}\n", 18, 1 },
    { "{\"event\":\"grade\",\"folder\":\"05-mask/one\"}\n", 41, 1 },
};

START_TEST(a_bad_line_in_the_middle_is_named_and_left)
{
    size_t last, length = three_lines(&last);
    for (size_t i = 0; i < sizeof middles / sizeof middles[0]; i++) {
        static char text[65536], after[65536];
        size_t used = last;
        memcpy(text, whole, last);
        memcpy(text + used, middles[i].line, middles[i].length);
        used += middles[i].length;
        memcpy(text + used, whole + last, length - last);
        used += length - last;
        spit(log_path, text, used);
        say_nothing();
        struct score *score = reopen(NULL);
        ck_assert_msg(complaints == middles[i].complaints, "row %zu: %s", i,
                      said);
        if (complaints > 0)
            ck_assert_ptr_nonnull(strstr(said, "log.jsonl:3: "));
        ck_assert_int_eq(score_latest(score, "5")->result, RESULT_CLEAN);
        ck_assert_int_eq(score_latest(score, "5")->grades, 2);
        ck_assert_uint_eq(slurp(log_path, after, sizeof after), used);
        ck_assert_int_eq(memcmp(text, after, used), 0);
        score_close(&score);
    }
}
END_TEST

#define TIME "\"at\":\"2026-11-29T20:31:05+01:00\",\"wall\":1,\"awake\":2," \
    "\"since_boot\":2,\"boot\":\"b\""
#define START "{\"event\":\"start\"," TIME ",\"stage\":\"5\","

/* Objects that are no event, each alone in a log. */
static const char *const misfits[] = {
    START "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":0}",
    START "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":-5}",
    START "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":1e999}",
    START "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":\"600\"}",
    START "\"folder\":\"a\",\"level\":\"chunk\"}",
    START "\"folder\":\"a\",\"level\":\"none\",\"budget\":600}",
    START "\"folder\":\"a\",\"budget\":600}",
    START "\"folder\":\"../a\",\"level\":\"chunk\",\"budget\":600}",
    START "\"folder\":\"/a\",\"level\":\"chunk\",\"budget\":600}",
    START "\"folder\":\"\",\"level\":\"chunk\",\"budget\":600}",
    START "\"folder\":7,\"level\":\"chunk\",\"budget\":600}",
    START "\"level\":\"chunk\",\"budget\":600}",
    "{\"event\":\"start\",\"at\":\"2026-02-30T20:31:05+01:00\",\"wall\":1,"
    "\"awake\":2,\"since_boot\":2,\"boot\":\"b\",\"stage\":\"5\","
    "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":600}",
    "{\"event\":\"start\",\"at\":\"yesterday\",\"wall\":1,"
    "\"awake\":2,\"since_boot\":2,\"boot\":\"b\",\"stage\":\"5\","
    "\"folder\":\"a\",\"level\":\"chunk\",\"budget\":600}",
    "{\"event\":\"start\",\"at\":\"2026-11-29T20:31:05+01:00\",\"wall\":1,"
    "\"awake\":2,\"boot\":\"b\",\"stage\":\"5\",\"folder\":\"a\","
    "\"level\":\"chunk\",\"budget\":600}",
    "{\"event\":\"pause\"," TIME ",\"folder\":\"never-started\"}",
};

START_TEST(an_event_that_says_too_little_is_skipped)
{
    new_place();
    begin_clock();
    ck_assert(directory_make(attempts));
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        const struct attempt *items;
        spit(log_path, misfits[i], strlen(misfits[i]));
        say_nothing();
        struct score *score = reopen(NULL);
        ck_assert_msg(complaints == 1, "row %zu: %s", i, said);
        ck_assert_uint_eq(score_attempts(score, &items), 0);
        score_close(&score);
    }
    static const char fine[] = START "\"folder\":\"a\",\"level\":\"chunk\","
        "\"budget\":600,\"mood\":\"good\"}\n";
    char twice[2 * sizeof fine];
    snprintf(twice, sizeof twice, "%s%s", fine, fine);
    spit(log_path, twice, strlen(twice));
    say_nothing();
    struct score *score = reopen(NULL);
    ck_assert_ptr_nonnull(strstr(said, "log.jsonl:2: "));
    ck_assert_ptr_nonnull(score_latest(score, "5"));
    score_close(&score);
}
END_TEST

START_TEST(an_empty_log_and_no_log_are_no_attempts)
{
    const struct attempt *items;
    new_place();
    begin_clock();
    struct score *score = reopen(NULL);         /* no directory */
    ck_assert_uint_eq(score_attempts(score, &items), 0);
    ck_assert_ptr_null(score_latest(score, "5"));
    score = reopen(score);                      /* an empty file */
    ck_assert_uint_eq(score_attempts(score, &items), 0);
    start(score, "05-mask/one");
    score_close(&score);
    score_close(&score);
    ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(ten_thousand_lines_fold_at_once)
{
    new_place();
    begin_clock();
    ck_assert(directory_make(attempts));
    FILE *file = fopen(log_path, "w");
    for (int i = 0; i < 10000; i++)
        if (i % 4 == 0)
            fprintf(file, START "\"folder\":\"a%d\",\"level\":\"chunk\","
                    "\"budget\":600}\n", i / 4);
        else
            fprintf(file, "{\"event\":\"grade\"," TIME ",\"folder\":\"a%d\","
                    "\"passed\":4,\"failed\":%d,\"owners\":[\"o\"]}\n", i / 4,
                    3 - i % 4);
    fclose(file);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    struct score *score = reopen(NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    const struct attempt *items;
    ck_assert_uint_eq(score_attempts(score, &items), 2500);
    for (int i = 0; i < 2500; i++) {
        ck_assert_int_eq(items[i].result, RESULT_CLEAN);
        ck_assert_int_eq(items[i].grades, 3);
    }
    ck_assert_int_lt((int)(to.tv_sec - from.tv_sec), 2);
    score_close(&score);
    ck_assert_str_eq(said, "");
}
END_TEST

/* -------------------------------------------------- others, kills, full disks */

/* The lines of the log that end, checked to be objects; the grades' seeds of
   one folder must be 0, 1, 2, ... Returns how many grades there are. */
static int count_grades(const char *folder)
{
    static char text[1 << 22];
    size_t length = slurp(log_path, text, sizeof text - 1);
    int grades = 0;
    if (length == (size_t)-1)
        return 0;
    text[length] = '\0';
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        *end = '\0';
        cJSON *event = cJSON_Parse(line);
        ck_assert_msg(cJSON_IsObject(event), "%s", line);
        const char *of = cJSON_GetStringValue(
            cJSON_GetObjectItem(event, "folder"));
        const cJSON *seed = cJSON_GetObjectItem(event, "seed");
        if (seed != NULL && strcmp(of, folder) == 0)
            ck_assert_int_eq(atoi(seed->valuestring), grades++);
        cJSON_Delete(event);
    }
    return grades;
}

static bool grade_seed(struct score *score, const char *stage, int seed)
{
    struct verdict verdict = { 1, 1, (unsigned long long)seed, NULL, 0, NULL,
                               NULL };
    return score_grade(score, score_latest(score, stage), &verdict);
}

START_TEST(a_kill_at_any_time_loses_at_most_the_last_line)
{
    score_close(&(struct score *){ new_score() });
    struct score *score = reopen(NULL);
    start(score, "f");
    score_close(&score);
    int grades = 0, repairs = 0;
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = grades; ; i++) {
                score = NULL;
                if (!score_open_at(&score, &workshop, scripted)
                    || !grade_seed(score, "5", i))
                    _exit(1);
                score_close(&score);
            }
        }
        struct timespec rest = { 0, 1000000 + 370000 * (round % 40) };
        nanosleep(&rest, NULL);
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        say_nothing();
        score = reopen(NULL);
        repairs += complaints;
        grades = count_grades("f");
        ck_assert_int_eq(score_latest(score, "5")->grades, grades);
        score_close(&score);
    }
    ck_assert_int_gt(grades, 0);
    (void)repairs;
}
END_TEST

/* Runs the action in a child and kills it after the given number of stops
   before and after its system calls. Returns whether it ended by itself, or -1
   when this system lets nobody trace. */
static int run_and_kill(void (*action)(void), int stops)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(99);
        raise(SIGSTOP);
        action();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        return -1;
    for (int i = 0; i < stops; i++) {
        ptrace(PTRACE_SYSCALL, child, NULL, NULL);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            ck_assert_int_eq(WEXITSTATUS(status), 0);
            return 1;
        }
    }
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return 0;
}

static void open_and_grade(void)
{
    struct score *score;
    if (!score_open_at(&score, &workshop, scripted)
        || !grade_seed(score, "5", 0))
        _exit(1);
    score_close(&score);
}

START_TEST(a_kill_between_any_two_system_calls_loses_no_line)
{
    size_t last;
    three_lines(&last);
    int ended = 0, stops = 1, graded = 0;
    for (; ended == 0; stops++) {
        ck_assert_int_lt(stops, 500);
        spit(log_path, whole, last);
        ended = run_and_kill(open_and_grade, stops);
        say_nothing();
        struct score *score = reopen(NULL);
        ck_assert_int_eq(complaints, 0);
        int grades = score_latest(score, "5")->grades;
        ck_assert(grades == 1 || grades == 2);
        ck_assert(grades - 1 >= graded);        /* never lost again */
        graded = grades - 1;
        score_close(&score);
    }
    ck_assert(ended == -1 || graded == 1);
}
END_TEST

START_TEST(a_kill_during_a_repair_loses_no_byte)
{
    size_t last, length = three_lines(&last), torn = length - 20;
    int ended = 0;
    for (int stops = 1; ended == 0; stops++) {
        static char text[65536];
        ck_assert_int_lt(stops, 500);
        unlink(torn_path);
        spit(log_path, whole, torn);
        ended = run_and_kill(open_and_grade, stops);
        struct score *score = reopen(NULL);
        ck_assert_int_ge(score_latest(score, "5")->grades, 1);
        score_close(&score);
        size_t aside = slurp(torn_path, text, sizeof text);
        ck_assert(aside != (size_t)-1);
        bool kept = false;
        for (size_t i = 0; i + torn - last <= aside; i++)
            kept = kept || memcmp(text + i, whole + last, torn - last) == 0;
        ck_assert_msg(kept, "after %d stops", stops);
        ck_assert_uint_ge(slurp(log_path, text, sizeof text), last);
        ck_assert_int_eq(memcmp(text, whole, last), 0);
    }
}
END_TEST

START_TEST(two_processes_append_whole_lines)
{
    struct score *score = new_score();
    ck_assert(score_start(score, "0", "f0", LEVEL_CHUNK, 600));
    ck_assert(score_start(score, "1", "f1", LEVEL_CHUNK, 600));
    score_close(&score);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        for (int seed = 0; children[i] == 0 && seed < 60; seed++) {
            if (!score_open_at(&score, &workshop, scripted)
                || !grade_seed(score, i == 0 ? "0" : "1", seed)
                || score_latest(score, i == 0 ? "0" : "1")->grades
                   != seed + 1)
                _exit(1);
            score_close(&score);
        }
        if (children[i] == 0)
            _exit(0);
    }
    for (int i = 0; i < 2; i++) {
        int status;
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    ck_assert_int_eq(count_grades("f0"), 60);
    ck_assert_int_eq(count_grades("f1"), 60);
    score = reopen(NULL);
    ck_assert_int_eq(score_latest(score, "0")->grades, 60);
    ck_assert_int_eq(score_latest(score, "1")->grades, 60);
    score_close(&score);
    ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(the_lock_is_held_until_the_score_is_closed)
{
    struct score *score = new_score();
    start(score, "f");
    int pipe_ends[2];
    ck_assert_int_eq(pipe(pipe_ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct score *other;
        bool opened = score_open_at(&other, &workshop, scripted);
        char grades = opened ? (char)score_latest(other, "5")->grades : 'x';
        _exit(write(pipe_ends[1], &grades, 1) == 1 ? 0 : 1);
    }
    struct timespec rest = { 0, 100000000 };
    nanosleep(&rest, NULL);
    ck_assert_int_eq(waitpid(child, NULL, WNOHANG), 0);     /* it waits */
    ck_assert(grade(score, 1, 1));
    score_close(&score);
    char grades;
    ck_assert_int_eq((int)read(pipe_ends[0], &grades, 1), 1);
    ck_assert_int_eq(grades, 1);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}
END_TEST

static void limit_files(size_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(a_line_that_does_not_fit_is_taken_off_again)
{
    static char text[65536];
    struct score *score = new_score();
    const struct attempt *attempt = start(score, "f");
    size_t length = slurp(log_path, whole, sizeof whole);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t room = 0; room < 40; room += 13) {
        say_nothing();
        limit_files(length + room);
        ck_assert(!score_pause(score, attempt));
        ck_assert(!attempt->is_paused);
        ck_assert_int_eq(complaints, 1);
        ck_assert_ptr_nonnull(strstr(said, "log.jsonl: cannot be written: "));
        ck_assert_uint_eq(slurp(log_path, text, sizeof text), length);
        ck_assert_int_eq(memcmp(text, whole, length), 0);
    }
    limit_files(1 << 20);
    ck_assert(score_pause(score, attempt));
    score = reopen(score);
    ck_assert(score_latest(score, "5")->is_paused);
    score_close(&score);
}
END_TEST

START_TEST(a_torn_line_that_cannot_be_moved_stays)
{
    static char text[65536];
    size_t last, length = three_lines(&last);
    struct score *score = NULL;
    spit(log_path, whole, length - 9);
    signal(SIGXFSZ, SIG_IGN);
    limit_files(0);
    ck_assert(!score_open_at(&score, &workshop, scripted));
    ck_assert_ptr_null(score);
    ck_assert_ptr_nonnull(strstr(said, "log.torn"));
    ck_assert_uint_eq(slurp(log_path, text, sizeof text), length - 9);
    limit_files(1 << 20);
    score = reopen(NULL);
    ck_assert_int_eq(score_latest(score, "5")->grades, 1);
    score_close(&score);
}
END_TEST

/* Root may write anywhere, so root's children become nobody. */
static void lose_rights(void)
{
    if (getuid() == 0)
        ck_assert_int_eq(setuid(65534), 0);
}

START_TEST(a_read_only_log_can_be_read)
{
    size_t last, length = three_lines(&last);
    spit(log_path, whole, length - 9);
    ck_assert_int_eq(chmod(log_path, 0444), 0);
    ck_assert_int_eq(chmod(attempts, 0555), 0);
    pid_t child = fork();
    if (child == 0) {
        struct score *score = NULL;
        lose_rights();
        say_nothing();
        if (!score_open_at(&score, &workshop, scripted)
            || strstr(said, "log.jsonl:3: ") == NULL
            || score_latest(score, "5")->grades != 1)
            _exit(1);
        say_nothing();
        if (score_pause(score, score_latest(score, "5"))
            || strstr(said, "log.jsonl: cannot be written: Permission denied")
               == NULL || score_latest(score, "5")->is_paused)
            _exit(2);
        score_close(&score);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    static char text[65536];
    ck_assert_uint_eq(slurp(log_path, text, sizeof text), length - 9);
}
END_TEST

static void refuses(const char *what)
{
    struct score *score = NULL;
    say_nothing();
    ck_assert(!score_open_at(&score, &workshop, scripted));
    ck_assert_ptr_null(score);
    ck_assert_int_ge(complaints, 1);
    ck_assert_msg(strstr(said, what) != NULL, "%s", said);
}

START_TEST(a_log_that_is_no_file_is_refused)
{
    new_place();
    begin_clock();
    ck_assert(directory_make(attempts));
    ck_assert_int_eq(symlink("/dev/full", log_path), 0);
    refuses("log.jsonl: not a file");
    ck_assert_int_eq(unlink(log_path), 0);
    ck_assert_int_eq(mkfifo(log_path, 0666), 0);
    refuses("log.jsonl: not a file");
    ck_assert_int_eq(unlink(log_path), 0);
    ck_assert_int_eq(mkdir(log_path, 0777), 0);
    refuses("log.jsonl: Is a directory");
    ck_assert_int_eq(rmdir(log_path), 0);
    char line[128];
    snprintf(line, sizeof line, "rm -rf %.100s", attempts);
    ck_assert_int_eq(system(line), 0);
    spit(attempts, "", 0);
    refuses("Not a directory");
}
END_TEST

static const struct test tests[] = {
    TEST(a_moment_carries_the_local_offset, 0,
         "write the local time with its offset"),
    TEST(the_clocks_of_a_moment_go_on, 0, "a moment, by all the clocks"),
    TEST(only_work_within_a_boot_counts, 0, "the work between two moments"),
    TEST(only_dates_of_the_calendar_are_valid, 0, "whether a text is a date"),
    TEST(days_are_added_over_months_and_years, 0, "a date some days later"),
    TEST(days_between_dates_are_counted, 0, "the number of a day"),
    TEST(a_history_leads_to_state_rung_and_date, 0,
         "what one result changes"),
    TEST(an_empty_log_and_no_log_are_no_attempts, 1, "the opening of a log"),
    TEST(the_first_pass_within_the_budget_is_clean, 1, "fold a grade"),
    TEST(a_pass_needs_a_test_that_passed_and_no_problem, 1, "fold a grade"),
    TEST(a_reveal_is_a_miss_only_before_a_pass, 1,
         "fold a refusal, a reveal and an abandoning"),
    TEST(a_pause_is_not_counted, 1, "the times of an attempt"),
    TEST(time_goes_on_from_the_last_event, 1, "the times of an attempt"),
    TEST(a_verdict_counts_from_when_it_was_asked_for, 1,
         "let an event be the latest of its attempt"),
    TEST(wall_time_sleep_and_reboots_do_not_spoil_an_attempt, 1,
         "the times of an attempt"),
    TEST(an_attempt_may_change_its_time_zone, 1,
         "write the local time with its offset"),
    TEST(a_new_start_abandons_the_open_attempt_of_its_stage, 1,
         "abandon the open attempt of a stage"),
    TEST(results_count_in_the_order_of_their_ends, 1,
         "the standing of a stage"),
    TEST(a_last_line_torn_at_any_byte_is_moved_aside, 2,
         "move a torn line aside"),
    TEST(torn_lines_gather_and_are_never_lost, 2, "move a torn line aside"),
    TEST(a_bad_line_in_the_middle_is_named_and_left, 2,
         "visit every line of the log"),
    TEST(an_event_that_says_too_little_is_skipped, 2,
         "fold an event into its attempt"),
    TEST(ten_thousand_lines_fold_at_once, 2, "find an attempt by its folder"),
    TEST(a_kill_at_any_time_loses_at_most_the_last_line, 3,
         "write some bytes at the end of the log, or nothing"),
    TEST(a_kill_between_any_two_system_calls_loses_no_line, 3,
         "write some bytes at the end of the log, or nothing"),
    TEST(a_kill_during_a_repair_loses_no_byte, 3, "move a torn line aside"),
    TEST(two_processes_append_whole_lines, 3, "take the log's lock"),
    TEST(the_lock_is_held_until_the_score_is_closed, 3,
         "take the log's lock"),
    TEST(a_line_that_does_not_fit_is_taken_off_again, 3,
         "write some bytes at the end of the log, or nothing"),
    TEST(a_torn_line_that_cannot_be_moved_stays, 3, "move a torn line aside"),
    TEST(a_read_only_log_can_be_read, 3, "open the log's file"),
    TEST(a_log_that_is_no_file_is_refused, 3, "the whole text of the log"),
};

SUITE("keeping score", tests);
