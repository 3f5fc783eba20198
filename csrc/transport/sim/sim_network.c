/* SPDX-License-Identifier: Apache-2.0 */
/* The network, the heap of events and the gatherings; see sim_transport.h. */
#include "transport/sim/sim_transport.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/reduce.h"

/* A (sender, receiver, tag): its last arrival, which later messages do not overtake. */
struct sim_lane {
    uint64_t key;
    int64_t last;
};

/* The times from which the parts of a rank are free. */
struct sim_host {
    int64_t processor, outgoing, incoming;
};

struct sim_network {
    pcoll_network p;
    uint32_t size;
    uint64_t seed, drawn;
    struct sim_host *hosts;
    struct sim_lane *lanes;           /* hash table with linear probing */
    size_t lane_count, lane_capacity; /* capacity: a power of two */
};

static double const longest = 3.6e12;         /* one hour */
static double const longest_latency = 3.6e15; /* a draw may be longer than the mean */

static int sim_network_check_time(const char *name, double value, double most)
{
    if (value >= 0 && value <= most) /* excludes NaN */
        return PCOLL_OK;
    return fail(PCOLL_EINVAL, "%s: expected 0 to %g ns, got %g", name, most, value);
}

int sim_network_check(const pcoll_network *p)
{
    int rc = sim_network_check_time("L (latency)", p->L, longest)
                 ?: sim_network_check_time("o (overhead)", p->o, longest)
                 ?: sim_network_check_time("g (gap)", p->g, longest)
                 ?: sim_network_check_time("G (gap per byte)", p->G, 1e6);
    if (rc != PCOLL_OK)
        return rc;
    if (p->latency < PCOLL_LATENCY_CONSTANT || p->latency > PCOLL_LATENCY_LOGNORMAL)
        return fail(PCOLL_EINVAL, "latency: expected one of %d distributions, got %d",
                    PCOLL_LATENCY_LOGNORMAL + 1, p->latency);
    double most = p->latency == PCOLL_LATENCY_UNIFORM ? 1 : 4;
    if (!(p->spread >= 0 && p->spread <= most))
        return fail(PCOLL_EINVAL, "latency: expected a spread of 0 to %g, got %g", most,
                    p->spread);
    return PCOLL_OK;
}

static int64_t sim_network_round(double nanoseconds)
{
    return (int64_t)(nanoseconds + 0.5);
}

struct sim_network *sim_network_create(const pcoll_network *parameters, uint32_t size,
                                       uint64_t seed)
{
    struct sim_network *network = sim_must(calloc(1, sizeof *network));
    network->p = *parameters;
    network->size = size;
    network->seed = seed;
    network->hosts = sim_must(calloc(size, sizeof *network->hosts));
    network->lane_capacity = 1024;
    network->lanes = sim_must(calloc(network->lane_capacity, sizeof *network->lanes));
    return network;
}

void sim_network_free(struct sim_network **at)
{
    free((*at)->hosts);
    free((*at)->lanes);
    free(*at);
    *at = NULL;
}

uint32_t sim_network_random(struct sim_network *network, uint32_t bound)
{
    return splitmix_below(network->seed, network->drawn++, bound);
}

/* Draw a number, uniform in (0, 1). */
static double sim_network_fraction(struct sim_network *network)
{
    return ((double)(splitmix_at(network->seed, network->drawn++) >> 12) + 0.5) *
           0x1p-52;
}

/* All distributions have the mean L. */
int64_t sim_network_latency(struct sim_network *network)
{
    const pcoll_network *p = &network->p;
    double latency = p->L;
    switch ((enum pcoll_latency)p->latency) {
    case PCOLL_LATENCY_CONSTANT:
        break;
    case PCOLL_LATENCY_UNIFORM:
        latency *= 1 + p->spread * (2 * sim_network_fraction(network) - 1);
        break;
    case PCOLL_LATENCY_EXPONENTIAL:
        latency *= -log(sim_network_fraction(network));
        break;
    case PCOLL_LATENCY_LOGNORMAL: { /* Box and Muller */
        double radius = sqrt(-2 * log(sim_network_fraction(network)));
        double normal =
            radius * cos(2 * 3.14159265358979323846 * sim_network_fraction(network));
        latency *= exp(p->spread * normal - p->spread * p->spread / 2);
        break;
    }
    }
    return sim_network_round(latency < longest_latency ? latency : longest_latency);
}

