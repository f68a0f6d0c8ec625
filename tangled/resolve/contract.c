#include "contract.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAGRAPH_MAX = 8192 };

static void add_text(char *paragraph, const char *text, size_t length)
{
    size_t used = strlen(paragraph);
    if (used + length < PARAGRAPH_MAX) {
        memcpy(paragraph + used, text, length);
        paragraph[used + length] = '\0';
    }
}

static bool paragraph_line_is_empty(const char *paragraph)
{
    size_t used = strlen(paragraph);
    return used > 0 && paragraph[used - 1] == '\n';
}

static bool opens_link(const char *at)
{
    const char *close = *at == '[' ? strchr(at, ']') : NULL;
    return close != NULL && close[1] == '(' && strchr(close, ')') != NULL;
}

static char *plain_text(const char *paragraph)
{
    char *plain = allocate(strlen(paragraph) + 1), *out = plain;
    bool in_link = false;
    for (const char *at = paragraph; *at != '\0'; at++) {
        if (opens_link(at))
            in_link = true;
        else if (in_link && *at == ']') {
            at = strchr(at, ')');
            in_link = false;
        } else if (*at != '`')
            *out++ = *at == '\n' ? ' ' : *at;
    }
    while (out > plain && out[-1] == ' ')
        out--;
    *out = '\0';
    return plain;
}

char *contract_of(const char *stream, const char *chunk)
{
    char paragraph[PARAGRAPH_MAX] = "";
    bool in_code = false, ended = false;
    const char *line = stream, *next;
    for (; line != NULL && *line != '\0'; line = next) {
        size_t length = strcspn(line, "\n");
        next = line[length] == '\n' ? line + length + 1 : NULL;
        if (strncmp(line, "@defn ", 6) == 0 && length == 6 + strlen(chunk)
            && strncmp(line + 6, chunk, length - 6) == 0)
            return plain_text(paragraph);
        if (strncmp(line, "@begin ", 7) == 0) {
            in_code = strncmp(line, "@begin code", 11) == 0;
            if (!in_code)
                paragraph[0] = '\0';
        } else if (in_code)
            continue;
        else if (strncmp(line, "@text ", 6) == 0) {
            if (ended)
                paragraph[0] = '\0';
            ended = false;
            add_text(paragraph, line + 6, length - 6);
        } else if (strncmp(line, "@nl", 3) == 0) {
            ended = ended || paragraph_line_is_empty(paragraph);
            add_text(paragraph, "\n", 1);
        }
    }
    return text_format("%s", "");
}

void print_wrapped(const char *prefix, const char *text)
{
    const size_t margin = strlen(prefix);
    size_t column = 0;
    while (*(text += strspn(text, " \n")) != '\0') {
        size_t length = strcspn(text, " \n");
        if (column == 0)
            column += (size_t)printf("%s", prefix);
        else if (column + 1 + length > 76)
            column = (size_t)printf("\n%*s", (int)margin, "") - 1;
        else
            column += (size_t)printf(" ");
        column += (size_t)printf("%.*s", (int)length, text);
        text += length;
    }
    if (column > 0)
        putchar('\n');
}
