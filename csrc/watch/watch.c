/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that holds the connections; see watch.h. */
#include "watch/watch.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/thread.h"
#include "watch/link.h"

enum { GROUP_PAIRS = 2 };

/* Does a watch run in this rank's process? */
static bool watch_group_has_watch(const struct watch_group *g, uint32_t rank)
{
    return g->cards[rank].port != 0;
}

static uint32_t watch_group_members(const struct watch_group *g, uint64_t host)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < g->size; r++)
        count += watch_group_has_watch(g, r) && g->hosts[r] == host;
    return count;
}

static uint32_t watch_group_member(const struct watch_group *g, uint64_t host,
                                   uint32_t which)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (watch_group_has_watch(g, r) && g->hosts[r] == host && !which--)
            return r;
    CHECK(false);
    return 0;
}

static bool watch_group_is_first(const struct watch_group *g, uint32_t rank)
{
    for (uint32_t r = 0; r < rank; r++)
        if (watch_group_has_watch(g, r) && g->hosts[r] == g->hosts[rank])
            return false;
    return watch_group_has_watch(g, rank);
}

static uint32_t watch_group_number_of(const struct watch_group *g, uint64_t host)
{
    uint32_t number = 0;
    for (uint32_t r = 0; !(watch_group_is_first(g, r) && g->hosts[r] == host); r++) {
        CHECK(r + 1 < g->size);
        number += watch_group_is_first(g, r);
    }
    return number;
}

void watch_group_each_peer(const struct watch_group *g,
                           void (*each)(void *arg, const struct watch_card *peer,
                                        uint64_t host),
                           void *arg)
{
    if (!watch_group_has_watch(g, g->rank))
        return;
    uint64_t own = g->hosts[g->rank];
    uint32_t here = watch_group_members(g, own), a = watch_group_number_of(g, own),
             b = 0;
    for (uint32_t r = 0; r < g->size; r++) {
        uint64_t host = g->hosts[r];
        if (!watch_group_is_first(g, r))
            continue;
        uint32_t there = watch_group_members(g, host),
                 pairs = here > there ? here : there;
        for (uint32_t k = 0; host != own && k < GROUP_PAIRS && k < pairs; k++)
            if (watch_group_member(g, own, (b + k) % here) == g->rank)
                each(arg, &g->cards[watch_group_member(g, host, (a + k) % there)],
                     host);
        b++;
    }
}

bool watch_group_has_host(const struct watch_group *g, uint64_t host)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (g->hosts[r] == host)
            return true;
    return false;
}

bool watch_group_has_process(const struct watch_group *g, uint64_t id)
{
    for (uint32_t r = 0; g->cards && r < g->size; r++)
        if (g->cards[r].port && g->cards[r].id == id)
            return true;
    return false;
}

enum { WATCH_MESSAGES = 64 }; /* of one sender in one step */

static const int64_t watch_first_retry_us = 10000, watch_last_retry_us = 10000000;

struct watch_host {
    uint64_t number;
    bool lost;
};

/* Another process of the own host. */
struct watch_peer {
    struct watch_card card;
    uint32_t told; /* Number of losses that it has been told. */
    struct watch_peer *next;
};

struct watch {
    double timeout; /* seconds */
    struct doorbell_page *doorbell;
    bool cuts;
    struct lock mutex;
    pthread_t thread;
    bool runs, stops;
    int wake; /* an eventfd */
    struct watch_card own;
    struct listener listener;
    struct local local;
    struct watch_peer *peers;
    struct link *links;
    struct watch_group *groups;
    struct watch_host *hosts; /* Of all groups that there were. */
    uint64_t *losses;         /* Lost hosts in their order, room for all hosts. */
    uint32_t host_count, host_capacity;
    _Atomic uint32_t lost; /* Number of losses. */
    int64_t retry_at;      /* When to tell local peers again whose queue was full. */
    int64_t retry_pause;
    const char *dropped; /* First thing that was dropped, until it is reported. */
    bool reported;
};

