/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another op for a handle, between two rounds: for callers whose ops and datatypes come
 * and go with each call.
 *
 * Why that needs no lock: whoever drives, reduces for a round only between this rank's
 * arrival at it and its end here, if the round waits for every rank. Both are marked
 * under the domain's mutex, by which the driver of the last round has let go of the
 * reduction before we see that it is over, and the driver of the next one sees ours.
 */
#include "base/error.h"
#include "transport/mpi/reduction.h"
#include "allreduce/handle.h"

static int check_buffer(const struct payload *p, int32_t buffer)
{
    if (buffer < 0 || buffer >= p->parts)
        return fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                    buffer);
    if (!p->part[buffer].user)
        return fail(PCOLL_ESTATE,
                    "buffer %d: the handle was not made with an MPI op or "
                    "datatype for it",
                    buffer);
    return PCOLL_OK;
}

/* Is no round under way here, and can none begin? */
static int check_between(pcoll_handle *h)
{
    const pcoll_policy *policy = &h->endpoint->policy;
    struct member m;
    if (policy->kind != PCOLL_FULL || policy->deadline > 0)
        return fail(PCOLL_ESTATE,
                    "quorum: expected a handle whose rounds wait for all ranks, or a "
                    "late contribution could be reduced by another op");
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    if (m.started || m.left || m.frozen > m.complete ||
        m.contribution.pending != NO_SLOT)
        return fail(PCOLL_ESTATE, "the op can be changed between two rounds only: wait "
                                  "for the one that is under way");
    return PCOLL_OK;
}

int pcoll_handle_set_reduction(pcoll_handle *h, int32_t buffer, const void *mpi_type,
                               const void *mpi_op)
{
    int rc = fail_if_null(mpi_type, mpi_op) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct payload *p = &h->endpoint->shape.payload;
    rc = check_buffer(p, buffer);
    if (rc == PCOLL_OK)
        rc = check_between(h);
    if (rc == PCOLL_OK)
        rc = mpi_reduction_set(p->part[buffer].user, mpi_type, mpi_op, buffer);
    return handle_leave(h, rc);
}
