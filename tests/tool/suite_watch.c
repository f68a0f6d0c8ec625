/* make watch-5 as its reader meets it: the program --program on a terminal of
   its own, with a real attempt, editors that save in their ways, and signals.
   build/5 has to be there. */
#define _GNU_SOURCE             /* posix_openpt, unlockpt, ptsname_r */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "saves.h"
#include "scripted.h"
#include "support/harness.h"

#define ENTER "\33[?1049h"
#define LEAVE "\33[0m\33[?25h\33[?1049l"

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ------------------------------------------------------------- the attempt */

static char folder[512], file[600];     /* its folder, and its mask.c */

static int run(const char *words)
{
    char line[1024];
    snprintf(line, sizeof line, "%.300s --attempts %s %s >>%s/out 2>&1",
             harness_program(), attempts, words, place);
    return system(line);
}

static void find_folder(void)
{
    char line[300];
    snprintf(line, sizeof line, "ls -d %s/05-mask/* | tail -1", attempts);
    FILE *names = popen(line, "r");
    ck_assert_ptr_nonnull(names);
    ck_assert_ptr_nonnull(fgets(folder, sizeof folder, names));
    folder[strcspn(folder, "\n")] = '\0';
    ck_assert_int_eq(pclose(names), 0);
    snprintf(file, sizeof file, "%s/mask.c", folder);
}

static void new_attempt(void)
{
    new_place();
    ck_assert_int_eq(run("blank 5"), 0);
    find_folder();
}

/* What the log says; static. */
static const char *log_text(void)
{
    static char text[1 << 20];
    size_t length = slurp(log_path, text, sizeof text - 1);
    text[length == (size_t)-1 ? 0 : length] = '\0';
    return text;
}

static int log_count(const char *what)
{
    int count = 0;
    for (const char *at = log_text(); (at = strstr(at, what)); at++)
        count++;
    return count;
}

/* text, without the lines that say where in the book each part was. */
static size_t without_places(char *text, size_t length)
{
    char *to = text, *end = text + length;
    for (char *from = text; from < end;) {
        char *line = memchr(from, '\n', (size_t)(end - from));
        const size_t size = (size_t)((line == NULL ? end : line + 1) - from);
        if (strncmp(from, "#line ", 6) != 0) {
            memmove(to, from, size);
            to += size;
        }
        from += size;
    }
    return (size_t)(to - text);
}

/* The text of a file as the first five chapters say it, saved in the attempt
   by a rename. */
static void save_book(const char *name)
{
    static char text[1 << 18];
    char path[700], fresh[720];
    snprintf(path, sizeof path, "build/5/src/%s", name);
    size_t length = slurp(path, text, sizeof text);
    ck_assert_uint_ne(length, (size_t)-1);
    length = without_places(text, length);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(fresh, sizeof fresh, "%s~", path);
    spit(fresh, text, length);
    ck_assert_int_eq(rename(fresh, path), 0);
}

/* All of the attempt's files, mask.c last. */
static void save_answer(void)
{
    struct list names = files_in(folder, ".c");
    for (size_t i = 0; i < names.count; i++)
        if (strcmp(names.items[i], "mask.c") != 0)
            save_book(names.items[i]);
    save_book("mask.c");
    list_free(&names);
}

/* Adds a line to mask.c, in place. */
static void append(const char *line)
{
    FILE *out = fopen(file, "a");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "%s\n", line);
    ck_assert_int_eq(fclose(out), 0);
}

/* ------------------------------------------------------------ the terminal */

struct session {
    pid_t child;
    int terminal;           /* our end of it */
    int status;             /* how it ended */
    struct termios before;
    char out[1 << 20];      /* all that it wrote */
    size_t length;
};

static struct session session;

static void set_size(int columns, int rows)
{
    struct winsize size = { .ws_col = (unsigned short)columns,
                            .ws_row = (unsigned short)rows };
    ck_assert_int_eq(ioctl(session.terminal, TIOCSWINSZ, &size), 0);
}

/* A shell starts what goes to the background with signals that are ignored,
   and a program respects that. Here, a terminal's user starts it. */
static void obey_signals(void)
{
    static const int all[] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP };
    for (int i = 0; i < 5; i++)
        signal(all[i], SIG_DFL);
}

