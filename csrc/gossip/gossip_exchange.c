/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/accumulator.h"

#include <math.h>

#include "base/moment.h"
#include "kernels/averaging.h"
#include "gossip/register.h"

/* The same elements of a model and its companion, in the held form. */
struct gossip_piece {
    void *x, *momentum;
};

static struct gossip_piece exchange_piece_at(const struct gossip_layout *layout,
                                             const struct gossip_model *own,
                                             size_t first)
{
    return (struct gossip_piece){
        .x = gossip_place_at(layout, own->x, first),
        .momentum =
            own->momentum ? gossip_place_at(layout, own->momentum, first) : NULL};
}

static void exchange_average_held(const struct gossip_layout *layout,
                                  struct gossip_piece p, const void *theirs,
                                  void *given, double weight, double ratio,
                                  size_t count)
{
    if (layout->held == PCOLL_FLOAT64)
        average_float64(p.x, theirs, p.momentum, given, weight, ratio, count);
    else
        average_float32(p.x, theirs, p.momentum, given, weight, ratio, count);
}

static void exchange_collect_held(const struct gossip_layout *layout,
                                  struct gossip_piece p, void *sum, double ratio,
                                  size_t count)
{
    if (layout->held == PCOLL_FLOAT64)
        collect_float64(p.x, p.momentum, sum, ratio, count);
    else
        collect_float32(p.x, p.momentum, sum, ratio, count);
}

/* What float16 has no number for stays at the largest, and the rest in the sum. */
static void exchange_clamp(const struct gossip_layout *layout, const float *before,
                           float *after, size_t count)
{
    const float most = 65504;
    for (size_t i = 0; layout->dtype == PCOLL_FLOAT16 && i < count; i++)
        if (fabsf(before[i]) <= most)
            after[i] = fminf(fmaxf(after[i], -most), most);
}

/*
 * Elements of 16 bits move in float32 and are rounded; what they really lost is the
 * difference between what they were and what they became, and `change` becomes that.
 */
static void exchange_round_narrow(struct gossip_memory *memory, void *elements,
                                  float *after, float *change, double ratio,
                                  void *momentum, size_t count)
{
    const struct gossip_layout *layout = &memory->layout;
    float *before = memory->theirs;
    gossip_widen(layout, before, elements, count);
    exchange_clamp(layout, before, after, count);
    gossip_narrow(layout, elements, after, count);
    gossip_widen(layout, after, elements, count);
    for (size_t i = 0; i < count; i++)
        change[i] = before[i] - after[i];
    if (!momentum)
        return;
    gossip_widen(layout, after, momentum, count);
    for (size_t i = 0; i < count; i++)
        after[i] -= (float)ratio * change[i];
    gossip_narrow(layout, momentum, after, count);
}

static void exchange_average_narrow(struct gossip_memory *memory, struct gossip_piece p,
                                    double weight, double ratio, size_t count)
{
    gossip_widen(&memory->layout, memory->ours, p.x, count);
    average_float32(memory->ours, memory->theirs, NULL, memory->change, weight, ratio,
                    count);
    exchange_round_narrow(memory, p.x, memory->ours, memory->change, ratio, p.momentum,
                          count);
}

static void exchange_collect_narrow(struct gossip_memory *memory, struct gossip_piece p,
                                    double ratio, size_t count)
{
    gossip_widen(&memory->layout, memory->ours, p.x, count);
    collect_float32(memory->ours, NULL, memory->change, ratio, count);
    exchange_round_narrow(memory, p.x, memory->ours, memory->change, ratio, p.momentum,
                          count);
}

static void exchange_scale(const struct gossip_layout *layout, void *elements,
                           double factor, size_t count)
{
    for (size_t i = 0; factor != 1 && i < count; i++)
        if (layout->held == PCOLL_FLOAT64)
            ((double *)elements)[i] *= factor;
        else
            ((float *)elements)[i] *= (float)factor;
}

/* memory->theirs gets what lies at its owner uncollected, or the part that it will take; asked for after it, so that what
 * the owner has collected and published meanwhile is not added twice. */
static int exchange_add_uncollected(struct gossip_memory *memory, uint32_t peer,
                                    size_t first)
{
    size_t count = gossip_chunk_length(&memory->layout, first);
    int rc = accumulator_query(memory, peer, first);
    if (rc != PCOLL_OK)
        return rc;
    memory->stats.bytes_read += count * memory->layout.sum;
    exchange_scale(&memory->layout, memory->change, memory->taken, count);
    exchange_collect_held(&memory->layout, (struct gossip_piece){.x = memory->theirs},
                          memory->change, 1, count);
    return PCOLL_OK;
}

static int exchange_average_chunk(struct gossip_memory *memory, uint32_t peer,
                                  size_t first, double weight,
                                  const struct gossip_model *own, bool uncollected,
                                  uint64_t *version)
{
    const struct gossip_layout *layout = &memory->layout;
    struct gossip_piece p = exchange_piece_at(layout, own, first);
    size_t count = gossip_chunk_length(layout, first);
    bool whole;
    int rc = register_read_chunk(memory, peer, first, p.x, version, &whole);
    if (rc != PCOLL_OK || !whole)
        return rc;
    if (layout->bits)
        slot_observe(memory, p.x, memory->theirs, first, count);
    if (uncollected && (rc = exchange_add_uncollected(memory, peer, first)) != PCOLL_OK)
        return rc;
    if (layout->dtype != layout->held)
        exchange_average_narrow(memory, p, weight, own->ratio, count);
    else
        exchange_average_held(layout, p, memory->theirs, memory->change, weight,
                              own->ratio, count);
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
    return rc == PCOLL_OK ? accumulator_landed(memory, peer) : rc;
}

int exchange_collect(struct gossip_memory *memory, const struct gossip_model *own,
                     uint64_t *deltas)
{
    const struct gossip_layout *layout = &memory->layout;
    int rc = accumulator_deltas(memory, deltas);
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK && *deltas;
         first += layout->chunk) {
        struct gossip_piece p = exchange_piece_at(layout, own, first);
        rc = accumulator_query(memory, memory->window->rank, first);
        if (rc != PCOLL_OK)
            return rc;
        if (layout->dtype != layout->held)
            exchange_collect_narrow(memory, p, own->ratio,
                                    gossip_chunk_length(layout, first));
        else
            exchange_collect_held(layout, p, memory->change, own->ratio,
                                  gossip_chunk_length(layout, first));
        MOMENT("chunk collected");
        rc = accumulator_subtract(memory, first);
    }
    MOMENT("all collected");
    if (rc == PCOLL_OK && *deltas)
        rc = accumulator_collected(memory, *deltas);
    memory->stats.collected += *deltas;
    return rc;
}
