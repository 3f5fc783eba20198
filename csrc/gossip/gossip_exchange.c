/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/accumulator.h"

#include <math.h>

#include "base/moment.h"
#include "kernels/averaging.h"
#include "gossip/register.h"

/* The same elements of a model and its companion, in the held form. */
struct piece {
    void *x, *momentum;
};

static struct piece piece_at(const struct layout *l, const struct moving *own,
                             size_t first)
{
    return (struct piece){.x = place_at(l, own->x, first),
                          .momentum =
                              own->momentum ? place_at(l, own->momentum, first) : NULL};
}

static void average(const struct layout *l, struct piece p, const void *theirs,
                    void *given, double weight, double ratio, size_t count)
{
    if (l->held == PCOLL_FLOAT64)
        average_float64(p.x, theirs, p.momentum, given, weight, ratio, count);
    else
        average_float32(p.x, theirs, p.momentum, given, weight, ratio, count);
}

static void collect(const struct layout *l, struct piece p, void *sum, double ratio,
                    size_t count)
{
    if (l->held == PCOLL_FLOAT64)
        collect_float64(p.x, p.momentum, sum, ratio, count);
    else
        collect_float32(p.x, p.momentum, sum, ratio, count);
}

/* What float16 has no number for stays at the largest, and the rest in the sum. */
static void clamp(const struct layout *l, const float *before, float *after,
                  size_t count)
{
    const float most = 65504;
    for (size_t i = 0; l->dtype == PCOLL_FLOAT16 && i < count; i++)
        if (fabsf(before[i]) <= most)
            after[i] = fminf(fmaxf(after[i], -most), most);
}

/*
 * Elements of 16 bits move in float32 and are rounded; what they really lost is the
 * difference between what they were and what they became, and `change` becomes that.
 */
static void settle_narrow(struct gossip_memory *m, void *elements, float *after,
                          float *change, double ratio, void *momentum, size_t count)
{
    const struct layout *l = &m->layout;
    float *before = m->theirs;
    gossip_widen(l, before, elements, count);
    clamp(l, before, after, count);
    gossip_narrow(l, elements, after, count);
    gossip_widen(l, after, elements, count);
    for (size_t i = 0; i < count; i++)
        change[i] = before[i] - after[i];
    if (!momentum)
        return;
    gossip_widen(l, after, momentum, count);
    for (size_t i = 0; i < count; i++)
        after[i] -= (float)ratio * change[i];
    gossip_narrow(l, momentum, after, count);
}

static void average_narrow(struct gossip_memory *m, struct piece p, double weight,
                           double ratio, size_t count)
{
    gossip_widen(&m->layout, m->ours, p.x, count);
    average_float32(m->ours, m->theirs, NULL, m->change, weight, ratio, count);
    settle_narrow(m, p.x, m->ours, m->change, ratio, p.momentum, count);
}

static void collect_narrow(struct gossip_memory *m, struct piece p, double ratio,
                           size_t count)
{
    gossip_widen(&m->layout, m->ours, p.x, count);
    collect_float32(m->ours, NULL, m->change, ratio, count);
    settle_narrow(m, p.x, m->ours, m->change, ratio, p.momentum, count);
}

static void scale(const struct layout *l, void *elements, double factor, size_t count)
{
    for (size_t i = 0; factor != 1 && i < count; i++)
        if (l->held == PCOLL_FLOAT64)
            ((double *)elements)[i] *= factor;
        else
            ((float *)elements)[i] *= (float)factor;
}

/* m->theirs gets what lies at its owner uncollected, or the part that it will take; asked for after it, so that what
 * the owner has collected and published meanwhile is not added twice. */
static int add_uncollected(struct gossip_memory *m, uint32_t peer, size_t first)
{
    size_t count = chunk_length(&m->layout, first);
    int rc = accumulator_query(m, peer, first);
    if (rc != PCOLL_OK)
        return rc;
    m->stats.bytes_read += count * m->layout.sum;
    scale(&m->layout, m->change, m->taken, count);
    collect(&m->layout, (struct piece){.x = m->theirs}, m->change, 1, count);
    return PCOLL_OK;
}

static int average_chunk(struct gossip_memory *m, uint32_t peer, size_t first,
                         double weight, const struct moving *own, bool uncollected,
                         uint64_t *version)
{
    const struct layout *l = &m->layout;
    struct piece p = piece_at(l, own, first);
    size_t count = chunk_length(l, first);
    bool whole;
    int rc = register_read_chunk(m, peer, first, p.x, version, &whole);
    if (rc != PCOLL_OK || !whole)
        return rc;
    if (l->bits)
        coded_observe(m, p.x, m->theirs, first, count);
    if (uncollected && (rc = add_uncollected(m, peer, first)) != PCOLL_OK)
        return rc;
    if (l->dtype != l->held)
        average_narrow(m, p, weight, own->ratio, count);
    else
        average(l, p, m->theirs, m->change, weight, own->ratio, count);
    rc = accumulator_add_chunk(m, peer, first);
    MOMENT("chunk given");
    return rc;
}

int exchange_average(struct gossip_memory *m, uint32_t peer, uint32_t cap,
                     double weight, const struct moving *own, bool *averaged)
{
    const struct layout *l = &m->layout;
    uint64_t version;
    int64_t uncollected;
    *averaged = false;
    int rc = register_version(m, peer, &version);
    if (rc == PCOLL_OK && !version)
        rc = fail(PCOLL_EEMPTY, "rank %u has not published anything yet", peer);
    if (rc == PCOLL_OK)
        rc = accumulator_reserve(m, peer, cap, &uncollected, averaged);
    if (rc != PCOLL_OK || !*averaged) {
        m->stats.skipped += rc == PCOLL_OK;
        return rc;
    }
    MOMENT("delta reserved");
    for (size_t first = 0; first < l->count && rc == PCOLL_OK; first += l->chunk)
        rc = average_chunk(m, peer, first, weight, own, uncollected > 0, &version);
    MOMENT("delta given");
    m->stats.averages++;
    return rc == PCOLL_OK ? accumulator_landed(m, peer) : rc;
}

int exchange_collect(struct gossip_memory *m, const struct moving *own,
                     uint64_t *deltas)
{
    const struct layout *l = &m->layout;
    int rc = accumulator_deltas(m, deltas);
    for (size_t first = 0; first < l->count && rc == PCOLL_OK && *deltas;
         first += l->chunk) {
        struct piece p = piece_at(l, own, first);
        rc = accumulator_query(m, m->window->rank, first);
        if (rc != PCOLL_OK)
            return rc;
        if (l->dtype != l->held)
            collect_narrow(m, p, own->ratio, chunk_length(l, first));
        else
            collect(l, p, m->change, own->ratio, chunk_length(l, first));
        MOMENT("chunk collected");
        rc = accumulator_take(m, first);
    }
    MOMENT("all collected");
    if (rc == PCOLL_OK && *deltas)
        rc = accumulator_collected(m, *deltas);
    m->stats.collected += *deltas;
    return rc;
}
