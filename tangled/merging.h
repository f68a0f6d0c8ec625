#ifndef MERGING_H
#define MERGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "error.h"
#include "tokenizer.h"

struct merge_rules {
    const void *table;
    /* Whether the two may be joined. If so, *order says how soon, the lowest
       first, below UINT32_MAX; of two equal ones the leftmost goes first. */
    bool (*find)(const void *table, int32_t left, int32_t right,
                 uint32_t *order, int32_t *joined);
    /* Every place of the lowest order is joined before any pair counts that
       came about by it. */
    bool passes;
};

/* Zero-initialise; merge_room_free. */
struct merge_room {
    int size;
    int32_t *previous, *next;    /* [size] neighbours, or -1 */
    int32_t *joined;             /* [size] with the one behind it */
    uint32_t *order;             /* [size] of that; NO_ORDER: not joined */
    uint64_t *queue;             /* [3 * size] a heap from the front, and what
                                    waits to enter it from the back */
    size_t queued, waiting, end;
};
void merge_room_free(struct merge_room *room);

/* Joins what the rules allow; *count becomes smaller. watch may be NULL, and
   sees indices of the list as it came, plus base. The ids are unchanged on
   error. */
enum status merge_ids(const struct merge_rules *rules,
                      struct merge_room *room, int32_t *ids, int *count,
                      const struct merge_watch *watch, size_t base,
                      struct error *error);

#endif
