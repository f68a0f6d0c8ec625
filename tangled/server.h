#ifndef SERVER_H
#define SERVER_H

#include <stdio.h>
#include "slots.h"
#include "speaker.h"

enum { LINE_BYTES_MAX = 1 << 20 };

struct served {
    long lines, refused, requests;       /* requests: that were let in */
    struct slots_counts counts;
};

/* Answers the lines of `input` on `output` until no more come and all are
   answered. A line that is refused is answered with an error. Fails when
   slots cannot be made, or when reading or writing fails; *served is then
   unchanged. */
enum status serve_lines(const struct speaker *speaker,
                        const struct slots_limits *limits, int input,
                        FILE *output, struct served *served,
                        struct error *error);

#endif
