/* Chapter 22: the report. The judge by every case; the forms of each format
   against files that the suite writes; the loop by handles that are wrong
   somewhere; then whole reports of every family, reports of subjects that lie
   in each view, and what the printings make of hostile names. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "json.h"
#include "model_file.h"
#include "phase_print.h"
#include "quoting.h"
#include "report_print.h"
#include "report_words.h"
#include "utf8.h"
#include "support/allocator.h"
#include "support/formats.h"
#include "support/program.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif
#define LENGTH(array) (sizeof (array) / sizeof *(array))

#define EQUAL "compare what has to be equal"
#define SILENT "let what nobody measured fail"
#define STRANGE "let what nobody predicted differ"
#define CLOCK "let a time be diagnostic"
#define TURNED "turn the shape where the format does"
#define LAYERS "let one tensor hold all layers"
#define TENSOR "hold shape and bytes against the prediction"
#define BESIDES "list what nobody predicted"
#define MARK "count what was written"
#define DIARY "note the call"
#define PROMPT "feed the prompt in one call"
#define ACTIVE "add up what a token passes through"
#define ROWS "judge the rows by their number"
#define HTML "write a text that HTML cannot mistake"
#define JSON_TEXT "write a text that JSON cannot mistake"
#define DIGITS "write a number as it is"
#define STATUS "let a mismatch be status 1"
#define BACK "send the reader of a view that fails back"
#define PAGE "write the page"
#define REFUSED "take a refused directory"

static struct error error;

/* ---------------------------------------------------------------- the judge */

static enum judgement judged(enum number_kind kind, struct quantity predicted,
                             struct quantity measured)
{
    return judge(kind, &predicted, &measured);
}

START_TEST(an_exact_number_holds_when_it_is_equal_and_never_else)
{
    const size_t counts[] = {0, 1, 2, 1000000, 124439808,
                             ((size_t)1 << 53) + 1, SIZE_MAX - 1};
    for (size_t k = 0; k < LENGTH(counts); k++) {
        const struct quantity here = quantity_count(counts[k]);
        const struct quantity above = quantity_count(counts[k] + 1);
        ck_assert_int_eq(judged(NUMBER_EXACT, here, here), HOLDS);
        ck_assert_int_eq(judged(NUMBER_EXACT, here, above), DIFFERS);
        ck_assert_int_eq(judged(NUMBER_EXACT, above, here), DIFFERS);
    }
}
END_TEST

START_TEST(what_was_predicted_and_not_measured_fails)
{
    ck_assert_int_eq(judged(NUMBER_EXACT, quantity_count(0), quantity_none()),
                     UNMEASURED);
    ck_assert_int_eq(judged(NUMBER_EXACT, quantity_none(), quantity_none()),
                     UNMEASURED);
    ck_assert(judgement_fails(UNMEASURED));
}
END_TEST

START_TEST(what_was_found_and_not_predicted_fails)
{
    ck_assert_int_eq(judged(NUMBER_EXACT, quantity_none(), quantity_count(0)),
                     DIFFERS);
    ck_assert(judgement_fails(DIFFERS));
}
END_TEST

START_TEST(a_time_is_never_a_mismatch)
{
    const struct quantity times[] = {
        quantity_none(), quantity_real(0), quantity_real(1e-9),
        quantity_real(1e9), quantity_real(-1), quantity_real(INFINITY),
        quantity_real(NAN)
    };
    for (size_t p = 0; p < LENGTH(times); p++)
        for (size_t m = 0; m < LENGTH(times); m++)
            ck_assert_int_eq(judged(NUMBER_TIME, times[p], times[m]),
                             DIAGNOSTIC);
    ck_assert(!judgement_fails(DIAGNOSTIC));
    ck_assert_str_eq(judgement_name(DIAGNOSTIC), "CPU, diagnostic");
    ck_assert_str_eq(judgement_name(DIAGNOSTIC), phase_label);
}
END_TEST

START_TEST(what_is_free_or_on_paper_cannot_fail_either)
{
    const struct quantity one = quantity_count(1), two = quantity_count(2);
    ck_assert_int_eq(judged(NUMBER_FREE, quantity_none(), one), OBSERVED);
    ck_assert_int_eq(judged(NUMBER_FREE, one, two), OBSERVED);
    ck_assert_int_eq(judged(NUMBER_PAPER, one, quantity_none()), DERIVED);
    for (int j = 0; j < JUDGEMENTS; j++) {
        ck_assert_int_eq(judgement_fails((enum judgement)j),
                         j == DIFFERS || j == UNMEASURED);
        for (int i = 0; i < j; i++)
            ck_assert_str_ne(judgement_name((enum judgement)i),
                             judgement_name((enum judgement)j));
    }
}
END_TEST

START_TEST(a_number_that_is_not_finite_is_unknown)
{
    ck_assert(!quantity_none().known);
    ck_assert(!quantity_real(INFINITY).known);
    ck_assert(!quantity_real(NAN).known);
    ck_assert(quantity_real(0.5).known && quantity_real(0.5).real);
    ck_assert(quantity_count(0).known && !quantity_count(0).real);
}
END_TEST

/* ------------------------------------------------------------------- models */

enum { KINDS = 3 };     /* a tiny GPT, a Llama, a Llama with experts */

/* A model with all that a subject borrows; lists are in its registry. */
struct maker {
    struct tiny_gpt *gpt;
    struct llama *llama;
    struct audit_subject subject;
};

static void list_registry(struct maker *maker)
{
    struct audit_subject *subject = &maker->subject;
    const size_t count = maker->gpt != NULL
        ? (size_t)tiny_gpt_weights(maker->gpt)->count
        : llama_tensor_count(maker->llama);
    subject->held = calloc(count, sizeof *subject->held);
    subject->stored = calloc(count + 8, sizeof *subject->stored);
    subject->held_count = count;
    for (size_t k = 0; k < count; k++) {
        const char *name = maker->gpt != NULL
            ? tiny_gpt_weights(maker->gpt)->registry[k].path
            : llama_tensor_at(maker->llama, k)->name;
        const struct tensor *tensor = maker->gpt != NULL
            ? tiny_gpt_weights(maker->gpt)->registry[k].tensor
            : llama_tensor_at(maker->llama, k)->tensor;
        const bool alias = maker->gpt != NULL
            ? tiny_gpt_weights(maker->gpt)->registry[k].alias
            : llama_tensor_at(maker->llama, k)->alias;
        struct stored_tensor stored = {
            {name, DTYPE_F32, tensor->rank, {0}, NULL,
             tensor_size(tensor) * sizeof (float)}, true
        };
        for (int d = 0; d < tensor->rank; d++)
            stored.entry.shape[d] = tensor->shape[d];
        subject->held[k] = (struct held_tensor){
            name, tensor->rank, {tensor->shape[0], tensor->shape[1]}, alias,
            tensor_size(tensor)
        };
        if (!alias)
            subject->stored[subject->stored_count++] = stored;
        if (!alias)
            subject->file_bytes += stored.entry.bytes;
    }
}

static struct maker make(int kind)
{
    struct maker maker = {.subject = {.name = "made up"}};
    struct audit_subject *subject = &maker.subject;
    if (kind == 0) {
        const struct gpt_config config = {
            .vocab_size = 13, .context_length = 24, .d_model = 10,
            .n_layers = 3, .n_heads = 2, .d_ff = 7, .layer_norm_eps = 1e-5
        };
        maker.gpt = noisy_model(&config, 220);
        subject->format = FORMAT_TINY_GPT;
        subject->lm = tiny_gpt_causal_lm(maker.gpt);
        expect_ok(ownership_of_gpt(&subject->ownership, &config, &error),
                  &error);
    } else {
        const struct llama_config config = kind == 1 ? small_llama_config()
                                                     : small_moe_config();
        maker.llama = noisy_llama(&config, 221);
        subject->format = kind == 1 ? FORMAT_LLAMA : FORMAT_MIXTRAL;
        subject->lm = llama_causal_lm(maker.llama);
        subject->llama = kind == 1 ? NULL : maker.llama;
        expect_ok(ownership_of_llama(&subject->ownership, &config, &error),
                  &error);
    }
    list_registry(&maker);
    return maker;
}

static void unmake(struct maker *maker)
{
    audit_subject_close(&maker->subject);
    tiny_gpt_free(&maker->gpt);
    llama_free(&maker->llama);
}

enum { P = 5, STEPS = 7, TOKENS = P + STEPS };
static int32_t prompt[P];

static struct audit_plan plan_of_noise(void)
{
    uint64_t state = noise_start(222);
    noise_ids(&state, 13, 1, P, prompt);
    return (struct audit_plan){
        .prompt = prompt, .prompt_tokens = P, .steps = STEPS, .repeats = 1,
        .bound = {1e-5, 1e-5}
    };
}

static struct report report_of(const struct audit_subject *subject,
                               const struct audit_plan *plan)
{
    struct report report;
    expect_ok(report_new(&report, subject, plan, NULL, &error), &error);
    return report;
}

static const struct report_number *number_of(const struct report *report,
                                             enum view view,
                                             const char *group,
                                             const char *what)
{
    const struct report_number *found = NULL;
    for (size_t k = 0; k < report->number_count; k++) {
        const struct report_number *number = &report->numbers[k];
        if (number->view == view && strcmp(number->group, group) == 0
            && strcmp(number->what, what) == 0) {
            ck_assert_msg(found == NULL || number->unit != found->unit,
                          "%s, %s is there twice", group, what);
            found = found == NULL ? number : found;
        }
    }
    ck_assert_msg(found != NULL, "no number %s, %s", group, what);
    return found;
}

static void expect_number(const struct report *report, enum view view,
                          const char *group, const char *what,
                          size_t predicted, size_t measured)
{
    const struct report_number *number = number_of(report, view, group, what);
    ck_assert(number->predicted.known && number->measured.known);
    ck_assert_msg(number->predicted.count == predicted
                  && number->measured.count == measured,
                  "%s, %s: %zu and %zu, expected %zu and %zu", group, what,
                  number->predicted.count, number->measured.count, predicted,
                  measured);
    ck_assert_int_eq(number->judgement,
                     predicted == measured ? HOLDS : DIFFERS);
}

