#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "safetensors.h"
#include "tensor.h"

static const struct { const char *name; size_t size; } dtypes[] = {
    [DTYPE_F64] = {"F64", 8},   [DTYPE_F32] = {"F32", 4},
    [DTYPE_F16] = {"F16", 2},   [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_I64] = {"I64", 8},   [DTYPE_U64] = {"U64", 8},
    [DTYPE_I32] = {"I32", 4},   [DTYPE_U32] = {"U32", 4},
    [DTYPE_I16] = {"I16", 2},   [DTYPE_U16] = {"U16", 2},
    [DTYPE_I8] = {"I8", 1},     [DTYPE_U8] = {"U8", 1},
    [DTYPE_BOOL] = {"BOOL", 1}
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_size(enum dtype dtype)
{
    return dtypes[dtype].size;
}

struct safetensors {
    const unsigned char *bytes; /* the file's contents */
    size_t length;
    unsigned char *owned;       /* the same, to be freed; or NULL */
    cJSON *header;              /* names and metadata live here */
    const unsigned char *data;  /* what follows the header */
    size_t data_size;
    struct safetensors_entry *entries;   /* sorted by name */
    size_t count;
};
/* Zero bytes, and the escape that JSON spells them with. */
static bool holds_zero(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\0')
            return true;
        if (text[i] != '\\')
            continue;
        if (length - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
            return true;
        i++;    /* what is escaped, a backslash perhaps, is not a start */
    }
    return false;
}
static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_keys(const cJSON *object, struct error *error)
{
    const size_t count = (size_t)cJSON_GetArraySize(object);
    const char **keys = malloc((count + 1) * sizeof *keys);
    if (keys == NULL)
        return error_set(error, STATUS_NO_MEMORY, "header: no memory");
    size_t filled = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
        keys[filled++] = item->string;
    qsort(keys, count, sizeof *keys, compare_strings);
    enum status status = STATUS_OK;
    for (size_t i = 1; i < count && status == STATUS_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = error_set(error, STATUS_FORMAT, "duplicate name \"%s\"",
                               keys[i]);
    free(keys);
    return status;
}
static bool whole_number(const cJSON *item, int64_t *value)
{
    const double largest = 0x1p53;   /* beyond it doubles skip integers */
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0)
        || item->valuedouble > largest)
        return false;
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static enum status read_header(struct safetensors *file, struct error *error)
{
    if (file->length < 8)
        return error_set(error, STATUS_FORMAT, "%zu bytes are too few: the"
                         " header's length alone takes 8", file->length);
    uint64_t size = 0;
    for (int i = 7; i >= 0; i--)
        size = size << 8 | file->bytes[i];
    if (size > file->length - 8)
        return error_set(error, STATUS_FORMAT, "header: %llu bytes announced,"
                         " %zu bytes follow", (unsigned long long)size,
                         file->length - 8);
    const char *text = (const char *)file->bytes + 8;
    if (size == 0 || text[0] != '{')
        return error_set(error, STATUS_FORMAT,
                         "header: expected a JSON object");
    if (holds_zero(text, (size_t)size))
        return error_set(error, STATUS_FORMAT,
                         "header: holds a zero character");
    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(text, (size_t)size, &end, 0);
    if (file->header == NULL)
        return error_set(error, STATUS_FORMAT, "header: not JSON near byte %td",
                         end != NULL ? end - text : 0);
    for (; end < text + size; end++)
        if (*end != ' ')
            return error_set(error, STATUS_FORMAT, "header: byte %td after its"
                             " end is not a space", end - text);
    file->data = file->bytes + 8 + size;
    file->data_size = file->length - 8 - (size_t)size;
    return STATUS_OK;
}
static enum status refuse_tensor(struct error *error, const char *name,
                                 const char *reason)
{
    return error_set(error, STATUS_FORMAT, "tensor \"%s\": %s", name, reason);
}

static enum status read_dtype(const cJSON *item,
                              struct safetensors_entry *entry,
                              struct error *error)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsString(dtype))
        return refuse_tensor(error, entry->name, "dtype: expected a string");
    for (int k = 0; k < DTYPES; k++)
        if (strcmp(dtypes[k].name, dtype->valuestring) == 0) {
            entry->dtype = (enum dtype)k;
            return STATUS_OK;
        }
    return error_set(error, STATUS_FORMAT, "tensor \"%s\": dtype: \"%s\" is"
                     " not known", entry->name, dtype->valuestring);
}
static enum status read_shape(const cJSON *item,
                              struct safetensors_entry *entry,
                              struct error *error)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *size;
    if (!cJSON_IsArray(shape)
        || cJSON_GetArraySize(shape) > SAFETENSORS_RANK_MAX)
        return refuse_tensor(error, entry->name,
                             "shape: expected a list of at most 8 sizes");
    entry->rank = 0;
    cJSON_ArrayForEach(size, shape)
        if (!whole_number(size, &entry->shape[entry->rank++]))
            return refuse_tensor(error, entry->name,
                                 "shape: expected sizes from 0 to 2^53");
    return STATUS_OK;
}
/* The bytes of dtype and shape; false when they overflow. */
static bool bytes_of(const struct safetensors_entry *entry, size_t *bytes)
{
    size_t size = dtype_size(entry->dtype);
    for (int i = 0; i < entry->rank; i++)
        if (!size_multiply(size, (size_t)entry->shape[i], &size))
            return false;
    *bytes = size;
    return true;
}

