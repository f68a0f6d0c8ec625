#ifndef ROUTING_H
#define ROUTING_H
#include <stddef.h>

/* From a failure to the mechanism that owns it. Seed 000, "failure-to-owner
   routing". All texts are static. */
struct route {
    int chapter;
    const char *owner;       /* a chunk of that chapter */
    const char *failure;     /* as one sees it */
    const char *repair;      /* what to do at the owner */
};

struct check {
    const char *name;        /* as in the suite */
    int tier;                /* 0 to 3 */
    const struct route *route;
};

enum { CHECK_COUNT = 35 };
extern const struct check checks[CHECK_COUNT];   /* in running order */

/* The route of a check, or the first of an owner; NULL when there is none
   by that name. */
const struct route *route_find(const char *name);
#endif
