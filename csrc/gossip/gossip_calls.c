/* SPDX-License-Identifier: Apache-2.0 */
/* Using a gossip buffer. */
#include "gossip/gossip.h"

#include <string.h>

#include "base/clock.h"

#include "gossip/accumulator.h"
#include "gossip/gossip_queue.h"
#include "gossip/register.h"

/* Begin and end a call, as in user_object.h. */

/* Nothing is received here, so nobody may be polling: who uses it looks now and then
 * whether MPI has news of ranks that have died. */
static void look_for_failures(pcoll_gossip *g)
{
    enum { EVERY_NS = 20000000 };
    int64_t now = clock_ns();
    if (now < g->look_at)
        return;
    g->look_at = now + EVERY_NS;
    progress_poll(g->base.communicator->progress);
}

/* A simulated one has no communicator. */
static struct outage *outage_of(const pcoll_gossip *g)
{
    return g->base.communicator ? g->base.communicator->outage : NULL;
}

static bool lives(const pcoll_gossip *g, uint32_t rank)
{
    return !g->base.communicator ||
           transport_lives(g->base.communicator->transport, rank);
}

static int gossip_leave(pcoll_gossip *g, int rc)
{
    outage_leave(outage_of(g));
    return user_object_leave(&g->base, rc);
}

/* Calls are counted: they wait until a recovery is over, and it waits for them. */
static int enter(pcoll_gossip *g)
{
    int rc = user_object_enter(&g->base);
    if (rc == PCOLL_OK)
        outage_enter(outage_of(g));
    return rc;
}

static int enter_open(pcoll_gossip *g)
{
    int rc = user_object_enter_open(&g->base);
    if (rc != PCOLL_OK)
        return rc;
    if (g->look_at)
        look_for_failures(g);
    outage_enter(outage_of(g));
    if (g->base.communicator)
        rc = communicator_check(g->base.communicator);
    if (rc == PCOLL_OK && g->base.orphan)
        rc = outage_error(outage_of(g));
    return rc == PCOLL_OK ? rc : gossip_leave(g, rc);
}

/* It is dead, and the others go on: an error of this call only. */
static int fail_of_dead(uint32_t peer)
{
    return fail_ranks(&(struct failed_ranks){.count = 1, .rank = {(int32_t)peer}});
}

static int enter_about(pcoll_gossip *g, uint32_t peer)
{
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    uint32_t ranks = g->memory->layout.ranks;
    if (peer < ranks)
        return PCOLL_OK;
    return gossip_leave(
        g, fail(PCOLL_EINVAL, "peer: expected 0 to %u, got %u", ranks - 1, peer));
}

static int enter_with(pcoll_gossip *g, uint32_t peer)
{
    int rc = enter_about(g, peer);
    if (rc != PCOLL_OK || lives(g, peer))
        return rc;
    return gossip_leave(g, fail_of_dead(peer));
}

int pcoll_gossip_publish(pcoll_gossip *g, const void *x, uint64_t *version)
{
    int rc = enter_open(g);
    return rc == PCOLL_OK ? gossip_leave(g, register_publish(g->memory, x, version))
                          : rc;
}

int pcoll_gossip_read(pcoll_gossip *g, uint32_t peer, const void *key, void *out,
                      uint64_t *version)
{
    int rc = enter_with(g, peer);
    if (rc != PCOLL_OK)
        return rc;
    rc = register_read(g->memory, peer, key, out, version);
    g->memory->stats.reads += rc == PCOLL_OK && peer != g->memory->window->rank;
    return gossip_leave(g, rc);
}

int pcoll_gossip_set_taken(pcoll_gossip *g, double part)
{
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    if (part >= 0 && part <= 1)
        g->memory->taken = part;
    else
        rc = fail(PCOLL_EINVAL, "part: expected 0 to 1, got %g", part);
    return gossip_leave(g, rc);
}

int pcoll_gossip_average(pcoll_gossip *g, uint32_t peer, void *x, double weight,
                         void *momentum, double ratio, int32_t *averaged)
{
    struct moving own = {.x = x, .momentum = momentum, .ratio = ratio};
    bool done = false;
    int rc = enter_with(g, peer);
    if (rc != PCOLL_OK)
        return rc;
    rc =
        peer == g->memory->window->rank
            ? fail(PCOLL_EINVAL, "peer: expected another rank, got this one (%u)", peer)
            : exchange_average(g->memory, peer, g->max_uncollected, weight, &own,
                               &done);
    *averaged = done;
    return gossip_leave(g, rc);
}

