/* weave: noweb's markup stream on stdin -> Markdown pages for pandoc. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <yaml.h>

enum { SLAB = 1 << 20 };

static struct slab {
    struct slab *next;
    size_t used, size;
    max_align_t data[];
} *slabs;

static void *take(size_t n)
{
    n = (n + sizeof(max_align_t) - 1) / sizeof(max_align_t)
        * sizeof(max_align_t);
    if (slabs == NULL || slabs->size - slabs->used < n) {
        size_t size = n > SLAB ? n : SLAB;
        struct slab *slab = malloc(sizeof *slab + size);
        if (slab == NULL) {
            fputs("weave: out of memory\n", stderr);
            exit(1);
        }
        *slab = (struct slab){ .next = slabs, .size = size };
        slabs = slab;
    }
    char *p = (char *)slabs->data + slabs->used;
    slabs->used += n;
    return memset(p, 0, n);
}
static void give_all_back(void)
{
    while (slabs != NULL) {
        struct slab *next = slabs->next;
        free(slabs);
        slabs = next;
    }
}
struct text {
    char *s;
    size_t n, room;
};

static void add(struct text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->room) {
        size_t room = 2 * (t->n + n + 1) + 64;
        char *bigger = take(room);
        if (t->n > 0)
            memcpy(bigger, t->s, t->n);
        t->s = bigger;
        t->room = room;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = '\0';
}

static void put(struct text *t, const char *s)
{
    add(t, s, strlen(s));
}
static void putf(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n <= 0)
        return;
    char *s = take((size_t)n + 1);
    va_start(args, format);
    vsnprintf(s, (size_t)n + 1, format, args);
    va_end(args);
    add(t, s, (size_t)n);
}

static char *copy(const char *s, size_t n)
{
    char *p = take(n + 1);
    memcpy(p, s, n);
    return p;
}

static const char *str(const struct text *t)
{
    return t->s ? t->s : "";
}
struct list {
    void **at;
    size_t n, room;
};

static void push(struct list *l, void *p)
{
    if (l->n == l->room) {
        size_t room = 2 * l->room + 8;
        void **bigger = take(room * sizeof *bigger);
        if (l->n > 0)
            memcpy(bigger, l->at, l->n * sizeof *bigger);
        l->at = bigger;
        l->room = room;
    }
    l->at[l->n++] = p;
}

static void push_once(struct list *l, void *p)
{
    if (l->n == 0 || l->at[l->n - 1] != p)
        push(l, p);
}

static uint64_t hash(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(1099511628211);
    return h;
}
static const uint64_t HASH_START = UINT64_C(14695981039346656037);
struct table {
    struct slot { const char *key; void *value; } *slots;
    size_t room;
    struct list keys;
};

static struct slot *slot(const struct table *t, const char *key)
{
    size_t i = (size_t)hash(HASH_START, key, strlen(key)) % t->room;
    while (t->slots[i].key != NULL && strcmp(t->slots[i].key, key) != 0)
        i = (i + 1) % t->room;
    return &t->slots[i];
}

static void *find(const struct table *t, const char *key)
{
    return t->room == 0 ? NULL : slot(t, key)->value;
}

static void **entry(struct table *t, const char *key)
{
    if (2 * t->keys.n >= t->room) {
        struct table old = *t;
        t->room = 2 * old.room + 64;
        t->slots = take(t->room * sizeof *t->slots);
        for (size_t i = 0; i < old.room; i++)
            if (old.slots[i].key != NULL)
                *slot(t, old.slots[i].key) = old.slots[i];
    }
    struct slot *s = slot(t, key);
    if (s->key == NULL) {
        s->key = copy(key, strlen(key));
        push(&t->keys, (void *)(uintptr_t)s->key);
    }
    return &s->value;
}
enum { HOLE = 1, QUOTE = 2, UNQUOTE = 3 };

struct chunk {
    struct name *name;
    struct page *page;
    char *number;               /* "5.12" */
    char *anchor;               /* "chunk:refuse-a-null-model-2" */
    char *body;
    int line, nth;              /* nth definition of the name, from 0 */
    struct list identifiers;    /* struct identifier: from %def */
};

struct name {
    const char *text;
    struct list definitions;    /* struct chunk */
    struct list users;          /* struct chunk */
    struct name *replaces;      /* a wrong path or a later body of this */
    struct name *replaced_by;   /* from a later chapter on */
};

struct block {
    struct chunk *chunk;        /* NULL for prose */
    char *prose;
    int line;
};
enum kind { ANYTHING, TAG, FUNCTION };

struct identifier {
    const char *text;
    enum kind kind;
    struct list definitions;    /* struct chunk */
    struct list users;          /* struct chunk */
};

struct anchor {
    const char *id, *label;     /* label: "chapter 5", "figure 5.1" */
    struct page *page;
};

struct section {
    int level;
    char *title, *id;
};
enum page_kind { PREFACE, CHAPTER, APPENDIX };

struct swap { char *chunk, *by, *mechanism, *owner; };

struct blank {
    char *chunk, *declares;     /* as the front matter says */
    struct name *name, *body;   /* that chunk, and whose body holds here */
};

struct stage {
    char *key, *title, *minutes, *stop;         /* "5"; of parts "10.2" */
    struct list blanks;         /* struct blank */
};

struct page {
    const char *file;
    char *slug, *label;         /* "05-mask", "5" */
    enum page_kind kind;
    int number;
    char *title, *purpose;
    struct list stages;         /* struct stage: one, or one a part */
    struct list wrong, supersedes;      /* struct swap */
    struct list blocks, sections;
    int chunks, figures, prose_lines, code_lines;
};

static struct book {
    const char *title, *out;
    bool no_run, keep_going;
    struct list pages, chunks;
    struct table names, identifiers, anchors;
    int complaints;
} book = { .title = "A literate program", .out = "build" };
static void complain(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    book.complaints++;
}

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "weave: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}
static bool read_file(const char *path, struct text *t)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return false;
    char part[8192];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        add(t, part, n);
    bool good = !ferror(f);
    fclose(f);
    return good;
}

static void write_if_changed(const char *path, const struct text *t)
{
    struct text old = { 0 }, temporary = { 0 };
    if (read_file(path, &old) && old.n == t->n
        && memcmp(str(&old), str(t), t->n) == 0)
        return;
    putf(&temporary, "%s.tmp", path);
    FILE *f = fopen(str(&temporary), "wb");
    if (f == NULL)
        give_up("cannot write", path);
    bool good = fwrite(str(t), 1, t->n, f) == t->n;
    good = fclose(f) == 0 && good;
    if (!good || rename(str(&temporary), path) != 0)
        give_up("cannot write", path);
}

static void make_directory(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        give_up("cannot make", path);
}
struct reader {
    struct page *page;
    struct chunk *chunk;
    struct text text;
    bool fresh, quote;
    int line, start;
};

static void open_page(struct reader *r, const char *file)
{
    struct page *p = take(sizeof *p);
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    size_t n = strlen(base);
    if (n > 3 && strcmp(base + n - 3, ".nw") == 0)
        n -= 3;
    p->file = copy(file, strlen(file));
    p->slug = copy(base, n);
    p->title = p->slug;
    p->number = atoi(base);
    p->kind = isdigit((unsigned char)*base)
        ? (p->number == 0 ? PREFACE : CHAPTER) : APPENDIX;
    while (*base == '0' && base[1] != '-')
        base++;
    p->label = copy(base, strcspn(base, "-."));
    push(&book.pages, p);
    *r = (struct reader){ .page = p, .line = 1 };
}
static void begin_prose(struct reader *r, const char *rest)
{
    (void)rest;
    r->chunk = NULL;
    r->text = (struct text){ 0 };
    r->start = r->line;
}

static void end_prose(struct reader *r, const char *rest)
{
    (void)rest;
    struct block *b = take(sizeof *b);
    *b = (struct block){ .prose = copy(str(&r->text), r->text.n),
                         .line = r->start };
    push(&r->page->blocks, b);
}

static void end_code(struct reader *r, const char *rest)
{
    (void)rest;
    while (r->text.n > 0 && r->text.s[r->text.n - 1] == '\n')
        r->text.s[--r->text.n] = '\0';
    r->chunk->body = copy(str(&r->text), r->text.n);
    struct block *b = take(sizeof *b);
    *b = (struct block){ .chunk = r->chunk, .line = r->chunk->line };
    push(&r->page->blocks, b);
}
static char *slug(const char *s)
{
    struct text t = { 0 };
    for (; *s; s++) {
        if (isalnum((unsigned char)*s) || *s == '_')
            putf(&t, "%c", tolower((unsigned char)*s));
        else if (t.n > 0 && t.s[t.n - 1] != '-' && *s != '\'')
            put(&t, "-");
    }
    while (t.n > 0 && t.s[t.n - 1] == '-')
        t.s[--t.n] = '\0';
    return copy(t.n ? t.s : "x", t.n ? t.n : 1);
}

static void begin_chunk(struct reader *r, const char *text)
{
    struct chunk *c = take(sizeof *c);
    struct name **name = (struct name **)entry(&book.names, text);
    if (*name == NULL) {
        *name = take(sizeof **name);
        (*name)->text = copy(text, strlen(text));
    }
    c->name = *name;
    c->page = r->page;
    c->line = r->line;
    c->nth = (int)c->name->definitions.n;
    push(&c->name->definitions, c);
    push(&book.chunks, c);
    struct text number = { 0 }, anchor = { 0 };
    putf(&number, "%s.%d", r->page->label, ++r->page->chunks);
    c->number = copy(str(&number), number.n);
    putf(&anchor, "chunk:%s", slug(text));
    if (c->nth > 0)
        putf(&anchor, "-%d", c->nth + 1);
    c->anchor = copy(str(&anchor), anchor.n);
    void **taken = entry(&book.anchors, c->anchor);
    if (*taken != NULL)
        complain(r->page->file, r->line, "two chunks share the anchor %s",
                 c->anchor);
    struct anchor *a = take(sizeof *a);
    *a = (struct anchor){ c->anchor, c->number, r->page };
    *taken = a;
    r->chunk = c;
    r->text = (struct text){ 0 };
    r->fresh = true;
}
static void add_text(struct reader *r, const char *s)
{
    r->fresh = false;
    put(&r->text, s);
}

static void add_newline(struct reader *r, const char *rest)
{
    (void)rest;
    r->line++;
    if (r->fresh)
        r->fresh = false;
    else
        put(&r->text, r->quote ? " " : "\n");
}

static void add_use(struct reader *r, const char *name)
{
    putf(&r->text, "%c%s%c", HOLE, name, HOLE);
}

static void open_quote(struct reader *r, const char *rest)
{
    (void)rest;
    r->quote = true;
    putf(&r->text, "%c", QUOTE);
}

static void close_quote(struct reader *r, const char *rest)
{
    (void)rest;
    r->quote = false;
    putf(&r->text, "%c", UNQUOTE);
}
static void add_definition(struct reader *r, const char *text)
{
    struct identifier **id =
        (struct identifier **)entry(&book.identifiers, text);
    if (r->chunk == NULL)
        return;
    if (*id == NULL) {
        *id = take(sizeof **id);
        (*id)->text = copy(text, strlen(text));
    }
    push_once(&(*id)->definitions, r->chunk);
    push(&r->chunk->identifiers, *id);
}

