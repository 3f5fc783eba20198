/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network, the endpoints of the ranks, and the execution of events; see sim_transport.h.
 *
 * Network: LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995) with a latency
 * that may be random, and MPI's order: messages of one (sender, receiver, tag) never
 * overtake each other, all others may. Sending k bytes occupies the sender's processor
 * for o, then its outgoing link for (k-1) G, and for g more before the next message.
 * The last byte arrives L later. Receiving occupies the receiver's incoming link for g
 * and its processor for o. Not modeled: the receiver's link is not occupied for (k-1) G
 * again, so several senders to one receiver slow each other down by g only; and reductions
 * cost nothing.
 *
 * Events: a binary heap, earliest first. Events of the same time keep the order in
 * which they were pushed.
 *
 * Gatherings: agreements, and allreduces of the MPI library. The k-th call of each rank
 * on a channel belongs to the k-th calls of the other ranks; the inputs are reduced in
 * rank order.
 */
#include "transport/sim/sim_transport.h"

#include <math.h>
#include <string.h>
#include <sys/queue.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "base/random.h"
#include "kernels/reduce.h"

static const uint32_t control_tag = UINT32_MAX;
static double const longest = 3.6e12;         /* one hour */
static double const longest_latency = 3.6e15; /* a draw may be longer than the mean */

/* The times from which the parts of a rank are free. */
struct sim_host {
    int64_t processor, outgoing, incoming;
};

/* A (sender, receiver, tag): its last arrival, which later messages do not overtake. */
struct sim_lane {
    uint64_t key;
    int64_t last;
};

enum sim_event_kind { SEND_OVER, ARRIVAL, DELIVERY, AGREEMENT_OVER, NATIVE_OVER, WAKE };

struct sim_event {
    int64_t time;
    uint64_t order;
    enum sim_event_kind kind;
    uint32_t rank;
    uint64_t token; /* WAKE; AGREEMENT_OVER, NATIVE_OVER: cookie */
    struct sim_message *message;
    struct sim_endpoint *endpoint; /* AGREEMENT_OVER, NATIVE_OVER */
};

/* A rank's end of a channel. Channel 0 is that of agreements; channel k > 0 is the k-th
 * that each rank has opened for allreduces of the library. */
struct sim_channel {
    uint32_t number;
    uint64_t calls;
};

/* Calls that belong together. */
struct sim_gathering {
    struct sim_channel channel;
    uint32_t arrived;
    size_t bytes;
    void (*reduce)(void *, const void *, const void *, size_t);
    struct sim_gathering *next;
    struct sim_call {
        struct native_call call;
        uint64_t cookie;
        char *input; /* A copy: MPI may read the buffer at any time. NULL: no call. */
    } calls[];       /* by rank */
};

struct sim_message {
    struct sim_endpoint *from, *to;
    uint32_t tag;
    const void *source; /* read when the send completes */
    size_t bytes;
    uint64_t cookie; /* of the send */
    bool rendezvous; /* the send completes when it is received */
    struct control control;
    STAILQ_ENTRY(sim_message) others; /* unexpected messages */
    unsigned char data[];
};

struct sim_receive {
    uint32_t peer, tag;
    void *data;
    size_t capacity;
    uint64_t cookie;
    STAILQ_ENTRY(sim_receive) others;
};

struct sim_endpoint {
    struct transport base;
    struct sim *sim;
    struct sim_epoch *epoch;
    uint32_t channels; /* opened so far */
    STAILQ_HEAD(, sim_receive) posted;
    STAILQ_HEAD(, sim_message) unexpected;
    struct transport_event *events; /* not yet polled */
    struct transport_event *polled; /* returned by the last poll: must stay */
    int count, capacity, pending_sends;
    struct sim_channel agreements;
    int64_t stalled_until;
};

/* A communicator: the ranks that lived when it was made. */
struct sim_epoch {
    struct sim_endpoint *endpoints; /* by rank */
    struct sim_gathering *gatherings;
    uint64_t *failed; /* the set of the other ranks */
    uint32_t living;
    struct sim_epoch *older;
};

