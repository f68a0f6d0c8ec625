#ifndef PHASES_H
#define PHASES_H

#include "ownership.h"

/* One call: B rows of T tokens behind P cached ones. */
struct phase {
    int batch, tokens, past;
    bool last_only;             /* the head sees each row's last token only */
};

enum { PRODUCTS_MAX = 12, PRODUCT_NAME_MAX = 16 };

/* [m,k] times [k,n] */
struct phase_product {
    char name[PRODUCT_NAME_MAX];    /* "qkv_proj", "scores" */
    size_t m, k, n;
    size_t times;               /* such products in the call */
    size_t macs;                /* multiply-adds of them all; of scores and
                                   context those that the mask lets through */
};

struct work {
    struct phase_product products[PRODUCTS_MAX];
    int count;
    size_t rows;                /* B T, of all calls */
    size_t flops;               /* of the products: two a multiply-add */
    size_t weight_bytes;        /* each weight once a call */
    size_t cache_read, cache_written;       /* bytes of keys and values */
    size_t edge_bytes;          /* rows that enter the stream, and logits */
    size_t bytes;               /* the four of them: the least traffic */
};

/* The work of one call. With experts: the experts' rows are those of all
   experts together, and weights are those of experts_per_token of them, the
   fewest that a call can do with. Refuses, by name, sizes that the model does
   not allow, and too much work. *work is unchanged on error. */
enum status phase_work(const struct ownership *ownership,
                       const struct phase *phase, struct work *work,
                       struct error *error);

/* The work of `steps` calls of one token a row, behind past, past + 1, …
   Products have the m, k and n of the first call; everything else is a
   sum. */
enum status decode_work(const struct ownership *ownership, int batch,
                        int past, int steps, struct work *work,
                        struct error *error);

double work_intensity(const struct work *work);     /* FLOPs a byte */
/* The least seconds of a machine that does so many operations and moves so
   many bytes a second, both at once. */
double work_seconds(const struct work *work, double flops, double bytes);

#endif
