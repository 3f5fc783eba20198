/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's view of the rounds; see member.h. */
#include "protocol/member.h"

#include "base/check.h"
#include "base/error.h"

void member_init(struct member *m, uint32_t rank, const pcoll_options *options)
{
    CHECK(options->history >= 1);
    *m = (struct member){.rank = rank,
                         .deliver = options->deliver,
                         .history = options->history,
                         .taken_in = NO_ROUND,
                         .reading = NO_ROUND,
                         .joined_in = NO_ROUND,
                         .live = true};
    contribution_init(&m->contribution, options->late, options->owned_send);
}

int member_begin(struct member *m)
{
    CHECK(member_counts_hold(m));
    if (m->left)
        return fail(PCOLL_ESTATE,
                    "this rank has left the collective: it can only be freed");
    if (m->started)
        return fail(PCOLL_ESTATE,
                    "started twice: wait for the round of the last start first");
    m->started = true;
    return PCOLL_OK;
}

/* "one": the call's own round. "all": what has not been seen, else the open round. */
static void choose_round(struct member *m, bool *open)
{
    if (m->deliver == PCOLL_DELIVER_ONE) {
        m->wanted = m->call + 1;
        *open = m->frozen <= m->call;
    } else {
        bool unseen = m->complete > m->delivered;
        m->wanted = m->delivered + 1;
        *open = !unseen && m->frozen == m->complete;
    }
}

enum deposit_outcome member_publish(struct member *m, struct deposit_plan plan)
{
    CHECK(m->started);
    CHECK(member_counts_hold(m));
    bool open;
    choose_round(m, &open);
    m->stats.calls++;
    m->events++;
    if (!open && m->contribution.late == PCOLL_LATE_DROP) {
        m->taken_in = NO_ROUND;
        m->stats.dropped++;
        return DEPOSIT_DROPPED;
    }
    contribution_publish(&m->contribution, plan);
    m->taken_in = NO_ROUND;
    m->arrived = open;
    if (open)
        m->stats.arrived++;
    else
        m->stats.stored++;
    return open ? DEPOSIT_ARRIVED : DEPOSIT_STORED;
}

bool member_ready(const struct member *m)
{
    CHECK(member_counts_hold(m));
    return m->complete >= m->wanted;
}

bool member_read_begin(struct member *m, uint64_t last, uint64_t horizon,
                       uint64_t *round)
{
    CHECK(m->delivered <= m->complete);
    m->reading = NO_ROUND; /* what was begun was overwritten */
    uint64_t complete = m->complete < horizon ? m->complete : horizon;
    uint64_t oldest = complete > m->history ? complete - m->history : 0;
    uint64_t next = m->delivered > oldest ? m->delivered : oldest;
    if (next >= complete || next > last)
        return false;
    CHECK(next >= m->delivered && next < m->complete);
    m->seen = complete;
    *round = next;
    uint64_t lost = next - m->delivered;
    m->delivered = next;
    m->reading = (int64_t)next;
    m->lost += lost;
    m->stats.lost += lost;
    return true;
}

static bool stop_holding_back(struct member *m)
{
    bool held = m->holds_back;
    m->holds_back = false;
    return held;
}

bool member_read_end(struct member *m, uint64_t *lost)
{
    CHECK(m->reading != NO_ROUND);
    CHECK((uint64_t)m->reading < m->complete);
    m->delivered = (uint64_t)m->reading + 1;
    m->reading = NO_ROUND;
    m->stats.delivered++;
    *lost = m->lost;
    m->lost = 0;
    m->events += m->deliver == PCOLL_DELIVER_ALL; /* what was not read is lost */
    m->joined = m->joined_in != NO_ROUND && (int64_t)m->delivered > m->joined_in;
    if (m->joined) {
        m->joined_in = NO_ROUND;
        m->joining = false;
    } else if (m->joining) {
        m->wanted = m->delivered + 1;
    }
    return stop_holding_back(m);
}

bool member_included(const struct member *m, uint64_t round)
{
    CHECK(m->taken_in == NO_ROUND || (uint64_t)m->taken_in < m->frozen);
    return m->taken_in != NO_ROUND && (uint64_t)m->taken_in <= round;
}

