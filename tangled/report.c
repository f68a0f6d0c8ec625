#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cache_bytes.h"
#include "expert_load.h"
#include "report.h"

static const struct {
    const char *key, *title, *topic, *note;
} views[VIEWS] = {
    {"shapes", "Tensor shapes", "chapters 1, 13 and 19",
     "Predicted: name and shape of every tensor, from the config and the"
     " conventions of the format. Measured: headers of the files, and the"
     " registry of the model."},
    {"ownership", "Parameter ownership", "chapters 14 and 15",
     "Predicted: floats by owner, from the config. Measured: sums over the"
     " registry of the model; with experts, what the tokens of the loop"
     " passed through."},
    {"cache", "Cache bytes", "chapters 9 and 14",
     "Predicted: 2 L Hk D times 4 bytes for each token. Measured: floats of"
     " a marked storage that were written."},
    {"phases", "Phase timing", "chapter 14",
     "Predicted: calls, rows, operations, least bytes. Measured: calls and"
     " rows of the model, and a clock. Operations are two a multiply-add."},
    {"output", "Output equivalence", "chapter 20",
     "Predicted: every row of the decoded text is the one that recomputing"
     " its whole prefix gives. Measured: one by one, up to the first that is"
     " not."}
};

const char *view_key(enum view view)
{
    return views[view].key;
}

const char *view_title(enum view view)
{
    return views[view].title;
}

const char *view_note(enum view view)
{
    return views[view].note;
}

const char *view_topic(enum view view)
{
    return views[view].topic;
}

struct place_of_number {        /* where the next numbers belong */
    struct report *report;
    enum view view;
    const char *group;
};

static struct report_number *add(const struct place_of_number *to,
                                 enum number_kind kind, const char *what,
                                 const char *unit,
                                 struct quantity predicted,
                                 struct quantity measured)
{
    struct report *report = to->report;
    struct report_number *number = &report->numbers[report->number_count++];
    *number = (struct report_number){
        .view = to->view, .group = to->group, .unit = unit,
        .predicted = predicted, .measured = measured,
        .judgement = judge(kind, &predicted, &measured)
    };
    snprintf(number->what, sizeof number->what, "%s", what);
    report->failures[to->view] += judgement_fails(number->judgement);
    return number;
}
static struct quantity if_run(const struct report *report, size_t count)
{
    return report->has_run ? quantity_count(count) : quantity_none();
}

static void add_exact(const struct place_of_number *to, const char *what,
                      const char *unit, size_t predicted,
                      struct quantity measured)
{
    add(to, NUMBER_EXACT, what, unit, quantity_count(predicted), measured);
}

static enum judgement judge_tensor(const struct report_tensor *tensor,
                                   bool passed_over)
{
    const struct stored_form *form = tensor->form;
    if (form == NULL)
        return passed_over ? OBSERVED : DIFFERS;
    if (!tensor->found)
        return DIFFERS;
    bool same = tensor->rank == form->rank
                && tensor->bytes == tensor->wanted_bytes;
    for (int d = 0; same && d < form->rank; d++)
        same = tensor->shape[d] == form->shape[d];
    return same ? HOLDS : DIFFERS;
}
static struct report_tensor *add_tensor(struct report *report,
                                        enum place place, const char *name,
                                        const struct stored_form *form)
{
    struct report_tensor *tensor =
        &report->tensors[place][report->tensor_count[place]++];
    *tensor = (struct report_tensor){.name = name, .form = form};
    return tensor;
}

static void finish_tensor(struct report *report,
                          struct report_tensor *tensor, bool passed_over)
{
    tensor->judgement = judge_tensor(tensor, passed_over);
    report->failures[VIEW_SHAPES] += judgement_fails(tensor->judgement);
}

