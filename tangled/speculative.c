#include "speculative.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "chunked_prefill.h"
#include "rejection.h"
#include "request.h"
#include "sampler.h"

struct speculation {
    struct generate_input input; /* a copy; its ids are not used again */
    int draft_tokens;            /* K */
    int vocab_size;
    struct request *target, *draft;
    int32_t *ids;                /* [T + max_new_tokens] */
    int tokens;                  /* n; proposals stand behind them */
    bool ended;                  /* by EOS, or by the caller */
    struct generator generator;  /* the caller's, copied */
    double *probabilities;       /* p [V], then q [K,V]; NULL when greedy */
    struct speculative_counts counts;
};

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int cached(struct request *request)
{
    return kv_cache_lengths(request_cache(request))[0];
}

struct speculation_view speculation_view(const struct speculation *run)
{
    const int limit = run->input.tokens + run->input.max_new_tokens;
    return (struct speculation_view){
        .ids = run->ids, .tokens = run->tokens,
        .done = run->ended || run->tokens == limit,
        .target_cached = cached(run->target),
        .draft_cached = cached(run->draft), .counts = run->counts
    };
}

static enum status models_check(const struct causal_lm *target,
                                const struct causal_lm *draft,
                                const struct generate_input *input,
                                struct error *error)
{
    if (draft->vocab_size != target->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "draft: vocab_size: expected the target's %d, got"
                         " %d", target->vocab_size, draft->vocab_size);
    const int room = smaller(target->context_length, draft->context_length);
    if (input->tokens < 1 || input->tokens > room)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d", room,
                         input->tokens);
    if (input->max_new_tokens < 0
        || input->max_new_tokens > room - input->tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: expected 0 to %d, got %d",
                         room - input->tokens, input->max_new_tokens);
    return STATUS_OK;
}

static enum status check(const struct causal_lm *target,
                         const struct causal_lm *draft,
                         const struct generate_input *input,
                         int draft_tokens, struct error *error)
{
    const char *missing = target == NULL ? "target"
                          : draft == NULL ? "draft"
                          : input == NULL ? "input"
                          : input->ids == NULL ? "ids" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (input->batch != 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected 1 row, got %d", input->batch);
    if (draft_tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "draft_tokens: expected at least 1, got %d",
                         draft_tokens);
    enum status status = models_check(target, draft, input, error);
    if (status != STATUS_OK)
        return status;
    for (int t = 0; t < input->tokens; t++)
        if (input->ids[t] < 0 || input->ids[t] >= target->vocab_size)
            return error_set(error, STATUS_INVALID,
                             "ids[%d]: expected 0 to %d, got %ld", t,
                             target->vocab_size - 1, (long)input->ids[t]);
    if (input->eos_token_id < NO_EOS
        || input->eos_token_id >= target->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d to %d, got %ld", NO_EOS,
                         target->vocab_size - 1, (long)input->eos_token_id);
    if (!(input->temperature >= 0) || isinf(input->temperature))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number >= 0, got %g",
                         input->temperature);
    if (input->temperature > 0 && input->generator == NULL)
        return error_set(error, STATUS_INVALID,
                         "generator: temperature %g needs one, got none",
                         input->temperature);
    return STATUS_OK;
}

void speculation_free(struct speculation **run)
{
    if (run == NULL || *run == NULL)
        return;
    request_free(&(*run)->target);
    request_free(&(*run)->draft);
    free((*run)->ids);
    free((*run)->probabilities);
    free(*run);
    *run = NULL;
}

