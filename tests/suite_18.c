/* Chapter 18: slots. The line by counting, then what each call is fed, by a
   handle that writes down what it is asked, then texts against texts alone:
   scripts for traces of many requests, models of both families for bits. */
#include <limits.h>
#include <math.h>
#include "batching_study.h"
#include "slots.h"
#include "sampler.h"
#include "support/allocator.h"
#include "support/cached.h"
#include "support/compare.h"
#include "support/llamas.h"
#include "support/program.h"
#include "support/scripted.h"

static struct error error;

/* --------------------------------------------------------------- the line */

enum { R_MAX = 8, PLACES = 64 };

static struct slot_table *line_new(int slots, int budget, int waiting)
{
    struct slot_table *table = NULL;
    const struct schedule_limits limits = {budget, slots};
    expect_ok(slot_table_new(&table, &limits, waiting, &error), &error);
    return table;
}

static int join(struct slot_table *table, int prompt, int wanted)
{
    int place = -7;
    expect_ok(slot_table_join(table, prompt, wanted, &place, &error),
              &error);
    return place;
}

static bool has_slot(const struct slot_table *table, int place)
{
    return slot_table_slot(table, place) != NO_SLOT;
}

static void plan_and_enter(struct slot_table *table)
{
    struct slot_share shares[R_MAX];
    slot_table_plan(table, shares);
    slot_table_enter(table);
}

