/* SPDX-License-Identifier: Apache-2.0 */
/* Who is there, by the directory; see inquiry.h. */
#include "group/group.h"

#include "base/check.h"

enum { FIRST_PAUSE_NS = 200000, LAST_PAUSE_NS = 20000000 };

void group_matching_begin_inquiry(struct group *g, int64_t time)
{
    CHECK(g->phase == PHASE_MATCHING);
    g->inquiry = (struct group_inquiry){.time = time,
                                        .at = g->dynamic ? g->clock.time : INT64_MAX,
                                        .pause = FIRST_PAUSE_NS,
                                        .entries = g->inquiry.entries};
}

static struct group_key group_matching_key(const struct group *g)
{
    return (struct group_key){g->round, group_agent_line(g)};
}

/* What the answers mean. */

static void group_matching_declared(struct group_inquiry *i)
{
    i->waits = false;
    i->stage = INQUIRY_COUNT;
}

static void group_matching_counted(struct group_inquiry *i, uint32_t count)
{
    i->waits = false;
    i->stage = INQUIRY_QUERY;
    i->counted = count;
}

/* Those who have declared themselves and then left are not waited for. */
static void group_matching_drop_absent(struct group *g)
{
    struct group_inquiry *i = &g->inquiry;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < i->found; k++) {
        struct match_entry entry = i->entries[k];
        if (entry.peer == g->window->rank ||
            membership_takes_part(&g->membership, entry.peer, g->round))
            i->entries[kept++] = entry;
    }
    i->found = kept;
}

static void group_matching_found_all(struct group *g)
{
    group_matching_drop_absent(g);
    int64_t now = g->clock.time;
    struct group_inquiry *i = &g->inquiry;
    CHECK(i->found <= g->membership.ranks && i->stage == INQUIRY_QUERY);
    match_candidates(&g->match, now, i->entries, i->found);
    if (i->counted >= membership_count(&g->membership, g->round))
        match_expect(&g->match, now, i->found);
    i->stage = INQUIRY_COUNT;
    i->waits = false;
    i->at = now + i->pause;
    i->pause = 2 * i->pause < LAST_PAUSE_NS ? 2 * i->pause : LAST_PAUSE_NS;
}

/* The stages. */

static int group_matching_declare(struct group *g)
{
    struct group_key key = group_matching_key(g);
    bool answered;
    int rc = group_window_request_declare(g, &key, g->inquiry.time, &answered);
    g->inquiry.waits = true;
    if (rc == PCOLL_OK && answered)
        group_matching_declared(&g->inquiry);
    return rc;
}

static int group_matching_count(struct group *g)
{
    uint32_t all;
    int32_t more = g->inquiry.counted_self ? 0 : 1;
    bool answered;
    int rc = group_window_request_count(g, g->round, more, &all, &answered);
    g->inquiry.counted_self = g->inquiry.waits = true;
    if (rc == PCOLL_OK && answered)
        group_matching_counted(&g->inquiry, all);
    return rc;
}

static int group_matching_query(struct group *g)
{
    struct group_key key = group_matching_key(g);
    struct group_inquiry *i = &g->inquiry;
    bool answered;
    i->found = 0;
    i->waits = true;
    int rc = group_window_request_query(g, &key, i->entries, &i->found, &answered);
    if (rc == PCOLL_OK && answered)
        group_matching_found_all(g);
    return rc;
}

static bool group_matching_inquiry_due(const struct group *g)
{
    return g->phase == PHASE_MATCHING && !g->inquiry.waits &&
           match_state(&g->match) != MATCH_FORMED && g->clock.time >= g->inquiry.at;
}

int group_matching_inquire(struct group *g)
{
    int rc = PCOLL_OK;
    CHECK(g->phase == PHASE_MATCHING);
    while (rc == PCOLL_OK && group_matching_inquiry_due(g)) {
        switch (g->inquiry.stage) {
        case INQUIRY_DECLARE:
            rc = group_matching_declare(g);
            break;
        case INQUIRY_COUNT:
            rc = group_matching_count(g);
            break;
        case INQUIRY_QUERY:
            rc = group_matching_query(g);
            break;
        }
    }
    return rc;
}

int group_matching_withdraw(struct group *g)
{
    uint32_t all;
    bool answered;
    CHECK(g->phase == PHASE_MATCHING);
    if (!g->inquiry.counted_self)
        return PCOLL_OK;
    g->inquiry.counted_self = false;
    return group_window_request_count(g, g->round, -1, &all, &answered);
}

int64_t group_matching_inquiry_alarm(const struct group *g)
{
    CHECK(!g->inquiry.waits || g->dynamic);
    return g->inquiry.waits ? INT64_MAX : g->inquiry.at;
}

/* Answers from another node. Those to an earlier round, or that nothing waits for, are
 * dropped. */

static bool group_matching_is_awaited(const struct group *g,
                                      const struct group_message *m,
                                      enum group_inquiry_stage stage)
{
    return g->phase == PHASE_MATCHING && m->round == g->round && g->inquiry.waits &&
           g->inquiry.stage == stage;
}

void group_matching_on_counted(struct group *g, const struct group_message *m)
{
    if (!group_matching_is_awaited(g, m, m->counts ? INQUIRY_COUNT : INQUIRY_DECLARE))
        return;
    if (m->counts)
        group_matching_counted(&g->inquiry, m->count);
    else
        group_matching_declared(&g->inquiry);
}

void group_matching_on_found(struct group *g, const struct group_message *m)
{
    struct group_inquiry *i = &g->inquiry;
    if (!group_matching_is_awaited(g, m, INQUIRY_QUERY))
        return;
    for (uint32_t k = 0; k < m->entries && i->found < g->membership.ranks; k++)
        i->entries[i->found++] = m->entry[k];
    if (i->found >= m->count)
        group_matching_found_all(g);
}
