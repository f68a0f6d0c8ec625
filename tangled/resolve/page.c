#include "page.h"
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "progress.h"
#include "summary.h"

struct page {
    FILE *out;
    const struct workshop *workshop;
    const struct score *score;
    const struct stages *stages;
    const char *today;
};

static const struct series {
    enum result result;
    bool paused;
    const char *title, *style;
} series[] = {
    { RESULT_CLEAN, false, "clean", "pt 7 lc rgb '#2f8f4f'" },
    { RESULT_CLEAN, true, "clean, paused", "pt 6 lc rgb '#2f8f4f'" },
    { RESULT_LATE, false, "late", "pt 9 lc rgb '#b87a14'" },
    { RESULT_LATE, true, "late, paused", "pt 8 lc rgb '#b87a14'" },
    { RESULT_REVEALED, false, "revealed", "pt 2 lc rgb '#cc5544'" },
    { RESULT_REVEALED, true, "revealed, paused", "pt 2 lc rgb '#cc5544'" },
};
enum { SERIES = sizeof series / sizeof series[0] };

static bool is_drawn(const struct page *page, size_t i,
                     const struct stage *stage, const struct series *of)
{
    const struct attempt *items;
    score_attempts(page->score, &items);
    return strcmp(items[i].stage, stage->key) == 0
        && items[i].result != RESULT_OPEN
        && items[i].result != RESULT_ABANDONED
        && (of == NULL || (items[i].result == of->result
                           && (items[i].pauses > 0) == of->paused));
}

static bool dates_of(const struct page *page, const struct stage *stage,
                     char first[11], char last[11])
{
    const struct attempt *items;
    size_t count = score_attempts(page->score, &items);
    bool some = false;
    for (size_t i = 0; i < count; i++)
        if (is_drawn(page, i, stage, NULL)) {
            if (!some || strcmp(items[i].end_date, first) < 0)
                strcpy(first, items[i].end_date);
            if (!some || strcmp(items[i].end_date, last) > 0)
                strcpy(last, items[i].end_date);
            some = true;
        }
    return some;
}

static void put_points(FILE *out, const struct page *page,
                       const struct stage *stage, int which)
{
    const struct attempt *items;
    size_t count = score_attempts(page->score, &items);
    fprintf(out, "$s%d << EOD\n%s -1\n", which, page->today);
    for (size_t i = 0; i < count; i++)
        if (is_drawn(page, i, stage, &series[which])) {
            double minutes = items[i].elapsed / 60;
            double most = 2.0 * stage->minutes;
            fprintf(out, "%s %.2f\n", items[i].end_date,
                    minutes < most ? minutes : most);
        }
    fprintf(out, "EOD\n");
}

static void put_quoted(FILE *out, const char *text)
{
    putc('\'', out);
    for (; *text != '\0'; text++)
        fputs(*text == '\'' ? "''" : (char[]){ *text, '\0' }, out);
    putc('\'', out);
}

static void put_chart(FILE *out, const struct page *page,
                      const struct stage *stage, const char *path)
{
    char first[11], last[11], from[32], to[32];
    if (!dates_of(page, stage, first, last))
        return;
    text_date(from, first, page->today);
    text_date(to, last, page->today);
    fprintf(out, "set output ");
    put_quoted(out, path);
    fprintf(out, "\nset xtics (\"%s\" \"%s\", \"%s\" \"%s\")\n", from, first,
            to, last);
    long edge = 1 + calendar_between(first, last) / 20;
    fprintf(out, "set xrange [strptime(d, \"%s\") - %ld * 86400 : "
            "strptime(d, \"%s\") + %ld * 86400]\n", first, edge, last, edge);
    fprintf(out, "set yrange [0 : %d]\n", 2 * stage->minutes);
    fprintf(out, "set ytics 0, %d, %d\n", stage->minutes,
            2 * stage->minutes);
    fprintf(out, "set arrow 1 from graph 0, first %d to graph 1, first %d "
            "nohead lc rgb '#808080'\n", stage->minutes, stage->minutes);
    for (int i = 0; i < SERIES; i++)
        put_points(out, page, stage, i);
    for (int i = 0; i < SERIES; i++)
        fprintf(out, "%s$s%d using 1:2 with points ps 0.8 %s "
                "title '%s'", i == 0 ? "plot " : ", ", i, series[i].style,
                series[i].title);
    putc('\n', out);
}

static char *chart_path(const struct page *page, const struct stage *stage)
{
    return text_format("%s/progress/%s.svg", page->workshop->build,
                       stage->key);
}

