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

/* A file of these tensors in this order; names are written as they are. The
   library's own writer waits for the disk, which here are seconds. */
static inline void write_tensors(const char *path,
                                 const struct safetensors_entry *entries,
                                 size_t count)
{
    char *header = NULL;
    size_t size, at = 0;
    FILE *text = open_memstream(&header, &size);
    ck_assert_ptr_nonnull(text);
    for (size_t k = 0; k < count; k++) {
        fprintf(text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                k == 0 ? "{" : ",", entries[k].name,
                dtype_name(entries[k].dtype));
        for (int d = 0; d < entries[k].rank; d++)
            fprintf(text, "%s%lld", d == 0 ? "" : ",",
                    (long long)entries[k].shape[d]);
        fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at,
                at + entries[k].bytes);
        at += entries[k].bytes;
    }
    fprintf(text, count == 0 ? "{}" : "}");
    while (ftell(text) % 8 != 0)
        fputc(' ', text);
    ck_assert_int_eq(fclose(text), 0);
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "cannot write %s", path);
    for (int k = 0; k < 8; k++)
        fputc((int)(size >> 8 * k & 0xFF), file);
    fwrite(header, 1, size, file);
    for (size_t k = 0; k < count; k++)
        fwrite(entries[k].data, 1, entries[k].bytes, file);
    ck_assert_int_eq(ferror(file), 0);
    ck_assert_int_eq(fclose(file), 0);
    free(header);
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
