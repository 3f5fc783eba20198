/* SPDX-License-Identifier: Apache-2.0 */
/* What both kinds of domain do alike; see recovery.h. */
#include "domain/recovery.h"

#include "base/check.h"

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