static void become_watch(const char *name, const char *setting)
{
    char variable[256];
    obey_signals();
    snprintf(variable, sizeof variable, "%s", setting);
    setsid();
    int terminal = open(name, O_RDWR);      /* becomes the controlling one */
    for (int i = 0; i < 3; i++)
        dup2(terminal, i);
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    putenv(variable);
    execl(harness_program(), "resolve", "--attempts", attempts, "watch", "5",
          (char *)NULL);
    _exit(127);
}

/* With one more variable in its environment. */
static void start_with(const char *setting)
{
    char name[64];
    memset(&session, 0, sizeof session);
    session.terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(session.terminal, 0);
    ck_assert_int_eq(grantpt(session.terminal), 0);
    ck_assert_int_eq(unlockpt(session.terminal), 0);
    ck_assert_int_eq(ptsname_r(session.terminal, name, sizeof name), 0);
    set_size(80, 24);
    ck_assert_int_eq(tcgetattr(session.terminal, &session.before), 0);
    session.child = fork();
    ck_assert_int_ge(session.child, 0);
    if (session.child == 0)
        become_watch(name, setting);
}

/* Reads what comes within some time, or until nothing can come. */
static bool take(int milliseconds)
{
    struct pollfd end = { .fd = session.terminal, .events = POLLIN };
    if (poll(&end, 1, milliseconds) <= 0)
        return false;
    ssize_t got = read(session.terminal, session.out + session.length,
                       sizeof session.out - 1 - session.length);
    if (got <= 0)
        return false;
    session.length += (size_t)got;
    session.out[session.length] = '\0';
    return true;
}

/* The last whole picture, without escape codes; static. */
static const char *picture(void)
{
    static char text[1 << 16];
    const char *end = NULL, *begin = NULL;
    size_t length = 0;
    for (const char *at = session.out; (at = strstr(at, "\33[J")); at++)
        end = at;
    for (const char *at = session.out; end && (at = strstr(at, "\33[H")) != NULL
             && at < end; at++)
        begin = at;
    for (const char *at = begin; at != NULL && at < end; at++)
        if (*at == '\33')
            at += 1 + strcspn(at + 1, "mHJKhl");
        else if (*at != '\r')
            text[length++] = *at;
    text[length] = '\0';
    return text;
}

/* How long it took until the picture had it, or until it had it no more. */
static double wait_until(const char *what, bool there)
{
    const double begin = seconds(), most = 20;
    while ((strstr(picture(), what) != NULL) != there) {
        if (seconds() - begin > most)
            ck_abort_msg("%s \"%s\" after %g seconds in\n%s",
                         there ? "no" : "still", what, most, picture());
        take(50);
    }
    return seconds() - begin;
}

/* The seed of the picture's verdict: another with every grading. */
static void read_seed(char seed[32])
{
    const char *at = strstr(picture(), "seed ");
    seed[0] = '\0';
    if (at != NULL)
        sscanf(at, "seed %31s", seed);
}

static void start(void)
{
    start_with("RESOLVE_TEST=1");
    wait_until("seed ", true);
}

/* Waits for another verdict than that of the seed. */
static double wait_for_verdict(const char *seed)
{
    const double begin = seconds();
    char now_shown[32];
    for (;;) {
        read_seed(now_shown);
        if (now_shown[0] != '\0' && strcmp(now_shown, seed) != 0)
            return seconds() - begin;
        if (seconds() - begin > 20)
            ck_abort_msg("no other verdict in\n%s", picture());
        take(20);
    }
}

static void type(const char *keys)
{
    ck_assert_int_eq(write(session.terminal, keys, strlen(keys)),
                     (ssize_t)strlen(keys));
}

static bool has_ended(void)
{
    return session.child == 0
        || waitpid(session.child, &session.status, WNOHANG)
            == session.child;
}

static void wait_for_end(void)
{
    const double begin = seconds();
    while (!has_ended()) {
        ck_assert_msg(seconds() - begin < 10, "it goes on\n%s", picture());
        take(20);
    }
    session.child = 0;
    while (take(50))
        ;
}

static void check_modes(void)
{
    struct termios after;
    ck_assert_int_eq(tcgetattr(session.terminal, &after), 0);
    ck_assert_uint_eq(after.c_lflag, session.before.c_lflag);
    ck_assert_uint_eq(after.c_iflag, session.before.c_iflag);
    ck_assert_uint_eq(after.c_oflag, session.before.c_oflag);
}

static bool is_raw(void)
{
    struct termios modes;
    ck_assert_int_eq(tcgetattr(session.terminal, &modes), 0);
    return (modes.c_lflag & (ICANON | ECHO)) == 0;
}

