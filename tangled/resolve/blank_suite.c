#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include "blank.h"
#include "blank_note.h"

bool allocator_stop(void);      /* tests/support/allocator.c */

void blank_reached(const char *name)
{
    allocator_stop();
    blank_note(name);
    ck_abort_msg("reached the blank \"%s\"", name);
    abort();
}
