#include "reveal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "attempt.h"
#include "bench.h"
#include "contract.h"
#include "process.h"
#include "score.h"
#include "verdict.h"

struct reveal {
    const struct workshop *workshop;
    const struct stage *stage;
    struct bench bench;
    enum level level;
    char *path;                 /* the attempt's folder */
    struct list owners;         /* of the last grade's failures */
};

static bool ask(char *line, size_t size)
{
    printf("The first wrong decision, in one line: ");
    fflush(stdout);
    line[0] = '\0';
    if (fgets(line, (int)size, stdin) != NULL)
        line[strcspn(line, "\n")] = '\0';
    if (!isatty(STDIN_FILENO))
        putchar('\n');
    return line[strspn(line, " \t")] != '\0'
        || complain("the answer comes after the first wrong decision:"
                    " type it, or give WRONG=\"...\"");
}

static bool look_up(struct reveal *reveal, bool *open)
{
    struct score *score;
    const char *key = reveal->stage->key;
    if (!score_open(&score, reveal->workshop))
        return false;
    const struct attempt *latest = score_latest(score, key);
    bool found = latest != NULL
        || complain("no attempt at stage %s yet: make blank-%s starts one",
                    key, key);
    *open = found && latest->result == RESULT_OPEN;
    if (found) {
        reveal->level = latest->level;
        reveal->path = text_format("%s/%s", reveal->workshop->attempts,
                                   latest->folder);
        for (size_t i = 0; i < latest->owner_count; i++)
            list_add(&reveal->owners, text_format("%s", latest->owners[i]));
    }
    if (*open && latest->grades == 0 && !latest->reveal_refused) {
        score_refuse_reveal(score, latest);
        found = complain("this attempt was never graded: make grade-%s says"
                         " where it stands. Asked again, reveal answers.",
                         key);
    }
    score_close(&score);
    return found;
}

static bool end_attempt(struct reveal *reveal, const char *wrong)
{
    char line[1024];
    struct score *score;
    bool open;
    if (!look_up(reveal, &open))
        return false;
    if (!open && wrong == NULL)
        return true;
    if (wrong == NULL) {
        if (!ask(line, sizeof line))
            return false;
        wrong = line;
    }
    if (!score_open(&score, reveal->workshop))
        return false;
    const struct attempt *latest = score_latest(score, reveal->stage->key);
    bool done = latest != NULL
        && (latest->result == RESULT_REVEALED
            || score_reveal(score, latest, wrong));
    score_close(&score);
    return done;
}

static char *without_marks(const char *text, struct piece piece)
{
    char *out = allocate(piece.end - piece.begin + 1);
    size_t length = 0;
    for (size_t at = piece.begin, next; at < piece.end; at = next) {
        const char *line = text + at;
        size_t blank = strspn(line, " ");
        next = at + strcspn(line, "\n") + 1;
        if (next > piece.end)
            next = piece.end;
        if (strncmp(line + blank, "// <<", 5) == 0
            || strncmp(line + blank, "// end of <<", 12) == 0)
            continue;
        memcpy(out + length, line, next - at);
        length += next - at;
    }
    return out;
}

static void print_word_diff(const char *path)
{
    char *text = file_read(path);
    char *hunk = text != NULL ? strstr(text, "@@") : NULL;
    if (hunk != NULL)
        hunk = strchr(hunk, '\n');
    if (hunk != NULL)
        printf("%s", hunk + 1);
    free(text);
}

static void show_words(const struct reveal *reveal, const char *yours,
                       const char *book)
{
    struct list argv = { 0 };
    char *first = text_format("%s/yours", reveal->bench.directory);
    char *second = text_format("%s/answer", reveal->bench.directory);
    char *output = text_format("%s/words", reveal->bench.directory);
    list_add_words(&argv, "git --no-pager diff --no-index --no-ext-diff"
                   " -U9999"
                   " --word-diff-regex=[A-Za-z0-9_.]+|[^[:space:]]");
    list_add(&argv, text_format(isatty(STDOUT_FILENO)
                                && getenv("NO_COLOR") == NULL
                                ? "--word-diff=color"
                                : "--word-diff=plain"));
    list_add(&argv, text_format("%s", first));
    list_add(&argv, text_format("%s", second));
    int status = file_write(first, yours, 0666)
        && file_write(second, book, 0666)
        ? process_wait(process_start(&argv, output)) : -1;
    if (status == 0)
        printf("%s(as in the book)\n", book);
    else if (status == 1)
        print_word_diff(output);
    else
        printf("yours:\n%s\nthe book's:\n%s", yours, book);
    list_free(&argv);
    free(first);
    free(second);
    free(output);
}

