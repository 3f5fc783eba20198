/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints of the ranks, and what happens to them when its time has come. */
#include "transport/sim/sim_transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "kernels/reduce.h"
#include "transport/sim/sim_network.h"

static const uint32_t control_tag = UINT32_MAX;

struct message {
    struct endpoint *from, *to;
    uint32_t tag;
    const void *source; /* read when the send is over */
    size_t bytes;
    uint64_t cookie; /* of the send */
    bool rendezvous; /* the send ends when it is received */
    struct control control;
    struct message *next; /* in a list of unexpected ones */
    unsigned char data[];
};

struct posted {
    uint32_t peer, tag;
    void *data;
    size_t capacity;
    uint64_t cookie;
    struct posted *next;
};

struct endpoint {
    struct transport base;
    struct sim *sim;
    struct epoch *epoch;
    uint32_t channels; /* ever opened; number 0 is that of agreements */
    struct posted *posted;
    struct message *unexpected;
    struct transport_event *events; /* not yet polled */
    struct transport_event *polled; /* handed out last: must stay */
    int count, capacity, polled_capacity, pending_sends;
    struct channel agreements;
    int64_t stalled_until;
};

/* A communicator: those who lived when it was made. */
struct epoch {
    struct endpoint *endpoints; /* by rank */
    struct gathering *gatherings;
    uint64_t *failed; /* the others, a set */
    uint32_t living;
    struct epoch *older;
};

struct sim {
    struct sim_options options;
    int64_t now;
    uint64_t messages;
    struct network *network;
    struct queue queue;
    struct epoch *epoch; /* the newest */
    uint64_t *dead;      /* a set */
    int64_t *lost_after; /* by sender and receiver, of senders that have died */
};

static struct endpoint *of(struct transport *t)
{
    return (struct endpoint *)t;
}

uint32_t sim_random(struct sim *s, uint32_t bound)
{
    return network_random(s->network, bound);
}

int64_t sim_now(const struct sim *s)
{
    return s->now;
}

int64_t sim_free_at(const struct sim *s)
{
    return network_free_at(s->network);
}

uint64_t sim_messages(const struct sim *s)
{
    return s->messages;
}

static bool one_in(struct sim *s, uint32_t n)
{
    return n && sim_random(s, n) == 0;
}

static int64_t draw_time(struct sim *s, int64_t longest)
{
    uint32_t bound = longest < UINT32_MAX - 1 ? (uint32_t)longest + 1 : UINT32_MAX;
    return bound > 1 ? sim_random(s, bound) : 0;
}

static void add_event(struct endpoint *e, struct transport_event event)
{
    if (e->count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 16;
        e->events = must(realloc(e->events, (size_t)e->capacity * sizeof *e->events));
    }
    e->events[e->count++] = event;
}

/* The calls of the seam. */

static struct message *new_message(struct transport *t, uint32_t peer, uint32_t tag,
                                   size_t bytes)
{
    struct message *m = must(malloc(sizeof *m + bytes));
    of(t)->sim->messages++;
    *m = (struct message){.from = of(t),
                          .to = &of(t)->epoch->endpoints[peer],
                          .tag = tag,
                          .bytes = bytes};
    return m;
}

static int sim_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                    size_t bytes, uint64_t cookie)
{
    struct endpoint *e = of(t);
    struct sim *s = e->sim;
    struct message *m = new_message(t, peer, tag, bytes);
    m->source = data;
    m->cookie = cookie;
    struct flight f = network_send(s->network, t->rank, peer, tag, bytes, s->now);
    int64_t over =
        s->options.hostile ? s->now + draw_time(s, f.arrival - s->now) : f.sent;
    e->pending_sends++;
    m->rendezvous = s->options.hostile && sim_random(s, 2);
    if (!m->rendezvous)
        sim_heap_push(&s->queue, (struct happening){.time = over,
                                                    .kind = SEND_OVER,
                                                    .rank = t->rank,
                                                    .message = m});
    sim_heap_push(&s->queue,
                  (struct happening){
                      .time = f.arrival, .kind = ARRIVAL, .rank = peer, .message = m});
    return PCOLL_OK;
}

static int sim_control(struct transport *t, uint32_t peer,
                       const struct control *message)
{
    struct sim *s = of(t)->sim;
    struct message *m = new_message(t, peer, control_tag, 0);
    m->control = *message;
    struct flight f =
        network_send(s->network, t->rank, peer, control_tag, sizeof *message, s->now);
    sim_heap_push(&s->queue,
                  (struct happening){
                      .time = f.arrival, .kind = ARRIVAL, .rank = peer, .message = m});
    return PCOLL_OK;
}

