#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "slot_table.h"

struct slot_table {
    struct schedule_limits limits;
    int places;                  /* R + Q */
    int count;                   /* who are in */
    struct job *jobs;            /* [count] in the order of arrival */
    int *line;                   /* [count] their places */
    bool *taken;                 /* [places] */
    int *slot_of;                /* [places] or NO_SLOT */
    int *place_in;               /* [R] or NOBODY */
    struct share *shares;        /* [R] of the planned step, by jobs */
    int planned;                 /* their number */
};

int slot_table_count(const struct slot_table *table)
{
    return table->count;
}

int slot_table_slot(const struct slot_table *table, int place)
{
    return table->slot_of[place];
}

static enum status limits_check(const struct schedule_limits *limits,
                                int waiting, struct error *error)
{
    const struct job fine = {.prompt = 1, .wanted = 1};
    enum status status = schedule_check(limits, &fine, 1, error);
    if (status == STATUS_OK
        && (waiting < 0 || waiting > INT_MAX - limits->slots))
        status = error_set(error, STATUS_INVALID,
                           "waiting: expected 0 to %d, got %d",
                           INT_MAX - limits->slots, waiting);
    return status;
}

static enum status make_room(struct slot_table *made, struct error *error)
{
    const size_t places = (size_t)made->places;
    const size_t slots = (size_t)made->limits.slots;
    made->jobs = calloc(places, sizeof *made->jobs);
    made->line = calloc(places, sizeof *made->line);
    made->taken = calloc(places, sizeof *made->taken);
    made->slot_of = calloc(places, sizeof *made->slot_of);
    made->place_in = calloc(slots, sizeof *made->place_in);
    made->shares = calloc(slots, sizeof *made->shares);
    if (made->jobs == NULL || made->line == NULL || made->taken == NULL
        || made->slot_of == NULL || made->place_in == NULL
        || made->shares == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for a line of %d requests",
                         made->places);
    for (size_t place = 0; place < places; place++)
        made->slot_of[place] = NO_SLOT;
    for (size_t slot = 0; slot < slots; slot++)
        made->place_in[slot] = NOBODY;
    return STATUS_OK;
}

void slot_table_free(struct slot_table **table)
{
    if (table == NULL || *table == NULL)
        return;
    free((*table)->jobs);
    free((*table)->line);
    free((*table)->taken);
    free((*table)->slot_of);
    free((*table)->place_in);
    free((*table)->shares);
    free(*table);
    *table = NULL;
}

enum status slot_table_new(struct slot_table **table,
                           const struct schedule_limits *limits, int waiting,
                           struct error *error)
{
    enum status status = limits_check(limits, waiting, error);
    if (status != STATUS_OK)
        return status;
    struct slot_table *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a line");
    made->limits = *limits;
    made->places = limits->slots + waiting;
    status = make_room(made, error);
    if (status == STATUS_OK)
        *table = made;
    else
        slot_table_free(&made);
    return status;
}

enum status slot_table_join(struct slot_table *table, int prompt, int wanted,
                            int *place, struct error *error)
{
    const struct job job = {.prompt = prompt, .wanted = wanted};
    enum status status = schedule_check(&table->limits, &job, 1, error);
    if (status != STATUS_OK)
        return status;
    if (table->count == table->places)
        return error_set(error, STATUS_NO_MEMORY,
                         "waiting: all %d places are taken", table->places);
    int own = 0;
    while (table->taken[own])
        own++;
    table->taken[own] = true;
    table->jobs[table->count] = job;
    table->line[table->count] = own;
    table->count++;
    *place = own;
    return STATUS_OK;
}

void slot_table_leave(struct slot_table *table, int place)
{
    int at = 0;
    while (at < table->count && table->line[at] != place)
        at++;
    if (at == table->count)
        return;
    const size_t behind = (size_t)(table->count - at - 1);
    memmove(&table->jobs[at], &table->jobs[at + 1],
            behind * sizeof *table->jobs);
    memmove(&table->line[at], &table->line[at + 1],
            behind * sizeof *table->line);
    table->count--;
    const int slot = table->slot_of[place];
    if (slot != NO_SLOT)
        table->place_in[slot] = NOBODY;
    table->slot_of[place] = NO_SLOT;
    table->taken[place] = false;
}

static void give_slot(struct slot_table *table, int place, int slot)
{
    table->slot_of[place] = slot;
    table->place_in[slot] = place;
}

int slot_table_plan(struct slot_table *table, struct slot_share *shares)
{
    table->planned = schedule_step(&table->limits, table->jobs, table->count,
                                   table->shares);
    for (int k = 0; k < table->planned; k++) {
        const int place = table->line[table->shares[k].job];
        if (table->slot_of[place] == NO_SLOT) {
            int slot = 0;
            while (slot + 1 < table->limits.slots
                   && table->place_in[slot] != NOBODY)
                slot++;
            give_slot(table, place, slot);
        }
    }
    for (int slot = 0; slot < table->limits.slots; slot++)
        shares[slot] = (struct slot_share){.place = table->place_in[slot]};
    for (int k = 0; k < table->planned; k++) {
        const struct job *job = &table->jobs[table->shares[k].job];
        const int place = table->line[table->shares[k].job];
        const int slot = table->slot_of[place];
        const int tokens = table->shares[k].tokens;
        shares[slot] = (struct slot_share){
            .place = place, .before = job->fed, .tokens = tokens,
            .emits = job->fed + tokens >= job->prompt
        };
    }
    return table->planned;
}

void slot_table_enter(struct slot_table *table)
{
    schedule_enter(table->jobs, table->shares, table->planned);
    table->planned = 0;
}
