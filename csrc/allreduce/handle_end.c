/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a handle: freed by its user, or by MPI_Finalize. */
#include <stdlib.h>

#include "../base/error.h"
#include "handle.h"

static int close_vertex(pcoll_handle *h)
{
    progress_lock(h->context->progress);
    int rc = vertex_close(h->vertex);
    if (rc != PCOLL_OK)
        context_fail(h->context, rc);
    progress_unlock(h->context->progress);
    return rc;
}

static bool is_closed(void *arg)
{
    pcoll_handle *h = arg;
    return atomic_load(&h->vertex->closing) == CLOSED ||
           atomic_load(&h->context->failure);
}

/* After a failure of the transport its requests may still point into the buffers: they
 * are better lost than overwritten. */
static void dispose(pcoll_handle *h)
{
    bool healthy = atomic_load(&h->context->failure) == PCOLL_OK;
    progress_lock(h->context->progress);
    context_unregister(h->context, h->vertex->base.slot);
    progress_unlock(h->context->progress);
    if (healthy)
        vertex_destroy(&h->vertex);
    h->vertex = NULL;
}

int pcoll_handle_free_begin(pcoll_handle *h)
{
    if (!h || !h->vertex)
        return PCOLL_OK;
    int rc = handle_enter_any(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, close_vertex(h));
}

int pcoll_handle_free(pcoll_handle **at, int64_t timeout_us)
{
    pcoll_handle *h = *at;
    int rc = PCOLL_OK;
    if (!h)
        return PCOLL_OK;
    if (h->vertex) {
        if ((rc = handle_enter_any(h)) != PCOLL_OK)
            return rc;
        close_vertex(h); /* a failure shows below, as the context's */
        if (progress_wait(h->context->progress, is_closed, h, timeout_us) ==
            PCOLL_EAGAIN)
            return handle_leave(h, PCOLL_EAGAIN);
        rc = context_check(h->context);
        runtime_remove(&h->entry);
        dispose(h);
        runtime_release(h->context);
    }
    free(h);
    *at = NULL;
    return rc;
}

/* At MPI_Finalize. The application still has the handle and may free it later: it
 * stays, empty. */

void handle_begin_end(struct runtime_entry *entry)
{
    close_vertex((pcoll_handle *)entry);
}

void handle_end(struct runtime_entry *entry)
{
    pcoll_handle *h = (pcoll_handle *)entry;
    while (progress_wait(h->context->progress, is_closed, h, 1000000) == PCOLL_EAGAIN)
        ;
    dispose(h);
}
