/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of a handle hands in: buffers of the host at once, those of a device when they
 * have been copied (staging.h). And the copy of a result to a device, which is the same
 * the other way round.
 */
#include "base/error.h"
#include "allreduce/handle.h"

static int check_device(const pcoll_handle *h)
{
    return h->endpoint->staging
               ? PCOLL_OK
               : fail(PCOLL_ESTATE, "the handle was made for buffers of the host");
}

static void see_to_deposit(pcoll_handle *h, enum deposit_outcome outcome)
{
    if (h->gate.stopped) /* it is looked at when all goes on */
        return;
    endpoint_deposited(h->endpoint, outcome);
    if (outcome != DEPOSIT_ARRIVED && h->endpoint->drives)
        progress_without_agent(h->base.communicator->progress);
}

/* What the deposit would say, which comes later. */
static int may_begin(pcoll_handle *h)
{
    struct member m = handle_member(h);
    m.started = m.started || h->started;
    return member_begin(&m);
}

int handle_check_buffers(const pcoll_handle *h, const char *name,
                         const void *const *buffers)
{
    const struct payload *p = &h->endpoint->shape.payload;
    for (int i = 0; buffers && i < p->parts; i++)
        if (!buffers[i] && p->part[i].count)
            return fail(PCOLL_EINVAL, "%s[%d]: expected an address, got NULL", name, i);
    return PCOLL_OK;
}

int pcoll_handle_start(pcoll_handle *h, const void *const *send)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = handle_await_turn(h)) != PCOLL_OK)
        return handle_leave(h, rc);
    struct domain *d = h->endpoint->domain;
    enum deposit_outcome outcome;
    rc = handle_check(h);
    if (rc == PCOLL_OK && !staging_arrived(h->endpoint->staging))
        rc = may_begin(h); /* which it may not: a deposit is under way */
    if (rc == PCOLL_OK && !send && !d->ops->send_slot(d))
        rc = fail_null("send", 0);
    if (rc == PCOLL_OK)
        rc = handle_check_buffers(h, "send", send);
    if (rc == PCOLL_OK && h->gate.filling)
        handle_filled(h);
    if (rc == PCOLL_OK)
        rc = d->ops->deposit(d, send, &outcome);
    if (rc != PCOLL_OK)
        return handle_leave(h, rc);
    h->started = true;
    see_to_deposit(h, outcome);
    return handle_leave(h, PCOLL_OK);
}

/* Buffers of a device: the call counts from here on, its deposit is made when they have
 * been copied. A replay has to know when that is. */
int pcoll_handle_start_device(pcoll_handle *h, const pcoll_place *send, uint64_t stream)
{
    int rc = fail_if_null(send) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = check_device(h)) == PCOLL_OK)
        rc = handle_check(h);
    if (rc == PCOLL_OK)
        rc = may_begin(h);
    if (rc == PCOLL_OK)
        rc = staging_begin(h->endpoint->staging, h->endpoint->domain, send, stream);
    if (rc == PCOLL_OK) {
        h->started = true;
        communicator_notify(h->base.communicator, &h->endpoint->base);
    }
    return handle_leave(h, rc);
}

int pcoll_handle_fetch_device(pcoll_handle *h, const pcoll_place *recv, uint64_t stream)
{
    int rc = fail_if_null(recv) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = check_device(h)) == PCOLL_OK)
        rc = staging_fetch(h->endpoint->staging, h->endpoint->domain, recv, stream);
    return handle_leave(h, rc);
}

bool handle_try_arrival(pcoll_handle *h)
{
    struct endpoint *v = h->endpoint;
    bool made;
    enum deposit_outcome outcome;
    bool arrived = staging_try(v->staging, v->domain, &made, &outcome);
    if (made)
        see_to_deposit(h, outcome);
    return arrived;
}

static bool has_arrived(void *arg)
{
    pcoll_handle *h = arg;
    return handle_try_arrival(h) || handle_has_failed(h);
}

int pcoll_handle_arrive(pcoll_handle *h, int64_t timeout_us)
{
    int rc = fail_if_null_as("handle", h)
                 ?: user_object_enter(&h->base); /* also while it is being freed */
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    if (!staging_arrived(h->endpoint->staging))
        rc = progress_wait(h->base.communicator->progress, has_arrived, h, timeout_us);
    struct staging *s = h->endpoint->staging;
    if (rc == PCOLL_OK)
        rc = staging_failure(s);
    if (rc == PCOLL_OK && staging_arrived(s) && !staging_landed(s))
        rc = PCOLL_EAGAIN;
    return handle_leave(h, rc);
}

int pcoll_handle_send_slot(pcoll_handle *h, int32_t buffer, void **address)
{
    int rc = fail_if_null(address) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct endpoint *v = h->gate.filling ? h->gate.filling : h->endpoint;
    char *slot = v->domain->ops->send_slot(v->domain);
    const struct payload *p = &v->shape.payload;
    if (!slot)
        rc = fail(PCOLL_ESTATE, "the handle was made with send buffers of its user");
    else if (buffer < 0 || buffer >= p->parts)
        rc = fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                  buffer);
    else
        *address = slot + p->part[buffer].offset;
    return handle_leave(h, rc);
}
