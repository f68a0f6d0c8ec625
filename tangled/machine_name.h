#ifndef MACHINE_NAME_H
#define MACHINE_NAME_H

#include <stddef.h>

struct machine_name {
    char processor[96];     /* "AMD EPYC 9754" */
    int cores;              /* that this process may use */
    char compiler[64];      /* "gcc 12.2.0" */
    char pages[32];         /* when large pages are given: "madvise" */
    double load;            /* programs that wanted to run in the last minute;
                               negative when the system does not say */
};

/* What is not known is "unknown". */
struct machine_name machine_name_now(void);

#endif
