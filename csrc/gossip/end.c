/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a gossip buffer: freed by its user, or by MPI_Finalize (user_object.h).
 * Freeing a window is collective and blocks, so all first agree that it is this one's
 * turn (runtime/closing.h); then the driver frees it, whatever its own rank waits for: the
 * ranks need not free their buffers in one order.
 */
#include <stdlib.h>

#include "gossip/object.h"
#include "runtime/closing.h"

static pcoll_gossip *of(struct object *p)
{
    return (pcoll_gossip *)((char *)p - offsetof(pcoll_gossip, object));
}

static int nothing(struct object *p)
{
    (void)p;
    return PCOLL_OK;
}

static int no_message(struct object *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a gossip buffer", op);
}

static int no_control(struct object *p, uint32_t source, const struct control *message)
{
    (void)p, (void)message;
    return fail(PCOLL_EPROTOCOL, "a message of rank %u for a gossip buffer", source);
}

static int begin_turn(struct object *p)
{
    pcoll_gossip *g = of(p);
    if (g->spent) /* else it had closed before somebody died */
        window_spend(g->base.communicator, g->memory->window, &g->spent);
    return communicator_closed(g->base.communicator, p);
}

const struct object_ops gossip_object = {.run = nothing,
                                         .done = no_message,
                                         .control = no_control,
                                         .begin_close = begin_turn};

static int begin_close(struct user_object *o)
{
    return communicator_close(o->communicator, o->object);
}

/* After a failure the window is still there, and stays if it is MPI's: others may not have
 * come to free theirs. */
static void dispose(struct user_object *o, bool healthy)
{
    pcoll_gossip *g = (pcoll_gossip *)o;
    struct window *w = g->memory->window;
    (void)healthy;
    if (g->spent && w->local)
        w->ops->destroy(w);
    gossip_memory_free(&g->memory);
    free(g->spent);
    g->spent = NULL;
}

const struct user_object_kind gossip_kind = {
    .name = "the gossip buffer",
    .plural = "gossip buffers",
    .close = begin_close,
    .dispose = dispose,
    .recoverable = &gossip_recoverable,
};

int pcoll_gossip_free(pcoll_gossip **at, int64_t timeout_us)
{
    pcoll_gossip *g = *at;
    bool over = true;
    int rc = g ? user_object_end(&g->base, timeout_us, &over) : PCOLL_OK;
    if (over) {
        free(g);
        *at = NULL;
    }
    return rc;
}
