/* SPDX-License-Identifier: Apache-2.0 */
/* A replay: each event of this rank has its place in the order of the record. */
#include "turns.h"

static bool may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return arrivals_admit_event(h->vertex->arrivals, m.events + 1, m.frozen) ||
           atomic_load(&h->context->failure);
}

static int await(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->context->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? context_check(h->context) : rc;
}

int turns_await(pcoll_handle *h)
{
    return h->vertex->arrivals ? await(h, may_happen) : PCOLL_OK;
}

uint64_t turns_complete(pcoll_handle *h, const struct member *m)
{
    uint64_t most = arrivals_delivered(h->vertex->arrivals, m->calls);
    return m->complete < most ? m->complete : most;
}

/* deliver="all": are as many rounds complete as there were at this read? */
static bool may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    uint64_t least = arrivals_complete(h->vertex->arrivals, m.stats.delivered);
    return least == UINT64_MAX || m.complete >= least ||
           atomic_load(&h->context->failure);
}

bool turns_are_over(pcoll_handle *h)
{
    struct member m = handle_member(h);
    uint64_t least = arrivals_delivered(h->vertex->arrivals, m.calls);
    bool one = m.deliver == PCOLL_DELIVER_ONE;
    return (one || may_read(h)) &&
           (m.joining || least == UINT64_MAX || m.complete >= least);
}

int turns_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    struct arrivals *a = h->vertex->arrivals;
    if (!a || handle_member(h).deliver == PCOLL_DELIVER_ONE ||
        handle_member(h).delivered > last)
        return PCOLL_OK;
    *horizon = arrivals_complete(a, handle_member(h).stats.delivered);
    return await(h, may_read);
}

void turns_note_read(pcoll_handle *h)
{
    if (h->vertex->arrivals && handle_member(h).deliver == PCOLL_DELIVER_ALL)
        arrivals_note_read(h->vertex->arrivals, handle_member(h).seen);
}
