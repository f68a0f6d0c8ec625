/* checklinks: FILE.html... : every link resolves, nothing external loads. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct strings { char **at; size_t n, room; };
struct link { char *from, *target, *attribute; };

static struct strings ids;
static struct link *links;
static size_t link_count, link_room;

static void *grow(void *p, size_t bytes)
{
    void *bigger = realloc(p, bytes);
    if (bigger == NULL) {
        fputs("checklinks: out of memory\n", stderr);
        exit(1);
    }
    return bigger;
}

static char *join(const char *a, const char *b, const char *c, size_t n)
{
    char *s = grow(NULL, strlen(a) + strlen(b) + n + 1);
    strcpy(s, a);
    strcat(s, b);
    return strncat(s, c, n);
}

static void remember(struct strings *l, char *s)
{
    if (l->n == l->room) {
        l->room = 2 * l->room + 64;
        l->at = grow(l->at, l->room * sizeof *l->at);
    }
    l->at[l->n++] = s;
}
static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        exit(1);
    }
    size_t n = 0, room = 1 << 16, got;
    char *s = grow(NULL, room + 1);
    while ((got = fread(s + n, 1, room - n, f)) > 0)
        if ((n += got) == room)
            s = grow(s, (room *= 2) + 1);
    s[n] = '\0';
    fclose(f);
    return s;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
static const char *value_end(const char *v, const char **start)
{
    if (*v == '"' || *v == '\'') {
        *start = v + 1;
        const char *end = strchr(v + 1, *v);
        return end ? end : v + strlen(v);
    }
    *start = v;
    return v + strcspn(v, " \t\n>");
}

static bool is_name(const char *name, size_t n, const char *what)
{
    return strlen(what) == n && strncmp(name, what, n) == 0;
}

static void note_attribute(const char *page, const char *name, size_t n,
                           const char *value, size_t length)
{
    if (is_name(name, n, "id")) {
        remember(&ids, join(base_name(page), "#", value, length));
    } else if (is_name(name, n, "href") || is_name(name, n, "src")
               || is_name(name, n, "srcset") || is_name(name, n, "data")) {
        if (link_count == link_room) {
            link_room = 2 * link_room + 64;
            links = grow(links, link_room * sizeof *links);
        }
        links[link_count++] = (struct link){
            join("", "", page, strlen(page)), join("", "", value, length),
            join("", "", name, n),
        };
    }
}
static const char *walk_tag(const char *page, const char *s)
{
    size_t tag = strcspn(s, " \t\n>/");
    bool anchor = is_name(s, tag, "a");
    s += tag;
    while (*s && *s != '>') {
        s += strspn(s, " \t\n/");
        size_t n = strcspn(s, " \t\n=>/");
        const char *name = s;
        s += n;
        if (*s != '=')
            continue;
        const char *value, *end = value_end(s + 1, &value);
        if (is_name(name, n, "href") && !anchor)
            note_attribute(page, "src", 3, value, (size_t)(end - value));
        else
            note_attribute(page, name, n, value, (size_t)(end - value));
        s = *end == '"' || *end == '\'' ? end + 1 : end;
    }
    return s;
}

static void walk(const char *page)
{
    char *text = slurp(page);
    for (const char *s = text; (s = strchr(s, '<')) != NULL; ) {
        if (strncmp(s, "<!--", 4) == 0) {
            const char *end = strstr(s, "-->");
            s = end ? end : s + 4;
        } else if (isalpha((unsigned char)s[1])) {
            s = walk_tag(page, s + 1);
        } else {
            s++;
        }
    }
    free(text);
}
static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
static bool known(char *key)
{
    return bsearch(&key, ids.at, ids.n, sizeof *ids.at, compare) != NULL;
}

static bool exists(const char *page, const char *target, size_t n)
{
    const char *base = base_name(page);
    struct stat st;
    char *directory = join("", "", page, (size_t)(base - page));
    char *path = join(directory, "", target, n);
    bool there = stat(path, &st) == 0;
    free(directory);
    free(path);
    return there;
}
static const char *fault(const struct link *l)
{
    const char *t = l->target, *hash = strchr(t, '#');
    size_t n = hash ? (size_t)(hash - t) : strlen(t);
    bool loads = strcmp(l->attribute, "href") != 0;
    if (strncmp(t, "data:", 5) == 0)
        return NULL;
    if (strstr(t, "://") != NULL || strncmp(t, "//", 2) == 0
        || strncmp(t, "mailto:", 7) == 0)
        return loads ? "loads from the network" : NULL;
    if (n > 0 && !exists(l->from, t, n))
        return "no such file";
    if (hash == NULL || hash[1] == '\0')
        return NULL;
    char *file = join("", "", n ? t : base_name(l->from),
                      n ? n : strlen(base_name(l->from)));
    char *key = join(file, "", hash, strlen(hash));
    bool good = known(key);
    free(file);
    free(key);
    return good ? NULL : "no such id";
}
static void clean_up(void)
{
    for (size_t i = 0; i < ids.n; i++)
        free(ids.at[i]);
    for (size_t i = 0; i < link_count; i++) {
        free(links[i].from);
        free(links[i].target);
        free(links[i].attribute);
    }
    free(ids.at);
    free(links);
}

int main(int argc, char **argv)
{
    size_t bad = 0;
    for (int i = 1; i < argc; i++)
        walk(argv[i]);
    qsort(ids.at, ids.n, sizeof *ids.at, compare);
    for (size_t i = 1; i < ids.n; i++)
        if (strcmp(ids.at[i - 1], ids.at[i]) == 0) {
            fprintf(stderr, "%s: id given twice\n", ids.at[i]);
            bad++;
        }
    for (size_t i = 0; i < link_count; i++) {
        const char *what = fault(&links[i]);
        if (what == NULL)
            continue;
        fprintf(stderr, "%s: %s=\"%s\": %s\n", links[i].from,
                links[i].attribute, links[i].target, what);
        bad++;
    }
    printf("%d pages, %zu ids, %zu links, %zu bad\n", argc - 1, ids.n,
           link_count, bad);
    clean_up();
    return bad > 0;
}