static const struct report_tensor *tensor_of(const struct report *report,
                                             enum place place,
                                             const char *name)
{
    for (size_t k = 0; k < report->tensor_count[place]; k++)
        if (strcmp(report->tensors[place][k].name, name) == 0)
            return &report->tensors[place][k];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

/* The views with these bits fail, and no others. */
static void expect_failing(const struct report *report, unsigned views)
{
    for (int v = 0; v < VIEWS; v++)
        ck_assert_msg((report->failures[v] > 0) == ((views >> v & 1) != 0),
                      "%s: %zu failures", view_title((enum view)v),
                      report->failures[v]);
    ck_assert_int_eq(report_failures(report) > 0, views != 0);
    ck_assert_uint_eq(report_failures(report),
                      report_count(report, DIFFERS)
                      + report_count(report, UNMEASURED));
}

#define BIT(view) (1u << VIEW_##view)

/* -------------------------------------------------------------------- forms */

static const struct stored_form *form_named(const struct stored_form *list,
                                            size_t count, const char *name)
{
    for (size_t k = 0; k < count; k++)
        if (strcmp(list[k].name, name) == 0)
            return &list[k];
    ck_abort_msg("no form %s", name);
    return NULL;
}

static void expect_form(const struct stored_form *list, size_t count,
                        const char *name, int rank, int64_t a, int64_t b,
                        int64_t c)
{
    const struct stored_form *form = form_named(list, count, name);
    const int64_t sizes[] = {a, b, c};
    size_t elements = 1;
    ck_assert_msg(form->rank == rank, "%s: rank %d", name, form->rank);
    for (int d = 0; d < rank; d++) {
        ck_assert_msg(form->shape[d] == sizes[d], "%s: size %d is %lld", name,
                      d, (long long)form->shape[d]);
        elements *= (size_t)sizes[d];
    }
    ck_assert_uint_eq(form->elements, elements);
}

START_TEST(a_gpt2_file_has_the_matrices_of_its_blocks_across)
{
    const struct gpt_config config = small_gpt2_config();
    struct ownership own;
    struct stored_form list[64];
    expect_ok(ownership_of_gpt(&own, &config, &error), &error);
    const size_t count = stored_forms(&own, FORMAT_GPT2, "", NULL);
    ck_assert_uint_eq(count, 2 + 2 * 12 + 2 + 1);
    ck_assert_uint_eq(stored_forms(&own, FORMAT_GPT2, "", list), count);
    expect_form(list, count, "wte.weight", 2, 11, 6, 0);
    expect_form(list, count, "wpe.weight", 2, 9, 6, 0);
    expect_form(list, count, "h.1.attn.c_attn.weight", 2, 6, 18, 0);
    expect_form(list, count, "h.0.attn.c_proj.weight", 2, 6, 6, 0);
    expect_form(list, count, "h.1.mlp.c_fc.weight", 2, 6, 70, 0);
    expect_form(list, count, "h.1.mlp.c_proj.weight", 2, 70, 6, 0);
    expect_form(list, count, "h.0.attn.c_attn.bias", 1, 18, 0, 0);
    expect_form(list, count, "h.1.ln_2.weight", 1, 6, 0, 0);
    expect_form(list, count, "lm_head.weight", 2, 11, 6, 0);
    ck_assert(form_named(list, count, "lm_head.weight")->optional);
    ck_assert(!form_named(list, count, "wte.weight")->optional);
    stored_forms(&own, FORMAT_GPT2, "transformer.", list);
    expect_form(list, count, "transformer.h.1.mlp.c_fc.weight", 2, 6, 70, 0);
    expect_form(list, count, "lm_head.weight", 2, 11, 6, 0);
}
END_TEST

START_TEST(one_tensor_of_llama2c_holds_all_layers)
{
    struct llama_config config = small_llama_config();
    struct ownership own;
    struct stored_form list[64];
    config.d_model = 24;
    expect_ok(ownership_of_llama(&own, &config, &error), &error);
    size_t count = stored_forms(&own, FORMAT_LLAMA2C, "", list);
    ck_assert_uint_eq(count, 12);
    expect_form(list, count, "token_embedding_table", 2, 13, 24, 0);
    expect_form(list, count, "rms_att_weight", 2, 3, 24, 0);
    expect_form(list, count, "wq", 3, 3, 24, 24);
    expect_form(list, count, "wk", 3, 3, 12, 24);
    expect_form(list, count, "w2", 3, 3, 24, 7);
    expect_form(list, count, "rms_final_weight", 1, 24, 0, 0);
    config.n_layers = 1;
    config.d_ff = 1;
    expect_ok(ownership_of_llama(&own, &config, &error), &error);
    count = stored_forms(&own, FORMAT_LLAMA2C, "", list);
    expect_form(list, count, "wq", 2, 24, 24, 0);
    expect_form(list, count, "rms_att_weight", 1, 24, 0, 0);
    expect_form(list, count, "w1", 1, 24, 0, 0);
    expect_form(list, count, "w2", 2, 24, 1, 0);
}
END_TEST

START_TEST(the_registry_has_our_names_and_shapes)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct maker maker = make(kind);
        struct stored_form list[128];
        const size_t count = stored_forms(&maker.subject.ownership,
                                          FORMAT_TINY_GPT, "", list);
        ck_assert_uint_eq(count, maker.subject.held_count);
        for (size_t k = 0; k < count; k++) {
            const struct held_tensor *held = &maker.subject.held[k];
            expect_form(list, count, held->name, held->rank, held->shape[0],
                        held->shape[1], 0);
        }
        unmake(&maker);
    }
}
END_TEST

/* ------------------------------------------------- files of every format */

static struct audit_subject subject_at(const char *path)
{
    struct audit_subject subject;
    expect_ok(audit_subject_open(&subject, path, &error), &error);
    return subject;
}

START_TEST(every_format_is_predicted_tensor_by_tensor)
{
    static const int32_t ids[] = {1, 2, 3};
    for (enum written format = 0; format < FORMATS; format++) {
        struct audit_subject subject = subject_at(write_format(format));
        const struct audit_plan plan = {
            .prompt = ids, .prompt_tokens = 3, .steps = 5, .repeats = 1,
            .bound = {1e-3, 1e-2}
        };
        ck_assert_str_eq(subject.refusal.message, "");
        struct report report = report_of(&subject, &plan);
        for (int p = 0; p < PLACES; p++)
            for (size_t k = 0; k < report.tensor_count[p]; k++) {
                const struct report_tensor *tensor = &report.tensors[p][k];
                ck_assert_msg(tensor->judgement == HOLDS
                              || (!subject.stored[0].used
                                  && tensor->form == NULL)
                              || tensor->judgement == OBSERVED,
                              "%s: %s %s", written_formats[format].name,
                              tensor->name,
                              judgement_name(tensor->judgement));
            }
        expect_failing(&report, 0);
        report_free(&report);
        audit_subject_close(&subject);
    }
}
END_TEST

START_TEST(buffers_are_observed_and_a_copied_head_is_no_parameter)
{
    static const int32_t ids[] = {1, 2};
    const struct audit_plan plan = {
        .prompt = ids, .prompt_tokens = 2, .steps = 2, .repeats = 1
    };
    struct audit_subject subject = subject_at(write_format(GPT2_PREFIX));
    struct report report = report_of(&subject, &plan);
    const struct report_tensor *buffer =
        tensor_of(&report, IN_FILES, "transformer.h.1.attn.bias");
    ck_assert_int_eq(buffer->judgement, OBSERVED);
    ck_assert_ptr_null(buffer->form);
    ck_assert_uint_eq(number_of(&report, VIEW_SHAPES, "in the files",
                                "buffers, no weights")->measured.count, 324);
    report_free(&report);
    audit_subject_close(&subject);
    subject = subject_at(write_format(GPT2_HEAD));
    report = report_of(&subject, &plan);
    ck_assert_uint_eq(number_of(&report, VIEW_OWNERSHIP, "in the files",
                                "a tied head, stored again")->measured.count,
                      11 * 6);
    ck_assert_int_eq(tensor_of(&report, IN_FILES, "lm_head.weight")
                     ->judgement, HOLDS);
    ck_assert_uint_eq(tensor_of(&report, IN_MODEL, "lm_head.weight")->bytes,
                      0);
    expect_failing(&report, 0);
    report_free(&report);
    audit_subject_close(&subject);
}
END_TEST

/* ------------------------------------------------------------ what is wrong */

START_TEST(a_tensor_differs_in_shape_or_in_bytes)
{
    struct maker maker = make(1);
    struct audit_subject *subject = &maker.subject;
    const struct audit_plan plan = plan_of_noise();
    const char *name = "model.layers.1.mlp.up_proj.weight";
    struct safetensors_entry *entry = NULL;
    for (size_t k = 0; k < subject->stored_count; k++)
        if (strcmp(subject->stored[k].entry.name, name) == 0)
            entry = &subject->stored[k].entry;
    ck_assert_ptr_nonnull(entry);
    const struct safetensors_entry right = *entry;
    for (int fault = 0; fault < 6; fault++) {
        *entry = right;
        if (fault == 0) {                    /* across: as many elements */
            entry->shape[0] = right.shape[1];
            entry->shape[1] = right.shape[0];
        } else if (fault == 1)
            entry->shape[1]++;
        else if (fault == 2)
            entry->bytes--;
        else if (fault == 3)
            entry->bytes += 4;
        else if (fault == 4) {               /* as a row of all its floats */
            entry->rank = 1;
            entry->shape[0] = right.shape[0] * right.shape[1];
        } else
            entry->dtype = DTYPE_F16;        /* whose bytes are too many */
        struct report report = report_of(subject, &plan);
        ck_assert_msg(tensor_of(&report, IN_FILES, name)->judgement
                      == DIFFERS, "fault %d holds", fault);
        ck_assert_uint_ge(report.failures[VIEW_SHAPES], 1);
        report_free(&report);
    }
    unmake(&maker);
}
END_TEST

