/* SPDX-License-Identifier: Apache-2.0 */
/* The accumulator and pair averaging; see gossip.h. */
#include "gossip/gossip.h"

#include <math.h>

#include "base/check.h"
#include "kernels/reduce.h"

static int accumulator_count_up(struct gossip_memory *memory, uint32_t peer,
                                enum gossip_word word, int64_t by)
{
    int64_t before;
    return memory->window->ops->fetch_add(memory->window, peer, gossip_word_at(word),
                                          by, &before);
}

int accumulator_reserve(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, int32_t *reserved)
{
    struct window *window = memory->window;
    CHECK(peer < memory->layout.ranks && peer != window->rank);
    int64_t before, collected = 0;
    int rc =
        window->ops->fetch_add(window, peer, gossip_word_at(WORD_RESERVED), 1, &before)
            ?: window_read_word(window, peer, gossip_word_at(WORD_COLLECTED), &collected)
            /* not ordered: the peer may collect between the two reads */
            ?: gossip_decode_lead(peer, before, collected, false, uncollected);
    if (rc != PCOLL_OK)
        return rc;
    *reserved = *uncollected < cap;
    return *reserved ? PCOLL_OK : accumulator_count_up(memory, peer, WORD_RESERVED, -1);
}

static size_t accumulator_sums_at(const struct gossip_layout *layout, size_t first)
{
    return layout->sums_at + first * layout->sum;
}

int accumulator_add(struct gossip_memory *memory, uint32_t peer, size_t first,
                    const void *delta)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    CHECK(first < layout->count && first % layout->chunk == 0);
    if (peer != window->rank)
        memory->stats.bytes_written += gossip_chunk_length(layout, first) * layout->sum;
    return window->ops->access(window, WINDOW_ADD, peer,
                               accumulator_sums_at(layout, first), delta, NULL,
                               layout->held, gossip_chunk_length(layout, first))
               ?: window->ops->complete(window, peer);
}

static int accumulator_give(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    return accumulator_add(memory, peer, first, memory->change)
               ?: memory->window->ops->flush(memory->window, peer);
}

int accumulator_landed(struct gossip_memory *memory, uint32_t peer)
{
    return memory->window->ops->flush(memory->window, peer)
               ?: accumulator_count_up(memory, peer, WORD_LANDED, 1);
}

/* Compute by how much the word `of` of the peer is ahead of the word `behind`. */
static int accumulator_lead(struct gossip_memory *memory, uint32_t peer,
                            enum gossip_word of, enum gossip_word behind, int64_t *by)
{
    int64_t ahead = 0, before = 0;
    return window_read_word(memory->window, peer, gossip_word_at(of), &ahead)
               ?: window_read_word(memory->window, peer, gossip_word_at(behind),
                                   &before)
               ?: gossip_decode_lead(peer, ahead, before, true, by);
}

int accumulator_query(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    CHECK(first < layout->count && first % layout->chunk == 0);
    return window->ops->access(window, WINDOW_SUMS, peer,
                               accumulator_sums_at(layout, first), NULL, memory->change,
                               layout->held, gossip_chunk_length(layout, first))
               ?: window->ops->complete(window, peer);
}

int accumulator_settle(struct gossip_memory *memory)
{
    uint32_t own = memory->window->rank;
    int64_t halves = 0;
    int rc = accumulator_lead(memory, own, WORD_RESERVED, WORD_LANDED, &halves);
    memory->stats.orphaned += (uint64_t)halves;
    return halves ? accumulator_count_up(memory, own, WORD_LANDED, halves) : rc;
}

/* In this order: a death in between leaves deltas that are counted and have no sum, which is
 * safe. */
static int accumulator_move_counts(struct gossip_memory *memory, uint32_t dead)
{
    uint32_t own = memory->window->rank;
    int64_t by = 0, landed = 0;
    int rc = accumulator_lead(memory, dead, WORD_RESERVED, WORD_LANDED, &landed)
                 ?: accumulator_lead(memory, dead, WORD_RESERVED, WORD_COLLECTED, &by);
    if (rc != PCOLL_OK || !by)
        return rc;
    rc = accumulator_count_up(memory, own, WORD_RESERVED, by)
                 ?: accumulator_count_up(memory, own, WORD_LANDED, by)
                 ?: accumulator_count_up(memory, dead, WORD_LANDED, landed)
                 ?: accumulator_count_up(memory, dead, WORD_COLLECTED, by);
    memory->stats.orphaned += rc == PCOLL_OK ? (uint64_t)by : 0;
    return rc;
}

/* Take the chunk away from the dead rank first, so that it is never counted twice. */
static int accumulator_move_chunk(struct gossip_memory *memory, uint32_t dead,
                                  size_t first)
{
    int held = memory->layout.held, rc = accumulator_query(memory, dead, first);
    size_t count = gossip_chunk_length(&memory->layout, first);
    model_scale(held, memory->change, -1, count);
    if (rc == PCOLL_OK)
        rc = accumulator_give(memory, dead, first);
    MOMENT("chunk adopted");
    model_scale(held, memory->change, -1, count);
    return rc ?: accumulator_give(memory, memory->window->rank, first);
}

int accumulator_adopt(struct gossip_memory *memory, uint32_t dead)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(dead < layout->ranks && dead != memory->window->rank);
    int rc = PCOLL_OK;
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK;
         first += layout->chunk)
        rc = accumulator_move_chunk(memory, dead, first);
    return rc ?: accumulator_move_counts(memory, dead);
}

/* Averaging. */