int watch_timeout(double *seconds)
{
    const char *text = environment_get("PARTIALCOLL_HOST_TIMEOUT");
    char *end;
    *seconds = 10;
    if (!text)
        return PCOLL_OK;
    *seconds = decimal_parse(text, &end);
    if (!*end && (*seconds == 0 || (*seconds >= 2 && *seconds <= 1e6)))
        return PCOLL_OK;
    return fail(PCOLL_EINVAL,
                "PARTIALCOLL_HOST_TIMEOUT: expected at least 2 seconds, or 0 for none, "
                "got '%s'",
                text);
}

uint32_t watch_lost(const struct watch *w)
{
    return w ? atomic_load(&w->lost) : 0;
}

static struct watch_host *watch_find_host(const struct watch *w, uint64_t number)
{
    for (uint32_t i = 0; i < w->host_count; i++)
        if (w->hosts[i].number == number)
            return &w->hosts[i];
    return NULL;
}

static bool watch_is_lost(const struct watch *w, uint64_t host)
{
    const struct watch_host *h = watch_find_host(w, host);
    return h && h->lost;
}

static bool watch_is_own(const struct watch *w, uint64_t host)
{
    for (const struct watch_group *g = w->groups; g; g = g->next)
        if (g->hosts[g->rank] == host)
            return true;
    return false;
}

static void watch_drop(struct watch *w, const char *what)
{
    if (what && !w->dropped)
        w->dropped = what;
}

/* Have we a group with both this process and this host? */
static bool watch_shares(const struct watch *w, uint64_t id, uint64_t host)
{
    for (const struct watch_group *g = w->groups; g; g = g->next)
        if (watch_group_has_process(g, id) && watch_group_has_host(g, host))
            return true;
    return false;
}

/* Tell a local peer what it has not been told yet; false: its queue is full. */
static bool watch_tell_peer(struct watch *w, struct watch_peer *peer)
{
    for (; peer->told < atomic_load(&w->lost); peer->told++)
        if (watch_shares(w, peer->card.id, w->losses[peer->told]) &&
            !local_tell(&w->local, &peer->card, w->losses[peer->told]))
            return false;
    return true;
}

/* Tell all local peers. Where a queue is full try again, each time after a longer pause, unless
 * some news has got through since. */
static void watch_tell_peers(struct watch *w)
{
    bool full = false, progress = false, again = clock_us() >= w->retry_at;
    for (struct watch_peer *peer = w->peers; peer; peer = peer->next) {
        uint32_t before = peer->told;
        full = !watch_tell_peer(w, peer) || full;
        progress = progress || peer->told != before;
    }
    if (!full || progress)
        w->retry_pause = watch_first_retry_us;
    else if (again && w->retry_pause < watch_last_retry_us)
        w->retry_pause *= 2;
    if (!full)
        w->retry_at = INT64_MAX;
    else if (again || w->retry_at == INT64_MAX)
        w->retry_at = clock_us() + w->retry_pause;
}

/* Tell the other end of a connection what it has not been told yet. */
static void watch_tell_link(struct watch *w, struct link *l)
{
    for (; l->state == LINK_PROVEN && l->told < atomic_load(&w->lost); l->told++)
        if (watch_shares(w, l->peer.id, w->losses[l->told]))
            link_tell(l, &w->own, w->losses[l->told]);
}

static void watch_cut(const struct watch *w, uint64_t host)
{
    for (const struct watch_group *g = w->groups; g; g = g->next)
        for (uint32_t r = 0; g->cards && r < g->size; r++)
            if (g->hosts[r] == host && g->cards[r].port) {
                card_cut(&g->cards[r], &w->own);
                return;
            }
}

/* Tell the others first, then this process and its MPI. The own host is not lost: if others
 * have lost it, this process finds out about the others as they did. */
