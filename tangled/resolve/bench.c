#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "process.h"

bool tangle(const struct workshop *workshop, const struct stages *stages,
            int chapter, const char *option, const struct list *chunks,
            const char *directory)
{
    struct list argv = { 0 };
    char *output = text_format("%s/.files", directory);
    list_add(&argv, text_format("%s/bin/tangle", workshop->build));
    for (size_t i = 0; i < chunks->count; i++) {
        list_add(&argv, text_format("%s", option));
        list_add(&argv, text_format("%s", chunks->items[i]));
    }
    list_add(&argv, text_format("--out"));
    list_add(&argv, text_format("%s", directory));
    for (size_t i = 0; i < stages->chapters.count; i++)
        if (chapter_number(stages->chapters.items[i]) <= chapter)
            list_add(&argv, text_format("%s", stages->chapters.items[i]));
    bool done = directory_make(directory) && process_run(&argv, output);
    char *said = done ? NULL : file_read(output);
    if (!done)
        complain("the chapters cannot be tangled\n%s", said ? said : "");
    free(said);
    free(output);
    return done;
}

char *bench_text(const struct bench *bench, const char *file)
{
    char *path = text_format("%s/book/%s", bench->directory, file);
    char *text = file_read(path);
    free(path);
    return text != NULL ? text : text_format("%s", "");
}

static bool has_blank(const char *text, const struct stage *stage)
{
    for (size_t i = 0; i < stage->blanks.count; i++) {
        struct piece piece = piece_chunk(text, stage->blanks.items[i]);
        if (piece.end > piece.begin)
            return true;
    }
    return false;
}

/* Whether a chapter file of the stage has the root chunk of this name. */
static bool begins_here(const struct stages *stages,
                        const struct stage *stage, const char *file)
{
    char *root = text_format("\n<<%s>>=\n", file);
    bool found = false;
    for (size_t i = 0; i < stages->chapters.count && !found; i++)
        if (chapter_number(stages->chapters.items[i]) == stage->chapter) {
            char *text = file_read(stages->chapters.items[i]);
            found = text != NULL && strstr(text, root) != NULL;
            free(text);
        }
    free(root);
    return found;
}

static void find_files(struct bench *bench, const struct stages *stages,
                       const struct stage *stage)
{
    for (size_t i = 0; i < bench->sources.count; i++) {
        const char *file = bench->sources.items[i];
        char *text = bench_text(bench, file);
        if (strcmp(file + strlen(file) - 2, ".c") == 0
            && has_blank(text, stage)) {
            list_add(&bench->files, text_format("%s", file));
            if (!list_has(&stage->given, file)
                && begins_here(stages, stage, file))
                list_add(&bench->own, text_format("%s", file));
        }
        free(text);
    }
}

bool holds_blank(const char *text, const struct function *function,
                 const struct stage *stage)
{
    for (size_t i = 0; i < stage->blanks.count; i++) {
        struct piece piece = piece_chunk(text, stage->blanks.items[i]);
        if (piece.end > piece.begin && piece.begin >= function->whole.begin
            && piece.end <= function->whole.end)
            return true;
    }
    return false;
}

static void close_over_calls(const char *text,
                             const struct functions *functions, bool *wanted)
{
    for (bool grew = true; grew; ) {
        grew = false;
        for (size_t i = 0; i < functions->count; i++)
            for (size_t j = 0; j < functions->count && !wanted[i]; j++)
                if (wanted[j] && piece_has_word(text,
                        functions->items[i].body, functions->items[j].name))
                    grew = wanted[i] = true;
    }
}

