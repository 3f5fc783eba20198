/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's round on one rank, from the list to the verdict.
 *
 * Patience: every member lets the others hear from it four times in a timeout T while
 * the round lasts. Whoever has contributed for T/2 passes over those whose application
 * has not come: their agents go on without it. A member that has not been heard of for
 * T makes the round void. Whoever has waited for T/2 for its group to be found tells
 * those it waits for to hurry: they may be in an earlier round in which nobody has come
 * yet.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "../algorithms/algorithms.h"
#include "group.h"
#include "shares.h"

enum { FIRST_NAP_NS = 20000, LAST_NAP_NS = 500000, GRAIN_BYTES = 64, KIB = 1024 };

void group_tell_bandwidth(struct pcoll_group *g, double bandwidth)
{
    double told = bandwidth < (double)FLT_MAX ? bandwidth : (double)FLT_MAX;
    g->bandwidth = bandwidth > 0 ? (float)fmax(told, (double)FLT_MIN) : 0;
    pthread_mutex_lock(&g->mutex);
    g->stats.bandwidth = bandwidth;
    pthread_mutex_unlock(&g->mutex);
}

/* From the list to the crew. */

static bool all_have_bandwidths(const struct match_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!(list->members[i].bandwidth > 0))
            return false;
    return true;
}

static int share_out(struct pcoll_group *g, const struct match_list *list)
{
    struct crew *crew = &g->now.data.crew;
    double *bandwidth = g->bandwidths;
    bool known = all_have_bandwidths(list);
    for (uint32_t i = 0; i < list->count; i++)
        bandwidth[i] = known ? (double)list->members[i].bandwidth : 1.0;
    int rc = group_shares(bandwidth, list->count, crew->share);
    if (rc == PCOLL_OK)
        group_bounds(crew->share, list->count, g->place.count,
                     GRAIN_BYTES / g->place.element, crew->bound);
    return rc;
}

static void fill_crew(struct pcoll_group *g, const struct match_list *list)
{
    struct crew *crew = &g->now.data.crew;
    crew->members = list->count;
    g->now.chain = UINT32_MAX;
    for (uint32_t i = 0; i < list->count; i++) {
        crew->rank[i] = list->members[i].rank;
        if (crew->rank[i] == g->window->rank)
            crew->position = i;
        if (list->members[i].chain < g->now.chain)
            g->now.chain = list->members[i].chain;
    }
}

static uint32_t member_of(const struct pcoll_group *g, uint32_t rank)
{
    const struct crew *crew = &g->now.data.crew;
    uint32_t i = 0;
    while (i < crew->members && crew->rank[i] != rank)
        i++;
    return i;
}

int group_begin_round(struct pcoll_group *g)
{
    const struct match_list *list = match_list(&g->match);
    struct current *now = &g->now;
    int64_t time = g->time;
    fill_crew(g, list);
    now->name = (struct group_name){list->leader, list->seq};
    now->contribution = CONTRIBUTION_OPEN;
    now->verdict = VERDICT_OPEN;
    now->marked = now->passed = now->passed_over = false;
    now->began = time;
    now->spoke = now->looked = time;
    now->void_after = 0;
    now->nap = FIRST_NAP_NS;
    now->early = !group_was_started(g);
    int rc = share_out(g, list);
    if (rc == PCOLL_OK)
        rc = round_prepare(&now->data);
    g->phase = PHASE_ROUND;
    for (uint32_t i = 0; i < list->count && rc == PCOLL_OK; i++) {
        now->heard[i] = time;
        group_apply_notice(g, now->data.crew.rank[i]);
    }
    return rc;
}

void group_apply_notice(struct pcoll_group *g, uint32_t rank)
{
    const struct notice *n = &g->notices[rank];
    struct current *now = &g->now;
    if (g->phase != PHASE_ROUND || !group_same(n->name, now->name))
        return;
    uint32_t member = member_of(g, rank);
    if (member < now->data.crew.members) {
        now->heard[member] = g->time;
        if (n->bits & (NOTICE_INPUT | NOTICE_NULL))
            round_input(&now->data, member, n->bits & NOTICE_INPUT);
        if (n->bits & NOTICE_PART)
            round_part(&now->data, member);
    }
    if (n->bits & NOTICE_PASS)
        now->passed = true;
    if (now->verdict == VERDICT_OPEN && n->bits & (NOTICE_VOID | NOTICE_COMMIT))
        now->verdict = n->bits & NOTICE_COMMIT ? VERDICT_COMMIT : VERDICT_VOID;
}

