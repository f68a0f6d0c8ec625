#define _XOPEN_SOURCE 700       /* realpath */
#include "attempt.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cjson/cJSON.h>
#include "bench.h"
#include "contract.h"
#include "pieces.h"

static bool choose_chunks(const struct stage *stage, const char *only,
                          struct list *chosen)
{
    for (size_t i = 0; i < stage->blanks.count; i++) {
        const char *blank = stage->blanks.items[i];
        if (only == NULL || strstr(blank, only) != NULL)
            list_add(chosen, text_format("%s", blank));
    }
    if (only != NULL && list_has(&stage->blanks, only)) {
        list_free(chosen);
        list_add(chosen, text_format("%s", only));
    }
    if (only == NULL || chosen->count == 1)
        return true;
    complain(chosen->count == 0
             ? "ONLY: no blank of stage %s has \"%s\" in its name; it has"
             : "ONLY: more than one blank of stage %s has \"%s\" in its name",
             stage->key, only);
    const struct list *names = chosen->count == 0 ? &stage->blanks : chosen;
    for (size_t i = 0; i < names->count; i++)
        fprintf(stderr, "  %s\n", names->items[i]);
    return false;
}

static char *blank_functions(const char *text, const struct list *chosen)
{
    struct functions functions = functions_in(text);
    char *out = text_format("%s", "");
    size_t done = 0;
    for (size_t i = 0; i < functions.count; i++) {
        const struct function *function = &functions.items[i];
        bool holds = false;
        for (size_t c = 0; c < chosen->count; c++) {
            struct piece piece = piece_chunk(text, chosen->items[c]);
            holds = holds || (piece.end > piece.begin
                              && piece.begin >= function->body.begin
                              && piece.end <= function->body.end);
        }
        if (!holds)
            continue;
        char *longer = text_format("%s%.*s\n    BLANK(\"%s\");\n", out,
                                   (int)(function->body.begin - done),
                                   text + done, function->name);
        free(out);
        out = longer;
        done = function->body.end;
    }
    char *all = text_format("%s%s", out, text + done);
    free(out);
    functions_free(&functions);
    return all;
}

static char *attempt_text(const struct bench *bench, const char *file,
                          enum level level, const struct list *chosen)
{
    char *path = text_format("%s/blank/%s", bench->directory, file);
    char *text = file_read(path);
    free(path);
    if (text == NULL || level == LEVEL_CHUNK)
        return text;
    char *other = level == LEVEL_EMPTY && list_has(&bench->own, file)
        ? text_format("%s", "") : blank_functions(text, chosen);
    free(text);
    return other;
}

static bool holds_any(const char *text, const struct list *chosen)
{
    for (size_t i = 0; i < chosen->count; i++) {
        struct piece piece = piece_chunk(text, chosen->items[i]);
        if (piece.end > piece.begin)
            return true;
    }
    return false;
}

static bool write_files(const struct bench *bench, const char *folder,
                        enum level level, const struct list *chosen,
                        struct list *written)
{
    bool done = true;
    for (size_t i = 0; done && i < bench->files.count; i++) {
        const char *file = bench->files.items[i];
        char *book = bench_text(bench, file);
        char *text = attempt_text(bench, file, holds_any(book, chosen)
                                  ? level : LEVEL_CHUNK, chosen);
        char *path = text_format("%s/%s", folder, file);
        done = text != NULL && file_write(path, text, 0644);
        list_add(written, text_format("%s", file));
        free(path);
        free(text);
        free(book);
    }
    return done;
}

static bool copy_header(const char *from, const char *to)
{
    char *text = file_read(from);
    bool done = text != NULL ? file_write(to, text, 0444)
                             : complain("%s: %s", from, strerror(errno));
    free(text);
    return done;
}

static bool write_headers(const struct workshop *workshop,
                          const struct bench *bench, const char *folder)
{
    char *include = text_format("%s/include", folder);
    char *from = text_format("%s/plain/resolve/blank.h", workshop->build);
    char *to = text_format("%s/blank.h", include);
    bool done = directory_make(include) && copy_header(from, to);
    free(from);
    free(to);
    for (size_t i = 0; done && i < bench->sources.count; i++) {
        const char *file = bench->sources.items[i];
        const char *dot = strrchr(file, '.');
        if (strcmp(dot, ".c") == 0 || strchr(file, '/') != NULL)
            continue;
        from = text_format("%s/book/%s", bench->directory, file);
        to = text_format("%s/%s", include, file);
        done = copy_header(from, to);
        free(from);
        free(to);
    }
    free(include);
    return done;
}

