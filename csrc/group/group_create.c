/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating and freeing a grouped allreduce, and its part in a recovery (runtime/recovery.h): it is
 * its own successor and keeps its window, which is memory that the ranks share. group_agent.h says
 * what happens to its rounds. The application may start and wait during a recovery: it touches only
 * its input and the counts, and everything else that it reads changes under the progress lock.
 * If other ranks continue before this rank is driven, it already answers their messages.
 */
#include "group/group_agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"

static struct group *group_create_group_of(struct user_object *o)
{
    return &((pcoll_group *)o)->group;
}

static uint64_t group_create_complete(struct user_object *o)
{
    return group_create_group_of(o)->round;
}

/* The plan has the highest round of the live ranks. That round may have begun, and with dynamic
 * keys a dead rank may have declared itself for the one after it. */
static int group_create_rebuild(struct user_object *o, struct communicator *c,
                                const struct recovery_plan *plan)
{
    struct group *g = group_create_group_of(o);
    CHECK(plan->slot == g->base.slot && plan->complete >= g->round);
    free(g->restart.words);
    g->restart.round = plan->complete + (g->dynamic ? 2 : 1);
    g->restart.communicator = c;
    return agree_gather(c, group_agent_state_word(g), &g->restart.words);
}

static int group_create_inherit(struct user_object *o, struct object **object)
{
    struct group *g = group_create_group_of(o);
    struct progress *p = o->communicator->progress;
    progress_lock(p);
    int rc = group_agent_restart(g, g->restart.words, g->restart.round);
    g->communicator = g->restart.communicator;
    g->driven = false;
    atomic_store(&g->base.closed, false); /* All ranks close it again. */
    *object = &g->base;
    progress_unlock(p);
    return rc;
}

static void group_create_resume(struct user_object *o, struct communicator *c)
{
    struct group *g = group_create_group_of(o);
    progress_lock(c->progress);
    g->communicator = c;
    g->driven = true;
    progress_unlock(c->progress);
    if (!o->incomplete)
        communicator_notify(c, &g->base);
}

static const struct recoverable group_create_recoverable = {
    .complete = group_create_complete,
    .rebuild = group_create_rebuild,
    .inherit = group_create_inherit,
    .go = group_create_resume,
};

static int group_create_begin_close(struct user_object *o)
{
    struct group *g = group_create_group_of(o);
    CHECK(g->window && !g->shared.closing);
    g->shared.closing = true;
    communicator_notify(o->communicator, &g->base);
    return PCOLL_OK;
}

static void group_create_dispose(struct user_object *o, bool healthy)
{
    struct group *g = group_create_group_of(o);
    if (healthy)
        group_object_dispose(g);
    if (!g->left && g->window && g->window->local)
        g->window->ops->destroy(g->window);
}