static void count_line(struct reader *r, const char *rest)
{
    (void)rest;
    r->line++;
}

static void set_line(struct reader *r, const char *rest)
{
    r->line = atoi(rest);
}
static void refuse(struct reader *r, const char *rest)
{
    fprintf(stderr, "%s:%d: noweb: %s\n", r->page ? r->page->file : "?",
            r->line, rest);
    exit(1);
}

static const struct {
    const char *word;
    void (*act)(struct reader *, const char *);
} acts[] = {
    { "@file ", open_page },         { "@begin docs", begin_prose },
    { "@end docs", end_prose },      { "@defn ", begin_chunk },
    { "@end code", end_code },       { "@text ", add_text },
    { "@nl", add_newline },          { "@use ", add_use },
    { "@quote", open_quote },        { "@endquote", close_quote },
    { "@index defn ", add_definition }, { "@index nl", count_line },
    { "@line ", set_line },          { "@fatal", refuse },
};
static void read_stream(FILE *in)
{
    struct reader r = { 0 };
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, in)) != -1) {
        if (n > 0 && line[n - 1] == '\n')
            line[n - 1] = '\0';
        for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
            size_t k = strlen(acts[i].word);
            if (strncmp(line, acts[i].word, k) == 0) {
                acts[i].act(&r, line + k);
                break;
            }
        }
    }
    free(line);
}
static char *scalar(yaml_node_t *node)
{
    if (node == NULL || node->type != YAML_SCALAR_NODE)
        return NULL;
    return copy((const char *)node->data.scalar.value,
                node->data.scalar.length);
}

static yaml_node_t *field(yaml_document_t *d, yaml_node_t *map,
                          const char *key)
{
    if (map == NULL || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         p < map->data.mapping.pairs.top; p++) {
        char *k = scalar(yaml_document_get_node(d, p->key));
        if (k != NULL && strcmp(k, key) == 0)
            return yaml_document_get_node(d, p->value);
    }
    return NULL;
}
static void read_swaps(yaml_document_t *d, yaml_node_t *seq, struct list *out)
{
    if (seq == NULL || seq->type != YAML_SEQUENCE_NODE)
        return;
    for (yaml_node_item_t *i = seq->data.sequence.items.start;
         i < seq->data.sequence.items.top; i++) {
        yaml_node_t *item = yaml_document_get_node(d, *i);
        struct swap *w = take(sizeof *w);
        w->chunk = scalar(field(d, item, "chunk"));
        w->by = scalar(field(d, item, "by"));
        w->mechanism = scalar(field(d, item, "mechanism"));
        w->owner = scalar(field(d, item, "owner"));
        if (w->chunk != NULL)
            push(out, w);
    }
}
static void read_blanks(yaml_document_t *d, yaml_node_t *seq,
                        struct list *out)
{
    if (seq == NULL || seq->type != YAML_SEQUENCE_NODE)
        return;
    for (yaml_node_item_t *i = seq->data.sequence.items.start;
         i < seq->data.sequence.items.top; i++) {
        yaml_node_t *item = yaml_document_get_node(d, *i);
        struct blank *b = take(sizeof *b);
        b->chunk = scalar(item);
        if (b->chunk == NULL)
            b->chunk = scalar(field(d, item, "chunk"));
        b->declares = scalar(field(d, item, "declares"));
        push(out, b);
    }
}
static void read_stage(struct page *p, yaml_document_t *d, yaml_node_t *map,
                       const char *key)
{
    struct stage *s = take(sizeof *s);
    s->key = scalar(field(d, map, key));
    if (strcmp(key, "part") == 0)
        s->title = scalar(field(d, map, "title"));
    s->minutes = scalar(field(d, map, "minutes"));
    s->stop = scalar(field(d, map, "stop"));
    read_blanks(d, field(d, map, "blanks"), &s->blanks);
    if (s->key != NULL)
        push(&p->stages, s);
    else if (s->minutes || s->stop || s->blanks.n > 0)
        complain(p->file, 1, "front matter: a stage without its %s", key);
}

static void read_stages(struct page *p, yaml_document_t *d, yaml_node_t *root)
{
    yaml_node_t *parts = field(d, root, "parts");
    if (parts == NULL || parts->type != YAML_SEQUENCE_NODE) {
        read_stage(p, d, root, "stage");
        return;
    }
    for (yaml_node_item_t *i = parts->data.sequence.items.start;
         i < parts->data.sequence.items.top; i++)
        read_stage(p, d, yaml_document_get_node(d, *i), "part");
}
static void read_fields(struct page *p, yaml_document_t *d)
{
    yaml_node_t *root = yaml_document_get_root_node(d);
    char *title = scalar(field(d, root, "title"));
    p->title = title ? title : p->title;
    p->purpose = scalar(field(d, root, "purpose"));
    read_stages(p, d, root);
    read_swaps(d, field(d, root, "wrong"), &p->wrong);
    read_swaps(d, field(d, root, "supersedes"), &p->supersedes);
}
static char *unquote(const char *s, size_t n)
{
    struct text t = { 0 };
    for (size_t i = 0; i < n; i++)
        if (s[i] == QUOTE)
            put(&t, "[[");
        else if (s[i] == UNQUOTE)
            put(&t, "]]");
        else
            add(&t, s + i, 1);
    return copy(str(&t), t.n);
}
static void parse_yaml(struct page *p, const char *s, size_t n)
{
    yaml_parser_t parser;
    yaml_document_t d;
    if (!yaml_parser_initialize(&parser))
        give_up("no YAML parser for", p->file);
    yaml_parser_set_input_string(&parser, (const unsigned char *)s, n);
    if (yaml_parser_load(&parser, &d)) {
        read_fields(p, &d);
        yaml_document_delete(&d);
    } else {
        complain(p->file, (int)parser.problem_mark.line + 2,
                 "front matter: %s", parser.problem);
    }
    yaml_parser_delete(&parser);
}
static void read_front_matter(struct page *p)
{
    struct block *b = p->blocks.n ? p->blocks.at[0] : NULL;
    if (b == NULL || b->prose == NULL || strncmp(b->prose, "---\n", 4) != 0)
        return;
    const char *start = b->prose + 4, *end = strstr(start, "\n---\n");
    if (end == NULL)
        return;
    char *yaml = unquote(start, (size_t)(end - start) + 1);
    parse_yaml(p, yaml, strlen(yaml));
    for (const char *c = b->prose; c < end + 5; c++)
        b->line += *c == '\n';
    b->prose = copy(end + 5, strlen(end + 5));
}
struct fence { char mark; size_t length; };

static size_t line_length(const char *s)
{
    return strcspn(s, "\n");
}

/* True if line s opens or closes a fence; state in f. */
static bool crosses_fence(struct fence *f, const char *s)
{
    size_t indent = strspn(s, " ");
    char mark = s[indent];
    if (indent > 3 || (mark != '`' && mark != '~'))
        return false;
    size_t n = 0;
    while (s[indent + n] == mark)
        n++;
    if (f->length == 0 && n >= 3) {
        *f = (struct fence){ mark, n };
        return true;
    }
    const char *rest = s + indent + n;
    bool bare = strspn(rest, " \t") == line_length(rest);
    if (f->length > 0 && mark == f->mark && n >= f->length && bare) {
        f->length = 0;
        return true;
    }
    return false;
}
static char *attribute(const char *s, const char *key)
{
    size_t n = line_length(s), k = strlen(key);
    for (size_t i = 0; i + k < n; i++) {
        if (strncmp(s + i, key, k) != 0 || (i > 0 && !strchr(" {", s[i - 1])))
            continue;
        const char *v = s + i + k;
        if (*v != '"')
            return copy(v, strcspn(v, " }\n"));
        struct text t = { 0 };
        for (v++; *v && *v != '"' && *v != '\n'; v++) {
            v += *v == '\\' && v[1] == '"';
            add(&t, v, 1);
        }
        return copy(str(&t), t.n);
    }
    return NULL;
}

static void add_anchor(struct page *p, int line, const char *id,
                       const char *label)
{
    void **taken = entry(&book.anchors, id);
    if (*taken != NULL)
        complain(p->file, line, "the id #%s is given twice", id);
    struct anchor *a = take(sizeof *a);
    *a = (struct anchor){ copy(id, strlen(id)),
                          copy(label, strlen(label)), p };
    *taken = a;
}
static void note_heading(struct page *p, int line, const char *s)
{
    struct section *h = take(sizeof *h);
    size_t level = strspn(s, "#"), n = line_length(s);
    const char *title = s + level + strspn(s + level, " ");
    const char *brace = memchr(title, '{', (size_t)(s + n - title));
    size_t length = (size_t)((brace ? brace : s + n) - title);
    while (length > 0 && title[length - 1] == ' ')
        length--;
    h->level = (int)level;
    h->title = unquote(title, length);
    h->id = brace ? attribute(brace, "#") : NULL;
    if (h->id == NULL) {
        struct text id = { 0 };
        int same = 0;
        char *base = slug(h->title);
        for (size_t i = 0; i < p->sections.n; i++) {
            struct section *other = p->sections.at[i];
            same += strcmp(slug(other->title), base) == 0;
        }
        put(&id, isdigit((unsigned char)*base) ? "part-" : "");
        put(&id, base);
        if (same > 0)
            putf(&id, "-%d", same + 1);
        h->id = copy(str(&id), id.n);
    }
    if (strchr(h->id, ':') != NULL) {
        struct text label = { 0 };
        putf(&label, p->kind == PREFACE ? "preface" : p->kind == CHAPTER
             ? "chapter %s" : "appendix %s", p->label);
        add_anchor(p, line, h->id, level == 1 ? str(&label) : h->title);
    }
    push(&p->sections, h);
}
static bool has_class(const char *s, const char *class)
{
    const char *p = strstr(s, class);
    return p != NULL && p < s + line_length(s) && strchr(s, '{') < p;
}

static void note_figure(struct page *p, int line, const char *s)
{
    struct text label = { 0 };
    char *id = attribute(s, "#");
    putf(&label, "figure %s.%d", p->label, ++p->figures);
    if (id == NULL)
        complain(p->file, line, "a figure needs an id: {.figure #fig:name}");
    else
        add_anchor(p, line, id, str(&label));
}

