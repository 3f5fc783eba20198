/* SPDX-License-Identifier: Apache-2.0 */
/* Message queues behind one mutex. A send completes when its message is taken. */
#include "inproc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/communicator.h"
#include "base/clock.h"
#include "base/random.h"
#include "check.h"

struct item {
    uint32_t from, tag;
    const void *data; /* NULL: control */
    size_t bytes;
    uint64_t cookie;
    struct control control;
    struct item *next;
};

struct wanted {
    uint32_t peer, tag;
    void *data;
    uint64_t cookie;
    struct wanted *next;
};

enum { MAX_EVENTS = 1024 };

struct endpoint {
    struct transport base;
    struct inproc *net;
    struct doorbell_page *doorbell;
    struct item *inbox; /* under the mutex, like all fields below */
    struct wanted *wanted;
    struct transport_event fresh[MAX_EVENTS];
    int fresh_count, pending_sends;
    struct transport_event polled[MAX_EVENTS]; /* used only by the poller */
};

struct inproc {
    pthread_mutex_t mutex;
    uint32_t size;
    struct endpoint *endpoints;
    uint64_t maxima[16]; /* of the only agreement in progress */
    uint64_t *values[64];
    uint64_t cookies[64];
    uint32_t arrived;
};

static struct endpoint *of(struct transport *t)
{
    return (struct endpoint *)t;
}

static void add_event(struct endpoint *e, struct transport_event event)
{
    if (e->fresh_count == MAX_EVENTS)
        abort();
    e->fresh[e->fresh_count++] = event;
}

static void append(struct item **list, struct item *item)
{
    while (*list)
        list = &(*list)->next;
    *list = item;
}

/* Match arrived messages with posted receives. Called under the mutex. */
static void match(struct endpoint *e)
{
    for (struct item **at = &e->inbox; *at;) {
        struct item *m = *at;
        struct wanted **w = &e->wanted;
        while (m->data && *w && ((*w)->peer != m->from || (*w)->tag != m->tag))
            w = &(*w)->next;
        if (m->data && !*w) {
            at = &m->next;
            continue;
        }
        if (!m->data) {
            add_event(e, (struct transport_event){.kind = TRANSPORT_CONTROL,
                                                  .source = m->from,
                                                  .control = m->control});
        } else {
            struct wanted *found = *w;
            *w = found->next;
            memcpy(found->data, m->data, m->bytes);
            add_event(e, (struct transport_event){.kind = TRANSPORT_DONE,
                                                  .cookie = found->cookie,
                                                  .bytes = m->bytes});
            struct endpoint *sender = &e->net->endpoints[m->from];
            sender->pending_sends--;
            add_event(sender, (struct transport_event){.kind = TRANSPORT_DONE,
                                                       .cookie = m->cookie});
            doorbell_ring(sender->doorbell);
            free(found);
        }
        *at = m->next;
        free(m);
    }
}

static int put(struct endpoint *e, uint32_t peer, struct item item)
{
    struct item *m = malloc(sizeof *m);
    *m = item;
    m->from = e->base.rank;
    pthread_mutex_lock(&e->net->mutex);
    append(&e->net->endpoints[peer].inbox, m);
    e->pending_sends += item.data != NULL;
    pthread_mutex_unlock(&e->net->mutex);
    doorbell_ring(e->net->endpoints[peer].doorbell);
    return 0;
}

static int inproc_send(struct transport *t, uint32_t peer, uint32_t tag,
                       const void *data, size_t bytes, uint64_t cookie)
{
    return put(
        of(t), peer,
        (struct item){.tag = tag, .data = data, .bytes = bytes, .cookie = cookie});
}

static int inproc_control(struct transport *t, uint32_t peer, const struct control *c)
{
    return put(of(t), peer, (struct item){.control = *c});
}

