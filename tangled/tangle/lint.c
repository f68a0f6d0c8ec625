/* lint: what noweb does not check. Reads the stream of noweb's markup from
   standard input; the chapters are named as arguments for their front
   matter. Prints "file:line: message"; status 1 when there was one. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "front_matter.h"

enum { NAMES_MAX = 16384, NAME_LENGTH = 128, LINE_LENGTH = 4096,
       COLUMNS_MAX = 78, CHUNK_LINES_MAX = 40 };

struct name {
    char text[NAME_LENGTH];
    char file[NAME_LENGTH];     /* of the first sight of it */
    long line;
    char owner[NAME_LENGTH];    /* the file of its first body, or "" */
    bool defined, used, hole;   /* hole: it was defined without a body */
};

struct lint {
    struct name names[NAMES_MAX];
    size_t count;
    char file[NAME_LENGTH];
    long line;
    bool in_code;
    bool prose;         /* a sentence since the last chunk */
    char text[LINE_LENGTH];   /* the current line so far */
    bool hole;          /* the current line holds a chunk use */
    struct name *chunk; /* the current one */
    long chunk_line;    /* where it began */
    int chunk_lines;    /* its lines so far, blank ones not counted */
    int complaints;
};

static void complain(struct lint *lint, const char *file, long line,
                     const char *what, const char *name)
{
    printf("%s:%ld: %s%s%s\n", file, line, what, name[0] ? ": " : "", name);
    lint->complaints++;
}

static struct name *name_of(struct lint *lint, const char *text)
{
    for (size_t i = 0; i < lint->count; i++)
        if (strcmp(lint->names[i].text, text) == 0)
            return &lint->names[i];
    if (lint->count == NAMES_MAX) {
        fprintf(stderr, "lint: more than %d names of chunks\n", NAMES_MAX);
        exit(2);
    }
    struct name *name = &lint->names[lint->count++];
    snprintf(name->text, sizeof name->text, "%s", text);
    snprintf(name->file, sizeof name->file, "%s", lint->file);
    name->line = lint->line;
    return name;
}

static void end_prose_line(struct lint *lint)
{
    const char *text = lint->text + strspn(lint->text, " ");
    if (text[0] != '\0' && text[0] != '#' && strncmp(text, "%def", 4) != 0)
        lint->prose = true;
}

static void end_code_line(struct lint *lint)
{
    size_t columns = 0;
    bool blank = lint->text[strspn(lint->text, " ")] == '\0';
    lint->chunk_lines += lint->hole || !blank;
    for (const char *at = lint->text; *at != '\0'; at++)
        columns += ((unsigned char)*at & 0xC0) != 0x80;
    if (columns > COLUMNS_MAX)
        complain(lint, lint->file, lint->line, "over 78 columns", "");
    if (lint->hole && !blank)
        complain(lint, lint->file, lint->line, "a hole shares its line", "");
}

static void begin_chunk(struct lint *lint, const char *name)
{
    lint->chunk = name_of(lint, name);
    lint->chunk->defined = true;
    lint->chunk_line = lint->line;
    lint->chunk_lines = 0;
    if (!lint->prose)
        complain(lint, lint->file, lint->line, "no prose before", name);
}

static void end_chunk(struct lint *lint)
{
    if (lint->chunk_lines > CHUNK_LINES_MAX)
        complain(lint, lint->file, lint->chunk_line, "over 40 lines", "");
    struct name *chunk = lint->chunk;
    if (lint->chunk_lines == 0)
        chunk->hole = chunk->hole || chunk->owner[0] == '\0';
    else if (chunk->owner[0] == '\0')
        snprintf(chunk->owner, sizeof chunk->owner, "%s", lint->file);
    else if (!chunk->hole && strcmp(chunk->owner, lint->file) != 0)
        complain(lint, lint->file, lint->chunk_line, "has a body elsewhere",
                 chunk->text);
    lint->in_code = lint->prose = false;
}


static void end_line(struct lint *lint)
{
    if (lint->in_code)
        end_code_line(lint);
    else
        end_prose_line(lint);
    lint->line++;
    lint->text[0] = '\0';
    lint->hole = false;
}

static void read_line(struct lint *lint, const char *line)
{
    if (strncmp(line, "@file ", 6) == 0) {
        snprintf(lint->file, sizeof lint->file, "%.120s", line + 6);
        lint->line = 1;
    } else if (strncmp(line, "@begin code", 11) == 0)
        lint->in_code = true;
    else if (strncmp(line, "@end code", 9) == 0)
        end_chunk(lint);
    else if (strncmp(line, "@defn ", 6) == 0)
        begin_chunk(lint, line + 6);
    else if (strncmp(line, "@use ", 5) == 0) {
        name_of(lint, line + 5)->used = true;
        lint->hole = lint->in_code;
    } else if (strncmp(line, "@text ", 6) == 0)
        strncat(lint->text, line + 6, LINE_LENGTH - 1 - strlen(lint->text));
    else if (strcmp(line, "@nl") == 0 || strcmp(line, "@index nl") == 0)
        end_line(lint);
}

static void read_front_matter(struct lint *lint, const char *path)
{
    struct front_matter front;
    if (!front_matter_read(&front, path))
        lint->complaints++;
    for (size_t i = 0; i < front.count; i++) {
        name_of(lint, front.swaps[i].by)->used = true;
        name_of(lint, front.swaps[i].chunk)->used = true;
    }
    for (size_t i = 0; i < front.card_count; i++)
        for (size_t j = 0; j < front.cards[i].count; j++)
            name_of(lint, front.cards[i].blanks[j].chunk)->used = true;
    front_matter_free(&front);
}

static void judge_names(struct lint *lint)
{
    for (size_t i = 0; i < lint->count; i++) {
        const struct name *name = &lint->names[i];
        bool file = strchr(name->text, ' ') == NULL
            && strchr(name->text, '.') != NULL;
        if (!name->defined)
            complain(lint, name->file, name->line, "undefined chunk",
                     name->text);
        else if (!name->used && !file)
            complain(lint, name->file, name->line, "nobody uses",
                     name->text);
    }
}

int main(int argc, char **argv)
{
    static struct lint lint;
    char line[LINE_LENGTH];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        read_line(&lint, line);
    }
    for (int i = 1; i < argc; i++)
        read_front_matter(&lint, argv[i]);
    judge_names(&lint);
    return lint.complaints > 0;
}
