#ifndef JSON_H
#define JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include "error.h"

/* One JSON object and nothing else but white space; no zero byte, and no
   key twice in it. The caller frees it with cJSON_Delete. *object is
   unchanged on error. */
enum status json_parse(cJSON **object, const char *text, size_t length,
                       struct error *error);
/* Refuses a key that occurs twice. */
enum status json_unique(const cJSON *object, struct error *error);
#endif
