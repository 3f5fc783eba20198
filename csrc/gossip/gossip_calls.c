/* SPDX-License-Identifier: Apache-2.0 */
/* Layout and private memory of a gossip buffer, and its calls, but for creating and freeing it. */
#include "gossip/gossip.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#ifndef PCOLL_TEST_CHUNK_BLOCKS
#define PCOLL_TEST_CHUNK_BLOCKS 64 /* 256 KiB of float32, which fit a core's cache */
#endif
enum { CHUNK_BLOCKS = PCOLL_TEST_CHUNK_BLOCKS };

/* Round up to whole cache lines. */
static size_t gossip_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

void pcoll_gossip_options_init(pcoll_gossip_options *options)
{
    if (!options)
        return;
    *options = (pcoll_gossip_options){
        .margin = 2,
        .queue_slots = 4,
        .max_uncollected = 2,
        .progress = PCOLL_PROGRESS_AGENT,
    };
}

static int gossip_check_options(const pcoll_gossip_options *o)
{
    static const uint64_t most = (uint64_t)1 << 44;
    if (o->count > most / sizeof(double))
        return fail(PCOLL_EINVAL, "like: %llu elements are more than memory holds",
                    (unsigned long long)o->count);
    if (o->bits != 0 && (o->bits < 2 || o->bits > 16))
        return fail(PCOLL_EINVAL, "bits: expected 2 to 16, got %d", o->bits);
    if (o->queue_slots < 1 || o->queue_slots > 1024)
        return fail(PCOLL_EINVAL, "queue_slots: expected 1 to 1024, got %u",
                    o->queue_slots);
    if (o->max_uncollected < 1)
        return fail(PCOLL_EINVAL, "max_uncollected: expected at least 1, got 0");
    if (o->dtype != PCOLL_FLOAT32 && o->dtype != PCOLL_FLOAT64 &&
        o->dtype != PCOLL_FLOAT16 && o->dtype != PCOLL_BFLOAT16)
        return fail(PCOLL_EINVAL,
                    "like: expected float16, bfloat16, float32 or float64, got %s",
                    dtype_find(o->dtype) ? dtype_names[o->dtype] : "an unknown dtype");
    return PCOLL_OK;
}

static int gossip_layout_init(struct gossip_layout *layout, uint32_t ranks,
                              const pcoll_gossip_options *options)
{
    int rc = gossip_check_options(options);
    if (rc != PCOLL_OK)
        return rc;
    const struct dtype *dtype = dtype_find(options->dtype);
    *layout = (struct gossip_layout){
        .ranks = ranks,
        .dtype = options->dtype,
        .held = options->dtype == PCOLL_FLOAT64 ? PCOLL_FLOAT64 : PCOLL_FLOAT32,
        .element = dtype->size,
        .sum = options->dtype == PCOLL_FLOAT64 ? 8 : 4,
        .count = options->count,
        .blocks = (options->count + LATTICE_BLOCK - 1) / LATTICE_BLOCK,
        .bits = options->bits,
        .queue_slots = options->queue_slots};
    if (layout->bits) {
        layout->low = plane_bytes(LATTICE_BLOCK, layout->bits);
        layout->high = plane_bytes(LATTICE_BLOCK, LATTICE_MAX_BITS - layout->bits);
    }
    size_t blocks = layout->blocks < CHUNK_BLOCKS ? layout->blocks : CHUNK_BLOCKS;
    layout->chunk = (blocks ? blocks : 1) * LATTICE_BLOCK;
    layout->notes_at = LINE;
    layout->low_at =
        layout->notes_at +
        (layout->bits ? gossip_lines(layout->blocks * sizeof(struct gossip_block_note))
                      : 0);
    layout->high_at = layout->low_at + gossip_lines(layout->blocks * layout->low);
    layout->raw_at = layout->high_at + gossip_lines(layout->blocks * layout->high);
    layout->slot_bytes = layout->raw_at + gossip_lines(layout->count * layout->element);
    layout->board_at = gossip_queue_word_at(layout->queue_slots);
    layout->slots_at = layout->board_at + gossip_lines(ranks * sizeof(int64_t));
    layout->sums_at = layout->slots_at + REGISTER_SLOTS * layout->slot_bytes;
    layout->queue_at = layout->sums_at + gossip_lines(layout->count * layout->sum);
    layout->bytes = layout->queue_at + layout->queue_slots * layout->slot_bytes;
    return PCOLL_OK;
}

