#include "stream.h"
#include <string.h>

enum { LINE_MAX_LENGTH = 4096 };

struct copy {
    FILE *out, *places;
    const struct changes *changes;
    char file[LINE_MAX_LENGTH];  /* where the line came from */
    long line;
    bool in_code;       /* between @begin code and @end code */
    bool jumped;        /* a heading or a hole is on this line */
    bool owes_mark;     /* the next line of code needs a #line */
    bool skipped;       /* this chunk's body is not copied */
    const struct mark *mark;   /* around this chunk, once it has begun */
    bool owes_begin;    /* its first comment is still to be written */
    bool swap_seen[SWAPS_MAX], mark_seen[MARKS_MAX];
};

static const struct swap *winner(const struct copy *copy, const char *chunk)
{
    const struct changes *changes = copy->changes;
    for (size_t i = changes->swap_count; i-- > 0; )
        if (strcmp(changes->swaps[i]->chunk, chunk) == 0)
            return changes->swaps[i];
    return NULL;
}

/* The name under which to emit the chunk, or NULL to drop it. */
static const char *name_after_swaps(struct copy *copy, const char *chunk)
{
    const char *name = winner(copy, chunk) != NULL ? NULL : chunk;
    for (size_t i = 0; i < copy->changes->swap_count; i++) {
        const struct swap *swap = copy->changes->swaps[i];
        if (strcmp(swap->by, chunk) != 0)
            continue;
        copy->swap_seen[i] = true;
        if (winner(copy, swap->chunk) == swap)
            name = swap->chunk;
    }
    return name;
}

static void find_mark(struct copy *copy, const char *name)
{
    copy->mark = NULL;
    copy->skipped = false;
    for (size_t i = 0; i < copy->changes->mark_count; i++) {
        const struct mark *mark = &copy->changes->marks[i];
        if (strcmp(mark->chunk, name) != 0)
            continue;
        copy->mark = copy->mark_seen[i] ? NULL : mark;
        copy->skipped = mark->blank;
        copy->mark_seen[i] = true;
    }
    copy->owes_begin = copy->mark != NULL;
}

static void write_begin(struct copy *copy)
{
    const struct mark *mark = copy->mark;
    fprintf(copy->out, "@text // <<%s>>\n@nl\n", mark->chunk);
    if (mark->blank && mark->declares != NULL)
        fprintf(copy->out, "@text %s\n@nl\n", mark->declares);
    if (mark->blank)
        fprintf(copy->out, "@text BLANK(\"%s\");\n@nl\n", mark->chunk);
    copy->owes_begin = false;
}

static void write_end(struct copy *copy)
{
    if (copy->owes_begin)
        write_begin(copy);
    if (copy->mark != NULL)
        fprintf(copy->out, "@text // end of <<%s>>\n@nl\n",
                copy->mark->chunk);
    copy->mark = NULL;
    copy->skipped = false;
}

static void copy_heading(struct copy *copy, const char *chunk)
{
    const char *name = name_after_swaps(copy, chunk);
    copy->jumped = true;
    copy->owes_mark = false;
    find_mark(copy, name != NULL ? name : "");
    fprintf(copy->out, "@defn %s\n", name != NULL ? name : "dropped");
    if (name != NULL)
        fprintf(copy->places, "%s\t%s:%ld\n", name, copy->file, copy->line);
}

static void pay_mark(struct copy *copy)
{
    if (copy->owes_mark && copy->changes->lines)
        fprintf(copy->out, "@text #line %ld \"%s\"\n@nl\n", copy->line,
                copy->file);
    copy->owes_mark = false;
}

static bool copy_line(struct copy *copy, const char *line)
{
    if (strncmp(line, "@fatal", 6) == 0) {
        fprintf(stderr, "%s:%ld: %s\n", copy->file, copy->line, line);
        return false;
    }
    if (strncmp(line, "@file ", 6) == 0) {
        snprintf(copy->file, sizeof copy->file, "%s", line + 6);
        copy->line = 1;
    } else if (strncmp(line, "@begin code", 11) == 0)
        copy->in_code = true;
    else if (strncmp(line, "@end code", 9) == 0) {
        write_end(copy);
        copy->in_code = copy->owes_mark = false;
    }
    if (copy->in_code && strncmp(line, "@defn ", 6) == 0) {
        copy_heading(copy, line + 6);
        return true;
    }
    bool content = copy->in_code && (strncmp(line, "@text", 5) == 0
                                     || strncmp(line, "@use ", 5) == 0);
    if (content && copy->owes_begin)
        write_begin(copy);
    if (content && !copy->skipped)
        pay_mark(copy);
    if (strncmp(line, "@use ", 5) == 0)
        copy->jumped = true;
    if (!copy->skipped || copy->owes_begin)
        fprintf(copy->out, "%s\n", line);
    if (strcmp(line, "@nl") == 0 || strcmp(line, "@index nl") == 0) {
        copy->line++;
        copy->owes_mark = copy->in_code && copy->jumped;
        copy->jumped = false;
    }
    return true;
}

static bool all_seen(const struct copy *copy)
{
    const struct changes *changes = copy->changes;
    bool all = true;
    for (size_t i = 0; i < changes->swap_count; i++)
        if (!copy->swap_seen[i]) {
            fprintf(stderr, "tangle: no chunk is named \"%s\"\n",
                    changes->swaps[i]->by);
            all = false;
        }
    for (size_t i = 0; i < changes->mark_count; i++)
        if (!copy->mark_seen[i]) {
            fprintf(stderr, "tangle: no chunk is named \"%s\"\n",
                    changes->marks[i].chunk);
            all = false;
        }
    return all;
}

bool stream_copy(FILE *in, FILE *out, const struct changes *changes,
                 FILE *places)
{
    struct copy copy = { .out = out, .places = places, .changes = changes };
    char line[LINE_MAX_LENGTH];
    while (fgets(line, sizeof line, in) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (!copy_line(&copy, line))
            return false;
    }
    return all_seen(&copy) && !ferror(in) && fflush(out) == 0;
}
