#include "golden.h"
#include <cjson/cJSON.h>
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

static unsigned char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "cannot open golden %s", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    ck_assert_msg(size > 8, "golden %s is too short", path);
    rewind(file);
    unsigned char *bytes = malloc((size_t)size);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, (size_t)size, file), (size_t)size);
    fclose(file);
    *length = (size_t)size;
    return bytes;
}

static void fill_tensor(struct golden_tensor *tensor, const cJSON *entry,
                        const unsigned char *data)
{
    const cJSON *shape = cJSON_GetObjectItem(entry, "shape"), *size;
    const cJSON *offsets = cJSON_GetObjectItem(entry, "data_offsets");
    const char *dtype = cJSON_GetObjectItem(entry, "dtype")->valuestring;
    const unsigned char *from =
        data + (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
    tensor->name = entry->string;
    tensor->count = 1;
    cJSON_ArrayForEach(size, shape) {
        ck_assert_int_lt(tensor->rank, GOLDEN_RANK_MAX);
        tensor->shape[tensor->rank++] = size->valueint;
        tensor->count *= (size_t)size->valueint;
    }
    if (strcmp(dtype, "F32") == 0) {
        tensor->f32 = malloc(tensor->count * sizeof (float));
        memcpy(tensor->f32, from, tensor->count * sizeof (float));
    } else if (strcmp(dtype, "I64") == 0) {
        tensor->ids = malloc(tensor->count * sizeof (int32_t));
        for (size_t i = 0; i < tensor->count; i++) {
            int64_t value;
            memcpy(&value, from + i * sizeof value, sizeof value);
            tensor->ids[i] = (int32_t)value;
        }
    }
}

struct golden *golden_open(const char *name)
{
    char path[256];
    size_t length, header_length = 0;
    snprintf(path, sizeof path, "%s/%s.safetensors", GOLDEN_DIR, name);
    unsigned char *bytes = read_file(path, &length);
    for (int i = 7; i >= 0; i--)
        header_length = header_length << 8 | bytes[i];
    cJSON *header = cJSON_ParseWithLength((char *)bytes + 8, header_length);
    ck_assert_msg(header != NULL, "golden %s: bad header", path);
    struct golden *golden = calloc(1, sizeof *golden);
    golden->header = header;
    golden->tensors = calloc((size_t)cJSON_GetArraySize(header),
                             sizeof *golden->tensors);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header)
        if (strcmp(entry->string, "__metadata__") != 0)
            fill_tensor(&golden->tensors[golden->count++], entry,
                        bytes + 8 + header_length);
    free(bytes);
    return golden;
}

void golden_close(struct golden *golden)
{
    for (size_t i = 0; i < golden->count; i++) {
        free(golden->tensors[i].f32);
        free(golden->tensors[i].ids);
    }
    cJSON_Delete(golden->header);
    free(golden->tensors);
    free(golden);
}

const struct golden_tensor *golden_get(const struct golden *golden,
                                       const char *format, ...)
{
    char name[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (size_t i = 0; i < golden->count; i++)
        if (strcmp(golden->tensors[i].name, name) == 0)
            return &golden->tensors[i];
    ck_abort_msg("the golden has no tensor %s", name);
    return NULL;
}

double golden_number(const struct golden *golden, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItem(golden->header,
                                                "__metadata__");
    const cJSON *value = cJSON_GetObjectItem(metadata, key);
    ck_assert_msg(value != NULL, "the golden has no metadata %s", key);
    return strtod(value->valuestring, NULL);
}
