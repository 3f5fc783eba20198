/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants of simulated matchmaking (csrc/protocol/group/matchmaking.h), by name:
 *   same list     all who form a group hold the same members, as these declared them
 *   well formed   the list has ascending ranks, contains the leader, which has the lowest
 *                 priority, and the rank that holds it, and is of its round and key
 *   one group     no rank is in two groups of a round
 *   unique names  (leader, seq) names one group
 *   size          no group is larger than allowed
 *   follows       a follower's priority is greater than its leader's
 *   alarm         a machine that waits has an alarm, after a tick later than now
 *   refused       a live member that does not form the group has refused it, or the
 *                 leader has
 *   kept          without failures and late messages no list is refused
 *   maximal       one group of all, if none fails and all arrive in time
 *   together      if failures are known early enough, the others are in one group
 *   survivors     every live peer formed a group, or was behind, in every round
 *   in time       matching ends within the bound
 *   messages      at most the bound; exactly the minimum if all begin together
 *   bounded       the run ends
 *   ahead         a peer that is behind is told a later round
 * matching_round.c has the invariants of the round that follows.
 */
#include <string.h>

#include "check.h"
#include "matching.h"

static void check_follower(uint32_t peer)
{
    const struct match *m = &sim.peers[peer].m;
    uint64_t round = m->goal.round;
    const struct sim_round *theirs = &sim.peers[m->leader].rounds[round];
    INVARIANT("follows", theirs->begun && sim_before(m->leader, peer, round),
              "%u follows %u", peer, m->leader);
}

void check_peer(uint32_t peer, bool ticked)
{
    const struct sim_peer *p = &sim.peers[peer];
    int64_t clock = sim_clock(p, sim.now), alarm = match_alarm(&p->m);
    enum match_state state = p->m.state;
    INVARIANT("alarm", !ticked || alarm > clock,
              "peer %u: the alarm is at %lld, now is %lld", peer, (long long)alarm,
              (long long)clock);
    bool waits = state == MATCH_LOOKING || state == MATCH_FOLLOWING;
    INVARIANT("alarm", waits == (alarm != INT64_MAX), "peer %u waits without", peer);
    INVARIANT("messages", !p->m.out.lost, "peer %u lost %llu messages", peer,
              (unsigned long long)p->m.out.lost);
    INVARIANT("bound", waits || !match_bound(&p->m), "peer %u is bound to no peer",
              peer);
    INVARIANT("rounds", !waits || p->m.floor == p->m.goal.round,
              "peer %u looks for another round than its first", peer);
    INVARIANT("rounds", state != MATCH_BEHIND || p->m.ahead > p->m.goal.round,
              "peer %u is behind a round that it has reached", peer);
    if (state == MATCH_FOLLOWING)
        check_follower(peer);
}

static void check_well_formed(uint32_t peer, const struct match_list *list)
{
    uint64_t round = sim.peers[peer].m.goal.round;
    bool self = false, leader = false;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t rank = list->members[i].rank;
        INVARIANT("well formed",
                  rank < sim.plan.peers && (!i || rank > list->members[i - 1].rank),
                  "member %u is %u", i, rank);
        self = self || rank == peer;
        leader = leader || rank == list->leader;
        INVARIANT("well formed",
                  rank == list->leader || sim_before(list->leader, rank, round),
                  "%u leads %u", list->leader, rank);
        INVARIANT("well formed", sim_key(rank, round) == sim.peers[peer].m.goal.key,
                  "member %u has another key", rank);
    }
    INVARIANT("well formed", self && leader, "peer %u, leader %u: one is not in it",
              peer, list->leader);
    INVARIANT("size", list->count <= sim.plan.most, "%u members, at most %u",
              list->count, sim.plan.most);
}

static bool same(const struct match_member *a, const struct match_member *b)
{
    return a->rank == b->rank && a->bandwidth == b->bandwidth && a->chain == b->chain;
}

static int find_group(uint32_t leader, uint32_t seq)
{
    for (int i = 0; i < sim.group_count; i++)
        if (sim.groups[i].leader == leader && sim.groups[i].seq == seq)
            return i;
    return -1;
}

