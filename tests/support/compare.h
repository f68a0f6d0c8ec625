/* Compares tensors, and says which element differs most; compares what two
   messages say. */
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

/* Fails unless the message says what the expected one says: each word of its
   name (all up to the first colon) and each number behind that, in words of
   its own. How an implementation phrases a refusal is its own affair. */
void expect_facts(const char *message, const char *expected);

#endif