/* Nothing for the terminal comes after the screen has been left. */
static const char *after_leaving(void)
{
    const char *last = NULL;
    for (const char *at = session.out; (at = strstr(at, LEAVE)); at++)
        last = at;
    ck_assert_msg(last != NULL, "the screen was not left");
    ck_assert_ptr_null(strchr(last + strlen(LEAVE), '\33'));
    return last + strlen(LEAVE);
}

static void quit(void)
{
    type("q");
    wait_for_end();
    ck_assert_msg(WIFEXITED(session.status)
                  && WEXITSTATUS(session.status) == 0, "status %d",
                  session.status);
    after_leaving();
    check_modes();
}

/* --------------------------------------------------------------- the saves */

static void note_time(const char *how, double took)
{
    printf("  %s: %.0f ms from save to verdict\n", how, 1000 * took);
    fflush(stdout);
}

static void save_in_place(void)
{
    append("/* saved */");
}

static void save_by_rename(void)
{
    save_book("mask.c");
}

static void save_anew(void)
{
    char away[620], text[65536];
    snprintf(away, sizeof away, "%s~", file);
    size_t length = slurp(file, text, sizeof text);
    ck_assert_int_eq(rename(file, away), 0);
    spit(file, text, length);
}

START_TEST(a_save_of_any_kind_is_graded)
{
    static const struct { const char *how; void (*save)(void); } saves[] = {
        { "written in place", save_in_place },
        { "written anew", save_anew },
        { "renamed", save_by_rename },
    };
    char seed[32];
    new_attempt();
    start();
    for (int i = 0; i < 3; i++) {
        int grades = log_count("\"grade\"");
        read_seed(seed);
        const double begin = seconds();
        saves[i].save();
        wait_for_verdict(seed);
        note_time(saves[i].how, seconds() - begin);
        ck_assert_int_eq(log_count("\"grade\""), grades + 1);
    }
    quit();
}
END_TEST

START_TEST(every_file_that_matters_changes_the_print)
{
    struct stat status;
    char path[700];
    new_attempt();
    unsigned long long print = saves_print(folder);
    ck_assert_uint_eq(saves_print(folder), print);
    snprintf(path, sizeof path, "%s/.mask.c.swp", folder);
    spit(path, "x", 1);
    snprintf(path, sizeof path, "%s/mask.c~", folder);
    spit(path, "x", 1);
    snprintf(path, sizeof path, "%s/4913", folder);
    spit(path, "x", 1);
    ck_assert_uint_eq(saves_print(folder), print);
    snprintf(path, sizeof path, "%s/mine.h", folder);
    spit(path, "x", 1);
    ck_assert_uint_ne(saves_print(folder), print);
    print = saves_print(folder);
    ck_assert_int_eq(stat(file, &status), 0);
    struct timespec same[2] = { status.st_atim, status.st_mtim };
    save_anew();        /* another file of the same size and time */
    ck_assert_int_eq(utimensat(AT_FDCWD, file, same, 0), 0);
    ck_assert_uint_ne(saves_print(folder), print);
    print = saves_print(folder);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_uint_ne(saves_print(folder), print);
}
END_TEST

START_TEST(without_news_of_files_it_looks_once_a_second)
{
    char seed[32], line[300];
    char *here = realpath("build/tool/deaf.so", NULL);
    ck_assert_ptr_nonnull(here);
    snprintf(line, sizeof line, "LD_PRELOAD=%.200s", here);
    free(here);
    new_attempt();
    start_with(line);
    wait_until("seed ", true);
    read_seed(seed);
    save_in_place();
    note_time("without inotify", wait_for_verdict(seed));
    quit();
}
END_TEST

START_TEST(a_save_in_the_middle_of_a_grading_is_graded_after_it)
{
    char seed[32];
    new_attempt();
    start();
    read_seed(seed);
    save_in_place();
    wait_until("grading", true);
    append("int x = ;");
    wait_until("no verdict", true);
    wait_until("mask.c:", true);
    ck_assert_int_ge(log_count("\"grade\""), 2);
    quit();
}
END_TEST

/* -------------------------------------------------------------- the screen */

START_TEST(a_pass_is_shown_and_logged_as_clean)
{
    new_attempt();
    start();
    save_answer();
    wait_until("A clean pass.", true);
    wait_until("clean pass   ", true);
    save_in_place();        /* and it stays open, and grades again */
    wait_until("grading", true);
    wait_until("A clean pass.", true);
    quit();
    ck_assert_ptr_nonnull(strstr(after_leaving(), "30 passed, 0 failed"));
    ck_assert_ptr_null(strstr(after_leaving(), "clock runs on"));
}
END_TEST