static void scan_prose(struct page *p, struct block *b)
{
    struct fence f = { 0 };
    int line = b->line;
    for (const char *s = b->prose; *s; s += line_length(s), s += *s == '\n') {
        bool inside = f.length > 0;
        if (crosses_fence(&f, s)) {
            if (!inside && has_class(s, ".figure"))
                note_figure(p, line, s);
        } else if (!inside && *s == '#' && s[strspn(s, "#")] == ' ') {
            note_heading(p, line, s);
        }
        p->prose_lines += s[strspn(s, " \t")] != '\n';
        line++;
    }
}
static void connect_uses(struct chunk *c)
{
    int line = c->line + 1;
    for (const char *s = c->body; *s; s++) {
        line += *s == '\n';
        if (*s != HOLE)
            continue;
        const char *end = strchr(s + 1, HOLE);
        char *text = copy(s + 1, (size_t)(end - s - 1));
        struct name *name = find(&book.names, text);
        if (name == NULL)
            complain(c->page->file, line, "no chunk is called: %s", text);
        else
            push_once(&name->users, c);
        s = end;
    }
}
static struct name *need_name(struct page *p, const char *text)
{
    struct name *name = text ? find(&book.names, text) : NULL;
    if (name == NULL)
        complain(p->file, 1, "front matter: no chunk is called: %s",
                 text ? text : "(nothing)");
    return name;
}

static struct name *connect_swap(struct page *p, const struct swap *w)
{
    struct name *old = need_name(p, w->chunk), *new = need_name(p, w->by);
    if (old == NULL || new == NULL)
        return NULL;
    new->replaces = old;
    return old;
}

static void connect_front_matter(struct page *p)
{
    for (size_t i = 0; i < p->wrong.n; i++)
        connect_swap(p, p->wrong.at[i]);
    for (size_t i = 0; i < p->supersedes.n; i++) {
        struct swap *w = p->supersedes.at[i];
        struct name *old = connect_swap(p, w);
        if (old != NULL)
            old->replaced_by = find(&book.names, w->by);
    }
}
static struct name *body_on(const struct page *here, const char *chunk)
{
    const char *body = chunk;
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        for (size_t k = 0; k < p->supersedes.n; k++) {
            const struct swap *w = p->supersedes.at[k];
            if (w->by && (strcmp(w->chunk, chunk) == 0
                          || strcmp(w->chunk, body) == 0))
                body = w->by;
        }
        if (p == here)
            break;
    }
    return find(&book.names, body);
}

static void connect_blanks(struct page *p)
{
    for (size_t i = 0; i < p->stages.n; i++) {
        struct stage *s = p->stages.at[i];
        for (size_t k = 0; k < s->blanks.n; k++) {
            struct blank *b = s->blanks.at[k];
            b->name = need_name(p, b->chunk);
            b->body = b->name ? body_on(p, b->chunk) : NULL;
        }
    }
}

static bool is_blank(const struct chunk *c)
{
    for (size_t i = 0; i < c->page->stages.n; i++) {
        const struct stage *s = c->page->stages.at[i];
        for (size_t k = 0; k < s->blanks.n; k++)
            if (((const struct blank *)s->blanks.at[k])->body == c->name)
                return true;
    }
    return false;
}
static int minutes_on(const struct page *p, const char *key)
{
    int minutes = 0;
    for (size_t i = 0; i < p->stages.n; i++) {
        const struct stage *s = p->stages.at[i];
        if (s->minutes && (key == NULL || strcmp(s->key, key) == 0))
            minutes += atoi(s->minutes);
    }
    return minutes;
}

static int budget(const struct stage *s)
{
    int minutes = 0;
    for (size_t i = 0; i < book.pages.n; i++)
        minutes += minutes_on(book.pages.at[i], s->key);
    return minutes;
}

static const struct page *other_page(const struct page *here,
                                     const struct stage *s)
{
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        for (size_t k = 0; p != here && k < p->stages.n; k++)
            if (strcmp(((struct stage *)p->stages.at[k])->key, s->key) == 0)
                return p;
    }
    return NULL;
}
static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool preceded_by(const char *start, const char *s, const char *word)
{
    size_t n = strlen(word);
    while (s > start && s[-1] == ' ')
        s--;
    return (size_t)(s - start) >= n && strncmp(s - n, word, n) == 0;
}

static enum kind kind_of(const char *body, const char *text)
{
    size_t n = strlen(text);
    enum kind kind = ANYTHING;
    for (const char *s = body; (s = strstr(s, text)) != NULL; s += n) {
        if (is_word(s[n]) || (s > body && is_word(s[-1])))
            continue;
        if (s[n] == '(')
            return FUNCTION;
        if (preceded_by(body, s, "struct") || preceded_by(body, s, "enum")
            || preceded_by(body, s, "union"))
            kind = TAG;
    }
    return kind;
}
static void classify_identifiers(void)
{
    for (size_t i = 0; i < book.identifiers.keys.n; i++) {
        struct identifier *id =
            find(&book.identifiers, book.identifiers.keys.at[i]);
        if (id == NULL)
            continue;
        struct chunk *c = id->definitions.at[0];
        id->kind = kind_of(c->body, id->text);
    }
}

static struct chunk *nearest(const struct identifier *id,
                             const struct page *here)
{
    struct chunk *best = NULL;
    for (size_t i = 0; i < id->definitions.n; i++) {
        struct chunk *c = id->definitions.at[i];
        if (c->page == here)
            return c;
        if (best == NULL && here->kind != APPENDIX
            && c->page->kind != APPENDIX)
            best = c;
    }
    return best;
}

static bool defines(const struct chunk *c, const struct identifier *id)
{
    for (size_t i = 0; c != NULL && i < c->identifiers.n; i++)
        if (c->identifiers.at[i] == id)
            return true;
    return false;
}
struct escape { char from; const char *to; };

static const struct escape html_escapes[] = {
    { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&quot;" },
    { 0, NULL }
};
static const struct escape tex_escapes[] = {
    { '\\', "\\textbackslash{}" }, { '{', "\\{" }, { '}', "\\}" },
    { '$', "\\$" }, { '&', "\\&" }, { '#', "\\#" }, { '%', "\\%" },
    { '_', "\\_" }, { '^', "\\textasciicircum{}" },
    { '~', "\\textasciitilde{}" }, { 0, NULL }
};
static const struct escape texcode_escapes[] = {
    { '\\', "\\textbackslash{}" }, { '{', "\\{" }, { '}', "\\}" },
    { '$', "\\$" }, { '&', "\\&" }, { '#', "\\#" }, { '%', "\\%" },
    { '_', "\\_" }, { '^', "\\textasciicircum{}" },
    { '~', "\\textasciitilde{}" }, { ' ', "~" }, { '\t', "~~~~~~~~" },
    { 0, NULL }
};
static const struct escape markdown_escapes[] = {
    { '\\', "\\\\" }, { '`', "\\`" }, { '*', "\\*" }, { '_', "\\_" },
    { '[', "\\[" }, { ']', "\\]" }, { '$', "\\$" }, { '<', "\\<" },
    { '>', "\\>" }, { '#', "\\#" }, { '|', "\\|" }, { '^', "\\^" },
    { '~', "\\~" }, { '@', "\\@" }, { 0, NULL }
};
static const struct escape json_escapes[] = {
    { '"', "\\\"" }, { '\\', "\\\\" }, { '\n', "\\n" }, { '\t', "\\t" },
    { 0, NULL }
};
static void escape(struct text *t, const struct escape *table,
                   const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct escape *e = table;
        while (e->from && e->from != s[i])
            e++;
        if (e->from)
            put(t, e->to);
        else
            add(t, s + i, 1);
    }
}
static void put_name(struct text *t, const struct escape *table,
                     const char *open, const char *close, const char *name)
{
    const char *q;
    while ((q = strstr(name, "[[")) != NULL && strstr(q, "]]") != NULL) {
        const char *end = strstr(q, "]]");
        escape(t, table, name, (size_t)(q - name));
        put(t, open);
        escape(t, table, q + 2, (size_t)(end - q - 2));
        put(t, close);
        name = end + 2;
    }
    escape(t, table, name, strlen(name));
}

static void html_name(struct text *t, const char *name)
{
    put_name(t, html_escapes, "<code>", "</code>", name);
}

static void tex_name(struct text *t, const char *name)
{
    put_name(t, tex_escapes, "\\texttt{", "}", name);
}
static void html_address(struct text *t, const struct page *here,
                         const struct chunk *c)
{
    if (c->page != here)
        putf(t, "%s.html", c->page->slug);
    putf(t, "#%s", c->anchor);
}

/* A chunk as a Markdown link: [⟨name⟩](05-mask.html#chunk:…){.chunkref} */
static void markdown_link(struct text *t, const char *text,
                          const struct name *to)
{
    put(t, "[⟨");
    put_name(t, markdown_escapes, "`", "`", text);
    put(t, "⟩");
    if (to == NULL)
        put(t, "]{.chunkname}");
    else
        putf(t, "](%s.html#%s){.chunkref}",
             ((struct chunk *)to->definitions.at[0])->page->slug,
             ((struct chunk *)to->definitions.at[0])->anchor);
}

static void markdown_chunk(struct text *t, const char *name)
{
    markdown_link(t, name, find(&book.names, name));
}
enum language { PLAIN, C, LUA, SHELL };
enum style { KEYWORD, COMMENT, STRING, STYLES };

static enum language language_of(const struct name *n, int depth)
{
    if (n->users.n > 0 && depth < 50)
        return language_of(((struct chunk *)n->users.at[0])->name, depth + 1);
    const char *dot = strrchr(n->text, '.');
    if (dot == NULL)
        return strstr(n->text, "akefile") ? SHELL : PLAIN;
    if (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0)
        return C;
    if (strcmp(dot, ".lua") == 0)
        return LUA;
    return strcmp(dot, ".sh") == 0 || strcmp(dot, ".mk") == 0
        || strcmp(dot, ".awk") == 0 ? SHELL : PLAIN;
}
static enum language language_of_chunk(const struct chunk *c)
{
    enum language l = language_of(c->name, 0);
    bool file = strchr(c->name->text, '.') != NULL
        && strchr(c->name->text, ' ') == NULL;
    return l == PLAIN && c->name->users.n == 0 && !file ? C : l;
}

static bool is_keyword(const char *s, size_t n)
{
    static const char *const words[] = {
        "break", "case", "const", "continue", "default", "do", "else", "enum",
        "extern", "for", "goto", "if", "return", "sizeof", "static",
        "struct", "switch", "typedef", "union", "while", "function", "local",
        "then", "end", "elseif", "in", "not", "and", "or",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && strncmp(words[i], s, n) == 0)
            return true;
    return false;
}
struct pen {
    void (*plain)(struct pen *, const char *, size_t);
    void (*styled)(struct pen *, enum style, const char *, size_t);
    void (*identifier)(struct pen *, struct identifier *, const char *,
                       size_t);
    void (*hole)(struct pen *, const struct name *);
    struct text *out;
    const struct page *here;
    struct chunk *chunk;
};

struct scanner {
    struct pen *pen;
    const char *start, *s;      /* the body, and where we are */
    enum language language;
    const char *word;           /* the word before, for struct NAME */
    size_t word_length;
};
static size_t comment_length(const struct scanner *x)
{
    const char *s = x->s;
    if (x->language == C && strncmp(s, "/*", 2) == 0) {
        const char *end = strstr(s + 2, "*/");
        return end ? (size_t)(end + 2 - s) : strlen(s);
    }
    bool line = (x->language == C && strncmp(s, "//", 2) == 0)
        || (x->language == LUA && strncmp(s, "--", 2) == 0)
        || (x->language == SHELL && *s == '#'
            && (s == x->start || isspace((unsigned char)s[-1])));
    return line ? line_length(s) : 0;
}

