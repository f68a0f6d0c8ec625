#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "json.h"
#include "serve_line.h"
#include "utf8.h"

struct reading {
    struct serve_line *line;
    const struct speaker *speaker;
    uint64_t seed;
    bool length_given, prompt_given;
};

static enum status whole(const cJSON *item, double least, double most,
                         double *number, struct error *error)
{
    const double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(value >= least && value <= most) || value != floor(value))
        return error_set(error, STATUS_INVALID,
                         "%s: expected a whole number from %.0f to %.0f",
                         item->string != NULL ? item->string : "its elements",
                         least, most);
    *number = value;
    return STATUS_OK;
}

static enum status read_ids(const cJSON *item, int32_t **ids, int *count,
                            struct error *error)
{
    const int size = cJSON_GetArraySize(item);
    const cJSON *element;
    double id = 0;
    if (!cJSON_IsArray(item))
        return error_set(error, STATUS_INVALID, "%s: expected ids in an"
                         " array", item->string);
    free(*ids);
    *ids = calloc((size_t)size + 1, sizeof **ids);
    if (*ids == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %d ids",
                         item->string, size);
    *count = 0;
    cJSON_ArrayForEach(element, item) {
        if (whole(element, 0, INT32_MAX, &id, error) != STATUS_OK)
            return error_set(error, STATUS_INVALID, "%s[%d]: expected an id",
                             item->string, *count);
        (*ids)[(*count)++] = (int32_t)id;
    }
    return STATUS_OK;
}

typedef enum status field_reader(struct reading *reading, const cJSON *item,
                                 struct error *error);

static enum status read_prompt(struct reading *reading, const cJSON *item,
                               struct error *error)
{
    struct serve_line *line = reading->line;
    if (!cJSON_IsString(item))
        return error_set(error, STATUS_INVALID, "prompt: expected a text");
    if (reading->speaker->tokenizer == NULL)
        return error_set(error, STATUS_INVALID, "prompt: this model has no"
                         " tokenizer; give prompt_ids");
    if (reading->prompt_given)
        return error_set(error, STATUS_INVALID, "prompt: given twice");
    reading->prompt_given = true;
    return tokenizer_encode(reading->speaker->tokenizer, item->valuestring,
                            strlen(item->valuestring), TOKENIZER_BEGIN,
                            &line->ids, &line->request.tokens, error);
}

static enum status read_prompt_ids(struct reading *reading, const cJSON *item,
                                   struct error *error)
{
    if (reading->prompt_given)
        return error_set(error, STATUS_INVALID, "prompt_ids: given twice");
    reading->prompt_given = true;
    return read_ids(item, &reading->line->ids,
                    &reading->line->request.tokens, error);
}

static enum status read_length(struct reading *reading, const cJSON *item,
                               struct error *error)
{
    double number = 0;
    enum status status = whole(item, 0, INT32_MAX, &number, error);
    reading->line->request.max_new_tokens = (int)number;
    reading->length_given = true;
    return status;
}

static enum status read_eos(struct reading *reading, const cJSON *item,
                            struct error *error)
{
    double number = 0;
    enum status status = whole(item, NO_EOS, INT32_MAX, &number, error);
    reading->line->ends = (struct text_ends){number >= 0, {(int32_t)number}};
    return status;
}

static enum status read_stop(struct reading *reading, const cJSON *item,
                             struct error *error)
{
    struct serve_line *line = reading->line;
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    const size_t length = strlen(text);
    if (length < 1 || length > STOP_BYTES_MAX
        || reading->speaker->tokenizer == NULL)
        return error_set(error, STATUS_INVALID, "stop: expected a text of 1"
                         " to %d bytes%s", STOP_BYTES_MAX,
                         reading->speaker->tokenizer != NULL ? ""
                         : " and a model with a tokenizer");
    memcpy(line->stop, text, length);
    line->stop_length = length;
    return STATUS_OK;
}

static enum status read_stop_ids(struct reading *reading, const cJSON *item,
                                 struct error *error)
{
    return read_ids(item, &reading->line->stop_ids,
                    &reading->line->request.stop_tokens, error);
}

static enum status read_temperature(struct reading *reading,
                                    const cJSON *item, struct error *error)
{
    if (!cJSON_IsNumber(item))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a number");
    reading->line->request.temperature = item->valuedouble;
    return STATUS_OK;
}

static enum status read_seed(struct reading *reading, const cJSON *item,
                             struct error *error)
{
    double number = 0;
    enum status status = whole(item, 0, 9007199254740992.0, &number, error);
    reading->seed = (uint64_t)number;
    return status;
}

