/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a grouped allreduce: freed by its user, or by MPI_Finalize (user_object.h).
 * It leaves, and when nothing of it is under way here, it asks for its turn to close
 * (closing.c).
 */
#include <stdlib.h>

#include "base/check.h"
#include "group/object.h"

static int group_create_begin_close(struct user_object *o)
{
    struct group *g = &((pcoll_group *)o)->group;
    CHECK(g->window && !g->shared.closing);
    g->shared.closing = true;
    communicator_notify(o->communicator, &g->base);
    return PCOLL_OK;
}

static void group_create_dispose(struct user_object *o, bool healthy)
{
    struct group *g = &((pcoll_group *)o)->group;
    struct window *left = g->spent ? g->window : NULL;
    if (healthy)
        group_object_dispose(g);
    if (left && left->local)
        left->ops->destroy(left);
}

const struct user_object_kind group_create_kind = {
    .name = "the grouped allreduce",
    .plural = "grouped allreduces",
    .close = group_create_begin_close,
    .dispose = group_create_dispose,
    .recoverable = &group_create_recoverable,
};

int pcoll_group_free(pcoll_group **at, int64_t timeout_us)
{
    pcoll_group *p = at ? *at : NULL;
    bool over = true;
    int rc = p ? user_object_end(&p->base, timeout_us, &over) : PCOLL_OK;
    if (over && p) {
        free(p);
        *at = NULL;
    }
    return rc;
}
