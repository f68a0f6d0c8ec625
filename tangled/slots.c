#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "sampler.h"
#include "slots.h"

struct row {                     /* a request, by its place */
    int64_t ticket;              /* 0: nobody's */
    struct slot_request request; /* ids and stop are copied: */
    int32_t stop[STOP_MAX];
    struct generator generator;
    int tokens;                  /* of its text: prompt and new */
};

struct slots {
    struct causal_lm lm;
    struct slots_limits limits;
    struct slot_table *table;
    struct slot_share *shares;           /* [R] of a step */
    struct past_key_values storage;      /* L pairs [R,H,S,D] */
    struct past_key_values view;         /* some of its rows */
    int32_t *lengths;                    /* [R] */
    struct row *rows;                    /* [R+Q] */
    int32_t *texts;                      /* [R+Q,S+1] */
    int32_t *ids, *positions;            /* of a call */
    float *logits;                       /* [R,V] */
    float *scratch;
    size_t scratch_floats;
    bool inside;                         /* of the caller's function */
    int64_t tickets;                     /* so far */
    struct slots_counts counts;
};

static int32_t *text_of(const struct slots *slots, int place)
{
    return slots->texts
           + (size_t)place * ((size_t)slots->limits.capacity + 1);
}

static enum status limits_check(const struct causal_lm *lm,
                                const struct slots_limits *limits,
                                struct error *error)
{
    if (lm == NULL || limits == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         lm == NULL ? "lm" : "limits");
    if (limits->capacity < 1 || limits->capacity > lm->context_length)
        return error_set(error, STATUS_INVALID,
                         "capacity: expected 1 to the context length %d,"
                         " got %d", lm->context_length, limits->capacity);
    return STATUS_OK;
}

static size_t largest_scratch(const struct slots *slots)
{
    const struct slots_limits *limits = &slots->limits;
    size_t floats = 0;
    for (int rows = 1; rows <= limits->slots; rows++) {
        const int fair = limits->budget / rows;
        const size_t size = slots->lm.scratch_size(
            slots->lm.model, rows,
            fair < limits->capacity ? fair : limits->capacity,
            limits->capacity);
        if (size > floats)
            floats = size;
    }
    return floats;
}

static enum status make_room(struct slots *made, struct error *error)
{
    const struct slots_limits *limits = &made->limits;
    const struct gpt_config config = cache_shape_config(&made->lm.cache);
    const struct schedule_limits line = {limits->budget, limits->slots};
    enum status status = slot_table_new(&made->table, &line, limits->waiting,
                                        error);
    if (status == STATUS_OK)
        status = past_key_values_new(&made->storage, &config, limits->slots,
                                     limits->capacity, error);
    if (status != STATUS_OK)
        return status;
    const size_t slots = (size_t)limits->slots;
    const size_t places = slots + (size_t)limits->waiting;
    const size_t most = slots * (size_t)limits->capacity;
    const size_t call = (size_t)limits->budget < most
        ? (size_t)limits->budget : most;
    made->view.n_layers = made->storage.n_layers;
    const size_t vocab = (size_t)made->lm.vocab_size;
    made->view.layers = calloc((size_t)made->view.n_layers,
                               sizeof *made->view.layers);
    made->shares = calloc(slots, sizeof *made->shares);
    made->lengths = calloc(slots, sizeof *made->lengths);
    made->rows = calloc(places, sizeof *made->rows);
    made->texts = calloc(places, ((size_t)limits->capacity + 1)
                                 * sizeof *made->texts);
    made->ids = calloc(call, sizeof *made->ids);
    made->positions = calloc(call, sizeof *made->positions);
    made->logits = calloc(slots, vocab * sizeof *made->logits);
    made->scratch_floats = largest_scratch(made);
    made->scratch = calloc(made->scratch_floats, sizeof *made->scratch);
    if (made->view.layers == NULL || made->shares == NULL
        || made->lengths == NULL || made->rows == NULL || made->texts == NULL
        || made->ids == NULL || made->positions == NULL || made->logits == NULL
        || made->scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d slots and"
                         " %d requests beyond them", limits->slots,
                         limits->waiting);
    return STATUS_OK;
}

