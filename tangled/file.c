#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "file.h"

enum status file_error(struct error *error, enum status status,
                       const char *path, const char *reason)
{
    const size_t shown = 96, length = strlen(path);
    return error_set(error, status, "%s%s: %s", length > shown ? "..." : "",
                     length > shown ? path + length - shown : path, reason);
}

/* 0, or an errno; a file that has become shorter is an input error. */
static int read_all(int file, unsigned char *bytes, size_t length)
{
    while (length > 0) {
        const ssize_t got = read(file, bytes, length);
        if (got == 0)
            return EIO;
        if (got < 0 && errno != EINTR)
            return errno;
        if (got > 0) {
            bytes += got;
            length -= (size_t)got;
        }
    }
    return 0;
}
static enum status read_open(int file, const char *path,
                             unsigned char **bytes, size_t *length,
                             struct error *error)
{
    struct stat facts;
    if (fstat(file, &facts) != 0)
        return file_error(error, STATUS_IO, path, strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return file_error(error, STATUS_IO, path, S_ISDIR(facts.st_mode)
                          ? "is a directory" : "is not a regular file");
    const size_t size = (size_t)facts.st_size;
    unsigned char *made = size < SIZE_MAX ? malloc(size + 1) : NULL;
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, path,
                          "no memory for its contents");
    const int problem = read_all(file, made, size);
    if (problem != 0) {
        free(made);
        return file_error(error, STATUS_IO, path, strerror(problem));
    }
    made[size] = 0;
    *bytes = made;
    *length = size;
    return STATUS_OK;
}

enum status file_read(const char *path, unsigned char **bytes,
                      size_t *length, struct error *error)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return file_error(error, STATUS_IO, path, strerror(errno));
    enum status status = read_open(file, path, bytes, length, error);
    close(file);
    return status;
}

static int write_all(int file, const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        const ssize_t written = write(file, at, length);
        if (written < 0 && errno != EINTR)
            return errno;
        if (written > 0) {
            at += written;
            length -= (size_t)written;
        }
    }
    return 0;
}

/* Writes, flushes and closes; 0, or the errno of the first failure. */
static int fill_file(int file, const struct file_part *parts, size_t count)
{
    int problem = 0;
    for (size_t i = 0; i < count && problem == 0; i++)
        problem = write_all(file, parts[i].bytes, parts[i].length);
    if (problem == 0 && fsync(file) != 0)
        problem = errno;
    if (close(file) != 0 && problem == 0)
        problem = errno;
    return problem;
}

/* Opens the directory that path is in; room is a buffer to spell it in. */
static int open_directory(const char *path, char *room, int *directory)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 1 : (size_t)(slash - path) + 1;
    memcpy(room, slash == NULL ? "." : path, length);
    room[length] = '\0';
    *directory = open(room, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *directory < 0 ? errno : 0;
}

/* Opens a file that did not exist and spells its name. */
static int open_beside(const char *path, char *name, size_t size, int *file)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(name, size, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        *file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*file >= 0 || errno != EEXIST)
            break;
    }
    return *file < 0 ? errno : 0;
}

static void release_draft(struct file_draft *draft)
{
    if (draft->directory >= 0)
        close(draft->directory);
    free(draft->path);
    free(draft->name);
    *draft = (struct file_draft){ .directory = -1 };
}

static bool make_draft(struct file_draft *draft, const char *path,
                       size_t size)
{
    *draft = (struct file_draft){
        .path = malloc(size), .name = malloc(size), .directory = -1
    };
    if (draft->path == NULL || draft->name == NULL) {
        release_draft(draft);
        return false;
    }
    strcpy(draft->path, path);
    return true;
}

enum status file_draft_write(struct file_draft *draft, const char *path,
                             const struct file_part *parts, size_t count,
                             struct error *error)
{
    const size_t size = strlen(path) + 64;   /* room for the ending */
    struct file_draft made;
    if (!make_draft(&made, path, size))
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    int file = -1;
    int problem = open_directory(path, made.name, &made.directory);
    if (problem == 0)
        problem = open_beside(path, made.name, size, &file);
    if (problem == 0)
        problem = fill_file(file, parts, count);
    if (problem == 0) {
        *draft = made;
        return STATUS_OK;
    }
    if (file >= 0)
        unlink(made.name);
    release_draft(&made);
    return file_error(error, STATUS_IO, path, strerror(problem));
}

void file_draft_discard(struct file_draft *draft)
{
    unlink(draft->name);
    release_draft(draft);
}

enum status file_draft_publish(struct file_draft *draft,
                               struct error *error)
{
    enum status status = STATUS_OK;
    if (rename(draft->name, draft->path) != 0) {
        status = file_error(error, STATUS_IO, draft->path, strerror(errno));
        file_draft_discard(draft);
        return status;
    }
    if (fsync(draft->directory) != 0 && errno != EINVAL)
        status = file_error(error, STATUS_IO, draft->path,
                            "written, but may not survive a power failure");
    release_draft(draft);
    return status;
}

enum status file_write_atomic(const char *path, const void *bytes,
                              size_t length, struct error *error)
{
    const struct file_part part = { bytes, length };
    struct file_draft draft;
    enum status status = file_draft_write(&draft, path, &part, 1, error);
    return status == STATUS_OK ? file_draft_publish(&draft, error) : status;
}
