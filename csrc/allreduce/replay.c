/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. */
#include "allreduce/replay.h"
#include "base/check.h"

bool replay_admits_event(const struct event_log *log, const struct member *m)
{
    return event_log_admit_event(log, m->events + 1, m->frozen);
}

uint64_t replay_complete(const struct event_log *log, const struct member *m)
{
    CHECK(member_counts_hold(m));
    uint64_t most = event_log_delivered(log, m->calls);
    return m->complete < most ? m->complete : most;
}

bool replay_admits_read(const struct event_log *log, const struct member *m)
{
    uint64_t least = event_log_complete(log, m->stats.delivered);
    return least == UINT64_MAX || m->complete >= least;
}

bool replay_call_over(const struct event_log *log, const struct member *m)
{
    uint64_t least = event_log_delivered(log, m->calls);
    bool one = m->deliver == PCOLL_DELIVER_ONE;
    if (!one && !event_log_knows_call(log, m->calls))
        return false;
    return (one || replay_admits_read(log, m)) &&
           (m->joining || least == UINT64_MAX || m->complete >= least);
}

bool replay_holds_read(const struct event_log *log, const struct member *m,
                       uint64_t last, uint64_t *horizon)
{
    if (!log || m->deliver == PCOLL_DELIVER_ONE || m->delivered > last)
        return false;
    *horizon = event_log_complete(log, m->stats.delivered);
    return true;
}