static size_t string_length(const struct scanner *x)
{
    const char *s = x->s;
    if ((x->language != C && x->language != LUA) || !strchr("\"'", *s))
        return 0;
    size_t n = 1;
    while (s[n] && s[n] != '\n' && s[n] != *s)
        n += s[n] == '\\' && s[n + 1] && s[n + 1] != '\n' ? 2 : 1;
    return s[n] == *s ? n + 1 : n;
}
static bool is_meant(const struct scanner *x, const struct identifier *id)
{
    if (x->language != C)
        return true;
    if (id->kind == TAG)
        return x->word_length > 0
            && (strncmp(x->word, "struct", x->word_length) == 0
                || strncmp(x->word, "enum", x->word_length) == 0
                || strncmp(x->word, "union", x->word_length) == 0);
    bool member = x->s > x->start && (x->s[-1] == '.'
        || (x->s[-1] == '>' && x->s - 1 > x->start && x->s[-2] == '-'));
    if (id->kind == FUNCTION)
        return !member && (x->s[strlen(id->text)] == '('
                           || strchr(id->text, '_') != NULL);
    return !member || id->kind == ANYTHING;
}

static size_t read_word(struct scanner *x)
{
    size_t n = 0;
    while (is_word(x->s[n]))
        n++;
    struct identifier *id = find(&book.identifiers, copy(x->s, n));
    if (id != NULL && !defines(x->pen->chunk, id) && is_meant(x, id)
        && nearest(id, x->pen->chunk->page) != NULL)
        x->pen->identifier(x->pen, id, x->s, n);
    else if (x->language != PLAIN && is_keyword(x->s, n)
             && (x->s == x->start || x->s[-1] != '#'))
        x->pen->styled(x->pen, KEYWORD, x->s, n);
    else
        x->pen->plain(x->pen, x->s, n);
    x->word = x->s;
    x->word_length = n;
    return n;
}
static size_t read_hole(struct scanner *x)
{
    const char *end = strchr(x->s + 1, HOLE);
    size_t n = (size_t)(end - x->s - 1);
    const struct name *name = find(&book.names, copy(x->s + 1, n));
    if (name != NULL)
        x->pen->hole(x->pen, name);
    else
        x->pen->plain(x->pen, x->s + 1, n);
    return n + 2;
}
static size_t read_plain(struct scanner *x)
{
    size_t n = 1;
    while (x->s[n] && !is_word(x->s[n]) && !strchr("\"'/-#\1", x->s[n]))
        n++;
    if (strspn(x->s, " \n") < n)
        x->word_length = 0;
    x->pen->plain(x->pen, x->s, n);
    return n;
}
static void draw(struct pen *pen, const char *body, enum language language)
{
    struct scanner x = { .pen = pen, .start = body, .s = body,
                         .language = language };
    while (*x.s) {
        size_t n;
        if (*x.s == HOLE)
            x.s += read_hole(&x);
        else if ((n = comment_length(&x)) > 0)
            pen->styled(pen, COMMENT, x.s, n), x.s += n;
        else if ((n = string_length(&x)) > 0)
            pen->styled(pen, STRING, x.s, n), x.s += n;
        else
            x.s += is_word(*x.s) ? read_word(&x) : read_plain(&x);
    }
}
static void skip_plain(struct pen *pen, const char *s, size_t n)
{
    (void)pen, (void)s, (void)n;
}

static void skip_styled(struct pen *pen, enum style style, const char *s,
                        size_t n)
{
    (void)pen, (void)style, (void)s, (void)n;
}

static void skip_hole(struct pen *pen, const struct name *name)
{
    (void)pen, (void)name;
}

static void note_user(struct pen *pen, struct identifier *id, const char *s,
                      size_t n)
{
    (void)s, (void)n;
    push_once(&id->users, pen->chunk);
}

static void connect_identifiers(void)
{
    classify_identifiers();
    for (size_t i = 0; i < book.chunks.n; i++) {
        struct chunk *c = book.chunks.at[i];
        struct pen pen = { skip_plain, skip_styled, note_user, skip_hole,
                           NULL, c->page, c };
        draw(&pen, c->body, language_of_chunk(c));
    }
}
static void html_plain(struct pen *pen, const char *s, size_t n)
{
    escape(pen->out, html_escapes, s, n);
}

static void html_styled(struct pen *pen, enum style style, const char *s,
                        size_t n)
{
    static const char *const tag[STYLES] = { "b", "i", "samp" };
    const struct name *file = style == STRING && n > 2
        ? find(&book.names, copy(s + 1, n - 2)) : NULL;
    putf(pen->out, "<%s>", tag[style]);
    if (file != NULL) {
        put(pen->out, "<a href=\"");
        html_address(pen->out, pen->here, file->definitions.at[0]);
        put(pen->out, "\">");
    }
    escape(pen->out, html_escapes, s, n);
    putf(pen->out, "%s</%s>", file ? "</a>" : "", tag[style]);
}

static void html_identifier(struct pen *pen, struct identifier *id,
                            const char *s, size_t n)
{
    put(pen->out, "<a href=\"");
    html_address(pen->out, pen->here, nearest(id, pen->chunk->page));
    put(pen->out, "\">");
    escape(pen->out, html_escapes, s, n);
    put(pen->out, "</a>");
}
static void html_hole(struct pen *pen, const struct name *name)
{
    const struct chunk *c = name->definitions.at[0];
    put(pen->out, "<span class=\"hole\">⟨<a class=\"h\" href=\"");
    html_address(pen->out, pen->here, c);
    put(pen->out, "\">");
    html_name(pen->out, name->text);
    put(pen->out, "</a> <a class=\"n\" href=\"");
    html_address(pen->out, pen->here, c);
    putf(pen->out, "\">%s</a>⟩</span>", c->number);
}

static void html_body(struct text *t, struct chunk *c,
                      const struct page *here)
{
    struct pen pen = { html_plain, html_styled, html_identifier, html_hole,
                       t, here, c };
    draw(&pen, c->body, language_of_chunk(c));
}
static void tex_lines(struct text *t, const char *open, const char *s,
                      size_t n)
{
    for (const char *end = s + n; s < end; ) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t k = (size_t)((nl ? nl : end) - s);
        if (k > 0) {
            put(t, open);
            escape(t, texcode_escapes, s, k);
            put(t, *open ? "}" : "");
        }
        put(t, nl ? "}\n\\CL{" : "");
        s += k + (nl != NULL);
    }
}

static void tex_plain(struct pen *pen, const char *s, size_t n)
{
    tex_lines(pen->out, "", s, n);
}

static void tex_styled(struct pen *pen, enum style style, const char *s,
                       size_t n)
{
    static const char *const open[STYLES] = { "\\nwk{", "\\nwc{", "\\nws{" };
    tex_lines(pen->out, open[style], s, n);
}
static void tex_identifier(struct pen *pen, struct identifier *id,
                           const char *s, size_t n)
{
    putf(pen->out, "\\hyperlink{%s}{", nearest(id, pen->here)->anchor);
    escape(pen->out, texcode_escapes, s, n);
    put(pen->out, "}");
}

static void tex_hole(struct pen *pen, const struct name *name)
{
    const struct chunk *c = name->definitions.at[0];
    putf(pen->out, "\\nwhole{%s}{", c->anchor);
    tex_name(pen->out, name->text);
    putf(pen->out, "}{%s}", c->number);
}

static void tex_body(struct text *t, struct chunk *c)
{
    struct pen pen = { tex_plain, tex_styled, tex_identifier, tex_hole,
                       t, c->page, c };
    put(t, "\\CL{");
    draw(&pen, c->body, language_of_chunk(c));
    put(t, "}\n");
}
static struct chunk *sibling(const struct chunk *c, int step)
{
    int i = c->nth + step;
    if (i < 0 || (size_t)i >= c->name->definitions.n)
        return NULL;
    return c->name->definitions.at[i];
}

static void html_jump(struct text *t, const struct chunk *from,
                      const struct chunk *to, const char *arrow,
                      const char *what)
{
    if (to == NULL)
        return;
    put(t, " <a class=\"cont\" href=\"");
    html_address(t, from->page, to);
    putf(t, "\" title=\"%s, %s\">%s %s</a>", what, to->number, arrow,
         to->number);
}

static void html_head(struct text *t, const struct chunk *c)
{
    putf(t, "<div class=\"head\"><a class=\"name\" href=\"#%s\">⟨",
         c->anchor);
    html_name(t, c->name->text);
    putf(t, "⟩</a>%s <span class=\"no\">%s</span>", c->nth ? "+≡" : "≡",
         c->number);
    if (is_blank(c))
        put(t, " <span class=\"tag\">blank</span>");
    html_jump(t, c, sibling(c, -1), "↑", "begun or continued above");
    html_jump(t, c, sibling(c, 1), "↓", "continued");
    put(t, "</div>\n");
}
enum { USES_SHOWN = 6 };

static void html_uses(struct text *t, const struct page *here,
                      const struct list *users, const char *index)
{
    for (size_t i = 0; i < users->n; i++) {
        if (i == USES_SHOWN && users->n > USES_SHOWN + 1) {
            putf(t, ", <a href=\"%s\">%zu more</a>", index, users->n - i);
            return;
        }
        const struct chunk *u = users->at[i];
        putf(t, "%s<a href=\"", i ? ", " : "");
        html_address(t, here, u);
        putf(t, "\">%s</a>", u->number);
    }
}

static void html_definitions(struct text *t, const struct chunk *c)
{
    for (size_t i = 0; i < c->identifiers.n; i++) {
        const struct identifier *id = c->identifiers.at[i];
        struct text index = { 0 };
        putf(&index, "identifiers.html#id:%s", id->text);
        put(t, i ? "; " : " Defines ");
        put(t, "<code>");
        escape(t, html_escapes, id->text, strlen(id->text));
        put(t, "</code>");
        if (id->users.n > 0) {
            put(t, " (");
            html_uses(t, c->page, &id->users, str(&index));
            put(t, ")");
        }
    }
    put(t, c->identifiers.n ? "." : "");
}
static void html_relation(struct text *t, const struct chunk *c,
                          const char *what, const struct name *other)
{
    if (other == NULL)
        return;
    putf(t, "%s<a href=\"", what);
    html_address(t, c->page, other->definitions.at[0]);
    put(t, "\">⟨");
    html_name(t, other->text);
    put(t, "⟩</a>. ");
}

static void html_foot(struct text *t, const struct chunk *c)
{
    struct text index = { 0 };
    putf(&index, "chunks.html#index:%s", slug(c->name->text));
    const struct name *n = c->name;
    if (n->users.n == 0 && c->identifiers.n == 0 && !n->replaces
        && !n->replaced_by)
        return;
    put(t, "\n<div class=\"foot\">");
    html_relation(t, c, "Stands in for ", n->replaces);
    html_relation(t, c, "Replaced later by ", n->replaced_by);
    if (c->name->users.n > 0) {
        put(t, "Used in ");
        html_uses(t, c->page, &c->name->users, str(&index));
        put(t, ".");
    }
    html_definitions(t, c);
    put(t, "</div>");
}
static bool is_file(const struct chunk *c)
{
    return c->name->users.n == 0 && strchr(c->name->text, '.') != NULL
        && strchr(c->name->text, ' ') == NULL;
}

