/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding, decoding and fetching models; see slot.h. */
#include "gossip/slot.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/codec/quantize.h"

/* Each observation keeps this part of an earlier, larger distance. */
static const float distance_decay = 0.9f;

static void slot_to_float(const struct gossip_layout *layout, float *out,
                          const void *elements, size_t count)
{
    if (layout->dtype != PCOLL_FLOAT64) {
        gossip_widen(layout, out, elements, count);
        return;
    }
    const double *in = elements;
    for (size_t i = 0; i < count; i++)
        out[i] = (float)in[i];
}

static void slot_from_float(const struct gossip_layout *layout, void *held,
                            const float *in, size_t count)
{
    double *out = held;
    if (layout->held == PCOLL_FLOAT64)
        for (size_t i = 0; i < count; i++)
            out[i] = in[i];
    else
        memcpy(held, in, count * sizeof *in);
}

/* Bring a block into the form that is encoded: float32, rotated if that is asked
 * for. */
static void slot_load_block(const struct gossip_memory *memory,
                            const struct gossip_layout *layout, float *out,
                            const void *elements, size_t count, uint64_t seed)
{
    slot_to_float(layout, out, elements, count);
    if (memory->rotate)
        lattice_rotate(out, out, count, seed);
}

/* Return the step for the block in memory->block, NAN if none is known. */
static float slot_step(const struct gossip_memory *memory, size_t block, size_t length,
                       const float *key, bool exact)
{
    float distance, magnitude;
    lattice_distance(memory->block, key, length, &distance, &magnitude);
    if (!exact) {
        distance = (float)memory->margin * memory->distances[block];
        if (!(memory->distances[block] >= 0))
            return NAN;
    }
    return lattice_step(distance, magnitude, memory->layout.bits, memory->rotate);
}

void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                 size_t first, uint64_t seed, bool exact,
                 const struct gossip_planes *to)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(layout->bits && first % LATTICE_BLOCK == 0);
    size_t end = first + gossip_chunk_length(layout, first);
    for (size_t i = 0; first + i * LATTICE_BLOCK < end; i++) {
        size_t at = first + i * LATTICE_BLOCK, length = gossip_block_length(layout, at);
        uint64_t block_seed = lattice_block_seed(seed, at / LATTICE_BLOCK);
        struct gossip_block_note *note = &to->notes[i];
        slot_load_block(memory, layout, memory->block, gossip_element_at(layout, x, at),
                        length, block_seed);
        if (key)
            slot_load_block(memory, layout, memory->key,
                            gossip_element_at(layout, key, at), length, block_seed);
        float step = slot_step(memory, at / LATTICE_BLOCK, length,
                               key ? memory->key : NULL, exact);
        *note = (struct gossip_block_note){.step = step, .coded = !isnan(step)};
        if (note->coded)
            note->hash =
                lattice_encode(memory->block, length, step, block_seed, layout->bits,
                               (char *)to->low + i * layout->low,
                               to->high ? (char *)to->high + i * layout->high : NULL);
    }
}

bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                 uint64_t seed, const struct gossip_block_note *note, const void *low,
                 const void *high, const void *key, void *out)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(block < layout->blocks && length <= LATTICE_BLOCK);
    uint64_t block_seed = lattice_block_seed(seed, block);
    if (!gossip_note_fits(note))
        return false;
    if (key)
        slot_load_block(memory, layout, memory->key, key, length, block_seed);
    else
        memset(memory->key, 0, length * sizeof *memory->key);
    if (!lattice_decode(memory->key, memory->key, length, note->step, block_seed,
                        layout->bits, low, high, note->hash))
        return false;
    if (memory->rotate)
        lattice_rotate_back(memory->key, length, block_seed);
    slot_from_float(layout, out, memory->key, length);
    return true;
}

void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  size_t first, size_t length)
{
    const struct gossip_layout *layout = &memory->layout;
    struct gossip_layout held = *layout;
    held.dtype = layout->held;
    held.element = layout->sum;
    for (size_t i = 0; i < length; i += LATTICE_BLOCK) {
        size_t n = gossip_block_length(layout, first + i);
        float distance, magnitude;
        slot_load_block(memory, layout, memory->key, gossip_element_at(layout, x, i), n,
                        memory->seed);
        slot_load_block(memory, &held, memory->block,
                        (const char *)theirs + i * layout->sum, n, memory->seed);
        lattice_distance(memory->key, memory->block, n, &distance, &magnitude);
        float *seen = &memory->distances[(first + i) / LATTICE_BLOCK];
        float kept = *seen * distance_decay;
        *seen = isfinite(distance) && distance > kept ? distance : kept;
    }
}

static int slot_get(struct gossip_memory *memory, uint32_t peer, size_t at, void *into,
                    size_t bytes)
{
    struct window *window = memory->window;
    memory->stats.bytes_read += bytes;
    return window->ops->get(window, peer, at, into, bytes);
}

