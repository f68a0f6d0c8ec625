#include "frame.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "verdict.h"

struct range {
    unsigned long first, last;
    int columns;        /* -1: not for a terminal */
};

static const struct range ranges[] = {
    { 0x0000, 0x001f, -1 }, { 0x007f, 0x009f, -1 },     /* controls */
    { 0x0300, 0x036f, 0 }, { 0x1ab0, 0x1aff, 0 }, { 0x1dc0, 0x1dff, 0 },
    { 0x1100, 0x115f, 2 },                              /* Hangul */
    { 0x200b, 0x200d, 0 },
    { 0x200e, 0x200f, -1 }, { 0x2028, 0x202e, -1 },     /* direction */
    { 0x2060, 0x2060, 0 }, { 0x2066, 0x2069, -1 },
    { 0x20d0, 0x20ff, 0 },
    { 0x2e80, 0x303e, 2 }, { 0x3041, 0xa4cf, 2 },       /* CJK */
    { 0xac00, 0xd7a3, 2 }, { 0xf900, 0xfaff, 2 },
    { 0xfe00, 0xfe0f, 0 }, { 0xfe20, 0xfe2f, 0 },
    { 0xfe30, 0xfe6f, 2 }, { 0xff00, 0xff60, 2 }, { 0xffe0, 0xffe6, 2 },
    { 0x1f300, 0x1f64f, 2 }, { 0x1f680, 0x1f6ff, 2 },   /* pictures */
    { 0x1f900, 0x1f9ff, 2 }, { 0x20000, 0x3fffd, 2 },
};

static int columns_of(unsigned long code)
{
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (code >= ranges[i].first && code <= ranges[i].last)
            return ranges[i].columns;
    return 1;
}

