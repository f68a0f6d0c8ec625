#include "phase_print.h"

const char phase_label[] = "CPU, diagnostic";

enum status phase_predict(const struct ownership *ownership,
                          struct phase_report *report, struct error *error)
{
    const struct phase_plan *plan = &report->plan;
    const struct phase prompt = {plan->batch, plan->prompt, 0, true};
    struct work prefill, decode;
    enum status status = phase_work(ownership, &prompt, &prefill, error);
    if (status == STATUS_OK)
        status = decode_work(ownership, plan->batch, plan->prompt,
                             plan->steps, &decode, error);
    if (status == STATUS_OK) {
        report->prefill = prefill;
        report->decode = decode;
    }
    return status;
}

static void print_products(FILE *out, const char *phase,
                           const struct work *work)
{
    fprintf(out, "%s\n  %-11s  %6s  %6s  %6s  %6s\n", phase, "product", "m",
            "k", "n", "times");
    for (int p = 0; p < work->count; p++) {
        const struct phase_product *product = &work->products[p];
        const size_t calls = work->rows / work->products[0].m;
        fprintf(out, "  %-11s  %6zu  %6zu  %6zu  %6zu\n", product->name,
                product->m, product->k, product->n,
                product->times / (calls > 0 ? calls : 1));
    }
}

static void print_phase(FILE *out, const struct phase_report *report,
                        const char *name, const struct work *work,
                        double seconds)
{
    fprintf(out, "%-7s  %5zu  %9.3f  %9.3f  %9.3f  %9.3f  %9.3f  %9.3f", name,
            work->rows, (double)work->flops / 1e6,
            (double)work->weight_bytes / 1e6, (double)work->cache_read / 1e6,
            (double)work->cache_written / 1e6,
            (double)work->edge_bytes / 1e6, work_intensity(work));
    if (report->timed)
        fprintf(out, "  %9.3f  %8.2f  %8.2f", 1e3 * seconds,
                (double)work->flops / seconds / 1e9,
                (double)work->bytes / seconds / 1e9);
    if (report->machine_known)
        fprintf(out, "  %9.3f",
                1e3 * work_seconds(work, report->machine.build_flops,
                                   report->machine.bytes_per_second));
    fprintf(out, "\n");
}

void phase_print_text(FILE *out, const struct phase_report *report)
{
    const struct phase_plan *plan = &report->plan;
    fprintf(out, "%s: %s, one thread\nbatch %d, prompt %d, then %d steps of"
            " one token\n\n", phase_label, report->model, plan->batch,
            plan->prompt, plan->steps);
    print_products(out, "prefill", &report->prefill);
    print_products(out, "decode, the first step", &report->decode);
    fprintf(out, "\n%-7s  %5s  %9s  %9s  %9s  %9s  %9s  %9s", "phase", "rows",
            "MFLOP", "weights", "cache in", "cache out", "edge", "FLOP/byte");
    if (report->timed)
        fprintf(out, "  %9s  %8s  %8s", "ms", "GFLOP/s", "GB/s");
    if (report->machine_known)
        fprintf(out, "  %9s", "least ms");
    fprintf(out, "\n");
    print_phase(out, report, "prefill", &report->prefill,
                report->seconds.prefill);
    print_phase(out, report, "decode", &report->decode,
                report->seconds.decode);
    if (report->machine_known)
        fprintf(out, "\nmachine: reads %.1f GB/s; %.1f GFLOP/s as compiled,"
                " %.1f with %s\n", report->machine.bytes_per_second / 1e9,
                report->machine.build_flops / 1e9,
                report->machine.peak_flops / 1e9, report->machine.widest);
}

static void print_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, out);
    fputc('"', out);
}