static enum status read_span(const struct safetensors *file,
                             const cJSON *item,
                             struct safetensors_entry *entry,
                             struct error *error)
{
    const cJSON *offsets =
        cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t begin, end;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2
        || !whole_number(cJSON_GetArrayItem(offsets, 0), &begin)
        || !whole_number(cJSON_GetArrayItem(offsets, 1), &end))
        return refuse_tensor(error, entry->name, "data_offsets: expected two"
                             " whole numbers");
    if (begin > end || (uint64_t)end > file->data_size)
        return error_set(error, STATUS_FORMAT, "tensor \"%s\": data_offsets:"
                         " %lld to %lld of %zu bytes", entry->name,
                         (long long)begin, (long long)end, file->data_size);
    if (!bytes_of(entry, &entry->bytes))
        return refuse_tensor(error, entry->name, "shape: too large");
    if (entry->bytes != (size_t)(end - begin))
        return error_set(error, STATUS_FORMAT, "tensor \"%s\": data_offsets:"
                         " %lld bytes, shape and dtype ask for %zu", entry->name,
                         (long long)(end - begin), entry->bytes);
    entry->data = file->data + begin;
    return STATUS_OK;
}

static enum status read_entry(const struct safetensors *file,
                              const cJSON *item,
                              struct safetensors_entry *entry,
                              struct error *error)
{
    entry->name = item->string;
    for (const char *c = entry->name; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20)
            return error_set(error, STATUS_FORMAT,
                             "a tensor's name holds a control character");
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3)
        return refuse_tensor(error, entry->name, "expected an object of"
                             " dtype, shape and data_offsets");
    enum status status = read_dtype(item, entry, error);
    if (status == STATUS_OK)
        status = read_shape(item, entry, error);
    if (status == STATUS_OK)
        status = read_span(file, item, entry, error);
    return status;
}
static int compare_places(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    const unsigned char *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum status check_layout(struct safetensors *file,
                                struct error *error)
{
    const unsigned char *at = file->data;
    qsort(file->entries, file->count, sizeof *file->entries, compare_places);
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        const unsigned char *begin = entry->data;
        if (begin != at)
            return refuse_tensor(error, entry->name, begin < at
                                 ? "data_offsets: overlaps another tensor"
                                 : "data_offsets: leaves a hole before it");
        at += entry->bytes;
    }
    const unsigned char *end = file->data + file->data_size;
    if (at != end)
        return error_set(error, STATUS_FORMAT, "%td bytes after the last tensor",
                         end - at);
    qsort(file->entries, file->count, sizeof *file->entries, compare_names);
    return STATUS_OK;
}

static enum status check_metadata(const cJSON *metadata, struct error *error)
{
    const cJSON *item;
    if (!cJSON_IsObject(metadata))
        return error_set(error, STATUS_FORMAT,
                         "__metadata__: expected an object");
    cJSON_ArrayForEach(item, metadata)
        if (!cJSON_IsString(item))
            return error_set(error, STATUS_FORMAT, "__metadata__: \"%s\":"
                             " expected a string", item->string);
    return check_keys(metadata, error);
}

static enum status read_entries(struct safetensors *file,
                                struct error *error)
{
    const size_t room = (size_t)cJSON_GetArraySize(file->header) + 1;
    file->entries = calloc(room, sizeof *file->entries);
    if (file->entries == NULL)
        return error_set(error, STATUS_NO_MEMORY, "header: no memory");
    enum status status = check_keys(file->header, error);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header) {
        if (status != STATUS_OK)
            break;
        if (strcmp(item->string, "__metadata__") == 0)
            status = check_metadata(item, error);
        else
            status = read_entry(file, item, &file->entries[file->count++],
                                error);
    }
    return status;
}

