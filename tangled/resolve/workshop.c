#include "workshop.h"
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const level_names[] = { "chunk", "function", "empty" };

const char *level_name(enum level level)
{
    return level_names[level];
}

bool level_parse(enum level *level, const char *word)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(word, level_names[i]) == 0) {
            *level = (enum level)i;
            return true;
        }
    return false;
}

void *allocate(size_t size)
{
    void *block = calloc(1, size > 0 ? size : 1);
    if (block == NULL) {
        fputs("resolve: out of memory\n", stderr);
        exit(1);
    }
    return block;
}

char *text_format(const char *format, ...)
{
    va_list once, twice;
    va_start(once, format);
    va_copy(twice, once);
    int length = vsnprintf(NULL, 0, format, once);
    size_t size = (size_t)(length < 0 ? 0 : length) + 1;
    char *text = allocate(size);
    vsnprintf(text, size, format, twice);
    va_end(once);
    va_end(twice);
    return text;
}

char *text_clean(char *text)
{
    for (char *at = text; *at != '\0'; at++)
        if (((unsigned char)*at < ' ' && *at != '\n' && *at != '\t')
            || *at == 127)
            *at = '?';
    return text;
}

void list_add(struct list *list, char *text)
{
    size_t room = list->count + 1;
    if ((room & (room - 1)) == 0) {     /* a power of two: the list is full */
        char **longer = allocate(2 * room * sizeof *longer);
        for (size_t i = 0; i < list->count; i++)
            longer[i] = list->items[i];
        free(list->items);
        list->items = longer;
    }
    list->items[list->count++] = text;
    list->items[list->count] = NULL;
}

void list_add_words(struct list *list, const char *words)
{
    while (*(words += strspn(words, " ")) != '\0') {
        int length = (int)strcspn(words, " ");
        list_add(list, text_format("%.*s", length, words));
        words += length;
    }
}

bool list_has(const struct list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], text) == 0)
            return true;
    return false;
}

void list_free(struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct list){ 0 };
}

bool complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("resolve: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

bool directory_make(const char *path)
{
    char *copy = text_format("%s/", path);
    bool made = true;
    for (char *at = copy + 1; made && *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            made = mkdir(copy, 0777) == 0 || errno == EEXIST;
            *at = '/';
        }
    free(copy);
    return made || complain("%s: %s", path, strerror(errno));
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct list files_in(const char *directory, const char *ending)
{
    struct list names = { 0 };
    DIR *open = opendir(directory);
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL; ) {
        size_t length = strlen(entry->d_name), tail = strlen(ending);
        if (entry->d_name[0] != '.' && length > tail
            && strcmp(entry->d_name + length - tail, ending) == 0)
            list_add(&names, text_format("%s", entry->d_name));
    }
    if (open)
        closedir(open);
    if (names.count > 1)
        qsort(names.items, names.count, sizeof *names.items, compare_texts);
    return names;
}

char *file_read(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = allocate(1);
    size_t length = 0, got;
    char part[65536];
    while (file && (got = fread(part, 1, sizeof part, file)) > 0) {
        char *longer = allocate(length + got + 1);
        memcpy(longer, text, length);
        memcpy(longer + length, part, got);
        free(text);
        text = longer;
        length += got;
    }
    if (file == NULL || fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

bool file_write(const char *path, const char *text, mode_t mode)
{
    char *fresh = text_format("%s.new", path);
    FILE *file = fopen(fresh, "w");
    bool written = file != NULL && fputs(text, file) >= 0
        && fflush(file) == 0 && fsync(fileno(file)) == 0
        && fchmod(fileno(file), mode) == 0;
    if (file != NULL && fclose(file) != 0)
        written = false;
    written = written && rename(fresh, path) == 0;
    if (!written) {
        complain("%s: %s", path, strerror(errno));
        remove(fresh);
    }
    free(fresh);
    return written;
}