START_TEST(a_line_of_nothing_is_refused_by_name)
{
    struct slot_table *table = NULL;
    const struct { int budget, slots, waiting; const char *says; } wrong[] = {
        {0, 1, 1, "budget: expected at least 1, got 0"},
        {4, 0, 1, "slots: expected 1 to the budget 4, got 0"},
        {4, 5, 1, "slots: expected 1 to the budget 4, got 5"},
        {4, 2, -1, "waiting: expected 0 to 2147483645, got -1"},
        {4, 2, INT_MAX - 1, "waiting: expected 0 to 2147483645, got"
                            " 2147483646"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        const struct schedule_limits limits = {wrong[k].budget,
                                               wrong[k].slots};
        ck_assert_int_eq(slot_table_new(&table, &limits, wrong[k].waiting,
                                        &error), STATUS_INVALID);
        expect_facts(error.message, wrong[k].says);
        ck_assert_ptr_null(table);
    }
    ck_assert_int_eq(slot_table_new(&table, NULL, 1, &error),
                     STATUS_INVALID);
    table = line_new(2, 2, 1);
    int place = -7;
    ck_assert_int_eq(slot_table_join(table, 0, 1, &place, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(slot_table_join(table, 1, 0, &place, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(place, -7);
    ck_assert_int_eq(slot_table_count(table), 0);
    slot_table_free(&table);
}
END_TEST

START_TEST(making_a_line_survives_each_failed_allocation)
{
    const struct schedule_limits limits = {4, 3};
    for (long n = 1; ; n++) {
        struct slot_table *table = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = slot_table_new(&table, &limits, 2, &error);
        bool failed = allocator_stop();
        if (!failed)
            slot_table_free(&table);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(table);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed) {
            ck_assert_int_gt(n, 6);
            break;
        }
    }
    struct slot_table *none = NULL;
    slot_table_free(&none);
    slot_table_free(NULL);
}
END_TEST

START_TEST(the_first_to_come_is_the_first_to_begin)
{
    struct slot_table *table = line_new(4, 4, 3);
    struct slot_share shares[4];
    int places[4], begun = 0;
    for (int k = 0; k < 4; k++)
        places[k] = join(table, 3, 9);
    for (int step = 0; step < 8; step++) {
        slot_table_plan(table, shares);
        while (begun < 4 && has_slot(table, places[begun]))
            begun++;
        for (int k = begun; k < 4; k++)
            ck_assert_msg(!has_slot(table, places[k]), "step %d: request %d"
                          " has begun, and request %d waits", step, k,
                          begun);
        slot_table_enter(table);
    }
    ck_assert_int_eq(begun, 4);
    slot_table_free(&table);
}
END_TEST

/* T 5, n 3, two tokens a step: 2, 2, 1, and two decoded. */
START_TEST(a_share_says_what_the_slot_does)
{
    struct slot_table *table = line_new(1, 2, 0);
    const struct slot_share want[] = {
        {0, 0, 2, false}, {0, 2, 2, false}, {0, 4, 1, true}, {0, 5, 1, true},
        {0, 6, 1, true}};
    struct slot_share share;
    ck_assert_int_eq(slot_table_plan(table, &share), 0);
    ck_assert_int_eq(share.place, NOBODY);
    ck_assert_int_eq(share.tokens, 0);
    const int place = join(table, 5, 3);
    for (int step = 0; step < 5; step++) {
        ck_assert_int_eq(slot_table_plan(table, &share), 1);
        ck_assert_int_eq(share.place, place);
        ck_assert_int_eq(share.before, want[step].before);
        ck_assert_int_eq(share.tokens, want[step].tokens);
        ck_assert_msg(share.emits == want[step].emits, "step %d of 5: it %s"
                      " emit a token", step + 1, share.emits ? "would"
                                                             : "would not");
        slot_table_enter(table);
    }
    slot_table_free(&table);
}
END_TEST

START_TEST(who_waits_gets_the_slot_of_the_first_who_leaves)
{
    struct slot_table *table = line_new(2, 6, 2);
    const int first = join(table, 1, 9), other = join(table, 1, 9);
    struct slot_share shares[2];
    plan_and_enter(table);
    const int next = join(table, 2, 2);
    plan_and_enter(table);
    ck_assert(!has_slot(table, next));
    slot_table_leave(table, first);
    ck_assert_int_eq(slot_table_plan(table, shares), 2);
    ck_assert_msg(has_slot(table, next), "a slot is free, one request waits,"
                  " and the next step is without it");
    ck_assert(has_slot(table, other));
    slot_table_free(&table);
}
END_TEST

START_TEST(whoever_leaves_gives_the_slot_back)
{
    struct slot_table *table = line_new(2, 6, 2);
    struct slot_share shares[2];
    const int two[] = {join(table, 1, 9), join(table, 1, 9)};
    plan_and_enter(table);
    for (int k = 0; k < 2; k++) {
        const int slot = slot_table_slot(table, two[k]);
        ck_assert(slot == 0 || slot == 1);
        slot_table_leave(table, two[k]);
        ck_assert(!has_slot(table, two[k]));
        slot_table_plan(table, shares);
        ck_assert_msg(shares[slot].place == NOBODY, "slot %d is still that of"
                      " the request at place %d", slot, shares[slot].place);
        ck_assert_int_eq(shares[slot].tokens, 0);
    }
    ck_assert_int_eq(slot_table_count(table), 0);
    slot_table_leave(table, two[0]);           /* nobody has it */
    ck_assert_int_eq(slot_table_count(table), 0);
    slot_table_free(&table);
}
END_TEST

START_TEST(a_newcomer_gets_the_lowest_free_slot)
{
    struct slot_table *table = line_new(4, 16, 4);
    struct slot_share shares[4];
    int places[4];
    for (int k = 0; k < 4; k++)
        places[k] = join(table, 1, 9);
    plan_and_enter(table);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(slot_table_slot(table, places[k]), k);
    slot_table_leave(table, places[2]);
    slot_table_leave(table, places[0]);
    const int fifth = join(table, 1, 9), sixth = join(table, 1, 9);
    slot_table_plan(table, shares);
    ck_assert_int_eq(slot_table_slot(table, fifth), 0);
    ck_assert_int_eq(slot_table_slot(table, sixth), 2);
    const int want[] = {fifth, places[1], sixth, places[3]};
    for (int slot = 0; slot < 4; slot++)
        ck_assert_int_eq(shares[slot].place, want[slot]);
    slot_table_free(&table);
}
END_TEST

START_TEST(the_line_closes_in_its_order)
{
    struct slot_table *table = line_new(1, 1, 5);
    int places[5];
    for (int k = 0; k < 5; k++)
        places[k] = join(table, 1, 9);
    plan_and_enter(table);
    slot_table_leave(table, places[1]);
    const int order[] = {0, 2, 3, 4};
    for (int k = 0; k < 4; k++) {
        ck_assert_msg(has_slot(table, places[order[k]]),
                      "request %d is not the next", order[k]);
        slot_table_leave(table, places[order[k]]);
        plan_and_enter(table);
    }
    slot_table_free(&table);
}
END_TEST

START_TEST(a_full_line_refuses_and_changes_nothing)
{
    struct slot_table *table = line_new(2, 2, 1);
    bool seen[3] = {false};
    for (int k = 0; k < 3; k++) {
        const int place = join(table, 2, 2);
        ck_assert(place >= 0 && place < 3 && !seen[place]);
        seen[place] = true;
    }
    int place = -7;
    ck_assert_int_eq(slot_table_join(table, 2, 2, &place, &error),
                     STATUS_NO_MEMORY);
    expect_facts(error.message, "waiting: all 3 places are taken");
    ck_assert_int_eq(place, -7);
    ck_assert_int_eq(slot_table_count(table), 3);
    slot_table_leave(table, 1);
    ck_assert_int_eq(join(table, 2, 2), 1);
    slot_table_free(&table);
}
END_TEST

START_TEST(a_step_that_was_not_entered_is_planned_again)
{
    struct slot_table *table = line_new(3, 5, 3);
    struct slot_share once[3], again[3];
    for (int k = 0; k < 5; k++)
        join(table, 2 + k, 3);
    for (int step = 0; step < 4; step++) {
        const int count = slot_table_plan(table, once);
        ck_assert_int_eq(slot_table_plan(table, again), count);
        for (int slot = 0; slot < 3; slot++) {
            ck_assert_int_eq(once[slot].place, again[slot].place);
            ck_assert_int_eq(once[slot].before, again[slot].before);
            ck_assert_int_eq(once[slot].tokens, again[slot].tokens);
        }
        slot_table_enter(table);
    }
    slot_table_free(&table);
}
END_TEST

/* What the property below knows of a request. */
struct waiter {
    int place, slot;             /* -1: out; NO_SLOT */
    int prompt, wanted, fed, ends;   /* ends: tokens after which it leaves */
    long before;                 /* W when it came */
    int waited, since;           /* steps without a slot; from begin to first */
    bool emitted;
};

struct trace {
    struct slot_table *table;
    struct schedule_limits limits;
    struct waiter line[PLACES];  /* in the order of arrival */
    int count;
    uint64_t state;
};

static void trace_join(struct trace *trace)
{
    struct waiter waiter = {.slot = NO_SLOT};
    waiter.prompt = 1 + noise_below(&trace->state, 9);
    waiter.wanted = 1 + noise_below(&trace->state, 9);
    waiter.ends = 1 + noise_below(&trace->state, waiter.wanted);
    for (int k = 0; k < trace->count; k++)
        waiter.before += trace->line[k].prompt + trace->line[k].wanted - 1
                         - trace->line[k].fed;
    waiter.place = join(trace->table, waiter.prompt, waiter.wanted);
    trace->line[trace->count++] = waiter;
}

static void trace_leave(struct trace *trace, int k)
{
    slot_table_leave(trace->table, trace->line[k].place);
    memmove(&trace->line[k], &trace->line[k + 1],
            (size_t)(--trace->count - k) * sizeof trace->line[0]);
}

/* An assertion that holds has its price too, and these hold a million times.
   So they are asked without Check. */
#define HOLDS(condition, ...) \
    do { if (!(condition)) ck_abort_msg(__VA_ARGS__); } while (0)

/* What a request with a slot is given. */
static void expect_share(const struct waiter *waiter, int slot,
                         const struct slot_share *share)
{
    HOLDS(waiter->slot == NO_SLOT || waiter->slot == slot,
          "a request moves from slot %d to slot %d", waiter->slot, slot);
    HOLDS(share->place == waiter->place, "slot %d does the work of place %d,"
          " and is given to %d", slot, share->place, waiter->place);
    HOLDS(share->before == waiter->fed, "a request was fed %d tokens, and its"
          " share says %d", waiter->fed, share->before);
    HOLDS(share->tokens > 0,
          "a request with a slot is left out of a step");
    HOLDS(share->tokens <= (waiter->fed < waiter->prompt
                            ? waiter->prompt - waiter->fed : 1),
          "a request that was fed %d of %d is fed %d", waiter->fed,
          waiter->prompt, share->tokens);
    HOLDS(share->emits == (waiter->fed + share->tokens >= waiter->prompt),
          "a request emits at the wrong time");
}

/* Budget, slots, order, and no slot idle for nothing. */
static void expect_lawful(struct trace *trace,
                          const struct slot_share *shares)
{
    const int slots = trace->limits.slots, budget = trace->limits.budget;
    int fed = 0, busy = 0, in_slots = 0;
    bool waits = false;
    for (int slot = 0; slot < slots; slot++) {
        fed += shares[slot].tokens;
        busy += shares[slot].tokens > 0;
    }
    for (int k = 0; k < trace->count; k++) {
        struct waiter *waiter = &trace->line[k];
        const int slot = slot_table_slot(trace->table, waiter->place);
        HOLDS(slot == NO_SLOT || !waits, "a request has a slot and one that"
              " came before it waits");
        waits = waits || slot == NO_SLOT;
        if (slot == NO_SLOT)
            continue;
        HOLDS(slot >= 0 && slot < slots, "there is no slot %d", slot);
        expect_share(waiter, slot, &shares[slot]);
        waiter->slot = slot;
        in_slots++;
    }
    HOLDS(in_slots == busy, "%d requests have slots and %d slots work",
          in_slots, busy);
    HOLDS(fed <= budget, "%d tokens in a step of %d", fed, budget);
    HOLDS(!waits || busy == slots || fed == budget, "a slot is idle, %d of"
          " %d tokens are used, and somebody waits", fed, budget);
}

/* Nobody waits longer than the bounds of the chapter. */
static void expect_bounds(struct trace *trace,
                          const struct slot_share *shares)
{
    const int slots = trace->limits.slots, budget = trace->limits.budget;
    for (int k = 0; k < trace->count; k++) {
        struct waiter *waiter = &trace->line[k];
        if (waiter->slot == NO_SLOT) {
            waiter->waited++;
            HOLDS(waiter->waited <= waiter->before / slots, "%ld tokens were"
                  " before it, and it has waited %d steps for one of %d"
                  " slots", waiter->before, waiter->waited, slots);
            continue;
        }
        const struct slot_share *share = &shares[waiter->slot];
        const int rest = budget - slots + 1;
        waiter->since += !waiter->emitted;
        HOLDS(waiter->since <= 1 + (waiter->prompt - 1 + rest - 1) / rest,
              "a prompt of %d takes %d steps", waiter->prompt,
              waiter->since);
        waiter->emitted = waiter->emitted || share->emits;
        waiter->fed += share->tokens;
    }
}

START_TEST(the_line_keeps_its_promises_on_random_traces)
{
    for (unsigned run = 0; run < 400; run++) {
        struct trace trace = {.state = noise_start(1800 + run)};
        const int slots = 1 + noise_below(&trace.state, 5);
        const int extra = noise_below(&trace.state, 3)
                          * noise_below(&trace.state, 9);
        struct slot_share shares[R_MAX];
        trace.limits = (struct schedule_limits){slots + extra, slots};
        trace.table = line_new(slots, slots + extra, 12);
        for (int step = 0; step < 90; step++) {
            while (trace.count < slots + 12 && step < 60
                   && noise_below(&trace.state, 3) > 0)
                trace_join(&trace);
            if (trace.count > 0 && noise_below(&trace.state, 15) == 0)
                trace_leave(&trace, noise_below(&trace.state, trace.count));
            slot_table_plan(trace.table, shares);
            expect_lawful(&trace, shares);
            expect_bounds(&trace, shares);
            slot_table_enter(trace.table);
            for (int k = trace.count - 1; k >= 0; k--)
                if (trace.line[k].fed >= trace.line[k].prompt
                                         + trace.line[k].ends - 1)
                    trace_leave(&trace, k);
            HOLDS(slot_table_count(trace.table) == trace.count,
                  "%d are in, and the line counts %d", trace.count,
                  slot_table_count(trace.table));
        }
        slot_table_free(&trace.table);
    }
}
END_TEST

START_TEST(with_one_slot_and_one_token_a_step_the_bound_is_exact)
{
    struct trace trace = {.state = noise_start(181), .limits = {1, 1}};
    struct slot_share share;
    trace.table = line_new(1, 1, 6);
    for (int k = 0; k < 6; k++)
        trace_join(&trace);
    for (int k = 0; k < 6; k++)
        trace.line[k].ends = trace.line[k].wanted;
    while (trace.count > 0) {
        slot_table_plan(trace.table, &share);
        expect_lawful(&trace, &share);
        expect_bounds(&trace, &share);
        slot_table_enter(trace.table);
        if (trace.line[0].fed == trace.line[0].prompt
                                 + trace.line[0].wanted - 1) {
            ck_assert_int_eq(trace.line[0].waited, trace.line[0].before);
            trace_leave(&trace, 0);
        }
    }
    slot_table_free(&trace.table);
}
END_TEST

/* ------------------------------------------------- requests and their ears */

enum { V = 13, N = 24, SAID_MAX = 64 };

/* What a request has said. */
struct said {
    int32_t ids[SAID_MAX];
    int count, ends, until;      /* until: on_token says false then; 0: not */
    enum slot_end end;
    char message[ERROR_MESSAGE_MAX];
};

static bool hear(void *context, int32_t id)
{
    struct said *said = context;
    if (said->count < SAID_MAX)
        said->ids[said->count] = id;
    said->count++;
    return said->until == 0 || said->count < said->until;
}

static void hear_end(void *context, enum slot_end end,
                     const struct error *why)
{
    struct said *said = context;
    said->ends++;
    said->end = end;
    if (why != NULL)
        memcpy(said->message, why->message, sizeof said->message);
}

/* Greedy, without EOS and stop. */
static struct slot_request request_of(const int32_t *ids, int tokens,
                                      int max_new_tokens, struct said *said)
{
    return (struct slot_request){
        .ids = ids, .tokens = tokens, .max_new_tokens = max_new_tokens,
        .eos_token_id = NO_EOS, .on_token = hear, .on_end = hear_end,
        .context = said
    };
}

static struct script script_new(unsigned stream)
{
    return (struct script){.vocab_size = V, .context_length = N,
                           .salt = noise_start(stream)};
}

static struct slots *slots_of(const struct causal_lm *lm, int slots,
                              int capacity, int budget, int waiting)
{
    struct slots *made = NULL;
    const struct slots_limits limits = {slots, capacity, budget, waiting};
    expect_ok(slots_new(&made, lm, &limits, &error), &error);
    return made;
}

static int64_t submit(struct slots *slots, const struct slot_request *request)
{
    int64_t ticket = -1;
    expect_ok(slots_submit(slots, request, &ticket, &error), &error);
    ck_assert_int_gt(ticket, 0);
    return ticket;
}

static bool step(struct slots *slots)
{
    bool more = false;
    const enum status status = slots_step(slots, &more, &error);
    HOLDS(status == STATUS_OK, "status %d: %s", (int)status, error.message);
    return more;
}

static void run_out(struct slots *slots)
{
    for (int n = 0; step(slots); n++)
        HOLDS(n < 4000, "the requests do not come to an end");
}

static void random_ids(uint64_t *state, int count, int32_t *ids)
{
    for (int k = 0; k < count; k++)
        ids[k] = noise_below(state, V);
}

static void expect_said(const char *what, const struct said *said,
                        const int32_t *ids, int count, enum slot_end end)
{
    for (int k = 0; k < said->count && k < count; k++)
        HOLDS(said->ids[k] == ids[k], "%s: new token %d is %d, expected %d",
              what, k, (int)said->ids[k], (int)ids[k]);
    ck_assert_msg(said->count == count, "%s: said %d tokens, expected %d",
                  what, said->count, count);
    ck_assert_msg(said->ends == 1, "%s: ended %d times", what, said->ends);
    ck_assert_msg(said->end == end, "%s: ended by %s, expected %s", what,
                  slot_end_name(said->end), slot_end_name(end));
}

/* The greedy continuation of a script, alone. */
static void expect_alone(const char *what, const struct script *script,
                         const struct said *said, const int32_t *prompt,
                         int tokens, int wanted)
{
    int32_t text[N];
    memcpy(text, prompt, (size_t)tokens * sizeof *text);
    script_continue(script, text, tokens, tokens + wanted);
    expect_said(what, said, text + tokens, wanted, ENDED_LENGTH);
}

static bool row_is(const struct slots *slots, int slot, int from, int until,
                   bool zero)
{
    const struct past_key_values *storage = slots_storage(slots);
    bool same = true;
    for (int l = 0; l < storage->n_layers; l++) {
        const struct tensor *parts[] = {&storage->layers[l].key,
                                        &storage->layers[l].value};
        for (int part = 0; part < 2; part++) {
            const int *shape = parts[part]->shape;
            for (int h = 0; h < shape[1]; h++)
                for (int j = from; j < until; j++)
                    for (int d = 0; d < shape[3]; d++) {
                        const size_t at = (size_t)(((slot * shape[1] + h)
                            * shape[2] + j) * shape[3] + d);
                        same = same && (parts[part]->data[at] == 0) == zero;
                    }
        }
    }
    return same;
}

/* ------------------------------------------------------------ made, refused */

START_TEST(slots_of_nothing_are_refused_by_name)
{
    struct script script = script_new(182);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = NULL;
    const struct { struct slots_limits limits; const char *says; } wrong[] = {
        {{0, 8, 4, 1}, "slots: expected 1 to the budget 4, got 0"},
        {{5, 8, 4, 1}, "slots: expected 1 to the budget 4, got 5"},
        {{2, 0, 4, 1}, "capacity: expected 1 to the context length 24, got"
                       " 0"},
        {{2, 25, 4, 1}, "capacity: expected 1 to the context length 24, got"
                        " 25"},
        {{2, 8, 0, 1}, "budget: expected at least 1, got 0"},
        {{2, 8, 4, -1}, "waiting: expected 0 to 2147483645, got -1"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        ck_assert_int_eq(slots_new(&slots, &lm, &wrong[k].limits, &error),
                         STATUS_INVALID);
        expect_facts(error.message, wrong[k].says);
        ck_assert_ptr_null(slots);
    }
    ck_assert_int_eq(slots_new(&slots, NULL, &wrong[0].limits, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "lm: is NULL");
    ck_assert_int_eq(slots_new(&slots, &lm, NULL, &error), STATUS_INVALID);
    expect_facts(error.message, "limits: is NULL");
}
END_TEST

START_TEST(making_slots_survives_each_failed_allocation)
{
    struct script script = script_new(182);
    const struct causal_lm lm = script_lm(&script);
    const struct slots_limits limits = {3, 8, 5, 2};
    for (long n = 1; ; n++) {
        struct slots *slots = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = slots_new(&slots, &lm, &limits, &error);
        bool failed = allocator_stop();
        if (!failed)
            slots_free(&slots);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(slots);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        if (!failed) {
            ck_assert_int_gt(n, 15);
            break;
        }
    }
    struct slots *none = NULL;
    slots_free(&none);
    slots_free(NULL);
    ck_assert_int_eq(slots_new(&none, &lm, &(struct slots_limits){
                         1 << 15, N, 1 << 15, INT_MAX - (1 << 15)}, &error),
                     STATUS_NO_MEMORY);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(every_argument_of_a_request_is_looked_at)
{
    struct script script = script_new(183);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 8, 4, 1);
    const int32_t good[] = {1, 2, 3}, low[] = {1, -1}, high[] = {1, 2, V};
    struct said said = {.count = 0};
    struct generator seeded;
    generator_seed(&seeded, 1, 1);
    const struct slot_request fine = request_of(good, 3, 2, &said);
    struct slot_request wrong[18];
    const char *says[18];
    int count = 0;
#define WRONG(field, value, words) \
    (wrong[count] = fine, wrong[count].field = (value), says[count++] = words)
    WRONG(ids, NULL, "ids: is NULL");
    WRONG(tokens, 0, "tokens: expected at least 1, got 0");
    WRONG(tokens, -1, "tokens: expected at least 1, got -1");
    WRONG(max_new_tokens, -1, "max_new_tokens: expected at least 0, got -1");
    WRONG(ids, low, "ids[1]: expected 0 to 12, got -1");
    WRONG(ids, high, "ids[2]: expected 0 to 12, got 13");
    WRONG(eos_token_id, -2, "eos_token_id: expected -1 to 12, got -2");
    WRONG(eos_token_id, V, "eos_token_id: expected -1 to 12, got 13");
    WRONG(temperature, -1, "temperature: expected a finite number >= 0, got"
                           " -1");
    WRONG(temperature, (double)NAN, NULL);
    WRONG(temperature, (double)INFINITY, NULL);
    WRONG(temperature, 1, "generator: sampling needs one that was seeded");
    WRONG(stop_tokens, -1, "stop_tokens: expected 0 to 16, got -1");
    WRONG(stop_tokens, 17, "stop_tokens: expected 0 to 16, got 17");
    WRONG(stop_tokens, 1, "stop: is NULL");
    WRONG(stop_tokens, 3, "stop[2]: expected 0 to 12, got 13");
    wrong[count - 1].stop = high;
#undef WRONG
    for (int k = 0; k < count; k++)
        for (int n = 0; n < 2; n++) {
            int64_t ticket = -1;
            struct slot_request request = wrong[k];
            if (n == 0 && request.max_new_tokens == 2)
                request.max_new_tokens = 0;    /* refused all the same */
            ck_assert_int_eq(slots_submit(slots, &request, &ticket, &error),
                             STATUS_INVALID);
            if (says[k] != NULL)
                expect_facts(error.message, says[k]);
            ck_assert_int_eq(ticket, -1);
        }
    int64_t ticket = -1;
    ck_assert_int_eq(slots_submit(slots, NULL, &ticket, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(slots_submit(slots, &fine, NULL, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(slots_submit(NULL, &fine, &ticket, &error),
                     STATUS_INVALID);
    ck_assert_int_eq(slots_step(slots, NULL, &error), STATUS_INVALID);
    ck_assert(!step(slots));
    ck_assert_int_eq(said.ends + said.count, 0);
    ck_assert_int_eq(script.calls, 0);
    slots_free(&slots);
}
END_TEST

/* S 8, N 24: T + n - 1 <= 8 in the slot; and T + n <= N for a large slot. */
START_TEST(a_text_fits_to_its_last_token_and_not_one_more)
{
    struct script script = script_new(184);
    const struct causal_lm lm = script_lm(&script);
    int32_t ids[N + 2];
    uint64_t state = noise_start(184);
    random_ids(&state, N + 2, ids);
    for (int large = 0; large < 2; large++) {
        const int capacity = large ? N : 8, most = large ? N : 9;
        char message[96];
        for (int tokens = 1; tokens <= most; tokens++) {
            struct slots *slots = slots_of(&lm, 2, capacity, 50, 1);
            struct said said = {.count = 0};
            int64_t ticket = -1;
            const int fits = most - tokens;
            struct slot_request request = request_of(ids, tokens, fits + 1,
                                                     &said);
            ck_assert_msg(slots_submit(slots, &request, &ticket, &error)
                          == STATUS_INVALID, "%d prompt tokens and %d new"
                          " ones for a slot of %d are not refused", tokens,
                          fits + 1, capacity);
            snprintf(message, sizeof message, "max_new_tokens: %d prompt"
                     " tokens and %d new ones %d", tokens, fits + 1,
                     capacity);
            expect_facts(error.message, message);
            request.max_new_tokens = INT_MAX;
            ck_assert_int_eq(slots_submit(slots, &request, &ticket, &error),
                             STATUS_INVALID);
            ck_assert_int_eq(said.ends, 0);
            request.max_new_tokens = fits;
            ck_assert_msg(slots_submit(slots, &request, &ticket, &error)
                          == STATUS_OK, "%d prompt tokens and %d new ones"
                          " for a slot of %d: %s", tokens, fits, capacity,
                          error.message);
            run_out(slots);
            ck_assert_int_eq(said.ends, 1);
            ck_assert_int_eq(said.count, fits);
            slots_free(&slots);
        }
        struct slots *slots = slots_of(&lm, 2, capacity, 50, 1);
        struct said said = {.count = 0};
        int64_t ticket = -1;
        const struct slot_request longer = request_of(ids, most + 1, 0,
                                                      &said);
        ck_assert_int_eq(slots_submit(slots, &longer, &ticket, &error),
                         STATUS_INVALID);
        slots_free(&slots);
    }
}
END_TEST

START_TEST(a_request_for_no_tokens_ends_at_once)
{
    struct script script = script_new(185);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 1, 8, 4, 0);
    const int32_t ids[] = {1, 2, 3};
    struct said said[3] = {{.count = 0}};
    const struct slot_request one = request_of(ids, 3, 1, &said[0]);
    struct slot_request none = request_of(ids, 3, 0, &said[1]);
    const int64_t first = submit(slots, &one);
    const int64_t second = submit(slots, &none);   /* the line is full */
    ck_assert_int_ne(first, second);
    expect_said("a request for nothing", &said[1], NULL, 0, ENDED_LENGTH);
    none.on_end = NULL;
    submit(slots, &none);
    ck_assert_int_eq(slots_cancel(slots, second, &error), STATUS_INVALID);
    run_out(slots);
    expect_alone("its neighbour", &script, &said[0], ids, 3, 1);
    slots_free(&slots);
}
END_TEST

START_TEST(a_full_line_refuses_a_request_and_serves_the_others)
{
    struct script script = script_new(186);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 12, 4, 1);
    struct said said[5] = {{.count = 0}};
    int32_t ids[5][4];
    uint64_t state = noise_start(186);
    random_ids(&state, 20, ids[0]);
    for (int k = 0; k < 5; k++) {
        int64_t ticket = -1;
        const struct slot_request request = request_of(ids[k], 4, 2 + k,
                                                       &said[k]);
        if (k < 3) {
            submit(slots, &request);
            continue;
        }
        ck_assert_int_eq(slots_submit(slots, &request, &ticket, &error),
                         STATUS_NO_MEMORY);
        expect_facts(error.message, "waiting: all 3 places are taken");
        ck_assert_int_eq(ticket, -1);
        ck_assert_int_eq(slots_counts(slots).waiting, 3);
    }
    run_out(slots);
    for (int k = 0; k < 3; k++)
        expect_alone("who was in", &script, &said[k], ids[k], 4, 2 + k);
    ck_assert_int_eq(said[3].ends + said[4].ends, 0);
    slots_free(&slots);
}
END_TEST

/* ----------------------------------------------------------------- feeding */

/* A handle that writes down what it is asked. */
enum { CALLS_MAX = 64, TOKENS_MAX = 64 };

struct recorder {
    struct causal_lm inner;
    int calls;
    struct {
        int batch, tokens;
        const float *key;        /* where the storage begins */
        int slots;               /* rows that the storage says it has */
        int32_t lengths[R_MAX], ids[TOKENS_MAX], positions[TOKENS_MAX];
    } call[CALLS_MAX];
};

static size_t recorder_scratch(const void *model, int batch, int tokens,
                               int slots)
{
    const struct recorder *recorder = model;
    return recorder->inner.scratch_size(recorder->inner.model, batch, tokens,
                                        slots);
}

static void recorder_run(const void *model, const struct step *step,
                         float *scratch)
{
    struct recorder *recorder = (struct recorder *)model;
    const int count = step->batch * step->tokens;
    recorder->inner.run(recorder->inner.model, step, scratch);
    if (recorder->calls < CALLS_MAX && count <= TOKENS_MAX) {
        const int n = recorder->calls++;
        recorder->call[n].batch = step->batch;
        recorder->call[n].tokens = step->tokens;
        recorder->call[n].key = step->storage->layers[0].key.data;
        recorder->call[n].slots = step->storage->layers[0].key.shape[0];
        memcpy(recorder->call[n].lengths, step->lengths,
               (size_t)step->batch * sizeof (int32_t));
        memcpy(recorder->call[n].ids, step->ids,
               (size_t)count * sizeof (int32_t));
        memcpy(recorder->call[n].positions, step->positions,
               (size_t)count * sizeof (int32_t));
    }
}

static struct causal_lm recorder_lm(struct recorder *recorder,
                                    const struct causal_lm *inner)
{
    struct causal_lm lm = *inner;
    recorder->inner = *inner;
    lm.model = recorder;
    lm.scratch_size = recorder_scratch;
    lm.run = recorder_run;
    return lm;
}

START_TEST(rows_grow_by_what_they_are_fed)
{
    struct script script = script_new(187);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 12, 3, 0);
    struct said said = {.count = 0};
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct slot_request request = request_of(ids, 8, 4, &said);
    const int want[] = {3, 6, 8, 9, 10};
    submit(slots, &request);
    ck_assert_int_eq(slots_lengths(slots)[0], 0);
    for (int n = 0; n < 5; n++) {
        step(slots);
        ck_assert_int_eq(slots_lengths(slots)[0], want[n]);
        ck_assert_int_eq(slots_lengths(slots)[1], 0);
        ck_assert_int_eq(slots_counts(slots).fed, want[n]);
        ck_assert_int_eq(slots_counts(slots).steps, n + 1);
    }
    slots_free(&slots);
}
END_TEST

START_TEST(a_slot_is_emptied_and_its_neighbour_is_not)
{
    struct script script = script_new(188);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 12, 12, 0);
    struct said said[2] = {{.count = 0}};
    const int32_t ids[] = {1, 2, 3, 4};
    const struct slot_request requests[] = {request_of(ids, 4, 2, &said[0]),
                                            request_of(ids, 4, 5, &said[1])};
    submit(slots, &requests[0]);
    submit(slots, &requests[1]);
    step(slots);
    ck_assert_int_eq(slots_lengths(slots)[0], 4);
    ck_assert(row_is(slots, 0, 1, 4, false));
    step(slots);
    ck_assert_int_eq(said[0].ends, 1);
    ck_assert_msg(slots_lengths(slots)[0] == 0, "an empty slot has the length"
                  " %d", (int)slots_lengths(slots)[0]);
    ck_assert_msg(row_is(slots, 0, 0, 12, true), "keys or values of the text"
                  " that has ended are still there");
    ck_assert_int_eq(slots_lengths(slots)[1], 5);
    ck_assert_msg(row_is(slots, 1, 1, 5, false), "the neighbour has lost"
                  " keys or values");
    slots_free(&slots);
}
END_TEST

/* The chapter's instance: R 2, M 4; A 2+2, B 3+5, C 4+2. */
static void instance(struct recorder *recorder, struct script *script,
                     struct said *said, struct slots **slots,
                     const int32_t *ids)
{
    const struct causal_lm inner = script_lm(script);
    const struct causal_lm lm = recorder_lm(recorder, &inner);
    *slots = slots_of(&lm, 2, 8, 4, 1);
    const struct slot_request requests[] = {
        request_of(ids, 2, 2, &said[0]), request_of(ids + 2, 3, 5, &said[1]),
        request_of(ids + 5, 4, 2, &said[2])};
    for (int k = 0; k < 3; k++)
        submit(*slots, &requests[k]);
    run_out(*slots);
}

START_TEST(each_row_is_fed_its_own_next_ids_where_they_stand)
{
    struct script script = script_new(189);
    struct recorder recorder = {.calls = 0};
    struct said said[3] = {{.count = 0}};
    struct slots *slots = NULL;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    instance(&recorder, &script, said, &slots, ids);
    int n = 0;
    /* the slot's row in each call, its request and what it is fed */
    const struct { int row, request, before, tokens; } want[] = {
        {0, 0, 0, 2}, {1, 1, 0, 2}, {0, 0, 2, 1}, {1, 1, 2, 1},
        {0, 2, 0, 3}, {0, 1, 3, 1}, {0, 2, 3, 1}, {1, 1, 4, 1},
        {0, 2, 4, 1}, {1, 1, 5, 1}, {0, 1, 6, 1}};
    static const int prompts[] = {2, 3, 4}, at[] = {0, 2, 5};
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        n += k > 0 && want[k].row == 0;
        ck_assert_int_lt(n, recorder.calls);
        const int r = want[k].request, tokens = want[k].tokens;
        ck_assert_int_eq(recorder.call[n].tokens, tokens);
        ck_assert_int_eq(recorder.call[n].lengths[want[k].row],
                         want[k].before);
        for (int t = 0; t < tokens; t++) {
            const int place = want[k].before + t;
            const int got = want[k].row * tokens + t;
            ck_assert_msg(recorder.call[n].positions[got] == place,
                          "call %d, row %d: position %d, expected %d", n,
                          want[k].row, (int)recorder.call[n].positions[got],
                          place);
            const int32_t id = place < prompts[r]
                ? ids[at[r] + place] : said[r].ids[place - prompts[r]];
            ck_assert_msg(recorder.call[n].ids[got] == id,
                          "call %d, row %d: id %d, expected %d", n,
                          want[k].row, (int)recorder.call[n].ids[got],
                          (int)id);
        }
    }
    slots_free(&slots);
}
END_TEST

START_TEST(neighbours_with_equal_shares_are_one_call)
{
    struct script script = script_new(189);
    struct recorder recorder = {.calls = 0};
    struct said said[3] = {{.count = 0}};
    struct slots *slots = NULL;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int want[][2] = {{2, 2}, {2, 1}, {1, 3}, {1, 1}, {2, 1}, {2, 1},
                           {1, 1}};
    instance(&recorder, &script, said, &slots, ids);
    ck_assert_int_eq(recorder.calls, 7);
    for (int n = 0; n < 7; n++) {
        ck_assert_int_eq(recorder.call[n].batch, want[n][0]);
        ck_assert_int_eq(recorder.call[n].tokens, want[n][1]);
    }
    const struct slots_counts counts = slots_counts(slots);
    ck_assert_int_eq(counts.steps, 6);
    ck_assert_int_eq(counts.calls, 7);
    ck_assert_int_eq(counts.fed, 3 + 7 + 5);
    ck_assert_int_eq(counts.emitted, 2 + 5 + 2);
    slots_free(&slots);
}
END_TEST

START_TEST(a_call_sees_the_rows_of_its_slots_and_no_others)
{
    struct script script = script_new(189);
    struct recorder recorder = {.calls = 0};
    struct said said[3] = {{.count = 0}};
    struct slots *slots = NULL;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int first[] = {0, 0, 0, 1, 0, 0, 1};
    instance(&recorder, &script, said, &slots, ids);
    const struct tensor *key = &slots_storage(slots)->layers[0].key;
    const int want[] = {2, 1, 8, 1};
    for (int d = 0; d < 4; d++)
        ck_assert_int_eq(key->shape[d], want[d]);
    for (int n = 0; n < 7; n++) {
        ck_assert_msg(recorder.call[n].key == key->data + first[n] * 8,
                      "call %d begins %td floats into the storage, expected"
                      " %d", n, recorder.call[n].key - key->data,
                      first[n] * 8);
        ck_assert_int_eq(recorder.call[n].slots, recorder.call[n].batch);
    }
    slots_free(&slots);
}
END_TEST

/* ---------------------------------------------------------------- speaking */

/* A prompt comes in beside a row that decodes: two calls in one step. */
START_TEST(each_call_of_a_step_leaves_its_logits_to_its_slots)
{
    struct script script = script_new(190);
    const struct causal_lm lm = script_lm(&script);
    for (unsigned k = 0; k < 8; k++) {
        struct slots *slots = slots_of(&lm, 2, 12, 8, 1);
        struct said said[2] = {{.count = 0}};
        int32_t ids[8];
        uint64_t state = noise_start(1900 + k);
        random_ids(&state, 8, ids);
        const struct slot_request early = request_of(ids, 3, 6, &said[0]);
        const struct slot_request late = request_of(ids + 3, 5, 4, &said[1]);
        submit(slots, &early);
        step(slots);
        submit(slots, &late);
        run_out(slots);
        expect_alone("who was there", &script, &said[0], ids, 3, 6);
        expect_alone("the newcomer", &script, &said[1], ids + 3, 5, 4);
        slots_free(&slots);
    }
}
END_TEST

START_TEST(a_row_behind_a_free_slot_hears_itself)
{
    struct script script = script_new(191);
    const struct causal_lm lm = script_lm(&script);
    for (unsigned k = 0; k < 8; k++) {
        struct slots *slots = slots_of(&lm, 3, 16, 8, 0);
        struct said said[3] = {{.count = 0}};
        int32_t ids[9];
        uint64_t state = noise_start(1910 + k);
        random_ids(&state, 9, ids);
        const int wanted[] = {1, 7, 9};
        for (int r = 0; r < 3; r++) {
            const struct slot_request request =
                request_of(ids + 3 * r, 3, wanted[r], &said[r]);
            submit(slots, &request);
        }
        run_out(slots);
        for (int r = 0; r < 3; r++)
            expect_alone("a row", &script, &said[r], ids + 3 * r, 3,
                         wanted[r]);
        slots_free(&slots);
    }
}
END_TEST

/* What a script says at a temperature, alone. Returns how many ids. */
static int sample_alone(const struct script *script,
                        const struct slot_request *request, int32_t *ids)
{
    struct generator generator = request->generator;
    uint32_t hash = 0;
    float logits[V];
    int said = 0;
    for (int t = 0; said < request->max_new_tokens; t++) {
        const int32_t id = t < request->tokens
            ? request->ids[t] : ids[t - request->tokens];
        hash = script_hash(hash, id, t);
        if (t + 1 < request->tokens)
            continue;
        script_logits(script, hash, t, logits);
        if (request->temperature > 0)
            HOLDS(sampler_sample(logits, V, request->temperature, &generator,
                                 &ids[said], &error) == STATUS_OK, "%s",
                  error.message);
        else
            ids[said] = script_says(logits, V);
        said++;
        if (ids[said - 1] == request->eos_token_id)
            break;
        if (request->stop_tokens > 0 && said >= request->stop_tokens
            && memcmp(ids + said - request->stop_tokens, request->stop,
                      (size_t)request->stop_tokens * sizeof *ids) == 0)
            break;
    }
    return said;
}

static void expect_sampled(const char *what, const struct script *script,
                           const struct slot_request *request,
                           const struct said *said)
{
    int32_t ids[N + 1];
    const int count = sample_alone(script, request, ids);
    expect_said(what, said, ids, count, ENDED_LENGTH);
}

START_TEST(a_row_draws_from_its_own_generator)
{
    struct script script = script_new(192);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 3, 16, 8, 0);
    struct said said[3] = {{.count = 0}};
    struct slot_request requests[3];
    const int32_t ids[] = {1, 2, 3};
    for (int k = 0; k < 3; k++) {
        requests[k] = request_of(ids, 3, 4 + 3 * k, &said[k]);
        requests[k].temperature = 1 + k;
        generator_seed(&requests[k].generator, harness_seed() + 7,
                       (uint64_t)(k % 2));
        submit(slots, &requests[k]);
    }
    run_out(slots);
    for (int k = 0; k < 3; k++)
        expect_sampled("a sampled row", &script, &requests[k], &said[k]);
    slots_free(&slots);
}
END_TEST

START_TEST(a_request_brings_its_draws_and_not_its_predecessors)
{
    struct script script = script_new(193);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 1, 16, 8, 2);
    struct said said[3] = {{.count = 0}};
    struct slot_request requests[3];
    const int32_t ids[] = {4, 5, 6, 7};
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < 3; k++) {
            said[k] = (struct said){.count = 0};
            requests[k] = request_of(ids, 2 + k, 9, &said[k]);
            requests[k].temperature = 1.5;
            generator_seed(&requests[k].generator, harness_seed(), 3);
            submit(slots, &requests[k]);
            if (round == 0)
                run_out(slots);
        }
    run_out(slots);
    for (int k = 0; k < 3; k++)
        expect_sampled("a sampled request", &script, &requests[k], &said[k]);
    slots_free(&slots);
}
END_TEST

START_TEST(each_text_ends_by_its_own_eos)
{
    struct script script = script_new(194);
    const struct causal_lm lm = script_lm(&script);
    for (unsigned run = 0; run < 12; run++) {
        struct slots *slots = slots_of(&lm, 3, 20, 9, 0);
        struct said said[3] = {{.count = 0}};
        int32_t text[3][N];
        int count[3];
        uint64_t state = noise_start(1940 + run);
        for (int k = 0; k < 3; k++) {
            random_ids(&state, 3, text[k]);
            script_continue(&script, text[k], 3, 15);
            struct slot_request request = request_of(text[k], 3, 12,
                                                     &said[k]);
            if (k < 2)           /* the third has none */
                request.eos_token_id = text[k][5 + 4 * k];
            count[k] = 12;
            for (int t = 11; t >= 0; t--)
                if (text[k][3 + t] == request.eos_token_id)
                    count[k] = t + 1;
            submit(slots, &request);
        }
        run_out(slots);
        for (int k = 0; k < 3; k++)
            expect_said("a text", &said[k], text[k] + 3, count[k],
                        k < 2 ? ENDED_EOS : ENDED_LENGTH);
        slots_free(&slots);
    }
}
END_TEST

START_TEST(a_stop_is_compared_with_what_was_said)
{
    struct script script = script_new(195);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 20, 9, 4);
    struct said said[4] = {{.count = 0}};
    int32_t text[N], stop[SAID_MAX];
    uint64_t state = noise_start(195);
    random_ids(&state, 4, text);
    script_continue(&script, text, 4, 16);
    /* the prompt's last id and the first new one: said only in part */
    struct slot_request across = request_of(text, 4, 12, &said[0]);
    across.stop = text + 3;
    across.stop_tokens = 2;
    int expected = 12;
    for (int t = 10; t >= 0; t--)
        if (memcmp(text + 4 + t, text + 3, 2 * sizeof *text) == 0)
            expected = t + 2;
    submit(slots, &across);
    run_out(slots);
    ck_assert_msg(said[0].count == expected, "the stop was found after %d"
                  " tokens, expected %d: is the prompt part of it?",
                  said[0].count, expected);
    /* three that are said, copied at the submit */
    memcpy(stop, text + 7, 3 * sizeof *stop);
    struct slot_request within = request_of(text, 4, 12, &said[1]);
    within.stop = stop;
    within.stop_tokens = 3;
    submit(slots, &within);
    memset(stop, 0, sizeof stop);
    said[2].until = 2;           /* who listens has had enough */
    const struct slot_request heard = request_of(text, 4, 12, &said[2]);
    submit(slots, &heard);
    run_out(slots);
    int first = 6;
    for (int t = 2; t >= 0; t--)
        if (memcmp(text + 4 + t, text + 7, 3 * sizeof *text) == 0)
            first = t + 3;
    expect_said("a stop of three", &said[1], text + 4, first, ENDED_STOP);
    expect_said("a listener", &said[2], text + 4, 2, ENDED_STOP);
    slots_free(&slots);
}
END_TEST

START_TEST(whoever_cancels_ends_one_request)
{
    struct script script = script_new(196);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 20, 4, 4);
    struct said said[6] = {{.count = 0}};
    int32_t ids[6][4];
    int64_t tickets[6];
    uint64_t state = noise_start(196);
    random_ids(&state, 24, ids[0]);
    for (int k = 0; k < 6; k++) {
        const struct slot_request request = request_of(ids[k], 4, 3 + k,
                                                       &said[k]);
        tickets[k] = submit(slots, &request);
        if (k == 0)
            run_out(slots);
    }
    for (int k = 0; k < 3; k++)
        step(slots);
    ck_assert_int_eq(said[1].ends, 0);
    expect_ok(slots_cancel(slots, tickets[1], &error), &error);  /* decodes */
    ck_assert_int_eq(said[1].ends, 1);
    ck_assert_int_eq(said[1].end, ENDED_CANCELLED);
    expect_ok(slots_cancel(slots, tickets[4], &error), &error);  /* waits */
    ck_assert_int_eq(said[4].end, ENDED_CANCELLED);
    ck_assert_int_eq(said[4].count, 0);
    const int64_t gone[] = {tickets[0], tickets[1], tickets[4], 0, -1, 7,
                            INT64_MAX};
    for (size_t k = 0; k < sizeof gone / sizeof *gone; k++) {
        ck_assert_int_eq(slots_cancel(slots, gone[k], &error),
                         STATUS_INVALID);
        expect_named(&error, "ticket");
    }
    ck_assert_int_eq(slots_cancel(NULL, 1, &error), STATUS_INVALID);
    step(slots);
    expect_ok(slots_cancel(slots, tickets[3], &error), &error); /* half read */
    run_out(slots);
    expect_alone("the first", &script, &said[0], ids[0], 4, 3);
    expect_alone("the third", &script, &said[2], ids[2], 4, 5);
    expect_alone("the last", &script, &said[5], ids[5], 4, 8);
    ck_assert_int_eq(said[3].end, ENDED_CANCELLED);
    for (int slot = 0; slot < 2; slot++)
        ck_assert(row_is(slots, slot, 0, 20, true));
    slots_free(&slots);
}
END_TEST