void safetensors_close(struct safetensors **file)
{
    if (file == NULL || *file == NULL)
        return;
    cJSON_Delete((*file)->header);
    free((*file)->entries);
    free((*file)->owned);
    free(*file);
    *file = NULL;
}

static enum status read_tensors(struct safetensors *file, const char *path,
                                struct error *error)
{
    struct error reason = { .status = STATUS_OK };
    enum status status = read_header(file, &reason);
    if (status == STATUS_OK)
        status = read_entries(file, &reason);
    if (status == STATUS_OK)
        status = check_layout(file, &reason);
    return status == STATUS_OK ? status
           : file_error(error, status, path, reason.message);
}

enum status safetensors_open(struct safetensors **file, const char *path,
                             struct error *error)
{
    struct safetensors *made = calloc(1, sizeof *made);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    enum status status = file_read(path, &made->owned, &made->length, error);
    made->bytes = made->owned;
    if (status == STATUS_OK)
        status = read_tensors(made, path, error);
    if (status == STATUS_OK)
        *file = made;
    else
        safetensors_close(&made);
    return status;
}


enum status safetensors_parse(struct safetensors **file, const char *name,
                              const void *bytes, size_t length,
                              struct error *error)
{
    struct safetensors *made = calloc(1, sizeof *made);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, name, "no memory");
    made->bytes = bytes;
    made->length = length;
    const enum status status = read_tensors(made, name, error);
    if (status == STATUS_OK)
        *file = made;
    else
        safetensors_close(&made);
    return status;
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_entry *safetensors_at(
    const struct safetensors *file, size_t index)
{
    return &file->entries[index];
}

const struct safetensors_entry *safetensors_find(
    const struct safetensors *file, const char *name)
{
    const struct safetensors_entry key = { .name = name };
    return bsearch(&key, file->entries, file->count, sizeof key,
                   compare_names);
}

const char *safetensors_metadata(const struct safetensors *file,
                                 const char *key)
{
    const cJSON *metadata =
        cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    return cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(metadata, key));
}


struct text {
    char *bytes;        /* NULL: only count */
    size_t length;
};

static void put(struct text *text, const char *string)
{
    const size_t length = strlen(string);
    if (text->bytes != NULL)
        memcpy(text->bytes + text->length, string, length);
    text->length += length;
}

static void put_number(struct text *text, uint64_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    put(text, digits);
}

static void put_quoted(struct text *text, const char *string)
{
    put(text, "\"");
    for (; *string != '\0'; string++) {
        char spelled[8] = { *string };
        if (*string == '"' || *string == '\\')
            snprintf(spelled, sizeof spelled, "\\%c", *string);
        else if ((unsigned char)*string < 0x20)
            snprintf(spelled, sizeof spelled, "\\u%04x", (unsigned)*string);
        put(text, spelled);
    }
    put(text, "\"");
}

struct contents {
    const struct safetensors_entry **entries;   /* sorted */
    size_t count;
    const struct safetensors_pair *metadata;
    size_t metadata_count;
};

static void put_metadata(struct text *text, const struct contents *contents)
{
    put(text, "\"__metadata__\":");
    for (size_t i = 0; i < contents->metadata_count; i++) {
        put(text, i == 0 ? "{" : ",");
        put_quoted(text, contents->metadata[i].key);
        put(text, ":");
        put_quoted(text, contents->metadata[i].value);
    }
    put(text, "}");
}

static void put_entry(struct text *text,
                      const struct safetensors_entry *entry, size_t begin)
{
    put_quoted(text, entry->name);
    put(text, ":{\"dtype\":");
    put_quoted(text, dtype_name(entry->dtype));
    put(text, ",\"shape\":[");
    for (int i = 0; i < entry->rank; i++) {
        put(text, i == 0 ? "" : ",");
        put_number(text, (uint64_t)entry->shape[i]);
    }
    put(text, "],\"data_offsets\":[");
    put_number(text, begin);
    put(text, ",");
    put_number(text, begin + entry->bytes);
    put(text, "]}");
}

static void put_header(struct text *text, const struct contents *contents)
{
    size_t begin = 0;
    size_t alignment = 64;
    for (size_t i = 0; i < contents->count; i++)
        if (contents->entries[i]->bytes % alignment != 0)
            alignment = 8;
    put(text, "{");
    if (contents->metadata_count > 0)
        put_metadata(text, contents);
    for (size_t i = 0; i < contents->count; i++) {
        if (i > 0 || contents->metadata_count > 0)
            put(text, ",");
        put_entry(text, contents->entries[i], begin);
        begin += contents->entries[i]->bytes;
    }
    put(text, "}");
    while (text->length % alignment != 0)
        put(text, " ");
}

