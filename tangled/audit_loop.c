#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "audit_loop.h"
#include "held.h"
#include "llama_experts.h"
#include "request.h"

static const uint32_t mark = 0x7fc5a9d3;

static size_t visit(const struct past_key_values *storage,
                    void (*visitor)(const struct tensor *, size_t *))
{
    size_t bytes = 0;
    for (int l = 0; l < storage->n_layers; l++) {
        visitor(&storage->layers[l].key, &bytes);
        visitor(&storage->layers[l].value, &bytes);
    }
    return bytes;
}

static void mark_tensor(const struct tensor *tensor, size_t *ignored)
{
    (void)ignored;
    for (size_t k = 0; k < tensor_size(tensor); k++)
        memcpy(&tensor->data[k], &mark, sizeof mark);
}

static void count_tensor(const struct tensor *tensor, size_t *bytes)
{
    for (size_t k = 0; k < tensor_size(tensor); k++)
        *bytes += memcmp(&tensor->data[k], &mark, sizeof mark) != 0
                  ? sizeof (float) : 0;
}

struct diary {
    struct causal_lm inner;
    const struct llama *llama;      /* with experts, or NULL */
    struct audit_run *run;          /* NULL: not now */
    int phase;
};

static void note_experts(const struct diary *diary, const struct step *step,
                         float *scratch)
{
    const struct audit_run *run = diary->run;
    for (int l = 0; l < run->n_layers; l++) {
        const struct moe_routing routing =
            llama_routing(diary->llama, step, scratch, l);
        size_t *kept = run->loads + (ptrdiff_t)l * run->n_experts;
        for (int e = 0; e < run->n_experts; e++)
            kept[e] += (size_t)(routing.offsets[e + 1] - routing.offsets[e]);
    }
}

static void pass_on(const void *model, const struct step *step,
                    float *scratch)
{
    const struct diary *diary = model;
    diary->inner.run(diary->inner.model, step, scratch);
    if (diary->run == NULL)
        return;
    diary->run->calls[diary->phase]++;
    diary->run->rows[diary->phase] += (size_t)step->batch
                                      * (size_t)step->tokens;
    if (diary->llama != NULL)
        note_experts(diary, step, scratch);
}

static size_t pass_on_size(const void *model, int batch, int tokens,
                           int slots)
{
    const struct diary *diary = model;
    return diary->inner.scratch_size(diary->inner.model, batch, tokens,
                                     slots);
}