START_TEST(logits_that_are_no_numbers_end_one_request)
{
    struct script script = script_new(197);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 2, 20, 8, 2);
    struct said said[3] = {{.count = 0}};
    const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    script.nan_at = 9;           /* two of them do not get so far */
    const struct slot_request requests[] = {
        request_of(ids, 6, 12, &said[0]), request_of(ids + 1, 2, 6, &said[1]),
        request_of(ids + 2, 3, 6, &said[2])};
    for (int k = 0; k < 3; k++)
        submit(slots, &requests[k]);
    run_out(slots);
    ck_assert_int_eq(said[0].ends, 1);
    ck_assert_int_eq(said[0].end, ENDED_FAILED);
    ck_assert_int_eq(said[0].count, 4);
    expect_facts(said[0].message, "logits[6]: expected a number, got nan");
    script.nan_at = 0;
    expect_alone("its neighbour", &script, &said[1], ids + 1, 2, 6);
    expect_alone("the next in its slot", &script, &said[2], ids + 2, 3, 6);
    slots_free(&slots);
}
END_TEST

/* A listener that calls back. */
struct caller {
    struct slots *slots;
    int refused, calls;
};

static void call_back(struct caller *caller)
{
    const int32_t ids[] = {1};
    struct said said = {.count = 0};
    const struct slot_request request = request_of(ids, 1, 1, &said);
    int64_t ticket = -1;
    bool more;
    struct error why = {STATUS_OK, ""};
    caller->calls += 3;
    caller->refused += slots_submit(caller->slots, &request, &ticket, &why)
                       == STATUS_INVALID;
    caller->refused += slots_cancel(caller->slots, 1, &why)
                       == STATUS_INVALID;
    caller->refused += slots_step(caller->slots, &more, &why)
                       == STATUS_INVALID;
}

