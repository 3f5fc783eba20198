/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, and the thread that holds the connections; see watch.h. */
#include "watch/watch.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "watch/link.h"

/* Groups. A member is a rank in whose process a watch runs. */

enum { GROUP_PAIRS = 2 };

struct watch_member {
    uint64_t host;
    uint32_t rank;
};

static int watch_compare_members(const void *a, const void *b)
{
    const struct watch_member *x = a, *y = b;
    return x->host != y->host ? (x->host > y->host) - (x->host < y->host)
                              : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Return the number of members of the host whose first member is m[0], of `count` in all. */
static uint32_t watch_count_members(const struct watch_member *m, uint32_t count)
{
    uint32_t i = 1;
    while (i < count && m[i].host == m[0].host)
        i++;
    return i;
}

/* Without memory for the members this rank holds no connection. */
void watch_group_each_peer(const struct watch_group *g, watch_peer_fn *each, void *arg)
{
    struct watch_member *m = malloc(g->size * sizeof *m), *own = NULL;
    uint32_t count = 0, a = 0, here = 0;
    for (uint32_t r = 0; m && r < g->size; r++)
        if (g->cards[r].port != 0)
            m[count++] = (struct watch_member){.host = g->hosts[r], .rank = r};
    if (count)
        qsort(m, count, sizeof *m, watch_compare_members);
    for (uint32_t i = 0, b = 0; i < count && !own; i += here, b++) {
        here = watch_count_members(&m[i], count - i);
        a = b;
        own = m[i].host == g->hosts[g->rank] ? &m[i] : NULL;
    }
    for (uint32_t i = 0, b = 0; own && i < count; b++) {
        uint32_t there = watch_count_members(&m[i], count - i);
        uint32_t pairs = here > there ? here : there;
        for (uint32_t k = 0; b != a && k < GROUP_PAIRS && k < pairs; k++)
            if (own[(b + k) % here].rank == g->rank) {
                const struct watch_member *peer = &m[i + (a + k) % there];
                each(arg, &g->cards[peer->rank], peer->host);
            }
        i += there;
    }
    free(m);
}

/* The watch. */

enum { WATCH_MESSAGES = 64 }; /* Messages of one sender in one step. */

struct watch {
    double timeout; /* Seconds. */
    struct doorbell_page *doorbell;
    bool cuts;
    struct lock mutex;
    pthread_t thread;
    bool runs, stops;
    int wake[2]; /* A pipe for the numbers of lost hosts; 0: only wake. */
    struct watch_card own;
    struct listener listener;
    struct link *links;
    struct watch_group *groups;
    uint64_t *hosts; /* Of all groups so far: first the lost ones, in their order. */
    uint32_t host_count;
    _Atomic uint32_t lost; /* Number of lost hosts. */
    struct pollfd *polled;
    int polled_count;
    int64_t due;         /* When poll() ends at the latest; INT64_MAX: never. */
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

static void watch_wake_thread(const struct watch *w)
{
    uint64_t nothing = 0;
    if (write(w->wake[1], &nothing, sizeof nothing) < 0)
        return; /* The thread is awake. */
}

uint32_t watch_lost(const struct watch *w)
{
    return w ? atomic_load(&w->lost) : 0;
}

/* Return the index of a host; host_count: it is not known. */
static uint32_t watch_find_host(const struct watch *w, uint64_t host)
{
    uint32_t i = 0;
    while (i < w->host_count && w->hosts[i] != host)
        i++;
    return i;
}

static bool watch_is_lost(const struct watch *w, uint64_t host)
{
    return watch_find_host(w, host) < atomic_load(&w->lost);
}

static void watch_drop(struct watch *w, const char *what)
{
    if (what && !w->dropped)
        w->dropped = what;
}

static bool watch_group_has(const struct watch_group *g, uint64_t host)
{
    uint32_t r = 0;
    while (g->cards && r < g->size && g->hosts[r] != host)
        r++;
    return g->cards && r < g->size;
}

/* Return whether a group of this process has both the process with that id and this host. */
static bool watch_shares(const struct watch *w, uint64_t id, uint64_t host)
{
    for (const struct watch_group *g = w->groups; g; g = g->next)
        for (uint32_t r = watch_group_has(g, host) ? 0 : g->size; r < g->size; r++)
            if (g->cards[r].port && g->cards[r].id == id)
                return true;
    return false;
}

/* Tell the processes of this host that are in the group, if it has the lost host. */
static void watch_tell_group(const struct watch_group *g, uint64_t host)
{
    for (uint32_t r = watch_group_has(g, host) ? 0 : g->size; r < g->size; r++)
        if (r != g->rank && g->cards[r].port && g->hosts[r] == g->hosts[g->rank])
            card_tell(&g->cards[r], host);
}

/* Tell the other end of a connection what it has not been told yet. */
static void watch_tell_link(struct watch *w, struct link *l)
{
    for (; l->state == LINK_PROVEN && l->told < atomic_load(&w->lost); l->told++)
        if (watch_shares(w, l->peer.id, w->hosts[l->told]))
            link_tell(l, w->hosts[l->told]);
}

/* Tell the others first, then this process and its MPI. The own host is not lost: if others
 * have lost it, this process finds out about the others as they did. */
static void watch_note_lost(struct watch *w, uint64_t host)
{
    uint32_t i = watch_find_host(w, host), lost = atomic_load(&w->lost);
    bool own = false;
    CHECK(i < w->host_count);
    for (const struct watch_group *g = w->groups; g; g = g->next)
        own |= g->hosts[g->rank] == host;
    if (i < lost || own)
        return;
    w->hosts[i] = w->hosts[lost];
    w->hosts[lost] = host;
    atomic_store(&w->lost, lost + 1);
    for (const struct watch_group *g = w->groups; g; g = g->next)
        watch_tell_group(g, host);
    for (struct link *l = w->links; l; l = l->next)
        if (l->host == host)
            link_end(l);
        else
            watch_tell_link(w, l);
    doorbell_wake_waiters(w->doorbell);
    doorbell_wake_agent(w->doorbell);
    const struct watch_card *theirs = NULL;
    for (const struct watch_group *g = w->groups; g; g = g->next)
        for (uint32_t r = 0; g->cards && r < g->size; r++)
            if (g->hosts[r] == host && g->cards[r].port)
                theirs = &g->cards[r];
    if (w->cuts && theirs)
        card_cut(theirs, &w->own);
}

/* Polling. */

/* Poll this descriptor (-1: none), at the latest at this time. */
static void watch_poll(struct watch *w, int fd, short events, int64_t due)
{
    w->polled[w->polled_count++] = (struct pollfd){.fd = fd, .events = events};
    w->due = due < w->due ? due : w->due;
}

/* Collect what to poll, and until when; false: no memory. */
static bool watch_collect(struct watch *w)
{
    size_t most = 2 + (size_t)w->listener.count;
    for (const struct link *l = w->links; l; l = l->next)
        most++;
    struct pollfd *polled = realloc(w->polled, most * sizeof *polled);
    if (!polled)
        return false;
    w->polled = polled;
    w->polled_count = 0;
    w->due = INT64_MAX;
    watch_poll(w, w->wake[0], POLLIN, INT64_MAX);
    if (clock_us() < w->listener.paused_to)
        watch_poll(w, -1, 0, w->listener.paused_to);
    else
        watch_poll(w, w->listener.fd, POLLIN, INT64_MAX);
    for (int i = 0; i < w->listener.count; i++) {
        const struct incoming *in = &w->listener.incoming[i];
        /* The watch reads a pending one later, so its bytes must not end poll(). */
        watch_poll(w, in->state == INCOMING_PENDING ? -1 : in->fd, POLLIN, in->due);
    }
    for (struct link *l = w->links; l; l = l->next)
        watch_poll(w, l->fd, l->state == LINK_CONNECTING ? POLLOUT : POLLIN,
                   l->state >= LINK_PAUSED && l->state <= LINK_ANSWERED ? l->due
                                                                        : INT64_MAX);
    return true;
}

static void watch_step_link(struct watch *w, struct link *l)
{
    uint64_t host;
    enum link_event event = LINK_NEWS;
    for (int i = 0; i < WATCH_MESSAGES && (event = link_step(l, &host)) == LINK_NEWS;
         i++) {
        /* A connection brings each host at most once, and hosts of a shared group only. */
        if (watch_find_host(w, host) < w->host_count && l->received <= w->host_count)
            watch_note_lost(w, host);
        else {
            link_end(l);
            watch_drop(w, "a connection to a peer that sent news about unknown hosts");
        }
    }
    if (event == LINK_LOST)
        watch_note_lost(w, l->host);
    if (event == LINK_BROKEN)
        watch_drop(w, "a connection to a peer that broke the protocol");
}

/* Handshakes that are under way continue before others are accepted, which may close them. */
static void watch_step(struct watch *w)
{
    uint64_t host;
    for (int i = 0;
         i < WATCH_MESSAGES && read(w->wake[0], &host, sizeof host) == sizeof host; i++)
        if (watch_find_host(w, host) < w->host_count)
            watch_note_lost(w, host);
    for (struct link *l = w->links; l; l = l->next)
        watch_step_link(w, l);
    watch_drop(w, listener_step(&w->listener, w->links));
    watch_drop(w, listener_admit(&w->listener));
    watch_drop(w, listener_step(&w->listener, w->links));
    for (struct link *l = w->links; l; l = l->next)
        watch_tell_link(w, l); /* The link may have been proven just now. */
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
    lock_take(&w->mutex);
    while (!w->stops && watch_collect(w)) {
        lock_release(&w->mutex);
        int64_t left = w->due - clock_us();
        poll(w->polled, (nfds_t)w->polled_count,
             w->due == INT64_MAX ? -1
             : left < 0          ? 0
                                 : (int)(left / 1000 + 1));
        lock_take(&w->mutex);
        watch_step(w);
        watch_report(w);
    }
    lock_release(&w->mutex);
    return NULL;
}

/* Beginning and end. */

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
    w->wake[0] = w->wake[1] = w->listener.fd = -1;
    lock_init(&w->mutex, LOCK_WATCH);
    *out = w;
    return PCOLL_OK;
}

static void watch_close(struct watch *w)
{
    listener_close(&w->listener);
    for (int i = 0; i < 2; i++) {
        if (w->wake[i] >= 0)
            close(w->wake[i]);
        w->wake[i] = -1;
    }
}

static bool watch_open_pipe(struct watch *w)
{
    struct statx s;
    if (pipe2(w->wake, O_NONBLOCK | O_CLOEXEC) != 0 ||
        statx(w->wake[0], "", AT_EMPTY_PATH, STATX_INO, &s) != 0)
        return false;
    w->own.pid = (uint64_t)getpid();
    w->own.wake = (uint64_t)w->wake[0];
    w->own.pipe = s.stx_ino;
    return true;
}

/* After a failure close what was opened: the next communicator tries again. */
struct watch_card watch_own_card(struct watch *w)
{
    lock_take(&w->mutex);
    if (!w->runs && w->timeout > 0) {
        w->runs = card_fill(&w->own) && watch_open_pipe(w) &&
                  listener_open(&w->listener, &w->own) &&
                  thread_start(&w->thread, watch_main, w) == 0;
        if (!w->runs)
            watch_close(w);
    }
    struct watch_card card = w->runs ? w->own : (struct watch_card){0};
    lock_release(&w->mutex);
    return card;
}

void watch_destroy(struct watch **at)
{
    struct watch *w = *at;
    lock_take(&w->mutex);
    w->stops = true;
    if (w->runs)
        watch_wake_thread(w);
    lock_release(&w->mutex);
    if (w->runs)
        pthread_join(w->thread, NULL);
    for (struct link *l; (l = w->links);) {
        w->links = l->next;
        link_end(l);
        free(l);
    }
    watch_close(w);
    lock_destroy(&w->mutex);
    free(w->polled);
    free(w->hosts);
    free(w);
    *at = NULL;
}

/* Groups come and leave. */

int watch_announce(struct watch *w, struct watch_group *g)
{
    CHECK(g->rank < g->size && !g->cards);
    bool added = true;
    lock_take(&w->mutex);
    for (uint32_t r = 0; r < g->size && added; r++) {
        if ((r && g->hosts[r] == g->hosts[r - 1]) ||
            watch_find_host(w, g->hosts[r]) < w->host_count)
            continue;
        uint64_t *hosts = realloc(w->hosts, (w->host_count + 1) * sizeof *hosts);
        added = hosts != NULL;
        if (added) {
            w->hosts = hosts;
            w->hosts[w->host_count++] = g->hosts[r];
        }
    }
    if (added) {
        g->next = w->groups;
        w->groups = g;
    }
    lock_release(&w->mutex);
    return added ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for the watch of hosts");
}

/* Without memory for it the other connection between the two hosts is left. */
static void watch_add_link(void *arg, const struct watch_card *peer, uint64_t host)
{
    struct watch *w = arg;
    for (const struct link *l = w->links; l; l = l->next)
        if (l->peer.id == peer->id)
            return;
    struct link *l = watch_is_lost(w, host) ? NULL : malloc(sizeof *l);
    if (!l)
        return;
    link_init(l, &w->own, peer, host, w->timeout);
    l->next = w->links;
    w->links = l;
}

void watch_join(struct watch *w, struct watch_group *g, const struct watch_card *cards)
{
    CHECK(cards && !g->cards);
    lock_take(&w->mutex);
    g->cards = cards;
    if (w->runs) {
        for (uint32_t i = 0; i < atomic_load(&w->lost); i++)
            watch_tell_group(g, w->hosts[i]);
        watch_group_each_peer(g, watch_add_link, w);
        watch_wake_thread(w);
    }
    lock_release(&w->mutex);
}

void watch_leave(struct watch *w, struct watch_group *g)
{
    lock_take(&w->mutex);
    struct watch_group **at = &w->groups;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
    lock_release(&w->mutex);
}

void watch_each_lost(struct watch *w, watch_lost_fn *each, void *arg)
{
    lock_take(&w->mutex);
    for (const struct watch_group *g = w->groups; g; g = g->next)
        for (uint32_t r = 0; g->cards && r < g->size; r++)
            if (g->cards[r].port && watch_is_lost(w, g->hosts[r]))
                each(arg, g, r);
    lock_release(&w->mutex);
}
