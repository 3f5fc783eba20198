/* SPDX-License-Identifier: Apache-2.0 */
/* The register; see register.h. */
#include "gossip/register.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kernels/codec/quantize.h"
#include "gossip/slot.h"

static uint32_t register_planes(const struct gossip_layout *layout)
{
    return PLANE_RAW | (layout->bits ? PLANE_LOW : 0) | (layout->high ? PLANE_HIGH : 0);
}

static void register_write_coded(struct gossip_memory *memory, char *slot,
                                 const void *x, size_t first, uint64_t seed)
{
    const struct gossip_layout *layout = &memory->layout;
    size_t block = first / LATTICE_BLOCK;
    struct gossip_planes to = {
        .notes = (struct gossip_block_note *)(slot + layout->notes_at) + block,
        .low = slot + layout->low_at + block * layout->low,
        .high = layout->high ? slot + layout->high_at + block * layout->high : NULL};
    slot_encode(memory, x, NULL, first, seed, false, &to);
}

static void register_write_slot(struct gossip_memory *memory, char *slot, const void *x,
                                const struct slot_header *header)
{
    const struct gossip_layout *layout = &memory->layout;
    memcpy(slot, header, sizeof *header);
    for (size_t first = 0; first < layout->count; first += layout->chunk) {
        INTERLEAVE();
        if (layout->bits)
            register_write_coded(memory, slot, x, first, header->seed);
        memory_copy_past_cache(slot + layout->raw_at + first * layout->element,
                               gossip_element_at(layout, x, first),
                               gossip_chunk_length(layout, first) * layout->element);
    }
}

int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version)
{
    struct window *window = memory->window;
    int64_t word;
    uint64_t last;
    int rc = register_version(memory, window->rank, &last);
    if (rc != PCOLL_OK)
        return rc;
    struct slot_header header = {.number = last + 1,
                                 .seed = gossip_next_seed(memory),
                                 .source = window->rank,
                                 .planes = register_planes(&memory->layout)};
    char *slot =
        window->memory + gossip_register_slot_at(&memory->layout, header.number);
    register_write_slot(memory, slot, x, &header);
    MOMENT("version written");
    rc = window->ops->sync(window);
    if (rc == PCOLL_OK)
        rc = window->ops->fetch_add(window, window->rank, gossip_word_at(WORD_VERSION),
                                    1, &word);
    if (rc == PCOLL_OK)
        rc = window->ops->sync(window);
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
    return rc == PCOLL_OK ? gossip_decode_version(peer, word, *version, version) : rc;
}

int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version)
{
    *version = 0;
    return register_renew_version(memory, peer, version);
}

/* Blocks that do not decode are in the raw plane: a whole model has no failures. */
static int register_check_planes(uint32_t peer, bool whole, uint32_t failures)
{
    return whole && failures ? fail(PCOLL_EPROTOCOL,
                                    "rank %u has published a model that cannot be: %u "
                                    "blocks of it are not there",
                                    peer, failures)
                             : PCOLL_OK;
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
                                  first, key, memory->theirs, &fetched);
        if (rc == PCOLL_OK)
            rc = register_renew_version(memory, peer, version);
        if (rc == PCOLL_OK)
            rc = register_check_planes(peer, *version - before <= 1, fetched.failures);
        if (rc != PCOLL_OK)
            return rc;
        *whole = *version - before <= 1;
        memory->stats.fallbacks += *whole ? fetched.fallbacks : 0;
        memory->stats.retries += !*whole;
    }
    memory->stats.torn += !*whole;
    return PCOLL_OK;
}

/* Read all chunks, as long as `version` is not overwritten. *now: the newest
 * version. */
static int register_read_version(struct gossip_memory *memory, uint32_t peer,
                                 const void *key, void *out, uint64_t version,
                                 uint64_t *now)
{
    const struct gossip_layout *layout = &memory->layout;
    uint32_t failures = 0;
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
        failures += fetched.failures;
    }
    return register_check_planes(peer, *now - version <= 1, failures);
}

/* Observe how far the model of a peer is from the key. This rank chooses its own steps
 * by it, since its model is as far from that of the peer. */
static void register_observe(struct gossip_memory *memory, const void *key,
                             const void *model)
{
    const struct gossip_layout *layout = &memory->layout;
    for (size_t first = 0; first < layout->count; first += layout->chunk) {
        size_t count = gossip_chunk_length(layout, first);
        const void *theirs = gossip_element_at(layout, model, first);
        if (layout->dtype != layout->held) {
            gossip_widen(layout, memory->theirs, theirs, count);
            theirs = memory->theirs;
        }
        slot_observe(memory, gossip_element_at(layout, key, first), theirs, first,
                     count);
    }
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
        bool whole = rc == PCOLL_OK && now - *version <= 1;
        if (whole && key && memory->layout.bits && peer != memory->window->rank)
            register_observe(memory, key, out);
        if (rc != PCOLL_OK || whole)
            return rc;
        memory->stats.retries++;
        *version = now;
    }
    memory->stats.torn += rc == PCOLL_OK;
    return rc == PCOLL_OK ? fail(PCOLL_EAGAIN,
                                 "rank %u publishes faster than it can be read", peer)
                          : rc;
}