static bool call_on_token(void *context, int32_t id)
{
    (void)id;
    call_back(context);
    return true;
}

static void call_on_end(void *context, enum slot_end end,
                        const struct error *why)
{
    (void)end;
    (void)why;
    call_back(context);
}

START_TEST(nobody_calls_from_within)
{
    struct script script = script_new(198);
    const struct causal_lm lm = script_lm(&script);
    struct caller caller = {.slots = slots_of(&lm, 2, 20, 8, 2)};
    const int32_t ids[] = {1, 2};
    struct slot_request request = request_of(ids, 2, 3, NULL);
    request.on_token = call_on_token;
    request.on_end = call_on_end;
    request.context = &caller;
    submit(caller.slots, &request);
    run_out(caller.slots);
    request.max_new_tokens = 0;
    submit(caller.slots, &request);
    request.max_new_tokens = 1;
    expect_ok(slots_cancel(caller.slots, submit(caller.slots, &request),
                           &error), &error);
    ck_assert_int_eq(caller.calls, 3 * (3 + 3));
    ck_assert_int_eq(caller.refused, caller.calls);
    ck_assert_int_eq(slots_counts(caller.slots).waiting, 0);
    slots_free(&caller.slots);
}
END_TEST

/* ------------------------------------------------------- alone or together */

