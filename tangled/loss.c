#include <math.h>
#include <string.h>
#include "loss.h"

enum status labels_check(const int32_t *labels, int batch, int tokens,
                         int vocab_size, struct error *error)
{
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++, labels++) {
            if (*labels != IGNORE_INDEX && (*labels < 0 || *labels >= vocab_size))
                return error_set(error, STATUS_INVALID,
                                 "labels[%d,%d]: expected 0..%d or %d, got %ld",
                                 b, t, vocab_size - 1, IGNORE_INDEX, (long)*labels);
        }
    return STATUS_OK;
}

/* labels: one row. What the logits at t have to predict, t < T - 1. */
static int32_t target_of(const int32_t *labels, int t)
{
    return labels[t + 1];
}

static size_t count_targets(const int32_t *labels, int batch, int tokens)
{
    size_t counted = 0;
    for (int b = 0; b < batch; b++, labels += tokens)
        for (int t = 0; t + 1 < tokens; t++)
            counted += target_of(labels, t) != IGNORE_INDEX;
    return counted;
}

#include "kernels.h"

/* kept [V], or NULL: exp(row - largest) */
static double sum_of_exponentials(const float *row, int size, float largest,
                                  float *kept)
{
    enum { BLOCK = 512 };
    float room[BLOCK];
    double sum = 0;
    for (int first = 0; first < size; first += BLOCK) {
        const int left = size - first, count = left < BLOCK ? left : BLOCK;
        float *made = kept != NULL ? kept + first : room;
        for (int j = 0; j < count; j++)
            room[j] = row[first + j] - largest;
        kernels_best()->exponential(room, (size_t)count, made);
        for (int j = 0; j < count; j++)
            sum += made[j];
    }
    return sum;
}

static double row_loss(const float *row, int size, int32_t target,
                       size_t counted, float *d_row)
{
    float largest = row[0];
    for (int j = 1; j < size; j++)
        largest = row[j] > largest ? row[j] : largest;
    const double sum = sum_of_exponentials(row, size, largest, d_row);
    if (d_row != NULL) {
        const float share = (float)(1 / (sum * (double)counted));
        for (int j = 0; j < size; j++)
            d_row[j] *= share;
        d_row[target] -= 1 / (float)counted;
    }
    return largest + log(sum) - row[target];
}

static double sequence_loss(const float *logits, const int32_t *labels,
                            int tokens, int vocab_size, size_t counted,
                            float *d_logits)
{
    enum { ROWS = 256 };
    double total = 0, losses[ROWS];
    const bool large = (int64_t)tokens * vocab_size > 1 << 16;
    for (int first = 0; first < tokens; first += ROWS) {
        const int left = tokens - first, count = left < ROWS ? left : ROWS;
        #pragma omp parallel for if (large)
        for (int t = first; t < first + count; t++) {
            const size_t at = (size_t)t * (size_t)vocab_size;
            float *d_row = d_logits == NULL ? NULL : d_logits + at;
            const int32_t target = t + 1 < tokens ? target_of(labels, t) : IGNORE_INDEX;
            losses[t - first] = 0;
            if (target != IGNORE_INDEX)
                losses[t - first] = row_loss(logits + at, vocab_size, target, counted,
                                             d_row);
            else if (d_row != NULL)
                memset(d_row, 0, (size_t)vocab_size * sizeof *d_row);
        }
        for (int t = 0; t < count; t++)
            total += losses[t];
    }
    return total;
}

enum status cross_entropy(const float *logits, const int32_t *labels,
                          int batch, int tokens, int vocab_size,
                          float *loss, float *d_logits, struct error *error)
{
    enum status status = labels_check(labels, batch, tokens, vocab_size, error);
    if (status != STATUS_OK)
        return status;
    const size_t counted = count_targets(labels, batch, tokens);
    double total = 0;
    for (int b = 0; b < batch; b++) {
        const ptrdiff_t row = (ptrdiff_t)b * tokens;
        const ptrdiff_t at = row * vocab_size;
        total += sequence_loss(logits + at, labels + row, tokens, vocab_size,
                               counted,
                               d_logits == NULL ? NULL : d_logits + at);
    }
    *loss = counted > 0 ? (float)(total / (double)counted) : 0;
    return STATUS_OK;
}
