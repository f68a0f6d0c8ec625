#include "calendar.h"
#include <stdio.h>
#include <string.h>

struct day { int year, month, day; };

static int number(const char *digits, int count)
{
    int value = 0;
    for (int i = 0; i < count; i++)
        value = value * 10 + (digits[i] - '0');
    return value;
}

static struct day take_apart(const char *date)
{
    return (struct day){ number(date, 4), number(date + 5, 2),
                         number(date + 8, 2) };
}

static int month_length(int year, int month)
{
    static const char lengths[] =
        { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return lengths[month - 1] + (month == 2 && leap);
}

bool calendar_valid(const char *date)
{
    static const char form[] = "dddd-dd-dd";
    for (size_t i = 0; i < sizeof form; i++)
        if (form[i] == 'd' ? date[i] < '0' || date[i] > '9'
                           : date[i] != form[i])
            return false;
    struct day day = take_apart(date);
    return day.year >= 1 && day.month >= 1 && day.month <= 12
        && day.day >= 1 && day.day <= month_length(day.year, day.month);
}

void calendar_add(char after[11], const char *date, int days)
{
    struct day day = take_apart(date);
    day.day += days;
    while (day.day > month_length(day.year, day.month)) {
        day.day -= month_length(day.year, day.month);
        day.year += day.month == 12;
        day.month = day.month % 12 + 1;
    }
    if (day.year > 9999)
        day = (struct day){ 9999, 12, 31 };
    snprintf(after, 11, "%04u-%02u-%02u", (unsigned)day.year % 10000,
             (unsigned)day.month % 100, (unsigned)day.day % 100);
}

static long day_number(const char *date)
{
    struct day day = take_apart(date);
    long year = day.year - (day.month < 3);
    long month = (day.month + 9) % 12;
    return 365 * year + year / 4 - year / 100 + year / 400
        + (153 * month + 2) / 5 + day.day;
}

long calendar_between(const char *from, const char *to)
{
    return day_number(to) - day_number(from);
}

enum { RUNG_MAX = 4 };

static const int ladder[RUNG_MAX + 1] = { 1, 1, 3, 7, 21 };

static void pass_clean(struct standing *standing, const struct outcome *pass)
{
    enum level next = pass->level == LEVEL_CHUNK ? LEVEL_FUNCTION
        : LEVEL_EMPTY;
    if (standing->level < next)
        standing->level = next;
    if (strcmp(pass->date, standing->moved) > 0) {
        standing->rung += standing->rung < RUNG_MAX;
        strcpy(standing->moved, pass->date);
        calendar_add(standing->due, pass->date, ladder[standing->rung]);
    }
    if (pass->level != LEVEL_EMPTY || pass->paused)
        return;
    if (standing->empty[0] == '\0')
        strcpy(standing->empty, pass->date);
    else if (strcmp(pass->date, standing->empty) > 0)
        standing->state = STATE_LEARNED;
}

static void miss(struct standing *standing, const char *date)
{
    if (strcmp(date, standing->fell) != 0)
        standing->rung -= standing->rung > 0;
    strcpy(standing->fell, date);
    strcpy(standing->moved, date);
    calendar_add(standing->due, date, 1);
}

static void take_result(struct standing *standing, const struct outcome *item)
{
    bool passed = item->result == RESULT_CLEAN || item->result == RESULT_LATE;
    enum state reached = item->result == RESULT_ABANDONED ? STATE_NEW
        : passed ? STATE_PASSED : STATE_STARTED;
    if (standing->state < reached)
        standing->state = reached;
    if (item->result == RESULT_CLEAN)
        pass_clean(standing, item);
    else if (item->result == RESULT_LATE)
        calendar_add(standing->due, item->date, 1);
    else if (item->result == RESULT_REVEALED)
        miss(standing, item->date);
}

struct standing calendar_standing(const struct outcome *items, size_t count)
{
    struct standing standing = { 0 };
    for (size_t i = 0; i < count; i++)
        take_result(&standing, &items[i]);
    return standing;
}
