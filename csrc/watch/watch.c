/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that holds the connections; see watch.h. */
#include "watch/watch.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/decimal.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/thread.h"
#include "watch/entrance.h"
#include "watch/link.h"
#include "watch/neighbors.h"
#include "watch/pairing.h"

enum { MAX_LOST = 64 }; /* one more ends nobody's wait */

struct watch {
    double timeout; /* seconds */
    struct doorbell_page *doorbell;
    bool cuts;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool runs, stops;
    int wake; /* an eventfd */
    struct watch_card own;
    struct entrance entrance;
    struct neighbors neighbors;
    struct link *links;
    struct watch_party *parties;
    uint64_t gone[MAX_LOST];
    _Atomic uint32_t lost; /* of them */
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

static bool is_gone(const struct watch *w, uint64_t host)
{
    uint32_t lost = atomic_load(&w->lost);
    for (uint32_t i = 0; i < lost; i++)
        if (w->gone[i] == host)
            return true;
    return false;
}

/* Within the host, and to the other ones. */
static void tell(struct watch *w, uint64_t host)
{
    for (const struct watch_party *p = w->parties; p; p = p->next)
        for (uint32_t r = 0; r < p->size; r++)
            if (r != p->rank && p->hosts[r] == p->hosts[p->rank])
                neighbors_tell(&w->neighbors, &p->cards[r], host);
    for (struct link *l = w->links; l; l = l->next)
        link_tell(l, host);
}

static void cut(const struct watch *w, uint64_t host)
{
    for (const struct watch_party *p = w->parties; p; p = p->next)
        for (uint32_t r = 0; r < p->size; r++)
            if (p->hosts[r] == host && p->cards[r].port) {
                card_cut(&p->cards[r], &w->own);
                return;
            }
}

static bool is_own(const struct watch *w, uint64_t host)
{
    for (const struct watch_party *p = w->parties; p; p = p->next)
        if (p->hosts[p->rank] == host)
            return true;
    return false;
}

/* First all are told, then this process and its MPI. Who is told that it is lost itself finds
 * out about the others as they did. */
static void note_lost(struct watch *w, uint64_t host)
{
    uint32_t lost = atomic_load(&w->lost);
    if (is_gone(w, host) || is_own(w, host) || lost == MAX_LOST)
        return;
    w->gone[lost] = host;
    atomic_store(&w->lost, lost + 1);
    tell(w, host);
    doorbell_wake_waiters(w->doorbell);
    doorbell_wake_agent(w->doorbell);
    if (w->cuts)
        cut(w, host);
}

/* Everything that has something to say. Room for more than there is. */
struct request_list {
    struct pollfd *at;
    int count;
    int64_t due;
};

static void add(struct request_list *p, int fd, short events)
{
    if (fd >= 0)
        p->at[p->count++] = (struct pollfd){.fd = fd, .events = events};
}

static void await(struct request_list *p, int64_t due)
{
    p->due = due < p->due ? due : p->due;
}

static bool collect(struct watch *w, struct request_list *p)
{
    size_t most = 3 + (size_t)w->entrance.count;
    for (const struct link *l = w->links; l; l = l->next)
        most++;
    struct pollfd *at = realloc(p->at, most * sizeof *at);
    if (!at)
        return false;
    *p = (struct request_list){.at = at, .due = INT64_MAX};
    add(p, w->wake, POLLIN);
    add(p, w->entrance.fd, POLLIN);
    add(p, w->neighbors.fd, POLLIN);
    for (int i = 0; i < w->entrance.count; i++) {
        add(p, w->entrance.guests[i].fd, POLLIN);
        await(p, w->entrance.guests[i].due);
    }
    for (const struct link *l = w->links; l; l = l->next) {
        add(p, l->fd, link_wants(l));
        if (l->state == LINK_PAUSED || l->state == LINK_CONNECTING ||
            l->state == LINK_GREETING)
            await(p, l->due);
    }
    return true;
}

static void sleep_on(const struct request_list *p)
{
    int64_t left = p->due == INT64_MAX ? -1 : p->due - clock_us();
    int ms = left < 0 && p->due != INT64_MAX ? 0
             : left < 0                      ? -1
                                             : (int)(left / 1000 + 1);
    poll(p->at, (nfds_t)p->count, ms);
}

static void step(struct watch *w, struct link *l)
{
    uint64_t news = 0;
    enum link_event event;
    if (is_gone(w, l->host)) {
        link_close(l);
        l->state = LINK_OVER;
        return;
    }
    int come = entrance_take(&w->entrance, l->peer.cookie);
    if (come >= 0)
        link_accept(l, come, &w->own, w->timeout);
    while ((event = link_step(l, &w->own, w->timeout, &news)) == LINK_NEWS)
        note_lost(w, news);
    if (event == LINK_LOST)
        note_lost(w, l->host);
}

static void look(struct watch *w)
{
    uint64_t host;
    entrance_admit(&w->entrance);
    for (int i = 0; i < w->entrance.count;)
        i += entrance_hear(&w->entrance, i, w->own.cookie);
    while (neighbors_hear(&w->neighbors, &w->own, &host))
        note_lost(w, host);
    for (struct link *l = w->links; l; l = l->next)
        step(w, l);
}

static void *watch_main(void *arg)
{
    struct watch *w = arg;
    struct request_list list = {0};
    uint64_t count;
    pthread_mutex_lock(&w->mutex);
    while (!w->stops && collect(w, &list)) {
        pthread_mutex_unlock(&w->mutex);
        sleep_on(&list);
        pthread_mutex_lock(&w->mutex);
        if (read(w->wake, &count, sizeof count) < 0)
            count = 0;
        look(w);
    }
    pthread_mutex_unlock(&w->mutex);
    free(list.at);
    return NULL;
}

static void wake_thread(const struct watch *w)
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
    w->wake = w->entrance.fd = w->neighbors.fd = -1;
    pthread_mutex_init(&w->mutex, NULL);
    *out = w;
    return PCOLL_OK;
}

