#ifndef FILE_MAP_H
#define FILE_MAP_H

#include <stddef.h>
#include "error.h"

/* A regular file as read-only memory. Whoever makes the file shorter while
   it is mapped ends the process with SIGBUS. */
struct file_map {
    const unsigned char *bytes;    /* never NULL */
    size_t length;
};

/* Refuses what is not a regular file, and does not wait for it. *map is
   unchanged on error. */
enum status file_map_open(struct file_map *map, const char *path,
                          struct error *error);
void file_map_close(struct file_map *map);    /* empties; twice is fine */
#endif