static enum status make_list(struct report *report, enum place place,
                             enum checkpoint_format format,
                             const char *prefix, size_t found,
                             struct error *error)
{
    const struct ownership *ownership = &report->subject->ownership;
    const size_t forms = stored_forms(ownership, format, prefix, NULL);
    report->form_count[place] = forms;
    report->forms[place] = calloc(forms, sizeof *report->forms[place]);
    report->tensors[place] = calloc(forms + found,
                                    sizeof *report->tensors[place]);
    if (report->forms[place] == NULL || report->tensors[place] == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a report of"
                         " %zu tensors", forms + found);
    stored_forms(ownership, format, prefix, report->forms[place]);
    return STATUS_OK;
}

static void take_entry(struct report_tensor *tensor,
                       const struct safetensors_entry *entry)
{
    tensor->found = true;
    tensor->dtype = entry->dtype;
    tensor->rank = entry->rank;
    memcpy(tensor->shape, entry->shape, sizeof tensor->shape);
    tensor->bytes = entry->bytes;
    if (tensor->form != NULL)
        tensor->wanted_bytes = tensor->form->elements
                               * dtype_size(entry->dtype);
}

static enum status list_files(struct report *report, struct error *error)
{
    const struct audit_subject *subject = report->subject;
    const size_t count = subject->stored_count;
    const char *prefix = "transformer.";
    for (size_t k = 0; k < count; k++)
        if (strcmp(subject->stored[k].entry.name, "wte.weight") == 0)
            prefix = "";
    const enum status status = make_list(report, IN_FILES, subject->format,
                                         prefix, count, error);
    if (status != STATUS_OK)
        return status;
    const size_t forms = report->form_count[IN_FILES];
    for (size_t f = 0; f < forms; f++) {
        const struct stored_form *form = &report->forms[IN_FILES][f];
        size_t k = 0;
        while (k < count
               && strcmp(subject->stored[k].entry.name, form->name) != 0)
            k++;
        if (k == count && form->optional)
            continue;
        struct report_tensor *tensor = add_tensor(report, IN_FILES, form->name,
                                                  form);
        if (k < count)
            take_entry(tensor, &subject->stored[k].entry);
        finish_tensor(report, tensor, false);
    }
    for (size_t k = 0; k < count; k++) {
        const struct stored_tensor *stored = &subject->stored[k];
        size_t f = 0;
        while (f < forms && strcmp(report->forms[IN_FILES][f].name,
                                   stored->entry.name) != 0)
            f++;
        if (f < forms)
            continue;
        struct report_tensor *tensor = add_tensor(report, IN_FILES,
                                                  stored->entry.name, NULL);
        take_entry(tensor, &stored->entry);
        finish_tensor(report, tensor, !stored->used && subject->held != NULL);
    }
    return STATUS_OK;
}

static void take_held(struct report_tensor *tensor,
                      const struct held_tensor *held)
{
    size_t floats = held->alias ? 0 : 1;
    tensor->found = true;
    tensor->dtype = DTYPE_F32;
    tensor->rank = held->rank;
    for (int d = 0; d < held->rank && d < 2; d++) {
        tensor->shape[d] = held->shape[d];
        floats *= (size_t)held->shape[d];
    }
    tensor->bytes = floats * sizeof (float);
    if (tensor->form != NULL && !tensor->form->optional)
        tensor->wanted_bytes = tensor->form->elements * sizeof (float);
}
static enum status list_model(struct report *report, struct error *error)
{
    const struct audit_subject *subject = report->subject;
    const size_t count = subject->held_count;
    const enum status status = make_list(report, IN_MODEL, FORMAT_TINY_GPT,
                                         "", count, error);
    if (status != STATUS_OK || subject->held == NULL)
        return status;
    for (size_t f = 0; f < report->form_count[IN_MODEL]; f++) {
        const struct stored_form *form = &report->forms[IN_MODEL][f];
        struct report_tensor *tensor = add_tensor(report, IN_MODEL,
                                                  form->name, form);
        for (size_t k = 0; k < count && !tensor->found; k++)
            if (strcmp(subject->held[k].name, form->name) == 0)
                take_held(tensor, &subject->held[k]);
        finish_tensor(report, tensor, false);
    }
    for (size_t k = 0; k < count; k++) {
        const struct held_tensor *held = &subject->held[k];
        if (ownership_find(&subject->ownership, held->name) != NULL)
            continue;
        struct report_tensor *tensor = add_tensor(report, IN_MODEL, held->name,
                                                  NULL);
        take_held(tensor, held);
        finish_tensor(report, tensor, false);
    }
    return STATUS_OK;
}

