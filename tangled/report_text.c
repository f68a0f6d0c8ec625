#include <string.h>
#include "quoting.h"
#include "report_print.h"
#include "report_words.h"

static void print_right(FILE *out, const char *text, int width)
{
    int characters = 0;
    for (const char *at = text; *at != '\0'; at++)
        characters += ((unsigned char)*at & 0xC0) != 0x80;
    fprintf(out, "%*s%s", characters < width ? width - characters : 0, "",
            text);
}

static void print_what(FILE *out, const struct report_number *number)
{
    static const char *const units[] = {
        "bytes", "FLOP", "FLOP/byte", "s", "GFLOP/s", "GB/s"
    };
    const char *unit = "";
    char what[sizeof number->what + 16];
    for (size_t k = 0; k < sizeof units / sizeof *units; k++)
        if (strcmp(number->unit, units[k]) == 0)
            unit = units[k];
    snprintf(what, sizeof what, "%s%s%s", number->what,
             *unit != '\0' ? ", " : "", unit);
    fprintf(out, "    %-29s ", what);
}

static void print_numbers(FILE *out, const struct report *report,
                          enum view view)
{
    const char *group = NULL;
    char text[NUMBER_TEXT_MAX];
    for (size_t k = 0; k < report->number_count; k++) {
        const struct report_number *number = &report->numbers[k];
        if (number->view != view)
            continue;
        if (group != number->group)
            fprintf(out, "  %-31s %16s %16s\n", number->group, "predicted",
                    "measured");
        group = number->group;
        print_what(out, number);
        print_right(out, quantity_text(&number->predicted, text), 16);
        fputc(' ', out);
        print_right(out, quantity_text(&number->measured, text), 16);
        fprintf(out, "  %s\n", judgement_name(number->judgement));
    }
}

static void print_tensor(FILE *out, const struct report_tensor *tensor,
                         size_t alike)
{
    char sizes[SIZES_TEXT_MAX], name[STORED_NAME_MAX];
    fprintf(out, "    ");
    put_plain(out, alike > 1 ? pattern_text(tensor->name, name)
                             : tensor->name);
    if (alike > 1)
        fprintf(out, " ×%zu", alike);
    fprintf(out, "\n      ");
    const struct stored_form *form = tensor->form;
    const bool both = form != NULL && tensor->found;
    if (form != NULL && tensor->judgement != HOLDS)
        fprintf(out, "predicted %s, ",
                sizes_text(form->rank, form->shape, sizes));
    if (tensor->found)
        fprintf(out, "%s %s, %zu bytes", dtype_name(tensor->dtype),
                sizes_text(tensor->rank, tensor->shape, sizes),
                tensor->bytes);
    else
        fprintf(out, "not there");
    if (both && tensor->judgement != HOLDS)
        fprintf(out, ", predicted %zu", tensor->wanted_bytes);
    fprintf(out, ": %s\n", judgement_name(tensor->judgement));
}

static void print_tensors(FILE *out, const struct report *report,
                          enum place place)
{
    for (size_t k = 0, alike; k < report->tensor_count[place]; k += alike) {
        alike = report_alike(report, place, k);
        if (report->tensors[place][k].judgement != HOLDS)
            print_tensor(out, &report->tensors[place][k], alike);
    }
}

void report_print_text(FILE *out, const struct report *report)
{
    const struct audit_subject *subject = report->subject;
    char text[SENTENCE_MAX];
    fprintf(out, "audit of ");
    put_plain(out, subject->name);
    fprintf(out, " (%s)\nprompt %d tokens, then %d steps; bound %g + %g"
            " |x|\n", audit_format_title(subject->format),
            report->plan->prompt_tokens, report->plan->steps,
            report->plan->bound.absolute, report->plan->bound.relative);
    if (!report->has_run) {
        fprintf(out, "no model: ");
        put_plain(out, subject->refusal.message);
        fputc('\n', out);
    }
    for (enum view view = VIEW_SHAPES; view <= VIEW_OUTPUT; view++) {
        const char *topic = report_topic(report, view);
        fprintf(out, "\n%s: %s%s%s\n", view_title(view),
                judgement_name(view_judgement(report, view)),
                topic != NULL ? "; return to " : "",
                topic != NULL ? topic : "");
        print_numbers(out, report, view);
        for (int p = 0; p < PLACES && view == VIEW_SHAPES; p++)
            print_tensors(out, report, (enum place)p);
        if (view == VIEW_OUTPUT && *parting_text(report, text) != '\0')
            fprintf(out, "  %s\n", text);
    }
    fprintf(out, "\n%s\n", verdict_text(report, text));
}
