/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/gossip_slot.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/codec/quantize.h"

/* A distance that is not seen again is forgotten by and by. */
static const float memory_of_distances = 0.9f;

static void to_float(const struct layout *l, float *out, const void *elements,
                     size_t count)
{
    if (l->dtype != PCOLL_FLOAT64) {
        gossip_widen(l, out, elements, count);
        return;
    }
    const double *in = elements;
    for (size_t i = 0; i < count; i++)
        out[i] = (float)in[i];
}

static void from_float(const struct layout *l, void *held, const float *in,
                       size_t count)
{
    double *out = held;
    if (l->held == PCOLL_FLOAT64)
        for (size_t i = 0; i < count; i++)
            out[i] = in[i];
    else
        memcpy(held, in, count * sizeof *in);
}

/* One block in the form in which it is encoded. */
static void load(const struct gossip_memory *m, const struct layout *l, float *out,
                 const void *elements, size_t count, uint64_t seed)
{
    to_float(l, out, elements, count);
    if (m->rotate)
        lattice_rotate(out, count, seed);
}

static float step_for(const struct gossip_memory *m, size_t block, size_t length,
                      const float *key, bool exact)
{
    float distance, magnitude;
    lattice_distance(m->block, key, length, &distance, &magnitude);
    if (!exact) {
        distance = (float)m->margin * m->distances[block];
        if (!(m->distances[block] >= 0))
            return NAN;
    }
    return lattice_step(distance, magnitude, m->layout.bits, m->rotate);
}

void coded_write(struct gossip_memory *m, const void *x, const void *key, size_t first,
                 uint64_t seed, bool exact, const struct planes *to)
{
    const struct layout *l = &m->layout;
    CHECK(l->bits && first % LATTICE_BLOCK == 0);
    size_t end = first + chunk_length(l, first);
    for (size_t i = 0; first + i * LATTICE_BLOCK < end; i++) {
        size_t at = first + i * LATTICE_BLOCK, length = block_length(l, at);
        uint64_t block_seed = lattice_block_seed(seed, at / LATTICE_BLOCK);
        struct block_note *note = &to->notes[i];
        load(m, l, m->block, element_at(l, x, at), length, block_seed);
        if (key)
            load(m, l, m->key, element_at(l, key, at), length, block_seed);
        float step =
            step_for(m, at / LATTICE_BLOCK, length, key ? m->key : NULL, exact);
        *note = (struct block_note){.step = step, .coded = !isnan(step)};
        if (note->coded)
            note->hash =
                lattice_encode(m->block, length, step, block_seed, l->bits,
                               (char *)to->low + i * l->low,
                               to->high ? (char *)to->high + i * l->high : NULL);
    }
}

bool coded_read(struct gossip_memory *m, size_t block, size_t length, uint64_t seed,
                const struct block_note *note, const void *low, const void *high,
                const void *key, void *out)
{
    const struct layout *l = &m->layout;
    CHECK(block < l->blocks && length <= LATTICE_BLOCK);
    uint64_t block_seed = lattice_block_seed(seed, block);
    if (!gossip_note_fits(note))
        return false;
    if (key)
        load(m, l, m->key, key, length, block_seed);
    else
        memset(m->key, 0, length * sizeof *m->key);
    if (!lattice_decode(m->key, m->key, length, note->step, block_seed, l->bits, low,
                        high, note->hash))
        return false;
    if (m->rotate)
        lattice_rotate_back(m->key, length, block_seed);
    from_float(l, out, m->key, length);
    return true;
}

void coded_observe(struct gossip_memory *m, const void *x, const void *theirs,
                   size_t first, size_t length)
{
    const struct layout *l = &m->layout;
    struct layout held = *l;
    held.dtype = l->held;
    held.element = l->sum;
    for (size_t i = 0; i < length; i += LATTICE_BLOCK) {
        size_t n = block_length(l, first + i);
        float distance, magnitude;
        load(m, l, m->key, element_at(l, x, i), n, m->seed);
        load(m, &held, m->block, (const char *)theirs + i * l->sum, n, m->seed);
        lattice_distance(m->key, m->block, n, &distance, &magnitude);
        float *seen = &m->distances[(first + i) / LATTICE_BLOCK];
        float kept = *seen * memory_of_distances;
        *seen = isfinite(distance) && distance > kept ? distance : kept;
    }
}

static int get(struct gossip_memory *m, uint32_t peer, size_t at, void *into,
               size_t bytes)
{
    struct window *w = m->window;
    m->stats.bytes_read += bytes;
    return w->ops->get(w, peer, at, into, bytes);
}

