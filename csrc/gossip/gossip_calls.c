/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a gossip buffer, but for creating and freeing it. */
#include "gossip/gossip_memory.h"

#include <string.h>

#include "base/clock.h"
#include "gossip/accumulator.h"
#include "gossip/queue.h"

/* A simulated buffer has no communicator. */
static struct outage *gossip_outage(const pcoll_gossip *gossip)
{
    return gossip->base.communicator ? gossip->base.communicator->outage : NULL;
}

static bool gossip_lives(const pcoll_gossip *gossip, uint32_t rank)
{
    return !gossip->base.communicator ||
           transport_lives(gossip->base.communicator->transport, rank);
}

static int gossip_leave(pcoll_gossip *gossip, int rc)
{
    outage_leave(gossip_outage(gossip));
    return user_object_leave(&gossip->base, rc);
}

/* Calls are counted: they wait for a recovery to complete, and it waits for them. */
static int gossip_enter(pcoll_gossip *gossip)
{
    int rc = fail_if_null_as("gossip", gossip) ?: user_object_enter(&gossip->base);
    if (rc == PCOLL_OK)
        outage_enter(gossip_outage(gossip));
    return rc;
}

static int gossip_enter_open(pcoll_gossip *gossip)
{
    enum { EVERY_NS = 20000000 };
    int rc = fail_if_null_as("gossip", gossip) ?: user_object_enter_open(&gossip->base);
    if (rc != PCOLL_OK)
        return rc;
    /* A gossip buffer receives no messages, so possibly no thread polls: its calls poll every 20 ms
     * whether MPI has news of ranks that have died. */
    if (gossip->poll_at && clock_ns() >= gossip->poll_at) {
        gossip->poll_at = clock_ns() + EVERY_NS;
        progress_poll(gossip->base.communicator->progress);
    }
    outage_enter(gossip_outage(gossip));
    if (gossip->base.communicator)
        rc = communicator_check(gossip->base.communicator);
    if (rc == PCOLL_OK && gossip->base.orphan)
        rc = outage_error(gossip_outage(gossip));
    return rc == PCOLL_OK ? rc : gossip_leave(gossip, rc);
}

/* Enter a call about a rank. */
static int gossip_enter_rank(pcoll_gossip *gossip, uint32_t peer)
{
    int rc = gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    uint32_t ranks = gossip->memory->layout.ranks;
    if (peer < ranks)
        return PCOLL_OK;
    return gossip_leave(
        gossip, fail(PCOLL_EINVAL, "peer: expected 0 to %u, got %u", ranks - 1, peer));
}

/* Enter a call that reaches a rank: it has to be alive. */
static int gossip_enter_peer(pcoll_gossip *gossip, uint32_t peer)
{
    int rc = gossip_enter_rank(gossip, peer);
    if (rc != PCOLL_OK || gossip_lives(gossip, peer))
        return rc;
    struct failed_ranks who = {.count = 1, .rank = {(int32_t)peer}};
    return gossip_leave(gossip, fail_ranks(&who)); /* an error of this call only */
}

int pcoll_gossip_publish(pcoll_gossip *gossip, const void *x, uint64_t *version)
{
    return fail_if_null(x, version)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, register_publish(gossip->memory, x, version));
}

int pcoll_gossip_read(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint64_t *version)
{
    return fail_if_null(out, version)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, register_read(gossip->memory, peer, key, out,
                                                     version));
}