/* Return the part of a model and of its momentum that begins at element `first`. */
static struct gossip_model exchange_part(const struct gossip_layout *layout,
                                         const struct gossip_model *own, size_t first)
{
    struct gossip_model part = *own;
    part.x = gossip_element_at(layout, own->x, first);
    if (own->momentum)
        part.momentum = gossip_element_at(layout, own->momentum, first);
    return part;
}

/* Store elements of 16 bits that were moved in float32 (memory->ours), rounded. `change` becomes
 * what they really lost: the difference between before and after. It may be memory->theirs. */
static void exchange_round_narrow(struct gossip_memory *memory, struct gossip_model p,
                                  float *change, size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    const float most = 65504;
    float *before = memory->theirs, *after = memory->ours;
    gossip_widen(layout, before, p.x, count);
    /* Keep what exceeds float16 at its largest number; the rest stays in the sum. */
    for (size_t i = 0; layout->dtype == PCOLL_FLOAT16 && i < count; i++)
        if (fabsf(before[i]) <= most)
            after[i] = fminf(fmaxf(after[i], -most), most);
    gossip_narrow(layout, p.x, after, count);
    gossip_widen(layout, after, p.x, count);
    for (size_t i = 0; i < count; i++)
        change[i] = before[i] - after[i];
    if (!p.momentum)
        return;
    gossip_widen(layout, after, p.momentum, count);
    for (size_t i = 0; i < count; i++)
        after[i] -= (float)p.ratio * change[i];
    gossip_narrow(layout, p.momentum, after, count);
}

/* Move p toward memory->theirs, or add memory->change to it (weight NULL). What p loses
 * overwrites the buffer that was read, so that a chunk takes up less of the core's cache. Return
 * that buffer. */
static const void *exchange_move(struct gossip_memory *memory, struct gossip_model p,
                                 const double *weight, size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    bool narrow = layout->dtype != layout->held;
    void *x = narrow ? memory->ours : p.x, *momentum = narrow ? NULL : p.momentum;
    void *change = weight ? memory->theirs : memory->change;
    if (narrow)
        gossip_widen(layout, x, p.x, count);
    if (weight)
        model_average(layout->held, x, memory->theirs, momentum, change, *weight,
                      p.ratio, count);
    else
        model_collect(layout->held, x, momentum, change, p.ratio, count);
    if (narrow)
        exchange_round_narrow(memory, p, change, count);
    return change;
}

static int exchange_average_chunk(struct gossip_memory *memory, uint32_t peer,
                                  size_t first, double weight,
                                  const struct gossip_model *own, bool uncollected,
                                  uint64_t *version)
{
    const struct gossip_layout *layout = &memory->layout;
    struct gossip_model p = exchange_part(layout, own, first);
    size_t count = gossip_chunk_length(layout, first);
    bool whole;
    int rc = register_read_chunk(memory, peer, first, p.x, version, &whole);
    if (rc != PCOLL_OK || !whole)
        return rc;
    if (layout->bits)
        slot_observe(memory, p.x, memory->theirs, layout->held, first, count);
    if (uncollected) {
        /* Add what its model will take of the uncollected sum. This is read after the register:
         * what the peer collects and publishes in between is then not added twice. */
        rc = accumulator_query(memory, peer, first);
        if (rc != PCOLL_OK)
            return rc;
        memory->stats.bytes_read += count * layout->sum;
        if (memory->taken != 1)
            model_scale(layout->held, memory->change, memory->taken, count);
        model_collect(layout->held, memory->theirs, NULL, memory->change, 1, count);
    }
    rc = accumulator_add(memory, peer, first, exchange_move(memory, p, &weight, count));
    MOMENT("chunk given");
    return rc;
}

int exchange_average(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                     double weight, const struct gossip_model *own, int32_t *averaged)
{
    const struct gossip_layout *layout = &memory->layout;
    uint64_t version = 0;
    int64_t uncollected;
    *averaged = false;
    int rc = register_version(memory, peer, &version);
    if (rc == PCOLL_OK && !version)
        rc = fail(PCOLL_EEMPTY, "rank %u has not published anything yet", peer);
    if (rc == PCOLL_OK)
        rc = accumulator_reserve(memory, peer, cap, &uncollected, averaged);
    if (rc != PCOLL_OK || !*averaged) {
        memory->stats.skipped += rc == PCOLL_OK;
        return rc;
    }
    MOMENT("delta reserved");
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK;
         first += layout->chunk)
        rc = exchange_average_chunk(memory, peer, first, weight, own, uncollected > 0,
                                    &version);
    MOMENT("delta given");
    memory->stats.averages++;
    return rc ?: accumulator_landed(memory, peer);
}

int exchange_collect(struct gossip_memory *memory, const struct gossip_model *own,
                     uint64_t *deltas)
{
    const struct gossip_layout *layout = &memory->layout;
    uint32_t rank = memory->window->rank;
    int64_t landed = 0;
    int rc = accumulator_lead(memory, rank, WORD_LANDED, WORD_COLLECTED, &landed);
    *deltas = rc == PCOLL_OK ? (uint64_t)landed : 0;
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK && *deltas;
         first += layout->chunk) {
        rc = accumulator_query(memory, rank, first);
        if (rc != PCOLL_OK)
            return rc;
        const void *change = exchange_move(memory, exchange_part(layout, own, first),
                                           NULL, gossip_chunk_length(layout, first));
        MOMENT("chunk collected");
        rc = accumulator_add(memory, rank, first, change);
    }
    MOMENT("all collected");
    if (rc == PCOLL_OK && *deltas)
        rc = memory->window->ops->flush(memory->window, rank)
                 ?: accumulator_count_up(memory, rank, WORD_COLLECTED, landed);
    memory->stats.collected += *deltas;
    return rc;
}
