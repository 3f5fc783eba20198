/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle: what the application calls (include/partialcoll.h), on top of the domain for
 * deposits and results, of the progress engine for waiting. Here are rounds and what they
 * give; what is handed in is in handle_deposit.c, waiting in handle_waiting.c.
 *
 * Threads: one at a time on a handle. Everything that the agent shares with the application
 * is behind the domain's mutex, the drive lock or an atomic.
 */
#include "base/clock.h"
#include "base/error.h"
#include "allreduce/handle.h"
#include "allreduce/replay.h"

/* The call is over: the application may start the next one. */
static int finish(pcoll_handle *h)
{
    int rc = h->endpoint->domain->ops->change(h->endpoint->domain, member_finish);
    h->started = h->started && rc != PCOLL_OK;
    if (rc == PCOLL_OK && handle_log(h))
        event_log_note(handle_log(h), LOGGED_CALL, handle_member(h).delivered);
    return rc;
}

static int deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                   pcoll_round *round, uint64_t *masks)
{
    struct domain *d = h->endpoint->domain;
    bool moved = false;
    uint64_t horizon = UINT64_MAX;
    int rc = handle_check_buffers(h, "recv", (const void *const *)recv);
    if (rc == PCOLL_OK)
        rc = handle_await_read(h, last, &horizon);
    if (rc == PCOLL_OK)
        rc = d->ops->deliver(d, last, horizon, recv, round, masks, &moved);
    if (rc == PCOLL_OK)
        handle_note_read(h);
    if ((moved || handle_log(h)) && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return rc;
}

int pcoll_handle_take(pcoll_handle *h, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks)
{
    int rc = fail_if_null(round) ?: handle_enter_waiting(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_wait_for_call(h, timeout_us);
    if (rc == PCOLL_OK)
        rc = deliver(h, UINT64_MAX, recv, round, masks);
    if (rc == PCOLL_OK)
        rc = finish(h);
    return handle_leave(h, rc);
}

int pcoll_handle_measure(pcoll_handle *h, const void *const *send, void *const *recv,
                         uint64_t rounds, double *microseconds, pcoll_round *round,
                         uint64_t *masks)
{
    int64_t begin = clock_ns();
    int rc = fail_if_null(microseconds, round)
                 ?: (rounds ? PCOLL_OK
                            : fail(PCOLL_EINVAL, "rounds: expected at least 1, got 0"));
    for (uint64_t i = 0; i < rounds && rc == PCOLL_OK; i++) {
        do
            rc = pcoll_handle_start(h, send);
        while (rc == PCOLL_EAGAIN);
        while (rc == PCOLL_OK &&
               (rc = pcoll_handle_take(h, 1000000, recv, round, masks)) == PCOLL_EAGAIN)
            rc = PCOLL_OK;
    }
    if (rc == PCOLL_OK)
        *microseconds = (double)(clock_ns() - begin) / 1e3 / (double)rounds;
    return rc;
}

int pcoll_handle_deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                         pcoll_round *round, uint64_t *masks)
{
    int rc = fail_if_null(round) ?: handle_enter(h);
    return rc == PCOLL_OK ? handle_leave(h, deliver(h, last, recv, round, masks)) : rc;
}

int pcoll_handle_rounds(pcoll_handle *h, uint64_t *complete, uint64_t *delivered)
{
    int rc = fail_if_null(complete, delivered) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = handle_member(h);
    *complete = replay_complete(handle_log(h), &m);
    *delivered = m.delivered;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_finish(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, finish(h));
}

static int change(pcoll_handle *h, int (*step)(struct member *))
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_await_turn(h);
    if (rc == PCOLL_OK)
        rc = handle_check(h);
    if (rc == PCOLL_OK && !staging_arrived(h->endpoint->staging))
        rc = fail(PCOLL_ESTATE, "wait for the round of the last start first");
    if (rc == PCOLL_OK)
        rc = h->endpoint->domain->ops->change(h->endpoint->domain, step);
    h->started = h->started || (rc == PCOLL_OK && step == member_join);
    if (rc == PCOLL_OK && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return handle_leave(h, rc);
}

int pcoll_handle_join(pcoll_handle *h)
{
    return change(h, member_join);
}

int pcoll_handle_leave(pcoll_handle *h)
{
    return change(h, member_leave);
}

int pcoll_handle_progress(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    progress_poll(h->base.communicator->progress);
    return handle_leave(h, communicator_check(h->base.communicator));
}
