#include "tokenizer_files.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file.h"

/* from/name to to/as; nothing when there is no such file. */
static enum status copy(const char *from, const char *name, const char *to,
                        const char *as, struct error *error)
{
    struct stat source, target;
    const size_t size = strlen(from) + strlen(to) + strlen(name)
                        + strlen(as) + 4;
    char *path = malloc(size), *copy_path = malloc(size);
    unsigned char *bytes = NULL;
    size_t length = 0;
    enum status status = STATUS_OK;
    if (path == NULL || copy_path == NULL)
        status = file_error(error, STATUS_NO_MEMORY, to, "no memory");
    if (status == STATUS_OK) {
        snprintf(path, size, "%s/%s", from, name);
        snprintf(copy_path, size, "%s/%s", to, as);
    }
    const bool there = status == STATUS_OK && stat(path, &source) == 0;
    const bool same = there && stat(copy_path, &target) == 0
                      && source.st_dev == target.st_dev
                      && source.st_ino == target.st_ino;
    if (there && !same)
        status = file_read(path, &bytes, &length, error);
    if (bytes != NULL)
        status = file_write_atomic(copy_path, bytes, length, error);
    free(bytes);
    free(path);
    free(copy_path);
    return status;
}

static bool is_directory(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* To be freed; NULL when there is no memory. *name is the file's own, NULL
   for a directory. */
static char *place_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    const bool whole = is_directory(path);
    const size_t length = whole ? strlen(path)
                          : slash != NULL ? (size_t)(slash - path) + 1 : 1;
    char *place = malloc(length + 1);
    *name = whole ? NULL : slash != NULL ? slash + 1 : path;
    if (place != NULL) {
        memcpy(place, whole || slash != NULL ? path : ".", length);
        place[length] = '\0';
    }
    return place;
}

static const char *const names[] = {
    "vocab.json", "merges.txt", "tokenizer.bin", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
    "added_tokens.json"
};

static enum status copy_all(const char *from, int vocab_size, const char *to,
                            struct error *error)
{
    char sized[32];
    enum status status = STATUS_OK;
    for (size_t k = 0; k < sizeof names / sizeof *names
         && status == STATUS_OK; k++)
        status = copy(from, names[k], to, names[k], error);
    snprintf(sized, sizeof sized, "tok%d.bin", vocab_size);
    if (status == STATUS_OK)
        status = copy(from, sized, to, "tokenizer.bin", error);
    return status;
}

static enum status copy_named(const char *from, const char *name,
                              const char *to, struct error *error)
{
    if (strcmp(name, "vocab.json") != 0)
        return copy(from, name, to, "tokenizer.bin", error);
    enum status status = copy(from, name, to, name, error);
    if (status == STATUS_OK)
        status = copy(from, "merges.txt", to, "merges.txt", error);
    return status;
}

enum status tokenizer_files_copy(const char *model_path,
                                 const char *tokenizer_path, int vocab_size,
                                 const char *directory, struct error *error)
{
    const char *path = tokenizer_path != NULL ? tokenizer_path : model_path;
    const char *name;
    if (path == NULL || strcmp(path, "bytes") == 0)
        return STATUS_OK;
    char *from = place_of(path, &name);
    if (from == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    const enum status status = tokenizer_path != NULL && name != NULL
        ? copy_named(from, name, directory, error)
        : copy_all(from, vocab_size, directory, error);
    free(from);
    return status;
}
