/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual time: a heap of happenings, FIFO for each (sender, receiver, tag). */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "../base/error.h"
#include "../base/splitmix.h"

static const uint32_t control_tag = UINT32_MAX;

struct message {
    uint32_t from, to, tag;
    const void *source; /* read when the send is over */
    void *data;
    size_t bytes;
    uint64_t cookie; /* of the send */
    struct control control;
    struct message *next; /* in a list of unexpected ones */
};

struct posted {
    uint32_t peer, tag;
    void *data;
    size_t capacity;
    uint64_t cookie;
    struct posted *next;
};

enum happening_kind { SEND_OVER, DELIVERY, AGREEMENT_OVER, WAKE };

struct happening {
    int64_t time;
    uint64_t order; /* equal times: first come first served */
    enum happening_kind kind;
    uint32_t rank;
    uint64_t token; /* WAKE, AGREEMENT_OVER: cookie */
    struct message *message;
};

struct endpoint {
    struct transport base;
    struct sim *sim;
    struct posted *posted;
    struct message *unexpected;
    struct transport_event *events; /* not yet polled */
    struct transport_event *polled; /* handed out last: must stay */
    int count, capacity, polled_capacity, pending_sends;
    uint64_t agreements;
};

/* The k-th agreement of all ranks. */
struct gathering {
    uint64_t number;
    uint32_t arrived;
    int count;
    uint64_t *maxima;
    uint64_t **values;
    uint64_t *cookies;
    struct gathering *next;
};

/* Time of the last delivery on a (sender, receiver, tag). */
struct lane {
    uint64_t key;
    int64_t last;
};

struct sim {
    struct sim_options options;
    int64_t now;
    uint64_t drawn, order;
    struct happening *heap;
    size_t heap_count, heap_capacity;
    struct endpoint *endpoints;
    struct gathering *gatherings;
    struct lane *lanes;
    size_t lane_count, lane_capacity; /* a power of two */
};

/* Without memory a simulation has no sense: it ends the program. */
static void *must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static struct endpoint *of(struct transport *t)
{
    return (struct endpoint *)t;
}

uint32_t sim_random(struct sim *s, uint32_t bound)
{
    return splitmix_below(s->options.seed, s->drawn++, bound);
}

/* The heap. */

static bool before(const struct happening *a, const struct happening *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void swap(struct happening *a, struct happening *b)
{
    struct happening c = *a;
    *a = *b;
    *b = c;
}

static void push(struct sim *s, struct happening h)
{
    if (s->heap_count == s->heap_capacity) {
        s->heap_capacity = s->heap_capacity ? 2 * s->heap_capacity : 1024;
        s->heap = must(realloc(s->heap, s->heap_capacity * sizeof *s->heap));
    }
    h.order = s->order++;
    size_t i = s->heap_count++;
    s->heap[i] = h;
    for (; i && before(&s->heap[i], &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&s->heap[i], &s->heap[(i - 1) / 2]);
}

static struct happening pop(struct sim *s)
{
    struct happening top = s->heap[0];
    s->heap[0] = s->heap[--s->heap_count];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2; child++)
            if (child < s->heap_count && before(&s->heap[child], &s->heap[least]))
                least = child;
        if (least == i)
            return top;
        swap(&s->heap[i], &s->heap[least]);
        i = least;
    }
}

/* Lanes: a hash table with linear probing. */

