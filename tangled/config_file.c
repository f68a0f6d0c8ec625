#include "config.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct field {
    const char *name;
    size_t offset;       /* in struct gpt_config */
    bool integer;        /* an int; else a double */
    bool required;
    double fallback;     /* of a field that may be absent */
};

#define FIELD(name) #name, offsetof(struct gpt_config, name)
static const struct field fields[] = {
    { FIELD(vocab_size), true, true, 0 },
    { FIELD(context_length), true, true, 0 },
    { FIELD(d_model), true, true, 0 },
    { FIELD(n_layers), true, true, 0 },
    { FIELD(n_heads), true, true, 0 },
    { FIELD(d_ff), true, true, 0 },
    { FIELD(dropout), false, false, 0 },
    { FIELD(layer_norm_eps), false, false, 1e-5 },
    { FIELD(tanh_gelu), true, false, 0 },
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static void field_set(const struct field *field, struct gpt_config *config,
                      double number)
{
    void *at = (char *)config + field->offset;
    if (field->integer)
        *(int *)at = (int)number;
    else
        *(double *)at = number;
}

static double field_get(const struct field *field,
                        const struct gpt_config *config)
{
    const void *at = (const char *)config + field->offset;
    return field->integer ? *(const int *)at : *(const double *)at;
}

/* Stores one JSON value as the field that it is for. */
static enum status take_number(struct gpt_config *config,
                               const struct field *field,
                               const cJSON *value, struct error *error)
{
    double number = cJSON_GetNumberValue(value);
    if (!cJSON_IsNumber(value))
        return error_set(error, STATUS_FORMAT,
                         "%s: expected a number, got %s", field->name,
                         cJSON_IsString(value) ? "a string"
                         : cJSON_IsBool(value) ? "true or false"
                         : cJSON_IsNull(value) ? "null"
                         : cJSON_IsArray(value) ? "an array" : "an object");
    if (!isfinite(number))
        return error_set(error, STATUS_FORMAT,
                         "%s: expected a finite number, got one beyond 1e308",
                         field->name);
    if (field->integer && (number < INT_MIN || number > INT_MAX))
        return error_set(error, STATUS_FORMAT,
                         "%s: expected an integer up to %d, got %g",
                         field->name, INT_MAX, number);
    if (field->integer && number != floor(number))
        return error_set(error, STATUS_FORMAT,
                         "%s: expected an integer, got %.17g",
                         field->name, number);
    field_set(field, config, number);
    return STATUS_OK;
}

static enum status take_fields(struct gpt_config *config,
                               const cJSON *object, struct error *error)
{
    bool seen[FIELDS] = { false };
    for (int i = 0; i < FIELDS; i++)
        field_set(&fields[i], config, fields[i].fallback);
    for (const cJSON *child = object->child; child != NULL;
         child = child->next) {
        int index = 0;
        while (index < FIELDS
               && strcmp(fields[index].name, child->string) != 0)
            index++;
        if (index == FIELDS)
            return error_set(error, STATUS_FORMAT, "%.64s: no such field",
                             child->string);
        if (seen[index])
            return error_set(error, STATUS_FORMAT, "%s: given twice",
                             fields[index].name);
        seen[index] = true;
        enum status status = take_number(config, &fields[index], child,
                                         error);
        if (status != STATUS_OK)
            return status;
    }
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].required && !seen[i])
            return error_set(error, STATUS_FORMAT, "%s: missing",
                             fields[i].name);
    return STATUS_OK;
}

static int line_of(const char *text, const char *at)
{
    int line = 1;
    while (text < at)
        line += *text++ == '\n';
    return line;
}

