/* Reads the oracle's safetensors files. Independent of the code under test:
   any trouble fails the running test. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stddef.h>
#include <stdint.h>

enum { GOLDEN_RANK_MAX = 4 };

struct golden_tensor {
    const char *name;
    int rank;
    int shape[GOLDEN_RANK_MAX];
    size_t count;         /* elements */
    float *f32;           /* set for F32, else NULL */
    int32_t *ids;         /* set for I64 (all values fit), else NULL */
};

struct golden {
    size_t count;
    struct golden_tensor *tensors;
    void *header;
};

/* name without folder and ending: "gpt_tiny". Free with golden_close. */
struct golden *golden_open(const char *name);
void golden_close(struct golden *golden);
/* Fails the test when there is no such tensor. */
const struct golden_tensor *golden_get(const struct golden *golden,
                                       const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A number of the metadata (all are strings there). */
double golden_number(const struct golden *golden, const char *key);

#endif
