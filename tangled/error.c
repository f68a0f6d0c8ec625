#include "error.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum status error_set(struct error *error, enum status status,
                      const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        for (char *at = error->message; *at != '\0'; at++)
            if ((unsigned char)*at < ' ' || *at == 127)
                *at = '?';
    }
    return status;
}