static void end_send(struct message *m)
{
    struct endpoint *e = m->from;
    memcpy(m->data, m->source, m->bytes);
    e->pending_sends--;
    add_event(e, (struct transport_event){.kind = TRANSPORT_DONE, .cookie = m->cookie});
}

static void complete_recv(struct endpoint *e, struct posted *p, struct message *m)
{
    size_t bytes = m->bytes < p->capacity ? m->bytes : p->capacity;
    if (m->rendezvous) {
        end_send(m);
        sim_wake(e->sim, m->from->base.rank, 0, 0);
    }
    memcpy(p->data, m->data, bytes);
    add_event(e, (struct transport_event){.kind = TRANSPORT_DONE,
                                          .cookie = p->cookie,
                                          .bytes = m->bytes,
                                          .source = m->from->base.rank});
    free(m);
    free(p);
}

static int sim_recv(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                    size_t capacity, uint64_t cookie)
{
    struct endpoint *e = of(t);
    struct posted *p = must(malloc(sizeof *p));
    *p = (struct posted){
        .peer = peer, .tag = tag, .data = data, .capacity = capacity, .cookie = cookie};
    if (e->sim->options.hostile)
        memset(data, 0xff, capacity);
    for (struct message **at = &e->unexpected; *at; at = &(*at)->next) {
        struct message *m = *at;
        if (m->from->base.rank != peer || m->tag != tag)
            continue;
        *at = m->next;
        complete_recv(e, p, m);
        sim_wake(e->sim, t->rank, 0, 0);
        return PCOLL_OK;
    }
    struct posted **end = &e->posted;
    while (*end)
        end = &(*end)->next;
    *end = p;
    return PCOLL_OK;
}

/* Of the last one to come: over for each at a time of its own. */
static int gather(struct transport *t, struct channel *channel,
                  const struct native_call *call, uint64_t cookie,
                  enum happening_kind over)
{
    struct sim *s = of(t)->sim;
    struct epoch *now = of(t)->epoch;
    struct gathering *complete;
    int rc = gathering_enter(&now->gatherings, s->options.size, now->living, t->rank,
                             channel, call, cookie, &complete);
    if (!complete)
        return rc;
    for (uint32_t i = 0; i < s->options.size; i++)
        if (complete->inputs[i])
            sim_heap_push(&s->queue, (struct happening){
                                         .time = s->now + network_latency(s->network),
                                         .kind = over,
                                         .rank = i,
                                         .endpoint = &now->endpoints[i],
                                         .token = complete->cookies[i]});
    gathering_end(&now->gatherings, complete, s->options.size);
    return rc;
}

static int sim_agree(struct transport *t, uint64_t *values, int count, enum agree_op op,
                     uint64_t cookie)
{
    int kernel = op == AGREE_SUM ? PCOLL_SUM : PCOLL_MAX;
    struct native_call call = {.data = values,
                               .count = (uint64_t)count,
                               .dtype = PCOLL_UINT64,
                               .reduce = reduce_kernel(kernel, PCOLL_UINT64)};
    return gather(t, &of(t)->agreements, &call, cookie, AGREEMENT_OVER);
}

static int sim_open(struct transport *t, struct channel **out)
{
    *out = must(malloc(sizeof **out));
    **out = (struct channel){.number = ++of(t)->channels};
    return PCOLL_OK;
}

static int sim_opened(struct transport *t, struct channel *channel)
{
    (void)t;
    (void)channel;
    return PCOLL_OK;
}

static void sim_close(struct transport *t, struct channel *channel)
{
    (void)t;
    free(channel);
}

static int sim_native(struct transport *t, struct channel *channel,
                      const struct native_call *call, uint64_t cookie)
{
    of(t)->pending_sends++;
    return gather(t, channel, call, cookie, NATIVE_OVER);
}

/* The order within one poll is nobody's right. */
static void shuffle(struct sim *s, struct transport_event *events, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = (int)sim_random(s, (uint32_t)i + 1);
        struct transport_event event = events[i];
        events[i] = events[j];
        events[j] = event;
    }
}

static int sim_poll(struct transport *t, const struct transport_event **events)
{
    struct endpoint *e = of(t);
    struct transport_event *fresh = e->events;
    int count = e->count, capacity = e->capacity;
    e->events = e->polled;
    e->capacity = e->polled_capacity;
    e->polled = fresh;
    e->polled_capacity = capacity;
    e->count = 0;
    if (e->sim->options.hostile && !e->sim->options.in_order)
        shuffle(e->sim, fresh, count);
    *events = fresh;
    return count;
}

