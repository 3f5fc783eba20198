/* SPDX-License-Identifier: Apache-2.0 */
/* The register; see register.h. */
#include "gossip/register.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/codec/quantize.h"

static void register_write_slot(struct gossip_memory *memory, char *slot, const void *x,
                                const struct slot_header *header)
{
    const struct gossip_layout *layout = &memory->layout;
    memcpy(slot, header, sizeof *header);
    for (size_t first = 0; first < layout->count; first += layout->chunk) {
        size_t block = first / LATTICE_BLOCK;
        char *high = slot + layout->high_at + block * layout->high;
        INTERLEAVE();
        if (layout->bits)
            slot_encode(memory, x, NULL, first, header->seed, false,
                        (struct gossip_block_note *)(slot + layout->notes_at) + block,
                        slot + layout->low_at + block * layout->low,
                        layout->high ? high : NULL);
        memory_copy_past_cache(slot + layout->raw_at + first * layout->element,
                               gossip_element_at(layout, x, first),
                               gossip_chunk_length(layout, first) * layout->element);
    }
}

int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    int64_t word;
    uint64_t last;
    int rc = register_version(memory, window->rank, &last);
    if (rc != PCOLL_OK)
        return rc;
    struct slot_header header = {
        .number = last + 1, .seed = gossip_next_seed(memory), .source = window->rank};
    char *slot = window->memory + gossip_register_slot_at(layout, header.number);
    register_write_slot(memory, slot, x, &header);
    MOMENT("version written");
    rc = window->ops->sync(window)
                 ?: window->ops->fetch_add(window, window->rank,
                                           gossip_word_at(WORD_VERSION), 1, &word)
                 ?: window->ops->sync(window);
    *version = header.number;
    memory->stats.publishes++;
    return rc;
}

/* Set *version to the newest version, which is at least as new. */
static int register_renew_version(struct gossip_memory *memory, uint32_t peer,
                                  uint64_t *version)
{
    int64_t word = 0;
    int rc =
        window_read_word(memory->window, peer, gossip_word_at(WORD_VERSION), &word);
    return rc ?: gossip_decode_version(peer, word, *version, version);
}

int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version)
{
    *version = 0;
    return register_renew_version(memory, peer, version);
}

int register_read_chunk(struct gossip_memory *memory, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole)
{
    CHECK(*version && first < memory->layout.count &&
          first % memory->layout.chunk == 0);
    *whole = false;
    for (int i = 0; i < MAX_TRIES && !*whole; i++) {
        struct gossip_fetched fetched;
        uint64_t before = *version;
        int rc = slot_fetch_chunk(memory, peer,
                                  gossip_register_slot_at(&memory->layout, before),
                                  first, key, memory->theirs, &fetched)
                     ?: register_renew_version(memory, peer, version);
        if (rc != PCOLL_OK)
            return rc;
        *whole = *version - before <= 1;
        memory->stats.fallbacks += *whole ? fetched.fallbacks : 0;
        memory->stats.retries += !*whole;
    }
    memory->stats.torn += !*whole;
    return PCOLL_OK;
}

/* Read all chunks, as long as `version` is not overwritten. *now: the newest version. */
static int register_read_version(struct gossip_memory *memory, uint32_t peer,
                                 const void *key, void *out, uint64_t version,
                                 uint64_t *now)
{
    const struct gossip_layout *layout = &memory->layout;
    *now = version;
    for (size_t first = 0; first < layout->count && *now - version <= 1;
         first += layout->chunk) {
        struct gossip_fetched fetched;
        int rc =
            slot_fetch_elements(memory, peer, gossip_register_slot_at(layout, version),
                                first, key, out, &fetched);
        if (rc == PCOLL_OK)
            rc = register_renew_version(memory, peer, now);
        if (rc != PCOLL_OK)
            return rc;
        memory->stats.fallbacks += fetched.fallbacks;
    }
    return PCOLL_OK;
}

int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version)
{
    int rc = register_version(memory, peer, version);
    if (rc == PCOLL_OK && !*version)
        rc = fail(PCOLL_EEMPTY, "rank %u has not published anything yet", peer);
    for (int i = 0; i < MAX_TRIES && rc == PCOLL_OK; i++) {
        uint64_t now;
        rc = register_read_version(memory, peer, key, out, *version, &now);
        bool whole = rc == PCOLL_OK && now - *version <= 1,
             other = peer != memory->window->rank;
        memory->stats.reads += whole && other;
        if (whole && other && key && memory->layout.bits)
            slot_observe(memory, key, out, memory->layout.dtype, 0,
                         memory->layout.count);
        if (rc != PCOLL_OK || whole)
            return rc;
        memory->stats.retries++;
        *version = now;
    }
    memory->stats.torn += rc == PCOLL_OK;
    return rc
               ?: fail(PCOLL_EAGAIN, "rank %u publishes faster than it can be read",
                       peer);
}

/* Encoding, decoding and fetching models. */

/* Each observation keeps this part of an earlier, larger distance. */
static const float distance_decay = 0.9f;

