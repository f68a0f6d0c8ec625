#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file.h"
#include "json.h"
#include "tokenizer.h"

enum { BYTES = 256 };

enum { FILE_BYTES_MAX = 64 << 20 };

static enum status read_small(const char *path, unsigned char **bytes,
                              size_t *length, struct error *error)
{
    struct stat facts;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode))
        return file_error(error, STATUS_IO, path, "is not a regular file");
    if (stat(path, &facts) == 0 && facts.st_size > FILE_BYTES_MAX)
        return file_error(error, STATUS_FORMAT, path,
                          "longer than 64 MiB: not a tokenizer's");
    return file_read(path, bytes, length, error);
}

struct path { char text[4096]; };

static bool spell(struct path *path, const char *directory, const char *name)
{
    const int length = snprintf(path->text, sizeof path->text, "%s/%s",
                                directory, name);
    return length >= 0 && (size_t)length < sizeof path->text;
}

static bool has(const char *directory, const char *name)
{
    struct path path;
    struct stat facts;
    return spell(&path, directory, name) && stat(path.text, &facts) == 0;
}

static bool is_directory(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

static enum status open_merges(struct tokenizer **tokenizer,
                               const char *directory, struct error *error)
{
    static const char *const names[] = {"vocab.json", "merges.txt"};
    unsigned char *bytes[2] = {NULL, NULL};
    size_t lengths[2];
    struct path path;
    struct error inner = {STATUS_OK, ""};
    enum status status = STATUS_OK;
    for (int k = 0; k < 2 && status == STATUS_OK; k++)
        status = spell(&path, directory, names[k])
            ? read_small(path.text, &bytes[k], &lengths[k], error)
            : error_set(error, STATUS_IO, "%s: the path is too long",
                        names[k]);
    if (status == STATUS_OK) {
        status = tokenizer_of_merges(tokenizer, (const char *)bytes[0],
                                     lengths[0], (const char *)bytes[1],
                                     lengths[1], &inner);
        if (status != STATUS_OK)
            file_error(error, status, directory, inner.message);
    }
    free(bytes[0]);
    free(bytes[1]);
    return status;
}

static enum status open_scores(struct tokenizer **tokenizer,
                               const char *path, int vocab_size,
                               struct error *error)
{
    struct error inner = {STATUS_OK, ""};
    unsigned char *bytes = NULL;
    size_t length = 0;
    enum status status = read_small(path, &bytes, &length, error);
    if (status != STATUS_OK)
        return status;
    status = tokenizer_of_scores(tokenizer, bytes, length, vocab_size,
                                 &inner);
    free(bytes);
    if (status != STATUS_OK)
        file_error(error, status, path, inner.message);
    return status;
}

static enum status open_in(struct tokenizer **tokenizer,
                           const char *directory, int vocab_size,
                           struct error *error)
{
    char sized[32];
    struct path path;
    snprintf(sized, sizeof sized, "tok%d.bin", vocab_size);
    const char *const names[] = {sized, "tokenizer.bin"};
    if (has(directory, "vocab.json") || has(directory, "merges.txt"))
        return open_merges(tokenizer, directory, error);
    for (int k = 0; k < 2; k++)
        if (has(directory, names[k]) && spell(&path, directory, names[k]))
            return open_scores(tokenizer, path.text, vocab_size, error);
    return file_error(error, STATUS_INVALID, directory, "has neither"
                      " vocab.json and merges.txt nor tokenizer.bin, and text"
                      " without them needs vocab_size 256");
}

static void directory_of(struct path *directory, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL)
        snprintf(directory->text, sizeof directory->text, ".");
    else
        snprintf(directory->text, sizeof directory->text, "%.*s",
                 length == 0 ? 1 : (int)length, path);
}

static enum status open_named(struct tokenizer **tokenizer, const char *path,
                              int vocab_size, struct error *error)
{
    struct path directory;
    directory_of(&directory, path);
    if (strcmp(path, "bytes") == 0)
        return tokenizer_of_bytes(tokenizer, error);
    if (is_directory(path))
        return open_in(tokenizer, path, vocab_size, error);
    const char *slash = strrchr(path, '/');
    if (strcmp(slash != NULL ? slash + 1 : path, "vocab.json") == 0)
        return open_merges(tokenizer, directory.text, error);
    return open_scores(tokenizer, path, vocab_size, error);
}