void slots_free(struct slots **slots)
{
    if (slots == NULL || *slots == NULL)
        return;
    struct slots *old = *slots;
    slot_table_free(&old->table);
    past_key_values_free(&old->storage);
    free(old->view.layers);
    void *const blocks[] = {old->shares, old->lengths, old->rows, old->texts,
                            old->ids, old->positions, old->logits,
                            old->scratch, old};
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++)
        free(blocks[k]);
    *slots = NULL;
}

enum status slots_new(struct slots **slots, const struct causal_lm *lm,
                      const struct slots_limits *limits, struct error *error)
{
    enum status status = limits_check(lm, limits, error);
    if (status != STATUS_OK)
        return status;
    struct slots *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for slots");
    made->lm = *lm;
    made->limits = *limits;
    status = make_room(made, error);
    if (status == STATUS_OK)
        *slots = made;
    else
        slots_free(&made);
    return status;
}

static enum status not_inside(const struct slots *slots, struct error *error)
{
    if (slots == NULL)
        return error_set(error, STATUS_INVALID, "slots: is NULL");
    if (slots->inside)
        return error_set(error, STATUS_INVALID,
                         "slots: called from within on_token or on_end");
    return STATUS_OK;
}

const char *slot_end_name(enum slot_end end)
{
    static const char *const names[] = {"not ended", "length", "eos", "stop",
                                        "cancelled", "failed"};
    return names[end];
}

static void tell_end(struct slots *slots, const struct slot_request *request,
                     enum slot_end end, const struct error *error)
{
    if (request->on_end == NULL)
        return;
    slots->inside = true;
    request->on_end(request->context, end, error);
    slots->inside = false;
}

static void empty_slot(struct slots *slots, int slot)
{
    const struct causal_lm *lm = &slots->lm;
    const size_t head = (size_t)slots->limits.capacity
                        * (size_t)lm->cache.head_dim;
    const size_t row = (size_t)lm->cache.n_kv_heads * head;
    const size_t used = (size_t)slots->lengths[slot]
                        * (size_t)lm->cache.head_dim;
    for (int l = 0; l < slots->storage.n_layers; l++)
        for (int h = 0; h < lm->cache.n_kv_heads; h++) {
            const size_t first = (size_t)slot * row + (size_t)h * head;
            const struct layer_kv *layer = &slots->storage.layers[l];
            memset(layer->key.data + first, 0, used * sizeof (float));
            memset(layer->value.data + first, 0, used * sizeof (float));
        }
    slots->lengths[slot] = 0;
}

static void end_text(struct slots *slots, int place, enum slot_end end,
                     const struct error *error)
{
    const struct slot_request request = slots->rows[place].request;
    const int slot = slot_table_slot(slots->table, place);
    if (slot != NO_SLOT)
        empty_slot(slots, slot);
    slots->rows[place].ticket = 0;
    slot_table_leave(slots->table, place);
    tell_end(slots, &request, end, error);
}

enum status slots_cancel(struct slots *slots, int64_t ticket,
                         struct error *error)
{
    enum status status = not_inside(slots, error);
    if (status != STATUS_OK)
        return status;
    const int places = slots->limits.slots + slots->limits.waiting;
    int place = 0;
    while (place < places && slots->rows[place].ticket != ticket)
        place++;
    if (ticket < 1 || place >= places)
        return error_set(error, STATUS_INVALID,
                         "ticket: %lld is not in", (long long)ticket);
    end_text(slots, place, ENDED_CANCELLED, NULL);
    return STATUS_OK;
}

static enum status ids_check(const struct slots *slots,
                             const struct slot_request *request,
                             struct error *error)
{
    const int last = slots->lm.vocab_size - 1;
    for (int t = 0; t < request->tokens; t++)
        if (request->ids[t] < 0 || request->ids[t] > last)
            return error_set(error, STATUS_INVALID,
                             "ids[%d]: expected 0 to %d, got %d", t, last,
                             (int)request->ids[t]);
    if (request->eos_token_id < NO_EOS || request->eos_token_id > last)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d to %d, got %d", NO_EOS,
                         last, (int)request->eos_token_id);
    if (request->stop_tokens < 0 || request->stop_tokens > STOP_MAX)
        return error_set(error, STATUS_INVALID,
                         "stop_tokens: expected 0 to %d, got %d", STOP_MAX,
                         request->stop_tokens);
    if (request->stop_tokens > 0 && request->stop == NULL)
        return error_set(error, STATUS_INVALID, "stop: is NULL");
    for (int k = 0; k < request->stop_tokens; k++)
        if (request->stop[k] < 0 || request->stop[k] > last)
            return error_set(error, STATUS_INVALID,
                             "stop[%d]: expected 0 to %d, got %d", k, last,
                             (int)request->stop[k]);
    return STATUS_OK;
}