static char *copy_of(const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    return copy != NULL ? strcpy(copy, text) : NULL;
}

/* To be freed; NULL when there is no memory. */
static char *spell_name(const cJSON *item)
{
    char *printed, *copy;
    if (cJSON_IsNumber(item)) {
        char digits[24];
        snprintf(digits, sizeof digits, "%lld", (long long)item->valuedouble);
        return copy_of(digits);
    }
    printed = cJSON_PrintUnformatted(item);
    copy = printed != NULL ? copy_of(printed) : NULL;
    cJSON_free(printed);
    return copy;
}

static enum status read_name(const cJSON *item, char **name,
                             struct error *error)
{
    const double number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!cJSON_IsString(item)
        && !(fabs(number) < 9007199254740992.0 && number == floor(number)))
        return error_set(error, STATUS_INVALID, "%s: expected a string or a"
                         " whole number below 2^53", item->string);
    free(*name);
    *name = spell_name(item);
    return *name != NULL ? STATUS_OK
        : error_set(error, STATUS_NO_MEMORY, "no memory for an id");
}

static enum status read_id(struct reading *reading, const cJSON *item,
                           struct error *error)
{
    return read_name(item, &reading->line->id, error);
}

static enum status read_cancel(struct reading *reading, const cJSON *item,
                               struct error *error)
{
    return read_name(item, &reading->line->cancel, error);
}

static const struct { const char *name; field_reader *read; } fields[] = {
    {"id", read_id}, {"cancel", read_cancel}, {"prompt", read_prompt},
    {"prompt_ids", read_prompt_ids}, {"max_new_tokens", read_length},
    {"temperature", read_temperature}, {"seed", read_seed},
    {"eos", read_eos}, {"stop", read_stop}, {"stop_ids", read_stop_ids}
};

static enum status read_field(struct reading *reading, const cJSON *item,
                              struct error *error)
{
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        if (strcmp(item->string, fields[k].name) == 0)
            return fields[k].read(reading, item, error);
    return error_set(error, STATUS_INVALID, "\"%.64s\": no such field",
                     item->string);
}

static enum status read_fields(struct reading *reading, const cJSON *object,
                               struct error *error)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(object, "id");
    const cJSON *item;
    enum status status = STATUS_OK;
    if (id != NULL)
        status = read_id(reading, id, error);
    cJSON_ArrayForEach(item, object)
        if (status == STATUS_OK && item != id)
            status = read_field(reading, item, error);
    if (status == STATUS_OK && reading->line->cancel != NULL
        && cJSON_GetArraySize(object) > 1)
        status = error_set(error, STATUS_INVALID,
                           "cancel: expected nothing else in the line");
    if (status == STATUS_OK && reading->line->cancel == NULL
        && !reading->prompt_given)
        status = error_set(error, STATUS_INVALID,
                           "prompt: expected one, or prompt_ids");
    return status;
}

static bool is_utf8(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        const int size = utf8_next((const unsigned char *)text + at,
                                   length - at);
        if (size <= 0)
            return false;
        at += (size_t)size;
    }
    return true;
}

void serve_line_free(struct serve_line *line)
{
    free(line->id);
    free(line->cancel);
    free(line->ids);
    free(line->stop_ids);
    *line = (struct serve_line){0};
}

enum status serve_line_parse(struct serve_line *line, const char *text,
                             size_t length, const struct speaker *speaker,
                             int capacity, struct error *error)
{
    struct reading reading = {.line = line, .speaker = speaker};
    cJSON *object = NULL;
    line->ends = speaker->ends;
    if (!is_utf8(text, length))
        return error_set(error, STATUS_FORMAT, "expected UTF-8");
    enum status status = json_parse(&object, text, length, error);
    if (status == STATUS_OK)
        status = read_fields(&reading, object, error);
    cJSON_Delete(object);
    if (status == STATUS_OK) {
        enum { SAMPLING_STREAM = 6 };
        struct slot_request *request = &line->request;
        static const int32_t nothing[1];
        request->ids = line->ids != NULL ? line->ids : nothing;
        request->stop = line->stop_ids;
        request->eos_token_id = line->ends.count > 0 ? line->ends.ids[0] : NO_EOS;
        generator_seed(&request->generator, reading.seed, SAMPLING_STREAM);
        if (!reading.length_given) {
            const int most = capacity < speaker->lm.context_length
                ? capacity + 1 : speaker->lm.context_length;
            request->max_new_tokens = request->tokens < most
                ? most - request->tokens : 0;
        }
    }
    return status;
}
