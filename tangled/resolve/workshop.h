#ifndef WORKSHOP_H
#define WORKSHOP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Where the tool reads and writes. Nothing is written elsewhere. */
struct workshop {
    const char *book;       /* read: the chapters */
    const char *attempts;   /* written: the reader's work and the log */
    const char *build;      /* written: everything that can be made again */
};

/* How much of a stage an attempt leaves to the reader. */
enum level { LEVEL_CHUNK, LEVEL_FUNCTION, LEVEL_EMPTY };
/* "chunk", "function", "empty". The latter is false for any other word. */
const char *level_name(enum level level);
bool level_parse(enum level *level, const char *word);

/* Texts that the list owns; items[count] is NULL, so a list is an argv. */
struct list {
    char **items;
    size_t count;
};

void *allocate(size_t size);        /* zeroed; never NULL */
char *text_format(const char *format, ...);      /* to be freed */
/* Replaces control characters other than newline and tab; returns the text.
   What an attempt printed must not reach a terminal as commands. */
char *text_clean(char *text);
void list_add(struct list *list, char *text);    /* takes the text */
void list_add_words(struct list *list, const char *words);
bool list_has(const struct list *list, const char *text);
void list_free(struct list *list);

/* "resolve: ..." on stderr, one line. Returns false. */
bool complain(const char *format, ...);

/* Directories on the way are made too. False after a complaint. */
bool directory_make(const char *path);
/* The whole file, ended by a zero; NULL without a complaint. */
char *file_read(const char *path);
/* Writes a temporary name, flushes, renames. False after a complaint. */
bool file_write(const char *path, const char *text, mode_t mode);
/* Names in a directory that end so, sorted; none when it is not there. */
struct list files_in(const char *directory, const char *ending);

#endif
