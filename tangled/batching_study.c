#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "batching_study.h"
#include "slots.h"

void batch_lengths(uint64_t seed, int mean, int spread, int longest,
                   int count, int *wanted)
{
    enum { LENGTH_STREAM = 18 };
    struct generator generator;
    generator_seed(&generator, seed, LENGTH_STREAM);
    for (int k = 0; k < count; k++) {
        const double u = generator_uniform(&generator);
        const double half = mean * (spread / 100.0);
        double length = floor(mean - half + u * (2 * half + 1));
        if (spread == GEOMETRIC)
            length = mean > 1 ? 1 + floor(log1p(-u) / log1p(-1.0 / mean)) : 1;
        wanted[k] = length < 1 ? 1
                    : length > longest ? longest : (int)length;
    }
}

static int pretended(enum batch_rule rule, const struct batch_load *load,
                     int slots, int k)
{
    int most = load->wanted[k];
    const int first = k / slots * slots;
    for (int other = first; rule == BATCH_STATIC && other < load->count
                            && other < first + slots; other++)
        if (load->wanted[other] > most)
            most = load->wanted[other];
    return most;
}

struct counting {
    enum batch_rule rule;
    const struct schedule_limits *limits;
    const struct batch_load *load;
    const struct call_cost *cost;
    batch_watcher *watcher;
    void *context;
    struct slot_table *table;
    struct slot_share *shares;   /* [slots] */
    int *request;                /* [2 slots] by place */
    int next;                    /* request to come */
    struct batch_count count;
};

static enum status let_in(struct counting *counting, struct error *error)
{
    const int slots = counting->limits->slots;
    const int in = slot_table_count(counting->table);
    const int room = counting->rule == BATCH_CONTINUOUS ? 2 * slots - in
                     : in == 0 ? slots : 0;
    enum status status = STATUS_OK;
    for (int k = 0; k < room && counting->next < counting->load->count
                    && status == STATUS_OK; k++) {
        int place = 0;
        status = slot_table_join(
            counting->table, counting->load->prompt,
            pretended(counting->rule, counting->load, slots, counting->next),
            &place, error);
        if (status == STATUS_OK)
            counting->request[place] = counting->next++;
    }
    return status;
}

static void count_share(struct counting *counting, int slot,
                        const struct slot_share *share)
{
    const struct batch_load *load = counting->load;
    const int request = counting->request[share->place];
    const int fed = share->before + share->tokens;
    const bool over = fed > load->prompt + load->wanted[request] - 1;
    struct batch_count *count = &counting->count;
    count->busy += !over;
    count->tokens += share->emits && !over;
    count->time += share->tokens * counting->cost->token
                   + call_keys(share->before, share->tokens)
                     * counting->cost->pair;
    if (counting->watcher != NULL)
        counting->watcher(counting->context, count->steps, slot, request,
                          share->before < load->prompt, over);
}

static void count_step(struct counting *counting)
{
    const int slots = counting->limits->slots;
    slot_table_plan(counting->table, counting->shares);
    for (int slot = 0; slot < slots; slot++)
        if (counting->shares[slot].tokens > 0)
            count_share(counting, slot, &counting->shares[slot]);
    slot_table_enter(counting->table);
    for (int slot = 0; slot < slots; slot++) {
        const struct slot_share *share = &counting->shares[slot];
        if (share->tokens > 0
            && share->before + share->tokens
               == counting->load->prompt - 1
                  + pretended(counting->rule, counting->load, slots,
                              counting->request[share->place]))
            slot_table_leave(counting->table, share->place);
    }
    counting->count.time += counting->cost->call;
    counting->count.steps++;
}

static enum status load_check(const struct batch_load *load,
                              struct error *error)
{
    if (load->count < 1 || load->prompt < 1)
        return error_set(error, STATUS_INVALID,
                         "%s: expected at least 1, got %d",
                         load->count < 1 ? "count" : "prompt",
                         load->count < 1 ? load->count : load->prompt);
    return STATUS_OK;
}

