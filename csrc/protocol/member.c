/* SPDX-License-Identifier: Apache-2.0 */
/* See member.h. */
#include "protocol/member.h"

#include "base/error.h"

/* Slots. */

int contribution_slots(bool owned_send)
{
    return owned_send ? 4 : 3;
}

void contribution_init(struct contribution *c, enum pcoll_late late, bool owned_send)
{
    CHECK(late >= PCOLL_LATE_CARRY && late <= PCOLL_LATE_DROP);
    *c = (struct contribution){.late = late,
                               .slots = contribution_slots(owned_send),
                               .pending = NO_SLOT,
                               .frozen = NO_SLOT,
                               .user = owned_send ? 0 : NO_SLOT};
}

/* Return whether no slot has two roles. */
static bool contribution_is_distinct(const struct contribution *c)
{
    return (c->pending == NO_SLOT || c->pending != c->frozen) &&
           (c->user == NO_SLOT || (c->user != c->pending && c->user != c->frozen));
}

static int contribution_free_slot(const struct contribution *c)
{
    int found = NO_SLOT;
    for (int i = c->slots; i-- > 0;) {
        bool held = found != NO_SLOT && c->held >> i & 1;
        if (i != c->pending && i != c->frozen && i != c->user)
            found = held ? found : i;
    }
    return found;
}

/* A slot that the application has filled is the deposit if nothing is to be added. */
struct deposit_plan contribution_plan(const struct contribution *c)
{
    CHECK(contribution_is_distinct(c));
    int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;
    bool in_place = c->user != NO_SLOT && carried == NO_SLOT;
    struct deposit_plan plan = {
        .target = in_place ? c->user : contribution_free_slot(c), .carried = carried};
    CHECK(plan.target != NO_SLOT && plan.target != c->frozen);
    return plan;
}

void contribution_publish(struct contribution *c, struct deposit_plan plan)
{
    CHECK(plan.target >= 0 && plan.target < c->slots);
    CHECK(plan.target != c->frozen && plan.target != c->pending);
    c->pending = plan.target;
    if (c->user == plan.target) {
        c->user = NO_SLOT;
        c->user = contribution_free_slot(c);
        CHECK(c->user != NO_SLOT);
    }
    CHECK(contribution_is_distinct(c));
}

/* Rounds. */

void member_init(struct member *m, uint32_t rank, const pcoll_options *options)
{
    *m = (struct member){.rank = rank,
                         .deliver = options->deliver,
                         .history = options->history,
                         .taken_in = NO_ROUND,
                         .reading = NO_ROUND,
                         .joined_in = NO_ROUND};
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

/* Return whether the round that the call waits for is open. "one": the call's own round.
 * "all": the next round that was not read, or else the open one. */
static bool member_finds_open(const struct member *m)
{
    return m->deliver == PCOLL_DELIVER_ONE
               ? m->frozen <= m->call
               : m->complete == m->delivered && m->frozen == m->complete;
}

bool member_drops(const struct member *m)
{
    CHECK(member_counts_hold(m));
    return m->contribution.late == PCOLL_LATE_DROP && !member_finds_open(m);
}

enum deposit_outcome member_publish(struct member *m, struct deposit_plan plan)
{
    CHECK(m->started && member_counts_hold(m));
    bool open = member_finds_open(m);
    m->wanted = (m->deliver == PCOLL_DELIVER_ONE ? m->call : m->delivered) + 1;
    m->stats.calls++;
    m->events++;
    if (member_drops(m)) {
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

bool member_read_begin(struct member *m, uint64_t last, uint64_t horizon,
                       uint64_t *round)
{
    m->reading = NO_ROUND; /* A read that was begun was overwritten. */
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

void member_read_end(struct member *m, uint64_t *lost)
{
    CHECK(m->reading != NO_ROUND && (uint64_t)m->reading < m->complete);
    m->delivered = (uint64_t)m->reading + 1;
    m->reading = NO_ROUND;
    m->stats.delivered++;
    *lost = m->lost;
    m->lost = 0;
    m->events += m->deliver == PCOLL_DELIVER_ALL; /* What is not read is lost. */
    m->joined = m->joined_in != NO_ROUND && (int64_t)m->delivered > m->joined_in;
    if (m->joined) {
        m->joined_in = NO_ROUND;
        m->joining = false;
    } else if (m->joining) {
        m->wanted = m->delivered + 1;
    }
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
    if (m->joining) /* The call was interrupted and is made again. */
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

/* Recovery. */

static struct recovered_deposit member_merge_deposits(struct contribution *c)
{
    struct recovered_deposit d = {
        .into = NO_SLOT, .older = c->frozen, .newer = c->pending};
    if (c->frozen != NO_SLOT && c->pending != NO_SLOT && c->late != PCOLL_LATE_CARRY)
        d.older = NO_SLOT;
    d.into = d.older != NO_SLOT ? d.older : d.newer;
    c->pending = d.into;
    c->frozen = NO_SLOT;
    return d;
}

struct recovered_deposit member_recover(struct member *m, uint64_t complete,
                                        const struct round_header *last)
{
    CHECK(m->complete == complete || m->complete + 1 == complete);
    CHECK(m->frozen == m->complete || m->frozen == m->complete + 1);
    CHECK(m->reading == NO_ROUND);
    CHECK(complete ? last->round + 1 == complete : !last);
    if (m->complete < complete)
        m->contribution.frozen = NO_SLOT; /* The round that froze it is complete. */
    m->joined_in = NO_ROUND; /* The rank finds it when it reads the round. */
    m->complete = m->stats.rounds = complete;
    bool undone =
        m->frozen > complete; /* Take back the deposit that the round froze. */
    m->frozen -= undone;
    if (undone && m->contribution.frozen != NO_SLOT) {
        m->stats.included--;
        if (m->taken_in == (int64_t)complete)
            m->taken_in = NO_ROUND;
    }
    m->stats.redone += undone;
    struct recovered_deposit d = member_merge_deposits(&m->contribution);
    m->arrived = m->started && !m->joining && m->wanted > complete;
    CHECK(m->frozen == complete && m->complete == complete);
    return d;
}

void member_enter(struct member *m, uint64_t complete, const struct round_header *last)
{
    CHECK(!m->started && m->contribution.pending == NO_SLOT);
    CHECK(complete ? last->round + 1 == complete : !last);
    m->frozen = m->complete = m->call = m->stats.rounds = complete;
    m->delivered = complete ? complete - 1 : 0;
}
