#include "bench_print.h"
#include <math.h>
#include <string.h>

static double median_of(const struct bench_result *result, int t)
{
    const struct samples samples = bench_series_samples(&result->seconds[t]);
    return samples_median(&samples);
}

/* Tokens a second of a result by those of the same case with a change. */
static double ratio_to(const struct bench_report *report,
                       const struct bench_result *result, int t,
                       const struct bench_case *like)
{
    const struct bench_result *other = bench_find(report->results,
                                                  report->count, like);
    return other == NULL ? 0
        : median_of(other, t) / median_of(result, t) * result->is.batch
          / other->is.batch;
}

struct ratios { double slot, floats, thread; };

static struct ratios ratios_of(const struct bench_report *report,
                               const struct bench_result *result, int t)
{
    struct bench_case slot = result->is, floats = result->is;
    slot.batch = 1;
    slot.what = "decode";
    floats.weights = WEIGHTS_F32;
    const bool one = report->plan->threads[0] == 1;
    return (struct ratios){
        result->is.batch > 1 && result->is.tokens == 1
            ? ratio_to(report, result, t, &slot) : 0,
        result->is.weights != WEIGHTS_F32
            ? ratio_to(report, result, t, &floats) : 0,
        one && t > 0 ? median_of(result, 0) / median_of(result, t) : 0
    };
}

static const char case_head[] = "what    weights slots tokens context";

static void print_case(FILE *out, const struct bench_case *is)
{
    fprintf(out, "%-7s %-7s %5d %6d %7d", is->what,
            bench_weights_name(is->weights), is->batch, is->tokens,
            is->context);
}

void bench_print_work(FILE *out, const struct bench_report *report)
{
    fprintf(out, "%s: the work of each call\n\n%s  %8s %8s %8s %9s\n",
            report->shape->name, case_head, "MB read", "of cache", "GFLOP",
            "attention");
    for (int k = 0; k < report->count; k++) {
        const struct bench_work *work = &report->results[k].work;
        print_case(out, &report->results[k].is);
        fprintf(out, "  %8.3f %8.3f %8.3f %9.3f\n",
                bench_work_bytes(work) / 1e6, work->cache_bytes / 1e6,
                bench_work_flops(work) / 1e9, work->attention_flops / 1e9);
    }
}

static void print_machine(FILE *out, const struct bench_report *report)
{
    const struct machine_name *machine = &report->machine;
    fprintf(out, "%s, %d cores, load %.1f; %s; large pages: %s\n%s, medians"
            " of %d rounds\n", machine->processor, machine->cores,
            machine->load, machine->compiler, machine->pages,
            report->shape->name, report->plan->repeats);
    for (int t = 0; t < report->plan->thread_count; t++) {
        const struct bench_machine_limits *limits = &report->limits[t];
        const struct samples bytes = bench_series_samples(&limits->bytes);
        const struct samples flops = bench_series_samples(&limits->flops);
        fprintf(out, "limits, %d thread%s: %.1f GB/s (%d streams each, spread"
                " %.1f %%), %.1f GFLOP/s (%d lanes, spread %.1f %%)\n",
                report->plan->threads[t],
                report->plan->threads[t] == 1 ? "" : "s",
                samples_quantile(&bytes, 1) / 1e9, limits->streams,
                100 * samples_spread(&bytes),
                samples_quantile(&flops, 1) / 1e9, report->lanes,
                100 * samples_spread(&flops));
    }
}

static void print_result(FILE *out, const struct bench_report *report,
                         const struct bench_result *result, int t)
{
    const struct bench_rates rates = bench_rates(result, t,
                                                 &report->limits[t]);
    const struct ratios ratios = ratios_of(report, result, t);
    print_case(out, &result->is);
    fprintf(out, "  %-7s  %7d  %9.3f  %5.1f%%  %9.2f  %7.2f %-7s  %5.1f"
            "  %5.1f  ", result->is.kernels->name, report->plan->threads[t],
            1e3 * rates.seconds, 100 * rates.spread, rates.tokens,
            (rates.memory ? rates.bytes : rates.flops) / 1e9,
            rates.memory ? "GB/s" : "GFLOP/s", 100 * rates.fraction,
            100 * rates.by_round);
    fprintf(out, rates.memory ? "%6s" : "%.0s%6.1f", "-",
            100 * rates.linear);
    if (ratios.slot > 0)
        fprintf(out, "  %.2f x one slot", ratios.slot);
    if (ratios.floats > 0)
        fprintf(out, "  %.2f x f32", ratios.floats);
    if (ratios.thread > 0)
        fprintf(out, "  %.2f x one thread", ratios.thread);
    fprintf(out, "\n");
}