/* Nothing at all, or the one line that the tool left. */
static bool is_blank(const char *yours)
{
    const char *text = yours + strspn(yours, " \n");
    if (strncmp(text, "BLANK(", 6) == 0)
        text += strcspn(text, "\n");
    return text[strspn(text, " \n")] == '\0';
}

static void show(const struct reveal *reveal, const char *name,
                 const char *yours, const char *book)
{
    const size_t length = strlen(book);
    const char *end = length > 0 && book[length - 1] == '\n' ? "" : "\n";
    printf("\n----- %s\n", name);
    if (is_blank(yours))
        printf("%s%s(yours was blank)\n", book, end);
    else
        show_words(reveal, yours, book);
}

static char *attempt_file(const struct reveal *reveal, const char *file)
{
    char *path = text_format("%s/%s", reveal->path, file);
    char *text = file_read(path);
    free(path);
    return text != NULL ? text : text_format("%s", "");
}

static void compare_chunks(const struct reveal *reveal)
{
    const struct bench *bench = &reveal->bench;
    for (size_t i = 0; i < bench->files.count; i++) {
        char *yours = attempt_file(reveal, bench->files.items[i]);
        char *book = bench_text(bench, bench->files.items[i]);
        for (size_t b = 0; b < reveal->stage->blanks.count; b++) {
            const char *chunk = reveal->stage->blanks.items[b];
            struct piece answer = piece_chunk(book, chunk);
            if (answer.end == answer.begin)
                continue;
            char *left = without_marks(yours, piece_chunk(yours, chunk));
            char *right = without_marks(book, answer);
            if (left[0] != '\0' || strstr(yours, right) == NULL)
                show(reveal, chunk, left, right);
            free(left);
            free(right);
        }
        free(yours);
        free(book);
    }
}

static char *function_text(const char *text, const char *name)
{
    struct functions functions = functions_in(text);
    char *found = NULL;
    for (size_t i = 0; i < functions.count && found == NULL; i++)
        if (strcmp(functions.items[i].name, name) == 0
            && functions.items[i].body.end > functions.items[i].body.begin)
            found = without_marks(text, functions.items[i].whole);
    functions_free(&functions);
    return found;
}

static char *reader_function(const struct reveal *reveal, const char *name)
{
    struct list files = files_in(reveal->path, ".c");
    char *found = NULL;
    for (size_t i = 0; i < files.count && found == NULL; i++) {
        char *text = attempt_file(reveal, files.items[i]);
        found = function_text(text, name);
        free(text);
    }
    list_free(&files);
    return found != NULL ? found : text_format("%s", "");
}

static void compare_functions(const struct reveal *reveal)
{
    for (size_t i = 0; i < reveal->bench.files.count; i++) {
        char *book = bench_text(&reveal->bench, reveal->bench.files.items[i]);
        struct functions functions = functions_in(book);
        for (size_t f = 0; f < functions.count; f++) {
            const struct function *function = &functions.items[f];
            if (!holds_blank(book, function, reveal->stage))
                continue;
            char *yours = reader_function(reveal, function->name);
            char *answer = without_marks(book, function->whole);
            show(reveal, function->name, yours, answer);
            free(yours);
            free(answer);
        }
        functions_free(&functions);
        free(book);
    }
}

enum { OWNERS_MAX = 3 };

static void print_mechanism(const struct swap *swap, const char *owner,
                            bool *any)
{
    if (swap->slug == NULL || swap->mechanism == NULL
        || strcmp(swap->chunk, owner) != 0)
        return;
    if (!*any)
        printf("\nWhat often goes wrong where your tests failed:\n");
    *any = true;
    printf("\n  %s\n", swap->chunk);
    print_wrapped("      ", swap->mechanism);
}

static void print_mechanisms(const struct stages *stages, int chapter,
                             const struct list *owners)
{
    bool any = false;
    for (size_t o = 0; o < owners->count && o < OWNERS_MAX; o++)
        for (size_t i = 0; i < stages->chapters.count; i++)
            for (size_t s = 0; s < stages->fronts[i].count
                 && chapter_number(stages->chapters.items[i]) <= chapter; s++)
                print_mechanism(&stages->fronts[i].swaps[s],
                                owners->items[o], &any);
}

bool command_reveal(const struct workshop *workshop,
                    const struct stages *stages, const struct stage *stage,
                    const char *wrong)
{
    struct reveal reveal = { .workshop = workshop, .stage = stage };
    bool done = end_attempt(&reveal, wrong)
        && bench_open(&reveal.bench, workshop, stages, stage);
    if (done) {
        printf("[-yours-]  {+the book's+}\n");
        if (reveal.level == LEVEL_CHUNK)
            compare_chunks(&reveal);
        else
            compare_functions(&reveal);
        print_mechanisms(stages, stage->chapter, &reveal.owners);
        bench_close(&reveal.bench);
    }
    list_free(&reveal.owners);
    free(reveal.path);
    return done;
}