static int gossip_memory_allocate(struct gossip_memory *memory)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(layout->chunk && layout->chunk % LATTICE_BLOCK == 0 &&
          layout->sum >= layout->element);
    size_t bytes = layout->chunk * layout->sum, blocks = layout->chunk / LATTICE_BLOCK;
    memory->fetched = malloc(layout->chunk * layout->element);
    memory->theirs = malloc(bytes);
    memory->ours = malloc(bytes);
    memory->change = malloc(bytes);
    memory->notes = malloc(blocks * sizeof *memory->notes);
    memory->planes = malloc(blocks * (layout->low + layout->high) + 1);
    memory->distances = malloc((layout->blocks + 1) * sizeof *memory->distances);
    if (!memory->fetched || !memory->theirs || !memory->ours || !memory->change ||
        !memory->notes || !memory->planes || !memory->distances)
        return fail(PCOLL_ENOMEM, "no memory for a gossip buffer");
    for (size_t b = 0; b < layout->blocks; b++)
        memory->distances[b] = -1;
    return PCOLL_OK;
}

enum { FAR_CHUNKS = 8 }; /* times as large: a message between nodes takes longer */

int gossip_memory_prepare(struct gossip_memory *memory, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far)
{
    CHECK(rank < ranks);
    *memory = (struct gossip_memory){
        .taken = 1,
        .margin = o->margin,
        .rotate = o->rotate != 0,
        .seed = splitmix_at(o->seed, rank),
    };
    int rc = gossip_layout_init(&memory->layout, ranks, o);
    if (far)
        memory->layout.chunk *= FAR_CHUNKS;
    if (rc == PCOLL_OK && o->bits && !(o->margin >= 1 && o->margin <= 1e6))
        rc = fail(PCOLL_EINVAL, "margin: expected 1 to 1e6, got %g", o->margin);
    return rc ?: gossip_memory_allocate(memory);
}

/* Slots need not be cleared: they are written before they are read. */
int gossip_memory_clear(struct gossip_memory *memory)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(memory->window);
    memset(memory->window->memory, 0, layout->slots_at);
    memset(memory->window->memory + layout->sums_at, 0,
           layout->queue_at - layout->sums_at);
    return memory->window->ops->sync(memory->window);
}

void gossip_memory_destroy(struct gossip_memory *memory)
{
    free(memory->fetched);
    free(memory->planes);
    free(memory->notes);
    free(memory->theirs);
    free(memory->ours);
    free(memory->change);
    free(memory->distances);
}

void gossip_widen(const struct gossip_layout *layout, void *held, const void *elements,
                  size_t count)
{
    const struct dtype *dtype = dtype_find(layout->dtype);
    if (dtype->widen)
        dtype->widen(held, elements, count);
    else if (held != elements)
        memcpy(held, elements, count * layout->element);
}

void gossip_narrow(const struct gossip_layout *layout, void *elements, const void *held,
                   size_t count)
{
    const struct dtype *dtype = dtype_find(layout->dtype);
    if (dtype->narrow)
        dtype->narrow(elements, held, count);
    else if (held != elements)
        memcpy(elements, held, count * layout->element);
}

/* Calls. */

/* A simulated buffer has no communicator. */
static struct outage *gossip_outage(const pcoll_gossip *gossip)
{
    return gossip->base.communicator ? gossip->base.communicator->outage : NULL;
}

static bool gossip_lives(const pcoll_gossip *gossip, uint32_t rank)
{
    return !gossip->base.communicator ||
           transport_lives(gossip->base.communicator->transport, rank);
}

static int gossip_leave(pcoll_gossip *gossip, int rc)
{
    outage_leave(gossip_outage(gossip));
    return user_object_leave(&gossip->base, rc);
}

