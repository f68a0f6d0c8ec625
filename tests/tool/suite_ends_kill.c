/* The re-solve tool from end to end: killed at any moment, and run by two at
   once. The log stays whole, folders stay as they were, and the book, its
   tests and tangled/ stay untouched. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "ends.h"

enum { ROUNDS = 30, FOLDERS_MAX = 2 * ROUNDS };

static const char key[] = "5";

/* ------------------------------------------------- what must not change */

static unsigned long long sources_before;

static unsigned long long sources(void)
{
    return tree_sum("book", NULL) ^ 3 * tree_sum("tests", NULL)
        ^ 5 * tree_sum("tangled", NULL);
}

/* The folders seen so far, and what was in them. */
static struct folder { char name[300]; unsigned long long sum; }
    folders[FOLDERS_MAX];
static int folder_count;

static int find_folder(const char *name)
{
    for (int i = 0; i < folder_count; i++)
        if (strcmp(folders[i].name, name) == 0)
            return i;
    return -1;
}

/* A folder has its name once it is whole, and never changes by itself. */
static void expect_folders_kept(void)
{
    DIR *open = opendir(below("attempts/05-mask"));
    int found = 0;
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL; ) {
        if (entry->d_name[0] == '.')
            continue;
        unsigned long long sum = tree_sum(
            below("attempts/05-mask/%s", entry->d_name), NULL);
        int at = find_folder(entry->d_name);
        if (at < 0) {
            at = folder_count++;
            ck_assert_int_lt(at, FOLDERS_MAX);
            folders[at].sum = sum;
            snprintf(folders[at].name, sizeof folders[at].name, "%s",
                     entry->d_name);
        }
        ck_assert_msg(folders[at].sum == sum, "%s has changed",
                      entry->d_name);
        found++;
    }
    if (open != NULL)
        closedir(open);
    ck_assert_msg(found == folder_count, "a folder is gone");
}

static void begin(void)
{
    place_make();
    folder_count = 0;
    sources_before = sources();
    ck_assert_int_eq(resolve("blank", key, NULL), 0);
}

/* What was started by a tool that was killed may run a little longer. */
static void end(void)
{
    const struct timespec pause = { .tv_nsec = 50000000 };
    for (int i = 0; i < 400 && processes_left() > 0; i++)
        nanosleep(&pause, NULL);
    expect_folders_kept();
    ck_assert_msg(sources() == sources_before, "the sources have changed");
    place_remove();
}

/* ----------------------------------------------------------------- killing */