static void print_errors(FILE *out, const struct bench_report *report)
{
    for (int w = 0; w < BENCH_WEIGHTS; w++)
        if (report->has_error[w])
            fprintf(out, "%s: logits of %.3g (root mean square) are off by"
                    " %.3g, %.2f %%\n",
                    bench_weights_name((enum bench_weights)w),
                    report->errors[w].logits, report->errors[w].difference,
                    100 * report->errors[w].difference
                    / report->errors[w].logits);
}

static void print_loads(FILE *out, const struct bench_report *report)
{
    const struct bench_load *load = &report->load;
    for (int t = 0; t < report->plan->thread_count; t++) {
        if (report->open[t].count == 0)
            return;
        const struct samples open = bench_series_samples(&report->open[t]);
        const struct samples first = bench_series_samples(&report->first[t]);
        const struct samples again = bench_series_samples(&report->again[t]);
        const struct samples decoded = bench_series_samples(
            &report->decoded[t]);
        const double start = samples_median(&open) + samples_median(&first);
        fprintf(out, "load, %d threads: open %.2f ms, the first %d tokens"
                " %.2f ms, again %.2f ms: %.2f times; a decode %.2f ms\n",
                report->plan->threads[t], 1e3 * samples_median(&open),
                LOAD_PROMPT, 1e3 * samples_median(&first),
                1e3 * samples_median(&again), start / samples_median(&again),
                1e3 * samples_median(&decoded));
    }
    fprintf(out, "memory of that process: weights %.1f MB, cache %.1f MB,"
            " other %.1f MB\n", load->weight_bytes / 1e6,
            load->cache_bytes / 1e6, (load->peak_bytes - load->weight_bytes
                                      - load->cache_bytes) / 1e6);
}

void bench_print_text(FILE *out, const struct bench_report *report)
{
    print_machine(out, report);
    fprintf(out, "\n%s  kernels  threads  %9s  %6s  %9s  %15s  %5s  %5s"
            "  %6s  %s\n", case_head, "ms", "spread", "tokens/s", "rate",
            "limit", "round", "linear", "times");
    for (int k = 0; k < report->count; k++)
        for (int t = 0; t < report->plan->thread_count; t++)
            print_result(out, report, &report->results[k], t);
    print_errors(out, report);
    print_loads(out, report);
}

static void print_series(FILE *out, const char *name,
                         const struct bench_series *series)
{
    fprintf(out, ", \"%s\": [", name);
    for (int k = 0; k < series->count; k++)
        fprintf(out, "%s%.9g", k == 0 ? "" : ", ", series->value[k]);
    fprintf(out, "]");
}

static void print_plain(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text != '"' && *text != '\\' && (unsigned char)*text >= 0x20)
            fputc(*text, out);
}

static void print_head_json(FILE *out, const struct bench_report *report)
{
    const struct machine_name *machine = &report->machine;
    fprintf(out, "{\"machine\": {\"processor\": \"");
    print_plain(out, machine->processor);
    fprintf(out, "\", \"cores\": %d, \"compiler\": \"%s\", \"load\": %.2f,"
            " \"large_pages\": \"", machine->cores, machine->compiler,
            machine->load);
    print_plain(out, machine->pages);
    fprintf(out, "\", \"lanes\": %d},\n \"shape\": \"%s\", \"parameters\":"
            " %zu, \"rounds\": %d,\n \"limits\": [", report->lanes,
            report->shape->name, report->shape->ownership.total,
            report->plan->repeats);
    for (int t = 0; t < report->plan->thread_count; t++) {
        const struct bench_machine_limits *limits = &report->limits[t];
        const struct samples bytes = bench_series_samples(&limits->bytes);
        const struct samples flops = bench_series_samples(&limits->flops);
        fprintf(out, "%s\n  {\"threads\": %d, \"bytes_per_second\": %.9g,"
                " \"streams\": %d, \"flops_per_second\": %.9g",
                t == 0 ? "" : ",", report->plan->threads[t],
                samples_quantile(&bytes, 1), limits->streams,
                samples_quantile(&flops, 1));
        print_series(out, "bytes_rounds", &limits->bytes);
        print_series(out, "flops_rounds", &limits->flops);
        fprintf(out, "}");
    }
    fprintf(out, "],\n");
}

