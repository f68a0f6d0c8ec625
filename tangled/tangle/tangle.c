/* tangle: writes the C that the chapters say. See the book's appendix A. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "front_matter.h"
#include "stream.h"

enum { CHAPTERS_MAX = 64, ROOTS_MAX = 1024, PATH_LENGTH = 512 };

#ifndef NOWEB
#define NOWEB "/usr/lib/noweb"
#endif

struct request {
    bool list;
    const char *wrong;          /* a slug, or NULL */
    struct changes changes;
    const char *out;            /* directory */
    char *chapters[CHAPTERS_MAX];
    struct front_matter front[CHAPTERS_MAX];
    int count;
};

static bool run(char *const *argv, const char *in, const char *out,
                const char *directory)
{
    pid_t child = fork();
    if (child == 0) {
        int from = open(in, O_RDONLY);
        int to = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (from < 0 || to < 0 || dup2(from, 0) < 0 || dup2(to, 1) < 0
            || chdir(directory) != 0)
            perror("tangle");
        else
            execv(argv[0], argv);
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) {
        fprintf(stderr, "tangle: %s failed\n", argv[0]);
        return false;
    }
    return true;
}

static bool choose_swaps(struct request *request)
{
    struct changes *changes = &request->changes;
    const struct swap *wrong = NULL;
    for (int i = 0; i < request->count; i++)
        for (size_t j = 0; j < request->front[i].count; j++) {
            const struct swap *swap = &request->front[i].swaps[j];
            if (swap->slug == NULL && changes->swap_count < SWAPS_MAX - 1)
                changes->swaps[changes->swap_count++] = swap;
            else if (request->wrong != NULL && swap->slug != NULL
                     && strcmp(swap->slug, request->wrong) == 0)
                wrong = swap;
        }
    if (wrong != NULL)
        changes->swaps[changes->swap_count++] = wrong;
    else if (request->wrong != NULL)
        fprintf(stderr, "tangle: no wrong path %s\n", request->wrong);
    return wrong != NULL || request->wrong == NULL;
}

static void find_declarations(struct request *request)
{
    struct changes *changes = &request->changes;
    for (size_t m = 0; m < changes->mark_count; m++)
        for (int i = 0; i < request->count; i++)
            for (size_t c = 0; c < request->front[i].card_count; c++) {
                const struct card *card = &request->front[i].cards[c];
                for (size_t b = 0; b < card->count; b++)
                    if (strcmp(card->blanks[b].chunk,
                               changes->marks[m].chunk) == 0)
                        changes->marks[m].declares =
                            card->blanks[b].declares;
            }
}

static FILE *open_in(const char *directory, const char *name,
                     const char *mode)
{
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, mode);
    if (file == NULL)
        perror(path);
    return file;
}

static bool write_owner(const struct request *request, const char *owner)
{
    FILE *file = open_in(request->out, ".owner", "w");
    if (file == NULL)
        return false;
    fprintf(file, "%s\n", owner);
    return fclose(file) == 0;
}

static bool write_stream(struct request *request)
{
    const struct changes *changes = &request->changes;
    char markup[] = NOWEB "/markup", path[PATH_LENGTH];
    char *argv[CHAPTERS_MAX + 2] = { markup };
    for (int i = 0; i < request->count; i++)
        argv[i + 1] = request->chapters[i];
    snprintf(path, sizeof path, "%s/.markup", request->out);
    find_declarations(request);
    if (!choose_swaps(request) || !run(argv, "/dev/null", path, ".")
        || (request->wrong != NULL && !write_owner(request,
                changes->swaps[changes->swap_count - 1]->owner)))
        return false;
    FILE *in = open_in(request->out, ".markup", "r");
    FILE *out = open_in(request->out, ".stream", "w");
    FILE *places = open_in(request->out, ".places", "w");
    bool copied = in && out && places
        && stream_copy(in, out, changes, places);
    FILE *const files[] = { in, out, places };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (files[i] != NULL && fclose(files[i]) != 0)
            copied = false;
    return copied;
}

static bool is_file_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && dot[1] != '\0' && name[0] != '/'
        && strstr(name, "..") == NULL
        && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
                        "WXYZ0123456789_-./") == strlen(name);
}

static bool find_roots(const struct request *request, char **roots,
                       size_t *count)
{
    char line[PATH_LENGTH];
    FILE *stream = open_in(request->out, ".stream", "r");
    if (stream == NULL)
        return false;
    while (fgets(line, sizeof line, stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "@defn ", 6) != 0 || !is_file_name(line + 6))
            continue;
        bool known = false;
        for (size_t i = 0; i < *count; i++)
            known = known || strcmp(roots[i], line + 6) == 0;
        if (!known && *count == ROOTS_MAX) {
            fprintf(stderr, "tangle: more than %d files\n", (int)ROOTS_MAX);
            fclose(stream);
            return false;
        }
        if (!known)
            roots[(*count)++] = strdup(line + 6);
    }
    fclose(stream);
    return true;
}

static void make_way(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = '\0';
        mkdir(path, 0777);
    }
}

