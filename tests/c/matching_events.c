/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of events; see matching_events.h. */
#include "matching_events.h"

#include "check.h"

enum { MAX_EVENTS = 1 << 16 }; /* at one time */

static struct {
    struct event heap[MAX_EVENTS];
    uint32_t count;
    uint64_t number;
} queue;

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

static void insert(struct event e)
{
    EXPECT(queue.count < MAX_EVENTS, "more than %d events are to come", MAX_EVENTS);
    uint32_t at = queue.count++;
    for (; at && earlier(&e, &queue.heap[(at - 1) / 2]); at = (at - 1) / 2)
        queue.heap[at] = queue.heap[(at - 1) / 2];
    queue.heap[at] = e;
}

struct event events_pop(void)
{
    struct event first = queue.heap[0], last = queue.heap[--queue.count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < queue.count &&
            earlier(&queue.heap[child + 1], &queue.heap[child]))
            child++;
        if (child >= queue.count || !earlier(&queue.heap[child], &last))
            break;
        queue.heap[at] = queue.heap[child];
        at = child;
    }
    queue.heap[at] = last;
    return first;
}

void events_add(struct event e)
{
    e.number = queue.number++;
    insert(e);
}

void events_postpone(struct event e, int64_t until)
{
    e.at = until;
    insert(e);
}

void events_clear(void)
{
    queue.count = 0;
    queue.number = 0;
}

bool events_empty(void)
{
    return !queue.count;
}

int64_t events_first(void)
{
    return queue.heap[0].at;
}