struct sim {
    struct sim_options options;
    int64_t now;
    uint64_t messages, drawn;
    struct sim_host *hosts;
    struct sim_lane *lanes;           /* hash table with linear probing */
    size_t lane_count, lane_capacity; /* capacity: a power of two */
    struct sim_event *events;         /* a heap */
    size_t event_count, event_capacity;
    uint64_t order;
    struct sim_epoch *epoch; /* the newest communicator */
    uint64_t *dead;          /* set of ranks */
    int64_t *lost_after;     /* by sender and receiver; for dead senders */
};

static struct sim_endpoint *sim_endpoint_of(struct transport *transport)
{
    return (struct sim_endpoint *)transport;
}

int64_t sim_now(const struct sim *sim)
{
    return sim->now;
}

uint64_t sim_messages(const struct sim *sim)
{
    return sim->messages;
}

uint32_t sim_random(struct sim *sim, uint32_t bound)
{
    return splitmix_below(sim->options.seed, sim->drawn++, bound);
}

static bool sim_one_in(struct sim *sim, uint32_t n)
{
    return n && sim_random(sim, n) == 0;
}

static int64_t sim_draw_time(struct sim *sim, int64_t most)
{
    uint32_t bound = most < UINT32_MAX - 1 ? (uint32_t)most + 1 : UINT32_MAX;
    return bound > 1 ? sim_random(sim, bound) : 0;
}

/* The network. */

static int sim_check_time(const char *name, double value, double most)
{
    if (value >= 0 && value <= most) /* excludes NaN */
        return PCOLL_OK;
    return fail(PCOLL_EINVAL, "%s: expected 0 to %g ns, got %g", name, most, value);
}