static void print_ratio(FILE *out, const char *name, double ratio)
{
    if (ratio > 0)
        fprintf(out, ", \"%s\": %.6g", name, ratio);
}

static void print_result_json(FILE *out, const struct bench_report *report,
                              const struct bench_result *result, int t)
{
    const struct bench_case *is = &result->is;
    const struct bench_work *work = &result->work;
    const struct bench_rates rates = bench_rates(result, t,
                                                 &report->limits[t]);
    const struct ratios ratios = ratios_of(report, result, t);
    fprintf(out, "  {\"what\": \"%s\", \"weights\": \"%s\", \"kernels\":"
            " \"%s\", \"slots\": %d, \"tokens\": %d, \"context\": %d,"
            " \"threads\": %d", is->what, bench_weights_name(is->weights),
            is->kernels->name, is->batch, is->tokens, is->context,
            report->plan->threads[t]);
    fprintf(out, ", \"weight_bytes\": %.17g, \"cache_bytes\": %.17g,"
            " \"linear_flops\": %.17g, \"attention_flops\": %.17g",
            work->weight_bytes, work->cache_bytes, work->linear_flops,
            work->attention_flops);
    fprintf(out, ", \"seconds\": %.9g, \"spread\": %.4g, \"tokens_per_second\":"
            " %.9g, \"bytes_per_second\": %.9g, \"flops_per_second\": %.9g,"
            " \"waits_for\": \"%s\", \"fraction\": %.6g, \"fraction_by_round\":"
            " %.6g, \"fraction_linear\": %.6g", rates.seconds, rates.spread,
            rates.tokens, rates.bytes, rates.flops,
            rates.memory ? "memory" : "arithmetic", rates.fraction,
            rates.by_round, rates.linear);
    print_ratio(out, "times_one_slot", ratios.slot);
    print_ratio(out, "times_f32", ratios.floats);
    print_ratio(out, "times_one_thread", ratios.thread);
    print_series(out, "rounds", &result->seconds[t]);
    fprintf(out, "}");
}

static void print_errors_json(FILE *out, const struct bench_report *report)
{
    const char *between = "";
    fprintf(out, " \"errors\": [");
    for (int w = 0; w < BENCH_WEIGHTS; w++)
        if (report->has_error[w]) {
            fprintf(out, "%s\n  {\"weights\": \"%s\", \"logits\": %.9g,"
                    " \"difference\": %.9g}", between,
                    bench_weights_name((enum bench_weights)w),
                    report->errors[w].logits, report->errors[w].difference);
            between = ",";
        }
    fprintf(out, "],\n");
}

static void print_loads_json(FILE *out, const struct bench_report *report)
{
    const struct bench_load *load = &report->load;
    fprintf(out, " \"loads\": [");
    for (int t = 0; t < report->plan->thread_count; t++) {
        if (report->open[t].count == 0)
            break;
        fprintf(out, "%s\n  {\"threads\": %d, \"tokens\": %d,"
                " \"weight_bytes\": %.17g, \"cache_bytes\": %.17g,"
                " \"peak_bytes\": %.17g", t == 0 ? "" : ",",
                report->plan->threads[t], LOAD_PROMPT, load->weight_bytes,
                load->cache_bytes, load->peak_bytes);
        print_series(out, "open", &report->open[t]);
        print_series(out, "first", &report->first[t]);
        print_series(out, "again", &report->again[t]);
        print_series(out, "decode", &report->decoded[t]);
        fprintf(out, "}");
    }
    fprintf(out, "]");
}

void bench_print_json(FILE *out, const struct bench_report *report)
{
    const char *between = "";
    print_head_json(out, report);
    fprintf(out, " \"results\": [");
    for (int k = 0; k < report->count; k++)
        for (int t = 0; t < report->plan->thread_count; t++) {
            fprintf(out, "%s\n", between);
            print_result_json(out, report, &report->results[k], t);
            between = ",";
        }
    fprintf(out, "],\n");
    print_errors_json(out, report);
    print_loads_json(out, report);
    fprintf(out, "}\n");
}
