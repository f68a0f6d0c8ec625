#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "file.h"
#include "file_map.h"

static const unsigned char nothing[1];

static enum status map_open_file(struct file_map *map, int file,
                                 const char *path, struct error *error)
{
    struct stat facts;
    if (fstat(file, &facts) != 0)
        return file_error(error, STATUS_IO, path, strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return file_error(error, STATUS_IO, path, S_ISDIR(facts.st_mode)
                          ? "is a directory" : "is not a regular file");
    if ((uintmax_t)facts.st_size > SIZE_MAX)
        return file_error(error, STATUS_NO_MEMORY, path, "no such memory");
    const size_t length = (size_t)facts.st_size;
    const void *bytes = nothing;
    if (length > 0)
        bytes = mmap(NULL, length, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED)
        return file_error(error, errno == ENOMEM ? STATUS_NO_MEMORY
                          : STATUS_IO, path, strerror(errno));
    *map = (struct file_map){bytes, length};
    return STATUS_OK;
}

enum status file_map_open(struct file_map *map, const char *path,
                          struct error *error)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return file_error(error, STATUS_IO, path, strerror(errno));
    const enum status status = map_open_file(map, file, path, error);
    close(file);
    return status;
}

void file_map_close(struct file_map *map)
{
    if (map->length > 0)
        munmap((void *)(uintptr_t)map->bytes, map->length);
    *map = (struct file_map){nothing, 0};
}
