#include "compare.h"
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void index_text(size_t at, int rank, const int *shape, char *text,
                       size_t size)
{
    size_t used = 0, below = 1;
    if (shape == NULL || rank == 0) {
        snprintf(text, size, "[%zu]", at);
        return;
    }
    for (int i = 1; i < rank; i++)
        below *= (size_t)shape[i];
    for (int i = 0; i < rank && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%c%zu",
                                 i == 0 ? '[' : ',', at / below);
        at %= below;
        below /= i + 1 < rank ? (size_t)shape[i + 1] : 1;
    }
    if (used + 1 < size)
        snprintf(text + used, size - used, "]");
}

void expect_close(const char *what, const float *actual,
                  const float *expected, size_t count, int rank,
                  const int *shape, double tolerance)
{
    double worst = 0.0;
    size_t at = 0, outside = 0;
    for (size_t i = 0; i < count; i++) {
        double want = expected[i];
        double off = fabs((double)actual[i] - want) /
                     (tolerance + tolerance * fabs(want));
        if (off <= 1.0)
            continue;
        if (outside++ == 0 || isnan(off) || off > worst) {
            worst = off;
            at = i;
        }
    }
    if (outside == 0)
        return;
    char index[64];
    index_text(at, rank, shape, index, sizeof index);
    double difference = (double)actual[at] - (double)expected[at];
    ck_abort_msg("%s: %zu of %zu elements differ; worst at %s: expected "
                 "%.9g, got %.9g (absolute %.3g, relative %.3g)",
                 what, outside, count, index, (double)expected[at],
                 (double)actual[at], fabs(difference),
                 fabs(difference / (double)expected[at]));
}

void expect_same_bits(const char *what, const void *actual,
                      const void *expected, size_t bytes)
{
    const unsigned char *a = actual, *b = expected;
    if (memcmp(a, b, bytes) == 0)
        return;
    size_t i = 0;
    while (a[i] == b[i])
        i++;
    ck_abort_msg("%s: byte %zu of %zu differs", what, i, bytes);
}

/* Whether text holds the part as a whole: 3 is not said by 13, -3 or 3.5. */
static bool says(const char *text, const char *part, size_t length)
{
    const char *const digits = "0123456789";
    bool number = strchr(digits, part[length - 1]) != NULL;
    for (const char *at = text; *at != '\0'; at++) {
        if (strncmp(at, part, length) != 0)
            continue;
        bool begins = at == text
            || (strchr(digits, at[-1]) == NULL && at[-1] != '-');
        const char *end = at + length;
        bool ends = *end == '\0' || (strchr(digits, *end) == NULL
            && (*end != '.' || strchr(digits, end[1]) == NULL
                || end[1] == '\0'));
        if (!number || (begins && ends))
            return true;
    }
    return false;
}

static void expect_parts(const char *message, const char *from,
                         const char *to, const char *kind,
                         const char *expected)
{
    while (from < to) {
        from += strcspn(from, kind);
        size_t length = strspn(from, kind);
        if (from + length > to || length == 0)
            break;
        bool empty = length == 1 && *from == '-';       /* a dash */
        ck_assert_msg(empty || says(message, from, length),
                      "the message \"%s\" does not say \"%.*s\", as \"%s\""
                      " does", message, (int)length, from, expected);
        from += length;
    }
}

void expect_facts(const char *message, const char *expected)
{
    const char *colon = expected + strcspn(expected, ":");
    expect_parts(message, expected, colon,
                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
                 "0123456789", expected);
    expect_parts(message, colon, expected + strlen(expected), "-0123456789",
                 expected);
}
