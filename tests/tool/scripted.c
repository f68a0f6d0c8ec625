#include "scripted.h"
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ------------------------------------------------------------ the workshop */

char said[65536];
int complaints;

/* The linker sends the modules' complaints here. */
bool __wrap_complain(const char *format, ...);
bool __wrap_complain(const char *format, ...)
{
    size_t used = strlen(said);
    va_list list;
    va_start(list, format);
    vsnprintf(said + used, sizeof said - used, format, list);
    va_end(list);
    used = strlen(said);
    snprintf(said + used, sizeof said - used, "\n");
    complaints++;
    return false;
}

void say_nothing(void)
{
    said[0] = '\0';
    complaints = 0;
}

/* ------------------------------------------------------- a place and a clock */

char place[64], attempts[128], log_path[160], torn_path[160];
static char build[128];
struct workshop workshop = { "book", attempts, build };

static void remove_place(void)
{
    char line[256];
    snprintf(line, sizeof line, "chmod -R u+w %s; rm -rf %s", place, place);
    if (place[0] != '\0' && system(line) != 0)
        fprintf(stderr, "%s was left behind\n", place);
}

void new_place(void)
{
    const char *tmp = getenv("TMPDIR");
    if (place[0] != '\0')
        remove_place();
    else
        atexit(remove_place);
    snprintf(place, sizeof place, "%.40s/score-XXXXXX",
             tmp != NULL ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(place));
    ck_assert_int_eq(chmod(place, 0755), 0);
    snprintf(attempts, sizeof attempts, "%s/attempts", place);
    snprintf(build, sizeof build, "%s/build", place);
    snprintf(log_path, sizeof log_path, "%s/log.jsonl", attempts);
    snprintf(torn_path, sizeof torn_path, "%s/log.torn", attempts);
    say_nothing();
}

struct moment now;

struct moment scripted(void)
{
    return now;
}

void on(const char *stamp)
{
    snprintf(now.stamp, sizeof now.stamp, "%s", stamp);
    snprintf(now.date, sizeof now.date, "%.10s", stamp);
}

void begin_clock(void)
{
    now = (struct moment){ .wall = 1796000000.5, .awake = 1000.25,
                           .since_boot = 1000.25, .boot = "boot-a" };
    on("2026-11-29T20:31:05+01:00");
}

void wait_for(double seconds)
{
    now.awake += seconds;
    now.since_boot += seconds;
    now.wall += seconds;
}

struct score *reopen(struct score *score)
{
    score_close(&score);
    ck_assert_msg(score_open_at(&score, &workshop, scripted), "%s", said);
    return score;
}

struct score *new_score(void)
{
    new_place();
    begin_clock();
    return reopen(NULL);
}

size_t slurp(const char *path, char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return (size_t)-1;
    size_t length = fread(bytes, 1, room, file);
    fclose(file);
    return length;
}

void spit(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}