/* Calls are counted: they wait for a recovery to complete, and it waits for them. */
static int gossip_enter(pcoll_gossip *gossip)
{
    int rc = fail_if_null_as("gossip", gossip) ?: user_object_enter(&gossip->base);
    if (rc == PCOLL_OK)
        outage_enter(gossip_outage(gossip));
    return rc;
}

static int gossip_enter_open(pcoll_gossip *gossip)
{
    enum { EVERY_NS = 20000000 };
    int rc = fail_if_null_as("gossip", gossip) ?: user_object_enter_open(&gossip->base);
    if (rc != PCOLL_OK)
        return rc;
    /* A gossip buffer receives no messages, so possibly no thread polls: its calls poll every 20 ms
     * whether MPI has news of ranks that have died. */
    if (gossip->poll_at && clock_ns() >= gossip->poll_at) {
        gossip->poll_at = clock_ns() + EVERY_NS;
        progress_poll(gossip->base.communicator->progress);
    }
    outage_enter(gossip_outage(gossip));
    if (gossip->base.communicator)
        rc = communicator_check(gossip->base.communicator);
    if (rc == PCOLL_OK && gossip->base.incomplete)
        rc = outage_error(gossip_outage(gossip));
    return rc == PCOLL_OK ? rc : gossip_leave(gossip, rc);
}

/* Enter a call about a rank. */
static int gossip_enter_rank(pcoll_gossip *gossip, uint32_t peer)
{
    int rc = gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    uint32_t ranks = gossip->memory.layout.ranks;
    if (peer < ranks)
        return PCOLL_OK;
    return gossip_leave(
        gossip, fail(PCOLL_EINVAL, "peer: expected 0 to %u, got %u", ranks - 1, peer));
}

/* Enter a call that reaches a rank: it has to be alive. */
static int gossip_enter_peer(pcoll_gossip *gossip, uint32_t peer)
{
    int rc = gossip_enter_rank(gossip, peer);
    if (rc != PCOLL_OK || gossip_lives(gossip, peer))
        return rc;
    struct failed_ranks who = {.count = 1, .rank = {(int32_t)peer}};
    return gossip_leave(gossip, fail_ranks(&who)); /* an error of this call only */
}

int pcoll_gossip_publish(pcoll_gossip *gossip, const void *x, uint64_t *version)
{
    return fail_if_null(x, version)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, register_publish(&gossip->memory, x, version));
}

int pcoll_gossip_read(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint64_t *version)
{
    return fail_if_null(out, version)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, register_read(&gossip->memory, peer, key, out,
                                                     version));
}

int pcoll_gossip_set_taken(pcoll_gossip *gossip, double part)
{
    int rc = gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    if (part >= 0 && part <= 1)
        gossip->memory.taken = part;
    else
        rc = fail(PCOLL_EINVAL, "part: expected 0 to 1, got %g", part);
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_average(pcoll_gossip *gossip, uint32_t peer, void *x, double weight,
                         void *momentum, double ratio, int32_t *averaged)
{
    struct gossip_model own = {.x = x, .momentum = momentum, .ratio = ratio};
    int rc = fail_if_null(x, averaged) ?: gossip_enter_peer(gossip, peer);
    if (rc != PCOLL_OK)
        return rc;
    *averaged = 0;
    rc =
        peer == gossip->memory.window->rank
            ? fail(PCOLL_EINVAL, "peer: expected another rank, got this one (%u)", peer)
            : exchange_average(&gossip->memory, peer, gossip->max_uncollected, weight,
                               &own, averaged);
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_collect(pcoll_gossip *gossip, void *x, void *momentum, double ratio,
                         uint64_t *deltas)
{
    struct gossip_model own = {.x = x, .momentum = momentum, .ratio = ratio};
    return fail_if_null(x, deltas)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, exchange_collect(&gossip->memory, &own, deltas));
}

int pcoll_gossip_pending(pcoll_gossip *gossip, void *out)
{
    int rc = fail_if_null(out) ?: gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    struct gossip_memory *memory = &gossip->memory;
    for (size_t first = 0; first < memory->layout.count && rc == PCOLL_OK;
         first += memory->layout.chunk) {
        rc = accumulator_query(memory, memory->window->rank, first);
        memcpy((char *)out + first * memory->layout.sum, memory->change,
               gossip_chunk_length(&memory->layout, first) * memory->layout.sum);
    }
    return gossip_leave(gossip, rc);
}

int pcoll_gossip_push(pcoll_gossip *gossip, uint32_t peer, const void *x,
                      const void *key, void *sent, int32_t *pushed)
{
    return fail_if_null(x, pushed)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, queue_push(&gossip->memory, peer, x, key, sent,
                                                  pushed));
}

