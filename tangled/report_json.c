#include <math.h>
#include "expert_load.h"
#include "quoting.h"
#include "report_print.h"
#include "report_words.h"

static void put_real(FILE *out, double number)
{
    if (isfinite(number))
        fprintf(out, "%.17g", number);
    else
        fputs("null", out);
}

static void put_quantity(FILE *out, const char *name,
                         const struct quantity *quantity)
{
    fprintf(out, ", \"%s\": ", name);
    if (!quantity->known)
        fputs("null", out);
    else if (quantity->real)
        put_real(out, quantity->number);
    else
        fprintf(out, "%zu", quantity->count);
}

static void put_numbers(FILE *out, const struct report *report,
                        enum view view)
{
    const char *between = "";
    fprintf(out, "\"numbers\": [");
    for (size_t k = 0; k < report->number_count; k++) {
        const struct report_number *number = &report->numbers[k];
        if (number->view != view)
            continue;
        fprintf(out, "%s\n   {\"group\": \"%s\", \"what\": \"%s\","
                " \"unit\": \"%s\"", between, number->group, number->what,
                number->unit);
        put_quantity(out, "predicted", &number->predicted);
        put_quantity(out, "measured", &number->measured);
        fprintf(out, ", \"verdict\": \"%s\"}",
                judgement_name(number->judgement));
        between = ",";
    }
    fputc(']', out);
}

static void put_sizes(FILE *out, const char *name, int rank,
                      const int64_t *shape)
{
    fprintf(out, ", \"%s\": %s", name, shape != NULL ? "[" : "null");
    for (int d = 0; d < rank && shape != NULL; d++)
        fprintf(out, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
    fputs(shape != NULL ? "]" : "", out);
}

static void put_tensor(FILE *out, const struct report_tensor *tensor)
{
    const struct stored_form *form = tensor->form;
    const struct quantity none = quantity_none();
    const struct quantity wanted = quantity_count(tensor->wanted_bytes);
    const struct quantity bytes = quantity_count(tensor->bytes);
    fprintf(out, "\n   {\"name\": ");
    put_json(out, tensor->name);
    put_sizes(out, "predicted_shape", form != NULL ? form->rank : 0,
              form != NULL ? form->shape : NULL);
    put_sizes(out, "shape", tensor->rank,
              tensor->found ? tensor->shape : NULL);
    fprintf(out, ", \"dtype\": ");
    fprintf(out, tensor->found ? "\"%s\"" : "null",
            tensor->found ? dtype_name(tensor->dtype) : "");
    put_quantity(out, "predicted_bytes",
                 form != NULL && tensor->found ? &wanted : &none);
    put_quantity(out, "bytes", tensor->found ? &bytes : &none);
    fprintf(out, ", \"verdict\": \"%s\"}", judgement_name(tensor->judgement));
}

static void put_tensors(FILE *out, const struct report *report,
                        enum place place, const char *name)
{
    fprintf(out, ",\n  \"%s\": [", name);
    for (size_t k = 0; k < report->tensor_count[place]; k++) {
        fputs(k > 0 ? "," : "", out);
        put_tensor(out, &report->tensors[place][k]);
    }
    fputc(']', out);
}

static void put_products(FILE *out, const struct work *work, const char *name)
{
    fprintf(out, ",\n  \"%s\": [", name);
    for (int p = 0; p < work->count; p++) {
        const struct phase_product *product = &work->products[p];
        fprintf(out, "%s\n   {\"product\": \"%s\", \"m\": %zu, \"k\": %zu,"
                " \"n\": %zu, \"times\": %zu, \"macs\": %zu}",
                p > 0 ? "," : "", product->name, product->m, product->k,
                product->n, product->times, product->macs);
    }
    fputc(']', out);
}

static void put_rows(FILE *out, const struct report *report)
{
    char text[SENTENCE_MAX];
    fprintf(out, ",\n  \"differences\": [");
    for (int k = 0; k < report->run.compared; k++) {
        fputs(k > 0 ? ", " : "", out);
        put_real(out, report->run.differences[k]);
    }
    fprintf(out, "],\n  \"mismatch\": ");
    if (*parting_text(report, text) != '\0')
        put_json(out, text);
    else
        fputs("null", out);
}

static void put_loads(FILE *out, const struct report *report)
{
    const struct audit_run *run = &report->run;
    fprintf(out, ",\n  \"loads\": [");
    for (int l = 0; l < run->n_layers; l++) {
        fputs(l > 0 ? ", [" : "[", out);
        for (int e = 0; e < run->n_experts; e++)
            fprintf(out, "%s%zu", e > 0 ? ", " : "",
                    run->loads[(ptrdiff_t)l * run->n_experts + e]);
        fputc(']', out);
    }
    fputc(']', out);
}

static void put_view(FILE *out, const struct report *report, enum view view)
{
    const char *topic = report_topic(report, view);
    fprintf(out, "%s\n {\"view\": \"%s\", \"holds\": %s,"
            " \"return_to\": ", view == VIEW_SHAPES ? "" : ",",
            view_key(view), report->failures[view] == 0 ? "true" : "false");
    fprintf(out, topic != NULL ? "\"%s\",\n  " : "null,\n  ", topic);
    put_numbers(out, report, view);
    if (view == VIEW_SHAPES) {
        put_tensors(out, report, IN_FILES, "files");
        put_tensors(out, report, IN_MODEL, "model");
    } else if (view == VIEW_OWNERSHIP)
        put_loads(out, report);
    else if (view == VIEW_PHASES) {
        put_products(out, &report->work[PREFILL], "prefill");
        put_products(out, &report->work[DECODE], "decode_first_step");
    } else if (view == VIEW_OUTPUT)
        put_rows(out, report);
    fputc('}', out);
}

static void put_ids(FILE *out, const char *name, const int32_t *ids,
                    int count)
{
    fprintf(out, ",\n \"%s\": [", name);
    for (int k = 0; k < count; k++)
        fprintf(out, "%s%d", k > 0 ? ", " : "", (int)ids[k]);
    fputc(']', out);
}

void report_print_json(FILE *out, const struct report *report)
{
    const struct audit_plan *plan = report->plan;
    fprintf(out, "{\"model\": ");
    put_json(out, report->subject->name);
    fprintf(out, ", \"format\": \"%s\", \"refusal\": ",
            audit_format_title(report->subject->format));
    if (report->has_run)
        fputs("null", out);
    else
        put_json(out, report->subject->refusal.message);
    put_ids(out, "prompt", plan->prompt, plan->prompt_tokens);
    put_ids(out, "continuation", report->run.continuation,
            report->has_run ? plan->steps : 0);
    fprintf(out, ",\n \"steps\": %d, \"atol\": ", plan->steps);
    put_real(out, plan->bound.absolute);
    fprintf(out, ", \"rtol\": ");
    put_real(out, plan->bound.relative);
    fprintf(out, ", \"holds\": %s, \"differ\": %zu, \"unmeasured\": %zu,\n"
            " \"views\": [", report_failures(report) == 0 ? "true" : "false",
            report_count(report, DIFFERS), report_count(report, UNMEASURED));
    for (enum view view = VIEW_SHAPES; view <= VIEW_OUTPUT; view++)
        put_view(out, report, view);
    fprintf(out, "\n ]}\n");
}