/* The leader must be the first to form the group. */
static int new_group(const struct match_list *list, const struct match_goal *goal)
{
    EXPECT(sim.group_count < MAX_GROUPS, "too many groups");
    struct sim_group *g = &sim.groups[sim.group_count];
    *g = (struct sim_group){.leader = list->leader,
                            .seq = list->seq,
                            .round = goal->round,
                            .key = goal->key,
                            .count = list->count};
    memcpy(g->members, list->members, list->count * sizeof *g->members);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct match_member *m = &g->members[i];
        INVARIANT("same list", same(m, &sim.peers[m->rank].rounds[g->round].self),
                  "member %u is not as it declared itself", m->rank);
    }
    sim_round_open(g);
    return sim.group_count++;
}

static void check_same(const struct sim_group *g, const struct match_list *list)
{
    INVARIANT("same list", g->count == list->count, "%u and %u members", g->count,
              list->count);
    for (uint32_t i = 0; i < g->count; i++)
        INVARIANT("same list", same(&g->members[i], &list->members[i]),
                  "member %u differs", i);
}

void check_formed(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    const struct match_list *list = match_formed(&p->m);
    const struct match_goal *goal = &p->m.goal;
    struct sim_round *r = &p->rounds[p->round];
    EXPECT(list, "formed, and no list");
    INVARIANT("well formed",
              goal->round == p->round && goal->key == sim_key(peer, p->round),
              "peer %u is in round %llu", peer, (unsigned long long)p->round);
    check_well_formed(peer, list);
    int at = find_group(list->leader, list->seq);
    INVARIANT("unique names", (at < 0) == (peer == list->leader),
              "group (%u, %u) formed by %u", list->leader, list->seq, peer);
    if (at < 0)
        at = new_group(list, goal);
    INVARIANT("unique names",
              sim.groups[at].round == goal->round && sim.groups[at].key == goal->key,
              "(%u, %u) names two groups", list->leader, list->seq);
    check_same(&sim.groups[at], list);
    INVARIANT("one group", !r->formed, "peer %u forms a second group", peer);
    r->formed = true;
    r->group = at;
    sim.groups[at].formed[peer] = true;
}

void check_refusal(uint32_t peer, uint32_t leader, uint32_t seq)
{
    int at = find_group(leader, seq);
    INVARIANT("refused", at >= 0, "peer %u refuses group (%u, %u), which is none", peer,
              leader, seq);
    sim.groups[at].refused = true;
    sim_round_refuse(&sim.groups[at]);
}

/* Neither a failure of a member nor a late message. */
static bool undisturbed(uint64_t round, uint64_t key)
{
    return !sim.touched[round][key] && !sim.late;
}

static bool lives(const struct sim_peer *p)
{
    return !p->gone && p->fate != FATE_STOPS;
}

static void check_group(const struct sim_group *g)
{
    INVARIANT("kept", !g->refused || !undisturbed(g->round, g->key),
              "group (%u, %u) of %u was refused", g->leader, g->seq, g->count);
    check_round(g, undisturbed(g->round, g->key));
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t rank = g->members[i].rank;
        INVARIANT("refused",
                  g->formed[rank] || g->refused || !lives(&sim.peers[rank]) ||
                      !lives(&sim.peers[g->leader]),
                  "%u is in group (%u, %u), did not form it and did not say so", rank,
                  g->leader, g->seq);
    }
}

/* Find the first and last begin of a round. Return false if a peer never began. */
static bool begins(uint64_t round, uint64_t key, int64_t *first, int64_t *last)
{
    *first = INT64_MAX;
    *last = 0;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_round *r = &sim.peers[i].rounds[round];
        if (sim_key(i, round) != key)
            continue;
        if (!r->begun)
            return false;
        *first = r->begun_at < *first ? r->begun_at : *first;
        *last = r->begun_at > *last ? r->begun_at : *last;
    }
    return true;
}

