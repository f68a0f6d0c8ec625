#ifndef BENCH_H
#define BENCH_H

#include "bench_print.h"

enum bench_what {
    BENCH_DECODE, BENCH_PREFILL, BENCH_BATCH, BENCH_TRAIN, BENCH_LOAD
};
enum { BENCH_WHATS = 5, BENCH_SIZES_MAX = 8 };
const char *bench_what_name(enum bench_what what);    /* "decode" */

struct bench_sizes {
    int count, size[BENCH_SIZES_MAX];
};

struct bench_wishes {
    bool what[BENCH_WHATS], weights[BENCH_WEIGHTS];
    const struct kernels *kernels[KERNELS_MAX];
    int kernel_count;
    struct bench_sizes contexts, prompts;    /* of decode, of prefill */
    int slots;                  /* rows of a batch, in the first context */
    int batch, tokens;          /* of a training step */
    size_t array_bytes;         /* that the limit of reading is measured on */
};

/* The cases, in the order in which a round has them; cases may be NULL.
   Returns how many. A batch brings the decode of one slot that it is compared
   with. */
int bench_list(const struct bench_wishes *wishes, struct bench_case *cases);

/* Makes the results, with their work and without times. The shape, the plan
   and the report are the caller's; bench_report_free, also after an error. */
enum status bench_predict(const struct bench_wishes *wishes,
                          const struct bench_shape *shape,
                          const struct bench_plan *plan,
                          struct bench_report *report, struct error *error);
/* Behind it: measures everything. */
enum status bench_run(const struct bench_wishes *wishes,
                      const struct stopwatch *watch,
                      const struct bench_progress *progress,
                      struct bench_report *report, struct error *error);
void bench_report_free(struct bench_report *report);

#endif