START_TEST(the_clock_ticks_while_nothing_happens)
{
    new_attempt();
    start();
    char *first = strdup(picture()), left[32], later[32];
    sscanf(strchr(first, '\n'), " %31s", left);
    const double begin = seconds();
    while (seconds() - begin < 2.2)
        take(100);
    sscanf(strchr(picture(), '\n'), " %31s", later);
    ck_assert_str_ne(left, later);
    free(first);
    quit();
    ck_assert_ptr_nonnull(strstr(after_leaving(), "the clock runs on"));
}
END_TEST

START_TEST(a_frame_is_one_write_that_fits_the_window)
{
    new_attempt();
    start();
    set_size(40, 15);
    wait_until("\u2026", true);     /* names are cut */
    int lines = 1;
    for (const char *at = picture(); *at != '\0'; at++)
        lines += *at == '\n';
    ck_assert_int_eq(lines, 15);
    set_size(0, 0);                 /* unknown: the usual one */
    wait_until("mask print", false);
    quit();
}
END_TEST

START_TEST(no_colour_and_a_dumb_terminal_are_respected)
{
    new_attempt();
    start_with("NO_COLOR=1");
    wait_until("seed ", true);
    for (const char *at = session.out; (at = strstr(at, "\33[")); at++)
        ck_assert_msg(at[2 + strcspn(at + 2, "mHJKhl")] != 'm', "a colour");
    quit();
    start_with("TERM=dumb");
    for (int i = 0; i < 200 && strstr(session.out, "(seed ") == NULL; i++)
        take(50);
    ck_assert_ptr_nonnull(strstr(session.out, "(seed "));
    ck_assert_ptr_null(strchr(session.out, '\33'));
    ck_assert(!is_raw());
    type("\3");
    wait_for_end();
    ck_assert_ptr_null(strchr(session.out, '\33'));
}
END_TEST

START_TEST(a_stage_that_was_never_begun_takes_no_screen)
{
    new_place();
    start_with("RESOLVE_TEST=1");
    wait_for_end();
    ck_assert(WIFEXITED(session.status));
    ck_assert_int_eq(WEXITSTATUS(session.status), 1);
    ck_assert_ptr_nonnull(strstr(session.out, "make blank-5"));
    ck_assert_ptr_null(strchr(session.out, '\33'));
}
END_TEST

/* ---------------------------------------------------- keys and other commands */

START_TEST(keys_grade_pause_and_resume)
{
    char seed[32];
    new_attempt();
    start();
    read_seed(seed);
    type("g");
    wait_for_verdict(seed);
    type("p");
    wait_until("paused", true);
    wait_until("p resume", true);
    ck_assert_int_eq(log_count("\"pause\""), 1);
    type("p");
    wait_until("paused", false);
    ck_assert_int_eq(log_count("\"resume\""), 1);
    type("p");
    wait_until("paused", true);
    save_in_place();            /* who saves is at work */
    wait_until("paused", false);
    ck_assert_int_eq(log_count("\"resume\""), 2);
    ck_assert_int_eq(run("pause 5"), 0);
    wait_until("paused", true);
    quit();
    ck_assert_ptr_nonnull(strstr(after_leaving(), ", paused"));
}
END_TEST

START_TEST(r_twice_reveals_after_the_screen_is_left)
{
    new_attempt();
    start();
    type("r");
    wait_until("r again", true);
    type("x");
    wait_until("r again", false);
    type("r");
    wait_until("r again", true);
    type("r");
    for (int i = 0; i < 100 && !strstr(session.out, "in one line"); i++)
        take(50);
    check_modes();
    after_leaving();
    type("I looked at keys from p on\n");
    wait_for_end();
    ck_assert_int_eq(log_count("I looked at keys from p on"), 1);
    ck_assert_ptr_nonnull(strstr(session.out, "the book's"));
}
END_TEST

START_TEST(an_end_in_another_terminal_ends_the_grading)
{
    new_attempt();
    start();
    ck_assert_int_eq(run("abandon 5"), 0);
    wait_until("abandoned in another terminal", true);
    int grades = log_count("\"grade\"");
    save_in_place();
    const double begin = seconds();
    while (seconds() - begin < 1.5)
        take(100);
    ck_assert_int_eq(log_count("\"grade\""), grades);
    sleep(1);                   /* for a folder of another name */
    ck_assert_int_eq(run("blank 5"), 0);
    wait_until("abandoned", false);
    wait_until("seed ", true);
    ck_assert_int_eq(log_count("\"grade\""), grades + 1);
    quit();
}
END_TEST

