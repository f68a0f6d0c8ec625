#ifndef FILE_H
#define FILE_H
#include <stddef.h>
#include "error.h"

/* The whole of a regular file; one zero byte follows the last, so that text
   can be read as a string. The caller frees *bytes. Errors name the path. */
enum status file_read(const char *path, unsigned char **bytes,
                      size_t *length, struct error *error);

/* Replaces the file at path by these bytes: after a success it holds all of
   them, after an error it is what it was before. */
enum status file_write_atomic(const char *path, const void *bytes,
                              size_t length, struct error *error);

struct file_part { const void *bytes; size_t length; };

/* A complete new version beside path, on disk under a name of its own. */
struct file_draft {
    char *path, *name;      /* where it will be, where it is */
    int directory;          /* open, to make the rename last */
};

/* Writes the parts one after the other. Exactly one of publish and discard
   ends a draft; publish ends it on error too, and path is then unchanged. */
enum status file_draft_write(struct file_draft *draft, const char *path,
                             const struct file_part *parts, size_t count,
                             struct error *error);
enum status file_draft_publish(struct file_draft *draft,
                               struct error *error);
void file_draft_discard(struct file_draft *draft);

/* error_set with "path: reason"; of a long path only the end. */
enum status file_error(struct error *error, enum status status,
                       const char *path, const char *reason);

#endif
