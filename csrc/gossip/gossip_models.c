/* SPDX-License-Identifier: Apache-2.0 */
/* Models in slots, the register, and the queue; see gossip.h. */
#include "gossip/gossip.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/codec/quantize.h"

/*
 * Models in slots, a chunk at a time: encoding, decoding and fetching. The codec
 * works on blocks of float32.
 *
 * Fetching with the codec reads the low plane first. If the key is too far away for a block, it
 * reads the block's high plane. If that fails as well, or if the block has no code, it reads the
 * raw elements. The owner may overwrite the slot meanwhile: the caller has to validate what was
 * fetched before it uses it.
 */

/* Numbers of blocks of a chunk. */
struct gossip_fetched {
    uint32_t fallbacks; /* needed more than their low plane */
    uint32_t failures;  /* could not be decoded, and became zeros */
};

/* Each observation keeps this part of an earlier, larger distance. */
static const float distance_decay = 0.9f;

/* Load a block of a model (NULL: zeros) as the codec sees it. */
static const float *slot_load(const struct gossip_memory *memory, const void *model,
                              size_t at, size_t length, uint64_t seed, float *room)
{
    const struct gossip_layout *layout = &memory->layout;
    return lattice_load(layout->dtype, memory->rotate,
                        model ? gossip_element_at(layout, model, at) : NULL, length,
                        seed, room);
}

/* Encode the chunk of x that begins at element `first`. exact: choose each block's step for a key
 * as far away as `key` is (NULL: zeros), so that the block is sure to decode with this key.
 * Otherwise choose it for keys as far away as peers were lately. A block for which no step is
 * known is noted as not coded. Notes and planes have the blocks of the chunk one after the other;
 * high: NULL if there is none. */
static void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                        size_t first, uint64_t seed, bool exact,
                        struct gossip_block_note *notes, char *low, char *high)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(layout->bits && first % LATTICE_BLOCK == 0);
    size_t end = first + gossip_chunk_length(layout, first);
    for (size_t i = 0, at = first; at < end; i++, at += LATTICE_BLOCK) {
        size_t length = gossip_block_length(layout, at);
        uint64_t block_seed = splitmix_at(seed, at / LATTICE_BLOCK);
        const float *ours = slot_load(memory, x, at, length, block_seed, memory->block);
        float distance, magnitude, seen = memory->distances[at / LATTICE_BLOCK];
        const float *theirs =
            key ? slot_load(memory, key, at, length, block_seed, memory->key) : NULL;
        lattice_distance(ours, theirs, length, &distance, &magnitude);
        if (!exact)
            distance = (float)memory->margin * seen;
        float step = exact || seen >= 0 ? lattice_step(distance, magnitude,
                                                       layout->bits, memory->rotate)
                                        : NAN;
        notes[i] = (struct gossip_block_note){.step = step, .coded = !isnan(step)};
        if (notes[i].coded)
            notes[i].hash = lattice_encode(ours, length, step, block_seed, layout->bits,
                                           low + i * layout->low,
                                           high ? high + i * layout->high : NULL);
    }
}

/* Decode block number `block` of the model, of `length` elements, into out (held dtype). key: the
 * same elements of the key (application's dtype; NULL: zeros). Return false if the block has no
 * code, if the key is too far away, or if the data are corrupted. */
static bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                        uint64_t seed, const struct gossip_block_note *note,
                        const void *low, const void *high, const void *key, void *out)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(block < layout->blocks && length <= LATTICE_BLOCK);
    uint64_t block_seed = splitmix_at(seed, block);
    if (note->coded != 1 || !(note->step >= 0 && isfinite(note->step)) ||
        !lattice_decode(
            memory->block, slot_load(memory, key, 0, length, block_seed, memory->key),
            length, note->step, block_seed, layout->bits, low, high, note->hash))
        return false;
    if (memory->rotate)
        lattice_rotate_back(memory->block, memory->block, length, block_seed);
    lattice_form_of(layout->held).narrow(out, memory->block, length);
    return true;
}