static void find_tasks(struct bench *bench, const struct stage *stage,
                       const char *file)
{
    char *text = bench_text(bench, file);
    struct functions functions = functions_in(text);
    bool *wanted = allocate(functions.count * sizeof *wanted);
    for (size_t i = 0; i < functions.count; i++)
        wanted[i] = holds_blank(text, &functions.items[i], stage);
    close_over_calls(text, &functions, wanted);
    struct task *longer = allocate((bench->task_count + functions.count)
                                   * sizeof *longer);
    for (size_t i = 0; i < bench->task_count; i++)
        longer[i] = bench->tasks[i];
    free(bench->tasks);
    bench->tasks = longer;
    for (size_t i = 0; i < functions.count; i++)
        if (wanted[i] && !functions.items[i].is_static)
            longer[bench->task_count++] = (struct task){
                text_format("%s", file),
                text_format("%s", functions.items[i].name) };
    free(wanted);
    functions_free(&functions);
    free(text);
}

static bool take_lock(struct bench *bench)
{
    char *path = text_format("%s/lock", bench->directory);
    bench->lock = open(path, O_RDWR | O_CREAT, 0666);
    while (bench->lock >= 0 && flock(bench->lock, LOCK_EX) != 0)
        if (errno != EINTR)
            break;
    bool taken = bench->lock >= 0
        || complain("%s: %s", path, strerror(errno));
    free(path);
    return taken;
}

static void read_lines(struct list *list, const char *path)
{
    char *text = file_read(path);
    for (char *line = text; line != NULL && *line != '\0'; ) {
        size_t length = strcspn(line, "\n");
        list_add(list, text_format("%.*s", (int)length, line));
        line += length + (line[length] == '\n');
    }
    free(text);
}

bool bench_open(struct bench *bench, const struct workshop *workshop,
                const struct stages *stages, const struct stage *stage)
{
    *bench = (struct bench){ .lock = -1 };
    bench->directory = text_format("%s/resolve/%s", workshop->build,
                                   stage->key);
    bench->prefix = text_format("%s/%d", workshop->build, stage->chapter);
    char *book = text_format("%s/book", bench->directory);
    char *files = text_format("%s/.files", book);
    char *stream = text_format("%s/.stream", book);
    bool opened = directory_make(bench->directory) && take_lock(bench)
        && tangle(workshop, stages, stage->chapter, "--mark",
                  &stage->blanks, book);
    if (opened) {
        read_lines(&bench->sources, files);
        bench->stream = file_read(stream);
        find_files(bench, stages, stage);
        for (size_t i = 0; i < bench->files.count; i++)
            find_tasks(bench, stage, bench->files.items[i]);
    }
    free(book);
    free(files);
    free(stream);
    return opened;
}

static bool is_newer(const char *path, const char *than)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(than, &b) == 0
        && (a.st_mtim.tv_sec > b.st_mtim.tv_sec
            || (a.st_mtim.tv_sec == b.st_mtim.tv_sec
                && a.st_mtim.tv_nsec > b.st_mtim.tv_nsec));
}

static bool run_tool(struct bench *bench, struct list *argv)
{
    char *output = text_format("%s/link/output", bench->directory);
    char *what = text_format("%s", argv->items[0]);
    bool done = process_run(argv, output);
    char *said = done ? NULL : file_read(output);
    if (!done)
        complain("%s failed\n%s", what, said ? said : "");
    free(said);
    free(what);
    free(output);
    return done;
}

static bool link_directories(struct bench *bench)
{
    char *own = text_format("%s/link/own", bench->directory);
    bool made = directory_make(own);
    struct list old = files_in(own, ".o");
    for (size_t i = 0; i < old.count; i++) {
        char *path = text_format("%s/%s", own, old.items[i]);
        remove(path);
        free(path);
    }
    list_free(&old);
    free(own);
    return made;
}

static bool write_public(struct bench *bench)
{
    struct list argv = { 0 }, lines = { 0 };
    char *output = text_format("%s/link/names", bench->directory);
    char *public = text_format("%s/link/public", bench->directory);
    char *all = text_format("%s", "");
    list_add_words(&argv, "nm -g -P --defined-only");
    list_add(&argv, text_format("%s/libtinygpt.a", bench->prefix));
    bool done = process_run(&argv, output)
        || complain("nm cannot read %s/libtinygpt.a", bench->prefix);
    read_lines(&lines, output);
    for (size_t i = 0; i < lines.count; i++) {
        const char *line = lines.items[i];
        int length = (int)strcspn(line, " ");
        if (line[length] != ' ' || strchr(line, ':') != NULL)
            continue;
        char *longer = text_format("%s%.*s\n", all, length, line);
        free(all);
        all = longer;
    }
    done = done && file_write(public, all, 0666);
    list_free(&lines);
    free(output);
    free(public);
    free(all);
    return done;
}