static void watch_note_lost(struct watch *w, struct watch_host *h)
{
    if (h->lost || watch_is_own(w, h->number))
        return;
    uint64_t host = h->number;
    h->lost = true;
    w->losses[atomic_load(&w->lost)] = host;
    atomic_store(&w->lost, atomic_load(&w->lost) + 1);
    watch_tell_peers(w);
    for (struct link *l = w->links; l; l = l->next)
        if (l->host == host)
            link_end(l);
        else
            watch_tell_link(w, l);
    doorbell_wake_waiters(w->doorbell);
    doorbell_wake_agent(w->doorbell);
    if (w->cuts)
        watch_cut(w, host);
}

/* All that is polled. */
struct poll_list {
    struct pollfd *at;
    int count;
    int64_t due; /* When poll() ends at the latest; INT64_MAX: never. */
};

static void watch_poll(struct poll_list *p, int fd, short events)
{
    CHECK(fd >= 0);
    p->at[p->count++] = (struct pollfd){.fd = fd, .events = events};
}

static void watch_poll_until(struct poll_list *p, int64_t due)
{
    p->due = due < p->due ? due : p->due;
}

static void watch_poll_listener(struct watch *w, struct poll_list *p)
{
    if (clock_us() < w->listener.paused_to)
        watch_poll_until(p, w->listener.paused_to);
    else
        watch_poll(p, w->listener.fd, POLLIN);
    for (int i = 0; i < w->listener.count; i++) {
        const struct incoming *in = &w->listener.incoming[i];
        /* What a pending one sends is read later, so it must not end poll(). */
        if (in->state != INCOMING_PENDING)
            watch_poll(p, in->fd, POLLIN);
        watch_poll_until(p, in->due);
    }
}

static bool watch_collect(struct watch *w, struct poll_list *p)
{
    size_t most = 3 + (size_t)w->listener.count;
    for (const struct link *l = w->links; l; l = l->next)
        most++;
    struct pollfd *at = realloc(p->at, most * sizeof *at);
    if (!at)
        return false;
    *p = (struct poll_list){.at = at, .due = w->retry_at};
    watch_poll(p, w->wake, POLLIN);
    watch_poll(p, w->local.fd, POLLIN);
    watch_poll_listener(w, p);
    for (struct link *l = w->links; l; l = l->next) {
        l->slot = l->fd >= 0 ? p->count : -1;
        if (l->fd >= 0)
            watch_poll(p, l->fd, link_wants(l));
        if (link_is_timed(l))
            watch_poll_until(p, l->due);
    }
    return true;
}

static void watch_sleep(const struct poll_list *p)
{
    int64_t left = p->due == INT64_MAX ? -1 : p->due - clock_us();
    int ms = left < 0 && p->due != INT64_MAX ? 0
             : left < 0                      ? -1
                                             : (int)(left / 1000 + 1);
    poll(p->at, (nfds_t)p->count, ms);
}

/* A connection brings each host at most once, and hosts of a shared group only. */
static void watch_take_news(struct watch *w, struct link *l, uint64_t host)
{
    struct watch_host *h = watch_find_host(w, host);
    if (h && l->received <= w->host_count) {
        watch_note_lost(w, h);
        return;
    }
    link_end(l);
    watch_drop(w, "a connection to a peer that sent news about unknown hosts");
}

static void watch_step_link(struct watch *w, struct link *l)
{
    uint64_t host;
    enum link_event event = LINK_NEWS;
    for (int i = 0; i < WATCH_MESSAGES && event == LINK_NEWS; i++) {
        event = link_step(l, &w->own, w->timeout, &host);
        if (event == LINK_NEWS)
            watch_take_news(w, l, host);
    }
    if (event == LINK_LOST)
        watch_note_lost(w, watch_find_host(w, l->host));
    if (event == LINK_BROKEN)
        watch_drop(w, "a connection to a peer that broke the protocol");
}

static void watch_step_local(struct watch *w)
{
    uint64_t host;
    enum local_event event = LOCAL_NEWS;
    for (int i = 0; i < WATCH_MESSAGES && event != LOCAL_NOTHING; i++) {
        event = local_receive(&w->local, &w->own, &host);
        struct watch_host *h = event == LOCAL_NEWS ? watch_find_host(w, host) : NULL;
        if (h)
            watch_note_lost(w, h);
        else if (event != LOCAL_NOTHING)
            watch_drop(w, "a local message that does not belong to this job");
    }
}

