/* SPDX-License-Identifier: Apache-2.0 */
/* Pair averaging with the register and the accumulator; see accumulator.h. */
#include "gossip/accumulator.h"

#include <math.h>

#include "base/check.h"
#include "kernels/reduce.h"
#include "gossip/register.h"

/* Return the part of a model and of its momentum that begins at element `first`. */
static struct gossip_model exchange_part(const struct gossip_layout *layout,
                                         const struct gossip_model *own, size_t first)
{
    struct gossip_model part = *own;
    part.x = gossip_place_at(layout, own->x, first);
    if (own->momentum)
        part.momentum = gossip_place_at(layout, own->momentum, first);
    return part;
}

/* Keep what exceeds float16 at its largest number; the rest stays in the sum. */
static void exchange_clamp(const struct gossip_layout *layout, const float *before,
                           float *after, size_t count)
{
    const float most = 65504;
    for (size_t i = 0; layout->dtype == PCOLL_FLOAT16 && i < count; i++)
        if (fabsf(before[i]) <= most)
            after[i] = fminf(fmaxf(after[i], -most), most);
}

/*
 * Store elements of 16 bits that were moved in float32 (memory->ours), rounded.
 * memory->change becomes what they really lost: the difference between before and
 * after.
 */
static void exchange_round_narrow(struct gossip_memory *memory, struct gossip_model p,
                                  size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    float *before = memory->theirs, *after = memory->ours, *change = memory->change;
    gossip_widen(layout, before, p.x, count);
    exchange_clamp(layout, before, after, count);
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

/* Move p toward memory->theirs; memory->change becomes what it loses. */
static void exchange_average_part(struct gossip_memory *memory, struct gossip_model p,
                                  double weight, size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    bool narrow = layout->dtype != layout->held;
    if (narrow)
        gossip_widen(layout, memory->ours, p.x, count);
    model_average(layout->held, narrow ? memory->ours : p.x, memory->theirs,
                  narrow ? NULL : p.momentum, memory->change, weight, p.ratio, count);
    if (narrow)
        exchange_round_narrow(memory, p, count);
}

/* Add memory->change to p; it becomes the negated gain of p. */
static void exchange_collect_part(struct gossip_memory *memory, struct gossip_model p,
                                  size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    bool narrow = layout->dtype != layout->held;
    if (narrow)
        gossip_widen(layout, memory->ours, p.x, count);
    model_collect(layout->held, narrow ? memory->ours : p.x, narrow ? NULL : p.momentum,
                  memory->change, p.ratio, count);
    if (narrow)
        exchange_round_narrow(memory, p, count);
}

/* Add what is uncollected at the peer, or the part of it that its model will take, to
 * memory->theirs. This is read after the register: what the peer collects and publishes
 * in between is then not added twice. */
static int exchange_add_uncollected(struct gossip_memory *memory, uint32_t peer,
                                    size_t first)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t count = gossip_chunk_length(layout, first);
    int rc = accumulator_query(memory, peer, first);
    if (rc != PCOLL_OK)
        return rc;
    memory->stats.bytes_read += count * layout->sum;
    if (memory->taken != 1)
        model_scale(layout->held, memory->change, memory->taken, count);
    model_collect(layout->held, memory->theirs, NULL, memory->change, 1, count);
    return PCOLL_OK;
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
        slot_observe(memory, p.x, memory->theirs, first, count);
    if (uncollected && (rc = exchange_add_uncollected(memory, peer, first)) != PCOLL_OK)
        return rc;
    exchange_average_part(memory, p, weight, count);
    rc = accumulator_add_chunk(memory, peer, first);
    MOMENT("chunk given");
    return rc;
}

int exchange_average(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                     double weight, const struct gossip_model *own, bool *averaged)
{
    const struct gossip_layout *layout = &memory->layout;
    uint64_t version;
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
    int rc = accumulator_deltas(memory, deltas);
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK && *deltas;
         first += layout->chunk) {
        struct gossip_model p = exchange_part(layout, own, first);
        rc = accumulator_query(memory, memory->window->rank, first);
        if (rc != PCOLL_OK)
            return rc;
        exchange_collect_part(memory, p, gossip_chunk_length(layout, first));
        MOMENT("chunk collected");
        rc = accumulator_subtract(memory, first);
    }
    MOMENT("all collected");
    if (rc == PCOLL_OK && *deltas)
        rc = accumulator_collected(memory, *deltas);
    memory->stats.collected += *deltas;
    return rc;
}