void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  int dtype, size_t first, size_t length)
{
    size_t element = lattice_form_of(dtype).size;
    for (size_t i = 0; i < length; i += LATTICE_BLOCK) {
        size_t n = gossip_block_length(&memory->layout, first + i);
        float distance, magnitude;
        lattice_distance(slot_load(memory, x, i, n, memory->seed, memory->key),
                         lattice_load(dtype, memory->rotate,
                                      (const char *)theirs + i * element, n,
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
    return window->ops->access(window, WINDOW_GET, peer, at, NULL, into, PCOLL_UINT8,
                               bytes);
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

/* Fetch a chunk of the slot at offset slot_at of the peer's window into out (held dtype). key: the
 * reader's elements of this chunk, or NULL. */
static int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
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

/* Fetch it to its place in a model (application's dtype). key: a whole model. */
static int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer,
                               size_t slot_at, size_t first, const void *key,
                               void *model, struct gossip_fetched *fetched)
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

/* The register. */

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
    uint64_t last = 0;
    int rc = register_version(memory, window->rank, &last);
    if (rc != PCOLL_OK)
        return rc;
    struct slot_header header = {.number = last + 1,
                                 .seed = splitmix_at(memory->seed, memory->messages++),
                                 .source = window->rank};
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

int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version)
{
    int64_t word = 0;
    int rc =
        window_read_word(memory->window, peer, gossip_word_at(WORD_VERSION), &word);
    return rc ?: gossip_decode_version(peer, word, *version, version);
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
                     ?: register_version(memory, peer, version);
        if (rc != PCOLL_OK)
            return rc;
        *whole = *version - before <= 1;
        memory->stats.fallbacks += *whole ? fetched.fallbacks : 0;
        memory->stats.retries += !*whole;
    }
    memory->stats.torn += !*whole;
    return PCOLL_OK;
}

int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version)
{
    const struct gossip_layout *layout = &memory->layout;
    bool other = peer != memory->window->rank;
    uint64_t newest = 0;
    int rc = register_version(memory, peer, &newest);
    if (rc == PCOLL_OK && !newest)
        rc = fail(PCOLL_EEMPTY, "rank %u has not published anything yet", peer);
    for (int i = 0; i < MAX_TRIES && rc == PCOLL_OK; i++) {
        size_t slot_at = gossip_register_slot_at(layout, *version = newest), first = 0;
        for (; first < layout->count && newest - *version <= 1 && rc == PCOLL_OK;
             first += layout->chunk) {
            struct gossip_fetched fetched;
            rc = slot_fetch_elements(memory, peer, slot_at, first, key, out, &fetched)
                     ?: register_version(memory, peer, &newest);
            memory->stats.fallbacks += fetched.fallbacks;
        }
        if (rc != PCOLL_OK)
            return rc;
        if (newest - *version <= 1) {
            memory->stats.reads += other;
            if (other && key && layout->bits)
                slot_observe(memory, key, out, layout->dtype, 0, layout->count);
            return PCOLL_OK;
        }
        memory->stats.retries++;
    }
    memory->stats.torn += rc == PCOLL_OK;
    return rc
               ?: fail(PCOLL_EAGAIN, "rank %u publishes faster than it can be read",
                       peer);
}

/* The queue. */

static int queue_swap(struct gossip_memory *memory, uint32_t peer, uint32_t slot,
                      int64_t from, int64_t to, int64_t *found)
{
    CHECK(peer < memory->layout.ranks && slot < memory->layout.queue_slots);
    return memory->window->ops->compare_swap(
        memory->window, peer, gossip_queue_word_at(slot), from, to, found);
}

/* Read the word of a slot, and decode its state. */
static int queue_read_state(struct gossip_memory *memory, uint32_t peer, uint32_t slot,
                            int64_t *word, enum slot_state *state)
{
    int rc = queue_swap(memory, peer, slot, -1, -1, word); /* no word is -1 */
    return rc ?: gossip_decode_state(peer, *word, state);
}

/* Claim a free slot. *slot: queue_slots if none is free. */
static int queue_claim(struct gossip_memory *memory, uint32_t peer, uint32_t *slot,
                       int64_t *word)
{
    uint32_t slots = memory->layout.queue_slots;
    for (uint32_t i = 0; i < slots; i++) {
        int64_t found;
        enum slot_state state;
        *slot = (memory->window->rank + i) % slots; /* other ranks begin elsewhere */
        int rc = queue_read_state(memory, peer, *slot, word, &state);
        if (rc != PCOLL_OK)
            return rc;
        if (state != SLOT_FREE)
            continue;
        rc = queue_swap(memory, peer, *slot, *word, *word + SLOT_WRITING, &found);
        if (rc != PCOLL_OK || found == *word)
            return rc;
    }
    *slot = slots;
    return PCOLL_OK;
}

static int queue_put(struct gossip_memory *memory, uint32_t peer, size_t at,
                     const void *from, size_t bytes)
{
    memory->stats.bytes_written += bytes;
    return memory->window->ops->access(memory->window, WINDOW_PUT, peer, at, from, NULL,
                                       PCOLL_UINT8, bytes);
}