/* Handshakes that are under way continue before others are accepted, which may close them. */
static void watch_step(struct watch *w, const struct poll_list *p)
{
    watch_step_local(w);
    for (struct link *l = w->links; l; l = l->next)
        if (l->slot < 0 || p->at[l->slot].revents ||
            (link_is_timed(l) && clock_us() >= l->due))
            watch_step_link(w, l);
    watch_drop(w, listener_step(&w->listener, w->links, &w->own, w->timeout));
    watch_drop(w, listener_admit(&w->listener, &w->own));
    watch_drop(w, listener_step(&w->listener, w->links, &w->own, w->timeout));
    for (struct link *l = w->links; l; l = l->next)
        watch_tell_link(w, l); /* it may have been proven just now */
    if (clock_us() >= w->retry_at)
        watch_tell_peers(w);
}

/* Report the first thing that was dropped, without the mutex: standard error may block. */
static void watch_report(struct watch *w)
{
    if (!w->dropped || w->reported)
        return;
    w->reported = true;
    lock_release(&w->mutex);
    fprintf(stderr,
            "partialcoll: the watch of hosts in process %d dropped %s. The job is not "
            "affected. This is reported once.\n",
            (int)getpid(), w->dropped);
    lock_take(&w->mutex);
}

static void *watch_main(void *arg)
{
    struct watch *w = arg;
    struct poll_list list = {0};
    uint64_t count;
    lock_take(&w->mutex);
    while (!w->stops && watch_collect(w, &list)) {
        lock_release(&w->mutex);
        watch_sleep(&list);
        lock_take(&w->mutex);
        if (read(w->wake, &count, sizeof count) < 0)
            count = 0;
        watch_step(w, &list);
        watch_report(w);
    }
    lock_release(&w->mutex);
    free(list.at);
    return NULL;
}

static void watch_wake_thread(const struct watch *w)
{
    uint64_t one = 1;
    if (write(w->wake, &one, sizeof one) < 0)
        return; /* it is awake */
}

int watch_create(double timeout, struct doorbell_page *doorbell, bool cuts,
                 struct watch **out)
{
    CHECK(timeout >= 0 && isfinite(timeout));
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return fail(PCOLL_ENOMEM, "no memory for the watch of hosts");
    w->timeout = timeout;
    w->doorbell = doorbell;
    w->cuts = cuts;
    w->wake = w->listener.fd = w->local.fd = -1;
    w->retry_at = INT64_MAX;
    w->retry_pause = watch_first_retry_us;
    lock_init(&w->mutex, LOCK_WATCH);
    *out = w;
    return PCOLL_OK;
}

static void watch_close(struct watch *w)
{
    listener_close(&w->listener);
    local_close(&w->local);
    if (w->wake >= 0)
        close(w->wake);
    w->wake = -1;
}

/* What was opened before a failure is closed again: the next communicator starts anew. */
static void watch_start(struct watch *w)
{
    w->runs = card_fill(&w->own) &&
              (w->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) >= 0 &&
              listener_open(&w->listener, &w->own) && local_open(&w->local, &w->own) &&
              thread_start(&w->thread, watch_main, w) == 0;
    if (!w->runs)
        watch_close(w);
}

struct watch_card watch_own_card(struct watch *w)
{
    lock_take(&w->mutex);
    if (!w->runs && w->timeout > 0)
        watch_start(w);
    struct watch_card card = w->runs ? w->own : (struct watch_card){0};
    lock_release(&w->mutex);
    return card;
}

