/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is together in the next round. With static keys those of the line are known: the
 * live ones among them are waited for, and the lowest rank leads. With dynamic keys the
 * directory knows them; once all live ranks have declared themselves for the round,
 * nobody else can come.
 */
#include <time.h>

#include "group.h"

enum { FIRST_LOOK_NS = 200000, LAST_LOOK_NS = 20000000 };

static uint64_t own_line(const struct pcoll_group *g)
{
    return grid_line(&g->grid, g->cell, grid_axis(&g->grid, g->round));
}

uint32_t group_live_on_line(struct pcoll_group *g)
{
    uint32_t axis = grid_axis(&g->grid, g->round), count = 0;
    uint64_t line = own_line(g);
    for (uint32_t r = 0; r < g->roll.ranks; r++)
        if (r == g->window->rank || (roll_takes_part(&g->roll, r, g->round) &&
                                     grid_line(&g->grid, g->cells[r], axis) == line))
            g->line[count++] = r;
    return count;
}

static int64_t wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void offer_line(struct pcoll_group *g, int64_t now)
{
    uint32_t count = group_live_on_line(g);
    for (uint32_t i = 0; i < count; i++)
        g->entries[i] = (struct match_entry){.peer = g->line[i]};
    match_candidates(&g->match, now, g->entries, count);
    match_expect(&g->match, now, count);
}

int group_begin_matching(struct pcoll_group *g)
{
    int64_t now = g->time;
    struct match_goal goal = {
        .round = g->round,
        .key = own_line(g),
        .time = g->dynamic ? wall_clock() : 0,
        .most = g->grid.side[grid_axis(&g->grid, g->round)],
        .expected = g->dynamic && roll_count(&g->roll, g->round) > 1 ? 0 : 1,
        .window = g->options.window_us * 1000,
        .self = {g->window->rank, g->bandwidth, g->chain},
    };
    if (!g->dynamic)
        goal.expected = group_live_on_line(g);
    g->phase = PHASE_MATCHING;
    g->declared_time = goal.time;
    g->hurry_at = g->stay_until = 0;
    g->matching_since = g->time;
    g->inquiry =
        (struct inquiry){.at = g->dynamic ? now : INT64_MAX, .pause = FIRST_LOOK_NS};
    match_begin(&g->match, now, &goal);
    if (!g->dynamic)
        offer_line(g, now);
    return PCOLL_OK;
}

void group_roll_changed(struct pcoll_group *g, uint32_t rank)
{
    int64_t now = g->time;
    if (roll_takes_part(&g->roll, rank, g->round))
        match_back(&g->match, now, rank);
    else
        match_lost(&g->match, now, rank);
    if (g->phase != PHASE_MATCHING || match_state(&g->match) == MATCH_FORMED)
        return;
    if (!g->dynamic)
        offer_line(g, now);
    else if (roll_count(&g->roll, g->round) == 1)
        match_expect(&g->match, now, 1);
}

/* The directory: declare, count oneself, look; then count none and look again. */

static struct directory_key own_key(const struct pcoll_group *g)
{
    return (struct directory_key){g->round, own_line(g)};
}

static int declare(struct pcoll_group *g)
{
    struct directory_key key = own_key(g);
    uint32_t host = directory_host(&key, g->roll.ranks);
    if (window_is_far(g->window, host)) {
        g->inquiry.waits = true;
        return group_say(g, host, TALK_DECLARE, 0, g->round,
                         (uint64_t[4]){key.key, (uint64_t)g->declared_time});
    }
    g->inquiry.stage = INQUIRY_COUNT;
    return directory_declare(g->window, g->place.directory_at, host, g->window->rank,
                             &key, g->declared_time);
}

static int count(struct pcoll_group *g)
{
    uint32_t counter = directory_counter(g->round, g->roll.ranks);
    uint32_t more = !g->inquiry.counted_self;
    g->inquiry.counted_self = true;
    if (window_is_far(g->window, counter)) {
        g->inquiry.waits = true;
        return group_say(g, counter, TALK_COUNT, 0, g->round, (uint64_t[4]){more});
    }
    g->inquiry.stage = INQUIRY_LOOK;
    return directory_count(g->window, g->place.directory_at, counter, g->round, more,
                           &g->inquiry.counted);
}

/* Those who have declared themselves and then left are not waited for. */
static void drop_those_who_left(struct pcoll_group *g)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->inquiry.found; i++) {
        struct match_entry entry = g->entries[i];
        if (entry.peer == g->window->rank ||
            roll_takes_part(&g->roll, entry.peer, g->round))
            g->entries[kept++] = entry;
    }
    g->inquiry.found = kept;
}

static void looked(struct pcoll_group *g)
{
    drop_those_who_left(g);
    int64_t now = g->time;
    struct inquiry *i = &g->inquiry;
    match_candidates(&g->match, now, g->entries, i->found);
    if (i->counted >= roll_count(&g->roll, g->round))
        match_expect(&g->match, now, i->found);
    i->stage = INQUIRY_COUNT;
    i->waits = false;
    i->at = now + i->pause;
    i->pause = 2 * i->pause < LAST_LOOK_NS ? 2 * i->pause : LAST_LOOK_NS;
}

static int look(struct pcoll_group *g)
{
    struct directory_key key = own_key(g);
    uint32_t host = directory_host(&key, g->roll.ranks);
    g->inquiry.found = 0;
    if (window_is_far(g->window, host)) {
        g->inquiry.waits = true;
        return group_say(g, host, TALK_LOOK, 0, g->round, (uint64_t[4]){key.key});
    }
    int rc = directory_look(g->window, g->place.directory_at, host, &key, g->words,
                            g->entries, &g->inquiry.found);
    if (rc == PCOLL_OK)
        looked(g);
    return rc;
}

