/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap. */
#include "transport/sim/queue.h"

#include "transport/sim/memory.h"

static bool before(const struct happening *a, const struct happening *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void sim_heap_push(struct queue *q, struct happening h)
{
    if (q->count == q->capacity) {
        q->capacity = q->capacity ? 2 * q->capacity : 1024;
        q->heap = must(realloc(q->heap, q->capacity * sizeof *q->heap));
    }
    h.order = q->order++;
    size_t hole = q->count++;
    while (hole && before(&h, &q->heap[(hole - 1) / 2])) {
        q->heap[hole] = q->heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    q->heap[hole] = h;
}

struct happening sim_heap_pop(struct queue *q)
{
    struct happening top = q->heap[0], last = q->heap[--q->count];
    size_t hole = 0;
    for (size_t child; (child = 2 * hole + 1) < q->count; hole = child) {
        if (child + 1 < q->count && before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!before(&q->heap[child], &last))
            break;
        q->heap[hole] = q->heap[child];
    }
    q->heap[hole] = last;
    return top;
}
