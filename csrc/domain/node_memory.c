/* SPDX-License-Identifier: Apache-2.0 */
/* One block: words that all read in every round close together, then the members'
 * lines, then the slots of each member, then the results. */
#include "domain/node_memory.h"
#include "base/check.h"

/* Chunks are cut so that a sum and what is added to it stay in a core's cache. */
#ifdef PCOLL_TEST_CHUNK_BYTES
static size_t const chunk_bytes = PCOLL_TEST_CHUNK_BYTES;
#else
static size_t const chunk_bytes = 64 << 10;
#endif

struct node_layout {
    size_t descriptors, asleep, live, absent, lines, list, finished, slots, gathered,
        results;
    size_t total;
};

static size_t node_place(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static uint32_t node_count_chunks(size_t bytes)
{
    size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    return chunks > 1 ? (uint32_t)chunks : 1;
}

static struct node_layout node_lay_out(const struct round_shape *shape,
                                       const pcoll_options *options,
                                       const struct placement *placement)
{
    size_t slots = (size_t)contribution_slots(options->owned_send);
    size_t members = placement->members;
    struct node_layout l;
    size_t at = sizeof(struct node_shared);
    l.descriptors = node_place(&at, members * sizeof(uint64_t));
    l.asleep = node_place(&at, bitset_words(placement->members) * sizeof(uint64_t));
    l.live = node_place(&at, bitset_words(shape->ranks) * sizeof(uint64_t));
    l.absent = node_place(
        &at, options->policy.max_staleness ? shape->ranks * sizeof(uint32_t) : 0);
    l.lines = node_place(&at, members * sizeof(struct node_line));
    l.list = node_place(&at, members * sizeof(struct node_frozen));
    l.finished =
        node_place(&at, placement->domains > 1
                            ? node_count_chunks(shape->payload.bytes) * sizeof(uint64_t)
                            : 0);
    l.slots = node_place(&at, members * slots * shape->slot_bytes);
    l.gathered = node_place(&at, placement->domains > 1 ? shape->slot_bytes : 0);
    l.results = node_place(&at, ((size_t)options->history + 1) * shape->slot_bytes);
    l.total = at;
    return l;
}

size_t node_bytes(const struct round_shape *shape, const pcoll_options *options,
                  const struct placement *placement)
{
    CHECK(placement->members > 0);
    return node_lay_out(shape, options, placement).total;
}

/* Its slots, its share of the results and what comes before them; the leader the rest.
 */
void node_part(const struct round_shape *shape, const pcoll_options *options,
               const struct placement *placement, enum node_part part, size_t *offset,
               size_t *bytes)
{
    CHECK(part < NODE_PARTS);
    CHECK(placement->who < placement->members);
    struct node_layout l = node_lay_out(shape, options, placement);
    size_t slots = (l.gathered - l.slots) / placement->members;
    size_t results = l.total - l.gathered;
    size_t begin = results * placement->who / placement->members;
    size_t end = results * (placement->who + 1) / placement->members;
    if (part == NODE_PART_SLOTS)
        *offset = l.slots + placement->who * slots, *bytes = slots;
    else if (part == NODE_PART_RESULTS)
        *offset = l.gathered + begin, *bytes = end - begin;
    else
        *offset = 0, *bytes = placement->leads ? l.slots : 0;
}

void node_map(struct node *n, const pcoll_options *options)
{
    CHECK(n->hooks.memory && n->who < n->members);
    char *base = n->hooks.memory;
    pcoll_options common = *options;
    common.owned_send = n->hooks.owned_sends;
    struct node_layout l = node_lay_out(n->base.shape, &common, n->hooks.placement);
    n->bytes = l.total;
    n->slots_each = contribution_slots(n->hooks.owned_sends);
    n->chunks = node_count_chunks(n->base.shape->payload.bytes);
    n->shared = (struct node_shared *)base;
    n->descriptors = (_Atomic uint64_t *)(base + l.descriptors);
    n->asleep = (_Atomic uint64_t *)(base + l.asleep);
    n->live = (_Atomic uint64_t *)(base + l.live);
    if (options->policy.max_staleness)
        n->absent = (_Atomic uint32_t *)(base + l.absent);
    n->lines = (struct node_line *)(base + l.lines);
    n->list = (struct node_frozen *)(base + l.list);
    n->finished = (_Atomic uint64_t *)(base + l.finished);
    n->slots = base + l.slots;
    n->gathered = (struct round_header *)(base + l.gathered);
    n->results = base + l.results;
    atomic_store(&n->descriptors[n->who], descriptor_of(&n->member));
    uint64_t live[bitset_words(n->base.shape->ranks)];
    round_live_now(NULL, n->base.shape->ranks, n->base.shape->failed, live);
    for (size_t i = 0; n->who == 0 && i < bitset_words(n->base.shape->ranks); i++)
        atomic_store(&n->live[i], live[i]);
}