static int get_now(struct gossip_memory *m, uint32_t peer, size_t at, void *into,
                   size_t bytes)
{
    int rc = get(m, peer, at, into, bytes);
    return rc == PCOLL_OK ? m->window->ops->complete(m->window, peer) : rc;
}

/* `length` elements from this one on, as they are. */
static int fetch_raw(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                     size_t first, size_t length, void *out)
{
    const struct layout *l = &m->layout;
    bool as_is = l->dtype == l->held;
    int rc = get_now(m, peer, slot_at + l->raw_at + first * l->element,
                     as_is ? out : m->fetched, length * l->element);
    if (rc == PCOLL_OK && !as_is)
        gossip_widen(l, out, m->fetched, length);
    return rc;
}

/* A block of a chunk that is being fetched. */
struct part {
    size_t block, length;
    const struct block_note *note;
    const char *low;
    const void *key;
    char *out;
};

/* One that its low plane was not enough for. */
static int fetch_more(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                      const struct slot_header *header, const struct part *p,
                      struct fetched *fetched)
{
    const struct layout *l = &m->layout;
    char high[LATTICE_BLOCK * 2];
    fetched->fallbacks++;
    if (p->note->coded == 1 && l->high && (header->planes & PLANE_HIGH)) {
        int rc =
            get_now(m, peer, slot_at + l->high_at + p->block * l->high, high, l->high);
        if (rc != PCOLL_OK || coded_read(m, p->block, p->length, header->seed, p->note,
                                         p->low, high, p->key, p->out))
            return rc;
    }
    if (p->note->coded == 0 || (header->planes & PLANE_RAW))
        return fetch_raw(m, peer, slot_at, p->block * LATTICE_BLOCK, p->length, p->out);
    fetched->failures++;
    memset(p->out, 0, p->length * l->sum);
    return PCOLL_OK;
}

static int fetch_coded(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                       size_t first, struct slot_header *header)
{
    const struct layout *l = &m->layout;
    size_t block = first / LATTICE_BLOCK, blocks = chunk_blocks(l, first);
    int rc = get(m, peer, slot_at, header, sizeof *header);
    if (rc == PCOLL_OK)
        rc = get(m, peer, slot_at + l->notes_at + block * sizeof *m->notes, m->notes,
                 blocks * sizeof *m->notes);
    if (rc == PCOLL_OK)
        rc = get_now(m, peer, slot_at + l->low_at + block * l->low, m->planes,
                     blocks * l->low);
    return rc;
}

static int decode_blocks(struct gossip_memory *m, uint32_t peer, size_t slot_at,
                         size_t first, const struct slot_header *header,
                         const void *key, void *out, struct fetched *fetched)
{
    const struct layout *l = &m->layout;
    size_t end = chunk_length(l, first);
    int rc = PCOLL_OK;
    for (size_t at = 0, i = 0; at < end && rc == PCOLL_OK; at += LATTICE_BLOCK, i++) {
        struct part p = {.block = first / LATTICE_BLOCK + i,
                         .length = block_length(l, first + at),
                         .note = &m->notes[i],
                         .low = m->planes + i * l->low,
                         .key = key ? element_at(l, key, at) : NULL,
                         .out = (char *)out + at * l->sum};
        if (!coded_read(m, p.block, p.length, header->seed, p.note, p.low, NULL, p.key,
                        p.out))
            rc = fetch_more(m, peer, slot_at, header, &p, fetched);
    }
    return rc;
}

int fetch_chunk(struct gossip_memory *m, uint32_t peer, size_t slot_at, size_t first,
                const void *key, void *out, struct fetched *fetched)
{
    struct slot_header header;
    CHECK(peer < m->layout.ranks && first < m->layout.count);
    *fetched = (struct fetched){0};
    if (!m->layout.bits)
        return fetch_raw(m, peer, slot_at, first, chunk_length(&m->layout, first), out);
    int rc = fetch_coded(m, peer, slot_at, first, &header);
    return rc == PCOLL_OK
               ? decode_blocks(m, peer, slot_at, first, &header, key, out, fetched)
               : rc;
}

int fetch_elements(struct gossip_memory *m, uint32_t peer, size_t slot_at, size_t first,
                   const void *key, void *model, struct fetched *fetched)
{
    const struct layout *l = &m->layout;
    void *place = place_at(l, model, first),
         *out = l->dtype == l->held ? place : m->theirs;
    const void *own = key ? element_at(l, key, first) : NULL;
    int rc = fetch_chunk(m, peer, slot_at, first, own, out, fetched);
    if (rc == PCOLL_OK && out != place)
        gossip_narrow(l, place, out, chunk_length(l, first));
    return rc;
}