static int slot_get_now(struct gossip_memory *memory, uint32_t peer, size_t at,
                        void *into, size_t bytes)
{
    int rc = slot_get(memory, peer, at, into, bytes);
    return rc == PCOLL_OK ? memory->window->ops->complete(memory->window, peer) : rc;
}

/* Fetch `length` raw elements from element `first` on. */
static int slot_fetch_raw(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                          size_t first, size_t length, void *out)
{
    const struct gossip_layout *layout = &memory->layout;
    bool as_is = layout->dtype == layout->held;
    int rc =
        slot_get_now(memory, peer, slot_at + layout->raw_at + first * layout->element,
                     as_is ? out : memory->fetched, length * layout->element);
    if (rc == PCOLL_OK && !as_is)
        gossip_widen(layout, out, memory->fetched, length);
    return rc;
}

/* A block of the chunk that is being fetched. */
struct slot_block {
    size_t block, length;
    const struct gossip_block_note *note;
    const char *low;
    const void *key;
    char *out;
};

/* Fetch more of a block whose low plane was not enough. */
static int slot_fetch_fallback(struct gossip_memory *memory, uint32_t peer,
                               size_t slot_at, const struct slot_header *header,
                               const struct slot_block *p,
                               struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    char high[LATTICE_BLOCK * 2];
    fetched->fallbacks++;
    if (p->note->coded == 1 && layout->high && (header->planes & PLANE_HIGH)) {
        int rc = slot_get_now(memory, peer,
                              slot_at + layout->high_at + p->block * layout->high, high,
                              layout->high);
        if (rc != PCOLL_OK || slot_decode(memory, p->block, p->length, header->seed,
                                          p->note, p->low, high, p->key, p->out))
            return rc;
    }
    if (p->note->coded == 0 || (header->planes & PLANE_RAW))
        return slot_fetch_raw(memory, peer, slot_at, p->block * LATTICE_BLOCK,
                              p->length, p->out);
    fetched->failures++;
    memset(p->out, 0, p->length * layout->sum);
    return PCOLL_OK;
}

static int slot_fetch_coded(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                            size_t first, struct slot_header *header)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t block = first / LATTICE_BLOCK, blocks = gossip_chunk_blocks(layout, first);
    int rc = slot_get(memory, peer, slot_at, header, sizeof *header);
    if (rc == PCOLL_OK)
        rc = slot_get(memory, peer,
                      slot_at + layout->notes_at + block * sizeof *memory->notes,
                      memory->notes, blocks * sizeof *memory->notes);
    if (rc == PCOLL_OK)
        rc = slot_get_now(memory, peer, slot_at + layout->low_at + block * layout->low,
                          memory->planes, blocks * layout->low);
    return rc;
}

static int slot_decode_blocks(struct gossip_memory *memory, uint32_t peer,
                              size_t slot_at, size_t first,
                              const struct slot_header *header, const void *key,
                              void *out, struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t end = gossip_chunk_length(layout, first);
    int rc = PCOLL_OK;
    for (size_t at = 0, i = 0; at < end && rc == PCOLL_OK; at += LATTICE_BLOCK, i++) {
        struct slot_block p = {.block = first / LATTICE_BLOCK + i,
                               .length = gossip_block_length(layout, first + at),
                               .note = &memory->notes[i],
                               .low = memory->planes + i * layout->low,
                               .key = key ? gossip_element_at(layout, key, at) : NULL,
                               .out = (char *)out + at * layout->sum};
        if (!slot_decode(memory, p.block, p.length, header->seed, p.note, p.low, NULL,
                         p.key, p.out))
            rc = slot_fetch_fallback(memory, peer, slot_at, header, &p, fetched);
    }
    return rc;
}

int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                     size_t first, const void *key, void *out,
                     struct gossip_fetched *fetched)
{
    struct slot_header header;
    CHECK(peer < memory->layout.ranks && first < memory->layout.count);
    *fetched = (struct gossip_fetched){0};
    if (!memory->layout.bits)
        return slot_fetch_raw(memory, peer, slot_at, first,
                              gossip_chunk_length(&memory->layout, first), out);
    int rc = slot_fetch_coded(memory, peer, slot_at, first, &header);
    return rc == PCOLL_OK ? slot_decode_blocks(memory, peer, slot_at, first, &header,
                                               key, out, fetched)
                          : rc;
}

int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                        size_t first, const void *key, void *model,
                        struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    void *place = gossip_place_at(layout, model, first),
         *out = layout->dtype == layout->held ? place : memory->theirs;
    const void *own = key ? gossip_element_at(layout, key, first) : NULL;
    int rc = slot_fetch_chunk(memory, peer, slot_at, first, own, out, fetched);
    if (rc == PCOLL_OK && out != place)
        gossip_narrow(layout, place, out, gossip_chunk_length(layout, first));
    return rc;
}
