/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages, the clock, the membership, decisions and the directory; see group_wire.h. */
#include "group/group_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"
#include "group/group_agent.h"
#include "transport/transport.h"

/* The part of the timeout by which a rank may be late while all time counts. */
enum { LATE_PARTS = 16 };

void group_wire_update_clock(struct group *g)
{
    struct group_clock *c = &g->clock;
    int64_t time = communicator_now(g->communicator) - c->behind;
    int64_t margin = group_agent_timeout_ns(g) / LATE_PARTS;
    int64_t lost = time - c->time - margin;
    if (time - margin > c->due && lost > 0) {
        c->behind += lost;
        time -= lost;
    }
    CHECK(time >= c->time && c->behind >= 0);
    c->time = time;
}

/* Sending. */

int group_wire_send(struct group *g, uint32_t to, enum group_wire_kind kind,
                    uint16_t part, uint64_t round, union group_values values)
{
    CHECK(to < g->membership.ranks && to != g->window->rank);
    if (g->membership.entries[to].status == MEMBER_DEAD)
        return PCOLL_OK;
    struct transport *t = g->communicator->transport;
    struct control message = {
        .handle = g->base.slot, .kind = (uint16_t)kind, .edge = part, .round = round};
    memcpy(message.value, values.word, sizeof message.value);
    g->wire.sent++;
    return t->ops->control(t, to, &message);
}

int group_wire_send_notice(struct group *g, uint32_t to, struct group_name name,
                           enum group_notice_bit bit, uint32_t rate)
{
    CHECK(name.leader < g->membership.ranks && name.seq);
    return group_wire_send(
        g, to, WIRE_NOTICE, 0, g->round,
        (union group_values){.name = name, .bits = bit, .rate = rate});
}

int group_wire_announce(struct group *g, uint32_t rank)
{
    const struct membership_entry *e = &g->membership.entries[rank];
    int rc = PCOLL_OK;
    for (uint32_t r = 0; r < g->membership.ranks && rc == PCOLL_OK; r++)
        if (r != g->window->rank)
            rc = group_wire_send(g, r, WIRE_MEMBERSHIP, 0, g->round,
                                 (union group_values){.returns = e->returns,
                                                      .rank = rank,
                                                      .status = e->status});
    return rc;
}

/* The membership. */

/* A rank that has left is never suspected. */
bool membership_set(struct membership *r, uint32_t rank, enum member_status status,
                    uint32_t returns)
{
    CHECK(rank < r->ranks);
    struct membership_entry *e = &r->entries[rank];
    bool news =
        returns > e->returns || (returns == e->returns && status != MEMBER_LIVE &&
                                 e->status != MEMBER_AWAY && status != e->status);
    if (e->status == MEMBER_DEAD || !news)
        return false;
    *e = (struct membership_entry){.status = status, .returns = returns};
    return true;
}

uint32_t membership_count(const struct membership *r, uint64_t round)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < r->ranks; rank++)
        count += membership_takes_part(r, rank, round);
    return count;
}

void group_wire_membership_changed(struct group *g, uint32_t rank)
{
    CHECK(rank < g->membership.ranks && rank != g->window->rank);
    match_present(&g->match, g->clock.time, rank,
                  membership_takes_part(&g->membership, rank, g->round));
    g->matching.members_changed = true;
}

int group_wire_suspect(struct group *g, uint32_t rank)
{
    CHECK(rank != g->window->rank);
    uint32_t returns = g->membership.entries[rank].returns;
    if (!membership_set(&g->membership, rank, MEMBER_SUSPECT, returns))
        return PCOLL_OK;
    group_wire_membership_changed(g, rank);
    g->shared.stats.suspected++;
    return group_wire_announce(g, rank);
}