static bool weaken_own(struct bench *bench)
{
    bool done = true;
    for (size_t i = 0; done && i < bench->files.count; i++) {
        const char *file = bench->files.items[i];
        int base = (int)strlen(file) - 2;
        struct list argv = { 0 };
        list_add_words(&argv, "objcopy");
        list_add(&argv, text_format("--weaken-symbols=%s/link/public",
                                    bench->directory));
        for (size_t t = 0; t < bench->task_count; t++)
            if (strcmp(bench->tasks[t].file, file) == 0)
                list_add(&argv, text_format("--localize-symbol=%s",
                                            bench->tasks[t].name));
        list_add(&argv, text_format("%s/obj/%.*s.o", bench->prefix, base,
                                    file));
        list_add(&argv, text_format("%s/link/own/%.*s.o", bench->directory,
                                    base, file));
        done = run_tool(bench, &argv);
    }
    return done;
}

static bool join_rest(struct bench *bench, const char *rest)
{
    struct list join = { 0 }, weaken = { 0 };
    char *objects = text_format("%s/obj", bench->prefix);
    struct list all = files_in(objects, ".o");
    list_add_words(&join, "ld -r -o");
    list_add(&join, text_format("%s", rest));
    for (size_t i = 0; i < all.count; i++) {
        char *file = text_format("%.*s.c", (int)strlen(all.items[i]) - 2,
                                 all.items[i]);
        if (list_has(&bench->sources, file) && strcmp(file, "tinygpt.c") != 0
            && !list_has(&bench->files, file))
            list_add(&join, text_format("%s/%s", objects, all.items[i]));
        free(file);
    }
    list_add_words(&weaken, "objcopy");
    list_add(&weaken, text_format("--weaken-symbols=%s/link/public",
                                  bench->directory));
    list_add(&weaken, text_format("%s", rest));
    bool done = run_tool(bench, &join);
    if (done)
        done = run_tool(bench, &weaken);
    else
        list_free(&weaken);
    list_free(&all);
    free(objects);
    return done;
}

bool bench_link(struct bench *bench)
{
    char *rest = text_format("%s/link/rest.o", bench->directory);
    char *library = text_format("%s/libtinygpt.a", bench->prefix);
    char *tasks = text_format("%s", ""), *longer;
    for (size_t i = 0; i < bench->task_count; i++) {
        longer = text_format("%s%s %s\n", tasks, bench->tasks[i].file,
                             bench->tasks[i].name);
        free(tasks);
        tasks = longer;
    }
    char *list = text_format("%s/link/tasks", bench->directory);
    char *before = file_read(list);
    bool made = is_newer(rest, library) && before != NULL
        && strcmp(before, tasks) == 0;
    if (!made)
        made = link_directories(bench) && write_public(bench)
            && weaken_own(bench) && join_rest(bench, rest)
            && file_write(list, tasks, 0666);
    free(rest);
    free(library);
    free(tasks);
    free(list);
    free(before);
    return made;
}

void bench_close(struct bench *bench)
{
    if (bench->lock >= 0)
        close(bench->lock);
    for (size_t i = 0; i < bench->task_count; i++) {
        free(bench->tasks[i].file);
        free(bench->tasks[i].name);
    }
    free(bench->tasks);
    free(bench->directory);
    free(bench->prefix);
    free(bench->stream);
    list_free(&bench->sources);
    list_free(&bench->files);
    list_free(&bench->own);
    *bench = (struct bench){ .lock = -1 };
}
