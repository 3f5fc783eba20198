/* SPDX-License-Identifier: Apache-2.0 */
/* A domain in shared memory goes on where another one has stopped; see recovery.h. */
#include "domain/node.h"

#include "domain/recovery.h"

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