int pcoll_gossip_drain(pcoll_gossip *gossip, const void *key, void *out,
                       uint32_t *source, int32_t *taken)
{
    return fail_if_null(out, source, taken)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip,
                               queue_take(&gossip->memory, key, out, source, taken));
}

int pcoll_gossip_peek(pcoll_gossip *gossip, uint32_t peer, const void *key, void *out,
                      uint32_t *source, int32_t *found)
{
    return fail_if_null(out, source, found)
               ?: gossip_enter_peer(gossip, peer)
               ?: gossip_leave(gossip, queue_peek(&gossip->memory, peer, key, out, source,
                                                  found));
}

/* Return where the number of a rank is on the board, which is at rank 0. */
static size_t gossip_board_at(const struct gossip_memory *memory, uint32_t rank)
{
    return memory->layout.board_at + rank * sizeof(int64_t);
}

int pcoll_gossip_board_read(pcoll_gossip *gossip, int64_t *numbers)
{
    int rc = fail_if_null(numbers) ?: gossip_enter_open(gossip);
    if (rc != PCOLL_OK)
        return rc;
    const struct gossip_memory *memory = &gossip->memory;
    rc = memory->window->ops->access(memory->window, WINDOW_SUMS, 0,
                                     gossip_board_at(memory, 0), NULL, numbers,
                                     PCOLL_INT64, memory->layout.ranks);
    return gossip_leave(gossip, rc ?: memory->window->ops->complete(memory->window, 0));
}

int pcoll_gossip_board_swap(pcoll_gossip *gossip, uint32_t rank, int64_t expected,
                            int64_t desired, int64_t *before)
{
    return fail_if_null(before)
               ?: gossip_enter_rank(gossip, rank)
               ?: gossip_leave(gossip,
                               gossip->memory.window->ops->compare_swap(
                                   gossip->memory.window, 0,
                                   gossip_board_at(&gossip->memory, rank), expected,
                                   desired, before));
}

int pcoll_gossip_board_count(pcoll_gossip *gossip, int64_t delta, int64_t *before)
{
    return fail_if_null(before)
               ?: gossip_enter_open(gossip)
               ?: gossip_leave(gossip, gossip->memory.window->ops->fetch_add(
                                           gossip->memory.window, 0,
                                           gossip_word_at(WORD_ARRIVALS), delta,
                                           before));
}

int pcoll_gossip_get_stats(pcoll_gossip *gossip, pcoll_gossip_stats *stats)
{
    return fail_if_null(stats)
               ?: gossip_enter(gossip)
               ?: (*stats = gossip->memory.stats, gossip_leave(gossip, PCOLL_OK));
}

int pcoll_gossip_bytes(pcoll_gossip *gossip, uint64_t *bytes)
{
    return fail_if_null(bytes)
               ?: gossip_enter(gossip)
               ?: (*bytes = gossip->memory.layout.bytes,
                   gossip_leave(gossip, PCOLL_OK));
}

/* Any thread may call this, also while another thread is in a call. */
int pcoll_gossip_failed(pcoll_gossip *gossip, uint64_t *set)
{
    int rc = fail_if_null(gossip, set);
    if (rc != PCOLL_OK)
        return rc;
    if (gossip->base.ended)
        return fail(PCOLL_ESTATE, "the gossip buffer has been freed");
    outage_enter(gossip_outage(gossip));
    uint32_t ranks = gossip->memory.layout.ranks;
    bitset_clear(set, bitset_words(ranks));
    for (uint32_t r = 0; r < ranks; r++)
        if (!gossip_lives(gossip, r))
            bitset_add(set, r);
    outage_leave(gossip_outage(gossip));
    return PCOLL_OK;
}