START_TEST(a_tensor_that_is_not_there_differs)
{
    struct maker maker = make(0);
    struct audit_subject *subject = &maker.subject;
    const struct audit_plan plan = plan_of_noise();
    const struct stored_tensor last =
        subject->stored[--subject->stored_count];
    struct report report = report_of(subject, &plan);
    const struct report_tensor *tensor = tensor_of(&report, IN_FILES,
                                                   last.entry.name);
    ck_assert_int_eq(tensor->judgement, DIFFERS);
    ck_assert(!tensor->found);
    const size_t count = subject->stored_count;
    expect_number(&report, VIEW_SHAPES, "in the files", "tensors", count + 1,
                  count);
    const size_t bytes = subject->file_bytes;
    expect_number(&report, VIEW_SHAPES, "in the files", "weights", bytes,
                  bytes - last.entry.bytes);
    expect_failing(&report, BIT(SHAPES) | BIT(OWNERSHIP));
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(a_tensor_that_nobody_predicted_differs)
{
    struct maker maker = make(1);
    struct audit_subject *subject = &maker.subject;
    const struct audit_plan plan = plan_of_noise();
    subject->stored[subject->stored_count++] = (struct stored_tensor){
        {"model.layers.3.input_layernorm.weight", DTYPE_F32, 1, {10}, NULL,
         40}, true
    };
    struct report report = report_of(subject, &plan);
    const struct report_tensor *tensor =
        tensor_of(&report, IN_FILES, "model.layers.3.input_layernorm.weight");
    ck_assert_int_eq(tensor->judgement, DIFFERS);
    ck_assert_ptr_null(tensor->form);
    expect_failing(&report, BIT(SHAPES) | BIT(OWNERSHIP));
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(the_registry_is_held_against_the_prediction_too)
{
    struct maker maker = make(2);
    struct audit_subject *subject = &maker.subject;
    const struct audit_plan plan = plan_of_noise();
    const struct held_tensor right = subject->held[4];
    for (int fault = 0; fault < 3; fault++) {
        subject->held[4] = right;
        if (fault == 0)
            subject->held[4].name = "somebody.weight";
        else if (fault == 1) {
            subject->held[4].shape[0]++;
            subject->held[4].elements += right.elements
                                         / (size_t)right.shape[0];
        } else
            subject->held[4].alias = true;
        struct report report = report_of(subject, &plan);
        ck_assert_int_eq(tensor_of(&report, IN_MODEL, right.name)->judgement,
                         DIFFERS);
        if (fault == 0)
            ck_assert_int_eq(tensor_of(&report, IN_MODEL, "somebody.weight")
                             ->judgement, DIFFERS);
        ck_assert_uint_gt(report.failures[VIEW_SHAPES], 0);
        if (fault < 2)
            ck_assert_uint_gt(report.failures[VIEW_OWNERSHIP], 0);
        report_free(&report);
    }
    unmake(&maker);
}
END_TEST

/* A prediction from another config is wrong in the views that it is about. */
START_TEST(another_config_is_named_by_its_number)
{
    const struct audit_plan plan = plan_of_noise();
    struct maker maker = make(1);
    struct llama_config config = small_llama_config();
    config.d_ff = 8;
    expect_ok(ownership_of_llama(&maker.subject.ownership, &config, &error),
              &error);
    struct report report = report_of(&maker.subject, &plan);
    expect_number(&report, VIEW_OWNERSHIP, "in the model", "feed-forward",
                  3 * 3 * 8 * 10, 3 * 3 * 7 * 10);
    expect_failing(&report, BIT(SHAPES) | BIT(OWNERSHIP));
    report_free(&report);
    config = small_llama_config();
    config.n_kv_heads = 4;
    expect_ok(ownership_of_llama(&maker.subject.ownership, &config, &error),
              &error);
    report = report_of(&maker.subject, &plan);
    expect_number(&report, VIEW_CACHE, "keys and values",
                  "written by the prompt", 2 * 3 * P * 24 * 4,
                  2 * 3 * P * 12 * 4);
    expect_failing(&report, BIT(SHAPES) | BIT(OWNERSHIP) | BIT(CACHE));
    report_free(&report);
    unmake(&maker);
}
END_TEST

/* ------------------------------------------------------------ bent handles */

enum bend { STRAIGHT, NEXT_POSITION, SLOT_ZERO, SLOT_MORE, LAZY_VALUES };

/* A handle that does something wrong, if the call is a decode. */
struct bent {
    struct causal_lm inner;
    enum bend bend;
    int from;                    /* with at least so many slots in use */
    int calls;
};

static float *row_of(const struct step *step, int layer, bool value, int head,
                     int slot)
{
    const struct layer_kv *pair = &step->storage->layers[layer];
    const struct tensor *tensor = value ? &pair->value : &pair->key;
    return tensor->data + (head * tensor->shape[2] + slot) * tensor->shape[3];
}

static void bent_run(const void *model, const struct step *step,
                     float *scratch)
{
    struct bent *bent = (struct bent *)(uintptr_t)model;
    const struct cache_shape *shape = &bent->inner.cache;
    const int length = step->lengths[0], slots =
        step->storage->layers[0].key.shape[2];
    const size_t row = (size_t)shape->head_dim;
    const int last = shape->n_layers - 1, now = length + step->tokens - 1;
    const bool decode = length >= bent->from && length > 0;
    int32_t positions[TOKENS + 1];
    struct step other = *step;
    float kept[64];
    bent->calls++;
    for (int t = 0; t < step->tokens; t++)
        positions[t] = step->positions[t] + 1;
    if (bent->bend == NEXT_POSITION && decode)
        other.positions = positions;
    if (bent->bend == LAZY_VALUES && decode)
        memcpy(kept, row_of(step, last, true, 0, now), row * sizeof *kept);
    bent->inner.run(bent->inner.model, &other, scratch);
    if (bent->bend == LAZY_VALUES && decode)
        memcpy(row_of(step, last, true, 0, now), kept, row * sizeof *kept);
    if (bent->bend == SLOT_ZERO && decode)
        memcpy(row_of(step, 1, false, 0, 0), row_of(step, 1, false, 0, now),
               row * sizeof *kept);
    if (bent->bend == SLOT_MORE && now + 1 < slots)
        memcpy(row_of(step, 1, true, 0, now + 1),
               row_of(step, 1, true, 0, now), row * sizeof *kept);
}

static size_t bent_size(const void *model, int batch, int tokens, int slots)
{
    const struct bent *bent = model;
    return bent->inner.scratch_size(bent->inner.model, batch, tokens, slots);
}

static void bend(struct maker *maker, struct bent *bent, enum bend how,
                 int from)
{
    *bent = (struct bent){maker->subject.lm, how, from, 0};
    maker->subject.lm.model = bent;
    maker->subject.lm.run = bent_run;
    maker->subject.lm.scratch_size = bent_size;
    maker->subject.llama = NULL;
}

START_TEST(the_diary_counts_rows_and_calls_of_each_phase)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct maker maker = make(kind);
        struct audit_plan plan = plan_of_noise();
        struct audit_run run;
        for (plan.repeats = 1; plan.repeats <= 3; plan.repeats++) {
            expect_ok(audit_run_new(&run, &maker.subject.lm,
                                    maker.subject.llama, &plan, &error),
                      &error);
            ck_assert_uint_eq(run.rows[PREFILL], P);
            ck_assert_uint_eq(run.rows[DECODE], STEPS);
            ck_assert_uint_eq(run.calls[DECODE], STEPS);
            ck_assert_int_eq(run.cached, TOKENS);
            ck_assert_int_eq(run.identity.verdict, IDENTICAL);
            ck_assert_int_eq(run.compared, STEPS);
            audit_run_free(&run);
        }
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_prompt_is_one_call_and_a_step_is_one)
{
    struct maker maker = make(0);
    const struct audit_plan plan = plan_of_noise();
    struct report report = report_of(&maker.subject, &plan);
    expect_number(&report, VIEW_PHASES, "prefill", "calls", 1, 1);
    expect_number(&report, VIEW_PHASES, "prefill", "rows", P, P);
    expect_number(&report, VIEW_PHASES, "decode", "calls", STEPS, STEPS);
    expect_number(&report, VIEW_PHASES, "decode", "rows", STEPS, STEPS);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(written_bytes_are_those_of_the_tokens_so_far)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct maker maker = make(kind);
        const struct cache_shape *shape = &maker.subject.lm.cache;
        const size_t one = 2u * (size_t)(shape->n_layers * shape->n_kv_heads
                                         * shape->head_dim) * 4;
        const struct audit_plan plan = plan_of_noise();
        struct audit_run run;
        expect_ok(audit_run_new(&run, &maker.subject.lm, NULL, &plan, &error),
                  &error);
        ck_assert_uint_eq(run.prompt_bytes, P * one);
        ck_assert_uint_eq(run.step_bytes, (P + 1) * one);
        ck_assert_uint_eq(run.all_bytes, TOKENS * one);
        ck_assert_uint_eq(run.storage_bytes, TOKENS * one);
        audit_run_free(&run);
        unmake(&maker);
    }
}
END_TEST

START_TEST(the_continuation_is_the_greedy_one)
{
    struct maker maker = make(1);
    const struct audit_plan plan = plan_of_noise();
    struct audit_run run;
    struct tensor rows = {0};
    expect_ok(audit_run_new(&run, &maker.subject.lm, NULL, &plan, &error),
              &error);
    const struct generation text = {prompt, P, run.continuation, STEPS};
    expect_ok(recompute_logits(&maker.subject.lm, &text, &rows, &error),
              &error);
    for (int k = 0; k < STEPS; k++)
        for (int v = 0; v < 13; v++)
            ck_assert_float_le(rows.data[13 * k + v],
                               rows.data[13 * k + run.continuation[k]]);
    tensor_free(&rows);
    audit_run_free(&run);
    unmake(&maker);
}
END_TEST