/* ------------------------------------------------------------ loops, signals */

/* Whether a program of the attempt's own is running. */
static bool runs_something(void)
{
    char work[600], path[300], command[4096];
    bool found = false;
    DIR *processes = opendir("/proc");
    ck_assert_ptr_nonnull(processes);
    snprintf(work, sizeof work, "build/resolve/5/tries%s/",
             strrchr(folder, '/'));
    for (struct dirent *entry; (entry = readdir(processes)) != NULL; ) {
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        size_t length = slurp(path, command, sizeof command - 1);
        command[length == (size_t)-1 ? 0 : length] = '\0';
        found = found || strncmp(command, work, strlen(work)) == 0;
    }
    closedir(processes);
    return found;
}

static void save_a_loop(void)
{
    save_answer();
    spit(file, "", 0);
    append("#include \"mask.h\"\n"
           "__attribute__((constructor)) static void circle(void)\n"
           "{ for (volatile int i = 0; ; i = i) ; }");
}

START_TEST(a_loop_in_the_attempt_stops_neither_clock_nor_keys)
{
    new_attempt();
    start();
    save_a_loop();
    wait_until("grading\u2026 2 s", true);
    wait_until("grading\u2026 4 s", true);
    ck_assert(runs_something());
    save_book("mask.c");            /* is not kept waiting */
    ck_assert(wait_until("A clean pass.", true) < 10);
    save_a_loop();
    wait_until("grading\u2026 2 s", true);
    const double begin = seconds();
    quit();
    ck_assert(seconds() - begin < 5);
    ck_assert(!runs_something());
}
END_TEST

START_TEST(every_signal_to_end_puts_the_terminal_back)
{
    static const int ends[] = { SIGTERM, SIGHUP, SIGINT, SIGQUIT };
    new_attempt();
    for (int i = 0; i < 4; i++) {
        start();
        ck_assert(is_raw());
        ck_assert_ptr_nonnull(strstr(session.out, ENTER));
        if (ends[i] == SIGINT)
            type("\3");
        else
            ck_assert_int_eq(kill(session.child, ends[i]), 0);
        wait_for_end();
        ck_assert(WIFSIGNALED(session.status));
        ck_assert_int_eq(WTERMSIG(session.status), ends[i]);
        check_modes();
        ck_assert_str_eq(after_leaving(), "");
        close(session.terminal);
    }
}
END_TEST

START_TEST(a_signal_during_a_grading_leaves_nothing_behind)
{
    new_attempt();
    start();
    save_a_loop();
    wait_until("grading\u2026 2 s", true);
    ck_assert_int_eq(kill(session.child, SIGTERM), 0);
    wait_for_end();
    ck_assert_int_eq(WTERMSIG(session.status), SIGTERM);
    ck_assert_str_eq(after_leaving(), "");
    check_modes();
    ck_assert(!runs_something());
}
END_TEST

START_TEST(a_stop_gives_the_terminal_back_and_takes_it_again)
{
    int status;
    new_attempt();
    start();
    type("\32");
    ck_assert_int_eq(waitpid(session.child, &status, WUNTRACED),
                     session.child);
    ck_assert(WIFSTOPPED(status));
    while (take(50))
        ;
    check_modes();
    ck_assert_str_eq(after_leaving(), "");
    session.length = 0;
    session.out[0] = '\0';
    ck_assert_int_eq(kill(session.child, SIGCONT), 0);
    wait_until("q quit", true);
    ck_assert_ptr_nonnull(strstr(session.out, ENTER));
    ck_assert(is_raw());
    type("\32");
    ck_assert_int_eq(waitpid(session.child, &status, WUNTRACED),
                     session.child);
    ck_assert_int_eq(kill(session.child, SIGTERM), 0);
    ck_assert_int_eq(kill(session.child, SIGCONT), 0);
    wait_for_end();             /* as a shell kills a job that is stopped */
    ck_assert_int_eq(WTERMSIG(session.status), SIGTERM);
    check_modes();
}
END_TEST

START_TEST(a_terminal_that_is_gone_ends_it)
{
    new_attempt();
    start();
    close(session.terminal);
    const double begin = seconds();
    while (!has_ended()) {
        ck_assert(seconds() - begin < 10);
        poll(NULL, 0, 20);
    }
}
END_TEST

