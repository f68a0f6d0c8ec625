#define _GNU_SOURCE
#include "ends.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "process.h"

enum { SECONDS_MAX = 100, WORDS_MAX = 24 };

struct stages stages;
char *said, *complained;
double took;

static char place[4096];
static const struct workshop book = { "book", "", "build" };

/* --------------------------------------------------------------- the place */

const char *below(const char *format, ...)
{
    static char paths[64][8192];
    static int next;
    char *path = paths[next++ % 64];
    int length = snprintf(path, sizeof *paths, "%s/", place);
    va_list list;
    va_start(list, format);
    vsnprintf(path + length, sizeof *paths - (size_t)length, format, list);
    va_end(list);
    return path;
}

static void link_build(void)
{
    char *top = realpath("build", NULL);
    ck_assert_msg(top != NULL, "no build/: the suites run where make does");
    DIR *open = opendir("build");
    ck_assert_ptr_nonnull(open);
    for (struct dirent *entry; (entry = readdir(open)) != NULL; ) {
        const char *name = entry->d_name;
        if (name[0] == '.' || strcmp(name, "resolve") == 0)
            continue;
        char *from = text_format("%s/%s", top, name);
        ck_assert_int_eq(symlink(from, below("build/%s", name)), 0);
        free(from);
    }
    closedir(open);
    free(top);
}

