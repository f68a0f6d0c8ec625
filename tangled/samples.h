#ifndef SAMPLES_H
#define SAMPLES_H

enum { SAMPLES_MAX = 100 };

struct samples {
    int count;                     /* zero-initialise */
    double sorted[SAMPLES_MAX];    /* rising */
};

/* One more finite number; there is room for SAMPLES_MAX. */
void samples_add(struct samples *samples, double value);
/* Of at least one sample: q = 0 is the least, 1/2 the median, 1 the most; in
   between a straight line between neighbours. */
double samples_quantile(const struct samples *samples, double q);
double samples_median(const struct samples *samples);
/* The distance of the quartiles by the median. */
double samples_spread(const struct samples *samples);

#endif
