/* SPDX-License-Identifier: Apache-2.0 */
/* The fabric's side of a domain: the leader's driver. The protocol is in node.h. */
#include "domain/node.h"

#include "base/check.h"

bool node_attention(struct domain *d)
{
    struct node *n = node_of(d);
    return STEP(atomic_load(&n->shared->attention)) &&
           STEP(atomic_exchange(&n->shared->attention, 0));
}

void node_fabric_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    struct node *n = node_of(d);
    struct node_view *v = &n->view[NODE_DRIVER];
    size_t words = bitset_words(d->shape->ranks);
    node_arrivals(n, v, node_control_round(node_control(n)));
    for (size_t i = 0; i < words; i++) {
        arrived[i] |= v->arrived[i];
        deposited[i] |= v->deposited[i];
    }
}

bool node_fabric_admits(struct domain *d)
{
    struct node *n = node_of(d);
    return node_admits(n, node_control_round(node_control(n)), NODE_DRIVER);
}

struct round_header *node_fabric_freeze(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    bool closed = node_close(n, round, ROUND_NOBODY);
    CHECK(closed);
    if (atomic_load_explicit(&n->shared->parts, memory_order_relaxed) != 1)
        return n->gathered;
    struct round_header *alone = node_slot(n, n->list[0].member, (int)n->list[0].slot);
    memcpy(alone, n->gathered, d->shape->header_bytes);
    return alone;
}

/* Is all that there is to add up in these bytes finished? */
static bool is_gathered(const struct node *n, uint64_t round, size_t begin, size_t end)
{
    const struct payload *p = &n->base.shape->payload;
    if (node_control_phase(node_control(n)) == NODE_FABRIC)
        return true;
    if (begin == 0 &&
        end == p->bytes) /* then whoever is last has one more step to do */
        return false;
    for (uint32_t i = 0; i < n->chunks; i++)
        if (payload_cut(p, i, n->chunks) < end &&
            payload_cut(p, i + 1, n->chunks) > begin &&
            STEP(atomic_load(&n->finished[i])) != round + 1)
            return false;
    return true;
}

bool node_fabric_gather(struct domain *d, uint64_t round, size_t begin, size_t end)
{
    struct node *n = node_of(d);
    CHECK(node_control_round(node_control(n)) == round);
    while (!is_gathered(n, round, begin, end)) {
        if (node_reduce_next(n, round))
            continue;
        STEP(atomic_store(&n->shared->awaited, 1));
        return is_gathered(n, round, begin, end);
    }
    return true;
}

struct round_header *node_fabric_result(struct domain *d, uint64_t round)
{
    return node_result(node_of(d), round);
}

void node_fabric_publish(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    const struct round_header *h = node_result(n, round);
    CHECK(node_control_phase(node_control(n)) == NODE_FABRIC && h->round == round);
    if (round_is_null(h, d->shape->ranks))
        payload_identity_block(&d->shape->payload, message_payload(d->shape, h));
    node_note_join(n, round, h);
    node_complete(n, round);
}
