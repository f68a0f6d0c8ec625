#include "samples.h"
#include <math.h>

void samples_add(struct samples *samples, double value)
{
    double *sorted = samples->sorted;
    int at = samples->count;
    for (; at > 0 && sorted[at - 1] > value; at--)
        sorted[at] = sorted[at - 1];
    sorted[at] = value;
    samples->count++;
}

double samples_quantile(const struct samples *samples, double q)
{
    const double rank = q * (samples->count - 1);
    const int below = (int)rank, last = samples->count - 1;
    const int above = below < last ? below + 1 : last;
    const double *sorted = samples->sorted;
    return sorted[below] + (rank - below) * (sorted[above] - sorted[below]);
}

double samples_median(const struct samples *samples)
{
    return samples_quantile(samples, 0.5);
}

double samples_spread(const struct samples *samples)
{
    return (samples_quantile(samples, 0.75)
            - samples_quantile(samples, 0.25)) / samples_median(samples);
}
