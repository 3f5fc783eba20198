/* SPDX-License-Identifier: Apache-2.0 */
/* A handle as it is: the state of this rank, and whether it has failed. */
#include "base/error.h"
#include "allreduce/handle.h"

struct member handle_member(pcoll_handle *h)
{
    struct member m;
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    return m;
}

int handle_check(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    int rc = communicator_check(h->base.communicator);
    if (rc == PCOLL_OK && h->base.orphan)
        rc = outage_error(h->base.communicator->outage);
    if (rc == PCOLL_OK && d->ops->failure && (rc = d->ops->failure(d)) != PCOLL_OK)
        return fail(rc, "a reduction has failed on one of the ranks of this node");
    return rc == PCOLL_OK ? staging_failure(h->endpoint->staging) : rc;
}

bool handle_has_failed(const pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    return atomic_load(&h->base.communicator->failure) || h->base.orphan ||
           (d->ops->failure && d->ops->failure(d) != PCOLL_OK) ||
           staging_failure(h->endpoint->staging) != PCOLL_OK;
}