static bool write_script(const struct page *page, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL)
        return complain("%s: %s", path, strerror(errno));
    fputs("set terminal svg size 360,200 dynamic font 'sans-serif,12'\n"
          "unset key\nset xdata time\nd = '%Y-%m-%d'\nset timefmt d\n"
          "set border 3 lc rgb '#808080'\nset tics nomirror scale 0.5\n",
          out);
    for (size_t i = 0; i < page->stages->count; i++) {
        char *chart = chart_path(page, &page->stages->items[i]);
        remove(chart);
        put_chart(out, page, &page->stages->items[i], chart);
        free(chart);
    }
    fprintf(out, "set output\n");
    bool failed = ferror(out) != 0;
    return (fclose(out) == 0 && !failed)
        || complain("%s: %s", path, strerror(errno));
}

extern char **environ;

static bool draw_charts(const struct page *page)
{
    char name[] = "gnuplot";
    char *folder = text_format("%s/progress", page->workshop->build);
    char *script = text_format("%s/charts.gp", folder);
    char *const argv[] = { name, script, NULL };
    pid_t child;
    int status = 0, error;
    bool drawn = directory_make(folder) && write_script(page, script);
    if (drawn && (error = posix_spawnp(&child, name, NULL, NULL, argv,
                                       environ)) != 0)
        drawn = complain("gnuplot: %s: the page has no charts",
                         strerror(error));
    else if (drawn && (waitpid(child, &status, 0) != child || status != 0))
        drawn = complain("gnuplot failed on %s: the page lacks charts",
                         script);
    free(script);
    free(folder);
    return drawn;
}

static void put_html(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else
            putc((unsigned char)*text < ' ' ? ' ' : *text, out);
}

static void put_svg_line(FILE *out, const char *line, size_t number)
{
    static const char *const names[] = { "id=\"", "id='", "href='#" };
    while (*line != '\0') {
        size_t known = 0;
        while (known < 3 && strncmp(line, names[known],
                                    strlen(names[known])) != 0)
            known++;
        if (known < 3) {
            fprintf(out, "%sc%zu-", names[known], number);
            line += strlen(names[known]);
        } else
            putc(*line++, out);
    }
}

static bool put_svg(FILE *out, const char *path, const char *label,
                    size_t number)
{
    FILE *in = fopen(path, "r");
    char line[4096];
    bool inside = false;
    while (in != NULL && fgets(line, sizeof line, in) != NULL)
        if (!inside && strncmp(line, "<svg", 4) == 0) {
            inside = true;
            fprintf(out, "<svg role=\"img\" aria-label=\"");
            put_html(out, label);
            fprintf(out, "\"%s", line + 4);
        } else if (inside && strstr(line, "<title>Gnuplot") == NULL)
            put_svg_line(out, line, number);
    if (in != NULL)
        fclose(in);
    return inside;
}

static void put_chart_heading(FILE *out)
{
    fprintf(out, "<h2>Time against the budget</h2>\n<p class=\"soft\">"
            "Minutes, by date. Dots are clean, triangles late, crosses "
            "revealed; hollow ones had a pause. The line across is the "
            "budget; what took over twice as long is drawn at the top.</p>\n"
            "<div class=\"charts\">\n");
}

static void put_charts(const struct page *page)
{
    size_t charts = 0;
    for (size_t i = 0; i < page->stages->count; i++) {
        const struct stage *stage = &page->stages->items[i];
        char first[11], last[11];
        if (!dates_of(page, stage, first, last))
            continue;
        if (charts++ == 0)
            put_chart_heading(page->out);
        char *path = chart_path(page, stage);
        char *label = text_format("Stage %s: time against the budget of %d "
                                  "minutes, %s to %s", stage->key, stage->minutes,
                                  first, last);
        fprintf(page->out, "<figure><figcaption>%s ", stage->key);
        put_html(page->out, stage->title);
        fprintf(page->out, "</figcaption>\n");
        if (!put_svg(page->out, path, label, i))
            fprintf(page->out, "<p class=\"soft\">No chart: gnuplot did not draw "
                    "it.</p>\n");
        fprintf(page->out, "</figure>\n");
        free(label);
        free(path);
    }
    if (charts > 0)
        fprintf(page->out, "</div>\n");
}

static void put_cell(const struct page *page, const char *name,
                     const char *text)
{
    fprintf(page->out, "<td data-name=\"%s\">", name);
    put_html(page->out, text);
    fprintf(page->out, "</td>");
}

static void put_table(const struct page *page)
{
    fprintf(page->out, "<table>\n<thead><tr><th>Stage<th>Tries"
            "<th>Best/min<th>Last result<th>State<th>Due</tr></thead>\n"
            "<tbody>\n");
    for (size_t i = 0; i < page->stages->count; i++) {
        const struct stage *stage = &page->stages->items[i];
        struct summary summary = summary_of(page->score, stage);
        struct line line = line_of(&summary, page->today);
        fprintf(page->out, "<tr class=\"%s%s\"><th>%s ", line.state,
                strcmp(line.due, "now") == 0 ? " now" : "", stage->key);
        put_html(page->out, stage->title);
        fprintf(page->out, "</th>");
        put_cell(page, "tries", line.tries);
        put_cell(page, "best/min", line.best);
        put_cell(page, "last", line.last);
        put_cell(page, "state", line.state);
        put_cell(page, "due", line.due);
        fprintf(page->out, "</tr>\n");
    }
    fprintf(page->out, "</tbody>\n</table>\n<p class=\"soft\">* with a "
            "pause; ~ with a restart of the machine, by wall time</p>\n");
}

