/* What every suite includes. A suite is a table of Check tests, each with the
   tier of the lab that it belongs to (0 to 3) and the chunk of the book that
   owns the mechanism it grades. The harness brings main; see harness.c. */
#ifndef HARNESS_H
#define HARNESS_H

#include <check.h>
#include <stddef.h>

struct test {
    const char *name;           /* a sentence */
    const TTest *const *test;   /* what START_TEST defined */
    int tier;
    const char *owner;          /* chunk name */
};

struct suite {
    const char *title;
    const struct test *tests;   /* inner mechanisms first */
    size_t count;
};

/* Each tests/suite_N.c defines this one. */
extern const struct suite suite;

/* What every made-up input of the suite depends on: --seed N, or 1. */
unsigned long long harness_seed(void);
/* The program to run: --program PATH, or the tinygpt beside the suite. */
const char *harness_program(void);
/* A directory for what tests write. It goes with the last test, and so does
   what a failed test did not remove. */
const char *harness_scratch(void);

#define TEST(name, tier, owner) { #name, &name, tier, owner }
#define SUITE(title, tests) \
    const struct suite suite = { \
        title, tests, sizeof (tests) / sizeof (tests)[0] }

#endif