static enum status make_room(struct speculation *run,
                             const struct causal_lm *target,
                             const struct causal_lm *draft,
                             struct error *error)
{
    const int prompt = run->input.tokens;
    const int longest = prompt + run->input.max_new_tokens;
    const int left = run->input.max_new_tokens;
    const int most = left < 1 ? 0 : smaller(run->draft_tokens, left - 1);
    const size_t rows = 1 + (size_t)most, width = (size_t)run->vocab_size;
    run->ids = malloc((size_t)longest * sizeof *run->ids);
    if (run->input.temperature > 0)
        run->probabilities = calloc(rows, width * sizeof *run->probabilities);
    if (run->ids == NULL
        || (run->input.temperature > 0 && run->probabilities == NULL))
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a text of %d ids and %zu rows of"
                         " probabilities", longest, rows);
    memcpy(run->ids, run->input.ids, (size_t)prompt * sizeof *run->ids);
    run->tokens = prompt;
    const int chunk = smaller(prompt - 1, PROMPT_CHUNK);
    enum status status = request_new(&run->target, target, 1, longest,
                                     larger(chunk, most + 1), error);
    if (status == STATUS_OK)
        status = request_new(&run->draft, draft, 1, longest,
                             smaller(larger(chunk, 2), longest), error);
    return status;
}

static enum status read_prompt(const struct speculation *run,
                               struct request *request, int *calls,
                               struct error *error)
{
    const float *logits;
    const int tokens = run->tokens - 1;
    if (run->input.max_new_tokens == 0 || tokens == 0)
        return STATUS_OK;
    *calls = prefill_calls(tokens, PROMPT_CHUNK);
    return request_prefill(request, run->ids, tokens, PROMPT_CHUNK, &logits,
                           error);
}

enum status speculation_new(struct speculation **run,
                            const struct causal_lm *target,
                            const struct causal_lm *draft,
                            const struct generate_input *input,
                            int draft_tokens, struct error *error)
{
    enum status status = check(target, draft, input, draft_tokens, error);
    if (status != STATUS_OK)
        return status;
    struct speculation *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a run");
    made->input = *input;
    made->draft_tokens = draft_tokens;
    made->vocab_size = target->vocab_size;
    if (input->generator != NULL)
        made->generator = *input->generator;
    status = make_room(made, target, draft, error);
    if (status == STATUS_OK)
        status = read_prompt(made, made->target, &made->counts.target_calls,
                             error);
    if (status == STATUS_OK)
        status = read_prompt(made, made->draft, &made->counts.draft_calls,
                             error);
    if (status == STATUS_OK)
        *run = made;
    else
        speculation_free(&made);
    return status;
}

static double *proposal_probabilities(const struct speculation *run, int i)
{
    return run->probabilities + (size_t)(1 + i) * (size_t)run->vocab_size;
}

static void guess(struct speculation *run, const float *logits, int i)
{
    int32_t *proposal = run->ids + run->tokens + i;
    if (run->probabilities == NULL)
        *proposal = sampler_greedy(logits, run->vocab_size);
    else {
        double *q = proposal_probabilities(run, i);
        token_probabilities(logits, run->vocab_size, run->input.temperature, q);
        *proposal = weighted_draw(q, run->vocab_size, &run->generator);
    }
}

static enum status propose(struct speculation *run, int *proposals,
                           struct error *error)
{
    const int left = run->input.tokens + run->input.max_new_tokens - run->tokens;
    const int room = smaller(run->draft_tokens, left - 1);
    enum status status = STATUS_OK;
    for (int i = 0; i < room && status == STATUS_OK; i++) {
        const float *logits = NULL;
        const int32_t eos = run->input.eos_token_id;
        if (i > 0 && run->ids[run->tokens + i - 1] == eos)
            break;
        const int seen = cached(run->draft);
        status = request_feed(run->draft, run->ids + seen, run->tokens + i - seen,
                              true, &logits, error);
        if (status == STATUS_OK)
            status = sampler_check(logits, run->vocab_size, error);
        if (status == STATUS_OK) {
            guess(run, logits, i);
            (*proposals)++;
        }
    }
    return status;
}

