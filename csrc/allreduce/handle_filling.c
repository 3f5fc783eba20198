/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that others have followed, until nobody writes to them any more; see handle.h. */
#include "base/check.h"
#include "allreduce/handle.h"
#include "runtime/recovery.h"

static void end_endpoint(void *endpoint)
{
    struct endpoint *v = endpoint;
    endpoint_destroy(&v);
}

void handle_bury(pcoll_handle *h, struct endpoint *v)
{
    CHECK(h->continues && v);
    recovery_bury(h->base.communicator, end_endpoint, v, false);
}

void handle_filled(pcoll_handle *h)
{
    struct endpoint *from = h->gate.filling;
    CHECK(from && from != h->endpoint);
    memcpy(h->endpoint->domain->ops->send_slot(h->endpoint->domain),
           from->domain->ops->send_slot(from->domain),
           payload_data_bytes(&from->shape.payload));
    h->gate.filling = NULL;
    handle_bury(h, from);
}