static bool write_commands(const char *folder, const char *final,
                           const struct list *files)
{
    cJSON *commands = cJSON_CreateArray();
    for (size_t i = 0; i < files->count; i++) {
        cJSON *command = cJSON_CreateObject();
        struct list words = { 0 };
        list_add_words(&words, RESOLVE_CC " " RESOLVE_CFLAGS
                       " -Iinclude -include include/blank.h -c");
        list_add(&words, text_format("%s", files->items[i]));
        cJSON_AddStringToObject(command, "directory", final);
        cJSON_AddStringToObject(command, "file", files->items[i]);
        cJSON_AddItemToObject(command, "arguments", cJSON_CreateStringArray(
            (const char *const *)words.items, (int)words.count));
        cJSON_AddItemToArray(commands, command);
        list_free(&words);
    }
    char *text = cJSON_Print(commands);
    char *path = text_format("%s/compile_commands.json", folder);
    bool done = text != NULL && file_write(path, text, 0644);
    free(path);
    cJSON_free(text);
    cJSON_Delete(commands);
    return done;
}

struct making {
    char *draft;        /* where it is being made */
    char *folder;       /* below attempts/ */
    char *path;         /* where it will be */
    struct list files;
};

static void choose_folder(struct making *making,
                          const struct workshop *workshop,
                          const struct stage *stage)
{
    struct moment now = moment_now();
    struct stat found;
    char stamp[20];
    snprintf(stamp, sizeof stamp, "%.19s", now.stamp);
    for (char *at = stamp; *at != '\0'; at++)
        if (*at == ':')
            *at = '-';
    for (int again = 1; making->path == NULL; again++) {
        char *suffix = text_format(again > 1 ? "-%d" : "", again);
        making->folder = text_format("%s/%s%s", stage->name, stamp, suffix);
        making->path = text_format("%s/%s", workshop->attempts,
                                   making->folder);
        free(suffix);
        if (stat(making->path, &found) != 0)
            break;
        free(making->folder);
        free(making->path);
        making->path = NULL;
    }
    making->draft = text_format("%s/%s/.new-%ld", workshop->attempts,
                                stage->name, (long)getpid());
}

static bool make_folder(struct making *making,
                        const struct workshop *workshop,
                        const struct bench *bench, enum level level,
                        const struct list *chosen)
{
    if (!directory_make(making->draft))
        return false;
    char *top = realpath(workshop->attempts, NULL);
    char *final = text_format("%s/%s", top != NULL ? top : "",
                              making->folder);
    bool done = write_files(bench, making->draft, level, chosen,
                            &making->files)
        && write_headers(workshop, bench, making->draft)
        && write_commands(making->draft, final, &making->files)
        && (rename(making->draft, making->path) == 0
            || complain("%s: %s", making->path, strerror(errno)));
    free(top);
    free(final);
    return done;
}

static int line_of(const char *text, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < offset; i++)
        line += text[i] == '\n';
    return line;
}

static void print_head(const char *text, const struct function *function)
{
    char *head = text_format("%.*s", (int)(function->head.end
                                           - function->head.begin),
                             text + function->head.begin);
    print_wrapped("      ", head);
    free(head);
}

static void print_comment(const char *text, struct piece comment)
{
    char *words = text_format("%.*s", (int)(comment.end - comment.begin),
                              text + comment.begin);
    if (strncmp(words, "/*", 2) == 0) {
        memset(words, ' ', 2);
        words[strlen(words) - 2] = '\0';
    }
    print_wrapped("      ", words);
    free(words);
}

static void print_public_comment(const struct bench *bench, const char *name)
{
    for (size_t i = 0; i < bench->sources.count; i++) {
        const char *file = bench->sources.items[i];
        if (strcmp(file + strlen(file) - 2, ".h") != 0)
            continue;
        char *text = bench_text(bench, file);
        struct functions functions = functions_in(text);
        for (size_t f = 0; f < functions.count; f++)
            if (strcmp(functions.items[f].name, name) == 0)
                print_comment(text, functions.items[f].comment);
        functions_free(&functions);
        free(text);
    }
}

static void print_function(const struct bench *bench, const char *text,
                           const struct function *function)
{
    print_head(text, function);
    print_comment(text, function->comment);
    if (!function->is_static)
        print_public_comment(bench, function->name);
}

/* before: the beginning of the function that was shown last. */
static void print_chunk(const char *file, const char *text,
                        const struct bench *bench, const char *chunk,
                        struct piece piece, size_t *before, int number)
{
    struct functions functions = functions_in(text);
    char *contract = contract_of(bench->stream, chunk);
    printf("\n%3d  %s\n      %s:%d\n", number, chunk, file,
           line_of(text, piece.begin));
    for (size_t i = 0; i < functions.count; i++) {
        const struct function *function = &functions.items[i];
        if (function->body.begin > piece.begin
            || piece.end > function->body.end
            || function->body.begin == *before)
            continue;
        print_function(bench, text, function);
        *before = function->body.begin;
    }
    print_wrapped("      ", contract);
    free(contract);
    functions_free(&functions);
}

static void print_chunks(const struct making *making,
                         const struct bench *bench, const struct list *chosen)
{
    size_t before = 0;
    int number = 0;
    for (size_t i = 0; i < chosen->count; i++)
        for (size_t f = 0; f < making->files.count; f++) {
            const char *file = making->files.items[f];
            char *path = text_format("%s/%s", making->path, file);
            char *text = file_read(path);
            struct piece piece = piece_chunk(text != NULL ? text : "",
                                             chosen->items[i]);
            if (piece.end > piece.begin)
                print_chunk(file, text, bench, chosen->items[i], piece,
                            &before, ++number);
            free(text);
            free(path);
        }
}

