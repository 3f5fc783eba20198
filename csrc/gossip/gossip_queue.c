/* SPDX-License-Identifier: Apache-2.0 */
/* The queue; see gossip_queue.h. */
#include "gossip/gossip_queue.h"

#include <string.h>

#include "kernels/codec/quantize.h"
#include "gossip/gossip_slot.h"

#include "base/check.h"
#include "base/moment.h"

static int swap(struct gossip_memory *m, uint32_t peer, uint32_t slot, int64_t from,
                int64_t to, int64_t *found)
{
    CHECK(peer < m->layout.ranks && slot < m->layout.queue_slots);
    return m->window->ops->compare_swap(m->window, peer, queue_word_at(slot), from, to,
                                        found);
}

/* The word, and the state that it says. */
static int read_state(struct gossip_memory *m, uint32_t peer, uint32_t slot,
                      int64_t *word, enum slot_state *state)
{
    int rc = swap(m, peer, slot, -1, -1, word); /* no state is below 0 */
    return rc == PCOLL_OK ? gossip_decode_state(peer, *word, state) : rc;
}

/* *slot: queue_slots if all are taken. */
static int claim(struct gossip_memory *m, uint32_t peer, uint32_t *slot, int64_t *word)
{
    uint32_t slots = m->layout.queue_slots;
    for (uint32_t i = 0; i < slots; i++) {
        int64_t found;
        enum slot_state state;
        *slot = (m->window->rank + i) % slots; /* others begin elsewhere */
        int rc = read_state(m, peer, *slot, word, &state);
        if (rc != PCOLL_OK)
            return rc;
        if (state != FREE)
            continue;
        rc = swap(m, peer, *slot, *word, *word + WRITING, &found);
        if (rc != PCOLL_OK || found == *word)
            return rc;
    }
    *slot = slots;
    return PCOLL_OK;
}

static int put(struct gossip_memory *m, uint32_t peer, size_t at, const void *from,
               size_t bytes)
{
    m->stats.bytes_written += bytes;
    return m->window->ops->put(m->window, peer, at, from, bytes);
}

static int put_raw(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                   const void *x, size_t first, size_t length)
{
    const struct layout *l = &m->layout;
    return put(m, peer, slot_at + l->raw_at + first * l->element,
               element_at(l, x, first), length * l->element);
}

/* The blocks of a chunk that the codec cannot hold. */
static int put_uncoded(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                       const void *x, size_t first)
{
    size_t end = first + chunk_length(&m->layout, first);
    int rc = PCOLL_OK;
    for (size_t i = 0, at = first; at < end && rc == PCOLL_OK; i++, at += LATTICE_BLOCK)
        if (!m->notes[i].coded)
            rc = put_raw(m, peer, slot_at, x, at, block_length(&m->layout, at));
    return rc;
}

static int put_coded(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                     const void *x, const void *key, size_t first, uint64_t seed)
{
    const struct layout *l = &m->layout;
    size_t block = first / LATTICE_BLOCK, blocks = chunk_blocks(l, first);
    struct planes to = {.notes = m->notes, .low = m->planes};
    coded_write(m, x, key, first, seed, true, &to);
    int rc = put(m, peer, slot_at + l->notes_at + block * sizeof *m->notes, m->notes,
                 blocks * sizeof *m->notes);
    if (rc == PCOLL_OK)
        rc = put(m, peer, slot_at + l->low_at + block * l->low, m->planes,
                 blocks * l->low);
    return rc == PCOLL_OK ? put_uncoded(m, peer, slot_at, x, first) : rc;
}

/* What the receiver makes of the chunk that has just been encoded. */
static void decode_own(struct gossip_memory *m, const void *x, const void *key,
                       size_t first, uint64_t seed, void *sent)
{
    const struct layout *l = &m->layout;
    size_t end = first + chunk_length(l, first);
    for (size_t i = 0, at = first; at < end; i++, at += LATTICE_BLOCK) {
        size_t length = block_length(l, at);
        if (!coded_read(m, at / LATTICE_BLOCK, length, seed, &m->notes[i],
                        m->planes + i * l->low, NULL,
                        key ? element_at(l, key, at) : NULL, m->ours))
            gossip_widen(l, m->ours, element_at(l, x, at), length);
        gossip_narrow(l, place_at(l, sent, at), m->ours, length);
    }
}

static int put_chunk(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                     const void *x, const void *key, size_t first, uint64_t seed,
                     void *sent)
{
    const struct layout *l = &m->layout;
    size_t length = chunk_length(l, first);
    int rc = l->bits ? put_coded(m, peer, slot_at, x, key, first, seed)
                     : put_raw(m, peer, slot_at, x, first, length);
    if (sent && l->bits)
        decode_own(m, x, key, first, seed, sent);
    else if (sent)
        memmove(place_at(l, sent, first), element_at(l, x, first), length * l->element);
    return rc == PCOLL_OK ? m->window->ops->complete(m->window, peer) : rc;
}