int group_notify(void *arg, uint32_t member, int edge)
{
    struct pcoll_group *g = arg;
    uint32_t rank = g->now.data.crew.rank[member];
    if (edge == BUTTERFLY_RESULT)
        return group_say_about(g, rank, TALK_PART, g->now.name,
                               (uint64_t)(g->now.data.meter.rate[member] / KIB));
    return group_say_about(g, rank, TALK_INPUT, g->now.name,
                           round_contributes(&g->now.data) ? NOTICE_INPUT
                                                           : NOTICE_NULL);
}

/* What this rank puts in. */

static int contribute(struct pcoll_group *g)
{
    struct current *now = &g->now;
    bool leaves = atomic_load(&g->wants_away) || g->closing;
    if (now->contribution != CONTRIBUTION_OPEN)
        return PCOLL_OK;
    if (group_was_started(g)) {
        g->consumed++;
        now->contribution = CONTRIBUTION_OWN;
    } else if (leaves || now->passed)
        now->contribution = CONTRIBUTION_NULL;
    else
        return PCOLL_OK;
    now->began = g->time;
    return round_start(&now->data, now->contribution == CONTRIBUTION_OWN);
}

int group_hurry(struct pcoll_group *g, uint64_t round)
{
    struct current *now = &g->now;
    const struct crew *crew = &now->data.crew;
    int rc = PCOLL_OK;
    if (g->phase != PHASE_ROUND || g->round >= round || now->passed ||
        now->contribution != CONTRIBUTION_OPEN)
        return rc;
    now->passed = true;
    for (uint32_t i = 0; i < crew->members && rc == PCOLL_OK; i++)
        if (i != crew->position)
            rc = group_say(g, crew->rank[i], TALK_HURRY, 0, round, (uint64_t[4]){true});
    return rc;
}

/* The verdict. */

int group_learn_verdict(struct pcoll_group *g, enum verdict verdict)
{
    struct current *now = &g->now;
    const struct crew *crew = &now->data.crew;
    int rc = PCOLL_OK;
    if (now->verdict != VERDICT_OPEN)
        return rc;
    now->verdict = verdict;
    for (uint32_t i = 0; i < crew->members && rc == PCOLL_OK; i++)
        if (i != crew->position)
            rc = group_say_verdict(g, crew->rank[i], now->name, verdict);
    return rc;
}

int group_hear_void(struct pcoll_group *g, struct group_name name)
{
    if (g->phase != PHASE_ROUND || !group_same(g->now.name, name))
        return PCOLL_OK;
    return group_learn_verdict(g, VERDICT_VOID);
}

static int vote(struct pcoll_group *g, enum verdict_vote vote)
{
    struct current *now = &g->now;
    uint32_t members = now->data.crew.members;
    enum verdict verdict = VERDICT_OPEN;
    now->looked = g->time;
    if (window_is_far(g->window, now->name.leader))
        return group_say_vote(g, now->name, vote, members);
    int rc = verdict_vote(g->window, now->name.leader, g->place.verdicts_at,
                          now->name.seq, members, vote, &verdict);
    if (rc != PCOLL_OK || verdict == VERDICT_OPEN)
        return rc;
    if (verdict == VERDICT_GONE && now->marked)
        return PCOLL_OK; /* it may have counted; the word of it is on its way */
    return group_learn_verdict(g, verdict == VERDICT_COMMIT ? verdict : VERDICT_VOID);
}

/* Whoever has not voted for it may go: without it the round cannot count. */
static int make_void(struct pcoll_group *g)
{
    int rc = vote(g, VOTE_VOID);
    return rc == PCOLL_OK && !g->now.marked ? group_learn_verdict(g, VERDICT_VOID) : rc;
}

static int mark_done(struct pcoll_group *g)
{
    if (g->now.marked || !round_over(&g->now.data))
        return PCOLL_OK;
    g->now.marked = true;
    return vote(g, VOTE_DONE);
}

