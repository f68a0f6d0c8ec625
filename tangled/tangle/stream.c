#include "stream.h"
#include <string.h>

enum { LINE_MAX_LENGTH = 4096 };

struct copy {
    FILE *out, *places;
    const struct swap *const *swaps;
    size_t count;
    bool lines;
    char file[LINE_MAX_LENGTH];  /* where the line came from */
    long line;
    bool in_code;       /* between @begin code and @end code */
    bool jumped;        /* a heading or a hole is on this line */
    bool owes_mark;     /* the next line of code needs a #line */
    bool dropped;       /* this chunk is swapped out */
    unsigned long long seen;   /* bit i: the body of swaps[i] was met */
};

static const struct swap *winner(const struct copy *copy, const char *chunk)
{
    for (size_t i = copy->count; i-- > 0; )
        if (strcmp(copy->swaps[i]->chunk, chunk) == 0)
            return copy->swaps[i];
    return NULL;
}

/* The name under which to emit the chunk, or NULL to drop it. */
static const char *name_after_swaps(struct copy *copy, const char *chunk)
{
    const char *name = winner(copy, chunk) != NULL ? NULL : chunk;
    for (size_t i = 0; i < copy->count; i++)
        if (strcmp(copy->swaps[i]->by, chunk) == 0) {
            copy->seen |= 1ull << i;
            if (winner(copy, copy->swaps[i]->chunk) == copy->swaps[i])
                name = copy->swaps[i]->chunk;
        }
    return name;
}

static void copy_heading(struct copy *copy, const char *chunk)
{
    const char *name = name_after_swaps(copy, chunk);
    copy->jumped = true;
    copy->owes_mark = false;
    copy->dropped = name == NULL;
    fprintf(copy->out, "@defn %s\n", name != NULL ? name : "dropped");
    if (copy->places != NULL && name != NULL)
        fprintf(copy->places, "%s\t%s:%ld\n", name, copy->file, copy->line);
}

static void pay_mark(struct copy *copy)
{
    if (copy->owes_mark && copy->lines)
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
    else if (strncmp(line, "@end code", 9) == 0)
        copy->in_code = copy->owes_mark = false;
    if (copy->in_code && strncmp(line, "@defn ", 6) == 0) {
        copy_heading(copy, line + 6);
        return true;
    }
    if (copy->in_code && (strncmp(line, "@text", 5) == 0
                          || strncmp(line, "@use ", 5) == 0))
        pay_mark(copy);
    if (strncmp(line, "@use ", 5) == 0)
        copy->jumped = true;
    fprintf(copy->out, "%s\n", line);
    if (strcmp(line, "@nl") == 0 || strcmp(line, "@index nl") == 0) {
        copy->line++;
        copy->owes_mark = copy->in_code && copy->jumped;
        copy->jumped = false;
    }
    return true;
}

bool stream_copy(FILE *in, FILE *out, const struct swap *const *swaps,
                 size_t count, bool lines, FILE *places)
{
    struct copy copy = { .out = out, .places = places, .swaps = swaps,
                         .count = count, .lines = lines };
    char line[LINE_MAX_LENGTH];
    if (count > 64) {
        fprintf(stderr, "tangle: more than 64 swaps at once\n");
        return false;
    }
    while (fgets(line, sizeof line, in) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (!copy_line(&copy, line))
            return false;
    }
    for (size_t i = 0; i < count; i++)
        if (!(copy.seen >> i & 1)) {
            fprintf(stderr, "tangle: no chunk is named \"%s\"\n",
                    swaps[i]->by);
            return false;
        }
    return !ferror(in) && fflush(out) == 0;
}
