/* What must hold for every tokenizer and every text: the ids are tokens, and
   their bytes are the text, whole characters at a time. */
#ifndef ROUND_TRIP_H
#define ROUND_TRIP_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "text_stream.h"
#include "utf8.h"

#define MUST(what) do { if (!(what)) abort(); } while (0)

struct shown { const uint8_t *text; size_t length, at; };

static bool compare(void *context, const char *bytes, size_t length,
                    bool whole)
{
    struct shown *shown = context;
    const int size = utf8_next((const unsigned char *)bytes, length);
    MUST(whole ? size == (int)length : length == 1 && size <= 0);
    MUST(length <= shown->length - shown->at);
    MUST(memcmp(shown->text + shown->at, bytes, length) == 0);
    shown->at += length;
    return true;
}

static void round_trip(const struct tokenizer *tokenizer,
                       const uint8_t *text, size_t length, int options)
{
    struct error error;
    int32_t *ids = NULL;
    int count = 0;
    struct shown shown = {text, length, 0};
    struct text_stream stream = {
        .tokenizer = tokenizer, .show = compare, .context = &shown,
        .previous = (options & TOKENIZER_BEGIN) != 0 ? -1 : INT32_MAX,
        .special = (options & TOKENIZER_SPECIAL) != 0
    };
    MUST(tokenizer_encode(tokenizer, (const char *)text, length, options,
                          &ids, &count, &error) == STATUS_OK);
    MUST(count <= INT32_MAX - 2 && (size_t)count <= length + 2);
    for (int k = 0; k < count; k++) {
        MUST(ids[k] >= 0 && ids[k] < tokenizer_count(tokenizer));
        if (tokenizer_special(tokenizer, ids[k])
            && ids[k] == tokenizer_bos(tokenizer))
            stream.special = false;
        MUST(text_stream_add(&stream, ids[k]));
        stream.special = (options & TOKENIZER_SPECIAL) != 0;
    }
    MUST(text_stream_end(&stream));
    MUST(shown.at == length);
    free(ids);
}

#endif
