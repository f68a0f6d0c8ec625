#include "bench.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "thread_count.h"

const char *bench_what_name(enum bench_what what)
{
    static const char *const names[BENCH_WHATS] = {
        "decode", "prefill", "batch", "train", "load"
    };
    return names[what];
}

struct list {
    struct bench_case *cases;    /* or NULL */
    int count;
};

static void enter(struct list *list, const struct bench_case *one)
{
    if (list->cases != NULL)
        list->cases[list->count] = *one;
    list->count++;
}

static void list_calls(struct list *list, const struct bench_wishes *wishes,
                       const struct kernels *kernels,
                       enum bench_weights weights)
{
    const bool *what = wishes->what;
    struct bench_case one = {"decode", weights, kernels, 1, 1, 0};
    for (int k = 0; k < wishes->contexts.count; k++) {
        one.context = wishes->contexts.size[k];
        if (what[BENCH_DECODE] || (what[BENCH_BATCH] && k == 0))
            enter(list, &one);
    }
    one = (struct bench_case){"prefill", weights, kernels, 1, 1, 0};
    for (int k = 0; k < wishes->prompts.count && what[BENCH_PREFILL]; k++) {
        one.tokens = wishes->prompts.size[k];
        enter(list, &one);
    }
    one = (struct bench_case){"batch", weights, kernels, wishes->slots, 1,
                              wishes->contexts.size[0]};
    if (what[BENCH_BATCH])
        enter(list, &one);
}

int bench_list(const struct bench_wishes *wishes, struct bench_case *cases)
{
    struct list list = {cases, 0};
    const struct bench_case train = {
        "train", WEIGHTS_ROWS, kernels_best(), wishes->batch, wishes->tokens,
        0
    };
    for (int w = 0; w < BENCH_WEIGHTS; w++)
        for (int k = 0; k < wishes->kernel_count && wishes->weights[w]; k++)
            list_calls(&list, wishes, wishes->kernels[k],
                       (enum bench_weights)w);
    if (wishes->what[BENCH_TRAIN])
        enter(&list, &train);
    return list.count;
}

enum status bench_predict(const struct bench_wishes *wishes,
                          const struct bench_shape *shape,
                          const struct bench_plan *plan,
                          struct bench_report *report, struct error *error)
{
    const int count = bench_list(wishes, NULL);
    enum status status = STATUS_OK;
    struct bench_case *cases = calloc((size_t)count + 1, sizeof *cases);
    report->results = calloc((size_t)count + 1, sizeof *report->results);
    report->shape = shape;
    report->plan = plan;
    if (cases == NULL || report->results == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %d cases",
                           count);
    else
        bench_list(wishes, cases);
    for (int k = 0; k < count && status == STATUS_OK; k++) {
        report->results[k].is = cases[k];
        status = bench_case_work(&shape->ownership, &cases[k],
                                 &report->results[k].work, error);
    }
    if (status == STATUS_OK)
        report->count = count;
    free(cases);
    return status;
}

void bench_report_free(struct bench_report *report)
{
    free(report->results);
    report->results = NULL;
    report->count = 0;
}

static enum status make_weights(const struct bench_wishes *wishes,
                                struct bench_model *model,
                                struct error *error)
{
    const bool floats = wishes->weights[WEIGHTS_BF16]
        || wishes->weights[WEIGHTS_INT8] || wishes->what[BENCH_LOAD];
    enum status status = STATUS_OK;
    for (int w = 0; w < BENCH_WEIGHTS && status == STATUS_OK; w++)
        if (wishes->weights[w] || (floats && w == WEIGHTS_F32))
            status = bench_model_weights(model, (enum bench_weights)w, error);
    return status;
}

static enum status make_tasks(const struct bench_report *report,
                              const struct bench_model *model,
                              struct bench_task *tasks, struct error *error)
{
    enum status status = STATUS_OK;
    for (int k = 0; k < report->count && status == STATUS_OK; k++)
        status = bench_task_new(&tasks[k], model, &report->results[k].is,
                                error);
    return status;
}