static enum status request_check(const struct slots *slots,
                                 const struct slot_request *request,
                                 const int64_t *ticket, struct error *error)
{
    if (request == NULL || ticket == NULL || request->ids == NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL",
                         request == NULL ? "request"
                         : ticket == NULL ? "ticket" : "ids");
    if (request->tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least 1, got %d",
                         request->tokens);
    if (request->max_new_tokens < 0)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: expected at least 0, got %d",
                         request->max_new_tokens);
    const int context = slots->lm.context_length;
    const int capacity = slots->limits.capacity;
    if (request->max_new_tokens > context - request->tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: %d prompt tokens and %d new ones exceed"
                         " context_length %d", request->tokens,
                         request->max_new_tokens, context);
    if (request->max_new_tokens - 1 > capacity - request->tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: %d prompt tokens and %d new ones but"
                         " the last exceed the capacity %d of a slot",
                         request->tokens, request->max_new_tokens, capacity);
    if (!(request->temperature >= 0) || isinf(request->temperature))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number >= 0, got %g",
                         request->temperature);
    if (request->temperature > 0 && request->generator.increment % 2 == 0)
        return error_set(error, STATUS_INVALID,
                         "generator: sampling needs one that was seeded");
    return ids_check(slots, request, error);
}

enum status slots_submit(struct slots *slots,
                         const struct slot_request *request, int64_t *ticket,
                         struct error *error)
{
    enum status status = not_inside(slots, error);
    if (status == STATUS_OK)
        status = request_check(slots, request, ticket, error);
    if (status != STATUS_OK)
        return status;
    int place = NOBODY;
    if (request->max_new_tokens > 0) {
        status = slot_table_join(slots->table, request->tokens,
                                 request->max_new_tokens, &place, error);
        if (status != STATUS_OK)
            return status;
        struct row *row = &slots->rows[place];
        *row = (struct row){
            .request = *request, .generator = request->generator,
            .tokens = request->tokens
        };
        memcpy(text_of(slots, place), request->ids,
               (size_t)request->tokens * sizeof *request->ids);
        for (int k = 0; k < request->stop_tokens; k++)
            row->stop[k] = request->stop[k];
        row->request.ids = row->request.stop = NULL;
    }
    *ticket = ++slots->tickets;
    if (place == NOBODY)
        tell_end(slots, request, ENDED_LENGTH, NULL);
    else
        slots->rows[place].ticket = *ticket;
    return STATUS_OK;
}

static void look_at(struct slots *slots, int first, int count)
{
    for (int l = 0; l < slots->view.n_layers; l++) {
        const struct layer_kv *whole = &slots->storage.layers[l];
        struct layer_kv *part = &slots->view.layers[l];
        const int *shape = whole->key.shape;
        const size_t row = (size_t)shape[1] * (size_t)shape[2] * (size_t)shape[3];
        *part = *whole;
        part->key.data += (size_t)first * row;
        part->value.data += (size_t)first * row;
        part->key.shape[0] = part->value.shape[0] = count;
    }
}

static enum status feed_rows(struct slots *slots, int first, int count,
                             struct error *error)
{
    const int tokens = slots->shares[first].tokens;
    for (int k = 0; k < count; k++) {
        const struct slot_share *share = &slots->shares[first + k];
        int32_t *ids = slots->ids + (size_t)k * (size_t)tokens;
        int32_t *positions = slots->positions + (size_t)k * (size_t)tokens;
        memcpy(ids, text_of(slots, share->place) + share->before,
               (size_t)tokens * sizeof *ids);
        for (int t = 0; t < tokens; t++)
            positions[t] = slots->lengths[first + k] + t;
    }
    look_at(slots, first, count);
    struct step step = {
        .ids = slots->ids, .positions = slots->positions, .batch = count,
        .tokens = tokens, .storage = &slots->view,
        .lengths = slots->lengths + first, .last_only = true
    };
    step.logits = slots->logits
                  + (size_t)first * (size_t)slots->lm.vocab_size;
    slots->counts.calls++;
    return causal_lm_step(&slots->lm, &step, slots->scratch,
                          slots->scratch_floats, error);
}

