#define _GNU_SOURCE
#include "watch.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "frame.h"
#include "grader.h"
#include "reveal.h"
#include "saves.h"
#include "screen.h"
#include "verdict.h"

struct watch {
    const struct workshop *workshop;
    const struct stages *stages;
    const struct stage *stage;
    struct screen screen;       /* entered, or there is none */
    struct attempt attempt;
    char *folder, *path;        /* below attempts/; with attempts/ */
    struct stat log;            /* of the log when it was read last */
    struct grader grader;
    unsigned long long print;   /* of the folder, at the last grading */
    struct grade grade;
    char graded[9];             /* when; "" when there is no grade */
    int saves, signals;         /* files to wait for */
    double event, quiet;        /* first and last of some events; or 0 */
    char *note;
    bool wanted;                /* a grading was asked for */
    bool stopped;               /* the attempt was ended elsewhere */
    bool asked_to_reveal;       /* once */
    bool over, failed, reveal;
    int signal;                 /* the one that ended it, or 0 */
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void note(struct watch *watch, char *text)
{
    free(watch->note);
    watch->note = text;
}

static void note_complaint(struct watch *watch)
{
    if (watch->screen.entered)
        note(watch, screen_complaint(&watch->screen));
}

static const char *end_of(const struct attempt *attempt)
{
    return attempt->result == RESULT_REVEALED ? "revealed"
        : attempt->result == RESULT_ABANDONED ? "abandoned" : NULL;
}

static void change_folder(struct watch *watch, const char *folder)
{
    free(watch->folder);
    free(watch->path);
    watch->folder = text_format("%s", folder);
    watch->path = text_format("%s/%s", watch->workshop->attempts, folder);
    if (watch->saves >= 0)
        close(watch->saves);
    watch->saves = saves_open(watch->path);
    grade_free(&watch->grade);
    watch->graded[0] = '\0';
    watch->wanted = true;
    watch->stopped = false;
}

static void follow(struct watch *watch, const struct attempt *latest)
{
    const bool same = watch->folder != NULL
        && strcmp(watch->folder, latest->folder) == 0;
    const bool ended = same && watch->attempt.result == RESULT_OPEN
        && end_of(latest) != NULL;
    if (!same)
        change_folder(watch, latest->folder);
    watch->attempt = *latest;
    watch->attempt.stage = watch->attempt.problem = NULL;
    watch->attempt.wrong = watch->attempt.first_owner = NULL;
    watch->attempt.owners = NULL;
    watch->attempt.folder = watch->folder;
    if (ended) {
        watch->stopped = true;
        note(watch, text_format("%s in another terminal: saves are not"
                                " graded any more", end_of(latest)));
    }
}

static bool look_up(struct watch *watch)
{
    struct score *score;
    const char *key = watch->stage->key;
    if (!score_open(&score, watch->workshop))
        return false;
    const struct attempt *latest = score_latest(score, key);
    bool found = latest != NULL
        || complain("no attempt at stage %s yet: make blank-%s starts one",
                    key, key);
    if (found)
        follow(watch, latest);
    score_close(&score);
    return found;
}

static void look_up_changes(struct watch *watch)
{
    struct stat now = { 0 };
    char *path = text_format("%s/log.jsonl", watch->workshop->attempts);
    bool changed = stat(path, &now) == 0
        && (now.st_size != watch->log.st_size
            || now.st_ino != watch->log.st_ino
            || now.st_mtim.tv_sec != watch->log.st_mtim.tv_sec
            || now.st_mtim.tv_nsec != watch->log.st_mtim.tv_nsec);
    free(path);
    if (!changed)
        return;
    watch->log = now;
    if (!look_up(watch))
        note_complaint(watch);
}

static void begin(struct watch *watch)
{
    watch->wanted = false;
    watch->event = 0;
    watch->print = saves_print(watch->path);
    note(watch, NULL);
    screen_forget(&watch->screen);
    if (!grader_start(&watch->grader, watch->workshop, watch->stages,
                      watch->stage, watch->folder)) {
        note_complaint(watch);
        watch->failed = true;
        watch->over = watch->over || !watch->screen.entered;
    }
}

static void end(struct watch *watch)
{
    struct grade grade;
    const bool screen = watch->screen.entered;
    char *folder = text_format("%s", watch->grader.folder);
    const struct moment asked = watch->grader.asked;
    bool graded = grader_finish(&watch->grader, &grade);
    if (graded && !screen && watch->graded[0] != '\0')
        putchar('\n');
    bool done = graded
        && log_grade(watch->workshop, screen ? NULL : watch->stage, folder,
                     &grade, &asked);
    if (!screen && fflush(stdout) != 0)
        watch->over = true;
    if (!done)
        note_complaint(watch);
    if (!graded && screen && watch->note == NULL)
        note(watch, text_format("the grading came to no end"));
    if (graded && strcmp(folder, watch->folder) == 0) {
        grade_free(&watch->grade);
        watch->grade = grade;
        snprintf(watch->graded, sizeof watch->graded, "%.8s",
                 asked.stamp + 11);
    } else
        grade_free(&grade);
    free(folder);
    look_up_changes(watch);
}

static void grade_saved(struct watch *watch)
{
    const double now = seconds_now(), patience = 3;
    const bool busy = watch->grader.child != 0;
    if (watch->event > 0 && now < watch->quiet + 0.05
        && now < watch->event + 0.5)
        return;
    watch->event = 0;
    if (!watch->stopped && watch->print != saves_print(watch->path))
        watch->wanted = true;
    if (watch->wanted
        && (!busy || moment_now().awake - watch->grader.asked.awake
            > patience))
        begin(watch);
}

static void draw(struct watch *watch)
{
    struct attempt attempt = watch->attempt;
    const struct moment now = moment_now();
    struct frame frame = {
        .colour = watch->screen.colour, .utf8 = watch->screen.utf8,
        .keys = watch->screen.keys, .stage = watch->stage,
        .attempt = &attempt, .path = watch->path,
        .grade = watch->graded[0] != '\0' ? &watch->grade : NULL,
        .graded = watch->graded, .grading = -1, .note = watch->note
    };
    if (!watch->screen.entered)
        return;
    attempt_advance(&attempt, &now);
    if (watch->grader.child != 0)
        frame.grading = now.awake - watch->grader.asked.awake;
    screen_size(&frame.columns, &frame.rows);
    char *text = frame_text(&frame);
    if (!screen_draw(&watch->screen, text))
        watch->over = true;
    free(text);
}

static void pause_or_resume(struct watch *watch)
{
    struct score *score;
    screen_forget(&watch->screen);
    bool done = score_open(&score, watch->workshop);
    if (done) {
        const struct attempt *latest =
            score_latest(score, watch->stage->key);
        if (latest == NULL || latest->result != RESULT_OPEN)
            note(watch, text_format("the attempt has ended: its clock stands"
                                    " still"));
        else
            done = latest->is_paused ? score_resume(score, latest)
                                     : score_pause(score, latest);
        score_close(&score);
    }
    if (!done)
        note_complaint(watch);
    look_up_changes(watch);
}

static void obey(struct watch *watch, char key)
{
    const bool again = watch->asked_to_reveal;
    watch->asked_to_reveal = key == 'r';
    note(watch, NULL);
    if (key == 'q' || key == 'Q')
        watch->over = true;
    else if (key == 'g')
        watch->wanted = true;
    else if (key == 'p')
        pause_or_resume(watch);
    else if (key == 'r' && again)
        watch->over = watch->reveal = true;
    else if (key == 'r')
        note(watch, text_format("r again: leave, name the first wrong"
                                " decision, see the answer"));
}

static void read_keys(struct watch *watch)
{
    char keys[64];
    ssize_t got = read(STDIN_FILENO, keys, sizeof keys);
    if (got <= 0 && errno != EINTR)
        watch->over = true;         /* the terminal has been closed */
    for (ssize_t i = 0; i < got; i++)
        obey(watch, keys[i]);
}

static int open_signals(bool screen, sigset_t *before)
{
    static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT,
                               SIGTSTP, SIGCONT, SIGWINCH };
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < (screen ? 7 : 4); i++) {
        struct sigaction now;
        if (sigaction(all[i], NULL, &now) == 0
            && now.sa_handler != SIG_IGN)
            sigaddset(&set, all[i]);
    }
    int file = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    sigaddset(&set, SIGTTOU);
    sigprocmask(SIG_BLOCK, &set, before);
    return file;
}