static enum status measure_errors(const struct bench_wishes *wishes,
                                  const struct bench_model *model,
                                  struct bench_report *report,
                                  struct error *error)
{
    enum { TOKENS = 16 };
    enum status status = STATUS_OK;
    for (int w = WEIGHTS_BF16; w < BENCH_WEIGHTS && status == STATUS_OK; w++)
        if (wishes->weights[w]) {
            status = bench_error_of(model, (enum bench_weights)w,
                                    wishes->kernels[0], TOKENS,
                                    &report->errors[w], error);
            report->has_error[w] = status == STATUS_OK;
        }
    return status;
}

static enum status load_rounds(const char *path, const char *kernels,
                               struct bench_report *report,
                               const struct bench_progress *progress,
                               struct error *error)
{
    const struct bench_plan *plan = report->plan;
    struct bench_load *load = &report->load;
    for (int round = 1; round <= plan->repeats; round++)
        for (int t = 0; t < plan->thread_count; t++) {
            progress->show(progress->state, round, plan->threads[t], "load");
            const enum status status = bench_load_apart(
                path, kernels, plan->threads[t], load, error);
            if (status != STATUS_OK)
                return status;
            bench_series_add(&report->open[t], load->open);
            bench_series_add(&report->first[t], load->first);
            bench_series_add(&report->again[t], load->again);
            bench_series_add(&report->decoded[t], load->decode);
        }
    return STATUS_OK;
}

static enum status measure_loads(const struct bench_wishes *wishes,
                                 const struct bench_model *model,
                                 struct bench_report *report,
                                 const struct bench_progress *progress,
                                 struct error *error)
{
    char directory[1024], path[1100];
    const char *temporary = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/tinygpt-bench-XXXXXX",
             temporary != NULL && *temporary != '\0' ? temporary : "/tmp");
    if (mkdtemp(directory) == NULL)
        return error_set(error, STATUS_IO, "load: cannot make a directory"
                         " like %.200s", directory);
    snprintf(path, sizeof path, "%s/panels", directory);
    enum status status = engine_save(model->engines[WEIGHTS_F32], path,
                                     error);
    if (status == STATUS_OK)
        status = load_rounds(path, wishes->kernels[0]->name, report, progress,
                             error);
    (void)unlink(path);
    (void)rmdir(directory);
    return status;
}

static enum status measure(const struct bench_wishes *wishes,
                           const struct stopwatch *watch,
                           const struct bench_progress *progress,
                           struct bench_model *model,
                           struct bench_task *tasks,
                           struct limits *limits,
                           struct bench_report *report, struct error *error)
{
    enum status status = make_weights(wishes, model, error);
    if (status == STATUS_OK)
        status = make_tasks(report, model, tasks, error);
    if (status == STATUS_OK)
        status = bench_rounds(report->plan, limits, tasks, report->count,
                              watch, progress, report->limits,
                              report->results, error);
    if (status == STATUS_OK)
        status = measure_errors(wishes, model, report, error);
    if (status == STATUS_OK && wishes->what[BENCH_LOAD])
        status = measure_loads(wishes, model, report, progress, error);
    return status;
}

enum status bench_run(const struct bench_wishes *wishes,
                      const struct stopwatch *watch,
                      const struct bench_progress *progress,
                      struct bench_report *report, struct error *error)
{
    struct bench_model model = {.gpt = NULL};
    struct limits *limits = NULL;
    struct bench_task *tasks = calloc((size_t)report->count + 1,
                                      sizeof *tasks);
    enum status status = tasks != NULL ? STATUS_OK
        : error_set(error, STATUS_NO_MEMORY, "no memory for the cases");
    report->machine = machine_name_now();
    if (status == STATUS_OK)
        status = limits_new(&limits, wishes->array_bytes, error);
    if (status == STATUS_OK)
        status = bench_model_open(&model, report->shape, error);
    if (status == STATUS_OK) {
        report->lanes = limits_lanes(limits);
        status = measure(wishes, watch, progress, &model, tasks, limits,
                         report, error);
    }
    for (int k = 0; k < report->count && tasks != NULL; k++)
        bench_task_free(&tasks[k]);
    free(tasks);
    limits_free(&limits);
    bench_model_close(&model);
    thread_count_use(thread_count_available());
    return status;
}
