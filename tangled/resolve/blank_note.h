#ifndef BLANK_NOTE_H
#define BLANK_NOTE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void blank_note(const char *name)
{
    const char *path = getenv("RESOLVE_REACHED");
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", name);
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;
    if (file >= 0 && length > 0
        && write(file, line, (size_t)length) != length)
        fputs("a blank could not be noted\n", stderr);
    if (file >= 0)
        close(file);
}

#endif