enum status gpt_config_parse(struct gpt_config *config,
                             const char *text, size_t length,
                             struct error *error)
{
    struct gpt_config parsed;
    const char *end = NULL;
    for (size_t at = 0; at < length; at++)
        if (text[at] == '\0'
            || (length - at >= 6 && memcmp(text + at, "\\u0000", 6) == 0))
            return error_set(error, STATUS_FORMAT,
                             "a zero byte at offset %zu: not a config", at);
    cJSON *object = cJSON_ParseWithLengthOpts(text, length, &end, false);
    enum status status = STATUS_OK;
    const char *rest = object == NULL ? text : end;
    while (rest < text + length && strchr(" \t\r\n", *rest) != NULL)
        rest++;
    if (length == 0)
        status = error_set(error, STATUS_FORMAT,
                           "empty: expected a JSON object");
    else if (object == NULL)
        status = error_set(error, STATUS_FORMAT, "line %d: not JSON",
                           line_of(text, end));
    else if (rest < text + length)
        status = error_set(error, STATUS_FORMAT,
                           "line %d: something follows the JSON object",
                           line_of(text, rest));
    else if (!cJSON_IsObject(object))
        status = error_set(error, STATUS_FORMAT, "expected a JSON object");
    if (status == STATUS_OK)
        status = take_fields(&parsed, object, error);
    cJSON_Delete(object);
    if (status == STATUS_OK)
        status = gpt_config_check(&parsed, error);
    if (status == STATUS_OK)
        *config = parsed;
    return status;
}

enum { CONFIG_BYTES_MAX = 65536 };

/* text has room for one byte more than CONFIG_BYTES_MAX. */
static enum status read_small(const char *path, char *text, size_t *length,
                              struct error *error)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return error_set(error, STATUS_IO, "%s", strerror(errno));
    *length = fread(text, 1, CONFIG_BYTES_MAX + 1, file);
    int failure = ferror(file) ? errno : 0;
    fclose(file);
    if (failure != 0)
        return error_set(error, STATUS_IO, "%s", strerror(failure));
    if (*length > CONFIG_BYTES_MAX)
        return error_set(error, STATUS_FORMAT,
                         "longer than %d bytes: not a config",
                         (int)CONFIG_BYTES_MAX);
    return STATUS_OK;
}

enum status gpt_config_read(struct gpt_config *config, const char *path,
                            struct error *error)
{
    struct error inner = { STATUS_OK, "" };
    size_t length = 0;
    enum status status = STATUS_NO_MEMORY;
    char *text = malloc(CONFIG_BYTES_MAX + 1);
    if (text == NULL)
        error_set(&inner, status, "no memory to read it");
    else
        status = read_small(path, text, &length, &inner);
    if (status == STATUS_OK)
        status = gpt_config_parse(config, text, length, &inner);
    free(text);
    if (status != STATUS_OK) {
        size_t shown = 96, whole = strlen(path);
        error_set(error, status, "%s%s: %.150s", whole > shown ? "..." : "",
                  whole > shown ? path + whole - shown : path, inner.message);
    }
    return status;
}

enum { FORMATTED_MAX = 64 * (FIELDS + 1) };

enum status gpt_config_format(const struct gpt_config *config, char **text,
                              struct error *error)
{
    enum status status = gpt_config_check(config, error);
    if (status != STATUS_OK)
        return status;
    char *made = malloc(FORMATTED_MAX);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "config: no memory for its text");
    int at = snprintf(made, FORMATTED_MAX, "{");
    for (int i = 0; i < FIELDS; i++) {
        char number[32];
        if (fields[i].offset == offsetof(struct gpt_config, tanh_gelu)
            && config->tanh_gelu == 0)
            continue;
        double value = field_get(&fields[i], config);
        int digits = 1;
        do
            snprintf(number, sizeof number, "%.*g", digits, value);
        while (digits++ < 17 && strtod(number, NULL) != value);
        at += snprintf(made + at, (size_t)(FORMATTED_MAX - at),
                       "%s\n  \"%s\": %s", i == 0 ? "" : ",",
                       fields[i].name, number);
    }
    snprintf(made + at, (size_t)(FORMATTED_MAX - at), "\n}\n");
    *text = made;
    return STATUS_OK;
}
