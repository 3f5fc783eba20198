/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a grouped allreduce, its messages, closing, and restarting without dead
 * ranks; see group_agent.h. */

#include "group/group_agent.h"

#include <string.h>

#include "base/check.h"
#include "group/group_window.h"
#include "runtime/communicator.h"

int group_agent_leave(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns;
    CHECK(g->phase == PHASE_AWAY && !match_bound(&g->match));
    g->rejoin.suspected = false;
    membership_set(&g->membership, rank, MEMBER_AWAY, returns);
    return group_wire_announce(g, rank, MEMBER_AWAY, returns);
}

/* Return. The rank does not join a round that it has left, because no other rank waits
 * for it there. */
static int group_agent_begin_rejoin(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns + 1;
    if (g->round < match_first(&g->match))
        g->round = match_first(&g->match);
    membership_set(&g->membership, rank, MEMBER_LIVE, returns);
    CHECK(g->phase == PHASE_ASKING && membership_is_live(&g->membership, rank));
    g->chain = 0;
    g->rejoin = (struct group_rejoin){.highest = g->round,
                                      .wait_until = g->clock.time +
                                                    group_agent_timeout_ns(g) / 10};
    return group_wire_announce(g, rank, MEMBER_LIVE, returns);
}

static bool group_agent_has_answers(const struct group *g)
{
    return g->rejoin.answers >= membership_others(&g->membership, g->window->rank) ||
           g->clock.time >= g->rejoin.wait_until;
}

static int group_agent_continue_rejoin(struct group *g, enum group_phase *next)
{
    if (!group_agent_has_answers(g) && !group_agent_leaves(g))
        return PCOLL_OK;
    CHECK(g->phase == PHASE_ASKING && g->rejoin.highest >= g->round);
    g->round = group_agent_round_to_join(g);
    *next = PHASE_IDLE;
    return group_agent_leaves(g) ? PCOLL_OK : group_wire_announce_join(g);
}

/* Ignore an answer to an earlier return: its sender does not know how far the rounds
 * have progressed since. */
void group_agent_on_round(struct group *g, const struct group_message *m)
{
    struct group_rejoin *r = &g->rejoin;
    CHECK(m->source < g->membership.ranks && m->source != g->window->rank);
    if (m->returns != g->membership.entries[g->window->rank].returns)
        return;
    r->answers += g->membership.entries[m->source].status != MEMBER_SUSPECT;
    if (m->round > r->highest)
        r->highest = m->round;
}

uint64_t group_agent_round_to_join(const struct group *g)
{
    CHECK(g->phase != PHASE_ASKING || g->rejoin.highest >= g->round);
    return g->phase == PHASE_ASKING ? g->rejoin.highest
                                    : g->round + (g->phase == PHASE_ROUND);
}

/* Closing. */

static const int64_t again_after = 1000000; /* Nanoseconds between two sums. */

static int group_agent_sum_counts(struct group *g)
{
    struct group_drain *d = &g->drain;
    d->counts[0] = g->wire.sent;
    d->counts[1] = g->wire.received;
    d->agreeing = true;
    d->again_at = INT64_MAX;
    d->agreement = (struct agreement){
        .values = d->counts, .count = 2, .op = AGREE_SUM, .object = &g->base};
    return communicator_agree(g->communicator, &d->agreement);
}

int group_agent_begin_close(struct object *p)
{
    struct group *g = group_agent_of(p);
    CHECK(g->queued && g->phase == PHASE_AWAY);
    g->drain.before[0] = UINT64_MAX;
    return group_agent_sum_counts(g);
}

static bool group_agent_is_drained(const struct group_drain *d)
{
    return d->counts[0] == d->counts[1] && d->before[0] == d->counts[0] &&
           d->before[1] == d->counts[1];
}

static int group_agent_finish_close(struct group *g)
{
    CHECK(g->window);
    if (g->spent) /* Otherwise the window was closed before a rank died. */
        communicator_spend_window(g->communicator, g->window, &g->spent);
    g->drain.agreeing = false;
    return communicator_closed(g->communicator, &g->base);
}