static void count_tensors(const struct place_of_number *to, enum place place)
{
    const struct report *report = to->report;
    size_t wanted = 0, found = 0, wanted_bytes = 0, bytes = 0, others = 0;
    size_t size = sizeof (float);
    for (size_t k = 0; k < report->tensor_count[place]; k++) {
        const struct report_tensor *tensor = &report->tensors[place][k];
        size = tensor->found ? dtype_size(tensor->dtype) : size;
        if (tensor->judgement == OBSERVED) {
            others += tensor->bytes;
            continue;
        }
        wanted += tensor->form != NULL;
        found += tensor->found;
        wanted_bytes += tensor->found ? tensor->wanted_bytes
                                      : tensor->form->elements * size;
        bytes += tensor->bytes;
    }
    const bool there = place == IN_FILES || report->subject->held != NULL;
    const struct quantity none = quantity_none();
    add_exact(to, "tensors", "tensors",
              there ? wanted : report->form_count[place],
              there ? quantity_count(found) : none);
    add_exact(to, "weights", "bytes", there ? wanted_bytes
              : report->subject->ownership.total * sizeof (float),
              there ? quantity_count(bytes) : none);
    if (place == IN_FILES) {
        add(to, NUMBER_FREE, "buffers, no weights", "bytes", none,
            quantity_count(others));
        add(to, NUMBER_FREE, "files, headers and all", "bytes", none,
            quantity_count(report->subject->file_bytes));
    }
}
static void view_shapes(struct report *report)
{
    struct place_of_number to = {report, VIEW_SHAPES, "in the files"};
    count_tensors(&to, IN_FILES);
    to.group = "in the model";
    count_tensors(&to, IN_MODEL);
}

static void view_experts(struct report *report, const struct holding *held)
{
    const struct ownership *ownership = &report->subject->ownership;
    const struct audit_run *run = &report->run;
    const struct place_of_number to = {report, VIEW_OWNERSHIP, "experts"};
    const int experts = ownership->n_experts;
    const size_t rows = (size_t)report->plan->prompt_tokens
                        + (size_t)report->plan->steps;
    const bool there = report->has_run && run->loads != NULL;
    size_t sent = 0;
    for (int l = 0; l < ownership->cache.n_layers; l++) {
        const size_t *load = there ? run->loads + (ptrdiff_t)l * experts : NULL;
        const size_t sum = there ? expert_load_sum(load, experts) : 0;
        char what[48];
        snprintf(what, sizeof what, "layer %d: assignments", l);
        add_exact(&to, what, "assignments",
                  rows * (size_t)ownership->experts_per_token,
                  there ? quantity_count(sum) : quantity_none());
        snprintf(what, sizeof what, "layer %d: maximum to mean", l);
        if (there)
            add(&to, NUMBER_FREE, what, "", quantity_none(),
                quantity_real(expert_load_peak(load, experts)));
        sent += sum;
    }
    const size_t layers = (size_t)ownership->cache.n_layers;
    const size_t stored = held->floats[MODULE_EXPERTS];
    const size_t one = stored / (layers * (size_t)experts);
    const size_t active = held->total - stored + one * (sent / rows);
    add_exact(&to, "active for a token", "parameters", ownership->active,
              there ? quantity_count(active) : quantity_none());
}