START_TEST(a_shifted_position_is_named_by_step_position_and_layer)
{
    for (int from = 1; from < TOKENS; from++) {
        struct maker maker = make(0);
        struct bent bent;
        const struct audit_plan plan = plan_of_noise();
        char text[SENTENCE_MAX], expected[64];
        bend(&maker, &bent, NEXT_POSITION, from);
        struct report report = report_of(&maker.subject, &plan);
        const int first = from < P ? P : from;      /* decoded with a slip */
        const int step = first - P + 1;             /* the first row to see it */
        if (step < STEPS) {
            expect_number(&report, VIEW_OUTPUT, "rows", "as recomputed",
                          STEPS, (size_t)step);
            expect_failing(&report, BIT(OUTPUT));
            snprintf(expected, sizeof expected, "step %d, position %d: ",
                     step, P + step);
            parting_text(&report, text);
            ck_assert_msg(strncmp(text, expected, strlen(expected)) == 0,
                          "%s: %s", expected, text);
            snprintf(expected, sizeof expected, "in layer 0 at position %d,",
                     first);
            ck_assert_msg(strstr(text, expected) != NULL, "%s: %s", expected,
                          text);
            ck_assert_int_eq(report.run.compared, step + 1);
        } else
            expect_failing(&report, 0);
        report_free(&report);
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_slot_that_is_overwritten_is_seen_in_the_outputs_alone)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct maker maker = make(kind);
        struct bent bent;
        const struct audit_plan plan = plan_of_noise();
        char text[SENTENCE_MAX];
        maker.subject.ownership.n_experts *= kind < 2;
        bend(&maker, &bent, SLOT_ZERO, 1);
        struct audit_run run;
        expect_ok(audit_run_new(&run, &maker.subject.lm, NULL, &plan, &error),
                  &error);
        ck_assert_int_eq(run.identity.verdict, LOGITS_DIFFER);
        ck_assert_uint_eq(run.all_bytes, run.storage_bytes);
        audit_run_free(&run);
        if (kind < 2) {
            struct report report = report_of(&maker.subject, &plan);
            expect_failing(&report, BIT(OUTPUT));
            ck_assert_ptr_nonnull(strstr(parting_text(&report, text),
                                         "layer 1 at position 0, head 0,"
                                         " key"));
            report_free(&report);
        }
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_slot_too_many_is_seen_in_the_bytes_alone)
{
    struct maker maker = make(1);
    struct bent bent;
    const struct audit_plan plan = plan_of_noise();
    bend(&maker, &bent, SLOT_MORE, 1);
    struct report report = report_of(&maker.subject, &plan);
    const size_t token = 2 * 3 * 12 * 4;
    expect_number(&report, VIEW_CACHE, "keys and values",
                  "written by the prompt", P * token, P * token + 6 * 4);
    expect_failing(&report, BIT(CACHE));
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(a_value_that_is_not_written_is_read_as_a_mark)
{
    struct maker maker = make(0);
    struct bent bent;
    const struct audit_plan plan = plan_of_noise();
    bend(&maker, &bent, LAZY_VALUES, 1);
    struct report report = report_of(&maker.subject, &plan);
    const size_t token = 2 * 3 * 10 * 4;
    expect_number(&report, VIEW_CACHE, "keys and values",
                  "written after one step", (P + 1) * token,
                  (P + 1) * token - 5 * 4);
    expect_failing(&report, BIT(CACHE) | BIT(OUTPUT));
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(rows_are_judged_by_their_number_and_not_by_their_largest)
{
    struct maker maker = make(1);
    struct bent bent;
    const struct audit_plan plan = plan_of_noise();
    bend(&maker, &bent, SLOT_ZERO, P + 2);
    struct report report = report_of(&maker.subject, &plan);
    const struct report_number *largest =
        number_of(&report, VIEW_OUTPUT, "rows", "largest difference of these");
    ck_assert_double_lt(largest->measured.number, 1e-5);
    ck_assert_int_eq(largest->judgement, OBSERVED);
    expect_number(&report, VIEW_OUTPUT, "rows", "as recomputed", STEPS, 4);
    expect_failing(&report, BIT(OUTPUT));
    report_free(&report);
    unmake(&maker);
}
END_TEST

/* ------------------------------------------------------------------ experts */

START_TEST(stored_and_active_parameters_stand_apart)
{
    struct maker maker = make(2);
    const struct audit_plan plan = plan_of_noise();
    struct report report = report_of(&maker.subject, &plan);
    const size_t expert = 3 * 7 * 10, layers = 3;
    const size_t rest = maker.subject.ownership.total - layers * 5 * expert;
    expect_number(&report, VIEW_OWNERSHIP, "in the model", "stored, in all",
                  rest + layers * 5 * expert, rest + layers * 5 * expert);
    expect_number(&report, VIEW_OWNERSHIP, "experts", "active for a token",
                  rest + layers * 2 * expert, rest + layers * 2 * expert);
    for (int l = 0; l < 3; l++) {
        char what[64];
        size_t sum = 0, most = 0;
        for (int e = 0; e < 5; e++) {
            const size_t load = report.run.loads[5 * l + e];
            sum += load;
            most = load > most ? load : most;
        }
        ck_assert_uint_eq(sum, 2 * TOKENS);
        snprintf(what, sizeof what, "layer %d: assignments", l);
        expect_number(&report, VIEW_OWNERSHIP, "experts", what, sum, sum);
        snprintf(what, sizeof what, "layer %d: maximum to mean", l);
        const struct report_number *peak =
            number_of(&report, VIEW_OWNERSHIP, "experts", what);
        ck_assert_int_eq(peak->judgement, OBSERVED);
        ck_assert_double_eq_tol(peak->measured.number,
                                5.0 * (double)most / (double)sum, 1e-12);
    }
    report_free(&report);
    unmake(&maker);
}
END_TEST

/* -------------------------------------------------------------------- times */

static double ticking(void *state)
{
    double *now = state;
    return *now += 0.25;
}

static double stopped(void *state)
{
    return *(double *)state;
}

static double backwards(void *state)
{
    double *now = state;
    return *now -= 3;
}

START_TEST(prefill_and_decode_have_their_own_times)
{
    double now = 0;
    struct maker maker = make(0);
    struct audit_plan plan = plan_of_noise();
    plan.watch = (struct stopwatch){ticking, &now};
    plan.repeats = 3;
    struct report report = report_of(&maker.subject, &plan);
    ck_assert_double_eq(report.run.seconds[PREFILL], 0.25);
    ck_assert_double_eq(report.run.seconds[DECODE], 0.25 * STEPS);
    ck_assert_double_eq(now, 0.25 * 2 * 3 * (STEPS + 1));
    const struct report_number *time = number_of(&report, VIEW_PHASES,
                                                 "decode", "time");
    ck_assert_int_eq(time->judgement, DIAGNOSTIC);
    ck_assert(!time->predicted.known);
    ck_assert_double_eq(time->measured.number, 0.25 * STEPS);
    expect_failing(&report, 0);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(no_clock_makes_a_report_fail)
{
    double (*const clocks[])(void *) = {ticking, stopped, backwards, NULL};
    const struct machine fast = {1e30, 1e30, 1e30, "none"};
    struct maker maker = make(1);
    for (size_t k = 0; k < LENGTH(clocks); k++) {
        double now = 0;
        struct audit_plan plan = plan_of_noise();
        struct report report;
        plan.watch = (struct stopwatch){clocks[k], &now};
        expect_ok(report_new(&report, &maker.subject, &plan, &fast, &error),
                  &error);
        expect_failing(&report, 0);
        size_t times = 0;
        for (size_t n = 0; n < report.number_count; n++)
            times += report.numbers[n].judgement == DIAGNOSTIC;
        ck_assert_uint_eq(times, clocks[k] != NULL ? 6 : 0);
        report_free(&report);
    }
    unmake(&maker);
}
END_TEST

/* ----------------------------------------------------------------- refusals */

START_TEST(a_plan_that_cannot_be_run_is_refused_by_name)
{
    struct maker maker = make(0);
    const struct { int prompt, steps, repeats; const char *name; } faults[] = {
        {0, 1, 1, "prompt_tokens"}, {-1, 1, 1, "prompt_tokens"},
        {P, 0, 1, "steps"}, {P, -3, 1, "steps"}, {P, 24 - P + 1, 1, "steps"},
        {P, 2147483647, 1, "steps"}, {P, 3, 0, "repeats"}
    };
    for (size_t k = 0; k < LENGTH(faults); k++) {
        struct audit_plan plan = plan_of_noise();
        struct audit_run run = {.cached = 77};
        plan.prompt_tokens = faults[k].prompt;
        plan.steps = faults[k].steps;
        plan.repeats = faults[k].repeats;
        ck_assert_int_eq(audit_run_new(&run, &maker.subject.lm, NULL, &plan,
                                       &error), STATUS_INVALID);
        expect_named(&error, faults[k].name);
        ck_assert_int_eq(run.cached, 77);
    }
    struct audit_plan plan = plan_of_noise();
    struct report report = {.number_count = 5};
    prompt[2] = 13;
    ck_assert_int_eq(report_new(&report, &maker.subject, &plan, NULL, &error),
                     STATUS_INVALID);
    expect_named(&error, "prompt[2]");
    ck_assert_uint_eq(report.number_count, 5);
    unmake(&maker);
}
END_TEST

START_TEST(a_directory_that_the_loader_refuses_is_still_a_subject)
{
    const struct gpt_config config = small_gpt2_config();
    static const int32_t ids[] = {1, 2};
    const struct audit_plan plan = {
        .prompt = ids, .prompt_tokens = 2, .steps = 2, .repeats = 1
    };
    const char *directory = write_format(GPT2);
    struct gpt_config other = config;
    other.n_layers = 1;
    write_text(in(directory, "config.json"), gpt2_text(&other, ""));
    struct audit_subject subject = subject_at(directory);
    ck_assert_ptr_null(subject.held);
    ck_assert(subject.lm.run == NULL);
    expect_named(&subject.refusal, "h.1.");
    struct report report = report_of(&subject, &plan);
    ck_assert(!report.has_run);
    ck_assert_int_eq(tensor_of(&report, IN_FILES, "h.1.ln_1.weight")
                     ->judgement, DIFFERS);
    ck_assert_int_eq(tensor_of(&report, IN_FILES, "h.0.ln_1.weight")
                     ->judgement, HOLDS);
    expect_number(&report, VIEW_SHAPES, "in the files", "tensors",
                  2 + 12 + 2, 2 + 24 + 2);
    expect_failing(&report, BIT(SHAPES) | BIT(OWNERSHIP) | BIT(CACHE)
                            | BIT(PHASES) | BIT(OUTPUT));
    ck_assert_int_eq(view_judgement(&report, VIEW_SHAPES), DIFFERS);
    ck_assert_int_eq(view_judgement(&report, VIEW_OUTPUT), UNMEASURED);
    report_free(&report);
    audit_subject_close(&subject);
    other = config;
    other.d_ff = 71;
    write_text(in(directory, "config.json"), gpt2_text(&other, ""));
    subject = subject_at(directory);
    report = report_of(&subject, &plan);
    ck_assert_int_eq(tensor_of(&report, IN_FILES, "h.1.mlp.c_fc.weight")
                     ->judgement, DIFFERS);
    ck_assert_int_eq(tensor_of(&report, IN_FILES, "h.1.attn.c_attn.weight")
                     ->judgement, HOLDS);
    report_free(&report);
    audit_subject_close(&subject);
}
END_TEST

START_TEST(what_is_no_checkpoint_is_no_subject)
{
    struct audit_subject subject = {.file_bytes = 77};
    const char *directory = write_format(LLAMA_TIED);
    const char *file = write_format(LLAMA2C_TIED);
    ck_assert_int_ne(audit_subject_open(&subject, "no/such/model", &error),
                     STATUS_OK);
    expect_named(&error, "no/such/model");
    ck_assert_int_eq(truncate(file, 200), 0);
    ck_assert_int_eq(audit_subject_open(&subject, file, &error),
                     STATUS_FORMAT);
    write_text(in(directory, "model.safetensors"), "what?");
    ck_assert_int_eq(audit_subject_open(&subject, directory, &error),
                     STATUS_FORMAT);
    expect_named(&error, "model.safetensors");
    directory = write_format(LLAMA_TIED);
    write_text(in(directory, "config.json"), "{\"model_type\": \"mamba\"}");
    ck_assert_int_eq(audit_subject_open(&subject, directory, &error),
                     STATUS_FORMAT);
    expect_named(&error, "mamba");
    ck_assert_uint_eq(subject.file_bytes, 77);
}
END_TEST

START_TEST(each_failed_allocation_is_an_error_that_leaves_nothing)
{
    static const int32_t ids[] = {1, 2, 3};
    const struct audit_plan plan = {
        .prompt = ids, .prompt_tokens = 3, .steps = 2, .repeats = 2
    };
    for (enum written format = GPT2; format < FORMATS; format += 2) {
        const char *path = write_format(format);
        if (format == GPT2) {
            struct gpt_config other = small_gpt2_config();
            other.n_layers = 3;
            write_text(in(path, "config.json"), gpt2_text(&other, ""));
        }
        for (long n = 1; ; n++) {
            struct audit_subject subject = {.file_bytes = 77};
            struct report report = {.number_count = 5};
            const long live = allocator_live();
            allocator_fail_at(n);
            enum status status = audit_subject_open(&subject, path, &error);
            const bool open = status == STATUS_OK;
            if (open)
                status = report_new(&report, &subject, &plan, NULL, &error);
            const bool made = status == STATUS_OK;
            const bool failed = allocator_stop();
            if (made)
                report_free(&report);
            if (open)
                audit_subject_close(&subject);
            ck_assert_int_eq(allocator_live() - live, 0);
            if (!failed) {
                expect_ok(status, &error);
                break;
            }
            ck_assert_msg(status == STATUS_NO_MEMORY, "allocation %ld of"
                          " %s: status %d, %s", n,
                          written_formats[format].name, (int)status,
                          error.message);
            ck_assert(open || subject.file_bytes == 77);
            ck_assert(made || report.number_count == 5);
        }
    }
}
END_TEST

/* ------------------------------------------------------------------ quoting */

typedef void put(FILE *out, const char *text);

/* The caller frees. */
static char *put_text(put *function, const char *text)
{
    char *made = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&made, &size);
    ck_assert_ptr_nonnull(out);
    function(out, text);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_uint_eq(strlen(made), size);
    return made;
}

static void expect_put(put *function, const char *text, const char *expected)
{
    char *made = put_text(function, text);
    ck_assert_str_eq(made, expected);
    free(made);
}

#define BAD "\xEF\xBF\xBD"

START_TEST(a_text_in_a_page_is_a_text)
{
    expect_put(put_html, "wte.weight", "wte.weight");
    expect_put(put_html, "", "");
    expect_put(put_html, "<script>alert(1)</script>",
               "&lt;script&gt;alert(1)&lt;/script&gt;");
    expect_put(put_html, "a\"b'c", "a&quot;b'c");
    expect_put(put_html, "&lt;&amp;&#60;", "&amp;lt;&amp;amp;&amp;#60;");
    expect_put(put_html, "a\nb\x01\x7f", "a" BAD "b" BAD BAD);
    expect_put(put_html, "\xC3\xA9\xE2\x80\xA6", "\xC3\xA9\xE2\x80\xA6");
    expect_put(put_html, "\xFFx\xE2\x80", BAD "x" BAD);
    expect_put(put_html, "\xC2\x85<", BAD "&lt;");
    char name[4001];
    memset(name, '<', 4000);
    name[4000] = '\0';
    char *made = put_text(put_html, name);
    ck_assert_uint_le(strlen(made), SHOWN_MAX * 4 + 3);
    ck_assert_str_eq(made + strlen(made) - 3, "…");
    free(made);
}
END_TEST

START_TEST(a_text_on_a_terminal_commands_nothing)
{
    expect_put(put_plain, "a<b>&\"", "a<b>&\"");
    expect_put(put_plain, "\x1b[2Jx\r\n", BAD "[2Jx" BAD BAD);
    expect_put(put_plain, "\xC2\x9B" "31m", BAD "31m");
    expect_put(put_plain, "\xF0\x9F\x98", BAD);
}
END_TEST

START_TEST(a_text_in_json_reads_back)
{
    static const char *const texts[] = {
        "", "wte.weight", "a\"b\\c", "\\", "\\\"", "line\nfeed\ttab\x01",
        "</script>", "\xC3\xA9", "\x7f", "\xC2\x85"
    };
    for (size_t k = 0; k < LENGTH(texts); k++) {
        char *made = put_text(put_json, texts[k]);
        cJSON *value = cJSON_ParseWithOpts(made, NULL, 1);
        ck_assert_msg(value != NULL, "%s", made);
        ck_assert_str_eq(cJSON_GetStringValue(value), texts[k]);
        for (const char *c = made; *c != '\0'; c++)
            ck_assert_uint_ge((unsigned char)*c, 0x20);
        cJSON_Delete(value);
        free(made);
    }
    expect_put(put_json, "a\xFF" "b\xE2\x80", "\"a" BAD "b" BAD "\"");
    char name[4001];
    memset(name, 'n', 4000);
    name[4000] = '\0';
    char *made = put_text(put_json, name);
    ck_assert_uint_eq(strlen(made), 4002);
    free(made);
}
END_TEST

START_TEST(random_bytes_come_out_as_characters)
{
    uint64_t state = noise_start(225);
    for (int round = 0; round < 300; round++) {
        char text[40] = "";
        for (int k = 0; k < 39; k++)
            text[k] = (char)(1 + noise_below(&state, 255));
        put *const all[] = {put_html, put_plain, put_json};
        for (size_t p = 0; p < LENGTH(all); p++) {
            char *made = put_text(all[p], text);
            const size_t length = strlen(made);
            ck_assert_int_eq(utf8_cut(made, length, 4096), (int)length);
            ck_assert(p != 0 || strpbrk(made, "<>\"") == NULL);
            free(made);
        }
    }
}
END_TEST

START_TEST(numbers_and_names_are_made_for_people)
{
    char text[SENTENCE_MAX], name[STORED_NAME_MAX];
    const struct { size_t count; const char *text; } counts[] = {
        {0, "0"}, {999, "999"}, {1000, "1,000"}, {484416, "484,416"},
        {1234567, "1,234,567"}, {SIZE_MAX, "18,446,744,073,709,551,615"}
    };
    for (size_t k = 0; k < LENGTH(counts); k++) {
        const struct quantity count = quantity_count(counts[k].count);
        ck_assert_str_eq(quantity_text(&count, text), counts[k].text);
    }
    const struct quantity none = quantity_none(), real = quantity_real(0.125);
    ck_assert_str_eq(quantity_text(&none, text), "–");
    ck_assert_str_eq(quantity_text(&real, text), "0.125");
    ck_assert_str_eq(pattern_text("h.12.attn.c_attn.weight", name),
                     "h.*.attn.c_attn.weight");
    ck_assert_str_eq(pattern_text("a.0.experts.31.w1.weight", name),
                     "a.*.experts.*.w1.weight");
    ck_assert_str_eq(pattern_text("mlp.1a.b2.", name), "mlp.1a.b2.");
    ck_assert_str_eq(sizes_text(0, NULL, text), "scalar");
    ck_assert_str_eq(sizes_text(3, (const int64_t[]){1, 22, 333}, text),
                     "[1, 22, 333]");
    const int64_t large[SAFETENSORS_RANK_MAX] = {
        INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
        INT64_MAX, INT64_MAX
    };
    char sizes[SIZES_TEXT_MAX];
    ck_assert_uint_lt(strlen(sizes_text(SAFETENSORS_RANK_MAX, large, sizes)),
                      sizeof sizes);
}
END_TEST

/* ---------------------------------------------------------------- printings */

/* The caller frees. */
static char *print(void (*function)(FILE *, const struct report *),
                   const struct report *report)
{
    char *made = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&made, &size);
    ck_assert_ptr_nonnull(out);
    function(out, report);
    ck_assert_int_eq(fclose(out), 0);
    return made;
}

/* Walks over a page and fails at what it should not have: an element or an
   attribute that the report does not write, one that is closed by another, a
   reference that HTML does not know, an address. Returns the elements. */
static int parse_page(const char *page)
{
    static const char *const elements[] = {
        "html", "head", "meta", "link", "title", "style", "body", "main",
        "h1", "h2", "h3", "p", "nav", "ol", "li", "a", "span", "section",
        "table", "thead", "tbody", "tr", "th", "td", "code", "b"
    };
    static const char *const attributes[] = {
        "lang", "charset", "name", "content", "http-equiv", "rel", "href",
        "class", "id", "scope", "data-name", "aria-label"
    };
    const char *open[32];
    size_t lengths[32];
    int depth = 0, count = 0;
    const char start[] = "<!DOCTYPE html>\n";
    ck_assert_int_eq(strncmp(page, start, strlen(start)), 0);
    for (const char *at = page + strlen(start); *at != '\0'; at++) {
        if (*at == '&')
            ck_assert_msg(strncmp(at, "&amp;", 5) == 0
                          || strncmp(at, "&lt;", 4) == 0
                          || strncmp(at, "&gt;", 4) == 0
                          || strncmp(at, "&quot;", 6) == 0, "at %.40s", at);
        ck_assert_msg((unsigned char)*at >= 0x20 || *at == '\n', "a control"
                      " character before %.40s", at);
        if (*at != '<')
            continue;
        const bool close = at[1] == '/';
        const char *name = at + 1 + close;
        const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz123456");
        size_t known = 0;
        while (known < LENGTH(elements)
               && (strlen(elements[known]) != length
                   || strncmp(elements[known], name, length) != 0))
            known++;
        ck_assert_msg(known < LENGTH(elements), "element %.40s", at);
        at = name + length;
        if (close) {
            ck_assert_int_gt(depth, 0);
            depth--;
            ck_assert_msg(lengths[depth] == length
                          && strncmp(open[depth], name, length) == 0,
                          "%.20s closes %.20s", name, open[depth]);
            ck_assert_int_eq(*at, '>');
            continue;
        }
        count++;
        while (*at == ' ') {
            const size_t word = strcspn(++at, "=");
            size_t found = 0;
            while (found < LENGTH(attributes)
                   && (strlen(attributes[found]) != word
                       || strncmp(attributes[found], at, word) != 0))
                found++;
            ck_assert_msg(found < LENGTH(attributes), "attribute %.40s", at);
            const bool address = strncmp(at, "href", 4) == 0;
            at += word;
            ck_assert_int_eq(strncmp(at, "=\"", 2), 0);
            at += 2;
            ck_assert_msg(!address || *at == '#'
                          || strncmp(at, "data:,\"", 7) == 0, "%.40s", at);
            at += strcspn(at, "\"") + 1;
        }
        ck_assert_msg(*at == '>', "in a tag: %.40s", at);
        if (strncmp(name, "style", 5) == 0)
            at = strstr(at, "</style>") - 1;
        if (strncmp(name, "meta", 4) != 0 && strncmp(name, "link", 4) != 0) {
            ck_assert_int_lt(depth, 32);
            open[depth] = name;
            lengths[depth++] = length;
        }
    }
    ck_assert_int_eq(depth, 0);
    return count;
}

static const char *const zoo[] = {
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>",
    "&lt;b&gt;", "a\nb\"c\\d", "\xFF\xFE broken", "\xE2\x80\xAE reversed",
    "</td></table></style>"
};
enum { ZOO = LENGTH(zoo) };

/* A subject with all of the zoo in its files, and a name of 4000 letters. */
static void visit_zoo(struct maker *maker, char *longest)
{
    struct audit_subject *subject = &maker->subject;
    memset(longest, 'W', 4000);
    longest[4000] = '\0';
    for (int k = 0; k <= ZOO; k++)
        subject->stored[subject->stored_count + (size_t)k] =
            (struct stored_tensor){
                {k < ZOO ? zoo[k] : longest, DTYPE_U8, 1, {3}, NULL, 3}, true
            };
    subject->stored_count += ZOO + 1;
    subject->name = zoo[1];
}

START_TEST(a_page_is_whole_and_asks_nobody_for_anything)
{
    for (int kind = 0; kind < KINDS; kind++) {
        double now = 0;
        struct maker maker = make(kind);
        struct audit_plan plan = plan_of_noise();
        plan.watch = (struct stopwatch){ticking, &now};
        struct report report = report_of(&maker.subject, &plan);
        char *page = print(report_print_html, &report);
        ck_assert_int_gt(parse_page(page), 300);
        ck_assert_ptr_null(strstr(page, "http:"));
        ck_assert_ptr_null(strstr(page, "https:"));
        ck_assert_ptr_null(strstr(page, "url("));
        ck_assert_ptr_null(strstr(page, "@import"));
        ck_assert_ptr_null(strstr(page, "<script"));
        ck_assert_ptr_nonnull(strstr(page, "default-src 'none'"));
        ck_assert_ptr_nonnull(strstr(page, "prefers-color-scheme:dark"));
        ck_assert_ptr_nonnull(strstr(page, "@media print"));
        ck_assert_ptr_nonnull(strstr(page, "CPU, diagnostic"));
        for (int v = 0; v < VIEWS; v++)
            ck_assert_ptr_nonnull(strstr(page, view_title((enum view)v)));
        free(page);
        report_free(&report);
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_hostile_name_is_a_name_on_the_page)
{
    struct maker maker = make(1);
    char longest[4001];
    const struct audit_plan plan = plan_of_noise();
    visit_zoo(&maker, longest);
    struct report report = report_of(&maker.subject, &plan);
    char *page = print(report_print_html, &report);
    parse_page(page);
    ck_assert_ptr_null(strstr(page, "<script"));
    ck_assert_ptr_null(strstr(page, "<img"));
    ck_assert_ptr_nonnull(strstr(page, "&lt;script&gt;alert(1)"));
    ck_assert_ptr_nonnull(strstr(page, "&amp;lt;b&amp;gt;"));
    ck_assert_ptr_null(strstr(page, longest));
    free(page);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(tidy_has_nothing_to_say_of_a_page)
{
    if (system("command -v tidy > /dev/null 2>&1") != 0)
        return;
    struct maker maker = make(2);
    struct bent bent;
    char longest[4001], line[600];
    const struct audit_plan plan = plan_of_noise();
    const char *path = in(new_directory(), "page.html");
    visit_zoo(&maker, longest);
    maker.subject.ownership.n_experts = 0;
    struct llama_config config = small_llama_config();
    expect_ok(ownership_of_llama(&maker.subject.ownership, &config, &error),
              &error);
    bend(&maker, &bent, SLOT_ZERO, 1);
    struct report report = report_of(&maker.subject, &plan);
    char *page = print(report_print_html, &report);
    write_text(path, page);
    free(page);
    snprintf(line, sizeof line, "tidy -q -e --drop-empty-elements no '%s'"
             " >&2", path);
    ck_assert_int_eq(system(line), 0);
    report_free(&report);
    unmake(&maker);
}
END_TEST

static double json_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", name);
    return cJSON_GetNumberValue(item);
}

static cJSON *json_of(const struct report *report)
{
    char *text = print(report_print_json, report);
    cJSON *json = NULL;
    expect_ok(json_parse(&json, text, strlen(text), &error), &error);
    free(text);
    return json;
}

static const cJSON *json_view(const cJSON *json, enum view view)
{
    const cJSON *item = cJSON_GetArrayItem(
        cJSON_GetObjectItem(json, "views"), (int)view);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(item, "view")),
                     view_key(view));
    return item;
}