static void start(struct watch *w)
{
    if (getrandom(&w->own.cookie, sizeof w->own.cookie, 0) < 0)
        return;
    w->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint32_t port = w->wake >= 0 ? entrance_open(&w->entrance) : 0;
    w->runs = port && neighbors_open(&w->neighbors, w->own.cookie) &&
              thread_start(&w->thread, watch_main, w) == 0;
    if (!w->runs)
        return;
    card_fill(&w->own);
    w->own.port = port;
}

struct watch_card watch_own_card(struct watch *w)
{
    pthread_mutex_lock(&w->mutex);
    if (!w->runs && w->timeout > 0)
        start(w);
    struct watch_card card = w->runs ? w->own : (struct watch_card){0};
    pthread_mutex_unlock(&w->mutex);
    return card;
}

static void add_link(void *arg, const struct watch_card *peer, uint64_t host)
{
    struct watch *w = arg;
    for (const struct link *l = w->links; l; l = l->next)
        if (l->peer.cookie == peer->cookie)
            return;
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return; /* the other one of the two hosts' pairs is left */
    *l = (struct link){.peer = *peer, .host = host, .fd = -1, .next = w->links};
    w->links = l;
}

void watch_join(struct watch *w, struct watch_party *p)
{
    CHECK(p->rank < p->size);
    pthread_mutex_lock(&w->mutex);
    p->next = w->parties;
    w->parties = p;
    if (w->runs) {
        pairing_each(p, add_link, w);
        wake_thread(w);
    }
    pthread_mutex_unlock(&w->mutex);
}

void watch_leave(struct watch *w, struct watch_party *p)
{
    CHECK(p->size > 0);
    pthread_mutex_lock(&w->mutex);
    struct watch_party **at = &w->parties;
    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    pthread_mutex_unlock(&w->mutex);
}

void watch_each_lost(struct watch *w,
                     void (*each)(void *arg, const struct watch_party *p,
                                  uint32_t rank),
                     void *arg)
{
    CHECK(each);
    pthread_mutex_lock(&w->mutex);
    for (const struct watch_party *p = w->parties; p; p = p->next)
        for (uint32_t r = 0; r < p->size; r++)
            if (p->cards[r].cookie && is_gone(w, p->hosts[r]))
                each(arg, p, r);
    pthread_mutex_unlock(&w->mutex);
}

void watch_destroy(struct watch **at)
{
    CHECK(*at);
    struct watch *w = *at;
    pthread_mutex_lock(&w->mutex);
    w->stops = true;
    pthread_mutex_unlock(&w->mutex);
    if (w->runs) {
        wake_thread(w);
        pthread_join(w->thread, NULL);
    }
    for (struct link *l = w->links, *next; l; l = next) {
        next = l->next;
        link_close(l);
        free(l);
    }
    entrance_close(&w->entrance);
    neighbors_close(&w->neighbors);
    if (w->wake >= 0)
        close(w->wake);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    *at = NULL;
}
