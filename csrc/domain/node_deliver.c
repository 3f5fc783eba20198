/* SPDX-License-Identifier: Apache-2.0 */
/* A member reads a round, while others may begin to overwrite it: node.h, invariant 5. */
#include "domain/node.h"

#include "base/check.h"
#include "base/fence.h"
#include "base/moment.h"

/* The round that the ring has no room for any more has begun to close. */
static bool node_overwritten(const struct node *n, uint64_t round)
{
    uint64_t control = node_control(n), reuse = round + n->ring;
    return node_control_round(control) > reuse ||
           (node_control_round(control) == reuse &&
            node_control_phase(control) != NODE_OPEN);
}

static void node_copy_out(struct node *n, const struct round_header *h,
                          void *const *buffers, pcoll_round *round, uint64_t *masks)
{
    const struct round_shape *shape = n->base.shape;
    INTERLEAVE();
    if (buffers && round_is_null(h, shape->ranks))
        payload_identity(&shape->payload, buffers);
    else if (buffers)
        payload_unpack(&shape->payload, buffers, message_payload(shape, h));
    INTERLEAVE();
    round_describe(shape, h, round, masks);
}

/* Does the header say that with this round all have joined? Then the rank no longer
 * announces it, and says so before it says that it has read the round, since nobody
 * starts the next one before. */
static bool node_ends_join(const struct node *n, const struct round_header *h)
{
    const struct member *m = &n->member;
    uint32_t ranks = n->base.shape->ranks;
    return m->joining &&
           bitset_has(round_mask_const(h, ranks, ROUND_JOINED), m->rank) &&
           round_all_gone(h, ranks);
}

/* Was a round held back for this member, as far as it can tell? It will look. */
static bool node_end_read(struct node *n, uint64_t before, uint64_t *lost)
{
    struct member *m = &n->member;
    member_read_end(m, lost);
    MOMENT("result read");
    if (m->joined)
        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));
    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));
    uint64_t control = node_control(n);
    return node_control_phase(control) == NODE_OPEN &&
           (m->joined || node_control_round(control) >= before + m->history);
}

int node_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                 void *const *buffers, pcoll_round *round, uint64_t *masks, bool *moved)
{
    struct node *n = node_of(d);
    struct member *m = &n->member;
    uint64_t index, before = m->delivered;
    bool joined = false;
    for (bool whole = false; !whole;) {
        node_look(n);
        if (!member_read_begin(m, last, horizon, &index))
            return PCOLL_EEMPTY;
        const struct round_header *h = node_result(n, index);
        node_copy_out(n, h, buffers, round, masks);
        joined = node_ends_join(n, h);
        fence_after_reads();
        whole = m->deliver == PCOLL_DELIVER_ONE || !node_overwritten(n, index);
    }
    CHECK(index < m->complete);
    if (joined)
        m->joined_in = (int64_t)index;
    *moved = node_end_read(n, before, &round->lost);
    node_look(n);
    round->index = index;
    round->lag = m->complete - m->delivered;
    round->included = member_included(m, index);
    round->joined = m->joined;
    return PCOLL_OK;
}