int member_finish(struct member *m)
{
    CHECK(member_counts_hold(m));
    if (!m->started)
        return fail(PCOLL_ESTATE, "not started");
    if (m->joining)
        return fail(PCOLL_ESTATE,
                    "joining, and not all ranks have joined: call join again");
    m->started = false;
    m->call = m->delivered;
    m->calls++;
    return PCOLL_OK;
}

int member_join(struct member *m)
{
    CHECK(member_counts_hold(m));
    if (m->joining) /* interrupted, and called again */
        return PCOLL_OK;
    int rc = member_begin(m);
    if (rc != PCOLL_OK)
        return rc;
    m->joining = true;
    m->events++;
    m->wanted = m->delivered + 1;
    return PCOLL_OK;
}

int member_leave(struct member *m)
{
    CHECK(member_counts_hold(m));
    if (m->started)
        return fail(PCOLL_ESTATE,
                    "wait for the round of the last start before leaving");
    m->left = true;
    m->started = false;
    m->events++;
    return PCOLL_OK;
}

/* Joining, and not all have joined yet. */
static bool announces_join(const struct member *m)
{
    return m->joining && m->joined_in == NO_ROUND;
}

/*
 * A rank that joins or leaves counts as arrived until a round's header has announced
 * it: otherwise a round that waits for this very rank would never start. From then on
 * it is not live and starts nothing.
 */
bool member_arrived(const struct member *m)
{
    CHECK(member_counts_hold(m));
    return m->arrived || ((announces_join(m) || m->left) && m->live);
}

/*
 * "one": no rank lags more than `history` rounds, so one that lags that much holds the
 * next round back. The ring has one slot more, so the last delivered result stays
 * intact as well. "all": only a result that is being copied out at this moment is
 * waited for. And nothing comes after the round with which all have joined before this
 * rank has seen that one, so that all come out of join with the same round.
 */
bool member_admits(struct member *m)
{
    CHECK(m->frozen == m->complete);
    if (m->retired)
        return true;
    uint64_t round = m->frozen;
    uint64_t slots = (uint64_t)m->history + 1;
    bool behind = m->deliver == PCOLL_DELIVER_ONE && !m->left &&
                  round >= m->delivered + m->history;
    bool copying = m->reading != NO_ROUND && round >= slots &&
                   (uint64_t)m->reading == round - slots;
    bool unaware = m->joined_in != NO_ROUND && round > (uint64_t)m->joined_in;
    m->holds_back = behind || copying || unaware;
    return !m->holds_back;
}

int member_freeze(struct member *m, struct round_header *h, uint32_t ranks)
{
    CHECK(m->frozen == m->complete);
    CHECK(h->round == m->frozen);
    CHECK(m->rank < ranks);
    CHECK(m->contribution.frozen == NO_SLOT);
    int slot = contribution_freeze(&m->contribution);
    if (slot != NO_SLOT) {
        bitset_add(round_mask(h, ranks, ROUND_ACTIVE), m->rank);
        if (!m->arrived)
            bitset_add(round_mask(h, ranks, ROUND_STORED), m->rank);
        m->taken_in = (int64_t)m->frozen;
        m->stats.included++;
    }
    if (announces_join(m))
        bitset_add(round_mask(h, ranks, ROUND_JOINED), m->rank);
    if (m->left)
        bitset_add(round_mask(h, ranks, ROUND_LEFT), m->rank);
    m->arrived = false;
    m->frozen++;
    m->frozen_events = m->events;
    return slot;
}

void member_complete(struct member *m, const struct round_header *h, uint32_t ranks)
{
    CHECK(m->frozen == m->complete + 1);
    CHECK(h->round == m->complete);
    bool announced = bitset_has(round_mask_const(h, ranks, ROUND_JOINED), m->rank);
    bool gone = bitset_has(round_mask_const(h, ranks, ROUND_LEFT), m->rank);
    bool over = round_all_gone(h, ranks);
    m->live = !gone && (!announced || over);
    if (announced && over)
        m->joined_in = (int64_t)m->complete;
    contribution_thaw(&m->contribution);
    m->complete++;
    m->stats.rounds++;
    CHECK(member_counts_hold(m));
}
