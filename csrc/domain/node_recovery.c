/* SPDX-License-Identifier: Apache-2.0 */
/* A domain goes on where another one has stopped; see domain.h. */
#include "domain/domain.h"

#include "base/check.h"
#include "domain/node.h"

/* What both kinds of domain do alike. */

void domain_copy_results(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last, uint32_t kept)
{
    size_t bytes = d->shape->header_bytes + payload_data_bytes(&d->shape->payload);
    uint64_t first = round - (round > 0), oldest = round > kept ? round - kept : 0;
    struct member m;
    if (old) {
        old->ops->snapshot(old, &m);
        first = m.delivered ? m.delivered - 1 : 0;
    }
    for (uint64_t r = first > oldest ? first : oldest; r < round; r++) {
        const struct round_header *from =
            r + 1 == round ? last : old->ops->result(old, r);
        CHECK(from->round == r || r < m.delivered);
        if (from->round == r && !round_header_is_blank(from, d->shape->ranks))
            memcpy(d->ops->result(d, r), from, bytes);
    }
}

static int domain_move_deposit(struct domain *d, struct domain *old,
                               const struct recovered_deposit *r)
{
    if (r->into == NO_SLOT)
        return PCOLL_OK;
    void *to = message_payload(d->shape, d->ops->slot(d, r->into));
    const void *part[2] = {NULL, NULL};
    int parts = 0;
    if (r->older != NO_SLOT)
        part[parts++] = message_payload(old->shape, old->ops->slot(old, r->older));
    if (r->newer != NO_SLOT)
        part[parts++] = message_payload(old->shape, old->ops->slot(old, r->newer));
    CHECK(parts > 0);
    if (parts == 2)
        return payload_reduce(&d->shape->payload, to, part[0], part[1]);
    memcpy(to, part[0], payload_data_bytes(&d->shape->payload));
    return PCOLL_OK;
}

int domain_recover_member(struct domain *d, struct domain *old, uint64_t round,
                          const struct round_header *last, struct member *m)
{
    CHECK(d != old);
    if (!old) {
        member_enter(m, round, last, d->shape->failed, d->shape->ranks);
        return PCOLL_OK;
    }
    old->ops->snapshot(old, m);
    struct recovered_deposit r =
        member_recover(m, round, last, d->shape->failed, d->shape->ranks);
    return domain_move_deposit(d, old, &r);
}

/* A domain in shared memory. */

/* The first member writes what belongs to all: nobody looks yet. */
void node_begin_at(struct domain *d, struct domain *old, uint64_t round,
                   const struct round_header *last)
{
    struct node *n = node_of(d);
    uint32_t ranks = d->shape->ranks;
    n->member.complete = n->member.frozen = n->member.delivered = round;
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    STEP(atomic_store(&node_own_line(n)->delivered, round));
    int failed = old && old->ops->failure ? old->ops->failure(old) : PCOLL_OK;
    if (failed != PCOLL_OK)
        atomic_store(&n->shared->failure, failed);
    domain_copy_results(d, old, round, last, n->history);
    if (n->who != 0)
        return;
    uint64_t live[bitset_words(ranks)];
    round_live_now(last, ranks, d->shape->failed, live);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        atomic_store(&n->live[i], live[i]);
    if (last)
        node_note_join(n, round - 1, last);
    STEP(atomic_store(&n->shared->control, node_control_word(round, NODE_OPEN, 0)));
}

/* Of the words that others read the descriptor comes last. */
int node_inherit(struct domain *d, struct domain *old, uint64_t round,
                 const struct round_header *last)
{
    struct node *n = node_of(d);
    struct member m = n->member;
    struct node_line *line = node_own_line(n);
    int rc = domain_recover_member(d, old, round, last, &m);
    m.joined_in = NO_ROUND; /* known here when it is read */
    n->member = m;
    n->owes = m.contribution.pending != NO_SLOT && m.taken_in == NO_ROUND;
    STEP(atomic_store(&line->delivered, m.delivered));
    node_set_flag(n, NODE_CALLING, m.started);
    node_set_flag(n, NODE_RETIRED, m.retired);
    node_note_arrival_time(n);
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    return rc;
}