static bool watch_reserve_host(struct watch *w)
{
    if (w->host_count < w->host_capacity)
        return true;
    uint32_t capacity = w->host_capacity ? 2 * w->host_capacity : 16;
    struct watch_host *hosts = realloc(w->hosts, capacity * sizeof *hosts);
    w->hosts = hosts ? hosts : w->hosts;
    uint64_t *losses = realloc(w->losses, capacity * sizeof *losses);
    w->losses = losses ? losses : w->losses;
    if (!hosts || !losses)
        return false;
    w->host_capacity = capacity;
    return true;
}

static bool watch_add_host(struct watch *w, uint64_t number)
{
    if (watch_find_host(w, number))
        return true;
    if (!watch_reserve_host(w))
        return false;
    w->hosts[w->host_count++] = (struct watch_host){.number = number};
    return true;
}

int watch_announce(struct watch *w, struct watch_group *g)
{
    CHECK(g->rank < g->size && !g->cards);
    bool added = true;
    lock_take(&w->mutex);
    for (uint32_t r = 0; r < g->size && added; r++)
        added = (r && g->hosts[r] == g->hosts[r - 1]) || watch_add_host(w, g->hosts[r]);
    if (added) {
        g->next = w->groups;
        w->groups = g;
    }
    lock_release(&w->mutex);
    return added ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for the watch of hosts");
}

static void watch_add_link(void *arg, const struct watch_card *peer, uint64_t host)
{
    struct watch *w = arg;
    for (const struct link *l = w->links; l; l = l->next)
        if (l->peer.id == peer->id)
            return;
    if (watch_is_lost(w, host))
        return;
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return; /* the other one of the two hosts' pairs is left */
    link_init(l, &w->own, peer, host);
    l->next = w->links;
    w->links = l;
}

static void watch_add_peer(struct watch *w, const struct watch_card *card)
{
    for (const struct watch_peer *peer = w->peers; peer; peer = peer->next)
        if (peer->card.id == card->id)
            return;
    struct watch_peer *peer = malloc(sizeof *peer);
    if (!peer)
        return; /* other processes of this host may tell it */
    *peer = (struct watch_peer){.card = *card, .next = w->peers};
    w->peers = peer;
}

static void watch_add_peers(struct watch *w, const struct watch_group *g)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (r != g->rank && g->cards[r].port && g->hosts[r] == g->hosts[g->rank])
            watch_add_peer(w, &g->cards[r]);
}

void watch_join(struct watch *w, struct watch_group *g, const struct watch_card *cards)
{
    CHECK(cards && !g->cards);
    lock_take(&w->mutex);
    g->cards = cards;
    if (w->runs) {
        watch_add_peers(w, g);
        watch_group_each_peer(g, watch_add_link, w);
        watch_wake_thread(w);
    }
    lock_release(&w->mutex);
}

void watch_leave(struct watch *w, struct watch_group *g)
{
    CHECK(g->size > 0);
    lock_take(&w->mutex);
    struct watch_group **at = &w->groups;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
    lock_release(&w->mutex);
}

void watch_each_lost(struct watch *w,
                     void (*each)(void *arg, const struct watch_group *g,
                                  uint32_t rank),
                     void *arg)
{
    CHECK(each);
    lock_take(&w->mutex);
    for (const struct watch_group *g = w->groups; g; g = g->next)
        for (uint32_t r = 0; g->cards && r < g->size; r++)
            if (g->cards[r].port && watch_is_lost(w, g->hosts[r]))
                each(arg, g, r);
    lock_release(&w->mutex);
}

void watch_destroy(struct watch **at)
{
    CHECK(*at);
    struct watch *w = *at;
    lock_take(&w->mutex);
    w->stops = true;
    if (w->runs)
        watch_wake_thread(w);
    lock_release(&w->mutex);
    if (w->runs)
        pthread_join(w->thread, NULL);
    for (struct link *l = w->links, *next; l; l = next) {
        next = l->next;
        link_end(l);
        free(l);
    }
    for (struct watch_peer *peer = w->peers, *next; peer; peer = next) {
        next = peer->next;
        free(peer);
    }
    watch_close(w);
    lock_destroy(&w->mutex);
    free(w->hosts);
    free(w->losses);
    free(w);
    *at = NULL;
}
