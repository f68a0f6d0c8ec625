#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "contract.h"
#include "routing.h"

enum { DETAILS_MAX = 3 };

enum { SHOWN_BYTES = 65536 };

char *time_format(double seconds)
{
    long whole = (long)(seconds < 0 ? -seconds : seconds);
    return text_format("%s%ld:%02ld", seconds < 0 ? "-" : "", whole / 60,
                       whole % 60);
}

const char *repair_of(const char *owner, int chapter)
{
    const struct route *best = NULL;
    for (int i = 0; i < CHECK_COUNT; i++) {
        const struct route *route = checks[i].route;
        if (strcmp(route->owner, owner) == 0 && route->chapter <= chapter
            && (best == NULL || route->chapter > best->chapter))
            best = route;
    }
    if (best == NULL)
        best = route_find(owner);
    return best != NULL && best->chapter <= chapter ? best->repair : NULL;
}

static const char *paint(const char *code)
{
    const char *kind = getenv("TERM");
    bool plain = !isatty(STDOUT_FILENO) || getenv("NO_COLOR") != NULL
        || (kind != NULL && strcmp(kind, "dumb") == 0);
    return plain ? "" : code;
}

static void print_clock(const struct attempt *attempt)
{
    char *spent = time_format(attempt->elapsed);
    char *budget = time_format(attempt->budget);
    printf(" \u00b7 %s of %s", spent, budget);
    if (attempt->paused + attempt->slept >= 1) {
        char *not_counted = time_format(attempt->paused + attempt->slept);
        printf(" (and %s not counted: paused or asleep)", not_counted);
        free(not_counted);
    }
    free(spent);
    free(budget);
}

static void print_tiers(const struct grade *grade)
{
    putchar('\n');
    for (int tier = 0; tier < 4; tier++) {
        int passed = 0, all = 0;
        for (size_t i = 0; i < grade->count; i++)
            if (grade->tests[i].tier == tier) {
                all++;
                passed += grade->tests[i].passed;
            }
        if (all > 0)
            printf("  tier %d   %s%3d of %3d%s\n", tier,
                   paint(passed == all ? "\33[32m" : "\33[31m"), passed, all,
                   paint("\33[0m"));
    }
}

static void print_failure(const struct tested *test, int chapter)
{
    printf("\n  %s%s%s\n", paint("\33[1m"), test->name, paint("\33[0m"));
    printf("      %s\n", test->place);
    print_wrapped("      ", test->message);
    printf("      owner   %s\n", test->owner);
    const char *repair = repair_of(test->owner, chapter);
    if (repair != NULL)
        print_wrapped("      repair  ", repair);
}

static void print_names(const char *what, const struct list *names)
{
    if (names->count > 0)
        printf("\n%s\n", what);
    for (size_t i = 0; i < names->count; i++)
        printf("  %s\n", names->items[i]);
}

static void print_failures(const struct grade *grade, int chapter)
{
    int shown = 0, blank = 0;
    for (size_t i = 0; i < grade->count; i++) {
        const struct tested *test = &grade->tests[i];
        if (test->passed)
            continue;
        if (tested_blank(test)) {
            blank++;
            continue;
        }
        if (shown == 0)
            printf("\nfailed\n");
        if (shown < DETAILS_MAX)
            print_failure(test, chapter);
        else
            printf("%s  %s  (%s)\n", shown == DETAILS_MAX ? "\n" : "",
                   test->name, test->owner);
        shown++;
    }
    if (blank > 0)
        printf("\n%d failed by reaching a blank\n", blank);
}

static void print_last_line(const struct grade *grade,
                            const struct attempt *attempt)
{
    if (grade->problem != NULL)
        printf("\n%sNo verdict: %s%s (seed %llu)\n", paint("\33[31m"),
               grade->problem, paint("\33[0m"), grade->seed);
    else
        printf("\n%s%d passed, %d failed%s (seed %llu)\n",
               paint(grade->failed == 0 ? "\33[32m" : "\33[31m"),
               grade->passed, grade->failed, paint("\33[0m"), grade->seed);
    if (attempt == NULL || !grade_is_pass(grade))
        return;
    if (attempt->result == RESULT_CLEAN)
        printf("A clean pass%s.\n", attempt->paused > 0 ? ", with a pause"
                                                        : "");
    else if (attempt->result == RESULT_LATE)
        printf("Passed, over the budget.\n");
}

void verdict_print(const struct grade *grade, const struct stage *stage,
                   const struct attempt *attempt)
{
    printf("stage %s, %s", stage->key, stage->title);
    if (attempt != NULL)
        print_clock(attempt);
    putchar('\n');
    if (grade->said != NULL && grade->said[0] != '\0')
        printf("\n%s%s", grade->said,
               grade->said[strlen(grade->said) - 1] == '\n' ? "" : "\n");
    if (grade->problem == NULL) {
        print_tiers(grade);
        print_names("not written yet", &grade->unwritten);
        print_names("blank, and reached by a test", &grade->reached);
        print_failures(grade, stage->chapter);
    }
    if (grade->printed > SHOWN_BYTES)
        printf("\nThe attempt printed %zu bytes; the suite does not need"
               " them.\n", grade->printed);
    print_last_line(grade, attempt);
}