/* Return what is wrong with a message that no correct sender makes, or NULL. */
static const char *group_wire_find_wrong(uint32_t self, uint32_t ranks,
                                         const struct group_message *m)
{
    const union group_values *v = &m->values;
    bool named = m->kind == WIRE_NOTICE || m->kind == WIRE_VOTE;
    if (m->round > ROUND_LAST)
        return "its round";
    if (named && (v->name.leader >= ranks || !v->name.seq))
        return "the name of its group";
    switch (m->kind) {
    case WIRE_MATCH:
        break;
    case WIRE_NOTICE:
        if (v->bits > NOTICE_COMMIT || (v->bits & (v->bits - 1)))
            return "what it says of its group";
        return v->rate && v->bits != NOTICE_PART ? "its rate" : NULL;
    case WIRE_NUDGE:
        return v->application > 1 ? "a flag" : NULL;
    case WIRE_VOTE:
        if (v->name.leader != self || v->vote > VOTE_ABORT)
            return "its vote";
        return (v->members < 1 || v->members > ranks) &&
                       (v->members != UINT32_MAX || v->vote != VOTE_ABORT)
                   ? "the number of members"
                   : NULL;
    case WIRE_MEMBERSHIP:
        if (v->rank >= ranks || v->status > MEMBER_SUSPECT)
            return "the rank or its status";
        /* Others say that a rank is silent. A rank says everything else itself. */
        return (v->rank == m->source) == (v->status == MEMBER_SUSPECT) ? "who says it"
                                                                       : NULL;
    case WIRE_FOUND:
        if (v->counted > ranks || v->count > v->counted ||
            !v->count != (v->peer[0] == MATCH_NOBODY))
            return "how many ranks or entries";
        for (uint32_t i = 0; i < FOUND_ENTRIES; i++)
            if (v->peer[i] >= ranks && v->peer[i] != MATCH_NOBODY)
                return "the rank of an entry";
        return NULL;
    case WIRE_NUDGED:
    case WIRE_ROUND:
    case WIRE_DECLARE:
    case WIRE_WITHDRAW:
        return NULL;
    }
    return "its kind";
}

int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m)
{
    *m = (struct group_message){
        .kind = (enum group_wire_kind)c->kind, .source = source, .round = c->round};
    memcpy(m->values.word, c->value, sizeof m->values.word);
    const char *wrong = group_wire_find_wrong(self, ranks, m);
    return wrong ? fail(PCOLL_EPROTOCOL,
                        "rank %u sent a grouped allreduce a message of kind %u that "
                        "cannot be: %s",
                        source, c->kind, wrong)
                 : PCOLL_OK;
}

static size_t group_window_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

struct group_layout group_window_layout(uint32_t ranks, size_t element, size_t count)
{
    struct group_layout layout = {.element = element, .count = count};
    size_t data = group_window_round_up(element * count);
    layout.directory_at = group_window_round_up(DECISIONS * sizeof(int64_t));
    layout.input_at =
        layout.directory_at +
        group_window_round_up((size_t)ranks * sizeof(struct directory_entry));
    layout.part_at = layout.input_at + data;
    layout.bytes = layout.part_at + data;
    return layout;
}

/* The decision. */

static const uint64_t abort_bit = (uint64_t)1 << 31;

static enum decision group_window_read_word(uint64_t word, uint32_t seq,
                                            uint32_t members)
{
    if ((uint32_t)(word >> 32) != seq)
        return DECISION_EXPIRED;
    if (word & abort_bit)
        return DECISION_ABORT;
    uint64_t done = word & (abort_bit - 1);
    return done >= members ? DECISION_COMMIT : DECISION_PENDING;
}

int64_t group_window_after_vote(int64_t before, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision)
{
    uint64_t word = vote == VOTE_OPEN ? (uint64_t)seq << 32 : (uint64_t)before;
    bool pending = group_window_read_word(word, seq, members) == DECISION_PENDING;
    if (pending && vote == VOTE_DONE)
        word++;
    else if (pending && vote == VOTE_ABORT)
        word |= abort_bit;
    CHECK(vote == VOTE_OPEN || word == (uint64_t)before ||
          group_window_read_word((uint64_t)before, seq, members) == DECISION_PENDING);
    CHECK(word >> 32 == (vote == VOTE_OPEN ? seq : (uint64_t)before >> 32));
    *decision = group_window_read_word(word, seq, members);
    return (int64_t)word;
}