static struct sim_lane *sim_network_find_lane(struct sim_lane *lanes, size_t capacity,
                                              uint64_t key)
{
    size_t i = splitmix_mix(key) & (capacity - 1);
    while (lanes[i].key && lanes[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &lanes[i];
}

static struct sim_lane *sim_network_lane(struct sim_network *network, uint32_t from,
                                         uint32_t to, uint32_t tag)
{
    uint64_t pair = splitmix_mix(((uint64_t)from << 32 | to) + 1);
    uint64_t key = (pair ^ splitmix_mix(tag)) | 1;
    if (2 * (network->lane_count + 1) > network->lane_capacity) {
        size_t capacity = 2 * network->lane_capacity;
        struct sim_lane *lanes = sim_must(calloc(capacity, sizeof *lanes));
        for (size_t i = 0; i < network->lane_capacity; i++)
            if (network->lanes[i].key)
                *sim_network_find_lane(lanes, capacity, network->lanes[i].key) =
                    network->lanes[i];
        free(network->lanes);
        network->lanes = lanes;
        network->lane_capacity = capacity;
    }
    struct sim_lane *lane =
        sim_network_find_lane(network->lanes, network->lane_capacity, key);
    network->lane_count += !lane->key;
    lane->key = key;
    return lane;
}

static int64_t sim_network_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct sim_flight sim_network_send(struct sim_network *network, uint32_t from,
                                   uint32_t to, uint32_t tag, size_t bytes, int64_t now)
{
    struct sim_host *h = &network->hosts[from];
    h->processor =
        sim_network_later(now, h->processor) + sim_network_round(network->p.o);
    int64_t leaves = sim_network_later(h->processor, h->outgoing);
    int64_t sent =
        leaves + (bytes ? sim_network_round((double)(bytes - 1) * network->p.G) : 0);
    h->outgoing = sent + sim_network_round(network->p.g);
    int64_t arrival = sent + sim_network_latency(network);
    if (network->p.latency != PCOLL_LATENCY_CONSTANT) { /* It may overtake others. */
        struct sim_lane *lane = sim_network_lane(network, from, to, tag);
        arrival = lane->last = sim_network_later(lane->last, arrival);
    }
    return (struct sim_flight){.sent = sent, .arrival = arrival};
}

int64_t sim_network_free_at(const struct sim_network *network)
{
    int64_t free_at = 0;
    for (uint32_t i = 0; i < network->size; i++) {
        const struct sim_host *h = &network->hosts[i];
        free_at = sim_network_later(free_at, h->processor);
        free_at = sim_network_later(free_at, h->outgoing);
        free_at = sim_network_later(free_at, h->incoming);
    }
    return free_at;
}

int64_t sim_network_receive(struct sim_network *network, uint32_t to, int64_t now)
{
    struct sim_host *h = &network->hosts[to];
    int64_t begin = sim_network_later(now, h->incoming);
    h->incoming = begin + sim_network_round(network->p.g);
    h->processor =
        sim_network_later(begin, h->processor) + sim_network_round(network->p.o);
    return h->processor;
}

/* The heap. */

static bool sim_heap_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void sim_heap_push(struct sim_heap *heap, struct sim_event h)
{
    if (heap->count == heap->capacity) {
        heap->capacity = heap->capacity ? 2 * heap->capacity : 1024;
        heap->events =
            sim_must(realloc(heap->events, heap->capacity * sizeof *heap->events));
    }
    h.order = heap->order++;
    size_t hole = heap->count++;
    while (hole && sim_heap_before(&h, &heap->events[(hole - 1) / 2])) {
        heap->events[hole] = heap->events[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap->events[hole] = h;
}

struct sim_event sim_heap_pop(struct sim_heap *heap)
{
    struct sim_event top = heap->events[0], last = heap->events[--heap->count];
    size_t hole = 0;
    for (size_t child; (child = 2 * hole + 1) < heap->count; hole = child) {
        if (child + 1 < heap->count &&
            sim_heap_before(&heap->events[child + 1], &heap->events[child]))
            child++;
        if (!sim_heap_before(&heap->events[child], &last))
            break;
        heap->events[hole] = heap->events[child];
    }
    heap->events[hole] = last;
    return top;
}

/* Gatherings. */

static struct sim_gathering *sim_gathering_find(struct sim_gathering **list,
                                                uint32_t size,
                                                const struct sim_channel *channel,
                                                const struct native_call *call,
                                                size_t bytes)
{
    struct sim_gathering *gathering = *list;
    while (gathering && (gathering->channel != channel->number ||
                         gathering->number != channel->calls))
        gathering = gathering->next;
    if (gathering)
        return gathering;
    gathering = sim_must(calloc(1, sizeof *gathering));
    *gathering = (struct sim_gathering){
        .channel = channel->number,
        .number = channel->calls,
        .bytes = bytes,
        .reduce = call->reduce,
        .calls = sim_must(calloc(size, sizeof *gathering->calls)),
        .inputs = sim_must(calloc(size, sizeof *gathering->inputs)),
        .cookies = sim_must(calloc(size, sizeof *gathering->cookies)),
        .next = *list};
    *list = gathering;
    return gathering;
}

/* Reduce the inputs and copy the result into the buffers of all ranks that take
 * part. */
static void sim_gathering_add_up(struct sim_gathering *gathering, uint32_t size)
{
    uint32_t first = 0;
    while (!gathering->inputs[first])
        first++;
    char *sum = gathering->inputs[first];
    for (uint32_t i = first + 1; i < size; i++)
        if (gathering->inputs[i])
            gathering->reduce(sum, sum, gathering->inputs[i],
                              gathering->calls[first].count);
    for (uint32_t i = 0; i < size; i++)
        if (gathering->inputs[i])
            memcpy(gathering->calls[i].data, sum, gathering->bytes);
}

int sim_gathering_enter(struct sim_gathering **list, uint32_t size, uint32_t parts,
                        uint32_t rank, struct sim_channel *channel,
                        const struct native_call *call, uint64_t cookie,
                        struct sim_gathering **complete)
{
    size_t bytes = call->count * dtype_find(call->dtype)->size;
    struct sim_gathering *gathering =
        sim_gathering_find(list, size, channel, call, bytes);
    channel->calls++;
    *complete = NULL;
    if (gathering->bytes != bytes || gathering->reduce != call->reduce)
        return fail(PCOLL_EPROTOCOL, "together, calls of %zu and of %zu bytes",
                    gathering->bytes, bytes);
    gathering->calls[rank] = *call;
    gathering->cookies[rank] = cookie;
    gathering->inputs[rank] = sim_must(malloc(bytes + 1));
    memcpy(gathering->inputs[rank], call->data, bytes);
    memset(call->data, 0xff, bytes); /* no rank may read it before the end */
    if (++gathering->arrived < parts)
        return PCOLL_OK;
    sim_gathering_add_up(gathering, size);
    *complete = gathering;
    return PCOLL_OK;
}

void sim_gathering_end(struct sim_gathering **list, struct sim_gathering *gathering,
                       uint32_t size)
{
    while (*list != gathering)
        list = &(*list)->next;
    *list = gathering->next;
    for (uint32_t i = 0; i < size; i++)
        free(gathering->inputs[i]);
    free(gathering->inputs);
    free(gathering->calls);
    free(gathering->cookies);
    free(gathering);
}
