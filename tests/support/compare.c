#include "compare.h"
#include <check.h>
#include <math.h>
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
