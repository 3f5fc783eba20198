/* SPDX-License-Identifier: Apache-2.0 */
/* The bandwidth of a rank; see bandwidth.h. */
#include <float.h>
#include <math.h>

#include "group/group.h"

#include "base/check.h"

void group_round_set_bandwidth(struct group *g, double bandwidth)
{
    CHECK(bandwidth >= 0);
    double told = bandwidth < (double)FLT_MAX ? bandwidth : (double)FLT_MAX;
    g->bandwidth.told = bandwidth > 0 ? (float)fmax(told, (double)FLT_MIN) : 0;
    lock_take(&g->shared.mutex);
    g->shared.stats.bandwidth = bandwidth;
    lock_release(&g->shared.mutex);
}

/* What all the others together have fetched from this rank, bytes per second. */
static double group_round_upload_rate(const struct group *g)
{
    const struct group_members *group = &g->now.data.group;
    double rate = 0;
    for (uint32_t i = 0; i < group->members; i++) {
        const struct group_notice *n = &g->now.notices[group->rank[i]];
        if (i != group->position && group_wire_same_name(n->name, g->now.name))
            rate += (double)n->rate * KIB;
    }
    return rate;
}

/* Its link takes in what it has taken in, and gives out what all the others together
 * have fetched; the smaller of the two counts (appendix G). */
void group_round_measure_bandwidth(struct group *g)
{
    struct group_bandwidth *b = &g->bandwidth;
    CHECK(g->phase == PHASE_ROUND && b->measured >= 0);
    double rate = g->now.data.meter.download;
    if (!g->options.measure)
        return;
    double upload = group_round_upload_rate(g);
    if (upload > 0 && (rate == 0 || upload < rate))
        rate = upload;
    if (rate > 0)
        b->measured = b->measured > 0 ? (b->measured + rate) / 2 : rate;
    if (b->measured > 0 && b->rounds++ % g->options.every == 0)
        group_round_set_bandwidth(g, b->measured);
}