START_TEST(json_says_what_the_report_says)
{
    double now = 0;
    struct maker maker = make(2);
    struct audit_plan plan = plan_of_noise();
    plan.watch = (struct stopwatch){ticking, &now};
    struct report report = report_of(&maker.subject, &plan);
    cJSON *json = json_of(&report);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(json, "holds")));
    ck_assert_double_eq(json_number(json, "differ"), 0);
    size_t seen = 0;
    for (int v = 0; v < VIEWS; v++) {
        const cJSON *numbers = cJSON_GetObjectItem(
            json_view(json, (enum view)v), "numbers"), *item;
        cJSON_ArrayForEach(item, numbers) {
            const struct report_number *number = &report.numbers[seen++];
            ck_assert_str_eq(cJSON_GetStringValue(
                cJSON_GetObjectItem(item, "what")), number->what);
            ck_assert_str_eq(cJSON_GetStringValue(
                cJSON_GetObjectItem(item, "verdict")),
                judgement_name(number->judgement));
            if (number->measured.known)
                ck_assert_double_eq(json_number(item, "measured"),
                                    number->measured.real
                                    ? number->measured.number
                                    : (double)number->measured.count);
            else
                ck_assert(cJSON_IsNull(cJSON_GetObjectItem(item,
                                                           "measured")));
        }
    }
    ck_assert_uint_eq(seen, report.number_count);
    const cJSON *files = cJSON_GetObjectItem(json_view(json, VIEW_SHAPES),
                                             "files");
    ck_assert_int_eq(cJSON_GetArraySize(files),
                     (int)report.tensor_count[IN_FILES]);
    const cJSON *view = json_view(json, VIEW_OUTPUT);
    ck_assert_int_eq(cJSON_GetArraySize(
        cJSON_GetObjectItem(view, "differences")), STEPS);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(view, "mismatch")));
    view = json_view(json, VIEW_OWNERSHIP);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(view, "loads")),
                     3);
    view = json_view(json, VIEW_PHASES);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(view, "prefill")),
                     report.work[PREFILL].count);
    cJSON_Delete(json);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(every_digit_of_a_count_is_in_the_json)
{
    struct maker maker = make(0);
    const struct audit_plan plan = plan_of_noise();
    struct report report = report_of(&maker.subject, &plan);
    report.numbers[0].predicted = quantity_count(SIZE_MAX);
    report.numbers[0].measured = quantity_count(((size_t)1 << 53) + 1);
    report.numbers[1].measured = quantity_real(0.1);
    report.numbers[2].measured = quantity_real(DBL_MIN);
    char *text = print(report_print_json, &report);
    ck_assert_ptr_nonnull(strstr(text, "\"predicted\": 18446744073709551615,"
                                       " \"measured\": 9007199254740993,"));
    free(text);
    cJSON *json = json_of(&report);
    const cJSON *numbers = cJSON_GetObjectItem(json_view(json, VIEW_SHAPES),
                                               "numbers");
    ck_assert_double_eq(json_number(cJSON_GetArrayItem(numbers, 1),
                                    "measured"), 0.1);
    ck_assert_double_eq(json_number(cJSON_GetArrayItem(numbers, 2),
                                    "measured"), DBL_MIN);
    cJSON_Delete(json);
    report_free(&report);
    unmake(&maker);
}
END_TEST

