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

static double log_sum_exp(const float *row, int size)
{
    double sum = 0;
    double largest = row[0];
    for (int j = 1; j < size; j++)
        largest = row[j] > largest ? row[j] : largest;
    for (int j = 0; j < size; j++)
        sum += exp(row[j] - largest);
    return largest + log(sum);
}

enum status cross_entropy(const float *logits, const int32_t *labels,
                          int batch, int tokens, int vocab_size,
                          float *loss, float *d_logits, struct error *error)
{
    enum status status = labels_check(labels, batch, tokens, vocab_size, error);
    if (status != STATUS_OK)
        return status;
    const size_t width = (size_t)vocab_size, count = (size_t)tokens;
    const size_t counted = count_targets(labels, batch, tokens);
    double total = 0;
    if (d_logits != NULL)
        memset(d_logits, 0, (size_t)batch * count * width * sizeof *d_logits);
    for (size_t b = 0; b < (size_t)batch; b++)
        for (int t = 0; t + 1 < tokens; t++) {
            const int32_t target = target_of(labels + b * count, t);
            const size_t at = (b * count + (size_t)t) * width;
            if (target == IGNORE_INDEX)
                continue;
            const float *row = logits + at;
            const double log_sum = log_sum_exp(row, vocab_size);
            total += log_sum - row[target];
            for (size_t j = 0; d_logits != NULL && j < width; j++) {
                const double hit = j == (size_t)target ? 1 : 0;
                d_logits[at + j] = (float)((exp(row[j] - log_sum) - hit)
                                           / (double)counted);
            }
        }
    *loss = counted > 0 ? (float)(total / (double)counted) : 0;
    return STATUS_OK;
}
