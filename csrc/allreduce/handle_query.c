/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a handle: what it is, what it has done, whom it waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "allreduce/goal.h"
#include "allreduce/handle.h"
#include "allreduce/stall_report.h"
#include "runtime/recovery.h"

int pcoll_handle_stats(pcoll_handle *h, pcoll_stats *stats)
{
    int rc = fail_if_null(stats) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m;
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    *stats = m.stats;
    progress_lock(h->base.communicator->progress);
    stats->activations_dropped = h->endpoint->engine.dropped;
    stats->activations_early = h->endpoint->engine.early;
    progress_unlock(h->base.communicator->progress);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_algorithm(pcoll_handle *h, int32_t *algorithm)
{
    int rc = fail_if_null(algorithm) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *algorithm = (int32_t)h->endpoint->data.plan.algorithm;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_failed(pcoll_handle *h, uint64_t *set)
{
    int rc = fail_if_null(set) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    const struct round_shape *shape = &h->endpoint->shape;
    bitset_clear(set, bitset_words(shape->ranks));
    for (size_t i = 0; shape->failed && i < bitset_words(shape->ranks); i++)
        set[i] = shape->failed[i];
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_outages(pcoll_handle *h, uint32_t *count, int64_t *began,
                         int64_t *ended)
{
    int rc = fail_if_null(count, began, ended) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *count = 0;
    *began = *ended = 0;
    if (h->continues)
        *count = outage_times(h->base.communicator->outage, began, ended);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_comm(pcoll_handle *h, void *comm)
{
    int rc =
        fail_if_null_as("handle, comm", h, comm)
            ?: user_object_enter_open(&h->base); /* not inside: recovery needs it */
    if (rc != PCOLL_OK)
        return rc;
    struct outage *outage = h->base.communicator->outage;
    outage_enter(outage);
    const void *given = recovery_comm(h->base.communicator);
    if (given)
        memcpy(comm, given, pcoll_sizeof_comm());
    outage_leave(outage);
    return user_object_leave(&h->base, given ? PCOLL_OK : PCOLL_EEMPTY);
}

int pcoll_handle_domain(pcoll_handle *h, int32_t *domain, uint32_t *domains,
                        uint32_t *members)
{
    int rc = fail_if_null(domain, domains, members) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *members = (uint32_t)h->endpoint->domain->members;
    *domains = h->endpoint->placement.domains;
    *domain =
        *domains < h->endpoint->placement.ranks ? PCOLL_DOMAIN_NODE : PCOLL_DOMAIN_RANK;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_result(pcoll_handle *h, int32_t buffer, const void **address)
{
    int rc = fail_if_null(address) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = handle_member(h);
    struct domain *d = h->endpoint->domain;
    const struct payload *p = &h->endpoint->shape.payload;
    if (buffer < 0 || buffer >= p->parts)
        rc = fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                  buffer);
    else if (m.deliver != PCOLL_DELIVER_ONE || !m.delivered)
        rc = fail(PCOLL_ESTATE, m.delivered ? "results stay where they are with "
                                              "deliver=\"one\" only"
                                            : "no result has been delivered yet");
    else
        *address = (const char *)message_payload(d->shape,
                                                 d->ops->result(d, m.delivered - 1)) +
                   p->part[buffer].offset;
    return handle_leave(h, rc);
}

int pcoll_handle_schedule(pcoll_handle *h, const char *format, char **text)
{
    int rc = fail_if_null(format, text) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!strcmp(format, "text"))
        *text = sched_text(h->endpoint->sched);
    else if (!strcmp(format, "dot"))
        *text = sched_dot(h->endpoint->sched);
    else
        return handle_leave(
            h, fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format));
    return handle_leave(h,
                        *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text"));
}

int pcoll_handle_goal(pcoll_handle *h, double ns_per_byte, char **text)
{
    int rc = fail_if_null(text) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return handle_leave(h,
                            fail(PCOLL_EINVAL, "ns_per_byte: expected 0 to %g, got %g",
                                 PCOLL_LONGEST_TIME, ns_per_byte));
    *text = endpoint_goal(h->endpoint, ns_per_byte);
    return handle_leave(h,
                        *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text"));
}

void pcoll_text_free(char *text)
{
    free(text);
}

int pcoll_handle_missing(pcoll_handle *h, int64_t patience_us, char *text,
                         uint64_t capacity)
{
    int rc = fail_if_null_as("handle, text", h, text) ?: user_object_enter(&h->base);
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    staging_hold(h->endpoint->staging);
    if (h->gate.stopped) {
        snprintf(text, capacity, "ranks have died, and the others are about to go on");
        return handle_leave(h, PCOLL_OK);
    }
    return handle_leave(h, stall_report_run(h->endpoint, patience_us, text, capacity));
}
