/* SPDX-License-Identifier: Apache-2.0 */
/* The queue; see queue.h. */
#include "gossip/queue.h"

#include <string.h>

#include "base/check.h"

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
    return memory->window->ops->put(memory->window, peer, at, from, bytes);
}

static int queue_put_raw(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                         const void *x, size_t first, size_t length)
{
    const struct gossip_layout *layout = &memory->layout;
    return queue_put(memory, peer, slot_at + layout->raw_at + first * layout->element,
                     gossip_element_at(layout, x, first), length * layout->element);
}

static int queue_put_coded(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                           const void *x, const void *key, size_t first, uint64_t seed)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t block = first / LATTICE_BLOCK, blocks = gossip_chunk_blocks(layout, first);
    slot_encode(memory, x, key, first, seed, true, memory->notes, memory->planes, NULL);
    int rc =
        queue_put(memory, peer,
                  slot_at + layout->notes_at + block * sizeof *memory->notes,
                  memory->notes, blocks * sizeof *memory->notes)
            ?: queue_put(memory, peer, slot_at + layout->low_at + block * layout->low,
                         memory->planes, blocks * layout->low);
    for (size_t i = 0; i < blocks && rc == PCOLL_OK; i++) {
        size_t at = first + i * LATTICE_BLOCK;
        if (!memory->notes[i].coded)
            rc = queue_put_raw(memory, peer, slot_at, x, at,
                               gossip_block_length(layout, at));
    }
    return rc;
}

/* Compute what the receiver decodes from the chunk that has just been encoded. */
static void queue_decode_own(struct gossip_memory *memory, const void *x,
                             const void *key, size_t first, uint64_t seed, void *sent)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t end = first + gossip_chunk_length(layout, first);
    for (size_t i = 0, at = first; at < end; i++, at += LATTICE_BLOCK) {
        size_t length = gossip_block_length(layout, at);
        if (!slot_decode(memory, at / LATTICE_BLOCK, length, seed, &memory->notes[i],
                         memory->planes + i * layout->low, NULL,
                         key ? gossip_element_at(layout, key, at) : NULL, memory->ours))
            gossip_widen(layout, memory->ours, gossip_element_at(layout, x, at),
                         length);
        gossip_narrow(layout, gossip_element_at(layout, sent, at), memory->ours,
                      length);
    }
}

static int queue_put_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                           const void *x, const void *key, size_t first, uint64_t seed,
                           void *sent)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t length = gossip_chunk_length(layout, first);
    int rc = layout->bits ? queue_put_coded(memory, peer, slot_at, x, key, first, seed)
                          : queue_put_raw(memory, peer, slot_at, x, first, length);
    if (sent && layout->bits)
        queue_decode_own(memory, x, key, first, seed, sent);
    else if (sent)
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
                                 .seed = gossip_next_seed(memory),
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
            rc = window->ops->get(window, peer,
                                  gossip_queue_slot_at(&memory->layout, slot),
                                  &next.header, sizeof next.header);
        if (rc == PCOLL_OK)
            rc = window->ops->complete(window, peer);
        if (rc != PCOLL_OK)
            return rc;
        next.fits = gossip_header_fits(&memory->layout, &next.header);
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
    for (uint32_t i = 0; i <= memory->layout.queue_slots;
         i++) { /* bounded: others keep sending */
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
