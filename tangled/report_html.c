#include <stdlib.h>
#include "file.h"
#include "quoting.h"
#include "report_print.h"
#include "report_words.h"

static const char style[] =
    ":root{--paper:#fdfcf9;--ink:#262420;--soft:#69645b;--rule:#e2ddd2;"
    "--code:#f6f3ec;--good:#24703d;--bad:#a03a22;--mark:#fbe6dd;"
    "--mono:ui-monospace,'SF Mono','Cascadia Mono',Menlo,Consolas,"
    "'DejaVu Sans Mono',monospace;color-scheme:light dark}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#181715;--ink:#d8d3c9;"
    "--soft:#9b9488;--rule:#35322d;--code:#211f1c;--good:#7fc795;"
    "--bad:#e39b7b;--mark:#3a211a}}\n"
    "body{margin:0 auto;padding:1rem 1.2rem 3rem;max-width:60rem;"
    "background:var(--paper);color:var(--ink);font:1rem/1.5 'Iowan Old "
    "Style','Palatino Linotype',Palatino,'P052',Georgia,serif;"
    "overflow-wrap:anywhere}\n"
    "h1,h2,h3{font-weight:500;line-height:1.2}h1{margin:.5rem 0}"
    "h2{margin:2.6rem 0 .3rem}h3{font-style:italic;font-size:1rem;"
    "margin:1.3rem 0 .2rem}a{color:inherit}\n"
    "code{font-family:var(--mono);font-size:.82em;unicode-bidi:isolate}\n"
    "p{margin:.4rem 0}.soft{color:var(--soft);font-size:.9rem}\n"
    ".holds{color:var(--good)}.differs{color:var(--bad);font-weight:bold}"
    ".other{color:var(--soft)}\n"
    ".sum{font-size:1.2rem}nav ol{display:flex;flex-wrap:wrap;gap:.2rem "
    "1.4rem;list-style:none;padding:0}\n"
    "table{border-collapse:collapse;width:100%;margin:.3rem 0 1rem}\n"
    "th,td{text-align:left;font-weight:normal;vertical-align:top;"
    "padding:.28rem .8rem .28rem 0;border-bottom:1px solid var(--rule);"
    "font-variant-numeric:tabular-nums}\n"
    "thead th{color:var(--soft);font-size:.85rem}"
    "td.n,th.n{text-align:right}td.n{white-space:nowrap}\n"
    ".numbers{table-layout:fixed}.numbers th:nth-child(1){width:32%}"
    ".numbers th:nth-child(4){width:14%}.numbers th:nth-child(5){width:20%}\n"
    "tr.fails{background:var(--mark);box-shadow:-.4rem 0 var(--mark),"
    ".4rem 0 var(--mark)}tr.fails td:last-child::before{content:'✗ '}\n"
    ".cells{display:grid;grid-template-columns:repeat(auto-fill,"
    "minmax(6.2rem,1fr));gap:.1rem .8rem;padding:0;margin:.4rem 0;"
    "list-style:none;font-size:.85rem;font-variant-numeric:tabular-nums}\n"
    ".cells b{font-weight:normal;color:var(--soft)}\n"
    "@media(max-width:44rem){thead{display:none}table,tbody{display:block}"
    "tr{display:grid;grid-template-columns:1fr 1fr;gap:0 .8rem;padding:.45rem 0;"
    "border-bottom:1px solid var(--rule)}td,th{border:0;padding:.05rem 0}"
    "tbody th{grid-column:1/-1;width:auto!important}td.n{text-align:"
    "left;white-space:normal}td[data-name]:not([data-name=verdict])::before"
    "{content:attr(data-name) ' ';color:var(--soft);font-size:.85rem}}\n"
    "@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--rule:#bbb;"
    "--good:#000;--bad:#000;--mark:#eee}body{max-width:none;padding:0;"
    "font-size:9.5pt}tr{break-inside:avoid}h2,h3{break-after:avoid}nav{display:"
    "none}}\n"
    ;

static void put_cell(FILE *out, const char *name, const char *text)
{
    fprintf(out, "<td class=\"n\" data-name=\"%s\">", name);
    put_html(out, text);
    fputs("</td>", out);
}

static const char *style_of(enum judgement judgement)
{
    return judgement_fails(judgement) ? "differs"
           : judgement == HOLDS ? "holds" : "other";
}

static void put_judgement(FILE *out, enum judgement judgement)
{
    fprintf(out, "<td data-name=\"verdict\" class=\"%s\">%s</td></tr>\n",
            style_of(judgement), judgement_name(judgement));
}

static void begin_row(FILE *out, enum judgement judgement)
{
    fprintf(out, "<tr%s><th scope=\"row\">",
            judgement_fails(judgement) ? " class=\"fails\"" : "");
}