static enum status open_beside(struct tokenizer **tokenizer,
                               const char *model_path, int vocab_size,
                               struct error *error)
{
    struct path directory;
    directory_of(&directory, model_path);
    enum status status = open_in(tokenizer, is_directory(model_path)
                                 ? model_path : directory.text, vocab_size,
                                 error);
    if (status == STATUS_INVALID && vocab_size == BYTES)
        return tokenizer_of_bytes(tokenizer, error);
    return status;
}

enum status tokenizer_open(struct tokenizer **tokenizer,
                           const char *model_path,
                           const char *tokenizer_path, int vocab_size,
                           struct error *error)
{
    struct tokenizer *made = NULL;
    enum status status = tokenizer_path != NULL
        ? open_named(&made, tokenizer_path, vocab_size, error)
        : open_beside(&made, model_path, vocab_size, error);
    if (status != STATUS_OK)
        return status;
    if (vocab_size > 0 && tokenizer_count(made) > vocab_size) {
        status = error_set(error, STATUS_FORMAT, "the tokenizer has %d ids,"
                           " and the model %d", tokenizer_count(made),
                           vocab_size);
        tokenizer_close(&made);
        return status;
    }
    *tokenizer = made;
    return STATUS_OK;
}

static enum status take_end(struct text_ends *ends, const cJSON *item,
                            int vocab_size, struct error *error)
{
    const double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(id >= 0 && id <= INT32_MAX && id == (double)(int32_t)id))
        return error_set(error, STATUS_FORMAT,
                         "eos_token_id: expected ids, or null");
    if (id >= vocab_size || text_ends_with(ends, (int32_t)id))
        return STATUS_OK;
    if (ends->count == TEXT_ENDS_MAX)
        return error_set(error, STATUS_FORMAT, "eos_token_id: expected at"
                         " most %d ids", TEXT_ENDS_MAX);
    ends->ids[ends->count++] = (int32_t)id;
    return STATUS_OK;
}

static enum status take_ends(struct text_ends *ends, bool *said,
                             const cJSON *item, int vocab_size,
                             struct error *error)
{
    enum status status = STATUS_OK;
    if (item == NULL || cJSON_IsNull(item))
        return STATUS_OK;
    *said = true;
    if (!cJSON_IsArray(item))
        return take_end(ends, item, vocab_size, error);
    for (const cJSON *one = item->child; one != NULL && status == STATUS_OK;
         one = one->next)
        status = take_end(ends, one, vocab_size, error);
    return status;
}

static enum status ask_file(struct text_ends *ends, bool *said,
                            const char *directory, const char *name,
                            int vocab_size, struct error *error)
{
    struct path path;
    struct error inner = {STATUS_OK, ""};
    unsigned char *bytes = NULL;
    size_t length = 0;
    cJSON *object = NULL;
    if (!has(directory, name) || !spell(&path, directory, name))
        return STATUS_OK;
    enum status status = read_small(path.text, &bytes, &length, error);
    if (status != STATUS_OK)
        return status;
    status = json_parse(&object, (const char *)bytes, length, &inner);
    if (status == STATUS_OK)
        status = take_ends(ends, said, cJSON_GetObjectItemCaseSensitive(
                           object, "eos_token_id"), vocab_size, &inner);
    cJSON_Delete(object);
    free(bytes);
    return status == STATUS_OK ? status
           : file_error(error, status, path.text, inner.message);
}

enum status text_ends_read(struct text_ends *ends, const char *model_path,
                           const struct tokenizer *tokenizer, int vocab_size,
                           struct error *error)
{
    static const char *const names[] = {"generation_config.json",
                                        "config.json"};
    const size_t length = strlen(model_path);
    const bool llama2c = !is_directory(model_path) && length > 4
        && strcmp(model_path + length - 4, ".bin") == 0;
    struct text_ends made = {.count = 0};
    bool said = false;
    struct path directory;
    directory_of(&directory, model_path);
    for (int k = 0; k < 2 && !said && !llama2c; k++) {
        const enum status status = ask_file(
            &made, &said, is_directory(model_path) ? model_path
            : directory.text, names[k], vocab_size, error);
        if (status != STATUS_OK)
            return status;
    }
    if (!said && tokenizer != NULL && tokenizer_eos(tokenizer) >= 0)
        made.ids[made.count++] = tokenizer_eos(tokenizer);
    *ends = made;
    return STATUS_OK;
}

bool text_ends_with(const struct text_ends *ends, int32_t id)
{
    for (int k = 0; k < ends->count; k++)
        if (ends->ids[k] == id)
            return true;
    return false;
}