/* Whether a view of a page, text or JSON sends its reader to its topic. */
static void expect_topics(const struct report *report, unsigned views)
{
    static const char *const topics[VIEWS] = {
        "chapters 1, 13 and 19", "chapters 14 and 15", "chapters 9 and 14",
        "chapter 14", "chapter 20"
    };
    char *text = print(report_print_text, report);
    char *page = print(report_print_html, report);
    cJSON *json = json_of(report);
    parse_page(page);
    for (int v = 0; v < VIEWS; v++) {
        const enum view view = (enum view)v;
        const bool fails = (views >> v & 1) != 0;
        const char *word = judgement_name(view_judgement(report, view));
        char line[128], section[64];
        ck_assert_pstr_eq(report_topic(report, view),
                          fails ? topics[v] : NULL);
        snprintf(line, sizeof line, "\n%s: %s%s%s\n", view_title(view), word,
                 fails ? "; return to " : "", fails ? topics[v] : "");
        ck_assert_msg(strstr(text, line) != NULL, "no %s in %s", line, text);
        snprintf(section, sizeof section, "<section id=\"%s\">",
                 view_key(view));
        char *begin = strstr(page, section);
        ck_assert_ptr_nonnull(begin);
        char *end = strstr(begin, "</section>");
        *end = '\0';
        snprintf(line, sizeof line, ">Return to %s of the book.<", topics[v]);
        ck_assert_msg(fails ? strstr(begin, line) != NULL
                            : strstr(begin, "Return to") == NULL,
                      "%s: %s", view_title(view), line);
        *end = '<';
        const cJSON *topic = cJSON_GetObjectItem(json_view(json, view),
                                                 "return_to");
        ck_assert_int_eq(cJSON_IsNull(topic) != 0, !fails);
        ck_assert_pstr_eq(cJSON_GetStringValue(topic),
                          fails ? topics[v] : NULL);
    }
    cJSON_Delete(json);
    free(page);
    free(text);
}

