/* SPDX-License-Identifier: Apache-2.0 */
/* The accumulator; see accumulator.h. */
#include "gossip/accumulator.h"

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
                        int64_t *uncollected, bool *reserved)
{
    struct window *window = memory->window;
    CHECK(peer < memory->layout.ranks && peer != window->rank);
    int64_t before, collected = 0;
    int rc =
        window->ops->fetch_add(window, peer, gossip_word_at(WORD_RESERVED), 1, &before);
    if (rc == PCOLL_OK)
        rc = window_read_word(window, peer, gossip_word_at(WORD_COLLECTED), &collected);
    if (rc == PCOLL_OK) /* not ordered: the peer may collect between the two reads */
        rc = gossip_decode_lead(peer, before, collected, false, uncollected);
    if (rc != PCOLL_OK)
        return rc;
    *reserved = *uncollected < cap;
    return *reserved ? PCOLL_OK : accumulator_count_up(memory, peer, WORD_RESERVED, -1);
}

static size_t accumulator_sums_at(const struct gossip_layout *layout, size_t first)
{
    return layout->sums_at + first * layout->sum;
}

static int accumulator_add(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    CHECK(first < layout->count && first % layout->chunk == 0);
    return window->ops->add(window, peer, accumulator_sums_at(layout, first),
                            memory->change, layout->held,
                            gossip_chunk_length(layout, first))
               ?: window->ops->complete(window, peer);
}

static int accumulator_give(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    return accumulator_add(memory, peer, first)
               ?: memory->window->ops->flush(memory->window, peer);
}

int accumulator_add_chunk(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    CHECK(peer != memory->window->rank);
    memory->stats.bytes_written +=
        gossip_chunk_length(&memory->layout, first) * memory->layout.sum;
    return accumulator_add(memory, peer, first);
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

int accumulator_deltas(struct gossip_memory *memory, uint64_t *deltas)
{
    int64_t by = 0;
    int rc = accumulator_lead(memory, memory->window->rank, WORD_LANDED, WORD_COLLECTED,
                              &by);
    *deltas = rc == PCOLL_OK ? (uint64_t)by : 0;
    return rc;
}

int accumulator_query(struct gossip_memory *memory, uint32_t peer, size_t first)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    CHECK(first < layout->count && first % layout->chunk == 0);
    return window->ops->get_sums(window, peer, accumulator_sums_at(layout, first),
                                 memory->change, layout->held,
                                 gossip_chunk_length(layout, first))
               ?: window->ops->complete(window, peer);
}

int accumulator_subtract(struct gossip_memory *memory, size_t first)
{
    return accumulator_add(memory, memory->window->rank, first);
}

int accumulator_collected(struct gossip_memory *memory, uint64_t deltas)
{
    CHECK(deltas);
    return memory->window->ops->flush(memory->window, memory->window->rank)
               ?: accumulator_count_up(memory, memory->window->rank, WORD_COLLECTED,
                                       (int64_t)deltas);
}

int accumulator_settle(struct gossip_memory *memory)
{
    uint32_t own = memory->window->rank;
    int64_t halves = 0;
    int rc = accumulator_lead(memory, own, WORD_RESERVED, WORD_LANDED, &halves);
    memory->stats.orphaned += (uint64_t)halves;
    return halves ? accumulator_count_up(memory, own, WORD_LANDED, halves) : rc;
}

/* In this order: a death in between leaves deltas that are counted and have no sum,
 * which is safe. */
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
