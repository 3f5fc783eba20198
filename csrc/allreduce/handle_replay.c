/* SPDX-License-Identifier: Apache-2.0 */
/* A handle that replays an event log (replay.h): whoever comes too early is to try again. One that
 * has none does all of this at once. */
#include "allreduce/handle.h"
#include "allreduce/replay.h"

static bool may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_event(handle_log(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

static bool may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_read(handle_log(h), &m) ||
           event_log_has_ended(handle_log(h), m.complete) ||
           atomic_load(&h->base.communicator->failure);
}

bool handle_replay_has_ended(pcoll_handle *h)
{
    return handle_log(h) &&
           event_log_has_ended(handle_log(h), handle_member(h).complete);
}

static int await(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->base.communicator->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? communicator_check(h->base.communicator) : rc;
}

int handle_await_turn(pcoll_handle *h)
{
    return handle_log(h) ? await(h, may_happen) : PCOLL_OK;
}

int handle_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    if (!handle_log(h))
        return PCOLL_OK;
    struct member m = handle_member(h);
    if (!replay_holds_read(handle_log(h), &m, last, horizon))
        return PCOLL_OK;
    int rc = await(h, may_read);
    m = handle_member(h);
    return rc == PCOLL_OK && !replay_admits_read(handle_log(h), &m)
               ? event_log_end_error(handle_log(h))
               : rc;
}

void handle_note_read(pcoll_handle *h)
{
    if (handle_log(h) && handle_member(h).deliver == PCOLL_DELIVER_ALL)
        event_log_note(handle_log(h), LOGGED_READ, handle_member(h).seen);
}

bool handle_replay_is_over(pcoll_handle *h)
{
    if (!handle_log(h))
        return true;
    struct member m = handle_member(h);
    return replay_call_over(handle_log(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}