static void read_signals(struct watch *watch)
{
    struct signalfd_siginfo got;
    while (read(watch->signals, &got, sizeof got) == (ssize_t)sizeof got) {
        const int number = (int)got.ssi_signo;
        if (number == SIGTSTP) {
            screen_leave(&watch->screen);
            raise(SIGSTOP);
        } else if (number == SIGCONT && !watch->over) {
            while (!screen_is_ours())
                raise(SIGSTOP);
            screen_enter(&watch->screen);
        } else if (number != SIGWINCH && number != SIGCONT) {
            watch->signal = number;
            watch->over = true;
        }
    }
}

static int milliseconds(const struct watch *watch)
{
    struct attempt attempt = watch->attempt;
    const struct moment now = moment_now();
    double wait = 1;
    attempt_advance(&attempt, &now);
    if (attempt.result == RESULT_OPEN && !attempt.is_paused)
        wait = 1.002 - (attempt.elapsed - (double)(long)attempt.elapsed);
    if (watch->event > 0 && wait > 0.05)
        wait = 0.05;
    return (int)(1000 * wait) + 1;
}

static void wait_for_something(struct watch *watch)
{
    const bool screen = watch->screen.entered;
    struct pollfd from[] = {
        { .fd = watch->signals, .events = POLLIN },
        { .fd = watch->screen.keys ? STDIN_FILENO : -1, .events = POLLIN },
        { .fd = watch->saves, .events = POLLIN },
        { .fd = watch->grader.child != 0 ? watch->grader.end : -1 },
        { .fd = screen ? -1 : STDOUT_FILENO },
    };
    if (poll(from, 5, milliseconds(watch)) <= 0)
        return;
    if (from[0].revents != 0)
        read_signals(watch);
    if (from[1].revents != 0)
        read_keys(watch);
    if (from[2].revents != 0) {
        saves_read(watch->saves);
        watch->quiet = seconds_now();
        if (watch->event <= 0)
            watch->event = watch->quiet;
    }
    if (from[3].revents != 0)
        end(watch);
    if ((from[4].revents & (POLLERR | POLLHUP)) != 0)
        watch->over = true;
}