static bool is_asked(const struct bench *bench, const char *file,
                     const char *name, const char *attempt, bool empty)
{
    char *blank = text_format("BLANK(\"%s\")", name);
    bool asked = !empty && strstr(attempt, blank) != NULL;
    for (size_t i = 0; empty && i < bench->task_count; i++)
        asked = asked || (strcmp(bench->tasks[i].name, name) == 0
                          && strcmp(bench->tasks[i].file, file) == 0);
    free(blank);
    return asked;
}

static void print_contracts(const struct bench *bench, const char *book,
                            const struct function *function,
                            const struct list *chosen)
{
    for (size_t i = 0; i < chosen->count; i++) {
        struct piece piece = piece_chunk(book, chosen->items[i]);
        if (piece.end == piece.begin || piece.begin < function->body.begin
            || piece.end > function->body.end)
            continue;
        char *contract = contract_of(bench->stream, chosen->items[i]);
        printf("      - %s.\n", chosen->items[i]);
        print_wrapped("        ", contract);
        free(contract);
    }
}

static void print_functions(const struct making *making,
                            const struct bench *bench, const char *file,
                            enum level level, const struct list *chosen,
                            int *number)
{
    char *path = text_format("%s/%s", making->path, file);
    char *attempt = file_read(path), *book = bench_text(bench, file);
    struct functions functions = functions_in(book);
    bool empty = level == LEVEL_EMPTY && list_has(&bench->own, file)
        && attempt != NULL && attempt[0] == '\0';
    for (size_t i = 0; attempt != NULL && i < functions.count; i++) {
        const struct function *function = &functions.items[i];
        if (!is_asked(bench, file, function->name, attempt, empty))
            continue;
        printf("\n%3d  %s\n      %s\n", ++*number, function->name, file);
        print_function(bench, book, function);
        print_contracts(bench, book, function, chosen);
    }
    functions_free(&functions);
    free(attempt);
    free(book);
    free(path);
}

static void print_task(const struct making *making, const struct bench *bench,
                       const struct stage *stage, enum level level,
                       const struct list *chosen)
{
    printf("Stage %s, %s. %d minutes from now.\n", stage->key, stage->title,
           stage->minutes);
    print_wrapped("Stop when: ", stage->stop);
    printf("\n%s\n", making->path);
    for (size_t i = 0; i < making->files.count; i++)
        printf("  %s\n", making->files.items[i]);
    printf("  include/ (read-only)\n");
    int number = 0;
    if (level == LEVEL_CHUNK)
        print_chunks(making, bench, chosen);
    for (size_t i = 0; level != LEVEL_CHUNK && i < making->files.count; i++)
        print_functions(making, bench, making->files.items[i], level,
                        chosen, &number);
    printf("\nNext: edit, then   make grade-%s   (or make watch-%s beside"
           " it).\n", stage->key, stage->key);
}

static bool refuse_running(const struct workshop *workshop,
                           const struct stage *stage)
{
    struct score *score;
    if (!score_open(&score, workshop))
        return false;
    const struct attempt *latest = score_latest(score, stage->key);
    bool runs = latest != NULL && latest->result == RESULT_OPEN;
    if (runs)
        complain("an attempt at stage %s runs since %.19s: grade-%s goes on,"
                 " RESTART=1 begins anew (the folder stays)", stage->key,
                 latest->began.stamp, stage->key);
    score_close(&score);
    return !runs;
}

static bool log_start(const struct workshop *workshop,
                      const struct stage *stage, const char *folder,
                      enum level level)
{
    struct score *score;
    if (!score_open(&score, workshop))
        return false;
    const struct attempt *latest = score_latest(score, stage->key);
    bool done = (latest == NULL || latest->result != RESULT_OPEN
                 || score_abandon(score, latest))
        && score_start(score, stage->key, folder, level,
                       60.0 * stage->minutes);
    score_close(&score);
    return done;
}

bool command_blank(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage,
                   const struct blank_request *request)
{
    struct list chosen = { 0 };
    struct making making = { 0 };
    struct bench bench;
    if (!choose_chunks(stage, request->only, &chosen)
        || (!request->restart && !refuse_running(workshop, stage))) {
        list_free(&chosen);
        return false;
    }
    bool done = bench_open(&bench, workshop, stages, stage)
        && (request->restart || refuse_running(workshop, stage));
    if (done) {
        char *blank = text_format("%s/blank", bench.directory);
        choose_folder(&making, workshop, stage);
        done = tangle(workshop, stages, stage->chapter, "--blank", &chosen,
                      blank)
            && make_folder(&making, workshop, &bench, request->level,
                           &chosen)
            && log_start(workshop, stage, making.folder, request->level);
        if (done)
            print_task(&making, &bench, stage, request->level, &chosen);
        free(blank);
    }
    bench_close(&bench);
    list_free(&chosen);
    list_free(&making.files);
    free(making.draft);
    free(making.folder);
    free(making.path);
    return done;
}
