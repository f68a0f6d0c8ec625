#define _GNU_SOURCE             /* memfd_create, TIOCGWINSZ */
#include "screen.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static bool write_all(int file, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(file, bytes, length);
        if (written < 0 && errno != EINTR)
            return false;
        if (written > 0) {
            bytes += written;
            length -= (size_t)written;
        }
    }
    return true;
}

bool screen_possible(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) && kind != NULL && kind[0] != '\0'
        && strcmp(kind, "dumb") != 0;
}

bool screen_is_ours(void)
{
    pid_t group = tcgetpgrp(STDOUT_FILENO);
    return group < 0 || group == getpgrp();
}

static bool speaks_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        const char *dot = value != NULL ? strchr(value, '.') : NULL;
        if (value != NULL && value[0] != '\0')
            return dot != NULL && (strncasecmp(dot, ".utf-8", 6) == 0
                                   || strncasecmp(dot, ".utf8", 5) == 0);
    }
    return false;
}

static void keep_complaints(struct screen *screen)
{
    fflush(stderr);
    screen->said = memfd_create("said", MFD_CLOEXEC);
    screen->stderr_before = dup(STDERR_FILENO);
    if (screen->said >= 0 && screen->stderr_before >= 0)
        dup2(screen->said, STDERR_FILENO);
}

static void print_complaints(struct screen *screen)
{
    char part[4096];
    ssize_t got;
    fflush(stderr);
    if (screen->stderr_before >= 0) {
        dup2(screen->stderr_before, STDERR_FILENO);
        close(screen->stderr_before);
    }
    if (screen->said < 0)
        return;
    lseek(screen->said, 0, SEEK_SET);
    while ((got = read(screen->said, part, sizeof part)) > 0)
        if (!write_all(STDERR_FILENO, part, (size_t)got))
            break;
    close(screen->said);
}

static void set_keys(struct screen *screen)
{
    struct termios raw = screen->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (screen->keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

void screen_enter(struct screen *screen)
{
    static const char enter[] = "\33[?1049h\33[?25l\33[2J";
    if (!screen->entered) {
        const char *no_colour = getenv("NO_COLOR");
        screen->keys = isatty(STDIN_FILENO)
            && tcgetattr(STDIN_FILENO, &screen->before) == 0;
        screen->colour = no_colour == NULL || no_colour[0] == '\0';
        screen->utf8 = speaks_utf8();
        keep_complaints(screen);
    }
    screen->entered = true;
    set_keys(screen);
    free(screen->shown);
    screen->shown = NULL;
    write_all(STDOUT_FILENO, enter, sizeof enter - 1);
}

void screen_leave(struct screen *screen)
{
    static const char leave[] = "\33[0m\33[?25h\33[?1049l";
    if (!screen->entered)
        return;
    screen->entered = false;
    write_all(STDOUT_FILENO, leave, sizeof leave - 1);
    if (screen->keys)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen->before);
    print_complaints(screen);
    free(screen->shown);
    screen->shown = NULL;
}

void screen_size(int *columns, int *rows)
{
    struct winsize size = { 0 };
    *columns = 80;
    *rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return;
    if (size.ws_col > 0)
        *columns = size.ws_col;
    if (size.ws_row > 0)
        *rows = size.ws_row;
}

bool screen_draw(struct screen *screen, const char *text)
{
    char *bytes = NULL;
    size_t size = 0;
    if (screen->shown != NULL && strcmp(screen->shown, text) == 0)
        return true;
    FILE *out = open_memstream(&bytes, &size);
    if (out == NULL)
        return false;
    fputs("\33[H", out);
    for (const char *at = text; *at != '\0'; ) {
        int length = (int)strcspn(at, "\n");
        fprintf(out, "%s\33[K%.*s", at == text ? "" : "\r\n", length, at);
        at += length + (at[length] == '\n');
    }
    fputs("\33[J", out);
    fclose(out);
    bool drawn = write_all(STDOUT_FILENO, bytes, size);
    free(bytes);
    free(screen->shown);
    screen->shown = text_format("%s", text);
    return drawn;
}

char *screen_complaint(const struct screen *screen)
{
    static const char name[] = "resolve: ";
    char line[1024];
    fflush(stderr);
    ssize_t got = pread(screen->said, line, sizeof line - 1, 0);
    if (got <= 0)
        return NULL;
    line[got] = '\0';
    line[strcspn(line, "\n")] = '\0';
    bool named = strncmp(line, name, sizeof name - 1) == 0;
    return text_format("%s", named ? line + sizeof name - 1 : line);
}

void screen_forget(struct screen *screen)
{
    if (screen->said >= 0 && ftruncate(screen->said, 0) == 0)
        lseek(screen->said, 0, SEEK_SET);
}