static const struct user_object_kind group_create_kind = {
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

static const char *const keys_names[] = {"auto", "static", "dynamic", NULL};
static const char *const no_yes[] = {"no", "yes", NULL};

static int group_create_compare(struct communicator *c, int local,
                                const pcoll_group_options *o)
{
    char names[GRID_MAX_AXES][32];
    struct agree_field fields[9 + GRID_MAX_AXES] = {
        {"sendbuf (number of elements)", NULL, o->count},
        {"sendbuf (dtype)", dtype_names, (uint64_t)o->dtype},
        {"keys", keys_names, (uint64_t)o->keys},
        {"grid (axes)", NULL, o->axes},
        {"bandwidth (given)", no_yes, o->bandwidth > 0},
        {"bandwidth (measured)", no_yes, o->measure != 0},
        {"measure_every", NULL, o->every},
        {"timeout (microseconds)", NULL, (uint64_t)o->timeout_us},
        {"window (microseconds)", NULL, (uint64_t)o->window_us},
    };
    for (uint32_t i = 0; i < GRID_MAX_AXES; i++) {
        snprintf(names[i], sizeof names[i], "grid (side of axis %u)", i);
        fields[9 + i] =
            (struct agree_field){names[i], NULL, i < o->axes ? o->side[i] : 0};
    }
    return agree_same(c, local, fields, 9 + GRID_MAX_AXES, NULL, 0);
}

static int group_create_compare_cells(const void *a, const void *b)
{
    const struct match_entry *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->peer < y->peer ? -1 : 1;
}

/* Gather the cells of all ranks, and check that no two live ranks are in the same one. The entries of
 * the inquiry, not in use yet, hold pairs of rank and cell: nothing fails on one rank alone. */
static int group_create_take_cells(struct communicator *c, struct group *g)
{
    const struct transport *t = c->transport;
    struct match_entry *sorted = g->inquiry.entries;
    uint64_t cells = grid_cells(&g->grid);
    g->cell = g->options.cell < 0 ? t->rank : (uint64_t)g->options.cell;
    int rc = agree_gather(c, g->cell, &g->cells);
    for (uint32_t r = 0; r < t->size && rc == PCOLL_OK; r++) {
        if (!transport_lives(t, r))
            g->cells[r] = cells; /* No rank is in this cell. */
        else if (g->cells[r] >= cells)
            rc = fail(PCOLL_EINVAL,
                      "cell: expected 0 to %" PRIu64 ", got %" PRIu64 " on rank %u",
                      cells - 1, g->cells[r], r);
        sorted[r] = (struct match_entry){r, (int64_t)g->cells[r]};
    }
    if (rc == PCOLL_OK)
        qsort(sorted, t->size, sizeof *sorted, group_create_compare_cells);
    for (uint32_t i = 1; i < t->size && rc == PCOLL_OK; i++)
        if (sorted[i - 1].time == sorted[i].time && g->cells[sorted[i].peer] < cells)
            rc = fail(PCOLL_EINVAL,
                      "cell: expected a cell for each rank, got %" PRId64
                      " on ranks %u and %u",
                      sorted[i].time, sorted[i - 1].peer, sorted[i].peer);
    return rc;
}

/* Collective. Let the agent begin when the group is complete everywhere. If ranks fail, the window of
 * the others is lost. */
static int group_create_on(struct communicator *c, const void *comm,
                           const pcoll_group_options *options, pcoll_group **group)
{
    pcoll_group *p = calloc(1, sizeof *p);
    struct group none = {.communicator = c}, *g = p ? &p->group : &none;
    int local = PCOLL_OK;
    if (p) {
        g->communicator = c;
        g->options = *options;
        local = user_object_check_failure(options->on_failure, options->progress)
                    ?: group_object_prepare(g, c->transport->rank, c->transport->size)
                    ?: process_start_agent(c, options->progress, true);
    } else
        local = fail(PCOLL_ENOMEM, "no memory for a grouped allreduce");
    agree_settle(c);
    int rc = group_create_compare(c, local, options) ?: group_create_take_cells(c, g);
    if (rc == PCOLL_OK) {
        communicator_free_windows(c);
        rc = shared_window_open(c, comm, g->place.bytes, &g->window)
                 ?: agree_enter(c, &g->base, group_object_attach(g));
    }
    if (rc == PCOLL_OK) {
        user_object_init(&p->base, &group_create_kind);
        user_object_made(&p->base, c, &g->base, g->options.progress);
        progress_lock(c->progress);
        for (uint32_t r = 0; r < c->transport->size; r++)
            if (!transport_lives(c->transport, r)) /* It died before. */
                g->membership.entries[r].status = MEMBER_DEAD;
        g->driven = true;
        progress_unlock(c->progress);
        communicator_notify(c, &g->base);
        *group = p;
    } else if (p) {
        group_create_dispose(&p->base, true);
        free(p);
    }
    return rc;
}

int pcoll_group_create(const void *comm, const pcoll_group_options *options,
                       pcoll_group **group)
{
    struct communicator *c;
    int on_failure = options ? options->on_failure : PCOLL_FAILURE_RAISE;
    int rc =
        user_object_admit(&group_create_kind, comm, (enum pcoll_failure)on_failure, &c);
    if (rc != PCOLL_OK)
        return rc;
    options = options_or_zeros(&(pcoll_group_options){0}, options, group);
    outage_enter(c->outage);
    rc = group_create_on(c, comm, options, group);
    outage_leave(c->outage);
    return rc;
}
