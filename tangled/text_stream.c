#include "text_stream.h"
#include <string.h>
#include "utf8.h"

static bool let_out(struct text_stream *stream)
{
    int size;
    while ((size = utf8_next(stream->held, stream->count)) != 0) {
        const size_t length = size > 0 ? (size_t)size : 1;
        if (!stream->show(stream->context, (const char *)stream->held, length,
                          size > 0))
            return false;
        stream->count -= length;
        memmove(stream->held, stream->held + length, stream->count);
    }
    return true;
}

bool text_stream_add(struct text_stream *stream, int32_t id)
{
    size_t length = 0;
    const unsigned char *bytes = tokenizer_bytes(stream->tokenizer, id,
                                                 &length);
    bool well = true;
    const bool begins = stream->previous < 0
        || stream->previous == tokenizer_bos(stream->tokenizer);
    if (begins && tokenizer_prefixes(stream->tokenizer) && length > 0
        && bytes[0] == ' ') {
        bytes++;
        length--;
    }
    stream->previous = id;
    if (tokenizer_special(stream->tokenizer, id) && !stream->special)
        return true;
    for (size_t k = 0; k < length && well; k++) {
        stream->held[stream->count++] = bytes[k];
        well = let_out(stream);
    }
    return well;
}

bool text_stream_end(struct text_stream *stream)
{
    bool well = true;
    for (size_t k = 0; k < stream->count && well; k++)
        well = stream->show(stream->context, (const char *)stream->held + k,
                            1, false);
    stream->count = 0;
    return well;
}