static void check_one_group(uint64_t round, uint64_t key)
{
    int group = -1;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_round *r = &sim.peers[i].rounds[round];
        if (sim_key(i, round) != key)
            continue;
        group = group < 0 ? r->group : group;
        INVARIANT("maximal", r->formed && r->group == group,
                  "round %llu, key %llu: peer %u is in another group",
                  (unsigned long long)round, (unsigned long long)key, i);
    }
}

/* Return when the other peers of the round know that this one failed. INT64_MAX: never,
 * or the case is not computed. */
static int64_t known_to_fail(uint32_t peer, uint64_t round, int64_t first)
{
    const struct sim_peer *p = &sim.peers[peer];
    int64_t last = 0;
    if (p->fate == FATE_STOPS && p->fate_at <= first)
        return 0; /* it never answered */
    if (p->fate == FATE_LEAVES && round + 1 < MAX_ROUNDS && p->rounds[round + 1].over)
        return INT64_MAX; /* two rounds ahead: it forgot the round it left */
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_peer *other = &sim.peers[i];
        int64_t told = other->reported_at[peer];
        if (sim_key(i, round) != sim_key(peer, round) || other->fate != FATE_NONE)
            continue;
        if (p->fate == FATE_LEAVES && told)
            return INT64_MAX; /* some may have it in their group, others not */
        if (p->fate == FATE_STOPS && !told)
            return INT64_MAX;
        last = told > last ? told : last;
    }
    return last;
}

/* Find the first begin of all peers and the last begin of those without a fault. Return
 * false if one of the latter did not begin, or a peer pauses. */
static bool begins_of_survivors(uint64_t round, uint64_t key, int64_t *first,
                                int64_t *last)
{
    *first = INT64_MAX;
    *last = 0;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_peer *p = &sim.peers[i];
        const struct sim_round *r = &p->rounds[round];
        if (sim_key(i, round) != key)
            continue;
        if (p->fate == FATE_PAUSES || (p->fate == FATE_NONE && !r->begun))
            return false;
        if (r->begun && r->begun_at < *first)
            *first = r->begun_at;
        if (p->fate != FATE_NONE)
            continue;
        *last = r->begun_at > *last ? r->begun_at : *last;
    }
    return *last > 0;
}

/* Peers without a fault are in one group. A single one may be behind. */
static void check_one_group_of(uint64_t round, uint64_t key)
{
    uint32_t well = 0;
    int group = -1;
    for (uint32_t i = 0; i < sim.plan.peers; i++)
        well += sim_key(i, round) == key && sim.peers[i].fate == FATE_NONE;
    sim.together++;
    for (uint32_t i = 0; i < sim.plan.peers && well > 1; i++) {
        const struct sim_round *r = &sim.peers[i].rounds[round];
        if (sim_key(i, round) != key || sim.peers[i].fate != FATE_NONE)
            continue;
        group = group < 0 ? r->group : group;
        INVARIANT("together", r->formed && r->group == group,
                  "round %llu, key %llu: peer %u is in another group",
                  (unsigned long long)round, (unsigned long long)key, i);
    }
}

static void check_together(uint64_t round, uint64_t key, int64_t learn)
{
    int64_t first, last, slack = 6 * PATIENCE;
    if (sim.late || sim.plan.false_reports ||
        !begins_of_survivors(round, key, &first, &last))
        return;
    last += learn;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        if (sim_key(i, round) != key || sim.peers[i].fate == FATE_NONE)
            continue;
        int64_t known = known_to_fail(i, round, first);
        slack += 2 * PATIENCE;
        last = known > last ? known : last;
    }
    if (last > first + sim.plan.window - slack)
        return;
    check_one_group_of(round, key);
}

/* If the peer of lowest rank accepts all others and then stops silently, the others
 * find each other. */