static void put_decisions(const struct page *page)
{
    FILE *out = page->out;
    size_t count;
    struct decision *items = decisions_of(page->score, &count);
    if (count > 0)
        fprintf(out, "<h2>First wrong decisions</h2>\n<dl>\n");
    for (size_t i = 0; i < count; i++) {
        const struct attempt *attempt = items[i].attempt;
        const char *owner = attempt->first_owner;
        char date[32];
        if (i == 0
            || strcmp(owner, items[i - 1].attempt->first_owner) != 0) {
            fprintf(out, "<dt>%zu× ", items[i].same);
            put_html(out, owner[0] != '\0' ? owner : "(no test failed)");
            fprintf(out, "</dt>\n");
        }
        text_date(date, attempt->end_date, page->today);
        fprintf(out, "<dd><span class=\"soft\">%s, stage ", date);
        put_html(out, attempt->stage);
        fprintf(out, "</span> ");
        put_html(out, attempt->wrong);
        fprintf(out, "</dd>\n");
    }
    if (count > 0)
        fprintf(out, "</dl>\n");
    free(items);
}

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, "
    "initial-scale=1\">\n<title>Progress</title>\n<style>\n"
    ":root{--paper:#fdfcf9;--ink:#262420;--soft:#69645b;--rule:#e2ddd2;"
    "--good:#24703d;--due:#a03a22;color-scheme:light dark}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#181715;--ink:#d8d3c9;"
    "--soft:#9b9488;--rule:#35322d;--good:#7fc795;--due:#e39b7b}}\n"
    "body{margin:0 auto;padding:1rem 1.2rem 3rem;max-width:68rem;"
    "background:var(--paper);color:var(--ink);font:1rem/1.5 Georgia,serif}\n"
    "h1,h2{font-weight:normal}h2{margin:2.2rem 0 .4rem}\n"
    ".soft{color:var(--soft);font-size:.9rem}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "td,th{text-align:left;font-weight:normal;padding:.35rem .7rem .35rem 0;"
    "border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums}\n"
    "thead th{color:var(--soft);font-size:.9rem}\n"
    ".learned [data-name=state]{color:var(--good)}\n"
    ".now [data-name=due]{color:var(--due);font-weight:bold}\n"
    ".charts{display:grid;gap:1.2rem 2rem;"
    "grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr))}\n"
    "figure{margin:0}figcaption{font-size:.95rem}\n"
    "svg{display:block;width:100%;height:auto}\n"
    ".charts text{fill:var(--soft);font-family:inherit}\n"
    "[id*=gpPt]{stroke-width:.5}\n"
    "dt{margin-top:.9rem}dd{margin:.1rem 0 0 1.2rem;overflow-wrap:anywhere}\n"
    "@media(max-width:40rem){thead{display:none}tr{display:grid;"
    "grid-template-columns:1fr 1fr;padding:.5rem 0;"
    "border-bottom:1px solid var(--rule)}td,th{border:0;padding:.1rem 0}"
    "tr th{grid-column:1/-1}td:empty{display:none}"
    "td::before{content:attr(data-name) \" \";color:var(--soft);"
    "font-size:.85rem;font-weight:normal}}\n"
    "</style>\n</head>\n<body>\n<h1>Progress</h1>\n";

static void put_page(const struct page *page)
{
    bool now;
    char *why;
    stage_due(page->score, page->stages, page->today, &now, &why);
    fprintf(page->out, "%s<p class=\"soft\">%s</p>\n<p>Next: ", head,
            page->today);
    put_html(page->out, why);
    fprintf(page->out, ".</p>\n");
    put_table(page);
    put_charts(page);
    put_decisions(page);
    fprintf(page->out, "</body>\n</html>\n");
    free(why);
}

bool page_write(const struct workshop *workshop, const struct score *score,
                const struct stages *stages, const char *today)
{
    struct page page = { NULL, workshop, score, stages, today };
    char *path = text_format("%s/progress.html", workshop->build);
    char *fresh = text_format("%s.new", path);
    draw_charts(&page);
    page.out = fopen(fresh, "w");
    bool written = page.out != NULL;
    if (written) {
        put_page(&page);
        written = fflush(page.out) == 0 && fsync(fileno(page.out)) == 0;
        written = fclose(page.out) == 0 && written
            && rename(fresh, path) == 0;
    }
    if (!written)
        complain("%s: %s", path, strerror(errno));
    free(fresh);
    free(path);
    return written;
}
