/* SPDX-License-Identifier: Apache-2.0 */
/* The accumulator; see accumulator.h. */
#include "gossip/accumulator.h"

#include "base/check.h"
#include "base/moment.h"

static int count_up(struct gossip_memory *m, uint32_t peer, enum gossip_word word,
                    int64_t by)
{
    int64_t before;
    return m->window->ops->fetch_add(m->window, peer, word_at(word), by, &before);
}

int accumulator_reserve(struct gossip_memory *m, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, bool *reserved)
{
    struct window *w = m->window;
    CHECK(peer < m->layout.ranks && peer != w->rank);
    int64_t before, collected = 0;
    int rc = w->ops->fetch_add(w, peer, word_at(WORD_RESERVED), 1, &before);
    if (rc == PCOLL_OK)
        rc = window_read_word(w, peer, word_at(WORD_COLLECTED), &collected);
    if (rc == PCOLL_OK) /* the peer may collect between the two */
        rc = gossip_decode_lead(peer, before, collected, false, uncollected);
    if (rc != PCOLL_OK)
        return rc;
    *reserved = *uncollected < cap;
    return *reserved ? PCOLL_OK : count_up(m, peer, WORD_RESERVED, -1);
}

static size_t sums_at(const struct layout *l, size_t first)
{
    return l->sums_at + first * l->sum;
}

static int add(struct gossip_memory *m, uint32_t peer, size_t first)
{
    const struct layout *l = &m->layout;
    struct window *w = m->window;
    CHECK(first < l->count && first % l->chunk == 0);
    int rc = w->ops->add(w, peer, sums_at(l, first), m->change, l->held,
                         chunk_length(l, first));
    return rc == PCOLL_OK ? w->ops->complete(w, peer) : rc;
}

int accumulator_give(struct gossip_memory *m, uint32_t peer, size_t first)
{
    int rc = add(m, peer, first);
    return rc == PCOLL_OK ? m->window->ops->flush(m->window, peer) : rc;
}

int accumulator_add_chunk(struct gossip_memory *m, uint32_t peer, size_t first)
{
    CHECK(peer != m->window->rank);
    m->stats.bytes_written += chunk_length(&m->layout, first) * m->layout.sum;
    return add(m, peer, first);
}

int accumulator_landed(struct gossip_memory *m, uint32_t peer)
{
    int rc = m->window->ops->flush(m->window, peer);
    return rc == PCOLL_OK ? count_up(m, peer, WORD_LANDED, 1) : rc;
}

/* By how much the first word is ahead of the second. */
static int lead(struct gossip_memory *m, uint32_t peer, enum gossip_word of,
                enum gossip_word behind, int64_t *by)
{
    int64_t ahead = 0, before = 0;
    int rc = window_read_word(m->window, peer, word_at(of), &ahead);
    if (rc == PCOLL_OK)
        rc = window_read_word(m->window, peer, word_at(behind), &before);
    return rc == PCOLL_OK ? gossip_decode_lead(peer, ahead, before, true, by) : rc;
}

int accumulator_deltas(struct gossip_memory *m, uint64_t *deltas)
{
    int64_t by = 0;
    int rc = lead(m, m->window->rank, WORD_LANDED, WORD_COLLECTED, &by);
    *deltas = rc == PCOLL_OK ? (uint64_t)by : 0;
    return rc;
}

int accumulator_query(struct gossip_memory *m, uint32_t peer, size_t first)
{
    const struct layout *l = &m->layout;
    struct window *w = m->window;
    CHECK(first < l->count && first % l->chunk == 0);
    int rc = w->ops->get_sums(w, peer, sums_at(l, first), m->change, l->held,
                              chunk_length(l, first));
    return rc == PCOLL_OK ? w->ops->complete(w, peer) : rc;
}

int accumulator_take(struct gossip_memory *m, size_t first)
{
    return add(m, m->window->rank, first);
}

int accumulator_collected(struct gossip_memory *m, uint64_t deltas)
{
    CHECK(deltas);
    int rc = m->window->ops->flush(m->window, m->window->rank);
    return rc == PCOLL_OK
               ? count_up(m, m->window->rank, WORD_COLLECTED, (int64_t)deltas)
               : rc;
}

int accumulator_settle(struct gossip_memory *m)
{
    uint32_t own = m->window->rank;
    int64_t halves = 0;
    int rc = lead(m, own, WORD_RESERVED, WORD_LANDED, &halves);
    m->stats.orphaned += (uint64_t)halves;
    return halves ? count_up(m, own, WORD_LANDED, halves) : rc;
}

/* In this order: who is cut short leaves deltas that are counted and not there. */
int accumulator_adopt(struct gossip_memory *m, uint32_t dead, uint64_t *deltas)
{
    uint32_t own = m->window->rank;
    int64_t by = 0, landed = 0;
    CHECK(dead != own);
    int rc = lead(m, dead, WORD_RESERVED, WORD_LANDED, &landed);
    if (rc == PCOLL_OK)
        rc = lead(m, dead, WORD_RESERVED, WORD_COLLECTED, &by);
    *deltas = rc == PCOLL_OK ? (uint64_t)by : 0;
    if (!*deltas)
        return rc;
    rc = count_up(m, own, WORD_RESERVED, by);
    if (rc == PCOLL_OK)
        rc = count_up(m, own, WORD_LANDED, by);
    if (rc == PCOLL_OK)
        rc = count_up(m, dead, WORD_LANDED, landed);
    return rc == PCOLL_OK ? count_up(m, dead, WORD_COLLECTED, by) : rc;
}

static void negate(const struct layout *l, void *sums, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (l->held == PCOLL_FLOAT64)
            ((double *)sums)[i] = -((double *)sums)[i];
        else
            ((float *)sums)[i] = -((float *)sums)[i];
}

/* First taken away, then added. */
static int move_chunk(struct gossip_memory *m, uint32_t dead, size_t first)
{
    const struct layout *l = &m->layout;
    int rc = accumulator_query(m, dead, first);
    negate(l, m->change, chunk_length(l, first));
    if (rc == PCOLL_OK)
        rc = accumulator_give(m, dead, first);
    MOMENT("chunk adopted");
    negate(l, m->change, chunk_length(l, first));
    return rc == PCOLL_OK ? accumulator_give(m, m->window->rank, first) : rc;
}

int settle_dead(struct gossip_memory *m, uint32_t dead)
{
    const struct layout *l = &m->layout;
    CHECK(dead < l->ranks && dead != m->window->rank);
    uint64_t deltas;
    int rc = PCOLL_OK;
    for (size_t first = 0; first < l->count && rc == PCOLL_OK; first += l->chunk)
        rc = move_chunk(m, dead, first);
    if (rc == PCOLL_OK)
        rc = accumulator_adopt(m, dead, &deltas);
    if (rc == PCOLL_OK)
        m->stats.orphaned += deltas;
    return rc;
}
