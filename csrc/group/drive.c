/* SPDX-License-Identifier: Apache-2.0 */
/* A grouped allreduce, phase by phase; see group.h. */
#include "group.h"

/* Of the timeout: how late a rank may be and all the time counts. */
enum { LATE_PARTS = 16 };

/* Leaving and coming back. Those who are away answer as well: if all have left, they
 * are the only ones who know how far the rounds had got. */

static int go_away(struct pcoll_group *g)
{
    uint32_t rank = g->window->rank;
    g->phase = PHASE_AWAY;
    g->come_back = false;
    roll_set(&g->roll, rank, STANDING_AWAY, g->roll.entries[rank].returns);
    return group_announce(g, rank, STANDING_AWAY, g->roll.entries[rank].returns);
}

/* Not in a round that it has left: nobody needs to wait for it there. */
static int ask_where(struct pcoll_group *g)
{
    uint32_t rank = g->window->rank, returns = g->roll.entries[rank].returns + 1;
    if (g->round < match_first(&g->match))
        g->round = match_first(&g->match);
    roll_set(&g->roll, rank, STANDING_LIVE, returns);
    g->come_back = false;
    g->phase = PHASE_ASKING;
    g->chain = 0;
    g->answers = 0;
    g->ask_highest = g->round;
    g->ask_until = g->time + group_timeout_ns(g) / 10;
    return group_announce(g, rank, STANDING_LIVE, returns);
}

static bool has_answers(const struct pcoll_group *g)
{
    return g->answers >= roll_others(&g->roll, g->window->rank) ||
           g->time >= g->ask_until;
}

/* What it has started it finishes first, unless it is freed. */
static bool leaves(const struct pcoll_group *g)
{
    return g->closing || (atomic_load(&g->wants_away) && !group_was_started(g));
}

static int go_on_asking(struct pcoll_group *g)
{
    if (!has_answers(g) && !leaves(g))
        return PCOLL_OK;
    g->round = group_round_to_join(g);
    g->phase = PHASE_IDLE;
    return leaves(g) ? PCOLL_OK : group_announce_join(g);
}

/* It is on its leader's list already, or about to be: it gives that a moment, since a
 * list with a member that is gone is void. */
static bool waits_for_list(struct pcoll_group *g)
{
    bool stays = (leaves(g) || g->come_back) && match_bound(&g->match) &&
                 (!g->stay_until || g->time < g->stay_until);
    if (!stays)
        g->stay_until = 0;
    else if (!g->stay_until)
        g->stay_until = g->time + g->match.patience;
    return stays;
}

static int go_on_matching(struct pcoll_group *g)
{
    bool formed = match_state(&g->match) == MATCH_FORMED;
    if (waits_for_list(g) || formed || !(leaves(g) || g->come_back))
        return group_go_on_matching(g);
    match_abandon(&g->match, g->time);
    g->phase = PHASE_IDLE;
    return PCOLL_OK;
}

static int go_on_away(struct pcoll_group *g)
{
    return leaves(g) ? PCOLL_OK : ask_where(g);
}

static int go_on_idle(struct pcoll_group *g)
{
    if (leaves(g))
        return go_away(g);
    if (g->come_back)
        return ask_where(g);
    return group_begin_matching(g);
}

/* One step of whichever phase it is. */
static int step(struct pcoll_group *g)
{
    switch (g->phase) {
    case PHASE_IDLE:
        return go_on_idle(g);
    case PHASE_ASKING:
        return go_on_asking(g);
    case PHASE_MATCHING:
        return go_on_matching(g);
    case PHASE_ROUND:
        return group_go_on_round(g);
    case PHASE_AWAY:
        return go_on_away(g);
    }
    return PCOLL_OK;
}

/* A rank that comes late (its process stood still, or worked) has not read what the
 * others have said meanwhile: that time does not count, or it would blame them. They
 * have not heard from it either, so it speaks at once. Some of it counts, so that one
 * that is always late loses patience too. */
void group_look_at_clock(struct pcoll_group *g)
{
    int64_t time = context_now(g->context) - g->stood;
    int64_t margin = group_timeout_ns(g) / LATE_PARTS;
    int64_t lost = time - g->time - margin;
    if (time - margin > g->due && lost > 0) {
        g->stood += lost;
        g->now.spoke -= lost;
        time -= lost;
    }
    g->time = time;
}

static int64_t next_alarm(struct pcoll_group *g)
{
    int64_t at = match_alarm(&g->match);
    if (g->phase == PHASE_ASKING)
        at = g->ask_until;
    else if (g->phase == PHASE_MATCHING) {
        if (!g->inquiry.waits && g->inquiry.at < at)
            at = g->inquiry.at;
        if (g->hurry_at && g->hurry_at < at)
            at = g->hurry_at;
        if (g->stay_until && g->stay_until < at)
            at = g->stay_until;
    }
    if (g->phase == PHASE_ROUND || g->now.data.abandoned)
        at = group_round_alarm(g);
    return at;
}

/* Away, and nothing of it left: it may close when all are. */
static int settle(struct pcoll_group *g)
{
    bool ended;
    if (g->phase != PHASE_AWAY || !g->closing || g->queued)
        return PCOLL_OK;
    int rc = round_poll(&g->now.data, &ended); /* what is left of void rounds */
    if (rc != PCOLL_OK || g->now.data.abandoned)
        return rc;
    g->queued = true;
    return context_close(g->context, &g->base);
}

int group_drive(struct pcoll_group *g)
{
    enum phase before;
    uint64_t round;
    int rc = PCOLL_OK;
    group_look_at_clock(g);
    if (!g->driven || g->queued)
        return g->queued ? group_drain(g) : rc;
    do {
        before = g->phase;
        round = g->round;
        rc = group_refuse(g);
        if (rc == PCOLL_OK)
            rc = step(g);
        if (rc == PCOLL_OK)
            rc = group_flush_match(g);
    } while (rc == PCOLL_OK && (g->phase != before || g->round != round));
    if (rc == PCOLL_OK)
        rc = settle(g);
    atomic_store(&g->shown_round, g->round);
    int64_t at = rc == PCOLL_OK ? next_alarm(g) : INT64_MAX;
    g->due = at;
    if (at != INT64_MAX)
        context_alarm(g->context, &g->base, at + g->stood);
    return rc;
}

static int run(struct participant *p)
{
    return group_drive(group_of(p));
}

static int no_message(struct participant *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a grouped allreduce", op);
}

const struct participant_ops group_participant = {.run = run,
                                                  .done = no_message,
                                                  .control = group_hear,
                                                  .begin_close = group_begin_close};
