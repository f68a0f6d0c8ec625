#include "summary.h"
#include <stdlib.h>
#include <string.h>

void text_time(char text[32], double seconds)
{
    long whole = seconds < 0 ? 0 : seconds > 3e8 ? 300000000 : (long)seconds;
    if (whole < 6000)
        snprintf(text, 32, "%ld:%02ld", whole / 60, whole % 60);
    else
        snprintf(text, 32, "%ldh%02ld", whole / 3600, whole / 60 % 60);
}

void text_date(char text[32], const char *date, const char *today)
{
    static const char months[12][4] = { "Jan", "Feb", "Mar", "Apr", "May",
        "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
    int month = 0, day = 0;
    if (strncmp(date, today, 4) == 0
        && sscanf(date + 4, "-%2d-%2d", &month, &day) == 2
        && month >= 1 && month <= 12)
        snprintf(text, 32, "%s %d", months[month - 1], day);
    else
        snprintf(text, 32, "%.10s", date);
}

const char *text_result(const struct attempt *attempt)
{
    static const char *const names[] = { "open", "clean", "late", "revealed",
                                         "abandoned" };
    return attempt->is_paused ? "paused" : names[attempt->result];
}

const char *text_marks(const struct attempt *attempt)
{
    if (attempt->uncertain)
        return attempt->pauses > 0 ? "*~" : "~";
    return attempt->pauses > 0 ? "*" : "";
}

void put_plain(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if (at[0] == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0)
            at++;
        else
            putc(*at < ' ' || *at == 0x7F ? ' ' : *at, out);
}

struct summary summary_of(const struct score *score,
                          const struct stage *stage)
{
    struct summary summary = { .stage = stage };
    const struct attempt *items;
    size_t count = score_attempts(score, &items);
    for (const struct attempt *attempt = items; attempt < items + count;
         attempt++) {
        if (strcmp(attempt->stage, stage->key) != 0
            || attempt->result == RESULT_ABANDONED)
            continue;
        summary.attempts++;
        if (attempt->result == RESULT_OPEN)
            summary.open = attempt;
        else
            summary.last = attempt;
        if (attempt->result == RESULT_CLEAN && (summary.best == NULL
            || attempt->elapsed < summary.best->elapsed))
            summary.best = attempt;
    }
    summary.standing = score_standing(score, stage->key);
    return summary;
}

struct line line_of(const struct summary *summary, const char *today)
{
    static const char *const states[] = { "new", "started", "passed",
                                          "learned" };
    const struct attempt *last = summary->last, *best = summary->best;
    struct line line = { "", "", "", "", "" };
    char text[32];
    snprintf(line.tries, sizeof line.tries, "%d", summary->attempts);
    snprintf(line.state, sizeof line.state, "%s",
             states[summary->standing.state]);
    if (best != NULL) {
        text_time(text, best->elapsed);
        snprintf(line.best, sizeof line.best, "%s%s/%d", text,
                 text_marks(best), summary->stage->minutes);
    }
    if (summary->open != NULL) {
        text_time(text, summary->open->elapsed);
        snprintf(line.last, sizeof line.last, "%s %s", text_result(summary->open),
                 text);
    } else if (last != NULL) {
        text_date(text, last->end_date, today);
        snprintf(line.last, sizeof line.last, "%s%s %s", text_result(last),
                 text_marks(last), text);
    }
    if (summary->standing.due[0] != '\0') {
        text_date(text, summary->standing.due, today);
        snprintf(line.due, sizeof line.due, "%s",
                 strcmp(summary->standing.due, today) <= 0 ? "now" : text);
    }
    return line;
}

static int by_owner(const void *a, const void *b)
{
    const struct decision *x = a, *y = b;
    if (x->same != y->same)
        return x->same < y->same ? 1 : -1;
    int names = strcmp(x->attempt->first_owner, y->attempt->first_owner);
    if (names != 0)
        return names;
    return x->attempt < y->attempt ? 1 : -1;
}

struct decision *decisions_of(const struct score *score, size_t *count)
{
    const struct attempt *items;
    size_t attempts = score_attempts(score, &items);
    struct decision *decisions = allocate((attempts + 1)
                                          * sizeof *decisions);
    *count = 0;
    for (size_t i = 0; i < attempts; i++)
        if (items[i].wrong[0] != '\0')
            decisions[(*count)++].attempt = &items[i];
    for (size_t i = 0; i < *count; i++)
        for (size_t j = 0; j < *count; j++)
            decisions[i].same +=
                strcmp(decisions[i].attempt->first_owner,
                       decisions[j].attempt->first_owner) == 0;
    qsort(decisions, *count, sizeof *decisions, by_owner);
    return decisions;
}