static int queue_put_raw(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                         const void *x, size_t first, size_t length)
{
    const struct gossip_layout *layout = &memory->layout;
    return queue_put(memory, peer, slot_at + layout->raw_at + first * layout->element,
                     gossip_element_at(layout, x, first), length * layout->element);
}

/* Put a chunk with the codec. sent: see queue_push. */
static int queue_put_coded(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                           const void *x, const void *key, size_t first, uint64_t seed,
                           void *sent)
{
    const struct gossip_layout *layout = &memory->layout;
    const struct gossip_block_note *note = memory->notes;
    size_t block = first / LATTICE_BLOCK, blocks = gossip_chunk_blocks(layout, first);
    slot_encode(memory, x, key, first, seed, true, memory->notes, memory->planes, NULL);
    int rc =
        queue_put(memory, peer, slot_at + layout->notes_at + block * sizeof *note, note,
                  blocks * sizeof *note)
            ?: queue_put(memory, peer, slot_at + layout->low_at + block * layout->low,
                         memory->planes, blocks * layout->low);
    for (size_t i = 0, at = first; i < blocks && rc == PCOLL_OK;
         i++, note++, at += LATTICE_BLOCK) {
        size_t length = gossip_block_length(layout, at);
        const void *elements = gossip_element_at(layout, x, at);
        if (!note->coded)
            rc = queue_put_raw(memory, peer, slot_at, x, at, length);
        if (!sent)
            continue;
        if (!slot_decode(memory, block + i, length, seed, note,
                         memory->planes + i * layout->low, NULL,
                         key ? gossip_element_at(layout, key, at) : NULL, memory->ours))
            gossip_widen(layout, memory->ours, elements, length);
        gossip_narrow(layout, gossip_element_at(layout, sent, at), memory->ours,
                      length);
    }
    return rc;
}

static int queue_put_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                           const void *x, const void *key, size_t first, uint64_t seed,
                           void *sent)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t length = gossip_chunk_length(layout, first);
    int rc = layout->bits
                 ? queue_put_coded(memory, peer, slot_at, x, key, first, seed, sent)
                 : queue_put_raw(memory, peer, slot_at, x, first, length);
    if (sent && !layout->bits)
        memmove(gossip_element_at(layout, sent, first),
                gossip_element_at(layout, x, first), length * layout->element);
    return rc ?: memory->window->ops->complete(memory->window, peer);
}

static int queue_write(struct gossip_memory *memory, uint32_t peer, uint32_t slot,
                       const void *x, const void *key, void *sent)
{
    const struct gossip_layout *layout = &memory->layout;
    struct window *window = memory->window;
    int64_t ticket;
    int rc =
        window->ops->fetch_add(window, peer, gossip_word_at(WORD_TICKETS), 1, &ticket);
    struct slot_header header = {.number = (uint64_t)ticket,
                                 .seed = splitmix_at(memory->seed, memory->messages++),
                                 .source = window->rank};
    if (rc == PCOLL_OK)
        rc = queue_put(memory, peer, gossip_queue_slot_at(layout, slot), &header,
                       sizeof header);
    for (size_t first = 0; first < layout->count && rc == PCOLL_OK;
         first += layout->chunk)
        rc = queue_put_chunk(memory, peer, gossip_queue_slot_at(layout, slot), x, key,
                             first, header.seed, sent);
    return rc ?: window->ops->flush(window, peer);
}

int queue_push(struct gossip_memory *memory, uint32_t peer, const void *x,
               const void *key, void *sent, int32_t *pushed)
{
    uint32_t slot;
    int64_t state, found;
    int rc = queue_claim(memory, peer, &slot, &state);
    *pushed = rc == PCOLL_OK && slot < memory->layout.queue_slots;
    if (rc == PCOLL_OK && !*pushed)
        memory->stats.queue_full++;
    if (!*pushed)
        return rc;
    MOMENT("slot claimed");
    rc = queue_write(memory, peer, slot, x, key, sent);
    MOMENT("message written");
    if (rc == PCOLL_OK)
        rc = queue_swap(memory, peer, slot, state + SLOT_WRITING, state + SLOT_FULL,
                        &found);
    if (rc == PCOLL_OK && found != state + SLOT_WRITING) /* this rank owned the slot */
        rc = gossip_refuse(peer, "a state of its queue", found);
    memory->stats.pushed++;
    return rc;
}