static void html_chunk(struct text *t, struct chunk *c)
{
    bool wrong = strncmp(c->name->text, "wrong, ", 7) == 0;
    putf(t, "<div class=\"chunk%s\" id=\"%s\">\n",
         is_file(c) ? " file" : wrong ? " wrongpath"
         : is_blank(c) ? " blank" : "", c->anchor);
    html_head(t, c);
    if (*c->body) {
        put(t, "<pre><code>");
        html_body(t, c, c->page);
        put(t, "</code></pre>");
    } else {
        put(t, "<p class=\"empty\">nothing yet</p>");
    }
    html_foot(t, c);
    put(t, "\n</div>\n");
}
static void tex_uses(struct text *t, const struct list *users)
{
    for (size_t i = 0; i < users->n; i++) {
        if (i == USES_SHOWN && users->n > USES_SHOWN + 1) {
            putf(t, ", and %zu more", users->n - i);
            return;
        }
        const struct chunk *u = users->at[i];
        putf(t, "%s\\nwuser{%s}{%s}", i ? ", " : "", u->anchor, u->number);
    }
}

static void tex_relation(struct text *t, const char *what,
                         const struct name *other)
{
    if (other == NULL)
        return;
    const struct chunk *c = other->definitions.at[0];
    putf(t, "%s\\nwl\\hyperlink{%s}{\\textit{", what, c->anchor);
    tex_name(t, other->text);
    putf(t, "}}\\nwr\\ %s, p.\\,\\pageref{%s}. ", c->number, c->anchor);
}
static void tex_foot(struct text *t, const struct chunk *c)
{
    tex_relation(t, "Stands in for ", c->name->replaces);
    tex_relation(t, "Replaced later by ", c->name->replaced_by);
    if (c->name->users.n > 0) {
        put(t, "Used in ");
        tex_uses(t, &c->name->users);
        put(t, ". ");
    }
    for (size_t i = 0; i < c->identifiers.n; i++) {
        const struct identifier *id = c->identifiers.at[i];
        put(t, i ? "; \\texttt{" : "Defines \\texttt{");
        escape(t, tex_escapes, id->text, strlen(id->text));
        put(t, "}");
        if (id->users.n > 0) {
            put(t, " (");
            tex_uses(t, &id->users);
            put(t, ")");
        }
    }
    put(t, c->identifiers.n ? "." : "");
}
static void tex_chunk(struct text *t, struct chunk *c)
{
    const struct chunk *before = sibling(c, -1), *after = sibling(c, 1);
    putf(t, "\\begin{nwchunk}{%s}{", c->anchor);
    tex_name(t, c->name->text);
    putf(t, "}{%s}{%s}{", c->number, c->nth ? "\\nwplus" : "\\nwequiv");
    if (before)
        putf(t, "\\nwback{%s}{%s}", before->anchor, before->number);
    if (after)
        putf(t, "\\nwforth{%s}{%s}", after->anchor, after->number);
    put(t, "}\n");
    if (*c->body)
        tex_body(t, c);
    else
        put(t, "\\nwnothing\n");
    put(t, "\\nwfoot{");
    tex_foot(t, c);
    put(t, "}\n\\end{nwchunk}\n");
}

static void markdown_of_chunk(struct text *t, struct chunk *c)
{
    put(t, "\n~~~~~~~~{=html}\n");
    html_chunk(t, c);
    put(t, "~~~~~~~~\n\n~~~~~~~~{=latex}\n");
    tex_chunk(t, c);
    put(t, "~~~~~~~~\n\n");
}
static void hash_file(uint64_t *h, const char *path)
{
    struct text t = { 0 };
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && read_file(path, &t))
        *h = hash(*h, str(&t), t.n);
}

static bool is_script(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot != NULL
        && (strcmp(dot, ".gp") == 0 || strcmp(dot, ".awk") == 0);
}

static void hash_names(uint64_t *h, const char *text, int depth)
{
    static const char separators[] = " \t\n|<>;&()'\"=,";
    for (const char *s = text; *s; ) {
        size_t n = strcspn(s, separators);
        if (n > 0) {
            struct text program = { 0 }, script = { 0 };
            char *word = copy(s, n);
            putf(&program, "build/bin/%s", word);
            hash_file(h, word);
            hash_file(h, str(&program));
            struct text weights = { 0 }, config = { 0 };
            putf(&weights, "%s/model.safetensors", word);
            putf(&config, "%s/config.json", word);
            hash_file(h, str(&weights));
            hash_file(h, str(&config));
            if (depth > 0 && is_script(word) && read_file(word, &script))
                hash_names(h, str(&script), depth - 1);
        }
        s += n + (s[n] != '\0');
    }
}

