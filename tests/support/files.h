/* What the suites of chapter 19 share: a directory of their own, files with
   given bytes, and files of tensors, good and bad. Header only. */
#ifndef FILES_H
#define FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "safetensors.h"
#include "support/models.h"

/* A new, empty directory below the harness's; its path stays. */
static inline const char *new_directory(void)
{
    static char paths[8][256];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/19-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(path));
    return path;
}

/* directory/name; eight of them stay. */
static inline const char *in(const char *directory, const char *name)
{
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static inline void write_bytes(const char *path, const void *bytes,
                               size_t length)
{
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "cannot write %s", path);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* Bytes of a file of tensors: length of the header, header, data. The caller
   frees them. */
static inline unsigned char *tensor_bytes(const char *header,
                                          const void *data,
                                          size_t data_length, size_t *length)
{
    const size_t size = strlen(header);
    unsigned char *bytes = malloc(8 + size + data_length + 1);
    ck_assert_ptr_nonnull(bytes);
    for (int k = 0; k < 8; k++)
        bytes[k] = (unsigned char)((uint64_t)size >> 8 * k);
    memcpy(bytes + 8, header, size);
    if (data_length > 0)
        memcpy(bytes + 8 + size, data, data_length);
    *length = 8 + size + data_length;
    return bytes;
}

static inline void write_tensors(const char *path,
                                 const struct safetensors_entry *entries,
                                 size_t count)
{
    struct error why = {STATUS_OK, ""};
    expect_ok(safetensors_write(path, entries, count, NULL, 0, &why), &why);
}

static inline int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}
#endif