static void begin_group(FILE *out, const char *group)
{
    fprintf(out, "<h3>%s</h3>\n<table class=\"numbers\">\n"
            "<thead><tr><th>number</th>"
            "<th class=\"n\">predicted</th><th class=\"n\">measured</th>"
            "<th>unit</th><th>verdict</th></tr></thead>\n<tbody>\n", group);
}

static void put_number(FILE *out, const struct report_number *number)
{
    char text[NUMBER_TEXT_MAX];
    begin_row(out, number->judgement);
    fprintf(out, "%s</th>", number->what);
    put_cell(out, "predicted", quantity_text(&number->predicted, text));
    put_cell(out, "measured", quantity_text(&number->measured, text));
    fprintf(out, "<td>%s</td>", number->unit);
    put_judgement(out, number->judgement);
}

static void put_numbers(FILE *out, const struct report *report,
                        enum view view)
{
    const char *group = NULL;
    for (size_t k = 0; k < report->number_count; k++) {
        const struct report_number *number = &report->numbers[k];
        if (number->view != view)
            continue;
        if (group != NULL && group != number->group)
            fputs("</tbody>\n</table>\n", out);
        if (group != number->group)
            begin_group(out, number->group);
        group = number->group;
        put_number(out, number);
    }
    if (group != NULL)
        fputs("</tbody>\n</table>\n", out);
}

static void put_sizes(FILE *out, const char *name, bool known, int rank,
                      const int64_t *shape)
{
    char text[SIZES_TEXT_MAX];
    put_cell(out, name, known ? sizes_text(rank, shape, text) : "–");
}

static void put_tensor(FILE *out, const struct report_tensor *tensor,
                       size_t alike)
{
    const struct stored_form *form = tensor->form;
    const bool both = form != NULL && tensor->found;
    char text[STORED_NAME_MAX];
    begin_row(out, tensor->judgement);
    fputs("<code>", out);
    put_html(out, alike > 1 ? pattern_text(tensor->name, text)
                            : tensor->name);
    fprintf(out, "</code>");
    if (alike > 1)
        fprintf(out, " × %zu", alike);
    fprintf(out, "</th>");
    put_sizes(out, "predicted", form != NULL, form != NULL ? form->rank : 0,
              form != NULL ? form->shape : NULL);
    put_sizes(out, "found", tensor->found, tensor->rank, tensor->shape);
    const struct quantity wanted = both ? quantity_count(tensor->wanted_bytes)
                                        : quantity_none();
    const struct quantity bytes = tensor->found ? quantity_count(tensor->bytes)
                                                : quantity_none();
    fprintf(out, "<td>%s</td>", tensor->found ? dtype_name(tensor->dtype) : "–");
    put_cell(out, "bytes predicted", quantity_text(&wanted, text));
    put_cell(out, "bytes", quantity_text(&bytes, text));
    put_judgement(out, tensor->judgement);
}
static void put_tensors(FILE *out, const struct report *report,
                        enum place place, const char *title)
{
    if (report->tensor_count[place] == 0)
        return;
    fprintf(out, "<h3>%s</h3>\n<table>\n<thead><tr><th>tensor</th>"
            "<th class=\"n\">shape predicted</th><th class=\"n\">found</th>"
            "<th>type</th><th class=\"n\">bytes predicted</th>"
            "<th class=\"n\">bytes</th><th>verdict</th></tr></thead>\n"
            "<tbody>\n", title);
    for (size_t k = 0, alike; k < report->tensor_count[place]; k += alike) {
        alike = report_alike(report, place, k);
        put_tensor(out, &report->tensors[place][k], alike);
    }
    fputs("</tbody>\n</table>\n", out);
}

static void put_products(FILE *out, const struct work *work,
                         const char *title)
{
    fprintf(out, "<h3>%s</h3>\n<table>\n<thead><tr><th>product</th>"
            "<th class=\"n\">m</th><th class=\"n\">k</th>"
            "<th class=\"n\">n</th><th class=\"n\">times</th></tr></thead>\n"
            "<tbody>\n", title);
    for (int p = 0; p < work->count; p++) {
        const struct phase_product *product = &work->products[p];
        const size_t numbers[] = {product->m, product->k, product->n,
                                  product->times};
        static const char *const names[] = {"m", "k", "n", "times"};
        fprintf(out, "<tr><th scope=\"row\">%s</th>", product->name);
        for (int k = 0; k < 4; k++)
            fprintf(out, "<td class=\"n\" data-name=\"%s\">%zu</td>",
                    names[k], numbers[k]);
        fputs("</tr>\n", out);
    }
    fputs("</tbody>\n</table>\n", out);
}

static void put_loads(FILE *out, const struct audit_run *run)
{
    for (int l = 0; l < run->n_layers; l++) {
        fprintf(out, "<h3>load of the experts of layer %d</h3>\n"
                "<ol class=\"cells\">\n", l);
        for (int e = 0; e < run->n_experts; e++)
            fprintf(out, "<li><b>%d:</b> %zu</li>\n", e,
                    run->loads[(ptrdiff_t)l * run->n_experts + e]);
        fputs("</ol>\n", out);
    }
}