static enum status feed(struct slots *slots, struct error *error)
{
    const struct slot_share *shares = slots->shares;
    const int all = slots->limits.slots;
    enum status status = STATUS_OK;
    int count;
    for (int first = 0; first < all && status == STATUS_OK;
         first += count) {
        count = 1;
        while (first + count < all
               && shares[first + count].tokens == shares[first].tokens)
            count++;
        if (shares[first].tokens > 0)
            status = feed_rows(slots, first, count, error);
    }
    return status;
}

static enum status choose(const struct slots *slots, struct row *row,
                          const float *logits, int32_t *id,
                          struct error *error)
{
    if (row->request.temperature > 0)
        return sampler_sample(logits, slots->lm.vocab_size,
                              row->request.temperature, &row->generator, id,
                              error);
    enum status status = sampler_check(logits, slots->lm.vocab_size, error);
    if (status == STATUS_OK)
        *id = sampler_greedy(logits, slots->lm.vocab_size);
    return status;
}

static bool stop_reached(const struct row *row, const int32_t *text,
                         int said)
{
    const int count = row->request.stop_tokens;
    return count > 0 && said >= count
           && memcmp(text + row->tokens - count, row->stop,
                     (size_t)count * sizeof *text) == 0;
}

static enum slot_end how_ended(const struct slots *slots, int place,
                               int32_t id, bool go_on)
{
    const struct row *row = &slots->rows[place];
    const int said = row->tokens - row->request.tokens;
    enum slot_end end = NOT_ENDED;
    if (id == row->request.eos_token_id)
        end = ENDED_EOS;
    else if (!go_on || stop_reached(row, text_of(slots, place), said))
        end = ENDED_STOP;
    else if (said == row->request.max_new_tokens)
        end = ENDED_LENGTH;
    return end;
}

static void speak(struct slots *slots, int slot)
{
    const int place = slots->shares[slot].place;
    struct row *row = &slots->rows[place];
    const size_t vocab = (size_t)slots->lm.vocab_size;
    struct error error;
    int32_t id = 0;
    bool go_on = true;
    const float *logits = slots->logits + (size_t)slot * vocab;
    if (choose(slots, row, logits, &id, &error) != STATUS_OK) {
        end_text(slots, place, ENDED_FAILED, &error);
        return;
    }
    text_of(slots, place)[row->tokens++] = id;
    slots->counts.emitted++;
    if (row->request.on_token != NULL) {
        slots->inside = true;
        go_on = row->request.on_token(row->request.context, id);
        slots->inside = false;
    }
    const enum slot_end end = how_ended(slots, place, id, go_on);
    if (end != NOT_ENDED)
        end_text(slots, place, end, NULL);
}

enum status slots_step(struct slots *slots, bool *more, struct error *error)
{
    enum status status = not_inside(slots, error);
    if (status == STATUS_OK && more == NULL)
        status = error_set(error, STATUS_INVALID, "more: is NULL");
    if (status != STATUS_OK)
        return status;
    const int all = slots->limits.slots;
    if (slot_table_plan(slots->table, slots->shares) > 0) {
        status = feed(slots, error);
        if (status != STATUS_OK)
            return status;
        slot_table_enter(slots->table);
        slots->counts.steps++;
        for (int slot = 0; slot < all; slot++) {
            const struct slot_share *share = &slots->shares[slot];
            slots->lengths[slot] += share->tokens;
            slots->counts.fed += share->tokens;
        }
        for (int slot = 0; slot < all; slot++)
            if (slots->shares[slot].emits)
                speak(slots, slot);
    }
    *more = slot_table_count(slots->table) > 0;
    return STATUS_OK;
}

struct slots_counts slots_counts(const struct slots *slots)
{
    struct slots_counts counts = slots->counts;
    const int places = slots->limits.slots + slots->limits.waiting;
    for (int place = 0; place < places; place++)
        counts.seated += slot_table_slot(slots->table, place) != NO_SLOT;
    counts.waiting = slot_table_count(slots->table) - counts.seated;
    return counts;
}

const struct slot_share *slots_shares(const struct slots *slots)
{
    return slots->shares;
}

const struct past_key_values *slots_storage(const struct slots *slots)
{
    return &slots->storage;
}

const int32_t *slots_lengths(const struct slots *slots)
{
    return slots->lengths;
}
