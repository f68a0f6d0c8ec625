#include <stdbool.h>
#include <string.h>
#include "quoting.h"
#include "utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

enum { UTF8_MAX = 4 };           /* bytes of a character */

/* The bytes that *text begins with, and moves behind: a character, or
   something of *count bytes that is none, then false. */
static bool next(const char **text, const char **at, int *count)
{
    const size_t left = strnlen(*text, UTF8_MAX);
    const int size = utf8_next((const unsigned char *)*text, left);
    *at = *text;
    *count = size > 0 ? size : size < 0 ? -size : (int)left;
    *text += *count;
    return size > 0;
}

static bool is_control(const char *at, int count)
{
    const unsigned char first = (unsigned char)*at;
    return count == 1 ? first < 0x20 || first == 0x7f
        : count == 2 && first == 0xC2 && (unsigned char)at[1] < 0xA0;
}
static bool is_cut(const char *at, const char *begin, FILE *out)
{
    if (at - begin < SHOWN_MAX)
        return false;
    fputs("…", out);
    return true;
}

void put_plain(FILE *out, const char *text)
{
    const char *const begin = text, *at;
    int count;
    while (*text != '\0' && !is_cut(text, begin, out))
        if (!next(&text, &at, &count) || is_control(at, count))
            fputs(replacement, out);
        else
            fwrite(at, 1, (size_t)count, out);
}

void put_html(FILE *out, const char *text)
{
    const char *const begin = text, *at;
    int count;
    while (*text != '\0' && !is_cut(text, begin, out)) {
        const bool whole = next(&text, &at, &count);
        if (!whole || is_control(at, count))
            fputs(replacement, out);
        else if (*at == '&')
            fputs("&amp;", out);
        else if (*at == '<')
            fputs("&lt;", out);
        else if (*at == '>')
            fputs("&gt;", out);
        else if (*at == '"')
            fputs("&quot;", out);
        else
            fwrite(at, 1, (size_t)count, out);
    }
}

void put_json(FILE *out, const char *text)
{
    const char *at;
    int count;
    fputc('"', out);
    while (*text != '\0') {
        const bool whole = next(&text, &at, &count);
        if (!whole)
            fputs(replacement, out);
        else if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (count == 1 && is_control(at, count))
            fprintf(out, "\\u%04x", (unsigned)(unsigned char)*at);
        else
            fwrite(at, 1, (size_t)count, out);
    }
    fputc('"', out);
}