static void print_work(FILE *out, const struct phase_report *report,
                       const struct work *work, double seconds)
{
    fprintf(out, "  \"products\": [");
    for (int p = 0; p < work->count; p++) {
        const struct phase_product *product = &work->products[p];
        fprintf(out, "%s\n   {\"name\": \"%s\", \"m\": %zu, \"k\": %zu,"
                " \"n\": %zu, \"times\": %zu, \"macs\": %zu}",
                p > 0 ? "," : "", product->name, product->m, product->k,
                product->n, product->times, product->macs);
    }
    fprintf(out, "],\n  \"rows\": %zu, \"flops\": %zu, \"weight_bytes\": %zu,"
            " \"cache_read\": %zu, \"cache_written\": %zu,"
            " \"edge_bytes\": %zu, \"bytes\": %zu, \"intensity\": %.9g",
            work->rows, work->flops, work->weight_bytes, work->cache_read,
            work->cache_written, work->edge_bytes, work->bytes,
            work_intensity(work));
    if (report->timed)
        fprintf(out, ", \"seconds\": %.9g, \"flops_per_second\": %.9g,"
                " \"bytes_per_second\": %.9g", seconds,
                (double)work->flops / seconds, (double)work->bytes / seconds);
}

void phase_print_json(FILE *out, const struct phase_report *report)
{
    const struct phase_plan *plan = &report->plan;
    fprintf(out, "{\"label\": \"%s\", \"model\": ", phase_label);
    print_string(out, report->model);
    fprintf(out, ", \"batch\": %d, \"prompt\": %d, \"steps\": %d,"
            " \"repeats\": %d,\n", plan->batch, plan->prompt, plan->steps,
            plan->repeats);
    if (report->machine_known)
        fprintf(out, " \"machine\": {\"bytes_per_second\": %.9g,"
                " \"build_flops\": %.9g, \"peak_flops\": %.9g,"
                " \"widest\": \"%s\"},\n", report->machine.bytes_per_second,
                report->machine.build_flops, report->machine.peak_flops,
                report->machine.widest);
    fprintf(out, " \"prefill\": {\n");
    print_work(out, report, &report->prefill, report->seconds.prefill);
    fprintf(out, "},\n \"decode\": {\n");
    print_work(out, report, &report->decode, report->seconds.decode);
    fprintf(out, "}}\n");
}

void ownership_print_text(FILE *out, const struct ownership *ownership,
                          const struct holding *held)
{
    fprintf(out, "%-12s  %14s  %6s%s\n", "owner", "predicted", "share",
            held ? "            held" : "");
    for (int m = 0; m < MODULES; m++) {
        const size_t floats = ownership->floats[m];
        if (floats == 0 && m != MODULE_HEAD)
            continue;
        fprintf(out, "%-12s  %14zu  %5.1f%%", module_name((enum module)m),
                floats, 100 * (double)floats / (double)ownership->total);
        fprintf(out, held ? "  %14zu\n" : "\n", held ? held->floats[m] : 0);
    }
    fprintf(out, "%-12s  %14zu  100.0%%", "total", ownership->total);
    fprintf(out, held ? "  %14zu\n" : "\n", held ? held->total : 0);
    fprintf(out, "%-12s  %14zu  %5.1f%%\n", "active", ownership->active,
            100 * (double)ownership->active / (double)ownership->total);
}

void ownership_print_json(FILE *out, const struct ownership *ownership,
                          const struct holding *held)
{
    fprintf(out, "{\"owners\": [");
    for (int m = 0; m < MODULES; m++) {
        fprintf(out, "%s\n  {\"owner\": \"%s\", \"predicted\": %zu",
                m > 0 ? "," : "", module_name((enum module)m),
                ownership->floats[m]);
        if (held != NULL)
            fprintf(out, ", \"held\": %zu", held->floats[m]);
        fprintf(out, "}");
    }
    fprintf(out, "],\n \"total\": %zu, \"active\": %zu", ownership->total,
            ownership->active);
    if (held != NULL)
        fprintf(out, ", \"held\": %zu, \"copied\": %zu, \"unknown\": %zu",
                held->total, held->copied, held->unknown);
    fprintf(out, "}\n");
}