static bool expand_roots(const struct request *request, char **roots,
                         size_t count)
{
    char mnt[] = NOWEB "/mnt", stream[PATH_LENGTH], fresh[PATH_LENGTH];
    char path[2 * PATH_LENGTH];
    char *argv[ROOTS_MAX + 2] = { mnt };
    snprintf(stream, sizeof stream, "%s/.stream", request->out);
    snprintf(fresh, sizeof fresh, "%s/.new", request->out);
    mkdir(fresh, 0777);
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", fresh, roots[i]);
        make_way(path);
        argv[i + 1] = roots[i];
    }
    return count == 0 || run(argv, stream, "/dev/null", fresh);
}

/* The next line that counts; NULL at the end. */
static char *next_line(FILE *file, char **line, size_t *room, bool numbers)
{
    const char *text;
    do {
        if (getline(line, room, file) < 0)
            return NULL;
        text = *line + strspn(*line, " ");
    } while (numbers && strncmp(text, "#line ", 6) == 0);
    return *line;
}

static bool same_text(const char *a, const char *b, bool but_numbers)
{
    FILE *first = fopen(a, "r"), *second = fopen(b, "r");
    char *lines[2] = {NULL, NULL}, *x = NULL, *y = NULL;
    size_t rooms[2] = {0, 0};
    bool same = first != NULL && second != NULL;
    while (same) {
        x = next_line(first, &lines[0], &rooms[0], but_numbers);
        y = next_line(second, &lines[1], &rooms[1], but_numbers);
        if (x == NULL || y == NULL)
            break;
        same = strcmp(x, y) == 0;
    }
    same = same && x == NULL && y == NULL;
    if (first != NULL)
        fclose(first);
    if (second != NULL)
        fclose(second);
    free(lines[0]);
    free(lines[1]);
    return same;
}

static bool keep_root(const struct request *request, const char *root)
{
    char path[PATH_LENGTH], fresh[PATH_LENGTH];
    struct stat old;
    snprintf(path, sizeof path, "%s/%s", request->out, root);
    snprintf(fresh, sizeof fresh, "%s/.new/%s", request->out, root);
    make_way(path);
    if (same_text(fresh, path, false))
        return remove(fresh) == 0;
    if (same_text(fresh, path, true) && stat(path, &old) == 0) {
        const struct timespec times[] = {old.st_atim, old.st_mtim};
        (void)utimensat(AT_FDCWD, fresh, times, 0);
    }
    return rename(fresh, path) == 0;
}

static bool write_files(struct request *request)
{
    char *roots[ROOTS_MAX];
    size_t count = 0;
    mkdir(request->out, 0777);
    bool written = write_stream(request)
        && find_roots(request, roots, &count)
        && expand_roots(request, roots, count);
    for (size_t i = 0; i < count; i++) {
        if (written && (written = keep_root(request, roots[i])))
            puts(roots[i]);
        free(roots[i]);
    }
    return written;
}

static bool list_wrong_paths(const struct request *request)
{
    for (int i = 0; i < request->count; i++)
        for (size_t j = 0; j < request->front[i].count; j++)
            if (request->front[i].swaps[j].slug != NULL)
                puts(request->front[i].swaps[j].slug);
    return true;
}

static bool read_command_line(struct request *request, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--lines") == 0)
            request->changes.lines = true;
        else if (strcmp(argv[i], "--list-wrong") == 0)
            request->list = true;
        else if (strcmp(argv[i], "--wrong") == 0 && i + 1 < argc)
            request->wrong = argv[++i];
        else if (strcmp(argv[i], "--out") == 0 && i + 1 < argc)
            request->out = argv[++i];
        else if ((strcmp(argv[i], "--blank") == 0
                  || strcmp(argv[i], "--mark") == 0) && i + 1 < argc
                 && request->changes.mark_count < MARKS_MAX) {
            bool blank = argv[i][2] == 'b';
            request->changes.marks[request->changes.mark_count++] =
                (struct mark){ .chunk = argv[++i], .blank = blank };
        }
        else if (argv[i][0] != '-' && request->count < CHAPTERS_MAX)
            request->chapters[request->count++] = argv[i];
        else
            request->count = CHAPTERS_MAX;
    }
    if (request->count == 0 || request->count == CHAPTERS_MAX
        || (request->out == NULL) == !request->list) {
        request->count = 0;
        fprintf(stderr, "usage: %s [--lines] [--wrong SLUG] [--blank CHUNK |"
                " --mark CHUNK]...\n       --out DIR CHAPTER...\n"
                "       %s --list-wrong CHAPTER...\n", argv[0], argv[0]);
        return false;
    }
    for (int i = 0; i < request->count; i++)
        if (!front_matter_read(&request->front[i], request->chapters[i]))
            return false;
    return true;
}

int main(int argc, char **argv)
{
    static struct request request;
    bool done = read_command_line(&request, argc, argv)
        && (request.list ? list_wrong_paths(&request)
                         : write_files(&request));
    for (int i = 0; i < request.count; i++)
        front_matter_free(&request.front[i]);
    return done ? 0 : 1;
}