static int sim_pending_sends(const struct transport *t)
{
    return ((const struct endpoint *)t)->pending_sends;
}

static void sim_destroy_endpoint(struct transport *t)
{
    (void)t; /* freed with the simulation */
}

static int64_t sim_transport_now(const struct transport *t)
{
    return ((const struct endpoint *)t)->sim->now;
}

static void sim_alarm(struct transport *t, int64_t at)
{
    sim_wake(of(t)->sim, t->rank, at - of(t)->sim->now, 0);
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

/* What happens when its time has come. */

static void deliver(struct message *m)
{
    struct endpoint *e = m->to;
    if (m->tag == control_tag) {
        add_event(e, (struct transport_event){.kind = TRANSPORT_CONTROL,
                                              .source = m->from->base.rank,
                                              .control = m->control});
        free(m);
        return;
    }
    for (struct posted **at = &e->posted; *at; at = &(*at)->next) {
        struct posted *p = *at;
        if (p->peer != m->from->base.rank || p->tag != m->tag)
            continue;
        *at = p->next;
        complete_recv(e, p, m);
        return;
    }
    m->next = NULL;
    struct message **end = &e->unexpected;
    while (*end)
        end = &(*end)->next;
    *end = m;
}

/* At the receiver's link. False: there is something to look at already. */
static bool arrive(struct sim *s, struct happening *h)
{
    h->time = network_receive(s->network, h->rank, s->now);
    h->kind = DELIVERY;
    if (h->time > s->now)
        sim_heap_push(&s->queue, *h);
    else
        deliver(h->message);
    return h->time > s->now;
}

void sim_wake(struct sim *s, uint32_t rank, int64_t delay, uint64_t token)
{
    sim_heap_push(&s->queue, (struct happening){.time = s->now + delay,
                                                .kind = WAKE,
                                                .rank = rank,
                                                .token = token});
}

/* The rank has something to look at. Does its agent? One that stalls looks later. */
static bool agent_polls(struct sim *s, uint32_t rank)
{
    struct endpoint *e = &s->epoch->endpoints[rank];
    if (one_in(s, s->options.spurious_one_in))
        sim_wake(s, rank, draw_time(s, s->options.stall_longest), 0);
    if (s->now >= e->stalled_until && one_in(s, s->options.stall_one_in)) {
        e->stalled_until = s->now + 1 + draw_time(s, s->options.stall_longest);
        sim_wake(s, rank, e->stalled_until - s->now, 0);
    }
    return s->now >= e->stalled_until;
}

/* Of one who has died, or to one. */
static bool is_lost(const struct sim *s, const struct happening *h)
{
    bool comes = h->kind == ARRIVAL || h->kind == DELIVERY;
    uint32_t from = comes ? h->message->from->base.rank : 0;
    return bitset_has(s->dead, h->rank) ||
           (h->kind == ARRIVAL && bitset_has(s->dead, from) &&
            s->now >= s->lost_after[from * s->options.size + h->rank]);
}

/* What has been sent goes on alone. */
static bool lose(struct happening *h)
{
    if (h->kind == SEND_OVER)
        end_send(h->message);
    else if (h->kind == ARRIVAL || h->kind == DELIVERY)
        free(h->message);
    return false;
}

/* Carry it out. True: the rank concerned is to look at it. */
static bool happen(struct sim *s, struct happening *h)
{
    if (is_lost(s, h))
        return lose(h);
    switch (h->kind) {
    case SEND_OVER:
        end_send(h->message);
        break;
    case ARRIVAL:
        if (arrive(s, h))
            return false;
        break;
    case DELIVERY:
        deliver(h->message);
        break;
    case AGREEMENT_OVER:
        add_event(h->endpoint, (struct transport_event){.kind = TRANSPORT_AGREED,
                                                        .cookie = h->token});
        break;
    case NATIVE_OVER:
        h->endpoint->pending_sends--;
        add_event(h->endpoint,
                  (struct transport_event){.kind = TRANSPORT_DONE, .cookie = h->token});
        break;
    case WAKE:
        return true;
    }
    return agent_polls(s, h->rank);
}

bool sim_step(struct sim *s, struct sim_stop *stop)
{
    return sim_step_until(s, INT64_MAX, stop);
}

bool sim_step_until(struct sim *s, int64_t until, struct sim_stop *stop)
{
    while (s->queue.count && s->queue.heap[0].time <= until) {
        struct happening h = sim_heap_pop(&s->queue);
        s->now = h.time;
        bool looks = happen(s, &h);
        *stop = (struct sim_stop){
            .rank = h.rank, .woken = h.kind == WAKE, .token = h.token};
        if (looks)
            return true;
    }
    if (until != INT64_MAX && s->now < until)
        s->now = until;
    return false;
}

static void begin_epoch(struct sim *s)
{
    uint32_t size = s->options.size;
    size_t words = bitset_words(size);
    struct epoch *now = must(calloc(1, sizeof *now));
    now->endpoints = must(calloc(size, sizeof *now->endpoints));
    now->failed = must(calloc(words, sizeof *now->failed));
    memcpy(now->failed, s->dead, words * sizeof *now->failed);
    now->living = size - bitset_count(now->failed, words);
    for (uint32_t i = 0; i < size; i++) {
        struct endpoint *e = &now->endpoints[i];
        e->sim = s;
        e->epoch = now;
        e->base = (struct transport){.ops = &sim_ops,
                                     .rank = i,
                                     .size = size,
                                     .living = now->living,
                                     .failed = now->living < size ? now->failed : NULL,
                                     .tags = UINT32_MAX - 1,
                                     .threads = true};
    }
    now->older = s->epoch;
    s->epoch = now;
}

int sim_create(const struct sim_options *options, struct sim **out)
{
    if (options->size < 1)
        return fail(PCOLL_EINVAL, "ranks: expected at least 1, got 0");
    int rc = network_check(&options->network);
    if (rc != PCOLL_OK)
        return rc;
    struct sim *s = must(calloc(1, sizeof *s));
    s->options = *options;
    s->network = network_create(&options->network, options->size, options->seed);
    s->dead = must(calloc(bitset_words(options->size), sizeof *s->dead));
    begin_epoch(s);
    *out = s;
    return PCOLL_OK;
}

void sim_kill(struct sim *s, uint32_t rank)
{
    uint32_t size = s->options.size;
    CHECK(rank < size && !bitset_has(s->dead, rank));
    bitset_add(s->dead, rank);
    if (!s->lost_after)
        s->lost_after = must(calloc((size_t)size * size, sizeof *s->lost_after));
    for (uint32_t to = 0; to < size; to++) {
        bool all = sim_random(s, 2);
        int64_t later = draw_time(s, 2 * (int64_t)s->options.network.L);
        s->lost_after[rank * size + to] = all ? INT64_MAX : s->now + later;
    }
}

void sim_revive(struct sim *s, uint32_t rank)
{
    CHECK(rank < s->options.size && bitset_has(s->dead, rank));
    s->dead[rank / 64] &= ~((uint64_t)1 << rank % 64);
    for (size_t i = 0; i < s->queue.count; i++)
        if (s->queue.heap[i].kind == WAKE && s->queue.heap[i].rank == rank)
            s->queue.heap[i].token = 0;
}

void sim_shrink(struct sim *s)
{
    CHECK(s->epoch);
    begin_epoch(s);
}

static void free_endpoint(struct endpoint *e)
{
    while (e->posted) {
        struct posted *p = e->posted;
        e->posted = p->next;
        free(p);
    }
    while (e->unexpected) {
        struct message *m = e->unexpected;
        e->unexpected = m->next;
        free(m);
    }
    free(e->events);
    free(e->polled);
}

static void end_epoch(struct sim *s)
{
    struct epoch *last = s->epoch;
    s->epoch = last->older;
    for (uint32_t i = 0; i < s->options.size; i++)
        free_endpoint(&last->endpoints[i]);
    while (last->gatherings)
        gathering_end(&last->gatherings, last->gatherings, s->options.size);
    free(last->endpoints);
    free(last->failed);
    free(last);
}

void sim_free(struct sim **at)
{
    struct sim *s = *at;
    for (size_t i = 0; i < s->queue.count; i++) /* each message under way is due once */
        if (s->queue.heap[i].kind == ARRIVAL || s->queue.heap[i].kind == DELIVERY)
            free(s->queue.heap[i].message);
    while (s->epoch)
        end_epoch(s);
    free(s->dead);
    free(s->lost_after);
    free(s->queue.heap);
    network_free(&s->network);
    free(s);
    *at = NULL;
}

struct transport *sim_endpoint(struct sim *s, uint32_t rank)
{
    return &s->epoch->endpoints[rank].base;
}