START_TEST(a_view_that_fails_says_where_to_return_and_no_other_does)
{
    static const unsigned failing[] = {
        0, BIT(SHAPES) | BIT(OWNERSHIP), BIT(SHAPES), BIT(CACHE),
        BIT(OUTPUT), BIT(CACHE) | BIT(PHASES) | BIT(OUTPUT)
    };
    for (size_t k = 0; k < LENGTH(failing); k++) {
        struct maker maker = make(1);
        struct audit_subject *subject = &maker.subject;
        struct bent bent;
        const struct audit_plan plan = plan_of_noise();
        struct safetensors_entry *entry = &subject->stored[3].entry;
        if (k == 1)
            subject->stored_count--;
        else if (k == 2) {               /* across, with the same sums */
            const int64_t rows = entry->shape[0];
            ck_assert_int_ne(rows, entry->shape[1]);
            entry->shape[0] = entry->shape[1];
            entry->shape[1] = rows;
        } else if (k == 3)
            bend(&maker, &bent, SLOT_MORE, 1);
        else if (k == 4)
            bend(&maker, &bent, SLOT_ZERO, 1);
        else if (k == 5)
            subject->lm.run = NULL;      /* nobody could look */
        struct report report = report_of(subject, &plan);
        expect_failing(&report, failing[k]);
        expect_topics(&report, failing[k]);
        report_free(&report);
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_mismatch_is_in_all_three_printings)
{
    struct maker maker = make(1);
    struct bent bent;
    char longest[4001], text[SENTENCE_MAX];
    const struct audit_plan plan = plan_of_noise();
    visit_zoo(&maker, longest);
    bend(&maker, &bent, LAZY_VALUES, 1);
    struct report report = report_of(&maker.subject, &plan);
    ck_assert_str_ne(parting_text(&report, text), "");
    expect_topics(&report, BIT(SHAPES) | BIT(OWNERSHIP) | BIT(CACHE)
                           | BIT(OUTPUT));
    char *made = print(report_print_text, &report);
    ck_assert_ptr_nonnull(strstr(made, text));
    ck_assert_ptr_nonnull(strstr(made, "Output equivalence: differs"));
    ck_assert_ptr_nonnull(strstr(made, "<script>alert(1)</script>"));
    free(made);
    made = print(report_print_html, &report);
    ck_assert_ptr_nonnull(strstr(made, text));
    ck_assert_ptr_nonnull(strstr(made, "class=\"fails\""));
    parse_page(made);
    free(made);
    cJSON *json = json_of(&report);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(json, "holds")));
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(
        json_view(json, VIEW_OUTPUT), "mismatch")), text);
    const cJSON *files = cJSON_GetObjectItem(json_view(json, VIEW_SHAPES),
                                             "files");
    const int count = cJSON_GetArraySize(files);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(
        cJSON_GetArrayItem(files, count - 1), "name")), longest);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(
        cJSON_GetArrayItem(files, count - ZOO - 1 + 3), "name")), zoo[3]);
    cJSON_Delete(json);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(alike_tensors_are_one_line_until_one_differs)
{
    struct maker maker = make(1);
    struct audit_subject *subject = &maker.subject;
    const struct audit_plan plan = plan_of_noise();
    struct report report = report_of(subject, &plan);
    size_t lines = 0, all = 0, alike;
    for (; all < report.tensor_count[IN_FILES]; all += alike, lines++)
        alike = report_alike(&report, IN_FILES, all);
    ck_assert_uint_eq(lines, 12);
    ck_assert_uint_eq(all, report.tensor_count[IN_FILES]);
    report_free(&report);
    for (size_t k = 0; k < subject->stored_count; k++)
        if (strcmp(subject->stored[k].entry.name,
                   "model.layers.1.mlp.up_proj.weight") == 0)
            subject->stored[k].entry.shape[0]++;
    report = report_of(subject, &plan);
    for (lines = all = 0; all < report.tensor_count[IN_FILES]; lines++)
        all += report_alike(&report, IN_FILES, all);
    ck_assert_uint_eq(lines, 14);
    report_free(&report);
    unmake(&maker);
}
END_TEST

START_TEST(the_exit_status_is_the_verdict)
{
    for (int wrong = 0; wrong < 3; wrong++) {
        struct maker maker = make(1);
        struct bent bent;
        const struct audit_plan plan = plan_of_noise();
        if (wrong == 1)
            bend(&maker, &bent, SLOT_ZERO, 1);
        else if (wrong == 2)
            maker.subject.held[2].shape[0]++;
        struct report report = report_of(&maker.subject, &plan);
        ck_assert_int_eq(report_exit_status(&report), wrong != 0);
        report_free(&report);
        unmake(&maker);
    }
}
END_TEST

START_TEST(a_page_is_written_whatever_it_says)
{
    const char *path = in(new_directory(), "page.html");
    for (int wrong = 1; wrong >= 0; wrong--) {
        struct maker maker = make(1);
        struct bent bent;
        const struct audit_plan plan = plan_of_noise();
        unsigned char *bytes = NULL;
        size_t length;
        if (wrong)
            bend(&maker, &bent, SLOT_ZERO, 1);
        struct report report = report_of(&maker.subject, &plan);
        char *page = print(report_print_html, &report);
        expect_ok(report_write_page(&report, path, &error), &error);
        expect_ok(file_read(path, &bytes, &length, &error), &error);
        ck_assert_str_eq((char *)bytes, page);
        free(bytes);
        ck_assert_int_eq(report_write_page(&report, "no/such/place/page",
                                           &error), STATUS_IO);
        expect_named(&error, "no/such/place/page");
        free(page);
        report_free(&report);
        unmake(&maker);
    }
}
END_TEST

/* -------------------------------------------------------------- the command */

/* The named test of the lab's debrief. */
START_TEST(the_five_views_agree_for_every_family)
{
    static const char *const paths[] = {
        GOLDEN_DIR "/gpt2_tiny", GOLDEN_DIR "/gpt2_tiny_f16",
        GOLDEN_DIR "/gpt2_tiny_bf16", GOLDEN_DIR "/gpt2_vocab50257",
        GOLDEN_DIR "/llama_tiny", "book/checkpoint", "book/draft"
    };
    char line[800];
    for (size_t k = 0; k < LENGTH(paths) + FORMATS; k++) {
        const char *path = k < LENGTH(paths)
            ? paths[k] : write_format((enum written)(k - LENGTH(paths)));
        const char *page = in(new_directory(), "page.html");
        snprintf(line, sizeof line, "audit --model '%s' --repeats 1 --html"
                 " '%s'", path, page);
        const char *text = run_program(line, 0);
        for (int v = 0; v < VIEWS; v++) {
            char verdict[64];
            snprintf(verdict, sizeof verdict, "%s: holds\n",
                     view_title((enum view)v));
            ck_assert_msg(strstr(text, verdict) != NULL, "%s: %s", path,
                          text);
        }
        ck_assert_ptr_nonnull(strstr(text, "predictions hold\n"));
        unsigned char *bytes = NULL;
        size_t length;
        expect_ok(file_read(page, &bytes, &length, &error), &error);
        parse_page((const char *)bytes);
        free(bytes);
    }
}
END_TEST