/* Stretch of seed 002: batch sequences with different completion lengths and
   implement slot replacement when one finishes. */
START_TEST(sequences_of_different_lengths_hand_their_slots_on)
{
    struct script script = script_new(199);
    const struct causal_lm lm = script_lm(&script);
    struct slots *slots = slots_of(&lm, 3, 24, 100, 9);
    struct said said[9] = {{.count = 0}};
    int32_t ids[9][3];
    static const int wanted[] = {2, 20, 7, 3, 11, 1, 5, 16, 4};
    uint64_t state = noise_start(199);
    random_ids(&state, 27, ids[0]);
    for (int k = 0; k < 9; k++) {
        const struct slot_request request = request_of(ids[k], 3, wanted[k],
                                                       &said[k]);
        submit(slots, &request);
    }
    int steps = 0, ended_before = 0;
    bool more = true;
    while (more) {
        const struct slots_counts before = slots_counts(slots);
        more = step(slots);
        steps++;
        int busy = 0, ended = 0;
        for (int slot = 0; slot < 3; slot++)
            busy += slots_shares(slots)[slot].tokens > 0;
        for (int k = 0; k < 9; k++)
            ended += said[k].ends;
        /* whoever ended in the last step has a successor in this one */
        const int in = 9 - ended_before;
        ck_assert_int_eq(busy, in < 3 ? in : 3);
        ck_assert_int_eq(before.waiting + before.seated, in);
        ended_before = ended;
    }
    for (int k = 0; k < 9; k++)
        expect_alone("a sequence", &script, &said[k], ids[k], 3, wanted[k]);
    /* 69 tokens in three slots are 23 steps at best. In slot 0 go 2, 3, 11
       and 4 of them, in slot 1 20, in slot 2 7, 1, 5 and 16. Batches that
       wait take 20 + 11 + 16. */
    ck_assert_int_eq(steps, 29);
    slots_free(&slots);
}
END_TEST

