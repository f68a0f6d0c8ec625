#include <check.h>
#include <stdlib.h>
#include "blank.h"
#include "blank_note.h"

void blank_reached(const char *name)
{
    blank_note(name);
    ck_abort_msg("reached the blank \"%s\"", name);
    abort();
}
