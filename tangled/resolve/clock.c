#include "clock.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static double clock_read(clockid_t clock)
{
    struct timespec time = { 0 };
    clock_gettime(clock, &time);
    return (double)time.tv_sec
        + (double)(time.tv_nsec / 1000000) / 1000.0;
}

static void boot_read(char boot[40])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    boot[0] = '\0';
    if (file == NULL)
        return;
    if (fgets(boot, 40, file) == NULL)
        boot[0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
}

static void stamp_write(struct moment *moment, time_t wall)
{
    struct tm local;
    char offset[8] = "", time[24] = "";
    tzset();
    if (localtime_r(&wall, &local) == NULL)
        return;
    strftime(moment->date, sizeof moment->date, "%Y-%m-%d", &local);
    strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &local);
    strftime(offset, sizeof offset, "%z", &local);
    snprintf(moment->stamp, sizeof moment->stamp, "%s%.3s:%s", time, offset,
             strlen(offset) > 3 ? offset + 3 : "00");
}

#ifndef CLOCK_BOOTTIME
#define CLOCK_BOOTTIME CLOCK_MONOTONIC
#endif

struct moment moment_now(void)
{
    struct moment moment = { 0 };
    moment.awake = clock_read(CLOCK_MONOTONIC);
    moment.since_boot = clock_read(CLOCK_BOOTTIME);
    moment.wall = clock_read(CLOCK_REALTIME);
    stamp_write(&moment, (time_t)moment.wall);
    boot_read(moment.boot);
    return moment;
}

enum { SLEEP_TENTHS_MIN = 1 };

struct span moment_span(const struct moment *from, const struct moment *to)
{
    struct span span = { 0 };
    bool same_boot = strcmp(from->boot, to->boot) == 0;
    double awake = to->awake - from->awake;
    double boot = to->since_boot - from->since_boot;
    if (same_boot && awake >= 0) {
        span.awake = awake;
        if ((boot - awake) * 10 > SLEEP_TENTHS_MIN)
            span.slept = boot - awake;
    } else if (same_boot && from->boot[0] != '\0') {
        span.backwards = true;
    } else {
        span.uncertain = true;
        span.awake = to->wall > from->wall ? to->wall - from->wall : 0;
    }
    return span;
}