static uint64_t hash_command(const char *command)
{
    uint64_t h = hash(HASH_START, command, strlen(command));
    hash_names(&h, command, 3);
    return h;
}
static int run_command(const char *command, bool merge, struct text *out)
{
    setenv("WEAVE_COMMAND", command, 1);
    FILE *f = popen(merge ? "exec bash -o pipefail -c \"$WEAVE_COMMAND\" 2>&1"
                    : "exec bash -o pipefail -c \"$WEAVE_COMMAND\"", "r");
    if (f == NULL)
        give_up("cannot run", command);
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        add(out, part, n);
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static const char *run(const struct page *p, int line, const char *command,
                       bool merge, int want)
{
    struct text path = { 0 }, out = { 0 };
    putf(&path, "%s/weave/run/%016llx", book.out,
         (unsigned long long)(hash_command(command) + (unsigned)want));
    if (read_file(str(&path), &out))
        return str(&out);
    int status = run_command(command, merge, &out);
    if (status == want)
        write_if_changed(str(&path), &out);
    else
        complain(p->file, line, "status %d, expected %d: %s\n%s", status,
                 want, command, merge ? str(&out) : "");
    return str(&out);
}
static void tex_session(struct text *t, const char *open, const char *s)
{
    for (; *s; s += line_length(s), s += *s == '\n') {
        putf(t, "\\CL{%s", open);
        escape(t, texcode_escapes, s, line_length(s));
        put(t, *open ? "}}\n" : "}\n");
        open = *open ? "\\nwmore{" : "";
    }
}

/* Columns of the widest line: bytes that do not continue a character. */
static int widest(const char *s)
{
    int most = 0, n = 0;
    for (; *s; s++) {
        n = *s == '\n' ? 0 : n + (((unsigned char)*s & 0xC0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

static int run_line(const struct page *p, int line, const char *command,
                    int want, struct text *html, struct text *tex)
{
    const char *out = book.no_run ? "" : run(p, line, command, true, want);
    size_t n = strlen(out);
    while (n > 0 && isspace((unsigned char)out[n - 1]))
        n--;
    put(html, html->n ? "\n<b>" : "<b>");
    escape(html, html_escapes, command, strlen(command));
    put(html, "</b>");
    put(html, n ? "\n" : "");
    escape(html, html_escapes, out, n);
    tex_session(tex, "\\nwprompt{", command);
    tex_session(tex, "", copy(out, n));
    int wide = widest(copy(out, n)), own = widest(command) + 2;
    return wide > own ? wide : own;
}
static void emit_run(struct text *t, const struct page *p, int line,
                     const char *fence, const char *body)
{
    struct text html = { 0 }, tex = { 0 };
    const char *status = attribute(strchr(fence, '{'), "status=");
    int want = status ? atoi(status) : 0, columns = 0;
    for (const char *s = body; *s; line++) {
        size_t n = line_length(s);
        while (n > 0 && s[n - 1] == '\\' && s[n])
            n += 1 + line_length(s + n + 1);
        char *command = copy(s, n);
        if (command[strspn(command, " \t")]) {
            int c = run_line(p, line, command, want, &html, &tex);
            columns = c > columns ? c : columns;
        }
        s += n + (s[n] == '\n');
    }
    putf(t, "~~~~~~~~{=html}\n<pre class=\"session\"><code>%s</code></pre>\n"
         "~~~~~~~~\n\n~~~~~~~~{=latex}\n\\begin{nwcode}{%d}\n%s"
         "\\end{nwcode}\n~~~~~~~~\n", str(&html), columns, str(&tex));
}
static void emit_figure(struct text *t, const struct page *p, int line,
                        const char *fence, const char *body)
{
    const char *id = attribute(strchr(fence, '{'), "#");
    const char *caption = attribute(strchr(fence, '{'), "caption=");
    const struct anchor *a = id ? find(&book.anchors, id) : NULL;
    if (a == NULL)
        return;
    struct text svg = { 0 }, path = { 0 };
    put(&svg, book.no_run ? "<svg xmlns='http://www.w3.org/2000/svg' "
        "width='9' height='9'/>" : run(p, line, body, false, 0));
    if (strstr(str(&svg), "<svg") == NULL) {
        complain(p->file, line, "the command printed no SVG");
        return;
    }
    putf(&path, "%s/html/fig/%s.svg", book.out, slug(id));
    write_if_changed(str(&path), &svg);
    putf(t, "::: {.figure #%s}\n![](fig/%s.svg)\n\n", id, slug(id));
    putf(t, "[%c%s.]{.figno} %s\n:::\n", toupper((unsigned char)*a->label),
         a->label + 1, caption ? caption : "");
}
static bool list_tests(const char *label, struct text *out)
{
    for (int n = atoi(label); n <= 99; n++) {
        struct text path = { 0 }, command = { 0 };
        struct stat st;
        putf(&path, "%s/%d/suite_%s", book.out, n, label);
        if (stat(str(&path), &st) != 0)
            continue;
        putf(&command, "%s --list", str(&path));
        *out = (struct text){ 0 };
        return run_command(str(&command), false, out) == 0;
    }
    return false;
}

static void tests_row(struct text *t, const char *row)
{
    size_t name = strcspn(row, "\t\n");
    const char *tier = row + name + (row[name] == '\t');
    size_t k = strcspn(tier, "\t\n");
    const char *owner = tier + k + (tier[k] == '\t');
    putf(t, "| `%.*s` | %.*s | ", (int)name, row, (int)k, tier);
    markdown_chunk(t, copy(owner, line_length(owner)));
    put(t, " |\n");
}
static void tests_table(struct text *t, const struct page *p,
                        const char *suite)
{
    struct text list = { 0 };
    if (!list_tests(suite ? suite : p->label, &list)) {
        fprintf(stderr, "%s: note: no suite %s is built, so no table of "
                "its tests\n", p->file, suite ? suite : p->label);
        return;
    }
    put(t, "| Test | Tier | Owner |\n|:-----------------------|:--:|"
        ":-----------------------|\n");
    const char *s = str(&list);
    for (; *s; s += line_length(s), s += *s == '\n')
        tests_row(t, s);
}
static void wrong_table(struct text *t, const struct page *p)
{
    put(t, "| Instead of | somebody writes | and then |\n"
        "|:--------------|:--------------|:--------------------|\n");
    for (size_t i = 0; i < p->wrong.n; i++) {
        const struct swap *w = p->wrong.at[i];
        put(t, "| ");
        markdown_chunk(t, w->chunk);
        put(t, " | ");
        markdown_chunk(t, w->by ? w->by : "");
        putf(t, " | %s |\n", w->mechanism ? w->mechanism : "");
    }
}

static int count_tests(const struct page *p)
{
    struct text list = { 0 };
    int n = 0;
    if (list_tests(p->label, &list))
        for (const char *s = str(&list); *s; s++)
            n += *s == '\n';
    return n;
}
static void map_row(struct text *t, const struct page *p)
{
    int tests = count_tests(p), files = 0;
    putf(t, "| %s | [", p->label);
    escape(t, markdown_escapes, p->title, strlen(p->title));
    putf(t, "](%s.html) | ", p->slug);
    for (size_t i = 0; i < p->blocks.n; i++) {
        struct chunk *c = ((struct block *)p->blocks.at[i])->chunk;
        if (c == NULL || !is_file(c) || c->nth > 0)
            continue;
        putf(t, "%s[`%s`](%s.html#%s)", files++ ? ", " : "", c->name->text,
             p->slug, c->anchor);
    }
    if (tests > 0)
        putf(t, " | %d | ", tests);
    else
        put(t, " | – | ");
    putf(t, "%d | %d |\n", p->prose_lines, p->code_lines);
}

static void chapter_map(struct text *t)
{
    int prose = 0, code = 0;
    put(t, "|   | Chapter | Files | Tests | Prose | Code |\n"
        "|:--|:---------|:-------------------|---:|---:|---:|\n");
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        if (p->kind != PREFACE)
            map_row(t, p);
        prose += p->prose_lines;
        code += p->code_lines;
    }
    putf(t, "|   | all |   |   | %d | %d |\n", prose, code);
}
static void card_blanks(struct text *t, const struct stage *s)
{
    put(t, "Blanks\n:   ");
    for (size_t i = 0; i < s->blanks.n; i++) {
        const struct blank *b = s->blanks.at[i];
        if (b->body == NULL)
            continue;
        put(t, i ? "    - " : "- ");
        markdown_link(t, b->chunk, b->body);
        put(t, "\n");
    }
    put(t, "\n");
}

static void card_stage(struct text *t, const struct page *p,
                       const struct stage *s)
{
    const struct page *other = other_page(p, s);
    putf(t, "Stage\n:   %s%s%s", s->key, s->title ? ", " : "",
         s->title ? s->title : "");
    if (other != NULL && other->sections.n > 0)
        putf(t, ", with [%s](%s.html#%s)", other->title, other->slug,
             ((const struct section *)other->sections.at[0])->id);
    put(t, "\n\n");
    if (budget(s) > 0)
        putf(t, "Budget\n:   %d minutes%s\n\n", budget(s),
             other ? " for both" : "");
    if (s->stop)
        putf(t, "Stop when\n:   %s\n\n", s->stop);
    if (s->blanks.n > 0)
        card_blanks(t, s);
}
static void anchors_of(struct text *t, const struct name *n)
{
    for (size_t i = 0; n != NULL && i < n->definitions.n; i++)
        putf(t, "%s%s", t->n ? " " : "",
             ((const struct chunk *)n->definitions.at[i])->anchor);
}

static void open_stage(struct text *t, const struct stage *s)
{
    struct text folds = { 0 }, holes = { 0 };
    for (size_t i = 0; i < s->blanks.n; i++) {
        const struct blank *b = s->blanks.at[i];
        anchors_of(&folds, b->body);
        anchors_of(&holes, b->body == b->name ? NULL : b->name);
    }
    putf(t, "\n~~~{=html}\n<div class=\"stage\" data-stage=\"%s\" "
         "data-minutes=\"%d\"\ndata-folds=\"%s\"\ndata-holes=\"%s\">\n"
         "~~~\n\n", s->key, budget(s), str(&folds), str(&holes));
}
static void form_label(struct text *t, const struct page *p,
                       const struct stage *s)
{
    put(t, p->slug);
    if (p->stages.n > 1)
        putf(t, "-%s", s->key);
}

static void close_stage(struct text *t, const struct page *p,
                        const struct stage *s)
{
    if (s->blanks.n > 0) {
        putf(t, "Begin with\n:   `<code>make blank-%s</code> <button "
             "type=\"button\" class=\"copy\">copy the command</button>`"
             "{=html}`\\texttt{make blank-%s}, or with the form on p.\\,"
             "\\pageref{form:", s->key, s->key);
        form_label(t, p, s);
        put(t, "}`{=latex}\n\n");
    }
    put(t, "~~~{=html}\n<div class=\"controls\">\n");
    if (budget(s) > 0)
        putf(t, "<span class=\"clock\" role=\"timer\" aria-label=\"Time "
             "left\">%d:00</span>\n<button type=\"button\" class=\"go\">"
             "start</button>\n<button type=\"button\" class=\"reset\">reset"
             "</button>\n", budget(s));
    if (s->blanks.n > 0)
        put(t, "<button type=\"button\" class=\"view\" "
            "aria-pressed=\"false\">blank view</button>\n");
    put(t, "</div>\n</div>\n~~~\n\n");
}
static void card(struct text *t, const struct page *p)
{
    if (p->purpose)
        putf(t, "\n::: purpose\n%s\n:::\n", p->purpose);
    if (p->stages.n == 0)
        return;
    put(t, "\n::: card\n");
    for (size_t i = 0; i < p->stages.n; i++) {
        open_stage(t, p->stages.at[i]);
        card_stage(t, p, p->stages.at[i]);
        close_stage(t, p, p->stages.at[i]);
    }
    put(t, ":::\n");
}
static void code_span(struct text *t, const char *s, size_t n)
{
    if (memchr(s, '`', n))
        putf(t, "`` %.*s ``", (int)n, s);
    else
        putf(t, "`%.*s`", (int)n, s);
}

static const struct identifier *quoted_identifier(const char *s, size_t n)
{
    static const char *const tags[] = { "struct ", "enum ", "union " };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        size_t k = strlen(tags[i]);
        if (n > k && strncmp(s, tags[i], k) == 0) {
            s += k;
            n -= k;
            break;
        }
    }
    if (n > 2 && strncmp(s + n - 2, "()", 2) == 0)
        n -= 2;
    return find(&book.identifiers, copy(s, n));
}
static void quotation(struct text *t, const struct page *p, const char *s,
                      size_t n)
{
    if (n > 2 && s[0] == HOLE && s[n - 1] == HOLE) {
        markdown_chunk(t, copy(s + 1, n - 2));
        return;
    }
    const struct identifier *id = quoted_identifier(s, n);
    if (id == NULL) {
        code_span(t, s, n);
        return;
    }
    struct chunk *c = nearest(id, p);
    c = c ? c : id->definitions.at[0];
    put(t, "[");
    code_span(t, s, n);
    putf(t, "](%s.html#%s){.idref}", c->page->slug, c->anchor);
}
static size_t later_chapter(struct text *t, const struct page *p, int line,
                            const char *id)
{
    fprintf(stderr, "%s:%d: note: no chapter #%s yet, so no link\n",
            p->file, line, id);
    if (t->n > 0 && t->s[t->n - 1] == '[')
        put(t, "a later chapter");
    put(t, "]{.later}");
    return strlen("](#)") + strlen(id);
}

static size_t link_target(struct text *t, const struct page *p, int line,
                          const char *s)
{
    size_t n = strcspn(s + 3, ") \n");
    char *id = copy(s + 3, n);
    const struct anchor *a = find(&book.anchors, id);
    if (a == NULL && strncmp(id, "ch:", 3) == 0)
        return later_chapter(t, p, line, id);
    if (a == NULL && strchr(id, ':') != NULL)
        complain(p->file, line, "nothing in the book has the id #%s", id);
    if (a != NULL && t->n > 0 && t->s[t->n - 1] == '[')
        put(t, a->label);
    putf(t, "](%s%s#%s", a && a->page != p ? a->page->slug : "",
         a && a->page != p ? ".html" : "", id);
    return n + 3;
}
static void inline_text(struct text *t, const struct page *p, int line,
                        const char *s, size_t n)
{
    for (const char *end = s + n; s < end; ) {
        const char *close = *s == QUOTE ? memchr(s, UNQUOTE,
                                                 (size_t)(end - s)) : NULL;
        if (close != NULL) {
            quotation(t, p, s + 1, (size_t)(close - s - 1));
            s = close + 1;
        } else if (*s == '`' || *s == '$') {
            const char mark[] = { *s, '\0' };
            size_t ticks = strspn(s, mark);
            const char *stop = s + ticks;
            while (stop < end && strspn(stop, mark) != ticks)
                stop += *stop == *s ? strspn(stop, mark) : 1;
            size_t k = stop < end ? (size_t)(stop - s) + ticks : ticks;
            put(t, unquote(s, k));
            s += k;
        } else if (end - s > 3 && strncmp(s, "](#", 3) == 0) {
            s += link_target(t, p, line, s);
        } else {
            add(t, s++, 1);
        }
    }
}
static void kicker(struct text *t, const struct page *p)
{
    if (p->kind == PREFACE)
        return;
    const char *kind = p->kind == CHAPTER ? "Chapter" : "Appendix";
    putf(t, "\n~~~{=html}\n<p class=\"kicker\">%s %s</p>\n~~~\n\n"
         "~~~{=latex}\n\\nwchapter{%s}{%s}\n~~~\n\n",
         kind, p->label, kind, p->label);
}

static void running_head(struct text *t, const char *title)
{
    put(t, "\n~~~{=latex}\n\\markboth{");
    escape(t, tex_escapes, title, strlen(title));
    put(t, "}{}\n~~~\n\n");
}
static void heading(struct text *t, const struct page *p, int line,
                    const struct section *h)
{
    struct text title = { 0 };
    bool first = p->sections.at[0] == h;
    const char *s = h->title;
    if (first && h->level == 1)
        kicker(t, p);
    for (; *s; s++) {
        if (strncmp(s, "[[", 2) == 0)
            putf(&title, "%c", QUOTE), s++;
        else if (strncmp(s, "]]", 2) == 0)
            putf(&title, "%c", UNQUOTE), s++;
        else
            add(&title, s, 1);
    }
    putf(t, "%.*s ", h->level, "######");
    inline_text(t, p, line, str(&title), title.n);
    putf(t, " {#%s%s}\n", h->id,
         h->level == 1 && p->kind == PREFACE ? " .unnumbered" : "");
    if (first && h->level == 1) {
        if (p->kind == PREFACE)
            running_head(t, p->title);
        card(t, p);
    }
}
struct prose {
    struct text *out;
    struct page *page;
    struct fence fence;
    const char *directive;      /* the opening line, if ours */
    struct text body;
    size_t section;
    int line, start;
};

static void end_of_directive(struct prose *w)
{
    char *body = unquote(str(&w->body), w->body.n);
    if (has_class(w->directive, ".run"))
        emit_run(w->out, w->page, w->start + 1, w->directive, body);
    else
        emit_figure(w->out, w->page, w->start + 1, w->directive, body);
    w->directive = NULL;
    w->body = (struct text){ 0 };
}

static void fence_line(struct prose *w, const char *s, size_t n, bool inside)
{
    if (!inside && (has_class(s, ".run") || has_class(s, ".figure"))) {
        w->directive = s;
        w->start = w->line;
    } else if (inside && w->directive) {
        end_of_directive(w);
    } else {
        add(w->out, s, n);
    }
}
static void div_line(struct prose *w, const char *s, size_t n)
{
    const char *word = s + strspn(s, ": {.");
    char *brace = memchr(s, '{', n) ? attribute(s, "suite=") : NULL;
    add(w->out, s, n);
    put(w->out, "\n");
    if (strncmp(word, "tests", 5) == 0)
        tests_table(w->out, w->page, brace);
    else if (strncmp(word, "wrong", 5) == 0)
        wrong_table(w->out, w->page);
    else if (strncmp(word, "chapter-map", 11) == 0)
        chapter_map(w->out);
}
static void prose_line(struct prose *w, const char *s, size_t n)
{
    bool inside = w->fence.length > 0;
    if (crosses_fence(&w->fence, s)) {
        fence_line(w, s, n, inside);
    } else if (inside && w->directive) {
        add(&w->body, s, n);
        put(&w->body, "\n");
    } else if (inside) {
        put(w->out, unquote(s, n));
    } else if (*s == '#' && s[strspn(s, "#")] == ' ') {
        heading(w->out, w->page, w->line,
                w->page->sections.at[w->section++]);
    } else if (strncmp(s, ":::", 3) == 0) {
        div_line(w, s, n);
    } else {
        inline_text(w->out, w->page, w->line, s, n);
    }
}

static void emit_prose(struct prose *w, const struct block *b)
{
    w->line = b->line;
    w->fence.length = 0;
    for (const char *s = b->prose; *s; w->line++) {
        size_t n = line_length(s);
        prose_line(w, s, n);
        if (w->directive == NULL)
            put(w->out, "\n");
        s += n + (s[n] == '\n');
    }
    if (w->fence.length > 0)
        complain(w->page->file, w->line, "a code fence is not closed");
}
struct sentence {
    const char *s;
    size_t n;
    bool shapes, kept;
};

enum { SENTENCES = 64, FORM_LETTERS = 2400 };   /* letters of all contracts */
static bool names_a_shape(const char *s, size_t n)
{
    for (size_t i = 0; i + 2 < n; i++) {
        if (s[i] != '[' || !isupper((unsigned char)s[i + 1]))
            continue;
        size_t k = i + 1;
        bool comma = false;
        while (k < n && k < i + 24 && s[k] != ']' && s[k] != ' ')
            comma = s[k++] == ',' || comma;
        if (k < n && s[k] == ']' && comma)
            return true;
    }
    return false;
}
static size_t sentence_length(const char *s, size_t n)
{
    char inside = 0;
    for (size_t i = 0; i < n; i++) {
        if (inside)
            inside = s[i] == inside ? 0 : inside;
        else if (s[i] == '`' || s[i] == '$')
            inside = s[i];
        else if (s[i] == QUOTE)
            inside = UNQUOTE;
        else if (strchr(".?!", s[i]) && i + 1 < n && s[i + 1] == ' ')
            return i + 1;
    }
    return n;
}

static size_t split(const char *s, size_t n, struct sentence *out,
                    size_t have)
{
    while (n > 0 && have < SENTENCES) {
        size_t k = sentence_length(s, n);
        out[have++] = (struct sentence){ s, k, names_a_shape(s, k), false };
        while (k < n && s[k] == ' ')
            k++;
        s += k;
        n -= k;
    }
    return have;
}
static bool is_running_text(const char *s)
{
    static const char *const others[] = { "#", "|", ":::", ">", "- ", "* ",
                                          "    ", "$$", "```", "~~~" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(s, others[i], strlen(others[i])) == 0)
            return false;
    return *s != '\n' && *s != '\0';
}
struct sentences {
    struct sentence at[SENTENCES];
    size_t n, last;
};

static void end_paragraph(struct sentences *x, struct text *paragraph)
{
    if (paragraph->n == 0)
        return;
    x->last = x->n;
    x->n = split(str(paragraph), paragraph->n, x->at, x->n);
    *paragraph = (struct text){ 0 };
}

static void read_sentences(struct sentences *x, const struct block *b)
{
    struct fence f = { 0 };
    struct text paragraph = { 0 };
    for (const char *s = b->prose; *s; s += line_length(s), s += *s == '\n') {
        bool code = crosses_fence(&f, s) || f.length > 0;
        bool more = paragraph.n > 0 && *s != '\n';
        if (code || !(more || is_running_text(s))) {
            end_paragraph(x, &paragraph);
            continue;
        }
        put(&paragraph, more ? " " : "");
        add(&paragraph, s, line_length(s));
    }
    end_paragraph(x, &paragraph);
}
static void choose(struct sentences *x, size_t room)
{
    size_t n = x->n - 1, used = x->at[n].n;
    x->at[n].kept = true;
    for (size_t i = n; i-- > 0; )
        if (x->at[i].shapes && used + x->at[i].n <= room) {
            x->at[i].kept = true;
            used += x->at[i].n;
        }
    for (size_t i = n; i-- > x->last; ) {
        size_t more = x->at[i].kept ? 0 : x->at[i].n;
        if (used + more > room)
            break;
        used += more;
        x->at[i].kept = true;
    }
}

static void contract(struct text *t, const struct page *p,
                     const struct block *b, size_t room)
{
    struct sentences x = { .n = 0 };
    if (b != NULL)
        read_sentences(&x, b);
    if (x.n > 0)
        choose(&x, room);
    for (size_t i = 0, next = 0; i < x.n; i++) {
        if (!x.at[i].kept)
            continue;
        put(t, next == 0 ? "" : next == i ? " " : " … ");
        inline_text(t, p, b->line, x.at[i].s, x.at[i].n);
        next = i + 1;
    }
}
static const struct block *prose_before(const struct page *p,
                                        const struct name *body, int *lines)
{
    const struct block *prose = NULL;
    *lines = 0;
    for (size_t i = 0; i < p->blocks.n; i++) {
        const struct chunk *c = ((struct block *)p->blocks.at[i])->chunk;
        if (c == NULL || c->name != body)
            continue;
        for (const char *s = c->body; *s; s += *s == '\n', (*lines)++)
            s += line_length(s);
        const struct block *b = i > 0 ? p->blocks.at[i - 1] : NULL;
        if (prose == NULL && b != NULL && b->chunk == NULL)
            prose = b;
    }
    return prose;
}
static void form_blank(struct text *t, const struct page *p,
                       const struct blank *b, size_t room)
{
    int lines;
    const struct block *prose = prose_before(p, b->body, &lines);
    const struct chunk *c = b->body->definitions.at[0];
    put(t, "`\\nwformblank{");
    tex_name(t, b->chunk);
    putf(t, "}{%s}{%s}{%d}{`{=latex}", c->anchor, c->number,
         lines > 0 ? lines : 1);
    contract(t, p, prose, room);
    if (b->declares != NULL)
        putf(t, " Leaves `%s` behind.", b->declares);
    put(t, "`}`{=latex}\n\n");
}
static void form(struct text *t, const struct page *p, const struct stage *s)
{
    const size_t count = s->blanks.n;
    if (count == 0)
        return;
    size_t room = FORM_LETTERS / count < 420 ? FORM_LETTERS / count : 420;
    put(t, "\n::: form\n~~~{=latex}\n\\nwformtitle{");
    escape(t, tex_escapes, p->title, strlen(p->title));
    put(t, "}{");
    form_label(t, p, s);
    putf(t, "}\n~~~\n\n`\\nwformstage{%s}{%s}{%d}{`{=latex}%s`}`{=latex}\n\n",
         s->key, s->title ? s->title : "", budget(s), s->stop ? s->stop : "");
    for (size_t k = 0; k < count; k++) {
        const struct blank *b = s->blanks.at[k];
        if (b->body != NULL)
            form_blank(t, p, b, room);
    }
    put(t, ":::\n");
}
static void meta_string(struct text *t, const char *key, const char *value)
{
    putf(t, "%s: \"", key);
    escape(t, json_escapes, value, strlen(value));
    put(t, "\"\n");
}

static void meta_neighbour(struct text *t, const char *key, size_t i)
{
    if (i >= book.pages.n)
        return;
    const struct page *p = book.pages.at[i];
    putf(t, "%s:\n  href: \"%s.html\"\n  label: \"%s\"\n  ", key, p->slug,
         p->kind == PREFACE ? "" : p->label);
    meta_string(t, "title", p->title);
}

static void metadata(struct text *t, const char *slug_, const char *title,
                     const struct page *here)
{
    put(t, "---\n");
    meta_string(t, "pagetitle", title);
    meta_string(t, "book", book.title);
    meta_string(t, "page", slug_);
    put(t, here ? "chapter: true\n" : "");
    put(t, here && here->stages.n > 0 ? "stages:\n" : "");
    for (size_t i = 0; here != NULL && i < here->stages.n; i++)
        putf(t, "  - \"%s\"\n", ((struct stage *)here->stages.at[i])->key);
    put(t, "chapters:\n");
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        putf(t, "  - href: \"%s.html\"\n    label: \"%s\"\n    ", p->slug,
             p->kind == PREFACE ? "" : p->label);
        meta_string(t, "title", p->title);
        put(t, p == here ? "    current: true\n" : "");
    }
    for (size_t i = 0; here != NULL && i < book.pages.n; i++)
        if (book.pages.at[i] == here) {
            meta_neighbour(t, "prev", i - 1);
            meta_neighbour(t, "next", i + 1);
        }
    put(t, "---\n\n");
}
static void write_markdown(const char *slug_, const struct text *t)
{
    struct text path = { 0 };
    putf(&path, "%s/weave/md/%s.md", book.out, slug_);
    write_if_changed(str(&path), t);
}

static void write_page(struct page *p)
{
    struct text t = { 0 };
    struct prose w = { .out = &t, .page = p };
    metadata(&t, p->slug, p->title, p);
    for (size_t i = 0; i < p->blocks.n; i++) {
        const struct block *b = p->blocks.at[i];
        if (b->chunk)
            markdown_of_chunk(&t, b->chunk);
        else
            emit_prose(&w, b);
    }
    for (size_t i = 0; i < p->stages.n; i++)
        form(&t, p, p->stages.at[i]);
    write_markdown(p->slug, &t);
}
static void write_bodies(const struct page *p)
{
    struct text t = { 0 }, path = { 0 };
    putf(&t, "bookBodies({\n");
    for (size_t i = 0, n = 0; i < p->blocks.n; i++) {
        struct chunk *c = ((struct block *)p->blocks.at[i])->chunk;
        if (c == NULL)
            continue;
        struct text html = { 0 };
        const struct chunk *next = sibling(c, 1);
        html_body(&html, c, NULL);
        putf(&t, "%s\"%s\":[\"%s\",\"", n++ ? ",\n" : "", c->anchor,
             c->number);
        if (next)
            html_address(&t, NULL, next);
        put(&t, "\",\"");
        escape(&t, json_escapes, str(&html), html.n);
        put(&t, "\"]");
    }
    put(&t, "\n});\n");
    putf(&path, "%s/html/bodies/%s.js", book.out, p->slug);
    write_if_changed(str(&path), &t);
}
static void contents_row(struct text *t, const struct page *p)
{
    put(t, "\n::: row\n");
    if (p->kind != PREFACE)
        putf(t, "[%s]{.no} ", p->label);
    put(t, "[");
    escape(t, markdown_escapes, p->title, strlen(p->title));
    putf(t, "](%s.html){.title}", p->slug);
    if (minutes_on(p, NULL) > 0)
        putf(t, " [%d min]{.budget}", minutes_on(p, NULL));
    putf(t, "\n\n%s\n:::\n", p->purpose ? p->purpose : "");
}

static void write_contents(void)
{
    struct text t = { 0 };
    int minutes = 0;
    metadata(&t, "index", book.title, NULL);
    putf(&t, "# %s {#index:contents}\n\n", book.title);
    put(&t, "::: contents\n");
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        contents_row(&t, p);
        minutes += minutes_on(p, NULL);
    }
    put(&t, "\n::: row\n[Index of chunks](chunks.html){.title}\n\n"
        "Every chunk, where it is defined and who uses it.\n:::\n"
        "\n::: row\n[Index of identifiers](identifiers.html){.title}\n\n"
        "Every public name, likewise.\n:::\n:::\n");
    if (minutes > 0)
        putf(&t, "\n::: total\nAll stages: %d h %02d min.\n:::\n",
             minutes / 60, minutes % 60);
    write_markdown("index", &t);
}
static void write_master(void)
{
    struct text t = { 0 }, path = { 0 };
    const struct page *first = book.pages.n ? book.pages.at[0] : NULL;
    const char *line = first && first->kind == PREFACE && first->purpose
        ? first->purpose : "";
    put(&t, "\\input{book/style/book.tex}\n\\begin{document}\n\\nwtitle{");
    escape(&t, tex_escapes, book.title, strlen(book.title));
    put(&t, "}{");
    escape(&t, tex_escapes, line, strlen(line));
    put(&t, "}\n\\nwcontents\n");
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        putf(&t, "\\input{%s/weave/tex/%s.tex}\n", book.out, p->slug);
    }
    putf(&t, "\\input{%s/weave/tex/chunks.tex}\n"
         "\\input{%s/weave/tex/identifiers.tex}\n\\end{document}\n",
         book.out, book.out);
    putf(&path, "%s/weave/book.tex", book.out);
    write_if_changed(str(&path), &t);
}
enum { PLACES_SHOWN = 16 };     /* on paper; the HTML index has all */

