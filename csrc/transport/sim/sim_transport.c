/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints of the ranks, and the execution of events; see sim_transport.h. */
#include "transport/sim/sim_transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "kernels/reduce.h"

static const uint32_t control_tag = UINT32_MAX;

struct sim_message {
    struct sim_endpoint *from, *to;
    uint32_t tag;
    const void *source; /* read when the send completes */
    size_t bytes;
    uint64_t cookie; /* of the send */
    bool rendezvous; /* the send completes when it is received */
    struct control control;
    struct sim_message *next; /* in a list of unexpected messages */
    unsigned char data[];
};

struct sim_receive {
    uint32_t peer, tag;
    void *data;
    size_t capacity;
    uint64_t cookie;
    struct sim_receive *next;
};

struct sim_endpoint {
    struct transport base;
    struct sim *sim;
    struct sim_epoch *epoch;
    uint32_t channels; /* opened so far */
    struct sim_receive *posted;
    struct sim_message *unexpected;
    struct transport_event *events; /* not yet polled */
    struct transport_event *polled; /* returned by the last poll: must stay */
    int count, capacity, polled_capacity, pending_sends;
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
    uint64_t messages;
    struct sim_network *network;
    struct sim_heap queue;
    struct sim_epoch *epoch; /* the newest communicator */
    uint64_t *dead;          /* set of ranks */
    int64_t *lost_after;     /* by sender and receiver; for dead senders */
};

static struct sim_endpoint *sim_endpoint_of(struct transport *transport)
{
    return (struct sim_endpoint *)transport;
}

uint32_t sim_random(struct sim *sim, uint32_t bound)
{
    return sim_network_random(sim->network, bound);
}

int64_t sim_now(const struct sim *sim)
{
    return sim->now;
}

int64_t sim_free_at(const struct sim *sim)
{
    return sim_network_free_at(sim->network);
}

uint64_t sim_messages(const struct sim *sim)
{
    return sim->messages;
}

static bool sim_one_in(struct sim *sim, uint32_t n)
{
    return n && sim_random(sim, n) == 0;
}

static int64_t sim_draw_time(struct sim *sim, int64_t longest)
{
    uint32_t bound = longest < UINT32_MAX - 1 ? (uint32_t)longest + 1 : UINT32_MAX;
    return bound > 1 ? sim_random(sim, bound) : 0;
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
    struct sim_flight f =
        sim_network_send(sim->network, transport->rank, peer, tag, bytes, sim->now);
    int64_t over = sim->options.hostile
                       ? sim->now + sim_draw_time(sim, f.arrival - sim->now)
                       : f.sent;
    endpoint->pending_sends++;
    message->rendezvous = sim->options.hostile && sim_random(sim, 2);
    if (!message->rendezvous)
        sim_heap_push(&sim->queue, (struct sim_event){.time = over,
                                                      .kind = SEND_OVER,
                                                      .rank = transport->rank,
                                                      .message = message});
    sim_heap_push(&sim->queue, (struct sim_event){.time = f.arrival,
                                                  .kind = ARRIVAL,
                                                  .rank = peer,
                                                  .message = message});
    return PCOLL_OK;
}

static int sim_control(struct transport *transport, uint32_t peer,
                       const struct control *control)
{
    struct sim *sim = sim_endpoint_of(transport)->sim;
    struct sim_message *message = sim_new_message(transport, peer, control_tag, 0);
    message->control = *control;
    struct sim_flight f = sim_network_send(sim->network, transport->rank, peer,
                                           control_tag, sizeof *control, sim->now);
    sim_heap_push(&sim->queue, (struct sim_event){.time = f.arrival,
                                                  .kind = ARRIVAL,
                                                  .rank = peer,
                                                  .message = message});
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
    sim_add_event(endpoint,
                  (struct transport_event){.kind = TRANSPORT_DONE,
                                           .cookie = receive->cookie,
                                           .bytes = message->bytes,
                                           .source = message->from->base.rank});
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
    for (struct sim_message **at = &endpoint->unexpected; *at; at = &(*at)->next) {
        struct sim_message *message = *at;
        if (message->from->base.rank != peer || message->tag != tag)
            continue;
        *at = message->next;
        sim_complete_recv(endpoint, receive, message);
        sim_wake(endpoint->sim, transport->rank, 0, 0);
        return PCOLL_OK;
    }
    struct sim_receive **end = &endpoint->posted;
    while (*end)
        end = &(*end)->next;
    *end = receive;
    return PCOLL_OK;
}

