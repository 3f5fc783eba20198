/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a handle: freed by its user, or by MPI_Finalize (user_object.h). */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "allreduce/handle.h"
#include "allreduce/stall_report.h"

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

static void handle_explain(struct user_object *o, char *text, size_t capacity)
{
    stall_report_unfreed(((pcoll_handle *)o)->endpoint, 1000000, text, capacity);
}

const struct user_object_kind handle_kind = {
    .name = "the handle",
    .plural = "handles",
    .close = close_endpoint,
    .dispose = dispose,
    .explain = handle_explain,
    .recoverable = &handle_recoverable,
};

static void free_shell(struct user_object *o)
{
    handle_end_recoverable((pcoll_handle *)o);
    free(o);
}

void handle_retire(pcoll_handle *h)
{
    user_object_retire(&h->base, free_shell);
}

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
        free_shell(&h->base);
        *at = NULL;
    }
    return rc;
}
