/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a handle: freed by its user, or by MPI_Finalize (user_object.h). */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "allreduce/handle.h"

static int close_endpoint(struct user_object *o)
{
    CHECK(((pcoll_handle *)o)->endpoint);
    return endpoint_close(((pcoll_handle *)o)->endpoint);
}

static void dispose(struct user_object *o, bool healthy)
{
    pcoll_handle *h = (pcoll_handle *)o;
    if (h->gate.filling)
        handle_bury(h, h->gate.filling);
    if (h->base.orphan)
        handle_bury(h, h->endpoint);
    else if (healthy)
        endpoint_destroy(&h->endpoint);
    h->gate.filling = NULL;
    h->endpoint = NULL;
}

const struct user_object_kind handle_kind = {
    .name = "the handle",
    .plural = "handles",
    .close = close_endpoint,
    .dispose = dispose,
    .recoverable = &handle_recoverable,
};

int pcoll_handle_free_begin(pcoll_handle *h)
{
    return h ? user_object_close(&h->base) : PCOLL_OK;
}

int pcoll_handle_free(pcoll_handle **at, int64_t timeout_us)
{
    pcoll_handle *h = at ? *at : NULL;
    bool over = true;
    int rc = h ? user_object_end(&h->base, timeout_us, &over) : PCOLL_OK;
    if (over && h) {
        handle_end_recoverable(h);
        free(h);
        *at = NULL;
    }
    return rc;
}