int group_window_vote(struct group *g, struct group_name name, enum decision_vote vote,
                      uint32_t members, enum decision *decision)
{
    struct window *w = g->window;
    size_t at = name.seq % DECISIONS * sizeof(int64_t);
    int64_t word, seen;
    CHECK(name.leader < w->size && (vote != VOTE_OPEN || name.leader == w->rank));
    *decision = DECISION_PENDING;
    if (window_is_far(w, name.leader))
        return group_wire_send(
            g, name.leader, WIRE_VOTE, 0, g->round,
            (union group_values){.name = name, .vote = vote, .members = members});
    int rc = window_read_swapped(w, name.leader, at, &word);
    while (rc == PCOLL_OK) {
        int64_t after =
            group_window_after_vote(word, name.seq, members, vote, decision);
        if (after == word)
            break;
        rc = w->ops->compare_swap(w, name.leader, at, word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

/* The directory. */

static uint64_t group_window_check(const struct directory_entry *e)
{
    return splitmix_at(splitmix_at(e->round, e->key), (uint64_t)e->time);
}

int group_window_access(struct group *g, uint32_t host, const struct group_message *m,
                        struct group_message *answer)
{
    struct window *w = g->window;
    struct directory_entry *all = g->remote.entries,
                           own = {.key = m->values.key, .time = m->values.time};
    bool declares = m->kind == WIRE_DECLARE;
    size_t at = g->place.directory_at;
    CHECK(declares || m->kind == WIRE_WITHDRAW);
    own.round = declares ? m->round + 1 : 0;
    own.check = group_window_check(&own);
    *answer =
        (struct group_message){.kind = WIRE_FOUND, .source = host, .round = m->round};
    int rc = w->ops->access(w, WINDOW_PUT, host, at + m->source * sizeof own, &own,
                            NULL, PCOLL_UINT8, sizeof own)
                 ?: w->ops->flush(w, host);
    if (rc != PCOLL_OK || !declares)
        return rc;
    rc = w->ops->access(w, WINDOW_GET, host, at, NULL, all, PCOLL_UINT8,
                        w->size * sizeof *all)
             ?: w->ops->complete(w, host);
    for (uint32_t rank = 0; rank < w->size && rc == PCOLL_OK; rank++) {
        if (all[rank].round < own.round ||
            all[rank].check != group_window_check(&all[rank]) ||
            g->membership.entries[rank].status == MEMBER_DEAD)
            continue;
        answer->values.counted++;
        if (all[rank].round == own.round && all[rank].key == own.key)
            g->remote.found[answer->values.count++] =
                (struct match_entry){rank, all[rank].time};
    }
    return rc;
}

/* Send the entries, two in each message; without entries, send one empty message. */
int group_window_serve(struct group *g, const struct group_message *m)
{
    struct group_message answer;
    const struct match_entry *found = g->remote.found;
    int rc = group_window_access(g, g->window->rank, m, &answer);
    uint32_t sent = 0, all = answer.values.count;
    if (m->kind == WIRE_WITHDRAW)
        return rc;
    do {
        union group_values v = {.counted = answer.values.counted, .count = all};
        for (uint32_t k = 0; k < FOUND_ENTRIES; k++, sent++) {
            v.peer[k] = sent < all ? found[sent].peer : MATCH_NOBODY;
            v.peer_time[k] = sent < all ? found[sent].time : 0;
        }
        rc = rc ?: group_wire_send(g, m->source, WIRE_FOUND, 0, m->round, v);
    } while (rc == PCOLL_OK && sent < all);
    return rc;
}