static int inproc_recv(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                       size_t capacity, uint64_t cookie)
{
    (void)capacity;
    struct endpoint *e = of(t);
    struct wanted *w = malloc(sizeof *w);
    *w = (struct wanted){.peer = peer, .tag = tag, .data = data, .cookie = cookie};
    pthread_mutex_lock(&e->net->mutex);
    struct wanted **end = &e->wanted;
    while (*end)
        end = &(*end)->next;
    *end = w;
    pthread_mutex_unlock(&e->net->mutex);
    return 0;
}

static int inproc_agree(struct transport *t, uint64_t *values, int count,
                        enum agree_op op, uint64_t cookie)
{
    struct endpoint *e = of(t);
    struct inproc *n = e->net;
    pthread_mutex_lock(&n->mutex);
    if (!n->arrived)
        memset(n->maxima, 0, sizeof n->maxima);
    for (int i = 0; i < count; i++)
        n->maxima[i] = op == AGREE_SUM            ? n->maxima[i] + values[i]
                       : values[i] > n->maxima[i] ? values[i]
                                                  : n->maxima[i];
    n->values[t->rank] = values;
    n->cookies[t->rank] = cookie;
    if (++n->arrived == n->size) {
        n->arrived = 0;
        for (uint32_t i = 0; i < n->size; i++) {
            memcpy(n->values[i], n->maxima, (size_t)count * sizeof *n->maxima);
            add_event(&n->endpoints[i],
                      (struct transport_event){.kind = TRANSPORT_AGREED,
                                               .cookie = n->cookies[i]});
            doorbell_ring(n->endpoints[i].doorbell);
        }
    }
    pthread_mutex_unlock(&n->mutex);
    return 0;
}

static int inproc_poll(struct transport *t, const struct transport_event **events)
{
    struct endpoint *e = of(t);
    pthread_mutex_lock(&e->net->mutex);
    match(e);
    int count = e->fresh_count;
    memcpy(e->polled, e->fresh, (size_t)count * sizeof *e->fresh);
    e->fresh_count = 0;
    pthread_mutex_unlock(&e->net->mutex);
    *events = e->polled;
    return count;
}

static int inproc_pending(const struct transport *t)
{
    struct endpoint *e = (struct endpoint *)(uintptr_t)t;
    pthread_mutex_lock(&e->net->mutex);
    int pending = e->pending_sends;
    pthread_mutex_unlock(&e->net->mutex);
    return pending;
}

static int64_t inproc_now(const struct transport *t)
{
    (void)t;
    return clock_ns();
}

static void inproc_destroy(struct transport *t)
{
    (void)t;
}

static const struct transport_ops ops = {.send = inproc_send,
                                         .recv = inproc_recv,
                                         .control = inproc_control,
                                         .agree = inproc_agree,
                                         .poll = inproc_poll,
                                         .pending = inproc_pending,
                                         .now = inproc_now,
                                         .destroy = inproc_destroy};

struct inproc *inproc_create(uint32_t size)
{
    struct inproc *n = calloc(1, sizeof *n);
    n->size = size;
    n->endpoints = calloc(size, sizeof *n->endpoints);
    pthread_mutex_init(&n->mutex, NULL);
    return n;
}

void inproc_free(struct inproc *n)
{
    pthread_mutex_destroy(&n->mutex);
    free(n->endpoints);
    free(n);
}

struct transport *inproc_endpoint(struct inproc *n, uint32_t rank,
                                  struct doorbell_page *doorbell)
{
    struct endpoint *e = &n->endpoints[rank];
    e->base = (struct transport){.ops = &ops,
                                 .rank = rank,
                                 .size = n->size,
                                 .living = n->size,
                                 .tags = 1u << 20,
                                 .threads = true};
    e->net = n;
    e->doorbell = doorbell;
    return &e->base;
}

void inproc_wait(struct progress *p, struct communicator *c, bool (*what)(void *),
                 void *arg)
{
    EXPECT(progress_wait(p, what, arg, 60000000) == PCOLL_OK, "waited for a minute");
    EXPECT_OK(communicator_check(c));
}

void inproc_pause(uint32_t rank, uint64_t n)
{
    uint32_t us = splitmix_below(rank + 77, n, 400);
    if (us > 200)
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}
