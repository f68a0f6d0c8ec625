/* Compares tensors, and says which element differs most. */
#ifndef COMPARE_H
#define COMPARE_H

#include <stddef.h>

/* The tolerance of every golden: 1e-5 absolute plus 1e-5 relative. */
#define TOLERANCE 1e-5

/* Fails the running test unless |actual − expected| ≤ tolerance +
   tolerance·|expected| for each of count elements (NaN never passes).
   shape may be NULL; with it the message gives the index as [b,t,c]. */
void expect_close(const char *what, const float *actual,
                  const float *expected, size_t count, int rank,
                  const int *shape, double tolerance);

/* Fails unless the bytes are the same. */
void expect_same_bits(const char *what, const void *actual,
                      const void *expected, size_t bytes);

#endif