static void check_leaderless(uint64_t round, uint64_t key)
{
    uint32_t stopped = MATCH_NOBODY;
    int64_t first, last;
    if (sim.late || sim.plan.false_reports || sim.plan.knowledge != KNOW_ALL ||
        !begins(round, key, &first, &last) || last > first + PATIENCE / 4 ||
        sim.plan.window < 4 * PATIENCE)
        return;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_peer *p = &sim.peers[i];
        if (sim_key(i, round) != key)
            continue;
        if (stopped == MATCH_NOBODY)
            stopped = i;
        bool fails = i == stopped && p->fate == FATE_STOPS;
        if ((p->fate != FATE_NONE && !fails) || p->reported_at[stopped])
            return;
    }
    if (sim.peers[stopped].fate_at >= last + 2 * PATIENCE)
        check_one_group_of(round, key);
}

/* If all begin together and know all peers, exactly the needed messages are sent. */
static void check_messages(uint64_t round, uint64_t key, bool together)
{
    uint64_t n = sim_comers(round, key), sent = sim.sent[round][key];
    uint64_t parts = sim.plan.alike ? (n + 7) / 8 : (n + 1) / 2;
    uint64_t needed = (n - 1) * (2 + parts);
    uint64_t most = needed + 6 * MATCH_TRIES * n * n;
    INVARIANT("messages", sent <= most, "%llu, expected at most %llu",
              (unsigned long long)sent, (unsigned long long)most);
    INVARIANT("messages", !together || sent == needed, "%llu, expected %llu",
              (unsigned long long)sent, (unsigned long long)needed);
}

static void check_key(uint64_t round, uint64_t key)
{
    if (!sim_comers(round, key))
        return;
    const struct matching_plan *plan = &sim.plan;
    int64_t first, last, learn = plan->knowledge == KNOW_ALL ? 0 : 2 * plan->look_up;
    bool all = begins(round, key, &first, &last), calm = undisturbed(round, key);
    bool fit = sim_comers(round, key) <= plan->most;
    bool in_time =
        !plan->wrong_keys && last + learn + 4 * PATIENCE - plan->window <= first;
    bool together = all && calm && fit && in_time && plan->knowledge == KNOW_ALL &&
                    last - first <= PATIENCE / 4;
    check_messages(round, key, together);
    if (all && calm && fit && in_time)
        check_one_group(round, key);
    if (fit && !plan->wrong_keys) {
        check_together(round, key, learn);
        check_leaderless(round, key);
    }
}

/* Return when the last peer began that this one may have met in the round. */
static int64_t last_begin(uint32_t peer, uint64_t round)
{
    int64_t over_at = sim.peers[peer].rounds[round].over_at, last = 0;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_round *r = &sim.peers[i].rounds[round];
        if (sim_key(i, round) == sim_key(peer, round) && r->begun &&
            r->begun_at <= over_at && r->begun_at > last)
            last = r->begun_at;
    }
    return last;
}

static void check_in_time(uint32_t peer, uint64_t round)
{
    const struct sim_round *r = &sim.peers[peer].rounds[round];
    int64_t took = r->over_at - last_begin(peer, round);
    int64_t drift = sim.plan.window / 500, failures = sim.faults + sim.late;
    int64_t bound = (failures + 1) * (sim.plan.window + 8 * PATIENCE + drift);
    INVARIANT("survivors", !r->begun || r->over, "peer %u has not ended round %llu",
              peer, (unsigned long long)round);
    INVARIANT("in time", sim.peers[peer].fate == FATE_PAUSES || took <= bound,
              "peer %u: round %llu took %lld, at most %lld", peer,
              (unsigned long long)round, (long long)took, (long long)bound);
}

static void check_survivor(uint32_t peer)
{
    const struct sim_peer *p = &sim.peers[peer];
    INVARIANT("survivors", p->done, "peer %u is still in round %llu", peer,
              (unsigned long long)p->round);
    for (uint64_t r = 0; r < sim.plan.rounds; r++)
        check_in_time(peer, r);
}

void check_end(void)
{
    for (int i = 0; i < sim.group_count; i++)
        check_group(&sim.groups[i]);
    for (uint32_t i = 0; i < sim.plan.peers; i++)
        if (lives(&sim.peers[i]))
            check_survivor(i);
    for (uint64_t r = 0; r < sim.plan.rounds; r++)
        for (uint64_t key = 0; key < sim.plan.keys; key++)
            check_key(r, key);
}
