#ifndef SLOT_TABLE_H
#define SLOT_TABLE_H

#include "schedule.h"

enum { NO_SLOT = -1, NOBODY = -1 };

struct slot_table;

/* Nobody is in. Room for limits->slots + waiting requests, which is all that
   it will ever allocate. The caller owns it: slot_table_free, which nulls it.
   Refuses limits that schedule_check refuses, waiting below 0, and more
   requests than an int counts; *table is unchanged on error. */
enum status slot_table_new(struct slot_table **table,
                           const struct schedule_limits *limits, int waiting,
                           struct error *error);
void slot_table_free(struct slot_table **table);

int slot_table_count(const struct slot_table *table);   /* who are in */
/* The slot of a place; NO_SLOT while it waits or is free. */
int slot_table_slot(const struct slot_table *table, int place);

/* A request of `prompt` tokens that wants `wanted` new ones, at the end of
   the line. *place is its number, 0 … slots+waiting-1, until it leaves.
   Refuses what schedule_check refuses of a job and, with STATUS_NO_MEMORY, a
   request when all places are taken. */
enum status slot_table_join(struct slot_table *table, int prompt, int wanted,
                            int *place, struct error *error);

/* Whatever it has been fed. Its slot and its place are free. */
void slot_table_leave(struct slot_table *table, int place);

struct slot_share {
    int place;                   /* whose slot it is, or NOBODY */
    int before;                  /* tokens of its text that it has been fed */
    int tokens;                  /* what it is fed now; 0: nothing */
    bool emits;                  /* a new token follows the last of them */
};

/* Writes shares [slots] of the next step and gives slots to those who begin.
   Returns how many are fed, 0 when nobody is in. Those who have been fed all
   that they can use have left. */
int slot_table_plan(struct slot_table *table, struct slot_share *shares);

/* The planned step has run. Without it the same step is planned again. */
void slot_table_enter(struct slot_table *table);

#endif
