#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "line_reader.h"

struct line_reader {
    int descriptor;
    size_t room;                 /* longest + 1 */
    size_t begin, end;           /* what is read and not given out */
    bool over, skips;            /* skips: in a line that is too long */
    char *bytes;
};

void line_reader_free(struct line_reader **reader)
{
    if (reader == NULL || *reader == NULL)
        return;
    free((*reader)->bytes);
    free(*reader);
    *reader = NULL;
}

enum status line_reader_new(struct line_reader **reader, int descriptor,
                            size_t longest, struct error *error)
{
    struct line_reader *made = calloc(1, sizeof *made);
    char *bytes = malloc(longest + 1);
    if (made == NULL || bytes == NULL) {
        free(made);
        free(bytes);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for lines of %zu bytes", longest);
    }
    *made = (struct line_reader){.descriptor = descriptor,
                                 .room = longest + 1, .bytes = bytes};
    *reader = made;
    return STATUS_OK;
}

static enum line_kind fill(struct line_reader *reader, bool wait)
{
    memmove(reader->bytes, reader->bytes + reader->begin,
            reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
    struct pollfd source = {.fd = reader->descriptor, .events = POLLIN};
    int ready;
    ssize_t count;
    do
        ready = poll(&source, 1, wait ? -1 : 0);
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return LINE_NONE;
    do
        count = read(reader->descriptor, reader->bytes + reader->end,
                     reader->room - reader->end);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        return LINE_FAILED;
    reader->over = count == 0;
    reader->end += (size_t)count;
    return LINE_GIVEN;
}

static enum line_kind cut(struct line_reader *reader, size_t held,
                          size_t newline, const char **line, size_t *length)
{
    const bool skipped = reader->skips;
    *line = reader->bytes + reader->begin;
    *length = held;
    reader->begin += held + newline;
    reader->skips = false;
    return skipped ? LINE_TOO_LONG : LINE_GIVEN;
}

enum line_kind line_reader_next(struct line_reader *reader, bool wait,
                                const char **line, size_t *length)
{
    for (;;) {
        const size_t held = reader->end - reader->begin;
        const char *first = reader->bytes + reader->begin;
        const char *newline = memchr(first, '\n', held);
        if (newline != NULL)
            return cut(reader, (size_t)(newline - first), 1, line, length);
        if (reader->over && (held > 0 || reader->skips))
            return cut(reader, held, 0, line, length);
        if (reader->over)
            return LINE_OVER;
        if (reader->skips || held == reader->room) {
            reader->skips = true;
            reader->begin = reader->end = 0;
        }
        const enum line_kind kind = fill(reader, wait);
        if (kind != LINE_GIVEN)
            return kind;
    }
}
