#include "merging.h"
#include <stdlib.h>

static const uint32_t NO_ORDER = UINT32_MAX;

void merge_room_free(struct merge_room *room)
{
    free(room->previous);
    free(room->next);
    free(room->joined);
    free(room->order);
    free(room->queue);
    *room = (struct merge_room){0};
}

static bool make_room(struct merge_room *room, int count)
{
    const size_t size = (size_t)count;
    if (count <= room->size)
        return true;
    merge_room_free(room);
    if (size > SIZE_MAX / (3 * sizeof *room->queue))
        return false;
    room->previous = malloc(size * sizeof *room->previous);
    room->next = malloc(size * sizeof *room->next);
    room->joined = malloc(size * sizeof *room->joined);
    room->order = malloc(size * sizeof *room->order);
    room->queue = malloc(3 * size * sizeof *room->queue);
    if (room->previous == NULL || room->next == NULL || room->joined == NULL
        || room->order == NULL || room->queue == NULL) {
        merge_room_free(room);
        return false;
    }
    room->size = count;
    return true;
}

static bool sooner(uint64_t one, uint64_t other)
{
    return one < other;
}

static void enter(struct merge_room *room, uint64_t entry)
{
    size_t at = room->queued++;
    while (at > 0 && sooner(entry, room->queue[(at - 1) / 2])) {
        room->queue[at] = room->queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    room->queue[at] = entry;
}

static uint64_t leave(struct merge_room *room)
{
    const uint64_t first = room->queue[0];
    const uint64_t last = room->queue[--room->queued];
    size_t at = 0, child = 1;
    while (child < room->queued) {
        if (child + 1 < room->queued
            && sooner(room->queue[child + 1], room->queue[child]))
            child++;
        if (!sooner(room->queue[child], last))
            break;
        room->queue[at] = room->queue[child];
        at = child;
        child = 2 * at + 1;
    }
    room->queue[at] = last;
    return first;
}

static void offer(const struct merge_rules *rules, struct merge_room *room,
                  const int32_t *ids, int32_t at)
{
    uint32_t order;
    if (at < 0)
        return;
    room->order[at] = NO_ORDER;
    if (room->next[at] < 0
        || !rules->find(rules->table, ids[at], ids[room->next[at]], &order,
                        &room->joined[at]))
        return;
    room->order[at] = order;
    room->queue[room->end - ++room->waiting] =
        (uint64_t)order << 32 | (uint32_t)at;
}

static void join(const struct merge_rules *rules, struct merge_room *room,
                 int32_t *ids, int32_t at)
{
    const int32_t right = room->next[at];
    ids[at] = room->joined[at];
    room->order[right] = NO_ORDER;
    room->next[at] = room->next[right];
    if (room->next[at] >= 0)
        room->previous[room->next[at]] = at;
    offer(rules, room, ids, room->previous[at]);
    offer(rules, room, ids, at);
}

static void let_in(struct merge_room *room)
{
    while (room->waiting > 0)
        enter(room, room->queue[room->end - room->waiting--]);
}

static void merge(const struct merge_rules *rules, struct merge_room *room,
                  int32_t *ids, const struct merge_watch *watch, size_t base)
{
    while (room->queued > 0) {
        const uint64_t entry = leave(room);
        const uint32_t order = (uint32_t)(entry >> 32);
        const int32_t at = (int32_t)(uint32_t)entry;
        if (room->order[at] == order) {
            const int32_t right = room->next[at];
            join(rules, room, ids, at);
            if (watch != NULL)
                watch->step(watch->context, base + (size_t)at,
                            base + (size_t)right, ids[at]);
        }
        if (!rules->passes || room->queued == 0 || room->queue[0] >> 32 != order)
            let_in(room);
    }
}

enum status merge_ids(const struct merge_rules *rules,
                      struct merge_room *room, int32_t *ids, int *count,
                      const struct merge_watch *watch, size_t base,
                      struct error *error)
{
    int left = 0;
    if (*count < 2)
        return STATUS_OK;
    if (!make_room(room, *count))
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory to merge %d ids", *count);
    room->queued = room->waiting = 0;
    room->end = 3 * (size_t)*count;
    for (int32_t at = 0; at < *count; at++) {
        room->previous[at] = at - 1;
        room->next[at] = at + 1 < *count ? at + 1 : -1;
    }
    for (int32_t at = 0; at < *count; at++)
        offer(rules, room, ids, at);
    let_in(room);
    merge(rules, room, ids, watch, base);
    for (int32_t at = 0; at >= 0; at = room->next[at])
        ids[left++] = ids[at];
    *count = left;
    return STATUS_OK;
}