void place_make(void)
{
    char *made = text_format("%s/ends-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(made));
    ck_assert_ptr_nonnull(realpath(made, place));
    free(made);
    ck_assert_int_eq(mkdir(below("build"), 0777), 0);
    link_build();
    ck_assert(stages_read(&stages, &book));
}

void place_remove(void)
{
    const char *const words[] = { "rm", "-rf", place, NULL };
    int left = processes_left();
    ck_assert_msg(left == 0, "%d processes are left", left);
    stages_free(&stages);
    free(said);
    free(complained);
    said = complained = NULL;
    pid_t child = fork();
    if (child == 0) {
        execvp(words[0], (char *const *)words);
        _exit(127);
    }
    waitpid(child, NULL, 0);
}

/* ------------------------------------------------------------- running it */

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void type_in(const char *text)
{
    write_text(below("in"), text);
}

static void become_resolve(char **words, const char *out, const char *err)
{
    const char *in = access(below("in"), R_OK) == 0 ? below("in")
                                                     : "/dev/null";
    dup2(open(in, O_RDONLY), 0);
    dup2(open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
    dup2(open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
    setenv("ENDS_PLACE", place, 1);
    execv(words[0], words);
    _exit(127);
}

/* Options that a test gives come last, and win. */
static pid_t start(const char *word, va_list list, const char *out,
                   const char *err)
{
    static char attempts[4200], build[4200];
    char *words[WORDS_MAX] = { (char *)harness_program(), "--attempts",
                               attempts, "--build", build };
    snprintf(attempts, sizeof attempts, "%s/attempts", place);
    snprintf(build, sizeof build, "%s/build", place);
    int count = 5;
    for (; word != NULL && count < WORDS_MAX - 1;
         word = va_arg(list, const char *))
        words[count++] = (char *)word;
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        become_resolve(words, out, err);
    return child;
}

pid_t resolve_start(const char *word, ...)
{
    va_list list;
    va_start(list, word);
    pid_t child = start(word, list, "/dev/null", "/dev/null");
    va_end(list);
    return child;
}

int resolve_wait(pid_t child)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    const double began = seconds_now();
    int status;
    pid_t gone;
    while ((gone = waitpid(child, &status, WNOHANG)) == 0
           && seconds_now() - began < SECONDS_MAX)
        nanosleep(&pause, NULL);
    if (gone == 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        ck_abort_msg("the tool ran for more than %d seconds", SECONDS_MAX);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int resolve(const char *word, ...)
{
    const double began = seconds_now();
    va_list list;
    va_start(list, word);
    int status = resolve_wait(start(word, list, below("out"), below("err")));
    va_end(list);
    took = seconds_now() - began;
    remove(below("in"));
    free(said);
    free(complained);
    said = read_text(below("out"));
    complained = read_text(below("err"));
    return status;
}

int grade_on_known_data(const char *stage_key)
{
    return resolve("grade", stage_key, "--seed", "1", NULL);
}

bool has_line(const char *text, const char *line)
{
    const size_t length = strlen(line);
    for (const char *at = text; at != NULL; ) {
        at += strspn(at, " \n");
        size_t size = strcspn(at, "\n");
        while (size > 0 && at[size - 1] == ' ')
            size--;
        if (size == length && strncmp(at, line, size) == 0)
            return true;
        at = strchr(at, '\n');
    }
    return false;
}

void expect_says(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words) != NULL, "no \"%s\" in: %.1500s", words,
                  text);
}

/* A process carries the mark in its environment, or runs a program of the
   place. */
static bool is_marked(const char *pid)
{
    char path[300], found[8192];
    snprintf(path, sizeof path, "/proc/%s/exe", pid);
    ssize_t length = readlink(path, found, sizeof found - 1);
    if (length > 0 && strncmp(found, place, strlen(place)) == 0)
        return true;
    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    FILE *file = fopen(path, "r");
    char *entry = NULL;
    size_t size = 0;
    bool marked = false;
    while (file != NULL && !marked && getdelim(&entry, &size, 0, file) > 0)
        marked = strncmp(entry, "ENDS_PLACE=", 11) == 0
            && strcmp(entry + 11, place) == 0;
    free(entry);
    if (file != NULL)
        fclose(file);
    return marked;
}

int processes_left(void)
{
    int left = 0;
    DIR *open = opendir("/proc");
    ck_assert_ptr_nonnull(open);
    for (struct dirent *entry; (entry = readdir(open)) != NULL; )
        if (isdigit((unsigned char)entry->d_name[0]))
            left += is_marked(entry->d_name);
    closedir(open);
    return left;
}

/* ----------------------------------------------------------------- the log */

cJSON *log_read(void)
{
    char *text = file_read(below("attempts/log.jsonl"));
    cJSON *lines = text != NULL && text[0] != '\0' ? cJSON_CreateArray()
                                                   : NULL;
    for (char *line = text, *end; line != NULL && *line != '\0';
         line = end + 1) {
        end = strchr(line, '\n');
        ck_assert_msg(end != NULL, "a torn line: %s", line);
        *end = '\0';
        cJSON *event = cJSON_ParseWithOpts(line, NULL, true);
        ck_assert_msg(cJSON_IsObject(event), "no object: %s", line);
        cJSON_AddItemToArray(lines, event);
    }
    free(text);
    return lines;
}

cJSON *log_last(void)
{
    cJSON *lines = log_read();
    int count = cJSON_GetArraySize(lines);
    cJSON *last = count > 0 ? cJSON_DetachItemFromArray(lines, count - 1)
                            : NULL;
    cJSON_Delete(lines);
    return last;
}

int log_count(const char *event)
{
    cJSON *lines = log_read(), *line;
    int count = 0;
    cJSON_ArrayForEach(line, lines)
        count += strcmp(text_in(line, "event"), event) == 0;
    cJSON_Delete(lines);
    return count;
}

int number_in(const cJSON *event, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(event, name);
    ck_assert_msg(cJSON_IsNumber(item), "no number %s", name);
    return item->valueint;
}

const char *text_in(const cJSON *event, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(event, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

void expect_grade(int passed, int failed)
{
    cJSON *last = log_last();
    ck_assert_ptr_nonnull(last);
    ck_assert_str_eq(text_in(last, "event"), "grade");
    int p = number_in(last, "passed"), f = number_in(last, "failed");
    ck_assert_msg((passed < 0 || p == passed) && p + f > 0
                  && (failed < 0 ? f > 0 : f == failed)
                  && text_in(last, "problem")[0] == '\0',
                  "%d passed, %d failed: %s\n%.1500s%s", p, f,
                  text_in(last, "problem"), said, complained);
    cJSON_Delete(last);
}

enum result result_of(const char *key)
{
    const char *attempts = below("attempts");
    struct workshop workshop = { "book", attempts, "build" };
    struct score *score;
    ck_assert(score_open(&score, &workshop));
    const struct attempt *latest = score_latest(score, key);
    ck_assert_ptr_nonnull(latest);
    enum result result = latest->result;
    score_close(&score);
    return result;
}

/* ----------------------------------------------------------------- folders */

const char *folder_of(const char *key)
{
    const char *folder = NULL;
    cJSON *lines = log_read(), *line;
    cJSON_ArrayForEach(line, lines)
        if (strcmp(text_in(line, "event"), "start") == 0
            && strcmp(text_in(line, "stage"), key) == 0)
            folder = below("attempts/%s", text_in(line, "folder"));
    cJSON_Delete(lines);
    ck_assert_msg(folder != NULL, "no attempt at stage %s", key);
    return folder;
}

char *read_text(const char *path)
{
    char *text = file_read(path);
    ck_assert_msg(text != NULL, "%s: %s", path, strerror(errno));
    return text;
}

void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

void write_into(const char *key, const char *file, const char *text)
{
    char *path = text_format("%s/%s", folder_of(key), file);
    write_text(path, text);
    free(path);
}

char *read_from(const char *key, const char *file)
{
    char *path = text_format("%s/%s", folder_of(key), file);
    char *text = read_text(path);
    free(path);
    return text;
}

char *replaced(char *text, const char *old, const char *by)
{
    char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "no \"%s\" in: %.1500s", old, text);
    char *fresh = text_format("%.*s%s%s", (int)(at - text), text, by,
                              at + strlen(old));
    free(text);
    return fresh;
}

/* ---------------------------------------------------------- the book's code */

/* Growth by names: `chunk` becomes another one, and `by` takes its name. */
static char *grown(char *text, const struct swap *swap)
{
    char *chunk = text_format("\n<<%s>>=\n", swap->chunk);
    char *before = text_format("\n<<%s, before>>=\n", swap->chunk);
    char *by = text_format("\n<<%s>>=\n", swap->by);
    if (strstr(text, chunk) != NULL)
        text = replaced(text, chunk, before);
    text = replaced(text, by, chunk);
    free(chunk);
    free(before);
    free(by);
    return text;
}

static char *chapters_up_to(int chapter)
{
    char *all = text_format("%s", "");
    for (size_t i = 0; i < stages.chapters.count; i++) {
        if (chapter_number(stages.chapters.items[i]) > chapter)
            continue;
        char *text = read_text(stages.chapters.items[i]);
        char *longer = text_format("%s%s\n", all, text);
        free(all);
        free(text);
        all = longer;
        for (size_t s = 0; s < stages.fronts[i].count; s++)
            if (stages.fronts[i].swaps[s].slug == NULL)
                all = grown(all, &stages.fronts[i].swaps[s]);
    }
    return all;
}

/* Runs a line of shell on two arguments; what it says is below("right"). */
static void shell(const char *line, const char *first, const char *second)
{
    struct list argv = { 0 };
    list_add_words(&argv, "sh -c");
    list_add(&argv, text_format("%s", line));
    list_add(&argv, text_format("%s", first));
    list_add(&argv, text_format("%s", second));
    ck_assert_msg(process_run(&argv, below("right")), "%s: %s", line, first);
}

char *right_text(int chapter, const char *root)
{
    char *stream = text_format("%s", below("right-%d", chapter));
    const char *source = below("right.nw"), *result = below("right");
    if (access(stream, R_OK) != 0) {
        char *text = chapters_up_to(chapter);
        write_text(source, text);
        free(text);
        shell("/usr/lib/noweb/markup \"$0\" > \"$1\"", source, stream);
    }
    shell("/usr/lib/noweb/nt \"-R$0\" < \"$1\"", root, stream);
    free(stream);
    return read_text(result);
}

static struct list files_of(const struct stage *stage)
{
    struct list files = files_in(folder_of(stage->key), ".c");
    ck_assert_uint_gt(files.count, 0);
    return files;
}

/* Indented as the mark is, lest the compiler think it misleading. */
static char *indented(const char *text, int blanks)
{
    char *all = text_format("%s", "");
    for (const char *line = text; *line != '\0'; ) {
        int length = (int)strcspn(line, "\n");
        int before = length > 0 && line[0] != '#' ? blanks : 0;
        char *longer = text_format("%s%*s%.*s\n", all, before, "", length,
                                   line);
        free(all);
        all = longer;
        line += length + (line[length] == '\n');
    }
    return all;
}

static char *paste_chunk(char *text, const struct stage *stage,
                         const char *chunk)
{
    char *first = text_format("// <<%s>>\n", chunk);
    char *last = text_format("// end of <<%s>>", chunk);
    char *begin = strstr(text, first);
    char *end = begin != NULL ? strstr(begin, last) : NULL;
    if (end != NULL) {
        int column = 0;
        while (begin - column > text && begin[-column - 1] == ' ')
            column++;
        char *body = right_text(stage->chapter, chunk);
        char *lines = indented(body, column);
        char *fresh = text_format("%.*s%s%*s%s",
                                  (int)(begin + strlen(first) - text), text,
                                  lines, column, "", end);
        free(body);
        free(lines);
        free(text);
        text = fresh;
    }
    free(first);
    free(last);
    return text;
}

void paste_chunks(const struct stage *stage)
{
    struct list files = files_of(stage);
    for (size_t i = 0; i < files.count; i++) {
        char *text = read_from(stage->key, files.items[i]);
        for (size_t b = 0; b < stage->blanks.count; b++)
            text = paste_chunk(text, stage, stage->blanks.items[b]);
        write_into(stage->key, files.items[i], text);
        free(text);
    }
    list_free(&files);
}

/* A blank body stands between a brace at the end of a line, or alone, and
   one at the beginning. */
static char *paste_bodies(char *text, const char *right)
{
    for (char *blank; (blank = strstr(text, "\n    BLANK(\"")) != NULL; ) {
        char *head = blank;
        while (head > text && strncmp(head - 1, "\n}\n", 3) != 0)
            head--;
        char *name = text_format("%.*s", (int)(blank - head), head);
        const char *body = strstr(right, name);
        ck_assert_msg(body != NULL, "no such function: %s", name);
        body += strlen(name);
        const char *end = strstr(body, "\n}");
        ck_assert_ptr_nonnull(end);
        char *fresh = text_format("%.*s%.*s%s", (int)(blank - text), text,
                                  (int)(end - body), body,
                                  strstr(blank, "\n}"));
        free(name);
        free(text);
        text = fresh;
    }
    return text;
}

void paste_functions(const struct stage *stage)
{
    struct list files = files_of(stage);
    for (size_t i = 0; i < files.count; i++) {
        char *right = right_text(stage->chapter, files.items[i]);
        char *text = read_from(stage->key, files.items[i]);
        text = paste_bodies(text, right);
        write_into(stage->key, files.items[i], text);
        free(text);
        free(right);
    }
    list_free(&files);
}

void paste_files(const struct stage *stage)
{
    struct list files = files_of(stage);
    for (size_t i = 0; i < files.count; i++) {
        char *right = right_text(stage->chapter, files.items[i]);
        write_into(stage->key, files.items[i], right);
        free(right);
    }
    list_free(&files);
}

/* ----------------------------------------------------------- before, after */

static unsigned long long mix(unsigned long long sum, const void *bytes,
                              size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

static unsigned long long file_sum(unsigned long long sum, const char *path)
{
    char part[65536];
    FILE *file = fopen(path, "r");
    for (size_t got; file && (got = fread(part, 1, sizeof part, file)) > 0; )
        sum = mix(sum, part, got);
    if (file != NULL)
        fclose(file);
    return sum;
}

unsigned long long tree_sum(const char *directory, const char *except)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, NULL, alphasort);
    unsigned long long sum = 14695981039346656037u;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        struct stat about;
        char *path = text_format("%s/%s", directory, name);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0
            && (except == NULL || strncmp(name, except, strlen(except)) != 0)
            && lstat(path, &about) == 0) {
            sum = mix(sum, name, strlen(name) + 1);
            sum = mix(sum, &about.st_mode, sizeof about.st_mode);
            unsigned long long inner = S_ISDIR(about.st_mode)
                ? tree_sum(path, except) : 0;
            sum = mix(sum, &inner, sizeof inner);
            if (S_ISREG(about.st_mode))
                sum = file_sum(sum, path);
        }
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return sum;
}
