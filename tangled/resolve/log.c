#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "workshop.h"

struct log {
    char *directory;    /* attempts */
    char *path;         /* attempts/log.jsonl */
    int lock, file;     /* -1: not open */
    int read_only;      /* 0, or the errno that says why */
};

static bool flush(int file)
{
    return fsync(file) == 0 || errno == EINVAL || errno == ENOTSUP;
}

static bool flush_directory(const char *path)
{
    int directory = open(path, O_RDONLY | O_CLOEXEC);
    bool flushed = directory >= 0 && flush(directory);
    if (directory >= 0)
        close(directory);
    return flushed || complain("%s: %s", path, strerror(errno));
}

static bool write_whole(int file, const char *path, const char *bytes,
                        size_t length)
{
    off_t end = lseek(file, 0, SEEK_END);
    ssize_t written;
    do
        written = write(file, bytes, length);
    while (written < 0 && errno == EINTR);
    if (written >= 0 && (size_t)written < length)
        errno = ENOSPC;
    else if (written >= 0 && flush(file))
        return true;
    int why = errno;
    if (end < 0 || ftruncate(file, end) != 0)
        complain("%s: a part of a line was left behind", path);
    return complain("%s: cannot be written: %s", path, strerror(why));
}

static bool move_aside(struct log *log, size_t line, const char *bytes,
                       size_t length)
{
    if (log->read_only != 0) {
        complain("%s:%zu: the last line is torn", log->path, line);
        return true;
    }
    char *path = text_format("%s/log.torn", log->directory);
    int torn = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    bool moved = torn >= 0 ? write_whole(torn, path, bytes, length)
        && write_whole(torn, path, "\n", 1)
        : complain("%s: %s", path, strerror(errno));
    if (torn >= 0)
        close(torn);
    if (moved && (ftruncate(log->file, lseek(log->file, 0, SEEK_END)
                            - (off_t)length) != 0 || !flush(log->file)))
        moved = complain("%s: %s", log->path, strerror(errno));
    if (moved)
        complain("%s:%zu: the last line was torn; moved to %s", log->path,
                 line, path);
    free(path);
    return moved;
}

static bool is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (memchr(" \t\r\n", text[i], 4) == NULL)
            return false;
    return true;
}

static cJSON *parse_line(const char *text, size_t length)
{
    const char *end = NULL;
    if (memchr(text, '\0', length) != NULL)
        return NULL;
    cJSON *event = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (cJSON_IsObject(event)
        && is_blank(end, length - (size_t)(end - text)))
        return event;
    cJSON_Delete(event);
    return NULL;
}

static bool read_lines(struct log *log, const char *text, size_t length,
                       log_visit *visit, void *context)
{
    size_t line = 1;
    for (size_t at = 0, next; at < length; at = next, line++) {
        const char *newline = memchr(text + at, '\n', length - at);
        next = newline != NULL ? (size_t)(newline - text) + 1 : length;
        if (is_blank(text + at, next - at))
            continue;
        cJSON *event = parse_line(text + at, next - at);
        if (event == NULL && next == length)
            return move_aside(log, line, text + at, next - at);
        const char *wrong = event == NULL ? "not an event"
            : visit(context, event);
        cJSON_Delete(event);
        if (wrong != NULL)
            complain("%s:%zu: skipped: %s", log->path, line, wrong);
        if (newline == NULL && log->read_only == 0
            && !write_whole(log->file, log->path, "\n", 1))
            return false;
    }
    return true;
}

static char *read_text(const struct log *log, size_t *length)
{
    struct stat status;
    if (fstat(log->file, &status) != 0 || !S_ISREG(status.st_mode)) {
        complain("%s: not a file", log->path);
        return NULL;
    }
    size_t size = (size_t)status.st_size;
    char *text = malloc(size + 1);
    ssize_t got = 1;
    *length = 0;
    while (text != NULL && *length < size && got > 0) {
        got = pread(log->file, text + *length, size - *length,
                    (off_t)*length);
        if (got > 0)
            *length += (size_t)got;
    }
    if (text != NULL && got >= 0)
        return text;
    complain("%s: %s", log->path, strerror(errno));
    free(text);
    return NULL;
}

static bool is_refusal(int error)
{
    return error == EACCES || error == EROFS || error == EPERM;
}

static bool wait_for_lock(int file)
{
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int taken;
    do
        taken = fcntl(file, F_SETLKW, &whole);
    while (taken < 0 && errno == EINTR);
    return taken == 0;
}

static bool take_lock(struct log *log)
{
    char *path = text_format("%s/.lock", log->directory);
    log->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (log->lock < 0 && errno == ENOENT && directory_make(log->directory))
        log->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (log->lock < 0 && is_refusal(errno))
        log->read_only = errno;
    bool taken = log->lock >= 0 ? wait_for_lock(log->lock)
        : log->read_only != 0;
    if (!taken)
        complain("%s: %s", path, strerror(errno));
    free(path);
    return taken;
}

static bool open_file(struct log *log)
{
    int flags = O_RDWR | O_APPEND | O_NONBLOCK | O_CLOEXEC;
    if (log->read_only == 0)
        log->file = open(log->path, flags);
    if (log->file < 0 && log->read_only == 0 && errno == ENOENT) {
        log->file = open(log->path, flags | O_CREAT, 0666);
        if (log->file >= 0)
            return flush_directory(log->directory);
    }
    if (log->file < 0 && log->read_only == 0 && is_refusal(errno))
        log->read_only = errno;
    if (log->file < 0 && log->read_only != 0)
        log->file = open(log->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return log->file >= 0 || (log->read_only != 0 && errno == ENOENT)
        || complain("%s: %s", log->path, strerror(errno));
}

bool log_open(struct log **out, const char *directory, log_visit *visit,
              void *context)
{
    struct log *log = allocate(sizeof *log);
    log->directory = text_format("%s", directory);
    log->path = text_format("%s/log.jsonl", directory);
    log->lock = log->file = -1;
    bool opened = take_lock(log) && open_file(log);
    if (opened && log->file >= 0) {
        size_t length;
        char *text = read_text(log, &length);
        opened = text != NULL
            && read_lines(log, text, length, visit, context);
        free(text);
    }
    *out = log;
    if (!opened)
        log_close(out);
    return opened;
}

bool log_append(struct log *log, const cJSON *event)
{
    if (log->read_only != 0)
        return complain("%s: cannot be written: %s", log->path,
                        strerror(log->read_only));
    char *json = cJSON_PrintUnformatted(event);
    if (json == NULL)
        return complain("out of memory");
    char *line = text_format("%s\n", json);
    bool written = write_whole(log->file, log->path, line, strlen(line));
    free(line);
    cJSON_free(json);
    return written;
}

void log_close(struct log **log)
{
    if (*log == NULL)
        return;
    if ((*log)->file >= 0)
        close((*log)->file);
    if ((*log)->lock >= 0)
        close((*log)->lock);
    free((*log)->directory);
    free((*log)->path);
    free(*log);
    *log = NULL;
}