static enum status count_all(struct counting *counting, struct error *error)
{
    const size_t slots = (size_t)counting->limits->slots;
    enum status status = slot_table_new(&counting->table, counting->limits,
                                        counting->limits->slots, error);
    if (status != STATUS_OK)
        return status;
    counting->shares = calloc(slots, sizeof *counting->shares);
    counting->request = calloc(2 * slots, sizeof *counting->request);
    if (counting->shares == NULL || counting->request == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %zu slots", slots);
    while (status == STATUS_OK
           && (counting->next < counting->load->count
               || slot_table_count(counting->table) > 0)) {
        status = let_in(counting, error);
        if (status == STATUS_OK)
            count_step(counting);
    }
    return status;
}

enum status batching_count(enum batch_rule rule,
                           const struct schedule_limits *limits,
                           const struct batch_load *load,
                           const struct call_cost *cost,
                           batch_watcher *watcher, void *context,
                           struct batch_count *result, struct error *error)
{
    struct counting counting = {
        .rule = rule, .limits = limits, .load = load, .cost = cost,
        .watcher = watcher, .context = context
    };
    enum status status = load_check(load, error);
    if (status == STATUS_OK)
        status = count_all(&counting, error);
    if (status == STATUS_OK)
        *result = counting.count;
    slot_table_free(&counting.table);
    free(counting.shares);
    free(counting.request);
    return status;
}

struct timing_run {
    enum batch_rule rule;
    const struct batch_load *load;
    int slots;
    struct slots *served;
    int32_t *prompts;            /* [count,T] */
    int next;                    /* request to come */
};

static enum status submit_some(struct timing_run *run, struct error *error)
{
    const struct slots_counts counts = slots_counts(run->served);
    const int in = counts.waiting + counts.seated;
    const int room = run->rule == BATCH_CONTINUOUS ? 2 * run->slots - in
                     : in == 0 ? run->slots : 0;
    enum status status = STATUS_OK;
    for (int k = 0; k < room && run->next < run->load->count
                    && status == STATUS_OK; k++) {
        const struct slot_request request = {
            .ids = run->prompts
                   + (size_t)run->next * (size_t)run->load->prompt,
            .tokens = run->load->prompt, .eos_token_id = NO_EOS,
            .max_new_tokens = pretended(run->rule, run->load, run->slots,
                                        run->next)
        };
        int64_t ticket;
        status = slots_submit(run->served, &request, &ticket, error);
        run->next++;
    }
    return status;
}

static enum status set_up(struct timing_run *run, const struct causal_lm *lm,
                          const struct schedule_limits *limits, uint64_t seed,
                          struct error *error)
{
    const struct batch_load *load = run->load;
    const size_t tokens = (size_t)load->prompt;
    struct generator generator;
    int longest = 1;
    for (int k = 0; k < load->count; k++)
        if (load->wanted[k] > longest)
            longest = load->wanted[k];
    run->prompts = calloc((size_t)load->count, tokens * sizeof (int32_t));
    if (run->prompts == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d prompts",
                         load->count);
    generator_seed(&generator, seed, 1);
    for (size_t k = 0; k < (size_t)load->count * tokens; k++)
        run->prompts[k] = (int32_t)(generator_uniform(&generator)
                                    * lm->vocab_size);
    const struct slots_limits slots = {
        limits->slots, load->prompt + longest - 1, limits->budget,
        limits->slots
    };
    return slots_new(&run->served, lm, &slots, error);
}

enum status batching_time(enum batch_rule rule, const struct causal_lm *lm,
                          const struct schedule_limits *limits,
                          const struct batch_load *load, uint64_t seed,
                          struct batch_time *result, struct error *error)
{
    struct timing_run run = {.rule = rule, .load = load,
                             .slots = limits->slots};
    struct timespec begin, end;
    bool more = true;
    enum status status = load_check(load, error);
    if (status == STATUS_OK)
        status = set_up(&run, lm, limits, seed, error);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (status == STATUS_OK && (more || run.next < load->count)) {
        status = submit_some(&run, error);
        if (status == STATUS_OK)
            status = slots_step(run.served, &more, error);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (status == STATUS_OK) {
        const struct slots_counts counts = slots_counts(run.served);
        *result = (struct batch_time){
            .seconds = (double)(end.tv_sec - begin.tv_sec)
                       + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec),
            .steps = counts.steps, .calls = counts.calls
        };
        for (int k = 0; k < load->count; k++)
            result->tokens += load->wanted[k];
    }
    slots_free(&run.served);
    free(run.prompts);
    return status;
}