int group_agent_drain(struct group *g)
{
    struct group_drain *d = &g->drain;
    CHECK(g->queued);
    int rc = group_matching_flush(g);
    if (rc != PCOLL_OK || atomic_load(&g->base.closed))
        return rc;
    if ((rc = group_round_refuse(g)) !=
        PCOLL_OK) /* Lists that this rank was sent while it left. */
        return rc;
    if (d->agreeing && atomic_load(&d->agreement.done)) {
        if (group_agent_is_drained(d))
            return group_agent_finish_close(g);
        d->agreeing = false;
        d->before[0] = d->counts[0];
        d->before[1] = d->counts[1];
        d->again_at = communicator_now(g->communicator) + again_after;
    }
    if (d->again_at == INT64_MAX)
        return PCOLL_OK;
    if (communicator_now(g->communicator) >= d->again_at)
        return group_agent_sum_counts(g);
    communicator_alarm(g->communicator, &g->base, d->again_at);
    return PCOLL_OK;
}

/* The phases. */

static enum group_phase group_agent_after_idle(const struct group *g)
{
    if (group_agent_leaves(g))
        return PHASE_AWAY;
    return g->rejoin.suspected ? PHASE_ASKING : PHASE_MATCHING;
}

/* Do one step of the current phase. *next is the phase that follows. */
static int group_agent_step(struct group *g, enum group_phase *next)
{
    *next = g->phase;
    switch (g->phase) {
    case PHASE_IDLE:
        *next = group_agent_after_idle(g);
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_agent_continue_rejoin(g, next);
    case PHASE_MATCHING:
        return group_matching_continue(g, next);
    case PHASE_ROUND:
        return group_round_continue(g, next);
    case PHASE_AWAY:
        *next = group_agent_leaves(g) ? PHASE_AWAY : PHASE_ASKING;
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int group_agent_enter(struct group *g, enum group_phase next)
{
    g->phase = next;
    switch (next) {
    case PHASE_IDLE:
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_agent_begin_rejoin(g);
    case PHASE_MATCHING:
        return group_matching_begin(g);
    case PHASE_ROUND:
        return group_round_begin(g);
    case PHASE_AWAY:
        return group_agent_leave(g);
    }
    return PCOLL_OK;
}

/* Do one step. *more: the phase or the round has changed. */
static int group_agent_continue(struct group *g, bool *more)
{
    enum group_phase next;
    uint64_t round = g->round;
    int rc = group_round_refuse(g);
    if (rc == PCOLL_OK)
        rc = group_agent_step(g, &next);
    *more = rc == PCOLL_OK && (next != g->phase || g->round != round);
    if (rc == PCOLL_OK && next != g->phase)
        rc = group_agent_enter(g, next);
    return rc == PCOLL_OK ? group_matching_flush(g) : rc;
}

static int64_t group_agent_alarm(struct group *g)
{
    if (g->phase == PHASE_ROUND || g->now.data.abandoned)
        return group_round_alarm(g);
    if (g->phase == PHASE_ASKING)
        return g->rejoin.wait_until;
    return g->phase == PHASE_MATCHING ? group_matching_alarm(g)
                                      : match_alarm(&g->match);
}

/* Ask for the turn to close once the rank is away and no fetch is under way. */
static int group_agent_settle(struct group *g)
{
    bool ended;
    if (g->phase != PHASE_AWAY || !g->shared.closing || g->queued)
        return PCOLL_OK;
    int rc = group_data_poll(&g->now.data, &ended); /* Fetches of void rounds. */
    if (rc != PCOLL_OK || g->now.data.abandoned)
        return rc;
    g->queued = true;
    return communicator_close(g->communicator, &g->base);
}

int group_agent_drive(struct group *g)
{
    bool more;
    int rc = PCOLL_OK;
    CHECK(!g->queued || g->shared.closing);
    group_wire_update_clock(g);
    if (!g->driven || g->queued)
        return g->queued ? group_agent_drain(g) : rc;
    do
        rc = group_agent_continue(g, &more);
    while (rc == PCOLL_OK && more);
    if (rc == PCOLL_OK)
        rc = group_agent_settle(g);
    atomic_store(&g->shared.shown_round, g->round);
    g->clock.due = rc == PCOLL_OK ? group_agent_alarm(g) : INT64_MAX;
    if (g->clock.due != INT64_MAX)
        communicator_alarm(g->communicator, &g->base, g->clock.due + g->clock.behind);
    return rc;
}

/* Messages. */

static int group_agent_on_matchmaking(struct group *g, uint32_t source,
                                      const struct control *c)
{
    struct match_message m = {
        .peer = source, .kind = c->kind, .part = c->edge, .round = c->round};
    memcpy(m.value, c->value, sizeof m.value);
    return match_on_message(&g->match, g->clock.time, &m);
}

static int group_agent_on_notice(struct group *g, const struct group_message *m)
{
    return group_round_on_notice(g, m->source, m->name, m->bits, m->rate);
}

/* A leader tells the members that a round is aborted. The sender may have refused the
 * list, and then does not know the members. */
static int group_agent_on_decision(struct group *g, const struct group_message *m)
{
    int rc = PCOLL_OK;
    if (m->bits & NOTICE_ABORT && m->name.leader == g->window->rank)
        rc = group_round_on_abort(g, m->name);
    return rc == PCOLL_OK ? group_agent_on_notice(g, m) : rc;
}

static int group_agent_on_membership(struct group *g, const struct group_message *m)
{
    if (m->rank == g->window->rank) {
        g->rejoin.suspected |= m->returns == g->membership.entries[m->rank].returns;
        return PCOLL_OK;
    }
    bool news = membership_set(&g->membership, m->rank, m->status, m->returns);
    if (m->status ==
        MEMBER_LIVE) /* The rank does not take part before the round that it was at. */
        news |= membership_join(&g->membership, m->rank, m->returns, m->round);
    if (news)
        group_wire_membership_changed(g, m->rank);
    if (m->status != MEMBER_LIVE)
        return PCOLL_OK;
    return group_wire_send(g, m->source, WIRE_ROUND, 0, group_agent_round_to_join(g),
                           (uint64_t[4]){m->returns});
}

static void group_agent_on_join(struct group *g, const struct group_message *m)
{
    if (membership_join(&g->membership, m->source, m->returns, m->round))
        group_wire_membership_changed(g, m->source);
}

static int group_agent_on_nudge(struct group *g, const struct group_message *m)
{
    if (m->application)
        return group_round_on_nudge(g, m->round);
    return group_wire_send(g, m->source, WIRE_NUDGED, 0, g->round, (uint64_t[4]){0});
}

static int group_agent_dispatch(struct group *g, const struct group_message *m)
{
    switch (m->kind) {
    case WIRE_MATCH:
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_INPUT:
    case WIRE_PART:
    case WIRE_PASS:
    case WIRE_HEARTBEAT:
        return group_agent_on_notice(g, m);
    case WIRE_NUDGE:
        return group_agent_on_nudge(g, m);
    case WIRE_DECISION:
        return group_agent_on_decision(g, m);
    case WIRE_VOTE:
        return group_round_on_vote(g, m->source, m->name, m->vote, m->members);
    case WIRE_MEMBERSHIP:
        return group_agent_on_membership(g, m);
    case WIRE_ROUND:
        group_agent_on_round(g, m);
        return PCOLL_OK;
    case WIRE_JOIN:
        group_agent_on_join(g, m);
        return PCOLL_OK;
    case WIRE_DECLARE:
    case WIRE_COUNT:
    case WIRE_QUERY:
        return group_window_serve(g, m);
    case WIRE_COUNTED:
        group_matching_on_counted(g, m);
        return PCOLL_OK;
    case WIRE_FOUND:
        group_matching_on_found(g, m);
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int group_agent_on_message(struct object *p, uint32_t source,
                                  const struct control *message)
{
    struct group *g = group_agent_of(p);
    struct group_message m;
    bool matches = message->kind < WIRE_INPUT;
    int rc = PCOLL_OK;
    if (!matches)
        rc = group_wire_decode(g->window->rank, g->membership.ranks, source, message,
                               &m);
    if (rc != PCOLL_OK)
        return rc;
    group_wire_update_clock(g);
    group_wire_count_received(g, source);
    rc = matches ? group_agent_on_matchmaking(g, source, message)
                 : group_agent_dispatch(g, &m);
    return rc == PCOLL_OK ? group_agent_drive(g) : rc;
}

static int group_agent_run(struct object *p)
{
    return group_agent_drive(group_agent_of(p));
}

static int group_agent_no_message(struct object *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a grouped allreduce", op);
}

const struct object_ops group_agent_ops = {.run = group_agent_run,
                                           .done = group_agent_no_message,
                                           .control = group_agent_on_message,
                                           .begin_close = group_agent_begin_close};

/* Restarting without dead ranks. */

enum { WORD_LIVES = 1, WORD_AWAY = 2, WORD_RETURNS = 4 };

uint64_t group_agent_state_word(const struct group *g)
{
    const struct membership_entry *own = &g->membership.entries[g->window->rank];
    CHECK(own->status != MEMBER_SUSPECT);
    return WORD_LIVES | (own->status == MEMBER_AWAY ? WORD_AWAY : 0) |
           (uint64_t)own->returns * WORD_RETURNS;
}

static bool group_agent_lost_member(const struct group *g, const uint64_t *words)
{
    const struct group_members *group = &g->now.data.group;
    for (uint32_t i = 0; i < group->members; i++)
        if (!words[group->rank[i]])
            return true;
    return false;
}

/* Decide the round by its word. If the word was opened again, the round is void: it
 * has lasted for DECISIONS groups of its leader, which takes a process that was
 * suspended. */
static int group_agent_decide(struct group *g)
{
    struct group_round *now = &g->now;
    enum decision decision = now->decision;
    int rc = PCOLL_OK;
    if (decision == DECISION_PENDING)
        rc = group_window_vote(g->window, now->name.leader, g->place.decisions_at,
                               now->name.seq, now->data.group.members, VOTE_ABORT,
                               &decision);
    now->decision = decision == DECISION_COMMIT ? decision : DECISION_ABORT;
    return rc;
}

static int group_agent_end_round(struct group *g, const uint64_t *words)
{
    struct group_round *now = &g->now;
    int rc = group_agent_decide(g);
    bool again = now->decision == DECISION_ABORT && !group_agent_lost_member(g, words);
    if (again && now->contribution == CONTRIBUTION_OWN) {
        g->shared.consumed--;
        now->contribution = CONTRIBUTION_OPEN;
    }
    return rc == PCOLL_OK ? group_round_finish(g) : rc;
}

static void group_agent_take_membership(struct group *g, const uint64_t *words,
                                        uint64_t round)
{
    for (uint32_t r = 0; r < g->membership.ranks; r++) {
        enum member_status status = words[r] & WORD_AWAY ? MEMBER_AWAY : MEMBER_LIVE;
        membership_agreed(&g->membership, r, words[r] ? status : MEMBER_DEAD,
                          (uint32_t)(words[r] / WORD_RETURNS), round);
        g->wire.received_at[r] = g->clock.time;
    }
}

int group_agent_check_words(const struct group *g, const uint64_t *words,
                            uint64_t round)
{
    bool sound = round >= g->round && round <= ROUND_LAST + 2 &&
                 words[g->window->rank] == group_agent_state_word(g);
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        sound &= !words[r] ||
                 (words[r] & WORD_LIVES && words[r] / WORD_RETURNS <= UINT32_MAX &&
                  g->membership.entries[r].status != MEMBER_DEAD);
    return sound
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL, "the ranks of a grouped allreduce that are left "
                                       "agreed on a state that cannot be");
}

int group_agent_restart(struct group *g, const uint64_t *words, uint64_t round)
{
    int rc = group_agent_check_words(g, words, round);
    if (rc != PCOLL_OK)
        return rc;
    rc = g->phase == PHASE_ROUND ? group_agent_end_round(g, words) : PCOLL_OK;
    group_wire_update_clock(g);
    match_restart(&g->match, round);
    group_agent_take_membership(g, words, round);
    bool away = words[g->window->rank] & WORD_AWAY;
    g->phase = away ? PHASE_AWAY : PHASE_IDLE;
    g->round = round;
    g->chain = 0;
    g->matching.members_changed = false;
    g->rejoin.suspected = false;
    g->wire.sent = g->wire.received = 0;
    g->drain.agreeing = g->queued = false;
    g->drain.again_at = g->base.alarm = INT64_MAX;
    return rc;
}
