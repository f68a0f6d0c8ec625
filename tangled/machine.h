#ifndef MACHINE_H
#define MACHINE_H

#include <stddef.h>
#include "error.h"

struct machine {
    double bytes_per_second;    /* reading an array of floats */
    double build_flops;         /* a second: with the instructions for which
                                   this program was compiled */
    double peak_flops;          /* with the widest that the processor has */
    const char *widest;         /* their name; static */
};

/* One thread reads an array of this many bytes, which should be several times
   those of the largest cache, and multiplies and adds, about `seconds` for
   each number; the best of several bursts counts. Refuses fewer than 4096
   bytes and seconds that are not positive and finite; *machine is unchanged
   on error. */
enum status machine_measure(size_t bytes, double seconds,
                            struct machine *machine, struct error *error);

#endif