static int sim_check_network(const pcoll_network *p)
{
    int rc = sim_check_time("L (latency)", p->L, longest)
                 ?: sim_check_time("o (overhead)", p->o, longest)
                 ?: sim_check_time("g (gap)", p->g, longest)
                 ?: sim_check_time("G (gap per byte)", p->G, 1e6);
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

static int64_t sim_round(double nanoseconds)
{
    return (int64_t)(nanoseconds + 0.5);
}

/* Draw a number, uniform in (0, 1). */
static double sim_draw_fraction(struct sim *sim)
{
    return ((double)(splitmix_at(sim->options.seed, sim->drawn++) >> 12) + 0.5) *
           0x1p-52;
}

/* Draw a latency. All distributions have the mean L. */
static int64_t sim_draw_latency(struct sim *sim)
{
    const pcoll_network *p = &sim->options.network;
    double latency = p->L;
    switch ((enum pcoll_latency)p->latency) {
    case PCOLL_LATENCY_CONSTANT:
        break;
    case PCOLL_LATENCY_UNIFORM:
        latency *= 1 + p->spread * (2 * sim_draw_fraction(sim) - 1);
        break;
    case PCOLL_LATENCY_EXPONENTIAL:
        latency *= -log(sim_draw_fraction(sim));
        break;
    case PCOLL_LATENCY_LOGNORMAL: { /* Box and Muller */
        double radius = sqrt(-2 * log(sim_draw_fraction(sim)));
        double normal =
            radius * cos(2 * 3.14159265358979323846 * sim_draw_fraction(sim));
        latency *= exp(p->spread * normal - p->spread * p->spread / 2);
        break;
    }
    }
    return sim_round(latency < longest_latency ? latency : longest_latency);
}

static struct sim_lane *sim_find_lane(struct sim_lane *lanes, size_t capacity,
                                      uint64_t key)
{
    size_t i = splitmix_mix(key) & (capacity - 1);
    while (lanes[i].key && lanes[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &lanes[i];
}

static struct sim_lane *sim_lane_of(struct sim *sim, uint32_t from, uint32_t to,
                                    uint32_t tag)
{
    uint64_t pair = splitmix_mix(((uint64_t)from << 32 | to) + 1);
    uint64_t key = (pair ^ splitmix_mix(tag)) | 1;
    if (2 * (sim->lane_count + 1) > sim->lane_capacity) {
        size_t capacity = sim->lane_capacity ? 2 * sim->lane_capacity : 1024;
        struct sim_lane *lanes = sim_must(calloc(capacity, sizeof *lanes));
        for (size_t i = 0; i < sim->lane_capacity; i++)
            if (sim->lanes[i].key)
                *sim_find_lane(lanes, capacity, sim->lanes[i].key) = sim->lanes[i];
        free(sim->lanes);
        sim->lanes = lanes;
        sim->lane_capacity = capacity;
    }
    struct sim_lane *lane = sim_find_lane(sim->lanes, sim->lane_capacity, key);
    sim->lane_count += !lane->key;
    lane->key = key;
    return lane;
}

static int64_t sim_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Send a message now. Return when its last byte arrives at the receiver's link. *sent: when that
 * byte leaves, and the sender's buffer is free. */
static int64_t sim_transmit(struct sim *sim, uint32_t from, uint32_t to, uint32_t tag,
                            size_t bytes, int64_t *sent)
{
    const pcoll_network *p = &sim->options.network;
    struct sim_host *h = &sim->hosts[from];
    h->processor = sim_later(sim->now, h->processor) + sim_round(p->o);
    *sent = sim_later(h->processor, h->outgoing) +
            (bytes ? sim_round((double)(bytes - 1) * p->G) : 0);
    h->outgoing = *sent + sim_round(p->g);
    int64_t arrival = *sent + sim_draw_latency(sim);
    if (p->latency == PCOLL_LATENCY_CONSTANT) /* None overtakes another one. */
        return arrival;
    struct sim_lane *lane = sim_lane_of(sim, from, to, tag);
    return lane->last = sim_later(lane->last, arrival);
}

/* Receive a message that arrives now. Return when that is complete. */
static int64_t sim_receive_at(struct sim *sim, uint32_t to)
{
    struct sim_host *h = &sim->hosts[to];
    int64_t begin = sim_later(sim->now, h->incoming);
    h->incoming = begin + sim_round(sim->options.network.g);
    h->processor = sim_later(begin, h->processor) + sim_round(sim->options.network.o);
    return h->processor;
}

int64_t sim_free_at(const struct sim *sim)
{
    int64_t free_at = 0;
    for (uint32_t i = 0; i < sim->options.size; i++) {
        const struct sim_host *h = &sim->hosts[i];
        free_at = sim_later(free_at, h->processor);
        free_at = sim_later(free_at, h->outgoing);
        free_at = sim_later(free_at, h->incoming);
    }
    return free_at;
}

/* Events. */

static bool sim_is_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void sim_push(struct sim *sim, struct sim_event event)
{
    if (sim->event_count == sim->event_capacity) {
        sim->event_capacity = sim->event_capacity ? 2 * sim->event_capacity : 1024;
        sim->events =
            sim_must(realloc(sim->events, sim->event_capacity * sizeof *sim->events));
    }
    struct sim_event *heap = sim->events;
    event.order = sim->order++;
    size_t hole = sim->event_count++;
    for (; hole && sim_is_before(&event, &heap[(hole - 1) / 2]); hole = (hole - 1) / 2)
        heap[hole] = heap[(hole - 1) / 2];
    heap[hole] = event;
}

/* There must be an event. */
static struct sim_event sim_pop(struct sim *sim)
{
    struct sim_event *heap = sim->events, top = heap[0],
                     last = heap[--sim->event_count];
    size_t hole = 0;
    for (size_t child; (child = 2 * hole + 1) < sim->event_count; hole = child) {
        if (child + 1 < sim->event_count &&
            sim_is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!sim_is_before(&heap[child], &last))
            break;
        heap[hole] = heap[child];
    }
    heap[hole] = last;
    return top;
}

void sim_wake(struct sim *sim, uint32_t rank, int64_t delay, uint64_t token)
{
    sim_push(sim,
             (struct sim_event){
                 .time = sim->now + delay, .kind = WAKE, .rank = rank, .token = token});
}

static void sim_add_event(struct sim_endpoint *endpoint, struct transport_event event)
{
    if (endpoint->count == endpoint->capacity) {
        endpoint->capacity = endpoint->capacity ? 2 * endpoint->capacity : 2;
        endpoint->events = sim_must(realloc(
            endpoint->events, (size_t)endpoint->capacity * sizeof *endpoint->events));
    }
    endpoint->events[endpoint->count++] = event;
}

/* Operations of the transport. */

static struct sim_message *sim_new_message(struct transport *transport, uint32_t peer,
                                           uint32_t tag, size_t bytes)
{
    struct sim_message *message = sim_must(malloc(sizeof *message + bytes));
    sim_endpoint_of(transport)->sim->messages++;
    *message =
        (struct sim_message){.from = sim_endpoint_of(transport),
                             .to = &sim_endpoint_of(transport)->epoch->endpoints[peer],
                             .tag = tag,
                             .bytes = bytes};
    return message;
}

static int sim_send(struct transport *transport, uint32_t peer, uint32_t tag,
                    const void *data, size_t bytes, uint64_t cookie)
{
    struct sim_endpoint *endpoint = sim_endpoint_of(transport);
    struct sim *sim = endpoint->sim;
    struct sim_message *message = sim_new_message(transport, peer, tag, bytes);
    message->source = data;
    message->cookie = cookie;
    int64_t over, arrival = sim_transmit(sim, transport->rank, peer, tag, bytes, &over);
    if (sim->options.hostile)
        over = sim->now + sim_draw_time(sim, arrival - sim->now);
    endpoint->pending_sends++;
    message->rendezvous = sim->options.hostile && sim_random(sim, 2);
    if (!message->rendezvous)
        sim_push(sim, (struct sim_event){.time = over,
                                         .kind = SEND_OVER,
                                         .rank = transport->rank,
                                         .message = message});
    sim_push(sim,
             (struct sim_event){
                 .time = arrival, .kind = ARRIVAL, .rank = peer, .message = message});
    return PCOLL_OK;
}

static int sim_control(struct transport *transport, uint32_t peer,
                       const struct control *control)
{
    struct sim *sim = sim_endpoint_of(transport)->sim;
    struct sim_message *message = sim_new_message(transport, peer, control_tag, 0);
    message->control = *control;
    int64_t sent, arrival = sim_transmit(sim, transport->rank, peer, control_tag,
                                         sizeof *control, &sent);
    sim_push(sim,
             (struct sim_event){
                 .time = arrival, .kind = ARRIVAL, .rank = peer, .message = message});
    return PCOLL_OK;
}

static void sim_end_send(struct sim_message *message)
{
    struct sim_endpoint *endpoint = message->from;
    memcpy(message->data, message->source, message->bytes);
    endpoint->pending_sends--;
    sim_add_event(endpoint, (struct transport_event){.kind = TRANSPORT_DONE,
                                                     .cookie = message->cookie});
}

static void sim_complete_recv(struct sim_endpoint *endpoint,
                              struct sim_receive *receive, struct sim_message *message)
{
    size_t bytes =
        message->bytes < receive->capacity ? message->bytes : receive->capacity;
    if (message->rendezvous) {
        sim_end_send(message);
        sim_wake(endpoint->sim, message->from->base.rank, 0, 0);
    }
    memcpy(receive->data, message->data, bytes);
    sim_add_event(endpoint, (struct transport_event){.kind = TRANSPORT_DONE,
                                                     .cookie = receive->cookie,
                                                     .bytes = message->bytes});
    free(message);
    free(receive);
}

static int sim_recv(struct transport *transport, uint32_t peer, uint32_t tag,
                    void *data, size_t capacity, uint64_t cookie)
{
    struct sim_endpoint *endpoint = sim_endpoint_of(transport);
    struct sim_receive *receive = sim_must(malloc(sizeof *receive));
    *receive = (struct sim_receive){
        .peer = peer, .tag = tag, .data = data, .capacity = capacity, .cookie = cookie};
    if (endpoint->sim->options.hostile)
        memset(data, 0xff, capacity);
    struct sim_message *message;
    STAILQ_FOREACH(message, &endpoint->unexpected, others)
    if (message->from->base.rank == peer && message->tag == tag) {
        STAILQ_REMOVE(&endpoint->unexpected, message, sim_message, others);
        sim_complete_recv(endpoint, receive, message);
        sim_wake(endpoint->sim, transport->rank, 0, 0);
        return PCOLL_OK;
    }
    STAILQ_INSERT_TAIL(&endpoint->posted, receive, others);
    return PCOLL_OK;
}

/* Return the place of a call's gathering in the list. */
static struct sim_gathering **sim_find_gathering(struct sim_epoch *epoch, uint32_t size,
                                                 const struct sim_channel *channel,
                                                 const struct native_call *call)
{
    struct sim_gathering **at = &epoch->gatherings;
    while (*at && ((*at)->channel.number != channel->number ||
                   (*at)->channel.calls != channel->calls))
        at = &(*at)->next;
    if (!*at) {
        *at = sim_must(calloc(1, sizeof **at + size * sizeof *(*at)->calls));
        (*at)->channel = *channel;
        (*at)->bytes = call->count * dtype_find(call->dtype)->size;
        (*at)->reduce = call->reduce;
    }
    return at;
}

/* Remove a gathering from its list and free it. */
static void sim_end_gathering(struct sim_gathering **at, uint32_t size)
{
    struct sim_gathering *gathering = *at;
    *at = gathering->next;
    for (uint32_t i = 0; i < size; i++)
        free(gathering->calls[i].input);
    free(gathering);
}

/* Enter a rank's call into its gathering. PCOLL_EPROTOCOL if another rank's call differs. The last
 * rank reduces the inputs, copies the result into the buffers of all ranks that take part, and
 * schedules the completion for each rank separately. */
static int sim_gather(struct transport *transport, struct sim_channel *channel,
                      const struct native_call *call, uint64_t cookie,
                      enum sim_event_kind over)
{
    struct sim *sim = sim_endpoint_of(transport)->sim;
    struct sim_epoch *now = sim_endpoint_of(transport)->epoch;
    struct sim_gathering **at =
                             sim_find_gathering(now, sim->options.size, channel, call),
                         *gathering = *at;
    struct sim_call *first = gathering->calls, *end = first + sim->options.size;
    size_t bytes = call->count * dtype_find(call->dtype)->size;
    channel->calls++;
    if (gathering->bytes != bytes || gathering->reduce != call->reduce)
        return fail(PCOLL_EPROTOCOL, "together, calls of %zu and of %zu bytes",
                    gathering->bytes, bytes);
    gathering->calls[transport->rank] =
        (struct sim_call){*call, cookie, sim_must(malloc(bytes + 1))};
    memcpy(gathering->calls[transport->rank].input, call->data, bytes);
    memset(call->data, 0xff, bytes); /* no rank may read it before the end */
    if (++gathering->arrived < now->living)
        return PCOLL_OK;
    while (!first->input)
        first++;
    for (struct sim_call *i = first + 1; i < end; i++)
        if (i->input)
            call->reduce(first->input, first->input, i->input, call->count);
    for (struct sim_call *i = first; i < end; i++) {
        uint32_t rank = (uint32_t)(i - gathering->calls);
        if (!i->input)
            continue;
        memcpy(i->call.data, first->input, bytes);
        sim_push(sim, (struct sim_event){.time = sim->now + sim_draw_latency(sim),
                                         .kind = over,
                                         .rank = rank,
                                         .endpoint = &now->endpoints[rank],
                                         .token = i->cookie});
    }
    sim_end_gathering(at, sim->options.size);
    return PCOLL_OK;
}

static int sim_agree(struct transport *transport, uint64_t *values, int count,
                     enum agree_op op, uint64_t cookie)
{
    int kernel = op == AGREE_SUM ? PCOLL_SUM : PCOLL_MAX;
    struct native_call call = {.data = values,
                               .count = (uint64_t)count,
                               .dtype = PCOLL_UINT64,
                               .reduce = reduce_kernel(kernel, PCOLL_UINT64)};
    return sim_gather(transport, &sim_endpoint_of(transport)->agreements, &call, cookie,
                      AGREEMENT_OVER);
}

static int sim_open(struct transport *transport, struct channel **out)
{
    struct sim_channel *channel = sim_must(malloc(sizeof *channel));
    *channel = (struct sim_channel){.number = ++sim_endpoint_of(transport)->channels};
    *out = (struct channel *)channel;
    return PCOLL_OK;
}

static int sim_opened(struct transport *transport, struct channel *channel)
{
    (void)transport, (void)channel;
    return PCOLL_OK;
}

static void sim_close(struct transport *transport, struct channel *channel)
{
    (void)transport;
    free(channel);
}

static int sim_native(struct transport *transport, struct channel *channel,
                      const struct native_call *call, uint64_t cookie)
{
    sim_endpoint_of(transport)->pending_sends++;
    return sim_gather(transport, (struct sim_channel *)channel, call, cookie,
                      NATIVE_OVER);
}

static int sim_poll(struct transport *transport, const struct transport_event **events)
{
    struct sim_endpoint *endpoint = sim_endpoint_of(transport);
    struct transport_event *fresh = endpoint->events;
    int count = endpoint->count;
    free(endpoint->polled);
    endpoint->polled = fresh;
    endpoint->events = NULL;
    endpoint->count = endpoint->capacity = 0;
    /* No caller may rely on the order of events within one poll. */
    bool shuffled = endpoint->sim->options.hostile && !endpoint->sim->options.in_order;
    for (int i = count - 1; i > 0 && shuffled; i--) {
        int j = (int)sim_random(endpoint->sim, (uint32_t)i + 1);
        struct transport_event event = fresh[i];
        fresh[i] = fresh[j];
        fresh[j] = event;
    }
    *events = fresh;
    return count;
}

static int sim_pending_sends(const struct transport *transport)
{
    return ((const struct sim_endpoint *)transport)->pending_sends;
}

static void sim_destroy_endpoint(struct transport *transport)
{
    (void)transport; /* freed with the simulation */
}

static int64_t sim_transport_now(const struct transport *transport)
{
    return ((const struct sim_endpoint *)transport)->sim->now;
}

static void sim_alarm(struct transport *transport, int64_t at)
{
    sim_wake(sim_endpoint_of(transport)->sim, transport->rank,
             at - sim_endpoint_of(transport)->sim->now, 0);
}

static const struct transport_ops sim_ops = {.send = sim_send,
                                             .recv = sim_recv,
                                             .control = sim_control,
                                             .agree = sim_agree,
                                             .open = sim_open,
                                             .opened = sim_opened,
                                             .close = sim_close,
                                             .native = sim_native,
                                             .poll = sim_poll,
                                             .pending = sim_pending_sends,
                                             .now = sim_transport_now,
                                             .alarm = sim_alarm,
                                             .destroy = sim_destroy_endpoint};

/* Execution of events. */

static void sim_deliver(struct sim_message *message)
{
    struct sim_endpoint *endpoint = message->to;
    if (message->tag == control_tag) {
        sim_add_event(endpoint,
                      (struct transport_event){.kind = TRANSPORT_CONTROL,
                                               .source = message->from->base.rank,
                                               .control = message->control});
        free(message);
        return;
    }
    struct sim_receive *receive;
    STAILQ_FOREACH(receive, &endpoint->posted, others)
    if (receive->peer == message->from->base.rank && receive->tag == message->tag) {
        STAILQ_REMOVE(&endpoint->posted, receive, sim_receive, others);
        sim_complete_recv(endpoint, receive, message);
        return;
    }
    STAILQ_INSERT_TAIL(&endpoint->unexpected, message, others);
}

/* Return whether the agent of a rank polls now. An agent that stalls polls later. */
static bool sim_agent_polls(struct sim *sim, uint32_t rank)
{
    struct sim_endpoint *endpoint = &sim->epoch->endpoints[rank];
    if (sim_one_in(sim, sim->options.spurious_one_in))
        sim_wake(sim, rank, sim_draw_time(sim, sim->options.stall_longest), 0);
    if (sim->now >= endpoint->stalled_until &&
        sim_one_in(sim, sim->options.stall_one_in)) {
        endpoint->stalled_until =
            sim->now + 1 + sim_draw_time(sim, sim->options.stall_longest);
        sim_wake(sim, rank, endpoint->stalled_until - sim->now, 0);
    }
    return sim->now >= endpoint->stalled_until;
}

/* Return whether an event is lost since its rank, or its sender, has died. */
static bool sim_is_lost(const struct sim *sim, const struct sim_event *event)
{
    bool comes = event->kind == ARRIVAL || event->kind == DELIVERY;
    uint32_t from = comes ? event->message->from->base.rank : 0;
    return bitset_has(sim->dead, event->rank) ||
           (event->kind == ARRIVAL && bitset_has(sim->dead, from) &&
            sim->now >= sim->lost_after[from * sim->options.size + event->rank]);
}

/* Execute an event. Return whether its rank has to poll. */
static bool sim_execute(struct sim *sim, struct sim_event *event)
{
    if (sim_is_lost(sim, event)) {
        if (event->kind == SEND_OVER)
            sim_end_send(event->message);
        else if (event->kind == ARRIVAL || event->kind == DELIVERY)
            free(event->message);
        return false;
    }
    switch (event->kind) {
    case SEND_OVER:
        sim_end_send(event->message);
        break;
    case ARRIVAL: /* At the receiver's link, which may still have to receive it. */
        event->time = sim_receive_at(sim, event->rank);
        event->kind = DELIVERY;
        if (event->time > sim->now) {
            sim_push(sim, *event);
            return false;
        }
        sim_deliver(event->message);
        break;
    case DELIVERY:
        sim_deliver(event->message);
        break;
    case AGREEMENT_OVER:
    case NATIVE_OVER:
        event->endpoint->pending_sends -= event->kind == NATIVE_OVER;
        sim_add_event(event->endpoint,
                      (struct transport_event){.kind = event->kind == NATIVE_OVER
                                                           ? TRANSPORT_DONE
                                                           : TRANSPORT_AGREED,
                                               .cookie = event->token});
        break;
    case WAKE:
        return true;
    }
    return sim_agent_polls(sim, event->rank);
}

bool sim_step_until(struct sim *sim, int64_t until, struct sim_stop *stop)
{
    while (sim->event_count && sim->events[0].time <= until) {
        struct sim_event event = sim_pop(sim);
        sim->now = event.time;
        bool looks = sim_execute(sim, &event);
        *stop = (struct sim_stop){
            .rank = event.rank, .woken = event.kind == WAKE, .token = event.token};
        if (looks)
            return true;
    }
    if (until != INT64_MAX && sim->now < until)
        sim->now = until;
    return false;
}

static void sim_begin_epoch(struct sim *sim)
{
    uint32_t size = sim->options.size;
    size_t words = bitset_words(size);
    struct sim_epoch *now = sim_must(calloc(1, sizeof *now));
    now->endpoints = sim_must(calloc(size, sizeof *now->endpoints));
    now->failed = sim_must(calloc(words, sizeof *now->failed));
    memcpy(now->failed, sim->dead, words * sizeof *now->failed);
    now->living = size - bitset_count(now->failed, words);
    for (uint32_t i = 0; i < size; i++) {
        struct sim_endpoint *endpoint = &now->endpoints[i];
        endpoint->sim = sim;
        endpoint->epoch = now;
        STAILQ_INIT(&endpoint->posted);
        STAILQ_INIT(&endpoint->unexpected);
        endpoint->base =
            (struct transport){.ops = &sim_ops,
                               .rank = i,
                               .size = size,
                               .living = now->living,
                               .failed = now->living < size ? now->failed : NULL,
                               .tags = UINT32_MAX - 1,
                               .threads = true};
    }
    now->older = sim->epoch;
    sim->epoch = now;
}

int sim_create(const struct sim_options *options, struct sim **out)
{
    if (options->size < 1)
        return fail(PCOLL_EINVAL, "ranks: expected at least 1, got 0");
    int rc = sim_check_network(&options->network);
    if (rc != PCOLL_OK)
        return rc;
    struct sim *sim = sim_must(calloc(1, sizeof *sim));
    sim->options = *options;
    sim->hosts = sim_must(calloc(options->size, sizeof *sim->hosts));
    sim->dead = sim_must(calloc(bitset_words(options->size), sizeof *sim->dead));
    sim_begin_epoch(sim);
    *out = sim;
    return PCOLL_OK;
}

void sim_kill(struct sim *sim, uint32_t rank)
{
    uint32_t size = sim->options.size;
    CHECK(rank < size && !bitset_has(sim->dead, rank));
    bitset_add(sim->dead, rank);
    if (!sim->lost_after)
        sim->lost_after =
            sim_must(calloc((size_t)size * size, sizeof *sim->lost_after));
    for (uint32_t to = 0; to < size; to++) {
        bool all = sim_random(sim, 2);
        int64_t later = sim_draw_time(sim, 2 * (int64_t)sim->options.network.L);
        sim->lost_after[rank * size + to] = all ? INT64_MAX : sim->now + later;
    }
}

void sim_revive(struct sim *sim, uint32_t rank)
{
    CHECK(rank < sim->options.size && bitset_has(sim->dead, rank));
    sim->dead[rank / 64] &= ~((uint64_t)1 << rank % 64);
    for (size_t i = 0; i < sim->event_count; i++)
        if (sim->events[i].kind == WAKE && sim->events[i].rank == rank)
            sim->events[i].token = 0;
}

void sim_shrink(struct sim *sim)
{
    sim_begin_epoch(sim);
}

static void sim_end_epoch(struct sim *sim)
{
    struct sim_epoch *last = sim->epoch;
    sim->epoch = last->older;
    for (uint32_t i = 0; i < sim->options.size; i++) {
        struct sim_endpoint *endpoint = &last->endpoints[i];
        for (struct sim_receive *r; (r = STAILQ_FIRST(&endpoint->posted)); free(r))
            STAILQ_REMOVE_HEAD(&endpoint->posted, others);
        for (struct sim_message *m; (m = STAILQ_FIRST(&endpoint->unexpected)); free(m))
            STAILQ_REMOVE_HEAD(&endpoint->unexpected, others);
        free(endpoint->events);
        free(endpoint->polled);
    }
    while (last->gatherings)
        sim_end_gathering(&last->gatherings, sim->options.size);
    free(last->endpoints);
    free(last->failed);
    free(last);
}

void sim_free(struct sim **at)
{
    struct sim *sim = *at;
    for (size_t i = 0; i < sim->event_count; i++) { /* each message has one event */
        const struct sim_event *event = &sim->events[i];
        if (event->kind == ARRIVAL || event->kind == DELIVERY)
            free(event->message);
    }
    while (sim->epoch)
        sim_end_epoch(sim);
    free(sim->dead);
    free(sim->lost_after);
    free(sim->events);
    free(sim->hosts);
    free(sim->lanes);
    free(sim);
    *at = NULL;
}

struct transport *sim_endpoint(struct sim *sim, uint32_t rank)
{
    return &sim->epoch->endpoints[rank].base;
}
