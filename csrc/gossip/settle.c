/* SPDX-License-Identifier: Apache-2.0 */
/* What the dead leave; see settle.h. */
#include "gossip/settle.h"

#include "base/check.h"
#include "base/moment.h"
#include "gossip/accumulator.h"
#include "gossip/queue.h"

int settle_own(struct gossip_memory *m)
{
    uint64_t halves;
    int rc = accumulator_settle(m, &halves);
    m->stats.orphaned += halves;
    return rc == PCOLL_OK ? queue_settle(m) : rc;
}

static void negate(const struct layout *l, void *sums, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (l->held == PCOLL_FLOAT64)
            ((double *)sums)[i] = -((double *)sums)[i];
        else
            ((float *)sums)[i] = -((float *)sums)[i];
}

/* First taken away, then added. */
static int move_chunk(struct gossip_memory *m, uint32_t dead, size_t first)
{
    const struct layout *l = &m->layout;
    int rc = accumulator_query(m, dead, first);
    negate(l, m->change, chunk_length(l, first));
    if (rc == PCOLL_OK)
        rc = accumulator_give(m, dead, first);
    MOMENT("chunk adopted");
    negate(l, m->change, chunk_length(l, first));
    return rc == PCOLL_OK ? accumulator_give(m, m->window->rank, first) : rc;
}

int settle_dead(struct gossip_memory *m, uint32_t dead)
{
    const struct layout *l = &m->layout;
    CHECK(dead < l->ranks && dead != m->window->rank);
    uint64_t deltas;
    int rc = PCOLL_OK;
    for (size_t first = 0; first < l->count && rc == PCOLL_OK; first += l->chunk)
        rc = move_chunk(m, dead, first);
    if (rc == PCOLL_OK)
        rc = accumulator_adopt(m, dead, &deltas);
    if (rc == PCOLL_OK)
        m->stats.orphaned += deltas;
    return rc;
}