/* One of 64 requests of a random trace. */
struct guest {
    struct slot_request request;
    struct said said;
    int32_t ids[N], stop[3];
    int64_t ticket;
    bool cancelled;
};

static void guest_make(struct guest *guest, uint64_t *state, int capacity)
{
    const int tokens = 1 + noise_below(state, capacity - 1);
    const int most = capacity + 1 < N ? capacity + 1 : N;
    const int wanted = noise_below(state, most - tokens + 1);
    *guest = (struct guest){.ticket = -1};
    random_ids(state, tokens, guest->ids);
    guest->request = request_of(guest->ids, tokens, wanted, &guest->said);
    if (noise_below(state, 2) == 0) {
        guest->request.temperature = 0.5 + noise_below(state, 3);
        generator_seed(&guest->request.generator, noise_next(state),
                       noise_next(state));
    }
    if (noise_below(state, 3) == 0)
        guest->request.eos_token_id = noise_below(state, V);
    if (noise_below(state, 3) == 0) {
        guest->request.stop_tokens = 1 + noise_below(state, 2);
        random_ids(state, 3, guest->stop);
        guest->request.stop = guest->stop;
    }
}

static void expect_guest(const struct script *script,
                         const struct guest *guest)
{
    int32_t ids[N + 1];
    const int count = sample_alone(script, &guest->request, ids);
    ck_assert_int_eq(guest->said.ends, 1);
    ck_assert_int_le(guest->said.count, count);
    for (int k = 0; k < guest->said.count; k++)
        HOLDS(guest->said.ids[k] == ids[k], "new token %d is %d, expected"
              " %d", k, (int)guest->said.ids[k], (int)ids[k]);
    if (guest->said.end == ENDED_CANCELLED)
        ck_assert(guest->cancelled);
    else
        ck_assert_int_eq(guest->said.count, count);
}

START_TEST(on_random_traces_everybody_says_what_he_says_alone)
{
    static struct guest guests[64];
    for (unsigned run = 0; run < 60; run++) {
        struct script script = script_new(2000 + run);
        const struct causal_lm lm = script_lm(&script);
        uint64_t state = noise_start(2100 + run);
        const int rows = 1 + noise_below(&state, 5);
        const int capacity = 4 + noise_below(&state, N - 3);
        const int budget = rows + noise_below(&state, 3)
                                  * noise_below(&state, 12);
        struct slots *slots = slots_of(&lm, rows, capacity, budget, 5);
        int came = 0;
        bool more = true;
        for (int n = 0; more || came < 64; n++) {
            HOLDS(n < 4000, "the requests do not come to an end");
            while (came < 64 && noise_below(&state, 2) == 0) {
                struct guest *guest = &guests[came];
                guest_make(guest, &state, capacity);
                if (slots_submit(slots, &guest->request, &guest->ticket,
                                 &error) == STATUS_NO_MEMORY)
                    break;
                ck_assert_int_gt(guest->ticket, 0);
                came++;
            }
            if (came > 0 && noise_below(&state, 12) == 0) {
                struct guest *guest =
                    &guests[noise_below(&state, came)];
                const bool in = guest->said.ends == 0;
                ck_assert_int_eq(slots_cancel(slots, guest->ticket, &error),
                                 in ? STATUS_OK : STATUS_INVALID);
                guest->cancelled = guest->cancelled || in;
            }
            more = step(slots);
            HOLDS(more == (slots_counts(slots).seated
                           + slots_counts(slots).waiting > 0),
                  "more says %d", more);
        }
        for (int k = 0; k < 64; k++)
            expect_guest(&script, &guests[k]);
        for (int slot = 0; slot < rows; slot++) {
            ck_assert_int_eq(slots_lengths(slots)[slot], 0);
            ck_assert(row_is(slots, slot, 0, capacity, true));
        }
        slots_free(&slots);
    }
}
END_TEST

/* ------------------------------------------------------------ every family */

struct family {
    struct causal_lm lm;
    struct tiny_gpt *gpt;        /* one of the two */
    struct llama *llama;
};

/* 0: a tiny GPT, 1: a llama, 2: one with experts */
enum { FAMILIES = 3 };

static struct family family_new(int which)
{
    struct family family = {.gpt = NULL};
    if (which == 0) {
        const struct gpt_config config = {
            .vocab_size = V, .context_length = N, .d_model = 12,
            .n_layers = 2, .n_heads = 3, .d_ff = 7, .layer_norm_eps = 1e-5
        };
        family.gpt = noisy_model(&config, 1830);
        family.lm = tiny_gpt_causal_lm(family.gpt);
    } else {
        struct llama_config config = small_llama_config();
        if (which == 2) {
            config.n_experts = 5;
            config.experts_per_token = 2;
        }
        family.llama = noisy_llama(&config, 1831);
        family.lm = llama_causal_lm(family.llama);
    }
    return family;
}

static void family_free(struct family *family)
{
    tiny_gpt_free(&family->gpt);
    llama_free(&family->llama);
}

/* The last row of logits of a text, in one call over storage of its own. */
struct alone {
    const struct causal_lm *lm;
    struct past_key_values storage;      /* [1,H,N,D] */
    float *scratch, logits[V];
    size_t floats;
};

static struct alone alone_new(const struct causal_lm *lm)
{
    struct alone alone = {.lm = lm};
    const struct gpt_config config = cache_shape_config(&lm->cache);
    expect_ok(past_key_values_new(&alone.storage, &config, 1, N, &error),
              &error);
    alone.floats = lm->scratch_size(lm->model, 1, N, N);
    alone.scratch = calloc(alone.floats, sizeof *alone.scratch);
    ck_assert_ptr_nonnull(alone.scratch);
    return alone;
}

static void alone_free(struct alone *alone)
{
    past_key_values_free(&alone->storage);
    free(alone->scratch);
}

static const float *alone_says(struct alone *alone, const int32_t *text,
                               int tokens)
{
    int32_t positions[N];
    const int32_t length = 0;
    for (int t = 0; t < tokens; t++)
        positions[t] = t;
    const struct step whole = {
        .ids = text, .positions = positions, .batch = 1, .tokens = tokens,
        .storage = &alone->storage, .lengths = &length, .last_only = true,
        .logits = alone->logits
    };
    HOLDS(causal_lm_step(alone->lm, &whole, alone->scratch, alone->floats,
                         &error) == STATUS_OK, "%s", error.message);
    return alone->logits;
}

/* A handle that keeps the text of each slot, by what it is fed, and holds
   each row of logits against the text alone. */
struct judge {
    struct causal_lm inner;
    struct alone alone;
    const float *key;            /* where the storage of the slots begins */
    int capacity;
    int32_t texts[R_MAX][N];
    long rows, wrong;            /* rows of logits in all, and of other bits */
};

static void judge_run(const void *model, const struct step *step,
                      float *scratch)
{
    struct judge *judge = (struct judge *)model;
    const int *shape = step->storage->layers[0].key.shape;
    const ptrdiff_t row = (ptrdiff_t)shape[1] * shape[2] * shape[3];
    const ptrdiff_t first = (step->storage->layers[0].key.data - judge->key)
                            / row;
    judge->inner.run(judge->inner.model, step, scratch);
    for (int b = 0; b < step->batch; b++) {
        int32_t *text = judge->texts[first + b];
        const int length = step->lengths[b];
        memcpy(text + length, step->ids + b * step->tokens,
               (size_t)step->tokens * sizeof *text);
        judge->rows++;
        judge->wrong += memcmp(alone_says(&judge->alone, text,
                                          length + step->tokens),
                               step->logits + b * V,
                               V * sizeof (float)) != 0;
    }
}

static size_t judge_scratch(const void *model, int batch, int tokens,
                            int slots)
{
    const struct judge *judge = model;
    return judge->inner.scratch_size(judge->inner.model, batch, tokens,
                                     slots);
}