static struct lane *find_lane(struct lane *lanes, size_t capacity, uint64_t key)
{
    size_t i = splitmix_mix(key) & (capacity - 1);
    while (lanes[i].key && lanes[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &lanes[i];
}

static struct lane *lane_of(struct sim *s, const struct message *m)
{
    uint64_t key =
        (splitmix_mix(((uint64_t)m->from << 32 | m->to) + 1) ^ splitmix_mix(m->tag)) |
        1;
    if (2 * (s->lane_count + 1) > s->lane_capacity) {
        size_t capacity = s->lane_capacity ? 2 * s->lane_capacity : 1024;
        struct lane *lanes = must(calloc(capacity, sizeof *lanes));
        for (size_t i = 0; i < s->lane_capacity; i++)
            if (s->lanes[i].key)
                *find_lane(lanes, capacity, s->lanes[i].key) = s->lanes[i];
        free(s->lanes);
        s->lanes = lanes;
        s->lane_capacity = capacity;
    }
    struct lane *lane = find_lane(s->lanes, s->lane_capacity, key);
    if (!lane->key) {
        lane->key = key;
        s->lane_count++;
    }
    return lane;
}

static int64_t draw_latency(struct sim *s)
{
    int64_t spread = s->options.latency_max - s->options.latency_min;
    return s->options.latency_min + (spread ? sim_random(s, (uint32_t)spread + 1) : 0);
}

/* When a message sent now is delivered: after those before it on its lane. */
static int64_t delivery_time(struct sim *s, const struct message *m)
{
    struct lane *lane = lane_of(s, m);
    int64_t time = s->now + draw_latency(s);
    if (time < lane->last)
        time = lane->last;
    lane->last = time;
    return time;
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

static int sim_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                    size_t bytes, uint64_t cookie)
{
    struct endpoint *e = of(t);
    struct sim *s = e->sim;
    struct message *m = must(calloc(1, sizeof *m));
    *m = (struct message){.from = t->rank,
                          .to = peer,
                          .tag = tag,
                          .source = data,
                          .bytes = bytes,
                          .cookie = cookie};
    int64_t delivery = delivery_time(s, m);
    int64_t wait = delivery - s->now;
    int64_t over = s->now + (wait ? sim_random(s, (uint32_t)wait + 1) : 0);
    e->pending_sends++;
    push(s, (struct happening){
                .time = over, .kind = SEND_OVER, .rank = t->rank, .message = m});
    push(s, (struct happening){
                .time = delivery, .kind = DELIVERY, .rank = peer, .message = m});
    return PCOLL_OK;
}

static int sim_control(struct transport *t, uint32_t peer,
                       const struct control *message)
{
    struct sim *s = of(t)->sim;
    struct message *m = must(calloc(1, sizeof *m));
    *m = (struct message){
        .from = t->rank, .to = peer, .tag = control_tag, .control = *message};
    push(s, (struct happening){.time = delivery_time(s, m),
                               .kind = DELIVERY,
                               .rank = peer,
                               .message = m});
    return PCOLL_OK;
}

static void complete_recv(struct endpoint *e, struct posted *p, struct message *m)
{
    size_t bytes = m->bytes < p->capacity ? m->bytes : p->capacity;
    memcpy(p->data, m->data, bytes);
    add_event(e, (struct transport_event){.kind = TRANSPORT_DONE,
                                          .cookie = p->cookie,
                                          .bytes = m->bytes,
                                          .source = m->from});
    free(m->data);
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
    memset(data, 0xff, capacity);
    for (struct message **at = &e->unexpected; *at; at = &(*at)->next) {
        struct message *m = *at;
        if (m->from != peer || m->tag != tag)
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

static struct gathering *gathering_of(struct sim *s, uint64_t number, int count)
{
    for (struct gathering *g = s->gatherings; g; g = g->next)
        if (g->number == number)
            return g;
    struct gathering *g = must(calloc(1, sizeof *g));
    *g = (struct gathering){.number = number, .count = count, .next = s->gatherings};
    g->maxima = must(calloc((size_t)count, sizeof *g->maxima));
    g->values = must(calloc(s->options.size, sizeof *g->values));
    g->cookies = must(calloc(s->options.size, sizeof *g->cookies));
    s->gatherings = g;
    return g;
}

static void close_gathering(struct sim *s, struct gathering *g)
{
    for (uint32_t i = 0; i < s->options.size; i++) {
        memcpy(g->values[i], g->maxima, (size_t)g->count * sizeof *g->maxima);
        push(s, (struct happening){.time = s->now + draw_latency(s),
                                   .kind = AGREEMENT_OVER,
                                   .rank = i,
                                   .token = g->cookies[i]});
    }
    struct gathering **at = &s->gatherings;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    free(g->maxima);
    free(g->values);
    free(g->cookies);
    free(g);
}

static int sim_agree(struct transport *t, uint64_t *values, int count, uint64_t cookie)
{
    struct endpoint *e = of(t);
    struct gathering *g = gathering_of(e->sim, e->agreements++, count);
    if (g->count != count)
        return fail(PCOLL_EPROTOCOL, "an agreement about %d and about %d values",
                    g->count, count);
    for (int i = 0; i < count; i++)
        if (values[i] > g->maxima[i])
            g->maxima[i] = values[i];
    g->values[t->rank] = values;
    g->cookies[t->rank] = cookie;
    if (++g->arrived == e->sim->options.size)
        close_gathering(e->sim, g);
    return PCOLL_OK;
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

static const struct transport_ops sim_ops = {.send = sim_send,
                                             .recv = sim_recv,
                                             .control = sim_control,
                                             .agree = sim_agree,
                                             .poll = sim_poll,
                                             .pending_sends = sim_pending_sends,
                                             .destroy = sim_destroy_endpoint};

/* What happens when its time has come. */

static void end_send(struct sim *s, struct message *m)
{
    struct endpoint *e = &s->endpoints[m->from];
    m->data = must(malloc(m->bytes ? m->bytes : 1));
    memcpy(m->data, m->source, m->bytes);
    e->pending_sends--;
    add_event(e, (struct transport_event){.kind = TRANSPORT_DONE, .cookie = m->cookie});
}

static void deliver(struct sim *s, struct message *m)
{
    struct endpoint *e = &s->endpoints[m->to];
    if (m->tag == control_tag) {
        add_event(e, (struct transport_event){.kind = TRANSPORT_CONTROL,
                                              .source = m->from,
                                              .control = m->control});
        free(m);
        return;
    }
    for (struct posted **at = &e->posted; *at; at = &(*at)->next) {
        struct posted *p = *at;
        if (p->peer != m->from || p->tag != m->tag)
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

void sim_wake(struct sim *s, uint32_t rank, int64_t delay, uint64_t token)
{
    push(s, (struct happening){
                .time = s->now + delay, .kind = WAKE, .rank = rank, .token = token});
}

bool sim_step(struct sim *s, struct sim_stop *stop)
{
    if (!s->heap_count)
        return false;
    struct happening h = pop(s);
    s->now = h.time;
    *stop = (struct sim_stop){.rank = h.rank};
    switch (h.kind) {
    case SEND_OVER:
        end_send(s, h.message);
        break;
    case DELIVERY:
        deliver(s, h.message);
        break;
    case AGREEMENT_OVER:
        add_event(
            &s->endpoints[h.rank],
            (struct transport_event){.kind = TRANSPORT_AGREED, .cookie = h.token});
        break;
    case WAKE:
        stop->woken = true;
        stop->token = h.token;
        break;
    }
    return true;
}

static int check_options(const struct sim_options *o)
{
    if (o->size < 1)
        return fail(PCOLL_EINVAL, "size: expected at least 1 rank, got %u", o->size);
    if (o->latency_min < 0 || o->latency_max < o->latency_min ||
        o->latency_max >= UINT32_MAX)
        return fail(PCOLL_EINVAL,
                    "latency: expected 0 <= min <= max < %u ns, got %lld and %lld",
                    UINT32_MAX, (long long)o->latency_min, (long long)o->latency_max);
    return PCOLL_OK;
}

int sim_create(const struct sim_options *options, struct sim **out)
{
    int rc = check_options(options);
    if (rc != PCOLL_OK)
        return rc;
    struct sim *s = must(calloc(1, sizeof *s));
    s->options = *options;
    s->endpoints = must(calloc(options->size, sizeof *s->endpoints));
    for (uint32_t i = 0; i < options->size; i++) {
        struct endpoint *e = &s->endpoints[i];
        e->sim = s;
        e->base = (struct transport){.ops = &sim_ops,
                                     .rank = i,
                                     .size = options->size,
                                     .tags = UINT32_MAX - 1,
                                     .threads = true};
    }
    *out = s;
    return PCOLL_OK;
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
        free(m->data);
        free(m);
    }
    free(e->events);
    free(e->polled);
}

static void free_gatherings(struct sim *s)
{
    while (s->gatherings) {
        struct gathering *g = s->gatherings;
        s->gatherings = g->next;
        free(g->maxima);
        free(g->values);
        free(g->cookies);
        free(g);
    }
}

void sim_free(struct sim **at)
{
    struct sim *s = *at;
    for (size_t i = 0; i < s->heap_count;
         i++) /* a message under way has one delivery */
        if (s->heap[i].kind == DELIVERY) {
            free(s->heap[i].message->data);
            free(s->heap[i].message);
        }
    for (uint32_t i = 0; i < s->options.size; i++)
        free_endpoint(&s->endpoints[i]);
    free_gatherings(s);
    free(s->endpoints);
    free(s->heap);
    free(s->lanes);
    free(s);
    *at = NULL;
}

struct transport *sim_endpoint(struct sim *s, uint32_t rank)
{
    return &s->endpoints[rank].base;
}