static int compare_keys(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    const char *s = *x, *t = *y;
    while (*s && tolower((unsigned char)*s) == tolower((unsigned char)*t))
        s++, t++;
    int d = tolower((unsigned char)*s) - tolower((unsigned char)*t);
    return d ? d : strcmp(*x, *y);
}

static char **sorted_keys(const struct table *t)
{
    char **keys = take((t->keys.n + 1) * sizeof *keys);
    for (size_t i = 0; i < t->keys.n; i++)
        keys[i] = t->keys.at[i];
    qsort(keys, t->keys.n, sizeof *keys, compare_keys);
    return keys;
}
static void html_places(struct text *t, const struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        put(t, i ? ", <a href=\"" : "<a href=\"");
        html_address(t, NULL, l->at[i]);
        putf(t, "\">%s</a>", ((const struct chunk *)l->at[i])->number);
    }
}

static void tex_places(struct text *t, const struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct chunk *c = l->at[i];
        if (i == PLACES_SHOWN && l->n > PLACES_SHOWN + 1) {
            putf(t, ", and %zu more", l->n - i);
            return;
        }
        putf(t, "%s\\nwuser{%s}{%s}", i ? ", " : "", c->anchor, c->number);
    }
}
static void index_entry(struct text *html, struct text *tex, const char *id,
                        const struct list *definitions,
                        const struct list *users, const char *otherwise)
{
    putf(html, "</dt><dd id=\"%s\"><b>", id);
    html_places(html, definitions);
    put(html, "</b>");
    put(html, users->n ? "; used in " : otherwise);
    html_places(html, users);
    put(html, "</dd>\n");
    put(tex, "}{");
    tex_places(tex, definitions);
    put(tex, users->n ? "; used in " : otherwise);
    tex_places(tex, users);
    put(tex, "}\n");
}

