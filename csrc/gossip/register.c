/* SPDX-License-Identifier: Apache-2.0 */
/* The register; see register.h. */
#include "gossip/register.h"

#include <string.h>

#include "base/check.h"
#include "base/interleave.h"
#include "base/moment.h"
#include "kernels/copy.h"
#include "kernels/codec/quantize.h"
#include "gossip/gossip_slot.h"

static uint32_t planes_of(const struct layout *l)
{
    return PLANE_RAW | (l->bits ? PLANE_LOW : 0) | (l->high ? PLANE_HIGH : 0);
}

static void write_coded(struct gossip_memory *m, char *slot, const void *x,
                        size_t first, uint64_t seed)
{
    const struct layout *l = &m->layout;
    size_t block = first / LATTICE_BLOCK;
    struct planes to = {.notes = (struct block_note *)(slot + l->notes_at) + block,
                        .low = slot + l->low_at + block * l->low,
                        .high = l->high ? slot + l->high_at + block * l->high : NULL};
    coded_write(m, x, NULL, first, seed, false, &to);
}

static void write_slot(struct gossip_memory *m, char *slot, const void *x,
                       const struct slot_header *header)
{
    const struct layout *l = &m->layout;
    memcpy(slot, header, sizeof *header);
    for (size_t first = 0; first < l->count; first += l->chunk) {
        INTERLEAVE();
        if (l->bits)
            write_coded(m, slot, x, first, header->seed);
        copy_past_cache(slot + l->raw_at + first * l->element, element_at(l, x, first),
                        chunk_length(l, first) * l->element);
    }
}

int register_publish(struct gossip_memory *m, const void *x, uint64_t *version)
{
    struct window *w = m->window;
    int64_t word;
    uint64_t last;
    int rc = register_version(m, w->rank, &last);
    if (rc != PCOLL_OK)
        return rc;
    struct slot_header header = {.number = last + 1,
                                 .seed = gossip_next_seed(m),
                                 .source = w->rank,
                                 .planes = planes_of(&m->layout)};
    char *slot = w->memory + register_slot_at(&m->layout, header.number);
    write_slot(m, slot, x, &header);
    MOMENT("version written");
    rc = w->ops->sync(w);
    if (rc == PCOLL_OK)
        rc = w->ops->fetch_add(w, w->rank, word_at(WORD_VERSION), 1, &word);
    if (rc == PCOLL_OK)
        rc = w->ops->sync(w);
    *version = header.number;
    m->stats.publishes++;
    return rc;
}

/* *version becomes the newest one, at least as new as it was. */
static int renew(struct gossip_memory *m, uint32_t peer, uint64_t *version)
{
    int64_t word = 0;
    int rc = window_read_word(m->window, peer, word_at(WORD_VERSION), &word);
    return rc == PCOLL_OK ? gossip_decode_version(peer, word, *version, version) : rc;
}

int register_version(struct gossip_memory *m, uint32_t peer, uint64_t *version)
{
    *version = 0;
    return renew(m, peer, version);
}

/* A model that was read whole has its raw plane for what does not decode. */
static int check_planes(uint32_t peer, bool whole, uint32_t failures)
{
    return whole && failures ? fail(PCOLL_EPROTOCOL,
                                    "rank %u has published a model that cannot be: %u "
                                    "blocks of it are not there",
                                    peer, failures)
                             : PCOLL_OK;
}

int register_read_chunk(struct gossip_memory *m, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole)
{
    CHECK(*version && first < m->layout.count && first % m->layout.chunk == 0);
    *whole = false;
    for (int i = 0; i < MAX_TRIES && !*whole; i++) {
        struct fetched fetched;
        uint64_t before = *version;
        int rc = fetch_chunk(m, peer, register_slot_at(&m->layout, before), first, key,
                             m->theirs, &fetched);
        if (rc == PCOLL_OK)
            rc = renew(m, peer, version);
        if (rc == PCOLL_OK)
            rc = check_planes(peer, *version - before <= 1, fetched.failures);
        if (rc != PCOLL_OK)
            return rc;
        *whole = *version - before <= 1;
        m->stats.fallbacks += *whole ? fetched.fallbacks : 0;
        m->stats.retries += !*whole;
    }
    m->stats.torn += !*whole;
    return PCOLL_OK;
}

/* All chunks, as long as `version` stays whole; the newest version in *now. */
static int read_version(struct gossip_memory *m, uint32_t peer, const void *key,
                        void *out, uint64_t version, uint64_t *now)
{
    const struct layout *l = &m->layout;
    uint32_t failures = 0;
    *now = version;
    for (size_t first = 0; first < l->count && *now - version <= 1; first += l->chunk) {
        struct fetched fetched;
        int rc = fetch_elements(m, peer, register_slot_at(l, version), first, key, out,
                                &fetched);
        if (rc == PCOLL_OK)
            rc = renew(m, peer, now);
        if (rc != PCOLL_OK)
            return rc;
        m->stats.fallbacks += fetched.fallbacks;
        failures += fetched.failures;
    }
    return check_planes(peer, *now - version <= 1, failures);
}

/* How far another's model that was read whole is from the key: what this rank's own
   steps follow from, since others are as far from it. */
static void observe_model(struct gossip_memory *m, const void *key, const void *model)
{
    const struct layout *l = &m->layout;
    for (size_t first = 0; first < l->count; first += l->chunk) {
        size_t count = chunk_length(l, first);
        const void *theirs = element_at(l, model, first);
        if (l->dtype != l->held) {
            gossip_widen(l, m->theirs, theirs, count);
            theirs = m->theirs;
        }
        coded_observe(m, element_at(l, key, first), theirs, first, count);
    }
}

int register_read(struct gossip_memory *m, uint32_t peer, const void *key, void *out,
                  uint64_t *version)
{
    int rc = register_version(m, peer, version);
    if (rc == PCOLL_OK && !*version)
        rc = fail(PCOLL_EEMPTY, "rank %u has not published anything yet", peer);
    for (int i = 0; i < MAX_TRIES && rc == PCOLL_OK; i++) {
        uint64_t now;
        rc = read_version(m, peer, key, out, *version, &now);
        bool whole = rc == PCOLL_OK && now - *version <= 1;
        if (whole && key && m->layout.bits && peer != m->window->rank)
            observe_model(m, key, out);
        if (rc != PCOLL_OK || whole)
            return rc;
        m->stats.retries++;
        *version = now;
    }
    m->stats.torn += rc == PCOLL_OK;
    return rc == PCOLL_OK ? fail(PCOLL_EAGAIN,
                                 "rank %u publishes faster than it can be read", peer)
                          : rc;
}