START_TEST(a_mismatch_is_status_1)
{
    const char *directory = write_format(GPT2);
    char line[800];
    struct gpt_config other = small_gpt2_config();
    other.d_ff = 71;
    write_text(in(directory, "config.json"), gpt2_text(&other, ""));
    snprintf(line, sizeof line, "audit --model '%s' > /dev/null", directory);
    ck_assert_str_eq(run_program(line, 1), "");
    snprintf(line, sizeof line, "audit --model '%s' --json > '%s'", directory,
             in(directory, "report.json"));
    run_program(line, 1);
    unsigned char *bytes = NULL;
    size_t length;
    expect_ok(file_read(in(directory, "report.json"), &bytes, &length,
                        &error), &error);
    cJSON *json = NULL;
    expect_ok(json_parse(&json, (char *)bytes, length, &error), &error);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(json, "holds")));
    ck_assert_double_gt(json_number(json, "differ"), 0);
    ck_assert_double_gt(json_number(json, "unmeasured"), 0);
    ck_assert_ptr_nonnull(strstr(cJSON_GetStringValue(
        cJSON_GetObjectItem(json, "refusal")), "c_fc"));
    cJSON_Delete(json);
    free(bytes);
}
END_TEST

START_TEST(the_page_of_a_mismatch_is_written_whole)
{
    const char *directory = write_format(LLAMA_TIED);
    char line[1200];
    struct llama_config other = small_llama_config();
    other.tie_word_embeddings = true;
    other.n_layers = 2;
    write_text(in(directory, "config.json"), llama_text(&other, ""));
    const char *page = in(directory, "page.html");
    snprintf(line, sizeof line, "audit --model '%s' --html '%s' > /dev/null",
             directory, page);
    run_program(line, 1);
    unsigned char *bytes = NULL;
    size_t length;
    expect_ok(file_read(page, &bytes, &length, &error), &error);
    parse_page((const char *)bytes);
    ck_assert_ptr_nonnull(strstr((char *)bytes, "There is no model: "));
    ck_assert_ptr_nonnull(strstr((char *)bytes, "model.layers.2."));
    free(bytes);
}
END_TEST

START_TEST(a_page_that_cannot_be_written_is_an_error)
{
    const char *directory = new_directory();
    char line[1200];
    snprintf(line, sizeof line, "audit --model book/checkpoint --untimed"
             " --prompt-tokens 2 --steps 2 --html '%s/no/page.html'",
             directory);
    const char *text = run_program(line, 1);
    ck_assert_ptr_nonnull(strstr(text, "tinygpt audit: "));
    ck_assert_ptr_nonnull(strstr(text, "no/page.html: "));
    snprintf(line, sizeof line, "audit --model book/checkpoint --untimed"
             " --prompt-tokens 2 --steps 2 --html '%s'", directory);
    text = run_program(line, 1);
    ck_assert_ptr_nonnull(strstr(text, "tinygpt audit: "));
    ck_assert_ptr_nonnull(strstr(text, "predictions hold"));
}
END_TEST

START_TEST(equal_runs_without_a_clock_have_equal_reports)
{
    const char *directory = new_directory();
    char line[800];
    unsigned char *bytes[2];
    size_t lengths[2];
    for (int k = 0; k < 2; k++) {
        const char *path = in(directory, k == 0 ? "0" : "1");
        snprintf(line, sizeof line, "audit --model " GOLDEN_DIR "/llama_tiny"
                 " --untimed --seed 7 --html '%s' --json > '%s.json'", path,
                 path);
        run_program(line, 0);
        expect_ok(file_read(path, &bytes[k], &lengths[k], &error), &error);
    }
    ck_assert_uint_eq(lengths[0], lengths[1]);
    ck_assert_mem_eq(bytes[0], bytes[1], lengths[0]);
    free(bytes[0]);
    free(bytes[1]);
}
END_TEST

START_TEST(the_command_takes_its_prompt_and_its_bound)
{
    const char *text = run_program("audit --model book/checkpoint --untimed"
                                   " --prompt-ids 84,104,101 --steps 4"
                                   " --atol 0 --rtol 0.5", 0);
    ck_assert_ptr_nonnull(strstr(text, "prompt 3 tokens, then 4 steps"));
    ck_assert_ptr_nonnull(strstr(text, "bound 0 + 0.5 |x|"));
    ck_assert_ptr_null(strstr(text, "CPU"));
    text = run_program("audit --model book/checkpoint --steps 2", 0);
    ck_assert_ptr_nonnull(strstr(text, "CPU, diagnostic"));
    text = run_program("audit --help", 0);
    ck_assert_ptr_nonnull(strstr(text, "--html FILE"));
}
END_TEST

START_TEST(the_command_refuses_what_it_cannot_answer)
{
    run_program("audit", 2);
    run_program("audit --model", 2);
    run_program("audit --model book/checkpoint --nothing", 2);
    run_program("audit --model book/checkpoint --steps 0", 2);
    run_program("audit --model book/checkpoint --prompt-ids 1,x", 2);
    run_program("audit --model book/checkpoint --prompt-ids 1"
                " --prompt-tokens 2", 2);
    run_program("audit --model book/checkpoint --html", 2);
    run_program("audit --model no/such/model", 1);
    run_program("audit --model book/checkpoint --prompt-ids ''", 1);
    run_program("audit --model book/checkpoint --prompt-ids 256", 1);
    run_program("audit --model book/checkpoint --steps 128", 1);
    run_program("audit --model book/checkpoint --atol -1", 1);
    run_program("audit --model README.md", 1);
}
END_TEST

/* -------------------------------------------------------------------- table */

static const struct test tests[] = {
    TEST(a_number_that_is_not_finite_is_unknown, 1, "make a quantity"),
    TEST(an_exact_number_holds_when_it_is_equal_and_never_else, 1, EQUAL),
    TEST(what_was_predicted_and_not_measured_fails, 1, SILENT),
    TEST(what_was_found_and_not_predicted_fails, 1, STRANGE),
    TEST(a_time_is_never_a_mismatch, 1, CLOCK),
    TEST(what_is_free_or_on_paper_cannot_fail_either, 1,
         "judge one number"),
    TEST(a_gpt2_file_has_the_matrices_of_its_blocks_across, 1, TURNED),
    TEST(one_tensor_of_llama2c_holds_all_layers, 1, LAYERS),
    TEST(the_registry_has_our_names_and_shapes, 1, "the form of one tensor"),
    TEST(a_text_in_a_page_is_a_text, 1, HTML),
    TEST(a_text_on_a_terminal_commands_nothing, 1,
         "write a text for a terminal"),
    TEST(a_text_in_json_reads_back, 1, JSON_TEXT),
    TEST(random_bytes_come_out_as_characters, 1,
         "take the next character of a text"),
    TEST(numbers_and_names_are_made_for_people, 1, "a number for people"),
    TEST(the_diary_counts_rows_and_calls_of_each_phase, 1, DIARY),
    TEST(a_prompt_is_one_call_and_a_step_is_one, 1, PROMPT),
    TEST(written_bytes_are_those_of_the_tokens_so_far, 1, MARK),
    TEST(the_continuation_is_the_greedy_one, 1,
         "the next token of a greedy loop"),
    TEST(a_plan_that_cannot_be_run_is_refused_by_name, 1,
         "refuse a plan that cannot be run"),
    TEST(a_tensor_differs_in_shape_or_in_bytes, 1, TENSOR),
    TEST(a_tensor_that_is_not_there_differs, 1,
         "list what was predicted of the files"),
    TEST(a_tensor_that_nobody_predicted_differs, 1, BESIDES),
    TEST(the_registry_is_held_against_the_prediction_too, 1,
         "list the tensors of the model"),
    TEST(another_config_is_named_by_its_number, 2,
         "the numbers of parameter ownership"),
    TEST(stored_and_active_parameters_stand_apart, 2, ACTIVE),
    TEST(rows_are_judged_by_their_number_and_not_by_their_largest, 2, ROWS),
    TEST(a_shifted_position_is_named_by_step_position_and_layer, 2,
         "the words of a mismatch"),
    TEST(a_slot_that_is_overwritten_is_seen_in_the_outputs_alone, 2,
         "hold the passes against recomputation"),
    TEST(a_slot_too_many_is_seen_in_the_bytes_alone, 2, MARK),
    TEST(a_value_that_is_not_written_is_read_as_a_mark, 2,
         "begin the pass with a fresh cache"),
    TEST(prefill_and_decode_have_their_own_times, 2,
         "feed the loop, and watch it"),
    TEST(no_clock_makes_a_report_fail, 2, "the times of a phase"),
    TEST(every_format_is_predicted_tensor_by_tensor, 2,
         "the conventions of two formats"),
    TEST(buffers_are_observed_and_a_copied_head_is_no_parameter, 2,
         "add what the files hold"),
    TEST(a_directory_that_the_loader_refuses_is_still_a_subject, 2, REFUSED),
    TEST(what_is_no_checkpoint_is_no_subject, 2, "open and close a subject"),
    TEST(each_failed_allocation_is_an_error_that_leaves_nothing, 2,
         "make a report"),
    TEST(alike_tensors_are_one_line_until_one_differs, 1,
         "what a reader asks of a report"),
    TEST(a_page_is_whole_and_asks_nobody_for_anything, 2,
         "write the whole page"),
    TEST(a_hostile_name_is_a_name_on_the_page, 2, HTML),
    TEST(tidy_has_nothing_to_say_of_a_page, 2, "write the whole page"),
    TEST(every_digit_of_a_count_is_in_the_json, 1, DIGITS),
    TEST(json_says_what_the_report_says, 2, "write the object"),
    TEST(a_view_that_fails_says_where_to_return_and_no_other_does, 2, BACK),
    TEST(a_mismatch_is_in_all_three_printings, 2,
         "the words of a mismatch"),
    TEST(the_exit_status_is_the_verdict, 2, STATUS),
    TEST(a_page_is_written_whatever_it_says, 2, PAGE),
    TEST(the_five_views_agree_for_every_family, 3,
         "add the numbers of all views"),
    TEST(a_mismatch_is_status_1, 3, STATUS),
    TEST(the_page_of_a_mismatch_is_written_whole, 3, PAGE),
    TEST(a_page_that_cannot_be_written_is_an_error, 3, PAGE),
    TEST(equal_runs_without_a_clock_have_equal_reports, 3, "choose the plan"),
    TEST(the_command_takes_its_prompt_and_its_bound, 3,
         "the options of an audit"),
    TEST(the_command_refuses_what_it_cannot_answer, 3,
         "the options of an audit")
};

SUITE("22: the report", tests);
