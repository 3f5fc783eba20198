/* SPDX-License-Identifier: Apache-2.0 */
/* A domain continues where another one has stopped; see domain.h. */
#include "domain/node.h"

#include "protocol/member.h"

uint64_t node_copy_results(struct domain *d, struct domain *old, uint64_t round,
                           const struct round_header *last)
{
    const struct round_shape *shape = d->shape;
    uint32_t kept = node_of(d)->history;
    uint64_t first = round - (round > 0), oldest = round > kept ? round - kept : 0;
    struct member m;
    if (old) {
        old->ops->snapshot(old, &m);
        first = m.delivered ? m.delivered - 1 : 0;
        oldest = node_of(old)->oldest > oldest ? node_of(old)->oldest : oldest;
    }
    first = first > oldest ? first : oldest;
    for (uint64_t r = first; r < round; r++) {
        const struct round_header *from =
            r + 1 == round ? last : old->ops->result(old, r);
        struct round_header *to = d->ops->result(d, r);
        /* The ring has one entry more than results are kept: the open round uses another one. */
        CHECK(from->round == r);
        round_header_copy(to, from, shape->ranks);
        memcpy(message_payload(to), message_payload(from),
               round_shape_data_bytes(shape));
    }
    return first;
}

void node_begin_at(struct domain *d, struct domain *old, uint64_t round,
                   const struct round_header *last)
{
    struct node *n = node_of(d);
    n->member.complete = n->member.frozen = n->member.delivered = round;
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    STEP(atomic_store(&node_own_line(n)->delivered, round));
    int failed = old ? old->ops->failure(old) : PCOLL_OK;
    if (failed != PCOLL_OK)
        atomic_store(&n->shared->failure, failed);
    n->oldest = node_copy_results(d, old, round, last);
    if (n->who != 0)
        return;
    /* The first member writes what belongs to all: no member reads it yet. */
    if (!n->fabric)
        node_write_live(n, last);
    if (last)
        node_note_join(n, round - 1, last);
    STEP(atomic_store(&n->shared->control, node_control_word(round, NODE_OPEN, 0)));
}

/* Move the deposit that is pending after the recovery to the new domain. */
static int node_move_deposit(struct node *n, struct domain *old,
                             const struct recovered_deposit *r)
{
    const struct round_shape *shape = n->base.shape;
    if (r->into == NO_SLOT)
        return PCOLL_OK;
    void *to = message_payload(node_slot(n, n->who, r->into));
    const void *part[2] = {NULL, NULL};
    int parts = 0;
    if (r->older != NO_SLOT)
        part[parts++] = message_payload(old->ops->slot(old, r->older));
    if (r->newer != NO_SLOT)
        part[parts++] = message_payload(old->ops->slot(old, r->newer));
    CHECK(parts > 0);
    if (parts == 2)
        return payload_reduce(&shape->payload, to, part[0], part[1]);
    memcpy(to, part[0], round_shape_data_bytes(shape));
    return PCOLL_OK;
}

/* The member's state after the recovery is whole even if a user's op fails on its deposit. */
int node_inherit(struct domain *d, struct domain *old, uint64_t round,
                 const struct round_header *last)
{
    struct node *n = node_of(d);
    CHECK(d != old);
    struct member m = n->member;
    struct node_line *line = node_own_line(n);
    int rc = PCOLL_OK;
    if (old) {
        old->ops->snapshot(old, &m);
        struct recovered_deposit r = member_recover(&m, round, last);
        rc = node_move_deposit(n, old, &r);
        old->ops->hand_over(old, round, &n->pending);
    } else {
        member_enter(&m, round, last);
    }
    n->member = m;
    n->owes = m.contribution.pending != NO_SLOT && m.taken_in == NO_ROUND;
    n->pending.last = n->owes ? m.contribution.pending : 0;
    STEP(atomic_store(&line->delivered, m.delivered));
    node_set_calling(n, m.started);
    STEP(atomic_store(&line->retired, m.retired));
    atomic_store_explicit(&line->intent, n->base.shape->intent, memory_order_relaxed);
    node_note_arrival_time(n);
    /* Publish the descriptor last: other members act on it as soon as they see it. */
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    return rc;
}
