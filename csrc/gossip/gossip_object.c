/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating a gossip buffer, continuing without dead ranks, and its end.
 *
 * Recovery (runtime/recovery.h). The window is memory that the ranks share
 * (runtime/shared_window.c), so it stays, and the buffer is its own successor. Calls
 * are counted (outage_enter), so no call runs during a recovery; once all ranks have
 * exchanged their states, no rank is in a call, and each rank settles (gossip.h).
 *
 * End (user_object.h): freed by its user, or by MPI_Finalize. Freeing a window is
 * collective and blocks, so all ranks first agree that it is this buffer's turn
 * (runtime/communicator.h). Then the driver frees the window, whatever its rank waits for:
 * the ranks need not free their buffers in the same order.
 */
#include "gossip/gossip.h"

#include <stdlib.h>

#include "base/check.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"

static const char *const rotate_names[] = {"no", "yes", NULL};

/* Collective. If some ranks could not make their part of a window of MPI, the others do
 * not free theirs: freeing it needs all ranks. */
static int gossip_join(struct communicator *communicator, const void *comm, int local,
                       const pcoll_gossip_options *o, pcoll_gossip *gossip)
{
    const struct agree_field fields[] = {
        {"like (number of elements)", NULL, o->count},
        {"like (dtype)", dtype_names, (uint64_t)o->dtype},
        {"codec (bits, 0: none)", NULL, (uint64_t)o->bits},
        {"codec (rotate)", rotate_names, o->rotate != 0},
        {"like (shape, its hash)", NULL, o->shape},
        {"queue_slots", NULL, o->queue_slots},
        {"max_uncollected", NULL, o->max_uncollected},
        {"topology (its hash)", NULL, o->topology},
    };
    agree_settle(communicator);
    int rc = agree_same(communicator, local, fields, sizeof fields / sizeof *fields,
                        NULL, 0);
    if (rc != PCOLL_OK)
        return rc;
    struct gossip_memory *memory = &gossip->memory;
    communicator_free_windows(communicator);
    return shared_window_open(communicator, comm, memory->layout.bytes, &memory->window)
               ?: agree_enter(communicator, &gossip->object,
                              gossip_memory_clear(memory));
}

static int gossip_prepare(struct communicator *communicator,
                          const pcoll_gossip_options *o, pcoll_gossip *gossip)
{
    const struct transport *t = communicator->transport;
    bool agent = t->off_node || communicator->outage;
    gossip->object = object_init(&gossip_object);
    gossip->max_uncollected = o->max_uncollected;
    gossip->poll_at = pcoll_tells_of_failures() && !communicator->outage ? 1 : 0;
    int rc =
        user_object_check_failure(o->on_failure, o->progress)
            ?: gossip_memory_prepare(&gossip->memory, o, t->rank, t->size, t->off_node);
    return rc == PCOLL_OK && agent
               ? process_start_agent(communicator, o->progress, true)
               : rc;
}

static int gossip_create(struct communicator *communicator, const void *comm,
                         const pcoll_gossip_options *options, pcoll_gossip **out)
{
    pcoll_gossip *gossip = calloc(1, sizeof *gossip);
    int local = gossip ? gossip_prepare(communicator, options, gossip)
                       : fail(PCOLL_ENOMEM, "no memory for a gossip buffer");
    int rc = gossip_join(communicator, comm, local, options, gossip);
    if (rc == PCOLL_OK) {
        user_object_init(&gossip->base, &gossip_kind);
        user_object_made(&gossip->base, communicator, &gossip->object,
                         options->progress);
        *out = gossip;
    } else if (gossip) {
        struct window *window = gossip->memory.window;
        if (window && window->local)
            window->ops->destroy(window);
        gossip_memory_destroy(&gossip->memory);
        free(gossip);
    }
    return rc;
}