/* NULL: nothing. */
static const char *fault_of(const struct safetensors_entry *entry)
{
    size_t bytes;
    for (const char *c = entry->name; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20)
            return "name: holds a control character";
    if (strcmp(entry->name, "__metadata__") == 0)
        return "name: is reserved";
    if ((unsigned)entry->dtype >= DTYPES)
        return "dtype: not known";
    if (entry->rank < 0 || entry->rank > SAFETENSORS_RANK_MAX)
        return "rank: expected 0 to 8";
    for (int i = 0; i < entry->rank; i++)
        if (entry->shape[i] < 0 || entry->shape[i] > (int64_t)1 << 53)
            return "shape: expected sizes from 0 to 2^53";
    if (!bytes_of(entry, &bytes) || bytes != entry->bytes)
        return "bytes: not what dtype and shape ask for";
    return entry->data == NULL && bytes > 0 ? "data: is NULL" : NULL;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum status check_contents(const struct contents *contents,
                                  struct error *error)
{
    for (size_t i = 0; i < contents->count; i++) {
        const struct safetensors_entry *entry = contents->entries[i];
        if (entry->name == NULL)
            return error_set(error, STATUS_INVALID, "tensor %zu: name: is NULL", i);
        const char *fault = fault_of(entry);
        if (fault != NULL)
            return error_set(error, STATUS_INVALID, "tensor \"%s\": %s",
                             entry->name, fault);
    }
    qsort(contents->entries, contents->count, sizeof *contents->entries,
          compare_entries);
    for (size_t i = 1; i < contents->count; i++)
        if (compare_entries(&contents->entries[i - 1],
                            &contents->entries[i]) == 0)
            return error_set(error, STATUS_INVALID, "duplicate name \"%s\"",
                             contents->entries[i]->name);
    const struct safetensors_pair *pairs = contents->metadata;
    for (size_t i = 0; i < contents->metadata_count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(pairs[i].key, pairs[j].key) == 0)
                return error_set(error, STATUS_INVALID,
                                 "metadata: duplicate key \"%s\"", pairs[i].key);
    return STATUS_OK;
}


static enum status draft_contents(struct file_draft *draft, const char *path,
                                  const struct contents *contents,
                                  struct file_part *parts,
                                  struct error *error)
{
    struct text text = { NULL, 8 };
    put_header(&text, contents);
    const uint64_t size = text.length - 8;
    text.bytes = malloc(text.length);
    if (text.bytes == NULL)
        return file_error(error, STATUS_NO_MEMORY, path,
                          "no memory for the header");
    text.length = 8;
    put_header(&text, contents);
    for (int i = 0; i < 8; i++)
        text.bytes[i] = (char)(size >> 8 * i & 0xff);
    parts[0] = (struct file_part){ text.bytes, text.length };
    for (size_t i = 0; i < contents->count; i++)
        parts[i + 1] = (struct file_part){
            contents->entries[i]->data, contents->entries[i]->bytes
        };
    enum status status = file_draft_write(draft, path, parts,
                                          contents->count + 1, error);
    free(text.bytes);
    return status;
}

enum status safetensors_draft(struct file_draft *draft, const char *path,
                              const struct safetensors_entry *entries,
                              size_t count,
                              const struct safetensors_pair *metadata,
                              size_t metadata_count, struct error *error)
{
    struct contents contents = {
        malloc((count + 1) * sizeof *contents.entries), count,
        metadata, metadata_count
    };
    struct file_part *parts = malloc((count + 1) * sizeof *parts);
    enum status status = STATUS_OK;
    if (contents.entries == NULL || parts == NULL)
        status = file_error(error, STATUS_NO_MEMORY, path, "no memory");
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        contents.entries[i] = &entries[i];
    if (status == STATUS_OK)
        status = check_contents(&contents, error);
    if (status == STATUS_OK)
        status = draft_contents(draft, path, &contents, parts, error);
    free(parts);
    free(contents.entries);
    return status;
}

enum status safetensors_write(const char *path,
                              const struct safetensors_entry *entries,
                              size_t count,
                              const struct safetensors_pair *metadata,
                              size_t metadata_count, struct error *error)
{
    struct file_draft draft;
    enum status status = safetensors_draft(&draft, path, entries, count,
                                           metadata, metadata_count, error);
    return status == STATUS_OK ? file_draft_publish(&draft, error) : status;
}
