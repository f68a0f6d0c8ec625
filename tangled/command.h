#ifndef COMMAND_H
#define COMMAND_H

#include <stdbool.h>
#include <stdint.h>
#include "error.h"

/* Exit status: 0 fine, 1 bad input, 2 bad usage. Results go to stdout, errors
   to stderr as "tinygpt NAME: message". */
struct command {
    const char *name;
    const char *summary;    /* its line in tinygpt --help */
    const char *usage;      /* the text of tinygpt NAME --help */
    /* argv[0] is the command's name; the result is the exit status */
    int (*run)(const struct command *command, int argc, char **argv);
};

/* Prints the message and a pointer to --help; returns 2. */
int command_usage_error(const struct command *command,
                        const char *format, ...) ERROR_PRINTF(2, 3);
/* Prints the error's message; returns 1. */
int command_failure(const struct command *command,
                    const struct error *error);

/* Whether argv[*index] is the option, as "--batch 2" or "--batch=2". Then
   *value is its value, NULL when the line ends before it, and *index the last
   word that was used. */
bool command_option(int argc, char **argv, int *index, const char *option,
                    const char **value);

/* Each reads text, the value of an option, and returns 0, or prints what was
   expected and returns the exit status. text may be NULL: no value came. */
int command_text(const struct command *command, const char *option,
                 const char *text, const char **value);
int command_int(const struct command *command, const char *option,
                const char *text, long minimum, long maximum, int *value);
int command_double(const struct command *command, const char *option,
                   const char *text, double *value);    /* finite */
int command_seed(const struct command *command, const char *option,
                 const char *text, uint64_t *value);
/* "1,2,3" to malloc'd ids; an empty text to count 0 and ids NULL. */
int command_ids(const struct command *command, const char *option,
                const char *text, int32_t **ids, int *count);

#endif