static void say_standing(const struct watch *watch)
{
    struct attempt attempt = watch->attempt;
    const struct moment now = moment_now();
    attempt_advance(&attempt, &now);
    char *spent = time_format(attempt.elapsed);
    char *budget = time_format(attempt.budget);
    printf("stage %s: ", watch->stage->key);
    if (watch->graded[0] == '\0' || watch->grade.problem != NULL)
        printf("no verdict");
    else
        printf("%d passed, %d failed", watch->grade.passed,
               watch->grade.failed);
    printf(", %s of %s", spent, budget);
    if (attempt.result == RESULT_OPEN)
        printf(attempt.is_paused ? ", paused\n"
               : "; the clock runs on (make pause-%s stops it)\n",
               watch->stage->key);
    else
        putchar('\n');
    free(spent);
    free(budget);
}

static void leave(struct watch *watch, const sigset_t *before)
{
    const bool screen = watch->screen.entered;
    grader_stop(&watch->grader);
    screen_leave(&watch->screen);
    if (screen && watch->signal == 0 && !watch->reveal)
        say_standing(watch);
    close(watch->signals);
    fflush(stdout);
    if (watch->signal != 0)
        raise(watch->signal);
    sigprocmask(SIG_SETMASK, before, NULL);
    if (watch->saves >= 0)
        close(watch->saves);
    grade_free(&watch->grade);
    free(watch->folder);
    free(watch->path);
    free(watch->note);
}


bool command_watch(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage)
{
    struct watch watch = { .workshop = workshop, .stages = stages,
                           .stage = stage, .saves = -1, .signals = -1,
                           .grader = { .end = -1, .result = -1 },
                           .screen = { .said = -1, .stderr_before = -1 } };
    sigset_t before;
    if (!look_up(&watch))
        return false;
    watch.signals = open_signals(screen_possible(), &before);
    if (screen_possible())
        screen_enter(&watch.screen);
    while (!watch.over) {
        look_up_changes(&watch);
        grade_saved(&watch);
        draw(&watch);
        if (watch.stopped && !watch.screen.entered)
            watch.over = !complain("%s", watch.note);
        else if (!watch.over)
            wait_for_something(&watch);
    }
    leave(&watch, &before);
    return watch.reveal ? command_reveal(workshop, stages, stage, NULL)
                        : !watch.failed;
}