/* Its length in bytes; its columns, or -1. */
static int character(const char *text, int *columns)
{
    const unsigned char *at = (const unsigned char *)text;
    int length = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2
               : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    unsigned long code = length < 2 ? at[0] : at[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            length = 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    *columns = length > 0 ? columns_of(code) : -1;
    return length > 0 ? length : 1;
}

enum style { PLAIN, BOLD, DIM, GREEN, RED, YELLOW };

struct page {
    const struct frame *frame;
    struct list lines;
    FILE *line;             /* writes to the next two; or NULL */
    char *text;
    size_t size;
    int column;
};

static const char *style_code(enum style style)
{
    static const char *const codes[] = { "", "\33[1m", "\33[2m", "\33[32m",
                                         "\33[31m", "\33[33m" };
    return codes[style];
}

/* What one character looks like on this page. */
static int shown(const struct page *page, const char *text, int *columns)
{
    int length = character(text, columns);
    if (length > 1 && !page->frame->utf8)
        *columns = -1;
    return length;
}

static int width_of(const struct page *page, const char *text)
{
    int width = 0, columns;
    for (; *text != '\0'; text += shown(page, text, &columns),
         width += columns >= 0 ? columns : 1)
        ;
    return width;
}

static void write_clipped(struct page *page, const char *text)
{
    const int room = page->frame->columns - page->column;
    const bool fits = width_of(page, text) <= room;
    int left = fits ? room : room - 1;
    for (int length, columns; *text != '\0'; text += length) {
        length = shown(page, text, &columns);
        if ((columns >= 0 ? columns : 1) > left)
            break;
        if (columns >= 0)
            fwrite(text, 1, (size_t)length, page->line);
        else
            fputc(strchr("\t\r\n", *text) != NULL ? ' ' : '?', page->line);
        left -= columns >= 0 ? columns : 1;
    }
    if (!fits)
        fputs(page->frame->utf8 ? "\u2026" : ">", page->line);
    page->column = fits ? page->frame->columns - left : page->frame->columns;
}

static void put(struct page *page, enum style style, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (page->line == NULL)
        page->line = open_memstream(&page->text, &page->size);
    if (page->line == NULL || text[0] == '\0'
        || page->column >= page->frame->columns)
        return;
    bool coloured = page->frame->colour && style != PLAIN;
    fputs(coloured ? style_code(style) : "", page->line);
    write_clipped(page, text);
    fputs(coloured ? "\33[0m" : "", page->line);
}

static void end_line(struct page *page)
{
    if (page->line != NULL)
        fclose(page->line);
    list_add(&page->lines, page->text != NULL ? page->text
                                              : text_format("%s", ""));
    page->line = NULL;
    page->text = NULL;
    page->column = 0;
}

static void wrap(struct page *page, const char *prefix, enum style style,
                 const char *text, int most)
{
    const char *gap = "";
    put(page, DIM, "%s", prefix);
    while (*(text += strspn(text, " \t\r\n")) != '\0') {
        size_t length = strcspn(text, " \t\r\n");
        char *word = text_format("%s%.*s", gap, (int)length, text);
        bool fits = page->column + width_of(page, word)
            <= page->frame->columns;
        if (!fits && *gap != '\0' && --most > 0) {
            end_line(page);
            put(page, PLAIN, "%*s", width_of(page, prefix), "");
        }
        put(page, style, "%s", page->column > width_of(page, prefix)
                               || *gap == '\0' ? word : word + 1);
        free(word);
        text += length;
        gap = " ";
        if (most <= 0)
            break;
    }
    end_line(page);
}

static void show_times(struct page *page, enum style style,
                       const char *what)
{
    const struct attempt *attempt = page->frame->attempt;
    char *spent = time_format(attempt->elapsed);
    char *budget = time_format(attempt->budget);
    put(page, style, "%s", what);
    put(page, PLAIN, "%s%s of %s", *what != '\0' ? "   " : "", spent, budget);
    free(spent);
    free(budget);
}

static void show_clock(struct page *page)
{
    const struct attempt *attempt = page->frame->attempt;
    static const char *const ends[] = { "", "clean pass", "passed late",
                                        "revealed", "abandoned" };
    const double left = attempt->budget - (double)(long)attempt->elapsed;
    char *time = time_format(left < 0 ? -left : left);
    char *what = text_format("%s %s", time, left < 0 ? "over" : "left");
    if (attempt->result != RESULT_OPEN)
        show_times(page, attempt->result == RESULT_CLEAN ? GREEN : YELLOW,
                   ends[attempt->result]);
    else
        show_times(page, left < 0 ? RED : BOLD, what);
    if (attempt->is_paused)
        put(page, YELLOW, "   paused");
    if (attempt->uncertain)
        put(page, DIM, "   (with a reboot)");
    end_line(page);
    free(what);
    free(time);
}

static void show_cells(struct page *page, enum style style, int cells,
                       const char *utf8, const char *ascii)
{
    for (int i = 0; i < cells; i++)
        put(page, style, "%s", page->frame->utf8 ? utf8 : ascii);
}

static void show_bar(struct page *page)
{
    const struct attempt *attempt = page->frame->attempt;
    const double spent = attempt->elapsed, budget = attempt->budget;
    const int width = page->frame->columns;
    const double whole = spent > budget ? spent : budget;
    int within = width, over = 0;
    if (whole > 0) {
        within = (int)((spent < budget ? spent : budget) / whole * width);
        over = spent > budget ? width - within : 0;
    }
    show_cells(page, attempt->is_paused ? YELLOW : GREEN, within, "\u2588",
               "#");
    show_cells(page, RED, over, "\u2593", "!");
    show_cells(page, DIM, width - within - over, "\u2591", "-");
    end_line(page);
}

static void show_mark(struct page *page, const struct tested *test)
{
    const bool utf8 = page->frame->utf8;
    if (test->passed)
        put(page, GREEN, utf8 ? "\u2713" : "+");
    else if (tested_blank(test))
        put(page, YELLOW, utf8 ? "\u25cb" : "o");
    else
        put(page, RED, utf8 ? "\u2717" : "x");
}

static void show_tier(struct page *page, int tier)
{
    const struct grade *grade = page->frame->grade;
    int passed = 0, all = 0;
    for (size_t i = 0; i < grade->count; i++)
        if (grade->tests[i].tier == tier) {
            passed += grade->tests[i].passed;
            all++;
        }
    if (all == 0)
        return;
    put(page, PLAIN, "tier %d  %3d of %3d  ", tier, passed, all);
    const int margin = page->column;
    for (size_t i = 0; i < grade->count; i++) {
        if (grade->tests[i].tier != tier)
            continue;
        if (page->column >= page->frame->columns) {
            end_line(page);
            put(page, PLAIN, "%*s", margin, "");
        }
        show_mark(page, &grade->tests[i]);
    }
    end_line(page);
}

static int count_failures(const struct grade *grade)
{
    int failures = 0;
    for (size_t i = 0; i < grade->count; i++)
        failures += !grade->tests[i].passed
            && !tested_blank(&grade->tests[i]);
    return failures;
}

static void show_failure(struct page *page)
{
    const struct frame *frame = page->frame;
    const struct tested *test = grade_first_failure(frame->grade);
    const int most = frame->rows < 24 ? 2 : 6;
    if (test == NULL)
        return;
    const char *repair = repair_of(test->owner, frame->stage->chapter);
    end_line(page);
    int failures = count_failures(frame->grade);
    if (failures > 1)
        put(page, BOLD, "first of %d failures", failures);
    else
        put(page, BOLD, "failed");
    end_line(page);
    put(page, RED, frame->utf8 ? "  \u2717 " : "  x ");
    put(page, BOLD, "%s", test->name);
    end_line(page);
    put(page, DIM, "    %s", test->place);
    end_line(page);
    wrap(page, "    ", PLAIN, test->message, most);
    wrap(page, "    owner   ", BOLD, test->owner, most);
    if (repair != NULL)
        wrap(page, "    repair  ", PLAIN, repair, most + 1);
}

static void show_names(struct page *page, const char *what,
                       const struct list *names)
{
    if (names->count == 0)
        return;
    end_line(page);
    put(page, BOLD, "%s", what);
    end_line(page);
    for (size_t i = 0; i < names->count; i++) {
        put(page, YELLOW, page->frame->utf8 ? "  \u25cb " : "  o ");
        put(page, PLAIN, "%s", names->items[i]);
        end_line(page);
    }
}

static char *without_folder(const char *text, int length, const char *path)
{
    char *line = text_format("%.*s", length, text);
    char *folder = text_format("%s/", path);
    for (char *at; (at = strstr(line, folder)) != NULL; )
        memmove(at, at + strlen(folder), strlen(at + strlen(folder)) + 1);
    free(folder);
    return line;
}

static void show_said(struct page *page, const char *text)
{
    int left = page->frame->rows;
    while (*text != '\0' && left-- > 0) {
        int length = (int)strcspn(text, "\n");
        char *line = without_folder(text, length, page->frame->path);
        if (line[0] == ' ' || line[0] == '\0') {
            put(page, PLAIN, "%s", line);
            end_line(page);
        } else
            wrap(page, "", strstr(line, "error:") != NULL ? BOLD : PLAIN,
                 line, 4);
        free(line);
        text += length + (text[length] == '\n');
    }
}

static void show_pass(struct page *page)
{
    const struct attempt *attempt = page->frame->attempt;
    char *over = time_format(attempt->elapsed - attempt->budget);
    end_line(page);
    put(page, GREEN, "All %d tests passed.", page->frame->grade->passed);
    end_line(page);
    if (attempt->result == RESULT_CLEAN)
        put(page, GREEN, "A clean pass%s.",
            attempt->pauses > 0 ? ", with a pause" : "");
    else if (attempt->result == RESULT_LATE)
        put(page, YELLOW, "Passed, %s over the budget.", over);
    else if (attempt->result == RESULT_REVEALED)
        put(page, YELLOW, "After the reveal, so it does not count.");
    end_line(page);
    free(over);
}

static void show_body(struct page *page)
{
    const struct grade *grade = page->frame->grade;
    if (grade == NULL)
        return;
    if (grade->problem != NULL) {
        put(page, RED, "%s", grade->problem);
        end_line(page);
        show_said(page, grade->said != NULL ? grade->said : "");
        return;
    }
    for (int tier = 0; tier < 4; tier++)
        show_tier(page, tier);
    if (grade_is_pass(grade))
        show_pass(page);
    show_failure(page);
    show_names(page, "not written yet", &grade->unwritten);
    show_names(page, "blank, and reached by a test", &grade->reached);
    if (grade->said != NULL && grade->said[0] != '\0') {
        end_line(page);
        show_said(page, grade->said);
    }
}

static void show_verdict(struct page *page)
{
    const struct frame *frame = page->frame;
    const struct grade *grade = frame->grade;
    const char *dot = frame->utf8 ? "\u00b7" : "-";
    if (grade == NULL)
        put(page, DIM, "no verdict yet");
    else if (grade->problem != NULL)
        put(page, RED, "no verdict %s %s", dot, frame->graded);
    else {
        const int blank = grade->failed - count_failures(grade);
        put(page, grade->failed == 0 ? GREEN : RED, "%d passed, %d failed",
            grade->passed, grade->failed);
        put(page, PLAIN, " %s %s", dot, frame->graded);
        if (blank > 0)
            put(page, YELLOW, " %s %d blank", dot, blank);
        put(page, DIM, " %s seed %llu", dot, grade->seed);
    }
    end_line(page);
}

static void show_keys(struct page *page)
{
    const struct frame *frame = page->frame;
    if (frame->grading >= 0) {
        put(page, YELLOW, frame->utf8 ? "grading\u2026" : "grading...");
        if (frame->grading >= 2)
            put(page, PLAIN, " %d s", (int)frame->grading);
        end_line(page);
    } else if (frame->note != NULL)
        wrap(page, "", YELLOW, frame->note, 3);
    else {
        if (frame->keys)
            put(page, DIM, "g grade   p %s   r reveal   q quit",
                frame->attempt->is_paused ? "resume" : "pause");
        end_line(page);
    }
}

static void fit(struct page *page, int room)
{
    struct list *lines = &page->lines;
    size_t most = (size_t)(room > 0 ? room : 0), kept = 0;
    size_t extra = lines->count > most ? lines->count - most : 0;
    const size_t before = lines->count;
    for (size_t i = 0; i < before; i++)
        if (extra > 0 && lines->items[i][0] == '\0') {
            free(lines->items[i]);
            extra--;
        } else
            lines->items[kept++] = lines->items[i];
    lines->count = kept;
    if (kept > most && most > 0) {
        free(lines->items[most - 1]);
        lines->items[most - 1] =
            text_format("%s", page->frame->utf8 ? "\u2026" : ">");
    }
    while (lines->count > most)
        free(lines->items[--lines->count]);
    while (lines->count < most)
        list_add(lines, text_format("%s", ""));
}

static void join(struct page *parts, int count, int rows, FILE *out)
{
    for (int part = 0; part < count; part++) {
        struct list *lines = &parts[part].lines;
        for (size_t i = 0; i < lines->count && rows > 0; i++, rows--)
            fprintf(out, "%s\n", lines->items[i]);
        list_free(lines);
    }
}

char *frame_text(const struct frame *frame)
{
    struct page parts[3] = { { .frame = frame }, { .frame = frame },
                             { .frame = frame } };
    struct page *head = &parts[0], *body = &parts[1], *foot = &parts[2];
    char *text = NULL;
    size_t size = 0;
    put(head, BOLD, "Stage %s %s %s", frame->stage->key,
        frame->utf8 ? "\u00b7" : "-", frame->stage->title);
    end_line(head);
    show_clock(head);
    show_bar(head);
    if (frame->rows >= 12)
        end_line(head);
    show_body(body);
    show_verdict(foot);
    show_keys(foot);
    fit(body, frame->rows - (int)(head->lines.count + foot->lines.count));
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return text_format("%s", "");
    join(parts, 3, frame->rows, out);
    fclose(out);
    return text;
}