static void write_index(const char *slug_, const char *title,
                        const struct text *html, const struct text *tex)
{
    struct text t = { 0 };
    metadata(&t, slug_, title, NULL);
    putf(&t, "# %s {#index:%s .unnumbered}\n\n", title, slug_);
    running_head(&t, title);
    putf(&t, "~~~~~~~~{=html}\n<dl class=\"index\">\n%s</dl>\n~~~~~~~~\n\n"
         "~~~~~~~~{=latex}\n\\begin{nwindex}\n%s\\end{nwindex}\n~~~~~~~~\n",
         str(html), str(tex));
    write_markdown(slug_, &t);
}
static void write_chunk_index(void)
{
    struct text html = { 0 }, tex = { 0 };
    char **keys = sorted_keys(&book.names);
    for (size_t i = 0; i < book.names.keys.n; i++) {
        const struct name *n = find(&book.names, keys[i]);
        struct text id = { 0 };
        putf(&id, "index:%s", slug(n->text));
        put(&html, "<dt>⟨");
        html_name(&html, n->text);
        put(&html, "⟩");
        put(&tex, "\\nwentry{\\nwname{");
        tex_name(&tex, n->text);
        put(&tex, "}");
        index_entry(&html, &tex, str(&id), &n->definitions, &n->users,
                    is_file(n->definitions.at[0]) ? "; a file" : "");
    }
    write_index("chunks", "Index of chunks", &html, &tex);
}
static void write_identifier_index(void)
{
    struct text html = { 0 }, tex = { 0 };
    char **keys = sorted_keys(&book.identifiers);
    for (size_t i = 0; i < book.identifiers.keys.n; i++) {
        const struct identifier *id = find(&book.identifiers, keys[i]);
        struct text anchor = { 0 };
        if (id == NULL)
            continue;
        putf(&anchor, "id:%s", id->text);
        put(&html, "<dt><code>");
        escape(&html, html_escapes, id->text, strlen(id->text));
        put(&html, "</code>");
        put(&tex, "\\nwentry{\\texttt{");
        escape(&tex, tex_escapes, id->text, strlen(id->text));
        put(&tex, "}");
        index_entry(&html, &tex, str(&anchor), &id->definitions, &id->users,
                    "");
    }
    write_index("identifiers", "Index of identifiers", &html, &tex);
}
static void search_entry(struct text *t, char kind, const char *text,
                         const char *slug_, const char *id,
                         const char *place)
{
    putf(t, "[\"%c\",\"", kind);
    escape(t, json_escapes, text, strlen(text));
    putf(t, "\",\"%s.html#%s\",\"%s\"],\n", slug_, id, place);
}

static void write_search(void)
{
    struct text t = { 0 }, path = { 0 };
    put(&t, "window.bookIndex=[\n");
    for (size_t i = 0; i < book.pages.n; i++) {
        const struct page *p = book.pages.at[i];
        for (size_t k = 0; k < p->sections.n; k++) {
            const struct section *h = p->sections.at[k];
            search_entry(&t, 's', h->title, p->slug, h->id, p->label);
        }
    }
    for (size_t i = 0; i < book.chunks.n; i++) {
        const struct chunk *c = book.chunks.at[i];
        if (c->nth == 0)
            search_entry(&t, 'c', c->name->text, c->page->slug, c->anchor,
                         c->number);
    }
    for (size_t i = 0; i < book.identifiers.keys.n; i++) {
        const struct identifier *id =
            find(&book.identifiers, book.identifiers.keys.at[i]);
        if (id == NULL)
            continue;
        const struct chunk *c = id->definitions.at[0];
        search_entry(&t, 'i', id->text, c->page->slug, c->anchor, c->number);
    }
    put(&t, "];\n");
    putf(&path, "%s/html/search.js", book.out);
    write_if_changed(str(&path), &t);
}
static void make_directories(void)
{
    static const char *const names[] = {
        "", "/weave", "/weave/md", "/weave/run", "/weave/tex", "/html",
        "/html/fig", "/html/bodies",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct text path = { 0 };
        putf(&path, "%s%s", book.out, names[i]);
        make_directory(str(&path));
    }
}

static void connect(void)
{
    for (size_t i = 0; i < book.pages.n; i++) {
        struct page *p = book.pages.at[i];
        read_front_matter(p);
        for (size_t k = 0; k < p->blocks.n; k++) {
            struct block *b = p->blocks.at[k];
            if (b->chunk == NULL)
                scan_prose(p, b);
            else
                for (const char *s = b->chunk->body; *s; s += *s == '\n') {
                    p->code_lines++;
                    s += line_length(s);
                }
        }
    }
    for (size_t i = 0; i < book.chunks.n; i++)
        connect_uses(book.chunks.at[i]);
    for (size_t i = 0; i < book.pages.n; i++)
        connect_front_matter(book.pages.at[i]);
    for (size_t i = 0; i < book.pages.n; i++)
        connect_blanks(book.pages.at[i]);
    connect_identifiers();
}
static void write_book(void)
{
    make_directories();
    for (size_t i = 0; i < book.pages.n; i++) {
        write_page(book.pages.at[i]);
        write_bodies(book.pages.at[i]);
    }
    write_contents();
    write_chunk_index();
    write_identifier_index();
    write_search();
    write_master();
}

static void read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0)
            book.no_run = true;
        else if (strcmp(argv[i], "-k") == 0)
            book.keep_going = true;
        else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
            book.out = argv[++i];
        else if (strcmp(argv[i], "-t") == 0 && i + 1 < argc)
            book.title = argv[++i];
        else {
            fputs("usage: markup FILE.nw... | weave [-nk] [-o DIRECTORY] "
                  "[-t TITLE]\n", stderr);
            exit(2);
        }
    }
}
int main(int argc, char **argv)
{
    read_options(argc, argv);
    const char *path = getenv("PATH");
    struct text paths = { 0 };
    putf(&paths, "build/bin:%s", path ? path : "/usr/bin:/bin");
    setenv("PATH", str(&paths), 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    read_stream(stdin);
    connect();
    write_book();
    int complaints = book.complaints;
    bool bad = complaints > 0 && !book.keep_going;
    if (complaints > 0)
        fprintf(stderr, "weave: %d complaint%s\n", complaints,
                complaints == 1 ? "" : "s");
    give_all_back();
    return bad;
}
