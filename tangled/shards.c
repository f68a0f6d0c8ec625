#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file_map.h"
#include "json.h"
#include "shards.h"

struct shard {
    struct file_map map;        /* of no length for bytes of the caller */
    struct safetensors *tensors;
};

struct shards {
    struct shard *files;
    size_t file_count;
    const struct safetensors_entry **entries;    /* by name */
    size_t count, bytes;
};

void shards_close(struct shards **shards)
{
    if (shards == NULL || *shards == NULL)
        return;
    for (size_t k = 0; k < (*shards)->file_count; k++) {
        safetensors_close(&(*shards)->files[k].tensors);
        file_map_close(&(*shards)->files[k].map);
    }
    free((*shards)->files);
    free((*shards)->entries);
    free(*shards);
    *shards = NULL;
}

/* With room for that many files. */
static struct shards *make_shards(size_t files)
{
    struct shards *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->files = calloc(files, sizeof *made->files);
    if (made != NULL && made->files == NULL)
        shards_close(&made);
    return made;
}

static enum status add_file(struct shards *shards, const char *path,
                            struct error *error)
{
    struct shard shard = {{NULL, 0}, NULL};
    enum status status = file_map_open(&shard.map, path, error);
    if (status != STATUS_OK)
        return status;
    status = safetensors_parse(&shard.tensors, path, shard.map.bytes,
                               shard.map.length, error);
    if (status != STATUS_OK) {
        file_map_close(&shard.map);
        return status;
    }
    shards->bytes += shard.map.length;
    shards->count += safetensors_count(shard.tensors);
    shards->files[shards->file_count++] = shard;
    return STATUS_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum status order_tensors(struct shards *shards, const char *path,
                                 struct error *error)
{
    size_t filled = 0;
    shards->entries = malloc((shards->count + 1) * sizeof *shards->entries);
    if (shards->entries == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    for (size_t k = 0; k < shards->file_count; k++) {
        const struct safetensors *tensors = shards->files[k].tensors;
        for (size_t i = 0; i < safetensors_count(tensors); i++)
            shards->entries[filled++] = safetensors_at(tensors, i);
    }
    qsort(shards->entries, shards->count, sizeof *shards->entries,
          compare_entries);
    return STATUS_OK;
}

static int compare_lines(const void *a, const void *b)
{
    const struct shard_line *x = a, *y = b;
    const int files = strcmp(x->file, y->file);
    return files != 0 ? files : strcmp(x->tensor, y->tensor);
}

static enum status check_file_name(const char *name, struct error *error)
{
    bool plain = *name != '\0' && *name != '.' && strlen(name) < NAME_MAX;
    for (const char *c = name; *c != '\0'; c++)
        plain = plain && *c != '/' && (unsigned char)*c >= 0x20;
    if (!plain)
        return error_set(error, STATUS_FORMAT, "weight_map: \"%.64s\": expected"
                         " a file of the same directory", name);
    return STATUS_OK;
}

static enum status take_lines(const cJSON *map, struct shard_line **lines,
                              size_t *count, struct error *error)
{
    if (!cJSON_IsObject(map) || cJSON_GetArraySize(map) == 0)
        return error_set(error, STATUS_FORMAT, "weight_map: expected an"
                         " object of tensors and their files");
    enum status status = json_unique(map, error);
    if (status != STATUS_OK)
        return status;
    *lines = malloc((size_t)cJSON_GetArraySize(map) * sizeof **lines);
    if (*lines == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        if (!cJSON_IsString(item))
            return error_set(error, STATUS_FORMAT, "weight_map: \"%.64s\":"
                             " expected the name of a file", item->string);
        status = check_file_name(item->valuestring, error);
        if (status != STATUS_OK)
            return status;
        (*lines)[(*count)++] = (struct shard_line){item->valuestring,
                                                   item->string};
    }
    return STATUS_OK;
}

enum status shard_index_parse(struct shard_line **lines, size_t *count,
                              struct cJSON **json, const char *text,
                              size_t length, struct error *error)
{
    cJSON *object = NULL;
    enum status status = json_parse(&object, text, length, error);
    if (status != STATUS_OK)
        return status;
    struct shard_line *made = NULL;
    size_t filled = 0;
    status = take_lines(cJSON_GetObjectItemCaseSensitive(object,
                                                         "weight_map"),
                        &made, &filled, error);
    if (status != STATUS_OK) {
        free(made);
        cJSON_Delete(object);
        return status;
    }
    qsort(made, filled, sizeof *made, compare_lines);
    *lines = made;
    *count = filled;
    *json = object;
    return STATUS_OK;
}

static enum status check_shard(const struct safetensors *file,
                               const struct shard_line *lines, size_t count,
                               struct error *error)
{
    const size_t held = safetensors_count(file);
    for (size_t k = 0; k < count || k < held; k++) {
        const char *said = k < count ? lines[k].tensor : NULL;
        const char *found = k < held ? safetensors_at(file, k)->name : NULL;
        const int order = said == NULL ? 1 : found == NULL ? -1
                                           : strcmp(said, found);
        if (order < 0)
            return error_set(error, STATUS_FORMAT, "tensor \"%.64s\": the"
                             " index says that %.64s has it", said,
                             lines[0].file);
        if (order > 0)
            return error_set(error, STATUS_FORMAT, "tensor \"%.64s\": the"
                             " index does not say that %.64s has it", found,
                             lines[0].file);
    }
    return STATUS_OK;
}

static char *shard_path(const char *directory, const char *name)
{
    const size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", directory, name);
    return path;
}

static enum status add_listed(struct shards *shards, const char *directory,
                              const struct shard_line *lines, size_t count,
                              struct error *error)
{
    char *path = shard_path(directory, lines[0].file);
    if (path == NULL)
        return file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    enum status status = add_file(shards, path, error);
    if (status == STATUS_OK)
        status = check_shard(shards->files[shards->file_count - 1].tensors,
                             lines, count, error);
    free(path);
    return status;
}

static enum status add_all(struct shards *shards, const char *directory,
                           const struct shard_line *lines, size_t count,
                           struct error *error)
{
    enum status status = STATUS_OK;
    size_t end;
    for (size_t k = 0; k < count && status == STATUS_OK; k = end) {
        end = k + 1;
        while (end < count && strcmp(lines[k].file, lines[end].file) == 0)
            end++;
        status = add_listed(shards, directory, lines + k, end - k, error);
    }
    return status;
}

static enum status give_shards(struct shards **shards, struct shards *made,
                               enum status status, const char *path,
                               struct error *error)
{
    if (status == STATUS_OK)
        status = order_tensors(made, path, error);
    if (status == STATUS_OK)
        *shards = made;
    else
        shards_close(&made);
    return status;
}

enum status shards_open_file(struct shards **shards, const char *path,
                             struct error *error)
{
    struct shards *made = make_shards(1);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    return give_shards(shards, made, add_file(made, path, error), path,
                       error);
}

enum status shards_parse(struct shards **shards, const char *name,
                         const void *bytes, size_t length,
                         struct error *error)
{
    struct shards *made = make_shards(1);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, name, "no memory");
    const enum status status = safetensors_parse(&made->files[0].tensors,
                                                 name, bytes, length, error);
    if (status == STATUS_OK) {
        made->file_count = 1;
        made->count = safetensors_count(made->files[0].tensors);
        made->bytes = length;
    }
    return give_shards(shards, made, status, name, error);
}

static enum status open_lines(struct shards **shards, const char *directory,
                              const struct shard_line *lines, size_t count,
                              struct error *error)
{
    struct shards *made = make_shards(count);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    return give_shards(shards, made,
                       add_all(made, directory, lines, count, error),
                       directory, error);
}

static enum status open_index(struct shards **shards, const char *directory,
                              const char *path, struct error *error)
{
    struct file_map map;
    struct shard_line *lines = NULL;
    size_t count = 0;
    struct cJSON *json = NULL;
    struct error reason = {.status = STATUS_OK};
    enum status status = file_map_open(&map, path, error);
    if (status != STATUS_OK)
        return status;
    status = shard_index_parse(&lines, &count, &json,
                               (const char *)map.bytes, map.length, &reason);
    if (status != STATUS_OK)
        file_error(error, status, path, reason.message);
    else
        status = open_lines(shards, directory, lines, count, error);
    free(lines);
    cJSON_Delete(json);
    file_map_close(&map);
    return status;
}

enum status shards_open(struct shards **shards, const char *directory,
                        struct error *error)
{
    char *single = shard_path(directory, "model.safetensors");
    char *index = shard_path(directory, "model.safetensors.index.json");
    struct stat facts;
    enum status status;
    if (single == NULL || index == NULL)
        status = file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    else if (stat(single, &facts) != 0 && errno == ENOENT
             && stat(index, &facts) == 0)
        status = open_index(shards, directory, index, error);
    else
        status = shards_open_file(shards, single, error);
    free(single);
    free(index);
    return status;
}

size_t shards_count(const struct shards *shards)
{
    return shards->count;
}

const struct safetensors_entry *shards_at(const struct shards *shards,
                                          size_t index)
{
    return shards->entries[index];
}

size_t shards_find(const struct shards *shards, const char *name)
{
    const struct safetensors_entry key = {.name = name}, *wanted = &key;
    const struct safetensors_entry **found =
        bsearch(&wanted, shards->entries, shards->count,
                sizeof *shards->entries, compare_entries);
    return found == NULL ? shards->count : (size_t)(found - shards->entries);
}

size_t shards_bytes(const struct shards *shards)
{
    return shards->bytes;
}