/* Enter a gathering. The last rank schedules the completion for each rank
 * separately. */
static int sim_gather(struct transport *transport, struct sim_channel *channel,
                      const struct native_call *call, uint64_t cookie,
                      enum sim_event_kind over)
{
    struct sim *sim = sim_endpoint_of(transport)->sim;
    struct sim_epoch *now = sim_endpoint_of(transport)->epoch;
    struct sim_gathering *complete;
    int rc = sim_gathering_enter(&now->gatherings, sim->options.size, now->living,
                                 transport->rank, channel, call, cookie, &complete);
    if (!complete)
        return rc;
    for (uint32_t i = 0; i < sim->options.size; i++)
        if (complete->inputs[i])
            sim_heap_push(
                &sim->queue,
                (struct sim_event){.time = sim->now + sim_network_latency(sim->network),
                                   .kind = over,
                                   .rank = i,
                                   .endpoint = &now->endpoints[i],
                                   .token = complete->cookies[i]});
    sim_gathering_end(&now->gatherings, complete, sim->options.size);
    return rc;
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
    int count = endpoint->count, capacity = endpoint->capacity;
    endpoint->events = endpoint->polled;
    endpoint->capacity = endpoint->polled_capacity;
    endpoint->polled = fresh;
    endpoint->polled_capacity = capacity;
    endpoint->count = 0;
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
    for (struct sim_receive **at = &endpoint->posted; *at; at = &(*at)->next) {
        struct sim_receive *receive = *at;
        if (receive->peer != message->from->base.rank || receive->tag != message->tag)
            continue;
        *at = receive->next;
        sim_complete_recv(endpoint, receive, message);
        return;
    }
    message->next = NULL;
    struct sim_message **end = &endpoint->unexpected;
    while (*end)
        end = &(*end)->next;
    *end = message;
}

void sim_wake(struct sim *sim, uint32_t rank, int64_t delay, uint64_t token)
{
    sim_heap_push(&sim->queue, (struct sim_event){.time = sim->now + delay,
                                                  .kind = WAKE,
                                                  .rank = rank,
                                                  .token = token});
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
        event->time = sim_network_receive(sim->network, event->rank, sim->now);
        event->kind = DELIVERY;
        if (event->time > sim->now) {
            sim_heap_push(&sim->queue, *event);
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
    while (sim->queue.count && sim->queue.events[0].time <= until) {
        struct sim_event event = sim_heap_pop(&sim->queue);
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
    int rc = sim_network_check(&options->network);
    if (rc != PCOLL_OK)
        return rc;
    struct sim *sim = sim_must(calloc(1, sizeof *sim));
    sim->options = *options;
    sim->network = sim_network_create(&options->network, options->size, options->seed);
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
    for (size_t i = 0; i < sim->queue.count; i++)
        if (sim->queue.events[i].kind == WAKE && sim->queue.events[i].rank == rank)
            sim->queue.events[i].token = 0;
}

void sim_shrink(struct sim *sim)
{
    CHECK(sim->epoch);
    sim_begin_epoch(sim);
}

static void sim_end_epoch(struct sim *sim)
{
    struct sim_epoch *last = sim->epoch;
    sim->epoch = last->older;
    for (uint32_t i = 0; i < sim->options.size; i++) {
        struct sim_endpoint *endpoint = &last->endpoints[i];
        for (struct sim_receive *r = endpoint->posted, *next; r; r = next) {
            next = r->next;
            free(r);
        }
        for (struct sim_message *m = endpoint->unexpected, *next; m; m = next) {
            next = m->next;
            free(m);
        }
        free(endpoint->events);
        free(endpoint->polled);
    }
    while (last->gatherings)
        sim_gathering_end(&last->gatherings, last->gatherings, sim->options.size);
    free(last->endpoints);
    free(last->failed);
    free(last);
}

void sim_free(struct sim **at)
{
    struct sim *sim = *at;
    for (size_t i = 0; i < sim->queue.count; i++) { /* each message has one event */
        const struct sim_event *event = &sim->queue.events[i];
        if (event->kind == ARRIVAL || event->kind == DELIVERY)
            free(event->message);
    }
    while (sim->epoch)
        sim_end_epoch(sim);
    free(sim->dead);
    free(sim->lost_after);
    free(sim->queue.events);
    sim_network_free(&sim->network);
    free(sim);
    *at = NULL;
}

struct transport *sim_endpoint(struct sim *sim, uint32_t rank)
{
    return &sim->epoch->endpoints[rank].base;
}