void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                 size_t first, uint64_t seed, bool exact,
                 struct gossip_block_note *notes, char *low, char *high)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(layout->bits && first % LATTICE_BLOCK == 0);
    size_t end = first + gossip_chunk_length(layout, first);
    for (size_t i = 0; first + i * LATTICE_BLOCK < end; i++) {
        size_t at = first + i * LATTICE_BLOCK, length = gossip_block_length(layout, at);
        uint64_t block_seed = splitmix_at(seed, at / LATTICE_BLOCK);
        struct gossip_block_note *note = &notes[i];
        const float *ours = lattice_load(layout->dtype, memory->rotate,
                                         gossip_element_at(layout, x, at), length,
                                         block_seed, memory->block);
        const float *theirs = key ? lattice_load(layout->dtype, memory->rotate,
                                                 gossip_element_at(layout, key, at),
                                                 length, block_seed, memory->key)
                                  : NULL;
        float distance, magnitude, seen = memory->distances[at / LATTICE_BLOCK];
        lattice_distance(ours, theirs, length, &distance, &magnitude);
        if (!exact)
            distance = (float)memory->margin * seen;
        float step = exact || seen >= 0 ? lattice_step(distance, magnitude,
                                                       layout->bits, memory->rotate)
                                        : NAN;
        *note = (struct gossip_block_note){.step = step, .coded = !isnan(step)};
        if (note->coded)
            note->hash = lattice_encode(ours, length, step, block_seed, layout->bits,
                                        low + i * layout->low,
                                        high ? high + i * layout->high : NULL);
    }
}

bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                 uint64_t seed, const struct gossip_block_note *note, const void *low,
                 const void *high, const void *key, void *out)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(block < layout->blocks && length <= LATTICE_BLOCK);
    uint64_t block_seed = splitmix_at(seed, block);
    if (!gossip_note_fits(note))
        return false;
    const float *theirs = lattice_load(layout->dtype, memory->rotate, key, length,
                                       block_seed, memory->key);
    if (!lattice_decode(memory->block, theirs, length, note->step, block_seed,
                        layout->bits, low, high, note->hash))
        return false;
    if (memory->rotate)
        lattice_rotate_back(memory->block, length, block_seed);
    lattice_form_of(layout->held).narrow(out, memory->block, length);
    return true;
}

void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  int dtype, size_t first, size_t length)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t element = lattice_form_of(dtype).size;
    for (size_t i = 0; i < length; i += LATTICE_BLOCK) {
        size_t n = gossip_block_length(layout, first + i);
        float distance, magnitude;
        lattice_distance(
            lattice_load(layout->dtype, memory->rotate, gossip_element_at(layout, x, i),
                         n, memory->seed, memory->key),
            lattice_load(dtype, memory->rotate, (const char *)theirs + i * element, n,
                         memory->seed, memory->block),
            n, &distance, &magnitude);
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
    return slot_get(memory, peer, at, into, bytes)
               ?: memory->window->ops->complete(memory->window, peer);
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

/* Decode block number i of the chunk that was fetched, which begins at element `first` of the
 * model. Fetch more of it if its low plane is not enough. */
static int slot_fetch_block(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                            size_t first, size_t i, uint64_t seed, const void *key,
                            void *out, struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    const struct gossip_block_note *note = &memory->notes[i];
    const char *low = memory->planes + i * layout->low;
    size_t block = first / LATTICE_BLOCK, length = gossip_block_length(layout, first);
    bool published = slot_at < layout->queue_at;
    char high[LATTICE_BLOCK * 2];
    if (slot_decode(memory, block, length, seed, note, low, NULL, key, out))
        return PCOLL_OK;
    fetched->fallbacks++;
    if (note->coded == 1 && layout->high && published) {
        int rc =
            slot_get_now(memory, peer, slot_at + layout->high_at + block * layout->high,
                         high, layout->high);
        if (rc != PCOLL_OK ||
            slot_decode(memory, block, length, seed, note, low, high, key, out))
            return rc;
    }
    if (note->coded == 0 || published)
        return slot_fetch_raw(memory, peer, slot_at, first, length, out);
    fetched->failures++;
    memset(out, 0, length * layout->sum);
    return PCOLL_OK;
}

int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                     size_t first, const void *key, void *out,
                     struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    struct slot_header header;
    CHECK(peer < memory->layout.ranks && first < memory->layout.count);
    *fetched = (struct gossip_fetched){0};
    if (!layout->bits)
        return slot_fetch_raw(memory, peer, slot_at, first,
                              gossip_chunk_length(layout, first), out);
    size_t block = first / LATTICE_BLOCK, blocks = gossip_chunk_blocks(layout, first);
    int rc = slot_get(memory, peer, slot_at, &header, sizeof header)
                 ?: slot_get(memory, peer,
                             slot_at + layout->notes_at + block * sizeof *memory->notes,
                             memory->notes, blocks * sizeof *memory->notes)
                 ?: slot_get_now(memory, peer,
                                 slot_at + layout->low_at + block * layout->low,
                                 memory->planes, blocks * layout->low);
    for (size_t i = 0; i < blocks && rc == PCOLL_OK; i++) {
        size_t at = i * LATTICE_BLOCK;
        rc = slot_fetch_block(memory, peer, slot_at, first + at, i, header.seed,
                              key ? gossip_element_at(layout, key, at) : NULL,
                              (char *)out + at * layout->sum, fetched);
    }
    return rc;
}

int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                        size_t first, const void *key, void *model,
                        struct gossip_fetched *fetched)
{
    const struct gossip_layout *layout = &memory->layout;
    void *place = gossip_element_at(layout, model, first),
         *out = layout->dtype == layout->held ? place : memory->theirs;
    const void *own = key ? gossip_element_at(layout, key, first) : NULL;
    int rc = slot_fetch_chunk(memory, peer, slot_at, first, own, out, fetched);
    if (rc == PCOLL_OK && out != place)
        gossip_narrow(layout, place, out, gossip_chunk_length(layout, first));
    return rc;
}
