#include "command.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int command_usage_error(const struct command *command,
                        const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "tinygpt %s: ", command->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (tinygpt %s --help says more)\n", command->name);
    return 2;
}

int command_failure(const struct command *command,
                    const struct error *error)
{
    fprintf(stderr, "tinygpt %s: %s\n", command->name, error->message);
    return 1;
}

bool command_option(int argc, char **argv, int *index, const char *option,
                    const char **value)
{
    const char *word = argv[*index];
    size_t length = strlen(option);
    if (strncmp(word, option, length) != 0)
        return false;
    if (word[length] == '=') {
        *value = word + length + 1;
        return true;
    }
    if (word[length] != '\0')
        return false;
    *value = *index + 1 < argc ? argv[++*index] : NULL;
    return true;
}

int command_text(const struct command *command, const char *option,
                 const char *text, const char **value)
{
    if (text == NULL)
        return command_usage_error(command, "%s: needs a value", option);
    *value = text;
    return 0;
}

/* Whether text has something that strtol would not skip. */
static bool starts_number(const char *text)
{
    return text != NULL && *text != '\0'
        && strchr(" \t\n\v\f\r", *text) == NULL;
}

int command_int(const struct command *command, const char *option,
                const char *text, long minimum, long maximum, int *value)
{
    char *end = NULL;
    errno = 0;
    long number = starts_number(text) ? strtol(text, &end, 10) : 0;
    if (end == NULL || end == text || *end != '\0' || errno != 0
        || number < minimum || number > maximum)
        return command_usage_error(command,
            "%s: expected an integer from %ld to %ld, got %s", option,
            minimum, maximum, text == NULL ? "nothing" : text);
    *value = (int)number;
    return 0;
}
int command_double(const struct command *command, const char *option,
                   const char *text, double *value)
{
    char *end = NULL;
    double number = starts_number(text) ? strtod(text, &end) : 0;
    if (end == NULL || end == text || *end != '\0' || !isfinite(number))
        return command_usage_error(command,
            "%s: expected a finite number, got %s", option,
            text == NULL ? "nothing" : text);
    *value = number;
    return 0;
}
int command_seed(const struct command *command, const char *option,
                 const char *text, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    uintmax_t number = starts_number(text) && *text != '-'
        ? strtoumax(text, &end, 10) : 0;
    if (end == NULL || end == text || *end != '\0' || errno != 0
        || number > UINT64_MAX)
        return command_usage_error(command,
            "%s: expected an integer from 0 to 2^64 - 1, got %s", option,
            text == NULL ? "nothing" : text);
    *value = (uint64_t)number;
    return 0;
}

int command_ids(const struct command *command, const char *option,
                const char *text, int32_t **ids, int *count)
{
    int32_t *made = NULL;
    if (text == NULL)
        return command_usage_error(command, "%s: needs a value", option);
    size_t room = *text == '\0' ? 0 : 1;
    for (const char *at = text; *at != '\0'; at++)
        room += *at == ',';
    if (room > 0)
        made = malloc(room * sizeof *made);
    if (room > 0 && made == NULL)
        return command_failure(command,
            &(struct error){ STATUS_NO_MEMORY, "no memory for the ids" });
    for (size_t i = 0; i < room; i++) {
        char *end = NULL;
        errno = 0;
        long id = starts_number(text) ? strtol(text, &end, 10) : 0;
        if (end == NULL || end == text || errno != 0 || id < 0 || id > INT32_MAX
            || *end != (i + 1 < room ? ',' : '\0')) {
            free(made);
            return command_usage_error(command,
                "%s: expected ids like 1,2,3; number %zu is not one", option, i);
        }
        made[i] = (int32_t)id;
        text = end + 1;
    }
    *ids = made;
    *count = (int)room;
    return 0;
}