static void view_owners(struct report *report)
{
    const struct audit_subject *subject = report->subject;
    const struct ownership *ownership = &subject->ownership;
    const bool there = subject->held != NULL;
    const struct place_of_number to = {
        report, VIEW_OWNERSHIP, "in the model"
    };
    const struct holding held = ownership_hold(ownership, subject->held,
                                               subject->held_count);
    for (int m = 0; m < MODULES; m++)
        if (ownership->floats[m] > 0 || held.floats[m] > 0)
            add_exact(&to, module_name((enum module)m), "parameters",
                      ownership->floats[m], there
                      ? quantity_count(held.floats[m]) : quantity_none());
    add_exact(&to, "stored, in all", "parameters", ownership->total,
              there ? quantity_count(held.total) : quantity_none());
    size_t own = 0, again = 0;
    for (size_t k = 0; k < report->tensor_count[IN_FILES]; k++) {
        const struct report_tensor *tensor = &report->tensors[IN_FILES][k];
        if (tensor->found && tensor->judgement != OBSERVED)
            *(tensor->form != NULL && tensor->form->optional ? &again : &own) +=
                tensor->bytes / dtype_size(tensor->dtype);
    }
    const struct place_of_number files = {report, VIEW_OWNERSHIP, "in the files"};
    add_exact(&files, "stored, in all", "parameters", ownership->total,
              quantity_count(own));
    if (again > 0)
        add(&files, NUMBER_FREE, "a tied head, stored again", "parameters",
            quantity_none(), quantity_count(again));
    if (ownership->n_experts > 0)
        view_experts(report, &held);
}

static void view_cache(struct report *report)
{
    const struct cache_shape *shape = &report->subject->ownership.cache;
    const struct audit_run *run = &report->run;
    const int prompt = report->plan->prompt_tokens;
    const int all = prompt + report->plan->steps;
    const struct {
        const char *what;
        int tokens;
        size_t measured;
    } counts[] = {
        {"allocated", all, run->storage_bytes},
        {"written by the prompt", prompt, run->prompt_bytes},
        {"written after one step", prompt + 1, run->step_bytes},
        {"written in the end", all, run->all_bytes}
    };
    const struct place_of_number to = {report, VIEW_CACHE, "keys and values"};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        size_t bytes = 0;
        (void)cache_bytes(shape, 1, counts[k].tokens, sizeof (float), &bytes);
        add_exact(&to, counts[k].what, "bytes", bytes,
                  if_run(report, counts[k].measured));
    }
    add_exact(&to, "in the cache's own books", "tokens", (size_t)all,
              if_run(report, (size_t)run->cached));
}

static void add_times(const struct place_of_number *to,
                      const struct work *work, double seconds,
                      const struct machine *machine)
{
    const struct quantity none = quantity_none();
    const struct quantity least = machine == NULL ? none
        : quantity_real(work_seconds(work, machine->build_flops,
                                     machine->bytes_per_second));
    add(to, NUMBER_TIME, "time", "s", least,
        quantity_real(seconds));
    add(to, NUMBER_TIME, "achieved", "GFLOP/s", none,
        quantity_real((double)work->flops / seconds / 1e9));
    add(to, NUMBER_TIME, "achieved", "GB/s", none,
        quantity_real((double)work->bytes / seconds / 1e9));
}

static void view_phase(struct report *report, int phase,
                       const struct machine *machine)
{
    const struct work *work = &report->work[phase];
    const struct audit_run *run = &report->run;
    const struct place_of_number to = {
        report, VIEW_PHASES, phase == PREFILL ? "prefill" : "decode"
    };
    const struct quantity none = quantity_none();
    const size_t calls = phase == PREFILL ? 1 : (size_t)report->plan->steps;
    add_exact(&to, "calls", "calls", calls,
              if_run(report, run->calls[phase]));
    add_exact(&to, "rows", "rows", work->rows,
              if_run(report, run->rows[phase]));
    add(&to, NUMBER_PAPER, "operations", "FLOP", quantity_count(work->flops),
        none);
    add(&to, NUMBER_PAPER, "least traffic", "bytes",
        quantity_count(work->bytes), none);
    add(&to, NUMBER_PAPER, "intensity", "FLOP/byte",
        quantity_real(work_intensity(work)), none);
    if (report->has_run && report->plan->watch.now != NULL)
        add_times(&to, work, run->seconds[phase], machine);
}