/* ------------------------------------------------------------------ a pipe */

static int start_in_pipe(void)
{
    int ends[2];
    memset(&session, 0, sizeof session);
    ck_assert_int_eq(pipe(ends), 0);
    session.child = fork();
    ck_assert_int_ge(session.child, 0);
    if (session.child == 0) {
        obey_signals();
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execl(harness_program(), "resolve", "--attempts", attempts, "watch",
              "5", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    return session.terminal = ends[0];
}

static void wait_for_blocks(int count)
{
    const double begin = seconds();
    for (;;) {
        int found = 0;
        for (const char *at = session.out; (at = strstr(at, "(seed ")); at++)
            found++;
        if (found >= count)
            return;
        ck_assert_msg(seconds() - begin < 20, "%d blocks", found);
        take(50);
    }
}

START_TEST(a_pipe_gets_a_block_for_each_verdict)
{
    new_attempt();
    start_in_pipe();
    wait_for_blocks(1);
    save_answer();
    wait_for_blocks(2);
    ck_assert_int_eq(strncmp(session.out, "stage 5, ", 9), 0);
    ck_assert_ptr_nonnull(strstr(session.out, "\nstage 5, "));
    ck_assert_ptr_nonnull(strstr(session.out, "A clean pass.\n"));
    ck_assert_int_eq(kill(session.child, SIGTERM), 0);
    wait_for_end();
    ck_assert_int_eq(WTERMSIG(session.status), SIGTERM);
    for (size_t i = 0; i < session.length; i++)
        ck_assert(session.out[i] == '\n'
                  || (unsigned char)session.out[i] >= ' ');
}
END_TEST

START_TEST(a_pipe_that_nobody_reads_ends_it)
{
    new_attempt();
    start_in_pipe();
    wait_for_blocks(1);
    close(session.terminal);
    const double begin = seconds();
    while (!has_ended()) {
        ck_assert(seconds() - begin < 5);
        poll(NULL, 0, 20);
    }
}
END_TEST

START_TEST(a_pipe_ends_with_the_attempt)
{
    new_attempt();
    start_in_pipe();
    wait_for_blocks(1);
    ck_assert_int_eq(run("abandon 5"), 0);
    wait_for_end();
    ck_assert(WIFEXITED(session.status));
    ck_assert_int_eq(WEXITSTATUS(session.status), 0);
}
END_TEST

static const struct test tests[] = {
    TEST(every_file_that_matters_changes_the_print, 0,
         "the print of a folder"),
    TEST(a_save_of_any_kind_is_graded, 1, "grade what was saved"),
    TEST(without_news_of_files_it_looks_once_a_second, 1,
         "grade what was saved"),
    TEST(a_save_in_the_middle_of_a_grading_is_graded_after_it, 1,
         "grade what was saved"),
    TEST(a_pass_is_shown_and_logged_as_clean, 1, "end a grading"),
    TEST(the_clock_ticks_while_nothing_happens, 1,
         "wait for something to happen"),
    TEST(a_frame_is_one_write_that_fits_the_window, 1, "draw a frame"),
    TEST(no_colour_and_a_dumb_terminal_are_respected, 1,
         "what the terminal can do"),
    TEST(a_stage_that_was_never_begun_takes_no_screen, 1, "watch a stage"),
    TEST(keys_grade_pause_and_resume, 2, "obey a key"),
    TEST(r_twice_reveals_after_the_screen_is_left, 2, "obey a key"),
    TEST(an_end_in_another_terminal_ends_the_grading, 2,
         "follow the latest attempt"),
    TEST(a_loop_in_the_attempt_stops_neither_clock_nor_keys, 2,
         "stop a grader"),
    TEST(every_signal_to_end_puts_the_terminal_back, 3,
         "leave everything in order"),
    TEST(a_signal_during_a_grading_leaves_nothing_behind, 3,
         "stop a grader"),
    TEST(a_stop_gives_the_terminal_back_and_takes_it_again, 3,
         "obey a signal"),
    TEST(a_terminal_that_is_gone_ends_it, 3, "obey a key"),
    TEST(a_pipe_gets_a_block_for_each_verdict, 3, "end a grading"),
    TEST(a_pipe_that_nobody_reads_ends_it, 3,
         "wait for something to happen"),
    TEST(a_pipe_ends_with_the_attempt, 3, "watch a stage"),
};

SUITE("watching", tests);