static int32_t largest(const float *logits, int count)
{
    int best = 0;
    for (int v = 1; v < count; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

static double look(const struct audit_plan *plan)
{
    return plan->watch.now != NULL ? plan->watch.now(plan->watch.state) : 0;
}

static enum status feed(struct request *request, const int32_t *ids,
                        int tokens, const struct audit_plan *plan,
                        const float **logits, double *seconds,
                        struct error *error)
{
    const double began = look(plan);
    const enum status status = request_feed(request, ids, tokens, true,
                                            logits, error);
    *seconds += look(plan) - began;
    return status;
}

static enum status go_through(struct request *request,
                              const struct audit_plan *plan,
                              struct diary *diary, struct audit_run *run,
                              struct error *error)
{
    const int vocab_size = diary->inner.vocab_size;
    const bool first = diary->run != NULL;
    const float *logits = NULL;
    double seconds[PHASES] = {0, 0};
    enum status status;
    struct kv_cache *cache = request_cache(request);
    const struct past_key_values *storage = kv_cache_storage(cache);
    kv_cache_reset(cache);
    diary->phase = PREFILL;
    if (first)
        visit(storage, mark_tensor);
    status = feed(request, plan->prompt, plan->prompt_tokens, plan, &logits,
                  &seconds[PREFILL], error);
    if (first)
        run->prompt_bytes = visit(storage, count_tensor);
    diary->phase = DECODE;
    for (int k = 0; k < plan->steps && status == STATUS_OK; k++) {
        if (first)
            run->continuation[k] = largest(logits, vocab_size);
        status = feed(request, &run->continuation[k], 1, plan, &logits,
                      &seconds[DECODE], error);
        if (first && k == 0)
            run->step_bytes = visit(storage, count_tensor);
    }
    if (first)
        run->all_bytes = visit(storage, count_tensor);
    for (int p = 0; p < PHASES && plan->watch.now != NULL; p++)
        run->seconds[p] = fmin(run->seconds[p], seconds[p]);
    return status;
}

static enum status hold_rows(struct request *request,
                             const struct causal_lm *lm,
                             const struct audit_plan *plan,
                             struct audit_run *run, struct error *error)
{
    const struct generation text = {
        plan->prompt, plan->prompt_tokens, run->continuation, plan->steps
    };
    struct decoder decoder;
    enum status status = request_decoder(request, &decoder, error);
    if (status == STATUS_OK)
        status = per_step_compare(lm, &decoder, &text, &plan->bound,
                                  run->differences, &run->identity, error);
    run->compared = run->identity.steps
                    + (run->identity.verdict == LOGITS_DIFFER);
    return status;
}

void audit_run_free(struct audit_run *run)
{
    free(run->continuation);
    free(run->differences);
    free(run->loads);
    *run = (struct audit_run){.cached = 0};
}

static enum status make_room(struct audit_run *run,
                             const struct llama *llama,
                             const struct audit_plan *plan,
                             struct error *error)
{
    const size_t steps = (size_t)plan->steps;
    run->continuation = calloc(steps, sizeof *run->continuation);
    run->differences = calloc(steps, sizeof *run->differences);
    if (llama != NULL) {
        run->n_layers = llama_config(llama)->n_layers;
        run->n_experts = llama_config(llama)->n_experts;
        run->loads = calloc((size_t)run->n_layers * (size_t)run->n_experts,
                            sizeof *run->loads);
    }
    if (run->continuation == NULL || run->differences == NULL
        || (llama != NULL && run->loads == NULL))
        return error_set(error, STATUS_NO_MEMORY, "no memory for the"
                         " evidence of %d steps", plan->steps);
    return STATUS_OK;
}

static enum status plan_check(const struct audit_plan *plan,
                              const struct causal_lm *lm,
                              struct error *error)
{
    const struct generation prompt = {
        plan->prompt, plan->prompt_tokens, NULL, 0
    };
    const int room = lm->context_length - plan->prompt_tokens;
    const enum status status = generation_check(&prompt, lm->vocab_size,
                                                lm->context_length, error);
    if (status == STATUS_OK && (plan->steps < 1 || plan->steps > room))
        return error_set(error, STATUS_INVALID, "steps: expected 1 to %d"
                         " behind %d tokens of a context of %d, got %d",
                         room, plan->prompt_tokens, lm->context_length,
                         plan->steps);
    if (status == STATUS_OK && plan->repeats < 1)
        return error_set(error, STATUS_INVALID,
                         "repeats: expected at least 1, got %d",
                         plan->repeats);
    return status;
}

enum status audit_run_new(struct audit_run *run, const struct causal_lm *lm,
                          const struct llama *llama,
                          const struct audit_plan *plan,
                          struct error *error)
{
    struct audit_run made = {.seconds = {INFINITY, INFINITY}};
    struct diary diary = {.inner = *lm, .llama = llama, .run = &made};
    struct causal_lm watched = *lm;
    struct request *request = NULL;
    enum status status = plan_check(plan, lm, error);
    if (status != STATUS_OK)
        return status;
    watched.model = &diary;
    watched.run = pass_on;
    watched.scratch_size = pass_on_size;
    status = make_room(&made, llama, plan, error);
    if (status == STATUS_OK)
        status = request_new(&request, &watched, 1,
                             plan->prompt_tokens + plan->steps,
                             plan->prompt_tokens, error);
    for (int k = 0; k < plan->repeats && status == STATUS_OK; k++) {
        status = go_through(request, plan, &diary, &made, error);
        diary.run = NULL;
    }
    if (status == STATUS_OK) {
        struct kv_cache *cache = request_cache(request);
        made.storage_bytes = held_by_cache(kv_cache_storage(cache));
        made.cached = kv_cache_lengths(cache)[0];
        status = hold_rows(request, lm, plan, &made, error);
    }
    request_free(&request);
    if (status == STATUS_OK)
        *run = made;
    else
        audit_run_free(&made);
    return status;
}
