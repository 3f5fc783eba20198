/* SPDX-License-Identifier: Apache-2.0 */
/* LogGP clocks of the ranks, the draw of latencies, and the lanes that keep order. */
#include "transport/sim/sim_network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/dtypes.h"

/* Time of the last arrival on a (sender, receiver, tag). */
struct lane {
    uint64_t key;
    int64_t last;
};

/* From when on each part of a rank is free. */
struct host {
    int64_t processor, outgoing, incoming;
};

struct network {
    pcoll_network p;
    uint32_t size;
    uint64_t seed, drawn;
    struct host *hosts;
    struct lane *lanes;               /* a hash table with linear probing */
    size_t lane_count, lane_capacity; /* a power of two */
};

static double const longest = 3.6e12;         /* an hour */
static double const longest_latency = 3.6e15; /* a draw may be longer than the mean */

static int check_time(const char *name, double value, double most)
{
    if (value >= 0 && value <= most) /* not a NaN either */
        return PCOLL_OK;
    return fail(PCOLL_EINVAL, "%s: expected 0 to %g ns, got %g", name, most, value);
}

int network_check(const pcoll_network *p)
{
    int rc = check_time("L (latency)", p->L, longest);
    if (rc == PCOLL_OK)
        rc = check_time("o (overhead)", p->o, longest);
    if (rc == PCOLL_OK)
        rc = check_time("g (gap)", p->g, longest);
    if (rc == PCOLL_OK)
        rc = check_time("G (gap per byte)", p->G, 1e6);
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

static int64_t rounded(double nanoseconds)
{
    return (int64_t)(nanoseconds + 0.5);
}

struct network *network_create(const pcoll_network *parameters, uint32_t size,
                               uint64_t seed)
{
    struct network *n = must(calloc(1, sizeof *n));
    n->p = *parameters;
    n->size = size;
    n->seed = seed;
    n->hosts = must(calloc(size, sizeof *n->hosts));
    n->lane_capacity = 1024;
    n->lanes = must(calloc(n->lane_capacity, sizeof *n->lanes));
    return n;
}

void network_free(struct network **at)
{
    free((*at)->hosts);
    free((*at)->lanes);
    free(*at);
    *at = NULL;
}

uint32_t network_random(struct network *n, uint32_t bound)
{
    return splitmix_below(n->seed, n->drawn++, bound);
}

/* Uniform in (0, 1). */
static double fraction(struct network *n)
{
    return ((double)(splitmix_at(n->seed, n->drawn++) >> 12) + 0.5) * 0x1p-52;
}

/* Every distribution has the mean L. */
int64_t network_latency(struct network *n)
{
    const pcoll_network *p = &n->p;
    double latency = p->L;
    switch ((enum pcoll_latency)p->latency) {
    case PCOLL_LATENCY_CONSTANT:
        break;
    case PCOLL_LATENCY_UNIFORM:
        latency *= 1 + p->spread * (2 * fraction(n) - 1);
        break;
    case PCOLL_LATENCY_EXPONENTIAL:
        latency *= -log(fraction(n));
        break;
    case PCOLL_LATENCY_LOGNORMAL: { /* Box and Muller */
        double radius = sqrt(-2 * log(fraction(n)));
        double normal = radius * cos(2 * 3.14159265358979323846 * fraction(n));
        latency *= exp(p->spread * normal - p->spread * p->spread / 2);
        break;
    }
    }
    return rounded(latency < longest_latency ? latency : longest_latency);
}

static struct lane *find_lane(struct lane *lanes, size_t capacity, uint64_t key)
{
    size_t i = splitmix_mix(key) & (capacity - 1);
    while (lanes[i].key && lanes[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &lanes[i];
}

static void grow_lanes(struct network *n)
{
    size_t capacity = 2 * n->lane_capacity;
    struct lane *lanes = must(calloc(capacity, sizeof *lanes));
    for (size_t i = 0; i < n->lane_capacity; i++)
        if (n->lanes[i].key)
            *find_lane(lanes, capacity, n->lanes[i].key) = n->lanes[i];
    free(n->lanes);
    n->lanes = lanes;
    n->lane_capacity = capacity;
}

static struct lane *lane_of(struct network *n, uint32_t from, uint32_t to, uint32_t tag)
{
    uint64_t pair = splitmix_mix(((uint64_t)from << 32 | to) + 1);
    uint64_t key = (pair ^ splitmix_mix(tag)) | 1;
    if (2 * (n->lane_count + 1) > n->lane_capacity)
        grow_lanes(n);
    struct lane *lane = find_lane(n->lanes, n->lane_capacity, key);
    n->lane_count += !lane->key;
    lane->key = key;
    return lane;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct flight network_send(struct network *n, uint32_t from, uint32_t to, uint32_t tag,
                           size_t bytes, int64_t now)
{
    struct host *h = &n->hosts[from];
    h->processor = later(now, h->processor) + rounded(n->p.o);
    int64_t leaves = later(h->processor, h->outgoing);
    int64_t sent = leaves + (bytes ? rounded((double)(bytes - 1) * n->p.G) : 0);
    h->outgoing = sent + rounded(n->p.g);

    struct lane *lane = lane_of(n, from, to, tag);
    lane->last = later(lane->last, sent + network_latency(n));
    return (struct flight){.sent = sent, .arrival = lane->last};
}

int64_t network_free_at(const struct network *n)
{
    int64_t free_at = 0;
    for (uint32_t i = 0; i < n->size; i++) {
        const struct host *h = &n->hosts[i];
        free_at = later(free_at, later(h->processor, later(h->outgoing, h->incoming)));
    }
    return free_at;
}

int64_t network_receive(struct network *n, uint32_t to, int64_t now)
{
    struct host *h = &n->hosts[to];
    int64_t begin = later(now, h->incoming);
    h->incoming = begin + rounded(n->p.g);
    h->processor = later(begin, h->processor) + rounded(n->p.o);
    return h->processor;
}

/* A binary heap. */

static bool before(const struct happening *a, const struct happening *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void sim_heap_push(struct queue *q, struct happening h)
{
    if (q->count == q->capacity) {
        q->capacity = q->capacity ? 2 * q->capacity : 1024;
        q->heap = must(realloc(q->heap, q->capacity * sizeof *q->heap));
    }
    h.order = q->order++;
    size_t hole = q->count++;
    while (hole && before(&h, &q->heap[(hole - 1) / 2])) {
        q->heap[hole] = q->heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    q->heap[hole] = h;
}

struct happening sim_heap_pop(struct queue *q)
{
    struct happening top = q->heap[0], last = q->heap[--q->count];
    size_t hole = 0;
    for (size_t child; (child = 2 * hole + 1) < q->count; hole = child) {
        if (child + 1 < q->count && before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!before(&q->heap[child], &last))
            break;
        q->heap[hole] = q->heap[child];
    }
    q->heap[hole] = last;
    return top;
}

/* Calls of all ranks together. */

static struct gathering *gathering_find(struct gathering **list, uint32_t size,
                                        const struct channel *channel,
                                        const struct native_call *call, size_t bytes)
{
    for (struct gathering *g = *list; g; g = g->next)
        if (g->channel == channel->number && g->number == channel->calls)
            return g;
    struct gathering *g = must(calloc(1, sizeof *g));
    *g = (struct gathering){.channel = channel->number,
                            .number = channel->calls,
                            .bytes = bytes,
                            .reduce = call->reduce,
                            .calls = must(calloc(size, sizeof *g->calls)),
                            .inputs = must(calloc(size, sizeof *g->inputs)),
                            .cookies = must(calloc(size, sizeof *g->cookies)),
                            .next = *list};
    *list = g;
    return g;
}

/* Into all the ranks' buffers. */
static void add_up(struct gathering *g, uint32_t size)
{
    uint32_t first = 0;
    while (!g->inputs[first])
        first++;
    char *sum = g->inputs[first];
    for (uint32_t i = first + 1; i < size; i++)
        if (g->inputs[i])
            g->reduce(sum, sum, g->inputs[i], g->calls[first].count);
    for (uint32_t i = 0; i < size; i++)
        if (g->inputs[i])
            memcpy(g->calls[i].data, sum, g->bytes);
}

int gathering_enter(struct gathering **list, uint32_t size, uint32_t parts,
                    uint32_t rank, struct channel *channel,
                    const struct native_call *call, uint64_t cookie,
                    struct gathering **complete)
{
    size_t bytes = call->count * dtype_find(call->dtype)->size;
    struct gathering *g = gathering_find(list, size, channel, call, bytes);
    channel->calls++;
    *complete = NULL;
    if (g->bytes != bytes || g->reduce != call->reduce)
        return fail(PCOLL_EPROTOCOL, "together, calls of %zu and of %zu bytes",
                    g->bytes, bytes);
    g->calls[rank] = *call;
    g->cookies[rank] = cookie;
    g->inputs[rank] = must(malloc(bytes + 1));
    memcpy(g->inputs[rank], call->data, bytes);
    memset(call->data, 0xff, bytes); /* nobody may read it before the end */
    if (++g->arrived < parts)
        return PCOLL_OK;
    add_up(g, size);
    *complete = g;
    return PCOLL_OK;
}

void gathering_end(struct gathering **list, struct gathering *g, uint32_t size)
{
    while (*list != g)
        list = &(*list)->next;
    *list = g->next;
    for (uint32_t i = 0; i < size; i++)
        free(g->inputs[i]);
    free(g->inputs);
    free(g->calls);
    free(g->cookies);
    free(g);
}