/* A FULL slot of a queue. */
struct gossip_message {
    uint32_t slot;
    int64_t state;
    struct slot_header header;
    bool fits; /* the header is possible */
};

/* Find the oldest or the newest message. *found: false if no slot is FULL. */
static int queue_choose(struct gossip_memory *memory, uint32_t peer, bool newest,
                        struct gossip_message *best, int32_t *found)
{
    struct window *window = memory->window;
    *found = false;
    for (uint32_t slot = 0; slot < memory->layout.queue_slots; slot++) {
        struct gossip_message next = {.slot = slot};
        enum slot_state state;
        int rc = queue_read_state(memory, peer, slot, &next.state, &state);
        if (rc == PCOLL_OK && state == SLOT_FULL)
            rc = window->ops->access(window, WINDOW_GET, peer,
                                     gossip_queue_slot_at(&memory->layout, slot), NULL,
                                     &next.header, PCOLL_UINT8, sizeof next.header);
        if (rc == PCOLL_OK)
            rc = window->ops->complete(window, peer);
        if (rc != PCOLL_OK)
            return rc;
        next.fits = next.header.source < memory->layout.ranks &&
                    gossip_is_number((int64_t)next.header.number);
        if (state == SLOT_FULL &&
            (!*found || (next.header.number > best->header.number) == newest)) {
            *best = next;
            *found = true;
        }
    }
    return PCOLL_OK;
}

/* Read a message into out. *whole: every block decoded. */
static int queue_read(struct gossip_memory *memory, uint32_t peer,
                      const struct gossip_message *from, const void *key, void *out,
                      bool *whole)
{
    const struct gossip_layout *layout = &memory->layout;
    *whole = from->fits;
    for (size_t first = 0; first < layout->count && *whole; first += layout->chunk) {
        struct gossip_fetched fetched;
        int rc =
            slot_fetch_elements(memory, peer, gossip_queue_slot_at(layout, from->slot),
                                first, key, out, &fetched);
        if (rc != PCOLL_OK)
            return rc;
        *whole = !fetched.failures;
    }
    return PCOLL_OK;
}

int queue_take(struct gossip_memory *memory, const void *key, void *out,
               uint32_t *source, int32_t *taken)
{
    uint32_t own = memory->window->rank;
    *taken = false;
    /* bounded: others keep sending */
    for (uint32_t i = 0; i <= memory->layout.queue_slots; i++) {
        struct gossip_message oldest;
        bool whole;
        int32_t found;
        int64_t before;
        int rc = queue_choose(memory, own, false, &oldest, &found);
        if (rc != PCOLL_OK || !found)
            return rc;
        rc = queue_read(memory, own, &oldest, key, out, &whole)
                 ?: queue_swap(memory, own, oldest.slot, oldest.state,
                               oldest.state - SLOT_FULL + SLOT_STATES, &before);
        *source = oldest.header.source;
        *taken = rc == PCOLL_OK && whole;
        memory->stats.drained += *taken;
        memory->stats.decode_failures += !whole;
        if (rc != PCOLL_OK || *taken)
            return rc;
    }
    return PCOLL_OK;
}

int queue_peek(struct gossip_memory *memory, uint32_t peer, const void *key, void *out,
               uint32_t *source, int32_t *found)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        struct gossip_message newest;
        bool whole;
        int64_t word;
        enum slot_state state;
        int rc = queue_choose(memory, peer, true, &newest, found);
        if (rc != PCOLL_OK || !*found)
            return rc;
        rc = queue_read(memory, peer, &newest, key, out, &whole)
                 ?: queue_read_state(memory, peer, newest.slot, &word, &state);
        if (rc != PCOLL_OK)
            return rc;
        *source = newest.header.source;
        *found = whole;
        if (word == newest.state) {
            memory->stats.decode_failures += !whole;
            return PCOLL_OK;
        }
        memory->stats.retries++;
    }
    *found = false;
    memory->stats.torn++;
    return PCOLL_OK;
}

int queue_settle(struct gossip_memory *memory)
{
    uint32_t own = memory->window->rank;
    int rc = PCOLL_OK;
    for (uint32_t slot = 0; slot < memory->layout.queue_slots && rc == PCOLL_OK;
         slot++) {
        int64_t word, found;
        enum slot_state state;
        rc = queue_read_state(memory, own, slot, &word, &state);
        if (rc == PCOLL_OK && state == SLOT_WRITING)
            rc = queue_swap(memory, own, slot, word, word - SLOT_WRITING + SLOT_STATES,
                            &found);
    }
    return rc;
}
