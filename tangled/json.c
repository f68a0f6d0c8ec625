#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "json.h"

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum status json_unique(const cJSON *object, struct error *error)
{
    const size_t count = (size_t)cJSON_GetArraySize(object);
    const char **keys = malloc((count + 1) * sizeof *keys);
    if (keys == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for its keys");
    size_t filled = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
        keys[filled++] = item->string;
    qsort(keys, count, sizeof *keys, compare);
    enum status status = STATUS_OK;
    for (size_t k = 1; k < count && status == STATUS_OK; k++)
        if (strcmp(keys[k - 1], keys[k]) == 0)
            status = error_set(error, STATUS_FORMAT, "\"%.64s\": given"
                               " twice", keys[k]);
    free(keys);
    return status;
}

static bool holds_zero(const char *text, size_t length)
{
    for (size_t k = 0; k < length; k++) {
        if (text[k] == '\0')
            return true;
        if (text[k] == '\\') {
            if (length - k >= 6 && memcmp(text + k, "\\u0000", 6) == 0)
                return true;
            k++;
        }
    }
    return false;
}

enum status json_parse(cJSON **object, const char *text, size_t length,
                       struct error *error)
{
    if (holds_zero(text, length))
        return error_set(error, STATUS_FORMAT, "holds a zero character");
    const char *end = NULL;
    cJSON *made = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    enum status status = STATUS_OK;
    while (made != NULL && end < text + length
           && strchr(" \t\r\n", *end) != NULL)
        end++;
    if (!cJSON_IsObject(made) || end != text + length)
        status = error_set(error, STATUS_FORMAT,
                           "expected one JSON object");
    else
        status = json_unique(made, error);
    if (status == STATUS_OK)
        *object = made;
    else
        cJSON_Delete(made);
    return status;
}