static struct causal_lm judge_lm(struct judge *judge,
                                 const struct causal_lm *inner)
{
    struct causal_lm lm = *inner;
    *judge = (struct judge){.inner = *inner};
    judge->alone = alone_new(&judge->inner);
    lm.model = judge;
    lm.scratch_size = judge_scratch;
    lm.run = judge_run;
    return lm;
}

/* Everything that no row may read: behind the lengths. */
static void poison(struct slots *slots, float value)
{
    const struct past_key_values *storage = slots_storage(slots);
    const int32_t *lengths = slots_lengths(slots);
    for (int l = 0; l < storage->n_layers; l++) {
        const int *shape = storage->layers[l].key.shape;
        for (int slot = 0; slot < shape[0]; slot++)
            for (int h = 0; h < shape[1]; h++)
                for (int j = lengths[slot]; j < shape[2]; j++)
                    for (int d = 0; d < shape[3]; d++) {
                        const size_t at = (size_t)(((slot * shape[1] + h)
                            * shape[2] + j) * shape[3] + d);
                        storage->layers[l].key.data[at] = value;
                        storage->layers[l].value.data[at] = -value;
                    }
    }
}

/* The greedy text of a model, alone. */
static void greedy_alone(const struct causal_lm *lm, int32_t *text,
                         int tokens, int wanted)
{
    struct alone alone = alone_new(lm);
    for (int t = tokens; t < tokens + wanted; t++)
        text[t] = sampler_greedy(alone_says(&alone, text, t), V);
    alone_free(&alone);
}

/* What a user must never see: A, B, A on one slot, poison in between. */
START_TEST(nothing_of_a_text_shows_in_the_next)
{
    static const float values[] = {NAN, 1e30f, INFINITY, 0};
    for (int which = 0; which < FAMILIES; which++) {
        struct family family = family_new(which);
        for (int v = 0; v < 4; v++) {
            struct judge judge;
            const struct causal_lm lm = judge_lm(&judge, &family.lm);
            struct slots *slots = slots_of(&lm, 1, N, 7, 0);
            uint64_t state = noise_start(1832);
            int32_t texts[2][N], want[2][N];
            judge.key = slots_storage(slots)->layers[0].key.data;
            random_ids(&state, N, texts[0]);
            random_ids(&state, N, texts[1]);
            memcpy(want, texts, sizeof want);
            greedy_alone(&family.lm, want[0], 3, 8);
            greedy_alone(&family.lm, want[1], 13, 10);
            for (int round = 0; round < 4; round++) {
                const int k = round % 2;
                struct said said = {.count = 0};
                const struct slot_request request = k == 0
                    ? request_of(texts[0], 3, 8, &said)
                    : request_of(texts[1], 13, 10, &said);
                poison(slots, values[v]);
                submit(slots, &request);
                run_out(slots);
                expect_said(k == 0 ? "A" : "B", &said,
                            want[k] + (k == 0 ? 3 : 13), k == 0 ? 8 : 10,
                            ENDED_LENGTH);
            }
            ck_assert_int_eq(judge.wrong, 0);
            ck_assert_int_ge(judge.rows, 2 * (8 + 10));
            alone_free(&judge.alone);
            slots_free(&slots);
        }
        family_free(&family);
    }
}
END_TEST

START_TEST(every_family_gives_each_row_the_bits_that_it_has_alone)
{
    for (int which = 0; which < FAMILIES; which++) {
        struct family family = family_new(which);
        for (unsigned run = 0; run < 10; run++) {
            struct judge judge;
            const struct causal_lm lm = judge_lm(&judge, &family.lm);
            uint64_t state = noise_start(2200 + run);
            const int rows = 1 + noise_below(&state, 6);
            const int budget = run == 0 ? INT_MAX
                               : rows + noise_below(&state, 9);
            struct slots *slots = slots_of(&lm, rows, N, budget, 20);
            struct said said[14];
            int32_t texts[14][N], wanted[14], tokens[14];
            judge.key = slots_storage(slots)->layers[0].key.data;
            for (int k = 0; k < 14; k++) {
                tokens[k] = 1 + noise_below(&state, 12);
                wanted[k] = 1 + noise_below(&state, N - tokens[k]);
                random_ids(&state, tokens[k], texts[k]);
                said[k] = (struct said){.count = 0};
                const struct slot_request request =
                    request_of(texts[k], tokens[k], wanted[k], &said[k]);
                submit(slots, &request);
                if (noise_below(&state, 3) == 0) {
                    poison(slots, NAN);
                    step(slots);
                }
            }
            run_out(slots);
            ck_assert_msg(judge.wrong == 0, "%ld of %ld rows of logits are"
                          " not those of the text alone", judge.wrong,
                          judge.rows);
            for (int k = 0; k < 14; k++) {
                greedy_alone(&family.lm, texts[k], tokens[k], wanted[k]);
                expect_said("a request", &said[k], texts[k] + tokens[k],
                            wanted[k], ENDED_LENGTH);
            }
            alone_free(&judge.alone);
            slots_free(&slots);
        }
        family_free(&family);
    }
}
END_TEST

/* Sampled, by chapter 6's own loop. */
START_TEST(a_request_says_what_generate_says)
{
    struct family family = family_new(0);
    struct slots *slots = slots_of(&family.lm, 3, N, 5, 8);
    struct said said[6] = {{.count = 0}};
    int32_t ids[6][5];
    uint64_t state = noise_start(1833);
    random_ids(&state, 30, ids[0]);
    for (int k = 0; k < 6; k++) {
        struct slot_request request = request_of(ids[k], 5, 3 + 3 * k,
                                                 &said[k]);
        request.temperature = k % 3;
        generator_seed(&request.generator, (uint64_t)k, 6);
        submit(slots, &request);
    }
    run_out(slots);
    for (int k = 0; k < 6; k++) {
        struct generator generator;
        struct generate_output output = {0};
        generator_seed(&generator, (uint64_t)k, 6);
        const struct generate_input input = {
            .ids = ids[k], .batch = 1, .tokens = 5,
            .max_new_tokens = 3 + 3 * k, .temperature = k % 3,
            .eos_token_id = NO_EOS, .generator = &generator
        };
        expect_ok(tiny_gpt_generate(family.gpt, &input, &output, &error),
                  &error);
        expect_said("a request", &said[k], output.ids + 5, 3 + 3 * k,
                    ENDED_LENGTH);
        generate_output_free(&output);
    }
    slots_free(&slots);
    family_free(&family);
}
END_TEST

START_TEST(submits_steps_and_cancels_allocate_nothing)
{
    for (int which = 0; which < FAMILIES; which++) {
        struct family family = family_new(which);
        struct slots *slots = slots_of(&family.lm, 3, N, 5, 8);
        struct said said = {.count = 0};
        const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
        enum status status = STATUS_OK;
        int64_t ticket = 0;
        bool more = true;
        long calls = allocator_calls();
        for (int k = 0; k < 8; k++) {
            struct slot_request request = request_of(ids, 1 + k % 7, 2 + k,
                                                     &said);
            request.temperature = k % 2;
            generator_seed(&request.generator, 1, 1);
            request.stop = ids;
            request.stop_tokens = 2;
            status |= slots_submit(slots, &request, &ticket, &error);
        }
        status |= slots_cancel(slots, ticket, &error);
        for (int n = 0; n < 200 && more; n++)
            status |= slots_step(slots, &more, &error);
        calls = allocator_calls() - calls;
        ck_assert_int_eq(status, STATUS_OK);
        ck_assert_int_eq(calls, 0);
        ck_assert(!more);
        ck_assert_int_eq(said.ends, 8);
        slots_free(&slots);
        family_free(&family);
    }
}
END_TEST

/* ------------------------------------------------------ static, continuous */

enum { LOAD = 40 };

/* When the steps are wide enough a request takes as many as it wants tokens.
   Then both rules are a matter of adding up. */
static int64_t steps_by_hand(enum batch_rule rule, const int *wanted,
                             int slots)
{
    int64_t free_at[R_MAX] = {0}, end = 0;
    for (int k = 0; k < LOAD; k++) {
        int first = 0;
        for (int slot = 1; slot < slots; slot++)
            if (free_at[slot] < free_at[first])
                first = slot;
        if (rule == BATCH_STATIC && k % slots == 0)
            for (int slot = 0; slot < slots; slot++)
                free_at[slot] = end;
        if (rule == BATCH_STATIC)
            first = k % slots;
        free_at[first] += wanted[k];
        end = free_at[first] > end ? free_at[first] : end;
    }
    return end;
}

START_TEST(both_rules_take_the_steps_that_add_up)
{
    static const int spreads[] = {0, 50, 100, GEOMETRIC};
    const struct call_cost cost = {3, 0, 0};
    for (int slots = 1; slots <= R_MAX; slots++)
        for (int s = 0; s < 4; s++)
            for (int rule = 0; rule < 2; rule++) {
                int wanted[LOAD];
                int64_t sum = 0;
                struct batch_count count;
                const struct schedule_limits limits = {100, slots};
                const struct batch_load load = {5, wanted, LOAD};
                batch_lengths(harness_seed(), 12, spreads[s], 40, LOAD,
                              wanted);
                for (int k = 0; k < LOAD; k++)
                    sum += wanted[k];
                expect_ok(batching_count((enum batch_rule)rule, &limits,
                                         &load, &cost, NULL, NULL, &count,
                                         &error), &error);
                ck_assert_int_eq(count.steps,
                                 steps_by_hand((enum batch_rule)rule, wanted,
                                               slots));
                ck_assert_int_eq(count.tokens, sum);
                ck_assert_int_eq(count.busy, sum);
                ck_assert_double_eq(count.time, 3.0 * (double)count.steps);
            }
}
END_TEST

START_TEST(lengths_spread_as_they_are_told)
{
    enum { MANY = 4000 };
    static int wanted[MANY];
    static const int spreads[] = {0, 25, 100, GEOMETRIC};
    for (int s = 0; s < 4; s++) {
        double sum = 0;
        int least = INT_MAX, most = 0;
        batch_lengths(harness_seed(), 24, spreads[s], 400, MANY, wanted);
        for (int k = 0; k < MANY; k++) {
            sum += wanted[k];
            least = wanted[k] < least ? wanted[k] : least;
            most = wanted[k] > most ? wanted[k] : most;
        }
        ck_assert_double_eq_tol(sum / MANY, 24, 2.5);
        ck_assert_int_ge(least, spreads[s] == GEOMETRIC ? 1
                         : spreads[s] == 100 ? 1
                         : 24 - 24 * spreads[s] / 100);
        if (spreads[s] != GEOMETRIC)
            ck_assert_int_le(most, 24 + 24 * spreads[s] / 100);
        else
            ck_assert_int_gt(most, 100);
    }
    batch_lengths(harness_seed(), 24, GEOMETRIC, 30, MANY, wanted);
    for (int k = 0; k < MANY; k++)
        ck_assert(wanted[k] >= 1 && wanted[k] <= 30);
}
END_TEST

