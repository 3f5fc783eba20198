/* SPDX-License-Identifier: Apache-2.0 */
/* What a grouped allreduce waits for, in words: for stall warnings. */
#include <inttypes.h>

#include "base/text.h"
#include "group/object.h"

static void
group_object_describe_members(struct text *t, struct group *g, const char *what,
                              bool (*waits)(const struct group_data *, uint32_t))
{
    const struct group_data *r = &g->now.data;
    const char *before = what;
    for (uint32_t i = 0; i < r->group.members; i++)
        if (i != r->group.position && waits(r, i)) {
            text_add(t, "%s %u", before, r->group.rank[i]);
            before = ",";
        }
}

static void group_object_describe_round(struct text *t, struct group *g)
{
    const struct group_round *now = &g->now;
    text_add(t, " in a group of %u led by rank %u", now->data.group.members,
             now->name.leader);
    if (now->contribution == CONTRIBUTION_OPEN)
        text_add(t, ", not started here");
    group_object_describe_members(t, g, ": no input yet of rank",
                                  group_data_waits_for_input);
    group_object_describe_members(t, g, ": no part yet of rank",
                                  group_data_waits_for_part);
    if (now->marked)
        text_add(t, ": done here, the others have not all said so");
}

static void group_object_describe_matching(struct text *t, struct group *g)
{
    uint32_t line = g->dynamic ? 0 : group_matching_live_on_line(g);
    text_add(t, " looks for its group");
    if (match_state(&g->match) == MATCH_FOLLOWING)
        text_add(t, ", waits for the list of rank %u", g->match.leader);
    if (g->dynamic)
        text_add(t, "; %u of %u ranks have come to this round", g->inquiry.counted,
                 membership_count(&g->membership, g->round));
    const char *before = "; expected: rank";
    for (uint32_t i = 0; i < line; i++) {
        text_add(t, "%s %u", before, g->matching.line[i]);
        before = ",";
    }
}

static void group_object_describe(struct text *t, struct group *g)
{
    text_add(t, "round %" PRIu64 ":", g->round);
    switch (g->phase) {
    case PHASE_ROUND:
        group_object_describe_round(t, g);
        break;
    case PHASE_MATCHING:
        group_object_describe_matching(t, g);
        break;
    case PHASE_ASKING:
        text_add(t, " back again, asks the others where they are");
        break;
    case PHASE_AWAY:
        text_add(t, " this rank has left");
        break;
    case PHASE_IDLE:
        break;
    }
    const char *before = "; suspected: rank";
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        if (g->membership.entries[r].status == MEMBER_SUSPECT) {
            text_add(t, "%s %u", before, r);
            before = ",";
        }
}

int pcoll_group_pending(pcoll_group *p, char *text, uint64_t capacity)
{
    struct group *g = &p->group;
    int rc = fail_if_null(text) ?: group_object_enter(p);
    if (rc != PCOLL_OK)
        return rc;
    struct text t = {.at = text, .left = capacity};
    progress_lock(p->base.communicator->progress);
    if (capacity)
        group_object_describe(&t, g);
    progress_unlock(p->base.communicator->progress);
    return group_object_leave(p, rc);
}