static double random_unit(void)
{
    static unsigned long long state;
    if (state == 0)
        state = harness_seed() * 2 + 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

/* Kills it at some moment, half of the times in the first milliseconds. */
static void kill_within(pid_t child, double seconds)
{
    double delay = random_unit() * (random_unit() < 0.5 ? 0.02 : seconds);
    struct timespec pause = { .tv_nsec = (long)(delay * 1e9) };
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* The next command finds, or makes, a whole log. */
static void expect_order(void)
{
    ck_assert_msg(resolve("history", key, NULL) == 0, "%s", complained);
    cJSON_Delete(log_read());
}

START_TEST(a_blank_can_be_killed)
{
    begin();
    for (int i = 0; i < ROUNDS; i++) {
        kill_within(resolve_start("blank", key, "--restart", NULL), 0.6);
        expect_order();
        expect_folders_kept();
    }
    ck_assert_msg(resolve("blank", key, "--restart", NULL) == 0, "%s",
                  complained);
    ck_assert_int_eq(resolve("grade", key, NULL), 1);
    expect_grade(-1, -1);
    expect_folders_kept();
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    end();
}
END_TEST

START_TEST(a_grade_can_be_killed)
{
    begin();
    ck_assert_int_eq(resolve("grade", key, NULL), 1);
    paste_chunks(stages_find(&stages, key));
    for (int i = 0; i < ROUNDS; i++) {
        kill_within(resolve_start("grade", key, NULL), 0.6);
        expect_order();
        expect_folders_kept();
    }
    ck_assert_msg(resolve("grade", key, NULL) == 0, "%s%s", said,
                  complained);
    expect_grade(-1, 0);
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    end();
}
END_TEST

START_TEST(a_reveal_can_be_killed)
{
    begin();
    ck_assert_int_eq(resolve("grade", key, NULL), 1);
    char *log = read_text(below("attempts/log.jsonl"));
    for (int i = 0; i < ROUNDS; i++) {
        write_text(below("attempts/log.jsonl"), log);
        kill_within(resolve_start("reveal", key, "--wrong", "w", NULL), 0.6);
        expect_order();
        expect_folders_kept();
        enum result result = result_of(key);
        ck_assert(result == RESULT_OPEN || result == RESULT_REVEALED);
    }
    ck_assert_int_eq(resolve("reveal", key, "--wrong", "w", NULL), 0);
    ck_assert_int_eq(result_of(key), RESULT_REVEALED);
    ck_assert_int_eq(log_count("reveal"), 1);
    free(log);
    end();
}
END_TEST

START_TEST(a_pause_can_be_killed)
{
    begin();
    for (int i = 0; i < 2 * ROUNDS; i++) {
        kill_within(resolve_start(i % 2 ? "pause" : "resume", key, NULL),
                    0.02);
        expect_order();
        expect_folders_kept();
    }
    if (resolve("pause", key, NULL) != 0)
        ck_assert_int_eq(resolve("resume", key, NULL), 0);
    ck_assert_int_eq(resolve("grade", key, NULL), 1);
    ck_assert_int_eq(resolve("abandon", key, NULL), 0);
    end();
}
END_TEST

START_TEST(every_other_command_can_be_killed)
{
    static const char *const words[][2] = {
        { "abandon", "" }, { "next", NULL }, { "history", "" },
        { "progress", NULL }, { "progress", "--html" }, { "watch", "" },
    };
    begin();
    for (int i = 0; i < 3 * ROUNDS; i++) {
        const char *second = words[i % 6][1];
        if (second != NULL && second[0] == '\0')
            second = key;
        kill_within(resolve_start(words[i % 6][0], second, NULL), 0.6);
        expect_order();
        expect_folders_kept();
    }
    ck_assert_msg(resolve("blank", key, "--restart", NULL) == 0, "%s",
                  complained);
    ck_assert_int_eq(resolve("grade", key, NULL), 1);
    ck_assert_int_eq(resolve("progress", "--html", NULL), 0);
    end();
}
END_TEST

/* ------------------------------------------------------------- two at once */

START_TEST(two_graders_take_turns)
{
    begin();
    pid_t first = resolve_start("grade", key, NULL);
    pid_t second = resolve_start("grade", key, "--seed", "2", NULL);
    ck_assert_int_eq(resolve_wait(first), 1);
    ck_assert_int_eq(resolve_wait(second), 1);
    ck_assert_int_eq(log_count("grade"), 2);
    paste_chunks(stages_find(&stages, key));
    first = resolve_start("grade", key, NULL);
    second = resolve_start("grade", key, NULL);
    ck_assert_int_eq(resolve_wait(first), 0);
    ck_assert_int_eq(resolve_wait(second), 0);
    ck_assert_int_eq(log_count("grade"), 4);
    ck_assert_int_eq(result_of(key), RESULT_CLEAN);
    end();
}
END_TEST

START_TEST(of_two_blanks_at_once_one_is_refused)
{
    begin();
    ck_assert_int_eq(resolve("abandon", key, NULL), 0);
    pid_t first = resolve_start("blank", key, NULL);
    pid_t second = resolve_start("blank", key, NULL);
    int statuses = resolve_wait(first) + 10 * resolve_wait(second);
    ck_assert_msg(statuses == 1 || statuses == 10, "%d", statuses);
    ck_assert_int_eq(log_count("start"), 2);
    ck_assert_int_eq(log_count("abandon"), 1);
    expect_order();
    end();
}
END_TEST

START_TEST(blanks_that_begin_anew_at_once_all_begin)
{
    enum { BLANKS = 4 };
    pid_t children[BLANKS];
    begin();
    for (int i = 0; i < BLANKS; i++)
        children[i] = resolve_start("blank", key, "--restart", NULL);
    for (int i = 0; i < BLANKS; i++)
        ck_assert_int_eq(resolve_wait(children[i]), 0);
    ck_assert_int_eq(log_count("start"), 1 + BLANKS);
    ck_assert_int_eq(log_count("abandon"), BLANKS);
    expect_folders_kept();
    ck_assert_int_eq(folder_count, 1 + BLANKS);
    end();
}
END_TEST

START_TEST(a_blank_during_a_grade_harms_neither)
{
    const struct timespec pause = { .tv_nsec = 100000000 };
    begin();
    pid_t grade = resolve_start("grade", key, NULL);
    nanosleep(&pause, NULL);
    pid_t blank = resolve_start("blank", key, "--restart", NULL);
    ck_assert_int_eq(resolve_wait(grade), 1);
    ck_assert_int_eq(resolve_wait(blank), 0);
    ck_assert_int_eq(log_count("start"), 2);
    ck_assert_int_eq(log_count("grade"), 1);
    ck_assert_int_eq(result_of(key), RESULT_OPEN);
    end();
}
END_TEST

START_TEST(of_many_pauses_at_once_one_is_logged)
{
    enum { PAUSES = 8 };
    pid_t children[PAUSES];
    int done = 0;
    begin();
    for (int i = 0; i < PAUSES; i++)
        children[i] = resolve_start("pause", key, NULL);
    for (int i = 0; i < PAUSES; i++)
        done += resolve_wait(children[i]) == 0;
    ck_assert_int_eq(done, 1);
    ck_assert_int_eq(log_count("pause"), 1);
    end();
}
END_TEST

static const struct test tests[] = {
    TEST(a_blank_can_be_killed, 0, "start an attempt"),
    TEST(a_grade_can_be_killed, 0, "log a grade"),
    TEST(a_reveal_can_be_killed, 0, "end the attempt in the log"),
    TEST(a_pause_can_be_killed, 0, "append an event and fold it"),
    TEST(every_other_command_can_be_killed, 0, "append an event and fold it"),
    TEST(two_graders_take_turns, 1, "open the bench"),
    TEST(of_two_blanks_at_once_one_is_refused, 1, "start an attempt"),
    TEST(blanks_that_begin_anew_at_once_all_begin, 1, "make the folder"),
    TEST(a_blank_during_a_grade_harms_neither, 1, "log a grade"),
    TEST(of_many_pauses_at_once_one_is_logged, 1, "append an event and fold it"),
};
SUITE("re-solving, killed and crowded", tests);
