/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a gossip buffer: freed by its user, or by MPI_Finalize. Freeing a window
 * is collective and blocks, so all first agree that it is this one's turn
 * (allreduce/closing.c); then the driver frees it, whatever its own rank waits for: the
 * ranks need not free their buffers in one order.
 */
#include <stdlib.h>

#include "buffer.h"

static pcoll_gossip *of(struct participant *p)
{
    return (pcoll_gossip *)((char *)p - offsetof(pcoll_gossip, base));
}

static int nothing(struct participant *p)
{
    (void)p;
    return PCOLL_OK;
}

static int no_message(struct participant *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a gossip buffer", op);
}

static int no_control(struct participant *p, uint32_t source,
                      const struct control *message)
{
    (void)p, (void)message;
    return fail(PCOLL_EPROTOCOL, "a message of rank %u for a gossip buffer", source);
}

static int begin_close(struct participant *p)
{
    pcoll_gossip *g = of(p);
    window_spend(g->context, g->memory->window, &g->spent);
    atomic_store(&g->closed, true);
    return context_closed(g->context, p);
}

const struct participant_ops gossip_participant = {.run = nothing,
                                                   .done = no_message,
                                                   .control = no_control,
                                                   .begin_close = begin_close};

static void ask_to_close(pcoll_gossip *g)
{
    progress_lock(g->context->progress);
    int rc = g->closing ? PCOLL_OK : context_close(g->context, &g->base);
    g->closing = true;
    if (rc != PCOLL_OK)
        context_fail(g->context, rc);
    progress_unlock(g->context->progress);
}

static bool is_closed(void *arg)
{
    pcoll_gossip *g = arg;
    return atomic_load(&g->closed) || atomic_load(&g->context->failure);
}

/* After a failure the window is still there, and stays: others may not have come to
 * free theirs. */
static void dispose(pcoll_gossip *g)
{
    progress_lock(g->context->progress);
    context_unregister(g->context, g->base.slot);
    progress_unlock(g->context->progress);
    gossip_dispose(&g->memory);
    free(g->spent);
    g->spent = NULL;
}

int pcoll_gossip_free(pcoll_gossip **at, int64_t timeout_us)
{
    pcoll_gossip *g = *at;
    int rc = PCOLL_OK;
    if (!g)
        return PCOLL_OK;
    if (g->memory) {
        if ((rc = gossip_enter(g)) != PCOLL_OK)
            return rc;
        ask_to_close(g);
        if (progress_wait(g->context->progress, is_closed, g, timeout_us) ==
            PCOLL_EAGAIN)
            return gossip_leave(g, PCOLL_EAGAIN);
        rc = context_check(g->context);
        runtime_remove(&g->entry);
        dispose(g);
        runtime_release(g->context);
    }
    free(g);
    *at = NULL;
    return rc;
}

/* The application still has it and may free it later: it stays, empty. */

void gossip_begin_end(struct runtime_entry *entry)
{
    ask_to_close((pcoll_gossip *)entry);
}

void gossip_end(struct runtime_entry *entry)
{
    pcoll_gossip *g = (pcoll_gossip *)entry;
    while (progress_wait(g->context->progress, is_closed, g, 1000000) == PCOLL_EAGAIN)
        ;
    dispose(g);
}
