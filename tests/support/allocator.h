/* Counts the allocations of the code under test, and makes the n-th fail.
   The suites are linked with --wrap=malloc and so on, so the library needs
   no hook of its own. Typical use:

       for (long n = 1; ; n++) {
           long live = allocator_live();
           allocator_fail_at(n);
           enum status status = thing_new(&thing, &error);
           long left = allocator_live() - live;
           if (!allocator_stop())
               break;                       (fewer than n allocations)
           ck_assert_int_eq(status, STATUS_NO_MEMORY);
           ck_assert_int_eq(left, 0);
       }
       thing_free(&thing);                  (the last call succeeded)

   A mapping of a file counts as an allocation, of no bytes.

   Read the count right after the call: Check is linked into the suite too,
   and its assertions allocate. */
#ifndef ALLOCATOR_H
#define ALLOCATOR_H

#include <stdbool.h>

/* From now on the n-th allocation (1 is the next) fails, once. */
void allocator_fail_at(long n);
/* Ends that; true when the failure happened. */
bool allocator_stop(void);
/* Blocks allocated and not yet freed by code linked into the suite. */
long allocator_live(void);
/* Bytes that those blocks have, as the system rounds them. */
long allocator_bytes(void);
/* Bytes asked for so far, as the callers count them, freed or not. */
long allocator_asked(void);
/* Allocations so far. */
long allocator_calls(void);

#endif