int pcoll_gossip_create(const void *comm, const pcoll_gossip_options *options,
                        pcoll_gossip **gossip)
{
    struct communicator *communicator;
    int on_failure = options ? options->on_failure : PCOLL_FAILURE_RAISE;
    int rc = user_object_admit(&gossip_kind, comm, (enum pcoll_failure)on_failure,
                               &communicator);
    if (rc != PCOLL_OK)
        return rc;
    options = options_or_zeros(&(pcoll_gossip_options){0}, options, gossip);
    outage_enter(communicator->outage);
    rc = gossip_create(communicator, comm, options, gossip);
    outage_leave(communicator->outage);
    return rc;
}

/* Recovery. */

static uint64_t gossip_complete(struct user_object *o)
{
    (void)o;
    return 0; /* a gossip buffer has no rounds */
}

static int gossip_rebuild(struct user_object *o, struct communicator *communicator,
                          const struct recovery_plan *plan)
{
    pcoll_gossip *gossip = (pcoll_gossip *)o;
    const struct transport *t = communicator->transport;
    CHECK(plan->slot == gossip->object.slot);
    if (gossip->left) /* closed on this rank */
        return PCOLL_OK;
    int rc = accumulator_settle(&gossip->memory) ?: queue_settle(&gossip->memory);
    bool lowest = transport_lowest(t) == t->rank;
    for (uint32_t r = 0; lowest && r < t->size && rc == PCOLL_OK; r++)
        if (!transport_lives(t, r))
            rc = accumulator_adopt(&gossip->memory, r);
    return rc;
}

static int gossip_inherit(struct user_object *o, struct object **object)
{
    pcoll_gossip *gossip = (pcoll_gossip *)o;
    gossip->object.alarm = INT64_MAX;
    atomic_store(&gossip->object.closed, false); /* all ranks close it again */
    *object = &gossip->object;
    return PCOLL_OK;
}

static void gossip_resume(struct user_object *o, struct communicator *communicator)
{
    pcoll_gossip *gossip = (pcoll_gossip *)o;
    if (o->incomplete || !atomic_load(&o->closing))
        return;
    progress_lock(communicator->progress);
    int rc = communicator_close(communicator, &gossip->object);
    if (rc != PCOLL_OK)
        communicator_fail(communicator, rc);
    progress_unlock(communicator->progress);
}

const struct recoverable gossip_recoverable = {
    .complete = gossip_complete,
    .rebuild = gossip_rebuild,
    .inherit = gossip_inherit,
    .go = gossip_resume,
};

/* The end. */

static int gossip_run(struct object *p)
{
    (void)p;
    return PCOLL_OK;
}

static int gossip_begin_close(struct object *p)
{
    pcoll_gossip *gossip = (pcoll_gossip *)((char *)p - offsetof(pcoll_gossip, object));
    if (!gossip->left) /* otherwise that was before a rank died */
        communicator_spend_window(gossip->base.communicator, gossip->memory.window);
    gossip->left = true;
    return communicator_closed(gossip->base.communicator, p);
}

const struct object_ops gossip_object = {.run = gossip_run,
                                         .begin_close = gossip_begin_close};

static int gossip_close(struct user_object *o)
{
    return communicator_close(o->communicator, o->object);
}

/* After a failure the window still exists. A window of MPI is then not freed: other
 * ranks may never free theirs. No access uses this memory now (transport/window.h). */
static void gossip_dispose(struct user_object *o, bool healthy)
{
    pcoll_gossip *gossip = (pcoll_gossip *)o;
    struct window *window = gossip->memory.window;
    (void)healthy;
    if (!gossip->left && window->local)
        window->ops->destroy(window);
    gossip_memory_destroy(&gossip->memory);
}

const struct user_object_kind gossip_kind = {
    .name = "the gossip buffer",
    .plural = "gossip buffers",
    .close = gossip_close,
    .dispose = gossip_dispose,
    .recoverable = &gossip_recoverable,
};

int pcoll_gossip_free(pcoll_gossip **at, int64_t timeout_us)
{
    pcoll_gossip *gossip = at ? *at : NULL;
    bool over = true;
    int rc = gossip ? user_object_end(&gossip->base, timeout_us, &over) : PCOLL_OK;
    if (over && gossip) {
        free(gossip);
        *at = NULL;
    }
    return rc;
}