static bool is_due(const struct pcoll_group *g)
{
    return g->phase == PHASE_MATCHING && !g->inquiry.waits &&
           match_state(&g->match) != MATCH_FORMED && g->time >= g->inquiry.at;
}

static int inquire(struct pcoll_group *g)
{
    int rc = PCOLL_OK;
    while (rc == PCOLL_OK && is_due(g)) {
        switch (g->inquiry.stage) {
        case INQUIRY_DECLARE:
            rc = declare(g);
            break;
        case INQUIRY_COUNT:
            rc = count(g);
            break;
        case INQUIRY_LOOK:
            rc = look(g);
            break;
        }
    }
    return rc;
}

/* Answers from another node; those to an earlier round are too late. */

void group_counted(struct pcoll_group *g, uint64_t round, bool is_count,
                   uint32_t counted)
{
    struct inquiry *i = &g->inquiry;
    if (g->phase != PHASE_MATCHING || round != g->round)
        return;
    i->waits = false;
    i->stage = is_count ? INQUIRY_LOOK : INQUIRY_COUNT;
    if (is_count)
        i->counted = counted;
}

void group_found(struct pcoll_group *g, const struct control *c)
{
    struct inquiry *i = &g->inquiry;
    if (g->phase != PHASE_MATCHING || c->round != g->round)
        return;
    for (uint32_t k = 0; k < c->edge && i->found < g->roll.ranks; k++)
        g->entries[i->found++] = (struct match_entry){
            .peer = (uint32_t)(k ? c->value[1] : c->value[1] >> 32),
            .time = (int64_t)c->value[2 + k]};
    if (i->found >= c->value[0])
        looked(g);
}

/* Somebody does not come. If the application waits, he is to hurry; if not, to let this
 * rank hear from him, or he would be taken for silent when the window ends. */
static int hurry(struct pcoll_group *g)
{
    int64_t limit = g->options.timeout_us < g->options.window_us ? g->options.timeout_us
                                                                 : g->options.window_us;
    int64_t half = limit * 500;
    uint64_t waits = group_was_started(g);
    int rc = PCOLL_OK;
    if (!g->hurry_at || (waits && !g->hurries))
        g->hurry_at = g->time + half;
    g->hurries = waits;
    if (g->time < g->hurry_at)
        return rc;
    g->hurry_at = g->time + half;
    uint32_t waited_for = g->dynamic ? g->roll.ranks : group_live_on_line(g);
    for (uint32_t i = 0; i < waited_for && rc == PCOLL_OK; i++) {
        uint32_t rank = g->dynamic ? i : g->line[i];
        if (rank != g->window->rank && roll_takes_part(&g->roll, rank, g->round))
            rc = group_say(g, rank, TALK_HURRY, 0, g->round, (uint64_t[4]){waits});
    }
    return rc;
}

/* What it comes to. */

static int refuse_one(struct pcoll_group *g, struct group_name name)
{
    enum verdict verdict;
    if (window_is_far(g->window, name.leader))
        return group_say_vote(g, name, VOTE_VOID, UINT32_MAX);
    int rc = verdict_vote(g->window, name.leader, g->place.verdicts_at, name.seq,
                          UINT32_MAX, VOTE_VOID, &verdict);
    if (rc != PCOLL_OK || verdict != VERDICT_VOID)
        return rc;
    if (name.leader == g->window->rank)
        return group_hear_void(g, name);
    return group_say_verdict(g, name.leader, name, verdict);
}

int group_refuse(struct pcoll_group *g)
{
    struct match_refusal refused;
    int rc = PCOLL_OK;
    while (rc == PCOLL_OK && match_refused(&g->match, &refused))
        rc = refuse_one(g, (struct group_name){refused.leader, refused.seq});
    return rc;
}

/* Those for whom the leader has waited in vain, and of whom it has not heard either:
 * who is only late finds another group. */
static bool is_silent(const struct pcoll_group *g, uint32_t rank)
{
    return g->time - g->heard[rank] > group_timeout_ns(g) ||
           g->heard[rank] < g->matching_since;
}

static int suspect_absent(struct pcoll_group *g)
{
    const struct match_list *list = match_list(&g->match);
    uint32_t count = g->dynamic ? 0 : group_live_on_line(g), at = 0;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < count && rc == PCOLL_OK; i++) {
        while (at < list->count && list->members[at].rank < g->line[i])
            at++;
        bool absent = at == list->count || list->members[at].rank != g->line[i];
        if (absent && is_silent(g, g->line[i]))
            rc = group_suspect(g, g->line[i]);
    }
    return rc;
}

static int take_list(struct pcoll_group *g)
{
    int rc = group_flush_match(g);
    if (rc == PCOLL_OK && match_list(&g->match)->leader == g->window->rank)
        rc = suspect_absent(g);
    return rc == PCOLL_OK ? group_begin_round(g) : rc;
}

int group_go_on_matching(struct pcoll_group *g)
{
    match_tick(&g->match, g->time);
    int rc = inquire(g);
    if (rc == PCOLL_OK)
        rc = hurry(g);
    if (rc != PCOLL_OK)
        return rc;
    switch (match_state(&g->match)) {
    case MATCH_FORMED:
        return take_list(g);
    case MATCH_BEHIND: {
        uint64_t ahead = match_ahead(&g->match);
        match_end(&g->match);
        g->round = ahead > g->round ? ahead : g->round + 1;
        g->chain = 0;
        g->phase = PHASE_IDLE;
        return group_announce_join(g);
    }
    case MATCH_IDLE:
    case MATCH_LOOKING:
    case MATCH_FOLLOWING:
        break;
    }
    return PCOLL_OK;
}