static int32_t judge(struct speculation *run, const float *row, int i,
                     int proposals)
{
    if (run->probabilities == NULL)
        return sampler_greedy(row, run->vocab_size);
    double *p = run->probabilities;
    token_probabilities(row, run->vocab_size, run->input.temperature, p);
    if (i == proposals)
        return weighted_draw(p, run->vocab_size, &run->generator);
    return rejection_answer(p, proposal_probabilities(run, i),
                            run->vocab_size, run->ids[run->tokens + i],
                            &run->generator);
}

static enum status verify(struct speculation *run, int proposals,
                          int *accepted, int32_t *answer,
                          struct error *error)
{
    const float *logits = NULL, *row;
    enum status status = STATUS_OK;
    const int seen = cached(run->target);
    status = request_feed(run->target, run->ids + seen,
                          run->tokens + proposals - seen, false, &logits, error);
    bool agreed = status == STATUS_OK;
    while (agreed) {
        row = logits + (size_t)*accepted * (size_t)run->vocab_size;
        status = sampler_check(row, run->vocab_size, error);
        if (status != STATUS_OK)
            break;
        *answer = judge(run, row, *accepted, proposals);
        agreed = *accepted < proposals
                 && *answer == run->ids[run->tokens + *accepted];
        *accepted += agreed;
    }
    return status;
}

static void cut(struct request *request, int tokens)
{
    const int32_t length = smaller(cached(request), tokens);
    /* not longer than it is: cannot be refused */
    (void)kv_cache_truncate(request_cache(request), &length, NULL);
}

static void say(struct speculation *run, int32_t id)
{
    const struct generate_input *input = &run->input;
    run->ids[run->tokens++] = id;
    if (id == input->eos_token_id)
        run->ended = true;
    if (input->on_step != NULL && !input->on_step(input->context, &id, 1))
        run->ended = true;
}

static void settle(struct speculation *run, int proposals, int accepted,
                   int32_t answer)
{
    struct speculative_counts *counts = &run->counts;
    const int before = run->tokens;
    for (int i = 0; i < accepted && !run->ended; i++)
        say(run, run->ids[run->tokens]);
    cut(run->target, run->tokens);
    cut(run->draft, run->tokens);
    if (!run->ended)
        say(run, answer);
    counts->accepted += smaller(accepted, run->tokens - before);
    counts->proposed += proposals;
    counts->draft_calls += proposals;
    counts->target_calls++;
    if (run->tokens - before > accepted)
        ++*(accepted < proposals ? &counts->replaced : &counts->bonus);
}

enum status speculation_round(struct speculation *run, struct error *error)
{
    if (speculation_view(run).done)
        return STATUS_OK;
    const struct speculation_view before = speculation_view(run);
    const struct generator generator = run->generator;
    int proposals = 0, accepted = 0;
    int32_t answer = 0;
    enum status status = propose(run, &proposals, error);
    if (status == STATUS_OK)
        status = verify(run, proposals, &accepted, &answer, error);
    if (status == STATUS_OK)
        settle(run, proposals, accepted, answer);
    else {
        cut(run->target, before.target_cached);
        cut(run->draft, before.draft_cached);
        run->generator = generator;
    }
    return status;
}

enum status speculative_generate(const struct causal_lm *target,
                                 const struct causal_lm *draft,
                                 const struct generate_input *input,
                                 int draft_tokens,
                                 struct speculative_output *output,
                                 struct error *error)
{
    struct speculation *run = NULL;
    if (output == NULL || output->ids != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct");
    enum status status = speculation_new(&run, target, draft, input,
                                         draft_tokens, error);
    while (status == STATUS_OK && !speculation_view(run).done)
        status = speculation_round(run, error);
    if (status == STATUS_OK) {
        *output = (struct speculative_output){run->ids, run->tokens, run->counts};
        run->ids = NULL;
        if (input->generator != NULL)
            *input->generator = run->generator;
    }
    speculation_free(&run);
    return status;
}

void speculative_output_free(struct speculative_output *output)
{
    if (output != NULL) {
        free(output->ids);
        *output = (struct speculative_output){0};
    }
}
