/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The round after matching: a group's round with its decision (csrc/group/group_wire.h).
 * Each member publishes, waits until all have published, fetches for a while, marks itself
 * done, and polls until there is a decision. When its patience ends it votes for void. The
 * decision word is read in one step and swapped in another, with other peers in between.
 *
 *   agreement     all who learn a decision learn the same one
 *   all done      a round counts only if all members have marked themselves done
 *   counts        a round counts if none fails
 */
#include "check.h"
#include "matching.h"

enum { ROUND_PATIENCE = 8 * PATIENCE };

static int64_t *word_of(const struct sim_group *g)
{
    return &sim.words[g->leader][g->seq % DECISIONS];
}

static struct sim_round *round_of(uint32_t peer)
{
    return &sim.peers[peer].rounds[sim.peers[peer].round];
}

void sim_round_open(const struct sim_group *g)
{
    *word_of(g) = (int64_t)((uint64_t)g->seq << 32);
}

void sim_round_refuse(const struct sim_group *g)
{
    enum decision decision;
    *word_of(g) =
        group_window_after_vote(*word_of(g), g->seq, UINT32_MAX, VOTE_ABORT, &decision);
}

void sim_round_begin(uint32_t peer)
{
    struct sim_round *r = round_of(peer);
    r->step = STEP_PUBLISH;
    r->give_up = sim.now + ROUND_PATIENCE;
}

static bool all_have_published(const struct sim_group *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (!sim.peers[g->members[i].rank].rounds[g->round].published)
            return false;
    return true;
}

static void learn(uint32_t peer, struct sim_group *g, enum decision decision)
{
    struct sim_round *r = round_of(peer);
    INVARIANT("agreement", decision != DECISION_EXPIRED, "the word of (%u, %u) is gone",
              g->leader, g->seq);
    INVARIANT("agreement", g->decision == DECISION_PENDING || g->decision == decision,
              "(%u, %u): peer %u learns %d, others %d", g->leader, g->seq, peer,
              decision, g->decision);
    g->decision = r->decision = decision;
    r->step = STEP_OVER;
    for (uint32_t i = 0; i < g->count && decision == DECISION_COMMIT; i++)
        INVARIANT("all done", sim.peers[g->members[i].rank].rounds[g->round].marked,
                  "(%u, %u) counts, and %u was not done", g->leader, g->seq,
                  g->members[i].rank);
}

/* The second half of a vote. Return false if the word was changed meanwhile. */
static bool swap(uint32_t peer, struct sim_group *g, enum decision_vote vote)
{
    struct sim_round *r = round_of(peer);
    enum decision decision;
    int64_t after = group_window_after_vote(r->word, g->seq, g->count, vote, &decision);
    if (after != r->word && *word_of(g) != r->word)
        return false;
    r->marked = r->marked || (vote == VOTE_DONE && after != r->word);
    if (after != r->word)
        *word_of(g) = after;
    if (decision != DECISION_PENDING)
        learn(peer, g, decision);
    return true;
}

static void go_on_voting(uint32_t peer, struct sim_group *g)
{
    static const enum decision_vote votes[] = {
        [STEP_MARK] = VOTE_DONE, [STEP_LOOK] = VOTE_NOTHING, [STEP_VOID] = VOTE_ABORT};
    struct sim_round *r = round_of(peer);
    if (!r->has_read) {
        r->word = *word_of(g);
        r->has_read = true;
        return;
    }
    r->has_read = false;
    if (!swap(peer, g, votes[r->step]) || r->step == STEP_OVER)
        return;
    bool late = sim.now >= r->give_up;
    r->step = late ? STEP_VOID : STEP_LOOK;
}

int64_t sim_round_go_on(uint32_t peer)
{
    struct sim_round *r = round_of(peer);
    struct sim_group *g = &sim.groups[r->group];
    switch (r->step) {
    case STEP_PUBLISH:
        r->published = true;
        r->step = STEP_FETCH;
        break;
    case STEP_FETCH:
        if (all_have_published(g))
            r->step = STEP_MARK;
        else if (sim.now >= r->give_up)
            r->step = STEP_VOID;
        break;
    case STEP_MARK:
    case STEP_LOOK:
    case STEP_VOID:
        go_on_voting(peer, g);
        break;
    case STEP_OVER:
        break;
    }
    if (r->has_read)
        return sim_draw(PATIENCE / 40);
    return sim_draw(r->step == STEP_MARK ? PATIENCE : PATIENCE / 3);
}

void check_round(const struct sim_group *g, bool calm)
{
    INVARIANT("counts", !calm || g->decision == DECISION_COMMIT,
              "(%u, %u): %d, and no peer has failed", g->leader, g->seq, g->decision);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct sim_peer *p = &sim.peers[g->members[i].rank];
        const struct sim_round *r = &p->rounds[g->round];
        bool member = g->formed[g->members[i].rank] && p->fate != FATE_STOPS;
        INVARIANT("agreement", !member || (r->decision == g->decision && r->decision),
                  "(%u, %u): %u has learned %d, others %d", g->leader, g->seq,
                  g->members[i].rank, r->decision, g->decision);
    }
}