int pcoll_gossip_set_taken(pcoll_gossip *gossip, double part)
{
    int rc = gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    if (part >= 0 && part <= 1)
        gossip->memory->taken = part;
    else
        rc = fail(PCOLL_EINVAL, "part: expected 0 to 1, got %g", part);
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_average(pcoll_gossip *gossip, uint32_t peer, void *x, double weight,
                         void *momentum, double ratio, int32_t *averaged)
{
    struct gossip_model own = {.x = x, .momentum = momentum, .ratio = ratio};
    int rc = fail_if_null(x, averaged) ?: gossip_enter_peer(gossip, peer);
    if (rc != PCOLL_OK)
        return rc;
    *averaged = 0;
    rc =
        peer == gossip->memory->window->rank
            ? fail(PCOLL_EINVAL, "peer: expected another rank, got this one (%u)", peer)
            : exchange_average(gossip->memory, peer, gossip->max_uncollected, weight,
                               &own, averaged);
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_collect(pcoll_gossip *gossip, void *x, void *momentum, double ratio,
                         uint64_t *deltas)
{
    struct gossip_model own = {.x = x, .momentum = momentum, .ratio = ratio};
    return fail_if_null(x, deltas)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, exchange_collect(gossip->memory, &own, deltas));
}

int pcoll_gossip_pending(pcoll_gossip *gossip, void *out)
{
    int rc = fail_if_null(out) ?: gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    struct gossip_memory *memory = gossip->memory;
    for (size_t first = 0; first < memory->layout.count && rc == PCOLL_OK;
         first += memory->layout.chunk) {
        rc = accumulator_query(memory, memory->window->rank, first);
        memcpy((char *)out + first * memory->layout.sum, memory->change,
               gossip_chunk_length(&memory->layout, first) * memory->layout.sum);
    }
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_push(pcoll_gossip *gossip, uint32_t peer, const void *x,
                      const void *key, void *sent, int32_t *pushed)
{
    return fail_if_null(x, pushed)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, queue_push(gossip->memory, peer, x, key, sent,
                                                  pushed));
}

int pcoll_gossip_drain(pcoll_gossip *gossip, const void *key, void *out,
                       uint32_t *source, int32_t *taken)
{
    return fail_if_null(out, source, taken)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip,
                               queue_take(gossip->memory, key, out, source, taken));
}

int pcoll_gossip_peek(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint32_t *source, int32_t *found)
{
    return fail_if_null(out, source, found)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, queue_peek(gossip->memory, peer, key, out, source,
                                                  found));
}

/* Return where the number of a rank is on the board, which is at rank 0. */
static size_t gossip_board_at(const struct gossip_memory *memory, uint32_t rank)
{
    return memory->layout.board_at + rank * sizeof(int64_t);
}

int pcoll_gossip_board_read(pcoll_gossip *gossip, int64_t *numbers)
{
    int rc = fail_if_null(numbers) ?: gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    const struct gossip_memory *memory = gossip->memory;
    rc = memory->window->ops->get_sums(memory->window, 0, gossip_board_at(memory, 0),
                                       numbers, PCOLL_INT64, memory->layout.ranks);
    return gossip_leave(gossip, rc ?: memory->window->ops->complete(memory->window, 0));
}

int pcoll_gossip_board_swap(pcoll_gossip *gossip, uint32_t rank, int64_t expected,
                            int64_t desired, int64_t *before)
{
    return fail_if_null(before)
               ?: gossip_enter_rank(gossip, rank)
               ?: gossip_leave(gossip,
                               gossip->memory->window->ops->compare_swap(
                                   gossip->memory->window, 0,
                                   gossip_board_at(gossip->memory, rank), expected,
                                   desired, before));
}

int pcoll_gossip_board_count(pcoll_gossip *gossip, int64_t delta, int64_t *before)
{
    return fail_if_null(before)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, gossip->memory->window->ops->fetch_add(
                                           gossip->memory->window, 0,
                                           gossip_word_at(WORD_ARRIVALS), delta,
                                           before));
}

int pcoll_gossip_get_stats(pcoll_gossip *gossip, pcoll_gossip_stats *stats)
{
    return fail_if_null(stats)
               ?: gossip_enter(gossip)
               ?: (*stats = gossip->memory->stats, gossip_leave(gossip, PCOLL_OK));
}

int pcoll_gossip_bytes(pcoll_gossip *gossip, uint64_t *bytes)
{
    return fail_if_null(bytes)
               ?: gossip_enter(gossip)
               ?: (*bytes = gossip->memory->layout.bytes,
                   gossip_leave(gossip, PCOLL_OK));
}

/* Any thread may call this, also while another thread is in a call. */
int pcoll_gossip_failed(pcoll_gossip *gossip, uint64_t *set)
{
    int rc = fail_if_null(gossip, set);
    if (rc != PCOLL_OK)
        return rc;
    if (gossip->base.ended)
        return fail(PCOLL_ESTATE, "the gossip buffer has been freed");
    outage_enter(gossip_outage(gossip));
    uint32_t ranks = gossip->memory->layout.ranks;
    bitset_clear(set, bitset_words(ranks));
    for (uint32_t r = 0; r < ranks; r++)
        if (!gossip_lives(gossip, r))
            bitset_add(set, r);
    outage_leave(gossip_outage(gossip));
    return PCOLL_OK;
}