static int write_message(struct gossip_memory *m, uint32_t peer, uint32_t slot,
                         const void *x, const void *key, void *sent)
{
    const struct layout *l = &m->layout;
    struct window *w = m->window;
    int64_t ticket;
    int rc = w->ops->fetch_add(w, peer, word_at(WORD_TICKETS), 1, &ticket);
    struct slot_header header = {.number = (uint64_t)ticket,
                                 .seed = gossip_next_seed(m),
                                 .source = w->rank,
                                 .planes = l->bits ? PLANE_LOW : PLANE_RAW};
    if (rc == PCOLL_OK)
        rc = put(m, peer, queue_slot_at(l, slot), &header, sizeof header);
    for (size_t first = 0; first < l->count && rc == PCOLL_OK; first += l->chunk)
        rc = put_chunk(m, peer, queue_slot_at(l, slot), x, key, first, header.seed,
                       sent);
    return rc == PCOLL_OK ? w->ops->flush(w, peer) : rc;
}

int gossip_push(struct gossip_memory *m, uint32_t peer, const void *x, const void *key,
                void *sent, bool *pushed)
{
    uint32_t slot;
    int64_t state, found;
    int rc = claim(m, peer, &slot, &state);
    *pushed = rc == PCOLL_OK && slot < m->layout.queue_slots;
    if (rc == PCOLL_OK && !*pushed)
        m->stats.queue_full++;
    if (!*pushed)
        return rc;
    MOMENT("slot claimed");
    rc = write_message(m, peer, slot, x, key, sent);
    MOMENT("message written");
    if (rc == PCOLL_OK)
        rc = swap(m, peer, slot, state + WRITING, state + FULL, &found);
    if (rc == PCOLL_OK && found != state + WRITING) /* the slot was this rank's */
        rc = gossip_refuse(peer, "a state of its queue", found);
    m->stats.pushed++;
    return rc;
}

/* A FULL slot of a queue. */
struct message {
    uint32_t slot;
    int64_t state;
    struct slot_header header;
    bool fits; /* the header can be one */
};

/* The oldest or the newest; *found: false if none is FULL. */
static int choose(struct gossip_memory *m, uint32_t peer, bool newest,
                  struct message *best, bool *found)
{
    struct window *w = m->window;
    *found = false;
    for (uint32_t slot = 0; slot < m->layout.queue_slots; slot++) {
        struct message next = {.slot = slot};
        enum slot_state state;
        int rc = read_state(m, peer, slot, &next.state, &state);
        if (rc == PCOLL_OK && state == FULL)
            rc = w->ops->get(w, peer, queue_slot_at(&m->layout, slot), &next.header,
                             sizeof next.header);
        if (rc == PCOLL_OK)
            rc = w->ops->complete(w, peer);
        if (rc != PCOLL_OK)
            return rc;
        next.fits = gossip_header_fits(&m->layout, &next.header);
        if (state == FULL &&
            (!*found || (next.header.number > best->header.number) == newest)) {
            *best = next;
            *found = true;
        }
    }
    return PCOLL_OK;
}

/* Into out; *whole: every block decodes. */
static int read_message(struct gossip_memory *m, uint32_t peer,
                        const struct message *from, const void *key, void *out,
                        bool *whole)
{
    const struct layout *l = &m->layout;
    *whole = from->fits;
    for (size_t first = 0; first < l->count && *whole; first += l->chunk) {
        struct fetched fetched;
        int rc = fetch_elements(m, peer, queue_slot_at(l, from->slot), first, key, out,
                                &fetched);
        if (rc != PCOLL_OK)
            return rc;
        *whole = !fetched.failures;
    }
    return PCOLL_OK;
}

int gossip_take(struct gossip_memory *m, const void *key, void *out, uint32_t *source,
                bool *taken)
{
    uint32_t own = m->window->rank;
    *taken = false;
    for (uint32_t i = 0; i <= m->layout.queue_slots; i++) { /* others go on sending */
        struct message oldest;
        bool found, whole;
        int64_t before;
        int rc = choose(m, own, false, &oldest, &found);
        if (rc != PCOLL_OK || !found)
            return rc;
        rc = read_message(m, own, &oldest, key, out, &whole);
        if (rc == PCOLL_OK)
            rc = swap(m, own, oldest.slot, oldest.state, oldest.state - FULL + STATES,
                      &before);
        *source = oldest.header.source;
        *taken = rc == PCOLL_OK && whole;
        m->stats.decode_failures += !whole;
        if (rc != PCOLL_OK || *taken)
            return rc;
    }
    return PCOLL_OK;
}

int gossip_peek(struct gossip_memory *m, uint32_t peer, const void *key, void *out,
                uint32_t *source, bool *found)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        struct message newest;
        bool whole;
        int64_t word;
        enum slot_state state;
        int rc = choose(m, peer, true, &newest, found);
        if (rc != PCOLL_OK || !*found)
            return rc;
        rc = read_message(m, peer, &newest, key, out, &whole);
        if (rc == PCOLL_OK)
            rc = read_state(m, peer, newest.slot, &word, &state);
        if (rc != PCOLL_OK)
            return rc;
        *source = newest.header.source;
        *found = whole;
        if (word == newest.state) {
            m->stats.decode_failures += !whole;
            return PCOLL_OK;
        }
        m->stats.retries++;
    }
    *found = false;
    m->stats.torn++;
    return PCOLL_OK;
}

int queue_settle(struct gossip_memory *m)
{
    uint32_t own = m->window->rank;
    int rc = PCOLL_OK;
    for (uint32_t slot = 0; slot < m->layout.queue_slots && rc == PCOLL_OK; slot++) {
        int64_t word, found;
        enum slot_state state;
        rc = read_state(m, own, slot, &word, &state);
        if (rc == PCOLL_OK && state == WRITING)
            rc = swap(m, own, slot, word, word - WRITING + STATES, &found);
    }
    return rc;
}