/* Patience. */

int group_suspect(struct pcoll_group *g, uint32_t rank)
{
    uint32_t returns = g->roll.entries[rank].returns;
    if (!roll_set(&g->roll, rank, STANDING_SUSPECT, returns))
        return PCOLL_OK;
    group_roll_changed(g, rank);
    pthread_mutex_lock(&g->mutex);
    g->stats.suspected++;
    pthread_mutex_unlock(&g->mutex);
    return group_announce(g, rank, STANDING_SUSPECT, returns);
}

static bool is_silent(const struct pcoll_group *g, uint32_t member, int64_t time)
{
    int64_t since =
        g->now.heard[member] > g->now.began ? g->now.heard[member] : g->now.began;
    return member != g->now.data.crew.position && time - since > group_timeout_ns(g);
}

/* It left while its leader closed the list, has never seen it and puts nothing in: who
 * has seen the list finishes the round before it is away. */
static bool is_gone(const struct pcoll_group *g, uint32_t member)
{
    uint32_t rank = g->now.data.crew.rank[member];
    return g->roll.entries[rank].standing == STANDING_AWAY &&
           !g->now.data.heard[member];
}

static int look_for_silent(struct pcoll_group *g, int64_t time)
{
    const struct crew *crew = &g->now.data.crew;
    bool silent = false;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < crew->members && rc == PCOLL_OK; i++)
        if (is_silent(g, i, time) || is_gone(g, i)) {
            silent = true;
            rc = group_suspect(g, crew->rank[i]);
        }
    if (rc != PCOLL_OK || !silent || time < g->now.void_after)
        return rc;
    g->now.void_after =
        time + group_timeout_ns(g) / 4; /* should the leader not answer */
    return make_void(g);
}

static int say_to_members(struct pcoll_group *g, enum talk kind, bool only_missing)
{
    const struct crew *crew = &g->now.data.crew;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < crew->members && rc == PCOLL_OK; i++)
        if (i != crew->position && !(only_missing && g->now.data.heard[i]))
            rc = group_say_about(g, crew->rank[i], kind, g->now.name, 0);
    return rc;
}

int group_breathe(void *arg)
{
    struct pcoll_group *g = arg;
    group_look_at_clock(g);
    if (g->time - g->now.spoke < group_timeout_ns(g) / 4)
        return PCOLL_OK;
    g->now.spoke = g->time;
    return say_to_members(g, TALK_ALIVE, false);
}

static int be_patient(struct pcoll_group *g)
{
    struct current *now = &g->now;
    int rc = group_breathe(g);
    int64_t time = g->time, quarter = group_timeout_ns(g) / 4;
    if (now->contribution == CONTRIBUTION_OPEN || rc != PCOLL_OK)
        return rc;
    if (!now->passed_over && time - now->began >= 2 * quarter) {
        now->passed_over = true;
        rc = say_to_members(g, TALK_PASS, true);
    }
    if (rc == PCOLL_OK && now->marked && time - now->looked >= quarter)
        rc = vote(g, VOTE_NOTHING);
    return rc == PCOLL_OK && now->verdict == VERDICT_OPEN ? look_for_silent(g, time)
                                                          : rc;
}

/* The end. */

/* As many in a row as there are axes need a full grid: each multiplies the ranks behind
 * a value by a side, and nobody is behind it twice. */
static bool was_complete(const struct pcoll_group *g)
{
    const struct round *r = &g->now.data;
    return r->crew.members == g->grid.side[grid_axis(&g->grid, g->round)] &&
           r->active == r->crew.members;
}

static void tell_outcome(struct pcoll_group *g, bool counts)
{
    const struct round *r = &g->now.data;
    size_t members = counts ? r->crew.members : 0;
    pthread_mutex_lock(&g->mutex);
    g->outcome = (struct pcoll_group_round){
        .index = g->round,
        .missed = g->round - g->last_index,
        .axis = grid_axis(&g->grid, g->round),
        .members = (uint32_t)members,
        .position = r->crew.position,
        .active = counts ? r->active : 0,
        .exact = counts && g->chain >= g->grid.axes,
        .is_void = !counts,
    };
    memcpy(g->outcome_ranks, r->crew.rank, members * sizeof *r->crew.rank);
    memcpy(g->outcome_shares, r->crew.share, members * sizeof *r->crew.share);
    pthread_mutex_unlock(&g->mutex);
    g->last_index = g->round + 1;
    atomic_store(&g->shown_round, g->round + 1);
    atomic_fetch_add(&g->finished, 1);
    if (g->context->progress)
        progress_notify(g->context->progress);
}