START_TEST(slots_take_the_steps_that_were_counted)
{
    struct script script = script_new(1834);
    const struct causal_lm lm = script_lm(&script);
    const struct call_cost cost = {1, 1, 1};
    int wanted[LOAD];
    batch_lengths(harness_seed(), 8, 100, N - 5, LOAD, wanted);
    for (int budget = 4; budget < 12; budget += 3)
        for (int rule = 0; rule < 2; rule++) {
            const struct schedule_limits limits = {budget, 4};
            const struct batch_load load = {5, wanted, LOAD};
            struct batch_count count;
            struct batch_time time;
            expect_ok(batching_count((enum batch_rule)rule, &limits, &load,
                                     &cost, NULL, NULL, &count, &error),
                      &error);
            expect_ok(batching_time((enum batch_rule)rule, &lm, &limits,
                                    &load, 1, &time, &error), &error);
            ck_assert_int_eq(time.steps, count.steps);
            ck_assert_int_eq(time.tokens, count.tokens);
            ck_assert(time.calls >= time.steps && time.seconds >= 0);
        }
}
END_TEST

START_TEST(a_batching_study_is_made_or_nothing_is_changed)
{
    struct script script = script_new(1835);
    const struct causal_lm lm = script_lm(&script);
    const struct call_cost cost = {1, 1, 1};
    const struct schedule_limits limits = {4, 3}, none = {0, 1};
    const int wanted[] = {3, 1, 4, 1, 5}, nothing[] = {0};
    struct batch_load load = {2, wanted, 5};
    const struct batch_count was = {.steps = -3};
    struct batch_count count = was;
    struct batch_time time = {.steps = -3};
    for (int clock = 0; clock < 2; clock++)
        for (long n = 1; ; n++) {
            long live = allocator_live();
            allocator_fail_at(n);
            enum status status = clock
                ? batching_time(BATCH_STATIC, &lm, &limits, &load, 1, &time,
                                &error)
                : batching_count(BATCH_CONTINUOUS, &limits, &load, &cost,
                                 NULL, NULL, &count, &error);
            bool failed = allocator_stop();
            live = allocator_live() - live;
            ck_assert_int_eq(live, 0);
            ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
            if (!failed)
                break;
            ck_assert_int_eq(clock ? time.steps : count.steps, -3);
        }
    count = was;
    ck_assert_int_eq(batching_count(BATCH_STATIC, &none, &load, &cost, NULL,
                                    NULL, &count, &error), STATUS_INVALID);
    load.count = 0;
    ck_assert_int_eq(batching_count(BATCH_STATIC, &limits, &load, &cost,
                                    NULL, NULL, &count, &error),
                     STATUS_INVALID);
    expect_facts(error.message, "count: expected at least 1, got 0");
    load = (struct batch_load){1, nothing, 1};
    ck_assert_int_eq(batching_count(BATCH_STATIC, &limits, &load, &cost,
                                    NULL, NULL, &count, &error),
                     STATUS_INVALID);
    load = (struct batch_load){N, wanted, 5};
    ck_assert_int_eq(batching_time(BATCH_STATIC, &lm, &limits, &load, 1,
                                   &time, &error), STATUS_INVALID);
    ck_assert_int_eq(count.steps, -3);
}
END_TEST

START_TEST(the_batching_command_prints_both_rules)
{
    const char *said = run_program("batching --requests 24 --slots 4"
                                   " --spread 0", 0);
    /* 24 requests of 24 tokens in 4 slots */
    ck_assert_ptr_nonnull(strstr(said, "     0        144    4.00  100.0"
                                       "        144    4.00  100.0     1.00"));
    ck_assert_ptr_nonnull(strstr(said, "\n geom. "));
    said = run_program("batching --requests 24 --slots 4 --spread 0 --json",
                       0);
    ck_assert_ptr_nonnull(strstr(said, "{\"spread_percent\": 0, \"static\":"
                                 " {\"steps\": 144, \"tokens_a_step\": 4.000,"
                                 " \"busy_percent\": 100.00}"));
    ck_assert_ptr_nonnull(strstr(said, "{\"spread_percent\": null,"));
    said = run_program("batching --timeline --slots 1 --requests 2 --mean 1"
                       " --prompt 3 --budget 2", 0);
    ck_assert_str_eq(said, "0 0 0 0 2 2 2\n0 0 1 2 4 4 4\n"
                           "1 0 0 0 2 2 2\n1 0 1 2 4 4 4\n");
}
END_TEST

START_TEST(the_batching_command_refuses_what_it_cannot_count)
{
    static const struct { const char *words; int status; const char *says; }
        wrong[] = {
        {"batching --slots 0", 2, "--slots"},
        {"batching --slots 8 --budget 7", 1, "slots"},
        {"batching --spread 101", 2, "--spread"},
        {"batching --mean", 2, "--mean"},
        {"batching --frobnicate", 2, "--frobnicate"},
        {"batching --model nowhere", 1, "nowhere"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        ck_assert_ptr_nonnull(strstr(run_program(wrong[k].words,
                                                 wrong[k].status),
                                     wrong[k].says));
    ck_assert_ptr_nonnull(strstr(run_program("batching --help", 0),
                                 "--timeline"));
}
END_TEST

/* ------------------------------------------------------------------ table */

#define JOIN "join the end of the line"
#define PLAN "let the plan be that of chapter 11 for all who are in"
#define LOWEST "give whoever begins the lowest free slot"
#define SHARE "let the slot do the share"
#define CLOSE "close the line behind who leaves"
#define BACK "give the slot back"
#define HOLD "refuse a text that a slot does not hold"
#define ALONE "let the row be the request's alone"
#define COUNT "let count be the neighbours that are fed as many"
#define VIEW "let the view be the rows of the call"
#define GATHER "gather the row's next ids where they stand"
#define WRITE "let the logits of the call be those of its slots"
#define GROW "let the fed rows grow"
#define READ "let logits be what the row has said"
#define DRAW "draw the row's next id"
#define END "let end be how the text has ended"
#define EMPTY "empty the slot"
#define TICKET "find the request of the ticket"

static const struct test tests[] = {
    TEST(a_line_of_nothing_is_refused_by_name, 2,
         "check the limits of a line"),
    TEST(making_a_line_survives_each_failed_allocation, 2,
         "make room for the books"),
    TEST(who_waits_gets_the_slot_of_the_first_who_leaves, 2, PLAN),
    TEST(the_first_to_come_is_the_first_to_begin, 2, JOIN),
    TEST(a_share_says_what_the_slot_does, 2, SHARE),
    TEST(whoever_leaves_gives_the_slot_back, 2, BACK),
    TEST(a_newcomer_gets_the_lowest_free_slot, 2, LOWEST),
    TEST(the_line_closes_in_its_order, 2, CLOSE),
    TEST(a_full_line_refuses_and_changes_nothing, 2, "join the line"),
    TEST(a_step_that_was_not_entered_is_planned_again, 2, "plan by slots"),
    TEST(the_line_keeps_its_promises_on_random_traces, 2, "plan by slots"),
    TEST(with_one_slot_and_one_token_a_step_the_bound_is_exact, 2,
         "plan by slots"),
    TEST(slots_of_nothing_are_refused_by_name, 2,
         "check the limits of the slots"),
    TEST(making_slots_survives_each_failed_allocation, 2,
         "allocate what the slots need beside the storage"),
    TEST(every_argument_of_a_request_is_looked_at, 2, "check a request"),
    TEST(a_text_fits_to_its_last_token_and_not_one_more, 2, HOLD),
    TEST(a_request_for_no_tokens_ends_at_once, 2, "a request comes"),
    TEST(rows_grow_by_what_they_are_fed, 2, GROW),
    TEST(a_slot_is_emptied_and_its_neighbour_is_not, 2, EMPTY),
    TEST(each_row_is_fed_its_own_next_ids_where_they_stand, 2, GATHER),
    TEST(neighbours_with_equal_shares_are_one_call, 2, COUNT),
    TEST(a_call_sees_the_rows_of_its_slots_and_no_others, 2, VIEW),
    TEST(each_call_of_a_step_leaves_its_logits_to_its_slots, 2, WRITE),
    TEST(a_row_behind_a_free_slot_hears_itself, 2, READ),
    TEST(a_row_draws_from_its_own_generator, 2, DRAW),
    TEST(a_request_brings_its_draws_and_not_its_predecessors, 2, ALONE),
    TEST(each_text_ends_by_its_own_eos, 2, END),
    TEST(a_stop_is_compared_with_what_was_said, 2, END),
    TEST(whoever_cancels_ends_one_request, 2, TICKET),
    TEST(a_full_line_refuses_a_request_and_serves_the_others, 2,
         "a request comes"),
    TEST(logits_that_are_no_numbers_end_one_request, 2, "rows speak"),
    TEST(nobody_calls_from_within, 2, "refuse to be called from within"),
    TEST(sequences_of_different_lengths_hand_their_slots_on, 2,
         "a step of all slots"),
    TEST(on_random_traces_everybody_says_what_he_says_alone, 2,
         "a step of all slots"),
    TEST(nothing_of_a_text_shows_in_the_next, 2, EMPTY),
    TEST(every_family_gives_each_row_the_bits_that_it_has_alone, 2,
         "a step of all slots"),
    TEST(a_request_says_what_generate_says, 2, "a step of all slots"),
    TEST(submits_steps_and_cancels_allocate_nothing, 2,
         "a step of all slots"),
    TEST(both_rules_take_the_steps_that_add_up, 2, "count what slots do"),
    TEST(lengths_spread_as_they_are_told, 2, "make up lengths"),
    TEST(slots_take_the_steps_that_were_counted, 2, "time what slots do"),
    TEST(a_batching_study_is_made_or_nothing_is_changed, 2,
         "set up a count"),
    TEST(the_batching_command_prints_both_rules, 2,
         "print a row of the table"),
    TEST(the_batching_command_refuses_what_it_cannot_count, 2,
         "the options of the batching command"),
};

SUITE("chapter 18, slots", tests);
