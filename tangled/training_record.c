#include "training_record.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { INTEGER, REAL, WORD };     /* int, double, uint64_t */

#define FIELD(key, kind, member) \
    { key, kind, offsetof(struct training_record, member) }
static const struct field {
    const char *key;
    enum kind kind;
    size_t offset;
} fields[RECORD_FIELDS] = {
    FIELD("batch", INTEGER, settings.batch),
    FIELD("tokens", INTEGER, settings.tokens),
    FIELD("steps", INTEGER, settings.steps),
    FIELD("warmup", INTEGER, settings.warmup),
    FIELD("learning_rate", REAL, settings.learning_rate),
    FIELD("weight_decay", REAL, settings.weight_decay),
    FIELD("step", WORD, step),
    FIELD("generator.state", WORD, generator_state),
    FIELD("generator.increment", WORD, generator_increment),
    FIELD("text.length", WORD, text_length),
    FIELD("text.fingerprint", WORD, text_fingerprint),
};

static void write_value(const struct training_record *record,
                        const struct field *field,
                        char text[RECORD_VALUE_MAX])
{
    const void *value = (const char *)record + field->offset;
    if (field->kind == INTEGER)
        snprintf(text, RECORD_VALUE_MAX, "%d", *(const int *)value);
    else if (field->kind == REAL)
        snprintf(text, RECORD_VALUE_MAX, "%.17g", *(const double *)value);
    else
        snprintf(text, RECORD_VALUE_MAX, "%" PRIu64,
                 *(const uint64_t *)value);
}

void training_record_write(const struct training_record *record,
                           char values[RECORD_FIELDS][RECORD_VALUE_MAX],
                           struct safetensors_pair *pairs)
{
    for (int i = 0; i < RECORD_FIELDS; i++) {
        write_value(record, &fields[i], values[i]);
        pairs[i] = (struct safetensors_pair){ fields[i].key, values[i] };
    }
}

static enum status read_value(const struct field *field, const char *text,
                              struct training_record *record,
                              struct error *error)
{
    void *value = (char *)record + field->offset;
    char *end = NULL;
    long long number = 0;
    if (text == NULL)
        return error_set(error, STATUS_FORMAT, "%s: missing", field->key);
    errno = 0;
    if (field->kind == REAL)
        *(double *)value = strtod(text, &end);
    else if (field->kind == WORD)
        *(uint64_t *)value = strtoull(text, &end, 10);
    else
        *(int *)value = (int)(number = strtoll(text, &end, 10));
    bool fits = field->kind != INTEGER
                || (number >= INT_MIN && number <= INT_MAX);
    bool negative = field->kind == WORD && strchr(text, '-') != NULL;
    if (end == text || *end != '\0' || errno != 0 || !fits || negative)
        return error_set(error, STATUS_FORMAT, "%s: expected a number, got %s",
                         field->key, text);
    return STATUS_OK;
}

enum status training_record_read(struct training_record *record,
                                 const struct safetensors *file,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < RECORD_FIELDS && status == STATUS_OK; i++)
        status = read_value(&fields[i],
                            safetensors_metadata(file, fields[i].key),
                            record, error);
    if (status == STATUS_OK && record->step > INT32_MAX)
        status = error_set(error, STATUS_FORMAT, "step: expected at most %d,"
                           " got %" PRIu64, INT32_MAX, record->step);
    return status;
}