static void view_output(struct report *report)
{
    const struct identity *found = &report->run.identity;
    const int prompt = report->plan->prompt_tokens;
    const int steps = report->plan->steps;
    const struct place_of_number to = {report, VIEW_OUTPUT, "rows"};
    add_exact(&to, "as recomputed", "rows", (size_t)steps,
              if_run(report, (size_t)found->steps));
    if (report->has_run && found->verdict == CACHE_DIFFERS)
        add_exact(&to, "cached before the last of them", "tokens",
                  (size_t)(prompt + found->steps),
                  quantity_count((size_t)found->cached));
    if (report->has_run)
        add(&to, NUMBER_FREE, "largest difference of these", "",
            quantity_none(), quantity_real(found->largest));
}

enum { NUMBERS_BESIDE_LAYERS = 64 };

void report_free(struct report *report)
{
    for (int p = 0; p < PLACES; p++) {
        free(report->forms[p]);
        free(report->tensors[p]);
    }
    free(report->numbers);
    audit_run_free(&report->run);
    *report = (struct report){.number_count = 0};
}

static enum status predict(struct report *made, struct error *error)
{
    const struct ownership *ownership = &made->subject->ownership;
    const struct audit_plan *plan = made->plan;
    const struct phase prompt = {1, plan->prompt_tokens, 0, true};
    const size_t room = NUMBERS_BESIDE_LAYERS
                        + 2 * (size_t)ownership->cache.n_layers;
    enum status status = phase_work(ownership, &prompt, &made->work[PREFILL],
                                    error);
    if (status == STATUS_OK)
        status = decode_work(ownership, 1, plan->prompt_tokens, plan->steps,
                             &made->work[DECODE], error);
    if (status == STATUS_OK)
        status = list_files(made, error);
    if (status == STATUS_OK)
        status = list_model(made, error);
    if (status != STATUS_OK)
        return status;
    made->numbers = calloc(room, sizeof *made->numbers);
    return made->numbers != NULL ? STATUS_OK
        : error_set(error, STATUS_NO_MEMORY, "no memory for a report of %zu"
                    " numbers", room);
}

enum status report_new(struct report *report,
                       const struct audit_subject *subject,
                       const struct audit_plan *plan,
                       const struct machine *machine, struct error *error)
{
    struct report made = {.subject = subject, .plan = plan};
    enum status status = predict(&made, error);
    if (status == STATUS_OK && subject->lm.run != NULL) {
        status = audit_run_new(&made.run, &subject->lm, subject->llama, plan,
                               error);
        made.has_run = status == STATUS_OK;
    }
    if (status != STATUS_OK) {
        report_free(&made);
        return status;
    }
    view_shapes(&made);
    view_owners(&made);
    view_cache(&made);
    view_phase(&made, PREFILL, machine);
    view_phase(&made, DECODE, machine);
    view_output(&made);
    *report = made;
    return STATUS_OK;
}

size_t report_failures(const struct report *report)
{
    size_t failures = 0;
    for (int v = 0; v < VIEWS; v++)
        failures += report->failures[v];
    return failures;
}

size_t report_count(const struct report *report, enum judgement judgement)
{
    size_t count = 0;
    for (size_t k = 0; k < report->number_count; k++)
        count += report->numbers[k].judgement == judgement;
    for (int p = 0; p < PLACES; p++)
        for (size_t k = 0; k < report->tensor_count[p]; k++)
            count += report->tensors[p][k].judgement == judgement;
    return count;
}
int report_exit_status(const struct report *report)
{
    return report_failures(report) > 0;
}
const char *report_topic(const struct report *report, enum view view)
{
    return report->failures[view] > 0 ? view_topic(view) : NULL;
}
size_t report_alike(const struct report *report, enum place place,
                    size_t first)
{
    const struct report_tensor *tensors = report->tensors[place];
    const struct report_tensor *one = &tensors[first];
    size_t count = 1;
    while (first + count < report->tensor_count[place]) {
        const struct report_tensor *next = &tensors[first + count];
        if (one->judgement != HOLDS || next->judgement != HOLDS
            || next->form->row != one->form->row
            || next->dtype != one->dtype)
            break;
        count++;
    }
    return count;
}