static void put_rows(FILE *out, const struct report *report)
{
    char text[SENTENCE_MAX];
    if (*parting_text(report, text) != '\0')
        fprintf(out, "<p class=\"differs\">%s</p>\n", text);
    if (report->run.compared == 0)
        return;
    fprintf(out, "<h3>largest difference of each row, by position</h3>\n"
            "<ol class=\"cells\">\n");
    for (int k = 0; k < report->run.compared; k++)
        fprintf(out, "<li%s><b>%d:</b> %.3g</li>\n",
                k == report->run.identity.steps ? " class=\"differs\"" : "",
                report->plan->prompt_tokens + k, report->run.differences[k]);
    fputs("</ol>\n", out);
}
static void put_view(FILE *out, const struct report *report, enum view view)
{
    const struct work *work = report->work;
    const char *topic = report_topic(report, view);
    const enum judgement judgement = view_judgement(report, view);
    fprintf(out, "<section id=\"%s\">\n<h2>%s: <span class=\"%s\">%s</span>"
            "</h2>\n<p class=\"soft\">%s</p>\n", view_key(view),
            view_title(view), style_of(judgement), judgement_name(judgement),
            view_note(view));
    if (topic != NULL)
        fprintf(out, "<p class=\"differs\">Return to %s of the book.</p>\n",
                topic);
    put_numbers(out, report, view);
    if (view == VIEW_SHAPES) {
        put_tensors(out, report, IN_FILES, "tensors of the files");
        put_tensors(out, report, IN_MODEL, "tensors of the model");
    } else if (view == VIEW_OWNERSHIP)
        put_loads(out, &report->run);
    else if (view == VIEW_PHASES) {
        put_products(out, &work[PREFILL], "matrix products of the prefill");
        put_products(out, &work[DECODE],
                     "matrix products of all steps, shapes of the first");
    } else if (view == VIEW_OUTPUT)
        put_rows(out, report);
    fputs("</section>\n", out);
}

static void put_head(FILE *out, const struct report *report)
{
    const struct audit_plan *plan = report->plan;
    char text[SENTENCE_MAX];
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"
            "<meta charset=\"utf-8\">\n<meta name=\"viewport\""
            " content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\""
            "default-src 'none'; style-src 'unsafe-inline';"
            " img-src data:\">\n"
            "<link rel=\"icon\" href=\"data:,\">\n<title>Audit of ");
    put_html(out, report->subject->name);
    fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n"
            "<h1>Audit of <code>", style);
    put_html(out, report->subject->name);
    fprintf(out, "</code></h1>\n<p class=\"sum %s\">%s</p>\n",
            report_failures(report) == 0 ? "holds" : "differs",
            verdict_text(report, text));
    fprintf(out, "<p class=\"soft\">%s; a prompt of %d tokens, then %d steps;"
            " rows may differ by %g + %g |x|.</p>\n",
            audit_format_title(report->subject->format), plan->prompt_tokens,
            plan->steps, plan->bound.absolute, plan->bound.relative);
    if (!report->has_run) {
        fprintf(out, "<p class=\"differs\">There is no model: ");
        put_html(out, report->subject->refusal.message);
        fprintf(out, "</p>\n");
    }
}

void report_print_html(FILE *out, const struct report *report)
{
    put_head(out, report);
    fputs("<nav aria-label=\"Views\">\n<ol>\n", out);
    for (enum view view = VIEW_SHAPES; view <= VIEW_OUTPUT; view++) {
        const enum judgement judgement = view_judgement(report, view);
        fprintf(out, "<li><a href=\"#%s\">%s</a> <span class=\"%s\">%s</span>"
                "</li>\n", view_key(view), view_title(view),
                style_of(judgement), judgement_name(judgement));
    }
    fputs("</ol>\n</nav>\n", out);
    for (enum view view = VIEW_SHAPES; view <= VIEW_OUTPUT; view++)
        put_view(out, report, view);
    fputs("</main>\n</body>\n</html>\n", out);
}

static enum status make_page(const struct report *report, char **page,
                             size_t *length, struct error *error)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    bool made = out != NULL;
    if (made) {
        report_print_html(out, report);
        made = ferror(out) == 0;
        made = fclose(out) == 0 && made;
    }
    if (!made) {
        free(text);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the page");
    }
    *page = text;
    *length = size;
    return STATUS_OK;
}

enum status report_write_page(const struct report *report, const char *path,
                              struct error *error)
{
    char *page = NULL;
    size_t length = 0;
    enum status status = STATUS_OK;
    status = make_page(report, &page, &length, error);
    if (status == STATUS_OK)
        status = file_write_atomic(path, page, length, error);
    free(page);
    return status;
}
