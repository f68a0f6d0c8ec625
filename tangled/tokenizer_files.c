#include "tokenizer_files.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file.h"

static const char *const names[] = {
    "vocab.json", "merges.txt", "tokenizer.bin", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
    "added_tokens.json"
};

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

struct source {
    char *place;                 /* a directory; NULL: there are no files */
    const char *named;           /* the one file; NULL: all that lie there */
    bool fresh;                  /* no model said which V to look for */
    char sized[32];              /* tok<V>.bin */
};

static enum status source_of(struct source *source, const char *model_path,
                             const char *tokenizer_path, int vocab_size,
                             struct error *error)
{
    const char *path = tokenizer_path != NULL ? tokenizer_path : model_path;
    *source = (struct source){ .fresh = model_path == NULL };
    snprintf(source->sized, sizeof source->sized, "tok%d.bin", vocab_size);
    if (path == NULL || strcmp(path, "bytes") == 0)
        return STATUS_OK;
    source->place = place_of(path, &source->named);
    if (tokenizer_path == NULL)
        source->named = NULL;
    return source->place != NULL ? STATUS_OK
        : file_error(error, STATUS_NO_MEMORY, path, "no memory");
}

/* To be freed; NULL when there is no memory. */
static char *join(const char *place, const char *name)
{
    const size_t size = strlen(place) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", place, name);
    return path;
}

/* *path: what a directory gets under this name, or NULL; to be freed. */
static enum status original_of(const struct source *source, const char *name,
                               char **path, struct error *error)
{
    const char *candidates[2] = { NULL, NULL };
    struct stat about;
    if (source->place != NULL) {
        const bool scores = strcmp(name, "tokenizer.bin") == 0
                            || strcmp(name, source->sized) == 0;
        if (source->named == NULL) {
            candidates[0] = !scores ? name
                            : source->fresh ? "tokenizer.bin" : source->sized;
            candidates[1] = scores ? "tokenizer.bin" : NULL;
        } else {
            const bool pair = strcmp(source->named, "vocab.json") == 0;
            if (pair && (strcmp(name, "vocab.json") == 0
                         || strcmp(name, "merges.txt") == 0))
                candidates[0] = name;
            if (!pair && scores)
                candidates[0] = source->named;
        }
    }
    *path = NULL;
    for (int k = 0; k < 2 && candidates[k] != NULL && *path == NULL; k++) {
        *path = join(source->place, candidates[k]);
        if (*path == NULL)
            return file_error(error, STATUS_NO_MEMORY, name, "no memory");
        if (stat(*path, &about) != 0) {
            free(*path);
            *path = NULL;
        }
    }
    return STATUS_OK;
}

static bool one_file(const char *path, const char *other)
{
    struct stat both[2];
    return stat(path, &both[0]) == 0 && stat(other, &both[1]) == 0
           && both[0].st_dev == both[1].st_dev
           && both[0].st_ino == both[1].st_ino;
}

/* original is NULL when there is none. */
static enum status copy(const char *original, const char *path,
                        struct error *error)
{
    unsigned char *bytes = NULL;
    size_t length = 0;
    if (original == NULL || one_file(original, path))
        return STATUS_OK;
    enum status status = file_read(original, &bytes, &length, error);
    if (status == STATUS_OK)
        status = file_write_atomic(path, bytes, length, error);
    free(bytes);
    return status;
}

static enum status compare(const char *original, const char *path,
                           struct error *error)
{
    unsigned char *bytes[2] = { NULL, NULL };
    size_t lengths[2] = { 0, 0 };
    struct stat about;
    if (lstat(path, &about) != 0)
        return STATUS_OK;
    bool same = original != NULL && one_file(original, path);
    enum status status = STATUS_OK;
    if (original != NULL && !same) {
        status = file_read(original, &bytes[0], &lengths[0], error);
        if (status == STATUS_OK)
            status = file_read(path, &bytes[1], &lengths[1], error);
        same = status == STATUS_OK && lengths[0] == lengths[1]
               && memcmp(bytes[0], bytes[1], lengths[0]) == 0;
    }
    free(bytes[0]);
    free(bytes[1]);
    if (status == STATUS_OK && !same)
        status = file_error(error, STATUS_INVALID, path, "is of another"
                            " tokenizer than this run's; remove it, or save"
                            " into another directory");
    return status;
}

typedef enum status action(const char *original, const char *path,
                           struct error *error);

static enum status act_on(const struct source *source, action *act,
                          const char *directory, const char *name,
                          struct error *error)
{
    char *original, *path;
    enum status status = original_of(source, name, &original, error);
    if (status != STATUS_OK)
        return status;
    path = join(directory, name);
    if (path == NULL)
        status = file_error(error, STATUS_NO_MEMORY, name, "no memory");
    else
        status = act(original, path, error);
    free(original);
    free(path);
    return status;
}

static enum status act_on_all(const struct source *source, action *act,
                              const char *directory, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t k = 0; k < sizeof names / sizeof *names
         && status == STATUS_OK; k++)
        status = act_on(source, act, directory, names[k], error);
    return status;
}

enum status tokenizer_files_copy(const char *model_path,
                                 const char *tokenizer_path, int vocab_size,
                                 const char *directory, struct error *error)
{
    struct source source;
    enum status status = source_of(&source, model_path, tokenizer_path,
                                   vocab_size, error);
    if (status == STATUS_OK)
        status = act_on_all(&source, copy, directory, error);
    free(source.place);
    return status;
}

enum status tokenizer_files_check(const char *model_path,
                                  const char *tokenizer_path, int vocab_size,
                                  const char *directory, struct error *error)
{
    struct source source;
    enum status status = source_of(&source, model_path, tokenizer_path,
                                   vocab_size, error);
    if (status == STATUS_OK)
        status = act_on_all(&source, compare, directory, error);
    if (status == STATUS_OK)
        status = act_on(&source, compare, directory, source.sized, error);
    free(source.place);
    return status;
}