static void count_round(struct pcoll_group *g, bool counts)
{
    bool own = g->now.contribution == CONTRIBUTION_OWN;
    pthread_mutex_lock(&g->mutex);
    g->stats.rounds += own && counts;
    g->stats.void_rounds += own && !counts;
    g->stats.null_rounds += g->now.contribution == CONTRIBUTION_NULL;
    g->stats.matched_ahead += own && g->now.early;
    g->stats.bytes_fetched = g->now.data.bytes_fetched;
    pthread_mutex_unlock(&g->mutex);
}

/* Its link takes in what it has taken in, and gives out what all the others together
 * have fetched; the smaller of the two counts (appendix G). */
static void measure(struct pcoll_group *g)
{
    const struct round *r = &g->now.data;
    double upload = 0, rate = r->meter.download;
    if (!g->options.measure)
        return;
    for (uint32_t i = 0; i < r->crew.members; i++)
        if (i != r->crew.position &&
            group_same(g->notices[r->crew.rank[i]].name, g->now.name))
            upload += (double)g->notices[r->crew.rank[i]].rate * KIB;
    if (upload > 0 && (rate == 0 || upload < rate))
        rate = upload;
    if (rate > 0)
        g->measured = g->measured > 0 ? (g->measured + rate) / 2 : rate;
    if (g->measured > 0 && g->measured_rounds++ % g->options.every == 0)
        group_tell_bandwidth(g, g->measured);
}

static void move(struct pcoll_group *g)
{
    const struct crew *crew = &g->now.data.crew;
    uint32_t axis = grid_axis(&g->grid, g->round);
    uint32_t chunk =
        grid_chunk(&g->grid, g->roll.ranks, g->round,
                   grid_line(&g->grid, g->cell, axis), crew->position, crew->members);
    g->cell = grid_move(&g->grid, g->cell, axis, chunk);
}

static int finish(struct pcoll_group *g)
{
    bool counts = g->now.verdict == VERDICT_COMMIT;
    measure(g);
    g->chain = counts && was_complete(g) ? g->now.chain + 1 : 0;
    count_round(g, counts);
    if (g->now.contribution == CONTRIBUTION_OWN)
        tell_outcome(g, counts);
    if (counts && g->dynamic)
        move(g);
    match_end(&g->match);
    g->round++;
    g->phase = PHASE_IDLE;
    return round_end(&g->now.data);
}

int group_go_on_round(struct pcoll_group *g)
{
    bool ended;
    int rc = round_poll(&g->now.data, &ended);
    if (ended)
        g->now.nap = FIRST_NAP_NS;
    if (rc == PCOLL_OK && g->now.verdict == VERDICT_OPEN)
        rc = contribute(g);
    if (rc == PCOLL_OK && g->now.verdict == VERDICT_OPEN)
        rc = round_run(&g->now.data);
    if (rc == PCOLL_OK && g->now.verdict == VERDICT_OPEN)
        rc = mark_done(g);
    if (rc == PCOLL_OK && g->now.verdict == VERDICT_OPEN)
        rc = be_patient(g);
    return rc == PCOLL_OK && g->now.verdict != VERDICT_OPEN ? finish(g) : rc;
}

/* When to look again without being told. */
int64_t group_round_alarm(struct pcoll_group *g)
{
    struct current *now = &g->now;
    int64_t at =
        g->phase == PHASE_ROUND ? now->spoke + group_timeout_ns(g) / 4 : INT64_MAX;
    if (!now->data.under_way && !now->data.abandoned)
        return at;
    int64_t soon = g->time + now->nap;
    now->nap = 2 * now->nap < LAST_NAP_NS ? 2 * now->nap : LAST_NAP_NS;
    return soon < at ? soon : at;
}