int pcoll_gossip_collect(pcoll_gossip *g, void *x, void *momentum, double ratio,
                         uint64_t *deltas)
{
    struct moving own = {.x = x, .momentum = momentum, .ratio = ratio};
    int rc = enter_open(g);
    return rc == PCOLL_OK ? gossip_leave(g, exchange_collect(g->memory, &own, deltas))
                          : rc;
}

int pcoll_gossip_pending(pcoll_gossip *g, void *out)
{
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    struct gossip_memory *m = g->memory;
    for (size_t first = 0; first < m->layout.count && rc == PCOLL_OK;
         first += m->layout.chunk) {
        rc = accumulator_query(m, m->window->rank, first);
        memcpy((char *)out + first * m->layout.sum, m->change,
               chunk_length(&m->layout, first) * m->layout.sum);
    }
    return gossip_leave(g, rc);
}

int pcoll_gossip_push(pcoll_gossip *g, uint32_t peer, const void *x, const void *key,
                      void *sent, int32_t *pushed)
{
    bool done = false;
    int rc = enter_with(g, peer);
    if (rc != PCOLL_OK)
        return rc;
    rc = gossip_push(g->memory, peer, x, key, sent, &done);
    *pushed = done;
    return gossip_leave(g, rc);
}

int pcoll_gossip_drain(pcoll_gossip *g, const void *key, void *out, uint32_t *source,
                       int32_t *taken)
{
    bool done = false;
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    rc = gossip_take(g->memory, key, out, source, &done);
    *taken = done;
    g->memory->stats.drained += done;
    return gossip_leave(g, rc);
}

int pcoll_gossip_peek(pcoll_gossip *g, uint32_t peer, const void *key, void *out,
                      uint32_t *source, int32_t *found)
{
    bool done = false;
    int rc = enter_with(g, peer);
    if (rc != PCOLL_OK)
        return rc;
    rc = gossip_peek(g->memory, peer, key, out, source, &done);
    *found = done;
    return gossip_leave(g, rc);
}

/* The board lies at rank 0. */
static size_t number_at(const struct gossip_memory *m, uint32_t rank)
{
    return m->layout.board_at + rank * sizeof(int64_t);
}

int pcoll_gossip_board_read(pcoll_gossip *g, int64_t *numbers)
{
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    struct window *w = g->memory->window;
    rc = w->ops->get_sums(w, 0, number_at(g->memory, 0), numbers, PCOLL_INT64,
                          g->memory->layout.ranks);
    return gossip_leave(g, rc == PCOLL_OK ? w->ops->complete(w, 0) : rc);
}

int pcoll_gossip_board_swap(pcoll_gossip *g, uint32_t rank, int64_t expected,
                            int64_t desired, int64_t *before)
{
    int rc = enter_about(g, rank);
    if (rc != PCOLL_OK)
        return rc;
    struct window *w = g->memory->window;
    return gossip_leave(g, w->ops->compare_swap(w, 0, number_at(g->memory, rank),
                                                expected, desired, before));
}

int pcoll_gossip_board_count(pcoll_gossip *g, int64_t delta, int64_t *before)
{
    int rc = enter_open(g);
    if (rc != PCOLL_OK)
        return rc;
    struct window *w = g->memory->window;
    return gossip_leave(g,
                        w->ops->fetch_add(w, 0, word_at(WORD_ARRIVALS), delta, before));
}

int pcoll_gossip_get_stats(pcoll_gossip *g, pcoll_gossip_stats *stats)
{
    int rc = enter(g);
    if (rc != PCOLL_OK)
        return rc;
    *stats = g->memory->stats;
    return gossip_leave(g, PCOLL_OK);
}

int pcoll_gossip_bytes(pcoll_gossip *g, uint64_t *bytes)
{
    int rc = enter(g);
    if (rc != PCOLL_OK)
        return rc;
    *bytes = g->memory->layout.bytes;
    return gossip_leave(g, PCOLL_OK);
}

/* Any thread, also while another is in a call: who has died does not depend on that. */
int pcoll_gossip_failed(pcoll_gossip *g, uint64_t *set)
{
    if (!g || !set)
        return fail(PCOLL_EINVAL, "expected a gossip buffer and a set, got NULL");
    if (g->base.ended)
        return fail(PCOLL_ESTATE, "the gossip buffer has been freed");
    outage_enter(outage_of(g));
    uint32_t ranks = g->memory->layout.ranks;
    bitset_clear(set, bitset_words(ranks));
    for (uint32_t r = 0; r < ranks; r++)
        if (!lives(g, r))
            bitset_add(set, r);
    outage_leave(outage_of(g));
    return PCOLL_OK;
}
