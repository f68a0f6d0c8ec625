#include "pieces.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct piece piece_chunk(const char *text, const char *chunk)
{
    struct piece piece = { 0 };
    char *first = text_format("// <<%s>>\n", chunk);
    char *last = text_format("// end of <<%s>>", chunk);
    const char *begin = strstr(text, first);
    const char *end = begin != NULL ? strstr(begin, last) : NULL;
    if (end != NULL) {
        piece.begin = (size_t)(begin - text) + strlen(first);
        piece.end = (size_t)(end - text);
        while (piece.end > piece.begin && text[piece.end - 1] == ' ')
            piece.end--;
    }
    free(first);
    free(last);
    return piece;
}

static size_t end_of_text(const char *text, size_t at, const char *end)
{
    const char *found = strstr(text + at, end);
    return found != NULL ? (size_t)(found - text) + strlen(end)
                         : strlen(text);
}

static size_t end_of_quote(const char *text, size_t at)
{
    const char quote = text[at++];
    while (text[at] != '\0' && text[at] != quote && text[at] != '\n')
        at += text[at] == '\\' && text[at + 1] != '\0' ? 2 : 1;
    return text[at] == quote ? at + 1 : at;
}

static size_t end_of_directive(const char *text, size_t at)
{
    while (text[at] != '\0' && (text[at] != '\n' || text[at - 1] == '\\'))
        at++;
    return at;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static size_t step(const char *text, size_t at)
{
    if (strncmp(text + at, "//", 2) == 0)
        return end_of_text(text, at, "\n");
    if (strncmp(text + at, "/*", 2) == 0)
        return end_of_text(text, at + 2, "*/");
    if (text[at] == '"' || text[at] == '\'')
        return end_of_quote(text, at);
    if (text[at] == '#')
        return end_of_directive(text, at);
    if (!is_word(text[at]))
        return at + 1;
    while (is_word(text[at]))
        at++;
    return at;
}

static char *declared_name(const char *text, struct piece declaration)
{
    size_t from = 0, to = 0;
    for (size_t at = declaration.begin; at < declaration.end; ) {
        size_t next = step(text, at);
        if (is_word(text[at])) {
            from = at;
            to = next;
        } else if (text[at] == '(' && to > from)
            return text_format("%.*s", (int)(to - from), text + from);
        at = next;
    }
    return NULL;
}

static void add_function(struct functions *functions, const char *text,
                         struct piece declaration, struct piece comment,
                         size_t body)
{
    char *name = declared_name(text, declaration);
    size_t count = functions->count;
    if (name == NULL)
        return;
    struct function *longer = allocate((count + 1) * sizeof *longer);
    for (size_t i = 0; i < count; i++)
        longer[i] = functions->items[i];
    free(functions->items);
    functions->items = longer;
    longer[functions->count++] = (struct function){
        .name = name,
        .is_static = piece_has_word(text, declaration, "static"),
        .comment = comment,
        .head = declaration,
        .whole = declaration,
        .body = { body, body }
    };
}

struct functions functions_in(const char *text)
{
    struct functions functions = { 0 };
    struct piece declaration = { 0 }, comment = { 0 };
    bool started = false, inside = false;
    char before = '\0';             /* last character that means something */
    int depth = 0;
    for (size_t at = 0, next; text[at] != '\0'; at = next) {
        next = step(text, at);
        if (text[at] == '/' && next > at + 1 && !started)
            comment = (struct piece){ at, next };
        if (isspace((unsigned char)text[at]) || text[at] == '#'
            || (text[at] == '/' && next > at + 1))
            continue;
        if (depth == 0 && !started) {
            declaration.begin = at;
            started = true;
        }
        if (text[at] == '{' && depth++ == 0 && before == ')') {
            declaration.end = at;
            size_t count = functions.count;
            add_function(&functions, text, declaration, comment, at + 1);
            comment = (struct piece){ 0 };
            inside = functions.count > count;
        } else if (text[at] == '}' && depth > 0 && --depth == 0) {
            if (inside) {
                functions.items[functions.count - 1].body.end = at;
                functions.items[functions.count - 1].whole.end = next;
                started = inside = false;
            }
        } else if (text[at] == ';' && depth == 0) {
            declaration.end = at;
            if (before == ')')
                add_function(&functions, text, declaration, comment, at);
            comment = (struct piece){ 0 };
            started = false;
        }
        before = text[at];
    }
    return functions;
}

bool piece_has_word(const char *text, struct piece piece, const char *word)
{
    size_t length = strlen(word);
    for (size_t at = piece.begin, next; at < piece.end; at = next) {
        next = step(text, at);
        if (next - at == length && strncmp(text + at, word, length) == 0)
            return true;
    }
    return false;
}

void functions_free(struct functions *functions)
{
    for (size_t i = 0; i < functions->count; i++)
        free(functions->items[i].name);
    free(functions->items);
    *functions = (struct functions){ 0 };
}
